"""Compiled steps of diffusion processes; see native/bindings/module.cpp."""

from collections.abc import Sequence
from typing import overload

import numpy as np
from numpy.typing import NDArray

# Order, whether the coupling is a tensor, mix of its eigenvalues, coupling weights, flux weights,
# contrasts, taps of the integration scale.
_Term = tuple[int, bool, float, Sequence[float], Sequence[float], Sequence[float], Sequence[float]]
_Schedule = Sequence[Sequence[_Term]]
_Kernels = Sequence[Sequence[float]]
# The last are taps of the integration scale along slices, rows and columns, or none, and for the
# structure tensor lengths along these axes and shares of twists.
_Three = tuple[float, float, float]
_VolumeTerm = tuple[
    int,
    bool,
    float,
    Sequence[float],
    Sequence[float],
    Sequence[float],
    _Kernels,
    _Three,
    _Three,
]
_VolumeSchedule = Sequence[Sequence[_VolumeTerm]]
_Table = Sequence[Sequence[float]]
_Slopes = Sequence[Sequence[tuple[_Table, _Table, _Table]]]

def instruction_set() -> str: ...
def instruction_sets() -> list[str]: ...

class RunFloat32:
    @property
    def threads(self) -> int: ...
    @property
    def done(self) -> int: ...
    @property
    def bytes(self) -> int: ...
    def advance(self, steps: int = 1) -> None: ...
    def read(self, out: NDArray[np.float32]) -> None: ...

class ProcessFloat32:
    @overload
    def __init__(
        self, taps: _Kernels, theta: float, cells: bool, instruction_set: str | None = None
    ) -> None: ...
    @overload
    def __init__(
        self,
        fine: _Kernels,
        sampling: Sequence[float],
        coarse: _Kernels,
        interpolation: Sequence[float],
        theta: float,
        instruction_set: str | None = None,
    ) -> None: ...
    @property
    def instruction_set(self) -> str: ...
    def start(
        self,
        image: NDArray[np.float32],
        schedule: _Schedule,
        steps: int,
        tau: float,
        pulls: Sequence[float],
        threads: int = 1,
        sensitivity: Sequence[NDArray[np.float32]] | None = None,
    ) -> RunFloat32: ...
    def start_tangents(
        self,
        image: NDArray[np.float32],
        schedule: _Schedule,
        steps: int,
        tau: float,
        pull: float,
        slopes: _Slopes,
        tau_slopes: Sequence[float],
        pull_slopes: Sequence[float],
        variance_slopes: _Table,
    ) -> RunFloat32: ...

class RunFloat64:
    @property
    def threads(self) -> int: ...
    @property
    def done(self) -> int: ...
    @property
    def bytes(self) -> int: ...
    def advance(self, steps: int = 1) -> None: ...
    def read(self, out: NDArray[np.float64]) -> None: ...

class ProcessFloat64:
    @overload
    def __init__(
        self, taps: _Kernels, theta: float, cells: bool, instruction_set: str | None = None
    ) -> None: ...
    @overload
    def __init__(
        self,
        fine: _Kernels,
        sampling: Sequence[float],
        coarse: _Kernels,
        interpolation: Sequence[float],
        theta: float,
        instruction_set: str | None = None,
    ) -> None: ...
    @property
    def instruction_set(self) -> str: ...
    def start(
        self,
        image: NDArray[np.float64],
        schedule: _Schedule,
        steps: int,
        tau: float,
        pulls: Sequence[float],
        threads: int = 1,
        sensitivity: Sequence[NDArray[np.float64]] | None = None,
    ) -> RunFloat64: ...
    def start_tangents(
        self,
        image: NDArray[np.float64],
        schedule: _Schedule,
        steps: int,
        tau: float,
        pull: float,
        slopes: _Slopes,
        tau_slopes: Sequence[float],
        pull_slopes: Sequence[float],
        variance_slopes: _Table,
    ) -> RunFloat64: ...

class VolumeProcessFloat32:
    @overload
    def __init__(
        self,
        taps: tuple[_Kernels, _Kernels, _Kernels],
        theta: float,
        spacing: tuple[float, float, float],
        instruction_set: str | None = None,
    ) -> None: ...
    @overload
    def __init__(
        self,
        fine: tuple[_Kernels, _Kernels, _Kernels],
        sampling: _Kernels,
        coarse: tuple[_Kernels, _Kernels, _Kernels],
        interpolation: _Kernels,
        theta: float,
        spacing: tuple[float, float, float],
        instruction_set: str | None = None,
    ) -> None: ...
    def start(
        self,
        image: NDArray[np.float32],
        schedule: _VolumeSchedule,
        steps: int,
        tau: float,
        pulls: Sequence[float],
        threads: int = 1,
        sensitivity: NDArray[np.float32] | None = None,
        valid: NDArray[np.float32] | None = None,
    ) -> RunFloat32: ...

class VolumeProcessFloat64:
    @overload
    def __init__(
        self,
        taps: tuple[_Kernels, _Kernels, _Kernels],
        theta: float,
        spacing: tuple[float, float, float],
        instruction_set: str | None = None,
    ) -> None: ...
    @overload
    def __init__(
        self,
        fine: tuple[_Kernels, _Kernels, _Kernels],
        sampling: _Kernels,
        coarse: tuple[_Kernels, _Kernels, _Kernels],
        interpolation: _Kernels,
        theta: float,
        spacing: tuple[float, float, float],
        instruction_set: str | None = None,
    ) -> None: ...
    def start(
        self,
        image: NDArray[np.float64],
        schedule: _VolumeSchedule,
        steps: int,
        tau: float,
        pulls: Sequence[float],
        threads: int = 1,
        sensitivity: NDArray[np.float64] | None = None,
        valid: NDArray[np.float64] | None = None,
    ) -> RunFloat64: ...
