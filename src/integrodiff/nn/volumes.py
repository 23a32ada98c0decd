"""The gradient of volumes with derivatives that are finite where eigenvalues of J meet."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch

from integrodiff.stages import VolumeGradient, VolumeTensor
from integrodiff.stages.eigenframe import rotated_tensor


@dataclass(frozen=True)
class DifferentiableVolumeGradient(VolumeGradient):
    """The operator of volumes for tensors that carry first derivatives.

    The derivatives of functions of 3 x 3 structure tensors are those of
    :func:`integrodiff.stages.diffusion_tensor.rotated_diffusion_tensor`. Second derivatives are
    refused with a message.
    """

    def prepared(self, field: Any) -> Any:
        """Return structure tensors in their own frame, found once for all scales."""
        if not isinstance(field, VolumeTensor):
            return field
        return rotated_tensor(VolumeTensor(*first_derivatives_only(*field)))


def first_derivatives_only(*tensors: torch.Tensor) -> tuple[torch.Tensor, ...]:
    """Return tensors through which nothing can be differentiated twice in reverse mode."""
    if torch.compiler.is_compiling():  # compiled functions refuse second derivatives themselves
        return tensors
    return tuple(_FirstDerivative.apply(tensor) for tensor in tensors)  # type: ignore[no-untyped-call]


class _FirstDerivative(torch.autograd.Function):
    """The identity; its derivative has none."""

    generate_vmap_rule = True

    @staticmethod
    def forward(tensor: torch.Tensor) -> torch.Tensor:
        return tensor.view_as(tensor)

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        pass

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> Any:
        return _NoDerivative.apply(gradients[0])  # type: ignore[no-untyped-call]

    @staticmethod
    def jvp(ctx: Any, *tangents: torch.Tensor) -> Any:
        return tangents[0].view_as(tangents[0])


class _NoDerivative(torch.autograd.Function):
    """The identity without a derivative."""

    generate_vmap_rule = True

    @staticmethod
    def forward(tensor: torch.Tensor) -> torch.Tensor:
        return tensor.view_as(tensor)

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        pass

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> Any:
        raise NotImplementedError(
            "second derivatives through the structure tensors of volumes are not implemented; "
            "take first derivatives alone, or finite differences of them"
        )
