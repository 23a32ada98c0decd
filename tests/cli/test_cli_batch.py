"""``integrodiff denoise`` for many files: plans, failures, reports, processes."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tifffile
import worker_tasks
import zarr
from batches import in_turn, names
from command_line import run
from image_samples import values
from PIL import Image
from selection import some
from typer.testing import Result

from integrodiff.cli.batch import workers
from integrodiff.cli.batch.run import _split
from integrodiff.cli.batch.workers import Died, Finished, Progress, _Worker, run_tasks

OPTIONS = ("--sigma", 20, "--engine", "numpy", "--model", "pm")


def denoise(*arguments: object, **more: Any) -> Result:
    return run("denoise", *arguments, *OPTIONS, **more)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Three images, one of them in a folder, and others that are to be left alone."""
    path = tmp_path / "in"
    (path / "sub").mkdir(parents=True)
    Image.fromarray(values(20, 24)).save(path / "a.png")
    tifffile.imwrite(path / "b.tif", values(20, 24, dtype="uint16"))
    Image.fromarray(values(9, 8)).save(path / "sub" / "a.png")
    (path / "notes.txt").write_text("no image")
    (path / ".0123456789abcdef.part.png").write_bytes(b"of a run that was killed")
    return path


# ---- the plan ----


@pytest.mark.slow
@pytest.mark.usefixtures("one_process")
def test_a_file_of_a_folder_is_denoised_as_by_itself(folder: Path, tmp_path: Path) -> None:
    out = tmp_path / "new" / "out"
    result = denoise(folder, out)
    assert result.exit_code == 0, result.output
    assert result.stdout == ""
    assert names(out) == ["a.png", "b.tif"]
    assert f"{folder / 'b.tif'} -> {out / 'b.tif'}: 24 x 20, uint16" in result.stderr
    assert f"note: {folder}: skipped, not images by their extension: 1 (" in result.stderr
    denoise(folder / "b.tif", tmp_path / "single.tif")
    assert (tmp_path / "single.tif").read_bytes() == (out / "b.tif").read_bytes()
    wide = ("--data-range", "65535")  # at which the noise level is far below those of the training
    quiet = denoise(folder, tmp_path / "quiet", "--quiet", *wide).stderr.splitlines()
    assert [line.split(":")[0] for line in quiet] == ["note", "warning", "warning"]


@pytest.mark.slow
@pytest.mark.usefixtures("one_process")
def test_recursive_keeps_folders_and_never_reads_its_own_outputs(folder: Path) -> None:
    out = folder / "out"
    assert denoise(folder, out, "-r").exit_code == 0
    assert names(out) == ["a.png", "b.tif", "sub/a.png"]
    assert denoise(folder, out, "-r", "--overwrite").exit_code == 0
    assert denoise(folder / ".." / "in", out, "--resume", "-r").exit_code == 0
    assert names(out) == ["a.png", "b.tif", "sub/a.png"]
    pattern = denoise(folder / "**" / "*.png", out, "--overwrite")
    assert pattern.exit_code == 0, pattern.output
    assert names(out) == ["a.png", "b.tif", "sub/a.png"]


@pytest.mark.slow
@pytest.mark.usefixtures("one_process")
def test_patterns_and_formats(folder: Path, tmp_path: Path) -> None:
    assert denoise(folder / "*.png", tmp_path / "one").exit_code == 0
    assert names(tmp_path / "one") == ["a.png"]
    result = denoise(folder / "**" / "*.*g", tmp_path / "all", "--format", "TIF")
    assert result.exit_code == 0
    assert names(tmp_path / "all") == ["a.tif", "sub/a.tif"]
    assert denoise(folder / "a.png", tmp_path / "one", "--overwrite").exit_code == 0
    assert denoise(folder / "b.tif", f"{tmp_path / 'slash'}/").exit_code == 0
    assert names(tmp_path / "slash") == ["b.tif"]
    nothing = denoise(folder / "*.webp", tmp_path / "all")
    assert (nothing.exit_code, nothing.stderr.count("no file matches")) == (3, 1)


@pytest.mark.slow
@pytest.mark.usefixtures("one_process")
def test_a_folder_that_is_an_image_is_one(tmp_path: Path) -> None:
    (tmp_path / "in").mkdir()
    zarr.create_array(tmp_path / "in" / "a.zarr", data=values(20, 24))
    for name, options in (("x", ["-r"]), ("y", [])):
        source = tmp_path / "in" if name == "x" else tmp_path / "in" / "**" / "*"
        result = denoise(source, tmp_path / name, *options)
        assert result.exit_code == 0, result.output
        assert [path.name for path in (tmp_path / name).glob("[!.]*")] == ["a.zarr"]
    again = denoise(tmp_path / "in", tmp_path / "x", "--resume", "--json", "-")
    assert json.loads(again.stdout)["counts"]["skipped"] == 1


def collisions(folder: Path) -> list[tuple[list[object], int, str]]:
    a, b, out = folder / "a.png", folder / "b.tif", folder.parent / "out"
    os.link(a, folder / "sub" / "linked.png")
    Image.fromarray(values(9, 8)).save(folder / "b.png")
    return [
        ([a, folder / "sub" / "a.png", out], 2, "would both become"),
        ([b, folder / "b.png", out, "--format", "png"], 2, "would both become"),
        ([folder, folder], 4, "is the input folder itself"),
        ([folder, folder / "sub" / ".."], 4, "is the input folder itself"),
        ([a, b, folder], 4, "inputs are never changed"),
        # Its output a.png is the same file as the input linked.png.
        ([folder / "sub", folder, "--overwrite"], 4, "inputs are never changed"),
        ([a, b, a], 4, "is not a folder"),
        ([a, b, folder.parent / "new.png"], 2, "several outputs need a folder"),
        ([folder, "-"], 3, "without a Zarr image"),
        ([a, "-", out], 2, "cannot be one of several"),
        ([a, "-", "--json", "-"], 2, "both go to standard output"),
        ([a, out / "o.png", "--resume", "--jobs", 2], 2, "--resume, --jobs needs a folder as OUT"),
        ([a, out / "o.png", "--format", "png"], 2, "the format follows the file extension"),
        ([folder, out, "--format", "svg"], 2, "--format must be one of png"),
        ([folder, out, "--jobs", "0"], 2, "--jobs"),
        ([folder, out, "--colour", "red"], 2, "--colour must be one of"),
        ([folder, out, "--json", a], 4, "not an earlier report"),
        ([folder, out, "--json", out / "a.png"], 2, "is an output"),
        ([folder, out, "--json", out / "no" / "r.json"], 4, "does not exist"),
        ([folder.parent / "none", out / "o.png"], 4, "folder does not exist"),
    ]


@pytest.mark.slow
@pytest.mark.usefixtures("one_process")
@pytest.mark.parametrize("number", range(20))
def test_refused_before_anything_is_computed(folder: Path, number: int) -> None:
    arguments, code, message = collisions(folder)[number]
    before = {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}
    result = denoise(*arguments)
    assert result.exit_code == code, result.output
    assert message in result.stderr
    assert {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()} == before
    assert not list(folder.parent.glob("out/[!.]*"))


def test_a_folder_without_images(tmp_path: Path) -> None:
    (tmp_path / "in" / "sub").mkdir(parents=True)
    result = denoise(tmp_path / "in", tmp_path / "out")
    assert result.exit_code == 3
    assert "no image file in this folder; with --recursive" in result.stderr
    assert not (tmp_path / "out").exists()


# ---- failures and reports ----


@pytest.mark.slow
@pytest.mark.usefixtures("one_process")
def test_a_bad_file_does_not_stop_the_others(folder: Path, tmp_path: Path) -> None:
    (folder / "a2.png").write_bytes((folder / "a.png").read_bytes()[:60])
    (folder / "blocked.tif").mkdir()
    Image.fromarray(values(3, 3)).save(folder / "tiny.png")
    out, report = tmp_path / "out", tmp_path / "out" / "report.json"
    words = ("--engine", "numpy", "--model", "pm", "--json", report)
    result = run("denoise", folder, out, *words)
    assert result.exit_code == 5
    assert f"error: {folder / 'a2.png'}: " in result.stderr
    assert f"error: {folder / 'tiny.png'}: " in result.stderr
    assert "2 of 4 files failed: a2.png, tiny.png" in result.stderr
    assert "Traceback" not in result.stderr
    assert names(out) == ["a.png", "b.tif", "report.json"]
    found = json.loads(report.read_text())
    assert found["exit_code"] == 5
    assert found["counts"] == {"done": 2, "skipped": 0, "failed": 2, "not reached": 0}
    done, bad, _, tiny = found["files"]
    assert (done["status"], done["output"], done["message"]) == ("done", str(out / "a.png"), "")
    assert (done["height"], done["width"], done["pages"]) == (20, 24, 1)
    assert done["noise"]["estimated"] is True
    assert done["noise"]["sigma"][0] > 0
    assert done["seconds"] > 0
    assert (bad["status"], bad["exit_code"], bad["noise"]) == ("failed", 3, None)
    assert bad["message"].startswith(str(folder / "a2.png"))
    assert tiny["exit_code"] == 2
    again = run("denoise", folder, out, *words, "--resume")
    assert again.exit_code == 5
    found = json.loads(report.read_text())
    assert found["counts"] == {"done": 0, "skipped": 2, "failed": 2, "not reached": 0}


@pytest.mark.usefixtures("one_process")
def test_a_missing_file_among_others(folder: Path, tmp_path: Path) -> None:
    result = denoise(folder / "a.png", folder / "missing.png", tmp_path / "out", "--json", "-")
    assert result.exit_code == 5
    assert [file["status"] for file in json.loads(result.stdout)["files"]] == ["done", "failed"]


@pytest.mark.slow
@pytest.mark.usefixtures("one_process")
def test_a_pipe_among_the_files_is_refused_at_once(folder: Path, tmp_path: Path) -> None:
    """Neither its length nor its hash would ever be known."""
    os.mkfifo(folder / "pipe.png")
    result = denoise(folder, tmp_path / "out", "--resume", "--json", "-")
    assert result.exit_code == 5
    assert f"error: {folder / 'pipe.png'}: is not a regular file" in result.stderr
    assert names(tmp_path / "out") == ["a.png", "b.tif"]


@pytest.mark.slow
def test_report_about_one_file(folder: Path, tmp_path: Path) -> None:
    out = tmp_path / "o.tif"
    result = denoise(folder / "b.tif", out, "--json", "-", "--quiet", "--data-range", "65535")
    (entry,) = json.loads(result.stdout)["files"]
    assert entry["noise"] == {"sigma": [20.0], "estimated": False}
    assert len(entry["warnings"]) == result.stderr.count("warning: ") == 1
    failed = denoise(folder / "notes.txt", tmp_path / "p.tif", "--json", "-")
    report = json.loads(failed.stdout)
    assert failed.exit_code == report["exit_code"] == report["files"][0]["exit_code"] == 3
    assert "error: " + report["files"][0]["message"] in failed.stderr
    assert report["options"]["model"] == "pm"


@pytest.mark.slow
@pytest.mark.usefixtures("one_process")
def test_progress_on_a_terminal(folder: Path, tmp_path: Path) -> None:
    terminal = {"FORCE_COLOR": "1", "TERM": "xterm"}
    result = denoise(folder, tmp_path / "out", env=terminal)
    assert result.exit_code == 0
    assert "2/2 files" in result.stderr
    assert "left" in result.stderr
    assert "100%" in result.stderr
    assert "done" in result.stderr.rsplit("megapixels", 1)[1]


# ---- processes ----


@pytest.mark.parametrize(
    ("wanted", "files", "processors", "threads", "expected"),
    [
        (1, 9, 8, 8, (1, 8)),
        (2, 9, 8, 8, (2, 4)),
        (3, 9, 8, 8, (3, 2)),
        (99, 99, 8, 8, (8, 1)),
        (4, 2, 8, 8, (2, 4)),
        (2, 9, 8, 3, (2, 3)),
        (2, 9, 8, 6, (2, 4)),
        (2, 9, 1, 1, (1, 1)),
        (2, 9, 1, 7, (1, 1)),
    ],
)
def test_processors_are_divided(
    wanted: int, files: int, processors: int, threads: int, expected: tuple[int, int]
) -> None:
    assert _split(wanted, files, processors, threads) == expected


@pytest.mark.slow
@pytest.mark.parametrize("by_signal", [True, False])
def test_a_signal_while_a_worker_ends_is_quiet(
    by_signal: bool, capfd: pytest.CaptureFixture[str]
) -> None:
    worker = _Worker[int, int](worker_tasks.late_signal)
    worker.connection.send(2)
    assert worker.connection.recv() == Finished(2)
    if by_signal:
        worker.process.terminate()
    assert worker.join() == by_signal
    assert capfd.readouterr().err == ""


@pytest.mark.slow
def test_a_process_that_dies_takes_no_task_with_it() -> None:
    ends: dict[int, Any] = {}
    progress = []
    for task, event in run_tasks(range(8), worker_tasks.square, processes=2, threads=1):
        if isinstance(event, Progress):
            progress.append((task, event.fraction))
        else:
            ends[task] = event
    survivors = (0, 1, 2, 6, 7)
    assert ends == {
        **{task: Finished(task * task) for task in survivors},
        3: Died(-signal.SIGKILL),
        4: Died(7),
        5: Died(0),
    }
    assert "died (Killed)" in str(ends[3])
    assert "exit code 7" in str(ends[4])
    assert sorted(progress) == [(task, 0.5) for task in survivors]


@pytest.mark.slow
def test_processes_have_the_threads_they_are_given(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OMP_NUM_THREADS", "11")
    monkeypatch.delenv("INTEGRODIFF_THREADS", raising=False)
    assert list(run_tasks([0], worker_tasks.threads, processes=1, threads=3)) == [
        (0, Finished((3, "3")))
    ]
    assert os.environ["OMP_NUM_THREADS"] == "11"
    assert "INTEGRODIFF_THREADS" not in os.environ


@pytest.mark.slow
def test_several_jobs_give_what_one_gives(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("integrodiff.engines.cpu_count", lambda: 2)
    (folder / "c.png").write_bytes(b"broken")
    many = denoise(folder, tmp_path / "many", "-r", "--jobs", 3, "--json", "-")
    assert many.exit_code == 5
    assert "--jobs 3 exceeds the number of processors; using 2" in many.stderr
    inputs = [Path(file["input"]).name for file in json.loads(many.stdout)["files"]]
    assert inputs == ["a.png", "b.tif", "c.png", "a.png"]
    monkeypatch.setattr(workers, "run_tasks", in_turn)
    assert denoise(folder, tmp_path / "one", "-r").exit_code == 5
    assert names(tmp_path / "many") == names(tmp_path / "one") == ["a.png", "b.tif", "sub/a.png"]
    for name in names(tmp_path / "one"):
        assert (tmp_path / "one" / name).read_bytes() == (tmp_path / "many" / name).read_bytes()


# ---- signals, in a session of processes of its own ----

START = """
import signal
from integrodiff.cli import main
# Programs in the background start with some signals ignored, and so do their children.
signal.signal(signal.SIGINT, signal.default_int_handler)
signal.signal(signal.SIGHUP, signal.SIG_DFL)
main()
"""


@pytest.fixture
def batch(tmp_path: Path) -> Iterator[subprocess.Popen[str]]:
    """A batch of three images, at a moment at which one or two of them are computed."""
    (tmp_path / "in").mkdir()
    for number in range(3):
        np.save(tmp_path / "in" / f"{number}.npy", values(1200, 1200))
    out, report = tmp_path / "out", tmp_path / "report.json"
    words = ["denoise", tmp_path / "in", out, "--jobs", 2, "--json", report, *OPTIONS]
    process = subprocess.Popen(
        [sys.executable, "-c", START, *map(str, words)],
        start_new_session=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=os.environ | {"INTEGRODIFF_THREADS": "1"},
    )
    with process:
        try:
            wait_until(lambda: bool(list(out.glob(".*.part*"))), "no image is being written")
            yield process
        finally:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)


def wait_until(condition: Callable[[], bool], otherwise: str) -> None:
    """Wait for something that a process of its own does; the limit is for one that hangs."""
    deadline = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < deadline, otherwise
        time.sleep(0.02)


def workers_of(session: int) -> list[int]:
    """Return the worker processes in a session that are running."""
    command = ["ps", "-A", "-ww", "-o", "pid=", "-o", "sess=", "-o", "stat=", "-o", "args="]
    lines = subprocess.run(command, capture_output=True, text=True, check=True).stdout.splitlines()
    rows = [line.split(maxsplit=3) for line in lines]
    return [
        int(pid)
        for pid, sess, state, words in rows
        if int(sess) == session and "spawn_main" in words and not state.startswith("Z")
    ]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("number", "group", "code"),
    some(
        [
            (signal.SIGINT, True, 130),  # Ctrl-C goes to all processes
            (signal.SIGTERM, False, 143),
            (signal.SIGTERM, True, 143),
            (signal.SIGHUP, True, 129),  # a terminal that is closed, likewise
        ],
        (signal.SIGINT, True, 130),
        (signal.SIGTERM, False, 143),
    ),
)
def test_an_interruption_leaves_nothing_half_done(
    batch: subprocess.Popen[str], tmp_path: Path, number: int, group: bool, code: int
) -> None:
    (os.killpg if group else os.kill)(batch.pid, number)
    stdout, stderr = batch.communicate(timeout=60)
    assert (batch.returncode, stdout) == (code, ""), stderr
    assert stderr.endswith("the same command with --resume goes on from here\ninterrupted\n")
    assert "Traceback" not in stderr, stderr
    assert workers_of(batch.pid) == []
    assert list((tmp_path / "out").iterdir()) == []
    found = json.loads((tmp_path / "report.json").read_text())
    assert (found["exit_code"], found["counts"]["not reached"]) == (code, 3)


@pytest.mark.slow
def test_workers_end_with_a_parent_that_is_killed(
    batch: subprocess.Popen[str], tmp_path: Path
) -> None:
    assert workers_of(batch.pid)
    batch.kill()
    batch.wait()
    wait_until(lambda: workers_of(batch.pid) == [], "the workers go on")
    assert list((tmp_path / "out").iterdir()) == []
    assert not (tmp_path / "report.json").exists()


@pytest.mark.slow
def test_a_worker_that_is_killed_is_a_failed_file(
    batch: subprocess.Popen[str], tmp_path: Path
) -> None:
    """As the system does that has no memory left."""
    os.kill(workers_of(batch.pid)[0], signal.SIGKILL)
    _, stderr = batch.communicate(timeout=120)
    assert batch.returncode == 5, stderr
    found = json.loads((tmp_path / "report.json").read_text())
    assert found["counts"] == {"done": 2, "skipped": 0, "failed": 1, "not reached": 0}
    (dead,) = [file for file in found["files"] if file["status"] == "failed"]
    assert dead["exit_code"] == 1
    assert dead["message"].startswith(f"{dead['input']}: its process died (Killed)")
    assert len(names(tmp_path / "out")) >= 2


def test_the_report_has_the_exit_code_of_the_program(folder: Path, tmp_path: Path) -> None:
    report = tmp_path / "report.json"
    words = (folder, tmp_path / "out", "--sigma", 20, "--engine", "numpy", "--json", report)
    result = run("denoise", *words, env={"INTEGRODIFF_THREADS": "many"})
    assert result.exit_code == 2
    assert json.loads(report.read_text())["exit_code"] == 2


def test_a_limit_of_memory_for_volumes_only_is_told(folder: Path, tmp_path: Path) -> None:
    words = ("--sigma", 20, "--engine", "numpy", "--max-memory", "500M")
    result = run("denoise", folder, tmp_path / "out", *words)
    assert "--max-memory limits the memory of volumes only" in " ".join(result.stderr.split())


@pytest.mark.parametrize(("closed", "code", "name"), [("<", 3, "input"), (">", 4, "output")])
def test_closed_pipes(tmp_path: Path, closed: str, code: int, name: str) -> None:
    Image.fromarray(values(20, 24)).save(tmp_path / "in.png")
    files = "- out.png" if closed == "<" else "in.png - --format png"
    start = "import sys; from integrodiff.cli import main; main()"
    words = f"denoise {files} --sigma 9 {closed}&-"
    command = ["/bin/sh", "-c", f"{sys.executable} -c '{start}' {words}"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == code, done.stderr
    assert f"standard {name} is closed" in " ".join(done.stderr.split())
