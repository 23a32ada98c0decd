"""Defects of model files from strangers: memory, time, and errors that nobody expects."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from integrodiff import load_model
from integrodiff.models import model_to_json

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(sys.platform != "linux", reason="needs the limits of Linux"),
]

TRY_ALL = """
import resource, signal, sys, warnings
import numpy as np
from integrodiff import denoise, load_model

def too_slow(*_):
    raise TimeoutError

warnings.simplefilter("ignore")
resource.setrlimit(resource.RLIMIT_AS, (2 << 30, 2 << 30))
signal.signal(signal.SIGVTALRM, too_slow)
for path in sys.argv[1:]:
    signal.setitimer(signal.ITIMER_VIRTUAL, 4)  # seconds of the processor
    try:
        denoise(np.zeros((8, 8)), 25, model=load_model(path), data_range=255, engine="numpy")
        outcome = "result"
    except ValueError:  # which a ModelFileError is too
        outcome = "refused"
    except BaseException as error:
        outcome = type(error).__name__
    signal.setitimer(signal.ITIMER_VIRTUAL, 0)
    print(path, outcome, flush=True)
"""


def changed(name: str, *keys: Any, value: Any) -> str:
    document = json.loads(model_to_json(load_model(name)))
    place = document
    for key in keys[:-1]:
        place = place[key]
    place[keys[-1]] = value
    return json.dumps(document)


def hostile() -> dict[str, str]:
    channels = [[1, number / 9] for number in range(65)]
    return {
        "steps": changed("iad", "settings", "steps", value=10**9),
        "large-integer": changed("iad", "settings", "steps", value=10**400),
        "scales": changed("iad", "settings", "scales", "count", value=10**7),
        "largest-scale": changed("iad", "settings", "scales", "largest", value=1e9),
        "scale": changed("eed", "parameters", 0, "scale", value=1e200),
        "channels": changed("iad-deep", "settings", "channels", value=channels),
        "triples": changed("iad-deep", "settings", "channels", value=[[1, 1, 1]]),
        "order": changed("iad-deep", "settings", "channels", value=[[9, 1.0]]),
        "number-of-channels": changed("iad-deep", "settings", "channels", value=7),
        "form": changed("iad", "parameters", "form", value=["reduced"]),
        "levels": changed("iad", "provenance", "noise_levels", value=5),
        "names": json.dumps({f"k{number}": 0 for number in range(40_000)}),
        "names-of-settings": changed(
            "iad", "settings", value={f"k{number}": 0 for number in range(40_000)}
        ),
        "nested": changed("iad", "provenance", value=json.loads('{"a":' * 40 + "1" + "}" * 40)),
        "deeper": '{"a":' * 100_000,
        "exponent": changed("iad-plus", "parameters", "exponents", value=[1e308]),
        "contrast-exponent": changed("iad-plus", "parameters", "contrast_exponents", value=[4e3]),
        "growth": changed("iad-plus", "parameters", "contrast_growth", value=1e300),
        "pull": changed("iad-plus", "parameters", "pull", value=1e300),
        "contrast": changed("iad", "parameters", "lambda_0", value=1e300),
        "no-contrast": changed("iad", "parameters", "lambda_0", value=5e-324),
    }


def test_hostile_models_are_refused_at_once(tmp_path: Path) -> None:
    files = {tmp_path / f"{name}.json": text for name, text in hostile().items()}
    for path, text in files.items():
        path.write_text(text)
    command = [sys.executable, "-c", TRY_ALL, *map(str, files)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=600)
    outcomes = dict(line.rsplit(" ", 1) for line in done.stdout.splitlines())
    assert done.returncode == 0, (outcomes, done.stderr)
    assert outcomes == dict.fromkeys(map(str, files), "refused")
