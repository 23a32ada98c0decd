"""A module for each stage of a step, beside the functions of :mod:`integrodiff.stages`.

Images are ``(image, channel, row, column)``, volumes ``(image, channel, slice, row, column)``. In
the order of the data flow of one step::

    smoothed = ScaleSpace(scales)(images)                a list, an image for each scale
    parts = [HaarGradient()(image) for image in smoothed]
    structure = StructureTensor(weights)(parts)          one tensor per cell, for all channels
    tensor = DiffusionTensor(contrast)(structure)
    flow = Divergence()(image, tensor)

:class:`ExplicitStep` does all of it, at all scales, with a step size that is always stable.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from functools import lru_cache
from itertools import pairwise
from typing import Literal

import torch
from torch import nn

from integrodiff._checks import nonnegative_number, number_between, positive_number
from integrodiff.nn.diffusion import advanced
from integrodiff.nn.volumes import DifferentiableVolumeGradient
from integrodiff.stages import (
    Coupling,
    Evolution,
    Exponential,
    SymmetricTensor,
    Term,
    VolumeTensor,
    blur,
    cascade,
    step_limit,
)
from integrodiff.stages import HaarGradient as HaarCell
from integrodiff.stages._arrays import plain
from integrodiff.stages.operators import DerivativeOperator

Dimensions = Literal[2, 3]
TensorField = SymmetricTensor | VolumeTensor

_limit_of = lru_cache(maxsize=256)(step_limit)


def _positive(name: str, values: float | Sequence[float]) -> nn.Parameter:
    """Return the logarithms of positive numbers as a parameter."""
    if isinstance(values, (int, float)):
        return nn.Parameter(torch.tensor(math.log(positive_number(name, values))))
    logarithms = [math.log(positive_number(f"{name}[{i}]", v)) for i, v in enumerate(values)]
    if not logarithms:
        raise ValueError(f"{name} must have at least one number")
    return nn.Parameter(torch.tensor(logarithms))


def _dimensions(dimensions: int) -> Dimensions:
    if dimensions == 2:
        return 2
    if dimensions == 3:
        return 3
    raise ValueError(f"dimensions must be 2 or 3, got {dimensions!r}")


def _check_images(images: torch.Tensor, dimensions: int) -> None:
    if not isinstance(images, torch.Tensor) or not images.is_floating_point():
        found = getattr(images, "dtype", type(images).__name__)
        raise TypeError(f"images must be a tensor of real floating point, got {found}")
    if images.ndim != dimensions + 2 or 0 in images.shape:
        raise ValueError(
            f"images must have {dimensions + 2} axes, none of them empty; got the shape "
            f"{tuple(images.shape)}"
        )


def _operator(dimensions: int, theta: float) -> DerivativeOperator:
    if dimensions == 3:
        return DifferentiableVolumeGradient(theta)
    return HaarCell(theta)


class Blur(nn.Module):
    """Smooth with a discrete Gaussian of trainable scale; see :func:`integrodiff.stages.blur`.

    Parameters
    ----------
    scale : float
        Standard deviation in pixels, positive. Its logarithm is the parameter ``log_scale``.
    dimensions : {2, 3}
        Three for volumes.
    """

    def __init__(self, scale: float = 1.0, *, dimensions: Dimensions = 2) -> None:
        super().__init__()
        self.dimensions = _dimensions(dimensions)
        self.log_scale = _positive("scale", scale)

    @property
    def scale(self) -> torch.Tensor:
        """The scale, positive by its transform."""
        return self.log_scale.exp()

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        """Return the smoothed images."""
        _check_images(images, self.dimensions)
        scale = self.scale.double().reshape((1,) * images.ndim)
        result: torch.Tensor = blur(images, scale, (1.0,) * self.dimensions)
        return result


class ScaleSpace(nn.Module):
    """Smooth at several trainable scales, each from the one before; see :func:`.cascade`.

    Parameters
    ----------
    scales : sequence of float
        Positive and increasing. The parameter ``log_increments`` holds logarithms of the
        differences of their squares, so that they stay so.
    dimensions : {2, 3}
        Three for volumes.
    """

    def __init__(self, scales: Sequence[float], *, dimensions: Dimensions = 2) -> None:
        super().__init__()
        self.dimensions = _dimensions(dimensions)
        squares = [0.0, *(positive_number("scales", scale) ** 2 for scale in scales)]
        if any(a >= b for a, b in pairwise(squares[1:])):
            raise ValueError(f"scales must increase, got {tuple(scales)}")
        self.log_increments = _positive("scales", [b - a for a, b in pairwise(squares)])

    @property
    def scales(self) -> torch.Tensor:
        """The scales, increasing by their transform."""
        return self.log_increments.double().exp().cumsum(0).sqrt()

    def forward(self, images: torch.Tensor) -> list[torch.Tensor]:
        """Return the smoothed images, finest scale first."""
        _check_images(images, self.dimensions)
        spacing = (1.0,) * self.dimensions
        scales = [scale.reshape((1,) * images.ndim) for scale in self.scales]
        return cascade(images, scales, lambda image, scale: blur(image, scale, spacing))


class HaarGradient(nn.Module):
    """The Haar coefficients of the cells between pixels; see :class:`.operators.HaarGradient`.

    Parameters
    ----------
    dimensions : {2, 3}
        Three for volumes.
    """

    def __init__(self, *, dimensions: Dimensions = 2) -> None:
        super().__init__()
        self.dimensions = _dimensions(dimensions)

    def forward(self, images: torch.Tensor) -> tuple[torch.Tensor, ...]:
        """Return X, Y and the twist at the (H+1) x (W+1) cells, or the seven of volumes."""
        _check_images(images, self.dimensions)
        return tuple(_operator(self.dimensions, 0.25).forward(images))


class StructureTensor(nn.Module):
    """The multiscale structure tensor with an integration scale; see :class:`.Coupling`.

    Parameters
    ----------
    weights : sequence of float
        Positive weight of each scale; their logarithms are the parameter ``log_weights``.
    integration_scale : float
        Standard deviation in pixels of the Gaussian that smooths the tensors. If positive, its
        logarithm is the parameter ``log_integration_scale``; zero is no smoothing and no
        parameter.
    dimensions : {2, 3}
        Three for volumes.
    """

    log_integration_scale: nn.Parameter | None

    def __init__(
        self,
        weights: Sequence[float] = (1.0,),
        integration_scale: float = 0.0,
        *,
        dimensions: Dimensions = 2,
    ) -> None:
        super().__init__()
        self.dimensions = _dimensions(dimensions)
        self.log_weights: nn.Parameter = _positive("weights", weights)
        smooths = nonnegative_number("integration_scale", integration_scale) > 0
        self.register_parameter(
            "log_integration_scale",
            _positive("integration_scale", integration_scale) if smooths else None,
        )

    def coupling(self) -> Coupling:
        """Return the coupling with the present numbers, as tensors of the shape of an image."""
        shape = (1,) * (self.dimensions + 2)
        logarithm = self.log_integration_scale
        return Coupling(
            weights=tuple(weight.reshape(shape) for weight in self.log_weights.exp()),
            integration_scale=0.0 if logarithm is None else logarithm.double().exp().reshape(shape),
        )

    def forward(self, parts: Sequence[Sequence[torch.Tensor]]) -> TensorField:
        """Return the tensors, from the coefficients of :class:`HaarGradient` at each scale."""
        if len(parts) != len(self.log_weights):
            raise ValueError(
                f"there are weights for {len(self.log_weights)} scales, got coefficients of "
                f"{len(parts)}"
            )
        operator, coupling = _operator(self.dimensions, 0.25), self.coupling()
        field = coupling.summed(operator, dict(enumerate(parts)))
        result: TensorField = coupling.integrated(field, operator.grid, (1.0,) * self.dimensions)
        return result


class DiffusionTensor(nn.Module):
    """The diffusivity of structure tensors; see :func:`integrodiff.stages.diffusion_tensor`.

    Parameters
    ----------
    contrast : float
        Positive; its logarithm is the parameter ``log_contrast``.
    """

    def __init__(self, contrast: float) -> None:
        super().__init__()
        self.log_contrast = _positive("contrast", contrast)

    @property
    def contrast(self) -> torch.Tensor:
        """The contrast, positive by its transform."""
        return self.log_contrast.exp()

    def forward(self, structure: TensorField) -> TensorField:
        """Return tensors with the same eigenvectors, and eigenvalues in [0, 1]."""
        if not isinstance(structure, (SymmetricTensor, VolumeTensor)):
            raise TypeError(
                "structure must be a SymmetricTensor or a VolumeTensor, as StructureTensor returns "
                f"it; got {type(structure).__name__}"
            )
        dimensions = 3 if isinstance(structure, VolumeTensor) else 2
        shape = (1,) * (dimensions + 2)
        gate = Exponential(contrasts=(self.contrast.reshape(shape),))
        result: TensorField = gate.of(_operator(dimensions, 0.25).prepared(structure), 0)
        return result


class Divergence(nn.Module):
    """The divergence of a diffusion tensor times the gradient; see :func:`.haar_divergence`.

    Parameters
    ----------
    theta : float
        Free parameter of the Haar cell, between 0 and 1/2; it is not trained.
    """

    def __init__(self, theta: float = 0.25) -> None:
        super().__init__()
        self.theta = number_between("theta", theta, 0, 0.5)

    def forward(self, images: torch.Tensor, tensor: TensorField) -> torch.Tensor:
        """Return the divergence at the pixels, from tensors at the cells."""
        dimensions = 3 if isinstance(tensor, VolumeTensor) else 2
        _check_images(images, dimensions)
        operator = _operator(dimensions, self.theta)
        result: torch.Tensor = -operator.adjoint(
            operator.tensor_gate(operator.forward(images), tensor)
        )
        return result


class ExplicitStep(nn.Module):
    """One step of integrodifferential anisotropic diffusion with free numbers.

    Its step size is a trainable share of the largest stable one, which is computed from the present
    weights and carries their derivatives. So the Euclidean norm of an image never grows, whatever
    the parameters.

    Parameters
    ----------
    scales : sequence of float
        Smoothing scales in pixels, not decreasing; they are not trained.
    weights, contrasts : sequence of float
        Positive, one for each scale; parameters ``log_weights`` and ``log_contrasts``. Contrasts
        are in grey values of the images.
    integration_scale : float
        As in :class:`StructureTensor`.
    share : float
        Of the largest stable step size, between zero and one without the ends; parameter
        ``share_logit``.
    theta : float
        As in :class:`Divergence`.
    dimensions : {2, 3}
        Three for volumes.
    """

    def __init__(
        self,
        scales: Sequence[float],
        weights: Sequence[float],
        contrasts: Sequence[float],
        *,
        integration_scale: float = 0.0,
        share: float = 0.5,
        theta: float = 0.25,
        dimensions: Dimensions = 2,
    ) -> None:
        super().__init__()
        if not len(scales) == len(weights) == len(contrasts):
            raise ValueError(
                f"{len(scales)} scales need as many weights and contrasts, got {len(weights)} and "
                f"{len(contrasts)}"
            )
        if not 0 < share < 1:
            raise ValueError(f"share must lie between zero and one without the ends, got {share}")
        self.scales = tuple(nonnegative_number("scales", scale) for scale in scales)
        self.theta = number_between("theta", theta, 0, 0.5)
        self.dimensions = _dimensions(dimensions)
        self.structure = StructureTensor(weights, integration_scale, dimensions=self.dimensions)
        self.log_contrasts = _positive("contrasts", contrasts)
        self.share_logit = nn.Parameter(torch.tensor(math.log(share / (1 - share))))
        self.evolution()  # refuses scales that decrease

    @property
    def share(self) -> torch.Tensor:
        """The share of the largest stable step size."""
        return self.share_logit.sigmoid()

    @property
    def tau(self) -> torch.Tensor:
        """The step size, below the stable bound of the present weights."""
        return self.evolution().tau.reshape(())  # type: ignore[no-any-return]

    @torch.compiler.disable  # type: ignore[untyped-decorator]
    def evolution(self) -> Evolution:
        """Return the process of one step with the present numbers."""
        coupling = self.structure.coupling()
        shape = (1,) * (self.dimensions + 2)
        contrasts = tuple(contrast.reshape(shape) for contrast in self.log_contrasts.exp())
        term = Term(
            derivatives=_operator(self.dimensions, self.theta),
            coupling=coupling,
            flux_weights=coupling.weights,
            diffusivity=Exponential(contrasts=contrasts),
        )
        evolution = Evolution(
            scales=self.scales,
            schedule=((term,),),
            tau=1.0,
            steps=1,
            spacing=(1.0,) * self.dimensions,
        )
        # Contrasts and integration scales have no part in the bound.
        (shares,) = _limit_of(evolution.mapped(plain)).shares
        largest = sum(
            weight.double() * share for weight, share in zip(coupling.weights, shares, strict=True)
        )
        return replace(evolution, tau=(self.share * 2 / largest).to(self.share.dtype))

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        """Return the images one step later."""
        _check_images(images, self.dimensions)
        return advanced(images, images, self.evolution())
