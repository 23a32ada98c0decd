"""Training and evaluation on volumes."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

import evaluate_volumes
import train_volumes
import volume_kinds
import volume_phantoms
from integrodiff import load_model
from integrodiff.engines import ENGINES

needs_native = pytest.mark.skipif(
    ENGINES["native"].unavailable() is not None, reason="the compiled engine is not there"
)


@pytest.mark.parametrize("kind", volume_phantoms.MAKERS)
def test_volumes_are_the_same_in_every_run(kind: str) -> None:
    volume = volume_phantoms.volume_of(kind, 3, 12, [])
    np.testing.assert_array_equal(volume, volume_phantoms.volume_of(kind, 3, 12, []))
    assert volume.shape == (12, 12, 12)
    assert 0 <= volume.min() < volume.max() <= 255


def test_fields_have_variance_one() -> None:
    rng = np.random.default_rng(0)
    for scale in (1.0, 3.0, 20.0):
        fields = np.stack([volume_phantoms._field(rng, 8, scale) for _ in range(60)])
        assert 0.7 < fields.var(axis=0).mean() < 1.3


def test_every_level_has_its_turn() -> None:
    found = train_volumes.samples(None, ["thin"], 4, 8, [5.0, 10.0, 20.0, 40.0], draws=2)
    assert sorted(one.level for one in found) == [5, 5, 10, 10, 20, 20, 40, 40]
    held_out = train_volumes.samples(None, ["thin"], 1, 8, [5.0], first=1000)
    assert not np.array_equal(held_out[0].clean, found[0].clean)


@pytest.mark.slow
@needs_native
def test_training_gets_better_and_goes_on(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    output = tmp_path / "model.json"
    words = [str(output), "--start", "iad-plus-volume", "--kinds", "thin", "--count", "1"]
    words += ["--side", "12", "--levels", "30", "--draws", "1"]
    train_volumes.main([*words, "--rounds", "1"])
    first = json.loads(output.with_suffix(".state.json").read_text())
    assert len(first["losses"]) == 2
    assert first["losses"][1] < first["losses"][0]
    train_volumes.main([*words, "--rounds", "2"])
    second = json.loads(output.with_suffix(".state.json").read_text())
    assert second["losses"][:2] == first["losses"]
    model: Any = load_model(output)
    assert model.dimensions == 3
    assert model.provenance["training"]["kinds"] == ["thin"]
    with pytest.raises(SystemExit, match="another training"):
        train_volumes.main([*words, "--side", "10", "--rounds", "3"])
    capsys.readouterr()
    train_volumes.main(["--table", str(output), *words[3:]])
    table = json.loads(capsys.readouterr().out)[str(output)]
    assert table["thin"] == table["all"]


@pytest.mark.slow
@needs_native
def test_volumes_are_better_than_slices(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    np.save(tmp_path / "volume.npy", volume_phantoms.ellipsoids(0, 24))
    arguments = ["evaluate_volumes.py", str(tmp_path / "volume.npy"), "--percent", "5", "--slices"]
    arguments += ["--output", str(tmp_path / "table.json")]
    (tmp_path / "table.json").write_text('{"what": "", "volumes": {"other": 1}}')
    monkeypatch.setattr(sys, "argv", arguments)
    evaluate_volumes.main()
    rows = [line.split("|") for line in capsys.readouterr().out.splitlines()[3:]]
    by_name = {row[3].strip(): float(row[4]) for row in rows}
    assert by_name["iad-plus-volume"] > by_name["iad-plus by slice"]
    stored = json.loads((tmp_path / "table.json").read_text())["volumes"]
    assert stored["other"] == 1
    entry = stored["volume.npy"]
    assert entry["shape"] == [24, 24, 24]
    methods = entry["percent"]["5"]["methods"]
    assert {name: round(found["psnr"], 2) for name, found in methods.items()} == by_name


def test_settings_are_tuned() -> None:
    clean = np.zeros((4, 4, 4), np.float32)

    def run(weight: float, patch: float) -> Any:
        return clean + np.float32(abs(weight - 2) + abs(patch - 3) + 1)

    grid = {"weight": (1.0, 2.0, 4.0), "patch": (3.0, 5.0)}
    found = evaluate_volumes.tuned(run, grid, clean, 10.0)
    assert found.setting == {"weight": 2, "patch": 3}
    assert found.ends == ("patch",)
    assert found.psnr == pytest.approx(20)


@pytest.mark.slow
@needs_native
def test_kinds_are_trained_one_by_one(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = tmp_path / "bsds500" / "images" / "train"
    folder.mkdir(parents=True)
    pixels = np.random.default_rng(0).uniform(0, 255, (80, 90)).astype(np.uint8)
    Image.fromarray(pixels).save(folder / "1.jpg")
    words = ["--data", str(tmp_path), "--output", str(tmp_path / "kinds.json")]
    volume_kinds.main([*words, "--count", "1", "--side", "10", "--levels", "30", "--rounds", "1"])
    rows = json.loads((tmp_path / "kinds.json").read_text())["rows"]
    assert list(rows) == ["iad-fast-volume, as shipped", *volume_phantoms.KINDS, "all four"]
    for name in (*volume_phantoms.KINDS, "all four"):
        first, last = rows[name]["losses"]
        assert last < first
        assert set(rows[name]["psnr"]) == {*volume_phantoms.KINDS, "all"}
    assert "| thin |" in capsys.readouterr().out
