r"""Stage 1: the scale space, :math:`K_\sigma * u` in eq. (7), by discrete Gaussians.

Lindeberg's discrete Gaussian with variance :math:`t = \sigma^2` has the taps
:math:`e^{-t} I_n(t)` (:math:`I_n`: modified Bessel function) and the symbol
:math:`e^{t(\cos\omega - 1)}`. It is positive, symmetric, sums to one, tends to the identity for
:math:`\sigma \to 0`, and it is an exact semigroup: blurring with variances :math:`s` and
:math:`t` in turn is blurring with :math:`s + t`. So a coarse scale is computed from the next
finer one (:func:`cascade`), and the adjoint of all scales together is the same cascade run
backwards (:func:`cascade_adjoint`).

At the border the image is continued by half-sample reflection, ``d c b a | a b c d``. Of the
usual continuations it is the only one that keeps the blur self-adjoint and mean preserving.

References
----------
.. [1] T. Lindeberg, "Scale-space for discrete signals", IEEE Transactions on Pattern Analysis
       and Machine Intelligence 12(3), 1990.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import lru_cache
from itertools import pairwise
from typing import Any, TypeAlias

import numpy as np
from jaxtyping import Float
from numpy.typing import NDArray
from scipy.special import ive

from integrodiff.stages._arrays import (
    COLUMN,
    ROW,
    Array,
    Scalar,
    has_axes,
    namespace,
    plain,
    slice_along,
)
from integrodiff.stages.reflection import EVEN, Grid, continued

Blur: TypeAlias = Callable[[Array, Scalar], Array]
"""A blur as a function of an image and a scale."""

FLAT = (1.0, 1.0)
"""Spacing of the rows and columns of an image."""

_LONGEST_MATRIX = 256
"""Axes up to this length are smoothed by a matrix, longer ones by shifted sums."""


@lru_cache(maxsize=256)
def discrete_gaussian(scale: float, tolerance: float = 2.0**-53) -> tuple[float, ...]:
    r"""Return one half of the discrete Gaussian, centre first.

    Parameters
    ----------
    scale : float
        Standard deviation :math:`\sigma \ge 0` in pixels.
    tolerance : float
        Largest mass that may be cut off; what is left is normalised to sum one.

    Returns
    -------
    taps : tuple of float
        :math:`e^{-t} I_n(t)` for :math:`n = 0, \dots, r`. The whole kernel is symmetric and has
        :math:`2 r + 1` taps.
    """
    if not (math.isfinite(scale) and scale >= 0):
        raise ValueError(f"a smoothing scale must be finite and nonnegative, got {scale!r}")
    variance = scale**2
    # Far enough for any tolerance: the taps fall faster than those of a Gaussian beyond n = t.
    longest = math.ceil(variance + 12 * scale + 30) if variance > 1 else 40
    taps = ive(np.arange(longest + 1), variance)
    mass_beyond = 2 * (np.cumsum(taps[::-1])[::-1] - taps)
    radius = int(np.argmax(mass_beyond <= tolerance))
    return _normalised(taps[: radius + 1])


@lru_cache(maxsize=256)
def discrete_gaussian_of_radius(scale: float, radius: int) -> tuple[float, ...]:
    """Return one half of the discrete Gaussian, cut off at a radius.

    Unlike those of :func:`discrete_gaussian`, the taps are smooth functions of the scale.
    """
    return _normalised(ive(np.arange(radius + 1), scale**2))


def _normalised(half: NDArray[np.floating[Any]]) -> tuple[float, ...]:
    """Return half of a symmetric kernel with the sum one."""
    kept = half / (half[0] + 2 * half[1:].sum())
    return tuple(float(tap) for tap in kept)


def blur(
    image: Float[Array, "*batch channel height width"],
    scale: Scalar,
    spacing: Sequence[float] = FLAT,
) -> Float[Array, "*batch channel height width"]:
    r"""Smooth with the discrete Gaussian of standard deviation ``scale``.

    The operator is self-adjoint, positive, preserves the mean of every channel, and is diagonal
    under the DCT-II with eigenvalues :math:`e^{\sigma^2 (\cos\omega_x + \cos\omega_y - 2)}`.
    A scale that is an array without axes carries its first and second derivatives on to the
    result, since :math:`\partial_\sigma K_\sigma = \sigma \Delta K_\sigma` exactly. One with the
    shape ``(image, 1, 1, 1)`` has a scale for each image and carries derivatives of all orders.

    ``spacing`` has one number for each of the last axes, two for images and three for volumes. The
    scale is a length in its unit.
    """
    return blur_field(image, scale, spacing=spacing)


def blur_field(
    field: Array,
    scale: Scalar,
    *,
    grid: Grid = "pixels",
    signs: Sequence[int] | None = None,
    spacing: Sequence[float] = FLAT,
) -> Array:
    """Smooth a field at the pixels or the cells as a part of the infinitely reflected plane.

    Parameters
    ----------
    field : array
        ``(..., row, column)`` or ``(..., slice, row, column)``.
    scale : scalar
        As in :func:`blur`.
    grid : {"pixels", "cells"}
        Where the field lives.
    signs : sequence of int, optional
        Whether it is even, the default, or odd across the borders of each axis. An odd field at
        the cells must be zero at the outermost of them.
    spacing : sequence of float
        Distance of neighbours along each of the two or three axes.
    """
    if has_axes(scale):
        return _blur_each(field, scale, grid, signs or (EVEN,) * len(spacing), spacing)
    if scale == 0:
        return field
    width = plain(scale)
    tolerance = float(namespace(field).finfo(field.dtype).eps) / 2
    signs = (EVEN,) * len(spacing) if signs is None else signs
    axes = tuple(zip(range(-len(spacing), 0), signs, spacing, strict=True))
    for axis, sign, distance in axes:
        taps = discrete_gaussian(width / distance, tolerance)
        field = smooth_along(field, taps, axis, grid=grid, sign=sign)
    if isinstance(scale, (int, float)):
        return field
    second_difference = (-2.0, 1.0)  # along all axes it is the generator of the scale space

    def laplacian(of: Array) -> Array:
        return sum(
            shifted_sum(of, second_difference, axis, grid=grid, sign=sign) / distance**2
            for axis, sign, distance in axes
        )

    return with_derivatives(field, scale, width, laplacian)


def with_derivatives(
    blurred: Array, scale: Scalar, width: float, generator: Callable[[Array], Array]
) -> Array:
    r"""Return a blurred field with its first and second derivatives by the scale.

    They are those of :math:`K_\sigma = e^{\sigma^2 G / 2}`, :math:`\sigma G K_\sigma` and
    :math:`(G + \sigma^2 G^2) K_\sigma`, with the generator G. The factors are zero; only their
    derivatives count.
    """
    once = generator(blurred)
    twice = generator(once)
    change = scale - width
    return blurred + change * (width * once + 0.5 * change * (once + width**2 * twice))


def _blur_each(
    field: Array, scale: Array, grid: Grid, signs: Sequence[int], spacing: Sequence[float]
) -> Array:
    """Smooth each image with its own scale: short axes by matrices, long ones by shifted sums."""
    xp = namespace(field)
    longest = max(field.shape[-len(spacing) :])
    # Compilers cannot look at the largest scale, which tells how many neighbours there are.
    sums = longest > _LONGEST_MATRIX and not _is_compiling(xp)
    widest = _largest(scale) if sums else 0.0
    for axis, sign, distance in zip(range(-len(spacing), 0), signs, spacing, strict=True):
        size = field.shape[axis]
        if sums and size > _LONGEST_MATRIX:
            tolerance = float(xp.finfo(field.dtype).eps) / 2
            taps = gaussian_taps(scale / distance, widest / distance, tolerance)
            taps = [xp.astype(tap, field.dtype) for tap in taps]
            field = shifted_sum(field, taps, axis, grid=grid, sign=sign)
            continue
        matrix = periodic_matrix(scale / distance, size, grid=grid, sign=sign)
        matrix = xp.astype(matrix, field.dtype)
        if axis == COLUMN:
            field = xp.matmul(field, xp.matrix_transpose(matrix))
        elif axis == ROW:
            field = xp.matmul(matrix, field)
        else:
            rows = xp.reshape(field, (*field.shape[:axis], size, -1))
            each = xp.reshape(matrix, (*matrix.shape[:-3], size, size))
            field = xp.reshape(xp.matmul(each, rows), field.shape)
    return field


def gaussian_taps(scale: Array, widest: float, tolerance: float) -> list[Array]:
    r"""Return half of the discrete Gaussians of some scales, as smooth functions of them.

    The taps are sums over as many frequencies as it takes for the kernel of the largest scale,
    ``widest``, to be far from its periodic copies; ``tolerance`` is the mass that is cut off of it.
    They are normalised, as those of :func:`discrete_gaussian`.
    """
    xp = namespace(scale)
    radius = len(discrete_gaussian(widest, tolerance)) - 1
    count = 2 * radius + 2
    cosines = _cosines(xp, count, scale.device)[:, : radius + 1]
    number = xp.arange(count + 1, device=scale.device)
    frequencies = xp.cos(xp.astype(number, xp.float64) * (math.pi / count))
    symbol = xp.exp(scale[..., None] ** 2 * (frequencies - 1))
    taps = xp.matmul(symbol * _end_weights(xp, count, scale.device), cosines) / count
    taps = taps / (2 * xp.sum(taps, axis=-1, keepdims=True) - taps[..., :1])
    return [taps[..., n] for n in range(radius + 1)]


def _largest(scale: Array) -> float:
    """Return the largest of some scales, without derivatives."""
    values = scale.detach() if hasattr(scale, "detach") else scale
    return max(float(value) for value in values.reshape(-1))


def _is_compiling(xp: Any) -> bool:
    """Whether PyTorch compiles what is computed."""
    compiler = getattr(xp, "compiler", None)
    return compiler is not None and bool(compiler.is_compiling())


def periodic_matrix(
    scale: Float[Array, "*image 1 1"], size: int, *, grid: Grid = "pixels", sign: int = EVEN
) -> Float[Array, "*image size size"]:
    r"""Return matrices of the one-dimensional blur as smooth functions of the scales.

    A reflected row is periodic with a period of 2 n pixels, n values from mirror to mirror. On it
    the blur is the convolution with

    .. math:: T(m) = \frac{1}{2n} \sum_{k=0}^{2n-1} e^{\sigma^2 (\cos\omega_k - 1)}
              \cos(\omega_k m), \qquad \omega_k = \pi k / n,

    so an entry of the matrix is T at the distance of two pixels, plus or minus T at the distance to
    the mirror image of one of them. It is the same operator as by the taps of
    :func:`discrete_gaussian`, without a cut, and can be differentiated any number of times.
    """
    xp = namespace(scale)
    mirrors = size - 1 if grid == "cells" else size
    cosines = _cosines(xp, mirrors, scale.device)
    # The frequencies up to pi; those between zero and pi are there twice.
    symbol = xp.exp(scale**2 * (cosines[1] - 1))
    kernel = xp.matmul(symbol * _end_weights(xp, mirrors, scale.device), cosines) / mirrors
    place = xp.arange(size, device=scale.device)
    there = xp.abs(place[:, None] - place)
    beyond = place[:, None] + place + (0 if grid == "cells" else 1)
    beyond = xp.where(beyond > mirrors, 2 * mirrors - beyond, beyond)

    def entries(distance: Array) -> Array:
        taken = xp.take(kernel, xp.reshape(distance, (-1,)), axis=-1)
        return xp.reshape(taken, (*kernel.shape[:-2], size, size))

    if grid == "cells":  # the outermost cells are their own mirror images
        inner = xp.astype((place > 0) & (place < mirrors), kernel.dtype)
        return entries(there) + sign * inner * entries(beyond)
    return entries(there) + sign * entries(beyond)


def _cosines(xp: Any, count: int, device: Any) -> Array:
    """Return cos(pi k m / count) for k and m up to ``count``, in double precision."""
    number = xp.arange(count + 1, device=device)
    angle = xp.astype((number[:, None] * number) % (2 * count), xp.float64)
    return xp.cos(angle * (math.pi / count))


def _is_inference(xp: Any) -> bool:
    """Whether PyTorch is in its inference mode, whose arrays cannot be used in training."""
    return bool(getattr(xp, "is_inference_mode_enabled", lambda: False)())


def _end_weights(xp: Any, count: int, device: Any) -> Array:
    """Return ones, with one half at both ends."""
    number = xp.arange(count + 1, device=device)
    inner = (number > 0) & (number < count)
    return (1 + xp.astype(inner, xp.float64)) / 2


def cascade(
    image: Float[Array, "*batch channel height width"],
    scales: Sequence[Scalar],
    smooth: Blur = blur,
) -> list[Float[Array, "*batch channel height width"]]:
    r"""Return :math:`v_i = K_{\sigma_i} u` for increasing scales, each from the one before.

    ``smooth`` is the blur, which must be a semigroup in the squares of its scales.
    """
    smoothed = []
    for increment in increments(scales):
        image = smooth(image, increment)
        smoothed.append(image)
    return smoothed


def cascade_adjoint(
    images: Sequence[Float[Array, "*batch channel height width"]],
    scales: Sequence[Scalar],
    smooth: Blur = blur,
) -> Float[Array, "*batch channel height width"]:
    r"""Return :math:`\sum_i K_{\sigma_i} q_i`: the adjoint of :func:`cascade`, as Horner's rule.

    The coarsest image is blurred by the last increment and added to the next finer one, and so
    on, so that all scales together cost no more blurs than :func:`cascade`.
    """
    total = None
    for image, increment in zip(reversed(images), reversed(increments(scales)), strict=True):
        total = smooth(image if total is None else image + total, increment)
    return total


def increments(scales: Sequence[Scalar]) -> list[Scalar]:
    """Scales by which a cascade goes from one of the increasing ``scales`` to the next.

    Scales that have one number per image are not compared.
    """
    from_zero = list(pairwise((0.0, *scales)))
    known = [pair for pair in from_zero if not any(map(has_axes, pair))]
    if any(finer > coarser for finer, coarser in known):
        raise ValueError(f"scales must not decrease, got {tuple(scales)}")
    return [(coarser**2 - finer**2) ** 0.5 for finer, coarser in from_zero]


def smooth_along(
    image: Array, taps: tuple[float, ...], axis: int, *, grid: Grid = "pixels", sign: int = EVEN
) -> Array:
    """Correlate along one axis with a symmetric kernel; see :mod:`.reflection` for the border.

    A product with the matrix of the blur is the faster way for short axes, as in training; its
    cost per pixel grows with the axis, that of shifted sums does not.
    """
    size = image.shape[axis]
    if size > _LONGEST_MATRIX:
        return shifted_sum(image, taps, axis, grid=grid, sign=sign)
    xp = namespace(image)
    where = image.dtype, _Place(image.device), _is_inference(xp)
    matrix = _matrix_on_device(xp, size, taps, grid, sign, axis, *where)
    if axis == COLUMN:
        return xp.matmul(image, matrix)
    if axis == ROW:
        return xp.matmul(matrix, image)
    slices = xp.reshape(image, (*image.shape[:axis], size, -1))
    return xp.reshape(xp.matmul(matrix, slices), image.shape)


class _Place:
    """A device that can be a key, which those of some libraries cannot."""

    def __init__(self, device: Any) -> None:
        self.device = device

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Place) and str(self.device) == str(other.device)

    def __hash__(self) -> int:
        return hash(str(self.device))


@lru_cache(maxsize=64)
def _matrix_on_device(
    xp: Any,
    size: int,
    taps: tuple[float, ...],
    grid: Grid,
    sign: int,
    axis: int,
    dtype: Any,
    place: _Place,
    inference: bool,
) -> Array:
    """Return the matrix where it is needed: a copy to a GPU takes longer than the product.

    One that was made in PyTorch's inference mode is used there alone.
    """
    matrix = _blur_matrix(size, taps, grid, sign)
    # At the pixels it is symmetric.
    matrix = matrix.T if axis != COLUMN and grid == "cells" else matrix
    return xp.asarray(matrix, dtype=dtype, device=place.device)


@lru_cache(maxsize=64)
def _blur_matrix(size: int, taps: tuple[float, ...], grid: Grid, sign: int) -> NDArray[np.float64]:
    """Return the matrix of a one-dimensional blur, for rows of values from the left."""
    matrix: NDArray[np.float64] = shifted_sum(np.eye(size), taps, COLUMN, grid=grid, sign=sign)
    return matrix


def shifted_sum(
    image: Array, taps: Sequence[Scalar], axis: int, *, grid: Grid = "pixels", sign: int = EVEN
) -> Array:
    """Correlate by adding up shifted images."""
    size, radius = image.shape[axis], len(taps) - 1
    padded = continued(image, axis, radius, grid=grid, sign=sign)
    result = taps[0] * slice_along(padded, axis, radius, radius + size)
    for distance, tap in enumerate(taps[1:], start=1):
        before = slice_along(padded, axis, radius - distance, radius - distance + size)
        after = slice_along(padded, axis, radius + distance, radius + distance + size)
        result += tap * (before + after)
    return result
