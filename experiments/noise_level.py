"""How well noise levels are estimated, and what blind denoising loses by it.

    python experiments/noise_level.py --data FOLDER --json results/noise-level.json
        [--model NAME] [--count N]

FOLDER holds ``bsd68``. Estimators are compared on its images, on 64 x 64 crops of them, on images
of 8 bits, which are rounded and clipped, and on textures that come with scikit-image: the mean of
the relative error (bias), its standard deviation (spread) and its largest absolute value, in
per cent. Then the images are denoised with the noise level known and estimated.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from denoisers import Image
from frontier import BSD68_LEVELS, bsd68
from integrodiff import denoise, estimate_sigma
from integrodiff._default_model import DEFAULT_MODEL
from integrodiff.learning.images import noise
from integrodiff.reproduction._results import Result, decibel, markdown_table
from integrodiff.viz.metrics import psnr
from peers import Results

LEVELS = (5, 10, 15, 25, 40, 60)
TEXTURES = ("brick", "grass", "gravel")
SMALL = 64
Estimator = Callable[[NDArray[np.floating]], float]


def immerkaer(image: NDArray[np.floating]) -> float:
    """Return the estimate of Immerkaer (1996): the mean response to a mask without structure."""
    from scipy.signal import convolve2d

    line = np.array([1.0, -2.0, 1.0])
    response = convolve2d(image.astype(np.float64), np.outer(line, line), mode="valid")
    return float(np.sqrt(np.pi / 2) / 6 * np.abs(response).mean())


def wavelet(image: NDArray[np.floating]) -> float:
    """Return scikit-image's estimate, the median of the finest diagonal wavelet coefficients."""
    from skimage.restoration import estimate_sigma as of_wavelets

    return float(of_wavelets(image.astype(np.float64)))


def eigenvalues(image: NDArray[np.floating], side: int = 8) -> float:
    """Return the estimate of Chen, Zhu and Heng (2015), from all patches' principal components.

    The largest eigenvalues of the covariance are left out until the mean of the others is their
    median.
    """
    windows = np.lib.stride_tricks.sliding_window_view(image.astype(np.float64), (side, side))
    found = np.linalg.eigvalsh(np.cov(windows.reshape(-1, side * side), rowvar=False))
    for count in range(len(found), 1, -1):
        mean = found[:count].mean()
        if np.sum(found[:count] > mean) == np.sum(found[:count] < mean):
            return float(np.sqrt(mean))
    return float(np.sqrt(found[0]))


def ours(image: NDArray[np.floating]) -> float:
    """Return the estimate of the package."""
    return float(estimate_sigma(image))


ESTIMATORS: dict[str, Estimator] = {
    "Immerkaer": immerkaer,
    "scikit-image": wavelet,
    "Chen, Zhu, Heng": eigenvalues,
    "integrodiff": ours,
}


def errors(estimator: Estimator, images: Sequence[Image], level: float) -> Result:
    """Return bias, spread and the largest error in per cent."""
    relative = np.array(
        [
            100 * (estimator(clean + noise(level, k, clean.shape)) / level - 1)
            for k, clean in enumerate(images)
        ]
    )
    return {
        "bias": round(float(relative.mean()), 1),
        "spread": round(float(relative.std()), 1),
        "largest": round(float(np.abs(relative).max()), 1),
    }


def eight_bits(estimator: Estimator) -> Estimator:
    """Return the estimator for images that are rounded and clipped before it sees them."""
    return lambda image: estimator(np.clip(np.rint(image), 0, 255))


def textures() -> list[Image]:
    """Return the textures of scikit-image."""
    from skimage import data

    return [np.asarray(getattr(data, name)(), np.float32) for name in TEXTURES]


def compare_estimators(images: Sequence[Image], results: Results) -> None:
    """Fill the rows of all estimators."""
    small = [image[100 : 100 + SMALL, 100 : 100 + SMALL] for image in images]
    sets: Mapping[str, Sequence[Image]] = {
        "BSD68": images,
        "8 bits": images,
        "64 x 64": small,
        "textures": textures(),
    }
    for name, estimator in ESTIMATORS.items():
        row = results.row(name, {"identity": name})
        for kind, members in sets.items():
            asked = eight_bits(estimator) if kind == "8 bits" else estimator
            known = row.setdefault(kind, {})
            for level in LEVELS:
                if str(level) not in known:
                    known[str(level)] = errors(asked, members, level)
            results.save()


def compare_denoising(images: Sequence[Image], model: str, results: Results) -> None:
    """Fill the rows of denoising with the noise level known and estimated."""
    for name in ("known", "estimated"):
        row = results.row(f"denoising, {name}", {"identity": model, "psnr": {}})
        for level in BSD68_LEVELS:
            if str(level) in row["psnr"]:
                continue
            values = []
            for k, clean in enumerate(images):
                noisy = clean + noise(level, k, clean.shape)
                sigma = level if name == "known" else None
                values.append(psnr(denoise(noisy, sigma, model=model, data_range=255), clean))
            row["psnr"][str(level)] = decibel(sum(values) / len(values))
            results.save()


def tables(rows: Mapping[str, Result]) -> str:
    """Return all numbers as Markdown tables."""
    parts = []
    for kind in ("BSD68", "8 bits", "64 x 64", "textures"):
        lines = [
            [name, *(_text(rows[name][kind][str(level)]) for level in LEVELS)]
            for name in ESTIMATORS
        ]
        header = [f"{kind}: bias, spread (largest), %", *(f"s = {level}" for level in LEVELS)]
        parts.append(markdown_table(header, lines))
    known, blind = (rows[f"denoising, {name}"]["psnr"] for name in ("known", "estimated"))
    lines = [
        ["known", *(f"{known[str(s)]:.2f}" for s in BSD68_LEVELS)],
        ["estimated", *(f"{blind[str(s)]:.2f}" for s in BSD68_LEVELS)],
        ["difference", *(f"{blind[str(s)] - known[str(s)]:+.3f}" for s in BSD68_LEVELS)],
    ]
    parts.append(markdown_table(["noise level", *(f"s = {s}" for s in BSD68_LEVELS)], lines))
    return "\n".join(parts)


def _text(error: Result) -> str:
    return f"{error['bias']:+.1f}, {error['spread']:.1f} ({error['largest']:.0f})"


def main() -> None:
    """Measure what the file does not have yet, and print it."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--data", type=Path, help="folder that holds bsd68")
    parser.add_argument("--json", type=Path, default=Path("results/noise-level.json"))
    parser.add_argument("--model", default=DEFAULT_MODEL)
    parser.add_argument("--count", type=int, help="only the first images")
    arguments = parser.parse_args()
    images = bsd68(arguments.data, arguments.count)
    what = "Estimates of the noise level, and PSNR in dB of denoising with them, on BSD68"
    results = Results(arguments.json, what, {"images": len(images)})
    compare_estimators(images, results)
    compare_denoising(images, arguments.model, results)
    print(tables(results.rows))


if __name__ == "__main__":
    main()
