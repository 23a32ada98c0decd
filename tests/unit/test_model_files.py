"""Model files: exact round trips, and a clear error for everything that is not a model."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from importlib.resources import files
from pathlib import Path
from typing import Any

import pytest
from cases import COMPACT, MODELS
from full_disk import full_disk
from hypothesis import given
from hypothesis import strategies as st

from integrodiff import (
    IAD,
    MODEL_NAMES,
    ByNoiseLevel,
    FullLaw,
    Model,
    ModelFileError,
    ReducedLaw,
    load_model,
    save_model,
)
from integrodiff.models import model_from_json, model_to_json
from integrodiff.models.files import RESEARCH_MODELS

JOINED = ByNoiseLevel(levels=(10, 50), models=(MODELS["eed"], MODELS["eed"]))


@pytest.mark.parametrize("model", [*MODELS.values(), JOINED], ids=[*MODELS, "joined"])
def test_round_trip(model: Model, tmp_path: Path) -> None:
    path = tmp_path / "model.json"
    save_model(model, path)
    assert load_model(path) == model
    assert load_model(str(path)) == model
    assert [entry.name for entry in tmp_path.iterdir()] == ["model.json"]


number = st.floats(1e-6, 1e6)


# The noise levels are the one entry that readers look into.
keys = st.text().filter(lambda key: key != "noise_levels")


@given(number, number, number, st.dictionaries(keys, st.text() | st.integers()))
def test_numbers_survive_to_the_last_bit(
    alpha: float, beta: float, lambda_0: float, note: dict[str, Any]
) -> None:
    law = ReducedLaw(alpha=alpha, beta=beta, lambda_0=lambda_0)
    model = IAD(law=law, tau=alpha / 1e7, provenance=note)
    again = model_from_json(model_to_json(model))
    assert again == model
    assert again.provenance == note


BY_EXPERIMENTS = {
    "iad-fast": "experiments/train_models.py",
    "iad-plus": "experiments/train_models.py",
    "iad-deep": "experiments/train_pairs.py",
    "iad-orders": "experiments/train_deep.py",
}


@pytest.mark.parametrize("name", [*MODEL_NAMES, *RESEARCH_MODELS])
def test_shipped_models_say_where_they_come_from(name: str) -> None:
    model = load_model(name)
    assert model.provenance["status"] == "trained"
    assert model.provenance["recipe"] == BY_EXPERIMENTS.get(name, name)
    assert model.provenance["images"] == (20 if name == "iad-power-fast" else 200)
    assert len(model.provenance["data_sha256"]) == 64
    assert model_from_json(model_to_json(model)) == model


@pytest.mark.parametrize("name", [*MODEL_NAMES, *RESEARCH_MODELS])
def test_shipped_files_are_written_again_byte_by_byte(name: str) -> None:
    text = (files("integrodiff.models") / "data" / f"{name}.json").read_text(encoding="utf-8")
    assert model_to_json(load_model(name)) == text


def test_parameters_added_later_are_optional() -> None:
    plain = model_to_json(COMPACT)
    assert "integration_scale" not in plain
    assert model_from_json(plain) == COMPACT
    smoothed = replace(COMPACT, integration_scale=0.8)
    document = json.loads(model_to_json(smoothed))
    assert document["version"] == 1
    assert document["parameters"]["integration_scale"] == 0.8
    assert model_from_json(model_to_json(smoothed)) == smoothed
    text = edited(remover("parameters", "pull"), COMPACT)
    with pytest.raises(ModelFileError, match="missing 'pull'"):
        model_from_json(text)


def test_saving_replaces_a_file_whole(tmp_path: Path) -> None:
    path = tmp_path / "model.json"
    save_model(MODELS["pm"], path)
    with full_disk(20), pytest.raises(OSError, match="File too large"):
        save_model(MODELS["eed"], path)
    assert load_model(path) == MODELS["pm"]
    assert [entry.name for entry in tmp_path.iterdir()] == ["model.json"]


def edited(change: Callable[[dict[str, Any]], Any], model: Model = MODELS["iad-full"]) -> str:
    document = json.loads(model_to_json(model))
    change(document)
    return json.dumps(document)


def setter(*keys: Any, value: Any) -> Callable[[dict[str, Any]], None]:
    def change(document: dict[str, Any]) -> None:
        for key in keys[:-1]:
            document = document[key]
        document[keys[-1]] = value

    return change


def remover(*keys: Any) -> Callable[[dict[str, Any]], None]:
    def change(document: dict[str, Any]) -> None:
        for key in keys[:-1]:
            document = document[key]
        del document[keys[-1]]

    return change


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "not valid JSON"),
        ("{", "not valid JSON"),
        ("[]", "not a model file"),
        ("[" * 100_000, "not valid JSON"),
        (
            edited(setter("parameters", "tau", value=0)).replace(": 0}", ": 1" + "0" * 400 + "}"),
            "finite",
        ),
        (edited(setter("version", value=7)).replace(": 7", ": " + "7" * 5000), "too long"),
        ("{}", "not a model file"),
        (edited(setter("schema", value="other")), "not a model file"),
        (edited(setter("version", value=2)), "version 2 of the schema is not supported"),
        (edited(setter("model", value="bm3d")), "model must be one of 'perona-malik'"),
        (edited(setter("model", value=["iad"])), "model must be one of"),
        (edited(setter("colour", value="red")), "model file: unknown 'colour'"),
        (edited(remover("settings")), "model file: missing 'settings'"),
        (edited(setter("provenance", value=3)), "provenance must be an object"),
        (edited(setter("parameters", value=[])), "parameters must be an object"),
        (
            edited(setter("parameters", "form", value="half")),
            "form must be one of 'reduced', 'full'",
        ),
        (edited(remover("parameters", "form")), "form must be one of"),
        (edited(remover("parameters", "gammas")), "parameters: missing 'gammas'"),
        (edited(setter("parameters", "delta", value=1)), "parameters: unknown 'delta'"),
        (edited(setter("parameters", "gammas", value=[1, -1, 1])), r"gammas\[1\] must not be neg"),
        (edited(setter("parameters", "gammas", value=[1, 1])), "must have 2 values"),
        (edited(setter("parameters", "gammas", value="abc")), "gammas must be a sequence"),
        (edited(setter("parameters", "tau", value=None)), "tau must be a real number"),
        (edited(setter("parameters", "tau", value=-0.1)), "tau must be positive"),
        (edited(setter("settings", value=[])), "settings must be an object"),
        (edited(setter("settings", "steps", value=2.5)), "steps must be a whole number"),
        (edited(setter("settings", "scales", value=8)), "settings.scales must be an object"),
        (edited(remover("settings", "scales", "count")), "settings.scales: missing 'count'"),
        (edited(setter("settings", "scales", "count", value=0)), "count must be at least 1"),
        (edited(setter("levels", value=[10])), "must be a list of objects"),
        (edited(setter("levels", value=[10, 9]), JOINED), "levels must increase"),
        (edited(setter("levels", value="ab"), JOINED), "levels must be a sequence"),
        (edited(setter("parameters", 1, value=7), JOINED), "must be a list of objects"),
        (
            model_to_json(MODELS["pm"]).replace("0.2,", "NaN,").replace("0.2\n", "NaN\n"),
            "NaN is not",
        ),
        (model_to_json(MODELS["pm"]).replace('"steps"', '"theta"'), "'theta' given more than once"),
    ],
)
def test_what_is_wrong_is_said(text: str, message: str, tmp_path: Path) -> None:
    path = tmp_path / "bad.json"
    path.write_text(text)
    with pytest.raises(ModelFileError, match=message) as error:
        load_model(path)
    assert str(path) in str(error.value)


def test_no_text_at_all(tmp_path: Path) -> None:
    path = tmp_path / "bad.json"
    path.write_bytes(b"\xff\xfe\x00")
    with pytest.raises(ModelFileError, match=r"bad\.json"):
        load_model(path)


def test_full_law_needs_its_scales() -> None:
    text = edited(setter("settings", "scales", "count", value=4))
    with pytest.raises(ModelFileError, match="3 weights and contrasts for 4 scales"):
        model_from_json(text)
    assert isinstance(MODELS["iad-full"].law, FullLaw)


def test_other_suffixes_are_taken_for_names() -> None:
    with pytest.raises(ValueError, match=r"unknown model 'iad.txt'.*suffix \.json"):
        load_model("iad.txt")
