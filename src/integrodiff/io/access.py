"""Reading and writing image files page by page: the base classes of all formats."""

from __future__ import annotations

import binascii
import errno
import lzma
import struct
import warnings
import zlib
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from math import prod
from pathlib import Path
from traceback import walk_tb
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from integrodiff.errors import ImageFileError
from integrodiff.io.image import ImageFile, ImageHeader, Page
from integrodiff.io.spacing import Spacings, distances
from integrodiff.layout import Layout
from integrodiff.units import GreyUnits
from integrodiff.validity import Validity

# No supported compression shrinks the data of a noisy image by a larger factor.
_LARGEST_RATIO = 1500

_INCOMPLETE = "it is damaged or incomplete. Get it again from its source"
_PACKAGE = "integrodiff"


class OutputFileError(ImageFileError):
    """An image file cannot be written."""


def refusal(path: Path, problem: str) -> ImageFileError:
    """Return the error for a file; the problem says what is wrong and what to do."""
    return ImageFileError(f"{path}: {problem}")


def output_refusal(path: Path, problem: str) -> OutputFileError:
    """Return the error for a file that is to be written."""
    return OutputFileError(f"{path}: {problem}")


# Errors of decoders that damaged data cause. Others, such as an AttributeError, mean that a
# library is used in a way it does not support, and are no fault of the file.
_DATA_ERRORS = (
    *(ArithmeticError, AssertionError, EOFError, LookupError, OSError, RuntimeError, SyntaxError),
    *(ValueError, Image.DecompressionBombError, binascii.Error, lzma.LZMAError),
    *(struct.error, zlib.error),
)

_NOT_OF_THE_FILE = {errno.EACCES, errno.EIO, errno.EMFILE, errno.ENFILE, errno.ENOENT, errno.ENOSPC}
"""Errors of the operating system that no content of a file causes."""


@contextmanager
def decoding(path: Path, *others: type[Exception]) -> Iterator[None]:
    """Turn the errors that bad data cause in a decoder into one error that names the file.

    Parameters
    ----------
    path : Path
        The file.
    *others : exception types
        Further errors that the library of the format raises over bad data. They count if they
        come from inside a library; raised by the call itself they mean that it is called wrongly.
    """
    caught: tuple[type[Exception], ...] = (*_DATA_ERRORS, *others)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    except ImageFileError:
        raise
    except MemoryError as error:
        raise refusal(path, "does not fit into memory; cut it into parts") from error
    except caught as error:
        if not isinstance(error, _DATA_ERRORS) and not _from_a_library(error):
            raise
        if isinstance(error, OSError) and error.errno in _NOT_OF_THE_FILE:
            raise refusal(path, f"cannot be read: {error.strerror}") from error
        reason = " ".join(str(error).split())[:300] or type(error).__name__
        raise refusal(path, f"cannot be decoded ({reason}); {_INCOMPLETE}") from error


def _from_a_library(error: Exception) -> bool:
    """Whether an error was raised by code of another package."""
    frames = list(walk_tb(error.__traceback__))
    return bool(frames) and not frames[-1][0].f_globals.get("__name__", "").startswith(_PACKAGE)


@contextmanager
def parsing(path: Path, what: str) -> Iterator[None]:
    """Refuse a file whose metadata have values of the wrong type.

    For blocks that call no library: there, an error over a type is one over the data.
    """
    try:
        yield
    except (AttributeError, LookupError, TypeError, ValueError, ArithmeticError) as error:
        if isinstance(error, ImageFileError):
            raise
        raise refusal(path, f"is damaged: it has no usable {what}") from error


class ImageReader(ABC):
    """An open image file: its header, and its pages one after the other.

    Parameters
    ----------
    path : Path
        The file.

    Attributes
    ----------
    header : ImageHeader
        Axes, dtype and metadata.
    library_errors : tuple of exception types
        What the library of the format raises over bad data, besides what all raise; see
        :func:`decoding`.
    whole_planes : bool
        Whether planes are read as a whole, so that there is a limit on their size. If not, the
        reader has the methods of :class:`integrodiff.io.windows.WindowReader`.

    Raises
    ------
    ImageFileError
        If the file is damaged or holds something that cannot be denoised.
    """

    library_errors: ClassVar[tuple[type[Exception], ...]] = ()
    whole_planes: ClassVar[bool] = True

    def __init__(self, path: Path) -> None:
        self.path = path
        self._opened = ExitStack()
        try:
            with decoding(path, *self.library_errors):
                self.header = self._read_header()
        except BaseException:
            self.close()
            raise

    @abstractmethod
    def _read_header(self) -> ImageHeader:
        """Open the file; resources to close later go into ``self._opened``."""

    @abstractmethod
    def _read_pages(self) -> Iterator[Page]:
        """Give the pages from the first on."""

    @property
    def files(self) -> tuple[Path, ...]:
        """All files or folders that the image is read from, that of its header first."""
        return (self.path,)

    @property
    def layout(self) -> Layout:
        """Axes and shape of the image."""
        return self.header.layout

    @property
    def dtype(self) -> np.dtype[Any]:
        """The dtype of the pixels."""
        return self.header.dtype

    @property
    def spacing(self) -> Spacings:
        """Distance of neighbouring pixels along the axes for which the file declares it."""
        return self.header.spacing

    @property
    def distances(self) -> Mapping[str, float]:
        """Spacing along Z, Y and X in one unit; empty if it is not known."""
        return distances(self.header.spacing)

    @property
    def units(self) -> GreyUnits:
        """The unit of grey values that the file declares."""
        return self.header.units

    @property
    def validity(self) -> Validity:
        """Which pixels are valid by what the file says."""
        return self.header.validity

    def planes(self) -> Iterator[NDArray[Any]]:
        """Give the pixels of the pages without alpha; can be called again.

        Raises
        ------
        ImageFileError
            At a page that is damaged.
        """
        return (page.pixels for page in self.pages())

    def pages(self) -> Iterator[Page]:
        """Give the pages in their order; can be called again, to start from the first.

        Raises
        ------
        ImageFileError
            At a page that is damaged.
        """
        iterator = self._read_pages()
        for number in range(self.header.pages):
            with decoding(self.path, *self.library_errors):
                page = self._checked(next(iterator, None), number)
            yield page

    def _checked(self, page: Page | None, number: int) -> Page:
        """Refuse a page that does not agree with the header."""
        if page is None:
            raise refusal(self.path, f"ends before page {number + 1}; {_INCOMPLETE}")
        found = page.pixels.shape, page.pixels.dtype, page.alpha is not None
        expected = self.layout.plane_shape, self.dtype, self.header.has_alpha
        if found != expected:
            raise refusal(
                self.path,
                f"has a page {number + 1} that does not agree with its header; {_INCOMPLETE}",
            )
        return page

    def close(self) -> None:
        """Close the file."""
        self._opened.close()


class SinglePageReader(ImageReader):
    """A file with one page, which is decoded when the file is opened."""

    _page: Page

    def _read_pages(self) -> Iterator[Page]:
        yield self._page


class ImageWriter(ABC):
    """A new image file that takes its pages one after the other.

    Parameters
    ----------
    path : Path
        An empty file, or an empty folder.
    header : ImageHeader
        Axes, dtype and metadata of the image; :meth:`problem` must return None for it.
    """

    format: ClassVar[str]

    def __init__(self, path: Path, header: ImageHeader) -> None:
        self.path = path
        self.header = header
        self._opened = ExitStack()
        try:
            self._start()
        except BaseException:
            self._opened.close()
            raise

    def _start(self) -> None:  # noqa: B027 - some formats have nothing before the pages
        """Write all that precedes the pages; resources to close later go into ``self._opened``."""

    @staticmethod
    @abstractmethod
    def problem(header: ImageHeader) -> str | None:
        """Return why the format cannot hold the image and what to do, or None if it can."""

    @abstractmethod
    def write(self, page: Page) -> None:
        """Write the next page."""

    def close(self) -> None:
        """Finish the file, or close it as it is if not all pages were written."""
        self._opened.close()

    @property
    def notes(self) -> tuple[str, ...]:
        """Changes besides the pixels, in words for the user."""
        return ()


def collected(reader: ImageReader) -> ImageFile:
    """Return the whole file in memory."""
    header, layout = reader.header, reader.layout
    with decoding(reader.path):
        pixels = np.empty((header.pages, *layout.plane_shape), header.dtype)
        alpha = np.empty((header.pages, *layout.size), header.dtype) if header.has_alpha else None
    for number, page in enumerate(reader.pages()):
        pixels[number] = page.pixels
        if alpha is not None and page.alpha is not None:
            alpha[number] = page.alpha
    return ImageFile(
        pixels=pixels.reshape(header.shape),
        axes=header.axes,
        alpha=None if alpha is None else alpha.reshape(*layout.plane_grid, *layout.size),
        spacing=header.spacing,
        nodata=header.nodata,
        mask=header.mask,
        units=header.units,
        metadata=header.metadata,
        notes=header.notes,
    )


def pixel_limit() -> int:
    """Return the largest number of pixels of a compressed page; Pillow's own, zero for none."""
    return 2 * (Image.MAX_IMAGE_PIXELS or 0)


def refuse_bomb(path: Path, shape: tuple[int, ...]) -> None:
    """Refuse a compressed page that is larger than the limit."""
    limit = pixel_limit()
    if limit and prod(shape) > limit:
        raise refusal(
            path,
            "has more pixels on a page than the limit against decompression bombs allows, "
            f"{limit}; cut it into parts, or save it without compression",
        )


def refuse_missing_bytes(path: Path, needed: int, there: int, *, compressed: bool) -> None:
    """Refuse a file whose bytes cannot be all of its pixels, before memory is taken for them."""
    if needed > (there * _LARGEST_RATIO if compressed else there):
        raise refusal(path, f"claims {needed} bytes of pixels in {there}; {_INCOMPLETE}")


def refuse_no_pixels(path: Path, shape: tuple[int, ...]) -> None:
    """Refuse an image one of whose axes has no length."""
    if min(shape) < 1:
        raise refusal(path, f"has an image without pixels: its shape is {shape}")


def native(dtype: np.dtype[Any]) -> np.dtype[Any]:
    """Return the dtype in the byte order of this machine."""
    return dtype.newbyteorder("=")


def refuse_dtype(path: Path, dtype: np.dtype[Any]) -> None:
    """Refuse types of numbers that are not supported."""
    if dtype.kind not in "iuf" or dtype.itemsize > 8:
        raise refusal(
            path,
            f"has values of the type {dtype.name}; supported are integers of 8, 16, 32 and 64 bits "
            "and floating point of 16, 32 and 64 bits. Convert it to one of these",
        )
