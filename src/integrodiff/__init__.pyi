__all__ = [
    "EED",
    "ENGINE_NAMES",
    "IAD",
    "IID",
    "MODEL_NAMES",
    "ByNoiseLevel",
    "Denoiser",
    "EngineUnavailableError",
    "FullLaw",
    "ImageFileError",
    "Model",
    "ModelFileError",
    "NoValidPixelsWarning",
    "NoiseLevelWarning",
    "PeronaMalik",
    "PoissonGaussian",
    "ReducedLaw",
    "ScaleGrid",
    "SlowEngineWarning",
    "Step",
    "StepSizeWarning",
    "UnknownDetector",
    "VolumeModelWarning",
    "compare",
    "denoise",
    "estimate_poisson_gaussian",
    "estimate_sigma",
    "explain",
    "load_model",
    "save_model",
    "stages",
]

from . import stages
from ._denoise import Denoiser, denoise
from .engines import ENGINE_NAMES
from .errors import (
    EngineUnavailableError,
    ImageFileError,
    ModelFileError,
    NoiseLevelWarning,
    NoValidPixelsWarning,
    SlowEngineWarning,
    StepSizeWarning,
    VolumeModelWarning,
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
from .noise.photons import PoissonGaussian, UnknownDetector
from .pipeline import Step
from .viz.figures import compare, explain

__version__: str
