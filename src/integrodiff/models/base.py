"""Base classes of all models: the contract of a denoiser, and of one set of parameters."""

from __future__ import annotations

import math
import warnings
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import Any, ClassVar, Self, get_args

from integrodiff._checks import (
    nonnegative_number,
    number_between,
    one_of,
    positive_number,
)
from integrodiff.errors import StepSizeWarning, outside
from integrodiff.models.description import Described, Json, parameter, setting
from integrodiff.models.limits import (
    arithmetic_at,
    require_computable,
    require_moderate_step,
    step_count,
)
from integrodiff.stages import (
    DerivativeOperator,
    Discretisation,
    Evolution,
    Term,
    derivative_operator,
    evolve,
    stable_step,
)
from integrodiff.stages._arrays import Array, Scalar, namespace, plain
from integrodiff.stages.thick_slices import for_spacing

# A step size stored as the bound itself may exceed it by rounding.
_ROUNDING = 1 + 1e-9


@lru_cache(maxsize=64)
def stable_step_of(evolution: Evolution) -> float:
    """Return the bound for images of every size, cached."""
    return stable_step(evolution)


def _with_contrasts(evolution: Evolution, relative: Callable[[float], float]) -> Evolution:
    r"""Multiply the contrasts of each scale.

    Relative levels are those of first derivatives. White noise seen by derivatives of order n at
    the scale :math:`\rho` has the power :math:`t^n e^{-2 \rho^2 t}` over :math:`t`, one half of
    the squared frequency, and its mean at :math:`(n + 1) / (2 \rho^2)`: that of first derivatives
    at the scale :math:`\rho \sqrt{2 / (n + 1)}`.
    """

    def changed(term: Term) -> Term:
        shift = math.sqrt(2 / (term.derivatives.order + 1))
        factors = [relative(shift * plain(scale)) for scale in evolution.scales]
        contrasts = zip(term.diffusivity.contrasts, factors, strict=True)
        scaled = tuple(contrast * factor for contrast, factor in contrasts)
        return replace(term, diffusivity=replace(term.diffusivity, contrasts=scaled))

    schedule = tuple(tuple(changed(term) for term in terms) for terms in evolution.schedule)
    return replace(evolution, schedule=schedule)


class Model(ABC):
    """A denoiser: for each noise level, the numbers of one diffusion process.

    Models are immutable and hold parameters alone. Noise levels and grey values are on the scale
    [0, 255] throughout; :func:`integrodiff.denoise` maps other images to it.

    Examples
    --------
    >>> from integrodiff import Model, load_model
    >>> model = load_model("iad")
    >>> isinstance(model, Model)
    True
    >>> evolution = model.evolution(sigma=25)
    >>> evolution.tau <= model.stable_step(sigma=25)
    True
    """

    provenance: Mapping[str, Any]

    share_of_bound: ClassVar[float] = 1.0
    """Of the stable step size that a step may take."""

    @abstractmethod
    def _evolution(self, sigma: float) -> Evolution:
        """Return the process at a positive noise level with the step size as the law has it."""

    @property
    def noise_levels(self) -> tuple[float, ...]:
        """Noise levels on the scale [0, 255] that the parameters were trained for, if known."""
        return tuple(float(level) for level in self.provenance.get("noise_levels") or ())

    @property
    def dimensions(self) -> int:
        """Number of dimensions that the parameters were trained for: 3 for volumes, else 2."""
        return 3 if self.provenance.get("dimensions") == 3 else 2

    def evolution(
        self,
        sigma: float,
        relative: Callable[[float], float] | None = None,
        spacing: tuple[float, float, float] | None = None,
    ) -> Evolution:
        """Return the diffusion process for the noise level ``sigma``; it is always stable.

        Where the model's step size exceeds :meth:`stable_step`, the bound is taken, or the share
        of it that is named by ``share_of_bound``.

        Parameters
        ----------
        sigma : float
            Noise level on the scale [0, 255].
        relative : callable, optional
            Noise level at a scale in pixels, relative to ``sigma``, for noise that is not white:
            the contrasts of each scale are multiplied by it.
        spacing : (float, float, float), optional
            For volumes: distance of slices, rows and columns, in the unit of the scales. Where
            they differ, the structure tensor of a model that was trained for volumes follows them,
            see :mod:`integrodiff.stages.thick_slices`.

        Warns
        -----
        StepSizeWarning
            If that step size is a plain number of the model. Laws of the noise level include the
            bound and do not warn.

        Raises
        ------
        ValueError
            If the laws have no values at this noise level that can be computed with, or the model
            has derivatives that volumes do not have.
        """
        evolution = self._computable_evolution(sigma, spacing)
        bound = self.share_of_bound * stable_step_of(evolution)
        if relative is not None:
            # Contrasts have no part in the bound, which holds for all diffusivities up to one.
            evolution = _with_contrasts(evolution, relative)
            require_computable(evolution, sigma)
        if evolution.tau <= bound * _ROUNDING:
            require_moderate_step(evolution, sigma)
            return evolution
        if not self._tau_is_a_law(sigma):
            warnings.warn(
                f"the step size tau = {evolution.tau:.6g} of this {type(self).__name__} is above "
                f"the largest stable one at noise level {sigma:g}, tau = {bound:.6g}, which is "
                "taken instead; for the same diffusion time take a smaller tau and more steps",
                StepSizeWarning,
                stacklevel=outside(),
            )
        evolution = replace(evolution, tau=bound)
        require_moderate_step(evolution, sigma)
        return evolution

    def _computable_evolution(
        self, sigma: float, spacing: tuple[float, float, float] | None = None
    ) -> Evolution:
        """Return the process as the laws have it, or raise an error if nobody can compute it."""
        sigma = positive_number("sigma", sigma)
        with arithmetic_at(sigma):
            evolution = self._evolution(sigma)
        require_computable(evolution, sigma)
        if spacing is None:
            return evolution
        volume = evolution.in_volume(spacing)
        return for_spacing(volume) if self.dimensions == 3 else volume

    def _tau_is_a_law(self, sigma: float) -> bool:
        """Whether the step size at a noise level comes from a law, and not from a plain number."""
        return False

    def stable_step(
        self,
        sigma: float,
        *,
        shape: tuple[int, ...] | None = None,
        spacing: tuple[float, float, float] | None = None,
    ) -> float:
        """Return the largest step size at which the Euclidean norm provably never grows.

        Parameters
        ----------
        sigma : float
            Noise level on the scale [0, 255].
        shape : tuple of int, optional
            Height and width of the images, or slices, height and width of the volumes. Without it
            the bound, slightly smaller, holds for every size.
        spacing : (float, float, float), optional
            For volumes, as in :meth:`evolution`.

        Notes
        -----
        For the discretisation ``nonnegativity`` of an anisotropic model the bound is necessary
        and not sufficient; see :mod:`integrodiff.stages.stability`.
        """
        return stable_step(self._computable_evolution(sigma, spacing), shape)

    def __call__(
        self,
        image: Array,
        sigma: float,
        *,
        channel_axis: int | None = None,
        callback: Callable[[int, Array], object] | None = None,
        spacing: tuple[float, float, float] | None = None,
    ) -> Array:
        """Denoise an array in its own namespace and precision.

        Parameters
        ----------
        image : array
            Real floating-point grey values on the scale [0, 255]. The last two axes are rows and
            columns; axes before them are a batch, except for the channels.
        sigma : float
            Standard deviation of the noise on the same scale. Zero returns the image.
        channel_axis : int, optional
            Axis of channels that share one structure tensor.
        callback : callable, optional
            Called as ``callback(step, image)`` after each step, counted from one; its image has
            the layout of the input.
        spacing : (float, float, float), optional
            For volumes, as in :meth:`evolution`: the last three axes are slices, rows and columns.

        Returns
        -------
        array
            The denoised image, of the shape, dtype and namespace of the input. PyTorch tensors
            carry derivatives.
        """
        xp = namespace(image)
        if not xp.isdtype(image.dtype, "real floating"):
            raise TypeError(f"a model takes real floating-point arrays, got {image.dtype}")
        dimensions = 2 if spacing is None else 3
        least = dimensions + (channel_axis is not None)
        channels = -1 - dimensions
        if image.ndim < least or 0 in image.shape:
            raise ValueError(
                f"expected an array of at least {least} axes, none of them empty; "
                f"got shape {tuple(image.shape)}"
            )
        if nonnegative_number("sigma", sigma) == 0:
            return xp.asarray(image, copy=True)

        def canonical(array: Array) -> Array:
            if channel_axis is None:
                return xp.expand_dims(array, axis=channels)
            return xp.moveaxis(array, channel_axis, channels)

        def original(array: Array) -> Array:
            if channel_axis is None:
                return xp.squeeze(array, axis=channels)
            return xp.moveaxis(array, channels, channel_axis)

        def observe(step: int, array: Array) -> None:
            if callback is not None:
                callback(step, original(array))

        evolution = self.evolution(sigma, spacing=spacing)
        return original(evolve(canonical(image), evolution, observe))


@dataclass(frozen=True, kw_only=True)
class ExplicitModel(Described, Model):
    """A model with one set of parameters; the base class of all kinds of models.

    A subclass with a ``kind``, its name in model files, is registered under it.

    Attributes
    ----------
    tau : float
        Time step size.
    steps : int
        Number K of explicit steps.
    theta : float
        Free parameter of the Haar cell, between 0 and 1/2.
    discretisation : {"haar", "nonnegativity"}
        Spatial scheme; see :mod:`integrodiff.stages.divergence`.
    provenance : mapping
        Where the parameters come from; no part of the model's identity.
    """

    kind: ClassVar[str] = ""

    tau: float = field(metadata=parameter(positive_number))
    steps: int = field(default=10, metadata=setting(step_count))
    theta: float = field(
        default=0.25, metadata=setting(lambda name, value: number_between(name, value, 0, 0.5))
    )
    discretisation: Discretisation = field(
        default="haar",
        metadata=setting(lambda name, value: one_of(name, value, get_args(Discretisation))),
    )
    provenance: Mapping[str, Any] = field(default_factory=dict, compare=False, repr=False)

    def __init_subclass__(cls) -> None:
        super().__init_subclass__()
        if cls.kind:
            KINDS[cls.kind] = cls

    @classmethod
    def build(
        cls,
        parameters: Mapping[str, Json],
        settings: Mapping[str, Json],
        provenance: Mapping[str, Any] | None = None,
    ) -> Self:
        """Return the model with these parameters and settings; the inverse of the two methods.

        Raises
        ------
        ModelFileError
            If names are missing or unknown.
        """
        arguments = cls.arguments(parameters, settings)
        return cls(**arguments, provenance=dict(provenance or {}))

    def derivatives(self, order: int = 1) -> DerivativeOperator:
        """Return the derivative operator of an order in the discretisation of the model."""
        return derivative_operator(order, discretisation=self.discretisation, theta=self.theta)

    def tau_factor(self, sigma: float) -> Scalar:
        """Return the step size at a noise level, relative to ``tau``."""
        return 1.0

    @property
    def depends_on_noise(self) -> bool:
        """Whether the process is a function of the noise level."""
        return False

    def extrapolated(self, ratio: Scalar) -> Self | None:
        """Return the model for noise ``ratio`` times as strong as what it was trained for.

        None if there is no such rule, and parameters may continue as powers of the noise level.
        """
        return None


KINDS: dict[str, type[ExplicitModel]] = {}
"""All kinds of models by their name in model files."""
