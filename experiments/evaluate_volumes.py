"""Print PSNR and time of models, and of peers, on a volume with Gaussian noise.

    python experiments/evaluate_volumes.py VOLUME [--percent 5 11 19] [--models ...] [--crop]
                                           [--slices] [--peers ...] [--every K] [--estimated]
                                           [--window PATCH DISTANCE] [--repeats N]
                                           [--output results/volumes.json]

VOLUME is BrainWeb's ``brain_slices.mat``, which comes with the source package of bm4d, a NIfTI file
or a NumPy file; or ``ct`` or ``tomogram``, made by ``volume_phantoms.py`` with ``--side`` voxels
along each axis. Noise is in percent of the maximum, ``default_rng(0)``, not clipped. It is white,
but that of ``ct`` has the spectrum of filtered back-projection in each slice, and of ``tomogram``
neither volume nor noise has what tilts of up to 60 degrees miss. ``--crop``
takes 140 x 180 x 40 voxels of the middle. The model sees the noise level and the maximum as data
range. ``--slices`` adds results slice by slice, along the last axis; ``--every K`` takes only every
K-th of these slices, with K times the spacing, and adds results as if spacing were equal.
``--estimated`` adds results for which the noise is not known, but estimated.
``--peers`` adds total variation and NL-means of scikit-image, tuned on the volume itself, and BM4D
if it is installed (``pip install bm4d==4.2.5``; it may not be used commercially), or those that are
named, such as ``--peers TV NL-means``. ``--window 3 4`` tunes NL-means with patches of three voxels
and windows of four to each side alone, the same for all levels. All libraries get one thread.
Seconds are CPU time, of the median of ``--repeats`` calls for models, of the best setting for what
is tuned. ``--output`` adds the table to a file, in place of an earlier one of the same volume;
other percents and methods of an earlier one are kept if size and versions are the same.
"""

from __future__ import annotations

import argparse
import json
import time
import warnings
from collections.abc import Callable, Sequence
from functools import partial
from importlib import import_module
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from integrodiff import VolumeModelWarning, denoise, load_model
from integrodiff._atomic import atomic_write
from peers import about_run, one_thread
from volume_phantoms import EVALUATED, ramp_noise, without_wedge

Floats = NDArray[np.float32]


def read(path: Path, side: int = 96) -> tuple[Floats, tuple[float, ...]]:
    """Return a volume and its spacing."""
    if path.name in EVALUATED:
        made = EVALUATED[path.name](0, side)
        if path.name == "tomogram":
            made = without_wedge(made)
        return made.astype(np.float32), (1.0, 1.0, 1.0)
    if path.suffix == ".mat":
        from scipy.io import loadmat

        return np.asarray(loadmat(path)["brain_slices"], np.float32), (1.0, 1.0, 1.0)
    if path.suffix == ".npy":
        return np.load(path).astype(np.float32), (1.0, 1.0, 1.0)
    import nibabel

    image: Any = nibabel.load(path)
    zooms = tuple(float(zoom) for zoom in image.header.get_zooms()[:3])
    return np.asarray(image.dataobj, np.float32), zooms


def noise_of(name: str, shape: tuple[int, ...], sigma: float) -> NDArray[np.float64]:
    """Return the noise of a volume."""
    rng = np.random.default_rng(0)
    if name == "ct":
        return ramp_noise(rng, shape, sigma)
    noise = rng.normal(0, sigma, shape)
    if name == "tomogram":
        noise = without_wedge(noise)
        noise *= sigma / noise.std()
    return noise


def middle(volume: Floats, shape: tuple[int, ...] = (140, 180, 40)) -> Floats:
    """Return the part in the middle."""
    starts = [(size - wanted) // 2 for size, wanted in zip(volume.shape, shape, strict=True)]
    pieces = zip(starts, shape, strict=True)
    return volume[tuple(slice(max(start, 0), max(start, 0) + size) for start, size in pieces)]


class Measured(NamedTuple):
    """PSNR in dB and CPU seconds of a method, and the setting that was the best, if it was tuned.

    ``ends`` names the numbers of the setting that are the first or the last that were tried.
    """

    psnr: float
    seconds: float
    setting: dict[str, float] | None = None
    ends: tuple[str, ...] = ()


def measured(run: Callable[[], Floats], clean: Floats, peak: float, repeats: int = 1) -> Measured:
    """Return PSNR and seconds of one method, of the median of some calls."""
    seconds = []
    for _ in range(repeats):
        began = time.process_time()
        result = run()
        seconds.append(time.process_time() - began)
    return Measured(psnr(result, clean, peak), median(seconds))


def tuned(
    run: Callable[..., Floats], grid: dict[str, tuple[float, ...]], clean: Floats, peak: float
) -> Measured:
    """Return the best PSNR of settings of a grid, and the CPU seconds of that one.

    The numbers of a setting are tuned in turn, the last one first, from the middle of the grid on,
    until none of them changes any more.
    """
    known: dict[tuple[float, ...], Measured] = {}

    def found(values: tuple[float, ...]) -> Measured:
        if values not in known:
            setting = dict(zip(grid, values, strict=True))
            known[values] = measured(partial(run, **setting), clean, peak)._replace(setting=setting)
        return known[values]

    here, before = tuple(values[len(values) // 2] for values in grid.values()), None
    while here != before:
        before = here
        for index, values in reversed(list(enumerate(grid.values()))):
            others = [(*here[:index], value, *here[index + 1 :]) for value in values]
            here = max(others, key=lambda candidate: found(candidate).psnr)
    pairs = zip(here, grid.items(), strict=True)
    ends = tuple(
        name
        for value, (name, values) in pairs
        if len(values) > 1 and value in (values[0], values[-1])
    )
    return found(here)._replace(ends=ends)


PEERS = ("TV", "NL-means", "BM4D")


def peers(
    names: Sequence[str],
    noisy: Floats,
    clean: Floats,
    sigma: float,
    peak: float,
    window: Sequence[int] | None = None,
) -> dict[str, Measured]:
    """Return PSNR and seconds of some peers.

    ``window`` has the sizes of patches and windows of NL-means, if they are not tuned.
    """
    from skimage.restoration import denoise_nl_means, denoise_tv_chambolle

    scaled, level = noisy / peak, sigma / peak

    def total_variation(weight: float) -> Floats:
        return np.asarray(denoise_tv_chambolle(scaled, weight=weight * level) * peak)

    def nl_means(patch: int, distance: int, strength: float) -> Floats:
        found = denoise_nl_means(
            scaled, patch_size=patch, patch_distance=distance, h=strength * level, sigma=level
        )
        return np.asarray(found * peak)

    weights: dict[str, tuple[float, ...]] = {
        "weight": (0.2, 0.3, 0.4, 0.5, 0.6, 0.8, 1.0, 1.3, 1.7)
    }
    windows: dict[str, tuple[float, ...]] = {"patch": (3, 5, 7), "distance": (1, 2, 3)}
    if window is not None:
        windows = {key: (size,) for key, size in zip(windows, window, strict=True)}
    strengths = {"strength": (0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 1.0, 1.2)}
    found = {}
    if "TV" in names:
        found["TV"] = tuned(total_variation, weights, clean, peak)
    if "NL-means" in names:
        name = "NL-means" + (f", window {window[0]} {window[1]}" if window is not None else "")
        found[name] = tuned(nl_means, windows | strengths, clean, peak)
    if "BM4D" in names and find_spec("bm4d") is not None:
        bm4d = import_module("bm4d").bm4d
        found["BM4D"] = measured(partial(bm4d, noisy.astype(np.float64), sigma), clean, peak)
    return found


def psnr(result: Floats, clean: Floats, peak: float) -> float:
    """Return the PSNR in dB."""
    error = np.mean((result.astype(np.float64) - clean) ** 2)
    return float(10 * np.log10(peak**2 / error))


def save(path: Path, name: str, entry: dict[str, Any]) -> None:
    """Write the table of a volume to a file that may have those of others."""
    document: dict[str, Any] = {"what": (__doc__ or "").splitlines()[0], "volumes": {}}
    if path.is_file():
        document = json.loads(path.read_text(encoding="utf-8"))
    before = document["volumes"].get(name, {})
    if all(before.get(key) == entry[key] for key in ("shape", "spacing", "versions")):
        for percent, known in before["percent"].items():
            methods = known["methods"] | entry["percent"].get(percent, known)["methods"]
            entry["percent"][percent] = known | {"methods": methods}
    document["volumes"][name] = entry
    path.parent.mkdir(parents=True, exist_ok=True)
    with atomic_write(path, overwrite=True) as temporary:
        text = json.dumps(document, indent=1, allow_nan=False)
        temporary.write_text(text + "\n", encoding="utf-8")


def versions() -> dict[str, str]:
    """Return the versions of what is measured and installed."""
    found = {}
    for name in ("numpy", "scikit-image", "bm4d"):
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            continue
    return found


def rows_of(
    arguments: argparse.Namespace,
    clean: Floats,
    noisy: Floats,
    sigma: float,
    spacing: tuple[float, ...],
) -> dict[str, Measured]:
    """Return what is asked for, by the name of the method."""
    peak = float(clean.max())
    known: dict[str, Any] = {"data_range": peak, "threads": 1}
    rows: dict[str, Measured] = {}

    def add(name: str, level: float | None, **how: Any) -> None:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", VolumeModelWarning)
            run = partial(denoise, noisy, level, **known, **how)
            rows[name] = measured(run, clean, peak, arguments.repeats)

    ways = {"": spacing} | ({", equal spacing": (1.0,) * 3} if arguments.every > 1 else {})
    for name in arguments.models:
        for words, distances in ways.items():
            model = load_model(name)
            add(name + words, sigma, axes="ZYX", spacing=distances, model=model)
    if arguments.estimated:
        add("iad-plus-volume, noise estimated", None, axes="ZYX", spacing=spacing)
    if arguments.slices:
        add("iad-plus by slice", sigma, axes="YXQ")
    if arguments.peers is None:
        return rows
    return rows | peers(arguments.peers or PEERS, noisy, clean, sigma, peak, arguments.window)


def main() -> None:
    """Print a table."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("volume", type=Path)
    parser.add_argument("--percent", nargs="+", type=float, default=[5.0, 11.0, 19.0])
    parser.add_argument("--models", nargs="*", default=["iad-plus-volume"])
    parser.add_argument("--crop", action="store_true")
    parser.add_argument("--slices", action="store_true")
    parser.add_argument("--peers", nargs="*", choices=PEERS)
    parser.add_argument("--window", nargs=2, type=int, metavar=("PATCH", "DISTANCE"))
    parser.add_argument("--estimated", action="store_true")
    parser.add_argument("--side", type=int, default=96)
    parser.add_argument("--every", type=int, default=1, metavar="K")
    parser.add_argument("--repeats", type=int, default=1, metavar="N")
    parser.add_argument("--output", type=Path, metavar="FILE.json")
    arguments = parser.parse_args()
    clean, spacing = read(arguments.volume, arguments.side)
    if arguments.crop:
        clean = middle(clean)
    clean = np.ascontiguousarray(clean[..., :: arguments.every])
    spacing = (*spacing[:2], arguments.every * spacing[2])
    peak = float(clean.max())
    name = arguments.volume.name + (f", every {arguments.every}" if arguments.every > 1 else "")
    print(f"{name}, shape {clean.shape}, spacing {spacing}")
    print("| percent | noisy | " + "method | PSNR | CPU s |")
    print("|---|---|---|---|---|")
    entry: dict[str, Any] = about_run() | {"versions": versions(), "shape": list(clean.shape)}
    entry |= {"spacing": [round(distance, 4) for distance in spacing], "repeats": arguments.repeats}
    entry["percent"] = {}
    for percent in arguments.percent:
        sigma = percent / 100 * peak
        noise = noise_of(arguments.volume.name, clean.shape, sigma)
        noisy = (clean + noise).astype(np.float32)
        rows = rows_of(arguments, clean, noisy, sigma, spacing)
        noisy_psnr = psnr(noisy, clean, peak)
        for method, (value, seconds, setting, ends) in rows.items():
            found = [f"{key} {number:g}" for key, number in (setting or {}).items()]
            found += [f"ends of the grid: {', '.join(ends)}"] if ends else []
            words = f" ({', '.join(found)})" if found else ""
            print(
                f"| {percent:g} | {noisy_psnr:.2f} | {method}{words} | {value:.2f} | "
                f"{seconds:.2f} |",
                flush=True,
            )
        entry["percent"][f"{percent:g}"] = {
            "noisy": round(noisy_psnr, 3),
            "methods": {
                method: {"psnr": round(found.psnr, 3), "seconds": round(found.seconds, 2)}
                | ({} if found.setting is None else {"setting": found.setting})
                for method, found in rows.items()
            },
        }
        if arguments.output is not None:
            save(arguments.output, name, entry)


if __name__ == "__main__":
    one_thread()
    main()
