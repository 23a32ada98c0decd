"""MRC and CCP4 maps of electron microscopy, with the header of mrcfile.

Pages lie in the file as sections, rows and columns, and are read and written in that order, never
turned or flipped; MAPC, MAPR and MAPS say which axis of the cell each of them is. The header and
the extended header are copied, but for the statistics, which are those of the new pixels. ISPG
says whether sections are single images, a volume, or several volumes.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from math import prod, sqrt
from typing import Any, ClassVar

import numpy as np
from mrcfile import utils
from mrcfile.constants import IMAGE_STACK_SPACEGROUP
from mrcfile.dtypes import HEADER_DTYPE
from numpy.typing import NDArray

from integrodiff.io.access import (
    ImageReader,
    ImageWriter,
    native,
    refusal,
    refuse_dtype,
    refuse_missing_bytes,
    refuse_no_pixels,
)
from integrodiff.io.image import FormatDetails, ImageHeader, Metadata, Page
from integrodiff.io.spacing import Spacing, declared

_AXES = "xyz"
_BYTES_OF_IMOD = 1146047817
"""Stamp of IMOD, whose flags say whether bytes have a sign."""

_STAMP, _FLAGS = slice(152, 156), slice(156, 160)
_UNREAD = {3: "complex integers", 16: "colours", 101: "4 bits per pixel"}
"""Modes of the format that are not supported, and have no dtype of NumPy."""

_DTYPES = ("int8", "int16", "uint16", "float16", "float32")
_LONGEST_EXTENSION = 2**28
"""Bytes of an extended header, which is copied as a whole: a kilobyte for each of 10^5 sections."""

_RIGHT = 1e-3
"""Degrees from a right angle that are rounding."""


@dataclass(frozen=True, kw_only=True, eq=False)
class MrcDetails(FormatDetails):
    """The header, the extended header, and whether bytes are unsigned."""

    format: ClassVar[str] = "MRC"
    header: NDArray[Any]
    extended: bytes
    unsigned: bool

    @property
    def only_here(self) -> str | None:
        """The metadata that is lost in a file of another format, in words for the user."""
        return "the header of the MRC file, with its extension"


class Reader(ImageReader):
    """An MRC file."""

    def _read_header(self) -> ImageHeader:
        self._stream = self._opened.enter_context(self.path.open("rb"))
        block = self._stream.read(HEADER_DTYPE.itemsize)
        if len(block) < HEADER_DTYPE.itemsize:
            raise refusal(self.path, "is not a complete MRC file: its header is damaged")
        header = _header_of(block)
        mode = int(header["mode"])
        if mode in _UNREAD:
            raise refusal(
                self.path,
                f"has pixels of mode {mode}, {_UNREAD[mode]}, which is not supported; convert it, "
                "for example by newstack -mode 1",
            )
        unsigned = _has_unsigned_bytes(block, header)
        self._stored = np.dtype(np.uint8) if unsigned else _dtype_of(header)
        refuse_dtype(self.path, self._stored)
        nz, ny, nx = (int(header[name]) for name in ("nz", "ny", "nx"))
        refuse_no_pixels(self.path, (nz, ny, nx))
        length = int(header["nsymbt"])
        if length < 0:
            raise refusal(self.path, "is damaged: its extended header has no length")
        there = self.path.stat().st_size
        self._offset = HEADER_DTYPE.itemsize + length
        needed = self._offset + nz * ny * nx * self._stored.itemsize
        refuse_missing_bytes(self.path, needed, there, compressed=False)
        if length > _LONGEST_EXTENSION:
            raise refusal(
                self.path,
                f"has an extended header of {length} bytes, and up to {_LONGEST_EXTENSION} are "
                "copied; save it without",
            )
        axes, shape = self._layout(header, (nz, ny, nx))
        return ImageHeader(
            shape=shape,
            dtype=native(self._stored),
            axes=axes,
            spacing=self._spacing(header, axes),
            metadata=Metadata(
                own=MrcDetails(header=header, extended=self._stream.read(length), unsigned=unsigned)
            ),
            notes=_notes(header, axes),
        )

    def _layout(self, header: NDArray[Any], size: tuple[int, int, int]) -> tuple[str, Any]:
        """Return the axes that follow from ISPG, and the lengths along them."""
        nz, ny, nx = size
        group, slices = int(header["ispg"]), int(header["mz"])
        if nz == 1:
            return "YX", (ny, nx)
        if group == IMAGE_STACK_SPACEGROUP:
            return "QYX", size
        if not utils.spacegroup_is_volume_stack(group):
            return "ZYX", size
        if slices < 1 or nz % slices:
            raise refusal(
                self.path,
                f"is damaged: its {nz} sections are no stack of volumes of {slices} slices",
            )
        return "QZYX", (nz // slices, slices, ny, nx)

    def _spacing(self, header: NDArray[Any], axes: str) -> dict[str, Spacing]:
        """Return the spacing of columns, rows and sections, each along its axis of the cell."""
        which = [int(header[name]) for name in ("mapc", "mapr", "maps")]
        if which == [0, 0, 0]:  # as old programs leave them
            which = [1, 2, 3]
        if sorted(which) != [1, 2, 3]:
            raise refusal(self.path, f"is damaged: MAPC, MAPR and MAPS are {which}")
        angles = [float(header["cellb"][name]) for name in ("alpha", "beta", "gamma")]
        skew = any(angle != 0 and not abs(angle - 90) <= _RIGHT for angle in angles)
        if skew and "Z" in axes:
            raise refusal(
                self.path,
                "has a unit cell without right angles, in which neighbours are not at right "
                "angles either; resample it to a cell that has them",
            )
        sizes = {}
        for letter, number in zip("XYZ", which, strict=True):
            axis = _AXES[number - 1]
            intervals = int(header[f"m{axis}"])
            sizes[letter] = float(header["cella"][axis]) / intervals if intervals > 0 else 0.0
        # Sections that IMOD calls images may be slices all the same, which --volume says.
        letters = axes if int(header["mz"]) == 1 else axes + "Z"
        return declared([(letter, size, "Å") for letter, size in sizes.items()], letters)

    def _read_pages(self) -> Iterator[Page]:
        size = prod(self.header.size) * self._stored.itemsize
        for number in range(self.header.pages):
            self._stream.seek(self._offset + number * size)
            samples = np.frombuffer(self._stream.read(size), self._stored)
            yield Page(samples.reshape(self.header.size).astype(self.dtype))


def _header_of(block: bytes) -> NDArray[Any]:
    """Return the header in its byte order, which the machine stamp says."""
    header = np.frombuffer(block, HEADER_DTYPE)[0]
    try:
        order = utils.byte_order_from_machine_stamp(header["machst"])
    except ValueError:  # some programs write none; a mode in the right order is small
        order = "<" if 0 <= int(header["mode"]) < 2**16 else ">"
    found: NDArray[Any] = np.frombuffer(block, HEADER_DTYPE.newbyteorder(order))[0]
    return found


def _dtype_of(header: NDArray[Any]) -> np.dtype[Any]:
    dtype: np.dtype[Any] = utils.dtype_from_mode(int(header["mode"]))
    return dtype.newbyteorder(header.dtype["mode"].byteorder)


def _has_unsigned_bytes(block: bytes, header: NDArray[Any]) -> bool:
    """Whether bytes have no sign, as IMOD says, or as their maximum shows.

    The standard has signed ones, and many older files do not.
    """
    if int(header["mode"]) != 0:
        return False
    stamp, flags = (
        np.frombuffer(block[part], header.dtype["mode"])[0] for part in (_STAMP, _FLAGS)
    )
    if int(stamp) == _BYTES_OF_IMOD:
        return not int(flags) & 1
    return bool(header["dmax"] > 127)


def _notes(header: NDArray[Any], axes: str) -> tuple[str, ...]:
    if "Q" in axes and "Z" not in axes and int(header["mz"]) == int(header["nz"]):
        return (
            "the file calls its sections single images (ISPG 0), as some programs do for volumes "
            "too; --volume denoises them as one",
        )
    return ()


class _Statistics:
    """Extremes, mean and standard deviation of pages that come one after the other."""

    def __init__(self) -> None:
        self.lowest, self.highest = np.inf, -np.inf
        self._count, self._mean, self._squares = 0, 0.0, 0.0

    def add(self, pixels: NDArray[Any]) -> None:
        """Add a page; values that are not finite do not count."""
        values = pixels.astype(np.float64).ravel()
        values = values[np.isfinite(values)]
        if not values.size:
            return
        self.lowest = min(self.lowest, float(values.min()))
        self.highest = max(self.highest, float(values.max()))
        mean = float(values.mean())
        squares = float(np.square(values - mean).sum())
        total = self._count + values.size
        shift = mean - self._mean
        self._squares += squares + shift**2 * self._count * values.size / total
        self._mean += shift * values.size / total
        self._count = total

    def enter(self, header: NDArray[Any]) -> None:
        """Write them into a header."""
        if self._count:
            header["dmin"], header["dmax"] = self.lowest, self.highest
            header["dmean"], header["rms"] = self._mean, sqrt(self._squares / self._count)


class Writer(ImageWriter):
    """An MRC file with the header of the one that the image came from."""

    format = "MRC"

    def _start(self) -> None:
        own = self.header.metadata.own
        if not isinstance(own, MrcDetails):
            raise TypeError("an MRC file is written only from another one, with its header")
        self._fields = own.header.copy()
        order = self._fields.dtype["mode"].byteorder
        self._stored = self.header.dtype.newbyteorder(order)
        if not (own.unsigned and self.header.dtype == np.uint8):
            self._fields["mode"] = utils.mode_from_dtype(self.header.dtype)
        self._statistics = _Statistics()
        self._stream = self._opened.enter_context(self.path.open("wb"))
        self._stream.write(self._fields.tobytes() + own.extended)

    @staticmethod
    def problem(header: ImageHeader) -> str | None:
        """Return why MRC cannot hold the image, or None if it can."""
        own = header.metadata.own
        if not isinstance(own, MrcDetails):
            return (
                "MRC is written from MRC only, which says how large its voxels are; write TIFF "
                "(.tif) instead"
            )
        if header.dtype.name not in _DTYPES and not (own.unsigned and header.dtype == np.uint8):
            return f"MRC cannot hold {header.dtype}; write TIFF (.tif) instead"
        return None

    def write(self, page: Page) -> None:
        """Write the next section."""
        self._statistics.add(page.pixels)
        self._stream.write(np.ascontiguousarray(page.pixels, self._stored).tobytes())

    def close(self) -> None:
        """Finish the file, with the statistics of its pixels."""
        if not self._stream.closed:
            self._statistics.enter(self._fields)
            self._stream.seek(0)
            self._stream.write(self._fields.tobytes())
        super().close()
