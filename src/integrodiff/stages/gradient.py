r"""Stage 2: the gradient of a smoothed image, :math:`\nabla v` in eqs. (5), (7) and (8).

Two discretisations, chosen by name:

``haar``
    Derivatives live between the pixels, at the corners of the pixel grid. On the 2 x 2 cell
    ``(u00 u01 / u10 u11)`` around a corner, the Haar coefficients are

    .. math::
        X &= (-u_{00} + u_{01} - u_{10} + u_{11}) / 2 \\
        Y &= (-u_{00} - u_{01} + u_{10} + u_{11}) / 2 \\
        E &= (u_{00} - u_{01} - u_{10} + u_{11}) / 2.

    :math:`(X, Y)` is the gradient; the *twist* :math:`E`, the mixed second difference, is used
    by the divergence stage alone. An H x W image has (H+1) x (W+1) cells, since half-sample
    reflection puts one row and one column of ghost pixels around it. All three coefficients are
    products of two one-dimensional operators, :func:`difference` and :func:`average`.
``nonnegativity``
    Central differences at the pixels, as in the paper.
"""

from __future__ import annotations

from typing import Literal, NamedTuple, TypeAlias

from jaxtyping import Float

from integrodiff.stages._arrays import COLUMN, ROW, Array, namespace, slice_along

Discretisation: TypeAlias = Literal["haar", "nonnegativity"]


class Gradient(NamedTuple):
    """Derivatives along the columns' direction (``x``) and along the rows' direction (``y``)."""

    x: Array
    y: Array


def haar_gradient(image: Float[Array, "*batch channel height width"]) -> Gradient:
    """Return the Haar coefficients X and Y on the (H+1) x (W+1) cells."""
    return Gradient(
        x=average(difference(image, COLUMN), ROW),
        y=average(difference(image, ROW), COLUMN),
    )


def haar_twist(
    image: Float[Array, "*batch channel height width"],
) -> Float[Array, "*batch channel height+1 width+1"]:
    """Return the Haar coefficient E on the (H+1) x (W+1) cells."""
    return difference(difference(image, COLUMN), ROW) / 2


def central_gradient(image: Float[Array, "*batch channel height width"]) -> Gradient:
    """Return central differences at the pixels under half-sample reflection."""
    return central_gradient_of(
        right=_neighbour_difference(image, COLUMN), down=_neighbour_difference(image, ROW)
    )


def central_gradient_of(*, right: Array, down: Array) -> Gradient:
    """Return central differences from the differences to the right and to the lower neighbour."""
    return Gradient(x=_half_sum(right, COLUMN), y=_half_sum(down, ROW))


def difference(image: Array, axis: int) -> Array:
    """Differences of neighbours, n to n + 1 values; zero across a reflecting border."""
    return pad_with_zero(_neighbour_difference(image, axis), axis)


def average(image: Array, axis: int) -> Array:
    """Averages of neighbours, n to n + 1 values; at a reflecting border the pixel itself."""
    xp = namespace(image)
    inner = (slice_along(image, axis, 1, None) + slice_along(image, axis, None, -1)) / 2
    first, last = slice_along(image, axis, None, 1), slice_along(image, axis, -1, None)
    return xp.concat([first, inner, last], axis=axis)


def pad_with_zero(array: Array, axis: int, *, before: int = 1, after: int = 1) -> Array:
    """Put zeros before and after ``array``, one each unless told otherwise."""
    parts = [array]
    if before:
        parts.insert(0, _zeros_along(array, axis, before))
    if after:
        parts.append(_zeros_along(array, axis, after))
    return namespace(array).concat(parts, axis=axis)


# Not inside of the functions that use them: the check of shapes would compile its own again at
# every call.
def _zeros_along(array: Array, axis: int, count: int) -> Array:
    shape = list(array.shape)
    shape[axis] = count
    return namespace(array).zeros(tuple(shape), dtype=array.dtype, device=array.device)


def _half_sum(differences: Array, axis: int) -> Array:
    step = pad_with_zero(differences, axis)
    return (slice_along(step, axis, 1, None) + slice_along(step, axis, None, -1)) / 2


def _neighbour_difference(image: Array, axis: int) -> Array:
    return slice_along(image, axis, 1, None) - slice_along(image, axis, None, -1)
