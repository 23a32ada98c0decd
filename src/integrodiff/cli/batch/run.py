"""Denoise many files in worker processes, each in the same way as a single file."""

from __future__ import annotations

import time
import warnings
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from integrodiff.cli._files import contents, contents_of_image
from integrodiff.cli._one_file import Settings, Watch, denoise_file
from integrodiff.cli._terminal import (
    ExitCode,
    Stopped,
    every_error_stops,
    interrupt_code,
    stop,
    stopping,
)
from integrodiff.cli.batch.outcomes import Outcome, write_report
from integrodiff.cli.batch.plan import Job
from integrodiff.cli.batch.records import (
    alone_with,
    identity_of,
    make_folders,
    options_of,
    stale_reason,
    write_record,
)

if TYPE_CHECKING:
    from integrodiff.cli.batch.messages import Display
    from integrodiff.cli.batch.workers import ReportProgress

_MOST_NAMED = 5
"""Number of failed files that the last message names."""


@dataclass(frozen=True, kw_only=True)
class JobRunner:
    """Callable that runs one job and returns its outcome, which is "failed" for a bad file.

    Attributes
    ----------
    settings : Settings
        How to denoise.
    resume : bool
        Whether to skip jobs whose output is up to date.
    show_progress : bool
        Whether progress is reported.
    """

    settings: Settings
    resume: bool
    show_progress: bool

    def __call__(self, job: Job, report: ReportProgress) -> Outcome:
        """Run a job; ``report`` is called with the fraction that is done."""
        start = time.perf_counter()
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            try:
                with every_error_stops():
                    outcome = self._outcome(job, report)
            except Stopped as end:
                message = _naming(job, end.message)
                outcome = Outcome(job=job, status="failed", code=end.code, message=message)
        texts = tuple(dict.fromkeys(str(warning.message) for warning in caught))
        return replace(outcome, warnings=texts, seconds=time.perf_counter() - start)

    def _outcome(self, job: Job, report: ReportProgress) -> Outcome:
        if self._is_up_to_date(job):
            return Outcome(job=job, status="skipped")
        make_folder(job.target.parent)
        watch = _watch(report) if self.show_progress else _no_watch
        with ExitStack() as lock:
            done = denoise_file(
                job.source,
                job.target,
                self.settings,
                watch=watch,
                completed=self._recorder(job, lock),
                identity=identity_of(self.settings),
            )
        return Outcome(job=job, status="done", denoised=done)

    def _is_up_to_date(self, job: Job) -> bool:
        """Whether the output is what would be made now; a stale one is replaced only if asked."""
        if not self.resume or job.record is None or not job.target.exists():
            return False
        options = options_of(self.settings)
        with stopping(ExitCode.OUTPUT, OSError):
            reason = stale_reason(job.record, _input(job.source), job.target, options)
        if reason is not None and not self.settings.options.overwrite:
            stop(
                ExitCode.OUTPUT,
                f"{job.target}: exists already, and {reason}; give another folder, or --overwrite "
                "it",
            )
        return reason is None

    def _recorder(self, job: Job, lock: ExitStack) -> Callable[[Path], None] | None:
        """Return the function that writes the record of an output, with a lock until it is done."""
        if (record := job.record) is None:
            return None
        before = _input(job.source)
        options = options_of(self.settings)

        def write(output: Path) -> None:
            lock.enter_context(alone_with(record))
            if job.target.exists() and not self.settings.options.overwrite:
                raise FileExistsError(f"{job.target} exists already")
            write_record(record, before, contents(output), options)

        return write


def run_batch(
    jobs: list[Job], runner: JobRunner, display: Display, *, processes: int, report: str | None
) -> None:
    """Run all jobs; end the program with exit code 5 if some failed."""
    start = time.perf_counter()
    outcomes = {job: Outcome(job=job, status="not reached") for job in jobs}
    code = ExitCode.UNEXPECTED
    try:
        with display:
            for outcome in _outcomes(jobs, runner, display, processes):
                outcomes[outcome.job] = outcome
                display.finished(outcome)
        failed = [job for job in jobs if outcomes[job].status == "failed"]
        code = ExitCode.SOME_FAILED if failed else ExitCode.DONE
    except KeyboardInterrupt as error:
        code = interrupt_code(error)
        raise
    except Stopped as end:
        code = end.code
        raise
    finally:
        seconds = time.perf_counter() - start
        display.summary(list(outcomes.values()), seconds)
        if report is not None:
            write_report(report, list(outcomes.values()), runner.settings, code, seconds)
    if failed:
        names = ", ".join(job.source.name for job in failed[:_MOST_NAMED])
        more = f" and {len(failed) - _MOST_NAMED} more" if len(failed) > _MOST_NAMED else ""
        stop(code, f"{len(failed)} of {len(jobs)} files failed: {names}{more}")


def _outcomes(
    jobs: list[Job], runner: JobRunner, display: Display, processes: int
) -> Iterator[Outcome]:
    """Yield the outcome of each job, in the order in which they end."""
    from integrodiff.cli.batch import workers
    from integrodiff.engines import cpu_count, thread_count

    with stopping(ExitCode.USAGE, ValueError):
        threads = thread_count()
    processes, threads = _split(processes, len(jobs), cpu_count(), threads)
    events = workers.run_tasks(jobs, runner, processes=processes, threads=threads)
    with closing(events):
        for job, event in events:
            match event:
                case workers.Progress(fraction):
                    display.advance(job, fraction)
                case workers.Finished(outcome):
                    yield outcome
                case workers.Died():
                    message, code = f"{job.source}: {event}", ExitCode.UNEXPECTED
                    yield Outcome(job=job, status="failed", code=code, message=message)


def _split(wanted: int, files: int, processors: int, threads: int) -> tuple[int, int]:
    """Return the number of processes and of threads in each, so that each has a processor."""
    processes = max(1, min(wanted, files, processors))
    return processes, max(1, min(threads, processors // processes))


def _input(path: Path) -> dict[str, object]:
    """Return the contents of an input; one that cannot be read is left to the reader to refuse."""
    from integrodiff.errors import ImageFileError

    try:
        return contents_of_image(path)
    except (ImageFileError, OSError):
        return {}


def make_folder(folder: Path) -> None:
    """Make a folder, or end the program."""
    try:
        make_folders(folder)
    except OSError as error:
        stop(ExitCode.OUTPUT, f"{folder}: the folder cannot be made: {error.strerror}")


def _naming(job: Job, message: str) -> str:
    """Return a message that names the file it is about."""
    named = message.startswith((str(job.source), str(job.target.parent)))
    return message if named else f"{job.source}: {message}"


def _watch(report: ReportProgress) -> Watch:
    """Return the factory of contexts that report the fraction of steps done."""

    @contextmanager
    def watch(total: int) -> Iterator[Callable[[], None]]:
        done = 0

        def advance() -> None:
            nonlocal done
            done += 1
            report(done / total)

        yield advance

    return watch


@contextmanager
def _no_watch(total: int) -> Iterator[None]:
    yield None
