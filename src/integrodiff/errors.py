"""Errors and warnings of the package; all errors are subclasses of ``ValueError``."""

from __future__ import annotations

import sys


class ModelFileError(ValueError):
    """A model file does not follow the schema.

    Examples
    --------
    >>> import tempfile
    >>> from pathlib import Path
    >>> from integrodiff import ModelFileError, load_model
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     path = Path(folder) / "broken.json"
    ...     _ = path.write_text("{}")
    ...     try:
    ...         load_model(path)
    ...     except ModelFileError as error:
    ...         print("broken.json" in str(error))
    True
    """


class EngineUnavailableError(ValueError):
    """The requested engine exists but cannot run on this machine.

    Examples
    --------
    >>> import numpy as np
    >>> from integrodiff import EngineUnavailableError, denoise
    >>> try:
    ...     result = denoise(np.zeros((32, 32)), sigma=5, engine="torch")
    ... except EngineUnavailableError as error:  # where PyTorch is not installed
    ...     result = denoise(np.zeros((32, 32)), sigma=5, engine="numpy")
    >>> result.shape
    (32, 32)
    """


class ImageFileError(ValueError):
    """An image file cannot be read, or cannot be written without loss of data.

    Examples
    --------
    >>> import tempfile
    >>> from pathlib import Path
    >>> from integrodiff import ImageFileError
    >>> from integrodiff.io import read_image
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     path = Path(folder) / "broken.png"
    ...     _ = path.write_bytes(b"no image")
    ...     try:
    ...         read_image(path)
    ...     except ImageFileError as error:
    ...         print("broken.png" in str(error))
    True
    """


class SlowEngineWarning(UserWarning):
    """The compiled engine is not available, so the slow NumPy engine runs.

    Examples
    --------
    >>> import warnings
    >>> from integrodiff import SlowEngineWarning, denoise
    >>> with warnings.catch_warnings():
    ...     warnings.simplefilter("ignore", SlowEngineWarning)  # where there is no compiler
    ...     result = denoise([[1.0, 2.0], [3.0, 4.0]], sigma=1)
    >>> result.shape
    (2, 2)
    """


class NoiseLevelWarning(UserWarning):
    """The noise level is far outside the range a model was trained for.

    Examples
    --------
    >>> import warnings
    >>> import numpy as np
    >>> from integrodiff import NoiseLevelWarning, denoise
    >>> with warnings.catch_warnings(record=True) as caught:
    ...     warnings.simplefilter("always", NoiseLevelWarning)
    ...     result = denoise(np.eye(32), sigma=5, data_range=1)  # five times the grey range
    >>> caught[0].category.__name__
    'NoiseLevelWarning'
    """


class NoValidPixelsWarning(UserWarning):
    """An image, or a plane of it, has no valid pixel and comes back as it was.

    Examples
    --------
    >>> import warnings
    >>> import numpy as np
    >>> from integrodiff import NoValidPixelsWarning, denoise
    >>> with warnings.catch_warnings(record=True) as caught:
    ...     warnings.simplefilter("always", NoValidPixelsWarning)
    ...     result = denoise(np.full((32, 32), np.nan), sigma=5)
    >>> caught[0].category.__name__
    'NoValidPixelsWarning'
    """


class VolumeModelWarning(UserWarning):
    """A volume is denoised with parameters that were trained on other images or voxels.

    Examples
    --------
    >>> import warnings
    >>> import numpy as np
    >>> from integrodiff import VolumeModelWarning, denoise
    >>> with warnings.catch_warnings(record=True) as caught:
    ...     warnings.simplefilter("always", VolumeModelWarning)
    ...     result = denoise(np.zeros((4, 32, 32)), sigma=5, axes="ZYX", model="pm")
    >>> caught[0].category.__name__
    'VolumeModelWarning'
    """


class StepSizeWarning(UserWarning):
    """A model's time step size was cut to the largest one that is proven stable.

    Examples
    --------
    >>> import warnings
    >>> from integrodiff import PeronaMalik, StepSizeWarning
    >>> with warnings.catch_warnings(record=True) as caught:
    ...     warnings.simplefilter("always", StepSizeWarning)
    ...     evolution = PeronaMalik(tau=0.7, contrast=4.0).evolution(sigma=25)
    >>> caught[0].category.__name__, round(evolution.tau, 6)
    ('StepSizeWarning', 0.5)
    """


def outside() -> int:
    """Return the ``stacklevel`` with which a warning is shown at the caller of this package."""
    frame, level = sys._getframe(1), 1
    while frame.f_back is not None and _is_own(frame.f_globals.get("__name__")):
        frame, level = frame.f_back, level + 1
    return level


def _is_own(module: object) -> bool:
    """Whether a module is one of this package; code that is executed may have no name."""
    return isinstance(module, str) and module.split(".")[0] == "integrodiff"
