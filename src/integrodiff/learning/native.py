"""Forward-mode derivatives by the compiled engine: training without PyTorch.

The numbers of an evolution depend on the parameters by short formulas; their derivatives are
central differences in double precision. From there on the kernels carry the tangents.
"""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from integrodiff.engines import cascade_taps, exact_tolerance, term_tuple, thread_count
from integrodiff.learning.images import CleanImages, noise
from integrodiff.learning.parameters import Parameterisation, Vector
from integrodiff.learning.tangents import Item, Linearisation
from integrodiff.stages import Evolution
from integrodiff.stages.scale_space import increments

_STEP = 1e-5  # of central differences in logarithms; their error is about its square


class _Numbers(NamedTuple):
    """A process and the derivatives of its numbers."""

    evolution: Evolution
    slopes: Sequence[Evolution]  # one for each parameter
    variance_slopes: list[list[float]]  # [scale][parameter]; empty if the scales are constant


class NativeLineariser:
    """The same numbers as ``TorchLineariser``, on the processors alone.

    For the Haar scheme.

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
        if not supports(parameterisation):
            raise ValueError("the compiled tangents are for the Haar scheme")
        self._parameterisation = parameterisation
        self._images = images
        self._precision: Any = np.float64 if double else np.float32
        # Their memory is used again for every example with the same scales.
        self._idle_plans: dict[tuple[float, ...], list[Any]] = {}

    def linearise(self, vector: Vector, items: Sequence[Item]) -> Linearisation:
        """Return errors and derivatives, the examples shared among threads."""
        levels = {level: self._numbers(vector, level) for level in {level for _, level in items}}
        scales = {numbers.evolution.scales for numbers in levels.values()}
        self._idle_plans = {key: self._idle_plans.get(key, []) for key in scales}
        with ThreadPoolExecutor(thread_count()) as workers:
            parts = list(workers.map(lambda item: self._example(item, levels[item[1]]), items))
        error, gradient, curvature = (np.stack(part) for part in zip(*parts, strict=True))
        return Linearisation(error, gradient, curvature)

    def _numbers(self, vector: Vector, level: float) -> _Numbers:
        """Return the process at a noise level, and its derivatives in each parameter."""
        bounded = self._parameterisation.model(vector)._evolution(level)
        free = self._parameterisation.evolution_without_bound(vector, level)
        slopes, variances = [], []
        for i in range(len(vector)):
            step = np.zeros_like(vector)
            step[i] = _STEP
            ahead = self._parameterisation.evolution_without_bound(vector + step, level)
            behind = self._parameterisation.evolution_without_bound(vector - step, level)
            slope = _slope(ahead.numbers(), behind.numbers())
            if bounded.tau < free.tau * (1 - 1e-12):
                slope[0] = 0.0  # beyond its bound the step size is constant
            slopes.append(free.with_numbers(tuple(slope)))
            variances.append(_slope(_variances(ahead), _variances(behind)))
        by_scale = np.transpose(variances)
        return _Numbers(bounded, slopes, by_scale.tolist() if by_scale.any() else [])

    def _example(self, item: Item, numbers: _Numbers) -> tuple[Any, Any, Any]:
        """Return error, gradient and curvature of one example."""
        number, level = item
        evolution, slopes, variance_slopes = numbers
        clean = self._images.pixels[number]
        noisy = (clean + noise(level, number, clean.shape)).astype(self._precision)[None]
        stack = np.zeros((1 + len(slopes), *noisy.shape), self._precision)
        stack[0] = noisy
        idle = self._idle_plans[evolution.scales]
        plan = idle.pop() if idle else self._new_plan(evolution)
        for step in range(evolution.steps):
            plan.step(
                stack,
                noisy,
                [term_tuple(term) for term in evolution.terms(step)],
                _slope_tuples(evolution, slopes, step),
                float(evolution.tau),
                [float(slope.tau) for slope in slopes],
                float(evolution.pull),
                [float(slope.pull) for slope in slopes],
                variance_slopes,
            )
        idle.append(plan)
        residual = (stack[0].astype(np.float64) - clean).ravel()
        tangents = stack[1:].astype(np.float64).reshape(len(slopes), -1)
        return (
            residual @ residual / residual.size,
            tangents @ residual / residual.size,
            tangents @ tangents.T / residual.size,
        )

    def _new_plan(self, evolution: Evolution) -> Any:
        from integrodiff import _native

        single = self._precision == np.float32
        kind = _native.TangentPlanFloat32 if single else _native.TangentPlanFloat64
        return kind(cascade_taps(evolution, exact_tolerance(self._precision)), evolution.theta)


def supports(parameterisation: Parameterisation) -> bool:
    """Whether the compiled tangents can do this model."""
    template = parameterisation.template
    return template.discretisation == "haar"


def _slope(ahead: Sequence[Any], behind: Sequence[Any]) -> list[float]:
    """Return the central differences of numbers."""
    return [(float(a) - float(b)) / (2 * _STEP) for a, b in zip(ahead, behind, strict=True)]


def _variances(evolution: Evolution) -> list[float]:
    """Return the variances from each scale of a cascade to the next."""
    return [float(width) ** 2 for width in increments(evolution.scales)]


def _slope_tuples(
    evolution: Evolution, slopes: Sequence[Evolution], step: int
) -> list[tuple[Any, Any, Any]]:
    """Return the slopes of all terms as the compiled module takes them: [scale][parameter]."""

    def table(position: int, name: str) -> list[list[float]]:
        columns: NDArray[np.float64] = np.array(
            [getattr(slope.terms(step)[position], name) for slope in slopes], np.float64
        )
        rows: list[list[float]] = columns.T.tolist()
        return rows

    return [
        (
            table(position, "coupling_weights"),
            table(position, "flux_weights"),
            table(position, "contrasts"),
        )
        for position in range(len(evolution.terms(step)))
    ]
