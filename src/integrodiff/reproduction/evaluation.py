"""PSNR of models on the test crops, in several processes."""

from __future__ import annotations

import contextlib
import signal
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from multiprocessing import get_context
from typing import TypeAlias

from integrodiff._child_threads import threads_of_new_processes
from integrodiff.engines import cpu_count, get_processor_engine
from integrodiff.learning.evaluation import image_psnr
from integrodiff.learning.images import CleanImages
from integrodiff.models import Model

Cell: TypeAlias = tuple[str, float]
"""Name of a model, and a noise level."""

_BATCH = 4


class Evaluation:
    """PSNRs of models on clean images with noise; every one of them is computed once.

    Parameters
    ----------
    models : mapping of str to Model
        The denoisers by name.
    images : CleanImages
        The clean images; each gets the noise that belongs to it.
    jobs : int, optional
        Number of processes, by default that of the processors. One computes in this process.
    callback : callable, optional
        Called with the number of crops done, after each batch.
    """

    def __init__(
        self,
        models: Mapping[str, Model],
        images: CleanImages,
        *,
        jobs: int | None = None,
        callback: Callable[[int], object] | None = None,
    ) -> None:
        self.models = models
        self.images = images
        self.jobs = jobs or cpu_count()
        self.callback = callback
        self._psnr: dict[Cell, tuple[float, ...]] = {}

    def compute(self, cells: Iterable[Cell]) -> None:
        """Compute what is not known yet of these cells."""
        parts: dict[Cell, dict[int, list[float]]] = {
            cell: {} for cell in dict.fromkeys(cells) if cell not in self._psnr
        }
        tasks = [(cell, first) for cell in parts for first in range(0, len(self.images), _BATCH)]
        for (cell, first), psnr in self._batches(tasks):
            parts[cell][first] = psnr
            if self.callback is not None:
                self.callback(len(psnr))
        for cell, found in parts.items():
            self._psnr[cell] = tuple(value for first in sorted(found) for value in found[first])

    def mean(self, name: str, level: float, count: int | None = None) -> float:
        """Return the mean PSNR in dB of one cell, over all or the first images."""
        self.compute([(name, level)])
        values = self._psnr[name, level][:count]
        return sum(values) / len(values)

    def row(self, name: str, levels: Sequence[float], count: int | None = None) -> list[float]:
        """Return the mean PSNR of one model at several levels."""
        self.compute([(name, level) for level in levels])
        return [self.mean(name, level, count) for level in levels]

    def _batches(
        self, tasks: Sequence[tuple[Cell, int]]
    ) -> Iterator[tuple[tuple[Cell, int], list[float]]]:
        """Give the PSNRs of each batch as it is done."""
        jobs = min(self.jobs, len(tasks))
        if jobs <= 1:
            for task in tasks:
                yield task, _batch_psnr(*self._arguments(task))
            return
        with _workers(jobs) as workers:
            running = {workers.submit(_batch_psnr, *self._arguments(task)): task for task in tasks}
            for done in as_completed(running):
                yield running[done], done.result()

    def _arguments(self, task: tuple[Cell, int]) -> tuple[Model, CleanImages, float, int]:
        (name, level), first = task
        return self.models[name], self.images.part(first, first + _BATCH), level, first


def _batch_psnr(model: Model, batch: CleanImages, level: float, first: int) -> list[float]:
    # Without a GPU, which several processes would have to share.
    return image_psnr(model, batch, level, first=first, engine=get_processor_engine().name)


@contextlib.contextmanager
def _workers(jobs: int) -> Iterator[ProcessPoolExecutor]:
    """Give a pool of processes with one thread each; end it at once if the block fails."""
    with threads_of_new_processes(1):
        pool = ProcessPoolExecutor(
            jobs, mp_context=get_context("spawn"), initializer=_ignore_interrupt
        )
        try:
            yield pool
        finally:
            pool.shutdown(cancel_futures=True)


def _ignore_interrupt() -> None:
    """Leave Ctrl-C to the process that waits for this one."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
