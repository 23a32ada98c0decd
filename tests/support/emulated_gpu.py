"""A GPU that is the processor: the kernels of the engine ``cuda``, compiled for the host.

Blocks run one after the other, and so do the tasks of a phase; with ``backwards`` these run in the
reverse order, which must not change anything.
"""

from __future__ import annotations

import ctypes
import hashlib
import os
import shutil
import subprocess
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

from integrodiff.engines.cuda.launch import Device, Launch, kernel_source

COMPILER = shutil.which("c++")


class EmulatedGpu(Device):
    """Runs kernels on NumPy arrays."""

    def __init__(
        self,
        folder: Path,
        *,
        backwards: bool = False,
        sanitized: bool = False,
        shared: int = 227 * 1024,
    ) -> None:
        self._folder, self._shared = folder, shared
        self._options = ("-DBACKWARDS",) * backwards
        self._options += ("-fsanitize=address", "-g") * sanitized
        self.launched: list[str] = []

    def compiled(self, launch: Launch) -> Callable[[], None]:
        names = tuple(f"-D{name}={value}" for name, value in sorted(launch.defines.items()))
        assert launch.shared_bytes <= self._shared
        assert max(launch.grid[1:]) < 2**16
        function = getattr(
            _library(self._folder, launch.source, (*names, *self._options)), launch.kernel
        )
        counts = (ctypes.c_int * 3)(*launch.grid)
        address = launch.arguments.ctypes.data_as(ctypes.c_void_p)

        def run() -> None:
            self.launched.append(launch.kernel)
            function(address, counts, launch.shared)

        return run

    def address(self, array: Any) -> int:
        assert array.flags.c_contiguous
        return int(array.ctypes.data)

    def shared_bytes(self) -> int:
        return self._shared


@cache
def _library(folder: Path, source: str, options: tuple[str, ...]) -> ctypes.CDLL:
    """Compile a source; what another process has compiled is used."""
    text = kernel_source(source)
    name = hashlib.sha256(repr((text, options)).encode()).hexdigest()[:16]
    library = folder / f"{name}.so"
    if not library.exists():
        folder.mkdir(parents=True, exist_ok=True)
        code = folder / f"{name}-{os.getpid()}.cpp"
        code.write_text(text)
        made = code.with_suffix(".part")
        command = ["-std=c++17", "-O0", "-fPIC", "-shared", "-Wno-unknown-pragmas", *options]
        assert COMPILER is not None
        subprocess.run([COMPILER, *command, str(code), "-o", str(made)], check=True)
        made.replace(library)
    return ctypes.CDLL(str(library))
