"""The engine ``native``: compiled kernels that run whole steps."""

from __future__ import annotations

from copy import copy
from typing import Any

import numpy as np

from integrodiff._checks import positive_integer
from integrodiff.engines.base import Engine, FloatImage, Process, State
from integrodiff.engines.shortcuts import (
    SAME_EVERYWHERE,
    TRUNCATION,
    shortcuts,
    with_same_left_out,
)
from integrodiff.engines.threads import thread_count
from integrodiff.stages import (
    Evolution,
    Sensitivity,
    Term,
    discrete_gaussian,
    increments,
    sensitivity,
)
from integrodiff.stages._arrays import plain


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


class NativeProcess(Process):
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
        super().__init__(evolution)
        self._exact = exact
        self._local, span = None, SAME_EVERYWHERE
        if relative_noise is not None:
            span = float(relative_noise.min()), float(relative_noise.max())
            self._local = sensitivity(relative_noise.astype(np.float64))
        self._shortcuts = None if exact else shortcuts(evolution, span)
        if self._shortcuts is not None:
            self.evolution = self._shortcuts.evolution
        self._threads = thread_count() if threads is None else positive_integer("threads", threads)
        self._plans: dict[Any, Any] = {}
        self._schedule = _schedule_tuples(self.evolution)

    def like(self, evolution: Evolution) -> NativeProcess:
        """Return a process with other numbers that shares kernels, memory, and what is left out.

        Its scales must be the same.
        """
        other = copy(self)
        if self._shortcuts is not None:
            evolution = with_same_left_out(evolution, self.evolution)
        other.evolution = evolution
        other._schedule = _schedule_tuples(evolution)
        return other

    def start(self, image: FloatImage) -> State:
        """Return the state before the first step."""
        precision: Any = np.float32 if image.dtype == np.float32 else np.float64
        if precision not in self._plans:
            self._plans[precision] = self._new_plan(precision)
        return _NativeState(self, image, precision)

    def _run(self, precision: Any, batch: Any, original: Any, schedule: Any) -> None:
        """Advance all images of a batch."""
        tau, pull = float(self.evolution.tau), float(self.evolution.pull)
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
        evolution, found = self.evolution, self._shortcuts
        if found is None:
            haar = evolution.discretisation == "haar"
            tolerance = exact_tolerance(precision) if self._exact else TRUNCATION
            return kind(cascade_taps(evolution, tolerance), evolution.theta, haar)
        return kind(found.fine, found.sampling, found.coarse, found.interpolation, evolution.theta)


class _NativeState(State):
    """A batch of images in the memory of the compiled engine."""

    def __init__(self, process: NativeProcess, image: FloatImage, precision: Any) -> None:
        super().__init__(process.evolution.steps)
        self._process, self._precision, self._dtype = process, precision, image.dtype
        self._current = np.array(image, precision, order="C")
        # Where nothing pulls to the original, the image itself takes its place.
        pulled = plain(process.evolution.pull) != 0
        self._original = self._current.copy() if pulled else self._current

    def _advance(self, count: int) -> None:
        schedule = self._process._schedule[self.step : self.step + count]
        self._process._run(self._precision, self._current, self._original, schedule)

    def image(self) -> FloatImage:
        """Return a copy of the image as it is now."""
        return self._current.astype(self._dtype)


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
