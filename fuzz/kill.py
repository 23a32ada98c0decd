"""Kill the command line at random moments, and look at what it leaves.

    python fuzz/kill.py --count 20

Each time a stack is denoised in a process of its own, which gets SIGKILL somewhere between the
moment it begins to write and its end, or before in one of eight cases. The output must be absent,
or what it was before, or complete. A run that was over before the kill does not count.
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


def wait_for_writing(process: subprocess.Popen[bytes], folder: Path) -> float:
    """Return when the program began to write: its file under a temporary name is there."""
    while process.poll() is None and not list(folder.glob(".*.part*")):
        time.sleep(0.001)
    return time.perf_counter()


def kill_once(
    source: Path, target: Path, result: dict[str, bytes], after: float | None
) -> tuple[str, str]:
    """Kill one run so many seconds after it began to write, or before.

    Returns
    -------
    moment, ending : str
        When the kill hit, and what was left; anything half-written raises an error.
    """
    before = content(target)
    process = start(source, target)
    if after is None:
        time.sleep(0.2)
        moment = "before writing"
    else:
        wait_for_writing(process, target.parent)
        time.sleep(after)
        moment = "while writing"
    if process.poll() is not None:
        moment = "too late"
    process.kill()
    process.wait()
    for part in target.parent.glob(".*.part*"):  # so that the next run's is seen
        shutil.rmtree(part) if part.is_dir() else part.unlink()
    left = content(target)
    if left == result and left != before:
        return moment, "complete"
    if left == before:
        return moment, "as before" if before is not None else "absent"
    raise RuntimeError(f"{target.name} is half-written, killed {moment}, after {after} s")


def main() -> None:
    """Kill and report."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--count", type=int, default=20, help="number of kills")
    parser.add_argument("--pages", type=int, default=40, help="length of the stack")
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    rng = np.random.default_rng(arguments.seed)
    endings: collections.Counter[tuple[str, str]] = collections.Counter()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        inputs = write_inputs(folder, arguments.pages)
        results, seconds = {}, {}
        for source in inputs:
            target = folder / f"reference{source.suffix}"
            process = start(source, target)
            begin = wait_for_writing(process, folder)
            if process.wait() != 0:
                raise RuntimeError(f"{source.name} cannot be denoised")
            seconds[source] = time.perf_counter() - begin
            found = content(target) or {}
            results[source] = {k.replace("reference", "out"): v for k, v in found.items()}
        attempts = hits = 0
        while hits < arguments.count and attempts < 5 * arguments.count:
            source = inputs[attempts % len(inputs)]
            target = folder / f"out{source.suffix}"
            if target.suffix == ".zarr":  # folders are never replaced
                shutil.rmtree(target, ignore_errors=True)
            elif rng.random() < 0.5:
                target.write_bytes(b"precious")
            else:
                target.unlink(missing_ok=True)
            # The last part of a run, where the file gets its name, is hit more often.
            share = float(rng.choice([rng.uniform(0, 1), rng.uniform(0.8, 1)]))
            after = None if attempts % 8 == 7 else seconds[source] * share
            moment, ending = kill_once(source, target, results[source], after)
            endings[moment, ending] += 1
            attempts += 1
            hits += moment != "too late"
    if hits < arguments.count:
        raise SystemExit(f"only {hits} of {attempts} kills came in time")
    for (moment, ending), number in sorted(endings.items()):
        print(f"{number} killed {moment}: {ending}")


if __name__ == "__main__":
    main()
