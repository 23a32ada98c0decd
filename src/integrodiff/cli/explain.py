"""``integrodiff explain``: draw what a model does to one image."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from integrodiff._default_model import DEFAULT_MODEL
from integrodiff.cli._files import page_of, refuse_output_over_inputs
from integrodiff.cli._models import loaded_model
from integrodiff.cli._noise import NoiseOptions, Sigma
from integrodiff.cli._terminal import (
    ExitCode,
    exit_codes,
    plain_warnings,
    require_matplotlib,
    say,
    stop,
    stopping,
)

if TYPE_CHECKING:
    from numpy.typing import NDArray


def explain(
    input: Annotated[Path, typer.Argument(metavar="IN", help="Noisy image, grey or RGB.")],
    output: Annotated[
        Path, typer.Option(metavar="FILE.png", help="Where to write the picture.")
    ] = Path("explanation.png"),
    sigma: Sigma = None,
    model: Annotated[
        str, typer.Option(metavar="NAME|FILE.json", help="A model's name, or a model file.")
    ] = DEFAULT_MODEL,
    step: Annotated[
        int | None,
        typer.Option(
            min=0,
            help="After how many steps to look at the structure and the diffusivities. By default "
            "after half of them; 0 is the noisy image.",
            show_default=False,
        ),
    ] = None,
    engine: Annotated[
        str, typer.Option(metavar="auto|numpy|native|torch", help="Who computes the steps.")
    ] = "auto",
    data_range: Annotated[
        float | None,
        typer.Option(metavar="R", help="As in `integrodiff denoise`.", show_default=False),
    ] = None,
    page: Annotated[int, typer.Option(min=1, help="Which page of a stack.")] = 1,
    overwrite: Annotated[
        bool, typer.Option("--overwrite", help="Replace the picture if it exists.")
    ] = False,
) -> None:
    """Draw what a model sees in an image and does to it.

    The picture shows the multiscale structure tensor (strength, coherence and orientation of
    edges), how freely grey values flow at each scale across and along structures, and how the image
    evolves over the steps. Of a colour image it is the luminance, which is denoised by itself.
    Matplotlib draws it, which the extra `plot` of the package installs.

    Example: `integrodiff explain noisy.png --output explanation.png`
    """
    with exit_codes(), plain_warnings():
        _run(
            _Request(
                input=input,
                output=output,
                noise=NoiseOptions(sigma=sigma),
                model=model,
                step=step,
                engine=engine,
                data_range=data_range,
                page=page,
                overwrite=overwrite,
            )
        )


@dataclass(frozen=True, kw_only=True)
class _Request:
    """The arguments of the command."""

    input: Path
    output: Path
    noise: NoiseOptions
    model: str
    step: int | None
    engine: str
    data_range: float | None
    page: int
    overwrite: bool


def _run(request: _Request) -> None:
    """Check all that can be checked, then compute, then draw."""
    require_matplotlib()
    request.noise.check()
    model = loaded_model(request.model)
    _check_output(request)
    pixels = page_of(request.input, request.page)
    grey = pixels.astype(float) if pixels.ndim == 2 else pixels.mean(axis=-1)
    level, estimated = _noise_level(grey, request.noise, pixels.ndim == 3)
    from integrodiff.grey_range import grey_range
    from integrodiff.viz.drawing import save_figure
    from integrodiff.viz.explanation import explain
    from integrodiff.viz.explanation_figure import draw

    with stopping(ExitCode.USAGE, ValueError, TypeError, ImportError):
        factor = 255 / grey_range(pixels, level, request.data_range)
        explanation = explain(
            (grey * factor)[None], level * factor, model, step=request.step, engine=request.engine
        )
    what = f"{Path(request.model).name} at noise level {level:.4g}{estimated}"
    figure = draw(explanation, f"{request.input.name}: {what}")
    with stopping(ExitCode.OUTPUT, OSError):
        save_figure(figure, request.output, overwrite=request.overwrite)
    say(f"{request.input} -> {request.output}: {what}")


def _check_output(request: _Request) -> None:
    """Refuse a picture that cannot be written, before anything is read."""
    from integrodiff.errors import ImageFileError
    from integrodiff.io import check_output_path

    output = request.output
    if output.suffix.lower() != ".png":
        stop(ExitCode.OUTPUT, f"{output}: the picture is a PNG file; give it the suffix .png")
    refuse_output_over_inputs(output, [request.input])
    with stopping(ExitCode.OUTPUT, ImageFileError):
        check_output_path(output, overwrite=request.overwrite)


def _noise_level(grey: NDArray[Any], options: NoiseOptions, in_colour: bool) -> tuple[float, str]:
    """Return the noise level of the grey image, and whether it was estimated, in words."""
    if options.sigma is not None and in_colour:
        # The mean of three channels has less noise than each of them.
        options = replace(options, sigma=options.sigma / math.sqrt(3))
    found = options.found([grey], None, 1)
    (level,) = found.sigma or (0.0,)
    if level == 0:
        stop(ExitCode.USAGE, "there is no noise, and so nothing to explain; give --sigma above 0")
    return level, " (estimated)" if found.estimated else ""
