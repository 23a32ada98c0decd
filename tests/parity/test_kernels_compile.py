"""The kernels of the engine ``cuda`` as a GPU gets them: NVRTC compiles them without a GPU."""

from __future__ import annotations

import ctypes
import importlib.util
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from selection import some

from integrodiff import load_model
from integrodiff.engines.cuda.launch import Device, Launch, kernel_source
from integrodiff.engines.cuda.process import CudaProcess
from integrodiff.stages import Evolution

pytestmark = pytest.mark.slow

OLDEST, HOPPER = "sm_75", "sm_90"
"""The oldest GPUs that CUDA 13 compiles for, and those that figures were measured on."""


@cache
def nvrtc() -> ctypes.CDLL | None:
    """The compiler, if the package ``nvidia-cuda-nvrtc`` is installed."""
    found = importlib.util.find_spec("nvidia")
    for folder in found.submodule_search_locations or () if found else ():
        for library in Path(folder).glob("cu*/lib/libnvrtc.so.*"):
            # It looks for this one by name; older versions do not look beside themselves.
            for part in library.parent.glob("libnvrtc-builtins.so.*"):
                ctypes.CDLL(str(part))
            return ctypes.CDLL(str(library))
    return None


class Recorder(Device):
    """A GPU that keeps what it is asked to launch."""

    def __init__(self, shared: int) -> None:
        self._shared = shared
        self.wanted: dict[tuple[str, tuple[str, ...]], set[str]] = {}

    def compiled(self, launch: Launch) -> Callable[[], None]:
        assert launch.shared_bytes <= self._shared
        defines = tuple(f"-D{name}={value}" for name, value in sorted(launch.defines.items()))
        self.wanted.setdefault((launch.source, defines), set()).add(launch.kernel)
        return lambda: None

    def address(self, array: Any) -> int:
        return int(array.ctypes.data)

    def shared_bytes(self) -> int:
        return self._shared


def compiled(source: str, options: tuple[str, ...]) -> bytes:
    """Compile one source for a GPU and return its machine code."""
    library = nvrtc()
    assert library is not None
    program, size = ctypes.c_void_p(), ctypes.c_size_t()
    text = kernel_source(source).encode()
    made = library.nvrtcCreateProgram(ctypes.byref(program), text, source.encode(), 0, None, None)
    assert made == 0
    words = (ctypes.c_char_p * len(options))(*(option.encode() for option in options))
    failed = library.nvrtcCompileProgram(program, len(options), words)
    library.nvrtcGetProgramLogSize(program, ctypes.byref(size))
    log = ctypes.create_string_buffer(size.value)
    library.nvrtcGetProgramLog(program, log)
    assert failed == 0, log.value.decode()
    library.nvrtcGetCUBINSize(program, ctypes.byref(size))
    code = ctypes.create_string_buffer(size.value)
    library.nvrtcGetCUBIN(program, code)
    library.nvrtcDestroyProgram(ctypes.byref(program))
    return code.raw


def recorded(evolution: Evolution, dtype: str, channels: int, shared: int) -> Recorder:
    """Return the kernels that an image or a volume would take."""
    recorder = Recorder(shared)
    shape = (1, channels, *((6,) if evolution.dimensions == 3 else ()), 40, 44)
    state = CudaProcess(evolution).start_on(np.zeros(shape, dtype), recorder)
    state.advance()
    return recorder


def process(model: str) -> Evolution:
    found = load_model(model).evolution(25.0)
    return found.in_volume((2.0, 1.0, 1.0)) if model.endswith("volume") else found


@pytest.mark.skipif(nvrtc() is None, reason="needs the package nvidia-cuda-nvrtc")
@pytest.mark.parametrize(
    ("model", "dtype", "channels"),
    some(
        [
            ("iad", "float32", 1),
            ("iad-plus", "float32", 3),
            ("iad-plus", "float64", 1),
            ("iad-deep", "float32", 1),
            ("iad-orders", "float32", 1),
            ("eed", "float64", 1),
            ("iid", "float32", 3),
            ("iad-plus-volume", "float32", 1),
            ("iad-plus-volume", "float64", 2),
        ],
        ("iad-plus", "float32", 3),
        ("iad-plus-volume", "float32", 1),
    ),
)
@pytest.mark.parametrize("architecture", some([OLDEST, HOPPER], HOPPER))
def test_kernels_compile_for_a_gpu(
    model: str, dtype: str, channels: int, architecture: str
) -> None:
    shared = {OLDEST: 64, HOPPER: 227}[architecture] * 1024
    wanted = recorded(process(model), dtype, channels, shared).wanted
    assert wanted
    for (source, defines), kernels in wanted.items():
        options = ("-std=c++17", "--ftz=true", f"--gpu-architecture={architecture}", *defines)
        code = compiled(source, options)
        assert all(kernel.encode() in code for kernel in kernels)
