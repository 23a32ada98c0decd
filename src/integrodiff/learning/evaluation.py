"""PSNR of models on clean images with noise of given levels."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from integrodiff.engines import get_engine
from integrodiff.learning.images import CleanImages, noise
from integrodiff.models import Model
from integrodiff.viz.metrics import psnr_of_error


def mean_psnr(
    model: Model,
    images: CleanImages,
    levels: Sequence[float],
    *,
    engine: str = "auto",
    exact: bool = True,
    batch: int = 4,
    callback: Callable[[int], object] | None = None,
) -> dict[float, float]:
    """Return the mean over the images of the PSNR in dB, for each noise level.

    Parameters
    ----------
    model : Model
        The denoiser.
    images : CleanImages
        The clean images; each gets the noise that belongs to it.
    levels : sequence of float
        Noise levels on the scale [0, 255].
    engine : str
        Compute backend, in float32.
    exact : bool
        Take no shortcuts.
    batch : int
        Images at a time.
    callback : callable, optional
        Called with the number of images done, after each batch.
    """
    result = {}
    for level in levels:
        psnr: list[float] = []
        for first in range(0, len(images), batch):
            part = images.part(first, first + batch)
            psnr += image_psnr(model, part, level, first=first, engine=engine, exact=exact)
            if callback is not None:
                callback(len(part))
        result[float(level)] = float(np.mean(psnr))
    return result


def image_psnr(
    model: Model,
    images: CleanImages,
    level: float,
    *,
    first: int = 0,
    engine: str = "auto",
    exact: bool = True,
) -> list[float]:
    """Return the PSNR in dB of each image, all of them denoised at once.

    Parameters
    ----------
    model, images, engine, exact
        As in :func:`mean_psnr`.
    level : float
        Noise level on the scale [0, 255].
    first : int
        Number of the first of these images in its set, which says what noise it gets.
    """
    clean = images.pixels
    noisy = clean + np.stack([noise(level, first + i, clean.shape[1:]) for i in range(len(clean))])
    evolution = model.evolution(level)
    denoised = get_engine(engine).evolve(noisy[:, None], evolution, exact=exact)[:, 0]
    error = np.mean((denoised.astype(np.float64) - clean) ** 2, axis=(1, 2))
    psnr: list[float] = psnr_of_error(error).tolist()
    return psnr
