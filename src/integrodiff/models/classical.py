"""The two predecessors with a single scale: Perona-Malik and edge-enhancing diffusion."""

from __future__ import annotations

from dataclasses import dataclass, field

from integrodiff._checks import positive_number
from integrodiff.models.base import ExplicitModel
from integrodiff.models.description import parameter
from integrodiff.models.limits import positive_blur_scale
from integrodiff.stages import Coupling, Evolution, Exponential, Term


@dataclass(frozen=True, kw_only=True)
class PeronaMalik(ExplicitModel):
    r"""Isotropic nonlinear diffusion, :math:`\partial_t u = \nabla^\top(g(|\nabla u|^2)\nabla u)`.

    This is eq. (1) of the paper.

    Attributes
    ----------
    contrast : float
        Contrast parameter :math:`\lambda`, in grey levels per pixel on the scale [0, 255].

    References
    ----------
    .. [1] P. Perona, J. Malik, "Scale space and edge detection using anisotropic diffusion",
           IEEE Transactions on Pattern Analysis and Machine Intelligence 12(7), 1990.

    Examples
    --------
    >>> from integrodiff import PeronaMalik
    >>> model = PeronaMalik(tau=0.2, contrast=4.0)
    >>> model.tau <= model.stable_step(sigma=25)
    True
    """

    kind = "perona-malik"

    contrast: float = field(metadata=parameter(positive_number))

    def _evolution(self, sigma: float) -> Evolution:
        term = Term(
            derivatives=self.derivatives(),
            coupling=Coupling(kind="trace", weights=(1.0,)),
            diffusivity=Exponential(contrasts=(self.contrast,)),
            flux_weights=(1.0,),
        )
        return Evolution(scales=(0.0,), schedule=((term,),), tau=self.tau, steps=self.steps)


@dataclass(frozen=True, kw_only=True)
class EED(ExplicitModel):
    r"""Edge-enhancing anisotropic diffusion, :math:`\partial_t u = \nabla^\top(g(J_\rho)\nabla u)`.

    The tensor :math:`J_\rho = \nabla u_\rho \nabla u_\rho^\top` comes from the image smoothed at
    one scale, the flow from the image itself; eqs. (5) and (6) of the paper.

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

    Examples
    --------
    >>> import numpy as np
    >>> from integrodiff import EED, denoise
    >>> model = EED(tau=0.2, contrast=2.0, scale=1.5)
    >>> noisy = np.random.default_rng(0).normal(100, 20, (32, 32))
    >>> result = denoise(noisy, sigma=20, model=model, data_range=255)
    >>> bool(result.std() < noisy.std())
    True
    """

    kind = "eed"

    contrast: float = field(metadata=parameter(positive_number))
    scale: float = field(metadata=parameter(positive_blur_scale))

    def _evolution(self, sigma: float) -> Evolution:
        term = Term(
            derivatives=self.derivatives(),
            coupling=Coupling(kind="tensor", weights=(0.0, 1.0)),
            diffusivity=Exponential(contrasts=(self.contrast, self.contrast)),
            flux_weights=(1.0, 0.0),
        )
        return Evolution(
            scales=(0.0, self.scale), schedule=((term,),), tau=self.tau, steps=self.steps
        )
