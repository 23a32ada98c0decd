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
from integrodiff.errors import NoiseLevelWarning, NoValidPixelsWarning, SliceBySliceWarning
from integrodiff.grey_range import grey_range, stabilised_range
from integrodiff.layout import Layout
from integrodiff.models import Model
from integrodiff.noise.level import detector_of, estimate_sigma, has_enough_patches, too_few_patches
from integrodiff.noise.maps import NoiseMap, noise_map
from integrodiff.noise.photons import PoissonGaussian, UnknownDetector
from integrodiff.validity import Mask, Validity

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

    @property
    def validity(self) -> Validity:
        """Which pixels are valid."""

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
            # Levels that are not finite may belong to invalid pixels, which an image decides.
            levels = np.asarray(self.sigma)
            finite = np.isfinite(levels)
            object.__setattr__(self, "map", noise_map(levels, None if finite.all() else finite))
        elif dimensions == 0:
            nonnegative_number("sigma", self.sigma)
        elif dimensions > 2:
            raise ValueError(
                "sigma must be a number, one number for each channel, or a map (rows, columns); "
                f"got an array of shape {np.shape(self.sigma)}"
            )

    def has_alpha(self, layout: Layout) -> bool:
        """Whether the last sample of an image is transparency, and not to be denoised."""
        levels = np.shape(self.sigma) if self.sigma is not None else ()
        return self.colour in ("auto", "opponent") and layout.samples == 4 and levels != (4,)

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
    mask : array of bool, optional
        The mask of the first plane that has invalid pixels, and valid ones as well.
    """

    sigmas: NDArray[np.float64]
    photons: PoissonGaussian | None
    map: NoiseMap | None
    estimated: bool
    data_range: float
    space: ColourSpace
    mask: Mask | None = None

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


@dataclass(frozen=True, kw_only=True)
class InvalidPixels:
    """Number of invalid pixels of an image, and the reasons in words.

    Attributes
    ----------
    counts : tuple of int
        Number of invalid pixels of each plane.
    plane_size : int
        Number of pixels of a plane.
    reasons : tuple of str
        Why they are invalid, such as "nodata -9999".
    """

    counts: tuple[int, ...]
    plane_size: int
    reasons: tuple[str, ...]

    @property
    def total(self) -> int:
        """Number of invalid pixels of all planes."""
        return sum(self.counts)

    @property
    def void_planes(self) -> list[int]:
        """Planes without a valid pixel."""
        return [n for n, count in enumerate(self.counts) if count == self.plane_size]

    def __str__(self) -> str:
        total = self.total
        percent = 100 * total / (len(self.counts) * self.plane_size)
        if percent >= 0.1:
            share = f"{percent:.{2 if percent < 99.5 else 4}g} % of the pixels are invalid"
        else:
            share = f"{total} pixel{'s are' if total > 1 else ' is'} invalid"
        return f"{share}: {', '.join(self.reasons)}"


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
    validity : Validity
        Which pixels are valid.
    invalid : InvalidPixels, optional
        How many pixels are not; None if all are valid.
    """

    request: Request
    layout: Layout
    dtype: np.dtype[Any]
    channels: tuple[ResolvedChannel, ...]
    validity: Validity
    invalid: InvalidPixels | None = None

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
    ValueError
        If the request does not fit the image, or the grey range is unclear.

    Warns
    -----
    NoiseLevelWarning
        If a noise level is far outside the range that the model was trained for.
    NoValidPixelsWarning
        If a plane has no valid pixel.
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
    invalid = _read(surveys, source)
    channels = tuple(survey.resolved(channel, layout) for channel, survey in enumerate(surveys))
    _warn_of_void_planes(invalid)
    for number, channel in enumerate(channels):
        which = f" of channel {number + 1}" if len(channels) > 1 else ""
        _warn_outside_training(request.model, channel, which)
    return ResolvedRequest(
        request=request,
        layout=layout,
        dtype=source.dtype,
        channels=channels,
        validity=source.validity,
        invalid=invalid,
    )


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
        self._kept: list[tuple[NDArray[Any], Mask | None]] = []
        self._mask: Mask | None = None
        self._union: Mask | None = None
        self._has_whole_planes = False
        self._owed = 0

    def look_at(self, plane: NDArray[Any], mask: Mask | None, *, wanted: bool) -> None:
        """Record what is needed of a plane; ``wanted`` asks for an estimate of its noise."""
        self._record(mask)
        if mask is not None and not mask.any():
            self._owed += wanted
            return
        if self.needs_extremes:
            values = plane if mask is None else plane[mask]
            self._extremes.append(np.array([values.min(), values.max()], self._dtype))
        self._owed += wanted
        # A plane with too few valid pixels is replaced by a later one.
        if self.estimates and self._owed and (mask is None or has_enough_patches(mask)):
            self._owed -= 1
            self._estimate_from(plane, mask)

    def _record(self, mask: Mask | None) -> None:
        """Remember where pixels are valid: in one plane with invalid ones, and in any plane."""
        if mask is None:
            self._has_whole_planes = True
            return
        if self._mask is None and mask.any():
            self._mask = mask
        self._union = mask if self._union is None else self._union | mask

    @property
    def _is_void(self) -> bool:
        """Whether there is no valid pixel in any plane."""
        return not self._has_whole_planes and self._union is not None and not self._union.any()

    def _estimate_from(self, plane: NDArray[Any], mask: Mask | None) -> None:
        """Estimate the Gaussian noise of a plane, or keep the plane for a joint estimate."""
        if self._request.noise == "gaussian":
            axis = -1 if plane.ndim == 3 else None
            self._sigmas.append(np.atleast_1d(estimate_sigma(plane, channel_axis=axis, mask=mask)))
        else:
            samples = [plane] if plane.ndim == 2 else np.moveaxis(plane, -1, 0)
            self._kept += [(np.array(sample), mask) for sample in samples]

    def resolved(self, number: int, layout: Layout) -> ResolvedChannel:
        """Return the resolved channel; ``number`` is its index."""
        request = self._request
        if self._is_void:
            return self._unchanged(layout)
        if self.estimates and not self._sigmas and not self._kept:
            raise ValueError(too_few_patches(layout.size, masked=True))
        photons, levels = self._photons(), self._map()
        extremes = np.concatenate(self._extremes or [np.zeros(1, self._dtype)])
        if photons is not None:
            _warn_of_impossible_counts(photons, extremes)
            sigmas = np.ones(layout.samples)
            stabilised = photons.stabilise(extremes.astype(computing_dtype(self._dtype)))
            data_range = stabilised_range(stabilised, photons, request.data_range)
        else:
            given = _given_sigmas(request, layout, number, levels)
            sigmas = _typical_levels(self._sigmas) if given is None else given
            loudest = 1.0 if levels is None else levels.loudest
            data_range = grey_range(extremes, float(sigmas.max()) * loudest, request.data_range)
        return ResolvedChannel(
            sigmas=sigmas,
            photons=photons,
            map=levels,
            estimated=self.estimates,
            data_range=data_range,
            space=colour_space(request.colour, sigmas),
            mask=self._mask,
        )

    def _unchanged(self, layout: Layout) -> ResolvedChannel:
        """Return a channel without a valid pixel, which has no noise to be removed."""
        none = np.zeros(layout.samples)
        return ResolvedChannel(
            sigmas=none,
            photons=None,
            map=None,
            estimated=False,
            data_range=1.0,
            space=colour_space(self._request.colour, none),
        )

    def _map(self) -> NoiseMap | None:
        """Return the map of noise levels; those of pixels that are nowhere valid do not count."""
        request = self._request
        if request.map is None:
            return None
        if self._union is None or self._has_whole_planes:
            return noise_map(np.asarray(request.sigma))
        return noise_map(np.asarray(request.sigma), self._union)

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
        return detector_of(self._kept, noise.offset if isinstance(noise, UnknownDetector) else None)


def _read(surveys: list[_Survey], source: Source) -> InvalidPixels | None:
    """Pass the planes of an image to the surveys of their channels, if any needs them.

    Return the number of invalid pixels, or None if there are none.
    """
    layout, validity = source.layout, source.validity
    masked = validity.may_exclude(source.dtype)
    if not masked and not any(survey.estimates or survey.needs_extremes for survey in surveys):
        return None
    count = layout.plane_count // layout.channels
    wanted = set(np.linspace(0, count - 1, min(count, _MOST_PLANES)).astype(int).tolist())
    seen = [0] * layout.channels
    invalid: list[int] = []
    reasons: dict[str, None] = {}
    for number, plane in enumerate(source.planes()):
        channel = layout.channel_of(number)
        mask = validity.of(plane, number) if masked else None
        invalid.append(0 if mask is None else int(mask.size - mask.sum()))
        if mask is not None:
            reasons |= dict.fromkeys(validity.reasons(plane, number))
        surveys[channel].look_at(plane, mask, wanted=seen[channel] in wanted)
        seen[channel] += 1
    if not any(invalid):
        return None
    height, width = layout.size
    return InvalidPixels(counts=tuple(invalid), plane_size=height * width, reasons=tuple(reasons))


def _warn_of_void_planes(invalid: InvalidPixels | None) -> None:
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
        stacklevel=_outside(),
    )


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


def _given_sigmas(
    request: Request, layout: Layout, channel: int, found: NoiseMap | None
) -> NDArray[np.float64] | None:
    """Return the noise level of each sample of a channel, or None if not given."""
    sigma, samples = request.sigma, layout.samples
    if sigma is None:
        return None
    if found is not None:
        return np.full(samples, found.mean)
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
