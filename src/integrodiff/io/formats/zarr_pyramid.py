"""The smaller resolutions of an OME-Zarr image, computed anew from the full one.

Each level is the local mean of the one before; along an axis, a pixel covers an interval of it.
Blocks of whole chunks are read and written, so memory does not grow with the image.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from math import ceil, isclose
from typing import Any

import numpy as np
from numpy.typing import NDArray

from integrodiff.io.formats.zarr_slabs import blocks

Edges = NDArray[np.float64]
"""Where the intervals begin that pixels of a level cover in the one before, and the last end."""


def interval_edges(larger: int, smaller: int, factor: float | None) -> Edges:
    """Return the intervals that pixels cover along one axis.

    Parameters
    ----------
    larger, smaller : int
        Lengths of the axis in the level before and in this one; larger is at least smaller.
    factor : float, optional
        Ratio of the pixel sizes, if the metadata declares it. Where it is a whole number that
        agrees with the lengths, intervals have this length, and otherwise all the same.
    """
    step = round(larger / smaller if factor is None else factor)
    whole = factor is None or isclose(factor, step, rel_tol=1e-6)
    if whole and step > 0 and smaller in (larger // step, ceil(larger / step)):
        return np.asarray(np.minimum(np.arange(smaller + 1) * float(step), larger))
    return np.linspace(0, larger, smaller + 1)


def local_mean(values: NDArray[Any], axis: int, edges: Edges) -> NDArray[np.float64]:
    """Return the means over intervals of an axis, weighted where these cut through pixels."""
    first = np.floor(edges[:-1]).astype(int)
    last = np.ceil(edges[1:]).astype(int) - 1
    shape = [-1 if number == axis else 1 for number in range(values.ndim)]
    total: NDArray[np.float64] | float = 0.0
    for tap in range(int((last - first).max()) + 1):
        at = np.minimum(first + tap, last)
        covered = np.minimum(at + 1, edges[1:]) - np.maximum(at, edges[:-1])
        weight = np.where(first + tap <= last, covered, 0.0) / np.diff(edges)
        total = total + weight.reshape(shape) * np.take(values, at, axis).astype(np.float64)
    return np.asarray(total, np.float64)


def nearest(values: NDArray[Any], axis: int, edges: Edges) -> NDArray[Any]:
    """Return the pixel in the middle of each interval of an axis."""
    at = np.floor((edges[:-1] + edges[1:] - 1) / 2).astype(int)
    return np.asarray(np.take(values, np.maximum(at, np.floor(edges[:-1]).astype(int)), axis))


def write_level(source: Any, target: Any, edges: Sequence[Edges], *, by_mean: bool) -> None:
    """Fill an array with a smaller version of another one.

    Parameters
    ----------
    source, target : zarr.Array
        The level before, which is complete, and the one to fill.
    edges : sequence of Edges
        Of each axis.
    by_mean : bool
        Whether pixels are local means, or the nearest ones.
    """
    for block in _blocks(source, target, edges):
        covered, inside = [], []
        for part, axis_edges in zip(block, edges, strict=True):
            own = axis_edges[part.start : part.stop + 1]
            begin, end = int(own[0]), ceil(own[-1])
            covered.append(slice(begin, end))
            inside.append(own - begin)
        values = np.asarray(source[tuple(covered)])
        for axis, own in enumerate(inside):
            if len(own) - 1 < values.shape[axis]:
                values = (local_mean if by_mean else nearest)(values, axis, own)
        target[block] = as_dtype(values, target.dtype)


def as_dtype(values: NDArray[Any], dtype: np.dtype[Any]) -> NDArray[Any]:
    """Return values rounded to the nearest of a dtype that holds them all."""
    if dtype.kind == "f" or values.dtype == dtype:
        return values.astype(dtype, copy=False)
    limits = np.iinfo(dtype)
    largest = float(limits.max)
    if int(largest) > limits.max:  # no floating-point number is as large as the largest integer
        largest = float(np.nextafter(largest, 0))
    return np.asarray(np.clip(np.rint(values), float(limits.min), largest).astype(dtype))


def _blocks(source: Any, target: Any, edges: Sequence[Edges]) -> Iterator[tuple[slice, ...]]:
    """Give blocks of whole chunks of the target whose sources are whole chunks where possible."""
    lengths = []
    chunks = (array.shards or array.chunks for array in (source, target))
    for read, written, axis_edges in zip(*chunks, edges, strict=True):
        factor = axis_edges[1] - axis_edges[0]
        lengths.append(written * ceil(read / (factor * written)))
    return blocks(target.shape, lengths)
