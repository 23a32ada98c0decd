"""The engine ``native``: compiled kernels that run whole steps."""

from __future__ import annotations

from copy import copy
from dataclasses import replace
from typing import Any, cast

import numpy as np

from integrodiff._checks import positive_integer
from integrodiff.engines.base import Engine, FloatImage, Mask, Process, State, known_noise
from integrodiff.engines.certificate import (
    stable_step_with_shortcuts,
    stable_volume_step_with_shortcuts,
)
from integrodiff.engines.native_memory import step_bytes
from integrodiff.engines.shortcuts import (
    SAME_EVERYWHERE,
    TRUNCATION,
    coarse_integration,
    integration_kernel,
    shortcuts,
    volume_integration,
    volume_shortcuts,
    with_same_left_out,
)
from integrodiff.engines.threads import thread_count
from integrodiff.errors import EngineUnavailableError
from integrodiff.stages import (
    Evolution,
    ExchangeWithNeighbours,
    HaarGradient,
    HigherDerivatives,
    Term,
    VolumeGradient,
    discrete_gaussian,
    increments,
    sensitivity,
    stable_on_masks,
)
from integrodiff.stages._arrays import plain
from integrodiff.stages.domain import distances, flux_reach, walk_taps


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

    def refuses(self, evolution: Evolution, *, masked: bool = False) -> str | None:
        """Refuse what volumes and masks do not have here."""
        if evolution.dimensions == 2:
            terms = evolution.all_terms()
            scheme = any(isinstance(one.derivatives, ExchangeWithNeighbours) for one in terms)
            return "masks with the nonnegativity scheme" if masked and scheme else None
        if any(len(terms) != 1 for terms in evolution.schedule):
            return "volumes with several terms"
        return None

    def threads(self) -> str:
        """Report the environment variable, or the number of processors."""
        return f"{thread_count()}, {self.instruction_set()}"

    def instruction_set(self) -> str:
        """Return the SIMD instructions that are used by default."""
        from integrodiff import _native

        return _native.instruction_set()

    def instruction_sets(self) -> list[str]:
        """Return all SIMD instructions that this processor can run, the fastest last."""
        from integrodiff import _native

        return _native.instruction_sets()

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
        """Compute kernels; memory is taken with the first image."""
        self.require(evolution, masked=mask is not None)
        if evolution.dimensions == 3:
            return NativeVolumeProcess(
                evolution, exact=exact, threads=threads, relative_noise=relative_noise, mask=mask
            )
        return NativeProcess(
            evolution,
            exact=exact,
            threads=threads,
            relative_noise=relative_noise,
            noise_span=noise_span,
            mask=mask,
        )

    def working_memory(
        self,
        evolution: Evolution,
        shape: tuple[int, ...],
        dtype: np.dtype[Any],
        *,
        exact: bool = False,
        threads: int | None = None,
        mapped: bool = False,
        masked: bool = False,
    ) -> int | None:
        """Count what the compiled steps take."""
        return step_bytes(
            evolution, shape, dtype, exact=exact, threads=threads, mapped=mapped, masked=masked
        )


class NativeProcess(Process):
    """A process with its kernels and the memory of the compiled engine, for many images.

    Calls from several threads do not disturb each other. Unless the process is ``exact``, its step
    size is cut to the bound that holds for what is really computed; see :mod:`.certificate`.

    Parameters
    ----------
    evolution : Evolution
        The process.
    exact : bool
        Take no shortcuts.
    threads : int, optional
        Number of threads of one call; :func:`thread_count` by default.
    relative_noise, noise_span, mask : optional
        As in :meth:`Engine.prepare`. With a mask no shortcuts are taken, and order one is for the
        Haar scheme alone.
    instruction_set : str, optional
        One of :meth:`NativeEngine.instruction_sets`; by default the one in the environment
        variable ``INTEGRODIFF_SIMD``, or the fastest.
    """

    def __init__(
        self,
        evolution: Evolution,
        *,
        exact: bool,
        threads: int | None,
        relative_noise: FloatImage | None = None,
        noise_span: tuple[float, float] | None = None,
        mask: Mask | None = None,
        instruction_set: str | None = None,
    ) -> None:
        super().__init__(evolution)
        self._exact, self._mask = exact, mask
        self._local, span = None, SAME_EVERYWHERE
        if relative_noise is not None:
            known = known_noise(relative_noise, mask)
            span = noise_span or (float(known.min()), float(known.max()))
            self._local = sensitivity(known.astype(np.float64))
        self._shortcuts = None
        self._cut = 1.0
        if mask is not None:
            self.evolution = _masked(evolution)
            self._distances = distances(mask)
            # All orders above one keep as far from invalid pixels.
            self._reach = [flux_reach(HigherDerivatives(2), scale) for scale in evolution.scales]
        elif not exact:
            self._shortcuts = shortcuts(evolution, span)
            if self._shortcuts is not None:
                self.evolution = self._shortcuts.evolution
            self._cut = self._cut_to_bound()
            self.evolution = _with_step_times(self.evolution, self._cut)
        self._threads = thread_count() if threads is None else positive_integer("threads", threads)
        self._instruction_set = instruction_set
        self._compiled: dict[Any, Any] = {}
        self._tolerance = 2.0**-53 if exact else TRUNCATION
        self._schedule = self._schedule_of(self.evolution)

    def like(self, evolution: Evolution) -> NativeProcess:
        """Return a process with other parameters that shares kernels, memory and omitted scales.

        Its scales must be the same.
        """
        other = copy(self)
        if self._shortcuts is not None:
            evolution = with_same_left_out(evolution, self.evolution)
        # By the same factor, so that differences show what a number does.
        evolution = _with_step_times(evolution, self._cut)
        other.evolution = evolution
        other._schedule = other._schedule_of(evolution)
        return other

    def _schedule_of(self, evolution: Evolution) -> list[list[Any]]:
        """Return the schedule as the compiled module takes it."""
        found = schedule_tuples(evolution, self._tolerance)
        if self._shortcuts is not None:
            # The fused step smooths the structure tensor of order two on the coarse grid.
            for tuples, terms in zip(found, evolution.schedule, strict=True):
                if plain(terms[0].coupling.integration_scale):
                    tuples[0] = (*tuples[0][:-1], list(integration_kernel(terms[0])))
                tuples[1:] = [
                    (*one[:-1], list(coarse_integration(term)))
                    for one, term in zip(tuples[1:], terms[1:], strict=True)
                ]
        return found

    def release(self) -> None:
        """Give back the memory of images that are done; kernels are made again when needed."""
        self._compiled.clear()

    def _cut_to_bound(self) -> float:
        """Return the factor, at most one, by which the step size has to become smaller."""
        tau = plain(self.evolution.tau)
        bound = stable_step_with_shortcuts(self.evolution, self._shortcuts)
        return bound / tau if tau > bound else 1.0

    def start(self, image: FloatImage) -> State:
        """Return the state before the first step."""
        return _NativeState(self, image)

    def _start_one(self, image: FloatImage) -> Any:
        """Start one image ``(channel, row, column)``: it moves to the compiled engine."""
        precision = image.dtype.type
        masked: dict[str, Any] = {}
        if self._mask is not None:
            found = [part.astype(precision) for part in self._distances]
            masked = {"distances": found, "reach": self._reach}
        return self._kernels(precision).start(
            image,
            self._schedule,
            self.evolution.steps,
            float(self.evolution.tau),
            [float(pull) for pull in self.evolution.pulls()],
            self._threads,
            None if self._local is None else [part.astype(precision) for part in self._local],
            **masked,
        )

    def _kernels(self, precision: Any) -> Any:
        """Return the compiled process, which keeps the memory of images that are done."""
        found = self._compiled.get(precision)
        if found is None:
            found = self._compiled[precision] = self._compile(precision)
        return found

    def _compile(self, precision: Any) -> Any:
        kind, evolution, found = compiled_process(precision), self.evolution, self._shortcuts
        theta, haar = first_order_cell(evolution)
        if found is not None:
            return kind(
                found.fine,
                found.sampling,
                found.coarse,
                found.interpolation,
                theta,
                self._instruction_set,
            )
        exact = exact_tolerance(precision)
        if self._mask is None:
            taps = cascade_taps(evolution, exact if self._exact else TRUNCATION)
        else:
            taps = [walk_taps(plain(width), exact) for width in increments(evolution.scales)]
        return kind(taps, theta, haar, self._instruction_set)


class NativeVolumeProcess(Process):
    """A process in three dimensions.

    Unless it is ``exact``, its step size is cut to the bound for what is really computed.

    Parameters
    ----------
    evolution : Evolution
        The process, with one term for each step.
    exact : bool
        Take no shortcuts.
    threads : int, optional
        Number of threads of one call; :func:`thread_count` by default.
    relative_noise, mask : array, optional
        As in :meth:`Engine.prepare`, ``(slice, row, column)`` or ``(row, column)``. With a mask no
        shortcuts are taken.
    instruction_set : str, optional
        As in :class:`NativeProcess`.
    """

    def __init__(
        self,
        evolution: Evolution,
        *,
        exact: bool,
        threads: int | None,
        relative_noise: FloatImage | None = None,
        mask: Mask | None = None,
        instruction_set: str | None = None,
    ) -> None:
        self._mask = mask
        self._shortcuts = None if exact or mask is not None else volume_shortcuts(evolution)
        if mask is not None:
            evolution = stable_on_masks(evolution)
        elif self._shortcuts is not None:
            bound = stable_volume_step_with_shortcuts(evolution, self._shortcuts)
            tau = plain(evolution.tau)
            evolution = _with_step_times(evolution, bound / tau if tau > bound else 1.0)
        super().__init__(evolution)
        self._threads = thread_count() if threads is None else positive_integer("threads", threads)
        self._relative_noise = relative_noise
        self._instruction_set = instruction_set
        self._schedule = volume_schedule_tuples(evolution, fused=self._shortcuts is not None)
        self._compiled: dict[Any, Any] = {}

    def release(self) -> None:
        """Give back the memory of volumes that are done."""
        self._compiled.clear()

    def start(self, image: FloatImage) -> State:
        """Return the state before the first step."""
        return _NativeState(self, image)

    def _start_one(self, image: FloatImage) -> Any:
        """Start one volume ``(channel, slice, row, column)``."""
        precision = image.dtype.type
        local = valid = None
        if self._mask is not None:
            valid = np.broadcast_to(self._mask, image.shape[1:]).astype(precision)
        if self._relative_noise is not None:
            known = known_noise(self._relative_noise, self._mask)
            levels = np.broadcast_to(known, image.shape[1:])
            local = sensitivity(levels.astype(np.float64)).cells.astype(precision)
        return self._kernels(precision).start(
            image,
            self._schedule,
            self.evolution.steps,
            float(self.evolution.tau),
            [float(pull) for pull in self.evolution.pulls()],
            self._threads,
            local,
            valid,
        )

    def _kernels(self, precision: Any) -> Any:
        if precision not in self._compiled:
            from integrodiff import _native

            kind: Any = _native.VolumeProcessFloat64
            if precision == np.float32:
                kind = _native.VolumeProcessFloat32
            self._compiled[precision] = self._compile(kind, exact_tolerance(precision))
        return self._compiled[precision]

    def _compile(self, kind: Any, tolerance: float) -> Any:
        operator = cast(VolumeGradient, self.evolution.schedule[0][0].derivatives)
        theta, spacing, found = operator.theta, operator.spacing, self._shortcuts
        if found is not None:
            return kind(
                found.fine,
                found.sampling,
                found.coarse,
                found.interpolation,
                theta,
                spacing,
                self._instruction_set,
            )
        steps = [plain(width) for width in increments(self.evolution.scales)]
        if self._mask is None:
            taps = [
                [list(discrete_gaussian(width / distance, tolerance)) for width in steps]
                for distance in spacing
            ]
        else:
            taps = [[walk_taps(width, tolerance, spacing) for width in steps]] * 3
        return kind(tuple(taps), theta, spacing, self._instruction_set)


class _NativeState(State):
    """A batch of images, each of them in a run of the compiled engine.

    A run keeps threads, and its image with all intermediate results. Images of a batch that are to
    take all their steps at once are run one after the other, in the same memory.
    """

    def __init__(self, process: NativeProcess | NativeVolumeProcess, image: FloatImage) -> None:
        super().__init__(process.evolution.steps)
        self._axes = 1 + process.evolution.dimensions
        precision: Any = np.float32 if image.dtype == np.float32 else np.float64
        self._process, self._dtype, self._shape = process, image.dtype, image.shape
        self._given = image
        _check_contrast(process.evolution, image, process._mask)
        if process._mask is not None:
            image = np.where(process._mask, image, 0)
        images = np.ascontiguousarray(image, precision).reshape(-1, *image.shape[-self._axes :])
        if len(images) == 1:
            self._runs = [process._start_one(images[0])]
        else:
            self._runs = []
            self._images = images.copy()

    def _advance(self, count: int) -> None:
        if not self._runs and count == self.steps:
            for image in self._images:
                run = self._process._start_one(image)
                run.advance(count)
                run.read(image)
            return
        if not self._runs:
            self._runs = [self._process._start_one(image) for image in self._images]
        for run in self._runs:
            run.advance(count)

    def image(self) -> FloatImage:
        """Return a copy of the image as it is now."""
        found = self._computed()
        mask = self._process._mask
        return found if mask is None else np.where(mask, found, self._given)

    def _computed(self) -> FloatImage:
        if not self._runs:
            return self._images.reshape(self._shape).astype(self._dtype)
        precision = np.float32 if self._dtype == np.float32 else np.float64
        found = np.empty((len(self._runs), *self._shape[-self._axes :]), precision)
        for run, image in zip(self._runs, found, strict=True):
            run.read(image)
        return found.reshape(self._shape).astype(self._dtype, copy=False)

    def read(self, target: FloatImage) -> None:
        """Write the image as it is now to an array, without a copy in between if possible."""
        exact = target.dtype in (np.float32, np.float64) and target.dtype == self._dtype
        whole = self._process._mask is None
        if len(self._runs) == 1 and whole and exact and target.flags.c_contiguous:
            self._runs[0].read(target.reshape(self._shape[-self._axes :]))
        else:
            super().read(target)


def _masked(evolution: Evolution) -> Evolution:
    """Return the process with steps that are stable on images with any mask."""
    if not first_order_cell(evolution)[1]:
        raise EngineUnavailableError(
            "the engine 'native' takes masks with the Haar scheme alone; take engine='numpy'"
        )
    return stable_on_masks(evolution)


def _check_contrast(evolution: Evolution, image: FloatImage, mask: Mask | None) -> None:
    """Refuse contrasts whose fourth power, in eigenvalues of the structure tensor, is infinite.

    The direction would be lost without a number that is not finite.
    """
    if evolution.dimensions != 2 or all(
        term.coupling.kind != "tensor" for term in evolution.all_terms()
    ):
        return
    seen = image if mask is None else image[..., mask]
    # Second derivatives are several times as large as contrasts.
    limit = float(np.finfo(image.dtype).max) ** 0.25 / 8
    if seen.size and float(seen.max()) - float(seen.min()) > limit:
        raise ValueError(
            f"the contrasts of this image are too large to compute in {image.dtype}, compared with "
            "its noise level or data range; check sigma and data_range, mask values that stand for "
            "no data, or convert the image to float64"
        )


def _with_step_times(evolution: Evolution, factor: float) -> Evolution:
    return evolution if factor == 1 else replace(evolution, tau=evolution.tau * factor)


def compiled_process(precision: Any) -> Any:
    """Return the class of the compiled module for a precision."""
    from integrodiff import _native

    return _native.ProcessFloat32 if precision == np.float32 else _native.ProcessFloat64


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


def schedule_tuples(evolution: Evolution, tolerance: float = 2.0**-53) -> list[list[Any]]:
    """Return the schedule as the compiled module takes it: one entry may hold for all steps.

    ``tolerance`` is the mass that may be cut off the kernels of integration scales.
    """
    return [[_term_tuple(term, tolerance) for term in terms] for terms in evolution.schedule]


def _term_tuple(
    term: Term, tolerance: float
) -> tuple[int, bool, float, list[float], list[float], list[float], list[float]]:
    """Return a term as the compiled module takes it; the last are taps of an integration scale."""
    return (
        term.derivatives.order,
        term.coupling.kind == "tensor",
        float(term.coupling.mix),
        [float(weight) for weight in term.coupling.weights],
        [float(weight) for weight in term.flux_weights],
        [float(contrast) for contrast in term.diffusivity.contrasts],
        _integration_taps(term, tolerance),
    )


def volume_schedule_tuples(evolution: Evolution, *, fused: bool) -> list[list[Any]]:
    """Return the schedule of a volume: integration scales have a kernel along each axis."""

    def kernels(term: Term) -> list[list[float]]:
        if not plain(term.coupling.integration_scale):
            return []
        if fused:
            return [list(taps) for taps in volume_integration(term, evolution.spacing)]
        return [
            _integration_taps(term, 2.0**-53, distance) or [1.0] for distance in evolution.spacing
        ]

    def numbers(term: Term) -> tuple[Any, ...]:
        operator = cast(VolumeGradient, term.derivatives)
        return kernels(term), operator.units or operator.spacing, operator.twists

    return [
        [(*one[:-1], *numbers(term)) for one, term in zip(tuples, terms, strict=True)]
        for tuples, terms in zip(schedule_tuples(evolution), evolution.schedule, strict=True)
    ]


def first_order_cell(evolution: Evolution) -> tuple[float, bool]:
    """Return theta of the Haar cell, and whether terms of order one live on Haar cells at all."""
    operators = {term.derivatives for term in evolution.all_terms() if term.derivatives.order == 1}
    if len(operators) > 1:
        raise EngineUnavailableError(
            "the engine 'native' takes one discretisation for all terms of order one; "
            "take engine='numpy'"
        )
    for operator in operators:
        return (operator.theta, True) if isinstance(operator, HaarGradient) else (0.0, False)
    return 0.0, True


def _integration_taps(term: Term, tolerance: float, distance: float = 1.0) -> list[float]:
    """Return one half of the kernel that smooths the coupling, or nothing.

    However short, it is positive, so tensors stay semidefinite and no bound changes. Neighbours
    have the given distance.
    """
    scale = plain(term.coupling.integration_scale) / distance
    return list(discrete_gaussian(scale, tolerance)) if scale else []
