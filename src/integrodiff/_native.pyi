"""Compiled steps of diffusion processes; see native/module.cpp."""

import numpy as np
from numpy.typing import NDArray

_Term = tuple[int, bool, list[float], list[float], list[float]]

_Table = list[list[float]]
_Slopes = tuple[_Table, _Table, _Table]

def instruction_set() -> str: ...

class PlanFloat32:
    def __init__(
        self, taps: list[list[float]], theta: float, cells: bool, threads: int
    ) -> None: ...
    def step(
        self,
        image: NDArray[np.float32],
        original: NDArray[np.float32],
        terms: list[_Term],
        tau: float,
        pull: float,
    ) -> None: ...

class PlanFloat64:
    def __init__(
        self, taps: list[list[float]], theta: float, cells: bool, threads: int
    ) -> None: ...
    def step(
        self,
        image: NDArray[np.float64],
        original: NDArray[np.float64],
        terms: list[_Term],
        tau: float,
        pull: float,
    ) -> None: ...

class TangentPlanFloat32:
    def __init__(self, taps: list[list[float]], theta: float) -> None: ...
    def step(
        self,
        images: NDArray[np.float32],
        original: NDArray[np.float32],
        terms: list[_Term],
        slopes: list[_Slopes],
        tau: float,
        tau_slopes: list[float],
        pull: float,
        pull_slopes: list[float],
    ) -> None: ...

class TangentPlanFloat64:
    def __init__(self, taps: list[list[float]], theta: float) -> None: ...
    def step(
        self,
        images: NDArray[np.float64],
        original: NDArray[np.float64],
        terms: list[_Term],
        slopes: list[_Slopes],
        tau: float,
        tau_slopes: list[float],
        pull: float,
        pull_slopes: list[float],
    ) -> None: ...
