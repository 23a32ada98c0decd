"""Training of models with hundreds of numbers: gradient descent by reverse-mode derivatives.

Forward-mode tangents cost one image each, so that Levenberg-Marquardt is for a few dozen numbers
at most. For :class:`integrodiff.models.DeepDiffusion` the whole evolution is differentiated
backwards, on random images with fresh noise at all noise levels, and Adam takes the steps.
"""

from __future__ import annotations

import json
import math
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np

from integrodiff._atomic import atomic_write
from integrodiff._text_files import regular_text
from integrodiff.learning.compiled import pointwise
from integrodiff.learning.images import CleanImages
from integrodiff.models import DeepDiffusion
from integrodiff.models.deep import (
    Channel,
    DeepNumbers,
    DeepParameters,
    bound_table,
    evolution_of,
    numbers_at,
)
from integrodiff.stages import CouplingKind, DerivativeOperator, Evolution
from integrodiff.stages.scale_space import cascade, cascade_adjoint
from integrodiff.viz.metrics import DECIBELS_PER_LOGARITHM, psnr_of_error

# Where training starts: scale, weight and contrast of the channels of each order. The first order
# is near the compact law, the others are weak.
_START = {
    1: (
        (0.3, 0.05, 0.4),
        (0.7, 0.2, 0.18),
        (1.3, 1.0, 0.1),
        (2.5, 0.5, 0.055),
        (5.0, 0.2, 0.03),
    ),
    2: ((0.5, 0.05, 0.17), (1.2, 0.15, 0.12), (2.4, 0.1, 0.04)),
    3: ((1.0, 0.03, 0.15), (2.0, 0.05, 0.08)),
    4: ((1.0, 0.02, 0.12), (2.0, 0.05, 0.08)),
}
_THETA = 0.15

_LARGEST_CHECKPOINT = 2**26
"""Bytes of a checkpoint; one of a model with 354 numbers has some 30,000."""


@dataclass(frozen=True, kw_only=True)
class DescentSettings:
    """Settings of the gradient descent.

    Attributes
    ----------
    iterations : int
        Number of steps.
    batch : int
        Images in each step; each of them at all noise levels.
    rate : float
        Largest learning rate, for logarithms of the numbers. It rises over the first twentieth of
        the steps and falls to zero as a cosine.
    seed : int
        Seed of images and noise.
    every : int
        Steps between two reports and checkpoints.
    """

    iterations: int = 3000
    batch: int = 16
    rate: float = 0.03
    seed: int = 0
    every: int = 50


@dataclass(frozen=True)
class DescentProgress:
    """The mean over the steps since the last report."""

    iteration: int
    psnr: float
    seconds: float


def descend(
    model: DeepDiffusion,
    images: CleanImages,
    levels: Sequence[float],
    *,
    settings: DescentSettings | None = None,
    device: str = "auto",
    compile_backend: str | None = "inductor",
    checkpoint: Path | None = None,
    callback: Callable[[DescentProgress], object] | None = None,
) -> DeepDiffusion:
    """Train the numbers of a deep model on clean images with noise of the given levels.

    Parameters
    ----------
    model : DeepDiffusion
        Where to start.
    images : CleanImages
        The clean images.
    levels : sequence of float
        Noise levels; the numbers are for all of them together.
    settings : DescentSettings, optional
        Number of steps, batch and learning rate.
    device : str
        ``cpu``, ``cuda``, or ``auto``: the GPU if there is one.
    compile_backend : str, optional
        Backend of ``torch.compile``; None runs the functions as they are.
    checkpoint : path, optional
        File that holds the state after every report. If it is there already, the run goes on
        from it.
    callback : callable, optional
        Called with a :class:`DescentProgress` at every report.
    """
    if (
        model.anisotropic
        or model.integration_scales
        or model.pulls
        or model.contrast_floor
        or model.step_weight_exponents
        or model.step_contrast_exponents
        or model.acting
        or len(model.weight_exponents) != len(model.channels)
        or len(model.contrast_exponents) != len(model.channels)
    ):
        raise ValueError(
            "this descent does not know the anisotropic second order, integration scales, pulls, "
            "exponents of steps, floors of contrasts and steps without some channels; "
            "take experiments/train_models.py or train_pairs.py"
        )
    run = _Run(model, images, levels, settings or DescentSettings(), device, compile_backend)
    run.load(checkpoint)
    errors: list[float] = []
    began = time.perf_counter()
    while run.iteration < run.settings.iterations:
        errors.append(run.step())
        if run.iteration % run.settings.every == 0 or run.iteration == run.settings.iterations:
            psnr = float(psnr_of_error(1.0)) - float(np.mean(errors))
            run.save(checkpoint)
            if callback is not None:
                callback(DescentProgress(run.iteration, psnr, time.perf_counter() - began))
            errors, began = [], time.perf_counter()
    return run.model()


def deep_start(orders: Sequence[int] = (1, 2, 3, 4), steps: int = 10) -> DeepDiffusion:
    """Return an untrained deep model with channels of the given orders."""
    chosen = [(Channel(order, row[0]), *row[1:]) for order in orders for row in _START[order]]
    channels, weights, contrasts = zip(*chosen, strict=True)
    count = len(channels)
    return DeepDiffusion(
        channels=channels,
        steps=steps,
        theta=_THETA,
        weights=weights * steps,
        contrasts=contrasts * steps,
        weight_exponents=(0.2,) * count,
        contrast_exponents=(0.0,) * count,
        couplings=(1.0,) * count,
    )


class _Run:
    """The tensors of a training run."""

    def __init__(
        self,
        model: DeepDiffusion,
        images: CleanImages,
        levels: Sequence[float],
        settings: DescentSettings,
        device: str,
        backend: str | None,
    ) -> None:
        import torch

        if device == "auto":
            device = "cuda" if torch.cuda.is_available() else "cpu"
        self.template, self.settings, self.backend = model, settings, backend
        self.identity = json.dumps(
            [repr(model), images.fingerprint, [float(s) for s in levels], asdict(settings)]
        )
        self.device = torch.device(device)
        self.iteration = 0

        def tensor(values: Any) -> Any:
            return torch.tensor(values, dtype=torch.float32, device=self.device)

        self.images, self.levels = tensor(images.pixels)[:, None], tensor(list(levels))
        self.table = tensor(bound_table(model.channels, model.theta))
        self.numbers = {
            name: tensor(np.log(values) if self._is_log(name) else values).requires_grad_()
            for name, values in model.arrays()._asdict().items()
            if values is not None
        }
        self.optimiser = torch.optim.Adam(self.numbers.values(), lr=settings.rate)
        self._count = min(settings.batch, len(self.images))
        # The same memory for all batches, so that what a GPU does with it can be recorded.
        self._clean = self.images[:1].new_empty(
            (self._count * len(self.levels), *self.images.shape[1:])
        )
        self._noisy = self._clean.clone().requires_grad_()
        self._gradients = self._recorded if self.device.type == "cuda" else self._computed
        self._recording: tuple[Any, Any] | None = None

    def _is_log(self, name: str) -> bool:
        return self.template.declared()[name].transform == "log"

    def step(self) -> float:
        """Take one step of descent; return the mean of 10 log10 of the squared error."""
        import torch

        rng = np.random.default_rng((self.settings.seed, self.iteration))
        chosen = rng.choice(len(self.images), self._count, replace=False)
        generator = torch.Generator(self.device).manual_seed(int(rng.integers(2**62)))
        with torch.no_grad():
            clean = self.images[torch.tensor(chosen, device=self.device)]
            self._clean.copy_(clean.repeat(len(self.levels), 1, 1, 1))
            levels = self.levels.repeat_interleave(self._count)[:, None, None, None]
            noise = torch.randn(self._clean.shape, generator=generator, device=self.device)
            self._noisy.copy_(self._clean + levels * noise)
        self.optimiser.param_groups[0]["lr"] = self._rate()
        loss = self._gradients()
        self.optimiser.step()
        self.iteration += 1
        return float(loss)

    def _computed(self) -> Any:
        """Return the loss of the current batch; gradients accumulate in ``self.numbers``."""
        import torch

        self.optimiser.zero_grad(set_to_none=True)
        # Orders and scales have graphs of their own.
        with torch._dynamo.config.patch(recompile_limit=64):
            error = (self.denoised(self._noisy) - self._clean).square().mean(dim=(1, 2, 3))
            loss = DECIBELS_PER_LOGARITHM * error.log().mean()
            loss.backward(inputs=list(self.numbers.values()))
        return loss.detach()

    def _recorded(self) -> Any:
        """Do the same by replaying a CUDA graph; launching the kernels one by one takes longer."""
        import torch

        if self._recording is None:
            aside = torch.cuda.Stream()  # type: ignore[no-untyped-call]
            aside.wait_stream(torch.cuda.current_stream())
            with torch.cuda.stream(aside):  # compiles, and fills the caches of the blurs
                for _ in range(3):
                    self._computed()
            torch.cuda.current_stream().wait_stream(aside)
            graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(graph):
                loss = self._computed()
            self._recording = graph, loss
        graph, loss = self._recording
        graph.replay()
        return loss

    def denoised(self, noisy: Any) -> Any:
        """Denoise images sorted by noise level, the same number for each level."""
        import torch

        numbers = numbers_at(
            torch, self._parameters(), self.levels, self.table, self.template.smallest_contrast
        )
        count = len(noisy) // len(self.levels)
        spread = DeepNumbers(
            *(
                [
                    row.unbind(0)
                    for row in part.repeat_interleave(count, dim=0).permute(1, 2, 0)[
                        ..., None, None, None
                    ]
                ]
                for part in numbers
                if part is not None
            )
        )
        evolution = evolution_of(self.template.channels, spread, theta=self.template.theta)
        for step in range(evolution.steps):
            noisy = noisy + self._velocity(noisy, evolution, step)
        return noisy

    def _parameters(self) -> DeepParameters:
        """Return the numbers themselves, not their logarithms."""
        return DeepParameters(
            **{
                name: self.template.declared()[name].backward(number)
                for name, number in self.numbers.items()
            }
        )

    def _velocity(self, image: Any, evolution: Evolution, step: int) -> Any:
        """Return the velocity of :mod:`integrodiff.stages.step`, by compiled functions."""
        smoothed = cascade(image, evolution.scales)
        flows: list[Any] = [0] * len(smoothed)
        for term in evolution.terms(step):
            share, flow = _pieces(term.derivatives, term.coupling.kind, self.backend)
            present = [
                i for i, weight in enumerate(term.flux_weights) if not isinstance(weight, float)
            ]
            coupling = sum(share(smoothed[i], term.coupling.weights[i]) for i in present)
            for i in present:
                flows[i] = flows[i] + flow(
                    coupling, smoothed[i], term.flux_weights[i], term.diffusivity.contrasts[i]
                )
        return cascade_adjoint(flows, evolution.scales)

    def _rate(self) -> float:
        """Return the learning rate of this step."""
        position = (self.iteration + 0.5) / self.settings.iterations
        warm = min(1.0, position / 0.05)
        return self.settings.rate * warm * (1 + math.cos(math.pi * position)) / 2

    def model(self) -> DeepDiffusion:
        """Return the model with the numbers as they are now."""
        plain: dict[str, Any] = {
            name: tuple(number.detach().double().cpu().numpy().ravel().tolist())
            for name, number in self._parameters()._asdict().items()
            if number is not None
        }
        return replace(self.template, **plain)

    def save(self, path: Path | None) -> None:
        """Write the checkpoint atomically."""
        if path is None:
            return
        moments = [
            {key: self.optimiser.state[self.numbers[name]][key].tolist() for key in _MOMENTS}
            for name in self.numbers
        ]
        document = {
            "identity": self.identity,
            "iteration": self.iteration,
            "numbers": {name: self.numbers[name].tolist() for name in self.numbers},
            "moments": moments,
        }
        with atomic_write(path, overwrite=True) as temporary:
            temporary.write_text(json.dumps(document), encoding="utf-8")

    def load(self, path: Path | None) -> None:
        """Resume from a checkpoint of the same training, if there is one."""
        import torch

        if path is None or not path.exists():
            return
        try:
            document = json.loads(regular_text(path, _LARGEST_CHECKPOINT))
            identity = document["identity"]
        except (OSError, ValueError, KeyError, TypeError, RecursionError) as error:
            raise ValueError(f"{path} is not a checkpoint: {error}") from error
        if identity != self.identity:
            raise ValueError(f"{path} belongs to another training; remove it, or name another file")
        self.iteration = document["iteration"]
        for name, moments in zip(self.numbers, document["moments"], strict=True):
            number = self.numbers[name]
            with torch.no_grad():
                number.copy_(torch.tensor(document["numbers"][name]))
            self.optimiser.state[number] = {
                key: torch.tensor(value, device=self.device if key != "step" else "cpu")
                for key, value in moments.items()
            }


_MOMENTS = ("step", "exp_avg", "exp_avg_sq")


@lru_cache(maxsize=32)
def _pieces(
    operator: DerivativeOperator, kind: CouplingKind, backend: str | None
) -> tuple[Any, Any]:
    """Return the pointwise functions of one operator, compiled at their first calls."""
    import torch

    share, flow = pointwise(operator, kind)
    if backend is None:
        return share, flow
    return (
        torch.compile(share, fullgraph=True, backend=backend, dynamic=False),
        torch.compile(flow, fullgraph=True, backend=backend, dynamic=False),
    )
