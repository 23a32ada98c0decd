"""One step as a sequence of kernels, in images and in volumes.

In images::

    scale_space     v_i = K_i u, all scales from one tile of the image
    structure       J of a term, only where it is smoothed or of higher order
    smooth_fields   the integration scale
    flows           gates and fluxes of a term, and from these the flows q_i of all scales
    gather          u <- u + tau (pull (f - u) - sum_i K_i q_i), all scales into one tile

Without an integration scale ``flows`` computes J itself, so a step of order one is three kernels.
Unlike in the engine ``native`` every scale is made from the image itself, at full resolution: a
tile then needs a margin of one kernel only, and arithmetic is cheap on a GPU. In volumes, and for
kernels that are too long for a tile, blurs go along one axis after the other. Blurs of images with
invalid pixels are in :mod:`.walks`.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from functools import cached_property
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from integrodiff.engines.cuda.arrays import enough_memory
from integrodiff.engines.cuda.blurs import NO_BLUR, AxisTaps, Kernels, is_blur
from integrodiff.engines.cuda.launch import NUMBERS, PLANES, Device, Launch, arguments
from integrodiff.engines.shortcuts import Taps
from integrodiff.stages import Domain, HaarGradient, Sensitivity, Term, VolumeGradient
from integrodiff.stages._arrays import Array, namespace, plain
from integrodiff.stages.domain import flux_reach
from integrodiff.stages.haar_volume import triple_weight
from integrodiff.stages.structure_tensor import SIGNS, SymmetricTensor, VolumeTensor

MOST_SCALES = {2: PLANES, 3: PLANES - 6}
"""Scales that kernels have arguments for, in two and three dimensions."""

# Radii that kernels on tiles are compiled for; shorter kernels are filled up with zeros.
_RADII = (*range(33), 40, 48, 56)
# Threads of a block on tiles: a small one has too few tasks for more.
_THREADS, _THREADS_ON_TILES = 256, 512
_ON_TILES = ("scales.cuh", "fields.cuh")
_TILE, _SMALL_TILE = 64, 32

# As in kernels/gates.cuh, kernels/volume.cuh and kernels/scales.cuh.
_MIX, _TWIST, _COUPLING, _FLUX, _RATE, _CLEAR = 0, 1, 16, 32, 48, 64
_TRIPLE, _SPACING, _UNITS, _SHARES = 2, 4, 7, 10
_FIRST_TAP = 2
# Order one in images: warps of a block, the rows that each of them goes down, and columns of pixels
# that it has, as in kernels/first_order.cuh.
_WARPS, _WARP_ROWS, _STRIP = 4, 8, 31
# Pixels or voxels whose flows a block computes: the first that the GPU has the memory for.
_BLOCKS = {
    2: ((8, 32), (4, 32), (2, 32), (2, 8)),
    3: ((4, 8, 32), (2, 8, 32), (2, 4, 32), (1, 4, 32)),
}
_RUN, _AXIS_ROWS, _AXIS_SPAN = 8, 32, 64

# Signs of the entries of J across the borders, in the order of the kernels.
_SIGNS = {
    2: tuple(SIGNS[name][-2:] for name in SymmetricTensor._fields),
    3: tuple(SIGNS[name] for name in VolumeTensor._fields),
}


_Choice = TypeVar("_Choice")


class Memory:
    """Working memory on a device, which all steps of an image share.

    Parameters
    ----------
    device : Device
        Where the memory is.
    like : array
        An array of the library and the dtype that memory is made with.
    precision : type
        Of a number, or of each of its parts.
    parts : int
        How many parts a number has; they are next to each other.
    """

    def __init__(
        self, device: Device, like: Array, precision: type[np.floating[Any]], parts: int = 1
    ) -> None:
        self.device, self.precision, self.parts = device, precision, parts
        self._like, self._xp = like, namespace(like)
        self._arrays: dict[Any, Array] = {}
        self._inner = () if parts == 1 else (parts,)

    def address(self, array: Array) -> int:
        """Return where an array of the device begins."""
        return self.device.address(array)

    def space(self, name: object, shape: tuple[int, ...]) -> int:
        """Return the address of an array of some name, made when it is asked for first."""
        if (name, shape) not in self._arrays:
            with enough_memory():
                made = self._xp.empty(
                    (*shape, *self._inner), dtype=self._like.dtype, device=self._like.device
                )
            self._arrays[name, shape] = made
        return self.address(self._arrays[name, shape])

    def zeros(self, shape: tuple[int, ...]) -> int:
        """Return the address of an array of zeros that nobody writes to."""
        if ("zeros", shape) not in self._arrays:
            made = self._xp.zeros(
                (*shape, *self._inner), dtype=self._like.dtype, device=self._like.device
            )
            self._arrays["zeros", shape] = made
        return self.address(self._arrays["zeros", shape])

    def moved(self, name: object, values: Any) -> int:
        """Return the address of values, moved from the host when they are asked for first."""
        if (name,) not in self._arrays:
            if isinstance(values, type(self._like)) and not isinstance(values, np.ndarray):
                made = self._xp.empty(values.shape, dtype=self._like.dtype, device=values.device)
                made[...] = values
            else:
                host = np.ascontiguousarray(values, self.precision)
                made = self._xp.asarray(host, device=self._like.device)
            self._arrays[name,] = made
        return self.address(self._arrays[name,])

    def taps(self, taps: Taps) -> int:
        """Return the address of a whole kernel with zeros around it."""
        return self.moved(taps, whole_kernel(taps))

    def arguments(self, **given: Any) -> NDArray[Any]:
        """Return the arguments of a kernel that works in this memory."""
        return arguments(self.precision, **given)

    def defines(self) -> dict[str, object]:
        """Return the definition of a number for the compiler."""
        return {"REAL": "float" if self.precision is np.float32 else "double"}

    @property
    def itemsize(self) -> int:
        """Bytes of a number."""
        return np.dtype(self.precision).itemsize * self.parts

    @property
    def tile(self) -> int:
        """Side of the tiles that images are smoothed on."""
        return _TILE if self.precision is np.float32 and self.parts <= 2 else _SMALL_TILE


def whole_kernel(taps: Taps) -> list[float]:
    """Return both halves of a kernel with zeros around them, as a blur along an axis reads it."""
    zeros = [0.0] * _RUN
    return [*zeros, *taps[:0:-1], *taps, *zeros]


class Step(ABC):
    """One step of some images of a batch.

    Parameters
    ----------
    memory : Memory
        Working memory.
    kernels : Kernels
        What to compute.
    step : int
        Number of the step, counted from zero.
    image, original : array
        The images, which are changed in place, and the input where there is a fidelity weight.
    local : Sensitivity, optional
        For noise that varies over the image.
    domain : Domain, optional
        For images with invalid pixels.
    at_once : int
        Number of images that memory is taken for.
    """

    def __init__(
        self,
        memory: Memory,
        kernels: Kernels,
        step: int,
        image: Array,
        original: Array | None,
        local: Sensitivity | None,
        domain: Domain | None,
        at_once: int,
    ) -> None:
        evolution = kernels.evolution
        self.memory, self.kernels = memory, kernels
        self.local, self.domain = local, domain
        self.terms = evolution.terms(step)
        self.integrations = kernels.integrations[0 if len(kernels.integrations) == 1 else step]
        self.tau, self.pull = plain(evolution.tau), plain(evolution.pull_at(step))
        self.image = memory.address(image)
        self.original = 0 if original is None else memory.address(original)
        self.images, self.channels = image.shape[:2]
        self.size = tuple(image.shape[2 : 2 + evolution.dimensions])
        self.planes = self.images * self.channels
        # Of the largest part, so that all parts of a batch share it.
        self.shape = (at_once * self.channels, *self.size)
        self.at_once = at_once
        self._launches: list[Launch] = []
        self.tile = memory.tile
        self.defines: dict[str, object] = {**memory.defines(), "TILE": self.tile}
        if math.prod(self.size) * memory.itemsize >= 2**32:
            self.defines["LARGE_PLANES"] = 1

    def launches(self) -> list[Launch]:
        """Return the kernels of the step, in order."""
        active = [
            (term, integration)
            for term, integration in zip(self.terms, self.integrations, strict=True)
            if term.scales_in_flux
        ]
        needed = {i for term, _ in active for i in (*term.scales_in_coupling, *term.scales_in_flux)}
        smoothed = self.smooth(sorted(needed))
        flows: dict[int, int] = {}
        for term, integration in active:
            self.flow(term, integration, smoothed, flows)
        self.gather(flows)
        return self._launches

    @abstractmethod
    def smooth(self, scales: Sequence[int]) -> dict[int, int]:
        """Return where the smoothed images of some scales are."""

    @abstractmethod
    def flow(
        self, term: Term, integration: AxisTaps, smoothed: dict[int, int], flows: dict[int, int]
    ) -> None:
        """Add the kernels of one term, and note where the flows of its scales are."""

    @abstractmethod
    def gather(self, flows: dict[int, int]) -> None:
        """Add the flows of all scales, each smoothed at its scale, to the image."""

    @property
    def masked(self) -> dict[str, object]:
        """What tells kernels whether there are invalid pixels."""
        return {"MASKED": int(self.domain is not None)}

    def launch(
        self,
        source: str,
        kernel: str,
        grid: tuple[int, int, int],
        shared: int = 0,
        defines: Mapping[str, object] | None = None,
        **given: Any,
    ) -> None:
        """Add a kernel with the arguments that are given; ``taps`` go to the memory."""
        taps: Taps = given.pop("taps", ())
        if taps:
            given["extra"] = [self.memory.taps(taps)]
        made = self.memory.arguments(**given)
        on_large_tile = source in _ON_TILES and self.tile == _TILE
        threads = {"THREADS": _THREADS_ON_TILES if on_large_tile else _THREADS}
        defines = {**self.defines, **threads, **(defines or {})}
        self._launches.append(Launch(source, kernel, defines, grid, made, shared, taps))

    def term_arguments(
        self, term: Term, scales: Sequence[int], smoothed: dict[int, int], flows: dict[int, int]
    ) -> dict[str, Any]:
        """Return the arguments that the kernels of a term share, for some scales in their order."""
        operator = term.derivatives
        damping = 0.0
        if isinstance(operator, (HaarGradient, VolumeGradient)):
            damping = 1 - 2 * operator.theta
        # Factors of derivatives and gates that the kernels leave out.
        coupling, flux = (0.25, 0.125) if isinstance(operator, HaarGradient) else (1.0, 1.0)
        numbers = {
            _MIX: [plain(term.coupling.mix)],
            _TWIST: [damping],
            _COUPLING: [coupling * plain(term.coupling.weights[i]) for i in scales],
            _FLUX: [flux * plain(term.flux_weights[i]) for i in scales],
            _RATE: [
                -1 / (2 * math.log(2) * plain(term.diffusivity.contrasts[i]) ** 2) for i in scales
            ],
        }
        if self.domain is not None:
            numbers[_CLEAR] = [
                operator.radius + flux_reach(operator, self.kernels.evolution.scales[i])
                for i in scales
            ]
        return {
            "input": [smoothed[i] for i in scales],
            "size": self.size,
            "channels": self.channels,
            "flags": [i in flows for i in scales],
            "numbers": numbers,
        }

    def block(self, order: int, scales: int) -> tuple[tuple[int, ...], int]:
        """Return the size of the blocks that compute flows, and how many numbers these share."""
        blocks = _BLOCKS[len(self.size)]
        return self.first_that_fits(
            (block, _shared_of_flows(order, block, scales)) for block in blocks
        )

    def first_that_fits(self, choices: Iterable[tuple[_Choice, int]]) -> tuple[_Choice, int]:
        """Return the first choice whose blocks share no more numbers than the GPU lets them."""
        shared = 0
        for choice, shared in choices:
            if shared * self.memory.itemsize <= self.memory.device.shared_bytes():
                return choice, shared
        raise ValueError(
            f"blocks of the GPU have {self.memory.device.shared_bytes()} bytes of shared memory, "
            f"fewer than the {shared * self.memory.itemsize} that are needed"
        )

    def known_at(self, term: Term, fields: Sequence[int] = ()) -> list[int]:
        """Return what the kernels of a term know of places, as kernels/gates.cuh has it.

        That is where the factors of the structure tensor are, ``fields``, distances and shares.
        """
        local = distances = share = 0
        operator, scale = term.derivatives, term.coupling.integration_scale
        if self.local is not None:
            local = self.memory.moved(("local", operator.grid), self.local.at(operator.grid))
        if self.domain is not None:
            found = self.domain.distances.at(operator.grid)
            distances = self.memory.moved(("distances", operator.grid), found)
            if plain(scale):
                inverse = 1 / self.domain.share_of_known(operator, scale)
                share = self.memory.moved(("share", operator, plain(scale)), inverse)
        return [local, *fields, *[0] * (3 - len(fields)), distances, share]

    def flow_outputs(self, term: Term, flows: dict[int, int]) -> list[int]:
        """Return where the flows of a term go."""
        for i in term.scales_in_flux:
            flows[i] = self.memory.space(("flow", i), self.shape)
        return [flows[i] for i in term.scales_in_flux]

    def smooth_along(
        self,
        axis: int,
        source: int,
        target: int,
        taps: Taps,
        planes: int,
        size: Sequence[int],
        *,
        mirror: int = 0,
        sign: int = 1,
        add: bool = False,
    ) -> None:
        """Smooth planes of some size along one of their axes."""
        length, inner, radius = size[axis], math.prod(size[axis + 1 :]), len(taps) - 1
        lines = planes * math.prod(size) // length
        given: dict[str, Any] = {
            "input": [source],
            "output": [target],
            "taps": taps,
            "inner": inner,
            "lines": lines,
            "count": [length, radius, mirror, sign],
            "flags": [add],
        }
        shared = _AXIS_ROWS * ((_AXIS_SPAN + 2 * radius | 1) + _AXIS_SPAN + 1)
        if inner == 1 and shared * self.memory.itemsize <= self.memory.device.shared_bytes():
            grid = (-(-lines // _AXIS_ROWS), -(-length // _AXIS_SPAN), 1)
            self.launch("axis.cuh", "smooth_rows", grid, shared, **given)
        else:
            grid = (-(-lines // _THREADS), -(-length // _RUN), 1)
            self.launch("axis.cuh", "smooth_axis", grid, **given)

    def smooth_all(
        self,
        source: int,
        target: int,
        axes: AxisTaps,
        planes: int,
        size: Sequence[int],
        *,
        mirror: int = 0,
        signs: Sequence[int] | None = None,
        add: bool = False,
    ) -> None:
        """Smooth planes along all axes; the target may be the source, unless it is added to."""
        signs = (1,) * len(size) if signs is None else signs
        shape = (self.shape[0], *(n + mirror for n in self.size))
        passes = [axis for axis in reversed(range(len(size))) if len(axes[axis]) > 1 or axis == 0]
        if source == target and len(passes) == 1:  # by way of other memory
            passes = [len(size) - 1, *passes]
        current = source
        for n, axis in enumerate(passes):
            last = n == len(passes) - 1
            to = target if last else self.memory.space(("between", n % 2), shape)
            if to == current:  # in place
                to = self.memory.space(("between", (n + 1) % 2), shape)
            self.smooth_along(
                axis,
                current,
                to,
                axes[axis],
                planes,
                size,
                mirror=mirror,
                sign=signs[axis],
                add=add and last,
            )
            current = to


class ImageStep(Step):
    """A step in two dimensions: blurs on tiles, derivatives of orders one to four."""

    def smooth(self, scales: Sequence[int]) -> dict[int, int]:
        """Smooth all scales from one tile, but for those with long kernels."""
        found, in_tiles = {}, []
        for i in scales:
            axes = self.kernels.blurs[i]
            found[i] = self.image
            if is_blur(axes):
                found[i] = self.memory.space(("smoothed", i), self.shape)
                if i in self._on_tiles:
                    in_tiles.append(i)
                else:
                    self.smooth_all(self.image, found[i], axes, self.planes, self.size)
        if in_tiles:
            radii, taps = self._tile_kernels([self.kernels.blurs[i] for i in in_tiles])
            self._launch_tiles(
                "scale_space",
                radii,
                input=[self.image],
                output=[found[i] for i in in_tiles],
                numbers={_FIRST_TAP: taps},
            )
        return found

    def flow(
        self, term: Term, integration: AxisTaps, smoothed: dict[int, int], flows: dict[int, int]
    ) -> None:
        """Add ``flows``, and before it ``structure`` where J is smoothed or of higher order."""
        order = term.derivatives.order
        source = "first_order.cuh" if order == 1 else "higher_order.cuh"
        tensor = term.coupling.kind == "tensor"
        on_cells = int(term.derivatives.grid == "cells")
        rows, columns = (n + on_cells for n in self.size)
        is_given = order > 1 or is_blur(integration)
        defines: dict[str, object] = {
            "ORDER": order,
            "TENSOR": int(tensor),
            "GIVEN": int(is_given),
            "JOINT": int(self.channels > 1),
            "FLUXES": len(term.scales_in_flux),
            "ADDS": int(any(i in flows for i in term.scales_in_flux)),
            **self.masked,
        }
        cells: tuple[int, ...]
        pixels: tuple[int, ...]
        if order == 1:
            defines |= {"WARPS": _WARPS, "BLOCK_ROWS": _WARP_ROWS, "THREADS": 32 * _WARPS}
            cells = (_WARPS * _WARP_ROWS, 32)
            pixels = (cells[0], _STRIP)
            shared = 0
        else:
            pixels, shared = self.block(order, len(term.scales_in_flux))
            cells = pixels
            threads = _threads_of_flows(order, pixels)
            defines |= {
                "BLOCK_ROWS": pixels[0],
                "BLOCK_COLUMNS": pixels[1],
                "THREADS": threads,
            }
        fields: list[int] = []
        if is_given:
            shape = (self.at_once, rows, columns)
            entries = range(3 if tensor else 1)
            fields = [self.memory.space(("field", n), shape) for n in entries]
            grid = (-(-columns // cells[1]), -(-rows // cells[0]), self.images)
            scales = term.scales_in_coupling
            self.launch(
                source,
                "structure",
                grid,
                0,
                {**defines, "COUNT": len(scales)},
                output=fields,
                extra=self.known_at(term),
                **self.term_arguments(term, scales, smoothed, flows),
            )
            if is_blur(integration):
                fields = self._integrated(fields, integration, on_cells)
        scales = scales_of_flows(term, is_given=is_given)
        common = self.term_arguments(term, scales, smoothed, flows)
        height, width = self.size
        self.launch(
            source,
            "flows",
            (-(-width // pixels[1]), -(-height // pixels[0]), self.images),
            shared,
            {**defines, "COUNT": len(scales)},
            output=self.flow_outputs(term, flows),
            extra=self.known_at(term, fields),
            **common,
        )

    def _integrated(self, fields: Sequence[int], axes: AxisTaps, on_cells: int) -> list[int]:
        """Smooth the entries of a structure tensor; the mixed one is odd across borders."""
        rows, columns = (n + on_cells for n in self.size)
        shape = (self.at_once, rows, columns)
        found = [self.memory.space(("smooth field", n), shape) for n in range(len(fields))]
        signs = _SIGNS[2][: len(fields)]
        if not self._fits(axes):
            for source, target, sign in zip(fields, found, signs, strict=True):
                size = (rows, columns)
                self.smooth_all(
                    source, target, axes, self.images, size, mirror=on_cells, signs=sign
                )
            return found
        (radius,), taps = self._tile_kernels([axes])
        blocks = (-(-columns // self.tile), -(-rows // self.tile), self.images * len(fields))
        self.launch(
            "fields.cuh",
            "smooth_fields",
            blocks,
            self._shared_of_tile(radius),
            {"RADII": radius},
            input=fields,
            output=found,
            size=(rows, columns),
            count=[self.images, 0, on_cells],
            flags=[sign[0] for sign in signs],
            numbers={0: taps},
        )
        return found

    def gather(self, flows: dict[int, int]) -> None:
        """Smooth and add up all flows on one tile, and take the step."""
        sources, kernels = [], []
        for i, source in sorted(flows.items()):
            axes = self.kernels.blurs[i]
            if i not in self._on_tiles:
                self.smooth_all(source, source, axes, self.planes, self.size)
                axes = (NO_BLUR, NO_BLUR)
            sources.append(source)
            kernels.append(axes)
        if not flows:  # the fidelity term alone
            sources, kernels = [self.memory.zeros(self.shape)], [(NO_BLUR, NO_BLUR)]
        radii, taps = self._tile_kernels(kernels)
        self._launch_tiles(
            "gather",
            radii,
            input=sources,
            output=[self.image],
            extra=[self.original],
            numbers={0: [self.tau, self.pull, *taps]},
        )

    @cached_property
    def _on_tiles(self) -> set[int]:
        """Scales that are smoothed on tiles: as many as there are numbers for their taps."""
        found, left = set(), NUMBERS - _FIRST_TAP - len(self.kernels.blurs)
        for i, axes in enumerate(self.kernels.blurs):
            radius = _padded_radius(axes)
            if radius is not None and radius <= left and self._fits(axes):
                found.add(i)
                left -= radius
        return found

    def _fits(self, axes: AxisTaps) -> bool:
        """Whether a blur is done on tiles: its kernel is short, and there is the memory."""
        radius = _padded_radius(axes)
        if radius is None:
            return False
        needed = self._shared_of_tile(radius) * self.memory.itemsize
        return needed <= self.memory.device.shared_bytes()

    def _shared_of_tile(self, radius: int) -> int:
        """Return how many numbers a blur on tiles shares, as kernels/smooth.cuh has it.

        These are the tile with its margin, and what is smoothed along rows.
        """
        pack = 16 // self.memory.itemsize if 16 % self.memory.itemsize == 0 else 1

        def pitch(columns: int) -> int:
            return pack * (-(-columns // pack) | 1)

        columns = self.tile + 2 * pack * -(-radius // pack)
        return (self.tile + 2 * radius) * (pitch(columns) + pitch(self.tile))

    def _tile_kernels(self, kernels: Sequence[AxisTaps]) -> tuple[list[int], list[float]]:
        """Return radii that there are kernels for, and all taps one after the other."""
        radii, taps = [], []
        for axes in kernels:
            radius = _padded_radius(axes) or 0
            radii.append(radius)
            taps += [*axes[0], *[0.0] * (radius + 1 - len(axes[0]))]
        return radii, taps

    def _launch_tiles(self, kernel: str, radii: Sequence[int], **given: Any) -> None:
        height, width = self.size
        grid = (-(-width // self.tile), -(-height // self.tile), self.planes)
        shared = self._shared_of_tile(max(radii))
        defines: dict[str, object] = {"RADII": ",".join(map(str, radii))}
        self.launch("scales.cuh", kernel, grid, shared, defines, size=self.size, **given)


class VolumeStep(Step):
    """A step in three dimensions: blurs along the axes, derivatives of order one."""

    def smooth(self, scales: Sequence[int]) -> dict[int, int]:
        """Smooth scale by scale."""
        found = {}
        for i in scales:
            axes = self.kernels.blurs[i]
            found[i] = self.image
            if is_blur(axes):
                found[i] = self.memory.space(("smoothed", i), self.shape)
                self.smooth_all(self.image, found[i], axes, self.planes, self.size)
        return found

    def flow(
        self, term: Term, integration: AxisTaps, smoothed: dict[int, int], flows: dict[int, int]
    ) -> None:
        """Add ``flows``, and before it ``structure`` where J is smoothed."""
        operator = term.derivatives
        if not isinstance(operator, VolumeGradient):
            raise TypeError(f"{type(operator).__name__} is not for volumes")
        tensor = term.coupling.kind == "tensor"
        in_space = {
            _TRIPLE: [triple_weight(operator.theta) / 6],
            _SPACING: list(operator.spacing),
            _UNITS: list(operator.units or operator.spacing),
            _SHARES: list(operator.twists),
        }
        known = self.known_at(term)
        cells = tuple(n + 1 for n in self.size)
        block, shared = self.block(1, len(term.scales_in_flux))
        defines = {**_volume_block(block), **self.masked}
        fields: list[int] = []
        if is_blur(integration):
            shape = (self.at_once, *cells)
            fields = [self.memory.space(("field", n), shape) for n in range(6 if tensor else 1)]
            deep, high, wide = (-(-n // (b + 1)) for n, b in zip(cells, block, strict=True))
            scales = term.scales_in_coupling
            given = self.term_arguments(term, scales, smoothed, flows)
            given["numbers"] |= in_space
            more = {"output": fields, "extra": known, "count": [len(scales), tensor, 0, deep]}
            grid = (wide, high, deep * self.images)
            self.launch("volume.cuh", "structure", grid, 0, defines, **given, **more)
            for field, signs in zip(fields, _SIGNS[3], strict=False):
                self.smooth_all(
                    field, field, integration, self.images, cells, mirror=1, signs=signs
                )
        scales = scales_of_flows(term, is_given=bool(fields))
        given = self.term_arguments(term, scales, smoothed, flows)
        given["numbers"] |= in_space
        given["input"] = [*given["input"], *[0] * (PLANES - 6 - len(scales)), *fields]
        deep, high, wide = (-(-n // b) for n, b in zip(self.size, block, strict=True))
        more = {
            "output": self.flow_outputs(term, flows),
            "extra": known,
            "count": [len(scales), tensor, bool(fields), deep],
        }
        grid = (wide, high, deep * self.images)
        self.launch("volume.cuh", "flows", grid, shared, defines, **given, **more)

    def gather(self, flows: dict[int, int]) -> None:
        """Smooth flows scale by scale into their sum, and take the step."""
        total = self.memory.space("total", self.shape) if flows else self.memory.zeros(self.shape)
        for n, (i, flow) in enumerate(sorted(flows.items())):
            self.smooth_all(flow, total, self.kernels.blurs[i], self.planes, self.size, add=n > 0)
        count = self.planes * math.prod(self.size)
        self.launch(
            "volume.cuh",
            "update",
            (-(-count // (4 * _THREADS)), 1, 1),
            0,
            {**_volume_block(self.block(1, len(flows))[0]), **self.masked},
            input=[total],
            output=[self.image],
            extra=[self.original],
            lines=count,
            numbers={0: [self.tau, self.pull]},
        )


def scales_of_flows(term: Term, *, is_given: bool) -> list[int]:
    """Return what ``flows`` reads: scales with a flow, then those for a structure tensor only."""
    in_flux = term.scales_in_flux
    if is_given:
        return in_flux
    return [*in_flux, *(i for i in term.scales_in_coupling if i not in in_flux)]


def _padded_radius(axes: AxisTaps) -> int | None:
    """Return the radius that a kernel is filled up to, or None if it is longer than all."""
    longest = max(len(taps) for taps in axes) - 1
    return next((radius for radius in _RADII if radius >= longest), None)


def _shared_of_flows(order: int, block: tuple[int, ...], scales: int) -> int:
    """Return how many numbers a block shares for flows of volumes, or above order one."""
    if len(block) == 3:
        return 17 * math.prod(n + 1 for n in block)
    return (order + 1) * scales * math.prod(n + order for n in block)


def _threads_of_flows(order: int, block: tuple[int, ...]) -> int:
    """Return a thread for each value that a block of an image needs, in whole warps."""
    values = math.prod(n + order for n in block)
    return 32 * -(-values // 32)


def _volume_block(block: tuple[int, ...]) -> dict[str, object]:
    return {"BLOCK_SLICES": block[0], "BLOCK_ROWS": block[1], "BLOCK_COLUMNS": block[2]}
