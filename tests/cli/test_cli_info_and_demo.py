"""The command line besides ``denoise``: help, version, ``info`` and ``demo``."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from command_line import run
from image_samples import HEIGHT, WIDTH, values
from PIL import Image

import integrodiff
from integrodiff import engines
from integrodiff.engines.torch import TorchEngine


@pytest.mark.slow
def test_installed_command(tmp_path: Path) -> None:
    source = tmp_path / "in.png"
    Image.fromarray(values(HEIGHT, WIDTH)).save(source)
    command = Path(sys.executable).with_name("integrodiff")
    for start in ([str(command)], [sys.executable, "-m", "integrodiff.cli"]):
        done = subprocess.run([*start, "--version"], capture_output=True, text=True, check=True)
        assert done.stdout == f"integrodiff {integrodiff.__version__}\n"
    words = ["denoise", str(source), str(tmp_path / "out.png"), "--sigma", "20", "--model", "pm"]
    done = subprocess.run([str(command), *words], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert done.stderr.count("\n") == 1
    done = subprocess.run([str(command), *words], capture_output=True, text=True)
    assert done.returncode == 4


@pytest.mark.slow
def test_help_is_quick() -> None:
    code = (
        "import sys; sys.argv[1:] = ['denoise', '--help']\nfrom integrodiff.cli import main\n"
        "try: main()\nexcept SystemExit: print(sorted(sys.modules), file=sys.stderr)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    for heavy in ("numpy", "scipy", "skimage", "PIL", "tifffile", "torch"):
        assert f"'{heavy}'" not in done.stderr


COMMANDS = ("denoise", "compare", "explain", "demo", "train", "reproduce", "info")


@pytest.mark.slow
@pytest.mark.parametrize("command", COMMANDS)
def test_help_has_one_example_a_line(command: str) -> None:
    text = run(command, "--help").stdout
    examples = text.split("For example:", 1)[1].split("╭", 1)[0].split("\n")
    lines = [line.strip() for line in examples if line.strip()]
    assert lines
    assert all(line.startswith("integrodiff ") for line in lines)
    assert any(line.startswith(f"integrodiff {command}") for line in lines)
    assert "Exit codes" not in text


@pytest.mark.slow
def test_help_names_engines_and_models() -> None:
    text = run("denoise", "--help").stdout
    assert "|".join(engines.ENGINE_NAMES) in text
    assert all(name in text for name in integrodiff.MODEL_NAMES)
    assert "levels for scales in pixels" in " ".join(text.replace("│", " ").split())


@pytest.mark.slow
def test_exit_codes_are_in_the_main_help() -> None:
    text = run("--help").stdout
    for word in ("Exit codes", "INTEGRODIFF_DEBUG=1", "130: interrupted", *COMMANDS):
        assert word in text


def test_no_arguments_show_help() -> None:
    result = run()
    assert result.exit_code == 2
    assert "denoise" in result.output
    assert "demo" in result.output


@pytest.mark.slow
def test_info() -> None:
    text = run("info").stdout
    assert ".nii.gz" in text
    simd = np.show_config(mode="dicts")["SIMD Extensions"]
    words = [integrodiff.__version__, np.__version__, *simd["baseline"], *simd["found"]]
    words += [*engines.ENGINES, *integrodiff.MODEL_NAMES, "GPU", "processors"]
    assert [word for word in words if word not in text] == []


@pytest.mark.slow
@pytest.mark.slow
def test_info_describes_the_models() -> None:
    text = run("info").stdout
    rows = {line.split()[0]: " ".join(line.split()) for line in text.splitlines() if line.strip()}
    assert rows["pm"] == "pm 2 at each of 6 noise levels 10 10 to 60 26.52 dB 2026-11-15"
    assert rows["iad-plus"] == "iad-plus (default) 12 6 2 to 100 27.74 dB 2026-11-16"
    assert "16 at each of 6 noise levels 10 10 to 60 28.78 dB (sigma 10 to 40)" in " ".join(
        text.split()
    )
    for name in integrodiff.MODEL_NAMES:
        assert integrodiff.load_model(name).provenance["data"] in text
    assert "not said" not in text


@pytest.mark.slow
@pytest.mark.parametrize(
    ("arguments", "extra", "code"),
    [
        (["info"], "torch", 0),
        (["demo", "--engine", "torch", "--output", "never.png"], "torch", 2),
        (["train", "pm", "never.json"], "train", 2),
    ],
)
def test_brackets_of_extras_are_printed(
    tmp_path: Path, arguments: list[str], extra: str, code: int
) -> None:
    # An entry of None makes every import of PyTorch fail, as if it were not installed.
    program = (
        "import sys; sys.modules['torch'] = None\n"
        "from integrodiff.cli import main\n"
        f"sys.argv = ['integrodiff', *{arguments!r}]\n"
        "main()"
    )
    done = subprocess.run(
        [sys.executable, "-c", program],
        capture_output=True,
        text=True,
        cwd=tmp_path,
        env={**os.environ, "COLUMNS": "400"},
    )
    assert done.returncode == code, done.stderr
    assert "PyTorch is not installed" in done.stdout or "PyTorch" in done.stderr
    assert f"[{extra}]'" in done.stdout + done.stderr
    assert list(tmp_path.iterdir()) == []


@pytest.mark.slow
def test_markup_in_file_names_is_printed(tmp_path: Path) -> None:
    image = Image.fromarray(values(HEIGHT, WIDTH))
    names = [tmp_path / name for name in ("[red]a.png", "[bold]b.png", "c.png")]
    for name in names:
        image.save(name)
    before, after, clean = names
    output = tmp_path / ":smile:[blue].png"
    result = run("compare", before, after, "--clean", clean, "--output", output)
    assert result.exit_code == 0, result.output
    shown = result.stdout.replace("\n", "")
    assert "PSNR [dB]" in shown
    assert "[red]a.png" in shown
    assert f"written to {output}" in result.stderr


@pytest.mark.slow
def test_info_survives_a_broken_installation(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(self: object) -> str:
        raise OSError("libtorch.so: not an object file")

    monkeypatch.setattr(TorchEngine, "unavailable", lambda self: None)
    monkeypatch.setattr(TorchEngine, "threads", broken)
    result = run("info")
    assert result.exit_code == 0
    assert "cannot be loaded (libtorch.so" in result.stdout


@pytest.mark.slow
def test_demo(tmp_path: Path) -> None:
    target = tmp_path / "demo.png"
    words = ("demo", "--output", target, "--engine", "numpy", "--sigma", "50", "--seed", "0")
    result = run(*words)
    assert result.exit_code == 0, result.output
    assert f"written to {target}" in result.stderr
    rows = {line.split()[0]: line.split() for line in result.stdout.splitlines() if line.strip()}
    psnr = {name: float(next(w for w in rows[name] if "." in w)) for name in ("noisy", "PM", "IAD")}
    assert psnr["noisy"] == pytest.approx(14.14, abs=0.05)
    assert psnr["IAD"] > psnr["PM"] > psnr["noisy"] + 10
    with Image.open(target) as picture:
        assert picture.mode == "L"
        assert picture.width > picture.height > 800
    before = target.read_bytes()
    assert run(*words).exit_code == 4
    assert target.read_bytes() == before


@pytest.mark.parametrize(
    ("option", "value", "code"),
    [("--sigma", "0", 2), ("--seed", "-1", 2), ("--engine", "x", 2), ("--output", "x.xyz", 4)],
)
def test_demo_refuses(tmp_path: Path, option: str, value: str, code: int) -> None:
    result = run("demo", "--output", tmp_path / "demo.png", option, value)
    assert result.exit_code == code
    assert list(tmp_path.iterdir()) == []
