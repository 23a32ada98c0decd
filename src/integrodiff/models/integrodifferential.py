"""The paper's models, which gather structure over many scales: IID and IAD.

They differ in one word: the coupling is the trace of the multiscale structure tensor, or the
tensor itself.
"""

from __future__ import annotations

from copy import copy
from dataclasses import dataclass, field
from typing import ClassVar, Self

from integrodiff.models.base import ExplicitModel
from integrodiff.models.description import law
from integrodiff.models.laws import FullLaw, ReducedLaw, ScaleGrid, scale_grid_setting
from integrodiff.stages import Coupling, CouplingKind, Evolution, Exponential, Term
from integrodiff.stages._arrays import Scalar


@dataclass(frozen=True, kw_only=True)
class _Integrodifferential(ExplicitModel):
    law: ReducedLaw | FullLaw = field(metadata=law(ReducedLaw, FullLaw))
    scales: ScaleGrid = field(default_factory=ScaleGrid, metadata=scale_grid_setting())

    _coupling: ClassVar[CouplingKind]

    def _check(self) -> None:
        self.law.values(self.scales.scales, 1.0)  # refuses a law for another number of scales

    @property
    def depends_on_noise(self) -> bool:
        """Whether the law is a function of the noise level."""
        return self.law.depends_on_noise

    def extrapolated(self, ratio: Scalar) -> Self | None:
        """Return the model with the law for stronger or weaker noise, if the law has a rule."""
        changed = self.law.extrapolated(ratio)
        if changed is None:
            return None
        result = copy(self)  # checks nothing anew: numbers may be arrays
        object.__setattr__(result, "law", changed)
        return result

    def _evolution(self, sigma: float) -> Evolution:
        scales = self.scales.scales
        gammas, lambdas = self.law.values(scales, sigma)
        weights = tuple(
            quadrature * gamma**2
            for quadrature, gamma in zip(self.scales.quadrature_weights, gammas, strict=True)
        )
        term = Term(
            derivatives=self.derivatives(),
            coupling=Coupling(kind=self._coupling, weights=weights),
            diffusivity=Exponential(contrasts=lambdas),
            flux_weights=weights,
        )
        return Evolution(scales=scales, schedule=((term,),), tau=self.tau, steps=self.steps)


@dataclass(frozen=True, kw_only=True)
class IID(_Integrodifferential):
    r"""Integrodifferential isotropic diffusion.

    .. math:: \partial_t u = \int \gamma^2 K_\rho \nabla^\top\bigl(
              g_{\lambda(\rho)}(\mathrm{tr} J)\, \nabla K_\rho u\bigr)\, d\rho, \qquad
              J = \int \gamma^2\, \nabla K_\rho u \,(\nabla K_\rho u)^\top d\rho

    This is eq. (7) of the paper with the scalar of eq. (9) in place of the tensor.

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

    Examples
    --------
    >>> from integrodiff import IID, ReducedLaw
    >>> model = IID(tau=0.2, law=ReducedLaw(alpha=0.1, beta=0.5, lambda_0=0.1))
    >>> model.evolution(sigma=25).steps
    10
    """

    kind = "iid"
    _coupling = "trace"


@dataclass(frozen=True, kw_only=True)
class IAD(_Integrodifferential):
    r"""Integrodifferential anisotropic diffusion.

    .. math:: \partial_t u = \int \gamma^2 K_\rho \nabla^\top\bigl(
              g_{\lambda(\rho)}(J)\, \nabla K_\rho u\bigr)\, d\rho, \qquad
              J = \int \gamma^2\, \nabla K_\rho u \,(\nabla K_\rho u)^\top d\rho

    These are eqs. (7) and (8) of the paper.

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

    Examples
    --------
    >>> from integrodiff import IAD, ReducedLaw, ScaleGrid
    >>> law = ReducedLaw(alpha=0.1, beta=0.5, lambda_0=0.1)
    >>> model = IAD(tau=0.2, law=law, scales=ScaleGrid(count=4, largest=3.0))
    >>> len(model.evolution(sigma=25).scales)
    4
    """

    kind = "iad"
    _coupling = "tensor"
