r"""Stage 2, beyond the gradient: derivatives of order two to four, and their adjoints.

The derivatives of order n are the n + 1 mixed derivatives
:math:`\partial_x^{n-j} \partial_y^{j} u`, each times :math:`\sqrt{\binom{n}{j}}`, so that the sum
of their squares does not change when the image is rotated. Each is a product of two
one-dimensional operators of the differences :math:`\delta` and the averages :math:`\mu` of
neighbours:

=========  ==========================  ===========================  ===============
order      lives on                    odd derivatives              even derivatives
=========  ==========================  ===========================  ===============
2 and 4    pixels                      :math:`\mu\,\delta^a`        :math:`\delta^a`
1 and 3    cells between the pixels    :math:`\delta^a`             :math:`\mu\,\delta^a`
=========  ==========================  ===========================  ===============

For order one these are the Haar coefficients X and Y of :mod:`integrodiff.stages.gradient`.

**Boundary.** The image continues by half-sample reflection. Its derivatives then continue by
reflection as well, the odd ones with the opposite sign, and so do their products with a
diffusivity. Both an operator and its adjoint are therefore plain stencils on continued arrays,
and the adjoint is exact if cells on the border count half, as they do in the Haar scheme.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from integrodiff.stages._arrays import COLUMN, ROW, Array, slice_along
from integrodiff.stages.reflection import Grid, continued

HIGHEST_ORDER = 4

# Stencils of the derivatives 0, 1, 2, ... in one dimension.
_ON_PIXELS = (
    (1.0,),
    (-0.5, 0.0, 0.5),
    (1.0, -2.0, 1.0),
    (-0.5, 1.0, 0.0, -1.0, 0.5),
    (1.0, -4.0, 6.0, -4.0, 1.0),
)
_ON_CELLS = (
    (0.5, 0.5),
    (-1.0, 1.0),
    (0.5, -0.5, -0.5, 0.5),
    (-1.0, 3.0, -3.0, 1.0),
)


def derivatives(image: Array, order: int) -> tuple[Array, ...]:
    """Return all derivatives of one order, at the pixels or at the (H+1) x (W+1) cells.

    Parameters
    ----------
    image : array
        ``(*batch, channel, row, column)``.
    order : int
        From 1 to 4.
    """
    stencils = _stencils(order)
    return tuple(
        math.sqrt(math.comb(order, j))
        * _forward(_forward(image, stencils[order - j], COLUMN), stencils[j], ROW)
        for j in range(order + 1)
    )


def derivatives_adjoint(fields: Sequence[Array], order: int) -> Array:
    """Return the adjoint of :func:`derivatives`, with cells on the border counted half.

    Each field must continue beyond the border as the derivative that it stands for, which holds
    for every product of that derivative with a field that continues evenly.
    """
    stencils, grid = _stencils(order), grid_of(order)
    result: Array = 0
    for j, field in enumerate(fields):
        part = _backward(field, stencils[j], ROW, sign=(-1) ** j, grid=grid)
        part = _backward(part, stencils[order - j], COLUMN, sign=(-1) ** (order - j), grid=grid)
        result = result + math.sqrt(math.comb(order, j)) * part
    return result


def symbol(order: int, p: Any, q: Any) -> Any:
    r"""Return the eigenvalues of adjoint times derivatives, :math:`p = 1 - \cos\omega_x`.

    In one dimension :math:`\delta^a` contributes :math:`(2p)^a`, and an average
    :math:`1 - p/2`.
    """
    result = 0.0
    for j in range(order + 1):
        a = order - j
        result = result + math.comb(order, j) * (
            (2 * p) ** a * _average(order, a, p) * (2 * q) ** j * _average(order, j, q)
        )
    return result


def largest_symbol(order: int, p: tuple[Any, Any], q: tuple[Any, Any]) -> Any:
    """Return an upper bound of :func:`symbol` on boxes of ``p`` and ``q``, given as (low, high).

    Each factor is monotonous and nonnegative: powers grow, averages fall.
    """
    result = 0.0
    for j in range(order + 1):
        a = order - j
        result = result + math.comb(order, j) * (
            (2 * p[1]) ** a * _average(order, a, p[0]) * (2 * q[1]) ** j * _average(order, j, q[0])
        )
    return result


def _average(order: int, derivative: int, p: Any) -> Any:
    """Return the symbol of the average, where a stencil has one."""
    return 1 - p / 2 if (order + derivative) % 2 else 1.0


def grid_of(order: int) -> Grid:
    """Return where derivatives of an order live."""
    return "cells" if order % 2 else "pixels"


def _stencils(order: int) -> tuple[tuple[float, ...], ...]:
    return _ON_CELLS if grid_of(order) == "cells" else _ON_PIXELS


def _forward(image: Array, stencil: tuple[float, ...], axis: int) -> Array:
    """Apply a stencil along one axis to an image that continues by reflection."""
    radius = len(stencil) // 2
    return _correlate(continued(image, axis, radius), stencil, axis)


def _backward(
    field: Array, stencil: tuple[float, ...], axis: int, *, sign: int, grid: Grid
) -> Array:
    """Apply the adjoint of a stencil along one axis to a field with its own continuation."""
    radius = len(stencil) // 2 - (grid == "cells")
    return _correlate(continued(field, axis, radius, grid=grid, sign=sign), stencil[::-1], axis)


def _correlate(array: Array, stencil: tuple[float, ...], axis: int) -> Array:
    """Return the sums of neighbours weighted by the stencil, where all of them are there."""
    size = array.shape[axis] - len(stencil) + 1
    result: Array = 0
    for offset, weight in enumerate(stencil):
        if weight:
            result = result + weight * slice_along(array, axis, offset, offset + size)
    return result
