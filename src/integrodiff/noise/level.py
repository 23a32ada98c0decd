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

Tiles and patches with invalid pixels are left out.

docs/noise.md measures the errors of both estimators.

.. [1] X. Liu, M. Tanaka, M. Okutomi, "Single-image noise level estimation for blind denoising",
   IEEE Transactions on Image Processing 22 (2013) 5226-5237.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Iterable, Sequence
from functools import cache
from typing import Any, NamedTuple, TypeAlias

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view
from numpy.typing import ArrayLike, NDArray

from integrodiff._checks import finite_number
from integrodiff.arrays import ArrayImage, array_image, opened_image
from integrodiff.containers import ImageLike, opened
from integrodiff.errors import NoiseLevelWarning, outside
from integrodiff.namespaces import (
    Array,
    in_dtype_of,
    is_numpy,
    is_on_gpu,
    made_like,
    namespace,
    on_host,
    root_mean_square,
    samples_of,
)
from integrodiff.noise.levels import NoiseLevels, measured_levels, typical_levels, white
from integrodiff.noise.photons import PoissonGaussian
from integrodiff.noise.spectrum import SIDE as TILE
from integrodiff.noise.spectrum import Tiles, tiles_of, whole_squares
from integrodiff.noise.variation import local_levels, map_of_tiles, typical_local_levels
from integrodiff.validity import Mask

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
_FEWEST_TILES = (_SMALLEST_IMAGE - TILE + 1) ** 2
# Number of planes from which the noise of a channel is estimated; more hardly help.
_MOST_PLANES = 9
# Pixels, and patches, that are worked on at a time.
_BAND_PIXELS, _BLOCK = 2**17, 2**14


def estimate_sigma(
    image: ImageLike,
    *,
    axes: str | None = None,
    channel_axis: int | None = None,
    mask: ArrayLike | None = None,
) -> float | Floats:
    """Estimate the standard deviation of additive noise, white or correlated between pixels.

    Parameters
    ----------
    image : array_like
        Grey image (rows, columns) of at least 20 x 20 pixels, or an image with further axes that
        ``axes`` or ``channel_axis`` describes. Integer or real floating point; NaN and infinite
        values are invalid pixels, as are the masked ones of a masked array. PyTorch tensors, Pillow
        images and ``xarray.DataArray`` are taken as by :func:`denoise`.
    axes : str, optional
        One letter for each axis, as in :func:`denoise`. The level of frames, slices and other
        planes is the median over up to nine of them.
    channel_axis : int, optional
        Axis of the colour samples of a single image: ``channel_axis=-1`` is ``axes="YXS"``.
    mask : array of bool, optional
        True at valid pixels, as in :func:`denoise`. Only patches without invalid pixels are used.

    Returns
    -------
    float, or ndarray of float
        Noise level in the grey levels of the image, zero if there is no noise. With the axes C or S
        one for each channel or colour sample, and with both an array (channel, sample).

    Raises
    ------
    TypeError
        If the image is a dask array, which would have to be computed.
    ValueError
        If the image is too small, or has too few valid pixels.

    Warns
    -----
    NoiseLevelWarning
        If the noise level varies over the image; then the root mean square is returned.

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
    if is_on_gpu(image):
        source = opened_image(image, axes=axes, channel_axis=channel_axis, mask=mask)
        source = source.looked_through()
    else:
        given = opened(image, "estimate_sigma")
        axes = axes if channel_axis is not None else axes or given.axes
        mask = None if mask is None else given.mask(mask)
        source = array_image(given.array, axes=axes, channel_axis=channel_axis, mask=mask)
    layout = source.layout
    found = [_levels_of(source, channel) for channel in range(layout.channels)]
    sigmas = np.array([[level.sigma for level in channel] for channel in found])
    varying = [level for channel in found for level in channel if level.varies is not None]
    if varying:
        sigma, (low, high) = varying[0].sigma, varying[0].varies or (0.0, 0.0)
        warnings.warn(
            f"the noise level varies over the image, about from {low:.3g} to {high:.3g}, and "
            f"{sigma:.3g} is its root mean square; denoise takes a map of it if sigma is not given",
            NoiseLevelWarning,
            stacklevel=outside(),
        )
    if "C" in layout.axes:
        return sigmas if layout.has_samples else sigmas[:, 0]
    return np.asarray(sigmas[0]) if layout.has_samples else float(sigmas[0, 0])


def estimate_poisson_gaussian(
    image: ArrayLike,
    *,
    channel_axis: int | None = None,
    offset: float | None = None,
    mask: ArrayLike | None = None,
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
    mask : array of bool, optional
        As in :func:`estimate_sigma`.

    Raises
    ------
    ValueError
        If the image is too small, has too few valid pixels, or its noise does not grow with its
        brightness.

    Notes
    -----
    Patches are sorted by their mean into eight classes. The variance of the noise in each class
    is estimated as in :func:`estimate_sigma`, and a line is fitted by robust least squares.

    Examples
    --------
    >>> import numpy as np
    >>> from integrodiff import estimate_poisson_gaussian
    >>> light = np.repeat([20, 200, 60, 120], 64)[:, None] * np.ones(256)
    >>> raw = 100 + 2 * np.random.default_rng(0).poisson(light)
    >>> found = estimate_poisson_gaussian(raw, offset=100)
    >>> bool(abs(found.gain - 2) < 0.2)
    True
    """
    plane, valid = _checked(image, channel_axis, mask)
    return detector_of([(channel, valid) for channel in samples_of(plane)], offset)


def detector_of(
    images: Iterable[tuple[Array, Mask | None]], offset: float | None
) -> PoissonGaussian:
    """Estimate a detector from grey images with their masks; see above."""
    known = None if offset is None else finite_number("offset", offset)
    found = np.concatenate(
        [_variances_by_brightness(image, valid) for image, valid in images], axis=1
    )
    slope, intercept = _line_through(*found)
    if known is None and (intercept < 0 or found[0].min() < 0):
        return PoissonGaussian(gain=slope, offset=-intercept / slope)
    dark = 0.0 if known is None else known
    variance = max(intercept + slope * dark, 0.0)
    return PoissonGaussian(gain=slope, offset=dark, readout=math.sqrt(variance))


def _checked(
    image: ArrayLike, channel_axis: int | None, mask: ArrayLike | None
) -> tuple[Array, Mask | None]:
    """Return the image as a plane, with samples last, and its mask if it has invalid pixels."""
    if channel_axis is None and np.ndim(image) != 2:
        raise ValueError(
            f"image must have two axes, rows and columns, got shape {np.shape(image)}; for colour "
            "give channel_axis, and estimate the planes of a stack one by one"
        )
    if is_on_gpu(image):
        checked = opened_image(image, axes=None, channel_axis=channel_axis, mask=mask)
    else:
        checked = array_image(image, channel_axis=channel_axis, mask=mask)
    (plane,) = checked.planes()
    valid = checked.validity.of(plane)
    if valid is not None and not valid.any():
        raise ValueError("image has no valid pixel: all are masked, NaN or infinite")
    return plane, valid


class _Level(NamedTuple):
    """Noise level of a sample; if it varies over the image, a low and a high one as well."""

    sigma: float
    varies: tuple[float, float] | None = None


def _levels_of(source: ArrayImage, channel: int) -> list[_Level]:
    """Estimate the noise level of each sample of a channel."""
    layout, some_valid = source.layout, False
    found: list[list[NoiseLevels]] = []
    tiles: list[list[Tiles | None]] = []
    chosen = ChosenPlanes(layout.plane_count // layout.channels)
    for number, plane in enumerate(source.planes()):
        if layout.channel_of(number) != channel or not chosen.wants_next():
            continue
        valid = source.validity.of(plane, number)
        some_valid |= valid is None or bool(valid.any())
        # A plane with too few valid pixels is replaced by a later one.
        if valid is None or has_enough_tiles(valid):
            chosen.take()
            samples = samples_of(plane)
            tiles.append([tiles_of(sample, valid) for sample in samples])
            pairs = zip(samples, tiles[-1], strict=True)
            found.append([estimate_levels(sample, own, valid) for sample, own in pairs])
    if not some_valid:
        raise ValueError("image has no valid pixel: all are masked, NaN or infinite")
    if not found:
        raise ValueError(too_few_tiles())
    levels = [typical_levels(column) for column in zip(*found, strict=True)]
    if layout.is_volume:
        return [_Level(typical.sigma) for typical in levels]
    columns = zip(levels, zip(*tiles, strict=True), strict=True)
    return [_mean_level(typical, column, layout.size) for typical, column in columns]


def _mean_level(
    typical: NoiseLevels, planes: Sequence[Tiles | None], size: tuple[int, int]
) -> _Level:
    """Return the noise level of a sample, the root mean square if it varies over the image."""
    compressed = any(tiles is not None and tiles.compressed for tiles in planes)
    if not typical.is_white or compressed:
        return _Level(typical.sigma)
    cells = typical_local_levels([local_levels(tiles, size) for tiles in planes])
    varies = None if cells is None else cells.variation
    levels = None if varies is None else map_of_tiles([[tiles] for tiles in planes], size)
    if levels is None:
        return _Level(typical.sigma)
    return _Level(float(root_mean_square(levels)), varies)


class ChosenPlanes:
    """Which planes of a channel noise is estimated from: some, spread evenly over all.

    Parameters
    ----------
    count : int
        Number of planes.
    """

    def __init__(self, count: int) -> None:
        self._chosen = set(np.linspace(0, count - 1, min(count, _MOST_PLANES)).astype(int).tolist())
        self._next = self._owed = 0

    def wants_next(self) -> bool:
        """Whether the next plane is to be measured, for itself or for one that could not be."""
        self._owed += self._next in self._chosen
        self._next += 1
        return self._owed > 0

    def take(self) -> None:
        """Note that a plane was measured."""
        self._owed -= 1


def estimate_levels(image: Array, tiles: Tiles | None, valid: Mask | None = None) -> NoiseLevels:
    """Estimate the noise levels of a plane, one channel or several, from tiles of a sample.

    Raises
    ------
    ValueError
        If the image is too small.
    """
    shape = tuple(image.shape[:2])
    if min(shape) < _SMALLEST_IMAGE:
        values = image.reshape(-1, *image.shape[2:]) if valid is None else image[valid]
        if (values == values[0]).all():
            return white(0.0)
        raise ValueError(_too_small(shape))
    return measured_levels(None if tiles is None else tiles.noise())


def _weak_patches(patches: Array, texture: Floats) -> NDArray[np.bool_]:
    """Return which patches have weak texture."""
    weak = np.ones(len(texture), np.bool_)
    for _ in range(_ROUNDS):
        chosen = texture < least_variance(patches, weak) * weak_texture()
        if chosen.sum() < _FEWEST_PATCHES:
            break
        weak = chosen
    return weak


def _variances_by_brightness(image: Array, valid: Mask | None = None) -> Floats:
    """Return mean, noise variance and number of patches for each brightness class.

    Patches of an image on a GPU stay there; the host gets the mean and the texture of each, four
    megabytes at most, and their covariances.
    """
    patches, texture = patches_of(image, valid=valid)
    order = np.argsort(on_host(namespace(patches).mean(patches, axis=1)))
    rows = []
    for members in np.array_split(order, _CLASSES):
        if len(members) < _FEWEST_PATCHES:
            continue
        own = patches[made_like(members, patches)]
        weak = _weak_patches(own, texture[members])
        variance = least_variance(own, weak) / sampling_factor(len(members)) ** 2
        if variance > 0:
            rows.append((float(own[made_like(weak, own)].mean()), variance, weak.sum()))
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
    # Steps and tolerances of the fit are absolute, so that all numbers have to be about one.
    unit, span, floor = variances.max(), np.abs(means).max(), 1e-9
    places = means / span
    slope, intercept = np.polyfit(places, variances / unit, 1)

    def misfits(line: Floats) -> Floats:
        # The standard error of a variance is proportional to it, so residuals are logarithmic.
        fitted = np.maximum(line[0] * places + line[1], floor)
        return np.asarray(weights * np.log(fitted / (variances / unit)))

    line = least_squares(misfits, [slope, intercept], loss="soft_l1", f_scale=0.1).x * unit
    line[0] /= span
    if not line[0] > 0:
        raise ValueError(f"the noise of this image does not grow with its brightness; {unknown}")
    return float(line[0]), float(line[1])


def patches_of(image: Array, *, valid: Mask | None = None) -> tuple[Array, Floats]:
    """Return patches as rows, and the texture of each: the sum of its squared gradients.

    Patches stay on the device of the image; their textures are on the host.

    Constant patches are left out, since their noise was clipped, and those with invalid pixels. The
    image is converted in bands of rows, so that besides the patches themselves, whose number is
    limited, little memory is taken.

    Parameters
    ----------
    image : array
        One channel.
    valid : ndarray of bool, optional
        True at valid pixels.

    Raises
    ------
    ValueError
        If the image has too few patches for an estimate.
    """
    whole, count = None, patch_count(image.shape)
    if valid is not None and count >= _FEWEST_PATCHES:
        whole = whole_squares(valid, SIDE)
        count = int(whole.sum())
    if count < _FEWEST_PATCHES:
        raise ValueError(_too_small(image.shape) if valid is None else too_few_patches())
    stride = math.ceil(math.sqrt(count / _MOST_PATCHES))
    if not is_numpy(image):
        return _patches_on_device(image, valid, whole, stride)
    rows, columns = (range(0, length - SIDE + 1, stride) for length in image.shape)
    known = None if whole is None else whole[::stride, ::stride]
    most = len(rows) * len(columns) if known is None else int(known.sum())
    patches, texture = np.empty((most, _DIMENSION)), np.empty(most)
    found = 0
    together = max(1, _BAND_PIXELS // (stride * image.shape[1]))
    for number, first in enumerate(rows[::together]):
        chosen = slice(first, first + (together - 1) * stride + SIDE)
        band = image[chosen].astype(np.float64)
        if valid is not None:
            band[~valid[chosen]] = 0.0  # any number that is finite
        part = None if known is None else known[number * together : (number + 1) * together]
        some, textures = _patches_of_band(band, stride, part)
        patches[found : found + len(some)] = some
        texture[found : found + len(some)] = textures
        found += len(some)
    return patches[:found], texture[:found]


def _patches_on_device(
    image: Array, valid: Mask | None, whole: Mask | None, stride: int
) -> tuple[Array, Floats]:
    """Return patches and textures of an array that is not NumPy's."""
    xp = namespace(image)
    pixels = in_dtype_of(image, np.dtype(np.float64))
    if valid is not None:
        pixels = xp.where(valid, pixels, xp.zeros_like(pixels))
    rows, columns = (length - SIDE + 1 for length in image.shape)
    shifted = [
        pixels[i : i + rows : stride, j : j + columns : stride].reshape(-1)
        for i in range(SIDE)
        for j in range(SIDE)
    ]
    squares = xp.reshape(xp.stack(shifted), (SIDE, SIDE, -1))
    across, down = squares[:, 2:] - squares[:, :-2], squares[2:] - squares[:-2]
    texture = xp.sum((across / 2) ** 2, axis=(0, 1)) + xp.sum((down / 2) ** 2, axis=(0, 1))
    wanted = texture > 0
    if whole is not None:
        wanted = wanted & whole[::stride, ::stride].reshape(-1)
    patches = xp.reshape(squares, (_DIMENSION, -1)).T[wanted]
    return patches, np.asarray(on_host(texture[wanted]))


def _patches_of_band(band: Floats, stride: int, known: Mask | None) -> tuple[Floats, Floats]:
    """Return patches and textures of some rows; ``known`` are those without invalid pixels."""
    across, down = (_squared_central_differences(band, axis) for axis in (1, 0))
    texture = _windows(across, SIDE, SIDE - 2, stride).sum((2, 3))
    texture += _windows(down, SIDE - 2, SIDE, stride).sum((2, 3))
    patches = _windows(band, SIDE, SIDE, stride)
    varies = texture > 0
    if known is not None:
        varies &= known
    return patches[varies].reshape(-1, _DIMENSION), texture[varies]


def patch_count(shape: tuple[int, ...]) -> int:
    """Return the number of patches in an image of a shape."""
    return math.prod(max(length - SIDE + 1, 0) for length in shape)


def has_enough_patches(valid: Mask) -> bool:
    """Whether there are enough patches without invalid pixels to estimate a detector."""
    return int(whole_squares(valid, SIDE).sum()) >= _FEWEST_PATCHES


def has_enough_tiles(valid: Mask) -> bool:
    """Whether there are enough tiles without invalid pixels to estimate Gaussian noise."""
    return int(whole_squares(valid, TILE).sum()) >= _FEWEST_TILES


def too_few_patches() -> str:
    """Say that the valid pixels of an image cannot tell its detector."""
    return _too_few_squares(SIDE, _FEWEST_PATCHES, "the gain, offset and readout noise")


def too_few_tiles() -> str:
    """Say that the valid pixels of an image cannot tell its noise."""
    return _too_few_squares(TILE, _FEWEST_TILES, "sigma")


def _too_few_squares(side: int, count: int, instead: str) -> str:
    return (
        f"there are too few valid pixels to estimate the noise: squares of {side} x {side} "
        f"valid pixels are needed at {count} places or more. Give {instead}"
    )


def _too_small(shape: tuple[int, ...]) -> str:
    return (
        f"an image of {shape[1]} x {shape[0]} pixels is too small to estimate its noise; at least "
        f"{_SMALLEST_IMAGE} x {_SMALLEST_IMAGE} are needed. Otherwise give sigma"
    )


def least_variance(patches: Array, chosen: NDArray[np.bool_] | None = None) -> float:
    """Return the smallest eigenvalue of the covariance of patches without their means.

    Parameters
    ----------
    patches : array
        One patch in each row.
    chosen : ndarray of bool, optional
        Which of them count; by default all.
    """
    xp = namespace(patches)
    count, total = 0, made_like(np.zeros(_DIMENSION), patches)
    products = made_like(np.zeros((_DIMENSION, _DIMENSION)), patches)
    for first in range(0, len(patches), _BLOCK):
        block = patches[first : first + _BLOCK]
        if chosen is not None:
            block = block[made_like(chosen[first : first + _BLOCK], patches)]
        # Each has the mean zero, so that little is lost when their own mean is subtracted below.
        block = block - xp.mean(block, axis=1, keepdims=True)
        count += len(block)
        total += xp.sum(block, axis=0)
        products += block.T @ block
    total, products = on_host(total), on_host(products)
    covariance = (products - np.outer(total, total) / count) / (count - 1)
    eigenvalues = np.linalg.eigvalsh(covariance)
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


def _windows(image: NDArray[Any], height: int, width: int, stride: int) -> NDArray[Any]:
    return sliding_window_view(image, (height, width))[::stride, ::stride]
