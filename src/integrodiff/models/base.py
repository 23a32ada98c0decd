"""What all models have in common."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any

from integrodiff._checks import (
    nonnegative_number,
    number_between,
    one_of,
    positive_integer,
    positive_number,
)
from integrodiff.errors import StepSizeError
from integrodiff.stages import Discretisation, Evolution, evolve, stable_step
from integrodiff.stages._arrays import CHANNEL, Array, Scalar, namespace

# Rounding in a stored bound must not turn the bound itself into an error.
_ROUNDING = 1 + 1e-9


@lru_cache(maxsize=64)
def stable_step_of(evolution: Evolution) -> float:
    """Return the bound for images of every size; a process often comes again."""
    return stable_step(evolution)


class Model(ABC):
    """A denoiser: for each noise level, the numbers of one diffusion process.

    Models are immutable and hold parameters alone. Noise levels and grey values are on the scale
    [0, 255] throughout; :func:`integrodiff.denoise` maps other images to it.
    """

    provenance: Mapping[str, Any]

    @abstractmethod
    def _evolution(self, sigma: float) -> Evolution:
        """Return the process at a positive noise level without checking its step size."""

    def evolution(self, sigma: float) -> Evolution:
        """Return the diffusion process for the noise level ``sigma``.

        Raises
        ------
        StepSizeError
            If the step size exceeds :meth:`stable_step`.
        """
        evolution = self._evolution(positive_number("sigma", sigma))
        bound = stable_step_of(evolution)
        if evolution.tau > bound * _ROUNDING:
            raise StepSizeError(
                f"the step size tau = {evolution.tau:.6g} is not stable: this "
                f"{type(self).__name__} allows at most tau = {bound:.6g} at noise level "
                f"{sigma:g}; take a smaller tau and, if needed, more steps"
            )
        return evolution

    def stable_step(self, sigma: float, *, shape: tuple[int, int] | None = None) -> float:
        """Return the largest step size at which the Euclidean norm provably never grows.

        Parameters
        ----------
        sigma : float
            Noise level on the scale [0, 255].
        shape : (int, int), optional
            Height and width of the images. Without it the bound, slightly smaller, holds for
            images of every size.

        Notes
        -----
        For the discretisation ``nonnegativity`` of an anisotropic model the bound is necessary
        and not sufficient; see :mod:`integrodiff.stages.stability`.
        """
        return stable_step(self._evolution(positive_number("sigma", sigma)), shape)

    def __call__(
        self,
        image: Array,
        sigma: float,
        *,
        channel_axis: int | None = None,
        callback: Callable[[int, Array], object] | None = None,
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

        Returns
        -------
        array
            The denoised image, of the shape, dtype and namespace of the input. PyTorch tensors
            carry derivatives.
        """
        xp = namespace(image)
        if not xp.isdtype(image.dtype, "real floating"):
            raise TypeError(f"a model takes real floating-point arrays, got {image.dtype}")
        least = 2 if channel_axis is None else 3
        if image.ndim < least or 0 in image.shape:
            raise ValueError(
                f"expected an array of at least {least} axes, none of them empty; "
                f"got shape {tuple(image.shape)}"
            )
        if nonnegative_number("sigma", sigma) == 0:
            return xp.asarray(image, copy=True)

        def canonical(array: Array) -> Array:
            if channel_axis is None:
                return xp.expand_dims(array, axis=CHANNEL)
            return xp.moveaxis(array, channel_axis, CHANNEL)

        def original(array: Array) -> Array:
            if channel_axis is None:
                return xp.squeeze(array, axis=CHANNEL)
            return xp.moveaxis(array, CHANNEL, channel_axis)

        def observe(step: int, array: Array) -> None:
            if callback is not None:
                callback(step, original(array))

        return original(evolve(canonical(image), self.evolution(sigma), observe))


@dataclass(frozen=True, kw_only=True)
class ExplicitModel(Model):
    """Step size and discretisation, the settings of every model with one set of parameters.

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

    tau: float
    steps: int = 10
    theta: float = 0.25
    discretisation: Discretisation = "haar"
    provenance: Mapping[str, Any] = field(default_factory=dict, compare=False, repr=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "tau", positive_number("tau", self.tau))
        positive_integer("steps", self.steps)
        number_between("theta", self.theta, 0, 0.5)
        one_of("discretisation", self.discretisation, ("haar", "nonnegativity"))
        if not self._depends_on_noise:
            self.evolution(1.0)  # refuses an unstable step size at once

    def tau_factor(self, sigma: float) -> Scalar:
        """Return the step size at a noise level, relative to ``tau``."""
        return 1.0

    @property
    def _depends_on_noise(self) -> bool:
        """Whether the parameters are functions of the noise level."""
        return False
