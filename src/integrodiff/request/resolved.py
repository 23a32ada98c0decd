"""What a request means for one image: everything determined."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from integrodiff.colour import ColourSpace
from integrodiff.layout import Layout
from integrodiff.models import Model
from integrodiff.noise.levels import NoiseLevels
from integrodiff.noise.maps import NoiseMap
from integrodiff.noise.photons import PoissonGaussian
from integrodiff.noise.rice import Rician
from integrodiff.request.arguments import Request
from integrodiff.request.volumes import Volume
from integrodiff.stages import Evolution
from integrodiff.units import GreyUnits
from integrodiff.validity import Mask, Validity


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
        The request in the unit of the stored values, with the map of the noise if one was
        estimated.
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
