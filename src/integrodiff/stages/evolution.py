r"""Stage 6: the numbers of one diffusion process, ready to run.

A model with its laws, evaluated at one noise level, is an :class:`Evolution`: scales, one or more
*terms*, and the time stepping. A term has the derivatives of one order, and for each scale what
it contributes to the coupling (the structure tensor, or a sum of squares) and to the flow, and a
contrast. All models are of this form; the table says how (:math:`c_i = w_i \gamma_i^2`).

========  ================  ================  ==============  ========  =============
model     scales            coupling weights  flux weights    coupling  orders
========  ================  ================  ==============  ========  =============
PM        0                 1                 1               trace     1
EED       0, :math:`\rho`   0, 1              1, 0            tensor    1
IID       all               :math:`c_i`       :math:`c_i`     trace     1
IAD       all               :math:`c_i`       :math:`c_i`     tensor    1
========  ================  ================  ==============  ========  =============
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Literal, TypeAlias

from integrodiff.stages._arrays import Scalar
from integrodiff.stages.derivatives import HIGHEST_ORDER
from integrodiff.stages.gradient import Discretisation

Coupling: TypeAlias = Literal["tensor", "trace"]


@dataclass(frozen=True, kw_only=True)
class Term:
    """What the derivatives of one order contribute.

    Attributes
    ----------
    coupling_weights, flux_weights : tuple of scalars
        Nonnegative weight of each scale in the coupling and in the flow. A scale whose weight
        is zero takes no part.
    contrasts : tuple of scalars
        Positive contrast parameter of each scale.
    coupling : {"tensor", "trace"}
        Anisotropic (the structure tensor) or isotropic (its trace, the sum of the squares of
        the derivatives). Orders above one have the latter.
    order : int
        Order of the derivatives, from 1 to 4.
    """

    coupling_weights: tuple[Scalar, ...]
    flux_weights: tuple[Scalar, ...]
    contrasts: tuple[Scalar, ...]
    coupling: Coupling = "tensor"
    order: int = 1

    def __post_init__(self) -> None:
        if not 1 <= self.order <= HIGHEST_ORDER:
            raise ValueError(f"order must be from 1 to {HIGHEST_ORDER}, got {self.order}")
        if self.order > 1 and self.coupling != "trace":
            raise ValueError("only a term of order 1 can have a tensor as its coupling")

    @property
    def lengths(self) -> set[int]:
        """Numbers of scales that the sequences are for."""
        return {len(self.coupling_weights), len(self.flux_weights), len(self.contrasts)}


@dataclass(frozen=True, kw_only=True)
class Evolution:
    """All that the explicit scheme needs to know.

    Attributes
    ----------
    scales : tuple of scalars
        Smoothing scales in pixels, not decreasing.
    schedule : tuple of tuples of Term
        The terms of each step; a single entry holds for all steps.
    tau : scalar
        Time step size.
    steps : int
        Number of explicit steps.
    pull : scalar
        Strength of the attraction to the input image, nonnegative.
    discretisation : {"haar", "nonnegativity"}
        The spatial scheme of the terms of order one.
    theta : float
        Free parameter of the Haar cell.
    """

    scales: tuple[Scalar, ...]
    schedule: tuple[tuple[Term, ...], ...]
    tau: Scalar
    steps: int
    pull: Scalar = 0.0
    discretisation: Discretisation = "haar"
    theta: float = 0.25

    def __post_init__(self) -> None:
        lengths = set().union(*(term.lengths for terms in self.schedule for term in terms))
        if lengths != {len(self.scales)} or not self.scales:
            raise ValueError(
                "every term needs two weights and a contrast for each of the scales (at least "
                f"one); got {len(self.scales)} scales and {sorted(lengths)} values"
            )
        if len(self.schedule) not in (1, self.steps):
            raise ValueError(f"{self.steps} steps need 1 or {self.steps} entries of the schedule")

    def terms(self, step: int) -> tuple[Term, ...]:
        """Return the terms of one step, counted from zero."""
        return self.schedule[0 if len(self.schedule) == 1 else step]

    def numbers(self) -> tuple[Scalar, ...]:
        """Return all numbers but the scales, in the order of :meth:`with_numbers`."""
        found: list[Scalar] = []

        def remember(number: Scalar) -> Scalar:
            found.append(number)
            return number

        self.mapped(remember)
        return tuple(found)

    def with_numbers(self, numbers: tuple[Scalar, ...]) -> Evolution:
        """Return the process with other numbers."""
        remaining = iter(numbers)
        return self.mapped(lambda _: next(remaining))

    def mapped(self, function: Callable[[Scalar], Scalar]) -> Evolution:
        """Return the process with a function applied to all numbers but the scales."""

        def each(numbers: tuple[Scalar, ...]) -> tuple[Scalar, ...]:
            return tuple(function(number) for number in numbers)

        return replace(
            self,
            tau=function(self.tau),
            pull=function(self.pull),
            schedule=tuple(
                tuple(
                    replace(
                        term,
                        coupling_weights=each(term.coupling_weights),
                        flux_weights=each(term.flux_weights),
                        contrasts=each(term.contrasts),
                    )
                    for term in terms
                )
                for terms in self.schedule
            ),
        )
