"""Kill a batch again and again, resume it each time, and compare with a batch that ran undisturbed.

    python fuzz/kill_batch.py --files 1000 --hostile 50 --kills 20

For each of SIGTERM, SIGHUP, SIGINT and SIGKILL, one batch is killed so many times at random
moments, resumed after each, and then left to end. A finding is any difference to the undisturbed
batch: outputs, records, and which files failed; a process that outlives the batch; a file that is
left over, other than the hidden ``.*.part*`` after SIGKILL; or an exit code that does not say why
it ended. Signals go to the main process, those of the keyboard to all processes of the batch.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import signal
import struct
import subprocess
import sys
import tempfile
import time
import zlib
from collections.abc import Callable
from pathlib import Path

import numpy as np
from PIL import Image

SIGNALS = (signal.SIGTERM, signal.SIGHUP, signal.SIGINT, signal.SIGKILL)
SOME_FAILED = 5
RECORDS = ".integrodiff"


# ---- inputs ----


def write_inputs(folder: Path, files: int, hostile: int) -> None:
    """Write small noisy pictures, and files that mean harm."""
    folder.mkdir()
    rng = np.random.default_rng(0)
    for number in range(files - hostile):
        noisy = rng.normal(128, 20, (24, 24)).clip(0, 255).astype(np.uint8)
        suffix = (".png", ".npy", ".tif")[number % 3]
        path = folder / f"{number:04}{suffix}"
        if suffix == ".npy":
            np.save(path, noisy)
        else:
            Image.fromarray(noisy).save(path)
    good = (folder / "0000.png").read_bytes()
    for number in range(hostile):
        kind = HOSTILE[number % len(HOSTILE)]
        kind(folder / f"bad{number}.png", good)


def _cut(path: Path, good: bytes) -> None:
    path.write_bytes(good[: len(good) // 2])


def _bomb(path: Path, good: bytes) -> None:
    """Write a picture that declares 30,000 x 30,000 pixels."""
    head = struct.pack(">II", 30_000, 30_000) + good[24:29]
    checksum = struct.pack(">I", zlib.crc32(b"IHDR" + head))
    path.write_bytes(good[:16] + head + checksum + good[33:])


def _pipe(path: Path, good: bytes) -> None:
    os.mkfifo(path)


def _broken_link(path: Path, good: bytes) -> None:
    path.symlink_to("nowhere")


def _loop(path: Path, good: bytes) -> None:
    path.symlink_to(path.name)


def _folder(path: Path, good: bytes) -> None:
    path.mkdir()
    (path / "in it.png").write_bytes(good)


def _unreadable(path: Path, good: bytes) -> None:
    path.write_bytes(good)
    path.chmod(0)


def _odd_name(path: Path, good: bytes) -> None:
    names = ("a\nerror: forged\x1b[2J", "*", "[0]", "$x_{$", "\udcff", "-x")
    stem = names[int(path.stem.removeprefix("bad")) % len(names)]
    (path.parent / f"{stem}{path.name}").write_bytes(good)


def _long_name(path: Path, good: bytes) -> None:
    (path.parent / f"{'n' * (255 - len(path.name))}{path.name}").write_bytes(good)


def _empty(path: Path, good: bytes) -> None:
    path.write_bytes(b"")


HOSTILE: tuple[Callable[[Path, bytes], None], ...] = (
    *(_cut, _bomb, _pipe, _broken_link, _loop, _folder, _unreadable, _odd_name, _long_name),
    *(_empty, _odd_name),
)


# ---- runs ----


def start(source: Path, target: Path, report: Path, jobs: int) -> subprocess.Popen[bytes]:
    """Start a batch, or resume it, in a session of its own."""
    words = ["denoise", source, target, "--sigma", "20", "--model", "pm", "--engine", "numpy"]
    words += ["--jobs", jobs, "--resume", "--quiet", "--json", report]
    return subprocess.Popen(
        [sys.executable, "-m", "integrodiff.cli", *map(str, words)],
        stderr=subprocess.DEVNULL,
        start_new_session=True,
        preexec_fn=_heed_signals,
    )


def _heed_signals() -> None:
    """Heed signals that are ignored here, as by nohup, and would be in the new process."""
    for number in (signal.SIGTERM, signal.SIGHUP, signal.SIGINT):
        signal.signal(number, signal.SIG_DFL)


def members(session: int) -> list[int]:
    """Return the processes of a session that are alive."""
    found = []
    for path in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = path.read_text().rpartition(")")[2].split()
        except OSError:
            continue
        if int(fields[3]) == session and fields[0] not in "ZX":
            found.append(int(path.parent.name))
    return found


def content(folder: Path) -> dict[str, bytes]:
    """Return all files below a folder, hidden ones too."""
    files = sorted(path for path in folder.rglob("*") if path.is_file())
    return {str(path.relative_to(folder)): path.read_bytes() for path in files}


def failed(report: Path) -> list[tuple[str, int]]:
    """Return the inputs that a report says failed, with their exit codes."""
    entries = json.loads(report.read_text())["files"]
    return sorted((e["input"], e["exit_code"]) for e in entries if e["status"] == "failed")


def kill(process: subprocess.Popen[bytes], number: signal.Signals) -> None:
    """Send a signal as the system would: Ctrl-C goes to all processes of a terminal."""
    if process.poll() is not None:
        return
    if number == signal.SIGINT:
        os.killpg(process.pid, number)
    else:
        process.send_signal(number)


def wait_until(moment: float, wanted: int, target: Path, process: subprocess.Popen[bytes]) -> None:
    """Wait for so many outputs, or for a number of seconds, whichever comes first."""
    end = time.perf_counter() + moment
    while process.poll() is None and time.perf_counter() < end:
        if target.is_dir() and sum(1 for _ in os.scandir(target)) >= wanted:
            return
        time.sleep(0.005)


def check_killed(
    process: subprocess.Popen[bytes], number: signal.Signals, target: Path, patience: float
) -> list[str]:
    """Return what is wrong after a kill."""
    findings = []
    code = process.wait(patience)
    if code not in (128 + number, -number, SOME_FAILED):
        findings.append(f"{number.name} ended with the exit code {code}")
    end = time.perf_counter() + patience
    while (left := members(process.pid)) and time.perf_counter() < end:
        time.sleep(0.01)
    if left:
        findings.append(f"{len(left)} processes outlive {number.name}")
    parts = list(target.rglob(".*.part*")) if target.is_dir() else []
    if parts and number != signal.SIGKILL:
        findings.append(f"{number.name} leaves {parts[0].name}")
    for part in parts:
        part.unlink()
    return findings


def torture(
    number: signal.Signals,
    kills: int,
    source: Path,
    folder: Path,
    expected: dict[str, bytes],
    bad: list[tuple[str, int]],
    seconds: float,
    jobs: int,
    patience: float,
) -> tuple[int, list[str]]:
    """Kill and resume one batch; return how many kills came in time, and what is wrong."""
    rng = np.random.default_rng(int(number))
    target, report = folder / number.name, folder / f"{number.name}.json"
    findings: list[str] = []
    hits = tries = 0
    while hits < kills and tries < 3 * kills:
        tries += 1
        process = start(source, target, report, jobs)
        there = sum(1 for _ in os.scandir(target)) if target.is_dir() else 0
        more = int(rng.integers(1, max(2, 2 * len(expected) // (3 * kills))))
        early = rng.random() < 0.25
        wait_until(
            rng.uniform(0, seconds / 4) if early else 10 * seconds, there + more, target, process
        )
        time.sleep(rng.uniform(0, 0.02))
        kill(process, number)
        findings += check_killed(process, number, target, patience)
        if process.returncode != SOME_FAILED:
            hits += 1
        elif target.is_dir():  # it was done before; begin anew
            shutil.rmtree(target)
    if hits < kills:
        findings.append(f"only {hits} of {tries} kills by {number.name} came in time")
    final = start(source, target, report, jobs)
    if (code := final.wait()) != (SOME_FAILED if bad else 0):
        findings.append(f"the batch after {number.name} ends with the exit code {code}")
    found = content(target)
    wrong = [name for name in {*found, *expected} if found.get(name) != expected.get(name)]
    if wrong:
        findings.append(f"{len(wrong)} files differ after {number.name}: {sorted(wrong)[:3]}")
    if failed(report) != bad:
        findings.append(f"other files failed after {number.name}")
    return hits, findings


def main() -> None:
    """Run, kill and report."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--files", type=int, default=1000, help="number of files")
    parser.add_argument("--hostile", type=int, default=50, help="how many of them mean harm")
    parser.add_argument("--kills", type=int, default=20, help="number of kills by each signal")
    parser.add_argument("--jobs", type=int, default=2, help="files at the same time")
    parser.add_argument(
        "--patience", type=float, default=60, help="seconds that a killed batch has to end"
    )
    parser.add_argument("--signal", action="append", help="such as SIGTERM; by default all four")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        source, calm = folder / "in", folder / "calm"
        write_inputs(source, arguments.files, arguments.hostile)
        begin = time.perf_counter()
        code = start(source, calm, folder / "calm.json", arguments.jobs).wait()
        seconds = time.perf_counter() - begin
        expected, bad = content(calm), failed(folder / "calm.json")
        outputs = sum(not name.startswith(RECORDS) for name in expected)
        print(
            f"undisturbed: {outputs} outputs, {len(bad)} failed, exit code {code}, {seconds:.0f} s",
            flush=True,
        )
        findings = []
        wanted = arguments.signal or [number.name for number in SIGNALS]
        for number in (number for number in SIGNALS if number.name in wanted):
            hits, found = torture(
                number,
                arguments.kills,
                source,
                folder,
                expected,
                bad,
                seconds,
                arguments.jobs,
                arguments.patience,
            )
            findings += found
            print(f"{number.name}: killed {hits} times, {len(found)} findings", flush=True)
            shutil.rmtree(folder / number.name)
    for finding in findings:
        print(finding)
    print(f"{len(findings)} findings")
    sys.exit(1 if findings else 0)


if __name__ == "__main__":
    main()
