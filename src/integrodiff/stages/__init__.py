"""The stages of one diffusion step, in the order the data flows.

``scale_space`` - ``gradient`` - ``derivatives`` - ``structure_tensor`` - ``diffusion_tensor`` -
``divergence`` - ``evolution`` - ``stability`` - ``step``. A stage imports only earlier ones. Every
function takes arrays of any namespace of the array API standard: NumPy in float64 is the
reference, NumPy in float32 and PyTorch tensors run through the very same lines.
"""

from __future__ import annotations

from integrodiff.stages.derivatives import derivatives, derivatives_adjoint
from integrodiff.stages.diffusion_tensor import diffusion_tensor, diffusivity
from integrodiff.stages.divergence import divergence, haar_divergence, nonnegativity_divergence
from integrodiff.stages.evolution import Coupling, Evolution, Term
from integrodiff.stages.gradient import (
    Discretisation,
    Gradient,
    central_gradient,
    gradient,
    haar_gradient,
    haar_twist,
)
from integrodiff.stages.scale_space import (
    blur,
    cascade,
    cascade_adjoint,
    discrete_gaussian,
    increments,
)
from integrodiff.stages.stability import stable_step, step_table
from integrodiff.stages.step import (
    energy_of,
    evolve,
    explicit_step,
    scales_in_flux,
    structure_of,
    velocity,
)
from integrodiff.stages.structure_tensor import (
    Sensitivity,
    SymmetricTensor,
    multiscale_energy,
    multiscale_structure_tensor,
    sensitivity,
    trace_tensor,
)

__all__ = [
    "Coupling",
    "Discretisation",
    "Evolution",
    "Gradient",
    "Sensitivity",
    "SymmetricTensor",
    "Term",
    "blur",
    "cascade",
    "cascade_adjoint",
    "central_gradient",
    "derivatives",
    "derivatives_adjoint",
    "diffusion_tensor",
    "diffusivity",
    "discrete_gaussian",
    "divergence",
    "energy_of",
    "evolve",
    "explicit_step",
    "gradient",
    "haar_divergence",
    "haar_gradient",
    "haar_twist",
    "increments",
    "multiscale_energy",
    "multiscale_structure_tensor",
    "nonnegativity_divergence",
    "scales_in_flux",
    "sensitivity",
    "stable_step",
    "step_table",
    "structure_of",
    "trace_tensor",
    "velocity",
]
