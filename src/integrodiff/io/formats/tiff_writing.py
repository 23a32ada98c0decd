"""Writing TIFF, through tifffile."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from math import prod
from os import SEEK_END
from tempfile import TemporaryFile
from typing import Any, BinaryIO

import numpy as np
import tifffile
from tifffile import TiffWriter

from integrodiff.io.access import ImageWriter
from integrodiff.io.formats.exif import (
    Layout,
    change_directory,
    directory_bytes,
    directory_places,
    pointer,
    read_block,
)
from integrodiff.io.formats.ome_xml import new_ome_xml
from integrodiff.io.formats.pyramid import smaller
from integrodiff.io.formats.tiff_cog import named, write_cloud_optimised
from integrodiff.io.formats.tiff_tags import (
    COPIED,
    DESCRIPTION,
    ICC_PROFILE,
    LAYOUT,
    ORIENTATION,
    XMP,
    Storage,
    TiffDetails,
    TiffLevel,
    TiffPageTags,
    TiffTagTuple,
    described_as,
    with_exif,
    without_statistics,
)
from integrodiff.io.image import ImageHeader, Page
from integrodiff.validity import Mask, Validity

_WHITE_IS_ZERO, _GREY, _RGB, _TRANSPARENCY, _SEPARATED = 0, 1, 2, 4, 5
_NONE, _DEFLATE = 1, 8
_PREDICTED = {2: "iu", 3: "f"}
"""Kinds of numbers by predictor: differences of integers, and of the bytes of floats."""

_INCH = 2
_SHORT, _BYTE, _ASCII, _UNDEFINED = 3, 1, 2, 7
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
        self._options: dict[str, Any] = {
            "photometric": self._details.photometric,
            "metadata": None,
            "software": False,
        }
        if header.values_per_pixel > 1:
            self._options["planarconfig"] = "separate" if self._details.planar else "contig"
            self._options["extrasamples"] = _extra_samples(header, self._details)
        needed = sum(prod(level.size) for levels in self._details.levels for level in levels)
        needed = header.nbytes + needed * header.values_per_pixel * header.dtype.itemsize
        self._layout = Layout(self._details.byteorder, self._details.big or needed > _CLASSIC_LIMIT)
        self._number = 0
        self._written: list[TiffPageTags] = []
        self._unordered: BinaryIO | None = None
        if self._details.cloud_optimised:
            stream = TemporaryFile(dir=self.path.parent)  # noqa: SIM115 - closed with the others
            self._unordered = self._opened.enter_context(stream)
        self._writer = self._opened.enter_context(
            TiffWriter(
                self.path if self._unordered is None else named(self._unordered),
                byteorder=self._layout.order,
                bigtiff=self._layout.big,
            )
        )

    @staticmethod
    def problem(header: ImageHeader) -> str | None:
        """Return None: TIFF holds everything that is read here."""
        return None

    def write(self, page: Page) -> None:
        """Write the next page, and its smaller versions."""
        details, number = self._details, self._number
        tags = described_as(_tags_of_page(details, number), page.pixels.dtype)
        levels = details.levels[number] if number < len(details.levels) else ()
        below = {"subifds": len(levels)} if levels and details.below else {}
        mask, masks = self.header.mask, list(details.masks)
        self._write(page, tags, details.storage, **below)
        if mask is not None and masks:
            self._write_mask(mask, masks.pop(0), subfiletype=4)
        reduced = []
        for level in levels:
            page = self._reduced(page, level.size, mask)
            mask = None if mask is None else smaller(mask.astype(np.float32), level.size) > 0
            self._write(page, level.tags, level.storage, subfiletype=level.kind)
            reduced.append(mask)
        for level, small in zip(masks, reduced, strict=False):
            if small is not None:
                self._write_mask(small, level, subfiletype=5)
        self._number += 1

    def _write_mask(self, mask: Mask, level: TiffLevel, *, subfiletype: int) -> None:
        """Write a mask as a page of one bit per pixel."""
        with _silence():
            self._writer.write(
                mask,
                photometric=_TRANSPARENCY,
                subfiletype=subfiletype,
                extratags=level.tags.tags,
                metadata=None,
                software=False,
                **_usable_storage(level.storage, mask.dtype),
            )
        self._written.append(level.tags)

    def _write(self, page: Page, tags: TiffPageTags, storage: Storage, **options: int) -> None:
        """Write a page with its tags."""
        samples = page.samples
        if self._details.planar and samples.ndim == 3:
            samples = np.moveaxis(samples, -1, -3)
        if self.header.metadata.derivation is not None:
            tags = without_statistics(tags)
        more: dict[str, Any] = {**options, **_usable_storage(storage, samples.dtype)}
        if tags.resolution is not None:
            more |= {"resolution": tags.resolution, "resolutionunit": tags.resolution_unit}
        placeholders = [
            (code - 1, *pointer(0, self._layout)[:2], 0, False) for code, _ in tags.exif
        ]
        with _silence():
            self._writer.write(
                np.ascontiguousarray(samples),
                extratags=(*tags.tags, *placeholders),
                **self._options,
                **more,
            )
        self._written.append(tags)

    def _reduced(self, page: Page, size: tuple[int, int], mask: Mask | None) -> Page:
        """Return a smaller version of a page, of which invalid and transparent pixels are none."""
        rules = Validity(nodata=self.header.nodata)
        rules = rules if mask is None else rules.with_mask([mask], "mask")
        counted = rules.of(page.pixels)
        if page.alpha is None:
            return Page(smaller(page.pixels, size, counted))
        seen = page.alpha != 0
        counted = seen if counted is None else seen & counted
        return Page(smaller(page.pixels, size, counted), smaller(page.alpha, size))

    def close(self) -> None:
        """Finish the file."""
        complete = self._number == self.header.pages
        with _silence():
            if self._unordered is not None and complete:
                self._writer.close()
                with self.path.open("wb") as target:
                    write_cloud_optimised(self._unordered, target, self._layout)
            super().close()
            if complete and any(tags.exif or tags.extra for tags in self._written):
                self._finish_directories()

    def _finish_directories(self) -> None:
        """Add EXIF data, which tifffile does not write, and take away what it adds by itself.

        In place of the tags that say where EXIF data are it wrote tags of the codes before, which
        mean nothing else.
        """
        with self.path.open("r+b") as stream:
            places = directory_places(stream, self._layout)
            for place, tags in zip(places, self._written, strict=True):
                changes: dict[int, bytes] = dict.fromkeys(tags.extra, b"")
                for code, directory in tags.exif:
                    there = stream.seek(0, SEEK_END)
                    there += there % 2
                    stream.seek(there)
                    stream.write(directory_bytes(directory, there, self._layout))
                    row = self._layout.tag.pack(code, *pointer(there, self._layout))
                    changes[code - 1] = row
                if changes:
                    change_directory(stream, place, self._layout, changes)

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


def _usable_storage(storage: Storage, dtype: np.dtype[Any]) -> dict[str, Any]:
    """Return compression, predictor, tiles and strips of the original as far as possible.

    Compression with loss becomes deflate.
    """
    tile, rows = storage.tile, storage.rows
    if tile is not None and any(length <= 0 or length % 16 for length in tile):
        tile = None  # against the standard
    found = {"tile": tile, "rowsperstrip": rows if rows > 0 and tile is None else None}
    # None, LZW, PackBits, LZMA, and deflate and Zstandard by two numbers each.
    lossless = (_NONE, 5, _DEFLATE, 32946, 32773, 34925, 34926, 50000)
    compression = storage.compression
    if compression not in lossless or compression not in tifffile.TIFF.COMPRESSORS:
        return {**found, "compression": _DEFLATE, "predictor": 1}
    kind = _PREDICTED.get(storage.predictor, "")
    keep = (
        compression != _NONE
        and dtype.kind in kind
        and storage.predictor in tifffile.TIFF.PREDICTORS
    )
    return {**found, "compression": compression, "predictor": storage.predictor if keep else 1}


def _extra_samples(header: ImageHeader, details: TiffDetails) -> tuple[int, ...]:
    """Return what the samples beyond the colours mean: alpha, or nothing in particular."""
    if header.has_alpha:
        return (details.alpha_kind,)
    colours = {_RGB: 3, _SEPARATED: 4}.get(details.photometric, 1)
    return (0,) * (header.layout.samples - colours)


def _new_details(header: ImageHeader) -> tuple[TiffDetails, tuple[str, ...]]:
    """Return the layout for an image that comes from another format, and what is left behind."""
    grey = _WHITE_IS_ZERO if header.metadata.white_is_zero else _GREY
    colours = _RGB if header.layout.samples == 3 else grey
    details = TiffDetails(
        photometric=_SEPARATED if header.metadata.inks else colours,
        pages=(_new_tags(header),),
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


def _new_tags(header: ImageHeader) -> TiffPageTags:
    """Return the metadata that TIFF has tags for, and the axes in OME-XML."""
    metadata = header.metadata
    tags: list[TiffTagTuple] = []
    axes = new_ome_xml(header.layout, header.values_per_pixel, header.dtype, header.spacing)
    if axes is not None:
        tags.append((DESCRIPTION, _ASCII, len(axes) + 1, axes + b"\0", True))
    if metadata.orientation != 1:
        tags.append((ORIENTATION, _SHORT, 1, metadata.orientation, False))
    if metadata.xmp is not None:
        tags.append((XMP, _BYTE, len(metadata.xmp), metadata.xmp, False))
    if metadata.icc_profile is not None:
        profile = metadata.icc_profile
        tags.append((ICC_PROFILE, _UNDEFINED, len(profile), profile, False))
    return TiffPageTags(tags=tuple(tags), resolution=metadata.dpi, resolution_unit=_INCH)
