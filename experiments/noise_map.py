"""What a map of noise levels brings where the noise is not the same everywhere.

    python experiments/noise_map.py --data FOLDER --json results/noise-map.json
        [--model NAME] [--count N] [--split train]

Crops of BSDS500 with Gaussian noise whose level is a function of the place. ``one level`` is
denoising that is told the root mean square of the levels. ``several levels`` denoises the whole
image for eight levels and interpolates at each pixel between the two next to its own, which takes
eight times as long. ``map`` gives the levels to the model.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from crop_table import print_table
from denoisers import Image
from integrodiff import denoise
from integrodiff.learning.images import noise
from integrodiff.reproduction._results import decibel
from integrodiff.viz.metrics import psnr

Levels: TypeAlias = NDArray[np.float64]

_SEVERAL = 8


def _from_the_centre(y: Levels, x: Levels) -> Levels:
    return np.hypot(y - 0.5, x - 0.5)


MAPS: dict[str, Callable[[Levels, Levels], Levels]] = {
    "ramp, 10 to 50": lambda y, x: 10 * 5.0**x + 0 * y,
    "step, 10 and 40": lambda y, x: np.where(x < 0.5, 10.0, 40.0) + 0 * y,
    "rings, 12.5 to 50": lambda y, x: 25 * 2.0 ** np.cos(21 * _from_the_centre(y, x)),
    "lens, 15 to 60": lambda y, x: 15 * (1 + 6 * _from_the_centre(y, x) ** 2),
}
"""Noise levels by the place, rows and columns from zero to one."""


def levels_of(name: str, shape: tuple[int, ...]) -> Levels:
    """Return the noise level at each pixel."""
    y, x = (np.linspace(0, 1, size) for size in shape)
    return MAPS[name](y[:, None], x[None])


def _one_level(image: Image, levels: Levels, model: str) -> Image:
    sigma = float(np.sqrt(np.mean(levels**2)))
    return denoise(image, sigma, model=model, data_range=255)


def _several_levels(image: Image, levels: Levels, model: str) -> Image:
    known = np.geomspace(levels.min(), levels.max(), _SEVERAL)
    places = np.interp(np.log(levels), np.log(known), np.arange(_SEVERAL))
    result = np.zeros_like(image)
    for k, sigma in enumerate(known):
        share = np.clip(1 - np.abs(places - k), 0, 1).astype(image.dtype)
        result += share * denoise(image, float(sigma), model=model, data_range=255)
    return result


def _map(image: Image, levels: Levels, model: str) -> Image:
    return denoise(image, levels, model=model, data_range=255)


WAYS: dict[str, Callable[[Image, Levels, str], Image]] = {
    "noisy": lambda image, *_: image,
    "one level": _one_level,
    "several levels": _several_levels,
    "map": _map,
}


def mean_psnr(way: str, images: Sequence[Image], name: str, model: str) -> float:
    """Return the mean PSNR of one way with one map."""
    values = []
    for k, clean in enumerate(images):
        levels = levels_of(name, clean.shape)
        noisy = clean + levels.astype(np.float32) * noise(1.0, k, clean.shape)
        values.append(psnr(WAYS[way](noisy, levels, model), clean))
    return decibel(sum(values) / len(values))


if __name__ == "__main__":
    print_table(
        __doc__ or "",
        "results/noise-map.json",
        "PSNR in dB with noise of different levels",
        WAYS,
        list(MAPS),
        mean_psnr,
    )
