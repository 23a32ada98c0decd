"""Arrays of the engine ``cuda``: tensors of PyTorch, arrays of CuPy, and arrays of the host."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np

from integrodiff.engines.cuda.launch import CudaDevice, Device
from integrodiff.stages._arrays import Array


@contextmanager
def enough_memory() -> Iterator[None]:
    """Turn what PyTorch and CuPy raise when a GPU is full into an error that says what to do.

    Raises
    ------
    MemoryError
        Instead of theirs, which is its cause.
    """
    try:
        yield
    except Exception as error:
        if type(error).__name__ != "OutOfMemoryError":
            raise
        raise MemoryError(
            "the GPU has too little free memory for this batch or volume; denoise fewer images at "
            "once, cut a volume into blocks by max_memory, or take engine='native'"
        ) from error


def on_device(image: Array) -> tuple[Array, Device, Callable[[Array], Array] | None]:
    """Return an image on a GPU, the GPU with the stream to use, and the way back for the host.

    Arrays that are on a GPU stay there, and kernels run on the stream that is current in their
    library.
    """
    torch = sys.modules.get("torch")
    if torch is not None and isinstance(image, torch.Tensor):
        if image.device.type != "cuda":
            with enough_memory():
                moved = image.detach().to("cuda")
            return moved, _device_of_tensor(torch, moved), lambda found: found.to(image.device)
        return image.detach(), _device_of_tensor(torch, image), None
    import cupy

    if isinstance(image, np.ndarray):
        with enough_memory():
            moved = cupy.asarray(image)
        return moved, _current_device(cupy), cupy.asnumpy
    return image, CudaDevice(image.device.id, cupy.cuda.get_current_stream().ptr), None


def _device_of_tensor(torch: Any, tensor: Any) -> Device:
    stream = torch.cuda.current_stream(tensor.device)
    return CudaDevice(tensor.device.index, stream.cuda_stream)


def _current_device(cupy: Any) -> Device:
    return CudaDevice(cupy.cuda.Device().id, cupy.cuda.get_current_stream().ptr)
