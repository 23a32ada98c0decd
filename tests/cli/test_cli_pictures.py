"""``integrodiff compare`` and ``integrodiff explain``: pictures, numbers, and files left alone."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tifffile
from cases import FEW_SCALES, MODELS
from command_line import run
from numpy.typing import NDArray
from PIL import Image

from before_and_after import write_dicom
from integrodiff import load_model, save_model
from integrodiff.models import CompactDiffusion, PowerLaws
from integrodiff.stages import evolve
from integrodiff.viz.comparison import busiest_region, compared, comparison_sheet, quality
from integrodiff.viz.explanation import explain
from integrodiff.viz.sheet import Tile, sheet
from integrodiff.viz.view import INVALID, View

pytestmark = pytest.mark.slow

TWO_ORDERS = CompactDiffusion(
    tau=0.05,
    steps=3,
    law=PowerLaws(
        strengths=(1.0, 0.3),
        exponents=(0.5, 0.5),
        decays=(0.1, 0.1),
        contrasts=(1.0, 1.0),
        contrast_exponents=(1.0, 1.0),
    ),
    scales=FEW_SCALES,
)


def clean_image(*channels: int) -> NDArray[np.float64]:
    y, x = np.mgrid[:60, :80]
    image = 60.0 + x + 90 * ((y - 40) ** 2 + (x - 55) ** 2 < 150)
    return image if not channels else np.stack([image, 0.8 * image, image[::-1]], axis=-1)


@pytest.fixture
def files(tmp_path: Path) -> dict[str, Path]:
    rng = np.random.default_rng(0)
    images = {"clean": clean_image(), "noisy": clean_image() + rng.normal(0, 15, (60, 80))}
    images["denoised"] = images["clean"] + rng.normal(0, 4, (60, 80))
    paths = {}
    for name, image in images.items():
        paths[name] = tmp_path / f"{name}.png"
        Image.fromarray(np.rint(image.clip(0, 255)).astype(np.uint8)).save(paths[name])
    return paths


def listing(folder: Path) -> dict[str, bytes]:
    return {str(path): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


# ---- compare ----


def test_comparison_is_written_and_measured(files: dict[str, Path], tmp_path: Path) -> None:
    target = tmp_path / "sheet.png"
    result = run(
        *("compare", files["noisy"], files["denoised"]),
        *("--clean", files["clean"], "--output", target),
    )
    assert result.exit_code == 0, result.output
    picture = np.asarray(Image.open(target))
    assert picture.ndim == 3
    clean, noisy, denoised = (
        np.asarray(Image.open(files[name])) for name in ("clean", "noisy", "denoised")
    )
    for image in (noisy, denoised):
        error = np.mean((image.astype(float) - clean) ** 2)
        assert f"{10 * np.log10(255**2 / error):.2f}" in result.stdout
    assert result.stdout.count("noisy.png") == 1
    without = run("compare", files["noisy"], files["denoised"], "--output", tmp_path / "b.png")
    assert without.exit_code == 0
    assert without.stdout == ""
    # Without the clean image there is one panel less.
    assert np.asarray(Image.open(tmp_path / "b.png")).shape[1] < 0.8 * picture.shape[1]


def test_colour_and_float_images(tmp_path: Path) -> None:
    image = clean_image(3).astype(np.float32) / 255
    tifffile.imwrite(tmp_path / "a.tif", image, photometric="rgb")
    tifffile.imwrite(tmp_path / "b.tif", 0.9 * image, photometric="rgb")
    result = run(
        *("compare", tmp_path / "a.tif", tmp_path / "b.tif", "--output", tmp_path / "c.png"),
        *("--zoom", 5, 10, 30),
    )
    assert result.exit_code == 0, result.output


def test_pages(tmp_path: Path, files: dict[str, Path]) -> None:
    page = np.asarray(Image.open(files["noisy"]))
    tifffile.imwrite(tmp_path / "s.tif", np.stack([page, page]), photometric="minisblack")
    words = ("compare", tmp_path / "s.tif", tmp_path / "s.tif", "--output", tmp_path / "c.png")
    assert run(*words, "--page", 2).exit_code == 0
    result = run(*words, "--page", 3, "--overwrite")
    assert result.exit_code == 2
    assert "page 3 does not exist: there are pages 1 to 2" in result.stderr


@pytest.mark.parametrize("command", ["compare", "explain"])
@pytest.mark.parametrize(
    ("target", "overwrite", "message"),
    [
        ("noisy.png", True, "is the input itself"),
        ("taken.png", False, "exists already"),
        ("no/such/folder.png", False, "folder does not exist"),
        ("picture.txt", False, ".png"),
    ],
)
def test_outputs_that_are_refused(
    command: str,
    target: str,
    overwrite: bool,
    message: str,
    files: dict[str, Path],
    tmp_path: Path,
) -> None:
    (tmp_path / "taken.png").write_bytes(b"precious")
    before = listing(tmp_path)
    inputs = [files["noisy"]] + ([files["denoised"]] if command == "compare" else [])
    more = ["--overwrite"] if overwrite else []
    result = run(command, *inputs, "--output", tmp_path / target, *more)
    assert result.exit_code == 4
    assert message in result.stderr
    assert listing(tmp_path) == before


def test_invalid_pixels_are_grey_and_do_not_count(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    clean = np.broadcast_to(np.linspace(50, 200, 80), (60, 80)).astype(np.float32)
    noisy = clean + rng.normal(0, 20, clean.shape).astype(np.float32)
    names = [tmp_path / f"{name}.tif" for name in ("before", "after", "clean")]
    output = ("--clean", names[2], "--data-range", 255, "--overwrite")
    shown, tables = [], []
    for junk in (np.nan, np.inf):
        for name, part in zip(names, (1, 0.5, 0), strict=True):
            holes = part * noisy + (1 - part) * clean
            holes[10:30, 5:20] = junk
            tifffile.imwrite(name, holes)
        result = run("compare", names[0], names[1], *output, "--output", tmp_path / "c.png")
        assert result.exit_code == 0, result.stderr
        assert "0.062 of the pixels are invalid" in result.stderr
        shown.append(np.asarray(Image.open(tmp_path / "c.png")))
        tables.append(result.stdout)
    np.testing.assert_array_equal(shown[0], shown[1])
    assert tables[0] == tables[1]
    valid = np.ones(clean.shape, np.bool_)
    valid[10:30, 5:20] = False
    error = np.mean((noisy - clean)[valid].astype(np.float64) ** 2)
    assert f"{10 * np.log10(255**2 / error):.2f}" in tables[0]


def greyed_out(picture: NDArray[Any]) -> float:
    return float((picture == INVALID).all(axis=-1).mean())


def test_masks_by_options(tmp_path: Path, files: dict[str, Path]) -> None:
    valid = np.zeros((60, 80), np.uint8)
    valid[10:, :60] = 255
    Image.fromarray(valid).save(tmp_path / "valid.png")
    words = ("compare", files["noisy"], files["denoised"], "--clean", files["clean"])
    output = ("--output", tmp_path / "c.png", "--overwrite")
    result = run(*words, *output, "--mask", tmp_path / "valid.png")
    assert result.exit_code == 0, result.stderr
    clean, noisy = (np.asarray(Image.open(files[name]), float) for name in ("clean", "noisy"))
    error = np.mean((noisy - clean)[valid > 0] ** 2)
    assert f"{10 * np.log10(255**2 / error):.2f}" in result.stdout
    assert 0.1 < greyed_out(np.asarray(Image.open(tmp_path / "c.png"))) < 0.5
    result = run(*words, *output, "--nodata", int(clean[20, 20]))
    assert result.exit_code == 0
    assert "pixels are invalid" in result.stderr
    Image.fromarray(valid[1:]).save(tmp_path / "small.png")
    result = run(*words, *output, "--mask", tmp_path / "small.png")
    assert (result.exit_code, "the mask has 80 x 59 pixels" in result.stderr) == (2, True)


def test_orientation_and_window(tmp_path: Path) -> None:
    exif = Image.Exif()
    exif[0x112] = 6
    image = clean_image().astype(np.uint8)
    Image.fromarray(image).save(tmp_path / "a.jpg", exif=exif)
    Image.fromarray(np.rot90(image, -1)).save(tmp_path / "b.png")
    words = ("compare", tmp_path / "a.jpg", tmp_path / "b.png", "--output", tmp_path / "c.png")
    result = run(*words, "--window", 0, 1000, "--zoom", 0, 0, 8)
    assert result.exit_code == 0, result.stderr
    picture = np.asarray(Image.open(tmp_path / "c.png").convert("L"))
    panel = picture[68 : 68 + 640, 28 : 28 + 480]  # eight times as large, below its label
    assert 10 < np.median(panel) < 70
    small = np.asarray(Image.fromarray(panel).resize((60, 80))).astype(float)
    beyond = slice(12, None), slice(12, None)  # the frame around the square
    pair = small[beyond].ravel(), np.rot90(image, -1)[beyond].ravel()
    assert np.corrcoef(*pair)[0, 1] > 0.9


def test_planes_channels_and_bands(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    stack = rng.integers(0, 4000, (3, 5, 2, 40, 50)).astype(np.uint16)
    tifffile.imwrite(tmp_path / "s.tif", stack, imagej=True, metadata={"axes": "TZCYX"})
    words = ("compare", tmp_path / "s.tif", tmp_path / "s.tif", "--overwrite")
    output = ("--output", tmp_path / "c.png")
    result = run(*words, *output, "--at", "T=2,c=2")
    assert result.exit_code == 0, result.stderr
    assert "drawn: T=2 of 3, Z=3 of 5, C=2 of 2" in result.stderr
    scene = rng.integers(0, 4000, (40, 50, 4)).astype(np.uint16)
    tifffile.imwrite(tmp_path / "b.tif", scene, photometric="minisblack", planarconfig="contig")
    for bands, drawn in ((None, "band 1 of 4"), ("2", "band 2 of 4"), ("4,3,2", "bands 4, 3, 2")):
        more = () if bands is None else ("--bands", bands)
        result = run("compare", tmp_path / "b.tif", tmp_path / "b.tif", *output, *more, words[-1])
        assert result.exit_code == 0, result.stderr
        assert f"drawn: {drawn}" in result.stderr


def write_scan(path: Path, values: NDArray[Any]) -> None:
    """Write Hounsfield units as a CT slice, or scaled values as NIfTI."""
    if path.suffix == ".nii":
        nibabel = pytest.importorskip("nibabel")
        image = nibabel.Nifti1Image(np.rint((values + 1024) / 2).astype(np.int16).T, np.eye(4))
        image.header.set_slope_inter(2, -1024)
        nibabel.save(image, path)
    else:
        pydicom = pytest.importorskip("pydicom")
        write_dicom(path, np.rint(values + 1024).astype(np.int16))
        dataset = pydicom.dcmread(path)
        dataset.RescaleIntercept = -1024
        dataset.save_as(path)


@pytest.mark.parametrize(("suffix", "unit"), [(".dcm", "HU"), (".nii", "grey levels")])
def test_values_are_those_of_viewers(suffix: str, unit: str, tmp_path: Path) -> None:
    names = [tmp_path / f"{name}{suffix}" for name in ("a", "b")]
    tissue = np.where(np.arange(60) < 30, 40.0, 100.0) * np.ones((60, 1))
    for name, shift in zip(names, (0, 10), strict=True):
        write_scan(name, tissue + shift)
    words = ("compare", *names, "--clean", names[0], "--window", -160, 240, "--zoom", 0, 0, 9)
    result = run(*words, "--output", tmp_path / "c.png")
    assert result.exit_code == 0, result.stderr
    assert f"for a range of 60 {unit}" in result.stderr
    picture = np.asarray(Image.open(tmp_path / "c.png").convert("L"))
    left, right = picture[400, 28 + 250], picture[400, 28 + 400]
    assert (left, right) == pytest.approx((200 / 400 * 255, 260 / 400 * 255), abs=1)
    tifffile.imwrite(tmp_path / "b.tif", tissue.astype(np.int16))
    result = run("compare", names[0], tmp_path / "b.tif", "--output", tmp_path / "d.png")
    assert (result.exit_code, "the stored ones" in result.stderr) == (0, True)


def test_a_window_of_a_file_is_taken(tmp_path: Path) -> None:
    pydicom = pytest.importorskip("pydicom")
    name, plain = tmp_path / "a.dcm", tmp_path / "plain.dcm"
    values = np.where(np.arange(60) < 30, 40.0, 100.0) * np.ones((60, 1))
    write_scan(plain, values)
    dataset = pydicom.dcmread(plain)
    picture = ("--zoom", 0, 0, 9, "--overwrite", "--output", tmp_path / "c.png")

    def drawn(file: Path, *more: object) -> tuple[list[int], str]:
        result = run("compare", file, file, *picture, *more)
        assert result.exit_code == 0, result.stderr
        found = np.asarray(Image.open(tmp_path / "c.png").convert("L"))
        return [int(found[400, 28 + x]) for x in (250, 400)], result.stderr

    # Of several windows it is the first. A linear function as DICOM defines it is half a value off.
    for function, centre, width in ((None, 40.5, 401), ("LINEAR_EXACT", 40, 400)):
        dataset.WindowCenter, dataset.WindowWidth = [centre, 300], [width, 1500]
        if function:
            dataset.VOILUTFunction = function
        dataset.save_as(name)
        grey, words = drawn(name)
        assert grey == pytest.approx([200 / 400 * 255, 260 / 400 * 255], abs=1)
        assert "window -160 to 240 HU, as the file proposes" in words
    grey, words = drawn(name, "--window", 40, 100)
    assert grey == [0, 255]
    assert "proposes" not in words
    for ends in (("", ""), (40, 0)):
        dataset.WindowCenter, dataset.WindowWidth = ends
        dataset.save_as(name)
        grey, words = drawn(name)
        assert grey == drawn(plain)[0]
        assert "proposes" not in words


def test_other_sizes_and_bad_files(files: dict[str, Path], tmp_path: Path) -> None:
    Image.fromarray(np.zeros((9, 9), np.uint8)).save(tmp_path / "small.png")
    output = ("--output", tmp_path / "c.png")
    result = run("compare", files["noisy"], tmp_path / "small.png", *output)
    assert result.exit_code == 3
    assert "has 9 x 9 pixels" in result.stderr
    tifffile.imwrite(tmp_path / "nan.tif", np.full((60, 80), np.nan, np.float32))
    result = run("compare", tmp_path / "nan.tif", files["noisy"], *output)
    assert (result.exit_code, "no valid pixel" in result.stderr) == (3, True)
    result = run("compare", files["noisy"], files["denoised"], *output, "--zoom", 50, 0, 20)
    assert result.exit_code == 2
    assert "50 0 20, is not inside the image of 60 rows and 80 columns" in result.stderr
    assert not (tmp_path / "c.png").exists()


def test_the_part_with_structure_is_enlarged() -> None:
    region = busiest_region(clean_image())
    assert region.size == 48
    assert region.top + 48 >= 50
    assert region.left <= 50 <= region.left + 48
    for shape in [(1, 1), (1, 9), (9, 1), (3, 200)]:
        region = busiest_region(np.zeros(shape))
        assert region.of(np.zeros(shape)).shape == (region.size, region.size)


def test_removed_noise_is_drawn_around_grey() -> None:
    before = clean_image()
    same = View(pixels=before)
    picture = comparison_sheet(compared([same, same], zoom=(5, 5, 20)))
    assert (np.abs(picture.astype(int) - 127.5) < 1).all(axis=-1).mean() > 0.1


def test_quality() -> None:
    clean = clean_image()
    assert quality(clean, clean, 255).psnr == float("inf")
    assert quality(clean, clean, 255).ssim == pytest.approx(1)
    assert quality(clean + 25.5, clean, 255).psnr == pytest.approx(20)
    small = np.arange(12.0).reshape(3, 4)
    assert quality(small, small, 255).ssim == pytest.approx(1)


def test_sheet_is_grey_or_coloured_and_labels_fit() -> None:
    grey = Tile(np.full((10, 60), 100, np.uint8), "a very long label that cannot fit", "99.99 dB")
    assert sheet([[grey, grey], [grey]]).ndim == 2
    colour = Tile(np.zeros((20, 30, 3), np.uint8))
    picture = sheet([[grey, colour]])
    assert picture.shape[2] == 3
    # A white margin before the second tile, which the label of the first one leaves free.
    start = int((picture == 0).all(axis=(-1)).sum(axis=0).argmax())
    assert (picture[:, start - 24 : start - 4] == 255).all()


# ---- explain ----


def require_matplotlib() -> None:
    pytest.importorskip("matplotlib")


@pytest.mark.long  # a command of the README draws one in make test
@pytest.mark.parametrize("model", ["pm", "iad"])
def test_explanation_is_written(model: str, files: dict[str, Path], tmp_path: Path) -> None:
    require_matplotlib()
    target = tmp_path / "why.png"
    result = run("explain", files["noisy"], "--output", target, "--model", model)
    assert result.exit_code == 0, result.output
    assert f"{model} at noise level" in result.stderr
    assert "(estimated)" in result.stderr
    with Image.open(target) as picture:
        assert min(picture.size) > 1000


@pytest.mark.slow
def test_explanation_of_colours_and_of_a_model_file(tmp_path: Path) -> None:
    require_matplotlib()
    noisy = clean_image(3) + np.random.default_rng(0).normal(0, 20, (60, 80, 3))
    Image.fromarray(noisy.clip(0, 255).astype(np.uint8)).save(tmp_path / "in.png")
    save_model(TWO_ORDERS, tmp_path / "mine.json")
    result = run(
        *("explain", tmp_path / "in.png", "--output", tmp_path / "why.png", "--sigma", 20),
        *("--model", tmp_path / "mine.json", "--step", 1),
    )
    assert result.exit_code == 0, result.output
    # The mean of three channels.
    level = f"{20 / np.sqrt(3):.4g} grey levels of the luminance (20 of its samples)"
    assert f"at noise level {level}\n" in result.stderr


@pytest.mark.long
def test_explanation_of_a_masked_plane(tmp_path: Path) -> None:
    require_matplotlib()
    stack = np.stack([clean_image()] * 3) + np.random.default_rng(0).normal(0, 15, (3, 60, 80))
    stack[:, :10] = -9999
    how: dict[str, Any] = {"photometric": "minisblack", "metadata": {"axes": "ZYX"}}
    tifffile.imwrite(tmp_path / "s.tif", stack.astype(np.float32), **how)
    words = ("explain", tmp_path / "s.tif", "--output", tmp_path / "why.png", "--model", "pm")
    result = run(*words, "--slices", "--at", "Z=3", "--nodata", -9999, "--window", 0, 255)
    assert result.exit_code == 0, result.stderr
    assert "Z=3 of 3: pm at noise level 1" in result.stderr
    picture = np.asarray(Image.open(tmp_path / "why.png").convert("RGB"))
    assert greyed_out(picture) > 0.02


@pytest.mark.parametrize(
    ("options", "code", "message"),
    [
        (["--step", "10000"], 2, "step must be from 0 to"),
        (["--sigma", "0"], 2, "nothing is changed"),
        (["--sigma", "-1"], 2, "sigma must not be negative"),
        (["--model", "best"], 2, "unknown model"),
        (["--engine", "abacus"], 2, "unknown engine"),
        (["--page", "2"], 2, "page 2 does not exist"),
        (["--at", "Z=1"], 2, "there is no one axis 'Z'"),
        (["--at", "12"], 2, "--at must name axes"),
        (["--bands", "1,2"], 2, "--bands must be one number"),
        (["--window", "200", "100"], 2, "the lower one first"),
        (["--nodata", "black"], 2, "--nodata must be a number"),
    ],
)
def test_explain_refuses(
    options: list[str], code: int, message: str, files: dict[str, Path], tmp_path: Path
) -> None:
    require_matplotlib()
    result = run("explain", files["noisy"], "--output", tmp_path / "why.png", *options)
    assert result.exit_code == code
    assert message in result.stderr
    assert not (tmp_path / "why.png").exists()


def test_explain_without_matplotlib(
    files: dict[str, Path], tmp_path: Path, without_package: Callable[[str], None]
) -> None:
    without_package("matplotlib")
    result = run("explain", files["noisy"], "--output", tmp_path / "why.png")
    assert result.exit_code == 2
    assert "[plot]" in result.stderr


@pytest.mark.parametrize("model", [*MODELS.values(), TWO_ORDERS])
def test_explanation_agrees_with_the_process(model: Any) -> None:
    image = clean_image()[None, :20, 40:70] + np.random.default_rng(0).normal(0, 20, (1, 20, 30))
    found = explain(image, 20.0, model, step=1, engine="numpy")
    np.testing.assert_allclose(found.images[-1], evolve(image, model.evolution(20.0))[0])
    assert len(found.images) == model.evolution(20.0).steps + 1
    assert found.removed[0] == 0
    for item in found.diffusivities:
        assert item.across.min() >= -1e-12
        assert item.along.max() <= 1 + 1e-12
        assert (item.across <= item.along + 1e-12).all()


def test_structure_of_an_edge() -> None:
    """A vertical edge: steep in its middle, one direction, and nothing flows across it."""
    image = np.where(np.arange(40) < 20, 50.0, 200.0) * np.ones((1, 30, 1))
    found = explain(image, 20.0, load_model("iad"), step=0, engine="numpy")
    row, column = 15, 20
    assert found.structure.strength.argmax(axis=1)[row] == column
    assert found.structure.coherence[row, column] == pytest.approx(1)
    assert found.structure.orientation[row, column] == pytest.approx(np.pi / 2)
    finest = found.diffusivities[0]
    assert finest.across[row, column] < 1e-3
    assert finest.along[row, column] == pytest.approx(1)
    flipped = explain(image.swapaxes(1, 2), 20.0, load_model("iad"), step=0, engine="numpy")
    angle = flipped.structure.orientation[column, row]
    assert min(angle, np.pi - angle) == pytest.approx(0, abs=1e-9)


def test_spacing_needs_a_point(files: dict[str, Path], tmp_path: Path) -> None:
    words = (files["noisy"], files["denoised"], "--spacing", "3,1,1")
    result = run("compare", *words, "--output", tmp_path / "c.png")
    assert result.exit_code == 2
    assert "--spacing is for three planes of a volume" in result.stderr
    assert not (tmp_path / "c.png").exists()


@pytest.mark.slow
def test_a_window_of_a_file_is_not_that_of_stabilised_counts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pydicom = pytest.importorskip("pydicom")
    pytest.importorskip("matplotlib")
    from integrodiff.viz import explanation_figure

    name, draw, windows = tmp_path / "a.dcm", explanation_figure.draw, []
    write_dicom(name, np.random.default_rng(0).poisson(400.0, (60, 60)).astype(np.int16))
    dataset = pydicom.dcmread(name)
    dataset.WindowCenter, dataset.WindowWidth = 1000, 2000
    dataset.save_as(name)

    def recorded(*given: Any, **how: Any) -> Any:
        windows.append(how["window"])
        return draw(*given, **how)

    monkeypatch.setattr(explanation_figure, "draw", recorded)
    for noise, window in (("poisson", None), ("gaussian", (0.0, 1999.0))):
        words = ("--noise", noise, "--model", "pm", "--output", tmp_path / f"{noise}.png")
        result = run("explain", name, *words)
        assert result.exit_code == 0, result.stderr
        assert windows.pop() == (window and pytest.approx(window))
        assert ("as the file proposes" in result.stderr) == (window is not None)
