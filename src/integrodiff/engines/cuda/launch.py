"""How kernels are compiled and launched: the arguments they share, and a device by CuPy.

A :class:`Device` is all that :mod:`.process` knows of a GPU, so the tests have one that runs the
same source on the host.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from functools import cache, partial
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from integrodiff.stages._arrays import Array

PLANES = 16
NUMBERS = 512

_KERNELS = Path(__file__).parent / "kernels"


@cache
def arguments_type(precision: str, parts: int = 1) -> np.dtype[Any]:
    """Return the layout of ``Arguments`` in ``kernels/block.cuh``, of numbers of some dtype.

    Numbers that carry tangents have several parts.
    """
    fields: list[Any] = [
        ("input", np.uint64, PLANES),
        ("output", np.uint64, PLANES + 2),
        ("extra", np.uint64, 6),
        ("inner", np.int64),
        ("lines", np.int64),
        ("depth", np.int32),
        ("height", np.int32),
        ("width", np.int32),
        ("channels", np.int32),
        ("count", np.int32, 4),
        ("flags", np.int32, PLANES),
        ("numbers", precision, NUMBERS if parts == 1 else (NUMBERS, parts)),
    ]
    return np.dtype(fields, align=True)


@cache
def kernel_source(name: str) -> str:
    """Return a source file with the files that it includes."""
    included: set[str] = set()

    def whole(file: str) -> str:
        if file in included:
            return ""
        included.add(file)
        lines = []
        for line in (_KERNELS / file).read_text("utf-8").splitlines():
            if line.startswith('#include "'):
                lines.append(whole(line.split('"')[1]))
            elif line != "#pragma once":
                lines.append(line)
        return "\n".join(lines)

    return whole(name)


@dataclass(frozen=True, eq=False)
class Launch:
    """A kernel with its compile-time options, grid and arguments.

    Attributes
    ----------
    source, kernel : str
        File and name of the kernel.
    defines : mapping
        What the source is compiled with; ``THREADS`` is the number of threads of a block.
    grid : (int, int, int)
        Number of blocks.
    arguments : array
        Of :func:`arguments`.
    shared : int
        Numbers that the threads of a block share.
    taps : tuple of float
        The kernel that ``extra`` points to, if it is one with any radius.
    """

    source: str
    kernel: str
    defines: Mapping[str, object]
    grid: tuple[int, int, int]
    arguments: NDArray[Any]
    shared: int
    taps: tuple[float, ...] = ()

    @property
    def shared_bytes(self) -> int:
        """Bytes that the threads of a block share."""
        return self.shared * (self.arguments.dtype["numbers"].itemsize // NUMBERS)


class Device(ABC):
    """Where kernels run, and whose memory the arrays are in."""

    @abstractmethod
    def compiled(self, launch: Launch) -> Callable[[], None]:
        """Return a function that launches a kernel; it may be called many times."""

    def active(self) -> AbstractContextManager[object]:
        """Return a context in which these functions are called."""
        return nullcontext()

    @abstractmethod
    def address(self, array: Array) -> int:
        """Return where the values of a contiguous array begin."""

    @abstractmethod
    def shared_bytes(self) -> int:
        """Return the most bytes that a block may share."""


def arguments(
    precision: type[np.floating[Any]],
    *,
    input: Sequence[int] = (),
    output: Sequence[int] = (),
    extra: Sequence[int] = (),
    size: Sequence[int] = (),
    inner: int = 0,
    lines: int = 0,
    channels: int = 1,
    count: Sequence[int] = (),
    flags: Sequence[int] = (),
    numbers: Mapping[int, Sequence[float]] | None = None,
) -> NDArray[Any]:
    """Return the arguments of a launch; ``numbers`` are given by the place of the first."""
    made = np.zeros(1, arguments_type(np.dtype(precision).char))
    one = made[0]
    for field, values in (
        ("input", input),
        ("output", output),
        ("extra", extra),
        ("count", count),
        ("flags", flags),
    ):
        one[field][: len(values)] = values
    depth, height, width = (1, 1, 1, *size)[-3:]
    one["depth"], one["height"], one["width"] = depth, height, width
    one["inner"], one["lines"], one["channels"] = inner, lines, channels
    for first, some in (numbers or {}).items():
        one["numbers"][first : first + len(some)] = some
    return made


class CudaDevice(Device):
    """A GPU, on a stream of the library of the arrays.

    CuPy compiles the kernels when they are needed first, for the GPU at hand, and keeps them on
    disk in the folder of its environment variable ``CUPY_CACHE_DIR``.

    Parameters
    ----------
    number : int
        Number of the GPU.
    stream : int
        Handle of the stream, as CUDA has it.
    """

    def __init__(self, number: int, stream: int) -> None:
        import cupy

        self._number = number
        streams = cupy.cuda
        self._stream = streams.ExternalStream(stream, number) if stream else streams.Stream.null

    def compiled(self, launch: Launch) -> Callable[[], None]:
        """Compile the kernel if that has not been done."""
        names = tuple(sorted((name, str(value)) for name, value in launch.defines.items()))
        function = _function(self._number, launch.source, launch.kernel, names)
        shared = launch.shared_bytes
        if function.max_dynamic_shared_size_bytes < shared:
            function.max_dynamic_shared_size_bytes = shared
        threads = (int(str(launch.defines["THREADS"])),)
        return partial(function, launch.grid, threads, (launch.arguments,), shared_mem=shared)

    @contextmanager
    def active(self) -> Iterator[None]:
        """Make the GPU and the stream the current ones of CuPy."""
        import cupy

        with cupy.cuda.Device(self._number), self._stream:
            yield

    def address(self, array: Array) -> int:
        """Return the pointer of a CuPy array or a PyTorch tensor."""
        return int(array.data_ptr() if hasattr(array, "data_ptr") else array.data.ptr)

    def shared_bytes(self) -> int:
        """Return what the GPU allows a block to ask for."""
        return _shared_bytes(self._number)


@cache
def _shared_bytes(number: int) -> int:
    import cupy

    return int(cupy.cuda.Device(number).attributes["MaxSharedMemoryPerBlockOptin"])


@cache
def _function(number: int, source: str, kernel: str, defines: tuple[tuple[str, str], ...]) -> Any:
    """Return a compiled kernel of the GPU that is current."""
    import cupy

    options = ("-std=c++17", "--ftz=true", *(f"-D{name}={value}" for name, value in defines))
    return cupy.RawModule(code=kernel_source(source), options=options).get_function(kernel)
