"""Messages of a training: start, iterations, summary."""

from __future__ import annotations

import contextlib
import shlex
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from integrodiff.cli._terminal import messages, results, say

if TYPE_CHECKING:
    from integrodiff.learning import CleanImages, FitSettings
    from integrodiff.learning import Progress as Step
    from integrodiff.models import ExplicitModel, Model


@dataclass(frozen=True, kw_only=True)
class Plan:
    """A checked training request; ``per_level`` if each noise level is trained separately."""

    name: str
    levels: tuple[float, ...]
    per_level: bool
    settings: FitSettings
    work: Path

    def checkpoints(self) -> list[Path]:
        """Return the checkpoints of this model, latest last."""
        # The digit excludes "iad-full-20" from the checkpoints of "iad".
        found = self.work.glob(f"{self.name}-[0-9]*.checkpoint.json")
        return sorted(found, key=lambda path: path.stat().st_mtime_ns)


@contextlib.contextmanager
def watcher(plan: Plan, *, quiet: bool) -> Iterator[Callable[[Step], None]]:
    """Yield a callback that shows each iteration: one live line on a terminal, else a log."""
    console = messages()
    if quiet:
        yield lambda step: None
        return
    if not console.is_terminal:
        yield lambda step: say(step_text(plan, step))
        return
    from rich.progress import Progress, SpinnerColumn, TextColumn, TimeElapsedColumn
    from rich.table import Column

    text = TextColumn("{task.description}", markup=False, table_column=Column(overflow="fold"))
    columns = (SpinnerColumn(), TimeElapsedColumn(), text)
    with Progress(*columns, console=console, transient=True) as live:
        task = live.add_task(f"{plan.name}: first iteration", total=None)
        yield lambda step: live.update(task, description=step_text(plan, step))


def announcement(plan: Plan, images: CleanImages) -> str:
    """Return the message before the first iteration."""
    where = f"checkpoints and logs are in {plan.work}"
    if plan.checkpoints():
        return f"{plan.name} on {len(images)} images continues from its last checkpoint; {where}"
    return (
        f"{plan.name} at sigma {_level_text(plan)} on {len(images)} images ({images.source}); "
        f"{where}; if it is stopped, repeat the command to continue"
    )


def step_text(plan: Plan, step: Step) -> str:
    """Describe one iteration of the training in one line."""
    levels = _level_text(plan)
    if plan.per_level:
        # An iteration does not carry its level, but the newest checkpoint is named after it.
        latest = plan.checkpoints()[-1].name.removesuffix(".checkpoint.json")
        levels = latest.removeprefix(f"{plan.name}-")
    start = f"start {step.start + 1}, " if step.phase == 0 and not plan.per_level else ""
    return (
        f"{plan.name}, sigma {levels}, {start}phase {step.phase + 1} of "
        f"{len(plan.settings.phases)} ({step.images} examples), iteration {step.iteration}: "
        f"{step.psnr:.3f} dB, {step.seconds:.1f} s, {_parameter_text(step.parameters)}"
    )


def _level_text(plan: Plan) -> str:
    return ", ".join(f"{level:g}" for level in plan.levels)


def _parameter_text(parameters: Mapping[str, Any]) -> str:
    """List parameters by name with four digits; elements of a sequence share one name."""
    groups: dict[str, list[str]] = {}
    for name, value in parameters.items():
        if not isinstance(value, str):
            values = value if isinstance(value, list) else [value]
            groups.setdefault(name.split("[")[0], []).extend(f"{v:.4g}" for v in values)
    return ", ".join(f"{name} {' '.join(values)}" for name, values in groups.items())


def print_summary(model: Model, *, name: str, output: Path) -> None:
    """Print the trained parameters as a table, and the command that uses them."""
    from rich import box
    from rich.table import Table

    from integrodiff.models import ByNoiseLevel

    origin = model.provenance
    title = f"{name}, trained on {origin['images']} images"
    table = Table(title=title, title_justify="left", box=box.SIMPLE)
    for header in ("sigma", "PSNR [dB]"):
        table.add_column(header, justify="right")
    table.add_column("parameters", overflow="fold")
    for row, (level, psnr) in enumerate(origin["psnr_on_training_images"].items()):
        member = model.models[row] if isinstance(model, ByNoiseLevel) else model
        # Parameters for all noise levels together are shown once.
        new = row == 0 or isinstance(model, ByNoiseLevel)
        values = _parameter_text(cast("ExplicitModel", member).parameters()) if new else ""
        table.add_row(level, f"{psnr:.2f}", values)
    results().print(table)
    say(f"training took {origin['seconds']:.1f} s; model written to {output}; use it with")
    name = shlex.quote(str(output))
    say(f"integrodiff denoise noisy.png clean.png --sigma S --model {name}")
