"""Files that other programs wrote: what is in them comes out, and is there again in a new file."""

from __future__ import annotations

import json
import shutil
import subprocess
from pathlib import Path
from typing import Any

import nibabel
import numpy as np
import pydicom
import pytest
import tifffile
from PIL import Image

import foreign_files
from foreign_files import FILES, FOLDER, expected
from integrodiff._image_files import ImageFile, read_image, write_image
from integrodiff.errors import ImageFileError

WITH_PIXELS = [name for name, file in FILES.items() if file.pixels]


@pytest.fixture(params=["committed", "made now"])
def origin(request: pytest.FixtureRequest) -> str:
    """Whether files come with the repository or are made by the programs on this machine."""
    return str(request.param)


def foreign(name: str, origin: str, tmp_path: Path) -> Path:
    """Return a file of another program."""
    if origin == "committed":
        return FOLDER / name
    if missing := foreign_files.missing_programs(FILES[name]):
        pytest.skip(f"needs the programs {', '.join(missing)}")
    folder = tmp_path / "made"
    folder.mkdir()
    return foreign_files.make(name, folder)


def again(image: ImageFile, name: str, tmp_path: Path) -> Path:
    """Write an image under the same name elsewhere."""
    write_image(tmp_path / name, image)
    return tmp_path / name


@pytest.mark.parametrize("name", WITH_PIXELS)
def test_pixels_are_what_was_put_in(name: str, origin: str, tmp_path: Path) -> None:
    image = read_image(foreign(name, origin, tmp_path))
    pixels = expected(FILES[name].pixels)
    if name == "palette.tif":
        pixels = np.stack([pixels] * 3, axis=-1)
    assert image.pixels.shape == pixels.shape
    assert image.pixels.dtype == pixels.dtype
    difference = np.abs(image.pixels.astype(int) - pixels)
    assert difference.max() <= FILES[name].tolerance
    result = read_image(again(image, name, tmp_path))
    assert (result.pixels.shape, result.pixels.dtype) == (pixels.shape, pixels.dtype)
    if name != "rgb8.jpg":
        assert np.array_equal(result.pixels, image.pixels)
    assert np.abs(result.pixels.astype(int) - pixels).max() <= 2 * FILES[name].tolerance


def info(path: Path) -> dict[str, Any]:
    with Image.open(path) as picture:
        picture.load()
        found = {str(name): value for name, value in picture.info.items()}
        return {**found, "make": picture.getexif().get(0x010F)}


@pytest.mark.parametrize("name", ["grey16.png", "rgb16.png", "rgb8.jpg", "rgb8.webp"])
def test_pictures_keep_profile_resolution_and_exif(name: str, origin: str, tmp_path: Path) -> None:
    source = foreign(name, origin, tmp_path)
    old, new = info(source), info(again(read_image(source), name, tmp_path))
    kept = ["icc_profile", "exif", "make"] if name != "grey16.png" else []
    kept += ["dpi"] if name != "rgb8.webp" else []
    assert {key: new.get(key) for key in kept} == {key: old.get(key) for key in kept}
    if name == "rgb16.png":
        assert old["icc_profile"][36:40] == b"acsp"
        assert {key: text for key, text in new.items() if ":" in key} == {
            key: text for key, text in old.items() if ":" in key
        }
    if "8." in name:
        assert new["make"] == "a camera"


LAYOUT = ("StripOffsets", "StripByteCounts", "TileOffsets", "TileByteCounts", "RowsPerStrip")


@pytest.mark.parametrize("name", [n for n in WITH_PIXELS if n.endswith("f") and n != "jpeg.tif"])
def test_tiff_keeps_its_tags_and_its_layout(name: str, origin: str, tmp_path: Path) -> None:
    source = foreign(name, origin, tmp_path)
    target = again(read_image(source), name, tmp_path)
    with tifffile.TiffFile(source) as old, tifffile.TiffFile(target) as new:
        assert (old.byteorder, old.is_bigtiff) == (new.byteorder, new.is_bigtiff)
        for before, after in zip(old.pages, new.pages, strict=True):
            first, second = before.aspage(), after.aspage()
            assert (first.is_tiled, first.compression) == (second.is_tiled, second.compression)
            tags = {tag.name: tag.value for tag in second.tags}
            layout = {*LAYOUT, "PhotometricInterpretation", "ColorMap", "SamplesPerPixel"}
            layout |= {"BitsPerSample", "FillOrder", "SampleFormat", "PlanarConfiguration"}
            layout |= {"WhitePoint", "PrimaryChromaticities", "NewSubfileType", "SubfileType"}
            for tag in first.tags:
                if tag.name not in layout:
                    assert tags[tag.name] == tag.value, tag.name


def test_another_program_reads_the_tiff_that_we_write(tmp_path: Path) -> None:
    program = shutil.which("tiffinfo")
    if program is None:
        pytest.skip("needs the program tiffinfo")
    for name in (n for n in WITH_PIXELS if n.endswith(".tif")):
        target = again(read_image(FOLDER / name), name, tmp_path)
        done = subprocess.run([program, "-D", target], capture_output=True, text=True)
        assert (done.returncode, done.stderr) == (0, ""), name


def elements(path: Path) -> dict[str, Any]:
    """Return all elements but those that a derived image has anew."""
    content = pydicom.dcmread(path).to_json_dict()
    new = ("00080008", "00080018", "00082112")
    return {tag: value for tag, value in content.items() if tag not in new}


@pytest.mark.parametrize("name", ["explicit.dcm", "implicit.dcm", "bigendian.dcm", "colour.dcm"])
def test_dicom_keeps_its_elements(name: str, origin: str, tmp_path: Path) -> None:
    source = foreign(name, origin, tmp_path)
    target = again(read_image(source), name, tmp_path)
    assert json.dumps(elements(target)) == json.dumps(elements(source))
    old, new = pydicom.dcmread(source), pydicom.dcmread(target)
    assert old.file_meta.TransferSyntaxUID == new.file_meta.TransferSyntaxUID
    assert new.SOPInstanceUID == new.file_meta.MediaStorageSOPInstanceUID != old.SOPInstanceUID
    assert new.SourceImageSequence[0].ReferencedSOPInstanceUID == old.SOPInstanceUID
    assert new.ImageType[0] == "DERIVED"
    if checker := shutil.which("dcmftest"):
        done = subprocess.run([checker, target], capture_output=True, text=True)
        assert done.stdout.startswith("yes:")


def test_compressed_dicom_becomes_plain(tmp_path: Path) -> None:
    image = read_image(FOLDER / "rle.dcm")
    assert "RLE Lossless" in image.notes[0]
    new = pydicom.dcmread(again(image, "rle.dcm", tmp_path))
    assert new.file_meta.TransferSyntaxUID == pydicom.uid.ExplicitVRLittleEndian
    assert np.array_equal(new.pixel_array, expected("grey12"))


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("deflated.dcm", "compressed as a whole.*dcmconv"),
        ("lossless-jpeg.dcm", r"JPEG Lossless.*pip install 'pylibjpeg\[all\]'"),
    ],
)
def test_dicom_that_cannot_be_decoded(name: str, message: str, origin: str, tmp_path: Path) -> None:
    with pytest.raises(ImageFileError, match=message):
        read_image(foreign(name, origin, tmp_path))


@pytest.mark.parametrize("suffix", [".nii", ".nii.gz"])
def test_nifti_keeps_its_header(suffix: str, origin: str, tmp_path: Path) -> None:
    source = foreign("empty.nii", origin, tmp_path)
    image = read_image(source)
    assert image.pixels.shape == (3, 2, 13, 17)
    assert "scales by 2" in image.notes[0]
    pixels = np.arange(image.pixels.size, dtype=np.uint16).reshape(image.pixels.shape)
    target = again(image.with_pixels(pixels), f"new{suffix}", tmp_path)
    old: Any = nibabel.load(source)
    new: Any = nibabel.load(target)
    assert new.header == old.header
    assert np.array_equal(new.affine, old.affine)
    assert new.header["descrip"].item() == b"gradient"
    assert np.array_equal(new.get_fdata(), 2.0 * pixels.T)
    assert np.array_equal(read_image(target).pixels, pixels)
