"""Matplotlib, loaded only when something is drawn, and without any window."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from integrodiff._atomic import atomic_write

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def new_figure(width: float, height: float) -> Figure:
    """Return an empty figure of that size in inches."""
    from matplotlib.figure import Figure

    # Without pyplot a figure belongs to no window system, and Agg draws it.
    return Figure(figsize=(width, height), layout="constrained")


def save_figure(
    figure: Figure, path: Path, *, dots_per_inch: int = 150, overwrite: bool = True
) -> Path:
    """Write a figure as PNG, whole or not at all; return the path."""
    with atomic_write(path, overwrite=overwrite) as temporary:
        figure.savefig(temporary, format="png", dpi=dots_per_inch)
    return path
