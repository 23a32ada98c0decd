"""The command line, run in the process of the tests."""

from __future__ import annotations

from typer.testing import CliRunner, Result

from integrodiff.cli import app


def run(
    *arguments: object, env: dict[str, str] | None = None, input: bytes | None = None
) -> Result:
    """Run the command line in this process, with a wide terminal."""
    words = [str(argument) for argument in arguments]
    return CliRunner().invoke(app, words, env={"COLUMNS": "200", **(env or {})}, input=input)
