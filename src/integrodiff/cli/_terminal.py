"""Exit codes, messages, tables and progress bars of all commands."""

from __future__ import annotations

import errno
import os
import re
import signal
import threading
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
    """Exit codes of the program; :mod:`integrodiff.cli` explains them."""

    DONE = 0
    UNEXPECTED = 1
    USAGE = 2
    INPUT = 3
    OUTPUT = 4
    SOME_FAILED = 5
    HUNG_UP = 129
    INTERRUPTED = 130
    TERMINATED = 143


class Terminated(KeyboardInterrupt):
    """SIGTERM or SIGHUP, which end a command like Ctrl-C, with their own exit code.

    Parameters
    ----------
    number : int
        The signal.
    """

    def __init__(self, number: int) -> None:
        super().__init__()
        self.code = ExitCode(128 + number)


REDRAWS = 4
"""Redraws of a progress bar per second; each costs the threads of the engine a few milliseconds."""


def messages() -> Console:
    """Return the console for messages and progress bars: standard error, without markup."""
    from rich.console import Console

    return Console(stderr=True, highlight=False, markup=False, emoji=False)


def results() -> Console:
    """Return the console for tables: standard output, without markup."""
    from rich.console import Console

    # With markup, a cell such as "pip install '.[torch]'" would lose its brackets.
    return Console(highlight=False, markup=False, emoji=False)


class Stopped(typer.Exit):
    """Ends a command, or one file of a batch, with an exit code and an error message."""

    def __init__(self, code: ExitCode, message: str) -> None:
        super().__init__(code)
        self.code = code
        self.message = message


def say(text: str, *, label: str = "", style: str = "", console: Console | None = None) -> None:
    """Write one line to standard error, with an optional coloured label in front.

    A line break in the text may come from the name of a file, and is shown as such.
    """
    from rich.text import Text

    line = Text.assemble((f"{label}: " if label else "", style), printable(text))
    (console or messages()).print(line, soft_wrap=True)


def note(text: str, console: Console | None = None) -> None:
    """Write a remark on a result."""
    say(text, label="note", style="bold", console=console)


def warn(text: str, console: Console | None = None) -> None:
    """Write a warning, naming options as the command line does."""
    text = _in_words_of_the_command_line(text)
    say(text, label="warning", style="bold yellow", console=console)


def complain(text: str, console: Console | None = None) -> None:
    """Write an error message."""
    say(text, label="error", style="bold red", console=console)


def stop(code: ExitCode, text: str) -> NoReturn:
    """Raise :class:`Stopped` with an error message."""
    raise Stopped(code, _in_words_of_the_command_line(text))


@contextmanager
def stopping(code: ExitCode, *errors: type[Exception]) -> Iterator[None]:
    """Stop with this exit code if the block raises one of these errors."""
    try:
        yield
    except errors as error:
        _show_traceback_if_wanted()
        stop(code, str(error) or type(error).__name__)


@contextmanager
def every_error_stops() -> Iterator[None]:
    """Turn every error that no other handler expects into exit code 1."""
    try:
        yield
    except (typer.Exit, typer.Abort):
        raise
    except MemoryError:
        _show_traceback_if_wanted()
        stop(ExitCode.UNEXPECTED, "not enough memory for this image; split it into parts")
    except Exception as error:
        if isinstance(error, OSError) and error.errno == errno.EPIPE:
            raise  # the reader of the pipe is gone; Typer then exits without a message
        _show_traceback_if_wanted()
        stop(
            ExitCode.UNEXPECTED,
            f"unexpected {type(error).__name__}: {error}. This is a bug; please report it with the "
            "traceback, which INTEGRODIFF_DEBUG=1 in the environment shows",
        )


@contextmanager
def exit_codes() -> Iterator[None]:
    """Report errors and interrupts with their exit codes; wraps the body of each command."""
    try:
        with _termination_interrupts(), every_error_stops():
            yield
    except Stopped as end:
        complain(end.message)
        raise
    except KeyboardInterrupt as error:
        say("interrupted")
        raise typer.Exit(interrupt_code(error)) from None


def interrupt_code(error: KeyboardInterrupt) -> ExitCode:
    """Return the exit code for Ctrl-C or a signal."""
    return error.code if isinstance(error, Terminated) else ExitCode.INTERRUPTED


@contextmanager
def _termination_interrupts() -> Iterator[None]:
    """Raise :class:`Terminated` in the block on SIGTERM and SIGHUP.

    Ignored signals stay ignored, as SIGHUP under nohup. Only the first signal counts, so that a
    second one cannot interrupt the cleanup.
    """

    def interrupt(number: int, _: object) -> None:
        for each in before:
            # Not SIG_IGN: Python writes a traceback if a signal has just come.
            signal.signal(each, lambda *_: None)
        raise Terminated(number)

    before: dict[int, Any] = {}
    if threading.current_thread() is threading.main_thread():
        numbers = [getattr(signal, name, None) for name in ("SIGTERM", "SIGHUP")]
        before = {n: signal.SIG_DFL for n in numbers if n and signal.getsignal(n) == signal.SIG_DFL}
    for number in before:
        signal.signal(number, interrupt)
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


@contextmanager
def plain_warnings() -> Iterator[list[str]]:
    """Show each distinct warning once, as a single line; yield the list of those shown."""
    shown: list[str] = []

    def show(message: Warning | str, *_: Any, **__: Any) -> None:
        text = str(message)
        if text not in shown:
            shown.append(text)
            warn(text)

    with warnings.catch_warnings():
        warnings.simplefilter("always")
        warnings.showwarning = show
        yield shown


@contextmanager
def progress(title: str, total: int, *, quiet: bool) -> Iterator[Callable[[], None] | None]:
    """Show a progress bar on a terminal; yield the function that advances it, or None."""
    console = messages()
    if quiet or total == 0 or not console.is_terminal:
        yield None
        return
    with shown_bar(console, title, total) as advance:
        yield advance


@contextmanager
def shown_bar(console: Console, title: str, total: int) -> Iterator[Callable[[], None]]:
    """Show a progress bar; yield the function that advances it."""
    from rich.markup import escape
    from rich.progress import Progress

    with Progress(console=console, transient=True, refresh_per_second=REDRAWS) as bar:
        task = bar.add_task(escape(printable(title)), total=total)
        yield lambda: bar.advance(task)


def require_matplotlib() -> None:
    """Stop if Matplotlib is not installed."""
    from integrodiff.viz.drawing import require_matplotlib

    with stopping(ExitCode.USAGE, ImportError):
        require_matplotlib()


def _in_words_of_the_command_line(text: str) -> str:
    """Replace names of Python arguments by the options of the command line."""
    for argument, option in (
        ("data_range", "--data-range"),
        ("max_memory", "--max-memory"),
        ("noise_psd", "--noise-psd"),
        ("give sigma", "give --sigma"),
        ("give spacing", "give --spacing"),
        ("axes with Q in place of Z", "--slices"),
        ("axes with Z", "--volume"),
    ):
        text = text.replace(argument, option)
    return re.sub(r"\b(model|engine)='([\w-]+)'", r"--\1 \2", text)


def printable(text: str) -> str:
    """Escape line breaks, control characters and undecodable bytes, as file names may have them."""
    return "".join(c if c.isprintable() else ascii(c)[1:-1] for c in text)


def _show_traceback_if_wanted() -> None:
    if os.environ.get("INTEGRODIFF_DEBUG", "0") not in ("", "0"):
        traceback.print_exc()
