"""Training by the kernels of the engine ``cuda``, run on the host: the derivatives of PyTorch."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest
from cases import FEW_SCALES, MODELS
from emulated_gpu import COMPILER, EmulatedGpu
from selection import some

from integrodiff import EngineUnavailableError, load_model
from integrodiff._checks import finite_number, positive_number
from integrodiff.engines import ENGINES
from integrodiff.engines.cuda.blurs import exact_kernels, kernels_near
from integrodiff.engines.cuda.tangents import TangentProcess
from integrodiff.learning import (
    CleanImages,
    FitSettings,
    Linearisation,
    Parameterisation,
    TorchLineariser,
    fit,
    noise,
    recipes,
)
from integrodiff.learning.cuda import CudaLineariser
from integrodiff.learning.recipes import best_lineariser
from integrodiff.learning.tangents import LevelByLevel
from integrodiff.models import CompactTensorDiffusion, DeepDiffusion, ExplicitModel
from integrodiff.models.deep import Channel
from integrodiff.models.description import parameter
from integrodiff.stages import Coupling, Evolution, Exponential, Term

pytest.importorskip("torch")

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(COMPILER is None, reason="needs a C++ compiler"),
]

PLUS = replace(
    cast(CompactTensorDiffusion, load_model("iad-plus")),
    steps=2,
    scales=FEW_SCALES,
    integration_limits=(),
)
DEEP = DeepDiffusion(
    channels=(Channel(1, 0.0), Channel(1, 0.9), Channel(2, 0.6)),
    steps=2,
    weights=(0.3, 0.2, 0.02, 0.2, 0.1, 0.03),
    contrasts=(0.4, 0.3, 0.5, 0.6, 0.4, 0.3),
    weight_exponents=(0.2, 0.1, -0.1),
    contrast_exponents=(0.1, 0.0, 0.2),
    couplings=(0.5, 1.0, 0.7),
    integration_scales=(0.8, 1.1, 0.7, 0.9),
    integration_exponents=(0.1, 0.2),
    anisotropic=True,
    pulls=(0.02, 0.05),
    pull_exponents=(0.3,),
    mixes=(0.2, -0.3, 0.1, 0.4),
)
ORDERS = DeepDiffusion(
    channels=(Channel(1, 0.0), Channel(2, 0.6), Channel(3, 0.6), Channel(4, 1.1)),
    steps=1,
    weights=(0.3, 0.05, 0.02, 0.02),
    contrasts=(1.0, 0.8, 0.9, 1.1),
    weight_exponents=(0.2,) * 4,
    contrast_exponents=(0.1,) * 4,
    couplings=(0.5, 0.4, 0.6, 0.7),
)

CASES: dict[str, tuple[ExplicitModel, tuple[str, ...]]] = {
    "pm, its step cut": (replace(MODELS["pm"], tau=5.0), ()),
    "eed, trained scale": (MODELS["eed"], ()),
    "iid": (MODELS["iid-full"], ()),
    "iad": (MODELS["iad-reduced"], ()),
    "iad-plus": (replace(PLUS, tau=0.4), ()),
    "iad-plus, its step cut": (
        replace(PLUS, tau=100.0),
        ("strengths", "contrasts", "integration_scales", "integration_exponent"),
    ),
}
"""Models, and which of their parameters are fixed."""

STEP_BY_STEP: dict[str, tuple[ExplicitModel, tuple[str, ...]]] = {
    "deep": (
        DEEP,
        ("tau", "weights", "weight_exponents", "couplings", "contrast_exponents"),
    ),
    "orders": (ORDERS, ("tau", "couplings", "weight_exponents")),
}
"""The same for models with numbers of their own in every step, which PyTorch does not linearise."""

ITEMS = [(0, 20.0), (1, 50.0), (1, 20.0)]


def images(height: int = 11, width: int = 14) -> CleanImages:
    """Two random walks."""
    walks = np.random.default_rng(1).normal(0, 9, (2, height, width)).cumsum(2) + 128
    return CleanImages(walks.astype(np.float32), ("a", "b"), "random walks")


def linearised(
    case: str, gpu: EmulatedGpu, items: Sequence[tuple[int, float]] = ITEMS, **more: Any
) -> Linearisation:
    model, fixed = (CASES | STEP_BY_STEP)[case]
    parameterisation = Parameterisation(model, (20.0, 50.0), fixed)
    given = {"double": True, "gpu": gpu, **more}
    lineariser = CudaLineariser(parameterisation, images(), **given)
    return lineariser.linearise(parameterisation.vector(model), items)


def require_equal(found: Linearisation, expected: Linearisation, tolerance: float) -> None:
    for part in ("error", "gradient", "curvature"):
        wanted = getattr(expected, part)
        scale = np.abs(wanted).max()
        difference = np.abs(getattr(found, part) - wanted)
        assert difference.max() <= tolerance * scale, part


def by_torch(model: ExplicitModel, fixed: Sequence[str], clean: CleanImages) -> Linearisation:
    parameterisation = Parameterisation(model, (20.0, 50.0), fixed)
    by_level = LevelByLevel(TorchLineariser(parameterisation, clean, device="cpu", double=True))
    return by_level.linearise(parameterisation.vector(model), ITEMS)


def by_differences(model: ExplicitModel, fixed: Sequence[str], clean: CleanImages) -> Linearisation:
    """Central differences of denoised images."""
    parameterisation = Parameterisation(model, (20.0, 50.0), fixed)
    vector, step = parameterisation.vector(model), 1e-5
    parts = []
    for number, level in ITEMS:
        target = clean.pixels[number].astype(np.float64)
        noisy = target + noise(level, number, target.shape)

        def denoised(at: Any, noisy: Any = noisy, level: float = level) -> Any:
            process = parameterisation.evolution(parameterisation.model(at), level)
            return ENGINES["numpy"].evolve(noisy[None], process)[0].ravel()

        residual = denoised(vector) - target.ravel()
        tangents = np.stack(
            [
                (denoised(vector + way) - denoised(vector - way)) / (2 * step)
                for way in step * np.eye(len(vector))
            ]
        )
        rows = np.stack([residual, *tangents])
        parts.append(rows @ rows.T / residual.size)
    sums = np.stack(parts)
    return Linearisation(sums[:, 0, 0], sums[:, 1:, 0], sums[:, 1:, 1:])


@pytest.mark.parametrize("case", some(CASES, "iad", "iad-plus, its step cut"))
def test_the_same_as_by_pytorch(case: str, gpu: EmulatedGpu) -> None:
    expected = by_torch(*CASES[case], images())
    require_equal(linearised(case, gpu), expected, 1e-8)


@pytest.mark.parametrize("case", some(STEP_BY_STEP, "deep"))
def test_schedules_orders_mixes_and_pulls(case: str, gpu: EmulatedGpu) -> None:
    expected = by_differences(*STEP_BY_STEP[case], images())
    require_equal(linearised(case, gpu), expected, 1e-6)


@pytest.mark.parametrize("shared", some([36, 227], 227))
def test_trained_scales_of_long_kernels(shared: int, kernels: Path) -> None:
    """Blurs go along one axis after the other, with taps that have derivatives."""
    model, gpu = replace(MODELS["eed"], scale=4.5), EmulatedGpu(kernels, shared=shared * 1024)
    parameterisation = Parameterisation(model, (20.0, 50.0))
    found = CudaLineariser(parameterisation, images(), double=True, gpu=gpu).linearise(
        parameterisation.vector(model), ITEMS
    )
    assert {"smooth_axis", *(["smooth_rows"] if shared > 36 else [])} <= set(gpu.launched)
    require_equal(found, by_torch(model, (), images()), 1e-8)


@pytest.mark.parametrize("case", some(["iad", "iad-plus", "orders"], "iad"))
def test_tasks_of_a_phase_do_not_depend_on_each_other(case: str, kernels: Path) -> None:
    items = ITEMS[:1]
    forwards = linearised(case, EmulatedGpu(kernels), items)
    backwards = linearised(case, EmulatedGpu(kernels, backwards=True), items)
    for part in ("error", "gradient", "curvature"):
        assert np.array_equal(getattr(forwards, part), getattr(backwards, part))


def test_batches_and_groups_of_parameters_do_not_matter(gpu: EmulatedGpu) -> None:
    """Four parameters in groups of three leave one alone."""
    expected = linearised("iad", gpu)
    require_equal(linearised("iad", gpu, batch=1, tangents=3), expected, 1e-12)


def test_kernels_that_are_cut_change_little(gpu: EmulatedGpu) -> None:
    found, expected = linearised("iad", gpu, tolerance=1e-5), linearised("iad", gpu)
    assert found.gradient.tolist() != expected.gradient.tolist()
    require_equal(found, expected, 1e-4)


@pytest.mark.parametrize("tangents", some([1, 2, 3], 1))
def test_single_precision(tangents: int, gpu: EmulatedGpu) -> None:
    found = linearised("iad", gpu, double=False, tangents=tangents)
    require_equal(found, linearised("iad", gpu), 1e-4)


def test_flat_images_have_no_direction_and_finite_derivatives(
    gpu: EmulatedGpu, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("integrodiff.learning.cuda.noise", lambda s, n, shape: np.zeros(shape))
    model = MODELS["iad-reduced"]
    parameterisation = Parameterisation(model, (20.0,))
    flat = CleanImages(np.full((1, 9, 9), 50, np.float32), ("a",), "a flat image")
    lineariser = CudaLineariser(parameterisation, flat, double=True, gpu=gpu)
    found = lineariser.linearise(parameterisation.vector(model), [(0, 20.0)])
    assert found.error[0] == pytest.approx(0, abs=1e-20)
    assert np.abs(found.gradient).max() == pytest.approx(0, abs=1e-20)


def test_training_goes_down(gpu: EmulatedGpu) -> None:
    losses: list[float] = []
    fit(
        replace(MODELS["pm"], tau=0.05),
        images(),
        (30.0,),
        settings=FitSettings(phases=(None,), iterations=3),
        lineariser=lambda p, i: CudaLineariser(p, i, gpu=gpu),
        callback=lambda step: losses.append(step.loss),
    )
    assert len(losses) > 1
    assert losses == sorted(losses, reverse=True)


@dataclass(frozen=True, kw_only=True)
class Vanishing(ExplicitModel):
    """A model of which a scale takes no part at one value of a parameter; no kind of its own."""

    contrast: float = field(metadata=parameter(positive_number))
    weight: float = field(metadata=parameter(finite_number, transform="identity"))

    def _evolution(self, sigma: float) -> Evolution:
        term = Term(
            derivatives=self.derivatives(1),
            coupling=Coupling(weights=(1.0, 0.5)),
            diffusivity=Exponential(contrasts=(self.contrast, self.contrast)),
            flux_weights=(0.3, abs(self.weight)),
        )
        return Evolution(scales=(0.4, 0.8), schedule=((term,),), tau=self.tau, steps=self.steps)


def test_what_cannot_be_differentiated_is_refused(gpu: EmulatedGpu) -> None:
    model = Vanishing(contrast=9.0, weight=0.0, tau=0.1, steps=1)
    parameterisation = Parameterisation(model, (20.0,))
    lineariser = CudaLineariser(parameterisation, images(), gpu=gpu)
    with pytest.raises(ValueError, match="which scales take part"):
        lineariser.linearise(parameterisation.vector(model), ITEMS[:1])
    other = replace(MODELS["eed"], discretisation="nonnegativity")
    with pytest.raises(ValueError, match="Haar scheme"):
        CudaLineariser(Parameterisation(other, (20.0,)), images(), gpu=gpu)


def test_recipes_take_the_kernels_where_they_can_run(
    gpu: EmulatedGpu, monkeypatch: pytest.MonkeyPatch
) -> None:
    parameterisation = Parameterisation(MODELS["pm"], (20.0,))
    monkeypatch.setattr(type(ENGINES["cuda"]), "unavailable", lambda _: None)
    monkeypatch.setattr(recipes, "CudaLineariser", partial(CudaLineariser, gpu=gpu))
    chosen = [best_lineariser(parameterisation, images(), device=d) for d in ("auto", "cuda")]
    assert [type(one) for one in chosen] == [CudaLineariser] * 2
    other = best_lineariser(parameterisation, images(), device="cpu")
    assert not isinstance(other, CudaLineariser)
    unknown = replace(MODELS["eed"], discretisation="nonnegativity")
    other = best_lineariser(Parameterisation(unknown, (20.0,)), images(), device="auto")
    assert not isinstance(other, CudaLineariser)


@pytest.mark.skipif(ENGINES["cuda"].unavailable() is None, reason="there is a GPU")
def test_without_a_gpu_the_message_says_what_to_do() -> None:
    with pytest.raises(EngineUnavailableError, match=r"GPU|CuPy"):
        CudaLineariser(Parameterisation(MODELS["pm"], (20.0,)), images())


def test_memory_of_another_precision_is_not_reused(gpu: EmulatedGpu) -> None:
    def evolution(contrast: float) -> Evolution:
        diffusivity = Exponential(contrasts=(contrast,))
        one = Term(coupling=Coupling(weights=(1.0,)), flux_weights=(1.0,), diffusivity=diffusivity)
        return Evolution(scales=(0.0,), schedule=((one,),), tau=0.1, steps=2)

    kernels = exact_kernels(evolution(8.0), 1e-16)
    near = [(kernels_near(kernels, evolution(8.01)), kernels_near(kernels, evolution(7.99)))]
    image = np.random.default_rng(0).uniform(0, 100, (1, 1, 5, 7))
    expected, slopes = TangentProcess(kernels, near, 0.02, gpu)(image)
    process = TangentProcess(kernels, near, 0.02, gpu)
    process(image.astype(np.float32))
    found, found_slopes = process(image)
    assert found.dtype == np.float64
    np.testing.assert_array_equal(found, expected)
    np.testing.assert_array_equal(found_slopes, slopes)
