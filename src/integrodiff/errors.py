"""Errors and warnings of the package; all errors are subclasses of ``ValueError``."""

from __future__ import annotations


class ModelFileError(ValueError):
    """A model file does not follow the schema."""


class EngineUnavailableError(ValueError):
    """The requested engine exists but cannot run on this machine."""


class ImageFileError(ValueError):
    """An image file cannot be read, or cannot be written without loss of data."""


class SlowEngineWarning(UserWarning):
    """The compiled engine is not available, so the slow NumPy engine runs."""


class NoiseLevelWarning(UserWarning):
    """The noise level is far outside the range a model was trained for."""


class NoValidPixelsWarning(UserWarning):
    """An image, or a plane of it, has no valid pixel and comes back as it was."""


class VolumeModelWarning(UserWarning):
    """A volume is denoised with parameters that were trained on other images or voxels."""


class StepSizeWarning(UserWarning):
    """A model's time step size was cut to the largest one that is proven stable."""
