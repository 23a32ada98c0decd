"""Gradient, structure tensor and diffusion tensor."""

from __future__ import annotations

import numpy as np
import pytest
from cases import images
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from integrodiff.stages import (
    DerivativeOperator,
    ExchangeWithNeighbours,
    HaarGradient,
    SymmetricTensor,
    blur,
    central_gradient,
    diffusion_tensor,
    diffusivity,
    haar_gradient,
    haar_twist,
    multiscale_energy,
    multiscale_structure_tensor,
    outer_product,
)

coordinates = st.floats(-300, 300, width=32)
contrasts = st.floats(0.5, 100)


def tensor_from(vectors: list[tuple[float, float]]) -> SymmetricTensor:
    """Sum of outer products, as one-by-one fields."""
    products = [outer_product(np.full((1, 1, 1), x), np.full((1, 1, 1), y)) for x, y in vectors]
    return multiscale_structure_tensor(products, [1.0] * len(products))


def as_matrix(tensor: SymmetricTensor) -> NDArray[np.float64]:
    xx, xy, yy = (float(entry[0, 0, 0]) for entry in tensor)
    return np.array([[xx, xy], [xy, yy]])


def g_by_eigenvectors(matrix: NDArray[np.float64], contrast: float) -> NDArray[np.float64]:
    values, vectors = np.linalg.eigh(matrix)
    diffusivities = np.exp(-np.maximum(values, 0) / (2 * contrast**2))
    result: NDArray[np.float64] = vectors @ np.diag(diffusivities) @ vectors.T
    return result


def test_gradients_of_a_plane_are_its_slopes() -> None:
    y, x = np.mgrid[:6, :7].astype(float)
    plane = (3 * x - 2 * y)[None]
    for grad in (haar_gradient(plane), central_gradient(plane)):
        np.testing.assert_allclose(grad.x[0, 1:-1, 1:-1], 3)
        np.testing.assert_allclose(grad.y[0, 1:-1, 1:-1], -2)
    np.testing.assert_allclose(haar_twist(plane)[0], 0, atol=1e-12)


@given(images())
def test_haar_coefficients_hold_all_energy_of_differences(image: NDArray[np.float64]) -> None:
    """X^2 + Y^2 + E^2 of a cell is the energy of its pixels less that of their mean."""
    grad, twist = haar_gradient(image[None]), haar_twist(image[None])
    padded = np.pad(image, 1, mode="edge")
    cells = np.stack([padded[:-1, :-1], padded[:-1, 1:], padded[1:, :-1], padded[1:, 1:]])
    expected = ((cells - cells.mean(axis=0)) ** 2).sum(axis=0)
    np.testing.assert_allclose(
        (grad.x**2 + grad.y**2 + twist**2)[0], expected, rtol=1e-10, atol=1e-8
    )


@given(st.lists(st.tuples(coordinates, coordinates), min_size=1, max_size=4), contrasts)
def test_closed_form_equals_the_eigendecomposition(
    vectors: list[tuple[float, float]], contrast: float
) -> None:
    structure = tensor_from(vectors)
    expected = g_by_eigenvectors(as_matrix(structure), contrast)
    np.testing.assert_allclose(
        as_matrix(diffusion_tensor(structure, contrast)), expected, rtol=0, atol=1e-9
    )


@given(st.lists(st.tuples(coordinates, coordinates), min_size=1, max_size=4), contrasts)
def test_eigenvalues_lie_between_zero_and_one(
    vectors: list[tuple[float, float]], contrast: float
) -> None:
    values = np.linalg.eigvalsh(as_matrix(diffusion_tensor(tensor_from(vectors), contrast)))
    assert values[0] >= -1e-15
    assert values[1] <= 1 + 1e-15


@pytest.mark.parametrize("distance", [0.0, 1e-300, 1e-160, 1e-12, 1e-8, 1e-4])
def test_continuous_where_the_eigenvalues_meet(distance: float) -> None:
    def near(step: float) -> NDArray[np.float64]:
        entries = (np.full((1, 1, 1), value) for value in (50 + step, 0.3 * step, 50 - step))
        return as_matrix(diffusion_tensor(SymmetricTensor(*entries), 7.0))

    # g' is at most 1 / (2 contrast^2), about 0.01.
    assert np.abs(near(distance) - near(0.0)).max() <= 0.02 * distance
    np.testing.assert_allclose(near(0.0), np.exp(-50 / 98) * np.eye(2), rtol=1e-14)


def test_zero_gradient_gives_the_unit_tensor() -> None:
    np.testing.assert_array_equal(as_matrix(diffusion_tensor(tensor_from([(0, 0)]), 5)), np.eye(2))


def test_the_energy_is_the_trace() -> None:
    vectors = [(3.0, 4.0), (1.0, -2.0)]
    derivatives = [(np.full((1, 1, 1), x), np.full((1, 1, 1), y)) for x, y in vectors]
    energy = multiscale_energy(derivatives, [1.0, 1.0])
    assert energy == np.trace(as_matrix(tensor_from(vectors))) == 30


@pytest.mark.parametrize("operator", [HaarGradient(0.15), ExchangeWithNeighbours()])
def test_a_scalar_gate_is_the_tensor_gate_of_a_multiple_of_the_unit_matrix(
    operator: DerivativeOperator,
) -> None:
    rng = np.random.default_rng(0)
    image = rng.normal(size=(1, 5, 4))
    factor = rng.random((1, 6, 5) if operator.grid == "cells" else (1, 5, 4))
    isotropic = SymmetricTensor(factor, 0 * factor, factor)
    parts = operator.forward(image)
    for scalar, tensor in zip(
        operator.scalar_gate(parts, factor), operator.tensor_gate(parts, isotropic), strict=True
    ):
        np.testing.assert_allclose(scalar, tensor, atol=1e-15)


@given(images(smallest=2), contrasts)
def test_eed_flux_tends_to_the_perona_malik_flux(
    image: NDArray[np.float64], contrast: float
) -> None:
    """For a vanishing scale, g(J) grad u = g(|grad u|^2) grad u."""

    def flux(scale: float, *, isotropic: bool) -> NDArray[np.float64]:
        grad = haar_gradient(image[None])
        steered_by = haar_gradient(blur(image[None], scale))
        if isotropic:
            g = diffusivity(multiscale_energy([steered_by], [1.0]), contrast)
            return np.stack([g * grad.x, g * grad.y])
        structure = multiscale_structure_tensor([outer_product(*steered_by)], [1.0])
        d = diffusion_tensor(structure, contrast)
        return np.stack([d.xx * grad.x + d.xy * grad.y, d.xy * grad.x + d.yy * grad.y])

    perona_malik = flux(0.0, isotropic=True)
    np.testing.assert_allclose(flux(0.0, isotropic=False), perona_malik, atol=1e-6)
    np.testing.assert_allclose(flux(1e-6, isotropic=False), perona_malik, atol=1e-5)
    size = np.abs(perona_malik).max()
    if size > 1:
        assert np.abs(flux(2.0, isotropic=False) - perona_malik).max() > 1e-3 * size


def test_channels_are_averaged() -> None:
    rng = np.random.default_rng(0)
    grey = rng.normal(size=(1, 5, 6))
    one, three = (
        multiscale_structure_tensor([outer_product(*haar_gradient(image))], [1.0])
        for image in (grey, np.repeat(grey, 3, axis=0))
    )
    assert three.xx.shape == (1, 6, 7)
    for single, triple in zip(one, three, strict=True):
        np.testing.assert_allclose(single, triple, rtol=1e-14)
