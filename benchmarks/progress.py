"""What a progress bar costs: images denoised while a bar is shown on a terminal, and without one.

    python benchmarks/progress.py

Both take turns, a batch of images each. The bar is that of the command line, with its thread that
redraws it. Prints the ratio within a turn, with a bar to without: its median and quartiles. The aim
is a median of at most 1.05.
"""

from __future__ import annotations

import argparse
import io
import statistics
import time
from collections.abc import Callable

from rich.console import Console

import integrodiff
from integrodiff.cli._terminal import shown_bar
from timing import NOISE_LEVEL, facts, facts_text, noisy_picture, wait_for_idle_threads

_AIM = 1.05
_SECONDS = 0.3
"""Of one batch: the bar is redrawn at least once in it."""


def seconds(run: Callable[[], object], times: int) -> float:
    """Return the seconds by the wall clock of so many calls."""
    wait_for_idle_threads()
    start = time.perf_counter()
    for _ in range(times):
        run()
    return time.perf_counter() - start


def ratios(model: str, side: int, threads: int, turns: int) -> list[float]:
    """Return the time with a bar by that without, of each turn."""
    terminal = Console(file=io.StringIO(), force_terminal=True, width=100)
    image = noisy_picture(side)
    denoiser = integrodiff.Denoiser(
        NOISE_LEVEL, model=model, data_range=255, engine="native", threads=threads
    )
    denoiser(image)
    times = max(1, round(_SECONDS / seconds(lambda: denoiser(image), 1)))

    def with_bar() -> float:
        with shown_bar(terminal, model, total=times * 10) as advance:
            return seconds(lambda: denoiser(image, callback=lambda _: advance()), times)

    return [with_bar() / seconds(lambda: denoiser(image), times) for _ in range(turns)]


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--turns", type=int, default=15)
    parser.add_argument("--side", type=int, default=512)
    arguments = parser.parse_args()
    print(facts_text(facts({"turns": arguments.turns, "side": arguments.side})))
    for model in ("iad", "iad-plus", "iad-fast"):
        for threads in (1, 2):
            found = ratios(model, arguments.side, threads, arguments.turns)
            low, middle, high = statistics.quantiles(found, n=4)
            verdict = "met" if middle <= _AIM else "missed"
            print(
                f"{model}, {threads} thread(s): {middle:.3f} ({low:.3f} to {high:.3f}); "
                f"aim {_AIM}: {verdict}",
                flush=True,
            )


if __name__ == "__main__":
    main()
