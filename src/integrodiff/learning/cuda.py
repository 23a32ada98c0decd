"""Derivatives by the kernels of the engine ``cuda``: training on an NVIDIA GPU."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from integrodiff.engines import get_engine
from integrodiff.engines.cuda import has_kernels
from integrodiff.engines.cuda.arrays import enough_memory, on_device
from integrodiff.engines.cuda.blurs import exact_kernels, kernels_near
from integrodiff.engines.cuda.launch import Device
from integrodiff.engines.cuda.process import PIXELS_AT_ONCE
from integrodiff.engines.cuda.tangents import TangentProcess
from integrodiff.learning.images import CleanImages, noise
from integrodiff.learning.neighbourhood import STEP, Neighbourhood
from integrodiff.learning.parameters import Parameterisation, Vector
from integrodiff.learning.tangents import Item, LevelByLevel, Linearisation
from integrodiff.stages._arrays import Array, namespace

_MOST_VALUES = 2**27
"""Pixels of a batch times one more than there are parameters; sums need twelve bytes for each."""


class CudaLineariser(LevelByLevel):
    """The same numbers as ``TorchLineariser``, by fused kernels that carry the tangents.

    For all models of the Haar scheme, with trained scales as well.

    Parameters
    ----------
    parameterisation : Parameterisation
        The model and its free parameters.
    images : CleanImages
        The clean images.
    batch : int, optional
        Images at a time; by default what fits easily into the memory of a GPU.
    double : bool
        Compute in float64 instead of float32.
    tangents : int
        How many parameters a run differentiates. More than one spare runs, of which each computes
        the result anew, but take more registers and more shared memory.
    tolerance : float, optional
        Largest mass of a blur that may be cut off; by default what rounding cuts off anyway. With
        1e-5 kernels are a fifth shorter, and derivatives change by about as much.
    gpu : Device, optional
        Where the kernels run, on arrays of NumPy; by default on the current GPU of CuPy.
    """

    def __init__(
        self,
        parameterisation: Parameterisation,
        images: CleanImages,
        *,
        batch: int | None = None,
        double: bool = False,
        tangents: int = 1,
        tolerance: float | None = None,
        gpu: Device | None = None,
    ) -> None:
        if gpu is None:
            get_engine("cuda")
        if not has_tangent_kernels(parameterisation):
            raise ValueError(
                "the GPU kernels are for the Haar scheme and at most 16 scales; "
                "take TorchLineariser"
            )
        precision = np.float64 if double else np.float32
        super().__init__(
            _AtOneLevel(parameterisation, images, batch, precision, tangents, tolerance, gpu)
        )


class _AtOneLevel:
    """Linearises examples of one noise level, which share all numbers of the process."""

    def __init__(
        self,
        parameterisation: Parameterisation,
        images: CleanImages,
        batch: int | None,
        precision: type[np.floating[Any]],
        tangents: int,
        tolerance: float | None,
        gpu: Device | None,
    ) -> None:
        self._parameterisation, self._tangents = parameterisation, tangents
        self._precision = precision
        self._tolerance = tolerance or float(np.finfo(precision).eps) / 2
        values = images.pixels[0].size * (1 + len(parameterisation.names))
        at_once = min(PIXELS_AT_ONCE // images.pixels[0].size, _MOST_VALUES // values)
        self._batch = batch or max(1, at_once)
        self._gpu = gpu
        self._clean, self._device = self._moved(images.pixels)
        self._noise: dict[Item, Array] = {}

    def _moved(self, values: NDArray[Any]) -> tuple[Array, Device]:
        """Return an array with its device; on a GPU it is one of CuPy."""
        host = np.ascontiguousarray(values, self._precision)
        if self._gpu is not None:
            return host, self._gpu
        moved, device, _ = on_device(host)
        return moved, device

    def linearise(self, vector: Vector, items: Sequence[Item]) -> Linearisation:
        """Return errors and derivatives of examples of one level, a batch at a time."""
        process = self._process(vector, items[0][1])
        with self._device.active():
            sums = np.concatenate(
                [
                    self._sums(process, items[start : start + self._batch])
                    for start in range(0, len(items), self._batch)
                ]
            )
        return Linearisation(sums[:, 0, 0], sums[:, 1:, 0], sums[:, 1:, 1:])

    def _process(self, vector: Vector, level: float) -> TangentProcess:
        here = Neighbourhood(self._parameterisation, vector, level)
        kernels = exact_kernels(here.center, self._tolerance)
        near = [
            (kernels_near(kernels, ahead), kernels_near(kernels, behind))
            for ahead, behind in here.pairs()
        ]
        return TangentProcess(kernels, near, 2 * STEP, self._device, tangents=self._tangents)

    def _sums(self, process: TangentProcess, items: Sequence[Item]) -> NDArray[np.float64]:
        """Return all products of residual and tangents, ``(example, 1 + p, 1 + p)``."""
        xp = namespace(self._clean)
        clean = xp.stack([self._clean[number] for number, _ in items])
        noisy = clean + xp.stack([self._noise_of(item) for item in items])
        denoised, slopes = process(noisy[:, None, :, :])
        rows = [denoised[:, 0, :, :] - clean, *(slopes[k, :, 0, :, :] for k in range(len(slopes)))]
        with enough_memory():
            rows = [xp.astype(row, xp.float64) for row in rows]
            sums = xp.empty(
                (len(items), len(rows), len(rows)), dtype=xp.float64, device=clean.device
            )
            for i, row in enumerate(rows):
                for j in range(i + 1):
                    sums[:, i, j] = sums[:, j, i] = xp.mean(row * rows[j], axis=(1, 2))
        found: NDArray[np.float64] = sums if self._gpu is not None else sums.get()
        return found

    def _noise_of(self, item: Item) -> Array:
        """Return the noise of an example, moved once: drawing it anew takes longer than a step."""
        if item not in self._noise:
            number, level = item
            drawn = noise(level, number, tuple(self._clean.shape[1:]))
            self._noise[item], _ = self._moved(drawn)
        return self._noise[item]


def has_tangent_kernels(parameterisation: Parameterisation) -> bool:
    """Whether there are kernels for a model at all noise levels."""
    evolutions = (parameterisation.template._evolution(level) for level in parameterisation.levels)
    return all(map(has_kernels, evolutions))
