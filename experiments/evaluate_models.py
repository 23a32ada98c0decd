"""PSNR and SSIM of models on the BSDS500 crops, level by level, by the package.

    python experiments/evaluate_models.py OUT.json NAME_OR_FILE ... --data FOLDER [--split test]
                                          [--levels 2 5 10 ...] [--count N] [--first K --step N]

OUT.json is written after every level; what it has already is not measured again.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

import numpy as np

from integrodiff import load_model
from integrodiff._atomic import atomic_write
from integrodiff.engines import get_engine
from integrodiff.learning import bsds500
from integrodiff.learning.images import CleanImages, noise
from integrodiff.viz.metrics import psnr, ssim

LEVELS = (2, 5, 10, 15, 20, 25, 30, 40, 50, 60, 75, 100)
PAPER = (10, 20, 30, 40, 50, 60)


def measured(model: Any, images: CleanImages, numbers: list[int], level: int) -> dict[str, float]:
    """Return the means over the crops of these numbers."""
    process = get_engine("auto").prepare(model.evolution(float(level)))
    values = []
    for k in numbers:
        clean = images.pixels[k]
        noisy = (clean + noise(float(level), k, clean.shape)).astype(np.float32)
        found = process(noisy[None])[0]
        values.append((psnr(found, clean), ssim(found, clean)))
    means = np.mean(values, axis=0)
    return {"psnr": round(float(means[0]), 4), "ssim": round(float(means[1]), 5)}


def main() -> None:
    """Measure what is missing, and print a table."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("output", type=Path)
    parser.add_argument("models", nargs="+")
    parser.add_argument("--data", type=Path, help="folder that holds bsds500")
    parser.add_argument("--split", default="test", choices=["train", "test"])
    parser.add_argument("--levels", nargs="+", type=int, default=list(LEVELS))
    parser.add_argument("--count", type=int, help="number of crops, the first ones")
    parser.add_argument("--first", type=int, default=0, help="number of the first crop")
    parser.add_argument("--step", type=int, default=1, help="from one crop to the next")
    arguments = parser.parse_args()
    images = bsds500(arguments.split, arguments.data, arguments.count)
    numbers = list(range(arguments.first, len(images), arguments.step))
    known = json.loads(arguments.output.read_text()) if arguments.output.exists() else {}
    for name in arguments.models:
        model = load_model(name)
        entry = known.setdefault(Path(name).stem, {})
        for level in arguments.levels:
            if str(level) not in entry:
                entry[str(level)] = measured(model, images, numbers, level)
                with atomic_write(arguments.output, overwrite=True) as temporary:
                    temporary.write_text(json.dumps(known, indent=1) + "\n", encoding="utf-8")
        for what in ("psnr", "ssim"):
            values = {s: entry[str(s)][what] for s in arguments.levels}
            paper = [values[s] for s in PAPER if s in values]
            mean = f"{np.mean(paper):.4f}" if paper else "-"
            print(name, what, mean, *(f"{s}: {v:.4f}" for s, v in values.items()), flush=True)


if __name__ == "__main__":
    main()
