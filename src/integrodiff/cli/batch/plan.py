"""Plan a batch: which files it reads, and where each result goes, before anything is computed."""

from __future__ import annotations

import fnmatch
import glob
import hashlib
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from integrodiff.cli._terminal import ExitCode, note, stop

if TYPE_CHECKING:
    from integrodiff.io import Format


@dataclass(frozen=True, kw_only=True)
class Job:
    """A file to denoise.

    Attributes
    ----------
    source, target : Path
        The noisy file, and the one to write.
    record : Path, optional
        Where it is written down what the output was made from.
    names : mapping of str to str
        What to call paths that mean nothing to the user.
    """

    source: Path
    target: Path
    record: Path | None = None
    names: Mapping[str, str] = field(default_factory=dict, hash=False)

    def worded(self, text: str) -> str:
        """Return a text for the user, with the names that the user knows."""
        for path, name in self.names.items():
            text = text.replace(path, name)
        return text


@dataclass(frozen=True)
class _Found:
    """An input, and its place in the folder of the outputs."""

    path: Path
    place: Path


def is_pattern(name: str) -> bool:
    """Return whether a name is a pattern such as ``scans/*.tif``, and not that of a file."""
    return glob.has_magic(name) and not os.path.lexists(name)


def is_folder_of_images(path: Path, *, series: bool = True) -> bool:
    """Return whether a path is a folder, and not one that is an image, as those of Zarr.

    ``series`` says whether a DICOM series is an image.
    """
    from integrodiff.io import is_image_folder

    try:
        return path.is_dir() and not is_image_folder(path, series=series)
    except (OSError, ValueError):  # what is wrong is reported when it is opened
        return False


def plan_jobs(
    names: list[str], folder: Path, *, recursive: bool, suffix: str | None, series: bool = True
) -> list[Job]:
    """Return the jobs of a batch; nothing is written, and no two outputs are the same.

    Parameters
    ----------
    names : list of str
        Files, folders and patterns.
    folder : Path
        Where the outputs go.
    recursive : bool
        Whether folders in folders are looked into. Their names are kept.
    suffix : str, optional
        Suffix of the outputs, by default that of each input.
    series : bool
        Whether a folder with a DICOM series is one image; if not, each of its files is one.
    """
    from integrodiff.io import format_of_name

    exists = os.path.lexists(folder)
    if exists and not is_folder_of_images(folder, series=False):
        stop(ExitCode.OUTPUT, f"{folder}: is not a folder, as several outputs need; give another")
    if not exists and format_of_name(folder) is not None:
        stop(
            ExitCode.USAGE,
            f"{folder}: has the name of an image, and several outputs need a folder; give another "
            "name, or make the folder first",
        )
    search = _Search(folder, recursive=recursive, series=series)
    found = [image for name in names for image in search.images(name)]
    jobs = []
    for image in dict.fromkeys(found):
        place = image.place.with_name(_renamed(image, suffix))
        record = folder / RECORDS / place.with_name(_record_name(place.name))
        jobs.append(Job(source=image.path, target=folder / place, record=record))
    _refuse_collisions(jobs)
    if series:
        _note_single_slices([job.source for job in jobs])
    return jobs


RECORDS = ".integrodiff"
"""Folder of the records, in that of the outputs."""


def _record_name(name: str) -> str:
    """Return the name of a record; that of an output may leave no room for another suffix."""
    if len(os.fsencode(name)) > _LONGEST_NAME - len(".json"):
        name = hashlib.sha256(os.fsencode(name)).hexdigest()
    return f"{name}.json"


_LONGEST_NAME = 255
"""Bytes of a name that all usual file systems take."""


@dataclass(frozen=True)
class _Search:
    """Finds the images that arguments stand for.

    Attributes
    ----------
    output : Path
        The folder of the outputs, which is not looked into.
    recursive, series : bool
        As in :func:`plan_jobs`.
    """

    output: Path
    recursive: bool
    series: bool

    def images(self, name: str) -> Iterator[_Found]:
        """Give the images that one argument stands for."""
        path = Path(name)
        if is_pattern(name):
            yield from self._matches(name)
        elif is_folder_of_images(path, series=self.series):
            if _same(path, self.output):
                stop(
                    ExitCode.OUTPUT,
                    f"{self.output}: is the input folder itself; give another folder",
                )
            others: list[Path] = []
            images = list(self._images_in(path, others))
            if not images:
                more = "; with --recursive also folders in it are looked into"
                more = "" if self.recursive else more
                stop(ExitCode.INPUT, f"{path}: there is no image file in this folder{more}")
            if others:
                names = ", ".join(other.name for other in others[:3])
                more = ", ..." if len(others) > 3 else ""
                note(
                    f"{path}: skipped, not images by their extension: {len(others)} ({names}{more})"
                )
            yield from (_Found(image, image.relative_to(path)) for image in images)
        else:
            yield _Found(path, Path(path.name))

    def _images_in(self, folder: Path, others: list[Path]) -> Iterator[Path]:
        """Give the images in a folder, but hidden ones and those in the folder of the outputs."""
        from integrodiff.io import format_of_name, is_image_folder

        for inner in self._folders(folder) if self.recursive else [folder]:
            if self.series:
                _refuse_several_series(inner)
            for path in _visible(inner):
                if is_folder_of_images(path, series=self.series):
                    continue
                whole = is_image_folder(path, series=self.series)
                if whole or format_of_name(path) is not None or _is_dicom(path):
                    yield path
                else:
                    others.append(path)

    def _folders(self, folder: Path) -> Iterator[Path]:
        """Give a folder and all below it, but images, hidden ones and that of the outputs.

        Links are not followed, since they could lead back; and it does not call itself, since
        folders may be nested deeper than functions.
        """
        waiting = [folder]
        while waiting:
            yield (current := waiting.pop())
            below = [
                path
                for path in _visible(current)
                if is_folder_of_images(path, series=self.series)
                and not path.is_symlink()
                and not _same(path, self.output)
            ]
            waiting += reversed(below)

    def _matches(self, pattern: str) -> Iterator[_Found]:
        """Give the images that match a pattern; folders after its fixed part are kept.

        A pattern may stand for the folder of a DICOM series, and for single files in one.
        """
        from integrodiff.io import is_image_folder

        parts = Path(pattern).parts
        fixed = next(number for number, part in enumerate(parts) if glob.has_magic(part))
        base = Path(*parts[:fixed])
        images: list[_Found] = []
        whole: set[Path] = set()
        for path in sorted(self._expanded(base, parts[fixed:])):
            folders = [f for f in path.parents if f != base and base in f.parents]
            inside = any(
                _same(f, self.output) or f in whole or is_image_folder(f, series=False)
                for f in folders
            )
            if not inside and not is_folder_of_images(path, series=self.series):
                images.append(_Found(path, path.relative_to(base)))
                whole.add(path)
        if not images:
            stop(ExitCode.INPUT, f"{pattern}: no file matches this pattern")
        yield from images

    def _expanded(self, base: Path, parts: Sequence[str]) -> set[Path]:
        """Return the paths that match, as a shell would, but no links are followed for ``**``."""
        found = {base}
        for part in (*parts, "*") if parts[-1] == _ANY_DEPTH else parts:
            folders = [path for path in found if is_folder_of_images(path, series=False)]
            if part == _ANY_DEPTH:
                found = {path for folder in folders for path in self._folders(folder)}
            elif glob.has_magic(part):
                found = {path for f in folders for path in _listed(f) if _fits(path.name, part)}
            else:
                found = {folder / part for folder in folders if os.path.lexists(folder / part)}
        return found


def _refuse_several_series(folder: Path) -> None:
    """Stop at a folder with the slices of several volumes."""
    from integrodiff.io import series_in_folder

    try:
        count = series_in_folder(folder)
    except OSError:  # reported when it is looked into
        return
    if count > 1:
        stop(
            ExitCode.INPUT,
            f"{folder}: holds {count} DICOM series; put the files of each into a folder of its "
            "own, or denoise all files one by one by --slices",
        )


def _note_single_slices(files: list[Path]) -> None:
    """Say that slices which were given file by file are not denoised as the volume they make."""
    from integrodiff.io import largest_series_among

    slices = largest_series_among(files)
    if slices:
        note(
            f"{len(slices)} files, {slices[0].name} to {slices[-1].name}, are slices of one DICOM "
            "series and are denoised one by one; give the folder that holds them, and nothing "
            "else, to denoise them as a volume, or --slices if that is meant"
        )


def _visible(folder: Path) -> list[Path]:
    """Return what is in a folder and not hidden."""
    try:
        paths = sorted(path for path in folder.iterdir() if not path.name.startswith("."))
        for path in paths:
            path.lstat()  # the path may be too long now
        return paths
    except OSError as error:
        stop(ExitCode.INPUT, f"{folder}: cannot be looked into: {error.strerror}")


def _format(path: Path) -> Format | None:
    """Return the format of a file by its content, or None if it has none that is known."""
    from integrodiff.errors import ImageFileError
    from integrodiff.io import format_of_content

    try:
        return format_of_content(path)
    except ImageFileError:
        return None


def _is_dicom(path: Path) -> bool:
    """Whether a file is DICOM by its content; its files often have no extension."""
    form = _format(path)
    return form is not None and form.name == "DICOM" and path.name.upper() != "DICOMDIR"


_ANY_DEPTH = "**"


def _fits(name: str, part: str) -> bool:
    """Whether a name fits a part of a pattern; hidden ones only one that begins with a dot."""
    return fnmatch.fnmatchcase(name, part) and (part.startswith(".") or not name.startswith("."))


def _listed(folder: Path) -> list[Path]:
    """Return what is in a folder, nothing if it may not be looked into."""
    try:
        return list(folder.iterdir())
    except OSError:
        return []


def _same(path: Path, other: Path) -> bool:
    identity = _identity(path)
    return identity is not None and identity == _identity(other)


def _renamed(image: _Found, suffix: str | None) -> str:
    """Return the name of an output, with another suffix, or one if the input has none."""
    from integrodiff.io import SUFFIXES, format_of_name

    name = image.place.name
    if suffix is None:
        form = None if format_of_name(image.place) is not None else _format(image.path)
        return name if form is None or not form.suffixes else f"{name}{form.suffixes[0]}"
    own = [known for known in SUFFIXES if name.lower().endswith(known)]
    return name[: len(name) - max(map(len, own), default=0)] + suffix


def _refuse_collisions(jobs: Iterable[Job]) -> None:
    """Refuse outputs that would be written twice, and those that are inputs."""
    jobs = list(jobs)
    sources: dict[str, Path] = {}
    inputs = {_identity(job.source) for job in jobs} - {None}
    for job in jobs:
        real = os.path.realpath(job.target)
        other = sources.setdefault(real, job.source)
        if other != job.source:
            stop(
                ExitCode.USAGE,
                f"{other} and {job.source} would both become {job.target}; give them other names, "
                "or denoise them into different folders",
            )
        if _identity(job.target) in inputs:
            stop(
                ExitCode.OUTPUT,
                f"{job.target} is an input, and inputs are never changed; give another folder",
            )


def _identity(path: Path) -> tuple[int, int] | None:
    """Return what all names of a file have in common, or None if there is no such file."""
    try:
        found = path.stat()
    except (OSError, ValueError):  # what is wrong is reported when the file is opened
        return None
    return found.st_dev, found.st_ino
