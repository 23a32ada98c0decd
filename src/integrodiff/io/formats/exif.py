"""EXIF data: directories of tags, in a block of their own or inside of a TIFF file.

A block is a small TIFF file without pixels. So its directories can move to a TIFF file of the same
byte order, and back, without a look at their values: only the places change.
"""

from __future__ import annotations

import struct
from collections.abc import Container, Iterator, Mapping
from io import BytesIO
from typing import Any, BinaryIO, Literal, NamedTuple, Protocol

from integrodiff.io.image import EXIF_SIGNATURE

EXIF, GPS = 34665, 34853
"""Tags of the picture that say where its directories of EXIF data are."""

ORIENTATION = 274
"""The tag that says how a picture is turned."""

_INTEROPERABILITY, _SUB_DIRECTORIES = 40965, 330
_POINTERS = (EXIF, GPS, _INTEROPERABILITY)

_LONG, _PLACE, _LONG8 = 4, 13, 16
_SIZES = {1: 1, 2: 1, 3: 2, _LONG: 4, 5: 8, 6: 1, 7: 1, 8: 2, 9: 4, 10: 8, 11: 4, 12: 8, _PLACE: 4}
"""Bytes of one value by its type. Those of 64 bits are BigTIFF's and not for EXIF data."""

_MOST_TAGS, _MOST_BYTES = 1000, 2**22
"""In one directory; cameras write some hundred tags, and notes of their maker's."""

_DEEPEST = 2
"""The interoperability is below the EXIF data, and these are below the picture."""


class Stream(Protocol):
    """What is read from: a file, or tifffile's."""

    def seek(self, offset: int, /) -> int:
        """Go to a position."""

    def read(self, size: int, /) -> bytes:
        """Read some bytes."""


class Layout(NamedTuple):
    """How numbers are stored: their byte order, and whether places have 64 bits."""

    order: Literal["<", ">"]
    big: bool = False

    @property
    def head(self) -> struct.Struct:
        """The number of tags, at the beginning of a directory."""
        return struct.Struct(f"{self.order}{'Q' if self.big else 'H'}")

    @property
    def tag(self) -> struct.Struct:
        """Code, type, number of values, and these or their place."""
        return struct.Struct(f"{self.order}HH{'Q8s' if self.big else 'I4s'}")

    @property
    def place(self) -> struct.Struct:
        """An offset from the beginning of the file, as after the last tag."""
        return struct.Struct(f"{self.order}{'Q' if self.big else 'I'}")


class Tag(NamedTuple):
    """One tag with its values as they are in the file."""

    code: int
    kind: int
    number: int
    value: bytes

    @property
    def is_usual(self) -> bool:
        """Whether EXIF data may have values of this type, as many as there are bytes for."""
        return self.number * _SIZES.get(self.kind, -1) == len(self.value)


class Directory(NamedTuple):
    """Tags, and the directories that other tags point to, by the codes of these."""

    tags: tuple[Tag, ...]
    below: tuple[tuple[int, Directory], ...] = ()


class Block(NamedTuple):
    """What a block of EXIF data says."""

    order: Literal["<", ">"]
    directory: Directory
    has_thumbnail: bool


def read_directory(
    stream: Stream,
    place: int,
    layout: Layout,
    *,
    wanted: Container[int] | None = None,
    depth: int = 0,
) -> Directory:
    """Return a directory and those below it.

    Parameters
    ----------
    stream : binary file
        A TIFF file, or a block of EXIF data.
    place : int
        Where the directory is.
    layout : Layout
        How it is stored.
    wanted : container of int, optional
        Codes of the tags; without it, all.
    depth : int
        How many directories are above this one.

    Raises
    ------
    ValueError
        If the directory is damaged, or longer than any camera makes it.
    """
    (number,) = layout.head.unpack(_read(stream, place, layout.head.size))
    if number > _MOST_TAGS or depth > _DEEPEST:
        raise ValueError(f"a directory of {number} tags below {depth} others")
    data = _read(stream, place + layout.head.size, number * layout.tag.size)
    rows = list(layout.tag.iter_unpack(data))
    if len({code for code, *_ in rows}) < number:
        raise ValueError("a tag comes twice")
    tags: list[Tag] = []
    below: list[tuple[int, Directory]] = []
    bytes_left = _MOST_BYTES
    for code, kind, count, field in rows:
        if wanted is not None and code not in wanted:
            continue
        if code in _POINTERS:
            place_bytes = field[:4] if kind in (_LONG, _PLACE) else field
            there = int.from_bytes(place_bytes, "little" if layout.order == "<" else "big")
            below.append((code, read_directory(stream, there, layout, depth=depth + 1)))
            continue
        size = count * _SIZES.get(kind, _MOST_BYTES)
        bytes_left -= size
        if bytes_left < 0:
            raise ValueError(f"the tag {code} has {count} values of the type {kind}")
        value = field[:size]
        if size > len(field):
            (there,) = layout.place.unpack(field)
            value = _read(stream, there, size)
        tags.append(Tag(code, kind, count, value))
    return Directory(tuple(tags), tuple(below))


def _read(stream: Stream, place: int, size: int) -> bytes:
    if place >= 2**63:
        raise ValueError("an offset beyond the end of the file")
    stream.seek(place)
    data = stream.read(size)
    if len(data) < size:
        raise ValueError("the data end too early")
    return data


def directory_bytes(
    directory: Directory, place: int, layout: Layout, *, following: int = 0
) -> bytes:
    """Return a directory and those below it as they are to be stored at a place in a file.

    The place of the next directory of a chain is written behind its tags.

    Raises
    ------
    ValueError
        If the place is beyond the reach of the layout.
    """
    tags, below = {tag.code: tag for tag in directory.tags}, dict(directory.below)
    codes = sorted({*tags, *below})
    rows = bytearray(layout.head.pack(len(codes)))
    free = place + layout.head.size + len(codes) * layout.tag.size + layout.place.size
    parts = bytearray()
    for code in codes:
        there = free + len(parts)
        if code in below:
            row = Tag(code, *pointer(there, layout))
            parts += directory_bytes(below[code], there, layout)
        else:
            row = tags[code]
            if len(row.value) > layout.place.size:
                parts += row.value + bytes(len(row.value) % 2)
                row = row._replace(value=pointer(there, layout)[-1])
        rows += layout.tag.pack(*row)
    return bytes(rows + layout.place.pack(following) + parts)


def directory_places(stream: BinaryIO, layout: Layout) -> Iterator[int]:
    """Give the places of all directories of a TIFF file: of each page, then of those below it.

    The directory at a place may be changed before the next one is asked for.
    """
    stream.seek(8 if layout.big else 4)
    (place,) = layout.place.unpack(stream.read(layout.place.size))
    while place:
        rows, following = _rows(stream, place, layout)
        below: tuple[int, ...] = ()
        for code, _, count, field in rows:
            if code == _SUB_DIRECTORIES:
                size = count * layout.place.size
                value = field
                if size > len(field):
                    (there,) = layout.place.unpack(field)
                    value = _read(stream, there, size)
                below = struct.unpack(f"{layout.order}{count}{layout.place.format[-1]}", value)
        yield place
        yield from below
        place = following


def change_directory(
    stream: BinaryIO, place: int, layout: Layout, changes: Mapping[int, bytes]
) -> None:
    """Replace tags of a directory in a file, by their codes, or take them away."""
    rows, following = _rows(stream, place, layout)
    pairs = ((row, changes.get(row[0])) for row in rows)
    kept = [layout.tag.pack(*row) if new is None else new for row, new in pairs if new != b""]
    length = len(rows) * layout.tag.size + layout.place.size
    data = b"".join(kept) + layout.place.pack(following)
    stream.seek(place)
    stream.write(layout.head.pack(len(kept)) + data.ljust(length, b"\0"))


def _rows(stream: Stream, place: int, layout: Layout) -> tuple[list[tuple[Any, ...]], int]:
    """Return the tags of a directory as they are stored, and the place of the next one."""
    (number,) = layout.head.unpack(_read(stream, place, layout.head.size))
    data = _read(stream, place + layout.head.size, number * layout.tag.size + layout.place.size)
    (following,) = layout.place.unpack(data[-layout.place.size :])
    return list(layout.tag.iter_unpack(data[: -layout.place.size])), following


def pointer(place: int, layout: Layout) -> tuple[int, int, bytes]:
    """Return type, number and value of a tag that says a place in the file."""
    if not layout.big and place >= 2**32:
        raise ValueError("EXIF data would lie beyond four gigabytes")
    return _LONG8 if layout.big else _LONG, 1, layout.place.pack(place)


def block_bytes(order: Literal["<", ">"], directory: Directory) -> bytes:
    """Return a block of EXIF data."""
    layout = Layout(order)
    start = b"II" if order == "<" else b"MM"
    head = start + struct.pack(f"{order}HI", 42, 8)
    return EXIF_SIGNATURE + head + directory_bytes(directory, len(head), layout)


def read_block(data: bytes) -> Block:
    """Return what a block of EXIF data says; raises what :func:`read_directory` raises."""
    data = data.removeprefix(EXIF_SIGNATURE)
    layout, place = _beginning(data)
    stream = BytesIO(data)
    directory = read_directory(stream, place, layout)
    (number,) = layout.head.unpack_from(data, place)
    after = layout.place.unpack_from(data + bytes(4), place + 2 + number * layout.tag.size)
    return Block(layout.order, directory, has_thumbnail=after != (0,))


def orientation_of(data: bytes) -> int:
    """Return the orientation of a picture with this block of EXIF data; 1 if it says none."""
    data = data.removeprefix(EXIF_SIGNATURE)
    try:
        layout, place = _beginning(data)
        found = read_directory(BytesIO(data), place, layout, wanted={ORIENTATION})
    except ValueError:  # Data that cannot be understood are carried over as they are.
        return 1
    for tag in found.tags:
        if tag.is_usual and tag.number == 1:
            value = int.from_bytes(tag.value, "little" if layout.order == "<" else "big")
            return value if 1 <= value <= 8 else 1
    return 1


def expanded_size(data: bytes) -> int:
    """Return how many bytes the values of a block take that is read tag by tag.

    Values of several tags may lie in the same place, so that it may be far more than the block has.
    """
    data = data.removeprefix(EXIF_SIGNATURE)
    try:
        layout, place = _beginning(data)
        (number,) = layout.head.unpack_from(data, place)
    except (ValueError, struct.error):
        return 0
    first = place + layout.head.size
    rows = data[first : first + number * layout.tag.size]
    rows = rows[: len(rows) // layout.tag.size * layout.tag.size]
    return sum(
        min(count * _SIZES.get(kind, 1), len(data))
        for _, kind, count, _ in layout.tag.iter_unpack(rows)
    )


def _beginning(data: bytes) -> tuple[Layout, int]:
    """Return the layout of a block and the place of its first directory."""
    if data[:4] not in (b"II*\0", b"MM\0*") or len(data) < 8:
        raise ValueError("it lacks the header of EXIF data")
    layout = Layout("<" if data[:2] == b"II" else ">")
    return layout, layout.place.unpack(data[4:8])[0]
