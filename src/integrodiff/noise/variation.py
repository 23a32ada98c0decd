r"""Estimate a map of noise levels, for noise that varies smoothly over the image.

The image is divided into a coarse grid of cells. Around each, the level is that of the high
frequencies in the flattest tiles, found as in :mod:`integrodiff.noise.spectrum`. A median over
neighbouring cells removes what single textured cells add; between cells levels are interpolated.

The noise is taken for white. Where texture fills a part of the image, levels are too high there, so
a map is estimated only if it is asked for.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from integrodiff.noise.spectrum import SIDE, tiles_of
from integrodiff.validity import Mask

Floats: TypeAlias = NDArray[np.float64]

_CELL, _MOST_CELLS = 40, 8
"""Smallest side of a cell in pixels, and largest number of them along an axis."""

_REACH = 0.75
"""Distance of the tiles of a cell from its centre, in cells."""

_CHOSEN_PART, _FEWEST_CHOSEN = 0.2, 8
SMALLEST_IMAGE = 2 * _CELL
"""Rows and columns from which on a map is estimated."""


def estimated_map(
    planes: Sequence[NDArray[Any]], masks: Sequence[Mask | None]
) -> NDArray[np.float64]:
    """Return the noise level at each pixel, the median over planes.

    Parameters
    ----------
    planes : sequence of ndarray
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
    grids = []
    for plane, mask in zip(planes, masks, strict=True):
        samples = [plane] if plane.ndim == 2 else list(np.moveaxis(plane, -1, 0))
        found = [grid for sample in samples if (grid := _grid_of(sample, mask)) is not None]
        if found:
            grids.append(np.sqrt(np.mean(np.square(found), axis=0)))
    if not grids:
        raise ValueError("no part of the image shows noise whose level could be mapped; give sigma")
    return _enlarged(np.median(grids, axis=0), shape)


def _grid_of(image: NDArray[Any], mask: Mask | None) -> Floats | None:
    """Return the noise level of each cell of a grey image, or None if it has no noise."""
    tiles = tiles_of(image, mask)
    if tiles is None:
        return None
    energies, around, high = tiles.local()
    rows, columns = _centres(image.shape, tiles.places)
    sizes = [_cells(length) for length in image.shape]
    grid = np.full(sizes, np.nan)
    for cell in np.ndindex(*sizes):
        near = np.isfinite(around)
        for place, at, length, count in zip((rows, columns), cell, image.shape, sizes, strict=True):
            near &= np.abs(place / length * count - at - 0.5) <= _REACH
        members = np.flatnonzero(near)
        wanted = max(_FEWEST_CHOSEN, int(_CHOSEN_PART * len(members)))
        if len(members) < 2 * _FEWEST_CHOSEN:
            continue
        chosen = members[np.argsort(around[members], kind="stable")[:wanted]]
        own = energies[chosen]
        grid[cell] = math.sqrt(high[chosen[own <= 3 * np.median(own)]].mean())
    grid[grid == 0] = np.nan
    return _smoothed(grid) if np.isfinite(grid).any() else None


def _cells(length: int) -> int:
    return min(length // _CELL, _MOST_CELLS)


def _centres(shape: tuple[int, ...], places: Mask) -> tuple[Floats, Floats]:
    """Return row and column of the centre of each tile."""
    indices = np.nonzero(places)
    steps = [
        (length - SIDE) / max(count - 1, 1)
        for length, count in zip(shape, places.shape, strict=True)
    ]
    rows, columns = (index * step + SIDE / 2 for index, step in zip(indices, steps, strict=True))
    return rows, columns


def _smoothed(grid: Floats) -> Floats:
    """Return the median over each cell and its neighbours; cells without tiles do not count."""
    known = grid
    while True:
        wide = np.pad(known, 1, constant_values=np.nan)
        shifts = [
            wide[i : i + grid.shape[0], j : j + grid.shape[1]] for i in range(3) for j in range(3)
        ]
        stack = np.stack(shifts)
        seen = np.isfinite(stack).any(axis=0)
        median = np.full(grid.shape, np.nan)
        median[seen] = np.nanmedian(stack[:, seen], axis=0)
        if seen.all():
            return median
        known = np.where(np.isfinite(known), known, median)


def _enlarged(grid: Floats, shape: tuple[int, ...]) -> Floats:
    """Interpolate levels of cells linearly; beyond the centres of outer cells they are constant."""
    logs = np.log(grid)
    for axis, length in enumerate(shape):
        count = grid.shape[axis]
        places = (np.arange(length) + 0.5) / length * count - 0.5
        places = np.clip(places, 0, count - 1)
        low = np.minimum(places.astype(int), max(count - 2, 0))
        high = np.minimum(low + 1, count - 1)
        part = (places - low).reshape([-1 if a == axis else 1 for a in range(2)])
        logs = np.take(logs, low, axis) * (1 - part) + np.take(logs, high, axis) * part
    return np.asarray(np.exp(logs))
