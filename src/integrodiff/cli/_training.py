"""Clean images, PyTorch and error handling for the commands that train."""

from __future__ import annotations

import contextlib
import importlib.util
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from integrodiff.cli._terminal import ExitCode, say, stop
from integrodiff.cli._training_messages import Plan, watcher
from integrodiff.install import install_hint

if TYPE_CHECKING:
    from integrodiff.learning import CleanImages, FitSettings
    from integrodiff.models import Model

_INSTALL = install_hint("train")


def require_torch(device: str) -> None:
    """Stop if PyTorch, or the requested GPU, cannot be used."""
    if importlib.util.find_spec("torch") is None:
        stop(ExitCode.USAGE, f"training needs PyTorch, which is not installed; {_INSTALL}")
    try:
        from integrodiff.learning.recipes import has_gpu

        found = has_gpu(device)
    except Exception as error:  # a broken installation may fail in any way
        stop(ExitCode.USAGE, f"PyTorch is installed but cannot be imported ({error}); {_INSTALL}")
    if device == "cuda" and not found:
        stop(ExitCode.USAGE, "--device cuda: PyTorch finds no GPU; give --device cpu")


@contextlib.contextmanager
def reading_images() -> Iterator[None]:
    """Stop with exit code 3 if the block cannot read or download its images."""
    try:
        yield
    except ImportError as error:
        stop(ExitCode.USAGE, f"downloading BSDS500 needs {error.name}; {_INSTALL}")
    except (OSError, ValueError) as error:
        text = str(error).replace("a smaller crop size", "a smaller --crop")
        stop(ExitCode.INPUT, text.replace("by an option", "by --data"))


def bsds500_crops(
    split: str, data: Path | None, count: int | None, *, quiet: bool = False
) -> CleanImages:
    """Return crops of BSDS500; stop if they cannot be read or downloaded."""
    from integrodiff.learning import bsds500

    with reading_images():
        if quiet:
            _silence_download()
        return bsds500(split, data, count)


def _silence_download() -> None:
    """Hide the messages of the download library."""
    if importlib.util.find_spec("pooch") is not None:
        import pooch

        pooch.get_logger().setLevel("WARNING")


def trained(
    plan: Plan,
    images: CleanImages,
    *,
    settings: FitSettings | None,
    device: str,
    batch: int | None,
    quiet: bool,
    elsewhere: str,
) -> Model:
    """Train a model; stop if checkpoints do not match, or memory or disk space runs out.

    ``elsewhere`` is the option that chooses another folder for checkpoints.
    """
    from integrodiff.learning import recipes

    reason = recipes.why_no_kernels(device)
    if reason is not None and not quiet:
        say(f"the GPU trains by PyTorch's operations, since its fused kernels cannot run: {reason}")
    try:
        with watcher(plan, quiet=quiet) as watch:
            return recipes.train(
                plan.name,
                images,
                plan.levels,
                settings=settings,
                device=device,
                batch=batch,
                folder=plan.work,
                callback=watch,
            )
    except OSError as error:
        stop(
            ExitCode.OUTPUT,
            f"{plan.work}: checkpoints or logs cannot be written: {error.strerror or error}",
        )
    except ValueError as error:
        if str(plan.work) not in str(error):
            raise
        stop(ExitCode.OUTPUT, f"{error}; or choose another folder with {elsewhere}")
    except (MemoryError, RuntimeError) as error:
        words = ("out of memory", "allocate memory")
        if not isinstance(error, MemoryError) and not any(word in str(error) for word in words):
            raise
        stop(
            ExitCode.UNEXPECTED,
            "not enough memory; repeat the command with a smaller --batch to continue",
        )
