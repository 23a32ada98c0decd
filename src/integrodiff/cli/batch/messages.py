"""What a batch shows: a bar with rate and time left, a line for each file, a table at the end."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Self

from integrodiff.cli._terminal import REDRAWS, complain, messages, note, say, warn
from integrodiff.cli.batch.outcomes import STATUSES, Outcome, Status
from integrodiff.cli.batch.plan import Job

if TYPE_CHECKING:
    from rich.console import Console
    from rich.progress import Progress
    from rich.table import Table


class Display:
    """Messages about the files of a batch, above a bar if there is a terminal.

    Parameters
    ----------
    jobs : list of Job
        The files.
    quiet : bool
        Whether only errors, warnings and notes are shown.
    """

    def __init__(self, jobs: Sequence[Job], *, quiet: bool) -> None:
        self._quiet = quiet
        self._console: Console = messages()
        self.has_bar = self._console.is_terminal and not quiet
        # The time left is that for the bytes left; a file without any counts as well.
        self._sizes = {job: 1 + _size(job.source) for job in jobs} if self.has_bar else {}
        self._total = sum(self._sizes.values())
        self._parts = dict.fromkeys(self._sizes, 0.0)
        self._done = 0.0
        self._finished = 0
        self._bar: Progress | None = None

    def __enter__(self) -> Self:
        if self.has_bar:
            self._bar = _bar(self._console)
            self._task = self._bar.add_task("", total=self._total, files=self._files())
            self._bar.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._bar is not None:
            self._bar.stop()

    def advance(self, job: Job, part: float) -> None:
        """Show how much of a file is done."""
        if self._bar is not None:
            self._done += (part - self._parts[job]) * self._sizes[job]
            self._parts[job] = part
            files = self._files()
            self._bar.update(self._task, completed=self._done, total=self._total, files=files)

    def finished(self, outcome: Outcome) -> None:
        """Show what became of a file."""
        self._finished += 1
        job, done = outcome.job, outcome.denoised
        if outcome.status == "failed":
            complain(outcome.message, self._console)
        for text in outcome.warnings:
            warn(f"{job.source}: {text}", self._console)
        if done is not None:
            for text in done.notes:
                note(text, self._console)
            if not self._quiet:
                say(f"{job.source} -> {job.target}: {done}", console=self._console)
        if outcome.status == "skipped" and self._bar is not None:
            # It took no time that would say anything about the files that are left.
            self._total -= self._sizes[job]
            self._sizes[job] = 0
        self.advance(job, 1.0)

    def summary(self, outcomes: Sequence[Outcome], seconds: float) -> None:
        """Show the table."""
        if not self._quiet:
            self._console.print(_table(outcomes))
            say(f"{len(outcomes)} files, {seconds:.1f} s", console=self._console)
        if any(outcome.status == "not reached" for outcome in outcomes):
            say("the same command with --resume goes on from here", console=self._console)

    def _files(self) -> str:
        return f"{self._finished}/{len(self._sizes)} files"


def _bar(console: Console) -> Progress:
    from rich.progress import (
        BarColumn,
        Progress,
        TextColumn,
        TimeRemainingColumn,
        TransferSpeedColumn,
    )

    return Progress(
        BarColumn(),
        TextColumn("{task.percentage:>3.0f}%"),
        TextColumn("{task.fields[files]}", markup=False),
        TransferSpeedColumn(),
        TimeRemainingColumn(),
        TextColumn("left"),
        console=console,
        transient=True,
        refresh_per_second=REDRAWS,
    )


def _table(outcomes: Sequence[Outcome]) -> Table:
    from rich import box
    from rich.table import Table

    table = Table("status", "files", "pages", "megapixels", "noise", "seconds", box=box.SIMPLE_HEAD)
    table.show_edge = False
    for column in table.columns[1:]:
        column.justify = "right"
    for status in STATUSES:
        row = [outcome for outcome in outcomes if outcome.status == status]
        if row:
            table.add_row(*_row(status, row))
    return table


def _row(status: Status, outcomes: Sequence[Outcome]) -> list[str]:
    """Return the cells of all files that ended in the same way."""
    seconds = f"{sum(outcome.seconds for outcome in outcomes):.1f}"
    done = [outcome.denoised for outcome in outcomes if outcome.denoised is not None]
    if not done:
        return [status, str(len(outcomes)), "", "", "", seconds]
    pages = sum(image.pages for image in done)
    pixels = sum(prod(image.size) * image.pages for image in done) / 1e6
    levels = [level for image in done for level in image.noise_levels]
    ends = dict.fromkeys(f"{level:.4g}" for level in (min(levels), max(levels))) if levels else ()
    noise = f"sigma {' to '.join(ends)}" if levels else "photons"
    return [status, str(len(outcomes)), str(pages), f"{pixels:.2f}", noise, seconds]


def _size(path: Path) -> int:
    """Return the length of a file, or of all files in a folder."""
    files = path.rglob("*") if path.is_dir() else [path]
    try:
        return sum(file.stat().st_size for file in files)
    except OSError:
        return 0
