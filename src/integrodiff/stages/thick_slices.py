r"""Stage 7b: what changes in a process for volumes whose spacings differ.

A model for volumes has contrasts for equal spacing. With thick slices two things change in the
structure tensor, and nowhere else:

- A cell averages the derivatives of two slices, whose edges lie at different places if the slices
  are far apart. Let h be a distance over the smallest. A share of :math:`(1 - h^{-2}) / 2` of
  the twists across such slices takes part: with a share of one, the tensor of a cell would be the
  mean of those of its two slices. Twists vanish where slices are equal.
- Blurs average fewer voxels across the slices, so that there is more noise in all derivatives.
  Derivatives are divided by a number for which the noise, along an axis of the smallest spacing, is
  that of equal spacing. It is the same as contrasts times that number.

The tensor stays a sum of products of vectors with themselves, so that gates stay between zero and
one, and no bound changes.

For white noise of variance one and a blur of variance t along an axis, the mean squares of the
average m and of the difference d of neighbours are

.. math:: A(t) = \frac{e^{-2t}}{2} \bigl(I_0(2t) + I_1(2t)\bigr), \qquad
          B(t) = 2 e^{-2t} \bigl(I_0(2t) - I_1(2t)\bigr),

that of a derivative along x is :math:`B(t_x) A(t_y) A(t_z)`, and that of the twist across z with it
:math:`B(t_x) A(t_y) B(t_z) / 4`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import cast

from scipy.special import ive

from integrodiff.stages._arrays import Scalar, plain
from integrodiff.stages.evolution import Evolution, Term
from integrodiff.stages.operators import VolumeGradient

Three = tuple[float, float, float]

_EQUAL: Three = (1.0, 1.0, 1.0)
_NONE: Three = (0.0, 0.0, 0.0)


def noise_in_tensor(
    scales: Sequence[float], weights: Sequence[Scalar], spacing: Three, twists: Three
) -> tuple[Scalar, Scalar, Scalar]:
    """Return the diagonal of the mean structure tensor of white noise, per squared voxel.

    Parameters
    ----------
    scales : sequence of float
        Smoothing scales.
    weights : sequence of float or array
        The weight of each of them in the structure tensor.
    spacing : (float, float, float)
        Distance of slices, rows and columns, in the unit of the scales.
    twists : (float, float, float)
        As in :class:`.VolumeGradient`.

    Returns
    -------
    noise : (float, float, float)
        Along slices, rows and columns, for noise of variance one; arrays if the weights are.
    """
    totals: list[Scalar] = [0.0, 0.0, 0.0]
    for scale, weight in zip(scales, weights, strict=True):
        variances = [(scale / distance) ** 2 for distance in spacing]
        mean = [float(ive(0, 2 * t) + ive(1, 2 * t)) / 2 for t in variances]
        change = [2 * float(ive(0, 2 * t) - ive(1, 2 * t)) for t in variances]
        for axis in range(3):
            b, c = (other for other in range(3) if other != axis)
            of_twists = twists[b] * change[b] * mean[c] + twists[c] * mean[b] * change[c]
            totals[axis] += weight * change[axis] * (mean[b] * mean[c] + of_twists / 4)
    return totals[0], totals[1], totals[2]


def for_spacing(evolution: Evolution) -> Evolution:
    """Return a process for volumes, whose numbers are for equal spacing, for its own spacing."""
    spacing = cast(Three, evolution.spacing)
    if min(spacing) == max(spacing):
        return evolution
    scales = [plain(scale) for scale in evolution.scales]
    z, y, x = ((1 - (min(spacing) / distance) ** 2) / 2 for distance in spacing)
    twists = (z, y, x)
    finest = spacing.index(min(spacing))

    def changed(term: Term) -> Term:
        weights = term.coupling.weights
        equal = noise_in_tensor(scales, weights, _EQUAL, _NONE)[finest]
        noise = noise_in_tensor(scales, weights, spacing, twists)[finest]
        # Weights that carry derivatives are above zero.
        factor = (noise / equal) ** 0.5 if not isinstance(equal, float) or equal else 1.0
        units = (factor * spacing[0], factor * spacing[1], factor * spacing[2])
        operator = cast(VolumeGradient, term.derivatives)
        return replace(term, derivatives=replace(operator, units=units, twists=twists))

    schedule = tuple(tuple(map(changed, terms)) for terms in evolution.schedule)
    return replace(evolution, schedule=schedule)
