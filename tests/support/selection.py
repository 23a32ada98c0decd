"""Which of many cases run in ``make test``, and which in ``make thorough`` alone."""

from __future__ import annotations

import os
from collections.abc import Iterable
from typing import Any

import pytest

QUICK = "QUICK_TESTS" in os.environ
"""Whether this is ``make quick``, which goes without PyTorch: its import alone takes seconds."""


def some(cases: Iterable[Any], *kept: Any) -> list[Any]:
    """Return the cases of a parametrised test, with all but some of them marked as long."""
    found = list(cases)
    missing = [case for case in kept if case not in found]
    if missing:
        raise ValueError(f"there is no case {missing[0]!r}")
    return [
        case
        if case in kept
        else pytest.param(*(case if isinstance(case, tuple) else (case,)), marks=pytest.mark.long)
        for case in found
    ]
