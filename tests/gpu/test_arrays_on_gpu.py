"""The whole way of an array in the memory of a GPU: PyTorch, CuPy and others by DLPack.

Skipped where there is no GPU: ``python -m pytest tests/gpu -rs`` says why. Results are compared
with those of NumPy, and copies to the host are counted by the profiler of CUDA.
"""

from __future__ import annotations

import importlib.util
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from array_requests import REQUESTS, arguments, edges, levels_of, looks_at_pixels, some_valid
from numpy.typing import NDArray

from integrodiff import (
    ENGINE_NAMES,
    Denoiser,
    EngineUnavailableError,
    denoise,
    estimate_poisson_gaussian,
    estimate_sigma,
)
from integrodiff.engines import ENGINES

torch = pytest.importorskip("torch")
if not torch.cuda.is_available():
    pytest.skip("there is no CUDA device", allow_module_level=True)

ENGINES_ON_GPU = [
    "auto",
    *(name for name in ENGINE_NAMES[1:] if "torch" in ENGINES[name].libraries),
]
LIBRARIES = ["torch", *(["cupy"] if importlib.util.find_spec("cupy") is not None else [])]

MOST_BYTES_PER_SAMPLE = 5 * 2**20
"""What a noise level or a detector takes of a plane at most; docs/torch.md."""


def given(array: NDArray[Any], library: str) -> Any:
    if library == "torch":
        return torch.tensor(array, device="cuda")
    import cupy

    return cupy.asarray(array)


def on_host(array: Any) -> NDArray[Any]:
    return array.cpu().numpy() if isinstance(array, torch.Tensor) else array.get()  # type: ignore[no-any-return]


def kind_of(array: Any) -> tuple[Any, ...]:
    return type(array), str(array.device), str(array.dtype), tuple(array.shape)


class OnlyDLPack:
    """An array of a library that gives its memory away by DLPack, and has nothing else."""

    def __init__(self, tensor: Any) -> None:
        self.tensor = tensor

    def __dlpack__(self, **arguments: Any) -> Any:
        return self.tensor.__dlpack__(**arguments)

    def __dlpack_device__(self) -> Any:
        return self.tensor.__dlpack_device__()


def bytes_to_host(call: Callable[[], object], folder: Path) -> int:
    """Return how many bytes are copied from the GPU to the host while a function runs."""
    call()  # tables and kernels are made once
    activities = [torch.profiler.ProfilerActivity.CPU, torch.profiler.ProfilerActivity.CUDA]
    with torch.profiler.profile(activities=activities, acc_events=True) as profiler:
        call()
        torch.cuda.synchronize()
    trace = folder / "trace.json"
    profiler.export_chrome_trace(str(trace))
    events = json.loads(trace.read_text())["traceEvents"]
    return sum(
        int(event["args"]["bytes"])
        for event in events
        if event.get("cat") == "gpu_memcpy" and "DtoH" in event.get("name", "")
    )


def close(found: NDArray[Any], expected: NDArray[Any], name: str = "") -> None:
    assert found.dtype == expected.dtype
    unit = float(np.nanmax(np.abs(expected))) / 255
    rounding = 1.0 if expected.dtype.kind in "iu" else 0.0
    # Grey levels of 255; the default of the fast engines takes shortcuts.
    np.testing.assert_allclose(found, expected, rtol=0, atol=max(0.06 * unit, rounding))


def test_copies_are_seen(tmp_path: Path) -> None:
    """So that a test that finds none says something."""
    image = torch.zeros(2**20, device="cuda")
    assert bytes_to_host(lambda: image.cpu(), tmp_path) == 2**22


@pytest.mark.parametrize("engine", ENGINES_ON_GPU)
@pytest.mark.parametrize("library", LIBRARIES)
@pytest.mark.parametrize("name", REQUESTS)
def test_same_as_numpy(name: str, library: str, engine: str) -> None:
    image, settings = arguments(name)
    expected = denoise(image.copy(), engine="numpy", **settings)
    if "mask" in settings:
        settings["mask"] = given(settings["mask"], library)
    array = given(image, library)
    found = denoise(array, engine=engine, **settings)
    assert kind_of(found)[:2] == kind_of(array)[:2]
    close(on_host(found), expected, name)
    np.testing.assert_array_equal(on_host(array), image)
    if "mask" in settings:
        valid = on_host(settings["mask"])
        invalid = ~(valid if image.shape[-1] == 3 else np.broadcast_to(valid, image.shape))
        np.testing.assert_array_equal(on_host(found)[invalid], image[invalid])


@pytest.mark.parametrize("engine", ENGINES_ON_GPU)
@pytest.mark.parametrize("library", LIBRARIES)
@pytest.mark.parametrize("name", [name for name in REQUESTS if not looks_at_pixels(name)])
def test_no_image_goes_to_the_host(name: str, library: str, engine: str, tmp_path: Path) -> None:
    image, settings = arguments(name)
    axes = settings.get("axes", "YX")
    image = enlarged(image, axes)
    if np.ndim(settings["sigma"]) > 1:
        settings["sigma"] = given(enlarged(settings["sigma"], "ZYX"), library)
    if "mask" in settings:
        settings["mask"] = given(enlarged(settings["mask"], axes.replace("S", "")), library)
    denoiser = Denoiser(settings.pop("sigma"), engine=engine, **without_mask(settings))
    array, mask = given(image, library), settings.get("mask")
    moved = bytes_to_host(lambda: denoiser(array, mask=mask), tmp_path)
    # Single numbers: whether all values are finite, how many pixels are invalid, extremes.
    assert moved < 4096 < image.nbytes / 10


def enlarged(array: NDArray[Any], axes: str) -> NDArray[Any]:
    """Return an array with more rows and columns; of missing axes it has the last."""
    for axis, letter in enumerate(axes[-array.ndim :]):
        if letter in "YX":
            array = np.repeat(array, 16, axis)
    return array


def without_mask(settings: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in settings.items() if name != "mask"}


@pytest.mark.parametrize("library", LIBRARIES)
@pytest.mark.parametrize("side", [512, 4096])
@pytest.mark.parametrize("noise", ["gaussian", "poisson-gaussian"])
def test_what_is_looked_at_is_bounded(side: int, noise: Any, library: str, tmp_path: Path) -> None:
    light = np.repeat([20.0, 200.0, 60.0, 120.0], side // 4)[:, None] * np.ones(side)
    image = np.random.default_rng(0).poisson(light).astype(np.float32)
    array = given(image, library)
    moved = bytes_to_host(lambda: denoise(array, noise=noise, model="pm"), tmp_path)
    # A detector is estimated first, and then the scale of the stabilised image.
    assert 0 < moved <= (2 if noise != "gaussian" else 1) * MOST_BYTES_PER_SAMPLE


@pytest.mark.parametrize("library", LIBRARIES)
def test_estimates_are_those_of_the_host(library: str) -> None:
    image = edges(3, 64, 65)
    levels = estimate_sigma(given(image, library), axes="CYX")
    np.testing.assert_array_equal(levels, estimate_sigma(image, axes="CYX"))
    light = np.repeat([20.0, 200.0, 60.0, 120.0], 32)[:, None] * np.ones(128)
    counts = np.random.default_rng(0).poisson(light).astype(np.uint16)
    found = estimate_poisson_gaussian(given(counts, library), offset=0)
    assert found.gain == pytest.approx(estimate_poisson_gaussian(counts, offset=0).gain, rel=1e-9)


@pytest.mark.parametrize("engine", ENGINES_ON_GPU)
@pytest.mark.parametrize("library", LIBRARIES)
class TestOut:
    @pytest.mark.parametrize("dtype", [np.uint8, np.float32])
    def test_is_filled_and_returned(self, dtype: Any, library: str, engine: str) -> None:
        settings: Any = {"axes": "TYX", "model": "pm", "data_range": 255, "engine": engine}
        array = given(edges(3, 24, 25).clip(0, 255).astype(dtype), library)
        expected = on_host(denoise(array, 20.0, **settings))
        out = given(np.zeros((3, 24, 25), dtype), library)
        assert denoise(array, 20.0, out=out, **settings) is out
        np.testing.assert_array_equal(on_host(out), expected)
        assert denoise(array, 20.0, out=array, **settings) is array
        np.testing.assert_array_equal(on_host(array), expected)

    def test_that_overlaps_the_image(self, library: str, engine: str) -> None:
        memory = given(edges(3, 24, 25), library)
        denoiser = Denoiser(20.0, axes="TYX", model="pm", data_range=255, engine=engine)
        expected = on_host(denoiser(given(edges(3, 24, 25)[:2], library)))
        denoiser(memory[:2], out=memory[1:])
        np.testing.assert_array_equal(on_host(memory[1:]), expected)

    def test_on_the_host_is_refused(self, library: str, engine: str) -> None:
        array = given(edges(24, 25), library)
        with pytest.raises(TypeError, match="out must be an array like the image"):
            denoise(array, 20.0, data_range=255, engine=engine, out=np.empty((24, 25), np.float32))


@pytest.mark.parametrize("engine", ENGINES_ON_GPU)
@pytest.mark.parametrize("library", LIBRARIES)
def test_callbacks_see_arrays_of_the_same_kind(library: str, engine: str) -> None:
    array, seen = given(edges(24, 25), library), []
    denoise(
        array,
        20.0,
        model="iad",
        data_range=255,
        engine=engine,
        callback=lambda step: seen.append((step.number, step.image())),
    )
    assert [number for number, _ in seen] == list(range(1, 11))
    deviations = [float(on_host(image).std()) for _, image in seen]
    assert all(kind_of(image) == kind_of(array) for _, image in seen)
    assert deviations == sorted(deviations, reverse=True)


@pytest.mark.parametrize("engine", ENGINES_ON_GPU)
@pytest.mark.parametrize("library", LIBRARIES)
@pytest.mark.parametrize("axes", ["TYX", "TYXS", "TZYX"])
def test_batches_are_as_single_images(axes: str, library: str, engine: str) -> None:
    shape = {"TYX": (5, 33, 40), "TYXS": (5, 33, 40, 3), "TZYX": (3, 6, 20, 21)}[axes]
    denoiser = Denoiser(20.0, axes=axes[1:], data_range=255, engine=engine)
    frames = given(edges(*shape), library)
    found = denoise(frames, 20.0, axes=axes, data_range=255, engine=engine)
    for n in range(shape[0]):
        np.testing.assert_allclose(
            on_host(found[n]), on_host(denoiser(frames[n])), rtol=0, atol=1e-3
        )


@pytest.mark.parametrize("engine", ENGINES_ON_GPU)
@pytest.mark.parametrize("library", LIBRARIES)
def test_streams(library: str, engine: str) -> None:
    """Work is queued behind what the stream of the image does already, and before what follows."""
    image = edges(600, 601)
    settings: Any = {"model": "iad", "data_range": 255, "engine": engine}
    expected = on_host(denoise(given(image, library), 20.0, **settings))
    if library == "torch":
        busy = torch.rand(4000, 4000, device="cuda")
        target, source = torch.zeros(600, 601, device="cuda"), given(image, library)
        stream = torch.cuda.Stream()
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            for _ in range(20):
                busy = busy @ busy / 4000
            target.copy_(source)
            found: Any = denoise(target, 20.0, **settings)
            target.zero_()
            copied = found.clone()
        stream.synchronize()
        np.testing.assert_array_equal(on_host(copied), expected)
    else:
        import cupy

        busy, target = cupy.random.random((4000, 4000)), cupy.zeros((600, 601), cupy.float32)
        source, stream = given(image, library), cupy.cuda.Stream(non_blocking=True)
        cupy.cuda.Device().synchronize()
        with stream:
            for _ in range(20):
                busy = busy @ busy / 4000
            target[...] = source
            found = denoise(target, 20.0, **settings)
            target[...] = 0
            copied = found.copy()
        stream.synchronize()
        np.testing.assert_array_equal(on_host(copied), expected)


@pytest.mark.parametrize("engine", ENGINES_ON_GPU)
def test_arrays_by_dlpack(engine: str) -> None:
    tensor = torch.tensor(edges(24, 25), device="cuda")
    expected = denoise(tensor, 20.0, data_range=255, engine=engine)
    found: Any = denoise(OnlyDLPack(tensor), 20.0, data_range=255, engine=engine)
    torch.testing.assert_close(torch.from_dlpack(found), expected, rtol=0, atol=0)
    out = torch.zeros(24, 25, device="cuda")
    denoise(OnlyDLPack(tensor), 20.0, data_range=255, engine=engine, out=OnlyDLPack(out))  # type: ignore[arg-type]
    torch.testing.assert_close(out, expected, rtol=0, atol=0)


@pytest.mark.parametrize("library", LIBRARIES)
def test_what_is_beside_the_image(library: str) -> None:
    """Masks and maps go from the host to the GPU, and not the other way without being asked."""
    image, mask, levels = edges(24, 25), some_valid(24, 25), levels_of(24, 25)
    settings: Any = {"model": "pm", "data_range": 255}
    expected = denoise(image, levels, mask=mask, engine="numpy", **settings)
    for sigma in (levels, given(levels, library)):
        for valid in (mask, given(mask, library)):
            found = denoise(given(image, library), sigma, mask=valid, **settings)
            close(on_host(found), expected)
    with pytest.raises(TypeError, match="is on a GPU, and the image is elsewhere"):
        denoise(image, given(levels, library), **settings)


@pytest.mark.parametrize("engine", ["numpy", "native"])
def test_engines_of_the_processor_are_asked_for(engine: str) -> None:
    tensor = torch.tensor(edges(24, 25), device="cuda")
    try:
        found = denoise(tensor, 20.0, data_range=255, engine=engine)
    except EngineUnavailableError:
        pytest.skip(f"the engine {engine} is not here")
    assert kind_of(found) == kind_of(tensor)
