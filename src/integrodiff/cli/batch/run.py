"""Many files: each goes the way of a single one, in processes of their own."""

from __future__ import annotations

import time
import warnings
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from integrodiff.cli._one_file import Settings, Watch, denoise_file
from integrodiff.cli._terminal import (
    ExitCode,
    Stopped,
    every_error_stops,
    stop,
    stopping,
)
from integrodiff.cli.batch.outcomes import Outcome, write_report
from integrodiff.cli.batch.plan import Job
from integrodiff.cli.batch.records import contents, doubt, options_of, write_record

if TYPE_CHECKING:
    from integrodiff.cli.batch.messages import Display
    from integrodiff.cli.batch.workers import Tell

_NAMED = 5
"""How many files are named that failed."""


@dataclass(frozen=True, kw_only=True)
class Attempt:
    """Denoises one file of a batch, and says what became of it; a bad file is no error here.

    Attributes
    ----------
    settings : Settings
        How.
    resume : bool
        Whether a file is left out whose output is there already.
    watched : bool
        Whether anybody is to know how far it is.
    """

    settings: Settings
    resume: bool
    watched: bool

    def __call__(self, job: Job, tell: Tell) -> Outcome:
        """Denoise a file; ``tell`` is called with the part of it that is done."""
        start = time.perf_counter()
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            try:
                with every_error_stops():
                    outcome = self._outcome(job, tell)
            except Stopped as end:
                message = _naming(job, end.message)
                outcome = Outcome(job=job, status="failed", code=end.code, message=message)
        texts = tuple(dict.fromkeys(str(warning.message) for warning in caught))
        return replace(outcome, warnings=texts, seconds=time.perf_counter() - start)

    def _outcome(self, job: Job, tell: Tell) -> Outcome:
        completed: Callable[[Path], None] | None = None
        if job.record is not None:
            if self._is_finished(job):
                return Outcome(job=job, status="skipped")
            completed = self._recorder(job.record, job.source)
            make_folder(job.target.parent)
        watch = _fractions(tell) if self.watched else _nobody
        done = denoise_file(job.source, job.target, self.settings, watch=watch, completed=completed)
        return Outcome(job=job, status="done", denoised=done)

    def _is_finished(self, job: Job) -> bool:
        """Whether the output is what would be made now; any other is replaced only if asked."""
        if not self.resume or job.record is None or not job.target.exists():
            return False
        options = options_of(self.settings)
        with stopping(ExitCode.OUTPUT, OSError):
            reason = doubt(job.record, _input(job.source), job.target, options)
        if reason is not None and not self.settings.options.overwrite:
            stop(
                ExitCode.OUTPUT,
                f"{job.target}: exists already, and {reason}; give another folder, or --overwrite "
                "it",
            )
        return reason is None

    def _recorder(self, record: Path, source: Path) -> Callable[[Path], None]:
        """Return what writes the record of an output."""
        before = _input(source)
        options = options_of(self.settings)
        return lambda output: write_record(record, before, contents(output), options)


def run_batch(
    jobs: list[Job], attempt: Attempt, display: Display, *, processes: int, report: str | None
) -> None:
    """Denoise all files; raise at the end what says that some failed."""
    start = time.perf_counter()
    outcomes = {job: Outcome(job=job, status="not reached") for job in jobs}
    code = ExitCode.INTERRUPTED
    try:
        with display:
            for outcome in _outcomes(jobs, attempt, display, processes):
                outcomes[outcome.job] = outcome
                display.finished(outcome)
        failed = [job for job in jobs if outcomes[job].status == "failed"]
        code = ExitCode.SOME_FAILED if failed else ExitCode.DONE
    finally:
        seconds = time.perf_counter() - start
        display.summary(list(outcomes.values()), seconds)
        if report is not None:
            write_report(report, list(outcomes.values()), attempt.settings, code, seconds)
    if failed:
        names = ", ".join(job.source.name for job in failed[:_NAMED])
        more = f" and {len(failed) - _NAMED} more" if len(failed) > _NAMED else ""
        stop(code, f"{len(failed)} of {len(jobs)} files failed: {names}{more}")


def _outcomes(
    jobs: list[Job], attempt: Attempt, display: Display, processes: int
) -> Iterator[Outcome]:
    """Give what becomes of each file, in the order in which they end."""
    from integrodiff.cli.batch import workers
    from integrodiff.engines import cpu_count, thread_count

    with stopping(ExitCode.USAGE, ValueError):
        threads = thread_count()
    processes, threads = _split(processes, len(jobs), cpu_count(), threads)
    words = workers.worked_off(jobs, attempt, processes=processes, threads=threads)
    with closing(words):
        for job, word in words:
            if word.result is None:
                display.advance(job, word.news)
            elif isinstance(word.result, workers.Death):
                message, code = f"{job.source}: {word.result}", ExitCode.UNEXPECTED
                yield Outcome(job=job, status="failed", code=code, message=message)
            else:
                yield word.result


def _split(wanted: int, files: int, processors: int, threads: int) -> tuple[int, int]:
    """Return how many processes, and how many threads in each, so that all have a processor."""
    processes = max(1, min(wanted, files, processors))
    return processes, max(1, min(threads, processors // processes))


def _input(path: Path) -> dict[str, object]:
    """Return the contents of an input; one that cannot be read is left to the reader to refuse."""
    try:
        return contents(path)
    except OSError:
        return {}


def make_folder(folder: Path) -> None:
    """Make a folder, or end the program."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        stop(ExitCode.OUTPUT, f"{folder}: the folder cannot be made: {error.strerror}")


def _naming(job: Job, message: str) -> str:
    """Return a message that names the file it is about."""
    named = message.startswith((str(job.source), str(job.target.parent)))
    return message if named else f"{job.source}: {message}"


def _fractions(tell: Tell) -> Watch:
    """Return what tells the part of the steps that are done."""

    @contextmanager
    def watch(total: int) -> Iterator[Callable[[], None]]:
        done = 0

        def advance() -> None:
            nonlocal done
            done += 1
            tell(done / total)

        yield advance

    return watch


@contextmanager
def _nobody(total: int) -> Iterator[None]:
    yield None
