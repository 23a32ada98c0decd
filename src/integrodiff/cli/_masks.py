"""Options that say which pixels are invalid: ``--mask`` and ``--nodata``."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from math import isnan
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from integrodiff.cli._terminal import ExitCode, stop, stopping

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from integrodiff.io import ImageHeader, ImageReader
    from integrodiff.layout import Layout
    from integrodiff.request import InvalidPixels
    from integrodiff.units import GreyUnits
    from integrodiff.validity import Nodata, Validity

MaskFile = Annotated[
    str | None,
    typer.Option(
        metavar="FILE",
        help="Image of the same size that is zero at invalid pixels. Invalid pixels are ignored "
        "and keep their values.",
        show_default=False,
    ),
]
NodataValue = Annotated[
    str | None,
    typer.Option(
        "--nodata",
        metavar="VALUE|none",
        help="Grey value of invalid pixels, besides NaN and those that a GeoTIFF or DICOM file "
        "declares; none ignores the value that a file declares.",
        show_default=False,
    ),
]

_NONE = "none"


@dataclass(frozen=True, kw_only=True)
class MaskOptions:
    """Values of the options."""

    mask: str | None = None
    nodata: str | None = None

    @property
    def files(self) -> list[Path]:
        """Files that are read."""
        return [] if self.mask is None else [Path(self.mask)]

    def exclusions(self) -> Exclusions:
        """Read the mask and the grey value; refuse what is none."""
        return Exclusions(
            options=self,
            mask=None if self.mask is None else _read_mask(self.mask),
            nodata=_rules(self.nodata),
        )


@dataclass(frozen=True, kw_only=True, eq=False)
class Exclusions:
    """What the options exclude, for files of any kind.

    Attributes
    ----------
    options : MaskOptions
        As they were given.
    mask : array of bool, optional
        True at valid pixels.
    nodata : tuple of Nodata
        Grey values of invalid pixels.
    """

    options: MaskOptions = field(default_factory=MaskOptions)
    mask: NDArray[np.bool_] | None = None
    nodata: tuple[Nodata, ...] = ()

    def source(self, reader: ImageReader, volume: bool | None = None) -> MaskedFile:
        """Return an open file with these exclusions and those that it declares itself.

        ``volume`` says whether its pages are a volume; by default the file does.
        """
        layout = reader.layout if volume is None else reader.layout.as_volume(volume)
        return MaskedFile(reader, self.validity(reader.header), layout)

    def validity(self, header: ImageHeader) -> Validity:
        """Return which pixels of a file are valid; stop if the mask does not fit."""
        rules = header.validity
        if self.options.nodata == _NONE:
            rules = replace(rules, nodata=())
        rules = rules.with_nodata(*self.nodata)
        if self.mask is None or self.options.mask is None:
            return rules
        masks = self._masks_of_planes(header.layout)
        return rules.with_mask(masks, f"mask {Path(self.options.mask).name}")

    def _masks_of_planes(self, layout: Layout) -> list[NDArray[np.bool_]]:
        from integrodiff.validity import plane_masks

        mask, pixels = self.mask, layout.without_samples.canonical
        if mask is None:
            return []
        if mask.shape != layout.size and mask.size == pixels.plane_count * layout.pixels:
            mask = mask.reshape(pixels.shape) if mask.shape[-2:] == layout.size else mask
        if mask.shape not in (layout.size, pixels.shape):
            stop(
                ExitCode.USAGE,
                f"{self.options.mask}: the mask has {_size(mask.shape)}, and the image "
                f"{_size(pixels.shape)}; both must be the same, or the mask one page for all",
            )
        return plane_masks(mask, pixels)

    def notes(self, invalid: InvalidPixels | None) -> Iterable[str]:
        """Give remarks on the invalid pixels of an image."""
        if invalid is not None:
            yield str(invalid)
        reasons = () if invalid is None else invalid.reasons
        for rule in self.nodata:
            if rule.words not in reasons and not isnan(rule.lowest):
                yield f"no pixel has the value of --nodata, {self.options.nodata}"


@dataclass(frozen=True, eq=False)
class MaskedFile:
    """An open image file, and which of its pixels are valid."""

    reader: ImageReader
    validity: Validity
    layout: Layout

    @property
    def dtype(self) -> np.dtype[Any]:
        """Type of the grey values."""
        return self.reader.dtype

    @property
    def distances(self) -> Mapping[str, float]:
        """Spacing of the voxels, if the file declares it."""
        return self.reader.distances

    @property
    def units(self) -> GreyUnits:
        """The unit of grey values that the file declares."""
        return self.reader.units

    def planes(self) -> Iterable[NDArray[Any]]:
        """Iterate over all planes."""
        return self.reader.planes()


def _size(shape: tuple[int, ...]) -> str:
    """Describe the pixels of a mask or image."""
    height, width = shape[-2:]
    pages = 1
    for length in shape[:-2]:
        pages *= length
    return f"{width} x {height} pixels" + (f" on {pages} pages" if pages > 1 else "")


def _read_mask(path: str) -> NDArray[np.bool_]:
    from integrodiff.errors import ImageFileError
    from integrodiff.io.masks import read_mask

    with stopping(ExitCode.INPUT, ImageFileError):
        mask = read_mask(path)
    if not mask.any():
        stop(
            ExitCode.INPUT,
            f"{path}: the mask has no valid pixel; it must be other than zero where pixels are "
            "valid",
        )
    return mask


def _rules(text: str | None) -> tuple[Nodata, ...]:
    """Return the mark of invalid pixels that ``--nodata`` stands for."""
    from integrodiff.validity import nodata_value

    if text is None or text == _NONE:
        return ()
    try:
        return (nodata_value(_number(text), declared=False),)
    except ValueError:
        stop(ExitCode.USAGE, f"--nodata must be a number, nan or none, got {text!r}")


def _number(text: str) -> float:
    """Return a number; integers are exact, however many digits they have."""
    try:
        return int(text)
    except ValueError:
        return float(text)
