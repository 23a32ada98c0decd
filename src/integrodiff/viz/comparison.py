"""PSNR, SSIM and the picture of ``integrodiff compare``."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from integrodiff.viz.metrics import psnr, ssim
from integrodiff.viz.sheet import Tile, magnified, sheet

Floats: TypeAlias = NDArray[np.float64]

# Longer side of a panel in pixels; images are magnified or reduced to about this size.
_PANEL = 640
# The difference is centred on mid-grey; black and white are this many standard deviations away.
_DEVIATIONS = 4.0
_GREY = 128  # of invalid pixels
# Side of the enlarged square: as a part of the shorter side, and its limits in pixels.
_ZOOM_PART, _SMALLEST_ZOOM, _LARGEST_ZOOM = 1 / 4, 48, 128


@dataclass(frozen=True, kw_only=True)
class Quality:
    """PSNR in dB and SSIM of an image, compared with a clean one."""

    psnr: float
    ssim: float


@dataclass(frozen=True, kw_only=True)
class Region:
    """A square region of an image, in pixels."""

    top: int
    left: int
    size: int

    def of(self, image: NDArray[Any]) -> NDArray[Any]:
        """Return the region of an image, as a view."""
        return image[self.top : self.top + self.size, self.left : self.left + self.size]


def quality(
    image: NDArray[Any],
    clean: NDArray[Any],
    data_range: float,
    mask: NDArray[np.bool_] | None = None,
) -> Quality:
    """Return PSNR and SSIM of a grey image, or of one with its samples last.

    With a mask, the PSNR is that of valid pixels; the SSIM is that of windows around them, with
    the clean image at invalid pixels.
    """
    if mask is None:
        return Quality(psnr=psnr(image, clean, data_range), ssim=ssim(image, clean, data_range))
    valid = mask if image.ndim == 2 else mask[..., None]
    whole = np.where(valid, image, clean)
    return Quality(
        psnr=psnr(image[mask], clean[mask], data_range),
        ssim=ssim(whole, clean, data_range, mask),
    )


def busiest_region(image: NDArray[Any]) -> Region:
    """Return the square with the largest mean gradient magnitude."""
    from scipy.ndimage import uniform_filter

    grey = image.astype(np.float64) if image.ndim == 2 else image.mean(axis=-1)
    shorter = min(grey.shape)
    size = min(max(round(_ZOOM_PART * shorter), _SMALLEST_ZOOM), _LARGEST_ZOOM, shorter)
    steps = [np.gradient(grey, axis=axis) if grey.shape[axis] > 1 else 0 * grey for axis in (0, 1)]
    strength = uniform_filter(np.hypot(*steps), size, mode="constant")
    # The filter centres its window on a pixel; keep the windows that lie inside the image.
    rows, columns = (length - size + 1 for length in grey.shape)
    start = size // 2
    inside = strength[start : start + rows, start : start + columns]
    top, left = np.unravel_index(int(inside.argmax()), inside.shape)
    return Region(top=int(top), left=int(left), size=size)


def comparison_sheet(
    before: NDArray[Any],
    after: NDArray[Any],
    clean: NDArray[Any] | None,
    region: Region,
    data_range: float,
    mask: NDArray[np.bool_] | None = None,
) -> NDArray[np.uint8]:
    """Return a sheet with both images, their difference, the clean image, and enlarged squares.

    Parameters
    ----------
    before, after, clean : ndarray
        Images of the same shape, grey or with three channels last.
    region : Region
        Framed in the upper row, enlarged in the lower one.
    data_range : float
        Grey range for the PSNR in the labels.
    mask : array of bool, optional
        True at valid pixels; the others are drawn grey and do not count.
    """
    removed = before.astype(np.float64) - after.astype(np.float64)
    counted = removed if mask is None else removed[mask]
    images = {"before": before, "after": after} | ({} if clean is None else {"clean": clean})
    ends = _display_range(*(i if mask is None else i[mask] for i in images.values()))
    shown = {name: _as_bytes(image, *ends) for name, image in images.items()}
    reach = max(_DEVIATIONS * float(counted.std()), 1e-12 * data_range)
    shown["removed"] = _as_bytes(removed, -reach, reach)
    if mask is not None:
        for pixels in shown.values():
            pixels[~mask] = _GREY
    labels = {"removed": f"sd {counted.std():.3g}"}
    if clean is not None:
        for name in ("before", "after"):
            labels[name] = f"{quality(images[name], clean, data_range, mask).psnr:.2f} dB"
    upper = [
        Tile(_panel(_framed(pixels, region)), name, labels.get(name, ""))
        for name, pixels in shown.items()
    ]
    wide = upper[0].pixels.shape[1]
    factor = max(wide // region.size, 1)
    where = f"{region.size} x {region.size} at row {region.top}, column {region.left}"
    lower = [
        Tile(magnified(region.of(pixels), factor), where if number == 0 else "", f"x {factor}")
        for number, pixels in enumerate(shown.values())
    ]
    return sheet([upper, lower])


def _display_range(*images: NDArray[Any]) -> tuple[float, float]:
    """Return the grey values drawn as black and white, common to all images."""
    if all(image.dtype == np.uint8 for image in images):
        return 0.0, 255.0
    # Noise and hot pixels must not stretch the range, so the last image, the clean or denoised
    # one, determines it.
    low, high = np.percentile(images[-1].astype(np.float64), [0.1, 99.9])
    return (float(low), float(high)) if high > low else (float(low), float(low) + 1)


def _as_bytes(image: NDArray[Any], black: float, white: float) -> NDArray[np.uint8]:
    scaled = (image.astype(np.float64) - black) * (255 / (white - black))
    return np.asarray(np.rint(scaled.clip(0, 255)), np.uint8)


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


def _panel(image: NDArray[np.uint8]) -> NDArray[np.uint8]:
    """Magnify a small image by an integer factor, or reduce a large one by averaging."""
    from PIL import Image

    longer = max(image.shape[:2])
    if longer <= _PANEL:
        return magnified(image, _PANEL // longer)
    height, width = (max(round(length * _PANEL / longer), 1) for length in image.shape[:2])
    return np.array(Image.fromarray(image).resize((width, height), Image.Resampling.BOX))
