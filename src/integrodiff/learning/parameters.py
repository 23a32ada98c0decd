"""Between a model and the vector of numbers that training changes."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from integrodiff.models import ExplicitModel, FullLaw
from integrodiff.models.schema import model_from, parameters_of, settings_of
from integrodiff.stages import Evolution
from integrodiff.stages._arrays import plain

Vector = NDArray[np.float64]

_TINY = 1e-12  # a step size that is stable for whatever parameters


class Parameterisation:
    """The free parameters of a model, as a vector of their logarithms.

    Exponents, which may have any sign, stand for themselves. Parameters are named as in model
    files; those of a sequence have an index, as in ``gammas[3]``. The step size is kept within
    its stable bound at all the noise levels.

    Parameters
    ----------
    template : ExplicitModel
        Gives the class, the settings, and the values of fixed parameters.
    levels : sequence of float
        Noise levels at which the model must be stable.
    fixed : sequence of str
        Names of parameters that keep their value; a name without index fixes a whole sequence.
    """

    def __init__(
        self, template: ExplicitModel, levels: Sequence[float], fixed: Sequence[str] = ()
    ) -> None:
        self.template = template
        self.levels = tuple(levels)
        self._parameters = parameters_of(template)
        self._settings = settings_of(template)
        known = _flat_names(self._parameters)
        unknown = [name for name in fixed if name not in known and name not in self._parameters]
        if unknown:
            raise ValueError(
                f"no parameter {', '.join(map(repr, unknown))} to fix; there are {', '.join(known)}"
            )
        self.names = tuple(
            name for name in known if name not in fixed and name.split("[")[0] not in fixed
        )
        if not self.names:
            raise ValueError("all parameters are fixed, so there is nothing to train")

    def vector(self, model: ExplicitModel) -> Vector:
        """Return the logarithms of the free parameters of ``model``."""
        parameters = parameters_of(model)
        values = []
        for name in self.names:
            value = _get(parameters, name)
            if not (value > 0 or _is_exponent(name)):
                raise ValueError(f"{name} = {value} has no logarithm: fix it, or start above zero")
            values.append(value if _is_exponent(name) else math.log(value))
        return np.array(values, np.float64)

    def model(self, vector: Vector) -> ExplicitModel:
        """Return the model with these logarithms of its free parameters."""
        return self._build(self.values(vector))

    def values(self, vector: Vector) -> dict[str, float]:
        """Return the free parameters by name."""
        return {
            name: float(number) if _is_exponent(name) else math.exp(number)
            for name, number in zip(self.names, vector, strict=True)
        }

    def differentiable_model(self, vector: Any) -> ExplicitModel:
        """Return the model whose parameters are tensors that carry derivatives."""
        return self._build(
            {
                name: vector[i] if _is_exponent(name) else vector[i].exp()
                for i, name in enumerate(self.names)
            }
        )

    def evolution_without_bound(self, vector: Vector, level: float) -> Evolution:
        """Return the process at a noise level with the step size as it is, stable or not."""
        parameters = self._filled(self.values(vector))
        tau = parameters["tau"]
        tiny_step = model_from(type(self.template), {**parameters, "tau": _TINY}, self._settings)
        return replace(tiny_step._evolution(level), tau=tau * plain(tiny_step.tau_factor(level)))

    def _filled(self, values: dict[str, Any]) -> dict[str, Any]:
        """Return all parameters, the free ones with these values."""
        parameters: dict[str, Any] = {
            name: list(value) if isinstance(value, list) else value
            for name, value in self._parameters.items()
        }
        for name, value in values.items():
            _set(parameters, name, value)
        return parameters

    def _build(self, values: dict[str, Any]) -> ExplicitModel:
        parameters = self._filled(values)
        tau = parameters["tau"]
        tiny_step = model_from(type(self.template), {**parameters, "tau": _TINY}, self._settings)
        bound = min(
            tiny_step.stable_step(level) / plain(tiny_step.tau_factor(level))
            for level in self.levels
        )
        # Beyond its bound the step size is constant, and so has no derivative.
        return replace(tiny_step, tau=tau if plain(tau) <= bound else bound)


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
    """Name every single number."""
    names: list[str] = []
    for name, value in parameters.items():
        if isinstance(value, list):
            names += [f"{name}[{i}]" for i in range(len(value))]
        elif not isinstance(value, str):
            names.append(name)
    return names


def _is_exponent(name: str) -> bool:
    return "exponent" in name


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


def decibels(mean_squared_error: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return the PSNR for a peak of 255."""
    return 10 * np.log10(255.0**2 / mean_squared_error)


LOG_TO_DECIBELS = 10 / math.log(10)
