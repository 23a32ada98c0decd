"""Invalid pixels on the command line: ``--mask``, ``--nodata``, and what files declare."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tifffile
from command_line import run
from image_writers import write_array
from numpy.typing import NDArray
from PIL import Image

from integrodiff import EED, VolumeModelWarning, denoise, save_model
from integrodiff.engines import ENGINES
from integrodiff.io import read_image

SETTINGS = ("--sigma", 12, "--model", "pm", "--engine", "numpy")
ARGUMENTS: dict[str, Any] = {"sigma": 12, "model": "pm", "engine": "numpy"}
NODATA = 42113


def scan(dtype: str = "int16") -> NDArray[Any]:
    """Return a noisy image of 30 x 40 pixels."""
    noise = np.random.default_rng(0).normal(0, 12, (30, 40))
    return (100 + np.linspace(0, 60, 40) + noise).clip(1, 250).astype(dtype)


def field_of_view() -> NDArray[np.bool_]:
    """Return a round mask."""
    y, x = np.mgrid[:30, :40]
    return np.asarray((y - 14) ** 2 + (x - 20) ** 2 < 160)


def said(result: Any) -> str:
    return " ".join(result.stderr.split())


@pytest.mark.parametrize("form", ["png", "bits.png", "npy", "bool.npy", "tif", "bits.tif", "rgb"])
def test_masks_of_all_kinds(form: str, tmp_path: Path) -> None:
    image, mask = scan(), field_of_view()
    source, target, name = tmp_path / "in.tif", tmp_path / "out.tif", tmp_path / f"mask.{form}"
    tifffile.imwrite(source, image)
    if form == "npy":
        np.save(name, mask.astype(np.float32))
    elif form == "bool.npy":
        np.save(name, mask)
    elif form == "tif":
        tifffile.imwrite(name, 255 * mask.astype(np.uint16))
    elif form == "rgb":
        name = tmp_path / "mask.png"
        Image.fromarray(np.repeat(mask[..., None], 3, axis=-1).astype(np.uint8)).save(name)
    else:
        Image.fromarray(mask if form.startswith("bits") else mask.astype(np.uint8)).save(name)
    result = run("denoise", source, target, "--mask", name, *SETTINGS)
    assert result.exit_code == 0, result.stderr
    assert f"59 % of the pixels are invalid: mask {name.name}" in said(result)
    expected = denoise(image, mask=mask, **ARGUMENTS)
    np.testing.assert_array_equal(tifffile.imread(target), expected)
    np.testing.assert_array_equal(expected[~mask], image[~mask])


@pytest.mark.slow
def test_a_mask_for_every_page(tmp_path: Path) -> None:
    frames = np.stack([scan(), scan()[::-1]])
    masks = np.stack([field_of_view(), ~field_of_view()])
    tifffile.imwrite(tmp_path / "in.tif", frames, metadata={"axes": "TYX"})
    np.save(tmp_path / "mask.npy", masks)
    names = tmp_path / "in.tif", tmp_path / "out.tif", "--mask", tmp_path / "mask.npy"
    assert run("denoise", *names, *SETTINGS).exit_code == 0
    expected = denoise(frames, mask=masks, axes="TYX", **ARGUMENTS)
    np.testing.assert_array_equal(tifffile.imread(tmp_path / "out.tif"), expected)


@pytest.mark.parametrize(
    ("mask", "code", "message"),
    [
        (np.ones((40, 30), np.bool_), 2, "the mask has 30 x 40 pixels, and the image 40 x 30"),
        (np.ones((2, 30, 40), np.bool_), 2, "40 x 30 pixels on 2 pages"),
        (np.zeros((30, 40), np.bool_), 3, "has no valid pixel; it must be other than zero"),
    ],
)
def test_masks_that_do_not_fit(
    mask: NDArray[np.bool_], code: int, message: str, tmp_path: Path
) -> None:
    tifffile.imwrite(tmp_path / "in.tif", scan())
    np.save(tmp_path / "mask.npy", mask)
    names = tmp_path / "in.tif", tmp_path / "out.tif", "--mask", tmp_path / "mask.npy"
    result = run("denoise", *names, *SETTINGS)
    assert result.exit_code == code
    assert message in said(result)
    assert not (tmp_path / "out.tif").exists()


@pytest.mark.slow
def test_unreadable_masks_and_values(tmp_path: Path) -> None:
    tifffile.imwrite(tmp_path / "in.tif", scan())
    names = tmp_path / "in.tif", tmp_path / "out.tif"
    result = run("denoise", *names, "--mask", tmp_path / "none.png")
    assert (result.exit_code, "none.png: there is no such file" in said(result)) == (3, True)
    result = run("denoise", *names, "--nodata", "black")
    assert (result.exit_code, "--nodata must be a number" in said(result)) == (2, True)
    result = run("denoise", names[0], names[0], "--mask", names[0])
    assert result.exit_code == 4
    np.save(tmp_path / "mask.npy", field_of_view())
    mask = tmp_path / "mask.npy"
    result = run("denoise", names[0], mask, "--mask", mask, "--overwrite", *SETTINGS)
    assert result.exit_code == 4
    assert np.load(mask).dtype == np.bool_


@pytest.mark.slow
def test_nodata_of_a_geotiff(tmp_path: Path) -> None:
    """It is a mask by itself, in the numbers of the file, and the tag is kept."""
    mask = field_of_view()
    for dtype, text in (("int16", "-9999"), ("float32", "-3.4028234663852886e+38"), ("uint8", "0")):
        image = np.where(mask, scan(dtype), np.array(float(text)).astype(dtype))
        tags = [(NODATA, 2, 0, text, True)]
        source, target = tmp_path / f"{dtype}.tif", tmp_path / f"{dtype}-out.tif"
        tifffile.imwrite(source, image, extratags=tags)
        result = run("denoise", source, target, "--data-range", 255, *SETTINGS)
        assert result.exit_code == 0, result.stderr
        assert f"59 % of the pixels are invalid: nodata {text[:8]}" in said(result)
        with tifffile.TiffFile(target) as tif:
            assert tif.pages.first.tags[NODATA].value == text
            found = tif.asarray()
        assert found[~mask].tobytes() == image[~mask].tobytes()
        expected = denoise(image, mask=mask, data_range=255, **ARGUMENTS)
        np.testing.assert_array_equal(found, expected)
        other = run(
            *("denoise", source, tmp_path / f"{dtype}-all.tif", "--nodata", "none"),
            *("--data-range", 255, "--sigma", 12, "--model", "pm"),
        )
        assert (other.exit_code == 0) == (dtype != "float32")
        assert "invalid" not in said(other)


@pytest.mark.slow
@pytest.mark.parametrize("more", [(), ("--block", "1/1")])
def test_valid_pixels_do_not_become_nodata(tmp_path: Path, more: tuple[str, ...]) -> None:
    image = np.rint(np.random.default_rng(0).normal(0, 12, (64, 65))).astype(np.int16)
    mask = image != 0
    mask[:9] = False
    image[~mask] = 0
    source, target = tmp_path / "in.tif", tmp_path / "out.tif"
    tifffile.imwrite(source, image, extratags=[(NODATA, 2, 0, "0", True)])
    result = run("denoise", source, target, "--data-range", 255, *SETTINGS, *more)
    assert result.exit_code == 0, result.stderr
    found = tifffile.imread(target)
    np.testing.assert_array_equal(found != 0, mask)
    expected = denoise(image, mask=mask, data_range=255, **ARGUMENTS)
    assert (expected[mask] == 0).sum() > 100
    assert np.abs(found.astype(int) - expected).max() == 1


@pytest.mark.parametrize("text", ["a lot", ""])
def test_nodata_that_is_no_number(text: str, tmp_path: Path) -> None:
    tags = [(NODATA, 2, 0, text, True)]
    tifffile.imwrite(tmp_path / "in.tif", scan(), extratags=tags)
    result = run("denoise", tmp_path / "in.tif", tmp_path / "out.tif", *SETTINGS)
    assert result.exit_code == 0, result.stderr
    assert "is no number" in said(result)


def test_zero_around_a_brain(tmp_path: Path) -> None:
    volume = np.stack([np.where(field_of_view(), scan(), 0)] * 2)
    source, target = tmp_path / "in.nii", tmp_path / "out.nii"
    write_array(source, volume, "ZYX")
    result = run("denoise", source, target, "--nodata", 0, *SETTINGS)
    assert result.exit_code == 0, result.stderr
    found = read_image(target).pixels
    np.testing.assert_array_equal(found == 0, volume == 0)
    with pytest.warns(VolumeModelWarning, match="trained on images"):
        expected = denoise(volume, axes="ZYX", mask=volume != 0, **ARGUMENTS)
    np.testing.assert_array_equal(found, expected)


@pytest.mark.slow
def test_values_that_no_pixel_has_are_noted(tmp_path: Path) -> None:
    tifffile.imwrite(tmp_path / "in.tif", scan())
    result = run("denoise", tmp_path / "in.tif", tmp_path / "out.tif", "--nodata", -1, *SETTINGS)
    assert result.exit_code == 0, result.stderr
    assert "no pixel has the value of --nodata, -1" in said(result)
    result = run("denoise", tmp_path / "in.tif", tmp_path / "a.tif", "--nodata", "nan", *SETTINGS)
    assert "--nodata" not in said(result)
    a, b = (tifffile.imread(tmp_path / name) for name in ("out.tif", "a.tif"))
    np.testing.assert_array_equal(a, b)


def test_an_image_without_valid_pixels(tmp_path: Path) -> None:
    np.save(tmp_path / "in.npy", np.zeros((9, 8), np.uint8))
    result = run("denoise", tmp_path / "in.npy", tmp_path / "out.npy", "--nodata", 0)
    assert result.exit_code == 0, result.stderr
    assert "warning: the image has no valid pixel and comes back unchanged" in said(result)
    assert not np.load(tmp_path / "out.npy").any()


def test_transparency_is_kept(tmp_path: Path) -> None:
    pixels = np.repeat(scan("uint8")[..., None], 4, axis=-1)
    pixels[..., 3] = np.arange(40)
    Image.fromarray(pixels).save(tmp_path / "in.png")
    np.save(tmp_path / "mask.npy", field_of_view())
    names = tmp_path / "in.png", tmp_path / "out.png", "--mask", tmp_path / "mask.npy"
    assert run("denoise", *names, *SETTINGS).exit_code == 0
    found = np.asarray(Image.open(tmp_path / "out.png"))
    np.testing.assert_array_equal(found[..., 3], pixels[..., 3])
    np.testing.assert_array_equal(found[~field_of_view()], pixels[~field_of_view()])


@pytest.mark.skipif(ENGINES["native"].unavailable() is not None, reason="needs the engine native")
def test_another_engine_is_named_as_an_option(tmp_path: Path) -> None:
    """Here the compiled engine takes no masks, and the message is for a person at a terminal."""
    image = scan("float32")
    tifffile.imwrite(tmp_path / "in.tif", image)
    model = tmp_path / "paper.json"
    save_model(EED(scale=1, contrast=5, tau=0.2, discretisation="nonnegativity"), model)
    names = tmp_path / "in.tif", tmp_path / "out.tif", "--model", model, "--sigma", 12
    result = run("denoise", *names, "--nodata", image[3, 4], "--engine", "native")
    assert result.exit_code == 2
    assert "take --engine numpy or --engine torch" in said(result)


@pytest.mark.slow
@pytest.mark.usefixtures("one_process")
def test_batches(tmp_path: Path) -> None:
    """One mask for all files; one that does not fit fails by itself; masks decide on --resume."""
    folder, out, report = tmp_path / "in", tmp_path / "out", tmp_path / "report.json"
    folder.mkdir()
    np.save(folder / "a.npy", scan())
    np.save(folder / "b.npy", scan()[:20])
    np.save(tmp_path / "mask.npy", field_of_view())
    options = ("--mask", tmp_path / "mask.npy", "--json", report, *SETTINGS)
    result = run("denoise", folder, out, *options)
    assert result.exit_code == 5
    assert "b.npy: " in said(result)
    assert "the mask has 40 x 30 pixels, and the image 40 x 20" in said(result)
    expected = denoise(scan(), mask=field_of_view(), **ARGUMENTS)
    np.testing.assert_array_equal(np.load(out / "a.npy"), expected)
    files = json.loads(report.read_text())["files"]
    assert files[0]["invalid_pixels"] == (~field_of_view()).sum()
    (folder / "b.npy").unlink()
    result = run("denoise", folder, out, "--resume", *options)
    assert result.exit_code == 0, result.stderr
    assert json.loads(report.read_text())["counts"]["skipped"] == 1
    np.save(tmp_path / "mask.npy", ~field_of_view())
    result = run("denoise", folder, out, "--resume", *options)
    assert "it was made with other options: mask" in said(result)
    result = run("denoise", folder, out, "--resume", "--nodata", 3, *options)
    assert "other options: mask, nodata" in said(result)
