"""Batches without processes, and what they leave."""

from __future__ import annotations

from collections.abc import Callable, Generator
from pathlib import Path
from typing import Any

from integrodiff.cli.batch.workers import Word


def in_turn(
    tasks: list[Any], work: Callable[..., Any], **_: int
) -> Generator[tuple[Any, Word[Any]], None, None]:
    """Do in this process what several would do."""
    for task in tasks:
        news: list[float] = []
        result = work(task, news.append)
        yield from ((task, Word(None, part)) for part in news)
        yield task, Word(result)


def names(path: Path) -> list[str]:
    """Return all files but those in hidden folders."""
    files = (file.relative_to(path) for file in path.rglob("*") if file.is_file())
    return sorted(str(f) for f in files if not any(p.startswith(".") for p in f.parts[:-1]))
