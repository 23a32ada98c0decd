r"""Stage 5: the divergence :math:`\nabla^\top (D \nabla v)`.

Two discretisations, chosen by name:

``haar``
    The energy of one 2 x 2 cell with the tensor :math:`D = (a, b; b, c)` and the Haar
    coefficients X, Y, E of the gradient stage is

    .. math:: a X^2 + 2 b X Y + c Y^2 + (1 - 2\theta)(a + c - 2|b|) E^2,
              \qquad 0 \le \theta \le 1/2,

    and the divergence is minus the operator of that quadratic form. Cells on the border of the
    image count half, cells at its corners a quarter, as their mirror images do. Since
    :math:`|b| \le (a + c)/2` for every semidefinite D, so is the operator, for *every* tensor
    field. For D = I it is diagonal under the DCT-II. This is the family of stencils of [1]_,
    brought into one form in [2]_.
``nonnegativity``
    The pixel-centred scheme of the paper [3]_. Each pixel exchanges with its eight neighbours;
    the weights are means over the two pixels of :math:`a - |b|` (left, right), :math:`c - |b|`
    (above, below), :math:`(|b| + b)/2` and :math:`(|b| - b)/2` (diagonals). Nothing is exchanged
    across the border. Where :math:`|b|` exceeds a or c, a weight is negative, and then the
    operator can have eigenvalues of the wrong sign: no step size makes it stable for every
    tensor field. It is here for comparison with the paper.

References
----------
.. [1] J. Weickert, M. Welk, M. Wickert, "L2-stable nonstandard finite differences for
       anisotropic diffusion", Scale Space and Variational Methods, 2013.
.. [2] K. Schrader, J. Weickert, M. Krause, "Anisotropic diffusion stencils: from simple
       derivations over stability estimates to ResNet implementations", 2023.
.. [3] J. Weickert, "Anisotropic Diffusion in Image Processing", Teubner, 1998.
"""

from __future__ import annotations

from typing import assert_never

from jaxtyping import Float

from integrodiff.stages._arrays import COLUMN, ROW, Array, namespace, slice_along
from integrodiff.stages.gradient import Discretisation, haar_gradient, haar_twist, pad_with_zero
from integrodiff.stages.structure_tensor import SymmetricTensor


def divergence(
    image: Float[Array, "*batch channel height width"],
    tensor: SymmetricTensor,
    *,
    discretisation: Discretisation,
    theta: float,
) -> Float[Array, "*batch channel height width"]:
    """Return the divergence of ``tensor`` times the gradient of ``image``.

    Parameters
    ----------
    image : array
        The (smoothed) image.
    tensor : SymmetricTensor
        Diffusion tensors where ``discretisation`` has its gradient, shared by the channels.
    discretisation : {"haar", "nonnegativity"}
        The scheme.
    theta : float
        Free parameter of the Haar cell, between 0 and 1/2; the other scheme has none.
    """
    match discretisation:
        case "haar":
            return haar_divergence(image, tensor, theta)
        case "nonnegativity":
            return nonnegativity_divergence(image, tensor)
        case _:
            assert_never(discretisation)


def haar_divergence(image: Array, tensor: SymmetricTensor, theta: float) -> Array:
    """Return minus the operator of the Haar cells' energy, applied to ``image``."""
    xp = namespace(image)
    grad = haar_gradient(image)
    twist = haar_twist(image)
    flux_x = tensor.xx * grad.x + tensor.xy * grad.y
    flux_y = tensor.xy * grad.x + tensor.yy * grad.y
    flux_twist = (1 - 2 * theta) * (tensor.xx + tensor.yy - 2 * xp.abs(tensor.xy)) * twist
    return -(
        _difference_adjoint(_average_adjoint(flux_x, ROW), COLUMN)
        + _difference_adjoint(_average_adjoint(flux_y, COLUMN), ROW)
        + _difference_adjoint(_difference_adjoint(flux_twist, ROW), COLUMN) / 2
    )


def nonnegativity_divergence(image: Array, tensor: SymmetricTensor) -> Array:
    """Return the paper's scheme: exchange with eight neighbours, weighted by the tensor."""
    xp = namespace(image)
    size_of_xy = xp.abs(tensor.xy)
    return (
        _exchange(image, tensor.xx - size_of_xy, down=0, right=1)
        + _exchange(image, tensor.yy - size_of_xy, down=1, right=0)
        + _exchange(image, (size_of_xy + tensor.xy) / 2, down=1, right=1)
        + _exchange(image, (size_of_xy - tensor.xy) / 2, down=1, right=-1)
    )


def _difference_adjoint(flux: Array, axis: int) -> Array:
    """Adjoint of ``difference``; the first and last value, where it is zero, do not count."""
    inner = slice_along(flux, axis, 1, -1)
    padded = pad_with_zero(inner, axis, like=flux)
    return slice_along(padded, axis, None, -1) - slice_along(padded, axis, 1, None)


def _average_adjoint(flux: Array, axis: int) -> Array:
    """Adjoint of ``average`` when the first and the last of its values count half."""
    return (slice_along(flux, axis, None, -1) + slice_along(flux, axis, 1, None)) / 2


def _exchange(image: Array, weight: Array, *, down: int, right: int) -> Array:
    """Flow between each pixel and its two neighbours in the direction ``(down, right)``."""
    near, far = _shifted_pair(image, down, right)
    weight_near, weight_far = _shifted_pair(weight, down, right)
    flow = (weight_near + weight_far) / 2 * (far - near)
    gain = _zero_border(flow, image, rows=(0, down), columns=(max(-right, 0), max(right, 0)))
    loss = _zero_border(flow, image, rows=(down, 0), columns=(max(right, 0), max(-right, 0)))
    return gain - loss


def _shifted_pair(array: Array, down: int, right: int) -> tuple[Array, Array]:
    """Return all pixels that have a neighbour at ``(down, right)``, and these neighbours."""
    height, width = array.shape[ROW], array.shape[COLUMN]

    def window(top: int, left: int) -> Array:
        rows = slice(top, height - down + top)
        return array[..., rows, slice(left, width - abs(right) + left)]

    return window(0, max(-right, 0)), window(down, max(right, 0))


def _zero_border(
    flow: Array, like: Array, *, rows: tuple[int, int], columns: tuple[int, int]
) -> Array:
    """Surround ``flow`` with the given number of zero rows and columns."""
    xp = namespace(flow)
    for axis, (before, after) in ((COLUMN, columns), (ROW, rows)):
        if before:
            flow = xp.concat([_zeros(flow, like, axis), flow], axis=axis)
        if after:
            flow = xp.concat([flow, _zeros(flow, like, axis)], axis=axis)
    return flow


def _zeros(flow: Array, like: Array, axis: int) -> Array:
    """One row or column of zeros that fits to ``flow`` along ``axis``."""
    shape = list(flow.shape)
    shape[axis] = 1
    return namespace(flow).zeros(tuple(shape), dtype=like.dtype, device=like.device)
