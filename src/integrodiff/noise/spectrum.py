r"""The power spectrum of the noise, measured in the flat parts of an image.

The image is seen through a few thousand 8 x 8 tiles, and every tile through the squares of its
cosine coefficients. Structure makes the energy of a tile larger, noise is the same everywhere, so
the tiles with the least energy show the noise. To choose tiles by their own energy would make the
noise look too weak. A tile is therefore chosen by the energy of its four neighbours, which do not
overlap with it: their noise is independent of its own, their structure is not. The mean over the
chosen tiles is then an unbiased estimate for any spectrum, white or not, and needs no factor for
the selection.

Tiles with clipped noise are left out: constant ones, and those whose mean is near a clipped grey
value, black or white. The tiles lie on a grid with an odd step, so that the 8 x 8 blocks of a JPEG
file are met in all positions.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any, TypeAlias

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view
from numpy.typing import NDArray

Floats: TypeAlias = NDArray[np.floating[Any]]

SIDE = 8
"""Side of a tile in pixels."""

# More tiles make the measurement slower and hardly more accurate.
_MOST_TILES = 4096
_CHOSEN_PART, _FEWEST_CHOSEN = 0.05, 40
# A chosen tile with this many times the typical energy has structure that its neighbours lack.
_OUTLIER = 3.0
# The smallest or largest grey value counts as clipped if this fraction of all pixels has it.
_CLIPPED_PART = 0.002
_CLIPPED_REACH, _CLIPPED_ROUNDS = 2.0, 2
# More than this factor of the noise level is not lost where noise is clipped.
_CLIPPED_LOSS = 3.0
# Of what part the coefficients of a compressed image are sparser in its blocks, as a logarithm.
_SPARSER = 0.1
_FEWEST_BLOCKS, _MOST_BLOCKS = 9, 1024
_HIGH = np.add.outer(*[1 - np.cos(np.pi * np.arange(SIDE) / SIDE)] * 2).ravel() >= 1

# Differences within a tile below this part of its values are rounding errors.
_ROUNDING = 1e-6


@dataclass(frozen=True, eq=False)
class Measurement:
    """Noise in the flat parts of an image.

    Attributes
    ----------
    power : ndarray
        Spectrum of the noise over ``unit**2``, (8, 8), for the frequencies pi k / 8; the first, of
        the mean, is zero.
    unit : float
        Unit of the noise in grey levels; its square could overflow.
    spread : float
        Standard deviation of the energies of the chosen tiles over what stationary Gaussian noise
        with this spectrum has. It is far above one where the image has no flat parts.
    structure : float
        Energy of a typical tile over that of the noise; close to one where most of the image is
        flat.
    compressed : bool
        Whether the image was compressed in blocks, as JPEG files are.
    count : float
        Number of tiles in the image that do not overlap.
    """

    power: NDArray[np.float64]
    unit: float
    spread: float
    structure: float
    compressed: bool
    count: float


@dataclass(frozen=True, eq=False)
class Tiles:
    """Energies of the tiles of one image.

    Attributes
    ----------
    power : ndarray
        Squared cosine coefficients over ``unit**2``, (tile row, tile column, 64); the first of
        each, the mean of a tile, is set to zero.
    means : ndarray
        Mean of each tile over ``unit``, from the median of the image on.
    unit : float
        Typical deviation of grey values from their median.
    clipped : tuple of float
        Grey values at which noise is clipped, like ``means``; infinite where it is not.
    reach : int
        Number of tiles from one to the next that does not overlap with it.
    compressed : bool
        Whether the image was compressed in blocks, as JPEG files are.
    """

    power: Floats
    means: Floats
    unit: float
    clipped: tuple[float, float]
    reach: int
    compressed: bool

    @property
    def energies(self) -> NDArray[np.float64]:
        """Mean of the squared coefficients of each tile, over ``unit**2``."""
        return np.asarray(_energies(self.power).ravel(), np.float64)

    def noise(self) -> Measurement | None:
        """Return the noise of the image, or None if no tile shows any."""
        energies = _energies(self.power)
        usable = energies > (_ROUNDING * self.means) ** 2
        if not usable.any():
            return None
        found = self._measured(energies, usable)
        if np.isfinite(self.clipped).any():
            for _ in range(_CLIPPED_ROUNDS):
                level = math.sqrt(_energies(found.power.ravel()))
                inside = usable & self._unclipped(level)
                if inside.sum() < _FEWEST_CHOSEN:
                    break
                again = self._measured(energies, inside)
                if math.sqrt(_energies(again.power.ravel())) > _CLIPPED_LOSS * level:
                    break  # no flat tile is left
                found = again
        return found

    def _unclipped(self, sigma: float) -> NDArray[np.bool_]:
        """Whether the mean of a tile is far from clipped values."""
        reach = _CLIPPED_REACH * sigma
        darkest, brightest = self.clipped
        return np.asarray((self.means > darkest + reach) & (self.means < brightest - reach))

    def _measured(self, energies: Floats, usable: NDArray[np.bool_]) -> Measurement:
        """Return the mean spectrum of usable tiles with quiet neighbours."""
        around = _mean_of_neighbours(np.where(usable, energies, np.inf), self.reach)
        around = np.where(usable, around, np.inf).ravel()
        own = energies.ravel()
        if np.isfinite(around).sum() < _FEWEST_CHOSEN:
            around = np.where(usable.ravel(), own, np.inf)
        wanted = max(_FEWEST_CHOSEN, int(_CHOSEN_PART * own.size))
        count = min(wanted, int(np.isfinite(around).sum()))
        chosen = np.argpartition(around, count - 1)[:count]
        chosen = chosen[own[chosen] <= _OUTLIER * np.median(own[chosen])]
        power = self.power.reshape(-1, SIDE**2)[chosen].mean(axis=0).astype(np.float64)
        deviation = math.sqrt(2 * np.sum(power**2)) / np.sum(power)
        spread = float(own[chosen].std() / own[chosen].mean() / deviation)
        structure = float(np.median(own[usable.ravel()]) / _energies(power))
        return Measurement(
            power=power.reshape(SIDE, SIDE),
            unit=self.unit,
            spread=spread,
            structure=structure,
            compressed=self.compressed,
            count=own.size / self.reach**2,
        )


def tiles_of(image: NDArray[Any], weights: Sequence[float] | None = None) -> Tiles | None:
    """Return the tiles of a grey image, or None if it is constant or smaller than a tile.

    Parameters
    ----------
    image : ndarray
        (row, column), or with weights (sample, row, column).
    weights : sequence of float, optional
        The image is the sum of the samples with these weights, which is computed only where needed.
    """
    samples = image[None] if weights is None else image
    if min(samples.shape[1:]) < SIDE:
        return None
    height, width = (length - SIDE + 1 for length in samples.shape[1:])
    step = math.ceil(math.sqrt(height * width / _MOST_TILES)) | 1
    seen = _windows(samples, weights, 0, step)
    grid = seen.shape[:2]
    values = seen.reshape(-1, SIDE**2)
    middle = float(np.median(values[:, 0]))
    values -= middle
    smallest, largest = float(values.min()), float(values.max())
    if smallest == largest:
        return None
    # Powers of two keep all digits, so that the unit of an image does not matter.
    span = 2.0 ** math.frexp(largest - smallest)[1]
    values /= span
    typical = float(np.mean(np.abs(values)))
    values /= typical
    small = values.astype(np.float32)
    clipped = tuple(
        extreme / span / typical if np.mean(small == small_extreme) > _CLIPPED_PART else outside
        for extreme, small_extreme, outside in (
            (smallest, small.min(), -math.inf),
            (largest, small.max(), math.inf),
        )
    )
    power = small @ _cosines()
    means = power[:, 0] / SIDE
    power *= power
    power[:, 0] = 0
    return Tiles(
        power=power.reshape(*grid, SIDE**2),
        means=means.reshape(grid),
        unit=typical * span,
        clipped=(clipped[0], clipped[1]),
        reach=-(-SIDE // step),
        compressed=_is_compressed(samples, weights, middle, typical * span),
    )


def _windows(
    samples: NDArray[Any], weights: Sequence[float] | None, first: int, step: int
) -> NDArray[np.float64]:
    """Return windows of the weighted sum of samples, (row, column, 8, 8), in new memory."""
    windows = sliding_window_view(samples, (SIDE, SIDE), axis=(1, 2))[:, first::step, first::step]
    total: NDArray[np.float64] = windows[0].astype(np.float64)
    if weights is None:
        return total
    total *= weights[0]
    for weight, window in zip(weights[1:], windows[1:], strict=True):
        total += weight * window
    return total


def _is_compressed(
    samples: NDArray[Any], weights: Sequence[float] | None, middle: float, unit: float
) -> bool:
    """Whether cosine coefficients are sparser in blocks of 8 x 8 than between them.

    Compression rounds many of them to zero. The blocks begin in the first row and column, as in a
    JPEG file that was not cropped.
    """
    rows, columns = (length // SIDE - 1 for length in samples.shape[1:])
    if rows * columns < _FEWEST_BLOCKS:
        return False
    step = SIDE * max(1, math.isqrt(rows * columns // _MOST_BLOCKS))
    on, off = (
        _sparsity((_windows(samples, weights, first, step) - middle) / unit)
        for first in (0, SIDE // 2)
    )
    return math.log(on / off) > _SPARSER


def _sparsity(blocks: NDArray[np.float64]) -> float:
    """Return the root mean square of high cosine coefficients over their mean absolute value."""
    values = blocks.reshape(-1, SIDE**2).astype(np.float32)
    high = np.abs((values @ _cosines())[:, _HIGH])
    means = high.mean(axis=0)
    present = means > 0
    if not present.any():
        return 1.0
    return float(np.mean(np.sqrt(np.mean(high * high, axis=0))[present] / means[present]))


def _energies(power: Floats) -> Any:
    """Return the mean over all coefficients but the first."""
    return power.sum(axis=-1) / (SIDE**2 - 1)


def _mean_of_neighbours(values: Floats, reach: int) -> Floats:
    """Return the mean of the four tiles at a distance, reflected at the border."""
    wide = np.pad(values, reach, mode="reflect")
    inner = slice(reach, -reach)
    total = wide[: -2 * reach, inner] + wide[2 * reach :, inner]
    return np.asarray((total + wide[inner, : -2 * reach] + wide[inner, 2 * reach :]) / 4)


@cache
def _cosines() -> NDArray[np.float32]:
    """Return the cosine transform of an 8 x 8 tile as a matrix for rows of 64 values."""
    k = np.arange(SIDE)
    matrix = np.sqrt(2 / SIDE) * np.cos(np.pi * (k + 0.5) * k[:, None] / SIDE)
    matrix[0] /= np.sqrt(2)
    return np.asarray(np.kron(matrix, matrix).T, np.float32).copy()
