"""Encoded frames of DICOM files, looked at before they are decoded.

The decoders take the size of a frame from its data, and not from the elements of the file. What a
frame holds is therefore compared with its place in the image first.
"""

from __future__ import annotations

import io
import struct
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, BinaryIO

from pydicom import Dataset, dcmread
from pydicom.encaps import generate_frames, get_frame, parse_basic_offsets, parse_fragments
from pydicom.uid import (
    HTJ2K,
    JPEG2000,
    UID,
    HTJ2KLossless,
    HTJ2KLosslessRPCL,
    JPEG2000Lossless,
    RLELossless,
)

from integrodiff.io.bounded import MOST_METADATA, TooLargeError
from integrodiff.io.formats.jpeg_segments import check_jpeg_metadata, jpeg_size, refuse_many_scans

_JPEG_2000 = (JPEG2000, JPEG2000Lossless, HTJ2K, HTJ2KLossless, HTJ2KLosslessRPCL)
_CODESTREAM = b"\xff\x4f\xff\x51"
_JPEG = b"\xff\xd8"
_SCAN = b"\xff\xda"
_ELEMENT = 12
"""Bytes of the tag, the type and the length before the frames."""

_RLE_HEAD = struct.Struct("<16I")
_MOST_PADDING = 128
"""Bytes that an encoder may add to a segment: one run."""


class BoundedFile(io.BufferedReader):
    """A file that never takes memory for more bytes than it has.

    A length in a damaged file may be four gigabytes, and the standard library takes as much before
    it reads.
    """

    def __init__(self, path: Path) -> None:
        super().__init__(io.FileIO(path))
        self._size = path.stat().st_size

    def read(self, size: int | None = -1, /) -> bytes:
        """Read some bytes, or all."""
        if size is not None and size > io.DEFAULT_BUFFER_SIZE:
            size = max(0, min(size, self._size - self.tell()))
        return super().read(size)


def frame_places(stream: BinaryIO, frames: int) -> tuple[list[int], list[int]] | None:
    """Return where compressed frames begin, and their lengths, as in an Extended Offset Table.

    Without a table a decoder looks for every frame from the first one on.

    Parameters
    ----------
    stream : binary file
        A DICOM file with compressed frames.
    frames : int
        Number of frames.

    Returns
    -------
    tuple of lists, optional
        None if a frame is in several parts.
    """
    _seek_frames(stream)
    parse_basic_offsets(stream)
    start = stream.tell()
    found, offsets = parse_fragments(stream)
    if found != frames:
        return None
    lengths = []
    for offset in offsets:
        stream.seek(offset + 4)
        lengths.append(int.from_bytes(stream.read(4), "little"))
    return [offset - start for offset in offsets], lengths


def checked_frames(
    stream: BinaryIO,
    frames: int,
    size: tuple[int, int],
    *,
    order: Sequence[int] | None = None,
    places: tuple[list[int], list[int]] | None = None,
) -> Iterator[None]:
    """Give None after each frame that holds as much as its place in the image.

    Parameters
    ----------
    stream : binary file
        A DICOM file with compressed frames.
    frames : int
        Number of frames.
    size : tuple of int
        Rows and columns.
    order : sequence of int, optional
        Numbers of the frames, from zero, in the order in which they are read; by default all in
        the order of the file.
    places : tuple of lists, optional
        What :func:`frame_places` returns, for an order.

    Raises
    ------
    ValueError
        At a frame that holds more.
    """
    dataset = _seek_frames(stream)
    syntax = UID(str(dataset.file_meta.TransferSyntaxUID))
    offsets = places or _extended_offsets(dataset)
    if order is None:
        for frame in generate_frames(stream, number_of_frames=frames, extended_offsets=offsets):
            check_frame(frame, syntax, size)
            yield
        return
    for number in order:
        # Returns to where it began.
        frame = get_frame(stream, number, number_of_frames=frames, extended_offsets=offsets)
        check_frame(frame, syntax, size)
        yield


def _seek_frames(stream: BinaryIO) -> Dataset:
    """Go to the compressed frames of a file, and return the elements before them."""
    stream.seek(0)
    dataset = dcmread(stream, stop_before_pixels=True)
    stream.seek(_ELEMENT, io.SEEK_CUR)
    return dataset


def _extended_offsets(dataset: Dataset) -> Any:
    names = ("ExtendedOffsetTable", "ExtendedOffsetTableLengths")
    found = tuple(dataset.get(name) for name in names)
    return None if None in found else found


def check_frame(frame: bytes, syntax: UID, size: tuple[int, int]) -> None:
    """Refuse a frame that holds more than an image of this size.

    Raises
    ------
    ValueError
        If it does.
    """
    if syntax == RLELossless:
        _check_segments(frame, size[0] * size[1] + _MOST_PADDING)
        return
    if syntax in _JPEG_2000:
        declared = _codestream_size(frame)
    else:
        check_jpeg_metadata(frame[: MOST_METADATA + 1])
        refuse_many_scans(frame.count(_SCAN))
        declared = jpeg_size(frame)
    if declared != size:
        raise ValueError(
            f"has a frame of {declared[1]} x {declared[0]} pixels in place of {size[1]} x {size[0]}"
        )


def _codestream_size(frame: bytes) -> tuple[int, int]:
    """Return the height and width that an image of JPEG 2000 declares."""
    at = frame.find(_CODESTREAM)
    if at < 0 or len(frame) < at + 24:
        raise ValueError("has a frame without an image of JPEG 2000")
    right, bottom, left, top = struct.unpack_from(">4I", frame, at + 8)
    return bottom - top, right - left


def _check_segments(frame: bytes, limit: int) -> None:
    """Refuse run lengths that add up to more than a limit in one of the segments."""
    number, *offsets = _RLE_HEAD.unpack_from(frame)
    if number > len(offsets):
        raise ValueError(f"has a frame with {number} segments")
    ends = [*offsets[1:number], len(frame)]
    for start, end in zip(offsets[:number], ends, strict=True):
        if _unpacked_length(frame[start:end], limit) > limit:
            raise TooLargeError(limit)


def _unpacked_length(segment: bytes, limit: int) -> int:
    """Return the length of a segment without run lengths, as far as the limit."""
    at = length = 0
    while at < len(segment) and length <= limit:
        head = segment[at]
        if head < 128:
            length += head + 1
            at += head + 2
        else:
            length += 257 - head if head > 128 else 0
            at += 2 if head > 128 else 1
    return length
