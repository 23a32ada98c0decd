"""What AVIF and HEIC have in common: pictures of 8 bits in a container of boxes, with loss."""

from __future__ import annotations

import struct
from pathlib import Path

import numpy as np

from integrodiff.io.access import pixel_limit
from integrodiff.io.formats.pillow import picture_problem, refuse_long_file
from integrodiff.io.image import ImageHeader

_MOST_PER_PIXEL = 8
"""Bytes of a file for each pixel of its largest picture."""

_BEGINNING = 2**16
LITTLE_LOSS = 90
"""Quality if none is asked for; that of the original cannot be found out."""


def refuse_long_boxes(path: Path) -> bytes:
    """Refuse a file that is too long for its pictures, as it will be read whole; return its head.

    Boxes named ``ispe`` have the sizes of the pictures, usually within the first thousand bytes.
    """
    with path.open("rb") as stream:
        beginning = stream.read(_BEGINNING)
    pixels, at = 0, beginning.find(b"ispe")
    while 0 <= at <= len(beginning) - 16:
        width, height = struct.unpack_from(">II", beginning, at + 8)
        pixels, at = max(pixels, width * height), beginning.find(b"ispe", at + 4)
    limit = pixel_limit()
    refuse_long_file(path, min(pixels, limit) if limit else pixels, _MOST_PER_PIXEL)
    return beginning


def eight_bit_problem(kind: str, header: ImageHeader) -> str | None:
    """Return why a format for colour pictures of 8 bits cannot hold an image, if so."""
    if (problem := picture_problem(kind, header)) is not None:
        return problem
    if header.dtype != np.uint8:
        return f"{kind} is written with 8 bits only, not {header.dtype}; write PNG or TIFF instead"
    if header.layout.samples == 1 and header.has_alpha:
        return f"{kind} cannot hold grey values with alpha; write PNG or TIFF instead"
    return None


def quality_note(header: ImageHeader) -> tuple[str, ...]:
    """Report the quality of a file if none was asked for."""
    quality = header.metadata.quality
    lossy_alpha = ("the alpha channel is compressed with loss too",) if header.has_alpha else ()
    if quality is not None:
        return lossy_alpha
    return (f"written with a quality of {LITTLE_LOSS} of 100; --quality changes it", *lossy_alpha)
