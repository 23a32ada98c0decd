"""What is drawn of an image: one plane, upright, its valid pixels in a window of grey values."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from integrodiff.layout import Layout
from integrodiff.validity import Mask, Validity

Window: TypeAlias = tuple[float, float]
"""The grey values that are drawn black and white."""

GREY_LEVELS = "grey levels"
"""The unit of grey values where no other is known."""

INVALID = (118, 126, 148)
"""Colour of invalid pixels: a grey that no pixel of a grey image has."""

# Noise and hot pixels must not stretch the window.
_PERCENTILES = (0.5, 99.5)
_PICKED = "TCZQ"


@dataclass(frozen=True, kw_only=True)
class Selection:
    """The plane of an image that is drawn, and which of its samples.

    Attributes
    ----------
    planes : tuple of int
        Number of the plane; three if channels are drawn as red, green and blue.
    samples : tuple of int, optional
        The samples of the plane that are drawn; None for all.
    words : str
        What was chosen, such as "Z=12 of 24"; empty if there was no choice.
    """

    planes: tuple[int, ...]
    samples: tuple[int, ...] | None
    words: str

    @property
    def false_colour(self) -> bool:
        """Whether three bands are drawn as red, green and blue."""
        return len(self.planes) == 3 or (self.samples is not None and len(self.samples) == 3)


def select(
    layout: Layout,
    *,
    at: Mapping[str, int] | None = None,
    page: int | None = None,
    bands: Sequence[int] | None = None,
    all_samples: bool = False,
    first: int = 0,
) -> Selection:
    """Choose what is drawn of an image with these axes.

    Parameters
    ----------
    layout : Layout
        Axes of the image.
    at : mapping from str to int, optional
        Indices along axes, from zero. By default the middle of Z and the first of all others.
    page : int, optional
        Number of the plane, from zero, in place of ``at``.
    bands : sequence of int, optional
        One band that is drawn grey, or three that are red, green and blue; from zero. Bands are
        the samples of the image or, if it has none, its channels. By default all samples if
        there are three, else the first.
    all_samples : bool
        Whether all samples are wanted by default, whatever their number.
    first : int
        What the first index is called in words: 0 in Python, 1 on the command line.

    Raises
    ------
    ValueError
        If there is no such plane or band.
    """
    at = dict(at or {})
    axis, chosen = ("S", None) if bands is None and all_samples else _bands(layout, bands, first)
    if page is not None:
        if at:
            raise ValueError("give a page or places along axes, not both")
        if not 0 <= page < layout.plane_count:
            raise ValueError(
                f"page {page + first} does not exist: there are pages {first} to "
                f"{layout.plane_count - 1 + first}"
            )
        place = list(layout.place_of(page))
    else:
        place = _place(layout, at, first)
    if axis == "C":
        where = layout.plane_axes.index("C")
        if "C" in at or page is not None:
            raise ValueError("bands are the channels of this image, which are chosen already")
        numbers = [[*place[:where], band, *place[where + 1 :]] for band in chosen or ()]
        planes = tuple(layout.plane_at(number) for number in numbers)
    else:
        planes = (layout.plane_at(place),)
    samples = chosen if axis == "S" else None
    return Selection(
        planes=planes, samples=samples, words=_words(layout, place, axis, chosen, first)
    )


def _bands(
    layout: Layout, bands: Sequence[int] | None, first: int
) -> tuple[str | None, tuple[int, ...] | None]:
    """Return the axis of the bands that are drawn and their numbers; None for all samples."""
    if bands is None:
        return ("S", None) if layout.samples in (1, 3) else ("S", (0,))
    axis = "S" if layout.samples > 1 else "C"
    count = layout.length(axis)
    if len(bands) not in (1, 3):
        raise ValueError(f"bands must be one number or three, got {len(bands)}")
    if axis not in layout.axes:
        raise ValueError(f"an image with the axes {layout.axes} has no bands to choose from")
    for band in bands:
        if not 0 <= band < count:
            raise ValueError(
                f"band {band + first} does not exist: there are bands {first} to "
                f"{count - 1 + first}"
            )
    return axis, tuple(bands)


def _place(layout: Layout, at: Mapping[str, int], first: int) -> list[int]:
    """Return the index along each axis that planes are counted along."""
    axes = layout.plane_axes
    for letter, index in at.items():
        if letter not in _PICKED or axes.count(letter) != 1:
            known = ", ".join(letter for letter in _PICKED if axes.count(letter) == 1)
            many = "; give a page instead" if axes.count(letter) > 1 else ""
            raise ValueError(
                f"there is no one axis {letter!r} to choose along: the image has the axes "
                f"{layout.axes}, of which {known or 'none'} can be chosen along{many}"
            )
        if not 0 <= index < layout.length(letter):
            raise ValueError(
                f"{letter}={index + first} does not exist: the image has {letter} from {first} to "
                f"{layout.length(letter) - 1 + first}"
            )
    lengths = zip(axes, layout.plane_grid, strict=True)
    # The first slices of a volume are often empty.
    return [at.get(letter, length // 2 if letter == "Z" else 0) for letter, length in lengths]


def _words(
    layout: Layout,
    place: Sequence[int],
    axis: str | None,
    bands: tuple[int, ...] | None,
    first: int,
) -> str:
    """Describe a choice; axes of length one leave none."""
    found = [
        f"{letter}={index + first} of {length}"
        for letter, index, length in zip(layout.plane_axes, place, layout.plane_grid, strict=True)
        if length > 1 and not (axis == "C" and letter == "C")
    ]
    if bands is not None and axis is not None:
        numbers = ", ".join(str(band + first) for band in bands)
        found.append(f"band{'s' if len(bands) > 1 else ''} {numbers} of {layout.length(axis)}")
    return ", ".join(found)


@dataclass(frozen=True, kw_only=True, eq=False)
class View:
    """One plane of an image as it is drawn.

    Attributes
    ----------
    pixels : ndarray
        Grey values ``(row, column)``, or ``(row, column, 3)`` for red, green and blue.
    mask : array of bool, optional
        True at valid pixels; None if all are.
    unit : str
        Unit of the grey values.
    words : str
        Which plane of the image it is.
    false_colour : bool
        Whether red, green and blue are bands with a window each.
    white_is_zero : bool
        Whether small values are drawn bright.
    """

    pixels: NDArray[Any]
    mask: Mask | None = None
    unit: str = GREY_LEVELS
    words: str = ""
    false_colour: bool = False
    white_is_zero: bool = False

    @property
    def valid(self) -> NDArray[Any]:
        """The values of valid pixels, in one row for each sample."""
        pixels = self.pixels if self.pixels.ndim == 3 else self.pixels[..., None]
        found: NDArray[Any] = np.moveaxis(pixels, -1, 0).reshape(pixels.shape[-1], -1)
        return found if self.mask is None else found[:, self.mask.ravel()]

    def windows(self, given: Window | None = None) -> tuple[Window, ...]:
        """Return the window of each sample: the given one, or one that fits the valid pixels.

        It is that of the dtype for 8 bits, and else from the lowest to the highest half per cent,
        for each band if the colours are false.
        """
        count = 3 if self.pixels.ndim == 3 else 1
        if given is not None:
            return (given,) * count
        if self.pixels.dtype == np.uint8 and not self.false_colour:
            return ((0.0, 255.0),) * count
        if self.false_colour:
            return tuple(percentile_window(values) for values in self.valid)
        return (percentile_window(self.valid),) * count

    def as_bytes(self, windows: Sequence[Window]) -> NDArray[np.uint8]:
        """Return the picture, with windows of the samples; in colour if a pixel is invalid."""
        parts = [
            _as_bytes(sample, *window)
            for sample, window in zip(self._samples(), windows, strict=True)
        ]
        picture = parts[0] if len(parts) == 1 else np.stack(parts, axis=-1)
        picture = 255 - picture if self.white_is_zero else picture
        return greyed_out(picture, self.mask)

    def _samples(self) -> Iterable[NDArray[Any]]:
        return [self.pixels] if self.pixels.ndim == 2 else np.moveaxis(self.pixels, -1, 0)


def percentile_window(values: NDArray[Any]) -> Window:
    """Return a window from the lowest to the highest half per cent of some values."""
    low, high = np.percentile(values.astype(np.float64), _PERCENTILES)
    if not high > low:
        low, high = float(values.min()), float(values.max())
    return (float(low), float(high)) if high > low else (float(low) - 0.5, float(low) + 0.5)


def checked_window(window: Sequence[float] | None) -> Window | None:
    """Return a window that was given; refuse one that is none."""
    if window is None:
        return None
    low, high = (float(end) for end in window)
    if not (np.isfinite([low, high]).all() and low < high):
        raise ValueError(
            f"the window must be two numbers, the lower one first; got {low:g} {high:g}"
        )
    return low, high


def greyed_out(picture: NDArray[np.uint8], mask: Mask | None) -> NDArray[np.uint8]:
    """Return a picture with its invalid pixels in their colour."""
    if mask is None:
        return picture
    coloured = picture[..., None].repeat(3, axis=-1) if picture.ndim == 2 else picture.copy()
    coloured[~mask] = INVALID
    return coloured


def _as_bytes(image: NDArray[Any], black: float, white: float) -> NDArray[np.uint8]:
    with np.errstate(invalid="ignore", over="ignore"):
        scaled = (image.astype(np.float64) - black) * (255 / (white - black))
    return np.asarray(np.rint(np.nan_to_num(scaled).clip(0, 255)), np.uint8)


def chosen_view(
    planes: Mapping[int, NDArray[Any]],
    selection: Selection,
    validity: Validity,
    *,
    orientation: int = 1,
    white_is_zero: bool = False,
) -> View:
    """Return the view of a selection.

    Parameters
    ----------
    planes : mapping from int to ndarray
        The planes of the selection by their number, ``(Y, X)`` or ``(Y, X, S)``.
    selection : Selection
        What is drawn.
    validity : Validity
        Which pixels of the image are valid.
    orientation : int
        How the image is turned for display, in the numbers of EXIF.
    white_is_zero : bool
        Whether small values are drawn bright.
    """
    found = [samples_of(planes[number], selection.samples) for number in selection.planes]
    masks = [
        validity.of(plane, number) for plane, number in zip(found, selection.planes, strict=True)
    ]
    known = [mask for mask in masks if mask is not None]
    mask = np.logical_and.reduce(known) if known else None
    pixels = found[0] if len(found) == 1 else np.stack(found, axis=-1)
    return View(
        pixels=upright(pixels, orientation),
        mask=None if mask is None else upright(mask, orientation),
        words=selection.words,
        false_colour=selection.false_colour,
        white_is_zero=white_is_zero,
    )


def samples_of(plane: NDArray[Any], samples: tuple[int, ...] | None) -> NDArray[Any]:
    """Return some samples of a plane; a single one as a grey image."""
    if plane.ndim == 2:
        return plane
    chosen: NDArray[Any] = plane if samples is None else plane[..., list(samples)]
    return chosen[..., 0] if chosen.shape[-1] == 1 else chosen


def upright(pixels: NDArray[Any], orientation: int) -> NDArray[Any]:
    """Turn and flip rows and columns as an EXIF orientation says; a view of the pixels."""
    if orientation >= 5:
        pixels = pixels.swapaxes(0, 1)
    flips = {2: (1,), 3: (0, 1), 4: (0,), 6: (1,), 7: (0, 1), 8: (0,)}
    return np.flip(pixels, flips.get(orientation, ()))


def in_units(view: View, slope: float, intercept: float, unit: str) -> View:
    """Return a view with its grey values scaled to a unit."""
    pixels = view.pixels
    if (slope, intercept) != (1.0, 0.0):
        pixels = slope * pixels.astype(np.float64) + intercept
    return replace(view, pixels=pixels, unit=unit or view.unit)


def common_mask(views: Sequence[View]) -> Mask | None:
    """Return where all views are valid; None if they are everywhere.

    Raises
    ------
    ValueError
        If no pixel is valid in all of them.
    """
    found = [view.mask for view in views if view.mask is not None]
    if not found:
        return None
    common: Mask = np.logical_and.reduce(found)
    if not common.any():
        one = "this image has no valid pixel"
        many = "there is no pixel that is valid in all of these images"
        raise ValueError(one if len(views) == 1 else many)
    return common
