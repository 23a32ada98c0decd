"""Worker processes for a batch: each has a pipe of its own, and one that dies loses only its task.

They are made by hand because the pools at hand fail the tests: when a process dies,
``ProcessPoolExecutor`` fails every task that waits, and an interrupt waits for those that run;
``pebble`` never ends a task whose process ended with exit code 0. Neither of them ends its
processes when the parent is killed, or passes progress on.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from multiprocessing import get_context, parent_process, resource_tracker
from multiprocessing.connection import Connection, wait
from typing import Any, Generic, TypeAlias, TypeVar, cast

from integrodiff._child_threads import threads_of_new_processes

Task = TypeVar("Task")
Result = TypeVar("Result")
ReportProgress: TypeAlias = Callable[[float], None]
"""Tells the parent which fraction of a task is done."""

_SECONDS_TO_CLEAN_UP = 30.0


@dataclass(frozen=True)
class Progress:
    """The fraction of a task that is done."""

    fraction: float


@dataclass(frozen=True)
class Finished(Generic[Result]):
    """The end of a task, with its result."""

    result: Result


@dataclass(frozen=True)
class Died:
    """The end of a process before that of its task; a negative exit code stands for a signal."""

    exit_code: int

    def __str__(self) -> str:
        if self.exit_code >= 0:
            return f"its process ended by itself, with the exit code {self.exit_code}"
        reason = signal.strsignal(-self.exit_code)
        return f"its process died ({reason}); there may be too little memory"


Event: TypeAlias = Progress | Finished[Result] | Died


def run_tasks(
    tasks: Iterable[Task],
    work: Callable[[Task, ReportProgress], Result],
    *,
    processes: int,
    threads: int,
) -> Generator[tuple[Task, Event[Result]], None, None]:
    """Yield the events of all tasks as they happen; each task ends by ``Finished`` or ``Died``.

    If the generator is closed early, or an exception such as KeyboardInterrupt is raised in it,
    the workers are ended, with time to remove their temporary files.

    Parameters
    ----------
    tasks : iterable
        What is to be done.
    work : callable
        Does one of them. It can be pickled, as can tasks and results.
    processes, threads : int
        Number of processes, and of threads in each.
    """
    waiting = deque(tasks)
    workers: dict[Connection, _Worker[Task, Result]] = {}
    running: dict[Connection, Task] = {}

    def start_worker() -> None:
        with threads_of_new_processes(threads):
            worker = _Worker(work)
        workers[worker.connection] = worker
        assign(worker.connection)

    def assign(connection: Connection) -> None:
        running[connection] = waiting.popleft()
        with suppress(OSError):  # it is dead, which is seen when its events are read
            connection.send(running[connection])

    complete = False
    try:
        for _ in range(min(processes, len(waiting))):
            start_worker()
        while running:
            for connection in cast(list[Connection], wait(list(running))):
                task = running[connection]
                event: Event[Result]
                try:
                    event = connection.recv()
                except (EOFError, OSError):
                    event = Died(workers.pop(connection).join())
                if not isinstance(event, Progress):
                    del running[connection]
                    if waiting and connection in workers:
                        assign(connection)
                    elif waiting:
                        start_worker()
                yield task, event
        complete = True
    finally:
        for worker in workers.values():
            worker.connection.close()  # the worker ends when it asks for its next task
            if not complete:
                worker.process.terminate()
        for worker in workers.values():
            worker.join()


class _Worker(Generic[Task, Result]):
    """A process, and the parent's end of its pipe."""

    def __init__(self, work: Callable[[Task, ReportProgress], Result]) -> None:
        context = get_context("spawn")
        self.connection, theirs = context.Pipe()
        self.process = context.Process(target=_serve, args=(theirs, work), daemon=True)
        with _interrupts_delayed():
            self.process.start()
        theirs.close()

    def join(self) -> int:
        """Wait for the end of the process, and return its exit code."""
        self.connection.close()
        self.process.join(_SECONDS_TO_CLEAN_UP)
        self.process.kill()  # for a decoder that hangs
        self.process.join()
        return self.process.exitcode or 0


def _serve(connection: Connection, work: Callable[[Any, ReportProgress], Any]) -> None:
    """Do one task after another until the parent closes the pipe; the main function of a worker."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C goes to all processes; the parent acts
    ending = [getattr(signal, name) for name in ("SIGTERM", "SIGHUP") if hasattr(signal, name)]

    def ignore() -> None:
        for number in ending:
            # Not SIG_IGN: Python writes a traceback if a signal has just come.
            signal.signal(number, lambda *_: None)

    def end(*_: object) -> None:
        ignore()  # a second signal, while the interpreter shuts down, would end in a traceback
        sys.exit(1)  # an exception, so that temporary files are removed

    for number in ending:
        signal.signal(number, end)
    threading.Thread(target=_end_with_parent, daemon=True).start()

    def report(fraction: float) -> None:
        connection.send(Progress(fraction))

    with suppress(EOFError, BrokenPipeError):  # there are no more tasks, or there is no parent
        while True:
            task = connection.recv()
            connection.send(Finished(work(task, report)))
    ignore()


def _end_with_parent() -> None:
    """Wait for the end of the parent, however it comes about, and end this process then."""
    parent = parent_process()
    if parent is not None:
        wait([parent.sentinel])
        os.kill(os.getpid(), signal.SIGTERM)


@contextmanager
def _interrupts_delayed() -> Iterator[None]:
    """Delay Ctrl-C; a process started in the block delays it too, until it ignores it."""
    if not hasattr(signal, "pthread_sigmask"):
        yield
        return
    resource_tracker.ensure_running()  # its start would end the delay
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
