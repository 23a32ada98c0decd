"""Limits of memory, as they are given and as they are shown."""

from __future__ import annotations

import math
import os
import re
from contextlib import suppress
from pathlib import Path

_UNITS = {"": 1, "K": 10**3, "M": 10**6, "G": 10**9, "T": 10**12}


def memory_limit(value: object) -> int:
    """Return a limit in bytes from a number, or from a text such as ``"2G"`` or ``"500MB"``."""
    found: float = 0
    if isinstance(value, str):
        match = re.fullmatch(r"\s*([0-9]*\.?[0-9]+)\s*([KMGT]?)B?\s*", value, re.IGNORECASE)
        if match:
            found = float(match[1]) * _UNITS[match[2].upper()]
    elif isinstance(value, (int, float)) and not isinstance(value, bool):
        found = value
    if not 1 <= found < math.inf:
        raise ValueError(
            "max_memory must be a number of bytes, or a text such as '2G' or '500M', got "
            f"{value!r:.80}"
        )
    return int(found)


def in_words(size: float) -> str:
    """Return a number of bytes for a message."""
    return f"{size / 1e6:.0f} MB" if size < 1e9 else f"{size / 1e9:.2f} GB"


def machine_memory() -> int | None:
    """Return the bytes of memory for this process, or None if the system does not say.

    They are those of the machine, or of the container or job of a cluster if these have a limit.
    """
    limits = group_limits()
    with suppress(AttributeError, OSError, ValueError):
        limits.append(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"))
    return min(limits, default=None)


def group_limits(
    groups: Path = Path("/proc/self/cgroup"), root: Path = Path("/sys/fs/cgroup")
) -> list[int]:
    """Return the limits of memory of the control groups of Linux that this process is in.

    Parameters
    ----------
    groups : Path
        The file that names them, in either version.
    root : Path
        The folder that describes them.
    """
    limits: list[int] = []
    with suppress(OSError, ValueError):
        for line in groups.read_text(encoding="utf-8").splitlines():
            _, controllers, place = line.split(":", 2)
            if controllers == "":
                top, name = root, "memory.max"
            elif "memory" in controllers.split(","):
                top, name = root / "memory", "memory.limit_in_bytes"
            else:
                continue
            folder = top / place.lstrip("/")
            for one in (folder, *folder.parents):
                if not one.is_relative_to(top):
                    break
                with suppress(OSError, ValueError):  # there is no limit, or another name in here
                    limits.append(int((one / name).read_text(encoding="ascii")))
    return limits
