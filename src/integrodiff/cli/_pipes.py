"""Images from standard input and to standard output, through temporary files."""

from __future__ import annotations

import errno
import shutil
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from integrodiff.cli._terminal import ExitCode, Stopped, stop, stopping
from integrodiff.cli.batch.plan import Job

PIPE = "-"
"""Stands for standard input or standard output."""

_INPUT, _OUTPUT = "standard input", "standard output"


@contextmanager
def piped(source: str, target: str, suffix: str | None) -> Iterator[Job]:
    """Yield the files to read and to write; copy the result to standard output at the end.

    Image formats need seekable files, which pipes are not. Nothing is written to standard output
    if the block raises.

    Parameters
    ----------
    source, target : str
        File names, or ``-``.
    suffix : str, optional
        File extension of the format for standard output, by default that of the input.
    """
    if PIPE not in (source, target):
        yield Job(source=Path(source), target=Path(target))
        return
    if source == PIPE and sys.stdin is None:
        stop(ExitCode.INPUT, f"{_INPUT} is closed")
    if target == PIPE and sys.stdout is None:
        stop(ExitCode.OUTPUT, f"{_OUTPUT} is closed")
    if target == PIPE and sys.stdout.isatty():
        stop(ExitCode.OUTPUT, f"{_OUTPUT} is a terminal; redirect it to a file or a pipe")
    with tempfile.TemporaryDirectory(prefix="integrodiff-") as folder:
        spool = Path(folder, "input")
        job = Job(source=spool if source == PIPE else Path(source), target=Path(target))
        if source == PIPE:
            _spool(spool)
            job = Job(source=spool, target=job.target, names={str(spool): _INPUT})
        try:
            if target == PIPE:
                output = Path(folder, f"output{suffix or _suffix_of(job.source)}")
                names = {**job.names, str(output): _OUTPUT}
                job = Job(source=job.source, target=output, names=names)
            yield job
        except Stopped as end:
            raise Stopped(end.code, job.worded(end.message)) from end
        if target == PIPE:
            _send(job.target)


def _spool(path: Path) -> None:
    """Copy standard input to a file."""
    try:
        with path.open("wb") as stream:
            shutil.copyfileobj(sys.stdin.buffer, stream)
    except OSError as error:
        stop(ExitCode.INPUT, f"{_INPUT} cannot be copied to {path.parent}: {error.strerror}")


def _suffix_of(path: Path) -> str:
    """Return a file extension for the format of a file."""
    from integrodiff.errors import ImageFileError
    from integrodiff.io import format_of_content

    with stopping(ExitCode.INPUT, ImageFileError):
        form = format_of_content(path)
    if form.folder:
        stop(ExitCode.USAGE, f"{path}: {form.name} is a folder and cannot be piped; give --format")
    return form.suffixes[0]


def _send(path: Path) -> None:
    """Copy a file to standard output."""
    try:
        with path.open("rb") as stream:
            shutil.copyfileobj(stream, sys.stdout.buffer)
        sys.stdout.buffer.flush()
    except OSError as error:
        if error.errno == errno.EPIPE:
            raise
        stop(ExitCode.OUTPUT, f"{_OUTPUT} cannot be written: {error.strerror}")
