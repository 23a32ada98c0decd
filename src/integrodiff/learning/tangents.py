r"""The interface between training and the engines: a model linearised at its parameters.

For image n with noisy version :math:`f_n`, denoised :math:`u_n(x)` with residual
:math:`r_n = u_n - c_n` against the clean image :math:`c_n` of m pixels, and tangents
:math:`T_n = \partial u_n / \partial x`, everything that a Gauss-Newton method needs is

.. math:: |r_n|^2 / m, \qquad T_n^\top r_n / m, \qquad T_n^\top T_n / m .

These are small, and they are sums over pixels: no tangent image outlives its batch. Any object
with the methods of :class:`Lineariser` can compute them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from integrodiff.learning.images import CleanImages, noise
from integrodiff.learning.parameters import Parameterisation, Vector
from integrodiff.models import ExplicitModel
from integrodiff.stages import Evolution, evolve
from integrodiff.stages._arrays import plain


@dataclass(frozen=True)
class Linearisation:
    """Errors of a model on n images, and their derivatives in p parameters, per pixel.

    Attributes
    ----------
    error : ndarray
        Mean squared error of each image, ``(n,)``.
    gradient : ndarray
        Half its derivative, ``(n, p)``.
    curvature : ndarray
        The Gauss-Newton approximation of half its second derivative, ``(n, p, p)``.
    """

    error: NDArray[np.float64]
    gradient: NDArray[np.float64]
    curvature: NDArray[np.float64]


Item = tuple[int, float]
"""One training example: number of the clean image, and noise level."""


class Lineariser(Protocol):
    """Computes linearisations of one parameterised model on one set of images."""

    def linearise(self, vector: Vector, items: Sequence[Item]) -> Linearisation:
        """Return errors and derivatives at ``vector`` for the given examples, in their order."""


class TorchLineariser:
    """Forward-mode derivatives by PyTorch, through the same stages that denoise.

    Parameters
    ----------
    parameterisation : Parameterisation
        The model and its free parameters.
    images : CleanImages
        The clean images.
    device : str
        ``cpu``, ``cuda``, or ``auto``: the GPU if there is one.
    batch : int, optional
        Images at a time. By default 4 on a CPU and as many as fit on a GPU.
    double : bool
        Compute in float64 instead of float32.
    """

    def __init__(
        self,
        parameterisation: Parameterisation,
        images: CleanImages,
        *,
        device: str = "auto",
        batch: int | None = None,
        double: bool = False,
    ) -> None:
        import torch

        if device == "auto":
            device = "cuda" if torch.cuda.is_available() else "cpu"
        self._parameterisation = parameterisation
        self._device = torch.device(device)
        self._dtype = torch.float64 if double else torch.float32
        self._clean = torch.tensor(images.pixels, dtype=self._dtype, device=self._device)
        self._noise: dict[Item, Any] = {}
        self._batch = batch or self._default_batch(images.pixels[0].size)

    def _default_batch(self, pixels: int) -> int:
        import torch

        if self._device.type == "cpu":
            return 4
        free, _ = torch.cuda.mem_get_info(self._device)
        # Images alive at once in one step, for the value and each of the tangents.
        planes = 50 * (1 + len(self._parameterisation.names))
        return max(1, int(0.7 * free / (planes * pixels * self._clean.element_size())))

    def linearise(self, vector: Vector, items: Sequence[Item]) -> Linearisation:
        """Return errors and derivatives, a batch at a time."""
        parts = [
            self._linearise_batch(vector, items[start : start + self._batch])
            for start in range(0, len(items), self._batch)
        ]
        return Linearisation(*(np.concatenate(part) for part in zip(*parts, strict=True)))

    def _linearise_batch(self, vector: Vector, items: Sequence[Item]) -> Any:
        import torch

        clean, noisy = self._examples(items)
        point = torch.tensor(vector, dtype=self._dtype, device=self._device)
        levels = [level for _, level in items]

        def denoised(logarithms: Any) -> Any:
            model = self._parameterisation.differentiable_model(logarithms)
            return evolve(noisy, self._joint_evolution(model, levels, noisy))

        with torch.no_grad():
            directions = torch.eye(len(point), dtype=self._dtype, device=self._device)
            # The value is the same for all directions and is computed once.
            result, tangents = torch.func.vmap(
                lambda direction: value_and_tangent(denoised, (point,), (direction,)),
                out_dims=(None, 0),  # type: ignore[arg-type]
            )(directions)
            pixels = clean[0].numel()
            residual = (result - clean).reshape(len(items), pixels)
            # Tangents of parameters without effect come without a batch of their own.
            flat = tangents.expand(len(point), *result.shape).reshape(len(point), -1, pixels)
            return products(residual, flat)

    def _joint_evolution(self, model: ExplicitModel, levels: Sequence[float], like: Any) -> Any:
        """Return one process for a batch of images, stable at each of their noise levels."""
        return joint_evolution(
            lambda level: self._parameterisation.evolution(model, level), levels, like
        )

    def _examples(self, items: Sequence[Item]) -> tuple[Any, Any]:
        """Return clean and noisy images as ``(example, channel, row, column)``."""
        import torch

        clean = self._clean[[number for number, _ in items]][:, None]
        return clean, clean + torch.stack([self._noise_of(*item) for item in items])[:, None]

    def _noise_of(self, number: int, level: float) -> Any:
        """Return the noise of an example, cached: drawing it anew costs as much as a step."""
        import torch

        key = (number, level)
        if key not in self._noise:
            drawn = noise(level, number, tuple(self._clean.shape[1:]))
            self._noise[key] = torch.tensor(drawn, dtype=self._dtype, device=self._device)
        return self._noise[key]


class LevelByLevel:
    """Passes examples of one noise level at a time to another lineariser.

    For models whose integration scales depend on the noise level: a batch is smoothed with one
    kernel.
    """

    def __init__(self, inner: Lineariser) -> None:
        self._inner = inner

    def linearise(self, vector: Vector, items: Sequence[Item]) -> Linearisation:
        """Return errors and derivatives in the order of the examples."""
        levels = [level for _, level in items]
        places = [[i for i, s in enumerate(levels) if s == level] for level in sorted(set(levels))]
        parts = [self._inner.linearise(vector, [items[i] for i in group]) for group in places]
        order = np.argsort(np.concatenate(places))
        return Linearisation(
            *(
                np.concatenate([getattr(part, name) for part in parts])[order]
                for name in ("error", "gradient", "curvature")
            )
        )


def joint_evolution(
    evolution_at: Callable[[float], Evolution], levels: Sequence[float], like: Any
) -> Evolution:
    """Return one evolution for a batch of images with different noise levels.

    What depends on the level becomes an array with one value for each image, which broadcasts
    over channels, rows and columns.
    """
    import torch

    distinct = sorted(set(levels))
    evolutions = [evolution_at(level) for level in distinct]
    if len(distinct) == 1:
        return evolutions[0]
    if len({_integration_scales(evolution) for evolution in evolutions}) > 1:
        raise ValueError(
            "integration scales that depend on the noise are differentiated at one noise level "
            "at a time; take LevelByLevel"
        )
    choice = torch.tensor([distinct.index(level) for level in levels], device=like.device)

    def per_image(values: Sequence[Any]) -> Any:
        if all(value is values[0] for value in values) or _same_floats(values):
            return values[0]
        # By way of float64: PyTorch's tangents of scalars may have it where their values do not.
        tensors = [torch.as_tensor(v, device=like.device).double() for v in values]
        return torch.stack(tensors).to(like.dtype)[choice][:, None, None, None]

    numbers = zip(*(evolution.numbers() for evolution in evolutions), strict=True)
    return evolutions[0].with_numbers(tuple(map(per_image, numbers)))


def _integration_scales(evolution: Evolution) -> tuple[float, ...]:
    return tuple(plain(term.coupling.integration_scale) for term in evolution.all_terms())


def _same_floats(values: Sequence[Any]) -> bool:
    """Whether all are the same plain number."""
    return all(isinstance(value, float) and value == values[0] for value in values)


def products(residual: Any, tangents: Any) -> tuple[NDArray[np.float64], ...]:
    """Return the sums over the pixels, accumulated in float64, image by image."""
    import torch

    pixels = residual.shape[-1]
    error, gradient, curvature = [], [], []
    for number in range(len(residual)):
        r, t = residual[number].double(), tangents[:, number].double()
        error.append(r @ r / pixels)
        gradient.append(t @ r / pixels)
        curvature.append(t @ t.T / pixels)
    return tuple(torch.stack(part).cpu().numpy() for part in (error, gradient, curvature))


def value_and_tangent(
    function: Any, point: tuple[Any, ...], direction: tuple[Any, ...]
) -> tuple[Any, Any]:
    """Return a function's value and its derivative in one direction."""
    import torch

    outputs = torch.func.jvp(function, point, direction)
    return outputs[0], outputs[1]
