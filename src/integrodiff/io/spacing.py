"""The distance of neighbouring pixels along an axis, where a file declares it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from math import isfinite
from typing import Any, NamedTuple, TypeAlias


class Spacing(NamedTuple):
    """Distance of neighbouring pixels along one axis.

    Attributes
    ----------
    value : float
        The distance, finite and positive.
    unit : str, optional
        Symbol of its unit, such as "µm" or "s"; None where the file does not say.
    """

    value: float
    unit: str | None = None


Spacings: TypeAlias = Mapping[str, Spacing]
"""Spacing by the letter of its axis; axes of unknown spacing are left out."""

_NAMES = {
    "Å": ("angstrom", "ångström", "å"),
    "nm": ("nanometer", "nanometre"),
    "µm": ("micrometer", "micrometre", "micron", "microns", "um", "μm", r"\u00b5m"),
    "mm": ("millimeter", "millimetre"),
    "cm": ("centimeter", "centimetre"),
    "m": ("meter", "metre"),
    "inch": ("in", "inches"),
    "µs": ("microsecond", "us", "usec", "μs"),
    "ms": ("millisecond", "msec"),
    "s": ("second", "sec", "seconds"),
    "min": ("minute", "minutes"),
}
_SYMBOLS = {name: symbol for symbol, names in _NAMES.items() for name in (symbol, *names)}

# Programs write these where they know no distance, and where they know no unit.
_NO_DISTANCES = ("pixel", "pixels", "reference frame")
_NO_UNITS = ("unknown", "none")


def declared(values: Iterable[tuple[str, Any, Any]], axes: str) -> dict[str, Spacing]:
    """Return the spacings that a file declares and that make sense.

    Parameters
    ----------
    values : iterable of (letter, value, unit)
        As the file has them: values may be missing, of any type, or not positive.
    axes : str
        The axes of the image; spacings along others are left out.
    """
    found = {}
    for letter, value, unit in values:
        name = str(unit).strip() if unit and unit not in _NO_UNITS else ""
        try:
            number = float(value)
        except (TypeError, ValueError, OverflowError, ZeroDivisionError):
            continue
        if name.lower() in _NO_DISTANCES:
            continue
        if letter in axes and isfinite(number) and number > 0:
            symbol = _SYMBOLS.get(name) or _SYMBOLS.get(name.lower()) or name or None
            found[letter] = Spacing(number, symbol)
    return found
