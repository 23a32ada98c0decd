"""Show how parameters that were trained on one kind of volumes serve the others.

    python experiments/volume_kinds.py --data FOLDER [--start iad-fast-volume] [--count 4]
        [--side 24] [--levels 8 15 30 60] [--rounds 5] [--output results/volume-kinds.json]

The parameters of a law are trained on ``--count`` volumes of each kind by itself, and of all kinds
together, as by ``train_volumes.py`` with two noise levels for each volume, from the same start.
Step sizes and strengths stay as they are. Each model is then evaluated on other volumes of every
kind, from number 1000 on. The table has the mean PSNR in dB, a row for what was trained on.
Photographs are the training images of BSDS500 in FOLDER.
"""

from __future__ import annotations

import argparse
import json
import time
from pathlib import Path
from typing import Any

from integrodiff._atomic import atomic_write
from integrodiff.learning.parameters import Parameterisation
from integrodiff.models import ExplicitModel
from peers import about_run
from train_volumes import FIRST_HELD_OUT, Sample, Training, psnr, samples, start_of
from volume_phantoms import KINDS

FIXED = ("strengths", "tau", "tau_exponent")


def trained(start: ExplicitModel, found: list[Sample], rounds: int) -> Training:
    """Train on some samples, at most for a number of rounds."""
    fixed = [name for name in FIXED if name in start.parameters()]
    parameters = Parameterisation(start, sorted({one.level for one in found}), fixed)
    training = Training(parameters, found, parameters.vector(start))
    while len(training.losses) <= rounds and not training.converged:
        training.round()
    return training


def table(rows: dict[str, dict[str, Any]]) -> str:
    """Return the table in Markdown."""
    lines = ["| trained on | " + " | ".join(KINDS) + " | mean |", "|---" * (len(KINDS) + 2) + "|"]
    for name, row in rows.items():
        values = " | ".join(f"{row['psnr'][kind]:.2f}" for kind in (*KINDS, "all"))
        lines.append(f"| {name} | {values} |")
    return "\n".join(lines)


def main(words: list[str] | None = None) -> None:
    """Train, evaluate, and print the table."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--data", type=Path, required=True, help="folder that holds bsds500")
    parser.add_argument("--start", default="iad-fast-volume")
    parser.add_argument("--count", type=int, default=4, help="volumes of each kind")
    parser.add_argument("--side", type=int, default=24, help="voxels along each axis")
    parser.add_argument("--levels", nargs="+", type=float, default=[8.0, 15.0, 30.0, 60.0])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--output", type=Path, metavar="FILE.json")
    arguments = parser.parse_args(words)
    shared = arguments.count, arguments.side, arguments.levels
    found = samples(arguments.data, KINDS, *shared)
    held_out = samples(arguments.data, KINDS, *shared, first=FIRST_HELD_OUT)
    start = start_of(arguments.start, None, ())
    rows: dict[str, dict[str, Any]] = {
        f"{arguments.start}, as shipped": {"psnr": psnr(start, held_out)}
    }
    document: dict[str, Any] = about_run() | {
        "what": (__doc__ or "").splitlines()[0],
        "settings": {
            name: value for name, value in vars(arguments).items() if name not in ("data", "output")
        },
        "rows": rows,
    }
    for name, kinds in ({kind: (kind,) for kind in KINDS} | {"all four": KINDS}).items():
        began = time.process_time()
        training = trained(start, [one for one in found if one.kind in kinds], arguments.rounds)
        rows[name] = {
            "psnr": psnr(training.model(), held_out),
            "rounds": len(training.losses) - 1,
            "losses": [round(loss, 5) for loss in training.losses],
            "parameters": training.parameters.values(training.vector),
            "seconds": round(time.process_time() - began, 1),
        }
        print(f"{name}: {json.dumps(rows[name])}", flush=True)
        if arguments.output is not None:
            with atomic_write(arguments.output, overwrite=True) as temporary:
                text = json.dumps(document, indent=1, allow_nan=False)
                temporary.write_text(text + "\n", encoding="utf-8")
    print(table(rows))


if __name__ == "__main__":
    main()
