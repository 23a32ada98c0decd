"""The main function, :func:`denoise`, and :class:`Denoiser`, which reuses its settings."""

from __future__ import annotations

from functools import lru_cache
from os import PathLike
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from integrodiff._default_model import DEFAULT_MODEL
from integrodiff.arrays import array_image
from integrodiff.colour import Colour
from integrodiff.engines import Process, get_engine
from integrodiff.models import MODEL_NAMES, Model, load_model
from integrodiff.pipeline import Pipeline, StepCallback
from integrodiff.request import Level, Noise, Request, Sigma, Source, resolve


def denoise(
    image: ArrayLike,
    sigma: Sigma = None,
    *,
    noise_psd: NDArray[Any] | None = None,
    model: str | PathLike[str] | Model = DEFAULT_MODEL,
    data_range: float | None = None,
    axes: str | None = None,
    channel_axis: int | None = None,
    colour: Colour = "auto",
    noise: Noise = "gaussian",
    engine: str = "auto",
    as_float: bool = False,
    exact: bool = False,
    threads: int | None = None,
    out: NDArray[Any] | None = None,
    callback: StepCallback | None = None,
) -> NDArray[Any]:
    """Remove Gaussian or photon noise from an image by nonlinear diffusion.

    Parameters
    ----------
    image : array_like
        Grey image (rows, columns), or an image with further axes that ``axes`` or
        ``channel_axis`` describes. Integer or real floating point, without NaN or infinity.
    sigma : float, sequence of float, array, or mapping, optional
        Standard deviation of the noise in grey levels of ``image``: one number, one for each
        channel or colour sample, or a map (rows, columns) if it varies over the image. Zero
        returns a copy. For noise that is correlated between neighbouring pixels, a mapping from
        scales in pixels to noise levels, such as ``{0.5: 10, 2: 25}``; white noise seen at a scale
        as strongly has this level. If not given, the noise is estimated for each channel and
        colour sample, with its levels per scale unless it is white, as the median over up to
        nine planes.
    noise_psd : array, optional
        Power spectrum of the noise, instead of ``sigma``, as in BM3D: the expectation of
        ``abs(fft2(noise))**2`` for an image of noise of this shape.
    model : str, path or Model
        Name of a model that comes with the package (``iad-plus``, ``iad-fast``, ``iad-deep``,
        ``iad-full``, ``iad``, ``iid``, ``eed``, ``pm``), a model file, or a model.
    data_range : float, optional
        Difference between the largest and smallest grey value that the image could have; it maps
        the image to the scale [0, 255] on which the parameters were trained. It need not be
        given: by default the scale follows from the ratio of structure to noise in the image, so
        that the unit of grey values has no effect. Give it when the images of a series are
        denoised in separate calls and all must be treated alike. For photon noise it is measured
        from the offset.
    axes : str, optional
        One letter for each axis: Y and X for rows and columns, S for colour samples (``"YXS"``
        is an RGB image), C for channels that are denoised independently, each with its own noise
        level and range, T for frames that share both, Z for the slices of a volume, Q for any
        other axis whose planes are denoised one by one.
    channel_axis : int, optional
        Axis of the colour samples of a single image, as in scikit-image: ``channel_axis=-1`` is
        ``axes="YXS"``. Transparency is not a colour sample; leave it out.
    colour : {"auto", "opponent", "joint", "separate"}
        How colour samples are denoised. ``opponent``: red, green and blue as luminance and colour
        differences, which have a structure tensor each. ``joint``: one structure tensor for all
        samples. ``separate``: one for each sample. ``auto`` is ``opponent`` for three samples and
        ``joint`` otherwise.
    noise : {"gaussian", "poisson", "poisson-gaussian"}, PoissonGaussian or UnknownDetector
        ``gaussian`` noise has the level ``sigma``. ``poisson`` is for photon counts,
        :class:`integrodiff.PoissonGaussian` for a detector with known gain, offset and readout
        noise. ``poisson-gaussian`` estimates them from the image; with
        :class:`integrodiff.UnknownDetector` the offset can be given.
    engine : {"auto", "native", "numpy", "torch"}
        Compute backend. ``auto`` takes the fastest that is available.
    as_float : bool
        Return the result of an integer image as floating point, neither rounded nor clipped.
    exact : bool
        Take no shortcuts. By default the engine ``native`` smooths large scales on a coarser grid
        and truncates kernels; on photographs this changes the result by less than 0.05 grey
        levels on the scale [0, 255].
    threads : int, optional
        Number of threads of the engine ``native``. By default the environment variable
        ``INTEGRODIFF_THREADS``, or one per processor.
    out : ndarray, optional
        Array for the result, with the shape of the image and the dtype of the result. It may be
        the image itself.
    callback : callable, optional
        Called with a :class:`integrodiff.Step` after each step. ``step.number`` of
        ``step.total`` are done, over all planes and, in colour, first luminance and then colour
        differences; ``step.image()`` computes the plane as it is now. An exception that it
        raises ends the computation.

    Returns
    -------
    ndarray
        The denoised image in the shape of the input. Floating-point input keeps its dtype;
        integer input returns its own dtype, rounded and clipped, or, with ``as_float``, the dtype
        of the computation: float32, or float64 for integers of more than 16 bits.

    Raises
    ------
    TypeError, ValueError
        If an argument is invalid; the message says what was expected.

    Warns
    -----
    NoiseLevelWarning
        If the noise cannot be estimated well, or with the given ``data_range`` the noise level is
        more than twice the highest, or less than half the lowest level that the model was trained
        for.
    SliceBySliceWarning
        If the image is a volume, whose slices are denoised one by one.

    Notes
    -----
    The computation runs in float32, and in float64 for float64 images and wide integers. The
    mean grey value of every channel is preserved and the Euclidean norm does not grow, up to
    rounding and clipping. If samples have different noise levels, the norm weights each sample
    by the inverse of its level. For photon noise, this holds for the stabilised image.

    With a map of noise levels, the model is evaluated at their root mean square, and the structure
    tensor is divided by the relative variance at each pixel, so that all contrasts are
    proportional to the local noise level. The properties above still hold. Levels below a
    thousandth of the root mean square are raised to it.

    Examples
    --------
    >>> import numpy as np
    >>> from integrodiff import denoise
    >>> noisy = np.random.default_rng(0).normal(100, 20, (64, 64)).astype(np.float32)
    >>> result = denoise(noisy, sigma=20, data_range=255, engine="numpy")
    >>> bool(result.std() < 0.2 * noisy.std())
    True
    """
    denoiser = Denoiser(
        sigma,
        noise_psd=noise_psd,
        model=model,
        data_range=data_range,
        axes=axes,
        channel_axis=channel_axis,
        colour=colour,
        noise=noise,
        engine=engine,
        as_float=as_float,
        exact=exact,
        threads=threads,
    )
    return denoiser(image, out=out, callback=callback)


class Denoiser:
    """The settings of :func:`denoise`, prepared once and applied to many images.

    Kernels and memory are reused from one image to the next, which helps most for many small
    images of the same shape: video, tiles, batches. Several threads may share one denoiser.

    Parameters
    ----------
    sigma, noise_psd, model, data_range, axes, channel_axis, colour, noise, engine, as_float, \
    exact, threads
        As in :func:`denoise`.

    Examples
    --------
    >>> import numpy as np
    >>> from integrodiff import Denoiser
    >>> denoiser = Denoiser(20, data_range=255, engine="numpy")
    >>> frames = np.random.default_rng(0).normal(100, 20, (3, 32, 32)).astype(np.float32)
    >>> for frame in frames:
    ...     result = denoiser(frame, out=frame)
    >>> bool(frames.std() < 10)
    True
    """

    def __init__(
        self,
        sigma: Sigma = None,
        *,
        noise_psd: NDArray[Any] | None = None,
        model: str | PathLike[str] | Model = DEFAULT_MODEL,
        data_range: float | None = None,
        axes: str | None = None,
        channel_axis: int | None = None,
        colour: Colour = "auto",
        noise: Noise = "gaussian",
        engine: str = "auto",
        as_float: bool = False,
        exact: bool = False,
        threads: int | None = None,
    ) -> None:
        self.request = Request(
            model=_loaded(model),
            sigma=sigma,
            noise_psd=noise_psd,
            noise=noise,
            data_range=data_range,
            colour=colour,
            as_float=as_float,
            exact=exact,
            threads=threads,
        )
        self.engine = get_engine(engine).name
        self._axes, self._channel_axis = axes, channel_axis
        self._prepared: dict[Level, Process] = {}

    def __call__(
        self,
        image: ArrayLike,
        *,
        out: NDArray[Any] | None = None,
        callback: StepCallback | None = None,
    ) -> NDArray[Any]:
        """Denoise one image; ``out`` and ``callback`` are as in :func:`denoise`."""
        source = array_image(image, axes=self._axes, channel_axis=self._channel_axis)
        array, layout = source.array, source.layout
        dtype = self.request.result_dtype(array.dtype)
        if out is not None:
            _check_out(out, array.shape, dtype)
        pipeline = self.pipeline(source)
        result = np.empty(array.shape, dtype) if out is None or _overlap(out, array) else out
        denoised = pipeline.run(source.planes(), callback)
        for target, plane in zip(layout.planes(result), denoised, strict=True):
            target[...] = plane
        if out is None or out is result:
            return result
        out[...] = result
        return out

    def pipeline(self, source: Source) -> Pipeline:
        """Resolve the request for an array or an open file; return the pipeline for its planes."""
        return Pipeline(resolve(self.request, source), self._processes)

    def _processes(self, levels: tuple[Level, ...]) -> tuple[Process, ...]:
        """Return a process for each noise level; reuse those of the previous image."""
        known = self._prepared
        found = {level: known.get(level) or self._process(level) for level in levels}
        self._prepared = found
        return tuple(found[level] for level in levels)

    def _process(self, level: Level) -> Process:
        request = self.request
        return get_engine(self.engine).prepare(
            level.evolution(request.model),
            exact=request.exact,
            threads=request.threads,
            relative_noise=None if request.map is None else request.map.relative,
        )

    def __getstate__(self) -> dict[str, Any]:
        # Prepared processes hold memory of the engine, which cannot be sent to another process.
        return {**self.__dict__, "_prepared": {}}


def _loaded(model: str | PathLike[str] | Model) -> Model:
    """Return the model; shipped models are read once."""
    if isinstance(model, Model):
        return model
    return _shipped(model) if model in MODEL_NAMES else load_model(model)


@lru_cache(maxsize=len(MODEL_NAMES))
def _shipped(name: str) -> Model:
    return load_model(name)


def _check_out(out: object, shape: tuple[int, ...], dtype: np.dtype[Any]) -> None:
    """Refuse an array whose type, shape or dtype is not that of the result."""
    if not isinstance(out, np.ndarray):
        raise TypeError(f"out must be a NumPy array, got {type(out).__name__}")
    if out.shape != shape or out.dtype != dtype:
        raise ValueError(
            f"out must have the shape {shape} and the dtype {dtype} of the result, got "
            f"{out.shape} and {out.dtype}"
        )
    if not out.flags.writeable:
        raise ValueError("out is read-only")


def _overlap(out: NDArray[Any], image: NDArray[Any]) -> bool:
    """Whether writing one plane could overwrite another that has not been read yet."""
    in_place = (
        out.dtype == image.dtype
        and out.strides == image.strides
        and out.__array_interface__["data"][0] == image.__array_interface__["data"][0]
    )
    return not in_place and np.may_share_memory(out, image)
