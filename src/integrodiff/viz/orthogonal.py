"""Three orthogonal planes of volumes through one point, before and after, in true proportions."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from integrodiff.layout import Layout
from integrodiff.validity import Mask, Validity
from integrodiff.viz.comparison import Comparison, compared, panel, range_of
from integrodiff.viz.sheet import Tile, sheet
from integrodiff.viz.view import View, Window, common_mask, samples_of, select

PLANES = ("YX", "ZX", "ZY")
"""Rows and columns of the three planes, one below the other."""

MOSAIC = ("YX", "ZX", "YZ")
"""Rows and columns of the three planes around a corner: the first, one below, one to its right."""

_MARK = (255, 210, 0)


class Point(NamedTuple):
    """A voxel, counted from zero."""

    z: int
    y: int
    x: int

    def along(self, letter: str) -> int:
        """Return the index along an axis."""
        return int(self["ZYX".index(letter)])

    def words(self, plane: str, first: int) -> str:
        """Say which plane through the point it is."""
        letter = normal_of(plane)
        return f"{plane[0]}{plane[1]} at {letter}={self.along(letter) + first}"

    def plane_of(self, volume: NDArray[Any], plane: str) -> NDArray[Any]:
        """Return the plane through the point of an array (z, y, x), or (z, y, x, sample)."""
        letter = normal_of(plane)
        found: NDArray[Any] = volume.take(self.along(letter), axis="ZYX".index(letter))
        return found if plane in PLANES else found.swapaxes(0, 1)


def normal_of(plane: str) -> str:
    """Return the axis that a plane is orthogonal to."""
    (letter,) = set("ZYX") - set(plane)
    return letter


@dataclass(frozen=True, kw_only=True)
class Places:
    """A point of a volume, and the planes of a stack that are its slices.

    Attributes
    ----------
    point : Point
        The voxel.
    slices : tuple of int
        Numbers of the planes, in the order of the slices.
    samples : tuple of int, optional
        The samples that are drawn; None for all.
    words : str
        What was chosen, such as "T=2 of 3, Z=12 of 24, Y=40 of 80, X=33 of 66".
    first : int
        What the first index is called in words.
    """

    point: Point
    slices: tuple[int, ...]
    samples: tuple[int, ...] | None = None
    words: str = ""
    first: int = 0

    @property
    def false_colour(self) -> bool:
        """Whether three bands are drawn as red, green and blue."""
        return self.samples is not None and len(self.samples) == 3

    def words_of(self, plane: str) -> str:
        """Say which plane through the point it is."""
        return self.point.words(plane, self.first)


def places(
    layout: Layout,
    at: Mapping[str, int] | None = None,
    *,
    page: int | None = None,
    bands: Sequence[int] | None = None,
    all_samples: bool = False,
    first: int = 0,
) -> Places:
    """Return the point and the slices that are drawn; what is not given is the middle.

    Parameters
    ----------
    layout : Layout
        Axes of the image, a volume.
    at : mapping from str to int, optional
        Indices along axes, also Y and X, from zero.
    page, bands, all_samples, first
        As in :func:`integrodiff.viz.view.select`. A page is that of a slice.

    Raises
    ------
    ValueError
        If the image is no volume, or there is no such place.
    """
    if not layout.is_volume:
        raise ValueError(
            f"places along Y and X are for volumes; this image has the axes {layout.axes}. If its "
            "pages are slices of a volume, take axes with Z"
        )
    along = dict(at or {})
    size = dict(zip("YX", layout.size, strict=True))
    in_plane = {letter: along.pop(letter, length // 2) for letter, length in size.items()}
    for letter, index in in_plane.items():
        if not 0 <= index < size[letter]:
            raise ValueError(
                f"{letter}={index + first} does not exist: the image has {letter} from "
                f"{first} to {size[letter] - 1 + first}"
            )
    chosen = select(layout, at=along, page=page, bands=bands, all_samples=all_samples, first=first)
    if len(chosen.planes) > 1:
        raise ValueError("planes of volumes are drawn of one channel; give one band, not three")
    number, between = chosen.planes[0], layout.planes_between_slices
    z = number // between % layout.slices
    words = [chosen.words, *(f"{n}={in_plane[n] + first} of {size[n]}" for n in "YX")]
    return Places(
        point=Point(z, in_plane["Y"], in_plane["X"]),
        slices=tuple(number + (k - z) * between for k in range(layout.slices)),
        samples=chosen.samples,
        words=", ".join(filter(None, words)),
        first=first,
    )


def orthogonal_views(
    planes: Iterable[NDArray[Any]],
    where: Places,
    validity: Validity,
    *,
    white_is_zero: bool = False,
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
    """
    point, numbers = where.point, {number: z for z, number in enumerate(where.slices)}
    parts: dict[str, list[Any]] = {plane: [None] * len(numbers) for plane in PLANES[1:]}
    masks: dict[str, list[Any]] = {plane: [None] * len(numbers) for plane in PLANES[1:]}
    slice_: tuple[NDArray[Any], Mask | None] | None = None
    for number, plane in enumerate(planes):
        if number not in numbers:
            continue
        pixels = samples_of(plane, where.samples)
        z, valid = numbers[number], validity.of(pixels, number)
        known = np.ones(pixels.shape[:2], np.bool_) if valid is None else valid
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
            words=where.words_of(plane),
            false_colour=where.false_colour,
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
    planes = list(zip(*images, strict=True))
    if data_range is None and len(images) > 2:
        data_range = range_of([replace(views[-1], mask=common_mask(views)) for views in planes])
    found = [compared(views, window=window, data_range=data_range) for views in planes]
    scale, windows = max(comparison.deviation for comparison in found), found[0].windows
    return [replace(comparison, windows=windows, deviation=scale) for comparison in found]


def orthogonal_sheet(
    comparisons: Sequence[Comparison], where: Places, spacing: Mapping[str, float]
) -> NDArray[np.uint8]:
    """Return a sheet with a row for each plane; lines mark the other two.

    ``spacing`` is the distance of voxels along Z, Y and X; empty if it is unknown.
    """
    rows = []
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
            marked = _marked(picture, *(where.point.along(letter) for letter in plane))
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
