"""Pyramids in TIFF files: which pages are smaller versions of others.

OME-TIFF has them in directories below that of a page (SubIFDs). GDAL and ImageMagick let
them follow the page in the chain of pages, usually marked as reduced. Only their sizes and tags
are read: their pixels are computed anew.
"""

from __future__ import annotations

from collections.abc import Iterable
from itertools import pairwise
from pathlib import Path
from typing import NamedTuple

from tifffile import TiffFile, TiffPage

from integrodiff.io.access import parsing, refusal
from integrodiff.io.formats.tiff_tags import Storage, TiffLevel, page_tags

_MOST_LEVELS = 40
"""Twice as many as the largest image has if each level has half the size of the one before."""

_LARGEST_TILE = 2**24
"""Pixels of a tile of a smaller version that are always accepted; more have to be in the image."""

_NUMBERS = {
    "imagelength": "height",
    "imagewidth": "width",
    "photometric": "kind of colours",
    "compression": "kind of compression",
    "samplesperpixel": "number of samples",
    "subfiletype": "kind of image",
    "tilelength": "height of tiles",
    "tilewidth": "width of tiles",
}
"""What has one value in a page, by its name in tifffile, which hands on any number of them."""

_REDUCED, _MASK = 1, 4
"""Bits that say what a page is."""

_UNMARKED = (
    "each page has half the size of the one before; they are taken for smaller versions of the "
    "first, and computed anew"
)

_GHOST = b"GDAL_STRUCTURAL_METADATA_SIZE="
_GHOST_LAYOUT = b"LAYOUT=IFDS_BEFORE_DATA"
_GHOST_LENGTH = 400


class Pyramid(NamedTuple):
    """The pages of a file in full resolution, and their smaller versions.

    Attributes
    ----------
    pages : list of TiffPage
        Those in full resolution.
    levels : tuple of tuple of TiffLevel
        The smaller versions of each page, the largest first; empty if there are none.
    below : bool
        Whether they are in directories below that of their page.
    masks : tuple of TiffPage
        Pages that say which pixels are valid, in full resolution and then those of the levels.
    notes : tuple of str
        Remarks for the user.
    """

    pages: list[TiffPage]
    levels: tuple[tuple[TiffLevel, ...], ...] = ()
    below: bool = False
    masks: tuple[TiffPage, ...] = ()
    notes: tuple[str, ...] = ()


def pyramid_of(path: Path, pages: list[TiffPage]) -> Pyramid:
    """Tell pages in full resolution from smaller versions, or refuse the file.

    Parameters
    ----------
    path : Path
        The file.
    pages : list of TiffPage
        The chain of its pages.
    """
    for page in pages:
        _refuse_odd_numbers(path, page)
    masks = tuple(page for page in pages if page.subfiletype & _MASK)
    pages = [page for page in pages if not page.subfiletype & _MASK]
    groups: list[list[TiffPage]] = []
    for page in pages:
        if page.subfiletype & _REDUCED and groups and page.hash != groups[-1][0].hash:
            groups[-1].append(page)
        else:
            groups.append([page])
    unmarked = len(groups) == len(pages) and _are_halved(pages)
    if unmarked:
        groups = [pages]
    full = [group[0] for group in groups]
    if len({page.hash for page in full}) > 1:
        raise refusal(
            path,
            "holds several series of images, of different size or type; save each of them to a "
            "file of its own",
        )
    below = any(page.subifds for page in full)
    if below and len(full) < len(pages):
        raise _unclear(path, "both below its pages and between them")
    smaller = [_below(path, page) for page in full] if below else [group[1:] for group in groups]
    levels = tuple(_levels(path, page, found) for page, found in zip(full, smaller, strict=True))
    if any(_sizes(found) != _sizes(levels[0]) for found in levels[1:]):
        raise _unclear(path, "of other sizes for some pages than for others")
    levels = levels if levels and levels[0] else ()
    if masks and not _are_masks(masks, full, levels):
        raise refusal(
            path,
            "has masks of its pixels as pages of their own, which do not belong to one image; turn "
            "them into a nodata value or an alpha channel, for example by gdalwarp -dstalpha",
        )
    notes = (_UNMARKED,) if unmarked else ()
    return Pyramid(full, levels, below, masks, notes)


def _refuse_odd_numbers(path: Path, page: TiffPage) -> None:
    for name, what in _NUMBERS.items():
        if not isinstance(getattr(page, name), int):
            raise refusal(path, f"is damaged: the {what} of a page of it is not one number")


def _are_halved(pages: list[TiffPage]) -> bool:
    """Whether each page has half the size of the one before, in tiles, and is like it otherwise.

    ImageMagick does not mark the levels of its pyramids.
    """
    return len(pages) > 1 and all(
        page.is_tiled
        and (page.dtype, page.samplesperpixel, page.photometric)
        == (before.dtype, before.samplesperpixel, before.photometric)
        and page.imagelength in (before.imagelength // 2, -(-before.imagelength // 2))
        and page.imagewidth in (before.imagewidth // 2, -(-before.imagewidth // 2))
        for before, page in pairwise(pages)
    )


def _are_masks(
    masks: tuple[TiffPage, ...],
    full: list[TiffPage],
    levels: tuple[tuple[TiffLevel, ...], ...],
) -> bool:
    """Whether masks are those of a single page, and of its smaller versions or none of them."""
    if len(full) != 1 or any(
        (mask.samplesperpixel, mask.planarconfig) != (1, 1)
        or mask.bitspersample != 1
        or mask.axes != "YX"
        for mask in masks
    ):
        return False
    found = [(mask.imagelength, mask.imagewidth) for mask in masks]
    size = full[0].imagelength, full[0].imagewidth
    return found == [size, *(_sizes(levels[0]) if levels and len(found) > 1 else [])]


def _unclear(path: Path, what: str) -> Exception:
    return refusal(
        path,
        f"holds the same image in several resolutions in an unusual way, {what}; save the full "
        "resolution to a file of its own",
    )


def _sizes(levels: Iterable[TiffLevel]) -> list[tuple[int, int]]:
    return [level.size for level in levels]


def _below(path: Path, page: TiffPage) -> list[TiffPage]:
    """Return the pages whose directories are below that of a page."""
    with parsing(path, "list of smaller versions"):
        places = tuple(int(place) for place in page.subifds or ())
    if len(places) > _MOST_LEVELS:
        raise _unclear(path, f"with {len(places)} levels")
    found = []
    for number, place in enumerate(places):
        page.parent.filehandle.seek(place)
        found.append(TiffPage(page.parent, (page.index, number)))
        _refuse_odd_numbers(path, found[-1])
    return found


def _levels(path: Path, page: TiffPage, smaller: list[TiffPage]) -> tuple[TiffLevel, ...]:
    """Return the smaller versions of a page, if that is what they are."""
    if len(smaller) > _MOST_LEVELS:
        raise _unclear(path, f"with {len(smaller)} levels")
    height, width = page.imagelength, page.imagewidth
    levels = []
    for item in smaller:
        size = item.imagelength, item.imagewidth
        same = (item.dtype, item.samplesperpixel) == (page.dtype, page.samplesperpixel)
        if not same or item.subifds or not _is_smaller(size, (height, width)):
            raise _unclear(path, "with levels that are other images")
        if item.tilelength * item.tilewidth > max(_LARGEST_TILE, height * width):
            raise _unclear(path, "with tiles far larger than the image")
        with parsing(path, "description of a smaller version"):
            levels.append(level_of(item))
    order = sorted(levels, key=lambda level: level.size, reverse=True)
    for before, after in pairwise(order):
        if not _is_smaller(after.size, before.size):
            raise _unclear(path, "with several levels of one size")
    if order != levels:
        raise _unclear(path, "with small levels before large ones")
    return tuple(levels)


def _is_smaller(size: tuple[int, int], other: tuple[int, int]) -> bool:
    """Whether a size is that of another image reduced, up to rounding of one of its sides."""
    (height, width), (larger_height, larger_width) = size, other
    if not (0 < height <= larger_height and 0 < width <= larger_width) or size == other:
        return False
    # Rounding of the shorter side says little about the longer one.
    return (
        abs(height - larger_height * width / larger_width) <= 1
        or abs(width - larger_width * height / larger_height) <= 1
    )


def level_of(page: TiffPage) -> TiffLevel:
    """Return the size of a page, and how it is stored."""
    size = page.imagelength, page.imagewidth
    return TiffLevel(size, storage_of(page), page_tags(page), int(page.subfiletype))


def storage_of(page: TiffPage) -> Storage:
    """Return how the pixels of a page are stored."""
    return Storage(
        compression=int(page.compression),
        predictor=int(page.predictor),
        tile=(page.tilelength, page.tilewidth) if page.is_tiled else None,
        rows=0 if page.is_tiled else int(page.rowsperstrip),
    )


def is_cloud_optimised(tif: TiffFile) -> bool:
    """Whether a file says in front of its first page that its directories precede its pixels."""
    stream = tif.filehandle
    stream.seek(16 if tif.is_bigtiff else 8)
    beginning = stream.read(_GHOST_LENGTH)
    return beginning.startswith(_GHOST) and _GHOST_LAYOUT in beginning
