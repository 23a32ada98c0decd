r"""Stage 6: the numbers of one diffusion process, ready to run.

A model with its laws, evaluated at one noise level, is an :class:`Evolution`: scales, what each
contributes to the structure tensor and to the flow, contrasts, and the time stepping. All four
models are of this form; the table says how (:math:`c_i = w_i \gamma_i^2`).

=========  ================  ==============  ============  ========
model      scales            tensor weights  flux weights  coupling
=========  ================  ==============  ============  ========
PM         0                 1               1             trace
EED        0, :math:`\rho`   0, 1            1, 0          tensor
IID        all               :math:`c_i`     :math:`c_i`   trace
IAD        all               :math:`c_i`     :math:`c_i`   tensor
=========  ================  ==============  ============  ========
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, TypeAlias

from integrodiff.stages._arrays import Scalar
from integrodiff.stages.gradient import Discretisation

Coupling: TypeAlias = Literal["tensor", "trace"]


@dataclass(frozen=True, kw_only=True)
class Evolution:
    """All that the explicit scheme needs to know.

    Attributes
    ----------
    scales : tuple of scalars
        Smoothing scales in pixels, not decreasing.
    tensor_weights, flux_weights : tuple of scalars
        Nonnegative weight of each scale in the structure tensor and in the flow. A scale whose
        weight is zero takes no part.
    contrasts : tuple of scalars
        Positive contrast parameter of each scale.
    coupling : {"tensor", "trace"}
        Anisotropic (the structure tensor itself) or isotropic (its trace).
    tau : scalar
        Time step size.
    steps : int
        Number of explicit steps.
    discretisation : {"haar", "nonnegativity"}
        The spatial scheme.
    theta : float
        Free parameter of the Haar cell.
    """

    scales: tuple[Scalar, ...]
    tensor_weights: tuple[Scalar, ...]
    flux_weights: tuple[Scalar, ...]
    contrasts: tuple[Scalar, ...]
    coupling: Coupling
    tau: Scalar
    steps: int
    discretisation: Discretisation = "haar"
    theta: float = 0.25

    def __post_init__(self) -> None:
        lengths = {
            len(self.scales),
            len(self.tensor_weights),
            len(self.flux_weights),
            len(self.contrasts),
        }
        if lengths != {len(self.scales)} or not self.scales:
            raise ValueError(
                "an evolution needs a tensor weight, a flux weight and a contrast for each of "
                f"its scales (at least one); got {sorted(lengths)} values"
            )
