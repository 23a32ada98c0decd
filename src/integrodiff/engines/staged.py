"""The stages themselves as a process, on arrays of any namespace."""

from __future__ import annotations

from integrodiff.engines.base import State
from integrodiff.stages import Evolution, Sensitivity, explicit_step
from integrodiff.stages._arrays import Array, namespace


class StagedState(State):
    """An image that :func:`integrodiff.stages.explicit_step` advances where it lies.

    Parameters
    ----------
    image : array
        The image before the first step.
    evolution : Evolution
        What is computed.
    local : Sensitivity, optional
        For noise that varies over the image.
    """

    def __init__(
        self, image: Array, evolution: Evolution, local: Sensitivity | None = None
    ) -> None:
        super().__init__(evolution.steps)
        self._original = self._current = image
        self._evolution = evolution
        self._local = local

    def _advance(self, count: int) -> None:
        for step in range(self.step, self.step + count):
            self._current = explicit_step(
                self._current, self._evolution, step, self._original, self._local
            )

    def image(self) -> Array:
        """Return a copy of the image as it is now."""
        return namespace(self._current).asarray(self._current, copy=True)
