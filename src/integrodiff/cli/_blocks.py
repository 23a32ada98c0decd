"""Denoise one large file in blocks, from disk to disk, on this machine or on a cluster."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from integrodiff.cli._files import refuse_output_over_inputs
from integrodiff.cli._one_file import (
    Denoised,
    Settings,
    Watch,
    derivation_in_words,
    summary_of,
)
from integrodiff.cli._terminal import ExitCode, stop, stopping

if TYPE_CHECKING:
    import numpy as np
    from distributed import Client
    from numpy.typing import NDArray

    from integrodiff.blocks.job import Job, Output, Unfinished
    from integrodiff.blocks.region import BlockDenoiser
    from integrodiff.blocks.sample import LargeImage
    from integrodiff.io import ImageHeader
    from integrodiff.io.windows import WindowReader
    from integrodiff.request import ResolvedRequest


_MOST_DIGITS = 9
"""Largest number of digits in ``--block``; no cluster has so many processes."""

_EACH = 4
"""Units for each process, if the chunks are small enough."""

_VOLUME_BLOCK = 3 * 10**9
"""Bytes for each worker that denoises a volume: those of a block of about 512 voxels a side."""


@dataclass(frozen=True, kw_only=True)
class BlockOptions:
    """Options of the command for large files.

    Attributes
    ----------
    max_memory : int, optional
        Bytes for all processes of this command together; with a scheduler, for each worker.
    scheduler : str, optional
        Address of a Dask scheduler.
    workers : int, optional
        Number of processes on this machine.
    part : (int, int), optional
        Which of how many shares of the blocks to compute, counted from one.
    resume : bool
        Whether to go on with an unfinished job.
    """

    max_memory: int | None = None
    scheduler: str | None = None
    workers: int | None = None
    part: tuple[int, int] | None = None
    resume: bool = False

    @property
    def single(self) -> dict[str, bool]:
        """The options that are for one image only, and whether they were given."""
        return {
            "--scheduler": self.scheduler is not None,
            "--workers": self.workers is not None,
            "--block": self.part is not None,
        }


def block_options(
    max_memory: str | None,
    scheduler: str | None,
    workers: int | None,
    block: str | None,
    *,
    resume: bool,
) -> BlockOptions:
    """Return the options; stop if they contradict each other or cannot be read."""
    from integrodiff.blocks.memory import memory_limit

    with stopping(ExitCode.USAGE, ValueError):
        limit = None if max_memory is None else memory_limit(max_memory)
    if scheduler is not None and not scheduler.strip():
        stop(
            ExitCode.USAGE,
            "--scheduler needs the address of a Dask scheduler, such as tcp://10.0.0.1:8786",
        )
    part = None
    if block is not None:
        first, slash, last = block.partition("/")
        if not (slash and first.isdecimal() and last.isdecimal()):
            stop(ExitCode.USAGE, f"--block must be I/N, such as 3/16, got {block!r}")
        if max(len(first), len(last)) > _MOST_DIGITS:
            stop(ExitCode.USAGE, f"--block I/N takes numbers of up to {_MOST_DIGITS} digits")
        part = int(first), int(last)
        if not 1 <= part[0] <= part[1]:
            stop(ExitCode.USAGE, f"--block I/N needs I from 1 to N, got {block!r}")
    named = [
        name
        for name, value in (("--scheduler", scheduler), ("--workers", workers), ("--block", block))
        if value is not None
    ]
    if len(named) > 1:
        stop(ExitCode.USAGE, f"{' and '.join(named)} exclude each other")
    return BlockOptions(
        max_memory=limit, scheduler=scheduler, workers=workers, part=part, resume=resume
    )


def wants_blocks(source: Path, options: BlockOptions) -> bool:
    """Whether a file is denoised in blocks: an option asks for it, or its planes are large."""
    from integrodiff.errors import ImageFileError
    from integrodiff.io import format_of_content
    from integrodiff.io.windows import WINDOWED, is_large

    if options.scheduler or options.workers or options.part:
        return True
    try:
        windowed = format_of_content(source).name in WINDOWED
        return windowed and (options.max_memory is not None or is_large(source))
    except ImageFileError:
        return False  # which is reported where the file is denoised


def denoise_in_blocks(
    source: Path,
    target: Path,
    settings: Settings,
    options: BlockOptions,
    *,
    watch: Watch,
    identity: str = "",
) -> Denoised:
    """Check input and output, then denoise in blocks; see :mod:`integrodiff.blocks.job`.

    Raises
    ------
    Stopped
        With an exit code and a message for the user.
    """
    from integrodiff.blocks.job import Unfinished
    from integrodiff.errors import ImageFileError
    from integrodiff.io import Derivation, OutputFileError, check_output
    from integrodiff.io.windows import open_windows

    start = time.perf_counter()
    refuse_output_over_inputs(
        target, [source, *settings.options.noise.files, *settings.options.masks.files]
    )
    with ExitStack() as stack:
        stack.enter_context(stopping(ExitCode.INPUT, ImageFileError))
        stack.enter_context(stopping(ExitCode.OUTPUT, OutputFileError))
        reader = stack.enter_context(open_windows(source))
        dtype = settings.denoiser.request.result_dtype(reader.header.dtype)
        header = reader.header.with_dtype(dtype).with_quality(settings.options.quality)
        place = Unfinished(target)
        check_output(target, header, overwrite=settings.options.overwrite)
        _refuse_unfinished(place, options)
        image = _image(reader, settings)
        runner = stack.enter_context(_runner(options, volume=image.layout.is_volume))
        with (
            stopping(ExitCode.USAGE, ValueError, ImportError),
            stopping(ExitCode.INPUT, ImageFileError),
        ):
            work = _work(image, reader, settings, runner)
        words = derivation_in_words(settings, work.resolved)
        header = header.with_derivation(Derivation(words=words, settings=identity))
        with stopping(ExitCode.USAGE, ValueError), stopping(ExitCode.OUTPUT, OutputFileError):
            least = _EACH * (runner.workers if options.part is None else options.part[1])
            job = _begun(place, work, reader, header, runner, identity, least)
        stack.enter_context(stopping(ExitCode.USAGE, ValueError, ImportError))
        stack.enter_context(stopping(ExitCode.INPUT, ImageFileError))
        stack.enter_context(stopping(ExitCode.OUTPUT, OutputFileError))
        notes = _run(job, place, header, settings, options, runner, watch)
    remarks = [*header.notes, *settings.exclusions.notes(work.resolved.invalid)]
    return summary_of(
        settings,
        header,
        work.resolved,
        [*(f"{source}: {text}" for text in remarks), *(f"{target}: {text}" for text in notes)],
        time.perf_counter() - start,
        f"{job.levels[0]} block{'s' if job.levels[0] > 1 else ''}, {runner}",
    )


def _refuse_unfinished(place: Unfinished, options: BlockOptions) -> None:
    """Refuse to mix a new job with one that was not finished."""
    from integrodiff.io.access import output_refusal

    if place.exists and not options.resume and options.part is None:
        raise output_refusal(
            place.target,
            f"there is an unfinished job for it, {place.folder.name}; go on with --resume, or "
            "remove that folder",
        )


class _Runner:
    """Computes units: in this process, or on the workers of a cluster.

    Parameters
    ----------
    client : distributed.Client, optional
        The cluster; by default units are computed in this process.
    workers : int
        Number of units that are computed at a time.
    limit : int
        Bytes for each of them.
    threads : int, optional
        Threads of the engine for each of them; by default those of the settings.
    """

    def __init__(
        self, client: Client | None, workers: int, limit: int, threads: int | None = None
    ) -> None:
        self.client, self.workers, self.limit, self.threads = client, workers, limit, threads

    def __str__(self) -> str:
        if self.client is None:
            return "one process"
        return f"{self.workers} worker{'s' if self.workers > 1 else ''}"

    def run(
        self, function: Callable[[int], Any], numbers: Iterable[int], count: int
    ) -> Iterator[Any]:
        """Return the results of a function for ``count`` numbers, in any order."""
        if self.client is None:
            return map(function, numbers)
        from integrodiff.blocks.cluster import on_workers

        return on_workers(self.client, function, numbers, count)


@contextmanager
def _runner(options: BlockOptions, *, volume: bool) -> Iterator[_Runner]:
    """Start processes, connect to a cluster, or stay in this process."""
    from integrodiff.blocks.job import BASE
    from integrodiff.blocks.memory import machine_memory
    from integrodiff.engines import cpu_count
    from integrodiff.io.registry import has_package

    limit = options.max_memory
    if options.scheduler is not None:
        from integrodiff.blocks.cluster import connected

        with stopping(ExitCode.USAGE, ImportError, ValueError):
            cluster: AbstractContextManager[Client] = connected(options.scheduler)
            client = cluster.__enter__()
        try:
            with stopping(ExitCode.USAGE, ValueError):
                workers, least = _workers_of(client)
            each = (limit or least or 2 * 10**9) - BASE
            yield _Runner(client, workers, each, threads=1)
        finally:
            cluster.__exit__(None, None, None)
        return
    total = limit or (machine_memory() or 4 * 10**9) // 2
    workers = options.workers or cpu_count()
    if options.workers is None:
        # Fewer workers, if each would have too little memory for blocks of a useful size.
        each = _VOLUME_BLOCK if volume else 2 * BASE
        workers = max(1, min(workers, int((total - BASE) // (each + BASE))))
    # The halos of small blocks cost most in volumes; few workers with many threads have large ones.
    threads = max(1, cpu_count() // workers) if volume else 1
    alone = options.part is not None or (options.workers is None and not has_package("distributed"))
    if alone or (workers == 1 and options.workers is None):
        yield _Runner(None, 1, total - BASE)
        return
    from integrodiff.blocks.cluster import local_cluster

    with stopping(ExitCode.USAGE, ImportError):
        started = local_cluster(workers, threads)
        client = started.__enter__()
    try:
        yield _Runner(client, workers, (total - BASE) // workers - BASE, threads)
    finally:
        started.__exit__(None, None, None)


def _workers_of(client: Client) -> tuple[int, int | None]:
    """Return the number of threads of a cluster, and the memory of each if it is limited."""
    found = client.scheduler_info(n_workers=-1)["workers"].values()
    threads = sum(worker["nthreads"] for worker in found)
    if not threads:
        raise ValueError("the cluster has no workers yet; start some, and then this command")
    limits = [
        worker["memory_limit"] // worker["nthreads"] for worker in found if worker["memory_limit"]
    ]
    return threads, min(limits, default=None)


def _image(reader: WindowReader, settings: Settings) -> LargeImage:
    """Return the file as an image, with what the options exclude."""
    from integrodiff.blocks.job import large_file

    volume = settings.options.volume
    header = reader.header
    with stopping(ExitCode.USAGE, ValueError):
        layout = header.layout if volume is None else header.layout.as_volume(volume)
        validity = settings.exclusions.validity(header)
    return large_file(reader, validity, layout)


def _work(
    image: LargeImage, reader: WindowReader, settings: Settings, runner: _Runner
) -> BlockDenoiser:
    """Resolve the request for the whole image, from a sample of it."""
    from integrodiff.blocks.job import grid_of, invalid_in, invalid_pixels
    from integrodiff.blocks.region import BlockDenoiser, resolved_for

    denoiser = settings.denoiser
    if runner.threads is not None:
        denoiser = denoiser.with_threads(runner.threads)
    resolved: ResolvedRequest = resolved_for(denoiser, image)
    if image.validity.may_exclude(image.dtype):
        shape = image.layout.without_samples.shape
        part = _readable(shape, reader.chunks)
        count = math.prod(grid_of(shape, part))
        found = runner.run(partial(invalid_in, image, part), range(count), count)
        resolved = replace(resolved, invalid=invalid_pixels(image.layout, found))
    return BlockDenoiser(image=image, denoiser=denoiser, resolved=resolved)


def _readable(shape: tuple[int, ...], chunks: tuple[int, ...]) -> tuple[int, ...]:
    """Return the size of parts of whole chunks that are looked at together."""
    *leading, height, width = chunks
    rows, columns = (side * math.ceil(2048 / side) for side in (height, width))
    return (*leading, rows, columns)


def _begun(
    place: Unfinished,
    work: BlockDenoiser,
    reader: WindowReader,
    header: ImageHeader,
    runner: _Runner,
    identity: str,
    least: int,
) -> Job:
    """Begin the job, or go on with the one that is there; with at least so many units."""
    from integrodiff.blocks.job import Job, PageFiles, grid_of, identity_of, unit_size
    from integrodiff.io.access import output_refusal

    identity = identity_of(work, reader.stamp, identity)
    if not place.exists:
        sides = _chunks(header, place.target, work.shape)
        unit = unit_size(
            work, sides, lambda one: _needed(work, one, one, header) <= runner.limit, least
        )
        sizes = _sizes(work, unit, header, runner.limit)
        about = {
            "identity": identity,
            "noise": work.resolved.noise,
            "scale": [channel.factors.tolist() for channel in work.resolved.channels],
            "halo": list(work.halo),
            "unit": list(unit),
            "block": list(sizes),
        }
        place.begin(about, lambda path: _build(path, header, place.target))
    about = place.about()
    if about.get("identity") != identity:
        raise output_refusal(
            place.target,
            f"the unfinished job in {place.folder.name} is another one: the input, the options or "
            "the program have changed; remove that folder to start anew",
        )
    unit, sizes = tuple(about["unit"]), tuple(about["block"])
    chunks = _chunks(header, place.target, work.shape)
    if not len(unit) == len(sizes) == len(chunks) or any(
        one % chunk for one, chunk in zip(unit, chunks, strict=True)
    ):
        raise output_refusal(
            place.target,
            f"the unfinished job in {place.folder.name} has blocks that do not fit the output; "
            "remove that folder to start anew",
        )
    needed = _needed(work, unit, sizes, header)
    if needed > runner.limit:
        raise ValueError(
            f"the unfinished job in {place.folder.name} has blocks that take "
            f"{needed / 1e6:.0f} MB; allow more with --max-memory, or take fewer workers"
        )
    output = _output(place.image, header, place.target, work.shape)
    # An output that is written page by page has no smaller resolutions until then.
    paged = isinstance(output, PageFiles)
    smaller = () if paged else getattr(header.metadata.own, "smaller", ())
    grids = [grid_of(work.shape, unit)]
    grids += [grid_of(*output.smaller(level + 1)) for level in range(len(smaller))]
    return Job(
        work=work,
        output=output,
        unit=unit,
        sizes=sizes,
        levels=tuple(map(math.prod, grids)),
        identity=identity,
    )


def _needed(
    work: BlockDenoiser, unit: tuple[int, ...], sizes: tuple[int, ...], header: ImageHeader
) -> int:
    """Return the memory that computing a unit in blocks of these sizes takes.

    Beside the result of the unit there is first what a block takes, and then the result in
    compressed form.
    """
    result = _bytes_of_unit(unit, header)
    return result + max(work.bytes_of(sizes, unit), result)


def _sizes(
    work: BlockDenoiser, unit: tuple[int, ...], header: ImageHeader, limit: int
) -> tuple[int, ...]:
    """Return the sizes of the blocks that a unit is computed in, see :func:`_needed`."""
    from integrodiff.blocks.memory import in_words

    result = _bytes_of_unit(unit, header)
    if 2 * result > limit:
        raise ValueError(
            f"max_memory leaves {in_words(max(limit, 0))} for a process, and one shard of the "
            f"output takes {in_words(2 * result)}; allow more, or take fewer workers"
        )
    return work.sizes_within(limit - result, unit)


def _bytes_of_unit(unit: tuple[int, ...], header: ImageHeader) -> int:
    """Return the memory that a unit of the result takes."""
    return math.prod(unit) * header.values_per_pixel * header.dtype.itemsize


def _chunks(header: ImageHeader, target: Path, shape: tuple[int, ...]) -> tuple[int, ...]:
    """Return the size that units of the output have to be multiples of."""
    if target.suffix.lower() == ".zarr":
        from integrodiff.io.formats.ome_zarr import writing_unit

        return writing_unit(header)
    from integrodiff.blocks.job import PageFiles

    return PageFiles(target, shape).chunks()


def _build(path: Path, header: ImageHeader, target: Path) -> None:
    """Make the empty output."""
    path.mkdir()
    if target.suffix.lower() == ".zarr":
        from integrodiff.io.formats.ome_zarr import BlockWriter

        BlockWriter(path, header).close()


def _output(path: Path, header: ImageHeader, target: Path, shape: tuple[int, ...]) -> Output:
    """Return the output that was made, to write blocks of it."""
    if target.suffix.lower() == ".zarr":
        from integrodiff.io.formats.ome_zarr import open_blocks

        return open_blocks(path, header)
    from integrodiff.blocks.job import PageFiles

    return PageFiles(path, shape)


def _run(
    job: Job,
    place: Unfinished,
    header: ImageHeader,
    settings: Settings,
    options: BlockOptions,
    runner: _Runner,
    watch: Watch,
) -> tuple[str, ...]:
    """Compute what is missing and finish the output, unless others still compute their share."""
    from integrodiff.blocks.job import share, trusted

    done = trusted(job, place, runner.run)
    own = share(job.levels[0], options.part)
    with watch(len(own) + sum(job.levels[1:])) as advance:
        _compute(job, place, 0, own, done[0], runner, advance)
        if options.part is not None:
            of_all = place.done(job.levels[:1])[0].any(axis=1)
            if not (done[0] | of_all).all():
                return (
                    f"block {options.part[0]} of {options.part[1]} is done; the output "
                    "appears when all are",
                )
        with place.alone():
            if not place.exists:
                return ("another process has finished the output",)
            # Others may have written since; nothing is taken on trust.
            done = trusted(job, place, runner.run)
            for level, count in enumerate(job.levels):
                _compute(job, place, level, range(count), done[level], runner, advance)
            return _finish(job, place, header, settings)


def _compute(
    job: Job,
    place: Unfinished,
    level: int,
    numbers: range,
    done: NDArray[np.bool_],
    runner: _Runner,
    advance: Callable[[], None] | None,
) -> None:
    """Compute the units of a resolution that are missing, and enter them in the journal."""
    missing = (number for number in numbers if not done[number])
    count = len(numbers) - int(done[numbers.start : numbers.stop].sum())
    for written in runner.run(partial(job.write, level), missing, count):
        place.record(written)
        done[written.key.number] = True
        if advance is not None:
            advance()


def _finish(
    job: Job, place: Unfinished, header: ImageHeader, settings: Settings
) -> tuple[str, ...]:
    """Give the complete output its name."""
    from integrodiff.blocks.job import PageFiles
    from integrodiff.io import check_output, create_image

    if isinstance(job.output, PageFiles):
        with create_image(place.target, header, overwrite=settings.options.overwrite) as result:
            for page in job.output.pages(job, header, place.folder):
                result.write(page)
        notes = result.notes
    else:
        from integrodiff.io.formats.ome_zarr import notes_on_blocks

        check_output(place.target, header, overwrite=False)
        place.publish()
        notes = notes_on_blocks(header)
    place.remove()
    return notes
