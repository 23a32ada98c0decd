"""``integrodiff denoise``: options for noise and colours, and noise that is estimated."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tifffile
from command_line import run
from image_writers import write_array
from numpy.typing import NDArray
from PIL import Image

import integrodiff
from integrodiff import PoissonGaussian
from integrodiff.io import read_image


def clean_image() -> NDArray[np.float64]:
    """Discs on a ramp, on the scale [0, 255]."""
    y, x = np.mgrid[:64, :72]
    disc = (y - 30) ** 2 + (x - 40) ** 2 < 300
    return np.asarray(30 + 2.0 * x + 60 * disc, np.float64)


@pytest.fixture
def counts() -> NDArray[np.uint16]:
    return np.random.default_rng(0).poisson(clean_image() / 8).astype(np.uint16)


def denoise(source: Path, target: Path, *more: object) -> Any:
    return run("denoise", source, target, "--engine", "numpy", *more)


@pytest.mark.slow
def test_noise_level_is_estimated_and_printed(tmp_path: Path) -> None:
    noise = np.random.default_rng(1).normal(0, 15, (64, 72))
    noisy = np.clip(np.rint(clean_image() + noise), 0, 255).astype(np.uint8)
    Image.fromarray(noisy).save(tmp_path / "in.png")
    result = denoise(tmp_path / "in.png", tmp_path / "out.png")
    assert result.exit_code == 0, result.output
    sigma = float(integrodiff.estimate_sigma(noisy))
    assert sigma == pytest.approx(15, rel=0.15)
    assert f"at sigma {sigma:.4g} (estimated), engine numpy" in result.stderr
    expected = integrodiff.denoise(noisy, engine="numpy")
    assert np.array_equal(np.asarray(Image.open(tmp_path / "out.png")), expected)


@pytest.mark.slow
def test_every_channel_has_its_own_estimate(tmp_path: Path) -> None:
    rng = np.random.default_rng(1)
    channels = [clean_image() + rng.normal(0, sigma, (64, 72)) for sigma in (5, 10, 20)]
    noisy = np.clip(np.rint(np.stack(channels, axis=-1)), 0, 255).astype(np.uint8)
    Image.fromarray(noisy).save(tmp_path / "in.png")
    result = denoise(tmp_path / "in.png", tmp_path / "out.png")
    levels = integrodiff.estimate_sigma(noisy, channel_axis=-1)
    assert isinstance(levels, np.ndarray)
    assert f"at sigma {', '.join(f'{s:.4g}' for s in levels)} (estimated)" in result.stderr
    expected = integrodiff.denoise(noisy, channel_axis=-1, engine="numpy")
    assert np.array_equal(np.asarray(Image.open(tmp_path / "out.png")), expected)


@pytest.mark.slow
def test_pages_share_one_estimate(tmp_path: Path) -> None:
    rng = np.random.default_rng(1)
    stack = np.stack([clean_image() + rng.normal(0, 10, (64, 72)) for _ in range(11)])
    tifffile.imwrite(tmp_path / "in.tif", stack.astype(np.float32), photometric="minisblack")
    options = ("--data-range", 255)
    assert denoise(tmp_path / "in.tif", tmp_path / "out.tif", *options).exit_code == 0
    chosen = [0, 1, 2, 3, 5, 6, 7, 8, 10]
    pages = stack.astype(np.float32)
    sigma = float(np.median([integrodiff.estimate_sigma(pages[i]) for i in chosen]))
    written = tifffile.imread(tmp_path / "out.tif")
    expected = integrodiff.denoise(pages[4], sigma, data_range=255, engine="numpy")
    assert np.array_equal(written[4], expected)


@pytest.mark.slow
@pytest.mark.parametrize("colour", ["opponent", "joint", "separate"])
def test_colour(tmp_path: Path, colour: Any) -> None:
    noisy = np.random.default_rng(1).integers(0, 256, (20, 24, 3), dtype=np.uint8)
    Image.fromarray(noisy).save(tmp_path / "in.png")
    result = denoise(tmp_path / "in.png", tmp_path / "out.png", "--sigma", 20, "--colour", colour)
    assert result.exit_code == 0
    expected = integrodiff.denoise(noisy, 20, channel_axis=-1, colour=colour, engine="numpy")
    assert np.array_equal(np.asarray(Image.open(tmp_path / "out.png")), expected)


@pytest.mark.slow
@pytest.mark.parametrize("form", ["ome.tif", "zarr"])
def test_channels_of_a_file_have_their_own_noise_level(tmp_path: Path, form: str) -> None:
    """A dim and a bright channel over three frames; one median would leave the bright one noisy."""
    rng = np.random.default_rng(0)
    dim, bright = clean_image() / 8 + 20, 12.0 * clean_image()
    frames = [[dim + rng.normal(0, 6, dim.shape), bright + rng.normal(0, 160, dim.shape)]] * 3
    stack = np.rint(frames).clip(0, 65535).astype(np.uint16)
    source, target = tmp_path / f"in.{form}", tmp_path / f"out.{form}"
    write_array(source, stack, "TCYX")
    result = denoise(source, target, "--json", tmp_path / "report.json")
    assert result.exit_code == 0, result.output
    found = read_image(target).pixels
    for channel in (0, 1):
        expected = integrodiff.denoise(stack[:, channel], axes="TYX", engine="numpy")
        np.testing.assert_array_equal(found[:, channel], expected)
    (file,) = json.loads((tmp_path / "report.json").read_text())["files"]
    levels = [channel["sigma"][0] for channel in file["noise"]["channels"]]
    assert levels == pytest.approx([6, 160], rel=0.2)
    error = np.sqrt(np.mean((found[:, 1] - bright) ** 2))
    assert error < 80


@pytest.mark.slow
@pytest.mark.parametrize(
    ("options", "noise", "text"),
    [
        (["--noise", "poisson"], PoissonGaussian(), "gain 1, offset 0, readout 0,"),
        (
            ["--noise", "poisson-gaussian", "--gain", "1.5", "--offset", "-2", "--readout", "1"],
            PoissonGaussian(gain=1.5, offset=-2, readout=1),
            "gain 1.5, offset -2, readout 1,",
        ),
        (["--noise", "poisson-gaussian"], None, "(estimated),"),
        (["--noise", "poisson-gaussian", "--offset", "1"], None, "offset 1, readout"),
    ],
)
def test_photons(
    tmp_path: Path,
    counts: NDArray[np.uint16],
    options: list[str],
    noise: PoissonGaussian | None,
    text: str,
) -> None:
    tifffile.imwrite(tmp_path / "in.tif", counts)
    result = denoise(tmp_path / "in.tif", tmp_path / "out.tif", *options)
    assert result.exit_code == 0, result.output
    assert text in result.stderr
    if noise is None:
        offset = 1.0 if "--offset" in options else None
        noise = integrodiff.estimate_poisson_gaussian(counts, offset=offset)
    expected = integrodiff.denoise(counts, noise=noise, engine="numpy")
    assert np.array_equal(tifffile.imread(tmp_path / "out.tif"), expected)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--noise", "salt"], "--noise must be one of 'gaussian'"),
        (["--colour", "cmyk"], "--colour must be one of 'auto'"),
        (["--gain", "2"], "--gain needs --noise poisson-gaussian"),
        (["--noise", "poisson", "--offset", "2"], "--offset needs --noise poisson-gaussian"),
        (["--noise", "poisson-gaussian", "--readout", "2"], "--readout needs --gain"),
        (["--noise", "poisson-gaussian", "--gain", "0"], "gain must be positive"),
        (["--noise", "poisson", "--sigma", "2"], "--sigma describes Gaussian noise"),
        (["--colour", "opponent"], "and this image has 1"),
    ],
)
def test_wrong_usage(
    tmp_path: Path, counts: NDArray[np.uint16], options: list[str], message: str
) -> None:
    tifffile.imwrite(tmp_path / "in.tif", counts)
    result = denoise(tmp_path / "in.tif", tmp_path / "out.tif", *options)
    assert result.exit_code == 2
    assert message in result.stderr
    assert not (tmp_path / "out.tif").exists()


def test_too_small_for_an_estimate(tmp_path: Path) -> None:
    Image.fromarray(np.arange(90, dtype=np.uint8).reshape(9, 10)).save(tmp_path / "in.png")
    result = denoise(tmp_path / "in.png", tmp_path / "out.png")
    assert result.exit_code == 2
    assert "too small to estimate its noise" in result.stderr
    assert "give --sigma" in result.stderr


class TestSigmaMap:
    levels = np.linspace(2, 30, 72, dtype=np.float32) * np.ones((64, 1), np.float32)

    def files(self, folder: Path) -> NDArray[np.uint8]:
        noise = self.levels * np.random.default_rng(1).normal(size=(64, 72))
        noisy = np.clip(np.rint(clean_image() + noise), 0, 255).astype(np.uint8)
        Image.fromarray(noisy).save(folder / "in.png")
        tifffile.imwrite(folder / "map.tif", self.levels)
        return noisy

    @pytest.mark.slow
    def test_is_used_and_printed(self, tmp_path: Path) -> None:
        noisy = self.files(tmp_path)
        options = ["--sigma-map", tmp_path / "map.tif"]
        result = denoise(tmp_path / "in.png", tmp_path / "out.png", *options)
        assert result.exit_code == 0, result.output
        assert "at sigma 2 to 30, engine numpy" in result.stderr
        expected = integrodiff.denoise(noisy, self.levels, engine="numpy")
        assert np.array_equal(np.asarray(Image.open(tmp_path / "out.png")), expected)

    @pytest.mark.slow
    def test_report_and_resume_know_it(self, tmp_path: Path) -> None:
        self.files(tmp_path)
        (tmp_path / "out").mkdir()
        report = tmp_path / "report.json"
        options = ["--sigma-map", tmp_path / "map.tif", "--json", report, "--resume"]

        def status() -> dict[str, Any]:
            denoise(tmp_path / "in.png", tmp_path / "out", *options)
            (found,) = json.loads(report.read_text())["files"]
            return dict(found)

        first = status()
        assert first["noise"]["sigma_range"] == [2, 30]
        assert status()["status"] == "skipped"
        tifffile.imwrite(tmp_path / "map.tif", 2 * self.levels)
        assert "other options: sigma map" in status()["message"]

    @pytest.mark.parametrize(
        ("pixels", "options", "code", "message"),
        [
            (np.ones((72, 64), np.float32), [], 2, "has the shape (72, 64)"),
            (np.ones((2, 64, 72), np.float32), [], 3, "one grey image"),
            (-np.ones((64, 72), np.float32), [], 3, "nonnegative"),
            (np.ones((64, 72), np.float32), ["--sigma", "3"], 2, "not both"),
            (np.ones((64, 72), np.float32), ["--noise", "poisson"], 2, "describes Gaussian noise"),
        ],
    )
    def test_wrong_maps(
        self, tmp_path: Path, pixels: Any, options: list[str], code: int, message: str
    ) -> None:
        self.files(tmp_path)
        tifffile.imwrite(tmp_path / "map.tif", pixels)
        options = ["--sigma-map", str(tmp_path / "map.tif"), *options]
        result = denoise(tmp_path / "in.png", tmp_path / "out.png", *options)
        assert result.exit_code == code
        assert message in result.stderr
        assert not (tmp_path / "out.png").exists()

    @pytest.mark.slow
    def test_is_never_overwritten(self, tmp_path: Path) -> None:
        self.files(tmp_path)
        options = ["--sigma-map", tmp_path / "map.tif", "--overwrite"]
        result = denoise(tmp_path / "in.png", tmp_path / "map.tif", *options)
        assert result.exit_code == 4
        assert np.array_equal(tifffile.imread(tmp_path / "map.tif"), self.levels)

    def test_missing_file(self, tmp_path: Path) -> None:
        self.files(tmp_path)
        options = ["--sigma-map", tmp_path / "none.tif"]
        result = denoise(tmp_path / "in.png", tmp_path / "out.png", *options)
        assert result.exit_code == 3
        assert "none.tif" in result.stderr


@pytest.mark.slow
def test_a_map_can_be_estimated(tmp_path: Path) -> None:
    levels = np.geomspace(12, 30, 120) * np.ones((100, 1))
    noisy = (100 + np.random.default_rng(0).normal(0, levels)).astype(np.float32)
    tifffile.imwrite(tmp_path / "in.tif", noisy)
    result = run("denoise", tmp_path / "in.tif", tmp_path / "out.tif", "--sigma", "map")
    assert result.exit_code == 0, result.stderr
    words = r"sigma ([\d.]+) to ([\d.]+), varies over the image \(estimated\)"
    found = re.search(words, result.stderr)
    assert found is not None, result.stderr
    assert float(found[1]) == pytest.approx(14, rel=0.3)
    assert float(found[2]) == pytest.approx(25, rel=0.3)
    np.testing.assert_array_equal(
        tifffile.imread(tmp_path / "out.tif"), integrodiff.denoise(noisy, "map")
    )
    refused = run("denoise", tmp_path / "in.tif", tmp_path / "b.tif", "--sigma", "much")
    assert refused.exit_code == 2
    assert "or map; got 'much'" in refused.stderr


def test_a_scale_given_twice_is_refused(tmp_path: Path) -> None:
    np.save(tmp_path / "a.npy", clean_image())
    words = (tmp_path / "a.npy", tmp_path / "b.npy", "--sigma", "0.5:20,0.5:1")
    result = run("denoise", *words)
    assert result.exit_code == 2
    assert "twice" in result.stderr
