"""Errors and warnings that callers may want to tell apart; all errors are ``ValueError`` too."""

from __future__ import annotations


class ModelFileError(ValueError):
    """A model file is not what the schema asks for."""


class EngineUnavailableError(ValueError):
    """The engine asked for exists, but cannot run here."""


class NotFiniteError(ValueError):
    """An image has NaN or infinite values."""


class ImageFileError(ValueError):
    """An image file cannot be read or written without losing something."""


class SlowEngineWarning(UserWarning):
    """The compiled engine is not there, so that the slow one runs."""


class NoiseLevelWarning(UserWarning):
    """The noise level is far outside the range a model was trained for."""


class SliceBySliceWarning(UserWarning):
    """A volume is denoised slice by slice."""


class StepSizeWarning(UserWarning):
    """A model's time step size was cut to the largest one that is proven stable."""
