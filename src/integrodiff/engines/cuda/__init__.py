"""The engine ``cuda``: fused kernels on NVIDIA GPUs, compiled at run time by CuPy."""

from __future__ import annotations

import importlib.util

from integrodiff.engines.base import Engine, Process
from integrodiff.engines.gpu import nvidia_gpus
from integrodiff.install import install_hint
from integrodiff.stages import Evolution, HaarGradient, HigherDerivatives, VolumeGradient
from integrodiff.stages._arrays import Array


class CudaEngine(Engine):
    """Fused kernels on an NVIDIA GPU; arrays stay in the memory of the GPU."""

    name = "cuda"
    description = "fused kernels on an NVIDIA GPU"
    libraries = ("cupy", "torch")

    def unavailable(self) -> str | None:
        """Look for CuPy without importing it, and ask the driver for a GPU."""
        if nvidia_gpus() == 0:
            return "the driver reports no NVIDIA GPU; take engine='native'"
        if importlib.util.find_spec("cupy") is None:
            return (
                "CuPy, which compiles the kernels, is not installed; install the one for your "
                f"version of CUDA, or {install_hint('cuda')}"
            )
        return None

    def threads(self) -> str:
        """Report the GPU."""
        import cupy

        properties = cupy.cuda.runtime.getDeviceProperties(cupy.cuda.Device().id)
        return f"GPU: {properties['name'].decode()}"

    def prepare(
        self,
        evolution: Evolution,
        *,
        exact: bool = False,
        threads: int | None = None,
        relative_noise: Array | None = None,
        noise_span: tuple[float, float] | None = None,
        mask: Array | None = None,
    ) -> Process:
        """Compute kernels; they are compiled with the first image, once for each GPU.

        The nonnegativity scheme and very many scales run as stages on the GPU.
        """
        from integrodiff.engines.cuda.process import CudaProcess
        from integrodiff.engines.cuda.stages import StagedCudaProcess

        if not has_kernels(evolution):
            return StagedCudaProcess(evolution, relative_noise, mask)
        return CudaProcess(
            evolution,
            exact=exact,
            relative_noise=relative_noise,
            noise_span=noise_span,
            mask=mask,
        )


def has_kernels(evolution: Evolution) -> bool:
    """Whether there are fused kernels for all terms of an evolution."""
    from integrodiff.engines.cuda.steps import MOST_SCALES

    known = (HaarGradient, HigherDerivatives, VolumeGradient)
    few = len(evolution.scales) <= MOST_SCALES[evolution.dimensions]
    return few and all(isinstance(term.derivatives, known) for term in evolution.all_terms())
