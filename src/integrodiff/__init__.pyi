__all__ = [
    "EED",
    "ENGINE_NAMES",
    "IAD",
    "IID",
    "MODEL_NAMES",
    "ByNoiseLevel",
    "EngineUnavailableError",
    "FullLaw",
    "ImageFileError",
    "Model",
    "ModelFileError",
    "NoiseLevelWarning",
    "PeronaMalik",
    "Plan",
    "PoissonGaussian",
    "ReducedLaw",
    "ScaleGrid",
    "SlowEngineWarning",
    "StepSizeError",
    "denoise",
    "estimate_poisson_gaussian",
    "estimate_sigma",
    "load_model",
    "save_model",
    "stages",
]

from . import stages
from ._denoise import Plan, denoise
from .engines import ENGINE_NAMES
from .errors import (
    EngineUnavailableError,
    ImageFileError,
    ModelFileError,
    NoiseLevelWarning,
    SlowEngineWarning,
    StepSizeError,
)
from .models import (
    EED,
    IAD,
    IID,
    MODEL_NAMES,
    ByNoiseLevel,
    FullLaw,
    Model,
    PeronaMalik,
    ReducedLaw,
    ScaleGrid,
    load_model,
    save_model,
)
from .noise.level import estimate_poisson_gaussian, estimate_sigma
from .noise.photons import PoissonGaussian

__version__: str
