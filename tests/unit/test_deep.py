"""The research model with free numbers at every step: stable by construction, and trainable."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from cases import RUNNABLE_ENGINES, images, run
from hypothesis import given
from hypothesis import strategies as st

import tune_deep
from integrodiff.models import DeepDiffusion, model_from_json, model_to_json
from integrodiff.models.deep import Channel
from integrodiff.stages import HaarGradient, HigherDerivatives, stable_step, step_table

CHANNELS = (Channel(1, 0.3), Channel(1, 1.5), Channel(2, 0.8), Channel(3, 0.8), Channel(4, 1.5))
STEPS = 3


def deep(weight: float = 0.2, seed: int | None = None) -> DeepDiffusion:
    count = STEPS * len(CHANNELS)
    rng = np.random.default_rng(seed)
    factors = np.ones(count) if seed is None else rng.choice([0.0, 1.0, 5.0], count)
    return DeepDiffusion(
        channels=CHANNELS,
        steps=STEPS,
        weights=tuple(weight * factors),
        contrasts=(1.0,) * count,
        weight_exponents=(0.3, 0.0, -0.5, 0.1, 0.0),
        contrast_exponents=(0.1, 0.0, -0.2, 0.0, 0.3),
        couplings=(1.0, 0.5, 2.0, 1.0, 3.0),
    )


@pytest.mark.slow
@pytest.mark.parametrize("engine", RUNNABLE_ENGINES)
@given(
    image=images(largest=6),
    seed=st.integers(0, 1000),
    weight=st.floats(0, 1e3),
    sigma=st.sampled_from([1.0, 25.0, 200.0]),
)
def test_the_norm_never_grows(
    engine: str, image: Any, seed: int, weight: float, sigma: float
) -> None:
    result = run(deep(weight, seed), engine, image, sigma)
    assert np.linalg.norm(result) <= np.linalg.norm(image) * (1 + 1e-5) + 1e-3


@pytest.mark.slow
@given(seed=st.integers(0, 1000), weight=st.floats(1e-3, 1e3))
def test_large_weights_are_cut_to_the_bound_and_no_further(seed: int, weight: float) -> None:
    model = replace(deep(weight, seed), couplings=(1.0,) * len(CHANNELS))
    evolution = model.evolution(25.0)
    for step in range(STEPS):
        alone = replace(evolution, schedule=(evolution.terms(step),), steps=1)
        bound = stable_step(alone)
        assert bound >= 1 - 1e-9
        terms = evolution.terms(step)
        asked = [w for term in terms for w in term.coupling.weights]
        given_ = [w for term in terms for w in term.flux_weights]
        if not np.allclose(asked, given_):
            assert bound <= 1.08


def test_the_table_bounds_the_eigenvalues() -> None:
    table = step_table([HaarGradient(), HigherDerivatives(4)], [0.0, 0.5])
    assert table.shape[1] == 2
    # One over the stable steps of each alone: 2 / (1/2), and 16 * 16 without any blur.
    assert 4 <= table[:, 0].max() <= 4 * 1.03
    assert step_table([HigherDerivatives(4)], [0.0]).max() == pytest.approx(8 * 16**2, rel=0.05)


def test_model_files_keep_everything() -> None:
    assert model_from_json(model_to_json(deep())) == deep()


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"tau": 0.5}, "tau must be 1"),
        ({"discretisation": "nonnegativity"}, "discretisation 'haar'"),
        ({"weights": (1.0,)}, "weights must have 15 values"),
        ({"contrasts": (0.0,) * 15}, "must be positive"),
        ({"channels": CHANNELS[::-1]}, "sorted and different"),
        ({"channels": ((5, 1.0),)}, "orders must be from 1 to 4"),
    ],
)
def test_wrong_numbers_are_refused(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        replace(deep(), **changes)


def anisotropic(weight: float = 0.2, seed: int | None = None) -> DeepDiffusion:
    """Return a model with all that is optional: laws with curvature, couplings of each step."""
    channels = (Channel(1, 0.3), Channel(1, 1.5), Channel(2, 0.0), Channel(2, 0.8))
    count = STEPS * len(channels)
    rng = np.random.default_rng(seed)
    factors = np.ones(count) if seed is None else rng.choice([0.0, 1.0, 5.0], count)
    return DeepDiffusion(
        channels=channels,
        steps=STEPS,
        weights=tuple(weight * factors),
        contrasts=tuple(np.linspace(0.1, 1.0, count)),
        weight_exponents=(0.3, 0.0, -0.5, 0.1),
        contrast_exponents=(0.1, 0.0, -0.2, 0.0),
        couplings=tuple(np.linspace(0.5, 2.0, count)),
        weight_curvatures=(0.1, 0.0, -0.1, 0.05),
        contrast_curvatures=(-0.05, 0.0, 0.1, 0.0),
        integration_scales=(0.8, 2.0, 1.1, 0.0, 3.0, 4.0),
        integration_exponents=(0.3, -0.2),
        anisotropic=True,
        smallest_contrast=0.02,
    )


class TestOptionalParts:
    """The anisotropic second order, integration scales, curvatures, couplings of each step."""

    @pytest.mark.parametrize("sigma", [2.0, 25.0, 100.0])
    @pytest.mark.parametrize("shape", [(1, 1, 1), (1, 1, 9), (2, 9, 1), (1, 17, 70), (3, 33, 5)])
    def test_engines_agree(self, shape: tuple[int, ...], sigma: float) -> None:
        image = np.random.default_rng(0).normal(128, 60, shape)
        expected = run(anisotropic(), "numpy", image, sigma)
        for engine in RUNNABLE_ENGINES:
            found = run(anisotropic(), engine, image, sigma)
            np.testing.assert_allclose(found, expected, atol=1e-9, rtol=0)
            single = run(anisotropic(), engine, image.astype(np.float32), sigma)
            np.testing.assert_allclose(single, expected, atol=1e-2, rtol=0)

    @pytest.mark.slow
    @pytest.mark.parametrize("engine", RUNNABLE_ENGINES)
    @given(
        image=images(largest=6),
        seed=st.integers(0, 1000),
        weight=st.floats(0, 1e3),
        sigma=st.sampled_from([2.0, 25.0, 100.0]),
    )
    def test_the_norm_never_grows(
        self, engine: str, image: Any, seed: int, weight: float, sigma: float
    ) -> None:
        result = run(anisotropic(weight, seed), engine, image, sigma)
        assert np.linalg.norm(result) <= np.linalg.norm(image) * (1 + 1e-5) + 1e-3
        assert result.mean() == pytest.approx(image.mean(), abs=1e-6)

    def test_laws(self) -> None:
        model, log = anisotropic(), np.log(100 / 30)
        evolution = model.evolution(100.0)
        for step in range(STEPS):
            first, second = evolution.terms(step)
            assert first.coupling.kind == second.coupling.kind == "tensor"
            rho = np.reshape(model.integration_scales, (STEPS, 2))[step]
            assert first.coupling.integration_scale == pytest.approx(rho[0] * np.exp(0.3 * log))
            assert second.coupling.integration_scale == pytest.approx(rho[1] * np.exp(-0.2 * log))
            m = step * 4  # the first channel, of order one at the second of all scales
            assert first.diffusivity.contrasts[1] == pytest.approx(
                100 * model.contrasts[m] * np.exp(0.1 * log - 0.05 * log**2)
            )
            weight = model.weights[m] * np.exp(0.3 * log + 0.1 * log**2)
            assert first.coupling.weights[1] == pytest.approx(weight * model.couplings[m])

    def test_integration_scales_have_limits(self) -> None:
        limits = ((0.5, 0.8), (2.0, 9.0))
        model = replace(anisotropic(), integration_limits=limits)
        assert model_from_json(model_to_json(model)) == model
        free = anisotropic().evolution(100.0)
        for step in range(STEPS):
            pairs = zip(free.terms(step), model.evolution(100.0).terms(step), limits, strict=True)
            for before, after, (lowest, highest) in pairs:
                expected = np.clip(before.coupling.integration_scale, lowest, highest)
                assert after.coupling.integration_scale == pytest.approx(expected)
                assert after.flux_weights == before.flux_weights

    @pytest.mark.slow
    def test_only_acting_channels_have_numbers(self) -> None:
        """A model of some channels in each step is that of all, with zeros among the weights."""
        acting = ((0, 2), (1,), (0, 1, 3))
        places = [4 * step + m for step, acts in enumerate(acting) for m in acts]

        def chosen(values: Any) -> tuple[float, ...]:
            return tuple(np.asarray(values)[places].tolist())

        rng = np.random.default_rng(3)
        laws: dict[str, Any] = {
            f"{name}_exponents": tuple(rng.normal(0, 0.3, 12)) for name in ("weight", "contrast")
        }
        laws["integration_exponents"] = tuple(rng.normal(0, 0.3, 6))
        whole = replace(anisotropic(), couplings=tuple(rng.uniform(0.5, 2, 12)), **laws)
        zeros = np.zeros(12)
        zeros[places] = chosen(whole.weights)
        expected = replace(whole, weights=tuple(zeros.tolist()))
        names = ("weights", "contrasts", "couplings", "weight_exponents", "contrast_exponents")
        parts: dict[str, Any] = {name: chosen(getattr(whole, name)) for name in names}
        model = replace(whole, acting=acting, **parts)
        assert model_from_json(model_to_json(model)) == model
        assert model.number_count() == whole.number_count() - 5 * (12 - len(places))
        image = np.random.default_rng(0).normal(128, 60, (1, 9, 12))
        for sigma in (4.0, 30.0, 90.0):
            assert model.evolution(sigma).terms(0)[0].flux_weights[-1] == 0  # 1.5 pixels
            found = run(model, "numpy", image, sigma)
            np.testing.assert_allclose(found, run(expected, "numpy", image, sigma), atol=1e-12)

    def test_exponents_of_their_own_are_laws_of_each_step(self) -> None:
        """With equal exponents in all steps the process is that of one for each channel."""
        once = anisotropic()
        names = ("weight_exponents", "contrast_exponents", "integration_exponents")
        often = replace(once, **{name: getattr(once, name) * STEPS for name in names})
        assert often.evolution(7.0) == once.evolution(7.0)
        steeper = (*once.weight_exponents, *(0.5 + e for e in once.weight_exponents * 2))
        model = replace(once, weight_exponents=steeper)
        before, after = (m._arrays_of_steps().weight_exponents for m in (often, model))
        np.testing.assert_allclose(after - before, np.repeat([0, 0.5, 0.5], 4).reshape(3, 4))

    @pytest.mark.parametrize("sigma", [0.25, 500.0])
    def test_outside_the_levels_of_its_laws_multiples_are_treated_alike(self, sigma: float) -> None:
        model = replace(anisotropic(), level_limits=(2.0, 100.0))
        assert model_from_json(model_to_json(model)) == model
        assert model.evolution(30.0) == anisotropic().evolution(30.0)
        held = min(max(sigma, 2.0), 100.0)
        image = np.random.default_rng(0).normal(128, 60, (1, 9, 12))
        expected = run(model, "numpy", image, held)
        found = run(model, "numpy", image * (sigma / held), sigma)
        np.testing.assert_allclose(found * (held / sigma), expected, atol=1e-9)

    def test_contrasts_have_a_floor(self) -> None:
        tiny = replace(anisotropic(), contrasts=(1e-6,) * 12)
        for terms in tiny.evolution(30.0).schedule:
            assert all(c in (1.0, 0.6) for term in terms for c in term.diffusivity.contrasts)
            assert any(term.flux_weights[1] for term in terms)

    def test_files(self) -> None:
        model = anisotropic()
        assert model_from_json(model_to_json(model)) == model
        assert model.number_count() == 4 + 3 * 12 + 4 * 4 + 6 + 2
        assert "anisotropic" not in model_to_json(deep())
        assert "curvatures" not in model_to_json(deep())

    @pytest.mark.parametrize(
        ("changes", "message"),
        [
            ({"couplings": (1.0,) * 5}, "couplings must have 4 or 12 values"),
            ({"weight_curvatures": (1.0,)}, "weight_curvatures must have 4 values"),
            ({"integration_scales": (1.0,)}, "integration_scales must have 6 values"),
            ({"integration_exponents": ()}, "integration_exponents must have 2 or 6 values"),
            ({"integration_scales": (-1.0,) * 6}, "must not be negative"),
            ({"smallest_contrast": -0.1}, "must not be negative"),
            ({"integration_limits": ((0.0, 1.0),)}, "integration_limits must have 2 values"),
            ({"level_limits": (100.0, 2.0)}, "level_limits must not decrease"),
            ({"level_limits": (2.0,)}, "level_limits must have 2 values"),
            ({"acting": ((0, 1),)}, "acting must have 3 values, got 1"),
            ({"acting": ((0, 1), (4,), ())}, "acting must be below 4, the channels"),
            ({"acting": ((1, 0), (2,), ())}, "a list of increasing numbers of channels"),
            ({"acting": ((-1,), (2,), ())}, "a list of increasing numbers of channels"),
            ({"acting": ((0, 1), (2,), ())}, "weights must have 3 values, got 12"),
        ],
    )
    def test_wrong_numbers_are_refused(self, changes: dict[str, Any], message: str) -> None:
        with pytest.raises(ValueError, match=message):
            replace(anisotropic(), **changes)
        for acting in (3, ((0,), (1,), 2), ((0.0,), (1,), (2,)), ((True,), (2,), (2,))):
            with pytest.raises(TypeError, match="increasing numbers of channels"):
                replace(anisotropic(), acting=acting)  # type: ignore[arg-type]
        with pytest.raises(TypeError, match="anisotropic must be a bool"):
            replace(anisotropic(), anisotropic=1)  # type: ignore[arg-type]

    @pytest.mark.slow
    def test_the_old_descent_refuses_it(self) -> None:
        pytest.importorskip("torch")
        from integrodiff.learning import CleanImages
        from integrodiff.learning.descent import descend

        clean = CleanImages(np.zeros((1, 8, 8), np.float32), ("a",), "zeros")
        with pytest.raises(ValueError, match=r"take experiments/train_models\.py"):
            descend(anisotropic(), clean, (25.0,))


class TestDescent:
    @pytest.fixture
    def training(self) -> dict[str, Any]:
        pytest.importorskip("torch")
        from integrodiff.learning import CleanImages
        from integrodiff.learning.descent import DescentSettings

        walks = np.random.default_rng(0).normal(0, 2, (4, 20, 20)).cumsum(1).cumsum(2)
        clean = CleanImages((walks + 128).astype(np.float32), tuple("abcd"), "random walks")
        settings = DescentSettings(iterations=20, batch=3, every=5, rate=0.1)
        return {
            "images": clean,
            "levels": (20.0, 50.0),
            "settings": settings,
            "device": "cpu",
            "compile_backend": None,
        }

    @pytest.mark.slow
    def test_the_loss_goes_down(self, training: dict[str, Any]) -> None:
        from integrodiff.learning.descent import DescentProgress, descend
        from integrodiff.learning.evaluation import mean_psnr

        seen: list[DescentProgress] = []
        found = descend(deep(), callback=seen.append, **training)
        assert [report.iteration for report in seen] == [5, 10, 15, 20]
        assert seen[-1].psnr > seen[0].psnr + 0.5
        clean, levels = training["images"], training["levels"]
        before = mean_psnr(deep(), clean, levels, engine="numpy")
        after = mean_psnr(found, clean, levels, engine="numpy")
        assert np.mean(list(after.values())) > np.mean(list(before.values())) + 0.5

    def test_the_start_has_about_three_hundred_numbers(self) -> None:
        pytest.importorskip("torch")
        from integrodiff.learning.descent import deep_start

        model = deep_start()
        assert {channel.order for channel in model.channels} == {1, 2, 3, 4}
        assert sum(part.size for part in model.arrays() if part is not None) == 276
        assert len(deep_start(orders=(1, 2), steps=5).weights) == 40

    @pytest.mark.slow
    def test_trains_what_the_engines_compute(self, training: dict[str, Any]) -> None:
        import torch

        from integrodiff.learning.descent import _Run

        trainer = _Run(
            deep(2.0), training["images"], training["levels"], training["settings"], "cpu", None
        )
        noisy = np.random.default_rng(1).normal(128, 30, (2, 1, 9, 8))
        found = trainer.denoised(torch.tensor(noisy, dtype=torch.float32)).detach()
        for i, level in enumerate(training["levels"]):
            expected = run(deep(2.0), "numpy", noisy[i], level)
            np.testing.assert_allclose(found[i], expected, atol=2e-3)

    @pytest.mark.long
    def test_a_killed_run_ends_at_the_same_place(
        self, training: dict[str, Any], tmp_path: Path
    ) -> None:
        from integrodiff.learning.descent import descend

        class KilledError(Exception):
            pass

        def kill(report: Any) -> None:
            if report.iteration == 10:
                raise KilledError

        expected = descend(deep(), **training)
        path = tmp_path / "checkpoint.json"
        with pytest.raises(KilledError):
            descend(deep(), checkpoint=path, callback=kill, **training)
        again = descend(deep(), checkpoint=path, **training)
        np.testing.assert_allclose(again.weights, expected.weights, rtol=1e-5)
        np.testing.assert_allclose(again.contrasts, expected.contrasts, rtol=1e-5)
        other = {**training, "levels": (30.0,)}
        with pytest.raises(ValueError, match="another training"):
            descend(deep(), checkpoint=path, **other)


@pytest.mark.parametrize("engine", RUNNABLE_ENGINES)
def test_a_tiny_contrast_has_no_flux(engine: str) -> None:
    image = np.random.default_rng(0).normal(128, 20, (9, 11))
    contrasts = np.reshape(deep().contrasts, (STEPS, -1)).copy()
    contrasts[:, 1] = 0.0099 / (20 / 30) ** deep().contrast_exponents[1]
    tiny = replace(deep(), contrasts=tuple(contrasts.ravel()))
    schedule = tiny.evolution(20.0).schedule
    assert all(terms[0].flux_weights[-1] == 0 for terms in schedule)
    assert all(terms[0].coupling.weights[-1] > 0 for terms in schedule)
    contrasts[:, 1] *= 1.02
    enough = replace(tiny, contrasts=tuple(contrasts.ravel()))
    assert all(terms[0].flux_weights[-1] > 0 for terms in enough.evolution(20.0).schedule)
    contrasts[:, 1] = 1e-9
    tinier = replace(tiny, contrasts=tuple(contrasts.ravel()))
    np.testing.assert_array_equal(run(tinier, engine, image, 20.0), run(tiny, engine, image, 20.0))


class TestTuning:
    """The experiment that tunes scales and laws of the channels."""

    @pytest.fixture
    def task(self) -> tune_deep.Task:
        """Two crops with an edge, and a model that smooths too little."""
        y, x = np.mgrid[:24, :24]
        crops = [np.array(60 + 90 * (a * x + y > 20), np.float32) for a in (1, 2)]
        return tune_deep.Task(deep(0.05), dict(enumerate(crops)))

    def test_no_change_is_no_change(self, task: tune_deep.Task) -> None:
        assert task.changed(np.zeros(6 * len(CHANNELS))) == task.model

    @pytest.mark.slow
    def test_gradients_are_those_of_the_error(self, task: tune_deep.Task) -> None:
        with ThreadPoolExecutor(1) as workers:
            _, gradient = tune_deep._linearised(task, (0, 1), 50.0, workers)
        for i in range(0, len(gradient), 4):
            ends = [task.psnr((0, 1), (50.0, s * np.eye(len(gradient))[i])) for s in (-0.01, 0.01)]
            slope = -(ends[1] - ends[0]) / 0.02 * np.log(10) / 20
            assert gradient[i] == pytest.approx(slope, abs=0.02 * np.abs(gradient).max())

    @pytest.mark.slow
    def test_a_step_gains_on_crops_it_has_not_seen(self, task: tune_deep.Task) -> None:
        with ThreadPoolExecutor(1) as workers:
            model, gains = tune_deep._step(task, (0,), (1,), (30.0, 50.0), workers)
        assert np.mean(list(gains.values())) > 0.1
        zero = np.zeros(6 * len(CHANNELS))
        for level, gain in gains.items():
            after = tune_deep.Task(model, task.crops).psnr((1,), (level, zero))
            assert after - task.psnr((1,), (level, zero)) == pytest.approx(gain, abs=1e-6)


def test_as_many_pairs_as_channels() -> None:
    """Weights and contrasts are still those of pairs."""
    model = DeepDiffusion(
        channels=(Channel(1, 0.5), Channel(1, 5.0)),
        steps=2,
        acting=((0,), (1,)),
        weights=(0.4, 0.3),
        contrasts=(0.5, 0.6),
        weight_exponents=(0.0, 0.0),
        contrast_exponents=(0.0, 0.0),
        couplings=(1.0, 1.0),
    )
    evolution = model.evolution(30.0)
    assert [terms[0].flux_weights for terms in evolution.schedule] == [(0.4, 0.0), (0.0, 0.3)]
    assert model_from_json(model_to_json(model)) == model
