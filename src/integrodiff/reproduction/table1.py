"""Table 1 of the paper: four models at six noise levels, on the test crops."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import product
from pathlib import Path
from typing import Any

from integrodiff.models import Model
from integrodiff.reproduction._results import (
    Result,
    about,
    by_level,
    crops_text,
    decibel,
    difference,
    level_headers,
    level_texts,
    markdown_table,
    significant,
    write_numbers,
)
from integrodiff.reproduction.evaluation import Evaluation
from integrodiff.reproduction.published import LEVELS, TABLE_1, TITLES

MODELS = tuple(TITLES)
CELLS = tuple(product(MODELS, LEVELS))
ORDER = (("iad", "eed"), ("eed", "pm"), ("iad", "iid"))
"""Which model is better than which, in the paper at every noise level."""

FIRST_CROPS = 2
"""The means over so few crops are kept too: a quick test can recompute them."""


def compute(evaluation: Evaluation) -> Result:
    """Return our table, the paper's, their difference, and which of the paper's orders hold."""
    evaluation.compute(CELLS)
    models = {name: evaluation.models[name] for name in MODELS}
    first = min(FIRST_CROPS, len(evaluation.images))
    means = {name: evaluation.row(name, LEVELS) for name in MODELS}
    rows: dict[str, Any] = {}
    for name, model in models.items():
        ours, paper = by_level(means[name]), by_level(TABLE_1[name])
        on_first = by_level(evaluation.row(name, LEVELS, first))
        del on_first["mean"]
        rows[name] = {
            "ours": ours,
            "paper": paper,
            "difference": difference(ours, paper),
            "largest_step_over_bound": significant(largest_step(model)),
            "on_first_crops": on_first,
        }
    return {
        "what": "Table 1: mean PSNR in dB, peak 255, results not clipped",
        **about(models, evaluation.images),
        "first_crops": first,
        "psnr": rows,
        "checks": _checks(means),
    }


def largest_step(model: Model) -> float:
    """Return the largest step size over its stable bound, at the paper's noise levels."""
    return max(float(model.evolution(s).tau) / model.stable_step(s) for s in LEVELS)


def _checks(means: Mapping[str, list[float]]) -> list[Result]:
    """Compare the models as the paper does; on average, too."""
    checks: list[Result] = []
    for better, worse in ORDER:
        gaps = [a - b for a, b in zip(means[better], means[worse], strict=True)]
        places = [*(f"at s = {level:g}" for level in LEVELS), "on average"]
        for place, gap in zip(places, [*gaps, sum(gaps) / len(gaps)], strict=True):
            statement = f"{TITLES[better]} > {TITLES[worse]} {place}"
            checks.append({"check": statement, "holds": gap > 0, "difference": decibel(gap)})
    return checks


def markdown(result: Result) -> str:
    """Return the table and the checks, as they came out."""
    rows = []
    for name, row in result["psnr"].items():
        step = f"{row['largest_step_over_bound']:.2f}"
        for label, sign in (("ours", ""), ("paper", ""), ("difference", "+")):
            numbers = level_texts(row[label], sign=sign)
            rows.append([f"{TITLES[name]}, {label}", *numbers, step if label == "ours" else ""])
    table = markdown_table(["model", *level_headers(), "largest tau / bound"], rows)
    checks = result["checks"]
    holding = sum(check["holds"] for check in checks)
    lines = [
        f"- {'holds' if check['holds'] else '**fails**'}: {check['check']} "
        f"({check['difference']:+.3f} dB)"
        for check in checks
    ]
    return (
        f"## Table 1: mean PSNR in dB on {crops_text(result['test_images']['count'])}\n\n{table}\n"
        f"Orders of the models in the paper's table; here {holding} of {len(checks)} hold:\n\n"
        + "\n".join(lines)
        + "\n"
    )


def write(result: Result, folder: Path) -> list[Path]:
    """Write ``table1`` as JSON, CSV and Markdown; return the paths."""
    table: list[list[object]] = [["model", "s", "ours", "paper", "difference"]]
    for name, row in result["psnr"].items():
        for level, ours in row["ours"].items():
            table.append([name, level, ours, row["paper"][level], row["difference"][level]])
    return write_numbers(folder, "table1", result, markdown(result), table)
