"""Train the reduced IAD with one setting changed at a time, and print what that costs.

    python experiments/ablation.py --data FOLDER [--count 16] [--levels 10 30 60] [--only NAME ...]
                                   [--json FILE]

Numbers are the mean PSNR on the training crops after training on them, all levels weighted alike;
test images are not used.
"""

from __future__ import annotations

import argparse
import json
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

from integrodiff import IAD, ReducedLaw
from integrodiff.learning import FitSettings, bsds500, fit
from integrodiff.learning.recipes import GRID, best_lineariser

BASE = IAD(law=ReducedLaw(alpha=0.63, beta=4.75, lambda_0=0.72), tau=1.22, scales=GRID)
"""Near the trained model; the other starts are where first trials ended."""

_GRADIENT = replace(
    BASE,
    law=ReducedLaw(alpha=0.02, beta=6.0, lambda_0=1.04),
    tau=0.55,
    scales=replace(GRID, quadrature="gradient"),
)


def _grid(**changes: Any) -> IAD:
    return replace(BASE, scales=replace(GRID, **changes))


VARIANTS = {
    "base": BASE,
    "quadrature over the scale": _GRADIENT,
    "no quadrature": replace(
        BASE,
        law=ReducedLaw(alpha=0.6, beta=6.0, lambda_0=1.5),
        tau=0.15,
        scales=replace(GRID, quadrature="none"),
    ),
    "smallest scale 0.2": _grid(smallest=0.2),
    "smallest scale 0.4": _grid(smallest=0.4),
    "largest scale 4": _grid(largest=4.0),
    "4 scales": _grid(count=4),
    "16 scales": replace(_grid(count=16), tau=1.1),
    "theta 0": replace(BASE, theta=0.0),
    "theta 0.15": replace(BASE, theta=0.15),
    "theta 0.4": replace(BASE, theta=0.4),
    "theta 0.5": replace(BASE, theta=0.5),
    "5 steps": replace(BASE, steps=5, tau=2.3),
    "20 steps": replace(BASE, steps=20, tau=0.62),
    "loss mse": BASE,
    "nonnegativity scheme": replace(BASE, discretisation="nonnegativity", tau=0.9),
}
"""Starting points; what is not named is as in the first."""


def main() -> None:
    """Train all variants and print a Markdown table."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--data", type=Path, help="folder that holds bsds500")
    parser.add_argument("--count", type=int, default=16, help="number of training crops")
    parser.add_argument("--levels", nargs="+", type=float, default=[10.0, 30.0, 60.0])
    parser.add_argument("--only", nargs="+", default=list(VARIANTS), metavar="NAME")
    parser.add_argument("--json", type=Path, help="write the numbers to this file as well")
    arguments = parser.parse_args()

    images = bsds500("train", arguments.data, arguments.count)
    about = {"images": len(images), "data_sha256": images.fingerprint, "levels": arguments.levels}
    variants: dict[str, Any] = {}
    print("| variant | " + " | ".join(f"s = {s:g}" for s in arguments.levels), end="")
    print(" | mean | tau / bound |\n" + "|---" * (len(arguments.levels) + 3) + "|")
    for name in arguments.only:
        began = time.perf_counter()
        settings = FitSettings(
            loss="mse" if name == "loss mse" else "psnr",
            phases=(None,),
            tolerance=1e-3 if name != "loss mse" else 2e-4,
            iterations=15,
        )
        found = fit(
            VARIANTS[name],
            images,
            arguments.levels,
            settings=settings,
            lineariser=best_lineariser,
        )
        model = found.model
        share = max(model.tau / model.stable_step(level) for level in arguments.levels)
        variants[name] = {
            **{f"{level:g}": round(psnr, 3) for level, psnr in found.by_level.items()},
            "mean": round(found.psnr, 4),
            "tau/bound": round(share, 3),
            "model": repr(model),
            "seconds": round(time.perf_counter() - began),
        }
        cells = " | ".join(f"{psnr:.2f}" for psnr in found.by_level.values())
        print(f"| {name} | {cells} | {found.psnr:.3f} | {share:.2f} |", flush=True)
        if arguments.json:  # after every variant, so that a stopped run loses little
            document = {**about, "variants": variants}
            arguments.json.write_text(json.dumps(document, indent=2) + "\n")


if __name__ == "__main__":
    main()
