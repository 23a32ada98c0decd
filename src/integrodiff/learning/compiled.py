r"""Forward-mode derivatives for a GPU: tangents carried by hand, the pointwise work compiled.

A blur acts on a tangent as on the image, so the image and its p tangents are smoothed as one
stack. What is left is pointwise in each scale: a scale's share of the structure tensor, and its
flow. These two functions are differentiated by :func:`torch.func.jvp` and compiled, so that
each becomes a few fused kernels instead of some hundred that go through memory one by one.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
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
from integrodiff.stages.diffusion_tensor import diffusion_tensor
from integrodiff.stages.divergence import divergence
from integrodiff.stages.gradient import gradient
from integrodiff.stages.scale_space import cascade, cascade_adjoint
from integrodiff.stages.structure_tensor import (
    SymmetricTensor,
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
            image = noisy.new_zeros((1 + len(point), *noisy.shape))
            image[0] = noisy
            # Every number of parameters is compiled anew.
            with torch._dynamo.config.patch(recompile_limit=256):
                for _ in range(evolution.steps):
                    image = self._step(image, evolution, tangents)
            pixels = clean[0].numel()
            residual = (image[0] - clean).reshape(len(items), pixels)
            return products(residual, image[1:].reshape(len(point), len(items), pixels))

    def _evolution_with_tangents(
        self, point: Any, levels: Sequence[float], noisy: Any
    ) -> tuple[Evolution, Any]:
        """Return the numbers of the process as tensors, and their derivatives."""
        import torch

        names = ("tensor_weights", "flux_weights", "contrasts", "tau")
        found: list[Evolution] = []

        def numbers(logarithms: Any) -> Any:
            model = self._parameterisation.differentiable_model(logarithms)
            found.append(joint_evolution(model, levels, noisy))
            return {name: _tensors(getattr(found[-1], name), noisy) for name in names}

        directions = torch.eye(len(point), dtype=self._dtype, device=self._device)
        values, tangents = torch.func.vmap(
            lambda direction: value_and_tangent(numbers, (point,), (direction,)),
            out_dims=(None, 0),  # type: ignore[arg-type]
        )(directions)
        return replace(found[0], **values), tangents

    def _step(self, stack: Any, evolution: Evolution, tangents: dict[str, Any]) -> Any:
        """Take one time step with an image, first in ``stack``, and its tangents."""
        share, flow = _pieces(
            evolution.discretisation, evolution.theta, evolution.coupling, self._backend
        )
        smoothed = cascade(stack, evolution.scales)
        structure: Any = 0
        for i, image in enumerate(smoothed):
            structure = structure + share(
                (image[0], evolution.tensor_weights[i]),
                (image[1:], tangents["tensor_weights"][i]),
            )
        flows = [
            flow(
                (structure[0], image[0], evolution.flux_weights[i], evolution.contrasts[i]),
                (
                    structure[1:],
                    image[1:],
                    tangents["flux_weights"][i],
                    tangents["contrasts"][i],
                ),
            )
            for i, image in enumerate(smoothed)
        ]
        velocity = cascade_adjoint(flows, evolution.scales)
        stack = stack + evolution.tau * velocity
        stack[1:] += tangents["tau"].reshape(-1, 1, 1, 1, 1) * velocity[0]
        return stack


@lru_cache(maxsize=32)
def _pieces(
    discretisation: Discretisation, theta: float, coupling: Coupling, backend: str
) -> tuple[Any, Any]:
    """Return the two pointwise functions with their tangents, compiled at their first calls."""
    import torch

    def share(image: Any, weight: Any) -> Any:
        tensor = multiscale_structure_tensor([gradient(image, discretisation)], [weight])
        return torch.stack(tensor)

    def flow(structure: Any, image: Any, weight: Any, contrast: Any) -> Any:
        tensor = SymmetricTensor(*structure)
        tensor = trace_tensor(tensor) if coupling == "trace" else tensor
        return weight * divergence(
            image,
            diffusion_tensor(tensor, contrast),
            discretisation=discretisation,
            theta=theta,
        )

    def compiled(function: Any) -> Any:
        return torch.compile(
            _with_tangents(function), fullgraph=True, backend=backend, dynamic=False
        )

    return compiled(share), compiled(flow)


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


def _tensors(values: Any, like: Any) -> Any:
    """Return a number or several as tensors that broadcast over images."""
    import torch

    if isinstance(values, tuple):
        return tuple(_tensors(value, like) for value in values)
    return torch.as_tensor(values, dtype=like.dtype, device=like.device)
