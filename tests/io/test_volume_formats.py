"""MRC and NRRD: round trips by the readers of other programs, geometry and fields one by one."""

from __future__ import annotations

import bz2
import gzip
import io
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import mrcfile
import nrrd
import numpy as np
import pytest
import SimpleITK
from command_line import run
from numpy.typing import NDArray

from integrodiff import ImageFileError, denoise
from integrodiff.io import open_image, read_image, write_image

SETTINGS = ("--sigma", 12, "--data-range", 255, "--engine", "numpy")
ARGUMENTS: dict[str, Any] = {"sigma": 12, "data_range": 255, "engine": "numpy"}


def volume(dtype: str = "int16", slices: int = 4) -> NDArray[Any]:
    z, y, x = np.mgrid[:slices, :14, :18]
    noise = np.random.default_rng(1).normal(0, 12, z.shape)
    return np.asarray(90 + 30 * (x + y + 3 * z > 18) + noise, dtype)


# ---- MRC ----

STATISTICS = ("dmin", "dmax", "dmean", "rms")


def write_mrc(path: Path, pixels: NDArray[Any], **fields: Any) -> None:
    """Write a map with an unusual header."""
    with warnings.catch_warnings(), mrcfile.new(path) as file:
        warnings.simplefilter("ignore")
        file.set_data(pixels)
        if fields.pop("volume", True):
            file.set_volume()
        file.voxel_size = (2.5, 2.5, 5.0)
        file.header.nxstart, file.header.origin.y = -7, 12.5
        file.set_extended_header(np.frombuffer(b"tilt angles of all sections", "V27"))
        file.header.exttyp = b"SERI"
        file.add_label("made by hand")
        for name, value in fields.items():
            file.header[name] = value


def mrc_fields(path: Path) -> dict[str, Any]:
    with mrcfile.open(path, permissive=True) as file:
        fields = {name: file.header[name].tolist() for name in file.header.dtype.names}
        return {**fields, "extended": file.extended_header.tobytes()}


@pytest.mark.parametrize("dtype", ["int8", "int16", "uint16", "float16", "float32"])
def test_mrc_round_trip(tmp_path: Path, dtype: str) -> None:
    pixels = volume(dtype)
    write_mrc(tmp_path / "in.mrc", pixels)
    image = read_image(tmp_path / "in.mrc")
    np.testing.assert_array_equal(image.pixels, pixels)
    assert (image.axes, image.pixels.dtype) == ("ZYX", np.dtype(dtype))
    assert {a: s.value for a, s in image.spacing.items()} == {"X": 2.5, "Y": 2.5, "Z": 5.0}
    assert {s.unit for s in image.spacing.values()} == {"Å"}
    changed = image.with_pixels((image.pixels // 2).astype(dtype))
    assert write_image(tmp_path / "out.mrc", changed) == ()
    old, new = mrc_fields(tmp_path / "in.mrc"), mrc_fields(tmp_path / "out.mrc")
    assert {k: v for k, v in new.items() if k not in STATISTICS} == {
        k: v for k, v in old.items() if k not in STATISTICS
    }
    values = changed.pixels.astype(float)
    expected = values.min(), values.max(), values.mean(), values.std()
    assert [new[name] for name in STATISTICS] == pytest.approx(expected, rel=1e-3)
    with mrcfile.open(tmp_path / "out.mrc") as file:
        np.testing.assert_array_equal(file.data, changed.pixels)
    problems = io.StringIO()
    if dtype != "float16":  # in which mrcfile sums squares, too many of them
        assert mrcfile.validate(tmp_path / "out.mrc", print_file=problems), problems.getvalue()
    if dtype in ("int16", "float32"):
        before, after = (SimpleITK.ReadImage(tmp_path / name) for name in ("in.mrc", "out.mrc"))
        assert after.GetSpacing() == before.GetSpacing() == (2.5, 2.5, 5.0)
        assert after.GetOrigin() == before.GetOrigin()
        np.testing.assert_array_equal(SimpleITK.GetArrayFromImage(after), changed.pixels)


@pytest.mark.slow
def test_axes_of_the_cell_give_the_spacing(tmp_path: Path) -> None:
    """Columns along Z, rows along X: the order in the file stays, the spacing follows."""
    pixels = volume("float32")
    write_mrc(tmp_path / "in.map", pixels, mapc=3, mapr=1, maps=2)
    with mrcfile.open(tmp_path / "in.map", "r+", permissive=True) as file:
        file.header.cella = (14 * 1.0, 4 * 2.0, 18 * 3.0)
        file.header.mx, file.header.my, file.header.mz = 14, 4, 18
    image = read_image(tmp_path / "in.map")
    np.testing.assert_array_equal(image.pixels, pixels)
    assert {a: s.value for a, s in image.spacing.items()} == {"X": 3.0, "Y": 1.0, "Z": 2.0}
    result = run("denoise", tmp_path / "in.map", tmp_path / "out.map", *SETTINGS)
    assert result.exit_code == 0, result.stderr
    with pytest.warns(UserWarning, match="spacing"):
        expected = denoise(pixels, axes="ZYX", spacing=(2, 1, 3), **ARGUMENTS)
    np.testing.assert_array_equal(read_image(tmp_path / "out.map").pixels, expected)
    old, new = mrc_fields(tmp_path / "in.map"), mrc_fields(tmp_path / "out.map")
    assert [new[name] for name in ("mapc", "mapr", "maps")] == [3, 1, 2]
    assert new["cella"] == old["cella"]


@pytest.mark.parametrize(
    ("fields", "axes", "hint"),
    [
        ({"volume": False, "ispg": 0, "mz": 1}, "QYX", False),
        ({"volume": False, "ispg": 0, "mz": 4}, "QYX", True),
        ({"ispg": 1}, "ZYX", False),
        ({"ispg": 19}, "ZYX", False),
        ({"ispg": 401, "mz": 2}, "QZYX", False),
    ],
)
def test_stack_or_volume(tmp_path: Path, fields: dict[str, Any], axes: str, hint: bool) -> None:
    write_mrc(tmp_path / "in.mrc", volume(), **fields)
    image = read_image(tmp_path / "in.mrc")
    assert image.axes == axes
    assert any("--volume" in note for note in image.notes) == hint
    np.testing.assert_array_equal(image.pixels.reshape(4, 14, 18), volume())
    assert ("Z" in image.spacing) == (axes != "QYX" or hint)


@pytest.mark.parametrize("order", ["<", ">"])
def test_mrc_of_both_byte_orders(tmp_path: Path, order: str) -> None:
    write_mrc(tmp_path / "in.mrc", volume(f"{order}f4"))
    image = read_image(tmp_path / "in.mrc")
    write_image(tmp_path / "out.mrc", image)
    with mrcfile.open(tmp_path / "out.mrc") as file:
        assert file.data.dtype == np.dtype(f"{order}f4")
        np.testing.assert_array_equal(file.data, volume("float32"))


@pytest.mark.parametrize("by", ["imod", "maximum"])
def test_unsigned_bytes(tmp_path: Path, by: str) -> None:
    """IMOD marks them; elsewhere a maximum above 127 tells."""
    pixels = (volume("uint8") + 60).astype(np.uint8)
    write_mrc(tmp_path / "in.mrc", pixels.view(np.int8))
    data = bytearray((tmp_path / "in.mrc").read_bytes())
    if by == "imod":
        data[152:160] = (1146047817).to_bytes(4, "little") + bytes(4)
    else:
        data[80:84] = np.float32(pixels.max()).tobytes()
    (tmp_path / "in.mrc").write_bytes(data)
    image = read_image(tmp_path / "in.mrc")
    np.testing.assert_array_equal(image.pixels, pixels)
    write_image(tmp_path / "out.mrc", image)
    np.testing.assert_array_equal(read_image(tmp_path / "out.mrc").pixels, pixels)
    assert mrc_fields(tmp_path / "out.mrc")["dmax"] == pixels.max()


def damaged_mrc(path: Path, at: int, value: int) -> None:
    write_mrc(path, volume(), mz=3 if value == 402 else 4)
    data = bytearray(path.read_bytes())
    data[at : at + 4] = value.to_bytes(4, "little", signed=True)
    path.write_bytes(data)


@pytest.mark.parametrize(
    ("at", "value", "message"),
    [
        (0, 10**9, "claims"),
        (4, 0, "without pixels"),
        (12, 7, "mode"),
        (12, 4, "complex64"),
        (64, 2, "MAPC, MAPR and MAPS"),
        (92, 2**31 - 1, "claims"),
        (92, -5, "extended header"),
        (88, 402, "no stack of volumes"),
        (52, 0x42F00000, "right angles"),
    ],
)
def test_damaged_mrc(tmp_path: Path, at: int, value: int, message: str) -> None:
    damaged_mrc(tmp_path / "in.mrc", at, value)
    with pytest.raises(ImageFileError, match=message):
        read_image(tmp_path / "in.mrc")


def test_an_extended_header_of_gigabytes(tmp_path: Path) -> None:
    path = tmp_path / "in.mrc"
    write_mrc(path, volume(), nsymbt=2**31 - 1)
    with path.open("r+b") as stream:
        stream.truncate(2**32)
    with pytest.raises(ImageFileError, match="has an extended header of 2147483647 bytes"):
        read_image(path)


@pytest.mark.slow
def test_mrc_of_floats_and_other_formats(tmp_path: Path) -> None:
    write_mrc(tmp_path / "in.mrc", volume())
    result = run("denoise", tmp_path / "in.mrc", tmp_path / "out.rec", "--float", *SETTINGS)
    assert result.exit_code == 0, result.stderr
    with mrcfile.open(tmp_path / "out.rec") as file:
        assert (file.data.dtype, int(file.header.mode)) == (np.float32, 2)
    (note,) = write_image(tmp_path / "out.tif", read_image(tmp_path / "in.mrc"))
    assert "header of the MRC file" in note
    with pytest.raises(ImageFileError, match="from MRC only"):
        write_image(tmp_path / "back.mrc", read_image(tmp_path / "out.tif"))


# ---- NRRD ----

DIRECTION = (0.8, 0.6, 0.0, -0.6, 0.8, 0.0, 0.0, 0.0, 1.0)


def write_itk(path: Path, pixels: NDArray[Any], *, compressed: bool = False) -> None:
    image = SimpleITK.GetImageFromArray(pixels)
    image.SetSpacing((0.75, 0.75, 1.5))
    image.SetOrigin((-3.0, 4.5, 12.0))
    image.SetDirection(DIRECTION)
    image.SetMetaData("patient", "nobody")
    SimpleITK.WriteImage(image, path, useCompression=compressed)


@pytest.mark.parametrize("compressed", [False, True])
@pytest.mark.parametrize("dtype", ["uint8", "int16", "float32", "float64"])
def test_nrrd_round_trip(tmp_path: Path, dtype: str, compressed: bool) -> None:
    pixels = volume(dtype)
    write_itk(tmp_path / "in.nrrd", pixels, compressed=compressed)
    image = read_image(tmp_path / "in.nrrd")
    np.testing.assert_array_equal(image.pixels, pixels)
    assert (image.axes, image.pixels.dtype.name) == ("ZYX", dtype)
    assert {a: s.value for a, s in image.spacing.items()} == pytest.approx(
        {"X": 0.75, "Y": 0.75, "Z": 1.5}
    )
    changed = image.with_pixels((pixels // 2).astype(dtype))
    assert write_image(tmp_path / "out.nrrd", changed) == ()
    before, after = (SimpleITK.ReadImage(tmp_path / name) for name in ("in.nrrd", "out.nrrd"))
    np.testing.assert_array_equal(SimpleITK.GetArrayFromImage(after), changed.pixels)
    assert after.GetSpacing() == before.GetSpacing()
    assert after.GetOrigin() == before.GetOrigin()
    assert after.GetDirection() == before.GetDirection()
    assert after.GetMetaDataKeys() == before.GetMetaDataKeys()
    for key in before.GetMetaDataKeys():
        assert after.GetMetaData(key) == before.GetMetaData(key)
    assert nrrd_fields(tmp_path / "out.nrrd") == nrrd_fields(tmp_path / "in.nrrd")


def nrrd_fields(path: Path) -> dict[str, Any]:
    header = nrrd.read_header(str(path))
    aliases = {"short": "int16", "unsigned char": "uint8"}
    fields = {k: v.tolist() if isinstance(v, np.ndarray) else v for k, v in header.items()}
    return {**fields, "type": aliases.get(fields["type"], fields["type"])}


def test_lines_of_the_header_are_kept(tmp_path: Path) -> None:
    """Comments and pairs of keys and values too; extremes are left out, and the data file."""
    data = volume().astype(">i2").tobytes()
    lines = [
        "NRRD0005",
        "# a comment",
        "type: short",
        "dimension: 3",
        "sizes: 18 14 4",
        "spacings: 1 1 nan",
        'units: "mm" "mm" ""',
        "kinds: domain domain time",
        "endian: big",
        "encoding: bz2",
        "min: 3",
        "content: a: b := c",
        "data file: pixels.raw.bz2",
        "name := Käfer: 7",
        "max:=7",
    ]
    (tmp_path / "in.nhdr").write_bytes(("\n".join(lines) + "\n").encode())
    (tmp_path / "pixels.raw.bz2").write_bytes(bz2.compress(data))
    image = read_image(tmp_path / "in.nhdr")
    assert image.axes == "TYX"
    assert "pixels.raw.bz2" in image.notes[0]
    np.testing.assert_array_equal(image.pixels, volume())
    write_image(tmp_path / "out.nrrd", image)
    head, _, packed = (tmp_path / "out.nrrd").read_bytes().partition(b"\n\n")
    dropped = ("min: 3", "data file: pixels.raw.bz2")
    expected = [line for line in lines if line not in dropped]
    expected[2], expected[9] = "type: int16", "encoding: bzip2"
    assert head.decode().splitlines() == expected
    assert bz2.decompress(packed) == data
    found, header = nrrd.read(str(tmp_path / "out.nrrd"))
    np.testing.assert_array_equal(found.T, volume())
    assert header["max"] == 7
    assert header["name"] == "Kfer: 7"  # pynrrd reads ASCII


FIELDS = {"type": "uint8", "dimension": "3", "sizes": "18 14 4", "encoding": "raw"}


def write_fields(path: Path, data: bytes | None = None, **fields: Any) -> None:
    merged = {**FIELDS, **{name.replace("_", " "): value for name, value in fields.items()}}
    lines = ["NRRD0004", *(f"{name}: {value}" for name, value in merged.items() if value)]
    pixels = volume("uint8").tobytes() if data is None else data
    path.write_bytes("\n".join(lines).encode() + b"\n\n" + pixels)


@pytest.mark.parametrize(
    ("fields", "axes"),
    [
        ({}, "QYX"),
        ({"spacings": "1 1 2"}, "ZYX"),
        ({"spacings": "1 1 nan"}, "QYX"),
        ({"kinds": "domain domain domain"}, "ZYX"),
        ({"kinds": "space space time"}, "TYX"),
        ({"kinds": "domain domain list"}, "CYX"),
        ({"kinds": "??? ??? ???", "spacings": "1 1 2"}, "ZYX"),
        ({"space_dimension": "3", "space_directions": "(1,0,0) (0,1,0) (0,0,2)"}, "ZYX"),
        ({"space_dimension": "2", "space_directions": "(1,0) (0,1) none"}, "QYX"),
        ({"dimension": "4", "sizes": "9 2 14 4", "kinds": "domain domain domain list"}, "CZYX"),
        ({"sizes": "3 84 4", "kinds": "RGB-color domain domain"}, "YXS"),
        ({"dimension": "2", "sizes": "72 14"}, "YX"),
    ],
)
def test_axes_of_nrrd(tmp_path: Path, fields: dict[str, Any], axes: str) -> None:
    write_fields(tmp_path / "in.nrrd", **fields)
    image = read_image(tmp_path / "in.nrrd")
    assert image.axes == axes
    assert image.pixels.tobytes() == volume("uint8").tobytes()
    write_image(tmp_path / "out.nrrd", image)
    assert (tmp_path / "out.nrrd").read_bytes() == (tmp_path / "in.nrrd").read_bytes()


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"sizes": "18 14"}, "is no image"),
        ({"sizes": "18 14 -4"}, "without pixels"),
        ({"sizes": "18 14 99999999"}, "claims"),
        ({"sizes": ""}, "no field 'sizes'"),
        ({"encoding": "hex"}, "neither raw nor compressed"),
        ({"encoding": "gzip", "sizes": "90000 90000 1"}, "claims|bombs"),
        ({"encoding": "gzip"}, "cannot be decoded"),
        ({"type": "block"}, "no numbers"),
        ({"type": "short"}, "byte order"),
        ({"data_file": "../in.raw"}, "not in the same folder"),
        ({"data_file": "/etc/passwd"}, "not in the same folder"),
        ({"data_file": "LIST"}, "several files"),
        ({"data_file": "missing.raw"}, "no file missing.raw"),
        ({"byte_skip": "-2"}, "skips"),
        ({"kinds": "vector domain domain"}, "of the kind 'vector'"),
        ({"kinds": "domain time domain"}, "is no image"),
        ({"space_dimension": "3", "space_directions": "(1,0,0) (1,1,0) (0,0,2)"}, "right angles"),
    ],
)
def test_refused_nrrd(tmp_path: Path, fields: dict[str, Any], message: str) -> None:
    write_fields(tmp_path / "in.nrrd", **fields)
    with pytest.raises(ImageFileError, match=message):
        read_image(tmp_path / "in.nrrd")


def test_bytes_before_the_pixels(tmp_path: Path) -> None:
    pixels = volume("uint8").tobytes()
    for skip in ("5", "-1"):
        write_fields(tmp_path / "in.nrrd", b"12345" + pixels, byte_skip=skip)
        assert read_image(tmp_path / "in.nrrd").pixels.tobytes() == pixels
    write_fields(tmp_path / "in.nrrd", gzip.compress(pixels), encoding="gz")
    with open_image(tmp_path / "in.nrrd") as image:
        for _ in range(2):
            assert b"".join(page.tobytes() for page in image.planes()) == pixels


@pytest.mark.slow
@pytest.mark.parametrize(("suffix", "write"), [(".mrc", write_mrc), (".nrrd", write_itk)])
def test_command_line(tmp_path: Path, suffix: str, write: Callable[..., None]) -> None:
    names = tmp_path / f"in{suffix}", tmp_path / f"out{suffix}"
    write(names[0], volume("float32"))
    result = run("denoise", *names, *SETTINGS)
    assert result.exit_code == 0, result.stderr
    assert "volume, spacing 2 : 1 : 1 (z : y : x, from the file)" in " ".join(result.stderr.split())
    expected = denoise(volume("float32"), axes="ZYX", spacing=(2, 1, 1), **ARGUMENTS)
    np.testing.assert_array_equal(read_image(names[1]).pixels, expected)


@pytest.mark.parametrize("mode", [3, 16, 101])
def test_modes_of_mrc_that_are_not_supported(tmp_path: Path, mode: int) -> None:
    """They are no damage."""
    with mrcfile.new(tmp_path / "in.mrc", np.zeros((3, 4, 5), np.float32)):
        pass
    with (tmp_path / "in.mrc").open("r+b") as stream:
        stream.seek(12)
        stream.write(mode.to_bytes(4, "little"))
    with pytest.raises(ImageFileError, match=f"mode {mode}, .* is not supported") as caught:
        read_image(tmp_path / "in.mrc")
    assert "damaged" not in str(caught.value)
