"""Models trained for each noise level on its own, joined to one for all levels."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from itertools import pairwise
from math import log
from typing import Any

from integrodiff._checks import positive_number, sequence_of_numbers, shown
from integrodiff.models.base import ExplicitModel, Model
from integrodiff.models.description import Parameter
from integrodiff.models.limits import MOST_LEVELS, arithmetic_at, at_most
from integrodiff.stages import Evolution


@dataclass(frozen=True, kw_only=True)
class ByNoiseLevel(Model):
    """Models of one kind at several noise levels, interpolated between them.

    Between two neighbouring levels every parameter is interpolated linearly in the logarithm of
    the noise level, on the scale on which it is trained: most are powers of the noise level. Below
    the first and above the last level the model of the nearest one is extrapolated if it has a rule
    for that (:meth:`ExplicitModel.extrapolated`), else the nearest interval continues. The step
    size is the smaller of what this gives and the stable bound. The model of a single level holds
    for all of them.

    Attributes
    ----------
    levels : tuple of float
        Increasing noise levels on the scale [0, 255].
    models : tuple of models
        One for each level, of the same class and with the same settings.
    provenance : mapping
        Where the parameters come from; no part of the model's identity.

    Examples
    --------
    >>> from integrodiff import ByNoiseLevel, PeronaMalik
    >>> low, high = PeronaMalik(tau=0.2, contrast=2.0), PeronaMalik(tau=0.2, contrast=8.0)
    >>> model = ByNoiseLevel(levels=(10, 40), models=(low, high))
    >>> (term,) = model.evolution(sigma=20).schedule[0]
    >>> round(term.diffusivity.contrasts[0], 6)  # halfway on logarithmic scales
    4.0
    """

    levels: tuple[float, ...]
    models: tuple[ExplicitModel, ...]
    provenance: Mapping[str, Any] = field(default_factory=dict, compare=False, repr=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "levels", sequence_of_numbers("levels", self.levels))
        object.__setattr__(self, "models", tuple(self.models))
        at_most("the number of levels", len(self.levels), MOST_LEVELS)
        positive_number("levels[0]", self.levels[0])
        if any(a >= b for a, b in pairwise(self.levels)):
            raise ValueError(f"levels must increase, got {shown(self.levels)}")
        if len(self.models) != len(self.levels):
            raise ValueError(
                f"{len(self.levels)} levels need as many models, not {len(self.models)}"
            )
        first = self.models[0]
        for model in self.models:
            if not isinstance(model, ExplicitModel) or model.depends_on_noise:
                raise TypeError(f"only models for one noise level can be joined, got {model!r}")
            if type(model) is not type(first) or model.settings() != first.settings():
                raise ValueError(
                    "joined models must be of one class with equal settings; "
                    f"{model!r} differs from {first!r}"
                )
        if len(self.models) > 1:
            for model in self.models:
                _require_positive(model)

    def at(self, sigma: float) -> ExplicitModel:
        """Return the model with the parameters for the noise level ``sigma``."""
        with arithmetic_at(sigma):
            return self._at(sigma)

    def _at(self, sigma: float) -> ExplicitModel:
        if sigma in self.levels:
            return self.models[self.levels.index(sigma)]
        if len(self.levels) == 1:
            return self.models[0]
        nearest = min(max(sigma, self.levels[0]), self.levels[-1])
        if sigma != nearest:
            found = self.models[self.levels.index(nearest)].extrapolated(sigma / nearest)
            if found is not None:
                return found
        right = self.upper_level(sigma)
        lower, upper = self.levels[right - 1], self.levels[right]
        position = log(sigma / lower) / log(upper / lower)
        model = _interpolated(self.models[right - 1], self.models[right], position)
        # The interpolated step size may exceed the bound of the other interpolated parameters.
        return replace(model, tau=min(model.tau, model.stable_step(sigma)))

    def upper_level(self, sigma: float) -> int:
        """Return the index of the upper level between which and the one before is interpolated."""
        return min(max(bisect_right(self.levels, sigma), 1), len(self.levels) - 1)

    @property
    def noise_levels(self) -> tuple[float, ...]:
        """Noise levels that the parameters were trained for: the levels, unless said otherwise."""
        return super().noise_levels or self.levels

    def _tau_is_a_law(self, sigma: float) -> bool:
        return len(self.levels) > 1 and sigma not in self.levels

    def _evolution(self, sigma: float) -> Evolution:
        return self.at(sigma)._evolution(sigma)


def _interpolated(lower: ExplicitModel, upper: ExplicitModel, position: float) -> ExplicitModel:
    """Interpolate all parameters; at ``position`` 0 they are the lower and at 1 the upper ones."""

    def between(declared: Parameter, a: Any, b: Any) -> Any:
        if isinstance(a, list):
            return [between(declared, x, y) for x, y in zip(a, b, strict=True)]
        return declared.backward(
            (1 - position) * declared.forward(a) + position * declared.forward(b)
        )

    first, second = lower.parameters(), upper.parameters()
    declared = lower.declared()
    parameters = {
        name: between(declared[name], value, second[name]) if name in declared else value
        for name, value in first.items()
    }
    return type(lower).build(parameters, lower.settings())


def _require_positive(model: ExplicitModel) -> None:
    """Refuse numbers without a logarithm where it is interpolated."""
    parameters = model.parameters()
    for name, declared in model.declared().items():
        if declared.transform == "log" and name in parameters:
            value = parameters[name]
            for number in value if isinstance(value, list) else [value]:
                positive_number(f"{name} of a model joined by noise level", number)
