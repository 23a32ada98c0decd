"""An image as it lies in a file: its layout, its pages, and what else must survive."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from math import prod
from typing import Any, ClassVar, NamedTuple

import numpy as np
from numpy.typing import NDArray

from integrodiff.layout import Layout

EXIF_SIGNATURE = b"Exif\0\0"
"""What a block of EXIF data begins with in a JPEG file."""


class FormatDetails:
    """What only a file of the same format can take over; each format has its own.

    Attributes
    ----------
    format : str
        Name of the format.
    """

    format: ClassVar[str]

    @property
    def only_here(self) -> str | None:
        """What a file of another format goes without, in words for the user."""
        return None


@dataclass(frozen=True, kw_only=True)
class Metadata:
    """What a file says besides its pixels.

    Attributes
    ----------
    icc_profile, xmp : bytes, optional
        As they are in the file.
    dpi : (float, float), optional
        Horizontal and vertical resolution in pixels per inch.
    orientation : int
        How to turn the image for display, in the numbers of EXIF; 1 is as it is.
    white_is_zero : bool
        Whether the smallest value is displayed as white.
    exif : bytes, optional
        A block of EXIF data that begins with :data:`EXIF_SIGNATURE`.
    own : FormatDetails, optional
        What only a file of the same format can take over.
    """

    icc_profile: bytes | None = None
    xmp: bytes | None = None
    dpi: tuple[float, float] | None = None
    orientation: int = 1
    white_is_zero: bool = False
    exif: bytes | None = None
    own: FormatDetails | None = None


class Page(NamedTuple):
    """One page: pixels, ``(row, column)`` or ``(row, column, channel)``, and alpha if any."""

    pixels: NDArray[Any]
    alpha: NDArray[Any] | None = None

    def with_pixels(self, pixels: NDArray[Any]) -> Page:
        """Return the page with other pixels of the same shape, its alpha unchanged."""
        if pixels.shape != self.pixels.shape:
            raise ValueError(
                f"new pixels must have the shape {self.pixels.shape}, got {pixels.shape}"
            )
        alpha = None if self.alpha is None else self.alpha.astype(pixels.dtype, copy=False)
        return Page(pixels, alpha)

    @property
    def samples(self) -> NDArray[Any]:
        """Pixels and alpha as one array, samples last if there are several."""
        if self.alpha is None:
            return self.pixels
        colours = self.pixels if self.pixels.ndim == 3 else self.pixels[..., None]
        return np.concatenate([colours, self.alpha[..., None]], axis=-1)


@dataclass(frozen=True, kw_only=True)
class ImageHeader:
    """What a file holds, without the pixels.

    Attributes
    ----------
    shape : tuple of int
        ``(*pages, row, column)``, or ``(*pages, row, column, channel)`` in colour. Without pages
        for a single image.
    dtype : dtype
        Of the pixels, in the byte order of this machine.
    channel_axis : int, optional
        -1 in colour, None for grey.
    has_alpha : bool
        Whether there is transparency besides, of the dtype of the pixels.
    metadata : Metadata
        What else is to be carried over to a new file.
    notes : tuple of str
        What reading has to change or leave out, in words for the user.
    """

    shape: tuple[int, ...]
    dtype: np.dtype[Any]
    channel_axis: int | None = None
    has_alpha: bool = False
    metadata: Metadata = field(default_factory=Metadata)
    notes: tuple[str, ...] = ()

    @property
    def layout(self) -> Layout:
        """Axes and shape."""
        plane = "YX" if self.channel_axis is None else "YXS"
        return Layout("Q" * (len(self.shape) - len(plane)) + plane, self.shape)

    @property
    def page_axes(self) -> tuple[int, ...]:
        """Lengths of the axes of pages; empty for a single image."""
        return self.shape[: len(self.shape) - len(self.page_shape)]

    @property
    def page_shape(self) -> tuple[int, ...]:
        """Shape of the pixels of one page."""
        return self.shape[-2 if self.channel_axis is None else -3 :]

    @property
    def size(self) -> tuple[int, int]:
        """Height and width."""
        return self.page_shape[0], self.page_shape[1]

    @property
    def pages(self) -> int:
        """Number of pages."""
        return prod(self.page_axes)

    @property
    def channels(self) -> int:
        """Number of colour channels, without alpha."""
        return 1 if self.channel_axis is None else self.shape[-1]

    @property
    def samples(self) -> int:
        """Number of values per pixel, alpha included."""
        return self.channels + self.has_alpha

    @property
    def nbytes(self) -> int:
        """Size of all pixels and alpha in memory."""
        return self.pages * prod(self.size) * self.samples * self.dtype.itemsize

    @property
    def kind(self) -> str:
        """The colours in words."""
        if self.channels == 3:
            return "RGBA" if self.has_alpha else "RGB"
        name = "grey" if self.channel_axis is None else f"{self.channels} channels"
        return f"{name} with alpha" if self.has_alpha else name

    def with_dtype(self, dtype: np.dtype[Any]) -> ImageHeader:
        """Return the header of the same image with pixels of another dtype."""
        return replace(self, dtype=dtype)


@dataclass(frozen=True, kw_only=True, eq=False)
class ImageFile:
    """An image file with all of its pages in memory.

    Attributes
    ----------
    pixels : ndarray
        In the shape of :attr:`ImageHeader.shape`.
    channel_axis : int, optional
        -1 in colour, None for grey.
    alpha : ndarray, optional
        Transparency, ``(*pages, row, column)``, of the dtype of the pixels.
    metadata : Metadata
        What else is to be carried over to a new file.
    notes : tuple of str
        What reading had to change or leave out, in words for the user.
    """

    pixels: NDArray[Any]
    channel_axis: int | None = None
    alpha: NDArray[Any] | None = None
    metadata: Metadata = field(default_factory=Metadata)
    notes: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        header = self.header
        if self.alpha is not None and self.alpha.shape != (*header.page_axes, *header.size):
            raise ValueError(
                f"alpha of shape {self.alpha.shape} does not belong to pixels of shape "
                f"{self.pixels.shape}"
            )

    @property
    def header(self) -> ImageHeader:
        """What the file holds, without the pixels."""
        return ImageHeader(
            shape=self.pixels.shape,
            dtype=self.pixels.dtype,
            channel_axis=self.channel_axis,
            has_alpha=self.alpha is not None,
            metadata=self.metadata,
            notes=self.notes,
        )

    def __iter__(self) -> Iterator[Page]:
        """Give the pages in their order."""
        for index in np.ndindex(*self.header.page_axes):
            yield Page(self.pixels[index], None if self.alpha is None else self.alpha[index])

    def with_pixels(self, pixels: NDArray[Any]) -> ImageFile:
        """Return the image with other pixels of the same shape, all else unchanged."""
        changed = Page(self.pixels, self.alpha).with_pixels(pixels)
        return replace(self, pixels=changed.pixels, alpha=changed.alpha)
