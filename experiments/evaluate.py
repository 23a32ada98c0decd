"""Print the mean PSNR of models on the 100 BSDS500 test crops.

    python experiments/evaluate.py --data FOLDER [--models iad ...] [--levels 20 50] [--count N]
                                   [--shortcuts]

FOLDER holds ``bsds500/images/test``; without ``--data`` the environment variable
``INTEGRODIFF_DATA`` names it. A model is a name or a model file. All is computed exactly; with
``--shortcuts`` a second row says how much that differs from what ``denoise`` does by default.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path

from integrodiff import MODEL_NAMES, load_model
from integrodiff.learning import PAPER_LEVELS, bsds500
from integrodiff.learning.evaluation import mean_psnr
from integrodiff.reproduction.evaluation import Evaluation


def main() -> None:
    """Evaluate and print a Markdown table."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--data", type=Path, help="folder that holds bsds500")
    parser.add_argument("--models", nargs="+", default=list(MODEL_NAMES), metavar="MODEL")
    parser.add_argument("--levels", nargs="+", type=float, default=PAPER_LEVELS, metavar="S")
    parser.add_argument("--count", type=int, help="only the first crops")
    parser.add_argument("--shortcuts", action="store_true", help="say what shortcuts change")
    parser.add_argument("--json", type=Path, help="write the numbers to this file as well")
    arguments = parser.parse_args()

    levels = [float(level) for level in arguments.levels]
    images = bsds500("test", arguments.data, arguments.count)
    print(f"mean PSNR in dB over {len(images)} test crops\n")
    print("| model | " + " | ".join(f"s = {level:g}" for level in levels) + " | mean |")
    print("|---" * (len(levels) + 2) + "|")
    models = {model: load_model(model) for model in arguments.models}
    evaluation = Evaluation(models, images)
    table: dict[str, dict[str, float]] = {}
    for model in models:
        psnr = evaluation.row(model, levels)
        row = {f"{s:g}": value for s, value in zip(levels, psnr, strict=True)}
        row["mean"] = sum(psnr) / len(psnr)
        table[model] = row
        print(f"| {model} | " + " | ".join(f"{v:.2f}" for v in row.values()) + " |", flush=True)
        if arguments.shortcuts:
            fast = mean_psnr(models[model], images, levels, exact=False)
            changes = [fast[s] - exact for s, exact in zip(levels, psnr, strict=True)]
            changes.append(sum(changes) / len(changes))
            cells = " | ".join(f"{change:+.4f}" for change in changes)
            print(f"| by shortcuts | {cells} |", flush=True)
    if arguments.json:
        arguments.json.write_text(json.dumps(table, indent=2) + "\n")


if __name__ == "__main__":
    main()
