"""Trial of a next step: learned zero-mean filters after a trained model.

    python experiments/learned_filters.py --data FOLDER [--model iad-deep] [--level 25]
        [--filters 8] [--side 5] [--stages 2] [--iterations 600] [--seeds 3] [--json FILE]

Stages u <- u - t sum_k F_k* g_k F_k u + p (f - u) follow the model, where f is its input. The
filters F_k have mean zero and are trained. The gate g_k = exp(-a^2 / (2 c_k^2)) is between zero and
one; a^2 is the squared answer of the filter, smoothed by a Gaussian of trained width. The squared
symbols of the filters add up to one at most, and t <= 2 (1 - p): so the norm of u stays below that
of f, as in the models, but for what the border of the image changes. The same stages with fixed
filters, the derivatives of order one and two in 3 x 3 pixels, say how much more stages bring
without new filters.

Training: parts of 64 x 64 pixels of the 150 BSDS500 training crops that are not held out, Adam.
Results are gains in dB over the model on the 50 held-out crops.
"""

# mypy: allow-untyped-calls

from __future__ import annotations

import argparse
import json
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch.nn.functional import conv2d, conv_transpose2d, pad

from integrodiff import load_model
from integrodiff._atomic import atomic_write
from integrodiff.engines import get_engine
from integrodiff.learning import bsds500
from integrodiff.learning.images import noise
from integrodiff.viz.metrics import psnr

_PART, _BATCH = 64, 12
_WIDEST = 6  # radius of the smoothing, in pixels


def derivative_filters() -> torch.Tensor:
    """Return derivatives of order one and two as filters of 3 x 3."""
    first = [[0, 0, 0], [-1, 0, 1], [0, 0, 0]]
    second = [[0, 0, 0], [1, -2, 1], [0, 0, 0]]
    mixed = [[1, 0, -1], [0, 0, 0], [-1, 0, 1]]
    filters = [np.array(first) / 2, np.array(first).T / 2, np.array(second), np.array(second).T]
    return torch.tensor(np.stack([*filters, np.array(mixed) / 4]), dtype=torch.float32)[:, None]


class Stages(torch.nn.Module):
    """Some stages; learned filters start at random, others are those of derivatives."""

    def __init__(self, stages: int, filters: int, side: int, level: float, learned: bool) -> None:
        super().__init__()
        self.level, self.learned = level, learned
        fixed = derivative_filters()
        count, self.radius = (filters, side // 2) if learned else (len(fixed), 1)
        parameter = torch.nn.Parameter
        if learned:
            self.filters = parameter(torch.randn(stages, count, 1, side, side))
        else:
            self.register_buffer("filters", fixed.repeat(stages, 1, 1, 1, 1))
        self.shares = parameter(torch.full((stages, count), -2.0))
        self.contrasts = parameter(torch.full((stages, count), -2.0))
        self.widths = parameter(torch.full((stages,), 0.5))
        self.pulls = parameter(torch.full((stages,), -4.0))
        self.how_far = parameter(torch.full((stages,), -2.0))

    def filters_of(self, stage: int) -> torch.Tensor:
        """Return filters of mean zero whose squared symbols add up to one at most."""
        found = self.filters[stage]
        found = found - found.mean((-1, -2), keepdim=True)
        found = found / found.square().sum((-1, -2), keepdim=True).sqrt()
        found = found * torch.exp(self.shares[stage])[:, None, None, None]
        symbols = torch.fft.rfft2(found, s=(64, 64)).abs().square().sum((0, 1))
        normalised: torch.Tensor = found / symbols.max().sqrt()
        return normalised

    def forward(self, image: torch.Tensor, original: torch.Tensor) -> torch.Tensor:
        """Run all stages on images ``(n, 1, rows, columns)``."""
        reach = torch.arange(-_WIDEST, _WIDEST + 1.0)
        for stage in range(len(self.pulls)):
            filters, margin = self.filters_of(stage), 2 * self.radius
            extended = pad(image, (margin,) * 4, "reflect")
            answers = conv2d(extended, filters)
            taps = torch.exp(-reach.square() / (2 * torch.exp(2 * self.widths[stage])))
            taps = (taps / taps.sum()).expand(len(filters), 1, 1, -1)
            squares = pad(answers.square(), (_WIDEST,) * 4, "reflect")
            squares = conv2d(squares, taps, groups=len(filters))
            squares = conv2d(squares, taps.transpose(-1, -2), groups=len(filters))
            contrasts = self.level * torch.exp(self.contrasts[stage])[:, None, None]
            gated = answers * torch.exp(-squares / (2 * contrasts.square()))
            # Within the margin the mirror images are left out, which changes a rim of the result.
            flow = conv_transpose2d(gated, filters)[..., margin:-margin, margin:-margin]
            pull = torch.sigmoid(self.pulls[stage])
            step = 2 * (1 - pull) * torch.sigmoid(self.how_far[stage])
            image = image - step * flow + pull * (original - image)
        return image

    def count(self) -> int:
        """Return the number of trained numbers that have an effect."""
        stages, count, _, side, _ = self.filters.shape
        filters = count * (side * side - 2) if self.learned else 0  # neither mean nor length
        return int(stages * (filters + 2 * count - 1 + 3))


def trained(net: Stages, clean: Any, noisy: Any, denoised: Any, iterations: int, seed: int) -> None:
    """Train the stages on parts of crops."""
    torch.manual_seed(seed)
    rng = np.random.default_rng(seed)
    optimiser = torch.optim.Adam(net.parameters(), lr=0.02)
    room = clean.shape[-1] - _PART
    for iteration in range(iterations):
        position = iteration / iterations
        optimiser.param_groups[0]["lr"] = 0.02 * (1 + np.cos(np.pi * position)) / 2
        places = [(k, *rng.integers(0, room + 1, 2)) for k in rng.integers(len(clean), size=_BATCH)]
        target, original, image = (
            torch.tensor(np.stack([a[k, y : y + _PART, x : x + _PART] for k, y, x in places]))
            for a in (clean, noisy, denoised)
        )
        target, original, image = target[:, None], original[:, None], image[:, None]
        rim = 8  # changed by the border of the part
        error = (net(image, original) - target)[..., rim:-rim, rim:-rim]
        loss = error.square().mean((1, 2, 3)).log().mean()
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()


def main() -> None:
    """Train with learned and with fixed filters, from several starts, and compare."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--data", type=Path, help="folder that holds bsds500")
    parser.add_argument("--model", default="iad-deep")
    parser.add_argument("--level", type=float, default=25.0)
    parser.add_argument("--filters", type=int, default=8)
    parser.add_argument("--side", type=int, default=5)
    parser.add_argument("--stages", type=int, default=2)
    parser.add_argument("--iterations", type=int, default=600)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--json", type=Path)
    a = parser.parse_args()
    torch.set_num_threads(1)
    began = time.process_time()
    clean = bsds500("train", a.data).pixels
    process = get_engine("native").prepare(load_model(a.model).evolution(a.level), threads=1)
    noisy = np.stack([c + noise(a.level, k, c.shape) for k, c in enumerate(clean)])
    denoised = np.stack([process(image[None])[0] for image in noisy])
    kept = [k for k in range(len(clean)) if k % 4 != 3]
    held = [k for k in range(len(clean)) if k % 4 == 3]
    before = np.array([psnr(denoised[k], clean[k]) for k in held])
    print(f"{a.model} on held-out crops: {before.mean():.3f} dB", flush=True)
    results = []
    for learned in (False, True):
        for seed in range(a.seeds):
            torch.manual_seed(seed)
            net = Stages(a.stages, a.filters, a.side, a.level, learned)
            trained(net, clean[kept], noisy[kept], denoised[kept], a.iterations, seed)
            after = []
            with torch.no_grad():
                for k in held:
                    image, original = (torch.tensor(x[k])[None, None] for x in (denoised, noisy))
                    after.append(psnr(net(image, original)[0, 0].numpy(), clean[k]))
            gain = np.array(after) - before
            entry = {
                "filters": "learned" if learned else "derivatives",
                "seed": seed,
                "numbers": net.count(),
                "gain": round(float(gain.mean()), 4),
                "smallest": round(float(gain.min()), 3),
                "largest": round(float(gain.max()), 3),
                "processor_seconds": round(time.process_time() - began),
            }
            results.append(entry)
            print(entry, flush=True)
            if a.json:
                skipped = ("json", "data")
                settings = {k: v for k, v in vars(a).items() if k not in skipped}
                with atomic_write(a.json, overwrite=True) as temporary:
                    document = {"settings": settings, "runs": results}
                    temporary.write_text(json.dumps(document, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
