"""Chunks of Zarr, decoded with a limit on their size.

In version 3 of the format, codecs are replaced by name. Those of version 2 cannot be, so there the
store decompresses the chunks, and presents an array without compression.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Iterator
from math import prod
from pathlib import Path
from typing import Any

import numcodecs
import numpy as np
from zarr.abc.store import ByteRequest
from zarr.codecs import BloscCodec, GzipCodec, ZstdCodec
from zarr.core.array_spec import ArraySpec
from zarr.core.buffer import Buffer, BufferPrototype
from zarr.registry import register_codec
from zarr.storage import LocalStore

from integrodiff.io.bounded import STREAMS, TooLargeError, decompressed

_ZSTD_MAGIC = 0xFD2FB528
_ZSTD_SKIPPABLE = 0x184D2A50
_ZSTD_BLOCK = 2**17
"""Largest content of a block of Zstandard."""


def decoded(codec: str, data: bytes, limit: int) -> bytes:
    """Return the content of a compressed chunk.

    Parameters
    ----------
    codec : str
        Name of the compression.
    data : bytes
        The compressed chunk.
    limit : int
        Largest number of bytes to return.

    Raises
    ------
    TooLargeError
        If the chunk holds more.
    ValueError, and others of the decoders
        If it is damaged.
    """
    if codec in STREAMS:
        return decompressed(codec, data, limit)
    if _DECLARED[codec](data) > limit:
        raise TooLargeError(limit)
    # How the data were compressed does not matter for decompression.
    return bytes(numcodecs.get_codec({"id": codec}).decode(data))


def _lz4_size(data: bytes) -> int:
    """Return the size that stands before data compressed by LZ4."""
    if len(data) < 4:
        raise ValueError("a chunk compressed by LZ4 is cut off")
    return int.from_bytes(data[:4], "little")


def _blosc_size(data: bytes) -> int:
    """Return the size in the header of Blosc, whose decoder trusts the length in it blindly."""
    if len(data) < 16 or int.from_bytes(data[12:16], "little") != len(data):
        raise ValueError("a chunk compressed by Blosc is cut off")
    return int.from_bytes(data[4:8], "little")


def _zstd_size(data: bytes) -> int:
    """Return the size of all frames of Zstandard: the declared one, or else a bound by blocks.

    The bound is too large by what blocks hold less than they could; writers fill all but the last.
    """
    total, at = 0, 0
    while at < len(data):
        magic = int.from_bytes(data[at : at + 4], "little")
        if magic & 0xFFFFFFF0 == _ZSTD_SKIPPABLE:
            at += 8 + int.from_bytes(data[at + 4 : at + 8], "little")
            continue
        if magic != _ZSTD_MAGIC or at + 5 > len(data):
            raise ValueError("a chunk compressed by Zstandard is damaged")
        flags = data[at + 4]
        single, kind = flags >> 5 & 1, flags >> 6
        at += 5 + (1 - single) + (0, 1, 2, 4)[flags & 3]
        width = (single, 2, 4, 8)[kind]
        declared = int.from_bytes(data[at : at + width], "little") + (256 if kind == 1 else 0)
        at += width
        blocks = list(_zstd_blocks(data, at))
        at = blocks[-1][0] + 4 * (flags >> 2 & 1)
        total += declared if width else sum(size for _, size in blocks)
    return total


def _zstd_blocks(data: bytes, at: int) -> Iterator[tuple[int, int]]:
    """Give where each block of a frame ends, and the most it can hold."""
    last = 0
    while not last:
        if at + 3 > len(data):
            raise ValueError("a chunk compressed by Zstandard is cut off")
        head = int.from_bytes(data[at : at + 3], "little")
        last, kind, size = head & 1, head >> 1 & 3, head >> 3
        at += 3 + (1 if kind == 1 else size)
        yield at, _ZSTD_BLOCK if kind == 2 else size


_DECLARED: dict[str, Callable[[bytes], int]] = {
    "blosc": _blosc_size,
    "lz4": _lz4_size,
    "zstd": _zstd_size,
}
"""Functions that return the size before anything is decompressed, by codec."""


def decoding_limit(size: int) -> int:
    """Return the most that a codec may return for a chunk of this size.

    A little more than the chunk itself: there may be a checksum, an index, or a second codec, and
    Zarr refuses chunks of a wrong size.
    """
    return size + size // 4 + 2**18


class _Bounded:
    """Decodes with a limit; a mixin for the codecs of version 3."""

    _name: str

    def _decode_sync(self, chunk_bytes: Buffer, chunk_spec: ArraySpec) -> Buffer:
        size = prod(chunk_spec.shape) * chunk_spec.dtype.to_native_dtype().itemsize
        content = decoded(self._name, chunk_bytes.to_bytes(), decoding_limit(size))
        return chunk_spec.prototype.buffer.from_bytes(content)

    async def _decode_single(self, chunk_bytes: Buffer, chunk_spec: ArraySpec) -> Buffer:
        return await asyncio.to_thread(self._decode_sync, chunk_bytes, chunk_spec)


class BoundedBlosc(_Bounded, BloscCodec):
    """Blosc in version 3 of the format."""

    _name = "blosc"


class BoundedGzip(_Bounded, GzipCodec):
    """gzip in version 3 of the format."""

    _name = "gzip"


class BoundedZstd(_Bounded, ZstdCodec):
    """Zstandard in version 3 of the format."""

    _name = "zstd"


_CLASSES = (BoundedBlosc, BoundedGzip, BoundedZstd)
for _class in _CLASSES:
    register_codec(_class._name, _class)

BOUNDED_CODECS = {f"codecs.{kind._name}": f"{__name__}.{kind.__name__}" for kind in _CLASSES}
"""Configuration of zarr with which arrays of version 3 are to be opened."""


class BoundedStore(LocalStore):
    """The files of an array, which has no compression to its readers if it is of version 2.

    Parameters
    ----------
    root : Path
        Folder of the array.
    metadata : dict
        Content of its file ``.zarray``, or anything else for version 3.
    """

    def __init__(self, root: Path, metadata: dict[str, Any]) -> None:
        super().__init__(root, read_only=True)
        used = [*(metadata.get("filters") or []), metadata.get("compressor")]
        self._codecs = [codec["id"] for codec in used if codec is not None][::-1]
        self._metadata = metadata
        if self._codecs:
            try:
                size = prod(metadata["chunks"]) * np.dtype(metadata["dtype"]).itemsize
            except TypeError as error:
                raise ValueError(f"chunks or values of an unknown type: {error}") from error
            self._limit = decoding_limit(size)

    async def get(
        self,
        key: str,
        prototype: BufferPrototype | None = None,
        byte_range: ByteRequest | None = None,
    ) -> Buffer | None:
        """Return the content of a file, decompressed."""
        data = await super().get(key, prototype, byte_range)
        if data is None or not self._codecs or key in (".zattrs", ".zgroup", "zarr.json"):
            return data
        if key == ".zarray":
            plain = {**self._metadata, "compressor": None, "filters": None}
            return type(data).from_bytes(json.dumps(plain).encode())
        content = await asyncio.to_thread(self._decoded, data.to_bytes())
        return type(data).from_bytes(content)

    def _decoded(self, data: bytes) -> bytes:
        for codec in self._codecs:
            data = decoded(codec, data, self._limit)
        return data
