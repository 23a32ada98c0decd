r"""Stage 7b: the structure tensor of volumes whose spacings differ, in units of its noise.

A model for volumes has contrasts for equal spacing, where white noise contributes as much to the
structure tensor along every axis. With thick slices the blurs average fewer voxels across slices,
so that there is more noise in all derivatives; and a derivative across slices that is divided by
their distance has less than others. Both make the contrasts wrong. Here derivatives are divided, in
the structure tensor alone, by lengths for which the noise is that of equal spacing along each axis.

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
from typing import Any, cast

from scipy.special import ive

from integrodiff.stages._arrays import plain
from integrodiff.stages.evolution import Evolution, Term
from integrodiff.stages.operators import VolumeGradient

Three = tuple[float, float, float]

EQUAL: Three = (1.0, 1.0, 1.0)


def noise_in_tensor(
    scales: Sequence[float], weights: Sequence[float], spacing: Three, twists: Three
) -> Three:
    """Return the diagonal of the mean structure tensor of white noise, per squared voxel.

    Parameters
    ----------
    scales, weights : sequence of float
        Smoothing scales, and the weight of each of them in the structure tensor.
    spacing : (float, float, float)
        Distance of slices, rows and columns, in the unit of the scales.
    twists : (float, float, float)
        As in :class:`.VolumeGradient`.

    Returns
    -------
    noise : (float, float, float)
        Along slices, rows and columns, for noise of variance one.
    """
    totals = [0.0, 0.0, 0.0]
    for scale, weight in zip(scales, weights, strict=True):
        variances = [(scale / distance) ** 2 for distance in spacing]
        mean = [float(ive(0, 2 * t) + ive(1, 2 * t)) / 2 for t in variances]
        change = [2 * float(ive(0, 2 * t) - ive(1, 2 * t)) for t in variances]
        for axis in range(3):
            b, c = (other for other in range(3) if other != axis)
            of_twists = twists[b] * change[b] * mean[c] + twists[c] * mean[b] * change[c]
            totals[axis] += weight * change[axis] * (mean[b] * mean[c] + of_twists / 4)
    return totals[0], totals[1], totals[2]


def in_units_of_noise(evolution: Evolution, twists: Three) -> Evolution:
    """Return the process with a structure tensor in which noise is as for equal spacing."""
    scales = [plain(scale) for scale in evolution.scales]

    def changed(term: Term) -> Term:
        weights = [plain(weight) for weight in term.coupling.weights]
        equal = noise_in_tensor(scales, weights, EQUAL, (0.0, 0.0, 0.0))[0]
        operator = cast(VolumeGradient, term.derivatives)
        found = noise_in_tensor(scales, weights, operator.spacing, twists)
        units: Any = tuple((noise / equal) ** 0.5 if equal else 1.0 for noise in found)
        return replace(term, derivatives=replace(operator, units=units, twists=twists))

    schedule = tuple(tuple(map(changed, terms)) for terms in evolution.schedule)
    return replace(evolution, schedule=schedule)
