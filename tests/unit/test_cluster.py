"""Work on a real cluster of processes: kills, errors, blocks of all models, and training."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from copy import copy
from dataclasses import replace
from functools import partial
from math import prod
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from integrodiff import Denoiser, denoise
from integrodiff.blocks import cluster
from integrodiff.blocks.grid import TOLERANCE
from integrodiff.blocks.job import grid_of, invalid_in, invalid_pixels, unit_at
from integrodiff.blocks.region import BlockDenoiser, Index, resolved_for
from integrodiff.blocks.sample import LargeImage
from integrodiff.engines import ENGINES
from integrodiff.io import read_image
from integrodiff.layout import Layout
from integrodiff.learning import CleanImages, FitSettings, Parameterisation, fit
from integrodiff.learning.cluster import _OnWorker
from integrodiff.learning.native import NativeLineariser
from integrodiff.learning.tangents import Linearisation
from integrodiff.models import IAD, ReducedLaw, ScaleGrid

pytest.importorskip("distributed")
from integrodiff.blocks.cluster import items_per_task, local_cluster, on_workers

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


def seconds_at_rest(seconds: int) -> tuple[float, str | None]:
    before = time.process_time()
    time.sleep(seconds)
    return time.process_time() - before, os.environ.get("MALLOC_TRIM_THRESHOLD_")


def test_workers_rest_and_keep_their_memory() -> None:
    """Dask would have its workers look around 50 times a second, and give all memory back."""
    with local_cluster(1, threads=3) as client:
        ((_, threads),) = set(on_workers(client, environment, range(3)))
        assert threads == "3"
        list(on_workers(client, seconds_at_rest, [1]))  # what it does first
        ((busy, trims),) = on_workers(client, seconds_at_rest, [5])
    assert trims is None
    assert busy < 0.05


def test_errors_arrive(client: Any) -> None:
    with pytest.raises(ValueError, match="number three"):
        list(on_workers(client, failing, range(8)))
    assert sorted(on_workers(client, failing, [1, 2])) == [1, 2]


def late_failure(number: int) -> int:
    if number == 3:
        time.sleep(0.5)
    return failing(number)


def test_results_that_are_fetched_with_an_error_arrive(client: Any) -> None:
    results = on_workers(client, late_failure, range(6))
    found = [next(results)]
    time.sleep(2)  # all others end meanwhile
    with pytest.raises(ValueError, match="number three"):
        found.extend(results)
    assert sorted(found) == [0, 1, 2, 4, 5]


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


def twice(number: int) -> int:
    return 2 * number


def test_many_items_share_tasks(client: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cluster, "MOST_TASKS", 100)
    taken: list[int] = []

    def items() -> Iterator[int]:
        for number in range(501):
            taken.append(number)
            yield number

    assert items_per_task(501) == 6
    results = on_workers(client, twice, items(), 501)
    found = [next(results)]
    assert len(taken) <= 2 * 2 * cluster.AHEAD * 6  # no more than twice what is ahead
    found += results
    assert sorted(found) == [2 * number for number in range(501)]
    assert list(on_workers(client, twice, [])) == []


def test_a_killed_worker_costs_a_task_of_many_items(
    client: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cluster, "MOST_TASKS", 6)
    results = []
    for number in on_workers(client, _Slow(tmp_path), range(24), 24):
        results.append(number)
        if len(results) == 4:
            victim = int(next(iter(tmp_path.iterdir())).name.split("-")[1])
            os.kill(victim, signal.SIGKILL)
    assert sorted(results) == list(range(24))
    again = len(list(tmp_path.iterdir())) - 24
    assert 0 <= again <= 2 * 4  # a task that was being computed, and one that was not fetched


IMAGES = ("pm", "eed", "iid", "iad", "iad-plus", "iad-fast", "iad-deep", "iad-full")
VOLUMES = ("iad-volume", "iad-plus-volume", "iad-fast-volume")
# Whole and units, which do not see all of it with their halos; these are wider with masks.
SHAPES = {"YX": ((480, 400), (160, 160)), "ZYX": ((150, 36, 33), (40, 20, 33))}


class _Pixels:
    """Reads windows of an array."""

    def __init__(self, pixels: NDArray[Any]) -> None:
        self.pixels = pixels

    def __call__(self, index: Index) -> NDArray[Any]:
        return self.pixels[index]


class _Placed:
    """Denoises a unit, and says where it is."""

    def __init__(self, work: BlockDenoiser, unit: tuple[int, ...]) -> None:
        self.work, self.unit = work, unit

    def __call__(self, number: int) -> tuple[Index, NDArray[Any]]:
        index = unit_at(self.work.shape, self.unit, number)
        return index, self.work.denoised(index)


def in_units(client: Any, pixels: NDArray[Any], axes: str, denoiser: Denoiser) -> NDArray[Any]:
    """Denoise an image in units on the workers, as a job does."""
    shape, unit = SHAPES[axes]
    image = LargeImage(layout=Layout(axes, shape), dtype=pixels.dtype, window=_Pixels(pixels))
    count = prod(grid_of(shape, unit))
    found = on_workers(client, partial(invalid_in, image, unit), range(count), count)
    resolved = resolved_for(denoiser, image)
    resolved = replace(resolved, invalid=invalid_pixels(image.layout, found))
    work = BlockDenoiser(image=image, denoiser=denoiser, resolved=resolved)
    assert unit[0] + work.halo[0] < shape[0]
    result = np.empty_like(pixels)
    for index, part in on_workers(client, _Placed(work, unit), range(count), count):
        result[index] = part
    return result


def boxes(shape: tuple[int, ...]) -> NDArray[np.float64]:
    """Return boxes of random places and grey values."""
    rng = np.random.default_rng(3)
    clean = np.full(shape, 128.0)
    for _ in range(60):
        corner = [int(rng.integers(0, side)) for side in shape]
        sides = rng.integers(1, 40, len(shape))
        box = tuple(slice(at, at + int(side)) for at, side in zip(corner, sides, strict=True))
        clean[box] = rng.uniform(0, 255)
    return clean


def head(data: Path) -> NDArray[np.float64]:
    """Return a part of a magnetic resonance image of a head."""
    pixels = np.squeeze(read_image(data / "volumes" / "FLAIR.nrrd").pixels).astype(np.float64)
    longest_first = np.moveaxis(pixels, int(np.argmax(pixels.shape)), 0)
    middle = tuple(
        slice((length - size) // 2, (length + size) // 2)
        for length, size in zip(longest_first.shape, SHAPES["ZYX"][0], strict=True)
    )
    part = longest_first[middle]
    return np.asarray(255 * part / part.max())


@needs_native
@pytest.mark.parametrize("masked", [False, True], ids=["whole", "masked"])
@pytest.mark.parametrize("real", [False, True], ids=["random", "real"])
@pytest.mark.parametrize("name", IMAGES + VOLUMES)
def test_units_on_processes_are_the_whole(
    client: Any, request: pytest.FixtureRequest, name: str, real: bool, masked: bool
) -> None:
    axes = "ZYX" if name in VOLUMES else "YX"
    shape, _ = SHAPES[axes]
    if not real:
        clean = boxes(shape)
    elif axes == "YX":
        from skimage.data import camera

        clean = camera()[: shape[0], : shape[1]].astype(np.float64)
    else:
        clean = head(request.getfixturevalue("research_data"))
    rng = np.random.default_rng(7)
    pixels = np.asarray(clean + rng.normal(0, 25, shape), np.float32)
    if masked:
        pixels[rng.random(shape) < 0.005] = np.nan
        pixels[100:120, 5:18] = np.nan
    denoiser = Denoiser(25, data_range=255, axes=axes, model=name, engine="native", threads=1)
    whole, found = denoiser(pixels), in_units(client, pixels, axes, denoiser)
    np.testing.assert_array_equal(np.isnan(found), np.isnan(pixels))
    assert np.nanmax(np.abs(found - whole)) < TOLERANCE
    assert np.nanmax(np.abs(whole - pixels)) > 20


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


class Stateful:
    """Holds what belongs to one batch, as linearisers do."""

    items: Any = None

    def linearise(self, vector: NDArray[np.float64], items: Any) -> Linearisation:
        self.items = items
        time.sleep(0.02)
        assert self.items is items
        count = len(items)
        return Linearisation(np.zeros(count), np.zeros((count, 1)), np.zeros((count, 1, 1)))


def make_stateful(*_: object) -> Stateful:
    return Stateful()


def test_threads_of_a_worker_take_turns() -> None:
    anything: Any = None
    worker = copy(_OnWorker(make_stateful, anything, anything))
    batches = [(n, np.zeros(1), [(n, 10.0)]) for n in range(4)]
    with ThreadPoolExecutor(4) as threads:
        assert [start for start, _ in threads.map(worker, batches)] == [0, 1, 2, 3]
