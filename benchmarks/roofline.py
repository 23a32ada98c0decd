"""How near the compiled engine comes to what the processor could do.

The work of one step is counted from the mathematics, without shortcuts; the ceilings (arithmetic
by a product of matrices, traffic by additions of arrays) are measured in the same run. Two counts
of bytes bound the truth. *Fused* is the least that any program must move: the image is read and
written once in a step. *Staged* is what a program moves that writes every stage to memory and
reads it again: it holds as long as the planes do not stay in a cache.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor

import numpy as np

import integrodiff
from engine_speed import denoising, exactly
from integrodiff.engines import cascade_taps, exact_tolerance
from integrodiff.paper._results import Result, markdown_table, significant
from integrodiff.stages import Evolution
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
    if any(term.order != 1 for term in terms) or evolution.discretisation != "haar":
        raise SystemExit("the work is counted for first-order processes on Haar cells only")
    radii = [len(taps) - 1 for taps in cascade_taps(evolution, exact_tolerance(np.float32))]
    blurs = 2 * sum(map(blur_flops, radii))  # the cascade, and its adjoint
    scales = len(radii)
    pointwise = sum(
        scales * (STRUCTURE + (TENSOR if term.coupling == "tensor" else TRACE) + FLUX + DIVERGENCE)
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
    work = step_work(evolution)
    image, plane, times = noisy_picture(size), size * size, 100
    about = facts({"model": model, "size": size, "dtype": "float32", "repeats": repeats})
    rows = []
    for count in threads:
        timings = take_turns(
            {
                "engine": denoising(image, model, "native", count, **exactly()),
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
        step = found["engine"] / evolution.steps / plane
        rows.append(roofline(count, step, work, ceilings))
    return {"facts": about, "steps": evolution.steps, "work": work, "rows": rows}


def roofline(threads: int, duration: float, work: Result, ceilings: Mapping[str, float]) -> Result:
    """Compare the seconds of a pixel in a step with the least that each ceiling allows."""
    floors = {
        "arithmetic": work["flops"] / ceilings["flops_per_second"],
        "fused traffic, memory": work["bytes_fused"] / ceilings["memory_bytes_per_second"],
        "staged traffic, memory": work["bytes_staged"] / ceilings["memory_bytes_per_second"],
        "staged traffic, cache": work["bytes_staged"] / ceilings["cache_bytes_per_second"],
    }
    return {
        "threads": threads,
        "seconds_per_pixel_and_step": significant(duration),
        "flops_per_second": significant(work["flops"] / duration),
        "ceilings": {name: significant(value) for name, value in ceilings.items()},
        "fractions": {name: significant(value / duration) for name, value in floors.items()},
    }


def roofline_table(part: Result) -> str:
    """Return the work, the ceilings and the fractions."""
    work = part["work"]
    share = work["flops_of_blurs"] / work["flops"]
    head = (
        f"For each pixel and step: {work['flops']} operations, {share:.0%} of them in the blurs "
        f"(radii {', '.join(map(str, work['radii']))}); {work['bytes_fused']} bytes if all stages "
        f"are fused, {work['bytes_staged']} if each goes through memory.\n"
    )
    names = list(part["rows"][0]["fractions"])
    lines = [
        [
            str(row["threads"]),
            f"{row['seconds_per_pixel_and_step'] * 1e9:.3g}",
            f"{row['flops_per_second'] / 1e9:.3g}",
            f"{row['ceilings']['flops_per_second'] / 1e9:.3g}",
            f"{row['ceilings']['memory_bytes_per_second'] / 1e9:.3g}",
            f"{row['ceilings']['cache_bytes_per_second'] / 1e9:.3g}",
            *(f"{row['fractions'][name]:.1%}" for name in names),
        ]
        for row in part["rows"]
    ]
    header = [
        "threads",
        "ns per pixel and step",
        "Gflop/s",
        "ceiling, Gflop/s",
        "memory, GB/s",
        "cache, GB/s",
        *(f"of {name}" for name in names),
    ]
    return f"{facts_text(part['facts'])}\n{head}\n{markdown_table(header, lines)}"
