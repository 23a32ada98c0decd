"""Other denoisers behind one table, and what the experiments that compare methods share.

    python experiments/peers.py --tune --data FOLDER --json results/peers.json
                                [--peers tv nlm ...] [--count 8] [--again]
    python experiments/peers.py --json results/peers.json

A peer has one strength, a factor relative to the noise level. It is tuned by a grid on the first
training crops of BSDS500, at three noise levels each by itself; between them the factor is
interpolated in the logarithm of the level, and beyond them it stays. Test images are not used.
With --tune the factors are found and written, without it those in the file are printed.
"""

from __future__ import annotations

import argparse
import hashlib
import importlib
import json
import os
import platform
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from integrodiff import __version__, denoise, load_model
from integrodiff._atomic import atomic_write
from integrodiff.engines import cpu_count, get_engine
from integrodiff.learning import bsds500
from integrodiff.learning.images import CleanImages, noise
from integrodiff.learning.parameters import Parameterisation, decibels
from integrodiff.learning.recipes import RECIPES
from integrodiff.models import ByNoiseLevel, DeepDiffusion, ExplicitModel, Model
from integrodiff.paper._results import Result, decibel, markdown_table
from integrodiff.paper.ablation import parameter_counts

Image: TypeAlias = NDArray[np.floating[Any]]
Denoiser: TypeAlias = Callable[[Image, float], Image]
"""Takes a noisy image on the scale [0, 255] and its noise level."""

TUNING_LEVELS = (15.0, 25.0, 50.0)
TUNED = Path("results/peers.json")
_THREAD_VARIABLES = (
    "OMP_NUM_THREADS",
    "OPENBLAS_NUM_THREADS",
    "MKL_NUM_THREADS",
    "VECLIB_MAXIMUM_THREADS",
)

# ---- the peers ----


@dataclass(frozen=True)
class Peer:
    """A denoiser of another package.

    Attributes
    ----------
    run : callable
        Takes a noisy image on the scale [0, 255], its noise level, and the factor.
    grid : tuple of float
        Increasing factors to choose from.
    title : str
        In words.
    packages : tuple of str
        What must be installed, as pip names it.
    """

    run: Callable[[Image, float, float], Image]
    grid: tuple[float, ...]
    title: str
    packages: tuple[str, ...] = ("scikit-image",)

    def unavailable(self) -> str | None:
        """Return in one line why the peer cannot run here, or None if it can."""
        try:
            self.release()
        except PackageNotFoundError as missing:
            return f"{missing.name} is not installed; get it with: pip install '.[bench]'"
        return None

    def release(self) -> str:
        """Return what computes, with versions."""
        return ", ".join(f"{package} {version(package)}" for package in self.packages)


def _restoration() -> Any:
    return importlib.import_module("skimage.restoration")


def _total_variation(noisy: Image, sigma: float, factor: float) -> Image:
    found: Image = _restoration().denoise_tv_chambolle(noisy, weight=factor * sigma)
    return found


def _nonlocal_means(noisy: Image, sigma: float, factor: float) -> Image:
    found: Image = _restoration().denoise_nl_means(
        noisy,
        patch_size=5,
        patch_distance=6,
        h=factor * sigma,
        sigma=sigma,
        fast_mode=True,
        preserve_range=True,
    )
    return found


def _wavelet(noisy: Image, sigma: float, factor: float, method: str = "BayesShrink") -> Image:
    found: Image = _restoration().denoise_wavelet(
        noisy, sigma=factor * sigma, wavelet="db2", method=method
    )
    return found


def _wavelet_visu(noisy: Image, sigma: float, factor: float) -> Image:
    return _wavelet(noisy, sigma, factor, "VisuShrink")


def _wavelet_spun(noisy: Image, sigma: float, factor: float) -> Image:
    settings = {"sigma": sigma, "factor": factor}
    found: Image = _restoration().cycle_spin(
        noisy, _wavelet, max_shifts=5, workers=1, func_kw=settings
    )
    return found


def _bm3d(noisy: Image, sigma: float, factor: float) -> Image:
    package = importlib.import_module("bm3d")
    profile = package.BM3DProfile()
    profile.num_threads = 1
    found: Image = package.bm3d(noisy, factor * sigma, profile)
    return found


_BAYES_GRID = (0.85, 0.9, 0.95, 1.0, 1.05, 1.1, 1.15)
_WAVELETS = ("scikit-image", "PyWavelets")

PEERS: dict[str, Peer] = {
    "tv": Peer(_total_variation, (0.5, 0.6, 0.7, 0.8, 0.9, 1.0, 1.1), "TV, Chambolle"),
    "nlm": Peer(_nonlocal_means, (0.4, 0.5, 0.6, 0.7, 0.8, 0.9), "NL-means, fast"),
    "wavelet": Peer(_wavelet, _BAYES_GRID, "wavelet, Bayes", _WAVELETS),
    "wavelet-visu": Peer(
        _wavelet_visu, (0.2, 0.25, 0.3, 0.35, 0.4, 0.5, 0.6), "wavelet, Visu", _WAVELETS
    ),
    "wavelet-spin": Peer(_wavelet_spun, _BAYES_GRID, "wavelet, cycle-spun", _WAVELETS),
    "bm3d": Peer(_bm3d, (0.85, 0.9, 0.95, 1.0, 1.05, 1.1), "BM3D", ("bm3d",)),
}
"""The peers by name."""


def factor_at(factors: Mapping[float, float], sigma: float) -> float:
    """Return the factor at a noise level from those at the levels of the tuning."""
    levels = sorted(factors)
    return float(np.interp(np.log(sigma), np.log(levels), [factors[level] for level in levels]))


def read_factors(path: Path) -> dict[str, dict[float, float]]:
    """Return the tuned factors of each peer by noise level; none if there is no such file."""
    if not path.is_file():
        return {}
    peers = json.loads(path.read_text(encoding="utf-8"))["rows"]
    return {
        name: {float(level): factor for level, factor in row["factors"].items()}
        for name, row in peers.items()
        if len(row["factors"]) == len(TUNING_LEVELS)
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
        Who computes, and on how many threads.
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
        title=Path(name).stem.upper() if name in RECIPES else name,
        denoise=run,
        parameters=trained_numbers(name, model),
        engine=f"integrodiff {runner.name}",
        threads=runner.threads(),
        identity=f"{hashlib.sha256(repr(model).encode()).hexdigest()[:16]} on {runner.name}",
        tensors=model,
    )


def trained_numbers(name: str, model: Model) -> int:
    """Count the numbers that training was free to change.

    What a recipe of this name, or the one that the model was trained by, keeps fixed does not
    count. In a model of any other origin all numbers count, save a step size that must be one.
    """
    for recipe in (name, model.provenance.get("recipe")):
        if recipe in RECIPES:
            return parameter_counts(recipe, model)["trained"]
    members = model.models if isinstance(model, ByNoiseLevel) else (model,)
    count = 0
    for member in members:
        if not isinstance(member, ExplicitModel):
            raise TypeError(f"the parameters of a {type(member).__name__} cannot be counted")
        fixed = ("tau",) if isinstance(member, DeepDiffusion) else ()
        count += len(Parameterisation(member, (TUNING_LEVELS[0],), fixed).names)
    return count


def peer_method(name: str, factors: Mapping[float, float]) -> Method:
    """Return a peer with tuned factors."""
    peer = PEERS[name]
    release = peer.release()

    def run(noisy: Image, sigma: float) -> Image:
        return peer.run(noisy, sigma, factor_at(factors, sigma))

    return Method(
        name=name,
        title=peer.title,
        denoise=run,
        parameters=len(factors),
        engine=release,
        threads="1",
        identity=f"{release}, factors {json.dumps(dict(factors))}",
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
    factors = read_factors(path)
    methods = []
    for name in runnable_peers(names):
        if name in factors:
            methods.append(peer_method(name, factors[name]))
        else:
            command = f"python experiments/peers.py --tune --peers {name} --json {path}"
            print(f"{name} is skipped: {path} has no factors for it; run {command}", flush=True)
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


def psnr(result: Image, clean: Image) -> float:
    """Return the PSNR in dB for a peak of 255, without clipping."""
    error = np.mean((result.astype(np.float64) - clean) ** 2, keepdims=True)
    return float(decibels(error).item())


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
    """Find the factor of one peer at each noise level that its row does not have yet."""
    peer = PEERS[name]
    factors, table = row.setdefault("factors", {}), row.setdefault("psnr", {})
    for level in TUNING_LEVELS:
        if f"{level:g}" in factors:
            continue
        quality = {factor: _mean_psnr(peer, images, level, factor) for factor in peer.grid}
        best = max(quality, key=quality.__getitem__)
        factors[f"{level:g}"] = best
        table[f"{level:g}"] = {f"{factor:g}": decibel(value) for factor, value in quality.items()}
        note = "" if best not in (peer.grid[0], peer.grid[-1]) else ", at the end of its grid"
        print(f"{name}, s = {level:g}: factor {best:g}{note}", flush=True)
        save()


def _mean_psnr(peer: Peer, images: CleanImages, level: float, factor: float) -> float:
    values = [
        psnr(peer.run(clean + noise(level, k, clean.shape), level, factor), clean)
        for k, clean in enumerate(images.pixels)
    ]
    return sum(values) / len(values)


def factors_table(rows: Mapping[str, Result]) -> str:
    """Return the tuned factors, and the PSNRs they reached, as a Markdown table."""
    levels = [f"{level:g}" for level in TUNING_LEVELS]
    lines = [
        [name, *(f"{row['factors'][s]:g} ({max(row['psnr'][s].values()):.2f} dB)" for s in levels)]
        for name, row in rows.items()
        if all(s in row["factors"] for s in levels)
    ]
    return markdown_table(["peer", *(f"s = {s}" for s in levels)], lines)


def main() -> None:
    """Tune the peers, or print the factors of the last tuning."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--tune", action="store_true", help="tune what the file does not have")
    parser.add_argument("--data", type=Path, help="folder that holds bsds500")
    parser.add_argument("--peers", nargs="+", default=list(PEERS), choices=PEERS, metavar="PEER")
    parser.add_argument("--count", type=int, default=8, help="number of training crops")
    parser.add_argument("--again", action="store_true", help="tune what the file has, too")
    parser.add_argument("--json", type=Path, default=TUNED, help="file of the factors")
    arguments = parser.parse_args()
    if not arguments.tune:
        if not arguments.json.is_file():
            raise SystemExit(f"there is no {arguments.json}; tune the peers first, with --tune")
        document = json.loads(arguments.json.read_text(encoding="utf-8"))
        print(factors_table(document["rows"]), end="")
        return
    images = bsds500("train", arguments.data, arguments.count)
    settings = {"images": len(images), "data_sha256": images.fingerprint}
    what = f"Factors of the noise level, tuned on {images.source}"
    results = Results(arguments.json, what, settings)
    for name in runnable_peers(arguments.peers):
        peer = PEERS[name]
        head = {"title": peer.title, "identity": f"{peer.release()}, grid {list(peer.grid)}"}
        row = results.row(name, head, again=arguments.again)
        tune(name, images, row, results.save)
    print(factors_table(results.rows), end="")


if __name__ == "__main__":
    main()
