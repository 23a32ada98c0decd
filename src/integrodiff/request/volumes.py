"""The geometry of a volume: its slices and its spacing."""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np

from integrodiff.errors import VolumeModelWarning, outside
from integrodiff.layout import Layout
from integrodiff.request.arguments import Request, Source

_THICK = 2.5
"""Ratio of spacings up to which volumes are known to be denoised well."""


class Volume(NamedTuple):
    """Geometry of a volume.

    Attributes
    ----------
    slices : int
        Number of slices.
    spacing : (float, float, float)
        Distance of slices, rows and columns over the smallest of them.
    origin : {"given", "file", "unknown"}
        Where the spacing comes from; if unknown it is assumed to be equal.
    """

    slices: int
    spacing: tuple[float, float, float]
    origin: str

    def __str__(self) -> str:
        ratios = " : ".join(f"{distance:g}" for distance in self.spacing)
        origin = {"file": ", from the file", "unknown": ", unknown and taken as equal"}
        return f"volume, spacing {ratios} (z : y : x{origin.get(self.origin, '')})"


def checked_volume(request: Request, source: Source) -> Volume | None:
    """Return the geometry of a volume; None for images."""
    layout = source.layout
    given = _distances_of(layout, request.spacing)
    if not layout.is_volume:
        if given is not None and not np.isclose(given["Y"], given["X"], rtol=1e-3):
            raise ValueError(
                "images must have the same spacing of rows and columns, got "
                f"{given['Y']:g} and {given['X']:g}; only volumes may have others"
            )
        return None
    model = request.model
    if model.dimensions != 3:
        warnings.warn(
            "the parameters of this model were trained on images, and blur volumes too much; take "
            "model='iad-plus', or axes with Q in place of Z to denoise slices one by one",
            VolumeModelWarning,
            stacklevel=outside(),
        )
    try:
        model.evolution(max(model.noise_levels, default=25.0), None, (1.0, 1.0, 1.0))
    except ValueError as error:
        raise ValueError(
            f"this model cannot denoise volumes: {error}. Take model='iad-plus', or axes with Q "
            "in place of Z to denoise slices one by one"
        ) from error
    geometry = volume_of(layout, request.spacing, source.distances)
    z, y, x = geometry.spacing
    if max(z, y, x) > _THICK:
        warnings.warn(
            f"the spacing of this volume is {z:g} : {y:g} : {x:g} (z : y : x). Above {_THICK:g} "
            "diffusion in three dimensions was worse than slice by slice on some data "
            "(docs/volumes.md); take axes with Q in place of Z to denoise slices one by one",
            VolumeModelWarning,
            stacklevel=outside(),
        )
    return geometry


def volume_of(
    layout: Layout, spacing: Sequence[float] | None, known: Mapping[str, float]
) -> Volume:
    """Return the geometry of a volume.

    Parameters
    ----------
    layout : Layout
        Its axes.
    spacing : sequence of float, optional
        Distances that were given, in the order of the axes Z, Y and X.
    known : mapping from str to float
        Distances that the image declares, by the letter of the axis.
    """
    distances: Mapping[str, float] = dict.fromkeys("ZYX", 1.0)
    origin = "unknown"
    given = _distances_of(layout, spacing)
    if given is not None:
        distances, origin = given, "given"
    elif set("ZYX") <= set(known):
        distances, origin = known, "file"
    smallest = min(distances[letter] for letter in "ZYX")
    # Files often have spacing in single precision.
    z, y, x = (round(distances[letter] / smallest, 6) for letter in "ZYX")
    return Volume(layout.slices, (z, y, x), origin)


def _distances_of(layout: Layout, spacing: Sequence[float] | None) -> dict[str, float] | None:
    """Return the given spacing as a mapping from the letters of the axes."""
    if spacing is None:
        return None
    letters = [letter for letter in layout.axes if letter in "ZYX"]
    if len(spacing) != len(letters):
        raise ValueError(
            f"spacing needs one number for each of the axes {', '.join(letters)} of the image, in "
            f"this order; got {len(spacing)}. If its pages are slices of a volume, "
            "take axes with Z"
        )
    return dict(zip(letters, spacing, strict=True))
