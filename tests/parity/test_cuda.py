"""The kernels of the engine ``cuda``, run on the host: the reference, to the last digits.

On a GPU the same is done by ``tests/gpu``.
"""

from __future__ import annotations

import os
import subprocess
import sys
import warnings
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from emulated_gpu import COMPILER, EmulatedGpu
from hypothesis import given as for_all
from hypothesis import strategies as st
from numpy.typing import NDArray
from selection import some

from integrodiff import EngineUnavailableError, load_model
from integrodiff.engines import ENGINES, get_engine
from integrodiff.engines.cuda import has_kernels
from integrodiff.engines.cuda.blurs import short_kernels
from integrodiff.engines.cuda.process import PIXELS_AT_ONCE, CudaProcess, images_at_once
from integrodiff.engines.cuda.stages import StagedCudaProcess
from integrodiff.stages import (
    Coupling,
    Evolution,
    Exponential,
    HaarGradient,
    HigherDerivatives,
    Term,
    VolumeGradient,
    stable_step,
)
from integrodiff.stages.operators import derivative_operator

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(COMPILER is None, reason="needs a C++ compiler"),
]

Image = NDArray[np.floating[Any]]


def image(*shape: int, seed: int = 0) -> Image:
    """Noisy ramps and steps between 0 and 255."""
    rng = np.random.default_rng(seed)
    y, x = np.mgrid[: shape[-2], : shape[-1]]
    clean = 90 + 60 * (x > shape[-1] / 3) + 2.0 * y - 40 * ((x + 2 * y) % 29 < 9)
    return np.asarray(clean + rng.normal(0, 20, shape))


def term(
    order: int = 1,
    *,
    kind: Any = "tensor",
    integration: float = 0.0,
    mix: float = 0.0,
    contrasts: tuple[float, ...] = (9.0, 6.0, 4.0),
    flux: tuple[float, ...] = (0.3, 0.2, 0.4),
    coupling: tuple[float, ...] = (0.4, 1.0, 0.7),
) -> Term:
    return Term(
        coupling=Coupling(weights=coupling, kind=kind, integration_scale=integration, mix=mix),
        flux_weights=flux,
        diffusivity=Exponential(contrasts=contrasts),
        derivatives=HaarGradient(0.15) if order == 1 else HigherDerivatives(order),
    )


def evolution(*terms: Term, **more: Any) -> Evolution:
    """Three steps at scales of which one is no blur."""
    given = {"scales": (0.0, 0.8, 1.7), "tau": 0.1, "steps": 3, **more}
    return Evolution(schedule=(terms,), **given)


CASES = {
    "tensor": evolution(term()),
    "trace": evolution(term(kind="trace")),
    "integration": evolution(term(integration=1.2, mix=-0.3), pull=0.05),
    "two orders": evolution(term(integration=0.9), term(2, integration=2.5, flux=(0.0, 0.1, 0.2))),
    "high orders": evolution(
        term(2, kind="trace"),
        term(3, kind="trace", flux=(0.01, 0.02, 0.0)),
        term(4, kind="trace", integration=1.0, flux=(0.0, 0.02, 0.01)),
    ),
}


def run(process: CudaProcess, given: Image, gpu: EmulatedGpu) -> Image:
    state = process.start_on(given, gpu)
    state.advance()
    found: Image = state.image()
    return found


def reference(given: Image, evolution: Evolution, **more: Any) -> Image:
    found: Image = ENGINES["numpy"].evolve(given.astype(np.float64), evolution, **more)
    return found


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize(
    "shape",
    # One argument of several numbers.
    some(
        [[2, 1, 35, 41], [1, 3, 13, 9], [1, 1, 7], [1, 9, 1], [1, 1, 1]], [2, 1, 35, 41], [1, 9, 1]
    ),
)
def test_exact_steps_are_those_of_the_reference(
    case: str, shape: list[int], gpu: EmulatedGpu
) -> None:
    given = image(*shape)
    found = run(CudaProcess(CASES[case], exact=True), given, gpu)
    assert found == pytest.approx(reference(given, CASES[case]), abs=1e-10)


@pytest.mark.parametrize("case", some(["tensor", "two orders"], "two orders"))
def test_single_precision(case: str, gpu: EmulatedGpu) -> None:
    given = image(1, 2, 35, 41).astype(np.float32)
    found = run(CudaProcess(CASES[case], exact=True), given, gpu)
    assert found.dtype == np.float32
    assert found == pytest.approx(reference(given, CASES[case]), abs=1e-3)


@pytest.mark.parametrize("case", ["tensor", "two orders"])
def test_noise_that_varies(case: str, gpu: EmulatedGpu) -> None:
    given, levels = image(1, 2, 23, 19), np.linspace(0.4, 2.0, 23 * 19).reshape(23, 19)
    found = run(CudaProcess(CASES[case], exact=True, relative_noise=levels), given, gpu)
    expected = reference(given, CASES[case], relative_noise=levels)
    assert found == pytest.approx(expected, abs=1e-10)


@pytest.mark.parametrize("case", some(["integration", "high orders"], "integration"))
def test_long_kernels_go_along_the_axes(case: str, kernels: Path) -> None:
    gpu = EmulatedGpu(kernels, shared=48 * 1024)
    given = image(2, 1, 35, 41)
    wide = replace(CASES[case], scales=(0.0, 3.0, 6.0), tau=0.05)
    found = run(CudaProcess(wide, exact=True), given, gpu)
    assert {"smooth_rows", "smooth_axis"} <= set(gpu.launched)
    assert found == pytest.approx(reference(given, wide), abs=1e-10)


def test_more_taps_than_there_are_numbers_for(gpu: EmulatedGpu) -> None:
    count = 14
    scales = tuple(6.0 + 0.01 * n for n in range(count))
    many = term(contrasts=(9.0,) * count, flux=(0.1,) * count, coupling=(0.1,) * count)
    wide, given = evolution(many, scales=scales, steps=1), image(1, 13, 9)
    found = run(CudaProcess(wide, exact=True), given, gpu)
    assert {"scale_space", "smooth_axis"} <= set(gpu.launched)
    assert found == pytest.approx(reference(given, wide), abs=1e-10)


MASKED_SHAPE = (35, 41)
_WITHIN = np.indices(MASKED_SHAPE)
MASKS = {
    "random": np.random.default_rng(3).random(MASKED_SHAPE) < 0.8,
    # Far from it the fluxes of higher orders are as without a mask.
    "corner": ~((_WITHIN[0] < 4) & (_WITHIN[1] < 6)),
    "islands": (_WITHIN[0] % 3 == 1) & (_WITHIN[1] % 2 == 0) | (_WITHIN[0] > 20),
    "stripes": _WITHIN[1] % 7 != 3,
    "all": np.ones(MASKED_SHAPE, np.bool_),
    "none": np.zeros(MASKED_SHAPE, np.bool_),
}


def with_invalid(given: Image, mask: NDArray[np.bool_]) -> Image:
    """Put what must not count into the invalid pixels."""
    found = given.copy()
    found[..., ~mask] = np.resize([np.nan, np.inf, -1e30], np.count_nonzero(~mask))
    return found


def check_masked(
    process: Evolution,
    given: Image,
    mask: NDArray[np.bool_],
    gpu: EmulatedGpu,
    tolerance: float,
    levels: Image | None = None,
) -> None:
    image = with_invalid(given, mask)
    found = run(CudaProcess(process, mask=mask, relative_noise=levels), image, gpu)
    expected = reference(image, process, mask=mask, relative_noise=levels)
    np.testing.assert_array_equal(found[..., ~mask], image[..., ~mask])
    assert found.dtype == given.dtype
    assert found[..., mask] == pytest.approx(expected[..., mask], abs=tolerance)


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("kind", some(MASKS, "corner", "islands"))
def test_masks(case: str, kind: str, gpu: EmulatedGpu) -> None:
    check_masked(CASES[case], image(2, 1, *MASKED_SHAPE), MASKS[kind], gpu, 1e-10)
    walks = {"walk_there", "walk_back"}
    assert walks <= set(gpu.launched)
    assert not {"scale_space", "gather"} & set(gpu.launched)


@pytest.mark.parametrize("case", some(CASES, "integration"))
@pytest.mark.parametrize("kind", some(MASKS, "random"))
def test_masks_in_single_precision_with_channels_and_noise_that_varies(
    case: str, kind: str, gpu: EmulatedGpu
) -> None:
    mask = MASKS[kind]
    levels = np.where(mask, np.linspace(0.4, 2.0, mask.size).reshape(mask.shape), np.nan)
    given = image(1, 2, *MASKED_SHAPE).astype(np.float32)
    check_masked(CASES[case], given, mask, gpu, 1e-3, levels)


@pytest.mark.parametrize("case", some(CASES, "two orders"))
@pytest.mark.parametrize("size", [(1, 9), (9, 1), (1, 1), (130, 3)])
def test_masks_of_narrow_images(case: str, size: tuple[int, int], gpu: EmulatedGpu) -> None:
    mask = np.arange(size[0] * size[1]).reshape(size) % 5 != 2
    check_masked(CASES[case], image(3, *size), mask, gpu, 1e-10)


@pytest.mark.parametrize("more", [{}, {"integration": 1.3}, {"kind": "trace"}])
@pytest.mark.parametrize("dtype", some([np.float32, np.float64], np.float32))
def test_masks_of_volumes(more: dict[str, Any], dtype: Any, gpu: EmulatedGpu) -> None:
    shapes: list[tuple[int, ...]] = [(2, 1, 7, 11, 35), (1, 2, 13, 3, 5), (1, 1, 1, 4)]
    for shape in shapes:
        mask = np.random.default_rng(5).random(shape[-3:]) < 0.8
        levels = np.linspace(0.4, 2.0, mask.size).reshape(mask.shape)
        tolerance = 1e-3 if dtype == np.float32 else 1e-10
        given = image(*shape).astype(dtype)
        check_masked(volume(**more), given, mask, gpu, tolerance, levels)


def test_masks_and_many_long_blurs(gpu: EmulatedGpu) -> None:
    count = 12
    scales = tuple(2.0 + 0.2 * n for n in range(count))
    many = term(contrasts=(9.0,) * count, flux=(0.1,) * count, coupling=(0.1,) * count)
    wide = evolution(many, scales=scales, steps=1)
    for dtype, tolerance in ((np.float64, 1e-10), (np.float32, 1e-3)):
        given: Image = np.asarray(image(1, *MASKED_SHAPE), dtype)
        check_masked(wide, given, MASKS["random"], gpu, tolerance)


def test_nothing_flows_on_masks(gpu: EmulatedGpu) -> None:
    still = evolution(term(flux=(0.0, 0.0, 0.0)), scales=(0.5, 0.8, 1.7), pull=0.1)
    check_masked(still, image(2, *MASKED_SHAPE), MASKS["random"], gpu, 0.0)


def test_masks_on_a_gpu_with_little_memory_for_blocks(kernels: Path) -> None:
    gpu = EmulatedGpu(kernels, shared=48 * 1024)
    check_masked(CASES["trace"], image(1, *MASKED_SHAPE), MASKS["random"], gpu, 1e-10)
    mask = np.random.default_rng(5).random((7, 11, 35)) < 0.8
    check_masked(volume(), image(1, 7, 11, 35), mask, gpu, 1e-10)
    tiny = EmulatedGpu(kernels, shared=1024)
    with pytest.raises(ValueError, match="bytes of shared memory"):
        check_masked(CASES["trace"], image(1, *MASKED_SHAPE), MASKS["random"], tiny, 1e-10)


def test_masks_of_batches_in_parts_and_steps_in_parts(
    gpu: EmulatedGpu, monkeypatch: pytest.MonkeyPatch
) -> None:
    given, mask = image(5, 1, *MASKED_SHAPE), MASKS["random"]
    process = CudaProcess(CASES["integration"], mask=mask)
    whole = run(process, given, gpu)
    monkeypatch.setattr("integrodiff.engines.cuda.process.PIXELS_AT_ONCE", 2 * mask.size)
    state = process.start_on(with_invalid(given, mask), gpu)
    while state.step < state.steps:
        state.advance(1)
    assert np.array_equal(state.image()[..., mask], whole[..., mask])


@pytest.mark.parametrize("case", some([*CASES, "volume"], "two orders", "volume"))
def test_tasks_of_a_phase_do_not_depend_on_each_other_on_masks(case: str, kernels: Path) -> None:
    is_volume = case == "volume"
    evolved = volume() if is_volume else CASES[case]
    shape = (1, 2, 5, 14, 35) if is_volume else (1, 2, *MASKED_SHAPE)
    mask = np.random.default_rng(5).random(shape[2:]) < 0.8
    process, given = CudaProcess(evolved, mask=mask), image(*shape).astype(np.float32)
    forwards = run(process, given, EmulatedGpu(kernels))
    assert np.array_equal(run(process, given, EmulatedGpu(kernels, backwards=True)), forwards)


@pytest.mark.parametrize("case", some(["tensor", "two orders", "high orders"], "two orders"))
def test_tasks_of_a_phase_do_not_depend_on_each_other(case: str, kernels: Path) -> None:
    given = image(1, 2, 35, 41)
    process = CudaProcess(CASES[case], exact=True)
    forwards = run(process, given, EmulatedGpu(kernels))
    assert np.array_equal(run(process, given, EmulatedGpu(kernels, backwards=True)), forwards)


@pytest.mark.long
def test_kernels_stay_within_their_arrays(tmp_path: Path) -> None:
    assert COMPILER is not None
    found = subprocess.run(
        [COMPILER, "-print-file-name=libasan.so"], capture_output=True, text=True, check=True
    ).stdout.strip()
    if not Path(found).is_file():
        pytest.skip("the compiler has no AddressSanitizer")
    program = Path(__file__).parents[1] / "support" / "kernels_within_arrays.py"
    checked = subprocess.run(
        [sys.executable, str(program), str(tmp_path)],
        env={
            **os.environ,
            "LD_PRELOAD": found,
            "ASAN_OPTIONS": "detect_leaks=0",
            "PYTHONMALLOC": "malloc",
        },
        capture_output=True,
        text=True,
        check=False,
    )
    assert checked.returncode == 0, checked.stderr[-3000:]
    assert int(checked.stdout.split()[0]) >= 130


def volume(**more: Any) -> Evolution:
    operator = VolumeGradient(0.2, (2.0, 1.0, 1.5), units=(1.0, 1.0, 1.2), twists=(0.5, 0.0, 0.3))
    one = replace(term(**more), derivatives=operator)
    return evolution(one, spacing=(2.0, 1.0, 1.5), pull=0.02, tau=0.05)


@pytest.mark.parametrize("more", [{}, {"integration": 1.3}, {"kind": "trace"}])
@pytest.mark.parametrize("shape", [(2, 1, 7, 11, 35), (1, 2, 3, 9, 5), (1, 1, 1, 4)])
def test_volumes(more: dict[str, Any], shape: tuple[int, ...], gpu: EmulatedGpu) -> None:
    given, process = image(*shape), volume(**more)
    found = run(CudaProcess(process, exact=True), given, gpu)
    assert found == pytest.approx(reference(given, process), abs=1e-10)
    levels = np.linspace(0.4, 2.0, given[0, 0].size if given.ndim > 4 else given[0].size)
    levels = levels.reshape(shape[-3:])
    found = run(CudaProcess(process, exact=True, relative_noise=levels), given, gpu)
    expected = reference(given, process, relative_noise=levels)
    assert found == pytest.approx(expected, abs=1e-10)


@for_all(batch=st.integers(0, 200_000), pixels=st.integers(1, 2**25), planes=st.integers(1, 4000))
def test_parts_of_a_batch_fit(batch: int, pixels: int, planes: int) -> None:
    """Into memory, and into the last axis of a grid, whose limit the emulated GPU checks, too."""
    found = images_at_once(batch, pixels * planes, planes)
    if batch == 0:
        assert found == 0
        return
    assert 1 <= found <= batch
    if found > 1:
        assert found * pixels * planes <= PIXELS_AT_ONCE
        assert found * max(3, planes) < 2**16
    parts = -(-batch // found)
    assert parts == 1 or (parts - 1) * found < batch  # no part is empty


@pytest.mark.long
def test_very_many_tiny_images(gpu: EmulatedGpu) -> None:
    given, process = image(22_000, 1, 2, 3), CudaProcess(CASES["integration"])
    found = run(process, given, gpu)
    assert np.array_equal(found[-3:], run(process, given[-3:], gpu))


def test_batches_in_parts_and_steps_in_parts(
    gpu: EmulatedGpu, monkeypatch: pytest.MonkeyPatch
) -> None:
    given, process = image(5, 1, 12, 14), CudaProcess(CASES["integration"])
    whole = run(process, given, gpu)
    monkeypatch.setattr("integrodiff.engines.cuda.process.PIXELS_AT_ONCE", 2 * 12 * 14)
    state = process.start_on(given, gpu)
    while state.step < state.steps:
        state.advance(1)
    assert np.array_equal(state.image(), whole)
    assert np.array_equal(run(process, given[3:4], gpu), whole[3:4])


@pytest.mark.parametrize("model", some(["pm", "eed", "iid", "iad", "iad-fast"], "eed"))
def test_shortcuts_change_little(model: str, gpu: EmulatedGpu) -> None:
    given = image(1, 40, 44).astype(np.float32)
    process = load_model(model).evolution(20.0)
    found = run(CudaProcess(process), given, gpu)
    assert found == pytest.approx(reference(given, process), abs=0.05)


@pytest.mark.parametrize("model", ["iad", "iad-full", "iad-plus", "iad-deep", "iad-orders"])
def test_the_step_is_within_the_bound_for_kernels_that_are_cut(model: str) -> None:
    """With D = I a step is diagonal under the DCT, with eigenvalues that must not exceed two."""
    process = load_model(model).evolution(40.0)
    at_bound = replace(process, tau=stable_step(process))
    short = short_kernels(at_bound)
    p = 1 - np.cos(np.linspace(0, np.pi, 257))
    frequencies = np.linspace(0, np.pi, 257)
    largest = 0.0
    for terms in short.evolution.schedule:
        total = np.zeros((257, 257))
        for one in terms:
            for weight, (taps, _) in zip(one.flux_weights, short.blurs, strict=True):
                distances = np.arange(1, len(taps))
                along = taps[0] + 2 * np.cos(np.outer(frequencies, distances)) @ taps[1:]
                symbol = one.derivatives.symbol(0.0, anisotropic=True)
                squared = np.outer(along, along) ** 2
                total += float(weight) * squared * symbol.value(p[:, None], p[None, :])
        largest = max(largest, float(total.max()))
    assert float(short.evolution.tau) * largest <= 2


def test_what_there_are_kernels_for() -> None:
    other = replace(term(), derivatives=derivative_operator(discretisation="nonnegativity"))
    assert not has_kernels(evolution(other))
    many = term(contrasts=(1.0,) * 17, flux=(0.1,) * 17, coupling=(1.0,) * 17)
    assert not has_kernels(evolution(many, scales=tuple(float(n) for n in range(17))))
    assert all(map(has_kernels, CASES.values()))
    assert has_kernels(volume())
    mask, cuda = MASKS["random"], ENGINES["cuda"]
    assert isinstance(cuda.prepare(CASES["tensor"], mask=mask), CudaProcess)
    assert isinstance(cuda.prepare(volume(), mask=np.ones((3, 3, 3), np.bool_)), CudaProcess)
    assert isinstance(cuda.prepare(evolution(other), mask=mask), StagedCudaProcess)


@pytest.mark.skipif(ENGINES["cuda"].unavailable() is None, reason="there is a GPU")
def test_without_a_gpu_the_message_says_what_to_do() -> None:
    with pytest.raises(EngineUnavailableError, match=r"GPU|CuPy"):
        get_engine("cuda")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert get_engine("auto").name != "cuda"


def test_integration_along_one_axis_alone(gpu: EmulatedGpu) -> None:
    """Kernels of one tap along rows and columns: J is smoothed in place by a single pass."""
    spacing = (1.0, 200.0, 200.0)
    one = Term(
        coupling=Coupling(weights=(1.0,), integration_scale=1.0),
        flux_weights=(1.0,),
        diffusivity=Exponential(contrasts=(8.0,)),
        derivatives=VolumeGradient(spacing=spacing),
    )
    evolution = Evolution(scales=(0.5,), schedule=((one,),), tau=0.1, steps=2, spacing=spacing)
    given = np.random.default_rng(0).uniform(0, 100, (1, 1, 6, 5, 7))
    process = CudaProcess(evolution)
    assert [len(taps) for taps in process.kernels(np.float64).integrations[0][0]] == [6, 1, 1]
    found = run(process, given, gpu)
    np.testing.assert_allclose(found, reference(given, process.evolution), rtol=0, atol=5e-3)
