"""Evidence that the hot loops of the compiled engine work on whole vectors.

*Written*: the engine is built once more as `pip` builds it, and the arithmetic instructions of each
function for float32 are counted in the object files, for each instruction set. Scalar ones among
them are what is left at the end of a row. *Executed*: callgrind counts how often each instruction
of the installed engine runs on one image; it knows no AVX-512. Needs GNU objdump and valgrind.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Iterable, Iterator
from pathlib import Path

from integrodiff.models import load_model
from integrodiff.reproduction._results import Result, markdown_table, significant
from timing import facts, facts_text

_ARITHMETIC = re.compile(r"v?(?:add|sub|mul|div|sqrt|max|min|fn?m(?:add|sub)\d*)([ps])([sd])\b")
_FUNCTION = re.compile(r"integrodiff::(\w+)::(?:\(anonymous namespace\)::)?(\w+)<(?:\d+, )?float")
_INSTRUCTION = re.compile(r"\s*([0-9a-f]+):\s+(.*)")
_REGISTERS = {"zmm": 16, "ymm": 8, "xmm": 4}
_FEWEST = 10
"""Functions with fewer instructions of arithmetic are left out."""
_SIZE = 128
_CALL = f"""
import numpy as np
from integrodiff import denoise
image = np.random.default_rng(0).normal(128, 25, ({_SIZE}, {_SIZE})).astype(np.float32)
denoise(image, 25, data_range=255, engine="native")
"""


def lanes(instruction: str) -> int | None:
    """Return on how many numbers an instruction of arithmetic works; None for any other."""
    match = _ARITHMETIC.match(instruction)
    if match is None:
        return None
    if match[1] == "s":
        return 1
    width = next(size for name, size in _REGISTERS.items() if name in instruction)
    return width if match[2] == "s" else width // 2


# ---- what is written ----


def count_written(disassembly: Iterable[str]) -> dict[tuple[str, str], Counter[int]]:
    """Count the arithmetic of each function for float32 and instruction set by its lanes."""
    found: dict[tuple[str, str], Counter[int]] = {}
    here: Counter[int] | None = None
    for line in disassembly:
        if line.endswith(">:"):
            match = _FUNCTION.search(line)
            here = found.setdefault((match[2], match[1]), Counter()) if match else None
        elif here is not None and (instruction := _INSTRUCTION.match(line)):
            width = lanes(instruction[2])
            if width is not None:
                here[width] += 1
    return found


def measure_written(source: Path) -> list[Result]:
    """Build the engine, and count."""
    counts: dict[tuple[str, str], Counter[int]] = {}
    with tempfile.TemporaryDirectory() as folder:
        build = ["pip", "wheel", "--quiet", "--no-deps", f"--wheel-dir={folder}"]
        _run([sys.executable, "-m", *build, f"--config-settings=build-dir={folder}", str(source)])
        for path in sorted(Path(folder).glob("CMakeFiles/steps_*.dir/native/steps/*.o")):
            for key, found in count_written(_disassembled(path)).items():
                counts.setdefault(key, Counter()).update(found)
    return [
        {
            "function": function,
            "instructions": isa,
            "packed": found.total() - found[1],
            "scalar": found[1],
            "widest": max(found),
        }
        for (function, isa), found in sorted(counts.items())
        if found.total() >= _FEWEST
    ]


def _disassembled(path: Path) -> list[str]:
    options = ["--disassemble", "--demangle", "--no-show-raw-insn"]
    return _run(["objdump", *options, str(path)]).splitlines()


def _run(command: list[str], **variables: str) -> str:
    if shutil.which(command[0]) is None:
        raise SystemExit(f"{command[0]} is needed and not installed")
    done = subprocess.run(
        command, check=True, text=True, stdout=subprocess.PIPE, env={**os.environ, **variables}
    )
    return done.stdout


# ---- what is executed ----


def executed(profile: Iterable[str], library: str) -> Iterator[tuple[int, int]]:
    """Yield the address and the number of runs of each instruction of one library.

    ``profile`` has the lines of callgrind with ``--dump-instr=yes`` and nothing compressed. What
    follows a line ``calls=`` is the cost of the function called, and does not count.
    """
    inside = called = False
    for line in profile:
        if line.startswith("ob="):
            inside = line[3:].strip() == library
        elif line.startswith("calls="):
            called = True
        elif line.startswith("0x"):
            if inside and not called:
                address, _, runs = line.split()[:3]
                yield int(address, 16), int(runs)
            called = False


def count_executed(
    disassembly: Iterable[str], runs: Iterable[tuple[int, int]]
) -> tuple[Counter[int], int]:
    """Return the executed arithmetic by lanes, and how many instructions were executed at all."""
    widths = {}
    for line in disassembly:
        if instruction := _INSTRUCTION.match(line):
            width = lanes(instruction[2])
            if width is not None:
                widths[int(instruction[1], 16)] = width
    counts: Counter[int] = Counter()
    total = 0
    for address, number in runs:
        total += number
        if address in widths:
            counts[widths[address]] += number
    return counts, total


def measure_executed(isa: str) -> Result:
    """Denoise an image under callgrind with one of the instruction sets."""
    from integrodiff import _native

    library = str(Path(str(_native.__file__)).resolve())
    with tempfile.TemporaryDirectory() as folder:
        profile = Path(folder) / "callgrind"
        options = ["--dump-instr=yes", "--compress-pos=no", "--compress-strings=no", "--quiet"]
        tool = ["valgrind", "--tool=callgrind", *options, f"--callgrind-out-file={profile}"]
        limits = {"INTEGRODIFF_SIMD": isa, "INTEGRODIFF_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}
        _run([*tool, sys.executable, "-c", _CALL], **limits)
        with profile.open(encoding="utf-8") as lines:
            counts, total = count_executed(_disassembled(Path(library)), executed(lines, library))
    steps = load_model("iad").evolution(25.0).steps
    operations = sum(width * number for width, number in counts.items())
    return {
        "instructions": isa,
        "executed": total,
        "arithmetic": counts.total(),
        "by_lanes": {str(width): counts[width] for width in sorted(counts)},
        "operations_in_vectors": significant(1 - counts[1] / operations),
        "scalar_instructions": significant(counts[1] / counts.total()),
        "instructions_per_pixel_and_step": significant(total / _SIZE**2 / steps),
    }


# ---- the part ----


def measure_vectors(source: Path) -> Result:
    """Count what is written, and what is executed."""
    about = facts({"image": f"{_SIZE} x {_SIZE}, float32, one thread, model iad"})
    return {
        "facts": about,
        "executed": [measure_executed(isa) for isa in ("baseline", "avx2")],
        "written": measure_written(source),
    }


def vectors_table(part: Result) -> str:
    """Return both counts."""
    image = part["facts"]["settings"]["image"]
    lines = [
        [
            row["instructions"],
            f"{row['operations_in_vectors']:.1%}",
            f"{row['scalar_instructions']:.1%}",
            ", ".join(f"{width}: {number:,}" for width, number in row["by_lanes"].items()),
            f"{row['instructions_per_pixel_and_step']:.1f}",
        ]
        for row in part["executed"]
    ]
    header = [
        f"executed, {image}",
        "operations in vectors",
        "arithmetic instructions that are scalar",
        "arithmetic instructions by lanes",
        "instructions per pixel and step",
    ]
    sets = ["baseline", "avx2", "avx512"]
    written = {(row["function"], row["instructions"]): row for row in part["written"]}
    names = sorted({row["function"] for row in part["written"]})
    cells = [[name, *(_written_cell(written.get((name, isa))) for isa in sets)] for name in names]
    second = ["written: packed + scalar (widest)", *sets]
    return (
        f"{facts_text(part['facts'])}\n{markdown_table(header, lines)}\n"
        f"{markdown_table(second, cells)}\n{_scalar_functions(part['written'])}\n"
    )


def _scalar_functions(rows: Iterable[Result]) -> str:
    """Name the functions whose loops are not vectorised at all."""
    found = sorted(
        {f"`{row['function']}` ({row['instructions']})" for row in rows if not row["packed"]}
    )
    if not found:
        return "No function is without vector instructions."
    return f"**Not vectorised**: {', '.join(found)}."


def _written_cell(row: Result | None) -> str:
    return "-" if row is None else f"{row['packed']} + {row['scalar']} ({row['widest']})"
