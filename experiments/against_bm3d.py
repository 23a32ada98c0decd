"""Picture of where the models and BM3D differ: textures and a photograph, side by side.

    python experiments/against_bm3d.py docs/images/against-bm3d.png [--level 25] [--size 128]
        [--models iad-plus iad-deep] [--tuned results/peers.json]

The images are brick, grass, gravel and the cameraman of scikit-image, which are free to use, and of
each a square part of its middle. Columns: clean, noisy, each model, BM3D, with PSNR and SSIM. What
is printed is the same as a table.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import numpy as np

from denoisers import Image
from integrodiff.learning.images import noise
from integrodiff.reproduction._results import markdown_table
from integrodiff.viz.drawing import bare, new_figure, save_figure
from integrodiff.viz.metrics import psnr, ssim
from peers import TUNED, model_method, one_thread, tuned_peers

NAMES = {"brick": (0, 0), "grass": (0, 0), "gravel": (0, 0), "camera": (-60, 0)}
"""Images, and how far their parts are from the middle, down and to the right."""


def part(name: str, size: int) -> Image:
    """Return a square part of an image of scikit-image."""
    from skimage import data

    whole = getattr(data, name)().astype(np.float32)
    top, left = (
        (side - size) // 2 + shift for side, shift in zip(whole.shape, NAMES[name], strict=True)
    )
    found: Image = np.ascontiguousarray(whole[top : top + size, left : left + size])
    return found


def main() -> None:
    """Denoise, draw, and print the table."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("output", type=Path)
    parser.add_argument("--level", type=float, default=25.0)
    parser.add_argument("--size", type=int, default=128)
    parser.add_argument("--models", nargs="+", default=["iad-plus", "iad-deep"])
    parser.add_argument("--tuned", type=Path, default=TUNED, help="settings of BM3D")
    arguments = parser.parse_args()
    one_thread()
    methods = [model_method(name) for name in arguments.models]
    methods += tuned_peers(["bm3d"], arguments.tuned)
    columns = ["clean", "noisy", *(method.title for method in methods)]
    figure = new_figure(1.9 * len(columns), 2.1 * len(NAMES))
    lines = []
    for k, (name, row) in enumerate(
        zip(NAMES, figure.subplots(len(NAMES), len(columns)), strict=True)
    ):
        clean = part(name, arguments.size)
        noisy = clean + noise(arguments.level, k, clean.shape)
        results = [method.denoise(noisy, arguments.level) for method in methods]
        measured = [(psnr(image, clean), ssim(image, clean)) for image in (noisy, *results)]
        lines.append([name, *(f"{a:.2f} / {b:.3f}" for a, b in measured)])
        titles = [name, *(f"{a:.2f} dB, {b:.3f}" for a, b in measured)]
        for n, (axes, image) in enumerate(zip(row, [clean, noisy, *results], strict=True)):
            axes.imshow(image, cmap="gray", vmin=0, vmax=255, interpolation="nearest")
            head = f"{columns[n]}\n" if k == 0 else ""
            axes.set_title(head + titles[n], fontsize=7)
            bare(axes)
    print(f"s = {arguments.level:g}, PSNR / SSIM\n")
    print(markdown_table(["image", *columns[1:]], lines))
    print(save_figure(figure, arguments.output, dots_per_inch=80))


if __name__ == "__main__":
    main()
