"""The engine ``torch``: the stages on PyTorch tensors."""

from __future__ import annotations

import importlib.util
from typing import TYPE_CHECKING, Any

import numpy as np

from integrodiff.engines.base import Engine, FloatImage, Mask, Process, State, known_noise
from integrodiff.engines.gpu import driver_has_gpu
from integrodiff.engines.staged import StagedState
from integrodiff.install import install_hint
from integrodiff.stages import Evolution, sensitivity, stable_on_masks
from integrodiff.stages._arrays import Array

if TYPE_CHECKING:
    import torch


class TorchEngine(Engine):
    """The stages on PyTorch tensors; NumPy arrays are moved to the GPU if there is one."""

    name = "torch"
    description = "PyTorch, on the GPU if there is one"

    def unavailable(self) -> str | None:
        """Look for the package without importing it."""
        if importlib.util.find_spec("torch") is None:
            return f"PyTorch is not installed; {install_hint('torch')}"
        return None

    def has_gpu(self) -> bool:
        """Whether there is a GPU that PyTorch can use.

        PyTorch takes seconds to import, so the driver is asked first.
        """
        if self.unavailable() is not None or not driver_has_gpu():
            return False
        import torch

        return torch.cuda.is_available()

    def threads(self) -> str:
        """Report PyTorch's own setting, or the GPU."""
        import torch

        if self.has_gpu():
            return f"GPU: {torch.cuda.get_device_name()}"
        return str(torch.get_num_threads())

    def prepare(
        self,
        evolution: Evolution,
        *,
        exact: bool = False,
        threads: int | None = None,
        relative_noise: FloatImage | None = None,
        noise_span: tuple[float, float] | None = None,
        mask: Mask | None = None,
    ) -> Process:
        """Return a process that runs the stages, which are exact."""
        device = "cuda" if self.has_gpu() else "cpu"
        return TorchProcess(evolution, relative_noise, mask, device)


class TorchProcess(Process):
    """The stages on PyTorch tensors.

    Tensors stay on the device where they are; NumPy arrays go to ``device`` and come back.
    """

    def __init__(
        self,
        evolution: Evolution,
        relative_noise: FloatImage | None,
        mask: Mask | None,
        device: str,
    ) -> None:
        super().__init__(evolution if mask is None else stable_on_masks(evolution))
        self._relative_noise, self._mask = relative_noise, mask
        self._device = device

    def start(self, image: Array) -> State:
        """Return the state before the first step."""
        import torch

        from_numpy = isinstance(image, np.ndarray)
        if from_numpy:
            # A copy: PyTorch takes no array with negative strides or without write access.
            tensor = torch.tensor(np.array(image, order="C"), device=self._device)
        else:
            tensor = image
        local = None
        if self._relative_noise is not None:
            levels = known_noise(self._relative_noise, self._mask)
            local = sensitivity(
                torch.tensor(levels.copy(), device=tensor.device, dtype=tensor.dtype)
            )
        return _TorchState(tensor, self.evolution, local, self._mask, from_numpy=from_numpy)


class _TorchState(StagedState):
    """A tensor on its device, without derivatives."""

    def __init__(
        self,
        tensor: torch.Tensor,
        evolution: Evolution,
        local: Any,
        mask: Mask | None,
        *,
        from_numpy: bool,
    ) -> None:
        super().__init__(tensor, evolution, local, mask)
        self._from_numpy = from_numpy

    def _advance(self, count: int) -> None:
        import torch

        with torch.no_grad():
            super()._advance(count)

    def image(self) -> Array:
        """Return a copy of the image as it is now: a tensor, or an array if it came as one."""
        found = super().image()
        return found.cpu().numpy() if self._from_numpy else found
