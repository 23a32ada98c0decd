"""Train a small convolution and a diffusion layer behind it, end to end, on pairs of images.

    python experiments/train_layer.py PAIRS [--make] [--iterations 60] [--save MODEL.json]

PAIRS is a folder with subfolders ``clean`` and ``noisy``, in which images of one pair have the same
name: grey PNG or TIFF files of eight bits. ``--make`` fills it first, with crops of sample images
of scikit-image to which Gaussian noise of level 20 and outliers, one pixel in fifty, are added.
Diffusion takes outliers for structure and keeps them; the convolution learns to remove them, while
gradients flow through the diffusion to it. Every fourth pair is held out.

docs/torch.md explains the program.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image
from torch import nn

from integrodiff import IAD, ReducedLaw, ScaleGrid, save_model
from integrodiff.nn import Diffusion

SIGMA, OUTLIERS = 20.0, 0.02
SAMPLES = ("camera", "coins", "moon", "brick", "grass", "gravel", "page", "text")
START = IAD(
    law=ReducedLaw(alpha=0.7, beta=4.8, lambda_0=0.73),
    tau=1.5,
    steps=4,
    scales=ScaleGrid(count=3, smallest=0.3, largest=2.5, quadrature="variance"),
)


class Denoiser(nn.Module):
    """Two convolutions that correct the image, and diffusion of what they leave."""

    def __init__(self, channels: int = 8) -> None:
        super().__init__()
        self.front = nn.Sequential(
            nn.Conv2d(1, channels, 3, padding=1, padding_mode="replicate"),
            nn.ReLU(),
            nn.Conv2d(channels, 1, 3, padding=1, padding_mode="replicate"),
        )
        # At the start the convolutions correct nothing.
        for parameter in self.front[2].parameters():
            nn.init.zeros_(parameter)
        self.diffusion = Diffusion(START, data_range=1.0)
        self.log_sigma = nn.Parameter(torch.tensor(SIGMA / 255).log())

    def forward(self, noisy: torch.Tensor) -> torch.Tensor:
        """Return denoised images; the noise level of the diffusion is trained, too."""
        corrected = noisy + self.front(noisy - noisy.mean(dim=(2, 3), keepdim=True))
        result: torch.Tensor = self.diffusion(corrected, self.log_sigma.exp())
        return result


class Pairs(NamedTuple):
    """Noisy and clean images ``(image, 1, row, column)`` on the scale [0, 1]."""

    noisy: torch.Tensor
    clean: torch.Tensor

    def psnr(self, denoised: torch.Tensor) -> float:
        """Return the mean peak signal-to-noise ratio in decibels."""
        errors = (denoised - self.clean).square().mean(dim=(1, 2, 3))
        return float((-10 * errors.log10()).mean())


def make_pairs(folder: Path, size: int = 40, crops: int = 4) -> None:
    """Write pairs of sample images with noise."""
    from skimage import data

    for name in ("clean", "noisy"):
        (folder / name).mkdir(parents=True, exist_ok=True)
    for sample in SAMPLES:
        image = getattr(data, sample)()
        rng = np.random.default_rng(SAMPLES.index(sample))
        for crop in range(crops):
            y, x = (int(rng.integers(0, length - size)) for length in image.shape)
            clean = image[y : y + size, x : x + size].astype(np.float64)
            noisy = clean + rng.normal(0, SIGMA, clean.shape)
            noisy = np.where(
                rng.random(clean.shape) < OUTLIERS, rng.choice([0, 255], clean.shape), noisy
            )
            for kind, pixels in (("clean", clean), ("noisy", noisy)):
                path = folder / kind / f"{sample}-{crop}.png"
                Image.fromarray(pixels.round().clip(0, 255).astype(np.uint8)).save(path)


def read_pairs(folder: Path) -> list[tuple[NDArray[np.float32], NDArray[np.float32]]]:
    """Return all pairs of a folder, sorted by name."""
    names = sorted(path.name for path in (folder / "clean").iterdir())
    if not names:
        raise SystemExit(f"there are no images in {folder / 'clean'}; fill it, or give --make")
    missing = [name for name in names if not (folder / "noisy" / name).exists()]
    if missing:
        raise SystemExit(f"{folder / 'noisy'} has no {missing[0]}, which is in {folder / 'clean'}")

    def pixels(kind: str, name: str) -> NDArray[np.float32]:
        with Image.open(folder / kind / name) as image:
            return np.asarray(image.convert("L"), np.float32) / np.float32(255)

    return [(pixels("noisy", name), pixels("clean", name)) for name in names]


def divided(pairs: Sequence[tuple[NDArray[np.float32], NDArray[np.float32]]]) -> list[Pairs]:
    """Return pairs for training and every fourth of them, held out; all must have one size."""
    stacks = []
    for held_out in (False, True):
        chosen = [pair for i, pair in enumerate(pairs) if (i % 4 == 3) == held_out]
        stacks.append(
            Pairs(
                *(torch.from_numpy(np.stack(part))[:, None] for part in zip(*chosen, strict=True))
            )
        )
    return stacks


def train(denoiser: nn.Module, pairs: Pairs, iterations: int, batch: int = 4) -> None:
    """Train all parameters of a network on mean squared errors."""
    generator = torch.Generator().manual_seed(0)
    optimiser = torch.optim.Adam(denoiser.parameters(), lr=0.01)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimiser, iterations)
    for _ in range(iterations):
        chosen = torch.randperm(len(pairs.noisy), generator=generator)[:batch]
        loss = (denoiser(pairs.noisy[chosen]) - pairs.clean[chosen]).square().mean()
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
        schedule.step()


def main(arguments: Sequence[str] | None = None) -> dict[str, float]:
    """Train on a folder; print and return what was reached on the pairs that were held out."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("pairs", type=Path)
    parser.add_argument("--make", action="store_true", help="fill the folder with sample images")
    parser.add_argument("--iterations", type=int, default=60)
    parser.add_argument("--save", type=Path, help="write the trained model of the diffusion here")
    chosen = parser.parse_args(arguments)
    if chosen.make:
        make_pairs(chosen.pairs)
    torch.manual_seed(0)
    training, held_out = divided(read_pairs(chosen.pairs))
    denoiser = Denoiser()
    alone = Diffusion(START, data_range=1.0)
    found = {"noisy": held_out.psnr(held_out.noisy)}
    with torch.no_grad():
        found["diffusion before training"] = held_out.psnr(denoiser(held_out.noisy))
    began = time.process_time()
    fixed_level = _AtOneLevel(alone)
    train(fixed_level, training, chosen.iterations)
    train(denoiser, training, chosen.iterations)
    seconds = time.process_time() - began
    with torch.no_grad():
        found["diffusion trained alone"] = held_out.psnr(fixed_level(held_out.noisy))
        found["convolution and diffusion"] = held_out.psnr(denoiser(held_out.noisy))
    for name, psnr in found.items():
        print(f"{name:28} {psnr:6.2f} dB")
    print(
        f"{len(training.noisy)} pairs for training, {len(held_out.noisy)} held out, twice "
        f"{chosen.iterations} iterations, {seconds:.0f} s of processor time"
    )
    if chosen.save is not None:
        save_model(denoiser.diffusion.model(), chosen.save)
    return found


class _AtOneLevel(nn.Module):
    """A diffusion layer with a trained noise level."""

    def __init__(self, diffusion: Diffusion) -> None:
        super().__init__()
        self.diffusion = diffusion
        self.log_sigma = nn.Parameter(torch.tensor(SIGMA / 255).log())

    def forward(self, noisy: torch.Tensor) -> torch.Tensor:
        result: torch.Tensor = self.diffusion(noisy, self.log_sigma.exp())
        return result


if __name__ == "__main__":
    main()
