r"""Photon noise: the generalised Anscombe transform and its exact unbiased inverse.

A detector turns a mean number y of photons into the grey value

.. math:: x = g\,p + o + r\,n, \qquad p \sim \mathrm{Poisson}(y), \quad n \sim N(0, 1)

with gain g, offset o and readout noise r. Its variance grows with the signal. In photons,
:math:`z = (x - o) / g` and :math:`\sigma = r / g`, the transform

.. math:: f(z) = 2 \sqrt{\max(z + 3/8 + \sigma^2,\, 0)}

makes the variance approximately one everywhere [1]_. The denoised image estimates
:math:`E f(z)`, which differs from :math:`f(y)`, so the unbiased inverse is the inverse of
:math:`y \mapsto E f(z)` [2]_, [3]_. It is tabulated by numerical integration, once for each
:math:`\sigma`, to about six digits (``tests/unit/test_anscombe.py``).

.. [1] J.-L. Starck, F. Murtagh, A. Bijaoui, "Image Processing and Data Analysis", Cambridge 1998.
.. [2] M. Mäkitalo, A. Foi, "Optimal inversion of the Anscombe transformation in low-count Poisson
   image denoising", IEEE Transactions on Image Processing 20 (2011) 99-109.
.. [3] M. Mäkitalo, A. Foi, "Optimal inversion of the generalized Anscombe transformation for
   Poisson-Gaussian noise", IEEE Transactions on Image Processing 22 (2013) 91-103.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from integrodiff._checks import finite_number, nonnegative_number, positive_number
from integrodiff.namespaces import (
    Array,
    at_least,
    dtype_of,
    in_dtype_of,
    is_numpy,
    namespace,
    piecewise_polynomial,
)

if TYPE_CHECKING:
    from scipy.interpolate import CubicSpline

FloatArray = NDArray[np.floating[Any]]

# Below this many photons the inverse is interpolated from a table; above, the asymptotic
# inverse is exact to seven digits.
_LARGEST_COUNT = 400.0
_TABLE_LENGTH = 400
_NODES = 160
_DEVIATIONS = 9.0


@dataclass(frozen=True, kw_only=True)
class PoissonGaussian:
    """Noise whose variance is ``gain * (signal - offset) + readout**2``.

    Attributes
    ----------
    gain : float
        Grey levels per photon.
    offset : float
        Grey value without light.
    readout : float
        Standard deviation of the noise without light, in grey levels.

    Examples
    --------
    >>> import numpy as np
    >>> from integrodiff import PoissonGaussian, denoise
    >>> camera = PoissonGaussian(gain=2, offset=100, readout=6)
    >>> float(camera.variance(np.array(200.0)))  # gain * (200 - offset) + readout**2
    236.0
    >>> raw = 100 + 2 * np.random.default_rng(0).poisson(50, (64, 64))
    >>> result = denoise(raw, noise=camera, as_float=True)
    >>> bool(abs(result.mean() - 200) < 1)
    True
    """

    gain: float = 1.0
    offset: float = 0.0
    readout: float = 0.0

    def __post_init__(self) -> None:
        object.__setattr__(self, "gain", positive_number("gain", self.gain))
        object.__setattr__(self, "offset", finite_number("offset", self.offset))
        object.__setattr__(self, "readout", nonnegative_number("readout", self.readout))

    def variance(self, signal: FloatArray) -> FloatArray:
        """Return the variance of the noise where the mean grey value is ``signal``."""
        return np.asarray(self.gain * np.maximum(signal - self.offset, 0) + self.readout**2)

    def stabilise(self, image: Array) -> Array:
        """Return the generalised Anscombe transform, whose noise has variance close to one."""
        counts = (image - self.offset) / self.gain
        roots = namespace(image).sqrt(at_least(counts + _shift(self._sigma), 0))
        return in_dtype_of(2 * roots, dtype_of(image))

    def restore(self, stabilised: Array) -> Array:
        """Return the signal whose stabilised values have these means."""
        means = in_dtype_of(stabilised, np.dtype(np.float64))
        counts = unbiased_inverse(means, self._sigma)
        return in_dtype_of(self.gain * counts + self.offset, dtype_of(stabilised))

    def in_units(self, slope: float, intercept: float) -> PoissonGaussian:
        """Return the same detector for grey values ``slope * value + intercept``."""
        return PoissonGaussian(
            gain=self.gain * slope,
            offset=self.offset * slope + intercept,
            readout=self.readout * slope,
        )

    @property
    def _sigma(self) -> float:
        """The readout noise in photons."""
        return self.readout / self.gain


@dataclass(frozen=True, kw_only=True)
class UnknownDetector:
    """A detector whose gain and readout noise are estimated from the image.

    Attributes
    ----------
    offset : float, optional
        Grey value without light, if it is known.

    Examples
    --------
    >>> import numpy as np
    >>> from integrodiff import UnknownDetector, denoise
    >>> light = np.repeat([20, 200, 60, 120], 32)[:, None] * np.ones(128)
    >>> raw = 100 + 2 * np.random.default_rng(0).poisson(light)
    >>> result = denoise(raw, noise=UnknownDetector(offset=100), as_float=True)
    >>> result.shape
    (128, 128)
    """

    offset: float | None = None

    def __post_init__(self) -> None:
        if self.offset is not None:
            object.__setattr__(self, "offset", finite_number("offset", self.offset))


def expected_transform(counts: NDArray[np.float64], sigma: float) -> NDArray[np.float64]:
    """Return the mean of the transform for each mean number of photons (a 1-D array).

    The sum over the Poisson distribution is truncated. The integral over the Gaussian uses the
    square root as its variable, in which the integrand is smooth.
    """
    from scipy.special import gammaln, xlogy

    most = float(counts.max())
    end = math.ceil(most + _DEVIATIONS * (math.sqrt(most) + _DEVIATIONS)) + 1
    photons = np.arange(end, dtype=np.float64)
    rates = counts[:, None]
    probabilities = np.exp(xlogy(photons, rates) - rates - gammaln(photons + 1))
    means = _gaussian_means(photons + _shift(sigma), sigma)
    return np.asarray(probabilities @ means, np.float64)


def unbiased_inverse(values: Array, sigma: float) -> Array:
    """Return the mean numbers of photons for which the transform has these mean values.

    Values below that of zero photons give zero.
    """
    table = _inverse_table(sigma)
    lowest, highest = float(table.x[0]), float(table.x[-1])
    inside = values.clip(lowest, highest)
    known = is_numpy(values)
    found = table(inside) if known else piecewise_polynomial(inside, table.x, table.c)
    counts = (found / 2) ** 2 - _shift(sigma)
    # The limit of the inverse for many photons, reached at the end of the table.
    asymptotic = values**2 / 4 - 1 / 8 - sigma**2
    return namespace(values).where(values > highest, asymptotic, at_least(counts, 0))


def _shift(sigma: float) -> float:
    return 3 / 8 + sigma**2


def _gaussian_means(arguments: NDArray[np.float64], sigma: float) -> NDArray[np.float64]:
    """Return the means of ``2 sqrt(max(a + sigma n, 0))`` for normal n."""
    if sigma == 0:
        return 2 * np.sqrt(arguments)
    reach = _DEVIATIONS * sigma
    lowest = np.sqrt(np.maximum(arguments - reach, 0))
    highest = np.sqrt(arguments + reach)
    nodes, weights = np.polynomial.legendre.leggauss(_NODES)
    half = (highest - lowest)[:, None] / 2
    roots = (highest + lowest)[:, None] / 2 + half * nodes
    deviations = (roots**2 - arguments[:, None]) / sigma
    densities = np.exp(-(deviations**2) / 2) / math.sqrt(2 * math.pi) / sigma
    result: NDArray[np.float64] = (half * weights * densities * 4 * roots**2).sum(axis=1)
    return result


@lru_cache(maxsize=16)
def _inverse_table(sigma: float) -> CubicSpline:
    """Return ``2 sqrt(counts + shift)`` as a function of the mean of the transform.

    The two are nearly equal, so the function is almost linear and interpolation is accurate.
    """
    from scipy.interpolate import CubicSpline

    counts = np.linspace(0, math.sqrt(_LARGEST_COUNT), _TABLE_LENGTH) ** 2
    return CubicSpline(expected_transform(counts, sigma), 2 * np.sqrt(counts + _shift(sigma)))
