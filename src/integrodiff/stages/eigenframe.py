r"""Stage 4a: eigenvalues and eigenvectors of 3 x 3 structure tensors, in closed form.

The diffusion tensors of all scales have the eigenvectors of one structure tensor J, so these are
found once for each place. With the mean m of the eigenvalues and
:math:`p = |J - m I|_F / \sqrt6`, the matrix :math:`B = (J - m I) / p` has the eigenvalues
:math:`2 \cos(\varphi + 2\pi k/3)`, :math:`\cos 3\varphi = \det B / 2 = r`. The one that is
:math:`2 \cos(\arccos(|r|) / 3)` times the sign of r is at least :math:`\sqrt3` away from both
others, for every J. So its eigenvector is well determined, as a cross product of two rows. In the
plane orthogonal to it the problem is that of a 2 x 2 tensor.

Nothing here divides by a small number. The three vectors are orthonormal up to rounding for every
input, and if J is a multiple of the unit matrix they are the axes.
"""

from __future__ import annotations

from typing import NamedTuple, TypeAlias

from integrodiff.stages._arrays import Array, detached, namespace
from integrodiff.stages.structure_tensor import VolumeTensor

Direction: TypeAlias = tuple[Array, Array, Array]
"""Fields of the components x, y and z of unit vectors."""


class Eigenframe(NamedTuple):
    """Eigenvalues of a field of tensors, in no order, and two of the three eigenvectors.

    Attributes
    ----------
    values : three arrays
        The eigenvalues.
    second, third : Direction
        The eigenvectors of the second and the third; the first is orthogonal to both.
    """

    values: tuple[Array, Array, Array]
    second: Direction
    third: Direction


class RotatedTensor(NamedTuple):
    """A field of tensors in a fixed frame, in which it is diagonal up to rounding.

    The entries off the diagonal are zero, and their derivatives are not: they say how the frame
    would turn.

    Attributes
    ----------
    frame : three of Direction
        Orthonormal vectors, without derivatives.
    diagonal : three arrays
        Eigenvalues.
    beside : three arrays
        The entries (first, second), (first, third) and (second, third).
    """

    frame: tuple[Direction, Direction, Direction]
    diagonal: tuple[Array, Array, Array]
    beside: tuple[Array, Array, Array]


def rotated_tensor(tensor: VolumeTensor) -> RotatedTensor:
    """Return tensors that carry derivatives in the frame of their eigenvectors.

    Eigenvectors and eigenvalues on their own have no derivatives where eigenvalues meet. A function
    of the tensor has, see :func:`.diffusion_tensor.rotated_diffusion_tensor`.
    """
    frame = eigenframe(VolumeTensor(*map(detached, tensor)))
    vectors = (_cross(frame.second, frame.third), frame.second, frame.third)
    xx, xy, xz, yy, yz, zz = tensor
    images = [
        (_dot((xx, xy, xz), v), _dot((xy, yy, yz), v), _dot((xz, yz, zz), v)) for v in vectors
    ]
    a, b, c = vectors
    return RotatedTensor(
        frame=vectors,
        diagonal=(_dot(a, images[0]), _dot(b, images[1]), _dot(c, images[2])),
        beside=(_dot(a, images[1]), _dot(a, images[2]), _dot(b, images[2])),
    )


def eigenframe(tensor: VolumeTensor) -> Eigenframe:
    """Return eigenvalues and eigenvectors of symmetric tensors."""
    xp = namespace(tensor.xx)
    mean = (tensor.xx + tensor.yy + tensor.zz) / 3
    # Scaled by the largest entry: squares of the smallest and largest numbers stay in range.
    size = _largest([xp.abs(entry) for entry in tensor])
    tiny = float(xp.finfo(size.dtype).smallest_normal)
    scaled = size > 4 * tiny
    unit = 1 / xp.where(scaled, size, xp.ones_like(size))
    xx, yy, zz = ((entry - mean) * unit for entry in (tensor.xx, tensor.yy, tensor.zz))
    xy, xz, yz = (entry * unit for entry in (tensor.xy, tensor.xz, tensor.yz))
    square = (xx * xx + yy * yy + zz * zz + 2 * (xy * xy + xz * xz + yz * yz)) / 6
    # Where all eigenvalues agree up to rounding, the frame is that of the axes.
    differs = scaled & (square > float(xp.finfo(size.dtype).eps) ** 2)
    spread = xp.sqrt(xp.where(differs, square, xp.ones_like(square)))
    xx, xy, xz, yy, yz, zz = (entry / spread for entry in (xx, xy, xz, yy, yz, zz))
    half_determinant = (
        xx * (yy * zz - yz * yz) - xy * (xy * zz - yz * xz) + xz * (xy * yz - yy * xz)
    ) / 2
    ratio = xp.clip(half_determinant, -1.0, 1.0)
    isolated = 2 * xp.cos(xp.acos(xp.abs(ratio)) / 3)
    isolated = xp.where(ratio < 0, -isolated, isolated)

    w = _null_direction((xx - isolated, xy, xz, yy - isolated, yz, zz - isolated), differs)
    u, v = _orthogonal_to(w)
    rows = ((xx, xy, xz), (xy, yy, yz), (xz, yz, zz))
    of_u = tuple(_dot(row, u) for row in rows)
    of_v = tuple(_dot(row, v) for row in rows)
    uu, uv, vv = _dot(u, of_u), _dot(u, of_v), _dot(v, of_v)
    middle, deviation = (uu + vv) / 2, (uu - vv) / 2
    distance_square = deviation * deviation + uv * uv
    apart = distance_square > tiny
    length = xp.sqrt(xp.where(apart, distance_square, xp.ones_like(uv)))
    distance = xp.where(apart, length, xp.zeros_like(uv))
    # The eigenvector of the larger value has half the angle of (deviation, uv), which follows from
    # square roots of numbers between 1/2 and 1.
    cosine = xp.where(apart, deviation / length, xp.ones_like(uv))
    sine = xp.where(apart, uv / length, xp.zeros_like(uv))
    large = xp.sqrt((1 + xp.abs(cosine)) / 2)
    small = sine / (2 * large)
    flipped = cosine < 0
    c, s = xp.where(flipped, small, large), xp.where(flipped, large, small)
    back = xp.where(differs, spread * size, xp.zeros_like(size))
    return Eigenframe(
        values=(
            mean + back * (middle - distance),
            mean + back * (middle + distance),
            mean + back * isolated,
        ),
        second=(c * u[0] + s * v[0], c * u[1] + s * v[1], c * u[2] + s * v[2]),
        third=w,
    )


def _largest(fields: list[Array]) -> Array:
    xp = namespace(fields[0])
    result = fields[0]
    for field in fields[1:]:
        result = xp.where(field > result, field, result)
    return result


def _dot(a: Direction | tuple[Array, ...], b: Direction | tuple[Array, ...]) -> Array:
    return a[0] * b[0] + a[1] * b[1] + a[2] * b[2]


def _cross(a: tuple[Array, ...], b: tuple[Array, ...]) -> Direction:
    return (a[1] * b[2] - a[2] * b[1], a[2] * b[0] - a[0] * b[2], a[0] * b[1] - a[1] * b[0])


def _null_direction(matrix: tuple[Array, ...], found: Array) -> Direction:
    """Return the unit vector that a matrix of rank two maps to zero, or x where nothing is found.

    It is the longest of the three cross products of rows.
    """
    xx, xy, xz, yy, yz, zz = matrix
    xp = namespace(xx)
    rows = ((xx, xy, xz), (xy, yy, yz), (xz, yz, zz))
    best = _cross(rows[0], rows[1])
    square = _dot(best, best)
    for pair in ((0, 2), (1, 2)):
        other = _cross(rows[pair[0]], rows[pair[1]])
        longer = _dot(other, other)
        better = longer > square
        best = tuple(xp.where(better, a, b) for a, b in zip(other, best, strict=True))
        square = xp.where(better, longer, square)
    length = xp.sqrt(xp.where(found, square, xp.ones_like(square)))
    x, y, z = (part / length for part in best)
    zero = xp.zeros_like(x)
    return (
        xp.where(found, x, xp.ones_like(x)),
        xp.where(found, y, zero),
        xp.where(found, z, zero),
    )


def _orthogonal_to(w: Direction) -> tuple[Direction, Direction]:
    """Return two unit vectors orthogonal to a unit vector, and to each other.

    The formula is that of T. Duff et al., "Building an orthonormal basis, revisited", Journal of
    Computer Graphics Techniques 6(1), 2017.
    """
    x, y, z = w
    xp = namespace(z)
    sign = xp.where(z < 0, -xp.ones_like(z), xp.ones_like(z))
    a = -1 / (sign + z)
    b = x * y * a
    return (1 + sign * x * x * a, sign * b, -sign * x), (b, sign + y * y * a, -y)
