"""The code of the README and the docs: Python blocks, commands, and files to run them on.

Everything that looks like code is found by its form, so that a new page or block is tested without
being entered anywhere:

- fenced blocks of Python run, page by page, in a folder of their own;
- commands, in blocks or in backticks, run on generated files with the names that they use. Those
  that would take hours, or need data or programs that are not here, are checked for what they name:
  options, scripts, targets, extras, files;
- calls in backticks, such as ``denoise(image, mask=valid)``, are evaluated.
"""

from __future__ import annotations

import re
import shlex
import subprocess
import sys
import tomllib
import warnings
from collections.abc import Callable, Iterator
from contextlib import chdir, redirect_stdout
from io import StringIO
from itertools import takewhile
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
import tifffile
import typer
from command_line import run
from numpy.typing import NDArray
from PIL import Image

import integrodiff
from before_and_after import write_dicom
from integrodiff.cli import app
from integrodiff.io import read_image

ROOT = Path(__file__).parents[2]
PAGES = sorted(
    {
        *ROOT.glob("*.md"),
        ROOT / "benchmarks/README.md",
        *(page for page in ROOT.glob("docs/**/*.md") if "built" not in page.parts),
    }
    - {ROOT / "CHANGELOG.md"}  # what it quotes was true once
)
SIDE = 48


class Snippet(NamedTuple):
    """A piece of code on a page.

    Attributes
    ----------
    page : Path
        The page.
    line : int
        Its first line, counted from one.
    text : str
        The code.
    """

    page: Path
    line: int
    text: str

    def __str__(self) -> str:
        return f"{self.page.relative_to(ROOT)}:{self.line}: {self.text}"


_FENCE = re.compile(r"^( *)(```+|~~~+|:::+)\s*(\{?[\w-]*\}?)")
_COMMANDS = ("integrodiff", "python", "make", "pip", "git", "export", "cibuildwheel", "pytest")


def _outside_fences(text: str) -> Iterator[tuple[int, str]]:
    """Iterate over the lines of a page that are in no fenced block, with their numbers."""
    fence = ""
    for number, line in enumerate(text.splitlines(), 1):
        found = _FENCE.match(line)
        if found and not fence:
            fence = found[2]
        elif fence:
            if line.strip().startswith(fence):
                fence = ""
        else:
            yield number, line


def python_blocks(page: Path) -> list[Snippet]:
    """Return the fenced blocks of Python of a page."""
    found: list[Snippet] = []
    lines: list[str] = []
    start = 0
    for number, line in enumerate(page.read_text(encoding="utf-8").splitlines(), 1):
        fence = _FENCE.match(line)
        if start and fence and not fence[3]:
            found.append(Snippet(page, start, "\n".join(lines)))
            lines, start = [], 0
        elif start:
            lines.append(line)
        elif fence and fence[3] in ("python", "py", "pycon"):
            start = number + 1
    return found


def commands(page: Path) -> list[Snippet]:
    """Return the commands of a page: lines of indented blocks, and words in backticks."""
    found: list[Snippet] = []
    text = page.read_text(encoding="utf-8")
    continued = False
    for number, line in _outside_fences(text):
        bare = line.strip()
        if continued:
            joined = found[-1].text.rstrip(" \\") + " " + bare
            found[-1] = found[-1]._replace(text=joined)
        elif line.startswith("    ") and bare.split(" ")[0] in _COMMANDS:
            found.append(Snippet(page, number, bare))
        else:
            for words in re.findall(r"`(integrodiff [^`]*)`", line):
                found.append(Snippet(page, number, words))
        continued = bool(found) and found[-1].text.endswith("\\")
    return found


def fenced_commands(page: Path) -> list[Snippet]:
    """Return fenced blocks of a shell, which pages do not use: commands are indented."""
    lines = page.read_text(encoding="utf-8").splitlines()
    return [
        Snippet(page, number, line)
        for number, line in enumerate(lines, 1)
        if re.match(r"^\s*```\s*(sh|bash|shell|console)\b", line)
    ]


def indented_python(page: Path) -> list[Snippet]:
    """Return Python in indented blocks, which pages do not use: it would not be run."""
    code = re.compile(r"    +(import \w|from [\w.]+ import |class \w+.*:|def \w+\(|>>> |@\w)")
    text = page.read_text(encoding="utf-8")
    return [Snippet(page, n, line) for n, line in _outside_fences(text) if code.match(line)]


def imported(page: Path) -> set[str]:
    """Return the packages that the Python blocks of a page import, apart from this one."""
    code = "\n".join(block.text for block in python_blocks(page))
    names = re.findall(r"^\s*(?:import|from) (\w+)", code, re.MULTILINE)
    return set(names) - {"integrodiff"}


def calls(page: Path) -> list[Snippet]:
    """Return calls of denoise in backticks that leave nothing open."""
    return [
        Snippet(page, number, call)
        for number, line in _outside_fences(page.read_text(encoding="utf-8"))
        for call in re.findall(r"`(denoise\([^`]*\))`", line)
        if "..." not in call
    ]


def run_python(page: Path, folder: Path) -> str:
    """Run the blocks of a page one after the other in a folder; return what they print.

    In this process, where the libraries are imported already, so that what a page changes in the
    package stays: see :func:`run_python_apart`.
    """
    names: dict[str, Any] = {"__name__": "__main__"}
    with chdir(folder), redirect_stdout(StringIO()) as printed, warnings.catch_warnings():
        warnings.resetwarnings()
        warnings.simplefilter("ignore", UserWarning)  # of small images
        for block in python_blocks(page):
            # Tracebacks name the page, and lines as they are counted there.
            text = "\n" * (block.line - 1) + block.text
            exec(compile(text, str(page), "exec"), names)  # noqa: S102 - our own code
    return printed.getvalue()


def run_python_apart(page: Path, folder: Path) -> str:
    """Run the blocks of a page in a process of their own; return what they print."""
    code = ["import matplotlib", "matplotlib.use('agg')"]
    for block in python_blocks(page):
        code += [f"# {block.page.name}, line {block.line}", block.text]
    script = folder / "blocks.py"
    script.write_text("\n".join(code), encoding="utf-8")
    done = subprocess.run(
        [sys.executable, "-W", "ignore::UserWarning", str(script)],
        cwd=folder,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, f"{page}\n{done.stderr[-3000:]}"
    return done.stdout


def evaluate(call: str) -> NDArray[np.generic]:
    """Evaluate a call in backticks, with images of the names that it uses."""
    names = {
        "denoise": integrodiff.denoise,
        "numpy": np,
        "np": np,
        "array": noisy(2, 2),
        "image": noisy(),
        "valid": noisy() > 0,
        "sigma": 10,
        **dict.fromkeys("zyx", 1.0),
        "levels": np.full((SIDE, SIDE), 10.0),
        "volume": noisy(3),
    }
    return np.asarray(eval(call, names))  # noqa: S307 - our own examples


# Files, by the names that the docs use.


def noisy(*planes: int) -> NDArray[np.float64]:
    """Return a disc on a ramp with noise of level 10."""
    y, x = np.mgrid[:SIDE, :SIDE]
    clean = 60.0 + x + 90 * (np.hypot(y - 24, x - 24) < 12)
    return np.asarray(clean + np.random.default_rng(0).normal(0, 10, (*planes, SIDE, SIDE)))


def _tiff(path: Path) -> None:
    tifffile.imwrite(path, noisy().clip(1).astype(np.uint16))


def _photo(path: Path) -> None:
    Image.fromarray(np.moveaxis(noisy(3), 0, -1).clip(0, 255).astype(np.uint8)).save(path)


def _grey(path: Path) -> None:
    Image.fromarray(noisy().clip(0, 255).astype(np.uint8)).save(path)


def _cells(path: Path) -> None:
    tifffile.imwrite(path, noisy(2, 2).astype(np.uint16), metadata={"axes": "TCYX"})


def _scene(path: Path) -> None:
    scene = np.moveaxis(noisy(4), 0, -1).astype(np.uint16)
    tifffile.imwrite(path, scene, photometric="minisblack", planarconfig="contig")


def _photos(folder: Path) -> None:
    folder.mkdir()
    for name in ("a.png", "b.png"):
        _photo(folder / name)


def _series(folder: Path) -> None:
    folder.mkdir()
    pydicom = pytest.importorskip("pydicom")
    for number in range(3):
        path = folder / f"{number}.dcm"
        write_dicom(path, noisy().astype(np.int16))
        dataset = pydicom.dcmread(path)
        dataset.SeriesInstanceUID, dataset.PixelSpacing = "1.2.3", [1, 1]
        dataset.ImageOrientationPatient = [1, 0, 0, 0, 1, 0]
        dataset.ImagePositionPatient = [0, 0, number]
        dataset.save_as(path)


def _frames(path: Path) -> None:
    pydicom = pytest.importorskip("pydicom")
    write_dicom(path, noisy().astype(np.int16))
    dataset = pydicom.dcmread(path)
    dataset.SOPClassUID = pydicom.uid.EnhancedMRImageStorage
    dataset.NumberOfFrames, dataset.PixelData = 3, noisy(3).astype(np.int16).tobytes()
    groups = []
    for number in range(3):
        group, position, orientation, measures = (pydicom.Dataset() for _ in range(4))
        position.ImagePositionPatient = [0, 0, number]
        orientation.ImageOrientationPatient = [1, 0, 0, 0, 1, 0]
        measures.PixelSpacing = [1, 1]
        group.PlanePositionSequence, group.PlaneOrientationSequence = [position], [orientation]
        group.PixelMeasuresSequence = [measures]
        groups.append(group)
    dataset.PerFrameFunctionalGroupsSequence = groups
    dataset.save_as(path)


def _tomogram(path: Path) -> None:
    mrcfile = pytest.importorskip("mrcfile")
    with mrcfile.new(path) as file:
        file.set_data(noisy(3).astype(np.int16))
        file.set_volume()


def _nrrd(path: Path) -> None:
    nrrd = pytest.importorskip("nrrd")
    nrrd.write(str(path), noisy(3).astype(np.int16).T, {"spacings": [1.0, 1.0, 1.0]})


def _large(folder: Path) -> None:
    zarr = pytest.importorskip("zarr")
    group = zarr.create_group(folder, zarr_format=3)
    group.create_array("0", data=noisy().astype(np.uint16), chunks=(SIDE, SIDE))
    axes = [{"name": name, "type": "space"} for name in "yx"]
    scale = [{"type": "scale", "scale": [1.0, 1.0]}]
    levels = [{"path": "0", "coordinateTransformations": scale}]
    group.attrs["ome"] = {"version": "0.5", "multiscales": [{"axes": axes, "datasets": levels}]}


def _long_scan(path: Path) -> None:
    """Write a volume that has the slice 80, for which a command asks."""
    nibabel = pytest.importorskip("nibabel")
    volume = np.repeat(noisy(3), 27, axis=0).astype(np.int16)
    nibabel.save(nibabel.Nifti1Image(volume.T, np.eye(4)), path)


def _scan(path: Path) -> None:
    nibabel = pytest.importorskip("nibabel")
    nibabel.save(nibabel.Nifti1Image(noisy(3).astype(np.int16).T, np.eye(4)), path)


FILES: dict[str, Callable[[Path], object]] = {
    "noisy.jpg": _photo,
    "noisy.png": _photo,
    "noisy/": _photos,
    "counts.tif": _tiff,
    "raw.tif": _tiff,
    "noisy.tif": _tiff,
    "cells.ome.tif": _cells,
    "series/": _series,
    "scan.nii.gz": _scan,
    "brain.nii.gz": _scan,
    "scan.nrrd": _nrrd,
    "scan.dcm": _frames,
    "tomogram.mrc": _tomogram,
    "scene.tif": _scene,
    "big.zarr": _large,
    "levels.tif": lambda path: tifffile.imwrite(path, np.full((SIDE, SIDE), 10.0, np.float32)),
    "spectrum.npy": lambda path: np.save(path, np.full((SIDE, SIDE), 100.0 * SIDE**2)),
    "valid.png": lambda path: Image.fromarray(np.full((SIDE, SIDE), 255, np.uint8)).save(path),
    "mine.json": lambda path: integrodiff.save_model(integrodiff.load_model("iad"), path),
    "truth.png": _photo,
}
"""What is written before a command runs that names it."""

RESULTS = ("clean.png", "clean.tif", "clean.nii.gz")
"""Results of `denoise` that other commands read; they are like the image before them."""


# Commands.

_PLACEHOLDER = re.compile(r"\b[A-Z]{2,}[A-Z.]*(\.json)?\b|\.\.\.|\$\w+")
"""Words in capitals and variables of the shell stand for what a reader fills in."""

_SLOW = ("train", "reproduce")
"""Commands that need hours, or data."""


def check(snippet: Snippet, folder: Path) -> str:
    """Run a command in an empty folder, or check what it names; return which of the two."""
    text = re.sub(r"\s+#.*", "", snippet.text)
    program, *words = shlex.split(text.split(" && ")[0])
    if program == "integrodiff":
        return _check_own(text, words, folder)
    _check_other(program, words)
    return "checked"


def _check_own(text: str, words: list[str], folder: Path) -> str:
    group: Any = typer.main.get_command(app)  # a group of click, or of typer's own copy of it
    if words[0] == "--help":
        assert run("--help").exit_code == 0
        return "run"
    assert words[0] in group.commands, f"there is no command {words[0]}"
    if words[1:] == ["--help"] or words == ["info"]:
        assert run(*words).exit_code == 0
        return "run"
    command = group.commands[words[0]]
    options = {name for option in command.params for name in (*option.opts, *option.secondary_opts)}
    for word in words[1:]:
        if word.startswith("--"):
            assert word in options, f"integrodiff {words[0]} has no option {word}"
    # Without a file it only mentions an option.
    positional = list(takewhile(lambda word: not word.startswith("--"), words[1:]))
    if not positional or _PLACEHOLDER.search(" ".join(words)) or words[0] in _SLOW:
        if positional and "..." not in text:
            command.make_context(words[0], _without_redirections(words[1:]))
        return "checked"
    _run_own(text, words, folder)
    return "run"


def _without_redirections(words: list[str]) -> list[str]:
    cut = min((words.index(mark) for mark in ("<", ">") if mark in words), default=len(words))
    return words[:cut]


def _run_own(text: str, words: list[str], folder: Path) -> None:
    """Run a command on generated files, and look at the image that it writes."""
    source = None
    target = words[2] if words[0] == "denoise" else None
    for word in words[1 : words.index(">") if ">" in words else None]:
        known = FILES[words[1]] if word in RESULTS and word != target else FILES.get(word)
        if known is not None and not (folder / word).exists():
            (_long_scan if word.endswith(".nii.gz") and "--at" in words else known)(folder / word)
    if "<" in words:
        source = (folder / words[words.index("<") + 1]).read_bytes()
    result = run(*_without_redirections(words), input=source)
    assert result.exit_code == 0, f"{text}\n{result.output}"
    if target == "-":
        (folder / "result").write_bytes(result.stdout_bytes)
        target = "result"
    if target is not None:
        path = folder / target
        folder_of_images = path.is_dir() and path.suffix != ".zarr"
        for image in path.iterdir() if folder_of_images else [path]:
            if not image.name.startswith("."):
                assert np.isfinite(read_image(image).pixels).all()
    elif "--output" in words:
        assert (folder / words[words.index("--output") + 1]).stat().st_size > 0


def _check_other(program: str, words: list[str]) -> None:
    """Check what a command of another program names."""
    if program == "python":
        script = ROOT / words[0]
        assert script.is_file(), f"there is no {words[0]}"
        sources = "".join(
            path.read_text(encoding="utf-8") for path in sorted(script.parent.glob("*.py"))
        )
        for option in (word for word in words if word.startswith("--")):
            assert f'"{option}"' in sources, f"{words[0]} has no option {option}"
    elif program == "make":
        makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
        assert re.search(rf"^{words[0]}:", makefile, re.MULTILINE), f"there is no target {words[0]}"
    elif program == "pip":
        project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
        known = set(project["optional-dependencies"])
        for word in words:
            own = re.fullmatch(r"(?:\.|integrodiff)\[(.*)\]", word)
            assert own is None or set(own[1].split(",")) <= known, word
    elif program == "pytest":
        for word in words:
            assert not word.startswith("tests/") or (ROOT / word).exists(), word
    else:
        assert program in _COMMANDS
