"""Run the quick tests on several versions of Python, with the lowest and the newest dependencies.

``make matrix`` runs all of them, ``make matrix PYTHONS=3.12`` those of one version of Python. The
lowest versions are those that pyproject.toml allows; the newest are what a user gets today. Every
environment is made by uv in ``build/matrix``; the tests are those of ``make quick``.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
from pathlib import Path

from environments import ROOT, environment, interpreter, run_tool

VERSIONS = ("3.11", "3.12", "3.13")
RESOLUTIONS = {"lowest": "lowest-direct", "newest": "highest"}
TESTS = ("-m", "not slow", "--ignore=tests/tools")


def install(python: Path, resolution: str, extras: str) -> None:
    """Install the package with its extras, never in place: each version has its own build."""
    run_tool(
        *("uv", "pip", "install", "--quiet", "--python", python),
        # Old versions without a wheel for a new Python are no candidates.
        *("--resolution", RESOLUTIONS[resolution], "--only-binary", ":all:"),
        *("--no-binary", "integrodiff", "--reinstall-package", "integrodiff"),
        f"integrodiff[{extras}] @ {ROOT.as_uri()}",
    )


def test(python: Path, options: list[str]) -> int:
    """Run the quick tests and return pytest's exit code."""
    command = [python, "-m", "pytest", "--quiet", "--numprocesses=auto", *TESTS, *options]
    env = os.environ | {"HYPOTHESIS_PROFILE": "quick"}
    return subprocess.run(list(map(str, command)), cwd=ROOT, env=env).returncode


def main() -> None:
    """Run all combinations; the exit code counts those that failed."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("versions", nargs="*", default=VERSIONS, help="of Python, such as 3.12")
    parser.add_argument("--resolution", choices=RESOLUTIONS, action="append", help="both if none")
    parser.add_argument("--extras", default="test,plot,formats", help="of the package")
    parser.add_argument("--keep-going", action="store_true", help="do not stop at a failed test")
    parser.add_argument("--list", action="store_true", help="show the versions installed")
    arguments = parser.parse_args()
    failed = []
    for version in arguments.versions:
        for resolution in arguments.resolution or RESOLUTIONS:
            name = f"Python {version}, {resolution} versions"
            print(f"---- {name}", flush=True)
            folder = ROOT / "build" / "matrix" / f"{version}-{resolution}"
            python = environment(folder, interpreter(version))
            install(python, resolution, arguments.extras)
            if arguments.list:
                run_tool("uv", "pip", "list", "--python", python)
            if test(python, [] if arguments.keep_going else ["--maxfail=5"]) != 0:
                failed.append(name)
    print("failed: " + "; ".join(failed) if failed else "all passed")
    sys.exit(len(failed))


if __name__ == "__main__":
    main()
