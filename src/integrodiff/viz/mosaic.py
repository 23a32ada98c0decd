"""Three orthogonal planes of a volume in one picture of Matplotlib, in true proportions.

::

    rows Y, columns X      rows Y, columns Z
    rows Z, columns X

Planes beside each other share an axis. Short yellow lines mark where the other two planes are.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from integrodiff.validity import Mask
from integrodiff.viz.drawing import masked
from integrodiff.viz.orthogonal import MOSAIC, Places

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.image import AxesImage

_GAP, _MARK = 0.03, 0.05
"""Distance of planes, and length of marks, as a part of the longer side of the picture."""

_COLOUR, _TEXT = "#ffd200", 7


class Box(NamedTuple):
    """Where a plane is drawn: its corner, its size, and the size of its pixels, right and down."""

    left: float
    top: float
    width: float
    height: float
    column: float
    row: float


@dataclass(frozen=True, kw_only=True)
class Mosaic:
    """The arrangement of the planes.

    Attributes
    ----------
    where : Places
        The point.
    shape : tuple of int
        Numbers of slices, rows and columns of the volume.
    spacing : tuple of float
        Their distances.
    """

    where: Places
    shape: tuple[int, ...]
    spacing: tuple[float, ...]

    @property
    def _lengths(self) -> tuple[float, float, float]:
        depth, height, width = np.multiply(self.shape, self.spacing).tolist()
        return depth, height, width

    @property
    def _gap(self) -> float:
        depth, height, width = self._lengths
        return _GAP * (depth + max(height, width))

    @property
    def size(self) -> tuple[float, float]:
        """Height and width of the picture."""
        depth, height, width = self._lengths
        return height + self._gap + depth, width + self._gap + depth

    def box(self, plane: str) -> Box:
        """Return the place of one of the planes of :data:`.MOSAIC`."""
        _, height, width = self._lengths
        left = width + self._gap if plane == "YZ" else 0.0
        top = height + self._gap if plane == "ZX" else 0.0
        row, column = (self.spacing["ZYX".index(letter)] for letter in plane)
        rows, columns = (self.shape["ZYX".index(letter)] for letter in plane)
        return Box(left, top, columns * column, rows * row, column, row)

    def show(
        self,
        axes: Axes,
        pictures: Sequence[NDArray[Any]],
        masks: Sequence[Mask | None] | None = None,
        *,
        labels: bool = False,
        **how: Any,
    ) -> AxesImage:
        """Draw values of the planes, at their pixels or at the cells between them.

        Parameters
        ----------
        axes : Axes
            Where they are drawn.
        pictures : sequence of ndarray
            For each plane of :data:`.MOSAIC` its values, or colours.
        masks : sequence of masks, optional
            True at pixels that are valid.
        labels : bool
            Whether each plane says which one it is.
        **how
            Colour map and limits, as for ``imshow``.
        """
        drawn = []
        for plane, picture, mask in zip(MOSAIC, pictures, masks or (None,) * 3, strict=True):
            box = self.box(plane)
            # Cells lie on the edges of the pixels, and there is one more along each axis.
            more = picture.shape[0] - round(box.height / box.row)
            right, below = more * box.column / 2, more * box.row / 2
            extent = (
                box.left - right,
                box.left + box.width + right,
                box.top + box.height + below,
                box.top - below,
            )
            shown = masked(picture, mask)
            drawn.append(axes.imshow(shown, interpolation="nearest", extent=extent, **how))
            self._mark(axes, plane, box)
            if labels:
                self._label(axes, plane, box)
        height, width = self.size
        axes.set_xlim(0, width)
        axes.set_ylim(height, 0)
        axes.set_aspect("equal")
        axes.set_axis_off()
        return drawn[0]

    def _mark(self, axes: Axes, plane: str, box: Box) -> None:
        """Draw short lines where the other two planes are."""
        point = self.where.point
        y = box.top + (point.along(plane[0]) + 0.5) * box.row
        x = box.left + (point.along(plane[1]) + 0.5) * box.column
        length = _MARK * min(self.size)
        right, down = box.left + box.width, box.top + box.height
        across, below = min(length, box.width / 4), min(length, box.height / 4)
        for xs, ys in (
            ([box.left, box.left + across], [y, y]),
            ([right - across, right], [y, y]),
            ([x, x], [box.top, box.top + below]),
            ([x, x], [down - below, down]),
        ):
            axes.plot(xs, ys, color=_COLOUR, linewidth=0.8, solid_capstyle="butt")

    def _label(self, axes: Axes, plane: str, box: Box) -> None:
        words = self.where.words_of(plane)
        # A narrow plane has its label along its longer side.
        angle = 90 if box.height > 2 * box.width else 0
        offset = 0.01 * max(self.size)
        axes.text(
            box.left + offset,
            box.top + offset,
            words,
            color=_COLOUR,
            fontsize=_TEXT,
            verticalalignment="top",
            horizontalalignment="left",
            clip_on=True,
            bbox={"facecolor": "black", "alpha": 0.6, "edgecolor": "none", "pad": 1},
            rotation=angle,
        )
