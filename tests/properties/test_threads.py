"""The number of threads changes no bit of a result."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from integrodiff import denoise
from integrodiff.engines import ENGINES

pytestmark = pytest.mark.skipif(
    ENGINES["native"].unavailable() is not None, reason="the compiled engine was not built"
)

DTYPES = ("uint8", "int16", "uint16", "int64", "float16", "float32", "float64")
CASES = 200
BATCHES = 8


def random_request(rng: np.random.Generator) -> tuple[np.ndarray, dict[str, Any]]:
    """An image of any shape and dtype, narrow ones included, and options for it."""
    height, width = (int(n) for n in np.exp(rng.uniform(0, np.log(220), 2)))
    samples = int(rng.choice([1, 1, 3]))
    shape = (height, width) if samples == 1 else (height, width, samples)
    image = rng.normal(120, 40, shape).clip(0, 255).astype(str(rng.choice(DTYPES)))
    options: dict[str, Any] = {
        "sigma": float(rng.uniform(2, 60)),
        "model": str(rng.choice(["pm", "eed", "iad", "iad-fast", "iad-plus", "iad-deep"])),
        "exact": bool(rng.random() < 0.3),
        "axes": "YX" if samples == 1 else "YXS",
    }
    if rng.random() < 0.2:
        options["mask"] = rng.random((height, width)) < 0.8
    if rng.random() < 0.2:
        options["sigma"] = rng.uniform(5, 40, (height, width))
    return image, options


@pytest.mark.long
@pytest.mark.filterwarnings("ignore::integrodiff.errors.NoValidPixelsWarning")
@pytest.mark.parametrize("batch", range(BATCHES))
def test_results_do_not_depend_on_the_number_of_threads(batch: int) -> None:
    """200 random shapes, dtypes and numbers of threads."""
    for case in range(batch, CASES, BATCHES):
        rng = np.random.default_rng([5, case])
        image, options = random_request(rng)
        expected = denoise(image, engine="native", threads=1, **options)
        threads = int(rng.integers(2, 9))
        found = denoise(image, engine="native", threads=threads, **options)
        assert found.dtype == image.dtype
        np.testing.assert_array_equal(found, expected, err_msg=f"{case}: {threads} threads")
