"""NPY, the format of single NumPy arrays. Pickled objects in it are refused, never loaded."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from tokenize import TokenError
from typing import Any, ClassVar, Literal

import numpy as np
from numpy.lib import format as npy_format

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

_COLOURS, _COLOURS_AND_ALPHA = 3, 4
_LONGEST_HEADER = 10_000
"""Bytes of a header; NumPy parses no longer one, but would read it."""


@dataclass(frozen=True, kw_only=True)
class NpyDetails(FormatDetails):
    """The dtype in the file, with its byte order."""

    format: ClassVar[str] = "NPY"
    dtype: np.dtype[Any]


class Reader(ImageReader):
    """An array of rows and columns, with pages before and colours after them."""

    library_errors = (TokenError, TypeError)  # over the text of the header

    def _read_header(self) -> ImageHeader:
        stream = self._opened.enter_context(self.path.open("rb"))
        version = npy_format.read_magic(stream)
        at = stream.tell()
        if version == (2, 0) and int.from_bytes(stream.read(4), "little") > _LONGEST_HEADER:
            raise refusal(self.path, f"has a header of more than {_LONGEST_HEADER} bytes")
        stream.seek(at)
        if version == (1, 0):
            shape, fortran, dtype = npy_format.read_array_header_1_0(stream)
        elif version == (2, 0):
            shape, fortran, dtype = npy_format.read_array_header_2_0(stream)
        else:
            raise refusal(self.path, f"is NPY of version {version}; save it again with NumPy")
        refuse_dtype(self.path, dtype)
        if len(shape) < 2:
            raise refusal(self.path, f"has an array of shape {shape}, which is no image")
        refuse_no_pixels(self.path, shape)
        self._shape, self._dtype = shape, dtype
        self._order: Literal["F", "C"] = "F" if fortran else "C"
        self._offset = stream.tell()
        size = self.path.stat().st_size - self._offset
        refuse_missing_bytes(
            self.path, int(np.prod(shape, dtype=object)) * dtype.itemsize, size, compressed=False
        )
        return array_header(shape, dtype, NpyDetails(dtype=dtype))

    def _read_pages(self) -> Iterator[Page]:
        for index in np.ndindex(*self.layout.plane_grid):
            # Mapped anew for every page, so that no more than that stays in memory.
            array = np.memmap(
                self.path, self._dtype, "r", self._offset, self._shape, order=self._order
            )
            yield array_page(np.array(array[index], native(self._dtype), order="C"), self.header)


def array_header(shape: tuple[int, ...], dtype: np.dtype[Any], own: FormatDetails) -> ImageHeader:
    """Return the header for an array whose axes have no names."""
    notes: tuple[str, ...] = ()
    plane, has_alpha = "YX", False
    if len(shape) > 2 and shape[-1] in (_COLOURS, _COLOURS_AND_ALPHA):
        plane, has_alpha = "YXS", shape[-1] == _COLOURS_AND_ALPHA
        alpha = " and alpha, which is kept as it is" if has_alpha else ""
        notes = (f"the last axis, of length {shape[-1]}, is taken for red, green, blue{alpha}",)
        shape = (*shape[:-1], _COLOURS)
    return ImageHeader(
        shape=shape,
        dtype=native(dtype),
        axes="Q" * (len(shape) - len(plane)) + plane,
        has_alpha=has_alpha,
        metadata=Metadata(own=own),
        notes=notes,
    )


def array_page(samples: np.ndarray[Any, Any], header: ImageHeader) -> Page:
    """Return a page of an array, with alpha separated from colours."""
    if not header.has_alpha:
        return Page(samples)
    return Page(np.ascontiguousarray(samples[..., :-1]), np.ascontiguousarray(samples[..., -1]))


class Writer(ImageWriter):
    """An array in C order."""

    format = "NPY"

    def _start(self) -> None:
        header, own = self.header, self.header.metadata.own
        order = own.dtype.byteorder if isinstance(own, NpyDetails) else "="
        self._dtype = header.dtype.newbyteorder(order)
        samples = (header.values_per_pixel,) if header.values_per_pixel > 1 else ()
        description = {
            "descr": npy_format.dtype_to_descr(self._dtype),
            "fortran_order": False,
            "shape": (*header.layout.plane_grid, *header.size, *samples),
        }
        self._stream = self._opened.enter_context(self.path.open("wb"))
        npy_format.write_array_header_1_0(self._stream, description)

    @staticmethod
    def problem(header: ImageHeader) -> str | None:
        """Return None: an array holds everything."""
        return None

    def write(self, page: Page) -> None:
        """Write the next page."""
        self._stream.write(np.ascontiguousarray(page.samples, self._dtype).data)
