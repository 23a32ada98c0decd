"""Maps of noise levels, for noise that varies over the image."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from integrodiff.namespaces import Array, at_least, in_dtype_of, namespace, root_mean_square

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
    relative : array, optional
        Levels relative to ``mean``, ``(row, column)``; None if all levels are zero. It is of the
        library, and on the device, of the levels.
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


def noise_map(levels: Array, mask: Array | None = None) -> NoiseMap:
    """Split noise levels into their root mean square and the levels relative to it.

    Parameters
    ----------
    levels : array
        The noise level at each pixel.
    mask : array of bool, optional
        True at valid pixels. The levels of others, which may be NaN, do not count; their relative
        level is one.

    Raises
    ------
    ValueError
        If the level of a valid pixel is negative, NaN or infinite.
    """
    xp = namespace(levels)
    levels = in_dtype_of(levels, np.dtype(np.float64))
    counted = levels if mask is None else levels[mask]
    if not xp.isfinite(counted).all() or (counted < 0).any():
        where = "" if mask is None else " at valid pixels"
        raise ValueError(f"a map of noise levels must be finite and nonnegative{where}")
    if 0 in counted.shape:
        return NoiseMap(0.0, 0.0, 0.0, None)
    mean = float(root_mean_square(counted))
    if mask is not None:
        levels = xp.where(mask, levels, xp.full_like(levels, mean))
    relative = at_least(levels / mean, _QUIETEST) if mean > 0 else None
    return NoiseMap(mean, float(counted.min()), float(counted.max()), relative)
