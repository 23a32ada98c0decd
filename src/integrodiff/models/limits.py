"""How large a model may be, and which numbers of a process can be computed with.

A model may come from a stranger, and a file of a few bytes can ask for any amount of work. Each
limit is far above what the shipped models need (10 steps, 8 scales up to 7 pixels, 6 noise levels).
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, TypeVar

import numpy as np

from integrodiff._checks import nonnegative_number, positive_integer, positive_number, shown
from integrodiff.stages import Evolution, Term
from integrodiff.stages._arrays import plain

_Number = TypeVar("_Number", int, float)

MOST_STEPS = 10_000
"""Explicit steps: a megapixel takes minutes."""

MOST_VARYING_STEPS = 100
"""Steps with numbers of their own, which are bounded together in tables of megabytes a step."""

MOST_SCALES = 256
"""Scales of a grid: every scale of every channel is a plane in memory."""

MOST_CHANNELS = 64
"""Channels of a model with free numbers: the table of their step bound takes a megabyte each."""

MOST_LEVELS = 1000
"""Noise levels that are joined: more than there are grey levels to tell apart."""

LARGEST_SCALE = 1000.0
"""Smoothing scale in pixels: its kernel reaches 8,300 pixels far, wider than most images."""

MOST_WORK = 100_000.0
"""Steps times the sum of 1 + scale over all blurs, to which the time per pixel is proportional.

It is below 600 for all shipped models.
"""

LARGEST_FILE = 4 * 2**20
"""Bytes of a model file; the largest shipped one has 13,000."""

MOST_NAMES = 1000
"""Names in one object of a model file."""

DEEPEST_NESTING = 32
"""Objects and lists inside each other in a model file; the schema needs four."""

# Single precision squares the structure tensor and divides it by squared contrasts.
LARGEST_WEIGHT, LARGEST_STEP = 1e10, 1e15
SMALLEST_CONTRAST, LARGEST_CONTRAST = 1e-15, 1e15


def step_count(name: str, value: Any) -> int:
    """Return a number of steps that can be computed."""
    return at_most(name, positive_integer(name, value), MOST_STEPS)


def blur_scale(name: str, value: Any) -> float:
    """Return a smoothing scale in pixels that can be computed."""
    return at_most(name, nonnegative_number(name, value), LARGEST_SCALE)


def positive_blur_scale(name: str, value: Any) -> float:
    """Return a smoothing scale above zero that can be computed."""
    return blur_scale(name, positive_number(name, value))


def integration_limits(name: str, value: Any) -> tuple[tuple[float, float], ...]:
    """Return the smallest and the largest integration scale of each order, or nothing."""
    if not isinstance(value, (list, tuple)) or len(value) > MOST_CHANNELS:
        raise TypeError(f"{name} must be a list of pairs of scales, got {shown(value)}")
    found = []
    for pair in value:
        if not isinstance(pair, (list, tuple)) or len(pair) != 2:
            raise TypeError(f"{name} must be pairs of scales, got {shown(pair)}")
        lowest, highest = (blur_scale(name, scale) for scale in pair)
        if lowest > highest:
            raise ValueError(f"{name} must be pairs that do not decrease, got {shown(pair)}")
        found.append((lowest, highest))
    return tuple(found)


def at_most(name: str, value: _Number, limit: float) -> _Number:
    """Return the value if it does not exceed its limit."""
    if value > limit:
        raise ValueError(
            f"{name} must be at most {limit:g}, got {shown(value)}; take a smaller one"
        )
    return value


@contextmanager
def arithmetic_at(sigma: float) -> Iterator[None]:
    """Turn overflow and division by zero in the laws of a model into a ``ValueError``."""
    try:
        with np.errstate(all="ignore"):
            yield
    except ArithmeticError as error:
        raise ValueError(
            f"the laws of this model have no finite values at noise level {sigma:g}; "
            "take a noise level that the model was trained for, or correct its parameters"
        ) from error


def require_computable(evolution: Evolution, sigma: float) -> None:
    """Refuse a process whose numbers no engine can compute with, or that takes for ever."""
    for terms in evolution.schedule:
        for term in terms:
            weights = (*term.coupling.weights, *term.flux_weights)
            _require("a weight", weights, 0.0, LARGEST_WEIGHT, sigma)
            contrasts = term.diffusivity.contrasts
            _require("a contrast", contrasts, SMALLEST_CONTRAST, LARGEST_CONTRAST, sigma)
            integration = (term.coupling.integration_scale,)
            _require("an integration scale", integration, 0.0, LARGEST_SCALE, sigma)
            _require("a mix of eigenvalues", (term.coupling.mix,), -1.0, 1.0, sigma)
    _require("the step size tau", (evolution.tau,), 0.0, math.inf, sigma)
    _require("the fidelity weight pull", evolution.pulls(), 0.0, LARGEST_WEIGHT, sigma)
    _require("a scale", evolution.scales, 0.0, LARGEST_SCALE, sigma)
    scales = sum(1 + plain(scale) for scale in evolution.scales)
    works = [sum(scales + _integration_work(t) for t in terms) for terms in evolution.schedule]
    work = evolution.steps * sum(works) / len(works)
    if work > MOST_WORK:
        raise ValueError(
            f"this model takes {work:.3g} units of work (steps times the sum of 1 + scale), at "
            f"most {MOST_WORK:g} are allowed; take fewer steps, or fewer or smaller scales"
        )


def require_moderate_step(evolution: Evolution, sigma: float) -> None:
    """Refuse a step size, already cut to the stable one, that single precision cannot hold."""
    _require("the step size tau", (evolution.tau,), 0.0, LARGEST_STEP, sigma)


def _integration_work(term: Term) -> float:
    scale = plain(term.coupling.integration_scale)
    return 3 * (1 + scale) if scale else 0.0


def _require(what: str, values: Any, lowest: float, highest: float, sigma: float) -> None:
    for value in map(plain, values):
        if not (lowest <= value <= highest and math.isfinite(value)):
            raise ValueError(
                f"{what} of this model is {value:g} at noise level {sigma:g}, expected a number "
                f"from {lowest:g} to {highest:g}; take a noise level that the model was trained "
                "for, or correct its parameters"
            )
