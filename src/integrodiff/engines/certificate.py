r"""By how much the shortcuts of the compiled engine may enlarge eigenvalues: a certificate.

Continued by reflection, an image of any size is periodic, and one step with shortcuts is
:math:`\sum_i c_i B_i^* H^* M_i H B_i` with the cells' operator H and :math:`M_i \le M(I)`, as
without them. Only the blurs :math:`B_i` differ. Each is bounded along one axis by
:class:`~integrodiff.stages.stability.BlurBound`, from which the stable step size follows.

**Fine scales.** Cut kernels are symmetric, so that :math:`B_i` is diagonal under the DCT-II. Its
eigenvalue along an axis is the trigonometric polynomial of its taps, f, and the bound is one of
:math:`Q = f^2`.

**Coarse scales.** :math:`B_i` samples every second point of an image smoothed with the symbol s,
blurs the samples with the symbol c, and interpolates with the symbol t. Along one axis it mixes
:math:`\omega` with its alias :math:`\omega + \pi` alone, and it has rank one in each such pair:

.. math:: B_i^* L B_i = \tfrac14 c(2\omega)^2
          \bigl(L(\omega)\, t(\omega)^2 + L(\omega + \pi)\, t(\omega + \pi)^2\bigr)\,
          \bar s \bar s^*, \qquad \bar s = (s(\omega), s(\omega + \pi)),

up to phases. By Cauchy and Schwarz :math:`\bar s \bar s^* \le \mathrm{diag}((1 + \rho)
s(\omega)^2, (1 + 1/\rho)\, s(\omega + \pi)^2)`; the first is for the lower frequency. Since
:math:`t(\omega + \pi) = -\sin(\omega/2)\, d(\omega)` with another polynomial d, the two sums that
occur, for :math:`L = 1` and :math:`L = p = 1 - \cos\omega`, are at most :math:`t^2 + d^2` and
:math:`p\,(t^2 + d^2)`. So the bound is one of
:math:`Q = (1 + \rho)\, c(2\omega)^2 s^2 (t^2 + d^2) / 4` below :math:`\pi/2`, and of the same with
:math:`1 + 1/\rho` above. The part of M's symbol that falls with the frequency is left out.
Order two has :math:`L = p^2` as well, with the sum
:math:`p^2 t^2 + (2 - p)^2 (p/2)\, d^2 \le p^2 (t^2 + d^2) + 2 p\, d^2`. The last part is tiny where
:math:`c(2\omega)^2` is not, and is bounded by a number.

**Volumes.** Blurs are products of blurs along the three axes. The symbol of the cell is at most
:math:`2 s` with :math:`s = \sum_a p_a / h_a^2`, since its products of two :math:`p_a` have negative
factors, which outweigh that of all three. With this sum in its place, each summand of a coarse
scale is a product of the two kinds of factors above, one for each axis, and the scale adds at most
:math:`2 s \prod_a Q_a`.

**From samples to all frequencies.** Between samples at a distance h a function R exceeds the larger
one by at most :math:`h^2/8\, \max|R''|`, and the second derivative is at most the sum of the
absolute Fourier coefficients times the squares of their frequencies. For the difference R of Q and
its bound, which are nearly equal, that is next to nothing.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import lru_cache

import numpy as np

from integrodiff.engines.shortcuts import TRUNCATION, Shortcuts, Taps, VolumeShortcuts
from integrodiff.stages import Evolution, discrete_gaussian, increments
from integrodiff.stages._arrays import plain
from integrodiff.stages.stability import BlurBound, stable_step, stable_step_of_volumes
from integrodiff.stages.symbols import Values

EXPONENTIAL_ERROR = 4e-6
"""Relative error of the exponential, by which a diffusivity may exceed one."""

_RHO = 3e-4
_FEWEST_SAMPLES = 2**11


@lru_cache(maxsize=64)
def stable_step_with_shortcuts(evolution: Evolution, found: Shortcuts | None) -> float:
    """Return the largest step size at which the norm never grows, for what is computed by default.

    Parameters
    ----------
    evolution : Evolution
        The process without the scales that are left out.
    found : Shortcuts or None
        Those of the fused step; without them, kernels are cut off and nothing else.
    """
    if found is None:
        widths = [plain(width) for width in increments(evolution.scales)]
        blurs = cut_blurs(tuple(discrete_gaussian(width, TRUNCATION) for width in widths))
    else:
        blurs = fused_blurs(found)
    return stable_step(evolution, blurs=blurs) / (1 + EXPONENTIAL_ERROR)


@lru_cache(maxsize=64)
def stable_volume_step_with_shortcuts(evolution: Evolution, found: VolumeShortcuts) -> float:
    """Return the bound of :func:`stable_step_with_shortcuts` for volumes."""
    bound = stable_step_of_volumes(evolution, volume_blurs(found))
    return bound / (1 + EXPONENTIAL_ERROR)


def volume_blurs(found: VolumeShortcuts) -> tuple[tuple[BlurBound, ...], ...]:
    """Return bounds of the blurs of all scales along the axes (z, y, x) of a volume."""
    axes = []
    for fine, sampling, coarse, between in zip(
        found.fine, found.sampling, found.coarse, found.interpolation, strict=True
    ):
        # Each fine scale is made from the volume itself.
        alone = tuple(cut_blurs((taps,))[0] for taps in fine)
        if sampling:
            axes.append((*alone, *_coarse_blurs(sampling, coarse, between)))
        else:
            axes.append((*alone, *(blur._replace(aliases=True) for blur in cut_blurs(coarse))))
    return tuple(zip(*axes, strict=True))


def fused_blurs(found: Shortcuts) -> tuple[BlurBound, ...]:
    """Return bounds of the blurs of all scales of the fused step."""
    return (
        *cut_blurs(found.fine),
        *_coarse_blurs(found.sampling, found.coarse, found.interpolation),
    )


@lru_cache(maxsize=32)
def cut_blurs(kernels: tuple[Taps, ...]) -> tuple[BlurBound, ...]:
    """Return bounds of the blurs of a cascade of symmetric kernels."""
    count = _sample_count(2 * sum(len(taps) for taps in kernels))
    smoothed = np.ones(count + 1)
    bounds = []
    for taps in kernels:
        smoothed = smoothed * _symbol(taps, count)
        bounds.append(_bound(smoothed**2))
    return tuple(bounds)


@lru_cache(maxsize=32)
def _coarse_blurs(
    sampling: Taps, kernels: tuple[Taps, ...], interpolation: Taps
) -> tuple[BlurBound, ...]:
    degree = 2 * len(sampling) + 4 * sum(map(len, kernels)) + 2 * len(interpolation)
    count = _sample_count(degree)
    frequencies = np.linspace(0, np.pi, count + 1)
    sampled = _half_sample_symbol(sampling, frequencies)
    tail = np.cumsum((np.array(interpolation) * (-1.0) ** np.arange(len(interpolation)))[::-1])
    alternating = 2 * tail[::-1]
    images = _symbol([*alternating, 0.0], count)
    gain = (_half_sample_symbol(interpolation, frequencies) ** 2 + images**2) / 4
    beyond = np.arange(count + 1) >= count // 2
    # Separate bounds of the factors: the first is tiny above half the highest frequency.
    largest_sampled = np.abs(sampled[beyond]) + _between_samples(sampled)
    largest_gain = gain[beyond] + _between_samples(gain)
    bounds = []
    blurred = np.ones(count + 1)
    for taps in kernels:
        spread = np.zeros(2 * len(taps) - 1)
        spread[::2] = taps
        blurred = blurred * _symbol(spread, count)
        squares = blurred**2
        largest = squares[beyond] + _between_samples(squares)
        alias = (1 + 1 / _RHO) * _largest_product(largest_sampled**2, largest_gain, largest)
        below = _bound((1 + _RHO) * squares * sampled**2 * gain, last=count // 2)
        made = (1 + _RHO) * squares * sampled**2 * images**2 / 4
        image = float(made[: count // 2 + 1].max()) + _between_samples(made)
        bounds.append(below._replace(floor=max(below.floor, alias), aliases=True, images=image))
    return tuple(bounds)


def _largest_product(*factors: Values) -> float:
    """Return the largest product, each factor taken at the worse end of every interval."""
    ends = [np.maximum(factor[:-1], factor[1:]) for factor in factors]
    return float(np.prod(ends, axis=0).max())


def _sample_count(degree: int) -> int:
    """Return the number of intervals, a power of two, enough for exact Fourier coefficients."""
    return max(_FEWEST_SAMPLES, 1 << (2 * degree + 1).bit_length())


def _symbol(taps: Sequence[float] | Values, count: int) -> Values:
    """Return the symbol of half a symmetric kernel at ``count + 1`` frequencies up to pi."""
    whole = np.zeros(2 * count)
    whole[: len(taps)] = taps
    whole[-1 : -len(taps) : -1] = taps[1:]
    result: Values = np.fft.rfft(whole).real
    return result


def _half_sample_symbol(taps: Taps, frequencies: Values) -> Values:
    """Return the symbol of half a kernel whose taps lie at the distances 1/2, 3/2, ..."""
    distances = np.arange(len(taps)) + 0.5
    result: Values = 2 * np.cos(np.outer(frequencies, distances)) @ np.array(taps)
    return result


def _between_samples(values: Values) -> float:
    """Bound by how much an even function exceeds the larger of two neighbouring samples."""
    count = len(values) - 1
    coefficients = np.fft.rfft(np.concatenate([values, values[-2:0:-1]])).real / count
    curvature = float(np.sum(np.abs(coefficients) * np.arange(count + 1) ** 2))
    return (np.pi / count) ** 2 / 8 * curvature


def _bound(squared: Values, last: int | None = None) -> BlurBound:
    """Return the best of several bounds of an even function, given by samples up to pi.

    The bound holds up to the sample ``last``.
    """
    count = len(squared) - 1
    last = count if last is None else last
    p = 1 - np.cos(np.linspace(0, np.pi, count + 1))
    gain = max(1.0, float(squared[0]))
    with np.errstate(divide="ignore"):
        rates = -np.log(squared[1 : last + 1] / gain) / p[1 : last + 1]
    candidates = []
    for least in (0.3, 0.1, 0.03, 0.01, 3e-3, 1e-3, 1e-4, 1e-5):
        within = squared[1 : last + 1] >= least
        decay = max(0.0, float(rates[within].min())) if within.any() else 0.0
        excess = squared - gain * np.exp(-decay * p)
        floor = max(0.0, float(excess[: last + 1].max())) + _between_samples(excess)
        candidates.append(BlurBound(decay, gain, floor))
    return min(candidates, key=_largest_share)


def _largest_share(bound: BlurBound) -> float:
    """Return a bound of what a scale of weight one adds to the eigenvalues."""
    slope, decay = 2.0, bound.decay
    largest = slope / (math.e * decay) if decay > 0.25 else 4 * slope * math.exp(-4 * decay)
    return bound.gain**2 * largest + 4 * slope * (2 * bound.gain * bound.floor + bound.floor**2)
