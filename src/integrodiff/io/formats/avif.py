"""AVIF, through Pillow from version 11.3 on, where it was built with a codec."""

from __future__ import annotations

import io
from typing import Any

from numpy.typing import NDArray
from PIL import Image

from integrodiff.io.access import SinglePageReader
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
    opened,
    page_of,
    refuse_animation,
)
from integrodiff.io.image import ImageHeader, Metadata


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
