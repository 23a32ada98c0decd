"""Tensors of PyTorch that are denoised where they are."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from integrodiff import Denoiser, PeronaMalik, denoise

torch = pytest.importorskip("torch")

CASES = {
    "YX": (9, 8),
    "YXS": (9, 8, 3),
    "SYX": (2, 7, 6),
    "TCYX": (2, 2, 7, 6),
    "CZYX": (2, 3, 6, 5),
}
SETTINGS: dict[str, Any] = {"data_range": 255, "engine": "torch"}


class Watched(torch.Tensor):  # type: ignore[misc, name-defined]
    """A tensor that remembers which of its values were asked for by the host."""

    asked: set[str] = set()  # noqa: RUF012

    @classmethod
    def __torch_function__(
        cls, function: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        name = getattr(function, "__name__", "")
        if name in ("numpy", "__array__", "cpu", "tolist", "__dlpack__"):
            cls.asked.add(name)
        return super().__torch_function__(function, types, args, kwargs or {})


def noisy(*shape: int, dtype: str = "float32") -> Any:
    return np.random.default_rng(0).normal(100, 20, shape).astype(dtype)


def settings_for(axes: str) -> dict[str, Any]:
    model = "iad-plus" if "Z" in axes else "pm"
    return {
        "sigma": [15.0, 20.0] if "C" in axes else 20.0,
        "axes": axes,
        "model": model,
        **SETTINGS,
    }


@pytest.fixture
def watched() -> Any:
    Watched.asked = set()
    return Watched


@pytest.mark.parametrize("axes", CASES)
@pytest.mark.parametrize("dtype", ["float16", "float32", "float64"])
def test_same_as_arrays(axes: str, dtype: str) -> None:
    image, settings = noisy(*CASES[axes], dtype=dtype), settings_for(axes)
    tensor = torch.tensor(image)
    found = denoise(tensor, **settings)
    assert (found.dtype, found.shape) == (tensor.dtype, tensor.shape)
    tolerance = 0.1 if dtype == "float16" else 1e-4
    np.testing.assert_allclose(found, denoise(image, **settings), rtol=0, atol=tolerance)
    np.testing.assert_array_equal(tensor, image)


@pytest.mark.parametrize("axes", CASES)
def test_nothing_goes_through_numpy(axes: str, watched: Any) -> None:
    tensor = torch.tensor(noisy(*CASES[axes])).as_subclass(watched)
    denoise(tensor, **settings_for(axes))
    assert not watched.asked


@pytest.mark.parametrize(
    "more",
    [
        {"engine": "numpy"},
        {"sigma": None, "model": "pm"},
        {"data_range": None},
        {"mask": np.arange(40) > 3},
        {"sigma": np.full((40, 40), 20.0)},
        {"noise": "poisson", "sigma": None},
    ],
)
def test_what_does_go_through_numpy(more: dict[str, Any], watched: Any) -> None:
    """So that the watch is seen to work, and the list in the documentation to be right."""
    tensor = torch.tensor(noisy(40, 40).clip(1)).as_subclass(watched)
    found = denoise(tensor, **{"sigma": 20.0, "model": "pm", **SETTINGS, **more})
    assert isinstance(found, torch.Tensor)
    assert watched.asked


def test_pixels_that_are_not_finite_are_invalid() -> None:
    image = noisy(9, 8)
    image[3, 4] = np.nan
    settings = settings_for("YX")
    found = denoise(torch.tensor(image), **settings)
    np.testing.assert_array_equal(found, denoise(image, **settings))


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

    def test_on_the_way_by_numpy(self) -> None:
        tensor = torch.tensor(noisy(9, 8).clip(0, 255).astype(np.uint8))
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
            with pytest.raises(
                ValueError, match=r"shape \(9, 8\), the dtype float32 and the device cpu"
            ):
                denoise(tensor, out=out, **settings)
        with pytest.raises(TypeError, match="bfloat16 cannot be denoised"):
            denoise(tensor.bfloat16(), **settings)


def test_values_that_are_too_large() -> None:
    tensor = torch.full((4, 4), 1e38)
    tensor[0] = -1e38
    with pytest.raises(ValueError, match="too large to compute in float32"):
        denoise(
            tensor, 1.0, model=PeronaMalik(contrast=20, tau=0.2), data_range=1.0, engine="torch"
        )
