"""Draw the pictures of the README with the present models: ``python tools/readme_pictures.py``.

demo.png is what ``integrodiff demo`` writes. explanation.png is ``integrodiff explain`` of a part
of scikit-image's cameraman (CC0) with noise of standard deviation 30, reduced in size and colours.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np
from PIL import Image
from skimage.data import camera

IMAGES = Path(__file__).resolve().parents[1] / "docs" / "images"
PART = (slice(60, 284), slice(130, 354))
SIGMA = 30
WIDTH, COLOURS = 900, 256


def integrodiff(*arguments: object) -> None:
    """Run a command of the package."""
    subprocess.run([sys.executable, "-m", "integrodiff.cli", *map(str, arguments)], check=True)


def explanation(target: Path) -> None:
    """Add noise to the photograph, and draw how it is denoised."""
    clean = camera()[PART].astype(np.float64)
    noisy = clean + np.random.default_rng(0).normal(0, SIGMA, clean.shape)
    with tempfile.TemporaryDirectory() as folder:
        source, drawn = Path(folder) / "cameraman.png", Path(folder) / "explanation.png"
        Image.fromarray(np.rint(noisy).clip(0, 255).astype(np.uint8)).save(source)
        integrodiff("explain", source, "--sigma", SIGMA, "--output", drawn)
        picture = Image.open(drawn).convert("RGB")
        height = round(picture.height * WIDTH / picture.width)
        smaller = picture.resize((WIDTH, height), Image.Resampling.LANCZOS)
        reduced = smaller.quantize(
            COLOURS, Image.Quantize.MAXCOVERAGE, kmeans=1, dither=Image.Dither.NONE
        )
        reduced.save(target, optimize=True)


def main() -> None:
    """Draw both."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path, nargs="?", default=IMAGES)
    folder = parser.parse_args().folder
    integrodiff("demo", "--output", folder / "demo.png", "--overwrite")
    explanation(folder / "explanation.png")


if __name__ == "__main__":
    main()
