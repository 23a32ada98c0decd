"""Models: small frozen dataclasses of parameters, and their files."""

from __future__ import annotations

from integrodiff.models.base import ExplicitModel, Model
from integrodiff.models.by_noise_level import ByNoiseLevel
from integrodiff.models.classical import EED, PeronaMalik
from integrodiff.models.compact import CompactDiffusion, PowerLaws
from integrodiff.models.compact_tensor import CompactTensorDiffusion, SharedLaws
from integrodiff.models.deep import DeepDiffusion
from integrodiff.models.files import (
    MODEL_NAMES,
    VOLUME_MODELS,
    load_model,
    model_from_json,
    model_to_json,
    save_model,
)
from integrodiff.models.integrodifferential import IAD, IID
from integrodiff.models.laws import FullLaw, ReducedLaw, ScaleGrid

__all__ = [
    "EED",
    "IAD",
    "IID",
    "MODEL_NAMES",
    "VOLUME_MODELS",
    "ByNoiseLevel",
    "CompactDiffusion",
    "CompactTensorDiffusion",
    "DeepDiffusion",
    "ExplicitModel",
    "FullLaw",
    "Model",
    "PeronaMalik",
    "PowerLaws",
    "ReducedLaw",
    "ScaleGrid",
    "SharedLaws",
    "load_model",
    "model_from_json",
    "model_to_json",
    "save_model",
]
