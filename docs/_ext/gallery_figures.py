"""Figures of ``integrodiff.compare`` and ``integrodiff.explain`` in the gallery.

They do not belong to pyplot, which is all that sphinx-gallery looks for by itself.
"""

from __future__ import annotations

from typing import Any

from matplotlib.figure import Figure
from sphinx_gallery.scrapers import figure_rst


def scrape(block: Any, block_vars: dict[str, Any], gallery_conf: dict[str, Any]) -> str:
    """Save the figure that a block has assigned to ``figure``, unless pyplot knows it."""
    figure = block_vars["example_globals"].get("figure")
    if not isinstance(figure, Figure) or hasattr(figure, "number"):
        return ""
    path = str(next(block_vars["image_path_iterator"]))
    figure.savefig(path, dpi=90)
    del block_vars["example_globals"]["figure"]
    return str(figure_rst([path], gallery_conf["src_dir"]))
