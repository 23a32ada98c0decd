"""Quality, number of parameters and speed of models and of other denoisers, in one run.

    python experiments/frontier.py --data FOLDER --json results/frontier.json
        [--models pm eed iid iad ...] [--peers tv nlm wavelet bm3d] [--engine auto]
        [--bsd68-count N] [--crops N] [--tuned results/peers.json] [--again]
    python experiments/frontier.py --time 12 --data FOLDER --json results/frontier.json
        [--models ...] [--peers ...]
    python experiments/frontier.py --plot results/frontier.json docs/images/frontier.png

FOLDER holds ``bsd68`` and ``bsds500/images/test``. PSNR is for a peak of 255 and not clipped. All
methods compute in one process on one thread. The file is written after every noise level, and a
run that was stopped goes on from there.

Speed is measured apart from quality, with ``--time``, so that it takes a minute of a quiet machine
and not hours: all methods take turns on the first images of BSD68 at s = 25, after one image that
does not count; slow peers take three. Seconds per megapixel are medians of processor time.

Rows that are quoted from publications carry their source; their speed is not known for this
machine.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np

from denoisers import PEERS, Image
from integrodiff import MODEL_NAMES
from integrodiff.learning import PAPER_LEVELS, bsds500
from integrodiff.learning.images import DATA_VARIABLE, noise
from integrodiff.reproduction._results import Result, decibel, markdown_table, significant
from integrodiff.viz.drawing import new_figure, save_figure
from integrodiff.viz.metrics import psnr, ssim
from peers import (
    TUNED,
    Method,
    Results,
    about_run,
    model_method,
    one_thread,
    tuned_peers,
)

if TYPE_CHECKING:
    from matplotlib.axes import Axes

Box: TypeAlias = tuple[float, float, float, float]
"""Left, bottom, right, top."""

BSD68_LEVELS = (15, 25, 50)
TIMED_LEVEL = 25
SLOW_TIMES = 3
"""How many images a slow peer is timed on."""

_SOURCE = (
    "K. Zhang, W. Zuo, Y. Chen, D. Meng, L. Zhang: Beyond a Gaussian denoiser, IEEE Transactions "
    "on Image Processing 26(7), 2017, Table II"
)
# Five stages, each with 48 filters of 48 coefficients, 63 numbers for each filter's function, and
# one weight; 17 layers of 64 channels with normalisation. Both are trained for one noise level.
_TNRD = 5 * (48 * (48 + 63) + 1)
_DNCNN = 2 * 64 * 9 + 15 * (64 * 64 * 9 + 2 * 64)

# ---- quoted rows ----


def _quoted(title: str, values: Sequence[float], parameters: int | None, remark: str) -> Result:
    return {
        "title": title,
        "quoted": True,
        "source": _SOURCE,
        "remark": remark,
        "parameters": parameters,
        "psnr": {"bsd68": {f"{s}": v for s, v in zip(BSD68_LEVELS, values, strict=True)}},
        "seconds_per_megapixel": None,
    }


_UNTRAINED = "nothing is trained"
_PER_LEVEL = "one training per noise level; the parameters of all three, from the architecture"
QUOTED: dict[str, Result] = {
    "quoted: bm3d": _quoted("BM3D", (31.07, 28.57, 25.62), None, _UNTRAINED),
    "quoted: wnnm": _quoted("WNNM", (31.37, 28.83, 25.87), None, _UNTRAINED),
    "quoted: tnrd": _quoted("TNRD", (31.42, 28.92, 25.97), 3 * _TNRD, _PER_LEVEL),
    "quoted: dncnn": _quoted("DnCNN", (31.73, 29.23, 26.23), 3 * _DNCNN, _PER_LEVEL),
}
"""Rows that are not measured here, by names that no method can have."""


def add_quoted(rows: dict[str, Result]) -> None:
    """Put the quoted rows among the others."""
    rows.update({name: dict(row) for name, row in QUOTED.items()})


# ---- measuring ----


@dataclass(frozen=True)
class TestSet:
    """Clean images, and the noise levels at which they are used."""

    __test__ = False  # pytest takes the name for its own

    name: str
    images: Sequence[Image]
    levels: Sequence[int]

    @property
    def facts(self) -> Result:
        """What identifies the images."""
        digest = hashlib.sha256()
        for image in self.images:
            digest.update(np.ascontiguousarray(image, np.float32).tobytes())
        return {"images": len(self.images), "sha256": digest.hexdigest()}


def bsd68(folder: Path | None, count: int | None = None) -> list[Image]:
    """Return the grey images of BSD68, or the first of them, in the order of their names."""
    from PIL import Image as Pictures

    named = folder or os.environ.get(DATA_VARIABLE)
    if not named:
        raise SystemExit(f"give the folder that holds bsd68 by --data or by {DATA_VARIABLE}")
    paths = sorted((Path(named) / "bsd68").glob("*.png"))[:count]
    if not paths:
        raise SystemExit(f"there are no images in {Path(named) / 'bsd68'}")
    images: list[Image] = []
    for path in paths:
        with Pictures.open(path) as picture:
            images.append(np.asarray(picture.convert("L"), np.float32))
    return images


def measure(
    method: Method, sets: Sequence[TestSet], row: Result, save: Callable[[], object]
) -> None:
    """Fill the row of one method, as far as it is not known yet."""
    for part in sets:
        found, similar = (
            row.setdefault(what, {}).setdefault(part.name, {}) for what in ("psnr", "ssim")
        )
        for level in part.levels:
            if f"{level}" in found and f"{level}" in similar:
                continue
            means = np.mean(compared(method, part.images, level), axis=0)
            found[f"{level}"], similar[f"{level}"] = (decibel(float(mean)) for mean in means)
            print(f"{method.name}, {part.name}, s = {level}: {means[0]:.2f} dB", flush=True)
            save()


def compared(method: Method, images: Sequence[Image], level: int) -> list[tuple[float, float]]:
    """Return PSNR and SSIM of each image."""
    pairs = []
    for k, clean in enumerate(images):
        result = method.denoise(clean + noise(level, k, clean.shape), level)
        pairs.append((psnr(result, clean), ssim(result, clean)))
    return pairs


def measure_times(
    methods: Sequence[Method], images: Sequence[Image], rows: Mapping[str, Result]
) -> None:
    """Time all methods in turns on all images but the first, which does not count."""
    seconds: dict[str, list[float]] = {method.name: [] for method in methods}
    for k, clean in enumerate(images):
        noisy = clean + noise(TIMED_LEVEL, k, clean.shape)
        for method in methods:
            if method.name in PEERS and PEERS[method.name].slow and k > SLOW_TIMES:
                continue
            began = time.process_time()
            method.denoise(noisy, TIMED_LEVEL)
            seconds[method.name].append((time.process_time() - began) / clean.size * 1e6)
    for name, found in seconds.items():
        low, median, high = (significant(float(v)) for v in np.percentile(found[1:], [25, 50, 75]))
        rows[name].update(
            seconds_per_megapixel=median,
            seconds_quartiles=[low, high],
            timed={**about_run(), "images": len(found) - 1},
        )


def run(arguments: argparse.Namespace) -> Result:
    """Measure all methods, their quality or their speed; return the document."""
    methods = [model_method(name, arguments.engine) for name in arguments.models]
    methods += tuned_peers(arguments.peers, arguments.tuned)
    sets = []
    if arguments.bsd68_count != 0:
        images = bsd68(arguments.data, arguments.bsd68_count)
        sets.append(TestSet("bsd68", images, BSD68_LEVELS))
    if arguments.crops != 0:
        crops = bsds500("test", arguments.data, arguments.crops)
        sets.append(TestSet("bsds500", list(crops.pixels), PAPER_LEVELS))
    settings = {part.name: part.facts for part in sets}
    results = Results(arguments.json, "PSNR in dB, numbers of parameters, and speed", settings)
    add_quoted(results.rows)
    for method in methods:
        head = {
            "title": method.title,
            "quoted": False,
            "parameters": method.parameters,
            "engine": method.engine,
            "threads": method.threads,
            "identity": method.identity,
            "psnr": {},
            "seconds_per_megapixel": None,
        }
        row = results.row(method.name, head, again=arguments.again)
        if not arguments.time:
            measure(method, sets, row, results.save)
    if arguments.time:
        first = bsd68(arguments.data, arguments.time + 1)
        measure_times(methods, first, results.rows)
    results.save()
    return results.document


# ---- table and plot ----


def table(document: Mapping[str, Any]) -> str:
    """Return all rows as a Markdown table, the images behind it, and the sources of quotations."""
    rows = list(document["rows"].values())
    lines = []
    for row in sorted(rows, key=_quality):
        found = row["psnr"].get("bsd68", {})
        crops = row["psnr"].get("bsds500", {})
        complete = len(crops) == len(PAPER_LEVELS)
        alike = row.get("ssim", {})
        similar = alike.get("bsds500", {})
        compared = len(similar) == len(PAPER_LEVELS)
        seconds = row["seconds_per_megapixel"]
        lines.append(
            [
                f"{row['title']} (quoted)" if row["quoted"] else row["title"],
                *(_decibels(found.get(f"{s}")) for s in BSD68_LEVELS),
                *(_decibels(crops.get(f"{s}")) for s in PAPER_LEVELS),
                _decibels(sum(crops.values()) / len(crops) if complete else None),
                *(_similarity(alike.get("bsd68", {}).get(f"{s}")) for s in BSD68_LEVELS),
                _similarity(sum(similar.values()) / len(similar) if compared else None),
                "-" if row["parameters"] is None else f"{row['parameters']:,}",
                "-" if seconds is None else f"{seconds:.3g}",
                row.get("engine", "-"),
            ]
        )
    header = [
        "method",
        *(f"BSD68 s = {s}" for s in BSD68_LEVELS),
        *(f"BSDS500 s = {s}" for s in PAPER_LEVELS),
        "mean",
        *(f"SSIM, BSD68 s = {s}" for s in BSD68_LEVELS),
        "mean SSIM, BSDS500",
        "parameters",
        "s / Mpx",
        "engine",
    ]
    sources = sorted({row["source"] for row in rows if row["quoted"]})
    notes = "".join(f"\nQuoted from: {source}.\n" for source in sources)
    return f"{markdown_table(header, lines)}\nMean PSNR over {_images(document)}.\n{notes}"


def _images(document: Mapping[str, Any]) -> str:
    """Return in words what was measured on; quoted rows are for all of BSD68."""
    parts = {"bsd68": (68, "images of BSD68"), "bsds500": (100, "test crops of BSDS500")}
    found = []
    for name, facts in document["settings"].items():
        whole, what = parts[name]
        count = facts["images"]
        found.append(f"the {whole} {what}" if count == whole else f"{count} of the {whole} {what}")
    return " and ".join(found)


def _quality(row: Result) -> float:
    """Sort by what the plot shows; rows without it come first."""
    return float(row["psnr"].get("bsd68", {}).get(f"{TIMED_LEVEL}", 0.0))


def _decibels(value: float | None) -> str:
    return "-" if value is None else f"{value:.2f}"


def _similarity(value: float | None) -> str:
    return "-" if value is None else f"{value:.3f}"


def plot(document: Mapping[str, Any], path: Path) -> Path:
    """Draw quality against the number of parameters, and against time; return the path."""
    if "bsd68" not in document["settings"]:
        raise SystemExit("the plot shows BSD68, on which nothing was measured")
    figure = new_figure(11.0, 5.0)
    left, right = figure.subplots(1, 2, sharey=True)
    rows = [row for row in document["rows"].values() if _quality(row)]
    _panel(left, rows, "parameters", "number of trained or tuned parameters")
    _panel(right, rows, "seconds_per_megapixel", "processor seconds per megapixel")
    left.set_ylabel(f"mean PSNR in dB on BSD68, s = {TIMED_LEVEL}")
    count = document["settings"]["bsd68"]["images"]
    title = f"Hollow and dotted: quoted, for 68 images. Filled: measured here, on {count} of them"
    figure.suptitle(title, fontsize=9)
    return save_figure(figure, path)


def _panel(axes: Axes, rows: Sequence[Result], key: str, label: str) -> None:
    """Draw one panel; a row without a number for this axis becomes a line across it."""
    axes.set_xscale("log")
    axes.set_xlabel(label)
    axes.grid(visible=True, alpha=0.3)
    for row in rows:
        colour = "tab:grey" if row["quoted"] else _colour(row)
        if row[key]:
            face = "none" if row["quoted"] else colour
            axes.plot(row[key], _quality(row), "o", color=colour, markerfacecolor=face)
        else:
            axes.axhline(_quality(row), color=colour, linestyle=":", linewidth=1)
    axes.margins(x=0.25, y=0.08)
    axes.autoscale_view()
    _write_names(axes, rows, key)


def _write_names(axes: Axes, rows: Sequence[Result], key: str) -> None:
    """Write each name where nothing else is, as near to its point as possible.

    Boxes are in fractions of the panel; a letter is taken to be about as wide as most are.
    """
    place = axes.transData + axes.transAxes.inverted()
    points = {
        _name(row): tuple(map(float, place.transform((row[key], _quality(row)))))
        for row in rows
        if row[key]
    }
    letter, height, away = 0.0115, 0.03, 0.015
    taken = [(x - away, y - away, x + away, y + away) for x, y in points.values()]
    for row in rows:
        if not row[key]:
            y = float(place.transform((1.0, _quality(row)))[1])
            points[_name(row)] = (0.0, y + 0.018)  # above its line
    for name, (x, y) in sorted(points.items(), key=lambda point: point[1][1]):
        width = letter * len(name)
        spots = [
            (x + away + side * (width + 2 * away) * -1, y + step * height / 2)
            for step in (0, 1, -1, 2, -2, 3, -3, 4, -4, 5, -5, 6, -6)
            for side in (0, 1)
        ]
        boxes = [(a, b - height / 2, a + width, b + height / 2) for a, b in spots]
        free = [box for box in boxes if box[0] > 0 and box[2] < 1 and not _hits(box, taken)]
        box = free[0] if free else boxes[0]
        taken.append(box)
        axes.annotate(
            name,
            (x, y),
            xycoords="axes fraction",
            xytext=(box[0], (box[1] + box[3]) / 2),
            textcoords="axes fraction",
            fontsize=7,
            verticalalignment="center",
        )


def _hits(box: Box, others: Sequence[Box]) -> bool:
    return any(
        box[0] < other[2] and other[0] < box[2] and box[1] < other[3] and other[1] < box[3]
        for other in others
    )


def _name(row: Result) -> str:
    return f"{row['title']} (quoted)" if row["quoted"] else str(row["title"])


def _colour(row: Result) -> str:
    return "tab:blue" if row["engine"].startswith("integrodiff") else "tab:orange"


def main() -> None:
    """Measure and print a Markdown table, or draw what was measured."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--data", type=Path, help="folder that holds bsd68 and bsds500")
    parser.add_argument("--models", nargs="*", default=list(MODEL_NAMES), metavar="MODEL")
    parser.add_argument("--peers", nargs="*", default=[], choices=PEERS, metavar="PEER")
    parser.add_argument("--engine", default="auto", help="who computes the models")
    parser.add_argument("--bsd68-count", type=int, help="only the first images; 0 for none")
    parser.add_argument("--crops", type=int, help="only the first test crops; 0 for none")
    parser.add_argument("--time", type=int, metavar="N", help="measure speed alone, on N images")
    parser.add_argument("--tuned", type=Path, default=TUNED, help="settings of the peers")
    parser.add_argument("--again", action="store_true", help="measure what the file has, too")
    parser.add_argument("--json", type=Path, help="where the numbers go")
    parser.add_argument("--plot", nargs=2, type=Path, metavar=("JSON", "PNG"))
    arguments = parser.parse_args()
    if arguments.plot:
        source, target = arguments.plot
        document = json.loads(source.read_text(encoding="utf-8"))
        print(table(document))
        print(plot(document, target))
        return
    if arguments.json is None:
        parser.error("--json is needed, to keep the numbers")
    one_thread()
    print(table(run(arguments)))


if __name__ == "__main__":
    main()
