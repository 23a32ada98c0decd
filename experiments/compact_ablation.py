"""What each ingredient of ``iad-plus`` brings, from several starts; on processors.

    python experiments/compact_ablation.py OUT.json --data FOLDER [--crops 10] [--size 128]
        [--starts 3] [--only NAME ...]

Each variant is the law of ``iad-plus`` with some of its numbers left out, trained by
Levenberg-Marquardt from the default start, and from starts whose numbers were moved at random by 15
percent. Training takes the middle parts of some BSDS500 training crops, of which every fourth is
held out; PSNR is that on 25 of these 50. OUT.json is written after every training, and what it has
is not trained again.
"""

from __future__ import annotations

import argparse
import json
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from integrodiff._atomic import atomic_write
from integrodiff.learning import FitSettings, Parameterisation, bsds500, fit
from integrodiff.learning.native import DifferenceLineariser
from integrodiff.learning.recipes import RECIPES
from integrodiff.models import CompactTensorDiffusion
from tune_models import held_out_psnr, middle_parts

LEVELS = (2.0, 5.0, 10.0, 20.0, 30.0, 45.0, 60.0, 100.0)
JUDGED = (10.0, 20.0, 30.0, 40.0, 50.0, 60.0)
COMMON = ("strengths[0]", "tau_exponent")
SCALE = ("integration_scales", "integration_exponent")


def default_start() -> CompactTensorDiffusion:
    """Return where the recipe of ``iad-plus`` starts."""
    (start,) = RECIPES["iad-plus"].starts(30.0)
    if not isinstance(start, CompactTensorDiffusion):
        raise TypeError(f"iad-plus starts from a {type(start).__name__}")
    return start


def order_one(model: CompactTensorDiffusion, scale: float, exponent: float) -> Any:
    """Return order one alone, with an integration scale."""
    law = replace(
        model.law,
        strengths=model.law.strengths[:1],
        contrasts=model.law.contrasts[:1],
        integration_scales=(scale,),
        integration_exponent=exponent,
    )
    return replace(model, law=law, integration_limits=model.integration_limits[:1])


def variants() -> dict[str, tuple[CompactTensorDiffusion, tuple[str, ...]]]:
    """Return start and fixed parameters of each variant."""
    both = default_start()
    constant = replace(both, law=replace(both.law, integration_exponent=0.0))
    return {
        "order one": (order_one(both, 0.0, 0.0), (*COMMON, *SCALE)),
        "order one, integration scale": (order_one(both, 1.0, 0.0), (*COMMON, SCALE[1])),
        "order one, integration scale by noise": (order_one(both, 1.0, 0.1), COMMON),
        "orders one and two, integration scales": (constant, (*COMMON, SCALE[1])),
        "iad-plus": (both, COMMON),
        "iad-plus, same scales in all steps": (
            replace(both, exponent_drift=0.0),
            (*COMMON, "exponent_drift"),
        ),
        "iad-plus, same contrasts in all steps": (
            replace(both, contrast_growth=1.0),
            (*COMMON, "contrast_growth"),
        ),
    }


def moved(model: CompactTensorDiffusion, fixed: tuple[str, ...], start: int) -> Any:
    """Return another start; number zero is the model itself."""
    parameterisation = Parameterisation(model, LEVELS, fixed)
    vector = parameterisation.vector(model)
    rng = np.random.default_rng(start)
    return parameterisation.model(vector + 0.15 * (start > 0) * rng.standard_normal(len(vector)))


def main() -> None:
    """Train all variants from all starts, and print a table."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("output", type=Path)
    parser.add_argument("--data", type=Path, help="folder that holds bsds500")
    parser.add_argument("--crops", type=int, default=10)
    parser.add_argument("--size", type=int, default=128)
    parser.add_argument("--starts", type=int, default=3)
    parser.add_argument("--only", nargs="+", choices=variants(), metavar="NAME")
    a = parser.parse_args()
    images = bsds500("train", a.data)
    parts = middle_parts(images, a.crops, a.size)
    settings = {"crops": a.crops, "size": a.size, "levels": LEVELS}
    document: dict[str, Any] = {"settings": settings, "variants": {}}
    if a.output.exists():
        document = json.loads(a.output.read_text(encoding="utf-8"))
    for start in range(a.starts):
        for name, (model, fixed) in variants().items():
            runs = document["variants"].setdefault(name, {})
            if str(start) in runs or (a.only and name not in a.only):
                continue
            began = time.process_time()
            result = fit(
                moved(model, fixed, start),
                parts,
                LEVELS,
                settings=FitSettings(phases=(None,), iterations=20, tolerance=3e-4),
                fixed=fixed,
                lineariser=DifferenceLineariser,
            )
            seconds = round(time.process_time() - began)
            psnr = held_out_psnr(result.model, images, JUDGED, 8)
            runs[str(start)] = {
                "numbers": len(Parameterisation(model, LEVELS, fixed).names),
                "psnr": round(float(np.mean(list(psnr.values()))), 4),
                "levels": {f"{s:g}": round(v, 4) for s, v in psnr.items()},
                "parameters": result.model.parameters(),
                "processor_seconds": seconds,
            }
            with atomic_write(a.output, overwrite=True) as temporary:
                temporary.write_text(json.dumps(document, indent=1) + "\n", encoding="utf-8")
            print(f"{name}, start {start}: {runs[str(start)]['psnr']:.4f}, {seconds} s", flush=True)
    print("| law | numbers | PSNR | starts |\n|---|---|---|---|")
    for name, runs in document["variants"].items():
        values = [run["psnr"] for run in runs.values()]
        spread = f" ± {np.std(values, ddof=1):.4f}" if len(values) > 1 else ""
        numbers = next(iter(runs.values()))["numbers"] if runs else "-"
        print(f"| {name} | {numbers} | {np.mean(values):.4f}{spread} | {len(values)} |")


if __name__ == "__main__":
    main()
