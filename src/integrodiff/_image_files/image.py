"""An image as it lies in a file: pixels, alpha, and what else must survive."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal, NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

from integrodiff.errors import ImageFileError

TiffTagTuple: TypeAlias = tuple[int, int, int, Any, bool]
"""Code, data type, count, value and ``False``, as tifffile wants tags to write."""

# Orientation, XMP and ICC profile have their places in PNG and JPEG; the software that wrote the
# TIFF file has not written the other one.
_TAGS_FOR_ALL = (274, 700, 34675, 305)


class TiffPageTags(NamedTuple):
    """What one page of a TIFF file says about itself, besides its layout."""

    tags: tuple[TiffTagTuple, ...] = ()
    resolution: tuple[Any, Any] | None = None
    resolution_unit: int = 1


@dataclass(frozen=True, kw_only=True)
class TiffDetails:
    """How a TIFF file stores its pages, so that another can be stored alike."""

    photometric: int
    planar: bool = False
    alpha_kind: int = 2
    compression: int = 8
    predictor: int = 1
    byteorder: Literal["<", ">"] = "<"
    big: bool = False
    pages: tuple[TiffPageTags, ...] = ()

    @property
    def white_is_zero(self) -> bool:
        """Whether the smallest value is displayed as white."""
        return self.photometric == 0

    @property
    def says_more(self) -> bool:
        """Whether there are tags that only another TIFF file can take over."""
        return any(
            code not in _TAGS_FOR_ALL and not str(value).startswith('b\'{"shape"')
            for page in self.pages
            for code, _, _, value, _ in page.tags
        )


@dataclass(frozen=True, kw_only=True)
class Metadata:
    """What a file says besides its pixels. The first five travel between all formats.

    Attributes
    ----------
    icc_profile, xmp : bytes, optional
        As they are in the file.
    dpi : (float, float), optional
        Horizontal and vertical resolution in pixels per inch.
    orientation : int
        How to turn the image for display, in the numbers of EXIF; 1 is as it is.
    exif : bytes, optional
        PNG and JPEG only; of it, TIFF gets the orientation.
    comment : bytes, optional
        Between JPEG files only.
    png_chunks : tuple of (bytes, bytes)
        Between PNG files only: text and colour space, as type and data.
    tiff : TiffDetails, optional
        Between TIFF files only.
    """

    icc_profile: bytes | None = None
    xmp: bytes | None = None
    dpi: tuple[float, float] | None = None
    orientation: int = 1
    exif: bytes | None = None
    comment: bytes | None = None
    png_chunks: tuple[tuple[bytes, bytes], ...] = ()
    tiff: TiffDetails | None = None


@dataclass(frozen=True, kw_only=True, eq=False)
class ImageFile:
    """The content of an image file.

    Attributes
    ----------
    pixels : ndarray
        ``(*pages, row, column)``, or ``(*pages, row, column, channel)`` in colour. Without pages
        for a single image.
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
        if self.alpha is not None and self.alpha.shape != (*self.page_axes, *self.size):
            raise ValueError(
                f"alpha of shape {self.alpha.shape} does not belong to pixels of shape "
                f"{self.pixels.shape}"
            )

    @property
    def page_axes(self) -> tuple[int, ...]:
        """Lengths of the axes of pages; empty for a single image."""
        return self.pixels.shape[: self.pixels.ndim - len(self.page_shape)]

    @property
    def page_shape(self) -> tuple[int, ...]:
        """Shape of the pixels of one page."""
        return self.pixels.shape[-2 if self.channel_axis is None else -3 :]

    @property
    def size(self) -> tuple[int, int]:
        """Height and width."""
        return self.page_shape[0], self.page_shape[1]

    @property
    def pages(self) -> int:
        """Number of pages."""
        return int(np.prod(self.page_axes, dtype=np.int64))

    @property
    def channels(self) -> int:
        """Number of colour channels, without alpha."""
        return 1 if self.channel_axis is None else self.pixels.shape[-1]

    @property
    def kind(self) -> str:
        """The colours in words."""
        if self.channels == 3:
            return "RGB" if self.alpha is None else "RGBA"
        name = "grey" if self.channel_axis is None else f"{self.channels} channels"
        return name if self.alpha is None else f"{name} with alpha"

    def with_pixels(self, pixels: NDArray[Any]) -> ImageFile:
        """Return the image with other pixels of the same shape, all else unchanged."""
        if pixels.shape != self.pixels.shape:
            raise ValueError(
                f"new pixels must have the shape {self.pixels.shape}, got {pixels.shape}"
            )
        alpha = None if self.alpha is None else self.alpha.astype(pixels.dtype, copy=False)
        return replace(self, pixels=pixels, alpha=alpha)


def refusal(path: Path, problem: str) -> ImageFileError:
    """Return the error for a file; the problem says what is wrong and what to do."""
    return ImageFileError(f"{path}: {problem}")


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
        raise refusal(
            path,
            f"cannot be decoded ({error}); it is damaged or incomplete. Get it again from its "
            "source",
        ) from error


def joined_samples(image: ImageFile) -> NDArray[Any]:
    """Return pixels and alpha as one array, samples last if there are several."""
    if image.alpha is None:
        return image.pixels
    colours = image.pixels if image.channel_axis == -1 else image.pixels[..., None]
    return np.concatenate([colours, image.alpha[..., None]], axis=-1)
