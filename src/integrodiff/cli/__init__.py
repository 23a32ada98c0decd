"""The command line: ``integrodiff denoise``, ``compare``, ``explain``, ``demo`` and others.

====  ==============================================================================
code  meaning
====  ==============================================================================
0     done
1     unexpected error: a fault of the program, or not enough memory
2     wrong usage: arguments, noise level, model or engine name, engine that cannot
      run here, grey range that is unclear, training without PyTorch, figures without
      Matplotlib
3     the input, image or model file, cannot be read, used or downloaded
4     the output cannot be written, or exists already
5     of several files, some failed; all others are done
130   interrupted by Ctrl-C; 129 by SIGHUP, 143 by SIGTERM
====  ==============================================================================

No error of the user shows a traceback, and none leaves a half-written file. Results go to the
standard output, messages and progress to the standard error.
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
from integrodiff.cli.reproduce import reproduce
from integrodiff.cli.train import train

_EPILOG = """\
Exit codes:

- 0: done
- 1: unexpected error; set INTEGRODIFF_DEBUG=1 in the environment to see the traceback
- 2: wrong usage
- 3: the input, image or model file, cannot be read, used or downloaded
- 4: the output cannot be written, or exists already
- 5: of several files, some failed; all others are done
- 130: interrupted by Ctrl-C; 129 by SIGHUP, 143 by SIGTERM
"""

app = typer.Typer(
    name="integrodiff",
    help="Remove noise from images by nonlinear diffusion with few, learned parameters.",
    epilog=_EPILOG,
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode="markdown",
    context_settings={"help_option_names": ["-h", "--help"]},
)
app.command(epilog=_EPILOG)(denoise)
app.command(epilog=_EPILOG)(compare)
app.command(epilog=_EPILOG)(explain)
app.command(epilog=_EPILOG)(demo)
app.command(epilog=_EPILOG)(train)
app.command(epilog=_EPILOG)(reproduce)
app.command(epilog=_EPILOG)(info)


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
