"""Images with invalid pixels on their way through an engine that computes with array operations."""

from __future__ import annotations

from integrodiff.stages import Domain, Evolution
from integrodiff.stages._arrays import Array, namespace
from integrodiff.stages.domain import flux_reach


class Masked:
    """The mask of an image, where the image is.

    Parameters
    ----------
    mask : array of bool
        True at valid pixels; NumPy's, or of the image's library and device.
    image : array
        The image, or one of its kind, dtype and device.
    evolution : Evolution
        What is computed.

    Attributes
    ----------
    domain : Domain
        The valid pixels.
    """

    def __init__(self, mask: Array, image: Array, evolution: Evolution) -> None:
        # Moved first: distances are found where the image is.
        self.valid = namespace(image).asarray(mask, device=image.device)
        self.domain = Domain(self.valid, image, evolution.spacing, _farthest(evolution))

    def cleared(self, image: Array) -> Array:
        """Return the image with zeros in place of invalid values, which may be NaN."""
        xp = namespace(image)
        return xp.where(self.valid, image, xp.zeros_like(image))

    def restored(self, image: Array, given: Array) -> Array:
        """Return a copy of an image with invalid values as they were given."""
        return namespace(image).where(self.valid, image, given)


def _farthest(evolution: Evolution) -> int:
    """Return the distance beyond which invalid pixels have no effect on a step."""
    return 2 + max(
        term.derivatives.radius + flux_reach(term.derivatives, scale)
        for term in evolution.all_terms()
        for scale in evolution.scales
    )
