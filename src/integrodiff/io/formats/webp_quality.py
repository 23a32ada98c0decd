"""The quality of a WebP file, from the quantisers in its header.

libwebp maps a quality to a quantiser, and lets this vary between up to four segments of an image;
no library says with which quality a file was written. RFC 6386 describes the header, and
``VP8SetSegmentParams`` in libwebp the mapping, which is inverted here.
"""

from __future__ import annotations

from math import exp, log
from pathlib import Path

_LONGEST_HEADER = 200
"""Bytes of a frame that the quantisers are among; they have some thirty."""

_MOST_CHUNKS = 100
_LARGEST_QUANTISER = 127


def webp_quality(path: Path) -> float | None:
    """Return the quality from 0 to 100 that a file was written with; None if it is without loss.

    Raises
    ------
    ValueError
        If the file is damaged.
    """
    with path.open("rb") as stream:
        stream.seek(12)
        for _ in range(_MOST_CHUNKS):
            head = stream.read(8)
            kind, length = head[:4], int.from_bytes(head[4:], "little")
            if kind == b"VP8L":
                return None
            if kind == b"VP8 ":
                return _quality(_quantisers(stream.read(_LONGEST_HEADER)))
            if len(head) < 8:
                break
            stream.seek(length + length % 2, 1)
    raise ValueError("there is no picture in the file")


def _quality(quantisers: list[tuple[float, int]]) -> float:
    """Return the quality for quantisers and the shares of the image that they are for."""
    # The logarithms of what is left vary around that of the quality.
    parts = ((share, 1 - value / _LARGEST_QUANTISER) for share, value in quantisers)
    mean = exp(sum(share * log(max(rest, 1e-3)) for share, rest in parts))
    linear = mean**3
    quality = 1.5 * linear if linear < 0.5 else (linear + 1) / 2
    return 100 * min(max(quality, 0.0), 1.0)


def _quantisers(frame: bytes) -> list[tuple[float, int]]:
    """Return the quantiser of each segment, with its share of the image."""
    bits = _Bits(frame[10:])  # behind a tag, a start code and the size
    bits.number(2)  # colour space and clamping
    shares, values, absolute = [1.0], [0], False
    if bits.number(1):
        new_map, new_values = bits.number(1), bits.number(1)
        if new_values:
            absolute = bool(bits.number(1))
            values = [bits.optional_signed(7) for _ in range(4)]
            for _ in range(4):
                bits.optional_signed(6)
        if new_map:
            first, low, high = ((bits.number(8) if bits.number(1) else 255) / 255 for _ in range(3))
            shares = [first * low, first * (1 - low), (1 - first) * high, (1 - first) * (1 - high)]
    bits.number(1 + 6 + 3)  # the loop filter
    if bits.number(1) and bits.number(1):
        for _ in range(8):
            bits.optional_signed(6)
    bits.number(2)  # partitions
    base = bits.number(7)
    if len(shares) != len(values):
        shares = [1 / len(values)] * len(values)
    found = [value if absolute else base + value for value in values]
    return [
        (share, min(max(value, 0), _LARGEST_QUANTISER))
        for share, value in zip(shares, found, strict=True)
    ]


class _Bits:
    """The boolean decoder of VP8 for bits that are zero or one equally often."""

    def __init__(self, data: bytes) -> None:
        self._data = iter(data)
        self._value = next(self._data, 0) << 8 | next(self._data, 0)
        self._range, self._shifts = 255, 0

    def number(self, length: int) -> int:
        """Return a number of some bits, the highest first."""
        result = 0
        for _ in range(length):
            split = 1 + ((self._range - 1) * 128 >> 8)
            bit = self._value >= split << 8
            self._range = self._range - split if bit else split
            self._value -= split << 8 if bit else 0
            while self._range < 128:
                self._value, self._range = self._value << 1, self._range << 1
                self._shifts += 1
                if self._shifts == 8:
                    self._shifts = 0
                    self._value |= next(self._data, 0)
            result = result << 1 | bit
        return result

    def optional_signed(self, length: int) -> int:
        """Return a number with its sign behind it, zero if there is none."""
        if not self.number(1):
            return 0
        value = self.number(length)
        return -value if self.number(1) else value
