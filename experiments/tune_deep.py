"""Tune the scales of a deep model and the laws of its channels on training crops; for processors.

    python experiments/tune_deep.py START OUT.json --data FOLDER [--crops 20] [--first 0]

Six numbers of each channel change: its scale, its share in the sum of squares, the exponents by
which weight and contrast follow the noise, and a factor each for its weights and for its contrasts
in all steps. One step of Gauss-Newton, whose derivatives are differences; of several dampings the
one is taken that is best on crops that the step has not seen. Call it again with the next
``--first`` to go on.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import Executor, ProcessPoolExecutor
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from integrodiff import denoise, load_model, save_model
from integrodiff.learning import bsds500
from integrodiff.learning.images import noise
from integrodiff.learning.recipes import versions
from integrodiff.models import DeepDiffusion
from integrodiff.models.compact import REFERENCE_LEVEL
from integrodiff.models.deep import Channel
from integrodiff.viz.metrics import psnr_of_error

_STEP = 0.04
_LARGEST = 0.4
_DAMPINGS = (0.1, 0.03, 0.01)
_KINDS = ("weights", "contrasts", "couplings", "scales", "weight_exponents", "contrast_exponents")
_MEASURED = 4  # kinds that need an evaluation for each channel; exponents follow from factors

Vector = NDArray[np.float64]


@dataclass(frozen=True)
class Task:
    """What every process needs to evaluate changes of a model."""

    model: DeepDiffusion
    crops: Mapping[int, NDArray[np.float32]]  # by number

    def changed(self, change: Vector) -> DeepDiffusion:
        """Return the model with a change ``(kind, channel)``: logarithms, and exponents."""
        model = self.model
        numbers = model.arrays()
        by_kind = dict(zip(_KINDS, change.reshape(len(_KINDS), -1), strict=True))
        channels = zip(model.channels, np.exp(by_kind["scales"]), strict=True)
        return replace(
            model,
            weights=_row(numbers.weights * np.exp(by_kind["weights"])),
            contrasts=_row(numbers.contrasts * np.exp(by_kind["contrasts"])),
            couplings=_row(numbers.couplings * np.exp(by_kind["couplings"])),
            weight_exponents=_row(numbers.weight_exponents + by_kind["weight_exponents"]),
            contrast_exponents=_row(numbers.contrast_exponents + by_kind["contrast_exponents"]),
            channels=tuple(Channel(c.order, float(c.scale * f)) for c, f in channels),
        )

    def residuals(self, chosen: Sequence[int], job: tuple[float, Vector]) -> NDArray[np.float32]:
        """Return denoised minus clean crops at a noise level for a change of the model."""
        level, change = job
        model = self.changed(change)
        found = []
        for number in chosen:
            clean = self.crops[number]
            noisy = (clean + noise(level, number, clean.shape)).astype(np.float32)
            found.append(denoise(noisy, level, model=model, data_range=255, threads=1) - clean)
        return np.array(found, np.float32)

    def psnr(self, chosen: Sequence[int], job: tuple[float, Vector]) -> float:
        """Return the mean PSNR over crops."""
        squares = np.square(self.residuals(chosen, job)).mean((1, 2))
        return float(np.mean(psnr_of_error(squares)))


def main() -> None:
    """Take one step and save the model."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("start", help="a deep model: its name or file")
    parser.add_argument("output", type=Path)
    parser.add_argument("--data", type=Path, help="folder that holds bsds500")
    parser.add_argument("--crops", type=int, default=20)
    parser.add_argument("--first", type=int, default=0, help="number of the first crop")
    parser.add_argument("--levels", nargs="+", type=float, default=[10.0, 30.0, 60.0])
    parser.add_argument("--jobs", type=int, default=2)
    arguments = parser.parse_args()
    began = time.perf_counter()
    model = load_model(arguments.start)
    if not isinstance(model, DeepDiffusion):
        raise SystemExit(f"{arguments.start} is not a deep model")
    images = bsds500("train", arguments.data)
    apart = len(images) // arguments.crops
    crops = [(arguments.first + k * apart) % len(images) for k in range(arguments.crops)]
    held_out = [(crop + apart // 2) % len(images) for crop in crops]
    task = Task(model, {number: images.pixels[number] for number in (*crops, *held_out)})
    with ProcessPoolExecutor(arguments.jobs) as workers:
        tuned, gains = _step(task, crops, held_out, arguments.levels, workers)
    provenance: dict[str, Any] = {
        **model.provenance,
        "tuned": [
            *model.provenance.get("tuned", []),
            {
                "recipe": "experiments/tune_deep.py",
                "crops": crops,
                "noise_levels": arguments.levels,
                "gain_on_other_training_crops": {f"{s:g}": round(g, 4) for s, g in gains.items()},
                "seconds": round(time.perf_counter() - began, 1),
                "date": datetime.now(UTC).date().isoformat(),
                "versions": versions("cpu"),
            },
        ],
    }
    provenance.pop("psnr_on_training_images", None)
    save_model(replace(tuned, provenance=provenance), arguments.output)


def _step(
    task: Task,
    crops: Sequence[int],
    held_out: Sequence[int],
    levels: Sequence[float],
    workers: Executor,
) -> tuple[DeepDiffusion, dict[float, float]]:
    """Return the model after one step, and what it gains on crops that were held out."""
    size = len(_KINDS) * len(task.model.channels)
    curvature, gradient = np.zeros((size, size)), np.zeros(size)
    for level in levels:
        one_curvature, one_gradient = _linearised(task, crops, level, workers)
        curvature += one_curvature
        gradient += one_gradient
        print(f"linearised at s = {level:g}", flush=True)
    changes = [np.zeros(size)]
    for damping in _DAMPINGS:
        damped = curvature + damping * np.diag(np.diag(curvature)) + 1e-7 * np.eye(size)
        changes.append(np.clip(-np.linalg.solve(damped, gradient), -_LARGEST, _LARGEST))
    jobs = [(level, change) for change in changes for level in levels]
    scores = np.reshape(list(workers.map(partial(task.psnr, held_out), jobs)), (-1, len(levels)))
    gains = scores - scores[0]
    for damping, gain in zip(_DAMPINGS, gains[1:], strict=True):
        print(f"damping {damping:g}:", np.round(gain, 4), f"mean {gain.mean():+.4f} dB", flush=True)
    best = int(np.argmax(gains.mean(1)))
    if best == 0:
        raise SystemExit("no step is better than none on the crops that were held out")
    model = task.changed(changes[best])
    print("scales:", [(c.order, round(c.scale, 3)) for c in model.channels])
    return model, dict(zip(levels, gains[best].tolist(), strict=True))


def _linearised(
    task: Task, crops: Sequence[int], level: float, workers: Executor
) -> tuple[NDArray[np.float64], Vector]:
    """Return curvature and gradient of the mean logarithmic error at a noise level."""
    channels = len(task.model.channels)
    size, measured = len(_KINDS) * channels, _MEASURED * channels
    steps = _STEP * np.eye(size)[:measured]
    jobs = [(level, change) for change in (np.zeros(size), *steps)]
    base, *others = workers.map(partial(task.residuals, crops), jobs)
    share = 1 / np.sqrt(np.square(base).mean((1, 2), keepdims=True))
    slopes = np.array([((other - base) * share / _STEP).ravel() for other in others])
    curvature = (slopes @ slopes.T).astype(np.float64) / base.size
    gradient = (slopes @ (base * share).ravel()).astype(np.float64) / base.size
    # An exponent changes weights or contrasts of all steps by the same factor, which is measured.
    exponents = np.log(level / REFERENCE_LEVEL) * np.eye(measured)[: 2 * channels]
    spread = np.vstack([np.eye(measured), exponents])
    return spread @ curvature @ spread.T, spread @ gradient


def _row(numbers: Any) -> tuple[float, ...]:
    return tuple(np.ravel(numbers).tolist())


if __name__ == "__main__":
    main()
