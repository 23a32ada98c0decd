"""Files made to do harm, and machines that fail: one clear message, and nothing left behind."""

from __future__ import annotations

import gzip
import json
import os
import pickle
import shutil
import struct
import subprocess
import warnings
import zlib
from pathlib import Path
from typing import Any

import nibabel
import numcodecs
import numpy as np
import pydicom
import pytest
import tifffile
import zarr
from foreign_files import FOLDER
from image_samples import HEIGHT, WIDTH, png_bytes, values
from numpy.lib import format as npy_format
from PIL import Image
from zarr.codecs import BloscCodec

from integrodiff.errors import ImageFileError
from integrodiff.io import create_image, open_image, read_image

PIXELS = values(2, 9, 11, dtype="uint16")
HUGE_CHUNKS = {"name": "regular", "configuration": {"chunk_shape": [2**20] * 3}}


class Trap:
    """Makes a file when it is unpickled."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def __reduce__(self) -> tuple[Any, ...]:
        return os.mkdir, (str(self._path),)


# ---- NPY ----


def npy(path: Path, description: dict[str, Any], data: bytes = b"") -> None:
    with path.open("wb") as stream:
        npy_format.write_array_header_1_0(stream, description)
        stream.write(data)


def test_nothing_is_unpickled_from_npy(tmp_path: Path) -> None:
    np.save(tmp_path / "in.npy", np.array([[Trap(tmp_path / "sprung")]]), allow_pickle=True)
    with pytest.raises(ImageFileError, match="type object"):
        read_image(tmp_path / "in.npy")
    assert not (tmp_path / "sprung").exists()


@pytest.mark.parametrize(
    ("shape", "descr", "message"),
    [
        ((10**6, 10**6), "<u2", "claims 2000000000000 bytes"),
        ((2**40, 2**40), "<u2", "claims"),
        ((-9, -11), "<u2", "without pixels"),
        ((9, 0), "<u2", "without pixels"),
        ((99,), "<u2", "no image"),
        ((9, 11), "<c8", "type complex64"),
        ((9, 11), "|b1", "type bool"),
        ((9, 11), [("a", "<u2")], "type void16"),
    ],
)
def test_npy_headers(tmp_path: Path, shape: Any, descr: Any, message: str) -> None:
    npy(tmp_path / "in.npy", {"descr": descr, "fortran_order": False, "shape": shape}, bytes(900))
    with pytest.raises(ImageFileError, match=message):
        read_image(tmp_path / "in.npy")


def test_long_npy_header(tmp_path: Path) -> None:
    text = b"{'descr': '<u2', 'fortran_order': False, 'shape': (" + b"1," * 10**6 + b")}\n"
    head = b"\x93NUMPY\x02\0" + struct.pack("<I", len(text))
    (tmp_path / "in.npy").write_bytes(head + text)
    with pytest.raises(ImageFileError, match="header of more than"):
        read_image(tmp_path / "in.npy")


# ---- Zarr ----


def zarr_array(path: Path, **options: Any) -> Path:
    zarr.create_array(path, data=PIXELS, **{"chunks": (1, 9, 11), **options})
    return path


def edit(path: Path, **changes: Any) -> None:
    path.write_text(json.dumps({**json.loads(path.read_text()), **changes}))


def test_nothing_is_unpickled_from_zarr(tmp_path: Path) -> None:
    path = zarr_array(tmp_path / "in.zarr", zarr_format=2, compressors=None)
    (path / "0.0.0").write_bytes(pickle.dumps(Trap(tmp_path / "sprung")))
    for place, codec in (("compressor", {"id": "pickle"}), ("filters", [{"id": "pickle"}])):
        edit(path / ".zarray", **{place: codec})
        with pytest.raises(ImageFileError, match="codec 'pickle', which is not supported"):
            read_image(path)
    assert not (tmp_path / "sprung").exists()


def ome(path: Path, dataset: str) -> Path:
    group = zarr.open_group(path, mode="w")
    group.create_array("0", data=PIXELS[0])
    image: Any = {"axes": [{"name": "y"}, {"name": "x"}], "datasets": [{"path": dataset}]}
    group.attrs["ome"] = {"version": "0.5", "multiscales": [image]}
    return path


@pytest.mark.parametrize("dataset", ["../other.zarr", "/etc", "0/../../other.zarr", "", "a\\b"])
def test_paths_out_of_a_zarr_folder(tmp_path: Path, dataset: str) -> None:
    zarr_array(tmp_path / "other.zarr")
    with pytest.raises(ImageFileError, match="outside of its folder"):
        read_image(ome(tmp_path / "in.zarr", dataset))


def test_links_out_of_a_zarr_folder(tmp_path: Path) -> None:
    zarr_array(tmp_path / "other.zarr")
    path = ome(tmp_path / "in.zarr", "link")
    (path / "link").symlink_to(tmp_path / "other.zarr")
    with pytest.raises(ImageFileError, match="leads out of its folder"):
        read_image(path)


@pytest.mark.parametrize("target", ["/dev/zero", "other.zarr", "pipe"])
def test_chunks_that_are_no_files(tmp_path: Path, target: str) -> None:
    zarr_array(tmp_path / "other.zarr")
    path = zarr_array(tmp_path / "in.zarr")
    chunk = next(p for p in path.rglob("0") if p.is_file())
    chunk.unlink()
    if target == "pipe":
        os.mkfifo(chunk)
    else:
        chunk.symlink_to(tmp_path / target)
    with pytest.raises(ImageFileError, match=r"leads out of its folder|neither file nor folder"):
        read_image(path)


@pytest.mark.parametrize(
    "options",
    [
        {"zarr_format": 2, "compressors": numcodecs.Blosc()},
        {"zarr_format": 3, "compressors": BloscCodec()},
        {"zarr_format": 3, "compressors": BloscCodec(), "shards": (2, 9, 11)},
    ],
    ids=["version 2", "version 3", "shards"],
)
def test_cut_chunk_of_blosc(tmp_path: Path, options: dict[str, Any]) -> None:
    """The decoder by itself gives what lies behind the data in memory, or crashes."""
    path = zarr_array(tmp_path / "in.zarr", **options)
    assert np.array_equal(read_image(path).pixels, PIXELS)
    chunk = next(p for p in path.rglob("*") if p.is_file() and p.name[0] in "0c")
    data = bytearray(chunk.read_bytes())
    at = data.index(struct.pack("<I", PIXELS[0].nbytes)) + 8  # behind the size comes the length
    struct.pack_into("<I", data, at, 2**30)
    chunk.write_bytes(data)
    with pytest.raises(ImageFileError, match="Blosc is cut off"):
        read_image(path)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"shape": [10**9, 9, 11]}, "claims"),
        ({"shape": [2, 0, 11]}, "without pixels"),
        ({"data_type": "complex64", "fill_value": [0.0, 0.0]}, "complex64"),
        ({"codecs": [{"name": "numcodecs.pickle"}]}, "not supported"),
        ({"node_type": "group"}, "without an OME-Zarr image"),
        ({"codecs": None}, "no usable list of codecs"),
        ({"chunk_grid": HUGE_CHUNKS}, "bombs"),
    ],
)
def test_zarr_metadata(tmp_path: Path, changes: dict[str, Any], message: str) -> None:
    path = zarr_array(tmp_path / "in.zarr")
    edit(path / "zarr.json", **changes)
    with pytest.raises(ImageFileError, match=message):
        read_image(path)


def copied(source: Path, target: Path) -> None:
    with open_image(source) as image, create_image(target, image.header) as copy:
        for page in image.pages():
            copy.write(page)


@pytest.mark.parametrize("name", ["fill_value", "order"])
def test_incomplete_metadata_of_zarr_2(tmp_path: Path, name: str) -> None:
    """Those of a smaller level are not needed to read the image, but to write another."""
    path = tmp_path / "in.zarr"
    group = zarr.open_group(path, mode="w", zarr_format=2)
    for level in (0, 1):
        group.create_array(str(level), data=PIXELS[0][:: 2**level, :: 2**level])
    levels = [{"path": "0"}, {"path": "1"}]
    image: Any = {"axes": [{"name": "y"}, {"name": "x"}], "datasets": levels}
    group.attrs["multiscales"] = [{"version": "0.4", **image}]
    content = json.loads((path / "1" / ".zarray").read_text())
    del content[name]
    (path / "1" / ".zarray").write_text(json.dumps(content))
    with pytest.raises(ImageFileError, match=r"damaged|cannot be decoded"):
        copied(path, tmp_path / "out.zarr")
    assert not (tmp_path / "out.zarr").exists()


def test_unknown_dtype_of_zarr_2(tmp_path: Path) -> None:
    path = zarr_array(tmp_path / "in.zarr", zarr_format=2, compressors=numcodecs.Zlib())
    edit(path / ".zarray", dtype="Uu2")
    with pytest.raises(ImageFileError, match="unknown type"):
        read_image(path)


@pytest.mark.parametrize("name", [".zattrs", ".zgroup", "0/.zarray", "0/.zattrs"])
def test_metadata_of_zarr_2_that_are_a_link(tmp_path: Path, name: str) -> None:
    """What lies elsewhere would be copied to the result."""
    path, foreign = tmp_path / "in.zarr", tmp_path / "private.json"
    group = zarr.open_group(path, mode="w", zarr_format=2)
    array = group.create_array("0", data=PIXELS[0])
    image: Any = {"axes": [{"name": "y"}, {"name": "x"}], "datasets": [{"path": "0"}]}
    group.attrs["multiscales"] = [{"version": "0.4", **image}]
    array.attrs["a"] = 1
    (path / name).rename(foreign)
    edit(foreign, secret=1)
    (path / name).symlink_to(foreign)
    with pytest.raises(ImageFileError, match="leads out of its folder"):
        copied(path, tmp_path / "out.zarr")


def test_folders_that_are_no_image(tmp_path: Path) -> None:
    with pytest.raises(ImageFileError, match="is a folder without a Zarr image"):
        read_image(tmp_path)
    (tmp_path / "zarr.json").write_text("[]")
    with pytest.raises(ImageFileError, match="no metadata"):
        read_image(tmp_path)
    (tmp_path / "zarr.json").write_text("[" * 100_000)
    with pytest.raises(ImageFileError, match="cannot be decoded"):
        read_image(tmp_path)


# ---- DICOM and NIfTI ----


@pytest.mark.parametrize(
    ("elements", "message"),
    [
        ({"NumberOfFrames": 10**9}, "claims"),
        ({"NumberOfFrames": -1}, "-1 frames"),
        ({"Rows": 65535, "Columns": 65535}, "claims"),
        ({"Rows": 0}, "without pixels"),
        ({"PhotometricInterpretation": "PALETTE COLOR"}, "PALETTE COLOR"),
        ({"SamplesPerPixel": 3}, "contradicts its kind"),
        ({"BitsAllocated": 1, "BitsStored": 1}, "bits per sample"),
        ({"HighBit": 7}, "upper bits"),
    ],
)
def test_dicom_headers(tmp_path: Path, elements: dict[str, Any], message: str) -> None:
    dataset = pydicom.dcmread(FOLDER / "explicit.dcm")
    for name, value in elements.items():
        setattr(dataset, name, value)
    dataset.save_as(tmp_path / "in.dcm")
    with pytest.raises(ImageFileError, match=message):
        read_image(tmp_path / "in.dcm")


def test_bomb_of_nifti(tmp_path: Path) -> None:
    header = nibabel.Nifti1Header()
    header.set_data_shape((30000, 30000, 30000))
    header.set_data_dtype(np.uint8)
    header["vox_offset"] = 352
    data = header.binaryblock + bytes(2_000_000)
    (tmp_path / "in.nii.gz").write_bytes(gzip.compress(data))
    (tmp_path / "in.nii").write_bytes(data)
    for name in ("in.nii", "in.nii.gz"):
        with pytest.raises(ImageFileError, match="claims"):
            read_image(tmp_path / name)


@pytest.mark.parametrize(
    ("field", "value", "message"),
    [
        ("magic", b"ni1", "one of a pair"),
        ("datatype", 128, "type"),
        ("datatype", 32, "type complex64"),
        ("vox_offset", 16, "cannot be decoded|inside its header"),
        ("dim", [1, 17, 1, 1, 1, 1, 1, 1], "no image"),
        ("dim", [2, 17, -3, 1, 1, 1, 1, 1], "cannot be decoded|without pixels"),
    ],
)
def test_nifti_headers(tmp_path: Path, field: str, value: Any, message: str) -> None:
    data = (FOLDER / "empty.nii").read_bytes()
    header = np.frombuffer(data[:348], nibabel.nifti1.header_dtype).copy()
    header[field] = value
    (tmp_path / "in.nii").write_bytes(header.tobytes() + data[348:])
    with pytest.raises(ImageFileError, match=message):
        read_image(tmp_path / "in.nii")


@pytest.mark.slow
@pytest.mark.parametrize("name", ["empty.nii", "explicit.dcm", "rgb8.webp", "rgb16.png"])
def test_every_cut_is_refused(tmp_path: Path, name: str) -> None:
    whole = (FOLDER / name).read_bytes()
    path = tmp_path / name
    for length in range(0, len(whole) - 12, 13):  # but for the last checksum of a PNG file
        path.write_bytes(whole[:length])
        with pytest.raises(ImageFileError):
            read_image(path)


def test_elements_of_dicom_that_cannot_be_written(tmp_path: Path) -> None:
    """The library puts a traceback into its message."""
    with open_image(FOLDER / "explicit.dcm") as image:
        own: Any = image.header.metadata.own
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            own.dataset.add_new(0x00091001, "LO", [object()])
        with pytest.raises(ImageFileError, match="cannot be written again") as caught:
            create_image(tmp_path / "out.dcm", image.header)
    assert "\n" not in str(caught.value)
    assert len(str(caught.value)) < 500


@pytest.mark.parametrize("name", ["TransferSyntaxUID", "PhotometricInterpretation"])
def test_dicom_says_odd_things(tmp_path: Path, name: str) -> None:
    """They appear in the message, but are short and without control characters."""
    dataset = pydicom.dcmread(FOLDER / "explicit.dcm")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        odd = "1.2" + "\n\x1b[2J" * 200
        setattr(dataset.file_meta if name.startswith("T") else dataset, name, odd)
        dataset.save_as(tmp_path / "in.dcm", implicit_vr=False, little_endian=True)
    with pytest.raises(ImageFileError, match="has pixels") as caught:
        read_image(tmp_path / "in.dcm")
    assert str(caught.value).removeprefix(str(tmp_path)).isprintable()
    assert len(str(caught.value)) < 500


# ---- TIFF ----


@pytest.mark.parametrize("tag", [259, 262, 273, 279, 317, 338])
@pytest.mark.parametrize("kind", [2, 3, 5])
def test_tags_with_other_values(tmp_path: Path, tag: int, kind: int) -> None:
    """Tags that hold one number have several, or text, or fractions."""
    path = tmp_path / "in.tif"
    tifffile.imwrite(path, PIXELS[0], compression="zlib", predictor=True, extrasamples=())
    data = bytearray(path.read_bytes())
    (place,) = struct.unpack_from("<I", data, 4)
    (number,) = struct.unpack_from("<H", data, place)
    for at in range(place + 2, place + 2 + 12 * number, 12):
        if struct.unpack_from("<H", data, at)[0] == tag:
            struct.pack_into("<HI", data, at + 2, kind, 2)
    path.write_bytes(data)
    try:
        read_image(path)
    except ImageFileError as error:
        assert len(str(error)) < 500  # noqa: PT017 - some of them do no harm


# ---- pictures ----


@pytest.mark.parametrize("interlace", [0, 1])
def test_missing_rows_of_png(tmp_path: Path, interlace: int) -> None:
    """Pillow makes rows that are not there black, without a word."""
    whole = bytearray(png_bytes(values(HEIGHT, WIDTH).tobytes(), depth=8, colour=0))
    struct.pack_into(">I", whole, 20, HEIGHT + 3)
    whole[28] = interlace
    struct.pack_into(">I", whole, 29, zlib.crc32(whole[12:29]))
    (tmp_path / "in.png").write_bytes(whole)
    with pytest.raises(ImageFileError, match="fewer rows"):
        read_image(tmp_path / "in.png")


def test_interlaced_png(tmp_path: Path) -> None:
    if (program := shutil.which("convert-im6.q16") or shutil.which("magick")) is None:
        pytest.skip("needs ImageMagick")
    for size in ((1, 1), (5, 3), (17, 13)):
        samples = values(size[1], size[0], 3)
        Image.fromarray(samples).save(tmp_path / "in.png")
        words = [program, "in.png", "-interlace", "PNG", "png24:out.png"]
        subprocess.run(words, cwd=tmp_path, check=True)
        assert (tmp_path / "out.png").read_bytes()[28] == 1
        assert np.array_equal(read_image(tmp_path / "out.png").pixels, samples)


def test_animated_webp(tmp_path: Path) -> None:
    frames = [Image.fromarray(values(HEIGHT, WIDTH, 3)), Image.new("RGB", (WIDTH, HEIGHT))]
    frames[0].save(tmp_path / "in.webp", save_all=True, append_images=frames[1:])
    with pytest.raises(ImageFileError, match="animated WebP"):
        read_image(tmp_path / "in.webp")


def test_an_end_of_png_that_claims_gigabytes(tmp_path: Path) -> None:
    Image.fromarray(values(8, 9)).save(tmp_path / "in.png")
    data = (tmp_path / "in.png").read_bytes()
    (tmp_path / "in.png").write_bytes(data[:-12] + b"\xff\xff\xff\xf0IEND")
    with pytest.raises(ImageFileError, match="bytes of metadata"):
        read_image(tmp_path / "in.png")


def test_byte_counts_that_are_words(tmp_path: Path) -> None:
    tifffile.imwrite(tmp_path / "in.tif", values(32, 32), tile=(16, 16), metadata=None)
    data = bytearray((tmp_path / "in.tif").read_bytes())
    with tifffile.TiffFile(tmp_path / "in.tif") as tif:
        page: Any = tif.pages[0]
        tag = page.tags["TileByteCounts"].offset
    data[tag + 2 : tag + 4] = (2).to_bytes(2, "little")  # the type of text
    (tmp_path / "in.tif").write_bytes(data)
    with pytest.raises(ImageFileError, match=r"strips or tiles|damaged"):
        read_image(tmp_path / "in.tif")
