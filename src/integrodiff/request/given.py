"""Noise that is given: which channel and sample has which level."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from integrodiff._checks import nonnegative_number, sequence_of_numbers
from integrodiff.layout import Layout
from integrodiff.noise.levels import NoiseLevels, white
from integrodiff.noise.maps import NoiseMap
from integrodiff.noise.photons import PoissonGaussian
from integrodiff.request.arguments import Noise, Request


def given_noise(
    request: Request, layout: Layout, channel: int, found: NoiseMap | None
) -> tuple[NoiseLevels, ...] | None:
    """Return the noise of each sample of a channel, or None if not given."""
    if request.levels is not None:
        return (request.levels,) * layout.samples
    if request.sigma is None or isinstance(request.sigma, Mapping):
        return None
    return tuple(white(float(sigma)) for sigma in _given_sigmas(request, layout, channel, found))


def _given_sigmas(
    request: Request, layout: Layout, channel: int, found: NoiseMap | None
) -> NDArray[np.float64]:
    """Return the noise level of each sample of a channel."""
    sigma: Any = request.sigma
    samples = layout.samples
    if found is not None:
        return np.full(samples, found.mean)
    if np.ndim(sigma) == 0:
        return np.full(samples, nonnegative_number("sigma", sigma))
    if "C" in layout.axes:
        levels = sequence_of_numbers("sigma", sigma, layout.channels)
        return np.full(samples, levels[channel])
    if not layout.has_samples:
        raise TypeError(
            f"sigma must be one number for an image with the axes {layout.axes}, got {sigma!r}"
        )
    return np.array(sequence_of_numbers("sigma", sigma, samples))


def check_map(request: Request, layout: Layout) -> None:
    """Refuse a map of noise levels whose size differs from that of the image."""
    if request.map is None:
        return
    if layout.axes.index("X") < layout.axes.index("Y"):
        raise ValueError(
            f"a map of noise levels needs an image with Y before X, got the axes {layout.axes}; "
            "transpose both"
        )
    shape = tuple(np.shape(request.sigma))  # type: ignore[arg-type]
    if shape == layout.size:
        return
    height, width = layout.size
    slices = f"{layout.slices} slices, " if layout.is_volume else ""
    if layout.is_volume and len(shape) == 3:
        if layout.axes.index("Y") < layout.axes.index("Z"):
            raise ValueError(
                "a map of noise levels needs a volume with Z before Y and X, got the axes "
                f"{layout.axes}; transpose both"
            )
        if shape == (layout.slices, height, width):
            return
    raise ValueError(
        f"the map of noise levels has the shape {shape}, and the image has "
        f"{slices}{height} rows and {width} columns"
    )


def known_detector(noise: Noise) -> PoissonGaussian | None:
    """Return the detector if it need not be estimated."""
    if noise == "poisson":
        return PoissonGaussian()
    return noise if isinstance(noise, PoissonGaussian) else None
