"""Shared by all tests: which models and engines there are, and the profile of hypothesis."""

from __future__ import annotations

import importlib.util
import os
import sys
from collections.abc import Callable
from pathlib import Path

import hypothesis
import numpy as np
import pytest
from batches import in_turn
from numpy.typing import NDArray
from selection import QUICK

hypothesis.settings.register_profile(
    "default",
    deadline=None,
    max_examples=10,
    derandomize=True,
    suppress_health_check=[hypothesis.HealthCheck.too_slow],
)
hypothesis.settings.register_profile(
    "quick", hypothesis.settings.get_profile("default"), max_examples=3
)
hypothesis.settings.register_profile("thorough", deadline=None, max_examples=100)
hypothesis.settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "default"))


@pytest.fixture(scope="session", autouse=True)
def one_torch_thread() -> None:
    """On images of a few pixels PyTorch's threads only wait for each other."""
    if not QUICK and importlib.util.find_spec("torch") is not None:
        import torch

        torch.set_num_threads(1)


@pytest.fixture(scope="session")
def photograph() -> NDArray[np.float64]:
    """A natural image of odd size on the scale [0, 255]."""
    from skimage.data import camera

    crop: NDArray[np.float64] = camera()[90:185, 180:281].astype(np.float64)
    return crop


@pytest.fixture(scope="session")
def research_data() -> Path:
    """The folder with BSDS500, named by an environment variable."""
    named = os.environ.get("INTEGRODIFF_DATA")
    if not named:
        pytest.skip("INTEGRODIFF_DATA does not name a folder with bsds500/images")
    folder = Path(named)
    if not (folder / "bsds500" / "images").is_dir():
        pytest.skip(f"there is no bsds500/images in INTEGRODIFF_DATA={folder}")
    return folder


@pytest.fixture
def one_process(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let batches start no processes, which takes a second, where a test is not about them."""
    monkeypatch.setattr("integrodiff.cli.batch.workers.run_tasks", in_turn)


@pytest.fixture
def without_package(monkeypatch: pytest.MonkeyPatch) -> Callable[[str], None]:
    """Return a function that makes a package fail to import, as if it were not installed."""
    return lambda name: monkeypatch.setitem(sys.modules, name, None)
