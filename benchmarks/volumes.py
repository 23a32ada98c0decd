"""Speed and memory of volumes.

::

    python benchmarks/volumes.py [--sides 128 256] [--threads 1] [--model iad-plus] [--json FILE]
    python benchmarks/volumes.py --sides 128 256 512        # 512: 2 GB and some minutes

A float32 volume of noise is denoised in processes of its own: by the steps of the engine ``native``
alone, and by the whole call of `denoise` from array to array. Times are those of the processor, so
that a busy machine changes them little; with several threads, by the wall. Bytes per voxel are the
peak of the process less what it had before, with the volume; for the whole call they contain the
result. Aims are compared, and misses are named.
"""

from __future__ import annotations

import argparse
import json
import resource
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np

_SIGMA = 25.0
_LEAST_SPEED = 0.5  # megavoxels per second, on one thread
_MOST_BYTES = 16.0  # per voxel, of the engine
_MOST_GROWTH = 1.5  # of the cost per voxel
_MOST_MEMORY = 3.5e9  # of the whole process at 512 x 512 x 512


def peak_bytes() -> int:
    """Return the largest memory that this process had."""
    unit = 1 if sys.platform == "darwin" else 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit


def measure(side: int, threads: int, model: str, part: str) -> dict[str, Any]:
    """Run in a process of its own: its peak is that of this volume alone."""
    from integrodiff import denoise, load_model
    from integrodiff.engines import ENGINES
    from integrodiff.models import VOLUME_MODELS

    rng = np.random.default_rng(0)
    volume = np.empty((side, side, side), np.float32)
    for piece in volume:
        piece[...] = 128 + _SIGMA * rng.standard_normal(piece.shape, np.float32)
    loaded = load_model(VOLUME_MODELS.get(model, model))
    before = peak_bytes()
    clock = time.process_time if threads == 1 else time.perf_counter
    start = clock()
    held: object
    if part == "engine":
        evolution = loaded.evolution(_SIGMA, None, (1.0, 1.0, 1.0))
        state = ENGINES["native"].prepare(evolution, threads=threads).start(volume[None])
        state.advance()
        held = state
    else:
        arguments: dict[str, Any] = {"axes": "ZYX", "data_range": 255, "engine": "native"}
        held = denoise(volume, _SIGMA, model=loaded, threads=threads, **arguments)
    seconds = clock() - start
    del held
    return {
        "side": side,
        "part": part,
        "threads": threads,
        "seconds": seconds,
        "megavoxels_per_second": side**3 / seconds / 1e6,
        "bytes_per_voxel": (peak_bytes() - before) / side**3,
        "peak": peak_bytes(),
    }


def in_own_process(side: int, threads: int, model: str, part: str) -> dict[str, Any]:
    """Return the result of :func:`measure` from a new process."""
    words = [sys.executable, __file__, "--measure", str(side), str(threads), model, part]
    done = subprocess.run(words, check=True, stdout=subprocess.PIPE, text=True)
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def aims(rows: list[dict[str, Any]]) -> list[str]:
    """Compare with what was aimed at."""
    engine = [row for row in rows if row["part"] == "engine"]
    found = []

    def compare(what: str, value: float, limit: float, *, least: bool = False) -> None:
        met = value >= limit if least else value <= limit
        word = "met" if met else "**missed**"
        found.append(f"{what}: {value:.2f}, {'at least' if least else 'at most'} {limit:g}, {word}")

    for row in engine:
        compare(f"bytes per voxel at {row['side']}", row["bytes_per_voxel"], _MOST_BYTES)
        if row["threads"] == 1:
            compare(
                f"megavoxels per second at {row['side']}",
                row["megavoxels_per_second"],
                _LEAST_SPEED,
                least=True,
            )
    if len(engine) > 1:
        costs = [row["seconds"] / row["side"] ** 3 for row in engine]
        compare("growth of the cost per voxel", max(costs) / costs[0], _MOST_GROWTH)
    for row in rows:
        if row["part"] == "denoise" and row["side"] == 512:
            compare("GB of the whole process at 512", row["peak"] / 1e9, _MOST_MEMORY / 1e9)
    return found


def main(arguments: list[str] | None = None) -> None:
    """Measure and print."""
    words = sys.argv[1:] if arguments is None else arguments
    if words[:1] == ["--measure"]:
        side, threads, model, part = words[1:]
        print(json.dumps(measure(int(side), int(threads), model, part)))
        return
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--sides", nargs="+", type=int, default=[128, 256])
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--model", default="iad-plus")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args(words)
    print("| side | what | seconds | megavoxels per second | bytes per voxel | peak in MB |")
    print("|---|---|---|---|---|---|")
    rows = []
    for side in options.sides:
        for part in ("engine", "denoise"):
            row = in_own_process(side, options.threads, options.model, part)
            rows.append(row)
            print(
                f"| {side} | {part} | {row['seconds']:.2f} | {row['megavoxels_per_second']:.2f} | "
                f"{row['bytes_per_voxel']:.1f} | {row['peak'] / 1e6:.0f} |",
                flush=True,
            )
    print()
    for line in aims(rows):
        print(f"- {line}")
    if options.json is not None:
        options.json.write_text(json.dumps(rows, indent=2) + "\n")


if __name__ == "__main__":
    main()
