"""Large images in blocks: memory, throughput, kills, scaling, and the load of a scheduler.

    python benchmarks/large_images.py plane big.zarr --size 40000
    python benchmarks/clusters.py job big.zarr out.zarr --max-memory 3G --workers 2
    python benchmarks/clusters.py in-memory big.zarr --side 4096
    python benchmarks/clusters.py kill small.zarr FOLDER
    python benchmarks/clusters.py scaling small.zarr FOLDER
    python benchmarks/clusters.py scheduler --tasks 100000

Each command prints JSON, or appends it to ``--output``. Memory is the sum over all processes of
what they do not share with others, and once what they share, sampled every half second. Processor
time is that of all processes, so that it can be compared on a machine that others use.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import zarr

PROGRAM = [sys.executable, "-m", "integrodiff.cli", "denoise"]


def tree(root: psutil.Process) -> list[psutil.Process]:
    """Return a process and all that it started."""
    try:
        return [root, *root.children(recursive=True)]
    except psutil.NoSuchProcess:
        return []


class Watched:
    """A running job, its memory and its processor time."""

    def __init__(self, arguments: list[str]) -> None:
        self.began = time.perf_counter()
        self.process = subprocess.Popen([*PROGRAM, *arguments], stderr=subprocess.PIPE, text=True)
        self.root = psutil.Process(self.process.pid)
        self.peak, self.largest, self.processes = 0, 0, 0
        self.cpu: dict[int, float] = {}

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
    return ["--model", arguments.model, "--max-memory", arguments.max_memory, *more]


def job(arguments: argparse.Namespace) -> dict[str, Any]:
    """Denoise a file from disk to disk."""
    source, target = Path(arguments.source), Path(arguments.target)
    more = ["--workers", str(arguments.workers)]
    if arguments.resume:
        more.append("--resume")
    found = Watched([str(source), str(target), *options(arguments, *more)]).finished()
    shape = zarr.open_array(source / "s0").shape
    pixels = int(np.prod(shape))
    return {
        "what": "job",
        "shape": shape,
        "model": arguments.model,
        "max_memory": arguments.max_memory,
        "workers": arguments.workers,
        **found,
        "nanoseconds_per_pixel": 1e9 * found["processor_seconds"] / pixels,
        "checksum": checksum(target) if target.exists() else None,
    }


def in_memory(arguments: argparse.Namespace) -> dict[str, Any]:
    """Denoise a part of a file that is in memory, by the same engine, and nothing else."""
    from integrodiff import Denoiser

    array = zarr.open_array(Path(arguments.source) / "s0")
    index = tuple(slice(0, min(arguments.side, length)) for length in array.shape)
    part = np.asarray(array[index])
    axes = "ZYX" if part.ndim == 3 else "YX"
    denoiser = Denoiser(400, data_range=20000, axes=axes, model=arguments.model, threads=1)
    times = []
    for _ in range(arguments.repeats):
        before = time.process_time()
        denoiser(part)
        times.append(time.process_time() - before)
    return {
        "what": "in memory",
        "shape": part.shape,
        "model": arguments.model,
        "nanoseconds_per_pixel": 1e9 * float(np.median(times)) / part.size,
        "load": [round(value, 1) for value in os.getloadavg()],
    }


def journal_lines(folder: Path) -> int:
    """Return how many units the journals of an unfinished job have."""
    return sum(len(path.read_text().splitlines()) for path in folder.glob("journal-*.jsonl"))


def kill(arguments: argparse.Namespace) -> dict[str, Any]:
    """Compare an undisturbed run with ones whose worker, or whose every process, is killed."""
    source, folder = arguments.source, Path(arguments.target)
    folder.mkdir(parents=True, exist_ok=True)
    more = options(arguments, "--workers", "2", "--sigma", "400", "--data-range", "20000")
    found: dict[str, Any] = {"what": "kill", "shape": zarr.open_array(Path(source) / "s0").shape}
    names = {name: folder / f"{name}.zarr" for name in ("undisturbed", "worker", "all")}
    for path in names.values():
        shutil.rmtree(path, ignore_errors=True)
    found["undisturbed"] = Watched([source, str(names["undisturbed"]), *more]).finished()
    killed: list[int] = []

    def kill_worker() -> bool:
        unfinished = folder / ".worker.zarr.unfinished"
        if not killed and journal_lines(unfinished) >= 2:
            workers = [
                one
                for one in tree(run.root)[1:]
                if one.memory_info().rss > 1.5e8 and one.cpu_times().user > 1
            ]
            if workers:
                busiest = max(workers, key=lambda one: one.cpu_times().user)
                busiest.send_signal(signal.SIGKILL)
                killed.append(busiest.pid)
        return False

    run = Watched([source, str(names["worker"]), *more])
    found["worker"] = {**run.finished(kill_worker), "killed": len(killed)}
    unfinished = folder / ".all.zarr.unfinished"

    def kill_all() -> bool:
        if journal_lines(unfinished) < 3:
            return False
        for one in reversed(tree(run.root)):
            one.send_signal(signal.SIGKILL)
        return True

    run = Watched([source, str(names["all"]), *more])
    first = run.finished(kill_all)
    found["all"] = {**first, "there_after_the_kill": names["all"].exists()}
    found["units_before_the_kill"] = journal_lines(unfinished)
    # A block that was torn: its line is in the journal, and half of a file is gone.
    shards = sorted((unfinished / "image" / "s0").rglob("c/*/*"))
    torn = next(path for path in shards if path.is_file())
    torn.write_bytes(torn.read_bytes()[: torn.stat().st_size // 2])
    found["resumed"] = Watched([source, str(names["all"]), *more, "--resume"]).finished()
    sums = {name: checksum(path) if path.exists() else None for name, path in names.items()}
    found["checksums"] = sums
    found["identical"] = len(set(sums.values())) == 1 and None not in sums.values()
    return found


def scaling(arguments: argparse.Namespace) -> dict[str, Any]:
    """Compare one and two workers."""
    folder = Path(arguments.target)
    folder.mkdir(parents=True, exist_ok=True)
    found: dict[str, Any] = {"what": "scaling"}
    for workers in (1, 2):
        target = folder / f"scaling{workers}.zarr"
        shutil.rmtree(target, ignore_errors=True)
        more = options(arguments, "--workers", str(workers), "--sigma", "400")
        command = [arguments.source, str(target), *more, "--data-range", "20000"]
        found[str(workers)] = Watched(command).finished()
    found["speedup"] = found["1"]["seconds"] / found["2"]["seconds"]
    return found


def nothing(number: int) -> int:
    """Stand for a block."""
    return number


def scheduler(arguments: argparse.Namespace) -> dict[str, Any]:
    """Run tasks that do nothing: the way a job submits them, and as one graph."""
    from integrodiff.blocks.cluster import local_cluster, on_workers

    rows = []
    with local_cluster(2) as client:
        own = psutil.Process()
        for count in arguments.tasks:
            before, rss = time.perf_counter(), own.memory_info().rss
            total = sum(1 for _ in on_workers(client, nothing, range(count)))
            seconds = time.perf_counter() - before
            grown = own.memory_info().rss - rss
            rows.append(
                {
                    "way": "few at a time",
                    "tasks": total,
                    "seconds": round(seconds, 1),
                    "tasks_per_second": round(count / seconds),
                    "grown_bytes": grown,
                }
            )
        for count in arguments.graphs:
            before, rss = time.perf_counter(), own.memory_info().rss
            futures = client.map(nothing, range(count), pure=False)
            grown = own.memory_info().rss - rss
            client.gather(futures[-1:])
            total = sum(1 for _ in client.gather(futures))
            seconds = time.perf_counter() - before
            grown = max(grown, own.memory_info().rss - rss)
            rows.append(
                {
                    "way": "all at once",
                    "tasks": total,
                    "seconds": round(seconds, 1),
                    "tasks_per_second": round(count / seconds),
                    "grown_bytes": grown,
                    "bytes_per_task": round(grown / count),
                }
            )
            del futures
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
    for name, function in (("job", job), ("kill", kill), ("scaling", scaling)):
        one = commands.add_parser(name, parents=[shared])
        one.add_argument("source")
        one.add_argument("target")
        one.add_argument("--workers", type=int, default=2)
        one.add_argument("--resume", action="store_true")
        one.set_defaults(function=function)
    one = commands.add_parser("in-memory", parents=[shared])
    one.add_argument("source")
    one.add_argument("--side", type=int, default=4096)
    one.add_argument("--repeats", type=int, default=3)
    one.set_defaults(function=in_memory)
    one = commands.add_parser("scheduler", parents=[shared])
    one.add_argument("--tasks", type=int, nargs="*", default=[1000, 10000])
    one.add_argument("--graphs", type=int, nargs="*", default=[1000, 10000])
    one.set_defaults(function=scheduler)
    arguments = parser.parse_args()
    found = arguments.function(arguments)
    print(json.dumps(found, indent=1))
    if arguments.output is not None:
        known = json.loads(arguments.output.read_text()) if arguments.output.exists() else []
        arguments.output.write_text(json.dumps([*known, found], indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
