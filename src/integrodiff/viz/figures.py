"""The figures of ``compare`` and ``explain`` for arrays, as in notebooks."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
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
from integrodiff.models import Model
from integrodiff.request import Noise, Sigma
from integrodiff.viz.comparison import compared
from integrodiff.viz.drawing import require_matplotlib
from integrodiff.viz.explanation import explain_plane
from integrodiff.viz.view import (
    Selection,
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
    mask: ArrayLike | None = None,
    window: tuple[float, float] | None = None,
    zoom: tuple[int, int, int] | None = None,
    data_range: float | None = None,
    unit: str | None = None,
) -> Figure:
    """Draw an image before and after denoising, and the difference; needs Matplotlib.

    The difference is centred on mid-grey; black and white are four standard deviations away. If
    it shows the shapes of objects, structure was removed together with the noise. One square of
    every image is enlarged. Invalid pixels are greyed out and do not count.

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
        ``{"T": 3, "C": 1}``. By default the middle of Z and the first of all others.
    bands : sequence of int, optional
        One colour sample or channel that is drawn grey, or three that are drawn red, green and
        blue with a window each; counted from zero.
    window : (float, float), optional
        Grey values that are drawn black and white, such as ``(-160, 240)`` for soft tissue in CT.
        By default 0 and 255 for 8 bits, else the lowest and highest half per cent of the clean or
        denoised image.
    zoom : (int, int, int), optional
        Row, column and side of the square that is enlarged; by default the one with the strongest
        structure.
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
    from integrodiff.viz.comparison_figure import draw

    window = checked_window(window)
    views = [
        _view(image, axes=axes, channel_axis=channel_axis, mask=mask, at=at, bands=bands, unit=unit)
        for image in (before, after, clean)
        if image is not None
    ]
    for name, view in zip(("after", "clean"), views[1:], strict=False):
        if view.pixels.shape != views[0].pixels.shape:
            raise ValueError(
                f"before and {name} must have the same shape, got {views[0].pixels.shape} and "
                f"{view.pixels.shape}"
            )
    found = compared(views, window=window, zoom=zoom, data_range=data_range)
    return draw(found, views[0].words)


def explain(
    image: ImageLike,
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

    Parameters
    ----------
    image, sigma, noise_psd, model, data_range, axes, channel_axis, colour, noise, engine, mask
        As in :func:`integrodiff.denoise`.
    at : mapping from str to int, optional
        The plane that is drawn, as in :func:`compare`. Noise and scale are those of all planes of
        its channel, as in :func:`integrodiff.denoise`.
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
        "colour": colour,
        "noise": noise,
        "engine": engine,
    }
    denoiser = Denoiser(sigma, **settings)
    if denoiser.request.has_alpha(source.layout) and not found.all_colours:
        source = source.split_last_sample()[1]
    selection = select(source.layout, at=at, bands=bands, all_samples=True)
    own = _sigma_of(sigma, source.layout, selection)
    if own is not sigma:
        denoiser = Denoiser(own, **settings)
    explained = explain_plane(
        denoiser, source, selection, step=step, orientation=found.orientation
    ).in_unit(unit or found.unit)
    return draw(
        explained.explanation,
        ", ".join(filter(None, [selection.words, f"{_name(model)} at {explained.noise}"])),
        window=window,
    )


def _name(model: str | PathLike[str] | Model) -> str:
    """Return what a model is called in a title."""
    return type(model).__name__ if isinstance(model, Model) else Path(model).name


def _source(
    found: Container, axes: str | None, channel_axis: int | None, mask: ArrayLike | None
) -> ArrayImage:
    """Return the array of a container with its axes."""
    axes = axes if channel_axis is not None else axes or found.axes
    mask = None if mask is None else found.mask(mask)
    return array_image(found.array, axes=axes, channel_axis=channel_axis, mask=mask)


def _view(
    image: ImageLike,
    *,
    axes: str | None,
    channel_axis: int | None,
    mask: ArrayLike | None,
    at: Mapping[str, int] | None,
    bands: Sequence[int] | None,
    unit: str | None,
) -> View:
    """Return what is drawn of an array."""
    found = opened(image)
    source = _source(found, axes, channel_axis, mask)
    if source.layout.samples == 4 and bands is None:
        source = source.split_last_sample()[1]  # transparency, as in denoise
    selection = select(source.layout, at=at, bands=bands)
    planes = dict(enumerate(source.planes()))
    view = chosen_view(planes, selection, source.validity, orientation=found.orientation)
    return in_units(view, 1.0, 0.0, unit or found.unit)


def _sigma_of(sigma: Sigma, layout: Layout, selection: Selection) -> Sigma:
    """Return the noise level of the channel or sample that is explained."""
    levels: Any = sigma
    if sigma is None or isinstance(sigma, Mapping) or np.ndim(levels) != 1:
        return sigma
    if "C" in layout.axes and len(levels) == layout.channels:
        return float(levels[layout.channel_of(selection.planes[0])])
    if selection.samples is not None and len(levels) == layout.samples:
        return float(levels[selection.samples[0]])
    return sigma
