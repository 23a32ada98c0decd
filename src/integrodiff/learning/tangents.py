r"""The seam between learning and the engines: a model linearised at its parameters.

For image n with noisy version :math:`f_n`, denoised :math:`u_n(x)` with residual
:math:`r_n = u_n - c_n` against the clean image :math:`c_n` of m pixels, and tangents
:math:`T_n = \partial u_n / \partial x`, everything that a Gauss-Newton method needs is

.. math:: |r_n|^2 / m, \qquad T_n^\top r_n / m, \qquad T_n^\top T_n / m .

These are small, and they are sums over pixels: no tangent image outlives its batch. Any object
with the methods of :class:`Lineariser` can compute them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from integrodiff.learning.images import CleanImages, noise
from integrodiff.learning.parameters import Parameterisation, Vector


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
        planes = 100 * (1 + len(self._parameterisation.names))
        return max(1, int(0.6 * free / (planes * pixels * self._clean.element_size())))

    def linearise(self, vector: Vector, items: Sequence[Item]) -> Linearisation:
        """Return errors and derivatives; examples of one noise level are computed together."""
        count = len(self._parameterisation.names)
        error = np.empty(len(items))
        gradient = np.empty((len(items), count))
        curvature = np.empty((len(items), count, count))
        by_level: dict[float, list[int]] = {}
        for position, (_, level) in enumerate(items):
            by_level.setdefault(level, []).append(position)
        for level, positions in by_level.items():
            for start in range(0, len(positions), self._batch):
                chosen = positions[start : start + self._batch]
                numbers = [items[position][0] for position in chosen]
                parts = self._linearise_batch(vector, numbers, level)
                error[chosen], gradient[chosen], curvature[chosen] = parts
        return Linearisation(error, gradient, curvature)

    def _linearise_batch(self, vector: Vector, numbers: list[int], level: float) -> Any:
        import torch

        clean = self._clean[numbers][:, None]
        noisy = clean + torch.stack([self._noise_of(n, level) for n in numbers])[:, None]
        point = torch.tensor(vector, dtype=self._dtype, device=self._device)

        def denoised(logarithms: Any) -> Any:
            from integrodiff.stages import evolve

            model = self._parameterisation.differentiable_model(logarithms)
            return evolve(noisy, model._evolution(level))

        with torch.no_grad():
            directions = torch.eye(len(point), dtype=self._dtype, device=self._device)
            # The value is the same for all directions and is computed once.
            result, tangents = torch.func.vmap(
                lambda direction: _value_and_tangent(denoised, point, direction),
                out_dims=(None, 0),  # type: ignore[arg-type]
            )(directions)
            pixels = clean[0].numel()
            residual = (result - clean).reshape(len(numbers), pixels).double()
            flat = tangents.reshape(len(point), len(numbers), pixels).double()
            error = (residual**2).sum(-1) / pixels
            gradient = torch.einsum("pnm,nm->np", flat, residual) / pixels
            curvature = torch.einsum("pnm,qnm->npq", flat, flat) / pixels
        return error.cpu().numpy(), gradient.cpu().numpy(), curvature.cpu().numpy()

    def _noise_of(self, number: int, level: float) -> Any:
        """Keep the noise of every example: drawing it anew costs as much as a step."""
        import torch

        key = (number, level)
        if key not in self._noise:
            drawn = noise(level, number, tuple(self._clean.shape[1:]))
            self._noise[key] = torch.tensor(drawn, dtype=self._dtype, device=self._device)
        return self._noise[key]


def _value_and_tangent(function: Any, point: Any, direction: Any) -> tuple[Any, Any]:
    import torch

    outputs = torch.func.jvp(function, (point,), (direction,))
    return outputs[0], outputs[1]
