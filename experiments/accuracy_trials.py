"""Trials of new ingredients for compact and deep diffusion models; meant for a GPU.

    python experiments/accuracy_trials.py crops CROPS.npz --data FOLDER
    python experiments/accuracy_trials.py check
    python experiments/accuracy_trials.py compact CROPS.npz OUT.json [--variants NAME ...]
    python experiments/accuracy_trials.py deep CROPS.npz OUT.json [--seconds 300] [--first 5] ...

``crops`` writes the grey crops of the BSDS500 training images, the only images used here: every
fourth is held out, the others are trained on. ``check`` compares the model of this file with the
stages of the package and with its own proof. ``compact`` trains several variants of the compact
law side by side, on the same images with the same noise. ``deep`` trains numbers that are free at
each step. All of them run on a processor too, with tiny settings: ``--size 32 --iterations 2``.

The model: at scale i the image v_i = K_i u; of order one the Haar gradient at the cells, of order
two the Hessian at the pixels; for each order a structure tensor J = sum_i c_i T_i, smoothed by a
Gaussian of standard deviation rho (the integration scale); the gate exp(-J / (2 n lambda^2)) on
each of the n indices of a derivative; exact adjoints back to u. Every gate has eigenvalues in
[0, 1], so the bound of the step size is that of the linear process.
"""

# mypy: allow-untyped-calls

from __future__ import annotations

import argparse
import json
import math
import time
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch.nn.functional import pad

LEVELS = (2.0, 5.0, 10.0, 15.0, 20.0, 25.0, 30.0, 40.0, 50.0, 60.0, 75.0, 100.0)
PAPER = (10.0, 20.0, 30.0, 40.0, 50.0, 60.0)
REFERENCE = 30.0
THETA = 0.15
LARGEST_SCALE = math.log(10.0)
SMALLEST_CONTRAST = 0.02  # of the deep model, in noise levels
CONTRAST_FLOOR = (0.0, 0.0)  # relative to the steepest gate, in noise levels and in grey levels
INTEGRATION_LIMITS = ((0.0, 100.0), (0.0, 100.0))  # of its integration scales, for each order
LEVEL_WEIGHTS = (1.0,) * len(LEVELS)  # of the loss
HOLD_AT_LIMITS = False  # whether numbers beyond a limit are not pushed any further
DECIBELS = 10 / math.log(10)
DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")
COMPILE = DEVICE.type == "cuda"
Tensor = torch.Tensor


def tensor(values: Any) -> Tensor:
    """Return numbers on the device."""
    return torch.tensor(np.asarray(values, np.float32), device=DEVICE)


@lru_cache(maxsize=256)
def constants(values: tuple[float, ...]) -> Tensor:
    """Return numbers on the device; a recording must not copy them there again."""
    return tensor(values)


# ---------------------------------------------------------------- linear stages


def precise(on: bool) -> None:
    """Let matrix products be float32 proper, or TF32, which is faster."""
    torch.backends.cuda.matmul.allow_tf32 = not on


def spare(size: int) -> int:
    """Return how many cells of zeros make the number of cells a multiple of eight, for speed."""
    return -(size + 1) % 8


@lru_cache(maxsize=16)
def basis(kind: str, size: int, dtype: torch.dtype, device: torch.device) -> tuple[Tensor, ...]:
    """Return B, its inverse, and cos(w) - 1 of the transform that makes a blur diagonal.

    ``even`` and ``odd`` continue pixels by half-sample reflection, ``cells`` and ``odd cells`` the
    cells between them (size + 1 of them) by whole-sample reflection.
    """
    j, k = np.arange(size)[:, None], np.arange(size)[None]
    if kind == "even":
        b = np.cos(np.pi * (j + 0.5) * k / size)
        inverse, w = b.T * np.where(k.T == 0, 1, 2) / size, k
    elif kind == "odd":
        k = k + 1
        b = np.sin(np.pi * (j + 0.5) * k / size)
        inverse, w = b.T * np.where(size == k.T, 1, 2) / size, k
    else:
        j, k = np.arange(size + 1)[:, None], np.arange(size + 1)[None]
        ends = np.where((np.arange(size + 1) % size) == 0, 0.5, 1.0)
        if kind == "cells":
            b = np.cos(np.pi * j * k / size)
            inverse = 2 / size * ends[:, None] * b * ends[None]
        else:
            b = np.sin(np.pi * j * k / size) * (ends == 1)[:, None] * (ends == 1)[None]
            inverse = 2 / size * b
        w = k
    symbol = np.cos(np.pi * w[0] / size) - 1
    if "cells" in kind:
        b, inverse = (np.pad(a, (0, spare(size))) for a in (b, inverse))
        symbol = np.pad(symbol, (0, spare(size)))
    return tuple(torch.tensor(a, dtype=dtype, device=device) for a in (b, inverse, symbol))


def blur_matrices(kind: str, size: int, variance: Tensor) -> Tensor:
    """Return the matrices of the discrete Gaussian, one for each of the variances."""
    b, inverse, symbol = basis(kind, size, variance.dtype, variance.device)
    return (b * torch.exp(variance[..., None] * symbol)[..., None, :]) @ inverse


def _blur(u: Tensor, k: Tensor) -> Tensor:
    """Return ``(N, B, H, W)``, all scales of ``(B, H, W)``."""
    (b, h, w), n = u.shape, len(k)
    y = torch.bmm(u.reshape(1, b * h, w).expand(n, -1, -1), k).view(n, b, h, w)
    v = torch.empty_like(y)
    for i in range(n):
        torch.bmm(k[i].expand(b, -1, -1), y[i], out=v[i])
    return v


def _blur_adjoint(f: Tensor, k: Tensor) -> Tensor:
    """Return the sum ``(B, H, W)`` over the scales of blurred ``(N, B, H, W)``."""
    n, b, h, w = f.shape
    total = torch.zeros(b * h, w, dtype=f.dtype, device=f.device)
    y = torch.empty_like(f[0])
    for i in range(n):
        torch.bmm(k[i].expand(b, -1, -1), f[i], out=y)
        total.addmm_(y.view(b * h, w), k[i])
    return total.view(b, h, w)


def _second_sum(v: Tensor) -> Tensor:
    return second(v, -1) + second(v, -2)


def _slope_of_variance(gradient: Tensor, v: Tensor) -> Tensor:
    """Return a product with the blur's derivative by its variance, half the Laplacian."""
    return 0.5 * (gradient * _second_sum(v)).sum((1, 2, 3))


class Blur(torch.autograd.Function):
    """All scales of an image."""

    @staticmethod
    def forward(ctx: Any, u: Tensor, k: Tensor, variance: Tensor) -> Tensor:
        """Blur, and keep what the derivatives need."""
        v = _blur(u, k)
        ctx.trained = variance.requires_grad
        ctx.save_for_backward(k, v if ctx.trained else k)
        return v

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Any:
        """Return derivatives; the matrices themselves need none."""
        k, v = ctx.saved_tensors
        gradient = gradient.contiguous()
        precise(False)
        found = _blur_adjoint(gradient, k)
        return found, None, pieces()["slope"](gradient, v) if ctx.trained else None


class BlurAdjoint(torch.autograd.Function):
    """The sum over all scales of blurred flows."""

    @staticmethod
    def forward(ctx: Any, f: Tensor, k: Tensor, variance: Tensor) -> Tensor:
        """Blur, and keep what the derivatives need."""
        ctx.trained = variance.requires_grad
        ctx.save_for_backward(k, f if ctx.trained else k)
        return _blur_adjoint(f, k)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Any:
        """Return derivatives; the matrices themselves need none."""
        k, f = ctx.saved_tensors
        precise(False)
        found = _blur(gradient.contiguous(), k)
        return found, None, pieces()["slope"](f, found) if ctx.trained else None


def smoothed_tensor(j: Tensor, even: Tensor, odd: Tensor) -> Tensor:
    """Smooth (3, B, h, w): xx and yy continue evenly, xy oddly. Matrices (levels, h, h)."""
    _, b, h, w = j.shape
    g = torch.stack([even, odd, even]).repeat_interleave(b // len(even), 1).view(3 * b, h, h)
    y = torch.bmm(g, j.reshape(3 * b, h, w))
    return torch.bmm(y, g.transpose(1, 2)).view(3, b, h, w)


def along(a: Tensor, axis: int, start: int | None, stop: int | None) -> Tensor:
    """Return a part of an array along one axis."""
    return a[..., start:stop] if axis == -1 else a[..., start:stop, :]


def padded(a: Tensor, axis: int, before: int, after: int) -> Tensor:
    """Put zeros before and after an array along one axis."""
    return pad(a, (before, after) if axis == -1 else (0, 0, before, after))


def difference(a: Tensor, axis: int) -> Tensor:
    """Return differences of neighbours, n to n + 1; zero across the border."""
    return padded(along(a, axis, 1, None) - along(a, axis, None, -1), axis, 1, 1)


def average(a: Tensor, axis: int) -> Tensor:
    """Return averages of neighbours, n to n + 1; at the border the pixel itself."""
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
    """Return second differences at the pixels."""
    d = difference(a, axis)
    return along(d, axis, 1, None) - along(d, axis, None, -1)


def central(a: Tensor, axis: int) -> Tensor:
    """Return central differences at the pixels."""
    return average_adjoint(difference(a, axis), axis)


def central_adjoint(a: Tensor, axis: int) -> Tensor:
    """Return the adjoint of the central differences."""
    return difference_adjoint((padded(a, axis, 1, 0) + padded(a, axis, 0, 1)) / 2, axis)


# ---------------------------------------------------------------- nonlinear stages


def structure_first(v: Tensor, weight: Tensor, mix: Tensor) -> Tensor:
    """Sum of the outer squares of the gradients, at the cells and some spare ones."""
    x, y = average(difference(v, -1), -2), average(difference(v, -2), -1)
    more = spare(v.shape[-1])
    return pad(_mixed(weight, mix, x * x, x * y, y * y), (0, more, 0, more))


def structure_second(v: Tensor, weight: Tensor, mix: Tensor) -> Tensor:
    """Sum of the squares of the Hessians."""
    xx, xy, yy = second(v, -1), central(central(v, -1), -2), second(v, -2)
    return _mixed(weight, mix, xx * xx + xy * xy, xy * (xx + yy), xy * xy + yy * yy)


def _mixed(weight: Tensor, mix: Tensor, *parts: Tensor) -> Tensor:
    """Sum over the scales; each eigenvalue gets ``mix`` times the other one. One: the trace."""
    a, b, c = ((weight[..., None, None] * part).sum(0) for part in parts)
    mix = mix[:, None, None]
    return torch.stack([a + mix * c, (1 - mix) * b, c + mix * a])


def exponential(j: Tensor, rate: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Return exp(-rate J) for semidefinite J, without eigenvectors."""
    mean, deviation = (j[0] + j[2]) / 2, (j[0] - j[2]) / 2
    square = deviation * deviation + j[1] * j[1]
    positive = square > 1e-30
    distance = torch.where(positive, torch.sqrt(torch.where(positive, square, 1.0)), 0.0)
    larger = torch.exp(-rate * torch.clamp(mean - distance, min=0))
    x = 2 * rate * distance
    ratio = torch.exp(-x)
    small = x < 1e-3
    phi = torch.where(small, 1 - x / 2, (1 - ratio) / torch.where(small, 1.0, x))
    half, slope = larger * (1 + ratio) / 2, larger * rate * phi
    return half - slope * deviation, -slope * j[1], half + slope * deviation


def flow_first(v: Tensor, j: Tensor, weight: Tensor, contrast: Tensor) -> Tensor:
    """Return the divergence of the gated gradient, with the twist of the Haar cell."""
    lam, (h, w) = contrast[..., None, None], v.shape[-2:]
    a, b, c = exponential(j[:, None, :, : h + 1, : w + 1], 0.5 / (lam * lam))
    dx, dy = difference(v, -1), difference(v, -2)
    x, y, e = average(dx, -2), average(dy, -1), difference(dx, -2) / 2
    twist = (1 - 2 * THETA) * (a + c - 2 * b.abs()) * e
    result = (
        difference_adjoint(average_adjoint(a * x + b * y, -2), -1)
        + difference_adjoint(average_adjoint(b * x + c * y, -1), -2)
        + difference_adjoint(difference_adjoint(twist, -2), -1) / 2
    )
    return -weight[..., None, None] * result


def flow_second(v: Tensor, j: Tensor, weight: Tensor, contrast: Tensor) -> Tensor:
    """Return the adjoint of the gated Hessian A H A, where A = exp(-J / (4 lambda^2))."""
    lam = contrast[..., None, None]
    a, b, c = exponential(j[:, None], 0.25 / (lam * lam))
    xx, xy, yy = second(v, -1), central(central(v, -1), -2), second(v, -2)
    f0 = a * a * xx + 2 * a * b * xy + b * b * yy
    f1 = a * b * xx + (a * c + b * b) * xy + b * c * yy
    f2 = b * b * xx + 2 * b * c * xy + c * c * yy
    result = second(f0, -1) + second(f2, -2) + 2 * central_adjoint(central_adjoint(f1, -1), -2)
    return -weight[..., None, None] * result


@lru_cache(maxsize=2)
def _pieces(compiled: bool) -> dict[str, Any]:
    """Return the pointwise functions."""
    plain = {
        "structure_first": structure_first,
        "structure_second": structure_second,
        "flow_first": flow_first,
        "flow_second": flow_second,
        "slope": _slope_of_variance,
    }
    if not compiled:
        return plain
    import torch._dynamo
    import torch._inductor.config as config

    config.unroll_reductions_threshold = 17
    torch._dynamo.config.recompile_limit = 64
    compiled_pieces: dict[str, Any] = {}
    piece: Any
    for name, piece in plain.items():
        compiled_pieces[name] = torch.compile(piece, fullgraph=True, dynamic=False)
    return compiled_pieces


def pieces() -> dict[str, Any]:
    """Return the pointwise functions, compiled at their first calls on a GPU."""
    return _pieces(COMPILE)


@dataclass
class Numbers:
    """All that K steps need: weights and contrasts ``(K, N, B)``.

    Variances of the integration ``(K, levels)``; the rest ``(K, B)``.
    """

    coupling_1: Tensor
    flux_1: Tensor
    contrast_1: Tensor
    coupling_2: Any  # tensors, or None without a second order
    flux_2: Tensor | None
    contrast_2: Any
    mix_1: Tensor
    mix_2: Any
    rho_1: Tensor | None
    rho_2: Tensor | None
    first: slice  # scales of order one
    second: slice  # scales of order two
    pull: Tensor | None = None


def evolve(u: Tensor, numbers: Numbers, variance: Tensor) -> Tensor:
    """Return (B, H, W) after all steps; ``variance`` has the squares of the scales."""
    do, size = pieces(), u.shape[-1]
    precise(True)
    k = blur_matrices("even", size, variance.detach())
    shared = numbers.first == numbers.second
    original = u
    for step in range(len(numbers.flux_1)):
        precise(True)
        v = Blur.apply(u, k, variance)
        v1, v2 = (v, v) if shared else (v[numbers.first], v[numbers.second])
        j = do["structure_first"](v1, numbers.coupling_1[step], numbers.mix_1[step])
        if numbers.rho_1 is not None:
            t = numbers.rho_1[step]
            precise(True)
            even, odd = (blur_matrices(kind, size, t) for kind in ("cells", "odd cells"))
            precise(not u.requires_grad and not t.requires_grad)
            j = smoothed_tensor(j, even, odd)
        flow = do["flow_first"](v1, j, numbers.flux_1[step], numbers.contrast_1[step])
        if numbers.flux_2 is not None:
            j = do["structure_second"](v2, numbers.coupling_2[step], numbers.mix_2[step])
            if numbers.rho_2 is not None:
                t = numbers.rho_2[step]
                precise(True)
                even, odd = (blur_matrices(kind, size, t) for kind in ("even", "odd"))
                precise(not t.requires_grad)
                j = smoothed_tensor(j, even, odd)
            other = do["flow_second"](v2, j, numbers.flux_2[step], numbers.contrast_2[step])
            flow = flow + other if shared else torch.cat([flow, other])
        precise(True)
        change = BlurAdjoint.apply(flow.contiguous(), k, variance)
        if numbers.pull is not None:
            change = change + numbers.pull[step][:, None, None] * (original - u)
        u = u + change
    return u


# ---------------------------------------------------------------- the bound


@lru_cache(maxsize=8)
def box_corners(boxes: int, dtype: torch.dtype) -> tuple[Tensor, ...]:
    """Return lowest and highest p = 1 - cos w_x, and lowest and highest q, of all boxes."""
    edges = 2 * np.linspace(0, 1, boxes + 1) ** 2
    i, j = np.tril_indices(boxes)
    return tuple(torch.tensor(edges[n], dtype=dtype, device=DEVICE) for n in (i, i + 1, j, j + 1))


def symbols(order: int, variance: Tensor, boxes: int, certified: bool = True) -> Tensor:
    """Return bounds ``(row, scale)`` of the eigenvalues on boxes of frequencies, weight one.

    Those of the deep model hold in all of a box; for the compact law, whose shipped bound is
    exact to a thousandth, the corners are enough.
    """
    at = box_corners(boxes, variance.dtype)
    p0, p1, q0, q1 = at if certified else (at[1], at[1], at[3], at[3])
    if order == 1:
        largest = 2 * (p1 * (1 - THETA * q0) + q1 * (1 - THETA * p0))
    else:
        mixed = 2 * (2 * p1) * (1 - p0 / 2) * (2 * q1) * (1 - q0 / 2)
        largest = (2 * p1) ** 2 + mixed + (2 * q1) ** 2
    return largest[:, None] * torch.exp(-2 * variance * (p0 + q0)[:, None])


# ---------------------------------------------------------------- the compact law

START = {  # the first eight: iad-power as shipped
    "e": 0.429898522143907,
    "alpha": math.log(0.2339080728821479),
    "b": math.log(0.21714888416781333),
    "p": 0.900120523062878,
    "r": 0.15121058949734414,
    "growth": math.log(0.8905994087305227),
    "drift": 2.827429901574951,
    "tau": math.log(1.013570182532811),
    "rho": math.log(0.8),
    "rho_e": 0.0,
    "rho2": math.log(0.8),
    "a2": math.log(0.05),
    "b2": math.log(0.15),
    "e2": 2.0,
    "p2": 1.0,
    "q": 0.0,
    "drift2": 0.0,
    "alpha2": 0.0,
    "rho_growth": 0.0,
    "d": 0.0,
    "mix": 0.0,
    "mix2": 0.0,
}
EIGHT = ("e", "alpha", "b", "p", "r", "growth", "drift", "tau")


@dataclass(frozen=True)
class Variant:
    """Which numbers of the law are free, and what is in it at all."""

    name: str
    free: tuple[str, ...]
    rho: str = "none"  # none, one (for both orders), tied (five times as large for order 2), two
    order_2: str = "none"  # none, isotropic, anisotropic
    relative: bool = False  # a step is a share of the stable bound at this step
    start: dict[str, float] = field(default_factory=dict)

    @property
    def count(self) -> int:
        """Return how many numbers are free."""
        return len(self.free)


def variant(name: str, extra: str = "", without: str = "", **more: Any) -> Variant:
    """Return a variant with the eight numbers of today's law, more, or fewer."""
    free = tuple(n for n in (*EIGHT, *extra.split()) if n not in without.split())
    return Variant(name, free, **more)


TWO = math.log(2.0)
SECOND = {
    "e": 0.34,
    "alpha": math.log(0.355),
    "b": math.log(0.23),
    "p": 0.58,
    "growth": math.log(0.89),
    "drift": 2.75,
    "tau": math.log(0.97),
    "rho": 0.0,
    "rho2": math.log(5.0),
    "a2": math.log(0.13),
    "b2": math.log(0.09),
    "r": 0.0,
    "e2": 1.0,
    "p2": 1.0,
}


def both(
    name: str, extra: str = "", without: str = "", rho: str = "two", **start: float
) -> Variant:
    """Both orders with integration scales, no law of the step size, one power more in order two."""
    free = tuple(
        n
        for n in (*EIGHT, "a2", "b2", "rho", "rho2", *extra.split())
        if n not in without.split() and (n != "r" or "r" in extra.split())
    )
    return Variant(
        name, tuple(dict.fromkeys(free)), rho=rho, order_2="anisotropic", start={**SECOND, **start}
    )


VARIANTS = {
    v.name: v
    for v in (
        # First round: what each ingredient brings.
        Variant("shipped", ()),
        variant("plus"),
        variant("rho", "rho", rho="one"),
        variant("rho-law", "rho rho_e", rho="one"),
        variant("second-isotropic", "a2 b2", order_2="isotropic"),
        variant("second", "a2 b2", order_2="anisotropic"),
        variant("rho+isotropic", "a2 b2 rho rho2", rho="two", order_2="isotropic"),
        variant("rho+second, one rho", "a2 b2 rho", rho="one", order_2="anisotropic"),
        variant(
            "rho+second", "a2 b2 rho rho2", rho="two", order_2="anisotropic", start={"rho2": TWO}
        ),
        variant(
            "rho+second, relative",
            "a2 b2 rho rho2",
            rho="two",
            order_2="anisotropic",
            relative=True,
            start={"rho2": TWO, "tau": math.log(0.9)},
        ),
        variant(
            "rho+second, own exponents",
            "a2 b2 rho rho2 e2 p2",
            rho="two",
            order_2="anisotropic",
            start={"rho2": TWO},
        ),
        variant(
            "rho+second, all",
            "a2 b2 rho rho2 e2 p2 q rho_e drift2 alpha2 rho_growth",
            rho="two",
            order_2="anisotropic",
            start={"rho2": TWO},
        ),
        variant(
            "rho+second, q",
            "a2 b2 rho rho2 q",
            rho="two",
            order_2="anisotropic",
            start={"rho2": TWO},
        ),
        # Second round: which twelve numbers.
        both("11"),
        both("11 + rho_e", "rho_e"),
        both("11 + mix", "mix"),
        both("11 + d", "d"),
        both("11 + rho_growth", "rho_growth"),
        both("11 - tau + rho_e + mix", "rho_e mix", "tau", tau=0.0),
        both("11 - tau + rho_e + d", "rho_e d", "tau", tau=0.0),
        both("11 - rho2 + rho_e + mix", "rho_e mix", "rho2", rho="tied"),
        both("11 - alpha", "", "alpha", alpha=-30.0),
        both("everything", "r e2 p2 rho_e rho_growth mix mix2 drift2 alpha2 q"),
        variant("rho-law + mix", "rho rho_e mix", rho="one"),
        # For few steps.
        variant("rho, relative", "rho", rho="one", relative=True, start={"tau": math.log(0.9)}),
        variant(
            "rho-law + mix, relative",
            "rho rho_e mix",
            rho="one",
            relative=True,
            start={"tau": math.log(0.9)},
        ),
        variant(
            "11 + rho_e, relative",
            "a2 b2 rho rho2 rho_e",
            "r",
            rho="two",
            order_2="anisotropic",
            relative=True,
            start={**SECOND, "tau": math.log(0.9)},
        ),
        variant(
            "12 + mix, relative",
            "a2 b2 rho rho2 rho_e mix",
            "r",
            rho="two",
            order_2="anisotropic",
            relative=True,
            start={**SECOND, "tau": math.log(0.9)},
        ),
    )
}


def flags(values: Any) -> Tensor:
    """Return truth values as numbers."""
    return constants(tuple(float(v) for v in values))


class Compact:
    """Several variants of the law, whose numbers are rows of one matrix."""

    def __init__(
        self, variants: list[Variant], steps: int, scales: tuple[float, float, int]
    ) -> None:
        self.variants, self.steps = variants, steps
        low, high, count = scales
        sigma = np.geomspace(low, high, count)
        self.sigma = tensor(sigma)
        self.quadrature = tensor(sigma * np.gradient(sigma))
        self.variance = self.sigma**2
        self.names = list(START)
        self.values = tensor([[{**START, **v.start}[n] for n in self.names] for v in variants])
        self.free = tensor([[float(n in v.free) for n in self.names] for v in variants])
        self.values.requires_grad_()
        self.second = any(v.order_2 != "none" for v in variants)
        self.rho = any(v.rho != "none" for v in variants)

    def parameters(self) -> list[Tensor]:
        """Return what is trained."""
        return [self.values]

    def mask(self) -> None:
        """Keep the numbers that are not free."""
        gradient: Any = self.values.grad
        gradient.mul_(self.free)

    def numbers(self, levels: Tensor, copies: int, boxes: int, only: int | None = None) -> Numbers:
        """Numbers of all variants at all levels, each for ``copies`` images."""
        rows = range(len(self.variants)) if only is None else [only]
        chosen = [self.variants[m] for m in rows]
        values = self.values if only is None else self.values[only : only + 1]
        p = dict(zip(self.names, values.T[..., None, None, None], strict=True))  # (M, 1, 1, 1)
        # Axes: variant, level, step, scale.
        s = levels[None, :, None, None]
        rel = s / REFERENCE
        k = torch.arange(self.steps, device=DEVICE, dtype=s.dtype)[None, None, :, None]
        time_ = k / max(self.steps - 1, 1) - 0.5
        sigma, w = self.sigma, self.quadrature
        decay = torch.exp(-2 * p["alpha"].exp() * sigma**2 / s.sqrt())
        decay2 = torch.exp(-2 * (p["alpha"] + p["alpha2"]).exp() * sigma**2 / s.sqrt())
        on = flags(v.order_2 != "none" for v in chosen)[:, None, None, None]
        c1 = w * sigma ** (p["e"] + p["drift"] * time_) * decay
        c2 = (
            on
            * p["a2"].exp()
            * w
            * decay2
            * sigma ** (p["e"] + p["e2"] + p["d"] + (p["drift"] + p["drift2"]) * time_)
        )
        common = s * rel ** p["q"] * (p["growth"] * k).exp()
        l1 = p["b"].exp() * common * sigma ** -p["p"]
        l2 = p["b2"].exp() * common * sigma ** -(p["p"] + p["p2"] + p["d"])
        bound = (
            c1 @ symbols(1, self.variance, boxes, False).T
            + c2 @ symbols(2, self.variance, boxes, False).T
        ).amax(-1, keepdim=True)
        tau = p["tau"].exp() * rel ** p["r"]
        relative = flags(v.relative for v in chosen)[:, None, None, None]
        share = 2 * tau.clamp(max=1.0) / bound
        tau = torch.minimum(tau, 2 / bound.amax(2, keepdim=True))
        tau = relative * share + (1 - relative) * tau

        def spread(x: Tensor) -> Tensor:  # (K, N, B)
            x = x.expand(len(chosen), len(levels), self.steps, len(sigma))
            return x.permute(2, 3, 0, 1).flatten(2).repeat_interleave(copies, -1)

        def rho(name: str) -> Tensor:  # (K, B)
            with_rho = flags(v.rho != "none" for v in chosen)[:, None, None, None]
            log = p["rho"]
            if name == "rho2":
                two = flags(v.rho == "two" for v in chosen)[:, None, None, None]
                tied = flags(v.rho == "tied" for v in chosen)[:, None, None, None]
                log = two * p["rho2"] + (1 - two) * (p["rho"] + tied * math.log(5.0))
            t = with_rho * (2 * (log + p["rho_e"] * rel.log() + p["rho_growth"] * time_)).exp()
            t = t.expand(len(chosen), len(levels), self.steps, 1)[..., 0]
            return torch.flatten(t.permute(2, 0, 1), 1)

        def mix(other: Tensor) -> Tensor:  # (K, B)
            flat = other.view(1, -1).expand(self.steps, -1).clamp(-0.9, 1.0)
            return flat.repeat_interleave(len(levels) * copies, -1)

        iso = flags(v.order_2 == "isotropic" for v in chosen).view(-1, 1, 1, 1)
        every = slice(None)
        use = self.second if only is None else chosen[0].order_2 != "none"
        smooth = self.rho if only is None else chosen[0].rho != "none"
        return Numbers(
            spread(c1),
            spread(tau * c1),
            spread(l1),
            spread(c2) if use else None,
            spread(tau * c2) if use else None,
            spread(l2) if use else None,
            mix(p["mix"]),
            mix(iso + (1 - iso) * (p["mix"] + p["mix2"])) if use else None,
            rho("rho") if smooth else None,
            rho("rho2") if smooth and use else None,
            every,
            every,
        )

    def limit(self) -> None:
        """Keep numbers that have no effect from running away: not needed here."""

    def groups(self) -> int:
        """Return the number of variants."""
        return len(self.variants)

    def found(self, m: int) -> dict[str, float]:
        """Return the numbers as they are now."""
        row = self.values[m].detach().cpu().double().numpy()
        logs = {"alpha", "b", "growth", "tau", "rho", "rho2", "a2", "b2"}
        return {
            n: float(math.exp(x) if n in logs else x)
            for n, x in zip(self.names, row, strict=True)
            if n in self.variants[m].free
        }


# ---------------------------------------------------------------- free numbers at each step

DEEP_SCALES = {1: (0.15, 0.7, 1.1, 2.1, 4.2), 2: (0.2, 0.8, 1.5, 2.5)}


def law_at(scales: np.ndarray, steps: int, order: int) -> tuple[np.ndarray, np.ndarray]:
    """Return logarithms of weights and contrasts (step, scale) of a compact law, to start from."""
    k = np.arange(steps)[:, None]
    time_ = k / max(steps - 1, 1) - 0.5
    more = order - 1
    weight = np.log(scales * np.gradient(scales)) + (0.4 + more + 2.8 * time_) * np.log(scales)
    weight = weight - 2 * 0.37 * scales**2 / math.sqrt(REFERENCE) + more * math.log(0.13)
    contrast = math.log(0.23) + more * math.log(0.4) - (0.55 + 0.75 * more) * np.log(scales)
    return weight + math.log(10 / steps), contrast + math.log(0.89) * 10 / steps * k


RANGES = {
    "scales": (-6.0, LARGEST_SCALE),
    "weights": (-12.0, 8.0),
    "contrasts": (-6.0, 4.0),
    "couplings": (-14.0, 6.0),
    "rho": (-4.0, 3.5),
    "pull": (-12.0, 0.0),
    "mix": (-0.9, 1.0),
}


def passed_on(value: Tensor, limited: Tensor) -> Tensor:
    """Return the limited value, with the derivatives of the one without limits."""
    if HOLD_AT_LIMITS:
        held: Tensor = HeldAtLimit.apply(value, limited)
        return held
    return value + (limited - value).detach()


class HeldAtLimit(torch.autograd.Function):
    """A limited value; derivatives that would move it further beyond the limit are zero."""

    @staticmethod
    def forward(ctx: Any, value: Tensor, limited: Tensor) -> Tensor:
        """Return the limited value."""
        ctx.save_for_backward(limited - value)
        return limited.clone()

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Any:
        """Pass on what moves a number back; descent goes against the gradient."""
        (back,) = ctx.saved_tensors
        return gradient * (gradient * back <= 0), None


class Deep:
    """Weights, contrasts and integration scales of each step; laws in the noise per channel."""

    def __init__(self, steps: int, first: int, second_: int, options: set[str], seed: int) -> None:
        self.steps, self.options, self.counts = steps, options, (first, second_)
        scales = [
            np.exp(np.interp(np.linspace(0, 1, count), np.linspace(0, 1, len(grid)), np.log(grid)))
            for count, grid in zip(self.counts, DEEP_SCALES.values(), strict=True)
        ]
        starts = [law_at(grid, steps, order) for order, grid in enumerate(scales, start=1)]
        weight, contrast = (np.concatenate([st[i] for st in starts], 1) for i in (0, 1))
        weight = np.maximum(weight, -5.0)
        contrast = np.clip(contrast, math.log(0.025), math.log(0.6))
        scale, channels = np.log(np.concatenate(scales)), first + second_
        rng = np.random.default_rng(seed)
        jitter = 0.05 * rng.standard_normal((2, steps, channels))
        self.p = {
            "scales": scale,
            "weights": weight + jitter[0],
            "contrasts": contrast + jitter[1],
            "weight_exponents": np.full(channels, 0.2),
            "contrast_exponents": np.zeros(channels),
            "couplings": np.zeros((steps, channels) if "couplings" in options else channels),
        }
        if "rho" in options:
            shape = (steps, 2) if "rho-steps" in options else (1, 2)
            self.p["rho"] = np.broadcast_to(np.log([1.2, 5.0]), shape).copy()
            self.p["rho_exponents"] = np.full(2, 0.35)
        if "curved" in options:
            self.p["weight_curvatures"] = np.zeros(channels)
            self.p["contrast_curvatures"] = np.zeros(channels)
        if "mix" in options:
            self.p["mix"] = np.zeros((steps, 2))
        if "pull" in options:
            self.p["pull"] = np.full(steps, math.log(0.01))
            self.p["pull_exponent"] = np.zeros(1)
        if "step-laws" in options:
            self.p["step_weight_exponents"] = np.zeros((steps, 2))
            self.p["step_contrast_exponents"] = np.zeros((steps, 2))
        if "rho-laws" in options:
            self.p["rho_exponents"] = np.full((steps, 2), 0.35)
        self.p = {k: tensor(v).requires_grad_() for k, v in self.p.items()}
        self.variance = self.p["scales"]  # for its type only
        self.acting: Tensor | None = None  # ones where a channel acts in a step, or all do

    @property
    def count(self) -> int:
        """Return how many numbers are free."""
        return sum(v.numel() for v in self.p.values())

    def parameters(self) -> list[Tensor]:
        """Return what is trained."""
        return list(self.p.values())

    def mask(self) -> None:
        """Keep the numbers that are not free."""

    def limit(self) -> None:
        """Keep numbers that have no effect from running away."""
        with torch.no_grad():
            for name, (low, high) in RANGES.items():
                if name in self.p:
                    self.p[name].clamp_(low, high)

    def groups(self) -> int:
        """Return the number of variants."""
        return 1

    def numbers(self, levels: Tensor, copies: int, boxes: int, only: int | None = None) -> Numbers:
        """Return the numbers at all levels, each for ``copies`` images."""
        p = self.p
        self.variance = variance = (2 * p["scales"].clamp(max=LARGEST_SCALE)).exp()
        n1 = self.counts[0]
        s = levels[:, None, None]
        log = (s / REFERENCE).log()  # axes: level, step, channel
        weight = p["weights"] + p["weight_exponents"] * log
        contrast = p["contrasts"] + p["contrast_exponents"] * log
        if "curved" in self.options:
            weight = weight + p["weight_curvatures"] * log**2
            contrast = contrast + p["contrast_curvatures"] * log**2
        if "step-laws" in self.options:
            weight = weight + self.of_channels(p["step_weight_exponents"]) * log
            contrast = contrast + self.of_channels(p["step_contrast_exponents"]) * log
        weight = weight.exp() if self.acting is None else weight.exp() * self.acting
        coupling = weight * p["couplings"].exp()
        floor = torch.full_like(s, SMALLEST_CONTRAST)
        relative, absolute = CONTRAST_FLOOR
        if relative or absolute:
            steepest = self.steepest_gates(coupling, variance)
            floor = torch.maximum(floor, (absolute / s).clamp(min=relative) * steepest)
        contrast = s * passed_on(contrast, torch.maximum(contrast, floor.log())).exp()
        table = torch.cat([symbols(1, variance[:n1], boxes), symbols(2, variance[n1:], boxes)], 1)
        largest = (weight @ table.T).amax(-1, keepdim=True)
        pull = None
        if "pull" in self.options:  # for the bound it counts twice
            pull = (p["pull"][:, None] + p["pull_exponent"] * log).exp()
            largest = largest + 2 * pull
        excess = (largest / 2).clamp(min=1.0)
        flux = weight / excess

        def spread(x: Tensor, part: slice) -> Tensor:
            return x.permute(1, 2, 0)[:, part].repeat_interleave(copies, -1)

        first, second_ = slice(0, n1), slice(n1, None)
        rho: list[Tensor | None] = [None, None]
        if "rho" in self.options:
            t = p["rho"] + p["rho_exponents"] * log
            t = t.expand(len(levels), self.steps, 2).permute(2, 1, 0)
            rho = [
                (2 * passed_on(x, x.clamp(math.log(max(low, 1e-4)), math.log(high)))).exp()
                for x, (low, high) in zip(t, INTEGRATION_LIMITS, strict=True)
            ]
        mix = torch.zeros(self.steps, 2, device=DEVICE)
        if "mix" in self.options:
            mix = p["mix"]
        mix_1, mix_2 = (m[:, None].expand(-1, len(levels) * copies) for m in mix.unbind(1))
        if "isotropic" in self.options:
            mix_2 = torch.ones_like(mix_2)
        return Numbers(
            spread(coupling, first),
            spread(flux, first),
            spread(contrast, first),
            spread(coupling, second_),
            spread(flux, second_),
            spread(contrast, second_),
            mix_1,
            mix_2,
            rho[0],
            rho[1],
            first,
            second_,
            None if pull is None else spread(pull / excess, slice(None))[:, 0],
        )

    def of_channels(self, values: Tensor) -> Tensor:
        """Spread numbers ``(step, order)`` to the channels."""
        parts = zip(values.split(1, dim=1), self.counts, strict=True)
        return torch.cat([part.expand(-1, count) for part, count in parts], 1)

    def steepest_gates(self, coupling: Tensor, variance: Tensor) -> Tensor:
        """Return the root of the largest structure that a step of one grey level has."""
        n1, scale = self.counts[0], variance.detach().sqrt()
        first = (1 / (math.sqrt(2 * math.pi) * scale[:n1])).clamp(max=1.0)
        second_ = (1 / (math.sqrt(2 * math.pi * math.e) * variance.detach()[n1:])).clamp(max=1.0)
        parts = coupling.detach()[..., :n1], coupling.detach()[..., n1:]
        sums = (
            (part * response**2).sum(-1, keepdim=True).expand_as(part)
            for part, response in zip(parts, (first, second_), strict=True)
        )
        return torch.cat(list(sums), -1).sqrt()

    def found(self, m: int = 0) -> dict[str, Any]:
        """Return the numbers as they are now."""
        return {k: v.detach().cpu().double().numpy().tolist() for k, v in self.p.items()}


# ---------------------------------------------------------------- training


class Training:
    """A whole step of descent as one recording: batch, noise, gradients, Adam."""

    def __init__(
        self, model: Any, crops: Tensor, size: int, copies: int, seed: int, boxes: int
    ) -> None:
        self.model, self.crops, self.size, self.copies = model, crops, size, copies
        self.boxes = boxes
        self.levels = tensor(LEVELS)
        self.rate = torch.tensor(0.0, device=DEVICE)
        on_gpu = DEVICE.type == "cuda"
        self.optimiser = torch.optim.Adam(
            model.parameters(),
            lr=self.rate if on_gpu else 0.0,
            betas=(0.9, 0.98),
            capturable=on_gpu,
        )
        self.losses = torch.zeros(model.groups(), device=DEVICE)
        self.graph: Any = None
        torch.manual_seed(seed)

    def batch(self) -> tuple[Tensor, Tensor]:
        """Random parts of random crops with noise; the same ones for all variants."""
        n, size = self.copies, self.size
        room = self.crops.shape[-1] - size
        which = torch.randint(len(self.crops), (n, 1, 1), device=DEVICE)
        y = torch.randint(room + 1, (n, 1, 1), device=DEVICE)
        x = torch.randint(room + 1, (n, 1, 1), device=DEVICE)
        inside = torch.arange(size, device=DEVICE)
        clean = self.crops[which, y + inside[:, None], x + inside]
        clean = clean.repeat(len(self.levels), 1, 1)
        noise = torch.randn(clean.shape, device=DEVICE)
        noisy = clean + self.levels.repeat_interleave(n)[:, None, None] * noise
        groups = self.model.groups()
        # The first step is compiled as the others are if its image has a gradient, too.
        return clean.repeat(groups, 1, 1), noisy.repeat(groups, 1, 1).requires_grad_()

    def compute(self) -> None:
        """Compute loss and gradients of a new batch, and change the numbers."""
        clean, noisy = self.batch()
        precise(True)
        numbers = self.model.numbers(self.levels, self.copies, self.boxes)
        result = evolve(noisy, numbers, self.model.variance)
        error = (result - clean).square().mean((1, 2)).log() * DECIBELS
        error = error.view(self.model.groups(), len(LEVELS), -1).mean(2)
        shares = constants(LEVEL_WEIGHTS)
        error = (error * shares).sum(1) / shares.sum()
        self.losses.copy_(error.detach())
        for p in self.model.parameters():
            p.grad = None
        error.sum().backward()
        self.model.mask()
        for p in self.model.parameters():
            p.grad.nan_to_num_(0.0, 0.0, 0.0).clamp_(-10.0, 10.0)
        self.optimiser.step()
        self.model.limit()

    def step(self, rate: float) -> None:
        """Take one step of descent, by a recording on a GPU."""
        self.rate.fill_(rate)
        if DEVICE.type != "cuda":
            self.optimiser.param_groups[0]["lr"] = rate
            return self.compute()
        if self.graph is None:
            self.rate.fill_(0.0)
            aside = torch.cuda.Stream()
            aside.wait_stream(torch.cuda.current_stream())
            with torch.cuda.stream(aside):
                for _ in range(3):
                    self.compute()
            torch.cuda.current_stream().wait_stream(aside)
            self.graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(self.graph):
                self.compute()
            self.rate.fill_(rate)
        self.graph.replay()
        return None


def train(
    training: Training, iterations: int, rate: float, seconds: float, report: Any
) -> dict[str, Any]:
    """Descend; the rate rises, then falls as a cosine of the time or of the number of steps."""
    began = time.perf_counter()
    training.step(1e-6)
    if DEVICE.type == "cuda":
        torch.cuda.synchronize()
    ready = time.perf_counter() - began
    began, i, mean = time.perf_counter(), 0, None
    while True:
        passed = time.perf_counter() - began
        position = max(i / iterations, passed / seconds)
        if position >= 1:
            break
        training.step(rate * min(1.0, position / 0.03) * (1 + math.cos(math.pi * position)) / 2)
        i += 1
        if i % 20 == 0:
            found = training.losses.cpu()  # also waits for the device
            mean = found if mean is None else 0.9 * mean + 0.1 * found
        if i % 500 == 0:
            report(i, mean, time.perf_counter() - began)
    if DEVICE.type == "cuda":
        torch.cuda.synchronize()
    return {
        "iterations": i,
        "preparation_seconds": round(ready, 1),
        "training_seconds": round(time.perf_counter() - began, 1),
    }


@torch.no_grad()
def evaluate(
    model: Any,
    m: int,
    crops: np.ndarray,
    numbers_of: list[int],
    levels: Any = LEVELS,
    boxes: int = 512,
) -> dict[str, float]:
    """Mean PSNR over crops with the noise that belongs to their numbers."""
    clean = tensor(crops)
    result = {}
    for level in levels:
        noise = np.stack(
            [
                np.random.default_rng((int(level), k)).normal(0, level, crops.shape[1:])
                for k in numbers_of
            ]
        )
        noisy = clean + tensor(noise)
        precise(True)
        numbers = model.numbers(tensor([level]), len(clean), boxes, m)
        found = evolve(noisy, numbers, model.variance)
        mse = (found - clean).double().square().mean((1, 2))
        result[f"{level:g}"] = float((10 * torch.log10(255.0**2 / mse)).mean())
    return result


def mean_over_paper(psnr: dict[str, float]) -> float:
    """Return the mean PSNR over the noise levels 10 to 60."""
    return float(np.mean([psnr[f"{s:g}"] for s in PAPER if f"{s:g}" in psnr]))


def split(path: Path, count: int | None) -> tuple[Tensor, np.ndarray, list[int]]:
    """Return crops for training, those held out (every fourth), and the numbers of the latter."""
    pixels = np.load(path)["pixels"][:count].astype(np.float32)
    out = list(range(3, len(pixels), 4))
    keep = [k for k in range(len(pixels)) if k % 4 != 3]
    return tensor(pixels[keep]), pixels[out], out


def save(path: Path, document: dict[str, Any]) -> None:
    """Replace a file whole."""
    temporary = path.with_name(path.name + ".part")
    temporary.write_text(json.dumps(document, indent=1))
    temporary.replace(path)


def line(name: str, psnr: dict[str, float]) -> str:
    """Return one line of a table."""
    return f"{name:32s} {mean_over_paper(psnr):7.3f} | " + " ".join(
        f"{v:6.2f}" for v in psnr.values()
    )


# ---------------------------------------------------------------- commands


def crops_command(a: argparse.Namespace) -> None:
    """Write the training crops to a file."""
    from integrodiff.learning import bsds500

    images = bsds500("train", a.data)
    np.savez(a.crops, pixels=images.pixels.astype(np.uint8))


def compact_command(a: argparse.Namespace) -> None:
    """Train variants of the compact law and evaluate them."""
    train_crops, held_out, numbers_of = split(a.crops, a.count)
    variants = [VARIANTS[n] for n in (a.variants or VARIANTS)]
    if a.start:  # names as in that file, else --start-from
        past = {r["name"]: r["parameters"] for r in json.loads(a.start.read_text())["runs"]}
        variants = [with_start(v, past.get(v.name) or past[a.start_from]) for v in variants]
    began = time.perf_counter()
    model = Compact(variants, a.steps, (a.smallest, a.largest, a.scales))
    training = Training(model, train_crops, a.size, a.batch, a.seed, a.boxes)
    if a.iterations:
        outcome = train(
            training,
            a.iterations,
            a.rate,
            a.seconds,
            lambda i, m, t: print(
                f"{i:6d} {t:6.1f} s  " + " ".join(f"{48.131 - x:.3f}" for x in m.tolist()),
                flush=True,
            ),
        )
    else:
        outcome = {"iterations": 0}
    runs = []
    training.graph = None
    for m, variant in enumerate(variants):
        psnr = evaluate(model, m, held_out, numbers_of)
        runs.append(
            {
                "name": variant.name,
                "numbers": variant.count,
                "rho": variant.rho,
                "order_2": variant.order_2,
                "relative_step": variant.relative,
                "mean_10_to_60": mean_over_paper(psnr),
                "held_out": psnr,
                "parameters": model.found(m),
            }
        )
        print(line(f"{variant.name} ({variant.count})", psnr), flush=True)
        save(
            a.output,
            {
                "settings": settings(a),
                **outcome,
                "runs": runs,
                "seconds": round(time.perf_counter() - began, 1),
            },
        )
    print(outcome, f"{time.perf_counter() - began:.1f} s in all")


def with_start(variant: Variant, found: dict[str, float]) -> Variant:
    """Return a variant that starts from numbers found before."""
    logs = {"alpha", "b", "growth", "tau", "rho", "rho2", "a2", "b2"}
    start = {n: math.log(x) if n in logs else x for n, x in found.items() if n in variant.free}
    return Variant(
        variant.name,
        variant.free,
        variant.rho,
        variant.order_2,
        variant.relative,
        {**variant.start, **start},
    )


def deep_command(a: argparse.Namespace) -> None:
    """Train numbers that are free at each step, and evaluate them."""
    train_crops, held_out, numbers_of = split(a.crops, a.count)
    began = time.perf_counter()
    model = Deep(a.steps, a.first, a.second, set(a.options), a.seed)
    if a.start:
        past = json.loads(a.start.read_text())["parameters"]
        with torch.no_grad():
            for name, value in past.items():
                model.p[name].copy_(tensor(value).expand_as(model.p[name]))
    training = Training(model, train_crops, a.size, a.batch, a.seed, a.boxes)
    document: dict[str, Any] = {"settings": settings(a), "numbers": model.count}

    def report(i: int, m: Tensor, t: float) -> None:
        print(f"{i:6d} {t:6.1f} s  {48.131 - float(m[0]):.3f}", flush=True)
        save(a.output, {**document, "iteration": i, "parameters": model.found()})

    outcome = train(training, a.iterations, a.rate, a.seconds, report)
    training.graph = None
    psnr = evaluate(model, 0, held_out, numbers_of)
    save(
        a.output,
        {
            **document,
            **outcome,
            "mean_10_to_60": mean_over_paper(psnr),
            "held_out": psnr,
            "parameters": model.found(),
            "seconds": round(time.perf_counter() - began, 1),
        },
    )
    print(line(f"deep {a.first}+{a.second} ({model.count})", psnr))
    print(outcome, f"{time.perf_counter() - began:.1f} s in all", flush=True)


def settings(a: argparse.Namespace) -> dict[str, Any]:
    """Return the settings of a run."""
    return {
        k: str(v) if isinstance(v, Path) else v
        for k, v in vars(a).items()
        if k not in ("run", "crops", "output", "start")
    }


def check_command(a: argparse.Namespace) -> None:
    """Compare with the stages of the package, and the operators with their bounds."""
    import integrodiff
    from integrodiff import stages

    torch.set_num_threads(1)
    print("stages of", Path(integrodiff.__file__).parent)
    rng = np.random.default_rng(0)
    image = tensor(rng.uniform(0, 255, (1, 8, 8))).repeat_interleave(5, 1).repeat_interleave(5, 2)
    image = image + tensor(rng.normal(0, 25, (1, 40, 40)))
    for name, variant, steps in (("iad-power", VARIANTS["plus"], 10),):
        shipped: Any = integrodiff.load_model(name)
        law = shipped.law
        model = Compact(
            [
                with_start(
                    variant,
                    {
                        "e": law.exponents[0],
                        "alpha": law.decays[0],
                        "b": law.contrasts[0],
                        "p": law.contrast_exponents[0],
                        "r": shipped.tau_exponent,
                        "growth": shipped.contrast_growth,
                        "drift": shipped.exponent_drift,
                        "tau": shipped.tau,
                    },
                )
            ],
            steps,
            (0.1, 7.0, 8),
        )
        for level in (5.0, 25.0, 60.0):
            with torch.no_grad():
                ours = evolve(image, model.numbers(tensor([level]), 1, 512), model.variance)
            theirs = stages.evolve(image[:, None].double().cpu().numpy(), shipped.evolution(level))
            print(
                f"{name} at {level:g}: largest difference "
                f"{np.abs(ours.cpu().numpy() - theirs[:, 0]).max():.2e}"
            )
    # Order two, isotropic, against the stages.
    term = stages.Term(
        coupling=stages.Coupling(weights=(0.4, 0.7), kind="trace"),
        flux_weights=(0.01, 0.05),
        diffusivity=stages.Exponential(contrasts=(20.0, 9.0)),
        derivatives=stages.HigherDerivatives(order=2),
    )
    evolution = stages.Evolution(scales=(0.5, 1.4), schedule=((term,),), tau=1.0, steps=3)
    theirs = stages.evolve(image[:, None].double().numpy(), evolution)

    def row(x: Any) -> Tensor:
        return tensor(x)[None, :, None].repeat(3, 1, 1)

    zero = row((0.0, 0.0))
    numbers = Numbers(
        zero,
        zero,
        zero + 1,
        row((0.4, 0.7)),
        row((0.01, 0.05)),
        row((20.0, 9.0)),
        zero[:, 0],
        zero[:, 0] + 1,
        None,
        None,
        slice(None),
        slice(None),
    )
    ours = evolve(image, numbers, tensor([0.5, 1.4]) ** 2)
    print(f"second order, isotropic: {np.abs(ours.numpy() - theirs[:, 0]).max():.2e}")
    # The bound: dense operators of one step with frozen gates, in double precision.
    size = 12
    eye = torch.eye(size * size, dtype=torch.float64).view(-1, size, size)
    u = torch.tensor(rng.normal(0, 30, (1, size, size)))
    variance = torch.tensor([0.3, 1.0], dtype=torch.float64) ** 2
    k = blur_matrices("even", size, variance)
    for order, shape, flow, kinds in (
        (1, structure_first, flow_first, ("cells", "odd cells")),
        (2, structure_second, flow_second, ("even", "odd")),
    ):
        ones = torch.ones(2, 1, dtype=torch.float64)
        j = shape(_blur(u, k), 0.5 * ones, 0 * ones[0])
        t = torch.tensor([1.3], dtype=torch.float64)
        j = smoothed_tensor(j, *(blur_matrices(kind, size, t) for kind in kinds))
        j = j[..., : size + 2 - order, : size + 2 - order]
        smaller = (j[0] + j[2]) / 2 - (((j[0] - j[2]) / 2) ** 2 + j[1] ** 2).sqrt()
        many = ones.expand(2, len(eye))
        matrix = -_blur_adjoint(
            flow(_blur(eye, k), j.expand(-1, len(eye), -1, -1), many, 30 * many), k
        )
        matrix = matrix.view(len(eye), -1)
        eigen = torch.linalg.eigvalsh((matrix + matrix.T) / 2)
        bound = symbols(order, variance, 256).sum(1).max()
        print(
            f"order {order}: asymmetry {(matrix - matrix.T).abs().max():.1e}, eigenvalues "
            f"{eigen.min():.2e} to {eigen.max():.4f}, bound {bound:.4f}, smallest eigenvalue of "
            f"J {smaller.min():.3g}, change of the mean {matrix.sum(0).abs().max():.1e}"
        )


def main() -> None:
    """Read the command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    commands = parser.add_subparsers(required=True)
    one = commands.add_parser("crops", help="write the training crops to a file")
    one.add_argument("crops", type=Path)
    one.add_argument("--data", type=Path)
    one.set_defaults(run=crops_command)
    one = commands.add_parser("check", help="compare with the stages of the package")
    one.set_defaults(run=check_command)
    for name, run in (("compact", compact_command), ("deep", deep_command)):
        one = commands.add_parser(name, help=f"train {name} models")
        one.add_argument("crops", type=Path)
        one.add_argument("output", type=Path)
        one.add_argument("--count", type=int, help="number of crops, the first ones")
        one.add_argument("--size", type=int, default=128, help="side of the parts trained on")
        one.add_argument("--batch", type=int, default=4 if name == "compact" else 8)
        one.add_argument("--steps", type=int, default=10)
        one.add_argument("--iterations", type=int, default=500 if name == "compact" else 100000)
        one.add_argument("--seconds", type=float, default=1e9)
        one.add_argument("--rate", type=float, default=0.04)
        one.add_argument("--seed", type=int, default=0)
        one.add_argument("--boxes", type=int, default=64, help="of frequencies, for the bound")
        one.add_argument("--eager", action="store_true", help="do not compile")
        one.add_argument("--start", type=Path, help="file of an earlier run")
        one.set_defaults(run=run)
        if name == "compact":
            one.add_argument("--variants", nargs="+", choices=list(VARIANTS))
            one.add_argument("--start-from", help="variant to start from where one is new")
            one.add_argument("--smallest", type=float, default=0.1)
            one.add_argument("--largest", type=float, default=7.0)
            one.add_argument("--scales", type=int, default=8)
        else:
            one.add_argument("--first", type=int, default=5, help="channels of order one")
            one.add_argument("--second", type=int, default=4, help="channels of order two")
            one.add_argument(
                "--options",
                nargs="*",
                default=["rho", "rho-steps"],
                choices=["rho", "rho-steps", "couplings", "curved", "mix", "pull", "isotropic"],
            )
    arguments = parser.parse_args()
    if getattr(arguments, "eager", False):
        global COMPILE
        COMPILE = False
    arguments.run(arguments)


if __name__ == "__main__":
    main()
