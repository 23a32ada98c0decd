"""Input and output files of the commands that draw: ``compare`` and ``explain``."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from integrodiff.cli._terminal import ExitCode, stop


def refuse_output_over_inputs(output: Path, inputs: Iterable[Path]) -> None:
    """Refuse an output that is an input, or inside one, also through links."""
    for path in inputs:
        try:
            folders = [output, *output.resolve().parents]
            same = any(folder.exists() and path.samefile(folder) for folder in folders)
        except (OSError, ValueError):
            continue  # missing or inaccessible files are reported when they are opened
        if same:
            stop(
                ExitCode.OUTPUT,
                f"{output} is the input itself, or inside it, and inputs are never changed; choose "
                "another name for the output",
            )
