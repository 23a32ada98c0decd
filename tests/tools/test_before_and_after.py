"""Every row of the tables of before and after, at a small size."""

from __future__ import annotations

from pathlib import Path

import pytest

from before_and_after import TABLES, Row, answer, markdown

_SIDE = {"masks": 96, "grey range": 96, "arrays": 24, "pictures": 48}

ROWS = [(table, row) for table, rows in TABLES.items() for row in rows]


@pytest.mark.long
@pytest.mark.parametrize(("table", "row"), ROWS, ids=[row.name for _, row in ROWS])
def test_row_is_as_promised(table: str, row: Row, tmp_path: Path) -> None:
    found = answer(row, _SIDE[table], tmp_path)
    if isinstance(found, str) and found.startswith("not tried"):
        pytest.skip(found)
    assert row.is_good(found), found


def test_tables_hold_all_rows() -> None:
    numbers = {
        "masks": {"PSNR": 30.0, "changed": 2.0, "by": 17.0},
        "grey range": {"PSNR": 30.0, "best": 30.5, "warnings": 1.0},
    }
    found = {
        table: {row.name: numbers.get(table, "words") for row in rows}
        for table, rows in TABLES.items()
    }
    text = markdown({"before": found, "after": found})
    assert all(f"| {row.name} |" in text for _, row in ROWS)
    assert "30.00 dB, 2 changed, by up to 17" in text
    assert "30.00 dB, 1 warning | 30.00 dB, 1 warning | 30.50 dB |" in text
