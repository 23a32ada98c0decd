"""WebP, through Pillow."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from integrodiff.io.access import SinglePageReader, refusal
from integrodiff.io.formats.pillow import (
    PillowWriter,
    common_metadata,
    header_of,
    opened,
    picture_problem,
)
from integrodiff.io.image import ImageHeader, Metadata, Page

_LONGEST = 16383
"""Pixels on a side that WebP can count."""


class Reader(SinglePageReader):
    """A WebP picture, which is always in colour."""

    def _read_header(self) -> ImageHeader:
        with opened(self.path, "WEBP") as picture:
            if getattr(picture, "n_frames", 1) > 1:
                raise refusal(
                    self.path,
                    "is an animated WebP; save its frames as single images or as a TIFF stack",
                )
            picture.load()
            samples = np.array(picture.convert("RGBA") if picture.mode == "RGBX" else picture)
            metadata = Metadata(**common_metadata(picture))
        alpha = np.ascontiguousarray(samples[..., 3]) if samples.shape[-1] == 4 else None
        self._page = Page(np.ascontiguousarray(samples[..., :3]), alpha)
        return header_of(self._page, metadata)


class Writer(PillowWriter):
    """A WebP file without loss."""

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
        Image.fromarray(samples).save(
            self.path, format="WEBP", lossless=True, exact=True, **options
        )
