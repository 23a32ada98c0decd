"""Compare ways to denoise the channels of colour images, on crops of BSDS500.

    python experiments/colour_channels.py --data FOLDER --json results/colour-channels.json
        [--models NAME ...] [--ways WAY ...] [--split train|test] [--every 4]

The crops are 192 x 192 pixels from row and column 60 on; the noise is the same in all channels.

``joint``, ``separate`` and ``opponent`` are those of ``denoise``. ``sum`` is ``joint`` with the sum
of the channels' structure tensors in place of their mean. ``guided`` is ``opponent`` with colours
from a joint process that is told 1.5 times the noise level, so that grey edges stop colours.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from pathlib import Path

import numpy as np
from PIL import Image as Pictures

from denoisers import Image
from integrodiff import denoise
from integrodiff._default_model import DEFAULT_MODEL
from integrodiff.colour import Colour
from integrodiff.learning.images import find_bsds500, noise
from integrodiff.reproduction._results import Result, decibel, markdown_table
from integrodiff.viz.metrics import psnr
from peers import Results

LEVELS = (15, 25, 50)
SIZE = slice(60, 252)
_TOLD = 1.5


def _sum(noisy: Image, sigma: float, model: str) -> Image:
    """Denoise with tensors three times as large; all grey values times the square root of that."""
    root = np.float32(np.sqrt(3))
    return (
        denoise(root * noisy, sigma, model=model, data_range=255, channel_axis=0, colour="joint")
        / root
    )


def _guided(noisy: Image, sigma: float, model: str) -> Image:
    def run(level: float, colour: Colour) -> Image:
        return denoise(noisy, level, model=model, data_range=255, channel_axis=0, colour=colour)

    luminance, colours = run(sigma, "opponent"), run(_TOLD * sigma, "joint")
    change: Image = luminance.mean(axis=0) - colours.mean(axis=0)
    return colours + change


def _way(colour: Colour) -> Callable[[Image, float, str], Image]:
    return lambda noisy, sigma, model: denoise(
        noisy, sigma, model=model, data_range=255, channel_axis=0, colour=colour
    )


WAYS: dict[str, Callable[[Image, float, str], Image]] = {
    "sum": _sum,
    "separate": _way("separate"),
    "joint": _way("joint"),
    "opponent": _way("opponent"),
    "guided": _guided,
}


def crops(folder: Path, every: int) -> list[Image]:
    """Return colour crops of some of the images, channels first."""
    found = []
    for path in sorted(folder.glob("*.jpg"), key=lambda path: int(path.stem))[::every]:
        with Pictures.open(path) as picture:
            colours = np.asarray(picture.convert("RGB"), np.float32)[SIZE, SIZE]
        found.append(np.moveaxis(colours, -1, 0))
    return found


def table(rows: dict[str, Result]) -> str:
    """Return all numbers as a Markdown table."""
    lines = [[name, *(f"{row['psnr'][str(s)]:.2f}" for s in LEVELS)] for name, row in rows.items()]
    return markdown_table(["PSNR [dB]", *(f"s = {s}" for s in LEVELS)], lines)


def main() -> None:
    """Measure what the file does not have yet, and print it."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--data", type=Path, help="folder that holds bsds500")
    parser.add_argument("--json", type=Path, default=Path("results/colour-channels.json"))
    parser.add_argument("--models", nargs="+", default=[DEFAULT_MODEL], metavar="MODEL")
    parser.add_argument("--split", default="train", choices=["train", "test"])
    parser.add_argument("--every", type=int, default=4, help="take every so-manieth image")
    parser.add_argument("--ways", nargs="+", default=list(WAYS), choices=list(WAYS), metavar="WAY")
    arguments = parser.parse_args()
    images = crops(find_bsds500(arguments.data) / arguments.split, arguments.every)
    settings = {"split": arguments.split, "images": len(images), "every": arguments.every}
    results = Results(arguments.json, "PSNR in dB of denoised colour images", settings)
    for model in arguments.models:
        for name in arguments.ways:
            row = results.row(f"{model}, {name}", {"identity": f"{model}, {name}", "psnr": {}})
            for level in LEVELS:
                if str(level) in row["psnr"]:
                    continue
                values = []
                for k, clean in enumerate(images):
                    noisy = clean + noise(level, k, clean.shape)
                    values.append(psnr(WAYS[name](noisy, level, model), clean))
                row["psnr"][str(level)] = decibel(sum(values) / len(values))
                results.save()
    print(table(results.rows))


if __name__ == "__main__":
    main()
