"""Draw an :class:`~integrodiff.viz.explanation.Explanation` with Matplotlib."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from integrodiff.validity import Mask
from integrodiff.viz.drawing import TEXT, bare, grey_map, masked, new_figure
from integrodiff.viz.explanation import Diffusivity, Explanation, Structure
from integrodiff.viz.view import INVALID, Window, percentile_window

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure, SubFigure

_WIDTH = 14.0
_MOST_SNAPSHOTS = 6
_MOST_SCALES = 8
_FEWEST_COLUMNS = 4
_TITLE, _SMALL = 10, 8


def draw(
    explanation: Explanation,
    title: str,
    *,
    window: Window | None = None,
    white_is_zero: bool = False,
) -> Figure:
    """Return a figure with the image, its structure, the diffusivities and the steps.

    Parameters
    ----------
    explanation : Explanation
        What is drawn.
    title : str
        Heading.
    window : (float, float), optional
        Grey values that are drawn black and white; by default they fit the result.
    white_is_zero : bool
        Whether small grey values are drawn bright.
    """
    height, width = explanation.images[0].shape
    shape = min(max(height / width, 0.4), 2.0)
    rows = _rows_of_diffusivities(explanation)
    columns = max(_FEWEST_COLUMNS, *(len(row) for _, row in rows))
    heights = [
        shape * _WIDTH / 4,
        shape * _WIDTH / 4,
        *(shape * _WIDTH / columns + 0.2 for _ in rows),
        shape * _WIDTH / _snapshot_count(explanation),
        2.6,
    ]
    heights = [value + 0.6 for value in heights]
    figure = new_figure(_WIDTH, sum(heights) + 0.5)
    figure.suptitle(title, fontsize=_TITLE + 3, parse_math=False)  # a name may have dollar signs
    subfigures = figure.subfigures(len(heights), 1, height_ratios=heights, squeeze=False)
    parts = iter(np.asarray(subfigures).ravel())
    grey = _greys(explanation, window, white_is_zero)
    _draw_images(next(parts), explanation, grey)
    _draw_structure(next(parts), explanation)
    for heading, row in rows:
        _draw_diffusivities(next(parts), heading, row, columns)
    _draw_snapshots(next(parts), explanation, grey)
    _draw_curves(next(parts), explanation)
    return figure


def _greys(explanation: Explanation, window: Window | None, white_is_zero: bool) -> dict[str, Any]:
    """Return how the images are drawn: their grey values and their mask."""
    result, mask = explanation.images[-1], explanation.mask
    low, high = window or percentile_window(result if mask is None else result[mask])
    return {"cmap": grey_map(turned=white_is_zero), "vmin": low, "vmax": high, "mask": mask}


def _draw_images(part: SubFigure, explanation: Explanation, grey: dict[str, Any]) -> None:
    """Draw the input, the result and their difference."""
    before, after = explanation.images[0], explanation.images[-1]
    mask, unit, sigma = explanation.mask, explanation.unit, explanation.sigma
    removed = before - after
    _heading(part, f"Input, result and difference [{unit}]")
    axes = part.subplots(1, 4)
    _show(axes[0], before, "input", bar=part, **grey)
    _show(axes[1], after, f"after {len(explanation.images) - 1} steps", **grey)
    reach = 4 * sigma
    text = f"difference, standard deviation {explanation.removed[-1]:.3g}"
    how: dict[str, Any] = {"cmap": grey_map(), "vmin": -reach, "vmax": reach, "mask": mask}
    _show(axes[2], removed, text, bar=part, **how)
    counted = removed.ravel() if mask is None else removed[mask]
    axes[3].hist(counted, bins=100, range=(-reach, reach), density=True, color="0.6")
    values = np.linspace(-reach, reach, 200)
    normal = np.exp(-((values / sigma) ** 2) / 2) / (sigma * np.sqrt(2 * np.pi))
    axes[3].plot(values, normal, "C3", linewidth=1)
    axes[3].set_title(f"difference, and Gaussian of sigma {sigma:.3g} (line)", fontsize=TEXT)
    axes[3].set_yticks([])
    axes[3].tick_params(labelsize=_SMALL)
    axes[3].set_xlabel(unit, fontsize=_SMALL)


def _draw_structure(part: SubFigure, explanation: Explanation) -> None:
    """Draw strength, coherence and orientation of the structure tensor."""
    structure = explanation.structure
    when = "input" if explanation.step == 0 else f"image after step {explanation.step}"
    _heading(part, f"Multiscale structure tensor of the {when}")
    axes = part.subplots(1, 4)
    known = structure.known
    counted = structure.strength.ravel() if known is None else structure.strength[known]
    highest = (float(np.percentile(counted, 99.5)) if counted.size else 0.0) or 1.0
    _show(
        axes[0], structure.strength, f"edge strength [{explanation.unit} / pixel]",
        cmap=grey_map("magma"), vmin=0, vmax=highest, bar=part, mask=known,
    )  # fmt: skip
    _show(
        axes[1], structure.coherence, "coherence: 0 no direction, 1 one direction",
        cmap=grey_map("viridis"), vmin=0, vmax=1, bar=part, mask=known,
    )  # fmt: skip
    _show(
        axes[2], orientation_picture(structure, highest), "orientation (hue), strength (brightness)"
    )
    _draw_wheel(axes[3])


def orientation_picture(structure: Structure, highest: float) -> NDArray[np.float64]:
    """Return orientation as hue, coherence as saturation, and strength as brightness."""
    from matplotlib.colors import hsv_to_rgb

    bright = np.sqrt(np.clip(structure.strength / highest, 0, 1))
    colours: NDArray[np.float64] = hsv_to_rgb(
        np.stack([structure.orientation / np.pi, structure.coherence, bright], axis=-1)
    )
    if structure.known is not None:
        colours[~structure.known] = np.array(INVALID) / 255
    return colours


def _draw_wheel(axes: Axes) -> None:
    """Draw the colour code of the orientation: a star of lines."""
    from matplotlib.colors import hsv_to_rgb

    for angle in np.linspace(0, np.pi, 24, endpoint=False):
        x, y = np.cos(angle), np.sin(angle)
        # Rows are counted downwards, so angles are too.
        colour = tuple(hsv_to_rgb([angle / np.pi, 1, 1]))
        axes.plot([-x, x], [y, -y], color=colour, linewidth=5, solid_capstyle="round")
    axes.set_aspect("equal")
    axes.set_xlim(-1.6, 1.6)
    axes.set_ylim(-1.6, 1.6)
    axes.set_title("colour code of the orientation", fontsize=TEXT)
    axes.set_axis_off()


def _rows_of_diffusivities(explanation: Explanation) -> list[tuple[str, list[Diffusivity]]]:
    """Return the rows of diffusivities with their headings; isotropic terms have one row."""
    rows: list[tuple[str, list[Diffusivity]]] = []
    orders = sorted({item.order for item in explanation.diffusivities})
    for order in orders:
        items = [item for item in explanation.diffusivities if item.order == order]
        chosen = [items[i] for i in _spread(len(items), _MOST_SCALES)]
        which = {1: "gradient", 2: "second derivatives"}.get(order, f"derivatives of order {order}")
        if all(np.array_equal(item.across, item.along) for item in chosen):
            rows.append((f"Diffusivity at each scale ({which}), in all directions", chosen))
        else:
            rows.append((f"Diffusivity at each scale ({which}), across structures", chosen))
            along = [_turned(item) for item in chosen]
            rows.append((f"Diffusivity at each scale ({which}), along structures", along))
    return rows


def _turned(item: Diffusivity) -> Diffusivity:
    from dataclasses import replace

    return replace(item, across=item.along, along=item.across)


def _draw_diffusivities(
    part: SubFigure, heading: str, row: Sequence[Diffusivity], columns: int
) -> None:
    """Draw one row of diffusivities."""
    _heading(part, f"{heading}: dark 0 (no flow), bright 1 (free flow)")
    axes = part.subplots(1, columns, squeeze=False)[0]
    for item, place in zip(row, axes, strict=False):
        counted = item.across if item.known is None else item.across[item.known]
        mean = f"{counted.mean():.2f}" if counted.size else "unknown"
        text = f"scale {item.scale:.3g}\ncontrast {item.contrast:.3g}, mean {mean}"
        _show(place, item.across, text, cmap=grey_map("cividis"), vmin=0, vmax=1, mask=item.known)
        place.title.set_fontsize(_SMALL)
    for place in axes[len(row) :]:
        place.set_axis_off()


def _draw_snapshots(part: SubFigure, explanation: Explanation, grey: dict[str, Any]) -> None:
    """Draw the image after some of the steps."""
    _heading(part, "Evolution of the image")
    count = _snapshot_count(explanation)
    axes = part.subplots(1, count, squeeze=False)[0]
    for place, step in zip(axes, _spread(len(explanation.images), count), strict=True):
        text = "input" if step == 0 else f"after step {step}"
        _show(place, explanation.images[step], text, **grey)


def _draw_curves(part: SubFigure, explanation: Explanation) -> None:
    """Plot the effect of each step, and weights and contrasts over the scales."""
    from matplotlib.ticker import NullFormatter

    _heading(part, "Steps and parameters")
    axes = part.subplots(1, 4)
    steps = range(len(explanation.images))
    axes[0].plot(steps, explanation.removed, "o-", markersize=3)
    axes[0].axhline(explanation.sigma, color="C3", linewidth=1, label="noise level")
    axes[0].legend(fontsize=_SMALL)
    _label(axes[0], "standard deviation of the removed part", "step", explanation.unit)
    axes[0].set_ylim(bottom=0)
    axes[1].plot(steps[1:], explanation.changes, "o-", markersize=3)
    axes[1].set_ylim(bottom=0)
    _label(axes[1], "root mean square change of each step", "step", explanation.unit)
    for order in sorted({item.order for item in explanation.diffusivities}):
        items = [item for item in explanation.diffusivities if item.order == order]
        scales = [item.scale for item in items]
        for place, values in (
            (axes[2], [item.weight for item in items]),
            (axes[3], [item.contrast for item in items]),
        ):
            place.plot(scales, values, "o-", markersize=3, label=f"order {order}")
            place.set_xscale("symlog" if min(scales) == 0 else "log")
            place.set_yscale("log")
            for axis in (place.xaxis, place.yaxis):
                axis.set_minor_formatter(NullFormatter())
    _label(axes[2], "weight of each scale in the flux", "scale [pixels]", "")
    per_pixel = f"{explanation.unit} / pixel"
    _label(axes[3], "contrast parameter of each scale", "scale [pixels]", per_pixel)
    axes[2].legend(fontsize=_SMALL)


def _show(
    axes: Axes,
    image: NDArray[Any],
    title: str,
    *,
    mask: Mask | None = None,
    bar: SubFigure | None = None,
    **how: Any,
) -> None:
    """Draw an image with its invalid pixels greyed out, and a bar of its values if asked for."""
    drawn = axes.imshow(masked(image, mask), interpolation="nearest", **how)
    axes.set_title(title, fontsize=TEXT)
    bare(axes)
    if bar is not None:
        bar.colorbar(drawn, ax=axes, fraction=0.046, pad=0.02).ax.tick_params(labelsize=_SMALL)


def _label(axes: Axes, title: str, x: str, y: str) -> None:
    axes.set_title(title, fontsize=TEXT)
    axes.set_xlabel(x, fontsize=_SMALL)
    axes.set_ylabel(y, fontsize=_SMALL)
    axes.tick_params(labelsize=_SMALL)


def _heading(part: SubFigure, text: str) -> None:
    part.suptitle(text, fontsize=_TITLE, fontweight="bold", x=0.01, horizontalalignment="left")


def _snapshot_count(explanation: Explanation) -> int:
    return min(_MOST_SNAPSHOTS, len(explanation.images))


def _spread(length: int, count: int) -> list[int]:
    """Return up to ``count`` evenly spaced indices below ``length``, with the first and last."""
    return sorted({round(float(x)) for x in np.linspace(0, length - 1, min(count, length))})
