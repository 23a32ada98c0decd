"""Images of which nothing is said: noise that is not white, and grey values of any range.

    python experiments/unknown_noise.py [--json results/unknown-noise.json]
        [--data FOLDER --split train|test --every N] [--rows NAME ...] [--again]

Photographs of scikit-image, or crops of BSDS500, with noise of level 20 that is white, blurred,
demosaiced or compressed. ``before`` takes the smallest eigenvalue of weak patches for the noise
level, as this package did, and the data range 255. ``automatic`` is ``denoise(image)``. ``best`` is
the best of eight noise levels, chosen for each image by its PSNR. The last column has the largest
loss of ``automatic`` against it; the file has the values of all images. Rows that the file has are
not measured again; with ``--again`` their ``automatic`` is, and the other columns, which do not
depend on the estimate, are kept.

The second table has photographs at a part of their contrast and noise, stored with 16 bits.
``before`` takes the bit depth that holds the values for the data range, and ``best`` the best of
eight ranges. The noise level is told to both.
"""

from __future__ import annotations

import argparse
import io
import math
import warnings
from collections.abc import Callable, Sequence
from functools import cache
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray
from scipy.ndimage import convolve, gaussian_filter

from colour_channels import crops
from integrodiff import NoiseLevelWarning, denoise
from integrodiff._default_model import DEFAULT_MODEL
from integrodiff.grey_range import grey_range
from integrodiff.learning import bsds500
from integrodiff.noise.level import (
    least_variance,
    patches_of,
    sampling_factor,
    weak_texture,
)
from integrodiff.reproduction._results import decibel, markdown_table
from integrodiff.viz.metrics import psnr
from peers import Results

Image: TypeAlias = NDArray[np.float32]
Noise: TypeAlias = Callable[[Image, np.random.Generator], Image]
Row: TypeAlias = dict[str, Any]

LEVEL = 20.0
_LEVELS = LEVEL * np.geomspace(0.45, 2.2, 8)
_RANGES = np.geomspace(0.06, 4, 8)
_GREY = ("camera", "coins", "moon", "brick", "page", "clock")
_COLOUR = ("astronaut", "coffee", "chelsea", "rocket")


# ---- noise ----


def _white(clean: Image, rng: np.random.Generator) -> Image:
    return np.asarray(clean + rng.normal(0, LEVEL, clean.shape), np.float32)


def _blurred(blur: float) -> Noise:
    def noisy(clean: Image, rng: np.random.Generator) -> Image:
        noise = gaussian_filter(rng.normal(size=clean.shape), blur, mode="wrap", truncate=6)
        return np.asarray(clean + LEVEL * noise / noise.std(), np.float32)

    return noisy


def _compressed(quality: int, subsampling: int = 0) -> Noise:
    def noisy(clean: Image, rng: np.random.Generator) -> Image:
        from PIL import Image as Pictures

        file = io.BytesIO()
        values = np.clip(np.rint(_white(clean, rng)), 0, 255).astype(np.uint8)
        options = {} if clean.ndim == 2 else {"subsampling": subsampling}
        Pictures.fromarray(values).save(file, "JPEG", quality=quality, **options)
        return np.asarray(Pictures.open(file), np.float32)

    return noisy


def demosaiced(image: Image) -> Image:
    """Return the bilinear interpolation of what a Bayer pattern leaves of a colour image."""
    mask = np.zeros(image.shape, np.float32)
    mask[::2, ::2, 0] = mask[::2, 1::2, 1] = mask[1::2, ::2, 1] = mask[1::2, 1::2, 2] = 1
    kernel = np.outer([1, 2, 1], [1, 2, 1]).astype(np.float32)
    kernels = [kernel, np.where(kernel == 1, 0, kernel), kernel]
    samples = [
        convolve(image[..., c] * mask[..., c], kernels[c], mode="mirror")
        / convolve(mask[..., c], kernels[c], mode="mirror")
        for c in range(3)
    ]
    return np.stack(samples, axis=-1)


GREY_NOISE: dict[str, Noise] = {
    "white": _white,
    **{f"blurred by {blur:g}": _blurred(blur) for blur in (0.3, 0.5, 0.7, 1.0)},
    **{f"JPEG quality {q}": _compressed(q) for q in (95, 92, 85, 75, 60)},
}
COLOUR_NOISE: dict[str, Noise] = {
    "colour, white": _white,
    "colour, demosaiced": lambda clean, rng: demosaiced(_white(clean, rng)),
    "colour, JPEG 92, 4:4:4": _compressed(92),
    "colour, JPEG 75, 4:4:4": _compressed(75),
    "colour, JPEG 60, 4:4:4": _compressed(60),
    "colour, JPEG 92, 4:2:0": _compressed(92, 2),
    "colour, JPEG 75, 4:2:0": _compressed(75, 2),
    "colour, JPEG 60, 4:2:0": _compressed(60, 2),
}


# ---- ways ----


def smallest_eigenvalue(image: Image) -> float:
    """Return the noise level by the method of Liu, Tanaka and Okutomi."""
    patches, texture = patches_of(image.astype(np.float64))
    weak = patches
    for _ in range(2):
        chosen = texture < least_variance(weak) * weak_texture()
        if chosen.sum() < 200:
            break
        weak = patches[chosen]
    return math.sqrt(least_variance(weak)) / sampling_factor(len(texture))


def _before(image: Image) -> Any:
    if image.ndim == 2:
        return denoise(image, smallest_eigenvalue(image), data_range=255)
    levels = [smallest_eigenvalue(image[..., c]) for c in range(3)]
    return denoise(image, levels, data_range=255, channel_axis=-1)


def _automatic(image: Image) -> Any:
    return denoise(image, channel_axis=None if image.ndim == 2 else -1)


def best_of_levels(image: Image, clean: Image) -> float:
    """Return the PSNR with the best of the single noise levels.

    The PSNR rises with the level up to the best one and falls beyond it, so that the levels on both
    sides of the best one are all that is looked at besides those on the way to it.
    """
    axis = None if image.ndim == 2 else -1

    @cache
    def quality(number: int) -> float:
        if not 0 <= number < len(_LEVELS):
            return -math.inf
        level = float(_LEVELS[number])
        return psnr(denoise(image, level, data_range=255, channel_axis=axis), clean)

    best = len(_LEVELS) // 2
    for direction in (1, -1):
        while quality(best + direction) > quality(best):
            best += direction
    return quality(best)


def noise_row(images: Sequence[Image], noise: Noise, known: Row | None = None) -> Row:
    """Return the PSNR of every way, on average and for each image.

    Parameters
    ----------
    images : sequence of ndarray
        Images without noise.
    noise : callable
        Adds the noise.
    known : dict, optional
        A row of the same images and noise, of which all but ``automatic`` is kept.
    """
    columns: dict[str, list[float]] = {"noisy": [], "before": [], "automatic": [], "best": []}
    kept = {} if known is None else {n: known["images"][n] for n in columns if n != "automatic"}
    for k, clean in enumerate(images):
        image = noise(clean, np.random.default_rng(k))
        columns["automatic"].append(psnr(_automatic(image), clean))
        if not kept:
            columns["noisy"].append(psnr(image, clean))
            columns["before"].append(psnr(_before(image), clean))
            columns["best"].append(best_of_levels(image, clean))
    return _row({**columns, **kept})


def range_row(images: Sequence[Image], part: float) -> Row:
    """Return the same for images with a part of their contrast, in 16 bits."""
    columns: dict[str, list[float]] = {"noisy": [], "before": [], "automatic": [], "best": []}
    for k, clean in enumerate(images):
        unit = 257 * part
        noisy = np.clip(np.rint(unit * _white(clean, np.random.default_rng(k)) + 2000), 0, 65535)
        image, sigma = noisy.astype(np.uint16), unit * LEVEL

        def quality(span: float | None, image: Any = image, sigma: float = sigma) -> float:
            found = denoise(image, sigma, data_range=span, as_float=True)
            return psnr((found - 2000) / unit, clean)  # noqa: B023 (called at once)

        columns["noisy"].append(psnr((noisy - 2000) / unit, clean))
        columns["before"].append(quality(grey_range(image, sigma)))
        columns["automatic"].append(quality(None))
        columns["best"].append(max(quality(255 * unit * factor) for factor in _RANGES))
    return _row(columns)


def _row(columns: dict[str, list[float]]) -> Row:
    row: Row = {name: decibel(float(np.mean(values))) for name, values in columns.items()}
    losses = np.subtract(columns["automatic"], columns["best"])
    row |= {"difference": decibel(losses.mean()), "worst": decibel(losses.min())}
    each = {name: [decibel(value) for value in values] for name, values in columns.items()}
    return {**row, "images": each}


# ---- command ----

PARTS = (1.0, 0.25, 0.1, 0.05)
COLUMNS = ("noisy", "before", "automatic", "best", "difference", "worst")


def photographs(names: Sequence[str]) -> list[Image]:
    """Return crops of the photographs of scikit-image."""
    from skimage import data

    found = [np.asarray(getattr(data, name)(), np.float32) for name in names]
    return [image[:256, :256].copy() for image in found]


def main() -> None:
    """Measure what the file of results does not have yet, and print the tables."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--json", type=Path, default=Path("results/unknown-noise.json"))
    parser.add_argument("--data", type=Path, help="folder that holds bsds500")
    parser.add_argument("--split", default="train", choices=["train", "test"])
    parser.add_argument("--every", type=int, default=1)
    parser.add_argument("--rows", nargs="+", metavar="NAME", help="only these rows of the table")
    parser.add_argument("--again", action="store_true", help="measure automatic again")
    arguments = parser.parse_args()
    if arguments.data is None:
        grey, colour, source = photographs(_GREY), photographs(_COLOUR), "scikit-image"
    else:
        crops_of_split = bsds500(arguments.split, arguments.data)
        grey = list(crops_of_split.pixels[:: arguments.every])
        folder = arguments.data / "bsds500" / "images" / arguments.split
        colour = [np.moveaxis(c, 0, -1) for c in crops(folder, arguments.every)]
        source = f"BSDS500 {arguments.split}, every {arguments.every}"
    what = {"images": len(grey), "colour images": len(colour), "source": source}
    results = Results(arguments.json, "PSNR in dB of images of unknown noise and range", what)
    warnings.simplefilter("ignore", NoiseLevelWarning)
    noises = {
        **{name: (grey, noise) for name, noise in GREY_NOISE.items()},
        **{name: (colour, noise) for name, noise in COLOUR_NOISE.items()},
    }
    parts = {f"{part:g} of the contrast": part for part in PARTS}
    rows = [*noises, *parts]
    wanted = arguments.rows or list(rows)
    if unknown := set(wanted) - set(rows):
        parser.error(f"no such row: {', '.join(sorted(unknown))}; there are {', '.join(rows)}")
    lines = []
    for name in wanted:
        row = results.row(name, {"identity": DEFAULT_MODEL, "psnr": {}})
        known = row["psnr"]
        if name in parts and not known:
            row["psnr"] = range_row(grey, parts[name])
        elif name in noises and (arguments.again or not known):
            row["psnr"] = noise_row(*noises[name], known or None)
        if row["psnr"] is not known:
            results.save()
        lines.append([name, *(f"{row['psnr'][column]:.2f}" for column in COLUMNS)])
        print(lines[-1], flush=True)
    print(markdown_table(["PSNR [dB]", *COLUMNS], lines))


if __name__ == "__main__":
    main()
