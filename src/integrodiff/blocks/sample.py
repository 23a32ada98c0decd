"""A sample of an image that is too large to be looked at as a whole.

Noise level and operating point belong to the whole image: they are found once, from windows that
are spread over it, and all blocks use them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from math import prod
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from integrodiff.layout import Layout
from integrodiff.units import GreyUnits
from integrodiff.validity import Mask, Validity

WINDOWS = 9
"""Number of windows for each channel, in three rows and columns."""

SIDE = 1024
"""Largest height and width of a window."""

_ALIGNMENT = 8
"""Windows begin at multiples of this, where the blocks of compressed images do."""

Window: TypeAlias = Callable[[tuple[slice, ...]], NDArray[Any]]
"""Function that returns a part of an image, by its place along all axes but that of samples."""


@dataclass(frozen=True, kw_only=True, eq=False)
class LargeImage:
    """An image of which windows are read: a :class:`~integrodiff.request.Source` without planes.

    Attributes
    ----------
    layout : Layout
        Axes and shape, rows and columns last but for samples.
    dtype : dtype
        Type of the grey values.
    window : callable
        Reads a part of the image.
    validity : Validity
        Which pixels are valid.
    distances : mapping
        Spacing by the letter of an axis; empty if unknown.
    units : GreyUnits
        The unit of what is given and reported.
    valid : callable, optional
        Reads a part of a mask, True at valid pixels, like ``window``.
    """

    layout: Layout
    dtype: np.dtype[Any]
    window: Window
    validity: Validity = field(default_factory=Validity)
    distances: Mapping[str, float] = field(default_factory=dict)
    units: GreyUnits = field(default_factory=GreyUnits)
    valid: Window | None = None

    @property
    def may_exclude(self) -> bool:
        """Whether there may be invalid pixels."""
        return self.valid is not None or self.validity.may_exclude(self.dtype)

    def planes(self) -> Iterator[NDArray[Any]]:
        """Refuse to read whole planes."""
        raise TypeError("the planes of a large image are not read as a whole; take a sample of it")

    def mask(self, pixels: NDArray[Any], index: tuple[slice, ...]) -> Mask | None:
        """Return the valid pixels of a part of the image, without samples; None if all are.

        ``pixels`` is what :attr:`window` returned for the place.
        """
        *leading, rows, columns = index
        grid = tuple(part.stop - part.start for part in leading)
        given = None if self.valid is None else self.valid(index)
        found: Mask | None = None if given is None or given.all() else given.astype(np.bool_)
        for place in np.ndindex(*grid):
            first = [part.start + at for part, at in zip(leading, place, strict=True)]
            number = self.layout.plane_at(first)
            parts = tuple([masks[number][rows, columns]] for masks in self.validity.masks)
            mask = replace(self.validity, masks=parts).of(pixels[place])
            if mask is not None:
                if found is None:
                    found = np.ones((*grid, *mask.shape), np.bool_)
                found[place] &= mask
        return found

    def sample(self) -> Sample:
        """Return windows that are spread over the image, the same in every call."""
        layout = self.layout
        size = tuple(min(length, SIDE) for length in layout.size)
        grid = layout.plane_grid
        channel_axis = layout.plane_axes.find("C")
        others = tuple(n for axis, n in enumerate(grid) if axis != channel_axis)
        corners = [_starts(length, side) for length, side in zip(layout.size, size, strict=True)]
        places = []
        for channel in range(layout.channels):
            for k in range(WINDOWS):
                number = round(k * (prod(others) - 1) / (WINDOWS - 1))
                plane = [int(n) for n in np.unravel_index(number, others)] if others else []
                if channel_axis >= 0:
                    plane.insert(channel_axis, channel)
                at = (*plane, corners[0][k // 3], corners[1][k % 3])
                sides = (*(1 for _ in grid), *size)
                places.append(tuple(slice(a, a + b) for a, b in zip(at, sides, strict=True)))
        shape = (layout.channels, WINDOWS, *size)
        axes = "CQYX"
        if layout.has_samples:
            axes, shape = "CQYXS", (*shape, layout.samples)
        return Sample(self, Layout(axes, shape), tuple(places))


@dataclass(frozen=True, eq=False)
class Sample:
    """Windows of a large image as the planes of a small one.

    Attributes
    ----------
    image : LargeImage
        The image.
    layout : Layout
        Channels, windows, rows and columns.
    places : tuple
        Where the windows are in the image, along all its axes but that of samples.
    """

    image: LargeImage
    layout: Layout
    places: tuple[tuple[slice, ...], ...]

    @property
    def dtype(self) -> np.dtype[Any]:
        """Type of the grey values."""
        return self.image.dtype

    @property
    def validity(self) -> Validity:
        """Which pixels of the windows are valid."""
        masks = []
        for of_planes in self.image.validity.masks:
            masks.append([of_planes[self._plane(place)][place[-2:]] for place in self.places])
        found, valid = replace(self.image.validity, masks=tuple(masks)), self.image.valid
        if valid is None:
            return found
        size = self.layout.size
        return found.with_mask([valid(place).reshape(size) for place in self.places], "mask")

    @property
    def distances(self) -> Mapping[str, float]:
        """Spacing, which no plane needs."""
        return {}

    @property
    def units(self) -> GreyUnits:
        """The unit of what is given and reported."""
        return self.image.units

    def _plane(self, place: tuple[slice, ...]) -> int:
        return self.image.layout.plane_at([part.start for part in place[:-2]])

    def planes(self) -> Iterator[NDArray[Any]]:
        """Iterate over the windows."""
        for place in self.places:
            yield self.image.window(place).reshape(self.layout.plane_shape)


def _starts(length: int, side: int) -> list[int]:
    """Return where three windows begin along an axis; they overlap if it is short."""
    last = length - side
    return [round(share * last) // _ALIGNMENT * _ALIGNMENT for share in (1 / 6, 1 / 2, 5 / 6)]
