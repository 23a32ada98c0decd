"""What a JPEG image declares before its pixels, looked at without decoding anything.

Pillow takes all segments into memory, joins those of EXIF data one by one, and may copy all their
values, before it says anything about an image. So they are counted first.
"""

from __future__ import annotations

from collections.abc import Iterator

from PIL.JpegImagePlugin import MARKER

from integrodiff.io.bounded import MOST_METADATA
from integrodiff.io.formats.exif import expanded_size
from integrodiff.io.image import EXIF_SIGNATURE

_FRAMES = frozenset(range(0xC0, 0xD0)) - {0xC4, 0xC8, 0xCC} | {0xF7}
"""Markers before the size: those of all processes, and that of JPEG-LS."""

_ALONE = frozenset(range(0xD0, 0xD9)) | {0x01, 0xFF}
"""Markers without a segment, and fill bytes."""

_SCAN, _FILL = 0xDA, 0xFF
_NOTHING = (None,)

_MOST_SEGMENTS = 2000
"""A colour profile takes 255 at most, and 32 MiB of other data 512."""

_MOST_BETWEEN = 2**20
"""Bytes that belong to no segment, which Pillow passes over one by one."""

_MOST_SCANS = 500
"""Scans of a progressive file; usual are ten."""


def jpeg_size(data: bytes) -> tuple[int, int]:
    """Return the height and width that a JPEG image declares; zero if it declares none."""
    height = width = 0
    at = data.find(b"\xff")
    while 0 <= at < len(data) - 8:
        marker = data[at + 1]
        if marker == _SCAN:
            break
        if marker in _FRAMES:
            height = max(height, int.from_bytes(data[at + 5 : at + 7], "big"))
            width = max(width, int.from_bytes(data[at + 7 : at + 9], "big"))
        if marker in _ALONE or marker == 0:
            at = data.find(b"\xff", at + (1 if marker == 0xFF else 2))
        else:
            at = data.find(b"\xff", at + 2 + int.from_bytes(data[at + 2 : at + 4], "big"))
    return height, width


def check_jpeg_metadata(data: bytes) -> None:
    """Refuse what would take too much memory or time before the pixels.

    Parameters
    ----------
    data : bytes
        The beginning of a JPEG file: one byte more than :data:`MOST_METADATA`, or all of it.

    Raises
    ------
    ValueError
        If there are too many segments, or too long ones.
    """
    places = [place for place, _ in zip(_segments(data), range(_MOST_SEGMENTS + 1), strict=False)]
    if len(places) > _MOST_SEGMENTS:
        raise ValueError(f"has more than {_MOST_SEGMENTS} segments before its pixels")
    segments = (
        data[at + 4 : at + 2 + int.from_bytes(data[at + 2 : at + 4], "big")] for at in places
    )
    exif = b"".join(s[len(EXIF_SIGNATURE) :] for s in segments if s.startswith(EXIF_SIGNATURE))
    if (size := expanded_size(exif)) > MOST_METADATA:
        raise ValueError(f"has EXIF data that take {size} bytes when they are read")


def refuse_many_scans(count: int) -> None:
    """Refuse an image that is decoded again and again: each scan goes over all of it.

    Raises
    ------
    ValueError
        If there are too many scans.
    """
    if count > _MOST_SCANS:
        raise ValueError(f"has {count} scans, and at most {_MOST_SCANS} are supported")


def _segments(data: bytes) -> Iterator[int]:
    """Give the places of the segments before the first scan, as Pillow finds them."""
    at = between = 0
    while (found := data.find(b"\xff", at)) >= 0 and found + 1 < len(data):
        between += found - at
        marker, at = data[found + 1], found + 2
        if marker == _SCAN:
            break
        if marker == _FILL:
            at, between = found + 1, between + 1
        elif MARKER.get(0xFF00 | marker, _NOTHING)[-1] is not None:
            yield found
            at += max(2, int.from_bytes(data[at : at + 2], "big"))
    else:
        between += max(0, len(data) - at)
        if len(data) > MOST_METADATA:
            raise ValueError(f"has more than {MOST_METADATA} bytes of metadata")
    if between > _MOST_BETWEEN:
        raise ValueError(f"has {between} stray bytes between its metadata segments")
