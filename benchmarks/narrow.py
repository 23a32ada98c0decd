"""Compare the time of images of one column and one row with that of a square of as many pixels.

    python benchmarks/narrow.py

For every model that comes with the package, in both precisions, with the engine ``native``: the
ratios of the smallest processor times of some repetitions, and of the times on the clock.
"""

from __future__ import annotations

import argparse
import time
import warnings
from typing import Any

import numpy as np
from numpy.typing import NDArray

from integrodiff import MODEL_NAMES, Denoiser

SQUARE, COLUMN, ROW = (316, 316), (100_000, 1), (1, 100_000)


def seconds(denoiser: Denoiser, shape: tuple[int, int], dtype: type) -> tuple[float, float]:
    """Return the processor time and the time on the clock of one image."""
    image: NDArray[Any] = np.random.default_rng(0).normal(128, 25, shape).astype(dtype)
    processor, clock = time.process_time(), time.perf_counter()
    denoiser(image)
    return time.process_time() - processor, time.perf_counter() - clock


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--repeats", type=int, default=5)
    arguments = parser.parse_args()
    warnings.simplefilter("ignore")
    print("model     dtype    column / square, row / square (processor time; clock)")
    for model in MODEL_NAMES:
        for dtype in (np.float32, np.float64):
            denoiser = Denoiser(sigma=25.0, model=model, engine="native", data_range=255)
            times = {
                shape: np.min(
                    [seconds(denoiser, shape, dtype) for _ in range(arguments.repeats)], axis=0
                )
                for shape in (SQUARE, COLUMN, ROW)
            }
            column, row = (times[shape] / times[SQUARE] for shape in (COLUMN, ROW))
            print(
                f"{model:9} {np.dtype(dtype).name}  {column[0]:.2f}, {row[0]:.2f}; "
                f"{column[1]:.2f}, {row[1]:.2f}"
            )


if __name__ == "__main__":
    main()
