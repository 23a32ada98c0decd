"""The stages of one diffusion step, in the order the data flows.

``reflection`` - ``scale_space`` - ``gradient`` - ``derivatives`` - ``symbols`` -
``structure_tensor`` - ``eigenframe`` - ``diffusion_tensor`` - ``divergence`` - ``haar_volume`` -
``operators`` - ``domain`` - ``evolution`` - ``thick_slices`` - ``stability`` - ``step``. A stage
imports only earlier ones. Every function takes arrays of any namespace of the array API standard:
NumPy in float64 is the reference, NumPy in float32 and PyTorch tensors run through the very same
lines.

Where the numbered equations of the paper are:

==========  ===============================  ===================================================
equation    what it is                       where it is
==========  ===============================  ===================================================
(1)         Perona-Malik diffusion (PM)      models.classical.PeronaMalik
(2)         the diffusivity                  stages.diffusion_tensor.diffusivity
(3), (4)    diffusion tensor of EED          stages.diffusion_tensor.diffusion_tensor
(5)         structure tensor of one scale    stages.structure_tensor.outer_product
(6)         edge-enhancing diffusion (EED)   models.classical.EED
(7)         diffusion over all scales (IAD)  stages.step.velocity
(8)         multiscale structure tensor      stages.structure_tensor.multiscale_structure_tensor
(9)         multiscale gradient of IID       stages.structure_tensor.multiscale_energy
(10), (11)  weights and contrasts by law     models.laws.ReducedLaw
==========  ===============================  ===================================================

The explicit scheme around eq. (7), described in the paper's section on the discrete model, is
``step.explicit_step``; its nonnegativity discretisation is ``divergence.nonnegativity_divergence``,
and the restriction of its step size ``stability.stable_step``.
"""

from __future__ import annotations

from integrodiff.stages.derivatives import derivatives, derivatives_adjoint
from integrodiff.stages.diffusion_tensor import diffusion_tensor, diffusivity
from integrodiff.stages.divergence import haar_divergence, nonnegativity_divergence
from integrodiff.stages.domain import Domain
from integrodiff.stages.evolution import Coupling, CouplingKind, Evolution, Exponential, Term
from integrodiff.stages.gradient import (
    Discretisation,
    Gradient,
    central_gradient,
    haar_gradient,
    haar_twist,
)
from integrodiff.stages.operators import (
    DerivativeOperator,
    ExchangeWithNeighbours,
    HaarGradient,
    HigherDerivatives,
    VolumeGradient,
    derivative_operator,
)
from integrodiff.stages.scale_space import (
    blur,
    blur_field,
    cascade,
    cascade_adjoint,
    discrete_gaussian,
    increments,
)
from integrodiff.stages.stability import (
    StepLimit,
    stable_on_masks,
    stable_step,
    stable_step_on_masks,
    step_limit,
    step_table,
)
from integrodiff.stages.step import coupling_field, evolve, explicit_step, gated, velocity
from integrodiff.stages.structure_tensor import (
    Sensitivity,
    SymmetricTensor,
    VolumeTensor,
    integrated_tensor,
    multiscale_energy,
    multiscale_structure_tensor,
    outer_product,
    sensitivity,
)

__all__ = [
    "Coupling",
    "CouplingKind",
    "DerivativeOperator",
    "Discretisation",
    "Domain",
    "Evolution",
    "ExchangeWithNeighbours",
    "Exponential",
    "Gradient",
    "HaarGradient",
    "HigherDerivatives",
    "Sensitivity",
    "StepLimit",
    "SymmetricTensor",
    "Term",
    "VolumeGradient",
    "VolumeTensor",
    "blur",
    "blur_field",
    "cascade",
    "cascade_adjoint",
    "central_gradient",
    "coupling_field",
    "derivative_operator",
    "derivatives",
    "derivatives_adjoint",
    "diffusion_tensor",
    "diffusivity",
    "discrete_gaussian",
    "evolve",
    "explicit_step",
    "gated",
    "haar_divergence",
    "haar_gradient",
    "haar_twist",
    "increments",
    "integrated_tensor",
    "multiscale_energy",
    "multiscale_structure_tensor",
    "nonnegativity_divergence",
    "outer_product",
    "sensitivity",
    "stable_on_masks",
    "stable_step",
    "stable_step_on_masks",
    "step_limit",
    "step_table",
    "velocity",
]
