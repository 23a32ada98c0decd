"""What a model does to one image: its structure, its diffusivities, and its steps.

Everything here is computed by the stages themselves; see :mod:`integrodiff.stages.step`.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from integrodiff.engines import get_engine
from integrodiff.models import Model
from integrodiff.stages import (
    Evolution,
    HaarGradient,
    SymmetricTensor,
    Term,
    cascade,
    coupling_field,
)

Floats: TypeAlias = NDArray[np.float64]


@dataclass(frozen=True, kw_only=True, eq=False)
class Structure:
    """The multiscale structure tensor, in words.

    Attributes
    ----------
    strength : ndarray
        Square root of the larger eigenvalue: how steep the image is across structures, in grey
        levels per pixel.
    coherence : ndarray
        Difference of the eigenvalues over their sum, from 0 (no direction, as in flat parts and
        at corners) to 1 (a straight edge or line).
    orientation : ndarray
        Direction along structures, from 0 to pi: 0 is horizontal, and pi / 2 vertical.
    """

    strength: Floats
    coherence: Floats
    orientation: Floats


@dataclass(frozen=True, kw_only=True, eq=False)
class Diffusivity:
    """How freely grey values flow at one scale: 1 without any obstacle, 0 not at all.

    Attributes
    ----------
    order : int
        Order of the derivatives.
    scale, contrast, weight : float
        Smoothing scale in pixels, contrast parameter, and weight of the flow.
    across, along : ndarray
        Across and along structures. An isotropic term has the same in both directions.
    """

    order: int
    scale: float
    contrast: float
    weight: float
    across: Floats
    along: Floats


@dataclass(frozen=True, kw_only=True, eq=False)
class Explanation:
    """All that a picture of the process needs, on the scale [0, 255].

    Attributes
    ----------
    sigma : float
        The noise level.
    evolution : Evolution
        The process.
    images : list of ndarray
        The image before the first step and after each; of several channels, the mean.
    step : int
        How many steps were done when structure and diffusivities were taken.
    structure : Structure
        Of the image at that step.
    diffusivities : list of Diffusivity
        For every term and every scale at which it has a flow.
    """

    sigma: float
    evolution: Evolution
    images: list[Floats]
    step: int
    structure: Structure
    diffusivities: list[Diffusivity]

    @property
    def removed(self) -> list[float]:
        """Standard deviation of what was removed, before the first step and after each."""
        return [float((image - self.images[0]).std()) for image in self.images]

    @property
    def changes(self) -> list[float]:
        """Root mean square of what each step changed."""
        pairs = zip(self.images[1:], self.images[:-1], strict=True)
        return [float(np.sqrt(np.mean((after - before) ** 2))) for after, before in pairs]


def explain(
    image: NDArray[Any],
    sigma: float,
    model: Model,
    *,
    step: int | None = None,
    engine: str = "auto",
) -> Explanation:
    """Return what a model does to an image.

    Parameters
    ----------
    image : ndarray
        Grey values on the scale [0, 255], ``(channel, row, column)``.
    sigma : float
        The noise level on the same scale.
    model : Model
        The model.
    step : int, optional
        After how many steps to look at structure and diffusivities, from 0 to before the last;
        after half of them if not given.
    engine : str
        Who computes the steps.
    """
    evolution = model.evolution(sigma)
    step = evolution.steps // 2 if step is None else step
    if not 0 <= step < evolution.steps:
        raise ValueError(f"step must be from 0 to {evolution.steps - 1}, got {step}")
    states = [np.asarray(image, np.float64)]
    get_engine(engine).evolve(
        states[0], evolution, lambda _, now: states.append(np.asarray(now, np.float64))
    )
    smoothed = cascade(states[step], evolution.scales)
    terms = evolution.terms(step)
    return Explanation(
        sigma=sigma,
        evolution=evolution,
        images=[state.mean(axis=0) for state in states],
        step=step,
        structure=_structure(smoothed, terms),
        diffusivities=[
            found for term in terms for found in _diffusivities(smoothed, term, evolution)
        ],
    )


def _structure(smoothed: list[Floats], terms: tuple[Term, ...]) -> Structure:
    """Describe the structure tensor of the first term of order one.

    An isotropic term uses its trace alone; there is a tensor all the same.
    """
    first = next((term for term in terms if term.derivatives.order == 1), None)
    first = first or replace(terms[0], derivatives=HaarGradient())
    first = replace(first, coupling=replace(first.coupling, kind="tensor"))
    tensor = coupling_field(smoothed, first)
    larger, smaller = _eigenvalues(tensor)
    smaller = np.maximum(smaller, 0)  # below zero by rounding alone
    total = larger + smaller
    coherence = np.divide(larger - smaller, total, out=np.zeros_like(total), where=total > 0)
    # Half the angle of (xx - yy, 2 xy) is the direction across structures; along is normal to it.
    across = np.arctan2(2 * tensor.xy, tensor.xx - tensor.yy) / 2
    return Structure(
        strength=np.sqrt(np.maximum(larger, 0))[0],
        coherence=coherence[0],
        orientation=np.mod(across + np.pi / 2, np.pi)[0],
    )


def _diffusivities(smoothed: list[Floats], term: Term, evolution: Evolution) -> list[Diffusivity]:
    """Return the diffusivity of a term at each of its scales."""
    if not term.scales_in_flux:
        return []
    field = coupling_field(smoothed, term)
    found = []
    for i in term.scales_in_flux:
        gate = term.diffusivity.of(field, i)
        along, across = _eigenvalues(gate) if isinstance(gate, SymmetricTensor) else (gate, gate)
        found.append(
            Diffusivity(
                order=term.derivatives.order,
                scale=float(evolution.scales[i]),
                contrast=float(term.diffusivity.contrasts[i]),
                weight=float(term.flux_weights[i]),
                across=across[0],
                along=along[0],
            )
        )
    return found


def _eigenvalues(tensor: SymmetricTensor) -> tuple[Floats, Floats]:
    """Return the larger and the smaller eigenvalue of every tensor of a field."""
    mean = (tensor.xx + tensor.yy) / 2
    distance = np.hypot((tensor.xx - tensor.yy) / 2, tensor.xy)
    return mean + distance, mean - distance
