"""Show that a stack is denoised in the memory of a few pages, whatever its length.

    python experiments/stack_memory.py --gigabytes 2

Makes a multi-page TIFF of noisy 16-bit pages of 1024 x 1024 pixels, denoises it by the command line
in a process of its own, checks the result and prints the largest memory that the process held.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
import tifffile

from integrodiff._default_model import DEFAULT_MODEL

SIDE = 1024
SIGMA = 4000


def write_stack(path: Path, pages: int) -> None:
    """Write a stack of noisy ramps, page by page."""
    rng = np.random.default_rng(0)
    ramp = np.add.outer(np.arange(SIDE), np.arange(SIDE)) * 20.0
    noisy = [ramp + rng.normal(0, SIGMA, ramp.shape) for _ in range(4)]
    stored = [np.clip(np.rint(page), 0, 65535).astype(np.uint16) for page in noisy]
    with tifffile.TiffWriter(path, bigtiff=True) as writer:
        for number in range(pages):
            writer.write(np.roll(stored[number % 4], number, axis=1), metadata=None)


# The process says itself what it held: what its parent is told counts the parent's memory as well.
_COMMAND = """
import pathlib, re
from integrodiff.cli import main
try:
    main()
finally:
    print(re.search(r"VmHWM:\\s*(\\d+) kB", pathlib.Path("/proc/self/status").read_text())[1])
"""


def denoise(source: Path, target: Path, *options: str) -> int:
    """Denoise a file in another process (on Linux); return its largest memory in bytes."""
    words = ["denoise", str(source), str(target), *options]
    done = subprocess.run(
        [sys.executable, "-c", _COMMAND, *words], stdout=subprocess.PIPE, text=True, check=True
    )
    return int(done.stdout) * 1024


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--gigabytes", type=float, default=2.0, help="size of the stack")
    parser.add_argument("--limit", type=float, default=1.0, help="gigabytes of memory allowed")
    parser.add_argument("--model", default=DEFAULT_MODEL)
    parser.add_argument("--folder", type=Path, help="where there is room for two such files")
    arguments = parser.parse_args()
    pages = max(1, round(arguments.gigabytes * 1e9 / (2 * SIDE * SIDE)))
    with tempfile.TemporaryDirectory(dir=arguments.folder) as folder:
        source, target = Path(folder, "in.tif"), Path(folder, "out.tif")
        write_stack(source, pages)
        start = time.perf_counter()
        memory = denoise(source, target, "--sigma", str(SIGMA), "--model", arguments.model)
        seconds = time.perf_counter() - start
        check(source, target, pages)
        size = source.stat().st_size
    print(
        f"{pages} pages, {size / 1e9:.3f} GB, model {arguments.model}: largest memory "
        f"{memory / 1e9:.3f} GB, {seconds:.0f} s"
    )
    if memory > arguments.limit * 1e9:
        sys.exit(f"more than {arguments.limit:g} GB")


def check(source: Path, target: Path, pages: int) -> None:
    """Raise an error if a page is missing or was not denoised."""
    with tifffile.TiffFile(source) as old, tifffile.TiffFile(target) as new:
        if len(new.pages) != pages:
            raise RuntimeError(f"the result has {len(new.pages)} pages, not {pages}")
        for number in {0, pages // 2, pages - 1}:
            before, after = old.pages[number].asarray(), new.pages[number].asarray()
            if after.dtype != before.dtype or after.shape != before.shape:
                raise RuntimeError(f"page {number} has become {after.dtype} {after.shape}")
            rough, smooth = (np.abs(np.diff(page.astype(float))).mean() for page in (before, after))
            if not smooth < 0.5 * rough:
                raise RuntimeError(f"page {number} is not denoised")


if __name__ == "__main__":
    main()
