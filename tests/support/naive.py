"""Test oracle: the diffusion models in plain Python loops.

Written from the formulas of the design alone. It shares no code with the package, and it prefers
the most literal loop to the fastest one, so that an agreement of the two means something.

Images are float64 arrays of shape (C, H, W), planes of shape (H, W), with H, W >= 1. The direction
x runs along the columns (second index of a plane), y along the rows (first index). The boundary is
half-sample reflection, d c b a | a b c d | d c b a. Tensor fields [[a, b], [b, c]] are three
arrays, a being the xx entry: (H+1, W+1) cells for "haar", (H, W) pixels for "nonnegativity".
"""

import math
from functools import cache

import numpy as np
import numpy.typing as npt
from remembered import remembered

Array = npt.NDArray[np.float64]
Numbers = list[float] | tuple[float, ...] | Array

# The four pixels of a 2x2 cell: row and column offset, then their signs in X, Y and E.
CELL_PIXELS = (
    (-1, -1, -1.0, -1.0, +1.0),
    (-1, 0, +1.0, -1.0, -1.0),
    (0, -1, -1.0, +1.0, -1.0),
    (0, 0, +1.0, +1.0, +1.0),
)


def reflect(index: int, size: int) -> int:
    """Return the index in 0..size-1 that half-sample reflection, repeated, maps `index` to."""
    index %= 2 * size  # two reflections are a shift by 2 size
    return index if index < size else 2 * size - 1 - index


# Blur -----------------------------------------------------------------------------------------


@cache
def bessel_tap(t: float, n: int) -> float:
    """Return e^{-t} I_n(t) by the power series sum_k (t/2)^(2k+n) / (k! (k+n)!)."""
    if t == 0.0:
        return 1.0 if n == 0 else 0.0
    terms: list[float] = []
    largest = 0.0
    k = 0
    while True:
        log_term = (2 * k + n) * math.log(t / 2) - math.lgamma(k + 1) - math.lgamma(k + n + 1) - t
        terms.append(math.exp(log_term))
        largest = max(largest, terms[-1])
        # Where each term is less than half its predecessor, the rest is less than the last one.
        halving = (t / 2) ** 2 < 0.5 * (k + 1) * (k + 1 + n)
        if halving and terms[-1] <= 1e-20 * largest:
            return math.fsum(terms)
        k += 1


def bessel_taps(t: float, radius: int) -> list[float]:
    """Return the taps e^{-t} I_n(t) of the discrete Gaussian for n = 0..radius."""
    return [bessel_tap(t, n) for n in range(radius + 1)]


def blur_radius(t: float, tail: float = 1e-17) -> int:
    """Return a radius beyond which the taps of both sides together sum to less than `tail`."""
    if t == 0.0:
        return 0
    radius = 0
    while True:
        # I_n(t) <= (t/2)^n / n! exp(t^2 / (4 (n+1))), and I_{n+1} <= I_n t / (2 (n+1)): once
        # n >= t the taps at least halve, so that both tails are at most four times the first tap.
        n = radius + 1
        log_tap = n * math.log(t / 2) - math.lgamma(n + 1) + t * t / (4 * (n + 1)) - t
        if n >= t and 4 * math.exp(log_tap) < tail:
            return radius
        radius += 1


def blur_line(line: list[float], taps: list[float]) -> list[float]:
    """Convolve one line with the symmetric taps under half-sample reflection."""
    size = len(line)
    result = []
    for i in range(size):
        total = taps[0] * line[i]
        for n in range(1, len(taps)):
            total += taps[n] * (line[reflect(i - n, size)] + line[reflect(i + n, size)])
        result.append(total)
    return result


def blur(plane: Array, scale: float) -> Array:
    """Blur one plane with the discrete Gaussian of variance scale^2, first rows, then columns."""
    t = scale**2
    taps = bessel_taps(t, blur_radius(t))
    height, width = plane.shape
    result = np.array(plane, dtype=np.float64)
    for i in range(height):
        result[i, :] = blur_line(result[i, :].tolist(), taps)
    for j in range(width):
        result[:, j] = blur_line(result[:, j].tolist(), taps)
    return result


# Gradients ------------------------------------------------------------------------------------


def haar_gradient(plane: Array) -> tuple[Array, Array, Array]:
    """Return X, Y and E on the (H+1, W+1) cells; cell (i, j) has pixel (i, j) at lower right."""
    height, width = plane.shape
    X = np.zeros((height + 1, width + 1))
    Y = np.zeros((height + 1, width + 1))
    E = np.zeros((height + 1, width + 1))
    for i in range(height + 1):
        for j in range(width + 1):
            u00 = plane[reflect(i - 1, height), reflect(j - 1, width)]
            u01 = plane[reflect(i - 1, height), reflect(j, width)]
            u10 = plane[reflect(i, height), reflect(j - 1, width)]
            u11 = plane[reflect(i, height), reflect(j, width)]
            X[i, j] = (-u00 + u01 - u10 + u11) / 2
            Y[i, j] = (-u00 - u01 + u10 + u11) / 2
            E[i, j] = (u00 - u01 - u10 + u11) / 2
    return X, Y, E


def central_gradient(plane: Array) -> tuple[Array, Array]:
    """Return the central differences (gx, gy) at the pixels."""
    height, width = plane.shape
    gx = np.zeros((height, width))
    gy = np.zeros((height, width))
    for i in range(height):
        for j in range(width):
            gx[i, j] = (plane[i, reflect(j + 1, width)] - plane[i, reflect(j - 1, width)]) / 2
            gy[i, j] = (plane[reflect(i + 1, height), j] - plane[reflect(i - 1, height), j]) / 2
    return gx, gy


# Diffusion tensor -----------------------------------------------------------------------------


def tensor_function(
    jxx: float, jxy: float, jyy: float, contrast: float
) -> tuple[float, float, float]:
    """Return the entries (xx, xy, yy) of g(J), with g(mu) = exp(-max(mu, 0) / (2 contrast^2))."""
    angle = 0.5 * math.atan2(2 * jxy, jxx - jyy)
    cos, sin = math.cos(angle), math.sin(angle)
    # Eigenvectors (cos, sin) and (-sin, cos), with their Rayleigh quotients.
    mu_1 = jxx * cos * cos + 2 * jxy * cos * sin + jyy * sin * sin
    mu_2 = jxx * sin * sin - 2 * jxy * cos * sin + jyy * cos * cos
    g_1 = math.exp(-max(mu_1, 0.0) / (2 * contrast**2))
    g_2 = math.exp(-max(mu_2, 0.0) / (2 * contrast**2))
    a = g_1 * cos * cos + g_2 * sin * sin
    b = (g_1 - g_2) * cos * sin
    c = g_1 * sin * sin + g_2 * cos * cos
    return a, b, c


def tensor_field(
    jxx: Array, jxy: Array, jyy: Array, contrasts: Array, coupling: str
) -> tuple[Array, Array, Array]:
    """Return g(J), or g(trace J) times the identity, at every location with its own contrast."""
    if coupling not in ("tensor", "trace"):
        raise ValueError(f"unknown coupling {coupling!r}")
    a, b, c = np.zeros(jxx.shape), np.zeros(jxx.shape), np.zeros(jxx.shape)
    for i in range(jxx.shape[0]):
        for j in range(jxx.shape[1]):
            xx, xy, yy = float(jxx[i, j]), float(jxy[i, j]), float(jyy[i, j])
            if coupling == "trace":
                xx, xy, yy = xx + yy, 0.0, xx + yy
            a[i, j], b[i, j], c[i, j] = tensor_function(xx, xy, yy, float(contrasts[i, j]))
    return a, b, c


# Divergences ----------------------------------------------------------------------------------


def cell_weight(i: int, j: int, height: int, width: int) -> float:
    """Return 1 for an interior cell, 1/2 for a border cell and 1/4 for a corner cell."""
    weight = 1.0
    if i in (0, height):
        weight /= 2
    if j in (0, width):
        weight /= 2
    return weight


def haar_energy(plane: Array, a: Array, b: Array, c: Array, theta: float) -> float:
    """Return the quadratic form whose half gradient is minus `haar_divergence`."""
    height, width = plane.shape
    X, Y, E = haar_gradient(plane)
    energy = 0.0
    for i in range(height + 1):
        for j in range(width + 1):
            x, y, e = X[i, j], Y[i, j], E[i, j]
            kappa = (1 - 2 * theta) * (a[i, j] + c[i, j] - 2 * abs(b[i, j]))
            cell = a[i, j] * x * x + 2 * b[i, j] * x * y + c[i, j] * y * y + kappa * e * e
            energy += cell_weight(i, j, height, width) * cell
    return float(energy)


def haar_divergence(plane: Array, a: Array, b: Array, c: Array, theta: float) -> Array:
    """Return div(D grad u) on 2x2 cells, accumulated over each cell's four pixels."""
    height, width = plane.shape
    X, Y, E = haar_gradient(plane)
    result = np.zeros((height, width))
    for i in range(height + 1):
        for j in range(width + 1):
            weight = cell_weight(i, j, height, width)
            kappa = (1 - 2 * theta) * (a[i, j] + c[i, j] - 2 * abs(b[i, j]))
            flux_x = weight * (a[i, j] * X[i, j] + b[i, j] * Y[i, j])
            flux_y = weight * (b[i, j] * X[i, j] + c[i, j] * Y[i, j])
            flux_e = weight * kappa * E[i, j]
            for di, dj, sign_x, sign_y, sign_e in CELL_PIXELS:
                row, column = reflect(i + di, height), reflect(j + dj, width)
                result[row, column] -= (sign_x * flux_x + sign_y * flux_y + sign_e * flux_e) / 2
    return result


def nonnegativity_divergence(plane: Array, a: Array, b: Array, c: Array) -> Array:
    """Return div(D grad u) on pixels as weighted differences to the neighbours in the image."""
    height, width = plane.shape
    result = np.zeros((height, width))
    for i in range(height):
        for j in range(width):
            for di in (-1, 0, 1):
                for dj in (-1, 0, 1):
                    k, m = i + di, j + dj
                    if (di, dj) == (0, 0) or not (0 <= k < height and 0 <= m < width):
                        continue  # no flux across the border
                    if di == 0:  # along x
                        here, there = a[i, j] - abs(b[i, j]), a[k, m] - abs(b[k, m])
                    elif dj == 0:  # along y
                        here, there = c[i, j] - abs(b[i, j]), c[k, m] - abs(b[k, m])
                    else:  # the diagonals (1, 1), (-1, -1) have sign +1, the other two -1
                        sign = di * dj
                        here = (abs(b[i, j]) + sign * b[i, j]) / 2
                        there = (abs(b[k, m]) + sign * b[k, m]) / 2
                    result[i, j] += (here + there) / 2 * (plane[k, m] - plane[i, j])
    return result


# Models ---------------------------------------------------------------------------------------


def structure_tensor(
    blurred: list[list[Array]], tensor_weights: Numbers, discretisation: str
) -> tuple[Array, Array, Array]:
    """Return J, summed over scales and averaged over channels, of blurred[scale][channel]."""
    channels = len(blurred[0])
    height, width = blurred[0][0].shape
    extra = 1 if discretisation == "haar" else 0
    shape = (height + extra, width + extra)
    jxx, jxy, jyy = np.zeros(shape), np.zeros(shape), np.zeros(shape)
    for weight, planes in zip(tensor_weights, blurred, strict=True):
        for plane in planes:
            if discretisation == "haar":
                gx, gy, _ = haar_gradient(plane)
            else:
                gx, gy = central_gradient(plane)
            for i in range(shape[0]):
                for j in range(shape[1]):
                    jxx[i, j] += weight * gx[i, j] * gx[i, j] / channels
                    jxy[i, j] += weight * gx[i, j] * gy[i, j] / channels
                    jyy[i, j] += weight * gy[i, j] * gy[i, j] / channels
    return jxx, jxy, jyy


# Integration scale ----------------------------------------------------------------------------


def reflected_plane(plane: Array, margin: int) -> Array:
    """Return the plane with `margin` more pixels on each side, reflected as often as needed."""
    height, width = plane.shape
    result = np.zeros((height + 2 * margin, width + 2 * margin))
    for i in range(height + 2 * margin):
        for j in range(width + 2 * margin):
            result[i, j] = plane[reflect(i - margin, height), reflect(j - margin, width)]
    return result


def smoothed_inside(field: Array, scale: float, margin: int, shape: tuple[int, int]) -> Array:
    """Smooth a field on a large part of the plane; return the part that begins at `margin`."""
    t = scale**2
    taps = bessel_taps(t, blur_radius(t))
    result = np.zeros(shape)
    for i in range(shape[0]):
        for j in range(shape[1]):
            for m in range(-len(taps) + 1, len(taps)):
                for n in range(-len(taps) + 1, len(taps)):
                    weight = taps[abs(m)] * taps[abs(n)]
                    result[i, j] += weight * field[i + m + margin, j + n + margin]
    return result


def integrated_structure_tensor(
    blurred: list[list[Array]],
    tensor_weights: Numbers,
    discretisation: str,
    scale: float,
    levels: Array,
) -> tuple[Array, Array, Array]:
    """Return J of the infinitely reflected plane, smoothed there, at the tensors of the image.

    J is divided by the square of the relative noise `levels` before it is smoothed.
    """
    margin = blur_radius(scale**2) + 2  # the gradients on the outer border are not those inside
    far = [[reflected_plane(plane, margin) for plane in planes] for planes in blurred]
    factors = where_the_tensors_are(reflected_plane(levels, margin), discretisation) ** 2
    entries = (entry / factors for entry in structure_tensor(far, tensor_weights, discretisation))
    height, width = blurred[0][0].shape
    extra = 1 if discretisation == "haar" else 0
    shape = (height + extra, width + extra)
    jxx, jxy, jyy = (smoothed_inside(entry, scale, margin, shape) for entry in entries)
    return jxx, jxy, jyy


def where_the_tensors_are(plane: Array, discretisation: str) -> Array:
    """Return the values of a plane at the pixels, or their means at the cells."""
    if discretisation == "nonnegativity":
        return plane
    height, width = plane.shape
    result = np.zeros((height + 1, width + 1))
    for i in range(height + 1):
        for j in range(width + 1):
            for di, dj, *_ in CELL_PIXELS:
                result[i, j] += plane[reflect(i + di, height), reflect(j + dj, width)] / 4
    return result


@remembered
def evolve(
    image: Array,
    *,
    scales: Numbers,
    tensor_weights: Numbers,
    flux_weights: Numbers,
    contrasts: Numbers,
    tau: float,
    steps: int,
    coupling: str,
    discretisation: str,
    theta: float,
    relative_noise: Array | None = None,
    integration_scale: float = 0.0,
    mix: float = 0.0,
    pulls: Numbers = (),
) -> Array:
    """Return the image after explicit steps u + tau sum_i flux_weight_i K_i div(D_i grad K_i u).

    Each eigenvalue of the structure tensor gets `mix` times the other one. In step k,
    tau pulls[k] (image - u) is added.

    With `relative_noise`, a plane, every contrast is multiplied by it where it is used; with an
    integration scale the structure tensor is divided by its square instead, and then smoothed.
    """
    if discretisation not in ("haar", "nonnegativity"):
        raise ValueError(f"unknown discretisation {discretisation!r}")
    u = np.array(image, dtype=np.float64)
    channels = u.shape[0]
    levels = np.ones(u.shape[1:]) if relative_noise is None else relative_noise
    factors = where_the_tensors_are(levels, discretisation)
    for step in range(steps):
        blurred = [[blur(u[k], scale) for k in range(channels)] for scale in scales]
        if integration_scale == 0:
            jxx, jxy, jyy = structure_tensor(blurred, tensor_weights, discretisation)
        else:
            factors = np.ones_like(factors)
            jxx, jxy, jyy = integrated_structure_tensor(
                blurred, tensor_weights, discretisation, integration_scale, levels
            )
        jxx, jxy, jyy = mixed_eigenvalues(jxx, jxy, jyy, mix)
        update = np.zeros(u.shape)
        if len(pulls) > 0:
            update += pulls[step] * (image - u)
        for scale, weight, contrast, planes in zip(
            scales, flux_weights, contrasts, blurred, strict=True
        ):
            a, b, c = tensor_field(jxx, jxy, jyy, contrast * factors, coupling)
            for k in range(channels):
                if discretisation == "haar":
                    divergence = haar_divergence(planes[k], a, b, c, theta)
                else:
                    divergence = nonnegativity_divergence(planes[k], a, b, c)
                update[k] += weight * blur(divergence, scale)
        u = u + tau * update
    return u


def mixed_eigenvalues(jxx: Array, jxy: Array, jyy: Array, mix: float) -> tuple[Array, Array, Array]:
    """Return tensors with the same eigenvectors and the eigenvalues a + mix b and b + mix a.

    Where the smaller is negative, both are raised until it is zero.
    """
    found = np.zeros((3, *jxx.shape))
    for i in range(jxx.shape[0]):
        for j in range(jxx.shape[1]):
            tensor = np.array([[jxx[i, j], jxy[i, j]], [jxy[i, j], jyy[i, j]]])
            values, vectors = np.linalg.eigh(tensor)
            mixed = values + mix * values[::-1]
            mixed = mixed - min(0.0, float(mixed.min()))
            changed = vectors @ np.diag(mixed) @ vectors.T
            found[:, i, j] = changed[0, 0], changed[0, 1], changed[1, 1]
    return found[0], found[1], found[2]


def perona_malik(
    image: Array,
    *,
    contrast: float,
    tau: float,
    steps: int,
    discretisation: str = "haar",
    theta: float = 0.25,
    relative_noise: Array | None = None,
) -> Array:
    """Return Perona-Malik diffusion: no blur, scalar diffusivity."""
    return evolve(
        image,
        scales=(0.0,),
        tensor_weights=(1.0,),
        flux_weights=(1.0,),
        contrasts=(contrast,),
        tau=tau,
        steps=steps,
        coupling="trace",
        discretisation=discretisation,
        theta=theta,
        relative_noise=relative_noise,
    )


def eed(
    image: Array,
    *,
    contrast: float,
    scale: float,
    tau: float,
    steps: int,
    discretisation: str = "haar",
    theta: float = 0.25,
    relative_noise: Array | None = None,
) -> Array:
    """Return edge-enhancing diffusion: the blur is in the tensor only."""
    return evolve(
        image,
        scales=(0.0, scale),
        tensor_weights=(0.0, 1.0),
        flux_weights=(1.0, 0.0),
        contrasts=(contrast, contrast),
        tau=tau,
        steps=steps,
        coupling="tensor",
        discretisation=discretisation,
        theta=theta,
        relative_noise=relative_noise,
    )


def quadrature_weights(scales: Numbers) -> list[float]:
    """Return d sigma_i: half the distance of the neighbours, one-sided differences at the ends."""
    last = len(scales) - 1
    if last == 0:
        return [1.0]
    weights = [float(scales[1] - scales[0])]
    for i in range(1, last):
        weights.append(float((scales[i + 1] - scales[i - 1]) / 2))
    weights.append(float(scales[last] - scales[last - 1]))
    return weights


def integrodifferential(
    image: Array,
    *,
    gammas: Numbers,
    lambdas: Numbers,
    scales: Numbers,
    tau: float,
    steps: int,
    coupling: str = "tensor",
    quadrature: str = "gradient",
    discretisation: str = "haar",
    theta: float = 0.25,
    relative_noise: Array | None = None,
) -> Array:
    """Return integrodifferential diffusion: IAD for coupling "tensor", IID for "trace"."""
    quadratures = [1.0] * len(scales) if quadrature == "none" else quadrature_weights(scales)
    if quadrature == "variance" and len(scales) > 1:
        quadratures = [w * float(scale) for w, scale in zip(quadratures, scales, strict=True)]
    weights = [w * gamma**2 for w, gamma in zip(quadratures, gammas, strict=True)]
    return evolve(
        image,
        scales=scales,
        tensor_weights=weights,
        flux_weights=weights,
        contrasts=lambdas,
        tau=tau,
        steps=steps,
        coupling=coupling,
        discretisation=discretisation,
        theta=theta,
        relative_noise=relative_noise,
    )


def reduced_law(
    alpha: float, beta: float, lambda_0: float, scales: Numbers, sigma: float
) -> tuple[list[float], list[float]]:
    """Return the reduced law's gammas and lambdas at noise standard deviation `sigma`."""
    gammas = [math.exp(-alpha * float(scale) ** 2 / math.sqrt(sigma)) for scale in scales]
    lambdas = [lambda_0 * sigma / (1 + beta * float(scale) ** 2) for scale in scales]
    return gammas, lambdas
