"""Cloud-optimised GeoTIFF (COG): a pyramid whose parts come in the order in which they are read.

A program that reads a file over a network gets all directories with the first bytes, and small
levels before large ones. tifffile writes a directory and its pixels one after the other, so the
parts are moved afterwards. The lines of text in front say what GDAL may rely on.
"""

from __future__ import annotations

import struct
from itertools import pairwise
from typing import BinaryIO, NamedTuple

from tifffile import FileHandle, TiffFile, TiffPage

from integrodiff.io.formats.exif import Directory, Layout, Tag, directory_bytes, pointer
from integrodiff.io.formats.tiff_tags import stored_value

_TEXT = (
    b"LAYOUT=IFDS_BEFORE_DATA\n"
    b"BLOCK_ORDER=ROW_MAJOR\n"
    b"BLOCK_LEADER=SIZE_AS_UINT4\n"
    b"BLOCK_TRAILER=LAST_4_BYTES_REPEATED\n"
    b"KNOWN_INCOMPATIBLE_EDITION=NO\n "
)
_GHOST = b"GDAL_STRUCTURAL_METADATA_SIZE=%06d bytes\n" % len(_TEXT) + _TEXT

_STRIP_OFFSETS, _TILE_OFFSETS = 273, 324
_AROUND = 4
"""Bytes before and after each tile: its length, and its last ones again."""


class _Part(NamedTuple):
    """A directory with the places and lengths of its tiles in the file that they come from."""

    tags: tuple[Tag, ...]
    places: tuple[int, ...]
    lengths: tuple[int, ...]

    def directory(self, first: int, layout: Layout) -> tuple[Directory, int]:
        """Return the directory for tiles from a place on, and where they end."""
        places = []
        for length in self.lengths:
            places.append(first + _AROUND)
            first += length + 2 * _AROUND
        kind, _, _ = pointer(first, layout)
        value = b"".join(layout.place.pack(place) for place in places)
        tags = [
            Tag(tag.code, kind, len(places), value)
            if tag.code in (_STRIP_OFFSETS, _TILE_OFFSETS)
            else tag
            for tag in self.tags
        ]
        return Directory(tuple(tags)), first


def named(stream: BinaryIO) -> FileHandle:
    """Return a file without a name in a form that tifffile takes."""
    return FileHandle(stream, name="pyramid.tif", offset=0)


def write_cloud_optimised(source: BinaryIO, target: BinaryIO, layout: Layout) -> None:
    """Write a file anew, with its directories first and its pixels from small to large.

    Parameters
    ----------
    source : binary file
        A TIFF file: a page in full resolution, and its smaller versions from large to small.
    target : binary file
        An empty file.
    layout : Layout
        Byte order and size of places, the same for both.

    Raises
    ------
    ValueError
        If a place is beyond the reach of the layout.
    """
    with TiffFile(named(source), is_ome=False) as tif:
        parts = [_part(item.aspage()) for item in tif.pages]
    start = 16 if layout.big else 8
    head = start + len(_GHOST)
    places = [head + head % 2]
    for part in parts:
        length = len(directory_bytes(part.directory(0, layout)[0], 0, layout))
        places.append(places[-1] + length + length % 2)
    free = places[-1]
    directories: dict[int, Directory] = {}
    for number in reversed(range(len(parts))):
        directories[number], free = parts[number].directory(free, layout)
    target.write(_beginning(places[0], layout) + _GHOST)
    following = [*places[1:-1], 0]
    for number, (place, after) in enumerate(pairwise(places)):
        target.seek(place)
        data = directory_bytes(directories[number], place, layout, following=following[number])
        target.write(data.ljust(after - place, b"\0"))
    for part in reversed(parts):
        for place, length in zip(part.places, part.lengths, strict=True):
            source.seek(place)
            data = source.read(length)
            size = struct.pack("<I", length)  # in this byte order in every file
            target.write(size + data + data[-_AROUND:].rjust(_AROUND, b"\0"))


def _part(page: TiffPage) -> _Part:
    return _Part(
        tuple(Tag(tag.code, int(tag.dtype), tag.count, stored_value(tag)) for tag in page.tags),
        tuple(page.dataoffsets),
        tuple(page.databytecounts),
    )


def _beginning(first: int, layout: Layout) -> bytes:
    """Return the first bytes of a file, which say where the first directory is."""
    name = b"II" if layout.order == "<" else b"MM"
    version = struct.pack(f"{layout.order}HHH", 43, 8, 0) if layout.big else b""
    version = version or struct.pack(f"{layout.order}H", 42)
    return name + version + layout.place.pack(first)
