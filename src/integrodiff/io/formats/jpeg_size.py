"""The size of a JPEG image that lies inside of another file."""

from __future__ import annotations

_FRAMES = frozenset(range(0xC0, 0xD0)) - {0xC4, 0xC8, 0xCC} | {0xF7}
"""Markers before the size: those of all processes, and that of JPEG-LS."""

_ALONE = frozenset(range(0xD0, 0xD9)) | {0x01, 0xFF}
"""Markers without a segment, and fill bytes."""

_SCAN = 0xDA


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
