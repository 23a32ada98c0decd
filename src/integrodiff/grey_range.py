"""The grey range of an image: the difference of grey values that is mapped to 255.

Models are trained on the grey scale [0, 255]. Images of another range, and their noise levels,
are multiplied by 255 / range. The exact range matters little, because contrasts are proportional
to the noise level; it enters only through the weights of the scales, which depend on the square
root of the noise level. So the rule below may be coarse for integers, and asks for the range only
where a guess could be far off.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from integrodiff._checks import positive_number
from integrodiff.noise.photons import PoissonGaussian

_BIT_DEPTHS = (8, 10, 12, 14, 16, 24, 32, 64)

# Values of a float image may leave [0, 1] by this many standard deviations of the noise.
_NOISE_REACH = 6

_RANGE_OF_NOISE = 6.0
"""Range that noise of variance one covers by itself."""


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


def stabilised_range(
    stabilised: NDArray[Any], photons: PoissonGaussian, data_range: float | None = None
) -> float:
    """Return the data range of an image after the Anscombe transform.

    ``data_range`` is measured from the offset of the detector. If it is not given, the range is
    that of the stabilised values, but at least the range of pure noise of variance one.
    """
    if data_range is None:
        return max(float(np.ptp(stabilised)), _RANGE_OF_NOISE)
    ends = photons.offset + np.array([0.0, positive_number("data_range", data_range)])
    return float(np.diff(photons.stabilise(ends))[0])
