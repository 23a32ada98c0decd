"""The paper's equations can be found in the source: the table in ``stages/__init__.py`` holds."""

from __future__ import annotations

import importlib
import inspect
import re

import pytest

from integrodiff import stages

ROWS = re.findall(r"^(\(\d.*?)  .*  (\S+)$", stages.__doc__ or "", flags=re.MULTILINE)


def test_every_numbered_equation_of_the_paper_has_a_place() -> None:
    numbers = [int(number) for row, _ in ROWS for number in re.findall(r"\d+", row)]
    assert numbers == list(range(1, 12))


@pytest.mark.parametrize(("equations", "place"), ROWS)
def test_the_place_names_its_equations(equations: str, place: str) -> None:
    module, _, name = place.rpartition(".")
    found = getattr(importlib.import_module(f"integrodiff.{module}"), name)
    text = inspect.getdoc(found) or ""
    for number in re.findall(r"\d+", equations):
        assert re.search(rf"eqs?\. [^.]*\({number}\)", text), f"{place} does not name ({number})"


def test_every_stage_of_the_step_names_an_equation() -> None:
    for name in (
        *("scale_space", "gradient", "structure_tensor", "diffusion_tensor", "divergence"),
        *("operators", "step"),
    ):
        text = importlib.import_module(f"integrodiff.stages.{name}").__doc__ or ""
        assert re.search(r"eqs?\. \(\d", text), f"{name} names no equation"
