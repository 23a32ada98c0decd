"""``integrodiff denoise``: one image, many images, or pipes."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import typer

from integrodiff._default_model import DEFAULT_MODEL
from integrodiff.cli._noise import Gain, NoiseKind, NoiseOptions, Offset, Readout, Sigma, SigmaMap
from integrodiff.cli._one_file import Options, Settings
from integrodiff.cli._pipes import PIPE, piped
from integrodiff.cli._single import run_single
from integrodiff.cli._terminal import ExitCode, exit_codes, note, plain_warnings, stop
from integrodiff.cli.batch.outcomes import check_report
from integrodiff.cli.batch.plan import is_folder_of_images, is_pattern, plan_jobs


def denoise(
    inputs: Annotated[
        list[str],
        typer.Argument(
            metavar="IN...",
            help="Noisy image or stack; or several, a folder, a pattern; - is the standard input.",
        ),
    ],
    output: Annotated[
        str,
        typer.Argument(
            metavar="OUT",
            help="Denoised image; its suffix says the format: .png, .jpg, .webp, .tif, .npy, and "
            "from the same format .dcm, .nii, .nii.gz, .zarr. For several images a folder; - is "
            "the standard output.",
        ),
    ],
    sigma: Sigma = None,
    sigma_map: SigmaMap = None,
    model: Annotated[
        str,
        typer.Option(
            metavar="NAME|FILE.json",
            help="iad-plus, iad-fast, iad-deep, iad-full, iad, iid, eed, pm, or a model file.",
        ),
    ] = DEFAULT_MODEL,
    engine: Annotated[
        str,
        typer.Option(
            metavar="auto|numpy|native|torch", help="Who computes; auto takes the fastest."
        ),
    ] = "auto",
    data_range: Annotated[
        float | None,
        typer.Option(
            metavar="R",
            help="Difference of the largest and smallest grey value that the image could have. "
            "By default 255 for 8 bits, found from the values for other integers, and 1 for "
            "floating point in \\[0, 1].",
            show_default=False,
        ),
    ] = None,
    colour: Annotated[
        str,
        typer.Option(
            metavar="auto|opponent|joint|separate",
            help="How channels are denoised; auto is opponent for RGB, joint for others.",
        ),
    ] = "auto",
    noise: NoiseKind = "gaussian",
    gain: Gain = None,
    offset: Offset = None,
    readout: Readout = None,
    as_float: Annotated[
        bool,
        typer.Option(
            "--float", help="Write float32, neither rounded nor clipped; for example to TIFF."
        ),
    ] = False,
    exact: Annotated[
        bool,
        typer.Option(
            "--exact",
            help="No shortcuts of the engine native, which change a photograph by at most 0.05 of "
            "255 grey levels.",
        ),
    ] = False,
    recursive: Annotated[
        bool, typer.Option("--recursive", "-r", help="Look into folders in folders as well.")
    ] = False,
    form: Annotated[
        str | None,
        typer.Option(
            "--format",
            metavar="SUFFIX",
            help="Format of outputs in a folder or to the standard output, as png or tif; by "
            "default that of each input.",
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
            help="Number of images that are denoised at the same time; they share the processors.",
        ),
    ] = 1,
    resume: Annotated[
        bool,
        typer.Option(
            "--resume",
            help="Skip images whose output is there, made from this input with these options, and "
            "unchanged since.",
        ),
    ] = False,
    report: Annotated[
        str | None,
        typer.Option(
            "--json",
            metavar="FILE",
            help="Write what became of each image to a file, or with - to the standard output.",
            show_default=False,
        ),
    ] = None,
    overwrite: Annotated[
        bool, typer.Option("--overwrite", help="Replace outputs that exist.")
    ] = False,
    quiet: Annotated[
        bool,
        typer.Option("--quiet", "-q", help="No progress bar and no summary; warnings stay."),
    ] = False,
) -> None:
    """Remove noise from image files.

    The result has the size, number type and colours of the input. Alpha channels, colour
    profiles and other metadata are carried over. The pages of a stack are denoised one by one,
    and no more than that is held in memory. OUT appears only when it is complete, and never
    replaces IN.

    If OUT is a folder, or IN is one, every image gets the same name there. One that cannot be
    denoised does not stop the others; the exit code is then 5.

    Examples: `integrodiff denoise noisy.png clean.png`, with the noise level known
    `integrodiff denoise noisy.png clean.png --sigma 25`, and for many
    `integrodiff denoise noisy/ clean/ --jobs 2 --resume`
    """
    with exit_codes(), plain_warnings() as shown:
        noise_options = NoiseOptions(
            sigma=sigma,
            sigma_map=sigma_map,
            kind=noise,
            gain=gain,
            offset=offset,
            readout=readout,
        )
        options = Options(
            noise=noise_options,
            model=model,
            engine=engine,
            data_range=data_range,
            colour=colour,
            as_float=as_float,
            exact=exact,
            overwrite=overwrite,
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
        )
        run.start(options, shown)


@dataclass(frozen=True, kw_only=True)
class _Run:
    """What is to be denoised, and how it is reported."""

    inputs: list[str]
    output: str
    recursive: bool
    suffix: str | None
    jobs: int
    resume: bool
    report: str | None
    quiet: bool

    def start(self, options: Options, warnings: list[str]) -> None:
        """Do it, in the way that the arguments ask for."""
        pipes = PIPE in (*self.inputs, self.output)
        many = not pipes and self._is_batch()
        self._check(pipes=pipes, many=many)
        settings = options.settings()
        if many:
            self._start_batch(settings)
            return
        with piped(self.inputs[0], self.output, self.suffix) as job:
            run_single(job, settings, warnings, quiet=self.quiet, report=self.report)

    def _is_batch(self) -> bool:
        """Whether outputs go into a folder."""
        separators = tuple(filter(None, (os.sep, os.altsep)))
        return (
            len(self.inputs) > 1
            or is_pattern(self.inputs[0])
            or is_folder_of_images(Path(self.inputs[0]))
            or is_folder_of_images(Path(self.output))
            or self.output.endswith(separators)
        )

    def _check(self, *, pipes: bool, many: bool) -> None:
        """Refuse options that have no meaning for these arguments."""
        if pipes and len(self.inputs) > 1:
            stop(ExitCode.USAGE, "- stands for one image; it cannot be one of several")
        if self.output == PIPE == self.report:
            stop(ExitCode.USAGE, "the image and --json cannot both go to the standard output")
        given = {"--recursive": self.recursive, "--resume": self.resume, "--jobs": self.jobs > 1}
        named = [name for name, value in given.items() if value]
        if named and not many:
            stop(ExitCode.USAGE, f"{', '.join(named)} is for several images: give a folder as OUT")
        if self.suffix is not None and not many and self.output != PIPE:
            stop(ExitCode.USAGE, "--format is said by the suffix of OUT; leave it out")
        if self.report is not None and not many:
            check_report(self.report, {Path(self.output)})

    def _start_batch(self, settings: Settings) -> None:
        from integrodiff.cli.batch.messages import Display
        from integrodiff.cli.batch.run import JobRunner, make_folder, run_batch
        from integrodiff.engines import cpu_count

        folder = Path(self.output)
        jobs = plan_jobs(self.inputs, folder, recursive=self.recursive, suffix=self.suffix)
        make_folder(folder)
        if self.report is not None:
            check_report(self.report, {job.target for job in jobs})
        if self.jobs > cpu_count():
            note(f"--jobs {self.jobs} is more than there are processors; {cpu_count()} are used")
        display = Display(jobs, quiet=self.quiet)
        runner = JobRunner(settings=settings, resume=self.resume, show_progress=display.has_bar)
        run_batch(jobs, runner, display, processes=self.jobs, report=self.report)


def _suffix(form: str | None) -> str | None:
    """Return the suffix that stands for a format."""
    from integrodiff.io import SUFFIXES

    if form is None:
        return None
    suffix = f".{form.lower().removeprefix('.')}"
    if suffix not in SUFFIXES:
        names = ", ".join(known.removeprefix(".") for known in SUFFIXES)
        stop(ExitCode.USAGE, f"--format must be one of {names}, got {form!r}")
    return suffix
