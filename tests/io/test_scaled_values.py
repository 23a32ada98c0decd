"""Files whose values stand for others: noise levels are in the unit that other programs show."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import nibabel
import numpy as np
import pytest
from command_line import run
from numpy.typing import NDArray

from integrodiff import PoissonGaussian, UnknownDetector, denoise
from integrodiff.cli._noise import NoiseOptions
from integrodiff.io import read_image
from integrodiff.models import load_model
from integrodiff.request import Request
from integrodiff.units import GreyUnits

SLOPE, INTERCEPT = 0.25, 30.0
STORED: NDArray[np.int16] = (
    400 + np.random.default_rng(0).normal(0, 20, (40, 50)) + 5 * np.arange(50)
).astype(np.int16)
SETTINGS: dict[str, Any] = {"model": "pm", "engine": "numpy"}
OPTIONS = ("--model", "pm", "--engine", "numpy", "--quiet")


@pytest.fixture
def scan(tmp_path: Path) -> Path:
    image: Any = nibabel.Nifti1Image(STORED.T[..., None], np.eye(4))
    image.header.set_slope_inter(SLOPE, INTERCEPT)
    nibabel.save(image, tmp_path / "in.nii")
    assert np.array_equal(read_image(tmp_path / "in.nii").pixels, STORED)
    assert read_image(tmp_path / "in.nii").units == (SLOPE, INTERCEPT)
    return tmp_path / "in.nii"


def result(scan: Path, *options: object) -> NDArray[Any]:
    target = scan.with_name("out.nii")
    done = run("denoise", scan, target, *OPTIONS, "--overwrite", *options)
    assert done.exit_code == 0, done.stderr
    stored: Any = nibabel.load(target).dataobj  # type: ignore[attr-defined]
    assert (stored.slope, stored.inter) == (SLOPE, INTERCEPT)
    return read_image(target).pixels


@pytest.mark.slow
def test_levels_are_those_of_scaled_values(scan: Path) -> None:
    expected = denoise(STORED, 20, **SETTINGS)
    assert not np.array_equal(expected, denoise(STORED, 5, **SETTINGS))
    assert np.array_equal(result(scan, "--sigma", 20 * SLOPE), expected)
    per_scale = denoise(STORED, {0.5: 10.0, 2: 24.0}, **SETTINGS)
    assert np.array_equal(result(scan, "--sigma", "0.5:2.5,2:6"), per_scale)
    in_range = denoise(STORED, 20, data_range=800, **SETTINGS)
    assert np.array_equal(result(scan, "--sigma", 5, "--data-range", 200), in_range)


@pytest.mark.slow
def test_maps_spectra_and_detectors(scan: Path) -> None:
    levels = np.full(STORED.shape, 16.0)
    levels[:, 20:] = 24.0
    np.save(scan.with_name("map.npy"), levels * SLOPE)
    expected = denoise(STORED, levels, **SETTINGS)
    assert np.array_equal(result(scan, "--sigma-map", scan.with_name("map.npy")), expected)
    spectrum = np.full(STORED.shape, 400.0 * STORED.size)
    np.save(scan.with_name("psd.npy"), spectrum * SLOPE**2)
    expected = denoise(STORED, noise_psd=spectrum, **SETTINGS)
    assert np.array_equal(result(scan, "--noise-psd", scan.with_name("psd.npy")), expected)
    detector = PoissonGaussian(gain=1, offset=80, readout=8)
    expected = denoise(STORED, noise=detector, **SETTINGS)
    given = ("--gain", SLOPE, "--offset", 80 * SLOPE + INTERCEPT, "--readout", 8 * SLOPE)
    assert np.array_equal(result(scan, "--noise", "poisson-gaussian", *given), expected)


def test_estimate_is_reported_in_the_unit_of_the_file(scan: Path) -> None:
    report = scan.with_name("report.json")
    result(scan, "--json", report)
    (found,) = json.loads(report.read_text())["files"]
    assert found["noise"]["sigma"][0] == pytest.approx(20 * SLOPE, rel=0.2)


def test_photons_need_a_positive_slope() -> None:
    model = load_model("pm")
    request = Request(model=model, noise="poisson").stored(GreyUnits(2.0, 10.0))
    assert request.noise == PoissonGaussian(gain=0.5, offset=-5)
    unknown = Request(model=model, noise=UnknownDetector(offset=30)).stored(GreyUnits(2.0, 10.0))
    assert unknown.noise == UnknownDetector(offset=10)
    assert Request(model=model, sigma=6).stored(GreyUnits(-2.0, 10.0)).sigma == 3
    with pytest.raises(ValueError, match="grow with the light"):
        Request(model=model, noise="poisson").stored(GreyUnits(-2.0, 10.0))


@pytest.mark.parametrize("option", ["sigma_map", "noise_psd"])
def test_maps_and_spectra_may_be_scaled_themselves(tmp_path: Path, option: str) -> None:
    image: Any = nibabel.Nifti1Image(np.full((8, 8, 1), 1000, np.int16), np.eye(4))
    image.header.set_slope_inter(0.01, 0)
    nibabel.save(image, tmp_path / "map.nii")
    options: dict[str, Any] = {option: str(tmp_path / "map.nii")}
    (found,) = (
        value for value in NoiseOptions(**options).arguments().values() if np.ndim(value) == 2
    )
    np.testing.assert_allclose(found, 10, rtol=1e-6)
