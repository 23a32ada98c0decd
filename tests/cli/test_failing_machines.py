"""Missing packages, full disks, and others who write: one message, and nothing left behind."""

from __future__ import annotations

import resource
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import nibabel
import numpy as np
import pydicom
import pytest
import tifffile
import zarr
from command_line import run
from foreign_files import FOLDER
from image_samples import values
from numpy.typing import NDArray
from PIL import Image

from integrodiff.errors import ImageFileError
from integrodiff.io import (
    ImageFile,
    Page,
    create_image,
    open_image,
    read_image,
    write_image,
)
from integrodiff.io.formats.tiff_tags import TiffDetails

# ---- missing packages ----


@pytest.mark.parametrize(
    ("name", "package", "extra"),
    [
        ("explicit.dcm", "pydicom", "medical"),
        ("empty.nii", "nibabel", "medical"),
        ("ome05.zarr", "zarr", "zarr"),
        ("rgb16.png", "imagecodecs", "codecs"),
    ],
)
def test_missing_packages_are_named(
    tmp_path: Path, without_package: Callable[[str], None], name: str, package: str, extra: str
) -> None:
    image = read_image(FOLDER / name)
    message = rf"needs the package {package}: pip install .*\[{extra}\]'"
    without_package(package)
    with pytest.raises(ImageFileError, match=message):
        read_image(FOLDER / name)
    with pytest.raises(ImageFileError, match=message):
        write_image(tmp_path / f"out{Path(name).suffix}", image)
    result = run("denoise", FOLDER / name, tmp_path / "out.tif", "--sigma", 9)
    assert result.exit_code == 3
    assert f"[{extra}]'" in result.stderr


PLAIN_INSTALLATION = """
import sys
for name in ("imagecodecs", "nibabel", "pydicom", "zarr"):
    sys.modules[name] = None
from integrodiff.io import read_image, write_image
from integrodiff.errors import ImageFileError
folder, target, *names = sys.argv[1:]
for name in names:
    try:
        write_image(f"{target}/{name}", read_image(f"{folder}/{name}"))
        print(name, "copied")
    except ImageFileError as error:
        print(name, str(error).split("pip install ")[1].split("[")[1].split("]")[0])
"""


@pytest.mark.slow
def test_plain_installation(tmp_path: Path) -> None:
    """Without any extra, in a process where their packages cannot be imported."""
    plain = ["grey16.png", "rgb8.jpg", "rgb8.webp", "pages.tif", "big.tif", "deflate.tif"]
    plain += ["packbits.tif", "planes.tif", "palette.tif"]
    extras = {"lzw.tif": "codecs", "zstandard.tif": "codecs", "jpeg.tif": "codecs"}
    extras |= {"rgb16.png": "codecs", "rle.dcm": "medical", "empty.nii": "medical"}
    extras |= {"ome04.zarr": "zarr"}
    done = subprocess.run(
        [sys.executable, "-c", PLAIN_INSTALLATION, FOLDER, tmp_path, *plain, *extras],
        capture_output=True,
        text=True,
    )
    found = dict(line.split() for line in done.stdout.splitlines())
    assert found == {**dict.fromkeys(plain, "copied"), **extras}, done.stderr
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted(plain)
    for name in plain:
        if name != "rgb8.jpg":
            copy, original = read_image(tmp_path / name), read_image(FOLDER / name)
            assert np.array_equal(copy.pixels, original.pixels)


# ---- machines that fail ----


def small_disk() -> None:
    """Let files become no longer than this; a longer one is an error as on a full disk."""
    resource.setrlimit(resource.RLIMIT_FSIZE, (3000, 3000))


def write_cloud_optimised(path: Path, pixels: NDArray[Any]) -> None:
    """Write a pyramid of two levels in the layout of one that GDAL made."""
    image = read_image(FOLDER / "cog.tif")
    details = image.metadata.own
    assert isinstance(details, TiffDetails)
    level = details.levels[0][0]._replace(size=(30, 35))
    metadata = replace(image.metadata, own=replace(details, levels=((level,),)))
    write_image(path, ImageFile(pixels=pixels, metadata=metadata))


@pytest.mark.long
@pytest.mark.parametrize(
    "suffix", [".png", ".tif", ".cog.tif", ".bmp", ".npy", ".nii", ".nii.gz", ".dcm", ".zarr"]
)
def test_full_disk(tmp_path: Path, suffix: str) -> None:
    pixels = values(60, 70, dtype="uint16")
    source, target = tmp_path / f"in{suffix}", tmp_path / f"out{suffix}"
    if suffix == ".zarr":
        zarr.create_array(source, data=pixels, chunks=(60, 70))
    elif suffix.startswith(".nii"):
        nibabel.save(nibabel.Nifti1Image(pixels, np.eye(4)), source)
    elif suffix == ".dcm":
        dataset = pydicom.dcmread(FOLDER / "explicit.dcm")
        dataset.Rows, dataset.Columns, dataset.PixelData = 60, 70, pixels.tobytes()
        dataset.save_as(source)
    elif suffix == ".npy":
        np.save(source, pixels)
    elif suffix == ".cog.tif":
        write_cloud_optimised(source, pixels)
    elif suffix == ".bmp":
        Image.fromarray((pixels >> 8).astype(np.uint8)).save(source)
    else:
        tifffile.imwrite(source, pixels)
    before = sorted(tmp_path.rglob("*"))
    words = ["denoise", str(source), str(target), "--sigma", "0", "--engine", "numpy"]
    done = subprocess.run(
        # Compiled modules would be cut off as well, and nobody would notice until they are needed.
        [sys.executable, "-B", "-m", "integrodiff.cli", *words],
        preexec_fn=small_disk,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 4, done.stderr
    assert done.stderr.startswith(f"error: {target}: cannot be written")
    assert done.stderr.count("\n") == 1
    assert sorted(tmp_path.rglob("*")) == before


@pytest.mark.parametrize("name", ["pages.tif", "ome05.zarr"])
def test_output_that_another_program_makes_meanwhile(tmp_path: Path, name: str) -> None:
    target = tmp_path / f"out{Path(name).suffix}"
    image = read_image(FOLDER / name)

    def pages() -> Iterator[Page]:
        yield from image
        target.write_bytes(b"precious")

    with (
        pytest.raises(ImageFileError, match="by another program in the meantime"),
        create_image(target, image.header) as result,
    ):
        list(map(result.write, pages()))
    assert [path.name for path in tmp_path.iterdir()] == [target.name]
    assert target.read_bytes() == b"precious"


def test_an_error_in_the_block_is_not_one_of_the_output(tmp_path: Path) -> None:
    with (
        pytest.raises(ValueError, match=r"^mine$"),
        open_image(FOLDER / "pages.tif") as image,
        create_image(tmp_path / "out.tif", image.header),
    ):
        raise ValueError("mine")
    with (
        pytest.raises(ImageFileError, match="0 of 2 pages were written"),
        open_image(FOLDER / "pages.tif") as image,
        create_image(tmp_path / "out.tif", image.header),
    ):
        pass
    assert list(tmp_path.iterdir()) == []


@pytest.mark.slow
def test_output_inside_of_the_input(tmp_path: Path) -> None:
    path = tmp_path / "in.zarr"
    zarr.create_array(path, data=values(5, 7))
    before = sorted(path.rglob("*"))
    for target in (path / "out.tif", path / "sub" / ".." / "out.zarr", path):
        result = run("denoise", path, target, "--sigma", 9, "--overwrite")
        assert result.exit_code == 4
        assert "inputs are never changed" in result.stderr
    assert sorted(path.rglob("*")) == before
