"""Work for processes of their own; they import it by the name of this file."""

from __future__ import annotations

import os
import signal
import threading

from integrodiff.cli.batch.workers import ReportProgress
from integrodiff.engines import thread_count


def square(task: int, report: ReportProgress) -> int:
    """Return the square; die at 3 by a signal, at 4 and 5 by exits that no exception tells of."""
    if task == 3:
        os.kill(os.getpid(), signal.SIGKILL)
    if task == 4:
        os._exit(7)
    if task == 5:
        os._exit(0)
    report(0.5)
    return task * task


def threads(task: int, report: ReportProgress) -> tuple[int, str]:
    """Return how many threads there are to use here."""
    return thread_count(), os.environ["OMP_NUM_THREADS"]


def late_signal(task: int, report: ReportProgress) -> int:
    """Return the task, and get a signal when the interpreter has begun to shut down."""

    def send() -> None:
        threading.main_thread().join()
        os.kill(os.getpid(), signal.SIGTERM)

    threading.Thread(target=send).start()
    return task
