"""Records of a batch: what each output was made from, so that it need not be made again.

The record of ``OUTDIR/a/b.tif`` is ``OUTDIR/.integrodiff/a/b.tif.json``. It has the length and the
SHA-256 of the input and of the output, and the options. It is written when the output is complete,
just before the output gets its name: an output of a batch always has its record, also if the
program is killed in between, and a record without its output does no harm.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from integrodiff.cli._files import Contents, contents

if TYPE_CHECKING:
    from integrodiff.cli._one_file import Settings

_SCHEMA, _VERSION = "integrodiff-record", 1
_LARGEST_RECORD = 1 << 20
"""Bytes of a record; real ones have about a thousand."""

_MOST_NAMED, _LONGEST_NAME = 5, 40
"""Number of options that a message names, and characters of each; a record may say anything."""


def options_of(settings: Settings) -> dict[str, Any]:
    """Return all that decides on the result besides the input."""
    from integrodiff._version import __version__
    from integrodiff.models.files import model_to_json

    options = settings.options
    parameters = model_to_json(settings.denoiser.request.model)
    noise = asdict(options.noise)
    for name in ("sigma_map", "noise_psd"):
        noise[name] = settings.read.get(name)
    masks = options.masks
    return {
        "version": __version__,
        "noise": noise.pop("kind"),
        **noise,
        "mask": settings.read.get("mask"),
        "nodata": masks.nodata,
        "model": Path(options.model).name,
        "parameters": hashlib.sha256(parameters.encode()).hexdigest(),
        "engine": options.engine,
        "data_range": options.data_range,
        "volume": options.volume,
        "spacing": options.spacing,
        "colour": options.colour,
        "float": options.as_float,
        "exact": options.exact,
        "quality": options.quality,
    }


def identity_of(settings: Settings) -> str:
    """Return a text that is the same for all outputs that are made with the same options."""
    return json.dumps(options_of(settings), sort_keys=True)


def write_record(path: Path, source: Contents, target: Contents, options: dict[str, Any]) -> None:
    """Write down what an output was made from."""
    from integrodiff._atomic import atomic_write

    record = {
        "schema": _SCHEMA,
        "schema_version": _VERSION,
        "input": source,
        "output": target,
        "options": options,
    }
    with atomic_write(path, overwrite=True) as temporary:
        temporary.write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")


@contextmanager
def alone_with(path: Path) -> Iterator[None]:
    """Let no other process write records beside this one while its output gets its name.

    Otherwise another batch into the same folder could write its record in between, which then
    describes the output of this one. Where the system has no such lock, there is none.

    Parameters
    ----------
    path : Path
        The record; its folder is made.
    """
    make_folders(path.parent)
    try:
        import fcntl
    except ImportError:  # Windows
        yield
        return
    descriptor = os.open(path.parent, os.O_RDONLY)
    try:
        with suppress(OSError):  # some file systems have no locks
            fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)


def make_folders(folder: Path) -> None:
    """Make a folder and those above it, however many; the standard library calls itself."""
    missing = [folder]
    while not missing[-1].exists() and missing[-1].parent != missing[-1]:
        missing.append(missing[-1].parent)
    for path in reversed(missing):
        path.mkdir(exist_ok=True)


def stale_reason(path: Path, source: Contents, target: Path, options: dict[str, Any]) -> str | None:
    """Return why an output is stale, or None if it is what would be made now.

    Parameters
    ----------
    path : Path
        The record.
    source : Contents
        The input as it is now.
    target : Path
        The output, which exists.
    options : dict
        The options as they are now.
    """
    from integrodiff._text_files import regular_text

    try:
        record = json.loads(regular_text(path, _LARGEST_RECORD))
    except FileNotFoundError:
        return "there is no record that a batch made it"
    except (OSError, ValueError, RecursionError):
        return "the record of how it was made cannot be read"
    if not isinstance(record, dict) or record.get("schema") != _SCHEMA:
        return "the record of how it was made is not one"
    if record.get("schema_version") != _VERSION or not isinstance(record.get("options"), dict):
        return "the record of how it was made is of another version"
    if record.get("input") != source:
        return "the input has changed since it was made"
    made = record["options"]
    names = {**options, **made}
    changed = [name.replace("_", " ") for name in names if made.get(name) != options.get(name)]
    if changed:
        told = [name[:_LONGEST_NAME] for name in changed[:_MOST_NAMED]]
        more = ", ..." if len(changed) > _MOST_NAMED else ""
        return f"it was made with other options: {', '.join(told)}{more}"
    if record.get("output") != contents(target):
        return "it has changed since it was made"
    return None
