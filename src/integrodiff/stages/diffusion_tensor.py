r"""Stage 4: the diffusion tensor :math:`D = g_\lambda(J)`, eqs. (2) to (4) of the paper.

The diffusivity :math:`g_\lambda(\mu) = \exp(-\mu / (2\lambda^2))` is applied to the eigenvalues
:math:`\mu_1 \ge \mu_2 \ge 0` of the structure tensor; the eigenvectors stay. No eigenvector is
computed. With the mean :math:`m` of the eigenvalues, half their distance :math:`d`, and
:math:`k = 1 / (2 \lambda^2)`,

.. math::
    D = \frac{g(\mu_1) + g(\mu_2)}{2} I
        - k\, e^{-k\mu_2}\, \varphi(2kd) \,(J - m I),
    \qquad \varphi(x) = \frac{1 - e^{-x}}{x},\quad \varphi(0) = 1 .

:math:`\varphi` is smooth, so D is continuous in J, also where the two eigenvalues meet. Of 3 x 3
tensors the eigenvectors are needed, see :mod:`.eigenframe`.
"""

from __future__ import annotations

from integrodiff.stages._arrays import Array, Scalar, detached, namespace
from integrodiff.stages.eigenframe import Eigenframe, RotatedTensor
from integrodiff.stages.structure_tensor import SymmetricTensor, VolumeTensor


def diffusion_tensor(structure: SymmetricTensor, contrast: Scalar) -> SymmetricTensor:
    r"""Return :math:`g_\lambda(J)` for every tensor of a field.

    For :math:`J = \nabla u\, \nabla u^\top` its eigenvalues are those of eq. (3), and D is the
    tensor of eq. (4).

    Parameters
    ----------
    structure : SymmetricTensor
        Positive semidefinite tensors J.
    contrast : scalar
        :math:`\lambda > 0`, in the unit of the gradient.

    Returns
    -------
    tensor : SymmetricTensor
        Tensors with the eigenvectors of J and eigenvalues in [0, 1].
    """
    xp = namespace(structure.xx)
    rate = 1 / (2 * contrast**2)
    mean = (structure.xx + structure.yy) / 2
    deviation = (structure.xx - structure.yy) / 2
    distance = _safe_sqrt(deviation * deviation + structure.xy * structure.xy)
    # A negative smaller eigenvalue is rounding, or due to a mix of eigenvalues. Without the cut-off
    # D could exceed I, and with it the bound of the step size. The other one is larger by twice
    # the distance.
    smaller = mean - distance
    smaller = xp.where(smaller > 0, smaller, 0 * smaller)

    larger_diffusivity = xp.exp(-rate * smaller)
    ratio = xp.exp(-2 * rate * distance)  # of the two diffusivities
    half_sum = larger_diffusivity * (1 + ratio) / 2
    slope = larger_diffusivity * rate * _phi(2 * rate * distance)
    return SymmetricTensor(
        xx=half_sum - slope * deviation,
        xy=-slope * structure.xy,
        yy=half_sum + slope * deviation,
    )


def diffusivity(energy: Array, contrast: Scalar) -> Array:
    r"""Return :math:`g_\lambda` of a scalar field of squares, in [0, 1]; eq. (2)."""
    return namespace(energy).exp(-energy / (2 * contrast**2))


def volume_diffusion_tensor(frame: Eigenframe, contrast: Scalar) -> VolumeTensor:
    """Return the same for 3 x 3 tensors, whose eigenvalues and eigenvectors are given.

    Negative eigenvalues, which are rounding, count as zero.
    """
    xp = namespace(frame.values[0])
    rate = 1 / (2 * contrast**2)
    first, second, third = (
        xp.exp(-rate * xp.where(value > 0, value, 0 * value)) for value in frame.values
    )
    (ax, ay, az), (bx, by, bz) = frame.second, frame.third
    a, b = second - first, third - first
    return VolumeTensor(
        xx=first + a * ax * ax + b * bx * bx,
        xy=a * ax * ay + b * bx * by,
        xz=a * ax * az + b * bx * bz,
        yy=first + a * ay * ay + b * by * by,
        yz=a * ay * az + b * by * bz,
        zz=first + a * az * az + b * bz * bz,
    )


def rotated_diffusion_tensor(tensor: RotatedTensor, contrast: Scalar) -> VolumeTensor:
    r"""Return the same with first derivatives that are exact and finite everywhere.

    In the frame of the eigenvectors of J, the derivative of :math:`g(J)` in the direction of a
    symmetric matrix A has the entries :math:`g[\mu_i, \mu_j]\, A_{ij}`. The divided difference
    :math:`g[\mu_i, \mu_j] = (g(\mu_i) - g(\mu_j)) / (\mu_i - \mu_j)` is :math:`g'(\mu_i)` where
    the eigenvalues meet (theorem of Daleckii and Krein). So the tensor is written as

    .. math:: g(\mu_i) \delta_{ij} + g[\mu_i, \mu_j]\, J_{ij}

    in that frame, where :math:`J_{ij}` is zero beside the diagonal but for its derivatives. Second
    derivatives of it are not those of g(J).
    """
    xp = namespace(tensor.diagonal[0])
    rate = 1 / (2 * contrast**2)
    values = tuple(xp.where(value > 0, value, 0 * value) for value in tensor.diagonal)
    gates = tuple(xp.exp(-rate * value) for value in values)

    def slope(i: int, j: int) -> Array:
        apart = xp.abs(values[i] - values[j])
        larger = xp.where(values[i] < values[j], gates[i], gates[j])
        return -rate * larger * _phi(rate * apart)

    # What is there by rounding is removed: a steep diffusivity would make it large.
    pairs = ((0, 1), (0, 2), (1, 2))
    beside = [
        slope(i, j) * (entry - detached(entry))
        for (i, j), entry in zip(pairs, tensor.beside, strict=True)
    ]

    def entry(row: int, column: int) -> Array:
        total = sum(gate * v[row] * v[column] for gate, v in zip(gates, tensor.frame, strict=True))
        for (i, j), part in zip(pairs, beside, strict=True):
            v, w = tensor.frame[i], tensor.frame[j]
            total = total + part * (v[row] * w[column] + w[row] * v[column])
        return total

    places = ((0, 0), (0, 1), (0, 2), (1, 1), (1, 2), (2, 2))
    return VolumeTensor(*(entry(row, column) for row, column in places))


def _safe_sqrt(square: Array) -> Array:
    """Square root whose derivative at zero is taken as zero instead of infinite.

    Here ``square`` is a sum of squares, so its own derivative vanishes wherever it does.
    """
    xp = namespace(square)
    positive = square > float(xp.finfo(square.dtype).smallest_normal)
    root = xp.sqrt(xp.where(positive, square, xp.ones_like(square)))
    return xp.where(positive, root, 0 * square)


def _phi(x: Array) -> Array:
    """``(1 - exp(-x)) / x`` for nonnegative x, continued by one at zero."""
    xp = namespace(x)
    # Below this, 1 - x/2 is exact to the last bit of the format.
    small = x < float(xp.finfo(x.dtype).eps) ** 0.5
    quotient_from = xp.where(small, xp.ones_like(x), x)
    return xp.where(small, 1 - x / 2, -xp.expm1(-quotient_from) / quotient_from)
