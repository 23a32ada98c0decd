"""The arguments of a request, which are checked at once, and the interface of an image."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal, Protocol, TypeAlias

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
from integrodiff.colour import COLOURS, Colour
from integrodiff.layout import Layout
from integrodiff.models import Model
from integrodiff.namespaces import Array, is_numpy, library_of, namespace
from integrodiff.noise.level import ChosenPlanes, has_enough_tiles, too_few_tiles
from integrodiff.noise.levels import NoiseLevels, given_levels, levels_of_spectrum
from integrodiff.noise.maps import NoiseMap, noise_map
from integrodiff.noise.photons import PoissonGaussian, UnknownDetector
from integrodiff.noise.variation import estimated_map
from integrodiff.units import GreyUnits
from integrodiff.validity import Validity

Noise: TypeAlias = (
    Literal["gaussian", "poisson", "poisson-gaussian", "rician"] | PoissonGaussian | UnknownDetector
)
NOISES = ("gaussian", "poisson", "poisson-gaussian", "rician")
MAP = "map"
"""Asks for a map of noise levels in place of ``sigma``."""

Sigma: TypeAlias = float | Sequence[float] | Mapping[float, float] | NDArray[Any] | str | None


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
            levels = levels_array(self.sigma)
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
                planes.append(kept(plane))
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
        of_each_sample = levels == (4,) and "C" not in layout.axes
        return self.colour in ("auto", "opponent") and layout.samples == 4 and not of_each_sample

    def result_dtype(self, dtype: np.dtype[Any]) -> np.dtype[Any]:
        """Return the dtype of the result for an image of the given dtype."""
        return computing_dtype(dtype) if self.as_float and dtype.kind != "f" else dtype


def checked_spacing(spacing: Sequence[float]) -> Sequence[float]:
    """Return the spacing of voxels; refuse numbers that are not positive."""
    found = sequence_of_numbers("spacing", spacing)
    for distance in found:
        positive_number("spacing", distance)
    return found


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


def levels_array(levels: Any) -> Array:
    """Return a map of noise levels as an array, on its own device."""
    return levels if library_of(levels) is not None else np.asarray(levels)


def kept(plane: Array) -> Array:
    """Return a plane to keep for later; copy a NumPy plane, whose memory a reader may reuse."""
    return np.array(plane) if is_numpy(plane) else plane
