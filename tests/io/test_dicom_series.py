"""DICOM results are a new series that says what was done; padding stays as it was."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pydicom
import pytest
from command_line import run
from image_writers import write_array
from numpy.typing import NDArray
from pydicom.uid import generate_uid

from integrodiff import denoise
from integrodiff.io import read_image

SETTINGS = ("--sigma", 12, "--model", "pm", "--engine", "numpy")


def scan(seed: int = 0) -> NDArray[np.int16]:
    noise = np.random.default_rng(seed).normal(0, 12, (30, 40))
    return (150 + noise).astype(np.int16)


def write_slice(path: Path, pixels: NDArray[Any], **elements: Any) -> None:
    write_array(path.with_suffix(".dcm"), pixels, "YX")
    dataset = pydicom.dcmread(path.with_suffix(".dcm"))
    for name, value in elements.items():
        setattr(dataset, name, value)
        if name.startswith("PixelPadding"):
            dataset[name].VR = "SS"
    path.with_suffix(".dcm").unlink()
    dataset.save_as(path)


def padded() -> tuple[NDArray[np.int16], NDArray[np.bool_]]:
    y, x = np.mgrid[:30, :40]
    mask = (y - 14) ** 2 + (x - 20) ** 2 < 160
    return np.where(mask, scan(), -2000).astype(np.int16), mask


@pytest.mark.slow
@pytest.mark.usefixtures("one_process")
def test_files_of_a_series_stay_together(tmp_path: Path) -> None:
    """Files without extension are found by their content, and keep nothing of their identity."""
    old = {"SeriesInstanceUID": generate_uid(), "SeriesDescription": "T1 axial"}
    folder, out = tmp_path / "in", tmp_path / "out"
    folder.mkdir()
    for number in range(2):
        write_slice(folder / f"IM{number}", scan(number), **old)
    write_slice(folder / "1.2.840.77", scan(7), SeriesInstanceUID=generate_uid())
    (folder / "DICOMDIR").write_bytes(bytes(128) + b"DICM" + bytes(200))
    (folder / "README").write_text("not an image")
    result = run("denoise", folder, out, *SETTINGS)
    assert result.exit_code == 0, result.stderr
    assert "not images by their extension: 2 (DICOMDIR, README)" in " ".join(result.stderr.split())
    names = ["1.2.840.77.dcm", "IM0.dcm", "IM1.dcm"]
    assert sorted(path.name for path in out.glob("*.dcm")) == names
    other, first, second = (pydicom.dcmread(out / name) for name in names)
    assert first.SeriesInstanceUID == second.SeriesInstanceUID
    assert len({first.SeriesInstanceUID, other.SeriesInstanceUID, old["SeriesInstanceUID"]}) == 3
    assert len({first.SOPInstanceUID, second.SOPInstanceUID}) == 2
    assert first.SeriesDescription == "T1 axial (denoised)"
    assert first.ImageType[0] == "DERIVED"
    words = first.DerivationDescription
    assert "model pm" in words
    assert "sigma 12" in words
    assert "contrast" in words or "sha256" in words
    single = run("denoise", folder / "IM1", tmp_path / "one.dcm", *SETTINGS)
    assert single.exit_code == 0, single.stderr
    assert (tmp_path / "one.dcm").read_bytes() == (out / "IM1.dcm").read_bytes()
    run("denoise", folder / "IM1", tmp_path / "other.dcm", *SETTINGS, "--data-range", 500)
    changed = pydicom.dcmread(tmp_path / "other.dcm")
    assert changed.SeriesInstanceUID != first.SeriesInstanceUID
    assert changed.SOPInstanceUID != second.SOPInstanceUID


@pytest.mark.slow
def test_estimated_noise_and_long_texts_are_described(tmp_path: Path) -> None:
    long = {"SeriesDescription": "x" * 64, "DerivationDescription": "y" * 1000}
    write_slice(tmp_path / "in", scan(), **long)
    names = tmp_path / "in", tmp_path / "out.dcm"
    assert run("denoise", *names, "--model", "iad-deep").exit_code == 0
    found = pydicom.dcmread(tmp_path / "out.dcm")
    assert len(found.SeriesDescription) == 64
    assert found.SeriesDescription.endswith("x (denoised)")
    assert len(found.DerivationDescription) == 1024
    assert "parameters sha256" in found.DerivationDescription
    assert "(estimated)" in found.DerivationDescription


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["value", "range", "unsigned"])
def test_padding(kind: str, tmp_path: Path) -> None:
    """A value or an interval; a negative one may be written as if it were unsigned."""
    image, mask = padded()
    elements: dict[str, Any] = {"BitsStored": 12, "HighBit": 11, "PixelPaddingValue": -2000}
    words = "padding value -2000"
    image[0, 0] = -2040 if kind == "range" else image[0, 0]
    if kind == "range":
        elements |= {"PixelPaddingRangeLimit": -2040}
        words = "padding values -2040 to -2000"
    write_slice(tmp_path / "in", image, **elements)
    if kind == "unsigned":  # as some programs write it, with the type of unsigned numbers
        dataset = pydicom.dcmread(tmp_path / "in")
        dataset["PixelPaddingValue"] = pydicom.DataElement(0x00280120, "US", 2**16 - 2000)
        dataset.save_as(tmp_path / "in")
    result = run("denoise", tmp_path / "in", tmp_path / "out.dcm", *SETTINGS)
    assert result.exit_code == 0, result.stderr
    assert f"59 % of the pixels are invalid: {words}" in " ".join(result.stderr.split())
    found = read_image(tmp_path / "out.dcm")
    np.testing.assert_array_equal(found.pixels[~mask], image[~mask])
    expected = denoise(image, 12, model="pm", mask=mask, engine="numpy")
    np.testing.assert_array_equal(found.pixels, expected)
    assert found.nodata == read_image(tmp_path / "in").nodata
