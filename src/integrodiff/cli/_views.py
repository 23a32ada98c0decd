"""Options that say what is drawn of an image: plane or point, bands and grey values."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, TypeVar

import typer

from integrodiff.cli._terminal import ExitCode, note, say, stop, stopping

if TYPE_CHECKING:
    from collections.abc import Callable

    from integrodiff.cli._masks import Exclusions
    from integrodiff.io import ImageHeader, ImageReader
    from integrodiff.layout import Layout
    from integrodiff.viz.orthogonal import Places
    from integrodiff.viz.view import Selection, View

Chosen = TypeVar("Chosen")

At = Annotated[
    str | None,
    typer.Option(
        metavar="AXIS=N,...",
        help="Plane to draw, counted from 1 along the axes T, C, Z and Q, such as T=3,C=2. By "
        "default the middle of Z and the first of all others. With Y or X, such as "
        "Z=40,Y=120,X=96, it is the point of a volume through which three orthogonal planes are "
        "drawn.",
        show_default=False,
    ),
]
AsVolume = Annotated[
    bool | None,
    typer.Option(
        "--volume/--slices",
        help="Treat the pages of a stack as the slices of a volume, or slices as single pages, as "
        "in `integrodiff denoise`. By default the file decides.",
        show_default=False,
    ),
]
VoxelSpacing = Annotated[
    str | None,
    typer.Option(
        metavar="Z,Y,X",
        help="Distance of the voxels of a volume; only ratios matter. By default that of the file.",
        show_default=False,
    ),
]
PageNumber = Annotated[
    int | None,
    typer.Option(min=1, help="Page of a stack, counted from 1; replaces --at.", show_default=False),
]
Bands = Annotated[
    str | None,
    typer.Option(
        metavar="N|N,N,N",
        help="Band to draw grey, or three bands to draw as red, green and blue with a window each, "
        "counted from 1: samples of the image or, if it has none, its channels.",
        show_default=False,
    ),
]
GreyWindow = Annotated[
    tuple[float, float] | None,
    typer.Option(
        metavar="LOW HIGH",
        help="Grey values to draw black and white, such as -160 240 for soft tissue in CT. By "
        "default what a DICOM file proposes; otherwise 0 and 255 for 8 bits, else the lowest and "
        "highest half per cent of the result.",
        show_default=False,
    ),
]


@dataclass(frozen=True, kw_only=True)
class ViewOptions:
    """Values of the options."""

    at: str | None = None
    page: int | None = None
    bands: str | None = None
    window: tuple[float, float] | None = None
    volume: bool | None = None
    spacing: str | None = None

    @property
    def point(self) -> dict[str, int] | None:
        """The point of a volume to draw planes through, from zero; None if none is named."""
        places = self._places()
        return places if {"Y", "X"} & set(places) else None

    def window_for(self, header: ImageHeader) -> tuple[float, float] | None:
        """Return the window that was given, or else the one that a file proposes."""
        proposed = header.window if header.layout.samples == 1 else None
        if self.window is not None or proposed is None:
            return self.window
        low, high = proposed
        unit = f" {header.display.unit}" if header.display.unit else ""
        say(f"window {low:g} to {high:g}{unit}, as the file proposes; --window sets another")
        return proposed

    def check(self) -> None:
        """Refuse options that are wrong for every image."""
        from integrodiff.viz.view import checked_window

        with stopping(ExitCode.USAGE, ValueError):
            checked_window(self.window)
        self._places()
        self._numbers()
        with stopping(ExitCode.USAGE, ValueError):
            spacing_numbers(self.spacing)

    def layout(self, path: Path, header: ImageHeader) -> Layout:
        """Return the axes of an image, with pages as slices or the other way round if asked."""
        if self.volume is None:
            return header.layout
        try:
            return header.layout.as_volume(self.volume)
        except ValueError as error:
            stop(ExitCode.USAGE, f"{path}: {error}")

    def places(self, path: Path, layout: Layout, *, all_samples: bool = False) -> Places:
        """Return the point of a volume that is drawn; stop if it does not have it."""
        from integrodiff.viz.orthogonal import places

        return self._chosen(path, places, layout, all_samples=all_samples)

    def selection(self, path: Path, header: ImageHeader, *, all_samples: bool = False) -> Selection:
        """Return what is drawn of an image; stop if it does not have it."""
        from integrodiff.viz.view import select

        # Slices that are pages keep the name of their axis.
        layout = header.layout if self.volume is False else self.layout(path, header)
        return self._chosen(path, select, layout, all_samples=all_samples)

    def _chosen(
        self, path: Path, choose: Callable[..., Chosen], layout: Layout, *, all_samples: bool
    ) -> Chosen:
        """Return what a function chooses by these options; stop if the image does not have it."""
        page = None if self.page is None else self.page - 1
        bands = self._numbers()
        try:
            return choose(
                layout, at=self._places(), page=page, bands=bands, all_samples=all_samples, first=1
            )
        except ValueError as error:
            stop(ExitCode.USAGE, f"{path}: {error}")

    def view(self, path: Path, reader: ImageReader, exclusions: Exclusions) -> View:
        """Read what is drawn of an open file."""
        from integrodiff.viz.view import chosen_view

        header = reader.header
        selection = self.selection(path, header)
        planes = {}
        for number, plane in enumerate(reader.planes()):
            if number in selection.planes:
                planes[number] = plane
            if number == max(selection.planes):
                break
        return chosen_view(
            planes,
            selection,
            exclusions.validity(header),
            orientation=header.metadata.orientation,
            white_is_zero=header.metadata.white_is_zero,
        )

    def _places(self) -> dict[str, int]:
        """Return the indices along axes, from zero."""
        if self.at is None:
            return {}
        places = {}
        for part in self.at.split(","):
            letter, sign, number = part.strip().partition("=")
            if not sign or not number.strip().isdecimal() or int(number) < 1:
                stop(
                    ExitCode.USAGE,
                    f"--at must name axes and numbers from 1, such as Z=12 or T=3,C=2; got "
                    f"{self.at!r}",
                )
            places[letter.strip().upper()] = int(number) - 1
        return places

    def _numbers(self) -> tuple[int, ...] | None:
        """Return the bands, from zero."""
        if self.bands is None:
            return None
        parts = [part.strip() for part in self.bands.split(",")]
        if len(parts) not in (1, 3) or not all(p.isdecimal() and int(p) > 0 for p in parts):
            stop(
                ExitCode.USAGE,
                f"--bands must be one number from 1, or three such as 4,3,2; got {self.bands!r}",
            )
        return tuple(int(part) - 1 for part in parts)


def spacing_numbers(text: str | None) -> list[float] | None:
    """Return the numbers of ``--spacing``."""
    if text is None:
        return None
    try:
        return [float(part) for part in text.split(",")]
    except ValueError:
        raise ValueError(f"--spacing must be numbers such as 3,1,1, got {text!r}") from None


def say_notes(path: Path, reader: ImageReader) -> None:
    """Write what reading a file has to change."""
    for text in reader.header.notes:
        note(f"{path}: {text}")
