"""Rician noise: magnitudes of a phantom in air, denoised as Gaussian and as Rician noise.

    python experiments/rician_noise.py

The phantom and its noise are generated. PSNR in dB for a range of 120, for the slice in the middle
and for the volume; levels are known, or estimated with the noise model.
"""

from __future__ import annotations

import argparse
import warnings
from typing import Any

import numpy as np
from numpy.typing import NDArray

from integrodiff import Denoiser, NoiseLevelWarning
from integrodiff.arrays import array_image

PEAK = 120.0
LEVELS = (5, 15, 30)


def phantom(slices: int, side: int) -> NDArray[np.float32]:
    """Return a head with a bright and a dark ball, in air."""
    z, y, x = np.mgrid[:slices, :side, :side].astype(np.float64)
    z, y, x = (z - slices / 2) / side, y / side - 0.5, x / side - 0.5
    head = np.sqrt((y / 0.42) ** 2 + (x / 0.34) ** 2 + (z / 0.4) ** 2) < 1
    bright = np.sqrt((y - 0.1) ** 2 + x**2 + z**2) < 0.13
    dark = np.sqrt((y + 0.16) ** 2 + (x - 0.04) ** 2 + z**2) < 0.09
    return np.asarray(60 * head + 60 * bright - 30 * dark, np.float32)


def magnitudes(signal: NDArray[np.float32], sigma: float) -> NDArray[np.float32]:
    """Return the magnitudes of complex numbers with noise in both parts."""
    parts = np.random.default_rng(0).normal(0, sigma, (2, *signal.shape))
    return np.asarray(np.hypot(signal + parts[0], parts[1]), np.float32)


def psnr(image: NDArray[Any], signal: NDArray[np.float32]) -> float:
    """Return the PSNR in dB."""
    return float(10 * np.log10(PEAK**2 / np.mean((image - signal) ** 2)))


def row(signal: NDArray[np.float32], sigma: float, axes: str) -> list[str]:
    """Return the numbers of one row."""
    noisy = magnitudes(signal, sigma)
    numbers = [psnr(noisy, signal), psnr(Denoiser(sigma, axes=axes)(noisy), signal)]
    numbers.append(psnr(Denoiser(sigma, axes=axes, noise="rician")(noisy), signal))
    blind = Denoiser(axes=axes, noise="rician")
    numbers.append(psnr(blind(noisy), signal))
    (channel,) = blind.pipeline(array_image(noisy, axes=axes)).resolved.channels
    return [*(f"{number:.2f}" for number in numbers), f"{channel.sigmas[0]:.2f}"]


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--slices", type=int, default=24)
    parser.add_argument("--side", type=int, default=120)
    arguments = parser.parse_args()
    warnings.simplefilter("ignore", NoiseLevelWarning)
    signal = phantom(arguments.slices, arguments.side)
    print("| | noisy | Gaussian, known | Rician, known | Rician, estimated | level found |")
    print("|---|---|---|---|---|---|")
    for name, part, axes in (("slice", signal[len(signal) // 2], "YX"), ("volume", signal, "ZYX")):
        for sigma in LEVELS:
            print(f"| {name}, s = {sigma} | {' | '.join(row(part, sigma, axes))} |", flush=True)


if __name__ == "__main__":
    main()
