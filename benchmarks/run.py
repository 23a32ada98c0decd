"""Benchmarks in one command; what they promise is in the README beside this file.

    python benchmarks/run.py all --data FOLDER --json results/benchmarks.json
    python benchmarks/run.py speed scaling --models iad iad-full
    python benchmarks/run.py --report results/benchmarks.json

Parts: speed, scaling, roofline, peers, vectors, or all of them. A part replaces its last run in
the file and leaves the others. Models are given by name or file; the first is compared with the
peers. --speed-peers are timed in the part speed, too, on one thread. With --report the tables of a
file are written into the README, and nothing is measured.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Callable
from pathlib import Path

# Idle threads of OpenBLAS wait awake for longer than anybody can wait for them. Here they go to
# sleep; this must be said before NumPy is loaded.
os.environ["OPENBLAS_THREAD_TIMEOUT"] = "4"

sys.path.append(str(Path(__file__).resolve().parents[1] / "experiments"))

from denoisers import PEERS
from engine_speed import measure_scaling, measure_speed, scaling_table, speed_table
from integrodiff._atomic import atomic_write
from integrodiff.reproduction._results import Result
from peer_table import contestants, measure_peers, peers_table, test_sets
from peers import TUNED, tuned_peers
from roofline import measure_roofline, roofline_table
from vector_code import measure_vectors, vectors_table

_HERE = Path(__file__).resolve().parent

TABLES: dict[str, tuple[str, Callable[[Result], str]]] = {
    "speed": ("Engines", speed_table),
    "scaling": ("Threads and sizes", scaling_table),
    "roofline": ("Roofline", roofline_table),
    "peers": ("Other denoisers", peers_table),
    "vectors": ("Vector instructions", vectors_table),
}
"""The parts in their order: title, and what makes a table of the numbers."""

_BEGIN, _END = "<!-- results -->\n", "<!-- end of results -->\n"


def measure(part: str, arguments: argparse.Namespace) -> Result:
    """Measure one part."""
    first, threads, repeats = arguments.models[0], arguments.threads, arguments.repeats
    if part == "speed":
        peers = tuned_peers(arguments.speed_peers, arguments.tuned)
        return measure_speed(arguments.models, arguments.size, threads, repeats, peers)
    if part == "scaling":
        return measure_scaling(first, arguments.sizes, threads, min(repeats, 3))
    if part == "roofline":
        return measure_roofline(first, arguments.size, threads, repeats)
    if part == "vectors":
        return measure_vectors(_HERE.parent)
    methods, missing = contestants(arguments.models, arguments.peers, arguments.tuned)
    sets = test_sets(arguments.data, arguments.bsd68, arguments.crops)
    return measure_peers(methods, missing, sets, arguments.slow_images, repeats)


def report(document: Result) -> str:
    """Return the tables of all parts that were measured."""
    return "\n".join(
        f"### {title}\n\n{table(document[part])}"
        for part, (title, table) in TABLES.items()
        if part in document
    )


def write_report(document: Result, path: Path) -> None:
    """Put the tables between the marks in a file."""
    text = path.read_text(encoding="utf-8")
    head, rest = text.split(_BEGIN)
    _, tail = rest.split(_END)
    with atomic_write(path, overwrite=True) as temporary:
        new = f"{head}{_BEGIN}\n{report(document)}\n{_END}{tail}"
        temporary.write_text(new, encoding="utf-8")


def save(document: Result, path: Path) -> None:
    """Write the numbers, whole or not at all."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with atomic_write(path, overwrite=True) as temporary:
        text = json.dumps(document, indent=1, allow_nan=False)
        temporary.write_text(text + "\n", encoding="utf-8")


def options() -> argparse.ArgumentParser:
    """Return the parser of the command line."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("parts", nargs="*", choices=[*TABLES, "all", []], metavar="PART")
    parser.add_argument("--json", type=Path, help="where the numbers go")
    parser.add_argument("--report", type=Path, metavar="JSON", help="only write the README")
    parser.add_argument("--models", nargs="+", default=["iad"], metavar="MODEL")
    parser.add_argument("--peers", nargs="*", default=list(PEERS), choices=PEERS, metavar="PEER")
    parser.add_argument("--speed-peers", nargs="*", default=[], choices=PEERS, metavar="PEER")
    parser.add_argument("--tuned", type=Path, default=_HERE.parent / TUNED)
    parser.add_argument("--data", type=Path, help="folder that holds bsd68 and bsds500")
    parser.add_argument("--bsd68", type=int, default=20, help="number of images")
    parser.add_argument("--crops", type=int, default=30, help="number of test crops")
    parser.add_argument("--slow-images", type=int, default=5, help="of each set, for slow peers")
    parser.add_argument("--threads", type=int, nargs="+", default=[1, 2])
    parser.add_argument("--repeats", type=int, default=7, help="after one that does not count")
    parser.add_argument("--size", type=int, default=512, help="of speed and roofline")
    parser.add_argument(
        "--sizes", type=int, nargs="+", default=[128, 256, 512, 1024, 2048, 4096, 8192]
    )
    return parser


def main(words: list[str] | None = None) -> None:
    """Measure what is asked for, print tables, keep numbers."""
    parser = options()
    arguments = parser.parse_args(words)
    if arguments.report:
        document = json.loads(arguments.report.read_text(encoding="utf-8"))
        write_report(document, _HERE / "README.md")
        return
    if not arguments.parts:
        parser.error(f"name a part: {', '.join(TABLES)}, or all")
    document = {}
    if arguments.json and arguments.json.is_file():
        document = json.loads(arguments.json.read_text(encoding="utf-8"))
    for part in TABLES if "all" in arguments.parts else arguments.parts:
        document[part] = measure(part, arguments)
        title, table = TABLES[part]
        print(f"### {title}\n\n{table(document[part])}", flush=True)
        if arguments.json:
            save(document, arguments.json)


if __name__ == "__main__":
    os.environ["CUDA_VISIBLE_DEVICES"] = ""  # these are benchmarks of processors
    main()
