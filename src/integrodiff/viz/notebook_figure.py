"""A Matplotlib figure that notebooks show although pyplot does not know it."""

from __future__ import annotations

from io import BytesIO

from matplotlib.figure import Figure


class NotebookFigure(Figure):
    """A figure that draws itself where it is the result of a cell."""

    def _repr_png_(self) -> bytes:
        """Return the picture that IPython shows."""
        stream = BytesIO()
        self.savefig(stream, format="png")
        return stream.getvalue()
