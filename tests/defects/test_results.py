"""Defects of the results: noise, range and channels of a file; steps; numbers at the edge.

The tests of this folder use nothing that commit 185952b did not have too, so that an environment
with that version can run them; docs/defects.md has the command, and what each of them found there.
"""

from __future__ import annotations

import math
import subprocess
import sys
import time
import warnings
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tifffile
from numpy.typing import NDArray
from typer.testing import CliRunner

import integrodiff
from integrodiff.cli import app
from integrodiff.engines import get_engine
from integrodiff.models import CompactDiffusion, PowerLaws

NATIVE_MISSING = get_engine("native").unavailable() if "native" in integrodiff.ENGINE_NAMES else "?"
needs_native = pytest.mark.skipif(NATIVE_MISSING is not None, reason=str(NATIVE_MISSING))
needs_linux = pytest.mark.skipif(sys.platform != "linux", reason="looks into /proc")


def scene(height: int = 96, width: int = 104) -> NDArray[np.float64]:
    """Return discs and stripes on the scale [0, 1]."""
    y, x = np.mgrid[:height, :width]
    disc = (y - height / 2) ** 2 + (x - width / 3) ** 2 < (height / 4) ** 2
    return np.asarray(0.5 * disc + 0.25 * (x // 16 % 2) + 0.25 * (y > height / 2), np.float64)


def run(*words: object) -> str:
    """Run the command line in this process; return what it says."""
    done = CliRunner().invoke(app, [str(word) for word in words], env={"COLUMNS": "300"})
    assert done.exit_code == 0, done.output
    return done.output


# ---- one request, one result ----


@pytest.mark.slow
@pytest.mark.parametrize("noise", ["poisson", "poisson-gaussian"])
def test_photon_counts_have_the_same_range_in_a_file_and_in_an_array(
    tmp_path: Path, noise: Any
) -> None:
    counts = np.random.default_rng(0).poisson(100 + 300 * scene()).astype(np.uint16)
    np.save(tmp_path / "in.npy", counts)
    run("denoise", tmp_path / "in.npy", tmp_path / "out.npy", "--noise", noise, "--quiet")
    np.testing.assert_array_equal(
        np.load(tmp_path / "out.npy"), integrodiff.denoise(counts, noise=noise)
    )


@pytest.mark.slow
def test_channels_of_a_file_have_a_noise_level_each(tmp_path: Path) -> None:
    """One median for both would leave the bright channel nearly as noisy as it was."""
    rng = np.random.default_rng(1)
    clean = np.stack([20 + 30 * scene(), 3000 * scene()])
    noisy = clean + rng.normal(0, 1, (3, *clean.shape)) * np.array([6, 160])[:, None, None]
    stack = np.rint(noisy).clip(0, 65535).astype(np.uint16)
    source, target = tmp_path / "in.ome.tif", tmp_path / "out.ome.tif"
    tifffile.imwrite(source, stack, metadata={"axes": "TCYX"})
    run("denoise", source, target, "--quiet")
    error = np.sqrt(np.mean((tifffile.imread(target).reshape(stack.shape) - clean) ** 2, (0, 2, 3)))
    before = np.sqrt(np.mean((stack - clean) ** 2, (0, 2, 3)))
    assert (error < 0.5 * before).all(), error / before


# ---- engines ----


@needs_native
@needs_linux
def test_threads_stay_while_somebody_watches() -> None:
    """The helpers of the first step are those of the last one."""
    image = np.random.default_rng(0).normal(128, 30, (256, 256)).astype(np.float32)
    threads = Path("/proc/self/task")
    before = set(threads.iterdir())
    helpers: list[set[Path]] = []

    def watch(*_: object) -> None:
        helpers.append(set(threads.iterdir()) - before)

    integrodiff.denoise(
        image, 30, model="iad", data_range=255, engine="native", threads=3, callback=watch
    )
    assert len(helpers) == 10
    assert all(found == helpers[0] for found in helpers)
    assert len(helpers[0]) == 2


@pytest.mark.slow
def test_auto_imports_no_torch_to_find_no_gpu() -> None:
    if Path("/dev/nvidiactl").exists():
        pytest.skip("there may be a GPU")
    code = (
        "import sys, numpy, integrodiff; integrodiff.denoise(numpy.zeros((8, 8)), 0.1); "
        "print('torch' in sys.modules)"
    )
    command = [sys.executable, "-W", "ignore", "-c", code]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert done.stdout == "False\n"


@needs_native
def test_subnormal_numbers_are_flushed() -> None:
    """Arithmetic with them takes a hundred times as long on some processors."""
    image = np.full((256, 300), 1e-40, np.float32)
    found = integrodiff.denoise(image, 25, model="iad", data_range=255, engine="native", threads=3)
    assert not found.any()


@needs_native
@pytest.mark.parametrize(("model", "sigma"), [("iid", 25), ("iad-fast", 5)])
def test_extreme_contrasts(model: str, sigma: float) -> None:
    image = np.zeros((40, 40), np.float32)
    image[20:] = 2.55e8
    found = integrodiff.denoise(image, sigma, model=model, data_range=255, engine="native")
    assert np.isfinite(found).all()
    assert np.abs(found - image).max() < 1e-3 * 2.55e8


@needs_native
def test_threads_change_no_bit_of_narrow_images() -> None:
    rng = np.random.default_rng(4)
    differing = []
    for width in (1, 2, 3, 8, 12, 18, 24):
        image = rng.normal(128, 40, (120, width))
        one, *others = (
            integrodiff.denoise(
                image, 30, model="iad", data_range=255, engine="native", threads=threads
            )
            for threads in (1, 2, 3)
        )
        if not all(np.array_equal(other, one) for other in others):
            differing.append(width)
    assert differing == []


@needs_native
def test_a_column_takes_hardly_longer_than_a_square() -> None:
    """Processor time of as many pixels; the engine needs about twice as much."""

    def seconds(*shape: int) -> float:
        image = np.random.default_rng(0).normal(128, 30, shape).astype(np.float32)
        times = []
        for _ in range(3):
            begun = time.process_time()
            integrodiff.denoise(image, 30, model="pm", data_range=255, engine="native", threads=1)
            times.append(time.process_time() - begun)
        return min(times)

    assert seconds(100_000, 1) < 5 * seconds(316, 316)


def test_half_precision_does_not_overflow() -> None:
    """The unbiased inverse adds a quarter of the gain to a constant image."""
    image = np.full((8, 9), 65504, np.float16)
    found = integrodiff.denoise(image, noise=integrodiff.PoissonGaussian(gain=2000.0))
    assert np.isfinite(found).all()


# ---- steps ----


def test_a_step_above_the_bound_is_cut_for_every_model() -> None:
    laws = PowerLaws(
        strengths=(1.0,),
        exponents=(0.0,),
        decays=(0.2,),
        contrasts=(1.0,),
        contrast_exponents=(1.0,),
    )
    law = integrodiff.ReducedLaw(alpha=0.2, beta=2.0, lambda_0=1.2)
    image = 255 * scene()
    for model in (
        integrodiff.PeronaMalik(contrast=20.0, tau=1e3, steps=3),
        integrodiff.EED(contrast=15.0, scale=0.8, tau=1e3, steps=3),
        integrodiff.IAD(law=law, tau=1e3, steps=3),
        CompactDiffusion(law=laws, tau=1e3, steps=3),
    ):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            found = integrodiff.denoise(image, 25, model=model, data_range=255)
        assert np.linalg.norm(found) <= np.linalg.norm(image)
        assert model.stable_step(25.0) < 1e3


def flat_law(largest: float, *gammas: float) -> integrodiff.IAD:
    """Return a model without edges: its contrasts are beyond all gradients."""
    grid = integrodiff.ScaleGrid(
        count=len(gammas), smallest=0.5, largest=largest, quadrature="none"
    )
    law = integrodiff.FullLaw(gammas=gammas, lambdas=(1e6,) * len(gammas))
    return integrodiff.IAD(law=law, tau=1e-3, scales=grid, steps=1)


@pytest.mark.parametrize("scale", [5.0, 50.0, 200.0])
def test_the_bound_of_large_scales_is_sharp(scale: float) -> None:
    """A blur of standard deviation s leaves of a gradient at most 1 / (e s^2) in the flow."""
    bound = flat_law(scale, 1e-9, 1.0).stable_step(25.0)
    assert bound == pytest.approx(2 * math.e * scale**2, rel=0.01)


@pytest.mark.slow
@needs_native
def test_the_norm_does_not_grow_with_shortcuts() -> None:
    """At its bound, on the image that a thousand steps of the same model leave."""
    grid = integrodiff.ScaleGrid(count=5, smallest=0.587, largest=6.422, quadrature="gradient")
    law = integrodiff.FullLaw(gammas=(0.109, 0.171, 2.388, 0.159, 0.363), lambdas=(1e6,) * 5)
    model = integrodiff.IAD(law=law, tau=1e-3, scales=grid, steps=1, theta=0.0)
    model = replace(model, tau=model.stable_step(25.0), steps=1000)
    image = np.random.default_rng(0).normal(0, 50, (16, 18))
    options: Any = {"data_range": 255, "engine": "native", "threads": 1}
    worst = integrodiff.denoise(image, 25, model=model, **options)
    found = integrodiff.denoise(worst, 25, model=replace(model, steps=10), **options)
    assert np.linalg.norm(found) <= np.linalg.norm(worst) * (1 + 1e-9)
