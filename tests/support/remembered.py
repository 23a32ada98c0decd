"""Results of the oracle, which several engines are compared with."""

from __future__ import annotations

import pickle
from collections.abc import Callable
from functools import wraps
from typing import ParamSpec

import numpy as np
import numpy.typing as npt

_Arguments = ParamSpec("_Arguments")
_Array = npt.NDArray[np.float64]


def remembered(function: Callable[_Arguments, _Array]) -> Callable[_Arguments, _Array]:
    """Let plain loops run once for the same arguments, however many tests ask for the result."""
    results: dict[bytes, _Array] = {}

    @wraps(function)
    def once(*args: _Arguments.args, **kwargs: _Arguments.kwargs) -> _Array:
        key = pickle.dumps((args, kwargs))
        if key not in results:
            results[key] = function(*args, **kwargs)
        return results[key].copy()

    return once
