"""Polish a deep model on a processor: Gauss-Newton by differences of the compiled engine.

    python experiments/polish_deep.py START OUT.json --data FOLDER [--groups channels|steps|single]
        [--parts N] [--size 128] [--draws 3] [--seed 0] [--held-out]
        [--similarity W ... [--at LEVEL ...]] [--allow 0.002] [--dampings D ...]
        [--report REPORT.json]

What changes are factors of groups of numbers, and the exponents and curvatures that belong to
them, whose derivatives follow from those in the factors. ``channels``: weights, contrasts and
couplings of each channel in all steps, integration scales of each order (in each step, if they have
exponents there), pulls, and scales of channels. ``steps``: these, and weights and contrasts of each
order in each step. ``single``: these, and every number by itself.

Derivatives are taken on random parts of the 150 BSDS500 training crops that are not held out, each
at a few of the noise levels; the loss is the mean of the logarithm of the mean squared error. Of
several dampings the one is taken that is best on other parts of the same crops, with other noise,
if it is no worse at any noise level. ``--held-out`` compares start and result on the 50 held-out
crops (numbers 3, 7, 11, ...), which the step has not seen.

``--similarity W`` subtracts W times the SSIM from the loss, at the noise levels of ``--at`` or at
all. Near the minimum of the mean squared error a small step changes SSIM in proportion to its
length, and the error with the square of it.
``--allow`` is the loss in dB that is accepted at a noise level. ``--report`` writes what each step
changes at each level, those that are not taken too.

OUT.json.state holds the sums over the parts that are done: a killed run goes on when its command is
repeated. Times are processor time.
"""

from __future__ import annotations

import argparse
import itertools
import json
import time
from collections.abc import Sequence
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, NamedTuple, cast

import numpy as np
from numpy.typing import NDArray
from skimage.metrics import structural_similarity

from integrodiff import load_model, save_model
from integrodiff._atomic import atomic_write
from integrodiff.engines.native import NativeProcess
from integrodiff.learning import bsds500
from integrodiff.learning.images import CleanImages, noise
from integrodiff.learning.parameters import Parameterisation
from integrodiff.learning.recipes import versions
from integrodiff.models import DeepDiffusion
from integrodiff.models.compact import REFERENCE_LEVEL
from integrodiff.models.deep import Channel
from integrodiff.viz.metrics import PEAK, psnr_of_error, ssim

LEVELS = (2, 5, 10, 15, 20, 25, 30, 40, 50, 60, 75, 100)
PAPER = (10, 20, 30, 40, 50, 60)
WEIGHTS = {2: 0.5, 5: 0.7, 75: 0.7, 100: 0.5}
"""Of the noise levels in the loss, as in ``train_models.py``; one for all others."""

DAMPINGS = (1.0, 0.3, 0.1, 0.03, 0.01)
_STEP = 0.01
_LARGEST = 0.3
_SAVED_EVERY = 10

Vector = NDArray[np.float64]


class Item(NamedTuple):
    """A part of a crop at a noise level."""

    crop: int
    level: int
    top: int
    left: int


class Group(NamedTuple):
    """Numbers that change together, and their exponents, with powers of the logarithmic level."""

    members: tuple[int, ...]
    derived: tuple[tuple[int, int], ...]


class Numbers:
    """All numbers of a deep model as a vector: those of :class:`Parameterisation`, and scales."""

    def __init__(self, model: DeepDiffusion) -> None:
        self.others = Parameterisation(model, LEVELS, fixed=("tau",))
        self.names = [*self.others.names, *(f"scales[{m}]" for m in range(len(model.channels)))]
        self.channels, self.orders = len(model.channels), len(model.orders)
        self.order_of = [model.orders.index(channel.order) for channel in model.channels]
        acting = model.acting or [range(self.channels)] * model.steps
        self.pairs = [(step, m) for step, acts in enumerate(acting) for m in acts]

    def places(self, name: str) -> dict[tuple[int, ...], int]:
        """Return where the numbers of a name are, by step, or by step and channel or order."""
        found = [n for n, known in enumerate(self.names) if known.split("[")[0] == name]
        if name in ("weights", "contrasts", "couplings"):
            return dict(zip(self.pairs, found, strict=True))
        if name in ("integration_scales", "mixes"):
            return {divmod(i, self.orders): n for i, n in enumerate(found)}
        return {(i,): n for i, n in enumerate(found)}

    def groups(self, kind: str) -> list[Group]:
        """Return the groups of numbers that get a factor each."""
        found: list[Group] = []

        def add(name: str, key: Any, *derived: tuple[str, int]) -> None:
            places = self.places(name)
            for value in sorted({key(place) for place in places}):
                members = tuple(n for place, n in places.items() if key(place) == value)
                names = [(f"{target}[{value}]", power) for target, power in derived]
                known = [(self.names.index(n), power) for n, power in names if n in self.names]
                found.append(Group(members, tuple(known)))

        def channel(place: tuple[int, ...]) -> int:
            return place[-1]

        def order_in_step(place: tuple[int, ...]) -> int:
            return self.orders * place[0] + self.order_of[place[1]]

        def step_and_order(place: tuple[int, ...]) -> int:
            return self.orders * place[0] + place[1]

        single = kind == "single"
        for name in ("weight", "contrast"):
            exponents, curvatures = (f"{name}_exponents", 1), (f"{name}_curvatures", 2)
            if len(self.places(exponents[0])) == self.channels:
                add(f"{name}s", channel, exponents, curvatures)
            else:
                add(f"{name}s", channel, curvatures)
                add(f"{name}s", self.pairs.index, exponents)
            if kind != "channels":
                add(f"{name}s", order_in_step, (f"step_{name}_exponents", 1))
        add("couplings", channel)
        of_steps = len(self.places("integration_exponents")) != self.orders
        of_scales = step_and_order if of_steps else channel
        add("integration_scales", of_scales, ("integration_exponents", 1))
        add("pulls", lambda _: 0, ("pull_exponents", 1))
        add("scales", channel)
        if single:
            for name in ("weights", "contrasts", "couplings", "integration_scales", "pulls"):
                found += [Group((n,), ()) for n in self.places(name).values()]
            found += [Group((n,), ()) for n in self.places("mixes").values()]
        return found

    def vector(self, model: DeepDiffusion) -> Vector:
        """Return the numbers of a model, most of them as logarithms."""
        scales = np.log([channel.scale for channel in model.channels])
        return np.concatenate([self.others.vector(model), scales])

    def model(self, vector: Vector) -> DeepDiffusion:
        """Return the model with these numbers."""
        count = len(self.others.names)
        model = cast(DeepDiffusion, self.others.model(vector[:count]))
        channels = zip(model.channels, np.exp(vector[count:]).tolist(), strict=True)
        return replace(model, channels=tuple(Channel(c.order, scale) for c, scale in channels))


class Sums:
    """Normal equations of each noise level, summed over parts of crops."""

    def __init__(self, size: int, done: int = 0) -> None:
        self.done = done
        self.counts = np.zeros(len(LEVELS))
        self.gradient = np.zeros((len(LEVELS), size))
        self.similarity = np.zeros((len(LEVELS), size))
        self.curvature = np.zeros((len(LEVELS), size, size))
        self.seconds = 0.0

    def add(self, level: int, residual: Any, tangents: Any, towards: Any) -> None:
        """Add one part, relative to its mean squared error; ``towards`` is the gradient of SSIM."""
        place = LEVELS.index(level)
        error = float(np.mean(residual.astype(np.float64) ** 2)) * residual.size
        self.counts[place] += 1
        self.gradient[place] += (tangents @ residual).astype(np.float64) / error
        self.similarity[place] += (tangents @ towards).astype(np.float64)
        self.curvature[place] += (tangents @ tangents.T).astype(np.float64) / error

    def save(self, path: Path) -> None:
        """Write all that a killed run needs."""
        with atomic_write(path, overwrite=True) as temporary, temporary.open("wb") as file:
            np.savez(file, **vars(self))

    @classmethod
    def load(cls, path: Path, size: int) -> Sums:
        """Return the sums of a killed run, or empty ones."""
        sums = cls(size)
        if path.exists():
            with np.load(path) as found:
                if found["gradient"].shape[1] != size:
                    raise SystemExit(f"{path} belongs to another model; remove it")
                for name in vars(sums):
                    value = found[name]
                    setattr(sums, name, value.item() if value.ndim == 0 else value)
            print(f"goes on after {sums.done} parts", flush=True)
        return sums

    def total(
        self, groups: Sequence[Group], size: int, at: Sequence[int] = LEVELS
    ) -> tuple[Vector, Vector, NDArray[np.float64], NDArray[np.float64]]:
        """Return gradients of error and SSIM, curvature, and directions, for the mean over levels.

        SSIM counts at the levels ``at`` alone. The gradient of the error is half that of its
        logarithm. There is a coordinate for each group and for each exponent or curvature of a
        group; its direction says what it changes of all ``size`` numbers.
        """
        coordinates = [(g, group.members, 0) for g, group in enumerate(groups)]
        coordinates += [(g, (n,), p) for g, group in enumerate(groups) for n, p in group.derived]
        directions = np.zeros((len(coordinates), size))
        for c, (_, members, _) in enumerate(coordinates):
            directions[c, list(members)] = 1.0
        gradient, similarity = np.zeros((2, len(coordinates)))
        curvature = np.zeros((len(coordinates), len(coordinates)))
        for place, level in enumerate(LEVELS):
            share = WEIGHTS.get(level, 1.0) / max(self.counts[place], 1)
            spread = np.zeros((len(coordinates), len(groups)))
            for c, (g, _, power) in enumerate(coordinates):
                spread[c, g] = np.log(level / REFERENCE_LEVEL) ** power
            gradient += share * spread @ self.gradient[place]
            similarity += (level in at) * share * spread @ self.similarity[place]
            curvature += share * spread @ self.curvature[place] @ spread.T
        return gradient, similarity, curvature, directions


def drawn(crops: Sequence[int], draws: int, size: int, room: int, seed: int) -> list[Item]:
    """Return parts of all crops in random order, each crop with some of the levels in turn."""
    rng = np.random.default_rng(seed)
    items = []
    for k, crop in enumerate(crops):
        for draw in range(draws):
            level = LEVELS[(k + draw * (len(LEVELS) // draws) + seed) % len(LEVELS)]
            top, left = rng.integers(0, room + 1, 2)
            items.append(Item(crop, level, int(top), int(left)))
    return [items[i] for i in rng.permutation(len(items))]


def clean_and_noisy(
    images: CleanImages, item: Item, size: int, seed: int
) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
    """Return a part and the same with noise, which differs from that of evaluations."""
    crop = images.pixels[item.crop]
    clean = np.ascontiguousarray(crop[item.top : item.top + size, item.left : item.left + size])
    number = 1_000_000 * (seed + 1) + 1000 * item.crop + item.top
    return clean, clean + noise(float(item.level), number, clean.shape)


class Changed:
    """The processes at one noise level: as it is, and with single groups changed."""

    def __init__(
        self, numbers: Numbers, groups: Sequence[Group], vector: Vector, level: int
    ) -> None:
        self.numbers, self.groups, self.vector, self.level = numbers, groups, vector, level
        self.base = process(numbers.model(vector), level)
        self.others: dict[int, NativeProcess] = {}

    def other(self, group: int) -> NativeProcess:
        """Return the process with one group changed; made once."""
        if group not in self.others:
            moved = self.vector.copy()
            moved[list(self.groups[group].members)] += _STEP
            # Without another search for the bound, which the model keeps by its weights.
            evolution = self.numbers.model(moved)._evolution(float(self.level))
            same = evolution.scales == self.base.evolution.scales
            self.others[group] = (
                self.base.like(evolution)
                if same
                else NativeProcess(evolution, exact=False, threads=1)
            )
        return self.others[group]

    def linearised(self, noisy: Any) -> tuple[Any, Any]:
        """Return the denoised image and its derivatives, as rows."""
        found = self.base(noisy[None])[0]
        others = (self.other(group)(noisy[None])[0] for group in range(len(self.groups)))
        changed = np.stack([(other - found).ravel() for other in others])
        return found, changed / np.float32(_STEP)


def process(model: DeepDiffusion, level: int) -> NativeProcess:
    """Return the process of a model at a noise level, on one thread."""
    return NativeProcess(model.evolution(float(level)), exact=False, threads=1)


def quality_by_level(
    model: DeepDiffusion, images: CleanImages, items: Sequence[Item], size: int, seed: int | None
) -> NDArray[np.float64]:
    """Return mean PSNR and SSIM of the items at each level; without seed, of whole crops."""
    values: dict[int, list[tuple[float, float]]] = {level: [] for level in LEVELS}
    for level in LEVELS:
        run = process(model, level)
        for item in items:
            if item.level != level:
                continue
            if seed is None:
                clean = images.pixels[item.crop]
                noisy = clean + noise(float(level), item.crop, clean.shape)
            else:
                clean, noisy = clean_and_noisy(images, item, size, seed)
            found = run(noisy[None])[0]
            error = np.mean((found.astype(np.float64) - clean) ** 2)
            values[level].append((float(psnr_of_error(error)), ssim(found, clean)))
    return np.array([np.mean(values[level], axis=0) for level in LEVELS]).T


def summary(gain: NDArray[np.float64]) -> str:
    """Return gains in words."""
    paper = np.mean([gain[LEVELS.index(s)] for s in PAPER])
    each = " ".join(f"{s}: {g:+.4f}" for s, g in zip(LEVELS, gain, strict=True))
    return f"mean of 10 to 60 {paper:+.4f}, {each}"


def by_level(values: NDArray[np.float64]) -> dict[str, float]:
    """Return values of all noise levels as they are stored."""
    return dict(zip(map(str, LEVELS), values.round(5).tolist(), strict=True))


def main() -> None:
    """Take one step and save the model."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("start", help="a deep model: its name or file")
    parser.add_argument("output", type=Path)
    parser.add_argument("--data", type=Path, help="folder that holds bsds500")
    parser.add_argument("--groups", default="steps", choices=["channels", "steps", "single"])
    parser.add_argument("--size", type=int, default=128, help="side of the parts")
    parser.add_argument("--draws", type=int, default=3, help="parts of each crop; divides twelve")
    parser.add_argument("--parts", type=int, help="only so many of the parts, in random order")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--similarity", type=float, nargs="+", default=[0.0], metavar="W")
    parser.add_argument("--at", type=int, nargs="+", default=LEVELS, choices=LEVELS, metavar="S")
    parser.add_argument("--allow", type=float, default=0.002, help="loss in dB at a level")
    parser.add_argument("--dampings", type=float, nargs="+", default=DAMPINGS, metavar="D")
    parser.add_argument("--report", type=Path, help="file for the gains of all steps")
    parser.add_argument("--held-out", action="store_true", help="compare on held-out crops")
    a = parser.parse_args()
    start = load_model(a.start)
    if not isinstance(start, DeepDiffusion):
        raise SystemExit(f"{a.start} is not a deep model")
    images = bsds500("train", a.data)
    room = images.pixels.shape[-1] - a.size
    kept = [k for k in range(len(images)) if k % 4 != 3]
    numbers = Numbers(start)
    vector = numbers.vector(start)
    state = a.output.with_name(a.output.name + ".state")
    groups = numbers.groups(a.groups)
    sums = Sums.load(state, len(groups))

    items = drawn(kept, a.draws, a.size, room, a.seed)[: a.parts]
    began = time.process_time() - sums.seconds
    if sums.done < len(items):
        changed = {level: Changed(numbers, groups, vector, level) for level in LEVELS}
        print(f"{len(groups)} groups", flush=True)
        for done, item in enumerate(items[sums.done :], sums.done + 1):
            clean, noisy = clean_and_noisy(images, item, a.size, a.seed)
            found, tangents = changed[item.level].linearised(noisy)
            _, towards = structural_similarity(clean, found, data_range=PEAK, gradient=True)
            sums.add(item.level, (found - clean).ravel(), tangents, towards.ravel())
            sums.done, sums.seconds = done, time.process_time() - began
            if done % _SAVED_EVERY == 0 or done == len(items):
                sums.save(state)
                print(f"{done} of {len(items)} parts, {sums.seconds:.0f} s", flush=True)

    gradient, similarity, curvature, directions = sums.total(groups, len(vector), a.at)
    others = drawn(kept, 2, a.size, room, a.seed + 1000)
    before = quality_by_level(start, images, others, a.size, a.seed + 1000)
    weights = [WEIGHTS.get(s, 1.0) for s in LEVELS]
    counts = np.array([s in a.at for s in LEVELS])
    best, best_gain, best_weight, best_damping = None, 0.0, 0.0, 0.0
    trials: list[dict[str, Any]] = []
    for weight, damping in itertools.product(a.similarity, a.dampings):
        damped = curvature + damping * np.diag(np.diag(curvature))
        damped += 1e-5 * np.trace(curvature) / len(gradient) * np.eye(len(gradient))
        step = np.linalg.solve(damped, gradient - weight / 2 * similarity)
        moved = vector - directions.T @ np.clip(step, -_LARGEST, _LARGEST)
        try:
            model = numbers.model(moved)
        except ValueError as error:  # scales that have changed places
            print(f"weight {weight:g}, damping {damping:g}: {error}", flush=True)
            continue
        psnr, alike = quality_by_level(model, images, others, a.size, a.seed + 1000) - before
        print(f"weight {weight:g}, damping {damping:g}: dB {summary(psnr)}; SSIM {summary(alike)}")
        trials.append({"weight_of_ssim": weight, "damping": damping})
        trials[-1] |= {"psnr": by_level(psnr), "ssim": by_level(alike)}
        # In dB, a factor of 10 / ln(10) for the logarithm of the error.
        gain = float(np.average(psnr + 4.343 * weight * counts * alike, weights=weights))
        if gain > best_gain and psnr.min() > -a.allow:
            best, best_gain, best_weight, best_damping = model, gain, weight, damping
    if best is None:
        raise SystemExit("no step is better than none")
    entry: dict[str, Any] = {
        "recipe": "experiments/polish_deep.py",
        "crops": "training crops without every fourth",
        "groups": a.groups,
        "size": a.size,
        "parts": sums.done,
        "seed": a.seed,
        "weight_of_ssim": best_weight,
        "levels_of_ssim": [s for s in a.at if best_weight],
        "damping": best_damping,
        "gain_on_other_parts": round(best_gain, 4),
        "processor_seconds": round(time.process_time() - began, 1),
        "date": datetime.now(UTC).date().isoformat(),
        "versions": versions("cpu"),
    }
    if a.held_out:
        held = [Item(k, s, 0, 0) for k in range(3, len(images), 4) for s in LEVELS]
        found = [quality_by_level(model, images, held, a.size, None) for model in (start, best)]
        for name, gain in zip(("dB", "SSIM"), found[1] - found[0], strict=True):
            print(f"held out, {name}: {summary(gain)}", flush=True)
        for what, before, values in zip(("psnr", "ssim"), *found, strict=True):
            entry[f"{what}_on_held_out_images"] = by_level(values)
            entry[f"{what}_before"] = by_level(before)
    provenance = {**start.provenance, "tuned": [*start.provenance.get("tuned", []), entry]}
    save_model(replace(best, provenance=provenance), a.output)
    print(json.dumps(entry), flush=True)
    if a.report:
        with atomic_write(a.report, overwrite=True) as temporary:
            document = {"start": a.start, "taken": entry, "gains_on_other_parts": trials}
            temporary.write_text(json.dumps(document, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
