"""Run kernels of the engine ``cuda``, compiled with AddressSanitizer, on images of many sizes.

Usage: ``python kernels_within_arrays.py FOLDER``, with the sanitizer's library loaded beforehand.
It ends the program where a kernel reads or writes outside of an array.
"""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
from emulated_gpu import EmulatedGpu

from integrodiff.engines.cuda.blurs import exact_kernels
from integrodiff.engines.cuda.process import CudaProcess
from integrodiff.engines.cuda.tangents import TangentProcess
from integrodiff.stages import (
    Coupling,
    Evolution,
    Exponential,
    HaarGradient,
    HigherDerivatives,
    Term,
    VolumeGradient,
)
from integrodiff.stages.operators import DerivativeOperator

SIZES = [(1, 1), (1, 50), (33, 40), (64, 70), (67, 64), (70, 97), (97, 70), (130, 66), (40, 129)]


def term(derivatives: DerivativeOperator, integration: float) -> Term:
    return Term(
        coupling=Coupling(weights=(1.0, 0.5), kind="tensor", integration_scale=integration),
        flux_weights=(0.3, 0.2),
        diffusivity=Exponential(contrasts=(9.0, 5.0)),
        derivatives=derivatives,
    )


def main() -> None:
    gpu = EmulatedGpu(Path(sys.argv[1]), sanitized=True)
    terms = (term(HaarGradient(), 0.7), term(HigherDerivatives(2), 1.0))
    flat = Evolution(scales=(0.4, 0.9), schedule=(terms,), tau=0.1, steps=1)
    deep = Evolution(
        scales=(0.4, 0.9),
        schedule=((term(VolumeGradient(), 0.7),),),
        tau=0.1,
        steps=1,
        spacing=(1.0, 1.0, 1.0),
    )
    rng = np.random.default_rng(0)
    for process, sizes in ((flat, SIZES), (deep, [(5, 9, 35)])):
        for size in sizes:
            image = rng.normal(99, 20, (1, *size)).astype(np.float32)
            for mask in (None, rng.random(size) < 0.9):
                CudaProcess(process, mask=mask).start_on(image, gpu).advance()
    kernels = exact_kernels(flat, 1e-3)
    for size in SIZES:
        image = rng.normal(99, 20, (1, 1, *size)).astype(np.float32)
        TangentProcess(kernels, [(kernels, kernels)], 1.0, gpu)(image)
    sys.stdout.write(f"{len(gpu.launched)} kernels\n")


if __name__ == "__main__":
    main()
