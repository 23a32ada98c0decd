"""The tables and figures of the paper: how they are computed, and those that are committed."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from image_samples import crops

import integrodiff
from integrodiff import IAD, FullLaw, ReducedLaw, ScaleGrid, learning, load_model
from integrodiff.learning.evaluation import mean_psnr
from integrodiff.reproduction import ablation, figure1, published, table1
from integrodiff.reproduction.evaluation import Evaluation


def test_orders_that_fail_are_reported() -> None:
    models = {name: load_model(name) for name in table1.MODELS}
    found = Evaluation(models, crops(), jobs=1)
    psnr = {"pm": 26.0, "eed": 27.0, "iid": 25.0, "iad": 28.0}
    found._psnr = {cell: (psnr[cell[0]],) * 2 for cell in table1.CELLS}
    found._psnr["iad", 10.0] = (26.0, 27.0)
    result = table1.compute(found)
    failing = [check for check in result["checks"] if not check["holds"]]
    assert failing == [{"check": "IAD > EED at s = 10", "holds": False, "difference": -0.5}]
    text = table1.markdown(result)
    assert "here 20 of 21 hold" in text
    assert "- **fails**: IAD > EED at s = 10 (-0.500 dB)" in text


def test_processes_give_the_same() -> None:
    images = crops()
    many = learning.CleanImages(np.tile(images.pixels, (3, 1, 1)), tuple("abcdef"), "six")
    models = {"pm": load_model("pm")}
    done: list[int] = []
    pool = Evaluation(models, many, jobs=2, callback=done.append)
    expected = mean_psnr(models["pm"], many, (20.0, 50.0), engine="numpy")
    assert pool.row("pm", (20.0, 50.0)) == pytest.approx(list(expected.values()), abs=1e-6)
    assert sorted(done) == [2, 2, 4, 4]
    assert pool.mean("pm", 20.0, 1) == Evaluation(models, images.part(0, 1)).mean("pm", 20.0)


def test_laws_are_found_again() -> None:
    law = ReducedLaw(alpha=1.64, beta=2.46, lambda_0=1.47)
    grid = ScaleGrid(smallest=0.1, quadrature="variance")
    rng = np.random.default_rng(0)
    free = []
    for level in published.FIGURE_1_LEVELS:
        gammas, lambdas = law.values(grid.scales, level)
        weights = [w * g**2 for w, g in zip(grid.quadrature_weights, gammas, strict=True)]
        # A contrast of a scale without weight means nothing.
        outlier = (*lambdas[:-1], 1000 * rng.random())
        free.append(
            figure1.FreeNumbers(
                level=level, gammas=gammas, lambdas=outlier, weights=(*weights[:-1], 0.0)
            )
        )
    found = figure1.fit_laws(grid.scales, free)
    for name in ("alpha", "beta", "lambda_0"):
        assert getattr(found.law, name) == pytest.approx(getattr(law, name), rel=1e-5)
    assert found.gamma_deviation < 1e-6
    assert found.lambda_deviation < 1e-6


def test_free_weights_are_normalised() -> None:
    law = FullLaw(gammas=(2.0, 1.0), lambdas=(6.0, 4.0))
    model = IAD(law=law, tau=1e-3, scales=ScaleGrid(count=2, quadrature="none"))
    scales, (first, _) = figure1.free_numbers(model)
    assert scales == pytest.approx((0.2, 7.0))
    assert (first.gammas, first.lambdas, first.weights) == ((1.0, 0.5), (3.0, 2.0), (1.0, 0.25))
    with pytest.raises(TypeError, match="no free weights"):
        figure1.free_numbers(load_model("iad"))
    with pytest.raises(TypeError, match="no reduced law"):
        figure1.compute({"iad-smooth": model, "iad": model})


def test_parameters_are_counted() -> None:
    law = FullLaw(gammas=(1.0, 0.5), lambdas=(6.0, 4.0))
    model = IAD(law=law, tau=1e-3, scales=ScaleGrid(count=2))
    joined = integrodiff.ByNoiseLevel(levels=(10.0, 20.0, 30.0), models=(model,) * 3)
    counts = ablation.parameter_counts("iad-full", joined)
    assert counts == {"laws": 12, "step_sizes": 3, "trained": 12}


def test_committed_cells_are_recomputed(research_data: Path) -> None:
    path = Path(__file__).parents[2] / "results" / "paper" / "table1.json"
    if not path.exists():
        pytest.skip(f"{path.name} is not in results/paper; make it with integrodiff reproduce")
    saved = json.loads(path.read_text(encoding="utf-8"))
    assert saved["test_images"]["count"] == published.TEST_IMAGES
    images = learning.bsds500("test", research_data, saved["first_crops"])
    for name, level in (("pm", "50"), ("eed", "20"), ("iad", "50")):
        psnr = mean_psnr(load_model(name), images, (float(level),), engine="numpy")
        expected = saved["psnr"][name]["on_first_crops"][level]
        assert psnr[float(level)] == pytest.approx(expected, abs=1e-3)
