"""Training: data, tangents, and the Levenberg-Marquardt method on few parameters."""

from __future__ import annotations

from integrodiff.learning.fit import FitResult, FitSettings, Progress, fit
from integrodiff.learning.images import PAPER_LEVELS, CleanImages, bsds500, image_folder, noise
from integrodiff.learning.parameters import Parameterisation
from integrodiff.learning.tangents import Linearisation, Lineariser, TorchLineariser

__all__ = [
    "PAPER_LEVELS",
    "CleanImages",
    "FitResult",
    "FitSettings",
    "Linearisation",
    "Lineariser",
    "Parameterisation",
    "Progress",
    "TorchLineariser",
    "bsds500",
    "fit",
    "image_folder",
    "noise",
]
