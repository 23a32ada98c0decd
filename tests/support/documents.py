"""Every row of the README's table "your data -> command", on generated data."""

from __future__ import annotations

import re
import shlex
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import tifffile
from command_line import run
from numpy.typing import NDArray
from PIL import Image

import integrodiff
from before_and_after import write_dicom
from integrodiff.io import read_image

README = Path(__file__).parents[2] / "README.md"
SIDE = 48


def table() -> list[tuple[str, str]]:
    """Return the kind of data and the cell with commands of each row."""
    text = README.read_text(encoding="utf-8").split("## Which command for which data", 1)[1]
    rows = [line for line in text.split("## ", 1)[0].splitlines() if line.startswith("| ")]
    return [(row.split("|")[1].strip(), row.split("|", 2)[2].strip(" |")) for row in rows[1:]]


ROWS = table()


def noisy(*planes: int) -> NDArray[np.float64]:
    y, x = np.mgrid[:SIDE, :SIDE]
    clean = 60.0 + x + 90 * (np.hypot(y - 24, x - 24) < 12)
    return np.asarray(clean + np.random.default_rng(0).normal(0, 10, (*planes, SIDE, SIDE)))


def write_tiff(path: Path) -> None:
    tifffile.imwrite(path, noisy().clip(1).astype(np.uint16))


def write_photo(path: Path) -> None:
    Image.fromarray(np.moveaxis(noisy(3), 0, -1).clip(0, 255).astype(np.uint8)).save(path)


def write_cells(path: Path) -> None:
    tifffile.imwrite(path, noisy(2, 2).astype(np.uint16), metadata={"axes": "TCYX"})


def write_scene(path: Path) -> None:
    scene = np.moveaxis(noisy(4), 0, -1).astype(np.uint16)
    tifffile.imwrite(path, scene, photometric="minisblack", planarconfig="contig")


def write_photos(folder: Path) -> None:
    folder.mkdir()
    for name in ("a.png", "b.png"):
        write_photo(folder / name)


def write_series(folder: Path) -> None:
    folder.mkdir()
    pydicom = pytest.importorskip("pydicom")
    for number in range(3):
        path = folder / f"{number}.dcm"
        write_dicom(path, noisy().astype(np.int16))
        dataset = pydicom.dcmread(path)
        dataset.SeriesInstanceUID, dataset.PixelSpacing = "1.2.3", [1, 1]
        dataset.ImageOrientationPatient = [1, 0, 0, 0, 1, 0]
        dataset.ImagePositionPatient = [0, 0, number]
        dataset.save_as(path)


def write_tomogram(path: Path) -> None:
    mrcfile = pytest.importorskip("mrcfile")
    with mrcfile.new(path) as file:
        file.set_data(noisy(3).astype(np.int16))
        file.set_volume()


def write_nrrd(path: Path) -> None:
    nrrd = pytest.importorskip("nrrd")
    nrrd.write(str(path), noisy(3).astype(np.int16).T, {"spacings": [1.0, 1.0, 1.0]})


def write_volume(path: Path) -> None:
    nibabel = pytest.importorskip("nibabel")
    nibabel.save(nibabel.Nifti1Image(noisy(3).astype(np.int16).T, np.eye(4)), path)


FILES: dict[str, Callable[[Path], object]] = {
    "noisy.jpg": write_photo,
    "noisy.png": write_photo,
    "noisy/": write_photos,
    "counts.tif": write_tiff,
    "raw.tif": write_tiff,
    "noisy.tif": write_tiff,
    "cells.ome.tif": write_cells,
    "series/": write_series,
    "scan.nii.gz": write_volume,
    "scan.nrrd": write_nrrd,
    "tomogram.mrc": write_tomogram,
    "scene.tif": write_scene,
    "levels.tif": lambda path: tifffile.imwrite(path, np.full((SIDE, SIDE), 10.0, np.float32)),
    "spectrum.npy": lambda path: np.save(path, np.full((SIDE, SIDE), 100.0 * SIDE**2)),
    "valid.png": lambda path: Image.fromarray(np.full((SIDE, SIDE), 255, np.uint8)).save(path),
}


@pytest.mark.slow
@pytest.mark.usefixtures("one_process")
@pytest.mark.filterwarnings("ignore::UserWarning")  # of volumes and of small images
@pytest.mark.parametrize(("data", "cell"), ROWS, ids=[data for data, _ in ROWS])
def test_row(data: str, cell: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for name, write in FILES.items():
        if name in cell:
            write(tmp_path / name)
    commands = re.findall(r"`integrodiff ([^`]*)`", cell)
    for command in commands:
        words, _, piped = command.partition(" < ")
        source = (tmp_path / piped.split(" > ")[0]).read_bytes() if piped else None
        result = run(*shlex.split(words), input=source)
        assert result.exit_code == 0, result.output
        target = tmp_path / (words.split()[2] if len(words.split()) > 2 else ".")
        if piped:
            (tmp_path / "clean.tif").write_bytes(result.stdout_bytes)
            target = tmp_path / "clean.tif"
        for path in target.iterdir() if target.is_dir() else [target]:
            if not path.name.startswith("."):
                assert np.isfinite(read_image(path).pixels).all()
    options = re.findall(r"add `(--[^`]*)` or `(--[^`]*)`", cell)
    for option in options[0] if options else ():
        write_tiff(tmp_path / "image.tif")
        result = run("denoise", "image.tif", "clean.tif", *option.split(), "--overwrite")
        assert result.exit_code == 0, result.output
    calls = re.findall(r"`(denoise\([^`]*)`", cell)
    for call in calls:
        names = {"denoise": integrodiff.denoise, "array": noisy(2, 2), "sigma": 10}
        assert eval(call, names).shape == (2, 2, SIDE, SIDE)  # noqa: S307 - our own example
    assert commands or options or calls
