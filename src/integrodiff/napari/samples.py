"""Sample data of the plugin: images with noise that is known."""

from __future__ import annotations

from typing import Any, TypeAlias

import numpy as np

LayerData: TypeAlias = tuple[Any, dict[str, Any], str]
"""Data, arguments and type of a layer, as napari takes them."""


def photograph() -> list[LayerData]:
    """Return scikit-image's cameraman (CC0) with Gaussian noise of standard deviation 25."""
    from skimage.data import camera

    clean = camera().astype(np.float32)
    noisy = clean + np.random.default_rng(0).normal(0, 25, clean.shape).astype(np.float32)
    return [(noisy, {"name": "photograph, noise 25", "contrast_limits": (0, 255)}, "image")]


def colour_photograph() -> list[LayerData]:
    """Return a part of scikit-image's astronaut (public domain) with noise of 20, in 8 bits."""
    from skimage.data import astronaut

    clean = astronaut()[:384, 64:448].astype(np.float64)
    noisy = clean + np.random.default_rng(1).normal(0, 20, clean.shape)
    pixels = np.rint(noisy).clip(0, 255).astype(np.uint8)
    return [(pixels, {"name": "colour photograph, noise 20", "rgb": True}, "image")]


def cells() -> list[LayerData]:
    """Return a generated volume of 24 slices with noise of 20; slices are 0.3 micrometres apart."""
    rng = np.random.default_rng(2)
    shape, spacing = (24, 128, 128), (0.3, 0.2, 0.2)
    z, y, x = (np.arange(n) * d for n, d in zip(shape, spacing, strict=True))
    volume = np.full(shape, 30.0)
    for _ in range(14):
        centre = rng.uniform(0.1, 0.9, 3) * np.array(shape) * spacing
        radius, brightness = rng.uniform(1.2, 2.8), rng.uniform(50, 170)
        distance = np.sqrt(
            (z[:, None, None] - centre[0]) ** 2
            + (y[:, None] - centre[1]) ** 2
            + (x - centre[2]) ** 2
        )
        inside = brightness * (0.6 + 0.4 * (distance > 0.75 * radius))
        volume = np.where(distance < radius, np.maximum(volume, inside), volume)
    noisy = np.rint(volume + rng.normal(100, 20, shape)).clip(0).astype(np.uint16)
    shown = {
        "name": "cells, noise 20",
        "scale": spacing,
        "units": ("um", "um", "um"),
        "axis_labels": ("z", "y", "x"),
        "contrast_limits": (60, 320),
    }
    return [(noisy, shown, "image")]


def photons() -> list[LayerData]:
    """Return generated photon counts, about 20 in bright parts, as integers of 16 bits."""
    rng = np.random.default_rng(3)
    y, x = np.mgrid[:256, :256]
    clean = 2.0 + 6 * (np.sin(x / 9.0) * np.sin(y / 13.0) > 0.2)
    for row, column, radius in rng.uniform((0, 0, 6), (256, 256, 22), (12, 3)):
        clean += 5 * (np.hypot(y - row, x - column) < radius)
    counts = rng.poisson(clean).astype(np.uint16)
    return [(counts, {"name": "photon counts", "contrast_limits": (0, 30)}, "image")]
