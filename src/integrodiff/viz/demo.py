"""Results and picture of ``integrodiff demo``."""

from __future__ import annotations

import time
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from integrodiff._denoise import denoise
from integrodiff.viz.metrics import psnr, ssim
from integrodiff.viz.sheet import Tile, magnified, sheet

_MODELS = ("pm", "eed", "iad", "iad-plus")
_PEAK = 255.0
_COLUMNS = 3
_ZOOM = 2
# Head, camera and tripod of the cameraman, with grass and sky: edges, texture and flat parts.
_SHOWN = (slice(60, 284), slice(130, 354))


@dataclass(frozen=True, kw_only=True)
class Panel:
    """One image of the comparison with its quality measures."""

    title: str
    image: NDArray[Any]
    psnr: float | None = None
    ssim: float | None = None
    model: str | None = None
    seconds: float | None = None


def panels(sigma: float, *, seed: int, engine: str) -> list[Panel]:
    """Return the clean and the noisy sample image, and the results of the models.

    Parameters
    ----------
    sigma : float
        Standard deviation of the added noise; noisy values are not clipped.
    seed : int
        Seed of the noise.
    engine : str
        Compute backend.
    """
    from skimage.data import camera

    clean = camera().astype(np.float32)
    noise = np.random.default_rng(seed).normal(0, sigma, clean.shape)
    noisy = (clean + noise).astype(np.float32)
    # Warm-up, so that the times exclude one-time work such as importing PyTorch.
    denoise(noisy[:16, :16], sigma, model="pm", data_range=_PEAK, engine=engine)
    results = [Panel(title="clean", image=clean), _measured("noisy", noisy, clean)]
    for name in _MODELS:
        start = time.perf_counter()
        result = denoise(noisy, sigma, model=name, data_range=_PEAK, engine=engine)
        seconds = time.perf_counter() - start
        results.append(replace(_measured(name.upper(), result, clean), model=name, seconds=seconds))
    return results


def comparison(results: list[Panel]) -> NDArray[np.uint8]:
    """Return all panels on one white sheet, each with a label; 8-bit grey."""
    tiles = []
    for panel in results:
        shown = np.rint(panel.image[_SHOWN]).clip(0, _PEAK).astype(np.uint8)
        quality = "" if panel.psnr is None else f"{panel.psnr:.2f} dB"
        tiles.append(Tile(magnified(shown, _ZOOM), panel.title, quality))
    return sheet([tiles[i : i + _COLUMNS] for i in range(0, len(tiles), _COLUMNS)])


def _measured(title: str, image: NDArray[Any], clean: NDArray[Any]) -> Panel:
    """Return the panel of an image with its PSNR and SSIM."""
    return Panel(title=title, image=image, psnr=psnr(image, clean), ssim=ssim(image, clean))
