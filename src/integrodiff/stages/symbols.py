r"""Eigenvalues of derivative operators as functions of the frequency, with certified bounds.

Under the DCT-II an image has the frequencies :math:`\omega_x, \omega_y`. Everything here depends
on them through :math:`p = 1 - \cos\omega_x` and :math:`q = 1 - \cos\omega_y` in [0, 2]. A *symbol*
:math:`m(p, q)` bounds the eigenvalues of one operator; blurs of scale :math:`\sigma` on both sides
multiply it by :math:`e^{-k(p + q)}` with the decay :math:`k = 2\sigma^2`.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from integrodiff.stages.derivatives import largest_symbol, symbol

Values: TypeAlias = NDArray[np.float64]
Interval: TypeAlias = tuple[Values, Values]


class Symbol(ABC):
    """Eigenvalues, or an upper bound of them, as a function of p and q."""

    @abstractmethod
    def value(self, p: Values, q: Values) -> Values:
        """Return the symbol at p and q."""

    @abstractmethod
    def upper_bound(self, p: Interval, q: Interval) -> Values:
        """Return an upper bound on boxes of p and q, given as (low, high)."""

    def curvature(self, decay: float) -> float | None:
        """Bound the second derivative of the decayed symbol along the line of its maxima.

        That line is the one of smallest product p q for each sum p + q. None stands for a symbol
        whose maxima lie elsewhere.
        """
        return None


@dataclass(frozen=True)
class LinearSymbol(Symbol):
    """``slope (p + q) - twist p q``, with a twist of at most the slope."""

    slope: float
    twist: float = 0.0

    def value(self, p: Values, q: Values) -> Values:
        """Return the symbol at p and q."""
        return self.slope * (p + q) - self.twist * p * q

    def upper_bound(self, p: Interval, q: Interval) -> Values:
        """Bound slope p (1 - c q) + slope q (1 - c p), whose factors grow and fall."""
        c = self.twist / (2 * self.slope)
        return self.slope * (p[1] * (1 - c * q[0]) + q[1] * (1 - c * p[0]))

    def curvature(self, decay: float) -> float:
        """Return a bound for |(S e^{-kr})''| <= (k^2 S + 2 k |S'|) e^{-kr}, where S <= slope r."""
        return self.slope * decay * (1 / math.e + 2)

    def largest(self, decay: float) -> float:
        """Return the largest value of slope r e^{-kr}."""
        return self.slope / (decay * math.e) if decay else math.inf


@dataclass(frozen=True)
class ConstantSymbol(Symbol):
    """The same bound at all frequencies."""

    bound: float

    def value(self, p: Values, q: Values) -> Values:
        """Return the bound."""
        return np.full_like(p + q, self.bound)

    def upper_bound(self, p: Interval, q: Interval) -> Values:
        """Return the bound."""
        return np.full_like(p[0], self.bound)

    def curvature(self, decay: float) -> float:
        """Return the largest second derivative of an exponential."""
        return self.bound * decay**2


@dataclass(frozen=True)
class HigherSymbol(Symbol):
    """The symbol of all derivatives of one order; see :mod:`integrodiff.stages.derivatives`."""

    order: int

    def value(self, p: Values, q: Values) -> Values:
        """Return the symbol at p and q."""
        result: Values = symbol(self.order, p, q)
        return result

    def upper_bound(self, p: Interval, q: Interval) -> Values:
        """Bound each of its monotonous factors."""
        result: Values = largest_symbol(self.order, p, q)
        return result
