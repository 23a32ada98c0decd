"""Draw a :class:`~integrodiff.viz.comparison.Comparison` with Matplotlib."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from integrodiff.validity import Mask
from integrodiff.viz.comparison import Comparison
from integrodiff.viz.drawing import TEXT, bare, grey_map, masked, new_figure
from integrodiff.viz.mosaic import Mosaic
from integrodiff.viz.orthogonal import MOSAIC, PLANES

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure
    from matplotlib.image import AxesImage

_PANEL = 3.6
"""Width of an image in inches."""


def draw(comparison: Comparison, title: str = "") -> Figure:
    """Return a figure with the images, their difference, and an enlarged square of each."""
    from matplotlib.patches import Rectangle

    names = list(comparison.pictures())
    height, width = comparison.removed.pixels.shape[:2]
    shape = min(max(height / width, 0.4), 2.0)
    figure = new_figure(_PANEL * len(names), _PANEL * (shape + 1) + 1.8)
    figure.set_layout_engine("compressed")  # for axes of a fixed aspect
    if title:
        figure.suptitle(title, parse_math=False)
    grid = figure.subplots(2, len(names), height_ratios=[shape, 1], squeeze=False)
    region = comparison.region
    drawn: dict[str, AxesImage] = {}
    for name, upper, lower in zip(names, *grid, strict=True):
        drawn[name] = _show(upper, comparison, name)
        _show(lower, comparison, name)
        upper.set_title(f"{name}{_remark(comparison, name)}", fontsize=TEXT)
        corner = region.left - 0.5, region.top - 0.5
        upper.add_patch(
            Rectangle(corner, region.size, region.size, fill=False, edgecolor="#ffd200")
        )
        lower.set_xlim(region.left - 0.5, region.left + region.size - 0.5)
        lower.set_ylim(region.top + region.size - 0.5, region.top - 0.5)
    grid[1, 0].set_title(str(region), fontsize=TEXT)
    if comparison.removed.pixels.ndim == 2:
        for place, name in zip(grid[1], names, strict=True):
            bar = figure.colorbar(drawn[name], ax=place, orientation="horizontal", pad=0.03)
            bar.set_label(comparison.unit, fontsize=TEXT)
            bar.ax.tick_params(labelsize=TEXT - 1)
    return figure


def draw_planes(comparisons: Sequence[Comparison], mosaic: Mosaic, title: str = "") -> Figure:
    """Return a figure with three planes of volumes, and of their difference.

    Parameters
    ----------
    comparisons : sequence of Comparison
        One for each plane of :data:`.PLANES`, with the same window.
    mosaic : Mosaic
        Where they are drawn.
    title : str
        Heading.
    """
    names = list(comparisons[0].pictures())
    height, width = mosaic.size
    shape = min(max(height / width, 0.4), 2.0)
    figure = new_figure(_PANEL * len(names), _PANEL * shape + 1.0)
    figure.set_layout_engine("compressed")  # for axes of a fixed aspect
    if title:
        figure.suptitle(title, parse_math=False)
    by_plane = dict(zip(PLANES, comparisons, strict=True))
    for name, axes in zip(names, figure.subplots(1, len(names), squeeze=False)[0], strict=True):
        pictures, masks = [], []
        for plane in MOSAIC:
            found = by_plane[plane if plane in by_plane else plane[::-1]]
            picture, mask, how = _values(found, name)
            turned = plane not in by_plane
            pictures.append(picture.swapaxes(0, 1) if turned else picture)
            masks.append(mask.swapaxes(0, 1) if turned and mask is not None else mask)
        drawn = mosaic.show(axes, pictures, masks, labels=name == "before", **how)
        axes.set_title(f"{name}{_remark_of_planes(comparisons, name)}", fontsize=TEXT)
        if pictures[0].ndim == 2:
            bar = figure.colorbar(drawn, ax=axes, orientation="horizontal", pad=0.03)
            bar.set_label(comparisons[0].unit, fontsize=TEXT)
            bar.ax.tick_params(labelsize=TEXT - 1)
    return figure


def _show(axes: Axes, comparison: Comparison, name: str) -> AxesImage:
    """Draw one of the images, grey ones with a scale of their values."""
    bare(axes)
    picture, mask, how = _values(comparison, name)
    shown = np.asanyarray(masked(picture, mask))
    return axes.imshow(shown, interpolation="nearest", **how)


def _values(comparison: Comparison, name: str) -> tuple[NDArray[Any], Mask | None, dict[str, Any]]:
    """Return the values of one of the images, its mask, and how they are drawn.

    Pictures in colour have invalid pixels in their colour already.
    """
    view = comparison.removed if name == "removed" else comparison.images[name]
    if view.pixels.ndim == 3:
        return comparison.pictures()[name], None, {}
    (ends,) = comparison.windows
    low, high = (-comparison.reach, comparison.reach) if name == "removed" else ends
    how = {"vmin": low, "vmax": high, "cmap": grey_map(turned=view.white_is_zero)}
    return view.pixels, view.mask, how


def _remark_of_planes(comparisons: Sequence[Comparison], name: str) -> str:
    """Return what is said of three planes in their title."""
    if name == "removed":
        deviations = [float(comparison.removed.valid.std()) for comparison in comparisons]
        found = " / ".join(f"{deviation:.3g}" for deviation in deviations)
        return f", sd {found} {comparisons[0].unit}"
    qualities = [comparison.qualities.get(name) for comparison in comparisons]
    known = [f"{quality.psnr:.2f}" for quality in qualities if quality is not None]
    return f", {' / '.join(known)} dB" if known else ""


def _remark(comparison: Comparison, name: str) -> str:
    """Return what is said of an image in its title."""
    if name == "removed":
        return f", {comparison.deviation_words}"
    found = comparison.qualities.get(name)
    if found is None:
        return ""
    return f", {found}" if np.isnan(found.ssim) else f", {found}, SSIM {found.ssim:.3f}"
