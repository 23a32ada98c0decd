"""Print what this package and extras of it require, for pip: ``python tools/requirements.py docs``.

``pip install '.[docs]'`` would build the compiled engine once more, and after all else.
"""

from __future__ import annotations

import re
import sys
import tomllib
from pathlib import Path

PROJECT = tomllib.loads((Path(__file__).parents[1] / "pyproject.toml").read_text(encoding="utf-8"))[
    "project"
]


def of_extras(names: list[str]) -> list[str]:
    """Return the requirements of extras; those that are made of others are expanded."""
    found: list[str] = []
    for name in names:
        for line in PROJECT["optional-dependencies"][name]:
            own = re.fullmatch(r"integrodiff\[(.*)\]", line)
            found += of_extras(own[1].split(",")) if own else [line]
    return found


if __name__ == "__main__":
    print(*dict.fromkeys([*PROJECT["dependencies"], *of_extras(sys.argv[1:])]), sep="\n")
