"""Structure tensor, diffusivities and intermediate images of a model on one image.

All of them are computed by the stages, see :mod:`integrodiff.stages.step`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from itertools import islice
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from integrodiff._denoise import Denoiser
from integrodiff.engines import get_engine
from integrodiff.layout import Layout
from integrodiff.models import Model
from integrodiff.request import ResolvedChannel, Source
from integrodiff.stages import (
    DerivativeOperator,
    Domain,
    Evolution,
    HaarGradient,
    Sensitivity,
    SymmetricTensor,
    Term,
    blur,
    cascade,
    coupling_field,
    sensitivity,
)
from integrodiff.units import GreyUnits
from integrodiff.validity import Mask, Validity
from integrodiff.viz.view import GREY_LEVELS, Selection, upright

Floats: TypeAlias = NDArray[np.float64]

NOISE_LEVELS = "standard deviations of the noise"
"""The unit of photon counts after stabilisation."""


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


@dataclass(frozen=True, eq=False)
class ChannelOf:
    """The planes of one channel of an image, or of one of its samples; slices count as pages.

    Noise and scale of a channel do not depend on others, so that these planes are denoised as they
    are in the whole image.

    Attributes
    ----------
    source : Source
        The image.
    plane : int
        Number of one plane of the channel.
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

    @property
    def layout(self) -> Layout:
        """Axes and shape."""
        layout = self.source.layout.canonical
        layout = layout if self.sample is None else layout.without_samples
        count, planes = len(self._numbers), layout.plane_shape
        return Layout("QYXS"[: 1 + len(planes)], (count, *planes))

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
    """The explanation of a plane, and what is known of its noise.

    Attributes
    ----------
    explanation : Explanation
        In the grey values of the image.
    channel : ResolvedChannel
        Noise and colour space.
    slope : float
        Factor from grey values of the image to those of the explanation.
    """

    explanation: Explanation
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
    factor = channel.scaling[0]
    # A model is evaluated at an effective level, which is not the deviation of correlated noise.
    effective = np.array([noise.effective for noise in channel.noise])
    spread = float(np.sqrt(np.sum(channel.sigmas**2) / np.sum(effective**2)))
    explanation = replace(explanation, sigma=spread * level.sigma)
    unit = GREY_LEVELS if channel.photons is None else NOISE_LEVELS
    return Explained(explanation=explanation.scaled(1 / factor, 0.0, unit), channel=channel)


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
    step = evolution.steps // 2 if step is None else step
    if not 0 <= step < evolution.steps:
        raise ValueError(f"step must be from 0 to {evolution.steps - 1}, got {step}")
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
    first = replace(first, coupling=replace(first.coupling, kind="tensor"))
    tensor = coupling_field(smoothed, first, setting.local, setting.domain)
    larger, smaller = _eigenvalues(tensor)
    smaller = np.maximum(smaller, 0)  # negative only by rounding
    total = larger + smaller
    coherence = np.divide(larger - smaller, total, out=np.zeros_like(total), where=total > 0)
    # Half the angle of (xx - yy, 2 xy) is the direction across structures; along is normal to it.
    across = np.arctan2(2 * tensor.xy, tensor.xx - tensor.yy) / 2
    return Structure(
        strength=np.sqrt(np.maximum(larger, 0))[0],
        coherence=coherence[0],
        orientation=np.mod(across + np.pi / 2, np.pi)[0],
        known=setting.known(first.derivatives),
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
