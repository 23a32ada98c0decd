"""Input and output files of the commands that draw: ``compare`` and ``explain``."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

from integrodiff.cli._terminal import ExitCode, note, stop, stopping

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray


def refuse_output_over_inputs(output: Path, inputs: Iterable[Path]) -> None:
    """Refuse an output that is an input, or inside one, also through links."""
    for path in inputs:
        try:
            folders = [output, *output.resolve().parents]
            same = any(folder.exists() and path.samefile(folder) for folder in folders)
        except (OSError, ValueError):
            continue  # missing or inaccessible files are reported when they are opened
        if same:
            stop(
                ExitCode.OUTPUT,
                f"{output} is the input itself, or inside it, and inputs are never changed; choose "
                "another name for the output",
            )


def page_of(path: Path, page: int) -> tuple[NDArray[Any], NDArray[np.bool_] | None]:
    """Read one page of an image, counted from one: grey, or RGB with the samples last.

    Return it with its mask, which is None if all pixels are valid.
    """
    from integrodiff.errors import ImageFileError
    from integrodiff.io import open_image

    with stopping(ExitCode.INPUT, ImageFileError), open_image(path) as image:
        header = image.header
        for text in header.notes:
            note(f"{path}: {text}")
        if page > header.pages:
            stop(
                ExitCode.USAGE,
                f"--page {page} does not exist: {path} has pages 1 to {header.pages}",
            )
        samples = header.layout.samples
        if samples not in (1, 3):
            stop(
                ExitCode.INPUT,
                f"{path} has {samples} samples per pixel; only grey and RGB images can be drawn",
            )
        pixels: NDArray[Any] = next(islice(image.pages(), page - 1, None)).pixels
        mask = image.validity.of(pixels, page - 1)
    if mask is not None and not mask.any():
        stop(ExitCode.INPUT, f"{path} has no valid pixel on this page")
    return pixels[..., 0] if pixels.ndim == 3 and samples == 1 else pixels, mask
