"""Engines agree with the reference on real and awkward images, and say why they cannot run."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from cases import MODELS, RUNNABLE_ENGINES, SIGMA, run
from numpy.typing import NDArray
from selection import some

from integrodiff import ENGINE_NAMES, MODEL_NAMES, EngineUnavailableError, denoise, load_model
from integrodiff.engines import ENGINES, get_engine
from integrodiff.engines.gpu import driver_has_gpu
from integrodiff.engines.torch import TorchEngine
from integrodiff.stages import Evolution

FAST_ENGINES = [name for name in RUNNABLE_ENGINES if name != "numpy"]
DOUBLE, SINGLE = 1e-9, 2e-3
# Some contrasts of the full model are a thousandth of the noise.
SINGLE_OF = {name: 5 * SINGLE if name == "iad-full" else SINGLE for name in MODEL_NAMES}
# Besides the crop of the fixture: edges and flat sky, the ground, and out-of-focus buildings.
CROPS = {"face": (80, 150), "coat": (200, 200), "grass": (390, 300), "tower": (230, 330)}


def awkward_images() -> dict[str, NDArray[np.float64]]:
    rng = np.random.default_rng(1)
    return {
        "random": rng.normal(128, 60, (33, 47)),
        "one row": rng.normal(128, 60, (1, 50)),
        "one column": rng.normal(128, 60, (50, 1)),
        "one pixel": np.array([[77.0]]),
        "two by two": rng.normal(128, 60, (2, 2)),
        "constant": np.full((9, 11), 200.0),
        "checkerboard": 255.0 * (np.indices((15, 16)).sum(axis=0) % 2),
        "spike": np.pad([[255.0]], 8),
    }


# The reference takes longest, so that it is computed once for all engines.


@pytest.mark.slow
@pytest.mark.parametrize(
    "kind", some(sorted(awkward_images()), "one pixel", "one row", "checkerboard", "random")
)
@pytest.mark.parametrize("model_name", MODEL_NAMES)
def test_agrees_with_the_reference(model_name: str, kind: str) -> None:
    image = awkward_images()[kind][None]
    evolution = load_model(model_name).evolution(SIGMA)
    reference = ENGINES["numpy"].evolve(image, evolution)
    for engine in FAST_ENGINES:
        double = ENGINES[engine].evolve(image, evolution, exact=True)
        np.testing.assert_allclose(double, reference, atol=DOUBLE, rtol=0, err_msg=engine)
        check_single_precision(engine, model_name, image, evolution, reference)


@pytest.mark.long
@pytest.mark.parametrize("sigma", [1.0, 10.0, 60.0])
@pytest.mark.parametrize("model_name", MODEL_NAMES)
def test_single_precision_on_a_photograph(
    model_name: str, sigma: float, photograph: NDArray[np.float64]
) -> None:
    noise = np.random.default_rng(0).normal(0, sigma, photograph.shape)
    evolution = load_model(model_name).evolution(sigma)
    for image in (photograph[None], (photograph + noise)[None]):
        reference = ENGINES["numpy"].evolve(image, evolution)
        for engine in RUNNABLE_ENGINES:
            check_single_precision(engine, model_name, image, evolution, reference)


@pytest.mark.long
@pytest.mark.parametrize("crop", sorted(CROPS))
@pytest.mark.parametrize("model_name", MODEL_NAMES)
def test_single_precision_where_the_noise_is_weak(model_name: str, crop: str) -> None:
    """The smaller the contrasts, the more do rounding errors of the gradient weigh."""
    from skimage.data import camera

    top, left = CROPS[crop]
    image = camera()[top : top + 110, left : left + 121].astype(np.float64)[None]
    # The deep model is trained from two on.
    evolution = load_model(model_name).evolution(2.0 if model_name == "iad-deep" else 1.0)
    reference = ENGINES["numpy"].evolve(image, evolution)
    for engine in RUNNABLE_ENGINES:
        check_single_precision(engine, model_name, image, evolution, reference)


def check_single_precision(
    engine: str, model_name: str, image: Any, evolution: Evolution, reference: Any
) -> None:
    single = ENGINES[engine].evolve(image.astype(np.float32), evolution, exact=True)
    atol = SINGLE_OF[model_name]
    np.testing.assert_allclose(single, reference, atol=atol, rtol=0, err_msg=engine)


@pytest.mark.parametrize("engine", RUNNABLE_ENGINES)
def test_nan_spreads_instead_of_vanishing(engine: str) -> None:
    """Engines themselves do not judge: a NaN must not turn into a number."""
    image = np.random.default_rng(0).normal(128, 30, (20, 21))
    image[3, 4] = np.nan
    for model in MODELS.values():
        result = run(model, engine, image)
        np.testing.assert_array_equal(np.isnan(result), np.isnan(run(model, "numpy", image)))
        assert np.isnan(result[3, 4])


@pytest.mark.parametrize("engine", RUNNABLE_ENGINES)
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_input_is_left_alone_and_layout_does_not_matter(engine: str, dtype: Any) -> None:
    image = np.random.default_rng(0).normal(128, 30, (30, 32)).astype(dtype)
    before = image.copy()
    expected = run(MODELS["iad-full"], engine, image)
    np.testing.assert_array_equal(image, before)
    read_only = image.copy()
    read_only.flags.writeable = False
    for view in (read_only, np.asfortranarray(image), np.pad(image, 3)[3:-3, 3:-3]):
        np.testing.assert_array_equal(run(MODELS["iad-full"], engine, view), expected)
    backwards = run(MODELS["iad-full"], engine, image[::-1, ::-1])
    np.testing.assert_allclose(backwards[::-1, ::-1], expected, atol=SINGLE)


@pytest.mark.parametrize("engine", RUNNABLE_ENGINES)
def test_callback_sees_every_step(engine: str) -> None:
    image = np.random.default_rng(0).normal(128, 30, (12, 13))
    model = MODELS["iad-full"]
    seen: list[tuple[int, Any]] = []
    result = ENGINES[engine].evolve(
        image[None], model.evolution(SIGMA), lambda step, now: seen.append((step, now.copy()))
    )
    assert [step for step, _ in seen] == [1, 2, 3]
    np.testing.assert_array_equal(seen[-1][1], result)
    assert np.abs(seen[0][1] - image).max() > 1


def test_auto_takes_torch_only_with_a_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    built = ENGINES["native"].unavailable() is None
    without = "native" if built else "numpy"
    for gpu, expected in ((True, "torch"), (False, without)):
        monkeypatch.setattr(TorchEngine, "has_gpu", lambda _, gpu=gpu: gpu)
        assert get_engine("auto").name == expected


def test_auto_does_not_import_torch_without_a_gpu() -> None:
    """PyTorch takes seconds to import; whether there is a GPU is asked of the driver."""
    if driver_has_gpu():
        pytest.skip("there is a GPU")
    code = (
        "import sys; from integrodiff.engines import get_engine; get_engine('auto'); "
        "print('torch' in sys.modules)"
    )
    command = [sys.executable, "-W", "ignore", "-c", code]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False"


def test_missing_torch_is_explained(without_package: Callable[[str], None]) -> None:
    without_package("torch")
    with pytest.raises(EngineUnavailableError, match=r"pip install .*\[torch\]'"):
        denoise(np.zeros((4, 4)), 0.1, engine="torch")
    assert denoise(np.zeros((4, 4)), 0.1).shape == (4, 4)


def test_unknown_engine_is_refused() -> None:
    with pytest.raises(ValueError, match="unknown engine 'fpga'") as error:
        get_engine("fpga")
    assert all(repr(name) in str(error.value) for name in ENGINE_NAMES)


@pytest.mark.slow
def test_torch_tensors_stay_tensors_and_carry_derivatives() -> None:
    torch = pytest.importorskip("torch")
    image = torch.linspace(0, 255, 30, dtype=torch.float64).reshape(5, 6) ** 1.1
    image.requires_grad_(True)
    model = MODELS["iad-full"]
    result = model(image, SIGMA)
    assert isinstance(result, torch.Tensor)
    np.testing.assert_allclose(
        result.detach().numpy(), model(image.detach().numpy(), SIGMA), atol=1e-10
    )
    assert torch.autograd.gradcheck(lambda u: model(u, SIGMA), (image,), atol=1e-5)


@pytest.mark.slow
def test_derivative_is_finite_on_a_constant_image() -> None:
    """Where the eigenvalues of J meet, a naive square root would give NaN."""
    torch = pytest.importorskip("torch")
    image = torch.full((5, 6), 100.0, dtype=torch.float64, requires_grad=True)
    for model in MODELS.values():
        (gradient,) = torch.autograd.grad((model(image, SIGMA) ** 2).sum(), image)
        assert torch.isfinite(gradient).all()


class TestState:
    """The step contract of :mod:`integrodiff.engines.base`."""

    image = np.random.default_rng(0).normal(128, 30, (2, 19, 23))

    @pytest.mark.slow
    @pytest.mark.parametrize("engine", RUNNABLE_ENGINES)
    @pytest.mark.parametrize("exact", [True, False])
    @pytest.mark.parametrize("dtype", [np.float32, np.float64])
    def test_steps_may_be_divided_among_calls(self, engine: str, exact: bool, dtype: Any) -> None:
        image = self.image.astype(dtype)
        process = ENGINES[engine].prepare(load_model("iad-plus").evolution(SIGMA), exact=exact)
        state = process.start(image)
        for steps in (1, 0, 3, None):
            state.advance(steps)
        assert state.step == state.steps == 6
        found = state.image()
        assert found.dtype == dtype
        np.testing.assert_array_equal(found, process(image))
        np.testing.assert_array_equal(image, self.image.astype(dtype))

    @pytest.mark.parametrize("engine", RUNNABLE_ENGINES)
    def test_an_image_that_was_read_does_not_change(self, engine: str) -> None:
        process = ENGINES[engine].prepare(MODELS["iad-full"].evolution(SIGMA))
        state = process.start(self.image)
        before = state.image()
        kept = before.copy()
        state.advance()
        np.testing.assert_array_equal(before, kept)
        before[...] = 0
        assert np.abs(state.image()).min() > 0

    @pytest.mark.parametrize("engine", RUNNABLE_ENGINES)
    def test_states_of_one_process_do_not_meet(self, engine: str) -> None:
        process = ENGINES[engine].prepare(MODELS["iad-full"].evolution(SIGMA))
        first, second = process.start(self.image), process.start(self.image[:, ::-1])
        while first.step < first.steps:
            first.advance(1)
            second.advance(1)
        np.testing.assert_array_equal(first.image(), process(self.image))
        np.testing.assert_array_equal(second.image(), process(self.image[:, ::-1]))

    @pytest.mark.parametrize("engine", RUNNABLE_ENGINES)
    @pytest.mark.parametrize("steps", [-1, 4])
    def test_steps_that_are_not_there(self, engine: str, steps: int) -> None:
        state = ENGINES[engine].prepare(MODELS["pm"].evolution(SIGMA)).start(self.image)
        with pytest.raises(ValueError, match=r"3 of 3 are left"):
            state.advance(steps)

    @pytest.mark.slow
    def test_tensors_stay_tensors(self) -> None:
        torch = pytest.importorskip("torch")
        tensor = torch.tensor(self.image)
        process = ENGINES["torch"].prepare(MODELS["iad-full"].evolution(SIGMA))
        found = process(tensor)
        assert isinstance(found, torch.Tensor)
        assert found.device == tensor.device
        np.testing.assert_array_equal(found.numpy(), process(self.image))
