"""The anisotropic second order: A H A with A = exp(-J / (4 lambda^2)), J = sum_i c_i H_i^2."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from cases import RUNNABLE_ENGINES, TURNS, dense_matrix, images, noise_map, semidefinite_tensors
from hypothesis import given
from hypothesis import strategies as st
from naive_orders import hessian_velocity
from numpy.typing import NDArray
from selection import some

from integrodiff.engines import ENGINES
from integrodiff.stages import (
    Coupling,
    Evolution,
    Exponential,
    HigherDerivatives,
    SymmetricTensor,
    Term,
    cascade,
    coupling_field,
    derivative_operator,
    explicit_step,
    stable_step,
)
from integrodiff.stages.derivatives import symbol

HESSIAN = HigherDerivatives(2)
SCALES, WEIGHTS, CONTRASTS = (0.3, 1.2), (0.7, 0.4), (40.0, 15.0)
SHAPES = [(4, 5), (1, 6), (5, 1), (1, 1), (2, 2), (3, 3)]

every_engine = pytest.mark.parametrize("engine", RUNNABLE_ENGINES)


def second_order(integration_scale: Any = 0.8, contrasts: Any = CONTRASTS) -> Term:
    return Term(
        derivatives=HESSIAN,
        coupling=Coupling(kind="tensor", weights=WEIGHTS, integration_scale=integration_scale),
        diffusivity=Exponential(contrasts=contrasts),
        flux_weights=WEIGHTS,
    )


def process(*terms: Term, tau: float = 0.01, steps: int = 1) -> Evolution:
    return Evolution(scales=SCALES, schedule=(terms or (second_order(),),), tau=tau, steps=steps)


def both_orders(first: float = 0.8, second: float = 4.0, steps: int = 3) -> Evolution:
    """Return a process of orders one and two with other integration scales at every step."""
    gradient = Term(
        derivatives=derivative_operator(theta=0.15),
        coupling=Coupling(weights=WEIGHTS, integration_scale=first),
        diffusivity=Exponential(contrasts=CONTRASTS),
        flux_weights=(0.3, 0.9),
    )
    schedule = tuple(
        tuple(
            replace(
                term,
                coupling=replace(
                    term.coupling, integration_scale=(1 + k) * term.coupling.integration_scale
                ),
            )
            for term in (gradient, second_order(second))
        )
        for k in range(steps)
    )
    evolution = Evolution(scales=SCALES, schedule=schedule, tau=1.0, steps=steps)
    return replace(evolution, tau=stable_step(evolution))


def noisy(shape: tuple[int, ...], seed: int = 0) -> NDArray[np.float64]:
    image = np.random.default_rng(seed).normal(60, 25, shape)
    image[..., shape[-1] // 2 :] += 120
    return image


@pytest.mark.slow
@pytest.mark.parametrize("scale", some([0.0, 0.4, 1.5], 1.5))
@pytest.mark.parametrize("shape", SHAPES)
def test_equals_the_loops(scale: float, shape: tuple[int, int]) -> None:
    evolution = process(second_order(scale))
    for channels, levels in ((1, None), (2, noise_map(shape))):
        image = noisy((channels, *shape))
        expected = image + 0.01 * hessian_velocity(image, SCALES, WEIGHTS, CONTRASTS, scale, levels)
        for engine in RUNNABLE_ENGINES:
            for dtype, tolerance in ((np.float64, 1e-10), (np.float32, 1e-4)):
                found = ENGINES[engine].evolve(
                    image.astype(dtype),
                    evolution,
                    exact=True,
                    relative_noise=None if levels is None else levels.astype(dtype),
                )
                np.testing.assert_allclose(found, expected, rtol=0, atol=tolerance)


@given(seed=st.integers(0, 2**32 - 1), shape=st.sampled_from(SHAPES))
def test_gates_are_symmetric_semidefinite_and_bounded(seed: int, shape: tuple[int, int]) -> None:
    """For any field of tensors with eigenvalues in [0, 1] that continues as J does."""
    tensor = SymmetricTensor(*semidefinite_tensors(np.random.default_rng(seed), shape))

    def operator(u: Any) -> Any:
        return HESSIAN.adjoint(HESSIAN.tensor_gate(HESSIAN.forward(u), tensor))

    matrix = dense_matrix(operator, shape)
    np.testing.assert_allclose(matrix, matrix.T, atol=1e-12)
    eigenvalues = np.linalg.eigvalsh(matrix)
    p, q = (1 - np.cos(np.pi * np.arange(size) / size) for size in shape)
    assert eigenvalues[0] >= -1e-10
    assert eigenvalues[-1] <= symbol(2, q, p[:, None]).max() + 1e-10


@given(image=images(), scale=st.floats(0.05, 8))
def test_the_tensor_is_semidefinite(image: NDArray[np.float64], scale: float) -> None:
    tensor = coupling_field(cascade(image[None], SCALES), second_order(scale))
    mean, distance = (
        (tensor.xx + tensor.yy) / 2,
        np.hypot((tensor.xx - tensor.yy) / 2, tensor.xy),
    )
    assert (mean - distance >= -1e-12 * (1 + mean.max())).all()


def test_the_trace_is_the_energy_of_the_isotropic_term() -> None:
    smoothed = cascade(noisy((2, 6, 7)), SCALES)
    term = second_order(1.1)
    tensor = coupling_field(smoothed, term)
    energy = coupling_field(smoothed, replace(term, coupling=replace(term.coupling, kind="trace")))
    np.testing.assert_allclose(tensor.xx + tensor.yy, energy, rtol=1e-12, atol=1e-9)


def test_gates_in_the_eigenframe() -> None:
    """Component j of the Hessian has the gate exp(-((2-j) mu_1 + j mu_2) / (4 lambda^2))."""
    tensor = SymmetricTensor(*(np.full((1, 1), value) for value in (300.0, 0.0, 50.0)))
    gate = Exponential(contrasts=(9.0,)).of(tensor, 0, order=2)
    found = HESSIAN.tensor_gate([np.ones((1, 1))] * 3, gate)
    for j in range(3):
        expected = np.exp(-((2 - j) * 300.0 + j * 50.0) / (4 * 9.0**2))
        assert found[j].item() == pytest.approx(expected, rel=1e-12)


@pytest.mark.slow
@every_engine
@given(image=images(), first=st.floats(0, 3), second=st.floats(0, 8), data=st.data())
def test_norm_mean_and_constants(
    engine: str, image: NDArray[np.float64], first: float, second: float, data: st.DataObject
) -> None:
    levels = noise_map(image.shape) if data.draw(st.booleans()) else None
    evolution = both_orders(first, second)

    def run(u: Any) -> Any:
        return ENGINES[engine].evolve(u[None], evolution, exact=True, relative_noise=levels)[0]

    result = run(image)
    assert np.linalg.norm(result) <= np.linalg.norm(image) * (1 + 1e-9) + 1e-9
    assert result.mean() == pytest.approx(image.mean(), abs=1e-9)
    constant = np.full(image.shape, image.flat[0])
    np.testing.assert_allclose(run(constant), constant, atol=1e-9)


@pytest.mark.parametrize("shape", [(5, 4), (1, 6)])
def test_no_eigenvalue_of_a_frozen_step_exceeds_the_bound(shape: tuple[int, int]) -> None:
    """The gates come from an image, the operator acts on others."""
    evolution = both_orders(steps=1)
    smoothed = cascade(noisy((1, *shape)), SCALES)
    fields = [coupling_field(smoothed, term) for term in evolution.terms(0)]

    def operator(u: Any) -> Any:
        parts = cascade(u, SCALES)
        total: Any = 0
        for term, field in zip(evolution.terms(0), fields, strict=True):
            for i, scale in enumerate(SCALES):
                gate = term.diffusivity.of(field, i, term.derivatives.order)
                flux = term.derivatives.tensor_gate(term.derivatives.forward(parts[i]), gate)
                flow = cascade([term.derivatives.adjoint(flux)][0], (scale,))[0]
                total = total + term.flux_weights[i] * flow
        return total

    matrix = dense_matrix(operator, shape)
    np.testing.assert_allclose(matrix, matrix.T, atol=1e-11)
    eigenvalues = np.linalg.eigvalsh(matrix)
    assert eigenvalues[0] >= -1e-10
    assert evolution.tau * eigenvalues[-1] <= 2 + 1e-10


def test_the_bound_is_sharp_and_does_not_depend_on_the_gate() -> None:
    tensor = process(second_order(contrasts=(1e9, 1e9)))
    trace = process(
        replace(second_order(), coupling=Coupling(kind="trace", weights=WEIGHTS)),
    )
    assert stable_step(tensor) == stable_step(trace) == stable_step(process(second_order(7.0)))
    shape = (12, 9)
    tau = stable_step(tensor, shape)
    matrix = dense_matrix(lambda u: explicit_step(u, replace(tensor, tau=tau)), shape)
    assert np.linalg.eigvalsh((matrix + matrix.T) / 2)[0] == pytest.approx(-1, abs=1e-6)


@every_engine
@pytest.mark.parametrize("turn", TURNS.values(), ids=TURNS)
@pytest.mark.parametrize("shape", [(7, 6), (1, 5)])
def test_turned_images_give_turned_results(
    engine: str, turn: Callable[[Any], Any], shape: tuple[int, int]
) -> None:
    image = noisy(shape)
    image[: shape[0] // 2] -= np.arange(shape[1]) * 9

    def run(u: Any) -> Any:
        return ENGINES[engine].evolve(np.ascontiguousarray(u)[None], both_orders(), exact=True)[0]

    np.testing.assert_allclose(run(turn(image)), turn(run(image)), atol=1e-10)


@pytest.mark.slow
@every_engine
@given(image=images(smallest=2), seed=st.integers(0, 2**32 - 1))
def test_output_depends_continuously_on_the_input(
    engine: str, image: NDArray[np.float64], seed: int
) -> None:
    perturbation = np.random.default_rng(seed).normal(size=image.shape)
    perturbation *= 1e-4 / np.linalg.norm(perturbation)
    evolution = both_orders()
    moved, unmoved = (
        ENGINES[engine].evolve(u[None], evolution, exact=True)
        for u in (image + perturbation, image)
    )
    assert np.linalg.norm(moved - unmoved) <= 60 * 1e-4


@pytest.mark.slow
@pytest.mark.skipif("native" not in RUNNABLE_ENGINES, reason="not built")
@pytest.mark.parametrize("shape", [(1, 1, 1), (1, 1, 9), (2, 9, 1), (3, 17, 70), (1, 70, 5)])
def test_the_compiled_engine_on_all_its_instruction_sets(shape: tuple[int, ...]) -> None:
    from integrodiff.engines.native import NativeEngine, NativeProcess

    image = np.random.default_rng(0).uniform(0, 255, shape)
    evolution = both_orders()
    for levels in (None, noise_map(shape)):
        expected = ENGINES["numpy"].evolve(image, evolution, relative_noise=levels)
        for name in NativeEngine().instruction_sets():
            for threads in (1, 3):
                exact, default = (
                    NativeProcess(
                        evolution,
                        exact=exact,
                        threads=threads,
                        relative_noise=levels,
                        instruction_set=name,
                    )
                    for exact in (True, False)
                )
                np.testing.assert_allclose(exact(image), expected, atol=1e-9, rtol=0)
                single = exact(image.astype(np.float32))
                np.testing.assert_allclose(single, expected, atol=2e-3, rtol=0)
                # Kernels cut off, also those of the integration scales, and nothing else.
                np.testing.assert_allclose(default(image), expected, atol=0.2, rtol=0)


def test_tensors_are_for_orders_one_and_two() -> None:
    for order in (3, 4):
        with pytest.raises(ValueError, match="have no structure tensor"):
            replace(second_order(), derivatives=HigherDerivatives(order))
        with pytest.raises(TypeError, match="no structure tensor"):
            HigherDerivatives(order).outer_product([np.zeros((1, 1))] * (order + 1))


@pytest.mark.slow
def test_derivatives_in_torch() -> None:
    torch = pytest.importorskip("torch")
    image = torch.tensor(noisy((1, 6, 7)))

    def result(scale: Any, contrast: Any) -> Any:
        return explicit_step(image, process(second_order(scale, (contrast, 15.0))))

    for i in range(2):
        point = [torch.tensor(value, dtype=torch.float64) for value in (0.9, 40.0)]
        direction = [torch.tensor(float(i == k), dtype=torch.float64) for k in range(2)]
        _, slope = torch.func.jvp(result, tuple(point), tuple(direction))
        ahead, behind = (
            result(*(p + step * d for p, d in zip(point, direction, strict=True)))
            for step in (1e-5, -1e-5)
        )
        difference = (ahead - behind) / 2e-5
        np.testing.assert_allclose(
            slope, difference, rtol=0, atol=1e-6 * float(difference.abs().max())
        )
