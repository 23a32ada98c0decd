"""Does a second pass help a compact law? Its structure tensors see the result of the first, too.

    python experiments/second_pass_compact.py OUT.json --data FOLDER [--count 8] [--jobs 2]
    python experiments/second_pass_compact.py OUT.json --table

The law is that of ``iad-plus``, and every pass starts from the noisy image. In the second pass

    J = (1 - m) J(u_k) + m J(w),    m in [0, 1], one for each order,

where w is the result of the first pass. Variants, in numbers that are trained:

- ``6``: one pass of six steps, as shipped (12);
- ``12``: one pass of twelve steps, which takes about the time of two passes (12);
- ``6+6``: two passes that share one law (14);
- ``6+6, own law``: the first pass is the shipped model, the second has a law of its own (26).

All are trained from the shipped numbers by Gauss-Newton with differences, on the centres of the
first training crops of BSDS500 that are not held out, for the mean PSNR at four noise levels, with
the reference engine in float32. What is compared is the PSNR on held-out training crops (numbers
3, 7, 11, ...), whole, as the mean over s = 10, 20, ..., 60. OUT.json is written after every
variant, and what it has is not computed again.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Iterator, Mapping
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from compact_ingredients import LEVELS, NEVER, SIZE, quality
from integrodiff import load_model
from integrodiff._atomic import atomic_write
from integrodiff.engines import ENGINES
from integrodiff.learning import PAPER_LEVELS, bsds500
from integrodiff.learning.images import noise
from integrodiff.learning.parameters import Parameterisation
from integrodiff.models import CompactTensorDiffusion
from integrodiff.reproduction._results import markdown_table
from integrodiff.stages import Coupling, DerivativeOperator, Evolution, SymmetricTensor, evolve
from integrodiff.stages.evolution import Field
from integrodiff.stages.operators import Parts
from integrodiff.stages.scale_space import blur, cascade
from integrodiff.viz.metrics import psnr

Image = NDArray[np.float32]
Vector = NDArray[np.float64]

START = 0.0
"""Share of the first pass at the start, as the logit of m: one half."""
STEP = 1e-3
"""Of the differences, in free parameters: most are logarithms."""
ITERATIONS = 8
DAMPINGS = (1e-3, 1e-1, 10.0)
"""Relative to the diagonal of the normal matrix; the best of the three is taken."""
LEAST_GAIN = 5e-4
"""Training ends with an iteration that gains fewer dB."""


@dataclass(frozen=True, kw_only=True)
class SteeredCoupling(Coupling):
    """A coupling whose field is in part that of another image.

    Attributes
    ----------
    share : float
        Between zero and one.
    guide : mapping from int to derivatives
        Derivatives of the other image at all scales.
    """

    share: float
    guide: Mapping[int, Parts]

    def summed(self, operator: DerivativeOperator, parts: Mapping[int, Parts]) -> Field:
        """Return the sum over the scales, which is linear in the field of each image."""
        own = super().summed(operator, parts)
        other = super().summed(operator, {i: self.guide[i] for i in parts})
        if not isinstance(own, SymmetricTensor) or not isinstance(other, SymmetricTensor):
            raise TypeError("the law has structure tensors")
        mixed = ((1 - self.share) * a + self.share * b for a, b in zip(own, other, strict=True))
        return SymmetricTensor(*mixed)


def second_pass(noisy: Image, first: Image, evolution: Evolution, shares: Vector) -> Image:
    """Return the result of a pass from the noisy image whose J sees that of the first pass."""
    smoothed = cascade(first, evolution.scales, partial(blur, spacing=evolution.spacing))
    guides: dict[int, Mapping[int, Parts]] = {}

    def steered(number: int, term: Any) -> Any:
        if number not in guides:
            derivatives = term.derivatives
            guides[number] = {i: derivatives.forward(v) for i, v in enumerate(smoothed)}
        values = {name: getattr(term.coupling, name) for name in ("weights", "kind", "mix")}
        coupling = SteeredCoupling(
            **values,
            integration_scale=term.coupling.integration_scale,
            share=float(shares[number]),
            guide=guides[number],
        )
        return replace(term, coupling=coupling)

    schedule = tuple(
        tuple(steered(number, term) for number, term in enumerate(terms))
        for terms in evolution.schedule
    )
    return np.asarray(evolve(noisy, replace(evolution, schedule=schedule)))


@dataclass(frozen=True)
class Variant:
    """How many steps and passes there are, and what the second pass shares with the first."""

    steps: int
    passes: int = 1
    own_law: bool = False

    @property
    def parameterisation(self) -> Parameterisation:
        """Free numbers of the law that is trained."""
        return Parameterisation(self.template, LEVELS, NEVER)

    @property
    def template(self) -> CompactTensorDiffusion:
        """The shipped model, with this number of steps for about the same time of diffusion."""
        model = load_model("iad-plus")
        if not isinstance(model, CompactTensorDiffusion):
            raise TypeError("iad-plus has another kind of law")
        return replace(model, steps=self.steps, tau=model.tau * model.steps / self.steps)

    def start(self) -> Vector:
        """Return the numbers that training starts from."""
        law = self.parameterisation.vector(self.template)
        shares = np.full(2 if self.passes == 2 else 0, START)
        return np.concatenate([law, shares])

    def numbers(self) -> int:
        """Return how many numbers the model has."""
        first = len(self.parameterisation.names) if self.own_law else 0
        return len(self.start()) + first

    def denoised(self, vector: Vector, noisy: Image, level: float, first: Image) -> Image:
        """Return the result for one image; ``first`` is that of the shipped model."""
        known = self.parameterisation
        count = len(known.names)
        evolution = known.evolution(known.model(vector[:count]), level)
        if self.passes == 1:
            return np.asarray(evolve(noisy, evolution))
        if not self.own_law:
            first = np.asarray(evolve(noisy, evolution))
        shares = 1 / (1 + np.exp(-vector[count:]))
        return second_pass(noisy, first, evolution, shares)


VARIANTS = {
    "6": Variant(6),
    "12": Variant(12),
    "6+6": Variant(6, 2),
    "6+6, own law": Variant(6, 2, True),
}


@dataclass(frozen=True)
class Example:
    """A clean image, its noisy version, and the result of the shipped model."""

    clean: Image
    noisy: Image
    first: Image
    level: float

    @classmethod
    def of(cls, clean: NDArray[Any], seed: int, level: float) -> Example:
        """Return the example of one crop."""
        noisy = (clean + noise(level, seed, clean.shape)).astype(np.float32)[None]
        process = ENGINES["native"].prepare(load_model("iad-plus").evolution(level), exact=True)
        return cls(clean.astype(np.float32)[None], noisy, process(noisy), level)


def error(variant: Variant, vector: Vector, example: Example) -> Image:
    """Return the difference of the result from the clean image."""
    return variant.denoised(vector, example.noisy, example.level, example.first) - example.clean


def quality_of(variant: Variant, vector: Vector, example: Example) -> float:
    """Return the PSNR of one example."""
    result = variant.denoised(vector, example.noisy, example.level, example.first)
    return psnr(result[0], example.clean[0])


def normal_equations(
    variant: Variant, vector: Vector, example: Example
) -> tuple[Vector, NDArray[np.float64], float]:
    """Return the gradient of half the log of the squared error, its normal matrix, and the PSNR."""
    residual = error(variant, vector, example).ravel().astype(np.float64)
    moved = []
    for j in range(len(vector)):
        shifted = vector.copy()
        shifted[j] += STEP
        moved.append((error(variant, shifted, example).ravel() - residual) / STEP)
    tangents = np.array(moved)
    energy = float(residual @ residual)
    result = (tangents @ residual / energy, tangents @ tangents.T / energy)
    return *result, 10 * np.log10(255**2 * residual.size / energy)


def iterations(
    variant: Variant, examples: list[Example], pool: ProcessPoolExecutor
) -> Iterator[tuple[Vector, float]]:
    """Yield numbers and their mean PSNR on the examples, iteration by iteration."""
    vector, before = variant.start(), -np.inf
    for _ in range(ITERATIONS):
        found = list(pool.map(partial(normal_equations, variant, vector), examples))
        gradient = np.mean([g for g, _, _ in found], axis=0)
        matrix = np.mean([m for _, m, _ in found], axis=0)
        now = float(np.mean([q for _, _, q in found]))
        if np.isneginf(before):
            yield vector, now
        best, reached = vector, now
        for damping in DAMPINGS:
            # A number at its limit has no derivative.
            damped = matrix + np.diag(damping * np.diag(matrix) + 1e-12)
            step = np.linalg.solve(damped, -gradient)
            tried = vector + np.clip(step, -0.7, 0.7)
            quality = float(np.mean(list(pool.map(partial(quality_of, variant, tried), examples))))
            if quality > reached:
                best, reached = tried, quality
        vector, before = best, now
        yield vector, reached
        if reached - before < LEAST_GAIN:
            return


def examples_of(
    images: Any, numbers: list[int], levels: tuple[float, ...], size: int
) -> list[Example]:
    """Return crops, or their centres, with noise."""
    margin = (images.pixels.shape[-1] - size) // 2
    inside = slice(margin, margin + size)
    return [
        Example.of(images.pixels[k][inside, inside], k, float(level))
        for level in levels
        for k in numbers
    ]


def trained(name: str, images: Any, a: argparse.Namespace, document: dict[str, Any]) -> None:
    """Train one variant, and measure it on held-out crops."""
    variant = VARIANTS[name]
    kept = [k for k in range(len(images)) if k % 4 != 3][: a.count]
    run: dict[str, Any] = {"numbers": variant.numbers(), "training": []}
    began = time.monotonic()
    with ProcessPoolExecutor(a.jobs) as pool:
        for vector, reached in iterations(variant, examples_of(images, kept, LEVELS, SIZE), pool):
            run["training"].append(round(reached, 4))
            run["vector"] = [round(float(number), 6) for number in vector]
            print(f"{name}: {reached:.4f} dB, {time.monotonic() - began:.0f} s", flush=True)
        held_out = list(range(3, len(images), 4))
        by_level = {}
        for level in PAPER_LEVELS:
            examples = examples_of(images, held_out, (level,), images.pixels.shape[-1])
            found = pool.map(partial(quality_of, variant, np.array(run["vector"])), examples)
            by_level[f"{level:g}"] = round(float(np.mean(list(found))), 4)
    run |= {"held_out": by_level, "mean": round(float(np.mean(list(by_level.values()))), 4)}
    count = len(variant.parameterisation.names)
    run["shares"] = [round(float(1 / (1 + np.exp(-x))), 3) for x in run["vector"][count:]]
    run["seconds"] = round(time.monotonic() - began)
    document["runs"][name] = run
    with atomic_write(a.output, overwrite=True) as temporary:
        temporary.write_text(json.dumps(document, indent=1) + "\n", encoding="utf-8")


def table(document: dict[str, Any]) -> str:
    """Return all variants as Markdown."""
    lines = [
        [
            name,
            str(run["numbers"]),
            *(f"{run['held_out'][level]:.3f}" for level in ("10", "30", "60")),
            f"{run['mean']:.3f}",
            ", ".join(f"{share:.2f}" for share in run["shares"]) or "-",
        ]
        for name, run in document["runs"].items()
    ]
    header = ["steps", "numbers", "s = 10", "30", "60", "mean of 10 to 60", "shares m"]
    return markdown_table(header, lines)


def main() -> None:
    """Train what is missing, and print the table."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("output", type=Path)
    parser.add_argument("--data", type=Path, help="folder that holds bsds500")
    parser.add_argument("--count", type=int, default=8, help="training crops")
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--variants", nargs="+", default=list(VARIANTS), choices=VARIANTS)
    parser.add_argument("--table", action="store_true", help="print the table alone")
    a = parser.parse_args()
    document: dict[str, Any] = {"crops": a.count, "levels": LEVELS, "size": SIZE, "runs": {}}
    if a.output.exists():
        document = json.loads(a.output.read_text(encoding="utf-8"))
    if not a.table:
        if document["crops"] != a.count:
            raise SystemExit(f"{a.output} has {document['crops']} crops; take another file")
        images = bsds500("train", a.data)
        if "shipped" not in document:
            document["shipped"] = quality(VARIANTS["6"].template, images)
        for name in a.variants:
            if name not in document["runs"]:
                trained(name, images, a, document)
    print(table(document))


if __name__ == "__main__":
    main()
