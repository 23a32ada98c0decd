r"""Stage 5b: gradient and divergence of volumes, on cells of 2 x 2 x 2 voxels.

Along each axis there are the difference d and the average m of neighbours, see :mod:`.gradient`.
A cell has seven Haar coefficients other than its mean: the gradient :math:`X_a = d_a m_b m_c`,
three twists :math:`E_{ab} = d_a d_b m_c / 2` and the triple twist :math:`T = d_x d_y d_z / 4`. With
a tensor D, in which spacing is included, the energy of a cell is

.. math:: \sum_{ab} D_{ab} X_a X_b + (1 - 2\theta) \sum_{a<b} t_{ab} E_{ab}^2
          + w(\theta)\, t\, T^2, \qquad t_{ab} = D_{aa} + D_{bb} - 2 |D_{ab}|,

where t is a sixth of the sum of the three :math:`t_{ab}`, and
:math:`w(\theta) = 3 - 12\theta + 16\theta^2`. The divergence is minus the operator of that
quadratic form. If nothing changes across the slices it is that of :mod:`.divergence` in each of
them. docs/volumes.md has the proofs.
"""

from __future__ import annotations

from collections.abc import Sequence

from integrodiff.stages._arrays import COLUMN, ROW, SLICE, Array, namespace
from integrodiff.stages.divergence import average_adjoint, difference_adjoint
from integrodiff.stages.gradient import average, difference
from integrodiff.stages.structure_tensor import VolumeTensor


def triple_weight(theta: float) -> float:
    """Return w, the weight of the triple twist for D = I: positive, and at most three."""
    return 3 - 12 * theta + 16 * theta**2


def volume_coefficients(volume: Array) -> tuple[Array, ...]:
    """Return X, Y, Z, the twists XY, XZ and YZ, and the triple twist at the cells."""
    change, mean = difference(volume, COLUMN), average(volume, COLUMN)
    across, along = difference(mean, ROW), average(mean, ROW)
    twisted, level = difference(change, ROW) / 2, average(change, ROW)
    return (
        average(level, SLICE),
        average(across, SLICE),
        difference(along, SLICE),
        average(twisted, SLICE),
        difference(level, SLICE) / 2,
        difference(across, SLICE) / 2,
        difference(twisted, SLICE) / 2,
    )


def volume_flux(parts: Sequence[Array], tensor: VolumeTensor, theta: float) -> tuple[Array, ...]:
    """Return half the derivatives of the cells' energy with respect to the coefficients."""
    size = namespace(tensor.xx).abs
    x, y, z, twist_xy, twist_xz, twist_yz, triple = parts
    of_xy = tensor.xx + tensor.yy - 2 * size(tensor.xy)
    of_xz = tensor.xx + tensor.zz - 2 * size(tensor.xz)
    of_yz = tensor.yy + tensor.zz - 2 * size(tensor.yz)
    damping = 1 - 2 * theta
    return (
        tensor.xx * x + tensor.xy * y + tensor.xz * z,
        tensor.xy * x + tensor.yy * y + tensor.yz * z,
        tensor.xz * x + tensor.yz * y + tensor.zz * z,
        damping * of_xy * twist_xy,
        damping * of_xz * twist_xz,
        damping * of_yz * twist_yz,
        triple_weight(theta) / 6 * (of_xy + of_xz + of_yz) * triple,
    )


def volume_adjoint(flux: Sequence[Array]) -> Array:
    """Return the adjoint of the coefficients, with cells on the border counted half."""
    x, y, z, twist_xy, twist_xz, twist_yz, triple = flux
    level = average_adjoint(x, SLICE) + difference_adjoint(twist_xz, SLICE) / 2
    across = average_adjoint(y, SLICE) + difference_adjoint(twist_yz, SLICE) / 2
    along = difference_adjoint(z, SLICE)
    twisted = average_adjoint(twist_xy, SLICE) + difference_adjoint(triple, SLICE) / 2
    change = average_adjoint(level, ROW) + difference_adjoint(twisted, ROW) / 2
    mean = average_adjoint(along, ROW) + difference_adjoint(across, ROW)
    return difference_adjoint(change, COLUMN) + average_adjoint(mean, COLUMN)
