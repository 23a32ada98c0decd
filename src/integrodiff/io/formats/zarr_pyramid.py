"""The smaller resolutions of an OME-Zarr image, computed anew from the full one.

Blocks of whole chunks are read and written, so memory does not grow with the image.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import ceil
from typing import Any

import numpy as np
from numpy.typing import NDArray

from integrodiff.io.formats.pyramid import Edges, as_dtype, local_mean, nearest
from integrodiff.io.formats.zarr_slabs import blocks


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
    for block in blocks(target.shape, level_block_size(source, target, edges)):
        write_level_block(source, target, edges, block, by_mean=by_mean)


def write_level_block(
    source: Any,
    target: Any,
    edges: Sequence[Edges],
    block: tuple[slice, ...],
    *,
    by_mean: bool,
) -> None:
    """Fill one block of :func:`level_block_size`; different ones may be filled at the same time."""
    covered, inside = [], []
    for part, axis_edges in zip(block, edges, strict=True):
        own = axis_edges[part.start : part.stop + 1]
        begin, end = int(own[0]), ceil(own[-1])
        covered.append(slice(begin, end))
        inside.append(own - begin)
    target[block] = reduced(
        np.asarray(source[tuple(covered)]), inside, target.dtype, by_mean=by_mean
    )


_BAND = 2**18
"""Pixels of the larger level that are averaged at a time, so that they stay in a cache."""


def reduced(
    values: NDArray[Any], edges: Sequence[Edges], dtype: np.dtype[Any], *, by_mean: bool
) -> NDArray[Any]:
    """Return an array reduced to intervals of all axes, computed in bands of the first one."""
    result = np.empty([len(own) - 1 for own in edges], dtype)
    first, *others = edges
    rows = max(1, _BAND * len(result) // max(1, values.size))
    method = local_mean if by_mean else nearest
    for start in range(0, len(result), rows):
        own = first[start : start + rows + 1]
        begin = int(own[0])
        band = values[begin : ceil(own[-1])]
        for axis, of_axis in enumerate((own - begin, *others)):
            if len(of_axis) - 1 < band.shape[axis]:
                band = method(band, axis, of_axis)
        result[start : start + rows] = as_dtype(band, dtype)
    return result


def level_block_size(source: Any, target: Any, edges: Sequence[Edges]) -> tuple[int, ...]:
    """Return the size of blocks of whole chunks of the target, from whole chunks if possible."""
    lengths = []
    chunks = (array.shards or array.chunks for array in (source, target))
    for read, written, axis_edges in zip(*chunks, edges, strict=True):
        factor = axis_edges[1] - axis_edges[0]
        lengths.append(written * ceil(read / (factor * written)))
    return tuple(lengths)
