"""``integrodiff denoise``: denoise one image, a batch of images, or a pipe."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import typer

from integrodiff._default_model import DEFAULT_MODEL
from integrodiff.cli._blocks import BlockOptions, block_options, wants_blocks
from integrodiff.cli._masks import MaskFile, MaskOptions, NodataValue
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
from integrodiff.cli._one_file import Options, Settings
from integrodiff.cli._pipes import PIPE, piped
from integrodiff.cli._single import run_single
from integrodiff.cli._terminal import ExitCode, exit_codes, note, plain_warnings, stop
from integrodiff.cli._views import VoxelSpacing
from integrodiff.cli.batch.outcomes import check_report
from integrodiff.cli.batch.plan import is_folder_of_images, is_pattern, plan_jobs


def denoise(
    inputs: Annotated[
        list[str],
        typer.Argument(
            metavar="IN...",
            help="Noisy image or stack; several of them, a folder or a glob pattern; - is standard "
            "input.",
        ),
    ],
    output: Annotated[
        str,
        typer.Argument(
            metavar="OUT",
            help="Denoised image, or a folder for several images; - is standard output. The format "
            "follows the file extension: .png, .jpg, .webp, .gif, .bmp, .avif, .heic, .tif or "
            ".npy, and for inputs of the same format .dcm, .nii, .nii.gz, .nrrd, .mrc or .zarr, "
            "and a new folder for a DICOM series.",
        ),
    ],
    sigma: Sigma = None,
    sigma_map: SigmaMap = None,
    noise_psd: NoisePsd = None,
    model: Annotated[
        str,
        typer.Option(
            metavar="NAME|FILE.json",
            help="Model name: iad-plus, iad-fast, iad-deep, iad-full, iad, iid, eed or pm; or a "
            "model file.",
        ),
    ] = DEFAULT_MODEL,
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
            "have. By default the ratio of structure to noise in the image decides; give it to "
            "treat all images of a series alike.",
            show_default=False,
        ),
    ] = None,
    colour: Annotated[
        str,
        typer.Option(
            metavar="auto|opponent|joint|separate",
            help="How colour samples are denoised: as luminance and colour differences (opponent), "
            "with one structure tensor for all (joint), or one by one (separate). auto is "
            "opponent for RGB, joint otherwise.",
        ),
    ] = "auto",
    volume: Annotated[
        bool | None,
        typer.Option(
            "--volume/--slices",
            help="Denoise the pages of a stack as one volume in three dimensions, or one by one. "
            "By default slices (an axis Z, a DICOM series) are a volume, frames and other pages "
            "are not.",
            show_default=False,
        ),
    ] = None,
    spacing: VoxelSpacing = None,
    noise: NoiseKind = "gaussian",
    gain: Gain = None,
    offset: Offset = None,
    readout: Readout = None,
    mask: MaskFile = None,
    nodata: NodataValue = None,
    as_float: Annotated[
        bool,
        typer.Option(
            "--float",
            help="Write floating point, neither rounded nor clipped; the format must support it, "
            "as TIFF and NPY do.",
        ),
    ] = False,
    exact: Annotated[
        bool,
        typer.Option(
            "--exact",
            help="Take no shortcuts. Those of the engine native change a photograph by less than "
            "0.05 of 255 grey levels.",
        ),
    ] = False,
    max_memory: Annotated[
        str | None,
        typer.Option(
            "--max-memory",
            metavar="SIZE",
            help="Limit for the memory, such as 2G or 500M. OME-Zarr and TIFF are denoised from "
            "disk to disk in blocks that overlap, and the limit is for all processes together "
            "(with --scheduler for each worker). In other formats, volumes that need more are "
            "denoised in blocks of slices, and the limit does not include the program itself and "
            "the data that the reader of a format holds.",
            show_default=False,
        ),
    ] = None,
    workers: Annotated[
        int | None,
        typer.Option(
            min=1,
            metavar="N",
            help="Processes of this machine that denoise blocks of an OME-Zarr or TIFF image, with "
            "one thread each; needs dask. By default one for each processor if the image is "
            "denoised in blocks.",
            show_default=False,
        ),
    ] = None,
    scheduler: Annotated[
        str | None,
        typer.Option(
            metavar="ADDRESS",
            help="Denoise the blocks of an OME-Zarr or TIFF image on a Dask cluster, such as "
            "tcp://host:8786, whose workers see the same files.",
            show_default=False,
        ),
    ] = None,
    block: Annotated[
        str | None,
        typer.Option(
            metavar="I/N",
            help="Denoise the I-th of N shares of the blocks, for job arrays; the last to finish "
            "completes the output.",
            show_default=False,
        ),
    ] = None,
    quality: Annotated[
        int | None,
        typer.Option(
            min=1,
            max=100,
            metavar="N",
            help="Quality of JPEG, WebP, AVIF and HEIC files, from 1 to 100. By default that of an "
            "input of the same format; otherwise a quality with hardly any loss.",
            show_default=False,
        ),
    ] = None,
    recursive: Annotated[
        bool, typer.Option("--recursive", "-r", help="Search input folders recursively.")
    ] = False,
    form: Annotated[
        str | None,
        typer.Option(
            "--format",
            metavar="EXTENSION",
            help="Format of images written to a folder or to standard output, such as png or tif. "
            "By default that of the input.",
            show_default=False,
        ),
    ] = None,
    jobs: Annotated[
        int,
        typer.Option(
            "--jobs",
            "-j",
            min=1,
            metavar="N",
            help="Number of images to denoise in parallel; they share the processors.",
        ),
    ] = 1,
    resume: Annotated[
        bool,
        typer.Option(
            "--resume",
            help="Skip images whose output exists, was made from the same input with the same "
            "options, and has not changed since. For an image in blocks, continue an unfinished "
            "job.",
        ),
    ] = False,
    report: Annotated[
        str | None,
        typer.Option(
            "--json",
            metavar="FILE",
            help="Write a report on each image to a JSON file, or to standard output with -.",
            show_default=False,
        ),
    ] = None,
    overwrite: Annotated[
        bool, typer.Option("--overwrite", help="Replace existing outputs.")
    ] = False,
    quiet: Annotated[
        bool,
        typer.Option("--quiet", "-q", help="Show warnings and errors only."),
    ] = False,
) -> None:
    """Remove noise from image files.

    The result has the size, data type and colours of the input; transparency, colour profiles and
    other metadata are kept. Stacks are processed page by page, so they need not fit into memory;
    volumes are processed as a whole.
    OUT appears only when it is complete, and IN is never changed.

    With several inputs, an input folder or an output folder, each result gets the name of its
    input in the folder OUT. An image that fails does not stop the others.

    For example:

        integrodiff denoise noisy.png clean.png
        integrodiff denoise noisy.png clean.png --sigma 25
        integrodiff denoise counts.tif clean.tif --noise poisson
        integrodiff denoise brain.nii.gz clean.nii.gz --nodata 0
        integrodiff denoise series/ clean/
        integrodiff denoise stack.tif clean.tif --volume --spacing 3,1,1
        integrodiff denoise noisy/ clean/ --jobs 2 --resume
        integrodiff denoise big.zarr clean.zarr --max-memory 4G
        integrodiff denoise - - --format tif < noisy.png > clean.tif
    """
    with exit_codes(), plain_warnings() as shown:
        noise_options = NoiseOptions(
            sigma=sigma,
            sigma_map=sigma_map,
            noise_psd=noise_psd,
            kind=noise,
            gain=gain,
            offset=offset,
            readout=readout,
        )
        options = Options(
            noise=noise_options,
            masks=MaskOptions(mask=mask, nodata=nodata),
            model=model,
            engine=engine,
            data_range=data_range,
            volume=volume,
            spacing=spacing,
            colour=colour,
            as_float=as_float,
            exact=exact,
            overwrite=overwrite,
            quality=quality,
            max_memory=max_memory,
        )
        run = _Run(
            inputs=inputs,
            output=output,
            recursive=recursive,
            suffix=_suffix(form),
            jobs=jobs,
            resume=resume,
            report=report,
            quiet=quiet,
            blocks=block_options(max_memory, scheduler, workers, block, resume=resume),
        )
        run.start(options, shown)


@dataclass(frozen=True, kw_only=True)
class _Run:
    """Inputs, outputs and reporting of one run of the command."""

    inputs: list[str]
    output: str
    recursive: bool
    suffix: str | None
    jobs: int
    resume: bool
    report: str | None
    quiet: bool
    blocks: BlockOptions

    def start(self, options: Options, warnings: list[str]) -> None:
        """Denoise one image or a batch, as the arguments ask."""
        pipes = PIPE in (*self.inputs, self.output)
        many = not pipes and self._is_batch(series=options.volume is not False)
        self._check(pipes=pipes, many=many)
        settings = options.settings()
        if many:
            self._start_batch(settings)
            return
        with piped(self.inputs[0], self.output, self.suffix) as job:
            in_blocks = not pipes and wants_blocks(job.source, self.blocks)
            if self.resume and not in_blocks:
                stop(ExitCode.USAGE, "--resume needs a folder as OUT, or an image in blocks")
            run_single(
                job,
                settings,
                warnings,
                quiet=self.quiet,
                report=self.report,
                blocks=self.blocks if in_blocks else None,
            )

    def _is_batch(self, *, series: bool) -> bool:
        """Whether outputs go to a folder; ``series`` says whether a DICOM series is one image.

        A single series goes to a folder of the name OUT, unless there is one already that is no
        series itself.
        """
        first, output = Path(self.inputs[0]), Path(self.output)
        if len(self.inputs) > 1 or is_pattern(self.inputs[0]):
            return True
        if is_folder_of_images(first, series=series):
            return True
        if is_folder_of_images(output, series=series and first.is_dir()):
            return True
        separators = tuple(filter(None, (os.sep, os.altsep)))
        named = self.output.endswith(separators)
        return named and (self.resume or not is_folder_of_images(first, series=False))

    def _check(self, *, pipes: bool, many: bool) -> None:
        """Refuse options that do not apply to these arguments."""
        if pipes and len(self.inputs) > 1:
            stop(ExitCode.USAGE, "- stands for a single image and cannot be one of several inputs")
        if self.output == PIPE == self.report:
            stop(
                ExitCode.USAGE, "the image and the --json report cannot both go to standard output"
            )
        given = {"--recursive": self.recursive, "--resume": self.resume, "--jobs": self.jobs > 1}
        named = [name for name, value in given.items() if value]
        # A large image may go on, too; whether it is one is known when it is opened.
        if named and not many and (pipes or named != ["--resume"]):
            stop(ExitCode.USAGE, f"{', '.join(named)} needs a folder as OUT")
        single = [name for name, value in self.blocks.single.items() if value]
        if single and (many or pipes):
            stop(ExitCode.USAGE, f"{', '.join(single)} is for one image, from file to file")
        if (many or pipes) and self.blocks.max_memory is not None:
            note(
                "--max-memory limits the memory of volumes only, since images are denoised in "
                "blocks only from one file to another"
            )
        if self.suffix is not None and not many and self.output != PIPE:
            stop(ExitCode.USAGE, "the format follows the file extension of OUT; leave out --format")
        if self.report is not None and not many:
            check_report(self.report, {Path(self.output)})

    def _start_batch(self, settings: Settings) -> None:
        from integrodiff.cli.batch.messages import Display
        from integrodiff.cli.batch.run import JobRunner, make_folder, run_batch
        from integrodiff.engines import cpu_count

        folder = Path(self.output)
        jobs = plan_jobs(
            self.inputs,
            folder,
            recursive=self.recursive,
            suffix=self.suffix,
            series=settings.options.volume is not False,
        )
        make_folder(folder)
        if self.report is not None:
            check_report(self.report, {job.target for job in jobs})
        if self.jobs > cpu_count():
            note(f"--jobs {self.jobs} exceeds the number of processors; using {cpu_count()}")
        display = Display(jobs, quiet=self.quiet)
        runner = JobRunner(settings=settings, resume=self.resume, show_progress=display.has_bar)
        run_batch(jobs, runner, display, processes=self.jobs, report=self.report)


def _suffix(form: str | None) -> str | None:
    """Return the file extension of a format, with its dot."""
    from integrodiff.io import SUFFIXES

    if form is None:
        return None
    suffix = f".{form.lower().removeprefix('.')}"
    if suffix not in SUFFIXES:
        names = ", ".join(known.removeprefix(".") for known in SUFFIXES)
        stop(ExitCode.USAGE, f"--format must be one of {names}, got {form!r}")
    return suffix
