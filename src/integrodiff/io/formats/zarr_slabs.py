"""Planes of a Zarr array in slabs of whole chunks, so that chunks are read and written once."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import product
from math import prod
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

LARGEST_IN_MEMORY = 2**28
"""Bytes of a slab that is held in memory; a larger one goes to a scratch file."""


@dataclass(frozen=True)
class Slab:
    """Planes that follow each other, and whose chunks hold no others.

    Attributes
    ----------
    index : tuple of int or slice
        Their place along the first axes of the array.
    shape : tuple of int
        Shape of this part of the array, without the axes that the index fixes.
    plane_shape : tuple of int
        Shape of a plane.
    chunks : tuple of int
        Shape of a chunk, or shard, along the axes of this part.
    """

    index: tuple[int | slice, ...]
    shape: tuple[int, ...]
    plane_shape: tuple[int, ...]
    chunks: tuple[int, ...]

    @property
    def planes(self) -> int:
        """Number of planes."""
        return prod(self.shape[: len(self.shape) - len(self.plane_shape)])

    def buffer(self, dtype: np.dtype[Any], folder: Path | None = None) -> NDArray[Any]:
        """Return an array for the planes; a large one lies in a nameless file of a folder."""
        size = prod(self.shape) * dtype.itemsize
        if size <= LARGEST_IN_MEMORY:
            return np.empty(self.shape, dtype)
        with tempfile.TemporaryFile(dir=folder) as stream:
            if hasattr(os, "posix_fallocate"):
                # Without it, a disk that fills up later would end the process.
                os.posix_fallocate(stream.fileno(), 0, size)
            return np.memmap(stream, dtype, "w+", shape=self.shape)

    def read(self, array: Any) -> NDArray[Any]:
        """Return the planes, counted along the first axis."""
        if prod(self.shape) * array.dtype.itemsize <= LARGEST_IN_MEMORY:
            values = np.asarray(array[(*self.index, ...)])
        else:
            values = self.buffer(np.dtype(array.dtype))
            for inside, outside in self._parts():
                values[inside] = array[outside]
        return values.reshape(-1, *self.plane_shape)

    def write(self, array: Any, values: NDArray[Any]) -> None:
        """Write the planes, given in the shape of the slab."""
        if values.nbytes <= LARGEST_IN_MEMORY:
            array[(*self.index, ...)] = values
            return
        for inside, outside in self._parts():
            array[outside] = values[inside]

    def _parts(self) -> Iterator[tuple[tuple[slice, ...], tuple[int | slice, ...]]]:
        """Give parts of whole chunks, by their place in the slab and in the array."""
        fixed = tuple(place for place in self.index if isinstance(place, int))
        first = [place.start for place in self.index if isinstance(place, slice)]
        first += [0] * (len(self.shape) - len(first))
        for inside in blocks(self.shape, self.chunks):
            moved = (
                slice(part.start + shift, part.stop + shift)
                for part, shift in zip(inside, first, strict=True)
            )
            yield inside, (*fixed, *moved)


def slabs(array: Any, plane_axes: int) -> Iterator[Slab]:
    """Give all planes in their order, in slabs as small as this order and the chunks allow.

    Parameters
    ----------
    array : zarr.Array
        The array.
    plane_axes : int
        Number of its first axes, along which planes are counted.
    """
    grid, plane_shape = array.shape[:plane_axes], array.shape[plane_axes:]
    chunks = tuple(array.shards or array.chunks)
    depths = [min(depth, length) for depth, length in zip(chunks, grid, strict=False)]
    axis = next((number for number, depth in enumerate(depths) if depth > 1), plane_axes)
    for index in np.ndindex(*grid[:axis]):
        if axis == plane_axes:
            yield Slab(index, plane_shape, plane_shape, chunks[axis:])
            continue
        for first in range(0, grid[axis], depths[axis]):
            stop = min(first + depths[axis], grid[axis])
            shape = (stop - first, *array.shape[axis + 1 :])
            yield Slab((*index, slice(first, stop)), shape, plane_shape, chunks[axis:])


def blocks(shape: Sequence[int], steps: Sequence[int]) -> Iterator[tuple[slice, ...]]:
    """Give the blocks that an array is cut into by steps along its axes."""
    starts = (range(0, length, step) for length, step in zip(shape, steps, strict=True))
    for start in product(*starts):
        ends = (min(at + step, n) for at, step, n in zip(start, steps, shape, strict=True))
        yield tuple(map(slice, start, ends))
