"""The unit of grey values has no effect: factors, offsets and dtypes of an image without range."""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from integrodiff import denoise

pytestmark = pytest.mark.slow

FLOATS = ("float32", "float64")
INTEGERS = ("uint16", "int16", "uint32", "int32", "int64")
BITS = 255


def base_image(seed: int, level: float) -> NDArray[np.int64]:
    """Return a disc on a ramp with noise, in whole grey levels from 0 to 255."""
    y, x = np.mgrid[:40, :44]
    clean = 80 + x + 70.0 * (np.hypot(y - 18, x - 22) < 11)
    noise = np.random.default_rng(seed).normal(0, level, clean.shape)
    return np.asarray(np.rint(clean + noise).clip(0, BITS), np.int64)


@st.composite
def units(draw: st.DrawFn) -> tuple[str, float, float]:
    """Return a dtype, a factor from 1e-6 to 1e6 and an offset that the dtype can hold."""
    dtype = draw(st.sampled_from(FLOATS + INTEGERS))
    if dtype in FLOATS:
        factor = 10.0 ** draw(st.floats(-6, 6))
        # Far from zero, float32 has few digits left for the image.
        return dtype, factor, factor * BITS * draw(st.floats(-3, 3))
    limits = np.iinfo(dtype)
    factor = draw(st.integers(1, min(10**6, limits.max // BITS)))
    lowest, highest = (max(limits.min, -(10**9)), min(limits.max, 10**9) - factor * BITS)
    return dtype, factor, draw(st.integers(lowest, max(lowest, highest)))


@given(units(), st.integers(0, 99), st.sampled_from([6.0, 20.0]), st.booleans())
def test_factor_offset_and_dtype(
    unit: tuple[str, float, float], seed: int, level: float, estimated: bool
) -> None:
    dtype, factor, offset = unit
    image = base_image(seed, level)
    changed = (factor * image + offset).astype(dtype)

    def result(array: NDArray[Any], sigma: float) -> NDArray[np.float64]:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            given_level = None if estimated else sigma
            return np.asarray(denoise(array, given_level, as_float=True, exact=True), np.float64)

    expected = result(image.astype(np.float64), level)
    found = (result(changed, level * factor) - offset) / factor
    # Values of 16 and of 32 bits are denoised in float32.
    rounding = float(np.abs(changed.astype(np.float64)).max()) / factor * 2.0**-22
    precise = np.dtype(dtype).itemsize > 4 or dtype in ("int32", "uint32")
    np.testing.assert_allclose(found, expected, atol=1e-6 * level if precise else 0.02 + rounding)
