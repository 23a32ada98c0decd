"""Unfinished jobs, records and masks that somebody has damaged, or made to do harm."""

from __future__ import annotations

import json
import os
import struct
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tifffile
from command_line import run
from PIL import Image

from integrodiff.errors import ImageFileError
from integrodiff.io.masks import read_mask

GIVEN = ("--sigma", 20, "--model", "pm", "--engine", "numpy", "--data-range", 255)


def words(result: Any) -> str:
    return " ".join(result.stderr.split())


@pytest.fixture
def begun(tmp_path: Path) -> Path:
    """Begin a job in two shares, of which one is done, and return its folder."""
    noisy = np.random.default_rng(0).normal(128, 20, (600, 700)).clip(0, 255).astype(np.uint8)
    tifffile.imwrite(tmp_path / "in.tif", noisy, tile=(256, 256))
    done = share(tmp_path, 1)
    assert done.exit_code == 0, done.stderr
    folder = tmp_path / ".out.tif.unfinished"
    assert (folder / "job.json").is_file()
    return folder


def share(folder: Path, number: int) -> Any:
    names = folder / "in.tif", folder / "out.tif"
    return run("denoise", *names, *GIVEN, "--block", f"{number}/2")


def no_job(folder: Path) -> None:
    (folder / "job.json").unlink()
    os.mkfifo(folder / "job.json")


def link_to_device(folder: Path) -> None:
    (folder / "job.json").unlink()
    (folder / "job.json").symlink_to("/dev/zero")


def too_long(folder: Path) -> None:
    with (folder / "job.json").open("ab") as stream:
        stream.truncate(2**34)


def nested(folder: Path) -> None:
    (folder / "job.json").write_text("[" * 100_000)


def changed(**values: Any) -> Callable[[Path], None]:
    def change(folder: Path) -> None:
        about = json.loads((folder / "job.json").read_text())
        (folder / "job.json").write_text(json.dumps({**about, **values}))

    return change


@pytest.mark.slow
@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (no_job, "cannot be read; remove it"),
        (link_to_device, "cannot be read; remove it"),
        (too_long, "cannot be read; remove it"),
        (nested, "cannot be read; remove it"),
        (changed(unit=[0, 0]), "is damaged; remove it"),
        (changed(unit="x"), "is damaged; remove it"),
        (changed(block=[1e300, None]), "is damaged; remove it"),
        (changed(block=True), "is damaged; remove it"),
        (changed(unit=[7, 512]), "do not fit the output; remove that folder"),
        (changed(unit=[512]), "do not fit the output; remove that folder"),
        (changed(identity=[]), "is another one"),
    ],
    ids=lambda value: getattr(value, "__name__", None),
)
def test_descriptions_of_jobs(begun: Path, damage: Callable[[Path], None], message: str) -> None:
    damage(begun)
    result = share(begun.parent, 2)
    assert result.exit_code == 4, result.stderr
    assert message in words(result)
    assert not (begun.parent / "out.tif").exists()


@pytest.mark.slow
def test_journals_that_are_no_files(begun: Path) -> None:
    os.mkfifo(begun / "journal-0.jsonl")
    result = share(begun.parent, 2)
    assert result.exit_code == 4
    assert "the journal journal-0.jsonl of the unfinished job" in words(result)
    (begun / "journal-0.jsonl").unlink()
    (begun / "journal-0.jsonl").mkdir()
    assert share(begun.parent, 2).exit_code == 4


@pytest.mark.slow
def test_lines_of_journals_that_mean_nothing(begun: Path) -> None:
    """They are passed over: the result is that of a job that nobody touched."""
    lines = [
        *("[0, 1e999, 7]", "[0, -1, 7]", "[-1, 0, 7]", "[9, 0, 7]", "[0, 99999999, 7]", "null"),
        *(
            "[" * 100_000,
            "[0, NaN, 7]",
            '[0, "x", 7]',
            "{}",
            f"[0, 1{'0' * 5000}, 7]",
            "\0",
            "[0, 3]",
        ),
    ]
    (begun / "journal-0.jsonl").write_text("\n".join(lines))
    (begun / "journal-1.jsonl").write_bytes(b"\xff\xfe[0, 1, 7]\n")
    result = share(begun.parent, 2)
    assert result.exit_code == 0, result.stderr
    whole = begun.with_name("whole.tif")
    assert run("denoise", begun.with_name("in.tif"), whole, *GIVEN, "--block", "1/1").exit_code == 0
    np.testing.assert_array_equal(
        tifffile.imread(begun.with_name("out.tif")), tifffile.imread(whole)
    )
    assert not begun.exists()


@pytest.mark.slow
def test_a_long_name(tmp_path: Path) -> None:
    noisy = np.random.default_rng(0).normal(128, 20, (64, 64)).clip(0, 255).astype(np.uint8)
    tifffile.imwrite(tmp_path / "in.tif", noisy)
    target = tmp_path / f"{'n' * 251}.tif"
    result = run("denoise", tmp_path / "in.tif", target, *GIVEN, "--block", "1/1")
    assert result.exit_code == 0, result.stderr
    assert sorted(path.name for path in tmp_path.iterdir()) == ["in.tif", target.name]


def test_numbers_of_blocks_with_many_digits(tmp_path: Path) -> None:
    tifffile.imwrite(tmp_path / "in.tif", np.zeros((64, 64), np.uint8))
    names = tmp_path / "in.tif", tmp_path / "out.tif"
    result = run("denoise", *names, *GIVEN, "--block", f"1/{'9' * 5000}")
    assert result.exit_code == 2
    assert "up to 9 digits" in words(result)


@pytest.mark.parametrize(
    ("option", "value", "message"),
    [
        ("--max-memory", "9" * 400, "--max-memory must be a number of bytes"),
        ("--max-memory", "9" * 400 + "G", "--max-memory must be a number of bytes"),
        ("--sigma", "5:1," * 2000, "--sigma must be a number, levels for scales"),
        ("--scheduler", "", "--scheduler needs the address of a Dask scheduler"),
    ],
)
def test_long_and_empty_options(tmp_path: Path, option: str, value: str, message: str) -> None:
    np.save(tmp_path / "in.npy", np.zeros((8, 8), np.uint8))
    names = tmp_path / "in.npy", tmp_path / "out.npy"
    result = run("denoise", *names, "--model", "pm", option, value)
    assert result.exit_code == 2, result.stderr
    assert message in words(result)
    assert len(result.stderr) < 1000
    assert not names[1].exists()


# ---- records of batches ----


@pytest.fixture
def record(tmp_path: Path) -> Path:
    """Denoise a folder with one image, and return its record."""
    (tmp_path / "in").mkdir()
    np.save(tmp_path / "in/a.npy", np.full((8, 8), 7, np.uint8))
    assert run("denoise", tmp_path / "in", tmp_path / "out", *GIVEN, "--jobs", 1).exit_code == 0
    return tmp_path / "out/.integrodiff/a.npy.json"


def resumed(record: Path) -> Any:
    folder = record.parents[2]
    return run("denoise", folder / "in", folder / "out", *GIVEN, "--jobs", 1, "--resume")


@pytest.mark.slow
@pytest.mark.usefixtures("one_process")
def test_a_record_of_gigabytes(record: Path) -> None:
    with record.open("ab") as stream:
        stream.truncate(2**34)
    result = resumed(record)
    assert result.exit_code == 5
    assert "the record of how it was made cannot be read" in words(result)


@pytest.mark.slow
@pytest.mark.usefixtures("one_process")
def test_a_record_with_options_that_there_are_not(record: Path) -> None:
    about = json.loads(record.read_text())
    names = {f"error: {number} {'x' * 500}": 1 for number in range(1000)}
    record.write_text(json.dumps({**about, "options": {**about["options"], **names}}))
    result = resumed(record)
    assert result.exit_code == 5
    assert "it was made with other options: error: 0 x" in words(result)
    assert len(result.stderr) < 3000


# ---- masks ----


@pytest.mark.slow
def test_pages_of_a_bitmap_that_share_their_bytes(tmp_path: Path) -> None:
    """2,000 pages of 13,000 x 13,000 bits in a file of kilobytes."""
    path = tmp_path / "mask.tif"
    side, pages = 13_000, 2_000
    row = zlib.compress(bytes(side // 8 * side), 9)
    start = 8 + len(row)
    tags = [(256, side), (257, side), (258, 1), (259, 8), (262, 1), (273, 8), (277, 1)]
    tags += [(278, side), (279, len(row))]
    block = struct.pack("<H", len(tags)) + b"".join(
        struct.pack("<HHII", tag, 4, 1, value) for tag, value in tags
    )
    length = len(block) + 4
    links = [start + length * (number + 1) for number in range(pages - 1)] + [0]
    path.write_bytes(
        struct.pack("<2sHI", b"II", 42, start)
        + row
        + b"".join(block + struct.pack("<I", link) for link in links)
    )
    with pytest.raises(ImageFileError, match="claims 338000000000 bytes of pixels"):
        read_mask(path)


def test_bitmaps_are_read(tmp_path: Path) -> None:
    mask = np.random.default_rng(0).random((2, 9, 11)) > 0.5
    pages = [Image.fromarray(page) for page in mask]
    pages[0].save(tmp_path / "mask.tif", save_all=True, append_images=pages[1:])
    np.testing.assert_array_equal(read_mask(tmp_path / "mask.tif"), mask)
