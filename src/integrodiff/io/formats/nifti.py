"""NIfTI, through nibabel: headers, and slices by its array proxies.

The first axis runs fastest in the file, so the reversed array, with columns last, lies there page
after page. Values are the stored ones: the slope and intercept of the header stay as they are, and
are the unit of noise levels.
nibabel tells compressed files by their names; here the content decides, so that proxies are given
an open stream. They read it forward only, slice after slice.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from gzip import GzipFile
from io import BytesIO
from math import prod
from typing import Any, BinaryIO, ClassVar, cast

import numpy as np
from nibabel import imageglobals
from nibabel.arrayproxy import ArrayProxy
from nibabel.nifti1 import Nifti1Header
from nibabel.nifti2 import Nifti2Header
from nibabel.spatialimages import HeaderDataError
from nibabel.wrapstruct import WrapStructError

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
from integrodiff.io.image import Display, FormatDetails, ImageHeader, Metadata, Page
from integrodiff.io.spacing import Spacing, declared
from integrodiff.units import GreyUnits

_GZIP = b"\x1f\x8b"
_SIZES = {348: Nifti1Header, 540: Nifti2Header}
"""Headers by their size, which is the first number of a file."""

_LONGEST_EXTENSIONS = 2**26
"""Bytes of descriptions behind the header; those of real files have some thousands."""

_NO_EXTENSIONS = 4
"""Bytes behind the header that say that there are no extensions."""


@dataclass(frozen=True, kw_only=True, eq=False)
class NiftiDetails(FormatDetails):
    """The header with its extensions: the geometry, units, scaling and descriptions."""

    format: ClassVar[str] = "NIfTI"
    header: Any

    @property
    def only_here(self) -> str | None:
        """The metadata that is lost in a file of another format, in words for the user."""
        return "the geometry and all other fields of the NIfTI header"

    @property
    def display(self) -> Display:
        """The values after the scaling of the header."""
        slope, intercept = float(self.header["scl_slope"]), float(self.header["scl_inter"])
        usable = np.isfinite([slope, intercept]).all() and slope != 0
        return Display(slope, intercept) if usable else Display()


class Reader(ImageReader):
    """A NIfTI file with grey values."""

    library_errors = (HeaderDataError, WrapStructError)

    def _read_header(self) -> ImageHeader:
        with self.path.open("rb") as stream:
            self._compressed = stream.read(2) == _GZIP
        self._stream = self._opened.enter_context(self._open())
        with _silence():
            header = self._nibabel_header()
        if not header.is_single or header["magic"].item()[:2] != b"n+":
            raise refusal(self.path, "is one of a pair of files; save it as a single .nii file")
        dtype = header.get_data_dtype()
        shape = tuple(int(length) for length in reversed(header.get_data_shape()))
        refuse_dtype(self.path, dtype)
        while len(shape) > 2 and shape[0] == 1:
            shape = shape[1:]
        if len(shape) < 2:
            raise refusal(self.path, f"has data of shape {shape}, which is no image")
        refuse_no_pixels(self.path, shape)
        offset = int(header.get_data_offset())
        if offset < header.single_vox_offset:
            raise refusal(self.path, "is damaged: its pixels begin inside its header")
        needed = int(np.prod(shape, dtype=object)) * dtype.itemsize + offset
        size = self.path.stat().st_size
        refuse_missing_bytes(self.path, needed, size, compressed=self._compressed)
        if self._compressed:
            refuse_bomb(self.path, shape[-2:])
        # Shape, dtype and offset without slope and intercept, so that values are not scaled.
        pages = (shape[-1], shape[-2], prod(shape[:-2]))
        self._slices = ArrayProxy(self._stream, (pages, dtype, offset), mmap=False)
        axes = ("Q" * (len(shape) - 4) + "TZYX")[-len(shape) :]
        return ImageHeader(
            shape=shape,
            dtype=native(dtype),
            axes=axes,
            spacing=_spacing(header, axes),
            metadata=Metadata(own=NiftiDetails(header=header)),
            units=_units(header),
            notes=_scaling_note(_units(header)),
        )

    def _open(self) -> BinaryIO:
        if self._compressed:
            return cast("BinaryIO", GzipFile(self.path, "rb"))
        return self.path.open("rb")

    def _nibabel_header(self) -> Any:
        size = self._stream.read(4)
        for number in (int.from_bytes(size, "little"), int.from_bytes(size, "big")):
            kind: Any = _SIZES.get(number)
            if kind is not None:
                block = size + self._stream.read(kind.sizeof_hdr - len(size))
                return kind.from_fileobj(BytesIO(block + self._extensions(kind(block))))
        raise refusal(self.path, "is not a complete NIfTI file: its header is damaged")

    def _extensions(self, header: Any) -> bytes:
        """Return what lies between header and pixels; nibabel would read it without a limit."""
        # Files without extensions may have any number there, which is checked later.
        offset = header.get_data_offset() if np.isfinite(header["vox_offset"]) else 0
        length = max(int(offset) - header.sizeof_hdr, _NO_EXTENSIONS)
        if length > _LONGEST_EXTENSIONS:
            raise refusal(
                self.path,
                f"has {length} bytes between its header and its pixels, and at most "
                f"{_LONGEST_EXTENSIONS} are read; save it without its extensions",
            )
        return self._stream.read(length)

    def _read_pages(self) -> Iterator[Page]:
        for number in range(self.header.pages):
            samples = np.asarray(self._slices[..., number])
            yield Page(np.ascontiguousarray(samples.T, self.dtype))


def _spacing(header: Any, axes: str) -> dict[str, Spacing]:
    """Return the spacing along the axes."""
    try:
        space, time = header.get_xyzt_units()
    except KeyError:  # codes that the standard does not have
        space = time = None
    units = (space, space, space, time)
    return declared(zip("XYZT", header["pixdim"][1:5], units, strict=True), axes)


def _units(header: Any) -> GreyUnits:
    """Return what stored values stand for."""
    slope, intercept = float(header["scl_slope"]), float(header["scl_inter"])
    if not np.isfinite([slope, intercept]).all() or slope == 0:
        return GreyUnits()
    return GreyUnits(slope, intercept)


def _scaling_note(units: GreyUnits) -> tuple[str, ...]:
    """Report the scale of what is given and reported, if it is not that of the stored values."""
    if units.are_stored:
        return ()
    return (
        f"stored grey values, which the file scales by {units.slope:g} and shifts by "
        f"{units.intercept:g}; noise levels are in the scaled unit",
    )


@contextmanager
def _silence() -> Iterator[None]:
    """Keep nibabel from logging to the terminal which headers it repairs."""
    logger: logging.Logger = imageglobals.logger
    disabled, logger.disabled = logger.disabled, True
    try:
        yield
    finally:
        logger.disabled = disabled


class Writer(ImageWriter):
    """A NIfTI file with the header of the one that the image came from."""

    format = "NIfTI"

    def _start(self) -> None:
        own = self.header.metadata.own
        if not isinstance(own, NiftiDetails):
            raise TypeError("a NIfTI file is written only from another one, with its header")
        new = own.header.copy()
        new.set_data_dtype(self.header.dtype)
        new["vox_offset"] = 0  # set anew, behind the extensions
        self._dtype = self.header.dtype.newbyteorder(new.endianness)
        self._stream: Any = self._opened.enter_context(self.path.open("wb"))
        if self.path.suffix.lower() == ".gz":
            # Without time and temporary name, so that the same image makes the same file.
            stream = GzipFile("", "wb", 6, self._stream, mtime=0)
            self._stream = self._opened.enter_context(stream)
        new.write_to(self._stream)
        self._stream.write(bytes(int(new["vox_offset"]) - self._stream.tell()))

    @staticmethod
    def problem(header: ImageHeader) -> str | None:
        """Return why NIfTI cannot hold the image, or None if it can."""
        if isinstance(header.metadata.own, NiftiDetails):
            return None
        return (
            "NIfTI is written from NIfTI only, which says where in space the pixels lie; write "
            "TIFF (.tif) instead"
        )

    def write(self, page: Page) -> None:
        """Write the next page."""
        self._stream.write(np.ascontiguousarray(page.pixels, self._dtype).tobytes())
