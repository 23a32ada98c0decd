"""Train the deep research model on the BSDS500 training crops; meant for a GPU.

    python experiments/train_deep.py OUT.json --data FOLDER [--iterations 4259] [--orders 1 2 3 4]
                                     [--every-other] [--start NAME_OR_FILE]

With ``--start`` the training goes on from the numbers of a model that is there already. With
``--every-other`` every second crop is kept out of the training and evaluated at the end. The
checkpoint ``OUT.json.checkpoint`` lets a stopped run go on.
"""

from __future__ import annotations

import argparse
import time
from dataclasses import asdict, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from integrodiff import load_model, save_model
from integrodiff.learning import PAPER_LEVELS, bsds500
from integrodiff.learning.descent import DescentProgress, DescentSettings, deep_start, descend
from integrodiff.learning.evaluation import mean_psnr
from integrodiff.learning.recipes import versions
from integrodiff.models import DeepDiffusion
from level_weights import halves


def main() -> None:
    """Train, evaluate and save."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("output", type=Path)
    parser.add_argument("--data", type=Path, help="folder that holds bsds500")
    parser.add_argument("--count", type=int, help="number of training crops")
    parser.add_argument("--levels", nargs="+", type=float, default=list(PAPER_LEVELS))
    parser.add_argument("--orders", nargs="+", type=int, default=[1, 2, 3, 4])
    parser.add_argument("--steps", type=int, default=10)
    parser.add_argument("--start", help="model to go on from, instead of --orders and --steps")
    parser.add_argument("--iterations", type=int, default=4259)
    parser.add_argument("--batch", type=int, default=8)
    parser.add_argument("--rate", type=float, default=0.05)
    parser.add_argument("--every-other", action="store_true")
    parser.add_argument("--tf32", action="store_true", help="faster matrix products on a GPU")
    arguments = parser.parse_args()
    if arguments.tf32:
        import torch

        torch.backends.cuda.matmul.allow_tf32 = True
    images = bsds500("train", arguments.data, arguments.count)
    train, held_out = halves(images) if arguments.every_other else (images, images)
    settings = DescentSettings(
        iterations=arguments.iterations, batch=arguments.batch, rate=arguments.rate
    )
    began = time.perf_counter()
    model = descend(
        _start(arguments),
        train,
        arguments.levels,
        settings=settings,
        checkpoint=arguments.output.with_name(arguments.output.name + ".checkpoint"),
        callback=_show,
    )
    seconds = time.perf_counter() - began
    psnr = mean_psnr(model, held_out, arguments.levels)
    where = "held out" if arguments.every_other else "training"
    print(f"{where}:", {f"{s:g}": round(value, 3) for s, value in psnr.items()})
    provenance: dict[str, Any] = {
        "status": "trained",
        "recipe": "experiments/train_deep.py",
        "data": train.source,
        "images": len(train),
        "data_sha256": train.fingerprint,
        "noise_levels": arguments.levels,
        "loss": "psnr",
        "method": "Adam, reverse mode",
        **asdict(settings),
        "start": arguments.start or "deep_start",
        "tf32": arguments.tf32,
        "seconds": round(seconds, 1),
        f"psnr_on_{where.replace(' ', '_')}_images": {
            f"{s:g}": round(value, 4) for s, value in psnr.items()
        },
        "date": datetime.now(UTC).date().isoformat(),
        "versions": versions("auto"),
    }
    save_model(replace(model, provenance=provenance), arguments.output)


def _start(arguments: argparse.Namespace) -> DeepDiffusion:
    if arguments.start is None:
        return deep_start(arguments.orders, arguments.steps)
    model = load_model(arguments.start)
    if not isinstance(model, DeepDiffusion):
        raise SystemExit(f"{arguments.start} is not a deep model")
    return model


def _show(report: DescentProgress) -> None:
    print(f"{report.iteration:6d}  {report.psnr:.3f} dB  {report.seconds:.1f} s", flush=True)


if __name__ == "__main__":
    main()
