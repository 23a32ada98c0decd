"""NRRD, with the header fields of pynrrd; detached headers are read as well.

The first axis runs fastest in the file, so that the reversed sizes are the shape, pages first.
What an axis means follows from its kind, from its space direction, or from its spacing. The lines
of the header are copied as they are, but for those on the encoding of the pixels, and on their
extremes, which are others now. A result is one file with its header attached.
"""

from __future__ import annotations

import bz2
import re
from collections.abc import Iterator
from dataclasses import dataclass
from gzip import GzipFile
from math import prod
from pathlib import Path
from typing import Any, BinaryIO, ClassVar, Literal, cast

import nrrd
import numpy as np

from integrodiff.io.access import (
    ImageReader,
    ImageWriter,
    native,
    refusal,
    refuse_bomb,
    refuse_dtype,
    refuse_missing_bytes,
    refuse_no_pixels,
)
from integrodiff.io.image import FormatDetails, ImageHeader, Metadata, Page
from integrodiff.io.spacing import Spacing, declared

_LONGEST_HEADER = 2**20
"""Bytes of a header; those of real files have some thousands."""

_MOST_AXES = 16
"""As many as Teem reads, which defines the format."""

_ENCODINGS = {"raw": "raw", "gzip": "gzip", "gz": "gzip", "bzip2": "bzip2", "bz2": "bzip2"}
_TYPES = {
    "i1": "int8",
    "u1": "uint8",
    "i2": "int16",
    "u2": "uint16",
    "i4": "int32",
    "u4": "uint32",
    "i8": "int64",
    "u8": "uint64",
    "f4": "float",
    "f8": "double",
}
_SPATIAL = ("domain", "space")
_COLOURS = ("rgb-color", "3-color")
_UNKNOWN = ("none", "???")

# Field names may be written with and without a space.
_REPLACED = ("type", "encoding", "endian")
_DROPPED = ("data file", "datafile", "line skip", "lineskip", "byte skip", "byteskip", "min", "max")
_FIELD = re.compile(r"([^:=#]+):(?!=)")

_SQUARE = 1e-3
"""Cosine of an angle that is a right one up to rounding."""


@dataclass(frozen=True, kw_only=True, eq=False)
class NrrdDetails(FormatDetails):
    """The lines of the header, and how the pixels are encoded."""

    format: ClassVar[str] = "NRRD"
    lines: tuple[str, ...]
    encoding: str
    order: str

    @property
    def only_here(self) -> str | None:
        """The metadata that is lost in a file of another format, in words for the user."""
        return "the geometry and all other fields of the NRRD header"


class Reader(ImageReader):
    """A NRRD file with grey values or colours."""

    library_errors = (nrrd.NRRDError,)

    def _read_header(self) -> ImageHeader:
        lines, self._offset = self._lines()
        # Pairs of keys and values are not looked at.
        fields = nrrd.read_header([*lines[:1], *filter(_FIELD.match, lines[1:])])
        for name in ("dimension", "type", "encoding", "sizes"):
            if name not in fields:
                raise refusal(self.path, f"is damaged: its header has no field {name!r}")
        sizes = [int(size) for size in fields["sizes"]]
        if len(sizes) != fields["dimension"] or not 2 <= len(sizes) <= _MOST_AXES:
            raise refusal(self.path, f"has data of the sizes {sizes}, which is no image")
        refuse_no_pixels(self.path, tuple(sizes))
        self._encoding = _ENCODINGS.get(fields["encoding"].lower(), "")
        if not self._encoding:
            raise refusal(
                self.path, "has pixels that are neither raw nor compressed by gzip or bzip2"
            )
        self._stored = self._dtype(fields)
        refuse_dtype(self.path, self._stored)
        letters = _letters(self.path, fields, len(sizes))
        self._data = self._data_file(fields)
        self._check_size(fields, sizes)
        axes = "".join(letters[::-1])
        if axes.endswith("XS") and self._encoding != "raw":
            # As in other formats, the samples of a colour, with alpha, are one pixel.
            refuse_bomb(self.path, (-(-sizes[0] // 4), *sizes[1:3]))
        return ImageHeader(
            shape=tuple(sizes[::-1]),
            dtype=native(self._stored),
            axes=axes,
            spacing=_spacing(self.path, fields, letters),
            metadata=Metadata(
                own=NrrdDetails(lines=lines, encoding=self._encoding, order=self._stored.byteorder)
            ),
            notes=(f"the pixels come from {self._data.name}; a result is one file",)
            if self._data != self.path
            else (),
        )

    @property
    def files(self) -> tuple[Path, ...]:
        """The header and, if it is not attached to them, the pixels."""
        return tuple(dict.fromkeys((self.path, self._data)))

    def _lines(self) -> tuple[tuple[str, ...], int]:
        """Return the lines of the header, and where it ends."""
        lines, at = [], 0
        with self.path.open("rb") as stream:
            while line := stream.readline(_LONGEST_HEADER):
                at += len(line)
                if at >= _LONGEST_HEADER:
                    raise refusal(self.path, f"has a header of more than {_LONGEST_HEADER} bytes")
                text = line.decode("utf-8", "surrogateescape").rstrip("\r\n")
                if not text.rstrip():
                    break
                lines.append(text)
        return tuple(lines), at

    def _dtype(self, fields: Any) -> np.dtype[Any]:
        """Return the dtype of the stored values, with its byte order."""
        name: str = nrrd.reader._TYPEMAP_NRRD2NUMPY.get(fields["type"], "")
        if not name or name == "V":
            raise refusal(self.path, "has values that are no numbers; convert it")
        if np.dtype(name).itemsize == 1:
            return np.dtype(name)
        orders = {"little": "<", "big": ">"}
        order = orders.get(str(fields.get("endian", "")).lower())
        if order is None:
            raise refusal(self.path, "is damaged: its header does not say its byte order (endian)")
        return np.dtype(f"{order}{name}")

    def _data_file(self, fields: Any) -> Path:
        """Return the file with the pixels: this one, or another in the same folder."""
        name = fields.get("data file", fields.get("datafile"))
        if name is None:
            return self.path
        if name == "LIST" or name.startswith("LIST ") or "%" in name:
            raise refusal(self.path, "has its pixels in several files; save it as one .nrrd file")
        inner = name.removeprefix("./")
        if inner in ("", ".", "..") or Path(inner).name != inner:
            raise refusal(
                self.path,
                "names a file with its pixels that is not in the same folder; put it there, and "
                "its name without a folder into the header",
            )
        path = self.path.with_name(inner)
        if not path.is_file():
            raise refusal(self.path, f"there is no file {inner} with its pixels beside it")
        self._offset = 0
        return path

    def _check_size(self, fields: Any, sizes: list[int]) -> None:
        """Refuse a file that has not as many bytes as it claims, and find where pixels begin."""
        skips = [
            fields.get(f"{what} skip", fields.get(f"{what}skip", 0)) for what in ("line", "byte")
        ]
        compressed = self._encoding != "raw"
        needed, there = prod(sizes) * self._stored.itemsize, self._data.stat().st_size
        if skips[0] != 0 or skips[1] < -1 or (compressed and skips[1] != 0):
            raise refusal(self.path, "skips lines or bytes before its pixels; save it without")
        if skips[1] == -1:
            self._offset = max(self._offset, there - needed)
        else:
            self._offset += skips[1]
        refuse_missing_bytes(self.path, needed, there - self._offset, compressed=compressed)
        if compressed:
            refuse_bomb(self.path, tuple(sizes[:2]))

    def _read_pages(self) -> Iterator[Page]:
        shape = self.layout.plane_shape
        size = prod(shape) * self._stored.itemsize
        with self._data.open("rb") as file:
            file.seek(self._offset)
            stream: BinaryIO = file
            if self._encoding == "gzip":
                stream = cast("BinaryIO", GzipFile(fileobj=file))
            elif self._encoding == "bzip2":
                stream = cast("BinaryIO", bz2.BZ2File(file))
            for _ in range(self.header.pages):
                block = stream.read(size)
                samples = np.frombuffer(block, self._stored, count=size // self._stored.itemsize)
                yield Page(samples.reshape(shape).astype(self.dtype))


def _per_axis(fields: Any, name: str, count: int) -> list[Any]:
    """Return the values of a field for each axis; None if there are none."""
    values = fields.get(name)
    if values is None or len(values) != count:
        return [None] * count
    return list(values)


def _directions(fields: Any, count: int) -> list[Any]:
    """Return the direction of each axis in space, with its spacing as length; None without."""
    found = []
    for vector in _per_axis(fields, "space directions", count):
        numbers = np.asarray([] if vector is None else vector, np.float64)
        usable = numbers.size and np.isfinite(numbers).all() and numbers.any()
        found.append(numbers if usable else None)
    return found


def _letters(path: Path, fields: Any, count: int) -> list[str]:
    """Return the letters of the axes, the fastest first."""
    kinds = [str(kind or "none").lower() for kind in _per_axis(fields, "kinds", count)]
    directions = _directions(fields, count)
    spacings = _per_axis(fields, "spacings", count)
    known = any(kind not in _UNKNOWN for kind in kinds) or any(d is not None for d in directions)
    measured = [s is not None and np.isfinite(s) and s > 0 for s in spacings]
    letters: list[str] = []
    waiting = list("XYZ")
    for number, kind in enumerate(kinds):
        if known:
            spatial = kind in _SPATIAL or (kind in _UNKNOWN and directions[number] is not None)
        else:
            spatial = measured[number] if any(measured) else number < 2
        if spatial and waiting:
            letters.append(waiting.pop(0))
        elif number == 0:
            if kind not in _COLOURS:
                raise refusal(
                    path,
                    f"has values of the kind {kind!a} at each pixel, and grey values and "
                    "colours are supported; save each component as a file of its own",
                )
            letters.append("S")
        else:
            letters.append({"time": "T"}.get(kind, "C" if kind == "list" else "Q"))
    plane = "".join(letters).replace("S", "")[:2]
    if plane != "XY" or any(letters.count(letter) > 1 for letter in "TC"):
        raise refusal(path, f"has axes of the kinds {' '.join(kinds)!a}, which is no image")
    return letters


def _spacing(path: Path, fields: Any, letters: list[str]) -> dict[str, Spacing]:
    """Return the spacing of the axes; refuse directions that are not at right angles."""
    count = len(letters)
    directions, spacings = _directions(fields, count), _per_axis(fields, "spacings", count)
    units = _per_axis(fields, "units", count)
    space_units = fields.get("space units") or [None]
    vectors = [vector / np.linalg.norm(vector) for vector in directions if vector is not None]
    if len({len(vector) for vector in vectors}) > 1:
        raise refusal(path, "is damaged: its space directions have different lengths")
    if (
        vectors
        and np.abs(np.stack(vectors) @ np.stack(vectors).T - np.eye(len(vectors))).max() > _SQUARE
    ):
        raise refusal(path, "has axes that are not at right angles; resample it")
    found = []
    for letter, vector, spacing, unit in zip(letters, directions, spacings, units, strict=True):
        if vector is not None:
            found.append((letter, float(np.linalg.norm(vector)), space_units[0]))
        else:
            found.append((letter, spacing, unit))
    return declared(found, "".join(letters))


class Writer(ImageWriter):
    """A NRRD file with the header of the one that the image came from, attached."""

    format = "NRRD"

    def _start(self) -> None:
        own = self.header.metadata.own
        if not isinstance(own, NrrdDetails):
            raise TypeError("a NRRD file is written only from another one, with its header")
        order: Literal["<", ">"] = ">" if own.order == ">" else "<"
        self._stored = self.header.dtype.newbyteorder(order)
        new = {"type": _TYPES[self.header.dtype.str[1:]], "encoding": own.encoding}
        if self._stored.itemsize > 1:
            new["endian"] = "big" if order == ">" else "little"
        file = self._opened.enter_context(self.path.open("wb"))
        for line in _changed(own.lines, new):
            file.write(line.encode("utf-8", "surrogateescape") + b"\n")
        file.write(b"\n")
        self._stream: Any = file
        if own.encoding == "gzip":
            self._stream = self._opened.enter_context(GzipFile("", "wb", 6, file, mtime=0))
        elif own.encoding == "bzip2":
            self._stream = self._opened.enter_context(bz2.BZ2File(file, "wb"))

    @staticmethod
    def problem(header: ImageHeader) -> str | None:
        """Return why NRRD cannot hold the image, or None if it can."""
        if not isinstance(header.metadata.own, NrrdDetails):
            return (
                "NRRD is written from NRRD only, which says where in space the pixels lie; write "
                "TIFF (.tif) instead"
            )
        if header.dtype.str[1:] not in _TYPES:
            return f"NRRD cannot hold {header.dtype}; write TIFF (.tif) instead"
        return None

    def write(self, page: Page) -> None:
        """Write the next page."""
        self._stream.write(np.ascontiguousarray(page.pixels, self._stored).tobytes())


def _changed(lines: tuple[str, ...], new: dict[str, str]) -> Iterator[str]:
    """Give the lines of a header with other values of some fields."""
    left = dict(new)
    for line in lines:
        match = _FIELD.match(line)
        name = match[1].strip().lower() if match else ""
        if name in _DROPPED:
            continue
        if name in _REPLACED:
            if name in left:
                yield f"{name}: {left.pop(name)}"
            continue
        yield line
    yield from (f"{name}: {value}" for name, value in left.items())
