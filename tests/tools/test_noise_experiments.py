"""The experiments on noise levels, photons and colours, on images made here."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray
from PIL import Image as Pictures
from selection import some

import colour_channels
import noise_level
import noise_map
import photon_noise
import rician_noise
import unknown_noise
import varying_noise
from integrodiff import PoissonGaussian
from integrodiff.viz.metrics import psnr
from peers import Results


@pytest.fixture
def clean() -> NDArray[np.float32]:
    """A disc on a ramp."""
    y, x = np.mgrid[:170, :170]
    return np.array(60 + x / 3 + 90 * ((y - 80) ** 2 + (x - 70) ** 2 < 2000), np.float32)


def test_rician_table() -> None:
    signal = rician_noise.phantom(1, 64)
    assert {0, 60, 120} <= set(np.unique(signal).tolist())
    noisy, gaussian, rician, _, level = map(float, rician_noise.row(signal[0], 10, "YX"))
    assert noisy < gaussian < rician
    assert level == pytest.approx(10, rel=0.15)


@pytest.mark.parametrize("name", noise_level.ESTIMATORS)
def test_estimators_are_right_where_it_is_easy(name: str, clean: NDArray[np.float32]) -> None:
    if name == "scikit-image":
        pytest.importorskip("pywt")
    error = noise_level.errors(noise_level.ESTIMATORS[name], [clean, clean[::-1]], 25)
    assert abs(error["bias"]) < 8
    assert error["largest"] >= abs(error["bias"])


def test_noise_levels_are_measured_once(
    tmp_path: Path, clean: NDArray[np.float32], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(noise_level, "LEVELS", (25,))
    monkeypatch.setattr(noise_level, "ESTIMATORS", {"integrodiff": noise_level.ours})
    results = Results(tmp_path / "levels.json", "all", {"images": 1})
    noise_level.compare_estimators([clean], results)
    noise_level.compare_denoising([clean], "pm", results)
    table = noise_level.tables(results.rows)
    assert table.count("| integrodiff ") == 4
    difference = results.rows["denoising, estimated"]["psnr"]["25"]
    difference -= results.rows["denoising, known"]["psnr"]["25"]
    assert f"{difference:+.3f}" in table

    def fail(image: object) -> float:
        raise AssertionError("it was measured already")

    monkeypatch.setattr(noise_level, "ESTIMATORS", {"integrodiff": fail})
    again = Results(results.path, "all", {"images": 1})
    noise_level.compare_estimators([clean], again)
    assert noise_level.tables(again.rows) == table


def test_photographs_have_the_noise_they_say(clean: NDArray[np.float32]) -> None:
    detector = PoissonGaussian(gain=2, offset=100, readout=6)
    flat = np.full((200, 200), 255, np.float32)
    image = photon_noise.photographed(flat, 0, 30, detector)
    assert image.mean() == pytest.approx(160, rel=0.01)
    assert image.std() == pytest.approx(np.sqrt(detector.variance(np.array(160.0))), rel=0.02)
    np.testing.assert_array_equal(image, photon_noise.photographed(flat, 0, 30, detector))


def test_photons_of_every_way(clean: NDArray[np.float32]) -> None:
    found = {
        name: photon_noise.mean_psnr(name, [clean], "peak 10", "pm") for name in photon_noise.WAYS
    }
    assert found["noisy"] < found["plain"] < found["Anscombe, known"]
    assert found["Anscombe, estimated"] == pytest.approx(found["Anscombe, known"], abs=0.3)


@pytest.mark.parametrize("name", noise_map.MAPS)
def test_maps_of_noise_levels(name: str, clean: NDArray[np.float32]) -> None:
    levels = noise_map.levels_of(name, clean.shape)
    ends = [float(word) for word in name.replace(",", "").split()[1:] if word[0].isdigit()]
    assert levels.shape == clean.shape
    assert [levels.min(), levels.max()] == pytest.approx(ends, rel=0.02)
    found = {way: noise_map.mean_psnr(way, [clean], name, "iad") for way in noise_map.WAYS}
    assert found["noisy"] < found["one level"] < found["map"]
    assert found["map"] == pytest.approx(found["several levels"], abs=0.5)


@pytest.mark.parametrize("name", [name for name in varying_noise.CASES if "photons" not in name])
def test_noise_that_varies_is_found(name: str, clean: NDArray[np.float32]) -> None:
    """On a picture with flat parts, all kinds but one: rings are finer than its cells.

    With photons the level follows the brightness: whether a map is taken depends on the picture.
    """
    case = varying_noise.CASES[name]
    image = np.stack([clean] * 3, axis=-1) if case.in_colour else clean
    noisy = case.add(image, np.random.default_rng(0))
    varies = case.levels is not None and "15 to 22" not in name and "rings" not in name
    assert varying_noise.takes_map(noisy) == varies


def test_rows_of_varying_noise(clean: NDArray[np.float32]) -> None:
    row = varying_noise.measured([clean], varying_noise.CASES["ramp, 10 to 50"])
    assert row["maps"] == row["images"] == 1
    assert row["noisy"] < row["one level"] + 3 < row["automatic"] < row["known"] + 0.3
    row = varying_noise.measured([clean], varying_noise.CASES["white, 20"])
    assert row == {"images": 1, "maps": 0}


def test_colours_of_every_way(tmp_path: Path) -> None:
    y, x = np.mgrid[:300, :300]
    image = np.stack([60 + x / 3, 200 - y / 2, 90 + 80 * (x > 150)], axis=-1)
    Pictures.fromarray(image.astype(np.uint8)).save(tmp_path / "7.jpg", quality=95)
    (clean,) = colour_channels.crops(tmp_path, 1)
    assert clean.shape == (3, 192, 192)
    noisy = clean + np.random.default_rng(0).normal(0, 25, clean.shape).astype(np.float32)
    for way in colour_channels.WAYS.values():
        assert psnr(way(noisy, 25, "pm"), clean) > psnr(noisy, clean) + 2


@pytest.mark.filterwarnings("ignore::integrodiff.NoiseLevelWarning")
@pytest.mark.parametrize("name", some(unknown_noise.GREY_NOISE, "white", "JPEG quality 75"))
def test_noise_of_every_kind(name: str) -> None:
    images = unknown_noise.photographs(("camera",))
    found = unknown_noise.noise_row(images, unknown_noise.GREY_NOISE[name])
    assert found["automatic"] > found["noisy"] + 4
    assert found["automatic"] > found["best"] - 0.6
    if name in ("blurred by 0.7", "JPEG quality 60"):
        assert found["automatic"] > found["before"] + 1


@pytest.mark.filterwarnings("ignore::integrodiff.NoiseLevelWarning")
@pytest.mark.parametrize("name", some(unknown_noise.COLOUR_NOISE, "colour, JPEG 75, 4:2:0"))
def test_colour_noise_of_every_kind(name: str) -> None:
    images = unknown_noise.photographs(("coffee",))
    found = unknown_noise.noise_row(images, unknown_noise.COLOUR_NOISE[name])
    assert found["automatic"] > found["noisy"] + 3
    assert found["automatic"] > found["best"] - 0.9


def test_what_does_not_depend_on_the_estimate_is_kept(clean: NDArray[np.float32]) -> None:
    noise = unknown_noise.GREY_NOISE["white"]
    known = unknown_noise.noise_row([clean], noise)
    known["images"]["best"] = [99.0]
    again = unknown_noise.noise_row([clean], noise, known)
    assert again["automatic"] == known["automatic"]
    assert again["best"] == 99
    assert again["images"]["before"] == known["images"]["before"]


@pytest.mark.filterwarnings("ignore::integrodiff.NoiseLevelWarning")
@pytest.mark.parametrize("part", some(unknown_noise.PARTS, 0.1))
def test_any_part_of_the_contrast(part: float) -> None:
    images = [image[:160, :160] for image in unknown_noise.photographs(("camera",))]
    found = unknown_noise.range_row(images, part)
    assert found["automatic"] > found["best"] - 0.4
