"""``--max-memory``: a volume in blocks of slices, from file to file."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from command_line import run
from image_writers import write_array

from integrodiff import denoise
from integrodiff.engines import ENGINES
from integrodiff.io import read_image

# A model whose large scales count, so that blocks differ from the whole.
SETTINGS = ("--sigma", 15, "--data-range", 255, "--engine", "native", "--model", "iad")
ARGUMENTS: dict[str, Any] = {
    "sigma": 15,
    "data_range": 255,
    "engine": "native",
    "axes": "ZYX",
    "model": "iad",
}


@pytest.mark.slow
@pytest.mark.skipif(ENGINES["native"].unavailable() is not None, reason="needs the engine native")
def test_blocks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("INTEGRODIFF_THREADS", "1")  # each takes memory of its own
    z, _, x = np.mgrid[:150, :16, :18]
    clean = 80.0 + 80 * ((x + z) % 20 > 9)
    volume = np.asarray(clean + np.random.default_rng(0).normal(0, 15, clean.shape), np.float32)
    write_array(tmp_path / "in.nii", volume, "ZYX")
    names = tmp_path / "in.nii", tmp_path / "out.nii"
    result = run("denoise", *names, "--max-memory", "18M", *SETTINGS)
    assert result.exit_code == 0, result.stderr
    found = read_image(names[1]).pixels
    np.testing.assert_array_equal(found, denoise(volume, max_memory="18M", **ARGUMENTS))
    whole = denoise(volume, **ARGUMENTS)
    assert 0 < np.abs(found - whole).max() < 0.05


@pytest.mark.slow
@pytest.mark.parametrize(("size", "message"), [("1M", "smallest blocks"), ("much", "--max-memory")])
def test_refused(tmp_path: Path, size: str, message: str) -> None:
    if ENGINES["native"].unavailable() is not None:
        pytest.skip("needs the engine native")
    write_array(tmp_path / "in.nii", np.zeros((80, 9, 9), np.float32), "ZYX")
    names = tmp_path / "in.nii", tmp_path / "out.nii"
    result = run("denoise", *names, "--max-memory", size, *SETTINGS)
    assert result.exit_code == 2
    assert message in " ".join(result.stderr.split())
    assert not names[1].exists()
