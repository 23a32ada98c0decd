"""Training and evaluation on volumes."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import evaluate_volumes
import train_volumes
from integrodiff import load_model
from integrodiff.engines import ENGINES


def test_parameters_go_back_and_forth() -> None:
    model: Any = load_model("iad-plus-volume")
    vector = train_volumes.vector_of(model)
    again = train_volumes.model_of(vector, model)
    np.testing.assert_allclose(train_volumes.vector_of(again), vector, rtol=1e-14)
    assert again.law.contrasts[0] == pytest.approx(model.law.contrasts[0])


def test_phantoms_are_the_same_in_every_run() -> None:
    volume = train_volumes.phantom(3, 12)
    np.testing.assert_array_equal(volume, train_volumes.phantom(3, 12))
    assert volume.shape == (12, 12, 12)
    assert 0 <= volume.min() < volume.max() <= 255


@pytest.mark.slow
@pytest.mark.skipif(
    ENGINES["native"].unavailable() is not None, reason="the compiled engine is not there"
)
def test_training_gets_better(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    start: Any = load_model("iad-plus-volume")
    found = train_volumes.samples(None, ["phantom"], 1, 14, [30.0])
    rounds = list(train_volumes.trained(start, found, 2))
    assert rounds[-1][1] < train_volumes.loss_of(train_volumes.vector_of(start), start, found)
    np.save(tmp_path / "volume.npy", train_volumes.phantom(0, 24))
    arguments = ["evaluate_volumes.py", str(tmp_path / "volume.npy"), "--percent", "5", "--slices"]
    monkeypatch.setattr(sys, "argv", arguments)
    evaluate_volumes.main()
    rows = [line.split("|") for line in capsys.readouterr().out.splitlines()[3:]]
    by_name = {row[3].strip(): float(row[4]) for row in rows}
    assert by_name["iad-plus-volume"] > by_name["iad-plus by slice"]
