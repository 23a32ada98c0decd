"""Whether there is a GPU, found out without importing a GPU library."""

from __future__ import annotations

import ctypes
import sys
from functools import cache
from pathlib import Path

_NVML = "nvml.dll" if sys.platform == "win32" else "libnvidia-ml.so.1"
_AMD = Path("/dev/kfd")


@cache
def driver_has_gpu() -> bool:
    """Whether the driver of NVIDIA or AMD reports a GPU.

    NVIDIA's management library comes with the driver. Unlike the CUDA runtime it may be used
    before a fork.
    """
    return _AMD.exists() or nvidia_gpus() > 0


@cache
def nvidia_gpus() -> int:
    """Return the number of NVIDIA GPUs; zero if there is no driver."""
    try:
        nvml = ctypes.CDLL(_NVML)
    except OSError:
        return 0
    count = ctypes.c_uint(0)
    if nvml.nvmlInit_v2() != 0:
        return 0
    try:
        failed = nvml.nvmlDeviceGetCount_v2(ctypes.byref(count)) != 0
    finally:
        nvml.nvmlShutdown()
    return 0 if failed else count.value
