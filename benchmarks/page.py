"""How fast the page in the browser is: its kernels in Chromium against the compiled engine.

    make page && (cd page && npm ci) && python benchmarks/page.py

Three contestants take turns on the same grey image and process, without shortcuts: the engine
`native` on one thread, the page with one worker, and with two. The time of the page includes its
colour space and scaling. `native` with shortcuts, which is what `denoise` takes by default and the
page does not have, is timed for comparison. Also prints how long it took until the page could be
used.

On a busy machine a run may take any time longer than it needs. So the ratios are also those of the
processor's seconds: of the thread that takes most of them, which on two free processors is what one
would wait for. The aims are 0.3 times the engine for one worker, 1.7 times one worker for two, and
a second until the page can be used. Needs Linux, which tells the seconds of the threads of others.
"""

from __future__ import annotations

import argparse
import statistics
import subprocess
import sys
import tempfile
import time
from contextlib import suppress
from pathlib import Path
from threading import Thread
from typing import NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

from integrodiff import load_model
from integrodiff.arrays import array_image
from integrodiff.cli.page import page_folder, page_server
from integrodiff.engines import ENGINES
from integrodiff.engines.base import Process
from integrodiff.request import Request, resolve
from timing import NOISE_LEVEL, facts, facts_text, noisy_picture

PAGE = Path(__file__).resolve().parents[1] / "page"
AIMS = {"one worker / native": 0.3, "two workers / one": 1.7}


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", default="iad-plus")
    parser.add_argument("--side", type=int, default=1024)
    parser.add_argument("--turns", type=int, default=9)
    arguments = parser.parse_args()
    folder = page_folder()
    if folder is None:
        sys.exit("the page is not built; run `make page`")
    image = noisy_picture(arguments.side).astype(np.float32)
    with page_server(folder) as server, tempfile.TemporaryDirectory() as temporary:
        thread = Thread(target=server.serve_forever, daemon=True)
        thread.start()
        file = Path(temporary) / "image.raw"
        file.write_bytes(image.tobytes())
        address = f"http://127.0.0.1:{server.server_address[1]}/"
        words = [address, str(file), str(arguments.side), arguments.model, str(NOISE_LEVEL)]
        command = ["node", str(PAGE / "bench.mjs"), *words]
        with subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        ) as browser:
            turns, loads = take_turns(browser, image, arguments.model, arguments.turns)
        server.shutdown()
    print(facts_text(facts({"model": arguments.model, "side": arguments.side})))
    report(turns, loads, arguments.side**2 / 1e6)


class Run(NamedTuple):
    """Seconds of one run by the wall clock, and those of the processor for its busiest thread."""

    wall: float
    processor: float


CONTESTANTS = ("native, one thread", "one worker", "two workers", "native with shortcuts")
Turn: TypeAlias = tuple[Run, Run, Run, Run]


def take_turns(
    browser: subprocess.Popen[str], image: NDArray[np.float32], name: str, count: int
) -> tuple[list[Turn], list[float]]:
    """Return the runs of all contestants in each turn, and the seconds of loading."""
    model = load_model(name)
    (channel,) = resolve(Request(model=model, sigma=NOISE_LEVEL), array_image(image)).channels
    (level,) = channel.levels
    scaled = (image * np.float32(channel.scaling[0]))[None]
    exact, default = (
        ENGINES["native"].prepare(level.evolution(model), exact=exact, threads=1)
        for exact in (True, False)
    )

    def native(process: Process) -> Run:
        wall, processor = time.perf_counter(), time.thread_time()
        process.start(scaled).advance()
        return Run(time.perf_counter() - wall, time.thread_time() - processor)

    def answer(line: str) -> float:
        if browser.stdin is None or browser.stdout is None:
            raise RuntimeError("the browser was started without pipes")
        print(line, file=browser.stdin, flush=True)
        return float(browser.stdout.readline())

    def workers(number: int) -> Run:
        before = thread_seconds(browser.pid)
        wall = answer(str(number))
        after = thread_seconds(browser.pid)
        return Run(wall, max(after[thread] - before.get(thread, 0.0) for thread in after))

    def turn() -> Turn:
        return native(exact), workers(1), workers(2), native(default)

    turn()
    turns = [turn() for _ in range(count)]
    loads = [answer("load") for _ in range(5)]
    return turns, loads


def thread_seconds(root: int) -> dict[int, float]:
    """Return the processor's seconds of all threads of a process and its descendants."""
    parents = {}
    for folder in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            after_name = (folder / "stat").read_text().rsplit(")", 1)[1]
            parents[int(folder.name)] = int(after_name.split()[1])
    family = {root}
    while more := {pid for pid, parent in parents.items() if parent in family} - family:
        family |= more
    seconds = {}
    for pid in family:
        for task in Path(f"/proc/{pid}/task").glob("*"):
            with suppress(OSError):
                # In nanoseconds; the times in stat are in hundredths of a second.
                seconds[int(task.name)] = int((task / "schedstat").read_text().split()[0]) / 1e9
    return seconds


def report(turns: list[Turn], loads: list[float], megapixels: float) -> None:
    """Print the fastest run of each contestant, ratios, and whether the aims are met."""
    columns = list(zip(*turns, strict=True))
    for name, runs in zip(CONTESTANTS, columns, strict=True):
        wall, processor = (min(run[k] for run in runs) for k in (0, 1))
        print(
            f"{name:22} {megapixels / wall:6.3f} megapixels per second by the wall clock, "
            f"{megapixels / processor:6.3f} by its busiest thread"
        )
    for ratio, (one, other) in {"one worker / native": (0, 1), "two workers / one": (1, 2)}.items():
        by_wall, by_processor = (
            statistics.median(turn[one][k] / turn[other][k] for turn in turns) for k in (0, 1)
        )
        verdict = "met" if by_processor >= AIMS[ratio] else "missed"
        print(
            f"{ratio:22} {by_processor:.2f} by the processor's seconds "
            f"(aim {AIMS[ratio]}: {verdict}), {by_wall:.2f} by the wall clock; "
            f"medians of {len(turns)} turns"
        )
    typical = statistics.median(loads)
    print(f"usable after {min(loads):.2f} s at best, median {typical:.2f} s (aim 1)")


if __name__ == "__main__":
    main()
