"""``integrodiff denoise``: one image file in, one out."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, cast

import typer

from integrodiff._default_model import DEFAULT_MODEL
from integrodiff.cli._files import refuse_output_over_inputs
from integrodiff.cli._models import loaded_model
from integrodiff.cli._noise import (
    Gain,
    NoiseFound,
    NoiseKind,
    NoiseOptions,
    Offset,
    Readout,
    Sigma,
)
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

    from integrodiff._image_files import ImageHeader, ImageReader, Page
    from integrodiff.colour import Colour
    from integrodiff.models import Model

_ANY_LEVEL = 25.0


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
    sigma: Sigma = None,
    model: Annotated[
        str,
        typer.Option(
            metavar="NAME|FILE.json",
            help="iad-plus, iad-fast, iad-deep, iad-full, iad, iid, eed, pm, or a model file.",
        ),
    ] = DEFAULT_MODEL,
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
    colour: Annotated[
        str,
        typer.Option(
            metavar="auto|opponent|joint|separate",
            help="How channels are denoised; auto is opponent for RGB, joint for others.",
        ),
    ] = "auto",
    noise: NoiseKind = "gaussian",
    gain: Gain = None,
    offset: Offset = None,
    readout: Readout = None,
    as_float: Annotated[
        bool,
        typer.Option(
            "--float", help="Write float32, neither rounded nor clipped; for example to TIFF."
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
    """Remove noise from an image file.

    The result has the size, number type and colours of the input. Alpha channels, colour
    profiles and other metadata are carried over. The pages of a stack are denoised one by one,
    and no more than that is held in memory. OUT appears only when it is complete, and never
    replaces IN.

    Examples: `integrodiff denoise noisy.png clean.png`, or with the noise level known
    `integrodiff denoise noisy.png clean.png --sigma 25`
    """
    with exit_codes(), plain_warnings():
        _run(
            _Request(
                input=input,
                output=output,
                noise=NoiseOptions(
                    sigma=sigma, kind=noise, gain=gain, offset=offset, readout=readout
                ),
                model=model,
                engine=engine,
                data_range=data_range,
                colour=colour,
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
    noise: NoiseOptions
    model: str
    engine: str
    data_range: float | None
    colour: str
    as_float: bool
    exact: bool
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
    request.noise.check()
    _check_options(request)
    with stopping(ExitCode.USAGE, ValueError, ImportError, OSError):
        engine = get_engine(request.engine).name
    model = loaded_model(request.model)
    refuse_output_over_inputs(request.output, [request.input])
    with stopping(ExitCode.INPUT, ImageFileError), stopping(ExitCode.OUTPUT, OutputFileError):
        check_output_path(request.output, overwrite=request.overwrite)
        with open_image(request.input) as source:
            for note in source.header.notes:
                say(f"{request.input}: {note}", label="note", style="bold")
            dtype = np.dtype(np.float32) if request.as_float else source.header.dtype
            header = source.header.with_dtype(dtype)
            check_output(request.output, header, overwrite=request.overwrite)
            survey = _survey(source, request)
            with create_image(request.output, header, overwrite=request.overwrite) as result:
                for page in _denoised(source, request, survey, model, engine):
                    result.write(page)
    for note in result.notes:
        say(f"{request.output}: {note}", label="note", style="bold")
    if not request.quiet:
        say(_summary(request, header, survey.noise, engine, time.perf_counter() - start))


def _check_options(request: _Request) -> None:
    """Refuse options that no image can be denoised with."""
    from integrodiff.colour import COLOURS
    from integrodiff.models._validation import one_of, positive_number

    with stopping(ExitCode.USAGE, ValueError, TypeError):
        one_of("--colour", request.colour, COLOURS)
        if request.data_range is not None:
            positive_number("data_range", request.data_range)


@dataclass(frozen=True)
class _Survey:
    """What all pages of an image have in common."""

    noise: NoiseFound
    data_range: float | None


def _survey(source: ImageReader, request: _Request) -> _Survey:
    """Return noise and grey range of all pages; they are read for it only if it depends on them."""
    import numpy as np

    header, options = source.header, request.noise
    wanted = options.pages_wanted(header.pages)
    range_is_open = request.data_range is None and (
        header.dtype != np.uint8 or options.kind != "gaussian"
    )
    extremes: list[NDArray[Any]] = [np.zeros(2, header.dtype)]

    def watched() -> Iterator[NDArray[Any]]:
        extremes.clear()
        for number, page in enumerate(source.pages()):
            extremes.append(np.array([page.pixels.min(), page.pixels.max()]))
            if header.dtype.kind == "f" and not np.isfinite(extremes[-1]).all():
                stop(
                    ExitCode.INPUT,
                    f"{request.input}: has NaN or infinite values; replace them first, for "
                    "example by the median of their neighbours",
                )
            if number in wanted:
                yield page.pixels

    pages = watched() if wanted or range_is_open or header.dtype.kind == "f" else iter(())
    noise = options.found(pages, header.channel_axis, header.channels)
    for _ in pages:
        pass  # pages after the last one that was wanted, or all
    with stopping(ExitCode.USAGE, ValueError):
        return _Survey(noise, _common_range(np.array(extremes), noise, request.data_range))


def _denoised(
    source: ImageReader, request: _Request, survey: _Survey, model: Model, engine: str
) -> Iterator[Page]:
    """Denoise page by page, all pages with the same noise and the same grey range."""
    import numpy as np

    import integrodiff

    header = source.header
    colour = cast("Colour", request.colour)  # checked before
    with stopping(ExitCode.USAGE, ValueError):
        steps = _steps_of_a_page(model, survey.noise, colour, header.channels)
        plan = integrodiff.Plan(
            **survey.noise.arguments(header.channel_axis),
            model=model,
            data_range=survey.data_range,
            channel_axis=header.channel_axis,
            colour=colour,
            engine=engine,
            as_float=request.as_float,
            exact=request.exact,
        )
    with progress(request.input.name, steps * header.pages, quiet=request.quiet) as advance:
        for page in source.pages():
            with stopping(ExitCode.USAGE, ValueError, ImportError):
                pixels = plan(page.pixels, callback=_step_counter(advance))
            yield page.with_pixels(pixels.astype(np.float32) if request.as_float else pixels)


def _step_counter(advance: Callable[[], None] | None) -> Callable[[int, Any], object] | None:
    """Return what counts the steps of the evolution, if anybody wants to see them."""
    return None if advance is None else lambda step, image: advance()


def _steps_of_a_page(model: Model, noise: NoiseFound, colour: Colour, channels: int) -> int:
    """Return how many steps a page takes, those of all groups of channels."""
    import numpy as np

    from integrodiff.colour import colour_space

    levels = np.ones(channels) if noise.sigma is None else np.array(noise.sigma)
    groups = colour_space(colour, levels).groups
    # The number of steps is a setting of a model; it does not depend on the noise level.
    return len(groups) * model.evolution(_ANY_LEVEL).steps


def _common_range(
    extremes: NDArray[Any], noise: NoiseFound, data_range: float | None
) -> float | None:
    """Return the grey range of all pages."""
    from integrodiff._grey_range import grey_range

    if noise.sigma is not None:
        return grey_range(extremes, max(noise.sigma), data_range)
    if data_range is None and noise.photons is not None:
        return max(float(extremes.max()) - noise.photons.offset, noise.photons.gain)
    return data_range


def _summary(
    request: _Request, image: ImageHeader, noise: NoiseFound, engine: str, seconds: float
) -> str:
    """Return what was done, in one line."""
    height, width = image.size
    pages = f", {image.pages} pages" if image.pages > 1 else ""
    return (
        f"{request.input} -> {request.output}: {width} x {height}{pages}, {image.dtype}, "
        f"{image.kind}, {Path(request.model).name} at {noise}, engine {engine}, "
        f"{seconds:.1f} s"
    )
