"""Engines: who computes an evolution. One table, and one rule for ``auto``.

An engine takes a NumPy array ``(*batch, channel, row, column)`` and an
:class:`~integrodiff.stages.Evolution`, and returns the evolved array. It holds no parameters.
"""

from __future__ import annotations

import importlib.util
import os
from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any, ClassVar, TypeAlias

import numpy as np
from numpy.typing import NDArray

from integrodiff.errors import EngineUnavailableError
from integrodiff.stages import Evolution, evolve

FloatImage: TypeAlias = NDArray[np.floating[Any]]
StepCallback: TypeAlias = Callable[[int, FloatImage], object]


class Engine(ABC):
    """One way to compute an evolution."""

    name: ClassVar[str]
    description: ClassVar[str]

    @abstractmethod
    def unavailable(self) -> str | None:
        """Return why the engine cannot run here and what would help, or None if it can."""

    @abstractmethod
    def threads(self) -> str:
        """Return in words how many threads the engine uses."""

    @abstractmethod
    def evolve(
        self, image: FloatImage, evolution: Evolution, callback: StepCallback | None = None
    ) -> FloatImage:
        """Return ``image`` after all steps, in its own precision."""


class NumpyEngine(Engine):
    """The stages on NumPy arrays: the reference that all other engines are held to."""

    name = "numpy"
    description = "NumPy, the reference"

    def unavailable(self) -> str | None:
        """NumPy is always there."""
        return None

    def threads(self) -> str:
        """Elementwise operations run on one thread, the blur of short axes on those of BLAS."""
        return "1, matrix products on those of BLAS"

    def evolve(
        self, image: FloatImage, evolution: Evolution, callback: StepCallback | None = None
    ) -> FloatImage:
        """Run the stages on the array itself."""
        result: FloatImage = evolve(image, evolution, callback)
        return result


class TorchEngine(Engine):
    """The same stages on PyTorch tensors, on a GPU if there is one."""

    name = "torch"
    description = "PyTorch, on the GPU if there is one"

    def unavailable(self) -> str | None:
        """Look for the package without importing it."""
        if importlib.util.find_spec("torch") is None:
            return "PyTorch is not installed; install it with: pip install 'integrodiff[torch]'"
        return None

    def has_gpu(self) -> bool:
        """Whether PyTorch, which must be installed, can use a GPU."""
        import torch

        return torch.cuda.is_available()

    def threads(self) -> str:
        """Report PyTorch's own setting, or the GPU."""
        import torch

        if self.has_gpu():
            return f"GPU: {torch.cuda.get_device_name()}"
        return str(torch.get_num_threads())

    def evolve(
        self, image: FloatImage, evolution: Evolution, callback: StepCallback | None = None
    ) -> FloatImage:
        """Move the array to PyTorch, run the stages there, and move the result back."""
        import torch

        device = torch.device("cuda" if self.has_gpu() else "cpu")

        def observe(step: int, tensor: torch.Tensor) -> None:
            if callback is not None:
                callback(step, tensor.cpu().numpy())

        # Without a watcher a GPU need not wait for the CPU after each step.
        watcher = None if callback is None else observe
        with torch.no_grad():
            # A copy: PyTorch takes no array with negative strides or without write access.
            tensor = torch.tensor(np.array(image, order="C"), device=device)
            result: FloatImage = evolve(tensor, evolution, watcher).cpu().numpy()
        return result


_NUMPY, _TORCH = NumpyEngine(), TorchEngine()

ENGINES: dict[str, Engine] = {engine.name: engine for engine in (_NUMPY, _TORCH)}
"""All engines by name."""

ENGINE_NAMES = ("auto", *ENGINES)


def get_engine(name: str = "auto") -> Engine:
    """Return the engine of that name; ``auto`` is the fastest that can run here.

    The rule for ``auto``: PyTorch if it finds a GPU, else NumPy. On a CPU, PyTorch's eager
    operations are no faster than NumPy's on these arrays, and far slower on a busy machine
    (``python benchmarks/engines.py``).

    Raises
    ------
    EngineUnavailableError
        If the engine exists and cannot run here; the message says why and what to do.
    ValueError
        If there is no such engine.
    """
    if name == "auto":
        return _TORCH if _TORCH.unavailable() is None and _TORCH.has_gpu() else _NUMPY
    if name not in ENGINES:
        raise ValueError(
            f"unknown engine {name!r}: expected one of {', '.join(map(repr, ENGINE_NAMES))}"
        )
    reason = ENGINES[name].unavailable()
    if reason is not None:
        raise EngineUnavailableError(f"the engine {name!r} cannot run here: {reason}")
    return ENGINES[name]


def cpu_count() -> int:
    """Return the number of processors this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1
