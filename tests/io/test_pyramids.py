"""Pyramids in TIFF files: the full resolution is read, and a new file has a new pyramid."""

from __future__ import annotations

import subprocess
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tifffile
from command_line import run
from foreign_files import FOLDER, program
from numpy.typing import NDArray

from integrodiff.errors import ImageFileError
from integrodiff.io import ImageFile, read_image, write_image
from integrodiff.io.formats.pyramid import smaller
from integrodiff.io.image import Derivation

PIXELS: NDArray[np.uint16] = (
    np.random.default_rng(0).integers(0, 60000, (2, 70, 90)).astype(np.uint16)
)


def halved(plane: NDArray[Any]) -> NDArray[Any]:
    height, width = plane.shape[0] // 2, plane.shape[1] // 2
    blocks = plane[: 2 * height, : 2 * width].reshape(height, 2, width, 2, *plane.shape[2:])
    return np.asarray(np.rint(blocks.mean(axis=(1, 3))), plane.dtype)


def write_ome(
    path: Path, pixels: NDArray[Any] = PIXELS, *, chain: bool = False, **layout: Any
) -> None:
    """Write a pyramid of three levels as the OME model says, or with all pages in one chain."""
    options: dict[str, Any] = {"tile": (32, 32), "compression": "zlib", "photometric": 1}
    if not chain:
        axes = {"axes": "CYX", "Channel": {"Name": ["a stain", "another"]}, "PhysicalSizeX": 0.25}
        with tifffile.TiffWriter(path, ome=True, **layout) as writer:
            writer.write(pixels, subifds=2, metadata=axes, **options)
            writer.write(pixels[:, ::2, ::2], subfiletype=1, **options)
            writer.write(pixels[:, ::4, ::4], subfiletype=1, **(options | {"tile": (16, 16)}))
        return
    with tifffile.TiffWriter(path) as writer:
        for plane in pixels:
            writer.write(plane, metadata=None, **options)
            writer.write(plane[::2, ::2], metadata=None, subfiletype=1, **options)


@pytest.mark.parametrize("layout", [{}, {"byteorder": ">", "bigtiff": True}], ids=str)
def test_ome_tiff_has_its_pyramid_again(tmp_path: Path, layout: dict[str, Any]) -> None:
    write_ome(tmp_path / "in.ome.tif", **layout)
    image = read_image(tmp_path / "in.ome.tif")
    assert (image.axes, image.pixels.shape, image.notes) == ("CYX", PIXELS.shape, ())
    result = image.with_pixels(image.pixels // 2)
    assert write_image(tmp_path / "out.ome.tif", result) == ()
    with (
        tifffile.TiffFile(tmp_path / "in.ome.tif") as old,
        tifffile.TiffFile(tmp_path / "out.ome.tif") as new,
    ):
        assert new.ome_metadata == old.ome_metadata
        assert (new.byteorder, new.is_bigtiff) == (old.byteorder, old.is_bigtiff)
        assert [level.shape for level in new.series[0].levels] == [
            level.shape for level in old.series[0].levels
        ]
        for before, after in zip(old.series[0].levels, new.series[0].levels, strict=True):
            assert (before.keyframe.tile, before.keyframe.compression) == (
                after.keyframe.tile,
                after.keyframe.compression,
            )
            assert after.kind == "ome"
        levels = [level.asarray() for level in new.series[0].levels]
    assert np.array_equal(levels[0], PIXELS // 2)
    assert np.array_equal(levels[1], [halved(plane) for plane in levels[0]])
    assert levels[2].shape == (2, 18, 23)
    again = read_image(tmp_path / "out.ome.tif")
    assert again.spacing["X"].value == 0.25


def test_smaller_pages_in_the_chain(tmp_path: Path) -> None:
    write_ome(tmp_path / "in.tif", chain=True)
    image = read_image(tmp_path / "in.tif")
    assert np.array_equal(image.pixels, PIXELS)
    write_image(tmp_path / "out.tif", image)
    with tifffile.TiffFile(tmp_path / "out.tif") as new:
        pages = [page.asarray() for page in new.pages]
        assert [page.aspage().subfiletype for page in new.pages] == [0, 1, 0, 1]
    for full, reduced in (pages[:2], pages[2:]):
        assert np.array_equal(reduced, halved(full))


@pytest.mark.slow
def test_pyramid_of_imagemagick(tmp_path: Path) -> None:
    magick = program("magick")
    if magick is None:
        pytest.skip("needs the program ImageMagick")
    words = ["-size", "160x128", "gradient:black-white", "-depth", "16", "-compress", "zip"]
    words += ["-define", "tiff:tile-geometry=32x32", "ptif:in.tif"]
    subprocess.run([magick, *words], cwd=tmp_path, check=True)
    image = read_image(tmp_path / "in.tif")
    assert image.pixels.shape == (128, 160)
    assert image.notes == () or "half the size" in image.notes[0]
    write_image(tmp_path / "out.tif", image)
    with (
        tifffile.TiffFile(tmp_path / "in.tif") as old,
        tifffile.TiffFile(tmp_path / "out.tif") as new,
    ):
        before, after = ([page.aspage() for page in tif.pages] for tif in (old, new))
        assert len(before) > 1
        for first, second in zip(before, after, strict=True):
            assert first.shape == second.shape
            assert second.subfiletype == (first.subfiletype if second is not after[0] else 0)
            assert (first.tile, first.compression) == (second.tile, second.compression)
            difference = first.asarray().astype(int) - second.asarray()
            assert np.abs(difference).max() <= 0.02 * 65535


@pytest.mark.slow
def test_command_denoises_all_levels(tmp_path: Path) -> None:
    write_ome(tmp_path / "in.ome.tif", (PIXELS >> 8).astype(np.uint8))
    done = run("denoise", tmp_path / "in.ome.tif", tmp_path / "out.ome.tif", "--model", "pm")
    assert done.exit_code == 0, done.stderr
    with tifffile.TiffFile(tmp_path / "out.ome.tif") as new:
        levels = [level.asarray() for level in new.series[0].levels]
    for before, after in pairwise(levels):
        assert np.array_equal(after[1], smaller(before[1], after.shape[1:]))
    assert levels[0].std() < 0.8 * (PIXELS >> 8).std()


@pytest.mark.parametrize(("name", "byteorder"), [("cog.tif", "<"), ("bigcog.tif", "<")])
def test_cloud_optimised_file_stays_one(name: str, byteorder: str, tmp_path: Path) -> None:
    image = read_image(FOLDER / name)
    write_image(tmp_path / "out.tif", image)
    data = (tmp_path / "out.tif").read_bytes()
    with tifffile.TiffFile(tmp_path / "out.tif") as new, tifffile.TiffFile(FOLDER / name) as old:
        pages = [page.aspage() for page in new.pages]
        assert new.byteorder == byteorder
        assert new.is_bigtiff == old.is_bigtiff
        assert [page.shape for page in pages] == [page.aspage().shape for page in old.pages]
        start = 16 if new.is_bigtiff else 8
        places = [page.offset for page in pages]
        first_pixels = [page.dataoffsets[0] for page in pages]
        assert data[start : start + 30] == b"GDAL_STRUCTURAL_METADATA_SIZE="
        assert data[:start] + data[start : places[0]] == data[: places[0]]
        assert places == sorted(places)
        assert max(places) < min(first_pixels)
        assert first_pixels == sorted(first_pixels, reverse=True)
        for page in pages:
            for place, length in zip(page.dataoffsets, page.databytecounts, strict=True):
                assert int.from_bytes(data[place - 4 : place], "little") == length
                assert data[place + length : place + length + 4] == data[place + length - 4 :][:4]
        levels = [page.asarray() for page in pages]
    assert np.array_equal(levels[0], image.pixels)
    if name == "bigcog.tif":
        assert np.array_equal(levels[1], halved(levels[0]))
    assert list(tmp_path.iterdir()) == [tmp_path / "out.tif"]


@pytest.mark.slow
@pytest.mark.parametrize("levels", [0, 1])
def test_mask_of_gdal(tmp_path: Path, levels: int) -> None:
    mask = np.zeros((70, 90), np.bool_)
    mask[10:51, 20:77] = True
    pixels = np.where(mask, 100 + (PIXELS[0] >> 11), 255).astype(np.uint8)
    options: dict[str, Any] = {"tile": (32, 32), "compression": "zlib", "metadata": None}
    with tifffile.TiffWriter(tmp_path / "in.tif") as writer:
        writer.write(pixels, **options)
        writer.write(mask, subfiletype=4, photometric=4, **options)
        if levels:
            writer.write(pixels[::2, ::2], subfiletype=1, **options)
            writer.write(mask[::2, ::2], subfiletype=5, photometric=4, **options)
    done = run("denoise", tmp_path / "in.tif", tmp_path / "out.tif", "--model", "pm")
    assert done.exit_code == 0, done.stderr
    assert "mask in the file" in done.stderr
    with tifffile.TiffFile(tmp_path / "out.tif") as new:
        pages = [page.asarray() for page in new.pages]
        assert [page.aspage().subfiletype for page in new.pages] == [0, 4, 1, 5][: 2 + 2 * levels]
    assert np.array_equal(pages[1].astype(bool), mask)
    assert (pages[0][~mask] == 255).all()
    assert pages[0][mask].std() < 0.7 * pixels[mask].std()
    assert pages[0][mask].mean() == pytest.approx(pixels[mask].mean(), abs=0.5)
    if levels:
        assert pages[3].astype(bool)[5, 10]
        assert pages[2][pages[3].astype(bool)].max() < 200
    assert "mask" in write_image(tmp_path / "out.png", read_image(tmp_path / "in.tif"))[0]


def test_statistics_of_old_pixels_are_left_out(tmp_path: Path) -> None:
    text = (
        '<GDALMetadata>\n  <Item name="NOTE">kept</Item>\n'
        '  <Item name="STATISTICS_MEAN" sample="0">7</Item>\n</GDALMetadata>\n'
    )
    tifffile.imwrite(
        tmp_path / "in.tif", PIXELS[0], extratags=[(42112, 2, len(text) + 1, text, False)]
    )
    image = read_image(tmp_path / "in.tif")
    write_image(tmp_path / "same.tif", image)
    changed = image.header.with_derivation(Derivation(words="denoised"))
    write_image(
        tmp_path / "new.tif",
        ImageFile(pixels=image.pixels, axes=image.axes, metadata=changed.metadata),
    )
    found = {}
    for name in ("same.tif", "new.tif"):
        with tifffile.TiffFile(tmp_path / name) as tif:
            tag = tif.pages.first.tags[42112]
        found[name] = (tmp_path / name).read_bytes()[tag.valueoffset :][: tag.count]
    assert found["same.tif"] == text.encode() + b"\0"
    assert b"STATISTICS" not in found["new.tif"]
    assert b"NOTE" in found["new.tif"]


class TestSmaller:
    def test_invalid_pixels_do_not_count(self) -> None:
        plane = np.array([[1, 2, np.nan, np.nan], [3, np.nan, np.nan, np.nan]])
        result = smaller(plane, (1, 2), np.isfinite(plane))
        assert result[0, 0] == 2
        assert np.isnan(result[0, 1])

    def test_samples_share_their_weights(self) -> None:
        plane = np.array([[[10, 20], [30, 60]]], np.uint8)
        assert smaller(plane, (1, 1), np.array([[True, False]])).tolist() == [[[10, 20]]]
        assert smaller(plane, (1, 1)).tolist() == [[[20, 40]]]

    @pytest.mark.parametrize("size", [(35, 45), (36, 46), (24, 31), (1, 1), (70, 45)])
    def test_mean_and_bands(self, size: tuple[int, int], monkeypatch: pytest.MonkeyPatch) -> None:
        plane = PIXELS[0].astype(np.float64)
        whole = smaller(plane, size)
        monkeypatch.setattr("integrodiff.io.formats.pyramid._BAND", 500)
        assert np.allclose(smaller(plane, size), whole)
        assert whole.shape == size
        assert abs(whole.mean() / plane.mean() - 1) < 0.02


# ---- damage ----


def test_huge_tiles_of_a_level_are_refused(tmp_path: Path) -> None:
    """They would be the tiles of the result too, of 13 gigapixels each."""
    path = tmp_path / "levels.tif"
    pixels = np.arange(9 * 11, dtype=np.uint16).reshape(9, 11)
    with tifffile.TiffWriter(path) as writer:
        writer.write(pixels, tile=(16, 16), subifds=1)
        writer.write(pixels[::2, ::2], tile=(16, 16), subfiletype=1)
    with tifffile.TiffFile(path, mode="r+") as file:
        levels = file.pages.first.pages
        assert levels is not None
        levels[0].aspage().tags["TileWidth"].overwrite(855638032)
    with pytest.raises(ImageFileError, match="with tiles far larger than the image"):
        read_image(path)


@pytest.mark.parametrize(
    ("tag", "what"), [("ImageLength", "height"), ("PhotometricInterpretation", "kind of colours")]
)
def test_lists_in_place_of_numbers_are_damage(tmp_path: Path, tag: str, what: str) -> None:
    path = tmp_path / "levels.tif"
    pixels = np.arange(9 * 11, dtype=np.uint16).reshape(9, 11)
    with tifffile.TiffWriter(path) as writer:
        writer.write(pixels, tile=(16, 16))
        writer.write(pixels[::2, ::2], tile=(16, 16), subfiletype=1)
    with tifffile.TiffFile(path, mode="r+") as file:
        file.pages.first.tags[tag].overwrite((9, 9))
    with pytest.raises(ImageFileError, match=f"is damaged: the {what} of a page"):
        read_image(path)
