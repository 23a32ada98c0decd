"""Small images and image files for tests, also of kinds that Pillow does not write."""

from __future__ import annotations

import struct
import zlib
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from integrodiff.learning.images import CleanImages

HEIGHT, WIDTH = 20, 24
ICC_PROFILE = bytes(range(256)) * 3
XMP = b'<x:xmpmeta xmlns:x="adobe:ns:meta/">grain</x:xmpmeta>'


def values(*shape: int, dtype: str = "uint8") -> NDArray[Any]:
    """Random grey values over the whole range of a dtype."""
    rng = np.random.default_rng(7)
    if np.issubdtype(dtype, np.integer):
        limits = np.iinfo(dtype)
        return rng.integers(limits.min, limits.max, shape, dtype=dtype, endpoint=True)
    return rng.normal(0, 3, shape).astype(dtype)


def crops(count: int | None = None) -> CleanImages:
    """Two small images for training and evaluation: discs on ramps."""
    y, x = np.mgrid[:24, :24]
    images = [40 + 2 * x + k * y + 90 * ((y - 9) ** 2 + (x - 9 - k) ** 2 < 40) for k in (1, 3)]
    pixels = np.array(images[:count], np.float32)
    return CleanImages(pixels, ("a", "b")[: len(pixels)], "two discs")


def exif(orientation: int = 6) -> bytes:
    """Return EXIF data of a camera that was held sideways."""
    tags = Image.Exif()
    tags[0x0112] = orientation
    tags[0x010F] = "a camera"
    return tags.tobytes()


def png_bytes(samples: bytes, *, depth: int, colour: int, chunks: bytes = b"") -> bytes:
    """Return a PNG file of kinds that Pillow does not write."""
    header = struct.pack(">IIBBBBB", WIDTH, HEIGHT, depth, colour, 0, 0, 0)
    stride = len(samples) // HEIGHT
    rows = [b"\0" + samples[i : i + stride] for i in range(0, len(samples), stride)]
    return b"".join(
        [
            b"\x89PNG\r\n\x1a\n",
            chunk(b"IHDR", header),
            chunks,
            chunk(b"IDAT", zlib.compress(b"".join(rows))),
            chunk(b"IEND", b""),
        ]
    )


def chunk(kind: bytes, data: bytes) -> bytes:
    """Return a chunk of a PNG file."""
    return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))
