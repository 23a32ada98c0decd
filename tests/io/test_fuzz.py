"""Small versions of the fuzzer and of the kills, which CONTRIBUTING.md names."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from integrodiff.io import FORMATS

FUZZ = Path(__file__).parents[2] / "fuzz"


@pytest.mark.long
@pytest.mark.parametrize(
    ("script", "options"),
    [
        ("readers.py", ["--count", "500", "--seed", "99"]),
        ("kill.py", ["--count", "3", "--pages", "20"]),
        ("kill_batch.py", ["--files", "20", "--hostile", "11", "--kills", "1", "--jobs", "1"]),
        ("models.py", ["--count", "200", "--seed", "99"]),
    ],
)
def test_script_finds_nothing(script: str, options: list[str]) -> None:
    done = subprocess.run(
        [sys.executable, FUZZ / script, *options], capture_output=True, text=True, timeout=300
    )
    assert done.returncode == 0, done.stdout + done.stderr
    if script == "readers.py":
        assert "500 files, 0 findings" in done.stdout
        formats = sorted(form.name for form in FORMATS if form.missing is None)
        lines = done.stdout.splitlines()[: len(formats)]
        assert [line[:12].strip() for line in lines] == formats
        assert all("refused" in line for line in lines)
        # Hardly any damage of these two is not noticed.
        others = [line for line in lines if not line.startswith(("AVIF", "HEIC"))]
        assert all("read" in line for line in others)
    elif script == "models.py":
        assert "200 files, 0 findings" in done.stdout
        assert "refused as a file" in done.stdout
        assert "denoised" in done.stdout
    elif script == "kill_batch.py":
        assert done.stdout.count("killed 1 times, 0 findings") == 4
    else:
        lines = [line for line in done.stdout.splitlines() if "too late" not in line]
        assert sum(int(line.split()[0]) for line in lines) == 3
        assert "while writing" in done.stdout
