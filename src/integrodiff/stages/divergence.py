r"""Stage 5: the divergence :math:`\nabla^\top (D \nabla v)` of eqs. (1), (6) and (7).

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

from collections.abc import Sequence

from integrodiff.stages._arrays import COLUMN, ROW, Array, namespace, slice_along
from integrodiff.stages.gradient import haar_gradient, haar_twist, pad_with_zero
from integrodiff.stages.structure_tensor import SymmetricTensor

# The four neighbours that a pixel exchanges with, and those opposite: rows down, columns right.
_NEIGHBOURS = ((0, 1), (1, 0), (1, 1), (1, -1))


def haar_divergence(image: Array, tensor: SymmetricTensor, theta: float) -> Array:
    """Return minus the operator of the Haar cells' energy, applied to ``image``.

    Parameters
    ----------
    image : array
        The (smoothed) image, ``(*batch, channel, row, column)``.
    tensor : SymmetricTensor
        Diffusion tensors at the (H+1) x (W+1) cells, shared by the channels.
    theta : float
        Free parameter of the Haar cell, between 0 and 1/2.
    """
    parts = (*haar_gradient(image), haar_twist(image))
    return -haar_adjoint(haar_flux(parts, tensor, theta))


def haar_flux(parts: Sequence[Array], tensor: SymmetricTensor, theta: float) -> tuple[Array, ...]:
    """Return half the derivatives of the cells' energy with respect to X, Y and E."""
    xp = namespace(tensor.xx)
    x, y, twist = parts
    return (
        tensor.xx * x + tensor.xy * y,
        tensor.xy * x + tensor.yy * y,
        (1 - 2 * theta) * (tensor.xx + tensor.yy - 2 * xp.abs(tensor.xy)) * twist,
    )


def haar_adjoint(flux: Sequence[Array]) -> Array:
    """Return the adjoint of X, Y and E, with cells on the border counted half."""
    flux_x, flux_y, flux_twist = flux
    return (
        difference_adjoint(average_adjoint(flux_x, ROW), COLUMN)
        + difference_adjoint(average_adjoint(flux_y, COLUMN), ROW)
        + difference_adjoint(difference_adjoint(flux_twist, ROW), COLUMN) / 2
    )


def nonnegativity_divergence(image: Array, tensor: SymmetricTensor) -> Array:
    """Return the paper's scheme: exchange with eight neighbours, weighted by the tensor.

    Parameters
    ----------
    image : array
        The (smoothed) image, ``(*batch, channel, row, column)``.
    tensor : SymmetricTensor
        Diffusion tensors at the pixels, shared by the channels.
    """
    return -exchange_adjoint(exchange_flux(exchange_differences(image), tensor))


def exchange_differences(image: Array) -> tuple[Array, ...]:
    """Return the differences to the right, lower, lower right and lower left neighbour."""
    pairs = (_shifted_pair(image, *direction) for direction in _NEIGHBOURS)
    return tuple(far - near for near, far in pairs)


def exchange_flux(parts: Sequence[Array], tensor: SymmetricTensor) -> tuple[Array, ...]:
    """Return the differences times the mean of the weights of the two pixels."""
    size_of_xy = namespace(tensor.xy).abs(tensor.xy)
    weights = (
        tensor.xx - size_of_xy,
        tensor.yy - size_of_xy,
        (size_of_xy + tensor.xy) / 2,
        (size_of_xy - tensor.xy) / 2,
    )
    pairs = (
        _shifted_pair(w, *direction) for w, direction in zip(weights, _NEIGHBOURS, strict=True)
    )
    return tuple((near + far) / 2 * part for (near, far), part in zip(pairs, parts, strict=True))


def exchange_adjoint(flux: Sequence[Array]) -> Array:
    """Return the adjoint of the differences: what each pixel loses minus what it gains."""
    result: Array = 0
    for part, (down, right) in zip(flux, _NEIGHBOURS, strict=True):
        left, right = max(-right, 0), max(right, 0)
        gain = _zero_border(part, rows=(0, down), columns=(left, right))
        loss = _zero_border(part, rows=(down, 0), columns=(right, left))
        result = result - (gain - loss)
    return result


def difference_adjoint(flux: Array, axis: int) -> Array:
    """Adjoint of ``difference``; the first and last value, where it is zero, do not count."""
    padded = pad_with_zero(slice_along(flux, axis, 1, -1), axis)
    return slice_along(padded, axis, None, -1) - slice_along(padded, axis, 1, None)


def average_adjoint(flux: Array, axis: int) -> Array:
    """Adjoint of ``average`` when the first and the last of its values count half."""
    return (slice_along(flux, axis, None, -1) + slice_along(flux, axis, 1, None)) / 2


def _shifted_pair(array: Array, down: int, right: int) -> tuple[Array, Array]:
    """Return all pixels that have a neighbour at ``(down, right)``, and these neighbours."""
    height, width = array.shape[ROW], array.shape[COLUMN]
    corners = (0, max(-right, 0)), (down, max(right, 0))
    here, there = (
        array[..., slice(top, height - down + top), slice(left, width - abs(right) + left)]
        for top, left in corners
    )
    return here, there


def _zero_border(flow: Array, *, rows: tuple[int, int], columns: tuple[int, int]) -> Array:
    """Surround ``flow`` with the given number of zero rows and columns."""
    for axis, (before, after) in ((COLUMN, columns), (ROW, rows)):
        flow = pad_with_zero(flow, axis, before=before, after=after)
    return flow
