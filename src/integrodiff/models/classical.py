"""The two predecessors with a single scale: Perona-Malik and edge-enhancing diffusion."""

from __future__ import annotations

from dataclasses import dataclass

from integrodiff._checks import positive_number
from integrodiff.models.base import ExplicitModel
from integrodiff.stages import Coupling, Evolution, Term


@dataclass(frozen=True, kw_only=True)
class PeronaMalik(ExplicitModel):
    r"""Isotropic nonlinear diffusion, :math:`\partial_t u = \nabla^\top(g(|\nabla u|^2)\nabla u)`.

    Attributes
    ----------
    contrast : float
        Contrast parameter :math:`\lambda`, in grey levels per pixel on the scale [0, 255].

    References
    ----------
    .. [1] P. Perona, J. Malik, "Scale space and edge detection using anisotropic diffusion",
           IEEE Transactions on Pattern Analysis and Machine Intelligence 12(7), 1990.
    """

    contrast: float

    def __post_init__(self) -> None:
        object.__setattr__(self, "contrast", positive_number("contrast", self.contrast))
        super().__post_init__()

    def _evolution(self, sigma: float) -> Evolution:
        return Evolution(
            scales=(0.0,),
            schedule=((_term((1.0,), (1.0,), self.contrast, "trace"),),),
            tau=self.tau,
            steps=self.steps,
            discretisation=self.discretisation,
            theta=self.theta,
        )


@dataclass(frozen=True, kw_only=True)
class EED(ExplicitModel):
    r"""Edge-enhancing anisotropic diffusion, :math:`\partial_t u = \nabla^\top(g(J_\rho)\nabla u)`.

    The tensor :math:`J_\rho = \nabla u_\rho \nabla u_\rho^\top` comes from the image smoothed at
    one scale, the flow from the image itself.

    Attributes
    ----------
    contrast : float
        Contrast parameter :math:`\lambda`, in grey levels per pixel on the scale [0, 255].
    scale : float
        Smoothing scale :math:`\rho` of the structure tensor in pixels.

    References
    ----------
    .. [1] J. Weickert, "Theoretical foundations of anisotropic diffusion in image processing",
           Computing Supplement 11, 1996.
    """

    contrast: float
    scale: float

    def __post_init__(self) -> None:
        object.__setattr__(self, "contrast", positive_number("contrast", self.contrast))
        object.__setattr__(self, "scale", positive_number("scale", self.scale))
        super().__post_init__()

    def _evolution(self, sigma: float) -> Evolution:
        return Evolution(
            scales=(0.0, self.scale),
            schedule=((_term((0.0, 1.0), (1.0, 0.0), self.contrast, "tensor"),),),
            tau=self.tau,
            steps=self.steps,
            discretisation=self.discretisation,
            theta=self.theta,
        )


def _term(
    coupling_weights: tuple[float, ...],
    flux_weights: tuple[float, ...],
    contrast: float,
    coupling: Coupling,
) -> Term:
    """Return a term with one contrast for all scales."""
    return Term(
        coupling_weights=coupling_weights,
        flux_weights=flux_weights,
        contrasts=(contrast,) * len(flux_weights),
        coupling=coupling,
    )
