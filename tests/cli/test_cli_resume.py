"""``integrodiff denoise --resume``, and images through pipes."""

from __future__ import annotations

import io
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import tifffile
from batches import names
from command_line import run
from image_samples import values
from PIL import Image
from typer.testing import Result

import integrodiff
from integrodiff import _atomic
from integrodiff.cli._noise import NoiseOptions
from integrodiff.cli._one_file import Options
from integrodiff.cli.batch.records import options_of

OPTIONS = ("--sigma", 20, "--engine", "numpy", "--quiet")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Two images and a model."""
    path = tmp_path / "in"
    path.mkdir()
    Image.fromarray(values(20, 24)).save(path / "a.png")
    Image.fromarray(values(12, 9)).save(path / "b.png")
    integrodiff.save_model(integrodiff.load_model("pm"), tmp_path / "m.json")
    return path


def resume(folder: Path, *more: object) -> tuple[dict[str, str], Result]:
    """Run a batch; return what became of each file, and all that was printed."""
    model = folder.parent / "m.json"
    words = ("--model", model, "--resume", "--json", "-", *OPTIONS, *more)
    result = run("denoise", folder, folder.parent / "out", *words)
    files = json.loads(result.stdout)["files"]
    return {Path(file["input"]).stem: file["status"] for file in files}, result


# ---- what is finished, and what is not ----


def tamper_output(folder: Path) -> None:
    path = folder.parent / "out" / "a.png"
    data = bytearray(path.read_bytes())
    data[-1] ^= 1
    stat = path.stat()
    path.write_bytes(data)
    os.utime(path, ns=(stat.st_atime_ns, stat.st_mtime_ns))


def change_input(folder: Path) -> None:
    path = folder / "a.png"
    stat = path.stat()
    Image.fromarray(values(20, 24) // 2).save(path)
    os.utime(path, ns=(stat.st_atime_ns, stat.st_mtime_ns))


def swap_inputs(folder: Path) -> None:
    shutil.copy(folder / "b.png", folder / "a.png")


def lose_record(folder: Path) -> None:
    (folder.parent / "out" / ".integrodiff" / "a.png.json").unlink()


def damage_record(folder: Path) -> None:
    record = folder.parent / "out" / ".integrodiff" / "a.png.json"
    record.write_text(record.read_text()[:-20])


def forge_record(folder: Path) -> None:
    (folder.parent / "out" / ".integrodiff" / "a.png.json").write_text("[]")


def age_record(folder: Path) -> None:
    record = folder.parent / "out" / ".integrodiff" / "a.png.json"
    text = record.read_text().replace('"schema_version": 1', '"schema_version": 0')
    record.write_text(text)


@pytest.mark.slow
@pytest.mark.usefixtures("one_process")
@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (tamper_output, "it has changed since it was made"),
        (change_input, "the input has changed"),
        (swap_inputs, "the input has changed"),
        (lose_record, "there is no record"),
        (damage_record, "cannot be read"),
        (forge_record, "is not one"),
        (age_record, "another version"),
    ],
)
def test_only_verified_outputs_are_skipped(
    folder: Path, change: Callable[[Path], None], reason: str
) -> None:
    assert resume(folder)[0] == {"a": "done", "b": "done"}
    assert resume(folder)[0] == {"a": "skipped", "b": "skipped"}
    change(folder)
    output = folder.parent / "out" / "a.png"
    before = output.read_bytes()
    statuses, result = resume(folder)
    assert statuses == {"a": "failed", "b": "skipped"}
    assert result.exit_code == 5
    assert f"error: {output}: exists already, and " in result.stderr
    assert reason in result.stderr
    assert output.read_bytes() == before
    assert resume(folder, "--overwrite")[0] == {"a": "done", "b": "skipped"}
    assert resume(folder)[0] == {"a": "skipped", "b": "skipped"}


@pytest.mark.slow
@pytest.mark.usefixtures("one_process")
@pytest.mark.parametrize(
    ("options", "reason"),
    [
        (["--sigma", 21], "sigma"),
        (["--data-range", 200], "data range"),
        (["--colour", "joint"], "colour"),
        (["--noise", "poisson"], "noise"),
        (["--model", "iad"], "model, parameters"),
    ],
)
def test_other_options_are_noticed(folder: Path, options: list[object], reason: str) -> None:
    words = ("--engine", "numpy", "--quiet", "--resume", "--json", "-")
    first = run("denoise", folder, folder.parent / "out", *words, "--sigma", 20, "--model", "pm")
    assert first.exit_code == 0
    more = [*options]
    if "--noise" not in options and "--sigma" not in options:
        more += ["--sigma", 20]
    if "--model" not in options:
        more += ["--model", "pm"]
    result = run("denoise", folder, folder.parent / "out", *words, *more)
    assert result.exit_code == 5
    assert "made with other options: " in result.stderr
    assert reason in result.stderr.split("other options: ")[1].split(";")[0]


@pytest.mark.slow
@pytest.mark.usefixtures("one_process")
def test_a_model_file_with_other_numbers_is_noticed(folder: Path) -> None:
    assert resume(folder)[1].exit_code == 0
    integrodiff.save_model(integrodiff.load_model("eed"), folder.parent / "m.json")
    statuses, result = resume(folder)
    assert statuses == {"a": "failed", "b": "failed"}
    assert "made with other options: parameters" in result.stderr


@pytest.mark.slow
@pytest.mark.usefixtures("one_process")
def test_pixels_in_a_file_beside_their_header_are_noticed(tmp_path: Path) -> None:
    pytest.importorskip("nrrd")
    fields = ("type: uint8", "dimension: 2", "sizes: 24 20", "encoding: raw", "data file: a.raw")
    (tmp_path / "a.nhdr").write_text("\n".join(["NRRD0004", *fields]) + "\n")
    (tmp_path / "a.raw").write_bytes(values(20, 24).tobytes())
    words = (tmp_path / "a.nhdr", f"{tmp_path / 'out'}/", *OPTIONS, "--model", "pm", "--resume")
    assert [run("denoise", *words).exit_code for _ in range(2)] == [0, 0]
    (tmp_path / "a.raw").write_bytes((values(20, 24) // 2).tobytes())
    result = run("denoise", *words)
    assert result.exit_code == 5
    assert "the input has changed" in result.stderr


@pytest.mark.slow
@pytest.mark.usefixtures("one_process")
def test_what_is_missing_is_made_and_times_do_not_matter(folder: Path) -> None:
    assert resume(folder)[1].exit_code == 0
    os.utime(folder / "a.png", (1, 1))
    (folder.parent / "out" / "b.png").unlink()
    moved = folder.rename(folder.parent / "moved")
    assert resume(moved)[0] == {"a": "skipped", "b": "done"}


@pytest.mark.slow
@pytest.mark.usefixtures("one_process")
def test_without_resume_nothing_is_skipped(folder: Path) -> None:
    assert resume(folder)[1].exit_code == 0
    result = run("denoise", folder, folder.parent / "out", *OPTIONS)
    assert result.exit_code == 5
    assert result.stderr.count("exists already; give another name, or --overwrite it") == 2


# ---- runs that were killed ----


@pytest.mark.slow
@pytest.mark.usefixtures("one_process")
@pytest.mark.parametrize("moment", ["before", "after"])
def test_killed_as_the_output_gets_its_name(
    folder: Path, monkeypatch: pytest.MonkeyPatch, moment: str
) -> None:
    """An output has its record at every moment at which it is there."""
    link = _atomic._link_or_replace
    out = folder.parent / "out"

    def interrupted(temporary: Path, path: Path) -> None:
        assert json.loads((out / ".integrodiff" / f"{path.name}.json").read_text())
        if moment == "after":
            link(temporary, path)
        raise KeyboardInterrupt

    monkeypatch.setattr(_atomic, "_link_or_replace", interrupted)
    statuses, result = resume(folder)
    assert result.exit_code == 130
    assert statuses == {"a": "not reached", "b": "not reached"}
    assert names(out) == (["a.png"] if moment == "after" else [])
    monkeypatch.setattr(_atomic, "_link_or_replace", link)
    expected = {"a": "skipped" if moment == "after" else "done", "b": "done"}
    assert resume(folder)[0] == expected


@pytest.mark.slow
def test_a_killed_run_is_resumed(tmp_path: Path) -> None:
    """SIGKILL for all processes, after the first output has appeared."""
    (tmp_path / "in").mkdir()
    for number in range(4):
        np.save(tmp_path / "in" / f"{number}.npy", values(500, 400) // (number + 1))
    out = tmp_path / "out"
    words = [tmp_path / "in", out, "--resume", "--model", "pm", *OPTIONS]
    process = subprocess.Popen(
        [sys.executable, "-m", "integrodiff.cli", "denoise", *map(str, words)],
        start_new_session=True,
    )
    deadline = time.monotonic() + 60
    while not list(out.glob("[!.]*")) and time.monotonic() < deadline:
        time.sleep(0.01)
    os.killpg(process.pid, 9)
    process.wait()
    finished = sorted(path.name for path in out.glob("[!.]*"))
    assert finished
    result = run("denoise", *words, "--json", "-")
    assert result.exit_code == 0, result.output
    files = json.loads(result.stdout)["files"]
    assert [Path(f["input"]).name for f in files if f["status"] == "skipped"] == finished
    for number in range(4):
        noisy = values(500, 400) // (number + 1)
        expected = integrodiff.denoise(noisy, 20, model="pm", engine="numpy")
        assert np.array_equal(np.load(out / f"{number}.npy"), expected)


# ---- pipes ----


@pytest.mark.slow
def test_pipes(folder: Path, tmp_path: Path) -> None:
    data = (folder / "a.png").read_bytes()
    run("denoise", folder / "a.png", tmp_path / "a.png", *OPTIONS)
    expected = (tmp_path / "a.png").read_bytes()
    result = run("denoise", "-", "-", *OPTIONS[:-1], input=data)
    assert result.stdout_bytes == expected
    assert result.stderr.startswith("standard input -> standard output: 24 x 20, uint8, grey")
    assert run("denoise", folder / "a.png", "-", *OPTIONS).stdout_bytes == expected
    assert run("denoise", "-", tmp_path / "b.png", *OPTIONS, input=data).exit_code == 0
    assert (tmp_path / "b.png").read_bytes() == expected
    report = run("denoise", "-", tmp_path / "c.png", *OPTIONS, "--json", "-", input=data)
    assert json.loads(report.stdout)["files"][0]["input"] == "standard input"
    tiff = run("denoise", "-", "-", *OPTIONS, "--format", "tif", input=data)
    pixels = np.asarray(Image.open(io.BytesIO(expected)))
    assert np.array_equal(tifffile.imread(io.BytesIO(tiff.stdout_bytes)), pixels)


@pytest.mark.parametrize(
    ("data", "options", "code", "message"),
    [
        (b"", [], 3, "error: standard input: is empty"),
        (b"hello", [], 3, "error: standard input: this is not a PNG"),
        (b"\x89PNG\r\n\x1a\n1234", ["--format", "tif"], 3, "error: standard input: "),
        (None, ["--float"], 4, "error: standard output: "),
    ],
)
def test_nothing_goes_into_a_pipe_if_something_fails(
    folder: Path, data: bytes | None, options: list[str], code: int, message: str
) -> None:
    data = (folder / "a.png").read_bytes() if data is None else data
    result = run("denoise", "-", "-", *OPTIONS, *options, input=data)
    assert (result.exit_code, result.stdout_bytes) == (code, b"")
    assert result.stderr.startswith(message)
    assert str(tempfile.gettempdir()) not in result.stderr


@pytest.mark.slow
def test_no_image_goes_to_a_terminal(folder: Path) -> None:
    code = "import sys; from integrodiff.cli import main; sys.stdout.isatty = lambda: True; main()"
    words = [sys.executable, "-c", code, "denoise", str(folder / "a.png"), "-"]
    done = subprocess.run(words, capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (4, "")
    assert "standard output is a terminal" in done.stderr


def test_records_tell_what_was_read(tmp_path: Path) -> None:
    """And not what is in the same place later."""
    path = tmp_path / "map.npy"
    np.save(path, np.full((9, 9), 20.0))
    options = Options(
        noise=NoiseOptions(sigma_map=str(path)),
        model="pm",
        engine="numpy",
        data_range=None,
        colour="auto",
        as_float=False,
        exact=False,
        overwrite=False,
    )
    settings = options.settings()
    before = options_of(settings)
    assert before["sigma_map"]["bytes"] == path.stat().st_size
    np.save(path, np.full((9, 9), 40.0))
    assert options_of(settings) == before
    assert options_of(options.settings()) != before
    path.unlink()
    assert options_of(settings) == before
