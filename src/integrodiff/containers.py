"""Images of other libraries: PyTorch tensors, Pillow images and xarray's arrays with named axes.

A result is of the kind that was given. None of the libraries is imported here: an image of theirs
can only be there if they have been imported already.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any, NamedTuple, TypeAlias

import numpy as np
from numpy.typing import ArrayLike, NDArray

ImageLike: TypeAlias = ArrayLike | Any
"""An array, or an image of another library."""


class Container(NamedTuple):
    """An image as an array, and the way back.

    Attributes
    ----------
    array : array_like
        The grey values.
    axes : str, optional
        Its axes, where the container knows them.
    wrapped : callable, optional
        Turns a result into an image of the same kind; None for arrays, which are one already.
    mask : callable
        Turns what was given as a mask into an array for :func:`integrodiff.arrays.array_image`.
    """

    array: Any
    axes: str | None = None
    wrapped: Callable[[NDArray[Any]], Any] | None = None
    mask: Callable[[Any], Any] = lambda mask: mask


def opened(image: Any) -> Container:
    """Return what is in an image of another library; arrays are returned as they are.

    Raises
    ------
    TypeError, ValueError
        If it is of a kind that has to be converted first; the message says how.
    """
    for library, known, open_one in (
        ("PIL.Image", "Image", _pillow),
        ("torch", "Tensor", _torch),
        ("xarray", "DataArray", _xarray),
    ):
        kind = getattr(sys.modules.get(library), known, None)
        if kind is not None and isinstance(image, kind):
            return open_one(image)
    if type(image).__module__.partition(".")[0] == "dask":
        raise TypeError(_dask_message("image"))
    return Container(image)


def _dask_message(name: str) -> str:
    return (
        f"a dask array is computed block by block: call denoise({name}.compute(), ...), or, if "
        f"every block holds whole planes, {name}.map_blocks(denoise, sigma, axes='TYX', "
        f"data_range=..., dtype={name}.dtype)"
    )


_PILLOW_AXES = {
    "L": "YX",
    "I;16": "YX",
    "I": "YX",
    "F": "YX",
    "RGB": "YXS",
    "RGBA": "YXS",
}
"""Modes of Pillow and their axes."""


def _pillow(image: Any) -> Container:
    axes = _PILLOW_AXES.get(image.mode)
    if axes is None:
        raise TypeError(
            f"a Pillow image of the mode {image.mode!r} cannot be denoised; convert it first, for "
            "example by image.convert('RGB')"
        )

    def wrapped(result: NDArray[Any]) -> Any:
        if result.dtype != np.asarray(image).dtype:
            return result  # as floating point, which Pillow cannot hold in colour
        made = sys.modules["PIL.Image"].fromarray(result)
        made.info = dict(image.info)
        return made

    return Container(np.asarray(image), axes, wrapped)


def _torch(image: Any) -> Container:
    torch = sys.modules["torch"]
    if image.dtype == torch.bfloat16:
        raise TypeError("a tensor of bfloat16 cannot be denoised; convert it to float32 first")

    def wrapped(result: NDArray[Any]) -> Any:
        return torch.from_numpy(np.ascontiguousarray(result)).to(image.device)

    def mask(given: Any) -> Any:
        return given.cpu().numpy() if isinstance(given, torch.Tensor) else given

    return Container(image.detach().cpu().numpy(), None, wrapped, mask)


_NAMES = {
    "Y": ("y", "lat", "latitude", "row", "rows", "height", "northing"),
    "X": ("x", "lon", "longitude", "col", "cols", "column", "columns", "width", "easting"),
    "T": ("t", "time", "frame", "frames"),
    "Z": ("z", "depth", "slice", "slices", "level", "altitude"),
    "C": ("c", "band", "bands", "channel", "channels", "wavelength"),
    "S": ("s", "rgb", "sample", "samples", "colour", "color"),
}
"""Common names of axes, by the letters of :mod:`integrodiff.layout`."""

_LETTERS = {name: letter for letter, names in _NAMES.items() for name in names}


def _xarray(image: Any) -> Container:
    if image.chunks is not None:
        raise TypeError(_dask_message("image"))
    letters = [_LETTERS.get(str(name).lower()) for name in image.dims]
    axes = None if None in letters else "".join(filter(None, letters))

    def wrapped(result: NDArray[Any]) -> Any:
        return image.copy(data=result)

    def mask(given: Any) -> Any:
        if not isinstance(given, type(image)):
            return given
        return given.broadcast_like(image).transpose(*image.dims).values

    return Container(image.values, axes, wrapped, mask)
