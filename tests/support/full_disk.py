"""A disk that is full, for the process that runs the tests."""

from __future__ import annotations

import resource
import sys
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def full_disk(size: int = 0) -> Iterator[None]:
    """Let no file grow beyond a size in bytes; the system refuses to write more.

    The error is EFBIG, "File too large", in place of ENOSPC. Modules that are imported meanwhile
    are not kept in compiled form: Python would not notice that it wrote only a part of them.
    """
    without_modules, sys.dont_write_bytecode = sys.dont_write_bytecode, True
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
        sys.dont_write_bytecode = without_modules
