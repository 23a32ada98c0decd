"""Time the engines against each other on the same images.

    python benchmarks/engines.py [--sizes 256 512 1024] [--model iad] [--json FILE]

After one warm-up the engines take turns, so that a change in the machine's load hits all of
them. Printed are the median and the interquartile range in seconds, and the ratio to NumPy.
"""

from __future__ import annotations

import argparse
import json
import platform
import time
from pathlib import Path

import numpy as np

import integrodiff
from integrodiff.engines import ENGINES, cpu_count

SIGMA = 25.0


def time_engines(model: str, size: int, repeats: int) -> dict[str, list[float]]:
    """Return the seconds of every run of every engine that can run."""
    evolution = integrodiff.load_model(model).evolution(SIGMA)
    image = np.random.default_rng(0).normal(128, SIGMA, (1, size, size)).astype(np.float32)
    runnable = {name: engine for name, engine in ENGINES.items() if engine.unavailable() is None}
    seconds: dict[str, list[float]] = {name: [] for name in runnable}
    for repeat in range(repeats + 1):
        for name, engine in runnable.items():
            start = time.perf_counter()
            engine.evolve(image, evolution)
            if repeat:
                seconds[name].append(time.perf_counter() - start)
    return seconds


def main() -> None:
    """Run the benchmark and print a Markdown table."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--sizes", nargs="+", type=int, default=[256, 512, 1024])
    parser.add_argument("--model", default="iad")
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()

    facts = {
        "integrodiff": integrodiff.__version__,
        "numpy": np.__version__,
        "python": platform.python_version(),
        "processors": cpu_count(),
        "threads": {n: e.threads() for n, e in ENGINES.items() if e.unavailable() is None},
        "model": arguments.model,
        "dtype": "float32",
    }
    print(json.dumps(facts), "\n")
    print("| size | engine | median s | IQR s | Mpx/s | NumPy's time / its time |")
    print("|---|---|---|---|---|---|")
    results = []
    for size in arguments.sizes:
        seconds = time_engines(arguments.model, size, arguments.repeats)
        for name, runs in seconds.items():
            low, median, high = np.percentile(runs, [25, 50, 75])
            ratio = float(np.median(seconds["numpy"]) / median)
            results.append({"size": size, "engine": name, "seconds": runs})
            print(
                f"| {size} | {name} | {median:.3f} | {high - low:.3f} "
                f"| {size * size / median / 1e6:.2f} | {ratio:.2f} |",
                flush=True,
            )
    if arguments.json:
        arguments.json.write_text(json.dumps({"facts": facts, "results": results}, indent=2) + "\n")


if __name__ == "__main__":
    main()
