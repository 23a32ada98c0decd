"""The stable step size: sharp at all scales, and kept by what the compiled engine computes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest
from numpy.typing import NDArray

from integrodiff import IAD, FullLaw, ScaleGrid, load_model
from integrodiff.engines import ENGINES
from integrodiff.engines.certificate import cut_blurs, fused_blurs, stable_step_with_shortcuts
from integrodiff.engines.native import NativeProcess
from integrodiff.engines.shortcuts import every_second_tap, half_sample_gaussian, shortcuts
from integrodiff.models import CompactDiffusion, PowerLaws
from integrodiff.stages import (
    Coupling,
    Evolution,
    Exponential,
    HaarGradient,
    Term,
    discrete_gaussian,
    stability,
    stable_step,
)
from integrodiff.stages.stability import BlurBound, _bound_by_boxes, _Share, _shares
from integrodiff.stages.symbols import HigherSymbol, Interval, LinearSymbol, Values

NATIVE = ENGINES["native"]
needs_native = pytest.mark.skipif(
    NATIVE.unavailable() is not None, reason=str(NATIVE.unavailable())
)


def first_order(scales: tuple[float, ...], weights: tuple[float, ...]) -> Evolution:
    term = Term(
        derivatives=HaarGradient(0.25),
        coupling=Coupling(weights=weights),
        diffusivity=Exponential(contrasts=(1.0,) * len(scales)),
        flux_weights=weights,
    )
    return Evolution(scales=scales, schedule=((term,),), tau=1.0, steps=1)


def largest_sample(scales: tuple[float, ...], weights: tuple[float, ...]) -> float:
    """Return the largest eigenvalue at very many frequencies along one axis, and beyond."""
    p = np.concatenate([np.geomspace(1e-9, 2, 400_001), [2.0]])
    along_axis = sum(
        w * np.exp(-2 * s**2 * p) * 2 * p for s, w in zip(scales, weights, strict=True)
    )
    q = np.linspace(0, 2, 20_001)
    beyond = sum(
        w * np.exp(-2 * s**2 * (2 + q)) * (2 * (2 + q) - 2 * q)
        for s, w in zip(scales, weights, strict=True)
    )
    return float(max(np.max(along_axis), np.max(beyond)))


@pytest.mark.slow
@pytest.mark.parametrize("largest", [1.0, 7.0, 50.0, 100.0, 300.0, 1000.0])
def test_the_bound_is_sharp_at_all_scales(largest: float) -> None:
    rng = np.random.default_rng(int(largest))
    for count in (1, 2, 8):
        scales = tuple(np.geomspace(largest / 20, largest, count)) if count > 1 else (largest,)
        for weights in (tuple(rng.uniform(0.1, 1, count)), (0.0,) * (count - 1) + (1.0,)):
            sharp = 2 / largest_sample(scales, weights)
            found = stable_step(first_order(scales, weights))
            assert found <= sharp * (1 + 1e-9)
            assert found >= sharp * (1 - 1e-4)


def test_steps_with_numbers_of_their_own() -> None:
    """The bound of a schedule is the smallest of those of its entries."""
    rng = np.random.default_rng(0)
    scales = (0.5, 2.0, 20.0)
    entries = [first_order(scales, tuple(rng.uniform(0, 1, 3))) for _ in range(5)]
    joint = replace(entries[0], schedule=tuple(e.schedule[0] for e in entries), steps=5)
    assert stable_step(joint) == pytest.approx(min(map(stable_step, entries)), rel=1e-12)
    shape = (20, 30)
    expected = min(stable_step(entry, shape) for entry in entries)
    assert stable_step(joint, shape) == pytest.approx(expected, rel=1e-12)
    assert stable_step(joint) <= stable_step(joint, shape)


def random_laws(count: int, seed: int) -> list[IAD]:
    """Return models with random scales and weights, linear, at their exact bound."""
    rng = np.random.default_rng(seed)
    models = []
    for _ in range(count):
        n = int(rng.integers(2, 10))
        grid = ScaleGrid(
            count=n,
            smallest=float(rng.uniform(0.1, 1)),
            largest=float(rng.uniform(2, 12)),
            quadrature=str(rng.choice(["gradient", "variance", "none"])),  # type: ignore[arg-type]
        )
        gammas = tuple((10 ** rng.uniform(-1, 0.5, n)).tolist())
        theta = float(rng.choice([0.0, 0.15, 0.25, 0.5]))
        law = FullLaw(gammas=gammas, lambdas=(1e6,) * n)
        model = IAD(law=law, tau=1.0, scales=grid, steps=1, theta=theta)
        models.append(replace(model, tau=model.stable_step(25.0)))
    return models


def one_step(process: NativeProcess, shape: tuple[int, int]) -> NDArray[np.float64]:
    """Return the matrix of minus the right-hand side times the step size."""
    size = shape[0] * shape[1]
    basis = np.eye(size).reshape(size, 1, *shape)
    matrix: NDArray[np.float64] = np.eye(size) - process(basis).reshape(size, size)
    return matrix


@pytest.mark.slow
@needs_native
def test_no_eigenvalue_beyond_two_with_shortcuts() -> None:
    """Of one step with D = I, for which the bound without shortcuts is sharp."""
    shapes = [(12, 12), (1, 120), (9, 14), (97, 2), (13, 13), (3, 60)]
    largest = []
    for k, model in enumerate(random_laws(60, seed=5)):
        process = NativeProcess(model.evolution(25.0), exact=False, threads=1)
        matrix = one_step(process, shapes[k % len(shapes)])
        assert np.abs(matrix - matrix.T).max() < 1e-9
        eigenvalues = np.linalg.eigvalsh(matrix)
        assert eigenvalues[0] > -1e-9
        assert eigenvalues[-1] <= 2 + 1e-9
        largest.append(eigenvalues[-1])
    assert max(largest) > 1.99


@pytest.mark.slow
@needs_native
def test_the_step_shrinks_by_a_few_thousandths_at_most() -> None:
    for model in random_laws(30, seed=6):
        evolution = model.evolution(25.0)
        process = NativeProcess(evolution, exact=False, threads=1)
        assert 1 - 0.01 < process.evolution.tau / evolution.tau <= 1
        exact = NativeProcess(evolution, exact=True, threads=1)
        assert exact.evolution.tau == evolution.tau


@needs_native
def test_cut_kernels_of_higher_orders() -> None:
    law = PowerLaws(
        strengths=(1.0, 0.1),
        exponents=(0.0, 0.0),
        decays=(0.05, 0.05),
        contrasts=(1e6, 1e6),
        contrast_exponents=(0.0, 0.0),
    )
    model = CompactDiffusion(law=law, tau=100.0, steps=1)
    process = NativeProcess(model.evolution(25.0), exact=False, threads=1)
    assert shortcuts(model.evolution(25.0)) is None
    assert np.linalg.eigvalsh(one_step(process, (12, 11)))[-1] <= 2 + 1e-9


def test_bounds_of_blurs_hold_between_the_samples() -> None:
    rng = np.random.default_rng(0)
    frequencies = np.concatenate([rng.uniform(0, np.pi, 20_000), np.geomspace(1e-6, 0.1, 1000)])
    p = 1 - np.cos(frequencies)
    kernels = tuple(discrete_gaussian(width, 2e-4) for width in (0.1, 0.7, 1.6, 2.5))
    eigenvalue = np.ones_like(p)
    for taps, bound in zip(kernels, cut_blurs(kernels), strict=True):
        distances = np.arange(1, len(taps))
        symbol = taps[0] + 2 * np.cos(np.outer(frequencies, distances)) @ np.array(taps[1:])
        eigenvalue = eigenvalue * symbol
        upper = bound.gain * np.exp(-bound.decay * p) + bound.floor
        assert (eigenvalue**2 <= upper + 1e-15).all()
        assert (upper <= eigenvalue**2 + 5e-3).all()
    found = shortcuts(load_model("iad").evolution(25.0))
    assert found is not None
    sampling = np.array(half_sample_gaussian(6.0))
    assert np.allclose(found.sampling, sampling)
    coarse = fused_blurs(found)[len(found.fine) :]
    s = 2 * np.cos(np.outer(frequencies, np.arange(len(sampling)) + 0.5)) @ sampling
    blur = np.array(every_second_tap(found.evolution.scales[len(found.fine)] ** 2 - 6.0))
    c = blur[0] + 2 * np.cos(np.outer(2 * frequencies, np.arange(1, len(blur)))) @ blur[1:]
    t = (
        2
        * np.cos(np.outer(frequencies, np.arange(len(found.interpolation)) + 0.5))
        @ np.array(found.interpolation)
    )
    upper = coarse[0].gain * np.exp(-coarse[0].decay * p) + coarse[0].floor
    assert ((s * c * t / 2) ** 2 <= upper).all()


def test_a_bound_for_a_process_is_computed_once() -> None:
    evolution = load_model("iad").evolution(33.0)
    first = stable_step_with_shortcuts(evolution, None)
    before = stable_step_with_shortcuts.cache_info().hits
    assert stable_step_with_shortcuts(evolution, None) == first
    assert stable_step_with_shortcuts.cache_info().hits == before + 1


class CountedSymbol(HigherSymbol):
    """Derivatives of one order, with a count of the boxes in which they were bounded."""

    boxes = 0

    def upper_bound(self, p: Interval, q: Interval) -> Values:
        CountedSymbol.boxes += p[0].size
        return super().upper_bound(p, q)


def random_shares(rng: np.random.Generator) -> tuple[list[_Share], Values]:
    """Return symbols of several orders at several scales, and weights of several steps.

    Scales alike in size give the sum several maxima that are nearly the same.
    """
    count, rows = int(rng.integers(2, 9)), int(rng.integers(1, 13))
    orders, scales = rng.integers(2, 5, count), 10 ** rng.uniform(-1, 0.5, count)
    shares = [
        _Share(2 * scale**2, HigherSymbol(int(order)))
        for order, scale in zip(orders, scales, strict=True)
    ]
    shares.append(_Share(2 * float(rng.uniform(0, 2)) ** 2, LinearSymbol(2.0, 1.0)))
    each = np.array([float(share.upper_bound(*_GRID).max()) for share in shares])
    return shares, 10 ** rng.uniform(-2, 0, (rows, len(shares))) / each


_EDGES = np.concatenate([[0.0], np.geomspace(1e-3, 2, 150)])
_LOW = np.meshgrid(_EDGES, _EDGES)
_GRID: tuple[Interval, Interval] = ((_LOW[0], _LOW[0]), (_LOW[1], _LOW[1]))


def largest_on_grid(shares: Sequence[_Share], weights: Values) -> float:
    """Return the largest sum at many frequencies, a lower bound of the maximum."""
    values = np.stack([share.value(*_LOW).ravel() for share in shares])
    return float((weights @ values).max())


@pytest.mark.parametrize("seed", range(12))
def test_the_bound_by_boxes_is_one(seed: int) -> None:
    """It is no less than any value of S, also where the search is cut off."""
    shares, weights = random_shares(np.random.default_rng(seed))
    attained = largest_on_grid(shares, weights)
    bound = _bound_by_boxes(shares, weights)
    assert attained <= bound.largest * (1 + 1e-12)
    assert bound.largest == pytest.approx((weights @ bound.shares).max(), rel=1e-12)


@pytest.mark.slow
@pytest.mark.parametrize("products", [0, 2**20, 2**22])
def test_a_search_that_is_cut_off_bounds_as_well(
    products: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stability, "_MOST_PRODUCTS", products)
    for seed in range(8):
        shares, weights = random_shares(np.random.default_rng(seed))
        shares[0] = _Share(shares[0].decay, CountedSymbol(4 - seed % 2))
        CountedSymbol.boxes = 0
        bound = _bound_by_boxes(shares, weights)
        assert largest_on_grid(shares, weights) <= bound.largest * (1 + 1e-12)
        boxes = CountedSymbol.boxes - 1  # one for the shares that are returned
        of_box = len(shares) * (len(weights) + 10)
        assert boxes * of_box <= max(products, 2080 * of_box)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["iad-plus", "iad-deep", "iad-orders"])
def test_the_bound_of_shipped_models_is_one(name: str) -> None:
    """At noise levels where several frequencies have nearly the largest eigenvalue."""
    for sigma in (3.0, 10.0, 25.0, 70.0):
        evolution = load_model(name).evolution(sigma)
        blurs = [BlurBound(2 * float(scale) ** 2) for scale in evolution.scales]
        shares, weights, rest = _shares(evolution, blurs)
        attained = largest_on_grid(shares, weights) + rest
        assert stable_step(evolution) * attained <= 2 * (1 + 1e-12)
        assert stable_step(evolution) * attained >= 2 * (1 - 0.01)


@pytest.mark.slow
def test_few_boxes_are_enough() -> None:
    """A search that forgot the largest value found went on where S is smaller."""
    evolution = load_model("iad-orders").evolution(70.0)
    blurs = [BlurBound(2 * float(scale) ** 2) for scale in evolution.scales]
    shares, weights, _ = _shares(evolution, blurs)
    second = next(share for share in shares if share.symbol == HigherSymbol(2))
    counted = [
        share._replace(symbol=CountedSymbol(2)) if share is second else share for share in shares
    ]
    CountedSymbol.boxes = 0
    assert _bound_by_boxes(counted, weights).largest == _bound_by_boxes(shares, weights).largest
    assert CountedSymbol.boxes <= 20_000
