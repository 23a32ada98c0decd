"""The axes of an OME-TIFF file: read from its OME-XML, and described by it.

tifffile opens the other files of a data set to find them, and its functions that parse the XML
alone are private. Here nothing is opened, and a document type, which could define entities, is
refused.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from itertools import permutations
from math import prod
from typing import Any, NamedTuple
from xml.parsers import expat

import numpy as np

from integrodiff.io.spacing import Spacing, Spacings, declared
from integrodiff.layout import Layout

_LONGEST = 2**26
"""Characters of OME-XML that are parsed."""

_LARGEST_NUMBER = 2**31
_UNITS = {"X": "µm", "Y": "µm", "Z": "µm", "T": "s"}
"""Units of the schema where the file names none."""


class OmeError(ValueError):
    """The OME-XML does not describe the pages of this file; the message says why."""


class OmeAxes(NamedTuple):
    """What OME-XML says about the pages of a file.

    Attributes
    ----------
    axes : tuple of (str, int)
        Letters and lengths of the axes that pages are counted along, the slowest first, without
        those of length one.
    spacing : mapping from str to Spacing
        Distance of neighbouring pixels, where it is declared.
    """

    axes: tuple[tuple[str, int], ...]
    spacing: dict[str, Spacing]


@dataclass
class _Pixels:
    """The element ``Pixels`` of an image."""

    attributes: dict[str, str]
    samples: list[int] = field(default_factory=list)
    data: list[dict[str, str]] = field(default_factory=list)
    uuids: set[str] = field(default_factory=set)

    def number(self, name: str) -> int:
        """Return an attribute that counts."""
        return _number(self.attributes.get(name, ""), name)


def is_ome_xml(description: str) -> bool:
    """Return whether the description of a page is OME-XML."""
    return description[-10:].strip().endswith("OME>")


def ome_axes(description: str, pages: int, page_shape: tuple[int, int, int]) -> OmeAxes:
    """Return the axes that the pages of a file are counted along.

    Parameters
    ----------
    description : str
        The OME-XML.
    pages : int
        Number of pages in the file.
    page_shape : (int, int, int)
        Height, width and samples of a page.

    Raises
    ------
    OmeError
        If the XML is damaged, describes pages of other files, or does not agree with the pages.
    """
    pixels = _only_pixels(description)
    height, width, samples = page_shape
    if (pixels.number("SizeY"), pixels.number("SizeX")) != (height, width):
        raise OmeError("gives the pages another size")
    order = pixels.attributes.get("DimensionOrder", "")
    if sorted(order) != sorted("XYZCT") or order[:2] != "XY":
        raise OmeError(f"has the unknown order of dimensions {order!r}")
    lengths = {letter: pixels.number(f"Size{letter}") for letter in "TCZ"}
    if any(count != samples for count in pixels.samples) or lengths["C"] % samples:
        raise OmeError("gives the pages another number of samples")
    lengths["C"] //= samples
    if prod(lengths.values()) != pages:
        raise OmeError(f"describes {prod(lengths.values())} pages, and the file has {pages}")
    letters = _order_of_pages(pixels, order[:1:-1], lengths)
    values = [
        (letter, pixels.attributes.get(name), pixels.attributes.get(f"{name}Unit", _UNITS[letter]))
        for letter, name in (*((c, f"PhysicalSize{c}") for c in "XYZ"), ("T", "TimeIncrement"))
    ]
    axes = tuple((letter, lengths[letter]) for letter in letters if lengths[letter] > 1)
    return OmeAxes(axes, declared(values, "TZYX"))


_TYPES = {
    **{name: name for name in ("int8", "int16", "int32", "uint8", "uint16", "uint32")},
    "float32": "float",
    "float64": "double",
}
_SCHEMA = "http://www.openmicroscopy.org/Schemas/OME/2016-06"
_LENGTHS = {unit: unit for unit in ("Å", "nm", "µm", "mm", "cm", "m")} | {"inch": "in"}
_TIMES = ("µs", "ms", "s", "min")


def new_ome_xml(
    layout: Layout, samples: int, dtype: np.dtype[Any], spacing: Spacings
) -> bytes | None:
    """Return OME-XML for the pages of an image, in ASCII as TIFF asks for.

    None if OME has no words for its axes or numbers. Spacing without a unit is left out, since it
    would be read as micrometres.

    Parameters
    ----------
    layout : Layout
        Axes of the image. Pages are counted along its plane axes.
    samples : int
        Number of samples of a pixel, with alpha.
    dtype : dtype
        Type of its numbers.
    spacing : mapping from str to Spacing
        Distance of neighbouring pixels.
    """
    letters, kind = layout.plane_axes, _TYPES.get(dtype.name)
    if not set(letters) <= set("TCZ") or kind is None:
        return None
    order = "XY" + letters[::-1] + "".join(sorted(set("CZT") - set(letters)))
    sizes = {letter: layout.length(letter) for letter in "XYZCT"}
    channels, sizes["C"] = sizes["C"], sizes["C"] * samples
    attributes = {"DimensionOrder": order, "Type": kind}
    attributes |= {f"Size{letter}": str(size) for letter, size in sizes.items()}
    for letter, (distance, unit) in spacing.items():
        if letter == "T" and unit in _TIMES:
            attributes |= {"TimeIncrement": repr(distance), "TimeIncrementUnit": unit}
        elif letter in "XYZ" and unit in _LENGTHS:
            name = f"PhysicalSize{letter}"
            attributes |= {name: repr(distance), f"{name}Unit": _LENGTHS[unit]}
    if not letters and not any(name.startswith("PhysicalSize") for name in attributes):
        return None  # a plane of which nothing is known
    described = " ".join(f'{name}="{value}"' for name, value in attributes.items())
    each = "".join(
        f'<Channel ID="Channel:0:{number}" SamplesPerPixel="{samples}"/>'
        for number in range(channels)
    )
    text = (
        f'<?xml version="1.0" encoding="UTF-8"?><OME xmlns="{_SCHEMA}" '
        'xmlns:xsi="http://www.w3.org/2001/XMLSchema-instance" '
        f'xsi:schemaLocation="{_SCHEMA} {_SCHEMA}/ome.xsd"><Image ID="Image:0">'
        f'<Pixels ID="Pixels:0" {described}>{each}'
        f'<TiffData IFD="0" PlaneCount="{layout.plane_count}"/></Pixels></Image></OME>'
    )
    return text.encode("ascii", "xmlcharrefreplace")


def _only_pixels(description: str) -> _Pixels:
    """Return the only image that the XML describes."""
    if len(description) > _LONGEST:
        raise OmeError(f"is longer than {_LONGEST} characters")
    found: list[_Pixels] = []
    root: dict[str, str] = {}
    text: list[str] = []

    def start(name: str, attributes: dict[str, str]) -> None:
        match name.rpartition(":")[2]:
            case "OME":
                root.update(attributes)
            case "BinaryOnly":
                raise OmeError("is in another file")
            case "Pixels":
                found.append(_Pixels(attributes))
            case "Channel" if found:
                samples = attributes.get("SamplesPerPixel", "1")
                found[-1].samples.append(_number(samples, "SamplesPerPixel"))
            case "TiffData" if found:
                found[-1].data.append(attributes)
            case "UUID":
                text.clear()

    def end(name: str) -> None:
        if name.rpartition(":")[2] == "UUID" and found:
            found[-1].uuids.add("".join(text).strip())

    def refuse_document_type(*_: object) -> None:
        raise OmeError("declares a document type, which is refused")

    parser = expat.ParserCreate()
    parser.StartElementHandler = start
    parser.EndElementHandler = end
    parser.CharacterDataHandler = text.append
    parser.StartDoctypeDeclHandler = refuse_document_type
    try:
        parser.Parse(description, True)
    except expat.ExpatError as error:
        raise OmeError(f"is damaged ({error})") from error
    if len(found) != 1:
        raise OmeError(f"describes {len(found)} images")
    if found[0].uuids - {root.get("UUID", "")}:
        raise OmeError("describes a data set of several files")
    return found[0]


def _order_of_pages(pixels: _Pixels, order: str, lengths: dict[str, int]) -> tuple[str, ...]:
    """Return the letters of the axes in the order that the pages of the file are counted along.

    Usually that is the declared order; the elements ``TiffData`` may say otherwise.
    """
    count = prod(lengths.values())
    shape = tuple(lengths[letter] for letter in order)
    places = np.full(count, -1)
    for data in pixels.data or [{}]:
        default = 1 if "IFD" in data else count
        first, planes = _number(data.get("IFD", "0"), "IFD"), default
        if "PlaneCount" in data:
            planes = _number(data["PlaneCount"], "PlaneCount")
        index = [_number(data.get(f"First{letter}", "0"), letter) for letter in order]
        if any(at >= length for at, length in zip(index, shape, strict=True)):
            raise OmeError("places pages outside of the image")
        start = int(np.ravel_multi_index(index, shape))
        if first + planes > count or start + planes > count:
            raise OmeError("places pages outside of the file or the image")
        places[first : first + planes] = np.arange(start, start + planes)
    planes_by_page = np.unravel_index(np.arange(count), shape)
    for letters in permutations(order):
        moved = [planes_by_page[order.index(letter)] for letter in letters]
        rank = np.ravel_multi_index(moved, tuple(lengths[letter] for letter in letters))
        if np.array_equal(places[rank], np.arange(count)):
            return letters
    raise OmeError("stores its pages in an irregular order")


def _number(text: str, name: str) -> int:
    """Return a number that is not negative and can be a length."""
    if not (text.isascii() and text.isdigit() and len(text) <= 10 and int(text) < _LARGEST_NUMBER):
        raise OmeError(f"has no usable {name}")
    return int(text)
