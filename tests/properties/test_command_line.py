"""The command line computes what :func:`integrodiff.denoise` computes, bit for bit."""

from __future__ import annotations

import shutil
import tempfile
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from command_line import run
from hypothesis import given
from hypothesis import strategies as st
from image_writers import WRITERS, write_array
from numpy.typing import NDArray
from PIL import Image

import integrodiff
from integrodiff import PoissonGaussian, UnknownDetector
from integrodiff.io import read_image

INTEGERS = ("uint8", "uint16", "int16", "uint32", "int32", "uint64", "int64")
FLOATS = ("float16", "float32", "float64")
LOSSLESS = tuple(WRITERS)
LOSSY = ("jpg", "webp", *(["avif"] if ".avif" in Image.registered_extensions() else []))


@dataclass
class Case:
    """An image, and the same request for both interfaces."""

    form: str
    axes: str
    dtype: str
    words: list[str] = field(default_factory=list)
    arguments: dict[str, Any] = field(default_factory=dict)
    invalid: str = "none"


@st.composite
def cases(draw: st.DrawFn) -> Case:
    form = draw(st.sampled_from([*LOSSLESS, *LOSSY]))
    writer = WRITERS.get(form)
    axes = draw(st.sampled_from(("YX", "YXS") if writer is None else writer.axes))
    dtypes = ("uint8",) if writer is None else writer.dtypes
    case = Case(form, axes, draw(st.sampled_from(dtypes)))
    _draw_noise(draw, case)
    if draw(st.booleans()):
        case.words += ["--data-range", "300"]
        case.arguments["data_range"] = 300.0
    if draw(st.booleans()):
        model = draw(st.sampled_from(("pm", "iad-fast", "eed")))
        case.words += ["--model", model]
        case.arguments["model"] = model
    if "S" in axes:
        colour = draw(st.sampled_from(("auto", "joint", "separate")))
        case.words += ["--colour", colour]
        case.arguments["colour"] = colour
    if writer is not None and writer.holds_float and draw(st.booleans()):
        case.words.append("--float")
        case.arguments["as_float"] = True
    if draw(st.booleans()):
        case.words.append("--exact")
        case.arguments["exact"] = True
    case.invalid = draw(st.sampled_from(("none", "none", "mask", "nodata", "nan")))
    if case.invalid == "nan" and np.dtype(case.dtype).kind != "f":
        case.invalid = "nodata"
    if case.invalid != "none":
        case.words += ["--engine", "numpy"]
        case.arguments["engine"] = "numpy"
    return case


def _draw_noise(draw: st.DrawFn, case: Case) -> None:
    kinds = ("sigma", "scales", "psd", "estimated", "poisson", "detector", "unknown", "map")
    kind = draw(st.sampled_from(kinds))
    if kind == "scales":
        case.words += ["--sigma", "0.5:6,2:15.5"]
        case.arguments["sigma"] = {0.5: 6.0, 2.0: 15.5}
    elif kind == "psd":
        case.words += ["--noise-psd", "noise.npy"]
        case.arguments["noise_psd"] = spectrum()
    elif kind == "sigma":
        case.words += ["--sigma", "9.5"]
        case.arguments["sigma"] = 9.5
    elif kind == "poisson":
        case.words += ["--noise", "poisson"]
        case.arguments["noise"] = "poisson"
    elif kind == "detector":
        case.words += ["--noise", "poisson-gaussian", "--gain", "1.5"]
        case.words += ["--offset", "3", "--readout", "2"]
        case.arguments["noise"] = PoissonGaussian(gain=1.5, offset=3, readout=2)
    elif kind == "unknown":
        case.words += ["--noise", "poisson-gaussian", "--offset", "2"]
        case.arguments["noise"] = UnknownDetector(offset=2)
    elif kind == "map":
        case.words += ["--sigma-map", "map.npy"]
        case.arguments["sigma"] = np.linspace(4, 14, 28 * 30).reshape(28, 30)


def spectrum() -> NDArray[np.float64]:
    """Return the power spectrum of noise of level 9 that is averaged over two columns."""
    power = 28 * 30 * 81 * np.cos(np.pi * np.fft.fftfreq(30)) ** 2
    return np.broadcast_to(power, (28, 30)).copy()


def image(case: Case, seed: int) -> NDArray[Any]:
    """Return an image in grey levels up to about 250, with noise that grows with the signal."""
    lengths = {"T": 2, "C": 2, "Z": 3, "Q": 2, "Y": 28, "X": 30, "S": 3}
    shape = [lengths[letter] for letter in case.axes]
    rng = np.random.default_rng(seed)
    plane = np.broadcast_to(np.linspace(10, 180, 30), (28, 30))
    where = [slice(None) if letter in "YX" else None for letter in case.axes]
    clean = np.broadcast_to(plane[tuple(where)], shape)
    noisy = rng.poisson(clean) + rng.normal(0, 5, shape)
    if np.dtype(case.dtype).kind == "f":
        return noisy.astype(case.dtype)
    return noisy.round().clip(0, 255).astype(case.dtype)


HOLES = np.ones((28, 30), np.bool_)
HOLES[3:6, 20:25] = HOLES[20:, :2] = HOLES[10, 10] = False
"""The mask of all cases that have one."""


def with_invalid_pixels(case: Case, pixels: NDArray[Any]) -> NDArray[Any]:
    """Return the image with values at invalid pixels that mark them as such."""
    if case.invalid not in ("nodata", "nan"):
        return pixels
    value = np.nan if case.invalid == "nan" else 251
    where = tuple(slice(None) if letter in "YX" else None for letter in case.axes)
    return np.where(HOLES[where], np.minimum(pixels, 250), np.array(value, pixels.dtype))


def with_mask(case: Case, pixels: NDArray[Any], path: Path) -> None:
    """Give both interfaces the same mask, by a file and as an array."""
    if case.invalid == "mask":
        np.save(path / "mask.npy", HOLES)
        case.words += ["--mask", str(path / "mask.npy")]
        case.arguments["mask"] = HOLES
    elif case.invalid == "nodata":
        case.words += ["--nodata", "251"]
        case.arguments["mask"] = pixels != 251


def answer(pixels: NDArray[Any], axes: str, arguments: dict[str, Any]) -> NDArray[Any] | str:
    """Return what :func:`integrodiff.denoise` returns, or the message of its error."""
    try:
        return integrodiff.denoise(pixels, axes=axes, **arguments)
    except ValueError as error:
        return " ".join(str(error).split())


@contextmanager
def folder() -> Iterator[Path]:
    path = Path(tempfile.mkdtemp())
    try:
        yield path
    finally:
        shutil.rmtree(path)


@pytest.mark.slow
@given(cases(), st.integers(0, 9))
def test_equals_denoise(case: Case, seed: int) -> None:
    with folder() as path, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        source, target = (path / f"{name}.{case.form}" for name in ("in", "out"))
        write_array(source, with_invalid_pixels(case, image(case, seed)), case.axes)
        if "--sigma-map" in case.words:
            np.save(path / "map.npy", case.arguments["sigma"])
        if "--noise-psd" in case.words:
            np.save(path / "noise.npy", case.arguments["noise_psd"])
        read = read_image(source)
        with_mask(case, read.pixels, path)
        words = [str(path / word) if word.endswith(".npy") else word for word in case.words]
        expected = answer(read.pixels, read.header.layout.axes, case.arguments)
        if isinstance(expected, str):
            result = run("denoise", source, target, *words)
            assert result.exit_code == 2
            assert expected[:20] in " ".join(result.stderr.split())
            assert not target.exists()
            return
        result = run("denoise", source, target, *words)
        assert result.exit_code == 0, result.stderr
        if case.form in LOSSY:
            other = path / f"other.{case.form}"
            integrodiff.io.write_image(other, read.with_pixels(expected))
            assert other.read_bytes() == target.read_bytes()
            return
        found = read_image(target)
        assert found.pixels.dtype == expected.dtype
        np.testing.assert_array_equal(found.pixels, expected)


@pytest.mark.slow
@pytest.mark.parametrize("form", LOSSLESS)
def test_files_have_the_axes_they_declare(form: str, tmp_path: Path) -> None:
    for axes in WRITERS[form].axes:
        source = tmp_path / f"{axes}.{form}"
        write_array(source, image(Case(form, axes, WRITERS[form].dtypes[0]), 0), axes)
        declared = read_image(source).header.layout.axes
        assert declared == WRITERS[form].declared(axes)
