"""PSNR and SSIM of models on the BSDS500 crops, level by level, by the package.

    python experiments/evaluate_models.py OUT.json NAME_OR_FILE ... --data FOLDER [--split test]
                                          [--peers tv nlm bm3d]
                                          [--levels 2 5 10 ...] [--count N] [--first K --step N]

OUT.json is written after every level; what it has already is not measured again. TV and NL-means
are tuned at each level, on the first five training crops; other peers have the settings that
``peers.py`` found.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from denoisers import PEERS
from integrodiff import load_model
from integrodiff._atomic import atomic_write
from integrodiff.engines import get_engine
from integrodiff.learning import bsds500
from integrodiff.learning.images import CleanImages, noise
from integrodiff.viz.metrics import psnr, ssim
from peers import TUNED, read_tuned, settings_at

LEVELS = (2, 5, 10, 15, 20, 25, 30, 40, 50, 60, 75, 100)
PAPER = (10, 20, 30, 40, 50, 60)


Run = Callable[[Any], Any]
"""Takes a noisy image and returns the denoised one."""


def of_model(name: str, level: int) -> tuple[Run, dict[str, float]]:
    """Return a model at a noise level."""
    process = get_engine("auto").prepare(load_model(name).evolution(float(level)))
    return lambda noisy: process(noisy[None])[0], {}


def of_peer(name: str, level: int, train: CleanImages) -> tuple[Run, dict[str, float]]:
    """Return a peer at a noise level, and its settings."""
    peer = PEERS[name]

    def with_settings(settings: dict[str, float]) -> Run:
        return lambda noisy: peer.run(noisy, float(level), **settings)

    if list(peer.grid) == ["strength"] and name in ("tv", "nlm"):
        settings = {"strength": tuned_strength(with_settings, level, train)}
    else:
        settings = settings_at(read_tuned(TUNED)[name], float(level))
    return with_settings(settings), settings


def tuned_strength(
    with_settings: Callable[[dict[str, float]], Run], level: int, train: CleanImages
) -> float:
    """Return the best strength from 0.2 to 1.7.

    All are tried: TV stops early for some of them, and has several maxima.
    """
    numbers = list(range(len(train)))

    def quality(strength: float) -> float:
        return measured(with_settings({"strength": strength}), train, numbers, level)["psnr"]

    return max((tenths / 10 for tenths in range(2, 18)), key=quality)


def measured(run: Run, images: CleanImages, numbers: list[int], level: int) -> dict[str, float]:
    """Return the means over the crops of these numbers."""
    values = []
    for k in numbers:
        clean = images.pixels[k]
        noisy = (clean + noise(float(level), k, clean.shape)).astype(np.float32)
        found = np.asarray(run(noisy), np.float32)
        values.append((psnr(found, clean), ssim(found, clean)))
    means = np.mean(values, axis=0)
    return {"psnr": round(float(means[0]), 4), "ssim": round(float(means[1]), 5)}


def main() -> None:
    """Measure what is missing, and print a table."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("output", type=Path)
    parser.add_argument("models", nargs="*")
    parser.add_argument("--peers", nargs="+", default=[], choices=PEERS, metavar="PEER")
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
    train = bsds500("train", arguments.data, 5) if arguments.peers else images
    for name in (*arguments.models, *arguments.peers):
        entry = known.setdefault(Path(name).stem, {})
        for level in arguments.levels:
            if str(level) not in entry:
                is_peer = name in arguments.peers
                found = of_peer(name, level, train) if is_peer else of_model(name, level)
                entry[str(level)] = {**measured(found[0], images, numbers, level), **found[1]}
                with atomic_write(arguments.output, overwrite=True) as temporary:
                    temporary.write_text(json.dumps(known, indent=1) + "\n", encoding="utf-8")
        for what in ("psnr", "ssim"):
            values = {s: entry[str(s)][what] for s in arguments.levels}
            paper = [values[s] for s in PAPER if s in values]
            mean = f"{np.mean(paper):.4f}" if paper else "-"
            print(name, what, mean, *(f"{s}: {v:.4f}" for s, v in values.items()), flush=True)


if __name__ == "__main__":
    main()
