"""Processes whose parameters differ a little from those of another one, for differences.

The numbers of a process depend on the parameters of its model by short formulas. Central
differences in double precision give the derivatives of these numbers up to about ten digits.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from integrodiff.learning.parameters import Parameterisation, Vector
from integrodiff.stages import Evolution

STEP = 1e-5
"""Of central differences in the parameters as they are trained; their error is about its square."""


class Neighbourhood:
    """The process of a parameterised model at a noise level, and those near it.

    Parameters
    ----------
    parameterisation : Parameterisation
        The model and its free parameters.
    vector : ndarray
        Where these are.
    level : float
        Noise level.

    Attributes
    ----------
    center : Evolution
        The process there, with a stable step size.
    """

    def __init__(self, parameterisation: Parameterisation, vector: Vector, level: float) -> None:
        self._parameterisation, self._vector, self._level = parameterisation, vector, level
        self.center = parameterisation.evolution(parameterisation.model(vector), level)
        free = parameterisation.evolution_without_bound(vector, level)
        # Beyond its bound the step size does not depend on ``tau``.
        self._is_cut = bool(self.center.tau < free.tau * (1 - 1e-12))

    def at(self, vector: Vector) -> Evolution:
        """Return the process at parameters nearby; its step is at the bound if the centre's is."""
        near = self._parameterisation.evolution_without_bound(vector, self._level)
        if self._is_cut:
            near = replace(near, tau=self._parameterisation.step_at_bound(near, self.center))
        return near

    def pairs(self) -> list[tuple[Evolution, Evolution]]:
        """Return, for each parameter, the processes a ``STEP`` ahead and a ``STEP`` behind."""
        steps = STEP * np.eye(len(self._vector))
        return [(self.at(self._vector + step), self.at(self._vector - step)) for step in steps]


def central_differences(ahead: Sequence[Any], behind: Sequence[Any]) -> list[float]:
    """Return the central differences of numbers of such a pair."""
    return [(float(a) - float(b)) / (2 * STEP) for a, b in zip(ahead, behind, strict=True)]
