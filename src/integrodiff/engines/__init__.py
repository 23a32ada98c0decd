"""Engines: compute backends behind one contract (:mod:`integrodiff.engines.base`)."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from functools import cache

from integrodiff.engines.base import Engine, FloatImage, ImageCallback, Process, State
from integrodiff.engines.cuda import CudaEngine
from integrodiff.engines.native import NativeEngine
from integrodiff.engines.numpy import NumpyEngine
from integrodiff.engines.threads import cpu_count, thread_count
from integrodiff.engines.torch import TorchEngine
from integrodiff.errors import EngineUnavailableError, SlowEngineWarning
from integrodiff.stages import Evolution

__all__ = [
    "ENGINES",
    "ENGINE_NAMES",
    "Engine",
    "FloatImage",
    "ImageCallback",
    "Process",
    "State",
    "cpu_count",
    "get_engine",
    "get_engine_for",
    "get_gpu_engine",
    "get_processor_engine",
    "thread_count",
]

_NUMPY, _TORCH, _NATIVE, _CUDA = NumpyEngine(), TorchEngine(), NativeEngine(), CudaEngine()

ENGINES: dict[str, Engine] = {engine.name: engine for engine in (_NUMPY, _NATIVE, _TORCH, _CUDA)}
"""All engines by name."""

ENGINE_NAMES = ("auto", *ENGINES)


def get_engine(name: str = "auto") -> Engine:
    """Return the engine of that name; ``auto`` is the fastest that can run here.

    The rule for ``auto``: ``cuda`` if there is an NVIDIA GPU and CuPy, PyTorch if it finds a GPU,
    else the compiled engine, else NumPy with a warning. On a CPU, PyTorch's eager operations are
    no faster than NumPy's on these arrays, and far slower on a busy machine (``python
    benchmarks/run.py speed``).

    Raises
    ------
    EngineUnavailableError
        If the engine exists and cannot run here; the message says why and what to do.
    ValueError
        If there is no such engine.
    """
    if name == "auto":
        return next(_gpu_engines(), None) or get_processor_engine()
    if name not in ENGINES:
        raise ValueError(
            f"unknown engine {name!r}: expected one of {', '.join(map(repr, ENGINE_NAMES))}"
        )
    reason = ENGINES[name].unavailable()
    if reason is not None:
        raise EngineUnavailableError(f"the engine {name!r} cannot run here: {reason}")
    return ENGINES[name]


def get_engine_for(name: str, evolution: Evolution, *, masked: bool = False) -> Engine:
    """Return the engine of that name; ``auto`` is the fastest that can compute an evolution.

    Raises
    ------
    EngineUnavailableError
        If the engine cannot compute it, or cannot run here.
    """
    if name != "auto":
        engine = get_engine(name)
        engine.require(evolution, masked=masked)
        return engine
    for engine in _gpu_engines():
        if engine.refuses(evolution, masked=masked) is None:
            return engine
    engine = get_processor_engine()
    reason = engine.refuses(evolution, masked=masked)
    if reason is None:
        return engine
    _warn_of_slow_engine(f"it does not take {reason}")
    return _NUMPY


def _gpu_engines() -> Iterator[Engine]:
    """Yield the engines that can run on a GPU here, the fastest first."""
    if _CUDA.unavailable() is None:
        yield _CUDA
    if _TORCH.has_gpu():
        yield _TORCH


def get_gpu_engine(
    name: str = "auto",
    evolution: Evolution | None = None,
    *,
    masked: bool = False,
    library: str | None = None,
) -> Engine:
    """Return the engine for arrays that are in the memory of a GPU, and stay there.

    Unlike that of :func:`get_engine_for` it is never one of the processor, if none is asked for.

    Parameters
    ----------
    name : str
        Its name, or ``auto``.
    evolution, masked
        What it has to compute, as in :func:`get_engine_for`; any by default.
    library : str, optional
        The library of the array. PyTorch computes wherever it has tensors.

    Raises
    ------
    EngineUnavailableError
        If there is none here, or none that can compute an evolution.
    ValueError
        If there is no engine of that name.
    """
    if name != "auto":
        return (
            get_engine(name)
            if evolution is None
            else get_engine_for(name, evolution, masked=masked)
        )
    engines = list(_gpu_engines())
    if library == "torch" and _TORCH not in engines:
        engines.append(_TORCH)
    reasons = []
    for engine in engines:
        refused = None if evolution is None else engine.refuses(evolution, masked=masked)
        if refused is None:
            return engine
        reasons.append(f"{engine.name!r} does not take {refused}")
    if not engines:
        reasons = [str(_CUDA.unavailable()), _TORCH.unavailable() or "PyTorch finds no GPU"]
    raise EngineUnavailableError(
        "no engine can denoise this array where it is, on a GPU: "
        f"{'; '.join(reasons)}. With engine='native' it is copied to the host and back"
    )


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
        f"the fast engine 'native' is not available: {reason}. Running the engine 'numpy'",
        SlowEngineWarning,
        stacklevel=3,
    )
