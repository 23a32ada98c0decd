"""Labelled images side by side on one white sheet."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    from PIL.ImageDraw import ImageDraw

_MARGIN, _LABEL_HEIGHT = 28, 40
_FONT_SIZE, _SMALLEST_FONT = 24, 12


@dataclass(frozen=True, eq=False)
class Tile:
    """An 8-bit image with a label above it.

    Attributes
    ----------
    pixels : ndarray
        ``(row, column)``, or ``(row, column, 3)`` in colour.
    left, right : str
        Parts of the label, aligned to the left and the right.
    """

    pixels: NDArray[np.uint8]
    left: str = ""
    right: str = ""


def sheet(rows: Sequence[Sequence[Tile]]) -> NDArray[np.uint8]:
    """Arrange rows of tiles on one sheet, in colour if any tile is.

    Columns and rows are as wide and as high as their largest tile. A label that is too long for
    its tile is set in smaller type; if that is not enough, the column is widened.
    """
    from PIL import Image
    from PIL.ImageDraw import Draw

    count = max(map(len, rows))
    columns = [[row[i] for row in rows if i < len(row)] for i in range(count)]
    widths = [max(map(_width, column)) for column in columns]
    heights = [max(tile.pixels.shape[0] for tile in row) for row in rows]
    mode = "RGB" if any(tile.pixels.ndim == 3 for row in rows for tile in row) else "L"
    size = (
        sum(widths) + (count + 1) * _MARGIN,
        sum(heights) + len(rows) * (_LABEL_HEIGHT + _MARGIN) + _MARGIN,
    )
    canvas = Image.new(mode, size, "white")
    draw = Draw(canvas)
    y = _MARGIN
    for row, height in zip(rows, heights, strict=True):
        x = _MARGIN
        for tile, width in zip(row, widths, strict=False):
            _write_label(draw, tile, x, y + _LABEL_HEIGHT / 2)
            canvas.paste(Image.fromarray(tile.pixels), (x, y + _LABEL_HEIGHT))
            x += width + _MARGIN
        y += height + _LABEL_HEIGHT + _MARGIN
    return np.array(canvas)


def _width(tile: Tile) -> int:
    return max(int(tile.pixels.shape[1]), _label_width(tile, _SMALLEST_FONT))


def _write_label(draw: ImageDraw, tile: Tile, x: float, middle: float) -> None:
    """Write the label above a tile, in the largest type that fits."""
    from PIL import ImageFont

    width = _width(tile)
    sizes = range(_FONT_SIZE, _SMALLEST_FONT, -1)
    fitting = (size for size in sizes if _label_width(tile, size) <= width)
    font = ImageFont.load_default(size=next(fitting, _SMALLEST_FONT))
    draw.text((x, middle), tile.left, fill="black", font=font, anchor="lm")
    draw.text((x + width, middle), tile.right, fill="black", font=font, anchor="rm")


def _label_width(tile: Tile, size: int) -> int:
    """Return the width in pixels of the label of a tile."""
    from PIL import ImageFont

    font = ImageFont.load_default(size=size)
    return math.ceil(font.getlength(tile.left) + size / 2 + font.getlength(tile.right))


def magnified(image: NDArray[np.uint8], factor: int) -> NDArray[np.uint8]:
    """Repeat every pixel; interpolation would smooth the noise that is to be seen."""
    return image.repeat(factor, axis=0).repeat(factor, axis=1)
