"""Windows of images that do not fit into memory are parts of what is read as a whole."""

from __future__ import annotations

import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tifffile
import zarr
from PIL import Image

from integrodiff.blocks.job import FileWindow
from integrodiff.errors import ImageFileError
from integrodiff.io import read_image
from integrodiff.io.formats import ome_zarr
from integrodiff.io.windows import is_large, open_windows


@pytest.mark.parametrize(
    ("shape", "options"),
    [
        ((70, 90), {"tile": (16, 32)}),
        ((70, 90), {"tile": (16, 32), "compression": "zlib", "predictor": True}),
        ((70, 90), {"rowsperstrip": 7, "byteorder": ">"}),
        ((70, 90, 3), {"tile": (32, 16), "photometric": "rgb", "compression": "zlib"}),
        ((3, 70, 90), {"tile": (32, 16), "photometric": "rgb", "planarconfig": "separate"}),
        ((4, 70, 90), {"tile": (32, 32), "photometric": "minisblack"}),
        ((4, 70, 90), {"photometric": "minisblack"}),
    ],
)
def test_of_tiff(tmp_path: Path, shape: tuple[int, ...], options: dict[str, Any]) -> None:
    values = np.random.default_rng(0).integers(0, 2**16, shape).astype(np.uint16)
    byteorder = options.pop("byteorder", "<")
    tifffile.imwrite(tmp_path / "in.tif", values, byteorder=byteorder, **options)
    whole = read_image(tmp_path / "in.tif").pixels
    with open_windows(tmp_path / "in.tif") as reader:
        leading = reader.header.layout.plane_grid
        for rows, columns in ((slice(0, 70), slice(0, 90)), (slice(13, 41), slice(31, 90))):
            index = (*(slice(1, length) for length in leading), rows, columns)
            np.testing.assert_array_equal(reader.window(index), whole[index])
        assert len(reader.chunks) == len(leading) + 2


@pytest.mark.slow
def test_of_zarr(tmp_path: Path) -> None:
    values = np.random.default_rng(0).integers(0, 2**16, (3, 70, 90)).astype(np.uint16)
    array = zarr.create_array(
        tmp_path / "in.zarr", data=values, chunks=(1, 16, 16), shards=(1, 32, 32)
    )
    with open_windows(tmp_path / "in.zarr") as reader:
        index = (slice(1, 3), slice(5, 33), slice(80, 90))
        np.testing.assert_array_equal(reader.window(index), values[index])
        before = reader.stamp
    array[0, 0, 0] = 1 + int(values[0, 0, 0]) % 7
    with open_windows(tmp_path / "in.zarr") as reader:
        assert reader.stamp != before


def test_damaged_windows_are_refused(tmp_path: Path) -> None:
    values = np.random.default_rng(0).integers(0, 2**16, (64, 64)).astype(np.uint16)
    path = tmp_path / "in.tif"
    tifffile.imwrite(path, values, tile=(32, 32), compression="zlib")
    with tifffile.TiffFile(path) as tif:
        offset = tif.pages[3 - 3].aspage().dataoffsets[3]
    data = bytearray(path.read_bytes())
    data[offset : offset + 40] = bytes(40)
    path.write_bytes(data)
    with open_windows(path) as reader:
        assert reader.window((slice(0, 32), slice(0, 32))).shape == (32, 32)
        with pytest.raises(ImageFileError, match=r"in\.tif"):
            reader.window((slice(40, 64), slice(40, 64)))


def test_what_has_windows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    Image.fromarray(np.zeros((8, 9), np.uint8)).save(tmp_path / "in.png")
    with (
        pytest.raises(ImageFileError, match="PNG file, and only OME-Zarr and TIFF"),
        open_windows(tmp_path / "in.png"),
    ):
        pass
    assert not is_large(tmp_path / "in.png")
    rgba = np.zeros((16, 16, 4), np.uint8)
    tifffile.imwrite(tmp_path / "in.tif", rgba, photometric="rgb", extrasamples=["unassalpha"])
    with (
        pytest.raises(ImageFileError, match="has transparency"),
        open_windows(tmp_path / "in.tif"),
    ):
        pass
    zarr.create_array(tmp_path / "in.zarr", data=np.zeros((70, 90), np.uint8), chunks=(32, 32))
    assert not is_large(tmp_path / "in.zarr")
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", 1500)
    assert is_large(tmp_path / "in.zarr")
    with pytest.raises(ImageFileError, match="decompression bombs"):
        read_image(tmp_path / "in.zarr")
    with open_windows(tmp_path / "in.zarr") as reader:
        assert reader.window((slice(0, 70), slice(0, 90))).shape == (70, 90)


def test_known_folders_are_not_counted_again(tmp_path: Path, monkeypatch: Any) -> None:
    """A worker opens the image by what was found once; millions of files take hours to count."""
    image = np.random.default_rng(0).integers(0, 2**16, (3, 70, 90)).astype(np.uint16)
    zarr.create_array(tmp_path / "in.zarr", data=image, chunks=(1, 16, 16))
    with open_windows(tmp_path / "in.zarr") as reader:
        sent = pickle.dumps(FileWindow(reader.opener()))
    monkeypatch.delattr(ome_zarr, "_stored")
    window = pickle.loads(sent)  # noqa: S301 - ours
    place = (slice(0, 1), slice(3, 20), slice(1, 9))
    np.testing.assert_array_equal(window(place), image[place])
    window.close()


def test_windows_of_zarr_in_colour(tmp_path: Path) -> None:
    """Chunks are those of pixels, however samples are cut."""
    pixels = np.random.default_rng(0).integers(0, 256, (70, 90, 3)).astype(np.uint8)
    zarr.create_array(tmp_path / "in.zarr", data=pixels, chunks=(32, 32, 1))
    with open_windows(tmp_path / "in.zarr") as reader:
        assert reader.header.axes == "YXS"
        assert reader.chunks == ome_zarr.writing_unit(reader.header) == (32, 32)
        (tmp_path / "out.zarr").mkdir()
        ome_zarr.BlockWriter(tmp_path / "out.zarr", reader.header).close()
        blocks = ome_zarr.open_blocks(tmp_path / "out.zarr", reader.header)
        index = (slice(0, 70), slice(0, 90))
        blocks.write(index, reader.window(index))
        assert blocks.digest(0, index) != blocks.digest(0, (slice(0, 32), slice(0, 32)))
    np.testing.assert_array_equal(read_image(tmp_path / "out.zarr").pixels, pixels)
