"""Steps on images and volumes with invalid pixels, whose blurs are walks from pixel to pixel.

A blur is a sum of Chebyshev polynomials of the walk :math:`Y`, see
:mod:`integrodiff.stages.domain`, and these do not depend on its scale. So all scales share one
sequence of walks, as long as the largest of them needs, and so do the adjoints of all scales::

    walk_there      v_i = K_i u, some walks in each launch
    ...             the flows q_i, as without a mask
    walk_back       u <- u + tau (pull (f - u) - sum_i K_i q_i), some walks in each launch

Flows and structure tensors have the kernels of :mod:`.steps`, which know from distances to invalid
pixels where derivatives and fluxes are zero.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np

from integrodiff.engines.cuda.launch import PLANES
from integrodiff.engines.cuda.steps import ImageStep, Step, VolumeStep
from integrodiff.stages import Domain
from integrodiff.stages._arrays import Array, namespace, plain
from integrodiff.stages.domain import edge_weights, walk_taps

# As in kernels/walk.cuh.
_EDGE, _START, _TAPS = 2, 5, 5 + PLANES


class _Block(NamedTuple):
    """Points of a block and walks of a launch, as in kernels/walk.cuh."""

    run: int
    groups: int
    high: int
    wide: int
    steps: int

    @property
    def core(self) -> tuple[int, int, int]:
        """Return for how many pixels it is along each axis, which are those without its margin."""
        long, margin = self.run * self.groups, 2 * self.steps
        return long - margin, self.high - margin if self.high > 1 else 1, self.wide - margin

    @property
    def threads(self) -> int:
        """Return how many threads it has: one for each run."""
        return self.groups * self.high * self.wide

    def registers(self, active: int, itemsize: int) -> int:
        """Return how many registers its threads need, for a number of scales."""
        return self.threads * (_OTHER_REGISTERS + self.run * (3 + active) * itemsize // 4)

    @property
    def shared(self) -> int:
        """Return how many numbers it shares: two images of its points."""
        return 2 * self.run * self.threads


# Of a multiprocessor, and those of a thread that do not hold values of pixels. Some threads need a
# few more, which are spilled; smaller blocks, with more margin for each pixel, would cost more.
_REGISTERS, _OTHER_REGISTERS = 2**16, 24
# The first is taken that the GPU has the registers and the memory for, or else the last. Blocks of
# the same number of dimensions take the same number of walks.
_BLOCKS = {
    2: (
        _Block(run=8, groups=10, high=1, wide=80, steps=8),
        _Block(run=8, groups=8, high=1, wide=64, steps=8),
        _Block(run=8, groups=4, high=1, wide=64, steps=8),
    ),
    3: (
        _Block(run=12, groups=1, high=16, wide=32, steps=2),
        _Block(run=8, groups=1, high=16, wide=32, steps=2),
        _Block(run=8, groups=1, high=12, wide=32, steps=2),
    ),
}


class WalkingStep(Step):
    """A step whose blurs are walks on the valid pixels."""

    domain: Domain

    def smooth(self, scales: Sequence[int]) -> dict[int, int]:
        """Smooth all scales by one sequence of walks."""
        found = {
            i: self.memory.space(("smoothed", i), self.shape) if self._radius(i) else self.image
            for i in scales
        }
        blurred = [i for i in scales if self._radius(i)]
        last = max(map(self._radius, scales), default=0)
        sequence = [self.image, 0]
        for n, walks in enumerate(self._in_launches(range(1, last + 1))):
            active = [i for i in blurred if self._radius(i) >= walks[0]]
            ends = [0, 0] if walks[-1] == last else self._pair(n)
            outputs = [found[i] for i in active]
            self._launch_walks(
                "walk_there",
                walks,
                active,
                sequence,
                only_once=1,
                output=[*outputs, *[0] * (PLANES - len(outputs)), *ends],
                numbers={_START: [self._taps[i][0] for i in active]},
            )
            sequence = ends
        return found

    def gather(self, flows: dict[int, int]) -> None:
        """Add up the smoothed flows of all scales by one sequence of walks, and take the step."""
        if not flows:  # the fidelity term alone
            flows = {0: self.memory.zeros(self.shape)}
        last = max(map(self._radius, flows))
        sequence = [0, 0]
        for n, walks in enumerate(self._in_launches(range(last, -1, -1))):
            active = [i for i in sorted(flows) if self._radius(i) >= walks[-1]]
            ends = [0, 0] if walks[-1] == 0 else self._pair(n)
            self._launch_walks(
                "walk_back",
                walks,
                active,
                sequence,
                only_once=0,
                input=[flows[i] for i in active],
                output=[self.image, *[0] * (PLANES - 1), *ends],
                numbers={0: [self.tau, self.pull]},
            )
            sequence = ends

    def _launch_walks(
        self,
        kernel: str,
        walks: Sequence[int],
        active: Sequence[int],
        sequence: Sequence[int],
        *,
        only_once: int,
        numbers: dict[int, list[float]],
        **given: Any,
    ) -> None:
        """Add some walks, by their polynomials; that of ``only_once`` is Y in place of 2 Y."""
        block = self._block(len(active))
        defines: dict[str, object] = {
            "RUN": block.run,
            "GROUPS": block.groups,
            "HIGH": block.high,
            "WIDE": block.wide,
            "STEPS": block.steps,
            "THREADS": block.threads,
            "ACTIVE": len(active),
        }
        # An image is a volume with one row in each slice.
        size = self.size if len(self.size) == 3 else (self.size[0], 1, self.size[1])
        weights = edge_weights(self.kernels.evolution.spacing)
        edges = weights if len(weights) == 3 else (weights[0], 0.0, weights[1])
        blocks = math.prod(-(-n // b) for n, b in zip(size, block.core, strict=True))
        taps = [self._taps[i][k] if k <= self._radius(i) else 0.0 for k in walks for i in active]
        self.launch(
            "walk.cuh",
            kernel,
            (self.planes * blocks, 1, 1),
            block.shared,
            defines,
            size=size,
            extra=[*sequence, self._staying, self.original],
            count=[len(walks), walks.index(only_once) if only_once in walks else -1],
            numbers={**numbers, _EDGE: list(edges), _TAPS: taps},
            **given,
        )

    def _in_launches(self, walks: range) -> list[range]:
        """Divide a sequence of walks among launches."""
        steps = _BLOCKS[len(self.size)][0].steps
        return [walks[n : n + steps] for n in range(0, len(walks), steps)]

    def _pair(self, n: int) -> list[int]:
        """Return where two images of the sequence go; the next launch reads them, and no other."""
        return [self.memory.space(("walk", n % 2, m), self.shape) for m in range(2)]

    def _radius(self, scale: int) -> int:
        """Return how many walks the blur of a scale takes."""
        return len(self._taps[scale]) - 1

    @cached_property
    def _taps(self) -> list[list[float]]:
        evolution = self.kernels.evolution
        tolerance = float(np.finfo(self.memory.precision).eps) / 2
        return [walk_taps(plain(s), tolerance, evolution.spacing) for s in evolution.scales]

    def _block(self, active: int) -> _Block:
        """Return the blocks for a number of scales."""
        itemsize = self.memory.itemsize
        *others, smallest = _BLOCKS[len(self.size)]
        fit = [one for one in others if one.registers(active, itemsize) <= _REGISTERS]
        return self.first_that_fits((one, one.shared) for one in (*fit, smallest))[0]

    @cached_property
    def _staying(self) -> int:
        """Where the diagonal of the walk is, with -1 at invalid pixels."""
        return self.memory.moved("staying", _diagonal(self.domain))


class MaskedImageStep(WalkingStep, ImageStep):
    """A step on the valid pixels of images."""


class MaskedVolumeStep(WalkingStep, VolumeStep):
    """A step on the valid voxels of volumes."""


def _diagonal(domain: Domain) -> Array:
    """Return the diagonal of the walk, with -1 at invalid pixels."""
    found = domain.staying()
    xp = namespace(found)
    valid = xp.asarray(domain.distances.pixels > 0, device=found.device)
    return xp.where(valid, found, -xp.ones_like(found))
