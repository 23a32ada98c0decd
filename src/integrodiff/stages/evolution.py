r"""Stage 7: the numbers of one diffusion process, ready to run.

A model with its laws, evaluated at one noise level, is an :class:`Evolution`: scales, one or more
*terms*, and the time stepping. A :class:`Term` is made of parts: a derivative operator, a coupling
that turns the derivatives at all scales into one field, a diffusivity of that field, and weights.
All models are of this form; the table says how (:math:`c_i = w_i \gamma_i^2`).

========  =========  ================  ================  ==============  ========  ======
model     equations  scales            coupling weights  flux weights    coupling  orders
========  =========  ================  ================  ==============  ========  ======
PM        (1)        0                 1                 1               trace     1
EED       (5), (6)   0, :math:`\rho`   0, 1              1, 0            tensor    1
IID       (7), (9)   all               :math:`c_i`       :math:`c_i`     trace     1
IAD       (7), (8)   all               :math:`c_i`       :math:`c_i`     tensor    1
========  =========  ================  ================  ==============  ========  ======
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar, Literal, TypeAlias, TypeVar, get_args

from integrodiff.stages._arrays import Array, Scalar
from integrodiff.stages.diffusion_tensor import (
    diffusion_tensor,
    diffusivity,
    rotated_diffusion_tensor,
    volume_diffusion_tensor,
)
from integrodiff.stages.eigenframe import Eigenframe, RotatedTensor
from integrodiff.stages.operators import DerivativeOperator, HaarGradient, Parts
from integrodiff.stages.reflection import Grid
from integrodiff.stages.scale_space import FLAT, blur_field
from integrodiff.stages.structure_tensor import (
    SymmetricTensor,
    VolumeTensor,
    integrated_tensor,
    mixed_tensor,
    multiscale_energy,
    multiscale_structure_tensor,
)

CouplingKind: TypeAlias = Literal["tensor", "trace"]
Field: TypeAlias = SymmetricTensor | Array
"""What the diffusivity is a function of: structure tensors, or a scalar energy.

In volumes the tensors are a :class:`VolumeTensor`, and then their :class:`.Eigenframe`.
"""


# Not Self, which checkers of shapes at run time do not take in a single method.
_Copy = TypeVar("_Copy", bound="Numbered")


class Numbered:
    """A frozen dataclass some of whose fields hold numbers that may be trained.

    ``numbered`` names these fields. Each is a number, another such object, or a tuple of these.
    """

    numbered: ClassVar[tuple[str, ...]] = ()

    def mapped(self: _Copy, function: Callable[[Scalar], Scalar]) -> _Copy:
        """Return a copy with a function applied to all numbers."""
        changes = {name: _mapped(getattr(self, name), function) for name in self.numbered}
        return replace(self, **changes)  # type: ignore[type-var]

    def numbers(self) -> tuple[Scalar, ...]:
        """Return all numbers, in the order of :meth:`with_numbers`."""
        found: list[Scalar] = []

        def remember(number: Scalar) -> Scalar:
            found.append(number)
            return number

        self.mapped(remember)
        return tuple(found)

    def with_numbers(self: _Copy, numbers: Sequence[Scalar]) -> _Copy:
        """Return a copy with other numbers."""
        remaining = iter(numbers)
        return self.mapped(lambda _: next(remaining))


def _mapped(value: Any, function: Callable[[Scalar], Scalar]) -> Any:
    if isinstance(value, Numbered):
        return value.mapped(function)
    if isinstance(value, tuple):
        return tuple(_mapped(member, function) for member in value)
    return function(value)


@dataclass(frozen=True, kw_only=True)
class Coupling(Numbered):
    r"""How the derivatives at all scales become the field that the diffusivity depends on.

    Attributes
    ----------
    weights : tuple of scalars
        Nonnegative weight of each scale. A scale of weight zero takes no part.
    kind : {"tensor", "trace"}
        Anisotropic (the multiscale structure tensor, for orders one and two) or isotropic (its
        trace, the sum of the squares of the derivatives).
    integration_scale : scalar
        Standard deviation :math:`\rho \ge 0` in pixels of a Gaussian that smooths the field. Every
        term of every step may have its own.
    mix : scalar
        From -1 to 1, for tensors of images: each eigenvalue gets that much of the other one, see
        :func:`.mixed_tensor`.
    """

    weights: tuple[Scalar, ...]
    kind: CouplingKind = "tensor"
    integration_scale: Scalar = 0.0
    mix: Scalar = 0.0

    numbered = ("weights", "integration_scale", "mix")

    def __post_init__(self) -> None:
        if self.kind not in get_args(CouplingKind):
            raise ValueError(f"kind must be 'tensor' or 'trace', got {self.kind!r}")
        # Tensors that are learned or traced are not looked at; a trace does not use its mix.
        if self.kind == "trace" and isinstance(self.mix, (int, float)) and self.mix != 0:
            raise ValueError("a mix of eigenvalues needs a coupling of the kind 'tensor'")

    @property
    def scales(self) -> list[int]:
        """Indices of the scales that take part."""
        return [i for i, weight in enumerate(self.weights) if not is_zero(weight)]

    def summed(self, operator: DerivativeOperator, parts: Mapping[int, Parts]) -> Field:
        """Return the sum over the scales whose parts are given, by their index."""
        coupled = [operator.coupled(part) for part in parts.values()]
        weights = [self.weights[i] for i in parts]
        if self.kind == "tensor":
            products = [operator.outer_product(part) for part in coupled]
            return multiscale_structure_tensor(products, weights)
        return multiscale_energy(coupled, weights, operator.dimensions)

    def mixed(self, field: Field) -> Field:
        """Return the field with its eigenvalues mixed."""
        if is_zero(self.mix):
            return field
        return mixed_tensor(field, self.mix)

    def integrated(self, field: Field, grid: Grid, spacing: Sequence[float] = FLAT) -> Field:
        """Return the field smoothed at the integration scale."""
        if is_zero(self.integration_scale):
            return field
        if isinstance(field, (SymmetricTensor, VolumeTensor)):
            return integrated_tensor(field, self.integration_scale, grid, spacing)
        return blur_field(field, self.integration_scale, grid=grid, spacing=spacing)


@dataclass(frozen=True, kw_only=True)
class Exponential(Numbered):
    r"""The diffusivity :math:`g_\lambda(\mu) = \exp(-\mu / (2 \lambda^2))`, eq. (2).

    Of a structure tensor J, a derivative of order n takes the n-th root on each of its n indices,
    :math:`g_\lambda(J)^{1/n} = \exp(-J / (2 n \lambda^2))`, so that the gates of all components
    where J is a multiple of the unit matrix are :math:`g_\lambda` itself.

    Attributes
    ----------
    contrasts : tuple of scalars
        Positive contrast :math:`\lambda_i` of each scale.
    """

    contrasts: tuple[Scalar, ...]

    numbered = ("contrasts",)

    def of(self, field: Field, scale: int, order: int = 1) -> Field:
        """Return the diffusivity of a field at the scale of an index.

        For tensors it is the one for each index of a derivative of the given order. In volumes
        the field is the :class:`.Eigenframe` of the tensors, or a :class:`.RotatedTensor`, see
        :meth:`.DerivativeOperator.prepared`.
        """
        if isinstance(field, RotatedTensor):
            return rotated_diffusion_tensor(field, self.contrasts[scale])
        if isinstance(field, Eigenframe):
            return volume_diffusion_tensor(field, self.contrasts[scale])
        if isinstance(field, SymmetricTensor):
            return diffusion_tensor(field, math.sqrt(order) * self.contrasts[scale])
        return diffusivity(field, self.contrasts[scale])


@dataclass(frozen=True, kw_only=True)
class Term(Numbered):
    """What one derivative operator contributes to the evolution, at all scales.

    Attributes
    ----------
    coupling : Coupling
        Turns the derivatives at all scales into one field.
    flux_weights : tuple of scalars
        Nonnegative weight of each scale in the flow. A scale of weight zero has none.
    diffusivity : Exponential
        Function of the coupling's field, with a contrast for each scale.
    derivatives : DerivativeOperator
        Gradient or higher derivatives, with their discretisation.
    """

    coupling: Coupling
    flux_weights: tuple[Scalar, ...]
    diffusivity: Exponential
    derivatives: DerivativeOperator = field(default_factory=HaarGradient)

    numbered = ("coupling", "flux_weights", "diffusivity")

    def __post_init__(self) -> None:
        if self.coupling.kind == "tensor" and not self.derivatives.has_tensor_gate:
            raise ValueError(
                f"derivatives of order {self.derivatives.order} have no structure tensor; "
                "their coupling must be of the kind 'trace'"
            )

    @property
    def lengths(self) -> set[int]:
        """Numbers of scales that the sequences are for."""
        sequences = (self.coupling.weights, self.flux_weights, self.diffusivity.contrasts)
        return {len(sequence) for sequence in sequences}

    @property
    def scales_in_flux(self) -> list[int]:
        """Indices of the scales that have a flow."""
        return [i for i, weight in enumerate(self.flux_weights) if not is_zero(weight)]

    @property
    def scales_in_coupling(self) -> list[int]:
        """Indices of the scales that the coupling is made of.

        If all have weight zero, which is linear diffusion, one of them gives the field its shape.
        """
        return self.coupling.scales or self.scales_in_flux[:1]


@dataclass(frozen=True, kw_only=True)
class Evolution(Numbered):
    """All that the explicit scheme needs to know.

    Attributes
    ----------
    scales : tuple of scalars
        Smoothing scales in pixels, not decreasing; not among the numbers of ``mapped``.
    schedule : tuple of tuples of Term
        The terms of each step; a single entry holds for all steps.
    tau : scalar
        Time step size.
    steps : int
        Number of explicit steps.
    pull : scalar or tuple of scalars
        Weight of the fidelity term, which draws the image to the input; nonnegative. One for all
        steps, or one for each.
    spacing : tuple of float
        Distance of neighbours along each axis, in the unit of the scales: of rows and columns, or
        of slices, rows and columns.
    """

    scales: tuple[Scalar, ...]
    schedule: tuple[tuple[Term, ...], ...]
    tau: Scalar
    steps: int
    pull: Scalar | tuple[Scalar, ...] = 0.0
    spacing: tuple[float, ...] = FLAT

    numbered = ("tau", "pull", "schedule")

    def __post_init__(self) -> None:
        lengths = set().union(*(term.lengths for terms in self.schedule for term in terms))
        if lengths != {len(self.scales)} or not self.scales:
            raise ValueError(
                "every term needs two weights and a contrast for each of the scales (at least "
                f"one); got {len(self.scales)} scales and {sorted(lengths)} values"
            )
        if len(self.schedule) not in (1, self.steps):
            raise ValueError(f"{self.steps} steps need 1 or {self.steps} entries of the schedule")
        if isinstance(self.pull, tuple) and len(self.pull) != self.steps:
            raise ValueError(f"{self.steps} steps need 1 or {self.steps} fidelity weights")
        if any(term.derivatives.dimensions != self.dimensions for term in self.all_terms()):
            raise ValueError(
                f"a spacing of {self.dimensions} numbers needs derivatives in as many dimensions"
            )

    @property
    def dimensions(self) -> int:
        """Two for images, three for volumes."""
        return len(self.spacing)

    def in_volume(self, spacing: tuple[float, float, float]) -> Evolution:
        """Return the process for volumes that is this one in volumes of equal slices.

        Parameters
        ----------
        spacing : (float, float, float)
            Distance of slices, rows and columns, in the unit of the scales.

        Raises
        ------
        ValueError
            If a derivative operator, or a mix of eigenvalues, is for images alone.
        """

        def moved(term: Term) -> Term:
            return replace(term, derivatives=term.derivatives.in_volume(spacing))

        schedule = tuple(tuple(map(moved, terms)) for terms in self.schedule)
        if any(not is_zero(term.coupling.mix) for term in self.all_terms()):
            raise ValueError("eigenvalues are mixed in images, not in volumes; take another model")
        return replace(self, schedule=schedule, spacing=spacing)

    def terms(self, step: int) -> tuple[Term, ...]:
        """Return the terms of one step, counted from zero."""
        return self.schedule[0 if len(self.schedule) == 1 else step]

    def pull_at(self, step: int) -> Scalar:
        """Return the fidelity weight of one step, counted from zero."""
        return self.pull[step] if isinstance(self.pull, tuple) else self.pull

    def pulls(self) -> tuple[Scalar, ...]:
        """Return the fidelity weights of all steps, or the one that all of them have."""
        return self.pull if isinstance(self.pull, tuple) else (self.pull,)

    def all_terms(self) -> tuple[Term, ...]:
        """Return the terms of all entries of the schedule."""
        return tuple(term for terms in self.schedule for term in terms)


def scaled(field: Field, factor: Array) -> Field:
    """Return a field times a factor at each place."""
    if isinstance(field, (SymmetricTensor, VolumeTensor)):
        return type(field)(*(factor * entry for entry in field))
    return factor * field


def is_zero(weight: object) -> bool:
    """Whether a weight is the plain number zero; a trained weight never is."""
    return isinstance(weight, (int, float)) and weight == 0
