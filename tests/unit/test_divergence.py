"""Both discretisations of the divergence as dense matrices."""

from __future__ import annotations

import numpy as np
import pytest
from cases import Image, dense_matrix, semidefinite_tensors
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray
from scipy.fft import dctn, idctn

from integrodiff.stages import (
    Coupling,
    CouplingKind,
    Discretisation,
    Evolution,
    Exponential,
    SymmetricTensor,
    Term,
    derivative_operator,
    haar_divergence,
    nonnegativity_divergence,
    stable_step,
)

shapes = st.tuples(st.integers(1, 6), st.integers(1, 6))
seeds = st.integers(0, 2**32 - 1)
thetas = st.floats(0, 0.5)


def matrix_of_minus_divergence(
    shape: tuple[int, int],
    tensor: tuple[NDArray[np.float64], ...],
    discretisation: Discretisation,
    theta: float = 0.25,
) -> Image:
    field = SymmetricTensor(*(entry[None] for entry in tensor))
    operator = derivative_operator(discretisation=discretisation, theta=theta)
    return dense_matrix(
        lambda units: operator.adjoint(operator.tensor_gate(operator.forward(units), field)), shape
    )


def cells(shape: tuple[int, int]) -> tuple[int, int]:
    return shape[0] + 1, shape[1] + 1


def bound(discretisation: Discretisation, coupling: CouplingKind, theta: float = 0.25) -> float:
    """Largest eigenvalue that the step bound allows for without any blur."""
    term = Term(
        derivatives=derivative_operator(discretisation=discretisation, theta=theta),
        coupling=Coupling(kind=coupling, weights=(1.0,)),
        diffusivity=Exponential(contrasts=(1.0,)),
        flux_weights=(1.0,),
    )
    return 2 / stable_step(Evolution(scales=(0.0,), schedule=((term,),), tau=0.1, steps=1))


@given(shapes, seeds, thetas)
def test_haar_is_symmetric_semidefinite_and_bounded(
    shape: tuple[int, int], seed: int, theta: float
) -> None:
    tensor = semidefinite_tensors(np.random.default_rng(seed), cells(shape))
    matrix = matrix_of_minus_divergence(shape, tensor, "haar", theta)
    np.testing.assert_allclose(matrix, matrix.T, atol=1e-13)
    np.testing.assert_allclose(matrix.sum(axis=0), 0, atol=1e-13)
    eigenvalues = np.linalg.eigvalsh(matrix)
    assert eigenvalues[0] >= -1e-12
    assert eigenvalues[-1] <= bound("haar", "tensor", theta) + 1e-12


@given(shapes, seeds, thetas)
def test_haar_is_symmetric_for_every_tensor_field(
    shape: tuple[int, int], seed: int, theta: float
) -> None:
    """Also for tensors at the border that no reflected image would have."""
    tensor = tuple(np.random.default_rng(seed).normal(size=(3, *cells(shape))))
    matrix = matrix_of_minus_divergence(shape, tensor, "haar", theta)
    np.testing.assert_allclose(matrix, matrix.T, atol=1e-13)


@given(shapes, thetas, seeds)
def test_haar_of_the_unit_tensor_is_diagonal_under_the_dct(
    shape: tuple[int, int], theta: float, seed: int
) -> None:
    one, zero = np.ones(cells(shape)), np.zeros(cells(shape))
    image = np.random.default_rng(seed).normal(size=shape)
    half_y, half_x = (np.pi * np.arange(n) / (2 * n) for n in shape)
    sx, cx = np.sin(half_x)[None, :] ** 2, np.cos(half_x)[None, :] ** 2
    sy, cy = np.sin(half_y)[:, None] ** 2, np.cos(half_y)[:, None] ** 2
    symbol = 4 * (sx * cy + cx * sy + 2 * (1 - 2 * theta) * sx * sy)
    expected = idctn(symbol * dctn(image, norm="ortho"), norm="ortho")
    matrix = matrix_of_minus_divergence(shape, (one, zero, one), "haar", theta)
    np.testing.assert_allclose(matrix @ image.ravel(), expected.ravel(), atol=1e-12)


@given(shapes, seeds)
def test_nonnegativity_is_symmetric_and_bounded_above(shape: tuple[int, int], seed: int) -> None:
    tensor = semidefinite_tensors(np.random.default_rng(seed), shape)
    matrix = matrix_of_minus_divergence(shape, tensor, "nonnegativity")
    np.testing.assert_allclose(matrix, matrix.T, atol=1e-13)
    np.testing.assert_allclose(matrix.sum(axis=0), 0, atol=1e-13)
    assert np.linalg.eigvalsh(matrix)[-1] <= bound("nonnegativity", "tensor") + 1e-12


@given(st.tuples(st.integers(2, 6), st.integers(2, 6)), seeds)
def test_nonnegativity_is_bounded_by_the_sides_of_the_cells(
    shape: tuple[int, int], seed: int
) -> None:
    """The inequality behind the step bound for blurred scales: at most twice the Laplacian."""
    tensor = semidefinite_tensors(np.random.default_rng(seed), shape)
    one, zero = np.ones(shape), np.zeros(shape)
    matrix = matrix_of_minus_divergence(shape, tensor, "nonnegativity")
    laplacian = matrix_of_minus_divergence(shape, (one, zero, one), "nonnegativity")
    assert np.linalg.eigvalsh(2 * laplacian - matrix)[0] >= -1e-12


@given(shapes, seeds)
def test_nonnegativity_with_isotropic_tensors_is_semidefinite(
    shape: tuple[int, int], seed: int
) -> None:
    diffusivity = np.random.default_rng(seed).random(shape)
    tensor = (diffusivity, np.zeros(shape), diffusivity)
    eigenvalues = np.linalg.eigvalsh(matrix_of_minus_divergence(shape, tensor, "nonnegativity"))
    assert eigenvalues[0] >= -1e-12
    assert eigenvalues[-1] <= bound("nonnegativity", "trace") + 1e-12


def test_nonnegativity_can_have_negative_eigenvalues() -> None:
    """The scheme of the paper is not stable in general, whatever the step size.

    A negative eigenvalue of minus the divergence makes the norm of an image grow. It takes a
    single anisotropic tensor in the interior; the Haar cell has none for the same field.
    """
    shape = (9, 9)
    angle = np.deg2rad(22.5)
    along = np.cos(angle), np.sin(angle)
    here = np.zeros(shape)
    here[4, 4] = 1
    lone = (along[0] ** 2 * here, along[0] * along[1] * here, along[1] ** 2 * here)
    smallest = np.linalg.eigvalsh(matrix_of_minus_divergence(shape, lone, "nonnegativity"))[0]
    assert smallest == pytest.approx(-0.168, abs=1e-3)
    assert np.linalg.eigvalsh(matrix_of_minus_divergence((8, 8), lone, "haar"))[0] >= -1e-13

    # A constant tensor with eigenvalues 0 and 1: here the border, which drops what would leave
    # the image, brings the wrong sign in.
    constant = tuple(
        np.full((12, 12), value) for value in (along[0] ** 2, along[0] * along[1], along[1] ** 2)
    )
    smallest = np.linalg.eigvalsh(matrix_of_minus_divergence((12, 12), constant, "nonnegativity"))[
        0
    ]
    assert smallest == pytest.approx(-0.0077, abs=1e-4)


@pytest.mark.parametrize("discretisation", ["haar", "nonnegativity"])
@pytest.mark.parametrize("sign", [-1, 1])
def test_consistent_on_a_quadratic(discretisation: Discretisation, sign: int) -> None:
    """Div(D grad u) of a quadratic u is constant in the interior: 2a, 2c, and 2b for x y."""
    a, b, c = 0.6, 0.2 * sign, 0.5
    y, x = np.mgrid[:7, :8].astype(float)
    size = (8, 9) if discretisation == "haar" else (7, 8)
    field = SymmetricTensor(*(np.full((1, *size), value) for value in (a, b, c)))
    for image, expected in ((x * x, 2 * a), (y * y, 2 * c), (x * y, 2 * b), (x + 2 * y, 0.0)):
        haar = discretisation == "haar"
        result = (
            haar_divergence(image[None], field, 0.25)
            if haar
            else nonnegativity_divergence(image[None], field)
        )
        np.testing.assert_allclose(result[0, 2:-2, 2:-2], expected, atol=1e-12)
