"""A whole model as a layer."""

from __future__ import annotations

import warnings
from os import PathLike
from typing import Any, Literal

import torch
from torch import nn
from torch.utils.checkpoint import checkpoint as checkpointed

from integrodiff._checks import positive_number
from integrodiff._default_model import DEFAULT_MODEL
from integrodiff.errors import VolumeModelWarning
from integrodiff.models import VOLUME_MODELS, Model, load_model
from integrodiff.nn.laws import ModelLaw, numbers_of
from integrodiff.stages import Evolution, explicit_step
from integrodiff.stages._arrays import namespace

namespace(torch.empty(0))  # once outside of compiled functions, whose compiler cannot look for it


class Diffusion(nn.Module):
    """Denoise images or volumes by a model whose parameters can be trained.

    It computes what :func:`integrodiff.denoise` does for the same model, noise level and data
    range, and is differentiable with respect to the images, the parameters and the noise levels.
    All channels of an image share one structure tensor, as with ``colour="joint"``.

    Parameters
    ----------
    model : str, path or Model
        As in :func:`integrodiff.denoise`.
    data_range : float
        Difference between the largest and smallest grey value that the images could have; it maps
        them to the scale [0, 255] of the model.
    dimensions : {2, 3}
        Three for volumes. ``iad-plus`` then stands for parameters of their own.
    spacing : sequence of float, optional
        Distance of slices, rows and columns of volumes; only ratios matter.
    checkpoint : bool
        Keep one image per step for the backward pass, and compute each step a second time there. By
        default all intermediate results of all steps are kept.
    device, dtype
        Of the parameters. The numbers of the process are computed in double precision in any case.

    Attributes
    ----------
    law : ModelLaw
        Holds the parameters.

    Examples
    --------
    >>> import torch
    >>> from integrodiff.nn import Diffusion
    >>> layer = Diffusion("iad", data_range=1.0)
    >>> noisy = torch.rand(2, 1, 16, 16)
    >>> layer(noisy, 0.1).shape
    torch.Size([2, 1, 16, 16])
    >>> layer(noisy, torch.tensor([0.1, 0.2])).shape
    torch.Size([2, 1, 16, 16])
    """

    def __init__(
        self,
        model: str | PathLike[str] | Model = DEFAULT_MODEL,
        data_range: float = 1.0,
        *,
        dimensions: Literal[2, 3] = 2,
        spacing: tuple[float, float, float] | None = None,
        checkpoint: bool = False,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        if dimensions not in (2, 3):
            raise ValueError(f"dimensions must be 2 or 3, got {dimensions!r}")
        if dimensions == 2 and spacing is not None:
            raise ValueError("spacing is for volumes; give dimensions=3 with it")
        self.data_range = positive_number("data_range", data_range)
        self.dimensions, self.checkpoint = dimensions, checkpoint
        loaded = _loaded(model, dimensions)
        self.law = ModelLaw(
            loaded,
            spacing=_relative(spacing) if dimensions == 3 else None,
            device=device,
            dtype=dtype,
        )

    def model(self) -> Model:
        """Return the model with the present parameters, for files and for other engines."""
        return self.law.model()

    def extra_repr(self) -> str:
        """Return the settings."""
        return (
            f"data_range={self.data_range:g}, dimensions={self.dimensions}, "
            f"steps={self.law.steps}, checkpoint={self.checkpoint}"
        )

    # Only the steps are compiled: all of them have one graph, where the loop would have a long one.
    @torch.compiler.disable(recursive=False)  # type: ignore[no-untyped-call, untyped-decorator]
    def forward(self, images: torch.Tensor, sigma: float | torch.Tensor) -> torch.Tensor:
        """Denoise a batch.

        Parameters
        ----------
        images : tensor
            ``(image, channel, row, column)``, or ``(image, channel, slice, row, column)``, real
            floating point. Half precision is computed in single precision.
        sigma : float or tensor
            Noise level in grey values of the images: a number, or a tensor without axes or with one
            level per image. It must be positive.

        Returns
        -------
        tensor
            Of the shape and dtype of the images, not clipped.
        """
        self._check(images)
        levels = self._levels(images, sigma)
        scale = 255 / self.data_range
        dtype = torch.promote_types(images.dtype, torch.float32)
        with torch.autocast(images.device.type, enabled=False):
            evolution = _numbers(self.law, levels * scale, dtype)
            original = image = images.to(dtype) * scale
            for step in range(evolution.steps):
                image = self._step(image, original, single_step(evolution, step))
            return (image / scale).to(images.dtype)

    def _step(
        self, image: torch.Tensor, original: torch.Tensor, evolution: Evolution
    ) -> torch.Tensor:
        if not (self.checkpoint and torch.is_grad_enabled()):
            return advanced(image, original, evolution)
        try:
            result: torch.Tensor = checkpointed(
                advanced, image, original, evolution, use_reentrant=False, preserve_rng_state=False
            )
        except RuntimeError as error:
            if "saved tensor hooks" not in str(error):
                raise
            raise RuntimeError(
                "torch.func.grad and its relatives cannot differentiate a layer with "
                "checkpoint=True; set its attribute checkpoint to False, or call backward()"
            ) from error
        return result

    @torch.compiler.disable  # type: ignore[untyped-decorator]
    def _check(self, images: torch.Tensor) -> None:
        if not isinstance(images, torch.Tensor) or not images.is_floating_point():
            found = getattr(images, "dtype", type(images).__name__)
            raise TypeError(f"images must be a tensor of real floating point, got {found}")
        if images.ndim != self.dimensions + 2 or 0 in images.shape:
            axes = "image, channel, slice, row, column"
            axes = axes if self.dimensions == 3 else axes.replace("slice, ", "")
            raise ValueError(
                f"images must have the axes ({axes}), none of them empty; got the shape "
                f"{tuple(images.shape)}"
            )

    @torch.compiler.disable  # type: ignore[untyped-decorator]
    def _levels(self, images: torch.Tensor, sigma: float | torch.Tensor) -> torch.Tensor:
        """Return positive noise levels, one or one per image."""
        levels = torch.as_tensor(sigma, dtype=torch.float64, device=images.device)
        if levels.ndim > 1 or (levels.ndim == 1 and len(levels) not in (1, len(images))):
            raise ValueError(
                f"sigma must be a number or a tensor with one level for each of the {len(images)} "
                f"images, got the shape {tuple(levels.shape)}"
            )
        wrong = [level for level in numbers_of(levels) if not 0 < level < float("inf")]
        if wrong:
            raise ValueError(f"sigma must be positive and finite, got {wrong[0]}")
        return levels.reshape(-1)


@torch.compiler.disable  # type: ignore[untyped-decorator]
def single_step(evolution: Evolution, step: int) -> Evolution:
    """Return one step of a process as a process of its own."""
    return Evolution(
        scales=evolution.scales,
        schedule=(evolution.terms(step),),
        tau=evolution.tau,
        steps=1,
        pull=evolution.pull_at(step),
        spacing=evolution.spacing,
    )


def advanced(image: torch.Tensor, original: torch.Tensor, evolution: Evolution) -> torch.Tensor:
    """Return an image after a process of one step."""
    if torch.compiler.is_compiling():
        # Blurs with plain numbers take kernels from caches, which compilers cannot look into.
        scales = tuple(_traced(scale, image) for scale in evolution.scales)
        evolution = Evolution(
            scales=scales,
            schedule=evolution.schedule,
            tau=evolution.tau,
            steps=1,
            pull=evolution.pull,
            spacing=evolution.spacing,
        )
    result: torch.Tensor = explicit_step(image, evolution, 0, original)
    return result


def _traced(scale: Any, like: torch.Tensor) -> Any:
    if isinstance(scale, torch.Tensor) or scale == 0:
        return scale
    return torch.full((1,) * like.ndim, scale, dtype=torch.float64, device=like.device)


@torch.compiler.disable  # type: ignore[untyped-decorator]
def _numbers(law: ModelLaw, levels: torch.Tensor, dtype: torch.dtype) -> Evolution:
    """Return the process in the precision of the images."""
    evolution: Evolution = law(levels)
    return evolution.mapped(lambda n: n.to(dtype) if isinstance(n, torch.Tensor) else n)


def _loaded(model: str | PathLike[str] | Model, dimensions: int) -> Model:
    """Return a model for images or for volumes; warn of one that was not trained for them."""
    if dimensions == 3 and isinstance(model, str):
        model = VOLUME_MODELS.get(model, model)
    found = model if isinstance(model, Model) else load_model(model)
    if dimensions == 3 and found.dimensions != 3:
        warnings.warn(
            "the parameters of this model were trained on images, and blur volumes too much; take "
            "'iad-plus', or train them",
            VolumeModelWarning,
            stacklevel=3,
        )
    return found


def _relative(spacing: tuple[float, float, float] | None) -> tuple[float, float, float]:
    """Return a spacing over the smallest distance."""
    if spacing is None:
        return (1.0, 1.0, 1.0)
    if len(spacing) != 3:
        raise ValueError(f"spacing needs a number for slices, rows and columns, got {spacing!r}")
    z, y, x = (positive_number("spacing", distance) for distance in spacing)
    smallest = min(z, y, x)
    return z / smallest, y / smallest, x / smallest
