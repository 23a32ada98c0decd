"""Draw a :class:`~integrodiff.viz.comparison.Comparison` with Matplotlib."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from integrodiff.viz.comparison import Comparison
from integrodiff.viz.drawing import TEXT, bare, grey_map, masked, new_figure

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


def _show(axes: Axes, comparison: Comparison, name: str) -> AxesImage:
    """Draw one of the images, grey ones with a scale of their values."""
    view = comparison.removed if name == "removed" else comparison.images[name]
    bare(axes)
    if view.pixels.ndim == 3:
        return axes.imshow(comparison.pictures()[name], interpolation="nearest")
    (ends,) = comparison.windows
    low, high = (-comparison.reach, comparison.reach) if name == "removed" else ends
    how: dict[str, Any] = {"vmin": low, "vmax": high, "interpolation": "nearest"}
    values = masked(view.pixels, view.mask)
    return axes.imshow(np.asanyarray(values), cmap=grey_map(turned=view.white_is_zero), **how)


def _remark(comparison: Comparison, name: str) -> str:
    """Return what is said of an image in its title."""
    if name == "removed":
        return f", {comparison.deviation_words}"
    found = comparison.qualities.get(name)
    if found is None:
        return ""
    return f", {found}" if np.isnan(found.ssim) else f", {found}, SSIM {found.ssim:.3f}"
