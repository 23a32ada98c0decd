"""Work for processes of their own; they import it by the name of this file."""

from __future__ import annotations

import os
import signal

from integrodiff.cli.batch.workers import Tell
from integrodiff.engines import thread_count


def square(task: int, tell: Tell) -> int:
    """Return the square; die at 3, by a signal, and at 4, in silence."""
    if task == 3:
        os.kill(os.getpid(), signal.SIGKILL)
    if task == 4:
        os._exit(7)
    tell(0.5)
    return task * task


def threads(task: int, tell: Tell) -> tuple[int, str]:
    """Return how many threads there are to use here."""
    return thread_count(), os.environ["OMP_NUM_THREADS"]
