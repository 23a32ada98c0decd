"""PSNR and SSIM, the only implementations in the package and its experiments."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

PEAK = 255.0

DECIBELS_PER_LOGARITHM = 10 / np.log(10)
"""A PSNR falls by this much for each unit of the natural logarithm of the squared error."""


def psnr(image: NDArray[Any], clean: NDArray[Any], data_range: float = PEAK) -> float:
    """Return the peak signal-to-noise ratio in dB; infinite for equal images, nothing is clipped.

    Parameters
    ----------
    image, clean : ndarray
        Images of the same shape.
    data_range : float
        The peak: difference of white and black.
    """
    difference = image.astype(np.float64) - clean
    return float(psnr_of_error(np.mean(difference**2), data_range))


def psnr_of_error(mean_squared_error: Any, data_range: float = PEAK) -> Any:
    """Return the PSNR in dB that belongs to a mean squared error, or to each of an array."""
    with np.errstate(divide="ignore"):
        return 10 * np.log10(data_range**2 / np.asarray(mean_squared_error, np.float64))


def ssim(
    image: NDArray[Any],
    clean: NDArray[Any],
    data_range: float = PEAK,
    mask: NDArray[np.bool_] | None = None,
) -> float:
    """Return the mean structural similarity of two images, grey or with channels last.

    The window has seven pixels, or as many as fit into the image. The mean is that over windows
    inside the image and, with a mask, without an invalid pixel; NaN if there is none, or if the
    image is less than three pixels high or wide.
    """
    from scipy.ndimage import minimum_filter
    from skimage.metrics import structural_similarity

    window = min(7, *(length - 1 + length % 2 for length in image.shape[:2]))
    if window < 3:
        return float("nan")
    mean, similarity = structural_similarity(
        clean.astype(np.float64),
        image.astype(np.float64),
        data_range=data_range,
        win_size=window,
        channel_axis=None if image.ndim == 2 else -1,
        full=True,
    )
    if mask is None:
        return float(mean)
    whole = minimum_filter(mask, window, mode="constant", cval=False)
    return float(similarity[whole].mean()) if whole.any() else float("nan")
