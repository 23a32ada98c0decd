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

_METRES = {
    "Å": 1e-10,
    "nm": 1e-9,
    "µm": 1e-6,
    "mm": 1e-3,
    "cm": 1e-2,
    "m": 1.0,
    "inch": 0.0254,
}

# Programs write these where they know no distance, and where they know no unit.
_NO_DISTANCES = ("pixel", "pixels", "reference frame")
_NO_UNITS = ("unknown", "none")


def distances(spacings: Spacings) -> dict[str, float]:
    """Return the spacings along Z, Y and X in one unit, whichever it is.

    Empty if not all of them are known, or if some are in units that cannot be compared.
    """
    found = {letter: spacings[letter] for letter in "ZYX" if letter in spacings}
    units = {spacing.unit for spacing in found.values()}
    if len(found) < 3:
        return {}
    if len(units) == 1:
        return {letter: spacing.value for letter, spacing in found.items()}
    if not all(unit in _METRES for unit in units):
        return {}
    return {
        letter: spacing.value * _METRES[spacing.unit or ""] for letter, spacing in found.items()
    }


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
