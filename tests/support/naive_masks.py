"""Oracle for images with invalid pixels: dense matrices from the definitions.

Blurs are matrix exponentials of the graph's Laplacian, derivatives are rows of matrices, and a row
counts if it touches valid pixels alone.
"""

import math
from typing import NamedTuple

import numpy as np
from naive import CELL_PIXELS, Array, cell_weight, reflect, tensor_function
from naive_orders import operator
from numpy.typing import NDArray
from remembered import remembered
from scipy.linalg import expm

Mask = NDArray[np.bool_]


class NaiveTerm(NamedTuple):
    """A term with numbers for all scales; order one is anisotropic, others are isotropic."""

    order: int
    weights: list[float]
    contrasts: list[float]


def laplacian(mask: Mask) -> Array:
    """Return the Laplacian of the graph that joins valid neighbours."""
    height, width = mask.shape
    result = np.zeros((mask.size, mask.size))
    for i in range(height):
        for j in range(width):
            for k, m in ((i, j + 1), (i + 1, j)):
                if k < height and m < width and mask[i, j] and mask[k, m]:
                    a, b = i * width + j, k * width + m
                    result[a, a] += 1
                    result[b, b] += 1
                    result[a, b] -= 1
                    result[b, a] -= 1
    return result


def blur_matrix(mask: Mask, scale: float) -> Array:
    """Return e^{-scale^2 L / 2}."""
    result: Array = expm(-(scale**2) / 2 * laplacian(mask))
    return result


def touches(mask: Mask, i: float, j: float, distance: float) -> bool:
    """Whether an invalid pixel is within a distance, in rows and in columns, of a point."""
    for k, m in zip(*np.nonzero(~mask), strict=True):
        if abs(k - i) <= distance and abs(m - j) <= distance:
            return True
    return False


@remembered
def velocity(
    image: Array,
    mask: Mask,
    terms: list[NaiveTerm],
    scales: list[float],
    reach: list[int],
    theta: float,
) -> Array:
    """Return the velocity of a grey image (H, W); invalid pixels must have finite values.

    ``reach`` is how far from invalid pixels fluxes of higher orders keep, at each scale.
    """
    blurs = [blur_matrix(mask, scale) for scale in scales]
    smoothed = [(matrix @ image.ravel()).reshape(image.shape) for matrix in blurs]
    result = np.zeros(image.size)
    for term in terms:
        flow = _first_order if term.order == 1 else _higher_order
        for i, matrix in enumerate(blurs):
            result -= matrix @ flow(smoothed, mask, term, i, reach[i], theta).ravel()
    return result.reshape(image.shape)


def _first_order(
    smoothed: list[Array], mask: Mask, term: NaiveTerm, i: int, reach: int, theta: float
) -> Array:
    _, weights, contrasts = term
    height, width = mask.shape
    result = np.zeros(mask.shape)
    for y in range(height + 1):
        for x in range(width + 1):
            pixels = [(reflect(y + p[0], height), reflect(x + p[1], width)) for p in CELL_PIXELS]
            if not all(mask[place] for place in pixels):
                continue
            signs = [np.array([p[2 + k] / 2 for p in CELL_PIXELS]) for k in range(3)]
            j = np.zeros((2, 2))
            for weight, plane in zip(weights, smoothed, strict=True):
                values = np.array([plane[place] for place in pixels])
                gradient = np.array([signs[0] @ values, signs[1] @ values])
                j += weight * np.outer(gradient, gradient)
            a, b, c = tensor_function(j[0, 0], j[0, 1], j[1, 1], contrasts[i])
            values = np.array([smoothed[i][place] for place in pixels])
            dx, dy, twist = (sign @ values for sign in signs)
            flux = (a * dx + b * dy, b * dx + c * dy)
            twisted = (1 - 2 * theta) * (a + c - 2 * abs(b)) * twist
            share = weights[i] * cell_weight(y, x, height, width)
            for k, place in enumerate(pixels):
                result[place] += share * (
                    signs[0][k] * flux[0] + signs[1][k] * flux[1] + signs[2][k] * twisted
                )
    return result


def _higher_order(
    smoothed: list[Array], mask: Mask, term: NaiveTerm, i: int, reach: int, theta: float
) -> Array:
    order, weights, contrasts = term
    half = order % 2 == 1
    columns = mask.shape[1] + half
    stencil = order / 2
    result = np.zeros(mask.shape)
    for n, (share, parts) in enumerate(operator(mask.shape, order)):
        y, x = n // columns - half / 2, n % columns - half / 2
        if touches(mask, y, x, stencil + reach):
            continue
        energy = sum(
            c * sum(float((part * plane).sum()) ** 2 for part in parts)
            for c, plane in zip(weights, smoothed, strict=True)
        )
        gate = math.exp(-energy / (2 * contrasts[i] ** 2))
        for part in parts:
            result += weights[i] * share * gate * float((part * smoothed[i]).sum()) * part
    return result
