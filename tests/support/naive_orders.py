"""Derivatives of any order by plain loops, from the definition: the oracle for higher orders."""

import math

import numpy as np
from naive import (
    Array,
    Numbers,
    blur,
    blur_radius,
    cell_weight,
    mixed_eigenvalues,
    reflect,
    smoothed_inside,
    tensor_function,
)
from remembered import remembered

# Coefficients of the differences of a line at its own samples and between them, by repeated
# application of u(x + 1/2) - u(x - 1/2) and (u(x - 1/2) + u(x + 1/2)) / 2; keys are offsets.


def stencil(derivative: int, half: bool) -> dict[float, float]:
    """Return the taps of the derivative, averaged once if it would not land on the right grid."""
    taps = {0.0: 1.0}
    for _ in range(derivative):
        taps = _combine(taps, {-0.5: -1.0, 0.5: 1.0})
    if (derivative % 2 == 1) != half:
        taps = _combine(taps, {-0.5: 0.5, 0.5: 0.5})
    return taps


def _combine(first: dict[float, float], second: dict[float, float]) -> dict[float, float]:
    result: dict[float, float] = {}
    for a, x in first.items():
        for b, y in second.items():
            result[a + b] = result.get(a + b, 0.0) + x * y
    return result


def operator(shape: tuple[int, int], order: int) -> list[tuple[float, list[Array]]]:
    """Return for every location its weight and the n + 1 derivatives as rows of a matrix."""
    height, width = shape
    half = order % 2 == 1
    rows, columns = (height + 1, width + 1) if half else (height, width)
    shift = 0.5 if half else 0.0
    result = []
    for i in range(rows):
        for j in range(columns):
            parts = []
            for k in range(order + 1):
                row = np.zeros(shape)
                for dx, wx in stencil(order - k, half).items():
                    for dy, wy in stencil(k, half).items():
                        y = reflect(round(i - shift + dy), height)
                        x = reflect(round(j - shift + dx), width)
                        row[y, x] += math.sqrt(math.comb(order, k)) * wx * wy
                parts.append(row)
            weight = cell_weight(i, j, height, width) if half else 1.0
            result.append((weight, parts))
    return result


def energy_field(blurred: list[list[Array]], order: int, weights: Numbers, margin: int) -> Array:
    """Return sum_i c_i |R v_i|^2, the mean over channels, on a part of the reflected plane."""
    height, width = blurred[0][0].shape
    half = order % 2 == 1
    result = np.zeros((height + half + 2 * margin, width + half + 2 * margin))
    for i in range(result.shape[0]):
        for j in range(result.shape[1]):
            for c, planes in zip(weights, blurred, strict=True):
                for plane in planes:
                    for k in range(order + 1):
                        value = 0.0
                        for dx, wx in stencil(order - k, half).items():
                            for dy, wy in stencil(k, half).items():
                                y = reflect(round(i - margin - half / 2 + dy), height)
                                x = reflect(round(j - margin - half / 2 + dx), width)
                                value += wx * wy * float(plane[y, x])
                        result[i, j] += c * math.comb(order, k) * value**2 / len(planes)
    return result


@remembered
def higher_order_velocity(
    image: Array,
    order: int,
    scales: Numbers,
    weights: Numbers,
    contrasts: Numbers,
    integration_scale: float = 0.0,
) -> Array:
    """Return minus sum_i c_i K_i R^T g_i R K_i u of an image (channel, row, column)."""
    blurred = [[blur(plane, scale) for plane in image] for scale in scales]
    update = np.zeros(image.shape)
    flows = [np.zeros(image.shape) for _ in scales]
    height, width = image.shape[1] + order % 2, image.shape[2] + order % 2
    margin = blur_radius(integration_scale**2)
    energies = energy_field(blurred, order, weights, margin)
    energies = smoothed_inside(energies, integration_scale, margin, (height, width))
    for place, (weight, parts) in enumerate(operator(image.shape[1:], order)):
        energy = float(energies[place // width, place % width])
        for i, planes in enumerate(blurred):
            diffusivity = math.exp(-energy / (2 * contrasts[i] ** 2))
            for k, plane in enumerate(planes):
                for row in parts:
                    value = float((row * plane).sum())
                    flows[i][k] -= weights[i] * weight * diffusivity * value * row
    for scale, flow in zip(scales, flows, strict=True):
        for k in range(len(image)):
            update[k] += blur(flow[k], scale)
    return update


def hessian_at(plane: Array, i: int, j: int) -> Array:
    """Return the Hessian of the reflected plane at any pixel, also beyond the border."""
    height, width = plane.shape

    def derivative(x_order: int, y_order: int) -> float:
        value = 0.0
        for dx, wx in stencil(x_order, half=False).items():
            for dy, wy in stencil(y_order, half=False).items():
                value += (
                    wx
                    * wy
                    * float(plane[reflect(round(i + dy), height), reflect(round(j + dx), width)])
                )
        return value

    xx, xy, yy = derivative(2, 0), derivative(1, 1), derivative(0, 2)
    return np.array([[xx, xy], [xy, yy]])


def hessian_tensor(
    blurred: list[list[Array]], weights: Numbers, scale: float, levels: Array
) -> Array:
    """Return sum_i c_i H_i^2 / level^2, the mean over channels, smoothed on the reflected plane."""
    height, width = levels.shape
    margin = blur_radius(scale**2)
    field = np.zeros((height + 2 * margin, width + 2 * margin, 2, 2))
    for i in range(field.shape[0]):
        for j in range(field.shape[1]):
            y, x = i - margin, j - margin
            level = float(levels[reflect(y, height), reflect(x, width)])
            for c, planes in zip(weights, blurred, strict=True):
                for plane in planes:
                    hessian = hessian_at(plane, y, x)
                    field[i, j] += c * hessian @ hessian / (len(planes) * level**2)
    result = np.zeros((height, width, 2, 2))
    for a in range(2):
        for b in range(2):
            result[..., a, b] = smoothed_inside(field[..., a, b], scale, margin, (height, width))
    return result


@remembered
def hessian_velocity(
    image: Array,
    scales: Numbers,
    weights: Numbers,
    contrasts: Numbers,
    integration_scale: float = 0.0,
    relative_noise: Array | None = None,
    mix: float = 0.0,
) -> Array:
    """Return minus sum_i c_i K_i R^T (A_i H_i A_i) with A_i = exp(-J / (4 lambda_i^2)).

    Each eigenvalue of J gets `mix` times the other one.
    """
    shape = image.shape[1:]
    levels = np.ones(shape) if relative_noise is None else relative_noise
    blurred = [[blur(plane, scale) for plane in image] for scale in scales]
    tensor = hessian_tensor(blurred, weights, integration_scale, levels)
    xx, xy, yy = mixed_eigenvalues(tensor[..., 0, 0], tensor[..., 0, 1], tensor[..., 1, 1], mix)
    tensor = np.stack([np.stack([xx, xy], -1), np.stack([xy, yy], -1)], -1)
    rows = operator(shape, 2)  # xx, sqrt(2) xy and yy at each pixel
    update = np.zeros(image.shape)
    for scale, weight, contrast, planes in zip(scales, weights, contrasts, blurred, strict=True):
        for k, plane in enumerate(planes):
            flow = np.zeros(shape)
            for place, (_, (xx, mixed, yy)) in enumerate(rows):
                i, j = place // shape[1], place % shape[1]
                a, b, c = tensor_function(
                    tensor[i, j, 0, 0], tensor[i, j, 0, 1], tensor[i, j, 1, 1], 2**0.5 * contrast
                )
                gate = np.array([[a, b], [b, c]])
                gated = gate @ hessian_at(plane, i, j) @ gate
                flow -= gated[0, 0] * xx + 2**0.5 * gated[0, 1] * mixed + gated[1, 1] * yy
            update[k] += weight * blur(flow, scale)
    return update
