"""Build the sdist and the wheels, and try each of them in an empty environment.

``make dist`` runs it for the Python at hand, ``make dist PYTHONS="3.11 3.12 3.13"`` for several.
Python 3.11 has a wheel of its own; that of the next one asked for uses the stable ABI, and is tried
on all of them. On Linux, auditwheel gives wheels their manylinux tag. The sdist is also built where
every compiler fails, which leaves the slow engine and one warning.

What is to be published lies in ``dist`` afterwards.
"""

from __future__ import annotations

import argparse
import shutil
import subprocess
import sys
import tarfile
import tempfile
from collections.abc import Mapping
from pathlib import Path

from environments import ROOT, environment, interpreter, run_tool

NEEDED = (
    "CMakeLists.txt",
    "LICENSE",
    "README.md",
    "pyproject.toml",
    "src/integrodiff/__init__.pyi",
)
UNWANTED = (".ci/", ".github/", ".venv", "build/", "dist/", "out/")
LARGEST_FILE = 1_000_000
NO_COMPILER = {"CC": "/bin/false", "CXX": "/bin/false"}


def build_sdist(folder: Path) -> Path:
    """Build the sdist, and check what it contains."""
    run_tool("python", "-m", "build", "--sdist", "--outdir", folder)
    (sdist,) = folder.glob("*.tar.gz")
    with tarfile.open(sdist) as archive:
        files = {m.name.partition("/")[2]: m.size for m in archive.getmembers() if m.isfile()}
    missing = [name for name in NEEDED if name not in files]
    unwanted = [name for name in files if name.startswith(UNWANTED)]
    large = [name for name, size in files.items() if size > LARGEST_FILE]
    if missing or unwanted or large:
        sys.exit(f"{sdist.name}: {missing=}, {unwanted=}, {large=}")
    print(f"{sdist.name}: {len(files)} files, {sdist.stat().st_size // 1000} kB", flush=True)
    return sdist


def build_wheel(
    sdist: Path, python: Path, folder: Path, kind: str, *, env: Mapping[str, str] | None = None
) -> Path:
    """Build a wheel from the sdist, and check that it is of a kind such as ``cp312-abi3``."""
    run_tool(
        *("uv", "build", "--quiet", "--wheel", "--python", python, "--out-dir", folder / kind),
        sdist,
        env=env,
    )
    (wheel,) = (folder / kind).glob("*.whl")
    if kind not in wheel.name:
        sys.exit(f"{wheel.name} is not of the kind {kind}")
    return wheel


def repaired(wheel: Path, folder: Path) -> Path:
    """Return the wheel with the tag of all systems it runs on, and libraries that they lack."""
    if sys.platform != "linux":
        return Path(shutil.copy(wheel, folder))
    run_tool("auditwheel", "repair", "--wheel-dir", folder, wheel)
    (found,) = folder.glob(f"{'-'.join(wheel.stem.split('-')[:4])}-*.whl")
    return found


def smoke_test(wheel: Path, python: Path, folder: Path, engine: str) -> None:
    """Install a wheel into an empty environment and run the smoke test there."""
    own = environment(folder / "environment", python)
    run_tool("uv", "pip", "install", "--quiet", "--python", own, wheel)
    script = ROOT / "tools" / "smoke_test.py"
    subprocess.run([own, script, "--engine", engine], check=True, cwd=folder)


def main() -> None:
    """Build everything, and try it."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    here = f"{sys.version_info.major}.{sys.version_info.minor}"
    parser.add_argument("versions", nargs="*", default=[here], help="of Python, such as 3.12")
    versions: list[str] = parser.parse_args().versions
    pythons = [interpreter(version) for version in versions]

    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        output = folder / "dist"
        output.mkdir()
        sdist = build_sdist(output)
        wheels: dict[str, Path] = {}
        for version, python in zip(versions, pythons, strict=True):
            kind = "cp311-cp311" if version == "3.11" else "cp312-abi3"
            if kind not in wheels:
                wheels[kind] = repaired(build_wheel(sdist, python, folder, kind), output)
                print(wheels[kind].name, flush=True)
            if kind == "cp312-abi3":
                run_tool("abi3audit", "--strict", wheels[kind])
            smoke_test(wheels[kind], python, folder, "native")
        plain = build_wheel(sdist, pythons[0], folder, "py3-none", env=NO_COMPILER)
        smoke_test(plain, pythons[0], folder, "numpy")
        shutil.copytree(output, ROOT / "dist", dirs_exist_ok=True)
    print("in dist:", *sorted(path.name for path in (ROOT / "dist").iterdir()), sep="\n  ")


if __name__ == "__main__":
    main()
