"""OME-Zarr, and plain Zarr arrays, through zarr.

Of a pyramid the full resolution is read. A new image gets the metadata files of its source, so
that chunks, compression and descriptions stay as they were. Only codecs that are known to be
harmless are run: there is one that unpickles.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from copy import deepcopy
from dataclasses import dataclass, replace
from math import prod
from pathlib import Path, PurePosixPath
from typing import Any, ClassVar

import numpy as np
import zarr
from numpy.typing import NDArray
from zarr.abc.store import ByteRequest
from zarr.codecs import BloscCodec
from zarr.core.array_spec import ArraySpec
from zarr.core.buffer import Buffer, BufferPrototype
from zarr.registry import register_codec
from zarr.storage import LocalStore

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
from integrodiff.io.formats.npy import array_header, array_page
from integrodiff.io.image import FormatDetails, ImageHeader, Metadata, Page

_CODECS = ("blosc", "bz2", "gzip", "lz4", "lzma", "zlib", "zstd")
"""Compression in both versions of the format."""

_CODECS_3 = (*_CODECS, "bytes", "crc32c", "sharding_indexed", "transpose")
_METADATA = ("zarr.json", ".zgroup", ".zarray", ".zattrs")
_LARGEST_SLAB = 2**27
"""Bytes of pages that are held in memory because they share chunks."""

_LARGEST_FILE = 2**24
"""Bytes of a file of metadata."""


@dataclass(frozen=True, kw_only=True, eq=False)
class ZarrDetails(FormatDetails):
    """The metadata files, by their path in the folder, and the path of the array."""

    format: ClassVar[str] = "OME-Zarr"
    files: dict[str, Any]
    array: str

    @property
    def only_here(self) -> str | None:
        """What a file of another format goes without, in words for the user."""
        return "the axes, scales and other attributes of the Zarr folder"


class Reader(ImageReader):
    """A folder with an OME-Zarr image or a plain Zarr array."""

    def _read_header(self) -> ImageHeader:
        files = _metadata_files(self.path, "")
        image = _multiscale(self.path, files)
        array = "" if image is None else _dataset_path(self.path, image)
        if array:
            files |= _metadata_files(self.path, array)
        _refuse_codecs(self.path, files, array)
        # The codec of version 3 is chosen by name; version 2 knows no choice.
        with zarr.config.set({"codecs.blosc": f"{__name__}.CheckedBlosc"}):
            store = CheckedStore(self.path / array, read_only=True)
            self._array = zarr.open_array(store, mode="r")
        if _version_2_blosc(files, array):
            store.blosc = True
        shape, dtype = self._array.shape, np.dtype(self._array.dtype)
        refuse_dtype(self.path, dtype)
        if len(shape) < 2:
            raise refusal(self.path, f"has an array of shape {shape}, which is no image")
        refuse_no_pixels(self.path, shape)
        there, count = _stored(self.path, array)
        refuse_missing_bytes(self.path, prod(shape) * dtype.itemsize, there, compressed=True)
        refuse_bomb(self.path, self._array.chunks)
        refuse_bomb(self.path, shape[-2:])
        details = ZarrDetails(files=files, array=array)
        if image is None:
            header = array_header(shape, dtype, details)
        else:
            _refuse_axes(self.path, image, len(shape))
            header = ImageHeader(
                shape=shape,
                dtype=native(dtype),
                metadata=Metadata(own=details),
                notes=_notes(self.path, image),
            )
        return replace(header, notes=header.notes + _missing_note(self._array, count))

    def _read_pages(self) -> Iterator[Page]:
        for index in _slabs(self._array, self.header):
            slab = np.asarray(self._array[(*index, ...)])
            pages = slab if self.header.page_axes else slab[None]
            for samples in pages.astype(self.header.dtype, copy=False):
                yield array_page(samples, self.header)


def _slabs(array: Any, header: ImageHeader) -> Iterator[tuple[int | slice, ...]]:
    """Give indices of pages that are read or written together, since they share chunks."""
    axes = header.page_axes
    if not axes:
        yield ()
        return
    depth = (array.shards or array.chunks)[len(axes) - 1]
    if depth * prod(array.shape[len(axes) :]) * array.dtype.itemsize > _LARGEST_SLAB:
        depth = 1
    for index in np.ndindex(*axes[:-1]):
        for first in range(0, axes[-1], depth):
            yield (*index, slice(first, min(first + depth, axes[-1])))


def refuse_cut_blosc(data: bytes) -> None:
    """Raise an error over Blosc data of another length than they say.

    The decoder would read what lies behind them in memory, or crash.
    """
    if len(data) < 16 or int.from_bytes(data[12:16], "little") != len(data):
        raise ValueError("a chunk compressed by Blosc is cut off")


class CheckedBlosc(BloscCodec):
    """Blosc in version 3 of the format, which looks at the length of data first."""

    async def _decode_single(self, chunk_bytes: Buffer, chunk_spec: ArraySpec) -> Buffer:
        refuse_cut_blosc(chunk_bytes.to_bytes())
        return await super()._decode_single(chunk_bytes, chunk_spec)


class CheckedStore(LocalStore):
    """The files of an array, whose lengths are looked at first if Blosc made them."""

    blosc = False

    async def get(
        self,
        key: str,
        prototype: BufferPrototype | None = None,
        byte_range: ByteRequest | None = None,
    ) -> Buffer | None:
        """Return the content of a file."""
        data = await super().get(key, prototype, byte_range)
        if self.blosc and data is not None:
            refuse_cut_blosc(data.to_bytes())
        return data


register_codec("blosc", CheckedBlosc)


def _version_2_blosc(files: dict[str, Any], array: str) -> bool:
    """Whether the chunks are compressed by Blosc in version 2 of the format."""
    content = files.get(str(PurePosixPath(array) / ".zarray"), {})
    return (content.get("compressor") or {}).get("id") == "blosc"


def _metadata_files(root: Path, folder: str) -> dict[str, Any]:
    """Return the metadata of a group or array, by the path of its files."""
    found = {}
    for name in _METADATA:
        relative = str(PurePosixPath(folder) / name)
        path = root / relative
        if not path.is_file():
            continue
        if path.stat().st_size > _LARGEST_FILE:
            raise refusal(root, f"has metadata of more than {_LARGEST_FILE} bytes in {relative}")
        content = json.loads(path.read_bytes())
        if not isinstance(content, dict):
            raise refusal(root, f"is damaged: there is no metadata in {relative}")
        content.pop("consolidated_metadata", None)
        found[relative] = content
    return found


def _attributes(files: dict[str, Any]) -> dict[str, Any]:
    """Return the attributes of the folder, where they are in either version of the format."""
    attributes = files.get(".zattrs", files.get("zarr.json", {}).get("attributes", {}))
    attributes = attributes if isinstance(attributes, dict) else {}
    ome = attributes.get("ome")
    return ome if isinstance(ome, dict) else attributes


def _multiscale(root: Path, files: dict[str, Any]) -> dict[str, Any] | None:
    """Return the description of the only image, or None for a plain array."""
    images = _attributes(files).get("multiscales")
    if images is None:
        if ".zarray" in files or files.get("zarr.json", {}).get("node_type") == "array":
            return None
        raise refusal(
            root,
            "is a Zarr group without an OME-Zarr image of its own, such as a plate or a "
            "collection; give the folder of one image in it",
        )
    if not isinstance(images, list) or len(images) != 1:
        raise refusal(root, f"describes {len(images)} images; save each in a folder of its own")
    image = images[0]
    if not isinstance(image, dict):
        raise refusal(root, "is damaged: its image has no description")
    return image


def _dataset_path(root: Path, image: dict[str, Any]) -> str:
    """Return where in the folder the full resolution lies."""
    path = image["datasets"][0]["path"]
    parts = PurePosixPath(path).parts
    if not parts or path.startswith("/") or ".." in parts or "\\" in path:
        raise refusal(root, f"names an array outside of its folder, {path!r}; it is not followed")
    if not (root / path).resolve().is_relative_to(root.resolve()):
        raise refusal(root, f"has a link that leads out of its folder, {path!r}")
    return str(PurePosixPath(path))


def _stored(root: Path, array: str) -> tuple[int, int]:
    """Return size and number of all chunks; refuse what is no file of this folder."""
    total, count = 0, 0
    for path in (root / array).rglob("*"):
        if path.is_symlink() and not path.resolve().is_relative_to(root.resolve()):
            raise refusal(root, f"has a link that leads out of its folder, {path.name!r}")
        if path.is_file():
            total += path.stat().st_size
            count += path.name not in _METADATA
        elif not path.is_dir():
            raise refusal(root, f"holds something that is neither file nor folder, {path.name!r}")
    return total, count


def _missing_note(array: Any, stored: int) -> tuple[str, ...]:
    """Say that chunks are missing, which may be meant so."""
    sides = zip(array.shape, array.shards or array.chunks, strict=True)
    expected = prod(-(-length // side) for length, side in sides)
    if stored >= expected:
        return ()
    return (
        f"{expected - stored} of {expected} chunks are not in the folder; their pixels count as "
        f"{array.fill_value}",
    )


def _refuse_codecs(root: Path, files: dict[str, Any], array: str) -> None:
    """Refuse codecs that are not known, before any of them is made or run."""
    old = files.get(str(PurePosixPath(array) / ".zarray"))
    new = files.get(str(PurePosixPath(array) / "zarr.json"))
    if old is not None:
        used = [
            *(old.get("filters") or []),
            *([old["compressor"]] if old.get("compressor") else []),
        ]
        unknown = [c.get("id") for c in used if c.get("id") not in _CODECS]
    elif new is not None:
        unknown = [name for name in _codec_names(new["codecs"]) if name not in _CODECS_3]
    else:
        raise refusal(root, f"is damaged or incomplete: there is no array {array!r} in it")
    if unknown:
        raise refusal(
            root,
            f"uses the filter or codec {unknown[0]!r}, which is not supported; save it with one "
            f"of {', '.join(_CODECS)}, and without filters",
        )


def _codec_names(codecs: list[Any]) -> Iterator[str]:
    """Give the names of codecs, and of those inside of shards."""
    for codec in codecs:
        yield codec["name"]
        inner = codec.get("configuration") or {}
        for name in ("codecs", "index_codecs"):
            yield from _codec_names(inner.get(name, []))


def _refuse_axes(root: Path, image: dict[str, Any], count: int) -> None:
    """Refuse an image whose last axes are not rows and columns."""
    axes = image.get("axes") or list("tczyx")
    names = [axis["name"] if isinstance(axis, dict) else axis for axis in axes]
    if len(names) != count or names[-2:] != ["y", "x"]:
        raise refusal(
            root,
            f"has the axes {', '.join(map(str, names))} for {count} dimensions; save it with y and "
            "x last",
        )


def _notes(root: Path, image: dict[str, Any]) -> tuple[str, ...]:
    """Say what else is in the folder that a new one will not have."""
    notes = []
    if len(image["datasets"]) > 1:
        notes.append("only the full resolution of the pyramid is denoised and carried over")
    others = [path.name for path in root.iterdir() if path.is_dir()]
    levels = {PurePosixPath(str(level["path"])).parts[0] for level in image["datasets"]}
    if more := sorted(set(others) - levels):
        notes.append(f"folders of the Zarr image that are not carried over: {', '.join(more)}")
    return tuple(notes)


class Writer(ImageWriter):
    """A folder with the metadata of the one that the image came from."""

    format = "OME-Zarr"

    def _start(self) -> None:
        path, header, own = self.path, self.header, self.header.metadata.own
        if not isinstance(own, ZarrDetails):
            raise TypeError("a Zarr image needs the metadata of another")
        files = deepcopy(own.files)
        image = _multiscale(path, files)
        if image is not None:
            image["datasets"] = image["datasets"][:1]
        for name, content in files.items():
            if name.endswith((".zarray", "zarr.json")):
                _set_dtype(content, header.dtype)
            (path / name).parent.mkdir(parents=True, exist_ok=True)
            (path / name).write_text(json.dumps(content, indent=2), encoding="utf-8")
        self._array = zarr.open_array(path / own.array, mode="r+")
        self._slabs = _slabs(self._array, header)
        self._waiting: list[NDArray[Any]] = []
        self._begin_slab()

    def _begin_slab(self) -> None:
        """Take the next pages that belong together."""
        self._slab = next(self._slabs, ())
        pages = self._slab[-1] if self._slab else None
        self._depth = pages.stop - pages.start if isinstance(pages, slice) else 1

    @staticmethod
    def problem(header: ImageHeader) -> str | None:
        """Return why Zarr cannot hold the image, or None if it can."""
        if isinstance(header.metadata.own, ZarrDetails):
            return None
        return (
            "OME-Zarr is written from Zarr only, which says what its axes mean; write TIFF "
            "(.tif) instead"
        )

    def write(self, page: Page) -> None:
        """Write the next page."""
        self._waiting.append(page.samples)
        if len(self._waiting) == self._depth:
            slab = np.stack(self._waiting) if self._slab else self._waiting[0]
            self._array[(*self._slab, ...)] = slab
            self._waiting.clear()
            self._begin_slab()


def _set_dtype(content: dict[str, Any], dtype: np.dtype[Any]) -> None:
    """Let the metadata of an array name another dtype, where it is another."""
    if "dtype" in content:
        if native(np.dtype(content["dtype"])) != dtype:
            content["dtype"] = dtype.newbyteorder("<").str
    elif content.get("node_type") == "array" and content["data_type"] != dtype.name:
        content["data_type"] = dtype.name
        for codec in content["codecs"]:
            if codec["name"] == "bytes":
                codec["configuration"] = {"endian": "little"}
