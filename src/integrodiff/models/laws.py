r"""How weights and contrasts depend on the smoothing scale and on the noise level.

Both integrodifferential models take either of two laws: :class:`FullLaw` has two free numbers
per scale, :class:`ReducedLaw` the three of the paper for all scales and noise levels together.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal, NamedTuple, TypeAlias, get_args

import numpy as np

from integrodiff._checks import (
    nonnegative_number,
    one_of,
    positive_integer,
    positive_number,
    sequence_of_numbers,
)
from integrodiff.stages._arrays import Scalar, exp

Quadrature: TypeAlias = Literal["gradient", "variance", "none"]


@dataclass(frozen=True, kw_only=True)
class ScaleGrid:
    r"""Exponentially sampled smoothing scales with the weights of a quadrature over them.

    Attributes
    ----------
    count : int
        Number of scales N.
    smallest, largest : float
        First and last scale in pixels; equal to each other, and possibly zero, if ``count`` is 1.
    quadrature : {"gradient", "variance", "none"}
        ``gradient`` gives each scale the weight :math:`w_i \approx d\rho_i` of the integral over
        the scales (half the distance of its two neighbours). ``variance`` integrates over the
        variance of the Gaussians instead, :math:`w_i \approx \rho_i\, d\rho_i`. ``none`` gives
        all scales weight 1. A single scale always has weight 1.
    """

    count: int = 8
    smallest: float = 0.2
    largest: float = 7.0
    quadrature: Quadrature = "gradient"

    def __post_init__(self) -> None:
        positive_integer("count", self.count)
        one_of("quadrature", self.quadrature, get_args(Quadrature))
        if self.count == 1:
            nonnegative_number("smallest", self.smallest)
            if self.largest != self.smallest:
                raise ValueError(
                    "a grid of one scale needs largest equal to smallest, got "
                    f"smallest={self.smallest} and largest={self.largest}"
                )
        else:
            positive_number("smallest", self.smallest)
            positive_number("largest", self.largest)
            if not self.smallest < self.largest:
                raise ValueError(
                    f"smallest must be below largest, got {self.smallest} and {self.largest}"
                )

    @property
    def scales(self) -> tuple[float, ...]:
        """The scales, finest first."""
        if self.count == 1:
            return (float(self.smallest),)
        return tuple(np.geomspace(self.smallest, self.largest, self.count).tolist())

    @property
    def quadrature_weights(self) -> tuple[float, ...]:
        """Weight of each scale in a sum that stands for an integral over the scales."""
        if self.count == 1 or self.quadrature == "none":
            return (1.0,) * self.count
        scales = np.array(self.scales)
        density = scales if self.quadrature == "variance" else 1.0
        return tuple((density * np.gradient(scales)).tolist())


class LawValues(NamedTuple):
    """A law evaluated on the scales of a grid at one noise level."""

    gammas: tuple[Scalar, ...]
    lambdas: tuple[Scalar, ...]


@dataclass(frozen=True, kw_only=True)
class FullLaw:
    r"""Free weights :math:`\gamma_i` and contrasts :math:`\lambda_i`, one of each per scale.

    They hold for one noise level; :class:`integrodiff.ByNoiseLevel` joins several.
    """

    gammas: tuple[float, ...]
    lambdas: tuple[float, ...]

    def __post_init__(self) -> None:
        object.__setattr__(self, "gammas", sequence_of_numbers("gammas", self.gammas))
        lambdas = sequence_of_numbers("lambdas", self.lambdas, length=len(self.gammas))
        for i, contrast in enumerate(lambdas):
            positive_number(f"lambdas[{i}]", contrast)
        object.__setattr__(self, "lambdas", lambdas)

    def values(self, scales: Sequence[float], sigma: float) -> LawValues:
        """Return the numbers themselves, whatever the noise level."""
        if len(scales) != len(self.gammas):
            raise ValueError(
                f"the law has {len(self.gammas)} weights and contrasts for {len(scales)} scales"
            )
        return LawValues(self.gammas, self.lambdas)

    def scaled(self, factor: float) -> FullLaw:
        """Return the law that treats ``factor`` times an image as this one treats the image."""
        return replace(self, lambdas=tuple(factor * contrast for contrast in self.lambdas))


@dataclass(frozen=True, kw_only=True)
class ReducedLaw:
    r"""The paper's laws in the smoothing scale :math:`\rho` and the noise level s.

    .. math::
        \gamma(\rho, s) = \exp\bigl(-\alpha \rho^2 / \sqrt{s}\bigr), \qquad
        \lambda(\rho, s) = \frac{\lambda_0\, s}{1 + \beta \rho^2}
    """

    alpha: float
    beta: float
    lambda_0: float

    def __post_init__(self) -> None:
        for name in ("alpha", "beta"):
            object.__setattr__(self, name, nonnegative_number(name, getattr(self, name)))
        object.__setattr__(self, "lambda_0", positive_number("lambda_0", self.lambda_0))

    def values(self, scales: Sequence[float], sigma: float) -> LawValues:
        """Evaluate both laws at the noise level ``sigma`` on the scale [0, 255]."""
        return LawValues(
            tuple(exp(-self.alpha * scale**2 / math.sqrt(sigma)) for scale in scales),
            tuple(self.lambda_0 * sigma / (1 + self.beta * scale**2) for scale in scales),
        )
