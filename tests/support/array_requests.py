"""Requests of every kind for small images, so that arrays of all libraries are tried with them."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from integrodiff import PoissonGaussian, UnknownDetector


def noisy(*shape: int, dtype: str = "float32") -> Any:
    return np.random.default_rng(0).normal(100, 20, shape).clip(0, 255).astype(dtype)


def edges(*shape: int) -> Any:
    image = noisy(*shape)
    image[..., shape[-1] // 2 :] += 60
    return image


def photons(side: int) -> NDArray[Any]:
    light = np.repeat([20.0, 200.0, 60.0, 120.0], side // 4)[:, None] * np.ones(side)
    return np.random.default_rng(1).poisson(light).astype(np.float32)


def some_valid(*shape: int) -> NDArray[np.bool_]:
    valid = np.random.default_rng(2).random(shape) > 0.2
    valid[..., 2:5, 1] = False
    return valid


def levels_of(*shape: int) -> NDArray[np.float64]:
    return np.linspace(10, 30, int(np.prod(shape))).reshape(shape)


def varying(side: int) -> Any:
    rng = np.random.default_rng(3)
    return (100 + rng.normal(0, 1, (side, side)) * np.linspace(5, 40, side)).astype(np.float32)


REQUESTS: dict[str, tuple[Any, dict[str, Any]]] = {
    "mask": (edges(14, 15), {"mask": some_valid(14, 15)}),
    "mask of frames": (edges(3, 14, 15), {"axes": "TYX", "mask": some_valid(3, 14, 15)}),
    "one mask for frames": (edges(3, 14, 15), {"axes": "TYX", "mask": some_valid(14, 15)}),
    "mask of colour": (edges(14, 15, 3), {"axes": "YXS", "mask": some_valid(14, 15)}),
    "mask of higher derivatives": (
        edges(24, 25),
        {"model": "iad-plus", "mask": some_valid(24, 25)},
    ),
    "mask of a volume": (
        edges(3, 9, 10),
        {"axes": "ZYX", "model": "iad-plus", "mask": some_valid(3, 9, 10)},
    ),
    "map": (edges(14, 15), {"sigma": levels_of(14, 15)}),
    "map and mask": (edges(14, 15), {"sigma": levels_of(14, 15), "mask": some_valid(14, 15)}),
    "map of a volume": (
        edges(3, 9, 10),
        {"axes": "ZYX", "model": "iad-plus", "sigma": levels_of(3, 9, 10)},
    ),
    "map of a volume and mask": (
        edges(3, 9, 10),
        {
            "axes": "ZYX",
            "model": "iad-plus",
            "sigma": levels_of(3, 9, 10),
            "mask": some_valid(3, 9, 10),
        },
    ),
    "correlated noise": (edges(14, 15), {"sigma": {0.5: 10.0, 2.0: 25.0}, "model": "iad"}),
    "estimated": (edges(40, 41), {"sigma": None}),
    "all estimated": (edges(40, 41), {"sigma": None, "data_range": None}),
    "scale estimated": (edges(40, 41), {"data_range": None}),
    "scale of a small image": (edges(6, 7), {"data_range": None}),
    "colour estimated": (edges(2, 40, 41, 3), {"axes": "TYXS", "sigma": None}),
    "channels estimated": (edges(2, 40, 2, 41), {"axes": "CYTX", "sigma": None}),
    "estimated with mask": (
        edges(60, 61),
        {"sigma": None, "data_range": None, "mask": some_valid(60, 61) | (np.arange(61) > 9)},
    ),
    "varying": (varying(120), {"sigma": None}),
    "map estimated": (varying(90), {"sigma": "map"}),
    "photons": (photons(40), {"sigma": None, "noise": "poisson"}),
    "photons and their scale": (
        photons(40),
        {"sigma": None, "noise": "poisson", "data_range": None},
    ),
    "known detector": (
        2 * photons(40) + 100,
        {"sigma": None, "noise": PoissonGaussian(gain=2, offset=100, readout=3)},
    ),
    "unknown detector": (
        (2 * photons(80) + 100).astype(np.uint16),
        {"sigma": None, "noise": UnknownDetector(offset=100)},
    ),
    "unknown detector with mask": (
        2 * photons(80) + 100,
        {"sigma": None, "noise": "poisson-gaussian", "mask": np.arange(80) > 6},
    ),
    "magnitudes": (edges(24, 25), {"noise": "rician"}),
    "magnitudes estimated": (edges(40, 41), {"noise": "rician", "sigma": None}),
    "magnitudes with a map": (edges(24, 25), {"noise": "rician", "sigma": levels_of(24, 25)}),
    "rounded": (edges(14, 15).clip(0, 255).astype(np.uint8), {}),
    "wide integers": ((1e6 * edges(14, 15)).astype(np.int32), {"sigma": 2e7, "data_range": 2.55e8}),
    "clipped": (noisy(14, 15).astype(np.int8), {"sigma": 60.0}),
    "not rounded": (edges(14, 15).astype(np.uint16), {"as_float": True}),
    "integers and mask": (edges(14, 15).astype(np.uint16), {"mask": some_valid(14, 15)}),
    "transparency": (noisy(14, 15, 4).astype(np.uint8), {"axes": "YXS"}),
    "nothing to do": (edges(14, 15), {"sigma": 0.0}),
    "some samples without noise": (edges(14, 15, 3), {"axes": "YXS", "sigma": [20.0, 0.0, 10.0]}),
}


def arguments(name: str) -> tuple[Any, dict[str, Any]]:
    """Return an image and the arguments of ``denoise`` for it, without the engine."""
    image, more = REQUESTS[name]
    return image, {"sigma": 20.0, "model": "pm", "data_range": 255, **more}


LOOKED_AT = ("estimated", "scale", "unknown", "varying")
"""Words in the names of requests for which some pixels go to the host."""


def looks_at_pixels(name: str) -> bool:
    """Whether some pixels of an image go to the host for a request."""
    return any(word in name for word in LOOKED_AT)
