"""Volumes through the one function: axes, spacing, models, masks, maps, engines."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from cases import RUNNABLE_ENGINES
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from numpy.typing import NDArray

from integrodiff import (
    Denoiser,
    EngineUnavailableError,
    NoValidPixelsWarning,
    SlowEngineWarning,
    Step,
    VolumeModelWarning,
    denoise,
    load_model,
    pipeline,
)
from integrodiff import engines as engine_module
from integrodiff.arrays import array_image
from integrodiff.engines import ENGINES
from integrodiff.io.spacing import Spacing, distances

Floats = NDArray[np.float64]

pytestmark = [
    pytest.mark.slow,
    pytest.mark.filterwarnings("ignore:the spacing of this volume"),
]

VOLUME_MODEL: Any = load_model("iad-plus-volume")
QUICK = replace(VOLUME_MODEL, steps=3)
FLAT: dict[str, Any] = {"data_range": 255, "engine": "numpy", "model": QUICK}
COMMON: dict[str, Any] = {**FLAT, "axes": "ZYX"}


def scene(shape: tuple[int, int, int] = (5, 22, 24), sigma: float = 15.0, seed: int = 0) -> Floats:
    """Return a ball in a ramp, with noise."""
    z, y, x = np.meshgrid(*(np.linspace(-1, 1, size) for size in shape), indexing="ij")
    clean = 80 + 30 * x + 90.0 * (z**2 + y**2 + x**2 < 0.5)
    return clean + np.random.default_rng(seed).normal(0, sigma, shape)


def test_a_volume_is_one_thing_and_not_its_slices() -> None:
    volume = scene((18, 20, 22))
    clean = scene((18, 20, 22), sigma=0)
    named = {"data_range": 255, "engine": "numpy", "model": "iad-plus"}
    whole = denoise(volume, 15, axes="ZYX", **named)  # type: ignore[arg-type]
    slices = denoise(volume, 15, axes="QYX", **named)  # type: ignore[arg-type]
    assert np.abs(whole - slices).max() > 1
    expected = denoise(volume, 15, **{**COMMON, "model": VOLUME_MODEL})
    np.testing.assert_array_equal(whole, expected)
    assert ((whole - clean) ** 2).mean() < ((slices - clean) ** 2).mean()


def test_one_slice_is_an_image() -> None:
    volume = scene((1, 20, 24))
    expected = denoise(volume[0], 15, **FLAT)
    np.testing.assert_array_equal(denoise(volume, 15, **COMMON)[0], expected)
    np.testing.assert_array_equal(denoise(volume, 15, spacing=(9, 2, 2), **COMMON)[0], expected)


def test_equal_slices_give_the_image_in_every_slice() -> None:
    image = scene((1, 20, 24))[0]
    slow = replace(QUICK, tau=0.2)  # below the bounds of images and of volumes
    expected = denoise(image, 15, **{**FLAT, "model": slow})
    volume = np.stack([image] * 4)
    found = denoise(volume, 15, **{**COMMON, "model": slow})
    np.testing.assert_allclose(found, np.stack([expected] * 4), rtol=0, atol=1e-8)
    # Contrasts follow the spacing only where they are for volumes.
    given = {**COMMON, "model": replace(slow, provenance={}), "spacing": (3, 1, 1)}
    with pytest.warns(VolumeModelWarning, match="trained"):
        found = denoise(volume, 15, **given)
    np.testing.assert_allclose(found, np.stack([expected] * 4), rtol=0, atol=1e-8)


def test_only_ratios_of_spacing_matter() -> None:
    volume = scene()
    expected = denoise(volume, 15, **COMMON)
    for spacing in ((1, 1, 1), (0.1, 0.1, 0.1), (7, 7, 7)):
        np.testing.assert_array_equal(denoise(volume, 15, spacing=spacing, **COMMON), expected)
    wide = denoise(volume, 15, spacing=(3, 1, 1), **COMMON)
    assert np.abs(wide - expected).max() > 0.5
    single = np.array([0.3, 0.1, 0.1], np.float32).tolist()
    found = denoise(volume, 15, spacing=single, **COMMON)
    np.testing.assert_array_equal(found, wide)


@pytest.mark.parametrize("axes", ["XYZ", "YZX", "ZXY"])
def test_a_turned_volume_with_its_spacing(axes: str) -> None:
    volume, spacing = scene((6, 20, 22)), {"Z": 2.0, "Y": 1.0, "X": 1.5}
    expected = denoise(volume, 15, spacing=(2, 1, 1.5), **COMMON)
    turned = np.transpose(volume, ["ZYX".index(letter) for letter in axes])
    turned_spacing = [spacing[letter] for letter in axes]
    named = denoise(turned, 15, axes=axes, spacing=turned_spacing, **FLAT)
    back = [axes.index(letter) for letter in "ZYX"]
    np.testing.assert_array_equal(np.transpose(named, back), expected)
    # The same without telling that it was turned.
    found = denoise(turned, 15, spacing=turned_spacing, **COMMON)
    np.testing.assert_allclose(np.transpose(found, back), expected, rtol=0, atol=1e-8)


@pytest.mark.parametrize("axes", ["TCZYX", "TZCYX", "ZCTYX", "CTZYX", "YXZTC"])
def test_channels_and_frames_in_any_order(axes: str) -> None:
    image = np.stack(
        [[scene((3, 20, 21), 10 * (c + 1), 7 * t + c) for c in (0, 1)] for t in (0, 1)]
    )
    moved = np.transpose(image, ["TCZYX".index(letter) for letter in axes])
    found = denoise(moved, (10, 20), axes=axes, **FLAT)
    back = np.transpose(found, [axes.index(letter) for letter in "TCZYX"])
    for t in (0, 1):
        for c in (0, 1):
            expected = denoise(image[t, c], 10 * (c + 1), **COMMON)
            np.testing.assert_array_equal(back[t, c], expected)


def test_the_noise_level_is_that_of_the_channel() -> None:
    image = np.stack([scene((6, 40, 40), 10, 1), scene((6, 40, 40), 30, 2)])
    denoiser = Denoiser(axes="CZYX", engine="numpy")
    resolved = denoiser.pipeline(array_image(image, axes="CZYX")).resolved
    seen = [float(channel.sigmas[0]) for channel in resolved.channels]
    np.testing.assert_allclose(seen, (10, 30), rtol=0.1)
    assert (
        str(resolved.volume) == "volume, spacing 1 : 1 : 1 (z : y : x, unknown and taken as equal)"
    )


def test_colour_samples_share_a_volume() -> None:
    grey = scene((3, 20, 20))
    colour = np.stack([grey] * 3, axis=-1)
    found = denoise(colour, 15, axes="ZYXS", colour="joint", **FLAT)
    np.testing.assert_allclose(found[..., 1], denoise(grey, 15, **COMMON), rtol=0, atol=1e-9)


def test_integers_and_photons() -> None:
    counts = np.random.default_rng(0).poisson(np.maximum(scene(sigma=0), 1)).astype(np.uint16)
    found = denoise(counts, noise="poisson", axes="ZYX", engine="numpy", model=VOLUME_MODEL)
    assert found.dtype == np.uint16
    clean = scene(sigma=0)
    assert ((found - clean) ** 2).mean() < 0.4 * ((counts - clean) ** 2).mean()


@given(
    volume=arrays(
        np.float64,
        st.tuples(*[st.integers(1, 5)] * 3),
        elements=st.floats(-300, 300, allow_nan=False, width=32),
    ),
    spacing=st.tuples(*[st.sampled_from([1.0, 1.0, 2.5, 20.0])] * 3),
    name=st.sampled_from(["quick", "quick", "eed"]),
)
@pytest.mark.filterwarnings("ignore::integrodiff.VolumeModelWarning")
def test_mean_and_norm(volume: Floats, spacing: tuple[float, float, float], name: str) -> None:
    if len(volume) == 1:
        spacing = (1.0, 1.0, 1.0)
    model = QUICK if name == "quick" else load_model(name)
    found = denoise(volume, 20, spacing=spacing, **{**COMMON, "model": model})
    scale = 1 + np.abs(volume).max()
    assert abs(found.mean() - volume.mean()) < 1e-11 * scale
    assert np.linalg.norm(found) <= np.linalg.norm(volume) * (1 + 1e-12) + 1e-9


def test_invalid_voxels() -> None:
    volume = scene()
    mask = np.random.default_rng(1).random(volume.shape) < 0.99
    holes = np.where(mask, volume, np.nan)
    found = denoise(holes, 15, **COMMON)
    np.testing.assert_array_equal(np.isnan(found), ~mask)
    np.testing.assert_array_equal(denoise(volume, 15, mask=mask, **COMMON)[mask], found[mask])
    np.testing.assert_allclose(found[mask].mean(), volume[mask].mean(), atol=1e-9)
    # A wrong value beside a hole would reach its neighbours across slices.
    whole = denoise(volume, 15, **COMMON)
    assert 0.01 < np.sqrt(((found - whole)[mask] ** 2).mean()) < 5


def test_slices_in_one_piece_are_not_copied() -> None:
    volume = np.arange(24.0).reshape(4, 3, 2)
    assert np.shares_memory(pipeline._tall(list(volume)), volume)
    for slices in (list(volume[::2]), list(volume.transpose(0, 2, 1)), [*volume[:2], volume[3]]):
        tall = pipeline._tall(slices)
        assert not np.shares_memory(tall, volume)
        np.testing.assert_array_equal(tall, np.concatenate(slices))
    np.testing.assert_array_equal(pipeline._tall(list(volume[1:])), np.concatenate(volume[1:]))
    # The result may be in the same place.
    noisy = scene()
    expected = denoise(noisy, 15, **COMMON)
    found = Denoiser(15, **COMMON)(noisy, out=noisy)
    np.testing.assert_array_equal(found, expected)


def test_a_slice_without_a_valid_voxel() -> None:
    volume = scene()
    volume[2] = np.nan
    with pytest.warns(NoValidPixelsWarning, match="1 of 5 planes"):
        found = denoise(volume, 15, **COMMON)
    assert np.isnan(found[2]).all()
    assert np.isfinite(found[[0, 1, 3, 4]]).all()


def test_maps_of_noise_levels() -> None:
    volume = scene()
    expected = denoise(volume, 15, **COMMON)
    for shape in (volume.shape, volume.shape[1:]):
        np.testing.assert_allclose(
            denoise(volume, np.full(shape, 15.0), **COMMON), expected, rtol=0, atol=1e-9
        )
    levels = np.full(volume.shape, 15.0)
    levels[:2] = 1e-3
    quiet = denoise(volume, levels, **COMMON)
    assert np.abs((quiet - volume)[0]).mean() < 0.2 * np.abs((quiet - volume)[-1]).mean()
    levels[:, 3, 3], volume[:, 3, 3] = np.nan, np.nan
    assert np.isfinite(np.delete(denoise(volume, levels, **COMMON), 3, axis=1)).all()


def test_callbacks_see_the_volume() -> None:
    shapes, numbers = set(), []

    def watch(step: Step) -> None:
        shapes.add(step.image().shape)
        numbers.append((step.number, step.total, step.plane))

    image = np.stack([scene((3, 20, 21)), scene((3, 20, 21), seed=1)])
    denoise(image, 15, axes="TZYX", callback=watch, **FLAT)
    assert shapes == {(3, 20, 21)}
    assert numbers[0] == (1, 6, 0)
    assert numbers[-1] == (6, 6, 3)


@pytest.mark.parametrize("engine", RUNNABLE_ENGINES)
def test_engines(engine: str) -> None:
    volume = scene((3, 20, 20))
    found = denoise(volume, 15, exact=True, **{**COMMON, "engine": engine})
    np.testing.assert_allclose(found, denoise(volume, 15, **COMMON), rtol=0, atol=1e-9)


@pytest.mark.parametrize("engine", RUNNABLE_ENGINES)
def test_engines_take_invalid_voxels(engine: str) -> None:
    volume = scene((3, 20, 20))
    volume[1, 5, 5] = np.nan
    found = denoise(volume, 15, **{**COMMON, "engine": engine})
    np.testing.assert_allclose(found, denoise(volume, 15, **COMMON), rtol=0, atol=1e-8)


def test_what_the_compiled_engine_does_not_take(monkeypatch: pytest.MonkeyPatch) -> None:
    if ENGINES["native"].unavailable() is not None:
        pytest.skip("the compiled engine is not there")
    monkeypatch.setattr(type(QUICK), "_orders", lambda self: (1, 1))  # two terms of order one
    with pytest.raises(EngineUnavailableError, match="volumes with several terms"):
        denoise(scene(), 15, axes="ZYX", model=QUICK, engine="native")
    engine_module._warn_of_slow_engine.cache_clear()
    monkeypatch.setattr(type(ENGINES["torch"]), "has_gpu", lambda _: False)
    with pytest.warns(SlowEngineWarning, match="several terms"):
        found = denoise(scene(), 15, **{**COMMON, "engine": "auto"})
    np.testing.assert_array_equal(found, denoise(scene(), 15, **COMMON))


def test_thick_slices_warn() -> None:
    with pytest.warns(VolumeModelWarning, match=r"is 3 : 1 : 1 .* Above 2.5 .* slice by slice"):
        denoise(scene((3, 20, 20)), 15, spacing=(3, 1, 1), **COMMON)


def test_parameters_of_images_warn() -> None:
    volume = scene((3, 20, 20))
    with pytest.warns(VolumeModelWarning, match="trained on images"):
        denoise(volume, 15, **{**COMMON, "model": "iid"})


@pytest.mark.filterwarnings("ignore::integrodiff.VolumeModelWarning")
@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (
            {"model": "iad-deep"},
            r"cannot denoise volumes: .*order .* Take model='iad-plus', or axes",
        ),
        ({"spacing": (1, 1)}, "one number for each of the axes Z, Y, X"),
        ({"spacing": (1, 0, 1)}, "spacing must be positive"),
        ({"sigma": np.ones((3, 3, 3))}, "5 slices, 22 rows and 24 columns"),
        ({"sigma": np.ones((2, 3, 3, 3))}, "slices, rows, columns"),
    ],
)
def test_refused(arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        denoise(scene(), **{"sigma": 15, **COMMON, **arguments})


def test_images_have_square_pixels() -> None:
    image = scene()[0]
    np.testing.assert_array_equal(
        denoise(image, 15, spacing=(2, 2), **FLAT), denoise(image, 15, **FLAT)
    )
    with pytest.raises(ValueError, match="same spacing of rows and columns, got 2 and 1"):
        denoise(image, 15, spacing=(2, 1), **FLAT)


def test_spacing_in_one_unit() -> None:
    known = {"Z": Spacing(2, "µm"), "Y": Spacing(500, "nm"), "X": Spacing(500, "nm")}
    found = distances(known)
    assert found["Z"] / found["X"] == pytest.approx(4)
    assert distances({**known, "Z": Spacing(2, None)}) == {}
    assert distances({letter: Spacing(2, None) for letter in "ZYX"}) == dict.fromkeys("ZYX", 2)
    assert distances({"Y": Spacing(1, "mm"), "X": Spacing(1, "mm")}) == {}


@pytest.mark.skipif(ENGINES["native"].unavailable() is not None, reason="needs the engine native")
def test_a_step_size_of_zero_changes_nothing() -> None:
    """Laws of the step size may underflow."""
    process = replace(load_model("iad").evolution(25.0, spacing=(1.0, 1.0, 1.0)), tau=0.0)
    volume = scene((4, 5, 6))[None]
    np.testing.assert_array_equal(ENGINES["native"].evolve(volume, process), volume)
