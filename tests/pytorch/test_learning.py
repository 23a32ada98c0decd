"""Training: tangents against other derivatives, convergence, and runs that are interrupted."""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest
from cases import FEW_SCALES, FULL, MODELS
from numpy.typing import NDArray
from selection import some

from integrodiff import IAD, ByNoiseLevel, FullLaw, PeronaMalik, load_model
from integrodiff._checks import finite_number, positive_number
from integrodiff.learning import (
    CleanImages,
    FitSettings,
    Linearisation,
    Parameterisation,
    Progress,
    TorchLineariser,
    fit,
    noise,
)
from integrodiff.learning.compiled import CompiledLineariser
from integrodiff.learning.evaluation import mean_psnr
from integrodiff.learning.parameters import smoothness
from integrodiff.learning.recipes import RECIPES, train
from integrodiff.models import CompactTensorDiffusion, ExplicitModel
from integrodiff.models.description import parameter
from integrodiff.stages import Coupling, Evolution, Exponential, Term

torch = pytest.importorskip("torch")

LEVELS = (20.0, 50.0)
COMPACT_TENSOR = replace(cast(CompactTensorDiffusion, load_model("iad-plus")), steps=2)
SETTINGS = FitSettings(phases=(1, None), iterations=3)


@pytest.fixture(scope="module")
def images(photograph: NDArray[np.float64]) -> CleanImages:
    starts = [(0, 0), (30, 10), (50, 50)]
    crops = np.stack([photograph[y : y + 24, x : x + 28] for y, x in starts])
    return CleanImages(crops.astype(np.float32), ("a", "b", "c"), "three crops")


ITEMS = [(0, 20.0), (1, 50.0), (2, 20.0)]


@pytest.mark.slow
@pytest.mark.parametrize("name", some(["pm", "eed", "iid-full", "iad-reduced"], "pm", "eed"))
def test_tangents_equal_finite_differences(name: str, images: CleanImages) -> None:
    model = replace(MODELS[name], steps=2)
    parameterisation = Parameterisation(model, LEVELS)
    lineariser = TorchLineariser(parameterisation, images, device="cpu", double=True)
    point = parameterisation.vector(model)
    found = lineariser.linearise(point, ITEMS)
    assert found.curvature.shape == (3, len(point), len(point))
    for i in range(len(point)):
        step = np.zeros_like(point)
        step[i] = 1e-5
        ahead = lineariser.linearise(point + step, ITEMS).error
        behind = lineariser.linearise(point - step, ITEMS).error
        np.testing.assert_allclose(
            2 * found.gradient[:, i], (ahead - behind) / 2e-5, rtol=1e-4, atol=1e-4
        )


@pytest.mark.slow
@pytest.mark.parametrize("name", ["eed", "iad-full"])
def test_tangents_equal_reverse_mode(name: str, images: CleanImages) -> None:
    parameterisation = Parameterisation(MODELS[name], (20.0,))
    lineariser = TorchLineariser(parameterisation, images, device="cpu", double=True)
    vector = parameterisation.vector(MODELS[name])
    found = lineariser.linearise(vector, [(2, 20.0)])
    point = torch.tensor(vector, requires_grad=True)
    clean = torch.tensor(images.pixels[2], dtype=torch.float64)
    noisy = clean + torch.tensor(noise(20.0, 2, (24, 28)), dtype=torch.float64)
    result = parameterisation.differentiable_model(point)(noisy, 20.0)
    error = ((result - clean) ** 2).mean()
    (gradient,) = torch.autograd.grad(error, point)
    assert found.error[0] == pytest.approx(float(error.detach()), rel=1e-10)
    np.testing.assert_allclose(2 * found.gradient[0], gradient.numpy(), rtol=1e-8, atol=1e-12)


@pytest.mark.slow
def test_curvature_is_that_of_the_tangents(images: CleanImages) -> None:
    parameterisation = Parameterisation(MODELS["pm"], (20.0,))
    lineariser = TorchLineariser(parameterisation, images, device="cpu", double=True)
    vector = parameterisation.vector(MODELS["pm"])
    noisy = images.pixels[0].astype(np.float64) + noise(20.0, 0, (24, 28))

    def denoised(at: NDArray[np.float64]) -> NDArray[np.float64]:
        result: NDArray[np.float64] = parameterisation.model(at)(noisy, 20.0)
        return result.ravel()

    columns = [(denoised(vector + d) - denoised(vector - d)) / 2e-6 for d in 1e-6 * np.eye(2)]
    tangents = np.stack(columns, axis=1)
    expected = tangents.T @ tangents / len(tangents)
    found = lineariser.linearise(vector, [(0, 20.0)]).curvature[0]
    np.testing.assert_allclose(found, expected, rtol=1e-5)


@pytest.mark.long
@pytest.mark.parametrize("name", ["pm", "iid-full", "iad-reduced", "iad-full"])
def test_compiled_tangents_are_the_same(name: str, images: CleanImages) -> None:
    model = replace(MODELS[name], steps=2)
    levels, items = (LEVELS, ITEMS) if name == "iad-reduced" else ((20.0,), ITEMS[::2])
    parameterisation = Parameterisation(model, levels)
    vector = parameterisation.vector(model)
    options: dict[str, Any] = {"device": "cpu", "batch": 2, "double": True}
    expected = TorchLineariser(parameterisation, images, **options).linearise(vector, items)
    # The backend only runs what was traced: the real one compiles for half a minute.
    lineariser = CompiledLineariser(parameterisation, images, **options, backend="eager")
    found = lineariser.linearise(vector, items)
    for part in ("error", "gradient", "curvature"):
        np.testing.assert_allclose(
            getattr(found, part), getattr(expected, part), rtol=1e-9, atol=1e-9
        )


@dataclass(frozen=True, kw_only=True)
class Mixed(ExplicitModel):
    """One term of each order whose eigenvalues are mixed; no kind of its own."""

    contrast: float = field(metadata=parameter(positive_number))
    mix: float = field(metadata=parameter(finite_number, transform="identity"))

    def _evolution(self, sigma: float) -> Evolution:
        def term(order: int, mix: Any) -> Term:
            return Term(
                derivatives=self.derivatives(order),
                coupling=Coupling(weights=(1.0, 0.5), integration_scale=0.7, mix=mix),
                diffusivity=Exponential(contrasts=(self.contrast, self.contrast)),
                flux_weights=(0.3, 0.2),
            )

        schedule = ((term(1, self.mix), term(2, -self.mix)),)
        return Evolution(scales=(0.4, 1.2), schedule=schedule, tau=self.tau, steps=self.steps)


@pytest.mark.long
def test_compiled_tangents_mix_eigenvalues(images: CleanImages) -> None:
    model = Mixed(contrast=9.0, mix=-0.3, tau=0.2, steps=2)
    parameterisation = Parameterisation(model, (20.0,))
    vector = parameterisation.vector(model)
    assert set(parameterisation.names) == {"contrast", "mix", "tau"}
    options: dict[str, Any] = {"device": "cpu", "batch": 2, "double": True}
    items = ITEMS[::2]
    expected = TorchLineariser(parameterisation, images, **options).linearise(vector, items)
    found = CompiledLineariser(parameterisation, images, **options, backend="eager").linearise(
        vector, items
    )
    assert np.abs(expected.gradient[:, parameterisation.names.index("mix")]).min() > 1e-3
    for part in ("error", "gradient", "curvature"):
        np.testing.assert_allclose(
            getattr(found, part), getattr(expected, part), rtol=1e-8, atol=1e-8
        )


def test_batches_do_not_matter(images: CleanImages) -> None:
    parameterisation = Parameterisation(MODELS["iad-reduced"], LEVELS)
    vector = parameterisation.vector(MODELS["iad-reduced"])
    one, all_at_once = (
        TorchLineariser(parameterisation, images, device="cpu", batch=b, double=True).linearise(
            vector, ITEMS
        )
        for b in (1, 3)
    )
    np.testing.assert_allclose(one.error, all_at_once.error, rtol=1e-10)
    np.testing.assert_allclose(one.curvature, all_at_once.curvature, rtol=1e-8)


class TestParameterisation:
    def test_round_trip_and_names(self) -> None:
        parameterisation = Parameterisation(MODELS["iad-full"], LEVELS, fixed=["gammas[0]"])
        assert parameterisation.names == (
            *(f"gammas[{i}]" for i in (1, 2)),
            *(f"lambdas[{i}]" for i in range(3)),
            "tau",
        )
        model = parameterisation.model(parameterisation.vector(MODELS["iad-full"]))
        assert isinstance(model, IAD)
        assert isinstance(model.law, FullLaw)
        assert model.law.lambdas == pytest.approx(FULL.lambdas)

    def test_a_sequence_is_fixed_as_a_whole(self) -> None:
        names = Parameterisation(MODELS["iad-full"], LEVELS, fixed=["gammas", "tau"]).names
        assert names == ("lambdas[0]", "lambdas[1]", "lambdas[2]")

    def test_step_size_stays_within_its_bound(self) -> None:
        parameterisation = Parameterisation(MODELS["pm"], LEVELS)
        vector = parameterisation.vector(MODELS["pm"])
        vector[-1] = np.log(7.0)
        assert parameterisation.model(vector).tau == pytest.approx(0.5)

    def test_a_law_takes_the_bound_of_each_level(self) -> None:
        model = replace(COMPACT_TENSOR, tau=100.0)
        parameterisation = Parameterisation(model, LEVELS)
        vector = parameterisation.vector(model)
        assert parameterisation.model(vector).tau == pytest.approx(100.0)
        taus = [parameterisation.evolution(model, level).tau for level in LEVELS]
        assert taus == pytest.approx([model.evolution(level).tau for level in LEVELS])
        assert taus[0] != pytest.approx(taus[1], rel=1e-2)
        low = replace(model, tau=0.01)
        assert parameterisation.evolution(low, LEVELS[0]).tau == 0.01

    def test_the_bound_of_a_law_has_derivatives(self) -> None:
        model = replace(COMPACT_TENSOR, tau=100.0)
        parameterisation = Parameterisation(model, LEVELS)
        vector = parameterisation.vector(model)
        base = parameterisation.evolution(model, 20.0)

        def step_size(point: Any) -> Any:
            differentiable = parameterisation.differentiable_model(point)
            return parameterisation.evolution(differentiable, 20.0).tau

        slopes = torch.func.jacfwd(step_size)(torch.tensor(vector)).numpy()
        assert np.abs(slopes).max() > 0.05 * base.tau
        for i, step in enumerate(0.02 * np.eye(len(vector))):
            ahead, behind = (parameterisation.model(vector + way) for way in (step, -step))
            # The certified bounds themselves, which are exact up to a thousandth.
            exact = (ahead.stable_step(20.0) - behind.stable_step(20.0)) / 0.04
            assert slopes[i] == pytest.approx(exact, abs=0.06 * base.tau)
            near = parameterisation.evolution_without_bound(vector + step, 20.0)
            change = (parameterisation.step_at_bound(near, base) - base.tau) / 0.02
            assert slopes[i] == pytest.approx(change, abs=0.05 * base.tau)

    def test_what_cannot_be_trained_is_refused(self) -> None:
        with pytest.raises(ValueError, match="no parameter 'delta' to fix"):
            Parameterisation(MODELS["pm"], LEVELS, fixed=["delta"])
        with pytest.raises(ValueError, match="nothing to train"):
            Parameterisation(MODELS["pm"], LEVELS, fixed=["contrast", "tau"])
        zero = replace(MODELS["iad-full"], law=FullLaw(gammas=(1, 0, 1), lambdas=(1, 1, 1)))
        with pytest.raises(ValueError, match=r"gammas\[1\] = 0.0 has no logarithm"):
            Parameterisation(zero, LEVELS).vector(zero)


def test_smoothness_penalty_and_its_derivatives() -> None:
    parameterisation = Parameterisation(MODELS["iad-full"], (20.0,), fixed=["tau"])
    vector = parameterisation.vector(MODELS["iad-full"])
    residual, derivative = smoothness(MODELS["iad-full"], 20.0)
    assert residual == pytest.approx([-0.2, -0.5, -21 / 20, -6 / 20])
    for i in range(len(vector)):
        step = 1e-6 * np.eye(len(vector))[i]
        ahead, _ = smoothness(parameterisation.model(vector + step), 20.0)
        np.testing.assert_allclose((ahead - residual) / 1e-6, derivative[:, i], atol=1e-5)
    with pytest.raises(TypeError, match="full law"):
        smoothness(MODELS["pm"], 20.0)


class TestFit:
    @pytest.mark.slow
    @pytest.mark.parametrize(
        ("name", "loss"),
        some(
            [("pm", "psnr"), ("pm", "mse"), ("eed", "psnr"), ("iad-reduced", "psnr")],
            ("pm", "mse"),
            ("eed", "psnr"),
        ),
    )
    def test_the_loss_goes_down(self, name: str, loss: Any, images: CleanImages) -> None:
        levels = LEVELS
        steps: list[Progress] = []
        start = replace(MODELS[name], tau=0.05)
        result = fit(
            start,
            images,
            levels,
            settings=replace(SETTINGS, loss=loss),
            callback=steps.append,
        )
        before = np.mean(list(mean_psnr(start, images, levels, engine="numpy").values()))
        assert result.psnr > before + 1
        last = [step.loss for step in steps if step.phase == 1]
        assert last == sorted(last, reverse=True)
        after = mean_psnr(result.model, images, levels, engine="numpy")
        assert after == pytest.approx(result.by_level, abs=1e-3)
        for level in levels:
            assert result.model.tau <= result.model.stable_step(level) * (1 + 1e-9)

    @pytest.mark.slow
    def test_finds_the_minimum_of_a_direct_search(self, images: CleanImages) -> None:
        from scipy.optimize import minimize

        settings = FitSettings(phases=(None,), tolerance=1e-7)
        found = fit(PeronaMalik(contrast=40, tau=0.05), images, (30.0,), settings=settings)

        def loss(logarithms: NDArray[np.float64]) -> float:
            contrast, tau = np.exp(logarithms)
            model = PeronaMalik(contrast=contrast, tau=min(tau, 0.5))
            return -mean_psnr(model, images, (30.0,), engine="numpy")[30.0]

        direct = minimize(loss, np.log([40, 0.05]), method="Nelder-Mead", options={"xatol": 1e-4})
        assert found.psnr == pytest.approx(-direct.fun, abs=1e-4)

    @pytest.mark.long
    def test_parameters_without_effect_do_not_hold_the_others_up(self, images: CleanImages) -> None:
        """A weight so small that its contrast means nothing must not stop the training."""
        law = FullLaw(gammas=(1.0, 0.5, 1e-6), lambdas=(60.0, 20.0, 1e-3))
        start = IAD(law=law, tau=0.05, steps=2, scales=FEW_SCALES)
        settings = FitSettings(phases=(None,), iterations=5)
        result = fit(start, images, (30.0,), settings=settings, fixed=["gammas[0]"])
        simple = fit(start, images, (30.0,), settings=settings, fixed=["gammas", "lambdas[2]"])
        before = mean_psnr(start, images, (30.0,), engine="numpy")[30.0]
        assert result.psnr - before > 0.9 * (simple.psnr - before) > 1

    @pytest.mark.slow
    def test_level_weights_move_the_balance(self, images: CleanImages) -> None:
        start = MODELS["pm"]
        plain = fit(start, images, LEVELS, settings=SETTINGS)
        heavy = fit(
            start, images, LEVELS, settings=replace(SETTINGS, level_weights=((20.0, 10.0),))
        )
        assert heavy.by_level[20.0] > plain.by_level[20.0]
        assert heavy.by_level[50.0] < plain.by_level[50.0]

    @pytest.mark.long
    def test_the_penalty_makes_the_laws_smoother(self, images: CleanImages) -> None:
        def roughness(penalty: float) -> float:
            settings = FitSettings(phases=(None,), iterations=3, penalty=penalty)
            result = fit(
                MODELS["iad-full"], images, (30.0,), settings=settings, fixed=["gammas[0]"]
            )
            residual, _ = smoothness(result.model, 30.0)
            return float(residual @ residual)

        assert roughness(1.0) < 0.5 * roughness(0.0)

    @pytest.mark.long
    def test_same_seed_same_parameters(self, images: CleanImages) -> None:
        first, second = (
            fit(MODELS["eed"], images, LEVELS, settings=SETTINGS).model for _ in range(2)
        )
        assert first == second

    def test_the_better_start_wins(self, images: CleanImages) -> None:
        hopeless = PeronaMalik(contrast=1e-3, tau=1e-6, steps=3)
        settings = FitSettings(phases=(1, None), iterations=2)
        result = fit([hopeless, MODELS["pm"]], images, LEVELS, settings=settings)
        alone = fit(MODELS["pm"], images, LEVELS, settings=settings)
        assert result.model == alone.model

    def test_starts_must_belong_together(self, images: CleanImages) -> None:
        other = replace(MODELS["pm"], steps=7)
        with pytest.raises(ValueError, match="starts must share class and settings"):
            fit([MODELS["pm"], other], images, LEVELS)

    def test_own_linearisers_plug_in(self, images: CleanImages) -> None:
        """The seam that other engines use: here a quadratic bowl with its minimum at one."""

        class Bowl:
            def linearise(
                self, vector: NDArray[np.float64], items: Sequence[tuple[int, float]]
            ) -> Linearisation:
                count = len(items)
                return Linearisation(
                    np.full(count, 1 + vector @ vector),
                    np.tile(vector, (count, 1)),
                    np.tile(np.eye(len(vector)), (count, 1, 1)),
                )

        result = fit(MODELS["pm"], images, (20.0,), fixed=["tau"], lineariser=lambda *_: Bowl())
        assert isinstance(result.model, PeronaMalik)
        assert result.model.contrast == pytest.approx(1.0, abs=0.02)

    def test_steps_cut_to_size_do_not_end_the_training(self, images: CleanImages) -> None:
        """In a narrow valley a step, cut to what one parameter may change, may point uphill."""

        class Valley:
            jacobian = np.array([[10.0, -20.0], [0.05, 0.1]])

            def linearise(
                self, vector: NDArray[np.float64], items: Sequence[tuple[int, float]]
            ) -> Linearisation:
                residual = self.jacobian @ vector - np.array([0.0, 1.0])
                count = len(items)
                return Linearisation(
                    np.full(count, 1 + residual @ residual),
                    np.tile(self.jacobian.T @ residual, (count, 1)),
                    np.tile(self.jacobian.T @ self.jacobian, (count, 1, 1)),
                )

        start = replace(MODELS["eed"], contrast=1.0, scale=1.0)
        result = fit(
            start,
            images,
            (20.0,),
            settings=FitSettings(loss="mse", phases=(None,), iterations=60),
            fixed=["tau"],
            lineariser=lambda *_: Valley(),
        )
        assert result.loss < 1.05  # 2 at the start, 1 at the minimum


class TestInterruption:
    @pytest.mark.slow
    def test_a_killed_run_ends_at_the_same_place(self, images: CleanImages, tmp_path: Path) -> None:
        def run(checkpoint: Path | None, stop_after: int | None) -> Any:
            count = 0

            def watch(_: Progress) -> None:
                nonlocal count
                count += 1
                if count == stop_after:
                    raise KeyboardInterrupt

            return fit(
                [replace(MODELS["pm"], tau=0.01), MODELS["pm"]],
                images,
                LEVELS,
                settings=SETTINGS,
                checkpoint=checkpoint,
                log=tmp_path / "log.jsonl",
                callback=watch,
            )

        whole = run(None, None).model
        steps = len((tmp_path / "log.jsonl").read_text().splitlines())
        assert steps > 4
        for stop_after in (1, steps // 2):
            checkpoint = tmp_path / f"{stop_after}.json"
            with pytest.raises(KeyboardInterrupt):
                run(checkpoint, stop_after)
            resumed = run(checkpoint, None).model
            assert resumed.contrast == pytest.approx(whole.contrast, rel=1e-4)
            assert resumed.tau == pytest.approx(whole.tau, rel=1e-4)

    @pytest.mark.slow
    def test_checkpoints_of_other_trainings_are_refused(
        self, images: CleanImages, tmp_path: Path
    ) -> None:
        checkpoint = tmp_path / "c.json"
        fit(MODELS["pm"], images, LEVELS, settings=SETTINGS, checkpoint=checkpoint)
        with pytest.raises(ValueError, match="belongs to another training"):
            fit(MODELS["pm"], images, (20.0,), settings=SETTINGS, checkpoint=checkpoint)
        checkpoint.write_text("{}")
        with pytest.raises(ValueError, match="is not a checkpoint"):
            fit(MODELS["pm"], images, LEVELS, settings=SETTINGS, checkpoint=checkpoint)

    def test_what_is_no_checkpoint(self, images: CleanImages, tmp_path: Path) -> None:
        nested, large, pipe = (tmp_path / f"{name}.json" for name in ("nested", "large", "pipe"))
        nested.write_text("[" * 100_000)
        with large.open("wb") as stream:
            stream.truncate(2**34)
        os.mkfifo(pipe)
        for checkpoint in (nested, large, pipe, tmp_path):
            with pytest.raises(ValueError, match="is not a checkpoint"):
                fit(MODELS["pm"], images, LEVELS, settings=SETTINGS, checkpoint=checkpoint)

    def test_the_log_has_a_line_for_each_step(self, images: CleanImages, tmp_path: Path) -> None:
        steps: list[Progress] = []
        log = tmp_path / "log.jsonl"
        fit(MODELS["pm"], images, LEVELS, settings=SETTINGS, log=log, callback=steps.append)
        lines = [json.loads(line) for line in log.read_text().splitlines()]
        assert [line["psnr"] for line in lines] == [step.psnr for step in steps]
        assert set(lines[0]["parameters"]) == {"contrast", "tau"}


@pytest.mark.parametrize("name", ["pm", "iad"])
def test_recipes_give_models_with_provenance(name: str, images: CleanImages) -> None:
    settings = FitSettings(phases=(None,), iterations=1)
    model = train(name, images, LEVELS, settings=settings, device="cpu", change={"steps": 2})
    assert isinstance(model, ByNoiseLevel) == RECIPES[name].per_level
    assert model.evolution(30.0).steps == 2
    assert model.provenance["data_sha256"] == images.fingerprint
    assert set(model.provenance["psnr_on_training_images"]) == {"20", "50"}
    assert model.provenance["versions"]["torch"] == torch.__version__
    weights = [list(pair) for pair in RECIPES[name].level_weights]
    assert model.provenance["level_weights"] == weights


def test_unknown_recipe() -> None:
    empty = CleanImages(np.zeros((1, 4, 4), np.float32), ("x",), "")
    with pytest.raises(ValueError, match="unknown recipe 'bm3d'"):
        train("bm3d", empty, LEVELS)
