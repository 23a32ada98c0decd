"""Denoise a block of a large image."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from math import prod
from typing import Any

import numpy as np
from numpy.typing import NDArray

from integrodiff._denoise import Denoiser
from integrodiff.blocks.grid import ALIGNMENT, Region, block_at, halo, regions
from integrodiff.blocks.memory import in_words
from integrodiff.blocks.sample import LargeImage
from integrodiff.engines import get_engine_for
from integrodiff.noise.maps import noise_map
from integrodiff.pipeline import Pipeline, region_bytes
from integrodiff.request import ResolvedRequest, computing_dtype, levels_array, resolve
from integrodiff.stages import Evolution, stable_on_masks
from integrodiff.validity import Mask

Index = tuple[slice, ...]
"""A part of an image, by its place along all axes but that of samples."""

_SMALLEST = 64
"""Height and width of a block below which nothing but halos would be computed."""

_ARRAYS_OF_STAGES = 120
"""Arrays of the size of an image that the engines without a plan of their memory are given."""


@dataclass(frozen=True, kw_only=True, eq=False)
class BlockDenoiser:
    """A large image with everything determined, whose blocks can be denoised in any order.

    It can be sent to other processes, if the image can.

    Attributes
    ----------
    image : LargeImage
        The image.
    denoiser : Denoiser
        The settings.
    resolved : ResolvedRequest
        The request, resolved for the whole image.
    """

    image: LargeImage
    denoiser: Denoiser
    resolved: ResolvedRequest

    @cached_property
    def _pipeline(self) -> Pipeline:
        return self.denoiser.pipeline_of(self.resolved)

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in self.__dict__.items() if name != "_pipeline"}

    @cached_property
    def space(self) -> tuple[int, ...]:
        """The axes along which pixels influence each other: (slices,) rows and columns."""
        axes = self.resolved.layout.without_samples.axes
        letters = "ZYX" if self.resolved.volume is not None else "YX"
        return tuple(axes.index(letter) for letter in letters)

    @cached_property
    def shape(self) -> tuple[int, ...]:
        """Length of all axes but that of samples."""
        return self.resolved.layout.without_samples.shape

    @cached_property
    def evolutions(self) -> list[Evolution]:
        """The processes of all channels and groups of samples."""
        resolved = self.resolved
        levels = [level for channel in resolved.channels for level in channel.levels]
        found = [level.evolution(resolved.request.model) for level in levels]
        return [stable_on_masks(one) for one in found] if resolved.invalid is not None else found

    @cached_property
    def halo(self) -> tuple[int, ...]:
        """Width of the halo along each of the axes of :attr:`space`."""
        if not self.evolutions:
            return (0,) * len(self.space)
        return halo(self.evolutions, masked=self.resolved.invalid is not None)

    def computed(self, sizes: tuple[int, ...]) -> float:
        """Return how many pixels are computed for each that is kept, in blocks of some sizes."""
        found = 1.0
        for axis, width in zip(self.space, self.halo, strict=True):
            length = self.shape[axis]
            borders = -(-length // sizes[axis]) - 1
            found *= 1 + 2 * width * borders / length
        return found

    def around(
        self, sizes: tuple[int, ...], unit: tuple[int, ...] | None = None
    ) -> tuple[int, ...]:
        """Return the largest size of a block with its halo, along the axes of :attr:`space`.

        Parameters
        ----------
        sizes : tuple of int
            Size of the block along all axes.
        unit : tuple of int, optional
            Size of the units that are cut into such blocks; by default it is one of them.
        """
        found = []
        for axis, width in zip(self.space, self.halo, strict=True):
            size, length = sizes[axis], self.shape[axis]
            whole = size if unit is None else unit[axis]
            blocks = -(-length // whole) * -(-whole // size)
            halos = min(blocks - 1, 2) * width  # one of two blocks has its halo on one side
            found.append(min(size + halos + ALIGNMENT - 1, length))
        return tuple(found)

    def bytes_of(self, sizes: tuple[int, ...], unit: tuple[int, ...] | None = None) -> int:
        """Return an upper bound of the memory that a block takes, along all axes.

        Its halo is added here, see :meth:`around`. What the process takes anyway is not counted.
        """
        planes = prod(length for axis, length in enumerate(sizes) if axis not in self.space)
        return region_bytes(self.resolved, self.around(sizes, unit), planes, self._bytes_of_engine)

    def _bytes_of_engine(self, shape: tuple[int, ...]) -> int:
        request, masked = self.resolved.request, self.resolved.invalid is not None
        dtype = computing_dtype(self.resolved.dtype)
        evolution = self.evolutions[0]
        engine = get_engine_for(self.denoiser.asked_for, evolution, masked=masked)
        found = engine.working_memory(
            evolution,
            shape,
            dtype,
            exact=request.exact,
            threads=request.threads,
            mapped=request.map is not None,
            masked=masked,
        )
        return _ARRAYS_OF_STAGES * dtype.itemsize * prod(shape) if found is None else found

    def sizes_within(self, limit: int, unit: tuple[int, ...]) -> tuple[int, ...]:
        """Return the sizes of blocks that a unit is cut into, so that a limit is kept.

        Parameters
        ----------
        limit : int
            Bytes for one block.
        unit : tuple of int
            Size of a part of the image along all axes, which is not cut if it fits.

        Raises
        ------
        ValueError
            If the smallest blocks take more.
        """
        sizes = list(unit)
        while self.bytes_of(tuple(sizes), unit) > limit:
            longest = max(self.space, key=lambda axis: sizes[axis])
            if sizes[longest] <= _SMALLEST:
                needed = self.bytes_of(tuple(sizes), unit)
                raise ValueError(
                    f"max_memory leaves {in_words(max(limit, 0))} for a block, and the smallest "
                    f"blocks of this image take {in_words(needed)}; allow more, or take fewer "
                    "workers"
                )
            sizes[longest] = ALIGNMENT * -(-sizes[longest] // (2 * ALIGNMENT))
        return tuple(sizes)

    def denoised(self, unit: Index, sizes: tuple[int, ...] | None = None) -> NDArray[Any]:
        """Denoise a part of the image in blocks of the given sizes, and return it."""
        layout = self.resolved.layout
        lengths = tuple(part.stop - part.start for part in unit)
        samples = (layout.samples,) if layout.has_samples else ()
        result = np.empty((*lengths, *samples), self.resolved.result_dtype)
        axes = []
        for axis, width in zip(self.space, self.halo, strict=True):
            size = lengths[axis] if sizes is None else sizes[axis]
            firsts = range(unit[axis].start, unit[axis].stop, size)
            axes.append(
                [
                    block_at(first, min(first + size, unit[axis].stop), self.shape[axis], width)
                    for first in firsts
                ]
            )
        for region in regions(axes):
            self._denoise_region(region, unit, result)
        return result

    def _denoise_region(self, region: Region, unit: Index, result: NDArray[Any]) -> None:
        """Write a denoised region of a unit to the result for the unit."""
        around, core, inner = list(unit), list(unit), [slice(None)] * len(unit)
        for axis, *of_axis in zip(
            self.space, region.around, region.core, region.inner, strict=True
        ):
            around[axis], core[axis], inner[axis] = of_axis
        pixels = self.image.window(tuple(around))
        moved = self._space_last(pixels)
        masks = self._masks(pixels, tuple(around))
        inner_space = tuple(inner[axis] for axis in self.space)
        where = tuple(
            slice(part.start - whole.start, part.stop - whole.start)
            for part, whole in zip(core, unit, strict=True)
        )
        target = self._space_last(result[where])
        for place in np.ndindex(*moved.shape[: len(unit) - len(self.space)]):
            number = self._plane_number(unit, place)
            mask = None
            if masks is not None and self._pipeline.has_invalid(number):
                mask = masks[place]
            self._check_levels(region, mask)
            denoised = self._pipeline.denoised_region(
                moved[place], mask, self.resolved.layout.channel_of(number), region
            )
            target[place] = denoised[inner_space]

    def _check_levels(self, region: Region, mask: Mask | None) -> None:
        """Refuse a map of noise levels with one that is not finite at a valid pixel."""
        request = self.resolved.request
        if request.map is None:
            return
        levels = np.asarray(request.sigma)
        lost = ~np.isfinite(levels[tuple(region.around)[-levels.ndim :]])
        if (lost if mask is None else lost & mask).any():
            raise ValueError("a map of noise levels must be finite at valid pixels")

    def _space_last(self, pixels: NDArray[Any]) -> NDArray[Any]:
        """Return a view with the axes of :attr:`space` last, but for samples."""
        others = [axis for axis in range(len(self.shape)) if axis not in self.space]
        samples = list(range(len(self.shape), pixels.ndim))
        return np.transpose(pixels, [*others, *self.space, *samples])

    def _plane_number(self, unit: Index, place: tuple[int, ...]) -> int:
        """Return the number of the first plane at a place along the axes without space."""
        others = [axis for axis in range(len(self.shape)) if axis not in self.space]
        start = [part.start for part in unit[:-2]]
        for axis, at in zip(others, place, strict=True):
            start[axis] += at
        return self.resolved.layout.plane_at(start)

    def _masks(self, pixels: NDArray[Any], around: Index) -> NDArray[np.bool_] | None:
        """Return the mask with the axes of space last; None if the image has no invalid pixels."""
        mask = self.image.mask(pixels, around) if self.image.may_exclude else None
        if self.resolved.invalid is None:
            if mask is not None:
                raise ValueError(
                    "some pixels are invalid (NaN, infinite or excluded), which changes how all "
                    "others are computed; say so with has_invalid=True"
                )
            return None
        if mask is None:
            mask = np.ones(pixels.shape[: len(self.shape)], np.bool_)
        return self._space_last(mask)

    def mask_of(self, unit: Index) -> Mask | None:
        """Return the valid pixels of a part of the image; None if all are."""
        return self.image.mask(self.image.window(unit), unit)


def resolved_for(denoiser: Denoiser, image: LargeImage) -> ResolvedRequest:
    """Resolve the request of a denoiser for a large image, from a sample of it.

    Raises
    ------
    ValueError
        If a map of noise levels is to be estimated, which needs the whole image.
    """
    request = denoiser.request_for(image.layout)
    if isinstance(request.sigma, str):
        raise ValueError(
            "a map of noise levels is not estimated for images in blocks; give the map itself, "
            "or a noise level"
        )
    if request.map is not None and not image.may_exclude:
        noise_map(levels_array(request.sigma))  # refuses levels that are not finite
    return resolve(request, image, image.sample())
