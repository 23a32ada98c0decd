"""Smaller versions of an image, as in the pyramids of TIFF and OME-Zarr.

Each level is the local mean of the one before; along an axis, a pixel covers an interval of it.
"""

from __future__ import annotations

from collections.abc import Iterator
from math import ceil, isclose
from typing import Any

import numpy as np
from numpy.typing import NDArray

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
    count, width = len(edges) - 1, int(edges[1] - edges[0])
    if np.array_equal(edges, np.arange(count + 1) * width):
        # Of whole pixels, as in most images: the same sums without a copy of the pixels.
        before = (slice(None),) * axis
        parts = (values[(*before, slice(tap, count * width, width))] for tap in range(width))
        return np.asarray(sum(np.float64(1 / width) * part for part in parts), np.float64)
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


def as_dtype(values: NDArray[Any], dtype: np.dtype[Any]) -> NDArray[Any]:
    """Return values rounded to the nearest of a dtype that holds them all."""
    if dtype.kind == "f" or values.dtype == dtype:
        return values.astype(dtype, copy=False)
    limits = np.iinfo(dtype)
    largest = float(limits.max)
    if int(largest) > limits.max:  # no floating-point number is as large as the largest integer
        largest = float(np.nextafter(largest, 0))
    return np.asarray(np.clip(np.rint(values), float(limits.min), largest).astype(dtype))


_BAND = 2**20
"""Values of the larger level that are averaged at a time."""


def smaller(
    values: NDArray[Any], size: tuple[int, int], weights: NDArray[np.bool_] | None = None
) -> NDArray[Any]:
    """Return a plane reduced to a size by local means.

    Parameters
    ----------
    values : ndarray
        A plane, ``(Y, X)`` or ``(Y, X, S)``.
    size : (int, int)
        Height and width, none of them larger than that of the plane.
    weights : array of bool, optional
        False at pixels ``(Y, X)`` that do not count. Where none counts, the result has the pixel
        in the middle as it is.
    """
    rows, columns = (interval_edges(n, m, None) for n, m in zip(values.shape, size, strict=False))
    result = np.empty((*size, *values.shape[2:]), values.dtype)
    for part in _bands(size[0], values[0].size * (rows[1] - rows[0])):
        own = rows[part.start : part.stop + 1]
        begin, end = int(own[0]), ceil(own[-1])
        band = values[begin:end]
        counted = None if weights is None else weights[begin:end]
        if counted is None or counted.all():
            result[part] = as_dtype(_mean(band, own - begin, columns), values.dtype)
        else:
            result[part] = _mean_of_some(band, counted, own - begin, columns)
    return result


def _bands(height: int, row: float) -> Iterator[slice]:
    """Give slices of rows; ``row`` is the number of values that a row is computed from."""
    step = max(1, int(_BAND / row))
    for first in range(0, height, step):
        yield slice(first, min(first + step, height))


def _mean(band: NDArray[Any], rows: Edges, columns: Edges) -> NDArray[np.float64]:
    return local_mean(local_mean(band, 0, rows), 1, columns)


def _mean_of_some(
    band: NDArray[Any], counted: NDArray[np.bool_], rows: Edges, columns: Edges
) -> NDArray[Any]:
    """Return the means over the pixels that count, in the dtype of the band."""
    which = counted if band.ndim == 2 else counted[..., None]
    share = _mean(which, rows, columns)
    total = _mean(np.where(which, band, 0), rows, columns)
    some = np.broadcast_to(share > 0, total.shape)
    mean = np.divide(total, share, out=np.zeros_like(total), where=some)
    rest = nearest(nearest(band, 0, rows), 1, columns)
    return np.where(some, as_dtype(mean, band.dtype), rest)
