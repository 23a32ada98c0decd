"""Reading TIFF, through tifffile.

Pages are read in the order of the file and denoised one by one, so a stack can be written again
page by page with the descriptions it had. What these say about the meaning of the pages, such as
OME-XML, stays true and need not be understood.
"""

from __future__ import annotations

import logging
import struct
from collections.abc import Iterator
from contextlib import contextmanager
from math import prod
from pathlib import Path
from typing import Any

import numpy as np
import tifffile
from numpy.typing import NDArray
from PIL import Image
from tifffile import TiffFile, TiffPage, TiffPageSeries

from integrodiff._image_files.image import ImageFile, TiffDetails, decoding, refusal
from integrodiff._image_files.tiff_tags import page_tags, tag_notes, tiff_metadata

_ASSOCIATED, _UNASSOCIATED = 1, 2
"""Kinds of alpha among the extra samples."""

_PLAIN_KINDS = ("generic", "uniform", "shaped", "imagej")
"""Ways of tifffile to see the pages of a file that leave the pages as they are."""

# No compression that tifffile reads makes data smaller by more than this.
_LARGEST_RATIO = 1500


def read_tiff(path: Path) -> ImageFile:
    """Read a TIFF file: one image, or a stack of pages of the same kind."""
    _refuse_circle_of_pages(path)
    # OME files are read as plain pages, which keeps tifffile from opening the other files of a
    # data set that spans several.
    with decoding(path), _listening(path) as heard, TiffFile(path, is_ome=False) as tif:
        pages = [item.aspage() for item in tif.pages]
        series = _only_series(path, tif, pages)
        page = series.keyframe
        _refuse_kinds(path, page)
        _refuse_missing_data(path, tif, series)
        page_axes = _page_axes(path, series, len(pages))
        samples = _decoded(path, series)
        details = TiffDetails(
            photometric=int(page.photometric),
            planar=page.axes == "SYX",
            alpha_kind=int(page.extrasamples[0]) if page.extrasamples else 0,
            compression=int(page.compression),
            predictor=int(page.predictor),
            byteorder=tif.byteorder,
            big=tif.is_bigtiff,
            pages=tuple(page_tags(item) for item in pages),
        )
        notes = (*tag_notes(pages), *heard)
    native = samples.reshape(*page_axes, *page.shape)
    native = native.astype(native.dtype.newbyteorder("="), copy=False)
    return _image(native, page, details, notes)


def _image(
    samples: NDArray[Any], page: TiffPage, details: TiffDetails, notes: tuple[str, ...]
) -> ImageFile:
    """Separate alpha from colours, with the samples last."""
    metadata = tiff_metadata(details)
    if page.samplesperpixel == 1:
        return ImageFile(pixels=samples, metadata=metadata, notes=notes)
    if details.planar:
        samples = np.moveaxis(samples, -3, -1)
    colours = 3 if details.photometric == 2 else 1
    extra = page.samplesperpixel - colours
    pixels, alpha, channel_axis = samples, None, -1
    if extra == 1 and (colours == 3 or details.alpha_kind in (_ASSOCIATED, _UNASSOCIATED)):
        pixels, alpha = samples[..., :colours], np.ascontiguousarray(samples[..., -1])
        if details.alpha_kind == 0:
            notes += ("the fourth sample of the file has no given meaning; it is kept as alpha",)
        if colours == 1:
            return ImageFile(
                pixels=np.ascontiguousarray(pixels[..., 0]),
                alpha=alpha,
                metadata=metadata,
                notes=notes,
            )
    elif extra:
        notes += (f"the {page.samplesperpixel} channels are denoised together",)
    return ImageFile(
        pixels=np.ascontiguousarray(pixels),
        channel_axis=channel_axis,
        alpha=alpha,
        metadata=metadata,
        notes=notes,
    )


@contextmanager
def _listening(path: Path) -> Iterator[list[str]]:
    """Collect tifffile's warnings in place of the terminal; its errors refuse the file.

    Some errors of tifffile are messages only, and the file would then be read in part.
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
        order = "<" if stream.read(2) == b"II" else ">"
        big = struct.unpack(f"{order}H", stream.read(2))[0] == 43
        # Formats of the number of tags and of an offset, and the sizes of these and of a tag.
        count_format, offset_format = (
            (f"{order}Q", f"{order}Q") if big else (f"{order}H", f"{order}I")
        )
        count_size, offset_size, tag_size = (8, 8, 20) if big else (2, 4, 12)
        stream.seek(8 if big else 4)
        seen: set[int] = set()
        while len(data := stream.read(offset_size)) == offset_size:
            offset = struct.unpack(offset_format, data)[0]
            if offset == 0:
                return
            if offset in seen:
                raise refusal(
                    path, "is damaged: its pages form a circle; get it again from its source"
                )
            seen.add(offset)
            stream.seek(offset)
            if len(data := stream.read(count_size)) < count_size:
                return  # past the end of the file, which tifffile reports
            stream.seek(tag_size * struct.unpack(count_format, data)[0], 1)


def _only_series(path: Path, tif: TiffFile, pages: list[TiffPage]) -> TiffPageSeries:
    """Return the pages of the file as one series, or refuse it."""
    kinds = len({page.hash for page in pages})
    if kinds > 1 or any(page.subifds for page in pages):
        raise refusal(
            path,
            "holds several series of images, of different size or type or the same image in "
            "several resolutions; save each of them, or the full resolution, to a file of its "
            "own",
        )
    series = tif.series
    if not series:
        raise refusal(path, "is a TIFF file without any image")
    if series[0].kind not in _PLAIN_KINDS:
        raise refusal(
            path,
            f"is a TIFF of the special kind {series[0].kind!r}, whose extra data would be lost; "
            "export it as plain, ImageJ or OME TIFF",
        )
    if len(series) > 1:
        raise refusal(
            path, f"holds {len(series)} series of images; save each of them to a file of its own"
        )
    return series[0]


def _refuse_kinds(path: Path, page: TiffPage) -> None:
    """Refuse what is no image with Gaussian noise, and what cannot be written again."""
    if page.bitspersample == 1:
        raise refusal(
            path,
            "has one bit per pixel. That is a mask or a drawing, not an image with Gaussian "
            "noise; convert it to 8-bit grey first if you mean it",
        )
    if page.photometric not in (0, 1, 2):
        name = getattr(page.photometric, "name", str(page.photometric))
        raise refusal(
            path,
            f"has colours of the kind {name}, and only grey and RGB are supported; convert it",
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
    if 0 in page.shape:
        raise refusal(path, f"has an image without pixels: its shape is {page.shape}")
    extra = page.samplesperpixel - (3 if page.photometric == 2 else 1)
    alphas = [kind for kind in page.extrasamples if kind != 0]
    if extra < 0 or (extra > 1 and (page.photometric == 2 or alphas)):
        raise refusal(
            path,
            f"has {page.samplesperpixel} samples per pixel of unclear meaning; save it as grey "
            "or RGB, with at most one alpha channel",
        )


def _refuse_missing_data(path: Path, tif: TiffFile, series: TiffPageSeries) -> None:
    """Refuse a file whose bytes cannot be all of its pixels, before memory is taken for them."""
    page, size = series.keyframe, tif.filehandle.size
    incomplete = "it is damaged or incomplete. Get it again from its source"
    if page.compression not in tifffile.TIFF.DECOMPRESSORS:
        raise _needs_imagecodecs(path, page)
    for item in series.pages:
        if item is None:
            continue
        ends = [o + n for o, n in zip(item.dataoffsets, item.databytecounts, strict=False)]
        if max(ends, default=0) > size:
            raise refusal(path, f"ends before its pixels do; {incomplete}")
        if page.compression == 1 and sum(item.databytecounts) < page.nbytes:
            raise refusal(path, f"has fewer bytes than pixels; {incomplete}")
    if series.nbytes > (size if page.compression == 1 else _LARGEST_RATIO * size):
        raise refusal(path, f"claims {series.nbytes} bytes of pixels in {size}; {incomplete}")
    limit = 2 * (Image.MAX_IMAGE_PIXELS or 0)
    if page.compression != 1 and limit and prod(page.shape) > limit:
        raise refusal(
            path,
            f"has more pixels on a page than the limit against decompression bombs allows, "
            f"{limit}; cut it into parts, or save it without compression",
        )


def _decoded(path: Path, series: TiffPageSeries) -> NDArray[Any]:
    """Return all samples of the series."""
    try:
        return series.asarray()
    except (ValueError, ImportError, NotImplementedError) as error:
        if isinstance(error, ImportError) or "imagecodecs" in str(error):
            raise _needs_imagecodecs(path, series.keyframe) from error
        raise


def _needs_imagecodecs(path: Path, page: TiffPage) -> Exception:
    name = getattr(page.compression, "name", str(page.compression))
    return refusal(
        path,
        f"is compressed with {name}, predictor {int(page.predictor)}, which cannot be read here; "
        "install the package that can (pip install imagecodecs), or save the file without "
        "compression or with deflate and no predictor",
    )


def _page_axes(path: Path, series: TiffPageSeries, stored_pages: int) -> tuple[int, ...]:
    """Return the lengths of the axes before those of a page, or refuse a contradiction."""
    page = series.keyframe
    axes, shape = series.get_axes(squeeze=False), series.get_shape(squeeze=False)
    if axes.endswith("S") and not page.axes.endswith("S"):
        axes, shape = axes[:-1], shape[:-1]
    if not axes.endswith(page.axes) or shape[-len(page.shape) :] != page.shape:
        raise refusal(
            path,
            f"has its image axes in the order {axes}, and its pages would not be images; save "
            "it with rows and columns last",
        )
    lengths = shape[: -len(page.shape)]
    # A stack may be stored as one page with all others behind it.
    if stored_pages not in (1, prod(lengths)):
        raise refusal(
            path,
            f"has {stored_pages} pages, and its description says {prod(lengths)}; save it again "
            "with the program that made it",
        )
    return tuple(length for length in lengths if length != 1)
