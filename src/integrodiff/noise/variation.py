r"""Find out whether the noise level varies over an image, and estimate a map of it.

The image is divided into a coarse grid of cells. Around each, the level is that of the high
frequencies in the flattest tiles, found as in :mod:`integrodiff.noise.spectrum`.

More texture looks like more noise. What tells them apart is that noise is the same in all flattest
tiles of a cell, as much as its randomness allows, and has no more power at lower frequencies than
at the highest. Only cells with both properties are reliable. The noise varies if the levels of
reliable cells, but for the lowest and the highest tenth, spread by more than a factor of 1.52; the
measurement alone spreads them by 1.1. In large cells noise that varies within short distances is
not reliable. So there are small cells as well, of which fewer need to be reliable, with a factor of
1.82. All numbers were chosen on training images, of which docs/noise.md counts the false alarms.

The map has small cells, and levels of reliable ones if these are not too few. A median over
neighbouring cells removes single ones that are wrong, and fills the gaps; between cells the
logarithms of levels are interpolated. The flattest tiles of a cell tend to be where it has least
noise, so levels are measured a second time, after a division by the first map. The noise is taken
for white.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

from integrodiff.namespaces import Array, made_like, namespace, root_mean_square, samples_of
from integrodiff.noise.spectrum import HIGH, LOWER, SIDE, TOP, Tiles, tiles_of
from integrodiff.validity import Mask

Floats: TypeAlias = NDArray[np.float64]


class _Grid(NamedTuple):
    """How an image is divided into cells.

    Attributes
    ----------
    side : int
        Smallest side of a cell in pixels.
    most : int
        Largest number of cells along an axis.
    reach : float
        Distance of the tiles of a cell from its centre, in cells.
    part : float
        Part of its tiles, those with the quietest neighbours, from which its level is measured.
    fewest, least : int, float
        Number of reliable cells, and fraction of all cells, required to decide that noise varies.
    varies : float
        Logarithm of the ratio of levels above which noise counts as varying.
    """

    side: int
    most: int
    reach: float
    part: float
    fewest: int
    least: float
    varies: float

    def count(self, length: int) -> int:
        """Return the number of cells along an axis of this many pixels."""
        return min(length // self.side, self.most)


_COARSE = _Grid(40, 8, 0.75, 0.2, fewest=10, least=0.3, varies=0.42)
_FINE = _Grid(24, 16, 0.6, 0.5, fewest=20, least=0.15, varies=0.6)

_FEWEST_CHOSEN = 8
_OUTLIER = 3.0
_ROUNDS = 2
SMALLEST_IMAGE = 2 * _COARSE.side
"""Rows and columns from which on a map is estimated."""

# Largest rise of the spectrum of a reliable cell, as the logarithm of a level: from the highest
# frequencies to those below, and further down.
_MOST_RISE, _MOST_LOWER_RISE = 0.12, 0.17
# Largest deviation of the energies of its tiles, over that of Gaussian noise.
_MOST_SPREAD = 1.4
# Levels are compared between these quantiles.
_LOW, _HIGH = 0.1, 0.9
# A map has levels of reliable cells alone if these are so many of all.
_ENOUGH = 0.15
# Samples share a map if their levels differ by no more than this factor.
_ALIKE = 1.3


@dataclass(frozen=True, eq=False)
class Cells:
    """Noise levels on a grid of cells.

    Attributes
    ----------
    levels : ndarray
        Level of each cell, (row, column); NaN where no tile shows the noise.
    reliable : array of bool
        Cells whose tiles have the properties of white noise.
    """

    levels: Floats
    reliable: Mask

    @property
    def known(self) -> Floats:
        """Level of each cell, from itself or from its neighbours."""
        enough = self.reliable.sum() >= _ENOUGH * self.reliable.size
        return _smoothed(np.where(self.reliable, self.levels, np.nan) if enough else self.levels)

    def variation(self, grid: _Grid) -> tuple[float, float] | None:
        """Return a low and a high level, or None if noise may be the same everywhere."""
        if self.reliable.sum() < max(grid.fewest, grid.least * self.reliable.size):
            return None
        low, high = np.quantile(self.levels[self.reliable], (_LOW, _HIGH))
        return (float(low), float(high)) if high > math.exp(grid.varies) * low else None


class LocalLevels(NamedTuple):
    """Noise levels of large and of small cells of an image."""

    large: Cells
    small: Cells

    @property
    def variation(self) -> tuple[float, float] | None:
        """A low and a high level if the noise clearly varies over the image, otherwise None."""
        return self.large.variation(_COARSE) or self.small.variation(_FINE)


def estimated_map(planes: Sequence[Array], masks: Sequence[Mask | None]) -> Array:
    """Return the noise level at each pixel, the median over planes.

    Parameters
    ----------
    planes : sequence of array
        Grey values, (row, column) or (row, column, sample). Samples share their level, the root
        mean square over them.
    masks : sequence of array of bool or None
        Valid pixels of each plane.

    Raises
    ------
    ValueError
        If the planes are too small, or none has enough valid pixels.
    """
    shape = planes[0].shape[:2]
    if min(shape) < SMALLEST_IMAGE:
        raise ValueError(
            f"an image of {shape[1]} x {shape[0]} pixels is too small to estimate a map of its "
            f"noise; at least {SMALLEST_IMAGE} x {SMALLEST_IMAGE} are needed"
        )
    rows = []
    for plane, mask in zip(planes, masks, strict=True):
        rows.append([tiles_of(sample, mask) for sample in samples_of(plane)])
    found = map_of_tiles(rows, tuple(shape), planes[0])
    if found is None:
        raise ValueError("no part of the image shows noise whose level could be mapped; give sigma")
    return found


def map_of_tiles(
    planes: Sequence[Sequence[Tiles | None]], shape: tuple[int, ...], like: Array | None = None
) -> Array | None:
    """Return the map of planes from the tiles of their samples; None if none shows noise.

    The map is allocated in the library and on the device of ``like``.
    """
    grids = []
    for samples in planes:
        found = [grid for tiles in samples if (grid := _map_cells(tiles, shape)) is not None]
        if found:
            grids.append(root_mean_square(np.array(found), axis=0))
    if not grids:
        return None
    rows, columns = (np.arange(length, dtype=np.float64) + 0.5 for length in shape)
    return _interpolated(np.median(grids, axis=0), shape, rows, columns, like)


def _map_cells(tiles: Tiles | None, shape: tuple[int, ...]) -> Floats | None:
    """Return the levels of the cells of a map, or None if there is no noise."""
    if tiles is None:
        return None
    cells = _cells_of(tiles, shape, _FINE)
    if cells is None:
        return None
    levels = cells.known
    for _ in range(_ROUNDS - 1):
        here = _interpolated(levels, shape, *_centres(tiles.places, shape))[tiles.places]
        typical = float(np.exp(np.mean(np.log(here))))
        relative = np.square(here / typical)[:, None].astype(tiles.power.dtype)
        cells = _cells_of(replace(tiles, power=tiles.power / relative), shape, _FINE)
        if cells is None:
            break
        levels = levels * (cells.known / typical)
    return levels


def local_levels(tiles: Tiles | None, shape: tuple[int, ...]) -> LocalLevels | None:
    """Return the noise levels of the cells of a grey image.

    It is None for an image that is too small, or has no noise.
    """
    if tiles is None or min(shape) < SMALLEST_IMAGE:
        return None
    large, small = (_cells_of(tiles, shape, grid) for grid in (_COARSE, _FINE))
    return None if large is None or small is None else LocalLevels(large, small)


def typical_local_levels(found: Sequence[LocalLevels | None]) -> LocalLevels | None:
    """Return the median over planes; None if there is noise in none of them."""
    planes = [levels for levels in found if levels is not None]
    if not planes:
        return None
    return LocalLevels(*(_typical(cells) for cells in zip(*planes, strict=True)))


def joined_local_levels(samples: Sequence[LocalLevels | None]) -> LocalLevels | None:
    """Return the root mean square over the samples of a plane, without those that have no noise."""
    found = [levels for levels in samples if levels is not None]
    if not found:
        return None
    return LocalLevels(*(_joined(cells) for cells in zip(*found, strict=True)))


def are_alike(samples: Sequence[LocalLevels]) -> bool:
    """Whether the levels of samples are about the same, so that they can share a map."""
    levels = [np.nanmedian(found.large.levels) for found in samples]
    return bool(max(levels) <= _ALIKE * min(levels))


def _typical(planes: Sequence[Cells]) -> Cells:
    """Return the median over planes.

    A cell is reliable if it is so in half of the planes, and then their median is taken.
    """
    levels = np.stack([cells.levels for cells in planes])
    reliable = np.stack([cells.reliable for cells in planes])
    often = reliable.mean(axis=0) >= 0.5
    return Cells(_median(np.where(reliable | ~often, levels, np.nan)), often)


def _joined(samples: Sequence[Cells]) -> Cells:
    """Return the root mean square over samples."""
    levels = root_mean_square(np.array([cells.levels for cells in samples]), axis=0)
    return Cells(levels, np.all([cells.reliable for cells in samples], axis=0))


def _cells_of(tiles: Tiles, shape: tuple[int, ...], grid: _Grid) -> Cells | None:
    around = tiles.usable_neighbours()
    sizes = (grid.count(shape[0]), grid.count(shape[1]))
    members = _members(tiles.places, shape, sizes, grid.reach)
    # A last tile stands for places where there is none.
    order = np.append(around, np.inf)[members]
    finite = np.isfinite(order)
    count = finite.sum(axis=1)
    wanted = np.maximum(_FEWEST_CHOSEN, (grid.part * count).astype(int))
    ranks = np.argsort(order, axis=1, kind="stable")[:, : wanted.max()]
    chosen = np.take_along_axis(members, ranks, axis=1)
    counted = np.take_along_axis(finite, ranks, axis=1)
    counted &= np.arange(chosen.shape[1]) < wanted[:, None]
    counted &= (count >= 2 * _FEWEST_CHOSEN)[:, None]
    chosen[~counted] = 0
    power = tiles.power[chosen]
    own = power.sum(axis=2)
    # The median is that of the lower half of an even number, without a cell's unused places.
    middle = np.sort(np.where(counted, own, np.inf), axis=1)
    at = np.maximum(counted.sum(axis=1) - 1, 0) // 2
    typical = np.take_along_axis(middle, at[:, None], axis=1)
    counted &= own <= _OUTLIER * typical
    return _measured_cells(power, counted, sizes, tiles.unit)


def _measured_cells(
    power: NDArray[Any], counted: NDArray[np.bool_], sizes: tuple[int, int], unit: float
) -> Cells | None:
    """Return levels from the spectra of tiles, (cell, tile, 64), of which some are counted."""
    number = np.maximum(counted.sum(axis=1), 1)
    spectrum = np.einsum("ct,ctk->ck", counted.astype(power.dtype), power).astype(np.float64)
    spectrum /= number[:, None]
    energies = np.where(counted, power[..., HIGH].sum(axis=2, dtype=np.float64), 0.0)
    mean = energies.sum(axis=1) / number
    deviation = np.sqrt((counted * (energies - mean[:, None]) ** 2).sum(axis=1) / number)
    expected = np.sqrt(2 * (spectrum[:, HIGH] ** 2).sum(axis=1))
    top, middle, lower = (spectrum[:, band].mean(axis=1) for band in (TOP, HIGH & ~TOP, LOWER))
    reliable = counted.any(axis=1) & (top > 0)
    reliable &= middle <= math.exp(2 * _MOST_RISE) * top
    reliable &= lower <= math.exp(2 * _MOST_LOWER_RISE) * middle
    reliable &= deviation <= _MOST_SPREAD * expected
    levels = unit * np.sqrt(spectrum[:, HIGH].mean(axis=1))
    levels = np.where(levels > 0, levels, np.nan)
    if not np.isfinite(levels).any():
        return None
    return Cells(levels.reshape(sizes), reliable.reshape(sizes))


def _members(
    places: Mask, shape: tuple[int, ...], sizes: tuple[int, int], reach: float
) -> NDArray[np.intp]:
    """Return the numbers of the tiles near each cell, (cell, tile).

    Rows are filled up with the number after that of the last tile.
    """
    total = int(places.sum())
    numbers = np.full(np.add(places.shape, 1), total)
    numbers[:-1, :-1][places] = np.arange(total)
    near = []
    for centres, length, cells in zip(_centres(places, shape), shape, sizes, strict=True):
        at = centres / length * cells
        inside = [np.flatnonzero(np.abs(at - cell - 0.5) <= reach) for cell in range(cells)]
        filled = np.full((cells, max(len(found) for found in inside)), len(centres))
        for row, found in zip(filled, inside, strict=True):
            row[: len(found)] = found
        near.append(filled)
    rows, columns = near
    found = numbers[rows[:, None, :, None], columns[None, :, None, :]]
    return np.asarray(found.reshape(sizes[0] * sizes[1], -1))


def _centres(places: Mask, shape: tuple[int, ...]) -> tuple[Floats, Floats]:
    """Return the rows and the columns of the centres of tiles on their grid."""
    rows, columns = (
        np.arange(count) * ((length - SIDE) / max(count - 1, 1)) + SIDE / 2
        for count, length in zip(places.shape, shape, strict=True)
    )
    return rows, columns


def _median(stack: Floats) -> Floats:
    """Return the median over the first axis, ignoring NaN; NaN where all values are."""
    seen = np.isfinite(stack).any(axis=0)
    median = np.full(stack.shape[1:], np.nan)
    median[seen] = np.nanmedian(stack[:, seen], axis=0)
    return median


def _smoothed(grid: Floats) -> Floats:
    """Return the median over each cell and its neighbours; cells without tiles do not count."""
    known = grid
    while True:
        wide = np.pad(known, 1, constant_values=np.nan)
        shifts = [
            wide[i : i + grid.shape[0], j : j + grid.shape[1]] for i in range(3) for j in range(3)
        ]
        median = _median(np.stack(shifts))
        if np.isfinite(median).all():
            return median
        known = np.where(np.isfinite(known), known, median)


def _interpolated(
    grid: Floats,
    shape: tuple[int, ...],
    rows: Floats,
    columns: Floats,
    like: Array | None = None,
) -> Array:
    """Return levels in these rows and columns, whose logarithms are linear between cells.

    They go on as they are from the centres of the outer cells to the border of the image.
    """
    like = grid if like is None else like
    logs = made_like(np.log(grid), like)
    xp = namespace(logs)
    for axis, places in enumerate((rows, columns)):
        count = grid.shape[axis]
        at = places / shape[axis] * count - 0.5
        low = np.clip(np.floor(at).astype(int), 0, max(count - 2, 0))
        high = np.minimum(low + 1, count - 1)
        part = made_like((at - low).reshape([-1 if a == axis else 1 for a in range(2)]), like)
        below, above = (xp.take(logs, made_like(n, like), axis=axis) for n in (low, high))
        logs = below * (1 - part) + above * part
    return xp.exp(logs)
