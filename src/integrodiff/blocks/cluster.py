"""Work on the workers of Dask: an existing cluster, or processes of this machine.

A function that all tasks share, with everything it holds, goes to every worker once, as a plugin,
and to workers that come later as well. A task is then a name and a number, and what comes back is
a few numbers; pixels never travel. Only as many tasks are submitted at a time as keep the workers
busy, so that the scheduler stays small however many units there are. A worker that dies costs what
it was computing: Dask gives these tasks to others.
"""

from __future__ import annotations

import contextlib
import secrets
from collections.abc import Callable, Iterable, Iterator
from itertools import islice
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from integrodiff.install import install_first

if TYPE_CHECKING:
    from distributed import Client

Item = TypeVar("Item")
Result = TypeVar("Result")

AHEAD = 3
"""Tasks for each thread of the cluster that are submitted at a time."""


def require_distributed() -> None:
    """Raise ImportError if dask.distributed is not installed."""
    try:
        import distributed  # noqa: F401
    except ImportError as error:
        raise ImportError(install_first("a cluster", "distributed", "dask")) from error


def _call(name: str, item: Any) -> Any:
    """Call a function that this worker was given."""
    from distributed import get_worker

    return getattr(get_worker(), name)(item)


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

    def results(self, items: Iterable[Item]) -> Iterator[Result]:
        """Yield the results for all items, in any order; items are consumed as needed.

        If a task fails, its error is raised here.
        """
        from distributed import as_completed

        remaining = iter(items)
        threads = max(1, sum(self._client.nthreads().values()))

        def submit(count: int) -> list[Any]:
            return [
                self._client.submit(_call, self._name, item, pure=False)
                for item in islice(remaining, count)
            ]

        running = as_completed(submit(AHEAD * threads))
        for future in running:
            result = future.result()
            future.release()
            for new in submit(1):
                running.add(new)
            yield result

    def close(self) -> None:
        """Remove the function from the workers."""
        with contextlib.suppress(Exception):  # the cluster may be gone
            self._client.unregister_worker_plugin(self._name)


def on_workers(
    client: Client, function: Callable[[Item], Result], items: Iterable[Item]
) -> Iterator[Result]:
    """Give the results of a function for all items, in any order, computed by a cluster."""
    workers = OnWorkers(client, function)
    try:
        yield from workers.results(items)
    finally:
        workers.close()


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
    # the allocator all arrays would be mapped anew, which costs a job 15 % more processor time.
    with (
        dask.config.set(
            {
                "distributed.nanny.pre-spawn-environ.MALLOC_TRIM_THRESHOLD_": None,
                "distributed.worker.daemon": True,
                "distributed.worker.profile.enabled": False,
                "distributed.admin.tick.interval": "1s",
                "distributed.admin.system-monitor.interval": "10s",
            }
        ),
        LocalCluster(
            n_workers=workers,
            threads_per_worker=1,
            processes=True,
            memory_limit=0,
            dashboard_address="127.0.0.1:0",
            env=one,
            silence_logs=logging.ERROR,
        ) as cluster,
        Client(cluster) as client,
    ):
        yield client
