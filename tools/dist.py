"""Build the sdist and the wheels, and try each of them in an empty environment.

``make dist`` runs it for the Python at hand, ``make dist PYTHONS="3.11 3.12 3.13"`` for several.
Python 3.11 has a wheel of its own; that of the next one asked for uses the stable ABI, and is tried
on all of them. On Linux, auditwheel gives wheels their manylinux tag. The sdist is also built where
every compiler fails, which leaves the slow engine and one warning.

Bills of materials, in CycloneDX: every compiled wheel holds one of the libraries compiled into it
(PEP 770), and ``dist`` one of all packages that were installed with the last wheel.

What is to be published lies in ``dist`` afterwards.
"""

from __future__ import annotations

import argparse
import json
import shutil
import subprocess
import sys
import tarfile
import tempfile
import tomllib
import zipfile
from pathlib import Path

from cyclonedx.schema import SchemaVersion
from cyclonedx.validation.json import JsonStrictValidator
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from environments import (
    NO_COMPILER,
    ROOT,
    build_wheel,
    environment,
    interpreter,
    run_tool,
    wheel_kind,
)

NEEDED = (
    "CMakeLists.txt",
    "LICENSE",
    "README.md",
    "pyproject.toml",
    "src/integrodiff/__init__.pyi",
)
UNWANTED = (".ci/", ".github/", ".venv", "build/", "dist/", "out/")
LARGEST_FILE = 1_000_000


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


def repaired(wheel: Path, folder: Path) -> Path:
    """Return the wheel with the tag of all systems it runs on, and libraries that they lack."""
    if sys.platform != "linux":
        return Path(shutil.copy(wheel, folder))
    run_tool("auditwheel", "repair", "--wheel-dir", folder, wheel)
    (found,) = folder.glob(f"{'-'.join(wheel.stem.split('-')[:4])}-*.whl")
    return found


def check_bill_in_wheel(wheel: Path) -> None:
    """Check the bill of materials in a compiled wheel: valid, and with what is linked into it."""
    with zipfile.ZipFile(wheel) as archive:
        bills = [name for name in archive.namelist() if ".dist-info/sboms/integrodiff." in name]
        if len(bills) != 1:
            sys.exit(f"{wheel.name}: bills of materials {bills} instead of one")
        text = archive.read(bills[0]).decode()
    if error := JsonStrictValidator(SchemaVersion.V1_6).validate_str(text):
        sys.exit(f"{wheel.name}: {bills[0]} is not valid: {error}")
    bill = json.loads(text)
    found = {part["name"]: part["version"] for part in bill["components"]}
    versions = [bill["metadata"]["component"]["version"], *found.values()]
    if set(found) != {"nanobind", "robin-map"} or not all(v[:1].isdigit() for v in versions):
        sys.exit(f"{wheel.name}: compiled into it are {found}, version {versions[0]}")


def write_bill(python: Path, output: Path) -> None:
    """Write the bill of materials of an environment, and check that it has all requirements."""
    with (ROOT / "pyproject.toml").open("rb") as file:
        required = tomllib.load(file)["project"]["dependencies"]
    run_tool(
        *("cyclonedx-py", "environment", "--pyproject", ROOT / "pyproject.toml"),
        *("--mc-type", "library", "--output-reproducible", "--output-file", output, python),
    )
    found = {
        canonicalize_name(part["name"]) for part in json.loads(output.read_text())["components"]
    }
    if missing := {canonicalize_name(Requirement(line).name) for line in required} - found:
        sys.exit(f"{output.name} lacks {sorted(missing)}")
    print(f"{output.name}: {len(found)} packages", flush=True)


def smoke_test(wheel: Path, python: Path, folder: Path, engine: str) -> Path:
    """Install a wheel into an empty environment, run the smoke test, return the environment."""
    own = environment(folder / "environment", python)
    run_tool("uv", "pip", "install", "--quiet", "--python", own, wheel)
    script = ROOT / "tools" / "smoke_test.py"
    subprocess.run([own, script, "--engine", engine], check=True, cwd=folder)
    return own


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
            kind = wheel_kind(version)
            if kind not in wheels:
                wheels[kind] = repaired(build_wheel(sdist, python, folder, kind), output)
                check_bill_in_wheel(wheels[kind])
                print(wheels[kind].name, flush=True)
            if kind == "cp312-abi3":
                run_tool("abi3audit", "--strict", wheels[kind])
            own = smoke_test(wheels[kind], python, folder, "native")
        write_bill(own, output / f"{sdist.name.removesuffix('.tar.gz')}.cdx.json")
        for python in pythons:
            plain = build_wheel(sdist, python, folder, "py3-none", env=NO_COMPILER)
            smoke_test(plain, python, folder, "numpy")
        shutil.copytree(output, ROOT / "dist", dirs_exist_ok=True)
    print("in dist:", *sorted(path.name for path in (ROOT / "dist").iterdir()), sep="\n  ")


if __name__ == "__main__":
    main()
