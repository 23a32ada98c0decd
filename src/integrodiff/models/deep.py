"""A research model with free numbers at every step, and the same guarantees as the others."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from integrodiff._checks import nonnegative_number, positive_number, sequence_of_numbers
from integrodiff.models.base import ExplicitModel
from integrodiff.models.compact import REFERENCE_LEVEL
from integrodiff.stages import Evolution, Term, step_table
from integrodiff.stages.derivatives import HIGHEST_ORDER

_SMALLEST_CONTRAST = 0.01
"""Of a channel with a flux, in noise levels."""


class Channel(NamedTuple):
    """Derivatives of one order at one scale."""

    order: int
    scale: float


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

    channels: tuple[Channel, ...]
    weights: tuple[float, ...]
    contrasts: tuple[float, ...]
    weight_exponents: tuple[float, ...]
    contrast_exponents: tuple[float, ...]
    couplings: tuple[float, ...]
    tau: float = field(default=1.0)

    def __post_init__(self) -> None:
        channels = tuple(Channel(*channel) for channel in self.channels)
        object.__setattr__(self, "channels", channels)
        for order, scale in channels:
            if order not in range(1, HIGHEST_ORDER + 1):
                raise ValueError(f"orders must be from 1 to {HIGHEST_ORDER}, got {order!r}")
            nonnegative_number("a channel's scale", scale)
        if not channels or any(a >= b for a, b in pairwise(channels)):
            raise ValueError(f"channels must be sorted and different, got {channels}")
        for name in DeepParameters._fields:
            length = len(channels) * (self.steps if name in ("weights", "contrasts") else 1)
            numbers = sequence_of_numbers(
                name, getattr(self, name), length, signed="exponents" in name
            )
            object.__setattr__(self, name, numbers)
        for i, contrast in enumerate(self.contrasts):
            positive_number(f"contrasts[{i}]", contrast)
        if self.discretisation != "haar":
            raise ValueError("derivatives of several orders need the discretisation 'haar'")
        if self.tau != 1:
            raise ValueError(f"tau must be 1: the weights say how far a step goes; got {self.tau}")
        super().__post_init__()

    @property
    def _depends_on_noise(self) -> bool:
        return True

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


@lru_cache(maxsize=8)
def bound_table(channels: tuple[Channel, ...], theta: float) -> NDArray[np.float64]:
    """Return the matrix that takes the weights of the channels to bounds of the eigenvalues."""
    return step_table([c.order for c in channels], [c.scale for c in channels], theta)


def evolution_of(channels: Sequence[Channel], numbers: DeepNumbers, *, theta: float) -> Evolution:
    """Return the process with the given numbers, nested sequences ``[step][channel]``."""
    scales = sorted({channel.scale for channel in channels})
    orders = sorted({channel.order for channel in channels})
    place = {channel: m for m, channel in enumerate(channels)}

    def term(order: int, weights: Any, fluxes: Any, contrasts: Any) -> Term:
        present = [place.get(Channel(order, scale)) for scale in scales]
        return Term(
            coupling_weights=tuple(0.0 if m is None else weights[m] for m in present),
            flux_weights=tuple(0.0 if m is None else fluxes[m] for m in present),
            contrasts=tuple(1.0 if m is None else contrasts[m] for m in present),
            coupling="tensor" if order == 1 else "trace",
            order=order,
        )

    schedule = tuple(
        tuple(term(order, *step) for order in orders) for step in zip(*numbers, strict=True)
    )
    return Evolution(
        scales=tuple(scales), schedule=schedule, tau=1.0, steps=len(schedule), theta=theta
    )
