"""Decompression with a limit on the size of the result.

A few bytes can expand to gigabytes, so a decoder is told how much it may return: the size that
the header of the image declares. Data that hold more are refused as soon as the limit is passed.
"""

from __future__ import annotations

import bz2
import lzma
import zlib
from collections.abc import Callable, Iterator
from typing import Any

_BLOCK = 2**20
"""Bytes that are decompressed at a time."""

MOST_METADATA = 2**25
"""Bytes of profiles, EXIF data, texts and the like that a picture may have."""

_LZMA_MEMORY = 2**28
"""Bytes that LZMA may take for its dictionary; the highest preset of xz needs 65 MiB."""

_DECOMPRESSORS: dict[str, Callable[[], Any]] = {
    "bz2": bz2.BZ2Decompressor,
    "gzip": lambda: _Inflate(31),
    "lzma": lambda: lzma.LZMADecompressor(memlimit=_LZMA_MEMORY),
    "zlib": lambda: _Inflate(15),
}
STREAMS = tuple(_DECOMPRESSORS)
"""Kinds of compression that are decoded here."""


class TooLargeError(ValueError):
    """Compressed data hold more than the image declares."""

    def __init__(self, limit: int) -> None:
        super().__init__(
            f"compressed data hold more than the {limit} bytes that their place in the image asks "
            "for, as in a decompression bomb"
        )


class _Inflate:
    """zlib with the interface of the other decompressors."""

    def __init__(self, wbits: int) -> None:
        self._inflate = zlib.decompressobj(wbits)
        self.needs_input = True

    @property
    def eof(self) -> bool:
        return self._inflate.eof

    @property
    def unused_data(self) -> bytes:
        return self._inflate.unused_data

    def decompress(self, data: bytes, max_length: int) -> bytes:
        result = self._inflate.decompress(self._inflate.unconsumed_tail + data, max_length)
        self.needs_input = not self._inflate.unconsumed_tail and len(result) < max_length
        return result


def decompressed(kind: str, data: bytes, limit: int) -> bytes:
    """Return the content of compressed data.

    Parameters
    ----------
    kind : str
        One of :data:`STREAMS`.
    data : bytes
        One stream, or several that follow each other, except for zlib.
    limit : int
        Largest number of bytes to return.

    Raises
    ------
    TooLargeError
        If there are more bytes.
    EOFError, OSError, lzma.LZMAError, zlib.error
        If the data are damaged or incomplete.
    """
    return b"".join(_parts(kind, data, limit))


def check_size(kind: str, data: bytes, limit: int) -> None:
    """Refuse compressed data that hold more than a limit, without keeping their content.

    The parameters and errors are those of :func:`decompressed`.
    """
    for _ in _parts(kind, data, limit):
        pass


def _parts(kind: str, data: bytes, limit: int) -> Iterator[bytes]:
    """Give the content in blocks, until the end or the limit."""
    left = limit
    while data:
        stream, rest = _DECOMPRESSORS[kind](), data
        while not stream.eof:
            part = stream.decompress(rest, min(left + 1, _BLOCK))
            if not part and not rest and not stream.eof:
                raise EOFError("compressed data end too early")
            rest = b""
            left -= len(part)
            if left < 0:
                raise TooLargeError(limit)
            yield part
        # gzip pads files with zeros; zlib knows no streams that follow each other.
        data = b"" if kind == "zlib" else stream.unused_data.lstrip(b"\0")
