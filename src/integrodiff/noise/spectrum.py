r"""The power spectrum of the noise, measured in the flat parts of an image.

The image is seen through a few thousand 8 x 8 tiles, and every tile through the squares of its
cosine coefficients. Structure makes the energy of a tile larger, noise is the same everywhere, so
the tiles with the least energy show the noise. To choose tiles by their own energy would make the
noise look too weak. A tile is therefore chosen by the energy of its four neighbours, which do not
overlap with it: their noise is independent of its own, their structure is not. The mean over the
chosen tiles is then an unbiased estimate for any spectrum, white or not, and needs no factor for
the selection.

Tiles with clipped noise are left out: constant ones, and those whose mean is near a clipped grey
value, black or white. So are tiles with invalid pixels, and neighbours with invalid pixels are
ignored. The tiles lie on a grid with an odd step, so that the 8 x 8 blocks of a JPEG file are met
in all positions.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cache
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from integrodiff.namespaces import Array, is_numpy, made_like, namespace, on_host
from integrodiff.validity import Mask

Floats: TypeAlias = NDArray[np.floating[Any]]

SIDE = 8
"""Side of a tile in pixels."""

# More tiles make the measurement slower and hardly more accurate.
_MOST_TILES = 4096
# Where few pixels are valid the grid is finer, but has no more places than this without need.
_MOST_PLACES = 2**20
_CHOSEN_PART, _FEWEST_CHOSEN = 0.05, 40
# A chosen tile with this many times the typical energy has structure that its neighbours lack.
_OUTLIER = 3.0
# Fewer tiles without invalid pixels than this are sought on a finer grid.
_FEWEST_TILES = 256
# The smallest or largest grey value counts as clipped if this fraction of all pixels has it.
_CLIPPED_PART = 0.002
_CLIPPED_REACH, _CLIPPED_ROUNDS = 2.0, 2
# In a sum of samples, tiles count as clipped where this fraction of the pixels of a sample is.
_CLIPPED_PIXELS = 0.12
# More than this factor of the noise level is not lost where a sample of a sum is clipped.
_CLIPPED_LOSS = 3.0
# Tiles with this many times the noise that clipping left of theirs in others, and a spectrum that
# is steeper by this at low frequencies, have structure.
_MORE_NOISE, _STEEPER = 1.15, 0.2
# Of what part the coefficients of a compressed image are sparser in its blocks, as a logarithm.
_SPARSER = 0.1
_FEWEST_BLOCKS, _MOST_BLOCKS = 9, 1024
_TOTAL = np.add.outer(*[1 - np.cos(np.pi * np.arange(SIDE) / SIDE)] * 2).ravel()
_HIGH, _HIGHER = _TOTAL >= 1, _TOTAL >= 2
HIGH, TOP, LOWER = _HIGHER, _TOTAL >= 3, _HIGH & ~_HIGHER
"""Which of the 64 frequencies are high, are the highest of them, and are next below them."""

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
    high_spread : float
        The same for the energies of high frequencies alone, which hold less structure.
    headroom : float
        Distance of the mean of a typical chosen tile to the next clipped grey value, over ``unit``.
    structure : float
        Energy of a typical tile over that of the noise; close to one where most of the image is
        flat.
    compressed : bool
        Whether the image was compressed in blocks, as JPEG files are.
    count : float
        Number of tiles in the image that do not overlap.
    mean : float
        Mean grey value of the chosen tiles.
    clipped : float
        Part of the tiles that were left out since their noise is clipped.
    """

    power: NDArray[np.float64]
    unit: float
    spread: float
    structure: float
    compressed: bool
    count: float
    mean: float
    clipped: float = 0.0
    high_spread: float = 1.0
    headroom: float = math.inf


@dataclass(frozen=True, eq=False)
class Tiles:
    """Energies of the tiles of one image.

    Attributes
    ----------
    power : ndarray
        Squared cosine coefficients over ``unit**2``, (tile, 64); the first of each, the mean of a
        tile, is set to zero.
    means : ndarray
        Mean of each tile over ``unit``, from the median of the image on.
    places : array of bool
        Where on the grid the tiles are, in order; others have invalid pixels.
    unit : float
        Typical deviation of grey values from their median.
    clipped : tuple of float
        Grey values at which noise is clipped, like ``means``; infinite where it is not.
    reach : int
        Number of tiles from one to the next that does not overlap with it.
    compressed : bool
        Whether the image was compressed in blocks, as JPEG files are.
    middle : float
        Median of the image.
    spoiled : array of bool, optional
        Tiles in which a sample is clipped, if the image is a sum of samples.
    """

    power: Floats
    means: Floats
    places: Mask
    unit: float
    clipped: tuple[float, float]
    reach: int
    compressed: bool
    middle: float
    spoiled: Mask | None = None

    @property
    def energies(self) -> NDArray[np.float64]:
        """Mean of the squared coefficients of each tile, over ``unit**2``."""
        return np.asarray(_energies(self.power), np.float64)

    def noise(self) -> Measurement | None:
        """Return the noise of the image, or None if no tile shows any."""
        energies = _energies(self.power)
        usable = energies > (_ROUNDING * self.means) ** 2
        if not usable.any():
            return None
        found = self._measured(energies, usable)
        if self.spoiled is not None:
            inside = usable & ~self.spoiled
            if inside.sum() < usable.sum() and inside.sum() >= _FEWEST_CHOSEN:
                again = self._measured(energies, inside)
                if _energies(again.power.ravel()) < _CLIPPED_LOSS**2 * _energies(
                    found.power.ravel()
                ):
                    found = replace(again, clipped=1 - float(inside.sum() / usable.sum()))
        elif np.isfinite(self.clipped).any():
            for _ in range(_CLIPPED_ROUNDS):
                level = math.sqrt(_energies(found.power.ravel()))
                loss = self._clipping_loss(found, level)
                inside = usable & self._unclipped(level)
                if inside.sum() < _FEWEST_CHOSEN:
                    break
                again = self._measured(energies, inside)
                more = math.sqrt(_energies(again.power.ravel())) > _MORE_NOISE * loss * level
                if more and _steepness(again) > _steepness(found) + _STEEPER:
                    # No flat tile is left there, but clipped ones tell the noise as well.
                    return replace(found, power=found.power * loss**2)
                found = replace(again, clipped=1 - float(inside.sum() / usable.sum()))
        return found

    def _clipping_loss(self, found: Measurement, level: float) -> float:
        """Return the level of Gaussian noise over what clipping leaves of it in chosen tiles.

        It follows from the distance of their mean to the clipped value, in deviations, since both
        are those of a clipped normal distribution.
        """
        return 1 / float(np.interp(found.headroom / level, *clipped_normal()))

    def _unclipped(self, sigma: float) -> NDArray[np.bool_]:
        """Whether the mean of a tile is far from clipped values."""
        return np.asarray(self._headroom(self.means) > _CLIPPED_REACH * sigma)

    def _headroom(self, means: Floats) -> Floats:
        """Return the distance to the next clipped grey value."""
        darkest, brightest = self.clipped
        return np.asarray(np.minimum(means - darkest, brightest - means))

    def usable_neighbours(self) -> Floats:
        """Return the mean energy of the neighbours of each tile, over ``unit**2``.

        It is infinite for tiles that do not show the noise: constant and clipped ones.
        """
        energies = _energies(self.power)
        usable = energies > (_ROUNDING * self.means) ** 2
        level = math.sqrt(np.median(energies[usable])) if usable.any() else 0.0
        usable &= self._unclipped(level)
        around = self._mean_of_neighbours(np.where(usable, energies, np.inf))
        return np.where(usable, around, np.inf)

    def _measured(self, energies: Floats, usable: NDArray[np.bool_]) -> Measurement:
        """Return the mean spectrum of usable tiles with quiet neighbours."""
        own = energies
        around = self._mean_of_neighbours(np.where(usable, own, np.inf))
        around = np.where(usable, around, np.inf)
        if np.isfinite(around).sum() < _FEWEST_CHOSEN:
            around = np.where(usable, own, np.inf)
        wanted = max(_FEWEST_CHOSEN, int(_CHOSEN_PART * own.size))
        count = min(wanted, int(np.isfinite(around).sum()))
        chosen = np.argpartition(around, count - 1)[:count]
        chosen = chosen[own[chosen] <= _OUTLIER * np.median(own[chosen])]
        each = self.power[chosen]
        power = each.mean(axis=0).astype(np.float64)
        structure = float(np.median(own[usable]) / _energies(power))
        return Measurement(
            power=power.reshape(SIDE, SIDE),
            unit=self.unit,
            spread=_spread(each),
            high_spread=_spread(each[:, _HIGHER]),
            headroom=float(np.median(self._headroom(self.means[chosen]))),
            structure=structure,
            compressed=self.compressed,
            count=own.size / self.reach**2,
            mean=self.middle + self.unit * float(self.means[chosen].mean()),
        )

    def _mean_of_neighbours(self, values: Floats) -> Floats:
        """Return the mean of the tiles at a distance to four sides, reflected at the border.

        Along short axes nothing is reflected. It is infinite where none of them is valid.
        """
        grid = np.zeros(self.places.shape, values.dtype)
        grid[self.places] = values
        total = _sum_of_neighbours(grid, self.reach)[self.places]
        if self.places.all() and not any(_are_short(self.places.shape, self.reach)):
            return np.asarray(total / 4)
        count = _sum_of_neighbours(self.places.astype(np.uint8), self.reach)[self.places]
        return np.where(count > 0, total / np.maximum(count, 1).astype(values.dtype), np.inf)


@dataclass(frozen=True, eq=False)
class Glimpse:
    """The pixels of a plane that are looked at: tiles on a grid, and blocks of compression.

    Attributes
    ----------
    tiles : ndarray
        Grey values, (tile, sample, 64).
    places : array of bool
        Where on the grid the tiles are, in order; others have invalid pixels.
    reach : int
        Number of tiles from one to the next that does not overlap with it.
    blocks : tuple of ndarray
        Squares that would be blocks of a JPEG file, and squares between them, like ``tiles``.
    spoiled : array of bool, optional
        Tiles in which a sample is clipped, if they hold a sum of samples.
    """

    tiles: NDArray[Any]
    places: Mask
    reach: int
    blocks: tuple[NDArray[Any], NDArray[Any]]
    spoiled: Mask | None = None

    def mapped(self, function: Callable[[NDArray[Any]], NDArray[Any]]) -> Glimpse:
        """Return the same pixels with other grey values, each computed from its own."""
        on, off = self.blocks
        return replace(self, tiles=function(self.tiles), blocks=(function(on), function(off)))

    def mixed(self, weights: NDArray[np.float64]) -> Glimpse:
        """Return one sample, the weighted sum of all samples.

        Tiles in which a sample is clipped are marked: the sum has less noise there, but no grey
        value of the sum shows that it is clipped.
        """
        mixed = self.mapped(lambda values: _mixed(values, weights)[:, None])
        parts = np.flatnonzero(weights)
        if len(parts) == 1:
            return mixed
        return replace(mixed, spoiled=np.any([_clipped(self.tiles[:, n]) for n in parts], axis=0))

    def measured(self) -> Tiles | None:
        """Return the tiles of the first sample, or None if they are constant."""
        values = self.tiles[:, 0].astype(np.float64)
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
        unit = typical * span
        on, off = 1.0, 1.0
        if all(len(blocks) for blocks in self.blocks):
            on, off = (_sparsity(blocks[:, 0], middle, unit) for blocks in self.blocks)
        return Tiles(
            power=power,
            means=means,
            places=self.places,
            unit=unit,
            clipped=(clipped[0], clipped[1]),
            reach=self.reach,
            # Compression rounds many coefficients to zero.
            compressed=math.log(on / off) > _SPARSER,
            middle=middle,
            spoiled=self.spoiled,
        )


def tiles_of(image: Array, valid: Mask | None = None) -> Tiles | None:
    """Return the tiles of a grey image, or None if it is constant or smaller than a tile."""
    seen = glimpse_of(image, valid)
    return None if seen is None else seen.measured()


def glimpse_of(plane: Array, valid: Mask | None = None) -> Glimpse | None:
    """Return the pixels of a plane that are looked at, or None if no tile is valid.

    Of a plane on a GPU these pixels alone are copied to the host; they are some 12,000 tiles at
    most, whatever the size of the plane.

    Parameters
    ----------
    plane : array
        Grey values, (row, column) or (row, column, sample).
    valid : array of bool, optional
        True at valid pixels.
    """
    if min(plane.shape[:2]) < SIDE:
        return None
    squares = tuple(length - SIDE + 1 for length in plane.shape[:2])
    whole = None if valid is None else whole_squares(valid, SIDE)
    count = math.prod(squares) if whole is None else int(whole.sum())
    if count == 0:
        return None
    step = math.ceil(math.sqrt(count / _MOST_TILES)) | 1
    if whole is None:
        places = np.ones([len(range(0, length, step)) for length in squares], np.bool_)
    else:
        step = max(step, math.ceil(math.sqrt(math.prod(squares) / _MOST_PLACES)) | 1)
        while step > 1 and whole[::step, ::step].sum() < min(count, _FEWEST_TILES):
            step -= 2
        places = _on_host(whole[::step, ::step])
    return Glimpse(
        tiles=_chosen(plane, places, step),
        places=places,
        reach=-(-SIDE // step),
        blocks=(_blocks(plane, whole, 0), _blocks(plane, whole, SIDE // 2)),
    )


def _on_host(places: Array) -> Mask:
    """Return on the host which places are chosen; the numbers of these are copied."""
    if is_numpy(places):
        return places  # type: ignore[no-any-return]
    found = np.zeros(tuple(places.shape), np.bool_)
    found[tuple(on_host(numbers) for numbers in namespace(places).nonzero(places))] = True
    return found


def whole_squares(valid: Array, side: int) -> Array:
    """Return which squares have valid pixels only, by their first row and column."""
    rows, columns = (max(length - side + 1, 0) for length in valid.shape)
    xp = namespace(valid)
    high = xp.asarray(valid[:rows], copy=True)
    for k in range(1, side):
        high &= valid[k : k + rows]
    whole = xp.asarray(high[:, :columns], copy=True)
    for k in range(1, side):
        whole &= high[:, k : k + columns]
    return whole


def _chosen(plane: Array, places: Mask, step: int, first: int = 0) -> NDArray[Any]:
    """Return squares at places on a grid as rows, (square, sample, 64), on the host."""
    rows, columns = (first + step * numbers for numbers in np.nonzero(places))
    within = np.arange(SIDE)
    at = (rows[:, None, None] + within[:, None], columns[:, None, None] + within)
    found = plane[tuple(made_like(numbers, plane) for numbers in at)]
    samples = 1 if plane.ndim == 2 else plane.shape[-1]
    pixels = on_host(found).reshape(len(rows), SIDE**2, samples)
    return np.ascontiguousarray(np.moveaxis(pixels, -1, 1))


def _blocks(plane: Array, whole: Mask | None, first: int) -> NDArray[Any]:
    """Return blocks of 8 x 8 pixels that begin in some row and column; none if they are few.

    In a JPEG file that was not cropped the blocks begin in the first row and column.
    """
    size = [len(range(first, length - SIDE + 1, SIDE)) for length in plane.shape[:2]]
    places = None if whole is None else whole[first::SIDE, first::SIDE]
    count = math.prod(size) if places is None else int(places.sum())
    if count < _FEWEST_BLOCKS:
        return _chosen(plane, np.zeros((0, 0), np.bool_), SIDE)
    step = max(1, math.isqrt(count // _MOST_BLOCKS))
    if places is None:
        chosen = np.ones([-(-length // step) for length in size], np.bool_)
    else:
        chosen = _on_host(places[::step, ::step])
    return _chosen(plane, chosen, step * SIDE, first)


def _mixed(values: NDArray[Any], weights: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return the sum over the second axis with weights."""
    total = np.zeros((len(values), *values.shape[2:]))
    for number in np.flatnonzero(weights):
        total += weights[number] * values[:, number].astype(np.float64)
    return total


def _clipped(tiles: NDArray[Any]) -> Mask:
    """Return in which tiles of a sample pixels are clipped to its smallest or largest value."""
    found = np.zeros(len(tiles), np.bool_)
    for extreme in (tiles.min(), tiles.max()):
        there = tiles == extreme
        if there.mean() > _CLIPPED_PART:
            found |= there.mean(axis=1) > _CLIPPED_PIXELS
    return found


def _sparsity(blocks: NDArray[Any], middle: float, unit: float) -> float:
    """Return the root mean square of high cosine coefficients over their mean absolute value."""
    values = (blocks.astype(np.float64) - middle) / unit
    high = np.abs((values.astype(np.float32) @ _cosines())[:, _HIGH])
    means = high.mean(axis=0)
    present = means > 0
    if not present.any():
        return 1.0
    return float(np.mean(np.sqrt(np.mean(high * high, axis=0))[present] / means[present]))


def _steepness(found: Measurement) -> float:
    """Return the rise of the spectrum to the lowest frequencies, as a logarithm."""
    power = found.power.ravel()
    next_, lowest = (power[band].mean() for band in (_HIGH & ~_HIGHER, (_TOTAL > 0) & ~_HIGH))
    return math.log(lowest / next_) / 2 if lowest > 0 and next_ > 0 else 0.0


@cache
def clipped_normal() -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Return the ratio of mean to deviation of a clipped normal distribution, and the deviation.

    Noise of level one is added to signals from -2 to 4 and clipped at zero. The deviation grows
    with the ratio.
    """
    from scipy.special import ndtr

    signal = np.linspace(-2, 4, 121)
    density = np.exp(-(signal**2) / 2) / math.sqrt(2 * math.pi)
    mean = signal * ndtr(signal) + density
    deviation = np.sqrt((signal**2 + 1) * ndtr(signal) + signal * density - mean**2)
    return mean / deviation, deviation


def _spread(power: Floats) -> float:
    """Return the deviation of the energies of tiles over that of Gaussian noise.

    Each of the squared coefficients of noise deviates by the square root of two times its mean.
    """
    energies, means = power.sum(axis=1, dtype=np.float64), power.mean(axis=0, dtype=np.float64)
    expected = math.sqrt(2 * np.sum(means**2))
    return float(energies.std() / expected) if expected > 0 else 1.0


def _energies(power: Floats) -> Any:
    """Return the mean over all coefficients but the first."""
    return power.sum(axis=-1) / (SIDE**2 - 1)


def _are_short(shape: tuple[int, ...], reach: int) -> list[bool]:
    """Return along which axes a reflected neighbour may be the tile itself, or overlap with it."""
    return [length <= 2 * reach for length in shape]


def _sum_of_neighbours(values: NDArray[Any], reach: int) -> NDArray[Any]:
    """Return the sum of the four tiles at a distance, reflected at the border.

    Along short axes nothing is reflected: tiles beyond the border are zero.
    """
    wide = values
    for axis, is_short in enumerate(_are_short(values.shape, reach)):
        around = [(reach, reach) if axis == other else (0, 0) for other in range(values.ndim)]
        wide = np.pad(wide, around, mode="constant" if is_short else "reflect")
    inner = slice(reach, -reach)
    total = wide[: -2 * reach, inner] + wide[2 * reach :, inner]
    return np.asarray(total + wide[inner, : -2 * reach] + wide[inner, 2 * reach :])


@cache
def _cosines() -> NDArray[np.float32]:
    """Return the cosine transform of an 8 x 8 tile as a matrix for rows of 64 values."""
    k = np.arange(SIDE)
    matrix = np.sqrt(2 / SIDE) * np.cos(np.pi * (k + 0.5) * k[:, None] / SIDE)
    matrix[0] /= np.sqrt(2)
    return np.asarray(np.kron(matrix, matrix).T, np.float32).copy()
