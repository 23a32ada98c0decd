"""``integrodiff train``: model files, resuming, messages, exit codes, and files left alone."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from command_line import run
from PIL import Image
from typer.testing import Result

import integrodiff
from integrodiff import learning
from integrodiff.learning.recipes import RECIPES, Recipe

pytestmark = pytest.mark.slow

pytest.importorskip("torch")

SIZE = 24
SMALL = ("--count", 2, "--levels", 20, "--iterations", 1, "--device", "cpu")


@pytest.fixture(autouse=True)
def quick_models(monkeypatch: pytest.MonkeyPatch) -> None:
    """Fewer steps and scales, for speed."""

    def quick(start: Any) -> Any:
        scales = {"scales": integrodiff.ScaleGrid(count=3)} if hasattr(start, "scales") else {}
        return replace(start, steps=3, **scales)

    def recipe(full: Recipe) -> Recipe:
        return replace(full, starts=lambda level: [quick(start) for start in full.starts(level)])

    for name in ("pm", "eed", "iad"):
        monkeypatch.setitem(RECIPES, name, recipe(RECIPES[name]))


@pytest.fixture
def photographs(tmp_path: Path) -> Path:
    """A folder with discs on ramps, of different sizes."""
    folder = tmp_path / "photographs"
    folder.mkdir()
    for number in range(3):
        y, x = np.mgrid[: SIZE + 2 * number, : SIZE + 4]
        image = 50 + 2 * x + number * y + 90 * ((y - 10) ** 2 + (x - 9 - number) ** 2 < 36)
        Image.fromarray(image.astype(np.uint8)).save(folder / f"{number}.png")
    return folder


def train(model: str, target: Path, images: Path, *more: object) -> Result:
    return run("train", model, target, "--images", images, "--crop", SIZE, *SMALL, *more)


def numbers(path: Path) -> list[float]:
    """All parameters of a model file, in their order."""
    model = integrodiff.load_model(path)
    members: Any = model.models if isinstance(model, integrodiff.ByNoiseLevel) else (model,)
    values = [v for member in members for v in member.parameters().values()]
    return [v for v in values if not isinstance(v, str)]


def names(folder: Path) -> list[str]:
    return sorted(path.relative_to(folder).as_posix() for path in folder.rglob("*"))


# ---- results ----


def test_model_file_is_complete_and_usable(photographs: Path, tmp_path: Path) -> None:
    target = tmp_path / "mine.json"
    result = train("eed", target, photographs, "--levels", "30,20", "--seed", 3)
    assert result.exit_code == 0, result.output
    model = integrodiff.load_model(target)
    assert isinstance(model, integrodiff.ByNoiseLevel)
    assert list(model.levels) == [20.0, 30.0]
    origin = model.provenance
    images = learning.image_folder(photographs, SIZE, 2)
    assert origin["data_sha256"] == images.fingerprint
    expected = {"recipe": "eed", "loss": "psnr", "seed": 3, "images": 2, "phases": [16, None]}
    assert {name: origin[name] for name in expected} == expected
    assert origin["noise_levels"] == [20, 30]
    assert set(origin["versions"]) >= {"integrodiff", "python", "numpy", "torch", "device"}
    assert origin["seconds"] > 0
    assert list(origin["psnr_on_training_images"]) == ["20", "30"]
    assert not (tmp_path / "mine.json.training").exists()

    noisy = tmp_path / "noisy.png"
    rng = np.random.default_rng(0)
    Image.fromarray(rng.integers(0, 255, (20, 20), np.uint8)).save(noisy)
    words = ("denoise", noisy, tmp_path / "out.png", "--sigma", 20, "--model", target)
    assert run(*words, "--engine", "numpy").exit_code == 0


def test_messages(photographs: Path, tmp_path: Path) -> None:
    target = tmp_path / "my model.json"
    result = train("pm", target, photographs, "--levels", "20,30.5", "--phases", "1,all")
    first, *steps, took, command = result.stderr.splitlines()
    assert first.startswith("pm at sigma 20, 30.5 on 2 images (grey crops of 24 x 24 from a folder")
    assert f"in {target}.training; if it is stopped, repeat the command to continue" in first
    assert steps[0].startswith("pm, sigma 20, phase 1 of 2 (1 examples), iteration 1: ")
    assert steps[-1].startswith("pm, sigma 30.5, phase 2 of 2 (2 examples), iteration 1: ")
    assert all(" dB, " in step and " s, contrast " in step for step in steps)
    assert took.endswith(f"s; model written to {target}; use it with")
    assert command == f"integrodiff denoise noisy.png clean.png --sigma S --model '{target}'"
    origin = integrodiff.load_model(target).provenance
    for level, psnr in origin["psnr_on_training_images"].items():
        row = next(line for line in result.stdout.splitlines() if line.split()[:1] == [level])
        assert f"{psnr:.2f}" in row
        assert "contrast" in row


def test_parameters_for_all_levels(photographs: Path, tmp_path: Path) -> None:
    target = tmp_path / "iad.json"
    words = ("--count", 1, "--levels", "20,30", "--phases", "all", "--loss", "mse")
    result = train("iad", target, photographs, *words)
    assert result.exit_code == 0, result.output
    assert isinstance(integrodiff.load_model(target), integrodiff.IAD)
    assert integrodiff.load_model(target).provenance["loss"] == "mse"
    assert "iad, sigma 20, 30, start 2, phase 1 of 1 (2 examples), iteration 1: " in result.stderr
    assert result.stdout.count("lambda_0") == 1


def test_progress_on_a_terminal(photographs: Path, tmp_path: Path) -> None:
    result = run(
        *("train", "pm", tmp_path / "pm.json", "--images", photographs, "--crop", SIZE, *SMALL),
        env={"FORCE_COLOR": "1", "TERM": "xterm"},
    )
    assert result.exit_code == 0
    assert "phase 2 of 2" in result.stderr
    assert result.stderr.count("contrast") < result.stderr.count("\x1b[2K")  # written over


def test_given_work_folder_stays(photographs: Path, tmp_path: Path) -> None:
    work = tmp_path / "new" / "work"
    result = train("pm", tmp_path / "pm.json", photographs, "--work", work)
    assert result.exit_code == 0, result.output
    assert names(work) == ["pm-20.checkpoint.json", "pm-20.log.jsonl"]
    logged = [json.loads(line) for line in (work / "pm-20.log.jsonl").read_text().splitlines()]
    assert [step["phase"] for step in logged] == [0, 1]


def test_quiet_and_other_files_in_the_default_folder_stay(
    photographs: Path, tmp_path: Path
) -> None:
    work = tmp_path / "pm.json.training"
    work.mkdir()
    for name in ("pm-full-20.checkpoint.json", "notes.txt"):
        (work / name).write_text("precious")
    result = train("pm", tmp_path / "pm.json", photographs, "--quiet")
    assert (result.exit_code, result.output) == (0, "")
    assert names(work) == ["notes.txt", "pm-full-20.checkpoint.json"]


def test_bsds500_is_the_default(
    photographs: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[object] = []

    def crops(*arguments: object) -> learning.CleanImages:
        asked.append(arguments)
        return learning.image_folder(photographs, SIZE, 2)

    monkeypatch.setattr(learning, "bsds500", crops)
    for words in ((), ("--data", photographs)):
        result = run("train", "pm", tmp_path / f"{len(words)}.json", *SMALL, *words)
        assert result.exit_code == 0, result.output
    assert asked == [("train", None, 2), ("train", photographs, 2)]


# ---- stopped and started again ----


def interrupt_at(step: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Press Ctrl-C when the step of that number is shown."""
    shown: list[object] = []

    def text(plan: object, progress: object) -> str:
        shown.append(progress)
        if len(shown) == step:
            raise KeyboardInterrupt
        return "a step"

    monkeypatch.setattr("integrodiff.cli._training_messages.step_text", text)


@pytest.mark.slow
@pytest.mark.parametrize("step", [1, 3, 5])
def test_resume(
    photographs: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, step: int
) -> None:
    """At the first and the second noise level, and once the step size is at its bound."""
    words = ("--iterations", 4, "--phases", "all", "--tolerance", 1e-9, "--levels", "20,40")
    whole, parts = tmp_path / "whole.json", tmp_path / "parts.json"
    assert train("pm", whole, photographs, *words).exit_code == 0
    with monkeypatch.context() as patch:
        interrupt_at(step, patch)
        result = train("pm", parts, photographs, *words)
    assert result.exit_code == 130
    assert result.stderr.splitlines()[-1] == (
        f"interrupted; repeat the command to continue from the checkpoint in {parts}.training"
    )
    assert not parts.exists()
    result = train("pm", parts, photographs, *words)
    assert result.exit_code == 0, result.output
    assert "pm on 2 images continues from its last checkpoint" in result.stderr
    assert result.stderr.count(" iteration ") == 8 - step
    assert not Path(f"{parts}.training").exists()
    assert numbers(parts) == pytest.approx(numbers(whole), rel=1e-6)


def test_interruption_before_the_first_step(
    photographs: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("integrodiff.learning.recipes.train", interrupted)
    before = names(tmp_path)
    result = train("pm", tmp_path / "pm.json", photographs)
    assert result.exit_code == 130
    assert "interrupted before the first iteration" in result.stderr
    assert names(tmp_path) == before


@pytest.mark.parametrize("content", [None, "{}", "not json"])
def test_checkpoint_of_another_training(
    photographs: Path, tmp_path: Path, content: str | None
) -> None:
    work = tmp_path / "work"
    assert train("pm", tmp_path / "a.json", photographs, "--work", work).exit_code == 0
    checkpoint = work / "pm-20.checkpoint.json"
    if content is not None:
        checkpoint.write_text(content)
    before = checkpoint.read_bytes()
    result = train("pm", tmp_path / "b.json", photographs, "--work", work, "--seed", 5)
    assert result.exit_code == 4
    expected = "belongs to another training" if content is None else "is not a checkpoint"
    assert f"{checkpoint} {expected}" in result.stderr
    assert "choose another folder with --work" in result.stderr
    assert checkpoint.read_bytes() == before
    assert not (tmp_path / "b.json").exists()


# ---- refusals ----

USAGE: list[tuple[tuple[object, ...], str]] = [
    (("--levels", "20,-5"), "each of --levels must be positive, got -5.0"),
    (("--levels", "0"), "each of --levels must be positive"),
    (("--levels", "nan"), "each of --levels must be finite"),
    (("--levels", "10,many"), "such as 10,20,30; got '10,many'"),
    (("--levels", ""), "such as 10,20,30; got ''"),
    (("--levels", "20,10,20.0"), "--levels must differ from each other"),
    (("--phases", "16,some"), "such as 16,all; got '16,some'"),
    (("--phases", "0,all"), "--phases must be positive integers"),
    (("--loss", "ssim"), "--loss must be one of 'psnr', 'mse'"),
    (("--device", "tpu"), "--device must be one of 'auto', 'cpu', 'cuda'"),
    (("--tolerance", "0"), "--tolerance must be positive"),
    (("--iterations", "0"), "--iterations"),
    (("--count", "0"), "--count"),
    (("--seed", "-1"), "--seed"),
    (("--data", "x"), "give only one of them"),
]


@pytest.mark.parametrize(("options", "message"), USAGE)
def test_wrong_usage(
    photographs: Path, tmp_path: Path, options: tuple[object, ...], message: str
) -> None:
    before = names(tmp_path)
    result = train("pm", tmp_path / "out.json", photographs, *options)
    assert result.exit_code == 2
    assert message in result.stderr
    assert "Traceback" not in result.output
    assert names(tmp_path) == before


def test_unknown_model(photographs: Path, tmp_path: Path) -> None:
    result = train("best", tmp_path / "out.json", photographs)
    assert result.exit_code == 2
    assert f"unknown model 'best': expected one of {', '.join(RECIPES)}" in result.stderr


def test_crop_is_for_own_images(tmp_path: Path) -> None:
    result = run("train", "pm", tmp_path / "out.json", "--crop", 64)
    assert result.exit_code == 2
    assert "--crop applies to --images only" in result.stderr


def test_missing_torch(
    photographs: Path, tmp_path: Path, without_package: Callable[[str], None]
) -> None:
    without_package("torch")
    result = train("pm", tmp_path / "out.json", photographs)
    assert result.exit_code == 2
    assert "needs PyTorch" in result.stderr
    assert "[train]'" in result.stderr


def test_missing_gpu(photographs: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    monkeypatch.setattr("integrodiff.engines.cuda.nvidia_gpus", lambda: 0)
    result = train("pm", tmp_path / "out.json", photographs, "--device", "cuda")
    assert result.exit_code == 2
    assert "PyTorch finds no GPU; give --device cpu" in result.stderr


def test_a_gpu_without_cupy_is_told_what_is_missing(
    photographs: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    without_package: Callable[[str], None],
) -> None:
    for module in ("engines.cuda", "learning.recipes"):
        monkeypatch.setattr(f"integrodiff.{module}.nvidia_gpus", lambda: 1)
    without_package("cupy")
    result = train("pm", tmp_path / "out.json", photographs, "--device", "auto")
    assert "its fused kernels cannot run: CuPy, which compiles" in result.stderr.replace("\n", " ")
    assert "[cuda]'" in result.stderr
    quiet = train("pm", tmp_path / "other.json", photographs, "--device", "auto", "--quiet")
    assert "kernels" not in quiet.stderr


@pytest.mark.parametrize("problem", ["missing", "empty", "small", "damaged"])
def test_unusable_images(photographs: Path, tmp_path: Path, problem: str) -> None:
    folder, message = photographs, "0.png has 28 x 24 pixels, too few for a crop of 25 x 25; take"
    if problem == "missing":
        folder, message = tmp_path / "no", "there is no folder"
    elif problem == "empty":
        folder, message = tmp_path / "empty", "has no image"
        folder.mkdir()
    elif problem == "damaged":
        (photographs / "0.png").write_bytes(b"hello")
        message = "0.png: this is not a PNG"
    before = names(tmp_path)
    result = train("pm", tmp_path / "out.json", folder, "--crop", 25)
    assert result.exit_code == 3
    assert message in result.stderr
    assert ("take a smaller --crop" in result.stderr) == (problem == "small")
    assert names(tmp_path) == before


def test_bsds500_cannot_be_had(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def offline() -> Path:
        raise ConnectionError("BSDS500 could not be downloaded; name its folder by an option")

    monkeypatch.setattr("integrodiff.learning.download.download_bsds500", offline)
    monkeypatch.delenv("INTEGRODIFF_DATA", raising=False)
    words = ("train", "pm", tmp_path / "out.json", *SMALL)
    result = run(*words)
    assert result.exit_code == 3
    assert "name its folder by --data" in result.stderr
    named = run(*words, env={"INTEGRODIFF_DATA": str(tmp_path)})
    for result in (run(*words, "--data", tmp_path), named):
        assert result.exit_code == 3
        assert f"no BSDS500 images in {tmp_path}" in result.stderr


def test_existing_output_is_kept_unless_asked(photographs: Path, tmp_path: Path) -> None:
    target = tmp_path / "out.json"
    target.write_text("precious")
    result = train("pm", target, photographs)
    assert result.exit_code == 4
    assert f"{target}: exists already; choose another name, or give --overwrite" in result.stderr
    assert target.read_text() == "precious"
    assert train("pm", target, photographs, "--overwrite").exit_code == 0
    assert len(numbers(target)) == 2


@pytest.mark.parametrize(
    ("name", "options", "message"),
    [
        ("out.txt", (), "the name of a model file must end in .json"),
        ("photographs", (), "must end in .json"),
        ("no/out.json", (), "its folder does not exist"),
        ("out.json", ("--work", __file__), "checkpoints cannot be created"),
    ],
)
def test_unwritable_output(
    photographs: Path, tmp_path: Path, name: str, options: tuple[object, ...], message: str
) -> None:
    before = names(tmp_path)
    result = train("pm", tmp_path / name, photographs, *options)
    assert result.exit_code == 4
    assert message in result.stderr
    assert names(tmp_path) == before


def test_failed_saving_keeps_the_training(
    photographs: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    target = tmp_path / "out.json"
    with monkeypatch.context() as patch:
        patch.setattr("integrodiff.models.save_model", full)
        result = train("pm", target, photographs)
    assert result.exit_code == 4
    assert f"No space left on device. The training is kept in {target}.training" in result.stderr
    result = train("pm", target, photographs)
    assert result.exit_code == 0
    assert " iteration " not in result.stderr


@pytest.mark.parametrize(
    ("error", "message"),
    [
        (MemoryError(), "smaller --batch"),
        (RuntimeError("CUDA out of memory. Tried to allocate"), "smaller --batch"),
        (RuntimeError("lost"), "unexpected RuntimeError: lost"),
        (ValueError("lost"), "unexpected ValueError: lost"),
    ],
)
def test_ends_that_should_not_happen(
    photographs: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    error: Exception,
    message: str,
) -> None:
    def broken(*_: object, **__: object) -> None:
        raise error

    monkeypatch.setattr("integrodiff.learning.recipes.train", broken)
    before = names(tmp_path)
    result = train("pm", tmp_path / "out.json", photographs)
    assert result.exit_code == 1
    assert message in result.stderr
    assert names(tmp_path) == before


# ---- help ----


def test_help_names_all_recipes_and_the_defaults_of_the_library() -> None:
    text = run("train", "--help").stdout
    assert all(name in text for name in RECIPES)
    settings = learning.FitSettings()
    defaults: list[object] = [settings.loss, settings.iterations, settings.tolerance, settings.seed]
    defaults += [",".join("all" if n is None else str(n) for n in settings.phases)]
    defaults += [",".join(map(str, learning.PAPER_LEVELS)), learning.images.CROP]
    assert [value for value in defaults if f"[default: {value}]" not in text] == []


@pytest.mark.slow
def test_help_is_quick() -> None:
    code = (
        "import sys; sys.argv[1:] = ['train', '--help']\nfrom integrodiff.cli import main\n"
        "try: main()\nexcept SystemExit: print(sorted(sys.modules), file=sys.stderr)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    for heavy in ("numpy", "scipy", "skimage", "PIL", "tifffile", "torch"):
        assert f"'{heavy}'" not in done.stderr


@pytest.mark.parametrize(("number", "code"), [(15, 143), (1, 129)])
def test_signals_have_exit_codes_of_their_own(
    photographs: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int, code: int
) -> None:
    def ended(*_: object, **__: object) -> None:
        signal.raise_signal(number)

    monkeypatch.setattr("integrodiff.learning.recipes.train", ended)
    before = signal.signal(number, signal.SIG_DFL)  # programs in the background ignore some
    try:
        assert train("pm", tmp_path / "pm.json", photographs).exit_code == code
    finally:
        signal.signal(number, before)
