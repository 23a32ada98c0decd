"""What the estimation of noise costs, compared with denoising.

    python benchmarks/estimation.py

Images are denoised with the engine native and the default model, and their noise is estimated.
Both take turns. Prints the ratio within a turn, its median and quartiles. The aim is a median of at
most a quarter.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable

import integrodiff
from timing import NOISE_LEVEL, facts, facts_text, noisy_picture, wait_for_idle_threads

_AIM = 0.25


def seconds(run: Callable[[], object]) -> float:
    """Return the seconds by the wall clock of the faster of two calls."""
    wait_for_idle_threads()
    found = []
    for _ in range(2):
        start = time.perf_counter()
        run()
        found.append(time.perf_counter() - start)
    return min(found)


def ratios(side: int, threads: int | None, turns: int) -> list[float]:
    """Return the time of an estimate by that of denoising, of each turn."""
    image = noisy_picture(side)
    denoiser = integrodiff.Denoiser(NOISE_LEVEL, data_range=255, engine="native", threads=threads)
    denoiser(image)
    integrodiff.estimate_sigma(image)
    return [
        seconds(lambda: integrodiff.estimate_sigma(image)) / seconds(lambda: denoiser(image))
        for _ in range(turns)
    ]


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--turns", type=int, default=15)
    parser.add_argument("--side", type=int, default=512)
    parser.add_argument("--threads", type=int)
    arguments = parser.parse_args()
    print(facts_text(facts({"turns": arguments.turns, "side": arguments.side})))
    found = ratios(arguments.side, arguments.threads, arguments.turns)
    low, middle, high = statistics.quantiles(found, n=4)
    verdict = "reached" if middle <= _AIM else "missed"
    print(f"estimate by denoising: {middle:.3f} ({low:.3f} to {high:.3f}); aim {_AIM}: {verdict}")


if __name__ == "__main__":
    main()
