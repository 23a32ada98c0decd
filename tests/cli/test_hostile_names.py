"""Names, links and special files that try to mislead the command line or its user."""

from __future__ import annotations

import json
import os
import stat
import subprocess
import sys
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from batches import in_turn, names
from command_line import run
from image_samples import values
from PIL import Image

from integrodiff._atomic import atomic_write
from integrodiff.cli._files import contents
from integrodiff.cli.batch import plan
from integrodiff.cli.batch.records import write_record

pytestmark = pytest.mark.slow

OPTIONS = ("--sigma", "9", "--model", "eed", "--engine", "numpy", "--quiet")
COMMAND = (sys.executable, "-m", "integrodiff.cli")
DONE, USAGE, INPUT, OUTPUT, SOME_FAILED = 0, 2, 3, 4, 5


@pytest.fixture(autouse=True)
def _no_processes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("integrodiff.cli.batch.workers.run_tasks", in_turn)


def picture(path: Path, shift: int = 0) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(values(16, 17) + np.uint8(shift)).save(path)
    return path


def denoise(*words: object) -> tuple[int, str]:
    done = run("denoise", *words, *OPTIONS, env={"COLUMNS": "4000"})
    return done.exit_code, done.stderr


# ---- links ----


def test_patterns_do_not_go_around_in_links(tmp_path: Path) -> None:
    picture(tmp_path / "in" / "a.png")
    picture(tmp_path / "in" / "deep" / "b.png")
    picture(tmp_path / "elsewhere" / "c.png")
    (tmp_path / "in" / "loop").symlink_to(tmp_path / "in")
    (tmp_path / "in" / "deep" / "up").symlink_to("..")
    (tmp_path / "in" / "other").symlink_to(tmp_path / "elsewhere")
    code, message = denoise(f"{tmp_path}/in/**/*.png", tmp_path / "out")
    assert code == DONE, message
    assert names(tmp_path / "out") == ["a.png", "deep/b.png"]


def test_a_link_that_is_named_is_followed(tmp_path: Path) -> None:
    picture(tmp_path / "real" / "a.png")
    (tmp_path / "link").symlink_to("real")
    code, message = denoise(f"{tmp_path}/link/*.png", tmp_path / "out")
    assert code == DONE, message
    assert names(tmp_path / "out") == ["a.png"]


@pytest.mark.parametrize("spelling", ["dot", "up", "link", "hard link", "folder link"])
@pytest.mark.parametrize("victim", ["output", "input", "map", "model"])
@pytest.mark.parametrize("batch", [False, True])
def test_the_report_replaces_nothing(
    tmp_path: Path, spelling: str, victim: str, batch: bool
) -> None:
    source = picture(tmp_path / "in" / "a.png")
    target = tmp_path / "out" / "a.png"
    target.parent.mkdir()
    np.save(tmp_path / "map.npy", np.full((16, 17), 9.0))
    model = tmp_path / "model.json"
    model.write_text(_shipped("eed"))
    paths = {"output": target, "input": source, "map": tmp_path / "map.npy", "model": model}
    path = paths[victim]
    before = {name: p.read_bytes() for name, p in paths.items() if p.exists()}
    if spelling == "hard link" and victim == "output":
        pytest.skip("what does not exist has no second name")
    report = _spelled(path, spelling, tmp_path)
    words = ["--sigma-map", tmp_path / "map.npy", "--model", model, "--engine", "numpy", "--quiet"]
    done = run(*("denoise", source, target.parent if batch else target, "--json", report, *words))
    assert done.exit_code in (USAGE, OUTPUT), done.stderr
    assert {name: p.read_bytes() for name, p in paths.items() if p.exists()} == before


def _shipped(name: str) -> str:
    from integrodiff.models import load_model
    from integrodiff.models.files import model_to_json

    return model_to_json(load_model(name))


def _spelled(path: Path, spelling: str, folder: Path) -> str:
    """Return another name for a file."""
    other = folder / "other"
    match spelling:
        case "dot":
            return f"{path.parent}/./{path.name}"
        case "up":
            return f"{path.parent}/../{path.parent.name}/{path.name}"
        case "link":
            other.symlink_to(path)
        case "hard link":
            other.hardlink_to(path)
        case _:
            (folder / "folder").symlink_to(path.parent)
            return str(folder / "folder" / path.name)
    return str(other)


def test_the_report_is_no_second_spelling_on_file_systems_without_case(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = picture(tmp_path / "a.png")
    code, message = denoise(source, tmp_path / "b.png", "--json", tmp_path / "B.PNG")
    assert code == USAGE, message
    assert not (tmp_path / "b.png").exists()


def test_a_report_is_not_written_among_the_records(tmp_path: Path) -> None:
    source = picture(tmp_path / "in" / "a.png")
    folder = tmp_path / "out" / plan.RECORDS
    folder.mkdir(parents=True)
    code, message = denoise(source.parent, tmp_path / "out", "--json", folder / "a.png.json")
    assert code == USAGE, message


# ---- names ----


@pytest.mark.parametrize("name", ["*.png", "[a].png", "a?.png", "[!a].png"])
def test_files_that_are_named_like_patterns(tmp_path: Path, name: str) -> None:
    picture(tmp_path / name)
    picture(tmp_path / "a.png", shift=1)
    picture(tmp_path / "ab.png", shift=2)
    code, message = denoise(tmp_path / name, tmp_path / "out.png")
    assert code == DONE, message
    picture(tmp_path / "again" / "x.png")
    assert denoise(tmp_path / "again" / "x.png", tmp_path / "expected.png")[0] == DONE
    assert (tmp_path / "out.png").read_bytes() == (tmp_path / "expected.png").read_bytes()
    assert denoise(tmp_path / name, tmp_path / "a.png", tmp_path / "out")[0] == DONE
    assert names(tmp_path / "out") == sorted([name, "a.png"])


FORGED = "a\nerror: all lost\r\x1b[2J\x1b]0;title\x07\u202e\u2028.png"


def test_messages_cannot_be_forged(tmp_path: Path) -> None:
    picture(tmp_path / "in" / FORGED)
    picture(tmp_path / "in" / "b.png")
    (tmp_path / "in" / f"bad{FORGED}").write_bytes(b"nothing")
    (tmp_path / "in" / "line\nwarning: forged.txt").write_bytes(b"nothing")
    done = run("denoise", tmp_path / "in", tmp_path / "out", "--sigma", "9", "--model", "eed")
    lines = done.stderr.splitlines()
    assert not any(line.startswith(("error: all lost", "warning: forged")) for line in lines)
    assert not set(done.stderr) & set("\x1b\x07\r\u202e\u2028")
    assert "\\nwarning: forged" in done.stderr


def test_messages_of_other_commands_cannot_be_forged(tmp_path: Path) -> None:
    bad = tmp_path / FORGED
    bad.write_bytes(b"nothing")
    model = tmp_path / f"{FORGED}.json"
    model.write_text("{")
    good = picture(tmp_path / "good.png")
    for words in (
        ("explain", bad, "--output", tmp_path / "e.png"),
        ("compare", bad, bad, "--output", tmp_path / "c.png"),
        ("denoise", good, tmp_path / "out.png", "--model", model),
        ("denoise", good, tmp_path / "out.png", "--sigma-map", bad),
        ("denoise", good, tmp_path / "out.png", "--engine", "a\nerror: all lost"),
        ("denoise", good, tmp_path / f"{FORGED}.what"),
    ):
        done = run(*words)
        assert done.exit_code != DONE
        assert not any(x.startswith("error: all lost") for x in done.stderr.splitlines()), words
        assert not set(done.stderr) & set("\x1b\x07\r\u202e\u2028"), words


@pytest.mark.long
@pytest.mark.parametrize("name", ["$x_{$.png", "a$\\frac$b$.png", "$$.png", "\\$.png", FORGED])
def test_explain_draws_every_name(tmp_path: Path, name: str) -> None:
    pytest.importorskip("matplotlib")
    source = picture(tmp_path / name)
    done = run("explain", source, "--output", tmp_path / "e.png", "--sigma", "9", "--model", "eed")
    assert done.exit_code == DONE, done.stderr


def test_longest_names(tmp_path: Path) -> None:
    """The temporary file beside the output has a name too."""
    for name in ("a" * 251 + ".png", "é" * 125 + "a.png", "a." + "x" * 249 + ".npy"):
        assert len(os.fsencode(name)) == 255
        source = tmp_path / name
        if name.endswith(".npy"):
            np.save(source, values(16, 17))
        else:
            picture(source)
        (tmp_path / "out").mkdir(exist_ok=True)
        code, message = denoise(source, tmp_path / "out" / name)
        assert code == DONE, message
        code, message = denoise(source, f"{tmp_path / 'all'}/")
        assert code == DONE, message
        code, message = denoise(source, f"{tmp_path / 'all'}/", "--resume")
        assert code == DONE, message
    with (
        pytest.raises(OSError, match="too long"),
        atomic_write(tmp_path / ("x" * 256), overwrite=True),
    ):
        pass


def test_suffix_of_255_bytes(tmp_path: Path) -> None:
    """A model is saved, or a report, under whatever name is asked for."""
    path = tmp_path / ("a." + "j" * 253)
    with atomic_write(path, overwrite=False) as temporary:
        temporary.write_text("{}")
    assert path.read_text() == "{}"


@pytest.fixture
def deep(tmp_path: Path) -> Iterator[Path]:
    """Give a folder, and remove it, which the standard library cannot if it is too deep."""
    yield tmp_path
    subprocess.run(["/bin/rm", "-rf", tmp_path], check=True)


@pytest.mark.long
def test_many_nested_folders(deep: Path) -> None:
    nested(deep / "in", 1500, "d")
    code, message = denoise(deep / "in", deep / "out", "--recursive")
    assert code == DONE, message
    bottom = "/".join(["d"] * 1500)
    results = (f"{bottom}/bottom.png", "top.png")
    assert all((deep / "out" / name).is_file() for name in results)
    code, message = denoise(f"{deep}/in/**/*.png", deep / "again")
    assert code == DONE, message
    assert all((deep / "again" / name).is_file() for name in results)


@pytest.mark.slow
def test_folders_deeper_than_a_path_can_be_long(deep: Path) -> None:
    nested(deep / "in", 1500, "ddd")
    code, message = denoise(deep / "in", deep / "out", "--recursive")
    assert code == INPUT, message
    assert "cannot be looked into: File name too long" in message


def nested(folder: Path, depth: int, name: str) -> None:
    """Make folders in each other, with an image in the first and in the last."""
    picture(folder / "top.png")
    before = Path.cwd()
    os.chdir(folder)
    try:
        for _ in range(depth):
            Path(name).mkdir()
            os.chdir(name)
        Image.fromarray(values(16, 17)).save("bottom.png")
    finally:
        os.chdir(before)


# ---- what is no file ----


@pytest.mark.long
def test_pipes_are_never_waited_for(tmp_path: Path) -> None:
    good = picture(tmp_path / "good.png")
    for suffix in (".png", ".json", ".npy"):
        os.mkfifo(tmp_path / f"pipe{suffix}")
    pipe, model = tmp_path / "pipe.png", tmp_path / "pipe.json"
    commands = (
        ("denoise", pipe, tmp_path / "out.png"),
        ("denoise", good, tmp_path / "out.png", "--model", model),
        ("denoise", good, tmp_path / "out.png", "--sigma-map", tmp_path / "pipe.npy"),
        ("denoise", good, tmp_path / "out.png", "--json", model),
        ("denoise", good, pipe, "--overwrite"),
        ("explain", pipe, "--output", tmp_path / "e.png"),
        ("explain", good, "--output", tmp_path / "e.png", "--model", model),
        ("compare", pipe, good, "--output", tmp_path / "c.png"),
    )
    for words in commands:
        done = subprocess.run(
            [*COMMAND, *map(str, words)],
            capture_output=True,
            text=True,
            timeout=60,
        )
        assert done.returncode in (USAGE, INPUT, OUTPUT), done.stderr
        assert "Traceback" not in done.stderr


@pytest.mark.slow
def test_an_endless_device_in_a_batch_is_not_read(tmp_path: Path) -> None:
    source = picture(tmp_path / "in" / "a.png")
    (source.parent / "endless.png").symlink_to("/dev/zero")
    done = subprocess.run(
        [*COMMAND, "denoise", source.parent, tmp_path / "out", *OPTIONS],
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode == SOME_FAILED, done.stderr
    assert "endless.png: is not a regular file" in " ".join(done.stderr.split())
    assert (tmp_path / "out" / "a.png").is_file()


def test_a_pipe_in_place_of_a_record_is_not_waited_for(tmp_path: Path) -> None:
    source = picture(tmp_path / "in" / "a.png")
    assert denoise(source.parent, tmp_path / "out")[0] == DONE
    record = tmp_path / "out" / plan.RECORDS / "a.png.json"
    record.unlink()
    os.mkfifo(record)
    done = subprocess.run(
        [*COMMAND, "denoise", source.parent, tmp_path / "out", "--resume", *OPTIONS],
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert "the record of how it was made" in " ".join(done.stderr.split())


# ---- permissions ----


@pytest.mark.parametrize("mode", [0o600, 0o640, 0o644])
def test_a_private_file_is_never_readable_by_others(tmp_path: Path, mode: int) -> None:
    path = tmp_path / "a.txt"
    path.write_text("private")
    path.chmod(mode)
    before = os.umask(0)
    try:
        with atomic_write(path, overwrite=True) as temporary:
            assert stat.S_IMODE(temporary.stat().st_mode) & ~mode == 0
            temporary.write_text("private too")
    finally:
        os.umask(before)
    assert stat.S_IMODE(path.stat().st_mode) == mode


def test_new_files_have_the_usual_permissions(tmp_path: Path) -> None:
    before = os.umask(0o027)
    try:
        with atomic_write(tmp_path / "a.txt", overwrite=False) as temporary:
            temporary.write_text("new")
    finally:
        os.umask(before)
    assert stat.S_IMODE((tmp_path / "a.txt").stat().st_mode) == 0o640


# ---- two runs in one folder ----


@pytest.mark.long
@pytest.mark.parametrize("overwrite", [True, False])
def test_records_of_two_batches_describe_their_own_outputs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, overwrite: bool
) -> None:
    """Another batch comes in between a record and its output; it waits, or fails."""
    one, two = picture(tmp_path / "one" / "a.png"), picture(tmp_path / "two" / "a.png", shift=3)
    out = tmp_path / "out"
    options = [*OPTIONS, *(["--overwrite"] if overwrite else [])]
    others: list[subprocess.Popen[bytes]] = []

    def write_and_wait(*arguments: Any) -> None:
        write_record(*arguments)
        words = [*COMMAND, "denoise", str(two.parent), str(out), *options]
        others.append(subprocess.Popen(words, stderr=subprocess.DEVNULL))
        with suppress(subprocess.TimeoutExpired):
            others[0].wait(15)

    monkeypatch.setattr("integrodiff.cli.batch.run.write_record", write_and_wait)
    code = run("denoise", one.parent, out, *options).exit_code
    other = others[0].wait()
    assert (code, other) == (DONE, DONE if overwrite else SOME_FAILED)
    record = json.loads((out / plan.RECORDS / "a.png.json").read_text())
    assert record["input"] == contents(two if overwrite else one)
    assert record["output"] == contents(out / "a.png")
