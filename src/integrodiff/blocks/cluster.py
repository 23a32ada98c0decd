"""Work on the workers of Dask: an existing cluster, or processes of this machine.

A function that all tasks share, with everything it holds, goes to every worker once, as a plugin,
and to workers that come later as well. A task is then a name and a few numbers, and what comes back
is as little; pixels never travel. Only as many tasks are submitted at a time as keep the workers
busy, so that the scheduler stays small however many units there are.

The items of a job are numbers. A task has one of them, unless there are more than
:data:`MOST_TASKS`; then it has a run of several. A worker that dies costs the tasks that it was at,
which Dask gives to others: one item for each of its threads, or at most that share of all items.
"""

from __future__ import annotations

import contextlib
import math
import secrets
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import islice
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from integrodiff.install import install_first

if TYPE_CHECKING:
    from distributed import Client, Future, LocalCluster

Item = TypeVar("Item")
Result = TypeVar("Result")

AHEAD = 3
"""Tasks for each thread of the cluster that are submitted at a time."""

MOST_TASKS = 100_000
"""Tasks of a job without gaps, at most; each gap in what is left to do can make one more."""

_GATHERED = 64
"""Tasks whose results are fetched together, so that few of them are held at a time."""


def require_distributed() -> None:
    """Raise ImportError if dask.distributed is not installed."""
    try:
        import distributed  # noqa: F401
    except ImportError as error:
        raise ImportError(install_first("a cluster", "distributed", "dask")) from error


def items_per_task(count: int) -> int:
    """Return how many of some number of items a task has."""
    return max(1, math.ceil(count / MOST_TASKS))


def _call(items: Sequence[Any], name: str) -> list[Any]:
    """Call a function that this worker was given for each of some items."""
    from distributed import get_worker

    function = getattr(get_worker(), name)
    return [function(item) for item in items]


class OnWorkers(Generic[Item, Result]):
    """A function on all workers of a cluster, to which it was sent once.

    Parameters
    ----------
    client : distributed.Client
        The cluster.
    function : callable
        Takes an item; both can be sent to other processes.
    """

    def __init__(self, client: Client, function: Callable[[Item], Result]) -> None:
        from distributed import WorkerPlugin

        self._client = client
        self._name = name = f"integrodiff_{secrets.token_hex(8)}"

        class Given(WorkerPlugin):
            """Puts the function where tasks find it."""

            def setup(self, worker: Any) -> None:
                setattr(worker, name, function)

            def teardown(self, worker: Any) -> None:
                delattr(worker, name)

        client.register_plugin(Given(), name=name)

    def results(self, tasks: Iterable[Sequence[Item]]) -> Iterator[Result]:
        """Yield the results for all items of some tasks, in any order; tasks are made as needed.

        If a task fails, its error is raised here.
        """
        from distributed import as_completed

        remaining = iter(tasks)
        threads = max(1, sum(self._client.nthreads().values()))

        def submit(count: int) -> list[Future[Any]]:
            some = list(islice(remaining, count))
            return self._client.map(_call, some, name=self._name, pure=False)

        # What has ended meanwhile is fetched, and replaced, by one message.
        running = as_completed(submit(AHEAD * threads))
        for ended in running.batches():
            while ended:
                some, ended = ended[:_GATHERED], ended[_GATHERED:]
                failed = [one for one in some if one.status != "finished"]
                found = self._client.gather([one for one in some if one.status == "finished"])
                if not failed:
                    running.update(submit(len(some)))
                del some
                for results in found:
                    yield from results
                # What was fetched together with an error is not lost.
                self._client.gather(failed)

    def close(self) -> None:
        """Remove the function from the workers."""
        with contextlib.suppress(Exception):  # the cluster may be gone
            self._client.unregister_worker_plugin(self._name)


def on_workers(
    client: Client, function: Callable[[int], Result], numbers: Iterable[int], count: int = 0
) -> Iterator[Result]:
    """Give the results of a function for all numbers, in any order, computed by a cluster.

    Parameters
    ----------
    client : distributed.Client
        The cluster.
    function : callable
        Takes a number; it can be sent to other processes.
    numbers : iterable
        Integers, in ascending order where tasks have several.
    count : int
        How many there are, if that may be more than :data:`MOST_TASKS`.
    """
    workers = OnWorkers(client, function)
    try:
        yield from workers.results(runs(numbers, items_per_task(count)))
    finally:
        workers.close()


def runs(numbers: Iterable[int], most: int) -> Iterator[range]:
    """Iterate over runs of consecutive numbers, of a limited length."""
    run = range(0)
    for number in numbers:
        if run and number == run.stop and len(run) < most:
            run = range(run.start, number + 1)
            continue
        if run:
            yield run
        run = range(number, number + 1)
    if run:
        yield run


@contextlib.contextmanager
def connected(address: str) -> Iterator[Client]:
    """Connect to the scheduler of an existing cluster."""
    require_distributed()
    from distributed import Client

    try:
        client = Client(address, timeout=10)
    # TypeError and RuntimeError: a kind of connection that is not set up here, such as TLS.
    except (OSError, TimeoutError, ValueError, TypeError, RuntimeError, ImportError) as error:
        raise ValueError(f"there is no Dask scheduler at {address}: {error}") from error
    with client:
        yield client


@contextlib.contextmanager
def local_cluster(workers: int, threads: int = 1) -> Iterator[Client]:
    """Start processes on this machine, which compute one task at a time each.

    Parameters
    ----------
    workers : int
        Number of processes.
    threads : int
        Threads of the engine in each of them.
    """
    require_distributed()
    import logging

    import dask
    from distributed import Client, LocalCluster

    one = dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"), "1")
    one["INTEGRODIFF_THREADS"] = str(threads)
    # Memory is planned (blocks/region.py), and workers must not be paused or restarted over it.
    # Nobody looks at profiles and monitors of workers that are gone with this process; with Dask's
    # settings they take almost two percent of a processor in every worker. And by its setting of
    # the allocator all arrays would be mapped anew, which costs a job 15 % more processor time. The
    # last 1000 messages to each worker would be kept, some kilobytes for each of them.
    with (
        dask.config.set(
            {
                "distributed.nanny.pre-spawn-environ.MALLOC_TRIM_THRESHOLD_": None,
                "distributed.worker.daemon": True,
                "distributed.worker.profile.enabled": False,
                "distributed.admin.low-level-log-length": 20,
                "distributed.admin.tick.interval": "1s",
                "distributed.admin.system-monitor.interval": "10s",
            }
        ),
        _closed(
            LocalCluster(
                n_workers=workers,
                threads_per_worker=1,
                processes=True,
                memory_limit=0,
                dashboard_address="127.0.0.1:0",
                env=one,
                silence_logs=logging.ERROR,
            )
        ) as cluster,
        Client(cluster) as client,
    ):
        yield client


@contextlib.contextmanager
def _closed(cluster: LocalCluster) -> Iterator[LocalCluster]:
    """Close a cluster at the end.

    On a busy machine workers are killed that do not end in time, and Dask complains if even that
    takes too long. Nothing is lost then: all results are there.
    """
    try:
        yield cluster
    finally:
        with contextlib.suppress(TimeoutError):
            cluster.close()
