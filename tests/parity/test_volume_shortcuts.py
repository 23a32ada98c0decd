"""The compiled engine in three dimensions: shortcuts, their bound and memory, and masks."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray
from selection import some

from integrodiff import IAD, ReducedLaw, ScaleGrid, load_model
from integrodiff.engines import ENGINES
from integrodiff.engines.certificate import stable_volume_step_with_shortcuts, volume_blurs
from integrodiff.engines.native import NativeVolumeProcess
from integrodiff.engines.shortcuts import volume_shortcuts
from integrodiff.models import (
    CompactDiffusion,
    CompactTensorDiffusion,
    PowerLaws,
    SharedLaws,
)
from integrodiff.stages import Evolution, Exponential, stable_step

NATIVE, NUMPY = ENGINES["native"], ENGINES["numpy"]
pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(NATIVE.unavailable() is not None, reason=str(NATIVE.unavailable())),
]

Floats = NDArray[np.float64]
Spacing = tuple[float, float, float]

SIGMA = 20.0
EQUAL: Spacing = (1.0, 1.0, 1.0)
PLUS: Any = load_model("iad-plus-volume")
WIDE = IAD(  # all scales with much weight, four of them on the coarse grid
    law=ReducedLaw(alpha=0.001, beta=1.0, lambda_0=0.6),
    tau=0.05,
    scales=ScaleGrid(count=8, smallest=0.3, largest=9.0),
)
COMPACT = CompactDiffusion(  # no integration scale, and weight on the coarse grid
    law=PowerLaws(
        strengths=(1.0,),
        exponents=(0.13,),
        decays=(0.12,),
        contrasts=(0.22,),
        contrast_exponents=(0.82,),
    ),
    scales=PLUS.scales,
    contrast_growth=0.62,
    exponent_drift=2.2,
    tau=0.94,
    tau_exponent=0.12,
    theta=0.15,
)
INTEGRATED = CompactTensorDiffusion(  # in volumes, a law with an integration scale
    law=SharedLaws(
        strengths=(1.0,),
        exponent=0.3,
        decay=0.15,
        contrasts=(0.25,),
        contrast_exponent=0.8,
        integration_scales=(1.0,),
        integration_exponent=0.3,
    ),
    scales=PLUS.scales,
    contrast_growth=0.7,
    exponent_drift=2.0,
    tau=1.0,
    steps=6,
    theta=0.15,
)
MODELS: dict[str, Any] = {
    "iad-plus-volume": PLUS,
    "integrated": INTEGRATED,
    "wide": WIDE,
    "compact": COMPACT,
    "pulled": replace(COMPACT, pull=0.02),
    "eed": load_model("eed"),
}
SPACINGS: list[Spacing] = [EQUAL, (2.5, 1.0, 1.0), (1.0, 1.0, 1.4), (1.0, 3.0, 20.0)]


def evolution_of(model: Any, spacing: Spacing = EQUAL, sigma: float = SIGMA) -> Evolution:
    found: Evolution = model.evolution(sigma).in_volume(spacing)
    return found


def first_steps(evolution: Evolution, count: int) -> Evolution:
    schedule = evolution.schedule
    return replace(evolution, steps=count, schedule=schedule[:count])


def scene(shape: tuple[int, ...], seed: int = 0) -> Floats:
    """Return balls and waves with noise, ``(channel, slice, row, column)``."""
    z, y, x = np.meshgrid(*(np.arange(size) for size in shape[-3:]), indexing="ij")
    clean = 100 + 50 * np.sin(z / 9 + x / 7) + 60.0 * ((z + y // 2 + x) % 23 < 9)
    return np.asarray(clean + np.random.default_rng(seed).normal(0, SIGMA, shape))


@pytest.mark.parametrize("spacing", SPACINGS)
@pytest.mark.parametrize("name", MODELS)
def test_deviation_from_the_reference(name: str, spacing: Spacing) -> None:
    volume, evolution = scene((1, 13, 14, 18)), first_steps(evolution_of(MODELS[name], spacing), 4)
    # Steps at the bound may be cut by half a percent, see docs/volumes.md.
    evolution = replace(evolution, tau=0.98 * evolution.tau)
    assert volume_shortcuts(evolution) is not None
    expected = NUMPY.evolve(volume, evolution)
    np.testing.assert_allclose(
        NATIVE.evolve(volume, evolution, exact=True), expected, rtol=0, atol=1e-8
    )
    for image in (volume, volume.astype(np.float32)):
        found = NATIVE.evolve(image, evolution)
        assert found.dtype == image.dtype
        assert np.abs(found - expected).max() < 0.05


@pytest.mark.parametrize(
    "shape",
    [(1, 1, 1, 1), (1, 1, 1, 9), (1, 8, 1, 1), (2, 2, 3, 1), (2, 25, 17, 20), (1, 3, 50, 16)],
)
@pytest.mark.parametrize("name", ["compact", "integrated", "wide"])
def test_all_shapes_and_threads(name: str, shape: tuple[int, ...]) -> None:
    volume, evolution = scene(shape), evolution_of(MODELS[name])
    found = NATIVE.evolve(volume, evolution, threads=1)
    assert np.abs(found - NATIVE.evolve(volume, evolution, exact=True)).max() < 0.05
    np.testing.assert_array_equal(NATIVE.evolve(volume, evolution, threads=3), found)
    np.testing.assert_allclose(found.mean((1, 2, 3)), volume.mean((1, 2, 3)), rtol=0, atol=1e-9)


@pytest.mark.parametrize("instructions", ENGINES["native"].instruction_sets())  # type: ignore[attr-defined]
def test_every_instruction_set(instructions: str) -> None:
    volume, evolution = scene((1, 9, 14, 21)), evolution_of(INTEGRATED)
    for exact, precision, tolerance in (
        (False, np.float32, 0.05),
        (True, np.float32, 0.01),
        (True, np.float64, 1e-8),
    ):
        process = NativeVolumeProcess(
            evolution, exact=exact, threads=1, instruction_set=instructions
        )
        found = process(volume.astype(precision))
        assert np.abs(found - NUMPY.evolve(volume, evolution)).max() < tolerance


@pytest.mark.parametrize("name", ["compact", "integrated"])
def test_noise_that_is_not_the_same_everywhere(name: str) -> None:
    volume, evolution = scene((1, 9, 12, 20)), evolution_of(MODELS[name])
    levels = 2.0 ** np.random.default_rng(7).uniform(-1, 1, volume.shape[1:])
    for relative in (levels, levels[0]):
        expected = NUMPY.evolve(volume, evolution, relative_noise=relative)
        found = NATIVE.evolve(volume, evolution, relative_noise=relative)
        assert np.abs(found - expected).max() < 0.05


@pytest.mark.parametrize("side", [128, 192])
def test_memory(side: int) -> None:
    """At most 16 bytes for each voxel; the float32 volume is four of them."""
    for model in (PLUS, INTEGRATED):
        evolution, shape = evolution_of(model), (1, side, side, side)
        process = NativeVolumeProcess(evolution, exact=False, threads=2)
        run = process._start_one(np.zeros(shape, np.float32))
        assert run.bytes / side**3 < 16
        counted = NATIVE.working_memory(evolution, shape, np.dtype(np.float32), threads=2)
        assert counted is not None
        assert 1 <= counted / run.bytes < 1.15


# ---- the bound ----


def linear(model: Any, spacing: Spacing) -> Evolution:
    """Return one step with all diffusivities one, at the bound for what is computed."""
    evolution = evolution_of(model, spacing)
    (term,) = evolution.terms(0)
    contrasts = (1e6,) * len(evolution.scales)
    term = replace(term, diffusivity=Exponential(contrasts=contrasts))
    flat = replace(evolution, schedule=((term,),), steps=1, pull=0.0)
    found = volume_shortcuts(flat)
    assert found is not None
    return replace(flat, tau=stable_volume_step_with_shortcuts(flat, found))


@pytest.mark.parametrize("spacing", SPACINGS)
@pytest.mark.parametrize("name", ["compact", "wide"])
def test_the_bound_holds_and_is_sharp(name: str, spacing: Spacing) -> None:
    """The largest eigenvalue of the operator that is computed, by power iteration."""
    evolution = linear(MODELS[name], spacing)
    process = NATIVE.prepare(evolution, threads=1)
    assert process.evolution.tau == evolution.tau
    rng = np.random.default_rng(0)
    vector, value = rng.normal(size=(1, 11, 13, 18)), 0.0
    for _ in range(100):
        image = vector - process(vector)
        value = float(np.linalg.norm(image))
        vector = image / value
    # `value` is tau times the largest eigenvalue, which must not exceed two.
    assert value <= 2 * (1 + 1e-9)
    assert value > 1.9
    # The bound of the exact process is hardly larger.
    assert stable_step(evolution) / evolution.tau < 1.01
    # The way back is the adjoint of the way there.
    a, b = rng.normal(size=(2, 1, 11, 13, 18))
    assert np.sum(a * (b - process(b))) == pytest.approx(np.sum(b * (a - process(a))), rel=1e-5)


def test_bounds_of_blurs_hold_for_each_axis() -> None:
    for spacing in SPACINGS:
        found = volume_shortcuts(evolution_of(WIDE, spacing))
        assert found is not None
        bounds = volume_blurs(found)
        assert len(bounds) == WIDE.scales.count
        for axis in range(3):
            for i, taps in enumerate(found.fine[axis]):
                frequencies = np.linspace(0, np.pi, 777)
                symbol = taps[0] + 2 * np.cos(
                    np.outer(frequencies, np.arange(1, len(taps)))
                ) @ np.array(taps[1:])
                bound = bounds[i][axis]
                p = 1 - np.cos(frequencies)
                assert (
                    symbol**2 <= bound.gain * np.exp(-bound.decay * p) + bound.floor + 1e-12
                ).all()


shapes = st.tuples(*(st.integers(1, 9) for _ in range(3)))


@given(
    shape=shapes,
    seed=st.integers(0, 2**16),
    spacing=st.sampled_from(SPACINGS),
    name=st.sampled_from(["compact", "integrated", "wide"]),
    size=st.sampled_from([1.0, 1e3]),
)
def test_mean_and_norm(
    shape: tuple[int, int, int], seed: int, spacing: Spacing, name: str, size: float
) -> None:
    """At steps that are as large as the bound allows."""
    volume = size * np.random.default_rng(seed).normal(size=(1, *shape))
    evolution = first_steps(evolution_of(MODELS[name], spacing), 3)
    evolution = replace(evolution, tau=stable_step(evolution))
    found = NATIVE.evolve(volume, evolution, threads=1)
    assert np.linalg.norm(found) <= np.linalg.norm(volume) * (1 + 1e-9)
    assert abs(found.mean() - volume.mean()) < 1e-11 * size
    constant = NATIVE.evolve(0 * volume + size, evolution, threads=1)
    np.testing.assert_allclose(constant, size, rtol=1e-11)


@given(
    shape=shapes,
    axes=st.permutations((0, 1, 2)),
    flipped=st.integers(0, 2),
    seed=st.integers(0, 2**16),
    name=st.sampled_from(["iad-plus-volume", "integrated", "wide"]),
)
def test_a_turned_volume_gives_the_turned_result(
    shape: tuple[int, int, int], axes: list[int], flipped: int, seed: int, name: str
) -> None:
    def turned(volume: Floats) -> Floats:
        return np.ascontiguousarray(np.flip(volume.transpose(axes), flipped))

    volume, spacing = scene((1, *shape), seed)[0], (1.0, 1.7, 1.2)
    evolution = first_steps(evolution_of(MODELS[name], spacing), 3)
    other = spacing[axes[0]], spacing[axes[1]], spacing[axes[2]]
    expected = turned(NATIVE.evolve(volume[None], evolution)[0])
    turned_evolution = first_steps(evolution_of(MODELS[name], other), 3)
    found = NATIVE.evolve(turned(volume)[None], turned_evolution)[0]
    # Grids of half the resolution lie otherwise, from the other side of an axis.
    assert np.abs(found - expected).max() < 0.05


@pytest.mark.parametrize("name", ["iad-plus-volume", "integrated"])
def test_equal_slices_give_the_image_in_every_slice(name: str) -> None:
    model = replace(MODELS[name], tau=0.2)  # below the bounds of images and of volumes
    image = scene((1, 1, 19, 22))[:, 0]
    expected = NATIVE.evolve(image, model.evolution(SIGMA), exact=True)
    found = NATIVE.evolve(np.stack([image] * 5, axis=1), model.evolution(SIGMA).in_volume(EQUAL))
    assert np.abs(found - expected[:, None]).max() < 0.05


# ---- masks ----


def some_mask(shape: tuple[int, ...], seed: int = 0, share: float = 0.1) -> NDArray[np.bool_]:
    mask = np.random.default_rng(seed).uniform(size=shape) > share
    mask[..., : shape[-1] // 3] &= np.arange(shape[-2])[:, None] != shape[-2] // 2
    mask[-1, -1, -1] = True
    return mask


@pytest.mark.parametrize("shape", [(1, 1, 1, 2), (1, 1, 6, 7), (2, 7, 6, 17), (1, 5, 1, 9)])
@pytest.mark.parametrize("spacing", SPACINGS[:2])
@pytest.mark.parametrize("name", some(["compact", "integrated", "eed"], "integrated"))
def test_masks(name: str, spacing: Spacing, shape: tuple[int, ...]) -> None:
    volume, mask = scene(shape), some_mask(shape[1:])
    evolution = first_steps(evolution_of(MODELS[name], spacing), 2)
    levels = 2.0 ** np.random.default_rng(7).uniform(-1, 1, shape[1:])
    for relative in (None, levels):
        expected = NUMPY.evolve(volume, evolution, relative_noise=relative, mask=mask)
        given = np.where(mask, volume, np.nan)
        found = NATIVE.evolve(given, evolution, relative_noise=relative, mask=mask, threads=1)
        np.testing.assert_allclose(found[:, mask], expected[:, mask], rtol=0, atol=1e-9)
        assert np.isnan(found[:, ~mask]).all()
        single = NATIVE.evolve(
            given.astype(np.float32), evolution, relative_noise=relative, mask=mask, threads=3
        )
        np.testing.assert_allclose(single[:, mask], expected[:, mask], rtol=0, atol=2e-3)
        threaded = NATIVE.evolve(given, evolution, relative_noise=relative, mask=mask, threads=3)
        np.testing.assert_array_equal(threaded, found)


@given(
    shape=shapes,
    seed=st.integers(0, 2**16),
    share=st.sampled_from([0.05, 0.4, 0.9]),
    name=st.sampled_from(["compact", "integrated"]),
)
def test_norm_on_masks(shape: tuple[int, int, int], seed: int, share: float, name: str) -> None:
    volume = np.random.default_rng(seed).normal(0, 50, (1, *shape))
    mask = some_mask(shape, seed, share)
    found = NATIVE.evolve(volume, evolution_of(MODELS[name]), mask=mask, threads=1)
    valid = found[:, mask], volume[:, mask]
    assert np.linalg.norm(valid[0]) <= np.linalg.norm(valid[1]) * (1 + 1e-12)
    assert abs(valid[0].mean() - valid[1].mean()) < 1e-9
    np.testing.assert_array_equal(found[:, ~mask], volume[:, ~mask])


def test_all_valid_is_no_mask() -> None:
    volume, evolution = scene((1, 7, 12, 13)), evolution_of(COMPACT)
    found = NATIVE.evolve(volume, evolution, mask=np.ones(volume.shape[1:], np.bool_))
    whole = NATIVE.evolve(volume, evolution, exact=True)
    assert np.sqrt(((found - whole) ** 2).mean()) < 0.5  # steps may differ
