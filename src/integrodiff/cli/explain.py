"""``integrodiff explain``: draw structure, diffusivities and steps of a model on an image."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from integrodiff._default_model import DEFAULT_MODEL
from integrodiff.cli._files import refuse_output_over_inputs
from integrodiff.cli._masks import MaskFile, MaskOptions, NodataValue
from integrodiff.cli._models import loaded_model
from integrodiff.cli._noise import (
    Gain,
    NoiseKind,
    NoiseOptions,
    NoisePsd,
    Offset,
    Readout,
    Sigma,
    SigmaMap,
)
from integrodiff.cli._terminal import (
    ExitCode,
    exit_codes,
    plain_warnings,
    printable,
    require_matplotlib,
    say,
    stop,
    stopping,
)
from integrodiff.cli._views import (
    AsVolume,
    At,
    Bands,
    GreyWindow,
    PageNumber,
    ViewOptions,
    VoxelSpacing,
    say_notes,
    spacing_numbers,
)

if TYPE_CHECKING:
    from integrodiff.io import ImageReader
    from integrodiff.models import Model
    from integrodiff.viz.explanation import Explained


def explain(
    input: Annotated[Path, typer.Argument(metavar="IN", help="Noisy image.")],
    output: Annotated[
        Path, typer.Option(metavar="FILE.png", help="Picture to write, a PNG file.")
    ] = Path("explanation.png"),
    sigma: Sigma = None,
    sigma_map: SigmaMap = None,
    noise_psd: NoisePsd = None,
    noise: NoiseKind = "gaussian",
    gain: Gain = None,
    offset: Offset = None,
    readout: Readout = None,
    model: Annotated[
        str, typer.Option(metavar="NAME|FILE.json", help="Model name or model file.")
    ] = DEFAULT_MODEL,
    step: Annotated[
        int | None,
        typer.Option(
            min=0,
            help="Number of steps after which structure and diffusivities are drawn; 0 is the "
            "noisy image. By default half of all steps.",
            show_default=False,
        ),
    ] = None,
    engine: Annotated[
        str,
        typer.Option(
            metavar="auto|numpy|native|torch|cuda",
            help="Compute backend; auto takes the fastest that is available.",
        ),
    ] = "auto",
    data_range: Annotated[
        float | None,
        typer.Option(
            metavar="R",
            help="Difference between the largest and smallest grey value that the image could "
            "have. By default as in `integrodiff denoise`.",
            show_default=False,
        ),
    ] = None,
    at: At = None,
    volume: AsVolume = None,
    spacing: VoxelSpacing = None,
    page: PageNumber = None,
    bands: Bands = None,
    window: GreyWindow = None,
    mask: MaskFile = None,
    nodata: NodataValue = None,
    overwrite: Annotated[
        bool, typer.Option("--overwrite", help="Replace an existing picture.")
    ] = False,
) -> None:
    """Draw how a model denoises an image or a volume.

    The picture shows the multiscale structure tensor (strength, coherence and orientation of
    edges), the diffusivity across and along structures at each scale, and the image after several
    steps. For a colour image it shows the luminance, and with --bands one sample on its own. All
    grey values are in one unit, that of the image; those of photon counts are in standard
    deviations of the noise. Invalid pixels are greyed out. Drawing needs Matplotlib, which the
    extra `plot` installs.

    A volume is explained in three orthogonal planes through a point, by default its middle, in the
    proportions of its voxels. Colours tell surfaces from lines, and the direction across them: red
    for X, green for Y, blue for Z. With --slices, one slice is explained as an image.

    For example:

        integrodiff explain noisy.png
        integrodiff explain noisy.png --sigma 25 --step 0 --output explanation.png
        integrodiff explain cells.ome.tif --at T=3,C=2
        integrodiff explain scan.nii.gz --at Z=80,Y=120,X=96 --window -160 240
        integrodiff explain stack.tif --volume --spacing 3,1,1
    """
    with exit_codes(), plain_warnings():
        _run(
            _Request(
                input=input,
                output=output,
                noise=NoiseOptions(
                    sigma=sigma,
                    sigma_map=sigma_map,
                    noise_psd=noise_psd,
                    kind=noise,
                    gain=gain,
                    offset=offset,
                    readout=readout,
                ),
                model=model,
                step=step,
                engine=engine,
                data_range=data_range,
                shown=ViewOptions(
                    at=at, page=page, bands=bands, window=window, volume=volume, spacing=spacing
                ),
                masks=MaskOptions(mask=mask, nodata=nodata),
                overwrite=overwrite,
            )
        )


@dataclass(frozen=True, kw_only=True)
class _Request:
    """The arguments of the command."""

    input: Path
    output: Path
    noise: NoiseOptions
    model: str
    step: int | None
    engine: str
    data_range: float | None
    shown: ViewOptions
    masks: MaskOptions
    overwrite: bool


def _run(request: _Request) -> None:
    """Check the arguments, compute, draw."""
    require_matplotlib()
    request.noise.check()
    request.shown.check()
    model = loaded_model(request.model)
    _check_output(request)
    from integrodiff.errors import ImageFileError
    from integrodiff.io import open_image
    from integrodiff.viz.drawing import save_figure
    from integrodiff.viz.explanation_figure import draw

    slices = request.shown.volume is False
    with (
        stopping(ExitCode.INPUT, ImageFileError),
        open_image(request.input, slices=slices) as reader,
    ):
        say_notes(request.input, reader)
        words, found = _explained(request, model, reader)
        header = reader.header
    what = f"{_name(request, found)} at {found.noise}"
    title = ", ".join(filter(None, [request.input.name, words]))
    # Stabilised counts are not in the unit of the window that a file proposes.
    shown, stabilised = request.shown, found.channel.photons is not None
    figure = draw(
        found.explanation,
        "\n".join(filter(None, [printable(f"{title}: {what}"), found.geometry])),
        window=shown.window if stabilised else shown.window_for(header),
        white_is_zero=header.metadata.white_is_zero,
    )
    with stopping(ExitCode.OUTPUT, OSError):
        save_figure(figure, request.output, overwrite=request.overwrite)
    what = ", ".join(filter(None, [what, found.geometry]))
    say(f"{request.input} -> {request.output}: {f'{words}: ' if words else ''}{what}")


def _explained(request: _Request, model: Model, reader: ImageReader) -> tuple[str, Explained]:
    """Return which plane or point is explained, in words, and the explanation."""
    from integrodiff import Denoiser
    from integrodiff.errors import ImageFileError
    from integrodiff.models import MODEL_NAMES
    from integrodiff.viz.explanation import explain_plane, explain_volume

    shown = request.shown
    layout = shown.layout(request.input, reader.header)
    source = request.masks.exclusions().source(reader, shown.volume)
    try:
        denoiser = Denoiser(
            **request.noise.arguments(),
            # Its name may stand for another model in volumes.
            model=request.model if request.model in MODEL_NAMES else model,
            engine=request.engine,
            data_range=request.data_range,
            spacing=spacing_numbers(shown.spacing),
        )
        if layout.is_volume or shown.point is not None:
            where = shown.places(request.input, layout, all_samples=True)
            words = where.words
            found = explain_volume(denoiser, source, where, step=request.step)
        else:
            selection = shown.selection(request.input, reader.header, all_samples=True)
            words = selection.words
            found = explain_plane(
                denoiser,
                source,
                selection,
                step=request.step,
                orientation=reader.header.metadata.orientation,
            )
    except ImageFileError:
        raise
    except (ValueError, TypeError, ImportError) as error:
        stop(ExitCode.USAGE, str(error))
    display = reader.header.display
    return words, found.in_unit(display.unit, display.slope, display.intercept)


def _name(request: _Request, found: Explained) -> str:
    """Return the name of the model that was explained."""
    from integrodiff.models import VOLUME_MODELS

    name = request.model
    return Path(name if found.channel.volume is None else VOLUME_MODELS.get(name, name)).name


def _check_output(request: _Request) -> None:
    """Stop if the picture cannot be written, before the image is read."""
    from integrodiff.errors import ImageFileError
    from integrodiff.io import check_output_path

    output = request.output
    if output.suffix.lower() != ".png":
        stop(ExitCode.OUTPUT, f"{output}: the picture is a PNG file; its name must end in .png")
    refuse_output_over_inputs(output, [request.input, *request.noise.files, *request.masks.files])
    with stopping(ExitCode.OUTPUT, ImageFileError):
        check_output_path(output, overwrite=request.overwrite)
