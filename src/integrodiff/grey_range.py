"""The grey range of an image: which difference of grey values counts as 255.

The models' parameters belong to grey values on the scale [0, 255]. An image of another range is
mapped to it by a factor, and so is its noise level. Contrasts are proportional to the noise
level, so the factor has little influence: it enters the weights of the scales through the square
root of the noise level. The rule below is therefore allowed to be coarse where it must guess,
and asks where a guess could be far off.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from integrodiff._checks import positive_number
from integrodiff.noise.photons import PoissonGaussian

_BIT_DEPTHS = (8, 10, 12, 14, 16, 24, 32, 64)

# How far noise may carry the values of a float image out of [0, 1], in standard deviations.
_NOISE_REACH = 6

_RANGE_OF_NOISE = 6.0
"""Range of noise of variance one."""


def grey_range(image: NDArray[Any], sigma: float, data_range: float | None = None) -> float:
    """Return the data range of an image, given or found by rule.

    ======================  ====================================================================
    image                   data range
    ======================  ====================================================================
    ``data_range`` given    that
    uint8                   255
    other integers          2**b - 1 for the smallest common bit depth b (8, 10, 12, 14, 16, 24,
                            32, 64) that holds the largest value; with negative values, the
                            difference of largest and smallest. So 12-bit data in a uint16 array
                            have range 4095.
    floating point          1, if sigma is at most 1 and the values lie in [0, 1] but for noise
                            (six standard deviations); otherwise it must be given.
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
        f"the grey range of this floating-point image is unclear: its values run from "
        f"{smallest:g} to {largest:g} and sigma is {sigma:g}. Give data_range, the difference of "
        "the largest and the smallest grey value that the image could have, such as 1, 255 or "
        "4095"
    )


def stabilised_range(
    stabilised: NDArray[Any], photons: PoissonGaussian, data_range: float | None = None
) -> float:
    """Return the data range of an image after the Anscombe transform.

    Without a ``data_range``, which counts from the offset of the detector, it is that of the
    values. Noise of variance one alone has a range of some standard deviations; an image with a
    smaller range has hardly any light, or no noise.
    """
    if data_range is None:
        return max(float(np.ptp(stabilised)), _RANGE_OF_NOISE)
    ends = photons.offset + np.array([0.0, positive_number("data_range", data_range)])
    return float(np.diff(photons.stabilise(ends))[0])
