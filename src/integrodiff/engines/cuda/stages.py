"""Stages on GPU arrays for what has no fused kernel: the nonnegativity scheme, and many scales."""

from __future__ import annotations

from collections.abc import Callable

from integrodiff.engines.base import Process, State, known_noise
from integrodiff.engines.cuda.arrays import on_device
from integrodiff.engines.staged import StagedState
from integrodiff.stages import Evolution, Sensitivity, sensitivity, stable_on_masks
from integrodiff.stages._arrays import Array, namespace


class StagedCudaProcess(Process):
    """The stages, operation by operation, on CuPy arrays or PyTorch tensors of a GPU.

    Parameters
    ----------
    evolution : Evolution
        The process.
    relative_noise, mask : array, optional
        As in :meth:`.Engine.prepare`.
    """

    def __init__(
        self, evolution: Evolution, relative_noise: Array | None, mask: Array | None
    ) -> None:
        super().__init__(evolution if mask is None else stable_on_masks(evolution))
        self._relative_noise, self._mask = relative_noise, mask

    def start(self, image: Array) -> State:
        """Return the state before the first step; arrays of the host go to the GPU and back."""
        moved, _, back = on_device(image)
        local = None
        if self._relative_noise is not None:
            levels = known_noise(self._relative_noise, self._mask)
            found = sensitivity(namespace(levels).astype(levels, namespace(levels).float64))
            xp = namespace(moved)
            local = Sensitivity(
                *(xp.asarray(part, dtype=moved.dtype, device=moved.device) for part in found)
            )
        return _StagedCudaState(moved, self.evolution, local, self._mask, back)


class _StagedCudaState(StagedState):
    """An image on a GPU that may have come from elsewhere."""

    def __init__(
        self,
        image: Array,
        evolution: Evolution,
        local: Sensitivity | None,
        mask: Array | None,
        back: Callable[[Array], Array] | None,
    ) -> None:
        super().__init__(image, evolution, local, mask)
        self._back = back

    def image(self) -> Array:
        """Return a copy of the image as it is now, where it was given."""
        found = super().image()
        return found if self._back is None else self._back(found)
