"""Print what extras of this package require, for pip: ``python tools/requirements.py docs``.

``pip install '.[docs]'`` would build the compiled engine once more.
"""

from __future__ import annotations

import re
import sys
import tomllib
from pathlib import Path


def requirements(names: list[str]) -> list[str]:
    """Return the requirements of extras; those that are made of others are expanded."""
    text = (Path(__file__).parents[1] / "pyproject.toml").read_text(encoding="utf-8")
    extras = tomllib.loads(text)["project"]["optional-dependencies"]
    found: list[str] = []
    for name in names:
        for line in extras[name]:
            own = re.fullmatch(r"integrodiff\[(.*)\]", line)
            found += requirements(own[1].split(",")) if own else [line]
    return list(dict.fromkeys(found))


if __name__ == "__main__":
    print(*requirements(sys.argv[1:]), sep="\n")
