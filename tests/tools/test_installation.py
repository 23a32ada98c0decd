"""Installing without a C++ compiler succeeds, and the package says what it misses."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import sysconfig
from importlib.util import find_spec
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]

# Run without `site`, whose finders would lead to the package under development.
USE = """
import json, sys, warnings
sys.path[:0] = [{installed!r}]
sys.path.append({packages!r})
import numpy as np
import integrodiff
image = np.random.default_rng(0).normal(128, 20, (24, 31))
with warnings.catch_warnings(record=True) as caught:
    warnings.simplefilter("always")
    results = [integrodiff.denoise(image, 20, data_range=255) for _ in range(2)]
slow = integrodiff.denoise(image, 20, data_range=255, engine="numpy")
try:
    integrodiff.denoise(image, 20, data_range=255, engine="native")
    refusal = None
except integrodiff.EngineUnavailableError as error:
    refusal = str(error)
print(json.dumps({{
    "file": integrodiff.__file__,
    "warnings": [[w.category.__name__, str(w.message)] for w in caught],
    "same": all(np.array_equal(result, slow) for result in results),
    "refusal": refusal,
}}))
"""


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder with the package, installed where every compiler fails."""
    for needed in ("pip", "scikit_build_core", "nanobind"):
        if find_spec(needed) is None:
            pytest.skip(f"{needed} is not installed")
    if not (ROOT / "pyproject.toml").exists():
        pytest.skip("the sources of the package are not there")
    target = tmp_path_factory.mktemp("installed")
    pip = [sys.executable, "-m", "pip", "--disable-pip-version-check", "install", "--quiet"]
    subprocess.run(
        [*pip, "--no-deps", "--no-build-isolation", "--target", str(target), str(ROOT)],
        check=True,
        env=os.environ | {"CC": "/bin/false", "CXX": "/bin/false"},
        timeout=300,
    )
    return target


def run_python(code: str) -> str:
    command = [sys.executable, "-I", "-S", "-c", code]
    return subprocess.run(command, check=True, capture_output=True, text=True, timeout=120).stdout


def test_without_a_compiler_the_slow_engine_runs_and_says_so_once(installed: Path) -> None:
    assert not list(installed.rglob("_native*.so"))
    packages = sysconfig.get_path("purelib")
    found = json.loads(run_python(USE.format(installed=str(installed), packages=packages)))
    assert Path(found["file"]).is_relative_to(installed)
    ((category, message),) = found["warnings"]
    assert category == "SlowEngineWarning"
    assert "C++ compiler" in message
    assert found["same"]
    assert "C++ compiler" in found["refusal"]
    # So does the command `info`.
    text = run_python(
        f"import sys; sys.path[:0] = [{str(installed)!r}]; sys.path.append({packages!r})\n"
        "sys.argv = ['integrodiff', 'info']\n"
        "from integrodiff.cli import main; main()"
    )
    assert "native" in text
    assert "C++ compiler" in " ".join(text.split())
