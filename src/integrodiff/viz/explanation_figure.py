"""Draw an :class:`~integrodiff.viz.explanation.Explanation` with Matplotlib.

That of a volume has three planes wherever that of an image has one picture.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from integrodiff.validity import Mask
from integrodiff.viz.drawing import TEXT, bare, grey_map, masked, new_figure
from integrodiff.viz.explanation import (
    Diffusivity,
    Explanation,
    Structure,
    VolumeExplanation,
    VolumeStructure,
)
from integrodiff.viz.mosaic import Mosaic
from integrodiff.viz.orthogonal import MOSAIC
from integrodiff.viz.view import INVALID, Window, percentile_window

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure, SubFigure

_WIDTH = 14.0
_MOST_SNAPSHOTS = 6
_MOST_SCALES = 8
_FEWEST_COLUMNS = 4
_TITLE, _SMALL = 10, 8
_SURFACE, _LINE = (1.0, 0.55, 0.1), (0.2, 0.6, 1.0)
# Scales with less than this part of the largest weight have no effect that could be seen.
_LEAST_WEIGHT = 1e-6
# Short lines along structures: how many beside each other, and from which strength on.
_MOST_LINES, _WEAKEST_LINE = 36, 0.2

_Pictures = Sequence[NDArray[Any]]


@dataclass(frozen=True, eq=False)
class _Drawn:
    """What is drawn: one picture of an image, three of a volume.

    Attributes
    ----------
    parts : sequence of Explanation
        One for each picture.
    removed, changes : list of float
        Numbers of the whole image or volume.
    mosaic : Mosaic, optional
        Where the planes of a volume are.
    """

    parts: Sequence[Explanation]
    removed: list[float]
    changes: list[float]
    mosaic: Mosaic | None = None

    @property
    def first(self) -> Explanation:
        return self.parts[0]

    @property
    def size(self) -> tuple[float, float]:
        """Height and width."""
        return self.first.images[0].shape if self.mosaic is None else self.mosaic.size

    @property
    def masks(self) -> list[Mask | None]:
        return [part.mask for part in self.parts]

    @property
    def known(self) -> list[Mask | None]:
        """Where structure is known."""
        return [part.structure.known for part in self.parts]

    @property
    def element(self) -> str:
        return "pixel" if self.mosaic is None else "voxel"

    def of(self, picture: Callable[[Explanation], NDArray[Any]]) -> list[NDArray[Any]]:
        """Return a picture of each part."""
        return [picture(part) for part in self.parts]


def _drawn(explanation: Explanation | VolumeExplanation) -> _Drawn:
    if isinstance(explanation, Explanation):
        return _Drawn([explanation], explanation.removed, explanation.changes)
    (height, width), depth = (
        explanation.planes[0].images[0].shape,
        explanation.planes[1].images[0].shape[0],
    )
    mosaic = Mosaic(
        where=explanation.where, shape=(depth, height, width), spacing=explanation.spacing
    )
    return _Drawn(explanation.planes, explanation.removed, explanation.changes, mosaic)


def _counted(pictures: _Pictures, masks: Sequence[Mask | None]) -> NDArray[Any]:
    """Return the values that are valid, or known, in all pictures."""
    pairs = zip(pictures, masks, strict=True)
    return np.concatenate(
        [picture.ravel() if mask is None else picture[mask] for picture, mask in pairs]
    )


def draw(
    explanation: Explanation | VolumeExplanation,
    title: str,
    *,
    window: Window | None = None,
    white_is_zero: bool = False,
) -> Figure:
    """Return a figure with the image, its structure, the diffusivities and the steps.

    Parameters
    ----------
    explanation : Explanation or VolumeExplanation
        What is drawn.
    title : str
        Heading.
    window : (float, float), optional
        Grey values that are drawn black and white; by default they fit the result.
    white_is_zero : bool
        Whether small grey values are drawn bright.
    """
    found = _drawn(explanation)
    height, width = found.size
    shape = min(max(height / width, 0.4), 2.0)
    rows = _rows_of_diffusivities(found)
    columns = max(_FEWEST_COLUMNS, *(len(row) for _, row in rows))
    heights = [
        shape * _WIDTH / 4,
        shape * _WIDTH / 4,
        *(shape * _WIDTH / columns + 0.2 for _ in rows),
        shape * _WIDTH / _snapshot_count(found),
        2.6,
    ]
    heights = [value + 0.6 for value in heights]
    figure = new_figure(_WIDTH, sum(heights) + 0.5)
    figure.suptitle(title, fontsize=_TITLE + 3, parse_math=False)  # a name may have dollar signs
    subfigures = figure.subfigures(len(heights), 1, height_ratios=heights, squeeze=False)
    parts = iter(np.asarray(subfigures).ravel())
    grey = _greys(found, window, white_is_zero)
    _draw_images(next(parts), found, grey)
    _draw_structure(next(parts), found, grey)
    for heading, row in rows:
        _draw_diffusivities(next(parts), found, heading, row, columns)
    _draw_snapshots(next(parts), found, grey)
    _draw_curves(next(parts), found)
    return figure


def _greys(found: _Drawn, window: Window | None, white_is_zero: bool) -> dict[str, Any]:
    """Return how the images are drawn: their grey values and their masks."""
    results = _counted(found.of(lambda part: part.images[-1]), found.masks)
    low, high = window or percentile_window(results)
    return {"cmap": grey_map(turned=white_is_zero), "vmin": low, "vmax": high, "masks": found.masks}


def _draw_images(part: SubFigure, found: _Drawn, grey: dict[str, Any]) -> None:
    """Draw the input, the result and their difference."""
    unit, sigma = found.first.unit, found.first.sigma
    removed = found.of(lambda part: part.images[0] - part.images[-1])
    _heading(part, f"Input, result and difference [{unit}]")
    axes = part.subplots(1, 4)
    before, after = (found.of(lambda part, n=n: part.images[n]) for n in (0, -1))  # type: ignore[misc]
    _show(axes[0], found, before, "input", bar=part, labels=True, **grey)
    _show(axes[1], found, after, f"after {len(found.changes)} steps", **grey)
    reach = 4 * sigma
    text = f"difference, standard deviation {found.removed[-1]:.3g}"
    how: dict[str, Any] = {"cmap": grey_map(), "vmin": -reach, "vmax": reach, "masks": found.masks}
    _show(axes[2], found, removed, text, bar=part, **how)
    counted = _counted(removed, found.masks)
    axes[3].hist(counted, bins=100, range=(-reach, reach), density=True, color="0.6")
    values = np.linspace(-reach, reach, 200)
    normal = np.exp(-((values / sigma) ** 2) / 2) / (sigma * np.sqrt(2 * np.pi))
    axes[3].plot(values, normal, "C3", linewidth=1)
    axes[3].set_title(f"difference, and Gaussian of sigma {sigma:.3g} (line)", fontsize=TEXT)
    axes[3].set_yticks([])
    axes[3].tick_params(labelsize=_SMALL)
    axes[3].set_xlabel(unit, fontsize=_SMALL)


def _draw_structure(part: SubFigure, found: _Drawn, grey: dict[str, Any]) -> None:
    """Draw strength, coherence and orientation of the structure tensor."""
    step, unit = found.first.step, found.first.unit
    what = "image" if found.mosaic is None else "volume"
    when = "input" if step == 0 else f"{what} after step {step}"
    _heading(part, f"Multiscale structure tensor of the {when}")
    axes = part.subplots(1, 4)
    strengths = found.of(lambda part: part.structure.strength)
    counted = _counted(strengths, found.known)
    highest = (float(np.percentile(counted, 99.5)) if counted.size else 0.0) or 1.0
    _show(
        axes[0], found, strengths, f"edge strength [{unit} / {found.element}]",
        cmap=grey_map("magma"), vmin=0, vmax=highest, bar=part, masks=found.known,
    )  # fmt: skip
    structures = [part.structure for part in found.parts]
    volume = [one for one in structures if isinstance(one, VolumeStructure)]
    if found.mosaic is not None:
        _draw_volume_structure(axes[1:], found, volume, highest, grey)
        return
    _show(
        axes[1], found, [structures[0].coherence], "coherence: 0 no direction, 1 one direction",
        cmap=grey_map("viridis"), vmin=0, vmax=1, bar=part, masks=found.known,
    )  # fmt: skip
    colours = [orientation_picture(structures[0], highest)]
    _show(axes[2], found, colours, "orientation (hue), strength (brightness)")
    _draw_wheel(axes[3])


def _draw_volume_structure(
    axes: Sequence[Axes],
    found: _Drawn,
    structures: Sequence[VolumeStructure],
    highest: float,
    grey: dict[str, Any],
) -> None:
    """Draw kind, direction and, in the planes, lines of the structures of a volume."""
    kinds = [kind_picture(structure, highest) for structure in structures]
    _show(axes[0], found, kinds, "surfaces (orange), lines (blue), neither (white)")
    directions = [direction_picture(structure, highest) for structure in structures]
    _show(axes[1], found, directions, "direction across: X red, Y green, Z blue")
    results = found.of(lambda part: part.images[-1])
    _show(axes[2], found, results, "lines along structures, on the result", **grey)
    if found.mosaic is not None:
        for plane, structure in zip(MOSAIC, structures, strict=True):
            _draw_lines(axes[2], found.mosaic, plane, structure, highest)


def kind_picture(structure: VolumeStructure, highest: float) -> NDArray[np.float64]:
    """Return the kind of structure as colour, and its strength as brightness."""
    neither = 1 - structure.surface - structure.line
    colours = sum(
        share[..., None] * np.array(colour)
        for share, colour in (
            (structure.surface, _SURFACE),
            (structure.line, _LINE),
            (neither, (1.0, 1.0, 1.0)),
        )
    )
    return _greyed(_brightness(structure, highest)[..., None] * colours, structure)


def direction_picture(structure: VolumeStructure, highest: float) -> NDArray[np.float64]:
    """Return the direction across structures as colour, and their strength as brightness."""
    return _greyed(_brightness(structure, highest)[..., None] * abs(structure.across), structure)


def _brightness(structure: Structure, highest: float) -> NDArray[np.float64]:
    return np.sqrt(np.clip(structure.strength / highest, 0, 1))


def _greyed(colours: NDArray[np.float64], structure: Structure) -> NDArray[np.float64]:
    """Return colours that are those of invalid pixels where the structure is unknown."""
    if structure.known is not None:
        colours[~structure.known] = np.array(INVALID) / 255
    return np.clip(colours, 0, 1)


def _draw_lines(
    axes: Axes, mosaic: Mosaic, plane: str, structure: VolumeStructure, highest: float
) -> None:
    """Draw a short line along the strongest structure in each of many squares of a plane."""
    from matplotlib.collections import LineCollection

    box = mosaic.box(plane)
    side = max(mosaic.size) / _MOST_LINES
    rows, columns = (max(round(side / size), 1) for size in (box.row, box.column))
    strength = structure.strength
    if structure.known is not None:
        strength = np.where(structure.known, strength, 0)
    # The outermost cells lie on the border, and belong to no voxel alone.
    strength = np.pad(strength[1:-1, 1:-1], 1)
    lines, colours = [], []
    for top in range(0, strength.shape[0], rows):
        for left in range(0, strength.shape[1], columns):
            square = strength[top : top + rows, left : left + columns]
            row, column = np.unravel_index(int(square.argmax()), square.shape)
            place = top + int(row), left + int(column)
            if square.max() < _WEAKEST_LINE * highest:
                continue
            angle = structure.orientation[place]
            half = 0.45 * side * structure.coherence[place]
            x, y = box.left + place[1] * box.column, box.top + place[0] * box.row
            right, down = half * np.cos(angle), half * np.sin(angle)
            lines.append([(x - right, y - down), (x + right, y + down)])
            across = abs(structure.across[place])
            colours.append(across / across.max())
    axes.add_collection(LineCollection(lines, colors=colours, linewidths=1.1))


def orientation_picture(structure: Structure, highest: float) -> NDArray[np.float64]:
    """Return orientation as hue, coherence as saturation, and strength as brightness."""
    from matplotlib.colors import hsv_to_rgb

    bright = _brightness(structure, highest)
    colours: NDArray[np.float64] = hsv_to_rgb(
        np.stack([structure.orientation / np.pi, structure.coherence, bright], axis=-1)
    )
    return _greyed(colours, structure)


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


_Row = Sequence[Sequence[Diffusivity]]
"""For each scale the diffusivities of all pictures."""


def _rows_of_diffusivities(found: _Drawn) -> list[tuple[str, _Row]]:
    """Return the rows of diffusivities with their headings; isotropic terms have one row."""
    rows: list[tuple[str, _Row]] = []
    scales = list(zip(*(part.diffusivities for part in found.parts), strict=True))
    for order in sorted({items[0].order for items in scales}):
        of_order = [items for items in scales if items[0].order == order]
        largest = max(items[0].weight for items in of_order)
        of_order = [items for items in of_order if items[0].weight >= _LEAST_WEIGHT * largest]
        chosen = [of_order[i] for i in _spread(len(of_order), _MOST_SCALES)]
        which = _name_of(order)
        if all(np.array_equal(item.across, item.along) for items in chosen for item in items):
            rows.append((f"Diffusivity at each scale ({which}), in all directions", chosen))
        else:
            rows.append((f"Diffusivity at each scale ({which}), across structures", chosen))
            along = [[_turned(item) for item in items] for items in chosen]
            rows.append((f"Diffusivity at each scale ({which}), along structures", along))
    return rows


def _name_of(order: int) -> str:
    """Return the derivatives of a term in words."""
    return {1: "gradient", 2: "second derivatives"}.get(order, f"derivatives of order {order}")


def _turned(item: Diffusivity) -> Diffusivity:
    return replace(item, across=item.along, along=item.across)


def _draw_diffusivities(
    part: SubFigure, found: _Drawn, heading: str, row: _Row, columns: int
) -> None:
    """Draw one row of diffusivities."""
    _heading(part, f"{heading}: dark 0 (no flow), bright 1 (free flow)")
    axes = part.subplots(1, columns, squeeze=False)[0]
    for items, place in zip(row, axes, strict=False):
        pictures, known = [item.across for item in items], [item.known for item in items]
        counted = _counted(pictures, known)
        mean = f"{counted.mean():.2f}" if counted.size else "unknown"
        text = f"scale {items[0].scale:.3g}\ncontrast {items[0].contrast:.3g}, mean {mean}"
        how: dict[str, Any] = {"cmap": grey_map("cividis"), "vmin": 0, "vmax": 1}
        _show(place, found, pictures, text, masks=known, **how)
        place.title.set_fontsize(_SMALL)
    for place in axes[len(row) :]:
        place.set_axis_off()


def _draw_snapshots(part: SubFigure, found: _Drawn, grey: dict[str, Any]) -> None:
    """Draw the image after some of the steps."""
    _heading(part, f"Evolution of the {'image' if found.mosaic is None else 'volume'}")
    count = _snapshot_count(found)
    axes = part.subplots(1, count, squeeze=False)[0]
    for place, step in zip(axes, _spread(len(found.first.images), count), strict=True):
        text = "input" if step == 0 else f"after step {step}"
        pictures = [part.images[step] for part in found.parts]
        _show(place, found, pictures, text, **grey)


def _draw_curves(part: SubFigure, found: _Drawn) -> None:
    """Plot the effect of each step, and weights and contrasts over the scales."""
    from matplotlib.ticker import NullFormatter

    _heading(part, "Steps and parameters")
    axes = part.subplots(1, 4)
    steps, unit = range(len(found.removed)), found.first.unit
    axes[0].plot(steps, found.removed, "o-", markersize=3)
    axes[0].axhline(found.first.sigma, color="C3", linewidth=1, label="noise level")
    axes[0].legend(fontsize=_SMALL)
    _label(axes[0], "standard deviation of the removed part", "step", unit)
    axes[0].set_ylim(bottom=0)
    axes[1].plot(steps[1:], found.changes, "o-", markersize=3)
    axes[1].set_ylim(bottom=0)
    _label(axes[1], "root mean square change of each step", "step", unit)
    for order in sorted({item.order for item in found.first.diffusivities}):
        items = [item for item in found.first.diffusivities if item.order == order]
        scales = [item.scale for item in items]
        for place, values in (
            (axes[2], [item.weight for item in items]),
            (axes[3], [item.contrast for item in items]),
        ):
            place.plot(scales, values, "o-", markersize=3, label=_name_of(order))
            place.set_xscale("symlog" if min(scales) == 0 else "log")
            place.set_yscale("log")
            for axis in (place.xaxis, place.yaxis):
                axis.set_minor_formatter(NullFormatter())
    heaviest = max((item.weight for item in found.first.diffusivities), default=1.0)
    axes[2].set_ylim(bottom=max(axes[2].get_ylim()[0], _LEAST_WEIGHT * heaviest))
    _label(axes[2], "weight of each scale in the flux", f"scale [{found.element}s]", "")
    per_pixel = f"{unit} / {found.element}"
    _label(axes[3], "contrast parameter of each scale", f"scale [{found.element}s]", per_pixel)
    axes[2].legend(fontsize=_SMALL)


def _show(
    axes: Axes,
    found: _Drawn,
    pictures: _Pictures,
    title: str,
    *,
    masks: Sequence[Mask | None] | None = None,
    bar: SubFigure | None = None,
    labels: bool = False,
    **how: Any,
) -> None:
    """Draw pictures with invalid pixels greyed out, and a bar of their values if asked for."""
    if found.mosaic is not None:
        drawn = found.mosaic.show(axes, pictures, masks, labels=labels, **how)
    else:
        (picture,) = pictures
        shown = masked(picture, None if masks is None else masks[0])
        drawn = axes.imshow(shown, interpolation="nearest", **how)
        bare(axes)
    axes.set_title(title, fontsize=TEXT)
    if bar is not None:
        bar.colorbar(drawn, ax=axes, fraction=0.046, pad=0.02).ax.tick_params(labelsize=_SMALL)


def _label(axes: Axes, title: str, x: str, y: str) -> None:
    axes.set_title(title, fontsize=TEXT)
    axes.set_xlabel(x, fontsize=_SMALL)
    axes.set_ylabel(y, fontsize=_SMALL)
    axes.tick_params(labelsize=_SMALL)


def _heading(part: SubFigure, text: str) -> None:
    part.suptitle(text, fontsize=_TITLE, fontweight="bold", x=0.01, horizontalalignment="left")


def _snapshot_count(found: _Drawn) -> int:
    return min(_MOST_SNAPSHOTS, len(found.removed))


def _spread(length: int, count: int) -> list[int]:
    """Return up to ``count`` evenly spaced indices below ``length``, with the first and last."""
    return sorted({round(float(x)) for x in np.linspace(0, length - 1, min(count, length))})
