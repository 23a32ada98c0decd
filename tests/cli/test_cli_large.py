"""Large files in blocks, from disk to disk: agreement, memory, kills, shares, and refusals."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tifffile
import zarr
from command_line import run
from full_disk import full_disk
from numpy.typing import NDArray

from integrodiff.engines import ENGINES
from integrodiff.io import read_image

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(
        ENGINES["native"].unavailable() is not None, reason="needs the engine native"
    ),
]
GIVEN = ("--sigma", 400, "--data-range", 20000, "--model", "iad-fast")
LIMIT = ("--max-memory", "350M")


def values(*shape: int) -> NDArray[np.uint16]:
    mesh = np.meshgrid(*(np.arange(length) for length in shape), indexing="ij", sparse=True)
    clean = 5000 + 2000 * (sum(axis // 37 for axis in mesh) % 3)
    noise = np.random.default_rng(0).normal(0, 400, shape)
    return np.asarray(np.rint(clean + noise), np.uint16)


def write_zarr(path: Path, pixels: NDArray[Any], **options: Any) -> None:
    """Write an OME-Zarr image with shards and two smaller resolutions."""
    names = "tzyx"[-pixels.ndim :]
    leading = (1,) * (pixels.ndim - 2)
    group = zarr.open_group(path, mode="w", zarr_format=3)
    datasets = []
    for level in range(3):
        size = (*pixels.shape[:-2], *(n >> level for n in pixels.shape[-2:]))
        array = group.create_array(
            f"s{level}",
            shape=size,
            dtype=pixels.dtype,
            chunks=(*leading, 32, 32),
            shards=(*leading, 64, 128),
            dimension_names=list(names),
            **options,
        )
        if level == 0:
            array[...] = pixels
        factor = [1.0] * len(leading) + [float(1 << level)] * 2
        scale = {"type": "scale", "scale": factor}
        datasets.append({"path": f"s{level}", "coordinateTransformations": [scale]})
    axes = [{"name": n, "type": "time" if n == "t" else "space"} for n in names]
    image: Any = {"axes": axes, "datasets": datasets, "type": "mean"}
    group.attrs["ome"] = {"version": "0.5", "multiscales": [image], "omero": {"name": "mine"}}


def level_of(path: Path) -> NDArray[Any]:
    return np.asarray(zarr.open_array(path)[...])


def files(path: Path) -> dict[str, bytes]:
    found = sorted(file for file in path.rglob("*") if file.is_file())
    return {str(file.relative_to(path)): file.read_bytes() for file in found}


def succeed(*arguments: object) -> None:
    result = run("denoise", *arguments)
    assert result.exit_code == 0, result.stderr


def test_zarr_in_blocks_is_what_pages_are(tmp_path: Path) -> None:
    write_zarr(tmp_path / "in.zarr", values(300, 421))
    succeed(tmp_path / "in.zarr", tmp_path / "pages.zarr", *GIVEN)
    succeed(tmp_path / "in.zarr", tmp_path / "blocks.zarr", *GIVEN, *LIMIT)
    assert sorted(path.name for path in tmp_path.iterdir()) == [
        *("blocks.zarr", "in.zarr", "pages.zarr")
    ]
    pages, blocks = files(tmp_path / "pages.zarr"), files(tmp_path / "blocks.zarr")
    assert list(pages) == list(blocks)
    for name in pages:
        if name.endswith("zarr.json"):
            assert json.loads(pages[name]) == json.loads(blocks[name])
    for level in range(3):
        one, other = (
            level_of(tmp_path / name / f"s{level}").astype(int)
            for name in ("pages.zarr", "blocks.zarr")
        )
        # 0.02 of 255 grey levels are 1.6 of 20000.
        assert np.abs(one - other).max() <= 2


@pytest.mark.long
def test_invalid_pixels_and_frames_in_blocks(tmp_path: Path) -> None:
    pixels = values(2, 100, 190).astype(np.float32)
    pixels[1, 20:40, 100:] = np.nan
    write_zarr(tmp_path / "in.zarr", pixels, fill_value=0.0)
    for name, more in (("pages", ()), ("blocks", LIMIT)):
        succeed(tmp_path / "in.zarr", tmp_path / f"{name}.zarr", *GIVEN, *more)
    pages, blocks = (level_of(tmp_path / f"{n}.zarr/s0") for n in ("pages", "blocks"))
    np.testing.assert_array_equal(np.isnan(blocks), np.isnan(pixels))
    assert np.nanmax(np.abs(pages - blocks)) < 1.6


@pytest.mark.long
def test_volume_in_blocks(tmp_path: Path) -> None:
    write_zarr(tmp_path / "in.zarr", values(12, 140, 130))
    more = ("--sigma", 400, "--data-range", 20000)
    succeed(tmp_path / "in.zarr", tmp_path / "whole.zarr", *more)
    succeed(tmp_path / "in.zarr", tmp_path / "blocks.zarr", *more, "--block", "1/1")
    whole, blocks = (
        level_of(tmp_path / f"{name}.zarr/s0").astype(int) for name in ("whole", "blocks")
    )
    assert np.abs(whole - blocks).max() <= 2
    assert np.abs(whole - values(12, 140, 130)).max() > 500


@pytest.mark.parametrize("colour", [False, True])
def test_tiff_in_blocks(tmp_path: Path, colour: bool) -> None:
    pixels = values(190, 230)
    pixels = np.stack([pixels] * 3, axis=-1) if colour else pixels
    kind = "rgb" if colour else "minisblack"
    tifffile.imwrite(
        tmp_path / "in.tif", pixels, tile=(64, 64), compression="zlib", photometric=kind
    )
    succeed(tmp_path / "in.tif", tmp_path / "pages.tif", *GIVEN)
    succeed(tmp_path / "in.tif", tmp_path / "blocks.tif", *GIVEN, "--block", "1/1")
    pages, blocks = (read_image(tmp_path / f"{n}.tif").pixels for n in ("pages", "blocks"))
    assert np.abs(pages.astype(int) - blocks.astype(int)).max() <= 2
    with tifffile.TiffFile(tmp_path / "blocks.tif") as tif:
        page = tif.pages[0].aspage()
        assert page.is_tiled
        assert int(page.compression) == 8


def test_shares_of_a_job_array(tmp_path: Path) -> None:
    write_zarr(tmp_path / "in.zarr", values(300, 421))
    for n in (2, 1, 3):
        assert not (tmp_path / "shares.zarr").exists()
        succeed(tmp_path / "in.zarr", tmp_path / "shares.zarr", *GIVEN, "--block", f"{n}/3")
    names = sorted(path.name for path in tmp_path.iterdir())
    assert names == ["in.zarr", "shares.zarr"]
    # As many units as three shares ask for, in one go.
    for n in (1, 2, 3):
        succeed(tmp_path / "in.zarr", tmp_path / "again.zarr", *GIVEN, "--block", f"{n}/3")
    assert files(tmp_path / "again.zarr") == files(tmp_path / "shares.zarr")


@pytest.mark.long
def test_an_existing_cluster(tmp_path: Path) -> None:
    """Of real processes; blocks are those of the workers' memory, and give the same bytes."""
    pytest.importorskip("distributed")
    from integrodiff.blocks.cluster import local_cluster

    write_zarr(tmp_path / "in.zarr", values(300, 421))
    for n in (1, 2):
        succeed(tmp_path / "in.zarr", tmp_path / "alone.zarr", *GIVEN, "--block", f"{n}/2")
    with local_cluster(2) as client:
        workers = set(client.run(os.getpid).values())
        scheduler = ("--scheduler", client.scheduler_info()["address"])
        succeed(tmp_path / "in.zarr", tmp_path / "there.zarr", *GIVEN, *scheduler)
        limited = run(
            "denoise", tmp_path / "in.zarr", tmp_path / "limited.zarr", *GIVEN, *scheduler, *LIMIT
        )
        assert limited.exit_code == 0, limited.stderr
        assert "2 workers" in " ".join(limited.stderr.split())
        # The cluster is not ours to close.
        assert set(client.run(os.getpid).values()) == workers
    assert files(tmp_path / "there.zarr") == files(tmp_path / "alone.zarr")
    one, other = (
        level_of(tmp_path / name / "s0").astype(int) for name in ("limited.zarr", "alone.zarr")
    )
    assert np.abs(one - other).max() <= 2


def test_a_torn_block_is_computed_again_and_nothing_else(tmp_path: Path) -> None:
    write_zarr(tmp_path / "in.zarr", values(300, 421))
    for n in (1, 2, 3):
        succeed(tmp_path / "in.zarr", tmp_path / "whole.zarr", *GIVEN, "--block", f"{n}/3")
    for n in (1, 2):
        succeed(tmp_path / "in.zarr", tmp_path / "out.zarr", *GIVEN, "--block", f"{n}/3")
    unfinished = tmp_path / ".out.zarr.unfinished"
    written = sorted(file for file in (unfinished / "image/s0/c").rglob("*") if file.is_file())
    torn = written[0]
    torn.write_bytes(torn.read_bytes()[:-7])
    journal = next(unfinished.glob("journal-*.jsonl"))
    journal.write_text(journal.read_text() + '[0, 3, "cut o')
    before = {file: file.stat().st_mtime_ns for file in written}
    refused = run("denoise", tmp_path / "in.zarr", tmp_path / "out.zarr", *GIVEN, *LIMIT)
    assert refused.exit_code == 4
    assert "unfinished job" in " ".join(refused.stderr.split())
    other = run(
        *("denoise", tmp_path / "in.zarr", tmp_path / "out.zarr", *GIVEN[:1], 300, *GIVEN[2:]),
        *(*LIMIT, "--resume"),
    )
    assert other.exit_code == 4
    assert "is another one" in " ".join(other.stderr.split())
    kept = {file: file.read_bytes() for file in written[1:]}
    succeed(tmp_path / "in.zarr", tmp_path / "out.zarr", *GIVEN, *LIMIT, "--resume")
    assert files(tmp_path / "out.zarr") == files(tmp_path / "whole.zarr")
    moved = {
        file: tmp_path / "out.zarr" / file.relative_to(unfinished / "image") for file in written
    }
    times = {file: path.stat().st_mtime_ns for file, path in moved.items()}
    changed = [file for file in written if times[file] != before[file]]
    assert torn in changed
    assert len(changed) < len(written) / 2
    assert all(moved[file].read_bytes() == data for file, data in kept.items())


@pytest.mark.long
def test_tasks_of_several_blocks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """On two workers, where most blocks are there already, and one of them is torn."""
    pytest.importorskip("distributed")
    from integrodiff.blocks import cluster

    write_zarr(tmp_path / "in.zarr", values(300, 421))
    for n in (1, 2, 3):
        succeed(tmp_path / "in.zarr", tmp_path / "whole.zarr", *GIVEN, "--block", f"{n}/3")
    for n in (1, 2):
        succeed(tmp_path / "in.zarr", tmp_path / "out.zarr", *GIVEN, "--block", f"{n}/3")
    written = (tmp_path / ".out.zarr.unfinished/image/s0/c").rglob("*")
    torn = min(file for file in written if file.is_file())
    torn.write_bytes(torn.read_bytes()[:-7])
    monkeypatch.setattr(cluster, "MOST_TASKS", 2)
    more = ("--workers", 2, "--max-memory", "2G", "--resume")
    succeed(tmp_path / "in.zarr", tmp_path / "out.zarr", *GIVEN, *more)
    assert files(tmp_path / "out.zarr") == files(tmp_path / "whole.zarr")


def program(*arguments: object, before: tuple[str, ...] = ()) -> subprocess.Popen[str]:
    """Start the program in a process of its own, with one thread."""
    words = (*before, sys.executable, "-m", "integrodiff.cli", "denoise", *map(str, arguments))
    return subprocess.Popen(
        words,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "INTEGRODIFF_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"},
    )


# Runs a command and prints the most memory that it held, in bytes.
PEAK = """
import resource, subprocess, sys
code = subprocess.call(sys.argv[1:])
print(resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss * 1024)
sys.exit(code)
"""


def journal_lines(unfinished: Path) -> int:
    return sum(path.read_bytes().count(b"\n") for path in unfinished.glob("journal*"))


@pytest.mark.long
def test_killed_and_resumed(tmp_path: Path) -> None:
    write_zarr(tmp_path / "in.zarr", values(700, 900))
    arguments = (*GIVEN, *LIMIT, "--block", "1/1")
    succeed(tmp_path / "in.zarr", tmp_path / "whole.zarr", *arguments)
    unfinished = tmp_path / ".out.zarr.unfinished"
    for blocks in (0, 2, 5):  # in the journal when the job is killed
        job = program(tmp_path / "in.zarr", tmp_path / "out.zarr", *arguments)
        while journal_lines(unfinished) <= blocks:
            assert job.poll() is None, "it was not killed in time"
            time.sleep(0.005)
        job.send_signal(signal.SIGKILL)
        job.communicate()
        assert not (tmp_path / "out.zarr").exists()
    succeed(tmp_path / "in.zarr", tmp_path / "out.zarr", *arguments)
    assert files(tmp_path / "out.zarr") == files(tmp_path / "whole.zarr")


@pytest.mark.long
def test_the_limit_of_memory_is_honoured(tmp_path: Path) -> None:
    """Of an image that takes 50 MB, and some 700 MB if it were denoised as a whole."""
    pixels = np.tile(values(500, 500), (10, 10))
    group = zarr.open_group(tmp_path / "in.zarr", mode="w", zarr_format=3)
    array = group.create_array("s0", shape=pixels.shape, dtype="uint16", chunks=(250, 250))
    array[...] = pixels
    axes = [{"name": n, "type": "space"} for n in "yx"]
    group.attrs["ome"] = {
        "version": "0.5",
        "multiscales": [{"axes": axes, "datasets": [{"path": "s0"}]}],
    }
    limit = 320 * 10**6
    job = program(
        *(tmp_path / "in.zarr", tmp_path / "out.zarr", *GIVEN, "--max-memory", limit),
        before=(sys.executable, "-c", PEAK),
    )
    peak, words = job.communicate()
    assert job.returncode == 0, words
    assert int(peak) <= limit
    found = level_of(tmp_path / "out.zarr/s0")
    assert found.shape == pixels.shape
    assert found[:500, :500].std() < pixels[:500, :500].std()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("--block", "0/3"), "I from 1 to N"),
        (("--block", "x"), "must be I/N"),
        (("--block", "1/2", "--workers", 2), "exclude each other"),
        (("--max-memory", "260M"), "allow more"),
        pytest.param(
            *(("--scheduler", "tcp://127.0.0.1:9"), "no Dask scheduler"), marks=pytest.mark.long
        ),
        (("--resume",), "--resume needs a folder as OUT, or an image in blocks"),
    ],
)
def test_refused(tmp_path: Path, options: tuple[object, ...], message: str) -> None:
    if "--scheduler" in options:
        pytest.importorskip("distributed")
    write_zarr(tmp_path / "in.zarr", values(300, 421))
    result = run("denoise", tmp_path / "in.zarr", tmp_path / "out.zarr", *GIVEN, *options)
    assert result.exit_code == 2
    assert message in " ".join(result.stderr.split())
    assert sorted(path.name for path in tmp_path.iterdir()) == ["in.zarr"]


def test_only_files_with_windows(tmp_path: Path) -> None:
    np.save(tmp_path / "in.npy", values(64, 64))
    result = run("denoise", tmp_path / "in.npy", tmp_path / "out.npy", *GIVEN, "--block", "1/2")
    assert result.exit_code == 3
    assert "only OME-Zarr and TIFF" in " ".join(result.stderr.split())


CHEAP = ("--data-range", 255, "--model", "pm", "--engine", "numpy")


@pytest.mark.parametrize("more", [(), ("--block", "1/1")])
def test_exit_codes_are_those_of_pages(tmp_path: Path, more: tuple[str, ...]) -> None:
    pixels = np.random.default_rng(0).normal(100, 10, (96, 96)).astype(np.float32)
    source = tmp_path / "in.tif"
    tifffile.imwrite(source, pixels, tile=(32, 32), compression="zlib")
    levels = np.full((96, 96), 10.0)
    levels[50, 50] = np.nan
    np.save(tmp_path / "map.npy", levels)
    words = ("--sigma-map", tmp_path / "map.npy", *CHEAP, *more)
    result = run("denoise", source, tmp_path / "a.tif", *words)
    assert result.exit_code == 2, result.stderr
    assert "must be finite" in " ".join(result.stderr.split())
    with tifffile.TiffFile(source) as tif:
        page: Any = tif.pages[0]
        start, count = page.dataoffsets[4], page.databytecounts[4]
    data = bytearray(source.read_bytes())
    data[start : start + count] = b"\x55" * count
    source.write_bytes(data)
    result = run("denoise", source, tmp_path / "b.tif", *CHEAP, *more)
    assert result.exit_code == 3, result.stderr


@pytest.mark.parametrize("suffix", ["tif", "zarr"])
def test_full_disk_in_blocks(tmp_path: Path, suffix: str) -> None:
    pixels = np.random.default_rng(0).random((96, 96)).astype(np.float32)
    tifffile.imwrite(tmp_path / "in.tif", pixels, tile=(32, 32))
    zarr.create_array(tmp_path / "in.zarr", data=pixels, chunks=(96, 96))
    words = ("--sigma", 0, *CHEAP, "--block", "1/1")
    with full_disk(6000):
        target = tmp_path / f"out.{suffix}"
        result = run("denoise", tmp_path / f"in.{suffix}", target, *words)
    assert result.exit_code == 4, result.stderr
    assert "cannot be written" in " ".join(result.stderr.split())
    assert not target.exists()


def test_blocks_say_what_becomes_of_the_pyramid(tmp_path: Path) -> None:
    write_zarr(tmp_path / "in.zarr", values(100, 190))
    group = zarr.open_group(tmp_path / "in.zarr")
    about: Any = group.attrs["ome"]
    about["multiscales"][0]["type"] = "gaussian"
    group.attrs["ome"] = about
    words = ("--sigma", 0, *CHEAP, "--block", "1/1")
    result = run("denoise", tmp_path / "in.zarr", tmp_path / "out.zarr", *words)
    assert "out.zarr: the smaller resolutions are local means now, not gaussian" in result.stderr


@pytest.mark.parametrize("name", ["out.tif", "out.ZARR"])
def test_a_pyramid_of_zarr_in_blocks(tmp_path: Path, name: str) -> None:
    write_zarr(tmp_path / "in.zarr", values(100, 190))
    words = ("--sigma", 0, *CHEAP, "--block", "1/1")
    result = run("denoise", tmp_path / "in.zarr", tmp_path / name, *words)
    assert result.exit_code == 0, result.stderr
    assert read_image(tmp_path / name).pixels.shape == (100, 190)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["in.zarr", name]
