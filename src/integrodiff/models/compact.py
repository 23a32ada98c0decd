"""A compact model beyond the paper's: power laws, and derivatives of more than one order."""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass, field, replace

from integrodiff._checks import finite_number, nonnegative_number, positive_number
from integrodiff.models.base import ExplicitModel
from integrodiff.models.description import (
    Described,
    each_finite,
    each_nonnegative,
    each_positive,
    law,
    parameter,
    require_lengths,
)
from integrodiff.models.laws import ScaleGrid, scale_grid_setting
from integrodiff.models.limits import MOST_VARYING_STEPS, blur_scale
from integrodiff.stages import Coupling, Evolution, Exponential, Term
from integrodiff.stages._arrays import Scalar, exp, sqrt
from integrodiff.stages.derivatives import HIGHEST_ORDER

REFERENCE_LEVEL = 30.0
"""Noise level at which a step size with an exponent has its stated value."""


@dataclass(frozen=True, kw_only=True)
class PowerLaws(Described):
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

    strengths: tuple[float, ...] = field(metadata=parameter(each_nonnegative))
    exponents: tuple[float, ...] = field(metadata=parameter(each_finite, transform="identity"))
    decays: tuple[float, ...] = field(metadata=parameter(each_nonnegative))
    contrasts: tuple[float, ...] = field(metadata=parameter(each_positive))
    contrast_exponents: tuple[float, ...] = field(
        metadata=parameter(each_finite, transform="identity")
    )

    conventions = 1  # a common factor of all strengths can be moved into contrasts and step size

    def _check(self) -> None:
        if len(self.strengths) > HIGHEST_ORDER:
            raise ValueError(
                f"there are at most {HIGHEST_ORDER} orders, got {len(self.strengths)} strengths"
            )
        require_lengths(self, tuple(self.declared()), len(self.strengths))

    @property
    def orders(self) -> range:
        """The orders of derivatives that the law is for."""
        return range(1, len(self.strengths) + 1)

    def weights(
        self, order: int, grid: ScaleGrid, sigma: float, drift: Scalar
    ) -> tuple[Scalar, ...]:
        """Return the weight of each scale, times the scale to the power ``drift``."""
        i = order - 1
        return tuple(
            quadrature
            * self.strengths[i]
            * scale ** (self.exponents[i] + drift)
            * exp(-2 * self.decays[i] * scale**2 / sqrt(sigma))
            for quadrature, scale in zip(grid.quadrature_weights, grid.scales, strict=True)
        )

    def contrasts_at(
        self, order: int, grid: ScaleGrid, sigma: float, growth: Scalar
    ) -> tuple[Scalar, ...]:
        """Return the contrast of each scale, times ``growth``."""
        i = order - 1
        return tuple(
            self.contrasts[i] * sigma * scale ** -self.contrast_exponents[i] * growth
            for scale in grid.scales
        )


@dataclass(frozen=True, kw_only=True)
class PowerLawDiffusion(ExplicitModel):
    r"""What diffusion with power laws in the scale has in common: how numbers change over time.

    At a noise level s the step size is the smaller of :math:`\tau\, (s / 30)^r` and the stable
    bound at s. The minimum is part of the law: the bound falls where the power rises.

    Attributes
    ----------
    scales : ScaleGrid
        The smoothing scales.
    tau_exponent : float
        The exponent r.
    contrast_growth : float
        Factor by which the contrasts grow from one step to the next.
    exponent_drift : float
        By how much the exponents of the weights rise from the first step to the last, from half
        of it below to half of it above. If it is positive, fine scales come first.
    """

    scales: ScaleGrid = field(default_factory=ScaleGrid, metadata=scale_grid_setting())
    tau_exponent: float = field(
        default=0.0, metadata=parameter(finite_number, transform="identity")
    )
    contrast_growth: float = field(default=1.0, metadata=parameter(positive_number))
    exponent_drift: float = field(
        default=0.0, metadata=parameter(finite_number, transform="identity")
    )

    def _check(self) -> None:
        if self.scales.smallest == 0:
            raise ValueError("powers of the scale need a smallest scale above zero")
        if self.discretisation != "haar":
            raise ValueError("derivatives of several orders need the discretisation 'haar'")
        if self.steps > MOST_VARYING_STEPS and not self._is_constant():
            raise ValueError(
                f"steps must be at most {MOST_VARYING_STEPS} where contrasts or exponents change "
                f"from step to step, got {self.steps}; take fewer"
            )

    @property
    def depends_on_noise(self) -> bool:
        """Whether the process is a function of the noise level."""
        return True

    def tau_factor(self, sigma: float) -> Scalar:
        """Return the step size at a noise level, relative to ``tau``."""
        return (sigma / REFERENCE_LEVEL) ** self.tau_exponent

    def _tau_is_a_law(self, sigma: float) -> bool:
        return True

    def _is_constant(self) -> bool:
        """Whether all steps have the same numbers."""
        return all(
            isinstance(number, float) and number == self.neutral(name)
            for name, number in (
                ("contrast_growth", self.contrast_growth),
                ("exponent_drift", self.exponent_drift),
            )
        )

    def _evolution(self, sigma: float) -> Evolution:
        return Evolution(
            scales=self.scales.scales,
            schedule=tuple(
                self._terms(step, sigma) for step in range(1 if self._is_constant() else self.steps)
            ),
            tau=self.tau * self.tau_factor(sigma),
            steps=self.steps,
        )

    def _terms(self, step: int, sigma: float) -> tuple[Term, ...]:
        """Return the terms of all orders at one step."""
        growth = self.contrast_growth**step
        drift = self.exponent_drift * (step / max(self.steps - 1, 1) - 0.5)
        return tuple(self._term(order, sigma, growth, drift) for order in self._orders())

    @abstractmethod
    def _orders(self) -> range:
        """Return the orders of derivatives, each of which is a term."""

    @abstractmethod
    def _term(self, order: int, sigma: float, growth: Scalar, drift: Scalar) -> Term:
        """Return a term: contrasts times ``growth``, exponents of the weights plus ``drift``."""


@dataclass(frozen=True, kw_only=True)
class CompactDiffusion(PowerLawDiffusion):
    r"""Integrodifferential diffusion of several orders with power laws of their own.

    The first order is anisotropic as in :class:`integrodiff.IAD`. Each higher order has a scalar
    diffusivity of the multiscale sum of squares of its derivatives, so that the model does not
    prefer any direction.

    Attributes
    ----------
    law : PowerLaws
        Weights and contrasts.
    pull : float
        Weight of the fidelity term, which draws the image to the input.
    integration_scale : float
        Standard deviation in pixels of the Gaussian that smooths the structure tensor, and the
        sums of squares of higher orders, before the diffusivity.
    """

    kind = "compact"

    law: PowerLaws = field(metadata=law(PowerLaws))
    pull: float = field(default=0.0, metadata=parameter(nonnegative_number))
    integration_scale: float = field(default=0.0, metadata=parameter(blur_scale, optional=True))

    def _evolution(self, sigma: float) -> Evolution:
        return replace(super()._evolution(sigma), pull=self.pull)

    def _orders(self) -> range:
        return self.law.orders

    def _term(self, order: int, sigma: float, growth: Scalar, drift: Scalar) -> Term:
        weights = self.law.weights(order, self.scales, sigma, drift)
        return Term(
            derivatives=self.derivatives(order),
            coupling=Coupling(
                kind="tensor" if order == 1 else "trace",
                weights=weights,
                integration_scale=self.integration_scale,
            ),
            diffusivity=Exponential(
                contrasts=self.law.contrasts_at(order, self.scales, sigma, growth)
            ),
            flux_weights=weights,
        )
