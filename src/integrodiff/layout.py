"""The axes of an image and their meaning.

An image has an axes string, one letter for each axis, as tifffile and OME write it:

======  ======================================================================================
letter  axis
======  ======================================================================================
Y, X    rows and columns; every image has both
S       samples of a pixel, such as red, green and blue; denoised together (see ``colour``)
C       channels, such as stains or detectors; each has its own noise level and range
T       time; all frames share noise level and range
Z       slices of a volume, which are denoised together
Q       pages of unknown meaning; this letter may occur more than once
======  ======================================================================================

A *plane* is a slice with all axes except Y, X and S fixed: ``(Y, X)`` or ``(Y, X, S)``. An image
with more than one slice is a *volume*: the planes along Z are denoised as one, in three dimensions.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from math import prod

import numpy as np

from integrodiff.namespaces import Array, is_numpy, namespace

LETTERS = "TCZYXSQ"
_PLANE = "YXS"


@dataclass(frozen=True)
class Layout:
    """Axes and shape of an image.

    Attributes
    ----------
    axes : str
        One letter for each axis.
    shape : tuple of int
        Length of each axis, all of them positive.

    Raises
    ------
    ValueError
        If axes and shape do not match, or the axes are invalid.
    """

    axes: str
    shape: tuple[int, ...]

    def __post_init__(self) -> None:
        axes, shape = self.axes, self.shape
        unknown = sorted(set(axes) - set(LETTERS))
        if unknown:
            raise ValueError(
                f"axes {axes!r} has the unknown letter {unknown[0]!r}; expected letters of "
                f"{', '.join(LETTERS)} (time, channel, slice, row, column, colour sample, other)"
            )
        twice = [letter for letter in LETTERS if letter != "Q" and axes.count(letter) > 1]
        if twice:
            raise ValueError(f"axes {axes!r} has {twice[0]!r} more than once")
        if "Y" not in axes or "X" not in axes:
            raise ValueError(f"axes {axes!r} needs Y and X, the rows and columns")
        if len(axes) != len(shape):
            raise ValueError(
                f"axes {axes!r} names {len(axes)} axes, and the image has {len(shape)}: its shape "
                f"is {shape}"
            )
        if 0 in shape:
            raise ValueError(f"image is empty: its shape is {shape}")

    def length(self, letter: str) -> int:
        """Return the length of an axis, or 1 if there is none."""
        return self.shape[self.axes.index(letter)] if letter in self.axes else 1

    @property
    def size(self) -> tuple[int, int]:
        """Height and width."""
        return self.length("Y"), self.length("X")

    @property
    def pixels(self) -> int:
        """Number of pixels of a plane."""
        return prod(self.size)

    @property
    def samples(self) -> int:
        """Number of samples of a pixel."""
        return self.length("S")

    @property
    def channels(self) -> int:
        """Number of channels."""
        return self.length("C")

    @property
    def has_samples(self) -> bool:
        """Whether a plane has an axis of samples."""
        return "S" in self.axes

    @cached_property
    def plane_axes(self) -> str:
        """The axes other than Y, X and S, in order."""
        return "".join(letter for letter in self.axes if letter not in _PLANE)

    @cached_property
    def plane_grid(self) -> tuple[int, ...]:
        """Lengths of :attr:`plane_axes`."""
        pairs = zip(self.axes, self.shape, strict=True)
        return tuple(length for letter, length in pairs if letter not in _PLANE)

    @property
    def plane_count(self) -> int:
        """Number of planes."""
        return prod(self.plane_grid)

    @property
    def plane_shape(self) -> tuple[int, ...]:
        """Shape of one plane, ``(Y, X)`` or ``(Y, X, S)``."""
        return (*self.size, self.samples) if self.has_samples else self.size

    @property
    def is_volume(self) -> bool:
        """Whether there is more than one slice."""
        return self.slices > 1

    @property
    def slices(self) -> int:
        """Number of slices of a volume; 1 for images."""
        return self.length("Z")

    @property
    def planes_between_slices(self) -> int:
        """How many planes it is from one slice of a volume to the next, such as channels."""
        if "Z" not in self.axes:
            return 1
        return prod(self.plane_grid[self.plane_axes.index("Z") + 1 :])

    @property
    def canonical(self) -> Layout:
        """The layout with the axes of a plane last, in the order Y, X, S."""
        axes = self.plane_axes + ("YXS" if self.has_samples else "YX")
        return Layout(axes, (*self.plane_grid, *self.plane_shape))

    @property
    def without_samples(self) -> Layout:
        """The layout of one value for each pixel."""
        pairs = [p for p in zip(self.axes, self.shape, strict=True) if p[0] != "S"]
        return Layout("".join(letter for letter, _ in pairs), tuple(length for _, length in pairs))

    def as_volume(self, volume: bool) -> Layout:
        """Return the layout with pages taken for slices of a volume, or slices for pages.

        Raises
        ------
        ValueError
            If it is not clear which pages are slices.
        """
        if not volume:
            return Layout(self.axes.replace("Z", "Q"), self.shape)
        if "Z" in self.axes:
            return self
        for letter in "QT":
            if self.axes.count(letter) == 1:
                return Layout(self.axes.replace(letter, "Z"), self.shape)
        raise ValueError(
            f"an image with the axes {self.axes} has no pages that could be the slices of a volume"
        )

    def channel_of(self, plane: int) -> int:
        """Return the index of the channel of a plane; both are counted from zero."""
        if "C" not in self.axes:
            return 0
        return self.place_of(plane)[self.plane_axes.index("C")]

    def place_of(self, plane: int) -> tuple[int, ...]:
        """Return the indices of a plane along :attr:`plane_axes`, counted from zero."""
        return tuple(int(index) for index in np.unravel_index(plane, self.plane_grid))

    def plane_at(self, place: Sequence[int]) -> int:
        """Return the number of the plane at indices along :attr:`plane_axes`."""
        return int(np.ravel_multi_index(tuple(place), self.plane_grid)) if place else 0

    def split_last_sample(self, array: Array) -> tuple[Array, Array]:
        """Return views of all samples of an array but the last, and of the last."""
        place = (slice(None),) * self.axes.index("S")
        return array[(*place, slice(None, -1))], array[(*place, -1)]

    def planes(self, array: Array) -> Iterator[Array]:
        """Iterate over views of all planes of an array with this layout, in order."""
        order = [i for i, letter in enumerate(self.axes) if letter not in _PLANE]
        order += [self.axes.index(letter) for letter in _PLANE if letter in self.axes]
        turn = np.transpose if is_numpy(array) else namespace(array).permute_dims
        view = turn(array, tuple(order))
        for index in np.ndindex(*self.plane_grid):
            yield view[index]
