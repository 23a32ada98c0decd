"""Pictures with loss keep their quality; inks, palettes and the formats of telephones."""

from __future__ import annotations

import struct
import tracemalloc
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from command_line import run
from foreign_files import FOLDER
from numpy.typing import NDArray
from PIL import Image, JpegImagePlugin

from integrodiff.errors import ImageFileError
from integrodiff.io import ImageFile, OutputFileError, read_image, write_image
from integrodiff.io.formats.webp_quality import webp_quality
from integrodiff.io.registry import SUFFIXES

pytestmark = pytest.mark.slow

SIZE = 48, 64
Y, X = np.mgrid[: SIZE[0], : SIZE[1]]
COLOUR: NDArray[np.uint8] = np.stack([4 * Y, 3 * X, 2 * (X + Y)], axis=-1).astype(np.uint8)
NOISY: NDArray[np.uint8] = np.random.default_rng(0).normal(COLOUR, 10).clip(0, 255).astype(np.uint8)
GREY = NOISY[..., 0]
SETTINGS = ("--sigma", 10, "--model", "pm", "--engine", "numpy")


def denoised(source: Path, target: Path, *options: object) -> str:
    done = run("denoise", source, target, *SETTINGS, *options)
    assert done.exit_code == 0, done.stderr
    return done.stderr


def coding(path: Path) -> tuple[dict[int, list[int]], int, bool, str]:
    with Image.open(path) as picture:
        assert isinstance(picture, JpegImagePlugin.JpegImageFile)
        sampling = JpegImagePlugin.get_sampling(picture)
        progressive = bool(picture.info.get("progressive"))
        return picture.quantization, sampling, progressive, picture.mode


# ---- quality ----


@pytest.mark.parametrize(
    "options",
    [
        {"quality": 60},
        {"quality": 92, "subsampling": "4:4:4"},
        {"quality": 75, "subsampling": "4:2:2", "progressive": True},
        {"quality": 80, "keep_rgb": True},
    ],
)
def test_jpeg_is_encoded_like_its_input(tmp_path: Path, options: dict[str, Any]) -> None:
    Image.fromarray(NOISY).save(tmp_path / "in.jpg", **options)
    denoised(tmp_path / "in.jpg", tmp_path / "out.jpg")
    assert coding(tmp_path / "out.jpg") == coding(tmp_path / "in.jpg")
    with Image.open(tmp_path / "in.jpg") as old, Image.open(tmp_path / "out.jpg") as new:
        names = [[layer[0] for layer in picture.layer] for picture in (old, new)]  # type: ignore[attr-defined]
    assert names[0] == names[1]


def test_noise_of_the_highest_quality_is_written_in_one_pass(tmp_path: Path) -> None:
    small = Image.fromarray(NOISY)
    small.save(tmp_path / "in.jpg", quality=100, subsampling="4:4:4", progressive=True)
    noise = np.random.default_rng(0).integers(0, 256, (300, 400, 3)).astype(np.uint8)
    metadata = read_image(tmp_path / "in.jpg").metadata
    image = ImageFile(pixels=noise, axes="YXS", metadata=metadata)
    (note,) = write_image(tmp_path / "out.jpg", image)
    assert "not progressive" in note
    tables, sampling, progressive, mode = coding(tmp_path / "out.jpg")
    assert (sampling, progressive, mode) == (0, False, "RGB")
    assert tables[0] == coding(tmp_path / "in.jpg")[0][0]


@pytest.mark.parametrize("mode", ["L", "CMYK"])
def test_jpeg_in_grey_and_inks(tmp_path: Path, mode: str) -> None:
    Image.fromarray(NOISY).convert(mode).save(tmp_path / "in.jpg", quality=70)
    denoised(tmp_path / "in.jpg", tmp_path / "out.jpg")
    assert coding(tmp_path / "out.jpg") == coding(tmp_path / "in.jpg")


def test_jpeg_of_given_quality(tmp_path: Path) -> None:
    Image.fromarray(NOISY).save(tmp_path / "in.jpg", quality=60, subsampling="4:2:2")
    denoised(tmp_path / "in.jpg", tmp_path / "out.jpg", "--quality", 90)
    Image.fromarray(NOISY).save(tmp_path / "expected.jpg", quality=90, subsampling="4:2:2")
    assert coding(tmp_path / "out.jpg") == coding(tmp_path / "expected.jpg")


def test_jpeg_from_another_format_has_little_loss(tmp_path: Path) -> None:
    Image.fromarray(NOISY).save(tmp_path / "in.png")
    denoised(tmp_path / "in.png", tmp_path / "out.jpg")
    Image.fromarray(NOISY).save(tmp_path / "expected.jpg", quality=95, subsampling="4:4:4")
    assert coding(tmp_path / "out.jpg") == coding(tmp_path / "expected.jpg")


@pytest.mark.parametrize("quality", [5, 40, 75, 80, 95])
def test_webp_has_the_quality_of_its_input(tmp_path: Path, quality: int) -> None:
    Image.fromarray(NOISY).save(tmp_path / "in.webp", quality=quality)
    found = webp_quality(tmp_path / "in.webp")
    assert found == pytest.approx(quality, abs=3)
    denoised(tmp_path / "in.webp", tmp_path / "out.webp")
    assert webp_quality(tmp_path / "out.webp") == pytest.approx(quality, abs=3)


def test_lossless_webp_stays_lossless(tmp_path: Path) -> None:
    Image.fromarray(NOISY).save(tmp_path / "in.webp", lossless=True)
    assert webp_quality(tmp_path / "in.webp") is None
    denoised(tmp_path / "in.webp", tmp_path / "out.webp")
    assert webp_quality(tmp_path / "out.webp") is None
    denoised(tmp_path / "in.webp", tmp_path / "lossy.webp", "--quality", 50)
    assert webp_quality(tmp_path / "lossy.webp") == pytest.approx(50, abs=3)


def test_quality_has_no_effect_without_loss(tmp_path: Path) -> None:
    Image.fromarray(NOISY).save(tmp_path / "in.png")
    said = denoised(tmp_path / "in.png", tmp_path / "out.png", "--quality", 50)
    assert "the quality has no effect: PNG is without loss" in said
    done = run("denoise", tmp_path / "in.png", tmp_path / "out.jpg", "--quality", 101)
    assert done.exit_code == 2


# ---- inks ----


@pytest.mark.parametrize("suffix", [".jpg", ".tif"])
def test_inks_are_denoised_as_four_samples(tmp_path: Path, suffix: str) -> None:
    inks = np.concatenate([255 - NOISY, GREY[..., None] // 2], axis=-1)
    picture = Image.frombytes("CMYK", SIZE[::-1], inks.tobytes())
    options: dict[str, Any] = {"quality": 95} if suffix == ".jpg" else {"compression": "tiff_lzw"}
    picture.save(tmp_path / f"in{suffix}", dpi=(300, 300), **options)
    said = denoised(tmp_path / f"in{suffix}", tmp_path / f"out{suffix}")
    assert "CMYK" in said
    with Image.open(tmp_path / f"out{suffix}") as new:
        assert (new.mode, new.info["dpi"]) == ("CMYK", (300, 300))
        result = np.asarray(new).astype(float)
    clean = np.concatenate([255 - COLOUR, COLOUR[..., :1] // 2], axis=-1)
    for number in range(4):
        before = np.square(inks[..., number] - clean[..., number].astype(float)).mean()
        after = np.square(result[..., number] - clean[..., number]).mean()
        assert after < 0.7 * before, number


def test_inks_move_between_jpeg_and_tiff_only(tmp_path: Path) -> None:
    Image.fromarray(NOISY).convert("CMYK").save(tmp_path / "in.tif")
    image = read_image(tmp_path / "in.tif")
    assert (image.header.kind, image.pixels.shape) == ("CMYK", (*SIZE, 4))
    write_image(tmp_path / "out.jpg", image)
    again = read_image(tmp_path / "out.jpg")
    assert again.header.kind == "CMYK"
    assert np.abs(again.pixels.astype(int) - image.pixels).max() < 30
    write_image(tmp_path / "out.tif", again)
    assert np.array_equal(read_image(tmp_path / "out.tif").pixels, again.pixels)
    assert read_image(tmp_path / "out.tif").header.kind == "CMYK"
    with pytest.raises(OutputFileError, match="inks of a CMYK image; write JPEG or TIFF"):
        write_image(tmp_path / "out.png", image)


# ---- GIF and BMP ----


@pytest.mark.parametrize("suffix", [".gif", ".bmp"])
def test_grey_pictures_come_back_as_they_were(tmp_path: Path, suffix: str) -> None:
    Image.fromarray(GREY).save(tmp_path / f"in{suffix}")
    image = read_image(tmp_path / f"in{suffix}")
    assert np.array_equal(image.pixels, GREY)
    assert write_image(tmp_path / f"out{suffix}", image) == ()
    assert np.array_equal(read_image(tmp_path / f"out{suffix}").pixels, GREY)


def test_gif_in_colour(tmp_path: Path) -> None:
    picture = Image.fromarray(NOISY).quantize(200)
    picture.save(tmp_path / "in.gif", comment=b"a comment")
    image = read_image(tmp_path / "in.gif")
    assert np.array_equal(image.pixels, np.asarray(picture.convert("RGB")))
    assert image.notes == ("the palette was expanded to RGB colours",)
    assert write_image(tmp_path / "same.gif", image) == ()
    assert np.array_equal(read_image(tmp_path / "same.gif").pixels, image.pixels)
    said = denoised(tmp_path / "in.gif", tmp_path / "out.gif")
    assert "GIF holds 256 colours" in said
    with Image.open(tmp_path / "out.gif") as new:
        assert new.info["comment"] == b"a comment"


def test_gif_keeps_transparency(tmp_path: Path) -> None:
    alpha = np.where(X > 20, 255, 0).astype(np.uint8)
    samples = np.concatenate([COLOUR // 64 * 64, alpha[..., None]], axis=-1)
    Image.fromarray(samples).save(tmp_path / "in.gif")
    image = read_image(tmp_path / "in.gif")
    assert image.alpha is not None
    assert np.array_equal(image.alpha, alpha)
    write_image(tmp_path / "out.gif", image)
    again = read_image(tmp_path / "out.gif")
    assert again.alpha is not None
    assert np.array_equal(again.alpha, alpha)
    assert np.array_equal(again.pixels[alpha > 0], image.pixels[alpha > 0])
    Image.fromarray(samples).save(tmp_path / "in.png")
    image = read_image(tmp_path / "in.png")
    with pytest.raises(OutputFileError, match="no degrees of transparency"):
        write_image(tmp_path / "other.gif", image)


def test_bmp_in_colour_with_and_without_alpha(tmp_path: Path) -> None:
    Image.fromarray(NOISY).save(tmp_path / "in.bmp", dpi=(300, 300))
    image = read_image(tmp_path / "in.bmp")
    assert image.metadata.dpi == pytest.approx((300, 300), abs=0.1)
    denoised(tmp_path / "in.bmp", tmp_path / "out.bmp")
    assert read_image(tmp_path / "out.bmp").metadata.dpi == image.metadata.dpi
    rgba = np.concatenate([NOISY, GREY[..., None]], axis=-1)
    Image.fromarray(rgba).save(tmp_path / "in.png", dpi=(300, 300))
    write_image(tmp_path / "rgba.bmp", read_image(tmp_path / "in.png"))
    with Image.open(tmp_path / "rgba.bmp") as picture:
        assert np.array_equal(np.asarray(picture), rgba)
    again = read_image(tmp_path / "rgba.bmp")
    assert again.alpha is not None
    assert np.array_equal(again.pixels, NOISY)
    assert np.array_equal(again.alpha, GREY)


# ---- AVIF and HEIC ----


def needs(suffix: str) -> None:
    if (missing := SUFFIXES[suffix].missing) is not None:
        pytest.skip(missing)


def save(path: Path, picture: Image.Image, **options: Any) -> None:
    if path.suffix == ".avif":
        picture.save(path, **options)
    else:
        heif = pytest.importorskip("pillow_heif")
        heif.from_pillow(picture).save(path, **options)


@pytest.mark.parametrize("suffix", [".avif", ".heic"])
def test_pictures_of_telephones(tmp_path: Path, suffix: str) -> None:
    needs(suffix)
    exif = Image.Exif()
    exif[0x010F] = "a camera"
    save(tmp_path / f"in{suffix}", Image.fromarray(NOISY), quality=95, exif=exif.tobytes())
    image = read_image(tmp_path / f"in{suffix}")
    assert image.pixels.shape == NOISY.shape
    assert np.abs(image.pixels.astype(float) - NOISY).mean() < 8
    said = denoised(tmp_path / f"in{suffix}", tmp_path / f"out{suffix}")
    assert "quality of 90 of 100" in said
    again = read_image(tmp_path / f"out{suffix}")
    assert np.square(again.pixels - COLOUR.astype(float)).mean() < 50
    assert again.metadata.exif == image.metadata.exif
    denoised(tmp_path / f"in{suffix}", tmp_path / f"small{suffix}", "--quality", 10)
    sizes = [(tmp_path / f"{name}{suffix}").stat().st_size for name in ("small", "out")]
    assert sizes[0] < sizes[1]


@pytest.mark.parametrize("suffix", [".avif", ".heic"])
def test_grey_and_alpha_of_telephones(tmp_path: Path, suffix: str) -> None:
    needs(suffix)
    save(tmp_path / f"grey{suffix}", Image.fromarray(GREY), quality=90)
    image = read_image(tmp_path / f"grey{suffix}")
    assert image.pixels.shape == SIZE
    write_image(tmp_path / f"again{suffix}", image)
    assert read_image(tmp_path / f"again{suffix}").pixels.shape == SIZE
    rgba = np.concatenate([NOISY, GREY[..., None]], axis=-1)
    save(tmp_path / f"rgba{suffix}", Image.fromarray(rgba), quality=90)
    image = read_image(tmp_path / f"rgba{suffix}")
    assert image.alpha is not None
    assert "loss" in write_image(tmp_path / f"out{suffix}", image)[-1]
    data = (tmp_path / f"rgba{suffix}").read_bytes()
    (tmp_path / f"cut{suffix}").write_bytes(data[: len(data) // 2])
    with pytest.raises(ImageFileError, match="damaged or incomplete"):
        read_image(tmp_path / f"cut{suffix}")


# ---- files that are not what they claim ----


def gif_of(width: int, height: int) -> bytes:
    data = bytearray((FOLDER / "grey8.gif").read_bytes())
    data[6:10] = struct.pack("<HH", width, height)
    return bytes(data)


def bmp_of(width: int, height: int) -> bytes:
    data = bytearray((FOLDER / "rgb8.bmp").read_bytes())
    data[18:26] = struct.pack("<ii", width, height)
    return bytes(data)


BOMBS: dict[str, tuple[Callable[[], bytes], str]] = {
    "large.gif": (lambda: gif_of(60000, 60000), "decompression bombs"),
    "empty.gif": (lambda: gif_of(9000, 9000), "damaged or incomplete"),
    "large.bmp": (lambda: bmp_of(60000, 60000), "decompression bombs"),
    "empty.bmp": (lambda: bmp_of(9000, 9000), "damaged or incomplete"),
    "long.gif": (lambda: gif_of(17, 13) + bytes(2**21), "bytes, more than"),
    "long.avif": (lambda: b"\0\0\0\x18ftypavif" + bytes(2**25), "bytes, more than"),
    "long.heic": (lambda: b"\0\0\0\x18ftypheic" + bytes(2**25), "bytes, more than"),
}


@pytest.mark.parametrize("name", BOMBS)
def test_sizes_are_compared_before_memory_is_taken(tmp_path: Path, name: str) -> None:
    needs(Path(name).suffix)
    make, message = BOMBS[name]
    (tmp_path / name).write_bytes(make())
    tracemalloc.start()
    try:
        with pytest.raises(ImageFileError, match=message):
            read_image(tmp_path / name)
        assert tracemalloc.get_traced_memory()[1] < 2**24
    finally:
        tracemalloc.stop()
