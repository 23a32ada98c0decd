"""Upper bounds on the memory of the compiled steps, computed before they run.

The counts follow the arrays of ``native/steps``: ``fused.cpp`` and ``exact.cpp`` for images,
``volume_fused.cpp`` and ``volume.cpp`` for volumes. Tests compare them with what the engine takes.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from integrodiff.engines.shortcuts import (
    Shortcuts,
    VolumeShortcuts,
    integration_kernel,
    is_integrated,
    shortcuts,
    volume_shortcuts,
)
from integrodiff.engines.threads import thread_count
from integrodiff.stages import Evolution
from integrodiff.stages._arrays import plain

_MARGINS = 96
"""Numbers beside each row of an image, in any precision."""

_STRIP = 1024
"""Columns that the fused step takes at a time, see ``native/steps/tile.hpp``."""


def step_bytes(
    evolution: Evolution,
    shape: tuple[int, ...],
    dtype: np.dtype[Any],
    *,
    exact: bool,
    threads: int | None,
    mapped: bool,
    masked: bool,
) -> int:
    """Return an upper bound of the bytes that the steps hold beside image and result.

    Parameters
    ----------
    evolution : Evolution
        The process.
    shape : tuple of int
        Channels, slices if it is a volume, rows and columns.
    dtype : dtype
        In which it is computed: float32 or float64.
    exact, threads
        As in :meth:`.Engine.prepare`.
    mapped, masked : bool
        There is a map of noise levels; there are invalid pixels.
    """
    size = 4 if dtype == np.float32 else 8
    workers = thread_count() if threads is None else threads
    count = _of_volume if len(shape) == 4 else _of_image
    shortcut = not (exact or masked)
    return count(evolution, shape, size, workers, shortcut=shortcut, mapped=mapped, masked=masked)


def _of_image(
    evolution: Evolution,
    shape: tuple[int, ...],
    size: int,
    workers: int,
    *,
    shortcut: bool,
    mapped: bool,
    masked: bool,
) -> int:
    """Return the bytes for an image, of numbers of some size."""
    lanes = 64 // size
    found = shortcuts(evolution) if shortcut else None
    if found is not None:
        # A map may keep scales that are left out without one.
        kept = evolution if mapped else found.evolution
        numbers = _image_with_shortcuts(kept, found, shape, lanes, workers)
    else:
        numbers = _image_without(evolution, shape, lanes, masked=masked)
    channels, height, width = shape
    padded = (height + 1) * _row(width + 1, lanes)
    if any(map(plain, evolution.pulls())):
        numbers += channels * padded
    # Maps of noise levels are prepared in float64, masks as distances.
    of_map = (2 * size + 40) * padded if mapped else 0
    return size * numbers + of_map + (40 * padded if masked else 0)


def _of_volume(
    evolution: Evolution,
    shape: tuple[int, ...],
    size: int,
    workers: int,
    *,
    shortcut: bool,
    mapped: bool,
    masked: bool,
) -> int:
    """Return the bytes for a volume, of numbers of some size."""
    lanes = 64 // size
    found = volume_shortcuts(evolution) if shortcut else None
    if found is not None:
        numbers = _volume_with_shortcuts(found, shape, lanes, workers)
    else:
        numbers = _volume_without(len(evolution.scales), shape, lanes, workers)
        if is_integrated(evolution):
            # Entries of the structure tensor, and the share of known ones.
            cells = math.prod(length + 1 for length in shape[1:3])
            numbers += (6 + masked) * cells * (_whole(shape[3] + 1, lanes) + 4 * lanes)
        if masked:
            # Valid voxels, two polynomials, and what prepares them.
            numbers += 7 * math.prod(shape[:3]) * (shape[3] + 4 * lanes)
    padded = math.prod(shape[:3]) * (shape[3] + lanes)
    if any(map(plain, evolution.pulls())):
        numbers += padded
    # Maps of noise levels are prepared in float64.
    return size * numbers + (40 * padded // shape[0] if mapped else 0)


def _image_with_shortcuts(
    evolution: Evolution, found: Shortcuts, shape: tuple[int, ...], lanes: int, workers: int
) -> int:
    """Return an upper bound of the numbers that the fused step holds."""
    channels, height, width = shape
    fine = len(found.fine)
    coarse = max(len(evolution.scales) - fine, 0)
    second = len(evolution.terms(0)) > 1
    stride = _row(width, lanes)
    radii = sum(len(taps) for taps in found.fine)
    longest = max(len(taps) for taps in found.fine)
    integration = max(len(integration_kernel(terms[0])) for terms in evolution.schedule)
    rows = channels * (fine + coarse) * (2 * (radii + integration + 8) + 3 * longest + 30)
    rows += 3 * (2 * integration + 4) + 60 + 15 * (fine + coarse) * channels
    strips = -(-width // _STRIP)
    around = 2 * (radii + longest + integration + 40)
    tiles = strips * max(1, -(-workers // strips))
    half = ((height + 1) // 2 + 1) * _row((width + 1) // 2, lanes)
    on_coarse = channels * (1 + 2 * coarse) * half + (4 * half if second else 0)
    of_worker = 12 * (stride + 16 * lanes)
    of_tiles = tiles * rows * _row(min(_STRIP + around, width) + lanes, lanes)
    return 2 * channels * height * stride + on_coarse + of_tiles + workers * of_worker + 2**12


def _image_without(
    evolution: Evolution, shape: tuple[int, ...], lanes: int, *, masked: bool
) -> int:
    """Return an upper bound of the numbers that the exact step holds."""
    channels, height, width = shape
    padded = (height + 1) * _row(width + 1, lanes)
    terms = max(len(terms) for terms in evolution.schedule)
    planes = channels * (len(evolution.scales) + 2) + 6 * terms + 1
    if masked:
        planes += 2 * channels + 5
    return planes * padded + 400 * (width + 64 * lanes) * channels


def _volume_with_shortcuts(
    found: VolumeShortcuts, shape: tuple[int, ...], lanes: int, workers: int
) -> int:
    """Return an upper bound of the numbers that the step with shortcuts holds."""
    channels, slices, height, width = shape
    fine, coarse = len(found.fine[0]), len(found.coarse[0])
    stride = _whole(width, lanes) + lanes
    reach = [max(len(taps) for taps in axis) for axis in found.fine]
    halves = [
        (size + 1) // 2 if taps else size
        for size, taps in zip(shape[1:], found.sampling, strict=True)
    ]
    coarse_stride = _whole(halves[2], lanes)
    row = width + 256
    ring_rows = sum(2 * len(taps) for taps in found.fine[1])
    of_worker = (
        (height + ring_rows + 10) * (stride + 5 * lanes)
        + (halves[0] + 1) * (coarse_stride + 4 * lanes)
        + (fine + reach[0] + 6) * row
    )
    # Slices of each scale and of each flow; layers of the structure tensor that are smoothed.
    layers = 2 * found.integration_radius + 4 if found.integration_radius is not None else 0
    waiting = layers // 2
    kept = ((6 + waiting) * (fine + coarse) + min(slices, 2 * reach[0])) * height * stride
    kept += 6 * layers * (height + 2) * stride // channels + 1
    coarse_volumes = (1 + 2 * coarse) * math.prod(halves[:2]) * coarse_stride
    arrays = 8 + 3 * (fine + coarse)
    return (
        channels * (slices * height * width + kept + coarse_volumes)
        + workers * of_worker
        + arrays * 8 * lanes
    )


def _volume_without(scales: int, shape: tuple[int, ...], lanes: int, workers: int) -> int:
    """Return an upper bound of the numbers that the exact step holds."""
    channels, slices, height, width = shape
    stride = _whole(width + 1, lanes) + 3 * lanes
    whole = (2 + scales) * slices * height * stride
    flows = 2 * scales * height * (stride + 2 * lanes)
    of_worker = (max(slices, height) + 11) * (stride + 2 * lanes) + width + 2**10
    return channels * (whole + flows) + workers * of_worker + (8 + scales) * 8 * lanes


def _row(width: int, lanes: int) -> int:
    """Return the numbers in a row of an image with its margins, see ``steps/rows.hpp``."""
    return _whole(width, lanes) + _MARGINS


def _whole(count: int, lanes: int) -> int:
    """Return the smallest multiple of the length of vectors that is not below a number."""
    return -(-count // lanes) * lanes
