"""Denoise in steps that can be watched and stopped.

The computation is a call of :class:`integrodiff.Denoiser`, in a thread of its own; the generator
:func:`denoising` reports how far it is. So whoever drives the generator can stop it at any moment,
also while a step of a large volume is computed.
"""

from __future__ import annotations

import queue
import threading
from collections.abc import Generator
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from integrodiff._default_model import DEFAULT_MODEL
from integrodiff._denoise import Denoiser
from integrodiff.pipeline import Pipeline, Step
from integrodiff.request import Source

_PATIENCE = 0.03
"""Seconds after which a generator reports, although no step was completed."""


@dataclass(frozen=True, kw_only=True, eq=False)
class Settings:
    """Arguments of :func:`integrodiff.denoise` that a person has chosen.

    Attributes
    ----------
    model, sigma, noise, axes, spacing, colour, as_float, exact
        As in :func:`integrodiff.denoise`.
    """

    model: str = DEFAULT_MODEL
    sigma: float | tuple[float, ...] | None = None
    noise: str = "gaussian"
    axes: str | None = None
    spacing: tuple[float, ...] | None = None
    colour: str = "auto"
    as_float: bool = False
    exact: bool = False

    def arguments(self) -> dict[str, Any]:
        """Return the arguments that differ from the defaults of :func:`integrodiff.denoise`."""
        default = Settings()
        chosen = {name: getattr(self, name) for name in Settings.__dataclass_fields__}
        return {name: value for name, value in chosen.items() if value != getattr(default, name)}


class Progress(NamedTuple):
    """How far a computation is.

    Attributes
    ----------
    number, total : int
        Completed steps and all steps; both are zero until the noise is known.
    noise : str
        Description of the noise, given or estimated; empty until it is known.
    """

    number: int = 0
    total: int = 0
    noise: str = ""


@dataclass(frozen=True, kw_only=True, eq=False)
class Outcome:
    """What became of a computation.

    Attributes
    ----------
    result : ndarray, optional
        The denoised image; None if there was an error.
    removed : ndarray, optional
        The image minus the result, in floating point.
    noise : str
        Description of the noise, given or estimated.
    engine : str
        Name of the engine.
    error : Exception, optional
        The error.
    """

    result: NDArray[Any] | None = None
    removed: NDArray[Any] | None = None
    noise: str = ""
    engine: str = ""
    error: Exception | None = None


def denoising(
    image: Any,
    settings: Settings,
    mask: NDArray[np.bool_] | None = None,
    stopped: threading.Event | None = None,
) -> Generator[Progress, None, Outcome]:
    """Denoise an image; yield after each step, and while nothing happens, and return the outcome.

    The computation ends with the step that is being computed when the generator is closed, or when
    ``stopped`` is set.

    Parameters
    ----------
    image : array_like
        The image, as :func:`integrodiff.denoise` takes it.
    settings : Settings
        The other arguments.
    mask : array of bool, optional
        True at valid pixels.
    stopped : Event, optional
        Set by another thread to end the computation.
    """
    computation = _Computation(image, settings, mask, stopped or threading.Event())
    computation.start()
    last = Progress()
    try:
        while True:
            outcome = computation.outcome
            try:
                last = computation.reports.get(timeout=_PATIENCE if outcome is None else 0)
            except queue.Empty:
                if outcome is not None:
                    return outcome
                # Otherwise report again: whoever waits may want to stop.
            yield last
    finally:
        computation.stopped.set()


class _Stopped(Exception):  # noqa: N818 - not an error
    """Raised in a callback to end a computation."""


class _Computation(threading.Thread):
    """A thread that denoises one image."""

    def __init__(
        self,
        image: Any,
        settings: Settings,
        mask: NDArray[np.bool_] | None,
        stopped: threading.Event,
    ) -> None:
        super().__init__(name="integrodiff")
        self._image, self._settings, self._mask = image, settings, mask
        self.reports: queue.SimpleQueue[Progress] = queue.SimpleQueue()
        self.stopped = stopped
        self.outcome: Outcome | None = None

    def run(self) -> None:
        """Denoise, and set the outcome."""
        try:
            denoiser = _Denoiser(self)
            result = denoiser(self._image, mask=self._mask, callback=denoiser.advance)
            self.outcome = Outcome(
                result=result,
                removed=_difference(np.asarray(self._image), result),
                noise=denoiser.noise,
                engine=denoiser.used,
            )
        except _Stopped:
            self.outcome = Outcome()
        except Exception as error:  # shown to the person, whatever it is
            self.outcome = Outcome(error=error)

    @property
    def arguments(self) -> dict[str, Any]:
        """Arguments of :class:`integrodiff.Denoiser`."""
        return self._settings.arguments()


class _Denoiser(Denoiser):
    """A denoiser that reports its noise and its steps."""

    def __init__(self, computation: _Computation) -> None:
        super().__init__(**computation.arguments)
        self._computation = computation
        self.noise = self.used = ""

    def pipeline(self, source: Source) -> Pipeline:
        """Resolve the request, and report the noise."""
        found = super().pipeline(source)
        parts = [found.resolved.noise, found.resolved.volume, found.resolved.invalid]
        self.noise = "; ".join(str(part) for part in parts if part is not None)
        self.used = self.engine_for(found.resolved)
        self._report(Progress(0, found.steps, self.noise))
        return found

    def advance(self, step: Step) -> None:
        """Report a step."""
        self._report(Progress(step.number, step.total, self.noise))

    def _report(self, progress: Progress) -> None:
        if self._computation.stopped.is_set():
            raise _Stopped
        self._computation.reports.put(progress)


def _difference(image: NDArray[Any], result: NDArray[Any]) -> NDArray[Any]:
    """Return what was removed, as floating point; zero at infinite pixels, which are invalid."""
    wide = np.result_type(image, np.float32)
    with np.errstate(invalid="ignore"):
        removed: NDArray[Any] = image.astype(wide) - result
    removed[np.isinf(image)] = 0
    return removed
