"""Texts that other programs, or strangers, may have put in place of ours."""

from __future__ import annotations

import errno
import stat
from collections.abc import Iterator
from pathlib import Path

_LONGEST_LINE = 2**10
"""Bytes of a line that are read at a time."""


def regular_text(path: Path, most: int) -> str:
    """Return the text of a regular file of at most so many bytes.

    Bytes that are no UTF-8 are replaced.

    Raises
    ------
    OSError
        If it cannot be read, is larger, or is something else: a pipe or a device may never end.
    """
    _refuse(path, most)
    return path.read_text(encoding="utf-8", errors="replace")


def regular_lines(path: Path, most: int) -> Iterator[bytes]:
    """Give the lines of a regular file of at most so many bytes; long ones come in parts.

    Raises
    ------
    OSError
        As :func:`regular_text` does.
    """
    _refuse(path, most)
    with path.open("rb") as stream:
        while line := stream.readline(_LONGEST_LINE):
            yield line


def _refuse(path: Path, most: int) -> None:
    """Refuse what is no regular file, or has too many bytes."""
    status = path.stat()
    if not stat.S_ISREG(status.st_mode):
        raise OSError(errno.EINVAL, "is not a regular file", str(path))
    if status.st_size > most:
        raise OSError(errno.EFBIG, f"has more than {most} bytes", str(path))
