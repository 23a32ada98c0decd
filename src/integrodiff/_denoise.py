"""The main function, :func:`denoise`, and :class:`Denoiser`, which reuses its settings."""

from __future__ import annotations

import hashlib
import warnings
from collections.abc import Sequence
from copy import copy
from dataclasses import replace
from functools import lru_cache, partial
from os import PathLike
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from integrodiff._default_model import DEFAULT_MODEL
from integrodiff.arrays import ArrayImage, array_image, image_on_device
from integrodiff.blocks.grid import Block, blocks_within, halo
from integrodiff.colour import Colour
from integrodiff.containers import ImageLike, check_levels, opened
from integrodiff.engines import Engine, Process, get_engine, get_engine_for, get_gpu_engine
from integrodiff.errors import EngineUnavailableError, VolumeModelWarning, outside
from integrodiff.install import install_hint
from integrodiff.layout import Layout
from integrodiff.models import MODEL_NAMES, VOLUME_MODELS, Model, load_model
from integrodiff.namespaces import (
    Array,
    are_same_memory,
    device_of,
    dtype_of,
    is_numpy,
    is_on_gpu,
    library_of,
    moved,
    namespace,
    opened_by_dlpack,
    returned_as,
    share_memory,
)
from integrodiff.noise.maps import NoiseMap
from integrodiff.pipeline import Pipeline, Processes, StepCallback, volume_bytes
from integrodiff.request import (
    Level,
    Noise,
    Request,
    ResolvedChannel,
    ResolvedRequest,
    Sigma,
    Source,
    computing_dtype,
    resolve,
)
from integrodiff.stages import Evolution
from integrodiff.validity import Mask

_NUMPY = np.empty(0)
"""Stands for images that NumPy holds."""


def denoise(
    image: ImageLike,
    sigma: Sigma = None,
    *,
    noise_psd: NDArray[Any] | None = None,
    model: str | PathLike[str] | Model = DEFAULT_MODEL,
    data_range: float | None = None,
    axes: str | None = None,
    spacing: Sequence[float] | None = None,
    channel_axis: int | None = None,
    colour: Colour = "auto",
    noise: Noise = "gaussian",
    engine: str = "auto",
    as_float: bool = False,
    exact: bool = False,
    threads: int | None = None,
    max_memory: int | str | None = None,
    mask: ArrayLike | None = None,
    out: NDArray[Any] | None = None,
    callback: StepCallback | None = None,
) -> NDArray[Any]:
    """Remove Gaussian or photon noise from an image by nonlinear diffusion.

    Parameters
    ----------
    image : array_like
        Grey image (rows, columns), or an image with further axes that ``axes`` or
        ``channel_axis`` describes. Integer or real floating point. Pixels with NaN or infinity are
        invalid, and so are the masked pixels of a masked array. A masked array, PyTorch tensor,
        CuPy array, Pillow image or ``xarray.DataArray`` comes back as one; the latter two know
        their axes. Arrays on a GPU are :doc:`denoised there </torch>`.
    sigma : float, sequence of float, array, mapping or "map", optional
        Standard deviation of the noise in grey levels of ``image``: one number, one for each
        channel or colour sample, or a map (rows, columns) if it varies over the image, for volumes
        also (slices, rows, columns). Zero returns a copy. For noise that is correlated between
        neighbouring pixels, a mapping from scales in pixels to noise levels, such as
        ``{0.5: 10, 2: 25}``; the level at a scale is that of white noise that is equally strong
        there. If not given, the noise is estimated for each channel and colour sample, with its
        levels per scale unless it is white, as the median over up to nine planes. If the level
        clearly varies over an image of one channel, a map is estimated; ``"map"`` asks for one in
        any case. Both are for white noise.
    noise_psd : array, optional
        Power spectrum of the noise, instead of ``sigma``, as in BM3D: the expectation of
        ``abs(fft2(noise))**2`` for an image of noise of this shape.
    model : str, path or Model
        Name of a model that comes with the package (``iad-plus``, ``iad-fast``, ``iad-deep``,
        ``iad-full``, ``iad``, ``iid``, ``eed``, ``pm``), a model file, or a model. For volumes,
        ``iad-plus`` selects parameters of its own; see :doc:`/volumes`.
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
        level and range, T for frames that share both, Z for the slices of a volume, which is
        denoised in three dimensions, Q for any other axis whose planes are denoised one by one.
    spacing : sequence of float, optional
        Distance of neighbouring voxels of a volume along the axes Z, Y and X, in their order in
        ``axes``. Only ratios matter. By default all three are equal.
    channel_axis : int, optional
        Axis of the colour samples of a single image, as in scikit-image: ``channel_axis=-1`` is
        ``axes="YXS"``.
    colour : {"auto", "opponent", "joint", "separate"}
        How colour samples are denoised. ``opponent``: red, green and blue as luminance and colour
        differences, which have a structure tensor each. ``joint``: one structure tensor for all
        samples. ``separate``: one for each sample. ``auto`` is ``opponent`` for three samples and
        ``joint`` otherwise. With ``auto`` and ``opponent`` the last of four samples is
        transparency, which is returned as it is; ``joint`` and ``separate`` denoise all four.
    noise : {"gaussian", "poisson", "poisson-gaussian", "rician"}, PoissonGaussian or \
    UnknownDetector
        ``gaussian`` noise has the level ``sigma``. ``poisson`` is for photon counts,
        :class:`integrodiff.PoissonGaussian` for a detector with known gain, offset and readout
        noise. ``poisson-gaussian`` estimates them from the image; with
        :class:`integrodiff.UnknownDetector` the offset can be given. ``rician`` is the noise of
        magnitudes in MRI: ``sigma`` is its level in the real and the imaginary part, and the result
        is an unbiased estimate of the magnitude without noise.
    engine : {"auto", "native", "numpy", "torch", "cuda"}
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
    max_memory : int or str, optional
        Limit in bytes, or a text such as ``"2G"``, for the memory that a volume takes beside
        ``image`` and the result. A volume that takes more is denoised in blocks of slices that
        overlap; the result differs by less than 0.02 grey levels on the scale [0, 255]. For the
        engine ``native``. Images take the memory of one plane, and are not divided.
    mask : array of bool, optional
        True at valid pixels: in the shape of the image without its axis S, or one that broadcasts
        to it, or rows and columns alone. Invalid pixels are returned unchanged and influence
        neither valid pixels nor estimates. A pixel is invalid if one of its samples is.
    out : ndarray, optional
        Array for the result, with the shape of the image and the dtype of the result. It may be
        the image itself. For a PyTorch tensor or a CuPy array it is one on the same device.
    callback : callable, optional
        Called with a :class:`integrodiff.Step` after each step. ``step.number`` is the number of
        completed steps and ``step.total`` that of all steps, over all planes; in colour, luminance
        comes first, then the colour differences. ``step.image()`` computes the current plane. An
        exception that it raises ends the computation.

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
    NoValidPixelsWarning
        If the image, or a plane of it, has no valid pixel.
    VolumeModelWarning
        If the image is a volume, and the parameters of the model were trained on images, or its
        voxels are much longer in one direction than in another.

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

    With invalid pixels, the mean over the valid ones is preserved, also in every connected part of
    them. Steps may have to be smaller then, and ``step.total`` larger.

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
        spacing=spacing,
        channel_axis=channel_axis,
        colour=colour,
        noise=noise,
        engine=engine,
        as_float=as_float,
        exact=exact,
        threads=threads,
        max_memory=max_memory,
    )
    return denoiser(image, mask=mask, out=out, callback=callback)


class Denoiser:
    """The settings of :func:`denoise`, prepared once and applied to many images.

    Kernels and memory are reused from one image to the next, which helps most for many small
    images of the same shape: video, tiles, batches. Several threads may share one denoiser.

    Parameters
    ----------
    sigma, noise_psd, model, data_range, axes, spacing, channel_axis, colour, noise, engine, \
    as_float, exact, threads, max_memory
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
        spacing: Sequence[float] | None = None,
        channel_axis: int | None = None,
        colour: Colour = "auto",
        noise: Noise = "gaussian",
        engine: str = "auto",
        as_float: bool = False,
        exact: bool = False,
        threads: int | None = None,
        max_memory: int | str | None = None,
    ) -> None:
        self.request = Request(
            model=_loaded(model),
            sigma=_owned(sigma),
            noise_psd=_owned(noise_psd),
            noise=noise,
            data_range=data_range,
            spacing=spacing,
            colour=colour,
            as_float=as_float,
            exact=exact,
            threads=threads,
            max_memory=max_memory,
        )
        self.engine = get_engine(engine).name
        self.asked_for = engine
        self._model_name = model if isinstance(model, str) else None
        self._axes, self._channel_axis = axes, channel_axis
        self._prepared: dict[tuple[_Place, Level], Process] = {}
        self._masked: dict[_MaskedKey, Process] = {}
        self._masked_on_device: list[_MaskedOnDevice] = []
        self._requests: dict[_Place, Request] = {}

    def __call__(
        self,
        image: ImageLike,
        *,
        mask: ArrayLike | None = None,
        out: NDArray[Any] | None = None,
        callback: StepCallback | None = None,
    ) -> NDArray[Any]:
        """Denoise one image; ``mask``, ``out`` and ``callback`` are as in :func:`denoise`."""
        if not is_numpy(image) and hasattr(image, "__dlpack__"):
            engine = self._engine_where_it_is(image)
            if engine is not None:
                return self._on_device(image, engine, mask, out, callback)  # type: ignore[no-any-return]
            if library_of(image) == library_of(out) == "torch":
                return self._tensor_by_numpy(image, mask, out, callback)  # type: ignore[no-any-return]
        return self._array(image, mask, out, callback)

    def _tensor_by_numpy(
        self, image: Any, mask: ArrayLike | None, out: Any, callback: StepCallback | None
    ) -> Any:
        """Denoise a tensor into another one by an engine that takes NumPy arrays."""
        _check_out_on_device(out, image, self.request.result_dtype(dtype_of(image)))
        if is_on_gpu(out):
            return out.copy_(self._array(image, mask, None, callback))
        self._array(image, mask, out.detach().numpy(), callback)
        return out

    def _engine_where_it_is(self, image: Any) -> Engine | None:
        """Return the engine that denoises an array of another library where it is.

        Return None for an array in host memory, which NumPy can read as well, unless the engine
        ``torch`` is requested. Return None also if the requested engine takes NumPy arrays only.
        """
        if is_on_gpu(image):
            engine = get_gpu_engine(self.asked_for, library=library_of(image))
            return engine if engine.libraries else None
        return get_engine("torch") if self.asked_for == "torch" else None

    def _on_device(
        self, image: Any, engine: Engine, mask: Any, out: Any, callback: StepCallback | None
    ) -> Any:
        """Denoise an array of PyTorch, CuPy or another library where it is."""
        array = opened_by_dlpack(image, engine.libraries)
        if array is None:
            raise EngineUnavailableError(
                f"an array of the type {type(image).__module__}.{type(image).__qualname__} on a "
                f"GPU needs {' or '.join(engine.libraries)}; {install_hint('torch')}"
            )
        array = array.detach() if hasattr(array, "detach") else array
        source = image_on_device(array, axes=self._axes, channel_axis=self._channel_axis, mask=mask)
        dtype = self.request.result_dtype(source.dtype)
        target = None if out is None else _opened_out(out, array, dtype)
        result = target
        if target is None or (share_memory(target, array) and not are_same_memory(target, array)):
            xp = namespace(array)
            kind = getattr(xp, dtype.name)
            result = xp.empty(tuple(array.shape), dtype=kind, device=device_of(array))
        if self.request.has_alpha(source.layout):
            alpha, source = source.split_last_sample()
            pixels, transparency = source.layout.split_last_sample(result)
            self._run_on_device(source, pixels, callback)
            transparency[...] = alpha
        else:
            self._run_on_device(source, result, callback)
        if out is None:
            return returned_as(result, image)
        if target is not None and target is not result:
            target[...] = result
        return out

    def _run_on_device(
        self, source: ArrayImage, result: Array, callback: StepCallback | None
    ) -> None:
        """Write the denoised planes to an array of the same axes, of the same library."""
        self.pipeline(source.looked_through()).run_on_device(source.array, result, callback)

    def _array(
        self,
        image: ImageLike,
        mask: ArrayLike | None,
        out: NDArray[Any] | None,
        callback: StepCallback | None,
    ) -> NDArray[Any]:
        """Denoise anything that can be seen as a NumPy array."""
        found = opened(image)
        check_levels(image, self.request.sigma)
        axes = self._axes if self._channel_axis is not None else self._axes or found.axes
        mask = None if mask is None else found.mask(mask)
        source = array_image(found.array, axes=axes, channel_axis=self._channel_axis, mask=mask)
        source = replace(source, distances=found.distances)
        if found.uneven and source.layout.is_volume and self.request.spacing is None:
            warnings.warn(
                f"the coordinates of {found.uneven} are not evenly spaced, and the spacing of the "
                "volume is taken as equal; give spacing",
                VolumeModelWarning,
                stacklevel=outside(),
            )
        array = source.array
        dtype = self.request.result_dtype(array.dtype)
        if out is not None:
            _check_out(out, array.shape, dtype)
        # Values that are written through a masked array would change its mask.
        given, out = out, out.data if isinstance(out, np.ma.MaskedArray) else out
        result = np.empty(array.shape, dtype) if out is None or _overlap(out, array) else out
        if self.request.has_alpha(source.layout) and not found.all_colours:
            alpha, source = source.split_last_sample()
            pixels, transparency = source.layout.split_last_sample(result)
            self._run(source, pixels, callback)
            transparency[...] = alpha
        else:
            self._run(source, result, callback)
        if out is not None and out is not result:
            out[...] = result
            result = out
        if isinstance(given, np.ma.MaskedArray):
            return _with_mask_of(image, given)
        if isinstance(image, np.ma.MaskedArray):
            return _masked_like(image, result)
        wrapped: NDArray[Any] = result if found.wrapped is None else found.wrapped(result)
        return wrapped

    def _run(self, source: ArrayImage, result: NDArray[Any], callback: StepCallback | None) -> None:
        """Write the denoised planes to an array of the same axes."""
        pipeline = self.pipeline(source)
        denoised = pipeline.run(source.planes(), callback)
        for target, plane in zip(source.layout.planes(result), denoised, strict=True):
            target[...] = plane

    def pipeline(self, source: Source) -> Pipeline:
        """Resolve the request for an array or an open file; return the pipeline for its planes."""
        array = source.array if isinstance(source, ArrayImage) else _NUMPY
        request = self._request_at(array, source.layout).with_map(source)
        resolved = resolve(request, source)
        return self.pipeline_of(resolved, self._blocks(resolved), array)

    def pipeline_of(
        self, resolved: ResolvedRequest, blocks: list[Block] | None = None, like: Array = _NUMPY
    ) -> Pipeline:
        """Return the pipeline for an image, like an array, whose request has been resolved."""
        place = _place_of(like)
        processes: Processes = partial(self._processes, place)
        if resolved.request.map_is_estimated:
            # Processes hold the map of their image, and are not used for another one.
            self._prepared, self._masked, self._masked_on_device = {}, {}, []
            processes = partial(self._processes_with_map, place, resolved.request.map)
        return Pipeline(resolved, processes, partial(self._masked_processes, place), blocks)

    def _request_at(self, array: Array, layout: Layout) -> Request:
        """Return the request; a map of noise levels is moved to the device of an image."""
        place, request = _place_of(array), self.request_for(layout)
        if request.map is None:
            return request
        if place not in self._requests:
            levels = moved(self.request.sigma, array, "the map of noise levels")
            self._requests[place] = replace(self.request, sigma=levels)
        known = self._requests[place]
        return known if known.model is request.model else replace(known, model=request.model)

    def _blocks(self, resolved: ResolvedRequest) -> list[Block] | None:
        """Return blocks of a volume that fit the memory limit; None without a limit."""
        limit, volume = resolved.request.max_memory, resolved.volume
        levels = [level for channel in resolved.channels for level in channel.levels]
        if limit is None or volume is None or not levels:
            return None
        evolutions = [level.evolution(resolved.request.model) for level in levels]
        masked = resolved.invalid is not None
        engine = get_engine_for(self.asked_for, evolutions[0], masked=masked)
        levels_of_map = resolved.request.map

        def of_engine(shape: tuple[int, ...]) -> int:
            found = engine.working_memory(
                evolutions[0],
                shape,
                computing_dtype(resolved.dtype),
                exact=resolved.request.exact,
                threads=resolved.request.threads,
                mapped=levels_of_map is not None,
                masked=masked,
            )
            if found is None:
                raise ValueError(
                    f"max_memory is for the engine 'native', and this volume takes {engine.name!r}"
                )
            return found

        return blocks_within(
            volume.slices,
            halo(evolutions, masked=masked)[0],
            lambda slices: volume_bytes(resolved, slices, of_engine),
            int(limit),
        )

    def with_threads(self, threads: int) -> Denoiser:
        """Return a copy with this number of threads, unless the request already sets one."""
        other = copy(self)
        other._prepared, other._masked = {}, {}
        other._masked_on_device, other._requests = [], {}
        if self.request.threads is None:
            other.request = replace(self.request, threads=threads)
        return other

    def request_for(self, layout: Layout) -> Request:
        """Return the request, with the model that its name stands for in volumes."""
        if not layout.is_volume or self._model_name not in VOLUME_MODELS:
            return self.request
        return replace(self.request, model=_shipped(VOLUME_MODELS[self._model_name]))

    def engine_for(self, resolved: ResolvedRequest) -> str:
        """Return the name of the engine; not every engine takes every volume or mask."""
        levels = [level for channel in resolved.channels for level in channel.levels]
        masked = resolved.invalid is not None
        if (resolved.volume is None and not masked) or not levels:
            return self.engine
        evolution = levels[0].evolution(resolved.request.model)
        return get_engine_for(self.asked_for, evolution, masked=masked).name

    def _model_for(self, level: Level) -> Model:
        if level.volume is None or self._model_name not in VOLUME_MODELS:
            return self.request.model
        return _shipped(VOLUME_MODELS[self._model_name])

    def _engine_at(self, place: _Place, evolution: Evolution, *, masked: bool = False) -> Engine:
        """Return the engine of an evolution for arrays of a place."""
        if place.is_on_gpu:
            library = place.library
            return get_gpu_engine(self.asked_for, evolution, masked=masked, library=library)
        return get_engine_for(self.asked_for, evolution, masked=masked)

    def _processes(
        self, place: _Place, levels: tuple[Level, ...], part: NoiseMap | None = None
    ) -> tuple[Process, ...]:
        """Return a process for each noise level; reuse those of the previous image.

        ``part`` is the map of noise levels of a part of the image, which is not kept.
        """
        if part is not None:
            return tuple(self._process(place, level, part) for level in levels)
        known = self._prepared
        found = {
            (place, level): known.get((place, level)) or self._process(place, level)
            for level in levels
        }
        self._prepared = found
        return tuple(found[place, level] for level in levels)

    def _processes_with_map(
        self,
        place: _Place,
        noise: NoiseMap | None,
        levels: tuple[Level, ...],
        part: NoiseMap | None = None,
    ) -> tuple[Process, ...]:
        """Return a process for each noise level, with the map of one image or of a part of it."""
        return self._processes(place, levels, noise if part is None else part)

    def _process(self, place: _Place, level: Level, part: NoiseMap | None = None) -> Process:
        request = self._requests.get(place, self.request)
        evolution = level.evolution(self._model_for(level))
        levels = request.map if part is None else part
        return self._engine_at(place, evolution).prepare(
            evolution,
            exact=request.exact,
            threads=request.threads,
            relative_noise=None if levels is None else levels.relative,
            noise_span=None if levels is None else levels.span,
        )

    def _masked_processes(
        self, place: _Place, channel: ResolvedChannel, mask: Mask
    ) -> tuple[Process, ...]:
        """Return a process for each noise level of a channel; reuse those of the same mask."""
        if not is_numpy(mask):
            return self._masked_processes_on_device(place, channel, mask)
        known, levels = self._masked, channel.map
        relative = None if levels is None else levels.relative
        noise = None if relative is None else hashlib.sha256(relative.tobytes()).digest()
        pixels = mask.shape, np.packbits(mask).tobytes()
        found = {key: process for key, process in known.items() if key.pixels == pixels}
        keys = [_MaskedKey(level, noise, pixels) for level in channel.levels]
        for key in keys:
            found[key] = known.get(key) or self._masked_process(place, key.level, levels, mask)
        self._masked = found
        return tuple(found[key] for key in keys)

    def _masked_process(
        self, place: _Place, level: Level, levels: NoiseMap | None, mask: Mask
    ) -> Process:
        evolution = level.evolution(self._model_for(level))
        return self._engine_at(place, evolution, masked=True).prepare(
            evolution,
            exact=self.request.exact,
            threads=self.request.threads,
            relative_noise=None if levels is None else levels.relative,
            noise_span=None if levels is None else levels.span,
            mask=mask,
        )

    def _masked_processes_on_device(
        self, place: _Place, channel: ResolvedChannel, mask: Array
    ) -> tuple[Process, ...]:
        """Return the processes for a mask that is not NumPy's; it is compared on its device."""
        for known in self._masked_on_device:
            if known.serves(place, channel, mask):
                return known.processes
        found = tuple(
            self._masked_process(place, level, channel.map, mask) for level in channel.levels
        )
        kept = _MaskedOnDevice(place, channel.levels, channel.map, mask, found)
        # Those of the last masks are kept; an image may have a few channels.
        self._masked_on_device = [*self._masked_on_device[-(_MASKS_KEPT - 1) :], kept]
        return found

    def __getstate__(self) -> dict[str, Any]:
        # Prepared processes hold memory of the engine, which cannot be sent to another process.
        empty: dict[str, Any] = {"_prepared": {}, "_masked": {}, "_masked_on_device": []}
        return {**self.__dict__, **empty, "_requests": {}}


_MASKS_KEPT = 4
"""Masks on a device whose processes are kept for the next image."""


class _Place(NamedTuple):
    """Where an image is: its library, and the device of that."""

    library: str | None
    device: str
    is_on_gpu: bool


def _place_of(array: Array) -> _Place:
    return _Place(library_of(array), str(device_of(array)), is_on_gpu(array))


class _MaskedOnDevice(NamedTuple):
    """Cached processes for a mask on a device, with the values that they were prepared for."""

    place: _Place
    levels: tuple[Level, ...]
    map: NoiseMap | None
    mask: Array
    processes: tuple[Process, ...]

    def serves(self, place: _Place, channel: ResolvedChannel, mask: Array) -> bool:
        """Whether the processes can be reused for a channel with a mask."""
        if (place, channel.levels) != (self.place, self.levels) or mask.shape != self.mask.shape:
            return False
        maps = [None if m is None else m.relative for m in (self.map, channel.map)]
        if (maps[0] is None) != (maps[1] is None):
            return False
        if maps[0] is not None and not bool((maps[0] == maps[1]).all()):
            return False
        return bool((mask == self.mask).all())


class _MaskedKey(NamedTuple):
    """Cache key of a process for an image with invalid pixels, within one request.

    The noise is a hash of the relative levels, which depend on the mask and on the part of the
    image.
    """

    level: Level
    noise: bytes | None
    pixels: tuple[tuple[int, ...], bytes]


def _loaded(model: str | PathLike[str] | Model) -> Model:
    """Return the model; shipped models are read once."""
    if isinstance(model, Model):
        return model
    return _shipped(model) if model in MODEL_NAMES else load_model(model)


@lru_cache(maxsize=len(MODEL_NAMES) + len(VOLUME_MODELS))
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


def _opened_out(out: Any, image: Array, dtype: np.dtype[Any]) -> Array:
    """Return the array for the result in the library of the image, in its own memory."""
    if is_numpy(out) or not hasattr(out, "__dlpack__"):
        raise TypeError(
            f"out must be an array like the image, {type(image).__module__}."
            f"{type(image).__qualname__}, got {type(out).__name__}"
        )
    target = opened_by_dlpack(out, (str(library_of(image)),))
    _check_out_on_device(target, image, dtype)
    return target.detach() if hasattr(target, "detach") else target


def _check_out_on_device(out: Array, image: Array, dtype: np.dtype[Any]) -> None:
    """Refuse an array whose shape, dtype or device is not that of the result."""
    found = tuple(out.shape), dtype_of(out), str(device_of(out))
    if found != (tuple(image.shape), dtype, str(device_of(image))):
        raise ValueError(
            f"out must have the shape {tuple(image.shape)}, the dtype {dtype} and the device "
            f"{device_of(image)} of the result, got {found[0]}, {found[1]} and {found[2]}"
        )


def _owned(value: Any) -> Any:
    """Return a copy of what the caller may change: an array, a tensor, a list or a mapping."""
    duplicate = getattr(value, "copy", None) or getattr(value, "clone", None)
    return value if duplicate is None else duplicate()


def _with_mask_of(image: Any, target: np.ma.MaskedArray[Any, Any]) -> NDArray[Any]:
    """Give an array of results the mask of the image, which may be the array itself."""
    hidden, is_hard = np.ma.getmask(image).copy(), target.hardmask
    target.soften_mask()
    target.mask = hidden
    if is_hard:
        target.harden_mask()
    return target


def _masked_like(image: np.ma.MaskedArray[Any, Any], result: NDArray[Any]) -> NDArray[Any]:
    """Return the result as a masked array, with the mask and the fill value of the image."""
    masked: NDArray[Any] = np.ma.MaskedArray(
        result, mask=np.ma.getmask(image).copy(), fill_value=image.fill_value
    )
    return masked


def _overlap(out: NDArray[Any], image: NDArray[Any]) -> bool:
    """Whether writing one plane could overwrite another that has not been read yet."""
    in_place = (
        out.dtype == image.dtype
        and out.strides == image.strides
        and out.__array_interface__["data"][0] == image.__array_interface__["data"][0]
    )
    return not in_place and np.may_share_memory(out, image)
