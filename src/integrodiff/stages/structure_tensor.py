r"""Stage 3: the multiscale structure tensor, eqs. (5), (8) and (9) of the paper.

.. math:: J = \sum_i w_i \gamma_i^2 \, \nabla v_i \nabla v_i^\top

One symmetric 2 x 2 tensor per location sums up what all scales know of the local structure.
Its largest eigenvalue belongs to the direction across edges. Gradients of different scales are
in general not parallel, which is what makes the resulting diffusion anisotropic at every scale.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from jaxtyping import Float

from integrodiff.stages._arrays import CHANNEL, COLUMN, ROW, Array, Scalar, namespace
from integrodiff.stages.gradient import average
from integrodiff.stages.reflection import ODD, Grid
from integrodiff.stages.scale_space import blur_field


class SymmetricTensor(NamedTuple):
    """A field of symmetric 2 x 2 tensors: the entries ``[[xx, xy], [xy, yy]]``."""

    xx: Array
    xy: Array
    yy: Array


def outer_product(x: Array, y: Array) -> SymmetricTensor:
    r"""Return :math:`\nabla v \nabla v^\top`, eq. (5) of the paper, from the derivatives of v."""
    return SymmetricTensor(xx=x * x, xy=x * y, yy=y * y)


def multiscale_structure_tensor(
    products: Sequence[SymmetricTensor], weights: Sequence[Scalar]
) -> SymmetricTensor:
    r"""Return the weighted sum over the scales of the outer products, eq. (8) of the paper.

    The channels of a multichannel image share one tensor, so that their edges stay aligned. It
    is the sum over the channels divided by their number: then a grey image stored as three equal
    channels is treated just as the grey image, and contrast parameters keep their meaning.

    Parameters
    ----------
    products : sequence of SymmetricTensor
        One for each scale, arrays ``(*batch, channel, row, column)``.
    weights : sequence of scalars
        :math:`w_i \gamma_i^2` for each of these scales.

    Returns
    -------
    tensor : SymmetricTensor
        Arrays ``(*batch, 1, row, column)``.
    """
    return SymmetricTensor(
        *(_weighted_mean(entry, weights) for entry in zip(*products, strict=True))
    )


def _weighted_mean(fields: Sequence[Array], weights: Sequence[Scalar]) -> Array:
    """Return the sum over the scales, and of that the mean over the channels."""
    total = sum(weight * field for weight, field in zip(weights, fields, strict=True))
    return namespace(total).mean(total, axis=CHANNEL, keepdims=True)


def multiscale_energy(
    derivatives: Sequence[Sequence[Array]], weights: Sequence[Scalar]
) -> Float[Array, "*batch 1 row column"]:
    r"""Return :math:`\sum_i c_i |R v_i|^2`, for the gradient eq. (9) of the paper.

    It is the trace of the multiscale structure tensor, and as that the mean over the channels.

    Parameters
    ----------
    derivatives : sequence of sequences of arrays
        All derivatives of one order, for each scale.
    weights : sequence of scalars
        Weight :math:`c_i` of each of these scales.
    """
    return _weighted_mean([_sum_of_squares(parts) for parts in derivatives], weights)


def _sum_of_squares(parts: Sequence[Array]) -> Array:
    squares: Array = 0
    for part in parts:
        squares = squares + part * part
    return squares


def integrated_tensor(tensor: SymmetricTensor, scale: Scalar, grid: Grid) -> SymmetricTensor:
    r"""Return :math:`G_\rho * J`, the structure tensor averaged over its neighbourhood.

    The classical structure tensor has this outer smoothing with the *integration scale*
    :math:`\rho`, and the paper's has not. A positive kernel keeps the tensors semidefinite. The
    border is that of the infinitely reflected plane, on which :math:`J_{xy}` is odd across both
    borders, since one of the two derivatives changes its sign.
    """
    return SymmetricTensor(
        xx=blur_field(tensor.xx, scale, grid=grid),
        xy=blur_field(tensor.xy, scale, grid=grid, signs=(ODD, ODD)),
        yy=blur_field(tensor.yy, scale, grid=grid),
    )


class Sensitivity(NamedTuple):
    """Inverse relative noise variance at pixels and cells; multiplies the structure tensor.

    Attributes
    ----------
    pixels, cells : array
        ``(row, column)``, at the pixels and at the (H+1) x (W+1) cells between them.
    """

    pixels: Array
    cells: Array

    def at(self, grid: Grid) -> Array:
        """Return the one of the two for a grid."""
        return self.cells if grid == "cells" else self.pixels


def sensitivity(relative_noise: Float[Array, "height width"]) -> Sensitivity:
    """Return the factors of the structure tensor where the noise level varies over the image.

    Contrasts are proportional to the noise level, and the diffusivity compares the structure with
    their squares. So a contrast at every pixel is the same as the structure divided there by the
    square of the relative level. Whatever the structure, the diffusivities stay between zero and
    one, so the bound of the step size does not depend on it.

    Parameters
    ----------
    relative_noise : array
        Positive noise levels at the pixels, relative to that of the model.
    """
    at_cells = average(average(relative_noise, ROW), COLUMN)
    return Sensitivity(pixels=1 / relative_noise**2, cells=1 / at_cells**2)
