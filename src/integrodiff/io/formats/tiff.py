"""TIFF, through tifffile.

Pages are read and written in the order of the file, with the descriptions they had, so that what
these say about the pages stays true. The axes are those that ImageJ, OME-XML or tifffile's own
description declares. Of a pyramid the full resolution is read; a new file has a new pyramid.
"""

from __future__ import annotations

import logging
import struct
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from itertools import product
from math import prod
from pathlib import Path
from typing import Any, Literal, TypeAlias

import numpy as np
import tifffile
from numpy.typing import NDArray
from tifffile import TiffFile, TiffFileError, TiffPage, TiffPageSeries

from integrodiff.install import install_first
from integrodiff.io.access import (
    ImageReader,
    decoding,
    native,
    parsing,
    refusal,
    refuse_bomb,
    refuse_missing_bytes,
    refuse_no_pixels,
)
from integrodiff.io.bounded import check_size
from integrodiff.io.formats.exif import Layout
from integrodiff.io.formats.jpeg_segments import jpeg_size
from integrodiff.io.formats.ome_xml import OmeError, is_ome_xml, ome_axes
from integrodiff.io.formats.tiff_levels import (
    Pyramid,
    is_cloud_optimised,
    level_of,
    pyramid_of,
    storage_of,
)
from integrodiff.io.formats.tiff_tags import (
    TiffDetails,
    TiffPageTags,
    declared_nodata,
    page_tags,
    tag_notes,
    tiff_metadata,
)
from integrodiff.io.formats.tiff_writing import Writer
from integrodiff.io.image import ImageHeader, Page
from integrodiff.io.registry import has_package
from integrodiff.io.spacing import Spacing, declared
from integrodiff.validity import Mask

__all__ = ["Reader", "Writer"]

Axes: TypeAlias = tuple[tuple[str, int], ...]
"""Letters and lengths of axes."""

_ASSOCIATED, _UNASSOCIATED = 1, 2
"""Kinds of alpha among the extra samples."""

_RGB, _PALETTE, _SEPARATED, _YCBCR = 2, 3, 5, 6
_PLANAR = 2
"""Kinds of colours, besides grey."""

_NONE, _JPEG = 1, 7
_COMPRESSIONS = (_NONE, 5, _JPEG, 8, 32773, 32946, 34925, 34926, 50000)
"""None, LZW, JPEG, deflate, PackBits, deflate again, LZMA, and Zstandard by two numbers."""

_STREAMS = {8: "zlib", 32946: "zlib", 34925: "lzma"}
"""Compressions that tifffile decodes by the standard library if there is no imagecodecs."""

_INK_SET, _CMYK = 332, 1
"""The tag with the kind of inks, and the usual ones."""

_LARGEST_PADDING = 16
"""How often a page may fit into its tiles, which reach over its borders."""

_SMALL = 2**28
"""Bytes of a page with its padding that are always accepted."""

_JPEG_PADDING = 4
"""How often a tile may fit into its JPEG image, whose blocks reach over the borders."""

_PLAIN_KINDS = ("generic", "uniform", "shaped", "imagej", "geotiff")
"""Kinds of series in tifffile whose pages can be written again one by one."""

_RESOLUTIONS = (72, 96, 100, 150, 200, 240, 300, 350, 360, 400, 600, 720, 1200, 2400)
"""Pixels per inch for screens and paper. Like one pixel per unit, which programs write where they
know nothing, they say nothing about the object."""


class Reader(ImageReader):
    """A TIFF file: one image, or a stack of pages of the same kind."""

    library_errors = (AttributeError, TypeError, TiffFileError)  # the first two over odd tags

    def _read_header(self) -> ImageHeader:
        path = self.path
        _refuse_circle_of_pages(path)
        with _listening(path) as heard:
            # With OME-XML, tifffile would open the other files of a data set that spans several.
            tif = self._opened.enter_context(TiffFile(path, is_ome=False))
            self._stream = tif.filehandle
            pyramid = pyramid_of(path, [item.aspage() for item in tif.pages])
            self._pages = pyramid.pages
            self._series = _only_series(path, tif, pyramid)
            page = self._series.keyframe
            _refuse_kinds(path, page)
            _refuse_missing_data(path, tif, self._series, whole=self.whole_planes)
            mask = _mask(path, tif, pyramid)
            plane_axes = _plane_axes(path, self._series, pyramid)
            pages = tuple(page_tags(item) for item in self._pages)
            with parsing(path, "description of its pixels"):
                self._details = TiffDetails(
                    photometric=_RGB if _is_colour(page) else int(page.photometric),
                    planar=page.axes == "SYX",
                    alpha_kind=int(page.extrasamples[0]) if page.extrasamples else 0,
                    storage=storage_of(page),
                    byteorder=tif.byteorder,
                    big=tif.is_bigtiff,
                    pages=pages,
                    levels=pyramid.levels,
                    below=pyramid.below,
                    masks=tuple(level_of(item) for item in pyramid.masks),
                    cloud_optimised=not pyramid.below and is_cloud_optimised(tif),
                )
            self._colours = _colour_tables(path, self._pages)
            plane_axes, spacing, axes_notes = _declared_axes(tif, page, plane_axes)
        nodata, nodata_notes = declared_nodata(self._pages[0])
        notes = (*_notes(page), *axes_notes, *tag_notes(self._pages, self._details), *nodata_notes)
        notes += (*pyramid.notes, *_beside(path))
        header = self._header(page, plane_axes, spacing, (*notes, *heard))
        return replace(header, nodata=nodata, mask=mask)

    def _header(
        self, page: TiffPage, plane_axes: Axes, spacing: dict[str, Spacing], notes: tuple[str, ...]
    ) -> ImageHeader:
        """Tell grey values, colours, and alpha among the samples."""
        colours = 4 if page.photometric == _SEPARATED else 3 if _is_colour(page) else 1
        samples = colours if self._colours is not None else page.samplesperpixel
        has_alpha = samples == colours + 1 and (
            (colours == 3 and not _has_bands(page))
            or self._details.alpha_kind in (_ASSOCIATED, _UNASSOCIATED)
        )
        channels = samples - has_alpha
        if has_alpha and self._details.alpha_kind == 0:
            notes += ("the fourth sample of the file has no given meaning; it is kept as alpha",)
        dtype = np.dtype(page.dtype) if self._colours is None else self._colours.dtype
        axes = (*plane_axes, ("Y", page.imagelength), ("X", page.imagewidth))
        axes += (("S", channels),) if channels > 1 else ()
        return ImageHeader(
            shape=tuple(length for _, length in axes),
            dtype=native(dtype),
            axes="".join(letter for letter, _ in axes),
            has_alpha=has_alpha,
            spacing=spacing,
            metadata=tiff_metadata(self._details),
            notes=notes,
        )

    def _read_pages(self) -> Iterator[Page]:
        for number in range(self.header.pages):
            with _listening(self.path):
                samples = self._samples(number)
            samples = samples.astype(native(samples.dtype), copy=False)
            if self._details.planar:
                samples = np.moveaxis(samples, -3, -1)
            yield self._page(samples, number)

    def _samples(self, number: int) -> NDArray[Any]:
        """Return the samples of a page as they are stored."""
        page = self._series.keyframe
        offset = self._series.dataoffset
        if len(self._pages) < self.header.pages and offset is not None:
            # A stack that is stored as one page with all others behind it.
            stored = np.dtype(page.dtype).newbyteorder(self._details.byteorder)
            self._stream.seek(offset + number * page.nbytes)
            samples: NDArray[Any] = self._stream.read_array(stored, page.size)
            return samples.reshape(page.shape)
        _refuse_long_segments(self.path, page, self._pages[number])
        try:
            return np.asarray(self._pages[number].asarray())
        except (ValueError, ImportError, NotImplementedError) as error:
            if isinstance(error, ImportError) or "imagecodecs" in str(error):
                raise _needs_imagecodecs(self.path, page) from error
            raise

    def _page(self, samples: NDArray[Any], number: int) -> Page:
        """Separate alpha from colours, and look colours up if there is a table of them."""
        if self._colours is not None:
            return Page(self._colours[number % len(self._colours)][samples])
        if not self.header.has_alpha:
            return Page(np.ascontiguousarray(samples))
        colours = samples[..., :-1] if self.layout.has_samples else samples[..., 0]
        return Page(np.ascontiguousarray(colours), np.ascontiguousarray(samples[..., -1]))


class Windows(Reader):
    """The same for images whose planes do not fit into memory."""

    whole_planes = False

    @property
    def chunks(self) -> tuple[int, ...]:
        """Size of the strips or tiles along the axes of the image, without samples."""
        page = self._series.keyframe
        sides = page.tilelength, page.tilewidth
        if not page.is_tiled:
            sides = min(page.rowsperstrip, page.imagelength), page.imagewidth
        return (*(1 for _ in self.layout.plane_grid), *sides)

    def opener(self) -> Callable[[], Windows]:
        """Return a function that opens the file again."""
        return partial(Windows, self.path)

    def window(self, index: tuple[slice, ...]) -> NDArray[Any]:
        """Return a part of the image, given by its place along all axes but that of samples."""
        *leading, rows, columns = index
        grid = [range(part.start, part.stop) for part in leading]
        planes = []
        for place in product(*grid):
            with decoding(self.path, *self.library_errors), _listening(self.path):
                number = self.layout.plane_at(place)
                samples = self._window(number, rows, columns)
                samples = samples.astype(native(samples.dtype), copy=False)
                planes.append(self._page(samples, number).pixels)
        return np.stack(planes).reshape(*map(len, grid), *planes[0].shape)

    def _window(self, number: int, rows: slice, columns: slice) -> NDArray[Any]:
        """Return samples ``(row, column, sample)`` of a page, or ``(row, column)`` of one."""
        page, offset = self._series.keyframe, self._series.dataoffset
        size = rows.stop - rows.start, columns.stop - columns.start
        separate = page.samplesperpixel if self._details.planar else 1
        together = page.samplesperpixel // separate
        result = np.empty((separate, *size, together), native(np.dtype(page.dtype)))
        if len(self._pages) < self.header.pages and offset is not None:
            stored = np.dtype(page.dtype).newbyteorder(self._details.byteorder)
            shape = (separate, page.imagelength, page.imagewidth, together)
            start = offset + number * page.nbytes
            result[...] = np.memmap(self.path, stored, "r", start, shape)[:, rows, columns]
        else:
            for segment in self._segments(page, rows, columns):
                self._decode_into(result, number, segment, rows.start, columns.start)
        samples = np.moveaxis(result[..., 0], 0, -1) if separate > 1 else result[0]
        return samples if page.samplesperpixel > 1 else samples[..., 0]

    def _segments(self, page: TiffPage, rows: slice, columns: slice) -> Iterator[int]:
        """Give the numbers of the strips or tiles that a window touches."""
        height, width = self.chunks[-2:]
        down, across = -(-page.imagelength // height), -(-page.imagewidth // width)
        for sample in range(page.samplesperpixel if self._details.planar else 1):
            for y in range(rows.start // height, -(-rows.stop // height)):
                for x in range(columns.start // width, -(-columns.stop // width)):
                    yield (sample * down + y) * across + x

    def _decode_into(
        self, result: NDArray[Any], number: int, segment: int, top: int, left: int
    ) -> None:
        """Decode a strip or tile, and copy what the window from a place on has of it."""
        page, item = self._series.keyframe, self._pages[number]
        self._stream.seek(item.dataoffsets[segment])
        data = self._stream.read(item.databytecounts[segment])
        if data:
            _refuse_long_segment(self.path, page, data)
        try:
            values, place, shape = page.decode(
                data or None, segment, jpegtables=item.jpegtables, jpegheader=item.jpegheader
            )
        except (ValueError, ImportError, NotImplementedError) as error:
            if isinstance(error, ImportError) or "imagecodecs" in str(error):
                raise _needs_imagecodecs(self.path, page) from error
            raise
        sample, _, y, x, _ = place
        height, width = shape[1:3]
        first, last = max(y, top), min(y + height, top + result.shape[1])
        begin, end = max(x, left), min(x + width, left + result.shape[2])
        target = result[sample, first - top : last - top, begin - left : end - left]
        if values is None:
            target[...] = page.nodata
        else:
            target[...] = values[0, first - y : last - y, begin - x : end - x]

    @property
    def stamp(self) -> str:
        """A text that is another one after a change of the file."""
        about = self.path.stat()
        return f"{about.st_size} {about.st_mtime_ns}"


def _is_colour(page: TiffPage) -> bool:
    """Whether the pixels become red, green and blue; YCbCr does when JPEG is decoded."""
    return page.photometric in (_RGB, _PALETTE, _YCBCR)


def _has_bands(page: TiffPage) -> bool:
    """Whether samples besides the colours are bands of a satellite, and none is transparency."""
    return page.is_geotiff and not any(page.extrasamples)


def _beside(path: Path) -> tuple[str, ...]:
    """Report files beside a TIFF file that GDAL takes for a part of it."""
    names = [f"{path.name}{suffix}" for suffix in (".aux.xml", ".ovr", ".msk")]
    found = [name for name in (*names, f"{path.stem}.tfw") if path.with_name(name).is_file()]
    words = "not read and not carried over: the file beside it with more about the image, "
    return (words + ", ".join(found),) if found else ()


def _colour_tables(path: Path, pages: list[TiffPage]) -> NDArray[Any] | None:
    """Return the colours of palettes, one in each row: one table for all pages or one for each.

    They have 8 bits if these are enough for all.
    """
    if pages[0].photometric != _PALETTE:
        return None
    size = np.asarray(pages[0].colormap, np.uint16).nbytes
    if len(pages) * size > _SMALL:  # pages may share theirs in the file
        raise refusal(path, f"has {len(pages)} pages with palettes; save it in RGB")
    colours = np.stack([np.asarray(page.colormap, np.uint16).T for page in pages])
    if (colours == colours[0]).all():
        colours = colours[:1]
    for scale in (257, 256):
        if not (colours % scale).any():
            return (colours // scale).astype(np.uint8)
    return colours


def _notes(page: TiffPage) -> tuple[str, ...]:
    """Report how the pixels differ from those in the file."""
    notes = []
    if page.photometric == _PALETTE:
        notes.append("the palette was expanded to RGB colours")
    if page.compression == _JPEG:
        notes.append("the file is compressed with loss (JPEG); a TIFF of the result is not")
    return tuple(notes)


@contextmanager
def _listening(path: Path) -> Iterator[list[str]]:
    """Collect the warnings that tifffile logs, and refuse the file if it logs an error.

    After some errors tifffile only logs a message, and would read the file in part.
    """
    warnings: list[str] = []
    errors: list[str] = []

    class Listener(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            message = record.getMessage()
            # A single odd tag does no harm; the tags of the layout are checked by themselves.
            fatal = record.levelno >= logging.ERROR and "TiffTag" not in message
            (errors if fatal else warnings).append(message)

    logger, listener = logging.getLogger("tifffile"), Listener(logging.WARNING)
    propagate, logger.propagate = logger.propagate, False
    logger.addHandler(listener)
    try:
        yield warnings
    finally:
        logger.removeHandler(listener)
        logger.propagate = propagate
    if errors:
        raise refusal(
            path,
            f"is damaged or incomplete ({errors[0]}); get it again from its source",
        )


def _refuse_circle_of_pages(path: Path) -> None:
    """Refuse a file whose chain of pages comes back to one of them; tifffile never ends there."""
    with decoding(path), path.open("rb") as stream:
        order: Literal["<", ">"] = "<" if stream.read(2) == b"II" else ">"
        big = struct.unpack(f"{order}H", stream.read(2))[0] == 43
        layout = Layout(order, big)
        stream.seek(8 if big else 4)
        seen: set[int] = set()
        while len(data := stream.read(layout.place.size)) == layout.place.size:
            (offset,) = layout.place.unpack(data)
            if offset == 0:
                return
            if offset in seen:
                raise refusal(
                    path, "is damaged: its pages form a circle; get it again from its source"
                )
            seen.add(offset)
            stream.seek(offset)
            if len(data := stream.read(layout.head.size)) < layout.head.size:
                return  # past the end of the file, which tifffile reports
            stream.seek(layout.tag.size * layout.head.unpack(data)[0], 1)


def _only_series(path: Path, tif: TiffFile, pyramid: Pyramid) -> TiffPageSeries:
    """Return the pages in full resolution as one series, or refuse the file."""
    series = tif.series
    if not series:
        raise refusal(path, "is a TIFF file without any image")
    if series[0].kind not in _PLAIN_KINDS:
        raise refusal(
            path,
            f"is a TIFF of the special kind {series[0].kind!r}, whose extra data would be lost; "
            "export it as plain, ImageJ or OME TIFF",
        )
    # Smaller versions may be series of their own.
    places = {page.offset for page in pyramid.pages}
    others = [one for one in series[1:] if one.keyframe.offset in places]
    if others or series[0].keyframe.offset not in places:
        raise refusal(
            path, f"holds {len(series)} series of images; save each of them to a file of its own"
        )
    return series[0]


def _refuse_kinds(path: Path, page: TiffPage) -> None:
    """Refuse files that are no grey or colour images, and those that cannot be written again."""
    if page.bitspersample == 1:
        raise refusal(
            path,
            "has one bit per pixel. That is a mask or a drawing, not an image with Gaussian "
            "noise; convert it to 8-bit grey first if you mean it",
        )
    name = getattr(page.compression, "name", str(page.compression))[:40]
    if page.compression not in _COMPRESSIONS:
        raise refusal(
            path,
            f"is compressed with {name}, which is not supported; save it without compression, or "
            "with deflate",
        )
    if page.compression not in tifffile.TIFF.DECOMPRESSORS:
        raise _needs_imagecodecs(path, page)
    supported = (0, 1, _RGB, _PALETTE, _SEPARATED)
    if page.photometric not in supported and (page.photometric, page.compression) != (
        _YCBCR,
        _JPEG,
    ):
        name = getattr(page.photometric, "name", str(page.photometric))
        raise refusal(
            path,
            f"has colours of the kind {name}, and only grey, RGB and CMYK are supported; convert "
            "it",
        )
    dtype = page.dtype
    if dtype is None or dtype.kind not in "iuf" or page.bitspersample != 8 * dtype.itemsize:
        what = "complex" if dtype is not None and dtype.kind == "c" else f"{page.bitspersample}-bit"
        raise refusal(
            path,
            f"has {what} samples; supported are integers of 8, 16, 32 and 64 bits and floating "
            "point of 16, 32 and 64 bits. Convert it to one of these",
        )
    if page.axes not in ("YX", "YXS", "SYX"):
        raise refusal(path, "stores volumes in single pages; save it with one page per slice")
    refuse_no_pixels(path, page.shape)
    if page.planarconfig not in (1, 2):
        raise refusal(path, "is damaged: it does not say how its samples are arranged")
    if page.photometric == _PALETTE:
        if page.samplesperpixel != 1 or dtype.kind != "u":
            raise refusal(path, "has a palette and no plain indices into it; save it as RGB")
        if page.colormap is None:
            raise refusal(path, "is damaged: it has a palette without colours")
    if page.photometric == _SEPARATED:
        _refuse_other_inks(path, page)
        return
    extra = page.samplesperpixel - (3 if page.photometric in (_RGB, _YCBCR) else 1)
    alphas = [kind for kind in page.extrasamples if kind != 0]
    colour = page.photometric in (_RGB, _YCBCR) and not _has_bands(page)
    if extra < 0 or (extra > 1 and (colour or alphas)):
        raise refusal(
            path,
            f"has {page.samplesperpixel} samples per pixel of unclear meaning; save it as grey "
            "or RGB, with at most one alpha channel",
        )


def _refuse_other_inks(path: Path, page: TiffPage) -> None:
    """Refuse inks that are not cyan, magenta, yellow and black, with at most one alpha channel."""
    usual = page.tags.valueof(_INK_SET, default=_CMYK) == _CMYK
    alphas = page.extrasamples
    if not usual or page.samplesperpixel - len(alphas) != 4 or alphas not in ((), (1,), (2,)):
        raise refusal(
            path,
            f"has {page.samplesperpixel} samples per pixel for inks that are not just CMYK; "
            "convert it to CMYK or RGB",
        )
    if page.compression == _JPEG:
        raise refusal(
            path,
            "has inks that are compressed with JPEG, of which programs disagree what they mean; "
            "save it without compression, or with deflate",
        )


def _mask(path: Path, tif: TiffFile, pyramid: Pyramid) -> Mask | None:
    """Return the mask that GDAL stores as a page of its own, True at valid pixels."""
    if not pyramid.masks:
        return None
    page = pyramid.masks[0]
    if page.compression not in _COMPRESSIONS or page.compression == _JPEG:
        raise refusal(path, "has a mask with a compression that is not supported; save it again")
    if page.compression not in tifffile.TIFF.DECOMPRESSORS:
        raise _needs_imagecodecs(path, page)
    refuse_no_pixels(path, page.shape)
    _refuse_missing_data(path, tif, TiffPageSeries([page]))
    _refuse_long_segments(path, page, page)
    return np.asarray(page.asarray() != 0)


def _refuse_missing_data(
    path: Path, tif: TiffFile, series: TiffPageSeries, *, whole: bool = True
) -> None:
    """Refuse a file whose bytes cannot be all of its pixels, before memory is taken for them."""
    page, size = series.keyframe, tif.filehandle.size
    incomplete = "it is damaged or incomplete. Get it again from its source"
    compressed = page.compression != _NONE
    sparse = False
    for item in series.pages:
        if item is None:
            continue
        if min(len(item.dataoffsets), len(item.databytecounts)) < prod(page.chunked):
            raise refusal(path, f"has fewer strips or tiles than its size asks for; {incomplete}")
        with parsing(path, "list of strips or tiles"):
            pairs = zip(item.dataoffsets, item.databytecounts, strict=False)
            last = max((offset + length for offset, length in pairs), default=0)
            # GDAL leaves tiles without data out of a file, whose size says little about its pixels.
            sparse |= page.is_tiled and 0 in item.databytecounts
        if last > size:
            raise refusal(path, f"ends before its pixels do; {incomplete}")
        if not (compressed or sparse) and sum(item.databytecounts) < page.nbytes:
            raise refusal(path, f"has fewer bytes than pixels; {incomplete}")
    compressed = compressed or sparse
    refuse_missing_bytes(path, series.nbytes, size, compressed=compressed)
    if compressed:
        # As in other formats, the samples of a colour, with alpha, are one pixel.
        together = max(1, min(page.samplesperpixel, 4))
        if whole:
            refuse_bomb(path, (-(-prod(page.shape) // together),))
        of_segment = 1 if page.planarconfig == _PLANAR else together
        refuse_bomb(path, (-(-prod(page.chunks) // of_segment),))
        # Tiles may reach over the borders, and are decoded whole.
        padded = prod(page.chunked) * _segment_bytes(page)
        if padded > max(_LARGEST_PADDING * page.nbytes, _SMALL):
            raise refusal(
                path,
                f"has strips or tiles for {padded // page.nbytes} times its pixels; save it with "
                "smaller tiles",
            )


def _segment_bytes(page: TiffPage) -> int:
    """Return the size of a strip or tile in memory."""
    return prod(page.chunks) * np.dtype(page.dtype).itemsize


def _refuse_long_segments(path: Path, page: TiffPage, item: TiffPage) -> None:
    """Refuse strips and tiles that hold more than their pixels, before they are decompressed.

    imagecodecs is given the size of the result; the decoders of the standard library, which
    tifffile takes without it, are not. The size of a JPEG image is its own in any case.
    """
    stream = item.parent.filehandle
    kind = None if has_package("imagecodecs") else _STREAMS.get(int(page.compression))
    if kind is None and page.compression != _JPEG:
        return
    for offset, length in zip(item.dataoffsets, item.databytecounts, strict=False):
        stream.seek(offset)
        _refuse_long_segment(path, page, stream.read(length))


def _refuse_long_segment(path: Path, page: TiffPage, data: bytes) -> None:
    """Refuse a strip or tile as :func:`_refuse_long_segments` does."""
    kind = None if has_package("imagecodecs") else _STREAMS.get(int(page.compression))
    if kind is not None:
        check_size(kind, data, _segment_bytes(page))
    elif page.compression == _JPEG and prod(jpeg_size(data)) > _JPEG_PADDING * prod(page.chunks):
        raise refusal(path, "is damaged: a strip or tile of it is larger than it may be")


def _needs_imagecodecs(path: Path, page: TiffPage) -> Exception:
    name = getattr(page.compression, "name", str(page.compression))
    what = f"{name} with predictor {int(page.predictor)}"
    return refusal(
        path,
        f"is compressed; {install_first(what, 'imagecodecs', 'codecs')}. Or save the file without "
        "compression, or with deflate and no predictor",
    )


def _plane_axes(path: Path, series: TiffPageSeries, pyramid: Pyramid) -> Axes:
    """Return the axes before those of a page, without those of length one, or refuse the file."""
    page = series.keyframe
    axes = tuple(pair for pair in zip(series.axes, series.shape, strict=True) if pair[1] != 1)
    inner = tuple(pair for pair in zip(page.axes, page.shape, strict=True) if pair[1] != 1)
    outer = axes[: max(len(axes) - len(inner), 0)]
    if axes[len(outer) :] != inner:
        raise refusal(
            path,
            f"has its image axes in the order {series.axes}, and its pages would not be images; "
            "save it with rows and columns last",
        )
    # A stack may be stored as one page with all others behind it.
    count = prod(length for _, length in outer)
    stored_pages = len(pyramid.pages)
    if stored_pages != count and (stored_pages > 1 or pyramid.levels):
        raise refusal(
            path,
            f"has {stored_pages} pages, and its description says {count}; save it again with the "
            "program that made it",
        )
    letters = [letter for letter, _ in outer]
    return tuple(
        (letter if letter in "TCZ" and letters.count(letter) == 1 else "Q", length)
        for letter, length in outer
    )


def _declared_axes(
    tif: TiffFile, page: TiffPage, axes: Axes
) -> tuple[Axes, dict[str, Spacing], tuple[str, ...]]:
    """Return the axes that pages are counted along, the spacing, and notes."""
    if is_ome_xml(page.description):
        pages = prod(length for _, length in axes)
        try:
            found = ome_axes(
                page.description, pages, (page.imagelength, page.imagewidth, page.samplesperpixel)
            )
        except OmeError as error:
            note = f"the OME-XML {error}; its pages are taken as pages without a stated meaning"
            return axes, {}, (note,)
        letters = "YX" + "".join(letter for letter, _ in found.axes)
        return found.axes, {k: v for k, v in found.spacing.items() if k in letters}, ()
    letters = "YX" + "".join(letter for letter, _ in axes)
    return axes, declared(_spacing(tif, page_tags(page)), letters), ()


def _spacing(tif: TiffFile, tags: TiffPageTags) -> Iterator[tuple[str, Any, Any]]:
    """Give what ImageJ or the resolution says about the distance of pixels, with its unit."""
    about = tif.imagej_metadata or {}
    if tif.imagej_metadata is not None:
        unit, per_inch = about.get("unit"), None
        # ImageJ writes neither a distance of one unit nor units that are the usual ones.
        usual = 1.0 if unit and "ImageJ" in about else None
        distance = about.get("spacing", usual)
        if isinstance(distance, (int, float)):
            distance = abs(distance)  # ImageJ, too, does not care about its sign
        yield "Z", distance, about.get("zunit", unit)
        yield "T", about.get("finterval"), about.get("tunit", "s")
    else:
        unit, per_inch = {2: ("inch", 1.0), 3: ("cm", 2.54)}.get(tags.resolution_unit, (None, None))
    if tags.resolution is None or not unit:
        return
    for letter, (pixels, units) in zip("XY", tags.resolution, strict=True):
        if pixels and per_inch:
            density = pixels / units * per_inch
            if any(abs(density - known) < 0.01 * known for known in (per_inch, *_RESOLUTIONS)):
                return
        own = about.get("yunit", unit) if letter == "Y" else unit
        yield letter, units / pixels if pixels else None, own
