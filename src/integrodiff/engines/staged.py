"""The stages themselves as a process, on arrays of any namespace."""

from __future__ import annotations

from integrodiff.engines.base import State
from integrodiff.stages import Domain, Evolution, Sensitivity, explicit_step
from integrodiff.stages._arrays import Array, namespace
from integrodiff.stages.domain import flux_reach


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
        self._domain = self._valid = None
        if mask is not None:
            xp = namespace(image)
            self._domain = Domain(mask, image, evolution.spacing, _farthest(evolution))
            self._valid = xp.asarray(mask, device=image.device)
            self._original = xp.where(self._valid, image, xp.zeros_like(image))
        self._current = self._original

    def _advance(self, count: int) -> None:
        for step in range(self.step, self.step + count):
            self._current = explicit_step(
                self._current, self._evolution, step, self._original, self._local, self._domain
            )

    def image(self) -> Array:
        """Return a copy of the image as it is now."""
        xp = namespace(self._current)
        if self._valid is not None:
            return xp.where(self._valid, self._current, self._given)
        return xp.asarray(self._current, copy=True)


def _farthest(evolution: Evolution) -> int:
    """Return the distance beyond which invalid pixels have no effect on a step."""
    return 2 + max(
        term.derivatives.radius + flux_reach(term.derivatives, scale)
        for term in evolution.all_terms()
        for scale in evolution.scales
    )
