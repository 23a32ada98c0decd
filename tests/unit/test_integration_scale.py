"""The integration scale: the coupling smoothed as a part of the infinitely reflected plane."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import naive
import numpy as np
import pytest
from cases import COMPACT, RUNNABLE_ENGINES, SIGMA, TURNS, at_bound, images, noise_map, run
from hypothesis import given
from hypothesis import strategies as st
from naive_orders import higher_order_velocity
from numpy.typing import NDArray
from selection import some

from integrodiff.engines import ENGINES
from integrodiff.models import CompactDiffusion, ExplicitModel, PowerLaws
from integrodiff.stages import (
    Coupling,
    CouplingKind,
    Discretisation,
    Evolution,
    Exponential,
    HigherDerivatives,
    Term,
    cascade,
    coupling_field,
    derivative_operator,
    evolve,
    explicit_step,
    stable_step,
)

pytestmark = pytest.mark.slow

SHAPES = [(5, 6), (1, 7), (6, 1), (1, 1), (2, 2)]
SCALES, WEIGHTS, CONTRASTS = (0.3, 1.2), (0.7, 0.4), (40.0, 15.0)
SMOOTHED = replace(COMPACT, integration_scale=0.9)
FIRST_ORDER = replace(
    SMOOTHED,
    law=PowerLaws(
        strengths=(1.0,),
        exponents=(0.3,),
        decays=(0.2,),
        contrasts=(0.5,),
        contrast_exponents=(1.1,),
    ),
    tau=0.1,
)

every_engine = pytest.mark.parametrize("engine", RUNNABLE_ENGINES)
every_discretisation = pytest.mark.parametrize("discretisation", ["haar", "nonnegativity"])


def first_order(
    discretisation: Discretisation = "haar",
    kind: CouplingKind = "tensor",
    integration_scale: Any = 0.8,
) -> Evolution:
    term = Term(
        derivatives=derivative_operator(discretisation=discretisation),
        coupling=Coupling(kind=kind, weights=WEIGHTS, integration_scale=integration_scale),
        diffusivity=Exponential(contrasts=CONTRASTS),
        flux_weights=WEIGHTS,
    )
    return Evolution(scales=SCALES, schedule=((term,),), tau=0.2, steps=2)


def higher_order(order: int, integration_scale: float = 0.8) -> Evolution:
    term = Term(
        derivatives=HigherDerivatives(order),
        coupling=Coupling(kind="trace", weights=WEIGHTS, integration_scale=integration_scale),
        diffusivity=Exponential(contrasts=CONTRASTS),
        flux_weights=WEIGHTS,
    )
    return Evolution(scales=SCALES, schedule=((term,),), tau=0.01, steps=1)


def noisy(shape: tuple[int, ...], seed: int = 0) -> NDArray[np.float64]:
    image = np.random.default_rng(seed).normal(60, SIGMA, shape)
    image[..., shape[-1] // 2 :] += 120
    return image


@every_engine
@every_discretisation
@pytest.mark.parametrize("kind", ["tensor", "trace"])
@pytest.mark.parametrize("scale", some([0.4, 1.5], 1.5))
def test_equals_the_loops_on_the_reflected_plane(
    engine: str, discretisation: Discretisation, kind: CouplingKind, scale: float
) -> None:
    evolution = first_order(discretisation, kind, scale)
    for seed, shape in enumerate(SHAPES):
        image = noisy((2, *shape), seed)
        expected = naive.evolve(
            image,
            scales=SCALES,
            tensor_weights=WEIGHTS,
            flux_weights=WEIGHTS,
            contrasts=CONTRASTS,
            tau=0.2,
            steps=2,
            coupling=kind,
            discretisation=discretisation,
            theta=0.25,
            integration_scale=scale,
        )
        found = ENGINES[engine].evolve(image, evolution, exact=True)
        np.testing.assert_allclose(found, expected, rtol=0, atol=1e-10)


@every_engine
@every_discretisation
def test_a_map_of_noise_levels_divides_the_tensor_before_it_is_smoothed(
    engine: str, discretisation: Discretisation
) -> None:
    image = noisy((1, 5, 6))
    levels = noise_map(image.shape)
    expected = naive.evolve(
        image,
        scales=SCALES,
        tensor_weights=WEIGHTS,
        flux_weights=WEIGHTS,
        contrasts=CONTRASTS,
        tau=0.2,
        steps=2,
        coupling="tensor",
        discretisation=discretisation,
        theta=0.25,
        relative_noise=levels,
        integration_scale=0.8,
    )
    evolution = first_order(discretisation)
    found = ENGINES[engine].evolve(image, evolution, exact=True, relative_noise=levels)
    np.testing.assert_allclose(found, expected, rtol=0, atol=1e-10)


@every_engine
@pytest.mark.parametrize("order", [2, 3, 4])
@pytest.mark.parametrize("shape", [(4, 5), (1, 4), (1, 1)])
def test_higher_orders_equal_the_loops(engine: str, order: int, shape: tuple[int, int]) -> None:
    image = noisy((1, *shape), order)
    velocity = higher_order_velocity(image, order, SCALES, WEIGHTS, CONTRASTS, 0.8)
    found = ENGINES[engine].evolve(image, higher_order(order), exact=True)
    np.testing.assert_allclose(found, image + 0.01 * velocity, rtol=0, atol=1e-10)


@every_discretisation
@given(image=images(), scale=st.floats(0.05, 6))
def test_tensors_stay_semidefinite(
    discretisation: Discretisation, image: NDArray[np.float64], scale: float
) -> None:
    evolution = first_order(discretisation, integration_scale=scale)
    smoothed = cascade(image[None], evolution.scales)
    tensor = coupling_field(smoothed, evolution.terms(0)[0])
    mean, distance = (
        (tensor.xx + tensor.yy) / 2,
        np.hypot((tensor.xx - tensor.yy) / 2, tensor.xy),
    )
    assert (mean - distance >= -1e-12 * (1 + mean.max())).all()


@every_engine
@given(image=images(), scale=st.floats(0.05, 6), data=st.data())
def test_norm_mean_and_constants(
    engine: str, image: NDArray[np.float64], scale: float, data: st.DataObject
) -> None:
    several = data.draw(st.booleans())
    model = at_bound(replace(COMPACT if several else FIRST_ORDER, integration_scale=scale))
    result = run(model, engine, image)
    assert np.linalg.norm(result) <= np.linalg.norm(image) * (1 + 1e-9) + 1e-9
    assert result.mean() == pytest.approx(image.mean(), abs=1e-9)
    constant = np.full(image.shape, image.flat[0])
    np.testing.assert_allclose(run(model, engine, constant), constant, atol=1e-9)


def test_the_bound_does_not_depend_on_it() -> None:
    assert stable_step(first_order()) == stable_step(first_order(integration_scale=0.0))


@every_engine
@pytest.mark.parametrize("turn", TURNS.values(), ids=TURNS)
@pytest.mark.parametrize("shape", [(7, 6), (1, 5)])
def test_turned_images_give_turned_results(
    engine: str, turn: Callable[[Any], Any], shape: tuple[int, int]
) -> None:
    """J_xy changes its sign under reflections; with the wrong one these fail."""
    image = noisy(shape)
    image[: shape[0] // 2] -= np.arange(shape[1]) * 9
    for model in (SMOOTHED, FIRST_ORDER):
        found = run(model, engine, np.ascontiguousarray(turn(image)))
        np.testing.assert_allclose(found, turn(run(model, engine, image)), atol=1e-10)


@every_discretisation
def test_a_large_scale_forgets_directions(discretisation: Discretisation) -> None:
    """On the reflected plane J_xy averages to zero, J_xx and J_yy to the mean over the image."""
    evolution = first_order(discretisation, integration_scale=60.0)
    tensor = coupling_field(cascade(noisy((1, 6, 7)), evolution.scales), evolution.terms(0)[0])
    np.testing.assert_allclose(tensor.xy, 0, atol=1e-9 * tensor.xx.max())
    np.testing.assert_allclose(tensor.xx, tensor.xx.mean(), rtol=1e-9)
    np.testing.assert_allclose(tensor.yy, tensor.yy.mean(), rtol=1e-9)


def test_zero_is_the_process_without() -> None:
    image = noisy((9, 8))
    plain = replace(FIRST_ORDER, integration_scale=0.0)
    np.testing.assert_array_equal(
        run(plain, "numpy", image), evolve(image[None], plain.evolution(SIGMA))[0]
    )
    nearly = run(replace(plain, integration_scale=1e-6), "numpy", image)
    np.testing.assert_allclose(nearly, run(plain, "numpy", image), atol=1e-9)
    assert not np.allclose(run(FIRST_ORDER, "numpy", image), nearly, atol=0.1)


@every_discretisation
def test_derivative_with_respect_to_the_scale(discretisation: Discretisation) -> None:
    torch = pytest.importorskip("torch")
    image = torch.tensor(noisy((1, 6, 7)))

    def result(scale: Any) -> Any:
        return explicit_step(image, first_order(discretisation, integration_scale=scale))

    scale = torch.tensor(0.9, dtype=torch.float64)
    _, slope = torch.func.jvp(result, (scale,), (torch.ones_like(scale),))
    difference = (result(0.9 + 1e-5) - result(0.9 - 1e-5)) / 2e-5
    np.testing.assert_allclose(slope, difference, rtol=0, atol=1e-6 * float(difference.abs().max()))


@pytest.mark.long
def test_training_of_the_scale() -> None:
    pytest.importorskip("torch")
    from integrodiff.learning import CleanImages, Parameterisation, TorchLineariser
    from integrodiff.learning.compiled import CompiledLineariser
    from integrodiff.learning.native import DifferenceLineariser, NativeLineariser, has_tangents

    walks = np.cumsum(np.random.default_rng(1).normal(0, 9, (2, 12, 14)), axis=2) + 128
    clean = CleanImages(walks.astype(np.float32), ("a", "b"), "random walks")
    model: ExplicitModel = replace(SMOOTHED, steps=2, contrast_growth=1.1)
    fixed = ("strengths", "exponents", "decays", "contrast_exponents", "exponent_drift", "pull")
    parameterisation = Parameterisation(model, (20.0, 50.0), fixed)
    assert "integration_scale" in parameterisation.names
    items, point = [(0, 20.0), (1, 50.0)], parameterisation.vector(model)
    options: dict[str, Any] = {"device": "cpu", "double": True, "batch": 2}
    found = TorchLineariser(parameterisation, clean, **options).linearise(point, items)
    compiled = CompiledLineariser(parameterisation, clean, **options, backend="eager")
    again = compiled.linearise(point, items)
    np.testing.assert_allclose(again.gradient, found.gradient, rtol=1e-9, atol=1e-9)
    np.testing.assert_allclose(again.curvature, found.curvature, rtol=1e-9, atol=1e-9)
    if "native" not in RUNNABLE_ENGINES:
        return
    differences = DifferenceLineariser(parameterisation, clean).linearise(point, items)
    np.testing.assert_allclose(differences.error, found.error, rtol=1e-4)
    size = np.abs(found.gradient).max()
    np.testing.assert_allclose(differences.gradient, found.gradient, atol=0.03 * size)
    assert not has_tangents(parameterisation)
    with pytest.raises(ValueError, match="a fixed integration scale"):
        NativeLineariser(parameterisation, clean)
    held = Parameterisation(model, (20.0, 50.0), (*fixed, "integration_scale"))
    exact = TorchLineariser(held, clean, **options).linearise(held.vector(model), items)
    native = NativeLineariser(held, clean, double=True).linearise(held.vector(model), items)
    np.testing.assert_allclose(native.gradient, exact.gradient, rtol=1e-6, atol=1e-6)


def test_a_scale_at_zero_is_not_trained_unless_it_starts_above() -> None:
    from integrodiff.learning import Parameterisation

    assert "integration_scale" not in Parameterisation(COMPACT, (20.0,)).names
    Parameterisation(COMPACT, (20.0,), ("integration_scale",))  # may be fixed all the same


def test_negative_scales_are_refused() -> None:
    with pytest.raises(ValueError, match="integration_scale must not be negative"):
        replace(COMPACT, integration_scale=-0.1)
    assert CompactDiffusion.neutral("integration_scale") == 0
