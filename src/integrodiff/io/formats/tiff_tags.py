"""The tags of TIFF pages, and which of them are kept for denoised pixels."""

from __future__ import annotations

import json
import re
import struct
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, ClassVar, Literal, NamedTuple, TypeAlias

import numpy as np
from tifffile import TiffPage, TiffTag

from integrodiff.io.formats.exif import (
    EXIF,
    GPS,
    Block,
    Directory,
    Layout,
    Tag,
    block_bytes,
    read_directory,
)
from integrodiff.io.image import FormatDetails, Metadata
from integrodiff.validity import Nodata, nodata_value

TiffTagTuple: TypeAlias = tuple[int, int, int, Any, bool]
"""Code, data type, count, value and ``False``, as tifffile wants tags to write."""

# Orientation, XMP and ICC profile have their places in PNG and JPEG; the software that wrote the
# TIFF file has not written the other one.
_TAGS_FOR_ALL = (274, 700, 34675, 305)


class TiffPageTags(NamedTuple):
    """The tags of one page of a TIFF file, except for those of its layout.

    Attributes
    ----------
    tags : tuple of TiffTagTuple
        Those that are copied.
    resolution, resolution_unit
        As tifffile takes them.
    exif : tuple of (int, Directory)
        EXIF data, by the codes of the tags that say where they are.
    extra : tuple of int
        Codes of tags that tifffile writes and the page does not have.
    """

    tags: tuple[TiffTagTuple, ...] = ()
    resolution: tuple[Any, Any] | None = None
    resolution_unit: int = 1
    exif: tuple[tuple[int, Directory], ...] = ()
    extra: tuple[int, ...] = ()

    @property
    def in_exif(self) -> tuple[int, ...]:
        """Tags that go into a block of EXIF data, if there is reason for one."""
        codes = [code for code, *_ in self.tags if code in _IN_EXIF]
        needed = self.exif or not {DESCRIPTION, _SOFTWARE}.issuperset(codes)
        return (ORIENTATION, *codes) if needed else ()


class Storage(NamedTuple):
    """How the pixels of a page are stored.

    Attributes
    ----------
    compression, predictor : int
        In the numbers of TIFF.
    tile : (int, int), optional
        Height and width of tiles.
    rows : int
        Rows of a strip where there are no tiles; zero if it does not matter.
    """

    compression: int = 8
    predictor: int = 1
    tile: tuple[int, int] | None = None
    rows: int = 0


class TiffLevel(NamedTuple):
    """A smaller version of a page, which is computed anew: its size and how it is stored.

    ``kind`` is what it is marked as: 1 for a reduced page.
    """

    size: tuple[int, int]
    storage: Storage
    tags: TiffPageTags
    kind: int = 1


@dataclass(frozen=True, kw_only=True)
class TiffDetails(FormatDetails):
    """How a TIFF file stores its pages, so that another can be stored alike.

    Attributes
    ----------
    levels : tuple of tuple of TiffLevel
        Smaller versions of each page, the largest first; the same number and sizes for all.
    below : bool
        Whether these are directories below that of their page (SubIFDs), as in OME-TIFF, or follow
        it in the chain of pages, as those that GDAL writes.
    masks : tuple of TiffLevel
        Pages with the mask of the only page and of its smaller versions.
    cloud_optimised : bool
        Whether the file is one for reading over a network: directories before pixels, and small
        levels before large ones.
    """

    format: ClassVar[str] = "TIFF"
    photometric: int
    planar: bool = False
    alpha_kind: int = 2
    storage: Storage = field(default_factory=Storage)
    byteorder: Literal["<", ">"] = "<"
    big: bool = False
    pages: tuple[TiffPageTags, ...] = ()
    levels: tuple[tuple[TiffLevel, ...], ...] = ()
    below: bool = False
    masks: tuple[TiffLevel, ...] = ()
    cloud_optimised: bool = False

    @property
    def only_here(self) -> str | None:
        """The metadata that is lost in a file of another format, in words for the user."""
        if self.masks:
            return "the mask, descriptions and other tags of the TIFF file"
        says_more = any(
            code not in (*_TAGS_FOR_ALL, *page.in_exif) and not str(value).startswith('b\'{"shape"')
            for page in self.pages
            for code, _, _, value, _ in page.tags
        )
        return "descriptions and other tags of the TIFF file" if says_more else None


# Tags that stay true for denoised pixels.
_TITLES = (269, 270, 285, 297)  # document name, description, page name and number
_ORIGIN = (271, 272, 305, 306, 315, 316, 33432)  # device, software, date, names, copyright
_DISPLAY = (274, 286, 287, 318, 319, 34675)  # orientation, position, colours, ICC profile
_INKS = (332, 333, 334, 336)  # their set, names, number and range
_EMBEDDED = (700, 33723, 50838, 50839)  # XMP, IPTC, and what ImageJ adds
_WINDOWS = (18246, 18249, 40091, 40092, 40093, 40094, 40095)  # stars, title and other words
_EARTH = (33550, 33920, 33922, 34264, 34735, 34736, 34737, 42112, 42113, 50844)  # GeoTIFF, GDAL
COPIED = frozenset({*_TITLES, *_ORIGIN, *_DISPLAY, *_INKS, *_EMBEDDED, *_WINDOWS, *_EARTH})
_IN_EXIF = (270, *_ORIGIN, *_WINDOWS)  # what a block of EXIF data takes besides the directories
_DIRECTORIES = (EXIF, GPS)

# Tags that the writer makes anew: the layout, extremes, and the resolution.
LAYOUT = frozenset({*range(254, 260), 262, 266, 273, *range(277, 285), 288, 289, 296, 317, 320})
LAYOUT |= frozenset({*range(322, 326), 330, *range(338, 342), 347, *range(529, 533), 32997, 32998})

ORIENTATION, XMP, ICC_PROFILE = 274, 700, 34675
DESCRIPTION, _SOFTWARE, _GDAL, _NODATA = 270, 305, 42112, 42113
_HORIZONTAL, _VERTICAL, _UNIT = 282, 283, 296
_ASCII, _PALETTE, _SEPARATED = 2, 3, 5
_ASSOCIATED = 1
_RATIONALS = (5, 10)
_UNITS = _NO_UNIT, _INCH, _CENTIMETRE = (1, 2, 3)

_STATISTICS = re.compile(rb'\s*<Item name="STATISTICS_[^>]*>[^<]*</Item>')
_OME_TYPE = re.compile(rb'(<(?:\w+:)?Pixels\b[^>]*?\bType=")\w+(")')
_OME_BITS = re.compile(rb'(<(?:\w+:)?Pixels\b[^>]*?) SignificantBits="\d+"')


def page_tags(page: TiffPage) -> TiffPageTags:
    """Return the tags of a page that are kept."""
    tags: list[TiffTagTuple] = []
    for tag in page.tags:
        if tag.code not in COPIED:
            continue
        value: Any = stored_value(tag)
        if tag.dtype in _RATIONALS:
            value = tag.value  # tifffile miscounts rational numbers that are given as bytes
        elif tag.code == DESCRIPTION:
            value = _description(value)
        tags.append((tag.code, int(tag.dtype), tag.count, value, False))
    resolution = page.tags.valueof(_HORIZONTAL), page.tags.valueof(_VERTICAL)
    extra = {_HORIZONTAL, _VERTICAL, _UNIT}.difference(page.tags.keys())
    unit = page.tags.valueof(_UNIT, default=_INCH)
    return TiffPageTags(
        tags=tuple(tags),
        resolution=resolution if _is_usable(resolution) else None,
        resolution_unit=int(unit) if unit in _UNITS else _NO_UNIT,
        exif=tuple(_exif(page)),
        extra=tuple(sorted(extra)),
    )


def stored_value(tag: TiffTag) -> bytes:
    """Return the value of a tag as it is in the file."""
    found: bytes = tag.astuple()[3]
    if tag.dtype != _ASCII:
        return found
    # tifffile replaces space at the end of a text by zeros, of which GDAL warns.
    stream = tag.parent.filehandle
    stream.seek(tag.valueoffset)
    text = stream.read(len(found))
    return text if len(text) == len(found) else found


def _exif(page: TiffPage) -> Iterator[tuple[int, Directory]]:
    """Give the directories of EXIF data of a page that are whole, by the codes of their tags."""
    layout = Layout(page.parent.byteorder, page.parent.is_bigtiff)
    for code in _DIRECTORIES:
        if code in page.tags:
            with suppress(ValueError):  # the tag is then among the notes
                stream = page.parent.filehandle
                yield from read_directory(stream, page.offset, layout, wanted=(code,)).below


def _description(text: bytes) -> bytes:
    """Return a description; tifffile's own no longer says that pages are stored without tags."""
    # Versions of tifffile differ in the order of the two.
    if not (text.startswith((b'{"shape"', b'{"truncated"')) and b'"truncated"' in text):
        return text
    content = json.loads(text.rstrip(b"\0"))
    content.pop("truncated", None)
    return json.dumps(content).encode("ascii")


def tiff_metadata(details: TiffDetails) -> Metadata:
    """Return the metadata of the first page that other formats can hold too."""
    first = details.pages[0]
    values = {code: value for code, _, _, value, _ in first.tags}
    orientation = values.get(ORIENTATION, b"")
    number = 1
    if isinstance(orientation, bytes) and len(orientation) == 2:
        number = struct.unpack(f"{details.byteorder}H", orientation)[0]
    return Metadata(
        icc_profile=values.get(ICC_PROFILE),
        exif=_block(details),
        xmp=values.get(XMP),
        dpi=_dpi(first),
        orientation=number if 1 <= number <= 8 else 1,
        white_is_zero=details.photometric == 0,
        inks=details.photometric == _SEPARATED,
        premultiplied=details.alpha_kind == _ASSOCIATED,
        own=details,
    )


def _block(details: TiffDetails) -> bytes | None:
    """Return the EXIF data of the first page with what it says of its origin, if it has any."""
    first = details.pages[0]
    if not first.in_exif:
        return None
    tags = [
        Tag(code, kind, number, value)
        for code, kind, number, value, _ in first.tags
        if code in first.in_exif and isinstance(value, bytes)
    ]
    usual = tuple(tag for tag in tags if tag.is_usual)
    return block_bytes(details.byteorder, Directory(usual, first.exif))


def _dpi(page: TiffPageTags) -> tuple[float, float] | None:
    """Return the resolution in pixels per inch, if the file has one."""
    per_inch = {_INCH: 1.0, _CENTIMETRE: 2.54}.get(page.resolution_unit)
    if per_inch is None or page.resolution is None:
        return None
    values = [float(n) / float(d) * per_inch for n, d in page.resolution]
    return (values[0], values[1]) if all(0 < value < 1e6 for value in values) else None


def tag_notes(pages: list[TiffPage], details: TiffDetails) -> tuple[str, ...]:
    """Report the tags of a file that a new file will not have."""
    lost = sorted(
        {
            tag.name
            for page, found in zip(pages, details.pages, strict=True)
            for tag in page.tags
            if tag.code not in COPIED | LAYOUT | dict(found.exif).keys()
        }
    )
    return (f"tags of the TIFF file that are not carried over: {', '.join(lost)}",) if lost else ()


def declared_nodata(page: TiffPage) -> tuple[tuple[Nodata, ...], tuple[str, ...]]:
    """Return the grey value of invalid pixels that GDAL wrote down, and notes."""
    text = page.tags.valueof(_NODATA)
    if text is None:
        return (), ()
    if page.photometric == _PALETTE:
        return (), ("the nodata value of the file is one of its palette, and marks no pixels",)
    words = str(text).strip("\0 \r\n")
    try:
        value: float = int(words)
    except ValueError:
        try:
            value = float(words)
        except ValueError:
            return (), (f"the nodata value of the file, {words[:40]!r}, is no number",)
    return (nodata_value(value),), ()


def with_exif(tags: TiffPageTags, block: Block) -> TiffPageTags:
    """Return tags and those of a block of EXIF data, for a file of the block's byte order."""
    there = {code for code, *_ in tags.tags} | {ORIENTATION, XMP, ICC_PROFILE}
    more = tuple(
        (tag.code, tag.kind, tag.number, _values(tag, block.order), False)
        for tag in block.directory.tags
        if tag.code in COPIED - there
    )
    tags = tags._replace(tags=tags.tags + more, exif=block.directory.below)
    found = {tag.code: _values(tag, block.order) for tag in block.directory.tags}
    resolution = found.get(_HORIZONTAL), found.get(_VERTICAL)
    if tags.resolution is not None or not _is_usable(resolution):
        return tags
    unit = next((u for u in _UNITS if found.get(_UNIT) == struct.pack(f"{block.order}H", u)), _INCH)
    return tags._replace(resolution=resolution, resolution_unit=unit)


def _values(tag: Tag, order: str) -> bytes | tuple[int, ...]:
    """Return values as tifffile takes them: rational numbers in pairs, and all others in bytes."""
    if tag.kind not in _RATIONALS:
        return tag.value
    letter = "I" if tag.kind == _RATIONALS[0] else "i"
    return struct.unpack(f"{order}{2 * tag.number}{letter}", tag.value)


def _is_usable(resolution: tuple[Any, Any]) -> bool:
    """Whether these are two fractions."""
    return all(isinstance(r, tuple) and len(r) == 2 and r[1] != 0 for r in resolution)


def described_as(tags: TiffPageTags, dtype: np.dtype[Any]) -> TiffPageTags:
    """Return the tags for pixels of a dtype; OME-XML is the one description that names it."""
    name = {"float32": b"float", "float64": b"double"}.get(dtype.name, dtype.name.encode())

    def adapted(tag: TiffTagTuple) -> TiffTagTuple:
        code, kind, count, value, once = tag
        if code != DESCRIPTION or not value.rstrip(b"\0 \r\n").endswith(b"OME>"):
            return tag
        if (found := _OME_TYPE.search(value)) is None or found[0].endswith(b'"%s"' % name):
            return tag
        value = _OME_BITS.sub(rb"\1", _OME_TYPE.sub(rb"\1%s\2" % name, value))
        return code, kind, count, value, once

    return tags._replace(tags=tuple(map(adapted, tags.tags)))


def without_statistics(tags: TiffPageTags) -> TiffPageTags:
    """Return tags without GDAL's statistics of the grey values, which new pixels do not have."""

    def adapted(tag: TiffTagTuple) -> TiffTagTuple:
        code, kind, _, value, once = tag
        if code != _GDAL or not isinstance(value, bytes):
            return tag
        value = _STATISTICS.sub(b"", value)
        return code, kind, len(value), value, once

    return tags._replace(tags=tuple(map(adapted, tags.tags)))
