"""The figures of ``compare`` and ``explain`` for arrays, as in notebooks."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from integrodiff._default_model import DEFAULT_MODEL
from integrodiff._denoise import Denoiser
from integrodiff.arrays import ArrayImage, array_image
from integrodiff.colour import Colour
from integrodiff.containers import Container, ImageLike, opened
from integrodiff.layout import Layout
from integrodiff.models import VOLUME_MODELS, Model
from integrodiff.request import Noise, Sigma, checked_spacing, volume_of
from integrodiff.viz.comparison import compared
from integrodiff.viz.drawing import require_matplotlib
from integrodiff.viz.explanation import explain_plane, explain_volume
from integrodiff.viz.mosaic import Mosaic
from integrodiff.viz.orthogonal import Places, compared_planes, orthogonal_views, places
from integrodiff.viz.view import (
    View,
    checked_window,
    chosen_view,
    in_units,
    select,
)

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def compare(
    before: ImageLike,
    after: ImageLike,
    clean: ImageLike | None = None,
    *,
    axes: str | None = None,
    channel_axis: int | None = None,
    at: Mapping[str, int] | None = None,
    bands: Sequence[int] | None = None,
    spacing: Sequence[float] | None = None,
    mask: ArrayLike | None = None,
    window: tuple[float, float] | None = None,
    zoom: tuple[int, int, int] | None = None,
    data_range: float | None = None,
    unit: str | None = None,
) -> Figure:
    """Draw an image before and after denoising, and the difference; needs Matplotlib.

    The difference is centred on mid-grey; black and white are four standard deviations away. If
    it shows the shapes of objects, structure was removed together with the noise. One square of
    every image is enlarged. Of a volume, three orthogonal planes through a point are drawn instead
    if ``at`` names it. Invalid pixels are greyed out and do not count.

    Parameters
    ----------
    before, after : array_like
        The noisy and the denoised image, of the same axes and shape; all kinds of images that
        :func:`integrodiff.denoise` takes.
    clean : array_like, optional
        The image without noise; adds PSNR and SSIM of both.
    axes, channel_axis, mask
        As in :func:`integrodiff.denoise`.
    at : mapping from str to int, optional
        The plane that is drawn: indices along axes, counted from zero, such as
        ``{"T": 3, "C": 1}``. By default the middle of Z and the first of all others. With Y or X,
        such as ``{"Z": 40, "Y": 120, "X": 96}``, three orthogonal planes of a volume are drawn
        through the point, with the middle of what is not given.
    bands : sequence of int, optional
        One colour sample or channel that is drawn grey, or three that are drawn red, green and
        blue with a window each; counted from zero.
    spacing : sequence of float, optional
        Distance of the voxels of a volume along the axes Z, Y and X, in their order in ``axes``,
        for the proportions of the planes. By default that of the coordinates of an
        ``xarray.DataArray``, or equal.
    window : (float, float), optional
        Grey values that are drawn black and white, such as ``(-160, 240)`` for soft tissue in CT.
        By default 0 and 255 for 8 bits, else the lowest and highest half per cent of the clean or
        denoised image.
    zoom : (int, int, int), optional
        Row, column and side of the square of an image that is enlarged; by default the one with
        the strongest structure.
    data_range : float, optional
        Range of grey values for PSNR and SSIM. By default that of the dtype of ``clean``: 255 for
        8 bits, that of the smallest bit depth for other integers, 1 for floating point in [0, 1];
        and else the difference of its largest and smallest value.
    unit : str, optional
        Unit of the grey values, such as ``"HU"``. By default the attribute ``units`` of an
        ``xarray.DataArray``, or "grey levels".

    Returns
    -------
    matplotlib.figure.Figure
        Notebooks show it; ``figure.savefig("comparison.png")`` writes it.

    Raises
    ------
    ImportError
        If Matplotlib is not installed.
    TypeError, ValueError
        If an argument is invalid; the message says what was expected.

    Examples
    --------
    >>> import numpy as np
    >>> from integrodiff import compare, denoise
    >>> noisy = np.random.default_rng(0).normal(100, 20, (64, 64))
    >>> figure = compare(noisy, denoise(noisy, sigma=20))
    >>> len(figure.axes) > 0
    True
    """
    require_matplotlib()
    from integrodiff.viz.comparison_figure import draw, draw_planes

    window = checked_window(window)
    given: dict[str, Any] = {"axes": axes, "channel_axis": channel_axis, "mask": mask}
    images = [
        _Opened(image, unit=unit, bands=bands, **given)
        for image in (before, after, clean)
        if image is not None
    ]
    if {"Y", "X"} & set(at or {}):
        if zoom is not None:
            raise ValueError("zoom is for images; give a point of a volume alone")
        shapes = [image.source.layout.shape for image in images]
        _check_shapes(shapes)
        where = places(images[0].source.layout, at, bands=bands)
        planes = compared_planes(
            [image.planes(where) for image in images], window=window, data_range=data_range
        )
        return draw_planes(planes, images[0].mosaic(where, spacing), where.words)
    if spacing is not None:
        raise ValueError('spacing is for planes of volumes; name a point, such as at={"Y": 120}')
    views = [image.view(at) for image in images]
    _check_shapes([view.pixels.shape for view in views])
    found = compared(views, window=window, zoom=zoom, data_range=data_range)
    return draw(found, views[0].words)


def _check_shapes(shapes: Sequence[tuple[int, ...]]) -> None:
    """Refuse images of different shapes."""
    for name, shape in zip(("after", "clean"), shapes[1:], strict=False):
        if shape != shapes[0]:
            raise ValueError(
                f"before and {name} must have the same shape, got {shapes[0]} and {shape}"
            )


def explain(
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
    mask: ArrayLike | None = None,
    at: Mapping[str, int] | None = None,
    bands: Sequence[int] | None = None,
    step: int | None = None,
    window: tuple[float, float] | None = None,
    unit: str | None = None,
) -> Figure:
    """Draw how a model denoises an image; needs Matplotlib.

    The figure shows the multiscale structure tensor (strength, coherence and orientation of
    edges), the diffusivity across and along structures at each scale, and the image after several
    steps. For a colour image it shows the luminance. All grey values are in one unit, that of the
    image; those of photon counts are in standard deviations of the noise, after stabilisation.

    Of a volume, which is denoised in three dimensions, it shows three orthogonal planes through a
    point in the proportions of the voxels; whether structures are surfaces or lines, and the
    direction across them as colour: red for X, green for Y and blue for Z. ``axes`` with Q in place
    of Z explain one slice as an image.

    Parameters
    ----------
    image, sigma, noise_psd, model, data_range, axes, spacing, channel_axis, colour, noise, \
    engine, mask
        As in :func:`integrodiff.denoise`.
    at : mapping from str to int, optional
        The plane that is drawn, as in :func:`compare`; of a volume the point, by default its
        middle. Noise and scale are those of all planes of its channel, as in
        :func:`integrodiff.denoise`.
    bands : sequence of int, optional
        One colour sample that is explained as a grey image of its own, or one channel; counted
        from zero.
    step : int, optional
        Number of steps after which structure and diffusivities are drawn; 0 is the noisy image. By
        default half of all steps.
    window : (float, float), optional
        Grey values that are drawn black and white. By default the lowest and highest half per cent
        of the result.
    unit : str, optional
        As in :func:`compare`.

    Returns
    -------
    matplotlib.figure.Figure
        Notebooks show it; ``figure.savefig("explanation.png")`` writes it.

    Raises
    ------
    ImportError
        If Matplotlib is not installed.
    TypeError, ValueError
        If an argument is invalid; the message says what was expected.

    Examples
    --------
    >>> import numpy as np
    >>> from integrodiff import explain
    >>> image = np.repeat([60.0, 180.0], 32)[:, None] * np.ones(64)
    >>> noisy = image + np.random.default_rng(0).normal(0, 20, image.shape)
    >>> figure = explain(noisy, sigma=20)
    >>> len(figure.axes) > 0
    True
    """
    require_matplotlib()
    from integrodiff.viz.explanation_figure import draw

    window = checked_window(window)
    found = opened(image)
    source = _source(found, axes, channel_axis, mask)
    settings: dict[str, Any] = {
        "noise_psd": noise_psd,
        "model": model,
        "data_range": data_range,
        "spacing": spacing,
        "colour": colour,
        "noise": noise,
        "engine": engine,
    }
    denoiser = Denoiser(sigma, **settings)
    if denoiser.request.has_alpha(source.layout) and not found.all_colours:
        source = source.split_last_sample()[1]
    layout = source.layout
    where: Places | None = None
    if layout.is_volume or {"Y", "X"} & set(at or {}):
        where = places(layout, at, bands=bands, all_samples=True)
        number, samples, words = where.slices[0], where.samples, where.words
    else:
        selection = select(layout, at=at, bands=bands, all_samples=True)
        number, samples, words = selection.planes[0], selection.samples, selection.words
    own = _sigma_of(sigma, layout, number, samples)
    if own is not sigma:
        denoiser = Denoiser(own, **settings)
    if where is not None:
        explained = explain_volume(denoiser, source, where, step=step)
    else:
        explained = explain_plane(
            denoiser, source, selection, step=step, orientation=found.orientation
        )
    explained = explained.in_unit(unit or found.unit)
    what = f"{_name(model, layout)} at {explained.noise}"
    return draw(
        explained.explanation,
        "\n".join(filter(None, [", ".join(filter(None, [words, what])), explained.geometry])),
        window=window,
    )


def _name(model: str | PathLike[str] | Model, layout: Layout) -> str:
    """Return what the model of an image or volume is called in a title."""
    if isinstance(model, Model):
        return type(model).__name__
    name = Path(model).name
    return VOLUME_MODELS.get(name, name) if layout.is_volume else name


def _source(
    found: Container, axes: str | None, channel_axis: int | None, mask: ArrayLike | None
) -> ArrayImage:
    """Return the array of a container with its axes."""
    axes = axes if channel_axis is not None else axes or found.axes
    mask = None if mask is None else found.mask(mask)
    source = array_image(found.array, axes=axes, channel_axis=channel_axis, mask=mask)
    return replace(source, distances=found.distances)


class _Opened:
    """An image to compare: an array with its axes, and what is drawn of it."""

    def __init__(
        self,
        image: ImageLike,
        *,
        axes: str | None,
        channel_axis: int | None,
        mask: ArrayLike | None,
        bands: Sequence[int] | None,
        unit: str | None,
    ) -> None:
        self._found = opened(image)
        self._bands, self._unit = bands, unit or self._found.unit
        self.source = _source(self._found, axes, channel_axis, mask)
        has_alpha = self.source.layout.samples == 4 and not self._found.all_colours
        if has_alpha and bands is None:
            self.source = self.source.split_last_sample()[1]  # transparency, as in denoise

    def view(self, at: Mapping[str, int] | None) -> View:
        """Return one plane."""
        source = self.source
        selection = select(source.layout, at=at, bands=self._bands)
        planes = dict(enumerate(source.planes()))
        turned = self._found.orientation
        view = chosen_view(planes, selection, source.validity, orientation=turned)
        return in_units(view, 1.0, 0.0, self._unit)

    def planes(self, where: Places) -> list[View]:
        """Return three planes of a volume."""
        views = orthogonal_views(self.source.planes(), where, self.source.validity)
        return [in_units(view, 1.0, 0.0, self._unit) for view in views]

    def mosaic(self, where: Places, spacing: Sequence[float] | None) -> Mosaic:
        """Return where the planes are drawn."""
        layout, known = self.source.layout, self.source.distances
        given = None if spacing is None else checked_spacing(spacing)
        volume = volume_of(layout, given, known)
        return Mosaic(where=where, shape=(layout.slices, *layout.size), spacing=volume.spacing)


def _sigma_of(sigma: Sigma, layout: Layout, number: int, samples: tuple[int, ...] | None) -> Sigma:
    """Return the noise level of the channel or sample that is explained."""
    levels: Any = sigma
    if sigma is None or isinstance(sigma, Mapping) or np.ndim(levels) != 1:
        return sigma
    if "C" in layout.axes and len(levels) == layout.channels:
        return float(levels[layout.channel_of(number)])
    if samples is not None and len(levels) == layout.samples:
        return float(levels[samples[0]])
    return sigma
