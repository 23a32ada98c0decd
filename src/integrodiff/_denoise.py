"""The function most users need, and its form for many images."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from os import PathLike
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from integrodiff._grey_range import grey_range
from integrodiff.engines import FloatImage, Process, get_engine
from integrodiff.errors import NoiseLevelWarning
from integrodiff.models import Model, load_model
from integrodiff.models._validation import nonnegative_number, positive_integer


def denoise(
    image: ArrayLike,
    sigma: float,
    *,
    model: str | PathLike[str] | Model = "iad",
    data_range: float | None = None,
    channel_axis: int | None = None,
    engine: str = "auto",
    as_float: bool = False,
    exact: bool = False,
    threads: int | None = None,
    out: NDArray[Any] | None = None,
    callback: Callable[[int, FloatImage], object] | None = None,
) -> NDArray[Any]:
    """Remove additive Gaussian noise from an image by nonlinear diffusion.

    Parameters
    ----------
    image : array_like
        Grey image (rows, columns), or multichannel image with a ``channel_axis``. Integer or
        real floating point, without NaN or infinite values.
    sigma : float
        Standard deviation of the noise in the grey levels of ``image``. Zero returns a copy.
    model : {"iad", "iad-full", "iid", "eed", "pm"}, path or Model
        Name of a model that comes with the package, a model file, or a model.
    data_range : float, optional
        Difference of the largest and smallest grey value that the image could have; maps the
        image to the scale [0, 255] that the parameters were trained on. If not given: 255 for
        uint8; for other integers the smallest of 8, 10, 12, 14, 16, 24, 32 and 64 bits that
        holds the largest value, so 4095 for 12-bit data stored as uint16; for floating point 1
        if the values are in [0, 1] but for noise, and else an error. Give it for the images of
        a series, so that all of them get the same.
    channel_axis : int, optional
        Axis of the channels. They share one structure tensor, so that edges stay aligned; their
        noise is taken to have the same ``sigma`` in all of them.
    engine : {"auto", "numpy", "native", "torch"}
        Who computes. ``auto`` takes the fastest that is present.
    as_float : bool
        Return an integer image's result as floating point, neither rounded nor clipped.
    exact : bool
        Take no shortcuts. By default the engine ``native`` smooths large scales on a coarser grid
        and cuts off kernels; on photographs its result is within 0.05 grey levels of 255.
    threads : int, optional
        Number of threads of the engine ``native``. By default the environment variable
        ``INTEGRODIFF_THREADS``, or one for each processor.
    out : ndarray, optional
        Where to write the result: of the shape of the image and of the dtype of the result. It
        may be the image itself.
    callback : callable, optional
        Called as ``callback(step, image)`` after each step, counted from one, with a
        floating-point image in the layout and the grey levels of the input.

    Returns
    -------
    ndarray
        The denoised image in the shape of the input. Floating-point input keeps its dtype;
        integer input comes back in its own, rounded and clipped to the range of the dtype, or,
        with ``as_float``, in the floating-point dtype of the computation: float32, but float64
        for integers of more than 16 bits.

    Raises
    ------
    TypeError, ValueError
        If an argument is not usable; the message says what was expected.

    Warns
    -----
    NoiseLevelWarning
        If the noise level is beyond twice the highest or below half the lowest level that the
        model was trained for.

    Notes
    -----
    The computation runs in float32, and in float64 for float64 images and wide integers. The
    mean grey value of every channel is preserved and the Euclidean norm does not grow, up to
    rounding and clipping.

    Examples
    --------
    >>> import numpy as np
    >>> from integrodiff import denoise
    >>> noisy = np.random.default_rng(0).normal(100, 20, (64, 64)).astype(np.float32)
    >>> result = denoise(noisy, sigma=20, data_range=255, engine="numpy")
    >>> bool(result.std() < 0.2 * noisy.std())
    True
    """
    plan = Plan(
        sigma,
        model=model,
        data_range=data_range,
        channel_axis=channel_axis,
        engine=engine,
        as_float=as_float,
        exact=exact,
        threads=threads,
    )
    return plan._run(image, out, callback)


class Plan:
    """The settings of :func:`denoise`, for many images.

    Kernels and memory are kept from one image to the next, which is worth most for small images
    of one shape: video, tiles, batches. One plan may be used from several threads at once.

    Parameters
    ----------
    sigma, model, data_range, channel_axis, engine, as_float, exact, threads
        As in :func:`denoise`.

    Examples
    --------
    >>> import numpy as np
    >>> from integrodiff import Plan
    >>> plan = Plan(20, data_range=255, engine="numpy")
    >>> frames = np.random.default_rng(0).normal(100, 20, (3, 32, 32)).astype(np.float32)
    >>> for frame in frames:
    ...     result = plan(frame, out=frame)
    >>> bool(frames.std() < 10)
    True
    """

    def __init__(
        self,
        sigma: float,
        *,
        model: str | PathLike[str] | Model = "iad",
        data_range: float | None = None,
        channel_axis: int | None = None,
        engine: str = "auto",
        as_float: bool = False,
        exact: bool = False,
        threads: int | None = None,
    ) -> None:
        self._sigma = nonnegative_number("sigma", sigma)
        self._model = model if isinstance(model, Model) else load_model(model)
        self._data_range = data_range
        self._channel_axis = channel_axis
        self._engine = get_engine(engine)
        self._as_float = as_float
        self._exact = exact
        self._threads = None if threads is None else positive_integer("threads", threads)
        self._processes: dict[float, Process] = {}

    def __call__(
        self,
        image: ArrayLike,
        *,
        out: NDArray[Any] | None = None,
        callback: Callable[[int, FloatImage], object] | None = None,
    ) -> NDArray[Any]:
        """Denoise one image; ``out`` and ``callback`` are as in :func:`denoise`."""
        return self._run(image, out, callback)

    def _run(
        self,
        image: ArrayLike,
        out: NDArray[Any] | None,
        callback: Callable[[int, FloatImage], object] | None,
    ) -> NDArray[Any]:
        array = _checked_image(image, self._channel_axis)
        computing = np.dtype(_computing_dtype(array.dtype))
        dtype = computing if self._as_float and array.dtype.kind != "f" else array.dtype
        if out is not None:
            _check_out(out, array.shape, dtype)
        factor = 255.0 / grey_range(array, self._sigma, self._data_range)
        working = array.astype(computing, copy=True)
        if self._sigma > 0:
            working = self._evolved(working, factor, callback)
        result = _in_dtype(working, dtype)
        if out is None:
            return result
        out[...] = result
        return out

    def _evolved(
        self,
        image: FloatImage,
        factor: float,
        callback: Callable[[int, FloatImage], object] | None,
    ) -> FloatImage:
        """Map to the scale [0, 255] with channels first, evolve there, and map back."""
        _warn_outside_training(self._model, self._sigma * factor)
        grey = self._channel_axis is None
        axis = -3 if self._channel_axis is None else self._channel_axis

        def original(array: FloatImage) -> FloatImage:
            moved = array[0] if grey else np.moveaxis(array, -3, axis)
            return moved / array.dtype.type(factor)

        def observe(step: int, array: FloatImage) -> None:
            if callback is not None:
                callback(step, original(array))

        canonical = image[None] if grey else np.moveaxis(image, axis, -3)
        scaled = canonical * image.dtype.type(factor)
        result = original(self._process(factor)(scaled, None if callback is None else observe))
        if not np.isfinite(result).all():
            raise ValueError(
                f"the grey values, up to {np.abs(image).max():g}, are too large for {image.dtype} "
                f"computations with a data range of {255 / factor:g}; check data_range"
            )
        return np.ascontiguousarray(result)

    def _process(self, factor: float) -> Process:
        """Return the process for a grey range; only that of the last one is kept."""
        process = self._processes.get(factor)
        if process is None:
            process = self._engine.prepare(
                self._model.evolution(self._sigma * factor),
                exact=self._exact,
                threads=self._threads,
            )
            self._processes = {factor: process}
        return process


def _check_out(out: object, shape: tuple[int, ...], dtype: np.dtype[Any]) -> None:
    """Refuse an array that the result does not fit into as it is."""
    if not isinstance(out, np.ndarray):
        raise TypeError(f"out must be a NumPy array, got {type(out).__name__}")
    if out.shape != shape or out.dtype != dtype:
        raise ValueError(
            f"out must have the shape {shape} and the dtype {dtype} of the result, got "
            f"{out.shape} and {out.dtype}"
        )
    if not out.flags.writeable:
        raise ValueError("out is read-only")


def _checked_image(image: ArrayLike, channel_axis: int | None) -> NDArray[Any]:
    """Return the image as an array that can be denoised, or say why it cannot."""
    if isinstance(image, np.ma.MaskedArray):
        raise TypeError("masked arrays are not supported: fill the masked pixels first")
    array = np.asarray(image)
    kind = array.dtype.kind
    if kind not in "iuf":
        what = {"b": "a boolean mask", "c": "complex", "O": "an array of Python objects"}
        raise TypeError(
            "image must be integer or real floating point, got "
            f"{what.get(kind, f'dtype {array.dtype}')}"
        )
    if channel_axis is None:
        if array.ndim != 2:
            raise ValueError(
                f"image must have two axes, rows and columns, got shape {array.shape}; for "
                "colour or other channels give channel_axis (often -1), and denoise the images "
                "of a stack one by one"
            )
    else:
        if isinstance(channel_axis, bool) or not isinstance(channel_axis, (int, np.integer)):
            raise TypeError(f"channel_axis must be an integer or None, got {channel_axis!r}")
        if array.ndim != 3:
            raise ValueError(
                "an image with channel_axis must have three axes: rows, columns and channels; "
                f"got shape {array.shape}"
            )
        if not -3 <= channel_axis < 3:
            raise ValueError(
                f"channel_axis {channel_axis} does not exist in an image of shape {array.shape}"
            )
    if array.size == 0:
        raise ValueError(f"image is empty: its shape is {array.shape}")
    if kind == "f" and not np.isfinite(array).all():
        bad = int(array.size - np.isfinite(array).sum())
        raise ValueError(
            f"image has {bad} NaN or infinite values; replace them first, for example by the "
            "median of their neighbours"
        )
    return array


def _computing_dtype(dtype: np.dtype[Any]) -> type[np.floating[Any]]:
    """Float32 wherever it holds all grey values of the dtype, and float64 otherwise."""
    exact_in_float32 = dtype.itemsize <= 2 or (dtype.kind == "f" and dtype.itemsize <= 4)
    return np.float32 if exact_in_float32 else np.float64


def _in_dtype(image: FloatImage, dtype: np.dtype[Any]) -> NDArray[Any]:
    """Convert to the dtype of the input; integers are rounded and clipped."""
    if dtype.kind == "f":
        return image.astype(dtype, copy=False)
    limits = np.iinfo(dtype)
    rounded = np.rint(image)
    # The largest 64-bit integers have no float of their own: a comparison decides, not a cast.
    result = np.where(rounded >= float(limits.max), limits.max, 0).astype(dtype)
    inside = (rounded > float(limits.min)) & (rounded < float(limits.max))
    result[rounded <= float(limits.min)] = limits.min
    result[inside] = rounded[inside].astype(dtype)
    return result


def _warn_outside_training(model: Model, sigma: float) -> None:
    """Say so if the noise level is far from all that the parameters were trained for."""
    levels = model.provenance.get("noise_levels")
    if not levels:
        return
    lowest, highest = min(levels), max(levels)
    if not lowest / 2 <= sigma <= 2 * highest:
        warnings.warn(
            f"the noise level, {sigma:.3g} on the scale [0, 255], is far outside the range "
            f"{lowest:g} to {highest:g} that the model was trained for; check sigma and "
            "data_range",
            NoiseLevelWarning,
            stacklevel=5,
        )
