"""Image files, read and written page by page; nothing is lost without a note.

An image that a format cannot hold is refused before anything is computed, with a proposal;
metadata the format cannot hold is reported. Output files appear whole or not at all. ::

    with open_image(source) as image, create_image(target, image.header) as result:
        for page in image.pages():
            result.write(page.with_pixels(work(page.pixels)))
    print(result.notes)

A stack of any length needs the memory of a few pages. :func:`read_image` and :func:`write_image`
do the same for images that fit into memory. All of them know the axes of an image
(:mod:`integrodiff.layout`) and, where the file declares it, the spacing of its pixels.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from types import TracebackType
from typing import Self

from integrodiff._atomic import atomic_folder, atomic_write
from integrodiff.io.access import (
    ImageReader,
    OutputFileError,
    collected,
    output_refusal,
    refusal,
)
from integrodiff.io.image import Derivation, ImageFile, ImageHeader, Metadata, Page
from integrodiff.io.registry import (
    FORMATS,
    SUFFIXES,
    Format,
    format_of_content,
    format_of_name,
    is_image_folder,
    largest_series_among,
    series_in_folder,
)
from integrodiff.io.spacing import Spacing

__all__ = [
    "FORMATS",
    "SUFFIXES",
    "Derivation",
    "Format",
    "ImageFile",
    "ImageHeader",
    "ImageReader",
    "Metadata",
    "OutputFileError",
    "Page",
    "Spacing",
    "check_output",
    "check_output_path",
    "create_image",
    "files_of_image",
    "format_of_content",
    "format_of_name",
    "is_image_folder",
    "largest_series_among",
    "open_image",
    "read_image",
    "series_in_folder",
    "write_image",
]


@contextmanager
def open_image(path: str | os.PathLike[str], *, slices: bool = False) -> Iterator[ImageReader]:
    """Open an image file; the format follows from its content, not from its name.

    Parameters
    ----------
    path : path-like
        The file.
    slices : bool
        Whether slices are wanted one by one. Otherwise a file whose slices are not those of one
        volume, such as frames of an enhanced DICOM file with one missing, is refused.

    Raises
    ------
    ImageFileError
        If the file cannot be opened, is damaged, holds no image that can be denoised, or cannot
        be read without loss; the message names the file and says what to do.
    """
    path = Path(path)
    reader = format_of_content(path).open(path)
    try:
        if reader.header.no_volume is not None and not slices:
            raise refusal(path, reader.header.no_volume)
        yield reader
    finally:
        reader.close()


def read_image(path: str | os.PathLike[str], *, slices: bool = False) -> ImageFile:
    """Read an image file with all of its pages; as :func:`open_image`."""
    with open_image(path, slices=slices) as reader:
        return collected(reader)


def files_of_image(path: str | os.PathLike[str]) -> tuple[Path, ...]:
    """Return all files or folders that an image is read from, the one that is named first.

    Raises
    ------
    ImageFileError
        If there is no such image, or it is damaged and its files cannot be found out.
    """
    path = Path(path)
    if not format_of_content(path).detached:
        return (path,)
    with open_image(path) as reader:
        return reader.files


class create_image:  # noqa: N801 - used like the function open
    """Create an image file; a context manager that takes page after page.

    The file appears when the block has ended without an error, and nothing is left of it
    otherwise.

    Parameters
    ----------
    path : path-like
        Name of the file; the format follows the file extension.
    header : ImageHeader
        What it will hold.
    overwrite : bool
        Whether an existing file may be replaced.
    completed : callable, optional
        Called with the path of the complete file just before it gets its name; an exception from
        it counts as a failure to write.

    Attributes
    ----------
    notes : tuple of str
        After the block: metadata that the format cannot hold, in words for the user.

    Raises
    ------
    OutputFileError
        If the format cannot hold the image, if the file exists and ``overwrite`` is false, or if
        it cannot be written. An existing file is then unchanged.
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        header: ImageHeader,
        *,
        overwrite: bool = False,
        completed: Callable[[Path], object] | None = None,
    ) -> None:
        self._path = Path(path)
        self._completed = completed
        self._header = header
        self._overwrite = overwrite
        self._written = 0
        self._stack = ExitStack()
        self._format = check_output(self._path, header, overwrite=overwrite)
        self.notes: tuple[str, ...] = ()

    def __enter__(self) -> Self:
        with self._writing():
            if self._format.folder:
                temporary = self._stack.enter_context(atomic_folder(self._path))
            else:
                temporary = self._stack.enter_context(
                    atomic_write(self._path, overwrite=self._overwrite)
                )
            self._temporary = temporary
            self._writer = self._format.writer(self._path)(temporary, self._header)
        return self

    def write(self, page: Page) -> None:
        """Write the next page."""
        with self._writing():
            self._writer.write(page)
        self._written += 1

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if error is not None:
            with suppress(Exception):  # the file will be gone, and the first error counts
                self._writer.close()
            self._stack.__exit__(kind, error, trace)
            return
        with self._writing():
            self._writer.close()
            if self._written != self._header.pages:
                raise ValueError(f"{self._written} of {self._header.pages} pages were written")
            if self._completed is not None:
                self._completed(self._temporary)
            self._stack.close()
        self.notes = self._writer.notes + _left_behind(self._header, self._format.name)

    @contextmanager
    def _writing(self) -> Iterator[None]:
        """Turn errors of the disk and the format into one type, and leave nothing behind."""
        try:
            yield
        except BaseException as error:
            self._stack.__exit__(type(error), error, error.__traceback__)
            if isinstance(error, FileExistsError):
                problem = "was made by another program in the meantime; give another name"
            elif isinstance(error, OSError):
                # NumPy only says how much it could write.
                reason = error.strerror or f"{error}; the disk may be full"
                problem = f"cannot be written: {reason}"
            elif isinstance(error, ValueError):  # metadata that the format cannot hold
                problem = f"cannot be written as {self._format.name}: {error}"
            else:
                raise
            raise output_refusal(self._path, problem) from error


def write_image(
    path: str | os.PathLike[str], image: ImageFile, *, overwrite: bool = False
) -> tuple[str, ...]:
    """Write an image file; the format follows the file extension.

    Returns
    -------
    tuple of str
        Metadata that the format cannot hold, in words for the user.

    Raises
    ------
    OutputFileError
        What :class:`create_image` raises.
    """
    with create_image(path, image.header, overwrite=overwrite) as result:
        for page in image:
            result.write(page)
    return result.notes


def check_output_path(path: Path, *, overwrite: bool, source: str | None = None) -> Format:
    """Return the format of an output path; refuse a path that no image can be written to.

    Parameters
    ----------
    path : Path
        The path.
    overwrite : bool
        Whether an existing file may be replaced.
    source : str, optional
        Name of the format of the input. A path without a known file extension is a folder for a
        DICOM series if the input is one.

    Raises
    ------
    OutputFileError
        With what is wrong and what to do.
    """
    form = format_of_name(path)
    if form is None:
        form = next((form for form in FORMATS if not form.suffixes and form.name == source), None)
    if form is None:
        raise output_refusal(
            path,
            f"the file extension {path.suffix!r} is unknown; expected one of {', '.join(SUFFIXES)}",
        )
    try:
        _refuse_existing(path, form, overwrite=overwrite)
        folder = Path(os.path.realpath(path)).parent
        if not folder.is_dir():
            raise output_refusal(
                path, "cannot be written: its folder does not exist; make it first"
            )
        if not os.access(folder, os.W_OK):
            raise output_refusal(path, "cannot be written: you may not write to its folder")
    except (OSError, ValueError) as error:
        if isinstance(error, OutputFileError):
            raise
        reason = error.strerror if isinstance(error, OSError) else str(error)
        raise output_refusal(path, f"cannot be written: {reason}") from error
    return form


def _refuse_existing(path: Path, form: Format, *, overwrite: bool) -> None:
    """Refuse a name that is taken, unless by a file that may be replaced."""
    if form.folder:
        if path.exists() or path.is_symlink():
            raise output_refusal(
                path, "exists already, and folders are never replaced; give another name"
            )
        return
    if path.is_dir():
        raise output_refusal(path, "is a folder; give the name of a file")
    if path.exists():
        if not path.is_file():
            raise output_refusal(path, "is not a regular file and will not be replaced")
        if not overwrite:
            raise output_refusal(path, "exists already; give another name, or --overwrite it")


def check_output(path: Path, header: ImageHeader, *, overwrite: bool) -> Format:
    """Return the format of an output path; refuse one that cannot hold the image.

    Raises
    ------
    OutputFileError
        With what is wrong and what to do.
    """
    own = header.metadata.own
    form = check_output_path(path, overwrite=overwrite, source=None if own is None else own.format)
    problem = form.writer(path).problem(header)
    if problem is not None:
        raise output_refusal(path, problem)
    return form


_PICTURES = ("PNG", "JPEG", "WebP", "AVIF", "HEIC", "TIFF")
_KEEPS = {
    "icc_profile": ("the colour profile", _PICTURES),
    "xmp": ("XMP data", _PICTURES),
    "exif": ("EXIF data", _PICTURES),
    "dpi": ("the resolution", ("PNG", "JPEG", "BMP", "TIFF")),
}
"""Metadata by name: a description, and the formats that can hold it."""


_WITH_LOSS = ("JPEG", "WebP", "AVIF", "HEIC")


def _left_behind(header: ImageHeader, kind: str) -> tuple[str, ...]:
    """Return in words which metadata the format of the output cannot hold."""
    metadata, axes = header.metadata, header.layout.axes
    missing = [
        what
        for name, (what, takers) in _KEEPS.items()
        if getattr(metadata, name) is not None and kind not in takers
    ]
    if kind in ("NPY", "GIF", "BMP") and metadata.orientation != 1:
        missing.append("the orientation")
    if kind == "NPY" and set(axes) & set("TCZ"):
        missing.append(f"what the axes {axes} mean")
    if kind == "NPY" and metadata.white_is_zero:
        missing.append("that zero is white")
    if kind == "NPY" and metadata.inks:
        missing.append("that the samples are inks (CMYK)")
    own = metadata.own
    if own is not None and own.format != kind and own.only_here is not None:
        missing.append(own.only_here)
    lost = tuple(f"not carried over to {kind}: {what}" for what in missing)
    if metadata.quality is not None and kind not in _WITH_LOSS:
        return (*lost, f"the quality has no effect: {kind} is without loss")
    return lost
