"""What an array must be like to be taken for an image."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray


def checked_image(image: ArrayLike, channel_axis: int | None) -> NDArray[Any]:
    """Return the image as an array that can be denoised, or say why it cannot."""
    if isinstance(image, np.ma.MaskedArray):
        raise TypeError("masked arrays are not supported: fill the masked pixels first")
    array = np.asarray(image)
    kind = array.dtype.kind
    if kind not in "iuf":
        what = {"b": "a boolean mask", "c": "complex", "O": "an array of Python objects"}
        raise TypeError(
            "image must be integer or real floating point, got "
            f"{what.get(kind, f'dtype {array.dtype}')}"
        )
    if channel_axis is None:
        if array.ndim != 2:
            raise ValueError(
                f"image must have two axes, rows and columns, got shape {array.shape}; for "
                "colour or other channels give channel_axis (often -1), and denoise the images "
                "of a stack one by one"
            )
    else:
        if isinstance(channel_axis, bool) or not isinstance(channel_axis, (int, np.integer)):
            raise TypeError(f"channel_axis must be an integer or None, got {channel_axis!r}")
        if array.ndim != 3:
            raise ValueError(
                "an image with channel_axis must have three axes: rows, columns and channels; "
                f"got shape {array.shape}"
            )
        if not -3 <= channel_axis < 3:
            raise ValueError(
                f"channel_axis {channel_axis} does not exist in an image of shape {array.shape}"
            )
    if array.size == 0:
        raise ValueError(f"image is empty: its shape is {array.shape}")
    if kind == "f" and not np.isfinite(array).all():
        bad = int(array.size - np.isfinite(array).sum())
        raise ValueError(
            f"image has {bad} NaN or infinite values; replace them first, for example by the "
            "median of their neighbours"
        )
    return array
