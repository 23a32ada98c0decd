"""What a diffusion layer keeps for the backward pass, in images per step.

    python benchmarks/layer_memory.py [--models iad iad-plus] [--size 128]

Counts the bytes that PyTorch's graph saves in a forward pass with two and with four steps, without
and with ``checkpoint=True``.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch

from integrodiff.models import load_model
from integrodiff.nn import Diffusion


def saved_bytes(layer: Any, images: torch.Tensor) -> int:
    """Return the bytes that are kept after a forward pass, each memory counted once."""
    kept: dict[int, torch.UntypedStorage] = {}

    def remember(tensor: torch.Tensor) -> torch.Tensor:
        storage = tensor.untyped_storage()
        kept[storage.data_ptr()] = storage
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(remember, lambda tensor: tensor):
        layer(images, 20.0)
    return sum(storage.nbytes() for storage in kept.values())


def images_per_step(model: str, size: int, *, checkpoint: bool) -> float:
    """Return how many images a step adds to what is kept."""
    images = torch.rand(1, 1, size, size) * 255
    few, many = (
        saved_bytes(
            Diffusion(replace(load_model(model), steps=steps), 255.0, checkpoint=checkpoint),  # type: ignore[type-var]
            images,
        )
        for steps in (2, 4)
    )
    return (many - few) / 2 / images.nbytes


def main(arguments: Sequence[str] | None = None) -> None:
    """Print a line for each model."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--models", nargs="+", default=["iad", "iad-plus"])
    parser.add_argument("--size", type=int, default=128)
    chosen = parser.parse_args(arguments)
    for model in chosen.models:
        plain, kept = (
            images_per_step(model, chosen.size, checkpoint=checkpoint)
            for checkpoint in (False, True)
        )
        print(f"{model:10} {plain:6.1f} images per step, with checkpoints {kept:.1f}")


if __name__ == "__main__":
    main()
