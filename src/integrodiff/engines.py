"""Engines: who computes an evolution. One table, and one rule for ``auto``.

An engine takes a NumPy array ``(*batch, channel, row, column)`` and an
:class:`~integrodiff.stages.Evolution`, and returns the evolved array. It holds no parameters.
"""

from __future__ import annotations

import importlib.util
import os
import warnings
from abc import ABC, abstractmethod
from collections.abc import Callable
from copy import copy
from functools import cache
from typing import Any, ClassVar, Protocol, TypeAlias

import numpy as np
from numpy.typing import NDArray

from integrodiff._shortcuts import SAME_EVERYWHERE, TRUNCATION, shortcuts, with_same_left_out
from integrodiff.errors import EngineUnavailableError, SlowEngineWarning
from integrodiff.models._validation import positive_integer
from integrodiff.stages import (
    Evolution,
    Sensitivity,
    Term,
    discrete_gaussian,
    evolve,
    increments,
    sensitivity,
)
from integrodiff.stages._arrays import plain

FloatImage: TypeAlias = NDArray[np.floating[Any]]
StepCallback: TypeAlias = Callable[[int, FloatImage], object]


class Process(Protocol):
    """An evolution that is ready to run on many images."""

    def __call__(self, image: FloatImage, callback: StepCallback | None = None) -> FloatImage:
        """Return ``image`` after all steps, in its own precision."""


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
    def prepare(
        self,
        evolution: Evolution,
        *,
        exact: bool = False,
        threads: int | None = None,
        relative_noise: FloatImage | None = None,
    ) -> Process:
        """Return what runs an evolution, and keeps what can be used for the next image.

        Parameters
        ----------
        evolution : Evolution
            The process.
        exact : bool
            Take no shortcuts. Only the engine ``native`` has any.
        threads : int, optional
            Number of threads of the engine ``native``; the others have settings of their own.
        relative_noise : array, optional
            For images of one shape whose noise is not the same everywhere: its level at each
            pixel, relative to that of the evolution.
        """

    def evolve(
        self,
        image: FloatImage,
        evolution: Evolution,
        callback: StepCallback | None = None,
        *,
        exact: bool = False,
        threads: int | None = None,
        relative_noise: FloatImage | None = None,
    ) -> FloatImage:
        """Return ``image`` after all steps, in its own precision; see :meth:`prepare`."""
        process = self.prepare(
            evolution, exact=exact, threads=threads, relative_noise=relative_noise
        )
        return process(image, callback)


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

    def prepare(
        self,
        evolution: Evolution,
        *,
        exact: bool = False,
        threads: int | None = None,
        relative_noise: FloatImage | None = None,
    ) -> Process:
        """Run the stages on the array itself, which is exact."""

        def process(image: FloatImage, callback: StepCallback | None = None) -> FloatImage:
            local = None if relative_noise is None else relative_noise.astype(image.dtype)
            result: FloatImage = evolve(image, evolution, callback, local)
            return result

        return process


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

    def prepare(
        self,
        evolution: Evolution,
        *,
        exact: bool = False,
        threads: int | None = None,
        relative_noise: FloatImage | None = None,
    ) -> Process:
        """Move the array to PyTorch, run the stages there, and move the result back."""
        import torch

        device = torch.device("cuda" if self.has_gpu() else "cpu")

        def process(image: FloatImage, callback: StepCallback | None = None) -> FloatImage:
            def observe(step: int, tensor: torch.Tensor) -> None:
                if callback is not None:
                    callback(step, tensor.cpu().numpy())

            # Without a watcher a GPU need not wait for the CPU after each step.
            watcher = None if callback is None else observe
            with torch.no_grad():
                # A copy: PyTorch takes no array with negative strides or without write access.
                tensor = torch.tensor(np.array(image, order="C"), device=device)
                local = (
                    None
                    if relative_noise is None
                    else torch.tensor(relative_noise.copy(), device=device, dtype=tensor.dtype)
                )
                result: FloatImage = evolve(tensor, evolution, watcher, local).cpu().numpy()
            return result

        return process


class NativeEngine(Engine):
    """Compiled kernels that run whole steps on all processors."""

    name = "native"
    description = "compiled for this processor, on all its cores"

    def unavailable(self) -> str | None:
        """Look for the compiled module."""
        try:
            import integrodiff._native  # noqa: F401
        except ImportError:
            return (
                "it was not built when the package was installed, which takes a C++ compiler; "
                "install one, and then the package again"
            )
        return None

    def threads(self) -> str:
        """Report the environment variable, or the number of processors."""
        return f"{thread_count()}, {self.instruction_set()}"

    def instruction_set(self) -> str:
        """Return the SIMD instructions that were chosen."""
        from integrodiff import _native

        return _native.instruction_set()

    def prepare(
        self,
        evolution: Evolution,
        *,
        exact: bool = False,
        threads: int | None = None,
        relative_noise: FloatImage | None = None,
    ) -> Process:
        """Compute kernels; memory is taken with the first image."""
        return NativeProcess(evolution, exact=exact, threads=threads, relative_noise=relative_noise)


class NativeProcess:
    """A process with its kernels and the memory of the compiled engine, for many images.

    Calls from several threads do not disturb each other.

    Parameters
    ----------
    evolution : Evolution
        The process.
    exact : bool
        Take no shortcuts.
    threads : int, optional
        Number of threads of one call; :func:`thread_count` by default.
    relative_noise : array, optional
        As in :meth:`Engine.prepare`.
    """

    def __init__(
        self,
        evolution: Evolution,
        *,
        exact: bool,
        threads: int | None,
        relative_noise: FloatImage | None = None,
    ) -> None:
        self._exact = exact
        self._local, span = None, SAME_EVERYWHERE
        if relative_noise is not None:
            span = float(relative_noise.min()), float(relative_noise.max())
            self._local = sensitivity(relative_noise.astype(np.float64))
        self._shortcuts = None if exact else shortcuts(evolution, span)
        self._evolution = evolution if self._shortcuts is None else self._shortcuts.evolution
        self._threads = thread_count() if threads is None else positive_integer("threads", threads)
        self._plans: dict[Any, Any] = {}
        self._schedule = _schedule_tuples(self._evolution)

    def like(self, evolution: Evolution) -> NativeProcess:
        """Return a process with other numbers that shares kernels, memory, and what is left out.

        Its scales must be the same.
        """
        other = copy(self)
        if self._shortcuts is not None:
            evolution = with_same_left_out(evolution, self._evolution)
        other._evolution = evolution
        other._schedule = _schedule_tuples(evolution)
        return other

    def __call__(self, image: FloatImage, callback: StepCallback | None = None) -> FloatImage:
        """Return ``image`` after all steps, in its own precision."""
        precision: Any = np.float32 if image.dtype == np.float32 else np.float64
        if precision not in self._plans:
            self._plans[precision] = self._new_plan(precision)
        result = np.array(image, precision, order="C")
        # Where nothing pulls to the original, the image itself takes its place.
        original = result.copy() if plain(self._evolution.pull) else result
        if callback is None:
            self._run(precision, result, original, self._schedule)
        else:
            for step, terms in enumerate(self._schedule):
                self._run(precision, result, original, [terms])
                callback(step + 1, result.astype(image.dtype))
        return result.astype(image.dtype, copy=False)

    def _run(self, precision: Any, batch: Any, original: Any, schedule: Any) -> None:
        """Advance all images of a batch."""
        tau, pull = float(self._evolution.tau), float(self._evolution.pull)
        local = None
        if self._local is not None:
            local = Sensitivity(*(part.astype(precision) for part in self._local))
        shape = batch.shape[-3:]
        for current, start in zip(
            batch.reshape(-1, *shape), original.reshape(-1, *shape), strict=True
        ):
            self._plans[precision].evolve(current, start, schedule, tau, pull, self._threads, local)

    def _new_plan(self, precision: Any) -> Any:
        from integrodiff import _native

        kind = _native.PlanFloat32 if precision == np.float32 else _native.PlanFloat64
        evolution, found = self._evolution, self._shortcuts
        if found is None:
            haar = evolution.discretisation == "haar"
            tolerance = exact_tolerance(precision) if self._exact else TRUNCATION
            return kind(cascade_taps(evolution, tolerance), evolution.theta, haar)
        return kind(found.fine, found.sampling, found.coarse, found.interpolation, evolution.theta)


def cascade_taps(evolution: Evolution, tolerance: float) -> list[list[float]]:
    """Return the kernels from each scale to the next, as the compiled module takes them.

    ``tolerance`` is the mass of a kernel that may be cut off.
    """
    return [
        list(discrete_gaussian(plain(width), tolerance)) for width in increments(evolution.scales)
    ]


def exact_tolerance(precision: Any) -> float:
    """Return the mass of a kernel that does not count in a precision."""
    return float(np.finfo(precision).eps) / 2


def _schedule_tuples(evolution: Evolution) -> list[list[Any]]:
    """Return the terms of all steps as the compiled module takes them."""
    return [[term_tuple(term) for term in evolution.terms(step)] for step in range(evolution.steps)]


def term_tuple(term: Term) -> tuple[int, bool, list[float], list[float], list[float]]:
    """Return a term as the compiled module takes it."""
    return (
        term.order,
        term.coupling == "tensor",
        [float(weight) for weight in term.coupling_weights],
        [float(weight) for weight in term.flux_weights],
        [float(contrast) for contrast in term.contrasts],
    )


_NUMPY, _TORCH, _NATIVE = NumpyEngine(), TorchEngine(), NativeEngine()

ENGINES: dict[str, Engine] = {engine.name: engine for engine in (_NUMPY, _NATIVE, _TORCH)}
"""All engines by name."""

ENGINE_NAMES = ("auto", *ENGINES)


def get_engine(name: str = "auto") -> Engine:
    """Return the engine of that name; ``auto`` is the fastest that can run here.

    The rule for ``auto``: PyTorch if it finds a GPU, else the compiled engine, else NumPy with a
    warning. On a CPU, PyTorch's eager operations are no faster than NumPy's on these arrays, and
    far slower on a busy machine (``python benchmarks/run.py speed``).

    Raises
    ------
    EngineUnavailableError
        If the engine exists and cannot run here; the message says why and what to do.
    ValueError
        If there is no such engine.
    """
    if name == "auto":
        if _TORCH.unavailable() is None and _TORCH.has_gpu():
            return _TORCH
        return get_processor_engine()
    if name not in ENGINES:
        raise ValueError(
            f"unknown engine {name!r}: expected one of {', '.join(map(repr, ENGINE_NAMES))}"
        )
    reason = ENGINES[name].unavailable()
    if reason is not None:
        raise EngineUnavailableError(f"the engine {name!r} cannot run here: {reason}")
    return ENGINES[name]


def get_processor_engine() -> Engine:
    """Return the fastest engine that needs no GPU: the compiled one, or NumPy with a warning."""
    reason = _NATIVE.unavailable()
    if reason is None:
        return _NATIVE
    _warn_of_slow_engine(reason)
    return _NUMPY


@cache
def _warn_of_slow_engine(reason: str) -> None:
    """Say once that the slow engine runs, and why."""
    warnings.warn(
        f"the fast engine 'native' is not there: {reason}. Running the engine 'numpy'",
        SlowEngineWarning,
        stacklevel=3,
    )


def thread_count() -> int:
    """Return how many threads the compiled engine uses.

    The environment variable ``INTEGRODIFF_THREADS`` says so; without it, one for each processor.
    """
    wanted = os.environ.get("INTEGRODIFF_THREADS")
    if wanted is None:
        return cpu_count()
    if not wanted.isdecimal() or int(wanted) < 1:
        raise ValueError(f"INTEGRODIFF_THREADS must be a whole number above zero, got {wanted!r}")
    return int(wanted)


def cpu_count() -> int:
    """Return the number of processors this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1
