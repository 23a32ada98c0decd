"""Masks as arguments: their shapes, masked arrays, NaN, and grey values that mark no data."""

from __future__ import annotations

import pickle
from typing import Any, ClassVar

import numpy as np
import pytest
from numpy.typing import NDArray
from selection import some

from integrodiff import (
    Denoiser,
    NoValidPixelsWarning,
    denoise,
    estimate_poisson_gaussian,
    estimate_sigma,
)
from integrodiff.arrays import array_image
from integrodiff.layout import Layout
from integrodiff.validity import Nodata, Validity, nodata_value, plane_masks

SETTINGS: dict[str, Any] = {"data_range": 255, "engine": "numpy", "model": "pm"}


def noisy(*shape: int) -> NDArray[np.float32]:
    return np.random.default_rng(0).normal(100, 20, shape).astype(np.float32)


def holes(*shape: int) -> NDArray[np.bool_]:
    return np.random.default_rng(1).random(shape) > 0.2


class TestShapes:
    def test_rows_and_columns_hold_for_every_plane(self) -> None:
        image, mask = noisy(3, 12, 13), holes(12, 13)
        found = denoise(image, 20, axes="TYX", mask=mask, **SETTINGS)
        for frame, result in zip(image, found, strict=True):
            np.testing.assert_array_equal(denoise(frame, 20, mask=mask, **SETTINGS), result)
        whole = np.broadcast_to(mask, image.shape)
        np.testing.assert_array_equal(found, denoise(image, 20, axes="TYX", mask=whole, **SETTINGS))

    def test_rows_and_columns_wherever_they_are(self) -> None:
        image, mask = noisy(3, 12, 13), holes(12, 13)
        expected = denoise(image, 20, axes="TYX", mask=mask, **SETTINGS)
        for axes, order in (("YXT", (1, 2, 0)), ("YTX", (1, 0, 2)), ("XYT", (2, 1, 0))):
            turned = mask.T if axes == "XYT" else mask
            found = denoise(image.transpose(order), 20, axes=axes, mask=turned, **SETTINGS)
            np.testing.assert_array_equal(found, expected.transpose(order))

    def test_an_axis_of_length_one_is_repeated(self) -> None:
        layout = Layout("TCYX", (2, 3, 4, 5))
        mask = holes(2, 1, 4, 5)
        for number, found in enumerate(plane_masks(mask, layout)):
            np.testing.assert_array_equal(found, mask[number // 3, 0])

    def test_samples_of_a_pixel_share_their_fate(self) -> None:
        image, mask = noisy(12, 13, 3), np.ones((12, 13, 3), np.bool_)
        mask[4, 5, 1] = False
        expected = denoise(image, 20, channel_axis=-1, mask=mask.all(axis=-1), **SETTINGS)
        np.testing.assert_array_equal(
            denoise(image, 20, channel_axis=-1, mask=mask, **SETTINGS), expected
        )
        image[4, 5, 1] = np.nan
        found = denoise(image, 20, channel_axis=-1, **SETTINGS)
        np.testing.assert_array_equal(found[mask], expected[mask])
        assert found[4, 5].tobytes() == image[4, 5].tobytes()

    @pytest.mark.parametrize(
        ("mask", "error", "message"),
        [
            (np.ones((13, 12), np.bool_), ValueError, r"mask has the shape \(13, 12\)"),
            (np.ones((4, 12, 13), np.bool_), ValueError, "give a mask of this shape"),
            (np.ones((12, 13), np.uint8), TypeError, r"True at valid pixels.* write mask != 0"),
        ],
    )
    def test_refused(self, mask: Any, error: type[Exception], message: str) -> None:
        with pytest.raises(error, match=message):
            denoise(noisy(3, 12, 13), 20, axes="TYX", mask=mask, **SETTINGS)


class TestMaskedArrays:
    def test_come_back_as_such(self) -> None:
        image, mask = noisy(12, 13), holes(12, 13)
        masked = np.ma.MaskedArray(image, mask=~mask, fill_value=-7)
        found = denoise(masked, 20, **SETTINGS)
        assert isinstance(found, np.ma.MaskedArray)
        assert found.fill_value == -7
        np.testing.assert_array_equal(found.mask, ~mask)
        np.testing.assert_array_equal(found.data, denoise(image, 20, mask=mask, **SETTINGS))

    def test_without_masked_pixels(self) -> None:
        image = noisy(12, 13)
        found = denoise(np.ma.MaskedArray(image), 20, **SETTINGS)
        assert isinstance(found, np.ma.MaskedArray)
        np.testing.assert_array_equal(found.data, denoise(image, 20, **SETTINGS))

    def test_both_masks_count(self) -> None:
        image, mask, other = noisy(12, 13), holes(12, 13), holes(13, 12).T
        found = denoise(np.ma.MaskedArray(image, mask=~mask), 20, mask=other, **SETTINGS)
        expected = denoise(image, 20, mask=mask & other, **SETTINGS)
        np.testing.assert_array_equal(np.ma.getdata(found), expected)


class TestVoid:
    def test_an_image_comes_back_as_it_is(self) -> None:
        for image in (np.full((5, 6), np.nan), np.full((5, 6), np.inf, np.float32)):
            with pytest.warns(NoValidPixelsWarning, match=r"no valid pixel and comes back.*NaN"):
                np.testing.assert_array_equal(denoise(image, engine="numpy"), image)
        counts = np.arange(30, dtype=np.uint16).reshape(5, 6)
        for noise in ("gaussian", "poisson", "poisson-gaussian"):
            with pytest.warns(NoValidPixelsWarning, match="invalid: mask"):
                found = denoise(counts, noise=noise, mask=np.zeros((5, 6), np.bool_))
            np.testing.assert_array_equal(found, counts)

    def test_a_plane_does(self) -> None:
        frames = noisy(4, 12, 13)
        frames[1] = np.nan
        with pytest.warns(NoValidPixelsWarning, match=r"1 of 4 planes have no valid pixel \(2\)"):
            found = denoise(frames, 20, axes="TYX", **SETTINGS)
        assert np.isnan(found[1]).all()
        np.testing.assert_array_equal(
            found[[0, 2, 3]], denoise(frames[[0, 2, 3]], 20, axes="TYX", **SETTINGS)
        )

    def test_a_channel_does(self) -> None:
        channels = noisy(2, 40, 41)
        channels[0] = np.nan
        with pytest.warns(NoValidPixelsWarning):
            found = denoise(channels, axes="CYX", **SETTINGS)
        np.testing.assert_array_equal(found[1], denoise(channels[1], **SETTINGS))


class TestEstimates:
    def test_other_planes_stand_in_for_void_ones(self) -> None:
        frames = noisy(12, 40, 41)
        frames[:3] = np.nan
        with pytest.warns(NoValidPixelsWarning):
            found = denoise(frames, axes="TYX", **SETTINGS)
        assert found[3:].std() < 0.7 * frames[3:].std()

    def test_too_few_valid_pixels(self) -> None:
        mask = np.zeros((40, 40), np.bool_)
        mask[:9] = True
        with pytest.raises(ValueError, match=r"too few valid pixels .* Give sigma"):
            denoise(noisy(40, 40), mask=mask, **SETTINGS)
        with pytest.raises(ValueError, match="too few valid pixels"):
            estimate_poisson_gaussian(noisy(40, 40), mask=mask)
        with pytest.raises(ValueError, match="too small"):
            denoise(noisy(5, 5), **SETTINGS)

    def test_levels_of_valid_pixels_must_be_known(self) -> None:
        image, levels = noisy(12, 13), np.full((12, 13), 20.0)
        levels[3, 4] = np.nan
        with pytest.raises(ValueError, match="must be finite and nonnegative"):
            denoise(image, levels, **SETTINGS)
        image[3, 4] = np.nan
        denoise(image, levels, **SETTINGS)
        levels[5, 5] = np.inf
        with pytest.raises(ValueError, match="at valid pixels"):
            denoise(image, levels, **SETTINGS)


class TestLevelsPerScale:
    LEVELS: ClassVar[dict[float, float]] = {0.5: 10.0, 2.0: 25.0}

    @staticmethod
    def correlated(*shape: int) -> NDArray[np.float32]:
        """Return a ramp with noise that is averaged over 2 x 2 pixels, and of level 20."""
        noise = np.random.default_rng(2).normal(0, 40, shape)
        for axis in (0, 1):
            noise = (noise + np.roll(noise, 1, axis)) / 2
        ramp = np.linspace(50, 200, shape[1])
        return np.asarray(ramp[:, None] if len(shape) == 3 else ramp, np.float32) + np.asarray(
            noise, np.float32
        )

    @pytest.mark.slow
    @pytest.mark.parametrize("shape", [(96, 97), (96, 97, 3), (420, 430)])
    @pytest.mark.parametrize("data_range", [None, 255.0])
    def test_invalid_values_do_not_influence_the_estimate(
        self, shape: tuple[int, ...], data_range: float | None
    ) -> None:
        image, mask = self.correlated(*shape), np.ones(shape[:2], np.bool_)
        mask[10:40, 20:60] = mask[70:, :5] = mask[50, ::20] = False
        axis = -1 if len(shape) == 3 else None
        denoiser = Denoiser(channel_axis=axis, data_range=data_range, model="pm", engine="numpy")
        found = []
        for junk in (0.0, 1e30, np.nan, -np.inf):
            image[~mask] = junk
            source = array_image(image, channel_axis=axis, mask=mask)
            (channel,) = denoiser.pipeline(source).resolved.channels
            found.append((channel.noise, channel.levels, channel.scaling))
        noise = found[0][0]
        assert not any(levels.is_white for levels in noise)
        assert [levels.sigma for levels in noise] == pytest.approx([20] * len(noise), rel=0.15)
        assert found == found[:1] * 4

    def test_estimate_is_that_of_the_valid_part(self) -> None:
        image = self.correlated(200, 210)
        image[:, 100:] += np.random.default_rng(3).normal(0, 90, (200, 110))
        mask = np.zeros(image.shape, np.bool_)
        mask[:, :100] = True
        with_mask, cropped = estimate_sigma(image, mask=mask), estimate_sigma(image[:, :100])
        assert with_mask == pytest.approx(cropped, rel=0.05)

    def test_small_valid_part_of_a_large_image(self) -> None:
        image, mask = self.correlated(900, 910), np.zeros((900, 910), np.bool_)
        mask[500:530, 300:330] = mask[40:49, 100:700] = True
        image[~mask] = np.nan
        assert estimate_sigma(image) == pytest.approx(20, rel=0.3)

    @pytest.mark.slow
    @pytest.mark.parametrize("engine", some(["numpy", "auto"], "auto"))
    def test_given_levels(self, engine: str) -> None:
        image, mask = self.correlated(40, 41), holes(40, 41)
        arguments: dict[str, Any] = {"model": "iad-fast", "engine": engine}
        for noise in ({"sigma": self.LEVELS}, {"noise_psd": np.full((40, 41), 400.0 * 40 * 41)}):
            expected = denoise(image, mask=mask, **noise, **arguments)
            np.testing.assert_array_equal(expected[~mask], image[~mask])
            assert expected[mask].std() < image[mask].std()
            hidden = np.where(mask, image, np.float32(np.nan))
            found = denoise(hidden, **noise, **arguments)
            np.testing.assert_array_equal(found[mask], expected[mask])
        white = denoise(image, 20, mask=mask, **arguments)
        np.testing.assert_array_equal(white, expected)
        assert (denoise(image, self.LEVELS, mask=mask, **arguments) != white).any()

    def test_processes_of_other_levels_are_not_reused(self) -> None:
        image, mask = self.correlated(96, 97), holes(96, 97) | (np.arange(97) > 30)
        denoiser = Denoiser(**SETTINGS)
        for factor in (1, 2):
            expected = denoise(factor * image, mask=mask, **SETTINGS)
            np.testing.assert_array_equal(denoiser(factor * image, mask=mask), expected)

    def test_a_channel_without_valid_pixels_stays_as_it_is(self) -> None:
        channels = np.stack([self.correlated(60, 61)] * 2)
        channels[1] = np.nan
        with pytest.warns(NoValidPixelsWarning):
            found = denoise(channels, self.LEVELS, axes="CYX", model="pm", engine="numpy")
        assert np.isnan(found[1]).all()
        alone = denoise(channels[0], self.LEVELS, model="pm", engine="numpy")
        np.testing.assert_array_equal(found[0], alone)


class TestDenoiser:
    def test_masks_belong_to_images(self) -> None:
        denoiser = Denoiser(20, **SETTINGS)
        image = noisy(12, 13)
        for mask in (holes(12, 13), None, ~holes(12, 13), holes(12, 13)):
            expected = denoise(image, 20, mask=mask, **SETTINGS)
            np.testing.assert_array_equal(denoiser(image, mask=mask), expected)
            denoiser = pickle.loads(pickle.dumps(denoiser))  # noqa: S301

    def test_in_place(self) -> None:
        image, mask = noisy(12, 13), holes(12, 13)
        expected = denoise(image, 20, mask=mask, **SETTINGS)
        assert denoise(image, 20, mask=mask, out=image, **SETTINGS) is image
        np.testing.assert_array_equal(image, expected)

    def test_integers_as_floats(self) -> None:
        image, mask = noisy(12, 13).astype(np.uint16), holes(12, 13)
        found = denoise(image, 20, mask=mask, as_float=True, **SETTINGS)
        np.testing.assert_array_equal(found[~mask], image[~mask])
        assert found[mask].sum() == pytest.approx(image[mask].sum(), rel=1e-6)


class TestNodata:
    @pytest.mark.parametrize(
        ("dtype", "value", "there"),
        [
            ("uint8", 0, True),
            ("uint8", 300, False),
            ("uint8", 0.5, False),
            ("uint8", -1, False),
            ("int16", -9999, True),
            ("int64", 2**62 + 1, True),
            ("uint64", 2**64 - 1, True),
            ("float32", -3.4028234663852886e38, True),
            ("float32", 0.1, True),
            ("float32", 1e300, False),
            ("float64", 0.1, True),
        ],
    )
    def test_values_in_the_dtype(self, dtype: str, value: float, there: bool) -> None:
        pixels = np.ones((2, 3), dtype)
        if there:
            pixels[1, 2] = value
        found = nodata_value(value).found_in(pixels)
        assert found[1, 2] == there
        assert found.sum() == there

    def test_intervals(self) -> None:
        pixels = np.arange(10, dtype=np.int16)[None] - 5
        found = Nodata(-5, -3, "padding").found_in(pixels)
        np.testing.assert_array_equal(found[0], pixels[0] <= -3)
        assert not Nodata(np.nan, np.nan, "nodata nan").found_in(pixels).any()
        assert Nodata(-1e9, 1e9, "all").found_in(pixels).all()

    @pytest.mark.parametrize(
        ("rule", "dtype", "values", "expected"),
        [
            (nodata_value(0), "uint8", [0, 1, 0], [1, 1, 1]),
            (nodata_value(255), "uint8", [0, 255], [0, 254]),
            (nodata_value(0), "int16", [-1, 0, 1], [-1, 1, 1]),
            (Nodata(3, 6, "padding"), "int32", [2, 3, 4, 5, 6, 7], [2, 2, 2, 7, 7, 7]),
            (Nodata(0, 255, "all"), "uint8", [3, 4], [3, 4]),
            (nodata_value(0), "float32", [0, 1], [np.nextafter(np.float32(0), np.float32(1)), 1]),
            (nodata_value(2**63), "uint64", [2**63, 5], [2**63 + 1, 5]),
        ],
    )
    def test_other_values(
        self, rule: Nodata, dtype: str, values: list[int], expected: list[int]
    ) -> None:
        pixels = np.array([values], dtype)
        found = Validity(nodata=(rule,)).unmarked(pixels)
        np.testing.assert_array_equal(found, np.array([expected], dtype))
        assert found.dtype == dtype
        np.testing.assert_array_equal(pixels, np.array([values], dtype))
        by_hand = nodata_value(values[0], declared=False)
        assert Validity(nodata=(by_hand,)).unmarked(pixels) is pixels

    def test_reasons(self) -> None:
        rules = Validity(nodata=(nodata_value(-9999), nodata_value(7)))
        rules = rules.with_mask([np.ones((2, 2), np.bool_)], "mask")
        plane = np.array([[1, -9999], [np.nan, 2]])
        assert rules.reasons(plane) == ["nodata -9999", "NaN or infinite"]
        np.testing.assert_array_equal(rules.of(plane), [[True, False], [False, True]])
        assert rules.of(np.zeros((2, 2))) is None
