"""Small files that would expand to gigabytes: refused in a moment, with little memory.

Each file is given to the command in a process of its own, whose memory and time are measured.
"""

from __future__ import annotations

import bz2
import io
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
import pydicom
import pytest
import tifffile
import zarr
from foreign_files import FOLDER
from image_samples import values
from numpy.lib import format as npy_format
from PIL import Image
from pydicom.encaps import encapsulate
from pydicom.uid import (
    JPEG2000,
    DeflatedExplicitVRLittleEndian,
    JPEGBaseline8Bit,
    RLELossless,
)

# Each starts a process of its own, with a limit of memory.
pytestmark = pytest.mark.long

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

REFUSED, NOT_WRITTEN = 3, 4
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
        resource.setrlimit(resource.RLIMIT_CPU, (BUSY * SECONDS, BUSY * SECONDS))

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
    return process.returncode, message, int(peak or 0) * 1024.0, seconds


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
    assert code in (0, REFUSED, NOT_WRITTEN), message
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


def exif_that_expands(size: int, tags: int) -> bytes:
    """Return EXIF data whose tags all have the same values, as many as there are bytes."""
    head = b"II*\0" + struct.pack("<IH", 8, tags)
    entry = b"".join(struct.pack("<HHII", 1000 + tag, 1, size, 8) for tag in range(tags))
    return b"Exif\0\0" + (head + entry + bytes(4)).ljust(size + 8, b"\0")


def riff(*chunks: tuple[bytes, bytes]) -> bytes:
    body = b"".join(
        kind + struct.pack("<I", len(data)) + data + bytes(len(data) % 2) for kind, data in chunks
    )
    return b"RIFF" + struct.pack("<I", len(body) + 4) + b"WEBP" + body


def jpeg(*segments: tuple[int, bytes]) -> bytes:
    """Return a small picture with segments behind its beginning."""
    stream = io.BytesIO()
    Image.fromarray(values(64, 64)).save(stream, "JPEG")
    whole = stream.getvalue()
    added = [bytes([0xFF, kind]) + struct.pack(">H", len(d) + 2) + d for kind, d in segments]
    return whole[:2] + b"".join(added) + whole[2:]


def test_exif_of_jpeg(tmp_path: Path) -> None:
    """Tags of a megabyte each that all lie in the same place; several segments are joined."""
    data = exif_that_expands(2**20, 4000).removeprefix(b"Exif\0\0")
    parts = [data[at : at + 60_000] for at in range(0, len(data), 60_000)]
    (tmp_path / "in.jpg").write_bytes(jpeg(*[(0xE1, b"Exif\0\0" + part) for part in parts]))
    check_bounded(tmp_path / "in.jpg")


def test_many_segments_of_jpeg(tmp_path: Path) -> None:
    """Joining them one by one takes the square of their number."""
    (tmp_path / "in.jpg").write_bytes(jpeg(*[(0xE1, b"Exif\0\0" + bytes(200))] * 100_000))
    check_refused(tmp_path / "in.jpg", "segments before its pixels")


@pytest.mark.parametrize("kind", [0xE2, 0xE1, None], ids=["profile", "XMP", "junk"])
def test_length_of_metadata_of_jpeg(tmp_path: Path, kind: int | None) -> None:
    path = tmp_path / "in.jpg"
    if kind is None:  # what is no segment is passed over byte by byte
        whole = jpeg()
        path.write_bytes(whole[:20] + bytes(2**24) + whole[20:])
    else:
        names = {0xE1: b"http://ns.adobe.com/xap/1.0/\0", 0xE2: b"ICC_PROFILE\0\1\1"}
        path.write_bytes(jpeg(*[(kind, names[kind] + bytes(65_000))] * 1900))
    check_refused(path, "bytes of metadata" if kind else "stray bytes between its metadata")


def webp_of(pixels: tuple[int, int] = (64, 64)) -> tuple[bytes, bytes]:
    """Return the chunk of a picture."""
    stream = io.BytesIO()
    Image.new("RGB", pixels[::-1]).save(stream, "WEBP", lossless=True)
    return b"VP8L", stream.getvalue()[20:]


def extended(flags: int, size: tuple[int, int] = (64, 64)) -> tuple[bytes, bytes]:
    """Return the chunk that announces metadata."""
    height, width = size
    return b"VP8X", struct.pack("<I", flags) + b"".join(
        (length - 1).to_bytes(3, "little") for length in (width, height)
    )


def test_exif_of_webp(tmp_path: Path) -> None:
    data = exif_that_expands(2**20, 4000).removeprefix(b"Exif\0\0")
    (tmp_path / "in.webp").write_bytes(riff(extended(8), webp_of(), (b"EXIF", data)))
    check_bounded(tmp_path / "in.webp")


@pytest.mark.parametrize("kind", [b"ICCP", b"XMP ", b"what", b"VP8L"])
def test_length_of_webp(tmp_path: Path, kind: bytes) -> None:
    """A chunk of a gigabyte that takes no room on the disk."""
    path, flags = tmp_path / "in.webp", {b"ICCP": 32, b"XMP ": 4}.get(kind, 0)
    head = riff(extended(flags), *([] if kind == b"VP8L" else [webp_of()]))
    tail = webp_of()[1][:40] if kind == b"VP8L" else b""
    path.write_bytes(
        head[:4]
        + struct.pack("<I", len(head) + 2**30)
        + head[8:]
        + kind
        + struct.pack("<I", 2**30)
        + tail
    )
    os.truncate(path, len(head) + 8 + 2**30)
    check_refused(path, "bytes, more than")


def test_small_picture_of_webp_in_a_large_frame(tmp_path: Path) -> None:
    data = riff(extended(0, (13_000, 13_000)), webp_of(), (b"what", bytes(400_000)))
    (tmp_path / "in.webp").write_bytes(data)
    check_refused(tmp_path / "in.webp", "")


@pytest.mark.parametrize("kind", [b"eXIf", b"what"])
def test_length_of_metadata_of_png(tmp_path: Path, kind: bytes) -> None:
    path, whole = tmp_path / "in.png", png([])
    path.write_bytes(whole[:33] + struct.pack(">I", 2**30) + kind)
    os.truncate(path, 2**30 + 50)
    check_refused(path, "of metadata")


def test_exif_of_png(tmp_path: Path) -> None:
    data = exif_that_expands(2**20, 4000).removeprefix(b"Exif\0\0")
    (tmp_path / "in.png").write_bytes(png([(b"eXIf", data)]))
    check_bounded(tmp_path / "in.png")


# ---- DICOM ----


def dicom(path: Path, frame: bytes, syntax: str, kind: str = "MONOCHROME2") -> None:
    """Write a file of 64 x 64 pixels with 8 bits, and a frame."""
    dataset = pydicom.dcmread(FOLDER / "explicit.dcm")
    dataset.Rows = dataset.Columns = 64
    dataset.BitsAllocated, dataset.BitsStored, dataset.HighBit = 8, 8, 7
    dataset.PhotometricInterpretation = kind
    dataset.SamplesPerPixel = 1 if kind == "MONOCHROME2" else 3
    dataset.PlanarConfiguration = 0
    dataset.PixelData = encapsulate([frame], has_bot=False)
    dataset["PixelData"].VR = "OB"
    dataset.file_meta.TransferSyntaxUID = pydicom.uid.UID(syntax)
    dataset.save_as(path)


def test_rle_of_dicom(tmp_path: Path) -> None:
    """Runs of 128 bytes, each in two."""
    frame = struct.pack("<16I", 1, 64, *[0] * 14) + b"\x81\0" * (BOMB // 128)
    dicom(tmp_path / "in.dcm", frame, RLELossless)
    check_refused(tmp_path / "in.dcm", TOO_LARGE)


def test_jpeg_of_dicom(tmp_path: Path) -> None:
    stream = io.BytesIO()
    Image.new("RGB", (13_000, 13_000)).save(stream, "JPEG")
    dicom(tmp_path / "in.dcm", stream.getvalue(), JPEGBaseline8Bit, "YBR_FULL_422")
    check_refused(tmp_path / "in.dcm", "13000 x 13000 pixels")


def test_metadata_of_a_jpeg_in_dicom(tmp_path: Path) -> None:
    data = exif_that_expands(2**20, 4000).removeprefix(b"Exif\0\0")
    parts = [data[at : at + 60_000] for at in range(0, len(data), 60_000)]
    frame = jpeg(*[(0xE1, b"Exif\0\0" + part) for part in parts])
    dicom(tmp_path / "in.dcm", frame, JPEGBaseline8Bit)
    check_bounded(tmp_path / "in.dcm")


def test_scans_of_a_jpeg_in_dicom(tmp_path: Path) -> None:
    stream = io.BytesIO()
    Image.fromarray(values(64, 64)).save(stream, "JPEG", progressive=True)
    whole = stream.getvalue()
    last = whole.rindex(b"\xff\xda")
    frame = whole[:-2] + whole[last:-2] * 600 + whole[-2:]
    dicom(tmp_path / "in.dcm", frame, JPEGBaseline8Bit)
    check_refused(tmp_path / "in.dcm", "scans, and at most")


def test_jpeg_2000_of_dicom(tmp_path: Path) -> None:
    stream = io.BytesIO()
    Image.fromarray(values(64, 64)).save(stream, "JPEG2000", no_jp2=True)
    frame = bytearray(stream.getvalue())
    large = struct.pack(">6I", 13_000, 13_000, 0, 0, 13_000, 13_000)
    frame[8:32] = large
    dicom(tmp_path / "in.dcm", bytes(frame), JPEG2000)
    check_refused(tmp_path / "in.dcm", "13000 x 13000 pixels")


def test_deflated_dicom(tmp_path: Path) -> None:
    dicom(tmp_path / "in.dcm", bytes(2), RLELossless)
    whole = (tmp_path / "in.dcm").read_bytes()
    end = 144 + struct.unpack_from("<I", whole, 140)[0]
    syntax = b"1.2.840.10008.1.2.5\0"
    meta = whole[144:end].replace(
        struct.pack("<H", len(syntax)) + syntax,
        struct.pack("<H", 22) + DeflatedExplicitVRLittleEndian.encode(),
    )
    head = whole[:140] + struct.pack("<I", len(meta)) + meta
    (tmp_path / "in.dcm").write_bytes(head + deflated(b""))
    check_refused(tmp_path / "in.dcm", "is compressed as a whole")


def test_long_element_of_dicom(tmp_path: Path) -> None:
    """It claims four gigabytes, which are not there; the memory is not to blame."""
    whole = (FOLDER / "explicit.dcm").read_bytes()
    end = 144 + struct.unpack_from("<I", whole, 140)[0]
    element = struct.pack("<HH2sHI", 9, 0x1001, b"OB", 0, 2**32 - 18)
    (tmp_path / "in.dcm").write_bytes(whole[:end] + element + whole[end:])
    check_refused(
        tmp_path / "in.dcm",
        "has pixels of the kind unknown",
        "import resource; resource.setrlimit(resource.RLIMIT_AS, (2**31, 2**31)); ",
    )
