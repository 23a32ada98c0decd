"""What the README shows works as shown."""

from __future__ import annotations

import contextlib
import io
import re
from pathlib import Path

README = Path(__file__).parents[2] / "README.md"


def test_the_python_example_runs() -> None:
    (code,) = re.findall(r"```python\n(.*?)```", README.read_text(encoding="utf-8"), re.DOTALL)
    names: dict[str, object] = {}
    with contextlib.redirect_stdout(io.StringIO()) as printed:
        exec(code, names)  # noqa: S102 - our own example
    assert names["clean"].shape == (512, 512)  # type: ignore[attr-defined]
    assert "ReducedLaw(alpha=" in printed.getvalue()
    tau, bound = map(float, printed.getvalue().splitlines()[-1].split(" <= "))
    assert 0 < tau <= bound


def test_files_it_points_to_exist() -> None:
    text = README.read_text(encoding="utf-8")
    for target in re.findall(r"\]\(([^)]+)\)", text):
        assert (README.parent / target).exists(), target
