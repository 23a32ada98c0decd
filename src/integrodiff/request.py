"""Resolve a request: noise level, grey range and colour space of each channel of an image.

A :class:`Request` holds the arguments of a user, in Python or on the command line. :func:`resolve`
combines it with an image, an array or an open file, and estimates whatever is missing. All callers
use this function, so the same request has the same meaning everywhere.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol, TypeAlias

import numpy as np
from numpy.typing import NDArray

from integrodiff._checks import (
    nonnegative_number,
    one_of,
    positive_integer,
    positive_number,
    sequence_of_numbers,
)
from integrodiff.colour import COLOURS, Colour, ColourSpace, colour_space
from integrodiff.errors import NoiseLevelWarning, NotFiniteError, SliceBySliceWarning
from integrodiff.grey_range import grey_range, stabilised_range
from integrodiff.layout import Layout
from integrodiff.models import Model
from integrodiff.noise.level import estimate_poisson_gaussian, estimate_sigma
from integrodiff.noise.maps import NoiseMap, noise_map
from integrodiff.noise.photons import PoissonGaussian, UnknownDetector

Noise: TypeAlias = (
    Literal["gaussian", "poisson", "poisson-gaussian"] | PoissonGaussian | UnknownDetector
)
NOISES = ("gaussian", "poisson", "poisson-gaussian")

Sigma: TypeAlias = float | Sequence[float] | NDArray[Any] | None

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
    noise: Noise = "gaussian"
    data_range: float | None = None
    colour: Colour = "auto"
    as_float: bool = False
    exact: bool = False
    threads: int | None = None
    map: NoiseMap | None = field(init=False, default=None)

    def __post_init__(self) -> None:
        one_of("colour", self.colour, COLOURS)
        if self.data_range is not None:
            positive_number("data_range", self.data_range)
        if self.threads is not None:
            positive_integer("threads", self.threads)
        if not isinstance(self.noise, (PoissonGaussian, UnknownDetector)):
            one_of("noise", self.noise, NOISES)
        if self.sigma is None:
            return
        if self.noise != "gaussian":
            raise ValueError(
                "sigma describes Gaussian noise; for photon noise give noise=PoissonGaussian(...) "
                "with the gain, offset and readout noise of the detector"
            )
        dimensions = np.ndim(self.sigma)
        if dimensions == 2:
            object.__setattr__(self, "map", noise_map(np.asarray(self.sigma)))
        elif dimensions == 0:
            nonnegative_number("sigma", self.sigma)
        elif dimensions > 2:
            raise ValueError(
                "sigma must be a number, one number for each channel, or a map (rows, columns); "
                f"got an array of shape {np.shape(self.sigma)}"
            )

    def result_dtype(self, dtype: np.dtype[Any]) -> np.dtype[Any]:
        """Return the dtype of the result for an image of the given dtype."""
        return computing_dtype(dtype) if self.as_float and dtype.kind != "f" else dtype


@dataclass(frozen=True, kw_only=True, eq=False)
class ResolvedChannel:
    """Noise, grey range and colour space of one channel.

    Attributes
    ----------
    sigmas : ndarray
        Noise level of each sample, in grey levels of the image; ones after stabilisation.
    photons : PoissonGaussian, optional
        The detector, if photon noise is stabilised first.
    map : NoiseMap, optional
        The noise levels, if they vary over the image.
    estimated : bool
        Whether the noise was estimated from the image.
    data_range : float
        Difference of grey values, after stabilisation, that is mapped to 255.
    space : ColourSpace
        Groups of samples that share a structure tensor.
    """

    sigmas: NDArray[np.float64]
    photons: PoissonGaussian | None
    map: NoiseMap | None
    estimated: bool
    data_range: float
    space: ColourSpace

    @property
    def factor(self) -> float:
        """Factor from grey levels, after stabilisation, to the scale [0, 255]."""
        return 255 / self.data_range

    @property
    def levels(self) -> tuple[float, ...]:
        """Noise level of each group on the scale [0, 255]."""
        return tuple(group.sigma * self.factor for group in self.space.groups)

    def __str__(self) -> str:
        if self.photons is not None:
            found = self.photons
            text = f"gain {found.gain:.4g}, offset {found.offset:.4g}, readout {found.readout:.4g}"
        elif self.map is not None:
            text = f"sigma {self.map.lowest:.4g} to {self.map.highest:.4g}"
        else:
            values = [f"{value:.4g}" for value in self.sigmas]
            text = f"sigma {values[0] if len(set(values)) == 1 else ', '.join(values)}"
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
        If the request does not fit the image, or the grey range is unclear.

    Warns
    -----
    NoiseLevelWarning
        If a noise level is far outside the range that the model was trained for.
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
    surveys = [_Survey(request, source.dtype) for _ in range(layout.channels)]
    _read(surveys, source)
    channels = tuple(
        survey.resolved(_given_sigmas(request, layout, channel), layout)
        for channel, survey in enumerate(surveys)
    )
    for number, channel in enumerate(channels):
        which = f" of channel {number + 1}" if len(channels) > 1 else ""
        _warn_outside_training(request.model, channel, which)
    return ResolvedRequest(request=request, layout=layout, dtype=source.dtype, channels=channels)


def computing_dtype(dtype: np.dtype[Any]) -> np.dtype[Any]:
    """Return float32 if it represents all values of a dtype exactly, else float64."""
    exact_in_float32 = dtype.itemsize <= 2 or (dtype.kind == "f" and dtype.itemsize <= 4)
    return np.dtype(np.float32 if exact_in_float32 else np.float64)


class _Survey:
    """Collects from the planes of one channel what the request leaves open."""

    def __init__(self, request: Request, dtype: np.dtype[Any]) -> None:
        self._request, self._dtype = request, dtype
        noise = request.noise
        self.estimates = request.sigma is None and (
            noise in ("gaussian", "poisson-gaussian") or isinstance(noise, UnknownDetector)
        )
        self.needs_extremes = dtype.kind == "f" or (
            request.data_range is None and (dtype != np.uint8 or noise != "gaussian")
        )
        self._extremes: list[NDArray[Any]] = []
        self._sigmas: list[NDArray[np.float64]] = []
        self._kept: list[NDArray[Any]] = []

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

    def estimate_from(self, plane: NDArray[Any]) -> None:
        """Estimate the Gaussian noise of a plane, or keep the plane for a joint estimate."""
        if self._request.noise == "gaussian":
            axis = -1 if plane.ndim == 3 else None
            self._sigmas.append(np.atleast_1d(estimate_sigma(plane, channel_axis=axis)))
        else:
            self._kept.append(np.array(plane))

    def resolved(self, given: NDArray[np.float64] | None, layout: Layout) -> ResolvedChannel:
        """Return the resolved channel; ``given`` are the noise levels of the request, if any."""
        request = self._request
        photons = self._photons()
        extremes = np.concatenate(self._extremes or [np.zeros(1, self._dtype)])
        if photons is not None:
            _warn_of_impossible_counts(photons, extremes)
            sigmas = np.ones(layout.samples)
            stabilised = photons.stabilise(extremes.astype(computing_dtype(self._dtype)))
            data_range = stabilised_range(stabilised, photons, request.data_range)
        else:
            sigmas = _typical_levels(self._sigmas) if given is None else given
            loudest = 1.0 if request.map is None else request.map.loudest
            data_range = grey_range(extremes, float(sigmas.max()) * loudest, request.data_range)
        return ResolvedChannel(
            sigmas=sigmas,
            photons=photons,
            map=request.map,
            estimated=self.estimates,
            data_range=data_range,
            space=colour_space(request.colour, sigmas),
        )

    def _photons(self) -> PoissonGaussian | None:
        """Return the detector, given or estimated, or None if the noise is Gaussian."""
        noise = self._request.noise
        if noise == "gaussian":
            return None
        if noise == "poisson":
            return PoissonGaussian()
        if isinstance(noise, PoissonGaussian):
            return noise
        # All samples and planes of a channel are assumed to have the same noise.
        planes = [np.moveaxis(p, -1, 0) if p.ndim == 3 else p[None] for p in self._kept]
        offset = noise.offset if isinstance(noise, UnknownDetector) else None
        return estimate_poisson_gaussian(np.concatenate(planes), channel_axis=0, offset=offset)


def _read(surveys: list[_Survey], source: Source) -> None:
    """Pass the planes of an image to the surveys of their channels, if any needs them."""
    if not any(survey.estimates or survey.needs_extremes for survey in surveys):
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
        if survey.estimates and seen[channel] in wanted:
            survey.estimate_from(plane)
        seen[channel] += 1


def _typical_levels(estimates: list[NDArray[np.float64]]) -> NDArray[np.float64]:
    """Return the median of each sample over the planes, without planes that have no noise.

    A plane without noise is blank or saturated, such as the end slices of a volume.
    """
    levels = np.stack(estimates, axis=-1)
    return np.array([np.median(row[row > 0]) if (row > 0).any() else 0.0 for row in levels])


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


def _given_sigmas(request: Request, layout: Layout, channel: int) -> NDArray[np.float64] | None:
    """Return the noise level of each sample of a channel, or None if not given."""
    sigma, samples = request.sigma, layout.samples
    if sigma is None:
        return None
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


def _warn_outside_training(model: Model, channel: ResolvedChannel, which: str) -> None:
    """Warn if the noise level is far outside the range of the training."""
    levels = model.noise_levels
    if not levels or not channel.space.groups:
        return
    sigma = float(np.sqrt(np.mean(channel.sigmas**2))) * channel.factor
    lowest, highest = min(levels), max(levels)
    if not lowest / 2 <= sigma <= 2 * highest:
        warnings.warn(
            f"the noise level{which}, {sigma:.3g} on the scale [0, 255], is far outside the range "
            f"{lowest:g} to {highest:g} that the model was trained for; the data range is "
            f"{channel.data_range:.4g}: check sigma and data_range",
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
