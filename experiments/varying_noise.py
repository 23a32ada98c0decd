"""Whether noise that varies over the image is found, and noise that does not is left alone.

    python experiments/varying_noise.py --data FOLDER [--json results/varying-noise.json]
        [--every N] [--rows NAME ...]

Training crops of BSDS500, 256 x 256, in grey and in colour. ``maps`` counts the crops for which
``denoise(image)`` takes a map of noise levels. ``one level`` is what it does otherwise, ``known``
has the true map, and ``worst`` is the largest loss of ``automatic`` against ``one level`` on a
crop. Crops without a map have the same result in both columns. For noise that does not vary,
photons and JPEG files, ``known`` is left out, and where no crop has a map nothing is denoised.
"""

from __future__ import annotations

import argparse
import io
import warnings
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray
from PIL import Image as Pictures
from scipy.ndimage import gaussian_filter

from integrodiff import Denoiser, NoiseLevelWarning, denoise
from integrodiff._default_model import DEFAULT_MODEL
from integrodiff.arrays import array_image
from integrodiff.learning import bsds500
from integrodiff.learning.images import find_bsds500
from integrodiff.noise.level import estimate_levels
from integrodiff.noise.spectrum import tiles_of
from integrodiff.reproduction._results import decibel, markdown_table
from integrodiff.viz.metrics import psnr
from noise_map import MAPS, levels_of
from peers import Results

Image: TypeAlias = NDArray[np.float32]
Levels: TypeAlias = NDArray[np.float64]
Row: TypeAlias = dict[str, Any]


class Case(NamedTuple):
    """A kind of noise: a function of clean image and generator, and the true map if there is one.

    ``in_colour`` says whether it is added to colour images.
    """

    add: Callable[[Image, np.random.Generator], NDArray[Any]]
    levels: Callable[[tuple[int, ...]], Levels] | None = None
    in_colour: bool = False


# ---- noise ----


def _single(values: NDArray[Any]) -> NDArray[Any]:
    return values.astype(np.float32)


def _white(level: float) -> Case:
    return Case(lambda clean, rng: _single(clean + rng.normal(0, level, clean.shape)))


def _eight_bits(case: Case) -> Case:
    def add(clean: Image, rng: np.random.Generator) -> NDArray[Any]:
        values: NDArray[Any] = np.clip(np.rint(case.add(clean, rng)), 0, 255)
        return values.astype(np.uint8)

    return case._replace(add=add)


def _compressed(quality: int, level: float, cropped: int = 0) -> Case:
    def add(clean: Image, rng: np.random.Generator) -> NDArray[Any]:
        file = io.BytesIO()
        values = _eight_bits(_white(level)).add(clean, rng)
        Pictures.fromarray(values).save(file, "JPEG", quality=quality)
        return np.asarray(Pictures.open(file))[cropped:, cropped:]

    return Case(add)


def _blurred(blur: float) -> Case:
    def add(clean: Image, rng: np.random.Generator) -> NDArray[Any]:
        noise = gaussian_filter(rng.normal(size=clean.shape), blur, mode="wrap", truncate=6)
        return _single(clean + 20 * noise / noise.std())

    return Case(add)


def _photons(peak: float) -> Case:
    def add(clean: Image, rng: np.random.Generator) -> NDArray[Any]:
        return _single(rng.poisson(np.maximum(clean, 0) / 255 * peak) * 255 / peak)

    return Case(add)


def _mapped(levels: Callable[[tuple[int, ...]], Levels]) -> Case:
    def add(clean: Image, rng: np.random.Generator) -> NDArray[Any]:
        here = levels(clean.shape[:2])
        here = here if clean.ndim == 2 else here[..., None]
        return _single(clean + here * rng.normal(size=clean.shape))

    return Case(add, levels)


def _ramp(low: float, high: float) -> Callable[[tuple[int, ...]], Levels]:
    return lambda shape: np.geomspace(low, high, shape[1]) * np.ones((shape[0], 1))


def _corner(low: float, high: float) -> Callable[[tuple[int, ...]], Levels]:
    def levels(shape: tuple[int, ...]) -> Levels:
        found = np.full(shape, low)
        found[: shape[0] // 2, : shape[1] // 2] = high
        return found

    return levels


def _named(name: str) -> Callable[[tuple[int, ...]], Levels]:
    return lambda shape: levels_of(name, shape)


CASES: dict[str, Case] = {
    "no noise added": _white(0),
    **{f"white, {level}": _white(level) for level in (2, 5, 10, 20, 30, 40, 50, 60)},
    **{f"8 bits, {level}": _eight_bits(_white(level)) for level in (5, 10, 20, 40, 60)},
    **{f"blurred by {blur:g}": _blurred(blur) for blur in (0.3, 0.5, 0.7, 1.0)},
    **{f"JPEG {q}, level 20": _compressed(q, 20) for q in (95, 92, 85, 75, 60)},
    **{f"JPEG {q}, level 8": _compressed(q, 8) for q in (95, 85, 75)},
    **{f"JPEG {q}, level 8, cropped": _compressed(q, 8, 3) for q in (95, 85, 75)},
    **{f"photons, peak {peak}": _photons(peak) for peak in (10, 30, 120, 1000)},
    **{name: _mapped(_named(name)) for name in MAPS},
    "ramp, 15 to 30": _mapped(_ramp(15, 30)),
    "ramp, 15 to 22": _mapped(_ramp(15, 22)),
    "ramp, 5 to 25": _mapped(_ramp(5, 25)),
    "corner, 10 and 30": _mapped(_corner(10, 30)),
    "8 bits, ramp, 10 to 50": _eight_bits(_mapped(_ramp(10, 50))),
    "colour, white, 5": _white(5)._replace(in_colour=True),
    "colour, white, 20": _white(20)._replace(in_colour=True),
    "colour, JPEG 92, level 20": _compressed(92, 20)._replace(in_colour=True),
    "colour, ramp, 10 to 50": _mapped(_ramp(10, 50))._replace(in_colour=True),
}


# ---- ways ----


def takes_map(image: NDArray[Any]) -> bool:
    """Whether ``denoise(image)`` takes a map of noise levels."""
    axis = None if image.ndim == 2 else -1
    denoiser = Denoiser(channel_axis=axis)
    return denoiser.pipeline(array_image(image, channel_axis=axis)).resolved.request.map is not None


def one_level(image: NDArray[Any]) -> Any:
    """Denoise with the level of the flattest parts, as if noise did not vary."""
    if image.ndim == 2:
        levels = estimate_levels(image, tiles_of(image))
        return denoise(image, dict(zip(levels.scales, levels.levels, strict=True)), as_float=True)
    found = [estimate_levels(image[..., c], tiles_of(image[..., c])).sigma for c in range(3)]
    return denoise(image, found, as_float=True, channel_axis=-1)


def measured(images: Sequence[Image], case: Case) -> Row:
    """Return how many images get a map, and what it brings."""
    columns: dict[str, list[float]] = {"noisy": [], "one level": [], "automatic": [], "known": []}
    maps = 0
    for k, clean in enumerate(images):
        image = case.add(clean, np.random.default_rng(k))
        clean = clean[-len(image) :, -image.shape[1] :]
        mapped = takes_map(image)
        maps += mapped
        if case.levels is None and not mapped:
            continue
        axis = None if image.ndim == 2 else -1
        columns["noisy"].append(psnr(image, clean))
        columns["one level"].append(psnr(one_level(image), clean))
        columns["automatic"].append(psnr(denoise(image, as_float=True, channel_axis=axis), clean))
        if case.levels is not None:
            known = denoise(image, case.levels(clean.shape[:2]), as_float=True, channel_axis=axis)
            columns["known"].append(psnr(known, clean))
    row: Row = {"images": len(images), "maps": maps}
    row |= {name: decibel(float(np.mean(each))) for name, each in columns.items() if each}
    if columns["automatic"]:
        losses = np.subtract(columns["automatic"], columns["one level"])
        row["worst"] = decibel(float(losses.min()))
    return row


# ---- command ----

COLUMNS = ("noisy", "one level", "automatic", "known", "worst")


def colour_crops(folder: Path, every: int) -> list[Image]:
    """Return colour crops of 256 x 256 of some of the images."""
    paths = sorted(folder.glob("*.jpg"), key=lambda path: int(path.stem))[::every]
    return [np.asarray(Pictures.open(path), np.float32)[30:286, 30:286] for path in paths]


def main() -> None:
    """Measure what the file of results does not have yet, and print the table."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--json", type=Path, default=Path("results/varying-noise.json"))
    parser.add_argument("--data", type=Path, help="folder that holds bsds500")
    parser.add_argument("--every", type=int, default=1, help="only every Nth crop")
    parser.add_argument("--rows", nargs="+", metavar="NAME", default=list(CASES))
    arguments = parser.parse_args()
    if unknown := set(arguments.rows) - set(CASES):
        parser.error(f"no such row: {', '.join(sorted(unknown))}; there are {', '.join(CASES)}")
    warnings.simplefilter("ignore", NoiseLevelWarning)
    results = Results(arguments.json, "Noise that varies: crops with a map, and PSNR in dB", {})
    grey = list(bsds500("train", arguments.data).pixels[:: arguments.every])
    colour = colour_crops(find_bsds500(arguments.data) / "train", arguments.every)
    lines = []
    for name in arguments.rows:
        row = results.row(name, {"identity": DEFAULT_MODEL, "psnr": {}})
        if not row["psnr"]:
            row["psnr"] = measured(colour if CASES[name].in_colour else grey, CASES[name])
            results.save()
        found = row["psnr"]
        values = [f"{found[column]:.2f}" if column in found else "" for column in COLUMNS]
        lines.append([name, f"{found['maps']} of {found['images']}", *values])
        print(lines[-1], flush=True)
    print(markdown_table(["PSNR [dB]", "maps", *COLUMNS], lines))


if __name__ == "__main__":
    main()
