"""Small models of every kind, for tests that differentiate them."""

from __future__ import annotations

from dataclasses import replace

from integrodiff import EED, IAD, IID, ByNoiseLevel, FullLaw, PeronaMalik, ReducedLaw, ScaleGrid
from integrodiff.models import (
    CompactDiffusion,
    CompactTensorDiffusion,
    DeepDiffusion,
    Model,
    PowerLaws,
    SharedLaws,
)
from integrodiff.models.deep import Channel

GRID = ScaleGrid(count=2, smallest=0.4, largest=1.3)
FULL = FullLaw(gammas=(1.0, 0.7), lambdas=(25.0, 8.0))
REDUCED = ReducedLaw(alpha=0.3, beta=2.0, lambda_0=1.1)
POWER = PowerLaws(
    strengths=(1.0, 0.3),
    exponents=(0.3, 0.1),
    decays=(0.2, 0.1),
    contrasts=(0.9, 0.6),
    contrast_exponents=(0.8, 0.5),
)
SHARED = SharedLaws(
    strengths=(1.0, 0.4),
    exponent=0.5,
    decay=0.4,
    contrasts=(0.8, 0.5),
    contrast_exponent=0.4,
    integration_scales=(0.7, 1.4),
    integration_exponent=0.3,
)

_EED = EED(contrast=18.0, scale=0.8, tau=0.2, steps=2)
_IAD = IAD(law=FULL, tau=0.4, steps=2, scales=GRID)
_COMPACT = CompactDiffusion(
    law=POWER,
    tau=0.05,
    tau_exponent=0.2,
    contrast_growth=0.8,
    exponent_drift=0.5,
    pull=0.1,
    integration_scale=0.6,
    steps=2,
    scales=GRID,
)

SMALL: dict[str, Model] = {
    "pm": PeronaMalik(contrast=20.0, tau=0.2, steps=2),
    "eed": ByNoiseLevel(levels=(10, 30), models=(_EED, replace(_EED, contrast=25.0, scale=1.1))),
    "iid": IID(law=REDUCED, tau=0.4, steps=2, scales=GRID),
    "iad": IAD(law=REDUCED, tau=0.4, steps=2, scales=GRID),
    "iad-nonnegativity": IAD(
        law=REDUCED, tau=0.05, steps=2, scales=GRID, discretisation="nonnegativity"
    ),
    "iad-full": ByNoiseLevel(
        levels=(10, 20),
        models=(_IAD, replace(_IAD, law=FullLaw(gammas=(0.9, 0.8), lambdas=(40.0, 15.0)))),
    ),
    "compact": _COMPACT,
    "compact-tensor": CompactTensorDiffusion(law=SHARED, tau=0.1, steps=2, scales=GRID),
    # Beyond the stable step size, and with integration scales at one of their limits.
    "at-the-bound": CompactTensorDiffusion(
        law=SHARED,
        tau=50.0,
        exponent_drift=0.7,
        steps=2,
        scales=GRID,
        integration_limits=((0.2, 5.0), (1.0, 1.2)),
    ),
    "deep": DeepDiffusion(
        channels=(Channel(1, 0.4), Channel(1, 1.3), Channel(2, 1.0)),
        steps=2,
        anisotropic=True,
        weights=(0.2, 0.5, 0.05, 0.9, 0.3, 0.2),
        contrasts=(0.8, 0.3, 0.3, 0.7, 0.4, 0.2),
        weight_exponents=(0.2, 0.1, 0.3),
        contrast_exponents=(0.1, 0.0, -0.1),
        couplings=(1.0, 0.8, 1.2),
        weight_curvatures=(0.1, 0.0, -0.1),
        contrast_curvatures=(0.0, 0.1, 0.05),
        integration_scales=(0.5, 1.1, 0.7, 1.2),
        integration_exponents=(0.2, 0.1),
        pulls=(0.05, 0.1),
        pull_exponents=(0.3,),
        mixes=(0.3, 0.2, 0.1, 0.4),
    ),
}
"""A model of every kind by name."""

VOLUME = CompactDiffusion(
    law=PowerLaws(
        strengths=(1.0,),
        exponents=(0.3,),
        decays=(0.2,),
        contrasts=(0.9,),
        contrast_exponents=(0.8,),
    ),
    tau=0.1,
    tau_exponent=0.2,
    contrast_growth=0.8,
    exponent_drift=0.5,
    steps=2,
    scales=GRID,
    provenance={"dimensions": 3},
)
"""A model for volumes."""
