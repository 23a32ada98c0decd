"""What the Anscombe transform brings for photon counts, on crops of BSDS500.

    python experiments/photon_noise.py --data FOLDER --json results/photon-noise.json
        [--model NAME] [--count N] [--split train]

The crops are scaled to a peak of 1, 4, 10, 30 and 120 photons; a generator with seed (peak, k)
draws the counts of image k. The last columns are a detector with gain 2, offset 100 and readout
noise 6 at a peak of 30 photons. PSNR is in dB for that peak. ``plain`` is Gaussian denoising with
the standard deviation of all noise, ``estimated`` finds gain and readout noise from the image.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from crop_table import print_table
from denoisers import Image
from integrodiff import PoissonGaussian, denoise
from integrodiff.reproduction._results import decibel
from integrodiff.viz.metrics import psnr

Floats: TypeAlias = NDArray[np.floating[Any]]

DETECTORS: dict[str, tuple[int, PoissonGaussian]] = {
    **{f"peak {peak}": (peak, PoissonGaussian()) for peak in (1, 4, 10, 30, 120)},
    "detector, peak 30": (30, PoissonGaussian(gain=2, offset=100, readout=6)),
}


def photographed(clean: Image, index: int, peak: int, detector: PoissonGaussian) -> Floats:
    """Return what the detector makes of an image of that many photons at grey value 255."""
    rng = np.random.default_rng((peak, index))
    counts = rng.poisson(clean.astype(np.float64) * peak / 255)
    readout = rng.normal(0, detector.readout, counts.shape)
    return detector.gain * counts + detector.offset + readout


def _plain(image: Floats, peak: int, detector: PoissonGaussian, model: str) -> Floats:
    sigma = float(np.sqrt(detector.variance(image).mean()))
    return denoise(image, sigma, model=model, data_range=detector.gain * peak)


def _stabilised(image: Floats, peak: int, detector: PoissonGaussian, model: str) -> Floats:
    return denoise(image, model=model, noise=detector)


def _estimated(image: Floats, peak: int, detector: PoissonGaussian, model: str) -> Floats:
    return denoise(image, model=model, noise="poisson-gaussian")


WAYS: dict[str, Callable[[Floats, int, PoissonGaussian, str], Floats]] = {
    "noisy": lambda image, *_: image,
    "plain": _plain,
    "Anscombe, known": _stabilised,
    "Anscombe, estimated": _estimated,
}


def mean_psnr(name: str, images: Sequence[Image], column: str, model: str) -> float:
    """Return the mean PSNR of one way for one detector."""
    peak, detector = DETECTORS[column]
    values = []
    for k, clean in enumerate(images):
        result = WAYS[name](photographed(clean, k, peak, detector), peak, detector, model)
        photons = (result - detector.offset) / detector.gain
        values.append(psnr(photons, clean.astype(np.float64) * peak / 255, data_range=peak))
    return decibel(float(np.mean(values)))


if __name__ == "__main__":
    print_table(
        __doc__ or "",
        "results/photon-noise.json",
        "PSNR in dB of denoised photon counts",
        WAYS,
        list(DETECTORS),
        mean_psnr,
    )
