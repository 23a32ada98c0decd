"""Images of other libraries: tensors, Pillow images, arrays with named axes, arrays by DLPack.

A result is of the kind that was given. None of the libraries is imported here: an image of theirs
can only be there if they have been imported already.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
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
    unit : str
        Unit of the grey values, where the container knows it.
    orientation : int
        How the image is turned for display, in the numbers of EXIF.
    distances : mapping
        Spacing along Z, Y and X in one unit, where the container knows it.
    uneven : str
        Name of an axis of a volume whose coordinates are not evenly spaced, if there is one.
    all_colours : bool
        Whether all samples are colours, so that none of four is transparency.
    """

    array: Any
    axes: str | None = None
    wrapped: Callable[[NDArray[Any]], Any] | None = None
    mask: Callable[[Any], Any] = lambda mask: mask
    unit: str = ""
    orientation: int = 1
    distances: Mapping[str, float] = MappingProxyType({})
    uneven: str = ""
    all_colours: bool = False


def opened(image: Any, function: str = "denoise") -> Container:
    """Return what is in an image of another library; arrays are returned as they are.

    Parameters
    ----------
    image : array_like
        The image.
    function : {"denoise", "estimate_sigma"}
        Name of the function that it was given to, for messages.

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
            if function != "denoise" and getattr(image, "chunks", None) is not None:
                raise TypeError(_to_be_computed(function))
            return open_one(image)
    if type(image).__module__.partition(".")[0] == "dask":
        if function != "denoise":
            raise TypeError(_to_be_computed(function))
        raise TypeError(
            "a dask array is computed block by block: call integrodiff.dask.denoise(image, ...) to "
            "stay lazy, or denoise(image.compute(), ...)"
        )
    if hasattr(image, "__dlpack__") and not isinstance(image, (np.ndarray, np.generic)):
        return _dlpack(image)
    return Container(image)


def check_levels(image: Any, levels: Any) -> None:
    """Refuse a map of noise levels whose named axes or coordinates are not those of the image."""
    kind = getattr(sys.modules.get("xarray"), "DataArray", None)
    if kind is None or not isinstance(image, kind) or not isinstance(levels, kind):
        return
    if levels.ndim < 2 or not set(levels.dims) <= set(image.dims):
        return  # without names, or with others: by position
    dims = tuple(name for name in image.dims if name in levels.dims)
    if levels.dims != dims:
        raise ValueError(
            f"the map of noise levels has the dimensions {levels.dims}, and the image {dims}; "
            "transpose it"
        )
    for name in dims:
        both = name in levels.indexes and name in image.indexes
        if both and not levels.indexes[name].equals(image.indexes[name]):
            raise ValueError(
                f"the map of noise levels and the image have different coordinates along {name}"
            )


def _to_be_computed(function: str) -> str:
    return (
        f"an array of dask is not computed without being asked for: call {function}("
        "image.compute()), or take a part of it that is like the rest, such as one plane"
    )


_ON_THE_CPU = (1, 3)
"""Types of devices of DLPack whose memory NumPy can read: that of the CPU, pinned or not."""


def _dlpack(image: Any) -> Container:
    """Open an array of any library that exchanges arrays by DLPack, such as CuPy or JAX."""
    from array_api_compat import array_namespace, device, to_device

    name = f"{type(image).__module__}.{type(image).__qualname__}"
    on_the_cpu = image.__dlpack_device__()[0] in _ON_THE_CPU
    try:
        # CuPy refuses to give memory of a GPU to NumPy, and copies it if it is asked to.
        host = image if on_the_cpu else to_device(image, "cpu")
        array = host if isinstance(host, np.ndarray) else np.from_dlpack(host)
    except (AttributeError, BufferError, RuntimeError, TypeError, ValueError) as error:
        raise TypeError(
            f"an array of the type {name} and its dtype cannot be read by NumPy ({error}); convert "
            "it to a NumPy array first"
        ) from error

    def wrapped(result: NDArray[Any]) -> Any:
        try:
            library = array_namespace(image)
        except TypeError:  # a type that only gives its data away
            return result
        if on_the_cpu:
            return library.from_dlpack(np.ascontiguousarray(result))
        return library.asarray(result, device=device(image))

    def mask(given: Any) -> Any:
        return opened(given).array

    return Container(array, None, wrapped, mask)


_PILLOW_AXES = {
    "L": "YX",
    "LA": "YX",
    "I;16": "YX",
    "I": "YX",
    "F": "YX",
    "RGB": "YXS",
    "RGBA": "YXS",
    "CMYK": "YXS",
}
"""Modes of Pillow and their axes, without transparency beside grey."""

_KEYED = {"L": "LA", "RGB": "RGBA"}
"""Modes in which one colour may stand for transparency, and those with transparency beside it."""

_ORIENTATION = 0x112
"""Tag of EXIF."""


def _pillow(image: Any) -> Container:
    orientation = image.getexif().get(_ORIENTATION, 1)
    info = dict(image.info)
    if image.mode in ("P", "PA"):
        # The result has more colours than a palette. Transparency of a palette is an index.
        image = image.convert("RGBA" if image.has_transparency_data else "RGB")
        info.pop("transparency", None)
    elif image.mode in _KEYED and isinstance(info.get("transparency"), (int, tuple)):
        # Denoised pixels no longer equal the transparent colour. (A text may have this name, too.)
        image = image.convert(_KEYED[image.mode])
        del info["transparency"]
    axes = _PILLOW_AXES.get(image.mode)
    if axes is None:
        raise TypeError(
            f"a Pillow image of the mode {image.mode!r} cannot be denoised; convert it first, for "
            "example by image.convert('RGB')"
        )
    array = np.asarray(image)
    alpha = array[..., 1] if image.mode == "LA" else None

    def wrapped(result: NDArray[Any]) -> Any:
        if result.dtype != array.dtype:
            return result  # as floating point, which Pillow cannot hold in colour
        pixels = result if alpha is None else np.stack([result, alpha], axis=-1)
        pictures = sys.modules["PIL.Image"]
        if image.mode == "CMYK":
            made = pictures.frombytes(image.mode, image.size, pixels.tobytes())
        else:
            made = pictures.fromarray(pixels)
        made.info = info
        return made

    return Container(
        array if alpha is None else array[..., 0],
        axes,
        wrapped,
        orientation=orientation if orientation in range(9) else 1,
        all_colours=image.mode == "CMYK",
    )


def _torch(image: Any) -> Container:
    torch = sys.modules["torch"]
    if image.dtype == torch.bfloat16:
        raise TypeError("a tensor of bfloat16 cannot be denoised; convert it to float32 first")

    def wrapped(result: NDArray[Any]) -> Any:
        return torch.from_numpy(np.ascontiguousarray(result)).to(image.device)

    def mask(given: Any) -> Any:
        return given.cpu().numpy() if isinstance(given, torch.Tensor) else given

    array = image.detach().cpu().resolve_conj().resolve_neg().numpy()
    return Container(array, None, wrapped, mask)


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


def letters_of(names: Sequence[Any]) -> list[str | None]:
    """Return the letter of each axis by its name, or None if it is not a common one."""
    return [_LETTERS.get(str(name).lower()) for name in names]


_EVEN = 1e-2
"""Relative difference of distances up to which coordinates are evenly spaced."""


def _coordinate_distances(image: Any, axes: str | None) -> tuple[dict[str, float], str]:
    """Return the spacing of a volume by its coordinates, empty if they do not say it.

    The second value is the name of an axis whose coordinates are not evenly spaced.
    """
    found: dict[str, float] = {}
    units = set()
    for name, letter in zip(image.dims, axes if axes and "Z" in axes else "", strict=False):
        if letter not in "ZYX" or name not in image.coords or image.sizes[name] < 2:
            continue
        values = np.asarray(image.coords[name].values)
        if values.dtype.kind not in "iuf":
            continue
        steps = np.abs(np.diff(values.astype(np.float64)))
        mean = float(steps.mean())
        if not np.isfinite(mean) or mean == 0 or np.ptp(steps) > _EVEN * mean:
            return {}, str(name)
        found[letter] = mean
        units.add(str(image.coords[name].attrs.get("units", "")))
    return (found if len(found) == 3 and len(units) == 1 else {}), ""


def _xarray(image: Any) -> Container:
    if image.chunks is not None:
        raise TypeError(
            "an array in chunks is computed block by block: call denoise(image.compute(), ...), "
            "or, to stay lazy, image.copy(data=integrodiff.dask.denoise(image.data, ..., axes=...))"
        )
    letters = letters_of(image.dims)
    axes = None if None in letters else "".join(filter(None, letters))

    def wrapped(result: NDArray[Any]) -> Any:
        return image.copy(data=result)

    def mask(given: Any) -> Any:
        if not isinstance(given, type(image)):
            return given
        # xarray itself would sort coordinates that are not in the same order.
        places = {
            name: image.indexes[name]
            for name in given.dims
            if name in given.indexes
            and name in image.indexes
            and not given.indexes[name].equals(image.indexes[name])
        }
        try:
            given = given.sel(places)
        except KeyError as error:
            along = ", ".join(map(str, places))
            raise ValueError(
                f"the mask does not have all coordinates of the image along {along}"
            ) from error
        return given.broadcast_like(image).transpose(*image.dims).values

    distances, uneven = _coordinate_distances(image, axes)
    unit = str(image.attrs.get("units", ""))
    return Container(
        image.values, axes, wrapped, mask, unit=unit, distances=distances, uneven=uneven
    )
