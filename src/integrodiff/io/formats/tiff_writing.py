"""Writing TIFF, through tifffile."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from os import SEEK_END
from typing import Any

import numpy as np
import tifffile
from tifffile import TiffFile, TiffWriter

from integrodiff.io.access import ImageWriter
from integrodiff.io.formats.exif import Layout, directory_bytes, pointer, read_block
from integrodiff.io.formats.tiff_tags import (
    COPIED,
    ICC_PROFILE,
    LAYOUT,
    ORIENTATION,
    XMP,
    TiffDetails,
    TiffPageTags,
    TiffTagTuple,
    described_as,
    with_exif,
)
from integrodiff.io.image import ImageHeader, Metadata, Page

_WHITE_IS_ZERO, _GREY, _RGB = 0, 1, 2
_NONE, _DEFLATE = 1, 8
_INCH = 2
_SHORT, _BYTE, _UNDEFINED = 3, 1, 7
"""Data types of tags."""

# Beyond this, offsets of 32 bits may not reach the end of the file.
_CLASSIC_LIMIT = 2**32 - 2**25


class Writer(ImageWriter):
    """A TIFF file that is laid out like the one the image came from."""

    format = "TIFF"

    def _start(self) -> None:
        header, own = self.header, self.header.metadata.own
        self._notes: tuple[str, ...] = ()
        if isinstance(own, TiffDetails):
            self._details = own
        else:
            self._details, self._notes = _new_details(header)
        compression, predictor = _usable_compression(self._details, header.dtype)
        self._options: dict[str, Any] = {
            "photometric": self._details.photometric,
            "compression": compression,
            "predictor": predictor,
            "tile": _usable_tile(self._details),
            "metadata": None,
            "software": False,
        }
        if header.values_per_pixel > 1:
            self._options["planarconfig"] = "separate" if self._details.planar else "contig"
            self._options["extrasamples"] = _extra_samples(header, self._details)
        self._layout = Layout(
            self._details.byteorder, self._details.big or header.nbytes > _CLASSIC_LIMIT
        )
        self._number = 0
        self._writer = self._opened.enter_context(
            TiffWriter(self.path, byteorder=self._layout.order, bigtiff=self._layout.big)
        )

    @staticmethod
    def problem(header: ImageHeader) -> str | None:
        """Return None: TIFF holds everything that is read here."""
        return None

    def write(self, page: Page) -> None:
        """Write the next page."""
        samples = page.samples
        if self._details.planar and samples.ndim == 3:
            samples = np.moveaxis(samples, -1, -3)
        tags = described_as(_tags_of_page(self._details, self._number), samples.dtype)
        options = self._options
        if tags.resolution is not None:
            options = {
                **options,
                "resolution": tags.resolution,
                "resolutionunit": tags.resolution_unit,
            }
        placeholders = [
            (code - 1, *pointer(0, self._layout)[:2], 0, False) for code, _ in tags.exif
        ]
        with _silence():
            self._writer.write(
                np.ascontiguousarray(samples), extratags=(*tags.tags, *placeholders), **options
            )
        self._number += 1

    def close(self) -> None:
        """Finish the file."""
        with _silence():
            super().close()
            if self._number == self.header.pages and any(page.exif for page in self._details.pages):
                self._add_exif()

    def _add_exif(self) -> None:
        """Put EXIF data behind the file; tifffile writes no tags that point to them.

        In their place it wrote tags of the codes before, which mean nothing else.
        """
        with TiffFile(self.path, is_ome=False) as tif, self.path.open("r+b") as stream:
            for page, tags in zip(tif.pages, self._details.pages, strict=False):
                for code, directory in tags.exif:
                    tag = page.aspage().tags[code - 1]
                    place = stream.seek(0, SEEK_END)
                    place += place % 2
                    stream.seek(place)
                    stream.write(directory_bytes(directory, place, self._layout))
                    kind, count, value = pointer(place, self._layout)
                    stream.seek(tag.offset)
                    stream.write(self._layout.tag.pack(code, kind, count, value))

    @property
    def notes(self) -> tuple[str, ...]:
        """Changes besides the pixels, in words for the user."""
        return self._notes


@contextmanager
def _silence() -> Iterator[None]:
    """Keep tifffile from writing to the terminal."""
    logger = logging.getLogger("tifffile")
    disabled, logger.disabled = logger.disabled, True
    try:
        yield
    finally:
        logger.disabled = disabled


def _tags_of_page(details: TiffDetails, number: int) -> TiffPageTags:
    """Return the tags of a page; a stack that was stored as one page has only one set of them."""
    if number < len(details.pages):
        return details.pages[number]
    return details.pages[0]._replace(tags=())


def _usable_compression(details: TiffDetails, dtype: np.dtype[Any]) -> tuple[int, int]:
    """Return compression and predictor of the original, or deflate where it was lossy."""
    # None, LZW, PackBits, LZMA, and deflate and Zstandard by two numbers each.
    lossless = (_NONE, 5, _DEFLATE, 32946, 32773, 34925, 34926, 50000)
    if details.compression not in lossless or (
        details.compression not in tifffile.TIFF.COMPRESSORS
    ):
        return _DEFLATE, 1
    horizontal = 2
    keep = details.predictor == horizontal and details.compression != _NONE and dtype.kind in "iu"
    return details.compression, horizontal if keep else 1


def _usable_tile(details: TiffDetails) -> tuple[int, int] | None:
    """Return the size of tiles, where the standard allows it."""
    if details.tile is None or any(length <= 0 or length % 16 for length in details.tile):
        return None
    return details.tile


def _extra_samples(header: ImageHeader, details: TiffDetails) -> tuple[int, ...]:
    """Return what the samples beyond the colours mean: alpha, or nothing in particular."""
    if header.has_alpha:
        return (details.alpha_kind,)
    return (0,) * (header.layout.samples - (3 if details.photometric == _RGB else 1))


def _new_details(header: ImageHeader) -> tuple[TiffDetails, tuple[str, ...]]:
    """Return the layout for an image that comes from another format, and what is left behind."""
    grey = _WHITE_IS_ZERO if header.metadata.white_is_zero else _GREY
    details = TiffDetails(
        photometric=_RGB if header.layout.samples == 3 else grey,
        pages=(_new_tags(header.metadata),),
    )
    if header.metadata.exif is None:
        return details, ()
    try:
        block = read_block(header.metadata.exif)
    except ValueError as error:
        return details, (f"not carried over to TIFF: EXIF data, which are damaged ({error})",)
    lost = ["the thumbnail in the EXIF data"] if block.has_thumbnail else []
    others = [t.code for t in block.directory.tags if t.code not in COPIED | LAYOUT]
    if others:
        lost.append(f"tags of the EXIF data with the numbers {', '.join(map(str, others))}")
    details = replace(details, byteorder=block.order, pages=(with_exif(details.pages[0], block),))
    return details, tuple(f"not carried over to TIFF: {what}" for what in lost)


def _new_tags(metadata: Metadata) -> TiffPageTags:
    """Return the metadata that TIFF has tags for."""
    tags: list[TiffTagTuple] = []
    if metadata.orientation != 1:
        tags.append((ORIENTATION, _SHORT, 1, metadata.orientation, False))
    if metadata.xmp is not None:
        tags.append((XMP, _BYTE, len(metadata.xmp), metadata.xmp, False))
    if metadata.icc_profile is not None:
        profile = metadata.icc_profile
        tags.append((ICC_PROFILE, _UNDEFINED, len(profile), profile, False))
    return TiffPageTags(tags=tuple(tags), resolution=metadata.dpi, resolution_unit=_INCH)
