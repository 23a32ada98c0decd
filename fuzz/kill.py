"""Kill the command line at random moments, and look at what it leaves.

    python fuzz/kill.py --count 20

Each time a stack is denoised in a process of its own, which gets SIGKILL somewhere between its
start and its end. The output must be absent, or what it was before, or complete.
"""

from __future__ import annotations

import argparse
import collections
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
import tifffile
import zarr

SIGMA = 4000


def write_inputs(folder: Path, pages: int) -> list[Path]:
    """Write the same noisy stack in formats that are written page by page."""
    rng = np.random.default_rng(0)
    stack = np.clip(rng.normal(30000, SIGMA, (pages, 256, 256)), 0, 65535).astype(np.uint16)
    tifffile.imwrite(folder / "stack.tif", stack, photometric="minisblack", compression="zlib")
    np.save(folder / "stack.npy", stack)
    zarr.create_array(folder / "stack.zarr", data=stack, chunks=(1, 256, 256))
    return [folder / "stack.tif", folder / "stack.npy", folder / "stack.zarr"]


def content(path: Path) -> dict[str, bytes] | None:
    """Return the bytes of a file, or of all files in a folder, or None if there is nothing."""
    if not path.exists():
        return None
    files = [path] if path.is_file() else sorted(p for p in path.rglob("*") if p.is_file())
    return {str(file.relative_to(path.parent)): file.read_bytes() for file in files}


def start(source: Path, target: Path) -> subprocess.Popen[bytes]:
    """Start to denoise."""
    words = ["denoise", source, target, "--sigma", SIGMA, "--quiet", "--overwrite"]
    return subprocess.Popen([sys.executable, "-m", "integrodiff.cli", *map(str, words)])


def kill_once(source: Path, target: Path, result: dict[str, bytes], after: float) -> str:
    """Kill one run; return what was left, or raise an error over something half-written."""
    before = content(target)
    process = start(source, target)
    time.sleep(after)
    process.kill()
    process.wait()
    left = content(target)
    if left == result and left != before:
        return "complete"
    if left == before:
        return "as before" if before is not None else "absent"
    raise RuntimeError(f"after {after:.3f} s {target.name} is half-written")


def main() -> None:
    """Kill and report."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--count", type=int, default=20, help="number of kills")
    parser.add_argument("--pages", type=int, default=40, help="length of the stack")
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    rng = np.random.default_rng(arguments.seed)
    endings: collections.Counter[str] = collections.Counter()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        inputs = write_inputs(folder, arguments.pages)
        results, seconds = {}, {}
        for source in inputs:
            begin = time.perf_counter()
            target = folder / f"reference{source.suffix}"
            if start(source, target).wait() != 0:
                raise RuntimeError(f"{source.name} cannot be denoised")
            seconds[source] = time.perf_counter() - begin
            found = content(target) or {}
            results[source] = {k.replace("reference", "out"): v for k, v in found.items()}
        for number in range(arguments.count):
            source = inputs[number % len(inputs)]
            target = folder / f"out{source.suffix}"
            if target.suffix == ".zarr":  # folders are never replaced
                shutil.rmtree(target, ignore_errors=True)
            elif rng.random() < 0.5:
                target.write_bytes(b"precious")
            else:
                target.unlink(missing_ok=True)
            # The last part of a run, where the file gets its name, is hit more often.
            after = seconds[source] * float(rng.choice([rng.uniform(0, 1), rng.uniform(0.9, 1.1)]))
            endings[kill_once(source, target, results[source], after)] += 1
    print(", ".join(f"{n} {ending}" for ending, n in sorted(endings.items())))


if __name__ == "__main__":
    main()
