"""One image file in, one out: what a single file and each file of a batch go through."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias, cast

from integrodiff.cli._files import refuse_output_over_inputs
from integrodiff.cli._models import loaded_model
from integrodiff.cli._noise import NoiseFound, NoiseOptions
from integrodiff.cli._terminal import ExitCode, stop, stopping

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from integrodiff.colour import Colour
    from integrodiff.io import ImageHeader, ImageReader, Page
    from integrodiff.models import Model

_ANY_LEVEL = 25.0

Watch: TypeAlias = Callable[[int], AbstractContextManager[Callable[[], None] | None]]
"""Takes the number of steps, and gives for their time what counts them, if anybody is to know."""


@dataclass(frozen=True, kw_only=True)
class Options:
    """How images are denoised, as the options of the command say it."""

    noise: NoiseOptions
    model: str
    engine: str
    data_range: float | None
    colour: str
    as_float: bool
    exact: bool
    overwrite: bool

    def prepared(self) -> Settings:
        """Refuse options that no image can be denoised with; load the rest."""
        from integrodiff._checks import one_of, positive_number
        from integrodiff.colour import COLOURS
        from integrodiff.engines import get_engine

        self.noise.check()
        with stopping(ExitCode.USAGE, ValueError, TypeError):
            one_of("--colour", self.colour, COLOURS)
            if self.data_range is not None:
                positive_number("data_range", self.data_range)
        with stopping(ExitCode.USAGE, ValueError, ImportError, OSError):
            engine = get_engine(self.engine).name
        return Settings(options=self, model=loaded_model(self.model), engine=engine)


@dataclass(frozen=True, kw_only=True)
class Settings:
    """How images are denoised: the options, the model itself, and the engine that can run here."""

    options: Options
    model: Model
    engine: str


@dataclass(frozen=True, kw_only=True)
class Denoised:
    """What was done to an image.

    Attributes
    ----------
    size : tuple of int
        Height and width.
    pages : int
        Number of pages.
    image, how : str
        The image and its treatment in words.
    noise : NoiseFound
        The noise level, given or found.
    seconds : float
        Time it took.
    notes : tuple of str
        What else the user should know.
    """

    size: tuple[int, int]
    pages: int
    image: str
    how: str
    noise: NoiseFound
    seconds: float
    notes: tuple[str, ...]

    def __str__(self) -> str:
        return f"{self.image}, {self.how}, {self.seconds:.1f} s"


def denoise_file(
    source: Path,
    target: Path,
    settings: Settings,
    *,
    watch: Watch,
    completed: Callable[[Path], object] | None = None,
) -> Denoised:
    """Check all that can be checked, then compute and write page by page.

    Parameters
    ----------
    source, target : Path
        The noisy file, and the one to write.
    settings : Settings
        How.
    watch : callable
        Gives what counts the steps.
    completed : callable, optional
        Called with the path of the complete output just before it gets its name.

    Raises
    ------
    Stopped
        With the exit code and a message for the user.
    """
    import numpy as np

    from integrodiff.errors import ImageFileError
    from integrodiff.io import (
        OutputFileError,
        check_output,
        check_output_path,
        create_image,
        open_image,
    )

    start = time.perf_counter()
    options = settings.options
    sigma_map = options.noise.sigma_map
    refuse_output_over_inputs(target, [source, *([] if sigma_map is None else [Path(sigma_map)])])
    with stopping(ExitCode.INPUT, ImageFileError), stopping(ExitCode.OUTPUT, OutputFileError):
        check_output_path(target, overwrite=options.overwrite)
        with open_image(source) as reader:
            dtype = np.dtype(np.float32) if options.as_float else reader.header.dtype
            header = reader.header.with_dtype(dtype)
            check_output(target, header, overwrite=options.overwrite)
            survey = _survey(reader, options)
            with create_image(
                target, header, overwrite=options.overwrite, completed=completed
            ) as result:
                for page in _denoised(reader, settings, survey, watch):
                    result.write(page)
    notes = [f"{source}: {text}" for text in header.notes]
    notes += [f"{target}: {text}" for text in result.notes]
    return Denoised(
        size=header.size,
        pages=header.pages,
        image=_image_in_words(header),
        how=f"{Path(options.model).name} at {survey.noise}, engine {settings.engine}",
        noise=survey.noise,
        seconds=time.perf_counter() - start,
        notes=tuple(notes),
    )


@dataclass(frozen=True)
class _Survey:
    """What all pages of an image have in common."""

    noise: NoiseFound
    data_range: float | None


def _survey(source: ImageReader, options: Options) -> _Survey:
    """Return noise and grey range of all pages; they are read for it only if it depends on them."""
    import numpy as np

    header = source.header
    wanted = options.noise.pages_wanted(header.pages)
    range_is_open = options.data_range is None and (
        header.dtype != np.uint8 or options.noise.kind != "gaussian"
    )
    extremes: list[NDArray[Any]] = [np.zeros(2, header.dtype)]

    def watched() -> Iterator[NDArray[Any]]:
        extremes.clear()
        for number, page in enumerate(source.pages()):
            extremes.append(np.array([page.pixels.min(), page.pixels.max()]))
            if header.dtype.kind == "f" and not np.isfinite(extremes[-1]).all():
                stop(
                    ExitCode.INPUT,
                    f"{source.path}: has NaN or infinite values; replace them first, for "
                    "example by the median of their neighbours",
                )
            if number in wanted:
                yield page.pixels

    pages = watched() if wanted or range_is_open or header.dtype.kind == "f" else iter(())
    noise = options.noise.found(pages, header.channel_axis, header.channels)
    for _ in pages:
        pass  # pages after the last one that was wanted, or all
    with stopping(ExitCode.USAGE, ValueError):
        return _Survey(noise, _common_range(np.array(extremes), noise, options.data_range))


def _denoised(
    source: ImageReader, settings: Settings, survey: _Survey, watch: Watch
) -> Iterator[Page]:
    """Denoise page by page, all pages with the same noise and the same grey range."""
    import numpy as np

    import integrodiff

    header, options = source.header, settings.options
    colour = cast("Colour", options.colour)  # checked before
    with stopping(ExitCode.USAGE, ValueError):
        steps = _steps_of_a_page(settings.model, survey.noise, colour, header.channels)
        plan = integrodiff.Plan(
            **survey.noise.arguments(header.channel_axis),
            model=settings.model,
            data_range=survey.data_range,
            channel_axis=header.channel_axis,
            colour=colour,
            engine=settings.engine,
            as_float=options.as_float,
            exact=options.exact,
        )
    with watch(steps * header.pages) as advance:
        for page in source.pages():
            with stopping(ExitCode.USAGE, ValueError, ImportError):
                pixels = plan(page.pixels, callback=_step_counter(advance))
            yield page.with_pixels(pixels.astype(np.float32) if options.as_float else pixels)


def _step_counter(advance: Callable[[], None] | None) -> Callable[[int, Any], object] | None:
    """Return what counts the steps of the evolution, if anybody wants to see them."""
    return None if advance is None else lambda step, image: advance()


def _steps_of_a_page(model: Model, noise: NoiseFound, colour: Colour, channels: int) -> int:
    """Return how many steps a page takes, those of all groups of channels."""
    import numpy as np

    from integrodiff.colour import colour_space

    levels = np.ones(channels) if noise.sigma is None else np.array(noise.sigma)
    groups = colour_space(colour, levels).groups
    # The number of steps is a setting of a model; it does not depend on the noise level.
    return len(groups) * model.evolution(_ANY_LEVEL).steps


def _common_range(
    extremes: NDArray[Any], noise: NoiseFound, data_range: float | None
) -> float | None:
    """Return the grey range of all pages."""
    from integrodiff.grey_range import grey_range

    if noise.sigma is not None:
        highest = max(noise.sigma) if noise.sigma_map is None else float(noise.sigma_map.max())
        return grey_range(extremes, highest, data_range)
    if data_range is None and noise.photons is not None:
        return max(float(extremes.max()) - noise.photons.offset, noise.photons.gain)
    return data_range


def _image_in_words(image: ImageHeader) -> str:
    """Return size, dtype and colours of an image."""
    height, width = image.size
    pages = f", {image.pages} pages" if image.pages > 1 else ""
    return f"{width} x {height}{pages}, {image.dtype}, {image.kind}"
