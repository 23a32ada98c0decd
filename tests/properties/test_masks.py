"""Invalid pixels: they come back as they were, and nothing depends on their values."""

from __future__ import annotations

import warnings
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from integrodiff import Denoiser, PoissonGaussian, Step, UnknownDetector, denoise, estimate_sigma
from integrodiff.arrays import array_image

DTYPES = ("uint8", "uint16", "int16", "int32", "uint64", "float16", "float32", "float64")
LENGTHS = {"T": 2, "C": 2, "Z": 2, "S": 3}
ENGINE = "numpy"


@dataclass
class Case:
    """An image with invalid pixels, and arguments of :func:`integrodiff.denoise`."""

    image: NDArray[Any]
    mask: NDArray[np.bool_]
    axes: str
    arguments: dict[str, Any] = field(default_factory=dict)

    @property
    def valid(self) -> NDArray[np.bool_]:
        """The mask of all samples."""
        mask = self.mask[..., None] if self.axes.endswith("S") else self.mask
        return np.broadcast_to(mask, self.image.shape)

    def with_junk(self, junk: float) -> NDArray[Any]:
        """Return the image with another value at all invalid pixels."""
        if self.image.dtype.kind != "f":
            limits = np.iinfo(self.image.dtype)
            junk = limits.max if junk > 0 else limits.min
        with np.errstate(over="ignore"):
            value = np.array(junk).astype(self.image.dtype)
        return np.where(self.valid, self.image, value)

    def denoised(self, image: NDArray[Any], **more: Any) -> NDArray[Any]:
        arguments = {"axes": self.axes, "mask": self.mask, "engine": ENGINE, **self.arguments}
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return denoise(image, **{**arguments, **more})


@st.composite
def masks(draw: st.DrawFn, height: int, width: int) -> NDArray[np.bool_]:
    """Return random masks, one valid pixel, islands or stripes, and always a valid pixel."""
    rng = np.random.default_rng(draw(st.integers(0, 999)))
    kind = draw(st.sampled_from(("sparse", "dense", "one", "islands", "stripes", "all")))
    mask = np.zeros((height, width), np.bool_)
    if kind in ("sparse", "dense"):
        mask = rng.random((height, width)) < (0.3 if kind == "sparse" else 0.9)
    elif kind == "islands":
        for _ in range(3):
            top, left = rng.integers(height), rng.integers(width)
            mask[top : top + 4, left : left + 4] = True
    elif kind == "stripes":
        mask[:: int(rng.integers(2, 5))] = True
        mask = mask if draw(st.booleans()) else ~mask
    elif kind == "all":
        mask[:] = True
    mask[rng.integers(height), rng.integers(width)] = True
    return mask


@st.composite
def cases(draw: st.DrawFn, noises: tuple[str, ...]) -> Case:
    axes = draw(st.sampled_from(("YX", "YXS", "TYX", "CYX", "TCYX", "TYXS", "ZYX")))
    height, width = draw(st.integers(1, 14)), draw(st.integers(1, 14))
    grid = tuple(LENGTHS[letter] for letter in axes if letter not in "YXS")
    planes = [draw(masks(height, width)) for _ in range(int(np.prod(grid, dtype=int)))]
    mask = np.reshape(planes, (*grid, height, width))
    shape = (*mask.shape, 3) if axes.endswith("S") else mask.shape
    dtype = draw(st.sampled_from(DTYPES))
    rng = np.random.default_rng(draw(st.integers(0, 999)))
    image = rng.poisson(90, shape).clip(0, 127).astype(dtype)
    case = Case(image, mask, axes, {"data_range": 255.0})
    case.arguments["model"] = draw(st.sampled_from(("pm", "pm", "eed", "iad-fast")))
    noise = draw(st.sampled_from(noises))
    if noise == "sigma":
        case.arguments["sigma"] = 12.0
    elif noise == "map":
        case.arguments["sigma"] = rng.uniform(4, 20, (height, width))
    elif noise == "poisson":
        case.arguments["noise"] = "poisson"
    elif noise == "detector":
        case.arguments["noise"] = PoissonGaussian(gain=1.5, offset=3, readout=2)
    if axes.endswith("S"):
        case.arguments["colour"] = draw(st.sampled_from(("auto", "joint", "separate")))
    return case


@pytest.mark.slow
@given(
    cases(("sigma", "map", "poisson", "detector")), st.sampled_from((1e30, np.inf, -np.inf, np.nan))
)
def test_nothing_depends_on_invalid_values(case: Case, junk: float) -> None:
    before = case.with_junk(junk)
    kept = before.copy()
    found, expected = case.denoised(before), case.denoised(case.image)
    assert before.tobytes() == kept.tobytes()
    assert found.dtype == case.image.dtype
    np.testing.assert_array_equal(found[case.valid], expected[case.valid])
    assert found[~case.valid].tobytes() == before[~case.valid].tobytes()
    assert expected[~case.valid].tobytes() == case.image[~case.valid].tobytes()


@pytest.mark.slow
@given(cases(("sigma", "map")))
def test_the_mean_of_valid_pixels_is_kept(case: Case) -> None:
    """In every channel, plane and volume; the mean of islands is a matter of the stages."""
    found = case.denoised(case.image, as_float=True)
    tolerance = {"float16": 0.1, "float64": 1e-9, "int32": 1e-9, "uint64": 1e-9}
    grid = case.mask.shape[: -3 if case.axes.endswith(("ZYX", "ZYXS")) else -2]
    for index in np.ndindex(*grid):
        valid = case.mask[index]
        means = [np.asarray(x[index][valid], np.float64).mean(axis=0) for x in (found, case.image)]
        atol = tolerance.get(case.image.dtype.name, 1e-4)
        np.testing.assert_allclose(means[0], means[1], rtol=0, atol=atol)


@pytest.mark.slow
@given(cases(("sigma", "map", "poisson", "detector")))
def test_a_mask_of_valid_pixels_changes_nothing(case: Case) -> None:
    plain = case.denoised(case.image, mask=None)
    np.testing.assert_array_equal(case.denoised(case.image, mask=np.ones_like(case.mask)), plain)
    one = np.ones((1,) * case.mask.ndim, np.bool_)
    np.testing.assert_array_equal(case.denoised(case.image, mask=one), plain)


@pytest.mark.slow
@given(cases(("map",)))
def test_levels_of_invalid_pixels_do_not_count(case: Case) -> None:
    nowhere = ~case.mask.reshape(-1, *case.mask.shape[-2:]).any(axis=0)
    if "C" in case.axes:  # each channel has the levels of its own pixels
        case = Case(case.image[..., 0, :, :], case.mask[..., 0, :, :], "TYX", case.arguments)
        if case.image.ndim == 2:
            case = Case(case.image, case.mask, "YX", case.arguments)
        nowhere = ~case.mask.reshape(-1, *case.mask.shape[-2:]).any(axis=0)
    levels = np.where(nowhere, np.nan, case.arguments["sigma"])
    found = case.denoised(case.image, sigma=levels)
    np.testing.assert_array_equal(found, case.denoised(case.image))


@pytest.mark.slow
@given(cases(("sigma", "poisson", "map")), st.sampled_from((1e30, np.nan)))
def test_callbacks_see_neither(case: Case, junk: float) -> None:
    """The images of callbacks, and the number of steps."""

    def watched(image: NDArray[Any]) -> list[tuple[Step, NDArray[Any]]]:
        seen: list[tuple[Step, NDArray[Any]]] = []
        case.denoised(image, callback=lambda step: seen.append((step, step.image())))
        return seen

    clean, dirty = watched(case.image), watched(case.with_junk(junk))
    assert [step.number for step, _ in clean] == list(range(1, len(clean) + 1))
    assert all(step.total == len(clean) for step, _ in clean)
    planes = case.mask.reshape(-1, *case.mask.shape[-2:])
    for (step, image), (_, other) in zip(clean, dirty, strict=True):
        valid = case.mask if "Z" in case.axes else planes[step.plane]
        np.testing.assert_array_equal(image[valid], other[valid])


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["estimated", "unknown"])
@pytest.mark.parametrize("axes", ["TYX", "TYXS"])
@pytest.mark.parametrize(("dtype", "junk"), [("float32", np.nan), ("float64", 1e30), ("uint8", 1)])
def test_estimates_ignore_invalid_pixels(kind: str, axes: str, dtype: str, junk: float) -> None:
    shape = tuple({"T": 2, "Y": 60, "X": 62, "S": 3}[letter] for letter in axes)
    clean = np.linspace(20, 200, 62)[(slice(None), None) if axes.endswith("S") else slice(None)]
    rng = np.random.default_rng(3)
    image = rng.poisson(np.broadcast_to(clean, shape)) + rng.normal(0, 3, shape)
    mask = np.ones((2, 60, 62), np.bool_)
    mask[0, 5:12, 3:11] = mask[1, 40:, :4] = False
    case = Case(image.clip(0, 255).astype(dtype), mask, axes, {"data_range": 255.0, "model": "pm"})
    if kind == "unknown":
        case.arguments["noise"] = UnknownDetector(offset=0)
    found, expected = case.denoised(case.with_junk(junk)), case.denoised(case.image)
    np.testing.assert_array_equal(found[case.valid], expected[case.valid])


def test_the_range_ignores_invalid_pixels() -> None:
    rng = np.random.default_rng(0)
    denoiser = Denoiser(30.0, engine=ENGINE)
    for shape in ((6, 7), (8, 9), (40, 41)):
        image = rng.integers(900, 1100, shape).astype(np.uint16)
        mask = np.ones(shape, np.bool_)
        mask[2, 3] = False
        ranges = set()
        for junk in (0, 1000, 60000):
            image[2, 3] = junk
            (channel,) = denoiser.pipeline(array_image(image, mask=mask)).resolved.channels
            ranges.add(channel.data_range)
        assert len(ranges) == 1


def test_estimated_level_is_that_of_the_valid_part() -> None:
    rng = np.random.default_rng(0)
    image = rng.normal(0, 5, (96, 96))
    image[:, 40:] += rng.normal(0, 40, (96, 56))
    mask = np.zeros(image.shape, np.bool_)
    mask[:, :40] = True
    assert estimate_sigma(image, mask=mask) == pytest.approx(5, rel=0.1)
    hidden = np.where(mask, image, np.nan)
    assert estimate_sigma(hidden) == estimate_sigma(image, mask=mask)
    assert estimate_sigma(np.ma.array(image, mask=~mask)) == estimate_sigma(image, mask=mask)
