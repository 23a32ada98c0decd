"""What becomes of the files of a run, and the report of it for other programs."""

from __future__ import annotations

import json
import os
from collections import Counter
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, TypeAlias

import typer

from integrodiff.cli._one_file import Denoised, Settings
from integrodiff.cli._terminal import ExitCode, stop
from integrodiff.cli.batch.plan import RECORDS, Job
from integrodiff.cli.batch.records import options_of

Status: TypeAlias = Literal["done", "skipped", "failed", "not reached"]
STATUSES: tuple[Status, ...] = ("done", "skipped", "failed", "not reached")

_SCHEMA = "integrodiff-report"


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """What became of one file.

    Attributes
    ----------
    job : Job
        The file.
    status : str
        "done", "skipped" since its output is there already, "failed", or "not reached" before
        the run was interrupted.
    code : ExitCode
        That of the file by itself.
    message : str
        Why it failed.
    denoised : Denoised, optional
        What was done.
    warnings : tuple of str
        What may be wrong with the result.
    seconds : float
        Time it took.
    """

    job: Job
    status: Status
    code: ExitCode = ExitCode.DONE
    message: str = ""
    denoised: Denoised | None = None
    warnings: tuple[str, ...] = ()
    seconds: float = 0.0


def write_report(
    where: str, outcomes: Sequence[Outcome], settings: Settings, code: ExitCode, seconds: float
) -> None:
    """Write the report of a run to a file, or to the standard output."""
    from integrodiff._atomic import atomic_write

    counts = Counter(outcome.status for outcome in outcomes)
    report = {
        "schema": _SCHEMA,
        "schema_version": 1,
        "exit_code": int(code),
        "seconds": round(seconds, 3),
        "options": options_of(settings),
        "counts": {status: counts[status] for status in STATUSES},
        "files": [_entry(outcome) for outcome in outcomes],
    }
    text = json.dumps(report, indent=1)
    if where == "-":
        typer.echo(text)
        return
    _refuse_other_file(Path(where))  # it may have come into being meanwhile
    try:
        with atomic_write(Path(where), overwrite=True) as temporary:
            temporary.write_text(text + "\n", encoding="utf-8")
    except OSError as error:
        stop(ExitCode.OUTPUT, f"{where}: the report cannot be written: {error.strerror}")


def check_report(where: str, outputs: Collection[Path]) -> None:
    """Refuse a name for the report that is that of something else, or cannot be written."""
    path = Path(where)
    if where == "-":
        return
    if _spelled_alike(path) in {_spelled_alike(output) for output in outputs}:
        stop(ExitCode.USAGE, f"{path} is an output; give --json another name")
    if RECORDS in Path(os.path.realpath(path)).parts:
        stop(ExitCode.USAGE, f"{path} is among the records of a batch; give --json another name")
    if not path.parent.is_dir():
        stop(ExitCode.OUTPUT, f"{path}: the folder of the report does not exist; make it first")
    _refuse_other_file(path)


def _spelled_alike(path: Path) -> str:
    """Return what all spellings of a path have in common; some file systems ignore case."""
    return os.path.realpath(path).casefold()


def _refuse_other_file(path: Path) -> None:
    """Stop if there is a file that is not an earlier report."""
    if path.exists() and not _is_report(path):
        stop(
            ExitCode.OUTPUT,
            f"{path}: exists already and is not an earlier report, which would be replaced; give "
            "--json another name",
        )


def _is_report(path: Path) -> bool:
    if not path.is_file():  # a pipe would be waited for
        return False
    try:
        report = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError):
        return False
    return isinstance(report, dict) and report.get("schema") == _SCHEMA


def _entry(outcome: Outcome) -> dict[str, Any]:
    done, worded = outcome.denoised, outcome.job.worded
    entry: dict[str, Any] = {
        "input": worded(str(outcome.job.source)),
        "output": worded(str(outcome.job.target)),
        "status": outcome.status,
        "exit_code": int(outcome.code),
        "message": worded(outcome.message),
        "noise": None if done is None else done.noise,
        "seconds": round(outcome.seconds, 3),
        "warnings": list(outcome.warnings),
        "notes": [] if done is None else [worded(text) for text in done.notes],
    }
    if done is not None:
        entry |= {"height": done.size[0], "width": done.size[1], "pages": done.pages}
        entry |= {"invalid_pixels": done.invalid, "model": done.model}
        entry["spacing"] = None if done.spacing is None else list(done.spacing)
    return entry
