# mypy: disable-error-code="arg-type"
"""Parameters: what is accepted, what is refused, and how noise levels are joined."""

from __future__ import annotations

from dataclasses import FrozenInstanceError, dataclass, field, replace
from typing import Any

import numpy as np
import pytest
from cases import FEW_SCALES, FULL, MODELS, REDUCED, SIGMA
from numpy.typing import NDArray
from selection import some

from integrodiff import (
    EED,
    IAD,
    IID,
    MODEL_NAMES,
    ByNoiseLevel,
    FullLaw,
    PeronaMalik,
    ReducedLaw,
    ScaleGrid,
    StepSizeWarning,
    load_model,
)
from integrodiff._checks import finite_number
from integrodiff.learning import Parameterisation
from integrodiff.models import base, model_from_json, model_to_json
from integrodiff.models.base import KINDS
from integrodiff.models.description import parameter

NAN, INFINITY = float("nan"), float("inf")


@pytest.mark.parametrize(
    ("build", "message"),
    [
        (lambda: PeronaMalik(contrast=-1, tau=0.1), "contrast must be positive"),
        (lambda: PeronaMalik(contrast=NAN, tau=0.1), "contrast must be finite"),
        (lambda: PeronaMalik(contrast=5, tau=0), "tau must be positive"),
        (lambda: PeronaMalik(contrast=5, tau=INFINITY), "tau must be finite"),
        (lambda: PeronaMalik(contrast=5, tau=0.1, steps=0), "steps must be at least 1"),
        (lambda: PeronaMalik(contrast=5, tau=0.1, theta=0.6), "theta must lie between 0 and 0.5"),
        (lambda: EED(contrast=5, scale=-1, tau=0.1), "scale must be positive"),
        (lambda: ReducedLaw(alpha=-1, beta=1, lambda_0=1), "alpha must not be negative"),
        (lambda: ReducedLaw(alpha=1, beta=1, lambda_0=0), "lambda_0 must be positive"),
        (lambda: FullLaw(gammas=(1, -1), lambdas=(1, 1)), r"gammas\[1\] must not be negative"),
        (lambda: FullLaw(gammas=(1, 1), lambdas=(1, 0)), r"lambdas\[1\] must be positive"),
        (lambda: FullLaw(gammas=(1, 1), lambdas=(1,)), "lambdas must have 2 values, got 1"),
        (lambda: FullLaw(gammas=(), lambdas=()), "at least one value"),
        (lambda: ScaleGrid(count=0), "count must be at least 1"),
        (lambda: ScaleGrid(smallest=0.0), "smallest must be positive"),
        (lambda: ScaleGrid(smallest=8.0), "smallest must be below largest"),
        (lambda: ScaleGrid(count=1), "largest equal to smallest"),
        (lambda: IAD(law=FULL, tau=0.1), "3 weights and contrasts for 8 scales"),
        (
            lambda: PeronaMalik(contrast=5, tau=0.1, discretisation="upwind"),
            "discretisation must be one of 'haar', 'nonnegativity'",
        ),
        (
            lambda: ScaleGrid(quadrature="simpson"),
            "quadrature must be one of",
        ),
    ],
)
def test_values_out_of_range_are_refused(build: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        build()


@pytest.mark.parametrize(
    ("build", "message"),
    [
        (lambda: PeronaMalik(contrast="5", tau=0.1), "contrast must be a real number"),
        (lambda: PeronaMalik(contrast=True, tau=0.1), "contrast must be a real number"),
        (lambda: PeronaMalik(contrast=5, tau=0.1, steps=2.5), "steps must be a whole number"),
        (lambda: FullLaw(gammas=3.0, lambdas=(1,)), "gammas must be a sequence"),
        (lambda: IAD(law="reduced", tau=0.1), "law must be a ReducedLaw or a FullLaw"),
        (lambda: IAD(law=REDUCED, tau=0.1, scales=8), "scales must be a ScaleGrid"),
    ],
)
def test_wrong_types_are_refused(build: Any, message: str) -> None:
    with pytest.raises(TypeError, match=message):
        build()


def test_models_are_immutable_and_compare_by_value() -> None:
    model = MODELS["iad-reduced"]
    with pytest.raises(FrozenInstanceError):
        model.tau = 0.1
    assert replace(model) == model
    assert hash(replace(model)) == hash(model)
    assert replace(model, tau=0.1) != model
    assert replace(model, provenance={"note": "elsewhere"}) == model


def test_defaults_are_the_papers() -> None:
    model = IAD(law=REDUCED, tau=0.1)
    assert (model.steps, model.scales.count) == (10, 8)
    assert model.scales.scales[0] == pytest.approx(0.2)
    assert model.scales.scales[-1] == pytest.approx(7.0)
    ratios = np.array(model.scales.scales[1:]) / np.array(model.scales.scales[:-1])
    np.testing.assert_allclose(ratios, ratios[0])


def test_quadrature_integrates_over_the_scales() -> None:
    """The sum of a smooth function times the weights approaches its integral."""
    grid = ScaleGrid(count=200, smallest=0.01, largest=7.0)
    integral = np.dot(grid.quadrature_weights, np.exp(-np.array(grid.scales)))
    assert integral == pytest.approx(np.exp(-0.01) - np.exp(-7.0), rel=1e-3)
    assert ScaleGrid(quadrature="none").quadrature_weights == (1.0,) * 8
    over_variance = replace(grid, quadrature="variance")
    integral = np.dot(over_variance.quadrature_weights, np.exp(-(np.array(grid.scales) ** 2)))
    assert integral == pytest.approx(0.5, rel=1e-3)


def test_reduced_law_is_the_papers() -> None:
    law = ReducedLaw(alpha=1.64, beta=2.46, lambda_0=1.47)
    gammas, lambdas = law.values([0.0, 2.0], 16.0)
    assert gammas == pytest.approx([1.0, np.exp(-1.64 * 4 / 4)])
    assert lambdas == pytest.approx([1.47 * 16, 1.47 * 16 / (1 + 2.46 * 4)])


class TestStableStep:
    def test_known_values(self) -> None:
        assert PeronaMalik(contrast=5, tau=0.1).stable_step(SIGMA) == pytest.approx(0.5)
        assert EED(contrast=5, scale=2, tau=0.1).stable_step(SIGMA) == pytest.approx(0.5)
        five_point = PeronaMalik(contrast=5, tau=0.1, theta=0.0)
        assert five_point.stable_step(SIGMA) == pytest.approx(0.25)
        paper = PeronaMalik(contrast=5, tau=0.1, discretisation="nonnegativity")
        assert paper.stable_step(SIGMA) == pytest.approx(0.25)
        paper_eed = EED(contrast=5, scale=1, tau=0.1, discretisation="nonnegativity")
        assert paper_eed.stable_step(SIGMA) == pytest.approx(0.2)

    def test_shipped_iad_has_room_to_its_bound(self) -> None:
        model = load_model("iad")
        assert model.evolution(30.0).tau < 0.4 * model.stable_step(30.0)

    def test_value_for_the_eight_scales_of_the_paper(self) -> None:
        model = IAD(law=ReducedLaw(alpha=0.0126, beta=7.18, lambda_0=1.064), tau=0.571)
        assert model.stable_step(30.0) == pytest.approx(1.52, abs=0.01)

    @pytest.mark.parametrize("name", MODELS)
    def test_larger_steps_are_cut_to_the_bound_with_a_warning(self, name: str) -> None:
        bound = MODELS[name].stable_step(SIGMA)
        large = replace(MODELS[name], tau=1.001 * bound)
        with pytest.warns(StepSizeWarning, match=f"at noise level 25, tau = {bound:.6g}, which is"):
            evolution = large.evolution(SIGMA)
        assert evolution == replace(MODELS[name], tau=bound).evolution(SIGMA)
        assert evolution.tau == bound

    def test_an_absurd_step_is_no_error(self) -> None:
        model = PeronaMalik(contrast=5, tau=1e9)
        image = np.random.default_rng(0).normal(size=(6, 7))
        with pytest.warns(StepSizeWarning, match=r"tau = 1e\+09 of this PeronaMalik"):
            result = model(image, 5.0)
        assert np.linalg.norm(result) <= np.linalg.norm(image)

    def test_laws_include_the_bound_and_do_not_warn(self) -> None:
        """The shipped ones reach it: iad-plus from 8 on, iad-fast always, EED at 100."""
        for name, sigma in (("iad-plus", 10.0), ("iad-fast", 2.0), ("eed", 150.0)):
            model = load_model(name)
            expected = model.share_of_bound * model.stable_step(sigma)
            assert model.evolution(sigma).tau == pytest.approx(expected)

    def test_joined_models_warn_at_their_levels_alone(self) -> None:
        large = replace(MODELS["eed"], tau=2.0)
        joined = ByNoiseLevel(levels=(10.0, 40.0), models=(large, large))
        assert joined.evolution(20.0).tau == pytest.approx(0.5)
        with pytest.warns(StepSizeWarning, match="of this ByNoiseLevel"):
            assert joined.evolution(10.0).tau == pytest.approx(0.5)

    def test_depends_on_the_noise_level_in_the_reduced_form(self) -> None:
        model = replace(MODELS["iad-reduced"], law=ReducedLaw(alpha=5, beta=1, lambda_0=1))
        assert model.stable_step(60.0) < model.stable_step(1.0)


class TestDescription:
    def test_one_class_in_one_file_is_a_new_model(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """Files, training and the count of numbers know a class from its declaration alone."""
        monkeypatch.setattr("integrodiff.models.base.KINDS", dict(KINDS))
        monkeypatch.setattr("integrodiff.models.files.KINDS", base.KINDS)

        @dataclass(frozen=True, kw_only=True)
        class Linear(PeronaMalik):
            kind = "linear"
            bend: float = field(
                default=0.5, metadata=parameter(finite_number, transform="identity")
            )

        model = Linear(contrast=3.0, tau=0.1, bend=-2.0)
        assert model.parameters() == {"contrast": 3.0, "bend": -2.0, "tau": 0.1}
        assert model_from_json(model_to_json(model)) == model
        assert (model.number_count(), replace(model, bend=0.5).number_count()) == (3, 2)
        joined = ByNoiseLevel(levels=(10, 1000), models=(model, replace(model, bend=2.0)))
        assert joined.at(100.0).parameters() == pytest.approx(
            {"contrast": 3.0, "bend": 0.0, "tau": 0.1}
        )
        vector = Parameterisation(model, (10.0,)).vector(model)
        assert vector == pytest.approx([np.log(3.0), -2.0, np.log(0.1)])

    @pytest.mark.parametrize(
        ("name", "count"),
        [
            *(("pm", 2), ("eed", 3), ("iad", 4), ("iad-full", 16)),
            *(("iad-fast", 10), ("iad-plus", 12), ("iad-deep", 388)),
            *(("iad-power-fast", 8), ("iad-power", 8), ("iad-orders", 288)),
        ],
    )
    def test_counts_of_the_shipped_models(self, name: str, count: int) -> None:
        model: Any = load_model(name)
        members = model.models if isinstance(model, ByNoiseLevel) else (model,)
        assert {member.number_count() for member in members} == {count}
        if name in ("iad-fast", "iad-plus", "iad-deep"):
            assert model.noise_levels == (2, 5, 10, 15, 20, 25, 30, 40, 50, 60, 75, 100)
        else:
            assert model.noise_levels == (10, 20, 30, 40, 50, 60)

    def test_levels_of_training_are_those_of_the_provenance_or_the_joined_models(self) -> None:
        assert MODELS["pm"].noise_levels == ()
        joined = ByNoiseLevel(levels=(10, 20), models=(MODELS["pm"], MODELS["pm"]))
        assert list(joined.noise_levels) == [10, 20]
        assert list(replace(joined, provenance={"noise_levels": [15]}).noise_levels) == [15]


@pytest.mark.parametrize("sigma", [-1.0, 0.0, NAN, INFINITY])
def test_impossible_noise_levels_are_refused(sigma: float) -> None:
    with pytest.raises(ValueError, match="sigma must be"):
        MODELS["pm"].evolution(sigma)


class TestModelCall:
    def test_zero_noise_returns_a_copy(self) -> None:
        image = np.arange(12.0).reshape(3, 4)
        result = MODELS["iad-reduced"](image, 0.0)
        np.testing.assert_array_equal(result, image)
        assert not np.shares_memory(result, image)

    @pytest.mark.parametrize("shape", [(), (5,), (0, 4), (3, 4, 0)])
    def test_bad_shapes_are_refused(self, shape: tuple[int, ...]) -> None:
        with pytest.raises(ValueError, match="at least 2 axes"):
            MODELS["pm"](np.zeros(shape), 5.0)

    def test_channel_axis_needs_three_axes(self) -> None:
        with pytest.raises(ValueError, match="at least 3 axes"):
            MODELS["pm"](np.zeros((4, 4)), 5.0, channel_axis=0)

    @pytest.mark.parametrize("dtype", [np.uint8, np.complex128, bool])
    def test_only_real_floating_point(self, dtype: Any) -> None:
        with pytest.raises(TypeError, match="real floating-point"):
            MODELS["pm"](np.zeros((4, 4), dtype), 5.0)

    def test_callback_has_the_layout_of_the_input(self) -> None:
        shapes: list[tuple[int, ...]] = []
        image = np.random.default_rng(0).normal(size=(5, 6, 3))
        MODELS["pm"](image, 5.0, channel_axis=-1, callback=lambda _, now: shapes.append(now.shape))
        assert shapes == [(5, 6, 3)] * 3


class TestByNoiseLevel:
    joined = ByNoiseLevel(
        levels=(10.0, 40.0),
        models=(
            EED(contrast=8.0, scale=0.5, tau=0.1),
            EED(contrast=32.0, scale=2.0, tau=0.4),
        ),
    )

    def test_at_a_level_its_own_model(self) -> None:
        assert self.joined.at(10.0) is self.joined.models[0]
        assert self.joined.at(40.0) is self.joined.models[1]

    def test_between_levels_a_power_law(self) -> None:
        middle = self.joined.at(20.0)
        assert isinstance(middle, EED)
        assert (middle.contrast, middle.scale, middle.tau) == pytest.approx((16.0, 1.0, 0.2))

    def test_beyond_the_levels_the_law_continues_within_the_bound(self) -> None:
        below, above = self.joined.at(5.0), self.joined.at(80.0)
        assert isinstance(below, EED)
        assert isinstance(above, EED)
        assert (below.contrast, below.tau) == pytest.approx((4.0, 0.05))
        assert above.contrast == pytest.approx(64.0)
        assert above.tau == pytest.approx(0.5)  # the law would give 0.8

    def test_one_level_holds_everywhere(self) -> None:
        single = ByNoiseLevel(levels=(20.0,), models=(MODELS["iad-full"],))
        assert single.at(55.0) == MODELS["iad-full"]

    def test_full_laws_are_joined_scale_by_scale(self) -> None:
        other = replace(
            MODELS["iad-full"],
            law=FullLaw(gammas=(1.0, 0.2, 0.3), lambdas=(120.0, 9.0, 3.0)),
        )
        joined = ByNoiseLevel(levels=(10.0, 40.0), models=(MODELS["iad-full"], other))
        middle = joined.at(20.0)
        assert isinstance(middle, IAD)
        assert isinstance(middle.law, FullLaw)
        assert middle.law.gammas == pytest.approx((1.0, 0.4, 0.3))
        assert middle.law.lambdas == pytest.approx((60.0, 9.0, 3.0))

    @pytest.mark.slow
    @pytest.mark.parametrize(
        ("sigma", "nearest"), some([(2.5, 10.0), (120.0, 60.0)], (120.0, 60.0))
    )
    def test_beyond_the_levels_full_laws_see_the_image_in_other_units(
        self, sigma: float, nearest: float, photograph: NDArray[np.float64]
    ) -> None:
        model = load_model("iad-full")
        factor = sigma / nearest
        expected = factor * model(photograph / factor, nearest)
        np.testing.assert_allclose(model(photograph, sigma), expected, rtol=0, atol=1e-9)

    @pytest.mark.parametrize(
        ("levels", "models", "message"),
        [
            ((10, 20), (MODELS["pm"],), "2 levels need as many models"),
            ((20, 10), (MODELS["pm"], MODELS["pm"]), "levels must increase"),
            ((0, 10), (MODELS["pm"], MODELS["pm"]), "must be positive"),
            ((10, 20), (MODELS["pm"], MODELS["eed"]), "one class with equal settings"),
            (
                (10, 20),
                (MODELS["pm"], replace(MODELS["pm"], steps=7)),
                "one class with equal settings",
            ),
        ],
    )
    def test_what_does_not_fit_is_refused(self, levels: Any, models: Any, message: str) -> None:
        with pytest.raises(ValueError, match=message):
            ByNoiseLevel(levels=levels, models=models)

    def test_models_over_all_levels_cannot_be_joined(self) -> None:
        with pytest.raises(TypeError, match="only models for one noise level"):
            ByNoiseLevel(levels=(10,), models=(MODELS["iad-reduced"],))

    def test_weights_of_zero_have_no_power_law(self) -> None:
        zero = replace(MODELS["iad-full"], law=FullLaw(gammas=(1, 0, 1), lambdas=(1, 1, 1)))
        with pytest.raises(ValueError, match="gammas of a model joined by noise level"):
            ByNoiseLevel(levels=(10, 20), models=(zero, zero))


@pytest.mark.slow
@pytest.mark.parametrize("name", MODEL_NAMES)
def test_shipped_models_are_stable_at_all_noise_levels(name: str) -> None:
    model = load_model(name)
    for sigma in (0.1, 1, 5, 10, 17, 33, 60, 90, 150):
        assert model.evolution(sigma).tau <= model.stable_step(sigma) * (1 + 1e-9)


def test_isotropic_and_anisotropic_differ_in_the_coupling_alone() -> None:
    iid = IID(law=REDUCED, tau=0.1, scales=FEW_SCALES).evolution(SIGMA)
    iad = IAD(law=REDUCED, tau=0.1, scales=FEW_SCALES).evolution(SIGMA)
    ((term,),) = iid.schedule
    assert term.coupling.kind == "trace"
    tensor = replace(term.coupling, kind="tensor")
    assert replace(iid, schedule=((replace(term, coupling=tensor),),)) == iad
