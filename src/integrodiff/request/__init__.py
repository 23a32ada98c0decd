"""Resolve a request: noise, scale and colour space of each channel of an image.

A :class:`Request` holds the arguments of a user, in Python or on the command line. :func:`resolve`
combines it with an image, an array or an open file, and estimates whatever is missing. All callers
use this function, so the same request has the same meaning everywhere.
"""

from integrodiff.request.arguments import (
    MAP,
    NOISES,
    Noise,
    Request,
    Sigma,
    Source,
    checked_spacing,
    computing_dtype,
    levels_array,
)
from integrodiff.request.resolved import InvalidPixels, Level, ResolvedChannel, ResolvedRequest
from integrodiff.request.resolver import resolve
from integrodiff.request.volumes import Volume, volume_of

__all__ = [
    "MAP",
    "NOISES",
    "InvalidPixels",
    "Level",
    "Noise",
    "Request",
    "ResolvedChannel",
    "ResolvedRequest",
    "Sigma",
    "Source",
    "Volume",
    "checked_spacing",
    "computing_dtype",
    "levels_array",
    "resolve",
    "volume_of",
]
