"""An image as it lies in a file: its axes, its pages, and the metadata that must survive."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from functools import cached_property
from math import prod
from typing import Any, ClassVar, NamedTuple

import numpy as np
from numpy.typing import NDArray

from integrodiff.io.spacing import Spacings
from integrodiff.layout import Layout
from integrodiff.units import GreyUnits
from integrodiff.validity import Mask, Nodata, Validity

EXIF_SIGNATURE = b"Exif\0\0"
"""What a block of EXIF data begins with in a JPEG file."""


class Display(NamedTuple):
    """The grey values that programs show: ``slope * stored + intercept``, with their unit."""

    slope: float = 1.0
    intercept: float = 0.0
    unit: str = ""


class FormatDetails:
    """Metadata that only a file of the same format can hold; each format has its own.

    Attributes
    ----------
    format : str
        Name of the format.
    """

    format: ClassVar[str]

    @property
    def only_here(self) -> str | None:
        """The metadata that is lost in a file of another format, in words for the user."""
        return None

    @property
    def display(self) -> Display:
        """The grey values that programs show."""
        return Display()

    @property
    def window(self) -> tuple[float, float] | None:
        """Black and white on the screen that the file proposes, in values of ``display``."""
        return None


@dataclass(frozen=True, kw_only=True)
class Derivation:
    """How the pixels of a new file were computed from those of another.

    Attributes
    ----------
    words : str
        Method, parameters and noise level, for readers.
    settings : str
        A text that is the same for all files that were computed with the same settings.
    """

    words: str = ""
    settings: str = ""


@dataclass(frozen=True, kw_only=True)
class Metadata:
    """The metadata of a file.

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
    inks : bool
        Whether the samples are amounts of cyan, magenta, yellow and black ink.
    premultiplied : bool
        Whether colours are multiplied by alpha.
    exif : bytes, optional
        A block of EXIF data that begins with :data:`EXIF_SIGNATURE`.
    own : FormatDetails, optional
        Metadata that only a file of the same format can hold.
    derivation : Derivation, optional
        How the pixels were computed, for formats that say so.
    quality : int, optional
        Quality from 1 to 100 that was asked for, for formats with loss. Without it a file of the
        format that it came from has the quality of the original where that can be found out.
    """

    icc_profile: bytes | None = None
    xmp: bytes | None = None
    dpi: tuple[float, float] | None = None
    orientation: int = 1
    white_is_zero: bool = False
    inks: bool = False
    premultiplied: bool = False
    exif: bytes | None = None
    own: FormatDetails | None = None
    derivation: Derivation | None = None
    quality: int | None = None


class Page(NamedTuple):
    """One plane of an image, ``(Y, X)`` or ``(Y, X, S)``.

    Attributes
    ----------
    pixels : ndarray
        The grey values.
    alpha : ndarray, optional
        Transparency.
    valid : array of bool, optional
        False at pixels whose values are to be stored as they are, whatever they are.
    """

    pixels: NDArray[Any]
    alpha: NDArray[Any] | None = None
    valid: Mask | None = None

    def with_pixels(self, pixels: NDArray[Any]) -> Page:
        """Return the page with other pixels of the same shape, its alpha unchanged."""
        if pixels.shape != self.pixels.shape:
            raise ValueError(
                f"new pixels must have the shape {self.pixels.shape}, got {pixels.shape}"
            )
        alpha = None if self.alpha is None else self.alpha.astype(pixels.dtype, copy=False)
        return Page(pixels, alpha, self.valid)

    @property
    def samples(self) -> NDArray[Any]:
        """Pixels and alpha as one array, samples last if there are several."""
        if self.alpha is None:
            return self.pixels
        colours = self.pixels if self.pixels.ndim == 3 else self.pixels[..., None]
        return np.concatenate([colours, self.alpha[..., None]], axis=-1)


@dataclass(frozen=True, kw_only=True)
class ImageHeader:
    """All that a file holds, except for the pixels.

    Attributes
    ----------
    shape : tuple of int
        Length of each axis.
    dtype : dtype
        Of the pixels, in the byte order of this machine.
    axes : str
        The letters of :mod:`integrodiff.layout`: those that planes are counted along, then
        ``YX`` for grey images and ``YXS`` for images with several samples per pixel.
    has_alpha : bool
        Whether there is transparency besides the pixels, of the same dtype.
    spacing : mapping from str to Spacing
        Distance of neighbouring pixels along the axes for which the file declares it.
    nodata : tuple of Nodata
        Grey values that mark invalid pixels, as the file declares them.
    mask : array of bool, optional
        Valid pixels of every plane, if the file has a mask.
    units : GreyUnits
        What the grey values stand for.
    metadata : Metadata
        What else is to be carried over to a new file.
    notes : tuple of str
        What reading has to change or leave out, in words for the user.
    no_volume : str, optional
        Why pages that seem to be slices are not those of a volume, and what to do.
    """

    shape: tuple[int, ...]
    dtype: np.dtype[Any]
    axes: str
    has_alpha: bool = False
    spacing: Spacings = field(default_factory=dict)
    nodata: tuple[Nodata, ...] = ()
    mask: Mask | None = field(default=None, compare=False)
    units: GreyUnits = field(default_factory=GreyUnits)
    metadata: Metadata = field(default_factory=Metadata)
    notes: tuple[str, ...] = ()
    no_volume: str | None = None

    def __post_init__(self) -> None:
        if self.layout != self.layout.canonical:
            raise ValueError(f"axes {self.axes!r} must end in YX or YXS")

    @cached_property
    def layout(self) -> Layout:
        """Axes and shape."""
        return Layout(self.axes, self.shape)

    @property
    def size(self) -> tuple[int, int]:
        """Height and width."""
        return self.layout.size

    @property
    def pages(self) -> int:
        """Number of pages, one for each plane."""
        return self.layout.plane_count

    @property
    def display(self) -> Display:
        """The grey values that programs show."""
        own = self.metadata.own
        return Display() if own is None else own.display

    @property
    def window(self) -> tuple[float, float] | None:
        """Black and white on the screen that the file proposes, in values of ``display``."""
        own = self.metadata.own
        return None if own is None else own.window

    @property
    def values_per_pixel(self) -> int:
        """Number of samples of a pixel, with alpha."""
        return self.layout.samples + self.has_alpha

    @property
    def nbytes(self) -> int:
        """Size of all pixels and alpha in memory."""
        return self.pages * prod(self.size) * self.values_per_pixel * self.dtype.itemsize

    @property
    def kind(self) -> str:
        """The colours in words."""
        samples = self.layout.samples
        if self.metadata.inks:
            return "CMYK with alpha" if self.has_alpha else "CMYK"
        if samples == 3:
            return "RGBA" if self.has_alpha else "RGB"
        name = f"{samples} samples" if self.layout.has_samples else "grey"
        return f"{name} with alpha" if self.has_alpha else name

    @property
    def validity(self) -> Validity:
        """Which pixels are valid by what the file says."""
        rules = Validity(nodata=self.nodata)
        if self.mask is None:
            return rules
        return rules.with_mask([self.mask] * self.pages, "mask in the file")

    def with_derivation(self, derivation: Derivation) -> ImageHeader:
        """Return the header of an image that was computed from this one."""
        return replace(self, metadata=replace(self.metadata, derivation=derivation))

    def with_quality(self, quality: int | None) -> ImageHeader:
        """Return the header of the same image, to be written with a quality if it is given."""
        if quality is None:
            return self
        return replace(self, metadata=replace(self.metadata, quality=quality))

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
    axes : str
        As in :class:`ImageHeader`. By default the last two axes are rows and columns, and those
        before them count pages.
    alpha : ndarray, optional
        Transparency, of the dtype of the pixels and with their axes but for S.
    spacing, nodata, mask, units, metadata, notes
        As in :class:`ImageHeader`.
    """

    pixels: NDArray[Any]
    axes: str = ""
    alpha: NDArray[Any] | None = None
    spacing: Spacings = field(default_factory=dict)
    nodata: tuple[Nodata, ...] = ()
    mask: Mask | None = None
    units: GreyUnits = field(default_factory=GreyUnits)
    metadata: Metadata = field(default_factory=Metadata)
    notes: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if not self.axes:
            object.__setattr__(self, "axes", "Q" * (self.pixels.ndim - 2) + "YX")
        layout = self.header.layout
        if self.alpha is not None and self.alpha.shape != (*layout.plane_grid, *layout.size):
            raise ValueError(
                f"alpha of shape {self.alpha.shape} does not belong to pixels of shape "
                f"{self.pixels.shape}"
            )

    @cached_property
    def header(self) -> ImageHeader:
        """All that the file holds, except for the pixels."""
        return ImageHeader(
            shape=self.pixels.shape,
            dtype=self.pixels.dtype,
            axes=self.axes,
            has_alpha=self.alpha is not None,
            spacing=self.spacing,
            nodata=self.nodata,
            mask=self.mask,
            units=self.units,
            metadata=self.metadata,
            notes=self.notes,
        )

    def __iter__(self) -> Iterator[Page]:
        """Give the pages in their order."""
        for index in np.ndindex(*self.header.layout.plane_grid):
            yield Page(self.pixels[index], None if self.alpha is None else self.alpha[index])

    def with_pixels(self, pixels: NDArray[Any]) -> ImageFile:
        """Return the image with other pixels of the same shape, all else unchanged."""
        changed = Page(self.pixels, self.alpha).with_pixels(pixels)
        return replace(self, pixels=changed.pixels, alpha=changed.alpha)
