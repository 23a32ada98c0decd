"""OME-Zarr: chunks are read and written once, and a result has its pyramid again."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import zarr
from image_samples import values
from numpy.typing import NDArray
from selection import some
from zarr.storage import LocalStore

from integrodiff.io import create_image, open_image, read_image, write_image
from integrodiff.io.formats import zarr_slabs
from integrodiff.io.formats.pyramid import as_dtype, interval_edges, local_mean, nearest
from integrodiff.io.formats.zarr_pyramid import reduced

pytestmark = pytest.mark.slow


class Counts:
    """How often files of chunks were read and written, by name and range of bytes."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.read: Counter[tuple[str, str]] = Counter()
        self.written: Counter[str] = Counter()
        get, put = LocalStore.get, LocalStore.set

        async def counted_get(
            store: LocalStore, key: str, prototype: Any = None, byte_range: Any = None
        ) -> Any:
            data = await get(store, key, prototype, byte_range)
            if data is not None and not key.endswith((".json", ".zarray", ".zattrs", ".zgroup")):
                self.read[f"{store.root}/{key}", str(byte_range)] += 1
            return data

        async def counted_set(store: LocalStore, key: str, value: Any) -> None:
            await put(store, key, value)
            self.written[f"{store.root}/{key}"] += 1

        monkeypatch.setattr(LocalStore, "get", counted_get)
        monkeypatch.setattr(LocalStore, "set", counted_set)


@pytest.mark.parametrize("largest", some([1, 2**28], 1))
@pytest.mark.parametrize(
    "options",
    [
        {"chunks": (1, 1, 1, 8, 8)},
        {"chunks": (1, 1, 3, 8, 8)},
        {"chunks": (1, 2, 2, 8, 8)},
        {"chunks": (2, 1, 1, 16, 8)},
        {"chunks": (2, 3, 4, 16, 16)},
        {"chunks": (1, 1, 1, 4, 8), "shards": (1, 3, 2, 8, 16)},
    ],
)
def test_chunks_are_read_and_written_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, options: dict[str, Any], largest: int
) -> None:
    samples = values(2, 3, 4, 16, 16, dtype="uint16")
    array = zarr.create_array(tmp_path / "in.zarr", data=samples, **options)
    monkeypatch.setattr(zarr_slabs, "LARGEST_IN_MEMORY", largest)
    counts = Counts(monkeypatch)
    source, target = tmp_path / "in.zarr", tmp_path / "out.zarr"
    with open_image(source) as image, create_image(target, image.header) as result:
        for number, page in enumerate(image.pages()):
            assert np.array_equal(page.pixels, samples.reshape(-1, 16, 16)[number])
            result.write(page.with_pixels(page.pixels // 2))
    assert max(counts.read.values()) == max(counts.written.values()) == 1
    sides = zip(array.shape, array.shards or array.chunks, strict=True)
    assert len(counts.written) == np.prod([-(-length // side) for length, side in sides])
    assert np.array_equal(zarr.open_array(target, mode="r")[:], samples // 2)


# ---- pyramids ----


def pyramid(
    path: Path, samples: Any, shapes: list[tuple[int, ...]], version: Any = 3, **about: Any
) -> Path:
    """Write an image whose smaller resolutions are all zero, with scales that fit the shapes."""
    group = zarr.open_group(path, mode="w", zarr_format=version)
    datasets = []
    for level, shape in enumerate([samples.shape, *shapes]):
        chunks = tuple(min(5, length) for length in shape)
        array = group.create_array(f"s{level}", shape=shape, dtype=samples.dtype, chunks=chunks)
        if level == 0:
            array[...] = samples
        scale = [round(n / m) * 0.5 for n, m in zip(samples.shape, shape, strict=True)]
        transformations = [{"type": "scale", "scale": scale}]
        datasets.append({"path": f"s{level}", "coordinateTransformations": transformations})
    axes = [{"name": name} for name in "tczyx"[-samples.ndim :]]
    image = {"axes": axes, "datasets": datasets, **about}
    group.attrs.update(
        {"multiscales": [image]} if version == 2 else {"ome": {"multiscales": [image]}}
    )
    return path


def blocks_of_two(samples: NDArray[Any]) -> NDArray[Any]:
    """Return the means of whole blocks of 2 x 2 by the plainest loop."""
    *pages, height, width = samples.shape
    result = np.zeros((*pages, height // 2, width // 2))
    for y, x in np.ndindex(height // 2, width // 2):
        block = samples[..., 2 * y : 2 * y + 2, 2 * x : 2 * x + 2]
        result[..., y, x] = block.astype(float).mean(axis=(-2, -1))
    return result


@pytest.mark.parametrize("version", [2, 3])
@pytest.mark.parametrize("dtype", ["uint8", "int16", "float32"])
def test_smaller_resolutions_are_local_means(tmp_path: Path, version: Any, dtype: str) -> None:
    samples = values(2, 3, 13, 18, dtype=dtype)
    source = pyramid(tmp_path / "in.zarr", samples, [(2, 3, 6, 9), (2, 3, 3, 4)], version)
    image = read_image(source)
    assert (image.axes, image.notes) == ("CZYX", ())
    assert write_image(tmp_path / "out.zarr", image) == ()
    old: Any = zarr.open_group(source, mode="r")
    new: Any = zarr.open_group(tmp_path / "out.zarr", mode="r")
    assert dict(new.attrs) == dict(old.attrs)
    above = samples
    for level in ("s1", "s2"):
        assert new[level].metadata == old[level].metadata
        expected = blocks_of_two(above)
        rounded = np.rint(expected) if dtype != "float32" else expected.astype(np.float32)
        assert np.array_equal(new[level][:], rounded)
        above = new[level][:]


def test_float_result_has_a_float_pyramid(tmp_path: Path) -> None:
    samples = values(12, 18)
    image = read_image(pyramid(tmp_path / "in.zarr", samples, [(6, 9)]))
    write_image(tmp_path / "out.zarr", image.with_pixels(samples.astype(np.float32) / 3))
    new: Any = zarr.open_group(tmp_path / "out.zarr", mode="r")
    assert new["s1"].dtype == np.float32
    assert np.allclose(new["s1"][:], blocks_of_two(samples) / 3)


def test_pyramid_in_depth_reads_and_writes_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    samples = values(10, 20, 20)
    image = read_image(pyramid(tmp_path / "in.zarr", samples, [(5, 10, 10)]))
    counts = Counts(monkeypatch)
    write_image(tmp_path / "out.zarr", image)
    assert max(counts.read.values()) == max(counts.written.values()) == 1
    new: Any = zarr.open_group(tmp_path / "out.zarr", mode="r")
    pairs = samples[::2].astype(float) + samples[1::2]
    assert np.array_equal(new["s1"][:], np.rint(blocks_of_two(pairs) / 2))


@pytest.mark.parametrize(
    ("about", "expected", "note"),
    [
        ({"type": "nearest"}, "nearest", ()),
        ({"metadata": {"method": "Scaler.nearest"}}, "nearest", ()),
        ({"type": "local_mean"}, "mean", ()),
        (
            {"type": "gaussian"},
            "mean",
            ("the smaller resolutions are local means now, not gaussian",),
        ),
    ],
)
def test_method_of_the_pyramid(
    tmp_path: Path, about: dict[str, Any], expected: str, note: tuple[str, ...]
) -> None:
    samples = values(12, 18)
    image = read_image(pyramid(tmp_path / "in.zarr", samples, [(6, 9)], **about))
    assert write_image(tmp_path / "out.zarr", image) == note
    new: Any = zarr.open_group(tmp_path / "out.zarr", mode="r")
    means = np.rint(blocks_of_two(samples))
    assert np.array_equal(new["s1"][:], samples[::2, ::2] if expected == "nearest" else means)
    if note:
        assert new.attrs["ome"]["multiscales"][0]["type"] == "mean"


@pytest.mark.parametrize("damage", ["missing", "larger", "codec", "outside"])
def test_damaged_levels_are_left_out(tmp_path: Path, damage: str) -> None:
    samples = values(12, 18)
    source = pyramid(tmp_path / "in.zarr", samples, [(6, 9), (3, 4)])
    metadata = source / "s2" / "zarr.json"
    if damage == "missing":
        metadata.unlink()
    elif damage == "outside":
        text = (source / "zarr.json").read_text()
        (source / "zarr.json").write_text(text.replace('"s2"', '"../s2"'))
    else:
        old, new = ("zstd", "pickle") if damage == "codec" else ('"shape": [\n    3', '"shape": [7')
        text = metadata.read_text()
        assert old in text
        metadata.write_text(text.replace(old, new))
    image = read_image(source)
    assert "only the full one is carried over" in image.notes[0]
    write_image(tmp_path / "out.zarr", image)
    new_group: Any = zarr.open_group(tmp_path / "out.zarr", mode="r")
    assert len(new_group.attrs["ome"]["multiscales"][0]["datasets"]) == 1
    assert list(new_group.array_keys()) == ["s0"]


# ---- means over intervals ----


@pytest.mark.parametrize(
    ("larger", "smaller", "factor", "edges"),
    [
        (12, 6, 2, [0, 2, 4, 6, 8, 10, 12]),
        (13, 6, 2, [0, 2, 4, 6, 8, 10, 12]),
        (13, 7, 2, [0, 2, 4, 6, 8, 10, 12, 13]),
        (13, 7, None, [0, 2, 4, 6, 8, 10, 12, 13]),
        (5, 2, 2.5, [0, 2.5, 5]),
        (13, 3, 7, [0, 13 / 3, 26 / 3, 13]),
        (4, 4, 1, [0, 1, 2, 3, 4]),
    ],
)
def test_edges(larger: int, smaller: int, factor: float | None, edges: list[float]) -> None:
    assert interval_edges(larger, smaller, factor) == pytest.approx(np.array(edges))


def test_means_over_parts_of_pixels() -> None:
    row = np.array([[1.0, 2, 3, 4, 10]])
    assert local_mean(row, 1, np.array([0, 2.5, 5])) == pytest.approx(
        np.array([[(1 + 2 + 1.5) / 2.5, (1.5 + 4 + 10) / 2.5]])
    )
    assert local_mean(row.T, 0, np.array([0.0, 5])) == pytest.approx(np.array([[4.0]]))
    assert nearest(row, 1, np.array([0.0, 2, 4])).tolist() == [[1, 3]]
    row[0, 4] = np.nan  # stays where it is
    assert np.isfinite(local_mean(row, 1, np.array([0.0, 2, 4, 5]))).tolist() == [
        [True, True, False]
    ]


@pytest.mark.parametrize("by_mean", [True, False])
@pytest.mark.parametrize("shape", [(900, 601), (24, 41, 130)])
@pytest.mark.parametrize("factor", [2, 3, 2.5])
def test_levels_are_computed_in_bands(shape: Any, factor: float, by_mean: bool) -> None:
    """Whole and cut intervals, in one band and in several, are those of single pixels."""
    values = np.random.default_rng(1).integers(0, 60000, shape).astype(np.uint16)
    edges = [interval_edges(n, int(n // factor), factor) for n in shape]
    found = reduced(values, edges, np.dtype(np.uint16), by_mean=by_mean)
    rng = np.random.default_rng(2)
    for _ in range(30):
        place = tuple(int(rng.integers(0, n)) for n in found.shape)
        expected = values.astype(np.float64)
        for axis, (at, own) in enumerate(zip(place, edges, strict=True)):
            low, high = own[at : at + 2]
            pixels = np.arange(shape[axis])
            weights = np.clip(np.minimum(pixels + 1, high) - np.maximum(pixels, low), 0, None)
            if not by_mean:
                weights = pixels == max(np.floor((low + high - 1) / 2), np.floor(low))
            summed = np.tensordot(weights, expected, (0, axis)) / weights.sum()
            expected = np.expand_dims(summed, axis)
        assert abs(float(found[place]) - float(expected.item())) <= 0.5 + 1e-6


@pytest.mark.parametrize("dtype", ["uint8", "int64", "uint64"])
def test_the_largest_numbers_stay(dtype: str) -> None:
    limits = np.iinfo(dtype)
    found = as_dtype(np.array([float(limits.min), float(limits.max)]), np.dtype(dtype))
    assert int(found[0]) == limits.min
    assert int(found[1]) == pytest.approx(limits.max)
