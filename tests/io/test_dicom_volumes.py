"""A folder with a DICOM series is one volume, ordered and spaced by where its slices lie."""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pydicom
import pytest
import SimpleITK
from command_line import run
from image_writers import write_array
from numpy.typing import NDArray
from pydicom.uid import CTImageStorage, generate_uid

from integrodiff import ImageFileError, denoise
from integrodiff.io import is_image_folder, read_image, write_image

SETTINGS = ("--sigma", 12, "--data-range", 255, "--engine", "numpy")
ARGUMENTS: dict[str, Any] = {"sigma": 12, "data_range": 255, "engine": "numpy"}
TURN = np.array([[0.8, 0.6, 0.0], [0.0, 0.0, -1.0]])
"""Directions of rows and columns, as of an oblique scan."""

NAMES = ("c", "a", "e", "b", "d")
"""Files in the order of their slices; no other order gives the same volume."""


def volume() -> NDArray[np.int16]:
    z, y, x = np.mgrid[:5, :20, :24]
    noise = np.random.default_rng(1).normal(0, 12, z.shape)
    return np.asarray(100 + 60 * (x + y + 3 * z > 24) + noise, np.int16)


def write_series(folder: Path, heights: Any = range(5), **elements: Any) -> NDArray[np.int16]:
    """Write the files of a series whose slices lie 1.25 mm apart."""
    folder.mkdir()
    pixels = volume()
    normal = np.cross(*TURN)
    common = {"SeriesInstanceUID": generate_uid(), "StudyInstanceUID": generate_uid(), **elements}
    for number, (name, height) in enumerate(zip(NAMES, heights, strict=True)):
        write_array(folder / "one.dcm", pixels[number], "YX")
        dataset = pydicom.dcmread(folder / "one.dcm")
        dataset.ImagePositionPatient = (np.array([7.0, -30, 12]) + 1.25 * height * normal).tolist()
        dataset.ImageOrientationPatient = TURN.ravel().tolist()
        dataset.PixelSpacing, dataset.SliceThickness = [1.0, 1.0], 5.0
        dataset.SOPClassUID = dataset.file_meta.MediaStorageSOPClassUID = CTImageStorage
        dataset.Modality, dataset.ImageType = "CT", ["ORIGINAL", "PRIMARY", "AXIAL"]
        dataset.InstanceNumber, dataset.SliceLocation = 17 - number, 100
        dataset.PatientName, dataset.FrameOfReferenceUID = "Gradient^Ann", "1.2.3"
        for key, value in common.items():
            setattr(dataset, key, value[number] if isinstance(value, list) else value)
        dataset.save_as(folder / f"{name}.dcm")
    (folder / "one.dcm").unlink()
    return pixels


def test_order_and_spacing_follow_from_positions(tmp_path: Path) -> None:
    pixels = write_series(tmp_path / "in")
    image = read_image(tmp_path / "in")
    np.testing.assert_array_equal(image.pixels, pixels)
    assert image.axes == "ZYX"
    assert {axis: (s.value, s.unit) for axis, s in image.spacing.items()} == {
        "Z": (pytest.approx(1.25), "mm"),
        "Y": (1.0, "mm"),
        "X": (1.0, "mm"),
    }


@pytest.mark.slow
@pytest.mark.usefixtures("one_process")
def test_files_given_one_by_one_are_remarked_on(tmp_path: Path) -> None:
    write_series(tmp_path / "in")
    remark = "5 files, a.dcm to e.dcm, are slices of one DICOM series and are denoised one by one"
    names: list[list[Any]] = [[f"{tmp_path}/in/*"], sorted((tmp_path / "in").iterdir())]
    for number, given in enumerate(names):
        result = run("denoise", *given, tmp_path / f"out{number}", *SETTINGS)
        assert result.exit_code == 0, result.stderr
        assert remark in " ".join(result.stderr.split())
        assert len(list((tmp_path / f"out{number}").glob("*.dcm"))) == 5
    meant = run("denoise", f"{tmp_path}/in/*", tmp_path / "meant", *SETTINGS, "--slices")
    assert meant.exit_code == 0, meant.stderr
    assert "one by one" not in meant.stderr
    alone = run("denoise", tmp_path / "in" / "a.dcm", tmp_path / "a.dcm", *SETTINGS)
    assert "one by one" not in alone.stderr


@pytest.mark.slow
@pytest.mark.parametrize("output", ["out", "out/"])
def test_command_line(tmp_path: Path, output: str) -> None:
    pixels = write_series(tmp_path / "in")
    result = run("denoise", tmp_path / "in", f"{tmp_path}/{output}", *SETTINGS)
    assert result.exit_code == 0, result.stderr
    assert "spacing 1.25 : 1 : 1 (z : y : x, from the file)" in " ".join(result.stderr.split())
    found = read_image(tmp_path / "out")
    expected = denoise(pixels, axes="ZYX", spacing=(1.25, 1, 1), **ARGUMENTS)
    np.testing.assert_array_equal(found.pixels, expected)
    assert sorted(path.stem for path in (tmp_path / "out").iterdir()) == sorted(NAMES)
    again = run("denoise", tmp_path / "in", f"{tmp_path}/{output}", *SETTINGS)
    assert again.exit_code == 4
    assert "exists already" in again.stderr
    assert sorted(path.stem for path in (tmp_path / "out").iterdir()) == sorted(NAMES)


@pytest.mark.slow
def test_result_is_a_new_series_with_the_old_geometry(tmp_path: Path) -> None:
    """Every element is compared; SimpleITK finds the volume where it was."""
    write_series(tmp_path / "in")
    result = run("denoise", tmp_path / "in", tmp_path / "out", *SETTINGS)
    assert result.exit_code == 0, result.stderr
    changed = {"SOPInstanceUID", "SeriesInstanceUID", "PixelData", "ImageType"}
    added = {"SourceImageSequence", "DerivationDescription", "SeriesDescription"}
    series = set()
    for name in NAMES:
        old, new = (pydicom.dcmread(tmp_path / side / f"{name}.dcm") for side in ("in", "out"))
        keys = {e.keyword for e in old}, {e.keyword for e in new}
        assert keys[1] - keys[0] == added
        assert not keys[0] - keys[1]
        same = keys[0] - changed
        assert {key: new[key].value for key in same} == {key: old[key].value for key in same}
        assert new.SOPInstanceUID != old.SOPInstanceUID
        assert new.SourceImageSequence[0].ReferencedSOPInstanceUID == old.SOPInstanceUID
        series |= {old.SeriesInstanceUID, new.SeriesInstanceUID}
    assert len(series) == 2
    before, after = (_by_simpleitk(tmp_path / side) for side in ("in", "out"))
    assert after.GetSpacing() == pytest.approx(before.GetSpacing())
    assert after.GetSpacing() == pytest.approx((1, 1, 1.25))
    assert after.GetOrigin() == before.GetOrigin()
    assert after.GetDirection() == before.GetDirection()
    slices = SimpleITK.GetArrayFromImage(after)
    np.testing.assert_array_equal(slices, read_image(tmp_path / "out").pixels)
    single = run("denoise", tmp_path / "in" / "a.dcm", tmp_path / "single.dcm", *SETTINGS)
    assert single.exit_code == 0
    alone, within = (pydicom.dcmread(tmp_path / n) for n in ("single.dcm", "out/a.dcm"))
    assert alone.SOPInstanceUID != within.SOPInstanceUID


def _by_simpleitk(folder: Path) -> Any:
    reader = SimpleITK.ImageSeriesReader()
    reader.SetFileNames(reader.GetGDCMSeriesFileNames(str(folder)))
    return reader.Execute()


@pytest.mark.slow
@pytest.mark.usefixtures("one_process")
def test_noise_is_estimated_once_and_slices_decide_otherwise(tmp_path: Path) -> None:
    write_series(tmp_path / "in")
    options = ("--data-range", 255, "--engine", "numpy")
    words = []
    for name, more in (("volume", ()), ("slices", ("--slices",))):
        result = run("denoise", tmp_path / "in", tmp_path / name, *more, *options)
        assert result.exit_code == 0, result.stderr
        files = sorted((tmp_path / name).glob("*.dcm"))
        words.append([pydicom.dcmread(file).DerivationDescription for file in files])
    assert len(words[0]) == len(words[1]) == 5
    assert len(set(words[0])) == 1
    assert len(set(words[1])) == 5


@pytest.mark.parametrize(
    ("heights", "message"),
    [
        ((0, 1, 3, 4, 5), "1 slice is missing at a distance of 1.25 mm: 1 between a.dcm and e.dcm"),
        ((0, 1, 4, 5, 7), "3 slices are missing .*: 2 between a.dcm and e.dcm, 1 between b.dcm"),
        ((0, 1, 2, 3, 4.4), "not lie at equal distances: they are 1.25 to 1.75 mm .* b.dcm and d"),
        ((0, 1, 2, 2, 3), "b.dcm and e.dcm lie at the same place"),
    ],
)
def test_irregular_slices_are_refused(tmp_path: Path, heights: Any, message: str) -> None:
    write_series(tmp_path / "in", heights)
    with pytest.raises(ImageFileError, match=f"{tmp_path}/in: .*{message}.*--slices"):
        read_image(tmp_path / "in")


@pytest.mark.parametrize(
    ("elements", "message"),
    [
        ({"ImageOrientationPatient": [[1, 0, 0, 0, 1, 0], *[TURN.ravel().tolist()] * 4]}, "angles"),
        ({"ImageOrientationPatient": [1, 0]}, "no usable element ImageOrientationPatient"),
        ({"PixelSpacing": [[1, 1], *[[2, 2]] * 4]}, "differ in their spacing of pixels"),
        ({"RescaleSlope": [1, 2, 2, 2, 2]}, "differ in their scale of values"),
        ({"PhotometricInterpretation": ["MONOCHROME1", *["MONOCHROME2"] * 4]}, "type of values"),
    ],
)
def test_files_that_are_no_volume_are_refused(
    tmp_path: Path, elements: dict[str, Any], message: str
) -> None:
    for name, value in elements.items():
        elements = {name: [value] * 5} if value == [1, 0] else elements
    write_series(tmp_path / "in", **elements)
    with pytest.raises(ImageFileError, match=message):
        read_image(tmp_path / "in")


def test_tilted_gantry_is_refused(tmp_path: Path) -> None:
    shifts = [[7 + 0.8 * n, -30 + 0.6 * n, 12 + 0.0] for n in range(5)]
    along = 1.25 * np.arange(5)[:, None] * np.cross(*TURN)
    positions = (np.array(shifts) + along).tolist()
    write_series(tmp_path / "in", ImagePositionPatient=positions)
    with pytest.raises(ImageFileError, match="shifted sideways against"):
        read_image(tmp_path / "in")


@pytest.mark.slow
@pytest.mark.usefixtures("one_process")
def test_several_series_in_one_folder(tmp_path: Path) -> None:
    write_series(tmp_path / "in")
    write_series(tmp_path / "other")
    for path in (tmp_path / "other").iterdir():
        shutil.copy(path, tmp_path / "in" / f"other-{path.name}")
    assert not is_image_folder(tmp_path / "in")
    result = run("denoise", tmp_path / "in", tmp_path / "out", *SETTINGS)
    assert result.exit_code == 3
    assert "holds 2 DICOM series" in " ".join(result.stderr.split())
    result = run("denoise", tmp_path / "in", tmp_path / "out", "--slices", *SETTINGS)
    assert result.exit_code == 0, result.stderr
    assert len(list((tmp_path / "out").glob("*.dcm"))) == 10


@pytest.mark.slow
@pytest.mark.usefixtures("one_process")
def test_folders_of_series(tmp_path: Path) -> None:
    (tmp_path / "study").mkdir()
    for name in ("t1", "t2"):
        write_series(tmp_path / "study" / name)
    (tmp_path / "study" / "t1" / "report").write_text("no image")
    for _ in range(2):
        words = ("denoise", tmp_path / "study", tmp_path / "out", "--resume", *SETTINGS)
        result = run(*words)
        assert result.exit_code == 0, result.stderr
    assert "skipped 2" in " ".join(result.stderr.split())
    assert len(list((tmp_path / "out").glob("t?/*.dcm"))) == 10
    result = run("denoise", f"{tmp_path}/study/t1/[ab].dcm", tmp_path / "files", *SETTINGS)
    assert result.exit_code == 0, result.stderr
    assert sorted(path.name for path in (tmp_path / "files").glob("*.dcm")) == ["a.dcm", "b.dcm"]


@pytest.mark.slow
def test_other_outputs(tmp_path: Path) -> None:
    pixels = write_series(tmp_path / "in")
    image = read_image(tmp_path / "in")
    (note,) = write_image(tmp_path / "out.tif", image)
    assert "patient" in note
    np.testing.assert_array_equal(read_image(tmp_path / "out.tif").pixels, pixels)
    with pytest.raises(ImageFileError, match="give a name without file extension"):
        write_image(tmp_path / "out.dcm", image)
    with pytest.raises(ImageFileError, match="the file extension '' is unknown"):
        write_image(tmp_path / "out", read_image(tmp_path / "out.tif"))
    write_image(tmp_path / "1.2.840.77", image)
    np.testing.assert_array_equal(read_image(tmp_path / "1.2.840.77").pixels, pixels)


def test_pipes_are_not_waited_for(tmp_path: Path) -> None:
    pixels = write_series(tmp_path / "in")
    os.mkfifo(tmp_path / "in" / "pipe")
    assert is_image_folder(tmp_path / "in")
    np.testing.assert_array_equal(read_image(tmp_path / "in").pixels, pixels)


def test_damaged_slice_is_named(tmp_path: Path) -> None:
    write_series(tmp_path / "in")
    whole = (tmp_path / "in" / "b.dcm").read_bytes()
    (tmp_path / "in" / "b.dcm").write_bytes(whole[:-20])
    with pytest.raises(ImageFileError, match=r"in/b\.dcm: cannot be decoded"):
        read_image(tmp_path / "in")
