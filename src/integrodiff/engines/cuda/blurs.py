"""The blurs of a process as the engine ``cuda`` computes them, and the step size they allow."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import lru_cache

from integrodiff.engines.certificate import EXPONENTIAL_ERROR, cut_blurs
from integrodiff.engines.shortcuts import (
    SAME_EVERYWHERE,
    Span,
    Taps,
    integration_kernel,
    mixes_eigenvalues,
    truncation,
    volume_integration,
    without_negligible,
)
from integrodiff.stages import Evolution, Term, discrete_gaussian
from integrodiff.stages._arrays import plain
from integrodiff.stages.scale_space import discrete_gaussian_of_radius
from integrodiff.stages.stability import stable_step, stable_step_of_volumes

AxisTaps = tuple[Taps, ...]
"""Half of a symmetric kernel along each axis: of rows and columns, or slices, rows and columns."""

NO_BLUR: Taps = (1.0,)

# Kernels of derivatives above order two are sensitive to where a blur is cut off.
_TRUNCATION_OF_HIGH_ORDERS = 1e-8


@dataclass(frozen=True)
class Kernels:
    """An evolution with the blurs of all its scales, each made from the image itself.

    Attributes
    ----------
    evolution : Evolution
        What is computed. Its step size is at most the bound for these blurs.
    blurs : tuple of AxisTaps
        Of each scale.
    integrations : tuple of tuples of AxisTaps
        Of each term of each entry of the schedule.
    """

    evolution: Evolution
    blurs: tuple[AxisTaps, ...]
    integrations: tuple[tuple[AxisTaps, ...], ...]


@lru_cache(maxsize=32)
def exact_kernels(evolution: Evolution, tolerance: float) -> Kernels:
    """Return kernels up to a tolerance, and all scales."""

    def along_axes(scale: float) -> AxisTaps:
        return tuple(
            discrete_gaussian(scale / distance, tolerance) for distance in evolution.spacing
        )

    def integration(term: Term) -> AxisTaps:
        return along_axes(plain(term.coupling.integration_scale))

    return Kernels(
        evolution,
        tuple(along_axes(plain(scale)) for scale in evolution.scales),
        tuple(tuple(map(integration, terms)) for terms in evolution.schedule),
    )


def kernels_near(kernels: Kernels, evolution: Evolution) -> Kernels:
    """Return the kernels of an evolution that is near another one, with the radii of that.

    They are smooth functions of its scales, for differences between both.
    """

    def near(scale: object, axes: AxisTaps) -> AxisTaps:
        return tuple(
            discrete_gaussian_of_radius(plain(scale) / distance, len(taps) - 1)
            for distance, taps in zip(evolution.spacing, axes, strict=True)
        )

    return Kernels(
        evolution,
        tuple(
            near(scale, axes) for scale, axes in zip(evolution.scales, kernels.blurs, strict=True)
        ),
        tuple(
            tuple(
                near(term.coupling.integration_scale, axes)
                for term, axes in zip(terms, integrations, strict=True)
            )
            for terms, integrations in zip(evolution.schedule, kernels.integrations, strict=True)
        ),
    )


@lru_cache(maxsize=32)
def short_kernels(evolution: Evolution, span: Span = SAME_EVERYWHERE) -> Kernels:
    """Return kernels that are cut off as in ``native``, without scales that have no effect.

    ``span`` is from the lowest to the highest noise, relative to that of the evolution.
    """
    highest = max((term.derivatives.order for term in evolution.all_terms()), default=1)
    single = evolution.dimensions == 2 and highest == 1 and len(evolution.terms(0)) == 1
    if single and not mixes_eigenvalues(evolution):
        evolution = without_negligible(evolution, span)

    def blur(scale: float, distance: float) -> Taps:
        width = scale / distance
        mass = truncation(evolution, width) if highest <= 2 else _TRUNCATION_OF_HIGH_ORDERS
        return discrete_gaussian(width, mass)

    blurs = tuple(
        tuple(blur(plain(scale), distance) for distance in evolution.spacing)
        for scale in evolution.scales
    )
    bounds = tuple(tuple(cut_blurs((taps,))[0] for taps in axes) for axes in blurs)
    if evolution.dimensions == 3:
        bound = stable_step_of_volumes(evolution, bounds)
    else:
        bound = stable_step(evolution, blurs=[axes[0] for axes in bounds])
    bound /= 1 + EXPONENTIAL_ERROR
    if plain(evolution.tau) > bound:
        evolution = replace(evolution, tau=bound)

    def integration(term: Term) -> AxisTaps:
        if not plain(term.coupling.integration_scale):
            return (NO_BLUR,) * evolution.dimensions
        if evolution.dimensions == 3:
            return volume_integration(term, evolution.spacing)
        return (integration_kernel(term),) * 2

    integrations = tuple(tuple(map(integration, terms)) for terms in evolution.schedule)
    return Kernels(evolution, blurs, integrations)


def is_blur(axes: AxisTaps) -> bool:
    """Whether a kernel does anything."""
    return any(len(taps) > 1 for taps in axes)
