"""Batches without processes, and what they leave."""

from __future__ import annotations

from collections.abc import Callable, Generator
from pathlib import Path
from typing import Any

from integrodiff.cli.batch.workers import Event, Finished, Progress


def in_turn(
    tasks: list[Any], work: Callable[..., Any], **_: int
) -> Generator[tuple[Any, Event[Any]], None, None]:
    """Do in this process what several would do."""
    for task in tasks:
        fractions: list[float] = []
        result = work(task, fractions.append)
        yield from ((task, Progress(fraction)) for fraction in fractions)
        yield task, Finished(result)


def names(path: Path) -> list[str]:
    """Return all files but those in hidden folders."""
    files = (file.relative_to(path) for file in path.rglob("*") if file.is_file())
    return sorted(str(f) for f in files if not any(p.startswith(".") for p in f.parts[:-1]))
