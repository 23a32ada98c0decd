"""Run the quick tests on several versions of Python, with the lowest and the newest dependencies.

``make matrix`` runs all of them, ``make matrix PYTHONS=3.12`` those of one version of Python. The
lowest versions are those that pyproject.toml allows; the newest are what a user gets today. Every
environment is made by uv in ``build/matrix``; the tests are those of ``make quick``, or with
``--tests`` those of ``make test`` or all. After ``make dist``, ``make matrix MATRIX_ARGS="--wheels
dist"`` tests the wheels that are to be published.

``--quick`` is for continuous integration: newest versions on the newest other Python that is
installed here, without the compiled engine, and those tests that depend most on other packages.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
from pathlib import Path

from environments import (
    NO_COMPILER,
    ROOT,
    build_wheel,
    environment,
    find_interpreter,
    interpreter,
    run_tool,
    wheel_kind,
)

VERSIONS = ("3.11", "3.12", "3.13")
RESOLUTIONS = {"lowest": "lowest-direct", "newest": "highest"}
FOLDER = ROOT / "build" / "matrix"
TESTS = {
    "quick": (
        "-m",
        "not slow and not long",
        *(f"--ignore=tests/{folder}" for folder in ("tools", "page", "plugin", "gpu")),
    ),
    "test": ("-m", "not long"),
    "all": (),
}
QUICK = (
    *("-m", "not slow and not long"),
    *("tests/io", "tests/cli/test_cli.py", "tests/cli/test_cli_info_and_demo.py"),
    *("tests/unit/test_package.py", "tests/unit/test_dependencies.py", "tests/unit/test_colour.py"),
)


def install(python: Path, resolution: str, wheel: Path, extras: str) -> None:
    """Install what pyproject.toml asks for, in some resolution, and a wheel of the package."""
    command = ("uv", "pip", "install", "--quiet", "--python", python)
    # Requirements of a wheel would not count as direct ones, and be the newest in both cases.
    run_tool(
        *(*command, "--requirement", ROOT / "pyproject.toml", "--resolution"),
        RESOLUTIONS[resolution],
        *(word for extra in extras.split(",") for word in ("--extra", extra)),
        # Old versions without a wheel for a new Python are no candidates.
        *("--only-binary", ":all:"),
    )
    run_tool(*command, "--no-deps", wheel)


def test(python: Path, options: list[str]) -> int:
    """Run tests and return pytest's exit code."""
    command = [python, "-m", "pytest", "--quiet", "--numprocesses=auto", *options]
    env = os.environ | {"HYPOTHESIS_PROFILE": "quick"}
    return subprocess.run(list(map(str, command)), cwd=ROOT, env=env).returncode


def quick(extras: str) -> int:
    """Run the short form, if there is another Python, and return an exit code."""
    here = f"{sys.version_info.major}.{sys.version_info.minor}"
    others = [(v, find_interpreter(v)) for v in reversed(VERSIONS) if v != here]
    version, base = next(filter(lambda other: other[1], others), ("", None))
    if base is None:
        print(f"skipped: there is no Python of {VERSIONS} here besides {here}")
        return 0
    print(f"---- Python {version}, newest versions, without the compiled engine", flush=True)
    wheel = build_wheel(ROOT, base, FOLDER / "quick", "py3-none", env=NO_COMPILER)
    python = environment(FOLDER / f"{version}-quick", base)
    install(python, "newest", wheel, extras)
    return test(python, list(QUICK))


def main() -> None:
    """Run all combinations; the exit code counts those that failed."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("versions", nargs="*", default=VERSIONS, help="of Python, such as 3.12")
    parser.add_argument("--resolution", choices=RESOLUTIONS, action="append", help="both if none")
    parser.add_argument("--extras", default="test,plot,formats", help="of the package")
    parser.add_argument("--wheels", type=Path, help="folder with wheels to test, such as dist")
    parser.add_argument(
        "--tests",
        choices=TESTS,
        default="quick",
        help="those of make quick (default), of make test, or all of them",
    )
    parser.add_argument("--keep-going", action="store_true", help="do not stop at a failed test")
    parser.add_argument("--list", action="store_true", help="show the versions installed")
    parser.add_argument("--quick", action="store_true", help="the short form, nothing else")
    arguments = parser.parse_args()
    if arguments.quick:
        sys.exit(quick(arguments.extras))
    options = list(TESTS[arguments.tests])
    options += [] if arguments.keep_going else ["--maxfail=5"]
    failed = []
    wheels: dict[str, Path] = {}
    for version in arguments.versions:
        base = interpreter(version)
        kind = wheel_kind(version)
        if kind not in wheels:
            if arguments.wheels:
                (wheels[kind],) = arguments.wheels.resolve().glob(f"*-{kind}-*.whl")
            else:
                wheels[kind] = build_wheel(ROOT, base, FOLDER, kind)
        for resolution in arguments.resolution or RESOLUTIONS:
            name = f"Python {version}, {resolution} versions"
            print(f"---- {name}", flush=True)
            python = environment(FOLDER / f"{version}-{resolution}", base)
            install(python, resolution, wheels[kind], arguments.extras)
            if arguments.list:
                run_tool("uv", "pip", "list", "--python", python)
            if test(python, options) != 0:
                failed.append(name)
    print("failed: " + "; ".join(failed) if failed else "all passed")
    sys.exit(len(failed))


if __name__ == "__main__":
    main()
