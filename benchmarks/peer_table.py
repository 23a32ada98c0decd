"""Models of this package beside other denoisers: quality and time on the same noisy images.

Everything runs on one thread. Slow peers get fewer images; they are compared with a model on
those images only, and the table says how many there were. Verdicts are computed from the paired
differences of PSNR and from the ratios of times within each turn.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from denoisers import PEERS, Image
from frontier import TestSet, bsd68, compared
from integrodiff.learning import bsds500
from integrodiff.learning.images import noise
from integrodiff.reproduction._results import Result, decibel, markdown_table
from peers import Method, model_method, peer_method, read_tuned
from timing import (
    NOISE_LEVEL,
    Contestant,
    aim,
    aims_table,
    facts,
    facts_text,
    limited,
    range_text,
    ratios,
    seconds,
    take_turns,
)

BSD68_LEVELS = (15, 25, 50)
CROP_LEVELS = (20, 50)
SLOWER = 5.0
"""How many times longer a peer should take that is at least as good."""

FASTER_AND_BETTER = "**faster and better**"
NOT_SLOW_ENOUGH = f"**at least our PSNR, less than {SLOWER:g}x slower**"
SLOW_AND_BETTER = f"at least our PSNR and at least {SLOWER:g}x slower"
FASTER_AND_WORSE = "faster and worse"
BEATEN = "slower and worse"
LOSSES = (FASTER_AND_BETTER, NOT_SLOW_ENOUGH)


def verdict(decibels: float, times: float) -> str:
    """Judge a peer by its PSNR minus ours and its time divided by ours."""
    if decibels < 0:
        return FASTER_AND_WORSE if times < 1 else BEATEN
    if times < 1:
        return FASTER_AND_BETTER
    return SLOW_AND_BETTER if times >= SLOWER else NOT_SLOW_ENOUGH


# ---- measuring ----


def test_sets(folder: Path | None, pictures: int, crops: int) -> list[TestSet]:
    """Return the first images of BSD68 and the first test crops of BSDS500."""
    return [
        TestSet("bsd68", bsd68(folder, pictures), BSD68_LEVELS),
        TestSet("bsds500", list(bsds500("test", folder, crops).pixels), CROP_LEVELS),
    ]


def contestants(
    models: Sequence[str], peers: Sequence[str], tuned: Path
) -> tuple[list[Method], dict[str, str]]:
    """Return the methods that can run, the models first, and why each other peer cannot."""
    settings = read_tuned(tuned)
    methods = [model_method(name, "auto") for name in models]
    missing = {}
    for name in peers:
        reason = PEERS[name].unavailable()
        if reason is None and name not in settings:
            reason = f"{tuned.name} has no settings for it; run experiments/peers.py --tune"
        if reason is None:
            methods.append(peer_method(name, settings[name]))
        else:
            missing[name] = reason
            print(f"{name} is missing: {reason}", flush=True)
    return methods, missing


def measure_peers(
    methods: Sequence[Method],
    missing: Mapping[str, str],
    sets: Sequence[TestSet],
    slow_images: int,
    repeats: int,
) -> Result:
    """Measure the time of all methods in turns, and then the quality of each."""
    packages = sorted({name for peer in PEERS.values() for name in peer.packages})
    about = facts(
        {
            "slow_images": slow_images,
            "repeats": repeats,
            "timed": f"first image of {sets[0].name}, s = {NOISE_LEVEL:g}",
            **{part.name: part.facts for part in sets},
        },
        packages,
    )
    clean = sets[0].images[0]
    noisy = clean + noise(NOISE_LEVEL, 0, clean.shape)
    timings = take_turns({method.name: _timed(method, noisy) for method in methods}, repeats)
    rows: dict[str, Result] = {}
    for method in methods:
        row: Result = {
            "title": method.title,
            "model": method.name not in PEERS,
            "engine": method.engine,
            "slow": _slow(method.name),
            "identity": method.identity,
            **timings[method.name].as_result(),
            "psnr": {},
        }
        row["megapixels_per_second"] = float(f"{clean.size / seconds(row) / 1e6:.4g}")
        with limited(1):
            for part in sets:
                images = part.images[:slow_images] if row["slow"] else part.images
                row["psnr"][part.name] = {
                    f"{level}": [decibel(v) for v, _ in compared(method, images, level)]
                    for level in part.levels
                }
        rows[method.name] = row
        print(f"{method.name}: {_mean(row):.2f} dB, {seconds(row):.3g} s", flush=True)
    return {"facts": about, "missing": dict(missing), "rows": rows}


def _timed(method: Method, noisy: Image) -> Contestant:
    return Contestant(lambda: method.denoise(noisy, NOISE_LEVEL))


def _slow(name: str) -> bool:
    return name in PEERS and PEERS[name].slow


# ---- comparing ----


def _cells(row: Result) -> dict[str, list[float]]:
    """Return the PSNRs of each image by set and noise level."""
    return {
        f"{part} {level}": values
        for part, levels in row["psnr"].items()
        for level, values in levels.items()
    }


def _mean(row: Result) -> float:
    """Return the mean over all sets and levels, which count alike."""
    return float(np.mean([np.mean(values) for values in _cells(row).values()]))


def differences(row: Result, model: Result) -> dict[str, float]:
    """Return the mean PSNR of a row minus that of a model, on the images that both have."""
    ours = _cells(model)
    return {
        name: float(np.mean(np.subtract(values, ours[name][: len(values)])))
        for name, values in _cells(row).items()
    }


def compare(row: Result, model: Result) -> Result:
    """Compare a peer with a model: over all levels, and at each where the verdict is a loss."""
    found = differences(row, model)
    times = ratios(row, model)
    decibels = float(np.mean(list(found.values())))
    losses = {
        name: verdict(value, times["median"])
        for name, value in found.items()
        if verdict(value, times["median"]) in LOSSES
    }
    return {
        "decibels": decibels,
        "times": times,
        "verdict": verdict(decibels, times["median"]),
        "losses": losses,
    }


def peer_aims(rows: Mapping[str, Result]) -> list[Result]:
    """Return for each model how many peers spoil its standing, and its lead over TV."""
    models = {name: row for name, row in rows.items() if row["model"]}
    peers = {name: row for name, row in rows.items() if not row["model"]}
    aims = []
    for name, model in models.items():
        verdicts = [compare(row, model)["verdict"] for row in peers.values()]
        for loss, what in zip(LOSSES, ("faster and better", "as good, not 5x slower"), strict=True):
            aims.append(aim(f"{name}: peers that are {what}", verdicts.count(loss), at_most=0))
        if "tv" in peers:
            lead = {key: -value for key, value in differences(peers["tv"], model).items()}
            for level in CROP_LEVELS:
                if f"bsds500 {level}" in lead:
                    what = f"{name}: dB above TV-Chambolle, BSDS500 crops, s = {level}"
                    aims.append(aim(what, lead[f"bsds500 {level}"], at_least=0.2))
    return aims


# ---- the table ----


def peers_table(part: Result) -> str:
    """Return all methods, the best last, with verdicts against the first model."""
    rows: dict[str, Result] = part["rows"]
    first = next(name for name, row in rows.items() if row["model"])
    model = rows[first]
    compared = {name: compare(row, model) for name, row in rows.items()}
    order = sorted(rows, key=lambda name: compared[name]["decibels"])
    settings = part["facts"]["settings"]
    lines = [_line(rows[name], compared[name], own=name == first) for name in order]
    header = [
        "method",
        *(_heading(name) for name in _cells(model)),
        f"dB minus {first}",
        "Mpx/s",
        f"times {first}'s time",
        "verdict",
    ]
    counts = ", ".join(f"{name}: {settings[name]['images']} images" for name in model["psnr"])
    notes = [
        f"Mean PSNR in dB on the first images ({counts}; a star: {settings['slow_images']} of "
        "each, where the difference is on those). The difference is the mean over the columns. "
        f"Time: one thread, {settings['timed']}.",
        *(f"Missing: {name}: {why}." for name, why in part["missing"].items()),
        *_single_losses(rows, compared, first),
        *_thread_breakers(rows),
    ]
    table = markdown_table(header, lines)
    text = "\n\n".join(notes)
    aims = aims_table(peer_aims(rows))
    return f"{facts_text(part['facts'])}\n{table}\n{text}\n\n{aims}"


def _line(row: Result, found: Result, *, own: bool) -> list[str]:
    star = "*" if row["slow"] else ""
    title = f"**{row['title']}**" if row["model"] else row["title"]
    return [
        f"{title}, {row['engine']}",
        *(f"{np.mean(values):.2f}{star}" for values in _cells(row).values()),
        f"{found['decibels']:+.2f}",
        f"{row['megapixels_per_second']:.3g}",
        range_text(found["times"]),
        "-" if own or row["model"] else found["verdict"],
    ]


def _heading(name: str) -> str:
    part, level = name.split()
    return f"{part.upper()} s = {level}"


def _single_losses(
    rows: Mapping[str, Result], compared: Mapping[str, Any], first: str
) -> list[str]:
    """Name the columns where a peer's verdict is a loss though it is none over all of them."""
    found = []
    for name, result in compared.items():
        if rows[name]["model"] or result["verdict"] in LOSSES:
            continue
        for cell, loss in result["losses"].items():
            found.append(f"{rows[name]['title']} on {_heading(cell)}: {loss}.")
    if not found:
        return [f"No peer has such a loss of {first} in a single column."]
    return ["In single columns:", *found]


def _thread_breakers(rows: Mapping[str, Result]) -> list[str]:
    """Name the methods that used more than one thread all the same."""
    return [
        f"{row['title']} used {used:.1f} threads, not one."
        for row in rows.values()
        if (used := np.median(np.divide(row["processor_seconds"], row["seconds"]))) > 1.2
    ]
