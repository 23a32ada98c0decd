"""``integrodiff reproduce``: recompute the tables and figures of the paper."""

from __future__ import annotations

import contextlib
import os
import warnings
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from integrodiff.cli._terminal import (
    ExitCode,
    exit_codes,
    interrupt_code,
    plain_warnings,
    progress,
    require_matplotlib,
    say,
    stop,
    stopping,
)
from integrodiff.cli._training import bsds500_crops, reading_images, require_torch, trained
from integrodiff.cli._training_messages import Plan, announcement

if TYPE_CHECKING:
    from integrodiff.learning import CleanImages
    from integrodiff.models import Model
    from integrodiff.reproduction.figure2 import Cameraman
    from integrodiff.reproduction.targets import Reproduction

_ALL = "all"

_Targets = Annotated[
    list[str],
    typer.Argument(
        metavar="TARGET...",
        help="One or more of table1, figure1, figure2, ablation; or all.",
    ),
]
_Output = Annotated[
    Path,
    typer.Option(metavar="FOLDER", help="Folder for the results; earlier ones are replaced."),
]
_Data = Annotated[
    Path | None,
    typer.Option(
        metavar="FOLDER",
        help="Folder that contains BSDS500 and, for figure2, set12/cameraman.png. By default the "
        "environment variable INTEGRODIFF_DATA; if that is not set, BSDS500 is downloaded.",
        show_default=False,
    ),
]
_Count = Annotated[
    int | None,
    typer.Option(
        metavar="N",
        min=1,
        help="Evaluate on the first N test crops. By default all 100.",
        show_default=False,
    ),
]
_Jobs = Annotated[
    int | None,
    typer.Option(
        metavar="N",
        min=1,
        help="Number of processes. By default one per processor.",
        show_default=False,
    ),
]
_Train = Annotated[
    bool,
    typer.Option(
        "--train",
        help="Train the models first, instead of using the shipped ones. They are written to "
        "FOLDER/models; a stopped run continues from FOLDER/checkpoints.",
    ),
]
_TrainCount = Annotated[
    int | None,
    typer.Option(
        metavar="N",
        min=1,
        help="With --train: use the first N training crops. By default all 200.",
        show_default=False,
    ),
]
_Device = Annotated[
    str,
    typer.Option(
        metavar="auto|cpu|cuda", help="With --train: device; auto takes a GPU if there is one."
    ),
]
_Batch = Annotated[
    int | None,
    typer.Option(
        metavar="N",
        min=1,
        help="With --train: batch size of PyTorch. The compiled engine, which trains most models "
        "on a CPU, processes one image per thread.",
        show_default=False,
    ),
]


def reproduce(
    targets: _Targets,
    output: _Output = Path("reproduced"),
    data: _Data = None,
    count: _Count = None,
    jobs: _Jobs = None,
    train: _Train = False,
    train_count: _TrainCount = None,
    device: _Device = "auto",
    batch: _Batch = None,
) -> None:
    """Reproduce the table, figures and ablation of the paper.

    Prints our numbers, the paper's, and their differences; writes them as JSON, CSV and Markdown,
    and figures as PNG. The evaluation on all test crops takes minutes. figure2.png shows a
    photograph that is licensed for research only.

    For example:

        integrodiff reproduce table1 --data FOLDER --count 10
        integrodiff reproduce all --data FOLDER --output reproduced
    """
    arguments = locals()
    with exit_codes(), plain_warnings():
        # PyTorch warns about its own use of deprecated functions.
        warnings.simplefilter("ignore", DeprecationWarning)
        _run(_Request(**arguments))


@dataclass(frozen=True, kw_only=True)
class _Request:
    """The arguments of the command."""

    targets: list[str]
    output: Path
    data: Path | None
    count: int | None
    jobs: int | None
    train: bool
    train_count: int | None
    device: str
    batch: int | None


def _run(request: _Request) -> None:
    """Check the arguments, read the images, train if asked to, compute and write."""
    from integrodiff.reproduction.targets import TARGETS

    with stopping(ExitCode.USAGE, ValueError):
        names = _target_names(request)
    targets = [TARGETS[name] for name in names]
    if any(target.draws for target in targets):
        require_matplotlib()
    if request.train:
        require_torch(request.device)
    _check_output(request.output)
    cameraman = None
    if any(target.needs_cameraman for target in targets):
        cameraman = _cameraman(request.data)
    images = None
    if any(target.cells for target in targets):
        images = bsds500_crops("test", request.data, request.count)
    wanted = list(dict.fromkeys(model for target in targets for model in target.models))
    models = _trained_models(request, wanted) if request.train else _shipped_models(wanted)
    _reproduce(request, names, models, images, cameraman)


# ---- before anything is computed ----


def _target_names(request: _Request) -> list[str]:
    """Return the targets in their fixed order; raise ValueError for a bad argument."""
    from integrodiff._checks import one_of
    from integrodiff.reproduction.targets import TARGETS

    for name in request.targets:
        if name not in (*TARGETS, _ALL):
            raise ValueError(
                f"unknown target {name!r}: expected one of {', '.join(sorted(TARGETS))}, {_ALL}"
            )
    one_of("--device", request.device, ("auto", "cpu", "cuda"))
    for option, given in (
        ("--train-count", request.train_count is not None),
        ("--device", request.device != "auto"),
        ("--batch", request.batch is not None),
    ):
        if given and not request.train:
            raise ValueError(
                f"{option} applies to training only; give --train as well, or leave it out"
            )
    return [name for name in TARGETS if name in request.targets or _ALL in request.targets]


def _check_output(folder: Path) -> None:
    """Stop if the folder cannot be written to; it is not created yet."""
    with stopping(ExitCode.OUTPUT, OSError):
        if folder.exists() and not folder.is_dir():
            stop(ExitCode.OUTPUT, f"{folder}: is not a folder; choose another one with --output")
        path = Path(os.path.realpath(folder))
        existing = next(parent for parent in (path, *path.parents) if parent.exists())
        if not existing.is_dir() or not os.access(existing, os.W_OK | os.X_OK):
            stop(
                ExitCode.OUTPUT, f"{folder}: cannot be written; choose another folder with --output"
            )


def _cameraman(data: Path | None) -> Cameraman:
    from integrodiff.reproduction.figure2 import read_cameraman

    with reading_images():
        return read_cameraman(data)


# ---- models ----


def _shipped_models(names: list[str]) -> dict[str, Model]:
    from integrodiff.models import load_model

    return {name: load_model(name) for name in names}


def _trained_models(request: _Request, names: list[str]) -> dict[str, Model]:
    """Train the models one by one and write each when it is done."""
    from integrodiff.learning import FitSettings
    from integrodiff.learning.recipes import RECIPES
    from integrodiff.models import save_model
    from integrodiff.reproduction.targets import training_levels

    images = bsds500_crops("train", request.data, request.train_count)
    checkpoints = request.output / "checkpoints"
    models: dict[str, Model] = {}
    try:
        with _writing(request.output):
            checkpoints.mkdir(parents=True, exist_ok=True)
            (request.output / "models").mkdir(exist_ok=True)
        for name in names:
            plan = Plan(
                name=name,
                levels=training_levels(name),
                per_level=RECIPES[name].per_level,
                settings=FitSettings(),
                work=checkpoints,
            )
            say(announcement(plan, images))
            models[name] = trained(
                plan,
                images,
                settings=None,
                device=request.device,
                batch=request.batch,
                quiet=False,
                elsewhere="--output",
            )
            with _writing(request.output):
                save_model(models[name], request.output / "models" / f"{name}.json")
    except KeyboardInterrupt as error:
        say(f"interrupted; repeat the command to continue from the checkpoint in {checkpoints}")
        raise typer.Exit(interrupt_code(error)) from None
    return models


# ---- results ----


def _reproduce(
    request: _Request,
    names: list[str],
    models: dict[str, Model],
    images: CleanImages | None,
    cameraman: Cameraman | None,
) -> None:
    """Compute, print and write the targets one by one."""
    from concurrent.futures.process import BrokenProcessPool

    from integrodiff.engines import cpu_count
    from integrodiff.reproduction.evaluation import Evaluation
    from integrodiff.reproduction.targets import TARGETS, Inputs

    cells = {cell for name in names for cell in TARGETS[name].cells}
    jobs = request.jobs or cpu_count()
    evaluation = None
    if images is not None:
        evaluation = Evaluation(models, images, jobs=jobs)
        say(
            f"{len(cells)} pairs of model and noise level, each on {len(images)} test crops, in "
            f"{jobs} process(es)"
        )
    inputs = Inputs(models=models, evaluation=evaluation, cameraman=cameraman)
    total = len(cells) * (0 if images is None else len(images))
    results: list[Reproduction] = []
    paths: list[Path] = []
    with progress("test crops", total, quiet=False) as advance:
        if evaluation is not None and advance is not None:
            evaluation.callback = lambda crops: [advance() for _ in range(crops)]
        for name in names:
            try:
                results.append(TARGETS[name].compute(inputs))
            except (MemoryError, BrokenProcessPool):
                stop(
                    ExitCode.UNEXPECTED,
                    "not enough memory; reduce the number of processes with --jobs",
                )
            with _writing(request.output):
                request.output.mkdir(parents=True, exist_ok=True)
                paths += results[-1].write(request.output)
    typer.echo("\n".join(result.markdown for result in results), nl=False)
    say(f"written to {request.output}: {', '.join(path.name for path in paths)}")


@contextlib.contextmanager
def _writing(folder: Path) -> Iterator[None]:
    """Stop with exit code 4 if the block cannot write to the folder."""
    try:
        yield
    except OSError as error:
        stop(ExitCode.OUTPUT, f"{folder}: cannot be written: {error.strerror or error}")
