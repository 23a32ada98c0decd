"""Blocks along the axes of an image, each with its halo."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import product
from typing import NamedTuple

from integrodiff.blocks.memory import in_words
from integrodiff.stages import Evolution

TOLERANCE = 0.02
"""Largest difference to the result of the whole image, on the scale [0, 255]."""

ALIGNMENT = 2
"""Blocks with their halos begin at multiples of this, as the coarse grids of engines do."""


class Block(NamedTuple):
    """Pixels from ``first`` to before ``last`` along an axis, with halo ``low`` to ``high``."""

    first: int
    last: int
    low: int
    high: int

    @property
    def inner(self) -> slice:
        """The block without its halo, counted from the beginning of the halo."""
        return slice(self.first - self.low, self.last - self.low)


class Region(NamedTuple):
    """One block for each axis along which pixels influence each other."""

    blocks: tuple[Block, ...]

    @property
    def core(self) -> tuple[slice, ...]:
        """Its place in the image."""
        return tuple(slice(block.first, block.last) for block in self.blocks)

    @property
    def around(self) -> tuple[slice, ...]:
        """Its place in the image with the halo."""
        return tuple(slice(block.low, block.high) for block in self.blocks)

    @property
    def inner(self) -> tuple[slice, ...]:
        """Its place within itself and the halo."""
        return tuple(block.inner for block in self.blocks)

    @property
    def shape(self) -> tuple[int, ...]:
        """Its size with the halo."""
        return tuple(block.high - block.low for block in self.blocks)


def halo(evolutions: Iterable[Evolution], *, masked: bool = False) -> tuple[int, ...]:
    """Return the width of the halo along each axis that several processes need."""
    reaches = [evolution.reach(TOLERANCE, masked=masked) for evolution in evolutions]
    return tuple(max(axis) for axis in zip(*reaches, strict=True))


def block_at(first: int, last: int, length: int, halo: int) -> Block:
    """Return a block with its halo, which ends at the edges of an axis of a length."""
    low = max(first - halo, 0) // ALIGNMENT * ALIGNMENT
    return Block(first, last, low, min(last + halo, length))


def blocks_at(ends: Sequence[int], halo: int) -> list[Block]:
    """Return the blocks between places along an axis, the last of which is its length."""
    firsts = [0, *ends[:-1]]
    return [block_at(first, last, ends[-1], halo) for first, last in zip(firsts, ends, strict=True)]


def blocks_of(length: int, size: int, halo: int) -> list[Block]:
    """Return blocks of a size, of which the last may be smaller."""
    return blocks_at([*range(size, length, size), length], halo)


def even_blocks(length: int, most: int, halo: int) -> list[Block]:
    """Return the fewest blocks that have at most a size and are about as large as each other."""
    count = math.ceil(length / most)
    size = min(most, ALIGNMENT * math.ceil(length / count / ALIGNMENT))
    return blocks_of(length, size, halo)


def regions(axes: Sequence[Sequence[Block]]) -> Iterator[Region]:
    """Iterate over all combinations of the blocks of several axes."""
    return (Region(blocks) for blocks in product(*axes))


def blocks_within(
    slices: int, halo: int, bytes_of: Callable[[int], int], limit: int
) -> list[Block]:
    """Return the fewest blocks of slices, about as large as each other, that keep a limit.

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
    margin = 2 * halo + ALIGNMENT - 1  # a halo may begin one slice earlier
    least = min(margin + ALIGNMENT, slices)
    if bytes_of(least) > limit:
        raise ValueError(
            f"max_memory is {in_words(limit)}, and the smallest blocks of this volume, of {least} "
            f"slices, take {in_words(bytes_of(least))}; allow more"
        )
    fits = largest_that(lambda count: bytes_of(count) <= limit, least, slices)
    return even_blocks(slices, (fits - margin) // ALIGNMENT * ALIGNMENT, halo)


def largest_that(fits: Callable[[int], bool], least: int, most: int) -> int:
    """Return the largest number that fits, given that ``least`` does and ``most`` does not."""
    while most - least > 1:
        middle = (least + most) // 2
        if fits(middle):
            least = middle
        else:
            most = middle
    return least
