"""The example of docs/torch.md: a convolution in front of a diffusion layer."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("torch")
train_layer = pytest.importorskip("train_layer")


@pytest.mark.slow
def test_trains_on_a_folder_of_pairs(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    from integrodiff import denoise, load_model

    saved = tmp_path / "trained.json"
    pairs = tmp_path / "pairs"
    found = train_layer.main([str(pairs), "--make", "--iterations", "15", "--save", str(saved)])
    assert found["noisy"] < found["diffusion before training"]
    assert found["diffusion before training"] < found["diffusion trained alone"]
    assert found["diffusion trained alone"] + 0.1 < found["convolution and diffusion"]
    assert "24 pairs for training, 8 held out" in capsys.readouterr().out
    model = load_model(saved)
    assert model.provenance["status"] == "trained further by integrodiff.nn"
    noisy = np.random.default_rng(0).normal(100, 20, (16, 16))
    assert denoise(noisy, 20, model=model, data_range=255, engine="numpy").std() < noisy.std()
    (pairs / "noisy" / "camera-0.png").unlink()
    with pytest.raises(SystemExit, match=r"has no camera-0\.png"):
        train_layer.main([str(pairs)])
