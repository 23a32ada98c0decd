"""The function most users need, and its form for many images."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from os import PathLike
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from integrodiff._checked_image import checked_image
from integrodiff._checks import (
    nonnegative_number,
    positive_integer,
)
from integrodiff._default_model import DEFAULT_MODEL
from integrodiff._given_noise import (
    Noise,
    noise_levels,
    photon_noise,
    split_map,
    stabilised_range,
)
from integrodiff.colour import Colour, ColourSpace, colour_space
from integrodiff.engines import FloatImage, Process, get_engine
from integrodiff.errors import NoiseLevelWarning
from integrodiff.grey_range import grey_range
from integrodiff.models import MODEL_NAMES, Model, load_model
from integrodiff.noise.photons import PoissonGaussian


def denoise(
    image: ArrayLike,
    sigma: float | Sequence[float] | NDArray[Any] | None = None,
    *,
    model: str | PathLike[str] | Model = DEFAULT_MODEL,
    data_range: float | None = None,
    channel_axis: int | None = None,
    colour: Colour = "auto",
    noise: Noise = "gaussian",
    engine: str = "auto",
    as_float: bool = False,
    exact: bool = False,
    threads: int | None = None,
    out: NDArray[Any] | None = None,
    callback: Callable[[int, FloatImage], object] | None = None,
) -> NDArray[Any]:
    """Remove Gaussian noise, or that of counted photons, from an image by nonlinear diffusion.

    Parameters
    ----------
    image : array_like
        Grey image (rows, columns), or multichannel image with a ``channel_axis``. Integer or
        real floating point, without NaN or infinite values.
    sigma : float, sequence of float, or array, optional
        Standard deviation of the noise in the grey levels of ``image``, for all channels or for
        each; or a map of it, an array (rows, columns), where it is not the same everywhere. Zero
        returns a copy. If not given, it is estimated for every channel by
        :func:`integrodiff.estimate_sigma`.
    model : str, path or Model
        Name of a model that comes with the package (``iad-plus``, ``iad-fast``, ``iad-deep``,
        ``iad-full``, ``iad``, ``iid``, ``eed``, ``pm``), a model file, or a model.
    data_range : float, optional
        Difference of the largest and smallest grey value that the image could have; maps the
        image to the scale [0, 255] that the parameters were trained on. If not given: 255 for
        uint8; for other integers the smallest of 8, 10, 12, 14, 16, 24, 32 and 64 bits that
        holds the largest value, so 4095 for 12-bit data stored as uint16; for floating point 1
        if the values are in [0, 1] but for noise, and else an error. Give it for the images of
        a series, so that all of them get the same. With noise of photons, counted from the
        offset; if not given, found from the values.
    channel_axis : int, optional
        Axis of the channels. Transparency is no channel in this sense; leave it out.
    colour : {"auto", "opponent", "joint", "separate"}
        How channels are denoised. ``opponent`` is for red, green and blue: luminance and colour
        differences by themselves. ``joint``: one structure tensor for all channels. ``separate``:
        each channel by itself. ``auto`` takes three channels for red, green and blue, and is
        ``joint`` for any other number.
    noise : {"gaussian", "poisson", "poisson-gaussian"} or PoissonGaussian
        ``gaussian`` noise has the same level everywhere, that of ``sigma``. ``poisson`` is for
        photon counts, :class:`integrodiff.PoissonGaussian` for a detector with gain, offset and
        readout noise, which ``poisson-gaussian`` estimates from the image.
    engine : {"auto", "native", "numpy", "torch"}
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
        floating-point image in the layout and the grey levels of the input. The groups of
        channels that ``colour`` makes are denoised one after the other, and the steps of all of
        them are counted: luminance first, then colours.

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
    rounding and clipping. With different noise levels this norm weighs each channel by the inverse
    of its own, and for noise of photons it is that of the stabilised image, whose mean is kept.

    With a map of noise levels the model is the one for their root mean square, and structure counts
    in proportion to the inverse of the local variance: at each pixel all contrasts are
    proportional to its own noise level, as they are between images. What is preserved and bounded
    is the same. Levels below a thousandth of the root mean square count as that.

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
        colour=colour,
        noise=noise,
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
    sigma, model, data_range, channel_axis, colour, noise, engine, as_float, exact, threads
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
        sigma: float | Sequence[float] | NDArray[Any] | None = None,
        *,
        model: str | PathLike[str] | Model = DEFAULT_MODEL,
        data_range: float | None = None,
        channel_axis: int | None = None,
        colour: Colour = "auto",
        noise: Noise = "gaussian",
        engine: str = "auto",
        as_float: bool = False,
        exact: bool = False,
        threads: int | None = None,
    ) -> None:
        self._relative_noise: NDArray[np.float64] | None = None
        if sigma is not None:
            if np.ndim(sigma) == 2:
                sigma, self._relative_noise = split_map(np.asarray(sigma))
            elif np.ndim(sigma) == 0:
                nonnegative_number("sigma", sigma)
        self._sigma = sigma
        self._model = _loaded(model)
        self._data_range = data_range
        self._channel_axis = channel_axis
        self._colour: Colour = colour
        self._noise: Noise = noise
        self._engine = get_engine(engine)
        self._as_float = as_float
        self._exact = exact
        self._threads = None if threads is None else positive_integer("threads", threads)
        self._prepared: dict[float, _Prepared] = {}

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
        array = checked_image(image, self._channel_axis)
        computing = np.dtype(_computing_dtype(array.dtype))
        dtype = computing if self._as_float and array.dtype.kind != "f" else array.dtype
        if out is not None:
            _check_out(out, array.shape, dtype)
        axis = self._channel_axis
        photons = photon_noise(self._noise, self._sigma, array, axis)
        working = array.astype(computing, copy=False)
        if photons is None:
            sigmas = noise_levels(self._sigma, array, axis)
            loudest = self._loudest(array.shape)
            grey_levels = grey_range(array, float(sigmas.max()) * loudest, self._data_range)
        else:
            working = photons.stabilise(working)
            sigmas = np.ones(1 if axis is None else array.shape[axis])
            grey_levels = stabilised_range(working, photons, self._data_range)
        space = colour_space(self._colour, sigmas)
        if space.groups:
            factor = 255 / grey_levels
            _warn_outside_training(self._model, float(np.sqrt(np.mean(sigmas**2))) * factor)
            prepared = self._prepare([group.sigma * factor for group in space.groups])
            process = _Process(prepared, factor, space, axis, photons)
            working = process(working, callback)
        result = _in_dtype(working, dtype)
        if result is array:  # no noise, nothing to do: the result is the caller's own all the same
            result = array.copy()
        if out is None:
            return result
        out[...] = result
        return out

    def _loudest(self, shape: tuple[int, ...]) -> float:
        """Return the highest relative noise level; a map for other images is refused."""
        if self._relative_noise is None:
            return 1.0
        axis = self._channel_axis
        size = shape if axis is None else tuple(np.delete(shape, axis).tolist())
        if self._relative_noise.shape != size:
            raise ValueError(
                f"the map of noise levels has the shape {self._relative_noise.shape}, and the "
                f"image has {size[0]} rows and {size[1]} columns"
            )
        return float(self._relative_noise.max())

    def _prepare(self, levels: Sequence[float]) -> list[_Prepared]:
        """Return processes for noise levels on the scale [0, 255]; only the last ones are kept."""
        known = self._prepared
        found = {level: known.get(level) or self._prepared_for(level) for level in levels}
        self._prepared = found
        return [found[level] for level in levels]

    def _prepared_for(self, level: float) -> _Prepared:
        evolution = self._model.evolution(level)
        process = self._engine.prepare(
            evolution,
            exact=self._exact,
            threads=self._threads,
            relative_noise=self._relative_noise,
        )
        return _Prepared(process, evolution.steps)


def _loaded(model: str | PathLike[str] | Model) -> Model:
    """Return the model; those of the package are read once."""
    if isinstance(model, Model):
        return model
    return _shipped(model) if model in MODEL_NAMES else load_model(model)


@lru_cache(maxsize=len(MODEL_NAMES))
def _shipped(name: str) -> Model:
    return load_model(name)


class _Prepared(NamedTuple):
    """What runs an evolution, and how many steps it has."""

    run: Process
    steps: int


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


@dataclass(frozen=True)
class _Process:
    """All that happens between the input and the output image, both floating point.

    Attributes
    ----------
    prepared : list of _Prepared
        One for each group of channels.
    factor : float
        From the grey levels of the image to the scale [0, 255].
    space : ColourSpace
        How channels are denoised.
    channel_axis : int, optional
        Axis of the channels.
    photons : PoissonGaussian, optional
        What undoes the Anscombe transform.
    """

    prepared: list[_Prepared]
    factor: float
    space: ColourSpace
    channel_axis: int | None
    photons: PoissonGaussian | None

    def __call__(
        self, image: FloatImage, callback: Callable[[int, FloatImage], object] | None
    ) -> FloatImage:
        """Evolve the groups of channels one after the other."""
        axis = self.channel_axis
        canonical = image[None] if axis is None else np.moveaxis(image, axis, 0)
        scale = image.dtype.type(self.factor)
        current = self.space.separated(canonical) * scale
        steps_before = 0
        for group, (run, steps) in zip(self.space.groups, self.prepared, strict=True):

            def observe(
                step: int, evolved: FloatImage, rows: slice = group.rows, before: int = steps_before
            ) -> None:
                current[rows] = evolved
                if callback is not None:
                    callback(before + step, self._original(current / scale))

            channels = current[group.rows]
            if callback is None:
                channels[...] = run(channels, None)
            else:
                # A copy: what is watched is written over the channels, and an evolution with a
                # pull still needs the input.
                channels[...] = run(channels.copy(), observe)
            steps_before += steps
        result = self._original(np.divide(current, scale, out=current))
        if not np.isfinite(result).all():
            raise ValueError(
                f"the grey values, up to {np.abs(image).max():g}, are too large for {image.dtype} "
                f"computations with a data range of {255 / self.factor:g}; check data_range"
            )
        return np.ascontiguousarray(result)

    def _original(self, channels: FloatImage) -> FloatImage:
        """Return the layout and the grey levels of the input."""
        mixed = self.space.mixed(channels)
        image = mixed[0] if self.channel_axis is None else np.moveaxis(mixed, 0, self.channel_axis)
        return image if self.photons is None else self.photons.restore(image)


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
            stacklevel=4,
        )
