r"""Stage 8: the explicit scheme, one step and K of them.

.. math:: u \leftarrow u + \tau \Bigl(\kappa\,(f - u) + \sum_{\mathrm{terms}} \sum_i c_i\, K_i\,
          R^*\!\bigl(g_{\lambda_i}(J)\, R K_i u\bigr)\Bigr)

where R is the gradient, or the derivatives of another order, and :math:`R^*` minus its adjoint,
for the gradient the divergence. Reading this file from :func:`velocity` downwards the data flow,
and the order of the stages.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from jaxtyping import Float

from integrodiff.stages._arrays import Array, Scalar, namespace
from integrodiff.stages.derivatives import derivatives, derivatives_adjoint
from integrodiff.stages.diffusion_tensor import diffusion_tensor, diffusivity
from integrodiff.stages.divergence import divergence
from integrodiff.stages.evolution import Evolution, Term
from integrodiff.stages.gradient import gradient
from integrodiff.stages.scale_space import cascade, cascade_adjoint
from integrodiff.stages.structure_tensor import (
    Sensitivity,
    SymmetricTensor,
    multiscale_energy,
    multiscale_structure_tensor,
    sensitivity,
    trace_tensor,
)


def velocity(
    image: Float[Array, "*batch channel height width"],
    evolution: Evolution,
    step: int = 0,
    local: Sensitivity | None = None,
) -> Float[Array, "*batch channel height width"]:
    """Return what the terms of one step, counted from zero, add to ``image`` per time.

    ``local`` is for noise that is not the same everywhere.
    """
    scales = evolution.scales
    smoothed = cascade(image, scales)
    flows: dict[int, Array] = {}
    for term in evolution.terms(step):
        for i, flow in _flows(smoothed, term, evolution, local).items():
            flows[i] = flows[i] + flow if i in flows else flow
    if not flows:
        return namespace(image).zeros_like(image)
    return cascade_adjoint([flows[i] for i in sorted(flows)], [scales[i] for i in sorted(flows)])


def _flows(
    smoothed: Sequence[Array], term: Term, evolution: Evolution, local: Sensitivity | None
) -> dict[int, Array]:
    """Return the flow of one term at each scale that has one."""
    in_flux = scales_in_flux(term)
    if not in_flux:
        return {}
    if term.order > 1:
        needed = {*_scales_in_coupling(term), *in_flux}
        found = {i: derivatives(smoothed[i], term.order) for i in needed}
        energy = _energy(found, term)
        if local is not None:
            energy = energy * (local.cells if term.order % 2 else local.pixels)
        return {
            i: -term.flux_weights[i]
            * derivatives_adjoint(_scaled(found[i], energy, term.contrasts[i]), term.order)
            for i in in_flux
        }
    structure = structure_of(smoothed, term, evolution)
    if local is not None:
        factor = local.cells if evolution.discretisation == "haar" else local.pixels
        structure = SymmetricTensor(*(factor * part for part in structure))
    return {
        i: term.flux_weights[i]
        * divergence(
            smoothed[i],
            diffusion_tensor(structure, term.contrasts[i]),
            discretisation=evolution.discretisation,
            theta=evolution.theta,
        )
        for i in in_flux
    }


def structure_of(smoothed: Sequence[Array], term: Term, evolution: Evolution) -> SymmetricTensor:
    """Return what a term of order one takes for the structure of the image, at all its scales."""
    scales = _scales_in_coupling(term)
    structure = multiscale_structure_tensor(
        [gradient(smoothed[i], evolution.discretisation) for i in scales],
        [term.coupling_weights[i] for i in scales],
    )
    return trace_tensor(structure) if term.coupling == "trace" else structure


def energy_of(smoothed: Sequence[Array], term: Term) -> Array:
    """Return the same of a term of higher order, a sum of squares."""
    found = {i: derivatives(smoothed[i], term.order) for i in _scales_in_coupling(term)}
    return _energy(found, term)


def scales_in_flux(term: Term) -> list[int]:
    """Return the numbers of the scales at which a term has a flow."""
    return [i for i, weight in enumerate(term.flux_weights) if not _is_zero(weight)]


def _scales_in_coupling(term: Term) -> list[int]:
    found = [i for i, weight in enumerate(term.coupling_weights) if not _is_zero(weight)]
    return found or scales_in_flux(term)[:1]  # of weight zero: diffusion without any edges


def _energy(found: Mapping[int, Sequence[Array]], term: Term) -> Array:
    scales = _scales_in_coupling(term)
    return multiscale_energy([found[i] for i in scales], [term.coupling_weights[i] for i in scales])


def _scaled(parts: Sequence[Array], energy: Array, contrast: Scalar) -> list[Array]:
    """Return derivatives times their common diffusivity."""
    factor = diffusivity(energy, contrast)
    return [factor * part for part in parts]


def explicit_step(
    image: Float[Array, "*batch channel height width"],
    evolution: Evolution,
    step: int = 0,
    original: Float[Array, "*batch channel height width"] | None = None,
    local: Sensitivity | None = None,
) -> Float[Array, "*batch channel height width"]:
    """Return ``image`` one time step later; ``original`` is what it is pulled to, if it is."""
    change = velocity(image, evolution, step, local)
    if not _is_zero(evolution.pull):
        if original is None:
            raise ValueError("an evolution with a pull needs the original that it pulls to")
        change = change + evolution.pull * (original - image)
    return image + evolution.tau * change


def evolve(
    image: Float[Array, "*batch channel height width"],
    evolution: Evolution,
    callback: Callable[[int, Array], object] | None = None,
    relative_noise: Float[Array, "height width"] | None = None,
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
    relative_noise : array, optional
        Where the noise is not the same everywhere: its level at each pixel, relative to that of
        the evolution.
    """
    original = image
    local = None if relative_noise is None else sensitivity(relative_noise)
    for step in range(evolution.steps):
        image = explicit_step(image, evolution, step, original, local)
        if callback is not None:
            callback(step + 1, image)
    return image


def _is_zero(weight: object) -> bool:
    """Whether a weight is the plain number zero; a trained weight never is."""
    return isinstance(weight, (int, float)) and weight == 0
