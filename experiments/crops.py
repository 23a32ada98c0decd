"""The crops and the noise that all experiments share.

Images are sorted by their number. Image k becomes grey by Pillow's conversion to ``L``; its crop
of 256 x 256 pixels starts where a generator with seed k says. The noise of image k at level s
comes from a generator with seed (s, k) and is never clipped.
"""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from PIL import Image

SIZE = 256
LEVELS = (10, 20, 30, 40, 50, 60)


def data_folder(given: Path | None = None) -> Path:
    """Return the folder that holds ``bsds500``, given or named by ``INTEGRODIFF_DATA``."""
    named = given or os.environ.get("INTEGRODIFF_DATA")
    if not named:
        raise SystemExit("name the folder that holds bsds500 by --data or by INTEGRODIFF_DATA")
    folder = Path(named)
    if not (folder / "bsds500" / "images").is_dir():
        raise SystemExit(f"there is no bsds500/images in {folder}")
    return folder


def load_crops(folder: Path, split: str, count: int | None = None) -> list[NDArray[np.float32]]:
    """Return the first ``count`` crops (all, if not given) of one split of BSDS500."""
    paths = sorted(
        (folder / "bsds500" / "images" / split).glob("*.jpg"), key=lambda path: int(path.stem)
    )
    crops = []
    for k, path in enumerate(paths[:count]):
        with Image.open(path) as picture:
            grey = np.asarray(picture.convert("L"), np.float32)
        rng = np.random.default_rng(k)
        y = int(rng.integers(0, grey.shape[0] - SIZE + 1))
        x = int(rng.integers(0, grey.shape[1] - SIZE + 1))
        crops.append(grey[y : y + SIZE, x : x + SIZE])
    return crops


def add_noise(crop: NDArray[np.float32], level: int, k: int) -> NDArray[np.float32]:
    """Return crop k with the noise that belongs to it at this level."""
    noise = np.random.default_rng((level, k)).normal(0, level, crop.shape)
    return (crop + noise).astype(np.float32)


def psnr(image: NDArray[np.float32], clean: NDArray[np.float32]) -> float:
    """Peak signal-to-noise ratio in dB for a peak of 255, nothing clipped."""
    error = np.mean((image.astype(np.float64) - clean) ** 2)
    return float(10 * np.log10(255**2 / error))
