"""The generalised Anscombe transform against numerical integration and simulation."""

from __future__ import annotations

import math
import warnings
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from scipy.integrate import quad
from scipy.stats import poisson

from integrodiff import NoiseLevelWarning, PoissonGaussian, denoise
from integrodiff.noise.photons import expected_transform, unbiased_inverse

SIGMAS = [0.0, 0.05, 0.5, 1.0, 4.0, 30.0]


def transform(value: float, sigma: float) -> float:
    return 2 * math.sqrt(max(value + 3 / 8 + sigma**2, 0))


def gaussian_mean(photons: int, sigma: float) -> float:
    if sigma == 0:
        return transform(photons, 0)

    def integrand(n: float) -> float:
        return transform(photons + sigma * n, sigma) * math.exp(-n * n / 2) / math.sqrt(2 * math.pi)

    # The kink of the root, where there is one, is an end of the interval.
    kink = -(photons + 3 / 8 + sigma**2) / sigma
    return float(quad(integrand, max(kink, -9.0), 9.0, epsabs=1e-11)[0])


def mean_by_quadrature(count: float, sigma: float) -> float:
    """The mean of the transform from its definition, by adaptive integration over the noise."""
    most = int(poisson.isf(1e-13, count)) if count else 0
    return sum(
        float(poisson.pmf(photons, count)) * gaussian_mean(photons, sigma)
        for photons in range(most + 1)
    )


@pytest.mark.slow
@pytest.mark.parametrize("sigma", SIGMAS)
@pytest.mark.parametrize("count", [0.0, 0.03, 0.7, 3.0, 21.0])
def test_inverse_against_numerical_integration(count: float, sigma: float) -> None:
    mean = mean_by_quadrature(count, sigma)
    found = unbiased_inverse(np.array([mean]), sigma)[0]
    assert found == pytest.approx(count, rel=1e-5, abs=1e-6)


@pytest.mark.slow
@pytest.mark.parametrize("sigma", SIGMAS)
def test_inverse_is_continuous_where_the_table_ends(sigma: float) -> None:
    counts = np.array([380.0, 399.9, 400.1, 450.0, 3000.0])
    np.testing.assert_allclose(
        unbiased_inverse(expected_transform(counts, sigma), sigma), counts, rtol=2e-6
    )


@pytest.mark.parametrize("sigma", SIGMAS)
def test_inverse_increases_from_zero(sigma: float) -> None:
    values = np.linspace(-3, 90, 20_000)
    counts = unbiased_inverse(values, sigma)
    assert counts[0] == pytest.approx(0, abs=1e-12)
    assert np.diff(counts).min() > -1e-4  # where the table ends, at 400 photons
    nothing = expected_transform(np.zeros(1), sigma)[0]
    assert unbiased_inverse(np.array([nothing]), sigma)[0] == pytest.approx(0, abs=1e-9)


@pytest.mark.parametrize(
    "detector", [PoissonGaussian(), PoissonGaussian(gain=3, offset=50, readout=4)]
)
def test_stabilised_noise_has_variance_one(detector: PoissonGaussian) -> None:
    rng = np.random.default_rng(0)
    for count in (5, 20, 200):
        counts = rng.poisson(count, 100_000)
        image = detector.gain * counts + detector.offset
        image = image + rng.normal(0, detector.readout, counts.shape)
        stabilised = detector.stabilise(image)
        assert stabilised.std() == pytest.approx(1, rel=0.06)
        restored = detector.restore(np.array([stabilised.mean()]))
        assert restored[0] == pytest.approx(detector.gain * count + detector.offset, rel=0.01)


def test_values_below_zero_and_precision() -> None:
    detector = PoissonGaussian(gain=2, offset=10)
    image = np.array([[-1e6, 0.0, 10.0, 1e6]], np.float32)
    stabilised = detector.stabilise(image)
    assert stabilised.dtype == np.float32
    assert detector.restore(stabilised).dtype == np.float32
    assert (stabilised[0, :2] == 0).all()
    np.testing.assert_array_equal(detector.restore(stabilised)[0, :2], 10)


@pytest.mark.slow
@pytest.mark.parametrize("peak", [1, 4, 10, 30, 120])
def test_photon_counts_are_denoised_better(peak: float, photograph: NDArray[np.float64]) -> None:
    clean = photograph / 255 * peak
    counts = np.random.default_rng(1).poisson(clean).astype(np.uint16)

    def psnr(image: NDArray[Any]) -> float:
        return float(10 * np.log10(peak**2 / np.mean((image - clean) ** 2)))

    stabilised = psnr(denoise(counts, noise="poisson", as_float=True))
    sigma = float(np.sqrt(counts.mean()))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", NoiseLevelWarning)
        plain = psnr(denoise(counts.astype(np.float64), sigma, data_range=peak))
    assert stabilised > plain + (0.2 if peak > 30 else 0.5)
    assert stabilised > psnr(counts) + 3


@pytest.mark.slow
def test_mean_is_kept_though_the_transform_is_curved(photograph: NDArray[np.float64]) -> None:
    counts = np.random.default_rng(1).poisson(photograph / 60)
    result = denoise(counts, noise="poisson", as_float=True)
    assert result.mean() == pytest.approx(counts.mean(), rel=0.03)
    halfway = (PoissonGaussian().stabilise(counts.astype(float)).mean() / 2) ** 2 - 3 / 8
    assert abs(result.mean() - counts.mean()) < 0.5 * abs(halfway - counts.mean())


@pytest.mark.slow
def test_detector_with_gain_is_the_same_in_other_units(photograph: NDArray[np.float64]) -> None:
    counts = np.random.default_rng(1).poisson(photograph / 8).astype(np.float64)
    plain = denoise(counts, noise="poisson")
    scaled = denoise(5 * counts + 300, noise=PoissonGaussian(gain=5, offset=300))
    np.testing.assert_allclose((scaled - 300) / 5, plain, atol=1e-8)


def test_data_range_and_callback(photograph: NDArray[np.float64]) -> None:
    counts = np.random.default_rng(1).poisson(photograph / 8).astype(np.float64)
    seen: list[NDArray[Any]] = []
    result = denoise(
        counts, noise="poisson", data_range=32, callback=lambda step: seen.append(step.image())
    )
    np.testing.assert_allclose(seen[-1], result)
    assert np.abs(result - denoise(counts, noise="poisson")).max() < 2


@pytest.mark.parametrize("value", [0, 3])
def test_constant_counts(value: int) -> None:
    image = np.full((6, 7), value, np.uint16)
    result = denoise(image, noise="poisson", as_float=True)
    assert np.ptp(result) < 1e-4
    assert result.dtype == np.float32


class TestRefused:
    @pytest.mark.parametrize(
        ("numbers", "error", "message"),
        [
            ({"gain": 0}, ValueError, "gain must be positive"),
            ({"gain": "high"}, TypeError, "gain must be a real number"),
            ({"offset": math.inf}, ValueError, "offset must be finite"),
            ({"readout": -1}, ValueError, "readout must not be negative"),
        ],
    )
    def test_detectors(self, numbers: Any, error: type[Exception], message: str) -> None:
        with pytest.raises(error, match=message):
            PoissonGaussian(**numbers)

    def test_sigma_with_photons(self) -> None:
        with pytest.raises(ValueError, match="sigma describes Gaussian noise"):
            denoise(np.ones((5, 5)), 3, noise="poisson")

    def test_unknown_noise(self) -> None:
        with pytest.raises(ValueError, match="noise must be one of 'gaussian', 'poisson'"):
            denoise(np.ones((5, 5)), 3, noise="salt")  # type: ignore[arg-type]
