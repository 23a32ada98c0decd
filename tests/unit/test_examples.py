"""Every public function and class has an example in its docstring, which runs."""

from __future__ import annotations

import doctest
import inspect

import pytest

import integrodiff

PUBLIC = [
    name
    for name in integrodiff.__all__
    if inspect.isclass(getattr(integrodiff, name)) or inspect.isfunction(getattr(integrodiff, name))
]
DRAWING = ("compare", "explain")


def check(name: str) -> None:
    thing = getattr(integrodiff, name)
    (found,) = doctest.DocTestFinder(recurse=False).find(thing, name, globs={})
    assert found.examples, f"{name} has no example"
    report: list[str] = []
    doctest.DocTestRunner(optionflags=doctest.REPORT_NDIFF).run(found, out=report.append)
    assert not report, "".join(report)


@pytest.mark.slow
@pytest.mark.parametrize("name", [name for name in PUBLIC if name not in DRAWING])
def test_example_runs(name: str) -> None:
    check(name)


@pytest.mark.slow
@pytest.mark.parametrize("name", DRAWING)
def test_example_that_draws_runs(name: str) -> None:
    pytest.importorskip("matplotlib", reason="Matplotlib is not installed: pip install '.[plot]'")
    check(name)
