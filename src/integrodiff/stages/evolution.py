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

from integrodiff.stages._arrays import Array, Scalar, plain
from integrodiff.stages.diffusion_tensor import (
    diffusion_tensor,
    diffusivity,
    rotated_diffusion_tensor,
    volume_diffusion_tensor,
)
from integrodiff.stages.domain import flux_reach, walk_taps
from integrodiff.stages.eigenframe import Eigenframe, RotatedTensor
from integrodiff.stages.operators import DerivativeOperator, HaarGradient, Parts
from integrodiff.stages.reflection import Grid
from integrodiff.stages.scale_space import FLAT, blur_field, discrete_gaussian, increments
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


STRENGTH = 10.0
"""Grey levels that a flow of weight one may change far away; measured, see :meth:`.reach`."""

DEVIATIONS = 7.0
"""Standard deviations of the largest blur beyond which less than 0.02 changes, if there is no
integration scale; measured as well."""

_MEASURED_AT = 0.02


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

    def reach(self, tolerance: float = 0.0, *, masked: bool = False) -> tuple[int, ...]:
        r"""Return how far, in pixels along each axis, the result at a pixel depends on the input.

        Parameters
        ----------
        tolerance : float
            Largest change of the result, in grey levels on the scale [0, 255], that anything
            farther away may cause. With zero the reach is exact: the sum over all steps of what a
            step can see, by the kernels of float64. Otherwise it is shorter by far, and measured,
            not proven: two pixels for each step, and the distance at which a Gaussian falls below
            the tolerance whose variance is that of all the blurs of a step between two pixels, and
            whose height is ``STRENGTH`` times the weight of the flow in all steps, and less if it
            goes through a coupled scale whose weight is so small that not even an edge from black
            to white closes a gate; but at most ``DEVIATIONS`` of the largest blur, unless there is
            an integration scale. Rectangles from 0 to 255 beyond that distance, with noise, leave
            all shipped models within the tolerance. The closest needs 90 % of its reach
            (``experiments/reach.py``), and
            ``tests/properties/test_reach.py`` tries to break it.
        masked : bool
            Whether pixels may be invalid, anywhere. Higher derivatives have no flux in a
            neighbourhood of those.
        """
        if not tolerance >= 0:
            raise ValueError(f"a tolerance must not be negative, got {tolerance!r}")
        return tuple(self._reach_along(distance, tolerance, masked) for distance in self.spacing)

    def _reach_along(self, distance: float, tolerance: float, masked: bool) -> int:
        steps = [self._step_reach(step, distance, masked) for step in range(len(self.schedule))]
        exact = sum(steps) * (self.steps if len(self.schedule) == 1 else 1)
        if tolerance == 0:
            return exact
        farthest = (self._practical(term, tolerance) for term in self.all_terms())
        widest = max(farthest, default=0.0)
        practical = math.ceil(widest / distance) + 2 * self.steps
        if all(is_zero(term.coupling.integration_scale) for term in self.all_terms()):
            practical = min(practical, self._width_of_blurs(distance, tolerance))
        if masked:
            # Where higher derivatives have a flux depends on invalid pixels far away.
            practical += max(
                flux_reach(term.derivatives, self.scales[i])
                for term in self.all_terms()
                for i in (*term.scales_in_flux, 0)
            )
        return min(practical, exact)

    def _practical(self, term: Term, tolerance: float) -> float:
        """Return the distance at which what a term does in all its steps is negligible."""
        scales = [plain(scale) for scale in self.scales]
        integration = plain(term.coupling.integration_scale) ** 2
        farthest = 0.0
        for i in term.scales_in_flux:
            flow = STRENGTH * plain(self.tau) * self.steps * plain(term.flux_weights[i])
            # Products of two gradients fall twice as fast, and no exponent is larger than this.
            steepest = (255 / plain(term.diffusivity.contrasts[i])) ** 2 / 2
            coupled = [
                (min(1.0, plain(term.coupling.weights[j]) * steepest), scales[j] ** 2 / 2)
                for j in term.scales_in_coupling
            ]
            for share, spread in [(1.0, 0.0), *coupled]:
                if flow * share > tolerance:
                    variance = scales[i] ** 2 + max(scales[i] ** 2, spread + integration)
                    height = math.log(flow * share / tolerance)
                    farthest = max(farthest, math.sqrt(2 * variance * height))
        return farthest

    def _width_of_blurs(self, distance: float, tolerance: float) -> int:
        """Return ``DEVIATIONS`` of the largest blur, and two pixels for each step at least."""
        largest = max(plain(scale) for scale in self.scales)
        squared = DEVIATIONS**2 + 2 * math.log(_MEASURED_AT / tolerance)
        needed = largest * math.sqrt(max(squared, 0.0)) / distance
        return max(math.ceil(needed), 2 * self.steps)

    def _step_reach(self, step: int, distance: float, masked: bool) -> int:
        """Return how far an entry of the schedule sees: there, through the coupling, and back."""
        terms = self.terms(step)
        flowing = sorted({i for term in terms for i in term.scales_in_flux})
        there = dict(enumerate(self._radii(self.scales, distance, masked)))
        back = self._radii([self.scales[i] for i in flowing], distance, masked)
        farthest = 0
        for term in terms:
            stencil = term.derivatives.radius + 1
            integration = _radius(plain(term.coupling.integration_scale) / distance)
            for i in term.scales_in_flux:
                of_coupling = integration + max(there[j] for j in term.scales_in_coupling)
                seen = stencil + max(there[i], of_coupling)
                if masked:
                    seen = max(seen, flux_reach(term.derivatives, self.scales[i]))
                farthest = max(farthest, back[flowing.index(i)] + stencil + seen)
        return farthest

    def _radii(self, scales: Sequence[Scalar], distance: float, masked: bool) -> list[int]:
        """Return how far the cascade to each scale reaches."""
        found, total = [], 0
        for width in map(plain, increments(scales)):
            if masked:
                # A polynomial of steps from pixel to pixel.
                total += len(walk_taps(width, 2.0**-53, self.spacing)) - 1
            else:
                total += _radius(width / distance)
            found.append(total)
        return found


def scaled(field: Field, factor: Array) -> Field:
    """Return a field times a factor at each place."""
    if isinstance(field, (SymmetricTensor, VolumeTensor)):
        return type(field)(*(factor * entry for entry in field))
    return factor * field


def is_zero(weight: object) -> bool:
    """Whether a weight is the plain number zero; a trained weight never is."""
    return isinstance(weight, (int, float)) and weight == 0


def _radius(width: float) -> int:
    """Return how far a blur reaches in float64."""
    return len(discrete_gaussian(width)) - 1
