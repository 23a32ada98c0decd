"""How far the influence of pixels goes, measured: the error of a block over the width of its halo.

The whole image, or volume, and a part of it that begins at some column are denoised. What lies
beyond that column is missing in the part, and reflected there; the largest difference at each
distance from the column, over all images, is the error of a block with a halo of that width. The
images are made to be hard: boxes from black to white beyond the column and flat parts within it,
where gates are open and the smallest change of the structure tensor counts, and the other way
round.

    python experiments/reach.py --output results/reach.json
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from integrodiff import load_model
from integrodiff.engines import get_engine
from integrodiff.stages import Evolution

MODELS = ("pm", "eed", "iid", "iad", "iad-plus", "iad-fast", "iad-deep", "iad-full")
VOLUMES = ("iad-volume", "iad-plus-volume", "iad-fast-volume")
LEVELS = (2.0, 5.0, 15.0, 25.0, 60.0)
TOLERANCES = (0.1, 0.02, 0.005)
CUTS = {(64, 384): 128, (40, 40, 160): 64}


def hard_image(kind: int, sigma: float, seed: int, shape: tuple[int, ...]) -> NDArray[np.float64]:
    """Return boxes from 0 to 255 on one side or both, or an edge at the cut, with noise."""
    rng = np.random.default_rng((seed, kind))
    clean = np.full(shape, 128.0)
    *across, length = shape
    cut = CUTS[shape]
    first, last = [(0, cut), (0, length), (cut, length)][kind % 3]
    if kind < 3:
        for _ in range(40):
            corner = [int(rng.integers(0, size)) for size in across]
            left = int(rng.integers(first, last))
            sides = [int(side) for side in rng.integers(2, 40, len(shape))]
            box = [slice(at, at + side) for at, side in zip(corner, sides[:-1], strict=True)]
            clean[(*box, slice(left, min(left + sides[-1], last)))] = 255 * rng.integers(0, 2)
    else:
        clean[..., : cut - int(rng.integers(1, 12))] = 255 * rng.integers(0, 2)
    return np.asarray(clean + rng.normal(0, sigma, shape))


def errors(evolution: Evolution, sigma: float, *, exact: bool, seeds: int) -> NDArray[np.float64]:
    """Return the largest error at each distance or beyond."""
    shape, cut = list(CUTS.items())[evolution.dimensions - 2]  # of images, of volumes
    process = get_engine("auto").prepare(evolution, exact=exact, threads=1)
    worst = np.zeros(shape[-1] - cut)
    for kind in range(4):
        for seed in range(seeds):
            image = hard_image(kind, sigma, seed, shape)[None]
            part = np.ascontiguousarray(image[..., cut:])
            difference = np.abs(process(image)[..., cut:] - process(part))
            worst = np.maximum(worst, difference.reshape(-1, len(worst)).max(axis=0))
    # Near the far end the image is short; beyond half of it nothing is left of the cut.
    return np.maximum.accumulate(worst[::-1])[::-1]


def main() -> None:
    """Measure all models and write a table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--output", type=Path, default=Path("results/reach.json"))
    parser.add_argument("--seeds", type=int, default=2)
    parser.add_argument("--models", nargs="*", default=MODELS + VOLUMES)
    arguments = parser.parse_args()
    rows: list[dict[str, Any]] = []
    for model in arguments.models:
        for sigma in LEVELS:
            evolution = load_model(model).evolution(sigma)
            if model in VOLUMES:
                evolution = evolution.in_volume((1.0, 1.0, 1.0))
            for exact in (False, True):
                found = errors(evolution, sigma, exact=exact, seeds=arguments.seeds)
                row: dict[str, Any] = {"model": model, "sigma": sigma, "exact": exact}
                for tolerance in TOLERANCES:
                    needed = int(np.argmax(found < tolerance)) if found.min() < tolerance else None
                    row[str(tolerance)] = {
                        "needed": needed,
                        "reach": evolution.reach(tolerance)[0],
                    }
                rows.append(row)
                print(model, sigma, "exact" if exact else "", *(row[str(t)] for t in TOLERANCES))
    arguments.output.write_text(json.dumps({"rows": rows}, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
