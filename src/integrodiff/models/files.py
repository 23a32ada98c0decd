"""Model files: versioned JSON, checked on the way in, written atomically on the way out.

The version counts changes of meaning, not additions. A parameter added to a class later is optional
in files: where it is missing it has its neutral value, and at that value it is not written, so that
files of models without it never change. An older program refuses a file that has it, by its name.
The version rises when a file would have to be read with another meaning.
"""

from __future__ import annotations

import json
import stat
from collections import Counter
from collections.abc import Mapping
from importlib.resources import files
from os import PathLike
from pathlib import Path
from typing import Any

from integrodiff._atomic import atomic_write
from integrodiff._checks import sequence_of_numbers, shown
from integrodiff.errors import ModelFileError
from integrodiff.models.base import KINDS, ExplicitModel, Model
from integrodiff.models.by_noise_level import ByNoiseLevel
from integrodiff.models.description import exact_names
from integrodiff.models.limits import (
    DEEPEST_NESTING,
    LARGEST_FILE,
    MOST_LEVELS,
    MOST_NAMES,
    at_most,
)

SCHEMA, VERSION = "integrodiff-model", 1

MODEL_NAMES = ("pm", "eed", "iid", "iad", "iad-full", "iad-fast", "iad-plus", "iad-deep")
"""Names of the models that come with the package."""

RESEARCH_MODELS = ("iad-smooth", "iad-power", "iad-power-fast", "iad-orders")
"""Further models for experiments and comparisons; they load by name as well.

``iad-power``, ``iad-power-fast`` and ``iad-orders`` have no integration scales; they are what
``iad-plus``, ``iad-fast`` and ``iad-deep`` were before.
"""

VOLUME_MODELS = {
    "iad": "iad-volume",
    "iad-fast": "iad-fast-volume",
    "iad-plus": "iad-plus-volume",
}
"""Shipped models whose name stands for parameters of their own in volumes, and their files."""

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

    Examples
    --------
    >>> from integrodiff import load_model
    >>> load_model("iad").steps
    10
    """
    shipped = (*MODEL_NAMES, *VOLUME_MODELS.values(), *RESEARCH_MODELS)
    if isinstance(name_or_path, str) and name_or_path in shipped:
        resource = files("integrodiff.models") / "data" / f"{name_or_path}.json"
        return model_from_json(resource.read_text(encoding="utf-8"))
    path = Path(name_or_path)
    if path.suffix != ".json":
        raise ValueError(
            f"unknown model {str(name_or_path)!r}: expected one of {', '.join(MODEL_NAMES)}, "
            "or a model file with the suffix .json"
        )
    try:
        return model_from_json(_text_of(path))
    except (ModelFileError, UnicodeDecodeError) as error:
        raise ModelFileError(f"{path}: {error}") from error


def _text_of(path: Path) -> str:
    """Return the text of a regular file; pipes and devices may never end."""
    mode = path.stat().st_mode
    if not stat.S_ISREG(mode) and not stat.S_ISDIR(mode):
        raise ModelFileError("is not a regular file; save the model to a file first")
    with path.open("rb") as stream:
        data = stream.read(LARGEST_FILE + 1)
    _require_size(len(data))
    return data.decode("utf-8")


def _require_size(size: int) -> None:
    if size > LARGEST_FILE:
        raise ModelFileError(
            f"a model file has at most {LARGEST_FILE // 2**20} MiB, this one has more; check that "
            "it is a model, and shorten its provenance"
        )


def save_model(model: Model, path: str | PathLike[str]) -> None:
    """Write a model to a JSON file, replacing one of that name only when all is written.

    Examples
    --------
    >>> import tempfile
    >>> from pathlib import Path
    >>> from integrodiff import load_model, save_model
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     path = Path(folder) / "mine.json"
    ...     save_model(load_model("iad"), path)
    ...     load_model(path) == load_model("iad")
    True
    """
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
        value out of its range; see :mod:`integrodiff.models.limits` for what is too large.
    """
    _require_size(len(text))
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
    _require_shallow(document)
    if not isinstance(document, dict) or document.get("schema") != SCHEMA:
        raise ModelFileError(f'not a model file: it must be an object with "schema": "{SCHEMA}"')
    if document.get("version") != VERSION:
        raise ModelFileError(
            f"version {shown(document.get('version'))} of the schema is not supported, "
            f"only {VERSION}"
        )
    by_level = "levels" in document
    exact_names("model file", document, (*_KEYS, "levels") if by_level else _KEYS)
    kind = KINDS.get(document["model"]) if isinstance(document["model"], str) else None
    if kind is None:
        raise ModelFileError(
            f"model must be one of {', '.join(map(repr, KINDS))}; got {shown(document['model'])}"
        )
    if not isinstance(document["provenance"], Mapping):
        raise ModelFileError(f"provenance must be an object, got {shown(document['provenance'])}")
    try:
        _require_levels(document["provenance"])
        return _build(kind, document, by_level)
    except (TypeError, ValueError, ArithmeticError) as error:
        raise ModelFileError(str(error)) from error


def _require_shallow(document: Any) -> None:
    """Refuse deep nesting, level by level: functions that call themselves could run too deep."""
    level = [document] if isinstance(document, (dict, list)) else []
    for _ in range(DEEPEST_NESTING):
        inner = [value.values() if isinstance(value, dict) else value for value in level]
        level = [part for parts in inner for part in parts if isinstance(part, (dict, list))]
        if not level:
            return
    raise ModelFileError(
        f"objects and lists are nested more than {DEEPEST_NESTING} deep; a model needs four levels"
    )


def _require_levels(provenance: Mapping[str, Any]) -> None:
    """Refuse invalid noise levels in the provenance: warnings are based on them."""
    levels = provenance.get("noise_levels")
    if levels is not None and levels != []:
        name = "provenance.noise_levels"
        at_most(f"the number of {name}", len(sequence_of_numbers(name, levels)), MOST_LEVELS)


def _build(kind: type[ExplicitModel], document: Mapping[str, Any], by_level: bool) -> Model:
    """Build the model of a document whose outer form is known to be right."""
    parameters, settings = document["parameters"], document["settings"]
    if not by_level:
        exact_parameters = parameters if isinstance(parameters, Mapping) else None
        if exact_parameters is None:
            raise ModelFileError(f"parameters must be an object, got {shown(parameters)}")
        return kind.build(exact_parameters, settings, document["provenance"])
    if not isinstance(parameters, list) or not all(isinstance(p, Mapping) for p in parameters):
        raise ModelFileError("with levels, parameters must be a list of objects, one for each")
    at_most("the number of levels", len(parameters), MOST_LEVELS)
    return ByNoiseLevel(
        levels=document["levels"],
        models=tuple(kind.build(member, settings) for member in parameters),
        provenance=document["provenance"],
    )


def _refuse_constant(name: str) -> float:
    raise ModelFileError(f"{name} is not a number that a model can have")


def _unique_names(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    if len(pairs) > MOST_NAMES:
        raise ModelFileError(
            f"an object has at most {MOST_NAMES} names, one in this file has {len(pairs)}; "
            "check that it is a model"
        )
    twice = sorted(name for name, count in Counter(name for name, _ in pairs).items() if count > 1)
    if twice:
        names = ", ".join(map(shown, twice[:8]))
        raise ModelFileError(f"{names} given more than once in one object")
    return dict(pairs)
