"""Noise and structure of a plane, measured for one sample or a sum of samples."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from integrodiff.namespaces import Array, dtype_of, in_dtype_of, is_numpy, made_like
from integrodiff.noise.level import estimate_levels
from integrodiff.noise.levels import NoiseLevels, white
from integrodiff.noise.photons import PoissonGaussian
from integrodiff.noise.rice import Rician, level_of
from integrodiff.noise.spectrum import Glimpse, Tiles, glimpse_of
from integrodiff.noise.variation import LocalLevels, local_levels
from integrodiff.request.arguments import computing_dtype
from integrodiff.validity import Mask

_BAND_PIXELS, _BAND_ON_DEVICE = 2**16, 2**22
"""Pixels that are converted at a time, on the host and elsewhere."""


class Seen(NamedTuple):
    """Measurements of one sample of a plane; local noise levels only if the noise is white."""

    noise: NoiseLevels
    energies: NDArray[np.float64]
    unit: float
    cells: LocalLevels | None = None
    tiles: Tiles | None = None


class View(NamedTuple):
    """A plane as it is measured: its valid pixels, after stabilisation.

    Attributes
    ----------
    plane : array
        Its grey values.
    mask : array of bool, optional
        Which of them are valid.
    photons : PoissonGaussian or Rician, optional
        The detector, if they are to be stabilised.
    glimpse : Glimpse, optional
        The pixels that are looked at, stabilised, if any tile is valid.
    """

    plane: Array
    mask: Mask | None
    photons: PoissonGaussian | Rician | None
    glimpse: Glimpse | None

    def measured(
        self, weights: NDArray[np.float64], *, estimates: bool, locates: bool = False
    ) -> Seen:
        """Measure the structure of a sum of samples and, if asked for, its noise, and where it is.

        Compression removes noise from some parts of an image and not from others.
        """
        tiles = None if self.glimpse is None else self.glimpse.mixed(weights).measured()
        noise = estimate_levels(self.plane, tiles, self.mask) if estimates else white(0.0)
        if tiles is not None:
            locates &= noise.is_white and not tiles.compressed
            if not locates:
                return Seen(noise, tiles.energies, tiles.unit)
            cells = local_levels(tiles, tuple(self.plane.shape[:2]))
            return Seen(noise, tiles.energies, tiles.unit, cells, tiles)
        return Seen(noise, *self._overall_variance(weights))

    def _overall_variance(self, weights: NDArray[np.float64]) -> tuple[NDArray[np.float64], float]:
        """Return the variance of all pixels, over the square of a unit, and the unit."""
        ends = [(float(part.min()), float(part.max())) for part in self._values(weights)]
        lowest, highest = min(end[0] for end in ends), max(end[1] for end in ends)
        span = highest - lowest
        if span == 0:
            return np.zeros(1), 1.0
        count, total, squares = 0, 0.0, 0.0
        for part in self._values(weights):
            part = (part - lowest) / span
            count += part.shape[0]
            total += float(part.sum())
            squares += float((part * part).sum())
        return np.array([max(squares / count - (total / count) ** 2, 0.0)]), span

    def _values(self, weights: NDArray[np.float64]) -> Iterator[Array]:
        """Iterate over the valid pixels in bands of rows."""
        pixels = _BAND_PIXELS if is_numpy(self.plane) else _BAND_ON_DEVICE
        rows = max(1, pixels // self.plane.shape[1])
        for first in range(0, len(self.plane), rows):
            band = self.plane[first : first + rows]
            band = band[..., None] if band.ndim == 2 else band
            valid = None if self.mask is None else self.mask[first : first + rows]
            values = band.reshape(-1, band.shape[-1]) if valid is None else band[valid]
            if len(values):
                values = in_dtype_of(_stabilised(values, self.photons), np.dtype(np.float64))
                yield values @ made_like(weights, values)


def view_of(plane: Array, mask: Mask | None, photons: PoissonGaussian | Rician | None) -> View:
    """Look at a plane."""
    glimpse = glimpse_of(plane, mask)
    if glimpse is not None:
        glimpse = glimpse.mapped(lambda values: _stabilised(values, photons))
    return View(plane, mask, photons, glimpse)


def _stabilised(values: Array, photons: PoissonGaussian | Rician | None) -> Array:
    """Return values whose noise does not depend on the signal, if a detector is given."""
    if photons is None:
        return values
    return photons.stabilise(in_dtype_of(values, computing_dtype(dtype_of(values))))


def rician_level(plane: Array, mask: Mask | None, zero: float) -> float:
    """Estimate the level of Rician noise from the flattest parts of a plane."""
    glimpse = glimpse_of(plane, mask)
    tiles = None if glimpse is None else glimpse.measured()
    levels = estimate_levels(plane, tiles, mask)
    flat = None if tiles is None else tiles.noise()
    return levels.sigma if flat is None else level_of(flat.mean - zero, levels.sigma)
