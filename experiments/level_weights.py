"""How much should s = 10 count in training IAD? Cross-validation on the training crops.

    python experiments/level_weights.py --data FOLDER [--weights 3 8 20] [--count N]

IAD with one set of four numbers is trained on every other training crop, with the lowest noise
level counted so many times, and compared on the other crops with EED, which has three numbers for
each level. Test images are not used. On an H200 this took three minutes.
"""

from __future__ import annotations

import argparse
from dataclasses import replace
from pathlib import Path

from integrodiff import EED, IAD, ReducedLaw
from integrodiff.learning import CleanImages, FitSettings, bsds500, fit
from integrodiff.learning.evaluation import mean_psnr
from integrodiff.learning.recipes import GRID
from integrodiff.models import ExplicitModel

LEVELS = (10.0, 20.0, 40.0, 60.0)
_EED_STARTS = {
    10.0: EED(contrast=11.4, scale=0.35, tau=0.08),
    20.0: EED(contrast=18.0, scale=0.48, tau=0.14),
    40.0: EED(contrast=24.0, scale=0.65, tau=0.23),
    60.0: EED(contrast=23.0, scale=0.87, tau=0.4),
}
_SETTINGS = FitSettings(phases=(None,), tolerance=1e-3, iterations=10)


def halves(images: CleanImages) -> tuple[CleanImages, CleanImages]:
    """Return the images with even and with odd numbers."""
    parts = [
        CleanImages(images.pixels[k::2], images.names[k::2], f"{images.source}, half {k}")
        for k in (0, 1)
    ]
    return parts[0], parts[1]


def main() -> None:
    """Train, evaluate on the other half, and print leads over EED."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--data", type=Path, help="folder that holds bsds500")
    parser.add_argument("--weights", nargs="+", type=float, default=[3.0, 8.0, 20.0])
    parser.add_argument("--count", type=int, help="only the first training crops")
    arguments = parser.parse_args()

    parts = halves(bsds500("train", arguments.data, arguments.count))
    for number, (train, held_out) in enumerate((parts, parts[::-1])):
        eed = {}
        for level, start in _EED_STARTS.items():
            found = fit(start, train, (level,), settings=_SETTINGS).model
            eed.update(mean_psnr(found, held_out, (level,)))
        print(f"half {number}: EED", {level: round(psnr, 3) for level, psnr in eed.items()})
        model: ExplicitModel = IAD(
            law=ReducedLaw(alpha=0.65, beta=4.7, lambda_0=0.73), tau=1.2, scales=GRID
        )
        for weight in arguments.weights:
            settings = replace(_SETTINGS, tolerance=5e-4, level_weights=((LEVELS[0], weight),))
            model = fit(model, train, LEVELS, settings=settings).model
            psnr = mean_psnr(model, held_out, LEVELS)
            leads = ", ".join(f"{psnr[level] - eed[level]:+.3f}" for level in LEVELS)
            print(f"half {number}: weight {weight:g}, lead over EED {leads}", flush=True)


if __name__ == "__main__":
    main()
