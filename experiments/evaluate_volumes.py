"""Print PSNR and time of models, and of peers, on a volume with Gaussian noise.

    python experiments/evaluate_volumes.py VOLUME [--percent 5 11 19] [--models ...] [--crop]
                                           [--slices] [--peers] [--every K] [--estimated]

VOLUME is BrainWeb's ``brain_slices.mat``, which comes with the source package of bm4d, a NIfTI file
or a NumPy file; or ``ct`` or ``tomogram``, made by ``volume_phantoms.py`` with ``--side`` voxels
along each axis. Noise is in percent of the maximum, ``default_rng(0)``, not clipped. It is white,
but that of ``ct`` has the spectrum of filtered back-projection in each slice, and of ``tomogram``
neither volume nor noise has what tilts of up to 60 degrees miss. ``--crop``
takes 140 x 180 x 40 voxels of the middle. The model sees the noise level and the maximum as data
range. ``--slices`` adds results slice by slice, along the last axis; ``--every K`` takes only every
K-th of these slices, with K times the spacing, and adds results as if spacing were equal.
``--estimated`` adds results for which the noise is not known, but estimated.
``--peers`` adds total variation and NL-means of scikit-image, tuned on the volume itself, and BM4D
if it is installed. Seconds are CPU time.
"""

from __future__ import annotations

import argparse
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from integrodiff import VolumeModelWarning, denoise, load_model
from volume_phantoms import EVALUATED, ramp_noise, without_wedge

Floats = NDArray[np.float32]


def read(path: Path, side: int = 96) -> tuple[Floats, tuple[float, ...]]:
    """Return a volume and its spacing."""
    if path.name in EVALUATED:
        made = EVALUATED[path.name](0, side)
        if path.name == "tomogram":
            made = without_wedge(made)
        return made.astype(np.float32), (1.0, 1.0, 1.0)
    if path.suffix == ".mat":
        from scipy.io import loadmat

        return np.asarray(loadmat(path)["brain_slices"], np.float32), (1.0, 1.0, 1.0)
    if path.suffix == ".npy":
        return np.load(path).astype(np.float32), (1.0, 1.0, 1.0)
    import nibabel

    image: Any = nibabel.load(path)
    zooms = tuple(float(zoom) for zoom in image.header.get_zooms()[:3])
    return np.asarray(image.dataobj, np.float32), zooms


def noise_of(name: str, shape: tuple[int, ...], sigma: float) -> NDArray[np.float64]:
    """Return the noise of a volume."""
    rng = np.random.default_rng(0)
    if name == "ct":
        return ramp_noise(rng, shape, sigma)
    noise = rng.normal(0, sigma, shape)
    if name == "tomogram":
        noise = without_wedge(noise)
        noise *= sigma / noise.std()
    return noise


def middle(volume: Floats, shape: tuple[int, ...] = (140, 180, 40)) -> Floats:
    """Return the part in the middle."""
    starts = [(size - wanted) // 2 for size, wanted in zip(volume.shape, shape, strict=True)]
    pieces = zip(starts, shape, strict=True)
    return volume[tuple(slice(max(start, 0), max(start, 0) + size) for start, size in pieces)]


def tuned(
    candidates: list[Callable[[], Floats]], clean: Floats, peak: float
) -> tuple[float, float]:
    """Return the best PSNR of several settings, and the CPU seconds of one."""
    results = []
    for candidate in candidates:
        began = time.process_time()
        found = candidate()
        results.append((psnr(found, clean, peak), time.process_time() - began))
    return max(results)


def peers(
    noisy: Floats, clean: Floats, sigma: float, peak: float
) -> dict[str, tuple[float, float]]:
    """Return PSNR and seconds of each peer."""
    from skimage.restoration import denoise_nl_means, denoise_tv_chambolle

    scaled = noisy / peak
    found = {
        "TV": tuned(
            [
                lambda w=w: denoise_tv_chambolle(scaled, weight=w * sigma / peak) * peak  # type: ignore[misc]
                for w in (0.6, 0.8, 1.0, 1.3, 1.7)
            ],
            clean,
            peak,
        ),
        "NL-means": tuned(
            [
                lambda h=h: (
                    denoise_nl_means(  # type: ignore[misc]
                        scaled,
                        patch_size=3,
                        patch_distance=4,
                        h=h * sigma / peak,
                        sigma=sigma / peak,
                    )
                    * peak
                )
                for h in (0.5, 0.7, 0.9)
            ],
            clean,
            peak,
        ),
    }
    try:
        from bm4d import bm4d  # type: ignore[import-not-found]
    except ImportError:
        return found
    began = time.process_time()
    result = bm4d(noisy.astype(np.float64), sigma)
    found["BM4D"] = psnr(result, clean, peak), time.process_time() - began
    return found


def psnr(result: Floats, clean: Floats, peak: float) -> float:
    """Return the PSNR in dB."""
    error = np.mean((result.astype(np.float64) - clean) ** 2)
    return float(10 * np.log10(peak**2 / error))


def main() -> None:
    """Print a table."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("volume", type=Path)
    parser.add_argument("--percent", nargs="+", type=float, default=[5.0, 11.0, 19.0])
    parser.add_argument("--models", nargs="+", default=["iad-plus-volume"])
    parser.add_argument("--crop", action="store_true")
    parser.add_argument("--slices", action="store_true")
    parser.add_argument("--peers", action="store_true")
    parser.add_argument("--estimated", action="store_true")
    parser.add_argument("--side", type=int, default=96)
    parser.add_argument("--every", type=int, default=1, metavar="K")
    arguments = parser.parse_args()
    clean, spacing = read(arguments.volume, arguments.side)
    if arguments.crop:
        clean = middle(clean)
    clean = np.ascontiguousarray(clean[..., :: arguments.every])
    spacing = (*spacing[:2], arguments.every * spacing[2])
    peak = float(clean.max())
    print(f"{arguments.volume.name}, shape {clean.shape}, spacing {spacing}")
    print("| percent | noisy | " + "method | PSNR | CPU s |")
    print("|---|---|---|---|---|")
    for percent in arguments.percent:
        sigma = percent / 100 * peak
        noise = noise_of(arguments.volume.name, clean.shape, sigma)
        noisy = (clean + noise).astype(np.float32)
        rows: dict[str, tuple[float, float]] = {}
        ways = {"": spacing} | ({", equal spacing": (1.0,) * 3} if arguments.every > 1 else {})
        for name in arguments.models:
            for words, distances in ways.items():
                began = time.process_time()
                with warnings.catch_warnings():
                    warnings.simplefilter("ignore", VolumeModelWarning)
                    result = denoise(
                        noisy,
                        sigma,
                        axes="ZYX",
                        spacing=distances,
                        data_range=peak,
                        model=load_model(name),
                        threads=1,
                    )
                rows[name + words] = psnr(result, clean, peak), time.process_time() - began
        if arguments.estimated:
            began = time.process_time()
            result = denoise(noisy, axes="ZYX", spacing=spacing, data_range=peak, threads=1)
            rows["iad-plus-volume, noise estimated"] = (
                psnr(result, clean, peak),
                time.process_time() - began,
            )
        if arguments.slices:
            began = time.process_time()
            result = denoise(noisy, sigma, axes="YXQ", data_range=peak, threads=1)
            rows["iad-plus by slice"] = psnr(result, clean, peak), time.process_time() - began
        if arguments.peers:
            rows |= peers(noisy, clean, sigma, peak)
        for name, (value, seconds) in rows.items():
            noisy_psnr = psnr(noisy, clean, peak)
            print(f"| {percent:g} | {noisy_psnr:.2f} | {name} | {value:.2f} | {seconds:.1f} |")


if __name__ == "__main__":
    main()
