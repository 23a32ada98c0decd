"""Which shortcuts the compiled engine takes, and the kernels that it needs for them.

They are for a term of order one on Haar cells, or that and an anisotropic one of order two; other
processes have the first alone. Each has its error here or in ``native/``.

- Kernels are cut off where a mass of ``TRUNCATION`` is left, and normalised to sum one; those of
  wide integration scales at ``TRUNCATION_OF_INTEGRATION``.
- Scales from ``COARSE`` pixels on live on a grid of half the resolution.
- A coarse scale whose flow is bounded by ``NEGLIGIBLE`` grey levels takes part in the structure
  tensor alone, or in nothing if the same bound holds for that.
- The structure tensor of order two is smoothed on the coarse grid, from an integration scale of
  2.45 pixels on; kernels differ by less than 3e-3. Gates stay between zero and one, so no bound
  depends on it.
- The exponential has a relative error of 3e-6 (``native/simd/exponential.hpp``).

The way back from each scale stays the adjoint of the way there, so the mean is still preserved. The
norm does not grow, at a step size that is smaller by up to a few thousandths (``certificate.py``).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray
from scipy.special import ive

from integrodiff.stages import Evolution, HaarGradient, Term, discrete_gaussian, increments
from integrodiff.stages._arrays import plain

TRUNCATION = 3e-5
"""Mass of a kernel that is cut off."""

TRUNCATION_OF_LARGE = 2e-4
"""The same for kernels from ``LARGE`` pixels on, where many scales share the structure tensor."""

LARGE = 1.5

TRUNCATION_OF_MIXED = 1e-5
"""The same for all scales of processes that mix eigenvalues, whose gates are more sensitive."""

TRUNCATION_OF_INTEGRATION = 1e-6
"""The same for integration scales from ``WIDE`` pixels on, or with a mix: they reach from flat
parts of an image, where gates are open, to edges whose structure is larger by many orders of
magnitude."""

WIDE = 2.0

COARSE = 3.3
"""Smallest scale in pixels that is computed on the coarse grid."""

NEGLIGIBLE = 0.02
"""Largest effect in grey levels, in all steps together, of what is left out of a scale."""

_SAMPLING_VARIANCE = 6.0  # of the blur before every second pixel is dropped: aliases below 3e-3
_INTERPOLATION_TAPS = 8
_NARROWEST_VARIANCE = 6.0  # of an integration on the coarse grid: errors below 3e-3
_LONGEST_RADIUS = 26  # of the kernels that native/core/run.hpp allows

Taps = tuple[float, ...]
Span = tuple[float, float]
SAME_EVERYWHERE: Span = (1.0, 1.0)


@dataclass(frozen=True, kw_only=True)
class Shortcuts:
    """Kernels for the fused step, and the process without the scales that are left out."""

    evolution: Evolution
    fine: tuple[Taps, ...]
    sampling: Taps
    coarse: tuple[Taps, ...]
    interpolation: Taps


@lru_cache(maxsize=32)
def shortcuts(evolution: Evolution, span: Span = SAME_EVERYWHERE) -> Shortcuts | None:
    """Return how to take shortcuts for a process, or None if there are none for it.

    ``span`` is from the lowest to the highest noise, relative to that of the evolution.
    """
    if not _can_be_fused(evolution):
        return None
    # The bounds of what is left out are for eigenvalues as they are.
    if len(evolution.terms(0)) == 1 and not mixes_eigenvalues(evolution):
        evolution = without_negligible(evolution, span)
    scales = [plain(scale) for scale in evolution.scales]
    count = sum(scale < COARSE for scale in scales)
    fine = tuple(
        discrete_gaussian(width, truncation(evolution, width))
        for width in increments(scales[:count])
    )
    flows = any(plain(w) for term in evolution.all_terms() for w in term.flux_weights[:count])
    if not flows or max(len(taps) for taps in fine) > _LONGEST_RADIUS + 1:
        return None
    variances = [_SAMPLING_VARIANCE, *(scale**2 for scale in scales[count:])]
    coarse = tuple(every_second_tap(later - earlier) for earlier, later in pairwise(variances))
    if any(len(taps) > _LONGEST_RADIUS + 1 for taps in coarse):
        return None
    return Shortcuts(
        evolution=evolution,
        fine=fine,
        sampling=half_sample_gaussian(_SAMPLING_VARIANCE) if coarse else (),
        coarse=coarse,
        interpolation=interpolation(variances[1]) if coarse else (),
    )


def mixes_eigenvalues(evolution: Evolution) -> bool:
    """Return whether some coupling of a process gives eigenvalues a part of each other."""
    return any(plain(term.coupling.mix) for term in evolution.all_terms())


def truncation(evolution: Evolution, width: float) -> float:
    """Return the mass that is cut off a blur of some width in a process."""
    if mixes_eigenvalues(evolution):
        return TRUNCATION_OF_MIXED
    many = sum(plain(weight) > 0 for weight in evolution.terms(0)[0].coupling.weights) > 2
    return TRUNCATION_OF_LARGE if many and width >= LARGE else TRUNCATION


@dataclass(frozen=True, kw_only=True)
class VolumeShortcuts:
    """Kernels for the fused step in three dimensions, each of them for the axes (z, y, x).

    Fine scales are made from the volume itself, coarse ones from each other. An axis along which
    the first of these is narrower than ``COARSE`` voxels keeps its resolution: it has no kernels to
    the coarse grid and from there.
    """

    fine: tuple[tuple[Taps, ...], ...]
    sampling: tuple[Taps, ...]
    coarse: tuple[tuple[Taps, ...], ...]
    interpolation: tuple[Taps, ...]
    integration_radius: int | None
    """Of the longest kernel across slices that smooths the structure tensor, if there is one."""


@lru_cache(maxsize=32)
def volume_shortcuts(evolution: Evolution) -> VolumeShortcuts | None:
    """Return how to take shortcuts for a process in three dimensions; None if kernels are long."""
    scales = [plain(scale) for scale in evolution.scales]
    count = sum(scale < COARSE for scale in scales)
    if count == 0:
        return None
    many = len(scales) > 2
    fine, sampling, coarse, between = [], [], [], []
    for distance in evolution.spacing or ():
        widths = [scale / distance for scale in scales]
        halved = count < len(scales) and widths[count] >= COARSE
        fine.append(
            tuple(
                discrete_gaussian(
                    width, TRUNCATION_OF_LARGE if many and width >= LARGE else TRUNCATION
                )
                for width in widths[:count]
            )
        )
        variances = [_SAMPLING_VARIANCE if halved else 0.0, *(w**2 for w in widths[count:])]
        steps = [later - earlier for earlier, later in pairwise(variances)]
        coarse.append(
            tuple(
                every_second_tap(step) if halved else discrete_gaussian(math.sqrt(step), TRUNCATION)
                for step in steps
            )
        )
        sampling.append(half_sample_gaussian(_SAMPLING_VARIANCE) if halved else ())
        between.append(interpolation(variances[1]) if halved else ())
    smoothing = [
        volume_integration(term, evolution.spacing)
        for term in evolution.all_terms()
        if plain(term.coupling.integration_scale)
    ]
    if any(
        len(taps) > _LONGEST_RADIUS + 1 for axis in (*fine, *coarse, *smoothing) for taps in axis
    ):
        return None
    return VolumeShortcuts(
        fine=tuple(fine),
        sampling=tuple(sampling),
        coarse=tuple(coarse),
        interpolation=tuple(between),
        integration_radius=max((len(taps[0]) - 1 for taps in smoothing), default=None),
    )


def volume_integration(term: Term, spacing: Sequence[float]) -> tuple[Taps, ...]:
    """Return one half of the kernel along each axis that smooths the structure tensor."""
    scale = plain(term.coupling.integration_scale)
    mass = TRUNCATION_OF_INTEGRATION if scale >= WIDE else TRUNCATION
    return tuple(discrete_gaussian(scale / distance, mass) for distance in spacing)


def _can_be_fused(evolution: Evolution) -> bool:
    """Whether the fused step knows the terms: order one, with or without an anisotropic order two.

    Order one is that of the Haar cells. Kernels of integration scales must be short, that of order
    two wide enough for the coarse grid.
    """

    def is_first(term: Term) -> bool:
        is_haar = isinstance(term.derivatives, HaarGradient)
        return is_haar and len(integration_kernel(term)) <= _LONGEST_RADIUS + 1

    def is_second(term: Term) -> bool:
        is_hessian = term.derivatives.order == 2 and term.coupling.kind == "tensor"
        wide = plain(term.coupling.integration_scale) ** 2 >= _NARROWEST_VARIANCE
        return is_hessian and wide and len(coarse_integration(term)) <= _LONGEST_RADIUS + 1

    known = all(
        is_first(terms[0]) and all(is_second(term) for term in terms[1:2])
        for terms in evolution.schedule
    )
    counts = {len(terms) for terms in evolution.schedule}
    return known and counts in ({1}, {2})


def is_integrated(evolution: Evolution) -> bool:
    """Return whether some structure tensor of a process is smoothed."""
    return any(plain(term.coupling.integration_scale) for term in evolution.all_terms())


def integration_kernel(term: Term) -> Taps:
    """Return one half of the kernel that smooths a structure tensor of order one."""
    scale = plain(term.coupling.integration_scale)
    sensitive = scale >= WIDE or plain(term.coupling.mix) != 0
    return discrete_gaussian(scale, TRUNCATION_OF_INTEGRATION if sensitive else TRUNCATION)


def coarse_integration(term: Term) -> Taps:
    """Return one half of the kernel that smooths a structure tensor on the coarse grid."""
    return between_binomials(plain(term.coupling.integration_scale) ** 2)


def without_negligible(evolution: Evolution, span: Span = SAME_EVERYWHERE) -> Evolution:
    """Leave out the coarsest scales, or their flows, as long as the effect is negligible."""
    while len(evolution.scales) > 1 and sum(effects_of_coarsest(evolution, span)) <= NEGLIGIBLE:
        evolution = _without_coarsest(evolution)
    if len(evolution.scales) > 1 and effects_of_coarsest(evolution, span)[0] <= NEGLIGIBLE:
        return replace(evolution, schedule=_changed(evolution, _without_last_flow))
    return evolution


def with_same_left_out(evolution: Evolution, example: Evolution) -> Evolution:
    """Omit the scales and flows that :func:`without_negligible` omitted from ``example``."""
    if len(evolution.terms(0)) > 1:
        return evolution
    while len(evolution.scales) > len(example.scales):
        evolution = _without_coarsest(evolution)
    if not any(plain(term.flux_weights[-1]) for (term,) in example.schedule):
        return replace(evolution, schedule=_changed(evolution, _without_last_flow))
    return evolution


def effects_of_coarsest(evolution: Evolution, span: Span = SAME_EVERYWHERE) -> tuple[float, float]:
    r"""Return bounds in grey levels for what the coarsest scale does in all steps.

    The first is for its flow. Components of :math:`D_i \nabla v_i` along the eigenvectors of J,
    whose eigenvalues are at least the coupling weight c times their squares, are at most
    :math:`\max_a a\, e^{-c a^2 / (2\lambda^2)} = \lambda / \sqrt{e c}`. The blur's derivative
    has the absolute sum :math:`\sqrt{2/\pi} / \sigma`.

    The second is for its part in the structure tensor, which changes the diffusivities of the other
    scales by at most :math:`c |\nabla v|^2 / (2 \lambda_j^2)`. The gradient is at most
    :math:`255 / (\sqrt{2 \pi} \sigma)`, where a step from black to white is smoothed.

    With an integration scale, only the share of the middle of its kernel is certain to be in J.

    Where the noise differs, so do the contrasts: the highest are for the flows, and the lowest for
    the diffusivities.
    """
    quietest, loudest = span
    scales = [plain(scale) for scale in evolution.scales]
    if scales[-1] < 1:
        return math.inf, math.inf
    flow = coupling = 0.0
    for step in range(evolution.steps):
        (term,) = evolution.terms(step)
        bounds = [_flow_bound(term, i, scale, loudest) for i, scale in enumerate(scales)]
        share = plain(term.coupling.weights[-1]) * (255 / scales[-1]) ** 2 / (2 * math.pi)
        flow += bounds[-1]
        coupling += sum(
            bound * min(1.0, share / (2 * (quietest * plain(contrast)) ** 2))
            for bound, contrast in zip(bounds[:-1], term.diffusivity.contrasts[:-1], strict=True)
            if share > 0
        )
    return flow * plain(evolution.tau), coupling * plain(evolution.tau)


def _flow_bound(term: Term, i: int, scale: float, loudest: float) -> float:
    """Return a bound for the flow of one scale, see :func:`effects_of_coarsest`."""
    weight = plain(term.flux_weights[i])
    coupling = plain(term.coupling.weights[i]) * integration_kernel(term)[0] ** 2
    if weight == 0:
        return 0.0
    if coupling == 0:
        return math.inf
    derivative = min(2.0, math.sqrt(2 / math.pi) / scale) if scale else 2.0
    gradient = (
        weight * loudest * plain(term.diffusivity.contrasts[i]) / math.sqrt(math.e * coupling)
    )
    twist = weight * 255 * derivative**2 / 4  # E of an image within the grey range
    return 2 * gradient * derivative + twist * derivative**2 / 2


def _without_coarsest(evolution: Evolution) -> Evolution:
    """Return the process without its coarsest scale."""
    shortened = _changed(evolution, _shortened)
    return replace(evolution, scales=evolution.scales[:-1], schedule=shortened)


def _changed(evolution: Evolution, change: Callable[[Term], Term]) -> tuple[tuple[Term, ...], ...]:
    """Return the schedule with all terms changed."""
    return tuple(tuple(change(term) for term in terms) for terms in evolution.schedule)


def _without_last_flow(term: Term) -> Term:
    """Return the term with the last scale in its coupling alone."""
    return replace(term, flux_weights=(*term.flux_weights[:-1], 0.0))


def _shortened(term: Term) -> Term:
    """Return the term without its last scale."""
    return replace(
        term,
        coupling=replace(term.coupling, weights=term.coupling.weights[:-1]),
        flux_weights=term.flux_weights[:-1],
        diffusivity=replace(term.diffusivity, contrasts=term.diffusivity.contrasts[:-1]),
    )


@lru_cache(maxsize=64)
def every_second_tap(variance: float) -> Taps:
    """Return one half of the discrete Gaussian for samples that are two pixels apart.

    On images without frequencies above a quarter of the sampling rate it is the Gaussian itself.
    """
    longest = math.ceil(variance + 12 * math.sqrt(variance) + 30)
    taps = np.asarray(2 * ive(np.arange(0, longest, 2), variance), np.float64)
    return _cut(taps, centred=True)


@lru_cache(maxsize=64)
def between_binomials(variance: float) -> Taps:
    r"""Return one half of the kernel for samples two pixels apart that makes a Gaussian of three.

    The other two are the way to the samples, binomial means of eight pixels with the symbol
    :math:`B(\omega) = \cos^7(\omega / 2)`, and its adjoint, the way back. To each frequency of the
    samples belong :math:`\omega` and :math:`\pi - \omega` of the pixels. The square error there is
    smallest for the symbol :math:`(B^2 G + \tilde B^2 \tilde G) / (B^2 + \tilde B^2)^2`, and
    increases with the square of :math:`B^2 + \tilde B^2`. No tap is negative, so that tensors stay
    semidefinite.
    """
    frequencies = (np.arange(256) + 0.5) * (np.pi / 512)
    passing, images = np.cos(frequencies / 2) ** 14, np.sin(frequencies / 2) ** 14
    smoothed = np.exp(variance * (np.cos(frequencies) - 1))
    aliased = np.exp(-variance * (np.cos(frequencies) + 1))
    wanted = (passing * smoothed + images * aliased) / (passing + images)
    used = np.arange(math.ceil(2.5 * math.sqrt(variance)) + 1)
    while True:
        cosines = np.where(used, 2, 1) * np.cos(np.outer(2 * frequencies, used))
        found = np.linalg.lstsq((passing + images)[:, None] * cosines, wanted, rcond=None)[0]
        if found.min() >= 0:
            break
        used = used[found > 0]
    taps = np.zeros(used[-1] + 1)
    taps[used] = found
    return _cut(taps, centred=True, mass=TRUNCATION_OF_INTEGRATION)


@lru_cache(maxsize=64)
def half_sample_gaussian(variance: float) -> Taps:
    """Return one half of the discrete Gaussian halfway between the pixels."""
    frequencies = (np.arange(4096) + 0.5) * (np.pi / 4096)
    symbol = np.exp(variance * (np.cos(frequencies) - 1))
    distances = np.arange(math.ceil(12 * math.sqrt(variance) + 8)) + 0.5
    return _cut(np.cos(np.outer(distances, frequencies)) @ symbol / 4096, centred=False)


@lru_cache(maxsize=64)
def interpolation(variance: float) -> Taps:
    """Return one half of the kernel that interpolates between samples two pixels apart.

    Of its length it has the smallest mean square error in the gradients of white noise that was
    smoothed with a variance. Constant images come out exact.
    """
    frequencies = np.linspace(0, np.pi / 2, 1001)
    distances = np.arange(_INTERPOLATION_TAPS) + 0.5

    def response(angles: NDArray[np.float64]) -> NDArray[np.float64]:
        return 2 * np.cos(np.outer(angles, distances))

    # Frequencies should pass, and their images beyond pi/2 should not.
    smoothed = np.exp(variance * (np.cos(frequencies) - 1))
    passing = (frequencies + 0.02) * smoothed
    images = (np.pi - frequencies) * smoothed
    constant = 1e4
    rows = np.vstack(
        [
            passing[:, None] * response(frequencies),
            images[:, None] * response(np.pi - frequencies),
            constant * response(np.zeros(1)),
        ]
    )
    wanted = np.concatenate([2 * passing, 0 * images, [2 * constant]])
    taps = np.linalg.lstsq(rows, wanted, rcond=None)[0]
    # Each of the two phases has to sum to one: taps at even and odd distances do so together.
    return tuple((taps / taps.sum()).tolist())


def _cut(taps: NDArray[np.float64], *, centred: bool, mass: float = TRUNCATION) -> Taps:
    """Drop a tail of some mass from half a kernel and normalise the rest."""
    beyond = 2 * (np.cumsum(np.abs(taps[::-1]))[::-1] - np.abs(taps))
    kept = taps[: int(np.argmax(beyond <= mass)) + 1]
    whole = 2 * kept.sum() - (kept[0] if centred else 0.0)
    return tuple((kept / whole).tolist())
