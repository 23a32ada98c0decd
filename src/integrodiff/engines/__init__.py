"""Engines: compute backends behind one contract (:mod:`integrodiff.engines.base`)."""

from __future__ import annotations

import warnings
from functools import cache

from integrodiff.engines.base import Engine, FloatImage, ImageCallback, Process, State
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
    "get_processor_engine",
    "thread_count",
]

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
        return _TORCH if _TORCH.has_gpu() else get_processor_engine()
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
    engine = get_engine(name)
    reason = engine.refuses(evolution, masked=masked)
    if reason is None:
        return engine
    if name != "auto":
        raise EngineUnavailableError(
            f"the engine {name!r} does not take {reason}; take engine='numpy' or 'torch'"
        )
    _warn_of_slow_engine(f"it does not take {reason}")
    return _NUMPY


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
