"""OME-Zarr, and plain Zarr arrays, through zarr.

A new image gets the metadata files of its source, so that chunks, compression and descriptions
stay as they were, and its smaller resolutions are computed anew. ome-zarr and ngff-zarr build
pyramids too, but not with the metadata of a source, not from planes that come one by one, and not
without Dask. Only codecs that are known to be harmless are run: there is one that unpickles.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from copy import deepcopy
from dataclasses import dataclass, replace
from itertools import pairwise, zip_longest
from math import prod
from pathlib import Path, PurePosixPath
from typing import Any, ClassVar

import numpy as np
import zarr
from zarr.storage import LocalStore

from integrodiff.errors import ImageFileError
from integrodiff.io.access import (
    ImageReader,
    ImageWriter,
    native,
    parsing,
    refusal,
    refuse_bomb,
    refuse_dtype,
    refuse_missing_bytes,
    refuse_no_pixels,
)
from integrodiff.io.formats.npy import array_header, array_page
from integrodiff.io.formats.pyramid import interval_edges
from integrodiff.io.formats.zarr_codecs import BOUNDED_CODECS, BoundedStore, decoding_limit
from integrodiff.io.formats.zarr_pyramid import write_level
from integrodiff.io.formats.zarr_slabs import LARGEST_IN_MEMORY, slabs
from integrodiff.io.image import FormatDetails, ImageHeader, Metadata, Page
from integrodiff.io.spacing import Spacing, declared

_CODECS = ("blosc", "bz2", "gzip", "lz4", "lzma", "zlib", "zstd")
"""Compression in both versions of the format."""

_CODECS_3 = (*_CODECS, "bytes", "crc32c", "sharding_indexed", "transpose")
_METADATA = ("zarr.json", ".zgroup", ".zarray", ".zattrs")
_LARGEST_FILE = 2**24
"""Bytes of a file of metadata."""

_MOST_CHUNKS = 2**15
"""Chunks that are read together; zarr takes 0.1 ms and 2 kB for each, stored or not."""

_MOST_MISSING = 256
"""Missing chunks for each one that is stored, beyond the number above."""

_INDEX_ENTRY = 16
"""Bytes in the index of a shard for each of its chunks."""

_LARGEST_PADDING = 16
"""How often the image may fit into its chunks, which reach over its borders."""


@dataclass(frozen=True, kw_only=True, eq=False)
class ZarrDetails(FormatDetails):
    """The metadata of an image.

    Attributes
    ----------
    files : dict
        Content of the metadata files, by their path in the folder.
    array : str
        Path of the full resolution.
    smaller : tuple of str
        Paths of the other resolutions, the largest first.
    """

    format: ClassVar[str] = "OME-Zarr"
    files: dict[str, Any]
    array: str
    smaller: tuple[str, ...] = ()

    @property
    def only_here(self) -> str | None:
        """The metadata that is lost in a file of another format, in words for the user."""
        return "attributes of the Zarr folder besides axes and scales"


class Reader(ImageReader):
    """A folder with an OME-Zarr image or a plain Zarr array."""

    library_errors = (AttributeError, TypeError)  # over metadata of the wrong type

    def _read_header(self) -> ImageHeader:
        files = _metadata_files(self.path, "")
        image = _multiscale(self.path, files)
        array = "" if image is None else _dataset_path(self.path, image, 0)
        if array:
            files |= _metadata_files(self.path, array)
        _refuse_codecs(self.path, files, array)
        with zarr.config.set(BOUNDED_CODECS):
            store = BoundedStore(self.path / array, _array_metadata(files, array))
            self._array = zarr.open_array(store, mode="r")
        shape, dtype = self._array.shape, np.dtype(self._array.dtype)
        refuse_dtype(self.path, dtype)
        if len(shape) < 2:
            raise refusal(self.path, f"has an array of shape {shape}, which is no image")
        refuse_no_pixels(self.path, shape)
        there, count, largest = _stored(self.path, array)
        refuse_missing_bytes(self.path, prod(shape) * dtype.itemsize, there, compressed=True)
        refuse_bomb(self.path, self._array.chunks)
        refuse_bomb(self.path, shape[-2:])
        self._refuse_chunks(count, largest)
        if image is None:
            header = array_header(shape, dtype, ZarrDetails(files=files, array=array))
        else:
            smaller, level_notes = _smaller_levels(self.path, image, files, array)
            axes = _axes(self.path, image, len(shape))
            header = ImageHeader(
                shape=shape,
                dtype=native(dtype),
                axes=axes,
                spacing=_spacing(image, axes),
                metadata=Metadata(own=ZarrDetails(files=files, array=array, smaller=smaller)),
                notes=(*level_notes, *_folder_notes(self.path, image)),
            )
        return replace(header, notes=header.notes + _missing_note(self._array, count))

    def _refuse_chunks(self, stored: int, largest: int) -> None:
        """Refuse chunks that are too many, or much larger than the image, or than they should be.

        Given are the number of files with chunks, and the size of the largest.
        """
        array = self._array
        slab = next(slabs(array, array.ndim - 2))
        for sides in {array.chunks, array.shards or array.chunks}:
            together = _chunk_count(slab.shape, sides[-len(slab.shape) :])
            if together > _MOST_CHUNKS:
                raise refusal(
                    self.path,
                    f"has {together} chunks in planes that are read together, and at most "
                    f"{_MOST_CHUNKS} are supported; save it with larger chunks",
                )
            padded = _chunk_count(array.shape, sides) * prod(sides) * array.dtype.itemsize
            if padded > max(_LARGEST_PADDING * array.nbytes, LARGEST_IN_MEMORY):
                raise refusal(
                    self.path,
                    f"has chunks that hold {padded // array.nbytes} times as much as the image; "
                    "save it with chunks that fit it",
                )
        outer = array.shards or array.chunks
        index = _INDEX_ENTRY * _chunk_count(outer, array.chunks)
        if largest > decoding_limit(prod(outer) * array.dtype.itemsize) + index:
            raise refusal(
                self.path, f"is damaged: a chunk of it has {largest} bytes, more than its pixels"
            )
        expected = _chunk_count(array.shape, outer)
        if expected > _MOST_CHUNKS + _MOST_MISSING * stored:
            raise refusal(
                self.path, f"holds only {stored} of {expected} chunks; it is damaged or incomplete"
            )

    def _read_pages(self) -> Iterator[Page]:
        for slab in slabs(self._array, len(self.layout.plane_grid)):
            for plane in slab.read(self._array):
                yield array_page(np.ascontiguousarray(plane, self.dtype), self.header)


def _metadata_files(root: Path, folder: str) -> dict[str, Any]:
    """Return the metadata of a group or array, by the path of its files."""
    found = {}
    for name in _METADATA:
        relative = str(PurePosixPath(folder) / name)
        path = root / relative
        if not path.is_file():
            continue
        if not path.resolve().is_relative_to(root.resolve()):
            raise refusal(root, f"has a link that leads out of its folder, {relative!r}")
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
    if not isinstance(images, list) or not all(isinstance(image, dict) for image in images):
        raise refusal(root, "is damaged: its image has no description")
    if len(images) != 1:
        raise refusal(root, f"describes {len(images)} images; save each in a folder of its own")
    image: dict[str, Any] = images[0]
    return image


def _dataset_path(root: Path, image: dict[str, Any], level: int) -> str:
    """Return where in the folder a resolution lies."""
    with parsing(root, "list of resolutions"):
        path = image["datasets"][level]["path"]
        parts = PurePosixPath(path).parts
        outside = path.startswith("/") or ".." in parts or "\\" in path or "\0" in path
    if not parts or outside:
        raise refusal(root, f"names an array outside of its folder, {path!r}; it is not followed")
    if not (root / path).resolve().is_relative_to(root.resolve()):
        raise refusal(root, f"has a link that leads out of its folder, {path!r}")
    return str(PurePosixPath(path))


def _smaller_levels(
    root: Path, image: dict[str, Any], files: dict[str, Any], array: str
) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Return the paths of the smaller resolutions, whose metadata join the files, and notes."""
    found: list[str] = []
    more: dict[str, Any] = {}
    try:
        shape = _array_shape(root, files, array)
        most = _MOST_CHUNKS + _chunk_count(shape, _chunk_sides(root, files, array))
        for level in range(1, len(image["datasets"])):
            path = _dataset_path(root, image, level)
            metadata = _metadata_files(root, path)
            _refuse_codecs(root, metadata, path)
            smaller = _array_shape(root, metadata, path)
            pairs = zip(smaller, shape, strict=True)
            if path in (array, *found) or not all(0 < small <= large for small, large in pairs):
                raise refusal(root, f"has a resolution {path!r} that is not smaller")
            if _chunk_count(smaller, _chunk_sides(root, metadata, path)) > most:
                raise refusal(root, f"has a resolution {path!r} of too many chunks")
            found.append(path)
            more |= metadata
            shape = smaller
    except (ImageFileError, OSError, ValueError, RecursionError):
        return (), ("the smaller resolutions are damaged, and only the full one is carried over",)
    files |= more
    return tuple(found), ()


def _array_metadata(files: dict[str, Any], array: str) -> dict[str, Any]:
    """Return the metadata of an array, which is empty if there is none."""
    folder = PurePosixPath(array)
    content = files.get(str(folder / ".zarray"), files.get(str(folder / "zarr.json"), {}))
    return content if isinstance(content, dict) else {}


def _array_shape(root: Path, files: dict[str, Any], array: str) -> tuple[int, ...]:
    """Return the shape of an array."""
    with parsing(root, f"shape of the array {array!r}"):
        return tuple(int(length) for length in _array_metadata(files, array)["shape"])


def _chunk_sides(root: Path, files: dict[str, Any], array: str) -> tuple[int, ...]:
    """Return the shape of the chunks, or shards, of an array."""
    content = _array_metadata(files, array)
    with parsing(root, f"shape of the chunks of {array!r}"):
        grid = content["chunks"] if "chunks" in content else content["chunk_grid"]["configuration"]
        sides = grid["chunk_shape"] if isinstance(grid, dict) else grid
        return tuple(max(int(side), 1) for side in sides)


def _stored(root: Path, array: str) -> tuple[int, int, int]:
    """Return size and number of all chunks, and the size of the largest.

    Links that lead out of the folder are refused.
    """
    total, count, largest = 0, 0, 0
    for path in (root / array).rglob("*"):
        if path.is_symlink() and not path.resolve().is_relative_to(root.resolve()):
            raise refusal(root, f"has a link that leads out of its folder, {path.name!r}")
        if path.is_file():
            size = path.stat().st_size
            total += size
            if path.name not in _METADATA:
                count, largest = count + 1, max(largest, size)
        elif not path.is_dir():
            raise refusal(root, f"holds something that is neither file nor folder, {path.name!r}")
    return total, count, largest


def _chunk_count(shape: Iterable[int], sides: Iterable[int]) -> int:
    """Return the number of chunks of an array."""
    return prod(-(-length // side) for length, side in zip(shape, sides, strict=True))


def _missing_note(array: Any, stored: int) -> tuple[str, ...]:
    """Report missing chunks, which may be intended."""
    expected = _chunk_count(array.shape, array.shards or array.chunks)
    if stored >= expected:
        return ()
    return (
        f"{expected - stored} of {expected} chunks are not in the folder; their pixels count as "
        f"{array.fill_value}",
    )


def _refuse_codecs(root: Path, files: dict[str, Any], array: str) -> None:
    """Refuse codecs that are not known, before any of them is made or run."""
    content = _array_metadata(files, array)
    if not content:
        raise refusal(root, f"is damaged or incomplete: there is no array {array!r} in it")
    with parsing(root, "list of codecs"):
        if "codecs" in content:
            unknown = [name for name in _codec_names(content["codecs"]) if name not in _CODECS_3]
        else:
            used = [*(content.get("filters") or []), content.get("compressor")]
            unknown = [c["id"] for c in used if c is not None and c["id"] not in _CODECS]
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


_LETTERS = {"time": "T", "channel": "C"}
"""Axes by their type, for names that are not usual."""


def _axes(root: Path, image: dict[str, Any], count: int) -> str:
    """Return the axes of an image; refuse one whose last axes are not rows and columns."""
    axes = image.get("axes") or list("tczyx")
    with parsing(root, "list of axes"):
        named = [axis if isinstance(axis, dict) else {"name": axis} for axis in axes]
        names = [str(axis["name"]) for axis in named]
        kinds = [str(axis.get("type")) for axis in named]
    if len(names) != count or names[-2:] != ["y", "x"]:
        raise refusal(
            root,
            f"has the axes {', '.join(names)} for {count} dimensions; save it with y and x last",
        )
    letters = ""
    for name, kind in zip(names, kinds, strict=True):
        letter = name.upper() if name in "tczyx" else _LETTERS.get(kind, "Q")
        letters += letter if letter not in letters else "Q"
    return letters


def _scale(part: Any, count: int) -> list[float] | None:
    """Return the factors that an image or a resolution is scaled by along all axes, if any."""
    steps = part.get("coordinateTransformations") if isinstance(part, dict) else None
    for step in steps if isinstance(steps, list) else []:
        scale = step.get("scale") if isinstance(step, dict) else None
        if isinstance(scale, list) and len(scale) == count:
            numbers = [float(n) for n in scale if isinstance(n, (int, float)) and 0 < n < 1e30]
            return numbers if len(numbers) == count else None
    return None


def _pixel_sizes(image: dict[str, Any], level: int, count: int) -> list[float] | list[None]:
    """Return the size of pixels of a resolution along all axes, or None where it is unknown."""
    own, common = _scale(image["datasets"][level], count), _scale(image, count)
    if own is None:
        return [None] * count
    return own if common is None else [a * b for a, b in zip(own, common, strict=True)]


def _spacing(image: dict[str, Any], axes: str) -> dict[str, Spacing]:
    """Return the spacing along the axes of space and time."""
    named = image.get("axes") or []
    units = [axis.get("unit") if isinstance(axis, dict) else None for axis in named]
    values = zip_longest(axes, _pixel_sizes(image, 0, len(axes)), units[: len(axes)])
    return declared((value for value in values if value[0] in "TZYX"), axes)


def _folder_notes(root: Path, image: dict[str, Any]) -> tuple[str, ...]:
    """Name the other folders, which are not carried over."""
    others = {path.name for path in root.iterdir() if path.is_dir()}
    with parsing(root, "list of resolutions"):
        levels = {PurePosixPath(str(level["path"])).parts[0] for level in image["datasets"]}
    if not (more := sorted(others - levels)):
        return ()
    return (f"folders of the Zarr image that are not carried over: {', '.join(more)}",)


def _write_metadata(folder: Path, files: dict[str, Any], dtype: np.dtype[Any]) -> None:
    """Write the metadata of groups and arrays, the latter with another dtype."""
    for name, content in files.items():
        if name.endswith((".zarray", "zarr.json")):
            _set_dtype(content, dtype)
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(json.dumps(content, indent=2), encoding="utf-8")


def _first_line(error: Exception) -> str:
    """Return the message of an error, without what follows in further lines."""
    return next(iter(str(error).splitlines()), type(error).__name__)[:200]


class Writer(ImageWriter):
    """A folder with the metadata of the one that the image came from."""

    format = "OME-Zarr"

    def _start(self) -> None:
        path, header, own = self.path, self.header, self.header.metadata.own
        if not isinstance(own, ZarrDetails):
            raise TypeError("an OME-Zarr image is written only from another one, with its metadata")
        self._notes: tuple[str, ...] = ()
        files = deepcopy(own.files)
        self._image = _multiscale(path, files)
        if self._image is not None:
            self._image["datasets"] = self._image["datasets"][: 1 + len(own.smaller)]
            self._by_mean = self._method_of_levels(own)
        try:
            _write_metadata(path, files, header.dtype)
            self._levels = [
                zarr.open_array(LocalStore(path / level), mode="r+")
                for level in (own.array, *own.smaller)
            ]
        except (AttributeError, LookupError, TypeError, ValueError) as error:
            # Its reader need not know them all, for example those of smaller levels.
            raise ValueError(
                f"the metadata of the input are damaged ({_first_line(error)}); write TIFF (.tif) "
                "instead"
            ) from error
        self._slabs = slabs(self._levels[0], len(header.layout.plane_grid))
        self._begin_slab()

    def _begin_slab(self) -> None:
        """Take the next planes that are written together."""
        self._slab = next(self._slabs, None)
        self._written = 0
        if self._slab is not None:
            self._values = self._slab.buffer(self.header.dtype, self.path)

    def _method_of_levels(self, own: ZarrDetails) -> bool:
        """Return whether smaller resolutions are local means; say so where they were not."""
        image = self._image or {}
        about = image.get("metadata")
        words = [image.get("type"), about.get("method") if isinstance(about, dict) else None]
        method = " ".join(str(word).lower() for word in words if word)
        if any(word in method for word in ("nearest", "decimat", "subsampl")):
            return False
        if own.smaller and method and not any(w in method for w in ("mean", "average", "resize")):
            self._notes = (f"the smaller resolutions are local means now, not {method}",)
            image["type"] = "mean"
            image.pop("metadata", None)
        return True

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
        if self._slab is None:
            raise ValueError("there are more pages than the image has")
        self._values.reshape(-1, *self._slab.plane_shape)[self._written] = page.samples
        self._written += 1
        if self._written == self._slab.planes:
            self._slab.write(self._levels[0], self._values)
            self._begin_slab()

    def close(self) -> None:
        """Add the smaller resolutions to a complete image."""
        if self._slab is None and self._image is not None:
            self._write_smaller(self._image)
        super().close()

    def _write_smaller(self, image: dict[str, Any]) -> None:
        for level, (source, target) in enumerate(pairwise(self._levels)):
            before, after = (_pixel_sizes(image, n, target.ndim) for n in (level, level + 1))
            factors = [b / a if a and b else None for a, b in zip(before, after, strict=True)]
            edges = list(map(interval_edges, source.shape, target.shape, factors))
            write_level(source, target, edges, by_mean=self._by_mean)

    @property
    def notes(self) -> tuple[str, ...]:
        """Changes besides the pixels, in words for the user."""
        return self._notes


def _set_dtype(content: dict[str, Any], dtype: np.dtype[Any]) -> None:
    """Set the dtype in the metadata of an array."""
    if "dtype" in content:
        if native(np.dtype(content["dtype"])) != dtype:
            content["dtype"] = dtype.newbyteorder("<").str
    elif content.get("node_type") == "array" and content["data_type"] != dtype.name:
        content["data_type"] = dtype.name
        for codec in content["codecs"]:
            if codec["name"] == "bytes":
                codec["configuration"] = {"endian": "little"}
