"""The examples, options and links of the README and the docs are valid."""

from __future__ import annotations

import contextlib
import io
import re
from pathlib import Path

import pytest
from command_line import run

ROOT = Path(__file__).parents[2]
README = ROOT / "README.md"
PAGES = [*ROOT.glob("*.md"), ROOT / "benchmarks/README.md", *ROOT.glob("docs/*.md")]


def test_the_python_example_runs() -> None:
    (code,) = re.findall(r"```python\n(.*?)```", README.read_text(encoding="utf-8"), re.DOTALL)
    names: dict[str, object] = {}
    with contextlib.redirect_stdout(io.StringIO()) as printed:
        exec(code, names)  # noqa: S102 - our own example
    assert names["clean"].shape == (512, 512)  # type: ignore[attr-defined]
    assert "ReducedLaw(alpha=" in printed.getvalue()
    tau, bound = map(float, printed.getvalue().splitlines()[-1].split(" <= "))
    assert 0 < tau <= bound


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_point_to_files(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    for target in re.findall(r"\]\((?!https?:|#)([^)#]+)", text):
        assert (page.parent / target).exists(), target


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_commands_have_the_options_that_are_named(page: Path) -> None:
    text = page.read_text(encoding="utf-8").replace("\n", " \n")
    for command, rest in re.findall(r"\bintegrodiff ([a-z]+) ([^`\n#]*)", text):
        result = run(command, "--help")
        if result.exit_code != 0:
            continue  # "integrodiff removes ..." is prose
        unknown = [
            option for option in re.findall(r"--[a-z-]+", rest) if option not in result.stdout
        ]
        assert not unknown, f"integrodiff {command} {rest}"


def test_first_commands() -> None:
    text = README.read_text(encoding="utf-8")
    for command in ("make demo", "make test", "integrodiff denoise noisy.png clean.png"):
        assert f"    {command}" in text
