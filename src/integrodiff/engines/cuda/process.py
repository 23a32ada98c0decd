"""An evolution on a GPU: the image and the working memory of its steps."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np

from integrodiff.engines.base import Process, State, known_noise
from integrodiff.engines.cuda.arrays import enough_memory, on_device
from integrodiff.engines.cuda.blurs import Kernels, exact_kernels, short_kernels
from integrodiff.engines.cuda.launch import Device
from integrodiff.engines.cuda.steps import ImageStep, Memory, Step, VolumeStep
from integrodiff.engines.cuda.walks import MaskedImageStep, MaskedVolumeStep
from integrodiff.engines.masked import Masked
from integrodiff.engines.shortcuts import SAME_EVERYWHERE, Span
from integrodiff.stages import Evolution, sensitivity, stable_on_masks
from integrodiff.stages._arrays import Array, namespace, plain

PIXELS_AT_ONCE = 2**23
"""Most pixels of a batch that take their steps together; working memory is for these alone."""

_LARGEST_GRID, _ENTRIES = 2**16 - 1, 3
"""Blocks of a grid along its last axis, at most; entries of a structure tensor of images."""

_STEPS: dict[tuple[int, bool], type[Step]] = {
    (2, False): ImageStep,
    (2, True): MaskedImageStep,
    (3, False): VolumeStep,
    (3, True): MaskedVolumeStep,
}
"""By the number of dimensions, and whether there is a mask."""


class CudaProcess(Process):
    """An evolution prepared for images of any shape.

    Parameters
    ----------
    evolution : Evolution
        The process.
    exact : bool
        Take kernels up to rounding, and all scales.
    relative_noise, noise_span, mask : optional
        As in :meth:`.Engine.prepare`. With a mask no shortcuts are taken.
    """

    def __init__(
        self,
        evolution: Evolution,
        *,
        exact: bool = False,
        relative_noise: Array | None = None,
        noise_span: Span | None = None,
        mask: Array | None = None,
    ) -> None:
        self._short = None
        if mask is not None:
            evolution = stable_on_masks(evolution)
        elif not exact:
            span = SAME_EVERYWHERE
            if relative_noise is not None:
                span = noise_span or (float(relative_noise.min()), float(relative_noise.max()))
            self._short = short_kernels(evolution, span)
        super().__init__(evolution if self._short is None else self._short.evolution)
        self._relative_noise = None
        if relative_noise is not None:
            self._relative_noise = known_noise(relative_noise, mask)
        self._mask = mask

    def kernels(self, precision: type[np.floating[Any]]) -> Kernels:
        """Return the kernels for a precision."""
        if self._short is not None:
            return self._short
        return exact_kernels(self.evolution, float(np.finfo(precision).eps) / 2)

    def start(self, image: Array) -> State:
        """Return the state before the first step; arrays of the host go to the GPU and back."""
        moved, device, back = on_device(image)
        return self.start_on(moved, device, back)

    def start_on(
        self, image: Array, device: Device, back: Callable[[Array], Array] | None = None
    ) -> State:
        """Return the state of an image in the memory of a device.

        ``back`` makes what :meth:`State.image` returns of the image there; by default it is a copy.
        """
        return CudaState(self, image, device, self._relative_noise, self._mask, back)


class CudaState(State):
    """A batch of images in the memory of a GPU."""

    def __init__(
        self,
        process: CudaProcess,
        image: Array,
        device: Device,
        relative_noise: Array | None,
        mask: Array | None,
        back: Callable[[Array], Array] | None,
    ) -> None:
        evolution = process.evolution
        super().__init__(evolution.steps)
        xp = namespace(image)
        self._xp, self._back, self._given = xp, back, image
        axes = 1 + evolution.dimensions
        batch, self._one = math.prod(image.shape[:-axes]), image.shape[-axes:]
        # A copy with rows one after the other, however the image lies in memory.
        shape = (batch, *self._one)
        with enough_memory():
            self._image = xp.empty(shape, dtype=image.dtype, device=image.device)
        self._masked = None
        if mask is not None:
            self._masked = Masked(mask, image, evolution)
            image = self._masked.cleared(image)
        self._image[...] = xp.reshape(image, shape)
        precision = np.float32 if image.dtype == xp.float32 else np.float64
        self._memory = Memory(device, self._image, precision)
        self._kernels = process.kernels(precision)
        self._original = None
        if any(plain(pull) for pull in evolution.pulls()):
            with enough_memory():
                self._original = xp.asarray(self._image, copy=True)
        self._local = None
        if relative_noise is not None:
            self._local = sensitivity(_in_double(relative_noise, self._one[1:]))
        self._compiled: dict[tuple[int, int], list[Callable[[], None]]] = {}
        self._at_once = images_at_once(batch, math.prod(self._one), math.prod(self._one[:-2]))

    def image(self) -> Array:
        """Return a copy of the image as it is now, where it was given."""
        found = self._xp.reshape(self._image, self._given.shape)
        if self._masked is not None:
            found = self._masked.restored(found, self._given)
        elif self._back is None:
            found = self._xp.asarray(found, copy=True)
        return found if self._back is None else self._back(found)

    def _advance(self, count: int) -> None:
        if 0 in self._image.shape:
            return
        # Parts of a batch take their steps in turn, in the same memory.
        with self._memory.device.active():
            for first in range(0, self._image.shape[0], self._at_once):
                for step in range(self.step, self.step + count):
                    for launch in self._launches(step, first):
                        launch()

    def _launches(self, step: int, first: int) -> list[Callable[[], None]]:
        """Return the kernels of a step; steps of the same entry of the schedule share them."""
        evolution = self._kernels.evolution
        if len(evolution.schedule) == 1 and not isinstance(evolution.pull, tuple):
            step = 0
        found = self._compiled.get((step, first))
        if found is None:
            kind = _STEPS[evolution.dimensions, self._masked is not None]
            part = slice(first, first + self._at_once)
            original = None if self._original is None else self._original[part, ...]
            made = kind(
                self._memory,
                self._kernels,
                step,
                self._image[part, ...],
                original,
                self._local,
                None if self._masked is None else self._masked.domain,
                self._at_once,
            )
            found = [self._memory.device.compiled(launch) for launch in made.launches()]
            self._compiled[step, first] = found
        return found


def images_at_once(batch: int, pixels: int, planes: int) -> int:
    """Return how many images of a batch take their steps together, in parts of about one size.

    Parameters
    ----------
    batch : int
        Number of images.
    pixels : int
        Number of values of an image.
    planes : int
        Number of its rows times columns: channels, times slices in volumes.
    """
    # Along the last axis of a grid are the planes of all images, or the entries of their tensors.
    most = min(PIXELS_AT_ONCE // max(1, pixels), _LARGEST_GRID // max(_ENTRIES, planes + 1))
    parts = max(1, -(-batch // max(1, most)))
    return -(-batch // parts)


def _in_double(levels: Array, size: tuple[int, ...]) -> Array:
    """Return noise levels, where they are, in double precision for images of a size."""
    xp = namespace(levels)
    shape = np.broadcast_shapes(tuple(levels.shape), tuple(size))
    return xp.astype(xp.broadcast_to(levels, shape), xp.float64)
