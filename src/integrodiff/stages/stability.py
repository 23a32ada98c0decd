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
may hold the maximum into smaller ones. The same holds for the tensor gate of order two, which is
symmetric with eigenvalues in [0, 1] as well, and for every integration scale.

**Volumes.** The same argument with the 2 x 2 x 2 cell. Its symbol is linear in each of
:math:`p_a = 1 - \cos\omega_a`, and so is the sum s of the :math:`p_a` over the squared spacings, on
which the blurs depend. Hence s and the symbol at any frequency are a mean, with the same weights,
of their values at the eight corners of the cube of all frequencies, and with the upper convex hull
:math:`\hat m` of these eight points

.. math:: \max S \le \max_s \sum_i c_i\, e^{-2\sigma_i^2 s}\, \hat m(s) .

**Fidelity term.** With :math:`\kappa (f - u)`, where f is the input, one step takes a component
of eigenvalue S from u to :math:`(1 - \tau(S + \kappa)) u + \tau\kappa f`. If
:math:`\tau (\max S + 2\kappa) \le 2`, then
:math:`|1 - \tau(S + \kappa)| + \tau\kappa \le 1`, so that the norm never exceeds that of f: if
:math:`|u_k| \le |f|`, then :math:`|u_{k+1}| \le \max|1 - \tau(S + \kappa)|\,|u_k| +
\tau\kappa\,|f| \le |f|`. Each step needs the inequality for its own S and :math:`\kappa` alone, so
both may differ from step to step. The mean stays, since constants have S = 0 and f has the mean
of u.

**Mix of eigenvalues.** Whatever J is made of, its gate is symmetric with the diffusivities of two
nonnegative numbers as eigenvalues, which are in [0, 1]. So no bound depends on the mix.

**Nonnegativity scheme.** For isotropic D, the same holds with :math:`S = 2 c\,(p + q)\,\dots`.
For anisotropic D two bounds of the largest eigenvalue of the unblurred operator are combined:
Gershgorin's theorem gives 10, and replacing each diagonal difference by the differences along
the four sides of its cell gives :math:`4(p + q)`. They bound the operator from above alone. It
may still have eigenvalues of the wrong sign, so here the step bound is necessary for stability
and not sufficient.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from functools import lru_cache
from typing import NamedTuple, cast

import numpy as np

from integrodiff.stages._arrays import Scalar, plain
from integrodiff.stages.domain import TAIL, walk_rate
from integrodiff.stages.evolution import Evolution, Term
from integrodiff.stages.operators import DerivativeOperator
from integrodiff.stages.symbols import ConstantSymbol, Interval, Symbol, Values, VolumeSymbol

_FIRST_TOTAL, _RATIO = 0.01, 1 + 2.0**-10

_BOXES, _BOXES_OF_PART, _MOST_PRODUCTS = 64, 2**12, 2**27
_SLIGHTLY = 1.1
_TABLE_BOXES = 512
_PRECISION = 1e-3
_ROUNDING = 1 - 1e-12

_ALL: Interval = (np.zeros(1), np.full(1, 2.0))


class BlurBound(NamedTuple):
    r"""An upper bound of the squared eigenvalues of one scale's blur along one axis.

    It is :math:`A\, e^{-k p} + \delta` at the frequency with :math:`p = 1 - \cos\omega`, where the
    discrete Gaussian itself has A = 1, :math:`k = 2\sigma^2` and :math:`\delta = 0`.

    Attributes
    ----------
    decay, gain, floor : float
        k, A and :math:`\delta`.
    aliases : bool
        Whether the blur mixes frequencies, so that only the growing part of a symbol bounds it.
    images : float
        Bound of the squared part of the images of low frequencies, without its factor p/2.
    """

    decay: float
    gain: float = 1.0
    floor: float = 0.0
    aliases: bool = False
    images: float = 0.0


def stable_step(
    evolution: Evolution,
    shape: tuple[int, ...] | None = None,
    *,
    blurs: Sequence[BlurBound] | None = None,
) -> float:
    """Return the largest step size for which the Euclidean norm provably never grows.

    Parameters
    ----------
    evolution : Evolution
        The process; its own ``tau`` is not used.
    shape : tuple of int, optional
        Height and width of the images, or slices, height and width of the volumes. Without it the
        bound holds for every size.
    blurs : sequence of BlurBound, optional
        What is known about the blur of each scale where it is not the discrete Gaussian.

    Returns
    -------
    tau : float
        The bound; infinite if nothing flows at all, as in an image of one pixel.

    Notes
    -----
    With ``discretisation="nonnegativity"`` and anisotropic coupling the bound guarantees only
    that no component overshoots; see the module's description.
    """
    if evolution.dimensions == 3:
        if shape is None:
            return stable_step_of_volumes(evolution)
        return _stable_step_of_one_shape(evolution, shape)
    if blurs is None:
        blurs = [BlurBound(2 * plain(scale) ** 2) for scale in evolution.scales]
    shares, weights, rest = _shares(evolution, blurs)
    if not shares:
        largest = 0.0
    elif shape is not None:
        height, width = shape
        largest = _maximum_on_grid(shares, weights, (height, width))
    else:
        on_line = _bound_on_line(shares, weights)
        largest = (on_line or _bound_by_boxes(shares, weights)).largest
    largest += rest
    return 2 / largest if largest > 0 else float("inf")


class StepLimit(NamedTuple):
    """What limits the step size of a process for images of all sizes.

    Two over the bound of :func:`stable_step` is the sum of ``shares`` times the flux weights of one
    step, plus twice a fidelity weight. As the largest of many such sums it is a convex and
    piecewise linear function of the weights, and ``shares`` are its derivatives.

    Attributes
    ----------
    step : int
        The step with the largest eigenvalue, from zero.
    shares : tuple of tuples of float
        What each scale of each of its terms adds with weight one.
    pull_step : int
        The step whose fidelity weight counts, for images the same.
    """

    step: int
    shares: tuple[tuple[float, ...], ...]
    pull_step: int


def step_limit(evolution: Evolution) -> StepLimit:
    """Return what limits the step size, for a bound that carries derivatives."""
    blurs = [BlurBound(2 * plain(scale) ** 2) for scale in evolution.scales]
    if evolution.dimensions == 3:
        found = [_bound_on_envelope(blurs, terms) for terms in evolution.schedule]
        step = int(np.argmax([bound.largest for bound in found]))
        flat = iter(found[step].shares.tolist())
        of_terms = tuple(tuple(next(flat) for _ in blurs) for _ in evolution.schedule[step])
        return StepLimit(step, of_terms, int(np.argmax([plain(p) for p in evolution.pulls()])))
    rows = range(max(len(evolution.schedule), len(evolution.pulls())))
    shares, weights, _ = _shares(evolution, blurs)
    values: dict[_Share, float] = {}
    if shares:
        bound = _bound_on_line(shares, weights) or _bound_by_boxes(shares, weights)
        values = dict(zip(shares, bound.shares.tolist(), strict=True))

    def of_step(row: int) -> tuple[tuple[float, ...], ...]:
        return tuple(
            tuple(
                values.get(_share_of(term, blur), 0.0) if plain(weight) else 0.0
                for blur, weight in zip(blurs, term.flux_weights, strict=True)
            )
            for term in evolution.terms(row)
        )

    def total(row: int) -> float:
        pairs = zip(evolution.terms(row), of_step(row), strict=True)
        return 2 * plain(evolution.pull_at(row)) + sum(
            plain(weight) * share
            for term, shares_of_term in pairs
            for weight, share in zip(term.flux_weights, shares_of_term, strict=True)
        )

    step = max(rows, key=total)
    return StepLimit(step, of_step(step), step)


def stable_step_of_volumes(
    evolution: Evolution, blurs: Sequence[Sequence[BlurBound]] | None = None
) -> float:
    r"""Return the largest step size for volumes of all shapes.

    Parameters
    ----------
    evolution : Evolution
        The process.
    blurs : sequence of sequence of BlurBound, optional
        What is known about the blur of each scale along the axes (z, y, x), where it is not the
        discrete Gaussian. If :math:`A_a e^{-k_a p_a} + \delta_a` are the bounds along the axes,
        their product is at most :math:`A e^{-k s} + \delta` with the product A of the
        :math:`A_a`, the smallest k of :math:`k_a h_a^2`, and
        :math:`\delta = \prod_a (A_a + \delta_a) - A`.
    """
    spacing = evolution.spacing or ()
    if blurs is None:
        found = [BlurBound(2 * plain(scale) ** 2) for scale in evolution.scales]
    else:
        found = [_joined(axes, spacing) for axes in blurs]
    largest = max(_bound_on_envelope(found, terms).largest for terms in evolution.schedule)
    largest += 2 * max(map(plain, evolution.pulls()))
    return 2 / largest if largest > 0 else float("inf")


def _joined(axes: Sequence[BlurBound], spacing: Sequence[float]) -> BlurBound:
    """Return a bound in s for a product of blurs along three axes."""
    gain = math.prod(blur.gain for blur in axes)
    return BlurBound(
        min(blur.decay * distance**2 for blur, distance in zip(axes, spacing, strict=True)),
        gain,
        math.prod(blur.gain + blur.floor for blur in axes) - gain,
        any(blur.aliases for blur in axes),
    )


def _stable_step_of_one_shape(evolution: Evolution, shape: tuple[int, ...]) -> float:
    largest = max(_largest_on_grid(evolution, terms, shape) for terms in evolution.schedule)
    largest += 2 * max(map(plain, evolution.pulls()))
    return 2 / largest if largest > 0 else float("inf")


def _largest_on_grid(evolution: Evolution, terms: Sequence[Term], shape: tuple[int, ...]) -> float:
    """Return the largest eigenvalue of one entry of the schedule, for volumes of one shape."""
    decays = [2 * plain(scale) ** 2 for scale in evolution.scales]
    symbols = [_volume_symbol(term) for term in terms]
    p = [1 - np.cos(np.pi * np.arange(size) / size) for size in shape]
    largest = 0.0
    for z in p[0]:
        y, x = p[1][:, None], p[2]
        total = np.zeros((len(p[1]), len(p[2])))
        for term, symbol in zip(terms, symbols, strict=True):
            values = symbol.at(np.full_like(total, z), y + 0 * total, x + 0 * total)
            s = sum(part / h**2 for part, h in zip((z, y, x), symbol.spacing, strict=True))
            for decay, weight in zip(decays, term.flux_weights, strict=True):
                total += plain(weight) * np.exp(-decay * s) * values
        largest = max(largest, float(total.max()))
    return largest


def stable_step_on_masks(evolution: Evolution) -> float:
    r"""Return a step size for which the norm provably never grows, on images with any mask.

    With :math:`L_M` and the bounds :math:`\kappa` and m of :class:`.operators.WalkBound`, what
    the terms of order one add to minus the right-hand side of the evolution is at most

    .. math:: \sum_i c_i\, e^{-\sigma_i^2 L_M} \kappa L_M \qquad\text{and also at most}\qquad
              \sum_i c_i\, e^{-\sigma_i^2 L_M}\, m,

    where each scale may take the first or the second. Both are functions of :math:`L_M`, whose
    eigenvalues lie in [0, 8], in volumes below four times the sum of the inverse squared spacings.
    Scales up to some size take the second; the best size is searched.
    Terms of higher orders add at most what they add without a mask, S, and what the tails of the
    blurs on invalid pixels change: an operator is changed by at most
    :math:`\varepsilon = 2^{n+3}` ``TAIL``, so :math:`c_i (\sqrt{S/c_i} + \varepsilon)^2 - S`.

    Parameters
    ----------
    evolution : Evolution
        The process; its own ``tau`` is not used.
    """
    steps = range(max(len(evolution.schedule), len(evolution.pulls())))
    largest = max(_largest_on_masks(evolution, step) for step in steps)
    return 2 / largest if largest > 0 else float("inf")


def _largest_on_masks(evolution: Evolution, step: int) -> float:
    """Return the bound of the eigenvalues of one step, with twice its fidelity weight."""
    terms = evolution.terms(step)
    largest = _largest_walk(evolution.scales, terms, 2 * walk_rate(evolution.spacing))
    higher = _without_walk_bound(terms)
    if higher:
        alone = replace(evolution, schedule=(higher,), steps=1, pull=0.0)
        whole = 2 / stable_step(alone)
        largest += whole + _tails(higher, whole)
    return largest + 2 * plain(evolution.pull_at(step))


def _without_walk_bound(terms: Sequence[Term]) -> tuple[Term, ...]:
    return tuple(term for term in terms if term.derivatives.walk_bound(anisotropic=True) is None)


def _largest_walk(scales: Sequence[Scalar], terms: Sequence[Term], end: float) -> float:
    """Return the largest value of the best bound over the eigenvalues of L_M, up to ``end``."""
    # A scale has its maximum at the inverse of its square.
    first = min(1e-4, 0.01 / max(1.0, *map(plain, scales)) ** 2)
    edges = np.concatenate([[0.0], np.geomspace(first, end, 8192)])
    low, high = edges[:-1], edges[1:]
    by_slope = np.zeros((len(scales), len(low)))
    by_largest = np.zeros_like(by_slope)
    for i, scale in enumerate(scales):
        blurs = np.exp(-(plain(scale) ** 2) * low)
        for term in terms:
            bound = term.derivatives.walk_bound(anisotropic=term.coupling.kind == "tensor")
            if bound is None:
                continue
            weight = plain(term.flux_weights[i])
            by_slope[i] += weight * bound.slope * high * blurs
            by_largest[i] += weight * bound.largest * blurs
    # For each number of scales that take the second bound, which are the first ones.
    steps = np.cumsum([np.zeros_like(low), *(by_largest - by_slope)], axis=0)
    return float((by_slope.sum(axis=0) + steps).max(axis=1).min())


def _tails(terms: Sequence[Term], whole: float) -> float:
    """Return what the tails of blurs may add to the eigenvalues of higher orders."""
    total = 0.0
    for term in terms:
        change = 2.0 ** (term.derivatives.order + 3) * TAIL
        for weight in map(plain, term.flux_weights):
            total += 2 * change * (whole * weight) ** 0.5 + weight * change**2
    return total


@lru_cache(maxsize=32)
def stable_on_masks(evolution: Evolution) -> Evolution:
    """Return the process with steps that are stable on images with any mask.

    A step size of up to ``_SLIGHTLY`` times the bound is cut to it. Above, each step is divided
    into equal ones, so that the time of the diffusion stays the same.
    """
    bound, tau = stable_step_on_masks(evolution), plain(evolution.tau)
    if tau <= bound:
        return evolution
    if tau <= _SLIGHTLY * bound:
        return replace(evolution, tau=evolution.tau * (bound / tau))
    parts = math.ceil(tau / bound)
    schedule = evolution.schedule
    if len(schedule) > 1:
        schedule = tuple(terms for terms in schedule for _ in range(parts))
    pull = evolution.pull
    if isinstance(pull, tuple):
        pull = tuple(one for one in pull for _ in range(parts))
    return replace(
        evolution,
        tau=evolution.tau / parts,
        steps=evolution.steps * parts,
        schedule=schedule,
        pull=pull,
    )


class _Share(NamedTuple):
    """What one scale of one term adds to the eigenvalues: e^{-decay (p+q)} m(p, q)."""

    decay: float
    symbol: Symbol

    def value(self, p: Values, q: Values) -> Values:
        """Return the eigenvalues at p and q."""
        return self._decayed(p + q, self.symbol.value(p, q))

    def upper_bound(self, p: Interval, q: Interval) -> Values:
        """Return a bound on boxes of p and q, given as (low, high)."""
        return self._decayed(p[0] + q[0], self.symbol.upper_bound(p, q))

    def _decayed(self, total: Values, values: Values) -> Values:
        result: Values = np.exp(-self.decay * total) * values
        return result


class _Bound(NamedTuple):
    """A bound of the sum of shares times weights, and the shares where it is taken."""

    largest: float
    shares: Values


def _share_of(term: Term, blur: BlurBound) -> _Share:
    """Return what a scale adds to the eigenvalues where its blur is the discrete Gaussian."""
    anisotropic = term.coupling.kind == "tensor"
    return _Share(blur.decay, term.derivatives.symbol(blur.decay, anisotropic=anisotropic))


def _shares(evolution: Evolution, blurs: Sequence[BlurBound]) -> tuple[list[_Share], Values, float]:
    r"""Return what each scale of each term adds, its weights, and a bound of what is left.

    The weights have a row for each entry of the schedule, or for each step if fidelity weights
    differ, which count twice at all frequencies. With :math:`x = A e^{-kp}`, and y
    likewise, the blurs of both axes are at most
    :math:`(x + \delta)(y + \delta) \le x y + 2 A \delta + \delta^2`; the last two terms, times the
    largest value of the symbol, are left.
    """
    columns: dict[_Share, int] = {}
    found: list[tuple[int, int, float]] = []
    rows = max(len(evolution.schedule), len(evolution.pulls()))
    rests = np.zeros(rows)
    for row in range(rows):
        if pull := plain(evolution.pull_at(row)):
            column = columns.setdefault(_Share(0.0, ConstantSymbol(2.0)), len(columns))
            found.append((row, column, pull))
        for term in evolution.terms(row):
            anisotropic = term.coupling.kind == "tensor"
            for blur, flux_weight in zip(blurs, term.flux_weights, strict=True):
                weight = plain(flux_weight)
                if not weight:
                    continue
                symbol = term.derivatives.symbol(blur.decay, anisotropic=anisotropic)
                if blur.aliases:
                    symbol, factor = symbol.on_coarse_grid()
                    rests[row] += weight * factor * blur.images * (blur.gain + blur.floor)
                column = columns.setdefault(_Share(blur.decay, symbol), len(columns))
                found.append((row, column, weight * blur.gain**2))
                left = 2 * blur.gain * blur.floor + blur.floor**2
                if left:
                    rests[row] += weight * left * float(symbol.upper_bound(_ALL, _ALL)[0])
    weights = np.zeros((rows, len(columns)))
    for row, column, weight in found:
        weights[row, column] += weight
    distinct: Values = np.unique(weights, axis=0)
    return list(columns), distinct, float(rests.max())


def _bound_on_line(shares: Sequence[_Share], weights: Values) -> _Bound | None:
    """Certified upper bound of S over all frequencies, from samples in r = p + q.

    Between two samples a function exceeds the larger of them by at most h^2/8 times the largest
    value of minus its second derivative. Samples are dense towards r = 0 in the ratio of
    neighbours, where a share with the decay k has its maximum at r = 1/k; so the excess is less
    than 1e-5 of S at every scale. The kink of S at r = 2 is a sample. None if the maxima of a share
    lie elsewhere.
    """
    first = _FIRST_TOTAL / max(1.0, *(share.decay for share in shares))
    count = int(np.ceil(np.log(2 / first) / np.log(_RATIO)))
    below = np.geomspace(first, 2, count + 1)
    below[-1] = 2.0
    totals = np.concatenate([[0.0], below, np.linspace(2, 4, 513)[1:]])
    # The smallest product p q for p + q = r is zero up to r = 2; beyond, one of them is 2.
    q = np.maximum(totals - 2, 0.0)
    p = totals - q
    concavities = [share.symbol.concavity(share.decay, totals) for share in shares]
    known = [concavity for concavity in concavities if concavity is not None]
    if len(known) < len(shares):
        return None
    samples = np.stack([share.value(p, q) for share in shares])
    excesses = np.stack(known)
    largest, left, sample = _between_samples(totals, samples, excesses, weights)
    square = (totals[left + 1] - totals[left]) ** 2 / 8
    return _Bound(largest, samples[:, sample] + excesses[:, left] * square)


def _volume_symbol(term: Term) -> VolumeSymbol:
    return cast(VolumeSymbol, term.derivatives.symbol(0.0, anisotropic=True))


def _bound_on_envelope(blurs: Sequence[BlurBound], terms: Sequence[Term]) -> _Bound:
    """Certified upper bound of S over all frequencies of volumes, from samples in s.

    The envelope of a symbol is linear between its corners, which are samples. Blurs that mix
    frequencies have the line 2 s in its place, which is nowhere below.
    """
    if not terms:
        return _Bound(0.0, np.zeros(0))
    corners = [_volume_symbol(term).envelope for term in terms]
    end = max(float(s[-1]) for s, _ in corners)
    first = _FIRST_TOTAL / max(1.0, *(blur.decay for blur in blurs)) * min(1.0, end)
    count = int(np.ceil(np.log(end / first) / np.log(_RATIO)))
    totals = np.unique(
        np.concatenate([[0.0], np.geomspace(first, end, count + 1), *(s for s, _ in corners)])
    )
    low = totals[:-1]
    samples, excess, rest = np.zeros_like(totals), np.zeros_like(low), 0.0
    each: list[tuple[Values, Values]] = []
    for term, (s, values) in zip(terms, corners, strict=True):
        envelope = np.interp(totals, s, values)
        for blur, flux_weight in zip(blurs, term.flux_weights, strict=True):
            line = 2 * totals if blur.aliases else envelope
            slopes = np.diff(line) / np.diff(totals)
            lowest = np.minimum(line[:-1], line[1:])
            decay, weight = blur.decay, plain(flux_weight) * blur.gain
            decayed = line * np.exp(-decay * totals)
            samples += weight * decayed
            # Minus the second derivative of the decayed line is (2 k m' - k^2 m) e^{-ks}.
            concavity = decay * np.maximum(2 * slopes - decay * lowest, 0.0)
            decayed_concavity = concavity * np.exp(-decay * low)
            excess += weight * decayed_concavity
            rest += plain(flux_weight) * blur.floor * float(line.max())
            each.append((decayed, decayed_concavity))
    largest, left, sample = _between_samples(totals, samples[None], excess[None], np.ones((1, 1)))
    square = (totals[left + 1] - totals[left]) ** 2 / 8
    found = [values[sample] + concavity[left] * square for values, concavity in each]
    return _Bound(rest + largest, np.array(found))


def _between_samples(
    totals: Values, samples: Values, excesses: Values, weights: Values
) -> tuple[float, int, int]:
    """Return the largest bound over all intervals and rows of weights.

    With it comes where it is taken: the interval, and the one of its ends that is the larger.
    """
    squares = np.diff(totals) ** 2 / 8
    largest, left, sample = 0.0, 0, 0
    for rows in np.array_split(weights, -(-len(weights) // 64)):
        values, excess = rows @ samples, (rows @ excesses) * squares
        upper = np.maximum(values[:, :-1], values[:, 1:]) + excess
        row, interval = divmod(int(upper.argmax()), upper.shape[1])
        if upper[row, interval] > largest:
            largest, left = float(upper[row, interval]), interval
            sample = interval + int(values[row, interval] < values[row, interval + 1])
    return largest, left, sample


def _bound_by_boxes(shares: Sequence[_Share], weights: Values) -> _Bound:
    """Certified upper bound of S over all frequencies, from boxes that get smaller and fewer.

    It is at most ``_PRECISION`` above the maximum, unless that takes too many boxes: after some
    ``_MOST_PRODUCTS`` of shares and weights, the bound found so far is returned.

    A box is left out only if S is nowhere larger in it than the largest value found. That value
    is one at a corner or in the middle of a box that stays, and so at a corner of a smaller box.
    Hence no value is lost, and the bounds of the boxes that stay are one for all frequencies.
    """
    edges = np.linspace(0, 2, _BOXES + 1)
    low = np.stack(np.meshgrid(edges[:-1], edges[:-1]), axis=-1).reshape(-1, 2)
    low = low[low[:, 0] >= low[:, 1]]  # S is symmetric in p and q
    size = 2 / _BOXES
    # A share costs as much as some ten products to evaluate.
    products_per_box = len(shares) * (len(weights) + 10)
    products = products_per_box * len(low)
    while True:
        # Parts of the boxes, whose arrays stay in the cache of the processor.
        parts = [_on_boxes(shares, weights, part, size) for part in _parts(low)]
        upper = np.concatenate([bounds for bounds, _ in parts])
        attained = max(values for _, values in parts)
        stays = upper > attained * _ROUNDING
        products += 4 * products_per_box * int(stays.sum())
        if upper.max() <= attained * (1 + _PRECISION) or products > _MOST_PRODUCTS:
            p, q = low[upper.argmax(), :, None]
            found = [share.upper_bound((p, p + size), (q, q + size))[0] for share in shares]
            return _Bound(float(upper.max()), np.array(found))
        low = low[stays]
        size /= 2
        low = np.concatenate([low + size * np.array(corner) for corner in np.ndindex(2, 2)])


def _parts(low: Values) -> list[Values]:
    return np.array_split(low, -(-len(low) // _BOXES_OF_PART))


def _on_boxes(
    shares: Sequence[_Share], weights: Values, low: Values, size: float
) -> tuple[Values, float]:
    """Return a bound of S in each box, and the largest value in their middles and upper corners.

    S is the largest sum over the entries of the schedule.
    """
    decays = {share.decay for share in shares}
    symbols = {share.symbol for share in shares}

    def largest(total: Values, of_symbol: dict[Symbol, Values]) -> Values:
        decayed = {decay: np.exp(-decay * total) for decay in decays}
        values = np.stack([decayed[share.decay] * of_symbol[share.symbol] for share in shares])
        result = np.zeros(len(low))
        for row in weights:
            # Not by BLAS, whose threads take longer to start than this takes.
            np.maximum(result, np.einsum("s,sn->n", row, values), out=result)
        return result

    p, q = (low[:, 0], low[:, 0] + size), (low[:, 1], low[:, 1] + size)
    upper = largest(p[0] + q[0], {symbol: symbol.upper_bound(p, q) for symbol in symbols})
    attained = 0.0
    for x, y in ((low + size / 2).T, (p[1], q[1])):
        values = largest(x + y, {symbol: symbol.value(x, y) for symbol in symbols})
        attained = max(attained, float(values.max()))
    return upper, attained


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
        return _Share(decay, symbol).upper_bound(p, q)

    pairs = zip(operators, scales, strict=True)
    return np.stack([column(operator, 2 * scale**2) for operator, scale in pairs], axis=1)


def _maximum_on_grid(shares: Sequence[_Share], weights: Values, shape: tuple[int, int]) -> float:
    """Maximum of S over the DCT frequencies of one image size."""
    height, width = shape
    p = 1 - np.cos(np.pi * np.arange(width) / width)
    largest = 0.0
    # Rows in blocks keep the memory small for large images.
    for q in np.array_split(1 - np.cos(np.pi * np.arange(height) / height), -(-height // 256)):
        for row in weights:
            values = np.zeros((len(q), width))
            for share, weight in zip(shares, row, strict=True):
                values += weight * share.value(p, q[:, None])
            largest = max(largest, float(values.max()))
    return largest
