"""A process with the derivatives of its result: the same kernels, of numbers that carry tangents.

Every number that kernels are told, weights, contrasts and taps alike, depends on the parameters
smoothly. Its derivatives are central differences of what a step tells its kernels, in double
precision, for processes a little ahead of and behind the one that runs; from these on the kernels
differentiate themselves (``kernels/dual.cuh``). So there is no second copy of any formula.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from integrodiff.engines.cuda.arrays import enough_memory
from integrodiff.engines.cuda.blurs import Kernels
from integrodiff.engines.cuda.launch import Device, Launch, arguments, arguments_type
from integrodiff.engines.cuda.steps import ImageStep, Memory, whole_kernel
from integrodiff.engines.shortcuts import Taps
from integrodiff.stages._arrays import Array, namespace, plain

Near = tuple[Kernels, Kernels]
"""Kernels ahead of and behind others, by the same distance in one parameter."""

# Where the taps of kernels on tiles begin among their numbers.
_FIRST_TAP = {"scale_space": 2, "gather": 2, "smooth_fields": 0}


class _TangentMemory(Memory):
    """Working memory for numbers that carry tangents."""

    def arguments(self, **given: Any) -> NDArray[Any]:
        """Return arguments whose numbers are to be differentiated yet."""
        return arguments(np.float64, **given)

    def taps(self, taps: Taps) -> int:
        """Leave it to :class:`TangentProcess` to move kernels, with their tangents."""
        return 0

    def defines(self) -> dict[str, object]:
        """Return the definition of a number for the compiler."""
        return {**super().defines(), "TANGENTS": self.parts - 1}


class TangentProcess:
    """A process for images with its derivatives in some parameters, by forward mode.

    Parameters
    ----------
    kernels : Kernels
        What is computed.
    near : sequence of Near
        For each parameter what is computed a little ahead and behind, with the same radii.
    distance : float
        From behind to ahead.
    device : Device
        Where kernels run.
    tangents : int
        How many derivatives a number carries. With fewer than there are parameters, the process
        runs several times; more of them need more registers and more of the memory that is shared.
    """

    def __init__(
        self,
        kernels: Kernels,
        near: Sequence[Near],
        distance: float,
        device: Device,
        *,
        tangents: int = 1,
    ) -> None:
        self._kernels, self._distance, self._device = kernels, distance, device
        self._count, self._tangents = len(near), tangents
        # A group of parameters that is not full runs with some that change nothing.
        missing = -len(near) % tangents
        padded = [*near, *([(kernels, kernels)] * missing)]
        self._groups = [padded[i : i + tangents] for i in range(0, len(padded), tangents)]
        pulls = (
            plain(pull)
            for one in (kernels, *(one for pair in near for one in pair))
            for pull in one.evolution.pulls()
        )
        self._is_pulled = any(pulls)
        self._runs: dict[tuple[Any, ...], _Run] = {}

    def __call__(self, image: Array) -> tuple[Array, Array]:
        """Return the result for images ``(image, channel, row, column)``, and its derivatives.

        These are ``(parameter, image, channel, row, column)``.
        """
        key = (*image.shape, str(image.dtype), str(image.device))
        run = self._runs.get(key)
        if run is None:
            run = self._runs[key] = self._prepared(image)
        xp = namespace(image)
        with enough_memory():
            slopes = xp.empty((self._count, *image.shape), dtype=image.dtype, device=image.device)
        with self._device.active():
            for group, launches in enumerate(run.launches):
                run.image[...] = 0
                run.image[..., 0] = image
                if run.original is not None:
                    run.original[...] = run.image
                for launch in launches:
                    launch()
                first = group * self._tangents
                for k in range(min(self._tangents, self._count - first)):
                    slopes[first + k, ...] = run.image[..., 1 + k]
            value = xp.asarray(run.image[..., 0], copy=True)
        return value, slopes

    def _prepared(self, image: Array) -> _Run:
        """Return all launches for a batch of some shape."""
        precision = np.float32 if image.dtype == namespace(image).float32 else np.float64
        parts = 1 + self._tangents
        xp = namespace(image)
        with enough_memory():
            carried = xp.empty((*image.shape, parts), dtype=image.dtype, device=image.device)
            original = xp.empty_like(carried) if self._is_pulled else None
        memory = _TangentMemory(self._device, carried, precision, parts)

        def launches(kernels: Kernels, step: int) -> list[Launch]:
            made = ImageStep(memory, kernels, step, carried, original, None, None, image.shape[0])
            return made.launches()

        evolution = self._kernels.evolution
        varies = len(evolution.schedule) > 1 or isinstance(evolution.pull, tuple)
        groups: list[list[Callable[[], None]]] = [[] for _ in self._groups]
        with self._device.active():
            entries = []
            for step in range(evolution.steps if varies else 1):
                center = launches(self._kernels, step)
                entries.append(
                    [
                        self._compiled(
                            memory,
                            center,
                            [
                                (launches(ahead, step), launches(behind, step))
                                for ahead, behind in group
                            ],
                            (step, number),
                        )
                        for number, group in enumerate(self._groups)
                    ]
                )
        for step in range(evolution.steps):
            for number, found in enumerate(entries[step if varies else 0]):
                groups[number] += found
        return _Run(memory, carried, original, groups)

    def _compiled(
        self,
        memory: _TangentMemory,
        center: Sequence[Launch],
        near: Sequence[tuple[Sequence[Launch], Sequence[Launch]]],
        name: tuple[int, int],
    ) -> list[Callable[[], None]]:
        """Return the kernels of a step whose numbers carry the tangents of a group."""
        found = []
        for position, launch in enumerate(center):
            pairs = [(ahead[position], behind[position]) for ahead, behind in near]
            made = _with_tangents(launch, pairs, self._distance, memory.precision)
            if launch.taps:
                taps = _stacked(
                    whole_kernel(launch.taps),
                    [(whole_kernel(a.taps), whole_kernel(b.taps)) for a, b in pairs],
                    self._distance,
                )
                made.arguments["extra"][0, 0] = memory.moved((*name, position), taps)
            found.append(self._device.compiled(made))
        return found


class _Run:
    """The memory of a batch, and for each group of parameters the kernels of all steps."""

    def __init__(
        self,
        memory: Memory,
        image: Array,
        original: Array | None,
        launches: list[list[Callable[[], None]]],
    ) -> None:
        # Launches know addresses only, so the memory has to be kept.
        self.memory, self.image, self.original = memory, image, original
        self.launches = launches


def _with_tangents(
    launch: Launch,
    pairs: Sequence[tuple[Launch, Launch]],
    distance: float,
    precision: type[np.floating[Any]],
) -> Launch:
    """Return a launch whose numbers carry their differences between others, divided by a distance.

    Raises
    ------
    ValueError
        If these do something else.
    """
    names = [name for name in launch.arguments.dtype.names or () if name != "numbers"]
    known = (launch.kernel, launch.defines, _all_but_numbers(launch))
    for one in (one for pair in pairs for one in pair):
        if (one.kernel, one.defines, _all_but_numbers(one)) != known:
            raise ValueError(
                "a parameter changes which scales take part, so that there are no derivatives; "
                "take TorchLineariser"
            )
    numbers = _stacked(
        launch.arguments["numbers"][0],
        [(a.arguments["numbers"][0], b.arguments["numbers"][0]) for a, b in pairs],
        distance,
    )
    made = np.zeros(1, arguments_type(np.dtype(precision).char, 1 + len(pairs)))
    for name in names:
        made[name] = launch.arguments[name]
    made["numbers"][0] = numbers
    defines = dict(launch.defines)
    first_tap = _FIRST_TAP.get(launch.kernel)
    if first_tap is not None and not numbers[first_tap:, 1:].any():
        defines["CONSTANT_TAPS"] = 1
    return replace(launch, arguments=made, defines=defines)


def _all_but_numbers(launch: Launch) -> bytes:
    """Return the arguments of a kernel that are no numbers, which come last."""
    end = launch.arguments.itemsize - launch.arguments["numbers"].nbytes
    return launch.arguments.tobytes()[:end]


def _stacked(values: Any, pairs: Sequence[tuple[Any, Any]], distance: float) -> NDArray[np.float64]:
    """Return numbers with their derivatives, ``(number, 1 + parameter)``."""
    slopes = [(np.asarray(ahead) - np.asarray(behind)) / distance for ahead, behind in pairs]
    return np.stack([np.asarray(values, np.float64), *slopes], axis=1)
