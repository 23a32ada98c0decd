"""The compact model with anisotropic orders, integration scales and shared laws."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from cases import FEW_SCALES, RUNNABLE_ENGINES, SIGMA, at_bound, images, run
from hypothesis import given
from hypothesis import strategies as st
from naive import blur as naive_blur
from naive import haar_divergence as naive_divergence
from naive import integrated_structure_tensor, tensor_field
from naive_orders import hessian_velocity
from numpy.typing import NDArray
from selection import some

from integrodiff.errors import ModelFileError
from integrodiff.models import (
    CompactTensorDiffusion,
    SharedLaws,
    model_from_json,
    model_to_json,
)

LAWS = SharedLaws(
    strengths=(1.0, 0.3),
    exponent=0.5,
    decay=0.4,
    contrasts=(0.4, 0.2),
    contrast_exponent=0.4,
    integration_scales=(0.4, 0.7),
    integration_exponent=0.2,
)
MODEL = CompactTensorDiffusion(
    law=LAWS,
    tau=0.5,
    steps=2,
    scales=FEW_SCALES,
    contrast_growth=0.8,
    exponent_drift=1.5,
    theta=0.15,
)
FIRST = replace(
    MODEL,
    law=replace(LAWS, strengths=(1.0,), contrasts=(0.4,), integration_scales=(0.4,)),
    tau_exponent=0.1,
)
SHAPES = [(4, 5), (1, 7), (5, 1), (1, 1)]

every_engine = pytest.mark.parametrize("engine", RUNNABLE_ENGINES)


def noisy(shape: tuple[int, ...], sigma: float = SIGMA) -> NDArray[np.float64]:
    image = np.random.default_rng(0).normal(60, sigma, shape)
    image[..., shape[-1] // 2 :] += 120
    return image


def by_the_formulas(model: CompactTensorDiffusion, image: Any, sigma: float) -> Any:
    """Evolve (1, row, column) by the loops, with the laws written out once more."""
    law, tau = model.law, model.evolution(sigma).tau
    scales = model.scales.scales
    quadratures = np.gradient(np.array(scales))
    for k in range(model.steps):
        t = k / (model.steps - 1) - 0.5
        change = np.zeros_like(image)
        for n in range(1, len(law.strengths) + 1):
            weights = [
                float(w)
                * law.strengths[n - 1]
                * s ** (law.exponent + n - 1 + model.exponent_drift * t)
                * np.exp(-2 * law.decay * s**2 / sigma**0.5)
                for w, s in zip(quadratures, scales, strict=True)
            ]
            contrasts = [
                law.contrasts[n - 1]
                * sigma
                * s ** -(law.contrast_exponent + n - 1)
                * model.contrast_growth**k
                for s in scales
            ]
            rho = law.integration_scales[n - 1] * (sigma / 30) ** law.integration_exponent
            if n == 2:
                change += hessian_velocity(image, scales, weights, contrasts, rho)
                continue
            blurred = [[naive_blur(image[0], s)] for s in scales]
            levels = np.ones(image.shape[1:])
            tensor = integrated_structure_tensor(blurred, weights, "haar", rho, levels)
            for s, w, c, (plane,) in zip(scales, weights, contrasts, blurred, strict=True):
                gate = tensor_field(*tensor, np.full(tensor[0].shape, c), "tensor")
                change[0] += w * naive_blur(naive_divergence(plane, *gate, model.theta), s)
        image = image + tau * change
    return image


@pytest.mark.slow
@pytest.mark.parametrize("sigma", some([2.0, 25.0, 100.0], 25.0))
@pytest.mark.parametrize("shape", SHAPES)
def test_equals_the_loops(shape: tuple[int, int], sigma: float) -> None:
    image = noisy((1, *shape), sigma)
    expected = by_the_formulas(MODEL, image, sigma)
    for engine in RUNNABLE_ENGINES:
        np.testing.assert_allclose(run(MODEL, engine, image, sigma), expected, atol=1e-10)
        single = run(MODEL, engine, image.astype(np.float32), sigma)
        np.testing.assert_allclose(single, expected, rtol=0, atol=1e-3)


def test_integration_scales_have_limits() -> None:
    model = replace(MODEL, integration_limits=((0.3, 0.5), (0.6, 0.9)))
    assert model_from_json(model_to_json(model)) == model
    assert "integration_limits" not in model_to_json(MODEL)
    for sigma, expected in ((1e-3, (0.3, 0.6)), (30.0, (0.4, 0.7)), (1e4, (0.5, 0.9))):
        terms = model.evolution(sigma).terms(0)
        found = [term.coupling.integration_scale for term in terms]
        assert found == pytest.approx(expected)
    with pytest.raises(ValueError, match="integration_limits must have 2 values, got 1"):
        replace(MODEL, integration_limits=((0.0, 1.0),))
    with pytest.raises(ValueError, match="pairs that do not decrease"):
        replace(MODEL, integration_limits=((0.0, 1.0), (2.0, 1.0)))


@pytest.mark.slow
@every_engine
@given(
    image=images(),
    sigma=st.floats(2, 100),
    rho=st.tuples(st.floats(0, 5), st.floats(0, 5)),
)
def test_norm_and_mean(
    engine: str, image: NDArray[np.float64], sigma: float, rho: tuple[float, float]
) -> None:
    model = at_bound(replace(MODEL, law=replace(LAWS, integration_scales=rho)))
    result = run(model, engine, image, sigma)
    assert np.linalg.norm(result) <= np.linalg.norm(image) * (1 + 1e-9) + 1e-9
    assert result.mean() == pytest.approx(image.mean(), abs=1e-9)


def test_the_laws_of_the_noise_level() -> None:
    for sigma in (2.0, 30.0, 100.0):
        first, second = MODEL.evolution(sigma).terms(0)
        ratio = (sigma / 30) ** 0.2
        assert first.coupling.integration_scale == pytest.approx(0.4 * ratio)
        assert second.coupling.integration_scale == pytest.approx(0.7 * ratio)
        assert {first.coupling.kind, second.coupling.kind} == {"tensor"}
        scales = np.array(FEW_SCALES.scales)
        ratios = np.array(second.flux_weights) / np.array(first.flux_weights)
        np.testing.assert_allclose(ratios, 0.3 * scales)
        ratios = np.array(second.diffusivity.contrasts) / np.array(first.diffusivity.contrasts)
        np.testing.assert_allclose(ratios, 0.5 / scales)


def test_twelve_numbers_or_ten() -> None:
    assert MODEL.number_count() == 12
    assert FIRST.number_count() == 10


def test_model_files_keep_everything() -> None:
    for model in (MODEL, FIRST):
        assert model_from_json(model_to_json(model)) == model
    text = model_to_json(MODEL)
    with pytest.raises(ModelFileError, match="one or two orders"):
        model_from_json(text.replace('"strengths": [\n', '"strengths": [\n1, '))
    with pytest.raises(ModelFileError, match="contrasts must have 2 values"):
        model_from_json(text.replace('"contrasts": [\n', '"contrasts": [\n1, '))
    with pytest.raises(ModelFileError, match="must be at most 1000"):
        model_from_json(text.replace('_scales": [\n', '_scales": [\n1001, '))


def test_scales_that_nobody_can_compute() -> None:
    wild = replace(MODEL, law=replace(LAWS, integration_exponent=5.0))
    with pytest.raises(ValueError, match="an integration scale of this model is"):
        wild.evolution(200.0)
    wide = replace(MODEL, law=replace(LAWS, integration_scales=(900.0, 900.0)), steps=100)
    with pytest.raises(ValueError, match="units of work"):
        wide.evolution(30.0)


def test_continuous_in_the_integration_scale() -> None:
    image = noisy((9, 8))
    found = [
        run(replace(MODEL, law=replace(LAWS, integration_scales=(rho, rho))), "numpy", image)
        for rho in (0.0, 1e-7, 1e-3, 0.7, 0.7 + 1e-6)
    ]
    np.testing.assert_allclose(found[1], found[0], atol=1e-9)
    np.testing.assert_allclose(found[2], found[0], atol=1e-2)
    np.testing.assert_allclose(found[4], found[3], atol=1e-3)


@pytest.mark.long
def test_training_with_integration_scales_that_depend_on_the_noise() -> None:
    pytest.importorskip("torch")
    from integrodiff.learning import CleanImages, Parameterisation, TorchLineariser
    from integrodiff.learning.compiled import CompiledLineariser
    from integrodiff.learning.native import DifferenceLineariser, has_tangents
    from integrodiff.learning.tangents import LevelByLevel

    walks = np.cumsum(np.random.default_rng(1).normal(0, 9, (2, 12, 14)), axis=2) + 128
    clean = CleanImages(walks.astype(np.float32), ("a", "b"), "random walks")
    model = replace(MODEL, steps=2, tau=0.2)
    parameterisation = Parameterisation(model, (20.0, 50.0), ("strengths[0]",))
    assert {"integration_scales[1]", "integration_exponent"} <= set(parameterisation.names)
    items, point = [(0, 50.0), (1, 20.0), (1, 50.0)], parameterisation.vector(model)
    options: dict[str, Any] = {"device": "cpu", "double": True, "batch": 2}
    inner = TorchLineariser(parameterisation, clean, **options)
    with pytest.raises(ValueError, match="one noise level at a time"):
        inner.linearise(point, items)
    found = LevelByLevel(inner).linearise(point, items)
    step = 1e-5 * np.random.default_rng(0).normal(size=len(point))
    ahead = LevelByLevel(inner).linearise(point + step, items).error
    behind = LevelByLevel(inner).linearise(point - step, items).error
    np.testing.assert_allclose(2 * found.gradient @ step, (ahead - behind) / 2, rtol=1e-4)
    compiled = CompiledLineariser(parameterisation, clean, **options, backend="eager")
    again = LevelByLevel(compiled).linearise(point, items)
    np.testing.assert_allclose(again.gradient, found.gradient, rtol=1e-9, atol=1e-9)
    assert not has_tangents(parameterisation)
    if "native" in RUNNABLE_ENGINES:
        differences = DifferenceLineariser(parameterisation, clean).linearise(point, items)
        np.testing.assert_allclose(differences.error, found.error, rtol=1e-4)
        size = np.abs(found.gradient).max()
        np.testing.assert_allclose(differences.gradient, found.gradient, atol=0.03 * size)
