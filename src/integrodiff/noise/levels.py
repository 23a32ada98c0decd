r"""Noise levels per scale, for noise that is white or not.

Noise with the power spectrum P is seen by the gradient of the image smoothed at scale
:math:`\rho` with the variance

.. math:: \sigma(\rho)^2 = \operatorname{mean}_\omega P(\omega)\, |R K_\rho(\omega)|^2,

which for white noise of level s is :math:`s^2 c(\rho)^2` with a known c. So
:math:`s(\rho) = \sigma(\rho) / c(\rho)` takes the place of s in the contrasts of a model, which are
proportional to it. It is constant for white noise and rises with the scale where noise is
correlated between neighbouring pixels: after JPEG compression, demosaicing, interpolation, blur.

Correlated noise also decays more slowly than the white noise that models are trained with. All
contrasts are therefore multiplied by :math:`(s(1) / s(0))^{0.4}`, and a model is evaluated at
:math:`s(1)` times this factor, where 1 stands for a scale of about one pixel and 0 for no
smoothing. The exponent is fitted to training images; docs/noise.md has the measurements.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from integrodiff._checks import nonnegative_number, positive_number
from integrodiff.noise.spectrum import SIDE, Measurement

SCALES = (0.1, 0.2, 0.35, 0.6, 1.1, 2.0, 3.8, 7.0)
"""Scales in pixels for which levels are computed; between them they are interpolated."""

_ONE_PIXEL = 1.1
_SLOWER_DECAY = 0.4

# Bands of the frequencies by p + q, where p = 1 - cos(wx), from low to high.
_LOW, _NEXT, _MIDDLE, _TOP = (0.05, 1.0), (1.0, 2.0), (2.0, 3.0), (3.0, 4.1)
# Structure hardly reaches the frequencies from here on.
_WHITE_FROM = 2.5

# Between these values of the logarithm of the rise from high to middle frequencies, with 0.7 of
# that to lower ones, noise counts as partly correlated. These numbers and those below are fitted to
# training images.
_LOWER_RISE = 0.7
_WHITE_UP_TO, _CORRELATED_FROM = 0.24, 0.28
_DOUBT_BY_HIGH_SPREAD, _USUAL_HIGH_SPREAD = 0.4, 1.1
_DOUBT_BY_SPREAD, _USUAL_SPREAD = 0.4, 1.4
_STEEP = (0.8, 1.0)
_DOUBT_BY_CLIPPING = 0.4
_DOUBT_BY_SIZE, _USUAL_DOUBT = 3.0, 0.125
# White noise that was compressed has about its level at lower frequencies, as a logarithm of the
# ratio without and per rise from high to middle frequencies. More than the other two, from middle
# to lower frequencies, is structure.
_COMPRESSED_LEVEL, _COMPRESSED_BY_RISE = -0.05, 0.15
_COMPRESSED_LOWER_RISE, _COMPRESSED_BEND = 0.04, 0.8
# Compression never makes the spectrum rise so much there; blur does, and leaves so little at high
# frequencies that a few edges may look like blocks.
_MOST_COMPRESSED_RISE = 0.9
# Noise that grows towards high frequencies, as after sharpening.
_SHARPENED_FROM, _SHARPENED_SURELY = 0.2, 0.35

# A spectrum goes on to the frequency zero with this times the logarithm of its rise between these
# bands. Where it rises by more than the last number, compression left too little to tell.
_LOWEST, _ABOVE_LOWEST = (0.05, 0.6), (0.6, 1.0)
_RISE_TO_ZERO, _MOST_RISE = 0.8, 0.75
# It is even if its ends have at least and at most these parts of the power between them, as levels.
_EVEN_AT_TOP, _EVEN_AT_LOWEST = 0.85, 1.35
# They tell nothing if typical parts of an image have this many times the energy of its flattest,
# which are then saturated.
_SATURATED = 4.0
# Most noise of samples and luminance, and least of compressed differences, over what the
# differences tell. The luminance has texture if its level at the frequency zero is above that of
# its noise by factors between the first two, and noise that samples have in common if that is above
# its limit by factors between the last two.
_MOST_OF_SAMPLES, _MOST_OF_LUMINANCE, _LEAST_OF_DIFFERENCES = 1.15, 1.1, 0.85
_TEXTURE_FROM, _TEXTURE_SURELY = 1.1, 1.3
_COMMON_FROM, _COMMON_SURELY = 2.4, 3.0
# The differences do not tell how their noise is divided among samples, so that nothing is changed
# where levels of these differ by more than this factor.
_ALIKE = 1.5
# In white noise that is not compressed, samples with more than this times the level of the
# differences have noise in common.
_INDEPENDENT = 1.2

# Spectrum of structure in the flattest parts of training images, r^-e exp(-d r) for r = p + q.
_STRUCTURE_EXPONENT, _STRUCTURE_DECAY = 0.5, 1.15
_STRUCTURE_ROUNDS = 6
_SPREAD_OF_STRUCTURE = (1.0, 1.9)
# At least this part of the power at a frequency is noise.
_LEAST_PART = 0.75
_FLAT_AT_HIGH = (-0.3, -0.15)
# Noise below this part of the unit cannot be told from rounding.
_ROUNDING = 1e-6
_TINY = 1e-300

# Of given spectra, which are summed, and of given levels, by which contrasts are multiplied.
_LARGEST_POWER, _LARGEST_RATIO = 1e290, 1e6
# With this many times the noise at the lowest frequencies, or flattest parts that differ so much
# from each other, no part of an image is flat.
_MOSTLY_STRUCTURE, _UNEVEN = 6.0, 2.0
_LEAST_NOISE = 0.7


@dataclass(frozen=True)
class NoiseLevels:
    """Noise level as a function of the smoothing scale, piecewise linear in logarithms.

    Attributes
    ----------
    scales : tuple of float
        Increasing scales in pixels.
    levels : tuple of float
        Level at each of them; beyond the first and the last it is constant.
    deviation : float, optional
        Standard deviation of the noise, where it is known.
    doubtful : bool
        Whether they were measured in an image without flat parts.
    compressed : bool
        Whether they are those of white noise that was compressed.
    lowest : float
        Level to which the measured spectrum goes on at the frequency zero; zero if not known.
    """

    scales: tuple[float, ...]
    levels: tuple[float, ...]
    deviation: float | None = None
    doubtful: bool = False
    compressed: bool = False
    lowest: float = 0.0

    @property
    def is_white(self) -> bool:
        """Whether the level is the same at all scales."""
        return len(set(self.levels)) == 1

    @property
    def effective(self) -> float:
        """The one noise level at which a model is evaluated."""
        if self.is_white:
            return self.levels[0]
        fine, medium = self.at(0.0), self.at(_ONE_PIXEL)
        return float(medium * (medium / fine) ** _SLOWER_DECAY)

    @property
    def sigma(self) -> float:
        """Standard deviation of the noise, or the effective level if it is not known."""
        return self.effective if self.deviation is None else self.deviation

    def at(self, scale: float) -> float:
        """Return the level at a scale."""
        if self.is_white:
            return self.levels[0]
        place = math.log(min(max(scale, self.scales[0]), self.scales[-1]))
        level = float(np.interp(place, np.log(self.scales), np.log(self.levels)))
        return math.exp(level)

    def relative(self, scale: float) -> float:
        """Return the level at a scale, relative to that at the scale of one pixel."""
        return 1.0 if self.is_white else self.at(scale) / self.at(_ONE_PIXEL)

    def times(self, factor: float) -> NoiseLevels:
        """Return the levels in another unit of grey values."""
        return replace(
            self,
            levels=tuple(level * factor for level in self.levels),
            deviation=None if self.deviation is None else self.deviation * factor,
            lowest=self.lowest * factor,
        )

    def __str__(self) -> str:
        if self.is_white:
            return f"{self.levels[0]:.4g}"
        return f"{self.levels[0]:.4g} (fine) to {self.levels[-1]:.4g} (coarse)"


def white(level: float, *, doubtful: bool = False) -> NoiseLevels:
    """Return the levels of white noise."""
    return NoiseLevels((1.0,), (level,), level, doubtful)


def given_levels(levels: Mapping[float, float]) -> NoiseLevels:
    """Return noise levels that were given for some scales in pixels.

    Raises
    ------
    TypeError, ValueError
        If there are none, or a scale or level is no positive number.
    """
    if not levels:
        raise ValueError("noise levels per scale need at least one scale")
    pairs = sorted(
        (positive_number("a scale of sigma", scale), nonnegative_number("sigma", level))
        for scale, level in levels.items()
    )
    scales, values = zip(*pairs, strict=True)
    if len(set(values)) > 1 and min(values) == 0:
        raise ValueError("noise levels per scale must all be above zero")
    if max(values) > _LARGEST_RATIO * min(values):
        raise ValueError(
            f"noise levels per scale must not differ by more than a factor of {_LARGEST_RATIO:g}, "
            f"got {min(values):g} and {max(values):g}"
        )
    return NoiseLevels(scales, values)


def levels_of_spectrum(psd: NDArray[Any]) -> NoiseLevels:
    """Return the noise levels of a power spectrum in the convention of BM3D.

    Parameters
    ----------
    psd : ndarray
        Expectation of ``abs(fft2(noise))**2`` for an image of noise of this shape. For white noise
        it is the variance times the number of pixels. Its value at the frequency zero, the square
        of the noise's sum, has no effect.

    Raises
    ------
    ValueError
        If it is no matrix, or a value is negative, NaN or infinite.
    """
    power = np.asarray(psd, np.float64)
    if power.ndim != 2 or not power.size:
        raise ValueError(f"noise_psd must be a matrix, got an array of shape {power.shape}")
    if power.size < 2:
        raise ValueError("noise_psd must have the frequencies of an image, and has one value")
    if not np.isfinite(power).all() or (power < 0).any():
        raise ValueError("noise_psd must be finite and nonnegative")
    if power.max() > _LARGEST_POWER:
        raise ValueError(
            f"noise_psd must be at most {_LARGEST_POWER:g}, got {power.max():g}; its values are "
            "squares of grey values times the number of pixels"
        )
    power = power / power.size
    power[0, 0] = 0.0  # the mean of the noise, which no derivative sees
    p, q = (1 - np.cos(2 * np.pi * np.arange(n) / n) for n in power.shape)
    found = _levels(power, p[:, None] + q, p[:, None] * q)
    deviation = math.sqrt(power.sum() / (power.size - 1))
    if found.max() == 0:
        return white(0.0)
    if np.ptp(found) <= 1e-9 * found.max():
        return white(deviation)
    # Scales at which nothing is seen would have no logarithm.
    found = np.maximum(found, 1e-6 * found.max())
    return NoiseLevels(SCALES, tuple(found.tolist()), deviation)


def measured_levels(measured: Measurement | None) -> NoiseLevels:
    """Return the noise levels of an image from the measurement in its flat parts.

    Noise that is white within the accuracy of the measurement has one level, that of the high
    frequencies. Between white and correlated noise the levels are interpolated.
    """
    return white(0.0) if measured is None else _relative_levels(measured).times(measured.unit)


def _relative_levels(measured: Measurement) -> NoiseLevels:
    """Return the noise levels in the unit of the measurement."""
    power = _without_structure(measured)
    total = _frequencies()[0]
    compressed = measured.compressed and _is_compressed_noise(measured.power)
    if compressed:
        level = _compressed_level(power)
    else:
        level = math.sqrt(power[total >= _WHITE_FROM].mean())
    left = _band(measured.power, _LOW) / max(_band(power, _LOW), _TINY)
    share = 0.0 if compressed else _correlated_share(measured)
    uneven = measured.spread > _UNEVEN and not compressed
    doubtful = left > _MOSTLY_STRUCTURE or uneven
    if level < _ROUNDING:
        return white(0.0)
    tells = measured.spread <= _UNEVEN and measured.structure <= _SATURATED
    lowest = _level_at_zero(measured.power) if tells else 0.0
    if share == 0:
        found = white(level, doubtful=doubtful)
        plain = _is_even(measured.power) and not compressed
        return replace(found, compressed=compressed, lowest=level if plain else lowest)
    correlated = np.maximum(_levels(power, *_frequencies()), 1e-6 * level)
    mixed = level ** (1 - share) * correlated**share
    variance = level ** (2 - 2 * share) * power[total > 0].mean() ** share
    return NoiseLevels(
        SCALES,
        tuple(mixed.tolist()),
        math.sqrt(variance),
        doubtful,
        lowest=lowest,
    )


def typical_levels(found: Sequence[NoiseLevels]) -> NoiseLevels:
    """Return the median over several planes, without those that have no noise.

    A plane without noise is blank or saturated, such as the end slices of a volume.
    """
    noisy = [levels for levels in found if levels.effective > 0]
    if not noisy:
        return white(0.0)
    doubtful = float(np.mean([levels.doubtful for levels in noisy])) > 0.5
    lowest = float(np.median([levels.lowest for levels in noisy]))
    if all(levels.is_white for levels in noisy):
        level = float(np.median([levels.effective for levels in noisy]))
        return replace(
            white(level, doubtful=doubtful),
            compressed=all(levels.compressed for levels in noisy),
            lowest=lowest,
        )
    rows = np.array([[levels.at(scale) for scale in SCALES] for levels in noisy])
    deviation = float(np.median([levels.sigma for levels in noisy]))
    levels = tuple(np.median(rows, axis=0).tolist())
    return NoiseLevels(SCALES, levels, deviation, doubtful, lowest=lowest)


def joined_levels(found: Sequence[NoiseLevels]) -> NoiseLevels:
    """Return the levels that samples share once each was divided by its effective level."""
    if all(levels.is_white for levels in found):
        return white(1.0)
    rows = [levels.times(1 / levels.effective) for levels in found]
    values = np.mean([[row.at(scale) ** 2 for scale in SCALES] for row in rows], axis=0)
    joined = NoiseLevels(SCALES, tuple(np.sqrt(values).tolist()))
    return joined.times(1 / joined.effective)


def without_texture(
    samples: Sequence[NoiseLevels], new: Sequence[NoiseLevels]
) -> tuple[list[NoiseLevels], list[NoiseLevels]]:
    """Correct the levels of colour samples, and of luminance and differences, for texture.

    Texture is in the luminance, and hardly in colour differences. Interpolation and compression
    remove the high frequencies of the differences, but their spectrum extrapolated to the frequency
    zero gives the noise that samples have independently of each other. The noise of the luminance
    has a third of its variance. More than that is texture, unless it is so much more that samples
    must have noise in common, as after removal of colour noise.

    Parameters
    ----------
    samples : sequence of NoiseLevels
        Of red, green and blue.
    new : sequence of NoiseLevels
        Of their mean, and of two differences with weights whose squares add up to one.
    """
    luminance, *differences = new
    # A difference may hold structure as well; the other one then has less.
    lowest = min((levels.lowest for levels in differences if levels.lowest > 0), default=0.0)
    own = [levels.effective for levels in samples]
    if lowest == 0 or luminance.effective == 0 or max(own) > _ALIKE * min(own):
        return list(samples), list(new)
    most = lowest / math.sqrt(len(samples))
    if all(levels.is_white and not levels.compressed for levels in (*samples, *differences)):
        # Texture does not reach the high frequencies that tell these levels.
        total = sum(levels.effective**2 for levels in samples)
        power = sum(levels.effective**2 for levels in differences)
        if total / 3 > _INDEPENDENT**2 * power / 2:
            most = _MOST_OF_LUMINANCE * math.sqrt((total - power) / 3)
        else:
            samples = [_limited(levels, _MOST_OF_SAMPLES * lowest, 0.0) for levels in samples]
        found = luminance if luminance.effective <= most else white(most)
        return list(samples), [found, *differences]
    most *= _MOST_OF_LUMINANCE
    kept = _ramp(math.log(luminance.effective / most), *np.log([_COMMON_FROM, _COMMON_SURELY]))
    if luminance.lowest > 0:
        rise = math.log(luminance.lowest / luminance.effective)
        kept = max(kept, 1 - _ramp(rise, *np.log([_TEXTURE_FROM, _TEXTURE_SURELY])))
    least = _LEAST_OF_DIFFERENCES * lowest
    differences = [
        levels.times(max(1.0, least / levels.effective)) if levels.compressed else levels
        for levels in differences
    ]
    samples = [_limited(levels, _MOST_OF_SAMPLES * lowest, kept) for levels in samples]
    return list(samples), [_limited(luminance, most, kept), *differences]


def _limited(found: NoiseLevels, most: float, kept: float) -> NoiseLevels:
    """Limit noise levels at all scales to ``most``; ``kept`` is the share that is left unchanged.

    If only the levels at large scales exceed the limit, the whole rise from small to large scales
    is reduced.
    """
    least, largest = min(found.levels), max(found.levels)
    if largest <= most or kept == 1:
        return found
    base = min(least, most)
    part = math.log(most / base) / math.log(largest / least) if largest > least else 0.0
    limited = tuple(
        level**kept * (base * (level / least) ** part) ** (1 - kept) for level in found.levels
    )
    result = replace(found, levels=limited)
    ratio = result.effective / found.effective
    return replace(result, deviation=None if found.deviation is None else found.deviation * ratio)


def _is_even(power: NDArray[np.float64]) -> bool:
    """Whether a spectrum is about the same from the lowest to the highest frequencies."""
    lowest, lower, top = (_band(power, band) for band in (_LOWEST, _NEXT, _TOP))
    return top >= _EVEN_AT_TOP**2 * lower and lowest <= _EVEN_AT_LOWEST**2 * lower


def _level_at_zero(power: NDArray[np.float64]) -> float:
    """Return the level to which a spectrum goes on at the frequency zero, or 0 if unknown."""
    lowest, above = _band(power, _LOWEST), _band(power, _ABOVE_LOWEST)
    if min(lowest, above) == 0:
        return 0.0
    rise = max(math.log(lowest / above) / 2, 0.0)
    return math.sqrt(lowest) * math.exp(_RISE_TO_ZERO * rise) if rise <= _MOST_RISE else 0.0


def _is_compressed_noise(power: NDArray[np.float64]) -> bool:
    """Whether a spectrum may be that of white noise that was compressed."""
    middle, lower = _band(power, _MIDDLE), _band(power, _NEXT)
    return middle > 0 and math.log(max(lower, _TINY) / middle) / 2 < _MOST_COMPRESSED_RISE


def _compressed_level(power: NDArray[np.float64]) -> float:
    """Return the level of white noise that was compressed with the image.

    Compression rounds most coefficients of high frequencies to zero and others away from it, but
    leaves the lower ones as they are. They show the noise, unless they have more power than the
    higher ones by more than compression explains; that is structure.
    """
    top, middle, lower = (_band(power, band) for band in (_TOP, _MIDDLE, _NEXT))
    if min(top, middle, lower) == 0:
        return math.sqrt(lower)
    to_middle, to_lower = max(math.log(middle / top) / 2, 0.0), math.log(lower / middle) / 2
    to_lower = min(to_lower, _COMPRESSED_LOWER_RISE + _COMPRESSED_BEND * to_middle)
    rise = _COMPRESSED_LEVEL + _COMPRESSED_BY_RISE * min(to_middle, 1.0)
    return math.sqrt(middle) * math.exp(to_lower + rise)


def _correlated_share(measured: Measurement) -> float:
    """Return 0 for white noise, 1 for correlated noise, and something between if unclear.

    The spectra of blurred noise and of texture both rise from high to low frequencies. But noise is
    the same everywhere, and texture is not: the more the flattest parts differ from each other at
    high frequencies, the more evidence it takes. Where the spectrum is so steep that high
    frequencies have hardly any noise, differences at all frequencies count instead. It also takes
    more where noise is clipped, which bends the spectrum, and in small images.
    """
    bands = [_band(measured.power, band) for band in (_TOP, _MIDDLE, _NEXT)]
    if min(bands) == 0:
        return 0.0
    to_middle, to_lower = np.diff(np.log(bands)) / 2
    if to_middle < 0:
        return _ramp(-to_middle, _SHARPENED_FROM, _SHARPENED_SURELY)
    steep = _ramp(to_middle + to_lower, *_STEEP)
    high, all_ = (
        _DOUBT_BY_HIGH_SPREAD * max(measured.high_spread - _USUAL_HIGH_SPREAD, 0.0),
        _DOUBT_BY_SPREAD * max(measured.spread - _USUAL_SPREAD, 0.0),
    )
    evidence = to_middle + _LOWER_RISE * min(to_lower, to_middle)
    evidence -= (1 - steep) * high + steep * all_
    evidence -= max(_DOUBT_BY_SIZE / math.sqrt(measured.count) - _USUAL_DOUBT, 0.0)
    evidence -= _DOUBT_BY_CLIPPING * measured.clipped
    return _ramp(evidence, _WHITE_UP_TO, _CORRELATED_FROM)


def _ramp(value: float, zero: float, one: float) -> float:
    return min(max((value - zero) / (one - zero), 0.0), 1.0)


def _band(power: NDArray[np.float64], ends: tuple[float, float]) -> float:
    """Return the mean power in a band."""
    total = _frequencies()[0]
    return float(power[(total >= ends[0]) & (total < ends[1])].mean())


def _without_structure(measured: Measurement) -> NDArray[np.float64]:
    """Subtract the structure that is left in the flattest parts of an image.

    The logarithm of a spectrum of noise is about linear in p + q, so the power of noise at the
    lowest frequencies is extrapolated from higher ones. Structure has most of its energy at the
    lowest frequencies: power beyond the extrapolated one is attributed to it. This excess, times
    the typical spectrum of structure, is subtracted at all frequencies, and the extrapolation is
    repeated with the rest. Flattest parts that do not differ more than noise does, and whose
    spectrum rises from the highest frequencies on, have no structure.
    """
    power = measured.power
    rise = math.log(max(_band(power, _MIDDLE), _TINY) / max(_band(power, _TOP), _TINY)) / 2
    share = max(_ramp(measured.spread, *_SPREAD_OF_STRUCTURE), _ramp(-rise, *_FLAT_AT_HIGH))
    lowest = _band(power, _LOW)
    amount, rest, noise_at_lowest = 0.0, power, lowest
    # Without structure the noise is white rather than stronger at high frequencies.
    least = np.minimum(power, _LEAST_NOISE * _band(power, _TOP))
    least = np.maximum(least, _LEAST_PART * power)
    for _ in range(_STRUCTURE_ROUNDS):
        rest = np.maximum(power - amount * _structure(), least)
        following, middle = _band(rest, _NEXT), _band(rest, _MIDDLE)
        noise_at_lowest = following * max(following / middle, 1.0) if middle > 0 else following
        amount = share * max(lowest - noise_at_lowest, 0.0)
    if amount == 0:
        return power
    low = _frequencies()[0] < _LOW[1]
    return np.asarray(np.where(low, power * ((lowest - amount) / lowest), rest))


@cache
def _structure() -> NDArray[np.float64]:
    """Return the typical spectrum of structure, one on average at the lowest frequencies."""
    total = _frequencies()[0].copy()
    total[0, 0] = 1.0
    power = total**-_STRUCTURE_EXPONENT * np.exp(-_STRUCTURE_DECAY * total)
    power[0, 0] = 0.0
    return power / _band(power, _LOW)


def _levels(
    power: NDArray[np.float64], total: NDArray[np.float64], product: NDArray[np.float64]
) -> NDArray[np.float64]:
    """Return s at all scales; ``total`` and ``product`` are p + q and p q of each frequency."""
    gain = 2 * total - product  # of the Haar gradient with theta = 1/4
    lowest = total[total > 0].min()
    found = []
    for scale in SCALES:
        weights = gain * np.exp(-2 * scale**2 * (total - lowest))
        found.append(math.sqrt(np.sum(weights * power) / np.sum(weights)))
    return np.array(found)


@cache
def _frequencies() -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Return p + q and p q of the cosine frequencies of a tile."""
    p = 1 - np.cos(np.pi * np.arange(SIDE) / SIDE)
    return p[:, None] + p, p[:, None] * p
