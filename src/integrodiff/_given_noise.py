"""What :func:`integrodiff.denoise` is told about the noise, and what it has to find out."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal, TypeAlias

import numpy as np
from numpy.typing import NDArray

from integrodiff._checks import (
    nonnegative_number,
    one_of,
    positive_number,
    sequence_of_numbers,
)
from integrodiff.engines import FloatImage
from integrodiff.noise.level import estimate_poisson_gaussian, estimate_sigma
from integrodiff.noise.photons import PoissonGaussian

Noise: TypeAlias = Literal["gaussian", "poisson", "poisson-gaussian"] | PoissonGaussian
NOISES = ("gaussian", "poisson", "poisson-gaussian")

_RANGE_OF_NOISE = 6.0
_QUIETEST = 1e-3
"""Of the relative noise levels in a map; below it nothing moves anyway."""


def photon_noise(
    noise: Noise, sigma: object, image: NDArray[Any], channel_axis: int | None
) -> PoissonGaussian | None:
    """Return the noise of counted photons, given or estimated, or None if it is Gaussian."""
    if not isinstance(noise, PoissonGaussian):
        one_of("noise", noise, NOISES)
        if noise == "gaussian":
            return None
    if sigma is not None:
        raise ValueError(
            "sigma is for Gaussian noise; for noise of photons give noise=PoissonGaussian(...) "
            "with the gain, offset and readout noise of the detector"
        )
    if isinstance(noise, PoissonGaussian):
        return noise
    if noise == "poisson":
        return PoissonGaussian()
    return estimate_poisson_gaussian(image, channel_axis=channel_axis)


def split_map(
    levels: NDArray[Any],
) -> tuple[float, NDArray[np.float64] | None]:
    """Return the root mean square of a map of noise levels, and the levels relative to it."""
    levels = levels.astype(np.float64)
    if not np.isfinite(levels).all() or (levels < 0).any():
        raise ValueError("a map of noise levels must be finite and nowhere negative")
    mean = float(np.sqrt(np.mean(levels**2))) if levels.size else 0.0
    return mean, np.maximum(levels / mean, _QUIETEST) if mean > 0 else None


def noise_levels(
    sigma: float | Sequence[float] | NDArray[Any] | None,
    image: NDArray[Any],
    channel_axis: int | None,
) -> NDArray[np.float64]:
    """Return the noise level of every channel, given or estimated."""
    if sigma is None:
        return np.atleast_1d(estimate_sigma(image, channel_axis=channel_axis))
    channels = 1 if channel_axis is None else image.shape[channel_axis]
    if channel_axis is not None and np.ndim(sigma) == 1:
        return np.array(sequence_of_numbers("sigma", sigma, channels))
    return np.full(channels, nonnegative_number("sigma", sigma))


def stabilised_range(
    stabilised: FloatImage, photons: PoissonGaussian, data_range: float | None
) -> float:
    """Return the grey range of an image after the Anscombe transform.

    Without a ``data_range`` it is that of the values. Noise of variance one alone has a range of
    some standard deviations; an image of a smaller one has hardly any light, or no noise.
    """
    if data_range is None:
        return max(float(np.ptp(stabilised)), _RANGE_OF_NOISE)
    ends = photons.offset + np.array([0.0, positive_number("data_range", data_range)])
    return float(np.diff(photons.stabilise(ends))[0])
