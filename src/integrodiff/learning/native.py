"""Derivatives by the compiled engine: training without PyTorch.

Either its kernels carry the tangents, or its fast process is run with every parameter changed a
little. In the first case the numbers of an evolution depend on the parameters by short formulas,
whose derivatives are central differences in double precision.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from integrodiff.engines.native import (
    NativeProcess,
    cascade_taps,
    compiled_process,
    exact_tolerance,
    first_order_cell,
    schedule_tuples,
)
from integrodiff.engines.shortcuts import shortcuts
from integrodiff.engines.threads import thread_count
from integrodiff.learning.images import CleanImages, noise
from integrodiff.learning.neighbourhood import Neighbourhood, central_differences
from integrodiff.learning.parameters import Parameterisation, Vector
from integrodiff.learning.tangents import Item, Linearisation
from integrodiff.stages import Evolution, Term
from integrodiff.stages._arrays import plain
from integrodiff.stages.scale_space import increments

_DIFFERENCE = (
    0.01  # of one-sided differences of images; rounding changes them by less than a per cent
)


class _OnProcessors(ABC):
    """Distributes examples over threads; subclasses differentiate one example."""

    def __init__(self, parameterisation: Parameterisation, images: CleanImages) -> None:
        self._parameterisation = parameterisation
        self._images = images

    def linearise(self, vector: Vector, items: Sequence[Item]) -> Linearisation:
        """Return errors and derivatives, the examples shared among threads."""
        levels = sorted({level for _, level in items})
        self._prepare(vector, levels)
        with ThreadPoolExecutor(thread_count()) as workers:
            parts = list(workers.map(self._example, items))
        error, gradient, curvature = (np.stack(part) for part in zip(*parts, strict=True))
        return Linearisation(error, gradient, curvature)

    def _example(self, item: Item) -> tuple[Any, Any, Any]:
        """Return error, gradient and curvature of one example."""
        number, level = item
        clean = self._images.pixels[number]
        noisy = (clean + noise(level, number, clean.shape))[None]
        denoised, derivatives = self._tangents(noisy, level)
        residual = (denoised.astype(np.float64) - clean).ravel()
        tangents = derivatives.astype(np.float64).reshape(len(derivatives), -1)
        return (
            residual @ residual / residual.size,
            tangents @ residual / residual.size,
            tangents @ tangents.T / residual.size,
        )

    @abstractmethod
    def _prepare(self, vector: Vector, levels: Sequence[float]) -> None:
        """Prepare the processes for these parameters and noise levels."""

    @abstractmethod
    def _tangents(self, noisy: Any, level: float) -> tuple[Any, Any]:
        """Return the denoised image and its derivatives in all parameters."""


class _Numbers(NamedTuple):
    """A process and the derivatives of its numbers."""

    evolution: Evolution
    slopes: Sequence[Evolution]  # one for each parameter
    variance_slopes: list[list[float]]  # [scale][parameter]; empty if the scales are constant


class NativeLineariser(_OnProcessors):
    """The same numbers as ``TorchLineariser``, on the processors alone.

    For the Haar scheme, and models whose integration scale is not trained.

    Parameters
    ----------
    parameterisation : Parameterisation
        The model and its free parameters.
    images : CleanImages
        The clean images.
    double : bool
        Compute in float64 instead of float32.
    """

    def __init__(
        self, parameterisation: Parameterisation, images: CleanImages, *, double: bool = False
    ) -> None:
        super().__init__(parameterisation, images)
        if not has_tangents(parameterisation):
            raise ValueError(
                "the compiled tangents are for the Haar scheme and a fixed integration scale; "
                "take TorchLineariser or DifferenceLineariser"
            )
        self._precision: Any = np.float64 if double else np.float32
        self._at: dict[float, _Numbers] = {}
        # Their memory is used again for every example with the same scales.
        self._compiled: dict[tuple[float, ...], Any] = {}

    def _prepare(self, vector: Vector, levels: Sequence[float]) -> None:
        self._at = {level: self._numbers(vector, level) for level in levels}
        evolutions = {numbers.evolution.scales: numbers.evolution for numbers in self._at.values()}
        self._compiled = {
            scales: self._compiled.get(scales) or self._compile(evolution)
            for scales, evolution in evolutions.items()
        }

    def _numbers(self, vector: Vector, level: float) -> _Numbers:
        """Return the process at a noise level, and its derivatives in each parameter."""
        here = Neighbourhood(self._parameterisation, vector, level)
        slopes, variances = [], []
        for ahead, behind in here.pairs():
            numbers = central_differences(ahead.numbers(), behind.numbers())
            slopes.append(ahead.with_numbers(numbers))
            variances.append(central_differences(_variances(ahead), _variances(behind)))
        by_scale = np.transpose(variances)
        return _Numbers(here.center, slopes, by_scale.tolist() if by_scale.any() else [])

    def _tangents(self, noisy: Any, level: float) -> tuple[Any, Any]:
        evolution, slopes, variance_slopes = self._at[level]
        run = self._compiled[evolution.scales].start_tangents(
            noisy.astype(self._precision),
            schedule_tuples(evolution),
            evolution.steps,
            float(evolution.tau),
            float(evolution.pull_at(0)),
            _slope_tuples(evolution, slopes),
            [float(slope.tau) for slope in slopes],
            [float(slope.pull_at(0)) for slope in slopes],
            variance_slopes,
        )
        run.advance(evolution.steps)
        stack = np.empty((1 + len(slopes), *noisy.shape), self._precision)
        run.read(stack)
        return stack[0], stack[1:]

    def _compile(self, evolution: Evolution) -> Any:
        taps = cascade_taps(evolution, exact_tolerance(self._precision))
        return compiled_process(self._precision)(taps, *first_order_cell(evolution))


class DifferenceLineariser(_OnProcessors):
    """Differences of the denoised images: nearly the same numbers, for every model.

    Where the compiled engine takes all its shortcuts and the scales are not trained, this takes a
    fraction of the time. The shortcuts change errors by less than 0.002 dB, and what they leave out
    at the parameters is left out of the differences as well. Those are one-sided; near the optimum
    their error moves the parameters by less than a per cent, which the PSNR does not feel.

    Parameters
    ----------
    parameterisation : Parameterisation
        The model and its free parameters.
    images : CleanImages
        The clean images.
    """

    def __init__(self, parameterisation: Parameterisation, images: CleanImages) -> None:
        super().__init__(parameterisation, images)
        self._exact = not has_shortcuts(parameterisation)
        self._at: dict[float, list[NativeProcess]] = {}

    def _prepare(self, vector: Vector, levels: Sequence[float]) -> None:
        self._at = {level: self._processes(vector, level) for level in levels}

    def _processes(self, vector: Vector, level: float) -> list[NativeProcess]:
        """Return the process at a noise level, and with each parameter changed."""
        here = Neighbourhood(self._parameterisation, vector, level)
        center = NativeProcess(here.center, exact=self._exact, threads=1)
        processes = [center]
        for step in _DIFFERENCE * np.eye(len(vector)):
            changed = here.at(vector + step)
            processes.append(
                center.like(changed)
                if changed.scales == here.center.scales
                else NativeProcess(changed, exact=self._exact, threads=1)
            )
        return processes

    def _tangents(self, noisy: Any, level: float) -> tuple[Any, Any]:
        denoised, *others = (process(noisy) for process in self._at[level])
        return denoised, (np.array(others) - denoised) / np.float32(_DIFFERENCE)


def has_tangents(parameterisation: Parameterisation) -> bool:
    """Whether the compiled tangents support this model."""
    template, names = parameterisation.template, parameterisation.names
    trained = any(name.startswith("integration_") for name in names)
    terms = template._evolution(parameterisation.levels[0]).all_terms()
    hessians = any(t.coupling.kind == "tensor" and t.derivatives.order > 1 for t in terms)
    evolution = template._evolution(parameterisation.levels[0])
    varied = isinstance(evolution.pull, tuple) or any(plain(t.coupling.mix) for t in terms)
    return template.discretisation == "haar" and not (trained or hessians or varied)


def has_shortcuts(parameterisation: Parameterisation) -> bool:
    """Whether the compiled engine has shortcuts for this model, and its scales are fixed."""
    evolutions = (parameterisation.template._evolution(level) for level in parameterisation.levels)
    fused = all(shortcuts(evolution) is not None for evolution in evolutions)
    return fused and "scale" not in parameterisation.names


def _variances(evolution: Evolution) -> list[float]:
    """Return the variances from each scale of a cascade to the next."""
    return [float(width) ** 2 for width in increments(evolution.scales)]


def _slope_tuples(
    evolution: Evolution, slopes: Sequence[Evolution]
) -> list[list[tuple[Any, Any, Any]]]:
    """Return the slopes of the schedule as the compiled module takes them.

    For each entry and each of its terms: tables ``[scale][parameter]`` of both weights and of the
    contrasts.
    """

    def table(
        entry: int, position: int, numbers: Callable[[Term], tuple[Any, ...]]
    ) -> list[list[float]]:
        columns: NDArray[np.float64] = np.array(
            [numbers(slope.schedule[entry][position]) for slope in slopes], np.float64
        )
        rows: list[list[float]] = columns.T.tolist()
        return rows

    return [
        [
            (
                table(entry, position, lambda term: term.coupling.weights),
                table(entry, position, lambda term: term.flux_weights),
                table(entry, position, lambda term: term.diffusivity.contrasts),
            )
            for position in range(len(terms))
        ]
        for entry, terms in enumerate(evolution.schedule)
    ]
