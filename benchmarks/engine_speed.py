"""The engines against each other, and how the cost of one grows with threads and pixels."""

from __future__ import annotations

import inspect
import os
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

import integrodiff
from integrodiff.engines import ENGINES
from integrodiff.reproduction._results import Result, markdown_table, significant
from peers import Method
from timing import (
    NOISE_LEVEL,
    Contestant,
    aim,
    aims_table,
    facts,
    facts_text,
    noisy_picture,
    range_text,
    ratios,
    seconds,
    take_turns,
)

_PLANES = 20
"""Planes of float32 that must fit into memory, at the least, for an image to be timed."""


def variants() -> dict[str, dict[str, Any]]:
    """Return the ways to call the compiled engine: with its shortcuts, and exactly."""
    if "exact" in inspect.signature(integrodiff.denoise).parameters:
        return {"native": {}, "native, exact": {"exact": True}}
    return {"native": {}}


def exactly() -> dict[str, Any]:
    """Return the options that make the compiled engine compute without shortcuts."""
    return list(variants().values())[-1]


def denoising(
    image: NDArray[np.float32], model: str, engine: str, allowed: int, **options: Any
) -> Contestant:
    """Return a call of the public function, with so many threads, as a contestant."""
    loaded = integrodiff.load_model(model)

    def run() -> object:
        return integrodiff.denoise(
            image, NOISE_LEVEL, model=loaded, data_range=255, engine=engine, **options
        )

    return Contestant(run, allowed)


TWO_AT_ONCE = "native, two images at once"


def two_at_once(image: NDArray[np.float32], model: str) -> Contestant:
    """Return the denoising of two images by one thread each, which wait for nothing.

    What this gains over one image after the other is what the machine has to give.
    """
    one = denoising(image, model, "native", 1, threads=1)

    def run() -> object:
        with ThreadPoolExecutor(2) as workers:
            return [done.result() for done in [workers.submit(one.run) for _ in range(2)]]

    return Contestant(run, 2)


# ---- speed ----


def measure_speed(
    models: Sequence[str],
    size: int,
    threads: Sequence[int],
    repeats: int,
    peers: Sequence[Method] = (),
) -> Result:
    """Time all engines with the first model, and the compiled one with the others, and peers."""
    image = noisy_picture(size)
    missing = {name: e.unavailable() for name, e in ENGINES.items() if e.unavailable()}
    rows: list[Result] = []
    contestants: dict[str, Contestant] = {}

    def enter(model: str, name: str, contestant: Contestant) -> None:
        rows.append({"model": model, "engine": name})
        contestants[f"{model} {name} {contestant.threads}"] = contestant

    for count in threads:
        for model in models if "native" not in missing else ():
            for name, options in variants().items():
                enter(model, name, denoising(image, model, "native", count, **options))
        if count == 2 and "native" not in missing:
            enter(models[0], TWO_AT_ONCE, two_at_once(image, models[0]))
        for engine in ("numpy", "torch"):
            if engine not in missing:
                enter(models[0], engine, denoising(image, models[0], engine, count))
    for peer in peers:
        enter(peer.title, peer.engine, Contestant(partial(peer.denoise, image, NOISE_LEVEL)))
    settings = {"models": list(models), "size": size, "dtype": "float32", "repeats": repeats}
    about = facts(settings)
    timings = take_turns(contestants, repeats)
    for row, timing in zip(rows, timings.values(), strict=True):
        row.update(timing.as_result())
        pixels = size * size * (2 if row["engine"] == TWO_AT_ONCE else 1)
        row["megapixels_per_second"] = significant(pixels / seconds(row) / 1e6)
    return {"facts": about, "missing": missing, "rows": rows, "aims": speed_aims(rows)}


def speed_aims(rows: Sequence[Result]) -> list[Result]:
    """Compare the compiled engine with the others and with itself, in the same turns.

    On a busy machine two threads can be slower than one: the best of another engine counts.
    """
    model = rows[0]["model"]
    ours = {row["threads"]: row for row in _rows_of(rows, model, "native")}
    aims = []
    for count, other, least in ((1, "numpy", 20), (2, "numpy", 35), (1, "torch", 15)):
        if count in ours and (others := _rows_of(rows, model, other)):
            what = f"{model}: times the speed of {other}, threads: {count}"
            times = min(
                ratios(row, ours[count])["median"] for row in others if row["threads"] <= count
            )
            aims.append(aim(what, times, at_least=least))
    if {1, 2} <= set(ours):
        what = f"{model}: two threads to one"
        aims.append(aim(what, ratios(ours[1], ours[2])["median"], at_least=1.8))
        for row in _rows_of(rows, model, TWO_AT_ONCE):
            what = f"{model}: speed of two threads to that of two images at once"
            # The rows where two parts meet are computed twice.
            aims.append(aim(what, ratios(row, ours[2])["median"] / 2, at_least=0.9))
    if 1 in ours:
        speed = ours[1]["megapixels_per_second"]
        aims.append(aim(f"{model}: megapixels per second, one thread", speed, at_least=1.5))
    return aims


def _rows_of(rows: Sequence[Result], model: str, engine: str) -> list[Result]:
    return [row for row in rows if (row["model"], row["engine"]) == (model, engine)]


def speed_table(part: Result) -> str:
    """Return the timings and the aims."""
    first = {row["threads"]: row for row in part["rows"] if row["engine"] == "numpy"}
    lines = []
    for row in part["rows"]:
        base = first.get(row["threads"])
        both = row["engine"] == TWO_AT_ONCE
        times = "-" if base is None or both else range_text(ratios(base, row))
        lines.append(
            [
                f"{row['model']}, {row['engine']}",
                str(row["threads"]),
                range_text(row["wall"]),
                range_text(row["processor"]),
                f"{row['megapixels_per_second']:.3g}",
                times,
            ]
        )
    size = part["facts"]["settings"]["size"]
    header = [
        f"{size} x {size}, float32",
        "threads",
        "seconds, median (quartiles)",
        "processor's seconds",
        "Mpx/s",
        "times NumPy's speed",
    ]
    gone = "".join(f"\nMissing: {name}: {why}.\n" for name, why in part["missing"].items())
    table = markdown_table(header, lines)
    return f"{facts_text(part['facts'])}\n{table}{gone}\n{aims_table(part['aims'])}"


# ---- scaling ----


_PIXELS = 30_000_000
"""Of each size in all repeats together: one moment of a busy machine is then no quarter of them."""


def measure_scaling(
    model: str, sizes: Sequence[int], threads: Sequence[int], repeats: int
) -> Result:
    """Time the compiled engine on squares of several sizes; small ones more often."""
    about = facts({"model": model, "sizes": list(sizes), "dtype": "float32", "repeats": repeats})
    rows, missing = [], {}
    for size in sizes:
        if (reason := too_large(size)) is not None:
            missing[str(size)] = reason
            print(f"{size} x {size} is skipped: {reason}", flush=True)
            continue
        image = noisy_picture(size)
        contestants = {f"{count}": denoising(image, model, "native", count) for count in threads}
        for timing in take_turns(contestants, max(repeats, min(200, _PIXELS // size**2))).values():
            row = {"size": size, **timing.as_result()}
            row["nanoseconds_per_pixel"] = significant(seconds(row) / size**2 * 1e9)
            rows.append(row)
    return {"facts": about, "missing": missing, "rows": rows, "aims": scaling_aims(rows)}


def too_large(size: int) -> str | None:
    """Return why an image of this size cannot be timed, or None if it can."""
    if not hasattr(os, "sysconf") or "SC_AVPHYS_PAGES" not in os.sysconf_names:
        return None
    available = os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    needed = _PLANES * 4 * size * size
    if needed <= available:
        return None
    return f"it needs {needed / 1e9:.1f} GB of memory, and {available / 1e9:.1f} GB are free"


def scaling_aims(rows: Sequence[Result]) -> list[Result]:
    """Compare the dearest pixel with the cheapest, for each number of threads."""
    found = []
    for count in sorted({row["threads"] for row in rows}):
        costs = [row["nanoseconds_per_pixel"] for row in rows if row["threads"] == count]
        what = f"largest to smallest cost of a pixel over all sizes, threads: {count}"
        found.append(aim(what, max(costs) / min(costs), at_most=1.5))
    return found


def scaling_table(part: Result) -> str:
    """Return the cost of a pixel for each size, and the aims."""
    counts = sorted({row["threads"] for row in part["rows"]})
    found = {(row["size"], row["threads"]): row for row in part["rows"]}
    lines = []
    for size in sorted({row["size"] for row in part["rows"]}):
        here = [found[size, count] for count in counts]
        lines.append(
            [
                f"{size} x {size}",
                *(f"{row['nanoseconds_per_pixel']:.4g}" for row in here),
                *(range_text(row["wall"]) for row in here),
                f"{ratios(here[0], here[-1])['median']:.3g}",
            ]
        )
    header = [
        f"{part['facts']['settings']['model']}, native",
        *(f"ns per pixel, threads: {count}" for count in counts),
        *(f"seconds, threads: {count}" for count in counts),
        f"speed of {counts[-1]} to {counts[0]}",
    ]
    gone = "".join(f"\nMissing: {size}: {why}.\n" for size, why in part["missing"].items())
    table = markdown_table(header, lines)
    return f"{facts_text(part['facts'])}\n{table}{gone}\n{aims_table(part['aims'])}"
