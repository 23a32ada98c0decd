"""A research model with free numbers at every step, and the same guarantees as the others."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from integrodiff._checks import positive_integer, positive_number, shown
from integrodiff.models.base import ExplicitModel
from integrodiff.models.compact import REFERENCE_LEVEL
from integrodiff.models.description import (
    each_finite,
    each_nonnegative,
    each_positive,
    parameter,
    require_lengths,
    setting,
)
from integrodiff.models.limits import MOST_CHANNELS, MOST_VARYING_STEPS, at_most, blur_scale
from integrodiff.stages import (
    Coupling,
    Evolution,
    Exponential,
    Term,
    derivative_operator,
    step_table,
)
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


def _channels_to_json(channels: tuple[Channel, ...]) -> list[list[float]]:
    return [list(channel) for channel in channels]


class DeepParameters(NamedTuple):
    """What training finds: arrays ``(step, channel)`` and, for all steps, ``(1, channel)``."""

    weights: Any
    contrasts: Any
    weight_exponents: Any
    contrast_exponents: Any
    couplings: Any


class DeepNumbers(NamedTuple):
    """Weights and contrasts of every channel at every step, for one or several noise levels.

    Arrays ``(*levels, step, channel)`` of NumPy or PyTorch; the weights keep every step stable.
    """

    coupling_weights: Any
    flux_weights: Any
    contrasts: Any


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

    Attributes
    ----------
    channels : tuple of (int, float)
        Order and scale of each channel, sorted.
    weights, contrasts : tuple of float
        :math:`w \ge 0` and :math:`b > 0`, step by step.
    weight_exponents, contrast_exponents : tuple of float
        :math:`r_m` and :math:`q_m`, one for each channel.
    couplings : tuple of float
        :math:`k_m \ge 0`, one for each channel.
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
    tau: float = field(default=1.0, metadata=parameter(positive_number))

    def _check(self) -> None:
        if self.discretisation != "haar":
            raise ValueError("derivatives of several orders need the discretisation 'haar'")
        if self.tau != 1:
            raise ValueError(f"tau must be 1: the weights say how far a step goes; got {self.tau}")
        at_most("steps", self.steps, MOST_VARYING_STEPS)
        count = len(self.channels)
        require_lengths(self, ("weights", "contrasts"), count * self.steps)
        require_lengths(self, ("weight_exponents", "contrast_exponents", "couplings"), count)

    @property
    def depends_on_noise(self) -> bool:
        """Whether the process is a function of the noise level."""
        return True

    def number_count(self) -> int:
        """Count the trained numbers; the scales of the channels are among them."""
        return super().number_count() + len(self.channels)

    def arrays(self) -> DeepParameters:
        """Return the trained numbers as arrays."""
        return DeepParameters(
            *(
                np.reshape(getattr(self, name), (-1, len(self.channels)))
                for name in DeepParameters._fields
            )
        )

    def _evolution(self, sigma: float) -> Evolution:
        numbers = numbers_at(
            np, self.arrays(), np.array([sigma]), bound_table(self.channels, self.theta)
        )
        lists = DeepNumbers(*(part[0].tolist() for part in numbers))
        return evolution_of(self.channels, lists, theta=self.theta)


def numbers_at(xp: Any, parameters: DeepParameters, sigmas: Any, table: Any) -> DeepNumbers:
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
    """
    absolute = sigmas[:, None, None]
    relative = absolute / REFERENCE_LEVEL
    weighted = parameters.weights * relative**parameters.weight_exponents
    # Every row of the table bounds the eigenvalues in one box of frequencies.
    largest = xp.amax(weighted @ table.T, axis=-1)
    excess = xp.where(largest > 2, largest / 2, xp.ones_like(largest))
    contrasts = parameters.contrasts * relative**parameters.contrast_exponents
    fluxes = weighted / excess[..., None]
    return DeepNumbers(
        coupling_weights=weighted * parameters.couplings,
        flux_weights=xp.where(contrasts < _SMALLEST_CONTRAST, xp.zeros_like(fluxes), fluxes),
        contrasts=contrasts * absolute,
    )


@lru_cache(maxsize=4)
def bound_table(channels: tuple[Channel, ...], theta: float) -> NDArray[np.float64]:
    """Return the matrix that takes the weights of the channels to bounds of the eigenvalues."""
    operators = [derivative_operator(channel.order, theta=theta) for channel in channels]
    return step_table(operators, [channel.scale for channel in channels])


def evolution_of(channels: Sequence[Channel], numbers: DeepNumbers, *, theta: float) -> Evolution:
    """Return the process with the given numbers, nested sequences ``[step][channel]``."""
    scales = sorted({channel.scale for channel in channels})
    orders = sorted({channel.order for channel in channels})
    place = {channel: m for m, channel in enumerate(channels)}

    def term(order: int, weights: Any, fluxes: Any, contrasts: Any) -> Term:
        present = [place.get(Channel(order, scale)) for scale in scales]
        return Term(
            derivatives=derivative_operator(order, theta=theta),
            coupling=Coupling(
                kind="tensor" if order == 1 else "trace",
                weights=tuple(0.0 if m is None else weights[m] for m in present),
            ),
            diffusivity=Exponential(
                contrasts=tuple(1.0 if m is None else contrasts[m] for m in present)
            ),
            flux_weights=tuple(0.0 if m is None else fluxes[m] for m in present),
        )

    schedule = tuple(
        tuple(term(order, *step) for order in orders) for step in zip(*numbers, strict=True)
    )
    return Evolution(scales=tuple(scales), schedule=schedule, tau=1.0, steps=len(schedule))
