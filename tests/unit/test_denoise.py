"""The function for users: dtypes, ranges, channels, and every kind of bad input."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from cases import FEW_SCALES, MODELS, RUNNABLE_ENGINES
from numpy.typing import NDArray
from selection import some

from integrodiff import (
    MODEL_NAMES,
    Denoiser,
    NoiseLevelWarning,
    PoissonGaussian,
    Step,
    denoise,
    load_model,
    save_model,
)
from integrodiff.grey_range import grey_range
from integrodiff.models import CompactDiffusion, PowerLaws

INTEGERS: list[Any] = [
    np.uint8,
    np.uint16,
    np.uint32,
    np.uint64,
    np.int8,
    np.int16,
    np.int32,
    np.int64,
]
FLOATS: list[Any] = [np.float16, np.float32, np.float64, np.longdouble]


@pytest.fixture
def clean(photograph: NDArray[np.float64]) -> NDArray[np.float64]:
    return photograph[:64, :48]


def noisy(clean: NDArray[np.float64], sigma: float) -> NDArray[np.float64]:
    return clean + np.random.default_rng(0).normal(0, sigma, clean.shape)


def psnr(image: NDArray[Any], clean: NDArray[Any]) -> float:
    error = np.mean((image.astype(np.float64) - clean) ** 2)
    return float(10 * np.log10(255**2 / error))


@pytest.mark.slow
@pytest.mark.parametrize("model", MODEL_NAMES)
@pytest.mark.parametrize("sigma", [10, 25, 60])
def test_every_model_removes_noise(model: str, sigma: float, clean: NDArray[np.float64]) -> None:
    image = noisy(clean, sigma)
    result = denoise(image, sigma, model=model, data_range=255)
    assert psnr(result, clean) > psnr(image, clean) + 2.5


class TestDtypes:
    @pytest.mark.parametrize("dtype", FLOATS)
    def test_floating_point_keeps_its_dtype(self, dtype: Any, clean: NDArray[np.float64]) -> None:
        image = noisy(clean, 20).astype(dtype)
        result = denoise(image, 20, data_range=255, as_float=True)
        assert result.dtype == dtype
        reference = denoise(image.astype(np.float64), 20, data_range=255)
        tolerance = 0.2 if dtype == np.float16 else 1e-3
        np.testing.assert_allclose(result.astype(np.float64), reference, atol=tolerance)

    @pytest.mark.parametrize("dtype", INTEGERS)
    def test_integers_keep_their_dtype(self, dtype: Any, clean: NDArray[np.float64]) -> None:
        image = np.clip(noisy(clean / 2, 10), 0, 127).astype(dtype)
        result = denoise(image, 10, data_range=255)
        assert result.dtype == dtype
        exact = denoise(image.astype(np.float64), 10, data_range=255)
        np.testing.assert_allclose(result.astype(np.float64), exact, atol=0.501)

    def test_integers_are_clipped_not_wrapped(self) -> None:
        for dtype in INTEGERS:
            limits = np.iinfo(dtype)
            image = np.full((9, 9), limits.max, dtype)
            image[:, :4] = limits.min
            span = float(limits.max) - float(limits.min)
            result = denoise(image, span / 10, data_range=span)
            assert result.dtype == dtype
            assert result[4, 8] > limits.max // 4 * 3
            assert result[4, 0] < limits.min + (limits.max // 4)

    @pytest.mark.parametrize(
        ("dtype", "expected"),
        [(np.uint8, np.float32), (np.uint16, np.float32), (np.int32, np.float64)],
    )
    def test_as_float_is_neither_rounded_nor_clipped(
        self, dtype: Any, expected: Any, clean: NDArray[np.float64]
    ) -> None:
        image = np.clip(noisy(clean, 20), 0, 255).astype(dtype)
        result = denoise(image, 20, data_range=255, as_float=True)
        assert result.dtype == expected
        assert np.abs(result - np.rint(result)).max() > 0.4
        np.testing.assert_array_equal(np.rint(result), denoise(image, 20, data_range=255))

    def test_byte_order_is_kept(self) -> None:
        image = np.random.default_rng(0).integers(0, 4096, (10, 11)).astype(">u2")
        result = denoise(image, 100)
        assert result.dtype == image.dtype
        np.testing.assert_array_equal(result, denoise(image.astype(np.uint16), 100))

    def test_lists_are_images_too(self) -> None:
        assert denoise([[0, 10], [20, 30]], 10, data_range=255).shape == (2, 2)


class TestDataRange:
    @pytest.mark.parametrize(
        ("image", "sigma", "expected"),
        [
            (np.array([[3]], np.uint8), 1, 255),
            (np.array([[200]], np.uint16), 1, 255),
            (np.array([[1000]], np.uint16), 1, 1023),
            (np.array([[4095]], np.uint16), 1, 4095),
            (np.array([[4096]], np.uint16), 1, 2**14 - 1),
            (np.array([[65535]], np.uint16), 1, 65535),
            (np.array([[-1024, 3071]], np.int16), 1, 4095),
            (np.array([[2**40]], np.int64), 1, 2.0**64 - 1),
            (np.array([[0.0, 1.0]]), 0.1, 1),
            (np.array([[-0.3, 1.4]]), 0.1, 1),
        ],
    )
    def test_rule(self, image: NDArray[Any], sigma: float, expected: float) -> None:
        assert grey_range(image, sigma) == expected
        assert grey_range(image, sigma, 77.0) == 77

    @pytest.mark.parametrize("span", [1e-3, 1.0, 255.0, 4e4])
    def test_floats_of_any_range_need_none(self, span: float, clean: NDArray[np.float64]) -> None:
        image = noisy(clean, 20)
        expected = denoise(image, 20)
        result = denoise(image * (span / 255) - span / 4, 20 * span / 255)
        np.testing.assert_allclose((result + span / 4) * (255 / span), expected, atol=1e-6)

    @pytest.mark.parametrize("value", [0, -1, float("nan"), float("inf")])
    def test_impossible_ranges_are_refused(self, value: float) -> None:
        with pytest.raises(ValueError, match="data_range must be"):
            denoise(np.zeros((4, 4)), 0.1, data_range=value)

    @pytest.mark.slow
    def test_twelve_bits_in_sixteen(self, clean: NDArray[np.float64]) -> None:
        """12-bit data gives the result of the same data on the scale [0, 255]."""
        deep = np.clip(noisy(clean, 20) * 4095 / 255, 0, 4095)
        result = denoise(deep.astype(np.uint16), 20 * 4095 / 255)
        expected = denoise(deep.astype(np.uint16) * (255 / 4095), 20)
        np.testing.assert_allclose(result * (255 / 4095), expected, atol=0.04)

    def test_absurd_range_is_noticed(self) -> None:
        image = np.random.default_rng(0).random((8, 8)).astype(np.float32)
        with (
            pytest.raises(ValueError, match="a contrast of this model is"),
            np.errstate(all="ignore"),
            pytest.warns(NoiseLevelWarning),
        ):
            denoise(image, 0.1, data_range=1e-35)


class TestChannels:
    @pytest.mark.parametrize("axis", [0, 1, 2, -1, -3])
    def test_any_axis(self, axis: int, clean: NDArray[np.float64]) -> None:
        channels = np.stack([noisy(clean, 20), noisy(255 - clean, 20), noisy(clean / 2, 20)])
        expected = denoise(channels, 20, data_range=255, channel_axis=0)
        moved = denoise(np.moveaxis(channels, 0, axis), 20, data_range=255, channel_axis=axis)
        np.testing.assert_allclose(np.moveaxis(moved, axis, 0), expected, atol=1e-10)
        assert moved.shape == np.moveaxis(channels, 0, axis).shape

    def test_joint_is_better_than_one_by_one(self, clean: NDArray[np.float64]) -> None:
        rng = np.random.default_rng(0)
        truth = np.stack([clean, 0.8 * clean + 20, 255 - clean], axis=-1)
        image = truth + rng.normal(0, 30, truth.shape)
        together = denoise(image, 30, data_range=255, channel_axis=-1)
        apart = np.stack([denoise(c, 30, data_range=255) for c in np.moveaxis(image, -1, 0)], -1)
        assert psnr(together, truth) > psnr(apart, truth) + 0.1

    @pytest.mark.parametrize("axis", [3, -4, 17])
    def test_axis_that_does_not_exist(self, axis: int) -> None:
        with pytest.raises(ValueError, match=f"channel_axis {axis} does not exist"):
            denoise(np.zeros((4, 4, 3)), 0.1, channel_axis=axis)

    @pytest.mark.parametrize("axis", [1.0, True, "last"])
    def test_axis_that_is_no_integer(self, axis: Any) -> None:
        with pytest.raises(TypeError, match="channel_axis must be an integer"):
            denoise(np.zeros((4, 4, 3)), 0.1, channel_axis=axis)


class TestBadInput:
    @pytest.mark.parametrize(
        ("image", "error", "message"),
        [
            (np.float64(3), ValueError, "two axes"),
            (np.zeros(5), ValueError, "two axes"),
            (np.zeros((4, 4, 3)), ValueError, "are ambiguous: give channel_axis"),
            (np.zeros((0, 4)), ValueError, "empty"),
            (np.zeros((4, 0)), ValueError, "empty"),
            ([], ValueError, "two axes"),
            (np.zeros((4, 4), complex), TypeError, "complex"),
            (np.zeros((4, 4), object), TypeError, "Python objects"),
            (np.zeros((4, 4), bool), TypeError, "boolean mask"),
            (np.array([["a", "b"]]), TypeError, "dtype <U1"),
            (np.zeros((4, 4), "M8[s]"), TypeError, "dtype datetime64"),
        ],
    )
    def test_images(self, image: Any, error: type[Exception], message: str) -> None:
        with pytest.raises(error, match=message):
            denoise(image, 0.1)

    def test_two_axes_with_a_channel_axis(self) -> None:
        with pytest.raises(ValueError, match="three axes"):
            denoise(np.zeros((4, 4)), 0.1, channel_axis=-1)

    @pytest.mark.parametrize(
        ("sigma", "error"),
        [
            (-1, ValueError),
            (float("nan"), ValueError),
            (float("inf"), ValueError),
            ("5", ValueError),
            (True, TypeError),
            ([1.0, 2.0], TypeError),
        ],
    )
    def test_noise_levels(self, sigma: Any, error: type[Exception]) -> None:
        with pytest.raises(error, match="sigma must"):
            denoise(np.zeros((4, 4)), sigma)

    def test_unknown_model(self) -> None:
        with pytest.raises(ValueError, match="unknown model 'bm3d': expected one of pm, eed"):
            denoise(np.zeros((4, 4)), 0.1, model="bm3d")

    def test_unknown_engine(self) -> None:
        with pytest.raises(ValueError, match="unknown engine 'abacus'"):
            denoise(np.zeros((4, 4)), 0.1, engine="abacus")

    def test_missing_model_file(self, tmp_path: Any) -> None:
        with pytest.raises(FileNotFoundError):
            denoise(np.zeros((4, 4)), 0.1, model=tmp_path / "none.json")


@pytest.mark.slow
@pytest.mark.parametrize("shape", [(1, 1), (1, 7), (7, 1), (2, 2), (1, 2)])
@pytest.mark.parametrize("model", MODEL_NAMES)
def test_smallest_images(model: str, shape: tuple[int, int]) -> None:
    image = np.random.default_rng(0).normal(100, 20, shape)
    result = denoise(image, 20, model=model, data_range=255)
    assert result.shape == shape
    assert result.mean() == pytest.approx(image.mean())


def test_models_and_files_are_models_too(tmp_path: Any) -> None:
    image = np.random.default_rng(0).normal(100, 20, (12, 14))
    path = tmp_path / "mine.json"
    save_model(MODELS["iad-reduced"], path)
    by_object = denoise(image, 20, model=MODELS["iad-reduced"], data_range=255)
    np.testing.assert_array_equal(denoise(image, 20, model=path, data_range=255), by_object)
    np.testing.assert_array_equal(denoise(image, 20, model=str(path), data_range=255), by_object)


@pytest.mark.parametrize("dtype", [np.int64, np.uint64])
def test_zero_noise_returns_a_copy_of_large_integers(dtype: Any) -> None:
    image = np.full((8, 8), 2**53 + 1, dtype)
    result = denoise(image, 0, engine="numpy")
    np.testing.assert_array_equal(result, image)
    assert not np.shares_memory(result, image)


def test_zero_noise_returns_a_copy() -> None:
    image = np.arange(12, dtype=np.uint8).reshape(3, 4)
    result = denoise(image, 0)
    np.testing.assert_array_equal(result, image)
    assert not np.shares_memory(result, image)


def test_callback_has_the_layout_and_units_of_the_image() -> None:
    image = np.random.default_rng(0).integers(0, 4096, (10, 11, 3)).astype(np.uint16)
    seen: list[tuple[int, NDArray[Any]]] = []
    result = denoise(
        image,
        300,
        channel_axis=-1,
        colour="joint",
        callback=lambda step: seen.append((step.number, step.image())),
    )
    assert [step for step, _ in seen] == list(range(1, 7))
    assert {array.shape for _, array in seen} == {image.shape}
    np.testing.assert_array_equal(np.rint(seen[-1][1]), result)
    assert np.std(seen[0][1]) > np.std(seen[-1][1])


@pytest.mark.parametrize("engine", RUNNABLE_ENGINES)
def test_watching_changes_nothing(engine: str) -> None:
    """Also with a pull to the input, which must not be overwritten by what is watched."""
    ones = dict.fromkeys(PowerLaws.__dataclass_fields__, (1.0,))
    model = CompactDiffusion(law=PowerLaws(**ones), tau=0.1, pull=0.5, scales=FEW_SCALES)
    image = np.random.default_rng(0).normal(100, 20, (10, 11, 3))
    alone, watched = (
        denoise(image, 20, model=model, data_range=255, channel_axis=-1, engine=engine, callback=c)
        for c in (None, lambda step: step.image())
    )
    np.testing.assert_array_equal(watched, alone)


def test_an_error_in_the_callback_reaches_the_caller() -> None:
    def stop(step: Step) -> None:
        if step.number == 2:
            raise InterruptedError("enough")

    with pytest.raises(InterruptedError, match="enough"):
        denoise(np.zeros((5, 5)), 0.1, callback=stop)


class TestNoiseLevelWarning:
    @pytest.mark.slow
    @pytest.mark.parametrize("sigma", [0.1, 700])
    def test_far_outside_the_training_range(self, sigma: float) -> None:
        with pytest.warns(NoiseLevelWarning, match="far outside the range 2 to 100") as record:
            denoise(np.zeros((5, 5)), sigma, data_range=255)
        assert record[0].filename == __file__

    def test_quiet_inside_and_for_models_that_do_not_say(self) -> None:
        denoise(np.zeros((5, 5)), 8, data_range=255)
        denoise(np.zeros((5, 5)), 500, model=MODELS["pm"], data_range=255)
        assert load_model("iad").provenance["noise_levels"] == [10, 20, 30, 40, 50, 60]


class TestOut:
    def test_result_is_written_to_out(self, clean: NDArray[np.float64]) -> None:
        image = noisy(clean, 25).astype(np.float32)
        expected = denoise(image, 25, data_range=255)
        for out in (
            np.empty_like(image),
            np.empty_like(image.T).T,
            np.zeros((64, 96), "f4")[:, ::2],
        ):
            assert denoise(image, 25, data_range=255, out=out) is out
            np.testing.assert_array_equal(out, expected)
        assert denoise(image, 25, data_range=255, out=image) is image
        np.testing.assert_array_equal(image, expected)

    def test_integers_and_floats(self, clean: NDArray[np.float64]) -> None:
        image = noisy(clean, 25).clip(0, 255).astype(np.uint8)
        assert denoise(image, 25, out=np.empty_like(image)).dtype == np.uint8
        out = np.empty(image.shape, np.float32)
        np.testing.assert_array_equal(
            denoise(image, 25, as_float=True, out=out), denoise(image, 25, as_float=True)
        )

    @pytest.mark.parametrize(
        ("out", "error"),
        [
            ([[0.0]], TypeError),
            (np.zeros((3, 4), np.float32), ValueError),
            (np.zeros((4, 4), np.float64), ValueError),
            (np.broadcast_to(np.float32(0), (4, 4)), ValueError),
        ],
    )
    def test_what_does_not_fit_is_refused(self, out: Any, error: type[Exception]) -> None:
        image = np.zeros((4, 4), np.float32)
        with pytest.raises(error, match="out"):
            denoise(image, 0.1, out=out)
        assert not np.any(out)


class TestPlan:
    def test_equals_denoise_for_images_of_any_kind(self, clean: NDArray[np.float64]) -> None:
        plan = Denoiser(25, model="iid", threads=2)
        image = noisy(clean, 25).clip(0, 255)
        for kind in (image.astype(np.uint8), image[:9, :7].astype(np.uint8), image[::-1] / 255):
            sigma = 25 if kind.dtype == np.uint8 else 25 / 255
            chosen = plan if kind.dtype == np.uint8 else Denoiser(sigma, model="iid")
            for _ in range(2):
                np.testing.assert_array_equal(chosen(kind), denoise(kind, sigma, model="iid"))

    @pytest.mark.slow
    def test_exact_and_callback(self, clean: NDArray[np.float64]) -> None:
        image = noisy(clean, 25)
        plan = Denoiser(25, data_range=255, exact=True)
        seen: list[int] = []
        found = plan(image, callback=lambda step: seen.append(step.number))
        assert seen == list(range(1, 7))
        expected = denoise(image, 25, data_range=255, engine="numpy")
        np.testing.assert_allclose(found, expected, atol=1e-9)
        shortcut = denoise(image, 25, data_range=255)
        assert np.abs(shortcut - expected).max() < 0.05

    def test_wrong_settings_are_refused_at_once(self) -> None:
        with pytest.raises(ValueError, match="sigma"):
            Denoiser(-1)
        with pytest.raises(ValueError, match="threads must be"):
            Denoiser(1, threads=0)
        with pytest.raises(ValueError, match="unknown engine"):
            Denoiser(1, engine="fpga")


class TestMapOfNoiseLevels:
    levels = 5 * 8.0 ** np.linspace(0, 1, 101) * np.ones((95, 1))

    def noisy(self, clean: NDArray[np.float64]) -> NDArray[np.float64]:
        return clean + self.levels * np.random.default_rng(0).normal(size=clean.shape)

    @pytest.mark.parametrize("engine", some(RUNNABLE_ENGINES, RUNNABLE_ENGINES[-1]))
    def test_is_better_than_one_level(self, engine: str, photograph: NDArray[np.float64]) -> None:
        noisy = self.noisy(photograph)
        mean = float(np.sqrt(np.mean(self.levels**2)))
        results = [denoise(noisy, s, data_range=255, engine=engine) for s in (self.levels, mean)]
        errors = [float(np.mean((result - photograph) ** 2)) for result in results]
        assert errors[0] < 0.65 * errors[1]
        assert results[0].mean() == pytest.approx(noisy.mean(), abs=1e-6)
        assert np.linalg.norm(results[0]) <= np.linalg.norm(noisy)

    def test_of_one_level_is_that_level(self, photograph: NDArray[np.float64]) -> None:
        flat = np.full(photograph.shape, 20.0)
        expected = denoise(photograph, 20, data_range=255)
        assert np.allclose(denoise(photograph, flat, data_range=255), expected, atol=1e-9, rtol=0)

    @pytest.mark.slow
    def test_in_other_units_and_in_colour(self, photograph: NDArray[np.float64]) -> None:
        noisy = self.noisy(photograph)
        expected = denoise(noisy, self.levels, data_range=255, exact=True)
        scaled = denoise(noisy * 257, self.levels * 257, data_range=65535, exact=True)
        np.testing.assert_allclose(scaled / 257, expected, atol=1e-8, rtol=0)
        colours = np.stack([noisy] * 3)
        found = denoise(
            colours, self.levels, data_range=255, channel_axis=0, colour="joint", exact=True
        )
        np.testing.assert_allclose(found, np.stack([expected] * 3), atol=1e-8, rtol=0)
        opponent = denoise(colours, self.levels, data_range=255, channel_axis=0)
        assert opponent.shape == colours.shape

    def test_plan_and_zeros(self, photograph: NDArray[np.float64]) -> None:
        levels = np.where(self.levels < 10, 0.0, self.levels)
        noisy = self.noisy(photograph)
        plan = Denoiser(levels, data_range=255)
        result = plan(noisy)
        np.testing.assert_array_equal(plan(noisy), result)
        # Where there is no noise, nothing is to be moved; a pixel away from the others.
        quiet = np.abs(result - noisy)[:, :10]
        assert quiet.max() < 0.5 < np.abs(result - noisy)[:, 40:].max()
        np.testing.assert_array_equal(denoise(noisy, 0 * levels, data_range=255), noisy)

    @pytest.mark.parametrize(
        ("levels", "message"),
        [
            (np.ones((101, 95)), r"map of noise levels has the shape \(101, 95\)"),
            (np.full((95, 101), np.nan), "must be finite and nonnegative"),
            (-np.ones((95, 101)), "must be finite and nonnegative"),
            (np.ones((1, 95, 101)), r"map of noise levels has the shape \(1, 95, 101\)"),
            (np.ones((1, 1, 95, 101)), "sigma must be"),
        ],
    )
    def test_what_is_none_is_refused(
        self, levels: Any, message: str, photograph: NDArray[np.float64]
    ) -> None:
        with pytest.raises((ValueError, TypeError), match=message):
            denoise(photograph, levels, data_range=255)

    def test_photons_have_their_own(self, photograph: NDArray[np.float64]) -> None:
        with pytest.raises(ValueError, match="sigma describes Gaussian noise"):
            denoise(photograph, self.levels, noise="poisson")


def test_half_precision_does_not_overflow() -> None:
    """The unbiased inverse adds a quarter of the gain to a constant image."""
    image = np.full((8, 9), 65504, np.float16)
    noise = PoissonGaussian(gain=2000.0)
    assert denoise(image.astype(np.float32), noise=noise).min() > 65520
    assert (denoise(image, noise=noise) == image).all()
