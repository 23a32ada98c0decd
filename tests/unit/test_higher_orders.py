"""Derivatives above the first order: stencils, adjoints, eigenvalues, and the step bound."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from cases import (
    COMPACT,
    FEW_SCALES,
    LAWS,
    RUNNABLE_ENGINES,
    SIGMA,
    at_bound,
    dense_matrix,
    images,
    run,
)
from hypothesis import given
from hypothesis import strategies as st
from naive_orders import higher_order_velocity
from scipy.fft import dctn

from integrodiff.models import CompactDiffusion, PowerLaws, model_from_json, model_to_json
from integrodiff.stages import (
    Coupling,
    Evolution,
    Exponential,
    HigherDerivatives,
    Term,
    derivative_operator,
    derivatives,
    derivatives_adjoint,
    evolve,
    explicit_step,
    haar_gradient,
    stable_step,
    velocity,
)
from integrodiff.stages.derivatives import symbol

ORDERS = (1, 2, 3, 4)
SHAPES = [(1, 1), (1, 6), (2, 3), (4, 1), (5, 7), (8, 8)]


def frequencies(size: int) -> Any:
    return 1 - np.cos(np.pi * np.arange(size) / size)


def cosines(shape: tuple[int, int]) -> Any:
    """Return the matrix of the two-dimensional DCT-II."""
    units = np.eye(shape[0] * shape[1]).reshape(-1, *shape)
    return dctn(units, axes=(1, 2), norm="ortho").reshape(len(units), -1).T


def test_the_first_order_is_the_haar_gradient() -> None:
    image = np.random.default_rng(0).normal(size=(1, 6, 7))
    np.testing.assert_allclose(derivatives(image, 1), haar_gradient(image), atol=1e-14)


@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("shape", SHAPES)
def test_diagonal_under_the_cosine_transform(order: int, shape: tuple[int, int]) -> None:
    matrix = dense_matrix(lambda u: derivatives_adjoint(derivatives(u, order), order), shape)
    expected = symbol(order, frequencies(shape[1]), frequencies(shape[0])[:, None]).ravel()
    found = cosines(shape) @ matrix @ cosines(shape).T
    np.testing.assert_allclose(found, np.diag(expected), atol=1e-11)


@pytest.mark.parametrize("order", ORDERS)
@given(seed=st.integers(0, 2**32 - 1), shape=st.sampled_from(SHAPES))
def test_operators_are_symmetric_semidefinite_and_bounded(
    order: int, seed: int, shape: tuple[int, int]
) -> None:
    cells = order % 2
    rng = np.random.default_rng(seed)
    factor = rng.choice([0.0, 1.0, rng.random()], (shape[0] + cells, shape[1] + cells))
    matrix = dense_matrix(
        lambda u: derivatives_adjoint([factor * d for d in derivatives(u, order)], order), shape
    )
    np.testing.assert_allclose(matrix, matrix.T, atol=1e-12)
    eigenvalues = np.linalg.eigvalsh(matrix)
    largest = symbol(order, frequencies(shape[1]), frequencies(shape[0])[:, None]).max()
    assert eigenvalues[0] >= -1e-10
    assert eigenvalues[-1] <= largest + 1e-10


@pytest.mark.parametrize("order", [2, 3, 4])
@pytest.mark.parametrize("shape", [(1, 1), (1, 3), (2, 5), (6, 5)])
@pytest.mark.parametrize("channels", [1, 3])
def test_equals_the_loops(order: int, shape: tuple[int, int], channels: int) -> None:
    image = np.random.default_rng(order).normal(128, 40, (channels, *shape))
    scales, weights, contrasts = (0.3, 1.2), (0.7, 0.4), (60.0, 25.0)
    term = Term(
        derivatives=HigherDerivatives(order),
        coupling=Coupling(kind="trace", weights=weights),
        diffusivity=Exponential(contrasts=contrasts),
        flux_weights=weights,
    )
    evolution = Evolution(scales=scales, schedule=((term,),), tau=0.01, steps=1)
    expected = higher_order_velocity(image, order, scales, weights, contrasts)
    np.testing.assert_allclose(velocity(image, evolution), expected, rtol=1e-10, atol=1e-9)


def test_a_rotated_image_gives_the_rotated_result() -> None:
    image = np.random.default_rng(3).normal(128, 40, (1, 7, 9))
    evolution = COMPACT.evolution(SIGMA)
    rotated = evolve(np.rot90(image, axes=(1, 2)), evolution)
    expected = np.rot90(evolve(image, evolution), axes=(1, 2))
    np.testing.assert_allclose(rotated, expected, atol=1e-10)


class TestBound:
    @given(
        weights=st.lists(st.just(0.0) | st.floats(1e-6, 5), min_size=8, max_size=8),
        smallest=st.floats(0.0, 1.0),
        distance=st.floats(0.01, 3.0),
        theta=st.floats(0, 0.5),
    )
    def test_no_frequency_exceeds_it_and_it_is_sharp(
        self, weights: list[float], smallest: float, distance: float, theta: float
    ) -> None:
        scales = (smallest, smallest + distance)
        evolution = Evolution(
            scales=scales,
            schedule=(
                tuple(
                    Term(
                        derivatives=derivative_operator(k + 1, theta=theta),
                        coupling=Coupling(kind="trace", weights=(1.0, 1.0)),
                        diffusivity=Exponential(contrasts=(1.0, 1.0)),
                        flux_weights=tuple(weights[2 * k : 2 * k + 2]),
                    )
                    for k in range(4)
                ),
            ),
            tau=1.0,
            steps=1,
        )
        grid = np.linspace(0, 2, 301)
        p, q = grid, grid[:, None]
        values = np.zeros((301, 301))
        for k in range(4):
            m = symbol(k + 1, p, q)
            if k == 0:
                m = 2 * (p + q) - 4 * theta * p * q
            for i, scale in enumerate(scales):
                values += weights[2 * k + i] * np.exp(-2 * scale**2 * (p + q)) * m
        largest = 2 / stable_step(evolution)
        assert values.max() <= largest * (1 + 1e-12)
        # Between the samples of the grid the maximum may be a little larger.
        assert largest <= values.max() * 1.02
        assert 2 / stable_step(evolution, (9, 7)) <= largest * (1 + 1e-12)

    def test_a_pull_needs_something_to_pull_to(self) -> None:
        evolution = replace(COMPACT.evolution(SIGMA), pull=0.1)
        with pytest.raises(ValueError, match="needs the original"):
            explicit_step(np.zeros((1, 4, 4)), evolution)

    def test_the_pull_lowers_it(self) -> None:
        evolution = COMPACT.evolution(SIGMA)
        without = stable_step(evolution)
        assert stable_step(replace(evolution, pull=0.3)) == pytest.approx(1 / (1 / without + 0.3))

    @pytest.mark.slow
    @pytest.mark.parametrize("engine", RUNNABLE_ENGINES)
    @given(image=images(), pull=st.sampled_from([0.0, 0.1, 3.0]), steps=st.integers(1, 6))
    def test_the_norm_never_exceeds_that_of_the_input(
        self, engine: str, image: Any, pull: float, steps: int
    ) -> None:
        model = at_bound(replace(COMPACT, pull=pull, steps=steps, tau_exponent=0.0))
        result = run(model, engine, image)
        largest = np.linalg.norm(image)
        assert np.linalg.norm(result) <= largest * (1 + 1e-5) + 1e-3

    def test_the_schedule_counts_the_worst_step(self) -> None:
        term = Term(
            coupling=Coupling(weights=(1.0,)),
            diffusivity=Exponential(contrasts=(1.0,)),
            flux_weights=(1.0,),
        )
        strong = replace(term, flux_weights=(4.0,))
        process = Evolution(scales=(0.0,), schedule=((term,), (strong,)), tau=0.1, steps=2)
        assert stable_step(process) == pytest.approx(0.5 / 4)


class TestCompactDiffusion:
    def test_first_order_alone_is_iad(self) -> None:
        from integrodiff import IAD, FullLaw

        law = PowerLaws(
            strengths=(1.0,),
            exponents=(0.0,),
            decays=(0.0,),
            contrasts=(0.5,),
            contrast_exponents=(1.0,),
        )
        image = np.random.default_rng(0).normal(128, 40, (9, 8))
        compact = CompactDiffusion(law=law, tau=0.3, steps=4, scales=FEW_SCALES)
        lambdas = tuple(0.5 * SIGMA / scale for scale in FEW_SCALES.scales)
        full = FullLaw(gammas=(1.0, 1.0, 1.0), lambdas=lambdas)
        iad = IAD(law=full, tau=0.3, steps=4, scales=FEW_SCALES)
        np.testing.assert_allclose(compact(image, SIGMA), iad(image, SIGMA), atol=1e-10)

    def test_step_size_follows_the_noise_and_stays_stable(self) -> None:
        model = replace(COMPACT, tau_exponent=0.5)
        assert model.evolution(30.0).tau == pytest.approx(0.01)
        assert model.evolution(120.0).tau == pytest.approx(0.02)
        huge = replace(COMPACT, tau=1e9)
        assert huge.evolution(20.0).tau == pytest.approx(huge.stable_step(20.0))

    def test_contrasts_grow_over_the_steps(self) -> None:
        evolution = replace(COMPACT, contrast_growth=1.1).evolution(SIGMA)
        first, second = (evolution.terms(step)[1].diffusivity.contrasts[0] for step in (0, 1))
        assert second == pytest.approx(1.1 * first)

    def test_weights_drift_from_fine_to_coarse_scales(self) -> None:
        drifting = replace(COMPACT, exponent_drift=0.6).evolution(SIGMA)
        plain = COMPACT.evolution(SIGMA).terms(0)
        scales = np.array(COMPACT.scales.scales)
        for step, change in ((0, -0.3), (COMPACT.steps - 1, 0.3)):
            for term, before in zip(drifting.terms(step), plain, strict=True):
                expected = np.array(before.flux_weights) * scales**change
                np.testing.assert_allclose(term.flux_weights, expected)

    @pytest.mark.parametrize(
        ("changes", "message"),
        [
            ({"discretisation": "nonnegativity"}, "discretisation 'haar'"),
            ({"pull": -1.0}, "pull must not be negative"),
            ({"contrast_growth": 0.0}, "contrast_growth must be positive"),
            ({"exponent_drift": float("inf")}, "exponent_drift must be finite"),
            ({"tau_exponent": float("nan")}, "tau_exponent must be finite"),
        ],
    )
    def test_wrong_numbers_are_refused(self, changes: dict[str, Any], message: str) -> None:
        with pytest.raises(ValueError, match=message):
            replace(COMPACT, **changes)

    def test_laws_need_equal_lengths(self) -> None:
        with pytest.raises(ValueError, match="decays must have 4 values"):
            replace(LAWS, decays=(1.0,))
        with pytest.raises(ValueError, match="at most 4 orders"):
            replace(LAWS, strengths=(1.0,) * 5)


def test_model_files_keep_everything() -> None:
    model = replace(COMPACT, contrast_growth=1.05, exponent_drift=0.4, pull=0.02)
    assert model_from_json(model_to_json(model)) == model


@pytest.mark.long
def test_tangents_equal_finite_differences_and_compiled_ones() -> None:
    pytest.importorskip("torch")
    from integrodiff.learning import CleanImages, Parameterisation, TorchLineariser
    from integrodiff.learning.compiled import CompiledLineariser

    rng = np.random.default_rng(1)
    smooth = np.cumsum(rng.normal(0, 9, (2, 10, 12)), axis=2) + 128
    clean = CleanImages(smooth.astype(np.float32), ("a", "b"), "random walks")
    model = replace(COMPACT, steps=2, contrast_growth=1.05, exponent_drift=0.4, pull=0.02)
    parameterisation = Parameterisation(model, (20.0, 50.0), fixed=["decays[3]"])
    options: dict[str, Any] = {"device": "cpu", "double": True, "batch": 2}
    lineariser = TorchLineariser(parameterisation, clean, **options)
    items = [(0, 20.0), (1, 50.0)]
    point = parameterisation.vector(model)
    found = lineariser.linearise(point, items)
    for _ in range(2):
        direction = rng.normal(size=len(point))
        ahead = lineariser.linearise(point + 1e-5 * direction, items).error
        behind = lineariser.linearise(point - 1e-5 * direction, items).error
        np.testing.assert_allclose(
            2 * found.gradient @ direction, (ahead - behind) / 2e-5, rtol=1e-5
        )
    compiled = CompiledLineariser(parameterisation, clean, **options, backend="eager")
    again = compiled.linearise(point, items)
    np.testing.assert_allclose(again.gradient, found.gradient, rtol=1e-9, atol=1e-9)
    np.testing.assert_allclose(again.curvature, found.curvature, rtol=1e-9, atol=1e-9)
