"""The discrete Gaussian and its cascade."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from cases import dense_matrix, images
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray
from scipy.fft import dctn, idctn

from integrodiff.stages import blur, cascade, cascade_adjoint, discrete_gaussian, scale_space
from integrodiff.stages.reflection import Grid
from integrodiff.stages.scale_space import shifted_sum, smooth_along

scales = st.floats(0, 8)


def smooth(image: NDArray[np.float64], scale: float) -> NDArray[np.float64]:
    result: NDArray[np.float64] = blur(image[None], scale)[0]
    return result


@given(scales)
def test_taps_are_positive_decreasing_and_sum_to_one(scale: float) -> None:
    taps = np.array(discrete_gaussian(scale))
    assert (taps > 0).all()
    assert (np.diff(taps) < 0).all()
    assert taps[0] + 2 * taps[1:].sum() == pytest.approx(1, abs=1e-15)


@given(st.floats(0, 8))
def test_taps_have_the_variance_of_the_scale(scale: float) -> None:
    taps = np.array(discrete_gaussian(scale))
    variance = 2 * np.sum(np.arange(len(taps)) ** 2 * taps)
    assert variance == pytest.approx(scale**2, abs=1e-10)


@pytest.mark.parametrize("scale", [-1.0, float("nan"), float("inf")])
def test_impossible_scales_are_refused(scale: float) -> None:
    with pytest.raises(ValueError, match="finite and nonnegative"):
        discrete_gaussian(scale)


@given(images(), scales)
def test_mean_is_preserved(image: NDArray[np.float64], scale: float) -> None:
    assert smooth(image, scale).mean() == pytest.approx(image.mean(), abs=1e-10)


@given(images(), scales)
def test_values_stay_in_their_range(image: NDArray[np.float64], scale: float) -> None:
    result = smooth(image, scale)
    assert result.min() >= image.min() - 1e-10
    assert result.max() <= image.max() + 1e-10


@given(st.tuples(st.integers(1, 6), st.integers(1, 6)), scales)
def test_blur_is_self_adjoint_and_positive(shape: tuple[int, int], scale: float) -> None:
    matrix = dense_matrix(lambda units: blur(units, scale), shape)
    np.testing.assert_allclose(matrix, matrix.T, atol=1e-14)
    assert (matrix >= 0).all()
    np.testing.assert_allclose(matrix.sum(axis=0), 1, atol=1e-13)


@given(images(), st.floats(0, 5), st.floats(0, 5))
def test_blurs_are_a_semigroup(image: NDArray[np.float64], first: float, second: float) -> None:
    in_turn = smooth(smooth(image, first), second)
    at_once = smooth(image, float(np.hypot(first, second)))
    np.testing.assert_allclose(in_turn, at_once, atol=1e-10)


@given(images(), scales)
def test_blur_is_diagonal_under_the_dct(image: NDArray[np.float64], scale: float) -> None:
    cosine_y, cosine_x = (np.cos(np.pi * np.arange(n) / n) for n in image.shape)
    symbol = np.exp(scale**2 * (cosine_x[None, :] + cosine_y[:, None] - 2))
    expected = idctn(symbol * dctn(image, norm="ortho"), norm="ortho")
    np.testing.assert_allclose(smooth(image, scale), expected, atol=1e-10)


@given(images(smallest=2), st.lists(st.floats(0, 5), min_size=1, max_size=4))
def test_cascade_gives_every_scale(image: NDArray[np.float64], chosen: list[float]) -> None:
    for scale, smoothed in zip(sorted(chosen), cascade(image[None], sorted(chosen)), strict=True):
        np.testing.assert_allclose(smoothed[0], smooth(image, scale), atol=1e-10)


@given(st.integers(0, 2**32 - 1), st.lists(st.floats(0, 5), min_size=1, max_size=4))
def test_cascade_adjoint_is_the_adjoint(seed: int, chosen: list[float]) -> None:
    rng = np.random.default_rng(seed)
    increasing = sorted(chosen)
    image = rng.normal(size=(1, 5, 7))
    others = list(rng.normal(size=(len(increasing), 1, 5, 7)))
    left = sum(np.vdot(a, b) for a, b in zip(cascade(image, increasing), others, strict=True))
    right = np.vdot(image, cascade_adjoint(others, increasing))
    assert left == pytest.approx(right, abs=1e-10)


def test_scale_zero_is_the_identity() -> None:
    image = np.random.default_rng(0).normal(size=(1, 4, 5))
    np.testing.assert_array_equal(blur(image, 0.0), image)


def test_decreasing_scales_are_refused() -> None:
    with pytest.raises(ValueError, match="must not decrease"):
        cascade(np.zeros((1, 3, 3)), [2.0, 1.0])


@pytest.mark.parametrize("grid", ["pixels", "cells"])
@pytest.mark.parametrize("sign", [1, -1])
@pytest.mark.parametrize("axis", [-2, -1])
@given(st.integers(2, 40), scales)
def test_matrix_and_shifted_sums_agree(
    grid: Grid, sign: int, axis: int, size: int, scale: float
) -> None:
    """Short axes are smoothed by a matrix, long ones by shifted sums: the same operator."""
    shape = (1, size, 3) if axis == -2 else (1, 3, size)
    image = np.random.default_rng(size).normal(100, 50, shape)
    taps = discrete_gaussian(scale)
    by_sums = shifted_sum(image, taps, axis, grid=grid, sign=sign)
    by_matrix = smooth_along(image, taps, axis, grid=grid, sign=sign)
    np.testing.assert_allclose(by_matrix, by_sums, atol=1e-11)


def test_long_axes_take_shifted_sums(monkeypatch: pytest.MonkeyPatch) -> None:
    image = np.random.default_rng(0).normal(100, 50, (1, 20, 30))
    expected = blur(image, 2.0)
    monkeypatch.setattr(scale_space, "_LONGEST_MATRIX", 25)
    monkeypatch.setattr(scale_space, "_blur_matrix", only_of_size(20, scale_space._blur_matrix))
    np.testing.assert_allclose(blur(image, 2.0), expected, atol=1e-11)


def only_of_size(allowed: int, build: Callable[..., Any]) -> Callable[..., Any]:
    def guarded(size: int, taps: tuple[float, ...]) -> Any:
        assert size == allowed
        return build(size, taps)

    return guarded


@pytest.mark.slow
@given(images(smallest=2), st.floats(0.1, 4))
def test_derivative_with_respect_to_the_scale(image: NDArray[np.float64], scale: float) -> None:
    torch = pytest.importorskip("torch")
    tensor, width = torch.tensor(image[None]), torch.tensor(scale, dtype=torch.float64)
    _, tangent = torch.func.jvp(lambda s: blur(tensor, s), (width,), (torch.ones_like(width),))
    step = 1e-4
    expected = (smooth(image, scale + step) - smooth(image, scale - step)) / (2 * step)
    np.testing.assert_allclose(tangent.numpy()[0], expected, atol=1e-3)
