"""Load the model that a command line names."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from integrodiff.cli._terminal import ExitCode, stop

if TYPE_CHECKING:
    from integrodiff.models import Model


def loaded_model(name: str) -> Model:
    """Return the model; stop with exit code 2 for an unknown name, 3 for a bad file."""
    from integrodiff.models import MODEL_NAMES, load_model

    is_file = name not in MODEL_NAMES and Path(name).suffix == ".json"
    try:
        return load_model(name)
    except OSError as error:
        stop(ExitCode.INPUT, f"{name}: the model file cannot be read: {error.strerror or error}")
    except ValueError as error:
        stop(ExitCode.INPUT if is_file else ExitCode.USAGE, str(error))
