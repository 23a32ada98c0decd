r"""Stage 3: the multiscale structure tensor, eqs. (5), (8) and (9) of the paper.

.. math:: J = \sum_i w_i \gamma_i^2 \, \nabla v_i \nabla v_i^\top

One symmetric tensor per location, 2 x 2 in images and 3 x 3 in volumes, sums up what all scales
know of the local structure.
Its largest eigenvalue belongs to the direction across edges. Gradients of different scales are
in general not parallel, which is what makes the resulting diffusion anisotropic at every scale.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, TypeAlias, TypeVar

from jaxtyping import Float

from integrodiff.stages._arrays import Array, Scalar, namespace
from integrodiff.stages.gradient import average
from integrodiff.stages.reflection import EVEN, ODD, Grid
from integrodiff.stages.scale_space import FLAT, blur_field


class SymmetricTensor(NamedTuple):
    """A field of symmetric 2 x 2 tensors: the entries ``[[xx, xy], [xy, yy]]``."""

    xx: Array
    xy: Array
    yy: Array


class VolumeTensor(NamedTuple):
    """A field of symmetric 3 x 3 tensors: the entries on and above the diagonal."""

    xx: Array
    xy: Array
    xz: Array
    yy: Array
    yz: Array
    zz: Array


TensorField: TypeAlias = SymmetricTensor | VolumeTensor
_Tensor = TypeVar("_Tensor", bound=TensorField)


def outer_product(x: Array, y: Array) -> SymmetricTensor:
    r"""Return :math:`\nabla v \nabla v^\top`, eq. (5) of the paper, from the derivatives of v."""
    return SymmetricTensor(xx=x * x, xy=x * y, yy=y * y)


def volume_outer_product(x: Array, y: Array, z: Array) -> VolumeTensor:
    """Return the same for three derivatives."""
    return VolumeTensor(xx=x * x, xy=x * y, xz=x * z, yy=y * y, yz=y * z, zz=z * z)


def multiscale_structure_tensor(products: Sequence[_Tensor], weights: Sequence[Scalar]) -> _Tensor:
    r"""Return the weighted sum over the scales of the outer products, eq. (8) of the paper.

    The channels of a multichannel image share one tensor, so that their edges stay aligned. It
    is the sum over the channels divided by their number: then a grey image stored as three equal
    channels is treated just as the grey image, and contrast parameters keep their meaning.

    Parameters
    ----------
    products : sequence of SymmetricTensor or VolumeTensor
        One for each scale, arrays ``(*batch, channel, row, column)`` or, of volumes,
        ``(*batch, channel, slice, row, column)``.
    weights : sequence of scalars
        :math:`w_i \gamma_i^2` for each of these scales.

    Returns
    -------
    tensor : SymmetricTensor or VolumeTensor
        Arrays with one channel.
    """
    kind = type(products[0])
    dimensions = 3 if kind is VolumeTensor else 2
    entries = zip(*products, strict=True)
    return kind(*(_weighted_mean(entry, weights, dimensions) for entry in entries))


def _weighted_mean(fields: Sequence[Array], weights: Sequence[Scalar], dimensions: int) -> Array:
    """Return the sum over the scales, and of that the mean over the channels."""
    total = sum(weight * field for weight, field in zip(weights, fields, strict=True))
    return namespace(total).mean(total, axis=-1 - dimensions, keepdims=True)


def multiscale_energy(
    derivatives: Sequence[Sequence[Array]], weights: Sequence[Scalar], dimensions: int = 2
) -> Float[Array, "*batch 1 row column"]:
    r"""Return :math:`\sum_i c_i |R v_i|^2`, for the gradient eq. (9) of the paper.

    It is the trace of the multiscale structure tensor, and as that the mean over the channels.

    Parameters
    ----------
    derivatives : sequence of sequences of arrays
        All derivatives of one order, for each scale.
    weights : sequence of scalars
        Weight :math:`c_i` of each of these scales.
    dimensions : int
        Two for images, three for volumes.
    """
    return _weighted_mean([_sum_of_squares(parts) for parts in derivatives], weights, dimensions)


def _sum_of_squares(parts: Sequence[Array]) -> Array:
    squares: Array = 0
    for part in parts:
        squares = squares + part * part
    return squares


SIGNS: dict[str, tuple[int, ...]] = {
    "xx": (EVEN, EVEN, EVEN),
    "xy": (EVEN, ODD, ODD),
    "xz": (ODD, EVEN, ODD),
    "yy": (EVEN, EVEN, EVEN),
    "yz": (ODD, ODD, EVEN),
    "zz": (EVEN, EVEN, EVEN),
}
"""Signs of the entries across the borders of slices, rows and columns."""


def integrated_tensor(
    tensor: _Tensor, scale: Scalar, grid: Grid, spacing: Sequence[float] = FLAT
) -> _Tensor:
    r"""Return :math:`G_\rho * J`, the structure tensor averaged over its neighbourhood.

    The classical structure tensor has this outer smoothing with the *integration scale*
    :math:`\rho`, and the paper's has not. A positive kernel keeps the tensors semidefinite. The
    border is that of the infinitely reflected plane, on which :math:`J_{xy}` is odd across both
    borders, since one of the two derivatives changes its sign.
    """

    def smoothed(name: str) -> Array:
        signs = SIGNS[name][-len(spacing) :]
        return blur_field(getattr(tensor, name), scale, grid=grid, signs=signs, spacing=spacing)

    return type(tensor)(*map(smoothed, tensor._fields))


def mixed_tensor(tensor: SymmetricTensor, mix: Scalar) -> SymmetricTensor:
    r"""Return :math:`J + m\,(\operatorname{tr} J\, I - J)`, in which eigenvalues are mixed.

    The eigenvectors stay, and the eigenvalues become :math:`\mu_1 + m \mu_2` and
    :math:`\mu_2 + m \mu_1`. With m = 1 both are the trace, which is the isotropic coupling. With
    m < 0 structure along a much stronger edge does not count. Where an eigenvalue is negative,
    :func:`.diffusion_tensor` adds to both what makes it zero, so that diffusivities stay in [0, 1]
    and no bound changes.
    """
    return SymmetricTensor(
        xx=tensor.xx + mix * tensor.yy,
        xy=(1 - mix) * tensor.xy,
        yy=tensor.yy + mix * tensor.xx,
    )


class Sensitivity(NamedTuple):
    """Inverse relative noise variance at pixels and cells; multiplies the structure tensor.

    Attributes
    ----------
    pixels, cells : array
        ``(row, column)``, at the pixels and at the (H+1) x (W+1) cells between them; or
        ``(slice, row, column)`` at the voxels and the cells between these.
    """

    pixels: Array
    cells: Array

    def at(self, grid: Grid) -> Array:
        """Return the one of the two for a grid."""
        return self.cells if grid == "cells" else self.pixels


def sensitivity(relative_noise: Float[Array, "*depth height width"]) -> Sensitivity:
    """Return the factors of the structure tensor where the noise level varies over the image.

    Contrasts are proportional to the noise level, and the diffusivity compares the structure with
    their squares. So a contrast at every pixel is the same as the structure divided there by the
    square of the relative level. Whatever the structure, the diffusivities stay between zero and
    one, so the bound of the step size does not depend on it.

    Parameters
    ----------
    relative_noise : array
        Positive noise levels at the pixels, or voxels, relative to that of the model.
    """
    at_cells = relative_noise
    for axis in range(-relative_noise.ndim, 0):
        at_cells = average(at_cells, axis)
    return Sensitivity(pixels=1 / relative_noise**2, cells=1 / at_cells**2)
