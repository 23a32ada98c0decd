"""Arrays of several libraries by one set of functions, so that images stay where they are.

NumPy arrays, PyTorch tensors and CuPy arrays are worked on in place, on their device and, on a GPU,
in the current stream of their library. Arrays of other libraries come as one of these by DLPack,
which shares their memory. None of the libraries is imported unless one of its arrays is there, or
one that only DLPack can open.

Whatever leaves the memory of an image for the host goes through :func:`on_host`, or is a single
number. docs/torch.md says what that is, and how much.
"""

from __future__ import annotations

import importlib
import importlib.util
import math
import sys
from typing import Any, TypeAlias

import array_api_compat
import numpy as np
from numpy.typing import NDArray

Array: TypeAlias = Any
"""An array of NumPy, PyTorch or CuPy."""

LIBRARIES = {"torch": "Tensor", "cupy": "ndarray"}
"""Libraries whose arrays stay where they are, and the names of their types."""

_ON_THE_CPU = (1, 3)
"""Types of devices of DLPack whose memory NumPy can read: that of the CPU, pinned or not."""


def is_numpy(array: object) -> bool:
    """Whether something is an array, or a number, of NumPy."""
    return isinstance(array, (np.ndarray, np.generic))


def library_of(array: object) -> str | None:
    """Return which of :data:`LIBRARIES` an array is of, without importing any."""
    for library, name in LIBRARIES.items():
        kind = getattr(sys.modules.get(library), name, None)
        if kind is not None and isinstance(array, kind):
            return library
    return None


def is_on_gpu(array: Any) -> bool:
    """Whether the memory of an array is one that the processor does not read."""
    if is_numpy(array) or not hasattr(array, "__dlpack_device__"):
        return False
    return array.__dlpack_device__()[0] not in _ON_THE_CPU


def namespace(array: Array) -> Any:
    """Return the namespace of an array, with the names of the array API standard."""
    return array_api_compat.array_namespace(array)


def device_of(array: Array) -> Any:
    """Return the device of an array; of NumPy's it is ``"cpu"``."""
    return array_api_compat.device(array)


def dtype_of(array: Array) -> np.dtype[Any]:
    """Return the dtype of an array as that of NumPy.

    Raises
    ------
    TypeError
        If NumPy has no such dtype.
    """
    if is_numpy(array):
        return array.dtype  # type: ignore[no-any-return]
    name = str(array.dtype).rpartition(".")[2]
    try:
        return np.dtype(name)
    except TypeError:
        raise TypeError(
            f"an array of the dtype {name} cannot be denoised; convert it to float32 first"
        ) from None


def in_dtype_of(array: Array, dtype: np.dtype[Any]) -> Array:
    """Return an array in a dtype; itself if it has it."""
    if is_numpy(array):
        return array.astype(dtype, copy=False)
    xp = namespace(array)
    return xp.astype(array, getattr(xp, dtype.name), copy=False)


def made_like(values: NDArray[Any], array: Array) -> Array:
    """Return values of the host where another array is; NumPy arrays as they are."""
    if is_numpy(array):
        return values
    # A copy: memory of the host would be shared, and may be read-only.
    return namespace(array).asarray(np.array(values), device=device_of(array))


def on_host(array: Array) -> NDArray[Any]:
    """Return the values of an array on the host, for the little that is computed there."""
    if is_numpy(array):
        return np.asarray(array)
    if hasattr(array, "detach"):
        array = array.detach()
    here = array_api_compat.to_device(array, "cpu")
    return np.asarray(here if is_numpy(here) else here.numpy())


def moved(array: Any, like: Array, what: str) -> Array:
    """Return an array in the library and on the device of an image.

    Parameters
    ----------
    array : array_like
        What was given beside the image.
    like : array
        The image.
    what : str
        What it is, for messages.

    Raises
    ------
    TypeError
        If it is on a GPU, and the image is elsewhere. Only from the host it is moved.
    """
    if is_on_gpu(array) and (
        not is_on_gpu(like) or array.__dlpack_device__() != like.__dlpack_device__()
    ):
        raise TypeError(
            f"{what} is on a GPU, and the image is elsewhere; move one of them to the other"
        )
    if is_numpy(like):
        if library_of(array) == "torch":
            return array.detach().numpy()
        shares = hasattr(array, "__dlpack__") and not is_numpy(array)
        return np.asarray(np.from_dlpack(array) if shares else array)
    if library_of(array) == library_of(like) and is_on_gpu(array) == is_on_gpu(like):
        return array.detach() if hasattr(array, "detach") else array
    if is_on_gpu(array):
        return namespace(like).from_dlpack(array)
    return made_like(moved(array, np.empty(0), what), like)


def opened_by_dlpack(array: Any, libraries: tuple[str, ...]) -> Array:
    """Return an array as one of the first of some libraries that is installed, in shared memory.

    It is itself if it belongs to one of them, and None if none is there.
    """
    if library_of(array) in libraries:
        return array
    for library in libraries:
        if importlib.util.find_spec(library) is not None:
            found = importlib.import_module(library)
            return found.from_dlpack(array)
    return None


def returned_as(result: Array, given: Any) -> Any:
    """Return a result in the library of what was given, in the memory that it has.

    What only gives its data away, by DLPack, gets an array of the library that opened it.
    """
    if library_of(result) == library_of(given):
        return result
    try:
        library = namespace(given)
    except TypeError:
        return result
    return library.from_dlpack(result)


def share_memory(first: Array, second: Array) -> bool:
    """Whether two arrays of one library may share memory."""
    if hasattr(first, "untyped_storage"):
        ends = [array.untyped_storage().data_ptr() for array in (first, second)]
        return bool(ends[0] == ends[1])
    xp = sys.modules["cupy"]
    return bool(xp.may_share_memory(first, second))


def are_same_memory(first: Array, second: Array) -> bool:
    """Whether two arrays of one library are the same values in memory."""
    if hasattr(first, "data_ptr"):
        places = [(array.data_ptr(), array.stride(), array.dtype) for array in (first, second)]
    else:
        places = [(array.data.ptr, array.strides, array.dtype) for array in (first, second)]
    return bool(places[0] == places[1])


def is_view_of(view: Array, array: Array) -> bool:
    """Whether an array that was reshaped, of one library, is in its own memory."""
    if hasattr(array, "data_ptr"):
        return bool(view.data_ptr() == array.data_ptr())
    return bool(view.data.ptr == array.data.ptr)


def chosen(condition: Array, first: Array, second: Array) -> Array:
    """Return the first array where a condition holds, and the second elsewhere; of equal dtypes.

    On a GPU PyTorch has no ``where`` for unsigned integers of more than one byte. Their bits are
    those of signed ones.
    """
    xp = namespace(first)
    dtype = dtype_of(first)
    if library_of(first) == "torch" and dtype.kind == "u" and dtype.itemsize > 1:
        signed = getattr(xp, f"int{8 * dtype.itemsize}")
        found = xp.where(condition, first.view(signed), second.view(signed))
        return found.view(first.dtype)
    return xp.where(condition, first, second)


def at_least(array: Array, number: float) -> Array:
    """Return the larger of values and a number."""
    return np.maximum(array, number) if is_numpy(array) else array.clip(number, None)


def samples_of(plane: Array) -> list[Array]:
    """Return the samples of a plane ``(row, column)`` or ``(row, column, sample)``, as views."""
    return [plane] if plane.ndim == 2 else [plane[..., n] for n in range(plane.shape[-1])]


def with_samples_first(plane: Array) -> Array:
    """Return a plane ``(row, column)`` or ``(row, column, sample)`` with its samples first."""
    return plane[None] if plane.ndim == 2 else namespace(plane).moveaxis(plane, -1, 0)


def interpolated(values: Array, places: NDArray[np.float64], known: NDArray[np.float64]) -> Array:
    """Return a function that is linear between places, and constant outside, as numpy.interp.

    ``values`` are float64.
    """
    if is_numpy(values):
        return np.interp(values, places, known)
    xp = namespace(values)
    at, heights = made_like(places, values), made_like(known, values)
    number = piece_of(values, at)
    left, right = _taken(at, number), _taken(at, number + 1)
    low, high = _taken(heights, number), _taken(heights, number + 1)
    inside = xp.minimum(xp.maximum(values, left), right)
    return low + (high - low) / (right - left) * (inside - left)


def piece_of(values: Array, ends: Array) -> Array:
    """Return in which piece between increasing ends values are; the outer ones have no end."""
    xp = namespace(values)
    flat = xp.reshape(values, (-1,))
    number = xp.searchsorted(ends, flat, side="right") - 1
    return xp.reshape(xp.clip(number, 0, ends.shape[0] - 2), values.shape)


def _taken(values: Array, numbers: Array) -> Array:
    """Return entries of a short array at numbers of any shape."""
    xp = namespace(values)
    return xp.reshape(xp.take(values, xp.reshape(numbers, (-1,)), axis=0), numbers.shape)


def piecewise_polynomial(values: Array, ends: NDArray[Any], coefficients: NDArray[Any]) -> Array:
    """Return a piecewise polynomial with coefficients ``(power, piece)``, the highest first.

    It is that of :class:`scipy.interpolate.PPoly`.
    """
    at = made_like(ends, values)
    number = piece_of(values, at)
    distance = values - _taken(at, number)
    total = 0.0 * values
    for row in coefficients:
        total = total * distance + _taken(made_like(row, values), number)
    return total


def unit_of_squares(size: float) -> float:
    """Return a power of two near a nonnegative number, or one.

    Divided by it, numbers of this size have squares that neither overflow nor vanish, and keep all
    digits.
    """
    return 2.0 ** (math.frexp(size)[1] - 1) if 0 < size < math.inf else 1.0


def root_mean_square(values: Array, axis: int | None = None) -> Any:
    """Return the root mean square of finite numbers of any size."""
    xp = namespace(values)
    unit = unit_of_squares(float(xp.max(xp.abs(values))))
    return unit * xp.sqrt(xp.mean((values / unit) ** 2, axis=axis))
