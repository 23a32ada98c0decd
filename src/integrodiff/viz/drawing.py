"""Matplotlib figures without a window system; Matplotlib is imported only when drawing."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from integrodiff._atomic import atomic_write

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def new_figure(width: float, height: float) -> Figure:
    """Return an empty figure; width and height in inches."""
    from matplotlib.figure import Figure

    # A figure created without pyplot needs no window system; Agg renders it.
    return Figure(figsize=(width, height), layout="constrained")


def save_figure(
    figure: Figure, path: Path, *, dots_per_inch: int = 150, overwrite: bool = True
) -> Path:
    """Write a figure as PNG atomically; return the path."""
    with atomic_write(path, overwrite=overwrite) as temporary:
        figure.savefig(temporary, format="png", dpi=dots_per_inch)
    return path
