"""``integrodiff info``: versions, engines, image formats and models."""

from __future__ import annotations

import platform
from typing import TYPE_CHECKING, Any

from integrodiff._default_model import DEFAULT_MODEL
from integrodiff.cli._terminal import exit_codes, results

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from rich.table import Table

    from integrodiff.engines import Engine
    from integrodiff.models import Model


def info() -> None:
    """Show versions, compute backends, image formats and the shipped models.

    For each model: parameters, steps, noise levels it was trained for, training data and PSNR.

    For example:

        integrodiff info
    """
    with exit_codes():
        console = results()
        tables = (_system_table(), _engine_table(), _format_table(), *_model_tables())
        for table in tables:
            console.print(table)


def parameter_text(model: Model) -> str:
    """Return the number of trained parameters, as text."""
    from integrodiff.models import ByNoiseLevel, ExplicitModel

    members = model.models if isinstance(model, ByNoiseLevel) else (model,)
    member = members[0]
    if not isinstance(member, ExplicitModel):
        raise TypeError(f"cannot count the parameters of {type(member).__name__}")
    count = member.number_count()
    return str(count) if len(members) == 1 else f"{count} at each of {len(members)} noise levels"


def _table(title: str, *headers: str) -> Table:
    from rich import box
    from rich.table import Table

    table = Table(
        title=title, title_justify="left", title_style="bold", box=box.SIMPLE, pad_edge=False
    )
    for header in headers:
        table.add_column(header, overflow="fold")
    table.show_header = any(headers)
    return table


def _system_table() -> Table:
    import numpy as np

    from integrodiff import __version__
    from integrodiff.engines import cpu_count

    simd = np.show_config(mode="dicts")["SIMD Extensions"]
    rows = {
        "integrodiff": __version__,
        "Python": f"{platform.python_version()}, {platform.system()} {platform.machine()}",
        "NumPy": np.__version__,
        "NumPy SIMD, baseline": " ".join(simd.get("baseline", ())) or "none",
        "NumPy SIMD, detected": " ".join(simd.get("found", ())) or "none",
        "processors": str(cpu_count()),
        "GPU": _gpu(),
    }
    table = _table("System", "", "")
    for name, value in rows.items():
        table.add_row(name, value)
    return table


def _engine_table() -> Table:
    from integrodiff.engines import ENGINES

    table = _table("Engines (compute backends)", "name", "description", "available", "threads")
    for engine in ENGINES.values():
        available, threads = _state(engine)
        table.add_row(engine.name, engine.description, available, threads)
    table.add_row("auto", _choice_of_auto(), "yes", "-")
    return table


def _format_table() -> Table:
    from integrodiff.io import FORMATS

    table = _table("Image formats", "name", "file extensions", "available")
    for form in FORMATS:
        missing = form.missing
        available = "yes" if missing is None else f"no: {missing}"
        table.add_row(form.name, " ".join(form.suffixes), available)
    return table


def _choice_of_auto() -> str:
    from integrodiff.engines import get_engine

    try:
        return f"the fastest that is available: {get_engine().name}"
    except Exception as error:  # a broken installation may fail in any way
        return f"cannot be determined ({error}); choose an engine by name"


def _state(engine: Engine) -> tuple[str, str]:
    """Return whether an engine can run, with the reason if not, and its threads."""
    reason = engine.unavailable()
    if reason is not None:
        return f"no: {reason}", "-"
    try:
        return "yes", engine.threads()
    except Exception as error:  # a broken installation may fail in any way
        return f"no: it is installed, but cannot be loaded ({error})", "-"


def _gpu() -> str:
    """Return the GPU that PyTorch would use."""
    from integrodiff.engines import ENGINES

    if ENGINES["torch"].unavailable() is not None:
        return "unknown: PyTorch is not installed"
    try:
        import torch

        return torch.cuda.get_device_name() if torch.cuda.is_available() else "none"
    except Exception as error:  # a broken installation may fail in any way
        return f"unknown: PyTorch cannot be loaded ({error})"


def _model_tables() -> tuple[Table, Table]:
    """Return the properties of all models, and how they were trained."""
    from integrodiff.models import MODEL_NAMES, load_model

    models = {name: load_model(name) for name in MODEL_NAMES}
    table = _table("Models", "name", "parameters", "steps", "trained for sigma", "PSNR", "date")
    names_by_training: dict[str, list[str]] = {}
    for name, model in models.items():
        origin = model.provenance
        table.add_row(
            f"{name} (default)" if name == DEFAULT_MODEL else name,
            parameter_text(model),
            str(model.evolution(_ANY_SIGMA).steps),
            _span(model.noise_levels),
            _psnr_text(origin),
            str(origin.get("date", "-")),
        )
        names_by_training.setdefault(training_text(name, origin), []).append(name)
    table.caption = (
        "sigma is on the grey scale from 0 to 255; PSNR is the mean over the training images for "
        "sigma = 10, 20, ..., 60\n"
    )
    table.caption_justify = "left"
    training = _table("Training data of the models", "", "")
    for text, names in names_by_training.items():
        training.add_row(", ".join(names), text)
    return table, training


_LEVELS_IN_COMMON = (10.0, 20.0, 30.0, 40.0, 50.0, 60.0)

_ANY_SIGMA = 30.0
"""The number of steps is the same for every noise level."""


def training_text(name: str, origin: Mapping[str, Any]) -> str:
    """Describe the training of a model from its provenance."""
    images = f"{origin['images']} images" if "images" in origin else ""
    if "data" in origin:
        images = f"{images or 'images'} ({origin['data']})"
    status, recipe = str(origin.get("status", "")), str(origin.get("recipe", name))
    parts = ["" if status == "trained" else status, str(origin.get("description", "")), images]
    parts += ["" if recipe == name else f"trained by {recipe}", str(origin.get("remark", ""))]
    return "; ".join(part for part in parts if part) or "-"


def _psnr_text(origin: Mapping[str, Any]) -> str:
    """Return the mean PSNR over the levels in common, and which they are if some are missing."""
    found: Mapping[str, float] = origin.get("psnr_on_training_images") or {}
    values = {float(s): value for s, value in found.items() if float(s) in _LEVELS_IN_COMMON}
    if not values:
        return "-"
    mean = f"{sum(values.values()) / len(values):.2f} dB"
    return mean if len(values) == len(_LEVELS_IN_COMMON) else f"{mean} (sigma {_span([*values])})"


def _span(levels: Sequence[float]) -> str:
    ends = dict.fromkeys(f"{level:g}" for level in (min(levels), max(levels))) if levels else ()
    return " to ".join(ends) or "-"
