"""The engine ``torch``: the stages on PyTorch tensors."""

from __future__ import annotations

import importlib.util
import sys
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from integrodiff.engines.base import Engine, Process, State, known_noise
from integrodiff.engines.gpu import driver_has_gpu
from integrodiff.engines.staged import StagedState
from integrodiff.install import install_hint
from integrodiff.stages import Evolution, sensitivity, stable_on_masks
from integrodiff.stages._arrays import Array, namespace

if TYPE_CHECKING:
    import torch


class TorchEngine(Engine):
    """The stages on PyTorch tensors; NumPy arrays are moved to the GPU if there is one."""

    name = "torch"
    libraries = ("torch", "cupy")
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
        relative_noise: Array | None = None,
        noise_span: tuple[float, float] | None = None,
        mask: Array | None = None,
    ) -> Process:
        """Return a process that runs the stages, which are exact."""
        device = "cuda" if self.has_gpu() else "cpu"
        return TorchProcess(evolution, relative_noise, mask, device)


class TorchProcess(Process):
    """The stages on PyTorch tensors.

    Tensors stay on the device where they are, and arrays of CuPy are seen as tensors in the same
    memory; NumPy arrays go to ``device`` and come back.
    """

    def __init__(
        self,
        evolution: Evolution,
        relative_noise: Array | None,
        mask: Array | None,
        device: str,
    ) -> None:
        super().__init__(evolution if mask is None else stable_on_masks(evolution))
        self._relative_noise, self._mask = relative_noise, mask
        self._device = device

    def start(self, image: Array) -> State:
        """Return the state before the first step."""
        with _in_stream_of(image):
            return self._started(image)

    def _started(self, image: Array) -> State:
        import torch

        # Copies: PyTorch takes no array with negative strides or without write access.
        if isinstance(image, np.ndarray):
            tensor = torch.tensor(np.array(image, order="C"), device=self._device)
        else:
            tensor = _seen_as_tensor(image)
        local, mask = None, _seen_as_tensor(self._mask)
        if isinstance(mask, np.ndarray):
            mask = np.array(mask, order="C")
        if self._relative_noise is not None:
            levels = _seen_as_tensor(known_noise(self._relative_noise, self._mask))
            if isinstance(levels, np.ndarray):
                levels = torch.tensor(np.array(levels))
            local = sensitivity(levels.to(tensor.device, tensor.dtype))
        return _TorchState(tensor, self.evolution, local, mask, image)


def _in_stream_of(image: Array) -> AbstractContextManager[object]:
    """Return a context in which PyTorch uses the current stream of CuPy for an array of CuPy.

    So all work is in order there, and no memory is used again by another stream before that.
    """
    import torch

    cupy = sys.modules.get("cupy")
    if cupy is None or not isinstance(image, cupy.ndarray):
        return nullcontext()
    number, address = image.device.id, cupy.cuda.get_current_stream().ptr
    if address == 0:
        return torch.cuda.stream(torch.cuda.default_stream(number))
    stream: Any = torch.cuda.ExternalStream
    return torch.cuda.stream(stream(address, device=number))


def _seen_as_tensor(array: Array) -> Array:
    """Return an array of another library than NumPy as a tensor in the same memory."""
    import torch

    if array is None or isinstance(array, (np.ndarray, torch.Tensor)):
        return array
    return torch.utils.dlpack.from_dlpack(array)


class _TorchState(StagedState):
    """A tensor on its device, without derivatives."""

    def __init__(
        self,
        tensor: torch.Tensor,
        evolution: Evolution,
        local: Any,
        mask: Array | None,
        given: Array,
    ) -> None:
        super().__init__(tensor, evolution, local, mask)
        self._library = namespace(given)
        self._in_stream = partial(_in_stream_of, given[:0])

    def _advance(self, count: int) -> None:
        import torch

        with torch.no_grad(), self._in_stream():
            super()._advance(count)

    def image(self) -> Array:
        """Return a copy of the image as it is now: a tensor, or an array if it came as one."""
        with self._in_stream():
            found = super().image()
            if self._library is namespace(found):
                return found
            if self._library is namespace(np.empty(0)):
                return found.cpu().numpy()
            return self._library.from_dlpack(found)
