"""Defects of files: pyramids, chunks, 16 bits, other versions of libraries, and messages."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections import Counter
from importlib.metadata import distribution
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tifffile
import zarr
from numpy.typing import NDArray
from PIL import Image
from typer.testing import CliRunner, Result
from zarr.storage import LocalStore

import integrodiff
from integrodiff.cli import app
from integrodiff.learning import image_folder

OPTIONS = ("--sigma", "9", "--data-range", "255", "--model", "eed", "--engine", "numpy", "--quiet")
UNEXPECTED, INPUT = 1, 3


def denoise(source: Path, target: Path) -> Result:
    """Run the command line in this process."""
    words = ["denoise", str(source), str(target), *OPTIONS]
    return CliRunner().invoke(app, words, env={"COLUMNS": "2000"})


def grey(*shape: int, dtype: str = "uint8") -> NDArray[Any]:
    return np.random.default_rng(0).integers(0, 256, shape).astype(dtype)


# ---- OME-Zarr ----


def pyramid(path: Path) -> NDArray[Any]:
    """Write a stack with a second resolution, several planes in a chunk; return its pixels."""
    pixels = grey(4, 16, 16)
    group = zarr.open_group(path, mode="w", zarr_format=3)
    datasets = []
    for level, data in enumerate([pixels, pixels[:, ::2, ::2]]):
        group.create_array(f"s{level}", data=data, chunks=(2, 8, 8))
        scale = {"type": "scale", "scale": [1.0, 2.0**level, 2.0**level]}
        datasets.append({"path": f"s{level}", "coordinateTransformations": [scale]})
    axes = [{"name": "t", "type": "time"}, *({"name": n, "type": "space"} for n in "yx")]
    image: Any = {"axes": axes, "datasets": datasets, "version": "0.5"}
    group.attrs["ome"] = {"version": "0.5", "multiscales": [image]}
    return pixels


@pytest.mark.slow
def test_a_result_has_its_pyramid(tmp_path: Path) -> None:
    pyramid(tmp_path / "in.zarr")
    result = denoise(tmp_path / "in.zarr", tmp_path / "out.zarr")
    assert result.exit_code == 0, result.output
    found: Any = zarr.open_group(tmp_path / "out.zarr", mode="r")
    assert len(found.attrs["ome"]["multiscales"][0]["datasets"]) == 2
    full, small = found["s0"][:], found["s1"][:]
    means = full.reshape(4, 8, 2, 8, 2).astype(float).mean(axis=(2, 4))
    assert np.abs(small - means).max() <= 0.5


@pytest.mark.slow
def test_chunks_are_read_and_written_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Planes along two axes share a chunk; the library's accesses to its files are counted."""
    zarr.create_array(tmp_path / "in.zarr", data=grey(4, 6, 16, 16), chunks=(2, 3, 8, 8))
    read: Counter[str] = Counter()
    written: Counter[str] = Counter()
    get, put = LocalStore.get, LocalStore.set

    async def counted_get(store: LocalStore, key: str, *more: Any, **options: Any) -> Any:
        data = await get(store, key, *more, **options)
        if data is not None and "c/" in key:
            read[f"{store.root}/{key}"] += 1
        return data

    async def counted_set(store: LocalStore, key: str, value: Any) -> None:
        await put(store, key, value)
        if "c/" in key:
            written[f"{store.root}/{key}"] += 1

    monkeypatch.setattr(LocalStore, "get", counted_get)
    monkeypatch.setattr(LocalStore, "set", counted_set)
    result = denoise(tmp_path / "in.zarr", tmp_path / "out.zarr")
    assert result.exit_code == 0, result.output
    assert len(written) == 16
    assert max(written.values()) == max(read.values()) == 1


# ---- training images ----


@pytest.mark.parametrize("suffix", [".png", ".tif"])
def test_training_reads_all_16_bits(tmp_path: Path, suffix: str) -> None:
    shallow = grey(30, 32)
    shallow[0, 0] = 255
    for name, pixels in (("8", shallow), ("16", shallow.astype(np.uint16) * 257)):
        (tmp_path / name).mkdir()
        path = tmp_path / name / f"a{suffix}"
        if suffix == ".png":
            Image.fromarray(pixels).save(path)
        else:
            tifffile.imwrite(path, pixels)
    found = [image_folder(tmp_path / name, size=24).pixels for name in ("8", "16")]
    np.testing.assert_allclose(found[1], found[0], atol=1e-3)


# ---- other versions of libraries ----


@pytest.mark.slow
def test_tiff_by_a_library_without_squeezed_axes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In tifffile from 2026.5 on these methods are gone."""
    for name in ("get_axes", "get_shape"):
        monkeypatch.delattr(tifffile.TiffPageSeries, name, raising=False)
    tifffile.imwrite(tmp_path / "in.tif", grey(4, 12, 14), photometric="minisblack")
    result = denoise(tmp_path / "in.tif", tmp_path / "out.tif")
    assert result.exit_code == 0, result.output


def test_a_changed_library_is_not_a_damaged_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tifffile.imwrite(tmp_path / "in.tif", grey(12, 14))
    monkeypatch.delattr(tifffile.TiffPageSeries, "dataoffset")
    monkeypatch.delattr(tifffile.TiffPageSeries, "get_axes", raising=False)
    result = denoise(tmp_path / "in.tif", tmp_path / "out.tif")
    assert (result.exit_code, "damaged" in result.output) == (UNEXPECTED, False)


@pytest.mark.parametrize("dtype", ["uint64", "int64"])
def test_integers_of_64_bits(dtype: str) -> None:
    """NumPy 2.5 puts no limit of theirs beside a Python number any more."""
    image = grey(16, 16, dtype=dtype)
    image[0, 0] = np.iinfo(dtype).max
    found = integrodiff.denoise(image, 9.0, model="eed", data_range=255)
    assert found.dtype == image.dtype


# ---- messages ----


@pytest.mark.slow
def test_extras_are_printed_and_can_be_installed(tmp_path: Path) -> None:
    """From a clone its folder, not ``integrodiff``, which no index has."""
    program = (
        "import sys; sys.modules['torch'] = None\n"
        "from integrodiff.cli import main\n"
        "sys.argv = ['integrodiff', 'info']\n"
        "main()"
    )
    environment = {**os.environ, "COLUMNS": "400"}
    command = [sys.executable, "-W", "ignore", "-c", program]
    done = subprocess.run(
        command, capture_output=True, text=True, cwd=tmp_path, env=environment, check=True
    )
    assert "[torch]'" in done.stdout
    found = re.search(r"pip install (?:--editable )?'([^']*)\[torch\]'", done.stdout)
    assert found is not None
    origin = json.loads(distribution("integrodiff").read_text("direct_url.json") or "{}")
    if "dir_info" in origin:
        assert (Path(found[1]) / "pyproject.toml").is_file()
    else:
        assert found[1] == "integrodiff"


@pytest.mark.slow
def test_help_shows_examples_line_by_line() -> None:
    shown = CliRunner().invoke(app, ["denoise", "--help"], env={"COLUMNS": "200"}).output
    examples = [line for line in shown.splitlines() if "integrodiff denoise " in line]
    assert len(examples) > 2
    assert all(line.count("integrodiff denoise ") == 1 for line in examples)
    assert "130" not in shown  # exit codes are on the main page
