"""``integrodiff explain``: draw the structure, diffusivities and steps of a model on one image."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import typer

from integrodiff._default_model import DEFAULT_MODEL
from integrodiff.cli._files import page_of, refuse_output_over_inputs
from integrodiff.cli._models import loaded_model
from integrodiff.cli._noise import NoiseOptions, NoisePsd, Sigma
from integrodiff.cli._terminal import (
    ExitCode,
    exit_codes,
    plain_warnings,
    printable,
    require_matplotlib,
    say,
    stop,
    stopping,
)


def explain(
    input: Annotated[Path, typer.Argument(metavar="IN", help="Noisy image, grey or RGB.")],
    output: Annotated[
        Path, typer.Option(metavar="FILE.png", help="Picture to write, a PNG file.")
    ] = Path("explanation.png"),
    sigma: Sigma = None,
    noise_psd: NoisePsd = None,
    model: Annotated[
        str, typer.Option(metavar="NAME|FILE.json", help="Model name or model file.")
    ] = DEFAULT_MODEL,
    step: Annotated[
        int | None,
        typer.Option(
            min=0,
            help="Number of steps after which structure and diffusivities are drawn; 0 is the "
            "noisy image. By default half of all steps.",
            show_default=False,
        ),
    ] = None,
    engine: Annotated[
        str,
        typer.Option(
            metavar="auto|numpy|native|torch",
            help="Compute backend; auto takes the fastest that is available.",
        ),
    ] = "auto",
    data_range: Annotated[
        float | None,
        typer.Option(
            metavar="R",
            help="Difference between the largest and smallest grey value that the image could "
            "have. By default as in `integrodiff denoise`.",
            show_default=False,
        ),
    ] = None,
    page: Annotated[int, typer.Option(min=1, help="Page of a stack, counted from 1.")] = 1,
    overwrite: Annotated[
        bool, typer.Option("--overwrite", help="Replace an existing picture.")
    ] = False,
) -> None:
    """Draw how a model denoises an image.

    The picture shows the multiscale structure tensor (strength, coherence and orientation of
    edges), the diffusivity across and along structures at each scale, and the image after several
    steps. For a colour image it shows the luminance. Drawing needs Matplotlib, which the extra
    `plot` installs.

    For example:

        integrodiff explain noisy.png
        integrodiff explain noisy.png --sigma 25 --step 0 --output explanation.png
    """
    with exit_codes(), plain_warnings():
        _run(
            _Request(
                input=input,
                output=output,
                noise=NoiseOptions(sigma=sigma, noise_psd=noise_psd),
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
    """Check the arguments, compute, draw."""
    require_matplotlib()
    request.noise.check()
    model = loaded_model(request.model)
    _check_output(request)
    pixels, mask = page_of(request.input, request.page)
    if mask is not None:
        stop(
            ExitCode.INPUT,
            f"{request.input} has invalid pixels, and only images without them can be explained; "
            "cut out a part",
        )
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
                "the noise level is 0, so nothing is changed; give --sigma above 0",
            )
        # The first group of a colour image is its luminance.
        image, level = groups[0]
        explanation = explain(
            image,
            level.sigma,
            model,
            step=request.step,
            engine=request.engine,
            evolution=level.evolution(model),
        )
    (channel,) = pipeline.resolved.channels
    first = channel.space.groups[0].sigma
    kind = "" if level.shape.is_white else ", correlated noise"
    estimated = " (estimated)" if channel.estimated else ""
    what = f"{Path(request.model).name} at noise level {first:.4g}{kind}{estimated}"
    figure = draw(explanation, printable(f"{request.input.name}: {what}"))
    with stopping(ExitCode.OUTPUT, OSError):
        save_figure(figure, request.output, overwrite=request.overwrite)
    say(f"{request.input} -> {request.output}: {what}")


def _check_output(request: _Request) -> None:
    """Stop if the picture cannot be written, before the image is read."""
    from integrodiff.errors import ImageFileError
    from integrodiff.io import check_output_path

    output = request.output
    if output.suffix.lower() != ".png":
        stop(ExitCode.OUTPUT, f"{output}: the picture is a PNG file; its name must end in .png")
    refuse_output_over_inputs(output, [request.input, *request.noise.files])
    with stopping(ExitCode.OUTPUT, ImageFileError):
        check_output_path(output, overwrite=request.overwrite)
