"""Go on training a model of any kind on processors, by Levenberg-Marquardt with the package.

    python experiments/tune_models.py START OUT.json --data FOLDER [--crops 8] [--size 128]
                                      [--levels 2 5 10 ...] [--iterations 2]

The derivatives are differences of the compiled engine. Every fourth of the BSDS500 training crops
is held out, as in ``train_models.py``; of the others some are taken at equal distances, and of each
its middle. The checkpoint OUT.json.checkpoint lets a stopped run go on.
"""

from __future__ import annotations

import argparse
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from integrodiff import load_model, save_model
from integrodiff.learning import CleanImages, bsds500
from integrodiff.learning.evaluation import image_psnr
from integrodiff.learning.fit import FitSettings, Progress, fit
from integrodiff.learning.native import DifferenceLineariser
from integrodiff.models import DeepDiffusion, ExplicitModel

LEVELS = (2.0, 5.0, 10.0, 20.0, 30.0, 45.0, 60.0, 100.0)


def middle_parts(images: CleanImages, count: int, size: int) -> CleanImages:
    """Return the middle of some of the crops that are not held out."""
    kept = [k for k in range(len(images)) if k % 4 != 3]
    chosen = [kept[i * len(kept) // count] for i in range(count)]
    first = (images.pixels.shape[-1] - size) // 2
    pixels = images.pixels[chosen, first : first + size, first : first + size]
    names = tuple(images.names[k] for k in chosen)
    return CleanImages(
        np.ascontiguousarray(pixels), names, f"{images.source}, {count} middle parts"
    )


def held_out_psnr(model: ExplicitModel, images: CleanImages, levels: Any, step: int) -> Any:
    """Return the mean PSNR over some of the held-out crops, for each level."""
    held = range(3, len(images), step)
    return {
        level: float(
            np.mean(
                [
                    image_psnr(model, images.part(k, k + 1), level, first=k, exact=False)
                    for k in held
                ]
            )
        )
        for level in levels
    }


def main() -> None:
    """Train, compare on held-out crops, and save."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("start")
    parser.add_argument("output", type=Path)
    parser.add_argument("--data", type=Path, help="folder that holds bsds500")
    parser.add_argument("--crops", type=int, default=8)
    parser.add_argument("--size", type=int, default=128)
    parser.add_argument("--levels", nargs="+", type=float, default=list(LEVELS))
    parser.add_argument("--iterations", type=int, default=2)
    parser.add_argument("--held-step", type=int, default=16, help="distance of held-out crops")
    arguments = parser.parse_args()
    model = load_model(arguments.start)
    if not isinstance(model, ExplicitModel):
        raise SystemExit(f"{arguments.start} is joined from several models")
    images = bsds500("train", arguments.data)
    fixed = ("tau",) if isinstance(model, DeepDiffusion) else ("strengths[0]",)
    began = time.perf_counter()

    def show(progress: Progress) -> None:
        print(f"{progress.iteration} {progress.psnr:.4f} dB {progress.seconds:.0f} s", flush=True)

    result = fit(
        model,
        middle_parts(images, arguments.crops, arguments.size),
        arguments.levels,
        settings=FitSettings(phases=(None,), iterations=arguments.iterations, tolerance=1e-5),
        fixed=fixed,
        lineariser=DifferenceLineariser,
        checkpoint=arguments.output.with_name(arguments.output.name + ".checkpoint"),
        callback=show,
    )
    print(f"{time.perf_counter() - began:.0f} s", result.by_level)
    save_model(replace(result.model, provenance=model.provenance), arguments.output)
    for what, found in (("before", model), ("after", result.model)):
        psnr = held_out_psnr(found, images, arguments.levels, arguments.held_step)
        print(what, {f"{level:g}": round(value, 3) for level, value in psnr.items()}, flush=True)


if __name__ == "__main__":
    main()
