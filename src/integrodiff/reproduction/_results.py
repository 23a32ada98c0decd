"""What all results have in common: where they come from, rounding, tables, and files."""

from __future__ import annotations

import csv
import json
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeAlias

from integrodiff._atomic import atomic_write
from integrodiff._version import __version__
from integrodiff.learning.images import CleanImages
from integrodiff.models import Model
from integrodiff.reproduction.published import LEVELS, TEST_IMAGES

Result: TypeAlias = dict[str, Any]
"""Strings, numbers, lists and dictionaries: what JSON can hold."""

_ORIGIN = ("status", "recipe", "data", "images", "loss", "date")


def about(models: Mapping[str, Model], images: CleanImages | None = None) -> Result:
    """Return what a result was computed with: the version, the models, and the test images."""
    found: Result = {
        "integrodiff": __version__,
        "models": {
            name: {key: model.provenance[key] for key in _ORIGIN if key in model.provenance}
            for name, model in models.items()
        },
    }
    if images is not None:
        found["test_images"] = {
            "count": len(images),
            "source": images.source,
            "sha256": images.fingerprint,
        }
    return found


def crops_text(count: int) -> str:
    """Return in words which of the test images were used."""
    if count == TEST_IMAGES:
        return f"the {count} test crops"
    first = "the first" if count == 1 else f"the first {count}"
    return (
        f"{first} of the {TEST_IMAGES} test crops (the paper's numbers are for all {TEST_IMAGES})"
    )


def decibel(value: float) -> float:
    """Round a PSNR for a file."""
    return round(value, 4)


def significant(value: float) -> float:
    """Round any other number for a file."""
    return float(f"{value:.6g}")


def by_level(values: Sequence[float]) -> dict[str, float]:
    """Return one value for each noise level of the paper, and their mean."""
    row = {f"{level:g}": decibel(value) for level, value in zip(LEVELS, values, strict=True)}
    return {**row, "mean": decibel(sum(values) / len(values))}


def difference(row: Mapping[str, float], other: Mapping[str, float]) -> dict[str, float]:
    """Return the first row minus the second."""
    return {name: decibel(row[name] - other[name]) for name in row}


def markdown_table(header: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Return a Markdown table whose columns line up, the first to the left."""
    lines = [list(header), *(list(row) for row in rows)]
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]

    def line(cells: Sequence[str]) -> str:
        first, *others = (
            cell.rjust(width) if number else cell.ljust(width)
            for number, (cell, width) in enumerate(zip(cells, widths, strict=True))
        )
        return f"| {' | '.join([first, *others])} |"

    first, *others = ("-" * width for width in widths)
    rule = f"|-{first}-|{''.join(f'-{dashes}:|' for dashes in others)}"
    return "\n".join([line(lines[0]), rule, *map(line, lines[1:])]) + "\n"


def level_texts(row: Mapping[str, float], *, sign: str = "") -> list[str]:
    """Return what :func:`by_level` gave as text; the mean, of more numbers, is more precise."""
    return [f"{value:{sign}.{3 if name == 'mean' else 2}f}" for name, value in row.items()]


def level_headers() -> list[str]:
    """Return the headers of columns for the noise levels and their mean."""
    return [*(f"s = {level:g}" for level in LEVELS), "mean"]


def write_numbers(
    folder: Path,
    name: str,
    result: Result,
    markdown: str,
    table: Sequence[Sequence[object]],
) -> list[Path]:
    """Write a result as JSON, CSV and Markdown; return the paths.

    Each file appears whole or not at all, and replaces one of its name.

    Parameters
    ----------
    folder : path
        Where the files go.
    name : str
        Their name without suffix.
    result : dict
        For the JSON file.
    markdown : str
        For the Markdown file.
    table : sequence of rows
        For the CSV file, its header first.
    """
    path = folder / f"{name}.json"
    with atomic_write(path, overwrite=True) as temporary:
        text = json.dumps(result, indent=2, allow_nan=False)
        temporary.write_text(text + "\n", encoding="utf-8")
    with (
        atomic_write(path.with_suffix(".csv"), overwrite=True) as temporary,
        temporary.open("w", encoding="utf-8", newline="") as file,
    ):
        csv.writer(file, lineterminator="\n").writerows(table)
    with atomic_write(path.with_suffix(".md"), overwrite=True) as temporary:
        temporary.write_text(markdown, encoding="utf-8")
    return [path, path.with_suffix(".csv"), path.with_suffix(".md")]
