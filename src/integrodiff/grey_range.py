"""The scale on which a model sees an image.

Contrasts of a model are proportional to the noise level, so that the unit of grey values has no
effect on them. What depends on the level are the weights of the scales and the step size: strong
noise needs coarser scales. "Strong" means strong compared with the structure of the image. So the
image is multiplied by the factor that gives its noise the level at which a photograph with the
same ratio of structure to noise is denoised best (:func:`operating_level`), and nobody needs to
know the range of its grey values.

If ``data_range`` is given, the factor is 255 over this range, the scale of the training images.
:func:`grey_range` guesses it from dtype and values, for the purposes that need a fixed scale:
quality measures and training images.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from integrodiff._checks import positive_number
from integrodiff.noise.photons import PoissonGaussian

_BIT_DEPTHS = (8, 10, 12, 14, 16, 24, 32, 64)

# Values of a float image may leave [0, 1] by this many standard deviations of the noise.
_NOISE_REACH = 6

# Photographs with the range 255 have structures of a few per cent of it; fitted to training images
# at noise levels from 2.5 to 640.
_RANGE_OF_STRUCTURE = 28.0

# Part of the tiles whose structure is usual.
_USUAL = 0.95

# Relative to the trained noise levels: below, weights hardly change; above, the step size of some
# models reaches its bound.
_LOWEST, _HIGHEST = 0.2, 0.85


def operating_level(structure: float, trained: Sequence[float]) -> float:
    """Return the noise level on the scale of a model at which an image is denoised.

    Parameters
    ----------
    structure : float
        Typical structure of the image, see :func:`structure_over_noise`, over its noise level.
    trained : sequence of float
        Noise levels that the model was trained for; may be empty.
    """
    level = 255 / (_RANGE_OF_STRUCTURE * structure) if structure > 0 else 255.0
    if not trained:
        return min(level, 255.0)
    return min(max(level, _LOWEST * min(trained)), _HIGHEST * max(trained))


def structure_over_noise(energies: NDArray[np.float64], sigma: float) -> float:
    """Return the typical standard deviation of small tiles, without noise, over the noise level.

    ``energies`` are the variances of the tiles, in the squared unit of ``sigma``. The mean is one
    of square roots: a few strong edges, as of bones in air, or hot pixels have little weight.
    """
    with np.errstate(over="ignore"):
        variance = np.float64(sigma) ** 2
    ratios = np.sqrt(np.maximum(energies / variance - 1, 0.0))
    usual = np.minimum(ratios, np.quantile(ratios, _USUAL))
    return float(np.mean(np.sqrt(usual)) ** 2)


def grey_range(image: NDArray[Any], sigma: float, data_range: float | None = None) -> float:
    """Return the data range of an image: the given one, or one by this rule.

    ======================  ====================================================================
    image                   data range
    ======================  ====================================================================
    ``data_range`` given    ``data_range``
    uint8                   255
    other integers          2**b - 1 for the smallest common bit depth b (8, 10, 12, 14, 16, 24,
                            32, 64) that holds the largest value; with negative values, the
                            difference of largest and smallest. So 12-bit data in a uint16 array
                            have range 4095.
    floating point          1, if sigma is at most 1 and the values lie in [0, 1] up to six
                            standard deviations of the noise; otherwise it must be given.
    ======================  ====================================================================
    """
    if data_range is not None:
        return positive_number("data_range", data_range)
    if image.dtype == np.uint8:
        return 255.0
    smallest, largest = float(image.min()), float(image.max())
    if np.issubdtype(image.dtype, np.integer):
        span = largest - min(smallest, 0.0)
        return float(2 ** next((b for b in _BIT_DEPTHS if 2**b - 1 >= span), 64) - 1)
    reach = _NOISE_REACH * sigma
    if sigma <= 1 and smallest >= -reach and largest <= 1 + reach:
        return 1.0
    raise ValueError(
        f"the grey range of this floating-point image is unclear: its values are between "
        f"{smallest:g} and {largest:g}, and sigma is {sigma:g}. Give data_range, the difference "
        "between the largest and smallest grey value that the image could have, such as 1, 255 "
        "or 4095"
    )


def stabilised_range(photons: PoissonGaussian, data_range: float) -> float:
    """Return the data range of an image after the Anscombe transform.

    ``data_range`` is measured from the offset of the detector.
    """
    ends = photons.offset + np.array([0.0, positive_number("data_range", data_range)])
    return float(np.diff(photons.stabilise(ends))[0])
