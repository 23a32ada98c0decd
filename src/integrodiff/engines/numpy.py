"""The engine ``numpy``: the stages on NumPy arrays, the reference for all other engines."""

from __future__ import annotations

from integrodiff.engines.base import Engine, FloatImage, Mask, Process, State, known_noise
from integrodiff.engines.staged import StagedState
from integrodiff.stages import Evolution, sensitivity, stable_on_masks


class NumpyEngine(Engine):
    """The stages on NumPy arrays: the reference that all other engines are held to."""

    name = "numpy"
    description = "NumPy, the reference"

    def unavailable(self) -> str | None:
        """NumPy is always there."""
        return None

    def threads(self) -> str:
        """Elementwise operations run on one thread, blurs of short axes on those of BLAS."""
        return "1 (matrix products: as many as BLAS takes)"

    def prepare(
        self,
        evolution: Evolution,
        *,
        exact: bool = False,
        threads: int | None = None,
        relative_noise: FloatImage | None = None,
        noise_span: tuple[float, float] | None = None,
        mask: Mask | None = None,
    ) -> Process:
        """Return a process that runs the stages, which are exact."""
        return NumpyProcess(evolution, relative_noise, mask)


class NumpyProcess(Process):
    """The stages on NumPy arrays."""

    def __init__(
        self, evolution: Evolution, relative_noise: FloatImage | None, mask: Mask | None
    ) -> None:
        super().__init__(evolution if mask is None else stable_on_masks(evolution))
        self._relative_noise, self._mask = relative_noise, mask

    def start(self, image: FloatImage) -> State:
        """Return the state before the first step."""
        local = None
        if self._relative_noise is not None:
            levels = known_noise(self._relative_noise, self._mask)
            local = sensitivity(levels.astype(image.dtype))
        return StagedState(image, self.evolution, local, self._mask)
