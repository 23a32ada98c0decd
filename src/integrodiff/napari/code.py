"""The Python code that repeats what the panel did, bit by bit."""

from __future__ import annotations

from typing import Any

from integrodiff.napari.job import Settings
from integrodiff.napari.layers import Part, pixels, whole

_SHOWN = ("scale", "translate", "rotate", "shear", "affine", "units", "axis_labels", "rgb")
"""What a result takes from its layer, so that it lies where that does."""


def as_python(layer: Any, settings: Settings, part: Part, mask: Any = None, noise: str = "") -> str:
    """Return code for napari's console, where ``viewer`` is defined.

    Parameters
    ----------
    layer : napari.layers.Image
        The layer that is denoised.
    settings : Settings
        The arguments.
    part : tuple of slice
        The part of the image.
    mask : layer, optional
        A layer that is not zero at valid pixels.
    noise : str
        What is known of the noise, for a comment.
    """
    everything = part == whole(layer)
    given = [f"{name}={value!r}" for name, value in settings.arguments().items()]
    lines = ["from integrodiff import denoise"]
    if _is_lazy(layer):
        lines.insert(0, "import numpy as np")
    lines += ["", f"layer = viewer.layers[{layer.name!r}]"]
    image = "layer.data[0]" if layer.multiscale else "layer.data"
    if not everything:
        image += f"[{_text_of(part)}]"
        if _is_lazy(layer):
            image = f"np.asarray({image})"
    lines.append(f"image = {image}")
    if mask is not None:
        data = "data[0]" if mask.multiscale else "data"
        axes = settings.axes or "YX"
        own = part if mask.ndim == len(part) else (part[axes.index("Y")], part[axes.index("X")])
        chosen = "" if everything else f"[{_text_of(own)}]"
        lines.append(f"valid = viewer.layers[{mask.name!r}].{data}{chosen} != 0")
        given.append("mask=valid")
    if noise:
        lines.append(f"# {noise}")
    lines.append(_call("result = denoise", ["image", *given]))
    if everything:
        shown = ["result", f"name={layer.name + ' denoised'!r}"]
        shown += [f"{name}=layer.{name}" for name in _SHOWN]
        lines.append(_call("viewer.add_image", shown))
    return "\n".join(lines) + "\n"


def _call(function: str, arguments: list[str]) -> str:
    """Return a call in one line, or with an argument in each."""
    short = f"{function}({', '.join(arguments)})"
    if len(short) <= 88:
        return short
    return "\n".join([f"{function}(", *[f"    {argument}," for argument in arguments], ")"])


def _text_of(part: Part) -> str:
    return ", ".join(f"{step.start}:{step.stop}" for step in part)


def _is_lazy(layer: Any) -> bool:
    """Whether the image is not in memory."""
    return not hasattr(pixels(layer), "__array_interface__")
