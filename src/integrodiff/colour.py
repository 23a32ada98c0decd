r"""How the channels of an image are denoised: together, apart, or as luminance and colours.

``opponent``, for red, green and blue, takes the luminance, the mean of the three, as a grey image
of its own; averaging has already divided its noise by :math:`\sqrt 3`. The two colour differences

.. math:: (R - B) / \sqrt 2, \qquad (R - 2 G + B) / \sqrt 6

are a second image of two channels that share a structure tensor. They keep the noise level of the
channels, but have far less contrast than the image, so that noise and structure are told apart
much better than in the sum of both, where strong noise in the colours blurs fine grey detail.
docs/noise.md has the measurement.

``joint`` gives all channels one structure tensor, and ``separate`` each its own. Channels of a
group with different noise levels are brought to the same one by factors.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal, TypeAlias

import numpy as np
from numpy.typing import NDArray

from integrodiff._checks import one_of

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
        Which of the new samples.
    sigma : float
        Their common noise level.
    """

    samples: slice
    sigma: float


@dataclass(frozen=True, kw_only=True, eq=False)
class ColourSpace:
    """A linear map of the channels, and the groups of new channels.

    Attributes
    ----------
    forward, backward : ndarray
        From the channels to the new ones, and back.
    groups : tuple of Group
        To denoise, in this order. A new channel without noise is in none of them.
    """

    forward: NDArray[np.float64]
    backward: NDArray[np.float64]
    groups: tuple[Group, ...]

    def separated(self, image: FloatImage) -> FloatImage:
        """Return the new channels; the first axis is that of the channels."""
        return _mixed(self.forward, image)

    def mixed(self, image: FloatImage) -> FloatImage:
        """Return the channels of the image again."""
        return _mixed(self.backward, image)


def colour_space(colour: Colour, sigmas: NDArray[np.float64]) -> ColourSpace:
    """Return how to denoise channels of these noise levels.

    Raises
    ------
    ValueError
        If ``colour`` is unknown, or not for this number of channels.
    """
    count = len(sigmas)
    one_of("colour", colour, COLOURS)
    if colour == "auto":
        colour = "opponent" if count == 3 else "joint"
    if colour == "opponent":
        if count != 3:
            raise ValueError(
                f"colour 'opponent' is for red, green and blue, and this image has {count} "
                "channel(s); take 'joint' or 'separate'"
            )
        return _space(_OPPONENT, (slice(0, 1), slice(1, 3)), sigmas)
    if colour == "joint":
        return _space(np.eye(count), (slice(0, count),), sigmas)
    return _space(np.eye(count), tuple(slice(i, i + 1) for i in range(count)), sigmas)


def _space(
    matrix: NDArray[np.float64], members: tuple[slice, ...], sigmas: NDArray[np.float64]
) -> ColourSpace:
    """Scale the new channels of each group to a common noise level."""
    levels = np.sqrt(matrix**2 @ sigmas**2)
    factors, groups = np.ones(len(levels)), []
    for rows in members:
        if not levels[rows].any():
            continue
        if (levels[rows] == 0).any():
            raise ValueError(
                "a channel without noise cannot share its structure tensor with noisy ones; "
                "leave it out, or take colour 'separate'"
            )
        common = float(np.sqrt(np.mean(levels[rows] ** 2)))
        factors[rows] = common / levels[rows]
        groups.append(Group(samples=rows, sigma=common))
    forward = factors[:, None] * matrix
    backward = np.linalg.inv(forward).astype(np.float64)
    return ColourSpace(forward=forward, backward=backward, groups=tuple(groups))


def _mixed(matrix: NDArray[np.float64], image: FloatImage) -> FloatImage:
    if np.array_equal(matrix, np.eye(len(matrix))):
        return image
    return np.tensordot(matrix.astype(image.dtype), image, axes=1)
