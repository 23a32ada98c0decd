"""Train the reduced IAD with one setting changed at a time, and print what that costs.

    python experiments/ablation.py --data FOLDER [--count 32] [--only base ...] [--json FILE]

Numbers are the mean PSNR on the training crops after training on them; test images are not used.
The fits saved in results/ablation.json took 369 s on an H200; on a CPU, take few crops.
"""

from __future__ import annotations

import argparse
import json
from dataclasses import replace
from pathlib import Path

from integrodiff import IAD, ReducedLaw, ScaleGrid
from integrodiff.learning import PAPER_LEVELS, FitSettings, bsds500, fit

_BASE = IAD(law=ReducedLaw(alpha=0.02, beta=6.0, lambda_0=1.04), tau=0.55)
_OVER_VARIANCE = replace(
    _BASE,
    law=ReducedLaw(alpha=0.05, beta=3.0, lambda_0=0.8),
    tau=0.5,
    scales=ScaleGrid(quadrature="variance"),
)

VARIANTS = {
    "base": _BASE,
    "quadrature over the variance": _OVER_VARIANCE,
    "quadrature over the variance, smallest scale 0.1": replace(
        _OVER_VARIANCE, scales=ScaleGrid(smallest=0.1, quadrature="variance")
    ),
    "quadrature over the variance, smallest scale 0.3": replace(
        _OVER_VARIANCE, scales=ScaleGrid(smallest=0.3, quadrature="variance")
    ),
    "no quadrature": replace(
        _BASE,
        law=ReducedLaw(alpha=0.6, beta=6.0, lambda_0=1.5),
        tau=0.15,
        scales=ScaleGrid(quadrature="none"),
    ),
    "smallest scale 0.1": replace(_BASE, scales=ScaleGrid(smallest=0.1)),
    "smallest scale 0.4": replace(_BASE, scales=ScaleGrid(smallest=0.4)),
    "largest scale 4": replace(_BASE, scales=ScaleGrid(largest=4.0)),
    "largest scale 10": replace(_BASE, scales=ScaleGrid(largest=10.0)),
    "theta 0": replace(_BASE, theta=0.0),
    "theta 0.15": replace(_BASE, theta=0.15),
    "theta 0.4": replace(_BASE, theta=0.4),
    "theta 0.5": replace(_BASE, theta=0.5),
    "5 steps": replace(_BASE, steps=5, tau=1.0),
    "20 steps": replace(_BASE, steps=20, tau=0.28),
    "nonnegativity scheme": replace(_BASE, discretisation="nonnegativity"),
    "loss mse": _BASE,
}
"""Starting points; what is not named is as in the first."""


def main() -> None:
    """Train all variants and print a Markdown table."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--data", type=Path, help="folder that holds bsds500")
    parser.add_argument("--count", type=int, default=32, help="number of training crops")
    parser.add_argument("--only", nargs="+", default=list(VARIANTS), metavar="NAME")
    parser.add_argument("--json", type=Path, help="write the numbers to this file as well")
    arguments = parser.parse_args()

    images = bsds500("train", arguments.data, arguments.count)
    table = {}
    print("| variant | " + " | ".join(f"s = {s}" for s in PAPER_LEVELS) + " | mean | tau / bound |")
    print("|---" * (len(PAPER_LEVELS) + 3) + "|")
    for name in arguments.only:
        settings = FitSettings(
            loss="mse" if name == "loss mse" else "psnr",
            phases=(None,),
            tolerance=5e-4,
            iterations=14,
        )
        found = fit(VARIANTS[name], images, [float(s) for s in PAPER_LEVELS], settings=settings)
        share = found.model.tau / found.model.stable_step(max(PAPER_LEVELS))
        by_level = {f"{level:g}": round(psnr, 3) for level, psnr in found.by_level.items()}
        table[name] = {**by_level, "mean": round(found.psnr, 4), "tau/bound": round(share, 3)}
        cells = " | ".join(f"{psnr:.2f}" for psnr in found.by_level.values())
        print(f"| {name} | {cells} | {found.psnr:.3f} | {share:.2f} |", flush=True)
    if arguments.json:
        arguments.json.write_text(json.dumps(table, indent=2) + "\n")


if __name__ == "__main__":
    main()
