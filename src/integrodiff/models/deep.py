"""A research model with free numbers at every step, and the same guarantees as the others."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from integrodiff._checks import (
    nonnegative_number,
    number_between,
    positive_integer,
    positive_number,
    shown,
)
from integrodiff.models.base import ExplicitModel
from integrodiff.models.compact import REFERENCE_LEVEL
from integrodiff.models.description import (
    each,
    each_finite,
    each_nonnegative,
    each_positive,
    instance_of,
    or_empty,
    parameter,
    require_lengths,
    setting,
)
from integrodiff.models.laws import integration_limits_setting
from integrodiff.models.limits import (
    MOST_CHANNELS,
    MOST_VARYING_STEPS,
    at_most,
    blur_scale,
)
from integrodiff.stages import (
    Coupling,
    Evolution,
    Exponential,
    Term,
    derivative_operator,
    step_table,
)
from integrodiff.stages._arrays import Scalar, clipped, namespace
from integrodiff.stages.derivatives import HIGHEST_ORDER

_SMALLEST_CONTRAST = 0.01
"""Channels with a contrast below this many noise levels get no flux."""


class Channel(NamedTuple):
    """Derivatives of one order at one scale."""

    order: int
    scale: float


def _checked_channels(name: str, value: Any) -> tuple[Channel, ...]:
    """Return sorted channels of known orders and nonnegative scales."""
    if not isinstance(value, (list, tuple)):
        raise TypeError(f"{name} must be a list of pairs of order and scale, got {shown(value)}")
    at_most(f"the number of {name}", len(value), MOST_CHANNELS)
    for pair in value:
        if not isinstance(pair, (list, tuple)) or len(pair) != 2:
            raise TypeError(f"{name} must be pairs of order and scale, got {shown(pair)}")
    channels = tuple(
        Channel(
            positive_integer("a channel's order", order), blur_scale("a channel's scale", scale)
        )
        for order, scale in value
    )
    for order, _ in channels:
        if order > HIGHEST_ORDER:
            raise ValueError(f"orders must be from 1 to {HIGHEST_ORDER}, got {shown(order)}")
    if not channels or any(a >= b for a, b in pairwise(channels)):
        raise ValueError(f"{name} must be sorted and different, got {channels}")
    return channels


def _mix(name: str, value: Any) -> float:
    return number_between(name, value, -1, 1)


def _share(name: str, value: Any) -> float:
    return number_between(name, value, 0.5, 1)


def _channels_to_json(channels: tuple[Channel, ...]) -> list[list[float]]:
    return [list(channel) for channel in channels]


def _acting(name: str, value: Any) -> tuple[tuple[int, ...], ...]:
    """Return the numbers of the channels that act in each step, increasing, from zero on."""
    expected = f"{name} must be a list of increasing numbers of channels for each step"
    if not isinstance(value, (list, tuple)):
        raise TypeError(f"{expected}, got {shown(value)}")
    at_most(f"the number of steps of {name}", len(value), MOST_VARYING_STEPS)
    for step in value:
        if not isinstance(step, (list, tuple)):
            raise TypeError(f"{expected}, got {shown(step)}")
        at_most(f"the number of channels of a step of {name}", len(step), MOST_CHANNELS)
        if any(not isinstance(m, int) or isinstance(m, bool) for m in step):
            raise TypeError(f"{expected}, got {shown(step)}")
        if any(a >= b for a, b in pairwise((-1, *step))):
            raise ValueError(f"{expected}, got {shown(step)}")
    return tuple(tuple(step) for step in value)


class DeepParameters(NamedTuple):
    """What training finds: arrays ``(step, channel)`` and, for all steps, ``(1, channel)``.

    Curvatures may be None, which is faster than zeros, and changes no bit of models without them.
    """

    weights: Any
    contrasts: Any
    weight_exponents: Any
    contrast_exponents: Any
    couplings: Any
    weight_curvatures: Any = None
    contrast_curvatures: Any = None


class DeepNumbers(NamedTuple):
    """Weights and contrasts of every channel at every step, for one or several noise levels.

    Arrays ``(*levels, step, channel)`` of NumPy or PyTorch; the weights keep every step stable.
    Fidelity weights ``(*levels, step)`` may be None.
    """

    coupling_weights: Any
    flux_weights: Any
    contrasts: Any
    pulls: Any = None


@dataclass(frozen=True, kw_only=True)
class DeepDiffusion(ExplicitModel):
    r"""Diffusion of several orders and scales whose numbers are free at each of its steps.

    At the noise level s, channel m has in step k the weight
    :math:`w_{km}\,(s/30)^{r_m}` and the contrast :math:`b_{km}\, s\,(s/30)^{q_m}`. In the sum of
    squares that the diffusivities of its order depend on, its share is :math:`k_m` times its
    weight. The step size is one; where the weights of a step would exceed the stable bound, all
    its fluxes are divided by the excess. A channel whose contrast is below a hundredth of the noise
    level has no flux: it would act only where the image is flat but for rounding, and there make
    a difference out of nothing.

    With curvatures, the logarithms of weights and contrasts are quadratic in
    :math:`\log(s/30)`: the curvature is the factor of its square. With integration scales, the
    structure tensor of each order is smoothed in step k at :math:`\rho_{kn}\,(s/30)^{q_n}`.

    With exponents of the steps, those of the channels are larger by one number for each order in
    every step. With pulls, the image is drawn to the input in step k with the weight
    :math:`p_k (s/30)^q`, which counts in the stable bound and is divided by the excess as well.
    With mixes, each eigenvalue of the structure tensor of an order gets so much of the other one.

    If only some channels act in each step, the others have the weight zero there, and no numbers:
    what has one number for each channel step by step has one for each pair of a step and a channel
    that acts in it.

    Attributes
    ----------
    channels : tuple of (int, float)
        Order and scale of each channel, sorted.
    weights, contrasts : tuple of float
        :math:`w \ge 0` and :math:`b > 0`, step by step.
    weight_exponents, contrast_exponents : tuple of float
        :math:`r_m` and :math:`q_m`, one for each channel, or for each channel step by step.
    couplings : tuple of float
        :math:`k_m \ge 0`, one for each channel, or for each channel step by step.
    weight_curvatures, contrast_curvatures : tuple of float
        One for each channel, or none.
    integration_scales, integration_exponents : tuple of float
        :math:`\rho_{kn}` in pixels for each order step by step, and :math:`q_n` for each order, or
        for each order step by step; or none.
    integration_limits : tuple of (float, float)
        Smallest and largest integration scale of each order, to which they are cut; or none.
    anisotropic : bool
        Whether order two has the tensor gate, and no scalar diffusivity.
    step_weight_exponents, step_contrast_exponents : tuple of float
        For each order step by step, or none.
    pulls, pull_exponents : tuple of float
        :math:`p_k \ge 0` of each step, and :math:`q`; or none.
    mixes : tuple of float
        From -1 to 1, for each order step by step; or none. All orders need a tensor gate.
    acting : tuple of tuple of int
        For each step, the places in ``channels`` of those that act; or none, if all act.
    largest_share : float
        Weights are cut to this share of the stable bound. The certificate of the compiled engine's
        shortcuts is up to a few ten thousandths lower than the bound; below it, no step is cut.
    smallest_contrast : float
        Contrasts are at least this many noise levels.
    contrast_floor : tuple of float
        Smallest contrasts in noise levels and in grey levels, relative to the root of what a step
        of one grey level adds to the structure tensor, or none. Gates that are steeper would make
        a difference out of the rounding of float32.
    level_limits : tuple of float
        Noise levels between which the laws hold, or none. Outside, contrasts alone follow the noise
        level: the model treats a multiple of an image as it treats the image.
    """

    kind = "deep"

    channels: tuple[Channel, ...] = field(
        metadata=setting(_checked_channels, to_json=_channels_to_json)
    )
    weights: tuple[float, ...] = field(metadata=parameter(each_nonnegative))
    contrasts: tuple[float, ...] = field(metadata=parameter(each_positive))
    weight_exponents: tuple[float, ...] = field(
        metadata=parameter(each_finite, transform="identity")
    )
    contrast_exponents: tuple[float, ...] = field(
        metadata=parameter(each_finite, transform="identity")
    )
    couplings: tuple[float, ...] = field(metadata=parameter(each_nonnegative))
    weight_curvatures: tuple[float, ...] = field(
        default=(), metadata=parameter(or_empty(each_finite), transform="identity", optional=True)
    )
    contrast_curvatures: tuple[float, ...] = field(
        default=(), metadata=parameter(or_empty(each_finite), transform="identity", optional=True)
    )
    integration_scales: tuple[float, ...] = field(
        default=(), metadata=parameter(or_empty(each(blur_scale)), optional=True)
    )
    integration_exponents: tuple[float, ...] = field(
        default=(), metadata=parameter(or_empty(each_finite), transform="identity", optional=True)
    )
    integration_limits: tuple[tuple[float, float], ...] = field(
        default=(), metadata=integration_limits_setting()
    )
    anisotropic: bool = field(default=False, metadata=setting(instance_of(bool), optional=True))
    step_weight_exponents: tuple[float, ...] = field(
        default=(), metadata=parameter(or_empty(each_finite), transform="identity", optional=True)
    )
    step_contrast_exponents: tuple[float, ...] = field(
        default=(), metadata=parameter(or_empty(each_finite), transform="identity", optional=True)
    )
    pulls: tuple[float, ...] = field(
        default=(), metadata=parameter(or_empty(each_nonnegative), optional=True)
    )
    pull_exponents: tuple[float, ...] = field(
        default=(), metadata=parameter(or_empty(each_finite), transform="identity", optional=True)
    )
    mixes: tuple[float, ...] = field(
        default=(),
        metadata=parameter(or_empty(each(_mix)), transform="tanh", optional=True),
    )
    acting: tuple[tuple[int, ...], ...] = field(
        default=(),
        metadata=setting(_acting, optional=True, to_json=lambda steps: [list(k) for k in steps]),
    )
    largest_share: float = field(default=1.0, metadata=setting(_share, optional=True))
    contrast_floor: tuple[float, ...] = field(
        default=(), metadata=setting(or_empty(each_nonnegative), optional=True, to_json=list)
    )
    smallest_contrast: float = field(
        default=0.0, metadata=setting(nonnegative_number, optional=True)
    )
    level_limits: tuple[float, ...] = field(
        default=(), metadata=setting(or_empty(each_positive), optional=True, to_json=list)
    )
    tau: float = field(default=1.0, metadata=parameter(positive_number))

    def _check(self) -> None:
        if self.discretisation != "haar":
            raise ValueError("derivatives of several orders need the discretisation 'haar'")
        if self.tau != 1:
            raise ValueError(f"tau must be 1: the weights say how far a step goes; got {self.tau}")
        at_most("steps", self.steps, MOST_VARYING_STEPS)
        count = len(self.channels)
        require_lengths(self, ("acting",), self.steps if self.acting else 0)
        for step in self.acting:
            if any(place >= count for place in step):
                raise ValueError(f"acting must be below {count}, the channels; got {shown(step)}")
        pairs = sum(len(step) for step in self.acting) if self.acting else count * self.steps
        require_lengths(self, ("weights", "contrasts"), pairs)
        names = ("weight_exponents", "contrast_exponents", "couplings")
        require_lengths(self, names, count, pairs)
        for name in ("weight_curvatures", "contrast_curvatures"):
            require_lengths(self, (name,), count if getattr(self, name) else 0)
        orders = len(self.orders) if self.integration_scales or self.integration_exponents else 0
        require_lengths(self, ("integration_exponents",), orders, orders * self.steps)
        require_lengths(self, ("integration_scales",), orders * self.steps)
        require_lengths(self, ("integration_limits",), orders if self.integration_limits else 0)
        require_lengths(self, ("level_limits",), 2 if self.level_limits else 0)
        require_lengths(self, ("contrast_floor",), 2 if self.contrast_floor else 0)
        require_lengths(self, ("pulls",), self.steps if self.pulls else 0)
        require_lengths(self, ("pull_exponents",), 1 if self.pulls else 0)
        for name in ("step_weight_exponents", "step_contrast_exponents", "mixes"):
            length = self.steps * len(self.orders) if getattr(self, name) else 0
            require_lengths(self, (name,), length)
        if self.mixes and not (self.anisotropic and set(self.orders) <= {1, 2}):
            raise ValueError("mixes are for orders one and two of an anisotropic model")
        if self.level_limits and self.level_limits[0] > self.level_limits[1]:
            raise ValueError(f"level_limits must not decrease, got {shown(self.level_limits)}")

    @property
    def orders(self) -> list[int]:
        """Orders of the channels, each once."""
        return sorted({channel.order for channel in self.channels})

    @property
    def depends_on_noise(self) -> bool:
        """Whether the process is a function of the noise level."""
        return True

    def _tau_is_a_law(self, sigma: float) -> bool:
        return True  # the weights include the bound, up to the precision of another bound

    def number_count(self) -> int:
        """Count the trained numbers; the scales of the channels are among them."""
        return super().number_count() + len(self.channels)

    def arrays(self) -> DeepParameters:
        """Return the trained numbers as arrays."""
        return DeepParameters(
            *(
                self._of_channels(name) if len(getattr(self, name)) else None
                for name in DeepParameters._fields
            )
        )

    def _of_channels(self, name: str) -> Any:
        """Return numbers ``(step, channel)``, or ``(1, channel)`` if all steps have the same."""
        values, count = _as_array(getattr(self, name)), len(self.channels)
        # Weights and contrasts are those of pairs, even if there are as many of these as channels.
        if self.acting and (len(values) != count or name in ("weights", "contrasts")):
            # Products, so that derivatives pass; where nothing acts, contrasts are one.
            xp = namespace(values)
            chosen = self._places_of_pairs()
            values = values @ xp.asarray(chosen, dtype=values.dtype, device=values.device)
            if name == "contrasts":
                free = 1 - chosen.sum(axis=0)
                values = values + xp.asarray(free, dtype=values.dtype, device=values.device)
        return values.reshape((-1, count))

    def _places_of_pairs(self) -> NDArray[np.float64]:
        """Return ones where a pair is among all steps and channels, ``(pair, place)``."""
        count = len(self.channels)
        places = [step * count + m for step, acts in enumerate(self.acting) for m in acts]
        chosen = np.zeros((len(places), self.steps * count))
        chosen[np.arange(len(places)), places] = 1
        return chosen

    def integration_at(self, sigma: float) -> list[dict[int, float]]:
        """Return the integration scale of each order, for every step."""
        rows = self._integration_at(np.array([sigma]))
        if rows is None:
            return [dict.fromkeys(self.orders, 0.0)] * self.steps
        return [dict(zip(self.orders, row, strict=True)) for row in rows[0].tolist()]

    def _integration_at(self, sigmas: Any) -> Any:
        """Return the integration scales at several noise levels, ``(level, step, order)``."""
        if not len(self.integration_scales):
            return None
        exponents = _as_array(self.integration_exponents).reshape((-1, len(self.orders)))
        ratios = (sigmas[:, None, None] / REFERENCE_LEVEL) ** exponents
        scales = self._of_orders(self.integration_scales) * ratios
        if self.integration_limits:
            scales = clipped(scales, *np.transpose(self.integration_limits))
        return scales

    def _evolution(self, sigma: Scalar) -> Evolution:
        """Return the process at a noise level, or at one per image, ``(image, 1, 1, 1)``."""
        sigmas = np.array([sigma]) if isinstance(sigma, (int, float)) else sigma.reshape((-1,))
        xp = namespace(sigmas)
        held = clipped(sigmas, *self.level_limits) if self.level_limits else sigmas
        table = bound_table(self.channels, self.theta)
        numbers = numbers_at(
            xp,
            self._arrays_of_steps(),
            held,
            xp.asarray(table, device=sigmas.device),
            self.smallest_contrast,
            pulls=self._pulls_at(held),
            floor=self._floor_at(held),
            largest_share=self.largest_share,
        )
        ratios = sigmas / held
        contrasts = numbers.contrasts * ratios[:, None, None]
        if self.acting:  # laws of a channel say nothing where it does not act
            acts = self._places_of_pairs().sum(axis=0).reshape((self.steps, -1)) > 0
            mask = xp.asarray(acts, device=sigmas.device)
            contrasts = xp.where(mask, contrasts, xp.ones_like(contrasts))
        numbers = numbers._replace(contrasts=contrasts)
        scales = self._integration_at(held)
        mixes = self._of_orders(self.mixes) if len(self.mixes) else None
        if isinstance(sigma, (int, float)):
            lists = [None if part is None else part[0].tolist() for part in (*numbers, scales)]
            mixes = None if mixes is None else mixes.tolist()
        else:
            spread = (-1,) + (1,) * (sigma.ndim - 1)
            lists = [
                None if part is None else _per_image(part, spread) for part in (*numbers, scales)
            ]
        *of_numbers, rows = lists
        integration = rows and [dict(zip(self.orders, row, strict=True)) for row in rows]
        return evolution_of(
            self.channels,
            DeepNumbers(*of_numbers),
            theta=self.theta,
            integration=integration,
            mixes=mixes,
            anisotropic=self.anisotropic,
        )

    def _of_orders(self, values: Any) -> Any:
        """Return numbers of each order step by step as an array ``(step, order)``."""
        return _as_array(values).reshape((self.steps, len(self.orders)))

    def _arrays_of_steps(self) -> DeepParameters:
        """Return the trained numbers, with the exponents of the steps added to the others."""
        found = self.arrays()
        of_channel = [self.orders.index(channel.order) for channel in self.channels]
        for name in ("weight_exponents", "contrast_exponents"):
            more = getattr(self, f"step_{name}")
            if len(more):
                added = self._of_orders(more)[:, of_channel]
                found = found._replace(**{name: getattr(found, name) + added})
        return found

    def _pulls_at(self, sigmas: Any) -> Any:
        """Return the fidelity weights as the law has them, ``(level, step)``."""
        if not len(self.pulls):
            return None
        (exponent,) = self.pull_exponents
        return (sigmas[:, None] / REFERENCE_LEVEL) ** exponent * _as_array(self.pulls)

    def _floor_at(self, sigmas: Any) -> Any:
        """Return the matrices that take weights to squares of the smallest contrasts."""
        if not self.contrast_floor:
            return None
        relative, absolute = self.contrast_floor
        xp = namespace(sigmas)
        responses = xp.asarray(step_responses(self.channels), device=sigmas.device)
        factors = clipped(absolute / sigmas, relative, math.inf) ** 2
        return factors[:, None, None] * responses


def _as_array(values: Any) -> Any:
    """Return numbers as an array; one that carries derivatives is returned as it is."""
    return np.array(values, np.float64) if isinstance(values, tuple) else values


def _per_image(part: Any, spread: tuple[int, ...]) -> Any:
    """Return numbers ``(image, step, ...)`` as lists of arrays with one value per image."""
    if part.ndim == 1:
        return part.reshape(spread)
    return [_per_image(part[:, i], spread) for i in range(part.shape[1])]


def numbers_at(
    xp: Any,
    parameters: DeepParameters,
    sigmas: Any,
    table: Any,
    smallest_contrast: float = 0.0,
    *,
    pulls: Any = None,
    floor: Any = None,
    largest_share: float = 1.0,
) -> DeepNumbers:
    """Return the numbers at several noise levels, arrays ``(level, step, channel)``.

    Parameters
    ----------
    xp : module
        NumPy or PyTorch.
    parameters : DeepParameters
        Arrays ``(step, channel)``, or ``(1, channel)`` where all steps have the same.
    sigmas : array
        ``(level,)``.
    table : array
        From :func:`bound_table`.
    smallest_contrast : float
        Lower bound of the contrasts, in noise levels.
    pulls : array, optional
        Fidelity weights before they are cut to the bound, ``(level, step)``.
    floor : array, optional
        ``(channel, channel)``; takes the weights of the couplings to squares of lower bounds of the
        contrasts, in noise levels.
    largest_share : float
        Of the stable bound, to which weights are cut.
    """
    absolute = sigmas[:, None, None]
    relative = absolute / REFERENCE_LEVEL
    weighted = parameters.weights * relative**parameters.weight_exponents
    contrasts = parameters.contrasts * relative**parameters.contrast_exponents
    square = xp.log(relative) ** 2
    if parameters.weight_curvatures is not None:
        weighted = weighted * xp.exp(parameters.weight_curvatures * square)
    if parameters.contrast_curvatures is not None:
        contrasts = contrasts * xp.exp(parameters.contrast_curvatures * square)
    if smallest_contrast:
        contrasts = xp.clip(contrasts, smallest_contrast, None)
    coupling_weights = weighted * parameters.couplings
    if floor is not None:
        contrasts = xp.maximum(contrasts, (coupling_weights @ floor) ** 0.5)
    # Every row of the table bounds the eigenvalues in one box of frequencies.
    largest = xp.amax(weighted @ table.T, axis=-1)
    if pulls is not None:  # counts twice, see integrodiff.stages.stability
        largest = largest + 2 * pulls
    limit = 2 * largest_share
    excess = xp.where(largest > limit, largest / limit, xp.ones_like(largest))
    fluxes = weighted / excess[..., None]
    return DeepNumbers(
        coupling_weights=coupling_weights,
        flux_weights=xp.where(contrasts < _SMALLEST_CONTRAST, xp.zeros_like(fluxes), fluxes),
        contrasts=contrasts * absolute,
        pulls=None if pulls is None else pulls / excess,
    )


@lru_cache(maxsize=4)
def bound_table(channels: tuple[Channel, ...], theta: float) -> NDArray[np.float64]:
    """Return the matrix that takes the weights of the channels to bounds of the eigenvalues."""
    operators = [derivative_operator(channel.order, theta=theta) for channel in channels]
    return step_table(operators, [channel.scale for channel in channels])


@lru_cache(maxsize=4)
def step_responses(channels: tuple[Channel, ...]) -> NDArray[np.float64]:
    r"""Return the matrix that takes weights of channels to the structure of a step of height one.

    That is, for each channel, the sum over all channels of its order. A step from zero to one has
    derivatives of order one of at most :math:`1 / (\sqrt{2\pi}\,\sigma)`, and of order two of
    at most :math:`1 / (\sqrt{2\pi e}\,\sigma^2)`, in pixels of at most one. Higher orders count
    as one.
    """
    largest = {1: (2 * math.pi) ** -0.5, 2: (2 * math.pi * math.e) ** -0.5}
    orders = np.array([channel.order for channel in channels])
    responses = np.array(
        [
            min(1.0, largest[order] / scale**order) if scale > 0 and order in largest else 1.0
            for order, scale in channels
        ]
    )
    same: NDArray[np.bool_] = orders[:, None] == orders
    return responses[:, None] ** 2 * same


def evolution_of(
    channels: Sequence[Channel],
    numbers: DeepNumbers,
    *,
    theta: float,
    integration: Sequence[Mapping[int, float]] | None = None,
    mixes: Sequence[Sequence[float]] | None = None,
    anisotropic: bool = False,
) -> Evolution:
    """Return the process with the given numbers, nested sequences ``[step][channel]``.

    ``integration`` has the integration scale of each order, for every step, and ``mixes`` the mixes
    of eigenvalues ``[step][order]``.
    """
    scales = sorted({channel.scale for channel in channels})
    orders = sorted({channel.order for channel in channels})
    place = {channel: m for m, channel in enumerate(channels)}

    def term(
        order: int, smoothing: float, mix: float, weights: Any, fluxes: Any, contrasts: Any
    ) -> Term:
        present = [place.get(Channel(order, scale)) for scale in scales]
        return Term(
            derivatives=derivative_operator(order, theta=theta),
            coupling=Coupling(
                kind="tensor" if order == 1 or (order == 2 and anisotropic) else "trace",
                weights=tuple(0.0 if m is None else weights[m] for m in present),
                integration_scale=smoothing,
                mix=mix,
            ),
            diffusivity=Exponential(
                contrasts=tuple(1.0 if m is None else contrasts[m] for m in present)
            ),
            flux_weights=tuple(0.0 if m is None else fluxes[m] for m in present),
        )

    *of_channels, pulls = numbers
    steps = list(zip(*of_channels, strict=True))
    smoothings = integration or [dict.fromkeys(orders, 0.0)] * len(steps)
    schedule = tuple(
        tuple(
            term(order, smoothing[order], mix, *step)
            for order, mix in zip(orders, mixed, strict=True)
        )
        for smoothing, mixed, step in zip(
            smoothings,
            [[0.0] * len(orders)] * len(steps) if mixes is None else mixes,
            steps,
            strict=True,
        )
    )
    return Evolution(
        scales=tuple(scales),
        schedule=schedule,
        tau=1.0,
        steps=len(schedule),
        pull=0.0 if pulls is None else tuple(pulls),
    )
