"""``integrodiff demo``: all models on one noisy photograph."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from integrodiff.cli._terminal import ExitCode, exit_codes, plain_warnings, say, stopping

if TYPE_CHECKING:
    from integrodiff.viz.demo import Panel


def demo(
    output: Annotated[
        Path, typer.Option(metavar="FILE", help="Where to write the comparison, as an image.")
    ] = Path("demo.png"),
    sigma: Annotated[
        float, typer.Option(metavar="S", help="Standard deviation of the noise that is added.")
    ] = 50.0,
    seed: Annotated[int, typer.Option(min=0, help="Seed of the noise.")] = 0,
    engine: Annotated[
        str,
        typer.Option(
            metavar="auto|numpy|native|torch", help="Who computes; auto takes the fastest."
        ),
    ] = "auto",
    overwrite: Annotated[
        bool, typer.Option("--overwrite", help="Replace the comparison if it exists.")
    ] = False,
) -> None:
    """Denoise a sample photograph with all models, and compare them.

    Adds Gaussian noise to the cameraman of scikit-image (512 x 512, public domain), prints a
    table of quality and time, and writes one picture with all results. Nothing is downloaded.

    Example: `integrodiff demo --sigma 50 --output demo.png`
    """
    with exit_codes(), plain_warnings():
        _run(output, sigma, seed, engine, overwrite)


def _run(output: Path, sigma: float, seed: int, engine: str, overwrite: bool) -> None:
    from integrodiff._checks import positive_number
    from integrodiff.engines import get_engine
    from integrodiff.errors import ImageFileError
    from integrodiff.io import ImageFile, check_output_path, write_image
    from integrodiff.viz.demo import comparison, panels

    with stopping(ExitCode.USAGE, ValueError, TypeError, ImportError, OSError):
        positive_number("sigma", sigma)
        engine = get_engine(engine).name
    with stopping(ExitCode.OUTPUT, ImageFileError):
        check_output_path(output, overwrite=overwrite)
    with stopping(ExitCode.USAGE, ValueError, ImportError):
        results = panels(sigma, seed=seed, engine=engine)
    _print_table(results, sigma, seed, engine)
    with stopping(ExitCode.OUTPUT, ImageFileError):
        write_image(output, ImageFile(pixels=comparison(results)), overwrite=overwrite)
    say(f"The comparison, a part of the image at twice its size, is in {output}")


def _print_table(results: list[Panel], sigma: float, seed: int, engine: str) -> None:
    from rich import box
    from rich.console import Console
    from rich.table import Table

    from integrodiff.cli.info import parameter_text
    from integrodiff.models import load_model

    table = Table(title=f"Cameraman, sigma {sigma:g}, seed {seed}, engine {engine}", box=box.SIMPLE)
    for name in ("image", "parameters", "PSNR [dB]", "SSIM", "seconds"):
        table.add_column(name.replace("[", "\\["), justify="left" if name == "image" else "right")
    for panel in results:
        if panel.psnr is None:
            continue  # the clean image, which all others are compared with
        table.add_row(
            panel.title,
            "" if panel.model is None else parameter_text(load_model(panel.model)),
            f"{panel.psnr:.2f}",
            f"{panel.ssim:.3f}",
            "" if panel.seconds is None else f"{panel.seconds:.2f}",
        )
    Console(highlight=False).print(table)
