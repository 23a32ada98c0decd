"""A compact model beyond the paper's: power laws, and derivatives of more than one order."""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace

from integrodiff._checks import (
    finite_number,
    nonnegative_number,
    positive_number,
    sequence_of_numbers,
)
from integrodiff.models.base import ExplicitModel, stable_step_of
from integrodiff.models.laws import ScaleGrid
from integrodiff.stages import Evolution, Term
from integrodiff.stages._arrays import Scalar, exp
from integrodiff.stages.derivatives import HIGHEST_ORDER

REFERENCE_LEVEL = 30.0
"""Noise level at which a step size with an exponent has its stated value."""


@dataclass(frozen=True, kw_only=True)
class PowerLaws:
    r"""Weights and contrasts as powers of the scale, for derivatives of order 1, 2, ...

    .. math::
        c(\rho, s) = w(\rho)\, a\, \rho^{\,e}\, \exp\bigl(-2 \alpha \rho^2 / \sqrt{s}\bigr),
        \qquad \lambda(\rho, s) = b\, s\, \rho^{-p}

    where w is the weight of the quadrature over the scales.

    Attributes
    ----------
    strengths, exponents, decays : tuple of float
        :math:`a \ge 0`, :math:`e` and :math:`\alpha \ge 0`, one for each order.
    contrasts, contrast_exponents : tuple of float
        :math:`b > 0` and :math:`p`, one for each order.
    """

    strengths: tuple[float, ...]
    exponents: tuple[float, ...]
    decays: tuple[float, ...]
    contrasts: tuple[float, ...]
    contrast_exponents: tuple[float, ...]

    def __post_init__(self) -> None:
        orders = len(sequence_of_numbers("strengths", self.strengths))
        if orders > HIGHEST_ORDER:
            raise ValueError(f"there are at most {HIGHEST_ORDER} orders, got {orders} strengths")
        for name in self.__dataclass_fields__:
            numbers = sequence_of_numbers(
                name, getattr(self, name), orders, signed="exponents" in name
            )
            object.__setattr__(self, name, numbers)
        for i, contrast in enumerate(self.contrasts):
            positive_number(f"contrasts[{i}]", contrast)

    def terms(
        self, grid: ScaleGrid, sigma: float, growth: Scalar = 1.0, drift: Scalar = 0.0
    ) -> tuple[Term, ...]:
        """Return the terms of all orders at a noise level.

        Contrasts are multiplied by ``growth``, and weights by the scale to the power ``drift``.
        """
        return tuple(
            self._term(order, grid, sigma, growth, drift) for order in range(len(self.strengths))
        )

    def _term(self, i: int, grid: ScaleGrid, sigma: float, growth: Scalar, drift: Scalar) -> Term:
        weights = tuple(
            quadrature
            * self.strengths[i]
            * scale ** (self.exponents[i] + drift)
            * exp(-2 * self.decays[i] * scale**2 / math.sqrt(sigma))
            for quadrature, scale in zip(grid.quadrature_weights, grid.scales, strict=True)
        )
        return Term(
            coupling_weights=weights,
            flux_weights=weights,
            contrasts=tuple(
                self.contrasts[i] * sigma * scale ** -self.contrast_exponents[i] * growth
                for scale in grid.scales
            ),
            coupling="tensor" if i == 0 else "trace",
            order=i + 1,
        )


@dataclass(frozen=True, kw_only=True)
class CompactDiffusion(ExplicitModel):
    r"""Integrodifferential diffusion of several orders with power laws.

    The first order is anisotropic as in :class:`integrodiff.IAD`. Each higher order has a scalar
    diffusivity of the multiscale sum of squares of its derivatives, so that the model does not
    prefer any direction. At a noise level s the step size is
    :math:`\tau\, (s / 30)^r`, or the stable bound where that is smaller.

    Attributes
    ----------
    law : PowerLaws
        Weights and contrasts.
    scales : ScaleGrid
        The smoothing scales.
    tau_exponent : float
        The exponent r.
    contrast_growth : float
        Factor by which the contrasts grow from one step to the next.
    exponent_drift : float
        By how much the exponents of the weights rise from the first step to the last, from half
        of it below to half of it above. If it is positive, fine scales come first.
    pull : float
        Strength of the attraction to the input image.
    """

    law: PowerLaws
    scales: ScaleGrid = field(default_factory=ScaleGrid)
    tau_exponent: float = 0.0
    contrast_growth: float = 1.0
    exponent_drift: float = 0.0
    pull: float = 0.0

    def __post_init__(self) -> None:
        if not isinstance(self.law, PowerLaws):
            raise TypeError(f"law must be a PowerLaws, got {self.law!r}")
        if not isinstance(self.scales, ScaleGrid):
            raise TypeError(f"scales must be a ScaleGrid, got {self.scales!r}")
        if self.scales.smallest == 0:
            raise ValueError("powers of the scale need a smallest scale above zero")
        if self.discretisation != "haar":
            raise ValueError("derivatives of several orders need the discretisation 'haar'")
        for name, check in (
            ("tau_exponent", finite_number),
            ("contrast_growth", positive_number),
            ("exponent_drift", finite_number),
            ("pull", nonnegative_number),
        ):
            object.__setattr__(self, name, check(name, getattr(self, name)))
        super().__post_init__()

    @property
    def _depends_on_noise(self) -> bool:
        return True

    def tau_factor(self, sigma: float) -> Scalar:
        """Return the step size at a noise level, relative to ``tau``."""
        return (sigma / REFERENCE_LEVEL) ** self.tau_exponent

    def evolution(self, sigma: float) -> Evolution:
        """Return the diffusion process for the noise level ``sigma``, with a stable step size."""
        evolution = self._evolution(positive_number("sigma", sigma))
        return replace(evolution, tau=min(evolution.tau, stable_step_of(evolution)))

    def _evolution(self, sigma: float) -> Evolution:
        constant = all(
            isinstance(number, float) and number == unchanged
            for number, unchanged in ((self.contrast_growth, 1), (self.exponent_drift, 0))
        )
        return Evolution(
            scales=self.scales.scales,
            schedule=tuple(
                self.law.terms(
                    self.scales,
                    sigma,
                    self.contrast_growth**step,
                    self.exponent_drift * (step / max(self.steps - 1, 1) - 0.5),
                )
                for step in range(1 if constant else self.steps)
            ),
            tau=self.tau * self.tau_factor(sigma),
            steps=self.steps,
            pull=self.pull,
            discretisation=self.discretisation,
            theta=self.theta,
        )
