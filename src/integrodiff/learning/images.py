"""Clean images for training and evaluation, and the noise that is added to them.

The recipe: images are sorted by their number (or name). Image k becomes grey by Pillow's
conversion to ``L``; a generator with seed k says where its crop starts. The noise of image k at
level s comes from a generator with seed (s, k) and is never clipped. So every run sees the same.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from integrodiff.errors import ImageFileError

DATA_VARIABLE = "INTEGRODIFF_DATA"
PAPER_LEVELS = (10, 20, 30, 40, 50, 60)
CROP = 256

_SUFFIXES = {".png", ".jpg", ".jpeg", ".tif", ".tiff", ".bmp"}


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

    Raises
    ------
    FileNotFoundError
        If there is no such folder, or no image in it.
    ImageFileError
        If an image cannot be read or is smaller than the crop.
    """
    if not folder.is_dir():
        raise FileNotFoundError(f"there is no folder {folder}")
    paths = sorted(path for path in folder.iterdir() if path.suffix.lower() in _SUFFIXES)
    if not paths:
        raise FileNotFoundError(f"{folder} has no image ({', '.join(sorted(_SUFFIXES))})")
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
    from PIL import Image, UnidentifiedImageError

    crops = []
    for index, path in enumerate(paths):
        try:
            with Image.open(path) as picture:
                if picture.mode.startswith(("I", "F")):
                    raise ImageFileError(
                        f"{path} has more than 8 bits per pixel, which training does not take; "
                        "convert it to 8 bits"
                    )
                grey = np.asarray(picture.convert("L"), np.float32)
        except (OSError, UnidentifiedImageError, Image.DecompressionBombError) as error:
            raise ImageFileError(f"{path} cannot be read as an image: {error}") from error
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
