"""BSDS500 from its authors, verified image by image."""

from __future__ import annotations

import hashlib
import json
from importlib.resources import files
from pathlib import Path

URL = "http://www.eecs.berkeley.edu/Research/Projects/CS/vision/grouping/BSR/BSR_bsds500.tgz"


def download_bsds500(cache: Path | None = None) -> Path:
    """Download the archive once, verify its images, and return their folder.

    Every image that training and evaluation use is compared with its known SHA-256.

    Raises
    ------
    ConnectionError
        If the archive cannot be had; the message says how to name a folder instead.
    ValueError
        If an image is not the known one.
    """
    import pooch

    folder = cache or Path(pooch.os_cache("integrodiff"))
    try:
        members = pooch.retrieve(
            URL,
            known_hash=None,  # the images are verified below, each by itself
            path=folder,
            fname="BSR_bsds500.tgz",
            processor=pooch.Untar(extract_dir="bsds500"),
        )
    except (OSError, ValueError) as error:
        raise ConnectionError(
            "BSDS500 could not be downloaded; get it elsewhere and name its folder by an option "
            f"or by the environment variable INTEGRODIFF_DATA ({error})"
        ) from error
    images = next(
        (Path(name).parents[1] for name in members if "/images/train/" in Path(name).as_posix()),
        None,
    )
    if images is None:
        raise ValueError(f"{URL} does not hold the images of BSDS500 as it used to")
    verify_bsds500(images)
    return images


def verify_bsds500(images: Path) -> None:
    """Compare the images in ``train`` and ``test`` with their known hashes.

    Raises
    ------
    ValueError
        With the names of those that are missing or differ.
    """
    known: dict[str, str] = json.loads(
        (files("integrodiff") / "learning" / "bsds500.json").read_text(encoding="utf-8")
    )
    wrong = [
        name
        for name, expected in known.items()
        if not (images / name).is_file()
        or hashlib.sha256((images / name).read_bytes()).hexdigest() != expected
    ]
    if wrong:
        shown = ", ".join(wrong[:3]) + (", ..." if len(wrong) > 3 else "")
        raise ValueError(f"{len(wrong)} images of {images} are missing or differ: {shown}")
