"""Two images and their difference: the numbers of ``compare``, and a picture by Pillow."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from integrodiff._checks import positive_number
from integrodiff.grey_range import grey_range
from integrodiff.validity import Mask
from integrodiff.viz.metrics import psnr, ssim
from integrodiff.viz.sheet import Tile, magnified, sheet
from integrodiff.viz.view import View, Window, common_mask

Floats: TypeAlias = NDArray[np.float64]

# Longer side of a panel in pixels; images are magnified or reduced to about this size.
_PANEL = 640
# The difference is centred on mid-grey; black and white are this many standard deviations away.
_DEVIATIONS = 4.0
# Side of the enlarged square: as a part of the shorter side, and its limits in pixels.
_ZOOM_PART, _SMALLEST_ZOOM, _LARGEST_ZOOM = 1 / 4, 48, 128


@dataclass(frozen=True, kw_only=True)
class Quality:
    """PSNR in dB and SSIM of an image, compared with a clean one."""

    psnr: float
    ssim: float

    def __str__(self) -> str:
        return f"{self.psnr:.2f} dB"


@dataclass(frozen=True, kw_only=True)
class Region:
    """A square region of an image, in pixels."""

    top: int
    left: int
    size: int

    def of(self, image: NDArray[Any]) -> NDArray[Any]:
        """Return the region of an image, as a view."""
        return image[self.top : self.top + self.size, self.left : self.left + self.size]

    def __str__(self) -> str:
        return f"{self.size} x {self.size} at row {self.top}, column {self.left}"


def quality(
    image: NDArray[Any],
    clean: NDArray[Any],
    data_range: float,
    mask: Mask | None = None,
) -> Quality:
    """Return PSNR and SSIM of a grey image, or of one with its samples last.

    With a mask, the PSNR is that of valid pixels, and the SSIM that of windows without an invalid
    pixel.
    """
    if mask is None:
        return Quality(psnr=psnr(image, clean, data_range), ssim=ssim(image, clean, data_range))
    valid = mask if image.ndim == 2 else mask[..., None]
    # What is at invalid pixels has no effect; NaN would have one, as the SSIM uses running sums.
    first, second = (np.where(valid, part, part.dtype.type(0)) for part in (image, clean))
    return Quality(
        psnr=psnr(image[mask], clean[mask], data_range),
        ssim=ssim(first, second, data_range, mask),
    )


@dataclass(frozen=True, kw_only=True, eq=False)
class Comparison:
    """An image before and after denoising, as it is drawn.

    Attributes
    ----------
    images : dict from str to View
        ``before``, ``after`` and, if there is one, ``clean``; all with the same mask.
    windows : tuple of (float, float)
        Grey values that are drawn black and white in these images, for each sample.
    removed : View
        ``before`` minus ``after``.
    deviation : float
        Its standard deviation over valid pixels.
    region : Region
        The square that is enlarged.
    data_range : float, optional
        Range of grey values for PSNR and SSIM; None if there is no clean image.
    qualities : dict from str to Quality
        Of ``before`` and ``after``, if there is a clean image.
    """

    images: dict[str, View]
    windows: tuple[Window, ...]
    removed: View
    deviation: float
    region: Region
    data_range: float | None
    qualities: dict[str, Quality]

    @property
    def unit(self) -> str:
        """Unit of all grey values."""
        return self.removed.unit

    @property
    def mask(self) -> Mask | None:
        """True at pixels that are valid in all images; None if all are."""
        return self.removed.mask

    @property
    def reach(self) -> float:
        """Difference that is drawn white."""
        return _DEVIATIONS * self.deviation or 1.0

    @property
    def deviation_words(self) -> str:
        """The standard deviation of the difference with its unit."""
        return f"sd {self.deviation:.3g} {self.unit}"

    @property
    def window_words(self) -> str:
        """The window with its unit."""
        if len(set(self.windows)) > 1:
            return "a window for each band"
        low, high = self.windows[0]
        return f"black {low:.4g}, white {high:.4g} {self.unit}"

    def pictures(self) -> dict[str, NDArray[np.uint8]]:
        """Return all images in 8 bits, in the order in which they are drawn."""
        found = {name: image.as_bytes(self.windows) for name, image in self.images.items()}
        ends = ((-self.reach, self.reach),) * len(self.windows)
        clean = {"clean": found.pop("clean")} if "clean" in found else {}
        return found | {"removed": self.removed.as_bytes(ends)} | clean


def compared(
    views: Sequence[View],
    *,
    window: Window | None = None,
    zoom: Sequence[int] | None = None,
    data_range: float | None = None,
) -> Comparison:
    """Compare two or three views of the same size: before, after and clean.

    Parameters
    ----------
    views : sequence of View
        Their invalid pixels do not count in any of them.
    window : (float, float), optional
        Grey values that are drawn black and white. By default one that fits the image with the
        least noise.
    zoom : sequence of int, optional
        Row, column and side of the square that is enlarged. By default the one with the strongest
        structure.
    data_range : float, optional
        For PSNR and SSIM. By default that of the dtype of the clean image, or the difference of
        its largest and smallest value.

    Raises
    ------
    TypeError, ValueError
        If the square is not inside the images, the data range is no positive number, or no pixel
        is valid in all of them.
    """
    mask = common_mask(views)
    masked = [replace(view, mask=mask) for view in views]
    images = dict(zip(("before", "after", "clean"), masked, strict=False))
    with np.errstate(invalid="ignore"):  # infinite pixels are invalid
        removed = np.subtract(views[0].pixels, views[1].pixels, dtype=np.float64)
    difference = replace(masked[0], pixels=removed, white_is_zero=False)
    span = None
    if data_range is not None:
        span = positive_number("data_range", data_range)
    elif "clean" in images:
        span = range_of([images["clean"]])
    qualities = {}
    if "clean" in images and span is not None:
        clean = images["clean"].pixels
        qualities = {
            name: quality(images[name].pixels, clean, span, mask) for name in ("before", "after")
        }
    least_noise = masked[-1]
    return Comparison(
        images=images,
        windows=least_noise.windows(window),
        removed=difference,
        deviation=float(difference.valid.std()),
        region=busiest_region(least_noise.pixels, mask) if zoom is None else _region(zoom, removed),
        data_range=span,
        qualities=qualities,
    )


def range_of(clean: Sequence[View]) -> float:
    """Return the range of views of a clean image: by its dtype, or that of its valid values."""
    values = np.concatenate([view.valid.ravel() for view in clean])
    try:
        return grey_range(values, 0.0)
    except ValueError:  # floating point of any range
        return float(np.ptp(values.astype(np.float64))) or 1.0


def _region(zoom: Sequence[int], image: NDArray[Any]) -> Region:
    """Return the square to enlarge; refuse one that is not inside the image."""
    top, left, size = zoom
    height, width = image.shape[:2]
    if min(top, left) < 0 or size < 1 or top + size > height or left + size > width:
        raise ValueError(
            f"the square to zoom, {top} {left} {size}, is not inside the image of {height} rows "
            f"and {width} columns"
        )
    return Region(top=top, left=left, size=size)


def busiest_region(image: NDArray[Any], mask: Mask | None = None) -> Region:
    """Return the square with the largest mean gradient magnitude between valid pixels."""
    from scipy.ndimage import uniform_filter

    grey = image.astype(np.float64) if image.ndim == 2 else image.mean(axis=-1, dtype=np.float64)
    shorter = min(grey.shape)
    size = min(max(round(_ZOOM_PART * shorter), _SMALLEST_ZOOM), _LARGEST_ZOOM, shorter)
    grey = grey if mask is None else np.where(mask, grey, np.nan)
    steps = [np.gradient(grey, axis=axis) if grey.shape[axis] > 1 else 0 * grey for axis in (0, 1)]
    strength = uniform_filter(np.nan_to_num(np.hypot(*steps)), size, mode="constant")
    # The filter centres its window on a pixel; keep the windows that lie inside the image.
    rows, columns = (length - size + 1 for length in grey.shape)
    start = size // 2
    inside = strength[start : start + rows, start : start + columns]
    top, left = np.unravel_index(int(inside.argmax()), inside.shape)
    return Region(top=int(top), left=int(left), size=size)


def comparison_sheet(comparison: Comparison) -> NDArray[np.uint8]:
    """Return a sheet with both images, their difference, the clean image, and enlarged squares."""
    region, shown = comparison.region, comparison.pictures()
    labels = {name: str(found) for name, found in comparison.qualities.items()}
    labels["removed"] = comparison.deviation_words
    upper = [
        Tile(panel(_framed(pixels, region)), name, labels.get(name, ""))
        for name, pixels in shown.items()
    ]
    factor = max(upper[0].pixels.shape[1] // region.size, 1)
    below = {
        "before": f"{region}, x {factor}",
        "after": comparison.window_words,
        "removed": f"black, white: -/+ {comparison.reach:.3g}",
    }
    lower = [
        Tile(magnified(region.of(pixels), factor), below.get(name, ""))
        for name, pixels in shown.items()
    ]
    return sheet([upper, lower])


def _framed(image: NDArray[np.uint8], region: Region) -> NDArray[np.uint8]:
    """Return a colour copy of the image with a yellow frame around the region."""
    coloured = image[..., None].repeat(3, axis=-1) if image.ndim == 2 else image.copy()
    top, left = max(region.top - 1, 0), max(region.left - 1, 0)
    bottom, right = (
        min(start + region.size, length - 1)
        for start, length in zip((region.top, region.left), image.shape[:2], strict=True)
    )
    yellow = np.array([255, 210, 0], np.uint8)
    coloured[[top, bottom], left : right + 1] = yellow
    coloured[top : bottom + 1, [left, right]] = yellow
    return coloured


def panel(image: NDArray[np.uint8]) -> NDArray[np.uint8]:
    """Magnify a small image by an integer factor, or reduce a large one by averaging."""
    from PIL import Image

    longer = max(image.shape[:2])
    if longer <= _PANEL:
        return magnified(image, _PANEL // longer)
    height, width = (max(round(length * _PANEL / longer), 1) for length in image.shape[:2])
    return np.array(Image.fromarray(image).resize((width, height), Image.Resampling.BOX))
