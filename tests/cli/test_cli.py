"""``integrodiff denoise``: results, messages, exit codes, and files left alone."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tifffile
from command_line import run
from image_samples import HEIGHT, WIDTH, chunk, values
from numpy.typing import NDArray
from PIL import Image
from typer.testing import Result

import integrodiff
from integrodiff._default_model import DEFAULT_MODEL
from integrodiff.engines.numpy import NumpyEngine
from integrodiff.engines.torch import TorchEngine

SIGMA = 20.0


def denoise(source: Path, target: Path, *more: object, sigma: float = SIGMA) -> Result:
    return run("denoise", source, target, "--sigma", sigma, "--engine", "numpy", *more)


def clean_image(*channels: int) -> NDArray[np.float64]:
    """A disc on a ramp, on the scale [0, 255]."""
    y, x = np.mgrid[:HEIGHT, :WIDTH]
    image = 60.0 + 2 * x + 90 * ((y - 10) ** 2 + (x - 12) ** 2 < 36)
    return image if not channels else np.stack([image, 0.8 * image, image[::-1]], axis=-1)


def noisy_image(clean: NDArray[np.float64], dtype: str = "uint8") -> NDArray[Any]:
    noise = np.random.default_rng(3).normal(0, SIGMA, clean.shape)
    return np.clip(np.rint(clean + noise), 0, 255).astype(dtype)


def mean_square(a: NDArray[Any], b: NDArray[Any]) -> float:
    return float(np.square(a.astype(float) - b.astype(float)).mean())


@pytest.fixture
def noisy_png(tmp_path: Path) -> Path:
    path = tmp_path / "noisy.png"
    Image.fromarray(noisy_image(clean_image())).save(path)
    return path


def listing(folder: Path) -> dict[str, bytes]:
    return {str(p): p.read_bytes() if p.is_file() else b"" for p in folder.rglob("*")}


# ---- results ----


@pytest.mark.slow
def test_the_default_model_is_that_of_the_function(noisy_png: Path, tmp_path: Path) -> None:
    result = denoise(noisy_png, tmp_path / "clean.png")
    assert f"{DEFAULT_MODEL} at sigma 20" in result.stderr


@pytest.mark.slow
@pytest.mark.parametrize("model", ["pm", "eed", "iid", "iad", "iad-plus", "iad-deep"])
def test_grey_png_improves(noisy_png: Path, tmp_path: Path, model: str) -> None:
    result = denoise(noisy_png, tmp_path / "clean.png", "--model", model)
    assert result.exit_code == 0, result.output
    noisy, denoised = (
        np.asarray(Image.open(noisy_png)),
        np.asarray(Image.open(tmp_path / "clean.png")),
    )
    assert (denoised.dtype, denoised.shape) == (noisy.dtype, noisy.shape)
    assert mean_square(denoised, clean_image()) < 0.6 * mean_square(noisy, clean_image())
    expected = integrodiff.denoise(noisy, SIGMA, model=model, engine="numpy")
    assert np.array_equal(denoised, expected)
    assert result.stdout == ""
    assert result.stderr.startswith(
        f"{noisy_png} -> {tmp_path / 'clean.png'}: 24 x 20, uint8, grey, {model} at sigma 20, "
        "engine numpy, "
    )
    assert result.stderr.count("\n") == 1


@pytest.mark.slow
@pytest.mark.parametrize("suffix", [".png", ".jpg", ".tif"])
def test_colour_improves(tmp_path: Path, suffix: str) -> None:
    clean = clean_image(3)
    source, target = tmp_path / "in.png", tmp_path / f"out{suffix}"
    Image.fromarray(noisy_image(clean)).save(source)
    assert denoise(source, target).exit_code == 0
    denoised = tifffile.imread(target) if suffix == ".tif" else np.asarray(Image.open(target))
    assert (denoised.dtype, denoised.shape) == (np.dtype("uint8"), clean.shape)
    assert mean_square(denoised, clean) < 0.6 * mean_square(noisy_image(clean), clean)


@pytest.mark.slow
@pytest.mark.parametrize("suffix", [".png", ".tif"])
def test_sixteen_bits_improve(tmp_path: Path, suffix: str) -> None:
    noisy = noisy_image(clean_image(), "uint16") * 16
    tifffile.imwrite(tmp_path / "in.tif", noisy)
    target = tmp_path / f"out{suffix}"
    assert denoise(tmp_path / "in.tif", target, sigma=16 * SIGMA).exit_code == 0
    denoised = tifffile.imread(target) if suffix == ".tif" else np.asarray(Image.open(target))
    assert (denoised.dtype, denoised.shape) == (noisy.dtype, noisy.shape)
    clean = 16 * clean_image()
    assert mean_square(denoised, clean) < 0.6 * mean_square(noisy, clean)


@pytest.mark.slow
def test_alpha_is_kept(tmp_path: Path) -> None:
    samples = values(HEIGHT, WIDTH, 4)
    Image.fromarray(samples).save(tmp_path / "in.png")
    result = denoise(tmp_path / "in.png", tmp_path / "out.png")
    assert "RGBA" in result.stderr
    written = np.asarray(Image.open(tmp_path / "out.png"))
    assert np.array_equal(written[..., 3], samples[..., 3])
    expected = integrodiff.denoise(samples[..., :3], SIGMA, channel_axis=-1, engine="numpy")
    assert np.array_equal(written[..., :3], expected)


@pytest.mark.slow
def test_pages_share_one_scale(tmp_path: Path) -> None:
    """The dark page by itself would be seen on another scale."""
    bright = noisy_image(clean_image(), "uint16") * 16
    stack = np.stack([bright // 20, bright])
    tifffile.imwrite(tmp_path / "in.tif", stack, photometric="minisblack", metadata={"axes": "TYX"})
    result = denoise(tmp_path / "in.tif", tmp_path / "out.tif", sigma=100)
    assert "24 x 20, 2 pages (axes TYX), uint16, grey" in result.stderr
    written = tifffile.imread(tmp_path / "out.tif")
    expected = integrodiff.denoise(stack, 100, axes="TYX", engine="numpy")
    assert np.array_equal(written, expected)
    by_itself = integrodiff.denoise(stack[0], 100, engine="numpy")
    assert not np.array_equal(by_itself, written[0])


@pytest.mark.slow
def test_float_output(noisy_png: Path, tmp_path: Path) -> None:
    assert denoise(noisy_png, tmp_path / "out.tif", "--float").exit_code == 0
    written = tifffile.imread(tmp_path / "out.tif")
    noisy = np.asarray(Image.open(noisy_png))
    assert written.dtype == np.float32
    assert np.array_equal(written, integrodiff.denoise(noisy, SIGMA, engine="numpy", as_float=True))


@pytest.mark.slow
def test_exact_output(noisy_png: Path, tmp_path: Path) -> None:
    noisy = np.asarray(Image.open(noisy_png))
    for name, options in (("fast.tif", []), ("exact.tif", ["--exact"])):
        result = denoise(noisy_png, tmp_path / name, "--float", "--engine", "auto", *options)
        assert result.exit_code == 0
        expected = integrodiff.denoise(noisy, SIGMA, as_float=True, exact=bool(options))
        assert np.array_equal(tifffile.imread(tmp_path / name), expected)


def test_model_file_and_data_range(tmp_path: Path) -> None:
    integrodiff.save_model(integrodiff.load_model("pm"), tmp_path / "mine.json")
    tifffile.imwrite(tmp_path / "in.tif", noisy_image(clean_image(), "float64"))
    result = denoise(
        tmp_path / "in.tif",
        tmp_path / "o.tif",
        "--model",
        tmp_path / "mine.json",
        "--data-range",
        255,
    )
    assert result.exit_code == 0, result.output
    assert "mine.json at sigma 20" in result.stderr
    assert tifffile.imread(tmp_path / "o.tif").dtype == np.float64


@pytest.mark.slow
def test_quiet_and_notes(noisy_png: Path, tmp_path: Path) -> None:
    assert denoise(noisy_png, tmp_path / "a.png", "--quiet").output == ""
    Image.open(noisy_png).quantize(8).save(tmp_path / "palette.png")
    result = denoise(tmp_path / "palette.png", tmp_path / "b.png", "-q")
    assert (
        result.stderr
        == f"note: {tmp_path / 'palette.png'}: the palette was expanded to RGB colours\n"
    )


def test_sigma_zero_copies(noisy_png: Path, tmp_path: Path) -> None:
    assert denoise(noisy_png, tmp_path / "copy.png", sigma=0).exit_code == 0
    copy = np.asarray(Image.open(tmp_path / "copy.png"))
    assert np.array_equal(copy, np.asarray(Image.open(noisy_png)))


@pytest.mark.slow
def test_unusual_noise_level_warns_once(tmp_path: Path) -> None:
    tifffile.imwrite(tmp_path / "in.tif", values(3, HEIGHT, WIDTH), photometric="minisblack")
    options = ("--quiet", "--data-range", 255)
    result = denoise(tmp_path / "in.tif", tmp_path / "out.tif", *options, sigma=500)
    assert result.exit_code == 0
    assert result.stderr.startswith("warning: the noise level, 500 on the scale [0, 255]")
    assert "--data-range" in result.stderr
    assert result.stderr.count("\n") == 1


@pytest.mark.slow
def test_strange_names_are_shown_safely(tmp_path: Path) -> None:
    source = tmp_path / "a[bold]\x1b[31mb.png"
    Image.fromarray(noisy_image(clean_image())).save(source)
    result = denoise(source, tmp_path / "[red]out.png")
    assert result.exit_code == 0
    assert "a[bold]\\x1b[31mb.png -> " in result.stderr
    assert "[red]out.png" in result.stderr


@pytest.mark.slow
def test_progress_on_a_terminal(noisy_png: Path, tmp_path: Path) -> None:
    source = noisy_png.rename(tmp_path / "noisy[bold].png")
    result = run(
        *("denoise", source, tmp_path / "out.png", "--sigma", SIGMA, "--engine", "numpy"),
        env={"FORCE_COLOR": "1", "TERM": "xterm"},
    )
    assert result.exit_code == 0
    bar = result.stderr.split(" -> ")[0]
    assert "100%" in bar
    assert "noisy[bold].png" in bar.rsplit("100%", 1)[0]


# ---- refusals ----

USAGE: list[tuple[list[str], str]] = [
    (["--sigma", "-1"], "sigma must not be negative"),
    (["--sigma", "nan"], "sigma must be finite"),
    (["--sigma", "inf"], "sigma must be finite"),
    (["--sigma", "many"], "--sigma"),
    (["--sigma", "5", "--model", "best"], "unknown model 'best': expected one of pm, eed"),
    (["--sigma", "5", "--engine", "abacus"], "unknown engine 'abacus': expected one of 'auto'"),
    (["--sigma", "5", "--data-range", "0"], "--data-range must be positive"),
    (["--sigma", "5", "--colour"], "--colour"),
]


@pytest.mark.slow
@pytest.mark.parametrize(("options", "message"), USAGE)
def test_wrong_usage(noisy_png: Path, tmp_path: Path, options: list[str], message: str) -> None:
    before = listing(tmp_path)
    result = run("denoise", noisy_png, tmp_path / "out.png", *options)
    assert result.exit_code == 2
    assert message in result.stderr
    assert "Traceback" not in result.output
    assert listing(tmp_path) == before


@pytest.mark.slow
def test_floating_point_needs_no_range(tmp_path: Path) -> None:
    tifffile.imwrite(tmp_path / "in.tif", noisy_image(clean_image(), "uint8").astype(np.float32))
    result = denoise(tmp_path / "in.tif", tmp_path / "out.tif")
    assert result.exit_code == 0
    assert "warning" not in result.stderr


@pytest.mark.slow
def test_unavailable_engine(
    noisy_png: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(TorchEngine, "unavailable", lambda self: "it is on holiday")
    result = run("denoise", noisy_png, tmp_path / "o.png", "--sigma", 5, "--engine", "torch")
    assert result.exit_code == 2
    assert "the engine 'torch' cannot run here: it is on holiday" in result.stderr
    assert "no: it is on holiday" in run("info").stdout


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("missing.png", None, "there is no such file"),
        ("empty.png", b"", "is empty"),
        ("cut.png", b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", bytes(13)), "damaged or incomplete"),
        ("text.tif", b"hello", "not a PNG, JPEG, TIFF"),
    ],
)
def test_unreadable_image(tmp_path: Path, name: str, content: bytes | None, message: str) -> None:
    if content is not None:
        (tmp_path / name).write_bytes(content)
    before = listing(tmp_path)
    result = denoise(tmp_path / name, tmp_path / "out.png")
    assert result.exit_code == 3
    assert result.stderr.startswith(f"error: {tmp_path / name}: ")
    assert message in result.stderr
    assert listing(tmp_path) == before


@pytest.mark.slow
def test_nan_is_no_data(tmp_path: Path) -> None:
    image = clean_image().astype(np.float32) / 255
    image[3, 4] = np.nan
    tifffile.imwrite(tmp_path / "in.tif", image)
    result = run(
        *("denoise", tmp_path / "in.tif", tmp_path / "out.tif"),
        *("--sigma", 0.1, "--engine", "numpy"),
    )
    assert result.exit_code == 0, result.stderr
    assert "0.21 % of the pixels are invalid: NaN or infinite" in " ".join(result.stderr.split())
    found = tifffile.imread(tmp_path / "out.tif")
    np.testing.assert_array_equal(np.isnan(found), np.isnan(image))


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (None, "No such file"),
        ("{}", "not a model file"),
        ("not json", "not valid JSON"),
        ('{"a": ' + "[" * 100_000, "not valid JSON"),
    ],
)
def test_bad_model_file(noisy_png: Path, tmp_path: Path, content: str | None, message: str) -> None:
    if content is not None:
        (tmp_path / "m.json").write_text(content)
    result = denoise(noisy_png, tmp_path / "out.png", "--model", tmp_path / "m.json")
    assert result.exit_code == 3
    assert message in result.stderr
    assert str(tmp_path / "m.json") in result.stderr
    assert not (tmp_path / "out.png").exists()


@pytest.mark.slow
def test_existing_output_is_kept_unless_asked(noisy_png: Path, tmp_path: Path) -> None:
    target = tmp_path / "out.png"
    target.write_bytes(b"precious")
    before = listing(tmp_path)
    result = denoise(noisy_png, target)
    assert result.exit_code == 4
    assert f"{target}: exists already; give another name, or --overwrite it" in result.stderr
    assert listing(tmp_path) == before
    assert denoise(noisy_png, target, "--overwrite").exit_code == 0
    assert np.asarray(Image.open(target)).shape == (HEIGHT, WIDTH)


@pytest.mark.parametrize("link", ["same", "dotted", "symlink", "hardlink"])
def test_input_is_never_overwritten(noisy_png: Path, tmp_path: Path, link: str) -> None:
    target = tmp_path / "other.png"
    if link == "same":
        target = noisy_png
    elif link == "dotted":
        (tmp_path / "sub").mkdir()
        target = tmp_path / "sub" / ".." / noisy_png.name
    elif link == "symlink":
        target.symlink_to(noisy_png)
    else:
        os.link(noisy_png, target)
    before = listing(tmp_path)
    result = denoise(noisy_png, target, "--overwrite")
    assert result.exit_code == 4
    assert "is the input itself" in result.stderr
    assert listing(tmp_path) == before


@pytest.mark.parametrize(
    ("name", "options", "message"),
    [
        ("out.xyz", [], "file extension '.xyz'"),
        ("no/out.png", [], "folder does not exist"),
        ("out.png", ["--float"], "float32; write TIFF"),
        ("out.jpg", ["--float"], "write TIFF"),
    ],
)
def test_unwritable_output(
    noisy_png: Path, tmp_path: Path, name: str, options: list[str], message: str
) -> None:
    before = listing(tmp_path)
    result = denoise(noisy_png, tmp_path / name, *options)
    assert result.exit_code == 4
    assert result.stderr.startswith(f"error: {tmp_path / name}: ")
    assert message in result.stderr
    assert listing(tmp_path) == before


@pytest.mark.slow
def test_output_is_checked_before_the_input_is_read(tmp_path: Path) -> None:
    (tmp_path / "broken.png").write_bytes(b"")
    (tmp_path / "taken.png").write_bytes(b"precious")
    assert denoise(tmp_path / "broken.png", tmp_path / "taken.png").exit_code == 4


def test_folder_without_permission(noisy_png: Path, tmp_path: Path) -> None:
    folder = tmp_path / "closed"
    folder.mkdir(mode=0o500)
    if os.access(folder, os.W_OK):
        pytest.skip("this user may write everywhere")
    result = denoise(noisy_png, folder / "out.png")
    assert result.exit_code == 4
    assert "may not write" in result.stderr


# ---- the ends that should not happen ----


@pytest.mark.slow
def test_unexpected_error(noisy_png: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: object, **__: object) -> None:
        raise LookupError("lost the plot")

    monkeypatch.setattr(NumpyEngine, "prepare", broken)
    before = listing(tmp_path)
    result = denoise(noisy_png, tmp_path / "out.png")
    assert result.exit_code == 1
    assert "unexpected LookupError: lost the plot" in result.stderr
    assert "INTEGRODIFF_DEBUG=1" in result.stderr
    assert "Traceback" not in result.output
    assert listing(tmp_path) == before
    monkeypatch.setenv("INTEGRODIFF_DEBUG", "1")
    result = denoise(noisy_png, tmp_path / "out.png")
    assert result.exit_code == 1
    assert "Traceback" in result.stderr


def test_out_of_memory(noisy_png: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def exhausted(*_: object, **__: object) -> None:
        raise MemoryError

    monkeypatch.setattr(NumpyEngine, "prepare", exhausted)
    result = denoise(noisy_png, tmp_path / "out.png")
    assert result.exit_code == 1
    assert "not enough memory" in result.stderr


def test_interruption(noisy_png: Path, tmp_path: Path) -> None:
    """A real signal in a process of its own, in the middle of the computation."""
    code = (
        "import os, signal; from integrodiff.engines.numpy import NumpyEngine; "
        "from integrodiff.cli import main; "
        "NumpyEngine.prepare = lambda *_, **__: os.kill(os.getpid(), signal.SIGINT); "
        "signal.signal(signal.SIGINT, signal.default_int_handler); main()"
    )
    words = [
        "denoise",
        str(noisy_png),
        str(tmp_path / "o.png"),
        "--sigma",
        "9",
        "--engine",
        "numpy",
    ]
    before = listing(tmp_path)
    done = subprocess.run([sys.executable, "-c", code, *words], capture_output=True, text=True)
    assert (done.returncode, done.stdout, done.stderr) == (130, "", "interrupted\n")
    assert listing(tmp_path) == before
