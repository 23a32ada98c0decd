"""The command line: ``integrodiff denoise``, ``compare``, ``explain`` and others.

====  ==============================================================================
code  meaning
====  ==============================================================================
0     done
1     unexpected error: a bug, or not enough memory
2     wrong usage: bad argument, unknown model, unavailable engine, unclear grey range,
      missing optional package
3     an image or model file cannot be read or downloaded
4     the output cannot be written, or exists already
5     some files of a batch failed; all others are done
130   interrupted by Ctrl-C; 129 by SIGHUP, 143 by SIGTERM
====  ==============================================================================

Wrong usage and bad files never show a traceback, and no error leaves a half-written file. Results
go to standard output, messages and progress bars to standard error.
"""

from __future__ import annotations

from typing import Annotated

import typer

from integrodiff._version import __version__
from integrodiff.cli.compare import compare
from integrodiff.cli.demo import demo
from integrodiff.cli.denoise import denoise
from integrodiff.cli.explain import explain
from integrodiff.cli.info import info
from integrodiff.cli.page import page
from integrodiff.cli.reproduce import reproduce
from integrodiff.cli.train import train

_EPILOG = """\
Exit codes:

- 0: done
- 1: unexpected error; set INTEGRODIFF_DEBUG=1 in the environment to see the traceback
- 2: wrong usage
- 3: an image or model file cannot be read or downloaded
- 4: the output cannot be written, or exists already
- 5: some files of a batch failed; all others are done
- 130: interrupted by Ctrl-C; 129 by SIGHUP, 143 by SIGTERM

Run `integrodiff COMMAND --help` for the options of a command.
"""

app = typer.Typer(
    name="integrodiff",
    help="Remove noise from images by nonlinear diffusion with a few learned parameters.",
    epilog=_EPILOG,
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode="markdown",
    context_settings={"help_option_names": ["-h", "--help"]},
)
app.command()(denoise)
app.command()(compare)
app.command()(explain)
app.command()(demo)
app.command()(page)
app.command()(train)
app.command()(reproduce)
app.command()(info)


def _show_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"integrodiff {__version__}")
        raise typer.Exit


@app.callback()
def _common(
    version: Annotated[
        bool,
        typer.Option(
            "--version", help="Show the version and exit.", callback=_show_version, is_eager=True
        ),
    ] = False,
) -> None:
    pass


def main() -> None:
    """Run the command line."""
    app(prog_name="integrodiff")
