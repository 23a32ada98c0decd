"""Volumes on the command line: what is a volume, and the spacing that is used and printed."""

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

from integrodiff import denoise
from integrodiff.io import read_image
from integrodiff.layout import Layout

pytestmark = pytest.mark.filterwarnings("ignore:the spacing of this volume")

SETTINGS = ("--sigma", 15, "--data-range", 255, "--engine", "numpy")
ARGUMENTS: dict[str, Any] = {"sigma": 15, "data_range": 255, "engine": "numpy"}


def scene(slices: int = 4) -> NDArray[np.float32]:
    z, y, x = np.mgrid[:slices, :20, :24]
    clean = 80 + 80 * (x + y + 3 * z > 24)
    noise = np.random.default_rng(0).normal(0, 15, clean.shape)
    return np.asarray(clean + noise, np.float32)


@pytest.mark.slow
def test_slices_are_a_volume_with_the_spacing_of_the_file(tmp_path: Path) -> None:
    about = {"axes": "ZYX", "spacing": 3.0, "unit": "micron"}
    tifffile.imwrite(
        tmp_path / "in.tif", scene(), imagej=True, resolution=(1.0, 1.0), metadata=about
    )
    result = run("denoise", tmp_path / "in.tif", tmp_path / "out.tif", *SETTINGS)
    assert result.exit_code == 0, result.stderr
    assert "volume, spacing 3 : 1 : 1 (z : y : x, from the file)" in " ".join(result.stderr.split())
    expected = denoise(scene(), axes="ZYX", spacing=(3, 1, 1), **ARGUMENTS)
    np.testing.assert_array_equal(tifffile.imread(tmp_path / "out.tif"), expected)


@pytest.mark.slow
def test_spacing_can_be_given(tmp_path: Path) -> None:
    write_array(tmp_path / "in.nii", scene(), "ZYX")
    names = tmp_path / "in.nii", tmp_path / "out.nii"
    result = run("denoise", *names, "--spacing", "2,1,1", *SETTINGS)
    assert result.exit_code == 0, result.stderr
    assert "volume, spacing 2 : 1 : 1 (z : y : x)" in " ".join(result.stderr.split())
    expected = denoise(scene(), axes="ZYX", spacing=(2, 1, 1), **ARGUMENTS)
    np.testing.assert_array_equal(read_image(names[1]).pixels, expected)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("declared", "option", "axes"),
    [("TYX", (), "TYX"), ("TYX", ("--volume",), "ZYX"), ("ZYX", ("--slices",), "TYX")],
)
def test_who_decides(tmp_path: Path, declared: str, option: tuple[str, ...], axes: str) -> None:
    volume = scene()
    names = tmp_path / "in.tif", tmp_path / "out.tif"
    tifffile.imwrite(names[0], volume, photometric="minisblack", metadata={"axes": declared})
    result = run("denoise", *names, *option, *SETTINGS)
    assert result.exit_code == 0, result.stderr
    expected = denoise(volume, axes=axes, **ARGUMENTS)
    np.testing.assert_array_equal(tifffile.imread(names[1]), expected)


@pytest.mark.slow
def test_channels_between_slices(tmp_path: Path) -> None:
    """ImageJ's order has the channels of a slice together."""
    stack = np.stack([scene(3), scene(3)[::-1]], axis=1)
    tifffile.imwrite(tmp_path / "in.tif", stack, imagej=True, metadata={"axes": "ZCYX"})
    result = run("denoise", tmp_path / "in.tif", tmp_path / "out.tif", *SETTINGS)
    assert result.exit_code == 0, result.stderr
    found = tifffile.imread(tmp_path / "out.tif")
    np.testing.assert_array_equal(found, denoise(stack, axes="ZCYX", **ARGUMENTS))
    np.testing.assert_array_equal(found[:, 0], denoise(stack[:, 0], axes="ZYX", **ARGUMENTS))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("--volume",), "no pages that could be the slices of a volume"),
        (("--spacing", "3,x,1"), "--spacing must be numbers such as 3,1,1"),
        (("--spacing", "3,1,1"), "one number for each of the axes Y, X"),
    ],
)
def test_refused(tmp_path: Path, options: tuple[str, ...], message: str) -> None:
    tifffile.imwrite(tmp_path / "in.tif", scene()[0])
    result = run("denoise", tmp_path / "in.tif", tmp_path / "out.tif", *options, *SETTINGS)
    assert result.exit_code == 2
    assert message in " ".join(result.stderr.split())
    assert not (tmp_path / "out.tif").exists()


@pytest.mark.slow
def test_report_names_model_and_spacing(tmp_path: Path) -> None:
    write_array(tmp_path / "in.nii", scene(), "ZYX")
    entries = []
    for option in ((), ("--slices",)):
        names = tmp_path / "in.nii", tmp_path / f"out{len(option)}.nii"
        words = ("--spacing", "1.2,1,1") if not option else ()
        result = run("denoise", *names, *option, *words, "--json", tmp_path / "report", *SETTINGS)
        assert result.exit_code == 0, result.stderr
        entries += json.loads((tmp_path / "report").read_text())["files"]
    assert [entry["model"] for entry in entries] == ["iad-plus-volume", "iad-plus"]
    assert [entry["spacing"] for entry in entries] == [[1.2, 1, 1], None]


@pytest.mark.slow
def test_messages_speak_of_options(tmp_path: Path) -> None:
    """Python users are told of arguments, and those of the command line of options."""
    write_array(tmp_path / "in.nii", scene(), "ZYX")
    names = tmp_path / "in.nii", tmp_path / "out.nii"
    for options, message in (
        (("--model", "iid"), "Take --model iad-plus, or --slices"),
        (("--model", "iad-deep"), "Take --model iad-plus, or --slices to denoise slices one"),
        (("--spacing", "4,1,1"), "take --slices to denoise slices one by one"),
        (("--slices", "--spacing", "4,1,1"), "slices of a volume, take --volume"),
    ):
        words = " ".join(run("denoise", *names, *options, *SETTINGS, "--overwrite").stderr.split())
        assert message.lower() in words.lower()
        assert "axes with" not in words
        assert "model=" not in words


def test_layouts_as_volumes() -> None:
    assert Layout("QCYX", (2, 3, 4, 5)).as_volume(True).axes == "ZCYX"
    assert Layout("TQYX", (2, 3, 4, 5)).as_volume(True).axes == "TZYX"
    assert Layout("TZYX", (2, 3, 4, 5)).as_volume(False).axes == "TQYX"
    with pytest.raises(ValueError, match="no pages"):
        Layout("QQYX", (2, 3, 4, 5)).as_volume(True)
