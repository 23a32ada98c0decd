r"""Stage 9: the explicit scheme, one step and K of them.

.. math:: u \leftarrow u + \tau \Bigl(\kappa\,(f - u) - \sum_{\mathrm{terms}} \sum_i c_i\, K_i\,
          R^*\!\bigl(g_{\lambda_i}(J)\, R K_i u\bigr)\Bigr)

This is eq. (7) of the paper, discretised in time and over the scales: R is the gradient, or the
derivatives of another order, and :math:`R^*` its adjoint, for the gradient minus the divergence.
The fidelity term, of weight :math:`\kappa`, is not in the paper. Read from :func:`velocity`
downwards, in the order of the data flow and of the stages.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from jaxtyping import Float

from integrodiff.stages._arrays import Array, namespace
from integrodiff.stages.evolution import Evolution, Field, Term, is_zero
from integrodiff.stages.operators import Parts
from integrodiff.stages.scale_space import cascade, cascade_adjoint
from integrodiff.stages.structure_tensor import Sensitivity, SymmetricTensor, sensitivity


def velocity(
    image: Float[Array, "*batch channel height width"],
    evolution: Evolution,
    step: int = 0,
    local: Sensitivity | None = None,
) -> Float[Array, "*batch channel height width"]:
    """Return the sum of the terms of one step: the right-hand side of eq. (7).

    Steps are counted from zero. ``local`` is for a noise level that varies over the image.
    """
    scales = evolution.scales
    smoothed = cascade(image, scales)
    flows: dict[int, Array] = {}
    for term in evolution.terms(step):
        for i, flow in _flows(smoothed, term, local).items():
            flows[i] = flows[i] + flow if i in flows else flow
    if not flows:
        return namespace(image).zeros_like(image)
    return cascade_adjoint([flows[i] for i in sorted(flows)], [scales[i] for i in sorted(flows)])


def _flows(smoothed: Sequence[Array], term: Term, local: Sensitivity | None) -> dict[int, Array]:
    """Return the flow of one term at each scale that has one."""
    if not term.scales_in_flux:
        return {}
    needed = {*term.scales_in_coupling, *term.scales_in_flux}
    parts = {i: term.derivatives.forward(smoothed[i]) for i in sorted(needed)}
    field = _coupling_field(parts, term, local)
    return {
        i: -term.flux_weights[i] * term.derivatives.adjoint(gated(parts[i], field, term, i))
        for i in term.scales_in_flux
    }


def coupling_field(smoothed: Sequence[Array], term: Term) -> Field:
    """Return the field that a term's diffusivity depends on: tensors, or a scalar energy."""
    scales = term.scales_in_coupling
    return _coupling_field({i: term.derivatives.forward(smoothed[i]) for i in scales}, term, None)


def _coupling_field(parts: Mapping[int, Parts], term: Term, local: Sensitivity | None) -> Field:
    coupled = {i: parts[i] for i in term.scales_in_coupling}
    field = term.coupling.summed(term.derivatives, coupled)
    if local is not None:
        # Before the integration: noise of a loud region must not count as structure beside it.
        field = _scaled(field, local.at(term.derivatives.grid))
    return term.coupling.integrated(field, term.derivatives.grid)


def gated(parts: Parts, field: Field, term: Term, scale: int) -> Parts:
    """Return the parts of one scale times the diffusivity of the field at that scale."""
    gate = term.diffusivity.of(field, scale, term.derivatives.order)
    if isinstance(gate, SymmetricTensor):
        return term.derivatives.tensor_gate(parts, gate)
    return term.derivatives.scalar_gate(parts, gate)


def _scaled(field: Field, factor: Array) -> Field:
    if isinstance(field, SymmetricTensor):
        return SymmetricTensor(*(factor * entry for entry in field))
    return factor * field


def explicit_step(
    image: Float[Array, "*batch channel height width"],
    evolution: Evolution,
    step: int = 0,
    original: Float[Array, "*batch channel height width"] | None = None,
    local: Sensitivity | None = None,
) -> Float[Array, "*batch channel height width"]:
    """Return ``image`` one time step later; ``original`` is the input, for the fidelity term."""
    change = velocity(image, evolution, step, local)
    if not is_zero(evolution.pull):
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
        Where the noise level varies over the image: its level at each pixel, relative to that of
        the evolution.
    """
    original = image
    local = None if relative_noise is None else sensitivity(relative_noise)
    for step in range(evolution.steps):
        image = explicit_step(image, evolution, step, original, local)
        if callback is not None:
            callback(step + 1, image)
    return image
