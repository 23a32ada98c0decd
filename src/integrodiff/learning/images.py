"""Clean images for training and evaluation, and the noise that is added to them.

The recipe: images are sorted by their number (or name). Of image k the first plane is read, and
becomes grey as by Pillow's conversion to ``L``; grey values beyond 8 bits are mapped to [0, 255] by
the rule of :mod:`integrodiff.grey_range`. A generator with seed k chooses where its crop starts.
The noise of image k at level s comes from a generator with seed (s, k) and is never clipped. So
every run sees the same.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from integrodiff.errors import ImageFileError
from integrodiff.grey_range import grey_range
from integrodiff.io import SUFFIXES, format_of_name, open_image

DATA_VARIABLE = "INTEGRODIFF_DATA"
PAPER_LEVELS = (10, 20, 30, 40, 50, 60)
CROP = 256

_GREY_WEIGHTS = (19595, 38470, 7471)
"""Weights of red, green and blue in the luma of ITU-R 601, times 2**16."""


@dataclass(frozen=True)
class CleanImages:
    """Crops of one size, with their names.

    Attributes
    ----------
    pixels : ndarray
        Grey values on the scale [0, 255], ``(image, row, column)``, float32.
    names : tuple of str
        Where each crop comes from.
    source : str
        In words, for provenance.
    """

    pixels: NDArray[np.float32]
    names: tuple[str, ...]
    source: str

    def __len__(self) -> int:
        return len(self.names)

    def part(self, first: int, last: int) -> CleanImages:
        """Return the images from number ``first`` to before ``last``."""
        return CleanImages(self.pixels[first:last], self.names[first:last], self.source)

    @property
    def fingerprint(self) -> str:
        """SHA-256 of all pixels."""
        return hashlib.sha256(np.ascontiguousarray(self.pixels).tobytes()).hexdigest()


def noise(level: float, index: int, shape: tuple[int, ...]) -> NDArray[np.float32]:
    """Return the noise that belongs to image ``index`` at one level."""
    level = float(level)
    # A whole number is its own seed; of any other, the bits are.
    seed = int(level) if level.is_integer() else int(np.float64(level).view(np.uint64))
    rng = np.random.default_rng((seed, index))
    return rng.normal(0, level, shape).astype(np.float32)


def bsds500(split: str, folder: Path | None = None, count: int | None = None) -> CleanImages:
    """Return the crops of one split of BSDS500.

    Parameters
    ----------
    split : {"train", "test"}
        200 images for training; of the test images the first 100 by number.
    folder : path, optional
        Folder that holds ``bsds500/images/train`` and so on, or ``images/train``, or the
        archive's own ``BSDS500/data/images/train``. Without it, the environment variable
        ``INTEGRODIFF_DATA`` names it; without that, the archive is downloaded.
    count : int, optional
        Only the first crops.
    """
    if split not in ("train", "test"):
        raise ValueError(f"split must be 'train' or 'test', got {split!r}")
    images = find_bsds500(folder) / split
    numbered = [path for path in images.glob("*.jpg") if path.stem.isdigit()]
    paths = sorted(numbered, key=lambda path: int(path.stem))
    wanted = 200 if split == "train" else 100
    if len(paths) < wanted:
        raise FileNotFoundError(f"{images} has {len(paths)} images, expected {wanted}")
    return _crops(paths[:wanted][:count], CROP, f"BSDS500 {split}, grey crops of {CROP} x {CROP}")


def image_folder(folder: Path, size: int = CROP, count: int | None = None) -> CleanImages:
    """Return one crop of each image in a folder (not in folders below it).

    All formats of :mod:`integrodiff.io` are read; of a stack, the first plane.

    Raises
    ------
    FileNotFoundError
        If there is no such folder, or no image in it.
    ImageFileError
        If an image cannot be read or is smaller than the crop.
    """
    if not folder.is_dir():
        raise FileNotFoundError(f"there is no folder {folder}")
    names = sorted(folder.iterdir())
    paths = [path for path in names if format_of_name(path) is not None]
    if not paths:
        raise FileNotFoundError(f"{folder} has no image ({', '.join(sorted(SUFFIXES))})")
    return _crops(paths[:count], size, f"grey crops of {size} x {size} from a folder")


def find_bsds500(folder: Path | None) -> Path:
    """Return the folder that has ``train`` and ``test``, given, named, or downloaded."""
    named = folder or os.environ.get(DATA_VARIABLE)
    if not named:
        from integrodiff.learning.download import download_bsds500

        return download_bsds500()
    root = Path(named)
    for below in (
        "bsds500/images",
        "images",
        "BSDS500/data/images",
        "BSR/BSDS500/data/images",
        ".",
    ):
        if (root / below / "train").is_dir() or (root / below / "test").is_dir():
            return root / below
    raise FileNotFoundError(
        f"no BSDS500 images in {root}: expected bsds500/images/train and .../test below it "
        f"(the folder is given by an option or by the environment variable {DATA_VARIABLE})"
    )


def _crops(paths: Sequence[Path], size: int, source: str) -> CleanImages:
    """Read, convert to grey, and crop."""
    crops = []
    for index, path in enumerate(paths):
        grey = _grey_plane(path)
        if min(grey.shape) < size:
            raise ImageFileError(
                f"{path} has {grey.shape[1]} x {grey.shape[0]} pixels, too few for a crop of "
                f"{size} x {size}; take a smaller crop size"
            )
        rng = np.random.default_rng(index)
        top = int(rng.integers(0, grey.shape[0] - size + 1))
        left = int(rng.integers(0, grey.shape[1] - size + 1))
        crops.append(grey[top : top + size, left : left + size])
    return CleanImages(np.stack(crops), tuple(path.name for path in paths), source)


def _grey_plane(path: Path) -> NDArray[np.float32]:
    """Return the first plane of an image file as grey values on the scale [0, 255]."""
    with open_image(path) as image:
        plane = next(image.planes())
        white_is_zero = image.header.metadata.white_is_zero
    if plane.ndim == 3 and plane.shape[-1] != len(_GREY_WEIGHTS):
        raise ImageFileError(
            f"{path} has {plane.shape[-1]} samples per pixel; training takes grey and RGB images"
        )
    if plane.dtype == np.uint8:
        values = _grey(plane).astype(np.float32)
    else:
        values = _grey(_on_the_scale_of_8_bits(path, plane))
    return 255 - values if white_is_zero else values


def _on_the_scale_of_8_bits(path: Path, plane: NDArray[Any]) -> NDArray[np.float32]:
    """Return grey values of another range on the scale [0, 255]."""
    if not np.isfinite(plane).all():
        raise ImageFileError(f"{path} has NaN or infinite values; replace them first")
    try:
        data_range = grey_range(plane, 0.0)
    except ValueError as error:
        raise ImageFileError(
            f"{path} has floating-point values outside of [0, 1]; scale it to [0, 1], or save it "
            "as integers"
        ) from error
    lowest = min(float(plane.min()), 0.0)
    return ((plane.astype(np.float64) - lowest) * (255 / data_range)).astype(np.float32)


def _grey(plane: NDArray[Any]) -> NDArray[Any]:
    """Return the luma of ITU-R 601 as Pillow computes it: to 16 bits, rounded for integers."""
    if plane.ndim == 2:
        return plane
    weights = np.array(_GREY_WEIGHTS)
    if plane.dtype == np.uint8:
        total: NDArray[Any] = plane.astype(np.int64) @ weights
        return (total + 2**15) >> 16
    mean: NDArray[Any] = plane @ (weights / 2**16).astype(np.float32)
    return mean
