"""What a layer says about its image, and how a result is shown: no widgets, no threads."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import product
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from integrodiff.containers import letters_of

Part: TypeAlias = tuple[slice, ...]
"""A rectangular part of an image: one slice for each axis but that of colour samples."""

_LONGEST = 1024
"""Rows and columns of a preview at most, so that it takes about a second."""

_LONGEST_OF_VOLUME = 256
"""Rows and columns of a preview of a volume at most."""

_SLICES = 8
"""Slices of a preview on either side of the one that is shown."""


def pixels(layer: Any) -> Any:
    """Return the image of a layer in full resolution, as it is: an array, or a lazy one."""
    return layer.data[0] if layer.multiscale else layer.data


def known_axes(layer: Any) -> str | None:
    """Return the axes of a layer by the labels of its axes; None if they do not tell.

    The last two axes are rows and columns, unless they are labelled otherwise.
    """
    letters = letters_of(layer.axis_labels)
    if letters[-2:] == [None, None]:
        letters[-2:] = ["Y", "X"]
    if None in letters or len(letters) < 2:
        return None
    return "".join(letter or "" for letter in letters) + ("S" if layer.rgb else "")


def possible_axes(layer: Any) -> list[str]:
    """Return axes to choose from, for a layer whose last axes are rows and columns."""
    plane = "YXS" if layer.rgb else "YX"
    leading = product("ZTCQ", repeat=layer.ndim - 2)
    return [
        "".join(letters) + plane
        for letters in leading
        if all(letters.count(letter) <= 1 for letter in "ZTC")
    ]


def spacing(layer: Any, axes: str) -> tuple[float, ...]:
    """Return the distance of neighbouring pixels along Z, Y and X, in their order in ``axes``.

    It is the layer's scale, in the unit of its last axis.

    Raises
    ------
    ValueError
        If the units of these axes cannot be compared.
    """
    places = [place for place, letter in enumerate(axes.replace("S", "")) if letter in "ZYX"]
    units = [layer.units[place] for place in places]
    distances = []
    for place, unit in zip(places, units, strict=True):
        distance = abs(float(layer.scale[place]))
        if unit != units[-1]:
            try:
                distance = float((distance * unit).to(units[-1]).magnitude)
            except Exception as error:  # pint has its own hierarchy, and is not imported here
                named = ", ".join(str(unit) for unit in units)
                raise ValueError(
                    f"the units of the axes of this layer, {named}, cannot be compared; set "
                    "layer.units, or do not take the spacing from the layer"
                ) from error
        distances.append(distance)
    return tuple(distances)


def whole(layer: Any) -> Part:
    """Return the part that is the whole image."""
    return tuple(slice(0, int(length)) for length in pixels(layer).shape[: layer.ndim])


def visible_part(layer: Any, axes: str, dims: Any) -> Part:
    """Return the part of an image that a preview takes: what is visible, up to a limit.

    Of axes that are not displayed it is the present frame or channel, and of the slices of a
    volume the present one with those around it.

    Parameters
    ----------
    layer : napari.layers.Image
        The layer.
    axes : str
        Its axes.
    dims : napari.components.Dims
        The dimensions of the viewer: which are displayed, and where it is along the others.
    """
    offset = dims.ndim - layer.ndim
    displayed = {axis - offset for axis in dims.displayed}
    present = np.rint(layer.world_to_data(dims.point[offset:])).astype(int)
    corners = np.array(layer.corner_pixels, dtype=float)
    if layer.multiscale:
        corners *= layer.downsample_factors[layer.data_level][: layer.ndim]
    is_volume = "Z" in axes and pixels(layer).shape[axes.index("Z")] > 1
    found = []
    for axis, length in enumerate(pixels(layer).shape[: layer.ndim]):
        letter = axes[axis]
        first, last = 0, int(length)
        if axis in displayed and corners[1, axis] > corners[0, axis]:
            first = min(max(int(np.floor(corners[0, axis])), 0), last - 1)
            last = min(int(np.ceil(corners[1, axis])) + 1, last)
        here = min(max(int(present[axis]), 0), int(length) - 1)
        if letter == "Z" and axis not in displayed:
            first, last = max(here - _SLICES, 0), min(here + _SLICES + 1, last)
        elif letter in "ZYX":
            most = 2 * _SLICES + 1 if letter == "Z" else _LONGEST
            most = _LONGEST_OF_VOLUME if is_volume and letter != "Z" else most
            first, last = _middle(first, last, most)
        else:
            first, last = here, here + 1
        found.append(slice(first, last))
    return tuple(found)


def _middle(first: int, last: int, most: int) -> tuple[int, int]:
    """Return the middle of a range, with this length at most."""
    start = first + max(last - first - most, 0) // 2
    return start, min(last, start + most)


def display(layer: Any, part: Part) -> dict[str, Any]:
    """Return arguments of ``add_image`` that show a result of a part where the part is."""
    start = np.array([step.start for step in part], dtype=float)
    kept = {
        "scale": layer.scale,
        # Where the first pixel of the part is, before the affine transform of the layer.
        "translate": layer.affine.inverse(np.asarray(layer.data_to_world(start))),
        "rotate": layer.rotate,
        "shear": layer.shear,
        "affine": layer.affine,
        "units": layer.units,
        "axis_labels": layer.axis_labels,
        "rgb": layer.rgb,
    }
    return {name: _copied(value) for name, value in kept.items()}


def appearance(layer: Any) -> dict[str, Any]:
    """Return arguments of ``add_image`` that show grey values as the layer shows its own."""
    names = ["blending", "opacity", "gamma", "interpolation2d", "interpolation3d", "rendering"]
    if not layer.rgb:
        names += ["contrast_limits", "colormap"]
    return {name: _copied(getattr(layer, name)) for name in names}


def _copied(value: Any) -> Any:
    return value.copy() if isinstance(value, np.ndarray) else value


def valid_pixels(layer: Any, image: Any, axes: str, part: Part) -> NDArray[np.bool_]:
    """Return the mask of a part: where a layer is not zero.

    A layer of rows and columns holds for all frames, channels and slices.

    Raises
    ------
    ValueError
        If the layer has neither the size of the image nor that of its rows and columns.
    """
    shape = tuple(image.shape[: len(part)])
    data = pixels(layer)
    rows = axes.index("Y"), axes.index("X")
    if tuple(data.shape) == shape:
        chosen: Sequence[slice] = part
    elif tuple(data.shape) == tuple(shape[axis] for axis in rows):
        chosen = [part[axis] for axis in rows]
    else:
        raise ValueError(
            f"the layer {layer.name!r} has the shape {tuple(data.shape)}, and cannot be the mask "
            f"of an image of shape {shape}; it needs this shape, or rows and columns alone"
        )
    valid: NDArray[np.bool_] = np.asarray(data[tuple(chosen)]) != 0
    return valid
