"""Reading and writing image files page by page: what all formats share."""

from __future__ import annotations

import warnings
from abc import ABC, abstractmethod
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from math import prod
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from integrodiff.errors import ImageFileError
from integrodiff.io.image import ImageFile, ImageHeader, Page
from integrodiff.layout import Layout

# No compression that is read here makes the data of a noisy image smaller by more than this.
_LARGEST_RATIO = 1500

_INCOMPLETE = "it is damaged or incomplete. Get it again from its source"


class OutputFileError(ImageFileError):
    """An image file cannot be written."""


def refusal(path: Path, problem: str) -> ImageFileError:
    """Return the error for a file; the problem says what is wrong and what to do."""
    return ImageFileError(f"{path}: {problem}")


def output_refusal(path: Path, problem: str) -> OutputFileError:
    """Return the error for a file that is to be written."""
    return OutputFileError(f"{path}: {problem}")


@contextmanager
def decoding(path: Path) -> Iterator[None]:
    """Turn all that a decoder raises over bad data into one error that names the file."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    except ImageFileError:
        raise
    except MemoryError as error:
        raise refusal(path, "does not fit into memory; cut it into parts") from error
    except Exception as error:
        # Damaged files make decoders raise nearly anything, not only what they document.
        reason = " ".join(str(error).split())[:300] or type(error).__name__
        raise refusal(
            path,
            f"cannot be decoded ({reason}); it is damaged or incomplete. Get it again from its "
            "source",
        ) from error


class ImageReader(ABC):
    """An open image file: what it holds, and its pages one after the other.

    Parameters
    ----------
    path : Path
        The file.

    Attributes
    ----------
    header : ImageHeader
        What the file holds.

    Raises
    ------
    ImageFileError
        If the file is damaged or holds something that cannot be denoised.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._opened = ExitStack()
        try:
            with decoding(path):
                self.header = self._read_header()
        except BaseException:
            self.close()
            raise

    @abstractmethod
    def _read_header(self) -> ImageHeader:
        """Open the file; what is to be closed goes into ``self._opened``."""

    @abstractmethod
    def _read_pages(self) -> Iterator[Page]:
        """Give the pages from the first on."""

    def pages(self) -> Iterator[Page]:
        """Give the pages in their order; can be called again, to start from the first.

        Raises
        ------
        ImageFileError
            At a page that is damaged.
        """
        iterator = self._read_pages()
        for number in range(self.header.pages):
            with decoding(self.path):
                page = self._checked(next(iterator, None), number)
            yield page

    def _checked(self, page: Page | None, number: int) -> Page:
        """Refuse a page that is not what the header said."""
        if page is None:
            raise refusal(self.path, f"ends before page {number + 1}; {_INCOMPLETE}")
        found = page.pixels.shape, page.pixels.dtype, page.alpha is not None
        expected = self.header.page_shape, self.header.dtype, self.header.has_alpha
        if found != expected:
            raise refusal(
                self.path, f"has a page {number + 1} that is not like its header; {_INCOMPLETE}"
            )
        return page

    @property
    def layout(self) -> Layout:
        """Axes and shape."""
        return self.header.layout

    @property
    def dtype(self) -> np.dtype[Any]:
        """Type of the grey values."""
        return self.header.dtype

    def planes(self) -> Iterator[NDArray[Any]]:
        """Give the pixels of all pages in their order, without alpha."""
        return (page.pixels for page in self.pages())

    def close(self) -> None:
        """Close the file."""
        self._opened.close()


class SinglePageReader(ImageReader):
    """A file of one page, which is decoded when it is opened."""

    _page: Page

    def _read_pages(self) -> Iterator[Page]:
        yield self._page


class ImageWriter(ABC):
    """A new image file that takes its pages one after the other.

    Parameters
    ----------
    path : Path
        The file, which is there already and empty, or the folder.
    header : ImageHeader
        What it will hold. :meth:`problem` has nothing against it.
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
        """Write what comes before the pages; what is to be closed goes into ``self._opened``."""

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
        """What was changed besides the pixels, in words for the user."""
        return ()


def collected(reader: ImageReader) -> ImageFile:
    """Return the whole file in memory."""
    header = reader.header
    with decoding(reader.path):
        pixels = np.empty((header.pages, *header.page_shape), header.dtype)
        alpha = np.empty((header.pages, *header.size), header.dtype) if header.has_alpha else None
    for number, page in enumerate(reader.pages()):
        pixels[number] = page.pixels
        if alpha is not None and page.alpha is not None:
            alpha[number] = page.alpha
    return ImageFile(
        pixels=pixels.reshape(header.shape),
        channel_axis=header.channel_axis,
        alpha=None if alpha is None else alpha.reshape(*header.page_axes, *header.size),
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
    """Refuse numbers that are no grey values."""
    if dtype.kind not in "iuf" or dtype.itemsize > 8:
        raise refusal(
            path,
            f"has values of the type {dtype.name}; supported are integers of 8, 16, 32 and 64 bits "
            "and floating point of 16, 32 and 64 bits. Convert it to one of these",
        )
