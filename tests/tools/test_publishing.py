"""What is needed to publish agrees with the package: recipe, metadata, paper, other programs."""

from __future__ import annotations

import json
import re
import tomllib
from pathlib import Path

import pytest
from command_line import run
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from integrodiff import MODEL_NAMES, __version__
from integrodiff.request import NOISES

ROOT = Path(__file__).parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
RECIPE = (ROOT / "recipe/recipe.yaml").read_text(encoding="utf-8")
CONDA_NAMES = {"torch": "pytorch", "matplotlib": "matplotlib-base"}
"""Packages that have another name on conda-forge."""


def required(lines: list[str]) -> dict[str, str]:
    """Return the lower bound of each requirement."""
    found = (Requirement(line) for line in lines)
    return {canonicalize_name(entry.name): str(entry.specifier) for entry in found}


def listed(section: str) -> dict[str, str]:
    """Return a list of the recipe's requirements."""
    block = re.search(rf"^  {section}:\n((?:    - .*\n)+)", RECIPE, re.MULTILINE)
    assert block is not None
    lines = [line.removeprefix("    - ") for line in block[1].splitlines()]
    pairs = (line.partition(" ") for line in lines if not line.startswith("$"))
    return {canonicalize_name(name): bound for name, _, bound in pairs}


def test_recipe_requires_what_the_package_requires() -> None:
    found = listed("run")
    assert found.pop("python") == PROJECT["project"]["requires-python"]
    assert found == required(PROJECT["project"]["dependencies"])


def test_recipe_builds_with_what_the_package_builds_with() -> None:
    found = listed("host")
    assert found.pop("python") == PROJECT["project"]["requires-python"]
    assert found.pop("pip") == ""
    assert found == required(PROJECT["build-system"]["requires"])


def test_recipe_constrains_optional_packages_as_the_extras_do() -> None:
    extras = PROJECT["project"]["optional-dependencies"]
    bounds = required([line for lines in extras.values() for line in lines if "[" not in line])
    expected = {CONDA_NAMES.get(name, name): bound for name, bound in bounds.items()}
    for name, bound in listed("run_constraints").items():
        assert bound == expected[name], name


def test_versions_and_licences_agree() -> None:
    citation = (ROOT / "CITATION.cff").read_text(encoding="utf-8")
    codemeta = json.loads((ROOT / "codemeta.json").read_text(encoding="utf-8"))
    assert f'version: "{__version__}"' in RECIPE
    assert f"version: {__version__}\n" in citation
    assert codemeta["version"] == __version__
    licence = PROJECT["project"]["license"]
    assert f"license: {licence}\n" in RECIPE
    assert f"license: {licence}\n" in citation
    assert codemeta["license"].endswith(f"/{licence}")
    assert codemeta["description"] == PROJECT["project"]["description"]
    assert required(codemeta["softwareRequirements"]) == required(
        PROJECT["project"]["dependencies"]
    )
    assert (ROOT / codemeta["softwareHelp"]).is_file()


def test_commands_of_the_recipe_exist() -> None:
    script = re.search(r"- script:\n((?:      - .*\n)+)", RECIPE)
    assert script is not None
    for line in script[1].splitlines():
        program, command, *_ = line.removeprefix("      - ").split()
        assert program == "integrodiff"
        arguments = [command] if command.startswith("--") else [command, "--help"]
        assert run(*arguments).exit_code == 0


@pytest.mark.parametrize("name", ["imagej/integrodiff.ijm", "qupath/denoise_image.groovy"])
def test_other_programs_use_options_that_exist(name: str) -> None:
    text = (ROOT / "integrations" / name).read_text(encoding="utf-8")
    options = set(re.findall(r"""["'](--[a-z-]+)["']""", text))
    assert options
    known = run("denoise", "--help").stdout
    assert not [option for option in options if option not in known]
    for word, choices in (("iad", MODEL_NAMES), ("poisson", NOISES)):
        used = re.findall(rf"""["']({word}[a-z-]*)["']""", text)
        assert set(used) <= set(choices)


def test_paper_has_what_its_journal_asks_for() -> None:
    text = (ROOT / "paper/paper.md").read_text(encoding="utf-8")
    entries = (ROOT / "paper/paper.bib").read_text(encoding="utf-8")
    for heading in ("# Summary", "# Statement of need", "# Acknowledgements", "# References"):
        assert f"\n{heading}\n" in text
    keys = set(re.findall(r"^@\w+\{([\w-]+),", entries, re.MULTILINE))
    cited = set(re.findall(r"@([\w-]+)", text.split("---", 2)[2]))
    assert cited == keys
    body = text.split("---", 2)[2]
    assert 250 <= len(body.split()) <= 1750


def test_community_files_are_linked() -> None:
    text = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
    assert "(CODE_OF_CONDUCT.md)" in text
    assert "(SECURITY.md)" in text
