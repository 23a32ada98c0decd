"""The stages themselves as a process, on arrays of any namespace."""

from __future__ import annotations

from integrodiff.engines.base import State
from integrodiff.engines.masked import Masked
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
    mask : array of bool, optional
        True at valid pixels, where there are others.
    """

    def __init__(
        self,
        image: Array,
        evolution: Evolution,
        local: Sensitivity | None = None,
        mask: Array | None = None,
    ) -> None:
        super().__init__(evolution.steps)
        self._given = self._original = image
        self._evolution = evolution
        self._local = local
        self._masked = None
        if mask is not None:
            self._masked = Masked(mask, image, evolution)
            self._original = self._masked.cleared(image)
        self._current = self._original

    def _advance(self, count: int) -> None:
        domain = None if self._masked is None else self._masked.domain
        for step in range(self.step, self.step + count):
            self._current = explicit_step(
                self._current, self._evolution, step, self._original, self._local, domain
            )

    def image(self) -> Array:
        """Return a copy of the image as it is now."""
        if self._masked is not None:
            return self._masked.restored(self._current, self._given)
        return namespace(self._current).asarray(self._current, copy=True)
