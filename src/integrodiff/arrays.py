"""Arrays as images: checks the dtype and determines the axes."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from integrodiff.layout import Layout
from integrodiff.namespaces import LIBRARIES, Array, dtype_of, moved, opened_by_dlpack
from integrodiff.units import GreyUnits
from integrodiff.validity import Validity, all_finite, plane_masks

_KINDS = {"b": "a boolean mask", "c": "complex", "O": "an array of Python objects"}


@dataclass(frozen=True, eq=False)
class ArrayImage:
    """An array with its axes.

    Attributes
    ----------
    array : array
        Integer or real floating point, of NumPy, PyTorch or CuPy.
    layout : Layout
        Its axes.
    validity : Validity
        Which pixels are valid.
    distances : mapping
        Distance of neighbouring pixels along an axis, in one unit, by the letter of the axis;
        empty if unknown.
    units : GreyUnits
        The unit of noise levels, that of the values.
    """

    array: Array
    layout: Layout
    validity: Validity = field(default_factory=Validity)
    distances: Mapping[str, float] = field(default_factory=dict)
    units: GreyUnits = field(default_factory=GreyUnits)

    @property
    def dtype(self) -> np.dtype[Any]:
        """Type of the grey values."""
        return dtype_of(self.array)

    def planes(self) -> Iterator[Array]:
        """Iterate over views of all planes, in order."""
        return self.layout.planes(self.array)

    def split_last_sample(self) -> tuple[Array, ArrayImage]:
        """Return the last sample of all pixels, and the image without it; both are views."""
        colours, last = self.layout.split_last_sample(self.array)
        layout = Layout(self.layout.axes, tuple(colours.shape))
        return last, ArrayImage(colours, layout, self.validity, self.distances)

    def looked_through(self) -> ArrayImage:
        """Return the image, with all values known to be finite if they are.

        On a GPU the host waits for it once then, and not for every plane.
        """
        if not all_finite(self.array):
            return self
        return replace(self, validity=replace(self.validity, is_finite=True))


def array_image(
    image: ArrayLike,
    *,
    axes: str | None = None,
    channel_axis: int | None = None,
    mask: ArrayLike | None = None,
) -> ArrayImage:
    """Return an array with its axes; refuse one that cannot be denoised.

    Parameters
    ----------
    image : array_like
        The image. The masked pixels of a masked array are invalid.
    axes : str, optional
        One letter for each axis, see :mod:`integrodiff.layout`.
    channel_axis : int, optional
        Axis of the colour samples of a single image, as in scikit-image.
    mask : array of bool, optional
        True at valid pixels, see :func:`integrodiff.validity.plane_masks`.

    Raises
    ------
    TypeError, ValueError
        If the array is not an image, or its axes are unclear.
    """
    array = np.asarray(image.data if isinstance(image, np.ma.MaskedArray) else image)
    check_dtype(array.dtype)
    layout = Layout(axes_of(array.shape, axes, channel_axis), array.shape)
    validity = Validity()
    if isinstance(image, np.ma.MaskedArray):
        hidden = np.broadcast_to(np.ma.getmask(image), array.shape)
        validity = validity.with_mask(plane_masks(~hidden, layout), "masked")
    if mask is not None:
        validity = validity.with_mask(plane_masks(np.asarray(mask), layout), "mask")
    return ArrayImage(array, layout, validity)


def image_on_device(
    image: Array, *, axes: str | None, channel_axis: int | None, mask: Any = None
) -> ArrayImage:
    """Return an array of PyTorch or CuPy with its axes, as :func:`array_image`.

    A mask that is on the host goes to the device of the image.
    """
    check_dtype(dtype_of(image))
    shape = tuple(image.shape)
    layout = Layout(axes_of(shape, axes, channel_axis), shape)
    validity = Validity()
    if mask is not None:
        valid = moved(mask, image, "mask")
        validity = validity.with_mask(plane_masks(valid, layout), "mask")
    return ArrayImage(image, layout, validity)


def opened_image(
    image: Any, *, axes: str | None, channel_axis: int | None, mask: Any = None
) -> ArrayImage:
    """Return an array on a GPU as one of PyTorch or CuPy with its axes, where it is.

    Raises
    ------
    TypeError
        If neither is installed.
    """
    array = opened_by_dlpack(image, tuple(LIBRARIES))
    if array is None:
        raise TypeError(
            f"an array of the type {type(image).__module__}.{type(image).__qualname__} on a GPU "
            "needs PyTorch or CuPy; install one of them, or move it to the host"
        )
    array = array.detach() if hasattr(array, "detach") else array
    return image_on_device(array, axes=axes, channel_axis=channel_axis, mask=mask)


def check_dtype(dtype: np.dtype[Any]) -> None:
    """Refuse arrays that are no images by the type of their values."""
    if dtype.kind not in "iuf":
        raise TypeError(
            "image must be integer or real floating point, got "
            f"{_KINDS.get(dtype.kind, f'dtype {dtype}')}"
        )


def axes_of(shape: tuple[int, ...], axes: str | None, channel_axis: int | None) -> str:
    """Return the axes string: the given one, or that of a grey or colour image."""
    if axes is not None:
        if channel_axis is not None:
            raise ValueError("give axes or channel_axis, not both")
        if not isinstance(axes, str):
            raise TypeError(f"axes must be a string such as 'TYX', got {axes!r}")
        return axes.upper()
    if channel_axis is None:
        if len(shape) == 2:
            return "YX"
        if len(shape) == 3:
            raise ValueError(
                f"the axes of an image of shape {shape} are ambiguous: give channel_axis=-1 "
                "or axes='YXS' for colour, axes='TYX' for frames that share a noise level, "
                "axes='CYX' for channels with a noise level each, or axes='ZYX' for a volume"
            )
        raise ValueError(
            f"image must have two axes, rows and columns, got shape {shape}; for more axes "
            "give axes, such as 'TCYX'"
        )
    if isinstance(channel_axis, bool) or not isinstance(channel_axis, (int, np.integer)):
        raise TypeError(f"channel_axis must be an integer or None, got {channel_axis!r}")
    if len(shape) != 3:
        raise ValueError(
            "an image with channel_axis must have three axes: rows, columns and channels; got "
            f"shape {shape}. For more axes give axes, such as 'TYXS'"
        )
    if not -3 <= channel_axis < 3:
        raise ValueError(f"channel_axis {channel_axis} does not exist in an image of shape {shape}")
    letters = ["Y", "X"]
    letters.insert(channel_axis % 3, "S")
    return "".join(letters)
