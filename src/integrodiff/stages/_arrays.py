"""What every stage needs to know about arrays: their type, layout and namespace.

All stages work on arrays laid out as ``(*batch, channel, row, column)``, or, for volumes,
``(*batch, channel, slice, row, column)``. A grey image has one channel. Quantities shared by the
channels, such as the structure tensor, keep the channel axis with length one, so that plain
broadcasting applies them to every channel.
"""

from __future__ import annotations

import math
from typing import Any, TypeAlias

import array_api_compat

Array: TypeAlias = Any
"""An array of any namespace the array API standard knows: NumPy, PyTorch and others."""

Scalar: TypeAlias = Any
"""A Python float, or an array that carries derivatives.

It has no axes, or, for one number per image, the shape ``(image, 1, 1, 1)``.
"""

SLICE, ROW, COLUMN = -3, -2, -1
"""Axes of a volume; an image has the last two of them. Channels come before."""


_NAMESPACES: dict[type, Any] = {}


def namespace(array: Array) -> Any:
    """Return the array API namespace that ``array`` belongs to."""
    kind = type(array)
    if kind not in _NAMESPACES:  # a dictionary, which compilers of array code can look into
        _NAMESPACES[kind] = array_api_compat.array_namespace(array)
    return _NAMESPACES[kind]


def exp(value: Scalar) -> Scalar:
    """Exponential of a Python number or of an array."""
    if isinstance(value, (int, float)):
        return math.exp(value)
    return namespace(value).exp(value)


def sqrt(value: Scalar) -> Scalar:
    """Square root of a Python number or of an array."""
    if isinstance(value, (int, float)):
        return math.sqrt(value)
    return namespace(value).sqrt(value)


def clipped(value: Scalar, lowest: Any, highest: Any) -> Scalar:
    """Return the nearest number in an interval; outside, an array has no derivative.

    The ends are numbers, or NumPy arrays that broadcast to an array.
    """
    if not has_axes(value):
        return min(max(value, lowest), highest)
    xp = namespace(value)
    low, high = (xp.asarray(e, dtype=value.dtype, device=value.device) for e in (lowest, highest))
    return xp.minimum(xp.maximum(value, low), high)


def has_axes(value: Scalar) -> bool:
    """Whether there is one number per image."""
    return not isinstance(value, (int, float)) and value.ndim > 0


def detached(array: Array) -> Array:
    """Return an array without the derivatives it may carry."""
    return array.detach() if hasattr(array, "detach") else array


def plain(value: Scalar) -> float:
    """Return a number without the derivatives it may carry."""
    return float(value.detach() if hasattr(value, "detach") else value)


def slice_along(array: Array, axis: int, start: int | None, stop: int | None) -> Array:
    """Return ``array[..., start:stop, ...]`` along the (negative) ``axis``."""
    trailing = (slice(None),) * (-axis - 1)
    return array[(..., slice(start, stop), *trailing)]
