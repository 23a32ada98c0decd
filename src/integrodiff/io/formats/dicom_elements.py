"""Elements of a DICOM image, or of one of its frames, that say where it lies and what it shows.

Enhanced multi-frame files keep these elements in functional groups: one for all frames, and one for
each frame (PS3.3 C.7.6.16). Here they become a flat data set for each frame, with the elements that
a file with a single image has.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator

from pydicom import Dataset, Sequence
from pydicom.multival import MultiValue

from integrodiff.io.image import Display
from integrodiff.io.spacing import declared

SPACING = ("PixelSpacing", "SpacingBetweenSlices")
_RESCALING = ("RescaleSlope", "RescaleIntercept", "RescaleType")
_WINDOW = ("WindowCenter", "WindowWidth", "VOILUTFunction")
_MACROS = {
    "PlanePosition": ("ImagePositionPatient",),
    "PlaneOrientation": ("ImageOrientationPatient",),
    "PixelMeasures": SPACING,
    "PixelValueTransformation": _RESCALING,
    "FrameVOILUT": _WINDOW,
}
"""Sequences of a functional group, and the elements that are taken from their first item."""

_REAL_WORLD = "RealWorldValueMappingSequence"
GREY_VALUES = (*_RESCALING, *_WINDOW, _REAL_WORLD)
_TOP = ("Modality", _REAL_WORLD, *(name for names in _MACROS.values() for name in names))


def image_elements(dataset: Dataset) -> Dataset:
    """Return the elements that hold for the whole image.

    Parameters
    ----------
    dataset : Dataset
        All elements of a file.
    """
    flat = Dataset()
    for name in _TOP:
        if name in dataset:
            flat.add(dataset[name])
    return _with_groups(flat, _first(dataset, "SharedFunctionalGroups"))


def frame_elements(dataset: Dataset) -> list[Dataset]:
    """Return the elements that hold for each frame; as many as the file has groups.

    Parameters
    ----------
    dataset : Dataset
        All elements of a file with functional groups.
    """
    common = image_elements(dataset)
    groups = items_of(dataset, "PerFrameFunctionalGroupsSequence")
    return [_with_groups(common, group) for group in groups]


def without(elements: Dataset, names: Iterable[str]) -> Dataset:
    """Return elements but for some.

    Parameters
    ----------
    elements : Dataset
        The elements.
    names : iterable of str
        Names of those that are left out.
    """
    flat = Dataset()
    flat.update(elements)
    for name in names:
        if name in flat:
            del flat[name]
    return flat


def _with_groups(common: Dataset, groups: Dataset) -> Dataset:
    """Return elements with those of functional groups, which take precedence."""
    flat = Dataset()
    flat.update(common)
    for macro, names in _MACROS.items():
        found = _first(groups, macro)
        for name in names:
            if name in found:
                flat.add(found[name])
    if _REAL_WORLD in groups:
        flat.add(groups[_REAL_WORLD])
    return flat


def items_of(dataset: Dataset, name: str) -> list[Dataset]:
    """Return the items of a sequence, none if the element is missing or something else.

    Parameters
    ----------
    dataset : Dataset
        Where it is.
    name : str
        The sequence.
    """
    items = dataset.get(name)
    return list(items) if isinstance(items, Sequence) else []


def _first(dataset: Dataset, name: str) -> Dataset:
    """Return the first item of a sequence, empty if there is none."""
    items = items_of(dataset, f"{name}Sequence")
    return items[0] if items else Dataset()


def display_of(elements: Dataset) -> Display:
    """Return the values after rescaling, in Hounsfield units for CT."""
    slope, intercept = rescaling(elements)
    unit = str(elements.get("RescaleType") or "").strip()
    if unit in ("", "US"):  # not specified
        unit = "HU" if elements.get("Modality") == "CT" and "RescaleSlope" in elements else ""
    return Display(slope, intercept, unit) if slope else Display()


def rescaling(elements: Dataset) -> tuple[float, float]:
    """Return the slope and intercept of the values that programs show."""
    slope, intercept = elements.get("RescaleSlope"), elements.get("RescaleIntercept")
    try:
        return float(slope or 1), float(intercept or 0)
    except TypeError:
        raise ValueError("RescaleSlope and RescaleIntercept must be one number each") from None


def scale_of(elements: Dataset) -> tuple[object, ...]:
    """Return what stored values stand for, so that it can be compared between slices."""
    items = items_of(elements, _REAL_WORLD)
    names = ("RealWorldValueSlope", "RealWorldValueIntercept")
    return (*display_of(elements), *(str(item.get(name)) for item in items for name in names))


def window_of(elements: Dataset) -> tuple[float, float] | None:
    """Return the first window that is proposed (PS3.3 C.11.2.1.2)."""
    ends = [elements.get(name) for name in ("WindowCenter", "WindowWidth")]
    first = [end[0] if isinstance(end, MultiValue) and end else end for end in ends]
    try:
        centre, width = (float(end) for end in first)
    except (TypeError, ValueError):  # missing, empty or damaged
        return None
    if str(elements.get("VOILUTFunction") or "LINEAR") == "LINEAR":
        centre, width = centre - 0.5, width - 1
    window = centre - width / 2, centre + width / 2
    return window if width > 0 and all(map(math.isfinite, window)) else None


def distances_of(elements: Dataset) -> Iterator[tuple[str, object, str]]:
    """Give the distances of pixels and slices; the thickness of a slice is none of them."""
    pair = elements.get("PixelSpacing")
    if isinstance(pair, MultiValue) and len(pair) == 2:
        yield from (("Y", pair[0], "mm"), ("X", pair[1], "mm"))
    yield "Z", elements.get("SpacingBetweenSlices"), "mm"


def pixel_spacing_of(elements: Dataset) -> tuple[str, ...]:
    """Return the distances of pixels in four digits, so that they can be compared."""
    found = declared(distances_of(elements), "YX")
    return tuple(f"{found[axis].value:.4g}" for axis in "YX" if axis in found)


def compared_properties(elements: Dataset) -> dict[str, tuple[object, ...]]:
    """Return what is the same in all slices of a volume, by what messages call it.

    Parameters
    ----------
    elements : Dataset
        The elements of one slice.
    """
    return {
        "spacing of pixels": pixel_spacing_of(elements),
        "scale of values, as in PET": scale_of(elements),
    }
