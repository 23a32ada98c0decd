"""Training by the kernels of the engine ``cuda`` on a GPU: the derivatives of PyTorch.

Skipped where there is no GPU. On the host the same is done by ``tests/parity``.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from cases import MODELS

from integrodiff.engines import ENGINES
from integrodiff.learning import CleanImages, Parameterisation, TorchLineariser
from integrodiff.learning.cuda import CudaLineariser
from integrodiff.learning.recipes import best_lineariser
from integrodiff.learning.tangents import LevelByLevel

torch = pytest.importorskip("torch")
if not torch.cuda.is_available() or ENGINES["cuda"].unavailable() is not None:
    pytest.skip("there is no CUDA device, or no CuPy", allow_module_level=True)


def images() -> CleanImages:
    walks = np.random.default_rng(1).normal(0, 9, (3, 67, 90)).cumsum(2) + 128
    return CleanImages(walks.astype(np.float32), tuple("abc"), "random walks")


@pytest.mark.parametrize("name", ["pm", "eed", "iid-full", "iad-reduced"])
@pytest.mark.parametrize("tangents", [1, 2, 3])
@pytest.mark.parametrize(("double", "tolerance"), [(True, 1e-8), (False, 1e-3)])
def test_the_same_as_by_pytorch(name: str, tangents: int, double: bool, tolerance: float) -> None:
    model = MODELS[name]
    parameterisation = Parameterisation(model, (20.0, 50.0))
    vector, items = parameterisation.vector(model), [(0, 20.0), (1, 50.0), (2, 20.0)]
    by_torch = TorchLineariser(parameterisation, images(), device="cuda", double=True)
    expected = LevelByLevel(by_torch).linearise(vector, items)
    lineariser = CudaLineariser(
        parameterisation, images(), double=double, tangents=tangents, batch=2
    )
    found = lineariser.linearise(vector, items)
    for part in ("error", "gradient", "curvature"):
        wanted = getattr(expected, part)
        scale = np.abs(wanted).max()
        np.testing.assert_allclose(getattr(found, part) / scale, wanted / scale, atol=tolerance)


def test_recipes_take_the_kernels() -> None:
    parameterisation = Parameterisation(MODELS["pm"], (20.0,))
    assert isinstance(best_lineariser(parameterisation, images()), CudaLineariser)
    other = replace(MODELS["pm"], discretisation="nonnegativity")
    other_lineariser = best_lineariser(Parameterisation(other, (20.0,)), images())
    assert not isinstance(other_lineariser, CudaLineariser)
