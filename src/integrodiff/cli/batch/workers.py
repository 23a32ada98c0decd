"""Processes that take one piece of work after the other; one that dies takes no other with it."""

from __future__ import annotations

import signal
import sys
from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator
from contextlib import contextmanager, suppress
from multiprocessing import get_context, resource_tracker
from multiprocessing.connection import Connection, wait
from typing import Any, Generic, TypeAlias, TypeVar, cast

from integrodiff._child_threads import threads_of_new_processes

Task = TypeVar("Task")
Result = TypeVar("Result")
Tell: TypeAlias = Callable[[Any], None]
"""Sends word of how far the work is."""

_PATIENCE = 30.0
"""Seconds that a process has to clean up."""


class Death:
    """The end of a process before that of its task.

    Parameters
    ----------
    exit_code : int
        That of the process; negative numbers stand for signals.
    """

    def __init__(self, exit_code: int) -> None:
        self._exit_code = exit_code

    def __str__(self) -> str:
        if self._exit_code >= 0:
            return f"its process ended by itself, with the exit code {self._exit_code}"
        reason = signal.strsignal(-self._exit_code)
        return f"its process died ({reason}); there may be too little memory"


class Word(Generic[Result]):
    """What a task came to, or how far it is."""

    def __init__(self, result: Result | Death | None, news: Any = None) -> None:
        self.result = result
        self.news = news


class _Worker(Generic[Task, Result]):
    """A process, and the connection to it."""

    def __init__(self, work: Callable[[Task, Tell], Result]) -> None:
        context = get_context("spawn")
        self.connection, theirs = context.Pipe()
        self.process = context.Process(target=_serve, args=(theirs, work), daemon=True)
        with _no_interrupt():
            self.process.start()
        theirs.close()

    def end(self, *, at_once: bool) -> None:
        """Wait for the end of the process, which cleans up after itself."""
        self.connection.close()
        if at_once:
            self.process.terminate()
            self.process.join(_PATIENCE)
            self.process.kill()  # for a decoder that hangs
        self.process.join()


def worked_off(
    tasks: Iterable[Task], work: Callable[[Task, Tell], Result], *, processes: int, threads: int
) -> Generator[tuple[Task, Word[Result]], None, None]:
    """Give what becomes of each task, in the order in which they end, and news in between.

    Parameters
    ----------
    tasks : iterable
        What is to be done.
    work : callable
        Does one of them; it can be pickled, as tasks and results.
    processes, threads : int
        Number of processes, and of threads in each.
    """
    waiting = deque(tasks)
    workers: dict[Connection, _Worker[Task, Result]] = {}
    running: dict[Connection, Task] = {}

    def employ() -> None:
        with threads_of_new_processes(threads):
            worker = _Worker(work)
        workers[worker.connection] = worker
        hand_over(worker.connection)

    def hand_over(connection: Connection) -> None:
        running[connection] = waiting.popleft()
        with suppress(OSError):  # it is dead, which is seen when it is listened to
            connection.send(running[connection])

    at_once = True
    try:
        for _ in range(min(processes, len(waiting))):
            employ()
        while running:
            for connection in cast(list[Connection], wait(list(running))):
                task = running[connection]
                try:
                    word: Word[Result] = connection.recv()
                except (EOFError, OSError):
                    dead = workers.pop(connection)
                    dead.end(at_once=False)
                    word = Word(Death(dead.process.exitcode or 0))
                if word.result is not None:
                    del running[connection]
                    if waiting and connection in workers:
                        hand_over(connection)
                    elif waiting:
                        employ()
                yield task, word
        at_once = False
    finally:
        for worker in workers.values():
            worker.end(at_once=at_once)


def _serve(connection: Connection, work: Callable[[Any, Tell], Any]) -> None:
    """Work until there is no more to do; the life of a process."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the process that waits takes care of Ctrl-C
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # leaves no temporary file

    def tell(news: Any) -> None:
        connection.send(Word(None, news))

    with suppress(EOFError, BrokenPipeError):  # nobody waits any more
        while True:
            task = connection.recv()
            connection.send(Word(work(task, tell)))


@contextmanager
def _no_interrupt() -> Iterator[None]:
    """Put off Ctrl-C; a process that is started in the block does so until it ignores it."""
    if not hasattr(signal, "pthread_sigmask"):
        yield
        return
    resource_tracker.ensure_running()  # its start would end the delay
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
