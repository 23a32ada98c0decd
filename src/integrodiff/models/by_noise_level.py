"""Models trained for each noise level on its own, joined to one for all levels."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from itertools import pairwise
from math import exp, log
from typing import Any

from integrodiff._checks import positive_number, sequence_of_numbers
from integrodiff.models.base import ExplicitModel, Model
from integrodiff.models.integrodifferential import IAD, IID
from integrodiff.models.laws import FullLaw
from integrodiff.models.schema import Parameters, model_from, parameters_of, settings_of
from integrodiff.stages import Evolution


@dataclass(frozen=True, kw_only=True)
class ByNoiseLevel(Model):
    """Models of one kind at several noise levels, interpolated between them.

    Every parameter is taken to be a power of the noise level between two neighbouring levels:
    its logarithm is interpolated linearly in the logarithm of the noise level. Below the first
    and above the last level the power of the nearest interval continues, but for full laws: eight
    weights and contrasts that were trained together mean little on their own, so there the
    contrasts of the nearest level change in proportion to the noise, and nothing else does. The
    step size never exceeds its stable bound.

    Attributes
    ----------
    levels : tuple of float
        Increasing noise levels on the scale [0, 255].
    models : tuple of models
        One for each level, of the same class and with the same settings.
    provenance : mapping
        Where the parameters come from; no part of the model's identity.
    """

    levels: tuple[float, ...]
    models: tuple[ExplicitModel, ...]
    provenance: Mapping[str, Any] = field(default_factory=dict, compare=False, repr=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "levels", sequence_of_numbers("levels", self.levels))
        object.__setattr__(self, "models", tuple(self.models))
        positive_number("levels[0]", self.levels[0])
        if any(a >= b for a, b in pairwise(self.levels)):
            raise ValueError(f"levels must increase, got {self.levels}")
        if len(self.models) != len(self.levels):
            raise ValueError(
                f"{len(self.levels)} levels need as many models, not {len(self.models)}"
            )
        first = self.models[0]
        for model in self.models:
            if not isinstance(model, ExplicitModel) or model._depends_on_noise:
                raise TypeError(f"only models for one noise level can be joined, got {model!r}")
            if type(model) is not type(first) or settings_of(model) != settings_of(first):
                raise ValueError(
                    "joined models must be of one class with equal settings; "
                    f"{model!r} differs from {first!r}"
                )
        if len(self.models) > 1:
            for model in self.models:
                _require_positive(parameters_of(model))

    def at(self, sigma: float) -> ExplicitModel:
        """Return the model with the parameters for the noise level ``sigma``."""
        if sigma in self.levels:
            return self.models[self.levels.index(sigma)]
        if len(self.levels) == 1:
            return self.models[0]
        nearest = min(max(sigma, self.levels[0]), self.levels[-1])
        if sigma != nearest:
            match self.models[self.levels.index(nearest)]:
                case IID(law=FullLaw() as law) | IAD(law=FullLaw() as law) as model:
                    return replace(model, law=law.scaled(sigma / nearest))
        right = min(max(bisect_right(self.levels, sigma), 1), len(self.levels) - 1)
        lower, upper = self.levels[right - 1], self.levels[right]
        position = log(sigma / lower) / log(upper / lower)
        parameters = _interpolate(
            parameters_of(self.models[right - 1]), parameters_of(self.models[right]), position
        )
        # The interpolated step size may exceed the bound of the other interpolated parameters.
        tau = parameters["tau"]
        tiny_step = model_from(
            type(self.models[0]), {**parameters, "tau": 1e-12}, settings_of(self.models[0])
        )
        return replace(tiny_step, tau=min(tau, tiny_step.stable_step(sigma)))

    def _evolution(self, sigma: float) -> Evolution:
        return self.at(sigma)._evolution(sigma)


def _interpolate(lower: Parameters, upper: Parameters, position: float) -> dict[str, Any]:
    """Geometric interpolation, at ``position`` 0 the lower and at 1 the upper parameters."""

    def between(a: Any, b: Any) -> Any:
        if isinstance(a, str):
            return a
        if isinstance(a, list):
            return [between(x, y) for x, y in zip(a, b, strict=True)]
        return exp((1 - position) * log(a) + position * log(b))

    return {name: between(lower[name], upper[name]) for name in lower}


def _require_positive(parameters: Parameters) -> None:
    """Refuse what has no logarithm."""
    for name, value in parameters.items():
        if not isinstance(value, str):
            for number in value if isinstance(value, list) else [value]:
                positive_number(f"{name} of a model joined by noise level", number)
