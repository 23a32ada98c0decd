"""How many threads the processes get that this one starts."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager

_VARIABLES = (
    "INTEGRODIFF_THREADS",
    "OPENBLAS_NUM_THREADS",
    "OMP_NUM_THREADS",
    "MKL_NUM_THREADS",
    "VECLIB_MAXIMUM_THREADS",
)


@contextmanager
def threads_of_new_processes(count: int) -> Iterator[None]:
    """Let processes that are started in the block use this many threads each.

    More threads than processors would wait for each other. Libraries read these variables as they
    load, so this process itself goes on as before.
    """
    before = {name: os.environ.get(name) for name in _VARIABLES}
    os.environ.update(dict.fromkeys(_VARIABLES, str(count)))
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value
