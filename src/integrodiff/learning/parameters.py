"""The free parameters of a model as a vector, and the smoothness penalty on them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from integrodiff.models import ExplicitModel, FullLaw
from integrodiff.stages import DerivativeOperator, Evolution, stable_step, step_table
from integrodiff.stages._arrays import plain

Vector = NDArray[np.float64]


class Parameterisation:
    """The free parameters of a model, as a vector of numbers without bounds.

    Most parameters stand for their logarithm; exponents, which may have any sign, for themselves
    (see :class:`integrodiff.models.description.Parameter`). Parameters are named as in model files;
    those of a sequence have an index, as in ``gammas[3]``. Where the step size is a law of the
    noise level, every level takes its own stable bound if that is smaller, as the model does; a
    plain step size is kept within the bound of all the noise levels.

    Parameters
    ----------
    template : ExplicitModel
        Gives the class, the settings, and the values of fixed parameters.
    levels : sequence of float
        Noise levels at which the model must be stable.
    fixed : sequence of str
        Names of parameters that keep their value; a name without index fixes a whole sequence.
        Optional parameters at their neutral value are fixed in any case.
    """

    def __init__(
        self, template: ExplicitModel, levels: Sequence[float], fixed: Sequence[str] = ()
    ) -> None:
        self.template = template
        self.levels = tuple(levels)
        self._parameters = template.parameters()
        self._settings = template.settings()
        self._declared = template.declared()
        known = _flat_names(self._parameters)
        unknown = [
            name
            for name in fixed
            if name not in known and name not in self._parameters and name not in self._declared
        ]
        if unknown:
            raise ValueError(
                f"no parameter {', '.join(map(repr, unknown))} to fix; there are {', '.join(known)}"
            )
        self.names = tuple(name for name in known if name not in fixed and _base(name) not in fixed)
        if not self.names:
            raise ValueError("all parameters are fixed, so there is nothing to train")
        is_law = all(template._tau_is_a_law(level) for level in self.levels)
        self._bound_at_each_level = is_law and template.neutral("tau") is None

    def vector(self, model: ExplicitModel) -> Vector:
        """Return the free parameters of ``model`` as they are trained."""
        parameters = model.parameters()
        values = []
        for name in self.names:
            value, declared = _get(parameters, name), self._declared[_base(name)]
            if declared.transform == "log" and not value > 0:
                raise ValueError(f"{name} = {value} has no logarithm: fix it, or start above zero")
            values.append(declared.forward(value))
        return np.array(values, np.float64)

    def model(self, vector: Vector) -> ExplicitModel:
        """Return the model with these free parameters; a plain step size is cut to the bound."""
        return self._bounded(self._unbounded(vector.tolist()))

    def values(self, vector: Vector) -> dict[str, float]:
        """Return the free parameters by name."""
        return self._values(vector.tolist())

    def differentiable_model(self, vector: Any) -> ExplicitModel:
        """Return the model whose parameters are tensors that carry derivatives."""
        return self._bounded(self._unbounded([vector[i] for i in range(len(self.names))]))

    def evolution(self, model: ExplicitModel, level: float) -> Evolution:
        """Return the process of one of these models at a noise level, with a stable step size.

        At its bound the step size of a law has the derivatives of the bound.
        """
        evolution = model._evolution(level)
        if not self._bound_at_each_level:
            return evolution
        bound = model.share_of_bound * stable_step(evolution)
        if plain(evolution.tau) <= bound:
            return evolution
        largest = largest_eigenvalue(evolution)
        return replace(evolution, tau=bound * plain(largest) / largest)

    def step_at_bound(self, evolution: Evolution, base: Evolution) -> float:
        """Return the step size of a process that is near another one whose step is at its bound.

        It is for differences between both. The certified bound has an error of up to a thousandth,
        so that its changes come from the largest eigenvalue. To first order this changes as that of
        one mode, which is found once for a base.
        """
        if not self._bound_at_each_level:
            return plain(base.tau)
        mode = _mode_of_base(base)
        ratio = plain(mode.eigenvalue(base)) / plain(mode.eigenvalue(evolution))
        return min(plain(evolution.tau), plain(base.tau) * ratio)

    def evolution_without_bound(self, vector: Vector, level: float) -> Evolution:
        """Return the process at a noise level with the step size as it is, stable or not."""
        return self._unbounded(vector.tolist())._evolution(level)

    def _values(self, numbers: Sequence[Any]) -> dict[str, Any]:
        return {
            name: self._declared[_base(name)].backward(number)
            for name, number in zip(self.names, numbers, strict=True)
        }

    def _unbounded(self, numbers: Sequence[Any]) -> ExplicitModel:
        """Return the model with these free parameters."""
        parameters: dict[str, Any] = {
            name: list(value) if isinstance(value, list) else value
            for name, value in self._parameters.items()
        }
        for name, value in self._values(numbers).items():
            _set(parameters, name, value)
        return type(self.template).build(parameters, self._settings)

    def _bounded(self, model: ExplicitModel) -> ExplicitModel:
        """Return the model with a step size that is stable at all noise levels."""
        if self.template.neutral("tau") is not None or self._bound_at_each_level:
            return model  # it keeps its weights or its step size stable by itself
        bound = min(
            model.stable_step(level) / plain(model.tau_factor(level)) for level in self.levels
        )
        # Beyond its bound the step size is constant, and so has no derivative.
        return model if plain(model.tau) <= bound else replace(model, tau=bound)


class _Mode(NamedTuple):
    """The frequency with the largest eigenvalue of all steps.

    Attributes
    ----------
    step : int
        The step.
    shares : list of float
        What each weight of its terms adds to the eigenvalue.
    """

    step: int
    shares: list[float]

    def eigenvalue(self, evolution: Evolution) -> Any:
        """Return the eigenvalue of a process, as a sum over its weights."""
        weights = _weights(evolution, self.step)
        pull = 2 * evolution.pull_at(self.step)
        return sum((a * b for a, b in zip(self.shares, weights, strict=True)), pull)


def largest_eigenvalue(evolution: Evolution) -> Any:
    """Return the largest eigenvalue of all steps up to a few percent, as a sum over the weights.

    Weights with derivatives give it derivatives: those of one over the stable step size.
    """
    return _highest_mode(evolution).eigenvalue(evolution)


def _highest_mode(evolution: Evolution) -> _Mode:
    scales = tuple(plain(scale) for scale in evolution.scales)
    best, found = -1.0, _Mode(0, [])
    for step in range(max(len(evolution.schedule), len(evolution.pulls()))):
        table = _table(tuple(term.derivatives for term in evolution.terms(step)), scales)
        values = table @ np.array([plain(weight) for weight in _weights(evolution, step)])
        row = int(values.argmax())
        value = float(values[row] + plain(2 * evolution.pull_at(step)))
        if value > best:
            best, found = value, _Mode(step, table[row].tolist())
    return found


_mode_of_base = lru_cache(maxsize=8)(_highest_mode)
"""The same for processes without derivatives, which are asked for again and again."""


def _weights(evolution: Evolution, step: int) -> list[Any]:
    return [weight for term in evolution.terms(step) for weight in term.flux_weights]


@lru_cache(maxsize=8)
def _table(operators: tuple[DerivativeOperator, ...], scales: tuple[float, ...]) -> Any:
    """Return the table of all operators at all scales, one operator after the other."""
    repeated = [operator for operator in operators for _ in scales]
    return step_table(repeated, scales * len(operators))


def smoothness(model: ExplicitModel, level: float) -> tuple[Vector, NDArray[np.float64]]:
    r"""Return the residuals of the paper's smoothness penalty, and their derivatives.

    The residuals are the differences of neighbouring :math:`\gamma_i`, and of neighbouring
    :math:`\lambda_i / s`, over the scales. The derivatives are with respect to the logarithms of
    all ``gammas``, then all ``lambdas``.
    """
    law = getattr(model, "law", None)
    if not isinstance(law, FullLaw):
        raise TypeError("the smoothness penalty is for models with a full law")
    values = np.concatenate([np.array(law.gammas), np.array(law.lambdas) / level])
    count = len(law.gammas)
    difference = np.zeros((2 * count - 2, 2 * count))
    for row in range(count - 1):
        for offset in (0, count):
            difference[row + (offset and count - 1), row + offset : row + offset + 2] = (-1, 1)
    return difference @ values, difference * values


def _flat_names(parameters: dict[str, Any]) -> list[str]:
    """Return a name for each number; those of a sequence have an index."""
    names: list[str] = []
    for name, value in parameters.items():
        if isinstance(value, list):
            names += [f"{name}[{i}]" for i in range(len(value))]
        elif not isinstance(value, str):
            names.append(name)
    return names


def _base(name: str) -> str:
    """Return the name of a parameter without index."""
    return name.split("[")[0]


def _get(parameters: dict[str, Any], name: str) -> float:
    base, _, index = name.partition("[")
    value = parameters[base]
    return float(value[int(index[:-1])] if index else value)


def _set(parameters: dict[str, Any], name: str, value: Any) -> None:
    base, _, index = name.partition("[")
    if index:
        parameters[base][int(index[:-1])] = value
    else:
        parameters[base] = value
