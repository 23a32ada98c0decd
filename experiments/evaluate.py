"""Print the mean PSNR of the shipped models on the 100 BSDS500 test crops.

    python experiments/evaluate.py --data FOLDER [--models iad ...] [--levels 20 50] [--count N]

FOLDER holds ``bsds500/images/test``; without ``--data`` the environment variable
``INTEGRODIFF_DATA`` names it.
"""

from __future__ import annotations

import argparse
import json
import os
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from multiprocessing import get_context
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from crops import LEVELS, add_noise, data_folder, load_crops, psnr
from integrodiff import MODEL_NAMES, denoise
from integrodiff.engines import cpu_count


def psnr_of_one(numbered: tuple[int, NDArray[np.float32]], *, model: str, level: int) -> float:
    """Denoise crop k at one level and compare with the truth."""
    k, crop = numbered
    result = denoise(add_noise(crop, level, k), level, model=model, data_range=255, engine="numpy")
    return psnr(result, crop)


def mean_psnr(
    crops: list[NDArray[np.float32]], model: str, level: int, workers: ProcessPoolExecutor
) -> float:
    """Return the mean over all crops."""
    job = partial(psnr_of_one, model=model, level=level)
    return float(np.mean(list(workers.map(job, enumerate(crops), chunksize=4))))


def main() -> None:
    """Evaluate and print a Markdown table."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--data", type=Path, help="folder that holds bsds500")
    parser.add_argument("--models", nargs="+", default=list(MODEL_NAMES), metavar="MODEL")
    parser.add_argument("--levels", nargs="+", type=int, default=list(LEVELS), metavar="S")
    parser.add_argument("--count", type=int, help="only the first crops")
    parser.add_argument("--json", type=Path, help="write the numbers to this file as well")
    arguments = parser.parse_args()

    crops = load_crops(data_folder(arguments.data), "test", arguments.count)
    print(f"mean PSNR in dB over {len(crops)} test crops\n")
    print("| model | " + " | ".join(f"s = {level}" for level in arguments.levels) + " | mean |")
    print("|---" * (len(arguments.levels) + 2) + "|")
    table: dict[str, dict[str, float]] = {}
    # Every worker computes alone: more threads than processors would wait for each other.
    os.environ["OPENBLAS_NUM_THREADS"] = "1"
    with ProcessPoolExecutor(cpu_count(), mp_context=get_context("spawn")) as workers:
        for model in arguments.models:
            row = {str(s): mean_psnr(crops, model, s, workers) for s in arguments.levels}
            row["mean"] = float(np.mean(list(row.values())))
            table[model] = row
            print(f"| {model} | " + " | ".join(f"{v:.2f}" for v in row.values()) + " |", flush=True)
    if arguments.json:
        arguments.json.write_text(json.dumps({"crops": len(crops), "psnr": table}, indent=2) + "\n")


if __name__ == "__main__":
    main()
