r"""Stage 7: the largest step size that is proven stable.

**Haar cell.** All eigenvalues of D lie in [0, 1], so the energy of a cell is at most
:math:`X^2 + Y^2 + 2(1 - 2\theta) E^2`, its value for D = I. The operator for D = I is diagonal
under the DCT-II, and so are the blurs. With :math:`p = 1 - \cos\omega_x` and
:math:`q = 1 - \cos\omega_y`, minus the right-hand side of the evolution is therefore a
symmetric semidefinite operator between zero and one with the eigenvalues

.. math:: S(p, q) = \sum_i c_i\, e^{-2\sigma_i^2 (p + q)}\, \bigl(2(p + q) - 4\theta p q\bigr),

and :math:`\tau \le 2 / \max S` keeps the eigenvalues of one step in [-1, 1], whatever the image.
The bound is sharp: D = I attains it. For a given sum :math:`r = p + q` the maximum has the
smallest product, so the supremum over images of *all* sizes is a problem in r alone.

**Nonnegativity scheme.** For isotropic D, the same holds with :math:`S = 2 c\,(p + q)\,\dots`.
For anisotropic D two bounds of the largest eigenvalue of the unblurred operator are combined:
Gershgorin's theorem gives 10, and replacing each diagonal difference by the differences along
the four sides of its cell gives :math:`4(p + q)`. They bound the operator from above alone. It
may still have eigenvalues of the wrong sign, so here the step bound is necessary for stability
and not sufficient.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from integrodiff.stages._arrays import plain
from integrodiff.stages.evolution import Evolution

_INTERVALS = 2**14

_GERSHGORIN = 10.0


def stable_step(evolution: Evolution, shape: tuple[int, int] | None = None) -> float:
    """Return the largest step size for which the Euclidean norm provably never grows.

    Parameters
    ----------
    evolution : Evolution
        The process; its own ``tau`` is not used.
    shape : (int, int), optional
        Height and width of the images. Without it the bound holds for images of every size.

    Returns
    -------
    tau : float
        The bound; infinite if nothing flows at all, as in an image of one pixel.

    Notes
    -----
    With ``discretisation="nonnegativity"`` and anisotropic coupling the bound guarantees only
    that no component overshoots; see the module's description.
    """
    largest = (
        _largest_eigenvalue_any_shape(evolution)
        if shape is None
        else _largest_eigenvalue(evolution, shape)
    )
    return 2 / largest if largest > 0 else float("inf")


def _largest_eigenvalue_any_shape(evolution: Evolution) -> float:
    """Certified upper bound of S over all frequencies, from samples in r = p + q.

    Between two samples a function exceeds the larger of them by at most h^2/8 times the largest
    second derivative, which is bounded term by term. The kink of S at r = 2 is a sample.
    """
    theta = evolution.theta
    total = np.linspace(0, 4, _INTERVALS + 1)
    # The smallest product p q for p + q = r is zero up to r = 2; beyond, one of them is 2.
    product = np.where(total > 2, 2 * (total - 2), 0.0)
    samples = np.zeros_like(total)
    slack = 0.0
    for weight, decay, symbol, slope in _terms(evolution, theta):
        samples += weight * np.exp(-decay * total) * symbol(total, product)
        # |(S e^{-kr})''| <= (k^2 S + 2 k |S'|) e^{-kr}, where S is a constant or S <= slope r.
        curvature = slope * decay * (1 / np.e + 2) if slope else _GERSHGORIN * decay**2
        slack += weight * curvature
    return float(samples.max()) + slack * (4 / _INTERVALS) ** 2 / 8


def _largest_eigenvalue(evolution: Evolution, shape: tuple[int, int]) -> float:
    """Maximum of S over the DCT frequencies of one image size."""
    height, width = shape
    p = 1 - np.cos(np.pi * np.arange(width) / width)
    largest = 0.0
    # Rows in blocks keep the memory small for large images.
    for q in np.array_split(1 - np.cos(np.pi * np.arange(height) / height), -(-height // 256)):
        total, product = p + q[:, None], p * q[:, None]
        values = np.zeros_like(total)
        for weight, decay, symbol, _ in _terms(evolution, evolution.theta):
            values += weight * np.exp(-decay * total) * symbol(total, product)
        largest = max(largest, float(values.max()))
    return largest


_Symbol = Callable[[NDArray[np.float64], NDArray[np.float64]], NDArray[np.float64]]


def _terms(evolution: Evolution, theta: float) -> list[tuple[float, float, _Symbol, float]]:
    """Weight, decay 2 sigma^2, symbol, and largest slope of the symbol in r, of each scale."""

    def haar(total: NDArray[np.float64], product: NDArray[np.float64]) -> NDArray[np.float64]:
        return 2 * total - 4 * theta * product

    def edges(total: NDArray[np.float64], product: NDArray[np.float64]) -> NDArray[np.float64]:
        return 2 * total

    def cell_sides(total: NDArray[np.float64], product: NDArray[np.float64]) -> NDArray[np.float64]:
        return 4 * total

    def constant(total: NDArray[np.float64], product: NDArray[np.float64]) -> NDArray[np.float64]:
        return np.full_like(total, _GERSHGORIN)

    terms: list[tuple[float, float, _Symbol, float]] = []
    for scale, weight in zip(evolution.scales, evolution.flux_weights, strict=True):
        weight, decay = plain(weight), 2 * plain(scale) ** 2
        if weight == 0:
            continue
        if evolution.discretisation == "haar":
            terms.append((weight, decay, haar, 2.0))
        elif evolution.coupling == "trace":
            terms.append((weight, decay, edges, 2.0))
        elif decay * np.e * _GERSHGORIN > 4:  # then 4 r exp(-decay r) stays below 10
            terms.append((weight, decay, cell_sides, 4.0))
        else:
            terms.append((weight, decay, constant, 0.0))
    return terms
