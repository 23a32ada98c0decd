"""``integrodiff explain``: draw what a model does to one image."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

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
    from integrodiff import Denoiser
    from integrodiff.arrays import array_image
    from integrodiff.viz.drawing import save_figure
    from integrodiff.viz.explanation import explain
    from integrodiff.viz.explanation_figure import draw

    with stopping(ExitCode.USAGE, ValueError, TypeError, ImportError):
        denoiser = Denoiser(
            **request.noise.arguments(),
            model=model,
            engine=request.engine,
            data_range=request.data_range,
        )
        pipeline = denoiser.pipeline(
            array_image(pixels, channel_axis=None if pixels.ndim == 2 else -1)
        )
        groups = pipeline.on_model_scale(pixels, 0)
        if not groups:
            stop(
                ExitCode.USAGE,
                "there is no noise, and so nothing to explain; give --sigma above 0",
            )
        # The first group of a colour image is its luminance.
        image, level = groups[0]
        explanation = explain(image, level, model, step=request.step, engine=request.engine)
    (channel,) = pipeline.resolved.channels
    estimated = " (estimated)" if channel.estimated else ""
    what = f"{Path(request.model).name} at noise level {level / channel.factor:.4g}{estimated}"
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
