"""Fidelity weights of each step, and eigenvalues of the structure tensor that are mixed."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from cases import RUNNABLE_ENGINES, dense_matrix, images, noise_map
from hypothesis import given
from hypothesis import strategies as st
from naive import evolve as naive_evolve
from naive_orders import hessian_velocity
from selection import some

from integrodiff.engines import ENGINES
from integrodiff.engines.native import NativeEngine, NativeProcess
from integrodiff.models import DeepDiffusion, model_from_json, model_to_json
from integrodiff.models.deep import Channel
from integrodiff.stages import (
    Coupling,
    Evolution,
    Exponential,
    HigherDerivatives,
    SymmetricTensor,
    Term,
    derivative_operator,
    stable_on_masks,
    stable_step,
)
from integrodiff.stages.structure_tensor import mixed_tensor

SCALES, WEIGHTS, CONTRASTS = (0.3, 1.2), (0.7, 0.4), (40.0, 15.0)
MIXES, PULLS = (-0.4, 0.3, -1.0), (0.2, 0.0, 0.05)
needs_native = pytest.mark.skipif("native" not in RUNNABLE_ENGINES, reason="not built")


def first_order(mix: Any, integration_scale: float = 0.8, kind: Any = "tensor") -> Term:
    return Term(
        derivatives=derivative_operator(theta=0.15),
        coupling=Coupling(weights=WEIGHTS, integration_scale=integration_scale, mix=mix, kind=kind),
        diffusivity=Exponential(contrasts=CONTRASTS),
        flux_weights=(0.3, 0.9),
    )


def second_order(mix: Any, integration_scale: float = 4.0) -> Term:
    return Term(
        derivatives=HigherDerivatives(2),
        coupling=Coupling(weights=WEIGHTS, integration_scale=integration_scale, mix=mix),
        diffusivity=Exponential(contrasts=CONTRASTS),
        flux_weights=WEIGHTS,
    )


def process(mixes: Any = MIXES, pulls: Any = PULLS, fraction: float = 1.0) -> Evolution:
    """Return a process of both orders at a fraction of its stable step size."""
    schedule = tuple((first_order(mix), second_order(-mix)) for mix in mixes)
    evolution = Evolution(
        scales=SCALES, schedule=schedule, tau=1.0, steps=len(schedule), pull=tuple(pulls)
    )
    return replace(evolution, tau=fraction * stable_step(evolution))


def noisy(shape: tuple[int, ...]) -> Any:
    image = np.random.default_rng(0).normal(60, 25, shape)
    image[..., shape[-1] // 2 :] += 120
    return image


@pytest.mark.slow
@pytest.mark.parametrize("shape", [(4, 5), (1, 6), (1, 1)])
@pytest.mark.parametrize("mix", some([-0.4, 0.3, 1.0], -0.4))
def test_equals_the_loops(shape: tuple[int, int], mix: float) -> None:
    levels = noise_map(shape)
    for channels, relative, scale in ((1, None, 0.0), (2, levels, 0.7)):
        image = noisy((channels, *shape))
        first = naive_evolve(
            image,
            scales=SCALES,
            tensor_weights=WEIGHTS,
            flux_weights=(0.3, 0.9),
            contrasts=CONTRASTS,
            tau=0.1,
            steps=3,
            coupling="tensor",
            discretisation="haar",
            theta=0.15,
            relative_noise=relative,
            integration_scale=scale,
            mix=mix,
            pulls=PULLS,
        )
        evolution = Evolution(
            scales=SCALES, schedule=((first_order(mix, scale),),), tau=0.1, steps=3, pull=PULLS
        )
        change = hessian_velocity(image, SCALES, WEIGHTS, CONTRASTS, scale, relative, mix)
        hessian = Evolution(
            scales=SCALES, schedule=((second_order(mix, scale),),), tau=0.01, steps=1
        )
        for engine in RUNNABLE_ENGINES:
            for one, expected in ((evolution, first), (hessian, image + 0.01 * change)):
                found = ENGINES[engine].evolve(image, one, exact=True, relative_noise=relative)
                np.testing.assert_allclose(found, expected, rtol=0, atol=1e-9)


def test_a_mix_of_one_is_the_isotropic_coupling() -> None:
    image = noisy((1, 7, 8))
    found, expected = (
        ENGINES["numpy"].evolve(
            image, Evolution(scales=SCALES, schedule=((term,),), tau=0.1, steps=2)
        )
        for term in (first_order(1.0), first_order(0.0, kind="trace"))
    )
    np.testing.assert_allclose(found, expected, atol=1e-10)


@given(
    entries=st.tuples(*[st.floats(-30, 30)] * 3),
    mix=st.floats(-1, 1),
    contrast=st.floats(0.1, 100),
    order=st.sampled_from([1, 2]),
)
def test_gates_are_symmetric_with_eigenvalues_up_to_one(
    entries: tuple[float, float, float], mix: float, contrast: float, order: int
) -> None:
    a, b, c = entries
    tensor = SymmetricTensor(
        *(np.full((1, 1), x) for x in (a * a + b * b, b * (a + c), b * b + c * c))
    )
    gate: Any = Exponential(contrasts=(contrast,)).of(mixed_tensor(tensor, mix), 0, order)
    matrix = np.array([[gate.xx.item(), gate.xy.item()], [gate.xy.item(), gate.yy.item()]])
    eigenvalues = np.linalg.eigvalsh(matrix)
    assert -1e-9 <= eigenvalues[0] <= eigenvalues[1] <= 1 + 1e-9


@pytest.mark.slow
@pytest.mark.parametrize("engine", RUNNABLE_ENGINES)
@given(
    image=images(largest=6),
    mixes=st.lists(st.floats(-1, 1), min_size=1, max_size=3),
    data=st.data(),
    masked=st.booleans(),
)
def test_norm_and_mean(
    engine: str, image: Any, mixes: list[float], data: st.DataObject, masked: bool
) -> None:
    pulls = data.draw(st.lists(st.floats(0, 2), min_size=len(mixes), max_size=len(mixes)))
    evolution = process(mixes, pulls)
    mask = np.ones(image.shape, np.bool_)
    if masked:
        mask.flat[:: data.draw(st.integers(2, 5))] = False
        evolution = stable_on_masks(evolution)
    valid = mask if masked else None
    found = ENGINES[engine].evolve(image[None], evolution, exact=True, mask=valid)[0][mask]
    before = image[mask]
    assert np.linalg.norm(found) <= np.linalg.norm(before) * (1 + 1e-9) + 1e-9
    if before.size:
        assert found.mean() == pytest.approx(before.mean(), abs=1e-9)


def test_the_bound_is_that_of_the_worst_step() -> None:
    evolution = process()
    bounds = [
        stable_step(replace(evolution, schedule=(terms,), steps=1, pull=pull))
        for terms, pull in zip(evolution.schedule, PULLS, strict=True)
    ]
    assert evolution.tau == pytest.approx(min(bounds), rel=2e-3)
    without = stable_step(replace(evolution, pull=0.0))
    assert bounds[0] == pytest.approx(1 / (1 / without + PULLS[0]), rel=2e-3)
    shape = (9, 8)
    wide = replace(first_order(0.0), diffusivity=Exponential(contrasts=(1e9, 1e9)))
    linear = Evolution(scales=SCALES, schedule=((wide,),), tau=1.0, steps=1, pull=0.5)
    tau = stable_step(linear, shape)
    step = ENGINES["numpy"].evolve
    matrix = dense_matrix(lambda u: step(u, replace(linear, tau=tau, pull=0.0)), shape)
    # With a pull to an input of the opposite sign this component keeps its size, and no less.
    assert np.linalg.eigvalsh(matrix)[0] - tau * 0.5 == pytest.approx(-1 + tau * 0.5, abs=1e-6)


@needs_native
@pytest.mark.parametrize("shape", [(1, 1, 1), (1, 1, 9), (2, 9, 1), (3, 17, 70)])
def test_the_compiled_engine_on_all_its_instruction_sets(shape: tuple[int, ...]) -> None:
    image = np.random.default_rng(0).uniform(0, 255, shape)
    evolution = process()
    for levels in (None, noise_map(shape)):
        expected = ENGINES["numpy"].evolve(image, evolution, relative_noise=levels)
        for name in NativeEngine().instruction_sets():
            for exact, tolerance in ((True, 1e-9), (False, 0.2)):
                found = NativeProcess(
                    evolution, exact=exact, threads=2, relative_noise=levels, instruction_set=name
                )(image)
                np.testing.assert_allclose(found, expected, atol=tolerance, rtol=0)


def test_what_is_refused() -> None:
    with pytest.raises(ValueError, match="needs a coupling of the kind 'tensor'"):
        Coupling(weights=(1.0,), kind="trace", mix=0.1)
    with pytest.raises(ValueError, match="1 or 3 fidelity weights"):
        replace(process(), pull=(0.1, 0.2))
    alone = Evolution(scales=SCALES, schedule=((first_order(0.1, 0.0),),), tau=0.1, steps=2)
    with pytest.raises(ValueError, match="not in volumes"):
        alone.in_volume((1.0, 1.0, 1.0))


class TestDeepModel:
    """Their laws in the model with free numbers at every step."""

    def model(self, **changes: Any) -> DeepDiffusion:
        channels = (Channel(1, 0.0), Channel(1, 2.0), Channel(2, 0.5))
        numbers: dict[str, Any] = {
            "channels": channels,
            "steps": 2,
            "weights": (0.3, 2.0, 0.1) * 2,
            "contrasts": (0.3, 1e-4, 0.2) * 2,
            "weight_exponents": (0.2,) * 3,
            "contrast_exponents": (0.1,) * 3,
            "couplings": (1.0, 0.5, 2.0),
            "anisotropic": True,
            "step_weight_exponents": (0.1, 0.2, -0.3, 0.0),
            "step_contrast_exponents": (0.0, 0.4, 0.1, 0.0),
            "pulls": (0.02, 0.3),
            "pull_exponents": (0.5,),
            "mixes": (-0.1, 0.2, 0.0, -0.9),
            "contrast_floor": (0.03, 0.3),
        }
        return DeepDiffusion(**{**numbers, **changes})

    def test_laws(self) -> None:
        model, ratio = self.model(), 10 / 30
        evolution = model.evolution(10.0)
        assert model_from_json(model_to_json(model)) == model
        assert model.number_count() == 3 + 12 + 6 + 3 + 8 + 2 + 1 + 4
        for step in range(2):
            first, second = evolution.terms(step)
            assert (first.coupling.mix, second.coupling.mix) == model.mixes[2 * step : 2 * step + 2]
            law = 0.3 * ratio ** (0.2 + model.step_weight_exponents[2 * step])
            assert first.coupling.weights[0] == pytest.approx(law)
            contrast = 10 * 0.3 * ratio ** (0.1 + model.step_contrast_exponents[2 * step])
            assert first.diffusivity.contrasts[0] == pytest.approx(contrast)
            # The second channel has a contrast at its floor.
            weights = np.array(first.coupling.weights)[[0, 2]]
            steepest = np.sqrt(weights @ [1.0, 1 / (2 * np.pi * 4)])
            assert first.diffusivity.contrasts[2] == pytest.approx(10 * 0.03 * steepest)
            asked = first.coupling.weights[0] / model.couplings[0]
            excess = asked / first.flux_weights[0]
            assert excess >= 1
            pull = model.pulls[step] * ratio**0.5 / excess
            assert evolution.pull_at(step) == pytest.approx(pull)
        assert evolution.tau == 1

    @pytest.mark.parametrize(
        ("changes", "message"),
        [
            ({"pulls": (0.1,)}, "pulls must have 2 values"),
            ({"pull_exponents": ()}, "pull_exponents must have 1 value"),
            ({"mixes": (0.1, 0.1, 0.1, 1.5)}, "must lie between -1 and 1"),
            ({"anisotropic": False}, "orders one and two of an anisotropic model"),
            ({"contrast_floor": (0.1,)}, "contrast_floor must have 2 values"),
        ],
    )
    def test_wrong_numbers_are_refused(self, changes: dict[str, Any], message: str) -> None:
        with pytest.raises(ValueError, match=message):
            self.model(**changes)
