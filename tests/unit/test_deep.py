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
        assert sum(part.size for part in model.arrays()) == 276
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

    @pytest.mark.slow
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
