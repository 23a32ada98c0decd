"""The engine ``cuda`` on a GPU in one call: agreement with the reference, races, memory, and speed.

    python benchmarks/gpu.py --json results/gpu.json

Every figure is printed as it is measured. It needs a GPU, CuPy and PyTorch, compute-sanitizer for
the search for races, and the sources on ``PYTHONPATH`` where the package is not installed.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
from dataclasses import replace
from datetime import date
from functools import partial
from multiprocessing import get_context
from pathlib import Path
from typing import Any, NamedTuple, cast

import numpy as np
from numpy.typing import NDArray

from integrodiff import load_model
from integrodiff.engines import ENGINES
from integrodiff.engines.cuda.blurs import short_kernels
from integrodiff.engines.cuda.stages import StagedCudaProcess
from integrodiff.learning import (
    CleanImages,
    Linearisation,
    Lineariser,
    Parameterisation,
    TorchLineariser,
)
from integrodiff.learning.recipes import RECIPES
from integrodiff.models import ExplicitModel
from integrodiff.stages import Evolution

MODELS = (
    *("pm", "eed", "iid", "iad", "iad-full", "iad-power", "iad-fast", "iad-plus", "iad-deep"),
    "iad-orders",
)
MASKED_MODELS = ("pm", "eed", "iid", "iad", "iad-fast", "iad-plus", "iad-deep", "iad-orders")
SHAPES: tuple[tuple[int, ...], ...] = ((2, 1, 145, 170), (1, 3, 67, 33), (1, 1, 7), (1, 300, 1))
VOLUMES: tuple[tuple[int, ...], ...] = ((2, 1, 19, 31, 57), (1, 2, 5, 9, 6), (1, 1, 4, 1))
SPACINGS = ((1.0, 1.0, 1.0), (3.0, 1.0, 1.0))
SIGMA = 25.0
BATCH = (200, 1, 256, 256)


def picture(shape: tuple[int, ...], seed: int = 0) -> NDArray[np.float64]:
    """Return smooth shades, edges and noise between 0 and 255."""
    rng = np.random.default_rng(seed)
    y, x = np.mgrid[: shape[-2], : shape[-1]]
    clean = 128 + 70 * np.sin(x / 19) * np.cos(y / 31) + 50 * ((x + 2 * y) % 97 < 40)
    noisy: NDArray[np.float64] = clean + rng.normal(0, SIGMA, shape)
    return noisy


def on_gpu(image: NDArray[np.float64], dtype: str = "float32") -> Any:
    """Return a tensor of PyTorch."""
    import torch

    return torch.tensor(image, dtype=getattr(torch, dtype), device="cuda")


def evolution(model: str, spacing: tuple[float, float, float] | None = None) -> Evolution:
    """Return the process of a model, in volumes if there is a spacing."""
    found = load_model(model).evolution(SIGMA)
    return found if spacing is None else found.in_volume(spacing)


class Case(NamedTuple):
    """A model with the shapes of arrays that it denoises, and a spacing for volumes."""

    model: str
    shapes: tuple[tuple[int, ...], ...]
    spacing: tuple[float, float, float] | None = None

    @property
    def name(self) -> str:
        """The model, with the spacing if there is one."""
        return self.model + (f", spacing {self.spacing[0]:g} : 1 : 1" if self.spacing else "")


def in_processes(row_of: Callable[[Case], dict[str, Any]], cases: list[Case]) -> list[Any]:
    """Return a row for each case; the reference keeps as many processors busy as there are."""
    workers = min(len(cases), os.cpu_count() or 1)
    with ProcessPoolExecutor(workers, get_context("spawn")) as pool:
        rows = []
        for row in pool.map(row_of, cases):
            print(json.dumps(row), flush=True)
            rows.append(row)
    return rows


def parity() -> list[dict[str, Any]]:
    """Return the largest differences from the reference in grey levels."""
    cases = [Case(model, SHAPES) for model in MODELS]
    cases += [
        Case(model, VOLUMES, spacing)
        for model in ("iad-plus-volume", "iad")
        for spacing in SPACINGS
    ]
    return in_processes(parity_of, cases)


def parity_of(case: Case) -> dict[str, Any]:
    """Return the largest differences of one model."""
    process = evolution(case.model, case.spacing)
    row: dict[str, Any] = {"model": case.name}
    for shape in case.shapes:
        image = picture(shape)
        levels = np.linspace(0.6, 1.6, image[(0,) * (image.ndim - process.dimensions)].size)
        levels = levels.reshape(shape[-process.dimensions :])
        for label, noise in (("", None), (" with map", levels)):
            expected = ENGINES["numpy"].evolve(image, process, relative_noise=noise)
            for kind, dtype, exact in (
                ("float64 exact", "float64", True),
                ("float32 exact", "float32", True),
                ("float32", "float32", False),
            ):
                engine = ENGINES["cuda"].prepare(process, exact=exact, relative_noise=noise)
                found = engine(on_gpu(image, dtype)).cpu().numpy()
                key = kind + label
                row[key] = max(row.get(key, 0.0), float(np.abs(found - expected).max()))
    return row


def some_valid(size: tuple[int, ...]) -> NDArray[np.bool_]:
    """Return a mask with a hole in a corner and, except in the lower right quarter, lost pixels."""
    mask = np.random.default_rng(1).random(size) < 0.95
    mask[tuple(slice(n // 2, None) for n in size)] = True
    mask[tuple(slice(0, max(1, n // 8)) for n in size)] = False
    return mask


def masks() -> list[dict[str, Any]]:
    """Return the largest differences with invalid pixels, and whether those came back as given."""
    shapes: tuple[tuple[int, ...], ...] = ((2, 1, 145, 170), (1, 3, 67, 33), (1, 300, 1))
    cases = [Case(model, shapes) for model in MASKED_MODELS]
    cases += [Case("iad-plus-volume", VOLUMES[:2], spacing) for spacing in SPACINGS]
    return in_processes(masks_of, cases)


def masks_of(case: Case) -> dict[str, Any]:
    """Return the same of one model."""
    process = evolution(case.model, case.spacing)
    row: dict[str, Any] = {"model": case.name, "invalid pixels as given": True}
    for shape in case.shapes:
        size = shape[-process.dimensions :]
        mask = some_valid(size)
        image = np.where(mask, picture(shape), np.nan)
        levels = np.where(mask, np.linspace(0.6, 1.6, mask.size).reshape(size), np.nan)
        for label, noise in (("", None), (" with map", levels)):
            settings: dict[str, Any] = {"mask": mask, "relative_noise": noise}
            expected = ENGINES["numpy"].evolve(image, process, **settings)
            engine = ENGINES["cuda"].prepare(process, **settings)
            for kind, found in (
                ("float64", engine(on_gpu(image, "float64")).cpu().numpy()),
                ("float32", engine(on_gpu(image, "float32")).cpu().numpy()),
                ("float64 by CuPy", engine(image)),
            ):
                row["invalid pixels as given"] &= bool(np.isnan(found[..., ~mask]).all())
                difference = float(np.abs(found - expected)[..., mask].max())
                row[kind + label] = max(row.get(kind + label, 0.0), difference)
    return row


def milliseconds(run: Callable[[], object], repeats: int = 7) -> float:
    """Return the median time of a call by the events of the GPU."""
    import torch

    event: Any = torch.cuda.Event
    run()
    run()
    torch.cuda.synchronize()
    times = []
    for _ in range(repeats):
        begin, end = event(enable_timing=True), event(enable_timing=True)
        begin.record()
        run()
        end.record()
        torch.cuda.synchronize()
        times.append(begin.elapsed_time(end))
    return float(np.median(times))


def ceilings() -> dict[str, float]:
    """Return the measured rates of copies (both ways) and of fused multiply-adds."""
    import cupy
    import torch

    source = torch.empty(2**28, device="cuda")
    target = torch.empty_like(source)
    copied = milliseconds(lambda: target.copy_(source))
    kernel = cupy.RawKernel(
        """extern "C" __global__ void multiply_add(float* out, float factor) {
          float sum[8];
          for (int n = 0; n < 8; ++n) sum[n] = threadIdx.x + n;
          for (int k = 0; k < 4096; ++k)
            for (int n = 0; n < 8; ++n) sum[n] = fmaf(sum[n], factor, 1.0f);
          for (int n = 1; n < 8; ++n) sum[0] += sum[n];
          out[blockIdx.x * blockDim.x + threadIdx.x] = sum[0];
        }""",
        "multiply_add",
    )
    blocks = 132 * 16
    out = cupy.empty(blocks * 512, cupy.float32)
    begin, end = cupy.cuda.Event(), cupy.cuda.Event()
    for _ in range(3):
        begin.record()
        kernel((blocks,), (512,), (out, np.float32(0.999)))
        end.record()
        end.synchronize()
    spent = cupy.cuda.get_elapsed_time(begin, end)
    return {
        "copy TB/s": 2 * source.numel() * 4 / copied / 1e9,
        "multiply-adds T/s": blocks * 512 * 8 * 4096 / spent / 1e9,
    }


def work(process: Evolution) -> dict[str, float]:
    """Return bytes and multiply-adds per pixel and step, of blurs and fluxes of order one."""
    found = short_kernels(process)
    scales, flows = len(found.blurs), len(found.evolution.terms(0)[0].scales_in_flux)
    radii = [len(taps) - 1 for taps, _ in found.blurs]
    # Rows of a tile are smoothed with its margin, columns without.
    blurred = [(2 * r + 1) * (2 + r / 32) for r in radii]
    flowing = [blurred[i] for i in found.evolution.terms(0)[0].scales_in_flux]
    return {
        "bytes": 4.0 * (1 + scales + scales + flows + flows + 2),
        "multiply-adds": sum(blurred) + sum(flowing) + 25.0 * scales,
    }


def cuda_call(process: Evolution, image: Any) -> Callable[[], object]:
    """Return a call of the engine."""
    prepared = ENGINES["cuda"].prepare(process)
    return lambda: prepared(image)


def network() -> Any:
    """Return a network of the size of DnCNN, 17 layers of 64 channels, with random weights."""
    from torch import nn

    layers: list[Any] = [nn.Conv2d(1, 64, 3, padding=1), nn.ReLU()]
    for _ in range(15):
        layers += [nn.Conv2d(64, 64, 3, padding=1), nn.ReLU()]
    return nn.Sequential(*layers, nn.Conv2d(64, 1, 3, padding=1)).cuda()


class Figures(dict[str, float]):
    """Named numbers, which are printed as they come."""

    def note(self, name: str, value: float) -> float:
        """Add a number."""
        self[name] = value
        print(f"{name}: {value:.4g}", flush=True)
        return value


def speed_of_batches(figures: Figures) -> None:
    """Time the models on a batch, and how near ``iad`` comes to the ceilings."""
    import torch

    batch, pixels = on_gpu(picture(BATCH)), float(np.prod(BATCH))
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    run = cuda_call(evolution("iad"), batch)
    spent = figures.note("iad, 200 x 256 x 256, ms", milliseconds(run))
    peak = (torch.cuda.max_memory_allocated() - before) / (4 * pixels)
    figures.note("iad, planes of the batch at the peak", peak)
    limits, done, steps = ceilings(), work(evolution("iad")), 10 * pixels / spent / 1e9
    for name, value in limits.items():
        figures.note(name, value)
    figures.note("iad, part of the copy ceiling", done["bytes"] * steps / limits["copy TB/s"])
    arithmetic = done["multiply-adds"] * steps / limits["multiply-adds T/s"]
    figures.note("iad, part of the multiply-add ceiling", arithmetic)
    for model in ("iad-fast", "iad-plus", "iad-deep"):
        run = cuda_call(evolution(model), batch)
        figures.note(f"{model}, 200 x 256 x 256, ms", milliseconds(run))
    eager = ENGINES["torch"].prepare(evolution("iad"))
    spent = milliseconds(lambda: eager(batch), 3)
    figures.note("iad, torch, operation by operation, ms", spent)


def speed_of_masks(figures: Figures) -> None:
    """Time images with invalid pixels: the kernels, and the stages operation by operation."""
    batch, mask = on_gpu(picture(BATCH)), some_valid(BATCH[2:])
    for model in ("iad", "iad-plus", "iad-deep"):
        prepared = ENGINES["cuda"].prepare(evolution(model), mask=mask)
        spent = milliseconds(lambda run=prepared: run(batch))  # type: ignore[misc]
        figures.note(f"{model}, 200 x 256 x 256, masked, ms", spent)
    staged = StagedCudaProcess(evolution("iad"), None, mask)
    spent = milliseconds(lambda: staged(batch), 3)
    figures.note("iad, 200 x 256 x 256, masked, operation by operation, ms", spent)


def speed_of_network(figures: Figures) -> None:
    """Time the network on the same batch, a quarter at a time."""
    import torch

    part, net = on_gpu(picture((BATCH[0] // 4, *BATCH[1:]))), network()
    with torch.no_grad():
        spent = 4 * milliseconds(lambda: net(part), 3)
        figures.note("17 layers of 64 channels, float32, ms", spent)
        with torch.autocast("cuda", torch.bfloat16):
            spent = 4 * milliseconds(lambda: net(part), 3)
        figures.note("17 layers of 64 channels, bfloat16, ms", spent)


def speed_of_large(figures: Figures) -> None:
    """Time one large image and one large volume."""
    large = on_gpu(picture((1, 8192, 8192)))
    for model in ("iad", "iad-plus", "iad-deep"):
        run = cuda_call(evolution(model), large)
        figures.note(f"{model}, 8192 x 8192, ms", milliseconds(run, 3))
    volume = on_gpu(picture((1, 512, 512, 512)))
    run = cuda_call(evolution("iad-plus-volume", (1.0, 1.0, 1.0)), volume)
    figures.note("iad-plus-volume, 512 x 512 x 512, ms", milliseconds(run, 2))


def speed() -> dict[str, float]:
    """Time the engine beside PyTorch's operations and a network."""
    figures = Figures()
    speed_of_batches(figures)
    speed_of_masks(figures)
    speed_of_network(figures)
    speed_of_large(figures)
    return dict(figures)


def _require_finite(found: Any) -> None:
    if not bool(found.isfinite().all()):
        raise ArithmeticError("a result is not finite")


def many_calls(count: int = 1000) -> dict[str, Any]:
    """Denoise random shapes; return how much memory is left in use."""
    import torch

    rng = np.random.default_rng(5)
    prepared = [ENGINES["cuda"].prepare(evolution(model)) for model in ("iad", "iad-plus", "pm")]
    used = []
    for n in range(count):
        shape = (int(rng.integers(1, 5)), int(rng.integers(1, 4)), *rng.integers(1, 200, 2))
        image = torch.rand(tuple(map(int, shape)), device="cuda") * 255
        found = prepared[n % 3](image)
        _require_finite(found)
        del image, found
        if n in (count // 10, count - 1):
            used.append(torch.cuda.memory_allocated())
    return {"calls": count, "bytes more than after a tenth": used[1] - used[0]}


def full_gpu() -> str:
    """Fill the memory, see the message, free it, and denoise again."""
    import torch

    _free_memory()  # what the libraries keep would not be seen
    free, _ = torch.cuda.mem_get_info()
    hold = torch.empty(free - 2**30, dtype=torch.uint8, device="cuda")
    image = torch.rand((1, 8000, 8000), device="cuda") * 255
    prepared = ENGINES["cuda"].prepare(evolution("iad"))
    try:
        prepared(image)
    except MemoryError as error:
        message = str(error)
    else:
        raise ArithmeticError("the memory of the GPU was not full")
    del hold
    _free_memory()
    _require_finite(prepared(image))
    return message


def compiled() -> dict[str, float]:
    """Time the layer compiled by PyTorch; that takes a minute, most of it for compiling."""
    import torch

    from integrodiff.nn import Diffusion

    batch = on_gpu(picture(BATCH))
    layer = torch.compile(Diffusion("iad").cuda())
    with torch.no_grad():
        spent = milliseconds(lambda: layer(batch, SIGMA), 3)
    figures = Figures()
    figures.note("iad, torch.compile, ms", spent)
    return dict(figures)


def linearisers(parameterisation: Parameterisation, images: CleanImages) -> dict[str, Any]:
    """Return functions that make what computes derivatives for training, by name."""
    from integrodiff.learning.compiled import CompiledLineariser
    from integrodiff.learning.cuda import CudaLineariser

    def by_kernels(tangents: int, tolerance: float | None = None) -> Callable[[], Lineariser]:
        return lambda: CudaLineariser(
            parameterisation, images, tangents=tangents, tolerance=tolerance
        )

    return {
        "kernels": by_kernels(1),
        "kernels, cut at 1e-5": by_kernels(1, 1e-5),
        "kernels, 2 tangents at a time": by_kernels(2),
        "kernels, 3 tangents at a time": by_kernels(3),
        "torch": lambda: TorchLineariser(parameterisation, images, device="cuda"),
        "torch.compile": lambda: CompiledLineariser(
            parameterisation, images, device="cuda", batch=len(images)
        ),
    }


def difference(found: Linearisation, expected: Linearisation, part: str) -> float:
    """Return the largest difference, relative to the largest number."""
    wanted = getattr(expected, part)
    return float(np.abs(getattr(found, part) - wanted).max() / np.abs(wanted).max())


def training() -> dict[str, float]:
    """Time derivatives for training at one noise level beside those of PyTorch; compare them."""
    from integrodiff.learning.cuda import CudaLineariser

    count = BATCH[0]
    pixels = picture((count, *BATCH[2:])).astype(np.float32)
    images = CleanImages(pixels, tuple(map(str, range(count))), "made by benchmarks/gpu.py")
    items = [(number, SIGMA) for number in range(count)]
    figures = Figures()
    for name in ("iad", "iad-plus"):
        model = cast(ExplicitModel, load_model(name))
        parameterisation = Parameterisation(model, (SIGMA,), RECIPES[name].fixed)
        vector = parameterisation.vector(model)
        figures.note(f"{name}, parameters", len(vector))
        found = {}
        for kind, make in linearisers(parameterisation, images).items():
            lineariser, spent = make(), []
            for _ in range(4):
                begin = time.perf_counter()
                found[kind] = lineariser.linearise(vector, items)
                spent.append(time.perf_counter() - begin)
            figures.note(f"{name}, {kind}, s", float(np.median(spent[1:])))
            figures.note(f"{name}, {kind}, the first time, s", spent[0])
            del lineariser
            _free_memory()
        few = items[:4]
        exact = CudaLineariser(parameterisation, images, double=True).linearise(vector, few)
        by_torch = TorchLineariser(parameterisation, images, device="cuda", double=True)
        expected = by_torch.linearise(vector, few)
        for part in ("error", "gradient", "curvature"):
            cut = difference(found["kernels, cut at 1e-5"], found["torch"], part)
            figures.note(f"{name}, {part}, relative difference if cut at 1e-5", cut)
            single = difference(found["kernels"], found["torch"], part)
            figures.note(f"{name}, {part}, relative difference in float32", single)
            double = difference(exact, expected, part)
            figures.note(f"{name}, {part}, relative difference in float64", double)
    return dict(figures)


def _free_memory() -> None:
    """Give back what the libraries keep for themselves."""
    import cupy
    import torch

    cupy.get_default_memory_pool().free_all_blocks()
    torch.cuda.empty_cache()


def of_few_steps(process: Evolution, steps: int) -> Evolution:
    """Return the first steps of a process."""
    one_for_all = len(process.schedule) == 1
    return replace(
        process,
        schedule=process.schedule if one_for_all else process.schedule[:steps],
        pull=process.pull[:steps] if isinstance(process.pull, tuple) else process.pull,
        steps=steps,
    )


def small_model(model: str, dtype: str) -> None:
    """Launch all kernels of a model on small arrays, for a program that watches memory.

    The arrays are CuPy's, since PyTorch takes minutes to begin under such a program.
    """
    volume = model.endswith("volume")
    for shape in SMALL_VOLUMES if volume else SMALL_IMAGES:
        process = of_few_steps(evolution(model, SPACINGS[0] if volume else None), 2)
        size = shape[-process.dimensions :]
        mask, levels = some_valid(size), np.linspace(0.6, 1.6, int(np.prod(size))).reshape(size)
        for settings in ({}, {"relative_noise": levels, "exact": True}, {"mask": mask}):
            found = ENGINES["cuda"].prepare(process, **settings)(picture(shape).astype(dtype))
            if not np.isfinite(found).all():
                raise ArithmeticError("a result is not finite")


def small_training(name: str, tangents: int) -> None:
    """Launch the kernels of a model that carry tangents."""
    from integrodiff.learning.cuda import CudaLineariser

    images = CleanImages(picture((2, 37, 70)).astype(np.float32), ("0", "1"), "benchmarks/gpu.py")
    model = cast(ExplicitModel, load_model(name))
    parameterisation = Parameterisation(model, (SIGMA,), RECIPES[name].fixed)
    lineariser = CudaLineariser(parameterisation, images, tangents=tangents)
    found = lineariser.linearise(parameterisation.vector(model), [(0, SIGMA), (1, SIGMA)])
    if not np.isfinite(found.curvature).all():
        raise ArithmeticError("a derivative is not finite")


SMALL_IMAGES: tuple[tuple[int, ...], ...] = ((2, 1, 37, 70), (1, 2, 20, 35))
SMALL_VOLUMES: tuple[tuple[int, ...], ...] = ((1, 1, 5, 9, 34), (1, 2, 4, 5, 6))
SMALL: dict[str, Callable[[], None]] = {
    **{
        f"{model}, {dtype}": partial(small_model, model, dtype)
        for model in ("iad", "iad-plus", "iad-orders", "iad-plus-volume")
        for dtype in ("float32", "float64")
    },
    **{
        f"training {model}, {tangents} at a time": partial(small_training, model, tangents)
        for model in ("iad", "iad-plus")
        for tangents in (1, 2)
    },
}
"""What launches kernels on small arrays, by name; each is a program of its own in :func:`races`."""


def races(limit: float = 240) -> dict[str, str]:
    """Return what the tools of compute-sanitizer say of :data:`SMALL`, one on each processor.

    The limit is in seconds.
    """
    program = shutil.which("compute-sanitizer")
    if program is None:
        raise FileNotFoundError("compute-sanitizer is not here; it comes with CUDA")

    def said_by(tool: str, name: str) -> str:
        command = [program, "--tool", tool, "--error-exitcode", "9"]
        command += [sys.executable, __file__, "small", "--of", name]
        begin = time.perf_counter()
        try:
            done = subprocess.run(command, capture_output=True, text=True, timeout=limit)
        except subprocess.TimeoutExpired as error:
            words = (error.stdout or b"").decode(errors="replace").splitlines()
            found = f"not ended after {limit:g} s; last: {words[-1:]}"
        else:
            words = (done.stdout + done.stderr).strip().splitlines()
            found = f"exit code {done.returncode}: {words[-1]}"
            if done.returncode:
                print(*words[-40:], sep="\n", flush=True)
        print(f"{tool}, {name}, {time.perf_counter() - begin:.0f} s: {found}", flush=True)
        return found

    cases = [(tool, name) for tool in ("racecheck", "memcheck") for name in SMALL]
    with ThreadPoolExecutor(min(len(cases), os.cpu_count() or 1)) as pool:
        said = pool.map(said_by, *zip(*cases, strict=True))
        return {", ".join(case): found for case, found in zip(cases, said, strict=True)}


def checks() -> dict[str, Any]:
    """Return what is left after many calls, and the message of a full GPU."""
    found = {"many calls": many_calls(), "full": full_gpu()}
    print(found, flush=True)
    return found


def main() -> None:
    """Run what the arguments say."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    runs: dict[str, Callable[[], Any]] = {
        "parity": parity,
        "masks": masks,
        "speed": speed,
        "training": training,
        "checks": checks,
        "compiled": compiled,
        "races": races,
    }
    parser.add_argument("parts", nargs="*", choices=[*runs, "small", []], help="all by default")
    parser.add_argument("--of", choices=SMALL, help="what to launch with the part `small`")
    parser.add_argument("--json", type=Path, help="add all figures to this file")
    given = parser.parse_args()
    reason = ENGINES["cuda"].unavailable()
    if reason is not None:
        sys.exit(f"the engine 'cuda' cannot run here: {reason}")
    if given.parts == ["small"]:
        for name in [given.of] if given.of else SMALL:
            SMALL[name]()
            print(name, flush=True)
        return
    import cupy
    import torch

    record: dict[str, Any] = {}
    if given.json and given.json.exists():
        record = json.loads(given.json.read_text("utf-8"))
    record |= {
        "date": date.today().isoformat(),
        "gpu": torch.cuda.get_device_name(),
        "cupy": cupy.__version__,
        "torch": torch.__version__,
    }
    for part in given.parts or runs:
        begin = time.perf_counter()
        record[part] = runs[part]()
        print(f"{part}: {time.perf_counter() - begin:.0f} s in all", flush=True)
        if given.json:
            given.json.write_text(json.dumps(record, indent=1) + "\n", "utf-8")


if __name__ == "__main__":
    main()
