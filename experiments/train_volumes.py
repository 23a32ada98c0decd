"""Train a model for volumes.

    python experiments/train_volumes.py OUTPUT.json --start MODEL --data FOLDER
        [--kinds natural ellipsoids anatomy thin] [--count 8] [--side 40]
        [--levels 5 8 12 18 27 40 60 90] [--draws 2] [--rounds 12] [--steps K]
        [--set NAME=VALUE ...] [--fixed NAME ...] [--processes 1]
    python experiments/train_volumes.py --table MODEL.json ... --data FOLDER

Training volumes, ``--count`` of each kind, are those of ``volume_phantoms.py``; photographs are the
training images of BSDS500 in FOLDER. Volume k has noise of ``--draws`` of the levels, in turn, from
``default_rng((100 * level, k))``. ``--set`` changes numbers of the model to begin with, and
``--fixed`` keeps some.

Levenberg-Marquardt on the parameters of the model, most of them as logarithms, with derivatives by
differences of the compiled engine. The loss is the mean logarithm of the squared error, as a mean
PSNR. After each round the model is written to OUTPUT.json and the state of training to
OUTPUT.state.json; the same command goes on from there, and ends at once if it is done.

``--table`` prints the mean PSNR of models on other volumes of each kind, from number 1000 on.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, field, replace
from datetime import date
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from integrodiff import load_model, save_model
from integrodiff._version import __version__
from integrodiff.engines import get_engine
from integrodiff.engines.base import Process
from integrodiff.learning.parameters import Parameterisation
from integrodiff.models import ExplicitModel
from volume_phantoms import KINDS, training_images, volume_of

Floats = NDArray[np.float64]

EQUAL = (1.0, 1.0, 1.0)
LEVELS = (5.0, 8.0, 12.0, 18.0, 27.0, 40.0, 60.0, 90.0)
FIRST_HELD_OUT = 1000

_DIFFERENCE = 0.02  # of a parameter, or of its logarithm
_MOST_CHANGE = 0.5  # in a round
_FIRST_DAMPING = 1e-2
_SMALLEST_GAIN = 2e-5  # of the loss, in a round


class Sample(NamedTuple):
    """A clean volume, and the same with noise."""

    kind: str
    clean: NDArray[np.float32]
    noisy: NDArray[np.float32]
    level: float


def samples(
    data: Path | None,
    kinds: Sequence[str],
    count: int,
    side: int,
    levels: Sequence[float],
    *,
    draws: int = 2,
    first: int = 0,
) -> list[Sample]:
    """Return volumes of each kind, each with noise of some of the levels."""
    if "natural" in kinds and data is None:
        raise SystemExit("natural volumes need --data")
    images = training_images(data) if data is not None and "natural" in kinds else []
    found = []
    for kind in kinds:
        for number in range(first, first + count):
            clean = volume_of(kind, number, side, images).astype(np.float32)
            for draw in range(min(draws, len(levels))):
                turn = number + KINDS.index(kind) + draw * len(levels) // draws
                level = levels[turn % len(levels)]
                rng = np.random.default_rng((round(100 * level), number))
                noisy = clean + rng.normal(0, level, clean.shape).astype(np.float32)
                found.append(Sample(kind, clean, noisy, level))
    return found


def processes(model: ExplicitModel, levels: Iterable[float]) -> dict[float, Process]:
    """Return the process at each noise level; its bounds and kernels take as long as a volume."""
    engine = get_engine("native")
    return {
        level: engine.prepare(model.evolution(level, None, EQUAL), threads=1) for level in levels
    }


def denoised(process: Process, sample: Sample) -> Floats:
    """Return the result of one volume."""
    return np.asarray(process(sample.noisy[None])[0], np.float64)


def squared_errors(model: ExplicitModel, found: Sequence[Sample]) -> list[float]:
    """Return the mean squared error of each result."""
    prepared = processes(model, {sample.level for sample in found})
    results = ((denoised(prepared[one.level], one), one.clean) for one in found)
    return [float(((result - clean) ** 2).mean()) for result, clean in results]


def psnr(model: ExplicitModel, found: Sequence[Sample]) -> dict[str, float]:
    """Return the mean PSNR of each kind, and of all."""
    table: dict[str, list[float]] = {}
    for sample, error in zip(found, squared_errors(model, found), strict=True):
        table.setdefault(sample.kind, []).append(float(10 * np.log10(255**2 / error)))
    means = {kind: round(float(np.mean(values)), 3) for kind, values in table.items()}
    return means | {"all": round(float(np.mean(list(means.values()))), 3)}


# ---- training ----


class Equations(NamedTuple):
    """Sums over samples: half the logarithm of the squared error, its gradient and curvature."""

    loss: float
    gradient: Floats
    curvature: Floats


def equations(model: ExplicitModel, shifted: list[ExplicitModel], found: list[Sample]) -> Equations:
    """Return the normal equations of Gauss and Newton for samples of one noise level."""
    levels = {found[0].level}
    here, *others = (processes(each, levels)[found[0].level] for each in (model, *shifted))
    count = len(shifted)
    loss, gradient, curvature = 0.0, np.zeros(count), np.zeros((count, count))
    for sample in found:
        result = denoised(here, sample)
        residual = (result - sample.clean).ravel()
        slopes = np.stack(
            [(denoised(other, sample) - result).ravel() / _DIFFERENCE for other in others]
        )
        error = float(residual @ residual)
        loss += 0.5 * float(np.log(error / residual.size))
        gradient += slopes @ residual / error
        curvature += slopes @ slopes.T / error
    return Equations(loss, gradient, curvature)


def loss_of(model: ExplicitModel, found: list[Sample]) -> float:
    """Return the loss of samples of one noise level alone."""
    return float(np.sum(0.5 * np.log(squared_errors(model, found))))


@dataclass
class Training:
    """Levenberg-Marquardt on some samples, which can be interrupted after each round."""

    parameters: Parameterisation
    found: Sequence[Sample]
    vector: Floats
    damping: float = _FIRST_DAMPING
    losses: list[float] = field(default_factory=list)
    converged: bool = False
    workers: int = 1

    def model(self) -> ExplicitModel:
        """Return the model as it is now."""
        return self._model(self.vector)

    def _model(self, vector: Floats) -> ExplicitModel:
        model = self.parameters.model(vector)
        if "tau" in self.parameters.names:
            return model
        # A step size that is not trained stays as it is, above the bounds of all levels or not.
        return replace(model, tau=self.parameters.template.tau)

    def _by_level(self) -> list[list[Sample]]:
        levels = sorted({sample.level for sample in self.found})
        return [[one for one in self.found if one.level == level] for level in levels]

    def loss(self, vector: Floats) -> float:
        """Return half the mean logarithm of the squared error."""
        groups = self._by_level()
        losses = _mapped(self.workers, loss_of, [(self._model(vector), group) for group in groups])
        return float(np.sum(losses)) / len(self.found)

    def round(self) -> None:
        """Take one step that makes the loss smaller, or find that there is none."""
        loss, gradient, curvature = self._normal_equations()
        if not self.losses:
            self.losses.append(loss)
        for _ in range(5):
            scale = self.damping * np.diag(np.diag(curvature) + 1e-6)
            step = -np.linalg.solve(curvature + scale, gradient)
            step = np.clip(step, -_MOST_CHANGE, _MOST_CHANGE)
            new = self.loss(self.vector + step)
            if new < loss:
                self.vector, self.damping = self.vector + step, self.damping / 4
                self.losses.append(new)
                self.converged = bool(loss - new < _SMALLEST_GAIN)
                return
            self.damping *= 8
        self.converged = True

    def _normal_equations(self) -> Equations:
        """Return the loss, its gradient and Gauss and Newton's approximation of its curvature."""
        here = self.model()
        units = np.eye(len(self.vector))
        shifted = [self._model(self.vector + _DIFFERENCE * unit) for unit in units]
        tasks = [(here, shifted, group) for group in self._by_level()]
        parts = _mapped(self.workers, equations, tasks)
        number = len(self.found)
        sums = [sum(part[k] for part in parts) / number for k in range(3)]
        return Equations(float(sums[0]), np.asarray(sums[1]), np.asarray(sums[2]))


def _mapped(workers: int, function: Callable[..., Any], tasks: list[Any]) -> list[Any]:
    """Return the results of all tasks, from some processes."""
    if workers == 1:
        return [function(*task) for task in tasks]
    with ProcessPoolExecutor(workers) as pool:
        return list(pool.map(function, *zip(*tasks, strict=True)))


def train(
    training: Training, rounds: int, state: Path, task: dict[str, Any], keep: Callable[[], None]
) -> None:
    """Train up to a number of rounds, from the saved state if it is of the same task.

    ``keep`` is called after each round, and the state is saved.
    """
    names = list(training.parameters.names)
    if state.exists():
        saved = json.loads(state.read_text())
        if saved["task"] != task or saved["names"] != names:
            raise SystemExit(f"{state} is of another training; remove it, or take another output")
        training.vector = np.array(saved["vector"])
        training.damping, training.losses = saved["damping"], saved["losses"]
        training.converged = saved["converged"]
    while len(training.losses) <= rounds and not training.converged:
        began = time.perf_counter()
        training.round()
        number = len(training.losses) - 1
        seconds = time.perf_counter() - began
        print(f"round {number}: loss {training.losses[-1]:.5f}, {seconds:.0f} s", flush=True)
        print("   ", training.parameters.values(training.vector), flush=True)
        keep()
        saved = {
            "task": task,
            "names": names,
            "vector": training.vector.tolist(),
            "damping": training.damping,
            "losses": training.losses,
            "converged": training.converged,
        }
        state.write_text(json.dumps(saved) + "\n")


def main(words: list[str] | None = None) -> None:
    """Train, and write the model file; or print a table."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("output", type=Path, nargs="?")
    parser.add_argument("--start", default="iad-plus-volume", help="model to begin with")
    parser.add_argument("--data", type=Path, help="folder that holds bsds500")
    parser.add_argument("--kinds", nargs="+", default=list(KINDS), choices=KINDS)
    parser.add_argument("--count", type=int, default=8, help="volumes of each kind")
    parser.add_argument("--side", type=int, default=40, help="voxels along each axis")
    parser.add_argument("--levels", nargs="+", type=float, default=list(LEVELS))
    parser.add_argument("--draws", type=int, default=2, help="noise levels of each volume")
    parser.add_argument("--rounds", type=int, default=12)
    parser.add_argument("--steps", type=int, help="number of explicit steps")
    parser.add_argument("--processes", type=int, default=1)
    parser.add_argument("--fixed", nargs="+", default=["strengths"], metavar="NAME")
    parser.add_argument("--set", nargs="+", default=[], metavar="NAME=VALUE", help="at the start")
    parser.add_argument("--table", nargs="+", default=[], metavar="MODEL")
    arguments = parser.parse_args(words)
    given = arguments.data, arguments.kinds, arguments.count, arguments.side, arguments.levels
    if arguments.table:
        held_out = samples(*given, draws=arguments.draws, first=FIRST_HELD_OUT)
        for name in arguments.table:
            model: Any = load_model(name)
            print(json.dumps({name: psnr(model, held_out)}), flush=True)
        return
    if arguments.output is None:
        parser.error("there must be an OUTPUT, or --table")
    start = start_of(arguments.start, arguments.steps, arguments.set)
    known = start.parameters()
    fixed = [name for name in arguments.fixed if name in known]
    found = samples(*given, draws=arguments.draws)
    parameters = Parameterisation(start, sorted({one.level for one in found}), fixed)
    training = Training(parameters, found, parameters.vector(start), workers=arguments.processes)
    task = {
        name: value
        for name, value in vars(arguments).items()
        if name not in ("output", "data", "rounds", "table", "processes")
    }
    task["start"] = Path(arguments.start).stem
    began = time.perf_counter()

    def keep() -> None:
        provenance = {
            "status": "trained",
            "dimensions": 3,
            "recipe": "experiments/train_volumes.py",
            "data": "made volumes (experiments/volume_phantoms.py)"
            + (" and BSDS500 train" if "natural" in arguments.kinds else ""),
            "noise_levels": list(parameters.levels),
            "loss": "psnr",
            "method": "Levenberg-Marquardt, differences",
            "training": task,
            "iterations": len(training.losses) - 1,
            "losses": [round(loss, 5) for loss in training.losses],
            "seconds": round(time.perf_counter() - began, 1),
            "date": date.today().isoformat(),
            "versions": {"integrodiff": __version__, "numpy": np.__version__},
        }
        save_model(replace(training.model(), provenance=provenance), arguments.output)

    train(training, arguments.rounds, arguments.output.with_suffix(".state.json"), task, keep)
    print("trained on:", json.dumps(psnr(training.model(), found)), flush=True)


def start_of(name: str, steps: int | None, settings: Sequence[str]) -> ExplicitModel:
    """Return the model to begin with, some of whose numbers are others."""
    loaded: Any = load_model(name)
    if not isinstance(loaded, ExplicitModel):
        raise SystemExit(f"{name} has parameters for each noise level; take another model")
    parameters = loaded.parameters()
    for setting in settings:
        key, value = setting.split("=")
        if key not in parameters:
            raise SystemExit(f"{name} has no parameter {key}; there are {', '.join(parameters)}")
        is_sequence = isinstance(parameters[key], list)
        parameters[key] = [float(value)] if is_sequence else float(value)
    model = type(loaded).build(parameters, loaded.settings())
    return model if steps is None else replace(model, steps=steps)


if __name__ == "__main__":
    main()
