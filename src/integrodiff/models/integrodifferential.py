"""The paper's models, which gather structure over many scales: IID and IAD.

They differ in one word: the coupling is the trace of the multiscale structure tensor, or the
tensor itself.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar

from integrodiff.models.base import ExplicitModel
from integrodiff.models.laws import FullLaw, ReducedLaw, ScaleGrid
from integrodiff.stages import Coupling, Evolution, Term


@dataclass(frozen=True, kw_only=True)
class _Integrodifferential(ExplicitModel):
    law: ReducedLaw | FullLaw
    scales: ScaleGrid = field(default_factory=ScaleGrid)

    _coupling: ClassVar[Coupling]

    def __post_init__(self) -> None:
        if not isinstance(self.law, (ReducedLaw, FullLaw)):
            raise TypeError(f"law must be a ReducedLaw or a FullLaw, got {self.law!r}")
        if not isinstance(self.scales, ScaleGrid):
            raise TypeError(f"scales must be a ScaleGrid, got {self.scales!r}")
        super().__post_init__()

    @property
    def _depends_on_noise(self) -> bool:
        return isinstance(self.law, ReducedLaw)

    def _evolution(self, sigma: float) -> Evolution:
        scales = self.scales.scales
        gammas, lambdas = self.law.values(scales, sigma)
        weights = tuple(
            quadrature * gamma**2
            for quadrature, gamma in zip(self.scales.quadrature_weights, gammas, strict=True)
        )
        term = Term(
            coupling_weights=weights,
            flux_weights=weights,
            contrasts=lambdas,
            coupling=self._coupling,
        )
        return Evolution(
            scales=scales,
            schedule=((term,),),
            tau=self.tau,
            steps=self.steps,
            discretisation=self.discretisation,
            theta=self.theta,
        )


@dataclass(frozen=True, kw_only=True)
class IID(_Integrodifferential):
    r"""Integrodifferential isotropic diffusion.

    .. math:: \partial_t u = \int \gamma^2 K_\rho \nabla^\top\bigl(
              g_{\lambda(\rho)}(\mathrm{tr} J)\, \nabla K_\rho u\bigr)\, d\rho, \qquad
              J = \int \gamma^2\, \nabla K_\rho u \,(\nabla K_\rho u)^\top d\rho

    Attributes
    ----------
    law : ReducedLaw or FullLaw
        Weights and contrasts over the scales.
    scales : ScaleGrid
        The smoothing scales.

    References
    ----------
    .. [1] T. Alt, J. Weickert, "Learning integrodifferential models for image denoising",
           IEEE International Conference on Acoustics, Speech and Signal Processing, 2021.
    """

    _coupling = "trace"


@dataclass(frozen=True, kw_only=True)
class IAD(_Integrodifferential):
    r"""Integrodifferential anisotropic diffusion.

    .. math:: \partial_t u = \int \gamma^2 K_\rho \nabla^\top\bigl(
              g_{\lambda(\rho)}(J)\, \nabla K_\rho u\bigr)\, d\rho, \qquad
              J = \int \gamma^2\, \nabla K_\rho u \,(\nabla K_\rho u)^\top d\rho

    Attributes
    ----------
    law : ReducedLaw or FullLaw
        Weights and contrasts over the scales.
    scales : ScaleGrid
        The smoothing scales.

    References
    ----------
    .. [1] T. Alt, J. Weickert, "Learning integrodifferential models for image denoising",
           IEEE International Conference on Acoustics, Speech and Signal Processing, 2021.
    """

    _coupling = "tensor"
