"""``integrodiff train``: clean images in, one model file out."""

from __future__ import annotations

import contextlib
import os
import warnings
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, NoReturn, cast

import typer

from integrodiff.cli._terminal import (
    ExitCode,
    exit_codes,
    plain_warnings,
    say,
    stop,
    stopping,
)
from integrodiff.cli._training import bsds500_crops, reading_images, require_torch, trained
from integrodiff.cli._training_messages import Plan, announcement, print_summary

if TYPE_CHECKING:
    from integrodiff.learning import CleanImages
    from integrodiff.learning.fit import Loss

_BSDS500_CROP = 256

_ModelName = Annotated[
    str,
    typer.Argument(
        metavar="MODEL", help="pm, eed, iid, iad, iad-plus, iad-fast, iad-full or iad-smooth."
    ),
]
_Output = Annotated[
    Path, typer.Argument(metavar="OUT.json", help="Where to write the trained model.")
]
_Data = Annotated[
    Path | None,
    typer.Option(
        metavar="FOLDER",
        help="Folder with BSDS500. By default the one that the environment variable "
        "INTEGRODIFF_DATA names; without that, BSDS500 is downloaded.",
        show_default=False,
    ),
]
_Images = Annotated[
    Path | None,
    typer.Option(
        metavar="FOLDER",
        help="Folder with clean images of your own, in place of BSDS500.",
        show_default=False,
    ),
]
_Levels = Annotated[
    str,
    typer.Option(metavar="S,S,...", help="Noise levels, for grey values between 0 and 255."),
]
_Count = Annotated[
    int | None,
    typer.Option(
        metavar="N", min=1, help="Take only the first N images. By default all.", show_default=False
    ),
]
_Crop = Annotated[
    int, typer.Option(metavar="N", min=8, help="Side of the squares cut out of --images.")
]
_LossName = Annotated[
    str,
    typer.Option(
        metavar="psnr|mse",
        help="What to optimise: with psnr all noise levels count alike; mse is the paper's.",
    ),
]
_Phases = Annotated[
    str,
    typer.Option(
        metavar="N,...,all", help="Number of images in each phase; few images make a quick start."
    ),
]
_Iterations = Annotated[
    int, typer.Option(metavar="N", min=1, help="Largest number of steps in each phase.")
]
_Tolerance = Annotated[
    float,
    typer.Option(
        metavar="T",
        help="End when a step brings less than this: in dB for psnr, relative for mse.",
    ),
]
_Seed = Annotated[int, typer.Option(min=0, help="Which images the early phases take.")]
_Device = Annotated[
    str, typer.Option(metavar="auto|cpu|cuda", help="Where to compute; auto takes a GPU.")
]
_Batch = Annotated[
    int | None,
    typer.Option(
        metavar="N",
        min=1,
        help="Images that PyTorch takes at a time. The compiled engine, which trains most models "
        "on a CPU, takes one for each thread.",
        show_default=False,
    ),
]
_Work = Annotated[
    Path | None,
    typer.Option(
        metavar="FOLDER",
        help="Where checkpoints and logs go, and stay. By default OUT.json.training, which is "
        "removed at the end.",
        show_default=False,
    ),
]
_Overwrite = Annotated[bool, typer.Option("--overwrite", help="Replace OUT.json if it exists.")]
_Quiet = Annotated[
    bool, typer.Option("--quiet", "-q", help="No progress and no summary; warnings stay.")
]


def train(
    model: _ModelName,
    output: _Output,
    data: _Data = None,
    images: _Images = None,
    levels: _Levels = "10,20,30,40,50,60",
    count: _Count = None,
    crop: _Crop = _BSDS500_CROP,
    loss: _LossName = "psnr",
    phases: _Phases = "16,all",
    iterations: _Iterations = 30,
    tolerance: _Tolerance = 1e-4,
    seed: _Seed = 0,
    device: _Device = "auto",
    batch: _Batch = None,
    work: _Work = None,
    overwrite: _Overwrite = False,
    quiet: _Quiet = False,
) -> None:
    """Train the parameters of a model on clean images.

    Adds Gaussian noise to the images and finds the parameters that remove it best. The images
    are those of BSDS500, or your own. A training that was stopped goes on where it was when the
    same command is given again. OUT.json appears only when it is complete.

    Example: `integrodiff train iad mine.json --images photographs --levels 10,20,30`
    """
    arguments = locals()
    with exit_codes(), plain_warnings():
        # PyTorch's use of its own deprecated functions is no concern of the user.
        warnings.simplefilter("ignore", DeprecationWarning)
        _run(_Request(**arguments))


@dataclass(frozen=True, kw_only=True)
class _Request:
    """The arguments of the command."""

    model: str
    output: Path
    data: Path | None
    images: Path | None
    levels: str
    count: int | None
    crop: int
    loss: str
    phases: str
    iterations: int
    tolerance: float
    seed: int
    device: str
    batch: int | None
    work: Path | None
    overwrite: bool
    quiet: bool

    @property
    def work_folder(self) -> Path:
        """Where checkpoints and logs go."""
        return self.work or self.output.with_name(f"{self.output.name}.training")


def _run(request: _Request) -> None:
    """Check all that can be checked, then train, then write."""
    from integrodiff.models import save_model

    with stopping(ExitCode.USAGE, ValueError, TypeError):
        plan = _plan(request)
    require_torch(request.device)
    _check_output(request)
    images = _clean_images(request)
    with _work_folder(request, plan):
        if not request.quiet:
            say(announcement(plan, images))
        model = trained(
            plan,
            images,
            settings=plan.settings,
            device=request.device,
            batch=request.batch,
            quiet=request.quiet,
            elsewhere="--work",
        )
        _check_output(request)  # another program may have written it in the meantime
        try:
            save_model(model, request.output)
        except OSError as error:
            stop(
                ExitCode.OUTPUT,
                f"{request.output}: cannot be written: {error.strerror or error}. The training is "
                f"kept in {plan.work}; make room and give the same command again",
            )
        if request.work is None:
            _remove_files_of(plan)
    if not request.quiet:
        print_summary(model, name=request.model, output=request.output)


# ---- before the training ----


def _plan(request: _Request) -> Plan:
    """Return what to train, or raise a ValueError that says which argument is wrong."""
    from integrodiff._checks import one_of, positive_number
    from integrodiff.learning import FitSettings
    from integrodiff.learning.recipes import RECIPES

    if request.model not in RECIPES:
        raise ValueError(f"unknown model {request.model!r}: expected one of {', '.join(RECIPES)}")
    if request.data is not None and request.images is not None:
        raise ValueError("--data names BSDS500 and --images your own images; give only one of them")
    if request.images is None and request.crop != _BSDS500_CROP:
        raise ValueError(
            f"--crop is for --images: the crops of BSDS500 always have {_BSDS500_CROP} x "
            f"{_BSDS500_CROP} pixels; leave it out, or give --images"
        )
    one_of("--device", request.device, ("auto", "cpu", "cuda"))
    settings = FitSettings(
        loss=cast("Loss", one_of("--loss", request.loss, ("psnr", "mse"))),
        phases=_phases(request.phases),
        iterations=request.iterations,
        tolerance=positive_number("--tolerance", request.tolerance),
        seed=request.seed,
    )
    return Plan(
        name=request.model,
        levels=_levels(request.levels),
        per_level=RECIPES[request.model].per_level,
        settings=settings,
        work=request.work_folder,
    )


def _levels(text: str) -> tuple[float, ...]:
    """Return increasing noise levels."""
    from integrodiff._checks import positive_number

    try:
        levels = sorted(float(word) for word in text.split(","))
    except ValueError:
        raise ValueError(
            f"--levels must be numbers with commas between them, such as 10,20,30; got {text!r}"
        ) from None
    for level in levels:
        positive_number("each of --levels", level)
    if len(set(levels)) < len(levels):
        raise ValueError(f"--levels must differ from each other, got {text!r}")
    return tuple(levels)


def _phases(text: str) -> tuple[int | None, ...]:
    """Return the number of images in each phase, None for all."""
    words = [word.strip() for word in text.split(",")]
    if not all(word == "all" or (word.isdecimal() and int(word) > 0) for word in words):
        raise ValueError(
            "--phases must be whole numbers above 0, or all, with commas between them, such as "
            f"16,all; got {text!r}"
        )
    return tuple(None if word == "all" else int(word) for word in words)


def _check_output(request: _Request) -> None:
    """Refuse a path that no model file can be written to."""

    def refuse(reason: str) -> NoReturn:
        stop(ExitCode.OUTPUT, f"{path}: {reason}")

    path = request.output
    if path.suffix != ".json":
        refuse("the name of a model file must end in .json")
    with stopping(ExitCode.OUTPUT, OSError):
        if path.is_dir():
            refuse("is a folder; give the name of a file")
        if path.exists() and not path.is_file():
            refuse("is not a regular file and will not be replaced")
        if path.exists() and not request.overwrite:
            refuse("exists already; give another name, or --overwrite it")
        folder = Path(os.path.realpath(path)).parent
        if not folder.is_dir():
            refuse("cannot be written: its folder does not exist; make it first")
        if not os.access(folder, os.W_OK):
            refuse("cannot be written: you may not write to its folder")


def _clean_images(request: _Request) -> CleanImages:
    """Read the images; what cannot be read or downloaded is bad input."""
    from integrodiff.learning import image_folder

    if request.images is None:
        return bsds500_crops("train", request.data, request.count, quiet=request.quiet)
    with reading_images():
        return image_folder(request.images, request.crop, request.count)


# ---- the training ----


@contextlib.contextmanager
def _work_folder(request: _Request, plan: Plan) -> Iterator[None]:
    """Make the folder for the checkpoints; say how to go on if the user interrupts."""
    try:
        plan.work.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        stop(
            ExitCode.OUTPUT,
            f"{plan.work}: the folder for the checkpoints cannot be made: "
            f"{error.strerror or error}; give another one as --work",
        )
    try:
        yield
    except KeyboardInterrupt:
        if plan.checkpoints():
            say(f"interrupted; the same command goes on from the last step, kept in {plan.work}")
        else:
            say("interrupted before the first step; the same command starts anew")
        raise typer.Exit(ExitCode.INTERRUPTED) from None
    finally:
        if request.work is None:
            with contextlib.suppress(OSError):
                plan.work.rmdir()  # which fails if anything is in it


def _remove_files_of(plan: Plan) -> None:
    """Remove what the training of this model left in its folder, and nothing else."""
    patterns = (f"{plan.name}-[0-9]*.checkpoint.json", f"{plan.name}-[0-9]*.log.jsonl")
    with contextlib.suppress(OSError):
        # The last pattern is for checkpoints that a killed program was writing.
        for pattern in (*patterns, ".*.part.json"):
            for path in plan.work.glob(pattern):
                path.unlink()
