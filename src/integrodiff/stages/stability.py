r"""Stage 8: the largest step size that is proven stable.

**Haar cell.** All eigenvalues of D lie in [0, 1], so the energy of a cell is at most
:math:`X^2 + Y^2 + 2(1 - 2\theta) E^2`, its value for D = I. The operator for D = I is diagonal
under the DCT-II, and so are the blurs. With :math:`p = 1 - \cos\omega_x` and
:math:`q = 1 - \cos\omega_y`, minus the right-hand side of the evolution is therefore a
symmetric semidefinite operator between zero and one with the eigenvalues

.. math:: S(p, q) = \sum_i c_i\, e^{-2\sigma_i^2 (p + q)}\, \bigl(2(p + q) - 4\theta p q\bigr),

and :math:`\tau \le 2 / \max S` keeps the eigenvalues of one step in [-1, 1], whatever the image.
The bound is sharp: D = I attains it. For a given sum :math:`r = p + q` the maximum has the
smallest product, so the supremum over images of *all* sizes is a problem in r alone.

**Higher orders.** For a diffusivity in [0, 1] the operator of a term of order n lies between
zero and its value for diffusivity one, which is diagonal under the DCT-II as well, with
eigenvalues :math:`c_i e^{-2\sigma_i^2(p+q)} m_n(p, q)`; see
:func:`integrodiff.stages.derivatives.symbol`. The sum over all terms is bounded by dividing the
square of all (p, q) into boxes, in each of which every factor is monotonous, and the boxes that
may hold the maximum into smaller ones.

**Fidelity term.** With :math:`\kappa (f - u)`, where f is the input, one step takes a component
of eigenvalue S from u to :math:`(1 - \tau(S + \kappa)) u + \tau\kappa f`. If
:math:`\tau (\max S + 2\kappa) \le 2`, then
:math:`|1 - \tau(S + \kappa)| + \tau\kappa \le 1`, so that the norm never exceeds that of f.

**Nonnegativity scheme.** For isotropic D, the same holds with :math:`S = 2 c\,(p + q)\,\dots`.
For anisotropic D two bounds of the largest eigenvalue of the unblurred operator are combined:
Gershgorin's theorem gives 10, and replacing each diagonal difference by the differences along
the four sides of its cell gives :math:`4(p + q)`. They bound the operator from above alone. It
may still have eigenvalues of the wrong sign, so here the step bound is necessary for stability
and not sufficient.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from integrodiff.stages._arrays import plain
from integrodiff.stages.evolution import Evolution, Term
from integrodiff.stages.operators import DerivativeOperator
from integrodiff.stages.symbols import Interval, Symbol, Values

_INTERVALS = 2**14

_BOXES, _MOST_BOXES = 64, 2**18
_TABLE_BOXES = 512
_PRECISION = 1e-3


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
    largest = 0.0
    for terms in evolution.schedule:
        shares = _shares(evolution, terms)
        curvatures = [share.curvature for share in shares]
        if shape is not None:
            found = _maximum_on_grid(shares, shape)
        elif None not in curvatures:
            found = _bound_on_line(shares, sum(c for c in curvatures if c is not None))
        else:
            found = _bound_by_boxes(shares)
        largest = max(largest, found)
    largest += 2 * plain(evolution.pull)
    return 2 / largest if largest > 0 else float("inf")


class _Share(NamedTuple):
    """What one scale of one term adds to the eigenvalues: weight e^{-decay (p+q)} m(p, q)."""

    weight: float
    decay: float
    symbol: Symbol

    def value(self, p: Values, q: Values) -> Values:
        """Return the eigenvalues at p and q."""
        return self._decayed(p + q, self.symbol.value(p, q))

    def upper_bound(self, p: Interval, q: Interval) -> Values:
        """Return a bound on boxes of p and q, given as (low, high)."""
        return self._decayed(p[0] + q[0], self.symbol.upper_bound(p, q))

    @property
    def curvature(self) -> float | None:
        """A bound of the second derivative along the line of maxima, if it is known."""
        found = self.symbol.curvature(self.decay)
        return None if found is None else self.weight * found

    def _decayed(self, total: Values, values: Values) -> Values:
        result: Values = self.weight * np.exp(-self.decay * total) * values
        return result


def _shares(evolution: Evolution, terms: Sequence[Term]) -> list[_Share]:
    """Return what each scale of each term adds."""
    shares = []
    for term in terms:
        anisotropic = term.coupling.kind == "tensor"
        for scale, flux_weight in zip(evolution.scales, term.flux_weights, strict=True):
            weight, decay = plain(flux_weight), 2 * plain(scale) ** 2
            if weight:
                symbol = term.derivatives.symbol(decay, anisotropic=anisotropic)
                shares.append(_Share(weight, decay, symbol))
    return shares


def _bound_on_line(shares: Sequence[_Share], curvature: float) -> float:
    """Certified upper bound of S over all frequencies, from samples in r = p + q.

    Between two samples a function exceeds the larger of them by at most h^2/8 times the largest
    second derivative, the ``curvature``. The kink of S at r = 2 is a sample.
    """
    total = np.linspace(0, 4, _INTERVALS + 1)
    # The smallest product p q for p + q = r is zero up to r = 2; beyond, one of them is 2.
    q = np.maximum(total - 2, 0.0)
    p = total - q
    samples = np.zeros_like(total)
    for share in shares:
        samples += share.value(p, q)
    return float(samples.max()) + curvature * (4 / _INTERVALS) ** 2 / 8


def _bound_by_boxes(shares: Sequence[_Share]) -> float:
    """Certified upper bound of S over all frequencies, at most ``_PRECISION`` above its maximum."""
    edges = np.linspace(0, 2, _BOXES + 1)
    low = np.stack(np.meshgrid(edges[:-1], edges[:-1]), axis=-1).reshape(-1, 2)
    low = low[low[:, 0] >= low[:, 1]]  # S is symmetric in p and q
    size = 2 / _BOXES
    while True:
        p, q = (low[:, 0], low[:, 0] + size), (low[:, 1], low[:, 1] + size)
        upper = np.sum([share.upper_bound(p, q) for share in shares], axis=0)
        middle = low + size / 2
        attained = np.max(np.sum([share.value(*middle.T) for share in shares], axis=0))
        corners = np.max(np.sum([share.value(p[1], q[1]) for share in shares], axis=0))
        attained = max(attained, corners)
        if upper.max() <= attained * (1 + _PRECISION) or len(low) > _MOST_BOXES:
            return float(upper.max())
        low = low[upper > attained * (1 + _PRECISION / 2)]
        size /= 2
        low = np.concatenate([low + size * np.array(corner) for corner in np.ndindex(2, 2)])


def step_table(operators: Sequence[DerivativeOperator], scales: Sequence[float]) -> Values:
    """Return bounds of the eigenvalues that operators at scales add with weight one.

    There is a row for each box of frequencies and a column for each pair of operator and scale. The
    largest entry of the table times a vector of nonnegative weights, which should not exceed two
    over the step size, is a certified bound for all image sizes, a few percent above the maximum.
    Each entry is linear in the weights, for models that are trained with many of them.
    """
    # Finer towards low frequencies, which are all that large scales leave.
    edges = 2 * np.linspace(0, 1, _TABLE_BOXES + 1) ** 2
    first, second = np.tril_indices(_TABLE_BOXES)
    p, q = (edges[first], edges[first + 1]), (edges[second], edges[second + 1])

    def column(operator: DerivativeOperator, decay: float) -> Values:
        symbol = operator.symbol(decay, anisotropic=operator.has_tensor_gate)
        return _Share(1.0, decay, symbol).upper_bound(p, q)

    pairs = zip(operators, scales, strict=True)
    return np.stack([column(operator, 2 * scale**2) for operator, scale in pairs], axis=1)


def _maximum_on_grid(shares: Sequence[_Share], shape: tuple[int, int]) -> float:
    """Maximum of S over the DCT frequencies of one image size."""
    height, width = shape
    p = 1 - np.cos(np.pi * np.arange(width) / width)
    largest = 0.0
    # Rows in blocks keep the memory small for large images.
    for q in np.array_split(1 - np.cos(np.pi * np.arange(height) / height), -(-height // 256)):
        values = np.zeros((len(q), width))
        for share in shares:
            values += share.value(p, q[:, None])
        largest = max(largest, float(values.max()))
    return largest
