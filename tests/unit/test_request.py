"""What a request becomes for an image: axes, channels, noise and grey range."""

from __future__ import annotations

import pickle
import timeit
import warnings
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from scipy.ndimage import gaussian_filter
from selection import some

from integrodiff import (
    Denoiser,
    NoiseLevelWarning,
    PoissonGaussian,
    Step,
    UnknownDetector,
    denoise,
    estimate_poisson_gaussian,
    estimate_sigma,
    load_model,
)
from integrodiff.arrays import array_image
from integrodiff.request import Request, ResolvedRequest, resolve
from integrodiff.units import GreyUnits


def scene(level: float, gain: float = 1.0, seed: int = 0) -> NDArray[np.float32]:
    """Return a ramp with a bright square, times a gain, and noise."""
    y, x = np.mgrid[:40, :44]
    clean = 60 + 2.0 * x + 70 * ((np.abs(y - 20) < 9) & (np.abs(x - 22) < 9))
    noise = np.random.default_rng(seed).normal(0, level, clean.shape)
    return np.asarray(gain * clean + noise, np.float32)


def resolved(image: Any, axes: str | None = None, **arguments: Any) -> ResolvedRequest:
    request = Request(model=load_model("iad-plus"), **arguments)
    return resolve(request, array_image(image, axes=axes))


def test_frames_share_noise_level_and_range() -> None:
    frames = np.stack([scene(level, seed=i) for i, level in enumerate((10, 12, 30))])
    (channel,) = resolved(frames, "TYX", data_range=255).channels
    assert channel.estimated
    assert channel.sigmas == np.median([estimate_sigma(frame) for frame in frames])
    result = denoise(frames, axes="TYX", data_range=255)
    for frame, found in zip(frames, result, strict=True):
        expected = denoise(frame, float(channel.sigmas[0]), data_range=255)
        np.testing.assert_array_equal(found, expected)


def test_an_estimate_takes_nine_frames_at_most() -> None:
    frames = np.stack([scene(10, seed=i) for i in range(30)])
    (channel,) = resolved(frames, "TYX", data_range=255).channels
    chosen = np.linspace(0, 29, 9).astype(int)
    assert channel.sigmas == np.median([estimate_sigma(frames[i]) for i in chosen])


@pytest.mark.slow
def test_channels_are_independent_images() -> None:
    """A dim and a bright channel: one level for both leaves the bright one noisy."""
    dim, bright = scene(6, 0.2), scene(120, 5.0, seed=1)
    stack = np.stack([dim, bright]).round().clip(0).astype(np.uint16)
    found = denoise(stack, axes="CYX")
    for channel, result in zip(stack, found, strict=True):
        np.testing.assert_array_equal(result, denoise(channel))
    levels = [float(channel.sigmas[0]) for channel in resolved(stack, "CYX").channels]
    assert levels[1] > 8 * levels[0]
    middle = float(np.median(levels))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", NoiseLevelWarning)
        shared = denoise(stack, middle, axes="CYX")
    errors = [np.sqrt(np.mean((image[1] - scene(0, 5.0)) ** 2)) for image in (found, shared)]
    assert 1.3 * errors[0] < errors[1]


@pytest.mark.slow
def test_noise_levels_of_channels_and_samples() -> None:
    stack = np.stack([scene(5), scene(20)])
    found = denoise(stack, [5, 20], axes="CYX", data_range=255)
    for channel, level, result in zip(stack, (5, 20), found, strict=True):
        np.testing.assert_array_equal(result, denoise(channel, level, data_range=255))
    colour = np.stack([scene(5), scene(20), scene(9)], axis=-1)
    by_axes = denoise(colour, [5, 20, 9], axes="YXS", data_range=255)
    by_axis = denoise(colour, [5, 20, 9], channel_axis=-1, data_range=255)
    np.testing.assert_array_equal(by_axes, by_axis)
    with pytest.raises(ValueError, match="sigma must have 2 values"):
        denoise(stack, [1, 2, 3], axes="CYX", data_range=255)
    with pytest.raises(TypeError, match="one number for an image with the axes TYX"):
        denoise(stack, [1, 2], axes="TYX", data_range=255)


@pytest.mark.slow
@pytest.mark.parametrize("axes", some(["TCYXS", "CTYXS", "SCTYX", "YSXTC", "XYTCS"], "YSXTC"))
def test_the_order_of_axes_changes_nothing(axes: str) -> None:
    rng = np.random.default_rng(0)
    image = rng.normal(100, 10, (2, 3, 24, 21, 3))
    moved = np.transpose(image, ["TCYXS".index(letter) for letter in axes])
    found = denoise(moved, axes=axes, data_range=255)
    expected = denoise(image, axes="TCYXS", data_range=255)
    back = np.transpose(found, [axes.index(letter) for letter in "TCYXS"])
    if axes.startswith("X"):  # rows and columns are summed up in another order
        np.testing.assert_allclose(back, expected, atol=1e-3)
    else:
        np.testing.assert_array_equal(back, expected)


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        ({}, ValueError, r"channel_axis=-1 .* axes='TYX' .* axes='CYX' .* axes='ZYX'"),
        ({"axes": "TYX", "channel_axis": -1}, ValueError, "not both"),
        ({"axes": "TYXS"}, ValueError, "names 4 axes"),
        ({"axes": 3}, TypeError, "axes must be a string"),
        ({"axes": "TYX", "sigma": np.ones((2, 3, 4, 5))}, ValueError, "sigma must be a number"),
        ({"axes": "TYX", "sigma": np.ones((4, 5))}, ValueError, r"shape \(4, 5\)"),
    ],
)
def test_refused(arguments: dict[str, Any], error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        denoise(np.zeros((5, 6, 7)), **arguments)


def test_values_that_are_not_finite_are_counted() -> None:
    frames = np.zeros((3, 8, 9))
    frames[1, 2, 3:5] = np.nan
    found = resolved(frames, sigma=0.1, axes="TYX").invalid
    assert found is not None
    assert found.counts == (0, 2, 0)
    assert str(found) == "0.93 % of the pixels are invalid: NaN or infinite"


def test_the_scale_of_counts_follows_from_their_structure() -> None:
    """One hot pixel changes the range of the values, and not the scale."""
    rng = np.random.default_rng(0)
    counts = rng.poisson(np.linspace(100, 400, 4096).reshape(64, 64)).astype(np.uint16)
    (channel,) = resolved(counts, noise="poisson").channels
    counts[20, 30] = 60000
    (hot,) = resolved(counts, noise="poisson").channels
    assert hot.data_range < 2 * channel.data_range
    assert channel.levels[0].sigma == pytest.approx(255 / channel.data_range)


def test_blank_frames_do_not_count_in_an_estimate() -> None:
    frames = np.stack([np.full((40, 44), 7, np.float32)] * 6 + [scene(10, seed=i) for i in (1, 2)])
    (channel,) = resolved(frames, "TYX", data_range=255).channels
    assert channel.sigmas == np.median([estimate_sigma(frame) for frame in frames[6:]])
    (blank,) = resolved(frames[:6], "TYX", data_range=255).channels
    assert blank.sigmas == 0


def test_a_map_belongs_to_rows_and_columns() -> None:
    with pytest.raises(ValueError, match="needs an image with Y before X, got the axes XY"):
        denoise(np.zeros((6, 6)), np.ones((6, 6)), axes="XY", data_range=255)


@pytest.mark.parametrize("blank", [0, 5])
def test_maps_of_the_wrong_size_are_refused(blank: float) -> None:
    image = scene(10)
    image[3, 4] = np.nan
    for found in (image, scene(10)):
        with pytest.raises(ValueError, match=r"map of noise levels has the shape \(5, 5\)"):
            denoise(found, np.full((5, 5), blank), data_range=255)


def test_warnings_are_in_the_unit_of_the_user() -> None:
    """A file may store grey values of another unit."""
    units = GreyUnits(slope=0.01, intercept=-2.0)

    def warned(image: NDArray[Any], **arguments: Any) -> str:
        source = replace(array_image(image), units=units)
        with pytest.warns(NoiseLevelWarning) as caught:
            resolve(Request(model=load_model("iad-plus"), **arguments), source)
        return str(caught[0].message)

    rng = np.random.default_rng(0)
    texture = 60 * gaussian_filter(rng.normal(0, 5, (96, 96)), 4) + rng.normal(0, 2, (96, 96))
    assert "the data range is 1: check" in warned(scene(10), sigma=3.0, data_range=1)
    doubtful = warned(texture)
    level = float(doubtful.split("noise level, ")[1].split(",")[0])
    assert 0.01 < level < 0.4
    assert "values down to -1.5, " in warned(np.full((32, 32), 50.0), noise="rician", sigma=1.0)
    detector = PoissonGaussian(gain=0.5, offset=70.0, readout=1.0)
    counts = warned(np.full((32, 32), 50.0), noise=detector)
    assert (
        "a detector with gain 0.5: grey values down to -1.5 are far below its offset, 70" in counts
    )


def test_code_without_a_module_is_warned() -> None:
    """As in ``timeit``, or in programs that hold an interpreter."""
    names = {"denoise": denoise, "image": scene(10)}
    with pytest.warns(NoiseLevelWarning) as caught:
        timeit.timeit("denoise(image, 0.5, data_range=255)", number=1, globals=names)
    assert caught[0].filename == "<timeit-src>"


def test_levels_of_four_channels_are_not_those_of_four_samples() -> None:
    image = np.random.default_rng(0).normal(100, 10, (4, 12, 12, 4))
    result = denoise(image, [10.0, 10.0, 10.0, 10.0], axes="CYXS", data_range=255)
    np.testing.assert_array_equal(result[..., 3], image[..., 3])
    assert (result[..., :3] != image[..., :3]).any()
    one = denoise(image[0], [10.0, 10.0, 10.0, 10.0], axes="YXS", data_range=255)
    assert (one[..., 3] != image[0, ..., 3]).any()


@pytest.mark.parametrize(
    ("image", "message"),
    [
        (scene(5) / 255, "brightest pixel, .* has at most one photon"),
        (scene(5).round().astype(np.int16) - 300, "far below its offset, 0"),
    ],
)
def test_images_that_are_no_photon_counts(image: NDArray[Any], message: str) -> None:
    with pytest.warns(NoiseLevelWarning, match=message):
        denoise(image, noise="poisson")


def test_warnings_name_channel_and_range() -> None:
    stack = np.stack([scene(10), scene(10)])
    text = r"of channel 2, 0.5 on the scale .* the data range is 255: check sigma and data_range"
    with pytest.warns(NoiseLevelWarning, match=text):
        denoise(stack, [10, 0.5], axes="CYX", data_range=255)


def test_unknown_detector_takes_the_offset() -> None:
    clean = np.linspace(20, 400, 96) * np.ones((90, 1))
    image = 100 + np.random.default_rng(0).poisson(clean).astype(np.float64)
    expected = estimate_poisson_gaussian(image, offset=100)
    (channel,) = resolved(image, noise=UnknownDetector(offset=100)).channels
    assert channel.photons == expected
    assert channel.estimated
    (given,) = resolved(image, noise=PoissonGaussian(offset=100)).channels
    assert not given.estimated


def test_steps_are_counted_over_planes_and_groups() -> None:
    image = np.random.default_rng(0).normal(100, 10, (2, 12, 13, 3))
    seen: list[Step] = []
    result = denoise(image, 10, axes="TYXS", data_range=255, callback=seen.append)
    assert [step.number for step in seen] == list(range(1, 25))
    assert {step.total for step in seen} == {24}
    assert [step.plane for step in seen] == [0] * 12 + [1] * 12
    np.testing.assert_allclose(seen[-1].image(), result[1], atol=1e-9)


def test_in_place_and_into_overlapping_memory() -> None:
    memory = np.random.default_rng(0).normal(100, 10, (4, 20, 20)).astype(np.float32)
    expected = denoise(memory[:3], 10, axes="TYX", data_range=255)
    shifted = memory.copy()
    found = denoise(shifted[:3], 10, axes="TYX", data_range=255, out=shifted[1:])
    np.testing.assert_array_equal(found, expected)
    denoise(memory[:3], 10, axes="TYX", data_range=255, out=memory[:3])
    np.testing.assert_array_equal(memory[:3], expected)


def test_a_used_denoiser_can_be_pickled() -> None:
    image = scene(10)
    denoiser = Denoiser(10, data_range=255)
    expected = denoiser(image)
    np.testing.assert_array_equal(pickle.loads(pickle.dumps(denoiser))(image), expected)  # noqa: S301


def test_a_masked_array_keeps_its_mask_in_place() -> None:
    image: Any = np.ma.masked_greater(scene(10), 150)
    expected: Any = denoise(image.copy(), 10)
    assert denoise(image, 10, out=image) is image
    assert np.ma.getmaskarray(image).any()
    np.testing.assert_array_equal(np.ma.getmaskarray(image), np.ma.getmaskarray(expected))
    np.testing.assert_array_equal(np.ma.getdata(image), np.ma.getdata(expected))


@pytest.mark.parametrize("hard", [False, True])
@pytest.mark.parametrize("is_masked", [False, True])
def test_a_masked_out_array_takes_the_mask_of_the_image(hard: bool, is_masked: bool) -> None:
    image: Any = np.ma.masked_greater(scene(10), 150) if is_masked else scene(10)
    blank = np.zeros(image.shape, np.float32)
    out = np.ma.masked_array(blank, mask=np.eye(*image.shape) > 0, hard_mask=hard)
    assert denoise(image, 10, out=out) is out
    np.testing.assert_array_equal(np.ma.getmaskarray(out), np.ma.getmaskarray(image))
    np.testing.assert_array_equal(out.data, np.ma.getdata(denoise(image, 10)))
    assert out.hardmask == hard


@pytest.mark.parametrize("factor", [0.5, 3.0])
def test_a_denoiser_owns_its_settings(factor: float) -> None:
    image = scene(10)
    levels = np.full(image.shape, 20.0)
    levels[:, :24] = 30
    denoiser, expected = Denoiser(levels), denoise(image, levels.copy())
    levels[:] = factor * levels[:, ::-1]
    np.testing.assert_array_equal(denoiser(image), expected)
    given = [20, 20, 20]
    denoiser = Denoiser(given, axes="YXS")
    expected = denoiser(np.stack([image] * 3, -1))
    given[0] = 1
    np.testing.assert_array_equal(denoiser(np.stack([image] * 3, -1)), expected)


@pytest.mark.parametrize("sigma", [1e200, 1e300])
def test_a_huge_level_is_no_overflow(sigma: float) -> None:
    assert np.isfinite(denoise(scene(10).astype(np.float64), sigma)).all()
