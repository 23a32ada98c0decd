"""``integrodiff info``: what is installed, what it can use, and which models there are."""

from __future__ import annotations

import platform
from typing import TYPE_CHECKING

from integrodiff.cli._terminal import exit_codes

if TYPE_CHECKING:
    from rich.table import Table

    from integrodiff.engines import Engine
    from integrodiff.models import Model


def info() -> None:
    """Show versions, engines, image formats, and the models that come with the package.

    Example: `integrodiff info`
    """
    with exit_codes():
        from rich.console import Console

        console = Console(highlight=False)
        for table in (_system_table(), _engine_table(), _format_table(), _model_table()):
            console.print(table)


def parameter_text(model: Model) -> str:
    """Return in words how many learned numbers a model has."""
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
        "SIMD, built for": " ".join(simd.get("baseline", ())) or "none",
        "SIMD, used here": " ".join(simd.get("found", ())) or "nothing beyond that",
        "processors": str(cpu_count()),
        "GPU": _gpu(),
    }
    table = _table("System", "", "")
    for name, value in rows.items():
        table.add_row(name, value)
    return table


def _engine_table() -> Table:
    from integrodiff.engines import ENGINES

    table = _table("Engines", "name", "what", "available", "threads")
    for engine in ENGINES.values():
        available, threads = _state(engine)
        table.add_row(engine.name, engine.description, available, threads)
    table.add_row("auto", _choice_of_auto(), "yes", "-")
    return table


def _format_table() -> Table:
    from rich.text import Text

    from integrodiff.io import FORMATS

    table = _table("Image formats", "name", "suffixes", "available")
    for form in FORMATS:
        missing = form.missing
        available = "yes" if missing is None else f"no: {missing}"
        table.add_row(form.name, " ".join(form.suffixes), Text(available))
    return table


def _choice_of_auto() -> str:
    from integrodiff.engines import get_engine

    try:
        return f"the fastest that can run here, which is {get_engine().name}"
    except Exception as error:  # a broken installation may fail in any way
        return f"cannot be found out ({error}); name an engine instead"


def _state(engine: Engine) -> tuple[str, str]:
    """Return whether an engine can run, or why not, and its threads."""
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
        return "unknown without PyTorch"
    try:
        import torch

        return torch.cuda.get_device_name() if torch.cuda.is_available() else "none"
    except Exception as error:  # a broken installation may fail in any way
        return f"unknown: PyTorch cannot be loaded ({error})"


def _model_table() -> Table:
    from integrodiff.models import MODEL_NAMES, load_model

    table = _table("Models", "name", "parameters", "trained for sigma", "status", "provenance")
    for name in MODEL_NAMES:
        model = load_model(name)
        origin = model.provenance
        noise = model.noise_levels
        table.add_row(
            name,
            parameter_text(model),
            f"{min(noise):g} to {max(noise):g}" if noise else "not said",
            str(origin.get("status", "not said")),
            str(origin.get("description", "not said")),
        )
    return table
