"""Noise levels and detectors that are estimated from images."""

from __future__ import annotations

import io
import re
from typing import Any

import numpy as np
import pytest
from cases import RUNNABLE_ENGINES
from numpy.typing import NDArray
from PIL import Image
from scipy.ndimage import gaussian_filter
from selection import some

from integrodiff import (
    Denoiser,
    NoiseLevelWarning,
    PoissonGaussian,
    denoise,
    estimate_poisson_gaussian,
    estimate_sigma,
)
from integrodiff.arrays import array_image
from integrodiff.noise.level import estimate_levels
from integrodiff.noise.spectrum import tiles_of
from integrodiff.noise.variation import estimated_map
from integrodiff.request import ResolvedRequest


@pytest.fixture(scope="module")
def camera() -> NDArray[np.float64]:
    from skimage.data import camera

    image: NDArray[np.float64] = camera()[:256, :256].astype(np.float64)
    return image


def normal(shape: tuple[int, ...], sigma: float, seed: int = 0) -> NDArray[np.float64]:
    return np.random.default_rng(seed).normal(0, sigma, shape)


class TestEstimateSigma:
    @pytest.mark.parametrize("sigma", [5, 15, 25, 60])
    def test_photograph(self, camera: NDArray[np.float64], sigma: float) -> None:
        found = estimate_sigma(camera + normal(camera.shape, sigma))
        assert isinstance(found, float)
        assert found == pytest.approx(sigma, rel=0.1)

    @pytest.mark.parametrize("texture", ["brick", "gravel"])
    def test_textures(self, texture: str) -> None:
        from skimage import data

        image = getattr(data, texture)()[:256, :256].astype(np.float64)
        assert estimate_sigma(image + normal(image.shape, 20)) == pytest.approx(20, rel=0.1)

    @pytest.mark.parametrize("size", [24, 48, 64])
    def test_small_images_are_not_underestimated(self, size: int) -> None:
        ramp = np.add.outer(np.arange(size), 2 * np.arange(size))
        found = [float(estimate_sigma(ramp + normal((size, size), 10, i))) for i in range(10)]
        assert np.mean(found) == pytest.approx(10, rel=0.07)

    @pytest.mark.parametrize("shape", [(20, 12_000), (20, 100_000), (100_000, 20)])
    def test_strips_are_not_underestimated(self, shape: tuple[int, int]) -> None:
        """On a grid of one or two rows a tile would be chosen by its own energy."""
        found = [float(estimate_sigma(normal(shape, 10, i))) for i in range(3)]
        assert np.mean(found) == pytest.approx(10, rel=0.05)

    def test_all_channels_have_their_own(self, camera: NDArray[np.float64]) -> None:
        image = np.stack([camera + normal(camera.shape, s, s) for s in (10, 20, 40)])
        found = estimate_sigma(image, channel_axis=0)
        assert isinstance(found, np.ndarray)
        np.testing.assert_allclose(found, [10, 20, 40], rtol=0.1)
        by_last = estimate_sigma(np.moveaxis(image, 0, -1), channel_axis=-1)
        np.testing.assert_array_equal(by_last, found)

    @pytest.mark.slow
    def test_axes_tell_what_shares_a_level(self) -> None:
        x = np.arange(41) * np.ones((40, 1))
        planes = [x + normal(x.shape, sigma, i) for i, sigma in enumerate((5, 5, 20, 20, 80, 80))]
        frames = np.stack(planes)
        each = [float(estimate_sigma(frame)) for frame in frames]
        assert estimate_sigma(frames, axes="TYX") == np.median(each)
        np.testing.assert_array_equal(estimate_sigma(frames, axes="cyx"), each)
        pairs = frames.reshape(3, 2, 40, 41)
        expected = np.mean(np.reshape(each, (3, 2)), axis=1)
        np.testing.assert_array_equal(estimate_sigma(pairs, axes="CTYX"), expected)
        np.testing.assert_array_equal(estimate_sigma(pairs, axes="CSYX"), np.reshape(each, (3, 2)))

    def test_planes_with_few_valid_pixels_are_replaced(self) -> None:
        frames = np.stack([normal((30, 31), 10, i) for i in range(12)])
        mask = np.ones(frames.shape, np.bool_)
        mask[0], mask[1, :, 8:] = False, False
        chosen = [2, 3, 4, 5, 6, 7, 8, 9, 11]
        expected = np.median([estimate_sigma(frames[i]) for i in chosen])
        assert estimate_sigma(frames, axes="TYX", mask=mask) == expected

    def test_unit_does_not_matter(self, camera: NDArray[np.float64]) -> None:
        image = camera + normal(camera.shape, 20)
        found = estimate_sigma(image)
        for factor in (1e-200, 1e-3, 1e150):
            assert estimate_sigma(image * factor) / factor == pytest.approx(found, rel=1e-6)

    def test_clipped_and_empty_parts_are_left_aside(self) -> None:
        """A bright disc on black: half of the image shows no noise, or half of the noise."""
        y, x = np.mgrid[:200, :200]
        disc = np.where((y - 100) ** 2 + (x - 100) ** 2 < 70**2, 120.0, 0.0)
        noisy = np.clip(np.rint(disc + normal(disc.shape, 15)), 0, 255).astype(np.uint8)
        assert estimate_sigma(noisy) == pytest.approx(15, rel=0.1)
        masked = np.where(disc > 0, disc + normal(disc.shape, 15), -7.0)
        assert estimate_sigma(masked) == pytest.approx(15, rel=0.1)

    def test_no_noise(self) -> None:
        assert estimate_sigma(np.full((30, 30), 7, np.uint8)) == 0
        assert estimate_sigma(np.add.outer(np.arange(64.0), np.arange(64.0))) < 1e-6

    def test_huge_images_take_a_part_of_the_patches(self) -> None:
        image = normal((1200, 1100), 20).astype(np.float32)
        assert estimate_sigma(image) == pytest.approx(20, rel=0.03)

    @pytest.mark.parametrize("shape", [(1, 1), (5, 400), (19, 19)])
    def test_too_small(self, shape: tuple[int, int]) -> None:
        image = np.arange(np.prod(shape)).reshape(shape)
        if image.size == 1:
            assert estimate_sigma(image) == 0
            return
        with pytest.raises(ValueError, match=r"too small to estimate .* give sigma"):
            estimate_sigma(image)

    def test_bad_images(self) -> None:
        with pytest.raises(ValueError, match="no valid pixel"):
            estimate_sigma(np.full((30, 30), np.nan))
        with pytest.raises(ValueError, match="channel_axis"):
            estimate_sigma(np.zeros((30, 30, 3)))


class TestMap:
    def levels(self) -> NDArray[np.float64]:
        return np.geomspace(12, 30, 160) * np.ones((120, 1))

    @pytest.mark.slow
    def test_finds_how_noise_varies(self, camera: NDArray[np.float64]) -> None:
        levels, clean = self.levels(), camera[:120, :160]
        image = clean + normal(clean.shape, 1) * levels
        found = estimated_map([image], [None])
        assert found.shape == clean.shape
        assert np.sqrt(np.mean(np.log(found / levels) ** 2)) < 0.25
        for factor in (1e-6, 1e6):
            scaled = estimated_map([image * factor], [None])
            np.testing.assert_allclose(scaled, found * factor, rtol=1e-4)
        np.testing.assert_array_equal(
            denoise(image, "map", data_range=255), denoise(image, found, data_range=255)
        )

    def test_noise_that_does_not_vary(self) -> None:
        flat = normal((120, 160), 20)
        found = estimated_map([flat], [None])
        assert np.abs(found / 20 - 1).max() < 0.1

    @pytest.mark.slow
    def test_planes_samples_and_masks(self) -> None:
        levels = self.levels()
        frames = np.stack([normal(levels.shape, 1, seed) * levels for seed in range(3)])
        grids = [estimated_map([frame], [None]) for frame in frames]
        np.testing.assert_allclose(
            estimated_map(list(frames), [None] * 3), np.median(grids, axis=0), rtol=0.05
        )
        colours = np.stack([frames[0], 3 * frames[1]], axis=-1)
        expected = np.sqrt((grids[0] ** 2 + 9 * grids[1] ** 2) / 2)
        np.testing.assert_allclose(estimated_map([colours], [None]), expected, rtol=0.05)
        mask = np.ones(levels.shape, np.bool_)
        mask[:, 60:100] = False
        spoiled = np.where(mask, frames[0], 1e30)
        found = estimated_map([spoiled], [mask])
        assert np.sqrt(np.mean(np.log(found / levels)[mask] ** 2)) < 0.25
        result = denoise(spoiled, "map", mask=mask, data_range=255)
        np.testing.assert_array_equal(result[~mask], spoiled[~mask])

    @pytest.mark.slow
    def test_each_image_has_its_own(self) -> None:
        denoiser = Denoiser("map", data_range=255)
        first, second = normal((90, 90), 10), normal((90, 90), 30, 1)
        once = denoiser(first)
        denoiser(second)
        np.testing.assert_array_equal(denoiser(first), once)

    def test_refused(self) -> None:
        with pytest.raises(ValueError, match="100 x 40 pixels is too small to estimate a map"):
            denoise(normal((40, 100), 1), "map")
        with pytest.raises(ValueError, match="one channel, and this image has 2"):
            denoise(normal((2, 90, 90), 1), "map", axes="CYX")
        with pytest.raises(ValueError, match="could be mapped"):
            denoise(np.ones((90, 90)), "map")
        with pytest.raises(ValueError, match=r"sigma must be .*'map' to estimate one"):
            denoise(normal((90, 90), 1), "much")
        with pytest.raises(ValueError, match="Rician"):
            denoise(np.ones((90, 90)), "map", noise="rician")


class TestVaryingNoise:
    """Noise that varies is found, and a map taken; noise that does not vary is left alone."""

    SHAPE = (170, 200)

    def levels(self) -> NDArray[np.float64]:
        return np.geomspace(8, 32, self.SHAPE[1]) * np.ones((self.SHAPE[0], 1))

    def resolved(self, image: NDArray[Any], **options: Any) -> ResolvedRequest:
        axes = {name: options.pop(name, None) for name in ("axes", "channel_axis", "mask")}
        source = array_image(image, **axes)
        return Denoiser(**options).pipeline(source).resolved

    def clean(self, camera: NDArray[np.float64]) -> NDArray[np.float64]:
        return camera[: self.SHAPE[0], : self.SHAPE[1]]

    @pytest.mark.slow
    def test_takes_a_map(self, camera: NDArray[np.float64]) -> None:
        clean, levels = self.clean(camera), self.levels()
        image = clean + levels * normal(self.SHAPE, 1)
        resolved = self.resolved(image)
        assert re.fullmatch(
            r"sigma [\d.]+ to [\d.]+, varies over the image \(estimated\)", resolved.noise
        )
        found = resolved.channels[0].map
        assert found is not None
        assert found.relative is not None
        assert np.sqrt(np.mean(np.log(found.mean * found.relative / levels) ** 2)) < 0.2
        automatic = denoise(image)
        np.testing.assert_array_equal(automatic, denoise(image, "map"))
        quietest = estimate_levels(image, tiles_of(image)).sigma
        assert quietest < 14
        errors = [np.mean((r - clean) ** 2) for r in (automatic, denoise(image, quietest))]
        assert errors[0] < 0.7 * errors[1]

    @pytest.mark.slow
    def test_scale_offset_and_order_of_axes(self, camera: NDArray[np.float64]) -> None:
        image = self.clean(camera) + self.levels() * normal(self.SHAPE, 1)
        expected = denoise(image)
        np.testing.assert_allclose(
            denoise(1e-3 * image + 7), 1e-3 * expected + 7, atol=1e-4 * np.ptp(expected) * 1e-3
        )
        np.testing.assert_array_equal(denoise(image.T, axes="XY"), expected.T)

    @pytest.mark.slow
    @pytest.mark.parametrize("level", [5, 20, 60])
    def test_noise_that_is_the_same_everywhere(
        self, level: float, camera: NDArray[np.float64]
    ) -> None:
        clean = self.clean(camera)
        for image in (clean + normal(self.SHAPE, level), np.where(clean > 120, clean, 20.0)):
            resolved = self.resolved(image)
            assert resolved.request.map is None
            assert "varies" not in resolved.noise
        image = clean + normal(self.SHAPE, level)
        sigma = estimate_levels(image, tiles_of(image)).sigma
        assert estimate_sigma(image) == sigma
        np.testing.assert_array_equal(denoise(image), denoise(image, sigma))

    def test_no_map_of_correlated_noise(self, camera: NDArray[np.float64]) -> None:
        blurred = gaussian_filter(self.levels() * normal(self.SHAPE, 1), 0.7)
        assert self.resolved(self.clean(camera) + 2 * blurred).request.map is None

    def test_no_map_of_jpeg_files(self, camera: NDArray[np.float64]) -> None:
        noisy = np.clip(self.clean(camera) + self.levels() * normal(self.SHAPE, 1), 0, 255)
        file = io.BytesIO()
        Image.fromarray(noisy.astype(np.uint8)).save(file, "JPEG", quality=75)
        assert self.resolved(np.asarray(Image.open(file))).request.map is None

    def test_texture_is_no_noise(self) -> None:
        """Half of the image has a fine pattern, the other half none; both have the same noise."""
        y, x = np.mgrid[: self.SHAPE[0], : self.SHAPE[1]]
        pattern = np.where(x < 100, 0, 25 * np.sin(x * 1.3) * np.sin(y * 1.1 + x * 0.2))
        assert self.resolved(pattern + normal(self.SHAPE, 6)).request.map is None

    def test_estimate_sigma_reports_it(self) -> None:
        levels = self.levels()
        image = levels * normal(self.SHAPE, 1)
        with pytest.warns(NoiseLevelWarning, match=r"varies over the image, about from 8.* to 2"):
            found = estimate_sigma(image)
        assert found == pytest.approx(np.sqrt(np.mean(levels**2)), rel=0.1)

    @pytest.mark.slow
    def test_stacks_and_masks(self) -> None:
        levels = self.levels()
        frames = np.stack([levels * normal(self.SHAPE, 1, seed) for seed in range(3)])
        assert self.resolved(frames, axes="TYX").request.map is not None
        mask = np.ones(self.SHAPE, np.bool_)
        mask[40:60, 30:170] = False
        spoiled = np.where(mask, frames[0], np.nan)
        assert self.resolved(spoiled).request.map is not None
        result = denoise(spoiled)
        other = denoise(np.where(mask, frames[0], 1e30), mask=mask)
        np.testing.assert_array_equal(result[mask], other[mask])
        assert np.isnan(result[~mask]).all()

    @pytest.mark.slow
    def test_colours_share_a_map(self) -> None:
        colours = np.stack([self.levels() * normal(self.SHAPE, 1, n) for n in range(3)], axis=-1)
        assert self.resolved(colours, channel_axis=-1).request.map is not None

    @pytest.mark.slow
    @pytest.mark.parametrize("factors", [(1, 2, 4), None])
    def test_other_colours_get_a_warning(self, factors: tuple[int, ...] | None) -> None:
        """One map is no good for samples with different noise, nor for three copies of one."""
        noise = [self.levels() * normal(self.SHAPE, 1, n if factors else 0) for n in range(3)]
        colours = np.stack(noise, axis=-1) * (factors or (1, 1, 1))
        with pytest.warns(NoiseLevelWarning, match=r"varies over the image, .* one level is used"):
            assert self.resolved(colours, channel_axis=-1).request.map is None

    def test_channels_get_a_warning(self) -> None:
        channels = np.stack([self.levels() * normal(self.SHAPE, 1), normal(self.SHAPE, 5)])
        with pytest.warns(NoiseLevelWarning, match="of channel 1 varies over the image") as found:
            assert self.resolved(channels, axes="CYX").request.map is None
        assert len(found) == 1

    @pytest.mark.slow
    def test_each_image_is_asked_again(self) -> None:
        denoiser = Denoiser()
        flat, varying = normal(self.SHAPE, 10), self.levels() * normal(self.SHAPE, 1)
        first = denoiser(flat)
        np.testing.assert_array_equal(denoiser(varying), denoise(varying, "map"))
        np.testing.assert_array_equal(denoiser(flat), first)


class TestBlindDenoising:
    def test_is_that_with_the_estimate(self, camera: NDArray[np.float64]) -> None:
        image = camera[:64, :80] + normal((64, 80), 20)
        sigma = float(estimate_sigma(image))
        expected = denoise(image, sigma, data_range=255)
        np.testing.assert_array_equal(denoise(image, data_range=255), expected)
        np.testing.assert_array_equal(denoise(image, None, data_range=255), expected)

    @pytest.mark.slow
    def test_loses_little(self, camera: NDArray[np.float64]) -> None:
        image = camera + normal(camera.shape, 25)
        blind, told = (
            np.mean((denoise(image, sigma, data_range=255) - camera) ** 2) for sigma in (None, 25)
        )
        assert 10 * np.log10(blind / told) < 0.1

    @pytest.mark.parametrize("dtype", [np.uint8, np.uint16, np.float32])
    def test_dtypes(self, dtype: Any, camera: NDArray[np.float64]) -> None:
        image = np.clip(np.rint(camera[:64, :64] + normal((64, 64), 20)), 0, 255).astype(dtype)
        result = denoise(image, data_range=255)
        assert result.dtype == dtype
        assert result.std() < image.std()

    def test_constant_image(self) -> None:
        image = np.full((4, 5), 9, np.uint8)
        np.testing.assert_array_equal(denoise(image), image)


class TestEstimatePoissonGaussian:
    @pytest.mark.slow
    @pytest.mark.parametrize(
        ("peak", "detector"),
        some(
            [
                (4, PoissonGaussian()),
                (30, PoissonGaussian()),
                (30, PoissonGaussian(gain=2, offset=100, readout=6)),
                (120, PoissonGaussian(gain=0.01, offset=-0.3, readout=0.05)),
            ],
            (30, PoissonGaussian()),
        ),
    )
    def test_noise_is_found_at_all_grey_values(
        self, peak: float, detector: PoissonGaussian, camera: NDArray[np.float64]
    ) -> None:
        rng = np.random.default_rng(0)
        signal = detector.gain * camera / 255 * peak + detector.offset
        image = detector.gain * rng.poisson(camera / 255 * peak) + detector.offset
        image = image + rng.normal(0, detector.readout, camera.shape)
        found = estimate_poisson_gaussian(image)
        levels = np.percentile(signal, [25, 50, 90])
        np.testing.assert_allclose(
            np.sqrt(found.variance(levels)), np.sqrt(detector.variance(levels)), rtol=0.1
        )
        known = estimate_poisson_gaussian(image, offset=detector.offset)
        assert known.offset == detector.offset
        np.testing.assert_allclose(known.gain, detector.gain, rtol=0.25)

    @pytest.mark.slow
    def test_channels_share_it(self, camera: NDArray[np.float64]) -> None:
        image = np.random.default_rng(0).poisson(np.stack([camera, camera[::-1]]) / 8)
        assert estimate_poisson_gaussian(image, channel_axis=0).gain == pytest.approx(1, rel=0.15)

    @pytest.mark.slow
    def test_impossible(self, camera: NDArray[np.float64]) -> None:
        with pytest.raises(ValueError, match="too few brightness levels"):
            estimate_poisson_gaussian(np.full((40, 40), 5))
        darker = camera + np.random.default_rng(0).normal(0, 1, camera.shape) * (300 - camera) / 5
        with pytest.raises(ValueError, match="does not grow with its brightness"):
            estimate_poisson_gaussian(darker)
        with pytest.raises(ValueError, match="too small"):
            estimate_poisson_gaussian(np.arange(16).reshape(4, 4))
        with pytest.raises(TypeError, match="offset"):
            estimate_poisson_gaussian(camera, offset="dark")  # type: ignore[arg-type]


@pytest.mark.slow
@pytest.mark.parametrize("engine", RUNNABLE_ENGINES)
def test_every_engine_denoises_photons_and_colours(
    engine: str, camera: NDArray[np.float64]
) -> None:
    clean = np.stack([camera[:48, :40], camera[40:88, :40], camera[:48, 60:100]], axis=-1) / 8
    counts = np.random.default_rng(0).poisson(clean)
    result = denoise(counts, noise="poisson", channel_axis=-1, engine=engine, as_float=True)
    reference = denoise(counts, noise="poisson", channel_axis=-1, engine="numpy", as_float=True)
    np.testing.assert_allclose(result, reference, atol=1e-3)
    assert np.mean((result - clean) ** 2) < 0.4 * np.mean((counts - clean) ** 2)


@pytest.mark.parametrize("factor", [1e-6, 1e6, 1e9])
def test_the_unit_of_a_detector_does_not_matter(factor: float) -> None:
    light = np.repeat([20, 200, 60, 120], 16)[:, None] * np.ones(96)
    raw = 100.0 + 2 * np.random.default_rng(0).poisson(light)
    expected = estimate_poisson_gaussian(raw, offset=100)
    found = estimate_poisson_gaussian(raw * factor, offset=100 * factor)
    # Rounding decides between patches that are equally flat.
    assert found.gain / factor == pytest.approx(expected.gain, rel=1e-2)


@pytest.mark.parametrize("unit", [1e-200, 1e200])
def test_units_of_given_and_of_varying_noise(unit: float) -> None:
    rng = np.random.default_rng(0)
    image = rng.normal(100, 10, (24, 24))
    for sigma in (10.0, np.full((24, 24), 10.0)):
        found, expected = (
            denoise(size * image, sigma=size * sigma, model="iad", engine="numpy") / size
            for size in (unit, 1.0)
        )
        np.testing.assert_allclose(found, expected, rtol=1e-9)
        assert np.abs(found - image).max() > 5
    varying = rng.normal(0, 1, (128, 128)) * np.repeat([5.0, 25.0], 64)[:, None]
    with pytest.warns(NoiseLevelWarning, match="varies"):
        known, same = estimate_sigma(varying), estimate_sigma(unit * varying) / unit
    assert same == pytest.approx(known, rel=1e-6)
