"""The clean images that training and evaluation use."""

from __future__ import annotations

import hashlib
import json
from importlib.resources import files
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tifffile
from PIL import Image

from integrodiff import ImageFileError
from integrodiff.io import ImageFile, write_image
from integrodiff.learning import bsds500, image_folder, noise
from integrodiff.learning import download as download_module
from integrodiff.learning.download import verify_bsds500


def write_images(folder: Path, names: list[str], size: tuple[int, int] = (40, 36)) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for index, name in enumerate(names):
        pixels = np.random.default_rng(index).integers(0, 256, (*size, 3)).astype(np.uint8)
        Image.fromarray(pixels).save(folder / name)


def test_noise_is_reproducible_and_of_its_level() -> None:
    first = noise(20, 3, (200, 200))
    np.testing.assert_array_equal(first, noise(20.0, 3, (200, 200)))
    expected = np.random.default_rng((20, 3)).normal(0, 20, (200, 200)).astype(np.float32)
    np.testing.assert_array_equal(first, expected)
    assert not np.array_equal(first, noise(20, 4, (200, 200)))
    assert noise(12.5, 0, (200, 200)).std() == pytest.approx(12.5, rel=0.02)
    assert not np.allclose(noise(12.5, 0, (9, 9)) / 12.5, noise(12.0, 0, (9, 9)) / 12.0)


def test_a_folder_of_images(tmp_path: Path) -> None:
    write_images(tmp_path, ["b.png", "a.jpg"])
    (tmp_path / "notes.txt").write_text("not an image")
    found = image_folder(tmp_path, size=24)
    assert found.names == ("a.jpg", "b.png")
    assert found.pixels.shape == (2, 24, 24)
    assert found.pixels.dtype == np.float32
    assert len(found) == 2
    assert found.fingerprint == image_folder(tmp_path, size=24).fingerprint
    assert found.fingerprint != image_folder(tmp_path, size=24, count=1).fingerprint
    with Image.open(tmp_path / "b.png") as picture:
        grey = np.asarray(picture.convert("L"), np.float32)
    rng = np.random.default_rng(1)
    y, x = int(rng.integers(0, 40 - 24 + 1)), int(rng.integers(0, 36 - 24 + 1))
    np.testing.assert_array_equal(found.pixels[1], grey[y : y + 24, x : x + 24])


def test_what_is_no_training_image(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match="there is no folder"):
        image_folder(tmp_path / "none")
    with pytest.raises(FileNotFoundError, match="has no image"):
        image_folder(tmp_path)
    write_images(tmp_path, ["a.png"])
    with pytest.raises(ImageFileError, match="36 x 40 pixels, too few for a crop of 64 x 64"):
        image_folder(tmp_path, size=64)
    (tmp_path / "a.png").write_bytes(b"nonsense")
    with pytest.raises(ImageFileError, match=r"a\.png: this is not a PNG"):
        image_folder(tmp_path, size=24)
    (tmp_path / "a.png").unlink()
    for samples, message in (
        (np.zeros((30, 30, 5), np.uint8), "5 samples per pixel"),
        (np.full((30, 30), 7.0), "outside of"),
        (np.full((30, 30), np.nan), "NaN"),
    ):
        options: Any = {"planarconfig": "contig"} if samples.ndim == 3 else {}
        tifffile.imwrite(tmp_path / "a.tif", samples, photometric="minisblack", **options)
        with pytest.raises(ImageFileError, match=message):
            image_folder(tmp_path, size=24)
    (tmp_path / "a.tif").unlink()
    (tmp_path / "a.bmp").write_bytes(b"BM")
    with pytest.raises(ImageFileError, match=r"a\.bmp"):
        image_folder(tmp_path, size=24)


def test_bitmaps_are_read(tmp_path: Path) -> None:
    samples = np.random.default_rng(2).integers(0, 256, (30, 30)).astype(np.uint8)
    Image.fromarray(samples).save(tmp_path / "a.bmp")
    assert np.array_equal(image_folder(tmp_path, size=30).pixels[0], samples)


@pytest.mark.parametrize("suffix", [".png", ".tif", ".npy"])
@pytest.mark.parametrize("channels", [(), (3,)])
def test_images_of_16_bits_equal_those_of_8(
    tmp_path: Path, suffix: str, channels: tuple[int, ...]
) -> None:
    shallow = np.random.default_rng(1).integers(0, 256, (30, 32, *channels)).astype(np.uint8)
    deep = shallow.astype(np.uint16) * 257
    deep[0, 0] = 65535
    shallow[0, 0] = 255
    for name, samples in (("deep", deep), ("shallow", shallow)):
        (tmp_path / name).mkdir()
        write_image(
            tmp_path / name / f"a{suffix}",
            ImageFile(pixels=samples, axes="YXS" if channels else "YX"),
        )
    found = [image_folder(tmp_path / name, size=24).pixels for name in ("deep", "shallow")]
    assert np.abs(found[0] - found[1]).max() <= (0.5001 if channels else 1e-4)


def test_grey_values_of_other_ranges(tmp_path: Path) -> None:
    ramp = np.linspace(0, 1, 30 * 30).reshape(30, 30)
    for samples in (
        (ramp * 4095).astype(np.uint16),
        ramp.astype(np.float32),
        np.stack([ramp, ramp * 0]),  # the first plane of a stack
        (ramp * 255 - 100).astype(np.int16),
    ):
        np.save(tmp_path / "a.npy", samples)
        assert image_folder(tmp_path, size=30).pixels[0] == pytest.approx(ramp * 255, abs=1.001)


def test_colours_become_grey_as_by_pillow(tmp_path: Path) -> None:
    """Bit for bit, also where sums are rounded."""
    colours = np.random.default_rng(3).integers(0, 256, (256, 300, 3)).astype(np.uint8)
    Image.fromarray(colours).save(tmp_path / "a.png")
    found = image_folder(tmp_path, size=256).pixels[0]
    grey = np.asarray(Image.fromarray(colours).convert("L"), np.float32)
    rng = np.random.default_rng(0)
    left = [int(rng.integers(0, n)) for n in (1, 300 - 256 + 1)][1]
    assert np.array_equal(found, grey[:, left : left + 256])


def test_training_images_are_those_of_the_shipped_models(research_data: Path) -> None:
    text = (files("integrodiff") / "models" / "data" / "iad-plus.json").read_text("utf-8")
    assert bsds500("train", research_data).fingerprint in text


@pytest.mark.slow
def test_layouts_of_bsds500(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    names = [f"{number}.jpg" for number in (10, 9, 100)] + [f"{n}.jpg" for n in range(1000, 1097)]
    for below in ("bsds500/images", "images", "BSR/BSDS500/data/images"):
        root = tmp_path / below.replace("/", "-")
        write_images(root / below / "test", names, (256, 256))
        found = bsds500("test", root, count=3)
        assert found.names == ("9.jpg", "10.jpg", "100.jpg")
    monkeypatch.setenv("INTEGRODIFF_DATA", str(root))
    assert bsds500("test", count=1).names == ("9.jpg",)
    with pytest.raises(FileNotFoundError, match="has 0 images, expected 200"):
        bsds500("train")
    with pytest.raises(FileNotFoundError, match="expected bsds500/images/train"):
        bsds500("train", tmp_path)
    with pytest.raises(ValueError, match="split must be"):
        bsds500("val", root)


def test_no_network_is_explained(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("pooch")
    monkeypatch.delenv("INTEGRODIFF_DATA", raising=False)
    monkeypatch.setattr(download_module, "URL", "http://127.0.0.1:9/BSR_bsds500.tgz")
    with pytest.raises(ConnectionError, match="environment variable INTEGRODIFF_DATA"):
        download_module.download_bsds500(tmp_path)


def test_images_are_verified(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"300 images of .* are missing or differ"):
        verify_bsds500(tmp_path)


def test_known_hashes_are_those_of_the_data(research_data: Path) -> None:
    verify_bsds500(research_data / "bsds500" / "images")
    text = (files("integrodiff") / "learning" / "bsds500.json").read_text(encoding="utf-8")
    name, expected = next(iter(json.loads(text).items()))
    content = (research_data / "bsds500" / "images" / name).read_bytes()
    assert hashlib.sha256(content).hexdigest() == expected
