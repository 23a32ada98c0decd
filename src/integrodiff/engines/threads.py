"""How many processors there are, and how many threads the engine ``native`` uses."""

from __future__ import annotations

import os


def thread_count() -> int:
    """Return the number of threads of the engine ``native``.

    It is the environment variable ``INTEGRODIFF_THREADS``, or the number of processors.
    """
    wanted = os.environ.get("INTEGRODIFF_THREADS")
    if wanted is None:
        return cpu_count()
    if not wanted.isdecimal() or int(wanted) < 1:
        raise ValueError(f"INTEGRODIFF_THREADS must be a whole number above zero, got {wanted!r}")
    return int(wanted)


def cpu_count() -> int:
    """Return the number of processors this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1
