"""Files that other programs wrote: what is in them comes out, and is there again in a new file."""

from __future__ import annotations

import json
import shutil
import subprocess
from dataclasses import replace
from pathlib import Path
from typing import Any

import foreign_files
import nibabel
import numpy as np
import pydicom
import pytest
import tifffile
from foreign_files import FILES, FOLDER, expected
from PIL import Image

from integrodiff.errors import ImageFileError
from integrodiff.io import ImageFile, read_image, write_image

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


@pytest.mark.slow
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
    if not name.endswith(".jpg"):
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


def without_places(value: Any) -> Any:
    """Return the value of a tag, which may be a directory that says where another one is."""
    if not isinstance(value, dict):
        return value
    return {name: part for name, part in value.items() if name != "InteroperabilityTag"}


LAYOUT = ("StripOffsets", "StripByteCounts", "TileOffsets", "TileByteCounts", "RowsPerStrip")


@pytest.mark.slow
@pytest.mark.parametrize("name", [n for n in WITH_PIXELS if n.endswith(".tif") and n != "jpeg.tif"])
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
                if tag.name not in layout and (tag.name, tag.value) != ("Predictor", 1):
                    assert without_places(tags[tag.name]) == without_places(tag.value), tag.name


def test_another_program_reads_the_tiff_that_we_write(tmp_path: Path) -> None:
    program = shutil.which("tiffinfo")
    if program is None:
        pytest.skip("needs the program tiffinfo")
    for name in (n for n in WITH_PIXELS if n.endswith(".tif")):
        target = again(read_image(FOLDER / name), name, tmp_path)
        # That program does not know all tags, wherever they are.
        known = subprocess.run([program, "-D", FOLDER / name], capture_output=True, text=True)
        done = subprocess.run([program, "-D", target], capture_output=True, text=True)
        said = set(done.stderr.splitlines()) - set(known.stderr.splitlines())
        assert (done.returncode, said) == (0, set()), name


def exif_of(path: Path) -> dict[str, Any]:
    """Return what Pillow finds in EXIF data, but for places in the file."""
    with Image.open(path) as picture:
        exif = picture.getexif()
        top = {tag: exif.get(tag) for tag in (0x010F, 0x0112, 0x0132)}
        parts = {str(ifd): dict(exif.get_ifd(ifd)) for ifd in (0x8769, 0x8825, 0xA005)}
        del parts[str(0x8769)][0xA005]
        return {"top": top, **parts}


@pytest.mark.parametrize("name", ["exif.jpg", "exif.tif"])
def test_exif_data_travel_through_all_formats(name: str, origin: str, tmp_path: Path) -> None:
    source = foreign(name, origin, tmp_path)
    expected = exif_of(source)
    assert expected["top"] == {0x010F: "a camera", 0x0112: 8, 0x0132: "2026:11:15 12:00:00"}
    assert expected[str(0x8769)][0xA434] == "a long lens"
    assert expected[str(0x8825)][2] == (49, 15, 30)
    assert expected[str(0xA005)] == {1: "R98"}
    for step in (".tif", ".png", ".tif", ".jpg", ".tif"):
        image = read_image(source)
        if step == ".jpg":
            image = replace(image, pixels=(image.pixels >> 8).astype(np.uint8))
        target = tmp_path / f"{source.stem}-{step}"
        assert not any("EXIF" in note for note in write_image(target, image))
        assert exif_of(target) == expected, step
        source = target


def test_another_program_finds_the_exif_data(tmp_path: Path) -> None:
    program = shutil.which("exiv2")
    if program is None:
        pytest.skip("needs the program exiv2")

    def found(path: Path) -> list[str]:
        lines = subprocess.run([program, "-pa", path], capture_output=True, text=True, check=True)
        camera = [r for r in lines.stdout.splitlines() if "Tag " not in r and "Image" not in r]
        return sorted(camera)

    for name in ("exif.jpg", "exif.tif"):
        expected = found(FOLDER / name)
        assert len(expected) == 7
        write_image(tmp_path / "out.tif", read_image(FOLDER / name), overwrite=True)
        assert found(tmp_path / "out.tif") == expected


def elements(path: Path) -> dict[str, Any]:
    """Return all elements but those that a derived image has anew."""
    content = pydicom.dcmread(path).to_json_dict()
    content["7FE00010"].pop("vr")  # bytes may be stored as bytes or as words
    new = ("00080008", "00080018", "00082112", "0008103E", "00082111", "0020000E")
    return {tag: value for tag, value in content.items() if tag not in new}


@pytest.mark.parametrize("name", ["cmyk.jpg", "cmyk.tif"])
def test_inks_come_back(name: str, origin: str, tmp_path: Path) -> None:
    source = foreign(name, origin, tmp_path)
    image = read_image(source)
    assert image.header.kind == "CMYK"
    target = again(image, name, tmp_path)
    with Image.open(source) as old, Image.open(target) as new:
        assert (new.mode, new.size, new.info["dpi"]) == ("CMYK", old.size, (300, 300))
        difference = np.asarray(new).astype(int) - np.asarray(old)
        assert np.abs(difference).max() <= (0 if name.endswith(".tif") else 8)
        # Inks are what red, green and blue lack; ImageMagick takes black out of them.
        cyan, magenta, yellow, black = (np.asarray(old)[..., n].astype(int) for n in range(4))
        red = expected("rgb8")[..., 0]
        assert np.abs((255 - cyan) * (255 - black) / 255 - red).max() < 12
        assert magenta.max() > 0
        assert yellow.max() > 0
        if name.endswith(".jpg"):
            assert old.quantization[0] == new.quantization[0]  # type: ignore[attr-defined]


def test_gif_and_bmp_keep_comment_and_resolution(tmp_path: Path) -> None:
    with Image.open(again(read_image(FOLDER / "grey8.gif"), "grey8.gif", tmp_path)) as picture:
        assert picture.info["comment"] == b"gradient"
    with Image.open(again(read_image(FOLDER / "rgb8.bmp"), "rgb8.bmp", tmp_path)) as picture:
        assert picture.info["dpi"] == pytest.approx((300, 300), abs=0.1)


DICOM = ["explicit.dcm", "implicit.dcm", "bigendian.dcm", "colour.dcm", "secondary.dcm"]


@pytest.mark.parametrize("name", DICOM)
def test_dcmdump_shows_the_same_elements(name: str, tmp_path: Path) -> None:
    dump = shutil.which("dcmdump")
    if dump is None:
        pytest.skip("needs the program dcmdump")

    def shown(path: Path) -> dict[str, str]:
        done = subprocess.run([dump, "-q", path], capture_output=True, text=True, check=True)
        lines = [line for line in done.stdout.splitlines() if line.startswith("(")]
        return {line[:11]: " ".join(line.partition("#")[0].split()) for line in lines}

    old, new = shown(FOLDER / name), shown(again(read_image(FOLDER / name), name, tmp_path))
    # Of a derived image: group lengths and writer of the file, instance, series and derivation.
    made = {"(0002,0000)", "(0002,0003)", "(0002,0012)", "(0002,0013)", "(0002,0016)"}
    made |= {"(0008,0008)", "(0008,0018)", "(0008,103e)", "(0008,2111)", "(0008,2112)"}
    made |= {"(0020,000e)", "(fffe,e0dd)", "(7fe0,0010)"}  # pixels are compared elsewhere
    different = {tag for tag in {*old, *new} if old.get(tag) != new.get(tag)}
    assert different <= made


@pytest.mark.parametrize("name", DICOM)
def test_dicom_keeps_its_elements(name: str, origin: str, tmp_path: Path) -> None:
    source = foreign(name, origin, tmp_path)
    target = again(read_image(source), name, tmp_path)
    assert json.dumps(elements(target)) == json.dumps(elements(source))
    old, new = pydicom.dcmread(source), pydicom.dcmread(target)
    assert old.file_meta.TransferSyntaxUID == new.file_meta.TransferSyntaxUID
    assert new.SOPInstanceUID == new.file_meta.MediaStorageSOPInstanceUID != old.SOPInstanceUID
    assert new.SourceImageSequence[0].ReferencedSOPInstanceUID == old.SOPInstanceUID
    assert new.ImageType[0] == "DERIVED"
    assert new.SeriesInstanceUID != old.get("SeriesInstanceUID")
    assert new.SeriesDescription.endswith("(denoised)")
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
