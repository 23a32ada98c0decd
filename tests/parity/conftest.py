"""A GPU for the kernels of the engine ``cuda``: the processor."""

from __future__ import annotations

from pathlib import Path

import pytest
from emulated_gpu import EmulatedGpu


@pytest.fixture(scope="session")
def kernels(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder of compiled kernels that all workers share."""
    return tmp_path_factory.getbasetemp().parent / "integrodiff-kernels"


@pytest.fixture
def gpu(kernels: Path) -> EmulatedGpu:
    return EmulatedGpu(kernels)
