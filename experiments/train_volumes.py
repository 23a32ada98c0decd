"""Train the compact law of order one on volumes: ``iad-plus-volume``.

    python experiments/train_volumes.py OUTPUT.json --data FOLDER [--kinds natural phantom]
                                        [--count 4] [--side 40] [--levels 10 25 50] [--rounds 8]

Two kinds of training volumes, ``--count`` of each, both without any scan of a patient or specimen:

natural
    Crops of BSDS500 training images (FOLDER/bsds500/images/train) that move, turn and grow smoothly
    from slice to slice, then turned by a random permutation of the axes.
phantom
    Random ellipsoids of all sizes and orientations on a smooth background, averaged over 2 x 2 x 2
    points of each voxel.

Levenberg-Marquardt on the logarithms of the parameters, with derivatives by differences of the
compiled engine. The loss is the mean logarithm of the squared error, as a mean PSNR. Numbers are
those of ``iad-plus`` at first. Noise of volume k at level s is that of ``default_rng((s, k))``.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Iterator
from dataclasses import replace
from datetime import date
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from PIL import Image
from scipy.ndimage import map_coordinates

from integrodiff import load_model, save_model
from integrodiff._version import __version__
from integrodiff.engines import get_engine
from integrodiff.models import CompactDiffusion

Floats = NDArray[np.float64]

ISOTROPIC = (1.0, 1.0, 1.0)


# ---- training volumes ----


def natural(paths: list[Path], number: int, side: int) -> Floats:
    """Return a photograph that moves, turns and grows from slice to slice."""
    rng = np.random.default_rng((1, number))
    path = paths[int(rng.integers(len(paths)))]
    image = np.asarray(Image.open(path).convert("L"), np.float64)
    z, y, x = np.meshgrid(*[np.arange(side) - (side - 1) / 2] * 3, indexing="ij")
    angle = rng.normal(0, 0.02) * z
    growth = np.exp(rng.normal(0, 0.01) * z)
    direction = rng.uniform(0, 2 * np.pi)
    speed = rng.uniform(0.3, 1.2)
    margin = 0.75 * side + speed * side
    height, width = image.shape
    row = rng.uniform(min(margin, height / 2), max(height - margin, height / 2))
    column = rng.uniform(min(margin, width / 2), max(width - margin, width / 2))
    rows = row + growth * (np.cos(angle) * y - np.sin(angle) * x) + speed * np.sin(direction) * z
    columns = column + growth * (np.sin(angle) * y + np.cos(angle) * x)
    columns = columns + speed * np.cos(direction) * z
    volume = map_coordinates(image, [rows, columns], order=3, mode="mirror")
    return np.ascontiguousarray(np.clip(volume, 0, 255).transpose(rng.permutation(3)))


def phantom(number: int, side: int) -> Floats:
    """Return random ellipsoids on a smooth background."""
    rng = np.random.default_rng((2, number))
    points = np.stack(np.meshgrid(*[(np.arange(2 * side) + 0.5) / 2] * 3, indexing="ij"), -1)
    volume = 60 + 60 * np.sin(points @ rng.normal(0, 1.5 / side, 3) + rng.uniform(0, 6))
    for _ in range(40):
        axes, _ = np.linalg.qr(rng.normal(size=(3, 3)))
        radii = side * np.exp(rng.uniform(np.log(0.04), np.log(0.45), 3))
        offset = (points - rng.uniform(0, side, 3)) @ axes / radii
        grey = rng.uniform(0, 255)
        texture = rng.uniform(0, 12) * np.sin(points @ rng.normal(0, 0.6, 3))
        volume = np.where((offset**2).sum(-1) < 1, grey + texture, volume)
    blocks = volume.reshape(side, 2, side, 2, side, 2).mean(axis=(1, 3, 5))
    return np.asarray(np.clip(blocks, 0, 255))


class Sample(NamedTuple):
    """A clean volume, and the same with noise."""

    kind: str
    clean: NDArray[np.float32]
    noisy: NDArray[np.float32]
    level: float


def samples(
    data: Path | None, kinds: list[str], count: int, side: int, levels: list[float], first: int = 0
) -> list[Sample]:
    """Return all training volumes at all noise levels."""
    found = []
    for kind in kinds:
        paths: list[Path] = []
        if kind == "natural":
            if data is None:
                raise SystemExit("natural volumes need --data")
            paths = sorted((data / "bsds500" / "images" / "train").glob("*.jpg"))
        for number in range(first, first + count):
            clean = natural(paths, number, side) if kind == "natural" else phantom(number, side)
            for level in levels:
                noise = np.random.default_rng((int(level), number)).normal(0, level, clean.shape)
                noisy = (clean + noise).astype(np.float32)
                found.append(Sample(kind, clean.astype(np.float32), noisy, level))
    return found


# ---- parameters ----

NAMES = ("exponents", "decays", "contrasts", "contrast_exponents")
STEPS = {"exponents": 0.02, "tau_exponent": 0.02, "exponent_drift": 0.05}
LOGARITHMIC = ("decays", "contrasts", "contrast_exponents", "contrast_growth", "tau")
ALL = (*NAMES, "tau_exponent", "contrast_growth", "exponent_drift", "tau")


def vector_of(model: CompactDiffusion) -> Floats:
    """Return the parameters as training sees them."""
    values = [
        getattr(model.law, name)[0] if name in NAMES else getattr(model, name) for name in ALL
    ]
    return np.array(
        [np.log(v) if n in LOGARITHMIC else v for n, v in zip(ALL, values, strict=True)]
    )


def model_of(vector: Floats, like: CompactDiffusion) -> CompactDiffusion:
    """Return the model with these parameters."""
    values = {
        name: float(np.exp(v) if name in LOGARITHMIC else v)
        for name, v in zip(ALL, vector, strict=True)
    }
    law = replace(like.law, **{name: (values.pop(name),) for name in NAMES})
    return replace(like, law=law, **values)  # type: ignore[arg-type]


def denoised(model: CompactDiffusion, sample: Sample) -> Floats:
    """Return the result of one volume."""
    evolution = model.evolution(sample.level, None, ISOTROPIC)
    process = get_engine("native").prepare(evolution, threads=1)
    return np.asarray(process(sample.noisy[None])[0], np.float64)


def psnr(model: CompactDiffusion, found: list[Sample]) -> dict[str, float]:
    """Return the mean PSNR of each kind and level."""
    table: dict[str, list[float]] = {}
    for sample in found:
        error = float(((denoised(model, sample) - sample.clean) ** 2).mean())
        key = f"{sample.kind} {sample.level:g}"
        table.setdefault(key, []).append(10 * np.log10(255**2 / error))
    return {key: round(float(np.mean(values)), 4) for key, values in table.items()}


def normal_equations(
    vector: Floats, like: CompactDiffusion, found: list[Sample]
) -> tuple[float, Floats, Floats]:
    """Return the mean of half the logarithms of squared errors, its gradient and its curvature."""
    loss, gradient, curvature = 0.0, np.zeros(len(ALL)), np.zeros((len(ALL), len(ALL)))
    shifted = []
    for k, name in enumerate(ALL):
        step = STEPS.get(name, 0.02)
        other = vector.copy()
        other[k] += step
        shifted.append((step, model_of(other, like)))
    here = model_of(vector, like)
    for sample in found:
        result = denoised(here, sample)
        residual = (result - sample.clean).ravel()
        slopes = np.stack(
            [(denoised(model, sample) - result).ravel() / step for step, model in shifted]
        )
        error = float(residual @ residual)
        loss += 0.5 * np.log(error / residual.size) / len(found)
        gradient += slopes @ residual / error / len(found)
        curvature += slopes @ slopes.T / error / len(found)
    return loss, gradient, curvature


def loss_of(vector: Floats, like: CompactDiffusion, found: list[Sample]) -> float:
    """Return the loss alone."""
    model = model_of(vector, like)
    errors = [float(((denoised(model, s) - s.clean) ** 2).mean()) for s in found]
    return float(np.mean(0.5 * np.log(errors)))


def trained(
    like: CompactDiffusion, found: list[Sample], rounds: int
) -> Iterator[tuple[CompactDiffusion, float]]:
    """Yield the model after each round of Levenberg-Marquardt, with its loss."""
    vector, damping = vector_of(like), 1e-2
    for _ in range(rounds):
        loss, gradient, curvature = normal_equations(vector, like, found)
        for _ in range(5):
            scale = damping * np.diag(np.diag(curvature) + 1e-6)
            step = np.clip(-np.linalg.solve(curvature + scale, gradient), -0.7, 0.7)
            new = loss_of(vector + step, like, found)
            if new < loss:
                vector, damping = vector + step, damping / 4
                break
            damping *= 8
        else:
            return
        yield model_of(vector, like), new


def main() -> None:
    """Train, and write the model file."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("output", type=Path)
    parser.add_argument("--data", type=Path, help="folder that holds bsds500")
    parser.add_argument("--kinds", nargs="+", default=["natural", "phantom"])
    parser.add_argument("--count", type=int, default=4, help="volumes of each kind")
    parser.add_argument("--side", type=int, default=40, help="voxels along each axis")
    parser.add_argument("--levels", nargs="+", type=float, default=[10.0, 25.0, 50.0])
    parser.add_argument("--rounds", type=int, default=8)
    parser.add_argument("--start", default="iad-plus-volume", help="model to begin with")
    parser.add_argument("--steps", type=int, help="number of explicit steps")
    arguments = parser.parse_args()
    began = time.perf_counter()
    start: Any = load_model(arguments.start)
    if arguments.steps:
        start = replace(start, steps=arguments.steps)
    given = arguments.data, arguments.kinds, arguments.count, arguments.side, arguments.levels
    found = samples(*given)
    print("before:", psnr(start, found), flush=True)
    model = start
    for number, (model, loss) in enumerate(trained(start, found, arguments.rounds), 1):
        print(f"round {number}: loss {loss:.5f}", model.parameters(), flush=True)
        finished = replace(
            model,
            provenance={
                "status": "trained",
                "dimensions": 3,
                "command": "python experiments/train_volumes.py",
                "data": f"{arguments.count} volumes of each kind: {', '.join(arguments.kinds)}; "
                f"{arguments.side} voxels along each axis, equal spacing",
                "noise_levels": arguments.levels,
                "loss": "psnr",
                "iterations": number,
                "seconds": round(time.perf_counter() - began, 1),
                "date": date.today().isoformat(),
                "versions": {"integrodiff": __version__, "numpy": np.__version__},
            },
        )
        save_model(finished, arguments.output)
    print("after:", json.dumps(psnr(model, found)), flush=True)
    print("held out:", json.dumps(psnr(model, samples(*given, first=1000))), flush=True)
    print("held out, before:", json.dumps(psnr(start, samples(*given, first=1000))), flush=True)


if __name__ == "__main__":
    main()
