"""AVIF, through Pillow from version 11.3 on, where it was built with a codec."""

from __future__ import annotations

import io
import struct
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from integrodiff.io.access import SinglePageReader, pixel_limit
from integrodiff.io.formats.pillow import (
    PillowWriter,
    common_metadata,
    header_of,
    opened,
    page_of,
    picture_problem,
    refuse_animation,
    refuse_long_file,
)
from integrodiff.io.image import ImageHeader, Metadata

_MOST_PER_PIXEL = 8
_BEGINNING = 2**16
LITTLE_LOSS = 90
"""Quality if none is asked for; that of the original cannot be found out."""


class Reader(SinglePageReader):
    """An AVIF picture."""

    def _read_header(self) -> ImageHeader:
        beginning = refuse_long_boxes(self.path)
        with opened(self.path, "AVIF") as picture:
            refuse_animation(self.path, "AVIF", picture)
            picture.load()
            metadata = Metadata(**common_metadata(picture))
            self._page, notes = page_of(picture)
        return header_of(self._page, metadata, notes + _depth_note(beginning))


def refuse_long_boxes(path: Path) -> bytes:
    """Refuse a file that is too long for its pictures, as it will be read whole; return its head.

    Boxes named ``ispe`` have the sizes of the pictures, usually within the first thousand bytes.
    """
    with path.open("rb") as stream:
        beginning = stream.read(_BEGINNING)
    pixels, at = 0, beginning.find(b"ispe")
    while 0 <= at <= len(beginning) - 16:
        width, height = struct.unpack_from(">II", beginning, at + 8)
        pixels, at = max(pixels, width * height), beginning.find(b"ispe", at + 4)
    limit = pixel_limit()
    refuse_long_file(path, min(pixels, limit) if limit else pixels, _MOST_PER_PIXEL)
    return beginning


def _depth_note(beginning: bytes) -> tuple[str, ...]:
    """Report more than 8 bits per sample, of which Pillow reads 8."""
    at = beginning.find(b"av1C")
    deep = at >= 0 and at + 6 < len(beginning) and beginning[at + 6] & 0x40
    return ("of the bits per sample in the file 8 are read",) if deep else ()


class Writer(PillowWriter):
    """An AVIF file."""

    format = "AVIF"

    @staticmethod
    def problem(header: ImageHeader) -> str | None:
        """Return why AVIF cannot hold the image, or None if it can."""
        return eight_bit_problem("AVIF", header)

    def _save(self, samples: NDArray[Any]) -> None:
        options = self._options()
        options.pop("dpi", None)
        if self.header.metadata.xmp is not None:
            options["xmp"] = self.header.metadata.xmp
        if samples.ndim == 3:
            options["subsampling"] = "4:4:4"
        quality = self.header.metadata.quality or LITTLE_LOSS
        encoded = io.BytesIO()
        Image.fromarray(samples).save(encoded, format="AVIF", quality=quality, **options)
        self.path.write_bytes(encoded.getvalue())

    @property
    def notes(self) -> tuple[str, ...]:
        """Changes besides the pixels, in words for the user."""
        return quality_note(self.header)


def eight_bit_problem(kind: str, header: ImageHeader) -> str | None:
    """Return why a format for colour pictures of 8 bits cannot hold an image, if so."""
    if (problem := picture_problem(kind, header)) is not None:
        return problem
    if header.dtype != np.uint8:
        return f"{kind} is written with 8 bits only, not {header.dtype}; write PNG or TIFF instead"
    if header.layout.samples == 1 and header.has_alpha:
        return f"{kind} cannot hold grey values with alpha; write PNG or TIFF instead"
    return None


def quality_note(header: ImageHeader) -> tuple[str, ...]:
    """Report the quality of a file if none was asked for."""
    quality = header.metadata.quality
    lossy_alpha = ("the alpha channel is compressed with loss too",) if header.has_alpha else ()
    if quality is not None:
        return lossy_alpha
    return (f"written with a quality of {LITTLE_LOSS} of 100; --quality changes it", *lossy_alpha)
