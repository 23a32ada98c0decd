r"""Stage 3: the multiscale structure tensor.

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
from integrodiff.stages.gradient import Gradient, average


class SymmetricTensor(NamedTuple):
    """A field of symmetric 2 x 2 tensors: the entries ``[[xx, xy], [xy, yy]]``."""

    xx: Array
    xy: Array
    yy: Array


def multiscale_structure_tensor(
    gradients: Sequence[Gradient], weights: Sequence[Scalar]
) -> SymmetricTensor:
    r"""Return the weighted sum of the outer products of the gradients.

    The channels of a multichannel image share one tensor, so that their edges stay aligned. It
    is the sum over the channels divided by their number: then a grey image stored as three equal
    channels is treated just as the grey image, and contrast parameters keep their meaning.

    Parameters
    ----------
    gradients : sequence of Gradient
        One for each scale, arrays ``(*batch, channel, row, column)``.
    weights : sequence of scalars
        :math:`w_i \gamma_i^2` for each of these scales.

    Returns
    -------
    tensor : SymmetricTensor
        Arrays ``(*batch, 1, row, column)``.
    """
    xp = namespace(gradients[0].x)

    def accumulate(products: Sequence[Array]) -> Array:
        return sum(weight * product for weight, product in zip(weights, products, strict=True))

    def over_channels(products: Array) -> Array:
        return xp.mean(products, axis=CHANNEL, keepdims=True)

    return SymmetricTensor(
        xx=over_channels(accumulate([g.x * g.x for g in gradients])),
        xy=over_channels(accumulate([g.x * g.y for g in gradients])),
        yy=over_channels(accumulate([g.y * g.y for g in gradients])),
    )


def multiscale_energy(
    derivatives: Sequence[Sequence[Array]], weights: Sequence[Scalar]
) -> Float[Array, "*batch 1 row column"]:
    """Return the weighted sum over the scales of the sum of squares, the mean of the channels.

    Parameters
    ----------
    derivatives : sequence of sequences of arrays
        All derivatives of one order, for each scale.
    weights : sequence of scalars
        Weight of each of these scales.
    """
    total: Array = 0
    for parts, weight in zip(derivatives, weights, strict=True):
        squares: Array = 0
        for part in parts:
            squares = squares + part * part
        total = total + weight * squares
    return namespace(total).mean(total, axis=CHANNEL, keepdims=True)


class Sensitivity(NamedTuple):
    """How much the structure of an image counts at each place: the inverse variance of the noise.

    Attributes
    ----------
    pixels, cells : array
        ``(row, column)``, at the pixels and at the (H+1) x (W+1) cells between them.
    """

    pixels: Array
    cells: Array


def sensitivity(relative_noise: Float[Array, "height width"]) -> Sensitivity:
    """Return what noise of different levels does to a model for one level.

    Contrasts are proportional to the noise level, and structure is compared with their squares. So
    a contrast at every place is the same as the structure divided there by the square of
    the relative level. Whatever the structure, the diffusivities stay between zero and one: the
    bound of the step size does not depend on this.

    Parameters
    ----------
    relative_noise : array
        Positive noise levels at the pixels, relative to that of the model.
    """
    at_cells = average(average(relative_noise, ROW), COLUMN)
    return Sensitivity(pixels=1 / relative_noise**2, cells=1 / at_cells**2)


def trace_tensor(tensor: SymmetricTensor) -> SymmetricTensor:
    r"""Return :math:`\mathrm{tr}(J)\, I`, which turns an anisotropic model into its isotropic one.

    Exchanging the order of transposition in :math:`\nabla v \nabla v^\top` gives the scalar
    :math:`|\nabla v|^2 = \mathrm{tr}(\nabla v \nabla v^\top)`. Stored as a multiple of the unit
    matrix it passes through all later stages unchanged.
    """
    xp = namespace(tensor.xx)
    trace = tensor.xx + tensor.yy
    return SymmetricTensor(xx=trace, xy=xp.zeros_like(trace), yy=trace)
