"""Noise that is not white, and images of any grey range."""

from __future__ import annotations

import io
import warnings
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray
from scipy.ndimage import gaussian_filter

from integrodiff import NoiseLevelWarning, denoise, estimate_sigma, load_model
from integrodiff.arrays import array_image
from integrodiff.grey_range import operating_level
from integrodiff.noise.levels import (
    NoiseLevels,
    given_levels,
    levels_of_spectrum,
    measured_levels,
    white,
    without_texture,
)
from integrodiff.noise.maps import noise_map
from integrodiff.noise.spectrum import Measurement
from integrodiff.request import Request, ResolvedChannel, resolve


@pytest.fixture(scope="module")
def camera() -> NDArray[np.float64]:
    from skimage.data import camera

    image: NDArray[np.float64] = camera()[100:292, 100:292].astype(np.float64)
    return image


def blurred_noise(shape: tuple[int, int], level: float, blur: float) -> NDArray[np.float64]:
    noise = gaussian_filter(np.random.default_rng(0).normal(size=shape), blur, mode="wrap")
    return np.asarray(level * noise / noise.std())


def jpeg(image: NDArray[np.float64], quality: int, subsampling: int = -1) -> NDArray[np.uint8]:
    from PIL import Image

    file = io.BytesIO()
    eight_bits = np.clip(np.rint(image), 0, 255).astype(np.uint8)
    Image.fromarray(eight_bits).save(file, "JPEG", quality=quality, subsampling=subsampling)
    return np.asarray(Image.open(file))


def psnr(image: NDArray[Any], clean: NDArray[np.float64]) -> float:
    return float(10 * np.log10(255**2 / np.mean((image.astype(np.float64) - clean) ** 2)))


def channel_of(image: NDArray[Any], **arguments: Any) -> ResolvedChannel:
    request = Request(model=load_model("iad-plus"), **arguments)
    (channel,) = resolve(request, array_image(image)).channels
    return channel


class TestEstimates:
    @pytest.mark.parametrize("level", [5.0, 20.0])
    def test_white_noise_is_white(self, camera: NDArray[np.float64], level: float) -> None:
        noise = np.random.default_rng(0).normal(0, level, camera.shape)
        (found,) = channel_of(camera + noise).noise
        assert found.is_white
        assert found.sigma == pytest.approx(level, rel=0.1)

    @pytest.mark.parametrize("blur", [0.5, 0.7, 1.0])
    def test_blurred_noise(self, camera: NDArray[np.float64], blur: float) -> None:
        image = camera + blurred_noise(camera.shape, 20, blur)
        channel = channel_of(image)
        (found,) = channel.noise
        assert not found.is_white
        assert found.levels[0] < found.levels[-1]
        assert float(estimate_sigma(image)) == pytest.approx(20, rel=0.2)
        assert "correlated noise (estimated)" in str(channel)

    @pytest.mark.parametrize("quality", [60, 75, 92])
    def test_compressed_noise(self, camera: NDArray[np.float64], quality: int) -> None:
        image = jpeg(camera + np.random.default_rng(0).normal(0, 20, camera.shape), quality)
        assert float(estimate_sigma(image)) == pytest.approx(20, rel=0.2)

    @pytest.mark.slow
    @pytest.mark.parametrize("blur", [0.5, 1.0])
    def test_denoising_is_close_to_the_best_level(
        self, camera: NDArray[np.float64], blur: float
    ) -> None:
        image = camera + blurred_noise(camera.shape, 20, blur)
        best = max(psnr(denoise(image, s, data_range=255), camera) for s in (15, 20, 25, 30, 40))
        assert psnr(denoise(image), camera) > best - 0.5

    def test_blurred_noise_beside_structure(self) -> None:
        """Coarse structure in the flattest parts does not make blurred noise white."""
        y, x = np.mgrid[:160, :160]
        waves = 60 * np.sin(x / 9) * np.sin(y / 11)
        (found,) = channel_of(waves + blurred_noise(waves.shape, 20, 0.5)).noise
        assert not found.is_white
        assert found.sigma == pytest.approx(20, rel=0.2)

    def test_blurred_noise_is_not_taken_for_compressed(self) -> None:
        power = np.exp(-4 * np.add.outer(*[1 - np.cos(np.pi * np.arange(8) / 8)] * 2))
        power[0, 0] = 0
        flat = Measurement(power, 1.0, 1.0, 1.0, compressed=False, count=1000, mean=0.0)
        expected = measured_levels(flat)
        assert not expected.is_white
        assert measured_levels(replace(flat, compressed=True)) == expected

    @pytest.mark.parametrize("rise", [0.0, 0.2, 0.5])
    def test_compressed_noise_has_the_level_of_lower_frequencies(self, rise: float) -> None:
        total = np.add.outer(*[1 - np.cos(np.pi * np.arange(8) / 8)] * 2)
        power = 400 * np.exp(-2 * rise * np.maximum(total - 2, 0))
        power[0, 0] = 0
        found = measured_levels(
            Measurement(power, 1.0, 1.0, 1.0, compressed=True, count=1000, mean=0.0)
        )
        assert found.is_white
        assert found.sigma == pytest.approx(20, rel=0.1)

    def test_clipped_samples_do_not_show_the_noise_of_their_sum(
        self, camera: NDArray[np.float64]
    ) -> None:
        """Two of three samples are white paper in half of the image, and the third is grey."""
        clean = np.repeat(camera[..., None], 3, axis=-1)
        clean[:, :96, :2], clean[:, :96, 2] = 262, 128
        noise = np.random.default_rng(0).normal(0, 20, clean.shape)
        image = np.clip(np.rint(clean + noise), 0, 255).astype(np.uint8)
        request = Request(model=load_model("iad-plus"))
        (channel,) = resolve(request, array_image(image, channel_axis=-1)).channels
        luminance = channel.space.groups[0]
        assert luminance.sigma == pytest.approx(20 / np.sqrt(3), rel=0.1)

    def test_a_mean_of_samples_has_at_most_their_noise(self, camera: NDArray[np.float64]) -> None:
        noise = np.random.default_rng(0).normal(0, 20, camera.shape)
        image = np.repeat((camera + noise)[..., None], 3, axis=-1)
        request = Request(model=load_model("iad-plus"))
        (channel,) = resolve(request, array_image(image, channel_axis=-1)).channels
        assert channel.space.groups[0].sigma <= channel.sigmas.mean() * (1 + 1e-9)
        assert channel.space.groups[0].sigma == pytest.approx(20, rel=0.1)

    def rough(self, blur: float, *, common: float = 0.0) -> NDArray[np.float64]:
        """Noise of level 20 on texture of the luminance; samples may have some in common."""
        grey = 128 + blurred_noise((192, 192), 30, blur) if blur else np.full((192, 192), 128.0)
        rng = np.random.default_rng(1)
        own = rng.normal(0, np.sqrt(400 - common**2), (192, 192, 3))
        return np.asarray(grey[..., None] + rng.normal(0, common, (192, 192, 1)) + own)

    def luminance(self, image: NDArray[Any]) -> tuple[float, bool]:
        """Return the noise level of the luminance, and whether it is white."""
        request = Request(model=load_model("iad-plus"))
        (channel,) = resolve(request, array_image(image, channel_axis=-1)).channels
        return channel.space.groups[0].sigma, channel.shapes[0].is_white

    @pytest.mark.slow
    @pytest.mark.filterwarnings("ignore::integrodiff.NoiseLevelWarning")
    def test_texture_of_the_luminance_is_no_noise_if_differences_have_none(self) -> None:
        rough, is_white = self.luminance(self.rough(0.7))
        assert is_white
        assert rough == pytest.approx(20 / np.sqrt(3), rel=0.1)
        rougher, is_white = self.luminance(self.rough(0.5))
        assert is_white
        assert rougher < 28

    @pytest.mark.slow
    @pytest.mark.filterwarnings("ignore::integrodiff.NoiseLevelWarning")
    def test_texture_in_compressed_colours(self) -> None:
        rough, smooth = (self.luminance(jpeg(self.rough(blur), 75, 0))[0] for blur in (0.7, 0.0))
        assert smooth == pytest.approx(13, rel=0.2)
        assert rough < 1.35 * smooth

    @pytest.mark.slow
    @pytest.mark.parametrize("quality", [None, 92, 75])
    def test_noise_that_samples_have_in_common_stays_noise(self, quality: int | None) -> None:
        image = self.rough(0.0, common=18.0)
        found, _ = self.luminance(image if quality is None else jpeg(image, quality, 0))
        assert found == pytest.approx(np.sqrt(18**2 + (400 - 18**2) / 3), rel=0.2)

    def levels(self, *bands: float, compressed: bool, **others: float) -> NoiseLevels:
        """Return the levels that a spectrum tells, given as levels from low to high frequencies."""
        total = np.add.outer(*[1 - np.cos(np.pi * np.arange(8) / 8)] * 2)
        power = np.interp(total, [0.3, 0.8, 1.5, 2.5, 3.5], bands) ** 2
        power[0, 0] = 0
        numbers = {"unit": 1.0, "spread": 1.0, "structure": 1.0, "count": 1000.0, "mean": 0.0}
        return measured_levels(Measurement(power, compressed=compressed, **{**numbers, **others}))

    def test_compressed_differences_tell_the_noise_of_the_luminance(self) -> None:
        """At quality 60 only the lowest frequencies of differences keep their noise."""
        sample = self.levels(30, 26, 23, 17, 12, compressed=True)
        luminance = self.levels(32, 27, 22, 16, 10, compressed=True)
        difference = self.levels(17, 12, 6, 5, 6, compressed=True)
        samples, new = without_texture([sample] * 3, [luminance, difference, difference])
        assert luminance.sigma > 1.6 * 20 / np.sqrt(3)
        assert new[0].sigma == pytest.approx(1.1 * 20 / np.sqrt(3), rel=0.2)
        assert new[1].sigma == pytest.approx(0.85 * 20, rel=0.2)
        assert max(found.sigma for found in samples) <= 1.15 * 20 * 1.2

    def test_texture_of_interpolated_noise(self) -> None:
        sample = self.levels(44, 22, 14, 5, 2, compressed=False)
        luminance = self.levels(30, 16, 10, 4.5, 2, compressed=False)
        difference = self.levels(26, 20, 15, 8, 4, compressed=False)
        _, new = without_texture([sample] * 3, [luminance, difference, difference])
        assert not new[0].is_white
        assert new[0].levels[0] == pytest.approx(luminance.levels[0])
        assert new[0].levels[-1] == pytest.approx(1.1 * difference.lowest / np.sqrt(3))

    @pytest.mark.parametrize("others", [{"structure": 12.0}, {"spread": 3.0}])
    def test_saturated_differences_tell_nothing(self, others: dict[str, float]) -> None:
        sample = self.levels(30, 26, 23, 17, 12, compressed=True)
        luminance = self.levels(32, 27, 22, 16, 10, compressed=True)
        difference = self.levels(8, 6, 4, 3, 2, compressed=True, **others)
        samples, new = without_texture([sample] * 3, [luminance, difference, difference])
        assert samples == [sample] * 3
        assert new == [luminance, difference, difference]

    @pytest.mark.parametrize("levels", [(0.5, 20.0, 0.5), (5.0, 10.0, 20.0)])
    def test_samples_with_noise_of_their_own_keep_it(self, levels: tuple[float, ...]) -> None:
        noise = np.random.default_rng(2).normal(0, levels, (128, 128, 3))
        (channel,) = resolve(
            Request(model=load_model("iad-fast")),
            array_image(128 + noise, axes="YXS"),
        ).channels
        assert channel.sigmas == pytest.approx(np.array(levels), rel=0.1, abs=0.3)

    def test_doubt_is_said(self) -> None:
        texture = blurred_noise((96, 96), 60, 4)
        image = texture + np.random.default_rng(1).normal(0, 2, texture.shape)
        with pytest.warns(NoiseLevelWarning, match="is doubtful: no part .* give sigma"):
            denoise(image)


class TestLevels:
    def test_spectrum_of_white_noise(self) -> None:
        found = levels_of_spectrum(np.full((20, 30), 20 * 30 * 49.0))
        assert found.is_white
        assert found.effective == pytest.approx(7)

    def test_spectrum_agrees_with_what_gradients_see(self) -> None:
        """The level at a scale is the gradient of smoothed noise over that of white noise."""
        from integrodiff.stages import HaarGradient, blur

        shape = (256, 256)
        power = np.exp(
            -2 * 0.8**2 * (2 - np.add.outer(*[np.cos(2 * np.pi * np.fft.fftfreq(256))] * 2))
        )
        found = levels_of_spectrum(100 * power * power.size)
        white_noise = np.random.default_rng(0).normal(0, 10, shape)
        noise = np.fft.ifft2(np.fft.fft2(white_noise) * np.sqrt(power)).real
        operator = HaarGradient(theta=0.25)
        for scale in (0.35, 1.1, 2.0):
            seen = [
                np.sqrt(np.mean(smoothed * operator.adjoint(operator.forward(smoothed))))
                for smoothed in (blur(image[None], scale) for image in (noise, white_noise))
            ]
            assert found.at(scale) / 10 == pytest.approx(seen[0] / seen[1], rel=0.05)

    def test_given_levels(self) -> None:
        found = given_levels({2: 20, 0.5: 5})
        assert (found.at(0.1), found.at(0.5), found.at(9)) == pytest.approx((5, 5, 20))
        assert found.at(1) == pytest.approx(10)
        assert given_levels({1: 7}) == NoiseLevels((1.0,), (7.0,))

    @pytest.mark.parametrize(
        ("arguments", "message"),
        [
            ({"sigma": {}}, "at least one scale"),
            ({"sigma": {0: 3}}, "scale of sigma must be positive"),
            ({"sigma": {1: -3}}, "sigma must not be negative"),
            ({"sigma": {1: 0, 2: 3}}, "above zero"),
            ({"noise_psd": np.ones(3)}, "must be a matrix"),
            ({"noise_psd": -np.ones((3, 3))}, "nonnegative"),
            ({"noise_psd": np.ones((3, 3)), "sigma": 3}, "not both"),
            ({"noise_psd": np.ones((3, 3)), "noise": "poisson"}, "Gaussian noise"),
        ],
    )
    def test_refused(self, arguments: dict[str, Any], message: str) -> None:
        with pytest.raises(ValueError, match=message):
            denoise(np.zeros((30, 30)), **arguments)

    def test_equal_levels_are_one_level(self, camera: NDArray[np.float64]) -> None:
        image = camera[:64, :64]
        expected = denoise(image, 20, data_range=255)
        psd = np.full((64, 64), 400.0 * 64 * 64)
        np.testing.assert_array_equal(denoise(image, {1: 20, 3: 20}, data_range=255), expected)
        found = denoise(image, noise_psd=psd, data_range=255)
        np.testing.assert_allclose(found, expected, atol=1e-6)

    def test_the_mean_of_the_noise_has_no_effect(self, camera: NDArray[np.float64]) -> None:
        image, rng = camera[:64, :64], np.random.default_rng(0)
        for psd in (np.full((64, 64), 400.0 * 64 * 64), 1e6 * rng.random((64, 64))):
            expected = denoise(image, noise_psd=psd)
            for mean in (0.0, 1e12):
                psd[0, 0] = mean
                np.testing.assert_array_equal(denoise(image, noise_psd=psd), expected)

    def test_contrasts_follow_the_levels(self) -> None:
        model = load_model("iad-plus")
        plain, changed = model.evolution(20), model.evolution(20, lambda scale: 1 + scale)
        assert changed.tau == plain.tau
        for before, after in zip(plain.all_terms(), changed.all_terms(), strict=True):
            assert after.coupling == before.coupling
            pairs = zip(before.diffusivity.contrasts, plain.scales, strict=True)
            shift = {1: 1.0, 2: np.sqrt(2 / 3)}[before.derivatives.order]
            expected = [contrast * (1 + shift * scale) for contrast, scale in pairs]
            assert after.diffusivity.contrasts == pytest.approx(expected)

    @pytest.mark.parametrize("scale", [1.0, 2.0, 4.0])
    def test_second_derivatives_see_the_noise_of_a_finer_scale(self, scale: float) -> None:
        frequencies = 2 * np.pi * np.fft.fftfreq(256)
        half = 1 - np.cos(frequencies)
        total = half[:, None] + half
        power = np.exp(-2 * 0.8**2 * total)  # white noise, smoothed

        def level(order: int, scale: float) -> float:
            seen = total**order * np.exp(-2 * scale**2 * total)
            return float(np.sqrt((power * seen).sum() / seen.sum()))

        expected = level(2, scale)
        error = abs(level(1, scale * np.sqrt(2 / 3)) / expected - 1)
        assert error < 0.08
        assert error < 0.3 * abs(level(1, scale) / expected - 1)


class TestUnits:
    """The unit of grey values, an offset and the dtype do not change what is done."""

    @pytest.mark.slow
    @given(
        st.floats(-6, 6),
        st.floats(-3, 3),
        st.sampled_from([5.0, 20.0, 60.0]),
        st.sampled_from([None, 0.0, 0.6]),
    )
    def test_factor_and_offset(
        self, exponent: float, offset: float, level: float, blur: float | None
    ) -> None:
        """With a given level (blur None), or with an estimated one."""
        factor = 10.0**exponent
        y, x = np.mgrid[:48, :48]
        clean = 100 + 60.0 * (np.hypot(y - 20, x - 25) < 12)
        image = clean + blurred_noise(clean.shape, level, blur or 0.0)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", NoiseLevelWarning)
            sigmas = (None, None) if blur is not None else (level, level * factor)
            expected = denoise(image, sigmas[0], exact=True)
            found = denoise(factor * (image + 255 * offset), sigmas[1], exact=True)
        np.testing.assert_allclose(found / factor - 255 * offset, expected, atol=1e-4 * level)

    @pytest.mark.parametrize("exponent", [-200, -20, 3, 40])
    def test_powers_of_two_change_no_bit(self, exponent: int, camera: NDArray[np.float64]) -> None:
        image = camera[:64, :64] + np.random.default_rng(0).normal(0, 10, (64, 64))
        factor = 2.0**exponent
        np.testing.assert_array_equal(denoise(factor * image) / factor, denoise(image))

    @pytest.mark.slow
    @pytest.mark.parametrize("dtype", [np.uint16, np.int32, np.int64, np.float32, np.float64])
    def test_dtypes(self, dtype: Any, camera: NDArray[np.float64]) -> None:
        noisy = camera[:96, :96] + np.random.default_rng(0).normal(0, 15, (96, 96))
        image = np.clip(np.rint(noisy), 0, 255).astype(np.uint8)
        expected = denoise(image, as_float=True)
        for factor in (1, 100):
            found = denoise(image.astype(dtype) * dtype(factor), as_float=True) / factor
            np.testing.assert_allclose(found, expected, atol=0.02)

    @pytest.mark.slow
    def test_scientific_images_need_no_range_and_cause_no_warning(
        self, camera: NDArray[np.float64]
    ) -> None:
        noise = np.random.default_rng(0).normal(0, 12, camera.shape)
        hounsfield = (-1000 + 4 * (camera + noise)).astype(np.int16)
        tenth = (0.1 * 257 * (camera + noise) + 400).clip(0).astype(np.uint16)
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            results = [(denoise(hounsfield, as_float=True) + 1000) / 4]
            results.append((denoise(tenth, as_float=True) - 400) / 25.7)
            expected = denoise((camera + noise).astype(np.float32))
        for result in results:
            assert psnr(result, camera) > psnr(expected, camera) - 0.1

    @pytest.mark.slow
    def test_hot_pixel(self, camera: NDArray[np.float64]) -> None:
        image = camera + np.random.default_rng(0).normal(0, 12, camera.shape)
        expected = denoise(image)
        image[50, 60] = 1e6
        found = denoise(image)
        far = np.hypot(*np.meshgrid(np.arange(192) - 60, np.arange(192) - 50)) > 60
        assert psnr(found[far], expected[far]) > 45

    def test_operating_levels(self) -> None:
        assert operating_level(0.0, (10, 60)) == pytest.approx(51)
        assert operating_level(1e9, (10, 60)) == pytest.approx(2)
        assert 2 < operating_level(0.5, (10, 60)) < 51
        assert operating_level(0.0, ()) == 255

    def test_white_levels_have_no_shape(self) -> None:
        assert white(3.0).relative(5.0) == 1.0


@pytest.mark.filterwarnings("ignore::integrodiff.errors.NoiseLevelWarning")
@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"noise_psd": np.ones((1, 1))}, "has one value"),
        ({"noise_psd": np.full((8, 8), 1e308)}, "noise_psd must be at most 1e\\+290"),
        ({"sigma": {1.0: 1e160, 3.0: 5.0}}, "must not differ by more than a factor of 1e\\+06"),
        ({"sigma": np.full((24, 24), 1e100)}, "a contrast of this model is"),
    ],
)
def test_absurd_noise_is_blamed_on_the_noise(options: Any, message: str) -> None:
    """Without warnings of NumPy, and not on the grey values."""
    image = np.random.default_rng(0).normal(128, 20, (24, 24)).astype(np.float32)
    with pytest.raises(ValueError, match=message):
        denoise(image, data_range=255, model="pm", engine="numpy", **options)


def test_a_map_of_huge_levels_has_their_root_mean_square() -> None:
    levels = np.array([[3.0, 4.0]])
    for unit in (1.0, 1e200, 2e307):
        found = noise_map(unit * levels)
        assert found.mean == pytest.approx(unit * np.sqrt(12.5), rel=1e-15)
        assert found.relative is not None
        np.testing.assert_allclose(found.relative, levels / np.sqrt(12.5), rtol=1e-15)
