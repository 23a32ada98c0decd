"""Largest differences between the ways to compute a model, on BSDS500 training crops.

    python experiments/parity.py --data FOLDER [--models iad-plus iad-fast iad-deep] [--count 4]
        [--levels 2 5 10 20 30 50 75 100] [--instruction-sets baseline avx2 ...]

For each model and noise level, without and with a map of noise levels (from one half to twice the
level, in rings): how far float32 without shortcuts, and float32 with shortcuts, are from float64
without shortcuts, all by the compiled engine, in grey levels at the worst pixel of all crops. In
brackets: the share of pixels, in millionths, at which shortcuts change more than 0.05.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

import numpy as np

from integrodiff import load_model
from integrodiff.engines import ENGINES
from integrodiff.engines.native import NativeEngine, NativeProcess
from integrodiff.learning import bsds500
from integrodiff.learning.images import noise

LEVELS = (2.0, 5.0, 10.0, 20.0, 30.0, 50.0, 75.0, 100.0)
ASKED = 0.05


def rings(size: int) -> Any:
    """Return noise levels relative to their geometric mean, from one half to two."""
    y, x = np.mgrid[:size, :size] - (size - 1) / 2
    return 2.0 ** np.sin(np.hypot(y, x) / 12)


def main() -> None:
    """Measure and print a line for each model and level."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--data", type=Path, help="folder that holds bsds500")
    parser.add_argument("--models", nargs="+", default=["iad-plus", "iad-fast", "iad-deep"])
    parser.add_argument("--levels", nargs="+", type=float, default=list(LEVELS))
    parser.add_argument("--count", type=int, default=4, help="number of crops, the first ones")
    parser.add_argument("--size", type=int, default=256, help="of their parts")
    parser.add_argument("--instruction-sets", nargs="+", default=[None])
    a = parser.parse_args()
    engine = ENGINES["native"]
    if not isinstance(engine, NativeEngine) or engine.unavailable():
        raise SystemExit("this compares ways of the compiled engine, which is not installed")
    clean = bsds500("train", a.data, a.count).pixels[:, : a.size, : a.size]
    computed = len(clean) * len(a.instruction_sets)
    print(f"{len(clean)} crops of {clean.shape[1:]}; float32 exact / with shortcuts", flush=True)
    largest = {"exact": 0.0, "shortcuts": 0.0}
    for name in a.models:
        model = load_model(name)
        for level in a.levels:
            cells = []
            for mapped in (False, True):
                relative = rings(clean.shape[-1]) if mapped else None
                exact = shortcut = share = 0.0
                for isa in a.instruction_sets:
                    ways = [
                        NativeProcess(
                            model.evolution(level),
                            exact=how,
                            threads=1,
                            relative_noise=relative,
                            instruction_set=isa,
                        )
                        for how in (True, False)
                    ]
                    for k, image in enumerate(clean):
                        added = noise(level, k, image.shape)
                        if relative is not None:
                            added = added * relative
                        noisy = (image + added).astype(np.float32)[None]
                        expected = ways[0](noisy.astype(np.float64))
                        exact = max(exact, float(np.abs(ways[0](noisy) - expected).max()))
                        change = np.abs(ways[1](noisy) - expected)
                        shortcut = max(shortcut, float(change.max()))
                        share += float(np.mean(change > ASKED)) / computed
                largest["exact"] = max(largest["exact"], exact)
                largest["shortcuts"] = max(largest["shortcuts"], shortcut)
                cells.append(f"{exact:.4f} / {shortcut:.4f} ({1e6 * share:.0f})")
            print(f"{name}, s = {level:g}: {cells[0]}; with a map {cells[1]}", flush=True)
    print(f"largest: exact {largest['exact']:.4f}, shortcuts {largest['shortcuts']:.4f}")


if __name__ == "__main__":
    main()
