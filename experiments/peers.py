"""Tuning of other denoisers, and what the experiments that compare methods share.

    python experiments/peers.py --tune --data FOLDER --json results/peers.json
                                [--peers tv nlm ...] [--count 5] [--again]
    python experiments/peers.py --json results/peers.json

The settings of a peer (``denoisers.py``) are tuned by a grid on the first training crops of
BSDS500, at three noise levels each by itself; between them every setting is interpolated in the
logarithm of the level, and beyond them it stays. Test images are not used. With --tune the
settings are found and written, without it those in the file are printed.
"""

from __future__ import annotations

import argparse
import hashlib
import itertools
import json
import os
import platform
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np

from denoisers import PEERS, Image, Peer, Settings
from integrodiff import __version__, denoise, load_model
from integrodiff._atomic import atomic_write
from integrodiff.engines import cpu_count, get_engine
from integrodiff.learning import bsds500
from integrodiff.learning.images import CleanImages, noise
from integrodiff.models import ByNoiseLevel, ExplicitModel, Model
from integrodiff.reproduction._results import Result, decibel, markdown_table
from integrodiff.viz.metrics import psnr

Denoiser: TypeAlias = Callable[[Image, float], Image]
"""Takes a noisy image on the scale [0, 255] and its noise level."""

TUNING_LEVELS = (15.0, 25.0, 50.0)
TUNED = Path("results/peers.json")
_THREAD_VARIABLES = (
    "OMP_NUM_THREADS",
    "OPENBLAS_NUM_THREADS",
    "MKL_NUM_THREADS",
    "VECLIB_MAXIMUM_THREADS",
    "INTEGRODIFF_THREADS",
)

# ---- tuned settings ----

Tuned: TypeAlias = Mapping[float, Settings]
"""Settings of a peer at the noise levels of the tuning."""


def settings_at(tuned: Tuned, sigma: float) -> dict[str, float]:
    """Return the settings at a noise level from those at the levels of the tuning."""
    levels = sorted(tuned)
    places = np.log(levels)
    return {
        name: float(np.interp(np.log(sigma), places, [tuned[level][name] for level in levels]))
        for name in tuned[levels[0]]
    }


def read_tuned(path: Path) -> dict[str, dict[float, dict[str, float]]]:
    """Return the tuned settings of each peer by noise level; none if there is no such file."""
    if not path.is_file():
        return {}
    peers = json.loads(path.read_text(encoding="utf-8"))["rows"]
    return {
        name: {float(level): dict(settings) for level, settings in row["settings"].items()}
        for name, row in peers.items()
        if len(row["settings"]) == len(TUNING_LEVELS)
    }


# ---- methods: peers and models alike ----


@dataclass(frozen=True)
class Method:
    """A denoiser that is ready to run, and what a table says about it.

    Attributes
    ----------
    name, title : str
        In files and for readers.
    denoise : callable
        Takes a float32 image on the scale [0, 255] and its noise level; does not clip.
    parameters : int
        How many numbers were trained or tuned.
    engine, threads : str
        Compute backend, and its number of threads.
    identity : str
        Changes whenever results might.
    tensors : callable, optional
        The same on tensors of PyTorch, with derivatives.
    """

    name: str
    title: str
    denoise: Denoiser
    parameters: int
    engine: str
    threads: str
    identity: str
    tensors: Callable[[Any, float], Any] | None = None


def model_method(name: str, engine: str = "auto") -> Method:
    """Return a model of this package, given by its name or its file."""
    model = load_model(name)
    runner = get_engine(engine)

    def run(noisy: Image, sigma: float) -> Image:
        return denoise(noisy, sigma, model=model, data_range=255, engine=runner.name)

    return Method(
        name=name,
        title=Path(name).stem,
        denoise=run,
        parameters=trained_numbers(model),
        engine=f"integrodiff {runner.name}",
        threads=runner.threads(),
        identity=f"{hashlib.sha256(repr(model).encode()).hexdigest()[:16]} on {runner.name}",
        tensors=model,
    )


def trained_numbers(model: Model) -> int:
    """Count the numbers that training was free to change and that have an effect."""
    members = model.models if isinstance(model, ByNoiseLevel) else (model,)
    count = 0
    for member in members:
        if not isinstance(member, ExplicitModel):
            raise TypeError(f"the parameters of a {type(member).__name__} cannot be counted")
        count += member.number_count()
    return count


def peer_method(name: str, tuned: Tuned) -> Method:
    """Return a peer with tuned settings."""
    peer = PEERS[name]
    release = peer.release()

    def run(noisy: Image, sigma: float) -> Image:
        return peer.run(noisy, sigma, **settings_at(tuned, sigma))

    return Method(
        name=name,
        title=peer.title,
        denoise=run,
        parameters=sum(map(len, tuned.values())),
        engine=release,
        threads="1",
        identity=f"{release}, settings {json.dumps(dict(tuned))}",
    )


def runnable_peers(names: Sequence[str]) -> list[str]:
    """Return those of the peers that can run here; say in one line why another cannot."""
    found = []
    for name in names:
        reason = PEERS[name].unavailable()
        if reason is None:
            found.append(name)
        else:
            print(f"{name} is skipped: {reason}", flush=True)
    return found


def tuned_peers(names: Sequence[str], path: Path) -> list[Method]:
    """Return the peers that can run here and are tuned; say why another is skipped."""
    tuned = read_tuned(path)
    methods = []
    for name in runnable_peers(names):
        if name in tuned:
            methods.append(peer_method(name, tuned[name]))
        else:
            command = f"python experiments/peers.py --tune --peers {name} --json {path}"
            print(f"{name} is skipped: {path} has no settings for it; run {command}", flush=True)
    return methods


# ---- results in a file ----


class Results:
    """Rows in a JSON file that grows while they are measured.

    Parameters
    ----------
    path : path
        The file. What it holds already is kept.
    what : str
        In words, for the file.
    settings : dict
        Values of JSON on which all rows depend.

    Raises
    ------
    SystemExit
        If the file has rows that were measured with other settings.
    """

    def __init__(self, path: Path, what: str, settings: Result) -> None:
        self.path = path
        self.document: Result = {"what": what, "settings": settings, "rows": {}}
        if path.is_file():
            before = json.loads(path.read_text(encoding="utf-8"))
            if before["settings"] != settings:
                raise SystemExit(
                    f"{path} was measured with {json.dumps(before['settings'])}, now asked for "
                    f"{json.dumps(settings)}: name another file"
                )
            self.document["rows"] = before["rows"]

    @property
    def rows(self) -> dict[str, Result]:
        """The rows by name."""
        rows: dict[str, Result] = self.document["rows"]
        return rows

    def row(self, name: str, head: Result, *, again: bool = False) -> Result:
        """Return the row of this name, to be filled: as far as it is known, or new.

        A row is known if it has the same ``identity`` in its head; with ``again`` it is not.
        """
        before = self.rows.get(name, {})
        if before.get("quoted"):
            raise ValueError(f"{name!r} is quoted from a publication and is not measured")
        if again or before.get("identity") != head["identity"]:
            self.rows[name] = {**head, **about_run()}
        return self.rows[name]

    def save(self) -> None:
        """Write the file, whole or not at all."""
        self.path.parent.mkdir(parents=True, exist_ok=True)
        with atomic_write(self.path, overwrite=True) as temporary:
            text = json.dumps(self.document, indent=2, allow_nan=False)
            temporary.write_text(text + "\n", encoding="utf-8")


def about_run() -> Result:
    """Return when and on what a row was measured."""
    return {
        "date": datetime.now(UTC).date().isoformat(),
        "integrodiff": __version__,
        "machine": f"{platform.system()} {platform.machine()}, {cpu_count()} processors",
    }


def one_thread() -> None:
    """Start this script again with one thread for all libraries, unless it was so already.

    They read these variables as they are loaded, so that it is too late to set them here.
    """
    wanted = dict.fromkeys(_THREAD_VARIABLES, "1")
    if any(os.environ.get(name) != "1" for name in wanted):
        sys.stdout.flush()
        command = [sys.executable, *sys.orig_argv[1:]]
        os.execve(sys.executable, command, {**os.environ, **wanted})  # noqa: S606


# ---- tuning ----


def tune(name: str, images: CleanImages, row: Result, save: Callable[[], object]) -> None:
    """Find the settings of one peer at each noise level that its row does not have yet."""
    peer = PEERS[name]
    found, quality = row.setdefault("settings", {}), row.setdefault("psnr", {})
    for level in TUNING_LEVELS:
        if f"{level:g}" in found:
            continue
        reached = {
            values: _mean_psnr(peer, images, level, dict(zip(peer.grid, values, strict=True)))
            for values in itertools.product(*peer.grid.values())
        }
        best = max(reached, key=reached.__getitem__)
        settings = dict(zip(peer.grid, best, strict=True))
        found[f"{level:g}"], quality[f"{level:g}"] = settings, decibel(reached[best])
        print(f"{name}, s = {level:g}: {_text(peer, settings)}", flush=True)
        save()


def _mean_psnr(peer: Peer, images: CleanImages, level: float, settings: Settings) -> float:
    values = [
        psnr(peer.run(clean + noise(level, k, clean.shape), level, **settings), clean)
        for k, clean in enumerate(images.pixels)
    ]
    if not np.isfinite(values).all():
        raise ValueError(f"{peer.title} returns no numbers at s = {level:g}, {dict(settings)}")
    return sum(values) / len(values)


def _text(peer: Peer, settings: Settings) -> str:
    """Return settings in words; a star marks those at an end of their grid."""
    return ", ".join(
        f"{name} {value:g}{'*' if value in (peer.grid[name][0], peer.grid[name][-1]) else ''}"
        for name, value in settings.items()
    )


def settings_table(rows: Mapping[str, Result]) -> str:
    """Return the tuned settings, and the PSNRs they reached, as a Markdown table."""
    levels = [f"{level:g}" for level in TUNING_LEVELS]
    lines = [
        [
            name,
            *(
                f"{_text(PEERS[name], row['settings'][s])} ({row['psnr'][s]:.2f} dB)"
                for s in levels
            ),
        ]
        for name, row in rows.items()
        if all(s in row["settings"] for s in levels)
    ]
    return markdown_table(["peer", *(f"s = {s}" for s in levels)], lines)


def main() -> None:
    """Tune the peers, or print the settings of the last tuning."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--tune", action="store_true", help="tune what the file does not have")
    parser.add_argument("--data", type=Path, help="folder that holds bsds500")
    parser.add_argument("--peers", nargs="+", default=list(PEERS), choices=PEERS, metavar="PEER")
    parser.add_argument("--count", type=int, default=5, help="number of training crops")
    parser.add_argument("--again", action="store_true", help="tune what the file has, too")
    parser.add_argument("--json", type=Path, default=TUNED, help="file of the settings")
    arguments = parser.parse_args()
    if not arguments.tune:
        if not arguments.json.is_file():
            raise SystemExit(f"there is no {arguments.json}; tune the peers first, with --tune")
        document = json.loads(arguments.json.read_text(encoding="utf-8"))
        print(settings_table(document["rows"]), end="")
        return
    images = bsds500("train", arguments.data, arguments.count)
    settings = {"images": len(images), "data_sha256": images.fingerprint}
    what = f"Settings of the peers, tuned on {images.source}"
    results = Results(arguments.json, what, settings)
    for name in runnable_peers(arguments.peers):
        peer = PEERS[name]
        head = {"title": peer.title, "identity": f"{peer.release()}, grid {dict(peer.grid)}"}
        row = results.row(name, head, again=arguments.again)
        tune(name, images, row, results.save)
    print(settings_table(results.rows), end="")


if __name__ == "__main__":
    main()
