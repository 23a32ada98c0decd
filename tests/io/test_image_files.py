"""Image files: what goes in comes out."""

from __future__ import annotations

import re
import struct
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tifffile
from image_samples import HEIGHT, WIDTH, chunk, png_bytes, values
from numpy.typing import NDArray
from PIL import Image

from integrodiff.io import ImageFile, read_image, write_image

# ---- round trips ----


@pytest.mark.parametrize(
    ("shape", "dtype", "kind"),
    [
        ((HEIGHT, WIDTH), "uint8", "grey"),
        ((HEIGHT, WIDTH), "uint16", "grey"),
        ((HEIGHT, WIDTH, 2), "uint8", "grey with alpha"),
        ((HEIGHT, WIDTH, 3), "uint8", "RGB"),
        ((HEIGHT, WIDTH, 4), "uint8", "RGBA"),
        ((1, WIDTH), "uint8", "grey"),
        ((1, 1, 3), "uint8", "RGB"),
    ],
)
def test_png_round_trip(tmp_path: Path, shape: tuple[int, ...], dtype: str, kind: str) -> None:
    samples = values(*shape, dtype=dtype)
    Image.fromarray(samples).save(tmp_path / "in.png")
    image = read_image(tmp_path / "in.png")
    assert (image.header.kind, image.pixels.dtype, image.header.pages) == (kind, np.dtype(dtype), 1)
    assert image.header.axes == ("YXS" if "RGB" in kind else "YX")
    assert image.header.size == shape[:2]
    assert write_image(tmp_path / "out.png", image) == ()
    with Image.open(tmp_path / "out.png") as written, Image.open(tmp_path / "in.png") as original:
        assert written.mode == original.mode
        assert np.array_equal(np.asarray(written), samples)


@pytest.mark.parametrize("shape", [(HEIGHT, WIDTH), (HEIGHT, WIDTH, 3)])
def test_jpeg_loses_little(tmp_path: Path, shape: tuple[int, ...]) -> None:
    ramp = np.broadcast_to(np.arange(shape[1])[:, None] * 8, (*shape[:2], 3)).astype(np.uint8)
    samples = ramp[..., 0] if len(shape) == 2 else ramp
    Image.fromarray(samples).save(tmp_path / "in.jpg", quality=100, subsampling=0)
    image = read_image(tmp_path / "in.jpg")
    assert np.abs(image.pixels.astype(int) - samples).max() <= 3
    write_image(tmp_path / "out.JPEG", image)
    with Image.open(tmp_path / "out.JPEG") as written:
        assert written.format == "JPEG"
        if len(shape) == 3:
            sampling = [layer[1:3] for layer in written.layer]  # type: ignore[attr-defined]
            assert sampling == [(1, 1)] * 3
        assert np.abs(np.asarray(written).astype(int) - image.pixels).max() <= 4


def test_content_and_not_the_name_decides(tmp_path: Path) -> None:
    samples = values(HEIGHT, WIDTH)
    Image.fromarray(samples).save(tmp_path / "really-png.tif", format="PNG")
    assert np.array_equal(read_image(tmp_path / "really-png.tif").pixels, samples)


DTYPES = ["uint8", "uint16", "uint32", "uint64", "int8", "int16", "int32", "int64"]
DTYPES += ["float16", "float32", "float64"]


@pytest.mark.parametrize("byteorder", ["<", ">"])
@pytest.mark.parametrize("dtype", DTYPES)
def test_tiff_keeps_dtype_and_values(tmp_path: Path, dtype: str, byteorder: Any) -> None:
    samples = values(HEIGHT, WIDTH, dtype=dtype)
    tifffile.imwrite(tmp_path / "in.tif", samples, byteorder=byteorder)
    image = read_image(tmp_path / "in.tif")
    assert image.pixels.dtype == np.dtype(dtype)
    assert image.pixels.dtype.isnative
    write_image(tmp_path / "out.tif", image)
    again = tifffile.imread(tmp_path / "out.tif")
    assert again.dtype.newbyteorder("=") == np.dtype(dtype)
    assert np.array_equal(again, samples)


LAYOUTS: dict[str, tuple[tuple[int, ...], dict[str, Any], tuple[int, ...], str]] = {
    "rgb": ((20, 24, 3), {"photometric": "rgb"}, (20, 24, 3), "RGB"),
    "planar rgb": (
        (3, 20, 24),
        {"photometric": "rgb", "planarconfig": "separate"},
        (20, 24, 3),
        "RGB",
    ),
    "rgba": ((20, 24, 4), {"photometric": "rgb", "extrasamples": [2]}, (20, 24, 3), "RGBA"),
    "associated": ((20, 24, 4), {"photometric": "rgb", "extrasamples": [1]}, (20, 24, 3), "RGBA"),
    "planar rgba": (
        (4, 20, 24),
        {"photometric": "rgb", "planarconfig": "separate"},
        (20, 24, 3),
        "RGBA",
    ),
    "grey and alpha": (
        (20, 24, 2),
        {"photometric": "minisblack", "planarconfig": "contig", "extrasamples": [2]},
        (20, 24),
        "grey with alpha",
    ),
    "white is zero": ((20, 24), {"photometric": "miniswhite"}, (20, 24), "grey"),
    "spectral": (
        (20, 24, 5),
        {"photometric": "minisblack", "planarconfig": "contig"},
        (20, 24, 5),
        "5 samples",
    ),
    "plain stack": (
        (4, 20, 24),
        {"photometric": "minisblack", "metadata": None},
        (4, 20, 24),
        "grey",
    ),
    "long stack": (
        (9, 20, 24),
        {"photometric": "minisblack", "metadata": None},
        (9, 20, 24),
        "grey",
    ),
    "named axes": (
        (2, 3, 20, 24),
        {"photometric": "minisblack", "metadata": {"axes": "TZYX"}},
        (2, 3, 20, 24),
        "grey",
    ),
    "rgb stack": ((2, 20, 24, 3), {"photometric": "rgb"}, (2, 20, 24, 3), "RGB"),
    "rgba stack": ((2, 20, 24, 4), {"photometric": "rgb"}, (2, 20, 24, 3), "RGBA"),
    "planar stack": (
        (2, 3, 20, 24),
        {"photometric": "rgb", "planarconfig": "separate"},
        (2, 20, 24, 3),
        "RGB",
    ),
    "imagej": (
        (2, 3, 20, 24),
        {"imagej": True, "metadata": {"axes": "ZCYX", "Labels": list("abcdef")}},
        (2, 3, 20, 24),
        "grey",
    ),
    "imagej, big-endian": (
        (3, 20, 24),
        {"imagej": True, "byteorder": ">", "metadata": {"axes": "ZYX", "Labels": list("abc")}},
        (3, 20, 24),
        "grey",
    ),
    "ome": (
        (2, 3, 20, 24),
        {"ome": True, "metadata": {"axes": "ZCYX"}, "photometric": "minisblack"},
        (2, 3, 20, 24),
        "grey",
    ),
    "one page for all": (
        (3, 20, 24),
        {"truncate": True, "photometric": "minisblack"},
        (3, 20, 24),
        "grey",
    ),
    "one page in a stack": ((1, 20, 24), {}, (20, 24), "grey"),
    "rows": ((3, 1, 24), {"photometric": "minisblack", "metadata": None}, (3, 1, 24), "grey"),
    "tiles": ((40, 50), {"tile": (16, 16)}, (40, 50), "grey"),
    "big": ((20, 24), {"bigtiff": True}, (20, 24), "grey"),
    "deflate": ((20, 24), {"compression": "zlib"}, (20, 24), "grey"),
    "predictor": (
        (20, 24, 3),
        {"compression": "zlib", "predictor": True, "photometric": "rgb"},
        (20, 24, 3),
        "RGB",
    ),
}


@pytest.mark.parametrize(
    "description",
    ['{"shape": [3, 20, 24], "truncated": true}', '{"truncated": true, "shape": [3, 20, 24]}'],
)
def test_pages_stored_without_tags_by_any_version_of_tifffile(
    tmp_path: Path, description: str
) -> None:
    samples = values(3, 20, 24, dtype="uint16")
    options = LAYOUTS["one page for all"][1]
    tifffile.imwrite(tmp_path / "in.tif", samples, **options)
    raw = (tmp_path / "in.tif").read_bytes()
    found = re.search(rb'\{[^}]*"truncated"[^}]*\}', raw)
    assert found
    assert len(found[0]) == len(description)
    (tmp_path / "in.tif").write_bytes(raw.replace(found[0], description.encode()))
    assert write_image(tmp_path / "out.tif", read_image(tmp_path / "in.tif")) == ()
    with tifffile.TiffFile(tmp_path / "out.tif") as file:
        assert file.series[0].kind == "shaped"
        assert np.array_equal(file.asarray(), samples)


@pytest.mark.parametrize("name", LAYOUTS)
def test_tiff_keeps_its_layout(tmp_path: Path, name: str) -> None:
    shape, options, pixel_shape, kind = LAYOUTS[name]
    samples = values(*shape, dtype="uint16")
    tifffile.imwrite(tmp_path / "in.tif", samples, **options)
    image = read_image(tmp_path / "in.tif")
    assert (image.pixels.shape, image.header.kind) == (pixel_shape, kind)
    assert write_image(tmp_path / "out.tif", image) == ()
    with tifffile.TiffFile(tmp_path / "in.tif") as a, tifffile.TiffFile(tmp_path / "out.tif") as b:
        first, second = a.series[0], b.series[0]
        assert np.array_equal(second.asarray(), samples.reshape(second.shape))
        # Versions of tifffile differ in the letter for an axis that has no name, I or Q.
        assert first.axes.replace("I", "Q") == second.axes.replace("I", "Q")
        for what in ("shape", "dtype", "kind"):
            assert getattr(first, what) == getattr(second, what)
        for what in ("photometric", "planarconfig", "extrasamples", "compression", "predictor"):
            assert getattr(a.pages.first, what) == getattr(b.pages.first, what)
        assert a.byteorder == b.byteorder
        assert a.is_bigtiff == b.is_bigtiff
        assert a.imagej_metadata == b.imagej_metadata
        assert a.ome_metadata == b.ome_metadata


@pytest.mark.parametrize("suffix", [".png", ".tif"])
def test_alpha_is_untouched_by_new_pixels(tmp_path: Path, suffix: str) -> None:
    samples = values(HEIGHT, WIDTH, 4)
    Image.fromarray(samples).save(tmp_path / "in.png")
    image = read_image(tmp_path / "in.png")
    write_image(tmp_path / f"out{suffix}", image.with_pixels(255 - image.pixels))
    again = read_image(tmp_path / f"out{suffix}")
    assert np.array_equal(again.pixels, 255 - samples[..., :3])
    assert again.alpha is not None
    assert np.array_equal(again.alpha, samples[..., 3])


def test_new_pixels_must_fit() -> None:
    image = ImageFile(pixels=values(HEIGHT, WIDTH))
    with pytest.raises(ValueError, match="must have the shape"):
        image.with_pixels(values(WIDTH, HEIGHT))
    with pytest.raises(ValueError, match="alpha of shape"):
        ImageFile(pixels=values(HEIGHT, WIDTH), alpha=values(WIDTH, HEIGHT))


# ---- what is expanded, with a note ----


def test_palette_is_expanded(tmp_path: Path) -> None:
    palette = Image.fromarray(values(HEIGHT, WIDTH, 3)).quantize(16)
    palette.save(tmp_path / "p.png")
    image = read_image(tmp_path / "p.png")
    assert np.array_equal(image.pixels, np.asarray(palette.convert("RGB")))
    assert image.notes == ("the palette was expanded to RGB colours",)
    palette.save(tmp_path / "t.png", transparency=3)
    transparent = read_image(tmp_path / "t.png")
    assert transparent.alpha is not None
    assert np.array_equal(transparent.alpha == 0, np.asarray(palette) == 3)


@pytest.mark.parametrize(
    ("samples", "key"),
    [
        (values(HEIGHT, WIDTH), 77),
        (values(HEIGHT, WIDTH, dtype="uint16"), 777),
        (values(HEIGHT, WIDTH, 3), (7, 77, 177)),
    ],
)
def test_transparent_colour_becomes_alpha(
    tmp_path: Path, samples: NDArray[Any], key: int | tuple[int, ...]
) -> None:
    samples = samples.copy()
    samples[3, 5] = key
    Image.fromarray(samples).save(tmp_path / "in.png", transparency=key)
    image = read_image(tmp_path / "in.png")
    assert image.alpha is not None
    assert image.alpha.dtype == samples.dtype
    assert image.alpha[3, 5] == 0
    matches = samples == key if samples.ndim == 2 else (samples == key).all(axis=-1)
    assert np.array_equal(image.alpha == 0, matches)
    assert image.alpha.max() == np.iinfo(samples.dtype).max
    assert "alpha channel" in image.notes[0]


def test_four_bits_are_expanded(tmp_path: Path) -> None:
    packed = values(HEIGHT, WIDTH // 2)
    transparent_nine = chunk(b"tRNS", struct.pack(">H", 9))
    (tmp_path / "in.png").write_bytes(
        png_bytes(packed.tobytes(), depth=4, colour=0, chunks=transparent_nine)
    )
    image = read_image(tmp_path / "in.png")
    nibbles = np.stack([packed >> 4, packed & 15], axis=-1).reshape(HEIGHT, WIDTH)
    assert np.array_equal(image.pixels, nibbles * 17)
    assert image.alpha is not None
    assert np.array_equal(image.alpha == 0, nibbles == 9)
    assert "4 bits" in image.notes[0]


def test_further_pictures_in_a_jpeg_are_mentioned(tmp_path: Path) -> None:
    first = Image.fromarray(values(HEIGHT, WIDTH, 3))
    first.save(tmp_path / "in.jpg", "MPO", save_all=True, append_images=[first.copy()])
    image = read_image(tmp_path / "in.jpg")
    assert image.header.size == (HEIGHT, WIDTH)
    assert "only the first is read" in image.notes[0]
