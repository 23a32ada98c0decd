"""WebP, through Pillow."""

from __future__ import annotations

from dataclasses import dataclass
from math import prod
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from integrodiff.io.access import SinglePageReader
from integrodiff.io.formats.pillow import (
    PillowWriter,
    common_metadata,
    header_of,
    opened,
    picture_problem,
    refuse_animation,
    refuse_long_file,
)
from integrodiff.io.formats.webp_quality import webp_quality
from integrodiff.io.image import FormatDetails, ImageHeader, Metadata, Page

_LONGEST = 16383
"""Pixels on a side that WebP can count, and 14 bits."""

_MOST_PER_PIXEL = 8
"""Bytes; data without loss that cannot be compressed have four."""


@dataclass(frozen=True, kw_only=True)
class WebpDetails(FormatDetails):
    """How a WebP file is encoded: with a quality from 0 to 100, or without loss if it has none."""

    format: ClassVar[str] = "WebP"
    quality: float | None = None


class Reader(SinglePageReader):
    """A WebP picture, which is always in colour."""

    def _read_header(self) -> ImageHeader:
        with self.path.open("rb") as stream:
            pixels = prod(_size(stream.read(30)))
        refuse_long_file(self.path, pixels, _MOST_PER_PIXEL)
        with opened(self.path, "WEBP") as picture:
            refuse_animation(self.path, "WebP", picture)
            picture.load()
            samples = np.array(picture.convert("RGBA") if picture.mode == "RGBX" else picture)
            own = WebpDetails(quality=webp_quality(self.path))
            metadata = Metadata(**common_metadata(picture), own=own)
        alpha = np.ascontiguousarray(samples[..., 3]) if samples.shape[-1] == 4 else None
        self._page = Page(np.ascontiguousarray(samples[..., :3]), alpha)
        return header_of(self._page, metadata)


def _size(head: bytes) -> tuple[int, int]:
    """Return width and height from the beginning of a file."""
    kind, data = head[12:16], head[20:]
    if kind == b"VP8X":
        return int.from_bytes(data[4:7], "little") + 1, int.from_bytes(data[7:10], "little") + 1
    if kind == b"VP8L":
        bits = int.from_bytes(data[1:5], "little")
        return (bits & _LONGEST) + 1, (bits >> 14 & _LONGEST) + 1
    lengths = (int.from_bytes(data[at : at + 2], "little") & _LONGEST for at in (6, 8))
    return next(lengths), next(lengths)


class Writer(PillowWriter):
    """A WebP file of the quality of the one that the image came from, or without loss."""

    format = "WebP"

    @staticmethod
    def problem(header: ImageHeader) -> str | None:
        """Return why WebP cannot hold the image, or None if it can."""
        if (problem := picture_problem("WebP", header)) is not None:
            return problem
        if header.dtype != np.uint8:
            return f"WebP holds 8 bits only, not {header.dtype}; write PNG or TIFF instead"
        if header.layout.samples == 1:
            return "WebP holds colour only, and this image is grey; write PNG or TIFF instead"
        if max(header.size) > _LONGEST:
            return f"WebP holds {_LONGEST} pixels on a side at most; write PNG or TIFF instead"
        return None

    def _save(self, samples: NDArray[Any]) -> None:
        options = self._options()
        options.pop("dpi", None)
        if self.header.metadata.xmp is not None:
            options["xmp"] = self.header.metadata.xmp
        own = self.header.metadata.own
        quality = own.quality if isinstance(own, WebpDetails) else None
        if self.header.metadata.quality is not None:
            quality = self.header.metadata.quality
        if quality is None:
            options |= {"lossless": True, "exact": True}
        else:
            options["quality"] = round(quality)
        Image.fromarray(samples).save(self.path, format="WEBP", **options)
