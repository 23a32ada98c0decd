"""The examples, options and links of the README and the docs are valid."""

from __future__ import annotations

import re
from functools import cache
from pathlib import Path

import pytest
from command_line import run
from documents import run_python

ROOT = Path(__file__).parents[2]
README = ROOT / "README.md"
PAGES = [*ROOT.glob("*.md"), ROOT / "benchmarks/README.md", *ROOT.glob("docs/**/*.md")]


@pytest.mark.slow
def test_the_python_example_prints_a_model_and_its_bound(tmp_path: Path) -> None:
    printed = run_python(README, tmp_path)
    assert "ReducedLaw(alpha=" in printed
    tau, bound = map(float, printed.splitlines()[-1].split(" <= "))
    assert 0 < tau <= bound


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_point_to_files(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    for target in re.findall(r"\]\((?!https?:|#)([^)#]+)", text):
        path = page.parent / target
        if path.parent.name == "built":  # drawn by `make docs` from a script, or the list of all
            path = (
                path.parents[1]
                / "gallery"
                / f"{path.stem}.py".replace("index.py", "GALLERY_HEADER.rst")
            )
        assert path.exists(), target


@cache
def help_of(command: str) -> str | None:
    """Return the help of a command, if there is one of that name."""
    result = run(command, "--help")
    return result.stdout if result.exit_code == 0 else None


@pytest.mark.slow
@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_commands_have_the_options_that_are_named(page: Path) -> None:
    text = page.read_text(encoding="utf-8").replace("\n", " \n")
    for command, rest in re.findall(r"\bintegrodiff ([a-z]+) ([^`\n#]*)", text):
        text_of_help = help_of(command)
        if text_of_help is None:
            continue  # "integrodiff removes ..." is prose
        unknown = [
            option for option in re.findall(r"--[a-z-]+", rest) if option not in text_of_help
        ]
        assert not unknown, f"integrodiff {command} {rest}"


def test_first_commands() -> None:
    text = README.read_text(encoding="utf-8")
    for command in ("make demo", "make test", "integrodiff denoise noisy.png clean.png"):
        assert f"    {command}" in text
