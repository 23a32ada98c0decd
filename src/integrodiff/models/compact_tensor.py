"""A compact model whose orders are all anisotropic, with integration scales and shared laws."""

from __future__ import annotations

from dataclasses import dataclass, field

from integrodiff._checks import finite_number, nonnegative_number
from integrodiff.models.compact import REFERENCE_LEVEL, PowerLawDiffusion
from integrodiff.models.description import (
    Described,
    each,
    each_nonnegative,
    each_positive,
    law,
    parameter,
    require_lengths,
)
from integrodiff.models.laws import ScaleGrid, integration_limits_setting
from integrodiff.models.limits import blur_scale
from integrodiff.stages import Coupling, Exponential, Term
from integrodiff.stages._arrays import Scalar, clipped, exp, sqrt

_HIGHEST_ORDER = 2
"""Derivatives of higher orders have no tensor gate."""


@dataclass(frozen=True, kw_only=True)
class SharedLaws(Described):
    r"""Laws in the scale and the noise level that the orders n = 1 and 2 share.

    .. math::
        c_n(\sigma, s) &= w(\sigma)\, a_n\, \sigma^{\,e + n - 1}
            \exp\bigl(-2 \alpha \sigma^2 / \sqrt{s}\bigr) \\
        \lambda_n(\sigma, s) &= b_n\, s\, \sigma^{-(p + n - 1)} \\
        \rho_n(s) &= \rho_n\, (s / 30)^{q}

    where w is the weight of the quadrature over the scales and :math:`\rho_n` the integration
    scale of the structure tensor of order n. One power of the scale more for each order takes the
    place of exponents of its own.

    Attributes
    ----------
    strengths, contrasts, integration_scales : tuple of float
        :math:`a_n \ge 0`, :math:`b_n > 0` and :math:`\rho_n \ge 0` in pixels, for each order.
    exponent, decay, contrast_exponent, integration_exponent : float
        :math:`e`, :math:`\alpha \ge 0`, :math:`p` and :math:`q`.
    """

    strengths: tuple[float, ...] = field(metadata=parameter(each_nonnegative))
    exponent: float = field(metadata=parameter(finite_number, transform="identity"))
    decay: float = field(metadata=parameter(nonnegative_number))
    contrasts: tuple[float, ...] = field(metadata=parameter(each_positive))
    contrast_exponent: float = field(metadata=parameter(finite_number, transform="identity"))
    integration_scales: tuple[float, ...] = field(metadata=parameter(each(blur_scale)))
    integration_exponent: float = field(metadata=parameter(finite_number, transform="identity"))

    conventions = 1  # a common factor of all strengths can be moved into contrasts and step size

    def _check(self) -> None:
        if not 1 <= len(self.strengths) <= _HIGHEST_ORDER:
            raise ValueError(f"there are one or two orders, got {len(self.strengths)} strengths")
        require_lengths(self, ("contrasts", "integration_scales"), len(self.strengths))

    def weights(
        self, order: int, grid: ScaleGrid, sigma: float, drift: Scalar
    ) -> tuple[Scalar, ...]:
        """Return the weight of each scale, times the scale to the power ``drift``."""
        return tuple(
            quadrature
            * self.strengths[order - 1]
            * scale ** (self.exponent + order - 1 + drift)
            * exp(-2 * self.decay * scale**2 / sqrt(sigma))
            for quadrature, scale in zip(grid.quadrature_weights, grid.scales, strict=True)
        )

    def contrasts_at(
        self, order: int, grid: ScaleGrid, sigma: float, growth: Scalar
    ) -> tuple[Scalar, ...]:
        """Return the contrast of each scale, times ``growth``."""
        return tuple(
            self.contrasts[order - 1]
            * sigma
            * scale ** -(self.contrast_exponent + order - 1)
            * growth
            for scale in grid.scales
        )

    def integration_scale_at(self, order: int, sigma: float) -> Scalar:
        """Return the integration scale at a noise level."""
        ratio = (sigma / REFERENCE_LEVEL) ** self.integration_exponent
        return self.integration_scales[order - 1] * ratio


@dataclass(frozen=True, kw_only=True)
class CompactTensorDiffusion(PowerLawDiffusion):
    r"""Anisotropic diffusion of order one, or of orders one and two, with shared power laws.

    Order one is that of :class:`integrodiff.IAD`. Of order two the Hessian H at each scale becomes
    :math:`A H A` with :math:`A = \exp(-J_2 / (4 \lambda^2))` and the structure tensor
    :math:`J_2 = \sum_i c_i H_i^2`. The structure tensor of each order is smoothed at its own
    integration scale.

    Attributes
    ----------
    law : SharedLaws
        Weights, contrasts and integration scales.
    integration_limits : tuple of (float, float)
        Smallest and largest integration scale of each order, to which the law is cut; or none. The
        fused step of the compiled engine takes at most 5.2 pixels in order one, and 2.5 to 10.5
        pixels in order two.
    """

    kind = "compact-tensor"
    share_of_bound = 0.996  # so that no shortcut of the compiled engine has to cut a step

    law: SharedLaws = field(metadata=law(SharedLaws))
    integration_limits: tuple[tuple[float, float], ...] = field(
        default=(), metadata=integration_limits_setting()
    )

    def _check(self) -> None:
        super()._check()
        orders = len(self._orders()) if self.integration_limits else 0
        require_lengths(self, ("integration_limits",), orders)

    def integration_scale_at(self, order: int, sigma: float) -> Scalar:
        """Return the integration scale at a noise level, within its limits."""
        scale = self.law.integration_scale_at(order, sigma)
        if not self.integration_limits:
            return scale
        lowest, highest = self.integration_limits[order - 1]
        return clipped(scale, lowest, highest)

    def _orders(self) -> range:
        return range(1, len(self.law.strengths) + 1)

    def _term(self, order: int, sigma: float, growth: Scalar, drift: Scalar) -> Term:
        weights = self.law.weights(order, self.scales, sigma, drift)
        return Term(
            derivatives=self.derivatives(order),
            coupling=Coupling(
                kind="tensor",
                weights=weights,
                integration_scale=self.integration_scale_at(order, sigma),
            ),
            diffusivity=Exponential(
                contrasts=self.law.contrasts_at(order, self.scales, sigma, growth)
            ),
            flux_weights=weights,
        )
