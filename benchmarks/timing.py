"""The contract of all benchmarks: how something is timed, on what, and what an aim is.

Contestants take turns, so that a change in the machine's load hits all of them, and ratios are
taken within one turn. The first turn warms up and does not count. Nobody begins before the idle
threads of the last one sleep. What runs on one thread is
judged by the processor's seconds: on a quiet machine they are those of the wall clock, other
programs do not change them much, and a method that takes more threads than it was given pays for
them. What runs on several threads is judged by the wall clock.
"""

from __future__ import annotations

import math
import os
import platform
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from threadpoolctl import threadpool_limits

from integrodiff.engines import ENGINES, cpu_count
from integrodiff.reproduction._results import Result, markdown_table, significant

SEED = 0
NOISE_LEVEL = 25.0
PATIENCE = 5.0
SLOW_REPEATS = 3
_LONGEST_WAIT = 50
"""In hundredths of a second; some systems do not look at their clocks more often."""
_PACKAGES = ("integrodiff", "numpy", "scipy", "torch", "threadpoolctl")


@dataclass(frozen=True)
class Contestant:
    """Something to be timed.

    Attributes
    ----------
    run : callable
        What is timed.
    threads : int
        How many threads it may use.
    """

    run: Callable[[], object]
    threads: int = 1


@dataclass
class Timing:
    """Seconds of one contestant: of the first call, and by the wall and the processor's clock."""

    threads: int
    first: float = 0.0
    wall: list[float] = field(default_factory=list)
    processor: list[float] = field(default_factory=list)

    def as_result(self) -> Result:
        """Return what JSON can hold, with the median and the quartiles."""
        return {
            "threads": self.threads,
            "first_seconds": significant(self.first),
            "seconds": [significant(value) for value in self.wall],
            "processor_seconds": [significant(value) for value in self.processor],
            "wall": summary(self.wall),
            "processor": summary(self.processor),
        }


@contextmanager
def limited(threads: int) -> Iterator[None]:
    """Let the compiled engine, BLAS, OpenMP and PyTorch use so many threads."""
    before = os.environ.get("INTEGRODIFF_THREADS")
    os.environ["INTEGRODIFF_THREADS"] = str(threads)
    torch_threads = _set_torch_threads(threads)
    try:
        with threadpool_limits(limits=threads):
            yield
    finally:
        _set_torch_threads(torch_threads)
        if before is None:
            del os.environ["INTEGRODIFF_THREADS"]
        else:
            os.environ["INTEGRODIFF_THREADS"] = before


def _set_torch_threads(threads: int) -> int:
    """Set the threads of PyTorch, if it is there; return what they were."""
    if ENGINES["torch"].unavailable() is not None:
        return threads
    import torch

    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    return before


def take_turns(contestants: Mapping[str, Contestant], repeats: int) -> dict[str, Timing]:
    """Time all contestants in turns, after one turn that does not count.

    What takes longer than ``PATIENCE`` seconds the first time runs ``SLOW_REPEATS`` times at most.
    """
    timings = {name: Timing(one.threads) for name, one in contestants.items()}
    for turn in range(repeats + 1):
        for name, contestant in contestants.items():
            if turn > SLOW_REPEATS and timings[name].first > PATIENCE:
                continue
            with limited(contestant.threads):
                wait_for_idle_threads()
                wall, processor = time.perf_counter(), time.process_time()
                contestant.run()
                wall, processor = time.perf_counter() - wall, time.process_time() - processor
            if turn == 0:
                timings[name].first = wall
            else:
                timings[name].wall.append(wall)
                timings[name].processor.append(processor)
    return timings


def wait_for_idle_threads() -> None:
    """Wait until threads of the last contestant sleep; some libraries let them wait awake."""
    for _ in range(_LONGEST_WAIT):
        before = time.process_time()
        time.sleep(0.01)
        if time.process_time() - before < 0.001:
            return


def summary(values: Sequence[float]) -> Result:
    """Return the median and the quartiles."""
    low, median, high = (significant(float(v)) for v in np.percentile(values, [25, 50, 75]))
    return {"median": median, "quartiles": [low, high]}


def clock(*rows: Result) -> str:
    """Return what rows are judged by together: the processor's seconds, or those of the wall."""
    return "processor" if all(row["threads"] == 1 for row in rows) else "wall"


def seconds(row: Result) -> float:
    """Return the median of the clock by which a row is judged."""
    return float(row[clock(row)]["median"])


def ratios(row: Result, other: Result) -> Result:
    """Return the median and the quartiles of the time of a row divided by that of another.

    The ratios are taken within each turn that both ran in.
    """
    key = {"wall": "seconds", "processor": "processor_seconds"}[clock(row, other)]
    return summary([a / b for a, b in zip(row[key], other[key], strict=False)])


def range_text(found: Result, digits: int = 3) -> str:
    """Return a median with its quartiles in words."""
    low, high = found["quartiles"]
    return f"{found['median']:.{digits}g} ({low:.{digits}g} to {high:.{digits}g})"


# ---- aims ----


def aim(
    what: str, reached: float, *, at_least: float = -math.inf, at_most: float = math.inf
) -> Result:
    """Compare a number with what it should be."""
    wanted = f"at least {at_least:g}" if at_most == math.inf else f"at most {at_most:g}"
    met = at_least <= reached <= at_most
    return {"what": what, "wanted": wanted, "reached": significant(reached), "met": met}


def aims_table(aims: Sequence[Result]) -> str:
    """Return the aims as a Markdown table: those missed are marked."""
    lines = [
        [row["what"], row["wanted"], f"{row['reached']:.3g}", "met" if row["met"] else "**missed**"]
        for row in aims
    ]
    return markdown_table(["aim", "wanted", "reached", ""], lines)


# ---- facts ----


def facts(settings: Result, packages: Sequence[str] = ()) -> Result:
    """Return when, where and with what a part was measured."""
    native = ENGINES["native"]
    return {
        "date": datetime.now(UTC).isoformat(timespec="minutes"),
        "processor": processor_name(),
        "processors": cpu_count(),
        "system": f"{platform.system()} {platform.machine()}",
        "python": platform.python_version(),
        "versions": {name: _version(name) for name in (*_PACKAGES, *packages)},
        "native": native.unavailable() or native.threads().split(", ")[-1],
        "load": [round(value, 2) for value in os.getloadavg()] if os.name == "posix" else None,
        "seed": SEED,
        "settings": settings,
    }


def processor_name() -> str:
    """Return the processor's model, as far as the system says it."""
    information = Path("/proc/cpuinfo")
    if information.is_file():
        for line in information.read_text(encoding="utf-8").splitlines():
            if line.startswith("model name"):
                return line.split(":", 1)[1].strip()
    return platform.processor() or "unknown"


def _version(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:
        return "missing"


def facts_text(found: Result) -> str:
    """Return the facts in a few lines for readers."""
    versions = ", ".join(f"{name} {release}" for name, release in found["versions"].items())
    load = "unknown" if found["load"] is None else f"{found['load'][0]:g}"
    busy = found["load"] is not None and found["load"][0] > found["processors"] / 2
    warning = "\n**The machine was busy: numbers by the wall clock mean little.**\n" if busy else ""
    return (
        f"{found['date']}, {found['processor']}, {found['processors']} processors, "
        f"{found['native']}, load {load} at the start; Python {found['python']}, "
        f"{versions}.\n{warning}"
    )


def noisy_picture(size: int) -> NDArray[np.float32]:
    """Return a square of scikit-image's cameraman, repeated if it is larger, with noise."""
    from skimage.data import camera

    times = -(-size // 512)
    picture = np.tile(camera().astype(np.float32), (times, times))[:size, :size]
    noise = np.random.default_rng(SEED).standard_normal((size, size), dtype=np.float32)
    return np.asarray(picture + np.float32(NOISE_LEVEL) * noise, np.float32)
