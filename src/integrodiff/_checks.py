"""Checks of arguments: each function returns the checked value or raises an error."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from numbers import Integral, Real
from reprlib import Repr
from typing import Any

from integrodiff.stages._arrays import plain


def shown(value: object) -> str:
    """Return a value for a message, shortened: it may come from a file and be long."""
    return _REPR.repr(value)


_REPR = Repr()
_REPR.maxstring = _REPR.maxother = _REPR.maxlong = 80


def finite_number(name: str, value: Any) -> float:
    """Return ``value`` as a finite Python float.

    An array without axes, which may carry derivatives, is checked and returned as it is.
    """
    if getattr(value, "shape", None) == () and not isinstance(value, Real):
        finite_number(name, plain(value))
        return value  # type: ignore[no-any-return]
    if isinstance(value, bool) or not isinstance(value, Real):
        raise TypeError(f"{name} must be a real number, got {shown(value)}")
    try:
        number = float(value)
    except OverflowError:
        number = math.inf
    if not math.isfinite(number):
        raise ValueError(f"{name} must be finite, got {number}")
    return number


def positive_number(name: str, value: Any) -> float:
    """Return ``value`` as a finite Python float above zero."""
    number = finite_number(name, value)
    if number <= 0:
        raise ValueError(f"{name} must be positive, got {number}")
    return number


def nonnegative_number(name: str, value: Any) -> float:
    """Return ``value`` as a finite Python float not below zero."""
    number = finite_number(name, value)
    if number < 0:
        raise ValueError(f"{name} must not be negative, got {number}")
    return number


def number_between(name: str, value: Any, lowest: float, highest: float) -> float:
    """Return ``value`` as a float in a closed interval."""
    number = finite_number(name, value)
    if not lowest <= number <= highest:
        raise ValueError(f"{name} must lie between {lowest} and {highest}, got {number}")
    return number


def positive_integer(name: str, value: Any) -> int:
    """Return ``value`` as a Python int above zero."""
    if isinstance(value, bool) or not isinstance(value, Integral):
        raise TypeError(f"{name} must be a whole number, got {shown(value)}")
    if value < 1:
        raise ValueError(f"{name} must be at least 1, got {shown(value)}")
    return int(value)


def one_of(name: str, value: Any, choices: Sequence[str]) -> Any:
    """Return ``value`` if it is one of the names in ``choices``."""
    if value not in choices:
        known = ", ".join(repr(choice) for choice in choices)
        raise ValueError(f"{name} must be one of {known}; got {shown(value)}")
    return value


def sequence_of_numbers(
    name: str, values: Any, length: int | None = None, *, signed: bool = False
) -> tuple[float, ...]:
    """Return ``values`` as a tuple of finite floats, nonnegative ones unless ``signed``."""
    if isinstance(values, str) or not isinstance(values, Iterable):
        raise TypeError(f"{name} must be a sequence of numbers, got {shown(values)}")
    check = finite_number if signed else nonnegative_number
    numbers = tuple(check(f"{name}[{i}]", value) for i, value in enumerate(values))
    if not numbers or (length is not None and len(numbers) != length):
        wanted = "at least one value" if length is None else f"{length} values"
        raise ValueError(f"{name} must have {wanted}, got {len(numbers)}")
    return numbers
