"""``integrodiff demo``: denoise one photograph with several models."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from integrodiff.cli._terminal import ExitCode, exit_codes, plain_warnings, results, say, stopping

if TYPE_CHECKING:
    from integrodiff.viz.demo import Panel


def demo(
    output: Annotated[
        Path,
        typer.Option(
            metavar="FILE", help="Picture to write; the format follows the file extension."
        ),
    ] = Path("demo.png"),
    sigma: Annotated[
        float, typer.Option(metavar="S", help="Standard deviation of the added noise.")
    ] = 50.0,
    seed: Annotated[int, typer.Option(min=0, help="Random seed of the noise.")] = 0,
    engine: Annotated[
        str,
        typer.Option(
            metavar="auto|numpy|native|torch|cuda",
            help="Compute backend; auto takes the fastest that is available.",
        ),
    ] = "auto",
    overwrite: Annotated[
        bool, typer.Option("--overwrite", help="Replace an existing picture.")
    ] = False,
) -> None:
    """Denoise a sample photograph with several models and compare the results.

    Adds Gaussian noise to scikit-image's cameraman (512 x 512, public domain), prints PSNR, SSIM
    and time of each model, and writes one picture with all results. Nothing is downloaded.

    For example:

        integrodiff demo
        integrodiff demo --sigma 25 --output demo.png --overwrite
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
        compared = panels(sigma, seed=seed, engine=engine)
    _print_table(compared, sigma, seed, engine)
    with stopping(ExitCode.OUTPUT, ImageFileError):
        write_image(output, ImageFile(pixels=comparison(compared)), overwrite=overwrite)
    say(f"comparison, a part of the image at twice its size, written to {output}")


def _print_table(panels: list[Panel], sigma: float, seed: int, engine: str) -> None:
    from rich import box
    from rich.table import Table

    from integrodiff.cli.info import parameter_text
    from integrodiff.models import load_model

    table = Table(title=f"Cameraman, sigma {sigma:g}, seed {seed}, engine {engine}", box=box.SIMPLE)
    for name in ("image", "parameters", "PSNR [dB]", "SSIM", "seconds"):
        table.add_column(name, justify="left" if name == "image" else "right")
    for panel in panels:
        if panel.psnr is None:
            continue  # the clean image, the reference of all others
        table.add_row(
            panel.title,
            "" if panel.model is None else parameter_text(load_model(panel.model)),
            f"{panel.psnr:.2f}",
            f"{panel.ssim:.3f}",
            "" if panel.seconds is None else f"{panel.seconds:.2f}",
        )
    results().print(table)
