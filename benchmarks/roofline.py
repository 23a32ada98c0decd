"""How near the compiled engine comes to what the processor could do.

The work of one step is counted twice: of exact evaluation from the mathematics, and of the default
with its shortcuts from the kernels in ``native/``. The ceilings (arithmetic by a product of
matrices, traffic by additions of arrays) are measured in the same run. Two counts of bytes bound
the truth. *Fused* is the least that any program must move: the image is read and written once in a
step. *Staged* is what a program moves that writes every stage to memory and reads it again, as
exact evaluation does: it holds as long as the planes do not stay in a cache.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor

import numpy as np

import integrodiff
from engine_speed import denoising, exactly
from integrodiff.engines.native import cascade_taps, exact_tolerance
from integrodiff.engines.shortcuts import shortcuts
from integrodiff.reproduction._results import Result, markdown_table, significant
from integrodiff.stages import Evolution, HaarGradient
from integrodiff.stages._arrays import plain
from timing import (
    NOISE_LEVEL,
    Contestant,
    facts,
    facts_text,
    noisy_picture,
    seconds,
    take_turns,
)

_BYTES = 4
_MATRIX = 1024
_DRAM_FLOATS = 32 * 2**20
"""Floats of an array that no cache holds."""

# ---- work of a step, for each pixel ----

# Of one scale: an addition, a product, a root and a comparison count one each, an exponential
# sixteen (four to reduce the argument, twelve for a polynomial of degree six).
_EXPONENTIAL = 16
STRUCTURE = 6 + 9  # X and Y of a cell; three products, weighted and added
TENSOR = 4 + 5 + 1 + 2 * _EXPONENTIAL + 2 + 3 + 4 + 5  # stages/diffusion_tensor.py, in its order
TRACE = 2 + _EXPONENTIAL
FLUX = 9 + 4 + 3 + 3 + 1  # X, Y and E; kappa; D times the gradient, and kappa times E
DIVERGENCE = 11 + 2  # the adjoint of X, Y and E; weighted and added


def blur_flops(radius: int) -> int:
    """Count a symmetric kernel along rows and along columns."""
    return 2 * (3 * radius + 1)


def step_work(evolution: Evolution) -> Result:
    """Count the operations and the bytes of one step of a first-order process in float32."""
    terms = evolution.terms(0)
    if not all(isinstance(term.derivatives, HaarGradient) for term in terms):
        raise SystemExit("the work is counted for first-order processes on Haar cells only")
    radii = [len(taps) - 1 for taps in cascade_taps(evolution, exact_tolerance(np.float32))]
    blurs = 2 * sum(map(blur_flops, radii))  # the cascade, and its adjoint
    scales = len(radii)
    pointwise = sum(
        scales
        * (STRUCTURE + (TENSOR if term.coupling.kind == "tensor" else TRACE) + FLUX + DIVERGENCE)
        for term in terms
    )
    # Planes read and written: each blur 2; the structure of a scale reads 1 plane, and reads and
    # writes 3; the flow of a scale reads 1 and 3 and writes 1; Horner's sum reads 2 and writes 1.
    planes = 2 * 2 * scales + len(terms) * scales * (7 + 5) + 3 * scales + 3
    return {
        "radii": radii,
        "flops_of_blurs": blurs,
        "flops": blurs + pointwise + 2 * scales + 2,
        "bytes_fused": 2 * _BYTES,
        "bytes_staged": planes * _BYTES,
    }


# The same in the fused kernels (tile.hpp, cells.hpp and resample.hpp in native/steps). A power of
# two: its argument, three to reduce it, four products and sums, and one to put the exponent back.
_POWER = 1 + 3 + 8 + 1
FUSED_STRUCTURE = 2 + 8  # two differences; three sums of weighted products
EIGENVALUES = {"tensor": 13, "trace": 2}
FUSED_FLUX = {"tensor": 5 + 2 * _POWER + 18 + 8, "trace": 5 + _POWER + 5 + 8}


def even_flops(taps: int) -> int:
    """Count half of an even symmetric kernel at one place."""
    return 3 * taps


def fused_work(evolution: Evolution) -> Result | None:
    """Count the operations of one step with shortcuts, for each pixel.

    None if there are none, and for several orders and integration scales, which are not counted.
    """
    found = shortcuts(evolution)
    if found is None or len(found.evolution.terms(0)) > 1:
        return None
    (term,) = found.evolution.terms(0)
    if plain(term.coupling.integration_scale):
        return None
    fine, coarse = ([len(taps) - 1 for taps in part] for part in (found.fine, found.coarse))
    coupled = sum(plain(weight) != 0 for weight in term.coupling.weights)
    flowing = [plain(weight) != 0 for weight in term.flux_weights]
    way_back = [
        max((i for i, flows in enumerate(part) if flows), default=-1) + 1
        for part in (flowing[: len(fine)], flowing[len(fine) :])
    ]
    # A sample of the coarse grid stands for four pixels.
    blurs = sum(map(blur_flops, [*fine, *fine[: way_back[0]]]))
    coarse_blurs = sum(map(blur_flops, [*coarse, *coarse[: way_back[1]]])) / 4
    sampling, interpolation = even_flops(len(found.sampling)), even_flops(len(found.interpolation))
    # Down: half of the rows, and then half of the columns. Up: half of the columns, then all.
    between = (1 / 2 + 1 / 4) * sampling + len(coarse) * interpolation
    flows = sum(flowing[len(fine) :])
    between += flows * (1 / 2 + 1 / 4) * interpolation + (sampling if flows else 0)
    pointwise = coupled * FUSED_STRUCTURE + EIGENVALUES[term.coupling.kind] + 2
    pointwise += sum(flowing) * FUSED_FLUX[term.coupling.kind]
    return {
        "radii": [*fine, *coarse],
        "flops_of_blurs": round(blurs + coarse_blurs + between),
        "flops": round(blurs + coarse_blurs + between + pointwise),
        "bytes_fused": 2 * _BYTES,
    }


# ---- ceilings ----


def _shared(work: Callable[[int], object], threads: int) -> object:
    """Do a piece of work on each thread."""
    if threads == 1:
        return work(0)
    with ThreadPoolExecutor(threads) as pool:
        return list(pool.map(work, range(threads)))


def _addition(floats: int, threads: int, times: int) -> Contestant:
    """Return additions a = b + c of arrays, each thread with its own part."""
    share = floats // threads
    parts = [[np.ones(share, np.float32) for _ in range(3)] for _ in range(threads)]

    def work(number: int) -> None:
        first, second, result = parts[number]
        for _ in range(times):
            np.add(first, second, out=result)

    return Contestant(lambda: _shared(work, threads), threads)


def _product(threads: int) -> Contestant:
    one = np.random.default_rng(0).random((_MATRIX, _MATRIX), dtype=np.float32)
    result = np.empty_like(one)
    return Contestant(lambda: np.matmul(one, one, out=result), threads)


def measure_roofline(
    model: str, size: int, threads: Sequence[int], repeats: int, dram_floats: int = _DRAM_FLOATS
) -> Result:
    """Time the engine and the ceilings in turns, and put the one beneath the other."""
    evolution = integrodiff.load_model(model).evolution(NOISE_LEVEL)
    works = {"exact": step_work(evolution)}
    if (fused := fused_work(evolution)) is not None:
        works = {"default": fused, **works}
    image, plane, times = noisy_picture(size), size * size, 100
    about = facts({"model": model, "size": size, "dtype": "float32", "repeats": repeats})
    rows = []
    for count in threads:
        engines = {
            name: denoising(image, model, "native", count, **(exactly() if name == "exact" else {}))
            for name in works
        }
        timings = take_turns(
            {
                **engines,
                "product": _product(count),
                "memory": _addition(dram_floats, count, 1),
                "cache": _addition(plane, count, times),
            },
            repeats,
        )
        found = {name: seconds(timing.as_result()) for name, timing in timings.items()}
        ceilings = {
            "flops_per_second": 2 * _MATRIX**3 / found["product"],
            "memory_bytes_per_second": 3 * _BYTES * dram_floats / found["memory"],
            "cache_bytes_per_second": 3 * _BYTES * plane * times / found["cache"],
        }
        for name, work in works.items():
            step = found[name] / evolution.steps / plane
            rows.append({"evaluation": name, **roofline(count, step, work, ceilings)})
    return {"facts": about, "steps": evolution.steps, "work": works, "rows": rows}


def roofline(threads: int, duration: float, work: Result, ceilings: Mapping[str, float]) -> Result:
    """Compare the seconds of a pixel in a step with the least that each ceiling allows."""
    floors = {
        "arithmetic": work["flops"] / ceilings["flops_per_second"],
        "fused traffic, memory": work["bytes_fused"] / ceilings["memory_bytes_per_second"],
    }
    if "bytes_staged" in work:
        staged = work["bytes_staged"]
        floors["staged traffic, memory"] = staged / ceilings["memory_bytes_per_second"]
        floors["staged traffic, cache"] = staged / ceilings["cache_bytes_per_second"]
    return {
        "threads": threads,
        "seconds_per_pixel_and_step": significant(duration),
        "flops_per_second": significant(work["flops"] / duration),
        "ceilings": {name: significant(value) for name, value in ceilings.items()},
        "fractions": {name: significant(value / duration) for name, value in floors.items()},
    }


def roofline_table(part: Result) -> str:
    """Return the work, the ceilings and the fractions."""
    head = ""
    for evaluation, work in part["work"].items():
        share = work["flops_of_blurs"] / work["flops"]
        head += (
            f"For each pixel and step, {evaluation}: {work['flops']} operations, {share:.0%} of "
            f"them in the blurs (radii {', '.join(map(str, work['radii']))}); "
            f"{work['bytes_fused']} bytes if all stages are fused"
        )
        staged = work.get("bytes_staged")
        head += f", {staged} if each goes through memory.\n" if staged else ".\n"
    names = list(part["rows"][-1]["fractions"])
    lines = [
        [
            row["evaluation"],
            str(row["threads"]),
            f"{row['seconds_per_pixel_and_step'] * 1e9:.3g}",
            f"{row['flops_per_second'] / 1e9:.3g}",
            f"{row['ceilings']['flops_per_second'] / 1e9:.3g}",
            f"{row['ceilings']['memory_bytes_per_second'] / 1e9:.3g}",
            f"{row['ceilings']['cache_bytes_per_second'] / 1e9:.3g}",
            *(f"{f[name]:.1%}" if name in (f := row["fractions"]) else "-" for name in names),
        ]
        for row in part["rows"]
    ]
    header = [
        "evaluation",
        "threads",
        "ns per pixel and step",
        "Gflop/s",
        "ceiling, Gflop/s",
        "memory, GB/s",
        "cache, GB/s",
        *(f"of {name}" for name in names),
    ]
    return f"{facts_text(part['facts'])}\n{head}\n{markdown_table(header, lines)}"
