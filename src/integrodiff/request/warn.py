"""Warnings about noise and pixels that do not fit the request."""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np
from numpy.typing import NDArray

from integrodiff.errors import NoiseLevelWarning, NoValidPixelsWarning, outside
from integrodiff.noise.photons import PoissonGaussian
from integrodiff.request.arguments import Request
from integrodiff.request.resolved import InvalidPixels, ResolvedChannel
from integrodiff.units import GreyUnits


def warn_of_void_planes(invalid: InvalidPixels | None) -> None:
    """Warn of planes that come back as they are, since they have no valid pixel."""
    void = [] if invalid is None else invalid.void_planes
    if invalid is None or not void:
        return
    why = ", ".join(invalid.reasons)
    if len(void) == len(invalid.counts):
        what = "the image has no valid pixel"
    else:
        names = ", ".join(str(number + 1) for number in void[:5])
        names += ", ..." if len(void) > 5 else ""
        what = f"{len(void)} of {len(invalid.counts)} planes have no valid pixel ({names})"
    warnings.warn(
        f"{what} and come{'s' if what.startswith('the') else ''} back unchanged; invalid: {why}",
        NoValidPixelsWarning,
        stacklevel=outside(),
    )


def warn_of_impossible_counts(
    photons: PoissonGaussian, extremes: NDArray[Any], units: GreyUnits
) -> None:
    """Warn of stored values that the detector cannot have produced, in the unit of the user."""
    photons = photons.in_units(*units)
    lowest, highest = (units.of(float(value)) for value in (extremes.min(), extremes.max()))
    below = photons.offset - lowest
    few = extremes.dtype.kind == "f" and highest - photons.offset <= photons.gain
    if below > 6 * max(photons.readout, photons.gain):
        problem = f"grey values down to {lowest:g} are far below its offset, {photons.offset:g}"
    elif few and highest > lowest:
        problem = f"the brightest pixel, {highest:g}, has at most one photon"
    else:
        return
    warnings.warn(
        f"this image does not fit a detector with gain {photons.gain:g}: {problem}; give its gain, "
        "offset and readout noise, or use Gaussian noise",
        NoiseLevelWarning,
        stacklevel=outside(),
    )


def warn_of_negative_magnitudes(extremes: list[NDArray[Any]], units: GreyUnits) -> None:
    """Warn of stored values that are no magnitudes, in the unit of the user."""
    zero = -units.intercept / units.slope
    lowest = min((float(ends.min()) for ends in extremes), default=zero)
    if lowest < zero:
        least = units.of(lowest)
        warnings.warn(
            f"Rician noise is that of magnitudes, and this image has values down to {least:g}, "
            "which count as zero; use Gaussian noise if they are none",
            NoiseLevelWarning,
            stacklevel=outside(),
        )


def warn_outside_training(request: Request, channel: ResolvedChannel, which: str) -> None:
    """Warn if the given data range puts the noise level far outside the range of the training.

    The channel is in the unit of the user.
    """
    levels = request.model.noise_levels
    if not levels or not channel.levels or request.data_range is None:
        return
    sigma = float(np.sqrt(np.mean(channel.sigmas**2))) * 255 / channel.data_range
    lowest, highest = min(levels), max(levels)
    if not lowest / 2 <= sigma <= 2 * highest:
        warnings.warn(
            f"the noise level{which}, {sigma:.3g} on the scale [0, 255], is far outside the range "
            f"{lowest:g} to {highest:g} that the model was trained for; the data range is "
            f"{channel.data_range:.4g}: check sigma and data_range",
            NoiseLevelWarning,
            stacklevel=outside(),
        )


def warn_of_doubt(channel: ResolvedChannel, which: str) -> None:
    """Warn if the noise was estimated from an image that does not show it.

    The channel is in the unit of the user.
    """
    if not any(levels.doubtful for levels in channel.noise):
        return
    warnings.warn(
        f"the estimated noise level{which}, {channel.sigmas.max():.3g}, is doubtful: no part of "
        "the image is flat, so that fine structure cannot be told from noise; give sigma, measured "
        "for example where an image of the same series is flat",
        NoiseLevelWarning,
        stacklevel=outside(),
    )


def warn_of_variation(found: tuple[float, float] | None, unit: float, which: str) -> None:
    """Warn if the noise varies, but no map of it is used."""
    if found is None:
        return
    low, high = (unit * level for level in found)
    warnings.warn(
        f"the noise level{which} varies over the image, about from {low:.3g} to {high:.3g}, and "
        "one level is used, that of its quietest part; give sigma as a map, of channels one by one",
        NoiseLevelWarning,
        stacklevel=outside(),
    )
