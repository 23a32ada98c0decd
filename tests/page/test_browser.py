"""The page in Chromium, driven as a person would."""

from __future__ import annotations

import shlex
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tifffile
from command_line import run
from numpy.typing import NDArray
from PIL import Image

from integrodiff import denoise

Drive = Callable[..., Any]

pytestmark = pytest.mark.slow


def noisy(shape: tuple[int, ...], level: float = 20.0) -> NDArray[np.float64]:
    """Return waves on the scale [0, 255] with noise."""
    y, x = np.mgrid[: shape[0], : shape[1]]
    image = 120 + 60 * np.sin(x / 9 + y / 23) + 40 * (x > y)
    if len(shape) == 3:
        image = image[..., None] * np.array([1, 0.8, 0.6])
    return np.asarray(image + np.random.default_rng(5).normal(0, level, shape))


def in_bytes(image: NDArray[np.float64]) -> NDArray[np.uint8]:
    return np.clip(np.rint(image), 0, 255).astype(np.uint8)


def check(seen: dict[str, Any]) -> None:
    """No errors, and not a single request to anywhere else."""
    assert seen["errors"] == []
    assert seen["elsewhere"] == []


def by_command(seen: dict[str, Any], folder: Path, read: Callable[[Path], Any]) -> NDArray[Any]:
    """Run the command that the page shows, in the folder of the image."""
    words = shlex.split(seen["command"])
    assert words[0] == "integrodiff"
    result = folder / words[3]
    arguments = [words[1], str(folder / words[2]), str(result), *words[4:]]
    done = run(*arguments)
    assert done.exit_code == 0, done.output
    return np.asarray(read(result))


def as_shown_in_python(seen: dict[str, Any], folder: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Run the Python code that the page shows, and return its result."""
    monkeypatch.chdir(folder)
    names: dict[str, Any] = {}
    exec(seen["python"], names)  # noqa: S102
    return np.asarray(names["clean"])


def read_png(path: Path) -> NDArray[Any]:
    return np.asarray(Image.open(path))


def same_but_for_rounding(one: NDArray[Any], other: NDArray[Any]) -> None:
    """Check that integers differ by one at most, where a value is close to a half."""
    assert one.dtype == other.dtype
    difference = np.abs(one.astype(np.int64) - other.astype(np.int64))
    assert difference.max() <= 1
    assert np.mean(difference > 0) < 2e-3


def test_png_in_colour(drive: Drive, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    image = in_bytes(noisy((150, 170, 3)))
    Image.fromarray(image).save(tmp_path / "my photo.png")
    target = tmp_path / "saved.png"
    seen = drive("denoise", tmp_path / "my photo.png", target)
    check(seen)
    assert seen["isolated"]
    assert "170 × 150 pixels, colour, uint8" in seen["about"]
    assert seen["name"] == "my photo-denoised.png"
    assert "--sigma" not in seen["command"]
    saved = read_png(target)
    same_but_for_rounding(saved, by_command(seen, tmp_path, read_png))
    same_but_for_rounding(saved, as_shown_in_python(seen, tmp_path, monkeypatch))


def test_jpeg_that_is_turned(drive: Drive, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    exif = Image.Exif()
    exif[0x112] = 6
    image = Image.fromarray(in_bytes(noisy((150, 170, 3))))
    image.save(tmp_path / "photo.jpg", quality=92, subsampling=0, exif=exif)
    target = tmp_path / "saved.png"
    seen = drive("denoise", tmp_path / "photo.jpg", target)
    check(seen)
    assert "150 × 170 pixels, colour, uint8" in seen["about"]
    same_but_for_rounding(read_png(target), as_shown_in_python(seen, tmp_path, monkeypatch))


def test_sixteen_bit_tiff_with_another_model_and_level(drive: Drive, tmp_path: Path) -> None:
    image = np.clip(np.rint(noisy((120, 140)) * 100), 0, 65535).astype(np.uint16)
    tifffile.imwrite(tmp_path / "scan.tif", image)
    target = tmp_path / "saved.tif"
    seen = drive("denoise", tmp_path / "scan.tif", target, "iad-fast", "ArrowRight", "40")
    check(seen)
    words = shlex.split(seen["command"])
    assert words[words.index("--model") + 1] == "iad-fast"
    level = float(words[words.index("--sigma") + 1])
    assert level == float(seen["sigma"])
    assert level > 2000
    saved = tifffile.imread(target)
    expected = by_command(seen, tmp_path, tifffile.imread)
    same = denoise(image, level, model="iad-fast", exact=True)
    np.testing.assert_array_equal(expected, same)
    assert saved.dtype == np.uint16
    # Within a hundredth of one of 255 grey levels.
    assert np.abs(saved.astype(np.float64) - expected).max() <= 0.01 * 65535 / 255 + 1


@pytest.mark.parametrize("isolated", [True, False])
def test_float_tiff_with_and_without_shared_memory(
    drive: Drive, tmp_path: Path, isolated: bool
) -> None:
    image = noisy((110, 131)).astype(np.float32)
    tifffile.imwrite(tmp_path / "float.tif", image)
    target = tmp_path / "saved.tif"
    options = '{"serviceWorkers": "block"}'
    seen = drive(
        *("denoise", tmp_path / "float.tif", target, "", "", "0", options), isolated=isolated
    )
    check(seen)
    assert seen["isolated"] is isolated
    assert ("one worker" in seen["status"]) is not isolated
    saved = tifffile.imread(target)
    assert saved.dtype == np.float32
    assert np.abs(saved - by_command(seen, tmp_path, tifffile.imread)).max() < 0.01
    expected = denoise(image, exact=True, engine="native")
    assert np.abs(saved - expected).max() < 0.01


@pytest.mark.long
def test_noise_that_was_added(drive: Drive, tmp_path: Path) -> None:
    clean = in_bytes(noisy((100, 120), 0))
    Image.fromarray(clean).save(tmp_path / "clean.png")
    files = [tmp_path / name for name in ("clean.png", "clean-noisy.tif", "out.tif")]
    seen = drive("noise", *files)
    check(seen)
    assert seen["name"] == "clean-noisy.tif"
    with_noise = tifffile.imread(tmp_path / "clean-noisy.tif")
    assert with_noise.dtype == np.float32
    assert abs((with_noise - clean).std() - 30) < 1
    saved = tifffile.imread(tmp_path / "out.tif")
    assert np.abs(saved - by_command(seen, tmp_path, tifffile.imread)).max() < 0.01

    def psnr(image: NDArray[Any]) -> str:
        return f"{10 * np.log10(255**2 / np.mean((image - clean.astype(np.float64)) ** 2)):.2f}"

    assert seen["psnr"] == f"PSNR {psnr(with_noise)} dB with noise, {psnr(saved)} dB denoised"
    assert seen["atStart"].count(psnr(with_noise)) == 2


@pytest.mark.long
def test_photograph_of_24_megapixels(drive: Drive, tmp_path: Path) -> None:
    tile = in_bytes(noisy((500, 600, 3)))
    Image.fromarray(np.tile(tile, (8, 10, 1))).save(tmp_path / "large.jpg", quality=85)
    seen = drive("large", tmp_path / "large.jpg")
    check(seen)
    assert "6000 × 4000 pixels, colour, uint8" in seen["about"]
    assert "Denoised 640 × 640 pixels of it" in seen["status"]
    assert seen["button"] == "Denoise all 24 megapixels"
    assert seen["running"] == "Denoising the whole image…"
    assert seen["hidden"]
    assert "Denoised 640 × 640 pixels of it" in seen["after"]
    assert seen["command"] == "integrodiff denoise large.jpg large-denoised.png --exact"
    assert seen["outside"] == ["74,79,82,255"] * 3
    assert seen["cancelled"].startswith(
        "Cancelled. The image shown is still that of pm at noise level "
    )


@pytest.mark.long
def test_photograph_of_24_megapixels_to_its_end(drive: Drive, tmp_path: Path) -> None:
    """Every pixel of the file that is downloaded is that of the command that the page shows."""
    tile = in_bytes(noisy((500, 600, 3)))
    Image.fromarray(np.tile(tile, (8, 10, 1))).save(tmp_path / "large.jpg", quality=85)
    seen = drive("whole", tmp_path / "large.jpg", tmp_path / "saved.png", patience=1500)
    check(seen)
    assert "Denoised 640 × 640 pixels of it" in seen["first"]
    assert seen["status"] == "Saved large-denoised.png."
    saved = read_png(tmp_path / "saved.png")
    assert saved.shape == (4000, 6000, 3)
    same_but_for_rounding(saved, by_command(seen, tmp_path, read_png))


@pytest.mark.long
def test_larger_photograph_as_a_whole(drive: Drive, tmp_path: Path) -> None:
    image = in_bytes(np.tile(noisy((400, 600)), (3, 2)))
    Image.fromarray(image).save(tmp_path / "larger.jpg", quality=92)
    seen = drive("whole", tmp_path / "larger.jpg", tmp_path / "saved.png")
    check(seen)
    assert "Denoised 640 × 640 pixels of it" in seen["first"]
    assert seen["status"] == "Saved larger-denoised.png."
    assert seen["name"] == "larger-denoised.png"
    saved = read_png(tmp_path / "saved.png")
    same_but_for_rounding(saved, by_command(seen, tmp_path, read_png))


def test_files_that_cannot_be_read(drive: Drive, tmp_path: Path) -> None:
    image = in_bytes(noisy((60, 70)))
    Image.fromarray(image).save(tmp_path / "good.jpg")
    Image.fromarray(image).save(tmp_path / "good.webp")
    Image.fromarray(image).save(tmp_path / "good.png")
    data = (tmp_path / "good.png").read_bytes()
    huge = bytearray(data)
    huge[16:24] = (30000).to_bytes(4, "big") * 2
    soft = Image.fromarray(np.dstack([image, image, image, image]))
    soft.save(tmp_path / "soft.webp", lossless=True)
    soft.convert("CMYK").save(tmp_path / "inks.jpg")
    contents = {
        "broken.png": data[: len(data) // 2],
        "oversized.png": bytes(huge),
        "broken.jpg": (tmp_path / "good.jpg").read_bytes()[:30],
        "broken.webp": (tmp_path / "good.webp").read_bytes()[:60],
        "notes.txt": b"words",
    }
    for name, content in contents.items():
        (tmp_path / name).write_bytes(content)
    tifffile.imwrite(tmp_path / "stack.tif", np.stack([image, image]))
    names = [*contents, "stack.tif", "soft.webp", "inks.jpg"]
    reasons = ["ends too early", "900 megapixels", "damaged", "damaged", "neither", "several pages"]
    reasons += ["transparent in places", "neither grey nor RGB"]
    seen = drive("refused", tmp_path / "good.webp", *(tmp_path / name for name in names))
    assert seen["elsewhere"] == []
    for name, reason, message in zip(names, reasons, seen["messages"], strict=True):
        assert message.startswith(f"{name} cannot be read: "), message
        assert reason in message
    assert seen["hidden"]


def test_the_file_that_was_opened_last_is_shown(drive: Drive, tmp_path: Path) -> None:
    Image.fromarray(in_bytes(noisy((50, 61)))).save(tmp_path / "last.png")
    seen = drive("late", tmp_path / "last.png")
    assert seen["elsewhere"] == []
    assert "61 × 50 pixels, grey, uint8" in seen["about"]
    assert seen["removed"] == "last.png cannot be read: it was removed."
    assert seen["missing"].startswith("fibres.tif cannot be read: the server answers 404")


def test_a_start_that_failed_is_tried_again(drive: Drive, tmp_path: Path) -> None:
    Image.fromarray(in_bytes(noisy((50, 61)))).save(tmp_path / "image.png")
    seen = drive("restarted", tmp_path / "image.png")
    assert seen["message"] == "The kernels are missing (503)."
    assert seen["status"].startswith("Denoised in ")
    assert seen["hidden"]


def test_nothing_is_said_about_what_was_replaced(drive: Drive, tmp_path: Path) -> None:
    Image.fromarray(in_bytes(noisy((1000, 1200)))).save(tmp_path / "large.png")
    Image.fromarray(in_bytes(noisy((50, 61)))).save(tmp_path / "next.png")
    seen = drive("replaced", tmp_path / "large.png", tmp_path / "next.png")
    check(seen)
    assert "61 × 50 pixels, grey, uint8" in seen["about"]
    assert seen["status"].startswith("Denoised in ")
    assert not any("Cancelled" in text for text, _ in seen["said"]), seen["said"]
    # Nor is everything of the image before offered.
    estimating = [hidden for text, hidden in seen["said"] if text.startswith("Estimating")]
    assert estimating == [True]


def test_models_are_not_compared_at_two_levels(drive: Drive, tmp_path: Path) -> None:
    Image.fromarray(in_bytes(noisy((300, 300, 3)))).save(tmp_path / "image.png")
    seen = drive("levels", tmp_path / "image.png")
    check(seen)
    assert seen["compared"] == 0
    assert seen["status"].startswith("Denoised in ")


def test_a_newer_version_waits_until_the_page_is_closed(
    drive: Drive, built_page: Path, tmp_path: Path
) -> None:
    folder = tmp_path / "page"
    shutil.copytree(built_page, folder)
    seen = drive("upgraded", folder, folder=folder)
    check(seen)
    assert seen["installed"]
    assert "a newer version" not in seen["before"]
    assert "a newer version" in seen["after"]


@pytest.mark.long
def test_files_that_are_chosen_dropped_and_pasted(drive: Drive, tmp_path: Path) -> None:
    files = []
    for width in (61, 72, 83):
        files.append(tmp_path / f"{width}.png")
        Image.fromarray(in_bytes(noisy((50, width)))).save(files[-1])
    seen = drive("given", *files)
    check(seen)
    for about, width in zip(seen["opened"], (61, 72, 83), strict=True):
        assert f"{width} × 50 pixels, grey, uint8" in about


@pytest.mark.long
def test_every_control(drive: Drive) -> None:
    seen = drive("controls")
    check(seen)
    assert seen["focused"] == "canvas"
    assert seen["several"] is False
    assert all(seen["changes"].values()), seen["changes"]
    assert 65 <= int(seen["divider"]) <= 75
    assert seen["spoken"] == f"{seen['divider']} percent before"
    assert seen["step"] == "1 of 6"
    assert seen["why"].startswith("At column ")
    assert seen["scales"] == 8
    assert [text.split()[0] for text in seen["compared"]] == [
        *("pm", "eed", "iid", "iad", "iad-full", "iad-fast", "iad-plus", "iad-deep")
    ]
    assert all(text.endswith(" dB") for text in seen["compared"])
    assert seen["model"] == "eed"
    assert " --sigma " in seen["moved"]
    assert " --sigma " not in seen["back"]
    assert seen["copied"] == {"command": seen["back"], "python": seen["python"]}
    assert seen["unnamed"] == []


def test_without_a_network(drive: Drive) -> None:
    seen = drive("offline")
    check(seen)
    assert "400 × 400 pixels, grey, float32" in seen["about"]
    assert seen["isolated"]


@pytest.mark.long
def test_on_a_phone(drive: Drive) -> None:
    seen = drive("phone")
    check(seen)
    assert seen["start"] <= 390
    assert seen["loaded"] <= 390
    assert seen["why"] == {"told": True, "before": False, "after": True}
    assert seen["mouse"] == 0
    assert seen["targets"] == []


def test_weight(built_page: Path) -> None:
    files = [path for path in built_page.rglob("*") if path.is_file()]
    page = sum(path.stat().st_size for path in files if path.parent.name != "samples")
    assert page < 1_000_000
