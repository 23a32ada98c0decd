"""DICOM series: the files of a folder that are the slices of one volume.

Order and spacing follow from where the slices lie (:mod:`integrodiff.io.formats.dicom_slices`), and
not from the names of the files. A result is a new series, one file for each file of the source.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Hashable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path
from typing import ClassVar, NamedTuple

from pydicom import Dataset, dcmread

from integrodiff.io.access import ImageReader, ImageWriter, refusal
from integrodiff.io.formats import dicom
from integrodiff.io.formats.dicom_elements import compared_properties
from integrodiff.io.formats.dicom_frames import BoundedFile
from integrodiff.io.formats.dicom_slices import (
    NoVolumeError,
    Words,
    order_and_distance,
    refuse_differences,
)
from integrodiff.io.image import Display, FormatDetails, ImageHeader, Page
from integrodiff.io.spacing import Spacing

NAME = "DICOM series"
_SUFFIX = ".dcm"
_TAGS = ["SeriesInstanceUID", "ImagePositionPatient", "Rows", "NumberOfFrames"]
_REMEDY = "--slices denoises its files one by one"
_WORDS = Words(
    whole="series",
    remedy=_REMEDY,
    apart=f"put the files of each volume into a folder of their own, or {_REMEDY}",
)


@dataclass(frozen=True, kw_only=True, eq=False)
class SeriesDetails(FormatDetails):
    """The elements of all files in the order of the slices, and names for new files."""

    format: ClassVar[str] = NAME
    slices: tuple[dicom.DicomDetails, ...]
    names: tuple[str, ...]

    @property
    def only_here(self) -> str | None:
        """The metadata that is lost in a file of another format, in words for the user."""
        return self.slices[0].only_here

    @property
    def display(self) -> Display:
        """The values after the rescaling of the files, which is the same in all of them."""
        return self.slices[0].display

    @property
    def window(self) -> tuple[float, float] | None:
        """The window that the file in the middle proposes."""
        return self.slices[len(self.slices) // 2].window


class _Summary(NamedTuple):
    """What decides whether files belong together."""

    series: str
    placed: bool
    single: bool


def series_in(folder: Path, files: Sequence[Path]) -> int:
    """Return how many series of slices with a place in space are in a folder.

    Parameters
    ----------
    folder : Path
        The folder.
    files : sequence of Path
        All DICOM files in it.
    """
    return _series_in(tuple(files), folder.stat().st_mtime_ns)


@lru_cache(maxsize=1024)
def _series_in(files: tuple[Path, ...], changed: int) -> int:
    images = [found for file in files if (found := _summary(file)) is not None]
    if len(images) < 2 or not any(found.placed for found in images):
        return 0
    return len({found.series for found in images}) if all(f.single for f in images) else 0


def largest_series_among(files: Sequence[Path]) -> list[Path]:
    """Return the files of the largest series of slices with a place in space, or none."""
    by_series = defaultdict(list)
    for file in files:
        found = _summary(file)
        if found is not None and found.placed and found.single:
            by_series[found.series].append(file)
    largest = max(by_series.values(), key=len, default=[])
    return largest if len(largest) > 1 else []


def _summary(path: Path) -> _Summary | None:
    """Return what decides on a file; None if it is no image, or cannot be read."""
    try:
        with BoundedFile(path) as stream:
            dataset = dcmread(stream, stop_before_pixels=True, specific_tags=list(_TAGS))
        if "Rows" not in dataset:
            return None
        return _Summary(
            str(dataset.get("SeriesInstanceUID") or ""),
            bool(dataset.get("ImagePositionPatient")),
            int(dataset.get("NumberOfFrames") or 1) == 1,
        )
    except Exception:  # whatever comes of damaged files; their reader will refuse them
        return None


def image_files(folder: Path) -> list[Path]:
    """Return the DICOM files of a folder, without hidden ones and indices."""
    files = (path for path in sorted(folder.iterdir()) if not path.name.startswith("."))
    return [path for path in files if _is_dicom(path)]


def _is_dicom(path: Path) -> bool:
    if not path.is_file() or path.name.upper() == "DICOMDIR":
        return False
    try:
        with path.open("rb") as stream:
            return stream.read(132)[128:] == b"DICM"
    except OSError:
        return False


class Reader(ImageReader):
    """The slices of a volume, each in a file of its own."""

    def _read_header(self) -> ImageHeader:
        parts = [dicom.Reader(file) for file in image_files(self.path) if _may_be_image(file)]
        if len(parts) < 2:
            raise refusal(self.path, f"has {len(parts)} DICOM images, and a series has several")
        _refuse_frames(self.path, parts)
        names = [part.path.name for part in parts]
        try:
            refuse_differences(names, map(_properties, parts), _WORDS)
            order, distance = order_and_distance(names, map(_dataset, parts), _WORDS)
        except NoVolumeError as error:
            raise refusal(self.path, str(error)) from None
        self._parts = [parts[number] for number in order]
        first = self._parts[0].header
        spacing = {"Z": Spacing(distance, "mm"), **first.spacing}
        notes = dict.fromkeys(note for part in self._parts for note in part.header.notes)
        nodata = dict.fromkeys(rule for part in self._parts for rule in part.header.nodata)
        own = SeriesDetails(
            slices=tuple(_details(part) for part in self._parts), names=_names(self._parts)
        )
        return replace(
            first,
            shape=(len(parts), *first.shape),
            axes=f"Z{first.axes}",
            spacing=spacing,
            nodata=tuple(nodata),
            metadata=replace(first.metadata, own=own),
            notes=tuple(notes),
        )

    def _read_pages(self) -> Iterator[Page]:
        for part in self._parts:
            yield from part.pages()


def _may_be_image(path: Path) -> bool:
    """Whether a file is an image, and not a report; damaged files count, and are refused."""
    try:
        with BoundedFile(path) as stream:
            return "Rows" in dcmread(stream, stop_before_pixels=True, specific_tags=list(_TAGS))
    except Exception:
        return True


def _details(part: dicom.Reader) -> dicom.DicomDetails:
    own = part.header.metadata.own
    if not isinstance(own, dicom.DicomDetails):
        raise TypeError("a DICOM file has elements")
    return own


def _dataset(part: dicom.Reader) -> Dataset:
    return _details(part).dataset


def _names(parts: Sequence[dicom.Reader]) -> tuple[str, ...]:
    """Return names for the files of a result: those of the source, with a file extension."""
    names = [part.path.name for part in parts]
    names = [name if name.lower().endswith(_SUFFIX) else name + _SUFFIX for name in names]
    if len({name.casefold() for name in names}) < len(names):
        names = [f"{number:05d}{_SUFFIX}" for number in range(1, len(names) + 1)]
    return tuple(names)


def _refuse_frames(folder: Path, parts: Sequence[dicom.Reader]) -> None:
    """Refuse files that hold several images."""
    for part in parts:
        if part.header.pages > 1:
            raise refusal(folder, f"{part.path.name} has {part.header.pages} frames; {_REMEDY}")


def _properties(part: dicom.Reader) -> dict[str, Hashable]:
    """Return what is the same in all files of a series, by what messages call it."""
    header, dataset = part.header, _dataset(part)
    return {
        "series": str(dataset.get("SeriesInstanceUID") or ""),
        "size": header.shape,
        "type of values": (header.dtype, header.metadata.white_is_zero),
        **compared_properties(dataset),
    }


class Writer(ImageWriter):
    """A folder with one DICOM file for each slice."""

    format = NAME

    def _start(self) -> None:
        own = self.header.metadata.own
        if not isinstance(own, SeriesDetails):
            raise TypeError("a DICOM series is written only from another one, with its elements")
        self._next = iter(zip(own.slices, own.names, strict=True))

    @staticmethod
    def problem(header: ImageHeader) -> str | None:
        """Return why a DICOM series cannot hold the image, or None if it can."""
        own = header.metadata.own
        if not isinstance(own, SeriesDetails) or header.pages != len(own.slices):
            return "a DICOM series is written from another only; give a name with a file extension"
        return dicom.Writer.problem(_of_slice(header, own.slices[0]))

    def write(self, page: Page) -> None:
        """Write the file of the next slice."""
        details, name = next(self._next)
        header = _of_slice(self.header, details)
        if (problem := dicom.Writer.problem(header)) is not None:
            raise ValueError(f"{name}: {problem}")
        writer = dicom.Writer(self.path / name, header)
        try:
            writer.write(page)
        finally:
            writer.close()

    @property
    def notes(self) -> tuple[str, ...]:
        """Say that the files are others now."""
        return ("the files are a new series and are marked as derived from their sources",)


def _of_slice(header: ImageHeader, details: dicom.DicomDetails) -> ImageHeader:
    """Return the header of one slice."""
    metadata = replace(header.metadata, own=details)
    derivation = metadata.derivation
    if derivation is not None and derivation.settings:
        # A file that is denoised by itself with the same settings is another image.
        settings = f"{derivation.settings} as a volume"
        metadata = replace(metadata, derivation=replace(derivation, settings=settings))
    return replace(header, shape=header.shape[1:], axes=header.axes[1:], metadata=metadata)
