"""Denoise one image file; used for single files and for each file of a batch."""

from __future__ import annotations

import hashlib
import json
import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias, cast

from integrodiff.cli._files import Contents, contents_of_image, refuse_output_over_inputs
from integrodiff.cli._masks import Exclusions, MaskOptions
from integrodiff.cli._models import loaded_model
from integrodiff.cli._noise import NoiseOptions
from integrodiff.cli._terminal import ExitCode, stopping
from integrodiff.cli._views import spacing_numbers

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from integrodiff import Denoiser
    from integrodiff.cli._masks import MaskedFile
    from integrodiff.colour import Colour
    from integrodiff.io import ImageHeader, ImageReader, Page
    from integrodiff.noise.levels import NoiseLevels
    from integrodiff.pipeline import Pipeline
    from integrodiff.request import ResolvedChannel, ResolvedRequest

Watch: TypeAlias = Callable[[int], AbstractContextManager[Callable[[], None] | None]]
"""Factory: total steps -> context that yields ``advance()``, or None if nobody watches."""


@dataclass(frozen=True, kw_only=True)
class Options:
    """Options of the command that determine how images are denoised."""

    noise: NoiseOptions
    masks: MaskOptions = field(default_factory=MaskOptions)
    model: str
    engine: str
    data_range: float | None
    volume: bool | None = None
    spacing: str | None = None
    colour: str
    as_float: bool
    exact: bool
    overwrite: bool
    quality: int | None = None
    max_memory: str | None = None

    def settings(self) -> Settings:
        """Refuse options that are invalid for every image; load the model and the engine."""
        from integrodiff import Denoiser
        from integrodiff._checks import one_of
        from integrodiff.colour import COLOURS
        from integrodiff.errors import ImageFileError
        from integrodiff.models import MODEL_NAMES

        self.noise.check()
        model = loaded_model(self.model)
        arguments = self.noise.arguments()
        with stopping(ExitCode.USAGE, ValueError, TypeError, ImportError, OSError):
            one_of("--colour", self.colour, COLOURS)
            denoiser = Denoiser(
                **arguments,
                model=self.model if self.model in MODEL_NAMES else model,
                data_range=self.data_range,
                spacing=spacing_numbers(self.spacing),
                colour=cast("Colour", self.colour),
                engine=self.engine,
                as_float=self.as_float,
                exact=self.exact,
                max_memory=self.max_memory,
            )
        exclusions = self.masks.exclusions()
        named = {
            "sigma_map": self.noise.sigma_map,
            "noise_psd": self.noise.noise_psd,
            "mask": self.masks.mask,
        }
        with stopping(ExitCode.INPUT, ImageFileError, OSError):
            read = {
                name: contents_of_image(Path(path))
                for name, path in named.items()
                if path is not None
            }
        return Settings(options=self, denoiser=denoiser, exclusions=exclusions, read=read)


@dataclass(frozen=True, kw_only=True)
class Settings:
    """The options of the command with the denoiser and the exclusions built from them."""

    options: Options
    denoiser: Denoiser
    exclusions: Exclusions = field(default_factory=Exclusions)
    read: dict[str, Contents] = field(default_factory=dict)  # of the files that options name


@dataclass(frozen=True, kw_only=True)
class Denoised:
    """Summary of a denoised image.

    Attributes
    ----------
    size : tuple of int
        Height and width.
    pages : int
        Number of pages.
    image, how : str
        Descriptions of the image and of how it was denoised.
    model : str
        Name of the model that ran, which for volumes may be another than the one asked for.
    spacing : tuple of float, optional
        Spacing of a volume along z, y and x over the smallest of them.
    noise : dict
        The noise, given or estimated, as JSON values.
    invalid : int
        Number of invalid pixels, in all pages.
    seconds : float
        Time in seconds.
    notes : tuple of str
        Remarks for the user, such as lost metadata.
    """

    size: tuple[int, int]
    pages: int
    image: str
    how: str
    model: str
    spacing: tuple[float, float, float] | None
    noise: dict[str, Any]
    invalid: int
    seconds: float
    notes: tuple[str, ...]

    @property
    def noise_levels(self) -> list[float]:
        """Noise levels of all channels; empty for photon noise."""
        channels = self.noise.get("channels", [self.noise])
        return [level for channel in channels for level in channel.get("sigma", ())]

    def __str__(self) -> str:
        return f"{self.image}, {self.how}, {self.seconds:.1f} s"


def denoise_file(
    source: Path,
    target: Path,
    settings: Settings,
    *,
    watch: Watch,
    completed: Callable[[Path], object] | None = None,
    identity: str = "",
) -> Denoised:
    """Check input and output, then denoise and write page by page.

    Parameters
    ----------
    source, target : Path
        The noisy file and the file to write.
    settings : Settings
        Options and denoiser.
    watch : callable
        Shows progress, see :data:`Watch`.
    completed : callable, optional
        Called with the path of the complete temporary file, before it is renamed to ``target``.
    identity : str
        A text that stands for all options, see :class:`integrodiff.io.Derivation`.

    Raises
    ------
    Stopped
        With an exit code and a message for the user.
    """
    from integrodiff.errors import ImageFileError
    from integrodiff.io import (
        Derivation,
        OutputFileError,
        check_output,
        check_output_path,
        create_image,
        format_of_content,
        open_image,
    )

    start = time.perf_counter()
    options, denoiser = settings.options, settings.denoiser
    refuse_output_over_inputs(target, [source, *options.noise.files, *options.masks.files])
    with stopping(ExitCode.INPUT, ImageFileError), stopping(ExitCode.OUTPUT, OutputFileError):
        form = format_of_content(source).name if source.is_dir() else None
        check_output_path(target, overwrite=options.overwrite, source=form)
        with open_image(source, slices=options.volume is False) as reader:
            dtype = denoiser.request.result_dtype(reader.header.dtype)
            header = reader.header.with_dtype(dtype).with_quality(options.quality)
            check_output(target, header, overwrite=options.overwrite)
            with stopping(ExitCode.USAGE, ValueError):
                file = settings.exclusions.source(reader, options.volume)
            pipeline = _pipeline(file, denoiser)
            words = derivation_in_words(settings, pipeline.resolved)
            header = header.with_derivation(Derivation(words=words, settings=identity))
            with create_image(
                target, header, overwrite=options.overwrite, completed=completed
            ) as result:
                for page in _denoised(reader, pipeline, watch):
                    result.write(page)
    resolved = pipeline.resolved
    remarks = [*header.notes, *settings.exclusions.notes(resolved.invalid)]
    notes = [f"{source}: {text}" for text in remarks]
    notes += [f"{target}: {text}" for text in result.notes]
    return summary_of(settings, header, resolved, notes, time.perf_counter() - start)


def summary_of(
    settings: Settings,
    header: ImageHeader,
    resolved: ResolvedRequest,
    notes: list[str],
    seconds: float,
    where: str = "",
) -> Denoised:
    """Return the summary of a denoised image; ``where`` says how it was computed in blocks."""
    name = _model_name(settings, resolved)
    engine = settings.denoiser.engine_for(resolved)
    how = f"{name} at {resolved.noise}{_geometry(resolved)}, engine {engine}"
    return Denoised(
        size=header.size,
        pages=header.pages,
        image=_image_in_words(header),
        how=f"{how}, {where}" if where else how,
        model=name,
        spacing=None if resolved.volume is None else resolved.volume.spacing,
        noise=_noise_for_report(resolved),
        invalid=0 if resolved.invalid is None else resolved.invalid.total,
        seconds=seconds,
        notes=tuple(notes),
    )


def _pipeline(source: MaskedFile, denoiser: Denoiser) -> Pipeline:
    """Resolve the request for a file."""
    from integrodiff.errors import ImageFileError

    with stopping(ExitCode.USAGE, ValueError), stopping(ExitCode.INPUT, ImageFileError):
        return denoiser.pipeline(source)


def _denoised(reader: ImageReader, pipeline: Pipeline, watch: Watch) -> Iterator[Page]:
    """Yield the denoised pages of a file with their transparency."""
    from integrodiff.errors import ImageFileError

    current: deque[Page] = deque()

    def planes() -> Iterator[NDArray[Any]]:
        for number, page in enumerate(reader.pages()):
            current.append(page._replace(valid=pipeline.mask_of(page.pixels, number)))
            yield page.pixels

    with stopping(ExitCode.USAGE, ValueError, ImportError):
        steps = pipeline.steps
    with watch(steps) as advance:
        results = pipeline.run(planes(), count=advance)
        while True:
            with (
                stopping(ExitCode.USAGE, ValueError, ImportError),
                stopping(ExitCode.INPUT, ImageFileError),
            ):
                pixels = next(results, None)
            if pixels is None:
                return
            yield current.popleft().with_pixels(pixels)


def _noise_for_report(resolved: ResolvedRequest) -> dict[str, Any]:
    """Return the noise of an image as JSON values, with a list if it has several channels."""
    channels = [_noise_of_channel(channel) for channel in resolved.reported]
    return channels[0] if len(channels) == 1 else {"channels": channels}


def _noise_of_channel(channel: ResolvedChannel) -> dict[str, Any]:
    if channel.photons is not None:
        return {**asdict(channel.photons), "estimated": channel.estimated}
    found: dict[str, Any] = {"sigma": channel.sigmas.tolist(), "estimated": channel.estimated}
    if channel.rice is not None:
        found["distribution"] = "rician"
    if channel.map is not None:
        found["sigma_range"] = [channel.map.lowest, channel.map.highest]
    if not all(levels.is_white for levels in channel.noise):
        found["sigma_per_scale"] = [_by_scale(levels) for levels in channel.noise]
    return found


def _by_scale(levels: NoiseLevels) -> dict[str, list[float]]:
    return {"scales": list(levels.scales), "sigma": list(levels.levels)}


_LONGEST_PARAMETERS = 600
"""Characters of the parameters of a model in a description."""


def derivation_in_words(settings: Settings, resolved: ResolvedRequest) -> str:
    """Describe model, parameters and noise level."""
    from integrodiff._version import __version__
    from integrodiff.models.files import model_to_json

    document = json.loads(model_to_json(resolved.request.model))
    parameters = json.dumps(document["parameters"]).replace('"', "")
    if len(parameters) > _LONGEST_PARAMETERS:
        parameters = f"parameters sha256 {hashlib.sha256(parameters.encode()).hexdigest()}"
    name = _model_name(settings, resolved)
    ranges = {f"{channel.data_range:.6g}" for channel in resolved.reported}
    return (
        f"denoised by integrodiff {__version__}, model {name} {parameters}, {resolved.noise}, "
        f"data range {', '.join(sorted(ranges))}{_geometry(resolved)}"
    )


def _model_name(settings: Settings, resolved: ResolvedRequest) -> str:
    """Return the name of the model that runs."""
    from integrodiff.models import VOLUME_MODELS

    name = settings.options.model
    return Path(name if resolved.volume is None else VOLUME_MODELS.get(name, name)).name


def _geometry(resolved: ResolvedRequest) -> str:
    """Say with which spacing a volume was denoised, because a person must see it."""
    return "" if resolved.volume is None else f", {resolved.volume}"


def _image_in_words(image: ImageHeader) -> str:
    """Describe size, dtype and colours of an image."""
    height, width = image.size
    pages = f", {image.pages} pages" if image.pages > 1 else ""
    if set(image.layout.plane_axes) - {"Q"}:
        pages += f" (axes {image.axes})"
    return f"{width} x {height}{pages}, {image.dtype}, {image.kind}"
