"""Resolve a request: noise, scale and colour space of each channel of an image.

A :class:`Request` holds the arguments of a user, in Python or on the command line. :func:`resolve`
combines it with an image, an array or an open file, and estimates whatever is missing. All callers
use this function, so the same request has the same meaning everywhere.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal, NamedTuple, Protocol, TypeAlias

import numpy as np
from numpy.typing import NDArray

from integrodiff._checks import (
    nonnegative_number,
    one_of,
    positive_integer,
    positive_number,
    sequence_of_numbers,
    shown,
)
from integrodiff.blocks.memory import memory_limit
from integrodiff.colour import (
    COLOURS,
    Colour,
    ColourSpace,
    Group,
    colour_for,
    colour_space,
    new_levels,
    sample_matrix,
)
from integrodiff.errors import NoiseLevelWarning, NoValidPixelsWarning, VolumeModelWarning
from integrodiff.grey_range import operating_level, stabilised_range, structure_over_noise
from integrodiff.layout import Layout
from integrodiff.models import Model
from integrodiff.namespaces import (
    Array,
    dtype_of,
    in_dtype_of,
    is_numpy,
    library_of,
    made_like,
    namespace,
    samples_of,
)
from integrodiff.noise.level import (
    ChosenPlanes,
    detector_of,
    estimate_levels,
    has_enough_patches,
    has_enough_tiles,
    too_few_patches,
    too_few_tiles,
)
from integrodiff.noise.levels import (
    NoiseLevels,
    given_levels,
    joined_levels,
    levels_of_spectrum,
    typical_levels,
    white,
    without_texture,
)
from integrodiff.noise.maps import NoiseMap, noise_map
from integrodiff.noise.photons import PoissonGaussian, UnknownDetector
from integrodiff.noise.rice import Rician, level_of
from integrodiff.noise.spectrum import Glimpse, Tiles, glimpse_of
from integrodiff.noise.variation import (
    LocalLevels,
    are_alike,
    estimated_map,
    joined_local_levels,
    local_levels,
    map_of_tiles,
    typical_local_levels,
)
from integrodiff.stages import Evolution
from integrodiff.units import GreyUnits
from integrodiff.validity import Mask, Validity

Noise: TypeAlias = (
    Literal["gaussian", "poisson", "poisson-gaussian", "rician"] | PoissonGaussian | UnknownDetector
)
NOISES = ("gaussian", "poisson", "poisson-gaussian", "rician")
MAP = "map"
"""Asks for a map of noise levels in place of ``sigma``."""


Sigma: TypeAlias = float | Sequence[float] | Mapping[float, float] | NDArray[Any] | str | None

_THICK = 2.5
"""Ratio of spacings up to which volumes are known to be denoised well."""

_DEPENDENT = 1.2
"""Ratio of levels of a sum of samples that are not explained if these are independent."""

_BAND_PIXELS, _BAND_ON_DEVICE = 2**16, 2**22
"""Pixels that are converted at a time, on the host and elsewhere."""


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

    @property
    def distances(self) -> Mapping[str, float]:
        """Distance of neighbouring pixels by the letter of an axis; empty if unknown."""

    @property
    def units(self) -> GreyUnits:
        """Conversion from the values of the planes to the unit of given and reported values."""

    def planes(self) -> Iterable[Array]:
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
    spacing: Sequence[float] | None = None
    colour: Colour = "auto"
    as_float: bool = False
    exact: bool = False
    threads: int | None = None
    max_memory: int | str | None = None
    map_is_estimated: bool = False
    map: NoiseMap | None = field(init=False, default=None)
    levels: NoiseLevels | None = field(init=False, default=None)

    def __post_init__(self) -> None:
        one_of("colour", self.colour, COLOURS)
        if self.data_range is not None:
            positive_number("data_range", self.data_range)
        if self.spacing is not None:
            object.__setattr__(self, "spacing", checked_spacing(self.spacing))
        if self.threads is not None:
            positive_integer("threads", self.threads)
        if self.max_memory is not None:
            object.__setattr__(self, "max_memory", memory_limit(self.max_memory))
        if not isinstance(self.noise, (PoissonGaussian, UnknownDetector)):
            one_of("noise", self.noise, NOISES)
        if self.sigma is not None or self.noise_psd is not None:
            self._check_noise_levels()

    def _check_noise_levels(self) -> None:
        """Refuse noise levels of a wrong kind; keep maps and levels per scale."""
        if self.sigma is not None and self.noise_psd is not None:
            raise ValueError("give sigma or noise_psd, not both")
        if self.noise not in ("gaussian", "rician"):
            raise ValueError(
                "sigma describes Gaussian noise; for photon noise give noise=PoissonGaussian(...) "
                "with the gain, offset and readout noise of the detector"
            )
        if isinstance(self.sigma, str):
            if self.sigma != MAP:
                raise ValueError(
                    "sigma must be a noise level, levels per channel or scale, a map of levels, "
                    f"or {MAP!r} to estimate one; got {shown(self.sigma)}"
                )
            if self.noise == "rician":
                raise ValueError("a map of the levels of Rician noise cannot be estimated; give it")
        elif self.noise_psd is not None:
            object.__setattr__(self, "levels", levels_of_spectrum(self.noise_psd))
        elif isinstance(self.sigma, Mapping):
            object.__setattr__(self, "levels", given_levels(self.sigma))
        elif np.ndim(self.sigma) in (2, 3):  # type: ignore[arg-type]
            # Levels that are not finite may belong to invalid pixels, which an image decides.
            levels = _levels_array(self.sigma)
            finite = namespace(levels).isfinite(levels)
            object.__setattr__(self, "map", noise_map(levels, None if finite.all() else finite))
        elif np.ndim(self.sigma) == 0:  # type: ignore[arg-type]
            nonnegative_number("sigma", self.sigma)
        elif np.ndim(self.sigma) > 3:  # type: ignore[arg-type]
            raise ValueError(
                "sigma must be a number, one number for each channel, or a map (rows, columns) or, "
                "of a volume, (slices, rows, columns); "
                f"got an array of shape {np.shape(self.sigma)}"  # type: ignore[arg-type]
            )

    def with_map(self, source: Source) -> Request:
        """Return the request with a map of the noise levels of an image, if it asks for one.

        Raises
        ------
        ValueError
            If the image has several channels, or is too small.
        """
        if not isinstance(self.sigma, str):
            return self
        layout = source.layout
        if layout.channels > 1:
            raise ValueError(
                "a map of noise levels is estimated for one channel, and this image has "
                f"{layout.channels}; denoise them one by one"
            )
        planes, masks = [], []
        chosen = ChosenPlanes(layout.plane_count)
        for number, plane in enumerate(source.planes()):
            if not chosen.wants_next():
                continue
            mask = source.validity.of(plane, number)
            if mask is None or has_enough_tiles(mask):
                chosen.take()
                planes.append(_kept(plane))
                masks.append(mask)
        if not planes:
            raise ValueError(too_few_tiles())
        levels = estimated_map(planes, masks) * source.units.size
        return replace(self, sigma=levels, map_is_estimated=True)

    @property
    def estimates(self) -> bool:
        """Whether the noise is to be estimated."""
        if self.sigma is not None or self.noise_psd is not None:
            return False
        known = self.noise == "poisson" or isinstance(self.noise, PoissonGaussian)
        return not known

    def stored(self, units: GreyUnits) -> Request:
        """Return the request in the unit of the stored values of an image.

        Raises
        ------
        ValueError
            If photons are counted and brighter pixels have smaller values.
        """
        if units.are_stored:
            return self
        size, sigma, noise = units.size, self.sigma, self.noise
        if isinstance(sigma, Mapping):
            sigma = {scale: level / size for scale, level in sigma.items()}
        elif sigma is not None:
            sigma = np.asarray(sigma, np.float64) / size
            sigma = float(sigma) if sigma.ndim == 0 else sigma
        if noise != "gaussian":
            if units.slope < 0:
                what = "Rician noise" if noise == "rician" else "photon noise"
                cause = "magnitude" if noise == "rician" else "light"
                raise ValueError(f"{what} needs grey values that grow with the {cause}")
            noise = _stored_detector(noise, units)
        return replace(
            self,
            sigma=sigma,
            noise_psd=None if self.noise_psd is None else self.noise_psd / size**2,
            noise=noise,
            data_range=None if self.data_range is None else self.data_range / size,
        )

    def has_alpha(self, layout: Layout) -> bool:
        """Whether the last sample of an image is transparency, and not to be denoised."""
        levels = np.shape(self.sigma) if self.sigma is not None else ()  # type: ignore[arg-type]
        return self.colour in ("auto", "opponent") and layout.samples == 4 and levels != (4,)

    def result_dtype(self, dtype: np.dtype[Any]) -> np.dtype[Any]:
        """Return the dtype of the result for an image of the given dtype."""
        return computing_dtype(dtype) if self.as_float and dtype.kind != "f" else dtype


class Volume(NamedTuple):
    """Geometry of a volume.

    Attributes
    ----------
    slices : int
        Number of slices.
    spacing : (float, float, float)
        Distance of slices, rows and columns over the smallest of them.
    origin : {"given", "file", "unknown"}
        Where the spacing comes from; if unknown it is assumed to be equal.
    """

    slices: int
    spacing: tuple[float, float, float]
    origin: str

    def __str__(self) -> str:
        ratios = " : ".join(f"{distance:g}" for distance in self.spacing)
        origin = {"file": ", from the file", "unknown": ", unknown and taken as equal"}
        return f"volume, spacing {ratios} (z : y : x{origin.get(self.origin, '')})"


class Level(NamedTuple):
    """Noise of a group of samples on the scale of the model.

    Attributes
    ----------
    sigma : float
        The level at which the model is evaluated.
    shape : NoiseLevels
        How the level depends on the scale.
    volume : Volume, optional
        Geometry, if the samples are volumes.
    """

    sigma: float
    shape: NoiseLevels
    volume: Volume | None = None

    def evolution(self, model: Model) -> Evolution:
        """Return the diffusion process of a model at this level."""
        relative = None if self.shape.is_white else self.shape.relative
        if self.volume is None:
            return model.evolution(self.sigma, relative)
        spacing = self.volume.spacing
        if relative is not None:
            # Scales are in the unit of the smallest spacing, levels were measured in pixels.
            pixel = (spacing[1] * spacing[2]) ** 0.5
            shape = self.shape
            return model.evolution(self.sigma, lambda s: shape.relative(s / pixel), spacing)
        return model.evolution(self.sigma, None, spacing)


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
    mask : array of bool, optional
        The mask of the first plane that has invalid pixels, and valid ones as well.
    volume : Volume, optional
        Geometry, if the channel is denoised in three dimensions.
    rice : Rician, optional
        Rician noise, if it is stabilised first. Its level stays that of the image, and may vary.
    """

    noise: tuple[NoiseLevels, ...]
    photons: PoissonGaussian | None
    map: NoiseMap | None
    estimated: bool
    space: ColourSpace
    scaling: tuple[float, ...]
    shapes: tuple[NoiseLevels, ...]
    mask: Mask | None = None
    volume: Volume | None = None
    rice: Rician | None = None

    def in_units(self, units: GreyUnits) -> ResolvedChannel:
        """Return the channel for an image with its grey values in another unit."""
        if units.are_stored:
            return self
        size, levels, photons = units.size, self.map, self.photons
        if levels is not None:
            mean, lowest, highest = (size * level for level in levels[:3])
            levels = levels._replace(mean=mean, lowest=lowest, highest=highest)
        return replace(
            self,
            noise=self.noise if photons else tuple(found.times(size) for found in self.noise),
            photons=photons and photons.in_units(*units),
            map=levels,
            scaling=self.scaling if photons else tuple(factor / size for factor in self.scaling),
        )

    @property
    def levels(self) -> tuple[Level, ...]:
        """Noise of each group on the scale of the model."""
        groups = zip(self.space.groups, self.scaling, self.shapes, strict=True)
        return tuple(
            Level(group.sigma * factor, shape, self.volume) for group, factor, shape in groups
        )

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
            if self.estimated:
                text += ", varies over the image"
        else:
            values = list(dict.fromkeys(str(levels) for levels in self.noise))
            text = f"sigma {', '.join(values)}"
            if not all(levels.is_white for levels in self.noise):
                text += ", correlated noise"
        if self.rice is not None:
            text += ", Rician noise"
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
    volume : Volume, optional
        Geometry of a volume, which is denoised in three dimensions; None for images.
    units : GreyUnits
        The unit of the user, in which levels are given and reported.
    """

    request: Request
    layout: Layout
    dtype: np.dtype[Any]
    channels: tuple[ResolvedChannel, ...]
    validity: Validity
    invalid: InvalidPixels | None = None
    volume: Volume | None = None
    units: GreyUnits = field(default_factory=GreyUnits)

    @property
    def reported(self) -> tuple[ResolvedChannel, ...]:
        """The channels in the unit of the user."""
        return tuple(channel.in_units(self.units) for channel in self.channels)

    @property
    def result_dtype(self) -> np.dtype[Any]:
        """Type of the grey values of the result."""
        return self.request.result_dtype(self.dtype)

    @property
    def noise(self) -> str:
        """Description of the noise of all channels, one by one if they differ."""
        texts = [str(channel) for channel in self.reported]
        if len(set(texts)) == 1:
            return texts[0]
        return "; ".join(f"{text} in channel {number}" for number, text in enumerate(texts))


def resolve(request: Request, source: Source, sample: Source | None = None) -> ResolvedRequest:
    """Determine noise, grey range and colour space of each channel; estimate what is missing.

    The image is read, once and plane by plane, only if something depends on its values.

    Parameters
    ----------
    request : Request
        What is asked for.
    source : Source
        The image. If there is a sample, its planes are not read.
    sample : Source, optional
        Windows of an image that is too large to read, as planes with the same channels and samples.
        All missing values are estimated from them, and the number of invalid pixels is unknown.

    Raises
    ------
    ValueError
        If the request does not fit the image, or too few pixels are valid to estimate the noise.

    Warns
    -----
    NoiseLevelWarning
        If the noise cannot be estimated well, or a given data range puts the noise level far
        outside the range that the model was trained for.
    NoValidPixelsWarning
        If a plane has no valid pixel.
    VolumeModelWarning
        If the image is a volume, and the parameters of the model were trained on images, or its
        slices are thick.
    """
    layout, request = source.layout, request.stored(source.units)
    _check_map(request.map, layout)
    volume = _volume(request, source)
    if request.noise == "rician" and layout.samples > 1:
        raise ValueError(
            "Rician noise is that of magnitudes, one value at each pixel; this image has "
            f"{layout.samples} samples"
        )
    zero = -source.units.intercept / source.units.slope
    surveys = [
        _Survey(request, source.dtype, layout, number, volume, zero, sampled=sample is not None)
        for number in range(layout.channels)
    ]
    if sample is None:
        invalid = _read(surveys, source)
    else:
        invalid = None
        if any(survey.looks_closer or survey.needs_extremes for survey in surveys):
            _read(surveys, sample)
    varying = [survey.variation() for survey in surveys]
    if len(surveys) == 1 and varying[0] is not None and surveys[0].can_share_a_map:
        request = surveys[0].with_map(layout)
        varying = [None]
    channels = tuple(survey.resolved(channel, layout) for channel, survey in enumerate(surveys))
    _warn_of_void_planes(invalid)
    for number, channel in enumerate(channels):
        which = f" of channel {number + 1}" if len(channels) > 1 else ""
        _warn_outside_training(request, channel, which)
        _warn_of_doubt(channel, which)
        _warn_of_variation(varying[number], source.units.size, which)
    return ResolvedRequest(
        request=request,
        layout=layout,
        dtype=source.dtype,
        channels=channels,
        validity=source.validity,
        invalid=invalid,
        volume=volume,
        units=source.units,
    )


def _volume(request: Request, source: Source) -> Volume | None:
    """Return the geometry of a volume; None for images."""
    layout = source.layout
    given = _distances_of(layout, request.spacing)
    if not layout.is_volume:
        if given is not None and not np.isclose(given["Y"], given["X"], rtol=1e-3):
            raise ValueError(
                "images must have the same spacing of rows and columns, got "
                f"{given['Y']:g} and {given['X']:g}; only volumes may have others"
            )
        return None
    model = request.model
    if model.dimensions != 3:
        warnings.warn(
            "the parameters of this model were trained on images, and blur volumes too much; take "
            "model='iad-plus', or axes with Q in place of Z to denoise slices one by one",
            VolumeModelWarning,
            stacklevel=_outside(),
        )
    try:
        model.evolution(max(model.noise_levels, default=25.0), None, (1.0, 1.0, 1.0))
    except ValueError as error:
        raise ValueError(
            f"this model cannot denoise volumes: {error}. Take model='iad-plus', or axes with Q "
            "in place of Z to denoise slices one by one"
        ) from error
    geometry = volume_of(layout, request.spacing, source.distances)
    z, y, x = geometry.spacing
    if max(z, y, x) > _THICK:
        warnings.warn(
            f"the spacing of this volume is {z:g} : {y:g} : {x:g} (z : y : x). Above {_THICK:g} "
            "diffusion in three dimensions was worse than slice by slice on some data "
            "(docs/volumes.md); take axes with Q in place of Z to denoise slices one by one",
            VolumeModelWarning,
            stacklevel=_outside(),
        )
    return geometry


def checked_spacing(spacing: Sequence[float]) -> Sequence[float]:
    """Return the spacing of voxels; refuse numbers that are not positive."""
    found = sequence_of_numbers("spacing", spacing)
    for distance in found:
        positive_number("spacing", distance)
    return found


def volume_of(
    layout: Layout, spacing: Sequence[float] | None, known: Mapping[str, float]
) -> Volume:
    """Return the geometry of a volume.

    Parameters
    ----------
    layout : Layout
        Its axes.
    spacing : sequence of float, optional
        Distances that were given, in the order of the axes Z, Y and X.
    known : mapping from str to float
        Distances that the image declares, by the letter of the axis.
    """
    distances: Mapping[str, float] = dict.fromkeys("ZYX", 1.0)
    origin = "unknown"
    given = _distances_of(layout, spacing)
    if given is not None:
        distances, origin = given, "given"
    elif set("ZYX") <= set(known):
        distances, origin = known, "file"
    smallest = min(distances[letter] for letter in "ZYX")
    # Files often have spacing in single precision.
    z, y, x = (round(distances[letter] / smallest, 6) for letter in "ZYX")
    return Volume(layout.slices, (z, y, x), origin)


def _distances_of(layout: Layout, spacing: Sequence[float] | None) -> dict[str, float] | None:
    """Return the given spacing as a mapping from the letters of the axes."""
    if spacing is None:
        return None
    letters = [letter for letter in layout.axes if letter in "ZYX"]
    if len(spacing) != len(letters):
        raise ValueError(
            f"spacing needs one number for each of the axes {', '.join(letters)} of the image, in "
            f"this order; got {len(spacing)}. If its pages are slices of a volume, "
            "take axes with Z"
        )
    return dict(zip(letters, spacing, strict=True))


def _stored_detector(noise: Noise, units: GreyUnits) -> Noise:
    """Convert the detector to stored values; a completely unknown one is returned unchanged."""
    slope, zero = 1 / units.slope, -units.intercept / units.slope
    if noise == "poisson":
        noise = PoissonGaussian()
    if isinstance(noise, PoissonGaussian):
        return noise.in_units(slope, zero)
    if isinstance(noise, UnknownDetector) and noise.offset is not None:
        return UnknownDetector(offset=noise.offset * slope + zero)
    return noise


def computing_dtype(dtype: np.dtype[Any]) -> np.dtype[Any]:
    """Return float32 if it represents all values of a dtype exactly, else float64."""
    exact_in_float32 = dtype.itemsize <= 2 or (dtype.kind == "f" and dtype.itemsize <= 4)
    return np.dtype(np.float32 if exact_in_float32 else np.float64)


class _Survey:
    """Collects from the planes of one channel what the request leaves open."""

    def __init__(
        self,
        request: Request,
        dtype: np.dtype[Any],
        layout: Layout,
        number: int,
        volume: Volume | None,
        zero: float,
        *,
        sampled: bool = False,
    ) -> None:
        self._request, self._dtype, self._volume, self._zero = request, dtype, volume, zero
        self._sampled = sampled
        self._is_rician = request.noise == "rician"
        self._colour = request.colour
        given = _given_noise(request, layout, number, request.map)
        if given is not None:
            sigmas = np.array([levels.effective for levels in given])
            self._colour = colour_for(request.colour, sigmas)
        self._matrix = sample_matrix(self._colour, layout.samples)
        # Where voxels are valid, for a map of a volume.
        self._voxels: Mask | None = None
        self._has_voxels = False
        self._volume_shape = (layout.slices, *layout.size)
        if np.ndim(request.sigma) == 3 and not sampled:  # type: ignore[arg-type]
            self._has_voxels = True
        self.needs_extremes = request.noise != "gaussian"
        self.looks_closer = request.estimates or request.data_range is None
        self._extremes: list[NDArray[Any]] = []
        self._kept: list[tuple[Array, Mask | None]] = []
        self._like: Array | None = None
        self._seen: list[list[_Seen]] = []
        self._originals: list[list[_Seen]] = []
        self._mask: Mask | None = None
        self._union: Mask | None = None
        self._has_whole_planes = False
        self._chosen = ChosenPlanes(layout.plane_count // layout.channels)
        # The sample of a large image does not show it as a whole, nor do slices a volume.
        self._locates = (
            request.estimates and request.noise == "gaussian" and volume is None and not sampled
        )

    def look_at(self, plane: Array, mask: Mask | None, slice_: int) -> None:
        """Record what is needed of a plane, and of some planes noise and structure."""
        self._record(mask)
        if self._has_voxels:
            xp = namespace(plane)
            if self._voxels is None:
                device = {} if is_numpy(plane) else {"device": plane.device}
                self._voxels = xp.zeros(self._volume_shape, dtype=xp.bool, **device)
            self._voxels[slice_] |= True if mask is None else mask
        wanted = self._chosen.wants_next() and self.looks_closer
        if mask is not None and not mask.any():
            return
        if self.needs_extremes:
            values = plane if mask is None else plane[mask]
            if not is_numpy(values):  # PyTorch has no extremes of some integers
                values = in_dtype_of(values, computing_dtype(self._dtype))
            ends = [values.min(), values.max()]
            found = ends if is_numpy(values) else [float(end) for end in ends]
            self._extremes.append(np.array(found, self._dtype))
        # A plane with too few valid pixels is replaced by a later one.
        if wanted and (mask is None or self._is_enough(mask)):
            self._chosen.take()
            self._look_closer_at(plane, mask)

    def _record(self, mask: Mask | None) -> None:
        """Remember where pixels are valid: in one plane with invalid ones, and in any plane."""
        if mask is None:
            self._has_whole_planes = True
            return
        if self._mask is None and mask.any() and not self._sampled:
            self._mask = mask
        if not self._sampled:
            self._union = mask if self._union is None else self._union | mask

    @property
    def _is_void(self) -> bool:
        """Whether no plane has a valid pixel; False for a sample, which cannot tell."""
        if self._sampled:
            return False
        return not self._has_whole_planes and self._union is not None and not self._union.any()

    @property
    def _keeps(self) -> bool:
        """Whether planes are kept until the detector, or the level of Rician noise, is known."""
        return self._is_rician or (self._request.noise != "gaussian" and self._request.estimates)

    def _is_enough(self, mask: Mask) -> bool:
        """Whether enough pixels of a plane are valid for what is to be estimated."""
        if not self._request.estimates:
            return True
        patches = self._keeps and not self._is_rician
        return has_enough_patches(mask) if patches else has_enough_tiles(mask)

    def _look_closer_at(self, plane: Array, mask: Mask | None) -> None:
        """Measure noise and structure of a plane, or keep it until the detector is known."""
        if self._keeps:
            self._kept.append((_kept(plane), mask))
        else:
            self._measure(plane, mask, _known_detector(self._request.noise))

    def _measure(
        self, plane: Array, mask: Mask | None, photons: PoissonGaussian | Rician | None
    ) -> None:
        """Measure the structure of the new samples of a plane and, if asked for, the noise."""
        estimates = self._request.estimates and not isinstance(photons, PoissonGaussian)
        seen = _view_of(plane, mask, photons)
        if estimates and not self._is_identity:
            samples = np.eye(len(self._matrix))
            self._originals.append(
                [seen.measured(row, estimates=True, locates=self._locates) for row in samples]
            )
        locates = self._locates and self._is_identity
        self._like = plane
        self._seen.append(
            [seen.measured(row, estimates=estimates, locates=locates) for row in self._matrix]
        )

    def variation(self) -> tuple[float, float] | None:
        """Return a low and a high noise level if it clearly varies over the image."""
        rows = self._seen if self._is_identity else self._originals
        if not self._locates or not rows:
            return None
        # Of correlated noise or after compression levels are not compared between parts.
        if not all(levels.is_white for levels in _typical(rows)):
            return None
        planes = [joined_local_levels([seen.cells for seen in row]) for row in rows]
        found = typical_local_levels(planes)
        return None if found is None else found.variation

    @property
    def can_share_a_map(self) -> bool:
        """Whether the noise of all samples is about the same and independent."""
        if len(self._matrix) == 1:
            return True
        rows = self._seen if self._is_identity else self._originals
        samples = [
            typical_local_levels([seen.cells for seen in column])
            for column in zip(*rows, strict=True)
        ]
        known = [cells for cells in samples if cells is not None]
        if len(known) < len(samples) or not are_alike(known):
            return False
        if self._is_identity:
            return True
        sigmas = np.array([levels.effective for levels in _typical(rows)])
        computed = new_levels(self._colour, sigmas)
        measured = np.array([levels.effective for levels in _typical(self._seen)])
        more, less = measured / computed < _DEPENDENT, computed < _DEPENDENT * measured
        return bool((more & less).all())

    def with_map(self, layout: Layout) -> Request:
        """Take a map of the noise in place of one level; return the request that has it."""
        rows = self._seen if self._is_identity else self._originals
        tiles = [[seen.tiles for seen in row] for row in rows]
        levels = map_of_tiles(tiles, layout.size, self._like)
        self._request = replace(self._request, sigma=levels, map_is_estimated=True)
        return self._request

    def resolved(self, number: int, layout: Layout) -> ResolvedChannel:
        """Return the resolved channel; ``number`` is its index."""
        request = self._request
        if self._is_void:
            return self._unchanged(layout)
        if request.estimates and not self._seen and not self._kept:
            patches = self._keeps and not self._is_rician
            raise ValueError(too_few_patches() if patches else too_few_tiles())
        photons, levels = self._photons(), self._map()
        given = _given_noise(request, layout, number, levels)
        if photons is not None:
            self._look_again(photons)
            given = (white(1.0),) * layout.samples
        rice = self._rice(given) if self._is_rician else None
        if rice is not None and given is None:
            # Whether noise is correlated shows after stabilisation, its level better before.
            measured = typical_levels([seen.noise for (seen,) in self._seen])
            level = measured.sigma
            given = (measured.times(rice.sigma / level) if level else white(rice.sigma),)
        noise, new = self._noise(given)
        space = colour_space(self._colour, np.array([levels.effective for levels in new]))
        return ResolvedChannel(
            noise=noise,
            photons=photons,
            map=levels,
            estimated=request.estimates or request.map_is_estimated,
            space=space,
            scaling=tuple(self._factor(group, new, photons) for group in space.groups),
            shapes=tuple(joined_levels([new[n] for n in group.rows]) for group in space.groups),
            mask=self._mask,
            volume=self._volume,
            rice=rice,
        )

    def _rice(self, given: tuple[NoiseLevels, ...] | None) -> Rician:
        """Return Rician noise, given or estimated; measure the planes that were kept."""
        _warn_of_negative_magnitudes(self._zero, self._extremes)
        if given is None:
            found = [_rician_level(plane, mask, self._zero) for plane, mask in self._kept]
            sigma = float(np.median(found))
        else:
            sigma = given[0].sigma
        rice = Rician(sigma=sigma, zero=self._zero)
        for plane, mask in self._kept:
            self._measure(plane, mask, rice)
        return rice

    def _unchanged(self, layout: Layout) -> ResolvedChannel:
        """Return a channel without a valid pixel, which has no noise to be removed."""
        return ResolvedChannel(
            noise=(white(0.0),) * layout.samples,
            photons=None,
            map=None,
            estimated=False,
            space=colour_space(self._request.colour, np.zeros(layout.samples)),
            scaling=(),
            shapes=(),
        )

    def _map(self) -> NoiseMap | None:
        """Return the map of noise levels; pixels that are invalid in all planes do not count."""
        request = self._request
        if request.map is None or self._sampled:
            return request.map
        levels = _levels_array(request.sigma)
        if self._voxels is not None and self._union is not None:
            return noise_map(levels, self._voxels)
        if self._union is None or self._has_whole_planes:
            return noise_map(levels)
        return noise_map(levels, self._union)

    def _noise(
        self, given: tuple[NoiseLevels, ...] | None
    ) -> tuple[tuple[NoiseLevels, ...], list[NoiseLevels]]:
        """Return the noise of the samples, and of the new ones in the colour space."""
        if given is not None:
            sigmas = np.array([levels.effective for levels in given])
            levels = new_levels(self._colour, sigmas)
            return given, [_at_least(white(0.0), float(level), given[0]) for level in levels]
        new = _typical(self._seen)
        if self._is_identity:
            return tuple(new), new
        # Noise of colour samples may depend on each other, as after demosaicing; so that of the
        # new samples was measured and not computed. But compression removes all but the lowest
        # frequencies of colour differences, where noise cannot be told from structure.
        originals = tuple(_typical(self._originals))
        sigmas = np.array([levels.effective for levels in originals])
        self._colour = colour_for(self._colour, sigmas)
        if self._colour == "joint":
            self._matrix, self._seen = np.eye(len(originals)), self._originals
            return originals, list(originals)
        samples, new = without_texture(originals, new)
        computed = new_levels(self._colour, np.array([levels.effective for levels in samples]))
        originals, shape = tuple(samples), samples[0]
        found = [_at_least(found, level, shape) for found, level in zip(new, computed, strict=True)]
        # Whatever samples have in common, a sum has no more noise than if they were all alike.
        most = np.abs(self._matrix) @ [levels.effective for levels in originals]
        return originals, [_at_most(levels, most[n]) for n, levels in enumerate(found)]

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
            for number in group.rows
        ]
        if not ratios:
            raise ValueError(
                "no window of this large image has enough valid pixels to find the scale of its "
                "grey values; give data_range"
            )
        level = operating_level(float(np.mean(ratios)), request.model.noise_levels)
        return level / group.sigma

    def _look_again(self, photons: PoissonGaussian) -> None:
        """Compare the detector with the values, and measure the planes that were kept."""
        extremes = np.concatenate(self._extremes or [np.zeros(1, self._dtype)])
        _warn_of_impossible_counts(photons, extremes)
        if self._request.data_range is None:
            for plane, mask in self._kept:
                self._measure(plane, mask, photons)

    def _photons(self) -> PoissonGaussian | None:
        """Return the detector, given or estimated, or None if the noise is Gaussian."""
        noise = self._request.noise
        if noise in ("gaussian", "rician") or not self._request.estimates:
            return _known_detector(noise)
        # All samples and planes of a channel are assumed to have the same noise.
        offset = noise.offset if isinstance(noise, UnknownDetector) else None
        images = [(sample, mask) for plane, mask in self._kept for sample in samples_of(plane)]
        return detector_of(images, offset)


def _levels_array(levels: Any) -> Array:
    """Return a map of noise levels as an array, on its own device."""
    return levels if library_of(levels) is not None else np.asarray(levels)


def _kept(plane: Array) -> Array:
    """Return a plane to keep for later; copy a NumPy plane, whose memory a reader may reuse."""
    return np.array(plane) if is_numpy(plane) else plane


def _rician_level(plane: Array, mask: Mask | None, zero: float) -> float:
    """Estimate the level of Rician noise from the flattest parts of a plane."""
    glimpse = glimpse_of(plane, mask)
    tiles = None if glimpse is None else glimpse.measured()
    levels = estimate_levels(plane, tiles, mask)
    flat = None if tiles is None else tiles.noise()
    return levels.sigma if flat is None else level_of(flat.mean - zero, levels.sigma)


class _Seen(NamedTuple):
    """Measurements of one sample of a plane; local noise levels only if the noise is white."""

    noise: NoiseLevels
    energies: NDArray[np.float64]
    unit: float
    cells: LocalLevels | None = None
    tiles: Tiles | None = None


class _View(NamedTuple):
    """A plane as it is measured: its valid pixels, after stabilisation.

    Attributes
    ----------
    plane : array
        Its grey values.
    mask : array of bool, optional
        Which of them are valid.
    photons : PoissonGaussian or Rician, optional
        The detector, if they are to be stabilised.
    glimpse : Glimpse, optional
        The pixels that are looked at, stabilised, if any tile is valid.
    """

    plane: Array
    mask: Mask | None
    photons: PoissonGaussian | Rician | None
    glimpse: Glimpse | None

    def measured(
        self, weights: NDArray[np.float64], *, estimates: bool, locates: bool = False
    ) -> _Seen:
        """Measure the structure of a sum of samples and, if asked for, its noise, and where it is.

        Compression removes noise from some parts of an image and not from others.
        """
        tiles = None if self.glimpse is None else self.glimpse.mixed(weights).measured()
        noise = estimate_levels(self.plane, tiles, self.mask) if estimates else white(0.0)
        if tiles is not None:
            locates &= noise.is_white and not tiles.compressed
            if not locates:
                return _Seen(noise, tiles.energies, tiles.unit)
            cells = local_levels(tiles, tuple(self.plane.shape[:2]))
            return _Seen(noise, tiles.energies, tiles.unit, cells, tiles)
        return _Seen(noise, *self._overall_variance(weights))

    def _overall_variance(self, weights: NDArray[np.float64]) -> tuple[NDArray[np.float64], float]:
        """Return the variance of all pixels, over the square of a unit, and the unit."""
        ends = [(float(part.min()), float(part.max())) for part in self._values(weights)]
        lowest, highest = min(end[0] for end in ends), max(end[1] for end in ends)
        span = highest - lowest
        if span == 0:
            return np.zeros(1), 1.0
        count, total, squares = 0, 0.0, 0.0
        for part in self._values(weights):
            part = (part - lowest) / span
            count += part.shape[0]
            total += float(part.sum())
            squares += float((part * part).sum())
        return np.array([max(squares / count - (total / count) ** 2, 0.0)]), span

    def _values(self, weights: NDArray[np.float64]) -> Iterator[Array]:
        """Iterate over the valid pixels in bands of rows."""
        pixels = _BAND_PIXELS if is_numpy(self.plane) else _BAND_ON_DEVICE
        rows = max(1, pixels // self.plane.shape[1])
        for first in range(0, len(self.plane), rows):
            band = self.plane[first : first + rows]
            band = band[..., None] if band.ndim == 2 else band
            valid = None if self.mask is None else self.mask[first : first + rows]
            values = band.reshape(-1, band.shape[-1]) if valid is None else band[valid]
            if len(values):
                values = in_dtype_of(_stabilised(values, self.photons), np.dtype(np.float64))
                yield values @ made_like(weights, values)


def _view_of(plane: Array, mask: Mask | None, photons: PoissonGaussian | Rician | None) -> _View:
    """Look at a plane."""
    glimpse = glimpse_of(plane, mask)
    if glimpse is not None:
        glimpse = glimpse.mapped(lambda values: _stabilised(values, photons))
    return _View(plane, mask, photons, glimpse)


def _stabilised(values: Array, photons: PoissonGaussian | Rician | None) -> Array:
    """Return values whose noise does not depend on the signal, if a detector is given."""
    if photons is None:
        return values
    return photons.stabilise(in_dtype_of(values, computing_dtype(dtype_of(values))))


def _typical(rows: list[list[_Seen]]) -> list[NoiseLevels]:
    """Return the typical noise of each sample over the planes that were measured."""
    return [typical_levels([seen.noise for seen in column]) for column in zip(*rows, strict=True)]


def _at_least(found: NoiseLevels, level: float, shape: NoiseLevels) -> NoiseLevels:
    """Return the noise found, or noise of this level and shape if that is stronger."""
    if found.effective >= level:
        return found
    return white(level) if shape.is_white else shape.times(level / shape.effective)


def _at_most(found: NoiseLevels, level: float) -> NoiseLevels:
    """Return the noise found, with its level reduced to at most this one."""
    return found if found.effective <= level else found.times(level / found.effective)


def _known_detector(noise: Noise) -> PoissonGaussian | None:
    """Return the detector if it need not be estimated."""
    if noise == "poisson":
        return PoissonGaussian()
    return noise if isinstance(noise, PoissonGaussian) else None


def _read(surveys: list[_Survey], source: Source) -> InvalidPixels | None:
    """Pass the planes of an image to the surveys of their channels, if any needs them.

    Return the number of invalid pixels, or None if there are none.
    """
    layout, validity = source.layout, source.validity
    masked = validity.may_exclude(source.dtype)
    if not masked and not any(survey.looks_closer or survey.needs_extremes for survey in surveys):
        return None
    invalid: list[int] = []
    reasons: dict[str, None] = {}
    for number, plane in enumerate(source.planes()):
        channel = layout.channel_of(number)
        mask = validity.of(plane, number) if masked else None
        invalid.append(0 if mask is None else layout.pixels - int(mask.sum()))
        if mask is not None:
            reasons |= dict.fromkeys(validity.reasons(plane, number))
        slice_ = number // layout.planes_between_slices % layout.slices
        surveys[channel].look_at(plane, mask, slice_)
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


def _warn_of_negative_magnitudes(zero: float, extremes: list[NDArray[Any]]) -> None:
    """Warn of grey values that are no magnitudes."""
    lowest = min((float(ends.min()) for ends in extremes), default=zero)
    if lowest < zero:
        warnings.warn(
            f"Rician noise is that of magnitudes, and this image has values down to {lowest:g}, "
            "which count as zero; use Gaussian noise if they are none",
            NoiseLevelWarning,
            stacklevel=_outside(),
        )


def _given_noise(
    request: Request, layout: Layout, channel: int, found: NoiseMap | None
) -> tuple[NoiseLevels, ...] | None:
    """Return the noise of each sample of a channel, or None if not given."""
    if request.levels is not None:
        return (request.levels,) * layout.samples
    if request.sigma is None or isinstance(request.sigma, Mapping):
        return None
    return tuple(white(float(sigma)) for sigma in _given_sigmas(request, layout, channel, found))


def _given_sigmas(
    request: Request, layout: Layout, channel: int, found: NoiseMap | None
) -> NDArray[np.float64]:
    """Return the noise level of each sample of a channel."""
    sigma: Any = request.sigma
    samples = layout.samples
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
    shape = tuple(found.relative.shape)
    if shape == layout.size:
        return
    height, width = layout.size
    slices = f"{layout.slices} slices, " if layout.is_volume else ""
    if layout.is_volume and found.relative.ndim == 3:
        if layout.axes.index("Y") < layout.axes.index("Z"):
            raise ValueError(
                "a map of noise levels needs a volume with Z before Y and X, got the axes "
                f"{layout.axes}; transpose both"
            )
        if shape == (layout.slices, height, width):
            return
    raise ValueError(
        f"the map of noise levels has the shape {shape}, and the image has "
        f"{slices}{height} rows and {width} columns"
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


def _warn_of_variation(found: tuple[float, float] | None, unit: float, which: str) -> None:
    """Warn if the noise varies, but no map of it is used."""
    if found is None:
        return
    low, high = (unit * level for level in found)
    warnings.warn(
        f"the noise level{which} varies over the image, about from {low:.3g} to {high:.3g}, and "
        "one level is used, that of its quietest part; give sigma as a map, of channels one by one",
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
