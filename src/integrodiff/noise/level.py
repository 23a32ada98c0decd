r"""Estimate the noise of an image from the image itself.

:func:`estimate_sigma` measures the spectrum of the noise in the flat parts of the image
(:mod:`integrodiff.noise.spectrum`) and decides whether it is white
(:mod:`integrodiff.noise.levels`).

:func:`estimate_poisson_gaussian` needs the noise of dark and bright parts separately. It follows
Liu, Tanaka and Okutomi [1]_: select the 7 x 7 patches with weak texture; the smallest eigenvalue of
their covariance matrix is the variance of the noise. The structure of smooth patches varies in few
directions of the 49-dimensional space, whereas noise varies equally in all, so the direction of
least variance contains noise only. A patch is weak if the sum of its squared gradients stays below
a threshold that pure noise exceeds with probability 1e-6. The threshold depends on the noise level,
so selection and estimation alternate. There are two additions to the published method:

- The mean of each patch is subtracted. Patches can then be sorted by their mean into classes, and
  a line is fitted to the variances of all classes.
- The smallest eigenvalue of a *sample* covariance of n patches is too small by the factor
  :math:`(1 - \sqrt{49 / n})^2` (Marchenko and Pastur). This is corrected.

docs/noise.md measures the errors of both estimators.

.. [1] X. Liu, M. Tanaka, M. Okutomi, "Single-image noise level estimation for blind denoising",
   IEEE Transactions on Image Processing 22 (2013) 5226-5237.
"""

from __future__ import annotations

import math
from functools import cache
from typing import Any, TypeAlias

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view
from numpy.typing import ArrayLike, NDArray

from integrodiff._checks import finite_number
from integrodiff.arrays import array_image
from integrodiff.errors import NotFiniteError
from integrodiff.noise.levels import NoiseLevels, measured_levels
from integrodiff.noise.photons import PoissonGaussian
from integrodiff.noise.spectrum import Tiles, tiles_of

Floats: TypeAlias = NDArray[np.float64]

SIDE = 7
"""Side of a patch in pixels."""

_DIMENSION = SIDE * SIDE
_EXCEEDED_BY_NOISE = 1e-6
_ROUNDS = 2
# With fewer patches the smallest eigenvalue of their covariance is unreliable.
_FEWEST_PATCHES = 4 * _DIMENSION
# More patches make the estimate slower and hardly more accurate.
_MOST_PATCHES = 2**18
_CLASSES = 8
_SMALLEST_IMAGE = 20
"""Rows and columns from which on noise is estimated."""


def estimate_sigma(image: ArrayLike, *, channel_axis: int | None = None) -> float | Floats:
    """Estimate the standard deviation of additive noise, white or correlated between pixels.

    Parameters
    ----------
    image : array_like
        Grey image (rows, columns), or multichannel image with a ``channel_axis``, of at least
        20 x 20 pixels. Integer or real floating point, without NaN or infinite values.
    channel_axis : int, optional
        Axis of the channels; each gets its own estimate.

    Returns
    -------
    float, or ndarray of float
        Noise level in the grey levels of the image; with a ``channel_axis`` one for each channel.
        Zero if there is no noise.

    Raises
    ------
    ValueError
        If the image is too small.

    Notes
    -----
    The spectrum of the noise is measured in the flat parts of the image. :func:`denoise` without
    ``sigma`` uses all of it, which is better than this one number where noise is correlated between
    neighbouring pixels, as after JPEG compression, resampling or demosaicing.

    Examples
    --------
    >>> import numpy as np
    >>> from integrodiff import estimate_sigma
    >>> y, x = np.mgrid[:128, :128]
    >>> noisy = x + y + np.random.default_rng(0).normal(0, 20, x.shape)
    >>> abs(estimate_sigma(noisy) - 20) < 1
    True
    """
    array = _checked(image, channel_axis)
    if channel_axis is None:
        return _sigma_of(array)
    return np.array([_sigma_of(channel) for channel in np.moveaxis(array, channel_axis, 0)])


def estimate_poisson_gaussian(
    image: ArrayLike, *, channel_axis: int | None = None, offset: float | None = None
) -> PoissonGaussian:
    """Estimate the gain and the readout noise of a detector from one of its images.

    Parameters
    ----------
    image : array_like
        As in :func:`estimate_sigma`. It must have dark and bright regions.
    channel_axis : int, optional
        Axis of the channels, which are assumed to have the same noise.
    offset : float, optional
        Grey value without light. One image determines only ``readout**2 - gain * offset``, so
        the readout noise follows if the offset is given. Otherwise the offset is set to zero, or,
        where grey values are negative or the fit requires it, the readout noise is. The
        stabilised image is the same in both cases.

    Raises
    ------
    ValueError
        If the image is too small, or its noise does not grow with its brightness.

    Notes
    -----
    Patches are sorted by their mean into eight classes. The variance of the noise in each class
    is estimated as in :func:`estimate_sigma`, and a line is fitted by robust least squares.
    """
    known = None if offset is None else finite_number("offset", offset)
    array = _checked(image, channel_axis).astype(np.float64)
    channels = [array] if channel_axis is None else list(np.moveaxis(array, channel_axis, 0))
    found = np.concatenate([_variances_by_brightness(channel) for channel in channels], axis=1)
    slope, intercept = _line_through(*found)
    if known is None and (intercept < 0 or found[0].min() < 0):
        return PoissonGaussian(gain=slope, offset=-intercept / slope)
    dark = 0.0 if known is None else known
    variance = max(intercept + slope * dark, 0.0)
    return PoissonGaussian(gain=slope, offset=dark, readout=math.sqrt(variance))


def _checked(image: ArrayLike, channel_axis: int | None) -> NDArray[Any]:
    """Return the image as an array; refuse invalid types, shapes and values."""
    if channel_axis is None and np.ndim(image) != 2:
        raise ValueError(
            f"image must have two axes, rows and columns, got shape {np.shape(image)}; for colour "
            "give channel_axis, and estimate the planes of a stack one by one"
        )
    array = array_image(image, channel_axis=channel_axis).array
    if array.dtype.kind == "f" and not np.isfinite(array).all():
        raise NotFiniteError("image has NaN or infinite values; replace them first")
    return array


def _sigma_of(image: NDArray[Any]) -> float:
    """Estimate the noise level of one channel."""
    require_size(image)
    return estimate_levels(tiles_of(image)).sigma


def estimate_levels(tiles: Tiles | None) -> NoiseLevels:
    """Estimate the noise levels of an image from its tiles; zero if there are none."""
    return measured_levels(None if tiles is None else tiles.noise())


def require_size(image: NDArray[Any]) -> None:
    """Refuse images that are too small for an estimate, unless they are constant.

    Raises
    ------
    ValueError
        With the size; the last two axes are rows and columns.
    """
    shape = image.shape[-2:]
    if min(shape) < _SMALLEST_IMAGE and image.min() != image.max():
        raise ValueError(_too_small(shape))


def _too_small(shape: tuple[int, ...]) -> str:
    return (
        f"an image of {shape[0]} x {shape[1]} pixels is too small to estimate its noise; at least "
        f"{_SMALLEST_IMAGE} x {_SMALLEST_IMAGE} are needed. Otherwise give sigma"
    )


def _weak_patches(patches: Floats, texture: Floats) -> Floats:
    """Return the patches with weak texture."""
    weak = patches
    for _ in range(_ROUNDS):
        chosen = texture < least_variance(weak) * weak_texture()
        if chosen.sum() < _FEWEST_PATCHES:
            break
        weak = patches[chosen]
    return weak


def _variances_by_brightness(image: Floats) -> Floats:
    """Return mean, noise variance and number of patches for each brightness class."""
    patches, texture = patches_of(image)
    order = np.argsort(patches.mean(axis=1))
    rows = []
    for members in np.array_split(order, _CLASSES):
        if len(members) < _FEWEST_PATCHES:
            continue
        weak = _weak_patches(patches[members], texture[members])
        variance = least_variance(weak) / sampling_factor(len(members)) ** 2
        if variance > 0:
            rows.append((weak.mean(), variance, len(weak)))
    return np.array(rows, np.float64).reshape(-1, 3).T


def _line_through(means: Floats, variances: Floats, counts: Floats) -> tuple[float, float]:
    """Return slope and intercept of the variance as a function of the mean."""
    from scipy.optimize import least_squares

    unknown = "give the gain, offset and readout noise, or the noise level of Gaussian noise"
    if len(means) < 3 or np.ptp(means) == 0:
        raise ValueError(
            f"this image has too few brightness levels to estimate the gain; {unknown}"
        )
    weights = np.sqrt(counts / counts.max())
    unit, floor = variances.max(), 1e-9
    slope, intercept = np.polyfit(means, variances / unit, 1)

    def misfits(line: Floats) -> Floats:
        # The standard error of a variance is proportional to it, so residuals are logarithmic.
        fitted = np.maximum(line[0] * means + line[1], floor)
        return np.asarray(weights * np.log(fitted / (variances / unit)))

    line = least_squares(misfits, [slope, intercept], loss="soft_l1", f_scale=0.1).x * unit
    if not line[0] > 0:
        raise ValueError(f"the noise of this image does not grow with its brightness; {unknown}")
    return float(line[0]), float(line[1])


def patches_of(image: Floats) -> tuple[Floats, Floats]:
    """Return patches as rows, and the texture of each: the sum of its squared gradients.

    Constant patches are left out, since their noise was clipped.

    Raises
    ------
    ValueError
        If the image has too few patches for an estimate.
    """
    count = math.prod(max(length - SIDE + 1, 0) for length in image.shape)
    if count < _FEWEST_PATCHES:
        raise ValueError(_too_small(image.shape))
    stride = math.ceil(math.sqrt(count / _MOST_PATCHES))
    across, down = (_squared_central_differences(image, axis) for axis in (1, 0))
    texture = _windows(across, SIDE, SIDE - 2, stride).sum((2, 3))
    texture += _windows(down, SIDE - 2, SIDE, stride).sum((2, 3))
    patches = _windows(image, SIDE, SIDE, stride)
    varies = texture > 0
    return patches[varies].reshape(-1, _DIMENSION), texture[varies]


def least_variance(patches: Floats) -> float:
    """Return the smallest eigenvalue of the covariance of patches without their means."""
    without_means = patches - patches.mean(axis=1, keepdims=True)
    eigenvalues = np.linalg.eigvalsh(np.cov(without_means, rowvar=False))
    return max(float(eigenvalues[1]), 0.0)  # the first is zero: means are subtracted


def sampling_factor(count: int) -> float:
    """Return the factor by which this many patches underestimate the noise level."""
    return 1 - math.sqrt(_DIMENSION / count)


@cache
def weak_texture() -> float:
    """Return the texture that a patch of pure noise exceeds with probability 1e-6.

    For noise of variance one, texture is a quadratic form in 49 normal variables with the matrix
    ``forms``. As in [1]_, its distribution is approximated by a gamma distribution with the
    rank and trace of that matrix.
    """
    from scipy.special import gammainccinv

    pixels = np.eye(_DIMENSION).reshape(-1, SIDE, SIDE)
    across = (pixels[:, :, 2:] - pixels[:, :, :-2]).reshape(_DIMENSION, -1) / 2
    down = (pixels[:, 2:, :] - pixels[:, :-2, :]).reshape(_DIMENSION, -1) / 2
    forms = across @ across.T + down @ down.T
    rank, trace = np.linalg.matrix_rank(forms), np.trace(forms)
    return float(gammainccinv(rank / 2, _EXCEEDED_BY_NOISE) * 2 * trace / rank)


def _squared_central_differences(image: Floats, axis: int) -> Floats:
    """Return the squared central differences, two fewer than pixels along the axis."""
    ahead, behind = (image[2:], image[:-2]) if axis == 0 else (image[:, 2:], image[:, :-2])
    differences = ahead - behind
    differences /= 2
    differences *= differences
    return differences


def _windows(image: Floats, height: int, width: int, stride: int) -> Floats:
    return sliding_window_view(image, (height, width))[::stride, ::stride]
