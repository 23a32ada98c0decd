"""Matplotlib figures without a window system; Matplotlib is imported only when drawing."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from integrodiff._atomic import atomic_write
from integrodiff.install import install_hint
from integrodiff.validity import Mask
from integrodiff.viz.view import INVALID

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.colors import Colormap
    from matplotlib.figure import Figure

TEXT = 9
"""Size of labels in points."""


def require_matplotlib() -> None:
    """Refuse to draw where Matplotlib is not installed.

    Raises
    ------
    ImportError
        With the command that installs it.
    """
    if find_spec("matplotlib") is None:
        raise ImportError(f"figures need Matplotlib; {install_hint('plot')}")


def new_figure(width: float, height: float) -> Figure:
    """Return an empty figure; width and height in inches."""
    require_matplotlib()
    from integrodiff.viz.notebook_figure import NotebookFigure

    # A figure created without pyplot needs no window system; Agg renders it.
    return NotebookFigure(figsize=(width, height), layout="constrained")


def save_figure(
    figure: Figure, path: Path, *, dots_per_inch: int = 150, overwrite: bool = True
) -> Path:
    """Write a figure as PNG atomically; return the path."""
    with atomic_write(path, overwrite=overwrite) as temporary:
        figure.savefig(temporary, format="png", dpi=dots_per_inch)
    return path


def bare(axes: Axes) -> None:
    """Remove the ticks of an image."""
    axes.set_xticks([])
    axes.set_yticks([])


def masked(values: NDArray[Any], mask: Mask | None) -> Any:
    """Return values with the pixels hidden that are not valid."""
    return values if mask is None else np.ma.MaskedArray(values, mask=~mask)


def grey_map(name: str = "gray", *, turned: bool = False) -> Colormap:
    """Return a colour map that draws hidden pixels in the colour of invalid ones."""
    from matplotlib import colormaps

    found = colormaps[f"{name}_r" if turned else name]
    red, green, blue = (part / 255 for part in INVALID)
    return found.with_extremes(bad=(red, green, blue))
