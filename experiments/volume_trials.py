"""Try how accurate diffusion of volumes becomes if it is free at every step; meant for a GPU.

    python experiments/volume_trials.py volumes VOLUMES.npz --data FOLDER
    python experiments/volume_trials.py check
    python experiments/volume_trials.py train VOLUMES.npz OUT.json --variants 1 1+2 --limit 270
    python experiments/volume_trials.py evaluate OUT.json VOLUME --crop --percent 5 11 19
    python experiments/volume_trials.py table OUT.json [OTHER-SEED.json ...]

``volumes`` writes volumes of ``volume_phantoms.py``, most to train on and some that are held out;
no scan is among them. ``check`` verifies the model in double precision on tiny volumes. ``train``
trains variants in turns, an iteration each, on the same batches; ``--limit`` is the time in seconds
from the end of the imports, compilation and evaluation included, and OUT.json is written every few
seconds; ``--start`` goes on from an earlier one. ``evaluate`` measures the PSNR on a volume as
``evaluate_volumes.py`` does.

For derivatives ``1+2`` keeps about 0.6 kB for each voxel and step if it is compiled, and 3 kB if
not. With ``--checkpoint`` it is one step at a time.

Variants are

``1``
    order one; weights, contrasts, couplings, integration scale and pull of each step are free
``1+2``
    the same with an anisotropic second order, which has scales of its own
``compact``
    the law of ``iad-fast-volume``, trained in the same way, for reference

with a number of steps after a slash, such as ``1+2/12``, and ``1+2/8/plain`` for the second
derivatives of images.

**Order one** is that of the package: cells of 2 x 2 x 2 voxels, J smoothed at an integration scale.
**Order two**: H_i is the 3 x 3 matrix of second derivatives of K_i u at the voxels,
J_2 = sum_i c_i H_i H_i, each entry smoothed by a Gaussian of another integration scale. With
A = exp(-J_2 / (4 lambda^2)) the flow is -R^T(A H A), where R maps K_i u to H. In the inner product
sum_ab H_ab G_ab, in which entries beside the diagonal count twice, H -> A H A is symmetric; its
eigenvalues are products of two eigenvalues of A, so between zero and one.

**The stencil of H.** With S = (1, -2, 1) and central differences C = (-1, 0, 1) / 2, let
N = 1 + S / 12 = (1, 10, 1) / 12 and B = 1 + S / 6 = (1, 4, 1) / 6. Then

    H_xx = S_x N_x B_y B_z,    H_xy = C_x C_y B_z,

and so on, have the symbols -w_a w_b (1 - |w|^2 / 6 + O(|w|^4)), with the same factor in all six
entries: H is the Hessian of one isotropically smoothed volume up to errors of fourth order, so it
turns with the volume to second order. C_x C_y decides the factor, since it is the only product of
short differences at the voxels; S_x alone would have 1 - w_x^2 / 12. No tap of N and B is negative.
``plain`` has N = B = 1, as images have. Under half-sample reflection S, N and B are symmetric
matrices, and C has an exact adjoint, which is used on the way back.

**The bound.** All gates are between zero and one, so the operator of a step is at most that for
gates of one, which is diagonal under the DCT-II. Its largest eigenvalue is taken on a grid of
frequencies (p, q, r), times ``BOUND_MARGIN``: between points of the grid it is at most 0.8 percent
larger, and rounding of float32 may make a gate larger than one by less than the rest. ``check``
measures both. Weights and pull of a step are divided by their excess over the bound.

**The exponential** has no eigenvectors: exp(-x) = q(y)^(2^k) with y = 1 / (1 + c x / 2^k), where q
is a polynomial that maps [0, 1] to itself, so that gates are in [0, 1] for every semidefinite
matrix. It takes one inverse and 2 + k products of six entries each. With k = 4, for float32, the
approximation has an error of 4e-7. Rounding may leave a small negative eigenvalue in J, so a share
of the trace of a few units of rounding is added first.
"""

# mypy: allow-untyped-calls

from __future__ import annotations

import argparse
import json
import math
import time
import traceback
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import torch
from torch.nn.functional import pad
from torch.utils.checkpoint import checkpoint

import accuracy_trials as trials
import second_pass
from accuracy_trials import DECIBELS, DEVICE, Tensor, tensor

LEVELS = (5.0, 8.0, 12.0, 18.0, 27.0, 40.0, 60.0)
"""Noise levels of training and evaluation; their PSNR counts alike."""
REFERENCE = trials.REFERENCE
THETA = trials.THETA
BOUND_MARGIN = 1.01
"""Factor on the largest eigenvalue at the points of the grid of frequencies."""
SMALLEST_CONTRAST = 0.02
"""In noise levels, as in ``accuracy_trials.py``."""
CONTRAST_FLOOR = (0.03, 0.3)
"""Smallest contrasts relative to the response to a step of one grey level, in noise levels and in
grey levels, as in ``train_models.py``."""
INTEGRATION_LIMITS = ((0.1, 5.2), (0.1, 10.5))
"""Of both orders, in voxels."""
LARGEST_SCALE = 6.0
SCALES = ((0.1, 0.35, 0.7, 1.2, 2.2), (0.3, 0.9))
"""Of both orders, before training."""
LAW = {
    "exponent": -0.5490177626839878,
    "decay": 4.168334072134835,
    "contrast": 0.22790034591447667,
    "contrast_exponent": 0.5135166856872947,
    "rho": 0.73472151237435,
    "rho_exponent": 0.13009941768658775,
    "growth": 0.46146642706818325,
    "drift": 0.6297371431989552,
}
"""Of ``iad-fast-volume``, with four steps."""
LAW_STEPS = 4
LAW_GRID = (0.1, 7.0, 8)
LAW_LOGARITHMS = ("decay", "contrast", "rho", "growth")
SECOND = {"strength": 0.1, "contrast": 0.25, "rho": 1.5}
"""Of order two before training: weight and contrast relative to order one, at scale one."""
RANGES = {
    "scales": (-6.0, math.log(LARGEST_SCALE)),
    "weights": (-12.0, 8.0),
    "contrasts": (-6.0, 4.0),
    "couplings": (-14.0, 8.0),
    "weight_exponents": (-8.0, 8.0),
    "contrast_exponents": (-4.0, 4.0),
    "rho": (-4.0, 3.5),
    "rho_exponents": (-3.0, 3.0),
    "pull": (-12.0, 0.0),
}
PEAK = second_pass.PEAK
FIRST_HELD_OUT = 1000
"""Number of the first volume that is held out, as in ``train_volumes.py``."""
AT_ONCE = 2_000_000
"""Voxels that are evaluated at once."""

Six: TypeAlias = tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]
"""The entries xx, xy, xz, yy, yz and zz of symmetric matrices."""

# ---------------------------------------------------------------- stencils

AXES = (-3, -2, -1)
"""Slices, rows and columns."""
ODD = {-3: (2, 4), -2: (1, 4), -1: (1, 2)}
"""Entries of tensors that change their sign across the borders of an axis."""


def along(a: Tensor, axis: int, start: int | None, stop: int | None) -> Tensor:
    """Return a part of an array along one of the last three axes."""
    where: list[Any] = [slice(None)] * -axis
    where[0] = slice(start, stop)
    return a[(..., *where)]


def padded(a: Tensor, axis: int, before: int, after: int) -> Tensor:
    """Put zeros before and after an array along one axis."""
    return pad(a, (0, 0) * (-axis - 1) + (before, after))


def difference(a: Tensor, axis: int) -> Tensor:
    """Return differences of neighbours, n to n + 1; zero across the border."""
    return padded(along(a, axis, 1, None) - along(a, axis, None, -1), axis, 1, 1)


def average(a: Tensor, axis: int) -> Tensor:
    """Return averages of neighbours, n to n + 1; at the border the voxel itself."""
    inner = (along(a, axis, 1, None) + along(a, axis, None, -1)) / 2
    return torch.cat([along(a, axis, None, 1), inner, along(a, axis, -1, None)], axis)


def difference_adjoint(a: Tensor, axis: int) -> Tensor:
    """Return the adjoint of the differences."""
    inner = padded(along(a, axis, 1, -1), axis, 1, 1)
    return along(inner, axis, None, -1) - along(inner, axis, 1, None)


def average_adjoint(a: Tensor, axis: int) -> Tensor:
    """Return the adjoint of the averages, cells on the border counted half."""
    return (along(a, axis, None, -1) + along(a, axis, 1, None)) / 2


def second(a: Tensor, axis: int) -> Tensor:
    """Return second differences at the voxels."""
    d = difference(a, axis)
    return along(d, axis, 1, None) - along(d, axis, None, -1)


def central(a: Tensor, axis: int) -> Tensor:
    """Return central differences at the voxels."""
    return average_adjoint(difference(a, axis), axis)


def central_adjoint(a: Tensor, axis: int) -> Tensor:
    """Return the adjoint of the central differences."""
    return difference_adjoint((padded(a, axis, 1, 0) + padded(a, axis, 0, 1)) / 2, axis)


def cell_parts(v: Tensor) -> Tensor:
    """Return X, Y, Z, the twists XY, XZ and YZ, and the triple twist at the cells."""
    mean, change = average(v, -1), difference(v, -1)
    level, across = average(mean, -2), difference(mean, -2)
    along_x, twisted = average(change, -2), difference(change, -2)
    return torch.stack(
        [
            average(along_x, -3),
            average(across, -3),
            difference(level, -3),
            average(twisted, -3) / 2,
            difference(along_x, -3) / 2,
            difference(across, -3) / 2,
            difference(twisted, -3) / 4,
        ]
    )


def cell_adjoint(flux: Sequence[Tensor]) -> Tensor:
    """Return the adjoint of the parts, with cells on the border counted half."""
    x, y, z, xy, xz, yz, triple = flux
    along_x = average_adjoint(x, -3) + difference_adjoint(xz, -3) / 2
    across = average_adjoint(y, -3) + difference_adjoint(yz, -3) / 2
    level = difference_adjoint(z, -3)
    twisted = average_adjoint(xy, -3) / 2 + difference_adjoint(triple, -3) / 4
    change = average_adjoint(along_x, -2) + difference_adjoint(twisted, -2)
    mean = average_adjoint(level, -2) + difference_adjoint(across, -2)
    return difference_adjoint(change, -1) + average_adjoint(mean, -1)


def spread(a: Tensor, axis: int, share: float) -> Tensor:
    """Return B of the head of this file for a share of 1/6, and N for 1/12."""
    return a + share * second(a, axis) if share else a


def hessian(v: Tensor, isotropic: bool) -> Tensor:
    """Return the six second derivatives at the voxels."""
    side, own = (1 / 6, 1 / 12) if isotropic else (0.0, 0.0)
    x, y, z = -1, -2, -3
    over_x, over_y, over_z = (spread(v, axis, side) for axis in (x, y, z))

    def pure(a: Tensor, axis: int) -> Tensor:
        return second(spread(a, axis, own), axis)

    return torch.stack(
        [
            pure(spread(over_z, y, side), x),
            central(central(over_z, x), y),
            central(central(over_y, x), z),
            pure(spread(over_z, x, side), y),
            central(central(over_x, y), z),
            pure(spread(over_y, x, side), z),
        ]
    )


def hessian_adjoint(f: Sequence[Tensor], isotropic: bool) -> Tensor:
    """Return the adjoint, for which entries beside the diagonal count twice."""
    side, own = (1 / 6, 1 / 12) if isotropic else (0.0, 0.0)
    x, y, z = -1, -2, -3
    xx, xy, xz, yy, yz, zz = f

    def pure(a: Tensor, axis: int) -> Tensor:
        return spread(second(a, axis), axis, own)

    def mixed(a: Tensor, one: int, other: int) -> Tensor:
        return 2 * central_adjoint(central_adjoint(a, other), one)

    over_z = spread(pure(xx, x), y, side) + spread(pure(yy, y), x, side) + mixed(xy, x, y)
    over_y = spread(pure(zz, z), x, side) + mixed(xz, x, z)
    over_x = mixed(yz, y, z)
    return spread(over_z, z, side) + spread(over_y, y, side) + spread(over_x, x, side)


# ---------------------------------------------------------------- blurs


def blurred(u: Tensor, k: Sequence[Tensor]) -> Tensor:
    """Return ``(N, B, D, H, W)``, all scales of ``(B, D, H, W)``."""
    (b, d, h, w), n = u.shape, len(k[0])
    v = torch.bmm(u.reshape(1, -1, w).expand(n, -1, -1), k[2]).view(n, b, d, h, w)
    v = torch.matmul(k[1][:, None, None], v)
    return torch.matmul(k[0][:, None], v.reshape(n, b, d, h * w)).view(n, b, d, h, w)


def blurred_adjoint(f: Tensor, k: Sequence[Tensor]) -> Tensor:
    """Return the sum ``(B, D, H, W)`` over the scales of blurred ``(N, B, D, H, W)``."""
    n, b, d, h, w = f.shape
    y = torch.matmul(k[0][:, None], f.reshape(n, b, d, h * w)).view(n, b, d, h, w)
    y = torch.matmul(k[1][:, None, None], y).reshape(n, -1, w)
    total = y[0] @ k[2][0]
    for i in range(1, n):
        total.addmm_(y[i], k[2][i])
    return total.view(b, d, h, w)


def slope_of_variance(gradient: Tensor, v: Tensor) -> Tensor:
    """Return a product with the blur's derivative by its variance, half the Laplacian."""
    laplacian = second(v, -1) + second(v, -2) + second(v, -3)
    return 0.5 * (gradient * laplacian).sum((1, 2, 3, 4))


class Blur(torch.autograd.Function):
    """All scales of a volume."""

    @staticmethod
    def forward(ctx: Any, u: Tensor, variance: Tensor, *k: Tensor) -> Tensor:
        """Blur, and keep what the derivatives need."""
        v = blurred(u, k)
        ctx.trained = variance.requires_grad
        ctx.save_for_backward(v if ctx.trained else k[0], *k)
        return v

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Any:
        """Return derivatives; the matrices themselves need none."""
        v, *k = ctx.saved_tensors
        gradient = gradient.contiguous()
        found = blurred_adjoint(gradient, k)
        return found, pieces()["slope"](gradient, v) if ctx.trained else None, *(None,) * 3


class BlurAdjoint(torch.autograd.Function):
    """The sum over all scales of blurred flows."""

    @staticmethod
    def forward(ctx: Any, f: Tensor, variance: Tensor, *k: Tensor) -> Tensor:
        """Blur, and keep what the derivatives need."""
        ctx.trained = variance.requires_grad
        ctx.save_for_backward(f if ctx.trained else k[0], *k)
        return blurred_adjoint(f, k)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Any:
        """Return derivatives; the matrices themselves need none."""
        f, *k = ctx.saved_tensors
        found = blurred(gradient.contiguous(), k)
        return found, pieces()["slope"](f, found) if ctx.trained else None, *(None,) * 3


def smoothing_matrices(cells: bool, size: int, variance: Tensor) -> tuple[Tensor, Tensor]:
    """Return the matrices for even and for odd fields, one for each of the variances.

    Smoothed tensors are semidefinite if no sum or difference of both has a negative entry, which
    rounding might change.
    """
    kinds = ("cells", "odd cells") if cells else ("even", "odd")
    count = size + cells
    even, odd = (trials.blur_matrices(kind, size, variance)[..., :count, :count] for kind in kinds)
    even = even.clamp(min=0)
    return even, torch.maximum(torch.minimum(odd, even), -even)


def smoothed(j: Tensor, variance: Tensor, cells: bool) -> Tensor:
    """Smooth tensors ``(6, B, d, h, w)``; variances of ``(levels,)``, for equal parts of B."""
    _, b, d, h, w = j.shape
    levels = len(variance)
    j = j.reshape(6, levels, b // levels, d, h, w)

    def matrices(axis: int) -> Tensor:
        both = smoothing_matrices(cells, j.shape[axis] - cells, variance)
        return torch.stack([both[entry in ODD[axis]] for entry in range(6)])

    y = torch.bmm(
        j.reshape(6 * levels, -1, w), matrices(-1).view(6 * levels, w, w).transpose(1, 2)
    ).view(j.shape)
    y = torch.matmul(matrices(-2)[:, :, None, None], y)
    y = torch.matmul(matrices(-3)[:, :, None], y.reshape(*y.shape[:4], h * w))
    return y.view(6, b, d, h, w)


# ---------------------------------------------------------------- gates


def exponential_series() -> tuple[float, tuple[float, ...]]:
    """Return c, and the polynomial q in 1 - y, for exp(-x) with y = 1 / (1 + c x).

    q has degree four and agrees with exp(-x) up to x^4. The coefficients are Laguerre polynomials
    at 1/c, which is a root of the fourth one, so that q = 0 for infinite x.
    """
    root = float(np.polynomial.laguerre.lagroots([0, 0, 0, 0, 1]).real[2])
    found = [1.0, -root]
    for n in range(2, 5):
        found.append(((2 * n - 2 - root) * found[-1] - (n - 2) * found[-2]) / n)
    return 1 / root, tuple(found)


POLE, SERIES = exponential_series()
ROUNDING = 2.0
"""Share of the trace, in units of rounding, that makes rounded matrices semidefinite."""


def product(a: Six, b: Six) -> Six:
    """Return the product of symmetric matrices that commute."""
    return (
        a[0] * b[0] + a[1] * b[1] + a[2] * b[2],
        a[0] * b[1] + a[1] * b[3] + a[2] * b[4],
        a[0] * b[2] + a[1] * b[4] + a[2] * b[5],
        a[1] * b[1] + a[3] * b[3] + a[4] * b[4],
        a[1] * b[2] + a[3] * b[4] + a[4] * b[5],
        a[2] * b[2] + a[4] * b[4] + a[5] * b[5],
    )


def polynomial(one: float, parts: Sequence[tuple[float, Six]]) -> Six:
    """Return ``one`` times the unit matrix, plus multiples of matrices."""
    sums = [sum(factor * matrix[entry] for factor, matrix in parts) for entry in range(6)]
    xx, xy, xz, yy, yz, zz = sums
    return one + xx, xy, xz, one + yy, yz, one + zz  # type: ignore[return-value]


def exponential(j: Sequence[Tensor], rate: Tensor) -> Six:
    """Return exp(-rate J) of semidefinite J, with eigenvalues in [0, 1]."""
    squarings = 9 if rate.dtype == torch.float64 else 4
    scaled = rate * (POLE / 2**squarings)
    xx, xy, xz, yy, yz, zz = (scaled * entry for entry in j)
    one = 1 + ROUNDING * torch.finfo(rate.dtype).eps * (xx + yy + zz)
    xx, yy, zz = one + xx, one + yy, one + zz
    a, b, c = yy * zz - yz * yz, xz * yz - xy * zz, xy * yz - xz * yy
    inverse = 1 / (xx * a + xy * b + xz * c)
    away: Six = (
        1 - inverse * a,
        -inverse * b,
        -inverse * c,
        1 - inverse * (xx * zz - xz * xz),
        -inverse * (xy * xz - xx * yz),
        1 - inverse * (xx * yy - xy * xy),
    )
    square = product(away, away)
    high = polynomial(SERIES[2], [(SERIES[3], away), (SERIES[4], square)])
    gate = polynomial(1.0, [(SERIES[1], away), (1.0, product(square, high))])
    for _ in range(squarings):
        gate = product(gate, gate)
    return gate


def spread_over_voxels(numbers: Tensor) -> Tensor:
    """Return numbers ``(N, B)`` with axes for voxels."""
    return numbers[..., None, None, None]


def structure_first(c: Tensor, weight: Tensor) -> Tensor:
    """Sum of the outer squares of the gradients at the cells."""
    return summed(weight, c[0], c[1], c[2])


def summed(weight: Tensor, x: Tensor, y: Tensor, z: Tensor) -> Tensor:
    """Return the weighted sums over the scales of the products of three fields."""
    w = spread_over_voxels(weight)
    found = (x * x, x * y, x * z, y * y, y * z, z * z)
    return torch.stack([(w * entry).sum(0) for entry in found])


def flow_first(c: Tensor, j: Tensor, weight: Tensor, contrast: Tensor) -> Tensor:
    """Return the divergence of the gated gradient, with the twists of the cell."""
    lam = spread_over_voxels(contrast)
    xx, xy, xz, yy, yz, zz = exponential(tuple(j[:, None]), 0.5 / (lam * lam))
    of_xy, of_xz, of_yz = (
        xx + yy - 2 * xy.abs(),
        xx + zz - 2 * xz.abs(),
        yy + zz - 2 * yz.abs(),
    )
    damping, triple = 1 - 2 * THETA, (3 - 12 * THETA + 16 * THETA**2) / 6
    flux = (
        xx * c[0] + xy * c[1] + xz * c[2],
        xy * c[0] + yy * c[1] + yz * c[2],
        xz * c[0] + yz * c[1] + zz * c[2],
        damping * of_xy * c[3],
        damping * of_xz * c[4],
        damping * of_yz * c[5],
        triple * (of_xy + of_xz + of_yz) * c[6],
    )
    return -spread_over_voxels(weight) * cell_adjoint(flux)


def structure_second(h: Tensor, weight: Tensor) -> Tensor:
    """Sum of the squares of the Hessians."""
    w = spread_over_voxels(weight)
    entries: Any = tuple(h)
    return torch.stack([(w * entry).sum(0) for entry in product(entries, entries)])


def flow_second(h: Tensor, j: Tensor, weight: Tensor, contrast: Tensor, isotropic: bool) -> Tensor:
    """Return minus the adjoint of the gated Hessian A H A, where A = exp(-J / (4 lambda^2))."""
    lam = spread_over_voxels(contrast)
    gate = exponential(tuple(j[:, None]), 0.25 / (lam * lam))
    flux = -hessian_adjoint(both_sides(gate, tuple(h)), isotropic)
    return spread_over_voxels(weight) * flux


def both_sides(a: Sequence[Tensor], h: Sequence[Tensor]) -> Six:
    """Return A H A of symmetric matrices."""
    rows = ((a[0], a[1], a[2]), (a[1], a[3], a[4]), (a[2], a[4], a[5]))
    columns = ((h[0], h[1], h[2]), (h[1], h[3], h[4]), (h[2], h[4], h[5]))

    def dot(one: Sequence[Tensor], other: Sequence[Tensor]) -> Tensor:
        return one[0] * other[0] + one[1] * other[1] + one[2] * other[2]

    half = [[dot(row, column) for column in columns] for row in rows]
    return (
        dot(half[0], rows[0]),
        dot(half[0], rows[1]),
        dot(half[0], rows[2]),
        dot(half[1], rows[1]),
        dot(half[1], rows[2]),
        dot(half[2], rows[2]),
    )


PIECES = {
    "cell_parts": cell_parts,
    "structure_first": structure_first,
    "flow_first": flow_first,
    "hessian": hessian,
    "structure_second": structure_second,
    "flow_second": flow_second,
    "slope": slope_of_variance,
}
"""Functions without matrix products, which are compiled on a GPU."""


@lru_cache(maxsize=2)
def _pieces(compiled: bool) -> dict[str, Any]:
    """Return the pointwise functions."""
    if not compiled:
        return dict(PIECES)
    import torch._dynamo
    import torch._inductor.config as config

    config.unroll_reductions_threshold = 17
    torch._dynamo.config.recompile_limit = 64
    found: dict[str, Any] = {}
    piece: Any
    for name, piece in PIECES.items():
        found[name] = torch.compile(piece, fullgraph=True, dynamic=False)
    return found


def pieces() -> dict[str, Any]:
    """Return the pointwise functions, compiled at their first calls on a GPU."""
    return _pieces(trials.COMPILE)


# ---------------------------------------------------------------- the model


@dataclass
class Numbers:
    """All that K steps of N channels need, for volumes of several levels.

    Attributes
    ----------
    coupling, flux, contrast : Tensor
        ``(K, N, B)``.
    rho : Tensor
        Variances of the integration, ``(K, orders, levels)``.
    pull : Tensor or None
        ``(K, B)``.
    first : int
        Number of channels of order one; the others have order two.
    isotropic : bool
        Stencil of the second derivatives.
    """

    coupling: Tensor
    flux: Tensor
    contrast: Tensor
    rho: Tensor
    pull: Tensor | None
    first: int
    isotropic: bool = True

    @property
    def orders(self) -> int:
        """Return one or two."""
        return 1 if self.first == self.flux.shape[1] else 2


def derivatives(v: Tensor, numbers: Numbers) -> list[Tensor]:
    """Return the derivatives of each order at all of its scales."""
    found = [pieces()["cell_parts"](v[: numbers.first])]
    if numbers.orders == 2:
        found.append(pieces()["hessian"](v[numbers.first :], numbers.isotropic))
    return found


def structures(parts: list[Tensor], numbers: Numbers, step: int) -> list[Tensor]:
    """Return the smoothed structure tensors of each order."""
    n1, weight = numbers.first, numbers.coupling[step]
    found = [
        smoothed(pieces()["structure_first"](parts[0], weight[:n1]), numbers.rho[step, 0], True)
    ]
    if numbers.orders == 2:
        j = pieces()["structure_second"](parts[1], weight[n1:])
        found.append(smoothed(j, numbers.rho[step, 1], False))
    return found


def flow(parts: list[Tensor], j: list[Tensor], numbers: Numbers, step: int) -> Tensor:
    """Return the flows of all channels, before the blur back."""
    n1, weight, contrast = numbers.first, numbers.flux[step], numbers.contrast[step]
    found: Tensor = pieces()["flow_first"](parts[0], j[0], weight[:n1], contrast[:n1])
    if numbers.orders == 1:
        return found
    other = pieces()["flow_second"](parts[1], j[1], weight[n1:], contrast[n1:], numbers.isotropic)
    return torch.cat([found, other])


def one_step(
    u: Tensor,
    original: Tensor,
    numbers: Numbers,
    step: int,
    variance: Tensor,
    k: Sequence[Tensor],
) -> Tensor:
    """Return the volumes after a step."""
    parts = derivatives(Blur.apply(u, variance, *k), numbers)
    f = flow(parts, structures(parts, numbers, step), numbers, step)
    change: Tensor = BlurAdjoint.apply(f, variance, *k)
    if numbers.pull is not None:
        change = change + spread_over_voxels(numbers.pull[step]) * (original - u)
    return u + change


def blurs_of(variance: Tensor, shape: Sequence[int]) -> list[Tensor]:
    """Return the matrices ``(N, size, size)`` of all scales, along slices, rows and columns."""
    return [trials.blur_matrices("even", size, variance.detach()) for size in shape]


def evolve(u: Tensor, numbers: Numbers, variance: Tensor, *, recompute: bool = False) -> Tensor:
    """Return ``(B, D, H, W)`` after all steps; ``variance`` has the squares of the scales.

    With ``recompute`` the backward pass computes each step again, which needs less memory.
    """
    k, original = blurs_of(variance, u.shape[-3:]), u
    for step in range(len(numbers.flux)):
        arguments = (u, original, numbers, step, variance, k)
        if recompute:
            u = checkpoint(one_step, *arguments, use_reentrant=False, preserve_rng_state=False)
        else:
            u = one_step(*arguments)
    return u


# ---------------------------------------------------------------- the bound


@lru_cache(maxsize=8)
def frequencies(points: int, dtype: torch.dtype) -> Tensor:
    """Return p >= q >= r, where p = 1 - cos w, in the ratio of neighbours and zero: (3, row)."""
    nodes = np.concatenate([[0.0], np.geomspace(0.004, 2.0, points - 1)])
    z, y, x = np.indices((points,) * 3).reshape(3, -1)
    kept = (x >= y) & (y >= z)
    found = np.stack([nodes[axis[kept]] for axis in (x, y, z)])
    return torch.tensor(found, dtype=dtype, device=DEVICE)


def symbols(order: int, variance: Tensor, at: Tensor, isotropic: bool = True) -> Tensor:
    """Return the eigenvalues ``(row, scale)`` for gates of one, at frequencies ``(3, row)``."""
    if order == 1:
        values = (1 - (1 - 2 * THETA * at).prod(0)) / THETA
    else:
        pure, mixed, over = 2 * at, at * (2 - at), torch.ones_like(at)
        if isotropic:
            pure, over = pure * (1 - at / 6), 1 - at / 3
        values = torch.zeros_like(at[0])
        for a, b, c in ((0, 1, 2), (1, 2, 0), (2, 0, 1)):
            values = values + (pure[a] * over[b] * over[c]) ** 2
            values = values + 2 * mixed[a] * mixed[b] * over[c] ** 2
    return values[:, None] * torch.exp(-2 * variance * at.sum(0)[:, None])


POINTS = 41
"""Of the grid of frequencies, along each axis."""


def table_of(variance: Tensor, first: int, isotropic: bool, at: Tensor | None = None) -> Tensor:
    """Return the eigenvalues ``(row, channel)`` of all channels."""
    at = frequencies(POINTS, variance.dtype) if at is None else at
    parts = [symbols(1, variance[:first], at)]
    if first < len(variance):
        parts.append(symbols(2, variance[first:], at, isotropic))
    return torch.cat(parts, 1)


# ---------------------------------------------------------------- models


def quadrature(scales: np.ndarray) -> np.ndarray:
    """Return the weights of the integral over the scales."""
    return scales * np.gradient(scales) if len(scales) > 1 else scales**2


@lru_cache(maxsize=16)
def constants(values: tuple[float, ...], dtype: torch.dtype) -> Tensor:
    """Return numbers on the device; a recording must not copy them there again."""
    return torch.tensor(values, dtype=dtype, device=DEVICE)


class Model:
    """Named tensors that are trained."""

    p: dict[str, Tensor]
    steps: int

    def begin(self, values: dict[str, Any]) -> None:
        """Begin with numbers."""
        self.p = {
            name: tensor(np.array(value, order="C")).requires_grad_()
            for name, value in values.items()
        }
        self.variance = next(iter(self.p.values()))  # for its type only

    @property
    def count(self) -> int:
        """Return how many numbers are free."""
        return sum(value.numel() for value in self.p.values())

    def parameters(self) -> list[Tensor]:
        """Return what is trained."""
        return list(self.p.values())

    def mask(self) -> None:
        """Keep the numbers that are not free: there are none."""

    def groups(self) -> int:
        """Return the number of losses."""
        return 1

    def limit(self) -> None:
        """Keep numbers that have no effect from running away."""
        with torch.no_grad():
            for name, (low, high) in RANGES.items():
                if name in self.p:
                    self.p[name].clamp_(low, high)

    def found(self, m: int = 0) -> dict[str, Any]:
        """Return the numbers as they are now."""
        return {name: p.detach().cpu().double().numpy().tolist() for name, p in self.p.items()}

    def set(self, values: dict[str, Any]) -> None:
        """Take numbers as a run has them."""
        with torch.no_grad():
            for name, parameter in self.p.items():
                parameter.copy_(torch.as_tensor(values[name]))

    def numbers(self, levels: Tensor, copies: int) -> Numbers:
        """Return the numbers at all levels, each for ``copies`` volumes."""
        raise NotImplementedError


def for_volumes(values: Tensor, copies: int) -> Tensor:
    """Return ``(step, channel, volume)`` of numbers ``(level, step, channel)``."""
    return values.permute(1, 2, 0).repeat_interleave(copies, -1)


def held(value: Tensor, low: Any, high: Any = None) -> Tensor:
    """Return a limited value; derivatives that would move it beyond the limit are zero."""
    limited = value.clamp(low, high) if high is not None else torch.maximum(value, low)
    found: Tensor = trials.HeldAtLimit.apply(value, limited)
    return found


class Free(Model):
    """Weights, contrasts, couplings, integration scales and pull that are free at each step.

    Weights, contrasts, integration scales and pull are powers of the noise level, weights and
    contrasts of each channel with a curvature in logarithms.

    Parameters
    ----------
    steps, counts
        Number of steps, and of channels of order one and two.
    isotropic
        Stencil of the second derivatives.
    seed
        Of the disturbance of the law to begin with.
    """

    def __init__(
        self, steps: int, counts: tuple[int, int], isotropic: bool = True, seed: int = 0
    ) -> None:
        self.steps, self.counts, self.isotropic = steps, counts, isotropic
        scales = [
            np.exp(np.interp(np.linspace(0, 1, n), np.linspace(0, 1, len(grid)), np.log(grid)))
            for n, grid in zip(counts, SCALES, strict=True)
        ]
        scale, channels = np.concatenate(scales), sum(counts)
        parts = [law_at(grid, steps, order) for order, grid in enumerate(scales, 1) if len(grid)]
        weight, contrast = (np.concatenate([part[i] for part in parts], 1) for i in (0, 1))
        variance = torch.tensor(scale**2, device=DEVICE)
        table = table_of(variance, counts[0], isotropic).cpu().numpy()
        tau = 2 / (BOUND_MARGIN * (np.exp(weight) @ table.T).max()) * min(1.0, LAW_STEPS / steps)
        rng = np.random.default_rng(seed)
        jitter = 0.03 * rng.standard_normal((2, steps, channels))
        of_noise = LAW["decay"] * scale**2 / math.sqrt(REFERENCE)
        orders = 1 + (counts[1] > 0)
        every = (steps, channels)
        rho = np.log([LAW["rho"], SECOND["rho"]])[:orders]
        self.begin(
            {
                "scales": np.log(scale),
                "weights": np.maximum(weight + math.log(tau), -7.0) + jitter[0],
                "contrasts": np.maximum(contrast, math.log(0.025)) + jitter[1],
                "couplings": np.full(every, -math.log(tau)),
                "weight_exponents": np.broadcast_to(np.minimum(of_noise, 4.0), every),
                "contrast_exponents": np.zeros(every),
                "weight_curvatures": -np.minimum(of_noise, 4.0) / 4,
                "contrast_curvatures": np.zeros(channels),
                "rho": np.broadcast_to(rho, (steps, orders)),
                "rho_exponents": np.full((steps, orders), LAW["rho_exponent"]),
                "pull": np.full(steps, math.log(0.005)),
                "pull_exponent": np.zeros(1),
            }
        )

    def numbers(self, levels: Tensor, copies: int) -> Numbers:
        """Return the numbers at all levels, each for ``copies`` volumes."""
        p, n1 = self.p, self.counts[0]
        self.variance = variance = (2 * p["scales"].clamp(max=math.log(LARGEST_SCALE))).exp()
        s = levels[:, None, None]
        log = (s / REFERENCE).log()  # axes: level, step, channel
        weight = p["weights"] + p["weight_exponents"] * log + p["weight_curvatures"] * log**2
        weight = weight.exp()
        coupling = weight * p["couplings"].exp()
        contrast = p["contrasts"] + p["contrast_exponents"] * log
        contrast = contrast + p["contrast_curvatures"] * log**2
        relative, absolute = CONTRAST_FLOOR
        floor = (absolute / s).clamp(min=relative) * self.steepest_gates(coupling, variance)
        contrast = s * held(contrast, floor.clamp(min=SMALLEST_CONTRAST).log()).exp()
        table = table_of(variance, n1, self.isotropic)
        largest = BOUND_MARGIN * (weight @ table.T).amax(-1, keepdim=True)
        pull = (p["pull"][:, None] + p["pull_exponent"] * log).exp()
        excess = ((largest + 2 * pull) / 2).clamp(min=1.0)
        log_rho = (p["rho"] + p["rho_exponents"] * log).permute(1, 2, 0)
        limits = INTEGRATION_LIMITS[: log_rho.shape[1]]
        rho = [
            (2 * held(one, math.log(low), math.log(high))).exp()
            for one, (low, high) in zip(log_rho.unbind(1), limits, strict=True)
        ]
        return Numbers(
            coupling=for_volumes(coupling, copies),
            flux=for_volumes(weight / excess, copies),
            contrast=for_volumes(contrast, copies),
            rho=torch.stack(rho, 1),
            pull=for_volumes(pull / excess, copies)[:, 0],
            first=n1,
            isotropic=self.isotropic,
        )

    def steepest_gates(self, coupling: Tensor, variance: Tensor) -> Tensor:
        """Return the root of the largest structure that a step of one grey level has."""
        n1, t = self.counts[0], variance.detach()
        first = (1 / (2 * math.pi * t[:n1])).clamp(max=1.0)
        second_ = (1 / (2 * math.pi * math.e * t[n1:] ** 2)).clamp(max=1.0)
        found = []
        for part, response in (
            (coupling.detach()[..., :n1], first),
            (coupling.detach()[..., n1:], second_),
        ):
            found.append((part * response).sum(-1, keepdim=True).expand_as(part))
        return torch.cat(found, -1).sqrt()


def law_at(scales: np.ndarray, steps: int, order: int) -> tuple[np.ndarray, np.ndarray]:
    """Return logarithms of weights and contrasts (step, scale) of the law, to begin with."""
    time_ = np.linspace(0, 1, steps)[:, None] if steps > 1 else np.full((1, 1), 0.5)
    more, log = order - 1, np.log(scales)
    weight = np.log(quadrature(scales)) - 2 * LAW["decay"] * scales**2 / math.sqrt(REFERENCE)
    weight = weight + (LAW["exponent"] + more + LAW["drift"] * (time_ - 0.5)) * log
    contrast = math.log(LAW["contrast"]) - (LAW["contrast_exponent"] + more) * log
    contrast = contrast + math.log(LAW["growth"]) * (LAW_STEPS - 1) * time_
    return (
        weight + more * math.log(SECOND["strength"]),
        contrast + more * math.log(SECOND["contrast"]),
    )


class Compact(Model):
    """The law of ``iad-fast-volume``, with steps as large as the bound."""

    share_of_bound = 0.996

    def __init__(self, steps: int) -> None:
        self.steps = steps
        scales = np.geomspace(*LAW_GRID)
        self.scales, self.quadrature = tuple(scales), tuple(quadrature(scales))
        self.begin({name: math.log(x) if name in LAW_LOGARITHMS else x for name, x in LAW.items()})

    def numbers(self, levels: Tensor, copies: int) -> Numbers:
        """Return the numbers at all levels, each for ``copies`` volumes."""
        p = {
            name: value.exp() if name in LAW_LOGARITHMS else value for name, value in self.p.items()
        }
        scales, weights = (constants(x, levels.dtype) for x in (self.scales, self.quadrature))
        self.variance = scales**2
        s = levels[:, None, None]
        k = torch.arange(self.steps, dtype=levels.dtype, device=DEVICE)[:, None]
        drift = p["drift"] * (k / max(self.steps - 1, 1) - 0.5)
        c = weights * scales ** (p["exponent"] + drift)
        c = c * torch.exp(-2 * p["decay"] * scales**2 / s.sqrt())
        contrast = s * p["contrast"] * scales ** -p["contrast_exponent"] * p["growth"] ** k
        table = table_of(self.variance, len(scales), True)
        bound = 2 / (BOUND_MARGIN * (c @ table.T).amax((1, 2), keepdim=True))
        low, high = INTEGRATION_LIMITS[0]
        rho = (p["rho"] * (levels / REFERENCE) ** p["rho_exponent"]).clamp(low, high) ** 2
        return Numbers(
            coupling=for_volumes(c, copies),
            flux=for_volumes(self.share_of_bound * bound * c, copies),
            contrast=for_volumes(contrast, copies),
            rho=rho.expand(self.steps, 1, -1),
            pull=None,
            first=len(scales),
        )


@dataclass(frozen=True)
class Variant:
    """What is trained: the orders, the number of steps, and the stencil of order two."""

    orders: str
    steps: int | None = None
    isotropic: bool = True

    @classmethod
    def of(cls, name: str) -> Variant:
        """Return the variant with a name such as ``1+2``, ``1+2/12`` or ``1+2/8/plain``."""
        orders, *more = name.split("/")
        plain = more[-1:] == ["plain"]
        counts = more[: len(more) - plain]
        if orders not in ("compact", "1", "1+2") or len(counts) > 1:
            raise argparse.ArgumentTypeError(
                f"{name}: use compact, 1 or 1+2, then steps such as /12, then /plain if wanted"
            )
        if plain and orders != "1+2":
            raise argparse.ArgumentTypeError(f"{name}: only order two has another stencil")
        if counts and not (counts[0].isdigit() and int(counts[0]) > 0):
            raise argparse.ArgumentTypeError(f"{name}: {counts[0]} is not a number of steps")
        return cls(orders, int(counts[0]) if counts else None, not plain)

    def with_steps(self, steps: int) -> Variant:
        """Return the variant with a number of steps, unless it has one."""
        known = self.steps or (LAW_STEPS if self.orders == "compact" else steps)
        return Variant(self.orders, known, self.isotropic)

    def __str__(self) -> str:
        return f"{self.orders}/{self.steps}" + "/plain" * (not self.isotropic)

    def model(self, counts: tuple[int, int], seed: int = 0) -> Model:
        """Return the model to begin with."""
        steps = self.steps or LAW_STEPS
        if self.orders == "compact":
            return Compact(steps)
        first, second_ = counts
        return Free(steps, (first, second_ * (self.orders == "1+2")), self.isotropic, seed)


# ---------------------------------------------------------------- volumes


@dataclass
class Volumes:
    """Volumes, and of those that are held out kind and number."""

    train: np.ndarray
    held: np.ndarray
    kinds: list[str]
    numbers: list[int]

    @classmethod
    def read(cls, path: Path) -> Volumes:
        """Read a file of the command ``volumes``."""
        with np.load(path) as found:
            return cls(
                found["train"],
                found["held"],
                [str(kind) for kind in found["kinds"]],
                [int(number) for number in found["numbers"]],
            )

    def noise(self, level: float, part: slice) -> np.ndarray:
        """Return the noise of some of the volumes that are held out."""
        shape = self.held.shape[1:]
        return np.stack(
            [
                np.random.default_rng((round(100 * level), number)).normal(0, level, shape)
                for number in self.numbers[part]
            ]
        )


def volumes_command(a: argparse.Namespace) -> None:
    """Write volumes in half precision, which is exact to a sixteenth of a grey level."""
    from volume_phantoms import KINDS, training_images, volume_of

    kinds = a.kinds or KINDS
    if "natural" in kinds and a.data is None:
        raise SystemExit("natural volumes need --data")
    images = training_images(a.data) if "natural" in kinds else []

    def made(first: int, count: int) -> tuple[np.ndarray, list[str], list[int]]:
        pairs = [(kind, number) for kind in kinds for number in range(first, first + count)]
        found = [volume_of(*pair, a.side, images).astype(np.float16) for pair in pairs]
        return np.stack(found), [kind for kind, _ in pairs], [number for _, number in pairs]

    train, _, _ = made(0, a.count)
    held_out, names, numbers = made(FIRST_HELD_OUT, a.held)
    np.savez_compressed(a.volumes, train=train, held=held_out, kinds=names, numbers=numbers)
    size = a.volumes.stat().st_size / 2**20
    print(f"{len(train)} volumes to train on, {len(held_out)} held out, {size:.1f} MiB")


# ---------------------------------------------------------------- training


class Fit(second_pass.FitBeside):
    """Descent on volumes; batches are those of all variants."""

    def __init__(
        self,
        model: Model,
        volumes: Tensor,
        a: argparse.Namespace,
        shared: tuple[Tensor, Tensor],
        mode: int,
    ) -> None:
        super().__init__(model, volumes, a, shared, mode)
        self.levels = tensor(LEVELS)
        self.recompute = a.checkpoint

    @torch.no_grad()
    def draw(self) -> None:
        """Draw random parts of random volumes, with noise of all levels, for all variants."""
        size, n = self.size, self.copies * len(LEVELS)
        room = self.crops.shape[-1] - size
        which = torch.randint(len(self.crops), (n, 1, 1, 1), device=DEVICE)
        z, y, x = torch.randint(room + 1, (3, n, 1, 1, 1), device=DEVICE)
        inside = torch.arange(size, device=DEVICE)
        places = (z + inside[:, None, None], y + inside[:, None], x + inside)
        clean = self.crops[(which, *places)].float()
        noise = torch.randn(clean.shape, device=DEVICE)
        level = self.levels.repeat_interleave(self.copies)[:, None, None, None]
        self.shared[0].copy_(clean)
        self.shared[1].copy_(clean + level * noise)

    def compute(self) -> None:
        """Compute loss and gradients of the batch, and change the numbers."""
        clean, noisy = self.batch()
        numbers = self.model.numbers(self.levels, self.copies)
        result = evolve(noisy, numbers, self.model.variance, recompute=self.recompute)
        loss = (result - clean).square().mean((1, 2, 3)).log().mean() * DECIBELS
        self.losses.copy_(loss.detach())
        for p in self.model.parameters():
            p.grad = None
        loss.backward()
        for p in self.model.parameters():
            p.grad.nan_to_num_(0.0, 0.0, 0.0).clamp_(-10.0, 10.0)
        self.optimiser.step()
        self.model.limit()


def prepared(volumes: Volumes, a: argparse.Namespace) -> tuple[dict[str, Fit], dict[str, str]]:
    """Compile and record all variants; one that fails does not stop the others.

    Returns
    -------
    dict
        Variants that can be trained.
    dict
        What failed, with its traceback.
    """
    shape = (len(LEVELS) * a.batch, *(a.size,) * 3)
    shared = (torch.zeros(shape, device=DEVICE), torch.zeros(shape, device=DEVICE))
    known = torch.tensor(volumes.train, device=DEVICE)
    past = json.loads(a.start.read_text())["runs"] if a.start else []
    starts = {run["name"]: run for run in past}
    fits: dict[str, Fit] = {}
    failed: dict[str, str] = {}
    mode = 0 if trials.COMPILE else 1
    for variant in a.variants:
        began = time.perf_counter()
        for i in range(mode, len(second_pass.MODES)):
            name, trials.COMPILE, _ = second_pass.MODES[i]
            try:
                run = starts.get(str(variant))
                counts = tuple(run["channels"]) if run else (a.first, a.second)
                model = variant.model(counts, a.seed)
                if run:
                    model.set(run["parameters"])
                fit = Fit(model, known, a, shared, i)
                fit.draw()
                fit.step(0.0)
                second_pass.wait()
            except Exception:
                failed[f"{variant}, {name}"] = traceback.format_exc()
                traceback.print_exc()
                continue
            fits[str(variant)], mode = fit, i
            seconds = time.perf_counter() - began
            how = f"{name}, {memory():.1f} GiB" if DEVICE.type == "cuda" else "on the processor"
            print(
                f"{variant}: {fit.model.count} numbers, {how}, ready in {seconds:.1f} s",
                flush=True,
            )
            break
    return fits, failed


def memory() -> float:
    """Return the memory in GiB that is taken from the GPU."""
    return float(torch.cuda.memory_reserved() / 2**30)


def entry_of(name: str, fit: Fit, document: dict[str, Any]) -> dict[str, Any]:
    """Return what is known of a variant while it is trained."""
    entry: dict[str, Any] = {
        "name": name,
        "numbers": fit.model.count,
        "channels": list(getattr(fit.model, "counts", (LAW_GRID[2], 0))),
        "mode": fit.mode if DEVICE.type == "cuda" else "processor",
        "iterations": fit.iteration,
        "training": fit.curve,
        "parameters": fit.averaged(),
        "last_parameters": fit.model.found(),
        **document["starts"].get(name, {}),
    }
    if fit.milliseconds:
        entry["milliseconds"] = round(float(np.median(fit.milliseconds)), 2)
    return entry


@torch.no_grad()
def judged(
    model: Model, volumes: Volumes, key: str, levels: Sequence[float] = LEVELS
) -> dict[str, Any]:
    """Return the PSNR of what is held out, at each level and of each kind, without compilation."""
    compiled, trials.COMPILE = trials.COMPILE, False
    count = max(1, AT_ONCE // volumes.held[0].size)
    by_level, by_kind = {}, dict.fromkeys(volumes.kinds, 0.0)
    try:
        for level in levels:
            values: list[float] = []
            for first in range(0, len(volumes.held), count):
                part = slice(first, first + count)
                clean = tensor(volumes.held[part])
                noisy = clean + tensor(volumes.noise(level, part))
                numbers = model.numbers(tensor([level]), len(clean))
                error = (evolve(noisy, numbers, model.variance) - clean).double()
                values += (-DECIBELS * (error.square().mean((1, 2, 3)) / 255**2).log()).tolist()
            by_level[f"{level:g}"] = float(np.mean(values))
            for kind in by_kind:
                own = [x for x, k in zip(values, volumes.kinds, strict=True) if k == kind]
                by_kind[kind] += float(np.mean(own)) / len(levels)
    finally:
        trials.COMPILE = compiled
    mean = float(np.mean(list(by_level.values())))
    return {key: by_level, f"{key}_kinds": by_kind, f"{key}_mean": mean}


def line(name: str, run: dict[str, Any], key: str) -> str:
    """Return one line of a report."""
    levels = " ".join(f"{value:6.2f}" for value in run[key].values())
    kinds = "  ".join(f"{kind} {value:.2f}" for kind, value in run[f"{key}_kinds"].items())
    return f"{name:24s} {key:14s} {run[f'{key}_mean']:7.3f} | {levels} | {kinds}"


def train_command(a: argparse.Namespace) -> None:
    """Train all variants side by side, and judge them on the volumes that are held out."""
    began = time.perf_counter()

    def left() -> float:
        return float(a.limit - (time.perf_counter() - began))

    torch.set_float32_matmul_precision("highest")
    if a.eager:
        trials.COMPILE = False
    volumes = Volumes.read(a.volumes)
    a.size = a.size or volumes.train.shape[-1]
    a.variants = [variant.with_steps(a.steps) for variant in a.variants]
    names = [str(variant) for variant in a.variants]
    if len(set(names)) < len(names):
        raise SystemExit("each variant can be named only once")
    document: dict[str, Any] = {
        "settings": {
            **{k: v for k, v in vars(a).items() if k not in ("run", "volumes", "output", "start")},
            "variants": names,
            "levels": LEVELS,
            "margin_of_bound": BOUND_MARGIN,
        },
        "volumes": {"train": len(volumes.train), "held_out": len(volumes.held)},
        "versions": {"torch": torch.__version__, "device": second_pass.device_name()},
        "starts": {},
        "runs": [],
    }
    fits, document["failed"] = prepared(volumes, a)
    if not fits:
        trials.save(a.output, document)
        raise SystemExit("no variant could be prepared")
    document["preparation_seconds"] = round(time.perf_counter() - began, 1)
    expected: dict[str, float] = {}
    for name, fit in fits.items():
        start = time.perf_counter()
        found = judged(fit.model, volumes, "start")
        expected[name] = second_pass.MARGIN * (time.perf_counter() - start)
        document["starts"][name] = found
        print(line(name, found, "start"), flush=True)
    reserve = sum(expected.values())
    if 2 * reserve < a.limit / 5:  # the last numbers are judged, too
        reserve *= 2
    reserve += 2

    def keep() -> None:
        document["runs"] = [entry_of(name, fit, document) for name, fit in fits.items()]
        document["seconds"] = round(time.perf_counter() - began, 1)
        trials.save(a.output, document)

    keep()
    seconds = left() - reserve
    print(f"{seconds:.1f} s of training, then {reserve:.1f} s of evaluation", flush=True)
    shared: dict[str, second_pass.FitBeside] = dict(fits)
    document["training_seconds"] = round(second_pass.descend(shared, a, seconds, keep), 1)
    if DEVICE.type == "cuda":
        document["memory_gib"] = round(memory(), 2)
    keep()
    for fit in fits.values():
        fit.graph = None  # frees its memory
    for key, parameters in (("held_out", "parameters"), ("held_out_last", "last_parameters")):
        for run in document["runs"]:
            name = run["name"]
            if key == "held_out_last" and left() < expected[name] + 1:
                print(f"no time left for {key} of {name}")
                continue
            try:
                model = fits[name].model
                model.set(run[parameters])
                run.update(judged(model, volumes, key))
            except Exception:
                document["failed"][f"{name}, {key}"] = traceback.format_exc()
                traceback.print_exc()
                continue
            document["seconds"] = round(time.perf_counter() - began, 1)
            trials.save(a.output, document)
            print(line(f"{name} ({run['numbers']})", run, key), flush=True)
    print(f"{time.perf_counter() - began:.1f} s in all", flush=True)


# ---------------------------------------------------------------- evaluation of a volume


@torch.no_grad()
def denoised(model: Model, noisy: np.ndarray, level: float) -> np.ndarray:
    """Return a volume, with grey values from 0 to 255, without noise of a level."""
    numbers = model.numbers(tensor([level]), 1)
    return evolve(tensor(noisy)[None], numbers, model.variance)[0].cpu().numpy()


def evaluate_command(a: argparse.Namespace) -> None:
    """Print the PSNR on a volume with the noise of ``evaluate_volumes.py``."""
    import evaluate_volumes as volumes

    torch.set_float32_matmul_precision("highest")
    trials.COMPILE = False
    clean, spacing = volumes.read(a.volume, a.side)
    if max(spacing) > 1.05 * min(spacing):
        raise SystemExit(f"the voxels of {a.volume.name} are not cubes: {spacing}")
    if a.crop:
        clean = volumes.middle(clean)
    clean = np.ascontiguousarray(clean)
    peak = float(clean.max())
    document = json.loads(a.result.read_text())
    print(f"{a.volume.name}, shape {clean.shape}")
    print("| variant | numbers | " + " | ".join(f"{p:g} percent" for p in a.percent) + " | s |")
    print("|---" * (3 + len(a.percent)) + "|")
    known = document.setdefault("evaluated", {}).setdefault(a.volume.name, {})
    for run in document["runs"]:
        model = Variant.of(run["name"]).model(tuple(run["channels"]))
        model.set(run["last_parameters" if a.last else "parameters"])
        began, cells = time.perf_counter(), []
        for percent in a.percent:
            sigma = percent / 100 * peak
            noise = volumes.noise_of(a.volume.name, clean.shape, sigma)
            noisy = (clean + noise).astype(np.float32) * np.float32(255 / peak)
            found = denoised(model, noisy, percent * 2.55) * np.float32(peak / 255)
            cells.append(volumes.psnr(found, clean, peak))
        seconds = time.perf_counter() - began
        shown = " | ".join(f"{value:.2f}" for value in cells)
        print(f"| {run['name']} | {run['numbers']} | {shown} | {seconds:.1f} |", flush=True)
        known[run["name"] + ", last" * a.last] = {
            f"{percent:g}": round(value, 3) for percent, value in zip(a.percent, cells, strict=True)
        }
    if a.keep:
        trials.save(a.result, document)


# ---------------------------------------------------------------- table


def table_command(a: argparse.Namespace) -> None:
    """Print the PSNR of volumes that are held out, and gains over the first variant of each."""
    documents = {path: json.loads(path.read_text()) for path in a.files}
    shown = [f"{level:g}" for level in LEVELS]
    kinds = list(
        dict.fromkeys(
            kind
            for document in documents.values()
            for run in document["runs"]
            for kind in run.get("held_out_kinds", {})
        )
    )
    heads = ["file", "variant", "numbers", "iterations", "ms", "start", "mean", "last numbers"]
    heads += [f"s = {level}" for level in shown] + kinds
    print("| " + " | ".join(heads) + " |")
    print("|---" * len(heads) + "|")
    gains: dict[str, list[dict[str, float]]] = {}
    for path, document in documents.items():
        base: dict[str, float] | None = None
        for run in document["runs"]:
            cells = [path.stem, run["name"], run["numbers"], run["iterations"]]
            cells.append(run.get("milliseconds", "-"))
            means = [run.get(f"{key}_mean") for key in ("start", "held_out", "held_out_last")]
            cells += ["-" if mean is None else f"{mean:.3f}" for mean in means]
            psnr = {**run.get("held_out", {}), **run.get("held_out_kinds", {})}
            cells += [f"{psnr.get(key, math.nan):.2f}" for key in (*shown, *kinds)]
            print("| " + " | ".join(map(str, cells)) + " |")
            if not psnr:
                continue
            psnr = {"mean": run["held_out_mean"], **psnr}
            if base is None:
                base, first = psnr, run["name"]
                continue
            gain = {key: psnr[key] - base[key] for key in psnr}
            gains.setdefault(f"{run['name']} - {first}", []).append(gain)
    for name, found in gains.items():
        means = [gain["mean"] for gain in found]
        print(f"\n{name}, gain in dB over {len(found)} run(s), mean and range of the mean:")
        print(f"  {np.mean(means):+.4f} ({min(means):+.4f} to {max(means):+.4f})")
        parts = [(f"s = {s}", s) for s in shown] + [(kind, kind) for kind in kinds]
        print("  " + ", ".join(f"{n}: {np.mean([g[key] for g in found]):+.3f}" for n, key in parts))
    for path, document in documents.items():
        for volume, found in document.get("evaluated", {}).items():
            for name, psnr in found.items():
                print(f"\n{path.stem}, {name}, {volume}: {psnr}")
        for name in document["failed"]:
            print(f"\n{path.stem}: {name} failed")


# ---------------------------------------------------------------- checks


def number(values: Any) -> Tensor:
    """Return numbers on the device in double precision."""
    return torch.tensor(np.asarray(values, np.float64), device=DEVICE)


def disturbed(
    seed: int, more: float = 0.0, *, steps: int = 2, counts: tuple[int, int] = (3, 2), **how: bool
) -> Free:
    """Return a small model in double precision whose numbers are far from the law's.

    Parameters
    ----------
    seed
        Of the disturbance.
    more
        Added to the logarithms of all weights; with 3 all steps are at the stable bound.
    steps, counts, how
        As of the model.
    """
    model = Free(steps, counts, seed=seed, **how)
    generator = torch.Generator().manual_seed(seed)
    for name, value in model.p.items():
        values = value.detach().cpu().double()
        values = values + 0.3 * torch.randn(values.shape, generator=generator, dtype=values.dtype)
        if name == "weights":
            values = values + more
        if name == "couplings":  # J has the weights, too
            values = values - more
        if name == "pull":
            values = values + math.log(20.0) + more / 2
        model.p[name] = values.to(DEVICE).requires_grad_()
    model.limit()
    return model


def numbers_of(evolution: Any) -> Numbers:
    """Return the numbers of a process of the package, of order one."""
    terms = [evolution.terms(step)[0] for step in range(evolution.steps)]
    coupling = number([term.coupling.weights for term in terms])[..., None]
    return Numbers(
        coupling=coupling,
        flux=evolution.tau * number([term.flux_weights for term in terms])[..., None],
        contrast=number([term.diffusivity.contrasts for term in terms])[..., None],
        rho=number([term.coupling.integration_scale for term in terms])[:, None, None] ** 2,
        pull=None,
        first=coupling.shape[1],
    )


@torch.no_grad()
def check_package(noisy: Tensor, level: float) -> tuple[float, float, float]:
    """Compare with the package's own evolution.

    Returns
    -------
    float
        Largest difference in grey levels for one law in all steps, and for the shipped law.
    float
        Largest relative difference of the numbers of the variant ``compact``, without step size.
    float
        Its step size relative to the package's.
    """
    from dataclasses import replace

    from integrodiff import load_model, stages

    shipped: Any = load_model("iad-fast-volume")
    evolution = shipped.evolution(level, None, (1.0, 1.0, 1.0))
    one_law = replace(evolution, schedule=evolution.schedule[:1])
    difference_ = 0.0
    for process in (one_law, evolution):
        variance = number(process.scales) ** 2
        ours = evolve(noisy[:1], numbers_of(process), variance)[0].cpu().numpy()
        theirs = stages.evolve(noisy[:1, None].cpu().numpy(), process)[0, 0]
        difference_ = max(difference_, float(np.abs(ours - theirs).max()))
    compact = Compact(LAW_STEPS)
    for name in compact.p:
        start = math.log(LAW[name]) if name in LAW_LOGARITHMS else LAW[name]
        compact.p[name] = number(start)
    ours_, theirs_ = compact.numbers(number([level]), 1), numbers_of(evolution)
    pairs = [(getattr(ours_, name), getattr(theirs_, name)) for name in ("coupling", "contrast")]
    pairs.append((ours_.rho, theirs_.rho))
    relative = max(float((a / b - 1).abs().max()) for a, b in pairs)
    return difference_, relative, float((ours_.flux / theirs_.flux)[0, 0, 0])


def check_adjoints(shape: tuple[int, int, int]) -> float:
    """Return the largest relative difference of inner products of R and its adjoint."""
    torch.manual_seed(0)
    v = torch.randn(2, 1, *shape, dtype=torch.float64, device=DEVICE)
    worst = 0.0

    def compare(a: Tensor, b: Tensor) -> None:
        nonlocal worst
        worst = max(worst, float((a.sum() - b.sum()).abs() / b.abs().sum()))

    parts = cell_parts(v)
    flux = torch.randn_like(parts)
    border = torch.ones_like(parts[0])
    for axis in AXES:
        for end in (slice(0, 1), slice(-1, None)):
            along(border, axis, end.start, end.stop).mul_(0.5)
    compare(border * flux * parts, cell_adjoint(tuple(flux)) * v)
    twice = number([1, 2, 2, 1, 2, 1]).view(6, 1, 1, 1, 1, 1)
    for isotropic in (True, False):
        h = hessian(v, isotropic)
        flux = torch.randn_like(h)
        compare(twice * flux * h, hessian_adjoint(tuple(flux), isotropic) * v)
    k = blurs_of(number([0.3, 1.7]), shape)
    flux = torch.randn_like(v)
    compare(flux * blurred(v[0], k), blurred_adjoint(flux, k) * v[0])
    return worst


def check_isotropy(isotropic: bool) -> float:
    """Return the largest relative error of a Hessian of waves in random directions.

    It is compared with -w_a w_b (1 - |w|^2 / 6) of a wave with |w| = 0.2.
    """
    rng = np.random.default_rng(0)
    at = np.indices((7, 7, 7)) - 3.0
    worst = 0.0
    for _ in range(10):
        z, y, x = w = rng.uniform(0.3, 1, 3)
        z, y, x = w = 0.2 * w / np.linalg.norm(w)
        wave = number(np.cos(np.tensordot(w, at, 1)))
        found = hessian(wave[None, None], isotropic)[:, 0, 0, 3, 3, 3].cpu().numpy()
        exact = -np.array([x * x, x * y, x * z, y * y, y * z, z * z]) * (1 - 0.04 / 6)
        worst = max(worst, float(np.abs(found / exact - 1).max()))
    return worst


def random_tensors(dtype: torch.dtype) -> Tensor:
    """Return semidefinite matrices (6, n) of all sizes and ranks, and eigenvalues zero."""
    rng = np.random.default_rng(1)
    q, _ = np.linalg.qr(rng.normal(size=(400, 3, 3)))
    values = np.exp(rng.uniform(-8, 8, (400, 3))) * (rng.uniform(size=(400, 3)) < 0.7)
    found = np.einsum("nij,nj,nkj->ikn", q, values, q)
    return torch.tensor(
        np.stack([found[i] for i in ((0, 0), (0, 1), (0, 2), (1, 1), (1, 2), (2, 2))]),
        dtype=dtype,
        device=DEVICE,
    )


def matrices_of(entries: Sequence[Tensor]) -> np.ndarray:
    """Return matrices (n, 3, 3)."""
    xx, xy, xz, yy, yz, zz = (entry.detach().cpu().double().numpy() for entry in entries)
    rows = [np.stack(row, -1) for row in ((xx, xy, xz), (xy, yy, yz), (xz, yz, zz))]
    return np.stack(rows, -2)


def check_gates(dtype: torch.dtype) -> tuple[float, float, float]:
    """Return the largest error of exp(-J), and the lowest and highest of its eigenvalues."""
    j = random_tensors(dtype)
    rate = torch.ones((), dtype=dtype, device=DEVICE)
    found = matrices_of(exponential(tuple(j), rate))
    values, vectors = np.linalg.eigh(matrices_of(tuple(j)))
    exact = np.einsum("nij,nj,nkj->nik", vectors, np.exp(-np.maximum(values, 0)), vectors)
    eigenvalues = np.linalg.eigvalsh(found)
    return float(np.abs(found - exact).max()), float(eigenvalues.min()), float(eigenvalues.max())


@torch.no_grad()
def check_operators(noisy: Tensor, levels: Tensor, isotropic: bool) -> dict[str, float]:
    """Return what the dense operators of all steps are like, at their bound.

    A step takes u to (1 - S - kappa) u + kappa f. The certificate is 0 <= S, S + 2 kappa <= 2.
    """
    shape = noisy.shape[1:]
    count = math.prod(shape)
    eye = torch.eye(count, dtype=noisy.dtype, device=DEVICE).view(-1, *shape)
    worst = {"asymmetry": 0.0, "lowest": 0.0, "highest": 0.0, "mean": 0.0}
    model = disturbed(4, 3.0, isotropic=isotropic)
    volumes = torch.cat([noisy, noisy / 1000])  # gates of the latter are nearly one
    for volume, level in zip(volumes, levels.repeat(2), strict=True):
        one, many = model.numbers(level[None], 1), model.numbers(level[None], count)
        k = blurs_of(model.variance, shape)
        parts, basis = (derivatives(blurred(u, k), one) for u in (volume[None], eye))
        for step in range(model.steps):
            j = structures(parts, one, step)
            expanded = [x.expand(-1, count, -1, -1, -1) for x in j]
            s = -blurred_adjoint(flow(basis, expanded, many, step), k).view(count, -1)
            eigenvalues = torch.linalg.eigvalsh((s + s.T) / 2)
            pull: Any = one.pull
            highest = eigenvalues.max() + 2 * pull[step, 0]
            worst["asymmetry"] = max(worst["asymmetry"], float((s - s.T).abs().max()))
            worst["lowest"] = min(worst["lowest"], float(eigenvalues.min()))
            worst["highest"] = max(worst["highest"], float(highest))
            worst["mean"] = max(worst["mean"], float(s.sum(0).abs().max()))
    return worst


@torch.no_grad()
def check_norms(noisy: Tensor, levels: Tensor) -> tuple[float, float, float]:
    """Return the largest ratio of norms of result and input, and changes of means and constants."""
    ratio = change = constant = 0.0
    z, y, x = (torch.arange(n, device=DEVICE) for n in noisy.shape[1:])
    z, y = z[:, None, None], y[:, None]
    # What a step that is too large amplifies.
    boards = [1.0 - 2 * (place % 2) for place in (z + y + x, z + 0 * (y + x), y + x + 0 * z)]
    for seed in range(6):
        model = disturbed(seed, 3.0, isotropic=seed % 2 == 0)
        numbers = model.numbers(levels, 1)
        centred = noisy - noisy.mean((1, 2, 3), keepdim=True)
        for u in (centred, *(board.expand_as(noisy).double() for board in boards)):
            found = evolve(u, numbers, model.variance)
            norms = found.square().sum((1, 2, 3)).sqrt() / u.square().sum((1, 2, 3)).sqrt()
            ratio = max(ratio, float(norms.max()))
            change = max(change, float((found - u).mean((1, 2, 3)).abs().max()))
        same = torch.full_like(noisy, 80.0)
        constant = max(constant, float((evolve(same, numbers, model.variance) - same).abs().max()))
    return ratio, change, constant


@torch.no_grad()
def check_grid() -> float:
    """Return the largest eigenvalue on a fine grid of frequencies, relative to the bound."""
    nodes = np.unique(np.concatenate([np.geomspace(0.002, 2, 60), np.linspace(0, 2, 21)]))
    z, y, x = np.indices((len(nodes),) * 3).reshape(3, -1)
    kept = (x >= y) & (y >= z)
    at = number(np.stack([nodes[axis[kept]] for axis in (x, y, z)]))
    worst = 0.0
    for seed in range(6):
        isotropic = seed % 2 == 0
        model = disturbed(seed, counts=(3, 2), isotropic=isotropic)
        weight = model.numbers(number([25.0]), 1).flux[..., 0]
        weight = torch.cat([weight, torch.eye(weight.shape[1], device=DEVICE)])
        coarse, fine = (
            (weight @ table_of(model.variance, 3, isotropic, where).T).amax(1)
            for where in (None, at)
        )
        worst = max(worst, float((fine / (BOUND_MARGIN * coarse)).max()))
    return worst


def check_derivatives(noisy: Tensor, levels: Tensor) -> float:
    """Compare derivatives of a loss by parameters and by the volume with differences.

    Differences are relative to the derivative, or to a thousandth of the largest one.
    """
    model = disturbed(3)
    with torch.no_grad():  # at the floor derivatives are one-sided
        model.p["contrasts"] += 1.5
    weights = torch.cos(torch.arange(noisy.numel(), device=DEVICE).view(noisy.shape))
    u = noisy.clone().requires_grad_()

    def loss() -> Tensor:
        return (evolve(u, model.numbers(levels, 1), model.variance) * weights).sum() / 100

    loss().backward()
    errors, slopes, step = [], [], 1e-4
    for parameter in (*model.parameters(), u):
        gradient: Any = parameter.grad
        flat = parameter.detach().view(-1)
        for i in {0, flat.numel() - 1}:
            start, found = float(flat[i]), 0.0
            for shift, share in ((1, 8), (-1, -8), (2, -1), (-2, 1)):
                flat[i] = start + shift * step
                with torch.no_grad():
                    found += share * float(loss()) / (12 * step)
            flat[i] = start
            slopes.append(abs(found))
            errors.append(abs(found - float(gradient.view(-1)[i])))
    least = 1e-3 * max(slopes)
    return max(error / max(slope, least) for error, slope in zip(errors, slopes, strict=True))


def check_memory_saved(noisy: Tensor, levels: Tensor) -> float:
    """Compare derivatives with and without computing the steps again."""
    found = []
    for recompute in (False, True):
        model = disturbed(5)
        result = evolve(noisy, model.numbers(levels, 1), model.variance, recompute=recompute)
        result.square().mean().backward()
        found.append([p.grad for p in model.parameters()])
    return second_pass.largest_difference(*found)


@torch.no_grad()
def check_equal_slices(image: Tensor, levels: Tensor) -> float:
    """Compare volumes of equal slices, along each axis, with the model of images, order one."""
    model = disturbed(6, counts=(3, 0))
    numbers = model.numbers(levels, 1)
    zero = torch.zeros_like(numbers.coupling[:, 0])
    flat = trials.Numbers(
        numbers.coupling,
        numbers.flux,
        numbers.contrast,
        None,
        None,
        None,
        zero,
        None,
        numbers.rho[:, 0],
        None,
        slice(None),
        slice(None),
        numbers.pull,
    )
    expected = trials.evolve(image, flat, model.variance)
    worst = 0.0
    for axis in (1, 2, 3):
        volume = image.unsqueeze(axis).repeat_interleave(3, axis)
        found = evolve(volume, numbers, model.variance)
        worst = max(worst, float((found - expected.unsqueeze(axis)).abs().max()))
    return worst


@torch.no_grad()
def check_turned(noisy: Tensor, levels: Tensor) -> float:
    """Return by how much results change if volumes are turned by 90 degrees about each axis."""
    worst = 0.0
    for isotropic in (True, False):
        model = disturbed(7, isotropic=isotropic)
        numbers = model.numbers(levels, 1)
        expected = evolve(noisy, numbers, model.variance)
        for plane in ((2, 3), (1, 3), (1, 2)):
            found = evolve(noisy.rot90(1, plane), numbers, model.variance)
            worst = max(worst, float((found - expected.rot90(1, plane)).abs().max()))
    return worst


@torch.no_grad()
def check_single_precision(noisy: Tensor, levels: Tensor) -> float:
    """Return the largest difference in grey levels of single and double precision."""
    model = disturbed(8)
    double = evolve(noisy, model.numbers(levels, 1), model.variance)
    model.p = {name: value.float() for name, value in model.p.items()}
    single = evolve(noisy.float(), model.numbers(levels.float(), 1), model.variance)
    return float((single - double).abs().max())


def check_command(a: argparse.Namespace) -> None:
    """Check the model in double precision; fails if anything is wrong."""
    torch.set_float32_matmul_precision("highest")
    trials.COMPILE = False
    rng = np.random.default_rng(0)
    levels = number([5.0, 40.0])
    blocks = rng.uniform(0, 255, (2, 2, 3, 2))
    for axis in (1, 2, 3):
        blocks = blocks.repeat(3, axis)
    blocks = blocks[:, :5, :6, :4]
    noise = rng.normal(0, 1, blocks.shape) * np.array([5.0, 40.0])[:, None, None, None]
    noisy = number(blocks + noise)
    # The model of images takes squares.
    image = noisy[:, 0].repeat_interleave(2, 1).repeat_interleave(2, 2)[:, :8, :8]
    package, compact, step = check_package(noisy, 12.0)
    adjoint, near, far = check_adjoints((4, 5, 6)), check_isotropy(True), check_isotropy(False)
    ratio, change, constant = check_norms(noisy, levels)
    double, single = check_gates(torch.float64), check_gates(torch.float32)
    small = noisy[:, :4, :5, :3]
    operators = [check_operators(small, levels, isotropic) for isotropic in (True, False)]
    lowest = min(found["lowest"] for found in operators)
    asymmetry, highest, sums = (
        max(found[key] for found in operators) for key in ("asymmetry", "highest", "mean")
    )
    grid, slopes = check_grid(), check_derivatives(noisy, levels)
    again, equal = check_memory_saved(noisy, levels), check_equal_slices(image, levels)
    turned, precision = check_turned(noisy, levels), check_single_precision(noisy, levels)
    wrong = []
    for what, value, right in (
        ("a. package, order one: largest difference in grey levels", package, package < 1e-9),
        ("a. compact law: relative difference of its numbers", compact, compact < 1e-9),
        ("a. compact law: step size relative to the package's", step, 0.97 < step <= 1),
        ("b. adjoints: relative difference of inner products", adjoint, adjoint < 1e-13),
        ("b. Hessian of waves: relative error, isotropic", near, near < 1e-4),
        ("b. Hessian of waves: relative error, plain", far, near < far / 10),
        ("c. norm of results relative to the input, at most 1", ratio, ratio <= 1 + 1e-12),
        ("c. change of the mean", change, change < 1e-10),
        ("c. change of constants", constant, constant < 1e-10),
        ("c. eigenvalues on a fine grid relative to the bound, at most 1", grid, grid <= 1),
        ("d. gates: largest error", double[0], double[0] < 1e-10),
        ("d. gates: lowest eigenvalue", double[1], double[1] > -1e-12),
        ("d. gates: highest eigenvalue", double[2], double[2] < 1 + 1e-11),
        ("d. gates in single precision: largest error", single[0], single[0] < 5e-3),
        ("d. gates in single precision: lowest eigenvalue", single[1], single[1] > -1e-5),
        ("d. gates in single precision: highest eigenvalue", single[2], single[2] < 1 + 1e-4),
        ("d. operators: asymmetry", asymmetry, asymmetry < 1e-11),
        ("d. operators: lowest eigenvalue S", lowest, lowest > -1e-11),
        ("d. operators: highest S + 2 kappa, at most 2", highest, highest <= 2),
        ("d. operators: change of the mean", sums, sums < 1e-11),
        ("e. derivatives against differences: relative difference", slopes, slopes < 1e-5),
        ("e. derivatives with steps computed again: relative difference", again, again < 1e-12),
        ("f. equal slices against images: largest difference", equal, equal < 1e-8),
        ("g. turned volumes: largest difference", turned, turned < 1e-8),
        ("single and double precision: largest difference", precision, precision < 0.05),
    ):
        print(f"{what}: {value:.6g}  {'RIGHT' if right else 'WRONG'}")
        if not right:
            wrong.append(what)
    if wrong:
        raise SystemExit(f"{len(wrong)} checks failed")


# ---------------------------------------------------------------- command line


def main(arguments: list[str] | None = None) -> None:
    """Read the command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    commands = parser.add_subparsers(required=True)
    one = commands.add_parser("volumes", help="write volumes to a file")
    one.add_argument("volumes", type=Path)
    one.add_argument("--data", type=Path, help="folder that holds bsds500")
    one.add_argument("--kinds", nargs="+", choices=["natural", "ellipsoids", "anatomy", "thin"])
    one.add_argument("--count", type=int, default=24, help="of each kind, to train on")
    one.add_argument("--held", type=int, default=6, help="of each kind, held out")
    one.add_argument("--side", type=int, default=40, help="voxels along each axis")
    one.set_defaults(run=volumes_command)
    one = commands.add_parser("check", help="check the model on tiny volumes")
    one.set_defaults(run=check_command)
    one = commands.add_parser("train", help="train variants side by side")
    one.add_argument("volumes", type=Path)
    one.add_argument("output", type=Path)
    one.add_argument(
        "--variants", type=Variant.of, nargs="+", default=[Variant("1"), Variant("1+2")]
    )
    one.add_argument("--limit", type=float, default=270.0, help="seconds that all may take")
    one.add_argument("--iterations", type=int, default=1_000_000, help="at most, of each variant")
    one.add_argument("--start", type=Path, help="earlier file, whose variants go on")
    one.add_argument("--steps", type=int, default=8, help="of variants without a number of steps")
    one.add_argument("--first", type=int, default=5, help="channels of order one")
    one.add_argument("--second", type=int, default=2, help="channels of order two")
    one.add_argument("--size", type=int, help="side of the parts trained on; all by default")
    one.add_argument("--batch", type=int, default=2, help="parts for each noise level")
    one.add_argument("--rate", type=float, default=0.03)
    one.add_argument("--horizon", type=int, default=200, help="steps that the mean is taken over")
    one.add_argument("--seed", type=int, default=0)
    one.add_argument("--checkpoint", action="store_true", help="compute steps again, for memory")
    one.add_argument("--eager", action="store_true", help="do not compile")
    one.set_defaults(run=train_command)
    one = commands.add_parser("evaluate", help="measure the PSNR on a volume")
    one.add_argument("result", type=Path, help="file that train has written")
    one.add_argument("volume", type=Path, help="as for evaluate_volumes.py")
    one.add_argument("--percent", nargs="+", type=float, default=[5.0, 11.0, 19.0])
    one.add_argument("--crop", action="store_true")
    one.add_argument("--side", type=int, default=96)
    one.add_argument("--last", action="store_true", help="the last numbers, not their mean")
    one.add_argument("--keep", action="store_true", help="write the PSNR to the file, too")
    one.set_defaults(run=evaluate_command)
    one = commands.add_parser("table", help="print the results")
    one.add_argument("files", type=Path, nargs="+")
    one.set_defaults(run=table_command)
    a = parser.parse_args(arguments)
    a.run(a)


if __name__ == "__main__":
    main()
