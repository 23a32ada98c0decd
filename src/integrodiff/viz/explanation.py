"""Structure tensor, diffusivities and intermediate images of a model on one image or volume.

All of them are computed by the stages, see :mod:`integrodiff.stages.step`. Of a volume, three
orthogonal planes through a point are kept.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import islice
from math import ceil
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from integrodiff._denoise import Denoiser
from integrodiff.engines import Process, get_engine
from integrodiff.layout import Layout
from integrodiff.models import Model
from integrodiff.request import Level, ResolvedChannel, Source
from integrodiff.stages import (
    DerivativeOperator,
    Domain,
    Evolution,
    HaarGradient,
    Sensitivity,
    SymmetricTensor,
    Term,
    VolumeTensor,
    blur,
    cascade,
    coupling_field,
    sensitivity,
)
from integrodiff.units import GreyUnits
from integrodiff.validity import Mask, Validity
from integrodiff.viz.orthogonal import MOSAIC, PLANES, Places, Point, normal_of
from integrodiff.viz.view import GREY_LEVELS, Selection, upright

Floats: TypeAlias = NDArray[np.float64]

NOISE_LEVELS = "standard deviations of the noise"
"""The unit of photon counts after stabilisation."""

_DEVIATIONS, _TAIL = 6, 4
"""Distance, in scales of a blur and in voxels, beyond which voxels do not count.

Discrete Gaussians of small scales have longer tails than Gaussians.
"""


@dataclass(frozen=True, kw_only=True, eq=False)
class Structure:
    """Strength, coherence and orientation of the multiscale structure tensor.

    Attributes
    ----------
    strength : ndarray
        Square root of the larger eigenvalue: the gradient across structures, in grey levels per
        pixel.
    coherence : ndarray
        Difference of the eigenvalues over their sum, from 0 (no direction: flat regions and
        corners) to 1 (one direction: a straight edge or line).
    orientation : ndarray
        Direction along structures, from 0 to pi: 0 is horizontal, and pi / 2 vertical.
    known : array of bool, optional
        False where an invalid pixel is too close to tell; None if it is nowhere.
    """

    strength: Floats
    coherence: Floats
    orientation: Floats
    known: Mask | None = None


@dataclass(frozen=True, kw_only=True, eq=False)
class VolumeStructure(Structure):
    """The 3 x 3 structure tensor of a volume in one plane.

    ``strength`` is the square root of its largest eigenvalue, ``coherence`` and ``orientation``
    are those of the tensor restricted to the plane: the direction in the plane along which grey
    values change least.

    Attributes
    ----------
    surface, line : ndarray
        Differences of successive eigenvalues over the largest one: near one where grey values
        change in one direction (a surface), or in two alike (a line); both are near zero where
        they change in all directions.
    across : ndarray
        Unit vector (x, y, z) of the largest eigenvalue, across structures, along the last axis;
        its sign has no meaning.
    """

    surface: Floats
    line: Floats
    across: Floats


@dataclass(frozen=True, kw_only=True, eq=False)
class Diffusivity:
    """Diffusivity of a term at one scale, from 0 (no flow) to 1 (free flow).

    Attributes
    ----------
    order : int
        Order of the derivatives.
    scale, contrast, weight : float
        Smoothing scale in pixels, contrast parameter, and weight of the flux.
    across, along : ndarray
        Diffusivity across and along structures; equal for isotropic terms.
    known : array of bool, optional
        As in :class:`Structure`.
    """

    order: int
    scale: float
    contrast: float
    weight: float
    across: Floats
    along: Floats
    known: Mask | None = None


@dataclass(frozen=True, kw_only=True, eq=False)
class Explanation:
    """Data for the picture of ``integrodiff explain``, all in one unit of grey values.

    Attributes
    ----------
    sigma : float
        The noise level.
    evolution : Evolution
        The process.
    images : list of ndarray
        The image before the first step and after each step; the mean of several channels.
    step : int
        Number of steps before structure and diffusivities were computed.
    structure : Structure
        Structure of the image at that step.
    diffusivities : list of Diffusivity
        One for every term and every scale at which it has a flux.
    mask : array of bool, optional
        True at valid pixels; None if all are.
    unit : str
        Unit of the grey values.
    """

    sigma: float
    evolution: Evolution
    images: list[Floats]
    step: int
    structure: Structure
    diffusivities: list[Diffusivity]
    mask: Mask | None = None
    unit: str = GREY_LEVELS

    @property
    def removed(self) -> list[float]:
        """Standard deviation of the removed part, before the first step and after each."""
        return [float((image - self.images[0])[self._valid].std()) for image in self.images]

    @property
    def changes(self) -> list[float]:
        """Root mean square change of each step."""
        pairs = zip(self.images[1:], self.images[:-1], strict=True)
        found = [(after - before)[self._valid] for after, before in pairs]
        return [float(np.sqrt(np.mean(change**2))) for change in found]

    @property
    def _valid(self) -> Any:
        return ... if self.mask is None else self.mask

    def scaled(self, factor: float, offset: float, unit: str) -> Explanation:
        """Return the explanation in another unit: grey values times a factor, plus an offset."""
        by = abs(factor)
        return replace(
            self,
            sigma=by * self.sigma,
            images=[factor * image + offset for image in self.images],
            structure=replace(self.structure, strength=by * self.structure.strength),
            diffusivities=[
                replace(item, contrast=by * item.contrast) for item in self.diffusivities
            ],
            unit=unit,
        )


@dataclass(frozen=True, kw_only=True, eq=False)
class VolumeExplanation:
    """The explanation of a volume: three planes, and numbers of the whole.

    Attributes
    ----------
    planes : tuple of Explanation
        One for each plane of :data:`.MOSAIC`; their structure is a :class:`VolumeStructure`.
    where : Places
        The point.
    spacing : (float, float, float)
        Distance of slices, rows and columns.
    removed : list of float
        Standard deviation of the removed part of the whole volume, before the first step and after
        each.
    changes : list of float
        Root mean square change of the whole volume in each step.
    """

    planes: tuple[Explanation, ...]
    where: Places
    spacing: tuple[float, ...]
    removed: list[float]
    changes: list[float]

    @property
    def sigma(self) -> float:
        """The noise level."""
        return self.planes[0].sigma

    @property
    def unit(self) -> str:
        """Unit of the grey values."""
        return self.planes[0].unit

    @property
    def step(self) -> int:
        """Number of steps before structure and diffusivities were computed."""
        return self.planes[0].step

    def at_level(self, sigma: float) -> VolumeExplanation:
        """Return the explanation with another noise level."""
        return replace(self, planes=tuple(replace(plane, sigma=sigma) for plane in self.planes))

    def scaled(self, factor: float, offset: float, unit: str) -> VolumeExplanation:
        """Return the explanation in another unit: grey values times a factor, plus an offset."""
        by = abs(factor)
        return replace(
            self,
            planes=tuple(plane.scaled(factor, offset, unit) for plane in self.planes),
            removed=[by * value for value in self.removed],
            changes=[by * value for value in self.changes],
        )


@dataclass(frozen=True, eq=False)
class ChannelOf:
    """The planes of one channel of an image, or of one of its samples.

    Noise and scale of a channel do not depend on others, so that these planes are denoised as they
    are in the whole image.

    Attributes
    ----------
    source : Source
        The image.
    plane : int
        Number of one plane of the channel among all planes of the image.
    sample : int, optional
        The only sample that counts; None for all.
    """

    source: Source
    plane: int
    sample: int | None = None

    @property
    def _numbers(self) -> list[int]:
        layout = self.source.layout
        channel = layout.channel_of(self.plane)
        return [n for n in range(layout.plane_count) if layout.channel_of(n) == channel]

    @property
    def number(self) -> int:
        """Number of the plane among those of its channel."""
        return self._numbers.index(self.plane)

    def numbers_of(self, planes: Sequence[int]) -> list[int]:
        """Return the numbers of planes among those of the channel."""
        found = {number: index for index, number in enumerate(self._numbers)}
        return [found[number] for number in planes]

    @property
    def layout(self) -> Layout:
        """Axes and shape."""
        layout = self.source.layout
        layout = layout if self.sample is None else layout.without_samples
        pairs = [pair for pair in zip(layout.axes, layout.shape, strict=True) if pair[0] != "C"]
        return Layout("".join(letter for letter, _ in pairs), tuple(size for _, size in pairs))

    @property
    def distances(self) -> Mapping[str, float]:
        """Distances of neighbours."""
        return self.source.distances

    @property
    def units(self) -> GreyUnits:
        """The unit of what is given and reported."""
        return self.source.units

    @property
    def dtype(self) -> np.dtype[Any]:
        """Type of the grey values."""
        return self.source.dtype

    @property
    def validity(self) -> Validity:
        """Which pixels are valid."""
        validity, numbers = self.source.validity, self._numbers
        masks = tuple([each[number] for number in numbers] for each in validity.masks)
        return replace(validity, masks=masks)

    def planes(self) -> Iterator[NDArray[Any]]:
        """Iterate over the planes in order."""
        wanted = set(self._numbers)
        for number, plane in enumerate(self.source.planes()):
            if number in wanted:
                yield plane if self.sample is None else plane[..., self.sample]


@dataclass(frozen=True, kw_only=True, eq=False)
class Explained:
    """The explanation of a plane or volume, and what is known of its noise.

    Attributes
    ----------
    explanation : Explanation or VolumeExplanation
        In the grey values of the image.
    channel : ResolvedChannel
        Noise and colour space.
    slope : float
        Factor from grey values of the image to those of the explanation.
    """

    explanation: Explanation | VolumeExplanation
    channel: ResolvedChannel
    slope: float = 1.0

    @property
    def noise(self) -> str:
        """The noise level in words."""
        found, channel = self.explanation, self.channel
        level = f"{found.sigma:.4g} {found.unit}"
        if len(channel.noise) > 1 and channel.photons is None:
            which = "luminance" if len(channel.space.groups) > 1 else "mean sample"
            each = ", ".join(dict.fromkeys(f"{sigma * self.slope:.4g}" for sigma in channel.sigmas))
            level += f" of the {which} ({each} of its samples)"
        kind = "" if channel.shapes[0].is_white else ", correlated noise"
        return f"noise level {level}{kind}{' (estimated)' if channel.estimated else ''}"

    @property
    def geometry(self) -> str:
        """Which spacing a volume has, in words; empty for images."""
        return "" if self.channel.volume is None else str(self.channel.volume)

    def in_unit(self, unit: str, slope: float = 1.0, intercept: float = 0.0) -> Explained:
        """Return it with grey values scaled to a unit; stabilised counts have their own."""
        if self.channel.photons is not None:
            return self
        found = self.explanation
        scaled = found.scaled(slope, intercept, unit or found.unit)
        return replace(self, explanation=scaled, slope=abs(slope))


def explain_plane(
    denoiser: Denoiser,
    source: Source,
    selection: Selection,
    *,
    step: int | None = None,
    orientation: int = 1,
) -> Explained:
    """Explain how one plane of an image is denoised: its luminance, if it is in colour.

    Parameters
    ----------
    denoiser : Denoiser
        Model and noise.
    source : Source
        The image. What the denoiser leaves open is estimated from all planes of the channel.
    selection : Selection
        The plane. If it names a sample, this is explained as a grey image of its own.
    step : int, optional
        As in :func:`explain`.
    orientation : int
        How the plane is turned, in the numbers of EXIF.

    Raises
    ------
    ValueError
        If there is nothing to explain: no noise, or no valid pixel.
    """
    if selection.false_colour:
        raise ValueError("one band is explained at a time; give one, not three")
    (plane_number,) = selection.planes
    part = ChannelOf(source, plane_number, _only(selection.samples))
    pipeline = denoiser.pipeline(part)
    plane = next(islice(part.planes(), part.number, None))
    mask = pipeline.mask_of(plane, part.number)
    if mask is not None and not mask.any():
        raise ValueError("this plane has no valid pixel")
    groups = pipeline.on_model_scale(plane, part.number)
    if not groups:
        raise ValueError("the noise level is 0, so nothing is changed; give sigma above 0")
    # The first group of a colour image is its luminance.
    image, level = groups[0]
    (channel,) = pipeline.resolved.channels
    relative = None if channel.map is None else channel.map.relative
    model = denoiser.request.model
    explanation = explain(
        np.moveaxis(upright(np.moveaxis(image, 0, -1), orientation), -1, 0),
        level.sigma,
        model,
        step=step,
        engine=denoiser.engine,
        evolution=level.evolution(model),
        mask=None if mask is None else upright(mask, orientation),
        relative_noise=None if relative is None else upright(relative, orientation),
    )
    explanation = replace(explanation, sigma=_deviation(channel, level))
    return _in_grey_levels(explanation, channel)


def explain_volume(
    denoiser: Denoiser, source: Source, where: Places, *, step: int | None = None
) -> Explained:
    """Explain how a volume is denoised, in three planes: its luminance, if it is in colour.

    Parameters
    ----------
    denoiser : Denoiser
        Model and noise.
    source : Source
        The image. What the denoiser leaves open is estimated from all planes of the channel.
    where : Places
        The point. If it names a sample, this is explained as a grey volume of its own.
    step : int, optional
        As in :func:`explain`.

    Raises
    ------
    ValueError
        If there is nothing to explain: no noise, or no valid voxel.
    """
    if where.false_colour:
        raise ValueError("one band is explained at a time; give one, not three")
    part = ChannelOf(source, where.slices[0], _only(where.samples))
    pipeline = denoiser.pipeline(part)
    numbers = part.numbers_of(where.slices)
    wanted = {number: index for index, number in enumerate(numbers)}
    slices = {
        wanted[number]: plane for number, plane in enumerate(part.planes()) if number in wanted
    }
    prepared = pipeline.volume_on_model_scale([slices[z] for z in range(len(slices))], numbers)
    if prepared.mask is not None and not prepared.mask.any():
        raise ValueError("this volume has no valid voxel")
    if not prepared.groups:
        raise ValueError("the noise level is 0, so nothing is changed; give sigma above 0")
    # The first group of a colour image is its luminance.
    image, level, process = prepared.groups[0]
    (channel,) = pipeline.resolved.channels
    relative = None if channel.map is None else channel.map.relative
    explanation = explained_planes(
        image, level.sigma, process, where, step=step, mask=prepared.mask, relative_noise=relative
    )
    return _in_grey_levels(explanation.at_level(_deviation(channel, level)), channel)


def _deviation(channel: ResolvedChannel, level: Level) -> float:
    """Return the standard deviation of the noise on the scale of the model.

    A model is evaluated at an effective level, which is not the deviation of correlated noise.
    """
    effective = np.array([noise.effective for noise in channel.noise])
    return float(np.sqrt(np.sum(channel.sigmas**2) / np.sum(effective**2))) * level.sigma


def _in_grey_levels(
    explanation: Explanation | VolumeExplanation, channel: ResolvedChannel
) -> Explained:
    """Return an explanation on the scale of the model in the grey values of the image."""
    unit = GREY_LEVELS if channel.photons is None else NOISE_LEVELS
    scaled = explanation.scaled(1 / channel.scaling[0], 0.0, unit)
    return Explained(explanation=scaled, channel=channel)


def _only(samples: tuple[int, ...] | None) -> int | None:
    return None if samples is None else samples[0]


def explain(
    image: NDArray[Any],
    sigma: float,
    model: Model,
    *,
    step: int | None = None,
    engine: str = "auto",
    evolution: Evolution | None = None,
    mask: Mask | None = None,
    relative_noise: Floats | None = None,
) -> Explanation:
    """Run a model on an image and record its structure, diffusivities and steps.

    Parameters
    ----------
    image : ndarray
        Grey values on the scale [0, 255], ``(channel, row, column)``.
    sigma : float
        The noise level on the same scale.
    model : Model
        The model.
    step : int, optional
        Number of steps before structure and diffusivities are computed, at least 0 and less than
        the number of steps of the model; half of that by default.
    engine : str
        Compute backend of the steps.
    evolution : Evolution, optional
        The process, if it is not that of the model for white noise.
    mask : array of bool, optional
        True at valid pixels. The others must be finite; there may be more steps then.
    relative_noise : array, optional
        Noise level at each pixel, relative to ``sigma``.
    """
    process = get_engine(engine).prepare(
        evolution or model.evolution(sigma), mask=mask, relative_noise=relative_noise
    )
    evolution = process.evolution
    step = _checked_step(step, evolution)
    states = [np.ascontiguousarray(image, np.float64)]
    process(states[0], lambda _, now: states.append(np.asarray(now, np.float64)))
    setting = _Setting(
        domain=None if mask is None else Domain(mask, states[0]),
        local=None if relative_noise is None else sensitivity(relative_noise),
    )
    smooth = blur if setting.domain is None else setting.domain.blur
    smoothed = cascade(states[step], evolution.scales, smooth)
    terms = evolution.terms(step)
    return Explanation(
        sigma=sigma,
        evolution=evolution,
        images=[state.mean(axis=0) for state in states],
        step=step,
        structure=_structure(smoothed, terms, setting),
        diffusivities=[
            found for term in terms for found in _diffusivities(smoothed, term, evolution, setting)
        ],
        mask=mask,
    )


def _checked_step(step: int | None, evolution: Evolution) -> int:
    step = evolution.steps // 2 if step is None else step
    if not 0 <= step < evolution.steps:
        raise ValueError(f"step must be from 0 to {evolution.steps - 1}, got {step}")
    return step


@dataclass(frozen=True, kw_only=True, eq=False)
class _Setting:
    """Where pixels are valid, and how the noise varies over them."""

    domain: Domain | None
    local: Sensitivity | None

    def known(self, operator: DerivativeOperator) -> Mask | None:
        """Return where derivatives touch valid pixels alone; None if they do everywhere."""
        if self.domain is None:
            return None
        found: Mask = self.domain.distances.at(operator.grid) > operator.radius
        return found


def _structure(smoothed: list[Floats], terms: tuple[Term, ...], setting: _Setting) -> Structure:
    """Describe the structure tensor of the first term of order one.

    For an isotropic term, which uses only the trace, the tensor is computed as well.
    """
    first = next((term for term in terms if term.derivatives.order == 1), None)
    first = first or replace(terms[0], derivatives=HaarGradient())
    first = _with_tensor(first)
    tensor = coupling_field(smoothed, first, setting.local, setting.domain)
    found = _directions(SymmetricTensor(*(entry[0] for entry in tensor)))
    return replace(found, known=setting.known(first.derivatives))


def _with_tensor(term: Term) -> Term:
    return replace(term, coupling=replace(term.coupling, kind="tensor"))


def _directions(tensor: SymmetricTensor) -> Structure:
    """Return strength, coherence and orientation of a field of tensors."""
    larger, smaller = _eigenvalues(tensor)
    smaller = np.maximum(smaller, 0)  # negative only by rounding
    total = larger + smaller
    coherence = np.divide(larger - smaller, total, out=np.zeros_like(total), where=total > 0)
    # Half the angle of (xx - yy, 2 xy) is the direction across structures; along is normal to it.
    across = np.arctan2(2 * tensor.xy, tensor.xx - tensor.yy) / 2
    return Structure(
        strength=np.sqrt(np.maximum(larger, 0)),
        coherence=coherence,
        orientation=np.mod(across + np.pi / 2, np.pi),
    )


def _diffusivities(
    smoothed: list[Floats], term: Term, evolution: Evolution, setting: _Setting
) -> list[Diffusivity]:
    """Return the diffusivity of a term at each of its scales."""
    if not term.scales_in_flux:
        return []
    field = coupling_field(smoothed, term, setting.local, setting.domain)
    found = []
    for i in term.scales_in_flux:
        # Of order two these are the gates of the second derivatives across and along.
        gate = term.diffusivity.of(field, i)
        along, across = _eigenvalues(gate) if isinstance(gate, SymmetricTensor) else (gate, gate)
        found.append(
            Diffusivity(
                order=term.derivatives.order,
                scale=float(evolution.scales[i]),
                contrast=float(term.diffusivity.contrasts[i]),
                weight=float(term.flux_weights[i]),
                across=across[0],
                along=along[0],
                known=setting.known(term.derivatives),
            )
        )
    return found


def _eigenvalues(tensor: SymmetricTensor) -> tuple[Floats, Floats]:
    """Return the larger and the smaller eigenvalue of every tensor of a field."""
    mean = (tensor.xx + tensor.yy) / 2
    distance = np.hypot((tensor.xx - tensor.yy) / 2, tensor.xy)
    return mean + distance, mean - distance


# ---- volumes ----


def explained_planes(
    image: NDArray[Any],
    sigma: float,
    process: Process,
    where: Places,
    *,
    step: int | None = None,
    mask: Mask | None = None,
    relative_noise: Floats | None = None,
) -> VolumeExplanation:
    """Run a process on a volume and record its structure, diffusivities and steps in three planes.

    Parameters
    ----------
    image : ndarray
        Grey values on the scale [0, 255], ``(channel, slice, row, column)``.
    sigma : float
        The noise level on the same scale.
    process : Process
        The process, prepared for the mask and the relative noise.
    where : Places
        The point.
    step, mask, relative_noise
        As in :func:`explain`; mask and noise are ``(slice, row, column)``, the noise may also be
        ``(row, column)``.
    """
    evolution, point = process.evolution, where.point
    step = _checked_step(step, evolution)
    valid: Any = ... if mask is None else mask
    first = before = image.mean(axis=0)
    chosen = image
    images = {plane: [point.plane_of(first, plane)] for plane in MOSAIC}
    removed, changes = [0.0], []
    state = process.start(image)
    while state.step < state.steps:
        state.advance(1)
        now = np.asarray(state.image())
        chosen = now if state.step == step else chosen
        after = now.mean(axis=0)
        for plane in MOSAIC:
            images[plane].append(point.plane_of(after, plane))
        removed.append(float((after - first)[valid].std(dtype=np.float64)))
        changes.append(float(np.sqrt(np.mean((after - before)[valid] ** 2, dtype=np.float64))))
        before = after
    return VolumeExplanation(
        planes=tuple(
            Explanation(
                sigma=sigma,
                evolution=evolution,
                images=[np.asarray(picture, np.float64) for picture in images[plane]],
                step=step,
                mask=_plane_mask(mask, point, plane),
                **_in_plane(chosen, evolution, step, point, plane, mask, relative_noise),
            )
            for plane in MOSAIC
        ),
        where=where,
        spacing=tuple(evolution.spacing),
        removed=removed,
        changes=changes,
    )


def _plane_mask(mask: Mask | None, point: Point, plane: str) -> Mask | None:
    found = None if mask is None else point.plane_of(mask, plane)
    return None if found is None or found.all() else found


def _in_plane(
    image: NDArray[Any],
    evolution: Evolution,
    step: int,
    point: Point,
    plane: str,
    mask: Mask | None,
    relative_noise: Floats | None,
) -> dict[str, Any]:
    """Return structure and diffusivities in one plane of a volume.

    Of the cells on both sides of the plane those behind it are taken, of the last plane those
    before it. Voxels further away than blurs reach do not count, and are left out.
    """
    letter = normal_of(plane)
    axis, index = "ZYX".index(letter), point.along(letter)
    length, distance = image.shape[1 + axis], evolution.spacing[axis]
    terms = evolution.terms(step)
    integration = max(_voxels(term.coupling.integration_scale, distance) for term in terms)
    scale = max(evolution.scales[i] for term in terms for i in term.scales_in_coupling)
    thin = _slab(index, integration, length)
    wide = _slab(index, integration + _voxels(scale, distance), length)
    smooth: Callable[[Any, Any], Any] = partial(blur, spacing=evolution.spacing)
    if mask is not None:
        around = _cut(mask, axis, wide)
        smooth = Domain(around, image, evolution.spacing).blur
    inner = slice(thin.start - wide.start, thin.stop - wide.start)
    smoothed = [
        _cut(field, axis, inner)
        for field in cascade(_cut(image, axis, wide), evolution.scales, smooth)
    ]
    local = None
    if relative_noise is not None:
        # A map of rows and columns is the same in all slices.
        varies = axis - 3 >= -relative_noise.ndim
        local = sensitivity(_cut(relative_noise, axis, thin) if varies else relative_noise)
    domain = None
    if mask is not None:
        domain = Domain(_cut(mask, axis, thin), image, evolution.spacing)
    setting = _Setting(domain=domain, local=local)
    layer = index - thin.start + (index + 1 < length)

    def cells(field: NDArray[Any]) -> NDArray[Any]:
        found: NDArray[Any] = field.take(layer, axis=axis - 3)
        return found if plane in PLANES else found.swapaxes(-1, -2)

    def known(term: Term) -> Mask | None:
        found = setting.known(term.derivatives)
        return None if found is None else cells(found)

    def field_of(term: Term) -> Any:
        return coupling_field(smoothed, term, local, domain, evolution.spacing)

    first = _with_tensor(terms[0])
    tensor = VolumeTensor(*(cells(entry[0]) for entry in field_of(first)))
    found = []
    for term in terms:
        if term.coupling.kind == "tensor":
            own = VolumeTensor(*(cells(entry[0]) for entry in field_of(term)))
            values = np.maximum(np.linalg.eigvalsh(_matrices(own)), 0)
            smallest, largest = values[..., 0], values[..., 2]
        else:
            smallest = largest = cells(field_of(term)[0])
        found += [
            Diffusivity(
                order=term.derivatives.order,
                scale=float(evolution.scales[i]),
                contrast=float(term.diffusivity.contrasts[i]),
                weight=float(term.flux_weights[i]),
                across=np.asarray(term.diffusivity.of(largest, i)),
                along=np.asarray(term.diffusivity.of(smallest, i)),
                known=known(term),
            )
            for i in term.scales_in_flux
        ]
    structure = replace(_volume_structure(tensor, plane), known=known(first))
    return {"structure": structure, "diffusivities": found}


def _voxels(scale: Any, distance: float) -> int:
    """Return how many voxels of a size a blur reaches."""
    return ceil(_DEVIATIONS * float(scale) / distance) + _TAIL


def _slab(index: int, reach: int, length: int) -> slice:
    """Return a range of planes around an index; two more for the cells between them."""
    return slice(max(index - reach - 2, 0), min(index + reach + 3, length))


def _cut(field: NDArray[Any], axis: int, planes: slice) -> NDArray[Any]:
    """Return some planes of an array whose last axes are slices, rows and columns."""
    index: tuple[Any, ...] = (..., planes, *[slice(None)] * (2 - axis))
    found: NDArray[Any] = field[index]
    return found


def _matrices(tensor: VolumeTensor) -> Floats:
    """Return the tensors as matrices in double precision, in the order x, y, z."""
    rows = (
        (tensor.xx, tensor.xy, tensor.xz),
        (tensor.xy, tensor.yy, tensor.yz),
        (tensor.xz, tensor.yz, tensor.zz),
    )
    return np.stack([np.stack(row, axis=-1) for row in rows], axis=-2).astype(np.float64)


def _volume_structure(tensor: VolumeTensor, plane: str) -> VolumeStructure:
    """Describe the structure tensors of a volume in one plane."""
    matrices = _matrices(tensor)
    values, vectors = np.linalg.eigh(matrices)
    smallest, middle, largest = np.maximum(np.moveaxis(values, -1, 0), 0)
    over = np.divide(1, largest, out=np.zeros_like(largest), where=largest > 0)
    row, column = ("XYZ".index(letter) for letter in plane)
    restricted = SymmetricTensor(
        xx=matrices[..., column, column],
        xy=matrices[..., row, column],
        yy=matrices[..., row, row],
    )
    found = _directions(restricted)
    return VolumeStructure(
        strength=np.sqrt(largest),
        coherence=found.coherence,
        orientation=found.orientation,
        surface=(largest - middle) * over,
        line=(middle - smallest) * over,
        across=vectors[..., 2],
    )
