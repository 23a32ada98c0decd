"""Which laws beyond the paper's are worth their numbers? Cross-validation on the training crops.

    python experiments/compact_laws.py --data FOLDER [--count 64] [--levels 10 20 40 60]
                                       [--only NAME ...] [--json FILE]

Every variant is trained on every other training crop and evaluated on the others, and the other
way round. Test images are not used. Meant for a GPU; on a CPU take few crops.
"""

from __future__ import annotations

import argparse
import json
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from integrodiff.learning import CleanImages, FitSettings, Parameterisation, bsds500, fit
from integrodiff.learning.evaluation import mean_psnr
from integrodiff.learning.recipes import GRID, best_lineariser
from integrodiff.models import CompactDiffusion, PowerLaws
from level_weights import halves


def start(orders: int, **changes: Any) -> CompactDiffusion:
    """Return where training starts: the first order near the reduced IAD, others weak."""
    law = PowerLaws(
        strengths=(1.0, 0.1, 0.05, 0.02)[:orders],
        exponents=(-0.2, 0.0, 0.0, 0.0)[:orders],
        decays=(0.35, 0.5, 0.5, 0.5)[:orders],
        contrasts=(0.13, 0.15, 0.15, 0.15)[:orders],
        contrast_exponents=(0.95, 1.5, 1.8, 2.0)[:orders],
    )
    model = CompactDiffusion(law=law, tau=1.1, tau_exponent=0.17, scales=GRID)
    return replace(model, **changes)


FIRST = ("strengths[0]", "contrast_growth", "exponent_drift", "pull")
"""What is fixed unless a variant frees it: a common factor of all weights means nothing."""


def free(*names: str) -> tuple[str, ...]:
    """Return what is fixed when these are free."""
    return tuple(name for name in FIRST if name not in names)


SECOND = (*FIRST, "exponents[1]")

VARIANTS: dict[str, tuple[CompactDiffusion, tuple[str, ...]]] = {
    "order 1": (start(1), FIRST),
    "order 1, one step size": (start(1, tau_exponent=0.0), (*FIRST, "tau_exponent")),
    "order 1, contrasts that grow": (start(1, contrast_growth=1.05), free("contrast_growth")),
    "order 1, pull": (start(1, pull=0.01), free("pull")),
    "order 1, theta 0.15": (start(1, theta=0.15), FIRST),
    "order 1, theta 0.15, fine scales first": (
        start(1, theta=0.15, exponent_drift=0.5),
        free("exponent_drift"),
    ),
    "order 1, theta 0.15, fine scales first, contrasts that grow": (
        start(1, theta=0.15, exponent_drift=0.5, contrast_growth=1.02),
        free("exponent_drift", "contrast_growth"),
    ),
    "orders 1 and 2": (start(2), SECOND),
    "orders 1 and 2, exponent instead of decay": (
        replace(start(2), law=replace(start(2).law, decays=(0.2, 0.0))),
        (*FIRST, "decays[1]"),
    ),
    "orders 1 and 2, contrasts that grow": (
        start(2, contrast_growth=1.05),
        (*free("contrast_growth"), "exponents[1]"),
    ),
    "orders 1 and 2, theta 0.15": (start(2, theta=0.15), SECOND),
    "orders 1, 2 and 3": (start(3), (*SECOND, "exponents[2]")),
    "orders 1 to 4": (start(4), (*SECOND, "exponents[2]", "exponents[3]")),
}


def main() -> None:
    """Cross-validate all variants and print a Markdown table."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--data", type=Path, help="folder that holds bsds500")
    parser.add_argument("--count", type=int, default=64, help="number of training crops")
    parser.add_argument("--levels", nargs="+", type=float, default=[10.0, 20.0, 40.0, 60.0])
    parser.add_argument("--only", nargs="+", default=list(VARIANTS), metavar="NAME")
    parser.add_argument("--json", type=Path, help="write the numbers to this file as well")
    arguments = parser.parse_args()
    images = bsds500("train", arguments.data, arguments.count)
    parts = halves(images)
    document: dict[str, Any] = {
        "images": len(images),
        "data_sha256": images.fingerprint,
        "levels": arguments.levels,
        "variants": {},
    }
    levels = " | ".join(f"s = {s:g}" for s in arguments.levels)
    print(f"| variant | numbers | {levels} | held out | training |")
    print("|---" * (len(arguments.levels) + 4) + "|")
    for name in arguments.only:
        row = cross_validated(name, parts, arguments.levels)
        document["variants"][name] = row
        cells = " | ".join(f"{psnr:.2f}" for psnr in row["held_out"].values())
        print(
            f"| {name} | {row['numbers']} | {cells} | {row['mean']:.3f} | {row['training']:.3f} |",
            flush=True,
        )
        if arguments.json:
            arguments.json.write_text(json.dumps(document, indent=2) + "\n")


def cross_validated(
    name: str, parts: tuple[CleanImages, CleanImages], levels: list[float]
) -> dict[str, Any]:
    """Train on one half and evaluate on the other, both ways."""
    began = time.perf_counter()
    model, fixed = VARIANTS[name]
    settings = FitSettings(phases=(None,), tolerance=5e-4, iterations=25)
    held_out, training, found = [], [], []
    for train, test in (parts, parts[::-1]):
        result = fit(
            model, train, levels, settings=settings, fixed=fixed, lineariser=best_lineariser
        )
        held_out.append(list(mean_psnr(result.model, test, levels).values()))
        training.append(result.psnr)
        found.append(result.model)
    means = np.mean(held_out, axis=0)
    return {
        "numbers": len(Parameterisation(model, levels, fixed).names),
        "held_out": {f"{s:g}": round(float(v), 3) for s, v in zip(levels, means, strict=True)},
        "mean": round(float(means.mean()), 4),
        "training": round(float(np.mean(training)), 4),
        "models": [repr(m) for m in found],
        "seconds": round(time.perf_counter() - began),
    }


if __name__ == "__main__":
    main()
