"""What each ingredient of ``iad-plus`` brings: trained without it, from several starts.

    python experiments/compact_ingredients.py OUT.json --data FOLDER [--starts 3] [--count 16]
    python experiments/compact_ingredients.py OUT.json --table

Each variant lacks one ingredient and is trained anew, by ``integrodiff.learning.fit`` on the
processors, from the default start and from others, whose free numbers are moved by a normal
deviate of 0.15 each (most of them as logarithms). Training takes the centres of the first crops of
BSDS500 that are not held out; what is compared is the PSNR on the held-out training crops (numbers
3, 7, 11, ...), whole, as the mean over s = 10, 20, ..., 60. OUT.json is written after every
training, and what it has is not trained again.
"""

from __future__ import annotations

import argparse
import json
import time
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from integrodiff._atomic import atomic_write
from integrodiff.engines import get_engine
from integrodiff.learning import PAPER_LEVELS, bsds500
from integrodiff.learning.fit import FitSettings, fit
from integrodiff.learning.images import CleanImages, noise
from integrodiff.learning.parameters import Parameterisation
from integrodiff.learning.recipes import RECIPES, best_lineariser, versions
from integrodiff.models import CompactTensorDiffusion, ExplicitModel
from integrodiff.reproduction._results import markdown_table
from integrodiff.viz.metrics import psnr

LEVELS = (10.0, 20.0, 30.0, 60.0)
"""Noise levels of the training."""

SIZE = 128
NEVER = ("strengths[0]", "tau_exponent")
"""Numbers that no variant trains."""


@dataclass(frozen=True)
class Variant:
    """The law without one ingredient."""

    title: str
    model: CompactTensorDiffusion
    fixed: tuple[str, ...] = ()


def variants() -> dict[str, Variant]:
    """Return the whole law, and the law without each of its ingredients."""
    (whole,) = RECIPES["iad-plus"].starts(LEVELS[0])
    if not isinstance(whole, CompactTensorDiffusion):
        raise TypeError("iad-plus has another kind of law")
    law = whole.law
    narrowest = whole.integration_limits[1][0]
    one_order = replace(
        law,
        strengths=law.strengths[:1],
        contrasts=law.contrasts[:1],
        integration_scales=law.integration_scales[:1],
    )
    point = replace(law, integration_scales=(0.0, law.integration_scales[1]))
    narrow = (whole.integration_limits[0], (narrowest, narrowest))
    return {
        "all": Variant("all ingredients", whole),
        "order two": Variant(
            "derivatives of order two",
            replace(whole, law=one_order, integration_limits=whole.integration_limits[:1]),
        ),
        "integration one": Variant(
            "integration scale of order one",
            replace(whole, law=point),
            ("integration_scales[0]",),
        ),
        "integration two": Variant(
            f"wide integration scale of order two ({narrowest:g} pixels)",
            replace(whole, integration_limits=narrow),
            ("integration_scales[1]",),
        ),
        "integration law": Variant(
            "exponent of the integration scales in the noise level",
            replace(whole, law=replace(law, integration_exponent=0.0)),
            ("integration_exponent",),
        ),
        "drift": Variant(
            "fine scales first",
            replace(whole, exponent_drift=0.0),
            ("exponent_drift",),
        ),
        "growth": Variant(
            "contrasts that change over the steps",
            replace(whole, contrast_growth=1.0),
            ("contrast_growth",),
        ),
        "decay": Variant(
            "weights of coarse scales by the noise level",
            replace(whole, law=replace(law, decay=0.0)),
            ("decay",),
        ),
    }


def moved(variant: Variant, number: int) -> ExplicitModel:
    """Return the start of this number; zero is the default one."""
    known = Parameterisation(variant.model, LEVELS, (*NEVER, *variant.fixed))
    vector = known.vector(variant.model)
    shift = 0.15 * np.random.default_rng(number).standard_normal(len(vector)) * (number > 0)
    return known.model(vector + shift)


def quality(model: ExplicitModel, images: CleanImages) -> dict[str, float]:
    """Return the mean PSNR on the held-out crops at each level."""
    found = {}
    for level in PAPER_LEVELS:
        process = get_engine("auto").prepare(model.evolution(float(level)))
        values = []
        for k in range(3, len(images), 4):
            clean = images.pixels[k]
            noisy = (clean + noise(float(level), k, clean.shape)).astype(np.float32)
            values.append(psnr(process(noisy[None])[0], clean))
        found[f"{level:g}"] = round(float(np.mean(values)), 4)
    return found


def trained(variant: Variant, number: int, images: CleanImages, count: int) -> dict[str, Any]:
    """Train one variant from one start and measure it."""
    kept = [k for k in range(len(images)) if k % 4 != 3][:count]
    margin = (images.pixels.shape[-1] - SIZE) // 2
    inside = slice(margin, margin + SIZE)
    parts = CleanImages(
        np.ascontiguousarray(images.pixels[kept][:, inside, inside]),
        tuple(images.names[k] for k in kept),
        "centres of training crops",
    )
    fixed = (*NEVER, *variant.fixed)
    began = time.process_time()
    result = fit(
        moved(variant, number),
        parts,
        LEVELS,
        settings=FitSettings(phases=(4, None), tolerance=1e-3),
        fixed=fixed,
        lineariser=lambda p, i: best_lineariser(p, i, device="cpu"),
    )
    seconds = round(time.process_time() - began, 1)
    by_level = quality(result.model, images)
    return {
        "held_out": by_level,
        "mean": round(float(np.mean(list(by_level.values()))), 4),
        "training": round(result.psnr, 4),
        "numbers": len(Parameterisation(variant.model, LEVELS, fixed).names),
        "processor_seconds": seconds,
        "parameters": result.model.parameters(),
    }


def table(document: dict[str, Any]) -> str:
    """Return all variants as Markdown, with the mean over the starts and its range."""
    names = variants()
    means = {
        name: [run["mean"] for run in runs.values()] for name, runs in document["runs"].items()
    }
    lines = [
        [
            names[name].title,
            str(next(iter(document["runs"][name].values()))["numbers"]),
            f"{np.mean(found):.3f}",
            f"{min(found):.3f} to {max(found):.3f}",
            "" if name == "all" else f"{np.mean(found) - np.mean(means['all']):+.3f}",
        ]
        for name, found in means.items()
    ]
    return markdown_table(["without", "numbers", "mean", "range over the starts", "change"], lines)


def main() -> None:
    """Train what is missing, and print the table."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("output", type=Path)
    parser.add_argument("--data", type=Path, help="folder that holds bsds500")
    parser.add_argument("--starts", type=int, default=3)
    parser.add_argument("--count", type=int, default=16, help="training crops")
    parser.add_argument("--variants", nargs="+", default=list(variants()), choices=variants())
    parser.add_argument("--table", action="store_true", help="print the table alone")
    a = parser.parse_args()
    document: dict[str, Any] = {"crops": a.count, "levels": LEVELS, "size": SIZE, "runs": {}}
    if a.output.exists():
        document = json.loads(a.output.read_text(encoding="utf-8"))
    if not a.table:
        if document["crops"] != a.count:
            raise SystemExit(f"{a.output} has {document['crops']} crops; take another file")
        images = bsds500("train", a.data)
        for number in range(a.starts):
            for name in a.variants:
                runs = document["runs"].setdefault(name, {})
                if str(number) in runs:
                    continue
                runs[str(number)] = trained(variants()[name], number, images, a.count)
                document["versions"] = versions("cpu")
                with atomic_write(a.output, overwrite=True) as temporary:
                    temporary.write_text(json.dumps(document, indent=1) + "\n", encoding="utf-8")
                run = runs[str(number)]
                print(
                    f"{name}, start {number}: {run['mean']:.4f} dB, training "
                    f"{run['training']:.4f}, {run['processor_seconds']:g} s",
                    flush=True,
                )
    print(table(document))


if __name__ == "__main__":
    main()
