"""Denoise PyTorch tensors where they are, without a way through NumPy.

It is for requests that can be resolved without looking at grey values: Gaussian noise of given
levels, a given data range, no mask and no map, floating point. What is on a GPU stays there, and
the maps of :mod:`integrodiff.pipeline`, colour space and scale of the model, are computed there
too. All other requests take the way by NumPy arrays; docs/torch.md lists them.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, TypeGuard

import numpy as np
from numpy.typing import NDArray

from integrodiff.layout import Layout
from integrodiff.pipeline import Processes
from integrodiff.request import Request, ResolvedChannel, ResolvedRequest
from integrodiff.units import GreyUnits
from integrodiff.validity import Validity


def is_tensor(image: object) -> TypeGuard[Any]:
    """Whether something is a tensor of PyTorch, which is not imported for this."""
    kind = getattr(sys.modules.get("torch"), "Tensor", None)
    return kind is not None and isinstance(image, kind)


def has_numpy_dtype(image: Any) -> bool:
    """Whether NumPy has the dtype of a tensor; others are refused, see integrodiff.containers."""
    return hasattr(np, dtype_name(image))


def dtype_name(image: Any) -> str:
    """Return the name of the dtype of a tensor, which is that of NumPy."""
    return str(image.dtype).removeprefix("torch.")


def shares(out: Any, image: Any) -> bool:
    """Whether writing one plane could overwrite another that has not been read yet."""
    same = out.data_ptr() == image.data_ptr() and out.stride() == image.stride()
    return not same and out.untyped_storage().data_ptr() == image.untyped_storage().data_ptr()


class _AllValid(Validity):
    """All pixels are valid, as was found out on the device."""

    def depends_on_values(self, dtype: np.dtype[Any]) -> bool:
        return False


@dataclass(frozen=True, eq=False)
class TensorSource:
    """The axes and the dtype of a tensor; its values are not looked at."""

    layout: Layout
    dtype: np.dtype[Any]
    validity: Validity = field(default_factory=_AllValid)
    distances: Mapping[str, float] = field(default_factory=dict)
    units: GreyUnits = field(default_factory=GreyUnits)

    def planes(self) -> Iterator[NDArray[Any]]:
        """Refuse to be read."""
        raise TypeError("a tensor that stays where it is has no planes for NumPy")


def stays(image: Any, request: Request, layout: Layout) -> bool:
    """Whether a request for a tensor is resolved without its values, and all of them are finite."""
    import torch

    return (
        image.dtype in (torch.float16, torch.float32, torch.float64)
        and request.noise == "gaussian"
        and not request.estimates
        and request.levels is None
        and request.map is None
        and not isinstance(request.sigma, str)
        and request.data_range is not None
        and request.max_memory is None
        and not request.has_alpha(layout)
        and bool(torch.isfinite(image).all())
    )


def tensor_source(image: Any, layout: Layout) -> TensorSource:
    """Return what a request is resolved for."""
    return TensorSource(layout, np.dtype(dtype_name(image)))


def denoised_tensor(image: Any, resolved: ResolvedRequest, processes: Processes, out: Any) -> Any:
    """Denoise a tensor plane by plane, or volume by volume; write it to ``out`` and return it.

    ``out`` may be the image itself.
    """
    import torch

    layout = resolved.layout
    around = [letter for letter in layout.plane_axes if letter != "Z" or not layout.is_volume]
    inner = [letter for letter in "SZYX" if letter in layout.axes and letter not in around]
    order = [i for i, letter in enumerate(layout.axes) if letter in around]  # Q may be there twice
    order += [layout.axes.index(letter) for letter in inner]
    source, target = image.detach().permute(order), out.detach().permute(order)
    levels = tuple(level for channel in resolved.channels for level in channel.levels)
    prepared = iter(processes(levels, None))
    ready = [(channel, [next(prepared) for _ in channel.levels]) for channel in resolved.channels]
    lengths = source.shape[: len(around)]
    with torch.no_grad():
        for place in np.ndindex(*lengths):
            number = place[around.index("C")] if "C" in around else 0
            channel, found = ready[number]
            samples = source[place] if "S" in inner else source[place][None]
            plane = _denoised(samples, channel, found)
            target[place].copy_(plane if "S" in inner else plane[0])
    return out


def _denoised(samples: Any, channel: ResolvedChannel, processes: list[Any]) -> Any:
    """Denoise ``(sample, row, column)`` or ``(sample, slice, row, column)`` in its colour space."""
    import torch

    if not processes:
        return samples
    dtype = torch.promote_types(samples.dtype, torch.float32)
    factors = channel.factors[:, None]
    forward, backward = factors * channel.space.forward, channel.space.backward / factors.T
    image = _mixed(forward, samples.to(dtype))
    parts = image.clone()
    for group, process in zip(channel.space.groups, processes, strict=True):
        state = process.start(image[group.samples])
        state.advance()
        parts[group.samples] = state.image()
    result = _mixed(backward, parts)
    if not bool(torch.isfinite(result).all()):
        raise ValueError(
            f"the grey values, up to {float(samples.abs().max()):g}, are too large to compute in "
            f"{str(dtype).removeprefix('torch.')} with a data range of {channel.data_range:g}; "
            "check data_range"
        )
    if samples.dtype == dtype:
        return result
    largest = torch.finfo(samples.dtype).max
    return result.clamp(-largest, largest).to(samples.dtype)


def _mixed(matrix: NDArray[np.float64], samples: Any) -> Any:
    """Return linear combinations of samples."""
    import torch

    if len(matrix) == 1:
        return float(matrix[0, 0]) * samples
    weights = torch.tensor(matrix, dtype=samples.dtype, device=samples.device)
    return torch.tensordot(weights, samples, dims=1)
