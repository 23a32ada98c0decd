"""Build the page into page/dist: compile the kernels, copy the files, export numbers.

    python page/build.py

needs the package and ``ziglang`` from PyPI, which has the compiler to WebAssembly; ``make page``
installs both. What the page shares with the package, it takes from the package: model files, and
the fitted numbers of the noise estimate.
"""

from __future__ import annotations

import hashlib
import importlib
import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from importlib.resources import files
from pathlib import Path
from typing import Any

from integrodiff._default_model import DEFAULT_MODEL
from integrodiff._version import __version__
from integrodiff.models.files import MODEL_NAMES
from integrodiff.noise.spectrum import clipped_normal

PAGE = Path(__file__).resolve().parent
NATIVE = PAGE.parent / "native"
DIST = PAGE / "dist"

SOURCES = ("index.html", "style.css", "icon.svg", "service-worker.js", "app", "core", "formats")

# As CMakeLists.txt has them: no reordering, and sums of products joined where the source says so.
FLAGS = (
    *("-target", "wasm32-wasi", "-std=c++17", "-O3", "-g0", "-Wall", "-Wextra", "-Werror"),
    *("-fno-exceptions", "-fno-rtti", "-fno-threadsafe-statics", "-fno-stack-protector"),
    *("-fno-math-errno", "-fno-trapping-math", "-ffp-contract=off", "-fvisibility=hidden"),
)
PROCESSOR = "generic+simd128+bulk_memory+nontrapping_fptoint+sign_ext"
LINK = (
    *("--no-entry", "--export=__wasm_call_ctors", "--import-memory", "--strip-all"),
    *("--stack-first", "-z", "stack-size=262144"),
)
LARGEST_MEMORY = 2**32

# Modules with the fitted numbers of what the page computes itself, and their names there.
NUMBERS = {
    "spectrum": "integrodiff.noise.spectrum",
    "levels": "integrodiff.noise.levels",
    "greyRange": "integrodiff.grey_range",
}


def main() -> None:
    """Build what has changed; one process at a time."""
    with only_one():
        inputs = digest_of(
            *(path for name in SOURCES for path in files_of(PAGE / name)),
            *(PAGE / "build.py", PAGE / "samples.py"),
            *files_of(NATIVE),
            *files_of(PAGE.parent / "src" / "integrodiff"),
        )
        stamp = DIST / "inputs.sha256"
        if not stamp.is_file() or stamp.read_text() != inputs:
            build()
            stamp.write_text(inputs)
    weight = sum(path.stat().st_size for path in files_of(DIST))
    samples = sum(path.stat().st_size for path in files_of(DIST / "samples"))
    print(f"{DIST}: {(weight - samples) / 1000:.0f} kB, and {samples / 1000:.0f} kB of samples")


def build() -> None:
    """Build everything from scratch, but for kernels that have not changed."""
    for path in DIST.iterdir() if DIST.exists() else ():
        if path.is_dir() and path.name != "kernels":
            shutil.rmtree(path)
        elif path.is_file():
            path.unlink()
    DIST.mkdir(exist_ok=True)
    for name in SOURCES:
        source = PAGE / name
        if source.is_dir():
            shutil.copytree(source, DIST / name)
        else:
            shutil.copyfile(source, DIST / name)
    build_kernels(DIST / "kernels")
    export_numbers(DIST / "data")
    make_samples(DIST / "samples")
    list_files(DIST)


def files_of(path: Path) -> list[Path]:
    """Return a file, or all files of a folder in a fixed order."""
    if path.is_file():
        return [path]
    found = path.rglob("*.*")
    return sorted(file for file in found if file.is_file() and file.suffix not in (".pyc", ".so"))


def digest_of(*paths: Path) -> str:
    """Return the digest of names and contents of files."""
    digest = hashlib.sha256()
    for path in paths:
        digest.update(path.name.encode() + b"\0" + path.read_bytes())
    return digest.hexdigest()


@contextmanager
def only_one() -> Iterator[None]:
    """Wait until no other process builds; a lock that is ten minutes old was left behind."""
    lock = PAGE / ".building"
    while True:
        try:
            os.close(os.open(lock, os.O_CREAT | os.O_EXCL))
            break
        except FileExistsError:
            with suppress(FileNotFoundError):
                if time.time() - lock.stat().st_mtime > 600:
                    lock.unlink()
            time.sleep(0.1)
    try:
        yield
    finally:
        lock.unlink(missing_ok=True)


def build_kernels(folder: Path) -> None:
    """Compile the steps twice: with memory that workers share, and without."""
    folder.mkdir(exist_ok=True)
    stamp = folder / "sources.sha256"
    digest = digest_of(*files_of(NATIVE)) + repr((FLAGS, PROCESSOR, LINK))
    if stamp.exists() and stamp.read_text() == digest:
        return
    shared = ("--shared-memory", f"--max-memory={LARGEST_MEMORY}", "--export=__stack_pointer")
    for name, features, options in (
        ("single", "", (f"--max-memory={LARGEST_MEMORY}",)),
        ("shared", "+atomics", shared),
    ):
        target, made = folder / f"{name}.wasm", folder / f"{name}.o"
        processor = f"-mcpu={PROCESSOR}{features}"
        source = NATIVE / "bindings" / "wasm.cpp"
        zig("c++", "-c", *FLAGS, processor, "-o", str(made), str(source))
        zig("wasm-ld", *LINK, *options, "-o", str(target), str(made))
        made.unlink()
    stamp.write_text(digest)


def zig(*arguments: str) -> None:
    """Run the compiler."""
    command = [sys.executable, "-m", "ziglang", *arguments]
    if subprocess.run(command, check=False).returncode:
        sys.exit(f"page/build.py: this command failed: {' '.join(command)}")


def export_numbers(folder: Path) -> None:
    """Write the shipped models, and the fitted numbers of the noise estimate."""
    folder.mkdir()
    models = []
    for name in MODEL_NAMES:
        model = json.loads((files("integrodiff.models") / "data" / f"{name}.json").read_text())
        levels = model["provenance"].get("noise_levels")
        models.append({**model, "name": name, "provenance": {"noise_levels": levels}})
    found = {"models": models, "defaultModel": DEFAULT_MODEL, "version": __version__}
    (folder / "models.json").write_text(json.dumps(found))
    constants = {name: numbers_of(module) for name, module in NUMBERS.items()}
    constants["spectrum"]["CLIPPED_NORMAL"] = [row.tolist() for row in clipped_normal()]
    (folder / "constants.json").write_text(json.dumps(constants))


def numbers_of(module: str) -> dict[str, Any]:
    """Return the numbers that a module has as constants, without the underscores of their names."""
    return {
        name.lstrip("_"): value
        for name, value in vars(importlib.import_module(module)).items()
        if name.isupper()
        and (isinstance(value, int | float) or (isinstance(value, tuple) and value))
        and all(isinstance(v, int | float) for v in (value if isinstance(value, tuple) else ()))
    }


def make_samples(folder: Path) -> None:
    """Write the sample images."""
    sys.path.insert(0, str(PAGE))
    from samples import write_samples

    folder.mkdir()
    write_samples(folder)


def list_files(folder: Path) -> None:
    """Tell the service worker which files make the page, and which version of them."""
    names = sorted(
        str(path.relative_to(folder).as_posix())
        for path in folder.rglob("*")
        if path.is_file() and path.suffix != ".sha256" and path.name != "service-worker.js"
    )
    version = digest_of(*(folder / name for name in names))
    worker = folder / "service-worker.js"
    text = worker.read_text()
    text = text.replace('"__VERSION__"', json.dumps(version[:16]))
    worker.write_text(text.replace("[/* FILES */]", json.dumps(["./", *names])))


if __name__ == "__main__":
    main()
