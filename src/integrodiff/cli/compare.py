"""``integrodiff compare``: two images and their difference side by side, with PSNR and SSIM."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from integrodiff.cli._files import refuse_output_over_inputs
from integrodiff.cli._masks import MaskFile, MaskOptions, NodataValue
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
from integrodiff.cli._views import (
    AsVolume,
    At,
    Bands,
    GreyWindow,
    PageNumber,
    ViewOptions,
    VoxelSpacing,
    say_notes,
    spacing_numbers,
)

if TYPE_CHECKING:
    from integrodiff.io import ImageHeader
    from integrodiff.viz.comparison import Comparison
    from integrodiff.viz.view import View


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
    at: At = None,
    volume: AsVolume = None,
    spacing: VoxelSpacing = None,
    page: PageNumber = None,
    bands: Bands = None,
    window: GreyWindow = None,
    mask: MaskFile = None,
    nodata: NodataValue = None,
    data_range: Annotated[
        float | None,
        typer.Option(
            metavar="R",
            help="Difference between the largest and smallest grey value that the images could "
            "have, for PSNR and SSIM. By default that of the bit depth of the clean image or, in "
            "floating point, of its values.",
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
    every image is enlarged. With --at Z=80,Y=120,X=96, three orthogonal planes of volumes are drawn
    through this point instead, in the proportions of the voxels; --volume treats the pages of a
    stack as slices. Images are turned as their EXIF data say, and invalid pixels are greyed out.
    With --clean, the PSNR and SSIM of both images are printed, over valid pixels.

    For example:

        integrodiff compare noisy.png denoised.png
        integrodiff compare noisy.png denoised.png --clean original.png --output comparison.png
        integrodiff compare scan.nii.gz clean.nii.gz --at Z=80 --window -160 240
        integrodiff compare scan.nii.gz clean.nii.gz --at Z=80,Y=120,X=96
        integrodiff compare stack.tif clean.tif --volume --spacing 3,1,1 --at Z=5,Y=40,X=30
        integrodiff compare scene.tif clean.tif --bands 4,3,2 --nodata 0
    """
    with exit_codes(), plain_warnings():
        _run(
            _Request(
                inputs=(before, after) if clean is None else (before, after, clean),
                output=output,
                zoom=zoom,
                shown=ViewOptions(
                    at=at, page=page, bands=bands, window=window, volume=volume, spacing=spacing
                ),
                masks=MaskOptions(mask=mask, nodata=nodata),
                data_range=data_range,
                overwrite=overwrite,
            )
        )


@dataclass(frozen=True, kw_only=True)
class _Request:
    """The arguments of the command."""

    inputs: tuple[Path, ...]
    output: Path
    zoom: tuple[int, int, int] | None
    shown: ViewOptions
    masks: MaskOptions
    data_range: float | None
    overwrite: bool


def _run(request: _Request) -> None:
    from integrodiff.errors import ImageFileError
    from integrodiff.io import ImageFile, check_output_path, write_image
    from integrodiff.viz.comparison import compared, comparison_sheet
    from integrodiff.viz.view import common_mask

    inputs, output = request.inputs, request.output
    request.shown.check()
    refuse_output_over_inputs(output, [*inputs, *request.masks.files])
    with stopping(ExitCode.OUTPUT, ImageFileError):
        check_output_path(output, overwrite=request.overwrite)
    if request.shown.point is not None:
        _draw_planes(request)
        return
    if request.shown.spacing is not None:
        stop(
            ExitCode.USAGE,
            "--spacing is for three planes of a volume; name a point, such as --at Y=120",
        )
    views, window = _views(request)
    with stopping(ExitCode.INPUT, ValueError):
        common_mask(views)
    with stopping(ExitCode.USAGE, ValueError, TypeError):
        found = compared(
            views,
            window=window,
            zoom=request.zoom,
            data_range=request.data_range,
        )
    _say_what_is_drawn(inputs, found)
    if found.qualities:
        _print_table(inputs, found)
    with stopping(ExitCode.OUTPUT, ImageFileError):
        picture = ImageFile(pixels=comparison_sheet(found), axes="YXS")
        write_image(output, picture, overwrite=request.overwrite)
    say(f"comparison written to {output}")


def _draw_planes(request: _Request) -> None:
    """Draw three orthogonal planes of volumes through a point."""
    from integrodiff.errors import ImageFileError
    from integrodiff.io import ImageFile, open_image, write_image
    from integrodiff.request import checked_spacing, volume_of
    from integrodiff.viz.orthogonal import compared_planes, orthogonal_sheet, orthogonal_views
    from integrodiff.viz.view import in_units

    if request.zoom is not None or request.shown.page:
        stop(ExitCode.USAGE, "--zoom and --page cannot be used with a point in --at")
    spacing = spacing_numbers(request.shown.spacing)
    exclusions = request.masks.exclusions()
    images: list[list[View]] = []
    headers: list[ImageHeader] = []
    proportions: dict[str, float] = {}  # those of the first volume
    for path in request.inputs:
        with (
            stopping(ExitCode.INPUT, ImageFileError),
            open_image(path, slices=request.shown.volume is False) as reader,
        ):
            header = reader.header
            say_notes(path, reader)
            layout = request.shown.layout(path, header)
            where = request.shown.places(path, layout)
            with stopping(ExitCode.USAGE, ValueError, TypeError):
                given = None if spacing is None else checked_spacing(spacing)
                geometry = volume_of(layout, given, reader.distances)
            if headers and header.shape != headers[0].shape:
                stop(
                    ExitCode.INPUT,
                    f"{path} and {request.inputs[0]} are volumes of different shapes, "
                    f"{header.shape} and {headers[0].shape}",
                )
            white = header.metadata.white_is_zero
            validity = exclusions.validity(header)
            views = orthogonal_views(reader.planes(), where, validity, white_is_zero=white)
        images.append([in_units(view, *header.display) for view in views])
        headers.append(header)
        proportions = proportions or dict(zip("ZYX", geometry.spacing, strict=True))
    window = request.shown.window_for(headers[0])
    with stopping(ExitCode.INPUT, ValueError, TypeError):
        found = compared_planes(images, window=window, data_range=request.data_range)
    say(f"drawn: three planes through {where.words}")
    with stopping(ExitCode.OUTPUT, ImageFileError):
        pixels = orthogonal_sheet(found, where, proportions)
        write_image(
            request.output, ImageFile(pixels=pixels, axes="YXS"), overwrite=request.overwrite
        )
    say(f"comparison written to {request.output}")


def _views(request: _Request) -> tuple[list[View], tuple[float, float] | None]:
    """Read what is drawn of each file, and its window; stop if they do not fit each other."""
    from integrodiff.errors import ImageFileError
    from integrodiff.io import open_image
    from integrodiff.viz.view import in_units

    exclusions = request.masks.exclusions()
    views, headers = [], []
    for path in request.inputs:
        with (
            stopping(ExitCode.INPUT, ImageFileError),
            open_image(path, slices=request.shown.volume is False) as reader,
        ):
            say_notes(path, reader)
            view = request.shown.view(path, reader, exclusions)
        if view.mask is not None and not view.mask.any():
            stop(ExitCode.INPUT, f"{path} has no valid pixel on this page")
        views.append(view)
        headers.append(reader.header)
    before = request.inputs[0]
    for path, view in zip(request.inputs[1:], views[1:], strict=True):
        if view.pixels.shape != views[0].pixels.shape:
            stop(
                ExitCode.INPUT,
                f"{path} has {_shape(view)} pixels and {before} {_shape(views[0])}; "
                "both images must have the same size and number of colours",
            )
    displays = [header.display for header in headers]
    if len(set(displays)) > 1:
        note("grey values are the stored ones, since these files scale theirs in different ways")
        return views, request.shown.window
    views = [in_units(view, *display) for view, display in zip(views, displays, strict=True)]
    return views, request.shown.window_for(headers[0])


def _say_what_is_drawn(inputs: tuple[Path, ...], found: Comparison) -> None:
    """Write which plane is drawn, how many pixels are invalid, and what may be wrong."""
    import numpy as np

    words = found.images["before"].words
    if words:
        say(f"drawn: {words}")
    if found.mask is not None:
        share = float(np.mean(~found.mask))
        say(f"{share:.2g} of the pixels are invalid: they are greyed out and do not count")
    if "clean" in found.images:
        before, clean = (found.images[name].pixels.dtype for name in ("before", "clean"))
        if before != clean:
            note(
                f"{inputs[0]} is {before} and {inputs[2]} is {clean}: PSNR and SSIM assume the "
                "same scale of grey values"
            )


def _shape(view: View) -> str:
    height, width, *samples = view.pixels.shape
    return f"{width} x {height}" + "".join(f" x {count}" for count in samples)


def _print_table(paths: tuple[Path, ...], found: Comparison) -> None:
    from rich import box
    from rich.table import Table

    table = Table(box=box.SIMPLE)
    for name in ("image", "PSNR [dB]", "SSIM"):
        table.add_column(name, justify="left" if name == "image" else "right")
    for path, quality in zip(paths, found.qualities.values(), strict=False):
        table.add_row(printable(str(path)), f"{quality.psnr:.2f}", f"{quality.ssim:.3f}")
    results().print(table)
    say(f"PSNR and SSIM for a range of {found.data_range:.6g} {found.unit}")
