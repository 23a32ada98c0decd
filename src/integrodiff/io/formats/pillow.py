"""Code shared by the formats of pictures, which are read and written through Pillow."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterator
from contextlib import contextmanager
from math import prod
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from integrodiff.io.access import (
    ImageWriter,
    pixel_limit,
    refusal,
    refuse_missing_bytes,
)
from integrodiff.io.bounded import MOST_METADATA
from integrodiff.io.formats.exif import ORIENTATION, orientation_of
from integrodiff.io.image import EXIF_SIGNATURE, ImageHeader, Metadata, Page


@contextmanager
def opened(path: Path, kind: str) -> Iterator[Image.Image]:
    """Open a file as being of this kind."""
    try:
        picture = Image.open(path, formats=[kind])
    except Image.DecompressionBombError as error:
        raise refusal(
            path,
            "has more pixels than Pillow's limit against decompression bombs allows, "
            f"{pixel_limit()}; cut it into parts, or convert it to an uncompressed TIFF",
        ) from error
    with picture:
        needed = prod(picture.size) * len(picture.getbands())
        refuse_missing_bytes(path, needed, path.stat().st_size, compressed=True)
        yield picture


def refuse_animation(path: Path, kind: str, picture: Image.Image) -> None:
    """Refuse a file of several frames."""
    if getattr(picture, "is_animated", False):
        raise refusal(
            path, f"is an animated {kind}; save its frames as single images or as a TIFF stack"
        )


def header_of(page: Page, metadata: Metadata, notes: tuple[str, ...] = ()) -> ImageHeader:
    """Return the header of a file with this page alone."""
    return ImageHeader(
        shape=page.pixels.shape,
        dtype=page.pixels.dtype,
        axes="YX" if page.pixels.ndim == 2 else "YXS",
        has_alpha=page.alpha is not None,
        metadata=metadata,
        notes=notes,
    )


def refuse_long_file(
    path: Path, pixels: int, most_per_pixel: int, metadata: int = MOST_METADATA
) -> None:
    """Refuse a file with far more bytes than its pixels need, all of which would be read."""
    there, most = path.stat().st_size, metadata + most_per_pixel * pixels
    if there > most:
        raise refusal(
            path, f"has {there} bytes, more than {most} for its {pixels} pixels; save it again"
        )


def refuse_bitmap(path: Path, picture: Image.Image) -> None:
    """Refuse an image of one bit per pixel."""
    if picture.mode == "1":
        raise refusal(
            path,
            "has one bit per pixel. That is a mask or a drawing, not an image with Gaussian "
            "noise; convert it to 8-bit grey first if you mean it",
        )


def page_of(picture: Image.Image) -> tuple[Page, tuple[str, ...]]:
    """Return the pixels of a picture in grey or colour, with or without transparency, and notes.

    Palettes are expanded, to grey values if they have nothing else.
    """
    notes: tuple[str, ...] = ()
    if picture.mode in ("P", "PA") or "transparency" in picture.info:
        had_palette = picture.mode in ("P", "PA")
        picture = picture.convert("RGBA" if picture.has_transparency_data else "RGB")
        samples = np.array(picture)
        if (samples[..., :1] == samples[..., 1:3]).all():
            samples = samples[..., (0, *range(3, samples.shape[-1]))]
            samples = samples[..., 0] if samples.shape[-1] == 1 else samples
        elif had_palette:
            notes = ("the palette was expanded to RGB colours",)
    else:
        samples = np.array(picture)
    if samples.ndim == 3 and samples.shape[-1] in (2, 4):
        colours = samples[..., 0] if samples.shape[-1] == 2 else samples[..., :3]
        alpha = np.ascontiguousarray(samples[..., -1])
        return Page(np.ascontiguousarray(colours), alpha), notes
    return Page(np.ascontiguousarray(samples)), notes


def resolution(picture: Image.Image) -> tuple[float, float] | None:
    """Return the resolution in pixels per inch, if the file has a usable one."""
    dpi = picture.info.get("dpi")
    if not isinstance(dpi, tuple) or not all(0 < value < 1e6 for value in dpi):
        return None
    return float(dpi[0]), float(dpi[1])


def common_metadata(picture: Image.Image) -> dict[str, Any]:
    """Return the metadata that all of these formats hold."""
    icc_profile, exif, xmp = (picture.info.get(name) for name in ("icc_profile", "exif", "xmp"))
    if isinstance(exif, bytes) and not exif.startswith(EXIF_SIGNATURE):
        exif = EXIF_SIGNATURE + exif  # as in JPEG; the writers of the others take it away
    return {
        "icc_profile": icc_profile if isinstance(icc_profile, bytes) else None,
        "exif": exif if isinstance(exif, bytes) else None,
        "xmp": xmp.encode() if isinstance(xmp, str) else xmp,
        "orientation": orientation_of(exif) if isinstance(exif, bytes) else 1,
    }


class PillowWriter(ImageWriter):
    """A file of one page that Pillow writes."""

    def write(self, page: Page) -> None:
        """Write the only page."""
        self._save(self._displayed(page))

    @abstractmethod
    def _save(self, samples: NDArray[Any]) -> None:
        """Write the samples, and the metadata of the header."""

    def _displayed(self, page: Page) -> NDArray[Any]:
        """Return the samples as these formats store them, with zero for black."""
        if self.header.metadata.premultiplied and page.alpha is not None:
            page = page.with_pixels(_straight(page.pixels, page.alpha))
        if self.header.metadata.white_is_zero:
            page = page.with_pixels(np.iinfo(page.pixels.dtype).max - page.pixels)
        return page.samples

    def _options(self) -> dict[str, Any]:
        """Return the options of Pillow's writers that carry metadata over."""
        metadata = self.header.metadata
        exif = metadata.exif
        if exif is None and metadata.orientation != 1:
            fresh = Image.Exif()
            fresh[ORIENTATION] = metadata.orientation
            exif = fresh.tobytes()
        options = {"icc_profile": metadata.icc_profile, "dpi": metadata.dpi, "exif": exif}
        return {name: value for name, value in options.items() if value is not None}


def _straight(pixels: NDArray[Any], alpha: NDArray[Any]) -> NDArray[Any]:
    """Return colours that were multiplied by alpha as they were before."""
    alpha = alpha if pixels.ndim == 2 else alpha[..., None]
    top = np.iinfo(pixels.dtype).max
    values = np.minimum(np.rint(pixels * (top / np.maximum(alpha, 1.0))), top)
    return np.where(alpha == 0, pixels, values).astype(pixels.dtype)


def picture_problem(kind: str, header: ImageHeader) -> str | None:
    """Return why no format for single pictures can hold the image, if so."""
    if header.pages > 1:
        return f"{kind} cannot hold {header.pages} pages; write TIFF (.tif) instead"
    if header.metadata.inks:
        return f"{kind} cannot hold the inks of a CMYK image; write JPEG or TIFF instead"
    if (samples := header.layout.samples) not in (1, 3):
        return f"{kind} cannot hold {samples} channels; write TIFF (.tif) instead"
    return None
