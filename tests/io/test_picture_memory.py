"""A colour picture takes at most 40 bytes of memory for each of its pixels, from file to file.

That holds beyond a constant base, also while progress is shown, and while the noise is estimated.
"""

from __future__ import annotations

import os
import pty
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from integrodiff.engines import get_engine

BYTES_PER_PIXEL = 40
SIZES = ((2000, 2400), (3000, 3600))
# The process says itself what it held: what its parent is told counts the parent's memory as well.
COMMAND = r"""
import pathlib, re
from integrodiff.cli import main
try:
    main()
finally:
    print(re.search(r"VmHWM:\s*(\d+) kB", pathlib.Path("/proc/self/status").read_text())[1])
"""


def peak_memory(source: Path, target: Path, *options: str, terminal: bool) -> int:
    """Denoise in another process; return its largest memory in bytes."""
    words = ["denoise", str(source), str(target), "--model", "iad-fast", "--engine", "native"]
    main, other = pty.openpty()
    with subprocess.Popen(
        [sys.executable, "-c", COMMAND, *words, *options],
        stdout=subprocess.PIPE,
        stderr=other if terminal else subprocess.DEVNULL,
        env={**os.environ, "TERM": "xterm"},
    ) as process:
        os.close(other)
        shown = _read_all(main) if terminal else b"100%"
        assert process.stdout is not None
        peak = int(process.stdout.read()) * 1024
    os.close(main)
    assert process.returncode == 0
    assert b"%" in shown
    return peak


def _read_all(descriptor: int) -> bytes:
    """Return what is written to a terminal until its other end is closed."""
    parts: list[bytes] = []
    while True:
        try:
            part = os.read(descriptor, 2**16)
        except OSError:  # the way in which Linux says so
            part = b""
        if not part:
            return b"".join(parts)
        parts.append(part)


@pytest.mark.long
@pytest.mark.parametrize(
    ("suffix", "options", "terminal"),
    [
        (".png", ("--sigma", "15"), False),
        (".jpg", ("--sigma", "15"), True),
        (".png", (), True),
    ],
    ids=["given", "progress", "estimated"],
)
def test_memory_of_a_colour_picture(
    tmp_path: Path, suffix: str, options: tuple[str, ...], terminal: bool
) -> None:
    if get_engine("native").unavailable() is not None:
        pytest.skip("needs the compiled engine")
    rng = np.random.default_rng(0)
    memory = []
    for height, width in SIZES:
        noisy = rng.normal(100, 15, (height, width, 3)).clip(0, 255).astype(np.uint8)
        source, target = tmp_path / f"{height}{suffix}", tmp_path / f"out{height}{suffix}"
        Image.fromarray(noisy).save(source)
        memory.append(peak_memory(source, target, *options, terminal=terminal))
    pixels = [height * width for height, width in SIZES]
    slope = (memory[1] - memory[0]) / (pixels[1] - pixels[0])
    assert slope <= BYTES_PER_PIXEL
