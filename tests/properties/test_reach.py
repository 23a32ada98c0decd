"""The reach of an evolution: nothing beyond it changes a pixel, up to the tolerance."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from integrodiff import load_model
from integrodiff.engines import ENGINES, get_engine
from integrodiff.stages import Evolution, evolve, stable_on_masks

VOLUMES = ("iad-volume", "iad-plus-volume", "iad-fast-volume")
NAMES = ("pm", "eed", "iid", "iad", "iad-plus", "iad-fast", "iad-deep", "iad-full")


def small(name: str, sigma: float) -> Evolution:
    """Return two steps of a shipped model with its scales and integration scales made small."""
    evolution: Evolution = load_model(name).evolution(sigma)
    factor = 1.2 / max(1.2, *(float(scale) for scale in evolution.scales))

    def narrow(term: Any) -> Any:
        scale = factor * float(term.coupling.integration_scale)
        return replace(term, coupling=replace(term.coupling, integration_scale=scale))

    schedule = tuple(tuple(map(narrow, terms)) for terms in evolution.schedule)[:2]
    pull = evolution.pull[:2] if isinstance(evolution.pull, tuple) else evolution.pull
    scales = tuple(factor * float(scale) for scale in evolution.scales)
    return replace(evolution, schedule=schedule, pull=pull, scales=scales, steps=2, tau=0.05)


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("masked", [False, True])
def test_nothing_beyond_the_exact_reach_counts(name: str, masked: bool) -> None:
    evolution = small(name, 20.0)
    rng = np.random.default_rng(0)
    if masked:
        evolution = stable_on_masks(evolution)
    reach = evolution.reach(masked=masked)[1]
    image = rng.uniform(124, 130, (1, 5, 3 * reach // 2 + 9))
    mask = rng.random(image.shape[1:]) > 0.05 if masked else None
    if mask is not None:
        image[:, ~mask] = 0
    other = image.copy()
    other[:, :, : image.shape[2] - reach - 1] = rng.uniform(
        0, 255, other[:, :, : image.shape[2] - reach - 1].shape
    )
    if mask is not None:
        other[:, ~mask] = 0
    found, changed = (evolve(one, evolution, mask=mask)[0, :, -1] for one in (image, other))
    np.testing.assert_allclose(found, changed, rtol=0, atol=1e-10)
    nearer = image.copy()
    nearer[:, :, -3] += 1.0 if mask is None else 1.0 * mask[:, -3]
    assert np.abs(evolve(nearer, evolution, mask=mask)[0, :, -1] - found).max() > 1e-6


def test_of_tolerances() -> None:
    evolution = load_model("iad-plus").evolution(25.0)
    reaches = [evolution.reach(tolerance)[0] for tolerance in (1.0, 0.02, 1e-4, 0.0)]
    assert reaches == sorted(reaches)
    assert reaches[0] < reaches[-1]
    assert evolution.reach(0.02, masked=True) > evolution.reach(0.02)
    with pytest.raises(ValueError, match="must not be negative"):
        evolution.reach(-1.0)


def test_scales_of_no_weight_see_nothing() -> None:
    """A scale counts by its weight, in the flow and in the structure tensor."""
    evolution = load_model("iad-plus").evolution(25.0)
    widened = replace(evolution, scales=(*evolution.scales[:-1], 50.0))

    def weighted(weight: float) -> Evolution:
        def changed(term: Any) -> Any:
            weights = (*term.coupling.weights[:-1], weight)
            flux_weights = (*term.flux_weights[:-1], 0.0)
            coupling = replace(term.coupling, weights=weights)
            return replace(term, coupling=coupling, flux_weights=flux_weights)

        schedule = tuple(tuple(map(changed, terms)) for terms in widened.schedule)
        return replace(widened, schedule=schedule)

    tiny, small, large = (weighted(weight).reach(0.02)[0] for weight in (1e-12, 1e-8, 0.1))
    assert tiny < evolution.reach(0.02)[0] + 1
    assert 2 * tiny < small < large


def rectangles(rng: np.random.Generator, shape: tuple[int, ...]) -> NDArray[np.float64]:
    """Return rectangles, or boxes, of black and white on grey."""
    image = np.full(shape, 128.0)
    for _ in range(int(rng.integers(1, 30))):
        corner = [int(rng.integers(0, side)) for side in shape]
        sides = rng.integers(1, 30, len(shape))
        box = tuple(slice(at, at + int(side)) for at, side in zip(corner, sides, strict=True))
        image[box] = 255 * rng.integers(0, 2)
    return image


@pytest.mark.slow
@pytest.mark.skipif(ENGINES["native"].unavailable() is not None, reason="needs the engine native")
@given(
    name=st.sampled_from(NAMES + VOLUMES),
    sigma=st.sampled_from([1.0, 5.0, 20.0, 60.0]),
    seed=st.integers(0, 10**6),
    structured=st.booleans(),
)
@settings(max_examples=12, deadline=None)
def test_little_beyond_the_practical_reach_counts(
    name: str, sigma: float, seed: int, structured: bool
) -> None:
    evolution: Evolution = load_model(name).evolution(sigma)
    across: tuple[int, ...] = (48,)
    if name in VOLUMES:
        evolution, across = evolution.in_volume((1.0, 1.0, 1.0)), (30, 30)
    halo = evolution.reach(0.02)[-1]
    rng = np.random.default_rng(seed)
    near = np.full((*across, halo + 60), 128.0)
    if structured:
        near = rectangles(rng, near.shape)
    cut = halo // 2 * 2
    image = np.concatenate([rectangles(rng, (*across, cut)), near], axis=-1)
    image += rng.normal(0, sigma, image.shape)
    process = get_engine("native").prepare(evolution, threads=1)
    whole = process(image[None])[0, ..., cut:]
    part = process(np.ascontiguousarray(image[None, ..., cut:]))[0]
    assert np.abs(whole - part)[..., halo:].max() < 0.02
