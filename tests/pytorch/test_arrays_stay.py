"""Arrays of other libraries are denoised where they are, and come out as from NumPy."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from array_requests import (
    REQUESTS,
    arguments,
    edges,
    levels_of,
    looks_at_pixels,
    noisy,
    photons,
    some_valid,
)
from numpy.typing import NDArray

from integrodiff import Denoiser, PeronaMalik, denoise
from integrodiff.arrays import array_image, image_on_device
from integrodiff.engines import Process
from integrodiff.noise.level import _levels_of, detector_of

torch = pytest.importorskip("torch")

CASES = {
    "YX": (9, 8),
    "YXS": (9, 8, 3),
    "SYX": (2, 7, 6),
    "TCYX": (2, 2, 7, 6),
    "CZYX": (2, 3, 6, 5),
    "YTXC": (7, 3, 6, 2),
    "TYXS": (2, 7, 6, 4),
}
SETTINGS: dict[str, Any] = {"data_range": 255, "engine": "torch"}


class Watched(torch.Tensor):  # type: ignore[misc, name-defined]
    """A tensor that counts the bytes of its values that become arrays or lists on the host."""

    bytes_on_host = 0

    @classmethod
    def __torch_function__(
        cls, function: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        if getattr(function, "__name__", "") in ("numpy", "__array__", "tolist", "__dlpack__"):
            cls.bytes_on_host += args[0].nbytes
        return super().__torch_function__(function, types, args, kwargs or {})


@pytest.fixture
def watched() -> Any:
    Watched.bytes_on_host = 0
    return Watched


class OnlyDLPack:
    """An array of a library that gives its memory away by DLPack, and has nothing else."""

    def __init__(self, tensor: Any) -> None:
        self.tensor = tensor

    def __dlpack__(self, **arguments: Any) -> Any:
        return self.tensor.__dlpack__(**arguments)

    def __dlpack_device__(self) -> Any:
        return self.tensor.__dlpack_device__()


def settings_for(axes: str) -> dict[str, Any]:
    model = "iad-plus" if "Z" in axes else "pm"
    return {
        "sigma": [15.0, 20.0] if "C" in axes else 20.0,
        "axes": axes,
        "model": model,
        **SETTINGS,
    }


def by_numpy(image: NDArray[Any], settings: dict[str, Any]) -> NDArray[Any]:
    return denoise(image, **{**settings, "engine": "numpy"})


@pytest.mark.parametrize("axes", CASES)
@pytest.mark.parametrize("dtype", ["float16", "float32", "float64"])
def test_same_as_arrays(axes: str, dtype: str) -> None:
    image, settings = noisy(*CASES[axes], dtype=dtype), settings_for(axes)
    tensor = torch.tensor(image)
    found = denoise(tensor, **settings)
    assert (found.dtype, found.shape) == (tensor.dtype, tensor.shape)
    tolerance = 0.1 if dtype == "float16" else 1e-4
    np.testing.assert_allclose(found, by_numpy(image, settings), rtol=0, atol=tolerance)
    np.testing.assert_array_equal(tensor, image)


@pytest.mark.parametrize("name", REQUESTS)
def test_same_as_numpy(name: str, watched: Any) -> None:
    """The result is that of NumPy, and no image becomes an array of the host."""
    image, settings = arguments(name)
    settings["engine"] = "torch"
    expected = by_numpy(image.copy(), settings)
    tensor = torch.tensor(image).as_subclass(watched)
    found = denoise(tensor, **settings)
    assert isinstance(found, torch.Tensor)
    if not looks_at_pixels(name):
        assert watched.bytes_on_host == 0
    found = found.as_subclass(torch.Tensor).numpy()
    assert found.dtype == expected.dtype
    unit = float(np.abs(expected).max()) / 255
    rounding = 1.0 if expected.dtype.kind in "iu" else 0.0
    np.testing.assert_allclose(found, expected, rtol=0, atol=max(2e-3 * unit, rounding))
    if "mask" in settings:
        valid = settings["mask"]
        invalid = ~(valid if image.shape[-1] == 3 else np.broadcast_to(valid, image.shape))
        np.testing.assert_array_equal(found[invalid], image[invalid])


@pytest.mark.parametrize("name", REQUESTS)
def test_numbers_are_those_of_numpy(name: str) -> None:
    """Levels and scales that are estimated from the same pixels do not differ in any digit."""
    image, settings = arguments(name)
    settings["engine"] = "torch"
    axes, mask = settings.pop("axes", None), settings.pop("mask", None)
    arrays = array_image(image, axes=axes, mask=mask)
    tensors = image_on_device(torch.tensor(image), axes=axes, channel_axis=None, mask=mask)
    if Denoiser(**settings).request.has_alpha(arrays.layout):
        arrays, tensors = arrays.split_last_sample()[1], tensors.split_last_sample()[1]
    one = Denoiser(**{**settings, "engine": "numpy"}).pipeline(arrays).resolved
    other = Denoiser(**settings).pipeline(tensors.looked_through()).resolved
    # Extremes, sums and covariances on a device are rounded in another order; the line through the
    # variances of a detector enlarges that.
    tolerance = 1e-9 if "small" in name or "map" in name else 0.0
    if "detector" in name:
        tolerance = 1e-7
    for first, second in zip(one.channels, other.channels, strict=True):
        np.testing.assert_allclose(first.sigmas, second.sigmas, rtol=tolerance)
        np.testing.assert_allclose(first.scaling, second.scaling, rtol=max(tolerance, 1e-15))
        assert first.estimated == second.estimated
        assert (first.map is None) == (second.map is None)
    assert one.noise == other.noise
    assert (one.invalid is None) == (other.invalid is None)


class TestEstimates:
    MOST_BYTES = 4 * 2**20

    @pytest.mark.parametrize("side", [300, 1500])
    @pytest.mark.parametrize("masked", [False, True])
    def test_what_the_host_gets_is_bounded(self, side: int, masked: bool, watched: Any) -> None:
        image = torch.tensor(noisy(side, side)).as_subclass(watched)
        mask = torch.tensor(some_valid(side, side) | (np.arange(side) > 9)) if masked else None
        source = image_on_device(image, axes=None, channel_axis=None, mask=mask)
        Denoiser(**SETTINGS).pipeline(source.looked_through())
        assert 0 < watched.bytes_on_host <= self.MOST_BYTES

    def test_what_a_detector_takes_is_bounded(self, watched: Any) -> None:
        image = torch.tensor(photons(1200)).as_subclass(watched)
        found = detector_of([(image, None)], 0.0)
        assert found.gain == pytest.approx(1, rel=0.05)
        assert 0 < watched.bytes_on_host <= 4.5 * 2**20

    def test_levels_alone(self) -> None:
        image = noisy(2, 40, 41)
        arrays = array_image(image, axes="TYX")
        tensors = image_on_device(torch.tensor(image), axes="TYX", channel_axis=None)
        assert _levels_of(tensors, 0) == _levels_of(arrays, 0)


def test_batches_are_handed_over_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    """Planes that share an evolution are one batch, and the result is that of single ones."""
    from integrodiff.engines.torch import TorchProcess

    shapes = []
    start = TorchProcess.start

    def noted(self: Process, image: Any) -> Any:
        shapes.append(tuple(image.shape))
        return start(self, image)  # type: ignore[arg-type]

    monkeypatch.setattr(TorchProcess, "start", noted)
    frames = torch.tensor(edges(4, 2, 9, 8))
    settings: dict[str, Any] = {"sigma": [15.0, 20.0], "model": "pm", **SETTINGS}
    found = denoise(frames, axes="TCYX", **settings)
    assert shapes == [(4, 1, 9, 8)] * 2
    for n in range(4):
        single = denoise(frames[n], axes="CYX", **settings)
        torch.testing.assert_close(found[n], single, rtol=0, atol=1e-4)
    shapes.clear()
    frames = torch.tensor(edges(3, 9, 8, 3))
    denoise(frames, axes="TYXS", **{**settings, "sigma": 20.0})
    assert sorted(shapes) == [(3, 1, 9, 8), (3, 2, 9, 8)]
    shapes.clear()
    frames = torch.tensor(edges(4, 9, 8))
    frames[1, 2, 3] = float("nan")
    mask = torch.ones(4, 9, 8, dtype=torch.bool)
    mask[2:, 3, 3] = False
    denoise(frames, axes="TYX", mask=mask, **{**settings, "sigma": 20.0})
    assert sorted(shapes) == [(1, 1, 9, 8), (1, 1, 9, 8), (2, 1, 9, 8)]


def test_processes_of_a_mask_are_reused(monkeypatch: pytest.MonkeyPatch) -> None:
    denoiser = Denoiser(20.0, model="pm", **SETTINGS)
    mask = torch.tensor(some_valid(9, 8))
    first = denoiser(torch.tensor(edges(9, 8)), mask=mask)
    (known,) = denoiser._masked_on_device
    denoiser(torch.tensor(edges(9, 8)), mask=mask.clone())
    assert denoiser._masked_on_device == [known]
    denoiser(torch.tensor(edges(9, 8)), mask=~mask)
    assert len(denoiser._masked_on_device) == 2
    again = denoiser(torch.tensor(edges(9, 8)), mask=mask)
    torch.testing.assert_close(first, again, rtol=0, atol=0)


def test_callbacks_see_tensors() -> None:
    settings = {"axes": "TYXS", "sigma": 20.0, "model": "pm", **SETTINGS}
    image = edges(2, 9, 8, 3)
    image[1, 2, 3] = np.nan
    seen: dict[str, list[Any]] = {"torch": [], "numpy": []}
    for engine, given in (("torch", torch.tensor(image)), ("numpy", image)):
        denoise(
            given,
            **{**settings, "engine": engine},
            callback=lambda step, found=seen[engine]: found.append(  # type: ignore[misc]
                (step.number, step.total, step.plane, step.image())
            ),
        )
    assert len(seen["torch"]) == len(seen["numpy"]) > 10
    for one, other in zip(seen["torch"], seen["numpy"], strict=True):
        assert one[:3] == other[:3]
        assert isinstance(one[3], torch.Tensor)
        np.testing.assert_allclose(one[3], other[3], rtol=0, atol=1e-3)


def test_pixels_that_are_not_finite_are_invalid() -> None:
    image = noisy(9, 8)
    image[3, 4], image[5, 5] = np.nan, np.inf
    image.view(np.uint32)[3, 5] = 0x7FC01234  # a NaN with a message
    settings = settings_for("YX")
    found = np.asarray(denoise(torch.tensor(image), **settings))
    np.testing.assert_allclose(found, by_numpy(image, settings), rtol=0, atol=1e-4)
    bad = ~np.isfinite(image)
    np.testing.assert_array_equal(found.view(np.uint32)[bad], image.view(np.uint32)[bad])


def test_given_beside_the_image() -> None:
    """Masks and maps may be arrays of the host or of the library of the image, and both ways."""
    image, mask, levels = edges(9, 8), some_valid(9, 8), levels_of(9, 8)
    expected = denoise(image, levels, mask=mask, model="pm", data_range=255, engine="numpy")
    for engine, kind in (("torch", torch.tensor), ("numpy", np.array)):
        for other in (torch.tensor, np.array):
            found = denoise(
                kind(image),
                other(levels),
                mask=other(mask),
                model="pm",
                data_range=255,
                engine=engine,
            )
            np.testing.assert_allclose(found, expected, rtol=0, atol=1e-3)
    denoiser = Denoiser(torch.tensor(levels), model="pm", **SETTINGS)
    for given in (torch.tensor(image), torch.tensor(image).double()):
        np.testing.assert_allclose(denoiser(given, mask=mask), expected, rtol=0, atol=1e-3)


class TestOut:
    def test_is_filled_and_returned(self) -> None:
        for axes, shape in CASES.items():
            tensor, settings = torch.tensor(noisy(*shape)), settings_for(axes)
            expected = denoise(tensor, **settings)
            out = torch.empty_like(tensor)
            assert denoise(tensor, out=out, **settings) is out
            torch.testing.assert_close(out, expected, rtol=0, atol=0)
            assert denoise(tensor, out=tensor, **settings) is tensor
            torch.testing.assert_close(tensor, expected, rtol=0, atol=0)

    def test_of_another_layout_in_memory(self) -> None:
        tensor = torch.tensor(noisy(3, 2, 9, 8))
        settings = settings_for("TCYX")
        expected = denoise(tensor, **settings)
        out = torch.empty(8, 9, 2, 3).permute(3, 2, 1, 0)
        assert denoise(tensor, out=out, **settings) is out
        torch.testing.assert_close(out, expected, rtol=0, atol=0)

    def test_of_integers(self) -> None:
        tensor = torch.tensor(noisy(9, 8).astype(np.uint8))
        settings = settings_for("YX")
        for engine in ("numpy", "torch"):
            out = torch.empty_like(tensor)
            expected = denoise(tensor, **{**settings, "engine": engine})
            assert denoise(tensor, out=out, **{**settings, "engine": engine}) is out
            torch.testing.assert_close(out, expected)

    def test_that_overlaps_the_image(self) -> None:
        memory = torch.tensor(noisy(3, 9, 8))
        denoiser = Denoiser(20.0, axes="TYX", model="pm", **SETTINGS)
        expected = denoiser(memory[:2].clone())
        denoiser(memory[:2], out=memory[1:])
        torch.testing.assert_close(memory[1:], expected, rtol=0, atol=0)

    def test_of_another_kind_is_refused(self) -> None:
        tensor, settings = torch.tensor(noisy(9, 8)), settings_for("YX")
        for out in (torch.empty(8, 9), torch.empty(9, 8, dtype=torch.float64)):
            for engine in ("torch", "numpy"):
                with pytest.raises(
                    ValueError, match=r"shape \(9, 8\), the dtype float32 and the device cpu"
                ):
                    denoise(tensor, out=out, **{**settings, "engine": engine})
        with pytest.raises(TypeError, match="out must be an array like the image"):
            denoise(tensor, out=np.empty((9, 8), np.float32), **settings)
        with pytest.raises(TypeError, match="bfloat16 cannot be denoised"):
            denoise(tensor.bfloat16(), **settings)


class TestDLPack:
    def test_is_opened_in_its_memory(self) -> None:
        tensor, settings = torch.tensor(noisy(9, 8)), settings_for("YX")
        expected = denoise(tensor, **settings)
        found: Any = denoise(OnlyDLPack(tensor), **settings)
        assert isinstance(found, torch.Tensor)
        torch.testing.assert_close(found, expected, rtol=0, atol=0)
        given = OnlyDLPack(torch.zeros(9, 8))
        out: Any = given
        assert denoise(OnlyDLPack(tensor), out=out, **settings) is out
        torch.testing.assert_close(given.tensor, expected, rtol=0, atol=0)

    def test_goes_by_numpy_for_other_engines(self) -> None:
        image = noisy(9, 8)
        settings = {**settings_for("YX"), "engine": "numpy"}
        found = denoise(OnlyDLPack(torch.tensor(image)), **settings)
        np.testing.assert_array_equal(found, denoise(image, **settings))


def test_derivatives_are_left_behind() -> None:
    tensor = torch.tensor(noisy(9, 8), requires_grad=True)
    assert not denoise(tensor, **settings_for("YX")).requires_grad  # type: ignore[attr-defined]


def test_max_memory_of_a_volume_is_for_another_engine() -> None:
    with pytest.raises(ValueError, match="max_memory is for the engine 'native'"):
        denoise(torch.tensor(noisy(3, 6, 5)), max_memory="1G", **settings_for("ZYX"))


def test_values_that_are_too_large() -> None:
    tensor = torch.full((4, 4), 1e38)
    tensor[0] = -1e38
    with pytest.raises(ValueError, match="too large to compute in float32"):
        denoise(
            tensor, 1.0, model=PeronaMalik(contrast=20, tau=0.2), data_range=1.0, engine="torch"
        )


def test_a_negative_view_of_a_tensor() -> None:
    """Such as the imaginary part of a conjugated one."""
    pixels = np.random.default_rng(0).normal(100, 10, (24, 26))
    image = torch.tensor(1j * pixels).conj().imag
    found: Any = denoise(image, 10, engine="numpy")
    np.testing.assert_array_equal(found.numpy(), denoise(-pixels, 10, engine="numpy"))
