"""JPEG, through Pillow."""

from __future__ import annotations

import io
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from integrodiff.io.access import SinglePageReader, refusal
from integrodiff.io.bounded import MOST_METADATA
from integrodiff.io.formats.jpeg_size import check_jpeg_metadata, refuse_many_scans
from integrodiff.io.formats.pillow import (
    PillowWriter,
    common_metadata,
    header_of,
    opened,
    picture_problem,
    resolution,
)
from integrodiff.io.image import FormatDetails, ImageHeader, Metadata, Page

_LONGEST_EXIF = 65533
"""Bytes that fit into one segment of a file, beside their number."""

_SCAN = b"\xff\xda"
_BLOCK = 2**20


@dataclass(frozen=True, kw_only=True)
class JpegDetails(FormatDetails):
    """The comment of a JPEG file."""

    format: ClassVar[str] = "JPEG"
    comment: bytes | None = None

    @property
    def only_here(self) -> str | None:
        """The metadata that is lost in a file of another format, in words for the user."""
        return None if self.comment is None else "the JPEG comment"


class Reader(SinglePageReader):
    """A JPEG file in grey or RGB."""

    def _read_header(self) -> ImageHeader:
        _check_metadata(self.path)
        _check_scans(self.path)
        with opened(self.path, "JPEG") as picture:
            if picture.mode not in ("L", "RGB"):
                raise refusal(
                    self.path,
                    f"is a JPEG in {picture.mode}, and only grey and RGB are supported; convert "
                    "it to RGB first",
                )
            notes: tuple[str, ...] = ()
            if getattr(picture, "n_frames", 1) > 1:
                notes = (
                    "the file holds further pictures, such as previews; only the first is read",
                )
            picture.load()
            info = picture.info
            comment = info.get("comment")
            metadata = Metadata(
                **common_metadata(picture),
                # Where the file has no resolution, Pillow makes one up: 72 dpi.
                dpi=resolution(picture) if info.get("jfif_unit") in (1, 2) else None,
                own=JpegDetails(comment=comment if isinstance(comment, bytes) else None),
            )
            self._page = Page(np.array(picture))
        return header_of(self._page, metadata, notes)


def _check_metadata(path: Path) -> None:
    """Refuse a file whose metadata take too much memory or time."""
    with path.open("rb") as stream:
        head = stream.read(MOST_METADATA + 1)
    try:
        check_jpeg_metadata(head)
    except ValueError as error:
        raise refusal(path, f"{error}; save it again without them") from error


def _check_scans(path: Path) -> None:
    """Refuse a file that is decoded again and again: each scan goes over the whole image."""
    count, last = 0, b""
    with path.open("rb") as stream:
        while block := stream.read(_BLOCK):
            # In compressed data this byte is followed by zero or the number of a restart.
            count += (last + block).count(_SCAN)
            last = block[-1:]
    try:
        refuse_many_scans(count)
    except ValueError as error:
        raise refusal(path, f"{error}; save it again") from error


class Writer(PillowWriter):
    """A JPEG file with little loss."""

    format = "JPEG"

    @staticmethod
    def problem(header: ImageHeader) -> str | None:
        """Return why JPEG cannot hold the image, or None if it can."""
        if (problem := picture_problem("JPEG", header)) is not None:
            return problem
        if header.dtype != np.uint8:
            remedy = "PNG or TIFF" if header.dtype == np.uint16 else "TIFF"
            return f"JPEG holds 8 bits only, not {header.dtype}; write {remedy} instead"
        if header.has_alpha:
            return "JPEG cannot hold an alpha channel; write PNG or TIFF instead"
        if len(header.metadata.exif or b"") > _LONGEST_EXIF:
            return "the EXIF data are too long for JPEG; write PNG or TIFF instead"
        return None

    def _save(self, samples: NDArray[Any]) -> None:
        options = self._options()
        metadata = self.header.metadata
        if isinstance(metadata.own, JpegDetails) and metadata.own.comment is not None:
            options["comment"] = metadata.own.comment
        if metadata.xmp is not None:
            options["xmp"] = metadata.xmp
        # Not to the file itself: Pillow would not notice that a disk takes only part of the data.
        encoded = io.BytesIO()
        Image.fromarray(samples).save(
            encoded, format="JPEG", quality=95, subsampling="4:4:4", **options
        )
        self.path.write_bytes(encoded.getvalue())
