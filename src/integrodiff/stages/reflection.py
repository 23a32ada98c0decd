"""How images and fields continue beyond the border: by reflection.

An image continues by *half-sample* reflection, ``d c b a | a b c d``: the mirror lies on the outer
edge of the border pixels. Everything computed from it at the pixels continues in the same way. What
is computed at the cells between the pixels, the outermost of which lie on the mirror, continues by
*whole-sample* reflection, ``d c b (a) b c d``. Either way a field that changes its sign when the
image is mirrored, such as a derivative of odd order, is *odd* across the border; others are *even*.
"""

from __future__ import annotations

from typing import Any, Literal, TypeAlias

import numpy as np

from integrodiff.stages._arrays import Array, namespace, slice_along

Grid: TypeAlias = Literal["pixels", "cells"]
"""Where a field lives: at the H x W pixels, or at the (H+1) x (W+1) cells between them."""

EVEN, ODD = 1, -1


def continued(
    array: Array, axis: int, radius: int, *, grid: Grid = "pixels", sign: int = EVEN
) -> Array:
    """Continue an array by ``radius`` values on both sides of one axis."""
    if radius == 0:
        return array
    xp = namespace(array)
    size, mirror = array.shape[axis], int(grid == "cells")
    if radius + mirror > size:
        return _continued_repeatedly(xp, array, axis, radius, sign, mirror)
    before = xp.flip(slice_along(array, axis, mirror, mirror + radius), axis=axis)
    after = xp.flip(slice_along(array, axis, size - mirror - radius, size - mirror), axis=axis)
    if sign != EVEN:
        before, after = sign * before, sign * after
    return xp.concat([before, array, after], axis=axis)


def _continued_repeatedly(
    xp: Any, array: Array, axis: int, radius: int, sign: int, mirror: int
) -> Array:
    """Continue an array that is shorter than the radius, reflecting more than once."""
    size = array.shape[axis]
    period = 2 * (size - mirror)
    position = np.arange(-radius, size + radius) % period
    reflected = position >= size
    index = np.where(reflected, period - 1 + mirror - position, position)
    taken = xp.take(array, xp.asarray(index, device=array.device), axis=axis)
    if sign == EVEN:
        return taken
    signs = xp.asarray(np.where(reflected, sign, 1), dtype=array.dtype, device=array.device)
    shape = [1] * array.ndim
    shape[axis] = size + 2 * radius
    return taken * xp.reshape(signs, tuple(shape))
