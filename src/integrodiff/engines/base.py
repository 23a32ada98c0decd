"""The contract of an engine: prepare an evolution, start it on an image, advance it, read it.

::

    process = engine.prepare(model.evolution(25.0))   # kernels; no image yet
    state = process.start(image)                      # the image moves to the engine's memory
    while state.step < state.steps:
        state.advance()                               # one explicit step, in place
    result = state.image()                            # the image comes back

Images are arrays ``(*batch, channel, row, column)`` of grey values on the scale [0, 255], in
float32 or float64; of an evolution in three dimensions, they are volumes
``(*batch, channel, slice, row, column)``, and so are maps and masks. What comes out is an array of
the kind that went in. An engine holds no parameters of models.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any, ClassVar, TypeAlias

import numpy as np
from numpy.typing import NDArray

from integrodiff.errors import EngineUnavailableError
from integrodiff.stages import Evolution
from integrodiff.stages._arrays import Array, namespace

FloatImage: TypeAlias = NDArray[np.floating[Any]]
Mask: TypeAlias = NDArray[np.bool_]
ImageCallback: TypeAlias = Callable[[int, Array], object]
"""Called with the number of steps that are done and a copy of the image."""


def known_noise(relative_noise: Array, mask: Array | None) -> Array:
    """Return relative noise levels with one at invalid pixels, whose noise does not count."""
    if mask is None:
        return relative_noise
    xp = namespace(relative_noise)
    return xp.where(mask, relative_noise, xp.ones_like(relative_noise))


class State(ABC):
    """An image on its way through the steps of a process.

    Attributes
    ----------
    steps : int
        Number of steps of the process.
    step : int
        Number of steps that are done.
    """

    def __init__(self, steps: int) -> None:
        self.steps = steps
        self.step = 0

    def advance(self, steps: int | None = None) -> None:
        """Take some steps, or all that are left.

        The result does not depend on how the steps are divided among calls.
        """
        left = self.steps - self.step
        count = left if steps is None else steps
        if not 0 <= count <= left:
            raise ValueError(f"cannot take {count} steps: {left} of {self.steps} are left")
        if count:
            self._advance(count)
            self.step += count

    @abstractmethod
    def _advance(self, count: int) -> None:
        """Take the next steps; there are as many."""

    @abstractmethod
    def image(self) -> Array:
        """Return a copy of the image as it is now, of the kind and dtype it was given as."""

    def read(self, target: Array) -> None:
        """Write the image as it is now to an array of its shape and dtype."""
        target[...] = self.image()


class Process(ABC):
    """An evolution prepared for images of any shape; it may serve several threads at once.

    Attributes
    ----------
    evolution : Evolution
        What is computed.
    """

    def __init__(self, evolution: Evolution) -> None:
        self.evolution = evolution

    def release(self) -> None:
        """Give back the memory that is kept for the next image, if there is any."""
        return

    @abstractmethod
    def start(self, image: Array) -> State:
        """Return the state before the first step; the image itself is never changed."""

    def __call__(self, image: Array, callback: ImageCallback | None = None) -> Array:
        """Return ``image`` after all steps; ``callback(step, image)`` sees it after each."""
        state = self.start(image)
        if callback is None:
            state.advance()
        else:
            while state.step < state.steps:
                state.advance(1)
                callback(state.step, state.image())
        return state.image()


class Engine(ABC):
    """A compute backend.

    Attributes
    ----------
    name, description : str
        What it is called, and what it is.
    libraries : tuple of str
        Names of libraries, besides NumPy, whose arrays stay where they are: images, and maps and
        masks of the same library on the same device. The first one opens arrays of others.
    """

    name: ClassVar[str]
    description: ClassVar[str]
    libraries: ClassVar[tuple[str, ...]] = ()

    @abstractmethod
    def unavailable(self) -> str | None:
        """Return why the engine cannot run here and what would help, or None if it can."""

    def refuses(self, evolution: Evolution, *, masked: bool = False) -> str | None:
        """Return which part of an evolution the engine cannot compute, or None."""
        return None

    def require(self, evolution: Evolution, *, masked: bool = False) -> None:
        """Raise an error if the engine cannot compute an evolution.

        Raises
        ------
        EngineUnavailableError
            It names what is refused, and the engines that take everything.
        """
        reason = self.refuses(evolution, masked=masked)
        if reason is not None:
            raise EngineUnavailableError(
                f"the engine {self.name!r} does not take {reason}; "
                "take engine='numpy' or engine='torch'"
            )

    @abstractmethod
    def threads(self) -> str:
        """Describe how many threads the engine uses."""

    @abstractmethod
    def prepare(
        self,
        evolution: Evolution,
        *,
        exact: bool = False,
        threads: int | None = None,
        relative_noise: Array | None = None,
        noise_span: tuple[float, float] | None = None,
        mask: Array | None = None,
    ) -> Process:
        """Return a process that runs an evolution on many images.

        Parameters
        ----------
        evolution : Evolution
            What to compute.
        exact : bool
            Take no shortcuts. Only the engine ``native`` has any.
        threads : int, optional
            Number of threads of the engine ``native``; the others have settings of their own.
        relative_noise : array, optional
            For images of one shape whose noise varies over the image: its level at each pixel,
            relative to the level of the evolution.
        noise_span : (float, float), optional
            Lowest and highest relative level of the whole image, if ``relative_noise`` is that of
            a part of it: all parts are to take the same shortcuts.
        mask : array of bool, optional
            For images of one shape with invalid pixels: True at the valid ones. The others may
            have any value, NaN included; they do not count and come back as they were. The steps of
            the process are those of :func:`integrodiff.stages.stable_on_masks`.
        """

    def working_memory(
        self,
        evolution: Evolution,
        shape: tuple[int, ...],
        dtype: np.dtype[Any],
        *,
        exact: bool = False,
        threads: int | None = None,
        mapped: bool = False,
        masked: bool = False,
    ) -> int | None:
        """Return how many bytes the steps take beside image and result; None if it is not known.

        The shape is that of an image ``(channel, row, column)`` or of a volume ``(channel, slice,
        row, column)``. ``mapped`` means with a map of noise levels, ``masked`` with invalid pixels.
        """
        return None

    def evolve(
        self,
        image: Array,
        evolution: Evolution,
        callback: ImageCallback | None = None,
        *,
        exact: bool = False,
        threads: int | None = None,
        relative_noise: FloatImage | None = None,
        mask: Mask | None = None,
    ) -> Array:
        """Return ``image`` after all steps; see :meth:`prepare`."""
        process = self.prepare(
            evolution, exact=exact, threads=threads, relative_noise=relative_noise, mask=mask
        )
        return process(image, callback)
