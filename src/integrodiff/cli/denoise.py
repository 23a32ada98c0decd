"""``integrodiff denoise``: one image file in, one out."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
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
    from integrodiff._image_files import ImageHeader, ImageReader, Page
    from integrodiff.models import Model


def denoise(
    input: Annotated[Path, typer.Argument(metavar="IN", help="Noisy image or stack.")],
    output: Annotated[
        Path,
        typer.Argument(
            metavar="OUT",
            help="Denoised image; its suffix says the format: .png, .jpg, .webp, .tif, .npy, and "
            "from the same format .dcm, .nii, .nii.gz, .zarr.",
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
            metavar="NAME|FILE.json",
            help="iad-plus, iad-deep, iad-full, iad, iid, eed, pm, or a model file.",
        ),
    ] = "iad-plus",
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
            "--float", help="Write float32, neither rounded nor clipped; for example to TIFF."
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
    profiles and other metadata are carried over. The pages of a stack are denoised one by one,
    and no more than that is held in memory. OUT appears only when it is complete, and never
    replaces IN.

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
    overwrite: bool
    quiet: bool


def _run(request: _Request) -> None:
    """Check all that can be checked, then compute and write page by page."""
    import numpy as np

    from integrodiff._image_files import (
        OutputFileError,
        check_output,
        check_output_path,
        create_image,
        open_image,
    )
    from integrodiff.engines import get_engine
    from integrodiff.errors import ImageFileError

    start = time.perf_counter()
    _check_numbers(request)
    with stopping(ExitCode.USAGE, ValueError, ImportError, OSError):
        engine = get_engine(request.engine).name
    model = _loaded_model(request.model)
    _refuse_output_over_input(request)
    with stopping(ExitCode.INPUT, ImageFileError), stopping(ExitCode.OUTPUT, OutputFileError):
        check_output_path(request.output, overwrite=request.overwrite)
        with open_image(request.input) as source:
            for note in source.header.notes:
                say(f"{request.input}: {note}", label="note", style="bold")
            dtype = np.dtype(np.float32) if request.as_float else source.header.dtype
            header = source.header.with_dtype(dtype)
            check_output(request.output, header, overwrite=request.overwrite)
            data_range = _data_range(source, request)
            with create_image(request.output, header, overwrite=request.overwrite) as result:
                for page in _denoised(source, request, model, engine, data_range):
                    result.write(page)
    for note in result.notes:
        say(f"{request.output}: {note}", label="note", style="bold")
    if not request.quiet:
        say(_summary(request, header, engine, time.perf_counter() - start))


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
    """Refuse to write over the input or into it, whatever name or link it goes by."""
    try:
        folders = [request.output, *request.output.resolve().parents]
        same = any(folder.exists() and request.input.samefile(folder) for folder in folders)
    except (OSError, ValueError):
        return  # one of them does not exist or cannot be looked at, which others report
    if same:
        stop(
            ExitCode.OUTPUT,
            f"{request.output} is the input itself, or in it, and the input is never changed; give "
            "OUT another name",
        )


def _data_range(source: ImageReader, request: _Request) -> float:
    """Return one grey range for all pages; they are read for it only if it depends on them."""
    import numpy as np

    from integrodiff._grey_range import grey_range

    dtype = source.header.dtype
    extremes = np.zeros(2, dtype)
    if dtype.kind == "f" or (request.data_range is None and dtype != np.uint8):
        found = [(page.pixels.min(), page.pixels.max()) for page in source.pages()]
        extremes = np.array(found, dtype)
    if dtype.kind == "f" and not np.isfinite(extremes).all():
        stop(
            ExitCode.INPUT,
            f"{request.input}: has NaN or infinite values; replace them first, for example by "
            "the median of their neighbours",
        )
    with stopping(ExitCode.USAGE, ValueError):
        return grey_range(extremes, request.sigma, request.data_range)


def _denoised(
    source: ImageReader, request: _Request, model: Model, engine: str, data_range: float
) -> Iterator[Page]:
    """Denoise page by page, all pages with the same grey range."""
    import numpy as np

    import integrodiff

    with stopping(ExitCode.USAGE, ValueError):
        steps = 0
        if request.sigma > 0:
            steps = model.evolution(request.sigma * 255 / data_range).steps
    total = steps * source.header.pages
    with progress(request.input.name, total, quiet=request.quiet) as advance:
        for page in source.pages():
            with stopping(ExitCode.USAGE, ValueError, ImportError):
                pixels = integrodiff.denoise(
                    page.pixels,
                    request.sigma,
                    model=model,
                    data_range=data_range,
                    channel_axis=source.header.channel_axis,
                    engine=engine,
                    as_float=request.as_float,
                    callback=_step_counter(advance),
                )
            yield page.with_pixels(pixels.astype(np.float32) if request.as_float else pixels)


def _step_counter(advance: Callable[[], None] | None) -> Callable[[int, Any], object] | None:
    """Return what counts the steps of the evolution, if anybody wants to see them."""
    return None if advance is None else lambda step, image: advance()


def _summary(request: _Request, image: ImageHeader, engine: str, seconds: float) -> str:
    """Return what was done, in one line."""
    height, width = image.size
    pages = f", {image.pages} pages" if image.pages > 1 else ""
    return (
        f"{request.input} -> {request.output}: {width} x {height}{pages}, {image.dtype}, "
        f"{image.kind}, {Path(request.model).name} at sigma {request.sigma:g}, engine {engine}, "
        f"{seconds:.1f} s"
    )
