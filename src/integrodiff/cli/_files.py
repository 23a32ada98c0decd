"""What commands that draw share about the files they read and write."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

from integrodiff.cli._terminal import ExitCode, note, stop, stopping

if TYPE_CHECKING:
    from numpy.typing import NDArray


def refuse_output_over_inputs(output: Path, inputs: Iterable[Path]) -> None:
    """Refuse to write over an input or into it, whatever name or link it goes by."""
    for path in inputs:
        try:
            folders = [output, *output.resolve().parents]
            same = any(folder.exists() and path.samefile(folder) for folder in folders)
        except (OSError, ValueError):
            continue  # one of them does not exist or cannot be looked at, which others report
        if same:
            stop(
                ExitCode.OUTPUT,
                f"{output} is the input itself, or in it, and the input is never changed; give the "
                "output another name",
            )


def page_of(path: Path, page: int) -> NDArray[Any]:
    """Read one page, counted from one, of an image: grey, or three channels last."""
    import numpy as np

    from integrodiff.errors import ImageFileError
    from integrodiff.io import open_image

    with stopping(ExitCode.INPUT, ImageFileError), open_image(path) as image:
        header = image.header
        for text in header.notes:
            note(f"{path}: {text}")
        if page > header.pages:
            stop(ExitCode.USAGE, f"{path} has {header.pages} page(s), and no page {page}")
        if header.channels not in (1, 3):
            stop(
                ExitCode.INPUT,
                f"{path} has {header.channels} channels; only grey and RGB images can be drawn",
            )
        pixels: NDArray[Any] = next(islice(image.pages(), page - 1, None)).pixels
    if pixels.dtype.kind == "f" and not np.isfinite(pixels).all():
        stop(ExitCode.INPUT, f"{path}: has NaN or infinite values; replace them first")
    return pixels[..., 0] if pixels.ndim == 3 and header.channels == 1 else pixels
