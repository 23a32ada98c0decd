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
    products,
    value_and_tangent,
)
from integrodiff.stages import (
    Coupling,
    CouplingKind,
    DerivativeOperator,
    Evolution,
    Exponential,
    SymmetricTensor,
    Term,
    cascade,
    cascade_adjoint,
    gated,
)
from integrodiff.stages._arrays import plain
from integrodiff.stages.structure_tensor import mixed_tensor


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
        """Return errors and derivatives in batches of one size; another would be compiled anew."""
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
            found.append(self._joint_evolution(model, levels, noisy))
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
            share, flow = _pieces(term.derivatives, term.coupling.kind, self._backend)
            field: Any = 0
            for i, image in enumerate(smoothed):
                field = field + share(
                    (image[0], term.coupling.weights[i]),
                    (image[1:], tangent.coupling.weights[i]),
                )
            field = _mixed(_integrated(field, term, tangent), term, tangent)
            contrasts, slopes = term.diffusivity.contrasts, tangent.diffusivity.contrasts
            for i, image in enumerate(smoothed):
                flows[i] = flows[i] + flow(
                    (field[0], image[0], term.flux_weights[i], contrasts[i]),
                    (field[1:], image[1:], tangent.flux_weights[i], slopes[i]),
                )
        change = cascade_adjoint(flows, evolution.scales)
        pull = evolution.pull_at(step)
        if pull.any():
            change = change + pull * (original - stack)
            change[1:] += _spread(tangents.pull_at(step)) * (original - stack)[0]
        stack = stack + evolution.tau * change
        stack[1:] += _spread(tangents.tau) * change[0]
        return stack


@lru_cache(maxsize=32)
def _pieces(operator: DerivativeOperator, kind: CouplingKind, backend: str) -> tuple[Any, Any]:
    """Return the two pointwise functions with their tangents, compiled at their first calls."""
    import torch

    share, flow = (
        torch.compile(_with_tangents(piece), fullgraph=True, backend=backend, dynamic=False)
        for piece in pointwise(operator, kind)
    )
    return share, flow


def pointwise(operator: DerivativeOperator, kind: CouplingKind) -> tuple[Any, Any]:
    """Return what one scale adds to the field of a coupling, and its flow, as functions.

    The first takes the smoothed image and its weight in the coupling; the second the field, the
    smoothed image, its weight in the flow, and the contrast. Tensor fields are stacks of their
    three entries.
    """
    import torch

    def share(image: Any, weight: Any) -> Any:
        coupling = Coupling(kind=kind, weights=(weight,))
        field = coupling.summed(operator, {0: operator.forward(image)})
        return torch.stack(field) if kind == "tensor" else field

    def flow(field: Any, image: Any, weight: Any, contrast: Any) -> Any:
        term = Term(
            derivatives=operator,
            coupling=Coupling(kind=kind, weights=(1.0,)),
            diffusivity=Exponential(contrasts=(contrast,)),
            flux_weights=(weight,),
        )
        field = SymmetricTensor(*field) if kind == "tensor" else field
        return -weight * operator.adjoint(gated(operator.forward(image), field, term, 0))

    return share, flow


def _integrated(stack: Any, term: Term, tangent: Term) -> Any:
    """Smooth a field, first in ``stack``, and its tangents at the integration scale."""
    scale = term.coupling.integration_scale
    if plain(scale) == 0:
        return stack

    def smoothed(field: Any, width: Any) -> Any:
        import torch

        coupling = replace(term.coupling, integration_scale=width)
        if coupling.kind == "trace":
            return coupling.integrated(field, term.derivatives.grid)
        return torch.stack(coupling.integrated(SymmetricTensor(*field), term.derivatives.grid))

    slopes = tangent.coupling.integration_scale
    return _with_tangents(smoothed)((stack[0], scale), (stack[1:], slopes))


def _mixed(stack: Any, term: Term, tangent: Term) -> Any:
    """Mix the eigenvalues of a tensor field, first in ``stack``, and of its tangents."""
    mix, slopes = term.coupling.mix, tangent.coupling.mix
    if term.coupling.kind == "trace" or not (mix.any() or slopes.any()):
        return stack

    def mixed(field: Any, share: Any) -> Any:
        import torch

        return torch.stack(mixed_tensor(SymmetricTensor(*field), share))

    return _with_tangents(mixed)((stack[0], mix), (stack[1:], slopes))


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
    """Reshape tangents of a number, shared or per image, to broadcast over a stack of images."""
    return tangents.reshape(len(tangents), -1, 1, 1, 1)
