"""``integrodiff compare``: two images and their difference side by side, with PSNR and SSIM."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from integrodiff.cli._files import page_of, refuse_output_over_inputs
from integrodiff.cli._terminal import (
    ExitCode,
    exit_codes,
    note,
    plain_warnings,
    printable,
    results,
    say,
    stop,
    stopping,
)

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from integrodiff.viz.comparison import Region


def compare(
    before: Annotated[Path, typer.Argument(metavar="BEFORE", help="The noisy image.")],
    after: Annotated[Path, typer.Argument(metavar="AFTER", help="The denoised image.")],
    output: Annotated[
        Path,
        typer.Option(
            metavar="FILE", help="Picture to write; the format follows the file extension."
        ),
    ] = Path("comparison.png"),
    clean: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE", help="Image without noise; prints the PSNR and SSIM of both images."
        ),
    ] = None,
    zoom: Annotated[
        tuple[int, int, int] | None,
        typer.Option(
            metavar="ROW COLUMN SIZE",
            help="Square to enlarge; by default the one with the strongest structure.",
            show_default=False,
        ),
    ] = None,
    page: Annotated[int, typer.Option(min=1, help="Page of a stack, counted from 1.")] = 1,
    data_range: Annotated[
        float | None,
        typer.Option(
            metavar="R",
            help="Difference between the largest and smallest grey value that the images could "
            "have, for PSNR and SSIM. By default as in `integrodiff denoise`.",
            show_default=False,
        ),
    ] = None,
    overwrite: Annotated[
        bool, typer.Option("--overwrite", help="Replace an existing picture.")
    ] = False,
) -> None:
    """Draw an image before and after denoising, and the difference.

    The difference is centred on mid-grey; black and white are four standard deviations away. If
    it shows the shapes of objects, structure was removed together with the noise. One square of
    every image is enlarged. With --clean, the PSNR and SSIM of both images are printed.

    For example:

        integrodiff compare noisy.png denoised.png
        integrodiff compare noisy.png denoised.png --clean original.png --output comparison.png
    """
    with exit_codes(), plain_warnings():
        _run(before, after, output, clean, zoom, page, data_range, overwrite)


def _run(
    before: Path,
    after: Path,
    output: Path,
    clean: Path | None,
    zoom: tuple[int, int, int] | None,
    page: int,
    data_range: float | None,
    overwrite: bool,
) -> None:
    import numpy as np

    from integrodiff.errors import ImageFileError
    from integrodiff.grey_range import grey_range
    from integrodiff.io import ImageFile, check_output_path, write_image
    from integrodiff.viz.comparison import busiest_region, comparison_sheet

    inputs = [before, after] if clean is None else [before, after, clean]
    refuse_output_over_inputs(output, inputs)
    with stopping(ExitCode.OUTPUT, ImageFileError):
        check_output_path(output, overwrite=overwrite)
    pages = [page_of(path, page) for path in inputs]
    images = [pixels for pixels, _ in pages]
    for path, image in zip(inputs[1:], images[1:], strict=True):
        if image.shape != images[0].shape:
            stop(
                ExitCode.INPUT,
                f"{path} has the shape {_shape(image)} and {before} {_shape(images[0])}; "
                "both images must have the same size and number of colours",
            )
    mask = _common([found for _, found in pages])
    if mask is not None:
        images = [_without_invalid(image, mask) for image in images]
        say(f"{np.mean(~mask):.2g} of the pixels are invalid: they are drawn grey and do not count")
    if clean is not None and images[0].dtype != images[2].dtype:
        note(
            f"{before} is {images[0].dtype} and {clean} is {images[2].dtype}: PSNR and SSIM assume "
            "the same scale of grey values"
        )
    with stopping(ExitCode.USAGE, ValueError, TypeError):
        if clean is None and data_range is None:
            span = float(np.ptp(images[-1].astype(np.float64))) or 1.0
        else:
            # The range is that of the image with the least noise.
            span = grey_range(images[-1], 0.0, data_range)
    region = busiest_region(images[-1]) if zoom is None else _region(zoom, images[0])
    if clean is not None:
        _print_table(inputs, images, span, mask)
    picture = comparison_sheet(
        images[0], images[1], None if clean is None else images[2], region, span, mask
    )
    with stopping(ExitCode.OUTPUT, ImageFileError):
        write_image(output, ImageFile(pixels=picture, axes="YXS"), overwrite=overwrite)
    say(f"comparison written to {output}")


def _common(masks: list[NDArray[np.bool_] | None]) -> NDArray[np.bool_] | None:
    """Return where all images are valid; None if they are everywhere."""
    found = [mask for mask in masks if mask is not None]
    if not found:
        return None
    common: NDArray[np.bool_] = found[0]
    for mask in found[1:]:
        common = common & mask
    if not common.any():
        stop(ExitCode.INPUT, "there is no pixel that is valid in all of these images")
    return common


def _without_invalid(image: NDArray[Any], mask: NDArray[np.bool_]) -> NDArray[Any]:
    """Return an image with one of its valid values at all invalid pixels."""
    import numpy as np

    valid = image[mask]
    return np.where(mask if image.ndim == 2 else mask[..., None], image, valid[len(valid) // 2])


def _region(zoom: tuple[int, int, int], image: NDArray[Any]) -> Region:
    """Return the square to enlarge; stop if it is not inside the image."""
    from integrodiff.viz.comparison import Region

    top, left, size = zoom
    height, width = image.shape[:2]
    if min(top, left) < 0 or size < 1 or top + size > height or left + size > width:
        stop(
            ExitCode.USAGE,
            f"--zoom {top} {left} {size} is not inside the image of {height} rows and {width} "
            "columns",
        )
    return Region(top=top, left=left, size=size)


def _shape(image: NDArray[Any]) -> str:
    return " x ".join(map(str, image.shape))


def _print_table(
    paths: list[Path],
    images: list[NDArray[Any]],
    span: float,
    mask: NDArray[np.bool_] | None,
) -> None:
    from rich import box
    from rich.table import Table

    from integrodiff.viz.comparison import quality

    table = Table(box=box.SIMPLE)
    for name in ("image", "PSNR [dB]", "SSIM"):
        table.add_column(name, justify="left" if name == "image" else "right")
    for path, image in zip(paths[:2], images[:2], strict=True):
        found = quality(image, images[2], span, mask)
        table.add_row(printable(str(path)), f"{found.psnr:.2f}", f"{found.ssim:.3f}")
    results().print(table)
