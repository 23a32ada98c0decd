"""The tags of TIFF pages: which of them a file of denoised pixels keeps."""

from __future__ import annotations

import json
import re
import struct
from dataclasses import dataclass
from typing import Any, ClassVar, Literal, NamedTuple, TypeAlias

import numpy as np
from tifffile import TiffPage

from integrodiff._image_files.image import FormatDetails, Metadata

TiffTagTuple: TypeAlias = tuple[int, int, int, Any, bool]
"""Code, data type, count, value and ``False``, as tifffile wants tags to write."""

# Orientation, XMP and ICC profile have their places in PNG and JPEG; the software that wrote the
# TIFF file has not written the other one.
_TAGS_FOR_ALL = (274, 700, 34675, 305)


class TiffPageTags(NamedTuple):
    """What one page of a TIFF file says about itself, besides its layout."""

    tags: tuple[TiffTagTuple, ...] = ()
    resolution: tuple[Any, Any] | None = None
    resolution_unit: int = 1


@dataclass(frozen=True, kw_only=True)
class TiffDetails(FormatDetails):
    """How a TIFF file stores its pages, so that another can be stored alike."""

    format: ClassVar[str] = "TIFF"
    photometric: int
    planar: bool = False
    alpha_kind: int = 2
    compression: int = 8
    predictor: int = 1
    tile: tuple[int, int] | None = None
    byteorder: Literal["<", ">"] = "<"
    big: bool = False
    pages: tuple[TiffPageTags, ...] = ()

    @property
    def only_here(self) -> str | None:
        """What a file of another format goes without, in words for the user."""
        says_more = any(
            code not in _TAGS_FOR_ALL and not str(value).startswith('b\'{"shape"')
            for page in self.pages
            for code, _, _, value, _ in page.tags
        )
        return "descriptions and other tags of the TIFF file" if says_more else None


# Tags that stay true for denoised pixels.
_TITLES = (269, 270, 285, 297)  # document name, description, page name and number
_ORIGIN = (271, 272, 305, 306, 315, 316, 33432)  # device, software, date, names, copyright
_DISPLAY = (274, 286, 287, 318, 319, 34675)  # orientation, position, colours, ICC profile
_EMBEDDED = (700, 33723, 50838, 50839)  # XMP, IPTC, and what ImageJ adds
_EARTH = (33550, 33922, 34264, 34735, 34736, 34737, 42112, 42113)  # GeoTIFF and GDAL
_COPIED = frozenset({*_TITLES, *_ORIGIN, *_DISPLAY, *_EMBEDDED, *_EARTH})

# Tags that the writer makes anew: the layout, extremes, and the resolution.
_LAYOUT = frozenset({*range(254, 260), 262, 266, 273, *range(277, 285), 288, 289, 296, 317, 320})
_LAYOUT |= frozenset({*range(322, 326), *range(338, 342), 347, *range(529, 533), 32997, 32998})

_DESCRIPTION, _ORIENTATION, _XMP, _ICC_PROFILE, _NODATA = 270, 274, 700, 34675, 42113
_RATIONALS = (5, 10)
_UNITS = _NO_UNIT, _INCH, _CENTIMETRE = (1, 2, 3)

_OME_TYPE = re.compile(rb'(<(?:\w+:)?Pixels\b[^>]*?\bType=")\w+(")')
_OME_BITS = re.compile(rb'(<(?:\w+:)?Pixels\b[^>]*?) SignificantBits="\d+"')


def page_tags(page: TiffPage) -> TiffPageTags:
    """Return what a page says about itself."""
    tags: list[TiffTagTuple] = []
    for tag in page.tags:
        if tag.code not in _COPIED:
            continue
        code, dtype, _, value, _ = tag.astuple()
        if dtype in _RATIONALS:
            value = tag.value  # tifffile miscounts rational numbers that are given as bytes
        elif code == _DESCRIPTION:
            value = _description(value)
        tags.append((int(code), int(dtype), tag.count, value, False))
    resolution = page.tags.valueof(282), page.tags.valueof(283)
    usable = all(isinstance(r, tuple) and len(r) == 2 and r[1] != 0 for r in resolution)
    unit = page.tags.valueof(296, default=_INCH)
    return TiffPageTags(
        tags=tuple(tags),
        resolution=resolution if usable else None,
        resolution_unit=int(unit) if unit in _UNITS else _NO_UNIT,
    )


def _description(text: bytes) -> bytes:
    """Return a description; tifffile's own no longer says that pages are stored without tags."""
    if not (text.startswith(b'{"shape"') and b'"truncated"' in text):
        return text
    content = json.loads(text.rstrip(b"\0"))
    content.pop("truncated", None)
    return json.dumps(content).encode("ascii")


def tiff_metadata(details: TiffDetails) -> Metadata:
    """Return what other formats can take over, from the first page."""
    first = details.pages[0]
    values = {code: value for code, _, _, value, _ in first.tags}
    orientation = values.get(_ORIENTATION, b"")
    number = 1
    if isinstance(orientation, bytes) and len(orientation) == 2:
        number = struct.unpack(f"{details.byteorder}H", orientation)[0]
    return Metadata(
        icc_profile=values.get(_ICC_PROFILE),
        xmp=values.get(_XMP),
        dpi=_dpi(first),
        orientation=number if 1 <= number <= 8 else 1,
        white_is_zero=details.photometric == 0,
        own=details,
    )


def _dpi(page: TiffPageTags) -> tuple[float, float] | None:
    """Return the resolution in pixels per inch, if the file says so."""
    per_inch = {_INCH: 1.0, _CENTIMETRE: 2.54}.get(page.resolution_unit)
    if per_inch is None or page.resolution is None:
        return None
    values = [float(n) / float(d) * per_inch for n, d in page.resolution]
    return (values[0], values[1]) if all(0 < value < 1e6 for value in values) else None


def tag_notes(pages: list[TiffPage]) -> tuple[str, ...]:
    """Return what the file has besides its pixels that a new file will not have."""
    known = _COPIED | _LAYOUT
    lost = sorted({tag.name for page in pages for tag in page.tags if tag.code not in known})
    notes = [f"tags of the TIFF file that are not carried over: {', '.join(lost)}"] if lost else []
    if _NODATA in pages[0].tags:
        notes.append("pixels marked as missing data (GDAL_NODATA) are denoised like all others")
    return tuple(notes)


def described_as(tags: TiffPageTags, dtype: np.dtype[Any]) -> TiffPageTags:
    """Return the tags for pixels of a dtype; OME-XML is the one description that names it."""
    name = {"float32": b"float", "float64": b"double"}.get(dtype.name, dtype.name.encode())

    def adapted(tag: TiffTagTuple) -> TiffTagTuple:
        code, kind, count, value, once = tag
        if code != _DESCRIPTION or not value.rstrip(b"\0 \r\n").endswith(b"OME>"):
            return tag
        if (found := _OME_TYPE.search(value)) is None or found[0].endswith(b'"%s"' % name):
            return tag
        value = _OME_BITS.sub(rb"\1", _OME_TYPE.sub(rb"\1%s\2" % name, value))
        return code, kind, count, value, once

    return tags._replace(tags=tuple(map(adapted, tags.tags)))
