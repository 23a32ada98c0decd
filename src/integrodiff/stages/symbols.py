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
from functools import cached_property
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

    def on_coarse_grid(self) -> tuple[Symbol, float]:
        r"""Return a bound for images that a coarse grid makes, and a factor.

        Such an image has a part at :math:`\omega + \pi` beside each low frequency
        :math:`\omega`, with 2 - p in place of p. The factor, times the bound ``images`` of
        :class:`.stability.BlurBound`, is what that part adds to the bound.
        See :mod:`integrodiff.engines.certificate`.
        """
        raise TypeError(f"{type(self).__name__} has no bound on coarse grids")

    def concavity(self, decay: float, totals: Values) -> Values | None:
        r"""Bound minus the second derivative of the decayed symbol along the line of its maxima.

        That line is the one of the smallest product p q for each sum p + q: p q = 0 up to the sum
        2, and p = 2 beyond. There is one bound for each interval between the increasing
        ``totals``, sums among which 2 must be. None stands for a symbol whose maxima lie elsewhere.
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

    def concavity(self, decay: float, totals: Values) -> Values:
        """Bound -(S e^{-kr})'' = (2 k S' - k^2 S) e^{-kr}, with S linear up to 2 and beyond."""
        low, high = totals[:-1], totals[1:]
        slopes = np.where(low < 2, self.slope, self.slope - 2 * self.twist)
        ends = [self.value(np.minimum(r, 2.0), np.maximum(r - 2, 0.0)) for r in (low, high)]
        bound = decay * (2 * slopes - decay * np.minimum(*ends))
        result: Values = np.maximum(bound, 0.0) * np.exp(-decay * low)
        return result

    def on_coarse_grid(self) -> tuple[Symbol, float]:
        """Return the growing part, which includes the images."""
        return LinearSymbol(self.slope), 0.0

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

    def concavity(self, decay: float, totals: Values) -> Values:
        """Return zero: an exponential is convex."""
        return np.zeros(len(totals) - 1)


@dataclass(frozen=True)
class VolumeSymbol(Symbol):
    r"""The symbol of the 2 x 2 x 2 cell of volumes; see :doc:`/volumes`.

    It is a function of :math:`p_a = 1 - \cos\omega_a` along three axes, and linear in each.

    Attributes
    ----------
    theta, triple_weight : float
        Parameter of the cell, and the weight of the triple twist that belongs to it.
    spacing : (float, float, float)
        Distance of slices, rows and columns.
    """

    theta: float
    triple_weight: float
    spacing: tuple[float, float, float]

    def at(self, z: Values, y: Values, x: Values) -> Values:
        """Return the symbol at frequencies along slices, rows and columns."""
        p, k = (z, y, x), [1 / length**2 for length in self.spacing]
        mean = [1 - part / 2 for part in p]
        total: Values = self.triple_weight * sum(k) / 6 * p[0] * p[1] * p[2]
        for a, b, c in ((0, 1, 2), (1, 2, 0), (2, 0, 1)):
            total = total + 2 * k[a] * p[a] * mean[b] * mean[c]
            total = total + (1 - 2 * self.theta) * (k[a] + k[b]) * p[a] * p[b] * mean[c]
        return total

    @cached_property
    def envelope(self) -> tuple[Values, Values]:
        """Return the corners of the smallest concave function of s that is nowhere below.

        With s, the sum of the frequencies over the squared spacings, it is the upper convex hull
        of the points (s, m) at the corners of the cube [0, 2]^3.
        """
        corners = [2.0 * axis.ravel() for axis in np.indices((2, 2, 2))]
        pairs = zip(corners, self.spacing, strict=True)
        s = np.sum([part / length**2 for part, length in pairs], axis=0)
        hull: list[tuple[float, float]] = []
        for x, y in sorted(zip(s.tolist(), self.at(*corners).tolist(), strict=True)):
            if hull and x == hull[-1][0]:
                hull.pop()  # the one with the larger value comes last
            while len(hull) > 1 and _is_below(hull[-2], hull[-1], (x, y)):
                hull.pop()
            hull.append((x, y))
        return np.array([x for x, _ in hull]), np.array([y for _, y in hull])

    @property
    def largest_value(self) -> float:
        """Return the largest value, which is at one of the corners of the cube."""
        return float(self.envelope[1].max())

    def value(self, p: Values, q: Values) -> Values:
        """Return the symbol of volumes of equal slices."""
        return self.at(np.zeros_like(p), q, p)

    def upper_bound(self, p: Interval, q: Interval) -> Values:
        """Return its largest value."""
        return np.full_like(p[0], self.largest_value)


def _is_below(
    left: tuple[float, float], point: tuple[float, float], right: tuple[float, float]
) -> bool:
    """Whether a point is not above the line between its neighbours."""
    rise = (point[1] - left[1]) * (right[0] - left[0])
    return rise <= (right[1] - left[1]) * (point[0] - left[0])


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

    def on_coarse_grid(self) -> tuple[Symbol, float]:
        r"""Bound order two by :math:`4 (p + q)^2`.

        The image of :math:`p^2` is at most :math:`(2 - p)^2\, p / 2 \le 2 p`, and
        :math:`4 (2 p + 2 q) \le 32`.
        """
        return (SquareSymbol(), 32.0) if self.order == 2 else super().on_coarse_grid()


@dataclass(frozen=True)
class SquareSymbol(Symbol):
    """``4 (p + q)^2``."""

    def value(self, p: Values, q: Values) -> Values:
        """Return the symbol at p and q."""
        result: Values = 4 * (p + q) ** 2
        return result

    def upper_bound(self, p: Interval, q: Interval) -> Values:
        """Return the value at the upper ends."""
        return self.value(p[1], q[1])
