"""Stages in three dimensions: the tensor in closed form, the cell, the bound, masks."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, cast

import numpy as np
import pytest
from cases import COMPACT, MODELS, SIGMA
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from integrodiff import load_model
from integrodiff.stages import (
    Coupling,
    Evolution,
    Exponential,
    Term,
    VolumeGradient,
    VolumeTensor,
    blur,
    evolve,
    stable_step,
    stable_step_on_masks,
)
from integrodiff.stages.diffusion_tensor import volume_diffusion_tensor
from integrodiff.stages.domain import Domain
from integrodiff.stages.eigenframe import eigenframe
from integrodiff.stages.haar_volume import volume_adjoint, volume_coefficients, volume_flux
from integrodiff.stages.thick_slices import for_spacing, noise_in_tensor

Floats = NDArray[np.floating[Any]]

SPACINGS = [(1.0, 1.0, 1.0), (3.0, 1.0, 1.0), (1.0, 20.0, 1.5)]
spacings = st.tuples(*[st.sampled_from([1.0, 1.0, 1.3, 4.0, 20.0])] * 3)


def entries_of(matrices: Floats) -> VolumeTensor:
    pairs = ((0, 0), (0, 1), (0, 2), (1, 1), (1, 2), (2, 2))
    return VolumeTensor(*(np.ascontiguousarray(matrices[..., a, b]) for a, b in pairs))


def matrices_of(tensor: VolumeTensor) -> Floats:
    xx, xy, xz, yy, yz, zz = tensor
    rows = [np.stack(row, -1) for row in ((xx, xy, xz), (xy, yy, yz), (xz, yz, zz))]
    return np.stack(rows, -2)


def hostile_tensors() -> Floats:
    """Return semidefinite tensors of all ranks, sizes and degeneracies."""
    rng = np.random.default_rng(3)
    frames, _ = np.linalg.qr(rng.normal(size=(400, 3, 3)))
    frames[:40] = np.eye(3)
    values = rng.choice([0.0, 1.0, 1.0 + 1e-9, 1e-9, 0.5, 1e-4], size=(400, 3))
    values *= 10.0 ** rng.integers(-12, 12, (400, 1))
    tensors: Floats = np.einsum("nia,na,nja->nij", frames, values, frames)
    return (tensors + tensors.transpose(0, 2, 1)) / 2


@pytest.mark.parametrize("dtype", [np.float64, np.float32])
def test_the_frame_is_orthonormal_and_gives_the_tensor_back(dtype: Any) -> None:
    tensors = hostile_tensors().astype(dtype)
    eps = float(np.finfo(dtype).eps)
    frame = eigenframe(entries_of(tensors))
    second, third = np.stack(frame.second, -1), np.stack(frame.third, -1)
    first = np.cross(second, third)
    vectors = np.stack([first, second, third], -2)
    products = np.einsum("nai,nbi->nab", vectors, vectors)
    np.testing.assert_allclose(products, np.broadcast_to(np.eye(3), products.shape), atol=20 * eps)
    again = np.einsum("nai,na,naj->nij", vectors, np.stack(frame.values, -1), vectors)
    size = np.abs(tensors).max(axis=(1, 2), keepdims=True)
    assert (np.abs(again - tensors) <= 40 * eps * size).all()


@pytest.mark.parametrize("dtype", [np.float64, np.float32])
@pytest.mark.parametrize("contrast", [1e-6, 1.0, 1e5])
def test_no_rounding_lets_the_diffusion_tensor_exceed_one(contrast: float, dtype: Any) -> None:
    frame = eigenframe(entries_of(hostile_tensors().astype(dtype)))
    tensors = matrices_of(volume_diffusion_tensor(frame, contrast))
    values = np.linalg.eigvalsh(tensors.astype(np.float64))
    assert np.isfinite(values).all()
    assert values.min() >= -20 * np.finfo(dtype).eps
    assert values.max() <= 1 + 20 * np.finfo(dtype).eps


@pytest.mark.parametrize("size", [0.0, 1e-300, 1e-40, 1e150])
def test_tensors_of_extreme_size(size: float) -> None:
    tensors = size * hostile_tensors()[:50] / np.abs(hostile_tensors()[:50]).max()
    frame = eigenframe(entries_of(tensors))
    assert all(np.isfinite(value).all() for value in frame.values)
    np.testing.assert_allclose(np.stack(frame.second) ** 2 @ np.ones(50), 50 / 3, atol=50)
    np.testing.assert_allclose((np.stack(frame.second) ** 2).sum(axis=0), 1, atol=1e-12)


def semidefinite(rng: np.random.Generator, shape: tuple[int, ...]) -> Floats:
    """Return random tensors with eigenvalues in [0, 1], many of them 0 or 1."""
    frames, _ = np.linalg.qr(rng.normal(size=(*shape, 3, 3)))
    values = np.where(rng.random((*shape, 3)) < 0.6, rng.integers(0, 2, (*shape, 3)), 0.5)
    return np.asarray(np.einsum("...ia,...a,...ja->...ij", frames, values, frames))


@pytest.mark.slow
@pytest.mark.parametrize("spacing", SPACINGS)
@pytest.mark.parametrize("theta", [0.0, 0.15, 0.25, 0.5])
def test_every_field_of_tensors_lies_between_zero_and_the_bound(
    theta: float, spacing: tuple[float, float, float]
) -> None:
    shape, rng = (3, 4, 3), np.random.default_rng(5)
    operator = VolumeGradient(theta, spacing)
    size = int(np.prod(shape))
    units = np.eye(size).reshape(size, 1, *shape)

    def matrix_of(tensors: Floats) -> Floats:
        gated = operator.tensor_gate(operator.forward(units), entries_of(tensors))
        return np.asarray(operator.adjoint(gated)).reshape(size, size)

    cells = tuple(n + 1 for n in shape)
    largest = 2 / stable_step(bare(theta, spacing))
    for _ in range(8):
        matrix = matrix_of(semidefinite(rng, cells))
        np.testing.assert_allclose(matrix, matrix.T, atol=1e-13)
        values = np.linalg.eigvalsh(matrix)
        assert values[0] > -1e-13
        assert values[-1] <= largest + 1e-12
    identity = matrix_of(np.broadcast_to(np.eye(3), (*cells, 3, 3)))
    on_this_shape = 2 / stable_step(bare(theta, spacing), shape)
    np.testing.assert_allclose(np.linalg.eigvalsh(identity)[-1], on_this_shape, rtol=1e-12)
    assert on_this_shape <= largest * (1 + 1e-12)


def bare(theta: float, spacing: tuple[float, float, float], tau: float = 0.1) -> Evolution:
    """Return diffusion without blur, whose bound is that of the cell."""
    return Evolution(
        scales=(0.0,),
        schedule=(
            (
                Term(
                    derivatives=VolumeGradient(theta, spacing),
                    coupling=Coupling(kind="tensor", weights=(1.0,)),
                    diffusivity=Exponential(contrasts=(10.0,)),
                    flux_weights=(1.0,),
                ),
            ),
        ),
        tau=tau,
        steps=3,
        spacing=spacing,
    )


def test_the_adjoint_is_one() -> None:
    rng = np.random.default_rng(0)
    volume, shape = rng.normal(size=(4, 3, 5)), (5, 4, 6)
    flux = [rng.normal(size=shape) for _ in range(7)]
    share = np.ones(shape)
    for axis in range(3):
        for end in (0, -1):
            np.moveaxis(share, axis, 0)[end] /= 2
    parts = volume_coefficients(volume)
    left = sum(float((share * a * b).sum()) for a, b in zip(parts, flux, strict=True))
    np.testing.assert_allclose(left, float((volume * volume_adjoint(flux)).sum()), rtol=1e-12)
    unit = entries_of(np.broadcast_to(np.eye(3), (*shape, 3, 3)))
    gated = volume_flux(parts, unit, 0.25)
    np.testing.assert_allclose(gated[0], parts[0])


@pytest.mark.slow
@given(
    scales=st.lists(st.floats(0, 6), min_size=1, max_size=5).map(sorted),
    weights=st.lists(st.floats(0.01, 5), min_size=5, max_size=5),
    theta=st.sampled_from([0.0, 0.1, 0.25, 0.4, 0.5]),
    spacing=spacings,
)
def test_the_bound_holds_for_all_frequencies(
    scales: list[float], weights: list[float], theta: float, spacing: tuple[float, float, float]
) -> None:
    smallest = min(spacing)
    relative = tuple(length / smallest for length in spacing)
    evolution = volume_process(scales, weights[: len(scales)], theta, relative)
    for_all = stable_step(evolution)
    assert for_all <= stable_step(evolution, (23, 24, 25)) * (1 + 1e-9)


def volume_process(
    scales: list[float], weights: list[float], theta: float, spacing: tuple[float, ...]
) -> Evolution:
    term = Term(
        derivatives=VolumeGradient(theta, spacing),  # type: ignore[arg-type]
        coupling=Coupling(kind="tensor", weights=tuple(weights)),
        diffusivity=Exponential(contrasts=(10.0,) * len(scales)),
        flux_weights=tuple(weights),
    )
    return Evolution(scales=tuple(scales), schedule=((term,),), tau=0.1, steps=1, spacing=spacing)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["pm", "eed", "iad", "iad-fast", "iad-power"])
def test_the_bound_of_shipped_models_is_sharp(name: str) -> None:
    evolution = load_model(name).evolution(25.0)
    volume = evolution.in_volume((1.0, 1.0, 1.0))
    for_all, of_large = stable_step(volume), stable_step(volume, (400, 8, 8))
    assert for_all <= of_large * (1 + 1e-9)
    assert for_all >= 0.999 * of_large


def test_shipped_models_take_the_steps_of_images() -> None:
    for name in ("iad", "iad-fast", "iad-power"):
        evolution = load_model(name).evolution(25.0)
        images, volumes = stable_step(evolution), stable_step(evolution.in_volume((2.0, 1.0, 1.0)))
        np.testing.assert_allclose(volumes, images, rtol=2e-5)


@pytest.mark.parametrize("spacing", SPACINGS)
def test_blur_is_a_semigroup_that_keeps_the_mean(spacing: tuple[float, float, float]) -> None:
    volume = np.random.default_rng(1).normal(size=(1, 5, 6, 7))
    twice = blur(blur(volume, 1.0, spacing), 2.0, spacing)
    np.testing.assert_allclose(twice, blur(volume, 5**0.5, spacing), atol=1e-13)
    np.testing.assert_allclose(twice.mean(), volume.mean(), atol=1e-14)


def test_derivatives_that_volumes_do_not_have() -> None:
    with pytest.raises(ValueError, match="order 2 are for images alone"):
        COMPACT.evolution(SIGMA).in_volume((1.0, 1.0, 1.0))
    paper = replace(MODELS["eed"], discretisation="nonnegativity").evolution(SIGMA)
    with pytest.raises(ValueError, match="'nonnegativity' is for images alone"):
        paper.in_volume((1.0, 1.0, 1.0))
    with pytest.raises(ValueError, match="needs derivatives in as many dimensions"):
        replace(MODELS["eed"].evolution(SIGMA), spacing=(1.0, 1.0, 1.0))


# Masks


@pytest.mark.parametrize("spacing", SPACINGS)
def test_without_invalid_voxels_the_walk_is_the_blur(spacing: tuple[float, float, float]) -> None:
    volume = np.random.default_rng(2).normal(size=(1, 4, 5, 6))
    domain = Domain(np.ones((4, 5, 6), bool), volume, spacing)
    for scale in (0.3, 1.7):
        np.testing.assert_allclose(
            domain.blur(volume, scale), blur(volume, scale, spacing), atol=1e-13
        )


@pytest.mark.slow
@pytest.mark.parametrize("spacing", SPACINGS)
@pytest.mark.parametrize("name", ["eed", "iad-full"])
def test_masks(name: str, spacing: tuple[float, float, float]) -> None:
    rng = np.random.default_rng(4)
    volume = rng.normal(0, 40, (1, 5, 6, 7))
    mask = rng.random((5, 6, 7)) < 0.8
    mask[:, 3] = False  # two parts
    flat = MODELS[name].evolution(SIGMA).in_volume(spacing)
    evolution = replace(flat, tau=stable_step_on_masks(flat), steps=5)
    result = evolve(volume, evolution, mask=mask)
    np.testing.assert_array_equal(result[:, ~mask], volume[:, ~mask])
    for part in (slice(0, 3), slice(4, 6)):
        valid = mask[:, part]
        before, after = (values[0, :, part][valid] for values in (volume, result))
        np.testing.assert_allclose(after.mean(), before.mean(), atol=1e-11)
        assert np.linalg.norm(after) <= np.linalg.norm(before)
    other = np.where(mask, volume, 1e6)
    np.testing.assert_allclose(
        evolve(other, evolution, mask=mask)[:, mask], result[:, mask], atol=1e-9
    )
    constant = np.where(mask, 7.0, -3.0)[None]
    np.testing.assert_allclose(evolve(constant, evolution, mask=mask), constant, atol=1e-12)


@pytest.mark.parametrize("theta", [0.0, 0.25])
def test_the_bound_on_masks(theta: float) -> None:
    spacing, shape, rng = (2.0, 1.0, 1.0), (3, 4, 3), np.random.default_rng(6)
    evolution = bare(theta, spacing)
    operator = VolumeGradient(theta, spacing)
    size = int(np.prod(shape))
    units = np.eye(size).reshape(size, 1, *shape)
    for _ in range(5):
        mask = rng.random(shape) < 0.8
        domain = Domain(mask, units, spacing)
        parts = domain.known(operator, operator.forward(units))
        one = np.broadcast_to(np.eye(3), (*(n + 1 for n in shape), 3, 3))
        matrix = np.asarray(operator.adjoint(operator.tensor_gate(parts, entries_of(one))))
        values = np.linalg.eigvalsh(matrix.reshape(size, size))
        assert values[0] > -1e-12
        assert values[-1] <= 2 / stable_step_on_masks(evolution) + 1e-12


# ---- thick slices ----


@pytest.mark.slow
def test_noise_in_the_structure_tensor() -> None:
    """Against the mean over volumes of noise."""
    scales, weights, twists = (0.3, 0.8), (0.7, 1.5), (0.4, 0.0, 0.2)
    spacing = (2.0, 1.0, 1.3)
    operator = VolumeGradient(0.15, spacing, units=(1.0, 1.0, 1.0), twists=twists)
    coupling = Coupling(weights=weights)
    noise = np.random.default_rng(0).normal(size=(1, 60, 60, 60))
    parts = {i: operator.forward(blur(noise, s, spacing=spacing)) for i, s in enumerate(scales)}
    found = cast(VolumeTensor, coupling.summed(operator, parts))
    inner = (..., slice(8, -8), slice(8, -8), slice(8, -8))
    measured = [float(entry[inner].mean()) for entry in (found.zz, found.yy, found.xx)]
    expected = noise_in_tensor(scales, weights, spacing, twists)
    np.testing.assert_allclose(measured, expected, rtol=0.03)


@pytest.mark.slow
def test_numbers_follow_the_spacing() -> None:
    model: Any = load_model("iad-plus-volume")
    equal = model.evolution(20.0, None, (1.0, 1.0, 1.0))
    assert for_spacing(equal) is equal
    factors = []
    for distance in (1.001, 2.0, 20.0):
        spacing = (1.0, distance, 1.0)
        evolution = model.evolution(20.0, None, spacing)
        assert evolution.tau <= stable_step(model.evolution(20.0).in_volume(spacing))
        (term,) = evolution.schedule[-1]
        np.testing.assert_allclose(term.derivatives.twists[::2], 0, atol=1e-15)
        factors.append([n / d for n, d in zip(term.derivatives.units, spacing, strict=True)])
        np.testing.assert_allclose(factors[-1], factors[-1][0])
    assert 1 < factors[0][0] < 1.001 < factors[1][0] < factors[2][0] < 2


def test_equal_slices_are_images_with_contrasts_for_the_spacing() -> None:
    shipped: Any = load_model("iad-plus-volume")
    model = replace(shipped, steps=2, tau=0.2)
    image = np.random.default_rng(0).normal(100, 30, (1, 1, 9, 11))
    volume = np.repeat(image, 4, axis=1)
    evolution = model.evolution(20.0, None, (3.0, 1.0, 1.0))
    found = evolve(volume, evolution)

    def changed(flat: Term, term: Term) -> Term:
        factor = cast(Any, term.derivatives).units[2]
        contrasts = tuple(factor * contrast for contrast in flat.diffusivity.contrasts)
        return replace(flat, diffusivity=Exponential(contrasts=contrasts))

    flat = model.evolution(20.0)
    pairs = zip(flat.schedule, evolution.schedule, strict=True)
    flat = replace(flat, schedule=tuple((changed(a, b),) for (a,), (b,) in pairs))
    expected = evolve(image[:, 0], flat)
    for n in range(4):
        np.testing.assert_allclose(found[:, n], expected, rtol=0, atol=1e-9)
