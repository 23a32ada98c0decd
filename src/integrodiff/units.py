"""The unit of grey values, where the values of a file stand for others by a straight line."""

from __future__ import annotations

from typing import NamedTuple


class GreyUnits(NamedTuple):
    """Grey values in the unit of the user are ``slope * stored + intercept``.

    Attributes
    ----------
    slope : float
        Units of a stored grey level, not zero.
    intercept : float
        What a stored zero stands for.
    """

    slope: float = 1.0
    intercept: float = 0.0

    @property
    def are_stored(self) -> bool:
        """Whether the stored values are those of the user."""
        return self == GreyUnits()

    def of(self, stored: float) -> float:
        """Return a stored value in the unit of the user."""
        return self.slope * stored + self.intercept

    @property
    def size(self) -> float:
        """Units of a difference of one stored grey level."""
        return abs(self.slope)
