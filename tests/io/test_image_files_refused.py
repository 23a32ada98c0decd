"""Image files that are refused: damaged, hostile, or not without loss."""

from __future__ import annotations

import io
import os
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tifffile
from full_disk import full_disk
from image_samples import HEIGHT, WIDTH, values
from PIL import Image

from integrodiff.errors import ImageFileError
from integrodiff.io import ImageFile, read_image, write_image


def tiff(samples: Any, **options: Any) -> bytes:
    stream = io.BytesIO()
    tifffile.imwrite(stream, samples, **options)
    return stream.getvalue()


def pillow(image: Image.Image, kind: str, **options: Any) -> bytes:
    stream = io.BytesIO()
    image.save(stream, kind, **options)
    return stream.getvalue()


def two_sizes() -> bytes:
    stream = io.BytesIO()
    with tifffile.TiffWriter(stream) as writer:
        for number in range(9):  # tifffile looks at a few pages only
            writer.write(values(HEIGHT - (number == 3), WIDTH), metadata=None)
    return stream.getvalue()


def pyramid(*sizes: tuple[int, int], below: bool = False, dtype: str = "uint8") -> bytes:
    stream = io.BytesIO()
    with tifffile.TiffWriter(stream) as writer:
        writer.write(values(HEIGHT, WIDTH), subifds=len(sizes) if below else None, metadata=None)
        for size in sizes:
            writer.write(values(*size).astype(dtype), subfiletype=1, metadata=None)
    return stream.getvalue()


def mask_page() -> bytes:
    stream = io.BytesIO()
    with tifffile.TiffWriter(stream) as writer:
        for _ in range(2):
            writer.write(values(HEIGHT, WIDTH), metadata=None)
            writer.write(values(HEIGHT, WIDTH) > 99, subfiletype=4, metadata=None)
    return stream.getvalue()


def circle_of_pages() -> bytes:
    data = bytearray(tiff(values(3, HEIGHT, WIDTH), photometric="minisblack", metadata=None))
    with tifffile.TiffFile(io.BytesIO(data)) as tif:
        offsets = [page.offset for page in tif.pages]
    tags = struct.unpack_from("<H", data, offsets[-1])[0]
    struct.pack_into("<I", data, offsets[-1] + 2 + 12 * tags, offsets[0])
    return bytes(data)


def tag_overwritten(data: bytes, code: int, value: int) -> bytes:
    with tifffile.TiffFile(io.BytesIO(data)) as tif:
        offset = tif.pages.first.tags[code].valueoffset
    changed = bytearray(data)
    struct.pack_into("<I", changed, offset, value)
    return bytes(changed)


GREY = values(HEIGHT, WIDTH)
COLOUR = values(HEIGHT, WIDTH, 3)
PNG = pillow(Image.fromarray(COLOUR), "PNG")
JPEG = pillow(Image.fromarray(COLOUR), "JPEG")
TIFF = tiff(GREY)
STACK = tiff(values(3, HEIGHT, WIDTH), photometric="minisblack", metadata=None)
DEFLATED = tiff(values(200, 300), compression="zlib")


def flipped(data: bytes, position: int) -> bytes:
    return data[:position] + bytes([data[position] ^ 0xFF]) + data[position + 1 :]


BAD: dict[str, tuple[Callable[[], bytes], str]] = {
    "empty": (lambda: b"", "is empty"),
    "text": (lambda: b"not an image at all", "this is not a PNG, JPEG, TIFF"),
    "gif animation": (
        lambda: pillow(
            Image.fromarray(GREY),
            "GIF",
            save_all=True,
            append_images=[Image.fromarray(255 - GREY)],
        ),
        "animated GIF.*TIFF stack",
    ),
    "gif cut": (lambda: pillow(Image.fromarray(GREY), "GIF")[:300], "damaged or incomplete"),
    "bmp mask": (lambda: pillow(Image.fromarray(GREY > 99), "BMP"), "one bit per pixel"),
    "bmp cut": (lambda: pillow(Image.fromarray(GREY), "BMP")[:-40], "damaged or incomplete"),
    "png header only": (lambda: PNG[:20], "header is damaged"),
    "png cut": (lambda: PNG[: len(PNG) // 2], "damaged or incomplete"),
    "png without end": (lambda: PNG[:-12], "damaged or incomplete"),
    "png flipped bit": (lambda: flipped(PNG, len(PNG) // 2), "damaged or incomplete"),
    "png mask": (lambda: pillow(Image.fromarray(GREY > 99), "PNG"), "one bit per pixel"),
    "png animation": (
        lambda: pillow(
            Image.fromarray(GREY),
            "PNG",
            save_all=True,
            append_images=[Image.fromarray(255 - GREY)],
        ),
        "animated PNG",
    ),
    "jpeg cut": (lambda: JPEG[: len(JPEG) // 2], "damaged or incomplete"),
    "jpeg magic only": (lambda: JPEG[:4], "damaged or incomplete"),
    "tiff magic only": (lambda: TIFF[:4], "damaged or incomplete"),
    "tiff header only": (lambda: TIFF[:8], "without any image"),
    "tiff tags cut": (lambda: TIFF[:60], "damaged or incomplete"),
    "tiff pixels cut": (lambda: TIFF[:-50], "damaged or incomplete"),
    "tiff pixels cut behind long tags": (
        lambda: tiff(GREY, iccprofile=bytes(5000), rowsperstrip=4)[:-50],
        "ends before its pixels do",
    ),
    "tiff pages cut": (lambda: STACK[: len(STACK) * 2 // 3], "damaged or incomplete"),
    "tiff deflate cut": (lambda: DEFLATED[:-50], "damaged or incomplete"),
    "tiff deflate flipped": (lambda: flipped(DEFLATED, len(DEFLATED) // 2), "damaged"),
    "tiff circle": (circle_of_pages, "form a circle"),
    "tiff huge": (lambda: tag_overwritten(TIFF, 257, 2**31), "damaged or incomplete"),
    "tiff huge deflate": (
        lambda: tag_overwritten(tiff(GREY, compression="zlib"), 257, 2**31),
        "damaged or incomplete",
    ),
    "tiff strips missing": (
        lambda: tag_overwritten(tiff(COLOUR, compression="zlib"), 284, 2),
        "fewer strips or tiles",
    ),
    "tiff arrangement unknown": (
        lambda: tag_overwritten(tiff(COLOUR, compression="zlib"), 284, 4),
        "how its samples are arranged",
    ),
    "tiff mask": (lambda: tiff(GREY > 99), "one bit per pixel"),
    "tiff complex": (lambda: tiff(GREY.astype(np.complex64)), "complex samples"),
    "tiff five inks": (
        lambda: tiff(values(HEIGHT, WIDTH, 5), photometric="separated", extrasamples=[0]),
        "inks that are not just CMYK",
    ),
    "tiff lab": (lambda: tiff(COLOUR, photometric="cielab"), "CIELAB"),
    "tiff volume": (
        lambda: tiff(
            values(5, 32, 32), volumetric=True, tile=(2, 16, 16), photometric="minisblack"
        ),
        "one page per slice",
    ),
    "tiff channels last": (
        lambda: tiff(values(HEIGHT, WIDTH, 5), photometric="minisblack", metadata={"axes": "YXC"}),
        "rows and columns last",
    ),
    "tiff two sizes": (two_sizes, "several series"),
    "tiff mask pages": (mask_page, "masks of its pixels.*gdalwarp"),
    "tiff pyramid of two images": (lambda: pyramid((HEIGHT // 2, WIDTH // 4)), "other images"),
    "tiff pyramid of two types": (
        lambda: pyramid((HEIGHT // 2, WIDTH // 2), dtype="uint16", below=True),
        "other images",
    ),
    "tiff pyramid upwards": (
        lambda: pyramid((HEIGHT // 4, WIDTH // 4), (HEIGHT // 2, WIDTH // 2)),
        "small levels before large ones",
    ),
    "tiff pyramid of many levels": (lambda: pyramid(*[(2, 2)] * 41, below=True), "41 levels"),
    "tiff thumbnail first": (
        lambda: pyramid((2 * HEIGHT, 2 * WIDTH), below=True),
        "several resolutions",
    ),
    "tiff rgb and two more": (
        lambda: tiff(values(HEIGHT, WIDTH, 5), photometric="rgb", planarconfig="contig"),
        "unclear meaning",
    ),
}


@pytest.mark.parametrize("name", BAD)
def test_bad_content_is_refused(tmp_path: Path, name: str) -> None:
    build, message = BAD[name]
    path = tmp_path / "bad.dat"
    path.write_bytes(build())
    with pytest.raises(ImageFileError, match=message) as caught:
        read_image(path)
    assert str(caught.value).startswith(f"{path}: ")


@pytest.mark.slow
def test_every_cut_is_refused_or_complete(tmp_path: Path) -> None:
    """However much of the end is missing, nobody gets half an image."""
    path = tmp_path / "cut"
    for whole in (PNG, TIFF, STACK, tiff(GREY, compression="zlib")):
        path.write_bytes(whole)
        pixels = read_image(path).pixels
        for length in range(0, len(whole), 41):
            path.write_bytes(whole[:length])
            try:
                read = read_image(path).pixels
            except ImageFileError:
                continue
            assert np.array_equal(read, pixels), length


def test_decompression_bombs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "bomb.png").write_bytes(PNG)
    (tmp_path / "bomb.jpg").write_bytes(JPEG)
    (tmp_path / "bomb.tif").write_bytes(DEFLATED)
    (tmp_path / "plain.tif").write_bytes(TIFF)
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", 100)
    for name in ("bomb.png", "bomb.jpg", "bomb.tif"):
        with pytest.raises(ImageFileError, match=r"decompression bombs.*200"):
            read_image(tmp_path / name)
    assert read_image(tmp_path / "plain.tif").header.size == (HEIGHT, WIDTH)
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", HEIGHT * WIDTH - 1)  # only worth a warning
    assert read_image(tmp_path / "bomb.png").header.size == (HEIGHT, WIDTH)


def test_paths_that_are_no_files(tmp_path: Path) -> None:
    with pytest.raises(ImageFileError, match="no such file"):
        read_image(tmp_path / "missing.png")
    with pytest.raises(ImageFileError, match="is a folder"):
        read_image(tmp_path)
    with pytest.raises(ImageFileError, match="cannot be opened"):
        read_image("null\0byte.png")
    with pytest.raises(ImageFileError, match="cannot be opened"):
        read_image(tmp_path / ("x" * 400))
    os.mkfifo(tmp_path / "pipe.png")
    with pytest.raises(ImageFileError, match="not a regular file"):
        read_image(tmp_path / "pipe.png")
    with pytest.raises(ImageFileError, match="not a regular file"):
        write_image(tmp_path / "pipe.png", ImageFile(pixels=GREY), overwrite=True)


# ---- writing ----


def grey(dtype: str) -> ImageFile:
    return ImageFile(pixels=values(HEIGHT, WIDTH, dtype=dtype))


def colour(dtype: str, *, alpha: bool = False) -> ImageFile:
    plane = values(HEIGHT, WIDTH, dtype=dtype) if alpha else None
    return ImageFile(pixels=values(HEIGHT, WIDTH, 3, dtype=dtype), axes="YXS", alpha=plane)


UNWRITABLE: list[tuple[str, ImageFile, str]] = [
    ("a.xyz", grey("uint8"), r"file extension '\.xyz' is unknown"),
    ("a", grey("uint8"), "file extension '' is unknown"),
    ("a.png", grey("float32"), r"float32; write TIFF \(.tif\) instead"),
    ("a.png", grey("int16"), r"write TIFF \(.tif\) instead"),
    ("a.png", grey("uint32"), r"write TIFF \(.tif\) instead"),
    ("a.png", ImageFile(pixels=values(3, HEIGHT, WIDTH)), "3 pages; write TIFF"),
    ("a.png", ImageFile(pixels=values(HEIGHT, WIDTH, 5), axes="YXS"), "5 channels"),
    ("a.jpg", grey("uint16"), "JPEG holds 8 bits only, not uint16; write PNG or TIFF"),
    ("a.jpg", grey("float64"), "JPEG holds 8 bits only, not float64; write TIFF"),
    ("a.jpg", colour("uint8", alpha=True), "alpha channel; write PNG or TIFF"),
    ("a.webp", colour("uint16"), "WebP holds 8 bits only, not uint16; write PNG or TIFF"),
    ("a.webp", grey("uint8"), "WebP holds colour only, and this image is grey"),
    ("a.webp", ImageFile(pixels=values(1, 20000, 3), axes="YXS"), "16383 pixels on a side"),
    ("a.dcm", grey("uint16"), "DICOM is written from DICOM only"),
    ("a.nii", grey("uint16"), "NIfTI is written from NIfTI only"),
    ("a.nii.gz", grey("uint16"), "NIfTI is written from NIfTI only"),
    ("a.zarr", grey("uint16"), "OME-Zarr is written from Zarr only"),
    ("folder.zarr", grey("uint16"), "folders are never replaced"),
    ("no/such/a.png", grey("uint8"), "folder does not exist"),
    (f"{'x' * 252}.png", grey("uint8"), "cannot be written: File name too long"),
    ("folder.png", grey("uint8"), "is a folder"),
    ("taken.png", grey("uint8"), "exists already"),
    ("link.png", grey("uint8"), "exists already"),
]


@pytest.mark.parametrize(("name", "image", "message"), UNWRITABLE)
def test_refused_output_leaves_no_trace(
    tmp_path: Path, name: str, image: ImageFile, message: str
) -> None:
    (tmp_path / "folder.png").mkdir()
    (tmp_path / "folder.zarr").mkdir()
    (tmp_path / "taken.png").write_bytes(b"precious")
    (tmp_path / "link.png").symlink_to("taken.png")
    before = sorted(tmp_path.rglob("*"))
    with pytest.raises(ImageFileError, match=message) as caught:
        write_image(tmp_path / name, image)
    assert str(caught.value).startswith(f"{tmp_path / name}: ")
    assert sorted(tmp_path.rglob("*")) == before
    assert (tmp_path / "taken.png").read_bytes() == b"precious"


@pytest.mark.parametrize("suffix", [".png", ".jpg", ".tif", ".npy"])
def test_failure_while_writing_leaves_the_old_file(tmp_path: Path, suffix: str) -> None:
    path = tmp_path / f"out{suffix}"
    path.write_bytes(b"precious")
    with full_disk(20), pytest.raises(ImageFileError, match="cannot be written"):
        write_image(path, grey("uint8"), overwrite=True)
    assert list(tmp_path.iterdir()) == [path]
    assert path.read_bytes() == b"precious"
    write_image(path, grey("uint8"), overwrite=True)
    assert read_image(path).header.size == (HEIGHT, WIDTH)


def test_metadata_too_long_for_the_format(tmp_path: Path) -> None:
    Image.fromarray(GREY).save(tmp_path / "in.png", exif=b"Exif\0\0" + bytes(70_000))
    image = read_image(tmp_path / "in.png")
    with pytest.raises(ImageFileError, match="EXIF data are too long"):
        write_image(tmp_path / "out.jpg", image)
    assert [path.name for path in tmp_path.iterdir()] == ["in.png"]


def test_folder_without_permission(tmp_path: Path) -> None:
    tmp_path.chmod(0o500)
    try:
        if os.access(tmp_path, os.W_OK):
            pytest.skip("this user may write everywhere")
        with pytest.raises(ImageFileError, match="may not write"):
            write_image(tmp_path / "out.png", grey("uint8"))
    finally:
        tmp_path.chmod(0o700)


def test_file_without_permission(tmp_path: Path) -> None:
    (tmp_path / "in.png").write_bytes(PNG)
    (tmp_path / "in.png").chmod(0)
    if os.access(tmp_path / "in.png", os.R_OK):
        pytest.skip("this user may read everything")
    with pytest.raises(ImageFileError, match="cannot be opened: Permission denied"):
        read_image(tmp_path / "in.png")
