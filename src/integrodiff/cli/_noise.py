"""Options that describe the noise of an image."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from integrodiff.cli._terminal import ExitCode, stop, stopping

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from integrodiff import PoissonGaussian

Sigma = Annotated[
    str | None,
    typer.Option(
        metavar="S|SCALE:S,...|map",
        help="Standard deviation of the noise, in grey levels of the image. For noise that is "
        "correlated between pixels, levels for scales in pixels, such as 0.5:10,2:25. If not "
        "given, the noise is estimated for each channel; map estimates how it varies over the "
        "image.",
        show_default=False,
    ),
]
NoisePsd = Annotated[
    str | None,
    typer.Option(
        metavar="FILE",
        help="Matrix with the power spectrum of the noise, an NPY or image file: the expectation "
        "of the squared absolute values of its Fourier transform, as in BM3D. Replaces --sigma.",
        show_default=False,
    ),
]
SigmaMap = Annotated[
    str | None,
    typer.Option(
        metavar="FILE",
        help="Image with the standard deviation of the noise at each pixel, for noise that varies "
        "over the image. Replaces --sigma.",
        show_default=False,
    ),
]
NoiseKind = Annotated[
    str,
    typer.Option(
        metavar="gaussian|poisson|poisson-gaussian|rician",
        help="Noise model: additive Gaussian noise; photon counts; a detector with gain, offset "
        "and readout noise, which are estimated if --gain is not given; or Rician noise, that of "
        "magnitudes in MRI.",
    ),
]
Gain = Annotated[
    float | None,
    typer.Option(metavar="G", help="Detector gain: grey levels per photon.", show_default=False),
]
Offset = Annotated[
    float | None,
    typer.Option(
        metavar="O", help="Detector offset: grey value without light.", show_default=False
    ),
]
Readout = Annotated[
    float | None,
    typer.Option(
        metavar="R",
        help="Readout noise: standard deviation without light, in grey levels.",
        show_default=False,
    ),
]


@dataclass(frozen=True, kw_only=True)
class NoiseOptions:
    """Values of the noise options."""

    sigma: str | None = None
    sigma_map: str | None = None
    noise_psd: str | None = None
    kind: str = "gaussian"
    gain: float | None = None
    offset: float | None = None
    readout: float | None = None

    def check(self) -> None:
        """Refuse contradictory options and invalid numbers."""
        from integrodiff._checks import one_of
        from integrodiff.request import NOISES

        with stopping(ExitCode.USAGE, ValueError, TypeError):
            one_of("--noise", self.kind, NOISES)
            self._sigma()
            self._known_detector()
        given = {"--gain": self.gain, "--offset": self.offset, "--readout": self.readout}
        named = [name for name, value in given.items() if value is not None]
        if named and self.kind != "poisson-gaussian":
            stop(ExitCode.USAGE, f"{', '.join(named)} needs --noise poisson-gaussian")
        if self.readout is not None and self.gain is None:
            stop(ExitCode.USAGE, "--readout needs --gain; leave out both to estimate them")
        levels = {
            "--sigma": self.sigma,
            "--sigma-map": self.sigma_map,
            "--noise-psd": self.noise_psd,
        }
        named = [name for name, value in levels.items() if value is not None]
        if named and self.kind not in ("gaussian", "rician"):
            stop(
                ExitCode.USAGE,
                f"{named[0]} describes Gaussian noise and cannot be used with --noise {self.kind}",
            )
        if len(named) > 1:
            stop(ExitCode.USAGE, f"give {' or '.join(named)}, not both")

    def arguments(self) -> dict[str, Any]:
        """Return ``sigma`` and ``noise`` as arguments of :class:`integrodiff.Denoiser`."""
        from integrodiff import UnknownDetector

        if self.sigma_map is not None:
            return {"sigma": _read_map(self.sigma_map), "noise": self.kind}
        if self.noise_psd is not None:
            return {"noise_psd": _read_spectrum(self.noise_psd), "noise": self.kind}
        if self.kind == "poisson-gaussian":
            known = self._known_detector()
            return {"noise": UnknownDetector(offset=self.offset) if known is None else known}
        return {"sigma": self._sigma(), "noise": self.kind}

    @property
    def files(self) -> list[Path]:
        """Files that describe the noise."""
        return [Path(name) for name in (self.sigma_map, self.noise_psd) if name is not None]

    def _sigma(self) -> float | dict[float, float] | str | None:
        """Return the noise level, the levels by their scale, or that a map is asked for."""
        from integrodiff._checks import nonnegative_number, shown
        from integrodiff.noise.levels import given_levels
        from integrodiff.request import MAP

        if self.sigma is None or self.sigma == MAP:
            return self.sigma
        try:
            if ":" not in self.sigma:
                return nonnegative_number("sigma", float(self.sigma))
            pairs = [pair.split(":") for pair in self.sigma.split(",")]
            levels = {float(scale): float(level) for scale, level in pairs}
            if len(levels) < len(pairs):
                raise ValueError(f"--sigma gives a scale twice: {shown(self.sigma)}")
        except ValueError as error:
            if "sigma" in str(error):
                raise
            raise ValueError(
                f"--sigma must be a number, levels for scales such as 0.5:10,2:25, or map; got "
                f"{shown(self.sigma)}"
            ) from error
        given_levels(levels)
        return levels

    def _known_detector(self) -> PoissonGaussian | None:
        """Return the detector if its gain is given, else None."""
        from integrodiff import PoissonGaussian

        if self.gain is None:
            return None
        offset, readout = self.offset or 0.0, self.readout or 0.0
        return PoissonGaussian(gain=self.gain, offset=offset, readout=readout)


def _read_map(path: str) -> NDArray[Any]:
    """Read a map of noise levels from an image file."""
    import numpy as np

    from integrodiff.noise.maps import noise_map

    # Levels that are not finite may belong to invalid pixels.
    return _read_matrix(path, "a noise map", lambda levels: noise_map(levels, np.isfinite(levels)))


def _read_spectrum(path: str) -> NDArray[Any]:
    """Read a power spectrum of noise from an image file."""
    from integrodiff.noise.levels import levels_of_spectrum

    return _read_matrix(path, "a noise spectrum", levels_of_spectrum)


def _read_matrix(path: str, what: str, check: Callable[[NDArray[Any]], object]) -> NDArray[Any]:
    """Read a grey image of numbers in their unit, and refuse what the check refuses."""
    import numpy as np

    from integrodiff.errors import ImageFileError
    from integrodiff.io import read_image

    with stopping(ExitCode.INPUT, ImageFileError):
        image = read_image(path)
    if image.pixels.ndim != 2 or image.alpha is not None:
        stop(
            ExitCode.INPUT,
            f"{path}: {what} must be one grey image; this file has {image.header.pages} "
            f"page(s), {image.header.kind}",
        )
    numbers = image.pixels
    if not image.units.are_stored:
        slope, intercept = image.units
        numbers = slope * numbers.astype(np.float64) + intercept
    try:
        check(numbers)
    except ValueError as error:
        stop(ExitCode.INPUT, f"{path}: {error}")
    return numbers
