"""What every model promises, on every engine, for random images that try to break it."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from cases import MODELS, RUNNABLE_ENGINES, SIGMA, Image, at_bound, images, run
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from numpy.typing import NDArray
from scipy.fft import idctn
from selection import QUICK

from integrodiff import EED, IAD, IID, FullLaw, PeronaMalik, ReducedLaw, ScaleGrid, denoise
from integrodiff.models import ExplicitModel
from integrodiff.stages import explicit_step

every_model = pytest.mark.parametrize("name", MODELS)
every_engine = pytest.mark.parametrize("engine", RUNNABLE_ENGINES)


def test_torch_is_among_the_engines_under_test() -> None:
    if importlib.util.find_spec("torch") is None or QUICK:
        pytest.skip("PyTorch is not installed, or left out by make quick")
    assert {"numpy", "torch"} <= set(RUNNABLE_ENGINES)


@every_engine
@every_model
@given(image=images())
def test_mean_is_preserved_and_norm_never_grows_up_to_the_bound(
    name: str, engine: str, image: NDArray[np.float64]
) -> None:
    result = run(at_bound(MODELS[name]), engine, image)
    assert result.mean() == pytest.approx(image.mean(), abs=1e-9)
    assert np.linalg.norm(result) <= np.linalg.norm(image) * (1 + 1e-12) + 1e-12


@every_engine
@every_model
@given(image=images(), data=st.data())
def test_promises_hold_whatever_the_map_of_noise_levels(
    name: str, engine: str, image: NDArray[np.float64], data: st.DataObject
) -> None:
    levels = data.draw(arrays(np.float64, image.shape, elements=st.floats(1e-3, 1e3)))
    result = run(at_bound(MODELS[name]), engine, image, relative_noise=levels)
    assert result.mean() == pytest.approx(image.mean(), abs=1e-9)
    assert np.linalg.norm(result) <= np.linalg.norm(image) * (1 + 1e-12) + 1e-12


positive = st.floats(0.01, 10)


@st.composite
def random_models(draw: st.DrawFn) -> ExplicitModel:
    """Models with any parameters, a Haar cell with any theta, and the largest stable step."""
    theta = draw(st.floats(0, 0.5))
    grid = ScaleGrid(
        count=draw(st.integers(2, 4)), smallest=draw(st.floats(0.05, 0.5)), largest=4.0
    )
    match draw(st.sampled_from(["pm", "eed", "iid", "iad", "iid-full", "iad-full"])):
        case "pm":
            model: ExplicitModel = PeronaMalik(contrast=draw(positive), tau=1e-9, theta=theta)
        case "eed":
            model = EED(contrast=draw(positive), scale=draw(positive), tau=1e-9, theta=theta)
        case "iid" | "iad" as name:
            reduced = ReducedLaw(alpha=draw(positive), beta=draw(positive), lambda_0=draw(positive))
            model = (IID if name == "iid" else IAD)(law=reduced, tau=1e-9, theta=theta, scales=grid)
        case name:
            full = FullLaw(
                gammas=tuple(draw(positive) for _ in range(grid.count)),
                lambdas=tuple(10 * draw(positive) for _ in range(grid.count)),
            )
            model = (IID if name == "iid-full" else IAD)(
                law=full, tau=1e-9, theta=theta, scales=grid
            )
    return at_bound(replace(model, steps=2))


@given(random_models(), images())
def test_norm_never_grows_whatever_the_parameters(
    model: ExplicitModel, image: NDArray[np.float64]
) -> None:
    assert np.linalg.norm(run(model, "numpy", image)) <= np.linalg.norm(image) * (1 + 1e-11) + 1e-11


@pytest.mark.slow
@every_model
@pytest.mark.parametrize("theta", [0.0, 0.1, 0.25, 0.4, 0.5])
@pytest.mark.parametrize("shape", [(12, 9), (1, 10), (17, 16)])
def test_the_bound_is_sharp(name: str, theta: float, shape: tuple[int, int]) -> None:
    """With D = I, the cosine at which the bound is attained keeps its norm, and not beyond."""
    unit = without_edges(replace(MODELS[name], theta=theta))
    tau = unit.stable_step(SIGMA, shape=shape)
    assert tau >= unit.stable_step(SIGMA)

    size = shape[0] * shape[1]
    cosines = idctn(np.eye(size).reshape(size, *shape), axes=(1, 2), norm="ortho")

    def largest_factor(step: float) -> float:
        evolution = replace(unit.evolution(SIGMA), tau=step)
        after = explicit_step(cosines[:, None], evolution)
        # The constant image, the first, always has the factor one: look at those that flow.
        return float(np.linalg.norm(after, axis=(-2, -1))[1:].max())

    # At the bound the worst cosine is turned over, its norm unchanged; slow ones stay below.
    assert largest_factor(tau) == pytest.approx(1, abs=1e-6)
    assert largest_factor(1.01 * tau) == pytest.approx(1.02, abs=1e-3)


def without_edges(model: Any) -> Any:
    """Return the model with contrasts so large that every diffusion tensor is the unit one."""
    huge = 1e9
    match model:
        case PeronaMalik() | EED():
            return replace(model, contrast=huge, tau=1e-9)
        case IID() | IAD():
            gammas, _ = model.law.values(model.scales.scales, SIGMA)
            law = FullLaw(gammas=gammas, lambdas=(huge,) * len(gammas))
            return replace(model, law=law, tau=1e-9)
    raise TypeError(type(model))


@every_model
def test_the_bound_for_every_size_is_the_limit_of_the_bounds(name: str) -> None:
    general = MODELS[name].stable_step(SIGMA)
    for size in (3, 16, 64, 257):
        assert general <= MODELS[name].stable_step(SIGMA, shape=(size, size + 1))
    assert MODELS[name].stable_step(SIGMA, shape=(512, 512)) == pytest.approx(general, rel=1e-4)


@every_model
def test_one_pixel_has_no_bound(name: str) -> None:
    assert MODELS[name].stable_step(SIGMA, shape=(1, 1)) == np.inf


@every_engine
@every_model
@given(value=st.floats(-1e4, 1e4), shape=st.tuples(st.integers(1, 6), st.integers(1, 6)))
def test_constant_images_are_fixed_points(
    name: str, engine: str, value: float, shape: tuple[int, int]
) -> None:
    image = np.full(shape, value)
    np.testing.assert_allclose(run(MODELS[name], engine, image), image, rtol=1e-13, atol=1e-12)


SYMMETRIES: dict[str, Callable[[Any], Any]] = {
    "transposition": lambda a: np.swapaxes(a, -1, -2),
    "left-right": lambda a: a[..., ::-1],
    "up-down": lambda a: a[..., ::-1, :],
    "quarter turn": lambda a: np.rot90(a, axes=(-2, -1)),
}


@every_engine
@every_model
@given(
    image=images(),
    symmetry=st.sampled_from(sorted(SYMMETRIES)),
    discretisation=st.sampled_from(["haar", "nonnegativity"]),
)
def test_symmetries_of_the_square(
    name: str, engine: str, discretisation: str, image: NDArray[np.float64], symmetry: str
) -> None:
    model = replace(MODELS[name], discretisation=discretisation, tau=0.15)
    turn = SYMMETRIES[symmetry]
    turned_first = run(model, engine, turn(image))
    turned_last = turn(run(model, engine, image))
    np.testing.assert_allclose(turned_first, turned_last, atol=1e-6, rtol=0)


@every_engine
@every_model
@given(image=images(), shift=st.floats(-500, 500))
def test_grey_shifts(name: str, engine: str, image: NDArray[np.float64], shift: float) -> None:
    shifted = run(MODELS[name], engine, image + shift)
    np.testing.assert_allclose(shifted, run(MODELS[name], engine, image) + shift, atol=1e-6)


@pytest.mark.slow
@every_engine
@every_model
@given(image=images(), factor=st.floats(1e-3, 1e3))
def test_units_do_not_matter(
    name: str, engine: str, image: NDArray[np.float64], factor: float
) -> None:
    """Scaling image, sigma and data range together scales the result."""
    arguments = {"model": MODELS[name], "engine": engine}
    plain = denoise(image, SIGMA, data_range=255, **arguments)
    scaled = denoise(image * factor, SIGMA * factor, data_range=255 * factor, **arguments)
    np.testing.assert_allclose(scaled / factor, plain, atol=1e-6)


@pytest.mark.slow
@every_engine
@every_model
@given(image=images(smallest=2), seed=st.integers(0, 2**32 - 1))
def test_output_depends_continuously_on_the_input(
    name: str, engine: str, image: NDArray[np.float64], seed: int
) -> None:
    """A small perturbation moves the output by a bounded factor.

    The flux is not monotone in the gradient, so the factor can exceed one; it grows with the
    ratio of grey values to contrasts. Over the three steps it was at most 3.9 in ten thousand
    random images of each model.
    """
    perturbation = np.random.default_rng(seed).normal(size=image.shape)
    perturbation *= 1e-4 / np.linalg.norm(perturbation)
    moved = run(MODELS[name], engine, image + perturbation) - run(MODELS[name], engine, image)
    assert np.linalg.norm(moved) <= 20 * 1e-4


@every_engine
@given(image=images(), contrast=st.floats(1, 100))
def test_iid_with_one_vanishing_scale_is_perona_malik(
    engine: str, image: NDArray[np.float64], contrast: float
) -> None:
    perona_malik = PeronaMalik(contrast=contrast, tau=0.2, steps=3)

    def iid(scale: float) -> Image:
        return run(
            IID(
                law=FullLaw(gammas=(1.0,), lambdas=(contrast,)),
                tau=0.2,
                steps=3,
                scales=ScaleGrid(count=1, smallest=scale, largest=scale),
            ),
            engine,
            image,
        )

    expected = run(perona_malik, engine, image)
    np.testing.assert_array_equal(iid(0.0), expected)
    np.testing.assert_allclose(iid(1e-5), expected, atol=1e-5)


@pytest.mark.slow
@every_engine
@every_model
def test_equal_channels_are_denoised_as_grey(
    name: str, engine: str, photograph: NDArray[np.float64]
) -> None:
    grey = run(MODELS[name], engine, photograph)
    colour = run(MODELS[name], engine, np.stack([photograph] * 3))
    for channel in colour:
        np.testing.assert_allclose(channel, grey, atol=1e-9)


@pytest.mark.slow
@every_engine
@every_model
def test_batches_are_independent(name: str, engine: str, photograph: NDArray[np.float64]) -> None:
    first, second = photograph[:40, :50], photograph[20:60, 30:80]
    model = MODELS[name]
    together = run(model, engine, np.stack([first, second])[:, None])
    for alone, batched in zip((first, second), together, strict=True):
        np.testing.assert_allclose(batched[0], run(model, engine, alone), atol=1e-10)


@every_model
def test_model_call_takes_batches_and_channels(name: str, photograph: NDArray[np.float64]) -> None:
    model = MODELS[name]
    stack = np.stack([photograph[:30, :31], photograph[5:35, :31]])
    np.testing.assert_allclose(model(stack, SIGMA)[1], model(stack[1], SIGMA), atol=1e-12)
    colour = np.stack([stack[0], stack[1], stack[0] / 2], axis=-1)
    first = model(np.moveaxis(colour, -1, 0), SIGMA, channel_axis=0)
    last = model(colour, SIGMA, channel_axis=-1)
    np.testing.assert_allclose(np.moveaxis(first, 0, -1), last, atol=1e-12)
    assert not np.allclose(last[..., 0], model(stack[0], SIGMA))
