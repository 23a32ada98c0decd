"""All models and settings against the oracle in plain loops."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import naive
import numpy as np
import pytest
from cases import FEW_SCALES, MODELS, RUNNABLE_ENGINES, SIGMA, Image, noise_map, run
from numpy.typing import NDArray

from integrodiff import EED, IAD, IID, FullLaw, PeronaMalik, ScaleGrid
from integrodiff.models import ExplicitModel

STAGED_ENGINES = [name for name in ("numpy", "torch") if name in RUNNABLE_ENGINES]
SHAPES = [(7, 9), (8, 5), (1, 6), (6, 1), (1, 1), (2, 2)]


def noisy(shape: tuple[int, ...], seed: int = 0) -> NDArray[np.float64]:
    """Return a step edge with noise, on the scale [0, 255]."""
    image = np.random.default_rng(seed).normal(0, SIGMA, shape)
    image[..., shape[-1] // 2 :] += 120
    return image + 60


def by_oracle(
    model: ExplicitModel,
    image: NDArray[np.float64],
    relative_noise: NDArray[np.float64] | None = None,
) -> NDArray[np.float64]:
    """Evolve (channels, rows, columns) by the plain loops."""
    common: dict[str, Any] = {
        "tau": model.tau,
        "steps": model.steps,
        "discretisation": model.discretisation,
        "theta": model.theta,
        "relative_noise": relative_noise,
    }
    match model:
        case PeronaMalik():
            return naive.perona_malik(image, contrast=model.contrast, **common)
        case EED():
            return naive.eed(image, contrast=model.contrast, scale=model.scale, **common)
        case IID() | IAD():
            grid = model.scales
            scales = np.geomspace(grid.smallest, grid.largest, grid.count).tolist()
            if isinstance(model.law, FullLaw):
                gammas, lambdas = list(model.law.gammas), list(model.law.lambdas)
            else:
                law = model.law
                gammas, lambdas = naive.reduced_law(
                    law.alpha, law.beta, law.lambda_0, scales, SIGMA
                )
            return naive.integrodifferential(
                image,
                gammas=gammas,
                lambdas=lambdas,
                scales=scales,
                coupling="trace" if isinstance(model, IID) else "tensor",
                quadrature=grid.quadrature,
                **common,
            )
    raise TypeError(type(model))


def assert_agrees(
    model: ExplicitModel,
    engine: str,
    image: NDArray[np.float64],
    levels: NDArray[np.float64] | None = None,
) -> None:
    expected = by_oracle(model, image, levels)
    double: Image = run(model, engine, image, relative_noise=levels)
    assert double.dtype == np.float64
    np.testing.assert_allclose(double, expected, rtol=0, atol=1e-10)
    single: Image = run(model, engine, image.astype(np.float32), relative_noise=levels)
    assert single.dtype == np.float32
    np.testing.assert_allclose(single, expected, rtol=0, atol=1e-4)


@pytest.mark.slow
@pytest.mark.parametrize("engine", STAGED_ENGINES)
@pytest.mark.parametrize("discretisation", ["haar", "nonnegativity"])
@pytest.mark.parametrize("name", MODELS)
def test_every_model_and_shape(name: str, discretisation: str, engine: str) -> None:
    model = replace(MODELS[name], discretisation=discretisation, tau=0.1)
    for seed, shape in enumerate(SHAPES):
        assert_agrees(model, engine, noisy((1, *shape), seed))


@pytest.mark.parametrize("engine", STAGED_ENGINES)
@pytest.mark.parametrize("discretisation", ["haar", "nonnegativity"])
@pytest.mark.parametrize("name", MODELS)
def test_noise_that_is_not_the_same_everywhere(name: str, discretisation: str, engine: str) -> None:
    model = replace(MODELS[name], discretisation=discretisation, tau=0.1)
    for shape in ((1, 5, 6), (2, 1, 6), (1, 1, 1)):
        assert_agrees(model, engine, noisy(shape), noise_map(shape))


@pytest.mark.slow
@pytest.mark.parametrize("engine", STAGED_ENGINES)
@pytest.mark.parametrize("theta", [0.0, 0.15, 0.4, 0.5])
@pytest.mark.parametrize("name", ["pm", "eed", "iad-full"])
def test_every_theta(name: str, theta: float, engine: str) -> None:
    assert_agrees(replace(MODELS[name], theta=theta, tau=0.2), engine, noisy((1, 7, 5)))


@pytest.mark.parametrize("engine", STAGED_ENGINES)
@pytest.mark.parametrize("name", MODELS)
def test_channels_share_their_tensor(name: str, engine: str) -> None:
    assert_agrees(MODELS[name], engine, noisy((3, 5, 6)))


@pytest.mark.parametrize(
    "scales",
    [
        ScaleGrid(count=3, smallest=0.2, largest=7.0),
        ScaleGrid(count=3, smallest=0.2, largest=7.0, quadrature="none"),
        ScaleGrid(count=3, smallest=0.2, largest=7.0, quadrature="variance"),
        ScaleGrid(count=1, smallest=1.5, largest=1.5),
    ],
)
@pytest.mark.parametrize("model_class", [IID, IAD])
def test_every_grid_of_scales(model_class: type[IID | IAD], scales: ScaleGrid) -> None:
    law = MODELS["iad-reduced"].law
    model = model_class(law=law, tau=0.1, steps=2, scales=scales)
    assert_agrees(model, "numpy", noisy((1, 5, 7)))


@pytest.mark.slow
def test_the_papers_eight_scales_and_ten_steps() -> None:
    model = replace(MODELS["iad-reduced"], scales=ScaleGrid(), steps=10, tau=0.5)
    assert model.scales != FEW_SCALES
    assert_agrees(model, "numpy", noisy((1, 6, 7)))


def test_weak_and_strong_contrasts() -> None:
    for contrast in (5.0, 1e6):
        model = replace(MODELS["eed"], contrast=contrast)
        assert_agrees(model, "numpy", noisy((1, 6, 7)))
