"""Check an installed package: an array, a PNG file and the version, with a given engine.

Run it by the Python of the installation, from any folder: ``python tools/smoke_test.py``. It needs
nothing but the package itself, and ends with an error if something is wrong.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import sysconfig
import tempfile
import warnings
from pathlib import Path

import numpy as np
from PIL import Image

import integrodiff


def check_array(engine: str) -> None:
    """Denoise an array with ``engine="auto"``, which must choose ``engine``."""
    noisy = np.random.default_rng(0).normal(128, 20, (48, 61))
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        found = [integrodiff.denoise(noisy, 20, data_range=255) for _ in range(2)]
    expected = integrodiff.denoise(noisy, 20, data_range=255, engine=engine)
    require(all(np.array_equal(image, expected) for image in found), "auto is not this engine")
    require(bool(found[0].std() < noisy.std() / 2), "the noise is still there")
    slow = [warning.category.__name__ for warning in caught]
    wanted = [] if engine == "native" else ["SlowEngineWarning"]
    require(slow == wanted, f"warnings: {slow} instead of {wanted}")


def check_command_line(folder: Path) -> None:
    """Show the version, and denoise a PNG file."""
    program = Path(sysconfig.get_path("scripts"), "integrodiff")
    version = run(program, "--version")
    require(version == f"integrodiff {integrodiff.__version__}", f"the version is {version!r}")
    noisy = np.random.default_rng(1).normal(128, 20, (40, 50)).clip(0, 255).astype(np.uint8)
    source, target = folder / "noisy.png", folder / "denoised.png"
    Image.fromarray(noisy).save(source)
    run(program, "denoise", source, target, "--sigma", "20")
    with Image.open(target) as image:
        denoised = np.asarray(image)
    require(bool(denoised.std() < noisy.std() / 2), "the PNG file still has its noise")


def run(*words: str | Path) -> str:
    """Run a program and return what it writes to the standard output."""
    done = subprocess.run([str(word) for word in words], capture_output=True, text=True)
    require(done.returncode == 0, f"{words[1]} ended with {done.returncode}: {done.stderr}")
    return done.stdout.strip()


def require(condition: bool, message: str) -> None:
    """End the program if a condition does not hold."""
    if not condition:
        sys.exit(f"smoke test failed: {message}")


def main() -> None:
    """Run the checks."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0] if __doc__ else "")
    parser.add_argument("--engine", choices=("native", "numpy"), default="native")
    engine = parser.parse_args().engine
    installed = Path(integrodiff.__file__)
    require("site-packages" in installed.parts, f"{installed} is not an installation")
    check_array(engine)
    with tempfile.TemporaryDirectory() as folder:
        check_command_line(Path(folder))
    python = ".".join(map(str, sys.version_info[:3]))
    print(f"integrodiff {integrodiff.__version__} on Python {python}: {engine} engine works")


if __name__ == "__main__":
    main()
