"""Model files: versioned JSON, checked on the way in, written atomically on the way out.

The version counts changes of meaning, not additions. A parameter added to a class later is optional
in files: where it is missing it has its neutral value, and at that value it is not written, so that
files of models without it never change. An older program refuses a file that has it, by its name.
The version rises when a file would have to be read with another meaning.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from importlib.resources import files
from os import PathLike
from pathlib import Path
from typing import Any

from integrodiff._atomic import atomic_write
from integrodiff.errors import ModelFileError
from integrodiff.models.base import KINDS, ExplicitModel, Model
from integrodiff.models.by_noise_level import ByNoiseLevel
from integrodiff.models.description import exact_names

SCHEMA, VERSION = "integrodiff-model", 1

MODEL_NAMES = ("pm", "eed", "iid", "iad", "iad-full", "iad-fast", "iad-plus", "iad-deep")
"""Names of the models that come with the package."""

RESEARCH_MODELS = ("iad-smooth",)
"""Further models for experiments, not meant for denoising; they load by name as well."""

_KEYS = ("schema", "version", "model", "parameters", "settings", "provenance")


def load_model(name_or_path: str | PathLike[str]) -> Model:
    """Return a model that comes with the package, or one from a JSON file.

    Parameters
    ----------
    name_or_path : str or path
        ``"pm"``, ``"eed"``, ``"iid"``, ``"iad"``, ``"iad-full"``, ``"iad-fast"``,
        ``"iad-plus"``, ``"iad-deep"``, or the path of a file whose name ends in ``.json``.

    Raises
    ------
    ModelFileError
        If the file is not a valid model.
    """
    if isinstance(name_or_path, str) and name_or_path in (*MODEL_NAMES, *RESEARCH_MODELS):
        resource = files("integrodiff.models") / "data" / f"{name_or_path}.json"
        return model_from_json(resource.read_text(encoding="utf-8"))
    path = Path(name_or_path)
    if path.suffix != ".json":
        raise ValueError(
            f"unknown model {str(name_or_path)!r}: expected one of {', '.join(MODEL_NAMES)}, "
            "or a model file with the suffix .json"
        )
    try:
        return model_from_json(path.read_text(encoding="utf-8"))
    except (ModelFileError, UnicodeDecodeError) as error:
        raise ModelFileError(f"{path}: {error}") from error


def save_model(model: Model, path: str | PathLike[str]) -> None:
    """Write a model to a JSON file, replacing one of that name only when all is written."""
    with atomic_write(Path(path), overwrite=True) as temporary:
        temporary.write_text(model_to_json(model), encoding="utf-8")


def model_to_json(model: Model) -> str:
    """Return a model as the text of a model file."""
    match model:
        case ByNoiseLevel():
            head: dict[str, Any] = {
                "model": model.models[0].kind,
                "levels": list(model.levels),
                "parameters": [member.parameters() for member in model.models],
                "settings": model.models[0].settings(),
            }
        case ExplicitModel():
            head = {
                "model": model.kind,
                "parameters": model.parameters(),
                "settings": model.settings(),
            }
        case _:
            raise TypeError(f"no schema for {type(model).__name__}")
    document = {
        "schema": SCHEMA,
        "version": VERSION,
        **head,
        "provenance": dict(model.provenance),
    }
    return json.dumps(document, indent=2, allow_nan=False) + "\n"


def model_from_json(text: str) -> Model:
    """Return the model that a model file's text describes.

    Raises
    ------
    ModelFileError
        With what is wrong: not JSON, another schema or version, names missing or unknown, or a
        value out of its range.
    """
    try:
        document = json.loads(
            text, parse_constant=_refuse_constant, object_pairs_hook=_unique_names
        )
    except (json.JSONDecodeError, RecursionError) as error:
        raise ModelFileError(f"not valid JSON: {error}") from error
    except ModelFileError:
        raise
    except ValueError as error:  # a whole number of thousands of digits
        raise ModelFileError(f"a number is too long: {error}") from error
    if not isinstance(document, dict) or document.get("schema") != SCHEMA:
        raise ModelFileError(f'not a model file: it must be an object with "schema": "{SCHEMA}"')
    if document.get("version") != VERSION:
        raise ModelFileError(
            f"version {document.get('version')!r} of the schema is not supported, only {VERSION}"
        )
    by_level = "levels" in document
    exact_names("model file", document, (*_KEYS, "levels") if by_level else _KEYS)
    kind = KINDS.get(document["model"]) if isinstance(document["model"], str) else None
    if kind is None:
        raise ModelFileError(
            f"model must be one of {', '.join(map(repr, KINDS))}; got {document['model']!r}"
        )
    if not isinstance(document["provenance"], Mapping):
        raise ModelFileError(f"provenance must be an object, got {document['provenance']!r}")
    try:
        return _build(kind, document, by_level)
    except (TypeError, ValueError) as error:
        raise ModelFileError(str(error)) from error


def _build(kind: type[ExplicitModel], document: Mapping[str, Any], by_level: bool) -> Model:
    """Build the model of a document whose outer form is known to be right."""
    parameters, settings = document["parameters"], document["settings"]
    if not by_level:
        exact_parameters = parameters if isinstance(parameters, Mapping) else None
        if exact_parameters is None:
            raise ModelFileError(f"parameters must be an object, got {parameters!r}")
        return kind.build(exact_parameters, settings, document["provenance"])
    if not isinstance(parameters, list) or not all(isinstance(p, Mapping) for p in parameters):
        raise ModelFileError("with levels, parameters must be a list of objects, one for each")
    return ByNoiseLevel(
        levels=document["levels"],
        models=tuple(kind.build(member, settings) for member in parameters),
        provenance=document["provenance"],
    )


def _refuse_constant(name: str) -> float:
    raise ModelFileError(f"{name} is not a number that a model can have")


def _unique_names(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    names = [name for name, _ in pairs]
    twice = sorted({name for name in names if names.count(name) > 1})
    if twice:
        raise ModelFileError(f"{', '.join(map(repr, twice))} given more than once in one object")
    return dict(pairs)
