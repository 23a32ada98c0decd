"""Masks in image files: one bit per pixel is enough, and every value but zero is valid."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageSequence, UnidentifiedImageError

from integrodiff.io.access import (
    ImageReader,
    collected,
    decoding,
    pixel_limit,
    refuse_missing_bytes,
)
from integrodiff.io.registry import Format, format_of_content

_BITMAP, _TWO_COLOURS = "1", "P;1"
"""Pillow's names for images of one bit per pixel, and for one bit as it is stored of a palette."""

_ORIENTATION = 274
_TURNED_BACK = {
    2: Image.Transpose.FLIP_LEFT_RIGHT,
    3: Image.Transpose.ROTATE_180,
    4: Image.Transpose.FLIP_TOP_BOTTOM,
    5: Image.Transpose.TRANSPOSE,
    6: Image.Transpose.ROTATE_90,
    7: Image.Transpose.TRANSVERSE,
    8: Image.Transpose.ROTATE_270,
}
"""What undoes the turn with which Pillow reads TIFF files, by the orientation they declare."""


def read_mask(path: str | os.PathLike[str]) -> NDArray[np.bool_]:
    """Read a mask, ``(row, column)`` with an axis of pages before them if there are several.

    Pixels are True unless they are zero or NaN; a pixel in colour is zero if all of its samples
    are. Transparency does not count.

    Raises
    ------
    ImageFileError
        If the file cannot be read.
    """
    path = Path(path)
    form = format_of_content(path)
    bits = _bitmap(path, form)
    return _other(form.open(path)) if bits is None else bits


def _bitmap(path: Path, form: Format) -> NDArray[np.bool_] | None:
    """Read a file of one bit per pixel, which is refused as an image; None if it is another."""
    with decoding(path):
        if form.name == "NPY":
            array = np.load(path, mmap_mode="r", allow_pickle=False)
            return np.array(array) if array.dtype == np.bool_ and array.ndim > 1 else None
        if form.name not in ("BMP", "PNG", "TIFF"):
            return None
        try:
            picture = Image.open(path, formats=(form.name,))
        except UnidentifiedImageError:
            return None
        with picture:
            if picture.mode != _BITMAP and not _has_two_colours(picture):
                return None
            # Pages may share their bytes, and each is as large as the limit allows.
            pixels = picture.width * picture.height * getattr(picture, "n_frames", 1)
            if pixels > pixel_limit():
                refuse_missing_bytes(path, pixels, path.stat().st_size, compressed=True)
            pages = [_as_stored(page) for page in ImageSequence.Iterator(picture)]
        return pages[0] if len(pages) == 1 else np.stack(pages)


def _has_two_colours(picture: Any) -> bool:
    """Whether an image has a palette and one bit per pixel; others are read by their format."""
    return picture.mode == "P" and _TWO_COLOURS in str(picture.tile[0][3])


def _as_stored(page: Any) -> NDArray[np.bool_]:
    """Return a page of a bitmap as it is stored, as images are."""
    orientation = page.tag_v2.get(_ORIENTATION, 1) if page.format == "TIFF" else 1
    page.load()
    turn = _TURNED_BACK.get(orientation)
    stored = page if turn is None else page.transpose(turn)
    if page.mode == _BITMAP:
        return np.array(stored, np.bool_)
    return np.asarray(np.array(stored.convert("RGB")).any(axis=-1))


def _other(reader: ImageReader) -> NDArray[np.bool_]:
    try:
        image = collected(reader)
    finally:
        reader.close()
    pixels: NDArray[Any] = image.pixels
    valid = (pixels != 0) & ~np.isnan(pixels)
    return np.asarray(valid.any(axis=-1) if image.header.layout.has_samples else valid)
