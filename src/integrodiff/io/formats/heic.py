"""HEIC, through pillow-heif, whose plugin for Pillow is used without being registered."""

from __future__ import annotations

import io
from math import prod
from typing import Any

import pillow_heif
from numpy.typing import NDArray
from PIL import Image
from pillow_heif import HeifImageFile

from integrodiff.io.access import SinglePageReader, refuse_bomb, refuse_missing_bytes
from integrodiff.io.formats.boxes import (
    LITTLE_LOSS,
    eight_bit_problem,
    quality_note,
    refuse_long_boxes,
)
from integrodiff.io.formats.pillow import (
    PillowWriter,
    common_metadata,
    header_of,
    page_of,
)
from integrodiff.io.image import ImageHeader, Metadata

_EIGHT_BITS = 8


class Reader(SinglePageReader):
    """The first picture of a HEIC file."""

    def _read_header(self) -> ImageHeader:
        refuse_long_boxes(self.path)
        with HeifImageFile(str(self.path)) as picture:
            refuse_bomb(self.path, picture.size)
            needed, there = prod(picture.size) * len(picture.getbands()), self.path.stat().st_size
            refuse_missing_bytes(self.path, needed, there, compressed=True)
            notes: list[str] = []
            if picture.n_frames > 1:
                notes.append("the file holds further pictures; only the first is read")
            if picture.info.get("bit_depth", _EIGHT_BITS) > _EIGHT_BITS:
                notes.append("of the bits per sample in the file 8 are read")
            if picture.info.get("depth_images"):
                notes.append("depth images in the file are not carried over")
            picture.load()
            metadata = Metadata(**common_metadata(picture))
            self._page, more = page_of(picture)
        return header_of(self._page, metadata, (*notes, *more))


class Writer(PillowWriter):
    """A HEIC file."""

    format = "HEIC"

    @staticmethod
    def problem(header: ImageHeader) -> str | None:
        """Return why HEIC cannot hold the image, or None if it can."""
        return eight_bit_problem("HEIC", header)

    def _save(self, samples: NDArray[Any]) -> None:
        options = self._options()
        options.pop("dpi", None)
        if self.header.metadata.xmp is not None:
            options["xmp"] = self.header.metadata.xmp
        image = pillow_heif.from_pillow(Image.fromarray(samples))
        encoded = io.BytesIO()
        quality = self.header.metadata.quality or LITTLE_LOSS
        image.save(encoded, quality=quality, chroma=444, **options)
        self.path.write_bytes(encoded.getvalue())

    @property
    def notes(self) -> tuple[str, ...]:
        """Changes besides the pixels, in words for the user."""
        return quality_note(self.header)
