"""Denoise the planes of an image, one by one, or its volumes.

Each plane is mapped forward by the Anscombe transform (photon noise), the colour space and the
factors to the scale of the model; the engine evolves it; the inverse maps follow in reverse order.
Invalid pixels are set to zero first and restored at the end. A volume passes through the maps as
one tall plane, with its slices stacked vertically; only the engine sees three dimensions.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import islice
from math import prod
from typing import Any, NamedTuple, TypeAlias

import numpy as np
from numpy.lib.stride_tricks import as_strided
from numpy.typing import NDArray

from integrodiff.blocks.grid import Block, Region
from integrodiff.engines import FloatImage, Process, State
from integrodiff.namespaces import (
    Array,
    chosen,
    dtype_of,
    in_dtype_of,
    is_numpy,
    is_view_of,
    made_like,
    namespace,
    with_samples_first,
)
from integrodiff.noise.maps import NoiseMap
from integrodiff.request import Level, ResolvedChannel, ResolvedRequest, computing_dtype
from integrodiff.validity import Mask, all_finite

Processes: TypeAlias = Callable[[tuple[Level, ...], NoiseMap | None], tuple[Process, ...]]
"""Function that prepares a process for each noise level on the scale of the model.

The map is that of a part of the image, or None for the whole.
"""

MaskedProcesses: TypeAlias = Callable[[ResolvedChannel, Mask], tuple[Process, ...]]
"""Function that prepares a process for each noise level of a channel, and for one mask."""


@dataclass(frozen=True, kw_only=True, eq=False)
class Step:
    """A completed explicit step, passed to callbacks.

    Attributes
    ----------
    number, total : int
        Number of completed steps and of all steps, summed over planes and groups of samples.
    plane : int
        Index of the plane that was advanced, from zero; of a volume or a block of it, that of its
        first slice.

    Examples
    --------
    >>> import numpy as np
    >>> from integrodiff import Step, denoise
    >>> noisy = np.random.default_rng(0).normal(100, 20, (32, 32))
    >>> deviations = []
    >>> def watch(step: Step) -> None:
    ...     deviations.append(float(step.image().std()))
    >>> result = denoise(noisy, sigma=20, model="iad", callback=watch)
    >>> len(deviations), deviations[0] > deviations[-1]
    (10, True)
    """

    number: int
    total: int
    plane: int
    _image: Callable[[], FloatImage] = field(repr=False)

    def image(self) -> FloatImage:
        """Return the current plane, or volume, as floating point, in grey levels of the input.

        For a volume in blocks, it is the current block with its halo.

        It is computed only by this call, so a callback that just counts steps costs nothing. Call
        it inside the callback: the next step changes the state.
        """
        return self._image()


StepCallback: TypeAlias = Callable[[Step], object]

_BAND, _BAND_PIXELS = 64, 2**16
"""Rows that are converted at a time, and pixels if rows are short."""

_BAND_ON_DEVICE = 2**22
"""Pixels that are stabilised at a time, and back, where an array is not NumPy's."""

_TOGETHER = 2**25
"""Values of planes that are handed to an engine at a time, where an array is not NumPy's."""

_LARGE = 2**22
"""Bytes of an image from which on the memory of an engine is given back after each use.

It is larger than the image, and to take it again costs little beside the steps.
"""


class Pipeline:
    """Denoises the planes of one image.

    Parameters
    ----------
    resolved : ResolvedRequest
        Noise levels, grey range and colour space of each channel.
    processes : callable
        Prepares a process for each noise level.
    masked_processes : callable
        Prepares the processes for a plane with invalid pixels.
    blocks : list of Block, optional
        Blocks of slices in which volumes are denoised; by default they are denoised as a whole.
    """

    def __init__(
        self,
        resolved: ResolvedRequest,
        processes: Processes,
        masked_processes: MaskedProcesses,
        blocks: list[Block] | None = None,
    ) -> None:
        self.resolved = resolved
        slices = resolved.layout.slices if resolved.volume is not None else 1
        self.blocks = blocks or [Block(0, slices, 0, slices)]
        self._counts = _plane_counts(resolved, self.blocks)
        pairs = list(zip(resolved.channels, self._counts, strict=True))
        levels = tuple(level for channel, count in pairs if count.whole for level in channel.levels)
        prepared = iter(processes(levels, None))
        self._processes = processes
        self._stations = [
            _Stations(
                channel,
                [next(prepared) for _ in channel.levels] if count.whole else [],
                masked_processes,
                resolved.layout.size[0],
            )
            for channel, count in pairs
        ]

    @property
    def steps(self) -> int:
        """Total number of steps over all planes."""
        pairs = zip(self._stations, self._counts, strict=True)
        return sum(stations.steps(count) for stations, count in pairs)

    def run(
        self,
        planes: Iterator[NDArray[Any]],
        callback: StepCallback | None = None,
        *,
        count: Callable[[], object] | None = None,
    ) -> Iterator[NDArray[Any]]:
        """Yield the denoised planes in order, in the dtype of the result.

        Parameters
        ----------
        planes : iterator of ndarray
            All planes of the image, in order.
        callback : callable, optional
            Called after each step.
        count : callable, optional
            Called after each step without an argument. A callback may ask for images, which fixes
            the order in which samples are denoised; ``count`` does not, which saves memory.
        """
        watcher = None if callback is None else _Watcher(callback, self.steps)
        if self.resolved.volume is not None:
            yield from self._run_volumes(planes, watcher, count)
            return
        for number, plane in enumerate(planes):
            stations = self._stations[self.resolved.layout.channel_of(number)]
            observe = None if watcher is None else partial(watcher.advance, number)
            yield self._denoised(plane, self.mask_of(plane, number), stations, observe, count)

    def _run_volumes(
        self,
        planes: Iterator[NDArray[Any]],
        watcher: _Watcher | None,
        count: Callable[[], object] | None,
    ) -> Iterator[NDArray[Any]]:
        """Yield the slices of denoised volumes; those that are interleaved are held together."""
        layout = self.resolved.layout
        slices, between = layout.slices, layout.planes_between_slices
        following = [*(block.low for block in self.blocks[1:]), slices]
        for first in range(0, layout.plane_count, slices * between):
            kept: list[NDArray[Any]] = []  # planes from the first slice of the block on
            for block, low in zip(self.blocks, following, strict=True):
                kept += islice(planes, (block.high - block.low) * between - len(kept))
                denoised = self._block(kept, block, first, watcher, count)
                # The result may be written over the image, of which the next block needs a part.
                kept = [np.array(plane) for plane in kept[(low - block.low) * between :]]
                yield from denoised

    def _block(
        self,
        kept: list[NDArray[Any]],
        block: Block,
        first: int,
        watcher: _Watcher | None,
        count: Callable[[], object] | None,
    ) -> list[NDArray[Any]]:
        """Return the denoised planes of a block; ``first`` is the number of the first of all."""
        layout = self.resolved.layout
        between = layout.planes_between_slices
        region = Region((block, *(Block(0, length, 0, length) for length in layout.size)))
        numbers = [first + block.low * between + n for n in range(len(kept))]
        found = kept[(block.first - block.low) * between : (block.last - block.low) * between]
        for n in range(between):
            mask = self._mask_of_slices(kept[n::between], numbers[n::between])
            volume = _tall(kept[n::between])
            stations = self._stations_at(layout.channel_of(numbers[n]), region, mask)
            observe = None if watcher is None else partial(watcher.advance, numbers[n])
            denoised = self._denoised(volume, mask, stations, observe, count)
            parts = np.split(denoised, block.high - block.low)
            found[n::between] = parts[block.first - block.low : block.last - block.low]
        return found

    def run_on_device(
        self, image: Array, result: Array, callback: StepCallback | None = None
    ) -> None:
        """Denoise an array of PyTorch or CuPy into another one, both where they are.

        Planes, or volumes, of one channel and one mask are handed to the engine together.

        Parameters
        ----------
        image, result : array
            Arrays with the axes of the layout; they may be the same.
        callback : callable, optional
            Called after each step. Planes are then denoised one by one.
        """
        watcher = None if callback is None else _Watcher(callback, self.steps)
        layout = self.resolved.layout
        places = [i for i, letter in enumerate(layout.axes) if letter not in "YXS"]
        depth = [layout.axes.index("Z")] if self.resolved.volume is not None else []
        around = [i for i in places if i not in depth]
        around.sort(key=lambda i: layout.axes[i] != "C")  # channels first
        numbers = np.arange(layout.plane_count).reshape(layout.plane_grid)
        numbers = numbers.transpose([places.index(i) for i in (*around, *depth)])
        numbers = numbers.reshape(layout.channels, -1, self._slices)
        plane = [layout.axes.index(letter) for letter in "YXS" if letter in layout.axes]
        source, target = (
            namespace(array).permute_dims(array, (*around, *depth, *plane))
            for array in (image, result)
        )
        if "C" not in layout.axes:
            source, target = source[None], target[None]
        inner = len(depth) + len(plane)
        items = [_items(source[channel], inner) for channel in range(layout.channels)]
        work = [
            (channel, group)
            for channel in range(layout.channels)
            for group in self._groups(items[channel], numbers[channel], watcher)
        ]
        work.sort(key=lambda found: int(numbers[found[0], found[1].items[0], 0]))
        for channel, group in work:
            first = int(numbers[channel, group.items[0], 0])
            observe = None if watcher is None else partial(watcher.advance, first)
            found = self._denoised_group(items[channel], channel, group, observe)
            _write(found, target[channel], group.items, inner)

    @property
    def _slices(self) -> int:
        """Planes that are denoised as one."""
        return self.resolved.layout.slices if self.resolved.volume is not None else 1

    def _groups(
        self, items: Array, numbers: NDArray[np.int_], watcher: _Watcher | None
    ) -> list[_Group]:
        """Return which planes or volumes of a channel are denoised together.

        Parameters
        ----------
        items : array
            ``(item, row, column)`` or ``(item, slice, row, column)``, and samples last.
        numbers : ndarray
            Numbers of their planes, (item, slice).
        watcher : _Watcher, optional
            Sees planes one by one.
        """
        size = prod(items.shape[1:])
        most = 1 if watcher is not None else max(1, _TOGETHER // size)
        whole = [n for n in range(len(numbers)) if not self.has_invalid(int(numbers[n, 0]))]
        groups = [_Group(whole[n : n + most], None) for n in range(0, len(whole), most)]
        last: _Group | None = None
        for n in range(len(numbers)):
            if self.has_invalid(int(numbers[n, 0])):
                planes = [items[n]] if self.resolved.volume is None else list(items[n])
                mask = self._mask_of_slices(planes, numbers[n].tolist())
                has_room = last is not None and len(last.items) < most
                if last is not None and has_room and _are_alike(last.mask, mask):
                    last.items.append(n)
                else:
                    last = _Group([n], mask)
                    groups.append(last)
        return groups

    def _denoised_group(
        self, items: Array, channel: int, group: _Group, observe: _Observer | None
    ) -> Array:
        """Denoise some of the planes or volumes of a channel."""
        xp, count, first = namespace(items), len(group.items), group.items[0]
        if group.items == list(range(first, first + count)):
            chosen = items[first : first + count]
        else:
            chosen = xp.stack([items[n] for n in group.items])
        within_rows = len(self.resolved.layout.plane_shape) - 1
        tall = xp.reshape(chosen, (-1, *chosen.shape[chosen.ndim - within_rows :]))
        mask = group.mask
        if mask is not None and count > 1:
            mask = xp.concat([mask] * count, axis=0)
        batch = None if observe is not None else count
        stations = replace(self._stations[channel], batch=batch)
        return xp.reshape(self._denoised(tall, mask, stations, observe), chosen.shape)

    def has_invalid(self, number: int) -> bool:
        """Whether a plane has invalid pixels, or any slice of the volume that it belongs to."""
        layout, invalid = self.resolved.layout, self.resolved.invalid
        if invalid is None:
            return False
        if self.resolved.volume is None:
            return bool(invalid.counts[number])
        between = layout.planes_between_slices
        first = number - number // between % layout.slices * between
        return any(invalid.counts[first : first + layout.slices * between : between])

    def denoised_region(
        self, pixels: NDArray[Any], mask: Mask | None, channel: int, region: Region
    ) -> NDArray[Any]:
        """Denoise a part of a plane or volume together with its halo.

        Parameters
        ----------
        pixels : ndarray
            The part with its halo: (row, column) or (slice, row, column), and samples last.
        mask : array of bool, optional
            Its valid pixels. It has to be given if any pixel of the whole is invalid.
        channel : int
            Which channel it belongs to.
        region : Region
            Its place.

        Returns
        -------
        ndarray
            The part with its halo, in the dtype of the result.
        """
        volume = self.resolved.volume is not None
        tall = pixels.reshape(-1, *pixels.shape[2:]) if volume else pixels
        tall_mask = mask.reshape(-1, mask.shape[-1]) if mask is not None and volume else mask
        stations = self._stations_at(channel, region, mask)
        denoised: NDArray[Any] = self._denoised(tall, tall_mask, stations)
        return denoised.reshape(pixels.shape)

    def _stations_at(self, channel: int, region: Region, mask: Mask | None) -> _Stations:
        """Return the maps and processes of a channel for a part of its planes or volumes."""
        stations = self._stations[channel]
        height = region.shape[-2]
        found = stations.channel
        processes: Sequence[Process] = stations.processes
        levels = found.map
        if levels is not None and levels.relative is not None:
            around = region.around[-levels.relative.ndim :]
            part = levels.relative[around]
            if part.shape != levels.relative.shape:
                levels = levels._replace(relative=part)
                found = replace(found, map=levels)
                processes = [] if mask is not None else self._processes(found.levels, levels)
        return replace(stations, channel=found, processes=list(processes), height=height)

    def _denoised(
        self,
        plane: Array,
        mask: Mask | None,
        stations: _Stations,
        observe: _Observer | None = None,
        count: Callable[[], object] | None = None,
    ) -> Array:
        """Denoise a plane, or slices of a volume or planes of a batch below each other."""
        dtype = self.resolved.result_dtype
        if not stations.channel.levels or (mask is not None and not mask.any()):
            return plane.astype(dtype) if is_numpy(plane) else in_dtype_of(plane, dtype)
        denoised = stations.denoised(plane, mask, observe, count)
        if not all_finite(denoised):
            largest = float(abs(_working(plane if mask is None else plane[mask])).max())
            raise ValueError(
                f"the grey values, up to {largest:g}, are too large to "
                f"compute in {dtype_of(denoised)} with a data range of "
                f"{stations.channel.data_range:g}; check data_range"
            )
        result = self.resolved.validity.unmarked(in_dtype(denoised, dtype))
        return with_invalid(result, plane, mask)

    def mask_of(self, plane: Array, number: int) -> Mask | None:
        """Return the mask of a plane; None if all of its pixels are valid."""
        if self.resolved.invalid is None or not self.resolved.invalid.counts[number]:
            return None
        return self.resolved.validity.of(plane, number)

    def _mask_of_slices(self, slices: Sequence[Array], numbers: Sequence[int]) -> Mask | None:
        """Return the masks of slices below each other; None if their whole volume is valid."""
        if not self.has_invalid(numbers[0]):
            return None
        pairs = zip(slices, numbers, strict=True)
        masks = [self.mask_of(plane, number) for plane, number in pairs]
        return _tall_mask(masks, self.resolved.layout.size, slices[0])

    def volume_on_model_scale(
        self, slices: Sequence[NDArray[Any]], numbers: Sequence[int]
    ) -> PreparedVolume:
        """Return what denoises a volume, and its input on the scale of the model.

        ``numbers`` are those of the slices among all planes.
        """
        stations = self._stations[self.resolved.layout.channel_of(numbers[0])]
        mask = self._mask_of_slices(slices, numbers)
        volume = None if mask is None else mask.reshape(len(slices), *self.resolved.layout.size)
        if mask is not None and not mask.any():
            return PreparedVolume([], volume)
        image = stations.in_space(stations.forward(np.concatenate(slices), mask))
        channel = stations.channel
        groups = zip(
            channel.space.groups, channel.levels, stations.processes_for(mask), strict=True
        )
        found = [(image[group.samples], level, process) for group, level, process in groups]
        return PreparedVolume(found, volume)

    def on_model_scale(
        self, plane: NDArray[Any], number: int = 0
    ) -> list[tuple[FloatImage, Level]]:
        """Return the input of the model for a plane: image and noise level of each sample group.

        Images are ``(sample, row, column)``; both are on the scale of the model.
        """
        stations = self._stations[self.resolved.layout.channel_of(number)]
        image = stations.forward(plane, self.mask_of(plane, number))
        channel = stations.channel
        groups = zip(channel.space.groups, channel.levels, strict=True)
        return [(image[group.samples], level) for group, level in groups]


class PreparedVolume(NamedTuple):
    """A volume on the scale of the model.

    Attributes
    ----------
    groups : list
        For each group of samples: the image ``(sample, slice, row, column)``, its noise level, and
        the process. Empty if there is no noise or no valid voxel.
    mask : array of bool, optional
        True at valid voxels, ``(slice, row, column)``; None if all are.
    """

    groups: list[tuple[FloatImage, Level, Process]]
    mask: Mask | None


class _Group(NamedTuple):
    """Planes or volumes of a channel that are denoised together, by their numbers.

    They have one mask, of slices below each other, or are all valid.
    """

    items: list[int]
    mask: Array | None


def _are_alike(first: Array, second: Array) -> bool:
    """Whether two masks are the same."""
    return bool((first == second).all())


def _items(array: Array, inner: int) -> Array:
    """Return planes or volumes, the last axes of an array, along one axis before them."""
    return namespace(array).reshape(array, (-1, *array.shape[array.ndim - inner :]))


def _write(found: Array, target: Array, numbers: Sequence[int], inner: int) -> None:
    """Write planes or volumes, the last axes of an array, to the numbers along the others."""
    flat, count = _items(target, inner), len(numbers)
    if is_view_of(flat, target) and list(numbers) == list(range(numbers[0], numbers[0] + count)):
        flat[numbers[0] : numbers[0] + count] = found
        return
    lengths = tuple(target.shape[: target.ndim - inner])
    for n, one in zip(numbers, found, strict=True):
        place = tuple(int(index) for index in np.unravel_index(n, lengths)) if lengths else ()
        target[(*place, ...)] = one


class _PlaneCounts(NamedTuple):
    """Numbers of planes of a channel that are fully valid, and that are partly valid.

    For volumes, blocks of volumes are counted instead.
    """

    whole: int
    masked: int


def _plane_counts(resolved: ResolvedRequest, blocks: Sequence[Block]) -> list[_PlaneCounts]:
    """Return the numbers of planes, or blocks of volumes, of each channel."""
    layout, invalid = resolved.layout, resolved.invalid
    slices = layout.slices if resolved.volume is not None else 1
    if invalid is None:
        each = layout.plane_count // (layout.channels * slices) * len(blocks)
        return [_PlaneCounts(each, 0) for _ in range(layout.channels)]
    whole, masked = [0] * layout.channels, [0] * layout.channels
    between = layout.planes_between_slices if slices > 1 else 1
    counts = np.reshape(invalid.counts, (-1, slices, between))
    for group, n in np.ndindex(len(counts), between):
        channel = layout.channel_of(group * slices * between + n)
        of_slices = counts[group, :, n]
        for block in blocks:
            known = invalid.plane_size * (block.high - block.low)
            if not of_slices.any():
                whole[channel] += 1
            elif of_slices[block.low : block.high].sum() < known:
                masked[channel] += 1
    return [_PlaneCounts(*pair) for pair in zip(whole, masked, strict=True)]


def region_bytes(
    resolved: ResolvedRequest,
    shape: tuple[int, ...],
    planes: int,
    of_engine: Callable[[tuple[int, ...]], int],
) -> int:
    """Return an upper bound of the memory for a part of an image, beside image and result.

    Parameters
    ----------
    resolved : ResolvedRequest
        What is computed.
    shape : tuple of int
        Rows and columns of the part, or slices, rows and columns, with its halo.
    planes : int
        How many of such parts are held at a time, of which one is computed.
    of_engine : callable
        Memory of the engine for samples ``(sample, row, column)`` or ``(sample, slice, ...)``.
    """
    pixels = prod(shape) * max(1, resolved.layout.samples)
    size = computing_dtype(resolved.dtype).itemsize
    masks = pixels * (planes + 4) if resolved.invalid is not None else 0
    given = pixels * resolved.dtype.itemsize * (planes + 1)
    results = pixels * resolved.result_dtype.itemsize * planes
    largest = max(
        (
            of_engine((_length(group.samples), *shape))
            for channel in resolved.channels
            for group in channel.space.groups
        ),
        default=0,
    )
    after = pixels * (size + resolved.result_dtype.itemsize + 1)
    return given + results + masks + pixels * size + max(largest, after) + 2**24


def volume_bytes(
    resolved: ResolvedRequest, slices: int, of_engine: Callable[[tuple[int, ...]], int]
) -> int:
    """Return an upper bound of the memory for some slices of a volume, beside image and result.

    ``of_engine`` is that of the engine for a volume ``(sample, slice, row, column)``.
    """
    layout = resolved.layout
    shape = (slices, *layout.size)
    return region_bytes(resolved, shape, layout.planes_between_slices, of_engine)


_Parts: TypeAlias = list[tuple[slice, FloatImage]]
"""Samples of the colour space, with their values on the model's scale."""

_Observer: TypeAlias = Callable[[Callable[[], FloatImage]], object]


class _Watcher:
    """Counts steps and calls a callback after each."""

    def __init__(self, callback: StepCallback, total: int) -> None:
        self._callback, self._total, self._done = callback, total, 0

    def advance(self, plane: int, image: Callable[[], FloatImage]) -> None:
        self._done += 1
        self._callback(Step(number=self._done, total=self._total, plane=plane, _image=image))


def _tall_mask(masks: Sequence[Mask | None], size: tuple[int, int], like: Array) -> Mask:
    """Return the masks of all slices below each other."""
    valid = made_like(np.ones(size, np.bool_), like)
    found = [valid if mask is None else mask for mask in masks]
    return namespace(valid).concat(found, axis=0)  # type: ignore[no-any-return]


def _working(plane: Array) -> Array:
    """Convert a plane to the dtype of the computation."""
    return in_dtype_of(plane, computing_dtype(dtype_of(plane)))


@dataclass(frozen=True, eq=False)
class _Stations:
    """Forward maps, processes and inverse maps for the planes of one channel."""

    channel: ResolvedChannel
    processes: list[Process]
    masked_processes: MaskedProcesses
    height: int  # rows of a plane, or of a slice
    batch: int | None = None  # planes or volumes that are denoised together, below each other

    def steps(self, planes: _PlaneCounts) -> int:
        """Return the number of steps for some planes; those with invalid pixels may take more."""
        total = planes.whole * _steps_of(self.processes)
        if planes.masked and self.channel.mask is not None:
            total += planes.masked * _steps_of(self.processes_for(self.channel.mask))
        return total

    def _volume_of(self, mask: Mask) -> Mask | None:
        """Return the mask of a tall plane as that of a volume; None if it is that of an image."""
        if self.channel.volume is None:
            return None
        return mask.reshape(-1, self.height, mask.shape[1])

    def in_space(self, image: Array) -> Array:
        """Return samples ``(sample, row, column)`` as the engine sees them."""
        samples, rows, width = image.shape
        if self.batch is None:
            if self.channel.volume is None:
                return image
            return image.reshape(samples, -1, self.height, width)
        depth = () if self.channel.volume is None else (rows // self.batch // self.height,)
        apart = image.reshape(samples, self.batch, *depth, self.height, width)
        return namespace(image).moveaxis(apart, 0, 1)

    def _below_each_other(self, image: Array) -> Array:
        """Undo :meth:`in_space`."""
        if self.batch is not None:
            image = namespace(image).moveaxis(image, 1, 0)
        return image.reshape(image.shape[0], -1, image.shape[-1])

    def processes_for(self, mask: Mask | None) -> Sequence[Process]:
        """Return a process for each group of samples."""
        if mask is None:
            return self.processes
        mask = mask[: mask.shape[0] // (self.batch or 1)]
        volume = self._volume_of(mask)
        return self.masked_processes(self.channel, mask if volume is None else volume)

    def forward(self, plane: Array, mask: Mask | None, samples: slice = slice(None)) -> Array:
        """Map a plane to the input of the engine, ``(sample, row, column)``, in new memory.

        ``samples`` are those of the colour space that are wanted.
        """
        channel, dtype = self.channel, computing_dtype(dtype_of(plane))
        factors = made_like(channel.factors[samples].astype(dtype)[:, None, None], plane)
        bands = self._bands_of(plane, *plane.shape[:2])
        if is_numpy(plane):
            image = np.empty((len(factors), *plane.shape[:2]), dtype)
            for rows in bands:
                np.multiply(self._separated(plane, mask, rows, samples), factors, image[:, rows])
            return image
        parts = [self._separated(plane, mask, rows, samples) * factors for rows in bands]
        return parts[0] if len(parts) == 1 else namespace(plane).concat(parts, axis=1)

    def _separated(self, plane: Array, mask: Mask | None, rows: slice, samples: slice) -> Array:
        """Return some rows of a plane, stabilised and in the colour space."""
        channel, band = self.channel, _working(plane[rows])
        if mask is not None:
            xp = namespace(band)
            band = xp.where(_like(mask[rows], band), band, xp.zeros_like(band))
        if channel.photons is not None:
            band = channel.photons.stabilise(band)
        if channel.rice is not None:
            band = channel.rice.stabilise(band, self._levels_of(rows.start, len(band)))
        return channel.space.separated(with_samples_first(band))[samples]

    def _bands_of(self, plane: Array, height: int, width: int) -> list[slice]:
        """Return the rows that are mapped at a time."""
        if is_numpy(plane):
            return list(_row_bands(height, width))
        if self.channel.photons is None and self.channel.rice is None:
            return [slice(0, height)]
        rows = max(1, _BAND_ON_DEVICE // width)
        return [slice(first, min(first + rows, height)) for first in range(0, height, rows)]

    def backward(self, image: Array, dimensions: int) -> Array:
        """Invert :meth:`forward` in place; ``dimensions`` is 3 for a plane with samples, else 2."""
        channel = self.channel
        factors = made_like(channel.factors.astype(dtype_of(image))[:, None, None], image)
        for rows in self._bands_of(image, *image.shape[1:]):
            band = image[:, rows] / factors
            mixed = channel.space.mixed(band)
            if channel.rice is not None:
                mixed = channel.rice.restore(mixed, self._levels_of(rows.start, mixed.shape[1]))
            if channel.photons is not None:
                mixed = channel.photons.restore(mixed)
            image[:, rows] = mixed
        return image[0] if dimensions == 2 else namespace(image).moveaxis(image, 0, -1)

    def _levels_of(self, first: int, count: int) -> Array | None:
        """Return the noise levels of some rows, of a plane or of slices below each other."""
        levels = self.channel.map
        if levels is None or levels.relative is None:
            return None
        tall = levels.relative.reshape(-1, levels.relative.shape[-1])
        numbers = np.arange(first, first + count) % len(tall)
        return levels.mean * tall[made_like(numbers, tall)]

    def denoised(
        self,
        plane: Array,
        mask: Mask | None,
        observe: _Observer | None,
        count: Callable[[], object] | None = None,
    ) -> Array:
        """Denoise a plane, one group of samples after the other; invalid pixels become finite.

        Observers see them in the order of the colour space. If there are none, the largest group
        is the first, when there are no results of others in memory yet; the result is the same.
        """
        processes = self.processes_for(mask)
        if not processes:
            working = _working(plane)
            if mask is None:
                return working
            xp = namespace(plane)
            return xp.where(_like(mask, plane), working, xp.zeros_like(working))
        groups = list(zip(self.channel.space.groups, processes, strict=True))
        if observe is None:
            groups.sort(key=lambda pair: -_length(pair[0].samples))
        done: _Parts = []
        for group, process in groups:
            part = self.forward(plane, mask, group.samples)
            state = process.start(self.in_space(part))
            if observe is None and count is None:
                state.advance()
            else:
                current = partial(self._current, plane, mask, done, group.samples, state)
                while state.step < state.steps:
                    state.advance(1)
                    if observe is not None:
                        observe(current)
                    if count is not None:
                        count()
                del current
            if is_numpy(part):
                state.read(self.in_space(part))
            else:
                part = self._below_each_other(state.image())
            del state
            if is_numpy(part) and part.nbytes > _LARGE:
                process.release()
            done.append((group.samples, part))
            del part
        return self.backward(self._joined(plane, mask, done), plane.ndim)

    def _joined(self, plane: Array, mask: Mask | None, parts: _Parts) -> Array:
        """Assemble an image from parts; samples without noise are taken from the plane."""
        count = 1 if plane.ndim == 2 else plane.shape[-1]
        if sum(_length(samples) for samples, _ in parts) < count:
            image = self.forward(plane, mask)
        elif len(parts) == 1:
            return parts[0][1]  # new memory
        else:
            first = parts[0][1]
            device = {} if is_numpy(first) else {"device": first.device}
            shape = (count, *plane.shape[:2])
            image = namespace(first).empty(shape, dtype=first.dtype, **device)
        for samples, part in parts:
            image[samples] = part
        return image

    def _current(
        self,
        plane: Array,
        mask: Mask | None,
        done: _Parts,
        samples: slice,
        state: State,
    ) -> Array:
        """Return the plane with the current values of the samples that are being advanced."""
        image = state.image()
        current = image.reshape(len(image), *plane.shape[:2])
        joined = self._joined(plane, mask, [*done, (samples, current)])
        found = with_invalid(self.backward(joined, plane.ndim), plane, mask)
        if self.channel.volume is None:
            return found
        return found.reshape(-1, self.height, *plane.shape[1:])


def _tall(slices: Sequence[NDArray[Any]]) -> NDArray[Any]:
    """Return slices below each other, without a copy where they are so in memory."""
    first = slices[0]
    start, size = first.ctypes.data, first.nbytes
    together = all(
        piece.base is not None
        and piece.base is first.base
        and piece.flags.c_contiguous
        and piece.ctypes.data == start + n * size
        for n, piece in enumerate(slices)
    )
    if not together:
        return np.concatenate(slices)
    return as_strided(first, (len(slices) * len(first), *first.shape[1:]), writeable=False)


def _steps_of(processes: Sequence[Process]) -> int:
    return sum(process.evolution.steps for process in processes)


def _like(mask: Mask, plane: Array) -> Mask:
    """Return a mask that broadcasts to a plane, which may have samples."""
    return mask if plane.ndim == 2 else mask[..., None]


def with_invalid(result: Array, plane: Array, mask: Mask | None) -> Array:
    """Return the result, with invalid pixels as they are in the plane."""
    if mask is not None:
        if not is_numpy(plane):
            given = in_dtype_of(plane, dtype_of(result))
            return chosen(_like(mask, plane), result, given)
        np.copyto(result, plane, where=~_like(mask, plane), casting="unsafe")
    return result


def _length(samples: slice) -> int:
    """Return the number of samples of a group."""
    return int(samples.stop - samples.start)


def in_dtype(image: Array, dtype: np.dtype[Any]) -> Array:
    """Convert to the dtype of the result: integers are rounded and clipped, floats clipped."""
    if dtype == dtype_of(image):
        return image
    if not is_numpy(image):
        return _in_dtype_on_device(image, dtype)
    result = np.empty(image.shape, dtype)
    if dtype.kind == "f":
        largest = float(np.finfo(dtype).max)
        for source, target in _bands(image, result):
            target[...] = np.clip(source, -largest, largest)
        return result
    limits = np.iinfo(dtype)
    for source, target in _bands(image, result):
        rounded = np.rint(source)
        # The largest 64-bit integers have no exact float, so values are compared before the cast.
        inside = (rounded > float(limits.min)) & (rounded < float(limits.max))
        target[inside] = rounded[inside].astype(dtype)
        target[rounded <= float(limits.min)] = limits.min
        target[rounded >= float(limits.max)] = limits.max
    return result


def _in_dtype_on_device(image: Array, dtype: np.dtype[Any]) -> Array:
    """Return :func:`in_dtype` of an array that is not NumPy's."""
    if dtype.kind == "f":
        largest = float(np.finfo(dtype).max)
        return in_dtype_of(image.clip(-largest, largest), dtype)
    limits, rounded = np.iinfo(dtype), image.round()
    lowest, highest = float(limits.min), float(limits.max)
    if int(highest) == limits.max:
        return in_dtype_of(rounded.clip(lowest, highest), dtype)
    # The largest 64-bit integers have no exact float, so values are compared before the cast.
    xp = namespace(image)
    beyond = rounded >= highest
    inside = xp.where(beyond, xp.zeros_like(rounded), rounded.clip(lowest, None))
    found = in_dtype_of(inside, dtype)
    return chosen(beyond, xp.full_like(found, limits.max), found)


def _bands(*arrays: NDArray[Any]) -> Iterator[tuple[NDArray[Any], ...]]:
    """Iterate over corresponding bands of rows, so that temporary arrays stay small."""
    for rows in _row_bands(*arrays[0].shape[:2]):
        yield tuple(array[rows] for array in arrays)


def _row_bands(height: int, width: int) -> Iterator[slice]:
    """Iterate over the bands of an image."""
    rows = max(_BAND, _BAND_PIXELS // max(1, width))
    return (slice(first, first + rows) for first in range(0, height, rows))
