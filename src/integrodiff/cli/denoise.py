"""``integrodiff denoise``: one image file in, one out."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from integrodiff.cli._terminal import (
    ExitCode,
    exit_codes,
    plain_warnings,
    progress,
    say,
    stop,
    stopping,
)

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from integrodiff._image_files import ImageFile
    from integrodiff.models import Model


def denoise(
    input: Annotated[Path, typer.Argument(metavar="IN", help="Noisy image: PNG, JPEG or TIFF.")],
    output: Annotated[
        Path,
        typer.Argument(
            metavar="OUT", help="Denoised image; its suffix (.png, .jpg, .tif) says the format."
        ),
    ],
    sigma: Annotated[
        float,
        typer.Option(
            metavar="S", help="Standard deviation of the noise, in the grey levels of the image."
        ),
    ],
    model: Annotated[
        str,
        typer.Option(
            metavar="NAME|FILE.json", help="iad, iad-full, iid, eed, pm, or a model file."
        ),
    ] = "iad",
    engine: Annotated[
        str,
        typer.Option(
            metavar="auto|numpy|native|torch", help="Who computes; auto takes the fastest."
        ),
    ] = "auto",
    data_range: Annotated[
        float | None,
        typer.Option(
            metavar="R",
            help="Difference of the largest and smallest grey value that the image could have. "
            "By default 255 for 8 bits, found from the values for other integers, and 1 for "
            "floating point in \\[0, 1].",
            show_default=False,
        ),
    ] = None,
    as_float: Annotated[
        bool,
        typer.Option(
            "--float", help="Write float32, neither rounded nor clipped; OUT must be TIFF."
        ),
    ] = False,
    exact: Annotated[
        bool,
        typer.Option(
            "--exact",
            help="No shortcuts of the engine native, which change a photograph by at most 0.05 of "
            "255 grey levels.",
        ),
    ] = False,
    overwrite: Annotated[
        bool, typer.Option("--overwrite", help="Replace OUT if it exists.")
    ] = False,
    quiet: Annotated[
        bool,
        typer.Option("--quiet", "-q", help="No progress bar and no summary; warnings stay."),
    ] = False,
) -> None:
    """Remove additive Gaussian noise from an image file.

    The result has the size, number type and colours of the input. Alpha channels, colour
    profiles and other metadata are carried over. The pages of a TIFF stack are denoised one by
    one. OUT appears only when it is complete, and never replaces IN.

    Example: `integrodiff denoise noisy.png clean.png --sigma 25`
    """
    with exit_codes(), plain_warnings():
        _run(
            _Request(
                input=input,
                output=output,
                sigma=sigma,
                model=model,
                engine=engine,
                data_range=data_range,
                as_float=as_float,
                exact=exact,
                overwrite=overwrite,
                quiet=quiet,
            )
        )


@dataclass(frozen=True, kw_only=True)
class _Request:
    """The arguments of the command."""

    input: Path
    output: Path
    sigma: float
    model: str
    engine: str
    data_range: float | None
    as_float: bool
    exact: bool
    overwrite: bool
    quiet: bool


def _run(request: _Request) -> None:
    """Check all that can be checked, then compute, then write."""
    import numpy as np

    from integrodiff._image_files import check_output, check_output_path, read_image, write_image
    from integrodiff.engines import get_engine
    from integrodiff.errors import ImageFileError

    start = time.perf_counter()
    _check_numbers(request)
    with stopping(ExitCode.USAGE, ValueError, ImportError, OSError):
        engine = get_engine(request.engine).name
    model = _loaded_model(request.model)
    _refuse_output_over_input(request)
    with stopping(ExitCode.OUTPUT, ImageFileError):
        check_output_path(request.output, overwrite=request.overwrite)
    with stopping(ExitCode.INPUT, ImageFileError):
        image = read_image(request.input)
    for note in image.notes:
        say(f"{request.input}: {note}", label="note", style="bold")
    dtype = np.dtype(np.float32) if request.as_float else image.pixels.dtype
    with stopping(ExitCode.OUTPUT, ImageFileError):
        check_output(request.output, image, overwrite=request.overwrite, dtype=dtype)

    result = image.with_pixels(_denoised(image, request, model, engine, dtype))
    with stopping(ExitCode.OUTPUT, ImageFileError):
        for note in write_image(request.output, result, overwrite=request.overwrite):
            say(f"{request.output}: {note}", label="note", style="bold")
    if not request.quiet:
        say(_summary(request, result, engine, time.perf_counter() - start))


def _check_numbers(request: _Request) -> None:
    """Refuse numbers that no image can be denoised with."""
    from integrodiff.models._validation import nonnegative_number, positive_number

    with stopping(ExitCode.USAGE, ValueError, TypeError):
        nonnegative_number("sigma", request.sigma)
        if request.data_range is not None:
            positive_number("data_range", request.data_range)


def _loaded_model(name: str) -> Model:
    """Return the model; a wrong name is wrong usage, a bad file is bad input."""
    from integrodiff.models import MODEL_NAMES, load_model

    is_file = name not in MODEL_NAMES and Path(name).suffix == ".json"
    try:
        return load_model(name)
    except OSError as error:
        stop(ExitCode.INPUT, f"{name}: the model file cannot be read: {error.strerror or error}")
    except ValueError as error:
        stop(ExitCode.INPUT if is_file else ExitCode.USAGE, str(error))


def _refuse_output_over_input(request: _Request) -> None:
    """Refuse to write over the input, whatever name or link it goes by."""
    try:
        same = request.input.samefile(request.output)
    except (OSError, ValueError):
        return  # one of them does not exist or cannot be looked at, which others report
    if same:
        stop(
            ExitCode.OUTPUT,
            f"{request.output} is the input itself, and the input is never replaced; give OUT "
            "another name",
        )


def _denoised(
    image: ImageFile, request: _Request, model: Model, engine: str, dtype: Any
) -> NDArray[Any]:
    """Denoise page by page, all pages with the same grey range."""
    import numpy as np

    import integrodiff
    from integrodiff._grey_range import grey_range

    pixels = image.pixels.reshape(-1, *image.page_shape)
    if pixels.dtype.kind == "f" and not np.isfinite(pixels).all():
        stop(
            ExitCode.INPUT,
            f"{request.input}: has NaN or infinite values; replace them first, for example by "
            "the median of their neighbours",
        )
    with stopping(ExitCode.USAGE, ValueError):
        data_range = grey_range(pixels, request.sigma, request.data_range)
        steps = 0
        if request.sigma > 0:
            steps = model.evolution(request.sigma * 255 / data_range).steps
    result = np.empty(pixels.shape, dtype)
    with (
        stopping(ExitCode.USAGE, ValueError, ImportError),
        progress(request.input.name, steps * len(pixels), quiet=request.quiet) as advance,
    ):
        plan = integrodiff.Plan(
            request.sigma,
            model=model,
            data_range=data_range,
            channel_axis=image.channel_axis,
            engine=engine,
            as_float=request.as_float,
            exact=request.exact,
        )
        for page, denoised in zip(pixels, result, strict=True):
            denoised[...] = plan(page, callback=_step_counter(advance))
    return result.reshape(image.pixels.shape)


def _step_counter(advance: Callable[[], None] | None) -> Callable[[int, Any], object] | None:
    """Return what counts the steps of the evolution, if anybody wants to see them."""
    return None if advance is None else lambda step, image: advance()


def _summary(request: _Request, image: ImageFile, engine: str, seconds: float) -> str:
    """Return what was done, in one line."""
    height, width = image.size
    pages = f", {image.pages} pages" if image.pages > 1 else ""
    return (
        f"{request.input} -> {request.output}: {width} x {height}{pages}, {image.pixels.dtype}, "
        f"{image.kind}, {Path(request.model).name} at sigma {request.sigma:g}, engine {engine}, "
        f"{seconds:.1f} s"
    )
