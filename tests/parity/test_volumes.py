"""Diffusion in three dimensions against the oracle in plain loops, and against images."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, cast

import naive_volumes
import numpy as np
import pytest
from cases import COMPACT, MODELS, RUNNABLE_ENGINES, SIGMA
from numpy.typing import NDArray

from integrodiff.engines import ENGINES
from integrodiff.models import ExplicitModel
from integrodiff.stages import Evolution, VolumeGradient

pytestmark = pytest.mark.slow

Floats = NDArray[np.float64]

ENGINES_OF_VOLUMES = RUNNABLE_ENGINES
FIRST_ORDER = replace(
    COMPACT,
    law=type(COMPACT.law)(
        strengths=(1.0,),
        exponents=(0.3,),
        decays=(0.2,),
        contrasts=(0.5,),
        contrast_exponents=(1.1,),
    ),
    tau=0.1,
)
INTEGRATED = replace(FIRST_ORDER, integration_scale=0.8)
ALL: dict[str, Any] = {**MODELS, "compact": FIRST_ORDER, "integrated": INTEGRATED}


def noisy(shape: tuple[int, ...], seed: int = 0) -> Floats:
    """Return an oblique step with noise."""
    z, y, x = np.meshgrid(*(np.arange(size) for size in shape[-3:]), indexing="ij")
    step = 120.0 * (0.4 * z + 0.7 * y + x > sum(shape[-3:]) / 3)
    return 60 + step + np.random.default_rng(seed).normal(0, SIGMA, shape)


def evolution_of(model: ExplicitModel, spacing: tuple[float, float, float]) -> Evolution:
    return replace(model.evolution(SIGMA).in_volume(spacing), steps=2, tau=0.05)


def by_oracle(evolution: Evolution, volume: Floats, levels: Floats | None = None) -> Floats:
    (term,), *others = evolution.schedule
    result = volume
    schedule = evolution.schedule if others else evolution.schedule * evolution.steps
    for (term,) in schedule[: evolution.steps]:
        result = naive_volumes.evolve(
            result,
            scales=evolution.scales,
            coupling_weights=term.coupling.weights,
            flux_weights=term.flux_weights,
            contrasts=term.diffusivity.contrasts,
            tau=evolution.tau,
            steps=1,
            coupling=term.coupling.kind,
            theta=term.derivatives.theta,  # type: ignore[attr-defined]
            spacing=evolution.spacing,
            relative_noise=levels,
            integration_scale=term.coupling.integration_scale,
            units=term.derivatives.units,  # type: ignore[attr-defined]
            twists=term.derivatives.twists,  # type: ignore[attr-defined]
        )
    return result


def assert_agrees(
    evolution: Evolution, engine: str, volume: Floats, levels: Floats | None = None
) -> None:
    expected = by_oracle(evolution, volume, levels)
    process = ENGINES[engine].prepare(evolution, exact=True, relative_noise=levels)
    np.testing.assert_allclose(process(volume), expected, rtol=0, atol=1e-10)
    single = process(volume.astype(np.float32))
    assert single.dtype == np.float32
    np.testing.assert_allclose(single, expected, rtol=0, atol=2e-4)


@pytest.mark.parametrize("engine", ENGINES_OF_VOLUMES)
@pytest.mark.parametrize("name", ["pm", "eed", "iid-full", "iad-full", "iad-reduced"])
def test_every_model(name: str, engine: str) -> None:
    assert_agrees(evolution_of(ALL[name], (1.0, 1.0, 1.0)), engine, noisy((1, 3, 4, 5)))


@pytest.mark.parametrize("engine", ENGINES_OF_VOLUMES)
@pytest.mark.parametrize("spacing", [(2.5, 1.0, 1.0), (1.0, 20.0, 1.3), (1.0, 1.0, 3.0)])
def test_spacing(spacing: tuple[float, float, float], engine: str) -> None:
    assert_agrees(evolution_of(ALL["iad-full"], spacing), engine, noisy((1, 4, 3, 4)))


@pytest.mark.parametrize("engine", ENGINES_OF_VOLUMES)
@pytest.mark.parametrize("shape", [(1, 1, 1, 1), (1, 1, 1, 4), (2, 1, 4, 1), (1, 3, 1, 2)])
def test_thin_volumes_and_channels(shape: tuple[int, ...], engine: str) -> None:
    assert_agrees(evolution_of(ALL["iad-full"], (1.5, 1.0, 1.0)), engine, noisy(shape))


@pytest.mark.parametrize("engine", ENGINES_OF_VOLUMES)
def test_noise_that_is_not_the_same_everywhere(engine: str) -> None:
    levels = 4.0 ** np.random.default_rng(7).uniform(-1, 1, (3, 4, 3))
    assert_agrees(evolution_of(ALL["eed"], (1.0, 1.0, 2.0)), engine, noisy((1, 3, 4, 3)), levels)


@pytest.mark.parametrize("engine", ENGINES_OF_VOLUMES)
@pytest.mark.parametrize("spacing", [(1.0, 1.0, 1.0), (1.0, 1.7, 1.3)])
@pytest.mark.parametrize("shape", [(1, 3, 4, 5), (2, 1, 2, 4)])
def test_integration_scale(
    shape: tuple[int, ...], spacing: tuple[float, float, float], engine: str
) -> None:
    evolution = evolution_of(replace(FIRST_ORDER, integration_scale=0.9), spacing)
    levels = 2.0 ** np.random.default_rng(7).uniform(-1, 1, shape[1:])
    for relative in (None, levels):
        assert_agrees(evolution, engine, noisy(shape), relative)


@pytest.mark.parametrize("engine", ENGINES_OF_VOLUMES)
@pytest.mark.parametrize("name", ["integrated", "iad-full", "iid-full"])
def test_units_and_twists_of_the_structure_tensor(name: str, engine: str) -> None:
    evolution = evolution_of(ALL[name], (2.0, 1.0, 1.5))
    (term,) = evolution.schedule[0]
    operator = replace(
        cast(VolumeGradient, term.derivatives), units=(1.7, 0.9, 1.2), twists=(0.8, 0.1, 0.5)
    )
    evolution = replace(evolution, schedule=((replace(term, derivatives=operator),),))
    assert_agrees(evolution, engine, noisy((2, 3, 4, 5)))


@pytest.mark.parametrize("engine", ENGINES_OF_VOLUMES)
def test_integration_scale_of_a_trace(engine: str) -> None:
    (term,) = evolution_of(ALL["iid-full"], (1.0, 1.0, 1.0)).schedule[0]
    term = replace(term, coupling=replace(term.coupling, integration_scale=0.7))
    evolution = replace(evolution_of(ALL["iid-full"], (1.0, 1.0, 1.0)), schedule=((term,),))
    assert_agrees(evolution, engine, noisy((1, 4, 3, 4)))


@pytest.mark.parametrize("engine", ENGINES_OF_VOLUMES)
def test_a_fidelity_weight_for_each_step(engine: str) -> None:
    evolution = evolution_of(FIRST_ORDER, (1.0, 1.0, 1.0))
    volume = noisy((1, 3, 4, 5))
    pulled = replace(evolution, pull=(0.0, 0.3))
    (first,) = by_oracle(replace(evolution, steps=1), volume)
    second = by_oracle(replace(evolution, steps=1), first[None])
    expected = second + evolution.tau * 0.3 * (volume - first[None])
    found = ENGINES[engine].evolve(volume, pulled, exact=True)
    np.testing.assert_allclose(found, expected, rtol=0, atol=1e-10)


@pytest.mark.parametrize("theta", [0.0, 0.15, 0.5])
def test_every_theta(theta: float) -> None:
    model = replace(ALL["eed"], theta=theta)
    assert_agrees(evolution_of(model, (1.0, 1.0, 1.0)), "numpy", noisy((1, 3, 4, 3)))


def test_steps_with_numbers_of_their_own() -> None:
    model = replace(FIRST_ORDER, contrast_growth=0.8, exponent_drift=1.0, steps=2)
    evolution = replace(model.evolution(SIGMA).in_volume((1.0, 1.0, 1.0)), tau=0.05)
    assert len(evolution.schedule) == 2
    assert_agrees(evolution, "numpy", noisy((1, 3, 3, 4)))


@pytest.mark.parametrize("engine", ENGINES_OF_VOLUMES)
@pytest.mark.parametrize("name", ALL)
def test_equal_slices_give_the_image_in_every_slice(name: str, engine: str) -> None:
    flat = replace(ALL[name].evolution(SIGMA), tau=0.1)
    image = noisy((1, 1, 13, 11))[:, 0]
    expected = ENGINES[engine].evolve(image, flat, exact=True)
    for spacing in ((1.0, 1.0, 1.0), (7.0, 1.0, 1.0)):
        volume = np.repeat(image[:, None], 4, axis=1)
        found = ENGINES[engine].evolve(volume, flat.in_volume(spacing), exact=True)
        for n in range(4):
            np.testing.assert_allclose(found[:, n], expected, rtol=0, atol=1e-9)


@pytest.mark.parametrize("engine", ENGINES_OF_VOLUMES)
@pytest.mark.parametrize("axes", [(2, 1, 0), (1, 2, 0), (0, 2, 1), (1, 0, 2)])
def test_a_turned_volume_gives_the_turned_result(axes: tuple[int, ...], engine: str) -> None:
    volume, spacing = noisy((6, 7, 8)), (2.0, 1.0, 1.5)
    flat = replace(INTEGRATED.evolution(SIGMA), tau=0.1)
    turned_spacing = spacing[axes[0]], spacing[axes[1]], spacing[axes[2]]
    turned = np.ascontiguousarray(np.flip(volume.transpose(axes), 0))
    expected = ENGINES[engine].evolve(volume[None], flat.in_volume(spacing), exact=True)[0]
    found = ENGINES[engine].evolve(
        turned[None],
        flat.in_volume(turned_spacing),
        exact=True,
    )[0]
    np.testing.assert_allclose(found, np.flip(expected.transpose(axes), 0), rtol=0, atol=1e-9)
