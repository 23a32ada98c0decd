"""PNG and JPEG, through Pillow."""

from __future__ import annotations

import struct
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image, PngImagePlugin

from integrodiff._image_files.image import (
    ImageFile,
    Metadata,
    decoding,
    joined_samples,
    refusal,
)

_GREY, _PALETTE = 0, 3
"""Colour types of the PNG header."""

_COPIED_CHUNKS = (b"gAMA", b"cHRM", b"sRGB", b"cICP", b"tEXt", b"zTXt", b"iTXt")
_XMP_KEY = b"XML:com.adobe.xmp"
_ORIENTATION = 0x0112


def read_png(path: Path) -> ImageFile:
    """Read a PNG file of 8 bits, or of 16 bits in grey."""
    depth, colour_type = _png_header(path)
    if depth == 1:
        raise refusal(
            path,
            "has one bit per pixel. That is a mask or a drawing, not an image with Gaussian "
            "noise; convert it to 8-bit grey first if you mean it",
        )
    if depth == 16 and colour_type != _GREY:
        raise refusal(
            path,
            "is a PNG with 16 bits per channel in colour or with alpha, which cannot be read "
            "here without losing the lower 8; convert it to TIFF, which is read in full",
        )
    with _opened(path, "PNG") as picture:
        picture.verify()  # the checksum of every chunk; the file must be opened again after it
    with _opened(path, "PNG") as picture:
        if getattr(picture, "n_frames", 1) > 1:
            raise refusal(
                path, "is an animated PNG; save its frames as single images or as a TIFF stack"
            )
        picture.load()
        pixels, alpha, notes = _png_samples(picture, depth)
        metadata = Metadata(
            **_common_metadata(picture), dpi=_dpi(picture), png_chunks=_chunks(path)
        )
        if isinstance(picture.info.get("aspect"), tuple):
            notes += ("the ratio of pixel height to width in the file is not carried over",)
    return _image(pixels, alpha, metadata, notes)


def read_jpeg(path: Path) -> ImageFile:
    """Read a JPEG file in grey or RGB."""
    with _opened(path, "JPEG") as picture:
        if picture.mode not in ("L", "RGB"):
            raise refusal(
                path,
                f"is a JPEG in {picture.mode}, and only grey and RGB are supported; convert it "
                "to RGB first",
            )
        notes: tuple[str, ...] = ()
        if getattr(picture, "n_frames", 1) > 1:
            notes = ("the file holds further pictures, such as previews; only the first is read",)
        picture.load()
        info = picture.info
        metadata = Metadata(
            **_common_metadata(picture),
            # Where the file has no resolution, Pillow makes one up: 72 dpi.
            dpi=_dpi(picture) if info.get("jfif_unit") in (1, 2) else None,
            comment=info.get("comment"),
        )
        pixels = np.array(picture)
    return _image(pixels, None, metadata, notes)


def write_png(path: Path, image: ImageFile) -> None:
    """Write a PNG file; :func:`integrodiff._image_files.check_output` has agreed to it."""
    metadata = image.metadata
    chunks = PngImagePlugin.PngInfo()
    for kind, data in metadata.png_chunks:
        chunks.add(kind, data)
    if metadata.xmp is not None:
        chunks.add_itxt(_XMP_KEY, metadata.xmp)
    Image.fromarray(_displayed(image)).save(
        path, format="PNG", pnginfo=chunks, **_common_options(metadata)
    )


def write_jpeg(path: Path, image: ImageFile) -> None:
    """Write a JPEG file with little loss; ``check_output`` has agreed to it."""
    options = _common_options(image.metadata)
    for name in ("comment", "xmp"):
        value = getattr(image.metadata, name)
        if value is not None:
            options[name] = value
    Image.fromarray(_displayed(image)).save(
        path, format="JPEG", quality=95, subsampling="4:4:4", **options
    )


@contextmanager
def _opened(path: Path, kind: str) -> Iterator[Image.Image]:
    """Open a file as PNG or JPEG; refuse it if anything goes wrong in the block."""
    with decoding(path):
        try:
            picture = Image.open(path, formats=[kind])
        except Image.DecompressionBombError as error:
            raise refusal(
                path,
                "has more pixels than Pillow's limit against decompression bombs allows, "
                f"{2 * (Image.MAX_IMAGE_PIXELS or 0)}; cut it into parts, or convert it to an "
                "uncompressed TIFF",
            ) from error
        with picture:
            yield picture


def _png_header(path: Path) -> tuple[int, int]:
    """Return bit depth and colour type."""
    with path.open("rb") as stream:
        head = stream.read(26)
    if len(head) < 26 or head[12:16] != b"IHDR":
        raise refusal(path, "is no complete PNG file: its header is damaged or missing")
    return head[24], head[25]


def _png_samples(
    picture: Image.Image, depth: int
) -> tuple[NDArray[Any], NDArray[Any] | None, tuple[str, ...]]:
    """Return pixels, alpha and notes; a palette or a transparent colour is written out."""
    key = picture.info.get("transparency")
    if isinstance(key, str):  # Pillow keeps text chunks, of whatever name, in the same place
        key = None
    if picture.mode == "P":
        expanded = np.array(picture.convert("RGB" if key is None else "RGBA"))
        alpha = None if key is None else expanded[..., 3]
        return expanded[..., :3], alpha, ("the palette was expanded to RGB colours",)
    samples = np.array(picture)
    notes: tuple[str, ...] = ()
    if depth < 8:
        notes = (f"the grey values of {depth} bits were expanded to 8 bits",)
    if picture.mode in ("LA", "RGBA"):
        colours = samples[..., 0] if picture.mode == "LA" else samples[..., :3]
        return colours, samples[..., -1], notes
    if key is None:
        return samples, None, notes
    # Denoised pixels never meet the transparent colour again, so it becomes an alpha channel.
    scale = 255 // (2**depth - 1) if depth < 8 else 1
    transparent = samples == np.multiply(key, scale)
    if samples.ndim == 3:
        transparent = transparent.all(axis=-1)
    opaque = np.iinfo(samples.dtype).max
    alpha = np.where(transparent, 0, opaque).astype(samples.dtype)
    return samples, alpha, (*notes, "the transparent colour was turned into an alpha channel")


def _chunks(path: Path) -> tuple[tuple[bytes, bytes], ...]:
    """Return the chunks of text and colour space of a PNG file that is known to be whole."""

    def found() -> Iterator[tuple[bytes, bytes]]:
        with path.open("rb") as stream:
            stream.seek(8)
            while len(head := stream.read(8)) == 8:
                length, kind = struct.unpack(">I4s", head)
                if kind not in _COPIED_CHUNKS:
                    stream.seek(length + 4, 1)
                    continue
                data = stream.read(length)
                stream.seek(4, 1)
                if not data.startswith(_XMP_KEY + b"\0"):
                    yield kind, data

    return tuple(found())


def _dpi(picture: Image.Image) -> tuple[float, float] | None:
    """Return the resolution, if the file has a usable one."""
    dpi = picture.info.get("dpi")
    if not isinstance(dpi, tuple) or not all(0 < value < 1e6 for value in dpi):
        return None
    return float(dpi[0]), float(dpi[1])


def _common_metadata(picture: Image.Image) -> dict[str, Any]:
    """Return what PNG and JPEG keep in the same way."""
    icc_profile, exif, xmp = (picture.info.get(name) for name in ("icc_profile", "exif", "xmp"))
    try:
        orientation = int(picture.getexif().get(_ORIENTATION, 1))
    except Exception:  # EXIF that cannot be parsed is carried over as it is
        orientation = 1
    return {
        "icc_profile": icc_profile if isinstance(icc_profile, bytes) else None,
        "exif": exif if isinstance(exif, bytes) else None,
        "xmp": xmp.encode() if isinstance(xmp, str) else xmp,
        "orientation": orientation if 1 <= orientation <= 8 else 1,
    }


def _common_options(metadata: Metadata) -> dict[str, Any]:
    """Return the options of Pillow's writers that carry metadata over."""
    exif = metadata.exif
    if exif is None and metadata.orientation != 1:
        fresh = Image.Exif()
        fresh[_ORIENTATION] = metadata.orientation
        exif = fresh.tobytes()
    options = {"icc_profile": metadata.icc_profile, "dpi": metadata.dpi, "exif": exif}
    return {name: value for name, value in options.items() if value is not None}


def _displayed(image: ImageFile) -> NDArray[Any]:
    """Return the samples in the sense of PNG and JPEG, where zero is black."""
    tiff = image.metadata.tiff
    if tiff is None or not tiff.white_is_zero:
        return joined_samples(image)
    largest = np.iinfo(image.pixels.dtype).max
    return joined_samples(image.with_pixels(largest - image.pixels))


def _image(
    pixels: NDArray[Any],
    alpha: NDArray[Any] | None,
    metadata: Metadata,
    notes: tuple[str, ...],
) -> ImageFile:
    channel_axis = -1 if pixels.ndim == 3 else None
    return ImageFile(
        pixels=np.ascontiguousarray(pixels),
        channel_axis=channel_axis,
        alpha=alpha,
        metadata=metadata,
        notes=notes,
    )
