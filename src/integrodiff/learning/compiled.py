r"""Forward-mode derivatives for a GPU: tangents carried by hand, the pointwise work compiled.

A blur acts on a tangent as on the image, so the image and its p tangents are smoothed as one
stack. What is left is pointwise in each scale: a scale's share of the structure tensor, and its
flow. These two functions are differentiated by :func:`torch.func.jvp` and compiled, so that
each becomes a few fused kernels instead of some hundred that go through memory one by one.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import Any

from integrodiff.learning.images import CleanImages
from integrodiff.learning.parameters import Parameterisation, Vector
from integrodiff.learning.tangents import (
    Item,
    Linearisation,
    TorchLineariser,
    joint_evolution,
    products,
    value_and_tangent,
)
from integrodiff.stages import Coupling, Discretisation, Evolution
from integrodiff.stages.derivatives import derivatives, derivatives_adjoint
from integrodiff.stages.diffusion_tensor import diffusion_tensor, diffusivity
from integrodiff.stages.divergence import divergence
from integrodiff.stages.gradient import gradient
from integrodiff.stages.scale_space import cascade, cascade_adjoint
from integrodiff.stages.structure_tensor import (
    SymmetricTensor,
    multiscale_energy,
    multiscale_structure_tensor,
    trace_tensor,
)


class CompiledLineariser(TorchLineariser):
    """The same numbers as :class:`TorchLineariser`, in a fraction of the time on a GPU.

    For models whose scales are not trained. The first use compiles, which takes some ten
    seconds.

    Parameters
    ----------
    parameterisation, images, device, batch
        As for :class:`TorchLineariser`.
    backend : str
        Backend of ``torch.compile``.
    """

    def __init__(
        self,
        parameterisation: Parameterisation,
        images: CleanImages,
        *,
        device: str = "auto",
        batch: int | None = None,
        double: bool = False,
        backend: str = "inductor",
    ) -> None:
        super().__init__(parameterisation, images, device=device, batch=batch, double=double)
        self._backend = backend

    def _default_batch(self, pixels: int) -> int:
        return 256 if self._device.type == "cuda" else 4

    def linearise(self, vector: Vector, items: Sequence[Item]) -> Linearisation:
        """Return errors and derivatives, in batches of one size, since each is compiled anew."""
        missing = -len(items) % self._batch
        padded = [*items, *([items[0]] * missing)]
        found = super().linearise(vector, padded)
        count = len(items)
        return Linearisation(found.error[:count], found.gradient[:count], found.curvature[:count])

    def _linearise_batch(self, vector: Vector, items: Sequence[Item]) -> Any:
        import torch

        clean, noisy = self._examples(items)
        point = torch.tensor(vector, dtype=self._dtype, device=self._device)
        levels = [level for _, level in items]
        with torch.no_grad():
            evolution, tangents = self._evolution_with_tangents(point, levels, noisy)
            stack = noisy.new_zeros((1 + len(point), *noisy.shape))
            stack[0] = noisy
            original = stack
            # Every number of parameters is compiled anew.
            with torch._dynamo.config.patch(recompile_limit=256):
                for step in range(evolution.steps):
                    stack = self._step(stack, original, evolution, tangents, step)
            pixels = clean[0].numel()
            residual = (stack[0] - clean).reshape(len(items), pixels)
            return products(residual, stack[1:].reshape(len(point), len(items), pixels))

    def _evolution_with_tangents(
        self, point: Any, levels: Sequence[float], noisy: Any
    ) -> tuple[Evolution, Evolution]:
        """Return the numbers of the process as tensors, and their derivatives."""
        import torch

        found: list[Evolution] = []

        def numbers(logarithms: Any) -> Any:
            model = self._parameterisation.differentiable_model(logarithms)
            found.append(joint_evolution(model, levels, noisy))
            return tuple(
                torch.as_tensor(n, dtype=noisy.dtype, device=noisy.device)
                for n in found[-1].numbers()
            )

        directions = torch.eye(len(point), dtype=self._dtype, device=self._device)
        values, tangents = torch.func.vmap(
            lambda direction: value_and_tangent(numbers, (point,), (direction,)),
            out_dims=(None, 0),  # type: ignore[arg-type]
        )(directions)
        return found[0].with_numbers(values), found[0].with_numbers(tangents)

    def _step(
        self, stack: Any, original: Any, evolution: Evolution, tangents: Evolution, step: int
    ) -> Any:
        """Take one time step with an image, first in ``stack``, and its tangents."""
        smoothed = cascade(stack, evolution.scales)
        flows: list[Any] = [0] * len(smoothed)
        for term, tangent in zip(evolution.terms(step), tangents.terms(step), strict=True):
            share, flow = _pieces(
                term.order, term.coupling, evolution.discretisation, evolution.theta, self._backend
            )
            coupling: Any = 0
            for i, image in enumerate(smoothed):
                coupling = coupling + share(
                    (image[0], term.coupling_weights[i]),
                    (image[1:], tangent.coupling_weights[i]),
                )
            for i, image in enumerate(smoothed):
                flows[i] = flows[i] + flow(
                    (coupling[0], image[0], term.flux_weights[i], term.contrasts[i]),
                    (coupling[1:], image[1:], tangent.flux_weights[i], tangent.contrasts[i]),
                )
        change = cascade_adjoint(flows, evolution.scales)
        if evolution.pull.any():
            change = change + evolution.pull * (original - stack)
            change[1:] += _spread(tangents.pull) * (original - stack)[0]
        stack = stack + evolution.tau * change
        stack[1:] += _spread(tangents.tau) * change[0]
        return stack


@lru_cache(maxsize=32)
def _pieces(
    order: int, coupling: Coupling, discretisation: Discretisation, theta: float, backend: str
) -> tuple[Any, Any]:
    """Return the two pointwise functions with their tangents, compiled at their first calls."""
    import torch

    share, flow = (
        torch.compile(_with_tangents(piece), fullgraph=True, backend=backend, dynamic=False)
        for piece in pointwise(order, coupling, discretisation, theta)
    )
    return share, flow


def pointwise(
    order: int, coupling: Coupling, discretisation: Discretisation, theta: float
) -> tuple[Any, Any]:
    """Return what one scale adds to the coupling of a term, and its flow, as functions.

    The first takes the smoothed image and its weight in the coupling; the second the coupling, the
    smoothed image, its weight in the flow, and the contrast.
    """
    import torch

    def tensor_share(image: Any, weight: Any) -> Any:
        tensor = multiscale_structure_tensor([gradient(image, discretisation)], [weight])
        return torch.stack(tensor)

    def tensor_flow(structure: Any, image: Any, weight: Any, contrast: Any) -> Any:
        tensor = SymmetricTensor(*structure)
        tensor = trace_tensor(tensor) if coupling == "trace" else tensor
        return weight * divergence(
            image,
            diffusion_tensor(tensor, contrast),
            discretisation=discretisation,
            theta=theta,
        )

    def energy_share(image: Any, weight: Any) -> Any:
        return multiscale_energy([derivatives(image, order)], [weight])

    def energy_flow(energy: Any, image: Any, weight: Any, contrast: Any) -> Any:
        factor = diffusivity(energy, contrast)
        parts = [factor * part for part in derivatives(image, order)]
        return -weight * derivatives_adjoint(parts, order)

    return (tensor_share, tensor_flow) if order == 1 else (energy_share, energy_flow)


def _with_tangents(function: Any) -> Any:
    """Return a function of values and stacks of tangents that gives both as one stack."""
    import torch

    def both(values: tuple[Any, ...], tangents: tuple[Any, ...]) -> Any:
        value, tangent = torch.func.vmap(
            lambda *direction: value_and_tangent(function, values, direction),
            out_dims=(None, 0),  # type: ignore[arg-type]
        )(*tangents)
        return torch.cat([value[None], tangent])

    return both


def _spread(tangents: Any) -> Any:
    """Give the tangents of a number, or of one for each image, the axes of a stack of images."""
    return tangents.reshape(len(tangents), -1, 1, 1, 1)
