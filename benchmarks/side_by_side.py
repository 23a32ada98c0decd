"""Compare the speed and the results of two installations of the package, in turns.

::

    python benchmarks/side_by_side.py OLD/.venv/bin/python NEW/.venv/bin/python

Each installation runs in a child process of its own that stays alive; the children take turns, so
that a busy moment of the machine meets both. Prints the ratio of the times, old to new, taken
within each turn: its median and quartiles. Above 1, the second is faster. A model that was renamed
is given as ``OLD-NAME=NEW-NAME``.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np

_CHILD = """
import json, sys, time
import numpy as np
from skimage.data import camera
import integrodiff

image = camera().astype(np.float32)
image += np.float32(25) * np.random.default_rng(0).standard_normal(image.shape, dtype=np.float32)
from integrodiff.engines import ENGINES
processes = {}
for line in sys.stdin:
    model, threads, times, target = json.loads(line)
    if (model, threads) not in processes:
        evolution = integrodiff.load_model(model).evolution(25.0)
        processes[model, threads] = ENGINES["native"].prepare(evolution, threads=threads)
        processes[model, threads](image[None])
    process = processes[model, threads]
    start = time.perf_counter(), time.process_time()
    for _ in range(times):
        result = process(image[None])
    spent = time.perf_counter() - start[0], time.process_time() - start[1]
    if target:
        np.save(target, result)
    print(json.dumps([part / times for part in spent]), flush=True)
"""


class Installation:
    """A child process that times one installation."""

    def __init__(self, interpreter: str) -> None:
        # Not resolved: the link is what tells an environment from the Python it was made of.
        program = Path(interpreter).absolute()
        self._child: Any = subprocess.Popen(
            [program, "-c", _CHILD],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            cwd=program.parent,
            env={**os.environ, "OPENBLAS_NUM_THREADS": "1"},
        )

    def time(self, model: str, threads: int, times: int, target: str = "") -> list[float]:
        """Return seconds by the wall clock and of the processors, for one image."""
        self._child.stdin.write(json.dumps([model, threads, times, target]) + "\n")
        self._child.stdin.flush()
        return [float(part) for part in json.loads(self._child.stdout.readline())]

    def close(self) -> None:
        """End the child."""
        self._child.stdin.close()
        self._child.wait()


def main(arguments: list[str] | None = None) -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("old", help="Python interpreter of the first installation")
    parser.add_argument("new", help="Python interpreter of the second")
    parser.add_argument("--models", nargs="+", default=["iad", "iad-plus", "iad-fast"])
    parser.add_argument("--threads", nargs="+", type=int, default=[1, 2])
    parser.add_argument("--turns", type=int, default=25)
    options = parser.parse_args(arguments)
    both = [Installation(options.old), Installation(options.new)]
    print(
        "512 x 512, float32; milliseconds: median. Ratio of times, old to new: median (quartiles)"
    )
    for model in options.models:
        names = model.partition("=")[0], model.rpartition("=")[2]
        for threads in options.threads:
            with tempfile.TemporaryDirectory() as folder:
                files = [f"{folder}/{name}.npy" for name in ("old", "new")]
                for one, name, file in zip(both, names, files, strict=True):
                    one.time(name, threads, 1, file)
                apart = float(np.abs(np.subtract(*map(np.load, files))).max())
            turns = [
                [one.time(name, threads, 2) for one, name in zip(both, names, strict=True)]
                for _ in range(options.turns)
            ]
            print(f"{model}, threads: {threads}; largest difference {apart:.1e}", end="")
            for name, clock in (("wall", 0), ("processors", 1)):
                old, new = ([1e3 * turn[k][clock] for turn in turns] for k in (0, 1))
                ratios = [a / b for a, b in zip(old, new, strict=True)]
                low, middle, high = statistics.quantiles(ratios, n=4)
                print(
                    f"; {name} {statistics.median(old):.1f} -> {statistics.median(new):.1f} ms, "
                    f"ratio {middle:.3f} ({low:.3f} to {high:.3f})",
                    end="",
                )
            print(flush=True)
    for one in both:
        one.close()


if __name__ == "__main__":
    main(sys.argv[1:])
