"""The plugin in a whole window of napari on a virtual screen, opened by its manifest."""

from __future__ import annotations

import importlib.util
import os
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

ROOT = Path(__file__).parents[2]


@pytest.mark.long
def test_window_shows_the_panel_and_the_result(tmp_path: Path) -> None:
    """The script that draws the picture of the docs opens a sample and denoises it."""
    for name in ("napari", "PySide6"):
        if importlib.util.find_spec(name) is None:
            pytest.skip(f"{name} is not installed; pip install '.[test-napari]'")
    if shutil.which("Xvfb") is None:
        pytest.skip("Xvfb is not installed; apt-get install xvfb")
    environment = {name: value for name, value in os.environ.items() if name != "DISPLAY"}
    done = subprocess.run(
        [sys.executable, str(ROOT / "tools/napari_pictures.py"), str(tmp_path)],
        env=environment,
        capture_output=True,
        text=True,
        check=False,
        timeout=600,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    assert done.stdout.startswith("done; sigma "), done.stdout
    with Image.open(tmp_path / "napari.png") as image:
        pixels = np.asarray(image.convert("L"))
    assert min(pixels.shape) >= 600
    # The canvas has grey values of the images, and not one colour.
    assert pixels[200:600, 300:900].std() > 10
