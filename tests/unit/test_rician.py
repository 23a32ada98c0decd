"""Rician noise: the transform against the distribution of SciPy, and denoising of magnitudes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import nibabel
import numpy as np
import pytest
from command_line import run
from numpy.typing import NDArray
from scipy.stats import rice

from integrodiff import Denoiser, NoiseLevelWarning, denoise
from integrodiff.arrays import array_image
from integrodiff.noise.rice import Rician, level_of, transform, unbiased_inverse

SETTINGS: dict[str, Any] = {"data_range": 120, "engine": "numpy"}


def clean(slices: int = 1) -> NDArray[np.float64]:
    """Return a phantom in air."""
    z, y, x = np.mgrid[:slices, -32:32, -32:32]
    head = np.hypot(y / 25, x / 20) < 1
    return np.asarray(60.0 * head + 60 * (np.hypot(y - 6, x - z) < 9))


def magnitudes(signal: NDArray[np.float64], sigma: Any, seed: int = 0) -> NDArray[np.float64]:
    rng = np.random.default_rng(seed)
    parts = sigma * rng.normal(size=(2, *signal.shape))
    return np.asarray(np.hypot(signal + parts[0], parts[1]))


def psnr(image: NDArray[Any], expected: NDArray[np.float64]) -> float:
    return float(10 * np.log10(120**2 / np.mean((image - expected) ** 2)))


@pytest.mark.parametrize("signal", [0, 0.2, 0.7, 1.3, 2.1, 3.4, 7, 11.4, 11.6, 14, 16, 25])
def test_transform_and_inverse_against_the_distribution(signal: float) -> None:
    """By the quantiles of SciPy's Rice distribution, evenly spaced in probability."""
    quantiles = rice.ppf((np.arange(4_000) + 0.5) / 4_000, signal)
    stabilised = transform(quantiles)
    assert stabilised.std() == pytest.approx(1, abs=0.07 if signal < 3 else 0.015)
    found = unbiased_inverse(np.array([stabilised.mean()]))[0]
    assert found == pytest.approx(signal, abs=0.02 if signal < 0.5 else 3e-3)


def test_transform_increases_and_joins_its_limit() -> None:
    values = np.linspace(0, 40, 20_000)
    steps = np.diff(transform(values)) / np.diff(values)
    assert steps.min() > 0.5
    assert np.abs(steps[values[1:] > 8] - 1).max() < 0.02
    means = np.linspace(-3, 40, 20_000)
    signals = unbiased_inverse(means)
    assert signals[0] == 0
    assert np.diff(signals).min() >= 0
    assert np.diff(signals)[means[1:] > 8].max() < 1.2 * (means[1] - means[0])


@pytest.mark.parametrize("signal", [0.0, 2.0, 4.0, 10.0, 20.0])
def test_level_of_flat_parts(signal: float) -> None:
    mean, deviation = float(rice.mean(signal)), float(rice.std(signal))
    assert level_of(7 * mean, 7 * deviation) == pytest.approx(7, rel=5e-3)


def test_zero_unit_and_dtype() -> None:
    values = np.array([[-5.0, 3.0, 30.0, 300.0]], np.float32)
    noise = Rician(sigma=4, zero=3)
    stabilised = noise.stabilise(values)
    assert stabilised.dtype == noise.restore(stabilised).dtype == np.float32
    assert stabilised[0, 0] == stabilised[0, 1]
    np.testing.assert_allclose(
        10 * stabilised, Rician(sigma=40, zero=30).stabilise(10 * values), rtol=1e-6
    )
    np.testing.assert_array_equal(Rician(sigma=0).stabilise(values), values)


@pytest.mark.slow
@pytest.mark.parametrize("sigma", [8, 25])
def test_magnitudes_are_denoised_better_and_without_bias(sigma: float) -> None:
    noisy = magnitudes(clean(), sigma)[0]
    gaussian = denoise(noisy, sigma, **SETTINGS)
    rician = denoise(noisy, sigma, noise="rician", **SETTINGS)
    expected = clean()[0]
    assert psnr(rician, expected) > psnr(gaussian, expected) + 4
    air = expected == 0
    assert gaussian[air].mean() > sigma
    assert rician[air].mean() < 0.4 * sigma
    assert rician[expected == 60].mean() == pytest.approx(60, rel=0.05)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:the estimated noise level")  # in so small an image
@pytest.mark.parametrize("sigma", [5, 20])
def test_level_is_estimated(sigma: float) -> None:
    noisy = magnitudes(clean(), sigma)[0]
    resolved = Denoiser(noise="rician").pipeline(array_image(noisy)).resolved
    (channel,) = resolved.channels
    assert channel.sigmas[0] == pytest.approx(sigma, rel=0.1)
    assert "Rician noise (estimated)" in resolved.noise
    expected = clean()[0]
    known = denoise(noisy, sigma, noise="rician", engine="numpy")
    estimated = denoise(noisy, noise="rician", engine="numpy")
    assert psnr(estimated, expected) > psnr(known, expected) - 2


@pytest.mark.slow
def test_volumes_and_maps() -> None:
    """A map of equal levels is the level; one for all slices is the same for each."""
    signal = clean(4)
    noisy = magnitudes(signal, 15)
    arguments: dict[str, Any] = {"axes": "ZYX", "noise": "rician", **SETTINGS}
    volume = denoise(noisy, 15, **arguments)
    assert psnr(volume, signal) > psnr(denoise(noisy, 15, axes="ZYX", **SETTINGS), signal) + 4
    for shape in (signal.shape, signal.shape[1:]):
        np.testing.assert_allclose(denoise(noisy, np.full(shape, 15.0), **arguments), volume)
    levels = np.broadcast_to(np.linspace(5, 30, 64), (64, 64))
    noisy = magnitudes(clean(), levels)
    gaussian = denoise(noisy[0], np.array(levels), **SETTINGS)
    rician = denoise(noisy[0], np.array(levels), noise="rician", **SETTINGS)
    assert psnr(rician, clean()[0]) > psnr(gaussian, clean()[0]) + 4


@pytest.mark.slow
def test_invalid_pixels_and_steps() -> None:
    noisy = magnitudes(clean(), 15)[0]
    noisy[:20, :20] = np.nan
    images = []
    result = denoise(
        noisy, 15, noise="rician", callback=lambda step: images.append(step.image()), **SETTINGS
    )
    np.testing.assert_array_equal(np.isnan(result), np.isnan(noisy))
    np.testing.assert_allclose(images[-1][20:], result[20:], rtol=1e-6)


def test_refused_and_warned() -> None:
    with pytest.raises(ValueError, match="one value at each pixel; this image has 3"):
        denoise(np.ones((20, 20, 3)), 1, noise="rician", channel_axis=-1)
    noisy = magnitudes(clean(), 10)[0]
    noisy[0, 0] = -4
    with pytest.warns(NoiseLevelWarning, match="values down to -4"):
        denoise(noisy, 10, noise="rician", **SETTINGS)


@pytest.mark.slow
def test_command_line_and_units_of_files(tmp_path: Path) -> None:
    """The scale of a NIfTI file: zero of the magnitude is no stored zero."""
    signal = clean(4)
    noisy = np.round(10 * magnitudes(signal, 15)).astype(np.int16) - np.int16(500)
    image = nibabel.Nifti1Image(noisy.T, np.eye(4), dtype="int16")
    image.header.set_slope_inter(0.1, 50)
    nibabel.save(image, tmp_path / "in.nii")
    names = tmp_path / "in.nii", tmp_path / "out.nii"
    words = ("--noise", "rician", "--sigma", 15, "--data-range", 120, "--engine", "numpy")
    result = run("denoise", *names, *words)
    assert result.exit_code == 0, result.stderr
    assert "sigma 15, Rician noise" in " ".join(result.stderr.split())
    loaded: Any = nibabel.load(names[1])
    found = loaded.get_fdata().T
    expected = denoise(noisy / 10 + 50, 15, axes="ZYX", noise="rician", **SETTINGS)
    np.testing.assert_allclose(found, expected, atol=0.06)


def test_blank_slices_do_not_count() -> None:
    noisy = magnitudes(clean(2), 10)
    stack = np.concatenate([np.zeros((3, *noisy.shape[1:])), noisy])
    levels = []
    for image in (stack, noisy):
        source = array_image(image, axes="QYX")
        (found,) = Denoiser(noise="rician").pipeline(source).resolved.channels
        assert found.rice is not None
        levels.append(found.rice.sigma)
    assert levels[0] == levels[1] > 5
