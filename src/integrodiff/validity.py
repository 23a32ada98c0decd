"""Which pixels of an image are valid: masks, grey values that stand for no data, NaN.

A mask is True at valid pixels. Invalid pixels do not count: nothing is estimated from them, nothing
flows to or from them, and they come back as they were. A pixel with several samples is valid only
if all of its samples are.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import reduce
from operator import and_
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from integrodiff.layout import Layout
from integrodiff.namespaces import Array, dtype_of, is_numpy, namespace

Mask: TypeAlias = NDArray[np.bool_]

NOT_FINITE = "NaN or infinite"
"""Why pixels of floating-point images are invalid by themselves."""


@dataclass(frozen=True)
class Nodata:
    """A grey value, or an interval of them, that marks invalid pixels.

    Attributes
    ----------
    lowest, highest : float
        The ends of the interval, which belong to it.
    words : str
        What it is called, such as "nodata -9999".
    declared : bool
        Whether the file says so; the result will say so too.
    """

    lowest: float
    highest: float
    words: str
    declared: bool = True

    def found_in(self, pixels: NDArray[Any]) -> NDArray[np.bool_]:
        """Return where the marked values are, compared in the dtype of the pixels."""
        ends = _ends_in_dtype(self.lowest, self.highest, pixels.dtype)
        if ends is None:
            return np.zeros(pixels.shape, np.bool_)
        if ends[0] == ends[1]:
            return np.asarray(pixels == ends[0])
        return np.asarray((pixels >= ends[0]) & (pixels <= ends[1]))

    def avoided(self, pixels: NDArray[Any]) -> NDArray[Any]:
        """Return pixels of which none is marked: those that are get the nearest other value."""
        marked = self.found_in(pixels)
        if not marked.any():
            return pixels
        below, above = _neighbours(self.lowest, self.highest, pixels.dtype)
        if below is None and above is None:
            return pixels
        result, values = pixels.copy(), pixels[marked].astype(np.float64)
        if below is None or above is None:
            result[marked] = above if below is None else below
        else:
            nearer = values - float(below) < float(above) - values
            result[marked] = np.where(nearer, below, above)
        return result


def nodata_value(value: float, what: str = "nodata", *, declared: bool = True) -> Nodata:
    """Return the mark of one grey value; NaN is invalid anyway, and marks nothing else."""
    return Nodata(value, value, f"{what} {value:.10g}", declared)


def _neighbours(lowest: float, highest: float, dtype: np.dtype[Any]) -> tuple[Any, Any]:
    """Return the values of a dtype next to an interval, None where there is none."""
    ends = _ends_in_dtype(lowest, highest, dtype)
    if ends is None:
        return None, None
    if dtype.kind == "f":
        pairs = zip(ends, (-np.inf, np.inf), strict=True)
        with np.errstate(over="ignore"):
            outside = [np.nextafter(end, dtype.type(far)) for end, far in pairs]
        below, above = (value if np.isfinite(value) else None for value in outside)
        return below, above
    limits, first, last = np.iinfo(dtype), int(ends[0]), int(ends[1])
    return (
        dtype.type(first - 1) if first > limits.min else None,
        dtype.type(last + 1) if last < limits.max else None,
    )


def _ends_in_dtype(lowest: float, highest: float, dtype: np.dtype[Any]) -> tuple[Any, Any] | None:
    """Return the smallest and largest value of a dtype in an interval, or None if there is none."""
    if math.isnan(lowest) or math.isnan(highest):
        return None
    if dtype.kind == "f":
        with np.errstate(over="ignore"):
            return dtype.type(lowest), dtype.type(highest)
    limits = np.iinfo(dtype)
    first = limits.min if lowest <= limits.min else math.ceil(min(lowest, limits.max + 1))
    last = limits.max if highest >= limits.max else math.floor(max(highest, limits.min - 1))
    return (dtype.type(first), dtype.type(last)) if first <= last else None


@dataclass(frozen=True, kw_only=True, eq=False)
class Validity:
    """The rules by which the pixels of an image are valid or not.

    Attributes
    ----------
    masks : tuple of sequences of masks
        Each has a mask for every plane, ``(row, column)``.
    nodata : tuple of Nodata
        Grey values of invalid pixels.
    words : tuple of str
        What the masks are called.
    is_finite : bool
        Whether it is known that no grey value is NaN or infinite.
    """

    masks: tuple[Sequence[Mask], ...] = ()
    nodata: tuple[Nodata, ...] = ()
    words: tuple[str, ...] = ()
    is_finite: bool = False

    def depends_on_values(self, dtype: np.dtype[Any]) -> bool:
        """Whether masks of planes of a dtype depend on their grey values."""
        return (dtype.kind == "f" and not self.is_finite) or bool(self.nodata)

    def may_exclude(self, dtype: np.dtype[Any]) -> bool:
        """Whether there may be invalid pixels in an image of a dtype."""
        return bool(self.masks) or self.depends_on_values(dtype)

    def of(self, plane: Array, number: int = 0) -> Mask | None:
        """Return the mask of a plane, ``(Y, X)`` or ``(Y, X, S)``; None if all pixels are valid."""
        parts = [masks[number] for masks in self.masks]
        parts += [~_any_sample(rule.found_in(plane)) for rule in self.nodata]
        if not self.is_finite and not all_finite(plane):
            parts.append(~_any_sample(~namespace(plane).isfinite(plane)))
        if not parts:
            return None
        valid = reduce(and_, parts)
        return None if valid.all() else valid

    def reasons(self, plane: Array, number: int = 0) -> list[str]:
        """Return in words why pixels of a plane are invalid."""
        pairs = zip(self.masks, self.words, strict=True)
        found = [words for masks, words in pairs if not masks[number].all()]
        found += [rule.words for rule in self.nodata if rule.found_in(plane).any()]
        return found if self.is_finite or all_finite(plane) else [*found, NOT_FINITE]

    def unmarked(self, result: Array) -> Array:
        """Return denoised pixels, none of which has a value that the file declares to be invalid.

        Otherwise rounding and clipping could make valid pixels invalid.
        """
        for rule in self.nodata:
            result = rule.avoided(result) if rule.declared else result
        return result

    def with_mask(self, masks: Sequence[Mask], words: str) -> Validity:
        """Return the rules and one more mask."""
        return replace(self, masks=(*self.masks, masks), words=(*self.words, words))

    def with_nodata(self, *rules: Nodata) -> Validity:
        """Return the rules and further grey values of invalid pixels."""
        return replace(self, nodata=(*self.nodata, *rules))


def _any_sample(found: Mask) -> Mask:
    """Return where at least one sample of a pixel is marked."""
    return namespace(found).any(found, axis=-1) if found.ndim == 3 else found


def all_finite(plane: Array) -> bool:
    """Whether there is neither NaN nor infinity, found without an array of its size."""
    if dtype_of(plane).kind != "f":
        return True
    finite = namespace(plane).isfinite
    return bool(finite(plane.min()) & finite(plane.max()))


def plane_masks(mask: Array, layout: Layout) -> list[Mask]:
    """Return a mask for every plane of an image, as views.

    Parameters
    ----------
    mask : array of bool
        True at valid pixels. It has the axes of the image without S, or Y and X alone; an axis may
        have the length one. A mask of all samples is True where all samples of a pixel are.
    layout : Layout
        Axes of the image.

    Raises
    ------
    TypeError, ValueError
        If it is no mask, or does not fit the image.
    """
    mask = mask if is_numpy(mask) or hasattr(mask, "__dlpack__") else np.asarray(mask)
    if dtype_of(mask) != np.bool_:
        raise TypeError(
            "mask must be an array of bool, True at valid pixels, got the dtype "
            f"{dtype_of(mask)}; write mask != 0, for example"
        )
    xp = namespace(mask)
    if layout.has_samples and tuple(mask.shape) == layout.shape:
        mask = xp.all(mask, axis=layout.axes.index("S"))
    pixels = layout.without_samples
    if mask.ndim == 2 and len(pixels.axes) > 2:
        where = tuple(slice(None) if letter in "YX" else None for letter in pixels.axes)
        spread = mask[where]
    else:
        spread = mask
    try:
        whole = xp.broadcast_to(spread, pixels.shape)
    except (RuntimeError, ValueError):
        raise ValueError(
            f"mask has the shape {tuple(mask.shape)}, and the image has {pixels.shape} pixels "
            f"along the axes {pixels.axes}; give a mask of this shape, or one of rows and columns"
        ) from None
    return list(pixels.planes(whole))
