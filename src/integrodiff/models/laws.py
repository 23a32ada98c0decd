r"""How weights and contrasts depend on the smoothing scale and on the noise level.

Both integrodifferential models take either of two laws: :class:`FullLaw` has two free numbers
per scale, :class:`ReducedLaw` the three of the paper for all scales and noise levels together.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, field, fields, replace
from functools import cached_property
from typing import Any, Literal, NamedTuple, Self, TypeAlias, get_args

import numpy as np

from integrodiff._checks import nonnegative_number, one_of, positive_integer, positive_number
from integrodiff.models.description import (
    Described,
    Json,
    each_nonnegative,
    each_positive,
    exact_names,
    instance_of,
    parameter,
    require_lengths,
    setting,
)
from integrodiff.models.limits import (
    MOST_SCALES,
    at_most,
    blur_scale,
    integration_limits,
    positive_blur_scale,
)
from integrodiff.stages._arrays import Scalar, exp, has_axes, sqrt

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

    Examples
    --------
    >>> from integrodiff import ScaleGrid
    >>> grid = ScaleGrid(count=3, smallest=0.5, largest=2.0)
    >>> [round(scale, 6) for scale in grid.scales]
    [0.5, 1.0, 2.0]
    >>> grid.quadrature_weights
    (0.5, 0.75, 1.0)
    """

    count: int = 8
    smallest: float = 0.2
    largest: float = 7.0
    quadrature: Quadrature = "gradient"

    def __post_init__(self) -> None:
        at_most("count", positive_integer("count", self.count), MOST_SCALES)
        one_of("quadrature", self.quadrature, get_args(Quadrature))
        if self.count == 1:
            blur_scale("smallest", self.smallest)
            blur_scale("largest", self.largest)
            if self.largest != self.smallest:
                raise ValueError(
                    "a grid of one scale needs largest equal to smallest, got "
                    f"smallest={self.smallest} and largest={self.largest}"
                )
        else:
            positive_blur_scale("smallest", self.smallest)
            positive_blur_scale("largest", self.largest)
            if not self.smallest < self.largest:
                raise ValueError(
                    f"smallest must be below largest, got {self.smallest} and {self.largest}"
                )

    @cached_property
    def scales(self) -> tuple[float, ...]:
        """The scales, finest first."""
        if self.count == 1:
            return (float(self.smallest),)
        return tuple(np.geomspace(self.smallest, self.largest, self.count).tolist())

    @cached_property
    def quadrature_weights(self) -> tuple[float, ...]:
        """Weight of each scale in a sum that stands for an integral over the scales."""
        if self.count == 1 or self.quadrature == "none":
            return (1.0,) * self.count
        scales = np.array(self.scales)
        density = scales if self.quadrature == "variance" else 1.0
        return tuple((density * np.gradient(scales)).tolist())

    @classmethod
    def from_json(cls, value: Json) -> Self:
        """Return the grid that a model file describes."""
        exact_names("settings.scales", value, tuple(entry.name for entry in fields(cls)))
        return cls(**value)


def scale_grid_setting() -> dict[str, Any]:
    """Return the metadata of a model's field with its grid of scales."""
    return setting(instance_of(ScaleGrid), to_json=asdict, from_json=ScaleGrid.from_json)


def integration_limits_setting() -> dict[str, Any]:
    """Return the metadata of a model's field with the limits of its integration scales."""
    return setting(
        integration_limits, optional=True, to_json=lambda pairs: [list(pair) for pair in pairs]
    )


class LawValues(NamedTuple):
    """A law evaluated on the scales of a grid at one noise level."""

    gammas: tuple[Scalar, ...]
    lambdas: tuple[Scalar, ...]


@dataclass(frozen=True, kw_only=True)
class FullLaw(Described):
    r"""Free weights :math:`\gamma_i` and contrasts :math:`\lambda_i`, one of each per scale.

    They hold for one noise level; :class:`integrodiff.ByNoiseLevel` joins several.

    Examples
    --------
    >>> from integrodiff import FullLaw
    >>> law = FullLaw(gammas=(1.0, 0.5), lambdas=(3.0, 1.5))
    >>> law.values((0.5, 2.0), sigma=25).lambdas
    (3.0, 1.5)
    """

    gammas: tuple[float, ...] = field(metadata=parameter(each_nonnegative))
    lambdas: tuple[float, ...] = field(metadata=parameter(each_positive))

    form = "full"
    conventions = 1  # a common factor of all weights can be moved into contrasts and step size
    depends_on_noise = False

    def _check(self) -> None:
        require_lengths(self, ("lambdas",), len(self.gammas))

    def values(self, scales: Sequence[float], sigma: float) -> LawValues:
        """Return the numbers themselves, whatever the noise level."""
        if len(scales) != len(self.gammas):
            raise ValueError(
                f"the law has {len(self.gammas)} weights and contrasts for {len(scales)} scales"
            )
        return LawValues(self.gammas, self.lambdas)

    def extrapolated(self, ratio: Scalar) -> Self:
        """Return the law for noise ``ratio`` times as strong: contrasts follow, weights do not.

        It treats ``ratio`` times an image as this one treats the image. Weights and contrasts
        that were trained together mean little on their own, so they are not continued one by one.
        """
        lambdas = tuple(ratio * contrast for contrast in self.lambdas)
        if any(map(has_axes, lambdas)):
            return self.with_arrays({"lambdas": lambdas})
        return replace(self, lambdas=lambdas)


@dataclass(frozen=True, kw_only=True)
class ReducedLaw(Described):
    r"""The paper's laws in the smoothing scale :math:`\rho` and the noise level s.

    .. math::
        \gamma(\rho, s) = \exp\bigl(-\alpha \rho^2 / \sqrt{s}\bigr), \qquad
        \lambda(\rho, s) = \frac{\lambda_0\, s}{1 + \beta \rho^2}

    These are eqs. (10) and (11) of the paper.

    Examples
    --------
    >>> from integrodiff import ReducedLaw
    >>> law = ReducedLaw(alpha=0.0, beta=1.0, lambda_0=0.1)
    >>> gammas, lambdas = law.values((0.0, 1.0), sigma=30)
    >>> [round(float(contrast), 6) for contrast in lambdas]
    [3.0, 1.5]
    """

    alpha: float = field(metadata=parameter(nonnegative_number))
    beta: float = field(metadata=parameter(nonnegative_number))
    lambda_0: float = field(metadata=parameter(positive_number))

    form = "reduced"
    depends_on_noise = True

    def values(self, scales: Sequence[float], sigma: float) -> LawValues:
        """Evaluate both laws at the noise level ``sigma`` on the scale [0, 255]."""
        return LawValues(
            tuple(exp(-self.alpha * scale**2 / sqrt(sigma)) for scale in scales),
            tuple(self.lambda_0 * sigma / (1 + self.beta * scale**2) for scale in scales),
        )

    def extrapolated(self, ratio: Scalar) -> None:
        """Return None: the law holds for all noise levels."""
        return
