"""The order and the distance of DICOM slices, which are the files of a series or frames of a file.

The place of a slice is ImagePositionPatient, seen along the normal of ImageOrientationPatient.
Order and spacing follow from it, and never from SliceThickness, SpacingBetweenSlices,
SliceLocation, InstanceNumber, or the order in which slices are stored. Slices must lie behind each
other at equal distances; where they do not, the message names them.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Mapping, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from pydicom import Dataset

_SAME_ANGLE = 1e-3
"""Difference of direction cosines that is rounding."""

_SAME_DISTANCE = 0.03
"""Relative difference of distances that is rounding, as of 0.01 mm in 0.5 mm."""

_NO_SHIFT = 0.02
"""Shift sideways over the distance of two slices; more is a tilt of above one degree."""

_SAME_PLACE = 1e-4
"""Distance in mm below which two slices lie at the same place."""

_FARTHEST = 1e6
"""Largest coordinate in mm that is taken for a place."""

_MOST_NAMED = 3
"""Number of gaps that a message names."""


class NoVolumeError(Exception):
    """Slices are not those of one volume; the message says why and what to do."""


class Words(NamedTuple):
    """What messages call the source of slices.

    Attributes
    ----------
    whole : str
        What has all slices.
    remedy : str
        How to denoise them one by one.
    apart : str
        What to do with slices of several volumes.
    """

    whole: str
    remedy: str
    apart: str


class _Place(NamedTuple):
    """Where a slice lies, in mm: its first pixel, and the directions of rows and columns."""

    position: NDArray[np.float64]
    directions: NDArray[np.float64]


def refuse_differences(
    names: Sequence[str], properties: Iterable[Mapping[str, Hashable]], words: Words
) -> None:
    """Refuse slices that differ in a property which all slices of a volume share.

    Parameters
    ----------
    names : sequence of str
        What messages call the slices.
    properties : iterable of mapping
        The properties of each slice, by what messages call them.
    words : Words
        What messages call the source of the slices.

    Raises
    ------
    NoVolumeError
        If they differ.
    """
    found: dict[str, dict[Hashable, str]] = {}
    for name, values in zip(names, properties, strict=True):
        for what, value in values.items():
            found.setdefault(what, {}).setdefault(value, name)
    for what, kinds in found.items():
        if len(kinds) > 1:
            first, second, *_ = kinds.values()
            raise NoVolumeError(
                f"{first} and {second} differ in their {what}, so that they are not slices of one "
                f"volume; {words.apart}"
            )


def order_and_distance(
    names: Sequence[str], slices: Iterable[Dataset], words: Words
) -> tuple[list[int], float]:
    """Return the order of slices along their normal, and their distance in mm.

    Parameters
    ----------
    names : sequence of str
        What messages call the slices.
    slices : iterable of Dataset
        The elements of each slice.
    words : Words
        What messages call the source of the slices.

    Raises
    ------
    NoVolumeError
        If the slices do not lie behind each other at equal distances.
    """
    places = [_place(name, elements, words) for name, elements in zip(names, slices, strict=True)]
    directions = places[0].directions
    for name, place in zip(names, places, strict=True):
        if np.abs(place.directions - directions).max() > _SAME_ANGLE:
            raise NoVolumeError(
                f"{names[0]} and {name} lie at different angles (ImageOrientationPatient), so that "
                f"they are not slices of one volume; {words.remedy}"
            )
    normal = np.cross(*directions)
    normal /= np.linalg.norm(normal)
    positions = np.array([place.position for place in places])
    order = np.argsort(positions @ normal, kind="stable").tolist()
    names = [names[number] for number in order]
    steps = np.diff(positions[order], axis=0)
    heights = steps @ normal
    if float(heights.min()) < _SAME_PLACE:
        at = int(heights.argmin())
        raise NoVolumeError(
            f"{names[at]} and {names[at + 1]} lie at the same place, as in a {words.whole} of "
            f"several times or echoes; {words.apart}"
        )
    _refuse_gaps(names, heights, words)
    shift = np.abs(steps @ directions.T).max(axis=1)
    if (shift > _NO_SHIFT * heights).any():
        at = int((shift / heights).argmax())
        raise NoVolumeError(
            f"{names[at + 1]} is shifted sideways against {names[at]} by {shift[at]:.3g} mm, as "
            f"with a tilted gantry; {words.remedy}"
        )
    return order, float(heights.mean())


def _place(name: str, elements: Dataset, words: Words) -> _Place:
    """Return the place of a slice, or refuse one that has none."""
    found = {}
    for keyword, length in (("ImagePositionPatient", 3), ("ImageOrientationPatient", 6)):
        try:
            numbers = np.array([float(value) for value in elements.get(keyword) or ()])
        except (TypeError, ValueError):
            numbers = np.zeros(0)
        if numbers.shape != (length,) or not (np.abs(numbers) <= _FARTHEST).all():
            raise NoVolumeError(f"{name} has no usable element {keyword}; {words.remedy}")
        found[keyword] = numbers
    directions = found["ImageOrientationPatient"].reshape(2, 3)
    if np.abs(directions @ directions.T - np.eye(2)).max() > 10 * _SAME_ANGLE:
        raise NoVolumeError(
            f"the element ImageOrientationPatient of {name} has no two directions at right "
            f"angles; {words.remedy}"
        )
    return _Place(found["ImagePositionPatient"], directions)


def _refuse_gaps(names: Sequence[str], heights: NDArray[np.float64], words: Words) -> None:
    """Refuse slices whose distances are not equal, and say where one is missing."""
    smallest = float(heights.min())
    ratios = heights / smallest
    if ratios.max() <= 1 + _SAME_DISTANCE:
        return
    wholes = np.rint(ratios)
    if (np.abs(ratios - wholes) <= _SAME_DISTANCE * wholes).all():
        gaps = [int(at) for at in np.flatnonzero(wholes > 1)]
        told = [
            f"{int(wholes[at]) - 1} between {names[at]} and {names[at + 1]}"
            for at in gaps[:_MOST_NAMED]
        ]
        more = ", ..." if len(gaps) > _MOST_NAMED else ""
        missing = int((wholes - 1).sum())
        raise NoVolumeError(
            f"{missing} slice{'s are' if missing > 1 else ' is'} missing at a distance of "
            f"{smallest:.4g} mm: {', '.join(told)}{more}. Get the {words.whole} again from its "
            f"source, or {words.remedy}"
        )
    at = int(heights.argmax())
    raise NoVolumeError(
        f"its slices do not lie at equal distances: they are {smallest:.4g} to {heights[at]:.4g} "
        f"mm apart, the most between {names[at]} and {names[at + 1]}; {words.remedy}"
    )
