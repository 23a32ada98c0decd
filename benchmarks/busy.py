"""Compare one thread with two on a machine that has other things to do.

    python benchmarks/busy.py

Programs that only count, as many as there are processors, run beside the engine ``native``. The
system lets a helper thread wait behind them: the calling thread must not wait for it. The times
are on the clock, medians of some repetitions; without other programs and beside them.
"""

from __future__ import annotations

import argparse
import multiprocessing
import statistics
import time
import warnings
from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np

from integrodiff import Denoiser
from integrodiff.engines import cpu_count


def count() -> None:
    """Keep a processor busy."""
    while True:
        pass


@contextmanager
def busy(programs: int) -> Iterator[None]:
    """Run programs that only count."""
    running = [multiprocessing.Process(target=count, daemon=True) for _ in range(programs)]
    for program in running:
        program.start()
    try:
        yield
    finally:
        for program in running:
            program.terminate()
            program.join()


def milliseconds(side: int, threads: int, repeats: int) -> float:
    """Return the median time of one image."""
    image = np.random.default_rng(0).normal(128, 25, (side, side)).astype(np.float32)
    denoiser = Denoiser(sigma=25.0, model="iad", engine="native", data_range=255, threads=threads)
    denoiser(image)
    times = []
    for _ in range(repeats):
        start = time.perf_counter()
        denoiser(image)
        times.append(time.perf_counter() - start)
    return 1000 * statistics.median(times)


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--sides", type=int, nargs="+", default=[64, 256, 1024])
    parser.add_argument("--repeats", type=int, default=9)
    arguments = parser.parse_args()
    warnings.simplefilter("ignore")
    print("image          threads      alone, ms   beside others, ms")
    for side in arguments.sides:
        for threads in (1, 2):
            alone = milliseconds(side, threads, arguments.repeats)
            with busy(cpu_count()):
                beside = milliseconds(side, threads, arguments.repeats)
            print(f"{side:4} x {side:<4} {threads:10} {alone:14.1f} {beside:19.1f}")


if __name__ == "__main__":
    main()
