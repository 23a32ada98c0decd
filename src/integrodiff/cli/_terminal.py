"""What all commands share: exit codes, messages in one style, and progress."""

from __future__ import annotations

import errno
import importlib.util
import os
import traceback
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from enum import IntEnum
from typing import TYPE_CHECKING, Any, NoReturn

import typer

if TYPE_CHECKING:
    from rich.console import Console


class ExitCode(IntEnum):
    """What a run of the program ends with; explained in :mod:`integrodiff.cli`."""

    DONE = 0
    UNEXPECTED = 1
    USAGE = 2
    INPUT = 3
    OUTPUT = 4
    INTERRUPTED = 130


def messages() -> Console:
    """Return the console for messages and progress, the standard error."""
    from rich.console import Console

    return Console(stderr=True, highlight=False)


def say(text: str, *, label: str = "", style: str = "") -> None:
    """Write one line to the standard error, with a coloured label before it."""
    from rich.text import Text

    line = Text.assemble((f"{label}: ", style), _printable(text)) if label else _printable(text)
    messages().print(line, markup=False, soft_wrap=True)


def stop(code: ExitCode, text: str) -> NoReturn:
    """Write an error message and end the program."""
    say(_in_words_of_the_command_line(text), label="error", style="bold red")
    raise typer.Exit(code)


@contextmanager
def stopping(code: ExitCode, *errors: type[Exception]) -> Iterator[None]:
    """End the program with this code if the block raises one of these errors."""
    try:
        yield
    except errors as error:
        _show_traceback_if_wanted()
        stop(code, str(error) or type(error).__name__)


@contextmanager
def exit_codes() -> Iterator[None]:
    """Give every way out of a command its exit code; for the whole body of each command."""
    try:
        yield
    except (typer.Exit, typer.Abort):
        raise
    except KeyboardInterrupt:
        say("interrupted")
        raise typer.Exit(ExitCode.INTERRUPTED) from None
    except MemoryError:
        _show_traceback_if_wanted()
        stop(ExitCode.UNEXPECTED, "not enough memory for this image; cut it into parts")
    except Exception as error:
        if isinstance(error, OSError) and error.errno == errno.EPIPE:
            raise  # the reader of a pipe has gone; Typer ends the program in silence
        _show_traceback_if_wanted()
        stop(
            ExitCode.UNEXPECTED,
            f"unexpected {type(error).__name__}: {error}. This is a fault of the program; please "
            "report it with the traceback, which INTEGRODIFF_DEBUG=1 in the environment shows",
        )


@contextmanager
def plain_warnings() -> Iterator[None]:
    """Show warnings as single lines, and each of them once."""
    shown: set[str] = set()

    def show(message: Warning | str, *_: Any, **__: Any) -> None:
        text = _in_words_of_the_command_line(str(message))
        if text not in shown:
            shown.add(text)
            say(text, label="warning", style="bold yellow")

    with warnings.catch_warnings():
        warnings.simplefilter("always")
        warnings.showwarning = show
        yield


@contextmanager
def progress(title: str, total: int, *, quiet: bool) -> Iterator[Callable[[], None] | None]:
    """Show a progress bar if there is a terminal, and give the function that advances it."""
    console = messages()
    if quiet or total == 0 or not console.is_terminal:
        yield None
        return
    from rich.markup import escape
    from rich.progress import Progress

    with Progress(console=console, transient=True) as bar:
        task = bar.add_task(escape(_printable(title)), total=total)
        yield lambda: bar.advance(task)


def require_matplotlib() -> None:
    """End the program if nothing can be drawn here."""
    if importlib.util.find_spec("matplotlib") is None:
        stop(
            ExitCode.USAGE,
            "figures need Matplotlib, which is not installed; install it with: "
            "pip install 'integrodiff[plot]'",
        )


def _in_words_of_the_command_line(text: str) -> str:
    """Name options as they are given here, not as arguments of the Python functions."""
    return text.replace("data_range", "--data-range").replace("give sigma", "give --sigma")


def _printable(text: str) -> str:
    """Make control characters and undecodable bytes, as file names may have, visible."""
    return "".join(c if c.isprintable() or c == "\n" else ascii(c)[1:-1] for c in text)


def _show_traceback_if_wanted() -> None:
    if os.environ.get("INTEGRODIFF_DEBUG", "0") not in ("", "0"):
        traceback.print_exc()
