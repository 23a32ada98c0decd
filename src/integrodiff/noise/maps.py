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
    def loudest(self) -> float:
        """Highest level relative to ``mean``; one if all levels are zero."""
        return 1.0 if self.relative is None else float(self.relative.max())


def noise_map(levels: NDArray[Any]) -> NoiseMap:
    """Split noise levels into their root mean square and the levels relative to it.

    Raises
    ------
    ValueError
        If a level is negative, NaN or infinite.
    """
    levels = levels.astype(np.float64)
    if not np.isfinite(levels).all() or (levels < 0).any():
        raise ValueError("a map of noise levels must be finite and nonnegative")
    if not levels.size:
        return NoiseMap(0.0, 0.0, 0.0, None)
    mean = float(np.sqrt(np.mean(levels**2)))
    relative = np.maximum(levels / mean, _QUIETEST) if mean > 0 else None
    return NoiseMap(mean, float(levels.min()), float(levels.max()), relative)
