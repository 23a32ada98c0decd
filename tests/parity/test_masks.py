"""Images with invalid pixels: stages against the oracle, engines against the stages, properties."""

from __future__ import annotations

import warnings
from dataclasses import replace
from typing import Any

import naive_masks
import numpy as np
import pytest
from cases import RUNNABLE_ENGINES
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

import integrodiff
from integrodiff.engines import ENGINES
from integrodiff.engines.native import NativeProcess
from integrodiff.errors import EngineUnavailableError, SlowEngineWarning
from integrodiff.stages import (
    Coupling,
    CouplingKind,
    Domain,
    Evolution,
    ExchangeWithNeighbours,
    Exponential,
    HaarGradient,
    HigherDerivatives,
    Term,
    blur,
    evolve,
    stable_on_masks,
    stable_step,
    stable_step_on_masks,
    velocity,
)
from integrodiff.stages.domain import flux_reach

THETA = 0.15
SHAPES = [(7, 9), (1, 6), (6, 1), (5, 5)]
MODEL_NAMES = ["pm", "eed", "iid", "iad", "iad-plus", "iad-deep"]
needs_native = pytest.mark.skipif(
    ENGINES["native"].unavailable() is not None, reason="the compiled engine is not built"
)


def noisy(shape: tuple[int, ...], seed: int = 0) -> NDArray[np.float64]:
    """Return a step edge with noise."""
    image = np.random.default_rng(seed).normal(0, 25, shape)
    image[..., shape[-1] // 2 :] += 120
    return image + 60


def some_mask(shape: tuple[int, int], seed: int = 0, share: float = 0.15) -> NDArray[np.bool_]:
    """Return a random mask with a hole of some pixels."""
    mask = np.random.default_rng(seed).uniform(size=shape) > share
    mask[shape[0] // 2, : shape[1] // 3] = False
    mask[-1, -1] = True
    return mask


def term(order: int, weights: list[float], contrasts: list[float], rho: float = 0.0) -> Term:
    """Return a term of an order; order one is anisotropic."""
    return Term(
        coupling=Coupling(
            weights=tuple(weights),
            kind="tensor" if order == 1 else "trace",
            integration_scale=rho,
        ),
        flux_weights=tuple(weights),
        diffusivity=Exponential(contrasts=tuple(contrasts)),
        derivatives=HaarGradient(THETA) if order == 1 else HigherDerivatives(order),
    )


def evolution(terms: list[Term], scales: list[float], **changes: Any) -> Evolution:
    """Return a process of some steps."""
    chosen = {"tau": 0.1, "steps": 2, **changes}
    return Evolution(scales=tuple(scales), schedule=(tuple(terms),), **chosen)


# ---- stages ----


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("scale", [0.3, 1.0, 2.5])
def test_the_blur_is_the_exponential_of_the_graphs_laplacian(
    shape: tuple[int, int], scale: float
) -> None:
    mask, image = some_mask(shape), noisy((1, *shape))
    expected = naive_masks.blur_matrix(mask, scale) @ image.ravel()
    found = Domain(mask, image).blur(image, scale)
    np.testing.assert_allclose(found.ravel(), expected, rtol=0, atol=1e-11)


@pytest.mark.parametrize("shape", SHAPES)
def test_without_invalid_pixels_it_is_the_blur_of_the_whole_image(shape: tuple[int, int]) -> None:
    image = noisy((2, *shape))
    found = Domain(np.ones(shape, np.bool_), image).blur(image, 1.7)
    np.testing.assert_allclose(found, blur(image, 1.7), rtol=0, atol=1e-11)


@pytest.mark.slow
@pytest.mark.parametrize("shape", SHAPES)
def test_velocity_is_that_of_the_oracle(shape: tuple[int, int]) -> None:
    scales, weights, contrasts = [0.0, 0.8, 1.9], [0.3, 0.4, 0.5], [9.0, 6.0, 4.0]
    mask, image = some_mask(shape, seed=3, share=0.05), noisy((1, *shape))
    for orders in ([1], [2], [3], [4], [1, 2]):
        terms = [term(order, weights, contrasts) for order in orders]
        reach = [flux_reach(HigherDerivatives(2), scale) for scale in scales]
        described = [naive_masks.NaiveTerm(order, weights, contrasts) for order in orders]
        expected = naive_masks.velocity(image[0], mask, described, scales, reach, THETA)
        found = velocity(image, evolution(terms, scales), domain=Domain(mask, image))
        np.testing.assert_allclose(found[0], expected, rtol=0, atol=1e-9)


@pytest.mark.slow
@pytest.mark.parametrize("name", MODEL_NAMES)
def test_far_from_invalid_pixels_nothing_changes(name: str) -> None:
    image = noisy((1, 24, 150))
    mask = np.ones((24, 150), np.bool_)
    mask[5:9, :4] = False
    process = stable_on_masks(integrodiff.load_model(name).evolution(25.0))
    process = replace(process, steps=1, schedule=process.schedule[:1], pull=process.pull_at(0))
    with_mask, without = evolve(image, process, mask=mask), evolve(image, process)
    np.testing.assert_allclose(with_mask[..., 110:], without[..., 110:], rtol=0, atol=1e-7)
    assert np.abs(with_mask - without)[..., 4:12].max() > 1e-3


@pytest.mark.slow
def test_a_hole_hides_what_lies_behind_it() -> None:
    """Two parts that no edge joins are two images."""
    mask = np.ones((9, 14), np.bool_)
    mask[:, 6:8] = False
    image, process = noisy((1, 9, 14)), integrodiff.load_model("iad").evolution(25.0)
    whole = evolve(image, process, mask=mask)
    changed = image.copy()
    changed[..., 8:] = 7.0
    np.testing.assert_array_equal(evolve(changed, process, mask=mask)[..., :6], whole[..., :6])


def test_integration_ignores_unknown_structure() -> None:
    """A coupling that is the same everywhere stays the same beside a hole."""
    mask = some_mask((12, 14), seed=1)
    ramp = np.broadcast_to(3.0 * np.arange(14), (1, 12, 14)).copy()
    with_integration = evolution([term(1, [1.0], [5.0], rho=1.5)], [0.0])
    without = evolution([term(1, [1.0], [5.0])], [0.0])
    domain = Domain(mask, ramp)
    inner = (slice(None), slice(4, -4), slice(5, -5))  # the ramp ends at the border
    np.testing.assert_allclose(
        velocity(ramp, with_integration, domain=domain)[inner],
        velocity(ramp, without, domain=domain)[inner],
        atol=1e-3,
    )


# ---- the step bound ----

MASKS = st.tuples(st.integers(1, 7), st.integers(1, 7), st.integers(0, 2**16), st.floats(0.0, 0.95))


def random_mask(drawn: tuple[int, int, int, float]) -> NDArray[np.bool_]:
    """Return a mask with at least one valid pixel."""
    height, width, seed, share = drawn
    mask = np.random.default_rng(seed).uniform(size=(height, width)) >= share
    mask.flat[seed % mask.size] = True
    return mask


def dense_operator(process: Evolution, mask: NDArray[np.bool_]) -> NDArray[np.float64]:
    """Return minus the velocity as a matrix, for gates that are all open."""
    basis = np.eye(mask.size).reshape(mask.size, 1, *mask.shape)
    columns = velocity(basis, process, domain=Domain(mask, basis))
    matrix: NDArray[np.float64] = -columns.reshape(mask.size, mask.size)
    return matrix


@pytest.mark.slow
@settings(deadline=None)
@given(
    drawn=MASKS,
    scales=st.lists(st.floats(0.0, 3.0), min_size=1, max_size=3).map(sorted),
    orders=st.lists(st.integers(1, 4), min_size=1, max_size=2, unique=True),
    seed=st.integers(0, 2**16),
    theta=st.floats(0.0, 0.5),
)
def test_eigenvalues_stay_below_the_bound_on_any_mask(
    drawn: tuple[int, int, int, float],
    scales: list[float],
    orders: list[int],
    seed: int,
    theta: float,
) -> None:
    mask, rng = random_mask(drawn), np.random.default_rng(seed)
    open_gates = [1e12] * len(scales)
    terms = [term(order, rng.uniform(0.1, 2, len(scales)).tolist(), open_gates) for order in orders]
    terms = [
        replace(one, derivatives=HaarGradient(theta)) if one.derivatives.order == 1 else one
        for one in terms
    ]
    process = evolution(terms, scales)
    matrix = dense_operator(process, mask)
    np.testing.assert_allclose(matrix, matrix.T, atol=1e-9 * max(1.0, np.abs(matrix).max()))
    eigenvalues = np.linalg.eigvalsh(matrix)
    assert eigenvalues.min() >= -1e-9 * max(1.0, eigenvalues.max())
    assert stable_step_on_masks(process) * eigenvalues.max() <= 2 + 1e-9
    # Constants on the valid pixels stay, invalid pixels neither give nor take.
    assert np.abs(matrix @ mask.ravel().astype(float)).max() <= 1e-6
    assert not matrix[~mask.ravel()].any()
    assert not matrix[:, ~mask.ravel()].any()


@pytest.mark.slow
@settings(deadline=None)
@given(drawn=MASKS, anisotropic=st.booleans(), seed=st.integers(0, 2**16))
def test_the_nonnegativity_scheme_does_not_overshoot_on_any_mask(
    drawn: tuple[int, int, int, float], anisotropic: bool, seed: int
) -> None:
    mask = random_mask(drawn)
    kind: CouplingKind = "tensor" if anisotropic else "trace"
    scheme = Term(
        coupling=Coupling(weights=(1.0,), kind=kind),
        flux_weights=(1.0,),
        diffusivity=Exponential(contrasts=(20.0,)),
        derivatives=ExchangeWithNeighbours(),
    )
    process = replace(evolution([scheme], [0.0]), tau=1.0, steps=1)
    process = stable_on_masks(process)
    image = np.where(mask, noisy((1, *mask.shape), seed), 0.0)
    change = velocity(image, process, domain=Domain(mask, image))
    assert not change[:, ~mask].any()
    assert abs(change.sum()) <= 1e-9 * max(1.0, np.abs(change).sum())


@pytest.mark.slow
@pytest.mark.parametrize("name", MODEL_NAMES)
@pytest.mark.parametrize("sigma", [3.0, 25.0, 80.0])
def test_steps_are_cut_or_divided(name: str, sigma: float) -> None:
    process = integrodiff.load_model(name).evolution(sigma)
    found = stable_on_masks(process)
    bound = stable_step_on_masks(process)
    assert found.tau <= bound * (1 + 1e-12)
    assert found.steps % process.steps == 0
    # The time of the diffusion is the same, or at most a tenth smaller.
    assert 1 / 1.1 <= found.tau * found.steps / (process.tau * process.steps) <= 1 + 1e-12
    # The bound is of use: without a mask it is at most twice as large.
    assert bound >= stable_step(process) / 2


# ---- engines ----


ENGINES_WITH_MASKS = [name for name in ("torch", "native") if name in RUNNABLE_ENGINES]


@pytest.mark.parametrize("engine", ["numpy", *ENGINES_WITH_MASKS])
def test_masks_may_be_views(engine: str) -> None:
    """Masks with negative strides, and masks that cannot be written to."""
    mask, image = some_mask((13, 18), seed=5), noisy((13, 18))
    settings: dict[str, Any] = {"data_range": 255, "engine": engine, "model": "eed"}
    expected = integrodiff.denoise(image, 20, mask=mask, **settings)
    found = integrodiff.denoise(image[::-1], 20, mask=mask[::-1], **settings)
    np.testing.assert_allclose(found[::-1], expected, atol=1e-9)
    mask.flags.writeable = False
    found = integrodiff.denoise(image, 20, mask=mask, **settings)
    np.testing.assert_array_equal(found, expected)


@pytest.mark.long
@pytest.mark.parametrize("name", ["eed", "iid", "iad-plus", "iad-deep"])
@pytest.mark.parametrize("shape", [(13, 18), (1, 9), (9, 1), (70, 5)])
def test_engines_agree(name: str, shape: tuple[int, int]) -> None:
    mask, image = some_mask(shape, seed=5), noisy((2, *shape))
    image = np.where(mask, image, np.nan)
    process = integrodiff.load_model(name).evolution(25.0)
    noise = np.where(mask, 1 + np.linspace(0, 0.5, shape[1]), np.nan)
    settings: dict[str, Any] = {"mask": mask, "relative_noise": noise if shape[0] > 1 else None}
    expected = ENGINES["numpy"].evolve(image, process, **settings)
    np.testing.assert_array_equal(np.isnan(expected), np.isnan(image))
    for engine in ENGINES_WITH_MASKS:
        found = ENGINES[engine].evolve(image, process, exact=True, **settings)
        np.testing.assert_array_equal(np.isnan(found), np.isnan(image))
        np.testing.assert_allclose(found, expected, rtol=0, atol=1e-9)
        single = ENGINES[engine].evolve(image.astype(np.float32), process, exact=True, **settings)
        assert single.dtype == np.float32
        np.testing.assert_allclose(single, expected, rtol=0, atol=0.01)
        short = ENGINES[engine].evolve(image, process, **settings)
        np.testing.assert_allclose(short, expected, rtol=0, atol=0.05)


@needs_native
@pytest.mark.parametrize("order", [1, 2])
def test_the_compiled_engine_integrates_beside_holes(order: int) -> None:
    mask, image = some_mask((17, 22), seed=2), noisy((1, 17, 22))
    one = term(order, [0.5, 0.4], [9.0, 6.0], rho=1.3)
    kinds: tuple[CouplingKind, ...] = ("tensor", "trace")
    for kind in kinds:
        process = evolution([replace(one, coupling=replace(one.coupling, kind=kind))], [0.0, 0.7])
        expected = ENGINES["numpy"].evolve(image, process, mask=mask)
        found = ENGINES["native"].evolve(image, process, mask=mask, exact=True)
        np.testing.assert_allclose(found, expected, rtol=0, atol=1e-9)
        found = ENGINES["native"].evolve(image, process, mask=mask)
        np.testing.assert_allclose(found, expected, rtol=0, atol=0.05)


@pytest.mark.long
@needs_native
@pytest.mark.parametrize("name", ["iad", "iad-deep"])
def test_neither_instruction_set_nor_threads_nor_invalid_values_count(name: str) -> None:
    mask, image = some_mask((41, 67), seed=7), noisy((1, 41, 67)).astype(np.float32)
    process = integrodiff.load_model(name).evolution(25.0)
    for instruction_set in ENGINES["native"].instruction_sets():  # type: ignore[attr-defined]
        found = []
        for threads, invalid in ((1, 0.0), (2, np.nan), (3, np.inf), (5, 1e30)):
            compiled = NativeProcess(
                process, exact=False, threads=threads, mask=mask, instruction_set=instruction_set
            )
            given = np.where(mask, image, np.float32(invalid))
            result = compiled(given)
            np.testing.assert_array_equal(result[:, ~mask], given[:, ~mask])
            found.append(result[:, mask])
        for other in found[1:]:
            np.testing.assert_array_equal(found[0], other)


@needs_native
def test_the_compiled_engine_has_one_scheme_for_masks() -> None:
    process = integrodiff.load_model("iad").evolution(25.0)
    scheme = tuple(
        replace(one, derivatives=ExchangeWithNeighbours()) for one in process.schedule[0]
    )
    with pytest.raises(EngineUnavailableError, match="engine='numpy'"):
        ENGINES["native"].prepare(
            replace(process, schedule=(scheme,)), mask=np.ones((3, 3), np.bool_)
        )


@pytest.mark.slow
@given(
    drawn=MASKS,
    name=st.sampled_from(MODEL_NAMES),
    engine=st.sampled_from(["numpy", "native"]),
    sigma=st.floats(2.0, 90.0),
)
def test_mean_and_norm_over_valid_pixels(
    drawn: tuple[int, int, int, float], name: str, engine: str, sigma: float
) -> None:
    if ENGINES[engine].unavailable() is not None:
        engine = "numpy"
    mask = random_mask(drawn)
    image = np.where(mask, noisy((1, *mask.shape), drawn[2]), np.nan)
    process = replace(integrodiff.load_model(name).evolution(sigma), pull=0.0)
    found = ENGINES[engine].evolve(image, process, mask=mask)[:, mask]
    before = image[:, mask]
    assert found.mean() == pytest.approx(before.mean(), abs=1e-6)
    assert np.linalg.norm(found) <= np.linalg.norm(before) * (1 + 1e-9)


def test_auto_takes_an_engine_that_knows_the_scheme(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("integrodiff.engines._gpu_engines", lambda: iter(()))
    model = integrodiff.PeronaMalik(tau=0.1, contrast=5.0, discretisation="nonnegativity")
    image, mask = noisy((20, 24)), np.ones((20, 24), np.bool_)
    mask[2, 2] = False
    expected = integrodiff.denoise(image, 20, model=model, mask=mask, engine="numpy")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", SlowEngineWarning)
        found = integrodiff.denoise(image, 20, model=model, mask=mask)
    np.testing.assert_array_equal(found, expected)


@needs_native
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("quiet", [None, 1e-3])
def test_holes_are_closed_for_the_largest_contrast(dtype: Any, quiet: float | None) -> None:
    image, mask = noisy((20, 24)).astype(dtype)[None], np.ones((20, 24), np.bool_)
    mask[8:12, 9:15] = False
    levels = None if quiet is None else np.where(np.arange(24) < 12, quiet, 1.0) * np.ones((20, 1))
    for model in (
        integrodiff.PeronaMalik(tau=0.2, contrast=1e15),
        integrodiff.EED(tau=0.2, contrast=1e15, scale=1.0),
    ):
        process = model.evolution(25.0)
        found, expected = (
            ENGINES[name].evolve(image, process, mask=mask, relative_noise=levels)
            for name in ("native", "numpy")
        )
        np.testing.assert_allclose(found, expected, rtol=0, atol=1e-3)


def test_large_scales_keep_their_steps_on_masks() -> None:
    one = Term(
        coupling=Coupling(weights=(1.0,)),
        flux_weights=(1.0,),
        diffusivity=Exponential(contrasts=(5.0,)),
    )
    for scale in (30.0, 300.0, 1000.0):
        process = Evolution(scales=(scale,), schedule=((one,),), tau=1.0, steps=10)
        process = replace(process, tau=stable_step(process))
        assert stable_on_masks(process).steps == 10
