"""Structure tensor, diffusivities and intermediate images of a model on one image.

All of them are computed by the stages, see :mod:`integrodiff.stages.step`.
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
    """Strength, coherence and orientation of the multiscale structure tensor.

    Attributes
    ----------
    strength : ndarray
        Square root of the larger eigenvalue: the gradient across structures, in grey levels per
        pixel.
    coherence : ndarray
        Difference of the eigenvalues over their sum, from 0 (no direction: flat regions and
        corners) to 1 (one direction: a straight edge or line).
    orientation : ndarray
        Direction along structures, from 0 to pi: 0 is horizontal, and pi / 2 vertical.
    """

    strength: Floats
    coherence: Floats
    orientation: Floats


@dataclass(frozen=True, kw_only=True, eq=False)
class Diffusivity:
    """Diffusivity of a term at one scale, from 0 (no flow) to 1 (free flow).

    Attributes
    ----------
    order : int
        Order of the derivatives.
    scale, contrast, weight : float
        Smoothing scale in pixels, contrast parameter, and weight of the flux.
    across, along : ndarray
        Diffusivity across and along structures; equal for isotropic terms.
    """

    order: int
    scale: float
    contrast: float
    weight: float
    across: Floats
    along: Floats


@dataclass(frozen=True, kw_only=True, eq=False)
class Explanation:
    """Data for the picture of ``integrodiff explain``; grey values on the scale [0, 255].

    Attributes
    ----------
    sigma : float
        The noise level.
    evolution : Evolution
        The process.
    images : list of ndarray
        The image before the first step and after each step; the mean of several channels.
    step : int
        Number of steps before structure and diffusivities were computed.
    structure : Structure
        Structure of the image at that step.
    diffusivities : list of Diffusivity
        One for every term and every scale at which it has a flux.
    """

    sigma: float
    evolution: Evolution
    images: list[Floats]
    step: int
    structure: Structure
    diffusivities: list[Diffusivity]

    @property
    def removed(self) -> list[float]:
        """Standard deviation of the removed part, before the first step and after each."""
        return [float((image - self.images[0]).std()) for image in self.images]

    @property
    def changes(self) -> list[float]:
        """Root mean square change of each step."""
        pairs = zip(self.images[1:], self.images[:-1], strict=True)
        return [float(np.sqrt(np.mean((after - before) ** 2))) for after, before in pairs]


def explain(
    image: NDArray[Any],
    sigma: float,
    model: Model,
    *,
    step: int | None = None,
    engine: str = "auto",
    evolution: Evolution | None = None,
) -> Explanation:
    """Run a model on an image and record its structure, diffusivities and steps.

    Parameters
    ----------
    image : ndarray
        Grey values on the scale [0, 255], ``(channel, row, column)``.
    sigma : float
        The noise level on the same scale.
    model : Model
        The model.
    step : int, optional
        Number of steps before structure and diffusivities are computed, at least 0 and less than
        the number of steps of the model; half of that by default.
    engine : str
        Compute backend of the steps.
    evolution : Evolution, optional
        The process, if it is not that of the model for white noise.
    """
    evolution = evolution or model.evolution(sigma)
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

    For an isotropic term, which uses only the trace, the tensor is computed as well.
    """
    first = next((term for term in terms if term.derivatives.order == 1), None)
    first = first or replace(terms[0], derivatives=HaarGradient())
    first = replace(first, coupling=replace(first.coupling, kind="tensor"))
    tensor = coupling_field(smoothed, first)
    larger, smaller = _eigenvalues(tensor)
    smaller = np.maximum(smaller, 0)  # negative only by rounding
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
        # Of order two these are the gates of the second derivatives across and along.
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
