r"""Errors and tangents on the workers of a Dask cluster.

The clean images go to every worker once. What travels then are the parameters and the numbers of
the examples of a batch, and back come the errors, the vectors :math:`T^\top r` and the normal
matrices :math:`T^\top T` of its examples: 8 (1 + p + p^2) bytes for each, with p parameters. No
image and no tangent does. They are the numbers that one machine computes, in the same order, so
that a training is the same up to what other batches round differently.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from integrodiff.blocks.cluster import OnWorkers
from integrodiff.learning.images import CleanImages
from integrodiff.learning.parameters import Parameterisation, Vector
from integrodiff.learning.tangents import Item, Linearisation, Lineariser

if TYPE_CHECKING:
    from distributed import Client

BATCH = 8
"""Examples of a task."""


class ClusterLineariser:
    """Distributes examples over the workers of a cluster.

    Parameters
    ----------
    client : distributed.Client
        The cluster.
    lineariser : callable
        Makes the object that computes errors and tangents on a worker.
    parameterisation : Parameterisation
        The model and its free parameters.
    images : CleanImages
        The clean images.
    """

    def __init__(
        self,
        client: Client,
        lineariser: Callable[[Parameterisation, CleanImages], Lineariser],
        parameterisation: Parameterisation,
        images: CleanImages,
    ) -> None:
        self._workers: OnWorkers[Any, Any] = OnWorkers(
            client, _OnWorker(lineariser, parameterisation, images)
        )

    def linearise(self, vector: Vector, items: Sequence[Item]) -> Linearisation:
        """Return errors and derivatives, a batch for each task."""
        batches = [
            (start, vector, items[start : start + BATCH]) for start in range(0, len(items), BATCH)
        ]
        parts = dict(self._workers.results([batch] for batch in batches))
        columns = zip(*(parts[start] for start, _, _ in batches), strict=True)
        return Linearisation(*(np.concatenate(column) for column in columns))

    def close(self) -> None:
        """Take the images away from the workers."""
        self._workers.close()


class _OnWorker:
    """What a worker holds: the images, and from the first batch on a lineariser."""

    def __init__(
        self,
        lineariser: Callable[[Parameterisation, CleanImages], Lineariser],
        parameterisation: Parameterisation,
        images: CleanImages,
    ) -> None:
        self._make = lineariser
        self._arguments = parameterisation, images
        self._lineariser: Lineariser | None = None
        self._lock = threading.Lock()

    def __getstate__(self) -> tuple[Any, ...]:
        return self._make, *self._arguments

    def __setstate__(self, state: tuple[Any, ...]) -> None:
        self.__init__(*state)  # type: ignore[misc]

    def __call__(self, batch: tuple[int, Vector, Sequence[Item]]) -> tuple[int, tuple[Any, ...]]:
        start, vector, items = batch
        # A lineariser holds what belongs to one batch, and takes all processors for it.
        with self._lock:
            if self._lineariser is None:
                self._lineariser = self._make(*self._arguments)
            found = self._lineariser.linearise(vector, items)
        return start, (found.error, found.gradient, found.curvature)
