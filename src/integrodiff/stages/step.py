r"""Stage 9: the explicit scheme, one step and K of them.

.. math:: u \leftarrow u + \tau \Bigl(\kappa\,(f - u) - \sum_{\mathrm{terms}} \sum_i c_i\, K_i\,
          R^*\!\bigl(g_{\lambda_i}(J)\, R K_i u\bigr)\Bigr)

This is eq. (7) of the paper, discretised in time and over the scales: R is the gradient, or the
derivatives of another order, and :math:`R^*` its adjoint, for the gradient minus the divergence.
The fidelity term, of weight :math:`\kappa`, which may be another in every step, is not in the
paper. Read from :func:`velocity` downwards, in the order of the data flow and of the stages.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial

import numpy as np
from jaxtyping import Float
from numpy.typing import NDArray

from integrodiff.stages._arrays import Array, Scalar, namespace
from integrodiff.stages.domain import Domain
from integrodiff.stages.evolution import Evolution, Field, Term, is_zero, scaled
from integrodiff.stages.operators import Parts
from integrodiff.stages.scale_space import FLAT, blur, cascade, cascade_adjoint
from integrodiff.stages.structure_tensor import (
    Sensitivity,
    SymmetricTensor,
    VolumeTensor,
    sensitivity,
)


def velocity(
    image: Float[Array, "*batch channel height width"],
    evolution: Evolution,
    step: int = 0,
    local: Sensitivity | None = None,
    domain: Domain | None = None,
) -> Float[Array, "*batch channel height width"]:
    """Return the sum of the terms of one step: the right-hand side of eq. (7).

    Steps are counted from zero. ``local`` is for a noise level that varies over the image,
    ``domain`` for an image with invalid pixels. Their values do not count; they must be finite.
    """
    scales, spacing = evolution.scales, evolution.spacing
    smooth = partial(blur, spacing=spacing) if domain is None else domain.blur
    smoothed = cascade(image, scales, smooth)
    flows: dict[int, Array] = {}
    for term in evolution.terms(step):
        for i, flow in _flows(smoothed, scales, term, spacing, local, domain).items():
            flows[i] = flows[i] + flow if i in flows else flow
    if not flows:
        return namespace(image).zeros_like(image)
    found = sorted(flows)
    return cascade_adjoint([flows[i] for i in found], [scales[i] for i in found], smooth)


def _flows(
    smoothed: Sequence[Array],
    scales: Sequence[Scalar],
    term: Term,
    spacing: Sequence[float],
    local: Sensitivity | None,
    domain: Domain | None,
) -> dict[int, Array]:
    """Return the flow of one term at each scale that has one."""
    if not term.scales_in_flux:
        return {}
    needed = {*term.scales_in_coupling, *term.scales_in_flux}
    parts = {i: term.derivatives.forward(smoothed[i]) for i in sorted(needed)}
    if domain is not None:
        parts = {i: domain.known(term.derivatives, part) for i, part in parts.items()}
    field = term.derivatives.prepared(_coupling_field(parts, term, spacing, local, domain))
    flows = {}
    for i in term.scales_in_flux:
        flux = gated(parts[i], field, term, i)
        if domain is not None:
            flux = domain.flowing(term.derivatives, flux, scales[i])
        flows[i] = -term.flux_weights[i] * term.derivatives.adjoint(flux)
    return flows


def coupling_field(
    smoothed: Sequence[Array],
    term: Term,
    local: Sensitivity | None = None,
    domain: Domain | None = None,
    spacing: Sequence[float] = FLAT,
) -> Field:
    """Return the field that a term's diffusivity depends on: tensors, or a scalar energy."""
    parts = {i: term.derivatives.forward(smoothed[i]) for i in term.scales_in_coupling}
    if domain is not None:
        parts = {i: domain.known(term.derivatives, part) for i, part in parts.items()}
    return _coupling_field(parts, term, spacing, local, domain)


def _coupling_field(
    parts: Mapping[int, Parts],
    term: Term,
    spacing: Sequence[float] = FLAT,
    local: Sensitivity | None = None,
    domain: Domain | None = None,
) -> Field:
    coupled = {i: parts[i] for i in term.scales_in_coupling}
    field = term.coupling.summed(term.derivatives, coupled)
    if local is not None:
        # Before the integration: noise of a loud region must not count as structure beside it.
        field = scaled(field, local.at(term.derivatives.grid))
    field = term.coupling.integrated(field, term.derivatives.grid, spacing)
    if domain is None or is_zero(term.coupling.integration_scale):
        return term.coupling.mixed(field)
    # Unknown derivatives count as zero: divide the sums by the share of known ones.
    share = domain.share_of_known(term.derivatives, term.coupling.integration_scale)
    return term.coupling.mixed(scaled(field, 1 / share))


def gated(parts: Parts, field: Field, term: Term, scale: int) -> Parts:
    """Return the parts of one scale times the diffusivity of the field at that scale."""
    gate = term.diffusivity.of(field, scale, term.derivatives.order)
    if isinstance(gate, (SymmetricTensor, VolumeTensor)):
        return term.derivatives.tensor_gate(parts, gate)
    return term.derivatives.scalar_gate(parts, gate)


def explicit_step(
    image: Float[Array, "*batch channel height width"],
    evolution: Evolution,
    step: int = 0,
    original: Float[Array, "*batch channel height width"] | None = None,
    local: Sensitivity | None = None,
    domain: Domain | None = None,
) -> Float[Array, "*batch channel height width"]:
    """Return ``image`` one time step later; ``original`` is the input, for the fidelity term."""
    change = velocity(image, evolution, step, local, domain)
    pull = evolution.pull_at(step)
    if not is_zero(pull):
        if original is None:
            raise ValueError("an evolution with a pull needs the original that it pulls to")
        change = change + pull * (original - image)
    return image + evolution.tau * change


def evolve(
    image: Float[Array, "*batch channel height width"],
    evolution: Evolution,
    callback: Callable[[int, Array], object] | None = None,
    relative_noise: Float[Array, "*depth height width"] | None = None,
    mask: NDArray[np.bool_] | None = None,
) -> Float[Array, "*batch channel height width"]:
    """Return ``image`` after all steps of the evolution.

    Parameters
    ----------
    image : array
        Grey values on the scale [0, 255], ``(*batch, channel, row, column)``; in three dimensions
        ``(*batch, channel, slice, row, column)``.
    evolution : Evolution
        The process. Its step size is not checked here; see :func:`stable_step`.
    callback : callable, optional
        Called as ``callback(step, image)`` after each step, counted from one.
    relative_noise : array, optional
        Where the noise level varies over the image: its level at each pixel, relative to that of
        the evolution.
    mask : array of bool, optional
        True at valid pixels. The values of others must be finite; they do not count and stay.
    """
    original = image
    domain = None if mask is None else Domain(mask, image, evolution.spacing)
    local = None if relative_noise is None else sensitivity(relative_noise)
    for step in range(evolution.steps):
        image = explicit_step(image, evolution, step, original, local, domain)
        if callback is not None:
            callback(step + 1, image)
    return image
