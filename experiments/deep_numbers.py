"""What the numbers of a deep model do: which channels act when, integration scales, pulls.

    python experiments/deep_numbers.py [iad-deep]

A channel acts in a step if its weight reaches one percent of the stable bound at s = 2, 10, 30 or
100.
"""

from __future__ import annotations

import argparse

import numpy as np
from numpy.typing import NDArray

from integrodiff import load_model
from integrodiff.models import DeepDiffusion
from integrodiff.models.deep import bound_table

LEVELS = (2.0, 10.0, 30.0, 100.0)
SHARE = 0.01


def shares_of_bound(model: DeepDiffusion, level: float) -> NDArray[np.float64]:
    """Return the weight of each channel in each step, relative to the largest one alone."""
    evolution = model.evolution(level)
    scales = list(evolution.scales)
    weights = [
        [
            next(
                term.flux_weights[scales.index(scale)]
                for term in evolution.terms(step)
                if term.derivatives.order == order
            )
            for order, scale in model.channels
        ]
        for step in range(model.steps)
    ]
    largest = bound_table(model.channels, model.theta).max(axis=0)
    shares: NDArray[np.float64] = np.array(weights, np.float64) * largest / 2
    return shares


def main() -> None:
    """Print the tables."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("model", nargs="?", default="iad-deep")
    model = load_model(parser.parse_args().model)
    if not isinstance(model, DeepDiffusion):
        raise SystemExit("this is for deep models")
    shares = np.max([shares_of_bound(model, level) for level in LEVELS], axis=0)
    print("channels (order, scale):", *((c.order, round(c.scale, 2)) for c in model.channels))
    for step, row in enumerate(shares >= SHARE, 1):
        print(f"step {step:2d} acts:", " ".join("x" if one else "." for one in row))
    print(f"{int((shares < SHARE).sum())} of {shares.size} pairs do not act")
    for level in (5.0, 30.0, 80.0):
        found = model.integration_at(level)
        for order in model.orders:
            row = " ".join(f"{scales[order]:.2f}" for scales in found)
            print(f"integration scales of order {order} at s = {level:g}: {row}")
    for level in LEVELS:
        pulls = " ".join(f"{float(pull):.4f}" for pull in model.evolution(level).pulls())
        print(f"pulls at s = {level:g}: {pulls}")


if __name__ == "__main__":
    main()
