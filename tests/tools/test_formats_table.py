"""Every row of the table of formats in docs/formats.md, at small size."""

from __future__ import annotations

import pytest
from command_line import run

from formats_table import ROWS, Row, outcome


def in_this_process(arguments: list[str]) -> str | None:
    if arguments[0] == "python":
        exec(arguments[1], {})  # noqa: S102 - the program of a row
        return None
    done = run("denoise", *arguments)
    return None if done.exit_code == 0 else done.stderr


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.name)
def test_row(row: Row) -> None:
    if row.missing:
        pytest.skip(f"needs {', '.join(row.missing)}")
    found = outcome(row, (64, 80), in_this_process)
    assert found.good, found.words
