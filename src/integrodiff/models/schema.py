"""Models as plain data: their parameters and settings as JSON values, and back.

A model's *parameters* are the numbers that training finds, its *settings* everything that is
chosen beforehand. The functions here are exact inverses of each other.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from typing import Any, TypeAlias

from integrodiff.errors import ModelFileError
from integrodiff.models.base import ExplicitModel
from integrodiff.models.classical import EED, PeronaMalik
from integrodiff.models.compact import CompactDiffusion, PowerLaws
from integrodiff.models.deep import DeepDiffusion, DeepParameters
from integrodiff.models.integrodifferential import IAD, IID
from integrodiff.models.laws import FullLaw, ReducedLaw, ScaleGrid

Parameters: TypeAlias = Mapping[str, Any]

CLASSES: dict[str, type[ExplicitModel]] = {
    "perona-malik": PeronaMalik,
    "eed": EED,
    "iid": IID,
    "iad": IAD,
    "compact": CompactDiffusion,
    "deep": DeepDiffusion,
}

_LAWS: dict[str, type[ReducedLaw | FullLaw]] = {"reduced": ReducedLaw, "full": FullLaw}
_DEEP = DeepParameters._fields
_NEUTRAL = {"tau_exponent": 0.0, "contrast_growth": 1.0, "exponent_drift": 0.0, "pull": 0.0}
_COMPACT = tuple(_NEUTRAL)
_COMMON_SETTINGS = ("steps", "theta", "discretisation")


def class_name(model: ExplicitModel) -> str:
    """Return the name that model files use for the class of ``model``."""
    return next(name for name, kind in CLASSES.items() if kind is type(model))


def parameters_of(model: ExplicitModel) -> dict[str, Any]:
    """Return the trained numbers of a model as JSON values."""
    match model:
        case PeronaMalik():
            own: dict[str, Any] = {"contrast": model.contrast}
        case EED():
            own = {"contrast": model.contrast, "scale": model.scale}
        case IID() | IAD():
            form = next(name for name, law in _LAWS.items() if law is type(model.law))
            own = {"form": form, **_numbers_of(model.law)}
        case CompactDiffusion():
            own = {**_numbers_of(model.law), **{name: getattr(model, name) for name in _COMPACT}}
        case DeepDiffusion():
            own = {name: list(getattr(model, name)) for name in _DEEP}
        case _:
            raise TypeError(f"no schema for {type(model).__name__}")
    return {**own, "tau": model.tau}


def number_count(model: ExplicitModel) -> int:
    """Count the trained numbers, without those that have no effect.

    A common factor of all weights can be moved into contrasts and step size, so one weight, or
    the strength of one order, is a convention. So is the step size of a deep model, whose scales
    are trained, and a number of a compact one that is at its neutral value.
    """
    values = [value for value in parameters_of(model).values() if not isinstance(value, str)]
    count = sum(len(value) if isinstance(value, list) else 1 for value in values)
    match model:
        case CompactDiffusion():
            neutral = [name for name, value in _NEUTRAL.items() if getattr(model, name) == value]
            return count - 1 - len(neutral)
        case DeepDiffusion():
            return count - 1 + len(model.channels)
        case IID() | IAD() if isinstance(model.law, FullLaw):
            return count - 1
    return count


def settings_of(model: ExplicitModel) -> dict[str, Any]:
    """Return the chosen settings of a model as JSON values."""
    settings: dict[str, Any] = {name: getattr(model, name) for name in _COMMON_SETTINGS}
    if isinstance(model, (IID, IAD, CompactDiffusion)):
        settings["scales"] = asdict(model.scales)
    elif isinstance(model, DeepDiffusion):
        settings["channels"] = [list(channel) for channel in model.channels]
    return settings


def model_from(
    kind: type[ExplicitModel],
    parameters: Parameters,
    settings: Mapping[str, Any],
    provenance: Mapping[str, Any] | None = None,
) -> ExplicitModel:
    """Build a model from its parameters and settings; refuse missing and unknown names."""
    arguments = dict(parameters)
    if issubclass(kind, (IID, IAD)):
        form = arguments.pop("form", None)
        if form not in _LAWS:
            raise ModelFileError(
                f"parameters.form must be one of {', '.join(map(repr, _LAWS))}; got {form!r}"
            )
        _set_law_and_scales(arguments, _LAWS[form], ("tau",), settings)
    elif issubclass(kind, CompactDiffusion):
        _set_law_and_scales(arguments, PowerLaws, (*_COMPACT, "tau"), settings)
    elif issubclass(kind, DeepDiffusion):
        exact_names("parameters", arguments, (*_DEEP, "tau"))
        exact_names("settings", settings, (*_COMMON_SETTINGS, "channels"))
        arguments["channels"] = tuple(map(tuple, settings["channels"]))
    else:
        own = ("contrast", "scale") if kind is EED else ("contrast",)
        exact_names("parameters", arguments, (*own, "tau"))
        exact_names("settings", settings, _COMMON_SETTINGS)
    common = {name: settings[name] for name in _COMMON_SETTINGS}
    return kind(**arguments, **common, provenance=dict(provenance or {}))


def _numbers_of(law: ReducedLaw | FullLaw | PowerLaws) -> dict[str, Any]:
    """Return the numbers of a law as JSON values."""
    return {
        name: list(value) if isinstance(value, tuple) else value
        for name, value in asdict(law).items()
    }


def _set_law_and_scales(
    arguments: dict[str, Any],
    law: type[ReducedLaw | FullLaw | PowerLaws],
    others: tuple[str, ...],
    settings: Mapping[str, Any],
) -> None:
    """Replace the numbers of the law among the arguments of a model by the law; add its scales."""
    names = tuple(law.__dataclass_fields__)
    exact_names("parameters", arguments, (*names, *others))
    arguments["law"] = law(**{name: arguments.pop(name) for name in names})
    exact_names("settings", settings, (*_COMMON_SETTINGS, "scales"))
    exact_names("settings.scales", settings["scales"], tuple(ScaleGrid.__dataclass_fields__))
    arguments["scales"] = ScaleGrid(**settings["scales"])


def exact_names(where: str, mapping: Any, names: tuple[str, ...]) -> None:
    """Refuse a value that is no JSON object with exactly these names."""
    if not isinstance(mapping, Mapping):
        raise ModelFileError(f"{where} must be an object with {', '.join(names)}; got {mapping!r}")
    missing = [name for name in names if name not in mapping]
    unknown = [name for name in mapping if name not in names]
    problems = [
        f"{what} {', '.join(repr(name) for name in found)}"
        for what, found in (("missing", missing), ("unknown", unknown))
        if found
    ]
    if problems:
        raise ModelFileError(f"{where}: {'; '.join(problems)} (expected {', '.join(names)})")
