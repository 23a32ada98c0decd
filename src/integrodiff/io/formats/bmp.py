"""BMP, through Pillow; with transparency, which Pillow does not write, by its own header."""

from __future__ import annotations

import io
import struct
from math import prod
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from integrodiff.io.access import SinglePageReader, refusal
from integrodiff.io.formats.pillow import (
    PillowWriter,
    header_of,
    opened,
    page_of,
    picture_problem,
    refuse_bitmap,
    refuse_long_file,
    resolution,
)
from integrodiff.io.image import ImageHeader, Metadata

_MOST_PER_PIXEL = 8
_PER_METRE = 1 / 0.0254
"""Inches of a metre."""

_FILE_HEADER, _VERSION_4, _VERSION_5 = 14, 108, 124
"""Bytes of the headers."""

_MASKS = (0xFF0000, 0xFF00, 0xFF, 0xFF000000)
_BY_MASKS = 3
_SRGB = b"BGRs"
_EMBEDDED = b"DEBM"
"""Kinds of colours: those of a monitor, and by a profile in the file."""


class Reader(SinglePageReader):
    """A BMP file."""

    def _read_header(self) -> ImageHeader:
        with opened(self.path, "BMP") as picture:
            refuse_long_file(self.path, prod(picture.size), _MOST_PER_PIXEL)
            refuse_bitmap(self.path, picture)
            if picture.mode not in ("L", "P", "RGB", "RGBA"):
                raise refusal(self.path, f"is a BMP in {picture.mode}; convert it to RGB first")
            picture.load()
            metadata = Metadata(dpi=resolution(picture))
            self._page, notes = page_of(picture)
        return header_of(self._page, metadata, notes + _profile_note(self.path))


def _profile_note(path: Path) -> tuple[str, ...]:
    """Report a colour profile, which Pillow does not read."""
    with path.open("rb") as stream:
        head = stream.read(_FILE_HEADER + 60)[_FILE_HEADER:]
    (size,) = struct.unpack_from("<I", head.ljust(4, b"\0"))
    has_profile = size >= _VERSION_5 and head[56:60] == _EMBEDDED
    return ("the colour profile of the file is not carried over",) if has_profile else ()


class Writer(PillowWriter):
    """A BMP file."""

    format = "BMP"

    @staticmethod
    def problem(header: ImageHeader) -> str | None:
        """Return why BMP cannot hold the image, or None if it can."""
        if (problem := picture_problem("BMP", header)) is not None:
            return problem
        if header.dtype != np.uint8:
            return f"BMP holds 8 bits only, not {header.dtype}; write PNG or TIFF instead"
        if header.has_alpha and header.layout.samples == 1:
            return "BMP cannot hold grey values with alpha; write PNG or TIFF instead"
        return None

    def _save(self, samples: NDArray[Any]) -> None:
        dpi = self.header.metadata.dpi
        if self.header.has_alpha:
            self.path.write_bytes(_with_alpha(samples, dpi))
            return
        encoded = io.BytesIO()
        options = {} if dpi is None else {"dpi": dpi}
        Image.fromarray(samples).save(encoded, format="BMP", **options)
        self.path.write_bytes(encoded.getvalue())


def _with_alpha(samples: NDArray[Any], dpi: tuple[float, float] | None) -> bytes:
    """Return a file of version 4, with masks that say where alpha is."""
    height, width = samples.shape[:2]
    per_metre = [0, 0] if dpi is None else [round(value * _PER_METRE) for value in dpi]
    pixels = np.ascontiguousarray(samples[::-1, :, [2, 1, 0, 3]]).tobytes()
    start = _FILE_HEADER + _VERSION_4
    first = struct.pack("<2sIII", b"BM", start + len(pixels), 0, start)
    second = struct.pack(
        "<IiiHHIIiiII", _VERSION_4, width, height, 1, 32, _BY_MASKS, len(pixels), *per_metre, 0, 0
    )
    third = struct.pack("<4I4s", *_MASKS, _SRGB).ljust(_VERSION_4 - len(second), b"\0")
    return first + second + third + pixels
