"""The formats: how they are recognised, and which modules read and write them.

A format is one entry of a table and one module, which has a ``Reader`` and a ``Writer``. The module
is imported when a file needs it, so that the packages for other formats need not be installed.
"""

from __future__ import annotations

import stat
import zlib
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path

from integrodiff.errors import ImageFileError
from integrodiff.install import install_first
from integrodiff.io.access import ImageReader, ImageWriter, output_refusal, refusal

_HEAD = 600
"""Bytes that are read to recognise a format: a NIfTI header, and some more."""


@dataclass(frozen=True, kw_only=True)
class Format:
    """A format of image files.

    Attributes
    ----------
    name : str
        Its name.
    suffixes : tuple of str
        Its file extensions, in lower case.
    begins : callable
        Whether the first bytes of a file are those of this format.
    module : str
        The module that reads and writes it.
    package, extra : str, optional
        The package it needs that not every installation has, and the extra of this package that
        installs it.
    provides : str, optional
        The module of that package that must be there, if it has another name.
    folder : bool
        Whether an image is a folder of files. One without file extensions is written to names
        that have none, from an image of the same format.
    detached : bool
        Whether an image may be read from another file besides the one that is named.
    """

    name: str
    suffixes: tuple[str, ...]
    begins: Callable[[bytes], bool]
    module: str
    package: str | None = None
    extra: str | None = None
    provides: str | None = None
    folder: bool = False
    detached: bool = False

    @property
    def missing(self) -> str | None:
        """What must be installed first, in words for the user; None if nothing is missing."""
        if self.package is None or self.extra is None or has_package(self.provides or self.package):
            return None
        return install_first(f"the format {self.name}", self.package, self.extra)

    def open(self, path: Path) -> ImageReader:
        """Open a file of this format."""
        if self.missing is not None:
            raise refusal(path, self.missing)
        reader: type[ImageReader] = import_module(self.module).Reader
        return reader(path)

    def writer(self, path: Path) -> type[ImageWriter]:
        """Return the class that writes files of this format."""
        if self.missing is not None:
            raise output_refusal(path, self.missing)
        writer: type[ImageWriter] = import_module(self.module).Writer
        return writer


def has_package(name: str) -> bool:
    """Return whether a package can be imported."""
    return find_spec(name) is not None


def _magic(*beginnings: bytes) -> Callable[[bytes], bool]:
    return lambda head: head.startswith(beginnings)


def _is_nifti(head: bytes) -> bool:
    """Whether a file begins like NIfTI 1 or 2, as it is or compressed by gzip."""
    if head.startswith(b"\x1f\x8b"):
        try:
            head = zlib.decompressobj(wbits=31).decompress(head, _HEAD)
        except zlib.error:
            return False
    # Pairs of files have "i" in place of "+", and are recognised to be refused with a proposal.
    return head[344:348] in (b"n+1\0", b"ni1\0") or head[4:8] in (b"n+2\0", b"ni2\0")


def _is_bmp(head: bytes) -> bool:
    """Whether a file begins like BMP, with one of the known lengths of the second header."""
    return head.startswith(b"BM") and head[14:18] in (
        size.to_bytes(4, "little") for size in (12, 40, 52, 56, 64, 108, 124)
    )


def _brand(*names: bytes) -> Callable[[bytes], bool]:
    """Recognise the main brand of files that are made of boxes; AVIF may be among the others."""

    def begins(head: bytes) -> bool:
        if head[4:8] != b"ftyp":
            return False
        length = int.from_bytes(head[:4], "big")
        main, others = head[8:12], head[16:length]
        if main == b"mif1":  # any image in this container; the others say which
            known = (b"avif", b"avis")
            found = any(others[at : at + 4] in known for at in range(0, len(others), 4))
            return (b"avif" in names) == found
        return main in names

    return begins


_HERE = "integrodiff.io.formats"

FORMATS = (
    Format(
        name="PNG",
        suffixes=(".png",),
        begins=_magic(b"\x89PNG\r\n\x1a\n"),
        module=f"{_HERE}.png",
    ),
    Format(
        name="JPEG",
        suffixes=(".jpg", ".jpeg"),
        begins=_magic(b"\xff\xd8\xff"),
        module=f"{_HERE}.jpeg",
    ),
    Format(
        name="TIFF",
        suffixes=(".tif", ".tiff"),
        begins=_magic(b"II*\0", b"MM\0*", b"II+\0", b"MM\0+"),
        module=f"{_HERE}.tiff",
    ),
    Format(
        name="WebP",
        suffixes=(".webp",),
        begins=lambda head: head.startswith(b"RIFF") and head[8:12] == b"WEBP",
        module=f"{_HERE}.webp",
    ),
    Format(
        name="GIF", suffixes=(".gif",), begins=_magic(b"GIF87a", b"GIF89a"), module=f"{_HERE}.gif"
    ),
    Format(name="BMP", suffixes=(".bmp",), begins=_is_bmp, module=f"{_HERE}.bmp"),
    Format(
        name="AVIF",
        suffixes=(".avif",),
        begins=_brand(b"avif", b"avis"),
        module=f"{_HERE}.avif",
        package="pillow>=11.3",
        extra="avif",
        provides="PIL._avif",
    ),
    Format(
        name="HEIC",
        suffixes=(".heic", ".heif"),
        begins=_brand(b"heic", b"heix", b"heim", b"heis", b"mif1"),
        module=f"{_HERE}.heic",
        package="pillow-heif",
        extra="heic",
        provides="pillow_heif",
    ),
    Format(name="NPY", suffixes=(".npy",), begins=_magic(b"\x93NUMPY"), module=f"{_HERE}.npy"),
    Format(
        name="DICOM",
        suffixes=(".dcm",),
        begins=lambda head: head[128:132] == b"DICM",
        module=f"{_HERE}.dicom",
        package="pydicom",
        extra="medical",
    ),
    Format(
        name="NIfTI",
        suffixes=(".nii", ".nii.gz"),
        begins=_is_nifti,
        module=f"{_HERE}.nifti",
        package="nibabel",
        extra="medical",
    ),
    Format(
        name="NRRD",
        suffixes=(".nrrd",),
        begins=_magic(b"NRRD000"),
        module=f"{_HERE}.nrrd",
        package="pynrrd",
        extra="medical",
        provides="nrrd",
        detached=True,
    ),
    Format(
        name="MRC",
        suffixes=(".mrc", ".map", ".mrcs", ".rec"),
        begins=lambda head: head[208:211] == b"MAP",
        module=f"{_HERE}.mrc",
        package="mrcfile",
        extra="microscopy",
    ),
    Format(
        name="OME-Zarr",
        suffixes=(".zarr",),
        begins=lambda head: False,
        module=f"{_HERE}.ome_zarr",
        package="zarr",
        extra="zarr",
        folder=True,
    ),
    Format(
        name="DICOM series",
        suffixes=(),
        begins=lambda head: False,
        module=f"{_HERE}.dicom_series",
        package="pydicom",
        extra="medical",
        folder=True,
    ),
)
"""All formats that can be read and written."""

SUFFIXES = {suffix: form for form in FORMATS for suffix in form.suffixes}
"""The formats by file extension."""

_ZARR_FILES = ("zarr.json", ".zgroup", ".zarray", ".zattrs")


def format_of_name(path: Path) -> Format | None:
    """Return the format that follows from a file extension, if any."""
    name = path.name.lower()
    return next((form for suffix, form in SUFFIXES.items() if name.endswith(suffix)), None)


def format_of_content(path: Path) -> Format:
    """Return the format of a file, recognised by its first bytes.

    Raises
    ------
    ImageFileError
        If there is no such file, if it cannot be opened, or if its format is unknown.
    """
    try:
        mode = path.stat().st_mode
        if stat.S_ISDIR(mode):
            return _format_of_folder(path)
        if not stat.S_ISREG(mode):
            raise refusal(path, "is not a regular file; save the image to a file first")
        with path.open("rb") as stream:
            head = stream.read(_HEAD)
    except FileNotFoundError:
        raise refusal(path, "there is no such file; check the name") from None
    except ImageFileError:
        raise
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else error
        raise refusal(path, f"cannot be opened: {reason}") from error
    if not head:
        raise refusal(path, "is empty; get it again from its source")
    for form in FORMATS:
        if form.begins(head):
            return form
    *names, last = [form.name for form in FORMATS if not form.folder]
    raise refusal(
        path, f"this is not a {', '.join(names)} or {last} file; convert it to one of these formats"
    )


def is_image_folder(path: Path, *, series: bool = True) -> bool:
    """Return whether a folder is one image, and not a folder of images.

    Parameters
    ----------
    path : Path
        The folder.
    series : bool
        Whether the files of a DICOM series count as one image, as those of OME-Zarr do.
    """
    form = format_of_name(path)
    named = form is not None and form.folder
    try:
        return path.is_dir() and (
            named or _holds_zarr(path) or (series and series_in_folder(path) == 1)
        )
    except (OSError, ValueError):  # reported when it is opened
        return False


def series_in_folder(path: Path) -> int:
    """Return how many DICOM series are in a folder that holds no other images.

    Slices without a place in space do not count, nor does a single file.
    """
    files = [file for file in path.iterdir() if not file.name.startswith(".")]
    forms = {form.name for file in files if (form := format_of_name(file)) is not None}
    if forms - {"DICOM"} or _SERIES.missing is not None:
        return 0
    if sum(map(_begins_like_dicom, files)) < 2:
        return 0
    module = import_module(_SERIES.module)
    count: int = module.series_in(path, module.image_files(path))
    return count


def largest_series_among(files: Iterable[Path]) -> list[Path]:
    """Return those of some files that are slices of the same DICOM series, of the largest one.

    Slices without a place in space do not count; with fewer than two slices nothing is returned.
    """
    candidates = [file for file in files if _begins_like_dicom(file)]
    if len(candidates) < 2 or _SERIES.missing is not None:
        return []
    found: list[Path] = import_module(_SERIES.module).largest_series_among(candidates)
    return found


_SERIES = FORMATS[-1]


def _begins_like_dicom(path: Path) -> bool:
    try:
        if not path.is_file():  # a pipe would be waited for
            return False
        with path.open("rb") as stream:
            return stream.read(132)[128:] == b"DICM"
    except OSError:
        return False


def _holds_zarr(path: Path) -> bool:
    return any((path / name).is_file() for name in _ZARR_FILES)


def _format_of_folder(path: Path) -> Format:
    if _holds_zarr(path):
        return SUFFIXES[".zarr"]
    if series_in_folder(path):
        return _SERIES
    raise refusal(
        path, "is a folder without a Zarr image or a DICOM series; give the name of an image file"
    )
