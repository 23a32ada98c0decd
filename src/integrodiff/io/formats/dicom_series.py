"""DICOM series: the files of a folder that are the slices of one volume.

The place of a slice is ImagePositionPatient, seen along the normal of ImageOrientationPatient.
Order and spacing follow from it, and never from SliceThickness, SliceLocation, InstanceNumber or
the names of the files. Slices must lie behind each other at equal distances; where they do not, the
message names the files. A result is a new series, one file for each file of the source.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path
from typing import Any, ClassVar, NamedTuple

import numpy as np
from numpy.typing import NDArray
from pydicom import Dataset, dcmread

from integrodiff.io.access import ImageReader, ImageWriter, refusal
from integrodiff.io.formats import dicom
from integrodiff.io.formats.dicom_frames import BoundedFile
from integrodiff.io.image import Display, FormatDetails, ImageHeader, Page
from integrodiff.io.spacing import Spacing

NAME = "DICOM series"
_SUFFIX = ".dcm"
_TAGS = ["SeriesInstanceUID", "ImagePositionPatient", "Rows", "NumberOfFrames"]
_REMEDY = "--slices denoises its files one by one"

_SAME_ANGLE = 1e-3
"""Difference of direction cosines that is rounding."""

_SAME_DISTANCE = 0.03
"""Relative difference of distances that is rounding, as of 0.01 mm in 0.5 mm."""

_NO_SHIFT = 0.02
"""Shift sideways over the distance of two slices; more is a tilt of above one degree."""

_SAME_PLACE = 1e-4
"""Distance in mm below which two slices lie at the same place."""

_MOST_NAMED = 3
"""Number of gaps that a message names."""


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
        _refuse_mixture(self.path, parts)
        places = [_place(self.path, part.path, _dataset(part)) for part in parts]
        order, distance = _order(self.path, [part.path.name for part in parts], places)
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


def _refuse_mixture(folder: Path, parts: Sequence[dicom.Reader]) -> None:
    """Refuse files that are no slices of one volume."""
    kinds: dict[str, dict[Any, Path]] = defaultdict(dict)
    for part in parts:
        header, dataset = part.header, _dataset(part)
        if header.pages > 1:
            raise refusal(folder, f"{part.path.name} has {header.pages} frames; {_REMEDY}")
        spacing = tuple(f"{header.spacing[a].value:.4g}" for a in "YX" if a in header.spacing)
        for what, value in (
            ("series", str(dataset.get("SeriesInstanceUID") or "")),
            ("size", header.shape),
            ("type of values", (header.dtype, header.metadata.white_is_zero)),
            ("spacing of pixels", spacing),
            ("scale of values, as in PET", tuple(header.display)),
        ):
            kinds[what].setdefault(value, part.path)
    for what, found in kinds.items():
        if len(found) > 1:
            first, second, *_ = (path.name for path in found.values())
            raise refusal(
                folder,
                f"{first} and {second} differ in their {what}, so that they are not slices of one "
                f"volume; put the files of each volume into a folder of their own, or {_REMEDY}",
            )


class _Place(NamedTuple):
    """Where a slice lies, in mm: its first pixel, and the directions of rows and columns."""

    position: NDArray[np.float64]
    directions: NDArray[np.float64]


def _place(folder: Path, path: Path, dataset: Dataset) -> _Place:
    """Return the place of a slice, or refuse a file that has none."""
    found = {}
    for name, length in (("ImagePositionPatient", 3), ("ImageOrientationPatient", 6)):
        try:
            numbers = np.array([float(value) for value in dataset.get(name) or ()])
        except (TypeError, ValueError):
            numbers = np.zeros(0)
        if numbers.shape != (length,) or not np.isfinite(numbers).all():
            raise refusal(folder, f"{path.name} has no usable element {name}; {_REMEDY}")
        found[name] = numbers
    directions = found["ImageOrientationPatient"].reshape(2, 3)
    if np.abs(directions @ directions.T - np.eye(2)).max() > 10 * _SAME_ANGLE:
        raise refusal(
            folder,
            f"the element ImageOrientationPatient of {path.name} has no two directions at right "
            f"angles; {_REMEDY}",
        )
    return _Place(found["ImagePositionPatient"], directions)


def _order(folder: Path, names: Sequence[str], places: Sequence[_Place]) -> tuple[list[int], float]:
    """Return the order of the slices and their distance; refuse those that are not regular."""
    directions = places[0].directions
    for name, place in zip(names, places, strict=True):
        if np.abs(place.directions - directions).max() > _SAME_ANGLE:
            raise refusal(
                folder,
                f"{names[0]} and {name} lie at different angles (ImageOrientationPatient), so that "
                f"they are not slices of one volume; {_REMEDY}",
            )
    normal = np.cross(*directions)
    normal /= np.linalg.norm(normal)
    positions = np.array([place.position for place in places])
    order = np.argsort(positions @ normal, kind="stable").tolist()
    names = [names[number] for number in order]
    steps = np.diff(positions[order], axis=0)
    heights = steps @ normal
    smallest = float(heights.min())
    if smallest < _SAME_PLACE:
        at = int(heights.argmin())
        raise refusal(
            folder,
            f"{names[at]} and {names[at + 1]} lie at the same place, as in a series of several "
            f"times or echoes; put each volume into a folder of its own, or {_REMEDY}",
        )
    _refuse_gaps(folder, names, heights)
    shift = np.abs(steps @ directions.T).max(axis=1)
    if (shift > _NO_SHIFT * heights).any():
        at = int((shift / heights).argmax())
        raise refusal(
            folder,
            f"{names[at + 1]} is shifted sideways against {names[at]} by {shift[at]:.3g} mm, as "
            f"with a tilted gantry; {_REMEDY}",
        )
    return order, float(heights.mean())


def _refuse_gaps(folder: Path, names: Sequence[str], heights: NDArray[np.float64]) -> None:
    """Refuse slices whose distances are not equal, and say where one is missing."""
    smallest = float(heights.min())
    ratios = heights / smallest
    if ratios.max() <= 1 + _SAME_DISTANCE:
        return
    wholes = np.rint(ratios)
    if (np.abs(ratios - wholes) <= _SAME_DISTANCE * wholes).all():
        gaps = [int(at) for at in np.flatnonzero(wholes > 1)]
        told = [
            f"{int(wholes[at]) - 1} between {names[at]} and {names[at + 1]}"
            for at in gaps[:_MOST_NAMED]
        ]
        more = ", ..." if len(gaps) > _MOST_NAMED else ""
        missing = int((wholes - 1).sum())
        raise refusal(
            folder,
            f"{missing} slice{'s are' if missing > 1 else ' is'} missing at a distance of "
            f"{smallest:.4g} mm: {', '.join(told)}{more}. Get the series again from its source, or "
            f"{_REMEDY}",
        )
    at = int(heights.argmax())
    raise refusal(
        folder,
        f"its slices do not lie at equal distances: they are {smallest:.4g} to {heights[at]:.4g} "
        f"mm apart, the most between {names[at]} and {names[at + 1]}; {_REMEDY}",
    )


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
