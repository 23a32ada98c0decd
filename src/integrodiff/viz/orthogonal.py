"""Three orthogonal planes of volumes through one point, before and after, in true proportions."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from integrodiff.layout import Layout
from integrodiff.validity import Mask, Validity
from integrodiff.viz.comparison import Comparison, compared, panel
from integrodiff.viz.sheet import Tile, sheet
from integrodiff.viz.view import View, Window, select

PLANES = ("YX", "ZX", "ZY")
"""Rows and columns of the three planes."""

_MARK = (255, 210, 0)


class Point(NamedTuple):
    """A voxel, counted from zero."""

    z: int
    y: int
    x: int

    def words(self, plane: str, first: int) -> str:
        """Say which plane through the point it is."""
        (letter,) = set("ZYX") - set(plane)
        return f"{plane[0]}{plane[1]} at {letter}={getattr(self, letter.lower()) + first}"


@dataclass(frozen=True, kw_only=True)
class Places:
    """A point of a volume, and the planes of a stack that are its slices.

    Attributes
    ----------
    point : Point
        The voxel.
    slices : tuple of int
        Numbers of the planes, in the order of the slices.
    """

    point: Point
    slices: tuple[int, ...]


def places(layout: Layout, at: Mapping[str, int], *, first: int = 0) -> Places:
    """Return the point and the slices that are drawn; what is not given is the middle.

    Raises
    ------
    ValueError
        If the image is no volume, or there is no such place.
    """
    if not layout.is_volume or layout.has_samples:
        raise ValueError(
            f"places along Y and X are for grey volumes; this image has the axes {layout.axes}"
        )
    height, width = layout.size
    for letter, length in (("Y", height), ("X", width)):
        if not 0 <= at.get(letter, 0) < length:
            raise ValueError(
                f"{letter}={at[letter] + first} does not exist: the image has {letter} from "
                f"{first} to {length - 1 + first}"
            )
    along = {letter: index for letter, index in at.items() if letter not in "YX"}
    z = along.pop("Z", layout.slices // 2)
    numbers = [
        select(layout, at={**along, "Z": number}, first=first).planes[0]
        for number in (z, *range(layout.slices))
    ]
    point = Point(z, at.get("Y", height // 2), at.get("X", width // 2))
    return Places(point=point, slices=tuple(numbers[1:]))


def orthogonal_views(
    planes: Iterable[NDArray[Any]],
    where: Places,
    validity: Validity,
    *,
    white_is_zero: bool = False,
    first: int = 0,
) -> list[View]:
    """Return the views of the three planes; of each slice only what is drawn is kept.

    Parameters
    ----------
    planes : iterable of ndarray
        All planes of the image, in order.
    where : Places
        The point.
    validity : Validity
        Which voxels are valid.
    white_is_zero : bool
        Whether small values are drawn bright.
    first : int
        What the first index is called in words.
    """
    point, numbers = where.point, {number: z for z, number in enumerate(where.slices)}
    parts: dict[str, list[Any]] = {plane: [None] * len(numbers) for plane in PLANES[1:]}
    masks: dict[str, list[Any]] = {plane: [None] * len(numbers) for plane in PLANES[1:]}
    slice_: tuple[NDArray[Any], Mask | None] | None = None
    for number, pixels in enumerate(planes):
        if number not in numbers:
            continue
        z, valid = numbers[number], validity.of(pixels, number)
        known = np.ones(pixels.shape, np.bool_) if valid is None else valid
        parts["ZX"][z], masks["ZX"][z] = pixels[point.y].copy(), known[point.y].copy()
        parts["ZY"][z], masks["ZY"][z] = pixels[:, point.x].copy(), known[:, point.x].copy()
        if z == point.z:
            slice_ = pixels.copy(), valid
        if number == max(numbers):
            break
    if slice_ is None:
        raise ValueError("the image ends before the slice that is drawn")
    stacked = [(np.stack(parts[plane]), np.stack(masks[plane])) for plane in PLANES[1:]]
    return [
        View(
            pixels=pixels,
            mask=None if mask is None or mask.all() else mask,
            words=point.words(plane, first),
            white_is_zero=white_is_zero,
        )
        for plane, (pixels, mask) in zip(PLANES, [slice_, *stacked], strict=True)
    ]


def compared_planes(
    images: Sequence[Sequence[View]],
    *,
    window: Window | None = None,
    data_range: float | None = None,
) -> list[Comparison]:
    """Compare the three planes of two or three volumes, with one window and one scale for all.

    Parameters
    ----------
    images : sequence of sequences of View
        For each volume, before, after and clean, its three planes.
    window, data_range
        As in :func:`integrodiff.viz.comparison.compared`.
    """
    found: list[Comparison] = []
    for views in zip(*images, strict=True):
        known = found[0].windows[0] if found and window is None else window
        found.append(compared(views, window=known, data_range=data_range))
    scale = max(comparison.deviation for comparison in found)
    return [replace(comparison, deviation=scale) for comparison in found]


def orthogonal_sheet(
    comparisons: Sequence[Comparison], where: Places, spacing: Mapping[str, float]
) -> NDArray[np.uint8]:
    """Return a sheet with a row for each plane; lines mark the other two.

    ``spacing`` is the distance of voxels along Z, Y and X; empty if it is unknown.
    """
    rows = []
    point = where.point._asdict()
    for plane, comparison in zip(PLANES, comparisons, strict=True):
        deviation = float(comparison.removed.valid.std())
        labels = {name: str(quality) for name, quality in comparison.qualities.items()}
        labels["removed"] = f"sd {deviation:.3g} {comparison.unit}"
        words = {
            "before": comparison.images["before"].words,
            "after": comparison.window_words,
            "removed": f"black, white: -/+ {comparison.reach:.3g}",
        }
        row = []
        for name, picture in comparison.pictures().items():
            marked = _marked(picture, *(point[letter.lower()] for letter in plane))
            shown = panel(_in_proportion(marked, plane, spacing))
            left = ": ".join(filter(None, (name, words.get(name))))
            row.append(Tile(shown, left, labels.get(name, "")))
        rows.append(row)
    return sheet(rows)


def _marked(picture: NDArray[np.uint8], row: int, column: int) -> NDArray[np.uint8]:
    """Return a colour copy with short marks at the edges, beside the row and the column."""
    marked = picture[..., None].repeat(3, axis=-1) if picture.ndim == 2 else picture.copy()
    height, width = marked.shape[:2]
    across, down = max(width // 16, 1), max(height // 16, 1)
    marked[row, :across] = marked[row, width - across :] = _MARK
    marked[:down, column] = marked[height - down :, column] = _MARK
    return marked


def _in_proportion(
    picture: NDArray[np.uint8], plane: str, spacing: Mapping[str, float]
) -> NDArray[np.uint8]:
    """Return a picture with square pixels; those along the larger spacing are repeated."""
    from PIL import Image

    if not spacing:
        return picture
    height, width = (
        length * spacing[letter] for letter, length in zip(plane, picture.shape[:2], strict=True)
    )
    finest = min(spacing[letter] for letter in plane)
    size = max(round(width / finest), 1), max(round(height / finest), 1)
    return np.array(Image.fromarray(picture).resize(size, Image.Resampling.NEAREST))
