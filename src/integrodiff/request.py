"""Resolve a request: noise, scale and colour space of each channel of an image.

A :class:`Request` holds the arguments of a user, in Python or on the command line. :func:`resolve`
combines it with an image, an array or an open file, and estimates whatever is missing. All callers
use this function, so the same request has the same meaning everywhere.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple, Protocol, TypeAlias

import numpy as np
from numpy.typing import NDArray

from integrodiff._checks import (
    nonnegative_number,
    one_of,
    positive_integer,
    positive_number,
    sequence_of_numbers,
)
from integrodiff.colour import (
    COLOURS,
    Colour,
    ColourSpace,
    Group,
    colour_space,
    new_levels,
    sample_matrix,
)
from integrodiff.errors import NoiseLevelWarning, NotFiniteError, SliceBySliceWarning
from integrodiff.grey_range import operating_level, stabilised_range, structure_over_noise
from integrodiff.layout import Layout
from integrodiff.models import Model
from integrodiff.noise.level import estimate_levels, estimate_poisson_gaussian, require_size
from integrodiff.noise.levels import (
    NoiseLevels,
    given_levels,
    joined_levels,
    levels_of_spectrum,
    typical_levels,
    white,
)
from integrodiff.noise.maps import NoiseMap, noise_map
from integrodiff.noise.photons import PoissonGaussian, UnknownDetector
from integrodiff.noise.spectrum import SIDE, tiles_of
from integrodiff.stages import Evolution

Noise: TypeAlias = (
    Literal["gaussian", "poisson", "poisson-gaussian"] | PoissonGaussian | UnknownDetector
)
NOISES = ("gaussian", "poisson", "poisson-gaussian")

Sigma: TypeAlias = float | Sequence[float] | Mapping[float, float] | NDArray[Any] | None

_MOST_PLANES = 9
"""Number of planes from which the noise of a channel is estimated; more hardly help."""


class Source(Protocol):
    """An image: an array with its axes, or an open file."""

    @property
    def layout(self) -> Layout:
        """Axes and shape."""

    @property
    def dtype(self) -> np.dtype[Any]:
        """Type of the grey values."""

    def planes(self) -> Iterable[NDArray[Any]]:
        """Iterate over all planes in order, ``(Y, X)`` or ``(Y, X, S)``; may be called again."""


@dataclass(frozen=True, kw_only=True, eq=False)
class Request:
    """Arguments of :func:`integrodiff.denoise` that do not depend on the image.

    Raises
    ------
    TypeError, ValueError
        If an argument is invalid for every image.
    """

    model: Model
    sigma: Sigma = None
    noise_psd: NDArray[Any] | None = None
    noise: Noise = "gaussian"
    data_range: float | None = None
    colour: Colour = "auto"
    as_float: bool = False
    exact: bool = False
    threads: int | None = None
    map: NoiseMap | None = field(init=False, default=None)
    levels: NoiseLevels | None = field(init=False, default=None)

    def __post_init__(self) -> None:
        one_of("colour", self.colour, COLOURS)
        if self.data_range is not None:
            positive_number("data_range", self.data_range)
        if self.threads is not None:
            positive_integer("threads", self.threads)
        if not isinstance(self.noise, (PoissonGaussian, UnknownDetector)):
            one_of("noise", self.noise, NOISES)
        if self.sigma is not None or self.noise_psd is not None:
            self._check_noise_levels()

    def _check_noise_levels(self) -> None:
        """Refuse noise levels of a wrong kind; keep maps and levels per scale."""
        if self.sigma is not None and self.noise_psd is not None:
            raise ValueError("give sigma or noise_psd, not both")
        if self.noise != "gaussian":
            raise ValueError(
                "sigma describes Gaussian noise; for photon noise give noise=PoissonGaussian(...) "
                "with the gain, offset and readout noise of the detector"
            )
        if self.noise_psd is not None:
            object.__setattr__(self, "levels", levels_of_spectrum(self.noise_psd))
        elif isinstance(self.sigma, Mapping):
            object.__setattr__(self, "levels", given_levels(self.sigma))
        elif np.ndim(self.sigma) == 2:  # type: ignore[arg-type]
            object.__setattr__(self, "map", noise_map(np.asarray(self.sigma)))
        elif np.ndim(self.sigma) == 0:  # type: ignore[arg-type]
            nonnegative_number("sigma", self.sigma)
        elif np.ndim(self.sigma) > 2:  # type: ignore[arg-type]
            raise ValueError(
                "sigma must be a number, one number for each channel, or a map (rows, columns); "
                f"got an array of shape {np.shape(self.sigma)}"  # type: ignore[arg-type]
            )

    @property
    def estimates(self) -> bool:
        """Whether the noise is to be estimated."""
        if self.sigma is not None or self.noise_psd is not None:
            return False
        known = self.noise == "poisson" or isinstance(self.noise, PoissonGaussian)
        return not known

    def result_dtype(self, dtype: np.dtype[Any]) -> np.dtype[Any]:
        """Return the dtype of the result for an image of the given dtype."""
        return computing_dtype(dtype) if self.as_float and dtype.kind != "f" else dtype


class Level(NamedTuple):
    """Noise of a group of samples on the scale of the model.

    Attributes
    ----------
    sigma : float
        The level at which the model is evaluated.
    shape : NoiseLevels
        How the level depends on the scale.
    """

    sigma: float
    shape: NoiseLevels

    def evolution(self, model: Model) -> Evolution:
        """Return the diffusion process of a model at this level."""
        if self.shape.is_white:
            return model.evolution(self.sigma)
        return model.evolution(self.sigma, self.shape.relative)


@dataclass(frozen=True, kw_only=True, eq=False)
class ResolvedChannel:
    """Noise, scale and colour space of one channel.

    Attributes
    ----------
    noise : tuple of NoiseLevels
        Noise levels of each sample in grey levels of the image; ones after stabilisation.
    photons : PoissonGaussian, optional
        The detector, if photon noise is stabilised first.
    map : NoiseMap, optional
        The noise levels, if they vary over the image.
    estimated : bool
        Whether the noise was estimated from the image.
    space : ColourSpace
        Groups of samples that share a structure tensor.
    scaling : tuple of float
        Factor of each group to the scale of the model.
    shapes : tuple of NoiseLevels
        How the noise level of each group depends on the scale.
    """

    noise: tuple[NoiseLevels, ...]
    photons: PoissonGaussian | None
    map: NoiseMap | None
    estimated: bool
    space: ColourSpace
    scaling: tuple[float, ...]
    shapes: tuple[NoiseLevels, ...]

    @property
    def levels(self) -> tuple[Level, ...]:
        """Noise of each group on the scale of the model."""
        groups = zip(self.space.groups, self.scaling, self.shapes, strict=True)
        return tuple(Level(group.sigma * factor, shape) for group, factor, shape in groups)

    @property
    def sigmas(self) -> NDArray[np.float64]:
        """Noise level of each sample."""
        return np.array([levels.sigma for levels in self.noise])

    @property
    def factors(self) -> NDArray[np.float64]:
        """Factor from each sample of the colour space to the scale of the model."""
        factors = np.ones(len(self.space.forward))
        for group, factor in zip(self.space.groups, self.scaling, strict=True):
            factors[group.samples] = factor
        return factors

    @property
    def data_range(self) -> float:
        """Difference of grey values, after stabilisation, that is mapped to 255 at first."""
        return 255 / float(self.factors[0])

    def __str__(self) -> str:
        if self.photons is not None:
            found = self.photons
            text = f"gain {found.gain:.4g}, offset {found.offset:.4g}, readout {found.readout:.4g}"
        elif self.map is not None:
            text = f"sigma {self.map.lowest:.4g} to {self.map.highest:.4g}"
        else:
            values = list(dict.fromkeys(str(levels) for levels in self.noise))
            text = f"sigma {', '.join(values)}"
            if not all(levels.is_white for levels in self.noise):
                text += ", correlated noise"
        return f"{text} (estimated)" if self.estimated else text


@dataclass(frozen=True, kw_only=True, eq=False)
class ResolvedRequest:
    """A request with everything determined for one image.

    Attributes
    ----------
    request : Request
        The original request.
    layout : Layout
        Axes of the image.
    dtype : dtype
        Type of its grey values.
    channels : tuple of ResolvedChannel
        One for each channel.
    """

    request: Request
    layout: Layout
    dtype: np.dtype[Any]
    channels: tuple[ResolvedChannel, ...]

    @property
    def result_dtype(self) -> np.dtype[Any]:
        """Type of the grey values of the result."""
        return self.request.result_dtype(self.dtype)

    @property
    def noise(self) -> str:
        """Description of the noise of all channels."""
        return "; ".join(dict.fromkeys(str(channel) for channel in self.channels))


def resolve(request: Request, source: Source) -> ResolvedRequest:
    """Determine noise, grey range and colour space of each channel; estimate what is missing.

    The image is read, once and plane by plane, only if something depends on its values.

    Raises
    ------
    NotFiniteError
        If the image has NaN or infinite values.
    ValueError
        If the request does not fit the image.

    Warns
    -----
    NoiseLevelWarning
        If the noise cannot be estimated well, or a given data range puts the noise level far
        outside the range that the model was trained for.
    SliceBySliceWarning
        If the image is a volume.
    """
    layout = source.layout
    _check_map(request.map, layout)
    if layout.length("Z") > 1:
        warnings.warn(
            f"the {layout.length('Z')} slices of this volume are denoised one by one; diffusion in "
            "three dimensions is not available",
            SliceBySliceWarning,
            stacklevel=_outside(),
        )
    surveys = [_Survey(request, source.dtype, layout.samples) for _ in range(layout.channels)]
    _read(surveys, source)
    channels = tuple(
        survey.resolved(_given_noise(request, layout, channel), layout)
        for channel, survey in enumerate(surveys)
    )
    for number, channel in enumerate(channels):
        which = f" of channel {number + 1}" if len(channels) > 1 else ""
        _warn_outside_training(request, channel, which)
        _warn_of_doubt(channel, which)
    return ResolvedRequest(request=request, layout=layout, dtype=source.dtype, channels=channels)


def computing_dtype(dtype: np.dtype[Any]) -> np.dtype[Any]:
    """Return float32 if it represents all values of a dtype exactly, else float64."""
    exact_in_float32 = dtype.itemsize <= 2 or (dtype.kind == "f" and dtype.itemsize <= 4)
    return np.dtype(np.float32 if exact_in_float32 else np.float64)


class _Survey:
    """Collects from the planes of one channel what the request leaves open."""

    def __init__(self, request: Request, dtype: np.dtype[Any], samples: int) -> None:
        self._request, self._dtype = request, dtype
        self._matrix = sample_matrix(request.colour, samples)
        self.needs_extremes = dtype.kind == "f" or request.noise != "gaussian"
        self.looks_closer = request.estimates or request.data_range is None
        self._extremes: list[NDArray[Any]] = []
        self._kept: list[NDArray[Any]] = []
        self._seen: list[list[_Seen]] = []
        self._originals: list[list[NoiseLevels]] = []

    def look_at(self, plane: NDArray[Any]) -> None:
        """Record the smallest and largest value of a plane."""
        extremes = np.array([plane.min(), plane.max()], self._dtype)
        if self._dtype.kind == "f" and not np.isfinite(extremes).all():
            bad = int(plane.size - np.isfinite(plane).sum())
            raise NotFiniteError(
                f"image has {bad} NaN or infinite values; replace them first, for example by the "
                "median of their neighbours"
            )
        self._extremes.append(extremes)

    def look_closer_at(self, plane: NDArray[Any]) -> None:
        """Measure noise and structure of a plane, or keep it until the detector is known."""
        if self._request.noise != "gaussian" and self._request.estimates:
            self._kept.append(np.array(plane))
            return
        self._measure(plane, _known_detector(self._request.noise))

    def _measure(self, plane: NDArray[Any], photons: PoissonGaussian | None) -> None:
        samples = plane[None] if plane.ndim == 2 else np.moveaxis(plane, -1, 0)
        if photons is not None:
            samples = photons.stabilise(samples.astype(computing_dtype(plane.dtype)))
        estimates = self._request.estimates and photons is None
        if estimates:
            require_size(samples)
        if estimates and not self._is_identity:
            self._originals.append([estimate_levels(tiles_of(sample)) for sample in samples])
        self._seen.append([_seen(samples, row, estimates=estimates) for row in self._matrix])

    def resolved(self, given: tuple[NoiseLevels, ...] | None, layout: Layout) -> ResolvedChannel:
        """Return the resolved channel; ``given`` is the noise of the samples, if known."""
        request = self._request
        photons = self._photons()
        if photons is not None:
            self._look_again(photons)
            given = (white(1.0),) * layout.samples
        noise, new = self._noise(given)
        space = colour_space(request.colour, np.array([levels.effective for levels in new]))
        return ResolvedChannel(
            noise=noise,
            photons=photons,
            map=request.map,
            estimated=request.estimates,
            space=space,
            scaling=tuple(self._factor(group, new, photons) for group in space.groups),
            shapes=tuple(joined_levels(new[group.samples]) for group in space.groups),
        )

    def _noise(
        self, given: tuple[NoiseLevels, ...] | None
    ) -> tuple[tuple[NoiseLevels, ...], list[NoiseLevels]]:
        """Return the noise of the samples, and of the new ones in the colour space."""
        colour = self._request.colour
        if given is not None:
            sigmas = np.array([levels.effective for levels in given])
            levels = new_levels(colour, sigmas)
            return given, [_at_least(white(0.0), float(level), given[0]) for level in levels]
        columns = zip(*self._seen, strict=True)
        new = [typical_levels([seen.noise for seen in column]) for column in columns]
        if self._is_identity:
            return tuple(new), new
        # Noise of colour samples may depend on each other, as after demosaicing; so that of the
        # new samples was measured and not computed. But compression removes all but the lowest
        # frequencies of colour differences, where noise cannot be told from structure.
        originals = tuple(typical_levels(column) for column in zip(*self._originals, strict=True))
        computed = new_levels(colour, np.array([levels.effective for levels in originals]))
        shape = originals[0]
        pairs = zip(new[1:], computed[1:], strict=True)
        return originals, [new[0], *(_at_least(found, level, shape) for found, level in pairs)]

    @property
    def _is_identity(self) -> bool:
        return np.array_equal(self._matrix, np.eye(len(self._matrix)))

    def _factor(
        self, group: Group, new: list[NoiseLevels], photons: PoissonGaussian | None
    ) -> float:
        """Return the factor from grey values of a group to the scale of the model."""
        request = self._request
        if request.data_range is not None:
            span = request.data_range
            return 255 / (span if photons is None else stabilised_range(photons, span))
        ratios = [
            structure_over_noise(seen[number].energies, new[number].sigma / seen[number].unit)
            for seen in self._seen
            for number in range(*group.samples.indices(len(new)))
        ]
        level = operating_level(float(np.mean(ratios)), request.model.noise_levels)
        return level / group.sigma

    def _look_again(self, photons: PoissonGaussian) -> None:
        """Compare the detector with the values, and measure the planes that were kept."""
        extremes = np.concatenate(self._extremes or [np.zeros(1, self._dtype)])
        _warn_of_impossible_counts(photons, extremes)
        if self._request.data_range is None:
            for plane in self._kept:
                self._measure(plane, photons)

    def _photons(self) -> PoissonGaussian | None:
        """Return the detector, given or estimated, or None if the noise is Gaussian."""
        noise = self._request.noise
        if noise == "gaussian" or not self._request.estimates:
            return _known_detector(noise)
        # All samples and planes of a channel are assumed to have the same noise.
        planes = [np.moveaxis(p, -1, 0) if p.ndim == 3 else p[None] for p in self._kept]
        offset = noise.offset if isinstance(noise, UnknownDetector) else None
        return estimate_poisson_gaussian(np.concatenate(planes), channel_axis=0, offset=offset)


class _Seen(NamedTuple):
    """What was measured in one sample of a plane."""

    noise: NoiseLevels
    energies: NDArray[np.float64]
    unit: float


def _seen(samples: NDArray[Any], weights: NDArray[np.float64], *, estimates: bool) -> _Seen:
    """Measure the structure of a weighted sum of samples and, if asked for, its noise."""
    (used,) = np.nonzero(weights)
    if len(used) == 1 and weights[used[0]] == 1:
        tiles = tiles_of(samples[used[0]])
    else:
        tiles = tiles_of(samples, weights.tolist())
    noise = estimate_levels(tiles) if estimates else white(0.0)
    if tiles is not None:
        return _Seen(noise, tiles.energies, tiles.unit)
    if min(samples.shape[1:]) >= SIDE:
        return _Seen(noise, np.zeros(1), 1.0)
    sample = np.tensordot(weights, samples.astype(np.float64), axes=1)
    span = float(np.ptp(sample))
    if span == 0:
        return _Seen(noise, np.zeros(1), 1.0)
    return _Seen(noise, np.array([np.var(sample / span)]), span)


def _at_least(found: NoiseLevels, level: float, shape: NoiseLevels) -> NoiseLevels:
    """Return noise that was found, or of this level and shape if that is more."""
    if found.effective >= level:
        return found
    return white(level) if shape.is_white else shape.times(level / shape.effective)


def _known_detector(noise: Noise) -> PoissonGaussian | None:
    """Return the detector if it need not be estimated."""
    if noise == "poisson":
        return PoissonGaussian()
    return noise if isinstance(noise, PoissonGaussian) else None


def _read(surveys: list[_Survey], source: Source) -> None:
    """Pass the planes of an image to the surveys of their channels, if any needs them."""
    if not any(survey.looks_closer or survey.needs_extremes for survey in surveys):
        return
    layout = source.layout
    count = layout.plane_count // layout.channels
    wanted = set(np.linspace(0, count - 1, min(count, _MOST_PLANES)).astype(int).tolist())
    seen = [0] * layout.channels
    for number, plane in enumerate(source.planes()):
        channel = layout.channel_of(number)
        survey = surveys[channel]
        if survey.needs_extremes:
            survey.look_at(plane)
        if survey.looks_closer and seen[channel] in wanted:
            survey.look_closer_at(plane)
        seen[channel] += 1


def _warn_of_impossible_counts(photons: PoissonGaussian, extremes: NDArray[Any]) -> None:
    """Warn of grey values that the detector cannot have produced."""
    lowest, highest = float(extremes.min()), float(extremes.max())
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
        stacklevel=_outside(),
    )


def _given_noise(request: Request, layout: Layout, channel: int) -> tuple[NoiseLevels, ...] | None:
    """Return the noise of each sample of a channel, or None if not given."""
    if request.levels is not None:
        return (request.levels,) * layout.samples
    if request.sigma is None or isinstance(request.sigma, Mapping):
        return None
    return tuple(white(float(sigma)) for sigma in _given_sigmas(request, layout, channel))


def _given_sigmas(request: Request, layout: Layout, channel: int) -> NDArray[np.float64]:
    """Return the noise level of each sample of a channel."""
    sigma: Any = request.sigma
    samples = layout.samples
    if request.map is not None:
        return np.full(samples, request.map.mean)
    if np.ndim(sigma) == 0:
        return np.full(samples, nonnegative_number("sigma", sigma))
    if "C" in layout.axes:
        levels = sequence_of_numbers("sigma", sigma, layout.channels)
        return np.full(samples, levels[channel])
    if not layout.has_samples:
        raise TypeError(
            f"sigma must be one number for an image with the axes {layout.axes}, got {sigma!r}"
        )
    return np.array(sequence_of_numbers("sigma", sigma, samples))


def _check_map(found: NoiseMap | None, layout: Layout) -> None:
    """Refuse a map of noise levels whose size differs from that of the image."""
    if found is None or found.relative is None:
        return
    if layout.axes.index("X") < layout.axes.index("Y"):
        raise ValueError(
            f"a map of noise levels needs an image with Y before X, got the axes {layout.axes}; "
            "transpose both"
        )
    if found.relative.shape == layout.size:
        return
    height, width = layout.size
    raise ValueError(
        f"the map of noise levels has the shape {found.relative.shape}, and the image has "
        f"{height} rows and {width} columns"
    )


def _warn_outside_training(request: Request, channel: ResolvedChannel, which: str) -> None:
    """Warn if the given data range puts the noise level far outside the range of the training."""
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
            stacklevel=_outside(),
        )


def _warn_of_doubt(channel: ResolvedChannel, which: str) -> None:
    """Warn if the noise was estimated from an image that does not show it."""
    if not any(levels.doubtful for levels in channel.noise):
        return
    warnings.warn(
        f"the estimated noise level{which}, {channel.sigmas.max():.3g}, is doubtful: no part of "
        "the image is flat, so that fine structure cannot be told from noise; give sigma, measured "
        "for example where an image of the same series is flat",
        NoiseLevelWarning,
        stacklevel=_outside(),
    )


def _outside() -> int:
    """Return the ``stacklevel`` of the first caller outside this package."""
    import sys

    frame, level = sys._getframe(1), 1
    while frame.f_back is not None and frame.f_globals.get("__package__", "") == __package__:
        frame, level = frame.f_back, level + 1
    return level
