"""Files that appear whole or not at all."""

from __future__ import annotations

import contextlib
import os
import secrets
import shutil
from collections.abc import Iterator
from pathlib import Path

_LONGEST_SUFFIX = 16
"""Longer ones belong to no format, and a temporary name with them may be too long."""


@contextlib.contextmanager
def atomic_write(path: Path, *, overwrite: bool) -> Iterator[Path]:
    """Give a temporary path beside ``path``; move it there once the block has succeeded.

    The data is flushed to the disk before it gets its name. If the block fails, nothing is left
    behind and a file that was there before stays as it was.

    Raises
    ------
    FileExistsError
        If there is such a file and ``overwrite`` is false.
    """
    # A symbolic link keeps pointing where it did: its target is what gets replaced.
    path = Path(os.path.realpath(path))
    if not overwrite and path.exists():
        raise FileExistsError(f"{path} exists already")
    temporary = _temporary(path)
    mode = path.stat().st_mode & 0o777 if path.exists() else None
    try:  # already here: an interrupt may come as soon as the file is there
        # Those who may not read the file it replaces must not read it meanwhile. A new one gets
        # the permissions of any new file of this user.
        first = 0o666 if mode is None else mode & 0o077 | 0o600
        os.close(os.open(temporary, os.O_CREAT | os.O_EXCL | os.O_WRONLY, first))
        yield temporary
        _sync_file(temporary)
        if overwrite:
            if mode is not None:
                temporary.chmod(mode)
            temporary.replace(path)
        else:
            # Unlike a rename, a link fails if another process made the file in the meantime.
            _link_or_replace(temporary, path)
        sync_folder(path.parent)
    finally:
        temporary.unlink(missing_ok=True)


@contextlib.contextmanager
def atomic_folder(path: Path) -> Iterator[Path]:
    """Give a temporary folder beside ``path``; rename it once the block has succeeded.

    All files in it are flushed to the disk before it gets its name. If the block fails, nothing
    is left behind. A folder is never replaced.

    Raises
    ------
    FileExistsError
        If there is something of that name.
    """
    path = Path(os.path.realpath(path))
    temporary = _temporary(path)
    try:
        temporary.mkdir()
        yield temporary
        for folder, _, names in os.walk(temporary):
            for name in names:
                _sync_file(Path(folder, name))
            sync_folder(Path(folder))
        if path.exists():
            raise FileExistsError(f"{path} exists already")
        temporary.rename(path)  # fails if there is a folder that is not empty in the meantime
        sync_folder(path.parent)
    finally:
        shutil.rmtree(temporary, ignore_errors=True)


def _temporary(path: Path) -> Path:
    """Return a hidden name beside a path, whose suffix some writers look at."""
    suffix = path.suffix if len(path.suffix) <= _LONGEST_SUFFIX else ""
    return path.with_name(f".{secrets.token_hex(8)}.part{suffix}")


def _sync_file(path: Path) -> None:
    """Make the content of a file durable."""
    with path.open("rb") as written:
        os.fsync(written.fileno())


def _link_or_replace(temporary: Path, path: Path) -> None:
    """Give a new file its name without ever replacing another, where the file system can."""
    try:
        os.link(temporary, path)
    except FileExistsError:
        raise FileExistsError(f"{path} exists already") from None
    except OSError:  # no hard links here
        if path.exists():
            raise FileExistsError(f"{path} exists already") from None
        temporary.replace(path)


def sync_folder(folder: Path) -> None:
    """Make the new name itself durable, where the system allows to."""
    with contextlib.suppress(OSError):
        descriptor = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
