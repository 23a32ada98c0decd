r"""Train a deep model in which only some channels act in each step; meant for a GPU.

    python experiments/train_pairs.py effects EFFECTS.json [iad-deep] --data FOLDER
    python experiments/train_pairs.py train CROPS.npz OUT.json --start RUN.json \
        --effects EFFECTS.json --least 1e-4 --laws pairs --seconds 450 0
    python experiments/train_pairs.py train CROPS.npz NEXT.json --start OUT.json --seconds 200 200
    python experiments/train_models.py export NEXT.json MODEL.json --data FOLDER --fused

``effects`` measures what the PSNR of training crops loses without each pair of step and channel.
``train`` goes on from a run of ``train_models.py``, or from one of its own; with ``--effects`` only
the pairs that have an effect stay. CROPS.npz is that of ``train_models.py``. With ``--laws pairs``
each pair has exponents of its own in the noise level, with ``--laws steps`` those of its step and
those of its channel. ``--insert 4 8`` puts steps that do little after the fourth and the eighth.

A run has two phases, as in ``train_models.py``: with every fourth crop held out, then with all.
Every image of a batch is another part of another crop. The result is the mean of the numbers over
the last steps of descent, or the last numbers, whichever is better on the crops that are looked at.
OUT.json is written every few seconds, so that a killed run can be gone on with by ``--start``.
"""

# mypy: allow-untyped-calls

from __future__ import annotations

import argparse
import json
import math
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch

import accuracy_trials as trials
import train_models
from accuracy_trials import DEVICE, LEVELS, Tensor, mean_over_paper, tensor

LEVEL_WEIGHTS = (0.7, 0.8, 1.2, 0.7, 1.2, 0.7, 1.2, 1.2, 1.2, 1.2, 0.8, 0.7)
"""Of the noise levels in the loss: more where the mean of 10 to 60 is taken."""
RANGES = {
    "weight_exponents": (-8.0, 8.0),
    "contrast_exponents": (-4.0, 4.0),
    "rho_exponents": (-3.0, 3.0),
}
EVERY = 250
"""Steps of descent between two reports."""
RESERVE = 30.0
"""Seconds that are left for the evaluation before a deadline."""
EFFECT_LEVELS = (2.0, 10.0, 30.0, 60.0, 100.0)


# ---------------------------------------------------------------- effects of pairs


def effects_command(a: argparse.Namespace) -> None:
    """Measure what the PSNR loses without each pair of step and channel."""
    from dataclasses import replace

    from integrodiff import load_model
    from integrodiff.engines import get_engine
    from integrodiff.learning import bsds500
    from integrodiff.learning.images import noise

    model: Any = load_model(a.model)
    clean = bsds500("train", a.data, 48).pixels[5::6][:, 32:192, 32:192]
    count = len(model.channels)
    acting = model.acting or [range(count)] * model.steps
    pairs = [(step, m) for step, acts in enumerate(acting) for m in acts]
    engine = get_engine("auto")

    def quality(weights: np.ndarray) -> np.ndarray:
        changed = replace(model, weights=tuple(weights.tolist()))
        found = []
        for level in EFFECT_LEVELS:
            process = engine.prepare(changed.evolution(level))
            for k, image in enumerate(clean):
                noisy = (image + noise(level, k, image.shape)).astype(np.float32)
                error = np.asarray(process(noisy[None])[0], np.float64) - image
                found.append(10 * math.log10(255.0**2 / np.mean(error**2)))
        means: np.ndarray = np.reshape(found, (len(EFFECT_LEVELS), -1)).mean(1)
        return means

    known = np.array(model.weights)
    best = quality(known)
    losses = np.zeros((model.steps, count, len(EFFECT_LEVELS)))
    for i, pair in enumerate(pairs):
        weights = known.copy()
        weights[i] = 0
        losses[pair] = best - quality(weights)
        print(*pair, np.round(losses[pair], 4), flush=True)
    trials.save(a.output, {"levels": EFFECT_LEVELS, "losses": losses.tolist()})


# ---------------------------------------------------------------- the model


class Pairs(trials.Deep):
    """A deep model in which only some channels act in each step."""

    acting: Tensor

    def __init__(self, acting: np.ndarray, counts: tuple[int, int], laws: str) -> None:
        options = {"rho", "rho-steps", "couplings", "curved", "mix", "pull", "rho-laws"}
        self.laws = laws
        if laws == "steps":
            options.add("step-laws")
        super().__init__(len(acting), *counts, options, seed=0)
        if laws == "pairs":
            for name in ("weight_exponents", "contrast_exponents"):
                self.p[name] = tensor(np.zeros(acting.shape)).requires_grad_()
        self.acting = tensor(acting)

    @property
    def count(self) -> int:
        """Return how many numbers are free: those of a pair that does not act are not."""
        pairs = int(self.acting.sum())
        return sum(pairs if v.shape == self.acting.shape else v.numel() for v in self.parameters())

    def set(self, values: dict[str, Any]) -> None:
        """Take numbers as a run has them."""
        with torch.no_grad():
            for name, parameter in self.p.items():
                parameter.copy_(tensor(values[name]))


def of_channels(values: Any, counts: tuple[int, int]) -> np.ndarray:
    """Spread numbers ``(step, order)`` to the channels."""
    return np.repeat(np.asarray(values, np.float64), counts, axis=1)


def first_numbers(run: dict[str, Any], laws: str) -> dict[str, np.ndarray]:
    """Return the numbers of a run of ``train_models.py`` for this model.

    Numbers beyond their limits are brought back. Integration scales of order two, which were
    switches between both limits at one noise level, become steep laws in all steps.
    """
    p = {name: np.asarray(value, np.float64) for name, value in run["parameters"].items()}
    first, second = counts = tuple(run["channels"])
    steps = len(p["weights"])
    for name in ("weight_exponents", "contrast_exponents"):
        if laws == "pairs":
            p[name] = p[name] + of_channels(p.pop(f"step_{name}"), counts)
    (low_1, high_1), (low_2, high_2) = train_models.DEEP_LIMITS
    slope = float(p["rho_exponents"][0])
    p["rho"][:, 0] = np.clip(p["rho"][:, 0], math.log(max(low_1, 0.1)), math.log(high_1))
    p["rho"][:, 1] = np.clip(p["rho"][:, 1], math.log(low_2), math.log(high_2))
    p["rho_exponents"] = np.tile([slope, 2.0], (steps, 1))
    model = trials.Deep(steps, first, second, {"rho", "rho-steps", "couplings", "curved"}, 0)
    with torch.no_grad():
        for name in ("scales", "weights", "couplings"):
            model.p[name].copy_(tensor(p[name]))
        variance = (2 * model.p["scales"]).exp()
        coupling = (model.p["weights"] + model.p["couplings"]).exp()[None]
        steepest = model.steepest_gates(coupling, variance)[0].cpu().double().numpy()
    relative, absolute = train_models.CONTRAST_FLOOR
    floor = np.maximum(train_models.DEEP_CONTRAST, max(relative, absolute / 30) * steepest)
    if laws == "pairs":  # else the exponents of others would take them away from the floor
        below = p["contrasts"] < np.log(floor)
        p["contrasts"] = np.where(below, np.log(floor), p["contrasts"])
        p["contrast_exponents"] = np.where(below, 0.0, p["contrast_exponents"])
    return p


def with_more_steps(
    p: dict[str, np.ndarray], acting: np.ndarray, after: list[int]
) -> tuple[dict[str, np.ndarray], np.ndarray]:
    """Put a step that does little after each of some steps; it is like the one before."""
    steps = len(acting)
    origin = sorted([*range(steps), *(k - 1 for k in after)])
    new = np.array([i > 0 and origin[i] == origin[i - 1] for i in range(len(origin))])
    found = {
        name: value[origin] if value.ndim and len(value) == steps else value
        for name, value in p.items()
    }
    small = math.log(20.0)
    total = np.log(np.exp(found["weights"]).sum(1, keepdims=True))
    found["weights"] = np.where(
        new[:, None], found["weights"] - np.maximum(total, 0) - small, found["weights"]
    )
    found["couplings"] = np.where(
        new[:, None], found["couplings"] + np.maximum(total, 0) + small, found["couplings"]
    )
    found["pull"] = np.where(new, -9.0, found["pull"])
    return found, acting[origin]


def first_model(a: argparse.Namespace) -> Pairs:
    """Return the model to begin with."""
    run = json.loads(a.start.read_text())
    counts = tuple(run["channels"])
    if "acting" in run:
        laws, acting = run["laws"], np.array(run["acting"])
        p = {name: np.asarray(value, np.float64) for name, value in run["parameters"].items()}
    else:
        laws, p = a.laws, first_numbers(run, a.laws)
        acting = np.ones(p["weights"].shape, int)
    if a.effects:
        losses = np.array(json.loads(a.effects.read_text())["losses"])
        acting = acting * (np.abs(losses).max(-1) > a.least)
    p, acting = with_more_steps(p, acting, a.insert)
    model = Pairs(acting, counts, laws)
    model.set(p)
    model.limit()
    return model


# ---------------------------------------------------------------- training


class PairFit(train_models.Fit):
    """Descent on different parts of crops for all noise levels, with a mean of the numbers."""

    def __init__(self, model: Pairs, crops: Tensor, a: argparse.Namespace) -> None:
        super().__init__(model, crops, a.size, a.batch, a.seed)
        self.horizon = a.horizon
        self.averages = [p.detach().clone() for p in model.parameters()]

    def batch(self) -> tuple[Tensor, Tensor]:
        """Random parts of random crops of the pool, with noise of all levels."""
        size, n = self.size, self.copies * len(LEVELS)
        room = self.crops.shape[-1] - size
        which = self.pool[torch.randint(len(self.pool), (n, 1, 1), device=DEVICE)]
        y = torch.randint(room + 1, (n, 1, 1), device=DEVICE)
        x = torch.randint(room + 1, (n, 1, 1), device=DEVICE)
        inside = torch.arange(size, device=DEVICE)
        clean = self.crops[which, y + inside[:, None], x + inside]
        noise = torch.randn(clean.shape, device=DEVICE)
        noisy = clean + self.levels.repeat_interleave(self.copies)[:, None, None] * noise
        return clean, noisy.requires_grad_()

    @torch.no_grad()
    def average(self) -> None:
        """Take the numbers as they are into their mean."""
        share = 1 / min(self.iteration + 1, self.horizon)
        torch._foreach_lerp_(self.averages, [p.detach() for p in self.model.parameters()], share)

    def averaged(self) -> dict[str, Any]:
        """Return the means as a run has its numbers."""
        return {
            name: value.cpu().double().numpy().tolist()
            for name, value in zip(self.model.p, self.averages, strict=True)
        }

    def descend(self, crops: list[int], rate: float, a: argparse.Namespace, seconds: float) -> Any:
        """Descend for some seconds; the rate rises, then falls as a cosine. Yields for reports."""
        self.pool.copy_(torch.tensor(np.resize(crops, len(self.pool)), device=DEVICE))
        self.iteration = 0
        began, mean = time.perf_counter(), None
        while True:
            passed = time.perf_counter() - began
            position = max(passed / seconds, self.iteration / a.iterations)
            if position >= 1:
                break
            self.step(rate * min(1.0, position / 0.05) * (1 + math.cos(math.pi * position)) / 2)
            self.average()
            self.iteration += 1
            if self.iteration % 10 == 0:
                found = float(self.losses.cpu())  # also waits for the device
                mean = found if mean is None else 0.95 * mean + 0.05 * found
            if self.iteration % EVERY == 0:
                yield f"{self.iteration:6d} {passed:6.1f} s  {48.131 - (mean or 0):.3f}"


def evaluated(model: Pairs, pixels: np.ndarray, numbers: list[int]) -> dict[str, float]:
    """Return the PSNR at all levels, without compilation, some crops at a time."""
    compiled, trials.COMPILE = trials.COMPILE, False
    parts = [numbers[i : i + 50] for i in range(0, len(numbers), 50)]
    found = [trials.evaluate(model, 0, pixels[part], part) for part in parts]
    trials.COMPILE = compiled
    shares = [len(part) / len(numbers) for part in parts]
    return {
        level: sum(share * one[level] for share, one in zip(shares, found, strict=True))
        for level in found[0]
    }


def train_command(a: argparse.Namespace) -> None:
    """Train through both phases; those with zero seconds are left out."""
    use_settings_of_deep()
    deadline = a.deadline or math.inf
    pixels = train_models.crops_of(a)
    model = first_model(a)
    training = PairFit(model, tensor(pixels), a)
    document: dict[str, Any] = {
        "settings": {k: v for k, v in train_models.settings(a).items() if k != "deadline"},
        "numbers": model.count,
        "channels": list(model.counts),
        "laws": model.laws,
        "acting": model.acting.int().tolist(),
        "parameters": model.found(),
    }
    trials.save(a.output, document)
    held = list(range(3, len(pixels), 4))
    kept = [k for k in range(len(pixels)) if k % 4 != 3]
    began = time.perf_counter()
    document["start_held_out"] = evaluated(model, pixels, held)
    print(trials.line(f"{model.count} numbers, start", document["start_held_out"]), flush=True)
    training.step(1e-9)
    if DEVICE.type == "cuda":
        torch.cuda.synchronize()
    print(f"{time.perf_counter() - began:.1f} s until the first step", flush=True)
    for phase, (crops, looked_at) in enumerate(((kept, held), (held + kept, held + kept))):
        left = deadline - time.time() - RESERVE
        if phase == 0 and sum(a.seconds) > 0:
            left *= a.seconds[0] / sum(a.seconds)
        seconds = min(a.seconds[phase], left)
        if seconds <= 0:
            continue
        for report in training.descend(crops, a.rates[phase], a, seconds):
            print(phase, report, flush=True)
            trials.save(a.output, {**document, "parameters": training.averaged()})
        choices = [training.averaged(), model.found()]
        found = []
        for values in choices:
            model.set(values)
            found.append(evaluated(model, pixels, sorted(looked_at)))
            print(trials.line(f"phase {phase}", found[-1]), flush=True)
        best = max(range(2), key=lambda i: mean_over_paper(found[i]))
        document["parameters"] = choices[best]
        document[("held_out", "training")[phase]] = found[best]
        document[f"parameters_{phase + 1}"] = choices[best]
        document[f"iterations_{phase + 1}"] = training.iteration
        document["seconds"] = round(time.perf_counter() - began, 1)
        trials.save(a.output, document)
        model.set(choices[best])
    print(f"{time.perf_counter() - began:.1f} s in all", flush=True)


def use_settings_of_deep() -> None:
    """Set the limits of the deep model."""
    trials.INTEGRATION_LIMITS = train_models.DEEP_LIMITS
    trials.SMALLEST_CONTRAST = train_models.DEEP_CONTRAST
    trials.CONTRAST_FLOOR = train_models.CONTRAST_FLOOR
    trials.LEVEL_WEIGHTS = LEVEL_WEIGHTS
    trials.HOLD_AT_LIMITS = True
    trials.RANGES.update(RANGES)


# ---------------------------------------------------------------- command line


def main() -> None:
    """Read the command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    commands = parser.add_subparsers(required=True)
    one = commands.add_parser("effects", help="measure what each pair does")
    one.add_argument("output", type=Path)
    one.add_argument("model", nargs="?", default="iad-deep")
    one.add_argument("--data", type=Path, help="folder that holds bsds500")
    one.set_defaults(run=effects_command)
    one = commands.add_parser("train", help="train a model")
    one.add_argument("crops", type=Path)
    one.add_argument("output", type=Path)
    one.add_argument("--start", type=Path, required=True, help="file of an earlier run")
    one.add_argument("--effects", type=Path, help="file of the effects of its pairs")
    one.add_argument("--least", type=float, default=1e-4, help="effect in dB of pairs that act")
    one.add_argument("--laws", choices=["pairs", "steps"], default="pairs")
    one.add_argument("--insert", type=int, nargs="*", default=[], help="steps to put one after")
    one.add_argument("--count", type=int, help="number of crops, the first ones")
    one.add_argument("--size", type=int, default=128, help="side of the parts trained on")
    one.add_argument("--batch", type=int, default=4, help="parts for each noise level")
    one.add_argument("--seconds", type=float, nargs=2, default=[1e9, 1e9], help="of the phases")
    one.add_argument("--iterations", type=int, default=1_000_000, help="at most, in a phase")
    one.add_argument("--rates", type=float, nargs=2, default=[0.02, 0.006])
    one.add_argument("--horizon", type=int, default=400, help="steps that the mean is taken over")
    one.add_argument("--deadline", type=float, help="seconds since 1970 at which all must end")
    one.add_argument("--seed", type=int, default=0)
    one.set_defaults(run=train_command)
    arguments = parser.parse_args()
    arguments.run(arguments)


if __name__ == "__main__":
    main()
