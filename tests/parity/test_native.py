"""The compiled engine: the reference's numbers for every model, from any thread or process."""

from __future__ import annotations

import multiprocessing
import os
import platform
import shutil
import subprocess
import sys
import threading
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from cases import COMPACT, MODELS, noise_map
from numpy.typing import NDArray
from selection import some

from integrodiff import SlowEngineWarning, denoise, engines, load_model
from integrodiff.engines import ENGINES, get_engine, thread_count
from integrodiff.engines.native import NativeEngine, NativeProcess
from integrodiff.engines.shortcuts import shortcuts
from integrodiff.engines.torch import TorchEngine
from integrodiff.models import DeepDiffusion
from integrodiff.models.deep import Channel

NATIVE = NativeEngine()
pytestmark = pytest.mark.skipif(NATIVE.unavailable() is not None, reason=str(NATIVE.unavailable()))

CASES: dict[str, Any] = {
    **MODELS,
    **{
        f"{name}, nonnegativity": replace(MODELS[name], discretisation="nonnegativity", tau=0.1)
        for name in ("pm", "eed", "iid-full", "iad-reduced")
    },
    "compact": replace(COMPACT, pull=0.05, contrast_growth=1.1, exponent_drift=0.7),
    "deep": DeepDiffusion(
        channels=(Channel(1, 0.0), Channel(2, 0.6), Channel(3, 0.6), Channel(4, 1.5)),
        steps=2,
        weights=(0.3, 0.1, 0.05, 0.0, 0.2, 0.1, 0.02, 0.02),
        contrasts=(1.0,) * 8,
        weight_exponents=(0.2,) * 4,
        contrast_exponents=(0.1,) * 4,
        couplings=(0.5,) * 4,
    ),
}


INSTRUCTION_SETS = NATIVE.instruction_sets() if NATIVE.unavailable() is None else []


@pytest.mark.parametrize("instruction_set", INSTRUCTION_SETS)
@pytest.mark.parametrize(
    "shape", [(1, 1, 1), (1, 1, 7), (1, 6, 1), (2, 2, 3), (3, 17, 70), (1, 70, 5)]
)
@pytest.mark.parametrize("name", CASES)
def test_equals_the_reference(name: str, shape: tuple[int, ...], instruction_set: str) -> None:
    image = np.random.default_rng(0).uniform(0, 255, shape)
    evolution = CASES[name].evolution(25.0)
    expected = ENGINES["numpy"].evolve(image, evolution)
    for threads in (1, 3):
        process = NativeProcess(
            evolution, exact=True, threads=threads, instruction_set=instruction_set
        )
        np.testing.assert_allclose(process(image), expected, atol=1e-9, rtol=0)
        single = process(image.astype(np.float32))
        assert single.dtype == np.float32
        np.testing.assert_allclose(single, expected, atol=1e-3, rtol=0)


@pytest.mark.slow
@pytest.mark.parametrize("instruction_set", INSTRUCTION_SETS)
@pytest.mark.parametrize("name", ["iad-fast", "iad-plus", "iad-deep"])
def test_tolerances_from_the_lowest_to_the_highest_noise(
    name: str, instruction_set: str, photograph: NDArray[np.float64]
) -> None:
    """Single precision and shortcuts at the worst pixel, also where the noise differs."""
    clean = photograph[None]
    levels = noise_map(clean.shape)  # a quarter to four: from 2 to 32, and from 6 to 100
    cases = [(2.0, None), (20.0, None), (100.0, None), (8.0, levels), (25.0, levels)]
    for level, relative in cases:
        spread = level if relative is None else level * relative
        noisy = clean + spread * np.random.default_rng(0).normal(size=clean.shape)
        exact, short = (
            NativeProcess(
                load_model(name).evolution(level),
                exact=how,
                threads=1,
                relative_noise=relative,
                instruction_set=instruction_set,
            )
            for how in (True, False)
        )
        expected, single = exact(noisy), noisy.astype(np.float32)
        assert np.abs(exact(single) - expected).max() < 0.005
        assert np.abs(short(single) - expected).max() < (0.03 if relative is None else 0.05)


@pytest.mark.long
@pytest.mark.parametrize("instruction_set", INSTRUCTION_SETS)
@pytest.mark.parametrize("exact", [True, False])
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_threads_and_division_of_steps_change_no_bit(
    instruction_set: str, exact: bool, dtype: Any
) -> None:
    """Also on narrow images, whose rows are shorter than a block of vectors."""
    rng = np.random.default_rng(4)
    shapes = [(1, 130, 9), (2, 200, 3), (1, 67, 41), (1, 64, 1), (1, 90, 70)]
    for shape in shapes:
        image = rng.normal(128, 40, shape).astype(dtype)
        evolution = load_model("iad").evolution(30.0)

        def process(threads: int, evolution: Any = evolution) -> NativeProcess:
            return NativeProcess(
                evolution, exact=exact, threads=threads, instruction_set=instruction_set
            )

        expected = process(1)(image)
        for threads in (2, 3, 5):
            np.testing.assert_array_equal(process(threads)(image), expected)
        state = process(2).start(image)
        for count in (1, 1, 3, 0, None):
            state.advance(count)
        np.testing.assert_array_equal(state.image(), expected)


@pytest.mark.parametrize("instruction_set", INSTRUCTION_SETS)
@pytest.mark.parametrize("name", ["iad", "iid"])
@pytest.mark.parametrize("exact", [True, False])
def test_extreme_contrasts_stay_finite(instruction_set: str, exact: bool, name: str) -> None:
    image = np.zeros((1, 40, 40), np.float32)
    image[0, 20:] = 2.55e8
    evolution = load_model(name).evolution(25.0)
    process = NativeProcess(evolution, exact=exact, threads=1, instruction_set=instruction_set)
    found = process(image)
    assert np.isfinite(found).all()
    assert np.abs(found - image).max() < 1e-3 * 2.55e8


@pytest.mark.parametrize("exact", [True, False])
def test_subnormal_numbers_are_flushed_in_every_thread_of_a_run_and_nowhere_else(
    exact: bool,
) -> None:
    if platform.machine() not in ("x86_64", "AMD64", "aarch64", "arm64"):
        pytest.skip("this processor has no such mode")
    image = np.full((1, 256, 300), 1e-40, np.float32)
    process = NativeProcess(load_model("iad").evolution(25.0), exact=exact, threads=3)
    assert not process(image).any()
    assert (np.full(4, 1e-40, np.float32) * np.float32(0.5) > 0).all()


def with_integration(evolution: Any, scale: float) -> Any:
    """Return the evolution with an integration scale in all its terms."""
    return replace(
        evolution,
        schedule=tuple(
            tuple(
                replace(term, coupling=replace(term.coupling, integration_scale=scale))
                for term in terms
            )
            for terms in evolution.schedule
        ),
    )


@pytest.mark.slow
@pytest.mark.parametrize("instruction_set", INSTRUCTION_SETS)
@pytest.mark.parametrize("shape", [(1, 1, 1), (1, 1, 7), (2, 6, 3), (1, 70, 5), (3, 17, 70)])
@pytest.mark.parametrize(
    "name",
    some(
        ["iad-reduced", "iid-full", "iad-reduced, nonnegativity", "compact", "deep"],
        "iad-reduced",
        "deep",
    ),
)
def test_integration_scale_as_in_the_reference(
    name: str, shape: tuple[int, ...], instruction_set: str
) -> None:
    image = np.random.default_rng(0).uniform(0, 255, shape)
    for scale in (0.8, 4.0):
        evolution = with_integration(CASES[name].evolution(25.0), scale)
        for levels in (None, noise_map(shape)):
            expected = ENGINES["numpy"].evolve(image, evolution, relative_noise=levels)
            process = NativeProcess(
                evolution,
                exact=True,
                threads=2,
                relative_noise=levels,
                instruction_set=instruction_set,
            )
            np.testing.assert_allclose(process(image), expected, atol=1e-9, rtol=0)


@pytest.mark.long
@pytest.mark.parametrize("instruction_set", INSTRUCTION_SETS)
@pytest.mark.parametrize("name", ["iad", "iad-power"])
@pytest.mark.parametrize("shape", [(1, 1, 1), (1, 2, 2), (1, 1, 40), (2, 9, 33), (1, 140, 66)])
def test_integration_scale_in_the_fused_step(
    name: str, shape: tuple[int, ...], instruction_set: str
) -> None:
    image = np.random.default_rng(0).uniform(0, 255, shape)
    for scale in (0.6, 2.5):
        evolution = with_integration(load_model(name).evolution(25.0), scale)
        assert shortcuts(evolution) is not None
        for levels in (None, noise_map(shape)):
            expected = NATIVE.evolve(image, evolution, exact=True, relative_noise=levels)
            for threads in (1, 3):
                process = NativeProcess(
                    evolution,
                    exact=False,
                    threads=threads,
                    relative_noise=levels,
                    instruction_set=instruction_set,
                )
                np.testing.assert_allclose(process(image), expected, atol=0.05, rtol=0)


def test_a_wide_integration_scale_is_not_for_the_fused_step() -> None:
    evolution = with_integration(load_model("iad").evolution(25.0), 12.0)
    assert shortcuts(evolution) is None
    image = np.random.default_rng(0).uniform(0, 255, (1, 30, 40))
    expected = NATIVE.evolve(image, evolution, exact=True)
    np.testing.assert_allclose(NATIVE.evolve(image, evolution), expected, atol=0.05, rtol=0)


def test_unknown_instruction_set() -> None:
    evolution = load_model("iad").evolution(25.0)
    process = NativeProcess(evolution, exact=True, threads=1, instruction_set="mmx")
    with pytest.raises(ValueError, match="'mmx' does not run here: expected one of baseline"):
        process(np.ones((1, 3, 3)))


def test_a_run_keeps_its_image_and_counts_its_steps() -> None:
    image = np.random.default_rng(5).uniform(0, 255, (1, 30, 40))
    process = NATIVE.prepare(load_model("iad").evolution(25.0), threads=2)
    state = process.start(image)
    np.testing.assert_array_equal(state.image(), image)
    state.advance(3)
    other = process.start(image)
    other.advance()
    partly = state.image()
    state.advance()
    np.testing.assert_array_equal(state.image(), other.image())
    assert not np.array_equal(partly, other.image())
    with pytest.raises(ValueError, match="cannot take 1 steps"):
        state.advance(1)


def _advanced_after_fork(connection: Any, state: Any) -> None:
    try:
        state.advance(1)
    except RuntimeError as error:
        connection.send(str(error))
    image = np.random.default_rng(3).uniform(0, 255, (1, 40, 50))
    connection.send(_total(image))


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
@pytest.mark.filterwarnings("ignore:This process:DeprecationWarning")
def test_a_fork_during_a_run() -> None:
    """The child cannot go on with the run, can start others, and ends."""
    image = np.random.default_rng(3).uniform(0, 255, (1, 40, 50))
    state = NATIVE.prepare(load_model("iad").evolution(25.0), threads=3).start(image)
    state.advance(1)
    ours, theirs = multiprocessing.Pipe()
    context = multiprocessing.get_context("fork")
    child = context.Process(target=_advanced_after_fork, args=(theirs, state))
    child.start()
    assert ours.poll(30)
    assert "start another" in ours.recv()
    assert ours.poll(30)
    assert ours.recv() == _total(image)
    child.join(30)
    assert child.exitcode == 0
    state.advance()
    assert np.isfinite(state.image()).all()


@pytest.mark.parametrize("exact", [True, False])
def test_batches_layouts_and_callbacks(exact: bool) -> None:
    def run(image: Any, callback: Any = None) -> Any:
        return NATIVE.evolve(image, evolution, callback, exact=exact)

    images = np.random.default_rng(1).uniform(0, 255, (2, 3, 1, 9, 8))
    evolution = CASES["iad-reduced"].evolution(25.0)
    before = images.copy()
    seen: list[int] = []
    found = run(images, lambda step, image: seen.append(step))
    assert seen == [1, 2, 3]
    np.testing.assert_array_equal(images, before)
    np.testing.assert_array_equal(run(images), found)
    np.testing.assert_array_equal(found[1, 2], run(images[1, 2]))
    backwards = run(images[..., ::-1, ::-1])
    np.testing.assert_allclose(backwards[..., ::-1, ::-1], found, atol=1e-9)


@pytest.mark.parametrize("exact", [True, False])
def test_many_threads_at_once(exact: bool) -> None:
    images = np.random.default_rng(2).uniform(0, 255, (6, 1, 40, 50))
    process = NATIVE.prepare(load_model("iad").evolution(25.0), exact=exact, threads=2)
    expected = [process(image) for image in images]
    found: dict[int, Any] = {}

    def work(number: int) -> None:
        found[number] = process(images[number])

    threads = [threading.Thread(target=work, args=(number,)) for number in range(len(images))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(timeout=60)
    for number, result in enumerate(expected):
        np.testing.assert_array_equal(found[number], result)


def _total(image: Any) -> float:
    return float(ENGINES["native"].evolve(image, load_model("iad").evolution(25.0)).sum())


@pytest.mark.slow
@pytest.mark.parametrize("method", ["fork", "spawn"])
@pytest.mark.filterwarnings("ignore:This process:DeprecationWarning")
def test_forked_and_spawned_processes(method: str) -> None:
    if method not in multiprocessing.get_all_start_methods():
        pytest.skip(f"no start method {method} here")
    image = np.random.default_rng(3).uniform(0, 255, (1, 40, 50))
    expected = _total(image)
    with multiprocessing.get_context(method).Pool(2) as pool:
        found = pool.map_async(_total, [image, image]).get(timeout=60)
    assert found == [expected, expected]


INTERRUPTED = """
import signal, threading
from dataclasses import replace
import numpy as np
from integrodiff import load_model
from integrodiff.engines import ENGINES

# Programs in the background start with the signal ignored, and so do their children.
signal.signal(signal.SIGINT, signal.default_int_handler)
# Ready to run: the signal is to come while the compiled steps run, and not before.
process = ENGINES["native"].prepare(replace(load_model("iad").evolution(25.0), steps=10_000))
threading.Timer(0.2, signal.raise_signal, [signal.SIGINT]).start()
try:
    process(np.zeros((1, 800, 800), np.float32))
except KeyboardInterrupt:
    print("interrupted")
"""


@pytest.mark.slow
def test_interrupt_from_the_keyboard() -> None:
    """All steps would take minutes, which the time limit does not allow for."""
    command = [sys.executable, "-c", INTERRUPTED]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert done.stdout == "interrupted\n", done.stderr


def test_number_of_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("INTEGRODIFF_THREADS", raising=False)
    assert thread_count() == engines.cpu_count()
    monkeypatch.setenv("INTEGRODIFF_THREADS", "5")
    assert thread_count() == 5
    assert np.all(NATIVE.evolve(np.ones((1, 3, 3)), CASES["pm"].evolution(25.0), threads=2) == 1)
    with pytest.raises(ValueError, match="threads must be"):
        NATIVE.evolve(np.ones((1, 3, 3)), CASES["pm"].evolution(25.0), threads=0)
    for wrong in ("0", "-1", "two", ""):
        monkeypatch.setenv("INTEGRODIFF_THREADS", wrong)
        with pytest.raises(ValueError, match="INTEGRODIFF_THREADS must be"):
            thread_count()


def test_without_it_the_slow_engine_runs_and_says_so_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(TorchEngine, "has_gpu", lambda _: False)
    monkeypatch.setattr(NativeEngine, "unavailable", lambda _: "a reason")
    engines._warn_of_slow_engine.cache_clear()
    with pytest.warns(SlowEngineWarning, match="a reason. Running the engine 'numpy'"):
        assert get_engine("auto").name == "numpy"
    assert get_engine("auto").name == "numpy"  # a second warning would be an error
    engines._warn_of_slow_engine.cache_clear()


@pytest.mark.parametrize("shape", [(1, 1, 1), (1, 1, 7), (1, 6, 1), (2, 2, 3), (3, 17, 70)])
@pytest.mark.parametrize("name", CASES)
def test_noise_of_different_levels_as_in_the_reference(name: str, shape: tuple[int, ...]) -> None:
    image = np.random.default_rng(0).uniform(0, 255, shape)
    evolution, levels = CASES[name].evolution(25.0), noise_map(shape)
    expected = ENGINES["numpy"].evolve(image, evolution, relative_noise=levels)
    assert np.prod(shape) == 1 or not np.array_equal(
        expected, ENGINES["numpy"].evolve(image, evolution)
    )
    for threads in (1, 3):
        for dtype, tolerance in ((np.float64, 1e-9), (np.float32, 1e-3)):
            found = NATIVE.evolve(
                image.astype(dtype), evolution, exact=True, threads=threads, relative_noise=levels
            )
            np.testing.assert_allclose(found, expected, atol=tolerance, rtol=0)


@pytest.mark.slow
@pytest.mark.parametrize(
    "name",
    some(["pm", "eed", "iid", "iad", "iad-plus", "iad-fast", "iad-deep", "iad-full"], "iad-fast"),
)
def test_shortcuts_with_noise_of_different_levels(
    name: str, photograph: NDArray[np.float64]
) -> None:
    image = np.tile(photograph[:40], (1, 1, 22))[:, :, :2100]  # several strips of columns
    levels = 4.0 ** np.sin(np.linspace(0, 9, 2100)) * np.ones((image.shape[1], 1))
    noisy = image + 20 * levels * np.random.default_rng(0).normal(size=image.shape)
    evolution = load_model(name).evolution(20.0)
    # A model at its bound takes a step that is smaller by the certificate of the shortcuts.
    process = NativeProcess(evolution, exact=False, threads=1, relative_noise=levels)
    same_step = replace(evolution, tau=process.evolution.tau)
    assert 0.998 < same_step.tau / evolution.tau <= 1
    expected = ENGINES["numpy"].evolve(noisy, same_step, relative_noise=levels)
    for threads in (1, 2):
        found = NATIVE.evolve(
            noisy.astype(np.float32), evolution, threads=threads, relative_noise=levels
        )
        np.testing.assert_allclose(found, expected, atol=0.05, rtol=0)


def test_map_of_noise_levels_for_another_shape() -> None:
    evolution = CASES["pm"].evolution(25.0)
    with pytest.raises(ValueError, match="another shape"):
        NATIVE.evolve(np.ones((1, 5, 6)), evolution, relative_noise=np.ones((6, 5)))


TRAINABLE = [name for name in CASES if name != "deep" and "nonneg" not in name]


@pytest.mark.slow
@pytest.mark.parametrize("name", some(TRAINABLE, "pm", "iad-reduced", "compact"))
@pytest.mark.parametrize("double", some([True, False], True))
def test_tangents_equal_those_of_pytorch(name: str, double: bool) -> None:
    pytest.importorskip("torch")
    from integrodiff.learning import CleanImages, Parameterisation, TorchLineariser
    from integrodiff.learning.native import NativeLineariser

    walks = np.random.default_rng(1).normal(0, 9, (3, 17, 22)).cumsum(2) + 128
    images = CleanImages(walks.astype(np.float32), tuple("abc"), "random walks")
    fixed = ["decays[3]"] if name == "compact" else []
    parameterisation = Parameterisation(CASES[name], (20.0, 50.0), fixed)
    point = parameterisation.vector(CASES[name])
    items = [(0, 20.0), (1, 50.0), (2, 20.0)]
    expected = TorchLineariser(parameterisation, images, device="cpu", double=True).linearise(
        point, items
    )
    found = NativeLineariser(parameterisation, images, double=double).linearise(point, items)
    for part in ("error", "gradient", "curvature"):
        wanted = getattr(expected, part)
        scale = np.abs(wanted).max()
        np.testing.assert_allclose(getattr(found, part) / scale, wanted / scale, atol=1e-6)


FUSED = [name for name in TRAINABLE if name not in ("eed", "compact")]


@pytest.mark.parametrize("name", FUSED)
def test_differences_are_nearly_the_tangents(name: str) -> None:
    from integrodiff.learning import CleanImages, Parameterisation
    from integrodiff.learning.native import DifferenceLineariser, NativeLineariser

    walks = np.random.default_rng(1).normal(0, 9, (2, 33, 47)).cumsum(2) + 128
    images = CleanImages(walks.astype(np.float32), tuple("ab"), "random walks")
    parameterisation = Parameterisation(CASES[name], (20.0, 50.0))
    point = parameterisation.vector(CASES[name])
    items = [(0, 20.0), (1, 50.0)]
    expected = NativeLineariser(parameterisation, images, double=True).linearise(point, items)
    found = DifferenceLineariser(parameterisation, images).linearise(point, items)
    np.testing.assert_allclose(found.error, expected.error, rtol=1e-3)
    for part in ("gradient", "curvature"):
        wanted = getattr(expected, part)
        scale = np.abs(wanted).max()
        np.testing.assert_allclose(getattr(found, part) / scale, wanted / scale, atol=0.02)


@pytest.mark.parametrize(("sigma", "scales", "last_flow"), [(10.0, 7, True), (25.0, 8, False)])
def test_differences_leave_out_the_same_on_both_sides(
    sigma: float, scales: int, last_flow: bool
) -> None:
    # A parameter decides how much of the coarse scales is negligible: no jump may come from that.
    evolution = load_model("iad").evolution(sigma)
    process = NativeProcess(evolution, exact=False, threads=1)
    other = load_model("iad-power").evolution(sigma)  # of which nothing is negligible
    shared = process.like(other)
    for one in (process, shared):
        assert len(one.evolution.scales) == scales
        flows = [terms[0].flux_weights[-1] for terms in one.evolution.schedule]
        assert any(flows) == last_flow
    image = np.random.default_rng(0).normal(128, 40, (1, 40, 40)).astype(np.float32)
    assert np.isfinite(shared(image)).all()
    np.testing.assert_array_equal(process.like(evolution)(image), process(image))


def test_tangents_at_the_bound_of_the_step_size() -> None:
    from integrodiff.learning import CleanImages, Parameterisation
    from integrodiff.learning.native import DifferenceLineariser, NativeLineariser

    images = CleanImages(np.ones((1, 9, 9), np.float32), ("a",), "a flat image")
    parameterisation = Parameterisation(CASES["pm"], (20.0,))
    point = parameterisation.vector(CASES["pm"])
    point[-1] = 5.0  # far beyond the bound
    for lineariser in (NativeLineariser, DifferenceLineariser):
        found = lineariser(parameterisation, images).linearise(point, [(0, 20.0)])
        assert found.gradient[0, -1] == 0
        assert found.gradient[0, 0] != 0


@pytest.mark.slow
@pytest.mark.parametrize(
    "name", some(["compact", *(name for name in CASES if "nonneg" in name)], "compact")
)
def test_differences_are_nearly_the_tangents_of_pytorch(name: str) -> None:
    pytest.importorskip("torch")
    from integrodiff.learning import CleanImages, Parameterisation, TorchLineariser
    from integrodiff.learning.native import DifferenceLineariser

    walks = np.random.default_rng(1).normal(0, 9, (1, 33, 47)).cumsum(2) + 128
    images = CleanImages(walks.astype(np.float32), ("a",), "a random walk")
    fixed = ["decays[3]"] if name == "compact" else []
    parameterisation = Parameterisation(CASES[name], (20.0,), fixed)
    point = parameterisation.vector(CASES[name])
    by_torch = TorchLineariser(parameterisation, images, device="cpu", double=True)
    expected = by_torch.linearise(point, [(0, 20.0)])
    found = DifferenceLineariser(parameterisation, images).linearise(point, [(0, 20.0)])
    np.testing.assert_allclose(found.error, expected.error, rtol=1e-5)
    for part in ("gradient", "curvature"):
        wanted = getattr(expected, part)
        scale = np.abs(wanted).max()
        np.testing.assert_allclose(getattr(found, part) / scale, wanted / scale, atol=0.02)


def test_tangents_are_refused_where_there_are_none() -> None:
    from integrodiff.learning import CleanImages, Parameterisation
    from integrodiff.learning.native import NativeLineariser

    images = CleanImages(np.ones((1, 9, 9), np.float32), ("a",), "a flat image")
    model = CASES["eed, nonnegativity"]
    with pytest.raises(ValueError, match="for the Haar scheme"):
        NativeLineariser(Parameterisation(model, (20.0,)), images)


@pytest.mark.long
@pytest.mark.parametrize(
    ("source", "options"), [("native_check.cpp", ()), ("steps_alone.cpp", ("-fno-exceptions",))]
)
def test_programs_of_the_checks_compile(source: str, options: tuple[str, ...]) -> None:
    """The second: the steps need neither exceptions nor threads."""
    compiler = shutil.which("c++")
    if compiler is None:
        pytest.skip("needs a C++ compiler")
    path = Path(__file__).parents[2] / "native" / "checks" / source
    checked = [compiler, "-std=c++17", "-Wall", "-Wextra", "-Wno-psabi", "-Werror", "-fsyntax-only"]
    subprocess.run([*checked, *options, str(path)], check=True)


def limited(code: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Run Python code in a child that has loaded the engine and limits itself."""
    program = f"""
import os, resource, sys
from dataclasses import replace
import numpy as np
from integrodiff import load_model
from integrodiff.engines import ENGINES
evolution = replace(load_model("iad").evolution(25.0), steps=2)
process = ENGINES["native"].prepare(evolution, threads=8)
image = np.random.default_rng(0).normal(128, 30, (1, 1600, 1600)).astype(np.float32)
{code}
"""
    command = [sys.executable, "-c", program, *arguments]
    environment = {**os.environ, "OPENBLAS_NUM_THREADS": "1"}
    return subprocess.run(
        command, capture_output=True, text=True, timeout=120, env=environment, check=False
    )


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="needs the limits of Linux")
def test_fewer_threads_where_no_more_can_start() -> None:
    code = """
expected = process(image)
if os.getuid() == 0:
    os.setgroups([])
    os.setgid(65534)
    os.setuid(65534)  # the limit does not hold for root
resource.setrlimit(resource.RLIMIT_NPROC, (1, 1))
state = process.start(image)
print(state._runs[0].threads)
state.advance()
assert np.array_equal(state.image(), expected)
"""
    child = limited(code)
    if "PermissionError" in child.stderr:
        pytest.skip("cannot become another user")
    assert child.returncode == 0, child.stderr
    assert int(child.stdout) == 1


ONE_NUMBER = r"""
#define INTEGRODIFF_ISA baseline
#include "native/steps/volume_fused.cpp"
#include <cmath>
using namespace integrodiff;
int main() {
    for (Index width : {1, 4, 5}) {
        const VolumeShape shape{1, 2, 3, width};
        std::vector<double> in(6 * width), out(6 * width);
        unsigned state = 1;
        for (double &x : in) {
            state = state * 1103515245u + 12345u;
            x = (state >> 16) % 256;
        }
        FusedVolumeProcess process{};
        for (int axis = 0; axis < 3; ++axis) {
            process.fine[axis] = {{0.6, 0.2}};
            process.spacing[axis] = 1;
        }
        process.theta = 0.25;
        Term term;
        term.coupling_weights = {1};
        term.flux_weights = {1};
        term.contrasts = {20};
        Schedule schedule{{term}};
        Serial serial;
        Buffer<double> memory;
        const VolumeStart<double> start{shape,   in.data(), &schedule, 0.1,    {0.0},
                                        nullptr, &serial,   &memory,   nullptr};
        auto run = baseline::fused_volume_run<double>(process, start);
        run->advance(0);
        run->read(out.data());
        double change = 0;
        for (std::size_t k = 0; k < out.size(); ++k) change += out[k] - in[k];
        if (!(std::fabs(change) < 1e-9)) return 1;
    }
}
"""


@pytest.mark.slow
def test_volumes_where_a_vector_is_one_number(tmp_path: Path) -> None:
    """As compilers without GCC's vectors build them: the mean is preserved."""
    compiler = shutil.which("c++")
    if compiler is None:
        pytest.skip("there is no C++ compiler")
    shutil.copytree(Path(__file__).parents[2] / "native", tmp_path / "native")
    vectors = tmp_path / "native" / "simd" / "vectors.hpp"
    text = vectors.read_text()
    assert "defined(__GNUC__)" in text
    vectors.write_text(text.replace("defined(__GNUC__)", "0"))
    (tmp_path / "main.cpp").write_text(ONE_NUMBER)
    command = [compiler, "-std=c++17", "-O1", "-w", "main.cpp", "-o", "main"]
    subprocess.run(command, cwd=tmp_path, check=True)
    assert subprocess.run([tmp_path / "main"]).returncode == 0


@pytest.mark.parametrize("name", ["iad", "iad-plus", "iad-deep"])
def test_contrasts_beyond_the_precision_are_refused(name: str) -> None:
    """Otherwise flat parts diffuse as if there were no edge, and all numbers are finite."""
    image = np.random.default_rng(0).normal(0.5, 0.05, (48, 40)).astype(np.float32)
    settings: dict[str, Any] = {"data_range": 1, "model": name, "engine": "native", "threads": 1}
    for fill in (1e6, 2e6):
        image[:9] = fill
        assert np.abs(denoise(image, 0.05, **settings)[18:] - 0.5).max() < 1
    for fill in (2.2e6, 1e7, 1e10, 1e30):
        image[:9] = fill
        with pytest.raises(ValueError, match="too large to compute in float32"):
            denoise(image, 0.05, **settings)
    image[:9] = 1e10
    found = denoise(image.astype(np.float64), 0.05, **settings)
    assert np.abs(found[18:] - 0.5).max() < 1
    mask = np.ones(image.shape, np.bool_)
    mask[:9] = False
    assert np.abs(denoise(image, 0.05, mask=mask, **settings)[9:] - 0.5).max() < 1
