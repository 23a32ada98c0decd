"""Denoise a single image, with a progress bar and a line of summary."""

from __future__ import annotations

import time
from dataclasses import replace
from functools import partial

from integrodiff.cli._blocks import BlockOptions, denoise_in_blocks
from integrodiff.cli._one_file import Settings, Watch, denoise_file
from integrodiff.cli._terminal import (
    ExitCode,
    Stopped,
    every_error_stops,
    interrupt_code,
    note,
    progress,
    say,
)
from integrodiff.cli.batch.outcomes import Outcome, write_report
from integrodiff.cli.batch.plan import Job
from integrodiff.cli.batch.records import identity_of


def run_single(
    job: Job,
    settings: Settings,
    warnings: list[str],
    *,
    quiet: bool,
    report: str | None,
    blocks: BlockOptions | None = None,
) -> None:
    """Denoise one image; ``warnings`` is the list of those shown, for the report.

    With ``blocks`` it is denoised in blocks.
    """
    start = time.perf_counter()
    outcome, code = Outcome(job=job, status="not reached"), ExitCode.UNEXPECTED
    try:
        with every_error_stops():
            watch: Watch = partial(progress, job.source.name, quiet=quiet)
            identity = identity_of(settings)
            if blocks is None:
                done = denoise_file(
                    job.source, job.target, settings, watch=watch, identity=identity
                )
            else:
                done = denoise_in_blocks(
                    job.source, job.target, settings, blocks, watch=watch, identity=identity
                )
        outcome, code = Outcome(job=job, status="done", denoised=done), ExitCode.DONE
    except Stopped as end:
        outcome = Outcome(job=job, status="failed", code=end.code, message=end.message)
        code = end.code
        raise
    except KeyboardInterrupt as error:
        code = interrupt_code(error)
        raise
    finally:
        if report is not None:
            seconds = time.perf_counter() - start
            outcome = replace(outcome, warnings=tuple(warnings), seconds=seconds)
            write_report(report, [outcome], settings, code, seconds)
    for text in done.notes:
        note(job.worded(text))
    if not quiet:
        say(job.worded(f"{job.source} -> {job.target}: {done}"))
