"""``integrodiff train``: fit a model to clean images and write a model file."""

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
    interrupt_code,
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
        metavar="MODEL",
        help="Model to train: pm, eed, iid, iad, iad-plus, iad-fast, iad-full, iad-power, "
        "iad-power-fast or iad-smooth.",
    ),
]
_Output = Annotated[Path, typer.Argument(metavar="OUT.json", help="Model file to write.")]
_Data = Annotated[
    Path | None,
    typer.Option(
        metavar="FOLDER",
        help="Folder that contains BSDS500. By default the environment variable INTEGRODIFF_DATA; "
        "if that is not set, BSDS500 is downloaded.",
        show_default=False,
    ),
]
_Images = Annotated[
    Path | None,
    typer.Option(
        metavar="FOLDER",
        help="Folder with your own clean images, instead of BSDS500.",
        show_default=False,
    ),
]
_Levels = Annotated[
    str,
    typer.Option(
        metavar="S,S,...", help="Noise levels to train for, on the grey scale from 0 to 255."
    ),
]
_Count = Annotated[
    int | None,
    typer.Option(
        metavar="N", min=1, help="Use only the first N images. By default all.", show_default=False
    ),
]
_Crop = Annotated[
    int, typer.Option(metavar="N", min=8, help="Side in pixels of the square crops of --images.")
]
_LossName = Annotated[
    str,
    typer.Option(
        metavar="psnr|mse",
        help="Loss: psnr weighs all noise levels equally; mse is the loss of the paper.",
    ),
]
_Phases = Annotated[
    str,
    typer.Option(
        metavar="N,...,all",
        help="Number of images in each phase of the training; a small first phase saves time.",
    ),
]
_Iterations = Annotated[
    int, typer.Option(metavar="N", min=1, help="Maximum number of iterations in each phase.")
]
_Tolerance = Annotated[
    float,
    typer.Option(
        metavar="T",
        help="Stop when an iteration gains less than this: in dB for psnr, relative for mse.",
    ),
]
_Seed = Annotated[
    int, typer.Option(min=0, help="Random seed for the choice of images in the early phases.")
]
_Device = Annotated[
    str, typer.Option(metavar="auto|cpu|cuda", help="Device; auto takes a GPU if there is one.")
]
_Batch = Annotated[
    int | None,
    typer.Option(
        metavar="N",
        min=1,
        help="Batch size on a GPU, and of PyTorch. The compiled engine, which trains most models "
        "on a CPU, processes one image per thread.",
        show_default=False,
    ),
]
_Work = Annotated[
    Path | None,
    typer.Option(
        metavar="FOLDER",
        help="Folder for checkpoints and logs, which is kept. By default OUT.json.training, which "
        "is removed at the end.",
        show_default=False,
    ),
]
_Overwrite = Annotated[bool, typer.Option("--overwrite", help="Replace an existing OUT.json.")]
_Quiet = Annotated[bool, typer.Option("--quiet", "-q", help="Show warnings and errors only.")]


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

    Adds Gaussian noise to the images of BSDS500, or to your own, and fits the parameters that
    remove it best. Repeat the same command to continue a training that was stopped. OUT.json
    appears only when it is complete.

    For example:

        integrodiff train iad mine.json --data FOLDER
        integrodiff train iad mine.json --images photographs --levels 10,20,30
        integrodiff denoise noisy.png clean.png --model mine.json
    """
    arguments = locals()
    with exit_codes(), plain_warnings():
        # PyTorch warns about its own use of deprecated functions.
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
        """Folder of checkpoints and logs."""
        return self.work or self.output.with_name(f"{self.output.name}.training")


def _run(request: _Request) -> None:
    """Check the arguments, train, write the model."""
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
                f"kept in {plan.work}; free some space and repeat the command",
            )
        if request.work is None:
            _remove_files_of(plan)
    if not request.quiet:
        print_summary(model, name=request.model, output=request.output)


# ---- before the training ----


def _plan(request: _Request) -> Plan:
    """Return the training plan; raise ValueError for a bad argument."""
    from integrodiff._checks import one_of, positive_number
    from integrodiff.learning import FitSettings
    from integrodiff.learning.recipes import RECIPES

    if request.model not in RECIPES:
        raise ValueError(f"unknown model {request.model!r}: expected one of {', '.join(RECIPES)}")
    if request.data is not None and request.images is not None:
        raise ValueError(
            "--data is for BSDS500 and --images for your own images; give only one of them"
        )
    if request.images is None and request.crop != _BSDS500_CROP:
        raise ValueError(
            f"--crop applies to --images only: the crops of BSDS500 always have {_BSDS500_CROP} x "
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
            f"--levels must be numbers separated by commas, such as 10,20,30; got {text!r}"
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
            "--phases must be positive integers or all, separated by commas, such as 16,all; "
            f"got {text!r}"
        )
    return tuple(None if word == "all" else int(word) for word in words)


def _check_output(request: _Request) -> None:
    """Stop if no model file can be written to the path."""

    def refuse(reason: str) -> NoReturn:
        stop(ExitCode.OUTPUT, f"{path}: {reason}")

    path = request.output
    if path.suffix != ".json":
        refuse("the name of a model file must end in .json")
    with stopping(ExitCode.OUTPUT, OSError):
        if path.is_dir():
            refuse("is a folder; give a file name")
        if path.exists() and not path.is_file():
            refuse("is not a regular file and will not be replaced")
        if path.exists() and not request.overwrite:
            refuse("exists already; choose another name, or give --overwrite")
        folder = Path(os.path.realpath(path)).parent
        if not folder.is_dir():
            refuse("cannot be written: its folder does not exist; create it first")
        if not os.access(folder, os.W_OK):
            refuse("cannot be written: no permission to write to its folder")


def _clean_images(request: _Request) -> CleanImages:
    """Read or download the images; stop with exit code 3 if that fails."""
    from integrodiff.learning import image_folder

    if request.images is None:
        return bsds500_crops("train", request.data, request.count, quiet=request.quiet)
    with reading_images():
        return image_folder(request.images, request.crop, request.count)


# ---- the training ----


@contextlib.contextmanager
def _work_folder(request: _Request, plan: Plan) -> Iterator[None]:
    """Create the folder for checkpoints; after an interrupt, say how to continue."""
    try:
        plan.work.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        stop(
            ExitCode.OUTPUT,
            f"{plan.work}: the folder for checkpoints cannot be created: "
            f"{error.strerror or error}; choose another one with --work",
        )
    try:
        yield
    except KeyboardInterrupt as error:
        if plan.checkpoints():
            say(f"interrupted; repeat the command to continue from the checkpoint in {plan.work}")
        else:
            say("interrupted before the first iteration; nothing was kept")
        raise typer.Exit(interrupt_code(error)) from None
    finally:
        if request.work is None:
            with contextlib.suppress(OSError):
                plan.work.rmdir()  # fails unless it is empty


def _remove_files_of(plan: Plan) -> None:
    """Remove the checkpoints and logs of this model, and no other files."""
    patterns = (f"{plan.name}-[0-9]*.checkpoint.json", f"{plan.name}-[0-9]*.log.jsonl")
    with contextlib.suppress(OSError):
        # The last pattern matches unfinished checkpoints of a killed process.
        for pattern in (*patterns, ".*.part.json"):
            for path in plan.work.glob(pattern):
                path.unlink()
