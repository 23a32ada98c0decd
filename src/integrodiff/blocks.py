"""Volumes in blocks of slices, so that a limit of memory is kept.

A block is denoised together with slices on both of its sides, its halo, which are then dropped. A
step spreads what is at a slice over a few times the largest scale, with weights that fall as fast
as a Gaussian, so that what lies beyond the halo has hardly any effect. With :func:`halo` a result
differs from that of the whole volume by less than ``TOLERANCE`` grey levels on the scale [0, 255];
this was measured, and ``tests/unit/test_blocks.py`` checks it. Blocks begin at even slices, so that
the coarse grids of the compiled engine are the same as those of the whole.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from typing import NamedTuple

from integrodiff.stages import Evolution
from integrodiff.stages._arrays import plain

TOLERANCE = 0.05
"""Largest difference to the result of the whole volume, on the scale [0, 255]."""

_SCALES_OF_HALO = 4.5
_UNITS = {"": 1, "K": 10**3, "M": 10**6, "G": 10**9, "T": 10**12}


class Block(NamedTuple):
    """Slices from ``first`` to ``last``, and with the halo from ``low`` to ``high``."""

    first: int
    last: int
    low: int
    high: int


def memory_limit(value: object) -> int:
    """Return a limit in bytes from a number, or from a text such as ``"2G"`` or ``"500MB"``."""
    found: float = 0
    if isinstance(value, str):
        match = re.fullmatch(r"\s*([0-9]*\.?[0-9]+)\s*([KMGT]?)B?\s*", value, re.IGNORECASE)
        if match:
            found = float(match[1]) * _UNITS[match[2].upper()]
    elif isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value):
        found = value
    if found < 1:
        raise ValueError(
            f"max_memory must be a number of bytes, or a text such as '2G' or '500M', got {value!r}"
        )
    return int(found)


def halo(evolution: Evolution) -> int:
    """Return how many slices on each side a block needs: an even number."""
    distance = evolution.spacing[0]
    largest = max(plain(scale) for scale in evolution.scales)
    needed = max(_SCALES_OF_HALO * largest / distance, 2 * evolution.steps)
    return 2 * math.ceil(needed / 2)


def blocks(slices: int, halo: int, bytes_of: Callable[[int], int], limit: int) -> list[Block]:
    """Return the fewest blocks of about the same size that keep a limit of memory.

    Parameters
    ----------
    slices : int
        Number of slices of the volume.
    halo : int
        See :func:`halo`.
    bytes_of : callable
        Memory that some number of slices takes.
    limit : int
        Limit in bytes.

    Raises
    ------
    ValueError
        If the smallest block needs more.
    """
    if bytes_of(slices) <= limit:
        return [Block(0, slices, 0, slices)]
    least = min(2 * halo + 2, slices)
    if bytes_of(least) > limit:
        raise ValueError(
            f"max_memory is {_in_words(limit)}, and the smallest blocks of this volume, of {least} "
            f"slices, take {_in_words(bytes_of(least))}; allow more"
        )
    fits, too_many = least, slices
    while too_many - fits > 1:
        middle = (fits + too_many) // 2
        if bytes_of(middle) <= limit:
            fits = middle
        else:
            too_many = middle
    depth = 2 * ((fits - 2 * halo) // 2)
    count = math.ceil(slices / depth)
    depth = 2 * math.ceil(slices / count / 2)
    return [
        Block(
            first,
            min(first + depth, slices),
            max(first - halo, 0),
            min(first + depth + halo, slices),
        )
        for first in range(0, slices, depth)
    ]


def _in_words(size: int) -> str:
    return f"{size / 1e6:.0f} MB" if size < 1e9 else f"{size / 1e9:.2f} GB"
