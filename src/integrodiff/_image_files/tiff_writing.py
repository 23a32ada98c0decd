"""Writing TIFF, through tifffile."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import numpy as np
import tifffile
from numpy.typing import NDArray
from tifffile import TiffWriter

from integrodiff._image_files.image import (
    ImageFile,
    Metadata,
    TiffDetails,
    TiffPageTags,
    TiffTagTuple,
    joined_samples,
)
from integrodiff._image_files.tiff_tags import described_as

_GREY, _RGB = 1, 2
_NONE, _DEFLATE = 1, 8
_INCH = 2
_SHORT, _BYTE, _UNDEFINED = 3, 1, 7
"""Data types of tags."""

# Beyond this, offsets of 32 bits may not reach the end of the file.
_CLASSIC_LIMIT = 2**32 - 2**25


def write_tiff(path: Path, image: ImageFile) -> None:
    """Write a TIFF file, page by page and in the manner of the file that the image came from."""
    details = image.metadata.tiff or _new_details(image)
    samples = joined_samples(image)
    samples = samples.reshape(-1, *samples.shape[len(image.page_axes) :])
    if details.planar and samples.ndim == 4:
        samples = np.moveaxis(samples, -1, -3)
    compression, predictor = _usable_compression(details, samples.dtype)
    options: dict[str, Any] = {
        "photometric": details.photometric,
        "compression": compression,
        "predictor": predictor,
        "metadata": None,
        "software": False,
    }
    if samples.ndim == 4:
        options["planarconfig"] = "separate" if details.planar else "contig"
        options["extrasamples"] = _extra_samples(image, details)
    logger = logging.getLogger("tifffile")
    disabled, logger.disabled = logger.disabled, True
    try:
        with TiffWriter(
            path,
            byteorder=details.byteorder,
            bigtiff=details.big or samples.nbytes > _CLASSIC_LIMIT,
        ) as writer:
            for number, page in enumerate(samples):
                tags = described_as(_tags_of_page(details, number), page.dtype)
                _write_page(writer, page, tags, options)
    finally:
        logger.disabled = disabled


def _write_page(
    writer: TiffWriter, page: NDArray[Any], tags: TiffPageTags, options: dict[str, Any]
) -> None:
    if tags.resolution is not None:
        options = {
            **options,
            "resolution": tags.resolution,
            "resolutionunit": tags.resolution_unit,
        }
    writer.write(np.ascontiguousarray(page), extratags=tags.tags, **options)


def _tags_of_page(details: TiffDetails, number: int) -> TiffPageTags:
    """Return the tags of a page; a stack that was stored as one page has only one set of them."""
    if number < len(details.pages):
        return details.pages[number]
    return details.pages[0]._replace(tags=())


def _usable_compression(details: TiffDetails, dtype: np.dtype[Any]) -> tuple[int, int]:
    """Return compression and predictor of the original, or deflate where it was lossy."""
    lossless = (_NONE, 5, _DEFLATE, 32946)  # none, LZW, and the two numbers of deflate
    if details.compression not in lossless or (
        details.compression not in tifffile.TIFF.COMPRESSORS
    ):
        return _DEFLATE, 1
    horizontal = 2
    keep = details.predictor == horizontal and details.compression != _NONE and dtype.kind in "iu"
    return details.compression, horizontal if keep else 1


def _extra_samples(image: ImageFile, details: TiffDetails) -> tuple[int, ...]:
    """Return what the samples beyond the colours mean: alpha, or nothing in particular."""
    if image.alpha is not None:
        return (details.alpha_kind,)
    return (0,) * (image.channels - (3 if details.photometric == _RGB else 1))


def _new_details(image: ImageFile) -> TiffDetails:
    """Return the layout for an image that comes from another format."""
    return TiffDetails(
        photometric=_RGB if image.channels == 3 else _GREY,
        pages=(_new_tags(image.metadata),),
    )


def _new_tags(metadata: Metadata) -> TiffPageTags:
    """Return the metadata that TIFF has tags for."""
    tags: list[TiffTagTuple] = []
    if metadata.orientation != 1:
        tags.append((274, _SHORT, 1, metadata.orientation, False))
    if metadata.xmp is not None:
        tags.append((700, _BYTE, len(metadata.xmp), metadata.xmp, False))
    if metadata.icc_profile is not None:
        profile = metadata.icc_profile
        tags.append((34675, _UNDEFINED, len(profile), profile, False))
    return TiffPageTags(tags=tuple(tags), resolution=metadata.dpi, resolution_unit=_INCH)
