"""Try whether a second pass helps: its structure tensors see the result of the first, too.

    python experiments/second_pass.py crops CROPS.npz --data FOLDER
    python experiments/second_pass.py check
    python experiments/second_pass.py train CROPS.npz OUT.json --variants 12 6+6 --limit 270
    python experiments/second_pass.py table OUT.json [OTHER-SEED.json ...]

A variant is a number of steps for each pass, such as ``12``, ``6+6`` or ``8+8``. Every pass starts
from the noisy image. From the second pass on, the structure tensor of each order is

    J = (1 - m) J(u_k) + m J(w),    m in [0, 1],

where w is the result of the pass before; couplings, integration scale and mix of eigenvalues are
those of the step. There is an m for each order and step, or with ``6+6/orders`` one for each order.
J is as semidefinite as before, so the gates have eigenvalues in [0, 1] and the bound of a step is
that of one pass. The pull goes to the noisy image in all passes. ``check`` verifies this in double
precision on small images: one pass against ``accuracy_trials.evolve``, m = 0, the derivatives, the
eigenvalues of steps of the second pass, and the norm and mean of results.

The model is the deep one of ``train_models.py`` with pull, mix and exponents of the steps; limits,
weights of noise levels and batches are those of ``train_pairs.py``. Every pass begins with the same
law, scaled to its number of steps, or with ``--start trials`` with the deep model of
``results/accuracy-trials.json``. All variants of a run are trained in turns, an iteration each, on
the same batches, so they have equal numbers of iterations. ``--limit`` is the time in seconds from
the end of the imports, compilation and evaluation included. Judged is the mean of the numbers over
the last iterations, on every fourth training crop, which no variant was trained on. OUT.json is
written every few seconds. If compilation or the recording of a step fails, training goes on
without it.
"""

# mypy: allow-untyped-calls

from __future__ import annotations

import argparse
import json
import math
import time
import traceback
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

import accuracy_trials as trials
import train_models
import train_pairs
from accuracy_trials import DEVICE, LEVELS, Tensor, mean_over_paper, tensor

OPTIONS = {"rho", "rho-steps", "couplings", "curved", "pull", "mix", "step-laws"}
OF_EACH_STEP = (
    *("weights", "contrasts", "couplings", "rho", "mix", "pull"),
    *("step_weight_exponents", "step_contrast_exponents"),
)
"""Parameters whose first axis is the step."""
START = 0.5
"""Shares of the first pass's result in J, before training."""
PEAK = 48.131
"""20 log10(255), the PSNR of an error of one grey level."""
SAVED_EVERY = 20.0
"""Seconds between two writes of OUT.json."""
WAITED_EVERY = 10
"""Iterations between two looks at the losses, which wait for the device."""
MARGIN = 1.3
"""Factor on the expected time of the evaluation."""
MODES = (("compiled, recorded", True, True), ("recorded", False, True), ("eager", False, False))
"""Ways to run an iteration: name, whether it is compiled, whether it is a CUDA graph."""

one_pass = trials.evolve


# ---------------------------------------------------------------- the model


@dataclass(frozen=True)
class Variant:
    """How many steps each pass has, and whether the shares in J are free at each step."""

    passes: tuple[int, ...]
    free_at_steps: bool = True

    @classmethod
    def of(cls, name: str) -> Variant:
        """Return the variant with a name such as ``6+6`` or ``6+6/orders``."""
        passes, _, shares = name.partition("/")
        if shares not in ("", "steps", "orders"):
            raise argparse.ArgumentTypeError(f"{name}: after the slash comes steps or orders")
        try:
            counts = tuple(int(count) for count in passes.split("+"))
        except ValueError:
            counts = ()
        if not counts or min(counts) < 1:
            raise argparse.ArgumentTypeError(f"{name}: use numbers of steps such as 12 or 6+6")
        return cls(counts, shares != "orders")

    def __str__(self) -> str:
        return "+".join(map(str, self.passes)) + "/orders" * (not self.free_at_steps)


@dataclass
class Passes(trials.Numbers):
    """Numbers of all steps of all passes, one after another."""

    passes: tuple[int, ...] = ()
    shares: Tensor | None = None  # (steps after the first pass, orders)


class DeepPasses(trials.Deep):
    """The deep model in one or several passes.

    Parameters
    ----------
    variant
        Steps of each pass, and the kind of shares.
    counts
        Channels of order one and of order two.
    seed
        Of the disturbance of the law that each pass starts from.
    start
        Numbers of an earlier run that each pass starts from instead.
    """

    def __init__(
        self, variant: Variant, counts: tuple[int, int], seed: int, start: Any = None
    ) -> None:
        passes = variant.passes
        super().__init__(sum(passes), *counts, OPTIONS, seed)
        self.passes = passes
        parts = [
            trials.Deep(count, *counts, OPTIONS, seed + 1000 * i) for i, count in enumerate(passes)
        ]
        if start:
            for part in parts:
                train_models.deep_start(part, start)
        for name, own in parts[0].p.items():
            if name in OF_EACH_STEP:
                own = torch.cat([part.p[name] for part in parts])
            self.p[name] = own.detach().clone().requires_grad_()
        if len(passes) > 1:
            later = sum(passes[1:]) if variant.free_at_steps else 1
            self.p["shares"] = tensor(np.full((later, 2), START)).requires_grad_()

    def numbers(self, levels: Tensor, copies: int, boxes: int, only: int | None = None) -> Passes:
        """Return the numbers at all levels, each for ``copies`` images."""
        found = super().numbers(levels, copies, boxes, only)
        later = sum(self.passes[1:])
        shares = self.p["shares"].expand(later, 2) if later else None
        return Passes(**vars(found), passes=self.passes, shares=shares)

    def set(self, values: dict[str, Any]) -> None:
        """Take numbers as a run has them."""
        with torch.no_grad():
            for name, parameter in self.p.items():
                parameter.copy_(torch.as_tensor(values[name]))


def present(value: Tensor | None) -> Tensor:
    """Return numbers that the deep model always has."""
    if value is None:
        raise TypeError("the model has integration scales and a second order")
    return value


def structures(
    v: Tensor, guide: Tensor | None, numbers: trials.Numbers, step: int, shares: Any
) -> tuple[Tensor, Tensor]:
    """Return the smoothed structure tensors of both orders.

    Parameters
    ----------
    v, guide
        All scales of the image, and those of the result of the pass before, if there is one.
    numbers, step
        Numbers of all steps, and which one this is.
    shares
        Those of ``guide``, one for each order.
    """
    do, size, found = trials.pieces(), v.shape[-1], []
    for order, (part, coupling, mix, variances, kinds) in enumerate(
        (
            (
                numbers.first,
                numbers.coupling_1,
                numbers.mix_1,
                numbers.rho_1,
                ("cells", "odd cells"),
            ),
            (numbers.second, numbers.coupling_2, numbers.mix_2, numbers.rho_2, ("even", "odd")),
        )
    ):
        structure = do[("structure_first", "structure_second")[order]]
        weight, mixed, variance = coupling[step], mix[step], present(variances)[step]
        if guide is None:
            j = structure(v[part], weight, mixed)
        else:  # the mix of eigenvalues and the smoothing are linear in J
            share = shares[order]
            j = structure(v[part], (1 - share) * weight, mixed)
            j = j + structure(guide[part], share * weight, mixed)
        trials.precise(True)
        even, odd = (trials.blur_matrices(kind, size, variance) for kind in kinds)
        trials.precise(not variance.requires_grad)
        found.append(trials.smoothed_tensor(j, even, odd))
    return found[0], found[1]


def flow(v: Tensor, j: tuple[Tensor, Tensor], numbers: trials.Numbers, step: int) -> Tensor:
    """Return the flows of all channels, before the blur back."""
    do, flux_2 = trials.pieces(), present(numbers.flux_2)
    first, second = v[numbers.first], v[numbers.second]
    flow_1 = do["flow_first"](first, j[0], numbers.flux_1[step], numbers.contrast_1[step])
    flow_2 = do["flow_second"](second, j[1], flux_2[step], numbers.contrast_2[step])
    return torch.cat([flow_1, flow_2]).contiguous()


def evolve(u: Tensor, numbers: trials.Numbers, variance: Tensor) -> Tensor:
    """Return (B, H, W) after all passes; ``variance`` has the squares of the scales."""
    if not isinstance(numbers, Passes):
        return one_pass(u, numbers, variance)
    trials.precise(True)
    k = trials.blur_matrices("even", u.shape[-1], variance.detach())
    original, guide, shares, step = u, None, None, 0
    for number, count in enumerate(numbers.passes):
        if number:
            trials.precise(True)
            guide, u = trials.Blur.apply(u, k, variance), original
        for _ in range(count):
            trials.precise(True)
            v = trials.Blur.apply(u, k, variance)
            if number:
                shares = present(numbers.shares)[step - numbers.passes[0]]
            j = structures(v, guide, numbers, step, shares)
            f = flow(v, j, numbers, step)
            trials.precise(True)
            change = trials.BlurAdjoint.apply(f, k, variance)
            change = change + present(numbers.pull)[step][:, None, None] * (original - u)
            u = u + change
            step += 1
    return u


def use_passes() -> None:
    """Let training and evaluation of the trials use this model, with the limits of the deep one."""
    train_pairs.use_settings_of_deep()
    trials.RANGES["shares"] = (0.0, 1.0)
    trials.evolve = evolve


# ---------------------------------------------------------------- training


class FitBeside(train_pairs.PairFit):
    """Descent on batches that all variants share.

    Parameters
    ----------
    model, crops, a
        The model, all crops and the command line.
    shared
        Clean and noisy images of the batch, which stay at their places.
    mode
        Which of ``MODES`` an iteration runs in.
    """

    def __init__(
        self,
        model: Any,
        crops: Tensor,
        a: argparse.Namespace,
        shared: tuple[Tensor, Tensor],
        mode: int,
    ) -> None:
        super().__init__(model, crops, a)
        self.shared = shared
        self.mode, _, self.recorded = MODES[mode]
        self.mean: float | None = None
        self.milliseconds: list[float] = []
        self.curve: list[list[float]] = []

    def draw(self) -> None:
        """Draw the next batch for all variants."""
        with torch.no_grad():
            for place, found in zip(self.shared, super().batch(), strict=True):
                place.copy_(found)

    def batch(self) -> tuple[Tensor, Tensor]:
        """Return the batch that was drawn."""
        clean, noisy = self.shared
        return clean, noisy.detach().requires_grad_()

    def step(self, rate: float) -> None:
        """Take one step of descent."""
        if DEVICE.type != "cuda" or self.recorded:
            return super().step(rate)
        self.rate.fill_(rate)
        return self.compute()

    def note(self, passed: float) -> None:
        """Take the last loss into its mean; this waits for the device."""
        found = float(self.losses.cpu())
        self.mean = found if self.mean is None else 0.95 * self.mean + 0.05 * found
        if self.iteration % train_pairs.EVERY == 0:
            self.curve.append([self.iteration, round(passed, 1), round(PEAK - self.mean, 4)])


def wait() -> None:
    """Wait for the device."""
    if DEVICE.type == "cuda":
        torch.cuda.synchronize()


def prepared(
    pixels: np.ndarray, kept: list[int], a: argparse.Namespace
) -> tuple[dict[str, FitBeside], dict[str, str]]:
    """Compile and record all variants; one that fails does not stop the others.

    Returns
    -------
    dict
        Variants that can be trained.
    dict
        What failed, with its traceback.
    """
    shape = (len(LEVELS) * a.batch, a.size, a.size)
    shared = (torch.zeros(shape, device=DEVICE), torch.zeros(shape, device=DEVICE))
    crops = tensor(pixels)
    start = None
    if a.start == "trials":
        start = train_models.start_of(argparse.Namespace(start=None))
    fits: dict[str, FitBeside] = {}
    failed: dict[str, str] = {}
    mode = 0 if trials.COMPILE else 1
    for variant in a.variants:
        began = time.perf_counter()
        for i in range(mode, len(MODES)):
            name, trials.COMPILE, _ = MODES[i]
            try:
                model = DeepPasses(variant, (a.first, a.second), a.seed, start)
                fit = FitBeside(model, crops, a, shared, i)
                fit.pool.copy_(torch.tensor(np.resize(kept, len(fit.pool)), device=DEVICE))
                fit.draw()
                fit.step(0.0)
                wait()
            except Exception:
                failed[f"{variant}, {name}"] = traceback.format_exc()
                traceback.print_exc()
                continue
            fits[str(variant)], mode = fit, i
            seconds = time.perf_counter() - began
            how = name if DEVICE.type == "cuda" else "on the processor"
            print(f"{variant}: {model.count} numbers, {how}, ready in {seconds:.1f} s", flush=True)
            break
    return fits, failed


def timed_step(fit: FitBeside, rate: float) -> Any:
    """Take a step of descent, and return two events around it, or the milliseconds it took."""
    if DEVICE.type != "cuda":
        began = time.perf_counter()
        fit.step(rate)
        return 1000 * (time.perf_counter() - began)
    events = [torch.cuda.Event(enable_timing=True) for _ in range(2)]
    events[0].record()
    fit.step(rate)
    events[1].record()
    return events


def descend(fits: dict[str, FitBeside], a: argparse.Namespace, seconds: float, keep: Any) -> float:
    """Descend in turns, an iteration each; ``keep()`` is called every few seconds.

    Returns
    -------
    float
        The seconds that it took.
    """
    torch.manual_seed(a.seed)
    for fit in fits.values():
        fit.iteration = 0
    source = next(iter(fits.values()))
    began = saved = time.perf_counter()
    while True:
        passed = time.perf_counter() - began
        position = max(passed / seconds if seconds > 0 else 1.0, source.iteration / a.iterations)
        if position >= 1:
            break
        rate = a.rate * min(1.0, position / 0.03) * (1 + math.cos(math.pi * position)) / 2
        source.draw()
        events = {}
        for name, fit in fits.items():
            events[name] = timed_step(fit, rate)
            fit.average()
            fit.iteration += 1
        if source.iteration % WAITED_EVERY == 0:
            for name, fit in fits.items():
                fit.note(passed)
                found = events[name]
                fit.milliseconds.append(
                    found if isinstance(found, float) else found[0].elapsed_time(found[1])
                )
        if time.perf_counter() - saved > SAVED_EVERY:
            saved = time.perf_counter()
            shown = "  ".join(f"{name}: {PEAK - (f.mean or 0):.3f}" for name, f in fits.items())
            print(f"{source.iteration:6d} {passed:6.1f} s  {shown}", flush=True)
            keep()
    wait()
    return time.perf_counter() - began


def entry_of(name: str, fit: FitBeside) -> dict[str, Any]:
    """Return what is known of a variant while it is trained."""
    entry: dict[str, Any] = {
        "name": name,
        "passes": list(fit.model.passes),
        "numbers": fit.model.count,
        "mode": fit.mode if DEVICE.type == "cuda" else "processor",
        "iterations": fit.iteration,
        "training": fit.curve,
        "parameters": fit.averaged(),
        "last_parameters": fit.model.found(),
    }
    if fit.milliseconds:
        entry["milliseconds"] = round(float(np.median(fit.milliseconds)), 2)
    return entry


def judged(
    model: Any, pixels: np.ndarray, numbers: list[int], levels: Any = LEVELS
) -> dict[str, float]:
    """Return the mean PSNR over some crops at each level, without compilation."""
    compiled, trials.COMPILE = trials.COMPILE, False
    try:
        return trials.evaluate(model, 0, pixels[numbers], numbers, levels)
    finally:
        trials.COMPILE = compiled


def seconds_to_judge(
    fits: dict[str, FitBeside], pixels: np.ndarray, held: list[int]
) -> dict[str, float]:
    """Return how long the evaluation of each variant takes at all levels, from one level."""
    found: dict[str, float] = {}
    for name, fit in fits.items():
        if not found:
            judged(fit.model, pixels, held, LEVELS[:1])  # fills the caches
        began = time.perf_counter()
        judged(fit.model, pixels, held, LEVELS[:1])
        found[name] = len(LEVELS) * (time.perf_counter() - began)
    return found


def train_command(a: argparse.Namespace) -> None:
    """Train all variants side by side, and judge them on the held-out crops."""
    began = time.perf_counter()

    def left() -> float:
        return float(a.limit - (time.perf_counter() - began))

    use_passes()
    if a.eager:
        trials.COMPILE = False
    pixels = train_models.crops_of(a)
    held = list(range(3, len(pixels), 4))
    kept = [k for k in range(len(pixels)) if k % 4 != 3]
    if not held:
        raise SystemExit("at least four crops are needed; every fourth is held out")
    names = [str(variant) for variant in a.variants]
    if len(set(names)) < len(names):
        raise SystemExit("each variant can be named only once")
    document: dict[str, Any] = {
        "settings": {
            **train_models.settings(a),
            "start": a.start,
            "variants": names,
            "levels": LEVELS,
            "level_weights": trials.LEVEL_WEIGHTS,
            "options": sorted(OPTIONS),
        },
        "versions": {"torch": torch.__version__, "device": device_name()},
        "held_out_crops": held,
        "runs": [],
    }
    fits, document["failed"] = prepared(pixels, kept, a)
    if not fits:
        trials.save(a.output, document)
        raise SystemExit("no variant could be prepared")
    document["preparation_seconds"] = round(time.perf_counter() - began, 1)
    expected = {name: MARGIN * t for name, t in seconds_to_judge(fits, pixels, held).items()}
    reserve = sum(expected.values())
    if 2 * reserve < a.limit / 5:  # the last numbers are judged, too
        reserve *= 2
    reserve += 2

    def keep() -> None:
        document["runs"] = [entry_of(name, fit) for name, fit in fits.items()]
        document["seconds"] = round(time.perf_counter() - began, 1)
        trials.save(a.output, document)

    keep()
    seconds = left() - reserve
    print(f"{seconds:.1f} s of training, then {reserve:.1f} s of evaluation", flush=True)
    document["training_seconds"] = round(descend(fits, a, seconds, keep), 1)
    keep()
    for fit in fits.values():
        fit.graph = None  # frees its memory
    for key, parameters in (("held_out", "parameters"), ("held_out_last", "last_parameters")):
        for run in document["runs"]:
            name = run["name"]
            if key == "held_out_last" and left() < expected[name] + 1:
                print(f"no time left for {key} of {name}")
                continue
            try:
                model = fits[name].model
                model.set(run[parameters])
                psnr = judged(model, pixels, held)
            except Exception:
                document["failed"][f"{name}, {key}"] = traceback.format_exc()
                traceback.print_exc()
                continue
            run[key] = psnr
            run[f"{key}_mean_10_to_60"] = mean_over_paper(psnr)
            document["seconds"] = round(time.perf_counter() - began, 1)
            trials.save(a.output, document)
            print(trials.line(f"{name} ({run['numbers']}) {key}", psnr), flush=True)
    print(f"{time.perf_counter() - began:.1f} s in all", flush=True)


def device_name() -> str:
    """Return the name of the device in words."""
    return torch.cuda.get_device_name() if DEVICE.type == "cuda" else "CPU"


# ---------------------------------------------------------------- checks


def disturbed(variant: Variant, seed: int, more: float = 0.0) -> DeepPasses:
    """Return a small model in double precision whose numbers are far from the law's.

    Parameters
    ----------
    variant, seed
        The variant, and the seed of the disturbance.
    more
        Added to the logarithms of all weights; with 3 all steps are at the stable bound.
    """
    model = DeepPasses(variant, (3, 2), seed)
    generator = torch.Generator().manual_seed(seed)
    for name, value in model.p.items():
        values = value.detach().cpu().double()
        values = values + 0.3 * torch.randn(values.shape, generator=generator, dtype=values.dtype)
        if name == "weights":
            values = values + more
        if name == "couplings":  # J has the weights, too
            values = values - more
        if name == "pull":
            values = values + math.log(20.0) + more
        model.p[name] = values.to(DEVICE).requires_grad_()
    model.limit()
    return model


def part_of(model: DeepPasses, number: int) -> DeepPasses:
    """Return a model of one pass with the numbers of one of the passes."""
    count, first = model.passes[number], sum(model.passes[:number])
    part = DeepPasses(Variant((count,)), model.counts, 0)
    for name in part.p:
        value = model.p[name].detach()
        part.p[name] = (value[first : first + count] if name in OF_EACH_STEP else value).clone()
        part.p[name].requires_grad_()
    return part


def largest_difference(a: Any, b: Any) -> float:
    """Return the largest difference of two lists of tensors, relative to the largest number."""
    pairs = list(zip(a, b, strict=True))
    scale = max(float(y.detach().abs().max()) for _, y in pairs)
    return max(float((x - y).detach().abs().max()) for x, y in pairs) / scale


def check_one_pass(noisy: Tensor, levels: Tensor) -> float:
    """Compare one pass with ``accuracy_trials.evolve``: the result, and all derivatives."""
    found = []
    for step in (evolve, one_pass):
        model = disturbed(Variant((3,)), 1)
        u = noisy.clone().requires_grad_()
        result = step(u, model.numbers(levels, 1, 64), model.variance)
        result.square().mean().backward()
        found.append([[result], [u.grad], *([p.grad] for p in model.parameters())])
    return max(largest_difference(*both) for both in zip(*found, strict=True))


def check_not_steered(noisy: Tensor, levels: Tensor) -> float:
    """Compare m = 0 with the last pass on its own."""
    model = disturbed(Variant((2, 3)), 2)
    with torch.no_grad():
        model.p["shares"].zero_()
        found = evolve(noisy, model.numbers(levels, 1, 64), model.variance)
        part = part_of(model, 1)
        expected = one_pass(noisy, part.numbers(levels, 1, 64), part.variance)
    return largest_difference([found], [expected])


def check_steered(noisy: Tensor, levels: Tensor) -> float:
    """Return by how much the result changes, relative to the noise, from m = 0 to m = 1."""
    model = disturbed(Variant((2, 3), free_at_steps=False), 2)
    results = []
    with torch.no_grad():
        for share in (0.0, 1.0):
            model.p["shares"].fill_(share)
            results.append(evolve(noisy, model.numbers(levels, 1, 64), model.variance))
    return float((results[1] - results[0]).square().mean().sqrt() / levels.mean())


def check_derivatives(noisy: Tensor, levels: Tensor) -> float:
    """Compare derivatives, of shares and through the first pass, with differences."""
    model = disturbed(Variant((2, 2)), 3)
    with torch.no_grad():
        model.p["shares"].fill_(0.4)
    weights = torch.cos(torch.arange(noisy.numel(), device=DEVICE).view(noisy.shape))

    def loss() -> Tensor:
        result = evolve(noisy, model.numbers(levels, 1, 64), model.variance)
        return (result * weights).sum() / 100

    loss().backward()
    exact, differences = [], []
    for name in ("shares", "weights", "contrasts", "mix", "pull", "rho", "scales"):
        parameter = model.p[name]
        gradient: Any = parameter.grad
        flat = parameter.detach().view(-1)
        for i in (0, flat.numel() - 1):
            values = []
            for change in (1e-5, -2e-5):
                flat[i] += change
                with torch.no_grad():
                    values.append(float(loss()))
            flat[i] += 1e-5
            exact.append(float(gradient.view(-1)[i]))
            differences.append((values[0] - values[1]) / 2e-5)
    return largest_difference([torch.tensor(differences)], [torch.tensor(exact)])


@torch.no_grad()
def check_operators(noisy: Tensor, levels: Tensor, seed: int) -> dict[str, float]:
    """Return what the dense operators of all steps of a second pass are like, at their bound.

    A step takes u to (1 - S - kappa) u + kappa f. The certificate is 0 <= S, S + 2 kappa <= 2.
    """
    size = noisy.shape[-1]
    eye = torch.eye(size * size, dtype=noisy.dtype, device=DEVICE).view(-1, size, size)
    worst = {"asymmetry": 0.0, "lowest": 0.0, "highest": 0.0, "mean": 0.0}
    model = disturbed(Variant((2, 3)), seed, 3.0)
    images = torch.cat([noisy, noisy / 100])  # gates of the latter are nearly one
    for image, level in zip(images, levels.repeat(2), strict=True):
        one = model.numbers(level[None], 1, 64)
        many = model.numbers(level[None], len(eye), 64)
        k = trials.blur_matrices("even", size, model.variance)
        part = part_of(model, 0)
        first = one_pass(image[None], part.numbers(level[None], 1, 64), part.variance)
        v, guide, basis = (
            trials.Blur.apply(u, k, model.variance) for u in (image[None], first, eye)
        )
        for step in range(2, 5):
            shares = present(one.shares)[step - 2]
            j = [x.expand(-1, len(eye), -1, -1) for x in structures(v, guide, one, step, shares)]
            f = flow(basis, (j[0], j[1]), many, step)
            s = -trials.BlurAdjoint.apply(f, k, model.variance).view(len(eye), -1)
            eigenvalues = torch.linalg.eigvalsh((s + s.T) / 2)
            highest = eigenvalues.max() + 2 * present(one.pull)[step, 0]
            worst["asymmetry"] = max(worst["asymmetry"], float((s - s.T).abs().max()))
            worst["lowest"] = min(worst["lowest"], float(eigenvalues.min()))
            worst["highest"] = max(worst["highest"], float(highest))
            worst["mean"] = max(worst["mean"], float(s.sum(0).abs().max()))
    return worst


@torch.no_grad()
def check_norms(noisy: Tensor, levels: Tensor) -> tuple[float, float]:
    """Return the largest ratio of norms of result and input, and the largest change of the mean."""
    ratio = change = 0.0
    for seed in range(5):
        for passes in ((1, 1), (2, 3), (2, 2, 2)):
            model = disturbed(Variant(passes), seed, 3.0)
            # A checkerboard is what a step that is too large amplifies.
            size = torch.arange(noisy.shape[-1], device=DEVICE)
            board = 1.0 - 2 * ((size[:, None] + size) % 2)
            for u in (noisy - noisy.mean((1, 2), keepdim=True), board.expand_as(noisy).double()):
                found = evolve(u, model.numbers(levels, 1, 64), model.variance)
                norms = found.square().sum((1, 2)).sqrt() / u.square().sum((1, 2)).sqrt()
                ratio = max(ratio, float(norms.max()))
                change = max(change, float((found - u).mean((1, 2)).abs().max()))
    return ratio, change


def check_command(a: argparse.Namespace) -> None:
    """Check the model in double precision; fails if anything is wrong."""
    use_passes()
    trials.COMPILE = False
    rng = np.random.default_rng(0)
    levels = torch.tensor([5.0, 40.0], dtype=torch.float64, device=DEVICE)
    steps = rng.uniform(0, 255, (2, 3, 3)).repeat(4, 1).repeat(4, 2)
    noise = rng.normal(0, 1, steps.shape) * np.array([5.0, 40.0])[:, None, None]
    noisy = torch.tensor(steps + noise, device=DEVICE)
    operators = [check_operators(noisy, levels, seed) for seed in range(3)]
    lowest = min(found["lowest"] for found in operators)
    asymmetry, highest, sums = (
        max(found[key] for found in operators) for key in ("asymmetry", "highest", "mean")
    )
    ratio, change = check_norms(noisy, levels)
    one, none = check_one_pass(noisy, levels), check_not_steered(noisy, levels)
    steered, slopes = check_steered(noisy, levels), check_derivatives(noisy, levels)
    wrong = []
    for what, value, right in (
        ("one pass, result and derivatives: largest relative difference", one, one < 1e-11),
        ("m = 0 and a pass on its own: largest relative difference", none, none < 1e-12),
        ("from m = 0 to m = 1: change relative to the noise", steered, steered > 1e-3),
        ("derivatives against differences: relative difference", slopes, slopes < 1e-6),
        ("operators of second passes: asymmetry", asymmetry, asymmetry < 1e-12),
        ("operators of second passes: lowest eigenvalue S", lowest, lowest > -1e-12),
        ("operators of second passes: highest S + 2 kappa, at most 2", highest, highest <= 2),
        ("operators of second passes: change of the mean", sums, sums < 1e-12),
        ("norm of results relative to the input, at most 1", ratio, ratio <= 1 + 1e-12),
        ("change of the mean by all passes", change, change < 1e-10),
    ):
        print(f"{what}: {value:.6g}" + "  WRONG" * (not right))
        if not right:
            wrong.append(what)
    if wrong:
        raise SystemExit(f"{len(wrong)} checks failed")


# ---------------------------------------------------------------- table


def table_command(a: argparse.Namespace) -> None:
    """Print the PSNR of held-out crops, and differences from the first variant of each file."""
    gains: dict[str, list[dict[str, float]]] = {}
    shown = [f"{level:g}" for level in LEVELS]
    print("| file | variant | numbers | iterations | ms | mean 10 to 60 | last numbers | ", end="")
    print(" | ".join(f"s = {level}" for level in shown) + " |")
    print("|---" * (7 + len(shown)) + "|")
    documents = {path: json.loads(path.read_text()) for path in a.files}
    for path, document in documents.items():
        base: dict[str, float] | None = None
        for run in document["runs"]:
            psnr = run.get("held_out", {})
            last = run.get("held_out_last_mean_10_to_60", math.nan)
            mean = run.get("held_out_mean_10_to_60", math.nan)
            cells = [path.stem, run["name"], run["numbers"], run["iterations"]]
            cells += [run.get("milliseconds", "-"), f"{mean:.3f}", f"{last:.3f}"]
            cells += [f"{psnr.get(level, math.nan):.2f}" for level in shown]
            print("| " + " | ".join(map(str, cells)) + " |")
            if not psnr:
                continue
            psnr = {"mean": mean, **psnr}
            if base is None:
                base, first = psnr, run["name"]
                continue
            gain = {key: psnr[key] - base[key] for key in psnr}
            gains.setdefault(f"{run['name']} - {first}", []).append(gain)
    for name, found in gains.items():
        print(
            f"\n{name}, gain in dB over {len(found)} run(s), mean and range of the mean 10 to 60:"
        )
        means = [gain["mean"] for gain in found]
        print(f"  {np.mean(means):+.4f} ({min(means):+.4f} to {max(means):+.4f})")
        print(
            "  " + ", ".join(f"s = {s}: {np.mean([gain[s] for gain in found]):+.3f}" for s in shown)
        )
    for path, document in documents.items():
        for run in document["runs"]:
            if "shares" in run["parameters"]:
                shares = np.transpose(run["parameters"]["shares"])
                for order, values in enumerate(shares, start=1):
                    shown_shares = " ".join(f"{m:.2f}" for m in values)
                    print(f"\n{path.stem}, {run['name']}: shares m, order {order}: {shown_shares}")
        for name in document["failed"]:
            print(f"\n{path.stem}: {name} failed")


# ---------------------------------------------------------------- command line


def crops_command(a: argparse.Namespace) -> None:
    """Write the grey crops of the BSDS500 training images; test images are not needed."""
    from integrodiff.learning import bsds500

    np.savez_compressed(a.crops, train=bsds500("train", a.data).pixels.astype(np.uint8))


def main(arguments: list[str] | None = None) -> None:
    """Read the command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    commands = parser.add_subparsers(required=True)
    one = commands.add_parser("crops", help="write the training crops to a file")
    one.add_argument("crops", type=Path)
    one.add_argument("--data", type=Path, help="folder that holds bsds500")
    one.set_defaults(run=crops_command)
    one = commands.add_parser("check", help="check the model on small images")
    one.set_defaults(run=check_command)
    one = commands.add_parser("train", help="train variants side by side")
    one.add_argument("crops", type=Path)
    one.add_argument("output", type=Path)
    one.add_argument(
        "--variants", type=Variant.of, nargs="+", default=[Variant((12,)), Variant((6, 6))]
    )
    one.add_argument("--limit", type=float, default=270.0, help="seconds that all may take")
    one.add_argument("--iterations", type=int, default=1_000_000, help="at most, of each variant")
    one.add_argument("--start", choices=["law", "trials"], default="law")
    one.add_argument("--first", type=int, default=5, help="channels of order one")
    one.add_argument("--second", type=int, default=2, help="channels of order two")
    one.add_argument("--count", type=int, help="number of crops, the first ones")
    one.add_argument("--size", type=int, default=128, help="side of the parts trained on")
    one.add_argument("--batch", type=int, default=4, help="parts for each noise level")
    one.add_argument("--rate", type=float, default=0.04)
    one.add_argument("--horizon", type=int, default=200, help="steps that the mean is taken over")
    one.add_argument("--seed", type=int, default=0)
    one.add_argument("--eager", action="store_true", help="do not compile")
    one.set_defaults(run=train_command)
    one = commands.add_parser("table", help="print the results")
    one.add_argument("files", type=Path, nargs="+")
    one.set_defaults(run=table_command)
    a = parser.parse_args(arguments)
    a.run(a)


if __name__ == "__main__":
    main()
