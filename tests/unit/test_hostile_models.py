"""Models from strangers: no amount of memory or time, and no error but a clear one."""

from __future__ import annotations

import json
import os
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from cases import COMPACT, MODELS
from command_line import run

from integrodiff import (
    IAD,
    ByNoiseLevel,
    ModelFileError,
    ReducedLaw,
    ScaleGrid,
    denoise,
    load_model,
)
from integrodiff.models import model_from_json, model_to_json
from integrodiff.models.limits import LARGEST_FILE, MOST_NAMES, MOST_SCALES, MOST_STEPS


def changed(name: str, *keys: Any, value: Any) -> str:
    document = json.loads(model_to_json(load_model(name)))
    place = document
    for key in keys[:-1]:
        place = place[key]
    place[keys[-1]] = value
    return json.dumps(document)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (changed("iad", "settings", "steps", value=10**9), "steps must be at most 10000"),
        (changed("iad", "settings", "steps", value=10**400), "steps must be at most 10000"),
        (changed("iad-plus", "settings", "steps", value=101), "steps must be at most 100 where"),
        (changed("iad", "settings", "scales", "count", value=10**7), "count must be at most 256"),
        (
            changed("iad", "settings", "scales", "largest", value=1e9),
            "largest must be at most 1000",
        ),
        (changed("eed", "parameters", 0, "scale", value=1e200), "scale must be at most 1000"),
        (
            changed("iad-deep", "settings", "channels", value=[[1, i / 9] for i in range(65)]),
            "number of channels must be at most 64",
        ),
        (
            changed("iad-deep", "settings", "channels", value=[[1, 1, 1]]),
            "pairs of order and scale",
        ),
        (changed("iad-deep", "settings", "channels", value=[[9, 1.0]]), "orders must be from 1 to"),
        (changed("iad-deep", "settings", "channels", value=7), "must be a list of pairs"),
        (
            changed("iad-plus", "settings", "integration_limits", value=[[0, 5]]),
            "integration_limits must have 2 values, got 1",
        ),
        (
            changed("iad-plus", "settings", "integration_limits", value=[[0, 5], [9, 3]]),
            "pairs that do not decrease",
        ),
        (changed("iad-plus", "settings", "integration_limits", value=[1, 2]), "pairs of scales"),
        (changed("iad-plus", "settings", "integration_limits", value=7), "a list of pairs"),
        (
            changed("iad-deep", "settings", "integration_limits", value=[[0, 5], [1, 1e9]]),
            "integration_limits must be at most 1000",
        ),
        (changed("iad-deep", "settings", "level_limits", value=[9.0]), "must have 2 values, got 1"),
        (changed("iad-deep", "settings", "level_limits", value=[9.0, 2.0]), "must not decrease"),
        (changed("iad-deep", "settings", "level_limits", value=[0.0, 2.0]), "must be positive"),
        (changed("iad", "parameters", "form", value=["reduced"]), "form must be one of"),
        (changed("iad", "provenance", "noise_levels", value=5), "must be a sequence of numbers"),
        (changed("iad", "provenance", "noise_levels", value=["a"]), "must be a real number"),
        (
            changed("iad", "parameters", value={f"k{i}": 1 for i in range(5000)}),
            "at most 1000 names",
        ),
        (changed("iad", "provenance", value=json.loads('{"a":' * 40 + "1" + "}" * 40)), "nested"),
        (
            changed("eed", "levels", value=list(range(1, 3000))),
            "number of levels must be at most 1000",
        ),
        (" " * (LARGEST_FILE + 1), "at most 4 MiB"),
    ],
)
def test_refused_as_a_file(text: str, message: str) -> None:
    begun = time.process_time()
    with pytest.raises(ModelFileError, match=message) as caught:
        model_from_json(text)
    assert time.process_time() - begun < 2
    assert len(str(caught.value)) < 1000


def test_many_names_take_no_time() -> None:
    text = '{"a": 0, ' + ", ".join(f'"k{i}": {i}' for i in range(40_000)) + "}"
    begun = time.process_time()
    with pytest.raises(ModelFileError, match=f"at most {MOST_NAMES} names"):
        model_from_json(text)
    assert time.process_time() - begun < 1


def test_messages_are_short() -> None:
    with pytest.raises(ModelFileError, match="and 492 more") as caught:
        model_from_json(changed("iad", "settings", value={f"k{i}": 1 for i in range(500)}))
    assert len(str(caught.value)) < 500
    with pytest.raises(ModelFileError) as caught:
        model_from_json(changed("iad", "settings", value="x" * 10**6))
    assert len(str(caught.value)) < 500


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (changed("iad-power", "parameters", "exponents", value=[1e308]), "no finite values"),
        (changed("iad-power", "parameters", "contrast_exponents", value=[4000.0]), "no finite val"),
        (changed("iad-plus", "parameters", "contrast_growth", value=1e300), "no finite values"),
        (changed("iad-plus", "parameters", "integration_exponent", value=1e5), "no finite values"),
        (changed("iad-plus", "parameters", "tau_exponent", value=1e5), "no finite values"),
        (changed("iad-power", "parameters", "pull", value=1e300), "the fidelity weight pull"),
        (changed("iad", "parameters", "lambda_0", value=1e300), "a contrast of this model is"),
        (changed("iad", "parameters", "lambda_0", value=5e-324), "a contrast of this model is"),
        (changed("iad-deep", "parameters", "weight_exponents", 0, value=1e300), "a weight of this"),
        (
            changed("iad-full", "parameters", 0, "gammas", value=[1e200] * 8),
            "a weight of|no finite",
        ),
    ],
)
def test_absurd_numbers_are_refused_at_a_noise_level(text: str, message: str) -> None:
    model = model_from_json(text)
    level = model.levels[0] if isinstance(model, ByNoiseLevel) else 100.0
    with pytest.raises(ValueError, match=message):
        model.evolution(level)
    with pytest.raises(ValueError, match=message):
        model.stable_step(level)


def test_a_step_size_that_underflows_changes_nothing() -> None:
    model = model_from_json(changed("iad-plus", "parameters", "tau_exponent", value=1e5))
    image = np.random.default_rng(0).normal(128, 30, (8, 9))
    found = denoise(image, sigma=29.0, model=model, data_range=255)
    np.testing.assert_array_equal(found, image)


def test_extrapolation_far_beyond_the_levels() -> None:
    model = load_model("pm")
    with pytest.raises(ValueError, match=r"no finite values|a contrast of this model"):
        model.evolution(1e300)


def test_work_is_limited() -> None:
    law = ReducedLaw(alpha=0.0, beta=0.0, lambda_0=1.0)
    grid = ScaleGrid(count=MOST_SCALES, smallest=1.0, largest=1000.0)
    model = IAD(law=law, tau=0.01, steps=MOST_STEPS, scales=grid)
    with pytest.raises(ValueError, match="units of work"):
        model.evolution(25.0)
    replace(COMPACT, contrast_growth=1.0, exponent_drift=0.0, steps=MOST_STEPS)
    with pytest.raises(ValueError, match="at most 100 where"):
        replace(COMPACT, contrast_growth=1.1, steps=MOST_STEPS)


def test_pipes_and_devices_are_refused_at_once(tmp_path: Path) -> None:
    pipe, device = tmp_path / "pipe.json", tmp_path / "zero.json"
    os.mkfifo(pipe)
    device.symlink_to("/dev/zero")
    for path in (pipe, device):
        with pytest.raises(ModelFileError, match="is not a regular file; save the model"):
            load_model(path)
    large = tmp_path / "large.json"
    with large.open("wb") as stream:
        stream.truncate(2**34)
    with pytest.raises(ModelFileError, match="at most 4 MiB"):
        load_model(large)
    folder = tmp_path / "folder.json"
    folder.mkdir()
    with pytest.raises(IsADirectoryError):
        load_model(folder)


@pytest.mark.slow
def test_the_command_line_blames_the_model(tmp_path: Path) -> None:
    image, absurd, pipe = (tmp_path / name for name in ("a.npy", "absurd.json", "pipe.json"))
    np.save(image, np.zeros((20, 20), np.uint8))
    absurd.write_text(changed("iad-plus", "parameters", "contrast_growth", value=1e300))
    os.mkfifo(pipe)
    for path, code, message in ((absurd, 2, "no finite values"), (pipe, 3, "not a regular file")):
        done = run("denoise", image, tmp_path / "b.npy", "--model", path, "--sigma", 25)
        assert done.exit_code == code, done.output
        assert message in done.output
        assert "bug" not in done.output


def test_limits_leave_room_for_models_as_they_are() -> None:
    image = np.full((3, 4), 7.0)
    for name, model in MODELS.items():
        assert np.isfinite(model(image, 25.0)).all(), name
