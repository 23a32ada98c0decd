"""Train ``iad-plus``, ``iad-fast`` and ``iad-deep`` for noise from 2 to 100; meant for a GPU.

    python experiments/train_models.py crops CROPS.npz --data FOLDER
    python experiments/train_models.py compact CROPS.npz OUT.json --law plus --starts 3
    python experiments/train_models.py deep CROPS.npz OUT.json --steps 14
    python experiments/train_models.py export OUT.json MODEL.json [--law plus] [--fused]
    python experiments/train_models.py test CROPS.npz OUT.json TEST.json

The model and the recording of a step of descent are those of ``accuracy_trials.py``. A run has two
phases. In the first, every fourth crop is held out; decisions are made by the PSNR there. In the
second, it goes on with all crops at a lower rate. Of several starts the one that is best on the
held-out crops is kept. A killed run goes on from OUT.json.state when its command is repeated.

``export`` writes the model file of the package; from ``results/accuracy-trials.json`` it takes the
law or the deep model that the trials found. ``test`` measures PSNR and SSIM on the test crops,
for a model that is finished.
"""

# mypy: allow-untyped-calls

from __future__ import annotations

import argparse
import json
import math
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

import accuracy_trials as trials
from accuracy_trials import DEVICE, LEVELS, THETA, Tensor, Variant, mean_over_paper, tensor

RESULTS = Path(__file__).parents[1] / "results" / "accuracy-trials.json"
SHARED = ("e", "alpha", "b", "p", "growth", "drift", "tau", "rho", "rho_e")
LOGARITHMS = {"alpha", "b", "growth", "tau", "rho", "rho2", "a2", "b2"}
GRID = (0.1, 7.0, 8)

# With the 0.02 of the trials, float32 and float64 differ by up to 0.03 grey levels at noise level
# one; with this by less than 0.01. The PSNR of three training crops changes by less than 0.004 dB.
trials.SMALLEST_CONTRAST = 0.05
OPTIONS = ["pull", "mix", "step-laws", "rho-laws"]
OF_STEPS = {"rho", "rho_exponents", "mix", "pull", "pull_exponent"}
OF_STEPS |= {"step_weight_exponents", "step_contrast_exponents"}
"""Parameters of the deep model that are not those of a channel."""
DEEP_CONTRAST = 0.02
CONTRAST_FLOOR = (0.03, 0.3)
"""Smallest contrasts of the deep model, relative to the response to a step of one grey level, in
noise levels and in grey levels: steeper gates would amplify the rounding of float32."""
LEVEL_WEIGHTS = (0.5, 0.7, *(1.0,) * 8, 0.7, 0.5)
"""Of the noise levels in the loss of the deep model."""
FUSED_LIMITS = ((0.0, 5.2), (2.5, 10.5))
"""Integration scales that the fused step of the compiled engine takes."""
DEEP_LIMITS = ((0.0, 5.2), (3.3, 10.5))
"""Those of the deep model: narrower ones are less exact on the grid of half the resolution."""


# ---------------------------------------------------------------- training


@dataclass(frozen=True)
class Phase:
    """A part of the training with its own crops and rate."""

    crops: list[int]
    rate: float
    iterations: int
    seconds: float


class Fit(trials.Training):
    """Descent on crops of a pool, which can change without another recording."""

    def __init__(self, model: Any, crops: Tensor, size: int, copies: int, seed: int) -> None:
        super().__init__(model, crops, size, copies, seed, boxes=64)
        self.pool = torch.zeros(3 * len(crops), dtype=torch.long, device=DEVICE)
        self.phase, self.iteration, self.seconds = 0, 0, 0.0

    def batch(self) -> tuple[Tensor, Tensor]:
        """Random parts of random crops of the pool, with noise; the same ones for all variants."""
        n, size = self.copies, self.size
        room = self.crops.shape[-1] - size
        which = self.pool[torch.randint(len(self.pool), (n, 1, 1), device=DEVICE)]
        y = torch.randint(room + 1, (n, 1, 1), device=DEVICE)
        x = torch.randint(room + 1, (n, 1, 1), device=DEVICE)
        inside = torch.arange(size, device=DEVICE)
        clean = self.crops[which, y + inside[:, None], x + inside]
        clean = clean.repeat(len(self.levels), 1, 1)
        noise = torch.randn(clean.shape, device=DEVICE)
        noisy = clean + self.levels.repeat_interleave(n)[:, None, None] * noise
        groups = self.model.groups()
        return clean.repeat(groups, 1, 1), noisy.repeat(groups, 1, 1).requires_grad_()

    def run(self, phase: Phase, state: Path) -> None:
        """Descend through one phase; the rate rises, then falls as a cosine."""
        self.pool.copy_(torch.tensor(np.resize(phase.crops, len(self.pool)), device=DEVICE))
        self.step(1e-7)
        torch.cuda.synchronize() if DEVICE.type == "cuda" else None
        before, began, mean = self.seconds, time.perf_counter(), None
        while True:
            self.seconds = before + time.perf_counter() - began
            position = max(self.iteration / phase.iterations, self.seconds / phase.seconds)
            if position >= 1:
                break
            self.step(
                phase.rate * min(1.0, position / 0.03) * (1 + math.cos(math.pi * position)) / 2
            )
            self.iteration += 1
            if self.iteration % 20 == 0:
                found = self.losses.cpu()  # also waits for the device
                mean = found if mean is None else 0.9 * mean + 0.1 * found
            if self.iteration % 500 == 0:
                self.save(state)
                shown = " ".join(f"{48.131 - x:.3f}" for x in (found if mean is None else mean))
                print(
                    f"{self.phase} {self.iteration:6d} {self.seconds:6.1f} s  {shown}", flush=True
                )

    def end_phase(self, state: Path) -> None:
        """Count a phase as done."""
        self.phase, self.iteration, self.seconds = self.phase + 1, 0, 0.0
        self.save(state)

    def save(self, path: Path) -> None:
        """Write all that a killed run needs to go on."""
        temporary = path.with_name(path.name + ".part")
        torch.save(
            {
                "at": (self.phase, self.iteration, self.seconds),
                "values": [p.detach() for p in self.model.parameters()],
                "optimiser": self.optimiser.state_dict(),
            },
            temporary,
        )
        temporary.replace(path)

    def load(self, path: Path) -> None:
        """Go on where a killed run was, if there was one."""
        if not path.exists():
            return
        found = torch.load(path, map_location=DEVICE)
        self.phase, self.iteration, self.seconds = found["at"]
        with torch.no_grad():
            for p, value in zip(self.model.parameters(), found["values"], strict=True):
                p.copy_(value)
        self.optimiser.load_state_dict(found["optimiser"])
        print("goes on at", found["at"])


def fit(fit_: Fit, phases: list[Phase], output: Path, after: Any) -> None:
    """Run the phases that are left; ``after(i)`` is called after each."""
    state = output.with_name(output.name + ".state")
    fit_.load(state)
    while fit_.phase < len(phases):
        fit_.run(phases[fit_.phase], state)
        after(fit_.phase)
        fit_.end_phase(state)


def phases_of(a: argparse.Namespace, count: int) -> list[Phase]:
    """Return the two phases: with every fourth crop held out, and with all."""
    kept = [k for k in range(count) if k % 4 != 3]
    return [
        Phase(kept, a.rate, a.iterations[0], a.seconds[0]),
        Phase(list(range(count)), a.last_rate, a.iterations[1], a.seconds[1]),
    ]


def crops_of(a: argparse.Namespace) -> np.ndarray:
    """Return the training crops."""
    pixels: np.ndarray = np.load(a.crops)["train"][: a.count].astype(np.float32)
    return pixels


# ---------------------------------------------------------------- compact laws


def law(name: str, start: dict[str, float], free: str = "") -> Variant:
    """Return a law of one or two orders that starts from given numbers."""
    second = "a2" in start
    names = (*SHARED, *("a2", "b2", "rho2") * second, *free.split())
    values = {n: math.log(x) if n in LOGARITHMS else x for n, x in start.items()}
    fixed = {"r": 0.0, "e2": 1.0, "p2": 1.0}
    return Variant(
        name,
        names,
        rho="two" if second else "one",
        order_2="anisotropic" if second else "none",
        start={**fixed, **values},
    )


# Found in the trials.
PLUS = {"e": 0.547, "alpha": 0.489, "b": 0.293, "p": 0.402, "growth": 0.803, "drift": 2.838}
PLUS |= {"tau": 1.102, "rho": 0.947, "rho2": 4.264, "rho_e": 0.229, "a2": 0.330, "b2": 0.117}
FAST = {"e": 0.35, "alpha": 0.3, "b": 0.27, "p": 0.7, "growth": 0.8, "drift": 2.0, "tau": 1.3}
FAST |= {"rho": 1.0, "rho_e": 0.2, "r": 0.1}
FIVE = {**PLUS, "tau": 1.6, "e": 0.330, "alpha": 0.594, "b": 0.267, "p": 0.500, "growth": 0.741}
FIVE |= {"rho": 1.144, "rho2": 5.732, "rho_e": 0.372, "a2": 0.411, "b2": 0.097}
LAWS = {
    "plus": (10, [law("plus", PLUS)]),
    "fast": (5, [law("fast", FAST, "r")]),
    "five": (5, [law("five", FIVE)]),
}


def moved(variant: Variant, number: int) -> Variant:
    """Return a variant with another start; number zero is the variant itself."""
    if number == 0:
        return variant
    rng = np.random.default_rng(number)
    start = {
        n: x + 0.15 * rng.standard_normal() * (n in variant.free) for n, x in variant.start.items()
    }
    return Variant(
        f"{variant.name}, start {number}",
        variant.free,
        variant.rho,
        variant.order_2,
        variant.relative,
        start,
    )


def compact_command(a: argparse.Namespace) -> None:
    """Train the laws from several starts side by side."""
    pixels = crops_of(a)
    steps, laws = LAWS[a.law]
    steps = a.steps or steps
    variants = [moved(v, i) for v in laws for i in range(a.starts)]
    model = trials.Compact(variants, steps, GRID)
    training = Fit(model, tensor(pixels), a.size, a.batch, a.seed)
    began = time.perf_counter()
    runs: list[dict[str, Any]] = [
        {"name": v.name, "law": laws[i // a.starts].name, "numbers": v.count, "steps": steps}
        for i, v in enumerate(variants)
    ]

    def after(phase: int) -> None:
        held = list(range(3, len(pixels), 4)) if phase == 0 else list(range(len(pixels)))
        key = ("held_out", "training")[phase]
        for m, entry in enumerate(runs):
            psnr = trials.evaluate(model, m, pixels[held], held)
            entry[key] = psnr
            entry["parameters"] = model.found(m)
            print(trials.line(f"{entry['name']} {key}", psnr), flush=True)
        seconds = round(time.perf_counter() - began, 1)
        trials.save(a.output, {"settings": settings(a), "seconds": seconds, "runs": runs})

    fit(training, phases_of(a, len(pixels)), a.output, after)
    print(f"{time.perf_counter() - began:.1f} s in all")


# ---------------------------------------------------------------- the deep model


def over_steps(values: Any, steps: int) -> np.ndarray:
    """Interpolate numbers of each step to another number of steps."""
    found = np.asarray(values, np.float64)
    at = np.linspace(0, 1, steps)
    known = np.linspace(0, 1, len(found))
    return np.stack([np.interp(at, known, column) for column in found.T], axis=1)


def deep_start(model: trials.Deep, start: dict[str, Any]) -> None:
    """Begin with the numbers of a run with other channels and steps; new ones stay as they are."""
    past, first, second = start["parameters"], *model.counts
    known_first = start["channels"][0]
    chosen = [*range(first), *range(known_first, known_first + second)]
    with torch.no_grad():
        for name, parameter in model.p.items():
            if name not in past:
                continue
            value = np.asarray(past[name], np.float64)
            if name not in OF_STEPS:
                value = value[..., chosen]
            if parameter.ndim == 2:
                value = np.broadcast_to(
                    np.atleast_2d(value), (len(past["weights"]), value.shape[-1])
                )
                value = over_steps(value, model.steps)
            elif name == "pull":
                value = over_steps(value[:, None], model.steps)[:, 0]
            if name in ("weights", "pull"):
                value = value + math.log(len(past["weights"]) / model.steps)
            parameter.copy_(tensor(value))


def start_of(a: argparse.Namespace) -> dict[str, Any]:
    """Return the numbers to begin with: of an earlier run, or of the trials."""
    if a.start:
        document: dict[str, Any] = json.loads(a.start.read_text())
        return {"parameters": document["parameters"], "channels": document["channels"]}
    last = json.loads(RESULTS.read_text())["deep"][-1]
    return {"parameters": last["parameters"], "channels": (5, 4)}


def deep_command(a: argparse.Namespace) -> None:
    """Train the deep model."""
    if a.fused:
        trials.INTEGRATION_LIMITS = DEEP_LIMITS
    trials.SMALLEST_CONTRAST, trials.CONTRAST_FLOOR = DEEP_CONTRAST, CONTRAST_FLOOR
    trials.LEVEL_WEIGHTS = LEVEL_WEIGHTS
    pixels = crops_of(a)
    options = {"rho", "rho-steps", "couplings", "curved", *a.options}
    model = trials.Deep(a.steps, a.first, a.second, options, a.seed)
    deep_start(model, start_of(a))
    training = Fit(model, tensor(pixels), a.size, a.batch, a.seed)
    began = time.perf_counter()
    document: dict[str, Any] = {
        "settings": settings(a),
        "numbers": model.count,
        "channels": [a.first, a.second],
    }

    def after(phase: int) -> None:
        held = list(range(3, len(pixels), 4)) if phase == 0 else list(range(len(pixels)))
        key = ("held_out", "training")[phase]
        document[key] = trials.evaluate(model, 0, pixels[held], held)
        document["parameters"] = model.found()
        document[f"iterations_{phase + 1}"] = training.iteration
        document["seconds"] = round(time.perf_counter() - began, 1)
        trials.save(a.output, document)
        print(trials.line(f"deep {model.count} {key}", document[key]), flush=True)

    print(model.count, "numbers")
    fit(training, phases_of(a, len(pixels)), a.output, after)
    print(f"{time.perf_counter() - began:.1f} s in all")


# ---------------------------------------------------------------- finished models


def best_of(document: dict[str, Any]) -> dict[str, Any]:
    """Return, of the runs of each law, the one that is best on held-out crops, by law."""
    found: dict[str, Any] = {}
    for run in document["runs"]:
        best = found.get(run["law"])
        if best is None or mean_over_paper(run["held_out"]) > mean_over_paper(best["held_out"]):
            found[run["law"]] = run
    return found


def as_compact_model(run: dict[str, Any]) -> Any:
    """Return the model of the package."""
    from integrodiff.models import CompactTensorDiffusion, ScaleGrid, SharedLaws

    p = run["parameters"]
    second = "a2" in p
    smallest, largest, count = GRID
    return CompactTensorDiffusion(
        law=SharedLaws(
            strengths=(1.0, p["a2"]) if second else (1.0,),
            exponent=p["e"],
            decay=p["alpha"],
            contrasts=(p["b"], p["b2"]) if second else (p["b"],),
            contrast_exponent=p["p"],
            integration_scales=(p["rho"], p["rho2"]) if second else (p["rho"],),
            integration_exponent=p["rho_e"],
        ),
        scales=ScaleGrid(count=count, smallest=smallest, largest=largest, quadrature="variance"),
        tau=p["tau"],
        tau_exponent=p.get("r", 0.0),
        contrast_growth=p["growth"],
        exponent_drift=p["drift"],
        integration_limits=FUSED_LIMITS[: 1 + second],
        steps=run["steps"],
        theta=THETA,
    )


def as_deep_model(document: dict[str, Any], limits: Any = ()) -> Any:
    """Return the model of the package; its channels are sorted."""
    from integrodiff.models import DeepDiffusion
    from integrodiff.models.deep import Channel
    from integrodiff.models.limits import LARGEST_SCALE

    p = {name: np.asarray(value, np.float64) for name, value in document["parameters"].items()}
    first, second = document["channels"]
    scales = np.exp(np.minimum(p["scales"], trials.LARGEST_SCALE))
    channels = [Channel(1 + (m >= first), float(scales[m])) for m in range(first + second)]
    order = sorted(range(len(channels)), key=lambda m: channels[m])

    acting = np.array(document["acting"])[:, order] > 0 if "acting" in document else None

    def flat(values: Any) -> tuple[float, ...]:
        found = np.asarray(values)[..., order]
        if acting is not None and found.shape == acting.shape:
            found = found[acting]
        return tuple(found.ravel().tolist())

    def plain(name: str) -> tuple[float, ...]:
        return tuple(p[name].ravel().tolist()) if name in p else ()

    extras: dict[str, Any] = {"smallest_contrast": trials.SMALLEST_CONTRAST}
    if "pull" in p:
        extras = {
            "smallest_contrast": DEEP_CONTRAST,
            "contrast_floor": CONTRAST_FLOOR,
            "pulls": tuple(np.exp(p["pull"]).tolist()),
            "pull_exponents": plain("pull_exponent"),
            "mixes": plain("mix"),
            "step_weight_exponents": plain("step_weight_exponents"),
            "step_contrast_exponents": plain("step_contrast_exponents"),
        }
    if acting is not None:
        extras["largest_share"] = 0.999  # so that shortcuts, too, need no smaller steps
        extras["acting"] = tuple(tuple(np.flatnonzero(step).tolist()) for step in acting)

    return DeepDiffusion(
        channels=tuple(channels[m] for m in order),
        steps=len(p["weights"]),
        theta=THETA,
        weights=flat(np.exp(p["weights"])),
        contrasts=flat(np.exp(p["contrasts"])),
        weight_exponents=flat(p["weight_exponents"]),
        contrast_exponents=flat(p["contrast_exponents"]),
        couplings=flat(np.exp(p["couplings"])),
        weight_curvatures=flat(p["weight_curvatures"]),
        contrast_curvatures=flat(p["contrast_curvatures"]),
        integration_scales=tuple(np.minimum(np.exp(p["rho"]), LARGEST_SCALE).ravel().tolist()),
        integration_exponents=tuple(p["rho_exponents"].ravel().tolist()),
        integration_limits=limits,
        anisotropic=True,
        **extras,
        level_limits=(min(LEVELS), max(LEVELS)),
    )


IN_TRIALS = {"plus": (1, "11 + rho_e"), "fast": (2, "rho-law")}
"""Where the trials have the laws: round and variant."""


def of_trials(document: dict[str, Any], name: str) -> dict[str, Any]:
    """Return a law, or the deep model without mix and pull, as the trials found it."""
    if name == "deep":
        group = found = document["deep"][1]
    else:
        number, variant = IN_TRIALS[name]
        group = document["compact"][number]
        found = next(v for v in group["variants"] if v["name"] == variant)
    names = ("iterations", "crop", "crops_per_step", "rate", "seed", "options")
    return {
        **found,
        "steps": group["steps"],
        "settings": {k: group[k] for k in names if k in group},
        "seconds": group["gpu_seconds_in_all"],
        "held_out": found["held_out_psnr"],
    }


def export_command(a: argparse.Namespace) -> None:
    """Write the model file of a finished run, or of the trials."""
    from dataclasses import replace

    from integrodiff.learning import CleanImages, bsds500
    from integrodiff.models import save_model

    document = json.loads(a.run_file.read_text())
    images, trial = bsds500("train", a.data), "deep" in document
    run = document
    if trial:
        run = of_trials(document, a.law)
        kept = [k for k in range(len(images)) if k % 4 != 3]
        names = tuple(images.names[k] for k in kept)
        images = CleanImages(images.pixels[kept], names, f"{images.source}, without every fourth")
    elif "channels" not in document:
        run = {**document, **best_of(document)[a.law]}
    limits = DEEP_LIMITS if a.fused else ()
    model = as_deep_model(run, limits) if "channels" in run else as_compact_model(run)
    recipe = "accuracy_trials" if trial else "train_pairs" if "acting" in run else "train_models"
    provenance: dict[str, Any] = {
        "status": "trained",
        "recipe": f"experiments/{recipe}.py",
        "data": images.source,
        "images": len(images),
        "data_sha256": images.fingerprint,
        "noise_levels": list(LEVELS),
        "loss": "psnr",
        "method": "Adam, reverse mode",
        "training": run["settings"],
        "psnr_on_held_out_images": {k: round(v, 4) for k, v in run["held_out"].items()},
    }
    if "training" in run:
        found = {k: round(v, 4) for k, v in run["training"].items()}
        provenance["psnr_on_training_images"] = found
    provenance |= {
        "seconds": run["seconds"],
        "date": a.date,
        "versions": {"torch": "2.11.0+cu130", "device": "NVIDIA H200"},
    }
    save_model(replace(model, provenance=provenance), a.model_file)
    print(a.model_file, model.number_count(), "numbers")


def as_trained(document: dict[str, Any], run: dict[str, Any]) -> Any:
    """Return a model of the trials with the numbers of a finished run."""
    if "channels" in document:
        options = {"rho", "rho-steps", "couplings", "curved", *document["settings"]["options"]}
        steps = len(document["parameters"]["weights"])
        first, second = document["channels"]
        deep = trials.Deep(steps, first, second, options, 0)
        with torch.no_grad():
            for name, value in document["parameters"].items():
                deep.p[name].copy_(tensor(value))
        return deep
    variant = law(run["law"], run["parameters"], "r" if "r" in run["parameters"] else "")
    return trials.Compact([variant], run["steps"], GRID)


def similarity(found: Tensor, clean: Tensor) -> Tensor:
    """Return the SSIM of images ``(B, H, W)`` as scikit-image has it, with windows of 7 x 7."""

    def mean(a: Tensor) -> Tensor:
        return torch.nn.functional.avg_pool2d(a[:, None], 7, 1)[:, 0]

    x, y = found.double(), clean.double()
    mx, my = mean(x), mean(y)
    n = 49 / 48
    vx, vy = n * (mean(x * x) - mx * mx), n * (mean(y * y) - my * my)
    vxy = n * (mean(x * y) - mx * my)
    c1, c2 = (0.01 * 255) ** 2, (0.03 * 255) ** 2
    ratio = (2 * mx * my + c1) * (2 * vxy + c2) / ((mx**2 + my**2 + c1) * (vx + vy + c2))
    return ratio.mean((1, 2))


@torch.no_grad()
def test_command(a: argparse.Namespace) -> None:
    """Measure a finished model on the test crops."""
    document = json.loads(a.run_file.read_text())
    runs = [document] if "channels" in document else list(best_of(document).values())
    pixels = np.load(a.crops)[a.part][: a.count].astype(np.float32)
    clean = tensor(pixels)
    result = []
    for run in runs:
        model = as_trained(document, run)
        psnr: dict[str, float] = {}
        ssim: dict[str, float] = {}
        for level in LEVELS:
            rngs = [np.random.default_rng((int(level), k)) for k in range(len(pixels))]
            noise = np.stack([rng.normal(0, level, pixels.shape[1:]) for rng in rngs])
            trials.precise(True)
            numbers = model.numbers(tensor([level]), len(clean), 512, 0)
            found = trials.evolve(clean + tensor(noise), numbers, model.variance)
            mse = (found - clean).double().square().mean((1, 2))
            psnr[f"{level:g}"] = float((10 * torch.log10(255.0**2 / mse)).mean())
            ssim[f"{level:g}"] = float(similarity(found, clean).mean())
        name = run.get("law", "deep")
        means = {"psnr": mean_over_paper(psnr), "ssim": mean_over_paper(ssim)}
        result.append({"name": name, "mean_10_to_60": means, "psnr": psnr, "ssim": ssim})
        print(trials.line(f"{name} on {a.part}", psnr), f"SSIM {means['ssim']:.4f}", flush=True)
    trials.save(a.output, {"part": a.part, "crops": len(pixels), "models": result})


# ---------------------------------------------------------------- command line


def crops_command(a: argparse.Namespace) -> None:
    """Write the grey crops of BSDS500."""
    from integrodiff.learning import bsds500

    train, test = (bsds500(part, a.data).pixels.astype(np.uint8) for part in ("train", "test"))
    np.savez_compressed(a.crops, train=train, test=test)


def settings(a: argparse.Namespace) -> dict[str, Any]:
    """Return the settings of a run."""
    skipped = ("run", "crops", "output", "start")
    return {k: v for k, v in vars(a).items() if k not in skipped and not isinstance(v, Path)}


def main() -> None:
    """Read the command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    commands = parser.add_subparsers(required=True)
    one = commands.add_parser("crops", help="write the crops to a file")
    one.add_argument("crops", type=Path)
    one.add_argument("--data", type=Path)
    one.set_defaults(run=crops_command)
    for name, run in (("compact", compact_command), ("deep", deep_command)):
        deep = name == "deep"
        one = commands.add_parser(name, help=f"train {name} models")
        one.add_argument("crops", type=Path)
        one.add_argument("output", type=Path)
        one.add_argument("--count", type=int, help="number of crops, the first ones")
        one.add_argument("--size", type=int, default=128, help="side of the parts trained on")
        one.add_argument("--batch", type=int, default=4)
        one.add_argument("--iterations", type=int, nargs=2, default=[100_000, 100_000])
        one.add_argument("--seconds", type=float, nargs=2, default=[1e9, 1e9])
        one.add_argument("--rate", type=float, default=0.04)
        one.add_argument("--last-rate", type=float, default=0.01)
        one.add_argument("--seed", type=int, default=0)
        one.set_defaults(run=run)
        if deep:
            one.add_argument("--steps", type=int, default=14)
            one.add_argument("--first", type=int, default=5, help="channels of order one")
            one.add_argument("--second", type=int, default=2, help="channels of order two")
            one.add_argument("--options", nargs="*", default=[], choices=OPTIONS)
            one.add_argument("--start", type=Path, help="file of an earlier run")
            one.add_argument("--fused", action="store_true", help="limit integration scales")
        else:
            one.add_argument("--law", choices=list(LAWS), required=True)
            one.add_argument("--starts", type=int, default=1)
            one.add_argument("--steps", type=int, help="another number of steps")
    one = commands.add_parser("export", help="write a model file")
    one.add_argument("run_file", type=Path)
    one.add_argument("model_file", type=Path)
    one.add_argument("--law", help="of compact runs and of the trials")
    one.add_argument("--data", type=Path, help="folder that holds bsds500")
    one.add_argument("--fused", action="store_true", help="limit integration scales, deep model")
    one.add_argument("--date", default=time.strftime("%Y-%m-%d"))
    one.set_defaults(run=export_command)
    one = commands.add_parser("test", help="measure a finished model on the test crops")
    one.add_argument("crops", type=Path)
    one.add_argument("run_file", type=Path)
    one.add_argument("output", type=Path)
    one.add_argument("--part", default="test", choices=["train", "test"])
    one.add_argument("--count", type=int)
    one.set_defaults(run=test_command)
    arguments = parser.parse_args()
    arguments.run(arguments)


if __name__ == "__main__":
    main()
