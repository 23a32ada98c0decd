"""What a progress bar costs: a denoiser that advances a bar on a terminal, and one without.

    python benchmarks/progress.py

Both take turns; the ratio is that of their medians. The aim is at most 1.05.
"""

from __future__ import annotations

import argparse
import io
import statistics

from rich.console import Console
from rich.progress import Progress

import integrodiff
from timing import NOISE_LEVEL, Contestant, facts, facts_text, noisy_picture, take_turns

_AIM = 1.05


def contestants(model: str, side: int, threads: int, bar: Progress) -> dict[str, Contestant]:
    """Return the same call with a callback that advances a bar, and without."""
    denoiser = integrodiff.Denoiser(
        NOISE_LEVEL, model=model, data_range=255, engine="native", threads=threads
    )
    image = noisy_picture(side)
    task = bar.add_task("image")

    def advance(step: integrodiff.Step) -> None:
        bar.update(task, total=step.total, completed=step.number)

    return {
        "without": Contestant(lambda: denoiser(image), threads),
        "with a bar": Contestant(lambda: denoiser(image, callback=advance), threads),
    }


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--repeats", type=int, default=15)
    parser.add_argument("--side", type=int, default=512)
    arguments = parser.parse_args()
    print(facts_text(facts({"repeats": arguments.repeats, "side": arguments.side})))
    terminal = Console(file=io.StringIO(), force_terminal=True, width=100)
    for model in ("iad", "iad-plus", "iad-fast"):
        for threads in (1, 2):
            with Progress(console=terminal) as bar:
                timings = take_turns(
                    contestants(model, arguments.side, threads, bar), repeats=arguments.repeats
                )
            medians = {name: statistics.median(t.wall) for name, t in timings.items()}
            ratio = medians["with a bar"] / medians["without"]
            verdict = "met" if ratio <= _AIM else "missed"
            print(f"{model}, {threads} thread(s): {ratio:.3f} (aim {_AIM}: {verdict})")


if __name__ == "__main__":
    main()
