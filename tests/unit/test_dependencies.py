"""The review of dependencies covers what pyproject.toml requires, with the licences they state."""

from __future__ import annotations

import re
import tomllib
from importlib.metadata import PackageNotFoundError, metadata
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).parents[2]
ROW = re.compile(r"^\| ([A-Za-z][\w.-]*) \|(.*)\|$", re.MULTILINE)
# In the words of licence expressions, trove classifiers and free text.
SPELLINGS = {
    "PSF": "Python Software Foundation|PSF",
    "non-commercial": "non-commercial",
    "proprietary": "Proprietary",
}


def required() -> dict[str, set[str]]:
    """Return the extras of each requirement; the empty string stands for no extra."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    groups = {"": project["dependencies"], **project["optional-dependencies"]}
    found: dict[str, set[str]] = {}
    for extra, lines in groups.items():
        for line in lines:
            found.setdefault(canonicalize_name(Requirement(line).name), set()).add(extra)
    found.pop("integrodiff")  # extras that are made of others
    return found


def reviewed() -> dict[str, list[str]]:
    """Return the cells of each row of the review."""
    text = (ROOT / "docs/dependencies.md").read_text(encoding="utf-8")
    rows = ((name, cells) for name, cells in ROW.findall(text) if name != "package")
    return {
        canonicalize_name(name): [cell.strip() for cell in cells.split("|")] for name, cells in rows
    }


_EXTRAS_OF_USERS = {
    "torch",
    "train",
    "plot",
    "codecs",
    "medical",
    "microscopy",
    "zarr",
    "heic",
    "arrays",
    "dask",
    "napari",
}


def test_every_requirement_is_reviewed_and_nothing_else() -> None:
    assert set(reviewed()) == set(required())


def test_packages_of_users_have_all_columns() -> None:
    users = {"": 4, **dict.fromkeys(_EXTRAS_OF_USERS, 5)}
    rows = reviewed()
    for name, extras in required().items():
        for extra in extras & set(users):
            assert len(list(filter(None, rows[name]))) == users[extra], name
            assert not extra or extra in rows[name][0].split(", "), name


@pytest.mark.parametrize("name", sorted(required()))
def test_licences_are_those_of_the_installed_packages(name: str) -> None:
    try:
        found = metadata(name)
    except PackageNotFoundError:
        pytest.skip(f"{name} is not installed")
    fields = ("License-Expression", "License", "Classifier")
    lines = [line for field in fields for line in found.get_all(field) or []]
    # A classifier "License ::", an expression, or the whole text of a licence.
    stated = " ".join(line for line in lines if " :: " not in line or "License ::" in line)
    users_of_extras = required()[name] & _EXTRAS_OF_USERS
    licence = reviewed()[name][1 if users_of_extras else 0]
    for word in licence.split(" or "):
        assert re.search(SPELLINGS.get(word, rf"\b{word}\b"), stated), stated[:300]
