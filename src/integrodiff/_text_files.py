"""Texts that other programs, or strangers, may have put in place of ours."""

from __future__ import annotations

import errno
import stat
from pathlib import Path


def regular_text(path: Path, most: int) -> str:
    """Return the text of a regular file of at most so many bytes.

    Bytes that are no UTF-8 are replaced.

    Raises
    ------
    OSError
        If it cannot be read, is larger, or is something else: a pipe or a device may never end.
    """
    status = path.stat()
    if not stat.S_ISREG(status.st_mode):
        raise OSError(errno.EINVAL, "is not a regular file", str(path))
    if status.st_size > most:
        raise OSError(errno.EFBIG, f"has more than {most} bytes", str(path))
    return path.read_text(encoding="utf-8", errors="replace")
