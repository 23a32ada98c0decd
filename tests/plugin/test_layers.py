"""What the plugin reads off a layer, and its computation, without Qt or a viewer."""

from __future__ import annotations

import itertools
import threading
import warnings
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from integrodiff import NoiseLevelWarning, denoise
from integrodiff.napari.code import as_python
from integrodiff.napari.job import Outcome, Progress, Settings, denoising
from integrodiff.napari.layers import whole
from integrodiff.napari.samples import cells, colour_photograph, photograph, photons


def finished(job: object) -> tuple[list[Progress], Outcome]:
    """Run a computation to its end."""
    seen = []
    while True:
        try:
            seen.append(next(job))  # type: ignore[call-overload]
        except StopIteration as end:
            return seen, end.value


@pytest.fixture
def noisy() -> NDArray[np.float32]:
    y, x = np.mgrid[:48, :64]
    clean = 60.0 + 90 * (np.hypot(y - 24, x - 30) < 14)
    noise = np.random.default_rng(0).normal(0, 10, clean.shape)
    return np.asarray(clean + noise, np.float32)


def test_a_computation_yields_every_step_and_equals_denoise(
    noisy: NDArray[np.float32],
) -> None:
    seen, outcome = finished(denoising(noisy, Settings(sigma=10.0)))
    numbers = [progress.number for progress in seen if progress.total]
    total = seen[-1].total
    assert [number for number, _ in itertools.groupby(numbers)] == list(range(total + 1))
    assert total > 1
    assert seen[-1].noise == "sigma 10"
    assert outcome.error is None
    np.testing.assert_array_equal(outcome.result, denoise(noisy, 10.0))
    np.testing.assert_array_equal(outcome.removed, noisy - denoise(noisy, 10.0))


def test_an_estimated_level_is_reported(
    noisy: NDArray[np.float32],
) -> None:
    _, outcome = finished(denoising(noisy, Settings()))
    assert "(estimated)" in outcome.noise
    np.testing.assert_array_equal(outcome.result, denoise(noisy))


def test_errors_are_those_of_the_package() -> None:
    _, outcome = finished(denoising(np.zeros((3, 32, 32)), Settings()))
    assert outcome.result is None
    with pytest.raises(ValueError, match="ambiguous") as raised:
        denoise(np.zeros((3, 32, 32)))
    assert str(outcome.error) == str(raised.value)


def test_warnings_are_those_of_the_package(
    noisy: NDArray[np.float32],
) -> None:
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        finished(denoising(noisy - 90, Settings(noise="poisson")))
    assert [warning.category for warning in caught] == [NoiseLevelWarning]


def test_closing_stops_the_computation() -> None:
    """The thread ends long before all steps are done."""
    volume = np.random.default_rng(0).normal(100, 20, (24, 128, 128)).astype(np.float32)
    job = denoising(volume, Settings(sigma=20.0, axes="ZYX"))
    while not next(job).number:
        pass
    (thread,) = [thread for thread in threading.enumerate() if thread.name == "integrodiff"]
    job.close()
    thread.join(60)
    assert not thread.is_alive()
    assert thread.outcome.result is None  # type: ignore[attr-defined]
    assert thread.outcome.error is None  # type: ignore[attr-defined]


def test_an_event_stops_the_computation() -> None:
    volume = np.random.default_rng(0).normal(100, 20, (16, 96, 96)).astype(np.float32)
    stopped = threading.Event()
    job = denoising(volume, Settings(sigma=20.0, axes="ZYX"), None, stopped)
    while not next(job).number:
        pass
    stopped.set()
    seen, outcome = finished(job)
    assert outcome.result is None
    assert all(progress.number < progress.total for progress in seen)


def test_only_arguments_that_differ_from_the_defaults_are_given() -> None:
    assert Settings().arguments() == {}
    chosen = Settings(model="iad", sigma=(1.0, 2.0), axes="CYX", exact=True)
    assert chosen.arguments() == {
        "model": "iad",
        "sigma": (1.0, 2.0),
        "axes": "CYX",
        "exact": True,
    }


@pytest.mark.slow
@pytest.mark.parametrize("sample", [photograph, colour_photograph, cells, photons])
def test_samples_are_noisy_images(sample: object) -> None:
    ((data, shown, kind),) = sample()  # type: ignore[operator]
    assert kind == "image"
    assert shown["name"]
    axes = "YXS" if shown.get("rgb") else "ZYX" if data.ndim == 3 else "YX"
    noise: Any = "poisson" if "photon" in shown["name"] else "gaussian"
    spacing = shown.get("scale")
    result = denoise(data, axes=axes, noise=noise, spacing=spacing, as_float=True)
    assert result.shape == data.shape
    assert np.std(data - result) > 1


def test_code_puts_a_result_where_the_panel_does() -> None:
    layer = SimpleNamespace(name="a", data=np.zeros((8, 9)), ndim=2, multiscale=False, rgb=False)
    code = as_python(layer, Settings(sigma=12.0), whole(layer))
    for name in ("scale", "translate", "rotate", "shear", "affine", "units", "axis_labels", "rgb"):
        assert f"{name}=layer.{name}" in code
