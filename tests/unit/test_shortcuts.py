"""The shortcuts of the compiled engine: how far from exact, and what they keep."""

from __future__ import annotations

import os
from dataclasses import replace
from math import comb
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from cases import SIGMA, at_bound, images
from hypothesis import given
from numpy.typing import NDArray
from scipy.fft import dctn, idctn
from scipy.special import ive
from selection import some

from integrodiff import EED, IAD, MODEL_NAMES, ReducedLaw, ScaleGrid, load_model
from integrodiff.engines import ENGINES
from integrodiff.engines.shortcuts import (
    NEGLIGIBLE,
    between_binomials,
    every_second_tap,
    half_sample_gaussian,
    interpolation,
    shortcuts,
    without_negligible,
)
from integrodiff.models import CompactDiffusion, CompactTensorDiffusion, PowerLaws, SharedLaws
from integrodiff.stages import (
    Coupling,
    Evolution,
    ExchangeWithNeighbours,
    Exponential,
    HigherDerivatives,
    Term,
)

NATIVE = ENGINES["native"]
needs_native = pytest.mark.skipif(
    NATIVE.unavailable() is not None, reason=str(NATIVE.unavailable())
)

GRID = ScaleGrid(count=8, smallest=0.1, largest=7.0, quadrature="variance")
COMPACT = CompactDiffusion(
    law=PowerLaws(
        strengths=(1.0,),
        exponents=(0.0,),
        decays=(0.05,),
        contrasts=(0.15,),
        contrast_exponents=(1.2,),
    ),
    tau=0.4,
    tau_exponent=0.2,
    contrast_growth=1.05,
    pull=0.02,
    scales=GRID,
)
INTEGRATED = CompactTensorDiffusion(
    law=SharedLaws(
        strengths=(1.0,),
        exponent=0.34,
        decay=0.33,
        contrasts=(0.23,),
        contrast_exponent=0.76,
        integration_scales=(1.3,),
        integration_exponent=0.35,
    ),
    tau=1.2,
    contrast_growth=0.86,
    exponent_drift=2.4,
    steps=5,
    scales=GRID,
)
TWO_ORDERS = replace(
    INTEGRATED,
    law=SharedLaws(
        strengths=(1.0, 0.33),
        exponent=0.55,
        decay=0.49,
        contrasts=(0.29, 0.117),
        contrast_exponent=0.4,
        integration_scales=(0.95, 4.26),
        integration_exponent=0.23,
    ),
)
WIDE = IAD(  # all scales with much weight, four of them on the coarse grid
    law=ReducedLaw(alpha=0.001, beta=1.0, lambda_0=1.0),
    tau=0.1,
    scales=ScaleGrid(count=8, smallest=0.3, largest=12.0),
)
MODELS: dict[str, Any] = {
    **{name: load_model(name) for name in MODEL_NAMES},
    "compact": COMPACT,
    "integrated": INTEGRATED,
    "anisotropic second order": TWO_ORDERS,
    "compact, two orders": replace(
        COMPACT,
        tau=0.2,
        law=PowerLaws(
            strengths=(1.0, 0.1),
            exponents=(0.0, 0.0),
            decays=(0.05, 0.3),
            contrasts=(0.15, 0.15),
            contrast_exponents=(1.2, 1.5),
        ),
    ),
    "nonnegativity": replace(WIDE, discretisation="nonnegativity"),
    "wide": WIDE,
    "eed with a large scale": EED(contrast=3.0, scale=2.0, tau=0.2),
    "eed with a coarse scale": EED(contrast=2.0, scale=4.0, tau=0.2),
}


@pytest.mark.slow
@needs_native
@pytest.mark.parametrize("sigma", some([5.0, 25.0, 60.0], 25.0))
@pytest.mark.parametrize("name", MODELS)
def test_deviation_on_a_photograph(
    name: str, sigma: float, photograph: NDArray[np.float64]
) -> None:
    noisy = photograph + np.random.default_rng(0).normal(0, sigma, photograph.shape)
    evolution = MODELS[name].evolution(sigma)
    exact = NATIVE.evolve(noisy[None], evolution, exact=True)
    for image in (noisy, noisy.astype(np.float32)):
        assert np.abs(NATIVE.evolve(image[None], evolution) - exact).max() < 0.05


@pytest.mark.slow
@needs_native
@pytest.mark.parametrize("name", ["iad-fast", "iad-plus", "iad-deep"])
@pytest.mark.parametrize("sigma", [2.0, 20.0, 100.0])
def test_the_new_models_are_fused_at_all_levels(
    name: str, sigma: float, photograph: NDArray[np.float64]
) -> None:
    for level in (0.3, 2.0, 5.0, 30.0, 100.0, 300.0):
        assert shortcuts(load_model(name).evolution(level)) is not None
    evolution = load_model(name).evolution(sigma)
    noisy = photograph + np.random.default_rng(0).normal(0, sigma, photograph.shape)
    exact = NATIVE.evolve(noisy[None], evolution, exact=True)
    assert np.abs(NATIVE.evolve(noisy[None], evolution) - exact).max() < 0.05


@pytest.mark.slow
@needs_native
@pytest.mark.parametrize(
    "name", ["iad", "iid", "eed", "pm", "compact", "wide", "iad-plus", "iad-deep"]
)
@pytest.mark.parametrize(
    "shape", [(1, 1, 1), (1, 1, 9), (1, 8, 1), (2, 2, 3), (3, 17, 70), (1, 131, 34), (1, 40, 2301)]
)
def test_all_shapes_and_threads(name: str, shape: tuple[int, ...]) -> None:
    """Odd sizes, thin and tiny images, channels, several strips of columns and bands of rows."""
    rng = np.random.default_rng(0)
    image = rng.normal(0, 6, shape).cumsum(-1).clip(-120, 120) + 128 + rng.normal(0, 10, shape)
    evolution = MODELS[name].evolution(20.0)
    exact = NATIVE.evolve(image, evolution, exact=True)
    found = NATIVE.evolve(image, evolution, threads=1)
    assert np.abs(found - exact).max() < 0.05
    np.testing.assert_array_equal(NATIVE.evolve(image, evolution, threads=3), found)
    np.testing.assert_allclose(found.mean((1, 2)), image.mean((1, 2)), rtol=1e-12, atol=1e-10)


@pytest.mark.slow
@needs_native
@given(image=images(largest=14))
def test_stable_at_the_bound(image: NDArray[np.float64]) -> None:
    """The way back stays the adjoint of the way there, so the norm does not grow."""
    for model in (WIDE, load_model("iad"), COMPACT):
        bound = at_bound(model) if isinstance(model, IAD) else model
        found = NATIVE.evolve(image[None], bound.evolution(SIGMA))[0]
        assert np.linalg.norm(found) <= np.linalg.norm(image) * (1 + 1e-4) + 1e-9
        assert abs(found.mean() - image.mean()) < 1e-9


def test_the_anisotropic_second_order_is_fused() -> None:
    for sigma in (5.0, 25.0, 100.0):
        assert shortcuts(TWO_ORDERS.evolution(sigma)) is not None
    # Its integration scale is too narrow for the coarse grid.
    assert shortcuts(TWO_ORDERS.evolution(2.0)) is None


@pytest.mark.slow
@needs_native
def test_constant_images_and_nan() -> None:
    for name, model in MODELS.items():
        constant = np.full((1, 21, 30), 77.0)
        found = NATIVE.evolve(constant, model.evolution(SIGMA))
        np.testing.assert_allclose(found, constant, atol=1e-9, err_msg=name)
        image = np.random.default_rng(0).normal(128, 30, (1, 20, 21))
        image[0, 3, 4] = np.nan
        assert np.isnan(NATIVE.evolve(image, model.evolution(SIGMA))[0, 3, 4])


@needs_native
def test_memory_is_used_again_for_other_shapes() -> None:
    process = NATIVE.prepare(MODELS["iad"].evolution(SIGMA), threads=2)
    rng = np.random.default_rng(0)
    noisy = [rng.normal(128, 30, shape) for shape in ((1, 90, 81), (1, 12, 200), (3, 35, 36))]
    expected = [NATIVE.evolve(image, MODELS["iad"].evolution(SIGMA)) for image in noisy]
    for image, wanted in zip([*noisy, *noisy[::-1]], [*expected, *expected[::-1]], strict=True):
        np.testing.assert_array_equal(process(image), wanted)


@pytest.mark.long
@needs_native
@pytest.mark.parametrize("name", ["iad", "iad-full", "iad-plus"])
def test_psnr_on_bsds500(name: str) -> None:
    folder = os.environ.get("INTEGRODIFF_DATA")
    if not folder:
        pytest.skip("INTEGRODIFF_DATA is not set")
    from integrodiff.learning import bsds500
    from integrodiff.learning.images import noise

    clean = bsds500("test", Path(folder), 10).pixels
    for level in (10.0, 60.0):
        evolution = load_model(name).evolution(level)
        noisy = np.stack([noise(level, k, c.shape) + c for k, c in enumerate(clean)])[:, None]
        errors = []
        for exact in (True, False):
            found = NATIVE.evolve(noisy.astype(np.float32), evolution, exact=exact)[:, 0]
            errors.append(np.mean((found.astype(np.float64) - clean) ** 2, axis=(1, 2)))
        psnr = 10 * np.log10(255**2 / np.array(errors))
        assert abs(psnr[0].mean() - psnr[1].mean()) < 0.002


def test_kernels() -> None:
    for taps in (half_sample_gaussian(6.0), every_second_tap(20.0)):
        assert min(taps) > -1e-6
    distances = np.arange(len(half_sample_gaussian(6.0))) + 0.5
    half = np.array(half_sample_gaussian(6.0))
    assert 2 * half.sum() == pytest.approx(1)
    assert 2 * (half * distances**2).sum() == pytest.approx(6, rel=2e-3)
    coarse = np.array(every_second_tap(20.0))
    assert coarse[0] + 2 * coarse[1:].sum() == pytest.approx(1)
    assert 2 * (coarse * (2 * np.arange(len(coarse))) ** 2).sum() == pytest.approx(20, rel=5e-3)
    assert sum(interpolation(14.5)) == pytest.approx(1)


@pytest.mark.parametrize(
    ("scale", "error"), [(2.5, 2.5e-3), (3.0, 4e-4), (4.0, 4e-5), (10.0, 3e-6)]
)
def test_three_kernels_are_one_gaussian(scale: float, error: float) -> None:
    """Binomial means of eight pixels, the kernel on the coarse grid, and the way back."""
    taps = between_binomials(scale**2)
    assert min(taps) >= 0
    whole = np.concatenate([taps[:0:-1], taps])
    size, binomial = 256, np.array([comb(7, k) for k in range(8)]) / 128
    for place in (128, 129):
        means = np.array(
            [binomial @ (np.arange(2 * j - 3, 2 * j + 5) == place) for j in range(128)]
        )
        smooth = np.convolve(means, whole, "same")
        found = np.zeros(size)
        for j in range(20, 108):
            found[2 * j - 3 : 2 * j + 5] += 2 * binomial * smooth[j]
        expected = ive(np.abs(np.arange(size) - place), scale**2)
        assert np.abs(found - expected).sum() < error


def test_interpolation_of_a_smooth_signal() -> None:
    """Smoothed white noise, sampled between the pixels and interpolated, comes back."""
    size, variance = 256, 14.5
    frequencies = np.pi * np.arange(size) / size
    spectrum = dctn(np.random.default_rng(0).normal(0, 30, size))
    smooth = np.exp(variance * (np.cos(frequencies) - 1)) * spectrum
    signal = idctn(smooth)
    # A shift by half a pixel, of the even continuation.
    both = np.concatenate([signal, signal[::-1]])
    phase = np.exp(0.5j * 2 * np.pi * np.fft.fftfreq(2 * size))
    samples = np.fft.ifft(np.fft.fft(both) * phase).real[::2]
    upsampled = np.zeros(2 * size)
    taps = interpolation(variance)
    for j, sample in enumerate(samples):
        for k, tap in enumerate(taps):
            upsampled[(2 * j + 1 + k) % (2 * size)] += tap * sample
            upsampled[(2 * j - k) % (2 * size)] += tap * sample
    assert np.abs(upsampled[:size] - signal).max() < 2e-3 * np.abs(signal).max()


def test_what_is_left_out_and_what_is_not() -> None:
    evolution = load_model("iad").evolution(10.0)
    shorter = without_negligible(evolution)
    assert len(shorter.scales) == 7
    assert {length for term in shorter.all_terms() for length in term.lengths} == {7}
    coupling_only = without_negligible(load_model("iad").evolution(40.0)).terms(0)[0]
    assert coupling_only.flux_weights[-1] == 0
    assert coupling_only.coupling.weights[-1] > 0
    assert without_negligible(WIDE.evolution(SIGMA)) == WIDE.evolution(SIGMA)
    assert 0 < NEGLIGIBLE < 0.05


def test_where_there_are_no_shortcuts() -> None:
    evolution = load_model("iad").evolution(SIGMA)
    assert shortcuts(evolution) is not None
    (term,) = evolution.terms(0)
    exchange = replace(term, derivatives=ExchangeWithNeighbours())
    assert shortcuts(replace(evolution, schedule=((exchange,),))) is None
    isotropic = replace(term.coupling, kind="trace")
    second = replace(term, derivatives=HigherDerivatives(2), coupling=isotropic)
    assert shortcuts(replace(evolution, schedule=((term, second),))) is None
    assert shortcuts(replace(evolution, schedule=((second,),))) is None
    coarse = ScaleGrid(count=2, smallest=5.0, largest=9.0)
    assert shortcuts(replace(WIDE, scales=coarse).evolution(SIGMA)) is None


@needs_native
@pytest.mark.parametrize("middle", [(0.0, 0.5), (0.0, 0.0), (0.3, 0.2)])
def test_steps_without_a_flow_at_fine_scales(middle: tuple[float, float]) -> None:
    """Nothing is left in them from earlier steps and images."""

    def terms(*flux_weights: float) -> tuple[Term, ...]:
        coupling = Coupling(weights=(1.0, 1.0))
        diffusivity = Exponential(contrasts=(5.0, 5.0))
        return (Term(coupling=coupling, flux_weights=flux_weights, diffusivity=diffusivity),)

    schedule = (terms(0.3, 0.2), terms(*middle), terms(0.3, 0.2))
    process = Evolution(scales=(0.5, 5.0), tau=0.3, steps=3, schedule=schedule)
    assert shortcuts(process) is not None
    image = np.random.default_rng(0).normal(100, 30, (1, 96, 70)).astype(np.float32)
    expected = ENGINES["numpy"].evolve(image, process)
    one = NATIVE.prepare(process, threads=1)
    np.testing.assert_allclose(one(image), expected, rtol=0, atol=0.05)
    one(3 * image)
    np.testing.assert_allclose(one(image), expected, rtol=0, atol=0.05)
    np.testing.assert_array_equal(NATIVE.prepare(process, threads=3)(image), one(image))
