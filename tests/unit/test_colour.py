"""Channels: together, apart, and as luminance and colours."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from integrodiff import denoise
from integrodiff.colour import Colour, colour_space, new_levels


@pytest.fixture(scope="module")
def astronaut() -> NDArray[np.float64]:
    from skimage.data import astronaut

    image: NDArray[np.float64] = astronaut()[80:176, 180:276].astype(np.float64)
    return image


def noisy(clean: NDArray[np.float64], sigma: Any) -> NDArray[np.float64]:
    levels = np.broadcast_to(np.asarray(sigma, np.float64), clean.shape)
    return clean + np.random.default_rng(0).normal(0, levels)


def error(image: NDArray[Any], clean: NDArray[Any]) -> float:
    return float(np.mean((image.astype(np.float64) - clean) ** 2))


@pytest.mark.slow
@pytest.mark.parametrize("sigma", [15, 40])
def test_opponent_is_the_default_for_three_channels_and_better(
    sigma: float, astronaut: NDArray[np.float64]
) -> None:
    image = noisy(astronaut, sigma)
    results = {
        colour: denoise(image, sigma, data_range=255, channel_axis=-1, colour=colour)
        for colour in ("auto", "opponent", "joint", "separate")
    }
    np.testing.assert_array_equal(results["auto"], results["opponent"])
    errors = {name: error(result, astronaut) for name, result in results.items()}
    assert errors["opponent"] < 0.9 * errors["joint"]
    assert errors["joint"] < errors["separate"]


@pytest.mark.slow
def test_luminance_is_denoised_as_a_grey_image(astronaut: NDArray[np.float64]) -> None:
    image = noisy(astronaut, 30)
    result = denoise(image, 30, data_range=255, channel_axis=-1)
    grey = denoise(image.mean(axis=-1), 30 / np.sqrt(3), data_range=255)
    np.testing.assert_allclose(result.mean(axis=-1), grey, atol=1e-9)


@pytest.mark.slow
def test_equal_channels_stay_equal(astronaut: NDArray[np.float64]) -> None:
    image = np.repeat(noisy(astronaut[..., :1], 20), 3, axis=-1)
    result = denoise(image, 20, data_range=255, channel_axis=-1)
    np.testing.assert_allclose(result[..., 0], result[..., 1], atol=1e-9)
    np.testing.assert_allclose(result[..., 0], result[..., 2], atol=1e-9)


@pytest.mark.slow
@pytest.mark.parametrize("colour", ["opponent", "joint", "separate"])
def test_means_are_kept_and_the_norm_does_not_grow(
    colour: Any, astronaut: NDArray[np.float64]
) -> None:
    image = noisy(astronaut, 30) - 100
    result = denoise(image, 30, data_range=255, channel_axis=-1, colour=colour)
    np.testing.assert_allclose(result.mean((0, 1)), image.mean((0, 1)), rtol=1e-9)
    assert np.linalg.norm(result) <= np.linalg.norm(image)


@pytest.mark.slow
def test_separate_is_one_by_one(astronaut: NDArray[np.float64]) -> None:
    image = noisy(astronaut, [10, 20, 30])
    result = denoise(image, [10, 20, 30], data_range=255, channel_axis=-1, colour="separate")
    for i, sigma in enumerate((10, 20, 30)):
        alone = denoise(image[..., i], sigma, data_range=255)
        np.testing.assert_allclose(result[..., i], alone, atol=1e-9)


@pytest.mark.slow
@pytest.mark.parametrize("colour", ["separate", "joint"])
def test_noise_levels_of_channels_help(colour: Any, astronaut: NDArray[np.float64]) -> None:
    image = noisy(astronaut, [10, 20, 30])
    settings: Any = {"data_range": 255, "channel_axis": -1, "colour": colour}
    each = denoise(image, [10, 20, 30], **settings)
    common = denoise(image, float(np.sqrt(np.mean(np.square([10, 20, 30])))), **settings)
    # Relative to their noise: a shared tensor follows the samples that show structure best, and
    # leaves more noise in the others, whose plain squared error is largest.
    unit = np.array([10, 20, 30])
    assert error(each / unit, astronaut / unit) < 0.97 * error(common / unit, astronaut / unit)
    blind = denoise(image, **settings)
    assert error(blind, astronaut) < 1.03 * error(each, astronaut)


def test_joint_weighs_channels_by_their_noise(astronaut: NDArray[np.float64]) -> None:
    """The same image in other units: a channel ten times as large, and its noise as well."""
    image = noisy(astronaut, 20)[..., :2]
    plain = denoise(image, 20, data_range=255, channel_axis=-1)
    # The harmonic mean of the variances is what the process is told, and the grey range goes
    # with it.
    told = float(np.sqrt(2 / (20**-2 + 200**-2)))
    scaled = denoise(
        image * [1, 10], [20, 200], data_range=255 * told / 20, channel_axis=-1, colour="joint"
    )
    np.testing.assert_allclose(scaled / [1, 10], plain, atol=1e-8)


@pytest.mark.slow
@pytest.mark.parametrize("place", [0, 1, 2])
def test_a_sample_without_noise_is_returned(place: int, astronaut: NDArray[np.float64]) -> None:
    levels = [20.0, 10.0, 20.0]
    levels[place] = 0.0
    image = noisy(astronaut, levels)
    others = [n for n in range(3) if n != place]
    colours: tuple[Colour, ...] = ("auto", "joint", "separate")
    for colour in colours:
        result = denoise(image, levels, data_range=255, channel_axis=-1, colour=colour)
        np.testing.assert_array_equal(result[..., place], image[..., place])
        mode: Colour = "separate" if colour == "separate" else "joint"
        rest = denoise(
            image[..., others],
            [levels[n] for n in others],
            data_range=255,
            channel_axis=-1,
            colour=mode,
        )
        np.testing.assert_allclose(result[..., others], rest, atol=1e-9)
    opponent = denoise(image, levels, data_range=255, channel_axis=-1, colour="opponent")
    assert error(opponent, astronaut) < error(image, astronaut)


@pytest.mark.slow
def test_an_empty_sample_is_found(astronaut: NDArray[np.float64]) -> None:
    image = noisy(astronaut, 20)
    image[..., 1] = 3.0
    result = denoise(image, channel_axis=-1)
    np.testing.assert_array_equal(result[..., 1], image[..., 1])
    rest = denoise(image[..., ::2], channel_axis=-1)
    np.testing.assert_allclose(result[..., ::2], rest, atol=1e-9)
    assert error(result[..., ::2], astronaut[..., ::2]) < 0.5 * error(
        image[..., ::2], astronaut[..., ::2]
    )


@pytest.mark.slow
@pytest.mark.parametrize("axis", [0, 1, 2, -1])
def test_any_axis(axis: int, astronaut: NDArray[np.float64]) -> None:
    image = noisy(astronaut, 20)
    moved = np.moveaxis(image, -1, axis)
    result = denoise(moved, 20, data_range=255, channel_axis=axis)
    expected = denoise(image, 20, data_range=255, channel_axis=-1)
    np.testing.assert_allclose(np.moveaxis(result, axis, -1), expected, atol=1e-9)


@pytest.mark.slow
def test_steps_of_both_groups_are_counted(astronaut: NDArray[np.float64]) -> None:
    image = np.clip(noisy(astronaut, 20), 0, 255).astype(np.uint8)
    seen: list[tuple[int, NDArray[Any]]] = []
    result = denoise(
        image, 20, channel_axis=-1, callback=lambda step: seen.append((step.number, step.image()))
    )
    count = len(seen) // 2
    assert [step for step, _ in seen] == list(range(1, 2 * count + 1))
    np.testing.assert_array_equal(np.rint(seen[-1][1]).clip(0, 255), result)
    # Luminance first: in the first half the colours are still those of the input.
    middle, last = seen[count - 1][1], seen[-1][1]
    colours = image[..., 0].astype(float) - image[..., 2]
    np.testing.assert_allclose(middle[..., 0] - middle[..., 2], colours, atol=1e-3)
    np.testing.assert_allclose(middle.mean(-1), last.mean(-1), atol=1e-3)


@pytest.mark.parametrize("count", [1, 2, 5, 7])
def test_other_numbers_of_channels_are_joint(count: int) -> None:
    image = np.random.default_rng(0).normal(100, 20, (count, 12, 13))
    auto, joint = (
        denoise(image, 20, data_range=255, channel_axis=0, colour=colour)
        for colour in ("auto", "joint")
    )
    np.testing.assert_array_equal(auto, joint)
    with pytest.raises(ValueError, match=f"this image has {count};"):
        denoise(image, 20, data_range=255, channel_axis=0, colour="opponent")


def test_bad_arguments() -> None:
    image = np.zeros((6, 6, 3))
    with pytest.raises(ValueError, match="colour must be one of 'auto', 'opponent'"):
        denoise(image, 1, channel_axis=-1, colour="cmyk")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="sigma must have 3 values, got 2"):
        denoise(image, [1, 2], channel_axis=-1)
    with pytest.raises(ValueError, match=r"sigma\[1\] must not be negative"):
        denoise(image, [1, -2, 3], channel_axis=-1)


def test_spaces_are_inverted_exactly() -> None:
    rng = np.random.default_rng(0)
    image = rng.normal(0, 100, (3, 5, 6))
    space = colour_space("opponent", new_levels("opponent", np.array([3.0, 4.0, 5.0])))
    np.testing.assert_allclose(space.mixed(space.separated(image)), image, atol=1e-10)
    luminance, colours = space.groups
    assert luminance.sigma == pytest.approx(np.sqrt(50) / 3)
    noise = rng.normal(0, 1, (3, 200, 200)) * np.array([3, 4, 5])[:, None, None]
    levels = space.separated(noise).std((1, 2))
    np.testing.assert_allclose(levels, [luminance.sigma, colours.sigma, colours.sigma], rtol=0.02)
