"""Images that do not fit into memory: windows of them are read and written.

OME-Zarr and TIFF can be read in windows. OME-Zarr can be written in blocks by many processes; a
TIFF file cannot, since nobody knows where a compressed tile begins before all others are written.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib import import_module
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from integrodiff.io.access import refusal
from integrodiff.io.image import ImageHeader
from integrodiff.io.registry import format_of_content

WINDOWED = ("OME-Zarr", "TIFF")
"""Formats that can be read in windows."""


class WindowReader(Protocol):
    """An open image of which windows are read."""

    path: Path
    header: ImageHeader

    @property
    def chunks(self) -> tuple[int, ...]:
        """Size of what has to be decoded as a whole, along all axes but that of samples."""

    @property
    def stamp(self) -> str:
        """A text that is another one after a change of the file."""

    def window(self, index: tuple[slice, ...]) -> NDArray[Any]:
        """Return a part of the image, given by its place along all axes but that of samples."""

    def opener(self) -> Callable[[], WindowReader]:
        """Return a function that opens the file again, in this process or another one."""

    def close(self) -> None:
        """Close the file."""


@contextmanager
def open_windows(path: str | os.PathLike[str]) -> Iterator[WindowReader]:
    """Open an image to read windows of it.

    Raises
    ------
    ImageFileError
        If it cannot be opened, is damaged, or is of a format that has no windows.
    """
    reader = windows_of(Path(path))
    try:
        yield reader
    finally:
        reader.close()


def windows_of(path: Path) -> WindowReader:
    """Return an open image, which the caller closes."""
    form = format_of_content(path)
    if form.name not in WINDOWED:
        raise refusal(
            path,
            f"is a {form.name} file, and only {' and '.join(WINDOWED)} can be denoised in blocks; "
            "convert it first",
        )
    if form.missing is not None:
        raise refusal(path, form.missing)
    reader: WindowReader = import_module(form.module).Windows(path)
    header = reader.header
    if header.has_alpha:
        reader.close()
        raise refusal(path, "has transparency, with which it cannot be denoised in blocks")
    return reader


def is_large(path: Path) -> bool:
    """Whether planes of an image are too large to be read as a whole, and it has windows."""
    from integrodiff.io.access import pixel_limit

    if format_of_content(path).name not in WINDOWED:
        return False
    with open_windows(path) as reader:
        return bool(pixel_limit()) and int(np.prod(reader.header.size)) > pixel_limit()
