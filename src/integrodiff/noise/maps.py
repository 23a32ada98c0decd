"""Maps of noise levels, for noise that varies over the image."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

_QUIETEST = 1e-3
"""Lower bound of relative levels; below it the image hardly changes."""


class NoiseMap(NamedTuple):
    """Noise levels of all pixels, split into their root mean square and relative levels.

    Attributes
    ----------
    mean : float
        Root mean square of the levels.
    lowest, highest : float
        Smallest and largest level.
    relative : ndarray, optional
        Levels relative to ``mean``, ``(row, column)``; None if all levels are zero.
    """

    mean: float
    lowest: float
    highest: float
    relative: NDArray[np.float64] | None

    @property
    def span(self) -> tuple[float, float] | None:
        """Lowest and highest relative level, of the whole image if this is a part of it."""
        if self.mean == 0:
            return None
        return max(self.lowest / self.mean, _QUIETEST), max(self.highest / self.mean, _QUIETEST)


def noise_map(levels: NDArray[Any], mask: NDArray[np.bool_] | None = None) -> NoiseMap:
    """Split noise levels into their root mean square and the levels relative to it.

    Parameters
    ----------
    levels : ndarray
        The noise level at each pixel.
    mask : array of bool, optional
        True at valid pixels. The levels of others, which may be NaN, do not count; their relative
        level is one.

    Raises
    ------
    ValueError
        If the level of a valid pixel is negative, NaN or infinite.
    """
    levels = levels.astype(np.float64)
    counted = levels if mask is None else levels[mask]
    if not np.isfinite(counted).all() or (counted < 0).any():
        where = "" if mask is None else " at valid pixels"
        raise ValueError(f"a map of noise levels must be finite and nonnegative{where}")
    if not counted.size:
        return NoiseMap(0.0, 0.0, 0.0, None)
    mean = float(np.sqrt(np.mean(counted**2)))
    if mask is not None:
        levels = np.where(mask, levels, mean)
    relative = np.maximum(levels / mean, _QUIETEST) if mean > 0 else None
    return NoiseMap(mean, float(counted.min()), float(counted.max()), relative)
