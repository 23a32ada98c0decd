"""Limits of memory, as they are given and as they are shown."""

from __future__ import annotations

import math
import os
import re

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
    """Return the bytes of memory of this machine; None if the system does not say."""
    try:
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (AttributeError, OSError, ValueError):
        return None
