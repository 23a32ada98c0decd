"""Dask arrays: blocks agree with the whole, stay lazy, and avoid the traps of overlaps."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from integrodiff import PoissonGaussian, denoise, load_model
from integrodiff.arrays import array_image
from integrodiff.blocks.grid import TOLERANCE
from integrodiff.engines import ENGINES
from integrodiff.request import Request, resolve

da = pytest.importorskip("dask.array")
import integrodiff.dask as lazily  # noqa: E402

pytestmark = pytest.mark.skipif(
    ENGINES["native"].unavailable() is not None, reason="needs the engine native"
)
NAMES = ("pm", "eed", "iid", "iad", "iad-plus", "iad-fast", "iad-deep", "iad-full")
GIVEN: dict[str, Any] = {"data_range": 255}


def scene(*shape: int, sigma: float = 20.0) -> NDArray[np.float32]:
    """Return waves and edges with noise."""
    mesh = np.meshgrid(*(np.arange(length) for length in shape), indexing="ij", sparse=True)
    waves = sum(np.sin(axis / (7 + 2 * n)) for n, axis in enumerate(mesh))
    cells = sum(axis // (19 + n) for n, axis in enumerate(mesh)) % 2
    noise = np.random.default_rng(0).normal(0, sigma, shape)
    return np.asarray(100 + 20 * waves + 60 * cells + noise, np.float32)


def computed(array: Any) -> NDArray[Any]:
    found: NDArray[Any] = array.compute(scheduler="synchronous")
    return found


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES)
def test_blocks_agree_with_the_whole(name: str) -> None:
    image = scene(331, 70)
    whole = denoise(image, 20, model=name, threads=1, **GIVEN)
    lazy = lazily.denoise(
        da.from_array(image, chunks=(37, 33)), 20, model=name, block_size=70, **GIVEN
    )
    assert lazy.numblocks == (4, 1)
    assert lazily.record(lazy)["halo"][0] < 90  # so that no block sees the whole image
    assert 0 <= np.abs(computed(lazy) - whole).max() < TOLERANCE


@pytest.mark.slow
def test_masks_maps_and_photons_in_blocks() -> None:
    image = scene(300, 61)
    rng = np.random.default_rng(1)
    mask = rng.random(image.shape) > 0.01
    levels = np.linspace(5, 60, image.size).reshape(image.shape)
    detector = PoissonGaussian(gain=2.0, offset=1.0, readout=3.0)
    chunks = da.from_array(image, chunks=(41, 61))
    hidden = image.copy()
    hidden[~mask] = np.nan
    for sigma, more in (
        (20, {"mask": mask, "model": "iad-fast"}),
        (levels, {}),
        (levels, {"mask": mask, "model": "iad-fast"}),
        (None, {"noise": detector}),
    ):
        whole = denoise(image, sigma, threads=1, **GIVEN, **more)
        lazy = lazily.denoise(chunks, sigma, block_size=60, **GIVEN, **more)
        assert lazy.numblocks[0] > 2
        assert np.abs(computed(lazy) - whole).max() < TOLERANCE
    lazy = lazily.denoise(
        da.from_array(hidden, chunks=(41, 61)),
        20,
        model="iad-fast",
        has_invalid=True,
        block_size=60,
        **GIVEN,
    )
    found = computed(lazy)
    whole = denoise(hidden, 20, model="iad-fast", threads=1, **GIVEN)
    np.testing.assert_array_equal(np.isnan(found), ~mask)
    assert np.nanmax(np.abs(found - whole)) < TOLERANCE


def test_masked_pixels_do_not_count_in_estimates() -> None:
    image = scene(128, 96, sigma=10.0)
    mask = np.ones(image.shape, np.bool_)
    mask[:, 48:] = False
    image[:, 48:] = 4 * image[:, ::-1][:, 48:]
    whole = resolve(Request(model=load_model("iad-plus")), array_image(image, mask=mask))
    chunks = da.from_array(image, chunks=(50, 40))
    about = lazily.record(lazily.denoise(chunks, mask=mask))
    assert about["noise"] == whole.noise
    assert about["data_range"] == pytest.approx([whole.channels[0].data_range])
    assert lazily.record(lazily.denoise(chunks))["noise"] != whole.noise


def test_masked_arrays_come_back_as_such() -> None:
    pixels = scene(70, 61)
    hidden = np.random.default_rng(1).random(pixels.shape) < 0.05
    pixels[hidden] = 1e4
    image = np.ma.MaskedArray(pixels, mask=hidden, fill_value=-7)
    more = np.ones(pixels.shape, np.bool_)
    more[:, :9] = False
    for mask in (None, more):
        whole: Any = denoise(image, 20, mask=mask, threads=1, **GIVEN)
        lazy = lazily.denoise(da.from_array(image, chunks=(30, 25)), 20, mask=mask, **GIVEN)
        found: Any = computed(lazy)
        np.testing.assert_array_equal(np.ma.getmaskarray(found), hidden)
        assert found.fill_value == -7
        assert np.abs(found.data - whole.data).max() < TOLERANCE
        assert lazily.record(lazy)["noise"]
    colours = np.ma.MaskedArray(np.stack([pixels] * 3, axis=-1), mask=False)
    colours[3, 4, 1] = np.ma.masked
    whole = denoise(colours, 20, channel_axis=-1, threads=1, **GIVEN)
    found = computed(lazily.denoise(da.from_array(colours), 20, channel_axis=-1, **GIVEN))
    assert np.ma.getmaskarray(found).sum() == 1
    assert np.abs(found.data - whole.data).max() < TOLERANCE


def test_engines_have_results_of_their_own() -> None:
    image = da.from_array(scene(40, 41), chunks=20)
    lazy = [lazily.denoise(image, 20, engine=name, **GIVEN) for name in ("native", "numpy")]
    found = da.compute(*lazy, scheduler="synchronous")
    for name, array in zip(("native", "numpy"), found, strict=True):
        whole = denoise(scene(40, 41), 20, engine=name, threads=1, **GIVEN)
        np.testing.assert_array_equal(array, whole)


def test_a_mask_is_not_computed_if_nothing_is_estimated() -> None:
    def refuse(block: Any) -> Any:
        raise AssertionError("this is computed")

    mask = da.ones((40, 40), bool, chunks=20).map_blocks(refuse, dtype=bool, meta=np.ones((0, 0)))
    lazily.denoise(da.zeros((40, 40), chunks=20), 20, mask=mask, **GIVEN)


@pytest.mark.slow
def test_axes_and_volumes_in_blocks() -> None:
    image = scene(2, 3, 60, 150)  # the rows come last here
    chunks = da.from_array(image, chunks=(1, 2, 60, 37))
    settings: dict[str, Any] = {"axes": "TCXY", "model": "iad-fast", **GIVEN}
    whole = denoise(image, [10, 20, 30], threads=1, **settings)
    lazy = lazily.denoise(chunks, [10, 20, 30], block_size=40, **settings)
    assert lazy.chunks[:2] == ((1, 1), (2, 1))
    assert np.abs(computed(lazy) - whole).max() < TOLERANCE
    colours = np.stack([scene(130, 50)] * 4, axis=-1)
    whole = denoise(colours, 20, channel_axis=-1, threads=1, **GIVEN)
    lazy = lazily.denoise(
        da.from_array(colours, chunks=(33, 50, 3)), 20, channel_axis=-1, block_size=33, **GIVEN
    )
    found = computed(lazy)
    np.testing.assert_array_equal(found[..., 3], colours[..., 3])
    assert np.abs(found - whole).max() < TOLERANCE
    volume = scene(150, 20, 21)
    whole = denoise(volume, 20, axes="ZYX", threads=1, **GIVEN)
    lazy = lazily.denoise(
        da.from_array(volume, chunks=(23, 20, 11)), 20, axes="ZYX", block_size=23, **GIVEN
    )
    assert lazy.numblocks == (6, 1, 1)
    assert np.abs(computed(lazy) - whole).max() < TOLERANCE


@pytest.mark.slow
def test_small_arrays_and_chunks() -> None:
    """The halo is larger than all chunks, and than the array."""
    image = scene(21, 24)
    lazy = lazily.denoise(da.from_array(image, chunks=(2, 3)), 20, block_size=5, **GIVEN)
    assert lazy.numblocks == (3, 4)
    assert max(lazily.record(lazy)["halo"]) > 24
    whole = denoise(image, 20, threads=1, **GIVEN)
    assert np.abs(computed(lazy) - whole).max() < 1e-3


def test_nothing_is_rechunked_and_tasks_are_few() -> None:
    chunks = da.zeros((4000, 3000), chunks=(500, 500), dtype=np.float32)
    lazy = lazily.denoise(chunks, 20, block_size=500, **GIVEN)
    assert not any("rechunk" in name for name in lazy.dask.layers)
    assert lazy.chunks == chunks.chunks
    # For each block: its chunk, at most nine parts, and the block itself.
    assert len(lazy.dask) <= 11 * lazy.npartitions + 1
    joined = lazily.denoise(da.zeros((900, 900), chunks=10), 20, **GIVEN)
    assert min(min(sizes) for sizes in joined.chunks) >= lazily.record(joined)["block_size"] // 2
    assert sum(joined.chunks[0]) == 900
    parts = [value for key, value in lazy.dask.items() if "part" in str(key)]
    assert len(parts) > 100


def test_parts_of_chunks_do_not_keep_the_chunks() -> None:
    chunk = np.zeros((100, 100))
    assert lazily._cut(chunk, [(0, 10), (0, 100)]).base is None


@pytest.mark.slow
def test_is_lazy_and_looks_at_a_sample_once() -> None:
    seen: list[Any] = []

    def block(block_info: Any = None) -> NDArray[np.float32]:
        place = block_info[None]["array-location"]
        seen.append(tuple(map(tuple, place)))
        rng = np.random.default_rng(place[0][0] + place[1][0])
        return rng.normal(100, 20, (300, 300)).astype(np.float32)

    chunks = da.map_blocks(
        block, chunks=((300,) * 8, (300,) * 5), dtype=np.float32, meta=np.zeros((0, 0), np.float32)
    )
    seen.clear()
    lazily.denoise(chunks, 20, **GIVEN)
    assert not seen
    found = lazily.denoise(chunks)
    assert 0 < len(seen) <= 40
    assert len(seen) == len(set(seen))  # no chunk twice
    noise = lazily.record(found)["noise"]
    assert "estimated" in noise
    assert abs(float(noise.split()[1]) - 20) < 1


def test_refused() -> None:
    image = da.from_array(scene(20, 24), chunks=12)
    with pytest.raises(TypeError, match="must be a dask array"):
        lazily.denoise(np.zeros((4, 4)), 20)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="complex"):
        lazily.denoise(image.astype(complex), 20)
    with pytest.raises(ValueError, match="unknown size"):
        lazily.denoise(image[image[:, 0] > 0], 20)
    with pytest.raises(ValueError, match="mask has the shape"):
        lazily.denoise(image, 20, mask=np.ones((3, 4), np.bool_))
    with pytest.raises(TypeError, match="array of bool"):
        lazily.denoise(image, 20, mask=np.ones((20, 24)))
    with pytest.raises(ValueError, match="not made by"):
        lazily.record(image)
    pixels = scene(20, 24)
    pixels[3, 4] = np.nan
    with pytest.raises(ValueError, match="has_invalid=True"):
        computed(lazily.denoise(da.from_array(pixels, chunks=12), 20, **GIVEN))
