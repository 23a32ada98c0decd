"""OME-Zarr, and plain Zarr arrays, through zarr.

A new image gets the metadata files of its source, so that chunks, compression and descriptions
stay as they were, and its smaller resolutions are computed anew. ome-zarr and ngff-zarr build
pyramids too, but not with the metadata of a source, not from planes that come one by one, and not
without Dask. Only codecs that are known to be harmless are run: there is one that unpickles.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from copy import deepcopy
from dataclasses import dataclass, replace
from functools import partial
from itertools import pairwise, product, zip_longest
from math import prod
from pathlib import Path, PurePosixPath
from typing import Any, ClassVar

import numpy as np
import zarr
from numpy.typing import NDArray
from zarr.storage import LocalStore

from integrodiff.errors import ImageFileError
from integrodiff.io.access import (
    ImageReader,
    ImageWriter,
    decoding,
    native,
    parsing,
    refusal,
    refuse_bomb,
    refuse_dtype,
    refuse_missing_bytes,
    refuse_no_pixels,
)
from integrodiff.io.formats.npy import array_header, array_page
from integrodiff.io.formats.pyramid import Edges, interval_edges
from integrodiff.io.formats.zarr_codecs import BOUNDED_CODECS, BoundedStore, decoding_limit
from integrodiff.io.formats.zarr_pyramid import level_block_size, write_level, write_level_block
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
        self._open(files, array)
        shape, dtype = self._array.shape, np.dtype(self._array.dtype)
        refuse_dtype(self.path, dtype)
        if len(shape) < 2:
            raise refusal(self.path, f"has an array of shape {shape}, which is no image")
        refuse_no_pixels(self.path, shape)
        there, count, largest = _stored(self.path, array)
        refuse_missing_bytes(self.path, prod(shape) * dtype.itemsize, there, compressed=True)
        refuse_bomb(self.path, self._array.chunks)
        if self.whole_planes:
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

    def _open(self, files: dict[str, Any], array: str) -> None:
        """Open the full resolution."""
        with zarr.config.set(BOUNDED_CODECS):
            store = BoundedStore(self.path / array, _array_metadata(files, array))
            self._array = zarr.open_array(store, mode="r")

    def _refuse_chunks(self, stored: int, largest: int) -> None:
        """Refuse chunks that are too many, or much larger than the image, or than they should be.

        Given are the number of files with chunks, and the size of the largest.
        """
        array = self._array
        slab = next(slabs(array, array.ndim - 2))
        for sides in {array.chunks, array.shards or array.chunks}:
            together = _chunk_count(slab.shape, sides[-len(slab.shape) :])
            if together > _MOST_CHUNKS and self.whole_planes:
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


class Windows(Reader):
    """The same for images whose planes do not fit into memory.

    Parameters
    ----------
    path : Path
        The folder.
    known : ImageHeader, optional
        What was found when it was opened before; then its files are not counted again.
    """

    whole_planes = False

    def __init__(self, path: Path, known: ImageHeader | None = None) -> None:
        self._known = known
        super().__init__(path)

    def _read_header(self) -> ImageHeader:
        if self._known is None:
            return super()._read_header()
        own = _own(self._known)
        self._open(own.files, own.array)
        return self._known

    def opener(self) -> Callable[[], Windows]:
        """Return a function that opens the folder again, without a look at all of its files."""
        return partial(Windows, self.path, self.header)

    @property
    def chunks(self) -> tuple[int, ...]:
        """Size of what has to be decoded as a whole, along all axes but that of samples."""
        return _without_samples(self.header, self._array.chunks)

    def window(self, index: tuple[slice, ...]) -> NDArray[Any]:
        """Return a part of the image, given by its place along all axes."""
        with decoding(self.path, *self.library_errors):
            return np.ascontiguousarray(self._array[index], self.dtype)

    @property
    def stamp(self) -> str:
        """A text that is another one after a change of the files."""
        folder = self.path / _own(self.header).array
        newest = max(file.stat().st_mtime_ns for file in folder.rglob("*") if file.is_file())
        return f"{json.dumps(_own(self.header).files, sort_keys=True)} {newest}"


def _own(header: ImageHeader) -> ZarrDetails:
    """Return the metadata of an image of this format."""
    own = header.metadata.own
    if not isinstance(own, ZarrDetails):
        raise TypeError("an OME-Zarr image is written only from another one, with its metadata")
    return own


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
        path, header, own = self.path, self.header, _own(self.header)
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
        self._begin()

    def _begin(self) -> None:
        self._slabs = slabs(self._levels[0], len(self.header.layout.plane_grid))
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
        self._notes = _notes_on_levels(image, own)
        if self._notes:
            image["type"] = "mean"
            image.pop("metadata", None)
        return not _takes_nearest(_method(image))

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
            edges = _level_edges(image, level, source, target)
            write_level(source, target, edges, by_mean=self._by_mean)

    @property
    def notes(self) -> tuple[str, ...]:
        """Changes besides the pixels, in words for the user."""
        return self._notes


def _level_edges(image: dict[str, Any], level: int, source: Any, target: Any) -> list[Edges]:
    """Return the intervals that pixels of a resolution cover in the one before, of its number."""
    before, after = (_pixel_sizes(image, n, target.ndim) for n in (level, level + 1))
    factors = [b / a if a and b else None for a, b in zip(before, after, strict=True)]
    return list(map(interval_edges, source.shape, target.shape, factors))


class BlockWriter(Writer):
    """A folder whose blocks are written in any order, by any number of processes.

    One process makes it; all open it by :func:`open_blocks`. A block is a number of whole
    chunks, or whole shards, and a process must write all of it: chunks that two processes write
    in parts lose data.
    """

    def _begin(self) -> None:
        self._slab = None

    def close(self) -> None:
        """Do nothing: blocks that are smaller resolutions are written like others."""
        self._opened.close()


def writing_unit(header: ImageHeader) -> tuple[int, ...]:
    """Return the size of the chunks, or shards, that an image with a header will have."""
    own = _own(header)
    return _without_samples(header, _chunk_sides(Path(own.array), own.files, own.array))


def _without_samples(header: ImageHeader, lengths: Sequence[int]) -> tuple[int, ...]:
    """Return lengths along all axes of an image but that of colour samples, which is the last."""
    return tuple(lengths[: len(header.layout.without_samples.shape)])


def open_blocks(path: Path, header: ImageHeader) -> OpenBlocks:
    """Return an image that :class:`BlockWriter` made for a header, to write its blocks."""
    own = _own(header)
    image = _multiscale(path, own.files) or {}
    names = (own.array, *own.smaller)
    levels = [zarr.open_array(LocalStore(path / name), mode="r") for name in names]
    edges = tuple(_level_edges(image, n, *pair) for n, pair in enumerate(pairwise(levels)))
    return OpenBlocks(path, names, edges, not _takes_nearest(_method(image)))


def _method(image: dict[str, Any]) -> str:
    """Return how an image says that its smaller resolutions were made."""
    about = image.get("metadata")
    words = [image.get("type"), about.get("method") if isinstance(about, dict) else None]
    return " ".join(str(word).lower() for word in words if word)


def _notes_on_levels(image: dict[str, Any], own: ZarrDetails) -> tuple[str, ...]:
    """Say that smaller resolutions become local means, where an image names another method."""
    method = _method(image)
    if not own.smaller or not method or _takes_nearest(method):
        return ()
    if any(word in method for word in ("mean", "average", "resize")):
        return ()
    return (f"the smaller resolutions are local means now, not {method}",)


def _takes_nearest(method: str) -> bool:
    """Whether smaller resolutions have pixels of the full one, and no means."""
    return any(word in method for word in ("nearest", "decimat", "subsampl"))


def notes_on_blocks(header: ImageHeader) -> tuple[str, ...]:
    """Return what :class:`BlockWriter` changes besides the pixels, in words for the user."""
    own = _own(header)
    return _notes_on_levels(_multiscale(Path(own.array), own.files) or {}, own)


class OpenBlocks:
    """An image that :class:`BlockWriter` made, whose blocks are written and looked at here.

    Parameters
    ----------
    path : Path
        Its folder.
    names : tuple of str
        The arrays of all resolutions in it.
    edges : tuple of lists of Edges
        For each resolution but the first, the intervals that its pixels cover in the one before.
    by_mean : bool
        Whether these are local means, or the nearest pixels.
    """

    def __init__(
        self, path: Path, names: tuple[str, ...], edges: tuple[list[Edges], ...], by_mean: bool
    ) -> None:
        self.path, self._names, self._edges, self._by_mean = path, names, edges, by_mean
        self._levels: list[Any] = []

    @property
    def levels(self) -> list[Any]:
        """The arrays, opened when they are needed first."""
        if not self._levels:
            self._levels = [
                zarr.open_array(LocalStore(self.path / name), mode="r+") for name in self._names
            ]
        return self._levels

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_levels": []}

    def chunks(self, level: int = 0) -> tuple[int, ...]:
        """Return the size of the chunks, or shards, that a process must write as a whole."""
        array = self.levels[level]
        return tuple(array.shards or array.chunks)

    def smaller(self, level: int) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """Return the shape of a smaller resolution, and the size of its blocks."""
        source, target = self.levels[level - 1 : level + 1]
        return target.shape, level_block_size(source, target, self._edges[level - 1])

    def write(self, index: tuple[slice, ...], values: NDArray[Any]) -> None:
        """Write a block of the full resolution."""
        self._clear(0, index)
        self.levels[0][index] = values

    def _clear(self, level: int, index: tuple[slice, ...]) -> None:
        """Remove the files of a block: zarr would read shards that a kill has torn."""
        for key in self._keys(level, index):
            (self.path / self._names[level] / key).unlink(missing_ok=True)

    def write_smaller(self, level: int, index: tuple[slice, ...]) -> None:
        """Compute a block of a smaller resolution from the one before, which is complete."""
        source, target = self.levels[level - 1 : level + 1]
        edges = self._edges[level - 1]
        self._clear(level, index)
        write_level_block(source, target, edges, index, by_mean=self._by_mean)

    def digest(self, level: int, index: tuple[slice, ...], *, durable: bool = False) -> str:
        """Return a hash of the files of a block as they are on the disk.

        Chunks that hold nothing but the fill value have no file. If ``durable``, the files are
        flushed to the disk first.
        """
        found = hashlib.sha256()
        for key in self._keys(level, index):
            path = self.path / self._names[level] / key
            found.update(key.encode())
            if not path.exists():
                continue
            with path.open("rb") as stream:
                if durable:
                    os.fsync(stream.fileno())
                found.update(f" {os.fstat(stream.fileno()).st_size} ".encode())
                while part := stream.read(_READ):
                    found.update(part)
        return found.hexdigest()

    def _keys(self, level: int, index: tuple[slice, ...]) -> Iterator[str]:
        """Give the names of the files of a block."""
        array = self.levels[level]
        samples = (slice(0, length) for length in array.shape[len(index) :])
        ranges = [
            range(part.start // side, -(-part.stop // side))
            for part, side in zip((*index, *samples), self.chunks(level), strict=True)
        ]
        for place in product(*ranges):
            yield array.metadata.encode_chunk_key(place)


_READ = 2**20
"""Bytes that are read at a time."""


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
