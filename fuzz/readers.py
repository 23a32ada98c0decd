"""Damage small image files at random and read, copy and read them again.

    python fuzz/readers.py --count 100000 --scratch /dev/shm

A damaged file must be refused with an ImageFileError or be read; what is read must come back from
a copy unchanged. Anything else is a finding: another exception, a crash of the process, more than
five seconds of processor time, two minutes on the clock twice (a busy machine may be slow once),
more than a gigabyte of memory, something left beside the input after a refusal, or a message that
names another file than the one at fault, or blames the program, the machine or the disk. Findings
are kept in a folder and named at the end. Case N of a seed is the same in every run.
"""

from __future__ import annotations

import argparse
import collections
import faulthandler
import gzip
import json
import resource
import shutil
import struct
import subprocess
import sys
import tempfile
import time
import traceback
import zlib
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np

from integrodiff.errors import ImageFileError
from integrodiff.io import (
    SUFFIXES,
    OutputFileError,
    create_image,
    format_of_content,
    open_image,
    read_image,
)
from integrodiff.io.formats.webp_quality import webp_quality
from seeds import write_seeds

PICTURES = (".png", ".jpg", ".webp", ".gif", ".bmp", ".avif", ".heic")
SECONDS, SECONDS_ON_THE_CLOCK = 5, 120
MEMORY = 2**30
"""Largest resident memory of a case; address space has a limit of four times as much."""

BLAMES_OTHERS = (
    "a bug",
    "the disk",
    "into memory",
    "enough memory",
    "permission",
    "in the meantime",
)
SMALL = (0, 1, 2, 3, 4, 7, 8, 15, 16, 32, 64, 127, 128, 255, 256, 32767, 65535)
INTERESTING = (*SMALL, 2**24, 2**31 - 1, 2**31, 2**32 - 1)


# ---- damage ----


def damaged(data: bytes, rng: np.random.Generator) -> bytes:
    """Return the data with a few random changes."""
    result = bytearray(data)
    for _ in range(int(rng.geometric(0.4))):
        if not result:
            break
        at = int(rng.integers(len(result)))
        if rng.random() < 0.5:  # headers matter more than pixels
            at = min(at, int(rng.integers(min(len(result), 400))))
        length = int(rng.integers(1, 17))
        kind = rng.integers(8)
        if kind == 0:
            result[at] ^= 1 << int(rng.integers(8))
        elif kind == 1:
            result[at] = int(rng.integers(256))
        elif kind in (2, 3):
            size = int(rng.choice([1, 2, 4, 8]))
            number = int(rng.choice(INTERESTING)) % 2 ** (8 * size)
            result[at : at + size] = number.to_bytes(
                size, "little" if rng.random() < 0.6 else "big"
            )
        elif kind == 4:
            del result[at : at + length]
        elif kind == 5:
            result[at:at] = rng.bytes(length)
        elif kind == 6:
            source = int(rng.integers(len(result)))
            result[at : at + length] = result[source : source + length]
        elif rng.random() < 0.5:
            del result[at:]
    return bytes(result)


def with_checksums(data: bytes) -> bytes:
    """Return a PNG file with correct checksums, so that the damage gets past them."""
    result, at = bytearray(data), 8
    while at + 12 <= len(result):
        length = struct.unpack_from(">I", result, at)[0]
        if at + 12 + length > len(result):
            break
        checksum = zlib.crc32(result[at + 4 : at + 8 + length])
        struct.pack_into(">I", result, at + 8 + length, checksum)
        at += 12 + length
    return bytes(result)


def damaged_file(path: Path, rng: np.random.Generator) -> bytes:
    """Return the content of a file with damage that its format does not notice at once."""
    data = path.read_bytes()
    if path.suffix == ".gz" and rng.random() < 0.7:
        return gzip.compress(damaged(gzip.decompress(data), rng), 1)
    data = damaged(data, rng)
    return with_checksums(data) if path.suffix == ".png" and rng.random() < 0.7 else data


def write_case(seed: Path, target: Path, rng: np.random.Generator) -> None:
    """Write a damaged copy of a file or folder."""
    if seed.is_file():
        target.write_bytes(damaged_file(seed, rng))
        return
    shutil.copytree(seed, target)
    files = sorted(path for path in target.rglob("*") if path.is_file())
    chosen = files[int(rng.integers(len(files)))]
    if rng.random() < 0.1:
        chosen.unlink()
    else:
        chosen.write_bytes(damaged(chosen.read_bytes(), rng))


# ---- one case ----


def run_case(number: int, seed: int, seeds: list[Path], folder: Path) -> tuple[str, str]:
    """Run one case in an empty folder; return the format and how it ended."""
    rng = np.random.default_rng((seed, number))
    original = seeds[int(rng.integers(len(seeds)))]
    suffixes = "".join(original.suffixes[-2:]) if original.suffix == ".gz" else original.suffix
    # Metadata of pictures are taken apart only on their way to another format.
    changes = suffixes in PICTURES and rng.random() < 0.5
    source = folder / f"in{suffixes}"
    target = folder / f"out{'.tif' if changes else suffixes}"
    write_case(original, source, rng)
    name = SUFFIXES[suffixes].name if suffixes else "DICOM series"
    forget_peak()
    ending = copy_and_compare(source, target)
    if (peak := peak_memory()) > MEMORY:
        raise AssertionError(f"{ending} with {peak / 2**20:.0f} MiB of memory")
    expected = {source, target} if ending == "read" else {source}
    if (left := set(folder.iterdir())) != expected:
        raise AssertionError(f"{ending}, and there are {sorted(path.name for path in left)}")
    return name, ending


def copy_and_compare(source: Path, target: Path) -> str:
    """Read a file, write it again and read that."""
    try:
        with open_image(source) as image, create_image(target, image.header) as copy:
            for page in image.pages():
                copy.write(page)
    except OutputFileError as error:
        check_message(str(error), target)
        return "not written"
    except ImageFileError as error:
        check_message(str(error), source)
        return "refused"
    # A file whose name says another format than its content is copied to that format.
    first, second = read_image(source), read_image(target)
    same = np.array_equal(first.pixels, second.pixels, equal_nan=True)
    if not same and not has_loss(target):
        raise AssertionError("the copy is another image")
    return "read"


def has_loss(path: Path) -> bool:
    """Whether a file is of a kind that changes pixels."""
    form = format_of_content(path).name
    return form in ("JPEG", "AVIF", "HEIC") or (form == "WebP" and webp_quality(path) is not None)


def check_message(text: str, path: Path) -> None:
    """Check that a message is about the file, or one in the folder, and blames nothing else."""
    name, _, problem = text.partition(": ")
    blamed = [word for word in BLAMES_OTHERS if word in problem.lower()]
    if path not in (Path(name), Path(name).parent) or blamed or len(problem) > 1000 or "\n" in text:
        raise AssertionError(f"a misleading message: {text[:500]!r}")


def forget_peak() -> None:
    """Let the peak of resident memory begin anew."""
    Path("/proc/self/clear_refs").write_text("5")


def peak_memory() -> int:
    """Return the peak of resident memory in bytes."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return int(next(line for line in lines if line.startswith("VmHWM")).split()[1]) * 1024


# ---- many cases ----


def work(arguments: argparse.Namespace) -> None:
    """Run a range of cases in this process; write the number of each before it runs."""
    resource.setrlimit(resource.RLIMIT_AS, (4 * MEMORY, 4 * MEMORY))
    seeds = sorted(arguments.seeds.iterdir())
    for number in range(arguments.first, arguments.first + arguments.count):
        print(json.dumps({"begins": number}), flush=True)
        faulthandler.dump_traceback_later(SECONDS_ON_THE_CLOCK, exit=True)
        start = time.process_time()
        with tempfile.TemporaryDirectory(dir=arguments.scratch) as folder:
            try:
                form, ending = run_case(number, arguments.seed, seeds, Path(folder))
                report = {"format": form, "ending": ending}
            except Exception:
                report = {"problem": traceback.format_exc()}
        faulthandler.cancel_dump_traceback_later()
        seconds = time.process_time() - start
        if seconds > SECONDS:
            report.setdefault("problem", f"{seconds:.1f} s of processor time")
        print(json.dumps({**report, "seconds": seconds}), flush=True)


def supervise(first: int, count: int, arguments: argparse.Namespace) -> list[dict[str, Any]]:
    """Run cases in another process, and in a new one after each that did not survive."""
    reports: list[dict[str, Any]] = []
    stalled: set[int] = set()
    stop = first + count
    while first < stop:
        options = {"first": first, "count": stop - first, "seed": arguments.seed}
        options |= {"seeds": arguments.seeds, "scratch": arguments.scratch}
        words = [word for name, value in options.items() for word in (f"--{name}", str(value))]
        done = subprocess.run(
            [sys.executable, __file__, "--worker", *words], capture_output=True, text=True
        )
        lines = [json.loads(line) for line in done.stdout.splitlines()]
        for begin, end in zip(lines[::2], lines[1::2], strict=False):
            reports.append({**end, "number": begin["begins"]})
        if done.returncode == 0:
            break
        if not lines:
            raise RuntimeError(f"the worker does not start: {done.stderr}")
        number = lines[-1]["begins"]
        if "Timeout" in done.stderr and number not in stalled:
            stalled.add(number)
            first = number
            continue
        reports.append({"number": number, "problem": f"exit {done.returncode}\n{done.stderr}"})
        first = number + 1
    if stalled:
        print(f"tried again for being slow: {sorted(stalled)}", file=sys.stderr)
    return reports


def main() -> None:
    """Run the cases and report."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--count", type=int, default=100_000, help="number of damaged files")
    parser.add_argument("--first", type=int, default=0, help="number of the first case")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--jobs", type=int, default=1, help="processes at the same time")
    parser.add_argument("--only", nargs="+", metavar="FORMAT", help="names of formats, such as MRC")
    parser.add_argument("--keep", type=Path, help="folder for files with findings")
    parser.add_argument("--scratch", type=Path, help="folder for temporary files, best in memory")
    parser.add_argument("--seeds", type=Path, help=argparse.SUPPRESS)
    parser.add_argument("--worker", action="store_true", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.worker:
        work(arguments)
        return
    with tempfile.TemporaryDirectory(dir=arguments.scratch) as scratch:
        arguments.scratch = Path(scratch)
        with tempfile.TemporaryDirectory() as seeds:
            arguments.seeds = Path(seeds)
            write_seeds(arguments.seeds)
            if arguments.only:
                leave_only(arguments.seeds, arguments.only)
            reports = all_reports(arguments)
            findings = [report for report in reports if "problem" in report]
            if arguments.keep is not None:
                keep(findings, arguments)
    sys.exit(summary(reports, findings))


def leave_only(folder: Path, formats: list[str]) -> None:
    """Remove the seeds of all other formats."""
    for path in folder.iterdir():
        if format_of_content(path).name not in formats:
            path.unlink() if path.is_file() else shutil.rmtree(path)


def all_reports(arguments: argparse.Namespace) -> list[dict[str, Any]]:
    """Run all cases, some at the same time."""
    size = 2500
    stop = arguments.first + arguments.count

    def part(first: int) -> list[dict[str, Any]]:
        return supervise(first, min(size, stop - first), arguments)

    with ThreadPoolExecutor(arguments.jobs) as pool:
        parts = pool.map(part, range(arguments.first, stop, size))
        reports: list[dict[str, Any]] = []
        for found in parts:
            reports += found
            print(f"{len(reports)} of {arguments.count} files", file=sys.stderr, flush=True)
        return reports


def keep(findings: list[dict[str, Any]], arguments: argparse.Namespace) -> None:
    """Write the files of the findings, with what happened, to a folder."""
    arguments.keep.mkdir(parents=True, exist_ok=True)
    seeds = sorted(arguments.seeds.iterdir())
    for finding in findings:
        rng = np.random.default_rng((arguments.seed, finding["number"]))
        original = seeds[int(rng.integers(len(seeds)))]
        target = arguments.keep / f"{finding['number']}-{original.name}"
        write_case(original, target, rng)
        (arguments.keep / f"{finding['number']}.txt").write_text(finding["problem"])


def summary(reports: list[dict[str, Any]], findings: list[dict[str, Any]]) -> int:
    """Print what happened, by format; return the exit code."""
    counts = collections.Counter((r["format"], r["ending"]) for r in reports if "format" in r)
    for form in sorted({form for form, _ in counts}):
        endings = {ending: n for (name, ending), n in sorted(counts.items()) if name == form}
        print(f"{form:12}", ", ".join(f"{n} {ending}" for ending, n in endings.items()))
    longest = max((report.get("seconds", 0.0) for report in reports), default=0.0)
    print(f"{len(reports)} files, {len(findings)} findings, longest {longest:.2f} s")
    for finding in findings[:20]:
        print(f"case {finding['number']}: {finding['problem'].strip().splitlines()[-1][:200]}")
    return 1 if findings else 0


if __name__ == "__main__":
    main()
