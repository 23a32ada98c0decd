"""Levenberg-Marquardt training of a model's few parameters.

The unknowns are logarithms of at most a few dozen numbers; the residual is a whole set of images.
Gauss-Newton with exact tangents converges in about ten iterations. One iteration needs the
linearisation at one point (see :mod:`integrodiff.learning.tangents`); a rejected trial costs as
much as an accepted one, an accepted one is the next iteration's linearisation.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
from numpy.typing import NDArray

from integrodiff._atomic import atomic_write
from integrodiff._text_files import regular_text
from integrodiff.learning.cluster import ClusterLineariser
from integrodiff.learning.images import CleanImages
from integrodiff.learning.parameters import Parameterisation, Vector, smoothness
from integrodiff.learning.tangents import Item, Linearisation, Lineariser, TorchLineariser
from integrodiff.models import ExplicitModel
from integrodiff.viz.metrics import DECIBELS_PER_LOGARITHM, psnr_of_error

if TYPE_CHECKING:
    from distributed import Client

Loss = Literal["psnr", "mse"]

_LARGEST_CHECKPOINT = 2**26
"""Bytes of a checkpoint; those of the shipped models have some thousands."""


@dataclass(frozen=True, kw_only=True)
class FitSettings:
    """Settings of the training.

    Attributes
    ----------
    loss : {"psnr", "mse"}
        ``psnr`` minimises the mean over examples of the logarithm of the mean squared error, so
        that all noise levels count alike; ``mse``, the paper's, the mean squared error itself.
    penalty : float
        Weight of the smoothness over the scales of a full law, at one noise level; in dB for
        the loss ``psnr``.
    level_weights : sequence of (float, float)
        Noise levels that count more or less than the others, with their weights.
    phases : sequence of (int or None)
        Number of images in each phase; None stands for all. Early phases find the region on a
        few images, the last one counts.
    iterations : int
        Largest number of accepted steps in each phase.
    tolerance : float
        The last phase ends when a step brings less than this decrease of the loss: in dB for
        ``psnr``, relative for ``mse``. Earlier phases end at ten times as much.
    seed : int
        Which images the early phases take.
    """

    loss: Loss = "psnr"
    penalty: float = 0.0
    level_weights: tuple[tuple[float, float], ...] = ()
    phases: tuple[int | None, ...] = (16, None)
    iterations: int = 30
    tolerance: float = 1e-4
    seed: int = 0


@dataclass
class _State:
    """State of a training run, as stored in a checkpoint."""

    start: int = 0
    phase: int = 0
    iteration: int = 0
    vector: list[float] = field(default_factory=list)
    damping: float = 1e-2
    converged: bool = False
    finished_starts: list[tuple[float, list[float]]] = field(default_factory=list)
    seconds: float = 0.0
    done: bool = False


@dataclass(frozen=True)
class Progress:
    """One accepted step, as logged and shown."""

    levels: tuple[float, ...]
    start: int
    phase: int
    images: int
    iteration: int
    loss: float
    psnr: float
    damping: float
    seconds: float
    parameters: dict[str, float]


@dataclass(frozen=True)
class FitResult:
    """Result of a training.

    Attributes
    ----------
    model : ExplicitModel
        The model with the trained parameters.
    loss : float
        Final loss on all training examples.
    psnr : float
        Mean PSNR on them in dB.
    by_level : dict
        The same for each noise level.
    seconds : float
        Time spent on it, in all runs if it was interrupted.
    """

    model: ExplicitModel
    loss: float
    psnr: float
    by_level: dict[float, float]
    seconds: float


def fit(
    starts: ExplicitModel | Sequence[ExplicitModel],
    images: CleanImages,
    levels: Sequence[float],
    *,
    settings: FitSettings | None = None,
    fixed: Sequence[str] = (),
    lineariser: Callable[[Parameterisation, CleanImages], Lineariser] = TorchLineariser,
    checkpoint: Path | None = None,
    log: Path | None = None,
    callback: Callable[[Progress], object] | None = None,
    client: Client | None = None,
) -> FitResult:
    """Train the parameters of a model on clean images with noise of the given levels.

    Parameters
    ----------
    starts : model or sequence of models
        Where to start. Of several, which must share class and settings, the one that is best
        after the first phase goes on.
    images : CleanImages
        The clean images.
    levels : sequence of float
        Noise levels; the parameters are for all of them together.
    settings : FitSettings, optional
        Loss, penalty, phases and tolerances.
    fixed : sequence of str
        Names of parameters that keep the values of the (first) start.
    lineariser : callable
        Makes the object that computes errors and tangents.
    checkpoint : path, optional
        File that holds the state after every step. If it is there already and belongs to the
        same training, the run goes on from it.
    log : path, optional
        File that gets one line of JSON for each step.
    callback : callable, optional
        Called with a :class:`Progress` after each step.
    client : distributed.Client, optional
        A Dask cluster whose workers compute errors and tangents; see :mod:`.cluster`.
    """
    settings = settings or FitSettings()
    first = [starts] if isinstance(starts, ExplicitModel) else list(starts)
    for start in first:
        if type(start) is not type(first[0]) or start.settings() != first[0].settings():
            raise ValueError(
                f"starts must share class and settings; {start!r} differs from {first[0]!r}"
            )
    parameterisation = Parameterisation(first[0], levels, fixed)
    with contextlib.ExitStack() as stack:
        if client is None:
            derivatives = lineariser(parameterisation, images)
        else:
            derivatives = ClusterLineariser(client, lineariser, parameterisation, images)
            stack.callback(derivatives.close)
        trainer = _Trainer(
            parameterisation,
            [parameterisation.vector(start) for start in first],
            images,
            settings,
            derivatives,
            _Journal(checkpoint, log, callback, _identity(first, images, levels, fixed, settings)),
        )
        return trainer.run()


class _Trainer:
    """Runs the starts and the phases."""

    def __init__(
        self,
        parameterisation: Parameterisation,
        starts: list[Vector],
        images: CleanImages,
        settings: FitSettings,
        lineariser: Lineariser,
        journal: _Journal,
    ) -> None:
        self.parameterisation = parameterisation
        self.starts = starts
        self.images = images
        self.settings = settings
        self.lineariser = lineariser
        self.journal = journal
        self.state = journal.load() or _State(vector=starts[0].tolist())
        self._before, self._began = self.state.seconds, time.perf_counter()

    def run(self) -> FitResult:
        state = self.state
        while not state.done:
            final_loss = self._phase()
            if state.phase == 0 and len(self.starts) > 1:
                state.finished_starts.append((final_loss, state.vector))
                if len(state.finished_starts) < len(self.starts):
                    state.start += 1
                    state.vector = self.starts[state.start].tolist()
                    self._begin_anew()
                    continue
                _, state.vector = min(state.finished_starts)
            state.phase += 1
            self._begin_anew()
            state.done = state.phase == len(self.settings.phases)
            state.seconds = self._seconds()
            self.journal.save(state)
        vector = np.array(state.vector)
        items = self._items(None)
        lin = self.lineariser.linearise(vector, items)
        psnr = psnr_of_error(lin.error)
        by_level = {
            level: float(psnr[[i for i, item in enumerate(items) if item[1] == level]].mean())
            for level in self.parameterisation.levels
        }
        return FitResult(
            self.parameterisation.model(vector),
            self._objective(lin, vector, items)[0],
            float(psnr.mean()),
            by_level,
            self._seconds(),
        )

    def _seconds(self) -> float:
        """Return the time spent until now, in all runs."""
        return self._before + time.perf_counter() - self._began

    def _begin_anew(self) -> None:
        """Reset the state for the next start or phase."""
        self.state.iteration, self.state.damping, self.state.converged = 0, _State.damping, False

    def _items(self, count: int | None) -> list[Item]:
        """Return the examples of a phase: the same few images at every level, or all."""
        order = np.random.default_rng(self.settings.seed).permutation(len(self.images))
        numbers = sorted(int(n) for n in order[:count])
        return [(n, level) for level in self.parameterisation.levels for n in numbers]

    def _phase(self) -> float:
        """Run Levenberg-Marquardt on the images of one phase; return the final loss."""
        state, settings = self.state, self.settings
        items = self._items(settings.phases[state.phase])
        vector = np.array(state.vector)
        lin = self.lineariser.linearise(vector, items)
        loss, gradient, curvature = self._objective(lin, vector, items)
        while state.iteration < settings.iterations and not state.converged:
            began = time.perf_counter()
            moved = self._accepted_step(vector, loss, gradient, curvature, items)
            if moved is None:
                break
            decrease = loss - moved[1]
            vector, loss, gradient, curvature, lin = moved
            state.iteration += 1
            state.vector = vector.tolist()
            state.converged = decrease < self._tolerance(loss)
            state.seconds = self._seconds()
            self.journal.step(
                state, self._progress(vector, loss, lin, len(items), time.perf_counter() - began)
            )
        return loss

    def _tolerance(self, loss: float) -> float:
        """Smallest decrease of the loss that is worth another step."""
        last = self.state.phase == len(self.settings.phases) - 1
        unit = abs(loss) if self.settings.loss == "mse" else 1.0
        return self.settings.tolerance * unit * (1 if last else 10)

    def _accepted_step(
        self,
        vector: Vector,
        loss: float,
        gradient: NDArray[np.float64],
        curvature: NDArray[np.float64],
        items: list[Item],
    ) -> tuple[Vector, float, NDArray[np.float64], NDArray[np.float64], Linearisation] | None:
        """Return the first trial that lowers the loss, or None if none does."""
        state = self.state
        if not curvature.any():
            return None  # nothing that is free has any effect here
        for _ in range(16):
            # Marquardt's scaling. The floor holds parameters back that hardly matter; each may
            # change by a factor of e at once, whatever the others do.
            diagonal = np.diag(curvature)
            floor = 1e-6 * diagonal.max()
            damped = curvature + np.diag(state.damping * (diagonal + floor) + 1e-3 * floor)
            wanted = -np.linalg.solve(damped, gradient)
            step = np.clip(wanted, -1.0, 1.0)
            promised = -float(gradient @ step + step @ curvature @ step / 2)
            shortened = bool((step != wanted).any())
            if shortened and promised <= 0:
                # Cut to size the step points elsewhere, and even the quadratic model says: up.
                state.damping *= 4
                continue
            # Through the model, which keeps the step size within its bound.
            trial = self.parameterisation.vector(self.parameterisation.model(vector + step))
            lin = self.lineariser.linearise(trial, items)
            new = self._objective(lin, trial, items)
            if new[0] < loss:
                # Where the quadratic model holds, trust it further; where it does not, less.
                kept = (loss - new[0]) / promised
                factor = 1 / 5 if kept > 0.75 else 1.0 if kept > 0.25 else 2.0
                state.damping = max(factor * state.damping, 1e-7)
                return trial, *new, lin
            if promised < 0.1 * self._tolerance(loss) and not shortened:
                return None
            state.damping *= 4
        return None

    def _objective(
        self, lin: Linearisation, vector: Vector, items: Sequence[Item]
    ) -> tuple[float, NDArray[np.float64], NDArray[np.float64]]:
        """Return the loss with its gradient and its Gauss-Newton curvature."""
        given = dict(self.settings.level_weights)
        share = np.array([given.get(level, 1.0) for _, level in items])
        share /= share.sum()
        if self.settings.loss == "mse":
            loss = float(share @ lin.error)
            weights = share
        else:
            loss = float(-share @ psnr_of_error(lin.error))
            weights = share * DECIBELS_PER_LOGARITHM / lin.error
        gradient = 2 * weights @ lin.gradient
        curvature = 2 * np.einsum("n,npq->pq", weights, lin.curvature)
        if self.settings.penalty:
            loss += self._add_penalty(vector, gradient, curvature)
        return loss, gradient, curvature

    def _add_penalty(
        self, vector: Vector, gradient: NDArray[np.float64], curvature: NDArray[np.float64]
    ) -> float:
        """Add the smoothness penalty's derivatives in place; return its value."""
        if len(self.parameterisation.levels) != 1:
            raise ValueError("the smoothness penalty is for training at one noise level")
        model = self.parameterisation.model(vector)
        residual, derivative = smoothness(model, self.parameterisation.levels[0])
        count = derivative.shape[1] // 2
        names = [f"gammas[{i}]" for i in range(count)] + [f"lambdas[{i}]" for i in range(count)]
        jacobian = np.zeros((len(residual), len(vector)))
        for column, name in enumerate(self.parameterisation.names):
            if name in names:
                jacobian[:, column] = derivative[:, names.index(name)]
        weight = self.settings.penalty
        gradient += 2 * weight * jacobian.T @ residual
        curvature += 2 * weight * jacobian.T @ jacobian
        return float(weight * residual @ residual)

    def _progress(
        self, vector: Vector, loss: float, lin: Linearisation, count: int, seconds: float
    ) -> Progress:
        return Progress(
            levels=self.parameterisation.levels,
            start=self.state.start,
            phase=self.state.phase,
            images=count,
            iteration=self.state.iteration,
            loss=loss,
            psnr=float(psnr_of_error(lin.error).mean()),
            damping=self.state.damping,
            seconds=seconds,
            parameters=self.parameterisation.values(vector),
        )


class _Journal:
    """Writes checkpoints and the log, and calls the callback."""

    def __init__(
        self,
        checkpoint: Path | None,
        log: Path | None,
        callback: Callable[[Progress], object] | None,
        identity: str,
    ) -> None:
        self.checkpoint = checkpoint
        self.log = log
        self.callback = callback
        self.identity = identity

    def load(self) -> _State | None:
        """Return the state of an interrupted run of the same training, if there is one."""
        if self.checkpoint is None or not self.checkpoint.exists():
            return None
        try:
            document = json.loads(regular_text(self.checkpoint, _LARGEST_CHECKPOINT))
            identity, state = document["identity"], _State(**document["state"])
        except (OSError, ValueError, KeyError, TypeError, RecursionError) as error:
            raise ValueError(f"{self.checkpoint} is not a checkpoint: {error}") from error
        if identity != self.identity:
            raise ValueError(
                f"{self.checkpoint} belongs to another training (other images, start, levels or "
                "settings); remove it, or name another file"
            )
        state.finished_starts = [(loss, vector) for loss, vector in state.finished_starts]
        return state

    def save(self, state: _State) -> None:
        """Write the checkpoint atomically."""
        if self.checkpoint is None:
            return
        document = {"identity": self.identity, "state": asdict(state)}
        with atomic_write(self.checkpoint, overwrite=True) as temporary:
            temporary.write_text(json.dumps(document), encoding="utf-8")

    def step(self, state: _State, progress: Progress) -> None:
        """Record one accepted step."""
        self.save(state)
        if self.log is not None:
            with self.log.open("a", encoding="utf-8") as lines:
                lines.write(json.dumps(asdict(progress)) + "\n")
        if self.callback is not None:
            self.callback(progress)


def _identity(
    starts: Sequence[ExplicitModel],
    images: CleanImages,
    levels: Sequence[float],
    fixed: Sequence[str],
    settings: FitSettings,
) -> str:
    """Return a hash of all that determines a training."""
    parts: list[Any] = [
        [repr(start) for start in starts],
        images.fingerprint,
        [float(level) for level in levels],
        sorted(fixed),
        asdict(settings),
    ]
    return hashlib.sha256(json.dumps(parts).encode()).hexdigest()
