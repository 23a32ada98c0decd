"""The models, engines and random images that property tests run over."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any, TypeAlias

import numpy as np
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from numpy.typing import NDArray
from selection import QUICK

from integrodiff import EED, IAD, IID, FullLaw, PeronaMalik, ReducedLaw, ScaleGrid
from integrodiff.engines import ENGINES
from integrodiff.models import CompactDiffusion, ExplicitModel, PowerLaws

Image: TypeAlias = NDArray[np.floating[Any]]

SIGMA = 25.0

FEW_SCALES = ScaleGrid(count=3, smallest=0.3, largest=2.5)
FULL = FullLaw(gammas=(1.0, 0.8, 0.3), lambdas=(30.0, 9.0, 3.0))
REDUCED = ReducedLaw(alpha=0.2, beta=2.0, lambda_0=1.2)

# Typed Any: tests change fields that only some of the classes have.
MODELS: dict[str, Any] = {
    "pm": PeronaMalik(contrast=20.0, tau=0.2, steps=3),
    "eed": EED(contrast=15.0, scale=0.8, tau=0.2, steps=3),
    "iid-reduced": IID(law=REDUCED, tau=0.4, steps=3, scales=FEW_SCALES),
    "iid-full": IID(law=FULL, tau=0.4, steps=3, scales=FEW_SCALES),
    "iad-reduced": IAD(law=REDUCED, tau=0.4, steps=3, scales=FEW_SCALES),
    "iad-full": IAD(law=FULL, tau=0.4, steps=3, scales=FEW_SCALES),
}

LAWS = PowerLaws(
    strengths=(1.0, 0.5, 0.2, 0.1),
    exponents=(0.3, 0.2, 0.0, -0.1),
    decays=(0.2, 0.1, 0.3, 0.0),
    contrasts=(0.5, 0.4, 0.3, 0.6),
    contrast_exponents=(1.1, 1.5, 0.5, -0.2),
)
COMPACT = CompactDiffusion(law=LAWS, tau=0.01, tau_exponent=0.2, steps=3, scales=FEW_SCALES)

RUNNABLE_ENGINES = [
    name
    for name, engine in ENGINES.items()
    if engine.unavailable() is None and not (QUICK and name == "torch")
]


def at_bound(model: ExplicitModel, fraction: float = 1.0) -> ExplicitModel:
    """Return the model with its step size at a fraction of the largest stable one."""
    return replace(model, tau=fraction * model.stable_step(SIGMA))


def run(
    model: ExplicitModel,
    engine: str,
    image: Image,
    sigma: float = SIGMA,
    *,
    exact: bool = True,
    relative_noise: Image | None = None,
) -> Image:
    """Evolve an image (rows, columns) or (channels, rows, columns) with one engine."""
    canonical = image[None] if image.ndim == 2 else image
    result: Image = ENGINES[engine].evolve(
        canonical, model.evolution(sigma), exact=exact, relative_noise=relative_noise
    )
    return result[0] if image.ndim == 2 else result


def noise_map(shape: tuple[int, ...]) -> NDArray[np.float64]:
    """Return relative noise levels between a quarter and four, the same in every run."""
    rng = np.random.default_rng(7)
    return np.asarray(4.0 ** rng.uniform(-1, 1, shape[-2:]), np.float64)


def images(
    *, smallest: int = 1, largest: int = 9, grey: float = 300.0
) -> st.SearchStrategy[NDArray[np.float64]]:
    """Random images, flat and extreme ones among them."""
    sides = st.integers(smallest, largest)
    values = st.floats(-grey, grey, allow_nan=False, width=32)
    return st.tuples(sides, sides).flatmap(lambda shape: arrays(np.float64, shape, elements=values))


def semidefinite_tensors(
    rng: np.random.Generator, shape: tuple[int, ...]
) -> tuple[NDArray[np.float64], NDArray[np.float64], NDArray[np.float64]]:
    """Random tensors with eigenvalues in [0, 1], many of them degenerate: xx, xy, yy."""
    eigenvalues = rng.choice([0.0, 1.0, 0.5], size=(2, *shape))
    eigenvalues = np.where(rng.random((2, *shape)) < 0.5, eigenvalues, rng.random((2, *shape)))
    angle = rng.uniform(0, np.pi, shape)
    c, s = np.cos(angle), np.sin(angle)
    first, second = eigenvalues
    return (
        first * c * c + second * s * s,
        (first - second) * s * c,
        first * s * s + second * c * c,
    )


def dense_matrix(operator: Callable[[Image], Image], shape: tuple[int, int]) -> Image:
    """Return the matrix of a linear operator on images ``(batch, channel, row, column)``."""
    size = shape[0] * shape[1]
    units = np.eye(size).reshape(size, 1, *shape)
    return operator(units).reshape(size, size).T


TURNS: dict[str, Callable[[Any], Any]] = {
    "quarter turn": lambda u: np.rot90(u, 1, (-2, -1)),
    "half turn": lambda u: np.rot90(u, 2, (-2, -1)),
    "transposed": lambda u: np.swapaxes(u, -2, -1),
    "left-right": lambda u: np.flip(u, -1),
    "upside down": lambda u: np.flip(u, -2),
}
"""Symmetries of the square, with which every process commutes."""
