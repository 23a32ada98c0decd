r"""Stage 6: derivative operators, each with its exact adjoint, its gates and its symbol.

One scale of one term contributes :math:`-R^* (G\, R v)` to the evolution: the *parts*
:math:`R v` of a smoothed image v, multiplied by a gate G between zero and one, and taken back by
the adjoint. For the gradient this is :math:`\nabla^\top (D \nabla v)`, the right-hand side of
eqs. (1), (6) and (7) at one scale. A :class:`DerivativeOperator` says

- what the parts are (``forward``) and how they come back (``adjoint``);
- which derivatives the coupling is made of (``coupled``), and where they live (``grid``);
- how a gate acts on the parts. A scalar diffusivity multiplies all of them (``scalar_gate``); a
  tensor acts on each index of a derivative (``tensor_gate``): on the one index of a gradient, or on
  both of a Hessian, which becomes :math:`A H A`. Orders three and four have scalar gates only;
- a bound of the eigenvalues of :math:`R^* R`, from which the stable step size follows
  (``symbol``).

A new operator is a new class here; no other stage has to know it.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from integrodiff.stages._arrays import Array, Scalar, namespace
from integrodiff.stages.derivatives import (
    HIGHEST_ORDER,
    derivatives,
    derivatives_adjoint,
    grid_of,
)
from integrodiff.stages.divergence import (
    exchange_adjoint,
    exchange_differences,
    exchange_flux,
    haar_adjoint,
    haar_flux,
)
from integrodiff.stages.eigenframe import eigenframe
from integrodiff.stages.gradient import (
    Discretisation,
    central_gradient_of,
    haar_gradient,
    haar_twist,
)
from integrodiff.stages.haar_volume import (
    triple_weight,
    volume_adjoint,
    volume_coefficients,
    volume_flux,
)
from integrodiff.stages.reflection import Grid
from integrodiff.stages.structure_tensor import (
    SymmetricTensor,
    TensorField,
    VolumeTensor,
    outer_product,
    volume_outer_product,
)
from integrodiff.stages.symbols import (
    ConstantSymbol,
    HigherSymbol,
    LinearSymbol,
    Symbol,
    VolumeSymbol,
)

Parts = Sequence[Array]

_GERSHGORIN = 10.0
_SQRT_2 = math.sqrt(2.0)


class Distances(NamedTuple):
    """How far it is to the next invalid pixel, in steps to one of eight neighbours.

    Attributes
    ----------
    pixels : array
        Zero at invalid pixels.
    cells : array
        The smallest of the four pixels around a cell.
    """

    pixels: NDArray[np.int64]
    cells: NDArray[np.int64]

    def at(self, grid: Grid) -> NDArray[np.int64]:
        """Return the one of the two for a grid."""
        return self.cells if grid == "cells" else self.pixels


class WalkBound(NamedTuple):
    r"""Two bounds of adjoint times gate times operator, without the parts on invalid pixels.

    Attributes
    ----------
    slope : float
        :math:`\kappa`, if the product is at most :math:`\kappa L_M`.
    largest : float
        Bound of its eigenvalues.
    """

    slope: float
    largest: float


class DerivativeOperator(ABC):
    """A linear operator from images to fields of derivatives.

    Attributes
    ----------
    order : int
        Order of the derivatives.
    grid : {"pixels", "cells"}
        Where the coupling, and so the diffusivity, lives.
    dimensions : int
        Two for images, three for volumes.
    """

    order: int
    dimensions: int = 2

    @property
    @abstractmethod
    def grid(self) -> Grid:
        """Where the coupling lives."""

    @property
    @abstractmethod
    def has_tensor_gate(self) -> bool:
        """Whether there is a structure tensor, and a gate that is a function of it."""

    @abstractmethod
    def forward(self, image: Array) -> Parts:
        """Return the parts R v of an image."""

    @abstractmethod
    def adjoint(self, parts: Parts) -> Array:
        """Return the image that the adjoint of ``forward`` makes of gated parts."""

    def coupled(self, parts: Parts) -> Parts:
        """Return the derivatives that the coupling is made of."""
        return parts

    def in_volume(self, spacing: tuple[float, float, float]) -> DerivativeOperator:
        """Return the operator for volumes that is this one in volumes of equal slices.

        Raises
        ------
        ValueError
            If there is none.
        """
        raise ValueError(
            f"derivatives of order {self.order} are for images alone; volumes have order one"
        )

    def outer_product(self, parts: Parts) -> TensorField:
        """Return the structure tensor of one scale, from the coupled derivatives."""
        raise TypeError(f"{type(self).__name__} has no structure tensor")

    def prepared(self, field: Any) -> Any:
        """Return what the diffusivities of all scales need of a coupling's field."""
        return field

    @abstractmethod
    def scalar_gate(self, parts: Parts, factor: Array) -> Parts:
        """Return the parts multiplied by a scalar diffusivity in [0, 1]."""

    def tensor_gate(self, parts: Parts, tensor: Any) -> Parts:
        """Return the parts with a tensor, of eigenvalues in [0, 1], applied to each index."""
        raise TypeError(f"{type(self).__name__} has no tensor gate")

    @abstractmethod
    def symbol(self, decay: float, *, anisotropic: bool) -> Symbol:
        """Return a bound of the eigenvalues of the adjoint times the gate times the operator.

        ``decay`` is that of the blurs around it, twice the square of the scale; ``anisotropic``
        says whether the gate is a tensor.
        """

    @property
    def radius(self) -> int:
        """How far the stencils reach from the pixels around a cell, or from their pixel."""
        return (self.order - (self.grid == "cells")) // 2

    def valid_parts(self, distances: Distances, reach: int, parts: int) -> Parts:
        """Return, for each of the parts, whether all pixels within ``reach`` of it are valid."""
        return (distances.at(self.grid) > self.radius + reach,) * parts

    @abstractmethod
    def walk_bound(self, *, anisotropic: bool) -> WalkBound | None:
        """Return bounds on masked images, or None for parts that invalid pixels switch off.

        See :mod:`integrodiff.stages.domain`.
        """


@dataclass(frozen=True)
class HaarGradient(DerivativeOperator):
    """The Haar coefficients X, Y and E of the 2 x 2 cells between the pixels.

    Attributes
    ----------
    theta : float
        Free parameter of the Haar cell, between 0 and 1/2.
    """

    theta: float = 0.25

    order = 1
    grid = "cells"
    has_tensor_gate = True

    def forward(self, image: Array) -> Parts:
        """Return X, Y and the twist E."""
        return (*haar_gradient(image), haar_twist(image))

    def adjoint(self, parts: Parts) -> Array:
        """Return the adjoint, with cells on the border counted half."""
        return haar_adjoint(parts)

    def coupled(self, parts: Parts) -> Parts:
        """Return the gradient: X and Y."""
        return parts[:2]

    def outer_product(self, parts: Parts) -> SymmetricTensor:
        """Return the products of X and Y."""
        return outer_product(*parts)

    def scalar_gate(self, parts: Parts, factor: Array) -> Parts:
        """Return what the tensor gate does for ``factor`` times the unit matrix."""
        x, y, twist = parts
        return factor * x, factor * y, (2 - 4 * self.theta) * factor * twist

    def tensor_gate(self, parts: Parts, tensor: SymmetricTensor) -> Parts:
        """Return the tensor times the gradient, and the twist times its weight."""
        return haar_flux(parts, tensor, self.theta)

    def in_volume(self, spacing: tuple[float, float, float]) -> DerivativeOperator:
        """Return the 2 x 2 x 2 cell with the same parameter."""
        return VolumeGradient(self.theta, spacing)

    def symbol(self, decay: float, *, anisotropic: bool) -> Symbol:
        """Return the eigenvalues for D = I, which are the largest."""
        return LinearSymbol(slope=2.0, twist=4 * self.theta)

    def walk_bound(self, *, anisotropic: bool) -> WalkBound:
        """Return one, as each side belongs to two cells, and the largest value of the symbol."""
        return WalkBound(slope=1.0, largest=max(4.0, 8 - 16 * self.theta))


@dataclass(frozen=True)
class VolumeGradient(DerivativeOperator):
    """The seven Haar coefficients of the 2 x 2 x 2 cells between the voxels of a volume.

    Attributes
    ----------
    theta : float
        Free parameter of the cell, between 0 and 1/2.
    spacing : (float, float, float)
        Distance of slices, rows and columns.
    units : (float, float, float), optional
        Lengths by which derivatives along slices, rows and columns are divided in the structure
        tensor; the spacing by default.
    twists : (float, float, float)
        Shares, from zero to one, of the twists across slices, rows and columns in the structure
        tensor. With one, that of a cell is the mean over both slices of what either has alone.
    """

    theta: float = 0.25
    spacing: tuple[float, float, float] = (1.0, 1.0, 1.0)
    units: tuple[float, float, float] | None = None
    twists: tuple[float, float, float] = (0.0, 0.0, 0.0)

    order = 1
    grid = "cells"
    has_tensor_gate = True
    dimensions = 3

    def in_volume(self, spacing: tuple[float, float, float]) -> DerivativeOperator:
        """Return the same cell with another spacing."""
        return replace(self, spacing=spacing)

    def forward(self, image: Array) -> Parts:
        """Return the coefficients in voxels: three derivatives, three twists, a triple twist."""
        return volume_coefficients(image)

    def adjoint(self, parts: Parts) -> Array:
        """Return the adjoint, with cells on the border counted half."""
        return volume_adjoint(parts)

    def coupled(self, parts: Parts) -> Parts:
        """Return the gradient in its units, and the twists that have a share in J.

        Of the twists across an axis there are two, for the other axes in the order x, y, z.
        """
        z, y, x = self.units or self.spacing
        lengths = (x, y, z)
        found = [_over(part, length) for part, length in zip(parts, lengths, strict=False)]
        for share, others, pair in self._twisted():
            found += [
                share**0.5 * _over(parts[twist], lengths[axis])
                for axis, twist in zip(others, pair, strict=True)
            ]
        return tuple(found)

    def _twisted(self) -> list[tuple[float, tuple[int, int], tuple[int, int]]]:
        """Return shares of twists, the two other axes, and the indices of the twists with them."""
        across = (((0, 1), (4, 5)), ((0, 2), (3, 5)), ((1, 2), (3, 4)))
        pairs = zip(self.twists, across, strict=True)
        return [(share, others, pair) for share, (others, pair) in pairs if share]

    def outer_product(self, parts: Parts) -> VolumeTensor:
        """Return the products of the derivatives, and those of the twists across the same axis."""
        total = volume_outer_product(*parts[:3])
        for n, (_, others, _) in enumerate(self._twisted()):
            vector = [0 * parts[0]] * 3
            vector[others[0]], vector[others[1]] = parts[3 + 2 * n], parts[4 + 2 * n]
            more = volume_outer_product(*vector)
            total = VolumeTensor(*(a + b for a, b in zip(total, more, strict=True)))
        return total

    def prepared(self, field: Any) -> Any:
        """Return the eigenframe of structure tensors, found once for all scales."""
        return eigenframe(field) if isinstance(field, VolumeTensor) else field

    def scalar_gate(self, parts: Parts, factor: Array) -> Parts:
        """Return what the tensor gate does for ``factor`` times the unit matrix."""
        zero = namespace(factor).zeros_like(factor)
        return self.tensor_gate(parts, VolumeTensor(factor, zero, zero, factor, zero, factor))

    def tensor_gate(self, parts: Parts, tensor: VolumeTensor) -> Parts:
        """Return the tensor, per squared unit, times the gradient; and the weighted twists."""
        z, y, x = self.spacing
        per_voxel = VolumeTensor(
            xx=_over(tensor.xx, x * x),
            xy=_over(tensor.xy, x * y),
            xz=_over(tensor.xz, x * z),
            yy=_over(tensor.yy, y * y),
            yz=_over(tensor.yz, y * z),
            zz=_over(tensor.zz, z * z),
        )
        return volume_flux(parts, per_voxel, self.theta)

    def symbol(self, decay: float, *, anisotropic: bool) -> Symbol:
        """Return the eigenvalues for D = I, which are the largest."""
        return VolumeSymbol(self.theta, triple_weight(self.theta), self.spacing)

    def walk_bound(self, *, anisotropic: bool) -> WalkBound:
        """Return one, as each edge belongs to four cells, and the largest value of the symbol."""
        symbol = VolumeSymbol(self.theta, triple_weight(self.theta), self.spacing)
        return WalkBound(slope=1.0, largest=symbol.largest_value)


def _over(field: Array, length: Scalar) -> Array:
    return field if isinstance(length, float) and length == 1 else field / length


@dataclass(frozen=True)
class ExchangeWithNeighbours(DerivativeOperator):
    """The paper's nonnegativity scheme: differences to the eight neighbours of a pixel.

    The coupling sees central differences. The gate may have negative weights, so the operator is
    not semidefinite for every tensor; see :mod:`integrodiff.stages.divergence`.
    """

    order = 1
    grid = "pixels"
    has_tensor_gate = True

    def in_volume(self, spacing: tuple[float, float, float]) -> DerivativeOperator:
        """Refuse volumes."""
        raise ValueError("the discretisation 'nonnegativity' is for images alone")

    def forward(self, image: Array) -> Parts:
        """Return the differences to four neighbours; those to the others are the same."""
        return exchange_differences(image)

    def adjoint(self, parts: Parts) -> Array:
        """Return what each pixel loses to its neighbours minus what it gains."""
        return exchange_adjoint(parts)

    def coupled(self, parts: Parts) -> Parts:
        """Return central differences."""
        return central_gradient_of(right=parts[0], down=parts[1])

    def outer_product(self, parts: Parts) -> SymmetricTensor:
        """Return the products of the central differences."""
        return outer_product(*parts)

    def scalar_gate(self, parts: Parts, factor: Array) -> Parts:
        """Return what the tensor gate does for ``factor`` times the unit matrix."""
        zero = namespace(factor).zeros_like(factor)
        return self.tensor_gate(parts, SymmetricTensor(factor, zero, factor))

    def tensor_gate(self, parts: Parts, tensor: SymmetricTensor) -> Parts:
        """Return the differences times the means of the weights of the two pixels."""
        return exchange_flux(parts, tensor)

    def symbol(self, decay: float, *, anisotropic: bool) -> Symbol:
        """Return the better of two bounds, see :mod:`integrodiff.stages.stability`."""
        if not anisotropic:
            return LinearSymbol(slope=2.0)
        linear = LinearSymbol(slope=4.0)
        return linear if linear.largest(decay) < _GERSHGORIN else ConstantSymbol(_GERSHGORIN)

    def valid_parts(self, distances: Distances, reach: int, parts: int) -> Parts:
        """Return pairs of valid pixels; around diagonal ones all four pixels must be valid."""
        valid, cells = distances.pixels > reach, distances.cells[1:-1, 1:-1] > reach
        return valid[:, 1:] & valid[:, :-1], valid[1:] & valid[:-1], cells, cells

    def walk_bound(self, *, anisotropic: bool) -> WalkBound:
        """Replace diagonal differences by those along the sides of their cells."""
        return WalkBound(
            slope=2.0 if anisotropic else 1.0, largest=_GERSHGORIN if anisotropic else 8.0
        )


@dataclass(frozen=True)
class HigherDerivatives(DerivativeOperator):
    r"""All mixed derivatives of one order from two to four, at the pixels or at the cells.

    For order two the parts are :math:`u_{xx}, \sqrt2 u_{xy}, u_{yy}`, the Hessian H in an
    orthonormal basis of symmetric matrices. Its structure tensor is :math:`H^2`, and the tensor
    gate takes it to :math:`A H A`. In that basis the gate is symmetric, and its eigenvalues are the
    products of two eigenvalues of A.

    Attributes
    ----------
    order : int
        The order.
    """

    order: int

    def __post_init__(self) -> None:
        if not 2 <= self.order <= HIGHEST_ORDER:
            raise ValueError(
                f"order must be from 2 to {HIGHEST_ORDER} for higher derivatives, got {self.order}"
            )

    @property
    def grid(self) -> Grid:
        """Pixels for even orders, cells for odd ones."""
        return grid_of(self.order)

    @property
    def has_tensor_gate(self) -> bool:
        """Whether the derivatives are a Hessian."""
        return self.order == 2

    def forward(self, image: Array) -> Parts:
        """Return the derivatives, scaled so that the sum of their squares is isotropic."""
        return derivatives(image, self.order)

    def adjoint(self, parts: Parts) -> Array:
        """Return the adjoint, with cells on the border counted half."""
        return derivatives_adjoint(parts, self.order)

    def outer_product(self, parts: Parts) -> SymmetricTensor:
        """Return the square of the Hessian."""
        self._require_hessian()
        xx, mixed, yy = parts
        xy = mixed / _SQRT_2
        return SymmetricTensor(xx=xx * xx + xy * xy, xy=xy * (xx + yy), yy=xy * xy + yy * yy)

    def scalar_gate(self, parts: Parts, factor: Array) -> Parts:
        """Return all derivatives times their common diffusivity."""
        return [factor * part for part in parts]

    def tensor_gate(self, parts: Parts, tensor: SymmetricTensor) -> Parts:
        """Return A H A for the tensor A."""
        self._require_hessian()
        xx, mixed, yy = parts
        xy = mixed / _SQRT_2
        a, b, c = tensor
        first, across = a * xx + b * xy, a * xy + b * yy  # the first row of A H
        other, last = b * xx + c * xy, b * xy + c * yy  # the second
        return first * a + across * b, _SQRT_2 * (first * b + across * c), other * b + last * c

    def _require_hessian(self) -> None:
        if not self.has_tensor_gate:
            raise TypeError(f"derivatives of order {self.order} have no structure tensor")

    def symbol(self, decay: float, *, anisotropic: bool) -> Symbol:
        """Return the eigenvalues for a gate of one, which are the largest."""
        return HigherSymbol(self.order)

    def walk_bound(self, *, anisotropic: bool) -> None:
        """Return None: with a bound by the graph alone, steps would become tiny."""


def derivative_operator(
    order: int = 1, *, discretisation: Discretisation = "haar", theta: float = 0.25
) -> DerivativeOperator:
    """Return the operator of an order; the keywords choose the scheme of order one."""
    if not 1 <= order <= HIGHEST_ORDER:
        raise ValueError(f"order must be from 1 to {HIGHEST_ORDER}, got {order!r}")
    if order > 1:
        return HigherDerivatives(order)
    return HaarGradient(theta) if discretisation == "haar" else ExchangeWithNeighbours()
