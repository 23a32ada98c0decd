"""Small files that would expand to gigabytes: refused in a moment, with little memory.

Each file is given to the command in a process of its own, whose memory and time are measured.
"""

from __future__ import annotations

import bz2
import json
import lzma
import os
import resource
import struct
import subprocess
import sys
import time
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import nibabel
import numpy as np
import pytest
import tifffile
import zarr
from image_samples import values
from numpy.lib import format as npy_format
from PIL import Image

pytestmark = pytest.mark.slow

HEIGHT, WIDTH = 1000, 1024
PIXELS = values(HEIGHT, WIDTH, dtype="uint16")
BOMB = 2**31
"""Bytes that the bombs hold."""

PIECE = 2**24
GZIP = b"\x1f\x8b\x08\0\0\0\0\0\0\xff"
LIMIT = 6 * 2**30
"""Address space of the process, in which decoders without a bound would end."""

MEMORY = 1e9
SECONDS = 5
BUSY = 4
"""How much slower than by itself the process may be on a busy machine, by processor time."""

REFUSED = 3
WITHOUT_IMAGECODECS = "import sys; sys.modules['imagecodecs'] = None; "
# Peak memory since the program was started; resource usage would count that of its parent too.
RUN = r"""
import re, sys
from pathlib import Path
from integrodiff.cli import main
try:
    main()
finally:
    peak = re.search(r"VmHWM:\s*(\d+)", Path("/proc/self/status").read_text())
    print("peak", peak[1], file=sys.stderr)
"""


def denoise(source: Path, target: Path, before: str = "") -> tuple[int, str, float, float]:
    """Run the command; return its exit code, its message, and its memory and processor time."""

    def limited() -> None:
        resource.setrlimit(resource.RLIMIT_AS, (LIMIT, LIMIT))

    words = [sys.executable, "-c", before + RUN, "denoise", source, target, "--sigma", "9"]
    process = subprocess.Popen(
        [*map(str, words), "--engine", "numpy", "--model", "eed"],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
        preexec_fn=limited,
        env={**os.environ, "OMP_NUM_THREADS": "1", "COLUMNS": "2000"},
    )
    assert process.stderr is not None
    with process.stderr as stream:
        message, _, peak = stream.read().rpartition("peak ")
    _, status, usage = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    seconds = usage.ru_utime + usage.ru_stime
    return process.returncode, message, int(peak) * 1024.0, seconds


def check_refused(source: Path, words: str, before: str = "") -> None:
    """Check that a file is refused as it should be, and nothing is left beside it."""
    around = set(source.parent.iterdir())
    started = time.perf_counter()
    code, message, memory, seconds = denoise(
        source, source.with_name("out" + "".join(source.suffixes)), before
    )
    assert words in " ".join(message.split())
    assert code == REFUSED
    assert memory < MEMORY
    assert seconds < SECONDS
    assert time.perf_counter() - started < BUSY * SECONDS
    assert set(source.parent.iterdir()) == around


# ---- compressed zeros ----


def deflated(head: bytes, content: bytes = b"") -> bytes:
    """Return content and then zeros compressed by deflate, one block of them repeated."""
    deflate = zlib.compressobj(9, wbits=-15)
    first = deflate.compress(content) + deflate.flush(zlib.Z_FULL_FLUSH)
    piece = deflate.compress(bytes(PIECE)) + deflate.flush(zlib.Z_FULL_FLUSH)
    return head + first + piece * (BOMB // PIECE)


def of_zlib() -> bytes:
    return deflated(b"\x78\xda")


def of_gzip() -> bytes:
    return deflated(GZIP)


def of_bz2() -> bytes:
    return bz2.compress(bytes(PIECE)) * (BOMB // PIECE)


def of_lzma() -> bytes:
    return lzma.compress(bytes(PIECE)) * (BOMB // PIECE)


def of_zstd(declared: bool = False) -> bytes:
    """Return a frame whose blocks repeat one byte each."""
    size = 2**17
    count = BOMB // size
    heads = [
        (2 | size << 3 | (number == count - 1)).to_bytes(3, "little") for number in range(count)
    ]
    flags, more = (0xC0, struct.pack("<Q", BOMB)) if declared else (0, b"")
    return b"\x28\xb5\x2f\xfd" + bytes([flags, 0x58]) + more + b"".join(h + b"\0" for h in heads)


def of_blosc() -> bytes:
    return struct.pack("<BBBBIII", 2, 1, 0x22, 1, 2**31 - 1, 2**31 - 1, 10_016) + bytes(10_000)


def of_lz4() -> bytes:
    return struct.pack("<I", 2**31 - 1) + b"\x1f\0\x01\0" + b"\xff" * 10_000


# ---- Zarr ----

TOO_LARGE = "compressed data hold more than"
VERSION_2: dict[str, Callable[[], bytes]] = {
    "blosc": of_blosc,
    "bz2": of_bz2,
    "gzip": of_gzip,
    "lz4": of_lz4,
    "lzma": of_lzma,
    "zlib": of_zlib,
    "zstd": of_zstd,
}


def edit(path: Path, **changes: Any) -> None:
    path.write_text(json.dumps({**json.loads(path.read_text()), **changes}))


@pytest.mark.parametrize("codec", VERSION_2)
def test_chunk_of_zarr_2(tmp_path: Path, codec: str) -> None:
    path = tmp_path / "in.zarr"
    zarr.create_array(path, data=PIXELS, chunks=PIXELS.shape, zarr_format=2, compressors=None)
    edit(path / ".zarray", compressor={"id": codec})
    (path / "0.0").write_bytes(VERSION_2[codec]())
    check_refused(path, TOO_LARGE)


@pytest.mark.parametrize(
    ("codec", "sharded"), [("blosc", False), ("gzip", True), ("zstd", False), ("zstd", True)]
)
def test_chunk_of_zarr_3(tmp_path: Path, codec: str, sharded: bool) -> None:
    path = tmp_path / "in.zarr"
    zarr.create_array(
        path,
        data=PIXELS,
        chunks=PIXELS.shape,
        shards=PIXELS.shape if sharded else None,
        compressors=None,
    )
    content = json.loads((path / "zarr.json").read_text())
    name: dict[str, Any] = {"name": codec}
    if codec == "blosc":
        options = {"cname": "zstd", "clevel": 5, "shuffle": "noshuffle", "blocksize": 0}
        name["configuration"] = {"typesize": 2, **options}
    else:
        name["configuration"] = {"level": 5, **({"checksum": False} if codec == "zstd" else {})}
    data = VERSION_2[codec]()
    if sharded:
        content["codecs"][0]["configuration"]["codecs"].append(name)
        index = struct.pack("<QQ", 0, len(data))
        content["codecs"][0]["configuration"]["index_codecs"] = [
            {"name": "bytes", "configuration": {"endian": "little"}}
        ]
        data += index
    else:
        content["codecs"].append(name)
    (path / "zarr.json").write_text(json.dumps(content))
    next(p for p in (path / "c").rglob("*") if p.is_file()).write_bytes(data)
    check_refused(path, TOO_LARGE)


def test_declared_size_of_zstd(tmp_path: Path) -> None:
    path = tmp_path / "in.zarr"
    zarr.create_array(path, data=PIXELS, chunks=PIXELS.shape, zarr_format=2, compressors=None)
    edit(path / ".zarray", compressor={"id": "zstd"})
    (path / "0.0").write_bytes(of_zstd(declared=True))
    check_refused(path, TOO_LARGE)


def chunks(path: Path) -> list[Path]:
    return [p for p in path.rglob("*") if p.is_file() and p.name != "zarr.json"]


def test_many_chunks(tmp_path: Path) -> None:
    """The size agrees with what is stored, but not the number of chunks."""
    path = tmp_path / "in.zarr"
    zarr.create_array(path, shape=(8000, 8000), chunks=(1, 1), dtype="u1", compressors=None)
    (path / "c" / "0").mkdir(parents=True)
    for number in range(10):
        (path / "c" / "0" / str(number)).write_bytes(bytes(10_000))
    check_refused(path, "64000000 chunks in planes that are read together")


def test_chunks_larger_than_the_image(tmp_path: Path) -> None:
    path = tmp_path / "in.zarr"
    array = zarr.create_array(path, data=PIXELS, chunks=(1, WIDTH), compressors=None)
    grid = {"name": "regular", "configuration": {"chunk_shape": [1, 10**8]}}
    edit(path / "zarr.json", chunk_grid=grid)
    assert array.nbytes < 1e7
    check_refused(path, "times as much as the image")


def test_chunk_with_more_bytes_than_pixels(tmp_path: Path) -> None:
    path = tmp_path / "in.zarr"
    zarr.create_array(path, data=PIXELS, chunks=PIXELS.shape, compressors=None)
    os.truncate(chunks(path)[0], BOMB)  # takes no room on the disk
    check_refused(path, "more than its pixels")


@pytest.mark.parametrize("name", ["zarr.json", "0/zarr.json"])
def test_metadata_that_are_a_link(tmp_path: Path, name: str) -> None:
    """What lies elsewhere would be copied to the result."""
    path, foreign = tmp_path / "in.zarr", tmp_path / "private.json"
    group = zarr.open_group(path, mode="w")
    group.create_array("0", data=PIXELS)
    image: Any = {"axes": [{"name": "y"}, {"name": "x"}], "datasets": [{"path": "0"}]}
    group.attrs["ome"] = {"version": "0.5", "multiscales": [image]}
    (path / name).rename(foreign)
    edit(foreign, attributes={**json.loads(foreign.read_text())["attributes"], "secret": 1})
    (path / name).symlink_to(foreign)
    check_refused(path, "has a link that leads out of its folder")


# ---- NIfTI ----


def nifti(extension: int, offset: float) -> bytes:
    """Return a header, and the beginning of an extension of a size."""
    header = nibabel.Nifti1Header()
    header.set_data_shape(PIXELS.shape[::-1])
    header.set_data_dtype(PIXELS.dtype)
    header["vox_offset"] = offset
    return bytes(header.binaryblock) + b"\1\0\0\0" + struct.pack("<ii", extension, 6)


@pytest.mark.parametrize("offset", [2**20, 2**30], ids=["short", "long"])
def test_extension_of_nifti(tmp_path: Path, offset: int) -> None:
    size = 2**31 - 16
    head = nifti(size, offset)
    whole = deflated(GZIP, head)
    (tmp_path / "in.nii.gz").write_bytes(whole)
    check_refused(tmp_path / "in.nii.gz", "cannot be decoded" if offset < 2**30 else "at most")


def test_what_follows_the_pixels_of_nifti(tmp_path: Path) -> None:
    """A stream that goes on behind the pixels is not read on."""
    header = nibabel.Nifti1Header()
    header.set_data_shape(PIXELS.shape[::-1])
    header.set_data_dtype(PIXELS.dtype)
    header["vox_offset"] = 352
    head = bytes(header.binaryblock) + bytes(4) + PIXELS.tobytes()
    whole = deflated(GZIP, head)
    (tmp_path / "in.nii.gz").write_bytes(whole)
    code, _, memory, _ = denoise(tmp_path / "in.nii.gz", tmp_path / "out.nii.gz")
    assert code == 0
    assert memory < MEMORY


# ---- TIFF ----


def tiff(path: Path, compression: int, data: bytes, **tags: int) -> None:
    """Write a TIFF file with one strip, or one tile."""
    entries = {256: WIDTH, 257: HEIGHT, 258: 16, 259: compression, 262: 1, 277: 1}
    layout = {324: 8, 325: len(data)} if "tile" in tags else {273: 8, 278: HEIGHT, 279: len(data)}
    if "tile" in tags:
        layout |= {322: tags["tile"], 323: tags["tile"]}
    listed = sorted((entries | layout).items())
    directory = struct.pack("<H", len(listed))
    directory += b"".join(struct.pack("<HHII", tag, 4, 1, value) for tag, value in listed)
    directory += bytes(4)
    path.write_bytes(struct.pack("<2sHI", b"II", 42, 8 + len(data)) + data + directory)


@pytest.mark.parametrize("codecs", [True, False], ids=["imagecodecs", "standard library"])
@pytest.mark.parametrize("compression", [8, 34925, 50000])
def test_strip_of_tiff(tmp_path: Path, compression: int, codecs: bool) -> None:
    data = {34925: of_lzma, 50000: of_zstd}.get(compression, of_zlib)()
    tiff(tmp_path / "in.tif", compression, data)
    before = "" if codecs else WITHOUT_IMAGECODECS
    if codecs:
        check_bounded(tmp_path / "in.tif")
    else:
        words = "imagecodecs" if compression == 50000 else TOO_LARGE
        check_refused(tmp_path / "in.tif", words, before)


def check_bounded(source: Path) -> None:
    """Check that a file is refused, or read in part, without much memory."""
    target = source.with_name("out" + source.suffix)
    code, message, memory, seconds = denoise(source, target)
    assert code in (0, REFUSED), message
    assert memory < MEMORY
    assert seconds < SECONDS


@pytest.mark.parametrize("codecs", [True, False], ids=["imagecodecs", "standard library"])
def test_tile_of_tiff(tmp_path: Path, codecs: bool) -> None:
    tiff(tmp_path / "in.tif", 8, of_zlib(), tile=2**15)
    check_refused(tmp_path / "in.tif", "bombs allows", "" if codecs else WITHOUT_IMAGECODECS)
    tiff(tmp_path / "in.tif", 8, of_zlib(), tile=13_000 // 16 * 16)
    check_refused(tmp_path / "in.tif", "times its pixels", "" if codecs else WITHOUT_IMAGECODECS)


def test_jpeg_in_tiff(tmp_path: Path) -> None:
    pytest.importorskip("imagecodecs")
    path = tmp_path / "in.tif"
    small = np.zeros((64, 64), np.uint8)
    tifffile.imwrite(path, small, compression="jpeg", photometric="minisblack")
    Image.new("L", (30_000, 30_000)).save(tmp_path / "large.jpg")
    data = (tmp_path / "large.jpg").read_bytes()
    (tmp_path / "large.jpg").unlink()
    with tifffile.TiffFile(path, mode="r+") as tif:
        tags = tif.pages.first.tags
        at = tif.filehandle.size
        tags["StripOffsets"].overwrite(at)
        tags["StripByteCounts"].overwrite(len(data))
    with path.open("r+b") as stream:
        stream.seek(at)
        stream.write(data)
    check_refused(path, "a strip or tile of it is larger")


# ---- PNG, WebP, JPEG, NPY ----


def png(chunks: list[tuple[bytes, bytes]]) -> bytes:
    rows = b"".join(b"\0" + bytes(64) for _ in range(64))
    head = (b"IHDR", struct.pack(">IIBBBBB", 64, 64, 8, 0, 0, 0, 0))
    parts = [head, *chunks, (b"IDAT", zlib.compress(rows)), (b"IEND", b"")]
    return b"\x89PNG\r\n\x1a\n" + b"".join(
        struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))
        for kind, data in parts
    )


@pytest.mark.parametrize(
    ("kind", "head"),
    [(b"iTXt", b"k\0\1\0\0\0"), (b"iCCP", b"k\0\0")],
)
def test_chunk_of_png(tmp_path: Path, kind: bytes, head: bytes) -> None:
    (tmp_path / "in.png").write_bytes(png([(kind, head + of_zlib())]))
    check_bounded(tmp_path / "in.png")


def test_header_of_npy(tmp_path: Path) -> None:
    path = tmp_path / "in.npy"
    path.write_bytes(npy_format.magic(2, 0) + struct.pack("<I", BOMB))
    os.truncate(path, 2 * BOMB)  # takes no room on the disk
    check_refused(path, "has a header of more than")


def test_scans_of_jpeg(tmp_path: Path) -> None:
    """Each scan goes over the whole image, however few bytes it has."""
    path = tmp_path / "in.jpg"
    Image.fromarray(values(HEIGHT, WIDTH)).save(path, progressive=True)
    whole = path.read_bytes()
    last = whole.rindex(b"\xff\xda")
    path.write_bytes(whole[:-2] + whole[last:-2] * 600 + whole[-2:])
    check_refused(path, "scans, and at most")
