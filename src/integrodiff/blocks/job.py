"""A file in blocks, from disk to disk: what is computed, where it goes, and what is done.

A job lies in the hidden folder ``.NAME.unfinished`` beside its output until that is complete, with
a hash in place of a name that is too long::

    image/            the output as it grows: an OME-Zarr image, or one array for each block
    job.json          what is computed, so that nothing else is mixed with it
    journal-*.jsonl   one line for each block that is on the disk, with a hash of its files

*Units* are what one process writes: a whole number of the chunks, or shards, of the output, so that
no file has two writers. The journal line of a unit is written after the unit, and contains the hash
of its files. When a job is resumed, units without a line, or whose files do not match the hash, are
computed again. Each process writes to its own journal, and a truncated last line is ignored. The
output is renamed to its final name when all units are complete.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import secrets
import shutil
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import product
from math import prod
from pathlib import Path
from typing import Any, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from integrodiff._atomic import atomic_write, sync_folder
from integrodiff._text_files import regular_lines, regular_text
from integrodiff._version import __version__
from integrodiff.blocks.region import BlockDenoiser, Index
from integrodiff.blocks.sample import LargeImage
from integrodiff.io.access import output_refusal
from integrodiff.io.image import ImageHeader, Page
from integrodiff.io.windows import WindowReader
from integrodiff.layout import Layout
from integrodiff.request import InvalidPixels
from integrodiff.validity import Validity

BASE = 250 * 10**6
"""Bytes reserved for what a process takes before it has seen a pixel; 84 to 134 MB were seen."""

LARGEST_DESCRIPTION = 2**20
"""Bytes of ``job.json``; a real one has about a thousand."""

LARGEST_JOURNAL = 2**34
"""Bytes of a journal: of some 10^8 blocks."""

_HASH = 32
"""Bytes of a hash."""

_LONGEST_NAME = 240
"""Bytes of the name of an output that leave room for more; most systems have 255."""

LARGEST = {2: 4096, 3: 512}
"""Side of the largest units, in images and volumes, unless a shard is larger: what a kill costs.

Units that are not square or cubic have at most as many pixels.
"""


class Key(NamedTuple):
    """A unit: the resolution, zero for the full one, and its number."""

    level: int
    number: int


class Written(NamedTuple):
    """A unit that is on the disk, and the hash of its files."""

    key: Key
    sha256: str


class Output(Protocol):
    """Where units go."""

    @property
    def path(self) -> Path:
        """The file or folder that is written."""

    def chunks(self, level: int = 0) -> tuple[int, ...]:
        """Return the size that units must be multiples of, along all axes but that of samples."""

    def write(self, index: Index, values: NDArray[Any]) -> None:
        """Write a unit."""

    def digest(self, level: int, index: Index, *, durable: bool = False) -> str:
        """Return a hash of the files of a unit as they are on the disk."""

    def smaller(self, level: int) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """Return the shape of a smaller resolution, and the size of its units."""

    def write_smaller(self, level: int, index: Index) -> None:
        """Write a unit of a smaller resolution, from the one before, which is complete."""


class FileWindow:
    """Reads windows of a file, which is opened in each process when it is needed."""

    def __init__(self, opener: Callable[[], WindowReader]) -> None:
        self._opener = opener
        self._reader: WindowReader | None = None

    def __call__(self, index: Index) -> NDArray[Any]:
        """Return a part of the image."""
        if self._reader is None:
            self._reader = self._opener()
        return self._reader.window(index)

    def close(self) -> None:
        """Close the file of this process; the next window opens it again."""
        if self._reader is not None:
            self._reader.close()
            self._reader = None

    def __del__(self) -> None:
        self.close()

    def __getstate__(self) -> dict[str, Any]:
        return {"_opener": self._opener, "_reader": None}


def large_file(
    reader: WindowReader, validity: Validity | None = None, layout: Layout | None = None
) -> LargeImage:
    """Return an open file as a large image."""
    from integrodiff.io.spacing import distances

    header = reader.header
    return LargeImage(
        layout=header.layout if layout is None else layout,
        dtype=header.dtype,
        window=FileWindow(reader.opener()),
        validity=header.validity if validity is None else validity,
        distances=distances(header.spacing),
        units=header.units,
    )


@dataclass(frozen=True, kw_only=True, eq=False)
class Job:
    """What is computed, and where it goes; it can be sent to other processes.

    Attributes
    ----------
    work : BlockDenoiser
        The image and how it is denoised.
    output : Output
        Where units are written.
    unit : tuple of int
        Size of units along all axes.
    sizes : tuple of int
        Size of the blocks that a unit is computed in.
    levels : tuple of int
        Number of units of each resolution.
    identity : str
        A hash of all that determines the result.
    """

    work: BlockDenoiser
    output: Output
    unit: tuple[int, ...]
    sizes: tuple[int, ...]
    levels: tuple[int, ...]
    identity: str

    def index(self, key: Key) -> Index:
        """Return the place of a unit in its resolution."""
        shape, unit = self.output.smaller(key.level) if key.level else (self.work.shape, self.unit)
        return unit_at(shape, unit, key.number)

    def write(self, level: int, number: int) -> Written:
        """Compute a unit and write it to the disk."""
        key = Key(level, number)
        index = self.index(key)
        values = None if key.level else self.work.denoised(index, self.sizes)
        with _writing(self.output.path):
            if values is None:
                self.output.write_smaller(key.level, index)
            else:
                self.output.write(index, values)
            return Written(key, self.output.digest(key.level, index, durable=True))

    def found(self, level: int, number: int) -> Written:
        """Return a unit with the hash of its files as they are."""
        key = Key(level, number)
        return Written(key, self.output.digest(key.level, self.index(key)))


@contextlib.contextmanager
def _writing(path: Path) -> Iterator[None]:
    """Report errors of the disk as those of an output."""
    try:
        yield
    except OSError as error:
        # NumPy only says how much of an array it could write.
        reason = error.strerror or f"{error}; the disk may be full"
        raise output_refusal(
            path, f"cannot be written: {reason}; go on with --resume when that is mended"
        ) from error


def grid_of(shape: tuple[int, ...], unit: tuple[int, ...]) -> tuple[int, ...]:
    """Return the number of units along each axis."""
    return tuple(-(-length // size) for length, size in zip(shape, unit, strict=True))


def unit_at(shape: tuple[int, ...], unit: tuple[int, ...], number: int) -> Index:
    """Return the place of a unit by its number."""
    place = np.unravel_index(number, grid_of(shape, unit))
    return tuple(
        slice(int(at) * size, min((int(at) + 1) * size, length))
        for at, size, length in zip(place, unit, shape, strict=True)
    )


def invalid_in(
    image: LargeImage, unit: tuple[int, ...], number: int
) -> list[tuple[int, int, tuple[str, ...]]]:
    """Return number, invalid pixels and reasons of each plane with invalid pixels in a unit."""
    index = unit_at(image.layout.without_samples.shape, unit, number)
    pixels = image.window(index)
    mask = image.mask(pixels, index)
    if mask is None:
        return []
    found = []
    *leading, rows, columns = index
    for place in np.ndindex(*mask.shape[:-2]):
        count = int(mask[place].size - mask[place].sum())
        if count:
            number = image.layout.plane_at(
                [part.start + at for part, at in zip(leading, place, strict=True)]
            )
            parts = tuple([masks[number][rows, columns]] for masks in image.validity.masks)
            rules = replace(image.validity, masks=parts)
            found.append((number, count, tuple(rules.reasons(pixels[place]))))
    return found


def invalid_pixels(
    layout: Layout, found: Iterable[list[tuple[int, int, tuple[str, ...]]]]
) -> InvalidPixels | None:
    """Return the invalid pixels of an image from those of its parts; None if there are none."""
    counts = [0] * layout.plane_count
    reasons: dict[str, None] = {}
    for part in found:
        for number, count, why in part:
            counts[number] += count
            reasons |= dict.fromkeys(why)
    if not any(counts):
        return None
    return InvalidPixels(counts=tuple(counts), plane_size=layout.pixels, reasons=tuple(reasons))


def unit_size(
    work: BlockDenoiser,
    chunks: tuple[int, ...],
    fits: Callable[[tuple[int, ...]], bool],
    least: int,
) -> tuple[int, ...]:
    """Return the size of units: whole chunks, so many that the least is spent on halos.

    Along each axis of space a unit has one, two, four ... chunks, or spans all of it, where it
    needs no halo.

    Parameters
    ----------
    work : BlockDenoiser
        What is computed.
    chunks : tuple of int
        Size that units are multiples of.
    fits : callable
        Whether the memory is enough for units of a size.
    least : int
        Number of units that there should be, so that all workers have some.
    """
    able = [
        _doubled(side, length) if axis in work.space else [side]
        for axis, (side, length) in enumerate(zip(chunks, work.shape, strict=True))
    ]

    def count(unit: tuple[int, ...]) -> int:
        return prod(grid_of(work.shape, unit))

    most = LARGEST[len(work.space)] ** len(work.space)
    found = [
        unit
        for unit in product(*able)
        if prod(unit[axis] for axis in work.space) <= most and count(unit) >= least
    ]
    found.sort(key=lambda unit: (work.computed(unit), count(unit)))
    return next(filter(fits, found), tuple(chunks))


def _doubled(side: int, length: int) -> list[int]:
    """Return a side, and twice as much as long as a length is not spanned."""
    found = [side]
    while found[-1] < length:
        found.append(2 * found[-1])
    return found


class PageFiles:
    """Units as files of their own, for outputs that are written page by page in the end."""

    def __init__(self, folder: Path, shape: tuple[int, ...]) -> None:
        self.folder, self.shape = folder, shape

    @property
    def path(self) -> Path:
        """The folder of these files."""
        return self.folder

    def chunks(self, level: int = 0) -> tuple[int, ...]:
        """Return the size that units are multiples of."""
        return (*(1 for _ in self.shape[:-2]), *(min(512, length) for length in self.shape[-2:]))

    def _path(self, index: Index) -> Path:
        return self.folder / ("-".join(str(part.start) for part in index) + ".npy")

    def write(self, index: Index, values: NDArray[Any]) -> None:
        """Write a unit."""
        np.save(self._path(index), values)

    def digest(self, level: int, index: Index, *, durable: bool = False) -> str:
        """Return a hash of the file of a unit."""
        try:
            with self._path(index).open("rb") as stream:
                if durable:
                    os.fsync(stream.fileno())
                return hashlib.file_digest(stream, "sha256").hexdigest()
        except FileNotFoundError:
            return "missing"

    def smaller(self, level: int) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """Refuse: there are none."""
        raise ValueError("smaller resolutions are made with the pages")

    def write_smaller(self, level: int, index: Index) -> None:
        """Refuse: there are none."""
        raise ValueError("smaller resolutions are made with the pages")

    def pages(self, job: Job, header: ImageHeader, scratch: Path) -> Iterator[Page]:
        """Give the pages, each of them put together in a nameless file of a folder."""
        import tempfile

        layout, lengths = header.layout, job.unit[:-2]
        # By where they begin along the axes of pages, so that a page looks at its own units only.
        units: dict[tuple[int, ...], list[Index]] = {}
        for number in range(job.levels[0]):
            index = job.index(Key(0, number))
            units.setdefault(tuple(part.start for part in index[:-2]), []).append(index)
        with tempfile.TemporaryFile(dir=scratch) as stream:
            page: NDArray[Any] = np.memmap(stream, header.dtype, "w+", shape=layout.plane_shape)
            for place in np.ndindex(*layout.plane_grid):
                first = tuple(
                    at // length * length for at, length in zip(place, lengths, strict=True)
                )
                for index in units[first]:
                    values = np.load(self._path(index), mmap_mode="r")
                    at = tuple(a - part.start for part, a in zip(index, place, strict=False))
                    page[index[-2:]] = values[at]
                yield Page(page)


Run = Callable[[Callable[[int], Any], Iterable[int], int], Iterator[Any]]
"""Function that gives the results of a function for the numbers of some units, and how many."""


class Unfinished:
    """The folder of a job that is not complete.

    Parameters
    ----------
    target : Path
        The output, which does not exist yet.
    """

    def __init__(self, target: Path) -> None:
        self.target = Path(os.path.realpath(target))
        name = os.fsencode(self.target.name)
        shown = self.target.name
        if len(name) > _LONGEST_NAME:
            shown = hashlib.sha256(name).hexdigest()
        self.folder = self.target.with_name(f".{shown}.unfinished")
        self.image = self.folder / "image"
        self._journal: Path | None = None

    @property
    def exists(self) -> bool:
        """Whether there is such a job."""
        return (self.folder / "job.json").exists()

    def begin(self, about: dict[str, Any], build: Callable[[Path], object]) -> None:
        """Make the folder; if another process is faster, its folder stays.

        Parameters
        ----------
        about : dict
            What is computed, as JSON values.
        build : callable
            Makes the output at a path.
        """
        made = self.target.with_name(f".{secrets.token_hex(8)}.part")
        made.mkdir()
        try:
            build(made / "image")
            with atomic_write(made / "job.json", overwrite=False) as temporary:
                temporary.write_text(json.dumps(about, indent=1) + "\n", encoding="utf-8")
            with contextlib.suppress(OSError):  # there is one already
                made.rename(self.folder)
        finally:
            shutil.rmtree(made, ignore_errors=True)

    def about(self) -> dict[str, Any]:
        """Return what is computed; raises if the folder is damaged."""
        try:
            found = json.loads(regular_text(self.folder / "job.json", LARGEST_DESCRIPTION))
        except (OSError, ValueError, RecursionError) as error:
            raise output_refusal(
                self.target, f"the unfinished job in {self.folder} cannot be read; remove it"
            ) from error
        if not isinstance(found, dict) or not all(
            _are_lengths(found.get(name)) for name in ("unit", "block")
        ):
            raise output_refusal(
                self.target, f"the unfinished job in {self.folder} is damaged; remove it"
            )
        return found

    def done(self, levels: Sequence[int]) -> list[NDArray[np.uint8]]:
        """Return the hashes in all journals; the units may have changed since.

        Parameters
        ----------
        levels : sequence of int
            Number of units of each resolution.

        Returns
        -------
        list of arrays
            For each resolution a row for each unit: the bytes of its hash, zero without a line.
        """
        found = [np.zeros((count, _HASH), np.uint8) for count in levels]
        for path in sorted(self.folder.glob("journal-*.jsonl")):
            try:
                for line in regular_lines(path, LARGEST_JOURNAL):
                    _enter(found, line)
            except FileNotFoundError:
                continue  # finished by another process
            except OSError as error:
                raise output_refusal(
                    self.target,
                    f"the journal {path.name} of the unfinished job in {self.folder} cannot be "
                    "read; remove it, and its blocks are computed again",
                ) from error
        return found

    def record(self, written: Written) -> None:
        """Add a unit to the journal of this process."""
        if self._journal is None:
            self._journal = self.folder / f"journal-{secrets.token_hex(8)}.jsonl"
        line = json.dumps([*written.key, written.sha256]) + "\n"
        with _writing(self.target), self._journal.open("a", encoding="utf-8") as stream:
            stream.write(line)
            stream.flush()
            os.fsync(stream.fileno())

    def publish(self) -> None:
        """Give a complete image in a folder its name."""
        for folder, _, _ in os.walk(self.image):
            sync_folder(Path(folder))
        self.image.rename(self.target)
        sync_folder(self.target.parent)

    def remove(self) -> None:
        """Remove the folder."""
        shutil.rmtree(self.folder, ignore_errors=True)

    @contextlib.contextmanager
    def alone(self) -> Iterator[None]:
        """Let only one process finish the job, where the file system has locks."""
        try:
            import fcntl
        except ImportError:  # Windows
            yield
            return
        try:
            descriptor = os.open(self.folder, os.O_RDONLY)
        except FileNotFoundError:
            yield  # finished by another process
            return
        try:
            with contextlib.suppress(OSError):
                fcntl.flock(descriptor, fcntl.LOCK_EX)
            yield
        finally:
            os.close(descriptor)


def _enter(hashes: list[NDArray[np.uint8]], line: bytes) -> None:
    """Enter a line of a journal, unless it was cut off in the middle, or is damaged."""
    with contextlib.suppress(TypeError, ValueError, LookupError, OverflowError, RecursionError):
        level, number, digest = json.loads(line)
        if min(level, number) >= 0:
            hashes[int(level)][int(number)] = np.frombuffer(bytes.fromhex(digest), np.uint8)


def _are_lengths(value: object) -> bool:
    """Whether a value of a description is a list of positive integers."""
    return isinstance(value, list) and all(type(item) is int and item > 0 for item in value)


def trusted(job: Job, place: Unfinished, run: Run) -> list[NDArray[np.bool_]]:
    """Return, for each resolution, which units have files that are as the journal says."""
    hashes = place.done(job.levels)
    as_written = [np.zeros(count, np.bool_) for count in job.levels]
    for level, in_journal in enumerate(hashes):
        known = np.flatnonzero(in_journal.any(axis=1))
        for key, sha256 in run(partial(job.found, level), map(int, known), len(known)):
            as_journalled = in_journal[key.number].tobytes().hex()
            as_written[level][key.number] = sha256 == as_journalled
    return as_written


def share(count: int, part: tuple[int, int] | None) -> range:
    """Return the units of one of several processes, all of them if there is one."""
    if part is None:
        return range(count)
    number, total = part
    return range((number - 1) * count // total, number * count // total)


def identity_of(work: BlockDenoiser, stamp: str, options: str) -> str:
    """Return a hash of all that determines the result: image, options, noise and program."""
    resolved = work.resolved
    factors = [channel.factors.tolist() for channel in resolved.channels]
    levels = [[level.sigma for level in channel.levels] for channel in resolved.channels]
    invalid = None if resolved.invalid is None else resolved.invalid.counts
    parts = [__version__, stamp, options, resolved.noise, factors, levels, invalid]
    parts += [str(work.image.layout), str(resolved.dtype), str(resolved.result_dtype)]
    return hashlib.sha256(json.dumps(parts).encode()).hexdigest()
