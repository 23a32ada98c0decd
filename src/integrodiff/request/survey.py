"""Collect from the planes of a channel what a request leaves open."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from integrodiff.colour import Group, colour_for, colour_space, new_levels, sample_matrix
from integrodiff.grey_range import operating_level, stabilised_range, structure_over_noise
from integrodiff.layout import Layout
from integrodiff.namespaces import Array, in_dtype_of, is_numpy, namespace, samples_of
from integrodiff.noise.level import (
    ChosenPlanes,
    detector_of,
    has_enough_patches,
    has_enough_tiles,
    too_few_patches,
    too_few_tiles,
)
from integrodiff.noise.levels import (
    NoiseLevels,
    joined_levels,
    typical_levels,
    white,
    without_texture,
)
from integrodiff.noise.maps import NoiseMap, noise_map
from integrodiff.noise.photons import PoissonGaussian, UnknownDetector
from integrodiff.noise.rice import Rician
from integrodiff.noise.variation import (
    are_alike,
    joined_local_levels,
    map_of_tiles,
    typical_local_levels,
)
from integrodiff.request.arguments import Request, Source, computing_dtype, kept, levels_array
from integrodiff.request.given import given_noise, known_detector
from integrodiff.request.measured import Seen, rician_level, view_of
from integrodiff.request.resolved import ResolvedChannel
from integrodiff.request.volumes import Volume
from integrodiff.request.warn import warn_of_impossible_counts, warn_of_negative_magnitudes
from integrodiff.validity import Mask

_DEPENDENT = 1.2
"""Ratio of levels of a sum of samples that are not explained if these are independent."""


class Survey:
    """Collects from the planes of one channel what the request leaves open.

    Parameters
    ----------
    request : Request
        In the unit of the stored values.
    source : Source
        The image; its planes are not read here.
    number : int
        Index of the channel.
    volume : Volume, optional
        Geometry, if the channel is a volume.
    planes : int
        Number of planes of the channel that will be looked at: its own, or the windows of a sample.
    sampled : bool
        Whether these are windows of a sample.
    """

    def __init__(
        self,
        request: Request,
        source: Source,
        number: int,
        volume: Volume | None,
        planes: int,
        *,
        sampled: bool = False,
    ) -> None:
        layout, self._units = source.layout, source.units
        self._request, self._dtype, self._volume = request, source.dtype, volume
        self._zero = -source.units.intercept / source.units.slope
        self._sampled = sampled
        self._is_rician = request.noise == "rician"
        self._colour = request.colour
        given = given_noise(request, layout, number, request.map)
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
        self._seen: list[list[Seen]] = []
        self._originals: list[list[Seen]] = []
        self._mask: Mask | None = None
        self._union: Mask | None = None
        self._has_whole_planes = False
        self._chosen = ChosenPlanes(planes)
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
            self._kept.append((kept(plane), mask))
        else:
            self._measure(plane, mask, known_detector(self._request.noise))

    def _measure(
        self, plane: Array, mask: Mask | None, photons: PoissonGaussian | Rician | None
    ) -> None:
        """Measure the structure of the new samples of a plane and, if asked for, the noise."""
        estimates = self._request.estimates and not isinstance(photons, PoissonGaussian)
        seen = view_of(plane, mask, photons)
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
        given = given_noise(request, layout, number, levels)
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
        warn_of_negative_magnitudes(self._extremes, self._units)
        if given is None:
            found = [rician_level(plane, mask, self._zero) for plane, mask in self._kept]
            # As in typical_levels, blank planes do not count.
            sigma = float(np.median([level for level in found if level > 0] or [0.0]))
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
        levels = levels_array(request.sigma)
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
        warn_of_impossible_counts(photons, extremes, self._units)
        if self._request.data_range is None:
            for plane, mask in self._kept:
                self._measure(plane, mask, photons)

    def _photons(self) -> PoissonGaussian | None:
        """Return the detector, given or estimated, or None if the noise is Gaussian."""
        noise = self._request.noise
        if noise in ("gaussian", "rician") or not self._request.estimates:
            return known_detector(noise)
        # All samples and planes of a channel are assumed to have the same noise.
        offset = noise.offset if isinstance(noise, UnknownDetector) else None
        images = [(sample, mask) for plane, mask in self._kept for sample in samples_of(plane)]
        return detector_of(images, offset)


def _typical(rows: list[list[Seen]]) -> list[NoiseLevels]:
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
