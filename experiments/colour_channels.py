"""Compare ways to treat the channels of colour images, on crops of BSDS500 training images.

    python experiments/colour_channels.py --data FOLDER

``mean``: one structure tensor, the mean over the channels (what the package does). ``sum``: one
tensor, the plain sum, with contrasts as for grey images. ``separate``: each channel by itself.
"""

from __future__ import annotations

import argparse
from collections import defaultdict
from dataclasses import replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from integrodiff import IAD, ReducedLaw, load_model
from integrodiff.learning.images import find_bsds500
from integrodiff.learning.parameters import decibels


def psnr(image: NDArray[np.float32], clean: NDArray[np.float32]) -> float:
    """Peak signal-to-noise ratio in dB, nothing clipped."""
    return float(decibels(np.asarray(np.mean((image.astype(np.float64) - clean) ** 2))))


def main() -> None:
    """Print the mean PSNR of each way at two noise levels."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--data", type=Path, help="folder that holds bsds500")
    folder = find_bsds500(parser.parse_args().data) / "train"
    paths = sorted(folder.glob("*.jpg"), key=lambda path: int(path.stem))[::16]

    model = load_model("iad")
    if not isinstance(model, IAD) or not isinstance(model.law, ReducedLaw):
        raise TypeError("the shipped IAD is expected to have the reduced law")
    # A tensor three times as large is the same as a contrast smaller by the square root.
    of_sum = replace(model, law=replace(model.law, lambda_0=model.law.lambda_0 / np.sqrt(3)))
    for level in (20, 50):
        found = defaultdict(list)
        for k, path in enumerate(paths):
            with Image.open(path) as picture:
                colour = np.asarray(picture.convert("RGB"), np.float32)[60:252, 60:252]
            clean = np.moveaxis(colour, -1, 0)
            noise = np.random.default_rng((level, k)).normal(0, level, clean.shape)
            noisy = (clean + noise).astype(np.float32)
            found["mean"].append(psnr(model(noisy, level, channel_axis=0), clean))
            found["sum"].append(psnr(of_sum(noisy, level, channel_axis=0), clean))
            found["separate"].append(psnr(model(noisy, level), clean))
        print(f"s = {level}:", {way: round(float(np.mean(v)), 2) for way, v in found.items()})


if __name__ == "__main__":
    main()
