"""Volumes in blocks of slices: the limit of memory, and agreement with the whole."""

from __future__ import annotations

import hashlib
import json
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from integrodiff import Denoiser, Step, denoise, estimate_sigma, load_model
from integrodiff.arrays import array_image
from integrodiff.blocks.cluster import MOST_TASKS, items_per_task, runs
from integrodiff.blocks.grid import TOLERANCE, block_at, blocks_within, halo
from integrodiff.blocks.job import Key, PageFiles, Unfinished, Written, unit_at, unit_size
from integrodiff.blocks.memory import group_limits, memory_limit
from integrodiff.blocks.region import BlockDenoiser, resolved_for
from integrodiff.blocks.sample import LargeImage
from integrodiff.engines import ENGINES
from integrodiff.engines.native import NativeProcess, NativeVolumeProcess
from integrodiff.io.image import ImageHeader
from integrodiff.layout import Layout
from integrodiff.request import InvalidPixels

NATIVE = ENGINES["native"]
needs_native = pytest.mark.skipif(
    NATIVE.unavailable() is not None, reason=str(NATIVE.unavailable())
)
PLUS: Any = load_model("iad-plus-volume")
# Its large scales have weight, so that slices far away count.
WIDE: Any = replace(PLUS, law=replace(PLUS.law, decay=0.12, exponent=0.2))
FLAT: dict[str, Any] = {"data_range": 255, "engine": "native", "threads": 1}


def scene(shape: tuple[int, int, int], sigma: float = 25.0) -> NDArray[np.float32]:
    """Return balls and waves with noise."""
    z, y, x = np.meshgrid(*(np.arange(size) for size in shape), indexing="ij")
    clean = 100 + 50 * np.sin(z / 9 + x / 7) + 60.0 * ((z + y // 2 + x) % 23 < 9)
    noise = np.random.default_rng(0).normal(0, sigma, shape)
    return np.asarray(clean + noise, np.float32)


@pytest.mark.parametrize(
    ("value", "expected"),
    [("2G", 2 * 10**9), ("500 MB", 5 * 10**8), ("1.5k", 1500), (7, 7), (2.5e9, 2_500_000_000)],
)
def test_limits(value: Any, expected: int) -> None:
    assert memory_limit(value) == expected


@pytest.mark.parametrize("value", ["", "G", "2 X", "-1", 0, -5, True, float("nan"), None])
def test_what_is_no_limit(value: Any) -> None:
    with pytest.raises(ValueError, match="max_memory must be a number of bytes"):
        memory_limit(value)


def test_limits_of_containers_and_jobs(tmp_path: Path) -> None:
    groups, root = tmp_path / "cgroup", tmp_path / "root"
    for place, name, text in (
        ("slurm", "memory.max", "2000000000\n"),
        ("slurm/job", "memory.max", "max\n"),
        ("memory/docker", "memory.limit_in_bytes", "3000000000\n"),
    ):
        (root / place).mkdir(parents=True)
        (root / place / name).write_text(text)
    (root / "memory.max").write_text("1")
    groups.write_text("0::/slurm/job\n")
    assert group_limits(groups, root) == [2000000000, 1]
    groups.write_text("3:cpuset:/docker\n2:cpu,memory:/docker\n0::/elsewhere\n")
    (root / "memory.max").unlink()
    assert group_limits(groups, root) == [3000000000]
    groups.write_text("nothing that is known\n")
    assert group_limits(groups, root) == group_limits(tmp_path / "no", root) == []


@pytest.mark.slow
@given(
    slices=st.integers(2, 400),
    reach=st.integers(0, 41),
    limit=st.integers(1, 500),
)
@settings(max_examples=100)
def test_blocks_cover_everything_once_within_the_limit(slices: int, reach: int, limit: int) -> None:
    def cost(count: int) -> int:
        return count + 3

    least = min(slices, 2 * reach + 3)
    if cost(least) > limit and cost(slices) > limit:
        with pytest.raises(ValueError, match="allow more"):
            blocks_within(slices, reach, cost, limit)
        return
    found = blocks_within(slices, reach, cost, limit)
    assert [n for block in found for n in range(block.first, block.last)] == list(range(slices))
    for block in found:
        assert cost(block.high - block.low) <= limit
        assert block.first - block.low in (reach, reach + 1, block.first)
        assert block.high - block.last in (reach, slices - block.last)
        assert block.low % 2 == 0


def test_the_halo_follows_scales_and_spacing() -> None:
    narrow = halo([PLUS.evolution(25.0).in_volume((1.0, 1.0, 1.0))])
    wide = halo([WIDE.evolution(25.0).in_volume((1.0, 1.0, 1.0))])
    assert narrow[0] < wide[0] < 9 * WIDE.scales.largest
    assert wide == (wide[0],) * 3
    thick = halo([WIDE.evolution(25.0).in_volume((4.0, 1.0, 1.0))])
    assert thick[1:] == wide[1:]
    assert 2 * WIDE.steps <= thick[0] < wide[0] / 2


def limit_for(
    volume: NDArray[Any], share: float, sigma: Any = 25.0, axes: str = "ZYX", **arguments: Any
) -> int:
    """Return a limit at which blocks may have a share of the slices."""
    low, high = 1, 10**10
    while high - low > 1000:
        middle = (low + high) // 2
        denoiser = Denoiser(sigma, axes=axes, max_memory=middle, **FLAT, **arguments)
        try:
            whole = len(denoiser.pipeline(array_image(volume, axes=axes)).blocks) == 1
        except ValueError:
            whole = False
        low, high = (low, middle) if whole else (middle, high)
    return int(share * (high - 2**24)) + 2**24


@needs_native
@pytest.mark.slow
@pytest.mark.parametrize("sigma", [5.0, 60.0])
def test_blocks_agree_with_the_whole(sigma: float) -> None:
    volume = scene((240, 18, 19), sigma)
    whole = denoise(volume, sigma, axes="ZYX", model=WIDE, **FLAT)
    limit = limit_for(volume, 0.75, model=WIDE)
    denoiser = Denoiser(sigma, axes="ZYX", max_memory=limit, model=WIDE, **FLAT)
    assert len(denoiser.pipeline(array_image(volume, axes="ZYX")).blocks) > 2
    found = denoiser(volume)
    assert 0 < np.abs(found - whole).max() < TOLERANCE


@needs_native
@pytest.mark.slow
def test_blocks_with_masks_and_steps() -> None:
    model = replace(PLUS, steps=2, scales=replace(PLUS.scales, largest=3.0))
    volume = scene((64, 9, 10))
    volume[3, 4, 5] = volume[60, :3] = np.nan
    arguments: dict[str, Any] = {"axes": "ZYX", "model": model, **FLAT}
    whole = denoise(volume, 25.0, **arguments)
    limit = limit_for(volume, 0.8, model=model)
    steps: list[Step] = []
    found = denoise(volume, 25.0, max_memory=limit, callback=steps.append, **arguments)
    np.testing.assert_array_equal(np.isnan(found), np.isnan(volume))
    assert 0 < np.nanmax(np.abs(found - whole)) < TOLERANCE
    assert [step.number for step in steps] == list(range(1, steps[0].total + 1))
    assert steps[-1].plane > 0


@needs_native
@pytest.mark.slow
def test_blocks_with_a_level_for_each_voxel() -> None:
    """All blocks share the shortcuts of the whole map, and each has its part of it."""
    model = replace(PLUS, steps=2, scales=replace(PLUS.scales, largest=3.0))
    volume = scene((64, 9, 10))
    levels = np.linspace(5.0, 40.0, volume.size).reshape(volume.shape)
    arguments: dict[str, Any] = {"axes": "ZYX", "model": model, **FLAT}
    whole = denoise(volume, levels, **arguments)
    limit = limit_for(volume, 0.9, levels, model=model)
    found = denoise(volume, levels, max_memory=limit, **arguments)
    assert 0 < np.abs(found - whole).max() < TOLERANCE


@needs_native
@pytest.mark.slow
def test_interleaved_channels_in_blocks() -> None:
    model = replace(WIDE, steps=2, scales=replace(PLUS.scales, largest=2.0))
    volume = np.stack([scene((50, 9, 10)), 2 * scene((50, 9, 10))], axis=1)
    arguments: dict[str, Any] = {"axes": "ZCYX", "model": model, **FLAT}
    whole = denoise(volume, [25.0, 50.0], **arguments)
    limit = limit_for(volume, 0.9, [25.0, 50.0], "ZCYX", model=model)
    found = denoise(volume, [25.0, 50.0], max_memory=limit, **arguments)
    assert 0 < np.abs(found - whole).max() < TOLERANCE


@pytest.mark.slow
@needs_native
def test_refused() -> None:
    volume = scene((80, 9, 10))
    with pytest.raises(ValueError, match=r"smallest blocks of this volume, of \d+ slices, take"):
        denoise(volume, 25.0, axes="ZYX", max_memory=1000, **FLAT)
    with pytest.raises(ValueError, match="max_memory is for the engine 'native'"):
        denoise(volume, 25.0, axes="ZYX", max_memory="2G", **{**FLAT, "engine": "numpy"})
    image = denoise(volume[0], 25.0, max_memory=1000, **FLAT)
    np.testing.assert_array_equal(image, denoise(volume[0], 25.0, **FLAT))


@needs_native
@pytest.mark.slow
@pytest.mark.parametrize("exact", [False, True])
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("shape", [(1, 9, 8, 7), (1, 40, 41, 35), (2, 12, 30, 64)])
def test_the_memory_of_the_engine_is_known(shape: tuple[int, ...], dtype: Any, exact: bool) -> None:
    """From above, and not by more than what narrow volumes pad."""
    evolution = PLUS.evolution(25.0).in_volume((1.0, 1.0, 1.0))
    for threads in (1, 3):
        process = NativeVolumeProcess(evolution, exact=exact, threads=threads)
        taken = process._start_one(np.zeros(shape, dtype)).bytes
        found = NATIVE.working_memory(
            evolution, shape, np.dtype(dtype), exact=exact, threads=threads
        )
        assert found is not None
        assert taken <= found <= 1.6 * taken + 2**18
    if exact:
        mask = np.ones(shape[1:], np.bool_)
        masked = NativeVolumeProcess(evolution, exact=True, threads=1, mask=mask)
        taken = masked._start_one(np.zeros(shape, dtype)).bytes
        found = NATIVE.working_memory(evolution, shape, np.dtype(dtype), threads=1, masked=True)
        assert found is not None
        assert taken <= found


@needs_native
@pytest.mark.slow
@pytest.mark.parametrize("name", ["pm", "iad", "iad-plus", "iad-fast", "iad-deep"])
@pytest.mark.parametrize("shape", [(1, 64, 70), (1, 300, 1100), (2, 200, 300)])
def test_the_memory_of_the_engine_for_images_is_known(name: str, shape: tuple[int, ...]) -> None:
    """From above, and for large images not by much."""
    evolution = load_model(name).evolution(25.0)
    for exact in (False, True):
        for threads in (1, 3):
            process = NativeProcess(evolution, exact=exact, threads=threads)
            taken = process._start_one(np.zeros(shape, np.float32)).bytes
            found = NATIVE.working_memory(
                evolution, shape, np.dtype(np.float32), exact=exact, threads=threads
            )
            assert found is not None
            assert taken <= found
            assert found <= 4 * taken + 2**20
    mask = np.ones(shape[1:], np.bool_)
    masked = NativeProcess(evolution, exact=True, threads=1, mask=mask)
    taken = masked._start_one(np.zeros(shape, np.float32)).bytes
    found = NATIVE.working_memory(
        evolution, shape, np.dtype(np.float32), exact=True, threads=1, masked=True
    )
    assert found is not None
    assert taken <= found


@needs_native
@pytest.mark.parametrize("exact", [False, True])
@pytest.mark.parametrize("masked", [False, True])
@pytest.mark.parametrize("name", ["pm", "iad", "iad-plus", "iad-deep"])
def test_the_memory_of_double_precision_is_known(name: str, exact: bool, masked: bool) -> None:
    evolution = load_model(name).evolution(25.0)
    for shape in ((1, 600, 64), (1, 70, 9)):
        mask = np.ones(shape[1:], np.bool_) if masked else None
        process = NativeProcess(evolution, exact=exact, threads=1, mask=mask)
        taken = process._start_one(np.zeros(shape)).bytes
        found = NATIVE.working_memory(
            evolution, shape, np.dtype(np.float64), exact=exact, threads=1, masked=masked
        )
        assert found is not None
        assert taken <= found


def planned(shape: tuple[int, int, int], sigma: float = 5.1) -> BlockDenoiser:
    """Return a volume of which no voxel is looked at, for the sizes of its blocks."""
    image = LargeImage(
        layout=Layout("ZYX", shape), dtype=np.dtype(np.uint16), window=lambda _: np.empty(0)
    )
    denoiser = Denoiser(sigma, axes="ZYX", model=PLUS, **FLAT)
    sample = scene((4, 4, 4)).astype(np.uint16)
    resolved = resolved_for(denoiser, replace(image, window=lambda _: sample[:1]))
    return BlockDenoiser(image=image, denoiser=denoiser, resolved=resolved)


def test_units_spend_the_least_on_halos() -> None:
    work = planned((2048, 1024, 1024))
    width = work.halo[0]

    def unit(chunk: int, bytes_per_block: float, least: int = 1) -> tuple[int, ...]:
        def fits(one: tuple[int, ...]) -> bool:
            return work.bytes_of(one) <= bytes_per_block

        return unit_size(work, (chunk,) * 3, fits, least)

    assert unit(256, 3.5e9) == (512, 512, 512)
    assert unit(256, 1.8e9) == (256, 512, 512)  # slices have the smallest share of halos
    assert unit(256, 1e3) == (256, 256, 256)  # is computed in parts
    assert unit(256, 3.5e9, least=20) == (256, 512, 512)
    # Axes that are spanned have no halo, and blocks at edges have less.
    assert work.computed((2048, 1024, 512)) == 1 + 2 * width / 1024
    assert work.computed((512, 1024, 512)) == (1 + 6 * width / 2048) * (1 + 2 * width / 1024)
    assert work.bytes_of((512, 512, 512)) < planned((2048, 2048, 2048)).bytes_of((512, 512, 512))
    thin = planned((40, 4096, 4096))
    assert unit_size(thin, (8, 256, 256), lambda _: True, 1) == (64, 1024, 2048)


class _Windows:
    """Windows of an array, as those of a file, which notes what it was asked for."""

    def __init__(self, pixels: NDArray[Any]) -> None:
        self.pixels = pixels
        self.places: list[Any] = []

    def __call__(self, place: tuple[slice, ...]) -> NDArray[Any]:
        self.places.append(place)
        return self.pixels[place]


def large_image(pixels: NDArray[Any], axes: str = "YX") -> LargeImage:
    layout = Layout(axes, pixels.shape)
    return LargeImage(layout=layout, dtype=pixels.dtype, window=_Windows(pixels))


@pytest.mark.parametrize(("axes", "planes"), [("YX", 1), ("TYX", 3), ("TYX", 100), ("CYX", 2)])
def test_noise_is_measured_in_nine_windows(
    axes: str, planes: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """So that a blank window, such as the glass of a slide, does not say that there is none."""
    monkeypatch.setattr("integrodiff.blocks.sample.SIDE", 48)
    rng = np.random.default_rng(0)
    image = rng.normal(100, 20, (planes, 160, 160)).astype(np.float32)
    image[..., :72, :72] = 3  # holds the first window, and nothing of the others
    image = image[0] if axes == "YX" else image
    large = large_image(image, axes)
    found = resolved_for(Denoiser(axes=axes), large)
    count = large.layout.channels
    assert len(cast("_Windows", large.window).places) == 9 * count
    assert len(found.channels) == count
    seen = [image[place].reshape(48, 48) for place in large.sample().places]
    assert np.ptp(seen[0]) == 0
    for number, channel in enumerate(found.channels):
        levels = [estimate_sigma(window) for window in seen[9 * number : 9 * number + 9]]
        assert levels[0] == 0
        assert channel.sigmas == np.median(np.array(levels[1:], np.float64))
        assert 17 < channel.sigmas < 23


def test_maps_for_blocks_are_finite() -> None:
    """As those for whole images, and where pixels may be invalid, at the valid ones."""
    levels = np.full((60, 40), 5.0)
    levels[50, 7] = np.nan
    denoiser = Denoiser(levels, data_range=255)
    with pytest.raises(ValueError, match="must be finite and nonnegative"):
        resolved_for(denoiser, large_image(np.full((60, 40), 100, np.uint8)))
    pixels = np.full((60, 40), 100, np.float32)
    image = large_image(pixels)
    work = BlockDenoiser(image=image, denoiser=denoiser, resolved=resolved_for(denoiser, image))
    assert work.denoised((slice(0, 8), slice(0, 40)), (8, 40)).shape == (8, 40)
    with pytest.raises(ValueError, match="must be finite at valid pixels"):
        work.denoised((slice(48, 60), slice(0, 40)))
    pixels[50, 7] = np.nan
    invalid = InvalidPixels(counts=(1,), plane_size=2400, reasons=("NaN",))
    work = replace(work, resolved=replace(work.resolved, invalid=invalid))
    found = work.denoised((slice(48, 60), slice(0, 40)))
    assert np.isnan(found).sum() == 1


@pytest.mark.parametrize("size", [512, 300, 256, 130, 64])
def test_no_block_is_larger_than_what_its_memory_is_counted_for(size: int) -> None:
    work = planned((1024, 600, 512))
    unit = (512, 600, 256)
    sizes = tuple(min(size, side) for side in unit)
    for axis, counted in enumerate(work.around(sizes, unit)):
        length, sides = work.shape[axis], []
        for first in range(0, length, unit[axis]):
            last = min(first + unit[axis], length)
            for at in range(first, last, sizes[axis]):
                end = min(at + sizes[axis], last)
                block = block_at(at, end, length, work.halo[axis])
                sides.append(block.high - block.low)
        assert max(sides) <= counted <= max(sides) + 1


def test_a_job_has_a_limited_number_of_tasks() -> None:
    assert [items_per_task(count) for count in (0, 1, 16, MOST_TASKS)] == [1] * 4
    assert items_per_task(MOST_TASKS + 1) == 2
    petapixel = -(-(10**15) // 4096**2)
    assert -(-petapixel // items_per_task(petapixel)) <= MOST_TASKS
    assert list(runs([], 3)) == []
    assert list(runs([4], 3)) == [range(4, 5)]
    left = [*range(7), 9, 10, 12]
    assert list(runs(left, 3)) == [
        *(range(3), range(3, 6), range(6, 7), range(9, 11), range(12, 13))
    ]
    assert [list(run) for run in runs(left, 1)] == [[number] for number in left]


def test_journals_are_read_into_arrays(tmp_path: Path) -> None:
    place = Unfinished(tmp_path / "out.zarr")
    place.begin({}, lambda path: path.mkdir())
    hashes = {
        key: hashlib.sha256(bytes(key)).hexdigest() for key in (Key(0, 0), Key(0, 99), Key(1, 3))
    }
    for key, digest in hashes.items():
        place.record(Written(key, digest))
    with (place.folder / "journal-0.jsonl").open("w") as stream:
        stream.write(f"{'x' * 5000}\n" + json.dumps([0, 100, hashes[Key(0, 0)]]) + '\n[0, 5, "ab')
    full, smaller = place.done((100, 4))
    assert full.shape == (100, 32)
    assert smaller.shape == (4, 32)
    assert np.flatnonzero(full.any(axis=1)).tolist() == [0, 99]
    assert np.flatnonzero(smaller.any(axis=1)).tolist() == [3]
    assert full[99].tobytes().hex() == hashes[Key(0, 99)]


@needs_native
@pytest.mark.slow
def test_blocks_in_place() -> None:
    """The result may take the place of the volume, of which blocks share slices."""
    model = replace(PLUS, steps=2, scales=replace(PLUS.scales, largest=3.0))
    volume = scene((64, 9, 10))
    limit = limit_for(volume, 0.8, model=model)
    arguments: dict[str, Any] = {"axes": "ZYX", "model": model, "max_memory": limit, **FLAT}
    expected = denoise(volume, 25.0, **arguments)
    assert (expected != denoise(volume, 25.0, **{**arguments, "max_memory": None})).any()
    np.testing.assert_array_equal(denoise(volume, 25.0, out=volume, **arguments), expected)


def test_a_page_looks_at_its_own_units(tmp_path: Path) -> None:
    shape, unit = (40, 4, 4), (1, 4, 4)
    output, asked = PageFiles(tmp_path, shape), []

    class Job:
        levels = (40,)

        def __init__(self) -> None:
            self.unit = unit

        def index(self, key: Key) -> Any:
            asked.append(key.number)
            return unit_at(shape, unit, key.number)

    for number in range(40):
        output.write(unit_at(shape, unit, number), np.full(unit, number, np.uint8))
    header = ImageHeader(shape=shape, dtype=np.dtype(np.uint8), axes="TYX")
    pages = output.pages(cast("Any", Job()), header, tmp_path)
    assert [int(page.pixels[0, 0]) for page in pages] == list(range(40))
    assert len(asked) == 40
