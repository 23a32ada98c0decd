"""Work on a real cluster of processes: kills, errors, and training."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from integrodiff import denoise
from integrodiff.engines import ENGINES
from integrodiff.learning import CleanImages, FitSettings, Parameterisation, fit
from integrodiff.learning.native import NativeLineariser
from integrodiff.models import IAD, ReducedLaw, ScaleGrid

pytest.importorskip("distributed")
from integrodiff.blocks.cluster import local_cluster, on_workers

pytestmark = pytest.mark.long
needs_native = pytest.mark.skipif(
    ENGINES["native"].unavailable() is not None, reason="needs the engine native"
)


@pytest.fixture(scope="module")
def client() -> Iterator[Any]:
    with local_cluster(2) as found:
        yield found


def environment(_: int) -> tuple[int, str | None]:
    return os.getpid(), os.environ.get("INTEGRODIFF_THREADS")


def failing(number: int) -> int:
    if number == 3:
        raise ValueError("number three")
    return number


class _Slow:
    """Writes its process to a file, so that it can be killed, and takes a while."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def __call__(self, number: int) -> int:
        path = self.folder / f"{number}-{os.getpid()}-{time.time_ns()}"
        path.touch()
        time.sleep(0.3)
        return number


def test_workers_have_one_thread_each(client: Any) -> None:
    found = set(on_workers(client, environment, range(20)))
    assert {threads for _, threads in found} == {"1"}
    assert 1 <= len(found) <= 2
    assert os.getpid() not in {process for process, _ in found}


def seconds_at_rest(seconds: float) -> tuple[float, str | None]:
    before = time.process_time()
    time.sleep(seconds)
    return time.process_time() - before, os.environ.get("MALLOC_TRIM_THRESHOLD_")


def test_workers_rest_and_keep_their_memory() -> None:
    """Dask would have its workers look around 50 times a second, and give all memory back."""
    with local_cluster(1, threads=3) as client:
        ((_, threads),) = set(on_workers(client, environment, range(3)))
        assert threads == "3"
        list(on_workers(client, seconds_at_rest, [1.0]))  # what it does first
        ((busy, trims),) = on_workers(client, seconds_at_rest, [5.0])
    assert trims is None
    assert busy < 0.05


def test_errors_arrive(client: Any) -> None:
    with pytest.raises(ValueError, match="number three"):
        list(on_workers(client, failing, range(8)))
    assert sorted(on_workers(client, failing, [1, 2])) == [1, 2]


def test_a_killed_worker_costs_only_its_own_tasks(client: Any, tmp_path: Path) -> None:
    results = []
    for number in on_workers(client, _Slow(tmp_path), range(16)):
        results.append(number)
        if len(results) == 4:
            victim = int(next(iter(tmp_path.iterdir())).name.split("-")[1])
            os.kill(victim, signal.SIGKILL)
    assert sorted(results) == list(range(16))
    started = [path.name.split("-")[0] for path in tmp_path.iterdir()]
    again = len(started) - 16
    assert 0 <= again <= 2  # what the worker was at, and nothing that was done


@needs_native
def test_dask_arrays_on_processes(client: Any) -> None:
    import dask.array as da

    import integrodiff.dask as lazily

    pixels = np.random.default_rng(0).normal(100, 20, (300, 90)).astype(np.float32)
    lazy = lazily.denoise(da.from_array(pixels, chunks=60), 20, data_range=255, block_size=60)
    found: NDArray[Any] = lazy.compute()
    assert np.abs(found - denoise(pixels, 20, data_range=255)).max() < 0.02


@needs_native
def test_training_is_the_same_on_two_workers(client: Any) -> None:
    rng = np.random.default_rng(0)
    y, x = np.mgrid[:40, :44]
    crops = [120 + 80 * np.sin(x / (4 + n)) * (y > 7 * n) + rng.normal(0, 2) for n in range(6)]
    images = CleanImages(np.stack(crops).astype(np.float32), tuple("abcdef"), "waves")
    model = IAD(
        law=ReducedLaw(alpha=0.5, beta=0.5, lambda_0=0.2),
        scales=ScaleGrid(count=4, largest=3.0),
        tau=0.5,
        steps=4,
    )
    settings = FitSettings(phases=(2, None), iterations=4)
    there, here = (
        fit(
            model,
            images,
            (15.0, 30.0),
            settings=settings,
            lineariser=NativeLineariser,
            client=where,
        )
        for where in (client, None)
    )
    names = Parameterisation(model, (15.0, 30.0))
    found, expected = (names.vector(one.model) for one in (there, here))
    assert np.abs(expected - names.vector(model)).max() > 1e-3
    np.testing.assert_allclose(np.exp(found), np.exp(expected), rtol=1e-6)
    assert there.psnr == pytest.approx(here.psnr, rel=1e-9)
    assert replace(there.model, tau=1.0).steps == 4
