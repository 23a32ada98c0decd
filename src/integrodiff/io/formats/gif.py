"""GIF, through Pillow: single frames of at most 256 colours."""

from __future__ import annotations

import io
import struct
from dataclasses import dataclass
from math import prod
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from integrodiff.io.access import SinglePageReader
from integrodiff.io.formats.pillow import (
    PillowWriter,
    common_metadata,
    header_of,
    opened,
    page_of,
    picture_problem,
    refuse_animation,
    refuse_long_file,
)
from integrodiff.io.image import FormatDetails, ImageHeader, Metadata

_MOST_PER_PIXEL = 4
"""Bytes; data that cannot be compressed have one and a half."""

_MOST_METADATA = 2**20
"""Bytes; Pillow joins the parts of comments one by one."""

_LONGEST = 65535
"""Pixels on a side that GIF can count."""

_COLOURS = 256


@dataclass(frozen=True, kw_only=True)
class GifDetails(FormatDetails):
    """The comment of a GIF file."""

    format: ClassVar[str] = "GIF"
    comment: bytes | None = None

    @property
    def only_here(self) -> str | None:
        """The metadata that is lost in a file of another format, in words for the user."""
        return None if self.comment is None else "the GIF comment"


class Reader(SinglePageReader):
    """A GIF file with one frame."""

    def _read_header(self) -> ImageHeader:
        with self.path.open("rb") as stream:
            size = struct.unpack("<HH", stream.read(10)[6:].ljust(4, b"\0"))
        refuse_long_file(self.path, prod(size), _MOST_PER_PIXEL, _MOST_METADATA)
        with opened(self.path, "GIF") as picture:
            refuse_animation(self.path, "GIF", picture)
            picture.load()
            comment = picture.info.get("comment")
            own = GifDetails(comment=comment if isinstance(comment, bytes) else None)
            metadata = Metadata(**common_metadata(picture), own=own)
            self._page, notes = page_of(picture)
        return header_of(self._page, metadata, notes)


class Writer(PillowWriter):
    """A GIF file: grey values as they are, colours reduced to 256 of them."""

    format = "GIF"

    def _start(self) -> None:
        self._reduced = False

    @staticmethod
    def problem(header: ImageHeader) -> str | None:
        """Return why GIF cannot hold the image, or None if it can."""
        if (problem := picture_problem("GIF", header)) is not None:
            return problem
        if header.dtype != np.uint8:
            return f"GIF holds 8 bits only, not {header.dtype}; write PNG or TIFF instead"
        if header.has_alpha and not isinstance(header.metadata.own, GifDetails):
            return "GIF has no degrees of transparency; write PNG or TIFF instead"
        if max(header.size) > _LONGEST:
            return f"GIF holds {_LONGEST} pixels on a side at most; write PNG or TIFF instead"
        return None

    def _save(self, samples: NDArray[Any]) -> None:
        own = self.header.metadata.own
        options: dict[str, Any] = {}
        if isinstance(own, GifDetails) and own.comment is not None:
            options["comment"] = own.comment
        if self.header.has_alpha:
            # One colour is for pixels that are not there.
            colours = np.ascontiguousarray(
                np.broadcast_to(samples[..., :-1], (*samples.shape[:2], 3))
            )
            picture = self._in_colours(colours, _COLOURS - 1)
            indices = np.where(samples[..., -1] == 0, _COLOURS - 1, np.array(picture))
            palette = (picture.getpalette() or []) + [0] * (3 * _COLOURS)
            picture = Image.fromarray(indices.astype(np.uint8)).convert("P")
            picture.putpalette(palette[: 3 * _COLOURS])
            options["transparency"] = _COLOURS - 1
        elif samples.ndim == 3:
            picture = self._in_colours(samples, _COLOURS)
        else:
            picture = Image.fromarray(samples)
        encoded = io.BytesIO()
        picture.save(encoded, format="GIF", optimize=False, **options)
        self.path.write_bytes(encoded.getvalue())

    def _in_colours(self, samples: NDArray[Any], most: int) -> Image.Image:
        """Return a picture with a palette of some colours."""
        picture = Image.fromarray(samples)
        result = picture.quantize(most, dither=Image.Dither.NONE)
        self._reduced = not np.array_equal(np.array(result.convert("RGB")), samples)
        return result

    @property
    def notes(self) -> tuple[str, ...]:
        """Changes besides the pixels, in words for the user."""
        words = f"GIF holds {_COLOURS} colours, to which the result was reduced; PNG holds them all"
        return (words,) if self._reduced else ()
