"""Test oracle for volumes: the diffusion of order one in plain Python loops.

Written from the formulas of docs/volumes.md alone, as `naive.py` for images. Volumes are float64
arrays (C, Z, Y, X); vectors and tensors have their components in the order x, y, z, and spacing is
(z, y, x). Eigenvectors come from LAPACK, which shares nothing with the closed forms of the package.
"""

import itertools
import math

import numpy as np
from naive import Array, Numbers, bessel_taps, blur_line, blur_radius, reflect
from remembered import remembered

# The eight voxels of a cell: offsets in slices, rows and columns, all of them -1 or 0.
CORNERS = tuple(itertools.product((-1, 0), repeat=3))

# The seven coefficients as the axes (0: x, 1: y, 2: z) along which there is a difference.
COEFFICIENTS = ((0,), (1,), (2,), (0, 1), (0, 2), (1, 2), (0, 1, 2))


def weight_of_corner(corner: tuple[int, ...], differences: tuple[int, ...]) -> float:
    """Return the weight of a voxel in a coefficient: signs of differences, halves of averages."""
    result = 1.0
    for axis in range(3):
        if axis not in differences:
            result /= 2
        elif corner[2 - axis] == -1:
            result = -result
    for _ in differences[1:]:
        result /= 2
    return result


WEIGHTS = [[weight_of_corner(corner, which) for corner in CORNERS] for which in COEFFICIENTS]


def blur(volume: Array, scale: float, spacing: Numbers) -> Array:
    """Blur along the three axes, with the standard deviation scale / spacing in voxels."""
    result = np.array(volume, dtype=np.float64)
    for axis in range(3):
        t = (scale / spacing[axis]) ** 2
        taps = bessel_taps(t, blur_radius(t))
        moved = np.moveaxis(result, axis, -1)
        for i in range(moved.shape[0]):
            for j in range(moved.shape[1]):
                moved[i, j, :] = blur_line(moved[i, j, :].tolist(), taps)
    return result


def cell_voxels(cell: tuple[int, ...], shape: tuple[int, ...]) -> list[tuple[int, int, int]]:
    """Return the indices of the eight voxels of a cell, reflected into the volume."""
    return [
        (
            reflect(cell[0] + corner[0], shape[0]),
            reflect(cell[1] + corner[1], shape[1]),
            reflect(cell[2] + corner[2], shape[2]),
        )
        for corner in CORNERS
    ]


def coefficients(volume: Array, cell: tuple[int, ...]) -> list[float]:
    """Return X, Y, Z, XY, XZ, YZ and XYZ of one cell."""
    values = [float(volume[place]) for place in cell_voxels(cell, volume.shape)]
    return [sum(w * v for w, v in zip(row, values, strict=True)) for row in WEIGHTS]


def share_of_cell(cell: tuple[int, ...], shape: tuple[int, ...]) -> float:
    """Return 1 inside, 1/2 on a face, 1/4 on an edge and 1/8 at a corner of the volume."""
    share = 1.0
    for index, size in zip(cell, shape, strict=True):
        if index in (0, size):
            share /= 2
    return share


def cells(shape: tuple[int, ...]) -> list[tuple[int, ...]]:
    """Return all cells of a volume; cell (k, i, j) has voxel (k, i, j) at its far corner."""
    return list(np.ndindex(shape[0] + 1, shape[1] + 1, shape[2] + 1))


def gate(j: Array, contrast: float, coupling: str) -> Array:
    """Return g(J), or g(trace J) times the unit matrix, with g(mu) = exp(-mu / (2 contrast^2))."""
    if coupling == "trace":
        return np.eye(3) * math.exp(-max(float(np.trace(j)), 0.0) / (2 * contrast**2))
    values, vectors = np.linalg.eigh(j)
    result = np.zeros((3, 3))
    for value, vector in zip(values, vectors.T, strict=True):
        result += math.exp(-max(float(value), 0.0) / (2 * contrast**2)) * np.outer(vector, vector)
    return result


def cell_matrix(d: Array, spacing: Numbers, theta: float) -> Array:
    """Return the matrix M of the energy sum_mn M_mn c_m c_n of the seven coefficients."""
    h = [spacing[2], spacing[1], spacing[0]]
    per_voxel = np.array([[d[a, b] / (h[a] * h[b]) for b in range(3)] for a in range(3)])
    result = np.zeros((7, 7))
    result[:3, :3] = per_voxel
    total = 0.0
    for n, (a, b) in enumerate(((0, 1), (0, 2), (1, 2))):
        t = per_voxel[a, a] + per_voxel[b, b] - 2 * abs(per_voxel[a, b])
        result[3 + n, 3 + n] = (1 - 2 * theta) * t
        total += t
    result[6, 6] = (3 - 12 * theta + 16 * theta**2) * total / 6
    return result


def divergence(
    volume: Array, tensors: dict[tuple[int, ...], Array], spacing: Numbers, theta: float
) -> Array:
    """Return div(D grad u): minus half the gradient of the sum of the energies of all cells."""
    result = np.zeros(volume.shape)
    for cell in cells(volume.shape):
        if cell not in tensors:
            continue
        flux = cell_matrix(tensors[cell], spacing, theta) @ coefficients(volume, cell)
        share = share_of_cell(cell, volume.shape)
        for n, place in enumerate(cell_voxels(cell, volume.shape)):
            for m in range(7):
                result[place] -= share * WEIGHTS[m][n] * flux[m]
    return result


def structure_tensors(
    blurred: list[list[Array]], weights: Numbers, units: Numbers, twists: Numbers = (0, 0, 0)
) -> dict[tuple[int, ...], Array]:
    """Return J of each cell, summed over scales and averaged over channels.

    To the product of two derivatives along a and b comes that of the twists of either with a third
    axis, times the share of that axis.
    """
    h = np.array([units[2], units[1], units[0]])
    shares = (twists[2], twists[1], twists[0])
    result = {}
    for cell in cells(blurred[0][0].shape):
        j = np.zeros((3, 3))
        for weight, volumes in zip(weights, blurred, strict=True):
            for volume in volumes:
                x, y, z, xy, xz, yz, _ = coefficients(volume, cell)
                twist = {(0, 1): xy, (1, 0): xy, (0, 2): xz, (2, 0): xz, (1, 2): yz, (2, 1): yz}
                gradient = np.array([x, y, z]) / h
                j += weight * np.outer(gradient, gradient) / len(volumes)
                for a, b, c in itertools.product(range(3), repeat=3):
                    if c not in (a, b):
                        product = shares[c] * twist[a, c] * twist[b, c] / (h[a] * h[b])
                        j[a, b] += weight * product / len(volumes)
        result[cell] = j
    return result


def noise_at(levels: Array, cell: tuple[int, ...]) -> float:
    """Return the mean of the relative noise levels of a cell."""
    return sum(float(levels[place]) for place in cell_voxels(cell, levels.shape)) / 8


def integrated(
    tensors: dict[tuple[int, ...], Array], shape: tuple[int, ...], scale: float, spacing: Numbers
) -> dict[tuple[int, ...], Array]:
    """Return the tensors smoothed by a Gaussian, as those of the infinitely reflected volume.

    About the outermost cell k, cell k + n of the reflected volume is cell k - n of the volume
    itself, and a gradient there has the opposite component along that axis.
    """
    result = tensors
    for axis in range(3):
        t = (scale / spacing[axis]) ** 2
        taps = bessel_taps(t, blur_radius(t))
        mirror = np.eye(3)
        mirror[2 - axis, 2 - axis] = -1
        before, result = result, {}
        for cell in before:
            total = np.zeros((3, 3))
            for n in range(1 - len(taps), len(taps)):
                index, flipped = cell[axis] + n, False
                while not 0 <= index <= shape[axis]:
                    index = -index if index < 0 else 2 * shape[axis] - index
                    flipped = not flipped
                j = before[(*cell[:axis], index, *cell[axis + 1 :])]
                total += taps[abs(n)] * (mirror @ j @ mirror if flipped else j)
            result[cell] = total
    return result


@remembered
def evolve(
    image: Array,
    *,
    scales: Numbers,
    coupling_weights: Numbers,
    flux_weights: Numbers,
    contrasts: Numbers,
    tau: float,
    steps: int,
    coupling: str,
    theta: float,
    spacing: Numbers,
    relative_noise: Array | None = None,
    integration_scale: float = 0.0,
    units: Numbers | None = None,
    twists: Numbers = (0, 0, 0),
) -> Array:
    """Return the volumes (C, Z, Y, X) after u + tau sum_i c_i K_i div(D_i grad K_i u), repeated.

    Where the noise level varies, contrasts are multiplied by it; with an integration scale the
    structure tensor is divided by its square instead, and then smoothed.
    """
    u = np.array(image, dtype=np.float64)
    levels = np.ones(u.shape[1:]) if relative_noise is None else relative_noise
    for _ in range(steps):
        blurred = [[blur(volume, scale, spacing) for volume in u] for scale in scales]
        tensors = structure_tensors(blurred, coupling_weights, units or spacing, twists)
        local = {cell: noise_at(levels, cell) for cell in tensors}
        if integration_scale:
            tensors = {cell: j / local[cell] ** 2 for cell, j in tensors.items()}
            tensors = integrated(tensors, u.shape[1:], integration_scale, spacing)
            local = dict.fromkeys(local, 1.0)
        change = np.zeros(u.shape)
        for i, scale in enumerate(scales):
            if flux_weights[i] == 0:
                continue
            gates = {
                cell: gate(j, contrasts[i] * local[cell], coupling) for cell, j in tensors.items()
            }
            for k in range(len(u)):
                flow = divergence(blurred[i][k], gates, spacing, theta)
                change[k] += flux_weights[i] * blur(flow, scale, spacing)
        u = u + tau * change
    return u
