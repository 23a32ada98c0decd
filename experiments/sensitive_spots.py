"""The direction in which a model amplifies most, and how the answer depends on the size of a step.

    python experiments/sensitive_spots.py --data FOLDER [--model iad-deep] [--level 25]
        [--image 0] [--size 96]

At the centre of a noisy test crop of BSDS500: the largest singular value of the derivative; how
much of its direction, in squares, lies within 9 x 9 pixels around its largest entry; and for steps
of several lengths in this direction the change of the result over the step, and the largest change
of a pixel in grey levels. The model is computed in float64 without shortcuts.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import numpy as np

from integrodiff import denoise, load_model
from integrodiff.learning import bsds500
from integrodiff.learning.images import noise
from robustness import largest_direction

STEPS = (0.01, 0.1, 0.3, 1.0, 3.0, 10.0, 30.0, 100.0)


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--data", type=Path, help="folder that holds bsds500")
    parser.add_argument("--model", default="iad-deep")
    parser.add_argument("--level", type=float, default=25.0)
    parser.add_argument("--image", type=int, default=0, help="number of the crop")
    parser.add_argument("--size", type=int, default=96, help="of its centre")
    a = parser.parse_args()
    import torch

    clean = bsds500("test", a.data, a.image + 1).pixels[a.image].astype(np.float64)
    top, left = ((side - a.size) // 2 for side in clean.shape)
    clean = clean[top : top + a.size, left : left + a.size]
    noisy = clean + noise(a.level, a.image, clean.shape).astype(np.float64)
    model = load_model(a.model)
    value, direction = largest_direction(
        lambda image: model(image, a.level), torch.tensor(noisy, dtype=torch.float64)
    )
    y, x = np.unravel_index(np.abs(direction).argmax(), direction.shape)
    spot = direction[max(0, y - 4) : y + 5, max(0, x - 4) : x + 5]
    print(f"{a.model}, crop {a.image}: {value:.2f}; {np.sum(spot**2):.1%} within 9 x 9 pixels")

    def run(image: object) -> np.ndarray:
        return np.asarray(denoise(image, a.level, model=model, data_range=255, exact=True))

    before = run(noisy)
    for length in STEPS:
        change = run(noisy + length * direction) - before
        times = np.linalg.norm(change) / length
        print(f"step of length {length:g}: {times:.2f} times, {np.abs(change).max():.2f} at most")


if __name__ == "__main__":
    main()
