r"""Rician noise, that of magnitudes in MRI: a stabilising transform and its unbiased inverse.

The magnitude of a complex number :math:`\nu` with Gaussian noise of level :math:`\sigma` in both
parts,

.. math:: z = |\nu + \sigma (n_1 + i n_2)|, \qquad n_1, n_2 \sim N(0, 1),

has the Rice distribution. Where :math:`\nu` is large, its noise is Gaussian; where it is small, its
deviation is down to :math:`0.655\,\sigma`, and its mean is :math:`1.253\,\sigma` at
:math:`\nu = 0`, so that background and dark tissue are too bright. As Foi [1]_ proposes, a
transform :math:`\sigma f(z / \sigma)` makes the deviation close to :math:`\sigma` for all
:math:`\nu`. The denoised image estimates :math:`E f`, and the exact unbiased inverse is that of
:math:`\nu \mapsto E f(z)`: it removes the bias of magnitudes as well.

Both are computed here from the distribution, and not taken from published tables. f begins as the
identity. Its slope at the mean of z for :math:`\nu` is divided by the deviation of f(z) for this
:math:`\nu`, a few times; values below the mean at :math:`\nu = 0` take the slope there. After three
rounds the deviation is within 7 percent of one for all :math:`\nu`. More rounds come closer, but
make the slope of f rise and fall, which distorts weak structure. Above the table,
:math:`f(z) = \sqrt{z^2 - 1/2}`, the limit of stabilisation.

The level of the noise follows from mean and deviation of the flattest parts of an image: their
ratio is a function of :math:`\nu / \sigma`, and :math:`E z^2 = \nu^2 + 2 \sigma^2`. Below a ratio
of 2.2, that of a signal of 1.7 noise levels, the parts are taken for air, where
:math:`\nu = 0`, since the ratio hardly depends on the signal there.

.. [1] A. Foi, "Noise estimation and removal in MR imaging: the variance-stabilization approach",
   IEEE International Symposium on Biomedical Imaging (2011) 1809-1814.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from integrodiff._checks import finite_number, nonnegative_number
from integrodiff.namespaces import (
    Array,
    at_least,
    dtype_of,
    in_dtype_of,
    interpolated,
    namespace,
)

Floats = NDArray[np.float64]

_ROUNDS = 3
_LARGEST = 16.0
"""Magnitude in noise levels at which the tables end."""

_REACH = 9.0
"""Deviations beyond which noise has no probability."""

_STEP = 0.01


@dataclass(frozen=True, kw_only=True)
class Rician:
    """Rician noise of one level.

    Attributes
    ----------
    sigma : float
        Standard deviation of the noise of the real and of the imaginary part.
    zero : float
        Grey value of the magnitude zero.
    """

    sigma: float
    zero: float = 0.0

    def __post_init__(self) -> None:
        object.__setattr__(self, "sigma", nonnegative_number("sigma", self.sigma))
        object.__setattr__(self, "zero", finite_number("zero", self.zero))

    def stabilise(self, image: Array, levels: Array | None = None) -> Array:
        """Return magnitudes whose noise has the deviation sigma, or of levels that vary.

        Parameters
        ----------
        image : ndarray
            Magnitudes; those below zero count as zero.
        levels : ndarray, optional
            Noise level at each pixel, in place of sigma.
        """
        if self.sigma == 0:
            return image
        level = self.sigma if levels is None else levels
        magnitudes = at_least(image - self.zero, 0) / level
        found = level * transform(in_dtype_of(magnitudes, np.dtype(np.float64)))
        return in_dtype_of(found, dtype_of(image))

    def restore(self, stabilised: Array, levels: Array | None = None) -> Array:
        """Return the magnitudes without noise whose stabilised values have these means."""
        if self.sigma == 0:
            return stabilised
        level = self.sigma if levels is None else levels
        means = in_dtype_of(stabilised, np.dtype(np.float64)) / level
        signal = unbiased_inverse(means)
        return in_dtype_of(level * signal + self.zero, dtype_of(stabilised))


_AIR = 2.2
"""Mean over deviation up to which magnitudes are taken for those of no signal."""


def level_of(mean: float, deviation: float) -> float:
    """Return the level of Rician noise in a flat part of an image.

    Parameters
    ----------
    mean, deviation : float
        Mean of the magnitudes, and their standard deviation.
    """
    if deviation <= 0 or mean <= 0:
        return max(deviation, 0.0)
    tables, ratio = _tables(), mean / deviation
    if ratio > tables.ratios[-1]:
        return deviation
    signal = 0.0 if ratio < _AIR else float(np.interp(ratio, tables.ratios, tables.signals))
    return float(np.sqrt((mean**2 + deviation**2) / (signal**2 + 2)))


class _Tables(NamedTuple):
    """The transform at magnitudes; for signals its mean, and the mean of z over its deviation."""

    magnitudes: Floats
    transformed: Floats
    signals: Floats
    means: Floats
    ratios: Floats


def transform(magnitudes: Array) -> Array:
    """Return f for magnitudes in noise levels."""
    xp, tables = namespace(magnitudes), _tables()
    inside = interpolated(magnitudes, tables.magnitudes, tables.transformed)
    largest = float(tables.magnitudes[-1])
    beyond = xp.sqrt(at_least(magnitudes, largest) ** 2 - 0.5)
    return xp.where(magnitudes > largest, beyond, inside)


def unbiased_inverse(means: Array) -> Array:
    """Return the signals for which the transform has these means; zero below that of zero."""
    xp, tables = namespace(means), _tables()
    # The mean is an even function of the signal, so that its square is smooth at zero.
    squares = interpolated(means, tables.means, tables.signals**2)
    largest = float(tables.means[-1])
    high = at_least(means, largest)
    beyond = (high + xp.sqrt(high**2 - 1)) / 2
    shift = float(tables.signals[-1] - (largest + np.sqrt(largest**2 - 1)) / 2)
    return xp.where(means > largest, beyond + shift, xp.sqrt(squares))


def rice_weights(signals: Floats, magnitudes: Floats) -> Floats:
    """Return the probability of each magnitude, an even grid, for each signal."""
    from scipy.special import i0e

    z, nu = magnitudes, signals[:, None]
    weights = z * np.exp(-((z - nu) ** 2) / 2) * i0e(z * nu)
    return np.asarray(weights / weights.sum(axis=1, keepdims=True), np.float64)


@cache
def _tables() -> _Tables:
    top = _LARGEST + _REACH
    z: Floats = (np.arange(round(top / _STEP), dtype=np.float64) + 0.5) * _STEP
    dark, bright = np.linspace(0, 4, 201), np.linspace(4, _LARGEST - _REACH / 2, 151)
    signals = np.concatenate([dark, bright[1:]])
    weights = rice_weights(signals, z)
    averages = weights @ z
    ratios = averages / np.sqrt(weights @ z**2 - averages**2)
    slope, f = np.ones_like(z), z
    for _ in range(_ROUNDS):
        deviations = np.sqrt(np.maximum(weights @ f**2 - (weights @ f) ** 2, 0))
        slope = slope / np.interp(z, averages, deviations)
        f = np.cumsum(slope) * _STEP - slope * (_STEP / 2)
    # A constant added to f has no effect, so that the limit joins it at the end of the table.
    end = int(np.searchsorted(z, _LARGEST))
    limit = np.sqrt(np.maximum(z**2 - 0.5, 0))
    f = np.where(z <= z[end], f - f[end] + limit[end], limit)
    magnitudes = np.concatenate([[0.0], z[: end + 1]])
    transformed = np.concatenate([[f[0] - slope[0] * _STEP / 2], f[: end + 1]])
    return _Tables(magnitudes, transformed, signals, weights @ f, ratios)
