"""What the options of commands say about the noise of an image, and what they leave open."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Annotated, Any

import typer

from integrodiff.cli._terminal import ExitCode, stop, stopping

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from integrodiff.noise.photons import PoissonGaussian

Sigma = Annotated[
    float | None,
    typer.Option(
        metavar="S",
        help="Standard deviation of the noise, in the grey levels of the image. Estimated for "
        "every channel if it is not given.",
        show_default=False,
    ),
]
SigmaMap = Annotated[
    str | None,
    typer.Option(
        metavar="FILE",
        help="Where the noise is not the same everywhere: an image of its standard deviation at "
        "each pixel, in place of --sigma.",
        show_default=False,
    ),
]
NoiseKind = Annotated[
    str,
    typer.Option(
        metavar="gaussian|poisson|poisson-gaussian",
        help="Noise of one level everywhere; photon counts; or a detector with gain, offset and "
        "readout noise, estimated if --gain is not given.",
    ),
]
Gain = Annotated[
    float | None, typer.Option(metavar="G", help="Grey levels for each photon.", show_default=False)
]
Offset = Annotated[
    float | None, typer.Option(metavar="O", help="Grey value without light.", show_default=False)
]
Readout = Annotated[
    float | None,
    typer.Option(
        metavar="R", help="Noise of the detector without light, in grey levels.", show_default=False
    ),
]

# An estimate from more pages takes longer, and is hardly better.
_MOST_PAGES = 9


@dataclass(frozen=True, kw_only=True)
class NoiseFound:
    """The noise of an image, complete.

    Attributes
    ----------
    sigma : tuple of float, optional
        Noise level of each channel, if the noise is Gaussian; with a map, the root mean square.
    sigma_map : ndarray, optional
        Noise level of each pixel.
    photons : PoissonGaussian, optional
        The detector, if it counts photons.
    estimated : bool
        Whether the image said so, and not the user.
    """

    sigma: tuple[float, ...] | None = None
    sigma_map: NDArray[Any] | None = field(default=None, compare=False, repr=False)
    photons: PoissonGaussian | None = None
    estimated: bool = False

    def arguments(self, channel_axis: int | None) -> dict[str, Any]:
        """Return the arguments of ``integrodiff.denoise``."""
        if self.photons is not None:
            return {"noise": self.photons}
        if self.sigma_map is not None:
            return {"sigma": self.sigma_map}
        levels = self.sigma or ()
        return {"sigma": levels[0] if channel_axis is None else levels}

    def __str__(self) -> str:
        if self.photons is not None:
            numbers = {name: getattr(self.photons, name) for name in ("gain", "offset", "readout")}
            text = ", ".join(f"{name} {value:.4g}" for name, value in numbers.items())
        elif self.sigma_map is not None:
            text = f"sigma {self.sigma_map.min():.4g} to {self.sigma_map.max():.4g}"
        else:
            values = dict.fromkeys(f"{value:.4g}" for value in self.sigma or ())
            text = f"sigma {', '.join(values)}"
        return f"{text} (estimated)" if self.estimated else text


@dataclass(frozen=True, kw_only=True)
class NoiseOptions:
    """The noise as far as the options say it."""

    sigma: float | None = None
    sigma_map: str | None = None
    kind: str = "gaussian"
    gain: float | None = None
    offset: float | None = None
    readout: float | None = None

    def check(self) -> None:
        """Refuse options that contradict each other, and impossible numbers."""
        from integrodiff._checks import nonnegative_number, one_of
        from integrodiff._given_noise import NOISES

        with stopping(ExitCode.USAGE, ValueError, TypeError):
            one_of("--noise", self.kind, NOISES)
            if self.sigma is not None:
                nonnegative_number("sigma", self.sigma)
            self._known_detector()
        given = {"--gain": self.gain, "--offset": self.offset, "--readout": self.readout}
        named = [name for name, value in given.items() if value is not None]
        if named and self.kind != "poisson-gaussian":
            stop(ExitCode.USAGE, f"{', '.join(named)} needs --noise poisson-gaussian")
        if self.readout is not None and self.gain is None:
            stop(ExitCode.USAGE, "--readout needs --gain; without both they are estimated")
        levels = {"--sigma": self.sigma, "--sigma-map": self.sigma_map}
        named = [name for name, value in levels.items() if value is not None]
        if named and self.kind != "gaussian":
            stop(ExitCode.USAGE, f"{named[0]} is for Gaussian noise, not for --noise {self.kind}")
        if len(named) > 1:
            stop(ExitCode.USAGE, "give --sigma or --sigma-map, not both")
        if self.sigma_map is not None:
            _read_map(self.sigma_map)

    def pages_wanted(self, count: int) -> frozenset[int]:
        """Return which of the pages an estimate is made from; none if nothing is left open."""
        import numpy as np

        known = self.sigma, self.sigma_map, self.gain
        if any(value is not None for value in known) or self.kind == "poisson":
            return frozenset()
        return frozenset(np.linspace(0, count - 1, min(count, _MOST_PAGES)).astype(int).tolist())

    def found(
        self, pages: Iterable[NDArray[Any]], channel_axis: int | None, channels: int
    ) -> NoiseFound:
        """Return the noise; what is left open is estimated from the wanted pages, taken in turn."""
        import numpy as np

        from integrodiff import PoissonGaussian, estimate_sigma

        if self.kind == "poisson":
            return NoiseFound(photons=PoissonGaussian())
        known = self._known_detector()
        if known is not None:
            return NoiseFound(photons=known)
        if self.sigma is not None:
            return NoiseFound(sigma=(self.sigma,) * channels)
        if self.sigma_map is not None:
            levels, mean = _read_map(self.sigma_map)
            return NoiseFound(sigma=(mean,) * channels, sigma_map=levels)
        with stopping(ExitCode.USAGE, ValueError):
            if self.kind == "poisson-gaussian":
                return self._estimated_detector(np.stack(list(pages)), channel_axis)
            estimates = [
                np.atleast_1d(estimate_sigma(page, channel_axis=channel_axis)) for page in pages
            ]
        middle = np.median(np.stack(estimates), axis=0)
        return NoiseFound(sigma=tuple(float(level) for level in middle), estimated=True)

    def _known_detector(self) -> PoissonGaussian | None:
        """Return the detector, if its gain is given."""
        from integrodiff import PoissonGaussian

        if self.gain is None:
            return None
        offset, readout = self.offset or 0.0, self.readout or 0.0
        return PoissonGaussian(gain=self.gain, offset=offset, readout=readout)

    def _estimated_detector(self, pages: NDArray[Any], channel_axis: int | None) -> NoiseFound:
        """Return the detector that the pages, laid side by side, say."""
        import numpy as np

        from integrodiff import estimate_poisson_gaussian

        # Pages become further channels, which are taken to have the same noise.
        channels = pages if channel_axis is None else np.moveaxis(pages, channel_axis, 1)
        stacked = channels.reshape(-1, *channels.shape[-2:])
        found = estimate_poisson_gaussian(stacked, channel_axis=0, offset=self.offset)
        return NoiseFound(photons=found, estimated=True)


def _read_map(path: str) -> tuple[NDArray[Any], float]:
    """Return the noise level of each pixel from an image file, and their root mean square."""
    from integrodiff._given_noise import split_map
    from integrodiff.errors import ImageFileError
    from integrodiff.io import read_image

    with stopping(ExitCode.INPUT, ImageFileError):
        image = read_image(path)
    if image.pixels.ndim != 2 or image.alpha is not None:
        stop(
            ExitCode.INPUT,
            f"{path}: a map of noise levels is one grey image, and this is {image.header.kind} of "
            f"{image.header.pages} page(s)",
        )
    try:
        mean, _ = split_map(image.pixels)
    except ValueError as error:
        stop(ExitCode.INPUT, f"{path}: {error}")
    return image.pixels, mean
