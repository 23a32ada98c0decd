"""Image files: reading and writing PNG, JPEG and TIFF so that nothing is lost in silence.

What a format cannot hold is refused with a proposal, before anything is computed; what is left
out by necessity is said in a note. Output files appear whole or not at all.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from integrodiff._atomic import atomic_write
from integrodiff._image_files.image import ImageFile, Metadata, refusal

__all__ = [
    "ImageFile",
    "Metadata",
    "check_output",
    "check_output_path",
    "read_image",
    "write_image",
]

_MAGIC = {
    b"\x89PNG\r\n\x1a\n": "PNG",
    b"\xff\xd8\xff": "JPEG",
    b"II*\0": "TIFF",
    b"MM\0*": "TIFF",
    b"II+\0": "TIFF",
    b"MM\0+": "TIFF",
}

SUFFIXES = {".png": "PNG", ".jpg": "JPEG", ".jpeg": "JPEG", ".tif": "TIFF", ".tiff": "TIFF"}
"""Formats that can be written, by the suffix of the file name."""


def read_image(path: str | os.PathLike[str]) -> ImageFile:
    """Read an image file; its content decides on the format, not its name.

    Raises
    ------
    ImageFileError
        If the file cannot be opened, is damaged, or holds something that cannot be denoised or
        not be read without loss; the message names the file and says what to do.
    """
    path = Path(path)
    kind = _format_of_content(path)
    if kind == "TIFF":
        from integrodiff._image_files.tiff_reading import read_tiff

        return read_tiff(path)
    from integrodiff._image_files.png_jpeg import read_jpeg, read_png

    return read_png(path) if kind == "PNG" else read_jpeg(path)


def write_image(
    path: str | os.PathLike[str], image: ImageFile, *, overwrite: bool = False
) -> tuple[str, ...]:
    """Write an image file in the format that the suffix of its name says.

    Returns
    -------
    tuple of str
        What the format could not carry over besides the pixels, in words for the user.

    Raises
    ------
    ImageFileError
        If the format cannot hold the image, if the file exists and ``overwrite`` is false, or if
        it cannot be written. An existing file is then unchanged.
    """
    path = Path(path)
    check_output(path, image, overwrite=overwrite)
    kind = SUFFIXES[path.suffix.lower()]
    try:
        with atomic_write(path, overwrite=overwrite) as temporary:
            _writer(kind)(temporary, image)
    except OSError as error:
        raise refusal(path, f"cannot be written: {error.strerror or error}") from error
    except ValueError as error:  # metadata that the format has no room for
        raise refusal(path, f"cannot be written as {kind}: {error}") from error
    return _left_behind(image.metadata, kind)


def check_output_path(path: Path, *, overwrite: bool) -> None:
    """Refuse a path that no image can be written to, whatever the image.

    Raises
    ------
    ImageFileError
        With what is wrong and what to do.
    """
    if path.suffix.lower() not in SUFFIXES:
        raise refusal(
            path,
            f"the suffix {path.suffix!r} stands for no format that can be written; expected one "
            f"of {', '.join(SUFFIXES)}",
        )
    try:
        if path.is_dir():
            raise refusal(path, "is a folder; give the name of a file")
        if path.exists():
            if not path.is_file():
                raise refusal(path, "is not a regular file and will not be replaced")
            if not overwrite:
                raise refusal(path, "exists already; give another name, or --overwrite it")
        folder = Path(os.path.realpath(path)).parent
        if not folder.is_dir():
            raise refusal(path, "cannot be written: its folder does not exist; make it first")
        if not os.access(folder, os.W_OK):
            raise refusal(path, "cannot be written: you may not write to its folder")
    except OSError as error:
        raise refusal(path, f"cannot be written: {error.strerror or error}") from error


def check_output(
    path: Path, image: ImageFile, *, overwrite: bool, dtype: np.dtype[Any] | None = None
) -> None:
    """Refuse a path or format that cannot take the image, here in another dtype if one is given.

    Raises
    ------
    ImageFileError
        With what is wrong and what to do.
    """
    check_output_path(path, overwrite=overwrite)
    kind = SUFFIXES[path.suffix.lower()]
    dtype = image.pixels.dtype if dtype is None else dtype
    if kind == "TIFF":
        return
    if image.pages > 1:
        raise refusal(path, f"{kind} cannot hold {image.pages} pages; write TIFF (.tif) instead")
    if image.channels not in (1, 3):
        raise refusal(
            path, f"{kind} cannot hold {image.channels} channels; write TIFF (.tif) instead"
        )
    if kind == "PNG":
        if dtype == np.uint8 or (dtype == np.uint16 and image.kind == "grey"):
            return
        what = f"{dtype} {image.kind}" if dtype == np.uint16 else f"{dtype}"
        raise refusal(
            path,
            f"PNG is written with 8 bits, or with 16 bits in grey without alpha, and this image "
            f"is {what}; write TIFF (.tif) instead",
        )
    if dtype != np.uint8:
        remedy = "PNG or TIFF" if dtype == np.uint16 and image.kind == "grey" else "TIFF"
        raise refusal(path, f"JPEG holds 8 bits only, not {dtype}; write {remedy} instead")
    if image.alpha is not None:
        raise refusal(path, "JPEG cannot hold an alpha channel; write PNG or TIFF instead")


def _format_of_content(path: Path) -> str:
    """Return the format that the first bytes say, or refuse the file."""
    try:
        mode = path.stat().st_mode
        if stat.S_ISDIR(mode):
            raise refusal(path, "is a folder; give the name of an image file")
        if not stat.S_ISREG(mode):
            raise refusal(path, "is not a regular file; save the image to a file first")
        with path.open("rb") as stream:
            head = stream.read(16)
    except FileNotFoundError:
        raise refusal(path, "there is no such file; check the name") from None
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else str(error)
        raise refusal(path, f"cannot be opened: {reason}") from error
    if not head:
        raise refusal(path, "is empty; get it again from its source")
    for magic, kind in _MAGIC.items():
        if head.startswith(magic):
            return kind
    raise refusal(path, "is by its content no PNG, JPEG or TIFF file; convert it to one of them")


def _writer(kind: str) -> Callable[[Path, ImageFile], None]:
    if kind == "TIFF":
        from integrodiff._image_files.tiff_writing import write_tiff

        return write_tiff
    from integrodiff._image_files.png_jpeg import write_jpeg, write_png

    return write_png if kind == "PNG" else write_jpeg


def _left_behind(metadata: Metadata, kind: str) -> tuple[str, ...]:
    """Return in words which metadata the format of the output did not take."""
    missing = []
    if kind == "TIFF" and metadata.exif is not None:
        missing.append("EXIF data (but for the orientation)")
    if kind != "JPEG" and metadata.comment is not None:
        missing.append("the JPEG comment")
    if kind != "PNG" and any(name != b"sRGB" for name, _ in metadata.png_chunks):
        missing.append("text and colour space chunks of the PNG file")
    if kind != "TIFF" and metadata.tiff is not None and metadata.tiff.says_more:
        missing.append("descriptions and other tags of the TIFF file")
    return tuple(f"not carried over to {kind}: {what}" for what in missing)
