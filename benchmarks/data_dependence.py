"""Does the time of the compiled engine depend on the image? It should not.

::

    python benchmarks/data_dependence.py

Times a constant image, a photograph with noise and pure strong noise, in turns on one thread, and
prints the median, the quartiles, and the ratio of the slowest to the fastest. Subnormal numbers,
which some processors compute a hundred times slower, once made it 5 on a Xeon.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import time

import numpy as np
from numpy.typing import NDArray
from skimage.data import camera

from integrodiff import load_model
from integrodiff.engines import ENGINES

_SIGMA = 25.0


def images(size: int = 512) -> dict[str, NDArray[np.float32]]:
    """Return images that differ as much as images can."""
    rng = np.random.default_rng(0)
    picture = camera()[:size, :size] + _SIGMA * rng.normal(size=(size, size))
    found = {
        "constant": np.full((size, size), 128.0),
        "photograph": picture,
        "noise": 128 + 200 * rng.normal(size=(size, size)),
    }
    return {name: image.astype(np.float32)[None] for name, image in found.items()}


def main(arguments: list[str] | None = None) -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--models", nargs="+", default=["iad", "iad-plus", "iad-fast"])
    parser.add_argument("--turns", type=int, default=15)
    options = parser.parse_args(arguments)
    print("512 x 512, float32, one thread; milliseconds of the processor: median (quartiles)")
    for model in options.models:
        evolution = load_model(model).evolution(_SIGMA)
        process = ENGINES["native"].prepare(evolution, threads=1)
        times: dict[str, list[float]] = {name: [] for name in images()}
        for _ in range(options.turns + 1):
            for name, image in images().items():
                start = time.process_time()
                process(image)
                times[name].append(1e3 * (time.process_time() - start))
        medians = {}
        for name, found in times.items():
            low, medians[name], high = statistics.quantiles(found[1:], n=4)
            print(f"{model}, {name}: {medians[name]:.1f} ({low:.1f} to {high:.1f})")
        slowest, fastest = max(medians.values()), min(medians.values())
        print(f"{model}: slowest / fastest {slowest / fastest:.2f}", flush=True)


if __name__ == "__main__":
    main(sys.argv[1:])
