"""Files of commands: outputs that are inputs, and the content of a file by its hash."""

from __future__ import annotations

import errno
import hashlib
import os
import stat
from collections.abc import Iterable
from pathlib import Path
from typing import Any, TypeAlias

from integrodiff.cli._terminal import ExitCode, stop

Contents: TypeAlias = dict[str, Any]
"""Length in bytes and SHA-256 of a file, or of all files in a folder."""

_CHUNK = 1 << 20


def refuse_output_over_inputs(output: Path, inputs: Iterable[Path]) -> None:
    """Refuse an output that is an input, or inside one, also through links."""
    for path in inputs:
        try:
            folders = [output, *output.resolve().parents]
            same = any(folder.exists() and path.samefile(folder) for folder in folders)
        except (OSError, ValueError):
            continue  # missing or inaccessible files are reported when they are opened
        if same:
            stop(
                ExitCode.OUTPUT,
                f"{output} is the input itself, or inside it, and inputs are never changed; choose "
                "another name for the output",
            )


def contents(path: Path) -> Contents:
    """Return length and hash of a file, or of a folder with the names of the files in it.

    Raises
    ------
    OSError
        If it cannot be read, or is neither; a pipe or a device could go on for ever.
    """
    digest, size = hashlib.sha256(), 0
    folder = path.is_dir()
    if not folder and not stat.S_ISREG(path.stat().st_mode):
        raise OSError(errno.EINVAL, "is not a regular file", str(path))
    files = sorted(file for file in path.rglob("*") if file.is_file()) if folder else [path]
    for file in files:
        if folder:
            name = os.fsencode(file.relative_to(path))
            digest.update(b"%d %d " % (len(name), file.stat().st_size) + name)
        with file.open("rb") as stream:
            while block := stream.read(_CHUNK):
                digest.update(block)
                size += len(block)
    return {"bytes": size, "sha256": digest.hexdigest()}


def contents_of_image(path: Path) -> Contents:
    """Return length and hash of all files that an image is read from.

    Raises
    ------
    ImageFileError, OSError
        If they cannot be found out or read.
    """
    from integrodiff.io import files_of_image

    found = [contents(file) for file in files_of_image(path)]
    if len(found) == 1:
        return found[0]
    together = "".join(one["sha256"] for one in found).encode()
    return {
        "bytes": sum(one["bytes"] for one in found),
        "sha256": hashlib.sha256(together).hexdigest(),
    }
