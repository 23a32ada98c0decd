r"""Colour spaces: which samples of a pixel share a structure tensor.

``opponent``, for red, green and blue, denoises the luminance, the mean of the three, as a grey
image; its noise is smaller by :math:`\sqrt 3`. The two colour differences

.. math:: (R - B) / \sqrt 2, \qquad (R - 2 G + B) / \sqrt 6

form a second image of two samples that share a structure tensor. They have the noise level of the
samples but much less contrast. With one tensor for all three, colour noise would blur fine detail
of the luminance; docs/noise.md has the measurements.

``joint`` computes one structure tensor from all samples, ``separate`` one from each. Samples of a
group whose noise levels differ are scaled to a common level, the harmonic mean of the variances. So
errors relative to the noise count alike, in whatever units the samples are; the sample with most
noise may lose by it, since all follow the structure that the others show.

A sample without noise, such as an empty one, belongs to no group and is returned as it is.
``auto`` therefore does not mix it with others: then the noisy samples of three are ``joint``.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal, TypeAlias

import numpy as np
from numpy.typing import NDArray

from integrodiff._checks import one_of
from integrodiff.namespaces import Array, is_numpy, namespace, unit_of_squares

Colour: TypeAlias = Literal["auto", "opponent", "joint", "separate"]
COLOURS = ("auto", "opponent", "joint", "separate")

FloatImage: TypeAlias = NDArray[np.floating[Any]]

_OPPONENT = np.array(
    [
        np.array([1, 1, 1]) / 3,
        np.array([1, 0, -1]) / np.sqrt(2),
        np.array([1, -2, 1]) / np.sqrt(6),
    ]
)


@dataclass(frozen=True, kw_only=True)
class Group:
    """Samples in a colour space that are denoised with one structure tensor.

    Attributes
    ----------
    samples : slice
        Indices of the new samples.
    rows : tuple of int
        Rows of :func:`sample_matrix` that they come from.
    sigma : float
        Their common noise level.
    """

    samples: slice
    rows: tuple[int, ...]
    sigma: float


@dataclass(frozen=True, kw_only=True, eq=False)
class ColourSpace:
    """A linear map of the samples, and groups of the new samples.

    Attributes
    ----------
    forward, backward : ndarray
        Matrices from the samples to the new ones, and back.
    groups : tuple of Group
        Groups to denoise, in this order. Samples without noise belong to none, and are the last.
    """

    forward: NDArray[np.float64]
    backward: NDArray[np.float64]
    groups: tuple[Group, ...]

    def separated(self, image: Array) -> Array:
        """Return the new samples; the first axis is that of the samples."""
        return _mixed(self.forward, image)

    def mixed(self, image: Array) -> Array:
        """Undo :meth:`separated`."""
        return _mixed(self.backward, image)


def colour_for(colour: Colour, sigmas: NDArray[np.float64]) -> Colour:
    """Return how samples with these noise levels are denoised, if ``colour`` leaves it open.

    Where some have no noise, the others are denoised jointly, so that nothing of them gets there.
    """
    if colour == "auto" and sigmas.any() and not sigmas.all():
        return "joint"
    return colour


def sample_matrix(colour: Colour, count: int) -> NDArray[np.float64]:
    """Return the matrix from the samples to those that are denoised, before any scaling.

    Raises
    ------
    ValueError
        If ``colour`` is unknown or does not fit the number of samples.
    """
    one_of("colour", colour, COLOURS)
    if colour == "opponent" and count != 3:
        raise ValueError(
            f"colour 'opponent' needs three samples, red, green and blue, and this image has "
            f"{count}; use 'joint' or 'separate'"
        )
    is_opponent = colour == "opponent" or (colour == "auto" and count == 3)
    return _OPPONENT if is_opponent else np.eye(count)


def new_levels(colour: Colour, sigmas: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return the noise levels of the new samples if the noise of the samples is independent."""
    unit = unit_of_squares(float(sigmas.max()))
    return np.asarray(
        unit * np.sqrt(sample_matrix(colour, len(sigmas)) ** 2 @ (sigmas / unit) ** 2)
    )


def colour_space(colour: Colour, levels: NDArray[np.float64]) -> ColourSpace:
    """Return the colour space for new samples with these noise levels; see :func:`new_levels`.

    Raises
    ------
    ValueError
        If ``colour`` is unknown or does not fit the number of samples.
    """
    count = len(levels)
    matrix = sample_matrix(colour, count)
    if matrix is _OPPONENT:
        return _space(matrix, (slice(0, 1), slice(1, 3)), levels)
    if colour == "separate":
        return _space(matrix, tuple(slice(i, i + 1) for i in range(count)), levels)
    return _space(matrix, (slice(0, count),), levels)


def _space(
    matrix: NDArray[np.float64], members: tuple[slice, ...], levels: NDArray[np.float64]
) -> ColourSpace:
    """Scale the new samples of each group to a common noise level; put those without noise last."""
    factors, groups = np.ones(len(levels)), []
    order: list[int] = []
    for candidates in members:
        rows = [n for n in range(len(levels))[candidates] if levels[n] > 0]
        if not rows:
            continue
        # So structure that the samples share has on average the contrast that it had. With the
        # root mean square it would be larger, and laws of the noise level would not fit.
        unit = unit_of_squares(float(levels[rows].min()))
        common = float(unit / np.sqrt(np.mean((levels[rows] / unit) ** -2.0)))
        factors[rows] = common / levels[rows]
        samples = slice(len(order), len(order) + len(rows))
        groups.append(Group(samples=samples, rows=tuple(rows), sigma=common))
        order += rows
    order += [n for n in range(len(levels)) if n not in order]
    forward = (factors[:, None] * matrix)[order]
    backward = np.linalg.inv(forward).astype(np.float64)
    return ColourSpace(forward=forward, backward=backward, groups=tuple(groups))


def _mixed(matrix: NDArray[np.float64], image: Array) -> Array:
    if np.array_equal(matrix, np.eye(len(matrix))):
        return image
    if is_numpy(image):
        return np.tensordot(matrix.astype(image.dtype), image, axes=1)
    # On a GPU matrix products may be set to a lower precision.
    rows = [sum(float(weight) * image[n] for n, weight in enumerate(row)) for row in matrix]
    return namespace(image).stack(rows)
