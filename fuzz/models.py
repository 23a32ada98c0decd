"""Damage model files at random, load them, evaluate them and denoise a few pixels with them.

    python fuzz/models.py --count 20000

A damaged file must be refused with a ModelFileError, or be a model whose process at a noise level
is refused with a ValueError or denoises a small image to finite values. Anything else is a finding:
another exception, values that are not finite, a message over 2,000 characters, more than five
seconds of processor time or ten minutes on the clock for one file (a busy machine may be slow), or
more than a gigabyte of memory in all. Case N of a seed is the same in every run.
"""

from __future__ import annotations

import argparse
import collections
import copy
import json
import resource
import signal
import sys
import time
import traceback
import warnings
from collections.abc import Iterator
from importlib.resources import files
from pathlib import Path
from typing import Any

import numpy as np

from integrodiff import MODEL_NAMES, ModelFileError, StepSizeWarning, denoise
from integrodiff.errors import NoiseLevelWarning
from integrodiff.models import model_from_json
from integrodiff.models.files import RESEARCH_MODELS

SECONDS, SECONDS_ON_THE_CLOCK = 5, 600
MEMORY = 2**30
LONGEST_MESSAGE = 2000
SIGMAS = (1.0, 25.0, 100.0)
TEXTS = {
    name: (files("integrodiff.models") / "data" / f"{name}.json").read_text(encoding="utf-8")
    for name in (*MODEL_NAMES, *RESEARCH_MODELS)
}
NUMBERS = (
    *(0, 1, -1, 2, 3, 7, 10, 64, 100, 255, 256, 1000, 10_000, 10**6, 10**9, 2**31, 2**63),
    *(10**15, 10**40, 10**309, 10**400, -(10**30)),
    *(0.0, -0.0, 0.5, 0.25, 1e-3, 1e-8, 1e-15, 1e-30, 1e-154, 1e-300, 5e-324, -1e-5, 0.999999),
    *(3.3, 12.5, 50.0, 999.0, 1e3, 1e5, 1e10, 1e19, 1e38, 1e154, 1e300, 1.7e308, -1e300, 1e16),
)
OTHERS: tuple[Any, ...] = (
    *(None, True, False, "", "x", "tau", "none", "haar", "nonnegativity", "trace", "full"),
    *("reduced", "variance", "1", "\ud800", "\0", "a" * 5000, [], {}, [[]], [{}], {"a": 1}),
    *([1, 2], [0.1] * 8, [1e300] * 8, [1.0] * 2000, [[1, 0.5], [2, 0.5]], [[1, 1, 1]], [10, 20]),
)


# ---- damage ----


def damaged(name: str, rng: np.random.Generator) -> str:
    """Return the text of a shipped model file with a few random changes."""
    document = json.loads(TEXTS[name])
    for _ in range(int(rng.geometric(0.7))):
        document = _changed(document, rng)
    text = json.dumps(document)
    if rng.random() < 0.1:
        text = _with_other_letters(text, rng)
    return text


def _places(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Yield the paths of all members of a document; of long lists only some."""
    items: Any = ()
    if isinstance(value, dict):
        items = value.items()
    elif isinstance(value, list):
        items = list(enumerate(value))[:12]
    for key, member in items:
        yield (*path, key)
        if len(path) < 20:
            yield from _places(member, (*path, key))


def _changed(document: Any, rng: np.random.Generator) -> Any:
    """Return the document with one member replaced, removed, doubled, moved or resized."""
    places = list(_places(document))
    # Numbers that are computed with matter more than where they come from.
    inner = [path for path in places if path[0] in ("parameters", "settings", "levels")]
    chosen = inner if inner and rng.random() < 0.85 else places
    if not chosen:
        return _value(rng)
    path = chosen[int(rng.integers(len(chosen)))]
    parent = document
    for key in path[:-1]:
        parent = parent[key]
    key, old = path[-1], parent[path[-1]]
    number = isinstance(old, (int, float)) and not isinstance(old, bool)
    match int(rng.integers(8)):
        case _ if number and rng.random() < 0.6:
            power = float(rng.choice([0.1, 1, 4, 12, 100]))
            factor = float(10.0 ** rng.uniform(-power, power))
            parent[key] = old * factor if isinstance(old, float) else _integer(old, factor)
        case 0 | 1 | 2 | 3:
            parent[key] = _value(rng)
        case 4:
            del parent[key]
        case 5:
            other = places[int(rng.integers(len(places)))]
            taken = document
            for step in other:
                taken = taken[step]
            parent[key] = copy.deepcopy(taken)
        case 6:
            resized = isinstance(old, list) and old
            parent[key] = old * int(rng.integers(2, 200)) if resized else _value(rng)
        case _:
            _grow(parent, rng)
    return document


def _integer(old: int, factor: float) -> int:
    return old * max(1, int(min(factor, 1e300))) if factor > 1 else old // max(1, int(1 / factor))


def _value(rng: np.random.Generator) -> Any:
    choices = NUMBERS if rng.random() < 0.7 else OTHERS
    return copy.deepcopy(choices[int(rng.integers(len(choices)))])


def _grow(parent: Any, rng: np.random.Generator) -> None:
    """Add members, or nesting."""
    nested: Any = 1
    for _ in range(int(rng.choice([3, 40, 300]))):
        nested = [nested] if rng.random() < 0.5 else {"a": nested}
    if isinstance(parent, dict):
        count = int(rng.choice([1, 10, 3000]))
        parent.update({f"k{i}": _value(rng) for i in range(count)}, nested=nested)
    else:
        parent.append(nested)


def _with_other_letters(text: str, rng: np.random.Generator) -> str:
    """Return the text with some characters replaced, or cut off."""
    letters = list(text)
    for _ in range(int(rng.geometric(0.3))):
        letters[int(rng.integers(len(letters)))] = str(rng.choice(list('0123456789eE+-.,:[]{}"')))
    if rng.random() < 0.2:
        letters = letters[: int(rng.integers(len(letters)))]
    return "".join(letters)


# ---- what has to hold ----


class TooSlowError(Exception):
    """A case took too long."""


def _stop(signal_number: int, frame: object) -> None:
    if signal_number == signal.SIGPROF:
        raise TooSlowError(f"more than {SECONDS} s of processor time")
    raise TooSlowError(f"more than {SECONDS_ON_THE_CLOCK} s on the clock")


def outcome(text: str) -> str:
    """Return what became of a text: refused, refused at a noise level, or denoised."""
    try:
        model = model_from_json(text)
    except ModelFileError as error:
        return _checked_message(error, "refused as a file")
    image = np.random.default_rng(0).normal(128, 40, (8, 9)).astype(np.float32)
    refused = 0
    for sigma in SIGMAS:
        try:
            model.evolution(sigma)
            found = denoise(image, sigma=sigma, model=model, data_range=255, threads=1)
        except ValueError as error:
            _checked_message(error, "")
            refused += 1
            continue
        if not np.isfinite(found).all():
            raise FloatingPointError(f"the result at noise level {sigma:g} is not finite")
    return "denoised" if refused == 0 else f"refused at {refused} of {len(SIGMAS)} noise levels"


def _checked_message(error: ValueError, result: str) -> str:
    text = str(error)
    if len(text) > LONGEST_MESSAGE:
        raise RuntimeError(f"a message of {len(text)} characters: {text[:100]}...") from error
    if type(error) not in (ValueError, ModelFileError):
        raise RuntimeError(f"an error of another kind: {error!r}") from error
    return result


def run(count: int, seed: int, first: int = 0) -> int:
    """Run cases and print a table of what became of them; return the number of findings."""
    counts: collections.Counter[str] = collections.Counter()
    findings = 0
    slowest = 0.0
    names = list(TEXTS)
    signal.signal(signal.SIGALRM, _stop)
    signal.signal(signal.SIGPROF, _stop)
    warnings.simplefilter("error")
    for kind in (StepSizeWarning, NoiseLevelWarning):
        warnings.simplefilter("ignore", kind)
    for case in range(first, first + count):
        rng = np.random.default_rng((seed, case))
        text = damaged(names[case % len(names)], rng)
        begun = time.process_time()
        signal.setitimer(signal.ITIMER_REAL, SECONDS_ON_THE_CLOCK)
        signal.setitimer(signal.ITIMER_PROF, SECONDS)
        try:
            counts[outcome(text)] += 1
        except Exception as error:
            findings += 1
            counts[f"FINDING: {type(error).__name__}"] += 1
            where = traceback.extract_tb(error.__traceback__)[-1]
            print(f"case {case}: {error!r:.300} ({where.filename}:{where.lineno})")
        finally:
            signal.setitimer(signal.ITIMER_REAL, 0)
            signal.setitimer(signal.ITIMER_PROF, 0)
        slowest = max(slowest, time.process_time() - begun)
        if (case + 1) % 1000 == 0:
            print(f"{case + 1 - first} files, {findings} findings so far", flush=True)
    for result, number in counts.most_common():
        print(f"{number:7d} {result}")
    memory = _peak_memory()
    print(f"slowest {slowest:.2f} s, largest memory {memory / 2**20:.0f} MiB")
    if memory > MEMORY:
        findings += 1
        print("FINDING: too much memory")
    print(f"{count} files, {findings} findings")
    return findings


def _peak_memory() -> int:
    """Return the peak memory of this process in bytes.

    Resource usage would count that of the parent before this program was started.
    """
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("VmHWM"):
            return int(line.split()[1]) * 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def main() -> None:
    """Parse the command line and run."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--count", type=int, default=1000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--first", type=int, default=0, help="number of the first case")
    options = parser.parse_args()
    sys.exit(1 if run(options.count, options.seed, options.first) else 0)


if __name__ == "__main__":
    main()
