"""Sample images of the page: one in the public domain, by scikit-image, others from formulas."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import tifffile
from numpy.typing import NDArray
from PIL import Image

SEED = 7


def write_samples(folder: Path) -> None:
    """Write the images, a thumbnail of each, and a list of them."""
    from skimage.data import astronaut

    rng = np.random.default_rng(SEED)
    portrait = astronaut()[:384, 64:448]
    noisy = np.clip(np.rint(portrait + rng.normal(0, 25, portrait.shape)), 0, 255)
    cells = 1200 + 9000 * fibres(360, 480) + rng.normal(0, 900, (360, 480))
    disc = phantom(400)
    ct = disc + rng.normal(0, 0.06, disc.shape)
    Image.fromarray(noisy.astype(np.uint8)).save(folder / "portrait.png", optimize=True)
    tifffile.imwrite(folder / "fibres.tif", np.clip(np.rint(cells), 0, 65535).astype(np.uint16))
    tifffile.imwrite(folder / "phantom.tif", ct.astype(np.float32))
    clean = np.rint(255 * fibres(320, 400, seed=3)).astype(np.uint8)
    Image.fromarray(clean).save(folder / "clean.png", optimize=True)
    described = [
        ("portrait.png", "Portrait", "8 bits, colour, noise 25", noisy),
        ("fibres.tif", "Fibres", "16-bit TIFF, generated", cells),
        ("phantom.tif", "Phantom", "floating-point TIFF, generated", ct),
        ("clean.png", "Clean fibres", "add noise and measure", clean),
    ]
    entries = []
    for name, title, about, image in described:
        thumbnail = f"{Path(name).stem}-thumbnail.png"
        save_thumbnail(folder / thumbnail, image)
        entries.append({"file": name, "title": title, "about": about, "thumbnail": thumbnail})
    (folder / "samples.json").write_text(json.dumps(entries))


def fibres(height: int, width: int, seed: int = 1) -> NDArray[np.float64]:
    """Return curved lines of several widths, from 0 to 1."""
    rng = np.random.default_rng(seed)
    y, x = np.mgrid[:height, :width].astype(np.float64)
    image = np.zeros((height, width))
    for _ in range(26):
        angle, offset = rng.uniform(0, np.pi), rng.uniform(-0.6, 0.6) * width
        across = (x - width / 2) * np.sin(angle) - (y - height / 2) * np.cos(angle)
        along = (x - width / 2) * np.cos(angle) + (y - height / 2) * np.sin(angle)
        bend = rng.uniform(5, 30) * np.sin(along / rng.uniform(40, 120) + rng.uniform(0, 6))
        thickness = rng.uniform(1.5, 7)
        line = np.exp(-(((across - offset + bend) / thickness) ** 4))
        image = np.maximum(image, rng.uniform(0.35, 1) * line)
    return np.asarray(0.1 + 0.85 * image)


def phantom(size: int) -> NDArray[np.float64]:
    """Return ellipses as of a head in a scanner."""
    y, x = (np.mgrid[:size, :size] - size / 2 + 0.5) / (size / 2)
    image = np.zeros((size, size))
    for value, cx, cy, a, b, degrees in (
        (1.0, 0, 0, 0.69, 0.92, 0),
        (-0.8, 0, 0.02, 0.66, 0.87, 0),
        (-0.1, 0.22, 0, 0.11, 0.31, -18),
        (-0.1, -0.22, 0, 0.16, 0.41, 18),
        (0.15, 0, -0.35, 0.21, 0.25, 0),
        (0.2, 0, 0.1, 0.046, 0.046, 0),
        (0.2, -0.08, 0.6, 0.046, 0.023, 0),
        (0.2, 0.06, 0.6, 0.023, 0.046, 0),
        (0.15, 0.3, 0.55, 0.1, 0.1, 0),
    ):
        angle = np.deg2rad(degrees)
        u = (x - cx) * np.cos(angle) + (y - cy) * np.sin(angle)
        v = -(x - cx) * np.sin(angle) + (y - cy) * np.cos(angle)
        image += value * ((u / a) ** 2 + (v / b) ** 2 <= 1)
    return image


def save_thumbnail(path: Path, image: NDArray[np.floating] | NDArray[np.uint8]) -> None:
    """Write a small picture of an image, from its smallest to its largest value."""
    values = np.asarray(image, np.float64)
    low, high = np.percentile(values, (0.5, 99.5))
    shown = np.clip(255 * (values - low) / (high - low), 0, 255).astype(np.uint8)
    picture = Image.fromarray(shown)
    picture.thumbnail((220, 160))
    picture.quantize(64).save(path, optimize=True)
