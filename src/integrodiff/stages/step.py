r"""Stage 8: the explicit scheme, one step and K of them.

.. math:: u \leftarrow u + \tau \sum_i c_i\, K_i\, \nabla^\top\!\bigl(g_{\lambda_i}(J)\,
          \nabla K_i u\bigr)

Reading this file from :func:`velocity` downwards the data flow, and the order of the stages.
"""

from __future__ import annotations

from collections.abc import Callable

from jaxtyping import Float

from integrodiff.stages._arrays import Array
from integrodiff.stages.diffusion_tensor import diffusion_tensor
from integrodiff.stages.divergence import divergence
from integrodiff.stages.evolution import Evolution
from integrodiff.stages.gradient import gradient
from integrodiff.stages.scale_space import cascade, cascade_adjoint
from integrodiff.stages.structure_tensor import multiscale_structure_tensor, trace_tensor


def velocity(
    image: Float[Array, "*batch channel height width"], evolution: Evolution
) -> Float[Array, "*batch channel height width"]:
    """Return the time derivative of ``image``: the right-hand side of the evolution."""
    scales = evolution.scales
    smoothed = cascade(image, scales)

    in_tensor = [i for i, weight in enumerate(evolution.tensor_weights) if not _is_zero(weight)]
    structure = multiscale_structure_tensor(
        [gradient(smoothed[i], evolution.discretisation) for i in in_tensor],
        [evolution.tensor_weights[i] for i in in_tensor],
    )
    if evolution.coupling == "trace":
        structure = trace_tensor(structure)

    in_flux = [i for i, weight in enumerate(evolution.flux_weights) if not _is_zero(weight)]
    flows = [
        evolution.flux_weights[i]
        * divergence(
            smoothed[i],
            diffusion_tensor(structure, evolution.contrasts[i]),
            discretisation=evolution.discretisation,
            theta=evolution.theta,
        )
        for i in in_flux
    ]
    return cascade_adjoint(flows, [scales[i] for i in in_flux])


def explicit_step(
    image: Float[Array, "*batch channel height width"], evolution: Evolution
) -> Float[Array, "*batch channel height width"]:
    """Return ``image`` one time step later."""
    return image + evolution.tau * velocity(image, evolution)


def evolve(
    image: Float[Array, "*batch channel height width"],
    evolution: Evolution,
    callback: Callable[[int, Array], object] | None = None,
) -> Float[Array, "*batch channel height width"]:
    """Return ``image`` after all steps of the evolution.

    Parameters
    ----------
    image : array
        Grey values on the scale [0, 255], ``(*batch, channel, row, column)``.
    evolution : Evolution
        The process. Its step size is not checked here; see :func:`stable_step`.
    callback : callable, optional
        Called as ``callback(step, image)`` after each step, counted from one.
    """
    for step in range(1, evolution.steps + 1):
        image = explicit_step(image, evolution)
        if callback is not None:
            callback(step, image)
    return image


def _is_zero(weight: object) -> bool:
    """Whether a weight is the plain number zero; a trained weight never is."""
    return isinstance(weight, (int, float)) and weight == 0
