"""Print the mean PSNR of models on the 100 BSDS500 test crops.

    python experiments/evaluate.py --data FOLDER [--models iad ...] [--levels 20 50] [--count N]

FOLDER holds ``bsds500/images/test``; without ``--data`` the environment variable
``INTEGRODIFF_DATA`` names it. A model is a name or a model file.
"""

from __future__ import annotations

import argparse
import json
import os
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path

import numpy as np

from integrodiff import MODEL_NAMES, load_model
from integrodiff.engines import cpu_count
from integrodiff.learning import PAPER_LEVELS, bsds500
from integrodiff.learning.evaluation import mean_psnr


def cell(model: str, level: float, data: Path | None, count: int | None) -> float:
    """Return one cell of the table."""
    images = bsds500("test", data, count)
    return mean_psnr(load_model(model), images, (level,), engine="numpy")[level]


def main() -> None:
    """Evaluate and print a Markdown table."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--data", type=Path, help="folder that holds bsds500")
    parser.add_argument("--models", nargs="+", default=list(MODEL_NAMES), metavar="MODEL")
    parser.add_argument("--levels", nargs="+", type=float, default=PAPER_LEVELS, metavar="S")
    parser.add_argument("--count", type=int, help="only the first crops")
    parser.add_argument("--json", type=Path, help="write the numbers to this file as well")
    arguments = parser.parse_args()

    levels = [float(level) for level in arguments.levels]
    print(f"mean PSNR in dB over {arguments.count or 100} test crops\n")
    print("| model | " + " | ".join(f"s = {level:g}" for level in levels) + " | mean |")
    print("|---" * (len(levels) + 2) + "|")
    # Every worker computes alone: more threads than processors would wait for each other.
    os.environ["OPENBLAS_NUM_THREADS"] = "1"
    table: dict[str, dict[str, float]] = {}
    with ProcessPoolExecutor(cpu_count(), mp_context=get_context("spawn")) as workers:
        jobs = {
            model: [
                workers.submit(cell, model, level, arguments.data, arguments.count)
                for level in levels
            ]
            for model in arguments.models
        }
        for model, cells in jobs.items():
            row = {f"{s:g}": c.result() for s, c in zip(levels, cells, strict=True)}
            row["mean"] = float(np.mean(list(row.values())))
            table[model] = row
            print(f"| {model} | " + " | ".join(f"{v:.2f}" for v in row.values()) + " |", flush=True)
    if arguments.json:
        arguments.json.write_text(json.dumps(table, indent=2) + "\n")


if __name__ == "__main__":
    main()
