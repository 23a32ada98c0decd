"""Compiled steps of diffusion processes; see native/module.cpp."""

from collections.abc import Sequence
from typing import overload

import numpy as np
from numpy.typing import NDArray

_Term = tuple[int, bool, list[float], list[float], list[float]]

_Kernels = Sequence[Sequence[float]]
_Table = list[list[float]]
_Slopes = tuple[_Table, _Table, _Table]

def instruction_set() -> str: ...

class PlanFloat32:
    @overload
    def __init__(self, taps: _Kernels, theta: float, cells: bool) -> None: ...
    @overload
    def __init__(
        self,
        fine: _Kernels,
        sampling: Sequence[float],
        coarse: _Kernels,
        interpolation: Sequence[float],
        theta: float,
    ) -> None: ...
    def evolve(
        self,
        image: NDArray[np.float32],
        original: NDArray[np.float32],
        schedule: list[list[_Term]],
        tau: float,
        pull: float,
        threads: int,
        sensitivity: tuple[NDArray[np.float32], NDArray[np.float32]] | None = None,
    ) -> None: ...

class PlanFloat64:
    @overload
    def __init__(self, taps: _Kernels, theta: float, cells: bool) -> None: ...
    @overload
    def __init__(
        self,
        fine: _Kernels,
        sampling: Sequence[float],
        coarse: _Kernels,
        interpolation: Sequence[float],
        theta: float,
    ) -> None: ...
    def evolve(
        self,
        image: NDArray[np.float64],
        original: NDArray[np.float64],
        schedule: list[list[_Term]],
        tau: float,
        pull: float,
        threads: int,
        sensitivity: tuple[NDArray[np.float64], NDArray[np.float64]] | None = None,
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
        variance_slopes: list[list[float]],
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
        variance_slopes: list[list[float]],
    ) -> None: ...
