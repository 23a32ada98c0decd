r"""Images with invalid pixels: what takes the place of blurs and derivatives around them.

**Blur.** Let :math:`L_M` be the Laplacian of the graph whose nodes are the pixels and whose edges
join horizontal and vertical neighbours that are both valid. The discrete Gaussian of
:mod:`.scale_space` is :math:`e^{-\sigma^2 L / 2}` on the graph of all pixels: half-sample
reflection is nothing but the end of the graph. So :math:`K_M = e^{-\sigma^2 L_M / 2}` is the same
blur on an image of any shape. It is symmetric, keeps constants and the sum over every connected
part, forms a semigroup, and nothing passes through an invalid pixel, whose value stays where it is.

With the walk :math:`Y = I - L_M / 4`, whose eigenvalues lie in [-1, 1], and Chebyshev polynomials,

.. math:: e^{-\sigma^2 L_M / 2} = a_0 + 2 \sum_{k \ge 1} a_k\, T_k(Y), \qquad
          a_k = e^{-2\sigma^2} I_k(2\sigma^2),

where :math:`a_k` are the taps of the discrete Gaussian of scale :math:`\sqrt2\,\sigma`. They are
positive and sum to one, also after they are cut off and normalised, so a constant stays a constant.

**Derivatives** that touch an invalid pixel are zero. If R is the operator of order one and C
removes these derivatives, then :math:`R^* C R \le \kappa L_M` with the :math:`\kappa` of
:meth:`.DerivativeOperator.walk_bound`. For the Haar cells it is one: a cell has at most the energy
:math:`X^2 + Y^2 + 2 E^2`, which is half the sum of the squared differences along its four sides,
and every side belongs to two cells. So the largest eigenvalue of a step on *any* mask is bounded by
that of a function of :math:`L_M`; see :func:`.stability.stable_step_on_masks`.

**Higher derivatives** have no such bound that would be of use. Their fluxes at a scale
:math:`\sigma` are switched off wherever the mask is within reach of the blur, except for a mass
of ``TAIL``. Elsewhere :math:`K_M` is the blur of an image without mask, and so is the bound. Their
couplings, which need no bound, know all derivatives that touch valid pixels alone.

The alternative, normalised convolution :math:`N^{-1} K M` with its adjoint, is separable and costs
less. But it mixes values across gaps, its step bound depends on the mask, and that bound is several
times smaller for large scales, since Schur's test knows nothing of how small their derivatives are.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from jaxtyping import Float
from numpy.typing import NDArray
from scipy.ndimage import distance_transform_cdt

from integrodiff.stages._arrays import Array, Scalar, namespace, plain, slice_along
from integrodiff.stages.gradient import pad_with_zero
from integrodiff.stages.operators import DerivativeOperator, Distances, Parts
from integrodiff.stages.scale_space import (
    FLAT,
    blur_field,
    discrete_gaussian,
    with_derivatives,
)

TAIL = 1e-9
"""Mass of a blur that may lie on invalid pixels around the flux of a higher derivative."""

_FAR = 2**30


class Domain:
    """The valid pixels of an image, some of whose pixels are not.

    Parameters
    ----------
    mask : array of bool
        True at valid pixels, ``(row, column)`` or ``(slice, row, column)``.
    like : array
        An image: fields are made of its kind, dtype and device.
    spacing : sequence of float
        Distance of neighbours along each axis of the mask. Edges along an axis have the weight of
        the inverse of its square.
    farthest : int, optional
        Distance from invalid pixels beyond which pixels are all alike, for masks that are not
        NumPy's: their distances are found step by step.
    """

    def __init__(
        self,
        mask: Array,
        like: Array,
        spacing: Sequence[float] = FLAT,
        farthest: int | None = None,
    ) -> None:
        self._like = like
        self._spacing = tuple(spacing)
        if isinstance(mask, np.ndarray):
            self.distances = distances(mask)
        else:
            self.distances = distances_on_device(mask, farthest)
        self._edges = {
            axis: weight
            * self._field(slice_along(mask, axis, 1, None) & slice_along(mask, axis, None, -1))
            for axis, weight in zip(range(-mask.ndim, 0), edge_weights(spacing), strict=True)
        }
        self._valid: dict[tuple[DerivativeOperator, int], Parts] = {}
        self._shares: dict[tuple[DerivativeOperator, float], Array] = {}

    def _field(self, values: Array) -> Array:
        like = self._like
        return namespace(like).asarray(values, dtype=like.dtype, device=like.device)

    def blur(
        self, image: Float[Array, "*batch channel height width"], scale: Scalar
    ) -> Float[Array, "*batch channel height width"]:
        """Smooth along the edges between valid pixels; the others keep their values."""
        if scale == 0:
            return image
        width = plain(scale)
        eps = float(namespace(image).finfo(image.dtype).eps)
        first, *others = walk_taps(width, eps / 2, self._spacing)
        before, here, total = None, image, first * image
        for tap in others:
            walked = self._walk(here)
            before, here = here, walked if before is None else 2 * walked - before
            total = total + tap * here
        if isinstance(scale, (int, float)):
            return total
        # As in scale_space.blur_field: the generator of the scale space is minus the Laplacian.
        rate = walk_rate(self._spacing)
        return with_derivatives(total, scale, width, lambda u: rate * (self._walk(u) - u))

    def _walk(self, image: Array) -> Array:
        """Return Y times the image: a quarter of each difference goes along its edge."""
        result = image
        for axis, edges in self._edges.items():
            step = edges * (slice_along(image, axis, 1, None) - slice_along(image, axis, None, -1))
            result = result + (
                pad_with_zero(step, axis, before=0) - pad_with_zero(step, axis, after=0)
            )
        return result

    def staying(self) -> Array:
        """Return the diagonal of Y: the share of each value that a walk leaves where it is."""
        leaving: Array = 0
        for axis, edges in self._edges.items():
            leaving = leaving + (
                pad_with_zero(edges, axis, before=0) + pad_with_zero(edges, axis, after=0)
            )
        return 1 - leaving

    def known(self, operator: DerivativeOperator, parts: Parts) -> Parts:
        """Return the parts that touch valid pixels alone, and zero for the others."""
        return self._restricted(operator, parts, 0)

    def flowing(self, operator: DerivativeOperator, parts: Parts, scale: Scalar) -> Parts:
        """Return the parts, at one scale, that may have a flux, and zero for the others."""
        return self._restricted(operator, parts, flux_reach(operator, scale))

    def _restricted(self, operator: DerivativeOperator, parts: Parts, reach: int) -> Parts:
        key = operator, reach
        if key not in self._valid:
            found = operator.valid_parts(self.distances, reach, len(parts))
            self._valid[key] = [self._field(valid) for valid in found]
        return [part * valid for part, valid in zip(parts, self._valid[key], strict=True)]

    def share_of_known(self, operator: DerivativeOperator, scale: Scalar) -> Array:
        """Return the share of a neighbourhood in which a coupling is known; one where it is not."""
        key = operator, plain(scale)
        if key not in self._shares:
            known = self._field(self.distances.at(operator.grid) > operator.radius)
            share = blur_field(known, plain(scale), grid=operator.grid, spacing=self._spacing)
            self._shares[key] = namespace(share).where(known > 0, share, 1 + 0 * share)
        return self._shares[key]


def distances(mask: NDArray[np.bool_]) -> Distances:
    """Return how far the pixels and the cells between them are from invalid pixels."""
    if mask.all():
        pixels = np.full(mask.shape, _FAR, np.int64)
    else:
        pixels = distance_transform_cdt(mask, metric="chessboard").astype(np.int64)
    cells = np.pad(pixels, 1, mode="edge")
    for axis in range(-mask.ndim, 0):
        cells = np.minimum(slice_along(cells, axis, 1, None), slice_along(cells, axis, None, -1))
    return Distances(pixels, cells)


def distances_on_device(mask: Array, farthest: int | None = None) -> Distances:
    """Return :func:`distances` of a mask that is not NumPy's, where it is.

    Beyond ``farthest`` all pixels are far away.
    """
    xp = namespace(mask)
    number, left, steps = xp.astype(mask, xp.int32), mask, 1
    while steps < farthest if farthest is not None else _has_both(left):
        for axis in range(-mask.ndim, 0):
            left = _eroded(left, axis)
        number = number + xp.astype(left, xp.int32)
        steps += 1
    pixels = xp.where(left, xp.full_like(number, _FAR), number)
    cells = pixels
    for axis in range(-mask.ndim, 0):
        first, last = slice_along(cells, axis, None, 1), slice_along(cells, axis, -1, None)
        before = xp.concat([first, cells], axis=axis)
        cells = xp.minimum(before, xp.concat([cells, last], axis=axis))
    return Distances(pixels, cells)


def _has_both(mask: Array) -> bool:
    """Whether there are valid and invalid pixels."""
    return bool(mask.any()) and not bool(mask.all())


def _eroded(mask: Array, axis: int) -> Array:
    """Return which pixels are valid together with their neighbours along an axis."""
    found = namespace(mask).asarray(mask, copy=True)
    inner, outer = slice_along(mask, axis, None, -1), slice_along(mask, axis, 1, None)
    slice_along(found, axis, 1, None)[...] &= inner
    slice_along(found, axis, None, -1)[...] &= outer
    return found


def walk_rate(spacing: Sequence[float]) -> float:
    """Return half of the largest eigenvalue of the Laplacian of any mask: 4 for images."""
    return 2 * sum(1 / distance**2 for distance in spacing)


def walk_taps(scale: float, tolerance: float, spacing: Sequence[float] = FLAT) -> list[float]:
    """Return the coefficients of the Chebyshev polynomials of a blur; ``tolerance`` is cut off."""
    width = (walk_rate(spacing) / 2) ** 0.5 * scale
    first, *others = discrete_gaussian(width, tolerance)
    return [first, *(2 * tap for tap in others)]


def edge_weights(spacing: Sequence[float]) -> tuple[float, ...]:
    """Return the part of a difference that goes along an edge in a walk, for edges of each axis."""
    return tuple(1 / (walk_rate(spacing) * distance**2) for distance in spacing)


def flux_reach(operator: DerivativeOperator, scale: Scalar) -> int:
    """Return how far around the stencils of a flux all pixels have to be valid."""
    if operator.walk_bound(anisotropic=True) is not None:
        return 0
    return len(discrete_gaussian(plain(scale), TAIL)) - 1
