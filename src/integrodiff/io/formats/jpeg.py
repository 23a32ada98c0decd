"""JPEG, through Pillow."""

from __future__ import annotations

import io
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import Any, ClassVar, NamedTuple

import numpy as np
from numpy.typing import NDArray
from PIL import Image, JpegImagePlugin

from integrodiff.io.access import SinglePageReader, refusal
from integrodiff.io.bounded import MOST_METADATA
from integrodiff.io.formats.jpeg_segments import check_jpeg_metadata, refuse_many_scans
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

_LITTLE_LOSS = 95
"""Quality of files that come from another format."""

_MOST_IN_PASSES = 1.8
"""Bytes per pixel; Pillow has memory for two."""

_RGB_NAMES = (82, 71, 66)
"""Names of components that are red, green and blue."""

_SCAN = b"\xff\xda"
_BLOCK = 2**20


class JpegCoding(NamedTuple):
    """How the pixels of a JPEG file are encoded, from which its quality follows.

    Attributes
    ----------
    tables : tuple of tuple of int
        Quantisation of the components, of which the last is for all others.
    sampling : int
        How colours are subsampled, in the numbers of Pillow; 0 is not at all.
    progressive : bool
        Whether the file is decoded in several passes.
    rgb : bool
        Whether red, green and blue are encoded as they are.
    """

    tables: tuple[tuple[int, ...], ...]
    sampling: int = 0
    progressive: bool = False
    rgb: bool = False

    def options(self) -> dict[str, Any]:
        """Return the options of Pillow's writer that encode another image alike."""
        options: dict[str, Any] = {"subsampling": self.sampling, "progressive": self.progressive}
        return {**options, "qtables": self.tables, **({"keep_rgb": True} if self.rgb else {})}


@dataclass(frozen=True, kw_only=True)
class JpegDetails(FormatDetails):
    """The comment of a JPEG file, and how it is encoded."""

    format: ClassVar[str] = "JPEG"
    comment: bytes | None = None
    coding: JpegCoding | None = None

    @property
    def only_here(self) -> str | None:
        """The metadata that is lost in a file of another format, in words for the user."""
        return None if self.comment is None else "the JPEG comment"


class Reader(SinglePageReader):
    """A JPEG file in grey, RGB or CMYK."""

    def _read_header(self) -> ImageHeader:
        _check_metadata(self.path)
        _check_scans(self.path)
        with opened(self.path, "JPEG") as picture:
            if picture.mode not in ("L", "RGB", "CMYK"):
                raise refusal(
                    self.path,
                    f"is a JPEG in {picture.mode}, and only grey, RGB and CMYK are supported; "
                    "convert it to RGB first",
                )
            coding = _coding(picture)
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
                own=JpegDetails(
                    comment=comment if isinstance(comment, bytes) else None, coding=coding
                ),
                inks=picture.mode == "CMYK",
            )
            self._page = Page(np.array(picture))
        return header_of(self._page, metadata, notes)


def _coding(picture: Any) -> JpegCoding | None:
    """Return how a file is encoded, if it says so for all of its components."""
    try:
        tables = tuple(tuple(picture.quantization[number]) for *_, number in picture.layer)
    except LookupError:
        return None
    # Pillow takes the last table for the components that have none.
    while len(tables) > 1 and tables[-1] == tables[-2]:
        tables = tables[:-1]
    sampling = JpegImagePlugin.get_sampling(picture)
    progressive = bool(picture.info.get("progressive"))
    if picture.mode == "CMYK":
        # Pillow writes inks as they are, so a table for colour differences has no use.
        return JpegCoding(tables[:1], 0, progressive)
    names = tuple(name for name, *_ in picture.layer)
    transform = picture.info.get("adobe_transform")
    rgb = len(names) == 3 and (transform == 0 or names == _RGB_NAMES)
    return JpegCoding(tables, max(sampling, 0), progressive, rgb)


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
    """A JPEG file encoded like the one that the image came from, or with little loss."""

    format = "JPEG"

    def _start(self) -> None:
        self._too_long = False

    @staticmethod
    def problem(header: ImageHeader) -> str | None:
        """Return why JPEG cannot hold the image, or None if it can."""
        problem = None if header.metadata.inks else picture_problem("JPEG", header)
        if problem is not None:
            return problem
        if header.pages > 1:
            return f"JPEG cannot hold {header.pages} pages; write TIFF (.tif) instead"
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
        mode = {2: "L", 3: "RGB"}.get(samples.ndim, "") if not metadata.inks else "CMYK"
        picture = Image.frombuffer(mode, samples.shape[1::-1], samples.tobytes(), "raw", mode, 0, 1)
        options |= self._encoding()
        progressive = options.pop("progressive", False)
        picture.save(encoded, format="JPEG", **options)
        # Pillow's memory for several passes is too short for noise of the highest quality.
        most = _MOST_IN_PASSES * prod(picture.size)
        self._too_long = progressive and len(encoded.getvalue()) > most
        if progressive and not self._too_long:
            encoded = io.BytesIO()
            picture.save(encoded, format="JPEG", progressive=True, **options)
        self.path.write_bytes(encoded.getvalue())

    @property
    def notes(self) -> tuple[str, ...]:
        """Changes besides the pixels, in words for the user."""
        words = "the file is not progressive, as its input was, since that would be too long"
        return (words,) if self._too_long else ()

    def _encoding(self) -> dict[str, Any]:
        """Return the options of Pillow's writer that decide on the quality."""
        metadata, own = self.header.metadata, self.header.metadata.own
        coding = own.coding if isinstance(own, JpegDetails) else None
        if coding is not None and metadata.quality is None:
            return coding.options()
        usual: dict[str, Any] = {"subsampling": 0} if coding is None else coding.options()
        usual.pop("qtables", None)
        return {**usual, "quality": metadata.quality or _LITTLE_LOSS}
