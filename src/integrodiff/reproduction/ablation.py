"""The paper's ablation: what the reduction from two numbers per scale to three in all costs."""

from __future__ import annotations

from itertools import product
from pathlib import Path

from integrodiff.learning.parameters import Parameterisation
from integrodiff.learning.recipes import RECIPES
from integrodiff.models import ByNoiseLevel, ExplicitModel, Model
from integrodiff.reproduction._results import (
    Result,
    about,
    by_level,
    crops_text,
    decibel,
    level_headers,
    level_texts,
    markdown_table,
    write_numbers,
)
from integrodiff.reproduction.evaluation import Evaluation
from integrodiff.reproduction.published import (
    FULL_LAW_NUMBERS,
    GAP,
    LEVELS,
    REDUCED_LAW_NUMBERS,
)

FULL, REDUCED = "iad-full", "iad"
MODELS = (FULL, REDUCED)
CELLS = tuple(product(MODELS, LEVELS))


def compute(evaluation: Evaluation) -> Result:
    """Return the quality of both models, their numbers of parameters, and the gap."""
    evaluation.compute(CELLS)
    models = {name: evaluation.models[name] for name in MODELS}
    means = {name: evaluation.row(name, LEVELS) for name in MODELS}
    gaps = [full - reduced for full, reduced in zip(means[FULL], means[REDUCED], strict=True)]
    gap = by_level(gaps)
    return {
        "what": "Ablation: mean PSNR in dB of the full and the reduced IAD, and the gap",
        **about(models, evaluation.images),
        "psnr": {name: by_level(row) for name, row in means.items()},
        "parameters": {
            FULL: {**parameter_counts(FULL, models[FULL]), "paper": FULL_LAW_NUMBERS},
            REDUCED: {**parameter_counts(REDUCED, models[REDUCED]), "paper": REDUCED_LAW_NUMBERS},
        },
        "gap": gap,
        "paper_gap": GAP,
        "difference": decibel(gap["mean"] - GAP),
    }


def parameter_counts(name: str, model: Model) -> dict[str, int]:
    """Count the numbers of a model that was trained by the recipe of this name.

    Returns
    -------
    dict
        ``laws``: weights and contrasts, or the numbers of their laws, which the paper counts;
        ``step_sizes``; and ``trained``: those of both that training was free to change.
    """
    if isinstance(model, ByNoiseLevel):
        members = list(zip(model.models, model.levels, strict=True))
    elif isinstance(model, ExplicitModel):
        members = [(model, LEVELS[0])]
    else:
        raise TypeError(f"the parameters of a {type(model).__name__} cannot be counted")
    laws = sum(
        len(value) if isinstance(value, list) else 1
        for member, _ in members
        for key, value in member.parameters().items()
        if key != "tau" and not isinstance(value, str)
    )
    fixed = RECIPES[name].fixed
    trained = sum(len(Parameterisation(member, (s,), fixed).names) for member, s in members)
    return {"laws": laws, "step_sizes": len(members), "trained": trained}


def markdown(result: Result) -> str:
    """Return the table of both models and the gap beside the paper's."""
    titles = {FULL: "IAD, full", REDUCED: "IAD, reduced"}
    rows = []
    for name, psnr in result["psnr"].items():
        counts = result["parameters"][name]
        numbers = [str(counts[key]) for key in ("laws", "paper", "trained")]
        rows.append([titles[name], *numbers, *level_texts(psnr)])
    empty = [""] * (3 + len(LEVELS))
    rows += [
        ["gap, ours", *[""] * 3, *(f"{value:+.3f}" for value in result["gap"].values())],
        ["gap, paper", *empty, f"{result['paper_gap']:+.2f}"],
        ["difference", *empty, f"{result['difference']:+.3f}"],
    ]
    header = ["model", "numbers in the laws", "paper", "trained numbers", *level_headers()]
    return (
        f"## Ablation: mean PSNR in dB on {crops_text(result['test_images']['count'])}\n\n"
        f"{markdown_table(header, rows)}\n"
        "Trained numbers: step sizes count, weights that are fixed at one do not.\n"
    )


def write(result: Result, folder: Path) -> list[Path]:
    """Write ``ablation`` as JSON, CSV and Markdown; return the paths."""
    table: list[list[object]] = [["s", FULL, REDUCED, "gap", "paper_gap", "difference"]]
    for level, gap in result["gap"].items():
        mean = level == "mean"
        psnr = [result["psnr"][name][level] for name in MODELS]
        beside = [result["paper_gap"], result["difference"]] if mean else ["", ""]
        table.append([level, *psnr, gap, *beside])
    return write_numbers(folder, "ablation", result, markdown(result), table)
