"""Large images in blocks: memory, throughput, kills, scaling, and the load of a scheduler.

    python benchmarks/large_images.py plane big.zarr --size 40000
    python benchmarks/clusters.py large big.zarr FOLDER --max-memory 3G
    python benchmarks/clusters.py job big.zarr out.zarr --max-memory 3G --workers 2
    python benchmarks/clusters.py in-memory big.zarr --side 4096
    python benchmarks/clusters.py scaling big.zarr FOLDER
    python benchmarks/clusters.py scheduler --units 1000 20000 100000
    python benchmarks/clusters.py parts big.zarr FOLDER

`large` denoises an image undisturbed, with the engine in memory before and after it; then once
more, with a worker killed; and once more, with everything killed, a file torn, and the job resumed.
All three must give the same files. With ``--kills together`` the last two are one run, and with
``--checksum`` of an earlier undisturbed run that one is not repeated.

Each command prints JSON, and appends it to ``--output``. Memory is the sum over all processes of
what they do not share with others, and once what they share, sampled every half second, and the sum
of the peaks of all processes, which cannot be missed but counts shared memory several times.
Processor time is that of all processes, so that it can be compared on a machine that others use.
"""

from __future__ import annotations

import argparse
import asyncio
import hashlib
import json
import logging
import multiprocessing
import os
import resource
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import zarr

from integrodiff import Denoiser
from integrodiff.blocks.job import Key, Written
from large_images import SIGMA

PROGRAM = [sys.executable, "-m", "integrodiff.cli", "denoise"]
CROWDS = 4
"""Processes that simulated workers are in."""

DATA_RANGE = 20000
"""What is said of the images, so that the same is computed in memory and in blocks."""


def tree(root: psutil.Process) -> list[psutil.Process]:
    """Return a process and all that it started."""
    try:
        return [root, *root.children(recursive=True)]
    except psutil.NoSuchProcess:
        return []


def high_water(process: int) -> int:
    """Return the most bytes that a process ever held, zero if it is gone."""
    try:
        status = Path(f"/proc/{process}/status").read_text(encoding="ascii", errors="replace")
    except OSError:
        return 0
    lines = (line.split() for line in status.splitlines() if line.startswith("VmHWM:"))
    return next((1024 * int(words[1]) for words in lines), 0)


class Watched:
    """A running job, its memory and its processor time."""

    def __init__(self, arguments: list[str]) -> None:
        self.began = time.perf_counter()
        self.process = subprocess.Popen([*PROGRAM, *arguments], stderr=subprocess.PIPE, text=True)
        self.root = psutil.Process(self.process.pid)
        self.peak, self.largest, self.processes = 0, 0, 0
        self.cpu: dict[int, float] = {}
        self.highest: dict[int, int] = {}

    def look(self) -> None:
        """Measure all processes once."""
        private, shared, count = 0, 0, 0
        for one in tree(self.root):
            try:
                memory = one.memory_full_info()
                times = one.cpu_times()
            except (psutil.NoSuchProcess, psutil.AccessDenied):
                continue
            private += memory.uss
            shared = max(shared, memory.rss - memory.uss)
            self.largest = max(self.largest, memory.rss)
            self.cpu[one.pid] = times.user + times.system
            self.highest[one.pid] = max(self.highest.get(one.pid, 0), high_water(one.pid))
            count += 1
        self.peak = max(self.peak, private + shared)
        self.processes = max(self.processes, count)

    def finished(self, each: Callable[[], bool] | None = None) -> dict[str, Any]:
        """Watch until the job has ended; ``each`` is called in between, and may end it."""
        while self.process.poll() is None:
            self.look()
            if each is not None and each():
                break
            time.sleep(0.5)
        words = self.process.communicate()[1] or ""
        return {
            "exit_code": self.process.returncode,
            "seconds": round(time.perf_counter() - self.began, 1),
            "processor_seconds": round(sum(self.cpu.values()), 1),
            "peak_bytes": self.peak,
            "largest_process_bytes": self.largest,
            "sum_of_peaks_bytes": sum(self.highest.values()),
            "processes": self.processes,
            "load": [round(value, 1) for value in os.getloadavg()],
            "message": words.strip().splitlines()[-1:],
        }


def checksum(path: Path) -> str:
    """Return a hash of all files of a folder with their names."""
    found = hashlib.sha256()
    for file in sorted(path.rglob("*")):
        if file.is_file():
            found.update(str(file.relative_to(path)).encode())
            with file.open("rb") as stream:
                found.update(hashlib.file_digest(stream, "sha256").digest())
    return found.hexdigest()


def options(arguments: argparse.Namespace, *more: str) -> list[str]:
    """Return the options of the command line that all runs share."""
    given = ["--model", arguments.model, "--max-memory", arguments.max_memory]
    given += ["--sigma", str(SIGMA), "--data-range", str(DATA_RANGE)]
    return [*given, "--workers", str(arguments.workers), *more]


def about(source: str, arguments: argparse.Namespace) -> dict[str, Any]:
    """Return what all runs on an image have in common."""
    return {
        "shape": zarr.open_array(Path(source) / "s0").shape,
        "model": arguments.model,
        "max_memory": arguments.max_memory,
        "processors": len(os.sched_getaffinity(0)),
    }


def job(arguments: argparse.Namespace) -> dict[str, Any]:
    """Denoise a file from disk to disk."""
    source, target = Path(arguments.source), Path(arguments.target)
    more = ["--resume"] if arguments.resume else []
    found = Watched([str(source), str(target), *options(arguments, *more)]).finished()
    facts = about(arguments.source, arguments)
    return {
        "what": "job",
        **facts,
        "workers": arguments.workers,
        **found,
        "nanoseconds_per_pixel": 1e9 * found["processor_seconds"] / int(np.prod(facts["shape"])),
        "checksum": checksum(target) if target.exists() else None,
    }


class InMemory:
    """The engine on a part of an image that is in memory, with nothing to read or to write."""

    def __init__(self, source: str, side: int, model: str) -> None:
        array = zarr.open_array(Path(source) / "s0")
        self.part = np.asarray(array[tuple(slice(0, min(side, n)) for n in array.shape)])
        self.axes, self.model = "ZYX"[-self.part.ndim :], model

    def timed(self, threads: int, repeats: int) -> dict[str, float]:
        """Return nanoseconds per pixel by the wall clock and of the processors: the medians."""
        denoiser = Denoiser(
            SIGMA, data_range=DATA_RANGE, axes=self.axes, model=self.model, threads=threads
        )
        times = []
        for _ in range(repeats):
            before = time.perf_counter(), time.process_time()
            denoiser(self.part)
            after = time.perf_counter(), time.process_time()
            times.append([b - a for a, b in zip(before, after, strict=True)])
        wall, processor = 1e9 * np.median(times, axis=0) / self.part.size
        return {
            "threads": threads,
            "wall_nanoseconds_per_pixel": round(float(wall), 1),
            "nanoseconds_per_pixel": round(float(processor), 1),
        }


def in_memory(arguments: argparse.Namespace) -> dict[str, Any]:
    """Denoise a part of a file that is in memory, by the same engine, and nothing else."""
    engine = InMemory(arguments.source, arguments.side, arguments.model)
    return {
        "what": "in memory",
        "shape": engine.part.shape,
        "model": arguments.model,
        "rows": [engine.timed(threads, arguments.repeats) for threads in (1, 2)],
        "load": [round(value, 1) for value in os.getloadavg()],
    }


def journal_lines(folder: Path) -> int:
    """Return how many units the journals of an unfinished job have."""
    return sum(len(path.read_text().splitlines()) for path in folder.glob("journal-*.jsonl"))


def unit_count(folder: Path, shape: tuple[int, ...]) -> int:
    """Return how many units of the full resolution an unfinished job has."""
    unit = json.loads((folder / "job.json").read_text())["unit"]
    return int(np.prod([-(-n // size) for n, size in zip(shape, unit, strict=True)]))


def large(arguments: argparse.Namespace) -> dict[str, Any]:
    """Denoise a file undisturbed, beside the engine in memory, and with two kinds of kills."""
    source, folder = arguments.source, Path(arguments.target)
    folder.mkdir(parents=True, exist_ok=True)
    more = options(arguments)
    facts = about(source, arguments)
    found: dict[str, Any] = {"what": "large", **facts, "workers": arguments.workers}
    paths = {name: folder / f"{name}.zarr" for name in ("undisturbed", "worker", "all")}
    sums: dict[str, str | None] = {}

    def sum_up(name: str) -> None:
        sums[name] = checksum(paths[name]) if paths[name].exists() else None
        shutil.rmtree(paths[name], ignore_errors=True)

    for path in paths.values():
        shutil.rmtree(path, ignore_errors=True)
        shutil.rmtree(path.with_name(f".{path.name}.unfinished"), ignore_errors=True)
    if arguments.checksum is None:
        engine = InMemory(source, arguments.side, arguments.model)
        threads = facts["processors"]
        rows = [engine.timed(threads, arguments.repeats)]
        found["undisturbed"] = Watched([source, str(paths["undisturbed"]), *more]).finished()
        rows.append(engine.timed(threads, arguments.repeats))
        found["in_memory"] = {"shape": engine.part.shape, "rows": rows}
        del engine
        found["throughput"] = throughput(found["undisturbed"], rows, int(np.prod(facts["shape"])))
        sum_up("undisturbed")
    else:
        sums["undisturbed"] = arguments.checksum
    found["checksums"] = sums
    if arguments.kills == "none":
        return found
    together = arguments.kills == "together"
    killed: list[int] = []

    def done(name: str, share: float) -> bool:
        unfinished = folder / f".{name}.zarr.unfinished"
        if not (unfinished / "job.json").exists():
            return False
        enough = share * unit_count(unfinished, facts["shape"])
        return journal_lines(unfinished) >= max(2, enough)

    def kill_worker(name: str) -> bool:
        if not killed and done(name, 0.25):
            workers = [one for one in tree(run.root)[1:] if one.cpu_times().user > 1]
            busiest = max(workers, key=lambda one: one.cpu_times().user)
            busiest.send_signal(signal.SIGKILL)
            killed.append(busiest.pid)
        return False

    if not together:
        run = Watched([source, str(paths["worker"]), *more])
        ended = run.finished(lambda: kill_worker("worker"))
        found["worker"] = {**ended, "killed": len(killed)}
        sum_up("worker")

    # Then everything, and of what is there one file is cut in half.
    torn_folder = folder / ".all.zarr.unfinished"

    def kill_all() -> bool:
        if together:
            kill_worker("all")
        if not done("all", 0.5):
            return False
        for one in reversed(tree(run.root)):
            one.send_signal(signal.SIGKILL)
        return True

    run = Watched([source, str(paths["all"]), *more])
    ended = run.finished(kill_all)
    found["all"] = {
        **ended,
        "workers_killed_before": len(killed) if together else 0,
        "there_after_the_kill": paths["all"].exists(),
    }
    found["units_before_the_kill"] = journal_lines(torn_folder)
    shards = sorted((torn_folder / "image" / "s0" / "c").rglob("*"))
    torn = next(path for path in shards if path.is_file())
    torn.write_bytes(torn.read_bytes()[: torn.stat().st_size // 2])
    found["resumed"] = Watched([source, str(paths["all"]), *more, "--resume"]).finished()
    sum_up("all")
    found["identical"] = len(set(sums.values())) == 1 and None not in sums.values()
    return found


def throughput(run: dict[str, Any], rows: list[dict[str, float]], pixels: int) -> dict[str, Any]:
    """Return the throughput of a job divided by that of the engine in memory, in two ways.

    By the wall clock, and by processor time, which is what it would be on processors that nobody
    else uses if nothing ever waited.
    """
    found = {}
    for name, key in (("wall", "seconds"), ("processor", "processor_seconds")):
        own = {"wall": "wall_nanoseconds_per_pixel", "processor": "nanoseconds_per_pixel"}[name]
        each = 1e9 * run[key] / pixels
        alone = float(np.mean([row[own] for row in rows]))
        found[name] = {
            "job_nanoseconds_per_pixel": round(each, 1),
            "in_memory_nanoseconds_per_pixel": round(alone, 1),
            "ratio": round(alone / each, 3),
        }
    return found


def scaling(arguments: argparse.Namespace) -> dict[str, Any]:
    """Compare one and two workers, by turns."""
    folder = Path(arguments.target)
    folder.mkdir(parents=True, exist_ok=True)
    found: dict[str, Any] = {"what": "scaling", **about(arguments.source, arguments)}
    runs: dict[int, list[dict[str, Any]]] = {1: [], 2: []}
    target = folder / "scaling.zarr"
    for _ in range(arguments.repeats):
        for workers, done in runs.items():
            shutil.rmtree(target, ignore_errors=True)
            arguments.workers = workers
            done.append(Watched([arguments.source, str(target), *options(arguments)]).finished())
    shutil.rmtree(target, ignore_errors=True)
    found["runs"] = runs
    fastest = {n: min(run["seconds"] for run in done) for n, done in runs.items()}
    found["speedup"] = round(fastest[1] / fastest[2], 3)
    return found


def parts(arguments: argparse.Namespace) -> dict[str, Any]:
    """Return the processor time of what is done with a block of an image, in this process."""
    from integrodiff.blocks.job import large_file
    from integrodiff.blocks.region import BlockDenoiser, resolved_for
    from integrodiff.io.formats.ome_zarr import BlockWriter, open_blocks
    from integrodiff.io.windows import open_windows

    folder = Path(arguments.target)
    folder.mkdir(parents=True)
    rows: list[dict[str, Any]] = []
    with open_windows(arguments.source) as reader:
        side, image = arguments.side, large_file(reader)
        place = (slice(side, 2 * side),) * len(image.layout.shape)
        denoiser = Denoiser(
            SIGMA,
            data_range=DATA_RANGE,
            axes=image.layout.axes,
            model=arguments.model,
            threads=1,
        )
        work = BlockDenoiser(image=image, denoiser=denoiser, resolved=resolved_for(denoiser, image))
        halo = max(work.halo)
        around = tuple(slice(part.start - halo, part.stop + halo) for part in place)
        BlockWriter(folder / "image", reader.header).close()
        output = open_blocks(folder / "image", reader.header)
        pixels = image.window(place)

        def timed(name: str, act: Callable[[], Any]) -> Any:
            before = resource.getrusage(resource.RUSAGE_SELF)
            result = act()
            after = resource.getrusage(resource.RUSAGE_SELF)
            user = 1e9 * (after.ru_utime - before.ru_utime) / pixels.size
            system = 1e9 * (after.ru_stime - before.ru_stime) / pixels.size
            rows.append({"part": name, "user": round(user, 1), "system": round(system, 1)})
            return result

        for _ in range(arguments.repeats):
            timed("in memory", lambda: denoiser(pixels))
            timed("read with halo", lambda: image.window(around))
            result = timed("read and denoise with halo", lambda: work.denoised(place))
            timed("write", partial(output.write, place, result))
            timed("hash", lambda: output.digest(0, place, durable=True))
        smaller = tuple(slice(part.start // 2, part.stop // 2) for part in place)
        timed("next smaller resolution", lambda: output.write_smaller(1, smaller))
    shutil.rmtree(folder)
    return {
        "what": "parts",
        "side": arguments.side,
        "model": arguments.model,
        "allocator": os.environ.get("MALLOC_TRIM_THRESHOLD_"),
        "nanoseconds_per_pixel": rows,
    }


def nothing(number: int) -> Written:
    """Return what a worker returns for a unit, with something as long as a hash."""
    return Written(Key(0, number), f"{number:064x}")


async def _crowd(address: str, count: int, threads: int) -> None:
    """Be many workers, each with its own connection, until the scheduler is gone."""
    from distributed import Worker

    workers = [
        Worker(address, nthreads=threads, dashboard=False, memory_limit=0, heartbeat_interval="5s")
        for _ in range(count)
    ]
    await asyncio.gather(*workers)
    await asyncio.gather(*(worker.finished() for worker in workers))


def crowd(address: str, count: int, threads: int) -> None:
    """Run many workers in this process; what they take is not counted for the scheduler."""
    import gc

    import dask
    import distributed  # sets up its logging

    logging.getLogger(distributed.__name__).setLevel(logging.CRITICAL)
    gc.set_threshold(100_000, 50, 50)  # what so many workers hold is looked through less often
    with dask.config.set(
        {
            "distributed.worker.profile.enabled": False,
            "distributed.admin.low-level-log-length": 20,
            "distributed.admin.tick.interval": "1s",
            "distributed.admin.system-monitor.interval": "10s",
        }
    ):
        asyncio.run(_crowd(address, count, threads))


def scheduler(arguments: argparse.Namespace) -> dict[str, Any]:
    """Run jobs whose units do nothing: in the tasks that a job has, and as one graph.

    Scheduler and client are this process; the workers are others.
    """
    from integrodiff.blocks.cluster import items_per_task, local_cluster, on_workers

    rows: list[dict[str, Any]] = []
    with local_cluster(0) as client:
        address = client.scheduler_info()["address"]
        context = multiprocessing.get_context("spawn")
        shares = [len(some) for some in np.array_split(range(arguments.workers), CROWDS)]
        crowds = [
            context.Process(target=crowd, args=(address, share, arguments.threads), daemon=True)
            for share in shares
        ]
        for others in crowds:
            others.start()
        client.wait_for_workers(arguments.workers)
        cluster: Any = client.cluster
        known = cluster.scheduler.tasks
        own = psutil.Process()

        def measured(way: str, count: int, results: Iterable[Written], each: int = 1) -> None:
            began, busy, rss = time.perf_counter(), time.process_time(), own.memory_info().rss
            sent = psutil.net_io_counters(pernic=True)["lo"].bytes_sent
            most_known, memory, tasks = 0, [rss], -(-count // each)
            step = max(1000 * each, -(-count // 20))
            for total, _ in enumerate(results, 1):
                if total % (1000 * each) == 0:
                    most_known = max(most_known, len(known))
                if total % step == 0:
                    memory.append(own.memory_info().rss)
                    print(f"{total} units, {memory[-1] / 1e6:.0f} MB", file=sys.stderr, flush=True)
            memory.append(own.memory_info().rss)
            seconds = time.perf_counter() - began
            busy = time.process_time() - busy
            sent = psutil.net_io_counters(pernic=True)["lo"].bytes_sent - sent
            rows.append(
                {
                    "way": way,
                    "workers": arguments.workers,
                    "threads_of_each": arguments.threads,
                    "units": total,
                    "tasks": tasks,
                    "seconds": round(seconds, 1),
                    "tasks_per_second": round(tasks / seconds),
                    "processor_milliseconds_per_task": round(1e3 * busy / tasks, 3),
                    "bytes_sent_per_task": round(sent / tasks),
                    "most_tasks_known": most_known,
                    "megabytes_of_memory": [round(size / 1e6, 1) for size in memory],
                }
            )
            print(rows[-1], file=sys.stderr, flush=True)

        def at_once(count: int) -> Iterator[Written]:
            yield from client.gather(client.map(nothing, range(count), pure=False))

        for count in arguments.units:
            results = on_workers(client, nothing, range(count), count)
            measured("few at a time", count, results, items_per_task(count))
        for count in arguments.graphs:
            measured("all at once", count, at_once(count))
    for others in crowds:
        others.join(30)
    return {"what": "scheduler", "rows": rows, "load": [round(v, 1) for v in os.getloadavg()]}


def main() -> None:
    """Run what the arguments ask for."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    shared = argparse.ArgumentParser(add_help=False)
    shared.add_argument("--output", type=Path)
    shared.add_argument("--model", default="iad-fast")
    shared.add_argument("--max-memory", default="3G")
    commands = parser.add_subparsers(required=True)
    sample = argparse.ArgumentParser(add_help=False)
    sample.add_argument("source")
    sample.add_argument("--side", type=int, default=4096, help="of the part in memory")
    sample.add_argument("--repeats", type=int, default=3)
    functions = {"large": large, "job": job, "scaling": scaling, "parts": parts}
    for name, function in functions.items():
        one = commands.add_parser(name, parents=[shared, sample])
        one.add_argument("target")
        one.add_argument("--workers", type=int, default=2)
        one.add_argument("--resume", action="store_true")
        one.add_argument("--checksum", help="of an undisturbed run, instead of one")
        one.add_argument("--kills", choices=["apart", "together", "none"], default="apart")
        one.set_defaults(function=function)
    one = commands.add_parser("in-memory", parents=[shared, sample])
    one.set_defaults(function=in_memory)
    one = commands.add_parser("scheduler", parents=[shared])
    one.add_argument("--units", type=int, nargs="*", default=[1000, 10000], help="of each job")
    one.add_argument("--graphs", type=int, nargs="*", default=[1000, 10000])
    one.add_argument("--workers", type=int, default=100, help="simulated, in a few processes")
    one.add_argument("--threads", type=int, default=10, help="of each of them")
    one.set_defaults(function=scheduler)
    arguments = parser.parse_args()
    found = arguments.function(arguments)
    print(json.dumps(found, indent=1))
    if arguments.output is not None:
        known = json.loads(arguments.output.read_text()) if arguments.output.exists() else []
        arguments.output.write_text(json.dumps([*known, found], indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
