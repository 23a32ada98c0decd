"""What the Anscombe transform brings for photon counts, on crops of BSDS500.

    python experiments/photon_noise.py --data FOLDER --json results/photon-noise.json
        [--model NAME] [--count N] [--split train]

The crops are scaled to a peak of 1, 4, 10, 30 and 120 photons; a generator with seed (peak, k)
draws the counts of image k. The last columns are a detector with gain 2, offset 100 and readout
noise 6 at a peak of 30 photons. PSNR is in dB for that peak. ``plain`` is Gaussian denoising with
the standard deviation of all noise, ``estimated`` finds gain and readout noise from the image.
"""

from __future__ import annotations

import argparse
import warnings
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from denoisers import Image
from integrodiff import NoiseLevelWarning, PoissonGaussian, denoise
from integrodiff._default_model import DEFAULT_MODEL
from integrodiff.learning import bsds500
from integrodiff.paper._results import Result, decibel, markdown_table
from peers import Results

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
        error = np.mean((photons - clean.astype(np.float64) * peak / 255) ** 2)
        values.append(10 * np.log10(peak**2 / error))
    return decibel(float(np.mean(values)))


def table(rows: dict[str, Result]) -> str:
    """Return all numbers as a Markdown table."""
    lines = [[name, *(f"{rows[name]['psnr'][c]:.2f}" for c in DETECTORS)] for name in WAYS]
    return markdown_table(["PSNR [dB]", *DETECTORS], lines)


def main() -> None:
    """Measure what the file does not have yet, and print it."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--data", type=Path, help="folder that holds bsds500")
    parser.add_argument("--json", type=Path, default=Path("results/photon-noise.json"))
    parser.add_argument("--model", default=DEFAULT_MODEL)
    parser.add_argument("--split", default="train", choices=["train", "test"])
    parser.add_argument("--count", type=int, default=50, help="only the first crops")
    arguments = parser.parse_args()
    images = bsds500(arguments.split, arguments.data, arguments.count)
    what = "PSNR in dB of denoised photon counts"
    settings = {"images": len(images), "source": images.source}
    results = Results(arguments.json, what, settings)
    # Few photons are strong noise, which the plain way has to be told of.
    warnings.simplefilter("ignore", NoiseLevelWarning)
    for name in WAYS:
        row = results.row(name, {"identity": arguments.model, "psnr": {}})
        for column in DETECTORS:
            if column not in row["psnr"]:
                row["psnr"][column] = mean_psnr(name, list(images.pixels), column, arguments.model)
                results.save()
    print(table(results.rows))


if __name__ == "__main__":
    main()
