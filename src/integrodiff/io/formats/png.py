"""PNG, through Pillow; with 16 bits in colour, through imagecodecs."""

from __future__ import annotations

import io
import struct
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO, ClassVar

import numpy as np
from numpy.typing import NDArray
from PIL import Image, PngImagePlugin

from integrodiff.install import install_first
from integrodiff.io.access import SinglePageReader, refusal
from integrodiff.io.bounded import MOST_METADATA
from integrodiff.io.formats.pillow import (
    PillowWriter,
    common_metadata,
    header_of,
    opened,
    picture_problem,
    refuse_animation,
    resolution,
)
from integrodiff.io.image import FormatDetails, ImageHeader, Metadata, Page
from integrodiff.io.registry import has_package

_GREY = 0
"""Colour type of the PNG header."""

_COPIED_CHUNKS = (b"gAMA", b"cHRM", b"sRGB", b"cICP", b"tEXt", b"zTXt", b"iTXt")
_XMP_KEY = b"XML:com.adobe.xmp"
_SIGNATURE = 8
_END = b"IEND"
_CRITICAL = (b"IHDR", b"PLTE", b"IDAT", _END)
_SAMPLES = {0: 1, 2: 3, 3: 1, 4: 2, 6: 4}
"""Values per pixel by colour type."""

_INTERLACED = (
    (0, 0, 8, 8),
    (4, 0, 8, 8),
    (0, 4, 4, 8),
    (2, 0, 4, 4),
    (0, 2, 2, 4),
    (1, 0, 2, 2),
    (0, 1, 1, 2),
)
"""First column and row and their steps in each pass of an interlaced file."""

_BLOCK = 2**20
_KEY_NOTE = "the transparent colour was turned into an alpha channel"
_DEEP_COLOUR = "PNG with 16 bits per channel in colour or with alpha"


@dataclass(frozen=True, kw_only=True)
class PngDetails(FormatDetails):
    """Chunks of text and colour space, as type and data."""

    format: ClassVar[str] = "PNG"
    chunks: tuple[tuple[bytes, bytes], ...] = ()

    @property
    def only_here(self) -> str | None:
        """The metadata that is lost in a file of another format, in words for the user."""
        if all(name == b"sRGB" for name, _ in self.chunks):
            return None
        return "text and colour space chunks of the PNG file"


class Reader(SinglePageReader):
    """A PNG file of 8 or 16 bits."""

    def _read_header(self) -> ImageHeader:
        depth, colour_type = _png_header(self.path)
        if depth == 1:
            raise refusal(
                self.path,
                "has one bit per pixel. That is a mask or a drawing, not an image with Gaussian "
                "noise; convert it to 8-bit grey first if you mean it",
            )
        _refuse_long_metadata(self.path)
        deep_colour = depth == 16 and colour_type != _GREY
        if deep_colour and not has_package("imagecodecs"):
            raise refusal(
                self.path,
                f"{install_first(_DEEP_COLOUR, 'imagecodecs', 'codecs')}. Or convert it to TIFF",
            )
        with opened(self.path, "PNG") as picture:
            picture.verify()  # the checksum of every chunk; the file must be opened again after it
        with opened(self.path, "PNG") as picture:
            refuse_animation(self.path, "PNG", picture)
            _refuse_missing_rows(self.path, picture.size, depth, colour_type)
            picture.load()
            samples = _deep_samples(self.path) if deep_colour else None
            self._page, notes = _png_page(picture, depth, samples)
            metadata = Metadata(
                **common_metadata(picture),
                dpi=resolution(picture),
                own=PngDetails(chunks=_chunks(self.path)),
            )
            if isinstance(picture.info.get("aspect"), tuple):
                notes += ("the ratio of pixel height to width in the file is not carried over",)
        return header_of(self._page, metadata, notes)


class Writer(PillowWriter):
    """A PNG file."""

    format = "PNG"

    @staticmethod
    def problem(header: ImageHeader) -> str | None:
        """Return why PNG cannot hold the image, or None if it can."""
        if (problem := picture_problem("PNG", header)) is not None:
            return problem
        if header.dtype not in (np.uint8, np.uint16):
            return (
                "PNG holds integers of 8 or 16 bits without sign, and this image is "
                f"{header.dtype}; write TIFF (.tif) instead"
            )
        if (
            header.dtype == np.uint16
            and header.values_per_pixel > 1
            and not has_package("imagecodecs")
        ):
            return f"{install_first(_DEEP_COLOUR, 'imagecodecs', 'codecs')}. Or write TIFF (.tif)"
        return None

    def _save(self, samples: NDArray[Any]) -> None:
        if samples.dtype != np.uint16 or samples.ndim == 2:
            self._save_by_pillow(self.path, samples)
            return
        from imagecodecs import png_encode

        # Pillow knows how to store metadata, imagecodecs how to store these samples.
        small = io.BytesIO()
        self._save_by_pillow(small, np.zeros((1, 1), np.uint8))
        encoded = png_encode(np.ascontiguousarray(samples))
        extra = [whole for kind, whole in _split(small) if kind not in _CRITICAL]
        with self.path.open("wb") as stream:
            stream.write(encoded[:_SIGNATURE])
            for kind, whole in _split(io.BytesIO(encoded)):
                stream.write(whole)
                if kind == b"IHDR":
                    stream.writelines(extra)

    def _save_by_pillow(self, target: Path | io.BytesIO, samples: NDArray[Any]) -> None:
        metadata = self.header.metadata
        chunks = PngImagePlugin.PngInfo()
        if isinstance(metadata.own, PngDetails):
            for kind, data in metadata.own.chunks:
                chunks.add(kind, data)
        if metadata.xmp is not None:
            chunks.add_itxt(_XMP_KEY, metadata.xmp)
        Image.fromarray(samples).save(target, format="PNG", pnginfo=chunks, **self._options())


def _png_header(path: Path) -> tuple[int, int]:
    """Return bit depth and colour type."""
    with path.open("rb") as stream:
        head = stream.read(26)
    if len(head) < 26 or head[12:16] != b"IHDR":
        raise refusal(path, "is not a complete PNG file: its header is damaged or missing")
    return head[24], head[25]


def _refuse_long_metadata(path: Path) -> None:
    """Refuse a file with metadata that take too much memory."""
    total = 0
    with path.open("rb") as stream:
        stream.seek(_SIGNATURE)
        while len(head := stream.read(8)) == 8:
            length, kind = struct.unpack(">I4s", head)
            total += length if kind != b"IDAT" else 0
            if kind == _END:  # what is behind it is no part of the image
                break
            stream.seek(length + 4, io.SEEK_CUR)
    if total > MOST_METADATA:
        raise refusal(
            path, f"claims {total} bytes of metadata, more than {MOST_METADATA}; save it again"
        )


def _deep_samples(path: Path) -> NDArray[Any]:
    """Return samples of 16 bits, of which Pillow would drop the lower 8."""
    from imagecodecs import png_decode

    data = path.read_bytes()
    # Other chunks are withheld from the decoder, which would print warnings about them.
    kept = (*_CRITICAL, b"tRNS")
    parts = [whole for kind, whole in _split(io.BytesIO(data)) if kind in kept]
    samples: NDArray[Any] = png_decode(data[:_SIGNATURE] + b"".join(parts))
    return samples


def _refuse_missing_rows(path: Path, size: tuple[int, int], depth: int, colour_type: int) -> None:
    """Refuse a file with fewer rows than its header says; Pillow would fill in black ones."""
    bits = depth * _SAMPLES[colour_type]
    with path.open("rb") as stream:
        head = stream.read(29)
        passes = _INTERLACED if head[28] else ((0, 0, 1, 1),)
        needed = 0
        for x, y, step_x, step_y in passes:
            width, height = -((x - size[0]) // step_x), -((y - size[1]) // step_y)
            needed += height * (1 + (width * bits + 7) // 8) if width > 0 and height > 0 else 0
        inflate = zlib.decompressobj()
        for kind, whole in _split(stream):
            rest = whole[8:-4] if kind == b"IDAT" else b""
            while rest and needed > 0 and not inflate.eof:
                needed -= len(inflate.decompress(rest, _BLOCK))
                rest = inflate.unconsumed_tail
    if needed > 0:
        raise refusal(path, "has fewer rows than its header says; it is damaged or incomplete")


def _png_page(
    picture: Image.Image, depth: int, deep: NDArray[Any] | None
) -> tuple[Page, tuple[str, ...]]:
    """Return the page and notes; palettes and transparent colours are expanded."""
    key = picture.info.get("transparency")
    if isinstance(key, str):  # Pillow keeps text chunks, of whatever name, in the same place
        key = None
    if deep is not None:
        # Here the decoder has turned a transparent colour into alpha.
        return _page(deep), () if key is None else (_KEY_NOTE,)
    if picture.mode == "P":
        expanded = np.array(picture.convert("RGB" if key is None else "RGBA"))
        return _page(expanded), ("the palette was expanded to RGB colours",)
    samples = np.array(picture)
    notes: tuple[str, ...] = ()
    if depth < 8:
        notes = (f"the grey values of {depth} bits were expanded to 8 bits",)
    if key is None or picture.mode in ("LA", "RGBA"):
        return _page(samples), notes
    # Denoised pixels no longer equal the transparent colour, so it becomes an alpha channel.
    scale = 255 // (2**depth - 1) if depth < 8 else 1
    transparent = samples == np.multiply(key, scale)
    if samples.ndim == 3:
        transparent = transparent.all(axis=-1)
    opaque = np.iinfo(samples.dtype).max
    alpha = np.where(transparent, 0, opaque).astype(samples.dtype)
    return Page(samples, alpha), (*notes, _KEY_NOTE)


def _page(samples: NDArray[Any]) -> Page:
    """Separate alpha, the last of two or four samples, from the colours."""
    if samples.ndim == 2 or samples.shape[-1] == 3:
        return Page(samples)
    colours = samples[..., 0] if samples.shape[-1] == 2 else samples[..., :3]
    return Page(np.ascontiguousarray(colours), np.ascontiguousarray(samples[..., -1]))


def _split(stream: BinaryIO) -> Iterator[tuple[bytes, bytes]]:
    """Give the chunks of a PNG file that is known to be whole, as type and all bytes."""
    stream.seek(_SIGNATURE)
    while len(head := stream.read(8)) == 8:
        length, kind = struct.unpack(">I4s", head)
        yield kind, head + stream.read(length + 4)
        if kind == _END:
            return


def _chunks(path: Path) -> tuple[tuple[bytes, bytes], ...]:
    """Return the chunks of text and colour space of a PNG file that is known to be whole."""
    with path.open("rb") as stream:
        copied = [(kind, whole[8:-4]) for kind, whole in _split(stream) if kind in _COPIED_CHUNKS]
    return tuple(part for part in copied if not part[1].startswith(_XMP_KEY + b"\0"))
